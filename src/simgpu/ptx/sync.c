/* What a warp's lanes and a cluster's threads agree on, apart from the frequent forms in warp.inc. */
#include "simgpu/ptx/out.h"

#include <string.h>

bool ptx_out_redux(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *in, uint8_t *regs, uint32_t active,
                   uint32_t pc)
{
    (void)w, (void)pc;
    uint32_t params = PTX_OUT_PARAMS(in->aux), *result = (uint32_t *)ptx_out_at(r, regs, in, 0);
    const uint32_t *a = (const uint32_t *)ptx_out_at(r, regs, in, 1);
    uint32_t sum = a[__builtin_ctz(active)];
    PTX_FOR_LANES (lane, active & (active - 1))
        ptx_atom(&sum, (enum ptx_atom_op)(params & 15), (enum ptx_atom_type)(params >> 4), a[lane], 0, false);
    PTX_FOR_LANES (lane, active)
        result[lane] = sum;
    return true;
}

bool ptx_out_elect(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *in, uint8_t *regs, uint32_t active,
                   uint32_t pc)
{
    (void)w, (void)pc;
    uint32_t *leader = (uint32_t *)ptx_out_at(r, regs, in, 0), *is_leader = (uint32_t *)ptx_out_at(r, regs, in, 1);
    uint32_t first = (uint32_t)__builtin_ctz(active);
    PTX_FOR_LANES (lane, active)
        leader[lane] = first;
    *is_leader = (*is_leader & ~active) | 1u << first;
    return true;
}

/* A cluster barrier's phase ends when every thread that has not left has arrived. */
void ptx_run_cluster_check(struct ptx_block *b)
{
    if (b->cluster_arrived < b->live_threads || !b->cluster_arrived)
        return;
    b->cluster_arrived = 0;
    b->cluster_phase++;
}

bool ptx_out_cluster_arrive(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *in, uint8_t *regs,
                            uint32_t active, uint32_t pc)
{
    (void)in, (void)regs, (void)pc;
    uint32_t odd = r->block->cluster_phase & 1 ? active : 0;
    w->cluster_odd = (w->cluster_odd & ~active) | odd;
    r->block->cluster_arrived += (uint32_t)__builtin_popcount(active);
    ptx_run_cluster_check(r->block);
    return true;
}

/* Has the phase in which a lane arrived ended? Lanes arrive once per phase, so its parity tells. */
bool ptx_out_cluster_test(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *in, uint8_t *regs,
                          uint32_t active, uint32_t pc)
{
    (void)pc;
    uint32_t *done = (uint32_t *)ptx_out_at(r, regs, in, 0);
    uint32_t over = r->block->cluster_phase & 1 ? ~w->cluster_odd : w->cluster_odd;
    *done = (*done & ~active) | (over & active);
    return true;
}

bool ptx_out_discard(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *in, uint8_t *regs, uint32_t active,
                     uint32_t pc)
{
    struct ptx_access access = {(enum ptx_space)PTX_OUT_PARAMS(in->aux), 128, 128, true, pc};
    const uint64_t *address = (const uint64_t *)ptx_out_at(r, regs, in, 0);
    PTX_FOR_LANES (lane, active) {
        uint8_t *at = ptx_run_at(r, w, &access, lane, address[lane], NULL);
        if (!at)
            return false;
        memset(at, 0xcd, 128);
    }
    return true;
}
