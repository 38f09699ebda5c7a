/*
 * Which GPU reaches the window memory of which other.
 *
 * cuCtxEnablePeerAccess has no effect on memory that is mapped chunk by chunk: each mapping carries its own grants, and
 * loses them when it is unmapped. So who enabled whom is remembered here, and every mapping of a window, whatever tier it
 * is of, gets all grants of that window at once.
 *
 * Locks: what is granted changes under the move lock; reading takes none.
 */
#ifndef HR_RESIDENCY_PEERS_H
#define HR_RESIDENCY_PEERS_H

#include "base/lock.h"
#include "residency/move.h"
#include "space/space.h"

/* The access that a mapping of this window gets: the GPU itself and whoever was granted it. How many; desc has room for
 * HR_MAX_GPUS. */
size_t hr_peers_access_locked(unsigned owner, CUmemAccessDesc *desc_out) HR_REQUIRES(hr_move_lock);

/* The other GPUs (a bit each) that the job lets reach window memory of this one. No lock. */
uint64_t hr_peers_granted(unsigned owner);
/* Whether the job ever let one GPU reach another's. No lock. */
bool hr_peers_any_granted(void);
/* Whether work of GPU `user` may name window memory of GPU `owner`. No lock. */
bool hr_peers_reach(unsigned user, unsigned owner);

/*
 * The GPUs (a bit each) whose work may touch window memory of `owner`: itself, whoever was ever granted it, and whoever's
 * streams had copies to or from it. These have to be at rest before a mapping of that window may change.
 */
uint64_t hr_peers_users(unsigned owner);
/* Work of `user` is about to touch memory of `owner` without a grant. In a submission, or before it. */
void hr_peers_note_use(unsigned user, unsigned owner);

/*
 * Where two GPUs have atomics on each other's memory but not on host memory, what both use must not be moved out: a job may
 * rely on them. hr_peers_meet_in_vram: whether that is so for these two, and the one was granted the other's memory.
 * hr_peers_matter: whether it matters for any two which GPU a launch is of, for this or because there is no way between
 * them (fixed.h). No lock.
 */
bool hr_peers_meet_in_vram(unsigned user, unsigned owner);
bool hr_peers_matter(void);

/*
 * After a cuCtxEnablePeerAccess(owner) of the driver that succeeded: grants what is mapped now. An error: nothing was
 * granted, and the caller takes the driver's enabling back. Takes the move lock: hold none.
 */
CUresult hr_peers_enabled(CUcontext owner);
/*
 * The same for memory of one pool, whichever way pools are numbered: `user` is granted the window of `owner`, or what it was
 * granted for this pool is taken back. Errors and locks as above.
 */
CUresult hr_peers_pool_grant(uint64_t pool, unsigned user, unsigned owner);
void hr_peers_pool_revoke(uint64_t pool, unsigned user);
/* Whether contexts of `user` asked for the memory of `owner`, rather than only for some pool of it. No lock. */
bool hr_peers_enabled_by_contexts(unsigned user, unsigned owner);
/*
 * Lets all GPUs with a context reach chunks that stay where they are: a node of a graph copies there without asking for peer access. What
 * the hardware does not allow is left.
 */
void hr_peers_open_locked(unsigned owner, uint32_t first_chunk, uint32_t end_chunk) HR_REQUIRES(hr_move_lock);
/* After the driver's cuCtxDisablePeerAccess(owner). Takes the move lock. */
void hr_peers_disabled(CUcontext owner);
/* The context is gone, and what it enabled, or others to it. Takes the move lock. */
void hr_peers_forget(CUcontext handle);

#endif
