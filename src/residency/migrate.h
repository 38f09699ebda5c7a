/*
 * The copies of moves. Between the VRAM of two GPUs (what is lent, and comes back) they are transfers like the job's: over every path that the
 * fabric has; what is no faster that way, or to and from host memory, is copied by the driver on the mover's stream of the window's GPU.
 */
#ifndef HR_RESIDENCY_MIGRATE_H
#define HR_RESIDENCY_MIGRATE_H

#include "residency/context.h"
#include "residency/move.h"

/*
 * Copies what the chunks hold to where they go, all of one window, and waits. The context is current, the moves are in address order. Errors: the
 * first that the driver told; then each chunk may have been copied or not. Locks: the move lock is held; HR_RANK_MOVE + 1 and above.
 */
CUresult hr_migrate(struct hr_context *context, const struct hr_move *moves, unsigned count) HR_REQUIRES(hr_move_lock);
/* Whether memory that is lent takes part. */
bool hr_migrate_over_links(const struct hr_move *moves, unsigned count);

#endif
