/*
 * Green contexts are views: other handles of a device's primary context, with streams of their own. The SMs that they were made
 * with are told back and limit nobody.
 */
#ifndef SG_GREEN_H
#define SG_GREEN_H

#include "simgpu/sim.h"

struct sg_green {
    struct sg_object object; /* its handle as a CUcontext is the same number */
    struct sg_context *primary;
    uint64_t number;
    unsigned sm_count;
    struct sg_mark **waits; /* what all its future work waits for */
    size_t wait_count, wait_room;
};

/* The green context that a CUcontext stands for; NULL: it is an ordinary one. Needs sg.lock. */
struct sg_green *sg_green_of(uint64_t context);
/* The calling thread's current one. */
struct sg_green *sg_green_current(void);
/* A new stream belongs to it: it waits for what all of its streams do. */
void sg_green_adopt(struct sg_green *green, struct sg_stream *stream);

#endif
