/*
 * Memory on GPUs that pass data on for others: blocks of chunks of their own, which the GPU itself and those that write or read them may
 * access. They count against the GPU's VRAM budget like chunks of its window, are made where that has room, and are given back when the
 * GPU needs it. They are mapped at addresses that nobody else knows, so nothing that the job may or may not reach changes by them, and the
 * driver's peer access between contexts is not touched.
 */
#ifndef HR_RESIDENCY_RELAY_H
#define HR_RESIDENCY_RELAY_H

#include "driver/driver.h"

struct hr_relay {
    CUdeviceptr address;
    size_t bytes;
    unsigned gpu;
    uint64_t users; /* GPUs (a bit each) that have access, the own one included */
    CUmemGenericAllocationHandle handle;
    struct hr_relay *next; /* relay.c's */
};

/*
 * A block of at least so many bytes on the GPU, of which some context is current, for the GPUs in `users`. OUT_OF_MEMORY: the budget has no room;
 * else the driver's errors (a GPU that cannot reach this one). Locks: HR_RANK_MOVE + 2 and above.
 */
CUresult hr_relay_take(unsigned gpu, size_t bytes, uint64_t users, struct hr_relay **relay_out);
/* Nothing uses it any more. Lock as above. */
void hr_relay_give(struct hr_relay *relay);
/* Frees the blocks of a GPU (or of all: gpu = HR_MAX_GPUS) that nobody has; the budget has their bytes again. How many bytes. Lock as
 * above. */
size_t hr_relay_trim(unsigned gpu);

#endif
