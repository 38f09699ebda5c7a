/* Branches, calls, barriers, and what a warp's lanes tell each other. */
#include "simgpu/ptx/lower.h"

#include <string.h>

static void no_types(struct ptx_parser *p)
{
    if (p->stmt.type_count)
        ptx_lower_unsupported(p, NULL);
}

void ptx_lower_bra(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    (void)d;
    no_types(p);
    ptx_take_mod(p, PTX_M_UNI);
    const struct ptx_operand *o = ptx_operand_at(p, 0);
    if (o->kind != PTX_OPERAND_SYMBOL || o->symbol || o->value)
        ptx_lower_fail(p, "no label");
    struct ptx_symbol *label = ptx_parse_label(p, o->name, o->name_bytes);
    ptx_emit(p, PTX_OP_BRA)->imm = (uintptr_t)label; /* becomes its pc at the end of the function */
}

void ptx_lower_brx(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    (void)d;
    no_types(p);
    ptx_take_mod(p, PTX_M_UNI);
    const struct ptx_operand *o = ptx_operand_at(p, 1);
    if (!ptx_take_mod(p, PTX_M_IDX) || o->kind != PTX_OPERAND_SYMBOL || !o->symbol ||
        o->symbol->kind != PTX_SYM_TARGETS)
        ptx_lower_unsupported(p, NULL);
    uint32_t index = ptx_source(p, ptx_operand_at(p, 0), 2, PTX_U32);
    struct ptx_insn *in = ptx_emit(p, PTX_OP_BRX);
    in->o[1] = index;
    in->imm = o->symbol->index;
    in->aux = o->symbol->count;
}

void ptx_lower_exit(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    no_types(p);
    ptx_take_mod(p, PTX_M_UNI);
    ptx_emit(p, d->op == PTX_OP_RET && p->function->info.is_entry ? PTX_OP_EXIT : d->op)->imm = p->function->number;
}

void ptx_lower_trap(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    (void)d;
    no_types(p);
    ptx_emit(p, PTX_OP_TRAP);
}

static void bar_warp(struct ptx_parser *p)
{
    if (!ptx_take_mod(p, PTX_M_SYNC) || p->stmt.operand_count != 1)
        ptx_lower_unsupported(p, NULL);
    no_types(p);
    uint32_t mask = ptx_source(p, ptx_operand_at(p, 0), 2, PTX_B32);
    ptx_emit(p, PTX_OP_WARPSYNC)->o[4] = mask;
}

static void bar_red(struct ptx_parser *p, uint32_t aux)
{
    bool is_popc = aux == PTX_BAR_RED_POPC;
    unsigned last = p->stmt.operand_count - 1;
    if (ptx_one_type(p) != (is_popc ? PTX_U32 : PTX_PRED))
        ptx_lower_unsupported(p, NULL);
    if (p->stmt.operand_count < 3)
        ptx_lower_fail(p, "wrong number of operands");
    uint32_t id = ptx_source(p, ptx_operand_at(p, 1), 2, PTX_U32);
    uint32_t count = last == 3 ? ptx_source(p, ptx_operand_at(p, 2), 2, PTX_U32) : 0;
    uint32_t pred = ptx_predicate(p, ptx_operand_at(p, last));
    uint32_t result = ptx_result(p, ptx_operand_at(p, 0), is_popc ? 2 : 0);
    struct ptx_insn *in = ptx_emit(p, PTX_OP_BAR);
    in->o[0] = result;
    in->o[1] = id;
    in->o[2] = count;
    in->o[3] = pred;
    in->aux = aux;
}

void ptx_lower_bar(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    if (ptx_take_mod(p, PTX_M_WARP)) {
        bar_warp(p);
        return;
    }
    if (ptx_take_mod(p, PTX_M_CLUSTER)) {
        ptx_lower_cluster(p, d);
        return;
    }
    if (!p->stmt.operand_count)
        ptx_lower_fail(p, "wrong number of operands");
    ptx_take_mod(p, PTX_M_CTA);
    ptx_take_mod(p, PTX_M_ALIGNED);
    if (ptx_take_mod(p, PTX_M_RED)) {
        if (ptx_take_mod(p, PTX_M_POPC))
            bar_red(p, PTX_BAR_RED_POPC);
        else if (ptx_take_mod(p, PTX_M_AND))
            bar_red(p, PTX_BAR_RED_AND);
        else if (ptx_take_mod(p, PTX_M_OR))
            bar_red(p, PTX_BAR_RED_OR);
        else
            ptx_lower_unsupported(p, NULL);
        return;
    }
    no_types(p);
    bool arrive = ptx_take_mod(p, PTX_M_ARRIVE), sync = !arrive && ptx_take_mod(p, PTX_M_SYNC);
    if ((!arrive && !sync) || p->stmt.operand_count > 2 || (arrive && p->stmt.operand_count != 2))
        ptx_lower_unsupported(p, NULL);
    uint32_t id = ptx_source(p, ptx_operand_at(p, 0), 2, PTX_U32);
    uint32_t count = p->stmt.operand_count == 2 ? ptx_source(p, ptx_operand_at(p, 1), 2, PTX_U32) : 0;
    struct ptx_insn *in = ptx_emit(p, PTX_OP_BAR);
    in->o[1] = id;
    in->o[2] = count;
    in->aux = arrive ? PTX_BAR_ARRIVE : PTX_BAR_SYNC;
}

