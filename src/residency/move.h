/*
 * Moving chunks between tiers at the same address, backing fresh ones, dropping dead ones. All under the move lock: one
 * mover at a time.
 *
 * The protocol of a batch (docs/decisions.md, "safe move"):
 *  1. With the gate open: if no thread is in a submission and the devices are at rest, copy, and remember the submission
 *     count from before the copy.
 *  2. Close the gate (deadline). If the count has changed, or there was no copy, drain (deadline) and copy again.
 *  3. Swap run by run: unmap, map the new chunks, one set-access. A step that fails puts the old mapping back.
 *  4. Open the gate.
 */
#ifndef HR_RESIDENCY_MOVE_H
#define HR_RESIDENCY_MOVE_H

#include "base/lock.h"
#include "space/space.h"
#include "tier/tier.h"

extern struct hr_mutex hr_move_lock;

#define HR_MOVE_MAX 64

struct hr_move {
    struct hr_chunk *chunk; /* has backing */
    struct hr_phys *to;     /* where it goes; on success it is the chunk's, and the old one is back in its pool */
};

enum hr_moved {
    HR_MOVED,
    HR_MOVE_GIVEN_UP, /* a deadline passed: nothing changed, every `to` is back in its pool */
    HR_MOVE_FAILED,   /* a driver call failed: what could not be moved is as before, its `to` back in its pool */
};
/* Closes the gate until the GPUs in the mask are at rest, for at most span_ns. Whether they came to rest. Locks: takes the move
 * lock. */
bool hr_move_rest(uint64_t gpu_mask, uint64_t span_ns);

/*
 * Moves up to HR_MOVE_MAX chunks of one GPU's window. `moves` is reordered. span_ns: for a call that fails without the move, how long
 * the gate may stay closed at least, whatever became of earlier moves; 0 = as ordinarily.
 */
enum hr_moved hr_move_batch_locked(unsigned gpu, struct hr_move *moves, unsigned count, uint64_t span_ns)
    HR_REQUIRES(hr_move_lock);

/*
 * Backs adjacent RESERVED chunks of one live extent from a tier, without content, and maps them where the tier can. Returns
 * how many were backed, from the first on; *error_out says why not more (OUT_OF_MEMORY: the tier has no room).
 */
uint32_t hr_back_fresh_locked(struct hr_extent *e, uint32_t first_chunk, uint32_t count, const struct hr_tier *tier,
                              CUresult *error_out) HR_REQUIRES(hr_move_lock);

/* Maps a chunk that has backing of the driver but is not mapped (a failed move could not restore it). */
CUresult hr_map_again_locked(struct hr_chunk *c) HR_REQUIRES(hr_move_lock);

/*
 * The job maps memory into a reservation (an extent of kind VMM), or unmaps it. adopt makes chunks, until now holes, the extent's own,
 * and maps what they have been given as backing before (NULL = nothing yet); an error: nothing was done. disown makes holes of
 * them and gives out their backing; with keep_mapped it stays mapped where it is, and is none of the movers' business from now on.
 * An error: nothing was done.
 */
CUresult hr_move_adopt_locked(struct hr_extent *e, uint32_t first_chunk, uint32_t count, struct hr_phys *const *phys)
    HR_REQUIRES(hr_move_lock);
CUresult hr_move_disown_locked(struct hr_extent *e, uint32_t first_chunk, uint32_t count, bool keep_mapped,
                               struct hr_phys **phys_out) HR_REQUIRES(hr_move_lock);

/* Takes the backing away from a dead extent. An error: some chunks kept theirs, call again later. */
CUresult hr_drop_backing_locked(struct hr_extent *e) HR_REQUIRES(hr_move_lock);

#endif
