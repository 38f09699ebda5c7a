/* What every allocation and free of window memory has in common, whoever it is for. */
#ifndef HR_RESIDENCY_ALLOC_H
#define HR_RESIDENCY_ALLOC_H

#include "base/thread.h"
#include "space/space.h"

/*
 * An allocation from the window of `gpu` for `owner` (a context, or what hr_pool_owner returns), counted in the statistics under
 * the call that returns to return_pc. Where there is no room it waits for what was freed (hr_access_make_room). Errors:
 * OUT_OF_MEMORY, counted and told of; the driver's where memory is backed at once. Locks: hold none, and no submission.
 */
CUresult hr_alloc_window(struct hr_thread *t, unsigned gpu, CUcontext owner, size_t bytes, void *return_pc,
                         CUdeviceptr *address_out);
/* The same for one that lives again (hr_space_revive). Errors: where memory is backed at once, those of that. */
CUresult hr_alloc_again(struct hr_thread *t, CUdeviceptr address, size_t bytes, void *return_pc);
/* A commit charge alone, waited for in the same way. OUT_OF_MEMORY, counted and told of. Locks: as above. */
CUresult hr_alloc_charge(struct hr_thread *t, unsigned gpu, size_t bytes);
/* Counts a free that hr_space_retire has begun. */
void hr_alloc_retired(struct hr_thread *t, struct hr_extent *e, CUdeviceptr address, size_t bytes);

#endif
