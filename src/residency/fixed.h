/*
 * Allocations that do not move freely:
 *
 *  - registered ones. Who sets SYNC_MEMOPS on memory is about to let something reach it that goes by physical addresses (a network card, a
 *    communication library's peers). It is brought into VRAM as far as that has room, and from then on stays where it is.
 *  - those that a kernel of another GPU names, where the hardware has no way between the two. They stay in host memory, which both reach.
 *
 * Both need host memory that kernels can use (hr_tier_host_mappable); without it registered memory still never leaves VRAM.
 */
#ifndef HR_RESIDENCY_FIXED_H
#define HR_RESIDENCY_FIXED_H

#include "base/thread.h"
#include "residency/move.h"

/* Asks the driver which GPUs reach each other. Once, at start. */
void hr_fixed_start(void);

/* Whether the hardware has no way from kernels of the one GPU to memory of the other, and host memory may serve instead; whether that is so
 * for any two. No lock. */
bool hr_fixed_is_barred(unsigned user, unsigned owner);
/* Data goes wrong between these two: they count as such, both ways. */
void hr_fixed_bar(unsigned gpu_a, unsigned gpu_b);
bool hr_fixed_any_barred(void);

/* Whether nothing of e is to be moved, or backed by VRAM where it was not. No lock. */
bool hr_fixed_is(const struct hr_extent *e);
/* GPUs (a bit each) that have to be granted what of e lies in host memory. No lock. */
uint64_t hr_fixed_sharers(const struct hr_extent *e);

/*
 * Moves all of e to host memory, which `user` is granted there from now on. Waits for the GPUs that use it, up to a minute. Errors:
 * OUT_OF_MEMORY: host memory is full, or it did not come to rest; the driver's. Where host memory cannot be used by kernels, nothing is
 * done: the hardware will say so. Locks: takes the move lock; hold none, and no submission.
 */
CUresult hr_fixed_share(struct hr_thread *t, struct hr_extent *e, unsigned user);

/* SYNC_MEMOPS was set on memory of e, or taken from it. Waits as above, but never fails. Locks as above. */
void hr_fixed_register(struct hr_thread *t, struct hr_extent *e, bool on);

#endif
