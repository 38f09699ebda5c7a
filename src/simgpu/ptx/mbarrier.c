/*
 * mbarriers: 64 bits of shared memory, which only this block's thread touches while it runs.
 *
 * Bits 0..19 arrivals pending in this phase, 20..39 arrivals expected per phase, 40..60 bytes still to come (signed), 61 the
 * phase's parity, 62..63 a mark that tells an initialised barrier from other memory. A state token is the value before the
 * arrival. What the ISA leaves undefined (too many arrivals, a count out of range, a word that is no barrier) is a fault.
 */
#include "simgpu/ptx/mbarrier.h"
#include "simgpu/ptx/out.h"

#define MARK UINT64_C(1)
#define COUNT_MOST 0xfffffu

struct barrier {
    uint32_t pending, expected;
    int32_t bytes;
    unsigned odd;
};

static uint64_t packed(const struct barrier *b)
{
    return b->pending | (uint64_t)b->expected << 20 | ((uint64_t)(uint32_t)b->bytes & 0x1fffff) << 40 |
           (uint64_t)b->odd << 61 | MARK << 62;
}

static bool unpack(uint64_t word, struct barrier *out)
{
    out->pending = word & COUNT_MOST;
    out->expected = word >> 20 & COUNT_MOST;
    out->bytes = (int32_t)((uint32_t)(word >> 40 & 0x1fffff) << 11) >> 11;
    out->odd = word >> 61 & 1;
    return word >> 62 == MARK;
}

static uint64_t *at(struct ptx_run *r, const struct ptx_warp *w, enum ptx_space space, unsigned lane, uint64_t address,
                    bool write, uint32_t pc)
{
    struct ptx_access access = {space, 8, 8, write, pc};
    uint8_t *found = ptx_run_at(r, w, &access, lane, address, NULL);
    if (found && (found < r->block->shared || found >= r->block->shared + r->shared_bytes)) {
        ptx_run_fault(r, w, lane, PTX_FAULT_ILLEGAL_INSTRUCTION, pc); /* a generic address of other memory */
        return NULL;
    }
    return (uint64_t *)(void *)found;
}

/* The phase ends when nothing is pending any more. */
static void settle(struct barrier *b)
{
    if (b->pending || b->bytes)
        return;
    b->odd ^= 1;
    b->pending = b->expected;
}

struct change {
    uint32_t arrivals, drops;
    int64_t bytes;
    bool no_complete;
};

static bool apply(struct ptx_run *r, const struct ptx_warp *w, enum ptx_space space, unsigned lane, uint64_t address,
                  const struct change *c, uint64_t *before_out, uint32_t pc)
{
    struct barrier b;
    uint64_t *word = at(r, w, space, lane, address, true, pc);
    if (!word)
        return false;
    int64_t bytes = 0;
    bool good = unpack(*word, &b) && c->arrivals <= b.pending && c->drops <= b.expected;
    if (good) {
        bytes = b.bytes + c->bytes;
        good = bytes >= -(int64_t)COUNT_MOST && bytes <= (int64_t)COUNT_MOST;
    }
    if (good && c->no_complete && c->arrivals == b.pending && !bytes)
        good = false;
    if (!good)
        return ptx_run_fault(r, w, lane, PTX_FAULT_ILLEGAL_INSTRUCTION, pc);
    *before_out = *word;
    b.bytes = (int32_t)bytes;
    b.pending -= c->arrivals;
    b.expected -= c->drops;
    if (c->arrivals || c->bytes < 0)
        settle(&b);
    *word = packed(&b);
    return true;
}

bool ptx_mbarrier_arrive_all(struct ptx_run *r, struct ptx_warp *w, enum ptx_space space,
                             const uint64_t address[PTX_LANES], uint32_t lanes, uint32_t count, uint32_t pc)
{
    uint64_t before;
    PTX_FOR_LANES (lane, lanes) {
        if (!apply(r, w, space, lane, address[lane], &(struct change){.arrivals = count}, &before, pc))
            return false;
    }
    return true;
}

bool ptx_mbarrier_complete(struct ptx_run *r, struct ptx_warp *w, unsigned lane, uint64_t address, uint32_t bytes,
                           uint32_t pc)
{
    uint64_t before;
    return apply(r, w, PTX_SPACE_SHARED, lane, address, &(struct change){.bytes = -(int64_t)bytes}, &before, pc);
}

