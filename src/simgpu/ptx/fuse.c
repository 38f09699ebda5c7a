/*
 * What can run in one go. A stretch is a run of instructions without guards, branches or anything else that lanes could part
 * at: when all lanes are active at its first instruction they are at all of them, so the interpreter counts once for the whole
 * stretch and asks nothing in between. Nothing is rewritten: whoever comes with fewer lanes runs the same instructions one by
 * one.
 *
 * Within stretches, chains: a sum of products of loaded values (the inner loop of a matrix product, unrolled) is so frequent
 * that its triples of load, load and fused multiply-add run as one operation, the sum kept in processor registers. The loaded
 * values and the intermediate sums must be read nowhere else, so that they need not be written to the frame.
 */
#include "simgpu/ptx/lower.h"

#define MOST_CHAIN 64

/* Without guard: what run_stretch of fused.inc has a case for. */
static bool joins_stretch(const struct ptx_insn *in)
{
    if (in->guard)
        return false;
    if (in->op <= PTX_OP_LAST_COMPARE)
        return true;
    switch (in->op) {
    case PTX_OP_SELP_16:
    case PTX_OP_SELP_32:
    case PTX_OP_SELP_64:
    case PTX_OP_LANE:
    case PTX_OP_EX2_F32:
    case PTX_OP_LG2_F32:
    case PTX_OP_SIN_F32:
    case PTX_OP_COS_F32:
    case PTX_OP_TANH_F32:
    case PTX_OP_RSQRT_F32:
    case PTX_OP_PMOV:
    case PTX_OP_PNOT:
    case PTX_OP_PAND:
    case PTX_OP_POR:
    case PTX_OP_PXOR:
    case PTX_OP_CARRY:
    case PTX_OP_SREG:
    case PTX_OP_LD ... PTX_OP_ST_SHARED_V4: return true;
    default: return false;
    }
}

/* ld a; ld b; fma d, a, b, c: neither loaded value is read again. */
static bool is_triple(const struct ptx_insn *in)
{
    if ((in->op != PTX_OP_LD_SHARED_4 && in->op != PTX_OP_LD_GLOBAL_4) || in[1].op != in->op ||
        in[2].op != PTX_OP_FMA_F32)
        return false;
    const uint32_t *o = in[2].o;
    uint32_t a = in[0].o[0], b = in[1].o[0];
    return in[0].once && in[1].once && ((o[1] == a && o[2] == b) || (o[1] == b && o[2] == a));
}

/* The triple after this one goes on with its sum, which nobody else reads. */
static bool is_continued(const struct ptx_insn *in)
{
    return is_triple(in + 3) && in[3].op == in->op && in[5].o[3] == in[2].o[0] &&
           (in[2].once || in[5].o[0] == in[2].o[0]);
}

static void mark_chains(struct ptx_insn *code, uint32_t count)
{
    for (uint32_t at = 0; at + 3 <= count;) {
        if (!is_triple(&code[at])) {
            at++;
            continue;
        }
        uint32_t triples = 1;
        while (at + 3 * triples + 3 <= count && triples < MOST_CHAIN && is_continued(&code[at + 3 * triples - 3]))
            triples++;
        for (; triples; triples--, at += 3)
            code[at].chain = (uint8_t)triples;
    }
}

static void mark_stretch(struct ptx_insn *code, uint32_t count)
{
    for (uint32_t at = 0; at < count; at += PTX_MOST_STRETCH) {
        uint32_t length = count - at < PTX_MOST_STRETCH ? count - at : PTX_MOST_STRETCH;
        if (length < 2)
            return;
        code[at].stretch = (uint16_t)length;
        for (uint32_t i = 0; i < length; i++)
            code[at].stretch_flops += (code[at + i].flops & 15u) | (uint32_t)code[at + i].flops >> 4 << 16;
        mark_chains(code + at, length);
    }
}

void ptx_lower_fuse(struct ptx_insn *code, uint32_t count, const uint8_t *entered)
{
    for (uint32_t first = 0; first < count;) {
        uint32_t end = first;
        while (end < count && joins_stretch(&code[end]) && (end == first || !entered[end]))
            end++;
        mark_stretch(code + first, end - first);
        first = end > first ? end : first + 1;
    }
}
