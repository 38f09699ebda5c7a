/*
 * Does a block go in circles? Its whole state (where its lanes are, registers, local and shared memory) is hashed whenever its
 * turn ends, and compared with a state kept from before. Turns end at branches, so a loop is met at few places.
 */
#include "simgpu/ptx/block.h"

#define PATIENCE 64 /* turns, before another state is kept: the first one may have been on the way into the loop */

static uint64_t mix(uint64_t hash, const void *from, size_t bytes)
{
    const uint64_t *word = from;
    for (size_t i = 0; i < bytes / 8; i++) {
        hash = (hash ^ word[i]) * UINT64_C(0x9fb21c651e98df25);
        hash ^= hash >> 32;
    }
    return hash;
}

static uint64_t state_of(const struct ptx_block *b, const struct ptx_block_shape *shape)
{
    uint64_t hash = mix(b->live_threads, b->shared, shape->shared_bytes);
    for (uint32_t i = 0; i < b->warp_count; i++) {
        const struct ptx_warp *w = &b->warps[i];
        const uint64_t lanes[2] = {(uint64_t)w->live << 32 | w->waiting, w->syncing};
        hash = mix(hash, lanes, sizeof lanes);
        hash = mix(hash, w->pc, sizeof w->pc);
        hash = mix(hash, w->fp, sizeof w->fp);
        hash = mix(hash, w->registers, w->stack_bytes);
        hash = mix(hash, w->local, (size_t)shape->local_bytes * PTX_LANES);
    }
    return hash;
}

bool ptx_block_came_back(struct ptx_block *b, const struct ptx_block_shape *shape, uint64_t round)
{
    uint64_t hash = state_of(b, shape);
    bool was_back = b->spin.round == round && b->spin.back;
    if (b->spin.round != round)
        b->spin = (struct ptx_block_spin){round, hash, 0, false};
    else if (b->spin.hash == hash)
        b->spin.back = true;
    else if (++b->spin.looks % PATIENCE == 0)
        b->spin.hash = hash;
    return b->spin.back && !was_back;
}

unsigned ptx_block_line(const struct ptx_block *b, const struct ptx_insn *code)
{
    for (uint32_t i = 0; i < b->warp_count; i++) {
        const struct ptx_warp *w = &b->warps[i];
        uint32_t runnable = w->live & ~(w->waiting | w->syncing);
        if (runnable)
            return code[w->pc[__builtin_ctz(runnable)]].line;
    }
    return 0;
}