/* The forms without .sync ended with sm_70. */
static bool take_sync(struct ptx_parser *p)
{
    bool sync = ptx_take_mod(p, PTX_M_SYNC);
    if (!sync && p->module->target >= 70)
        ptx_lower_unsupported(p, NULL);
    return sync;
}

void ptx_lower_shfl(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    (void)d;
    int mode = -1;
    for (int m = PTX_M_UP; m <= PTX_M_IDX; m++)
        if (mode < 0 && ptx_take_mod(p, (enum ptx_mod)m))
            mode = m - PTX_M_UP + PTX_SHFL_UP;
    bool sync = take_sync(p);
    if (mode < 0 || ptx_type_log2(ptx_one_type(p)) != 2)
        ptx_lower_unsupported(p, NULL);
    if (p->stmt.operand_count != 4u + sync)
        ptx_lower_fail(p, "wrong number of operands");
    struct ptx_operand first = *ptx_operand_at(p, 0);
    uint32_t from[4] = {0};
    for (unsigned i = 0; i < 3u + sync; i++)
        from[i] = ptx_source(p, ptx_operand_at(p, i + 1), 2, PTX_NONE);
    uint32_t result = ptx_result(p, &first, 2);
    struct ptx_insn *in = ptx_emit(p, PTX_OP_SHFL);
    in->o[0] = result;
    memcpy(&in->o[1], from, sizeof(from));
    in->o[5] = first.second;
    in->aux = (uint32_t)mode;
}

void ptx_lower_vote(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    (void)d;
    int mode = -1;
    static const enum ptx_mod mods[] = {PTX_M_ALL, PTX_M_ANY, PTX_M_UNI, PTX_M_BALLOT};
    for (int i = 0; i < 4; i++)
        if (mode < 0 && ptx_take_mod(p, mods[i]))
            mode = i;
    bool sync = take_sync(p);
    if (mode < 0 || ptx_one_type(p) != (mode == PTX_VOTE_BALLOT ? PTX_B32 : PTX_PRED))
        ptx_lower_unsupported(p, NULL);
    if (p->stmt.operand_count != 2u + sync)
        ptx_lower_fail(p, "wrong number of operands");
    uint32_t pred = ptx_predicate(p, ptx_operand_at(p, 1));
    uint32_t mask = sync ? ptx_source(p, ptx_operand_at(p, 2), 2, PTX_B32) : 0;
    uint32_t result = ptx_result(p, ptx_operand_at(p, 0), mode == PTX_VOTE_BALLOT ? 2 : 0);
    struct ptx_insn *in = ptx_emit(p, PTX_OP_VOTE);
    in->o[0] = result;
    in->o[1] = pred;
    in->o[4] = mask;
    in->aux = (uint32_t)mode;
}

void ptx_lower_match(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    (void)d;
    bool all = ptx_take_mod(p, PTX_M_ALL), any = !all && ptx_take_mod(p, PTX_M_ANY);
    enum ptx_type type = ptx_one_type(p);
    if ((!all && !any) || !ptx_take_mod(p, PTX_M_SYNC) || (type != PTX_B32 && type != PTX_B64))
        ptx_lower_unsupported(p, NULL);
    struct ptx_operand first = *ptx_operand_at(p, 0);
    if (first.second && any)
        ptx_lower_unsupported(p, NULL);
    uint32_t value = ptx_source(p, ptx_operand_at(p, 1), ptx_type_log2(type), type);
    uint32_t mask = ptx_source(p, ptx_operand_at(p, 2), 2, PTX_B32);
    uint32_t result = ptx_result(p, &first, 2);
    struct ptx_insn *in = ptx_emit(p, PTX_OP_MATCH);
    in->o[0] = result;
    in->o[1] = value;
    in->o[4] = mask;
    in->o[5] = first.second;
    in->aux = (uint32_t)all | (type == PTX_B64 ? 2 : 0);
}

void ptx_lower_activemask(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    (void)d;
    if (ptx_one_type(p) != PTX_B32)
        ptx_lower_unsupported(p, NULL);
    uint32_t result = ptx_result(p, ptx_operand_at(p, 0), 2);
    ptx_emit(p, PTX_OP_ACTIVEMASK)->o[0] = result;
}

/* Any time from none to twice the asked one is within the definition: the warp gives way to others. */
void ptx_lower_nanosleep(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    (void)d;
    if (ptx_one_type(p) != PTX_U32)
        ptx_lower_unsupported(p, NULL);
    ptx_source(p, ptx_operand_at(p, 0), 2, PTX_U32);
    ptx_emit(p, PTX_OP_YIELD);
}
