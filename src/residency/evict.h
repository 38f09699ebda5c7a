/*
 * Moves out of a GPU's VRAM. Locks: the move lock, where a name ends in _locked.
 */
#ifndef HR_RESIDENCY_EVICT_H
#define HR_RESIDENCY_EVICT_H

#include "residency/move.h"

/* Whether a chunk is in VRAM and could leave it now. */
bool hr_evict_may_leave(const struct hr_chunk *c);
/* When it was last named, in ticks. */
uint64_t hr_evict_last_use(const struct hr_chunk *c);

/*
 * Sends chunks of one GPU's window that may leave to other GPUs that lend their VRAM, then to host memory, as far as there is room; how
 * many left. span_ns as for hr_move_batch_locked, here and below. Needs a current context.
 */
size_t hr_evict_send_locked(unsigned gpu, struct hr_chunk *const *chunks, size_t count, uint64_t span_ns)
    HR_REQUIRES(hr_move_lock);
/* Moves at least `need` chunks out if the policy finds that many; how many left. */
size_t hr_evict_locked(unsigned gpu, size_t need, uint64_t span_ns) HR_REQUIRES(hr_move_lock);

#endif
