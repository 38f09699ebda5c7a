/*
 * Loads and stores next to each other often use one base register with different offsets (unrolled loops). What matters of
 * that register, whether the lanes of each half warp form a line or are the same, is found by the first of them and kept in
 * a slot for the others. This pass marks who fills a slot and who may use it: within a stretch of code that is entered only
 * at its top, as long as the register is not written.
 */
#include "simgpu/ptx/lower.h"

#include <string.h>

struct slot {
    uint32_t base; /* 0 = free */
};

static bool is_quick(const struct ptx_insn *in)
{
    return (in->op >= PTX_OP_LD_GLOBAL_4 && in->op <= PTX_OP_LD_SHARED_V4) ||
           (in->op >= PTX_OP_ST_GLOBAL_4 && in->op <= PTX_OP_ST_SHARED_V4);
}

/* Lanes may part or meet behind these, or the warp may lose its turn. */
static bool ends_stretch(const struct ptx_insn *in)
{
    return in->op >= PTX_OP_BRA && in->op <= PTX_OP_YIELD && in->op != PTX_OP_ACTIVEMASK;
}

static void forget(struct slot slots[PTX_REUSE_SLOTS], uint32_t written)
{
    for (unsigned i = 0; i < PTX_REUSE_SLOTS; i++)
        if (slots[i].base == written)
            slots[i].base = 0;
}

static void forget_results(struct slot slots[PTX_REUSE_SLOTS], const struct ptx_insn *in)
{
    if (in->op >= PTX_OP_LD && in->op <= PTX_OP_LD_SHARED_V4)
        for (unsigned k = 0; k < 1u << PTX_MEM_VEC_LOG2(in->aux); k++)
            forget(slots, in->o[k]);
    else if (!(in->op >= PTX_OP_ST && in->op <= PTX_OP_ST_SHARED_V4))
        forget(slots, in->o[0]);
}

static void mark(struct slot slots[PTX_REUSE_SLOTS], unsigned *next, struct ptx_insn *in)
{
    /* What is a line for elements of 4 bytes is none for 8: the slots of the sizes are apart. */
    unsigned first = (PTX_MEM_LOG2(in->aux) + PTX_MEM_VEC_LOG2(in->aux) - 2) * PTX_REUSE_PER_SIZE;
    for (unsigned i = first; i < first + PTX_REUSE_PER_SIZE; i++) {
        if (slots[i].base == in->o[4]) {
            in->aux |= (i + 1) << PTX_REUSE_USE_SHIFT;
            return;
        }
    }
    unsigned i = first + (*next)++ % PTX_REUSE_PER_SIZE;
    slots[i].base = in->o[4];
    in->aux |= (i + 1) << PTX_REUSE_FILL_SHIFT;
}

void ptx_lower_reuse(struct ptx_parser *p, uint32_t begin, uint32_t end)
{
    struct ptx_insn *code = p->module->code;
    uint8_t *entered = ptx_parse_take(p, end - begin + 1);
    struct slot slots[PTX_REUSE_SLOTS] = {{0}};
    unsigned next = 0;
    for (uint32_t pc = begin; pc < end; pc++)
        if (code[pc].op == PTX_OP_BRA)
            entered[code[pc].imm - begin] = 1;
    for (struct ptx_target_fixup *fixup = p->target_fixups; fixup; fixup = fixup->next)
        entered[fixup->label->index - begin] = 1;
    for (uint32_t pc = begin; pc < end; pc++) {
        struct ptx_insn *in = &code[pc];
        if (entered[pc - begin])
            memset(slots, 0, sizeof(slots));
        if (is_quick(in) && !in->guard)
            mark(slots, &next, in);
        forget_results(slots, in);
        if (ends_stretch(in))
            memset(slots, 0, sizeof(slots));
    }
    ptx_lower_fuse(code + begin, end - begin, entered);
}
