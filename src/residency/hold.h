/*
 * Memory that executable graphs copy or fill. Unlike kernels, such nodes may keep the placement that they found when the graph was
 * instantiated or changed, so their operands do not move while one that names them lives: wholly in VRAM where that has room (they may
 * fill half of it), else wholly in host memory, for a copy over both is undocumented.
 */
#ifndef HR_RESIDENCY_HOLD_H
#define HR_RESIDENCY_HOLD_H

#include "base/lock.h"
#include "residency/move.h"

#define HR_HELD_IN_VRAM (UINT32_C(1) << 31) /* beside the count in hr_chunk.held: it was there when it was held first */

/* Whether the chunk stays where it is. No lock. */
static inline bool hr_hold_is(const struct hr_chunk *c)
{
    return atomic_load_explicit(&c->held, memory_order_relaxed) != 0;
}

/* One range of one allocation, held. */
struct hr_hold {
    struct hr_extent *extent;
    uint64_t id; /* the life of it that was meant */
    uint32_t first_chunk, end_chunk;
};
/*
 * Backs and places [address, address + bytes) of the windows, and holds it there. May wait for the devices, with a deadline. Errors:
 * INVALID_VALUE: it is not within one live allocation; OUT_OF_MEMORY: there is no room for it anywhere, or the devices did not come to
 * rest; the driver's. Nothing is held then. Locks: takes the move lock; hold none, and no submission.
 */
CUresult hr_hold_take(struct hr_thread *t, CUdeviceptr address, size_t bytes, struct hr_hold *hold_out);
/* Holds a chunk, which has backing, where it is. */
void hr_hold_add_locked(struct hr_chunk *c) HR_REQUIRES(hr_move_lock);
/* Lets it move again. What was freed meanwhile is nobody's. Locks: takes the move lock. */
void hr_hold_drop(const struct hr_hold *hold);
/* The memory is given back: who holds it holds nothing any more. */
void hr_hold_forget_locked(struct hr_chunk *c) HR_REQUIRES(hr_move_lock);
/* Chunks of a GPU's VRAM that are held. No lock. */
size_t hr_hold_vram_chunks(unsigned gpu);

#endif