bool ptx_out_mbarrier_init(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *in, uint8_t *regs,
                           uint32_t active, uint32_t pc)
{
    const uint64_t *address = (const uint64_t *)ptx_out_at(r, regs, in, 0);
    const uint32_t *count = (const uint32_t *)ptx_out_at(r, regs, in, 1);
    PTX_FOR_LANES (lane, active) {
        uint64_t *word = at(r, w, (enum ptx_space)PTX_OUT_PARAMS(in->aux), lane, address[lane], true, pc);
        if (!word)
            return false;
        if (!count[lane] || count[lane] > COUNT_MOST)
            return ptx_run_fault(r, w, lane, PTX_FAULT_ILLEGAL_INSTRUCTION, pc);
        *word = packed(&(struct barrier){.pending = count[lane], .expected = count[lane]});
    }
    return true;
}

bool ptx_out_mbarrier_inval(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *in, uint8_t *regs,
                            uint32_t active, uint32_t pc)
{
    const uint64_t *address = (const uint64_t *)ptx_out_at(r, regs, in, 0);
    PTX_FOR_LANES (lane, active) {
        struct barrier b;
        uint64_t *word = at(r, w, (enum ptx_space)PTX_OUT_PARAMS(in->aux), lane, address[lane], true, pc);
        if (!word)
            return false;
        if (!unpack(*word, &b))
            return ptx_run_fault(r, w, lane, PTX_FAULT_ILLEGAL_INSTRUCTION, pc);
        *word = 0;
    }
    return true;
}

bool ptx_out_mbarrier_arrive(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *in, uint8_t *regs,
                             uint32_t active, uint32_t pc)
{
    uint32_t params = PTX_OUT_PARAMS(in->aux);
    bool drop = params >> 4 & 1, expects = params >> 6 & 1;
    const uint64_t *address = (const uint64_t *)ptx_out_at(r, regs, in, 1);
    const uint32_t *number = (const uint32_t *)ptx_out_at(r, regs, in, 2);
    uint64_t state[PTX_LANES];
    PTX_FOR_LANES (lane, active) {
        uint32_t arrivals = expects ? 1 : number[lane];
        struct change c = {arrivals, drop ? arrivals : 0, expects ? number[lane] : 0, params >> 5 & 1};
        if (!apply(r, w, (enum ptx_space)(params & 15), lane, address[lane], &c, &state[lane], pc))
            return false;
    }
    PTX_FOR_LANES (lane, active)
        ((uint64_t *)ptx_out_at(r, regs, in, 0))[lane] = state[lane];
    return true;
}

bool ptx_out_mbarrier_tx(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *in, uint8_t *regs,
                         uint32_t active, uint32_t pc)
{
    uint32_t params = PTX_OUT_PARAMS(in->aux);
    const uint64_t *address = (const uint64_t *)ptx_out_at(r, regs, in, 0);
    const uint32_t *bytes = (const uint32_t *)ptx_out_at(r, regs, in, 1);
    PTX_FOR_LANES (lane, active) {
        uint64_t before;
        struct change c = {.bytes = params >> 4 ? -(int64_t)bytes[lane] : (int64_t)bytes[lane]};
        if (!apply(r, w, (enum ptx_space)(params & 15), lane, address[lane], &c, &before, pc))
            return false;
    }
    return true;
}

bool ptx_out_mbarrier_test(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *in, uint8_t *regs,
                           uint32_t active, uint32_t pc)
{
    uint32_t params = PTX_OUT_PARAMS(in->aux), over = 0, *done = (uint32_t *)ptx_out_at(r, regs, in, 0);
    bool parity = params >> 4;
    const uint64_t *address = (const uint64_t *)ptx_out_at(r, regs, in, 1);
    const uint8_t *which = ptx_out_at(r, regs, in, 2);
    PTX_FOR_LANES (lane, active) {
        struct barrier b, before;
        uint64_t *word = at(r, w, (enum ptx_space)(params & 15), lane, address[lane], false, pc);
        if (!word)
            return false;
        bool good = unpack(*word, &b);
        if (parity)
            before.odd = ((const uint32_t *)(const void *)which)[lane] & 1;
        else
            good = unpack(((const uint64_t *)(const void *)which)[lane], &before) && good;
        if (!good)
            return ptx_run_fault(r, w, lane, PTX_FAULT_ILLEGAL_INSTRUCTION, pc);
        over |= (uint32_t)(b.odd != before.odd) << lane;
    }
    *done = (*done & ~active) | over;
    return true;
}

bool ptx_out_mbarrier_pending(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *in, uint8_t *regs,
                              uint32_t active, uint32_t pc)
{
    const uint64_t *state = (const uint64_t *)ptx_out_at(r, regs, in, 1);
    PTX_FOR_LANES (lane, active) {
        struct barrier b;
        if (!unpack(state[lane], &b))
            return ptx_run_fault(r, w, lane, PTX_FAULT_ILLEGAL_INSTRUCTION, pc);
        ((uint32_t *)ptx_out_at(r, regs, in, 0))[lane] = b.pending;
    }
    return true;
}
