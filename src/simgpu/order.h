/*
 * What is known to come after what, as far as stream-ordered memory needs it: for each stream in which memory was freed, how
 * far somebody (a stream, a recording of an event, the host) certainly comes after its work. Kept from the first such free on,
 * with or without SIMGPU_CHECK; what was ordered before that is over for nobody to ask about.
 *
 * All of this needs sg.lock.
 */
#ifndef SG_ORDER_H
#define SG_ORDER_H

#include "simgpu/sim.h"

/* A place in a stream's queue. */
struct sg_place {
    uint64_t stream;  /* its number */
    uint64_t context; /* of the stream: its number; 0 once nothing can depend on it any more */
    uint64_t ticket, seq;
    bool legacy, blocking;
};
struct sg_place sg_place_of_next(const struct sg_stream *stream); /* of what is submitted next */

/* Memory was freed at the stream's latest submission: its order is kept from now on. */
void sg_order_begin(struct sg_stream *stream);
void sg_order_recorded(struct sg_mark *mark, const struct sg_stream *stream); /* before the recording is submitted */
void sg_order_waits(struct sg_stream *stream, const struct sg_mark *mark);
/* What the host will have learned once all is over that a stream (a context, a device) holds now: taken before it waits, since
 * other threads go on meanwhile; NULL = nothing. sg_order_learn ends it. */
struct sg_known *sg_order_of_stream(const struct sg_stream *stream);
struct sg_known *sg_order_of_context(const struct sg_context *context);
struct sg_known *sg_order_of_device(int device);
void sg_order_learn(struct sg_known *known, bool over); /* over: it is; else it is only ended */
void sg_order_learn_mark(const struct sg_mark *mark);   /* a recording is done */

bool sg_order_host_knows(const struct sg_place *place);
/* Whether all that is submitted to the stream from now on comes after the place. */
bool sg_order_follows(const struct sg_stream *stream, const struct sg_place *place);

#endif
