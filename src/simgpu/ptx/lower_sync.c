/* Fences, what warps and clusters agree on, and hints. */
#include "simgpu/ptx/lower.h"
#include "simgpu/ptx/out.h"

#include <string.h>

static void no_types(struct ptx_parser *p)
{
    if (p->stmt.type_count)
        ptx_lower_unsupported(p, NULL);
}

/* fence.proxy: accesses by other names or engines are ordinary ones here. */
static void fence_proxy(struct ptx_parser *p)
{
    if (!ptx_take_mod(p, PTX_M_ALIAS) && !ptx_take_mod(p, PTX_M_ASYNC))
        ptx_lower_unsupported(p, NULL);
    bool is_const;
    ptx_take_space(p, &is_const);
    ptx_emit(p, PTX_OP_FENCE);
}

void ptx_lower_fence(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    bool is_fence = d->op;
    no_types(p);
    if (ptx_take_mod(p, PTX_M_PROXY)) {
        fence_proxy(p);
        return;
    }
    unsigned orders = 0, scopes = is_fence ? 0 : ptx_take_mod(p, PTX_M_GL);
    bool for_mbarriers = is_fence && ptx_take_mod(p, PTX_M_MBARRIER_INIT);
    if (is_fence)
        orders = (unsigned)ptx_take_mod(p, PTX_M_SC) + ptx_take_mod(p, PTX_M_ACQ_REL) + ptx_take_mod(p, PTX_M_ACQUIRE) +
                 ptx_take_mod(p, PTX_M_RELEASE);
    else if (p->stmt.mods[PTX_M_GPU / 64] >> (PTX_M_GPU % 64) & 1)
        ptx_lower_unsupported(p, NULL); /* membar calls it .gl */
    scopes += ptx_take_scope(p);
    if (scopes != 1 || orders > 1 || (for_mbarriers && !orders))
        ptx_lower_unsupported(p, NULL);
    ptx_emit(p, PTX_OP_FENCE);
}

/* redux.sync.op.type d, a, members */
void ptx_lower_redux(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    (void)d;
    static const struct {
        enum ptx_mod mod;
        enum ptx_atom_op op;
    } ops[] = {{PTX_M_ADD, PTX_ATOM_ADD}, {PTX_M_MIN, PTX_ATOM_MIN}, {PTX_M_MAX, PTX_ATOM_MAX},
               {PTX_M_AND, PTX_ATOM_AND}, {PTX_M_OR, PTX_ATOM_OR},   {PTX_M_XOR, PTX_ATOM_XOR}};
    unsigned k = 0;
    while (k < 6 && !ptx_take_mod(p, ops[k].mod))
        k++;
    enum ptx_type type = ptx_one_type(p);
    if (k == 6 || !ptx_take_mod(p, PTX_M_SYNC) || (k < 3 ? type != PTX_U32 && type != PTX_S32 : type != PTX_B32))
        ptx_lower_unsupported(p, NULL);
    uint32_t operands[2];
    operands[1] = ptx_source(p, ptx_operand_at(p, 1), 2, type);
    uint32_t members = ptx_source(p, ptx_operand_at(p, 2), 2, PTX_B32);
    operands[0] = ptx_result(p, ptx_operand_at(p, 0), 2);
    uint32_t params = (uint32_t)ops[k].op | (uint32_t)(type == PTX_S32 ? PTX_ATOM_S32 : PTX_ATOM_U32) << 4;
    ptx_emit_out(p, true, PTX_OUT_redux, params, operands, 1, 2)->o[4] = members;
}

/* elect.sync d|p, members */
void ptx_lower_elect(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    (void)d;
    no_types(p);
    struct ptx_operand first = *ptx_operand_at(p, 0);
    if (!ptx_take_mod(p, PTX_M_SYNC) || !first.second)
        ptx_lower_unsupported(p, NULL);
    uint32_t members = ptx_source(p, ptx_operand_at(p, 1), 2, PTX_B32);
    uint32_t operands[2] = {ptx_result(p, &first, 2), first.second};
    ptx_emit_out(p, true, PTX_OUT_elect, 0, operands, 2, 2)->o[4] = members;
}

/* Instructions that change nothing a kernel can see: checked for form. */
void ptx_lower_hint(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    struct ptx_stmt *s = &p->stmt;
    if (!strcmp(d->name, "griddepcontrol")) {
        no_types(p);
        if (ptx_take_mod(p, PTX_M_LAUNCH_DEPENDENTS) == ptx_take_mod(p, PTX_M_WAIT) || s->operand_count)
            ptx_lower_unsupported(p, NULL);
        return;
    }
    if (s->operand_count != 1 || s->operands[0].kind != PTX_OPERAND_INT)
        ptx_lower_fail(p, "no constant");
    if (!strcmp(d->name, "pmevent")) {
        no_types(p);
        ptx_take_mod(p, PTX_M_MASK);
        return;
    }
    bool inc = ptx_take_mod(p, PTX_M_INC), dec = ptx_take_mod(p, PTX_M_DEC);
    if (inc == dec || !ptx_take_mod(p, PTX_M_SYNC) || !ptx_take_mod(p, PTX_M_ALIGNED) || ptx_one_type(p) != PTX_U32)
        ptx_lower_unsupported(p, NULL);
}

/* prefetch, prefetchu, applypriority: no code. discard leaves its 128 bytes with other contents, as it may. */
void ptx_lower_prefetch(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    bool is_const, addr32, is_line = d->op, is_discard = !strcmp(d->name, "discard");
    enum ptx_space space = ptx_take_space(p, &is_const);
    unsigned levels = (unsigned)ptx_take_mod(p, PTX_M_L1) + ptx_take_mod(p, PTX_M_L2) +
                      ptx_take_mod(p, PTX_M_L2_EVICT_LAST) + ptx_take_mod(p, PTX_M_L2_EVICT_NORMAL);
    if (levels != 1 || p->stmt.type_count ||
        (space != PTX_SPACE_GLOBAL && space != PTX_SPACE_GENERIC && (space != PTX_SPACE_LOCAL || is_line)))
        ptx_lower_unsupported(p, NULL);
    if (p->stmt.operand_count != 1u + is_line ||
        (is_line && (ptx_operand_at(p, 1)->kind != PTX_OPERAND_INT || ptx_operand_at(p, 1)->value != 128)))
        ptx_lower_fail(p, "no size of 128 bytes");
    struct ptx_insn form = {0};
    if (!is_discard) {
        ptx_lower_mem_address(p, ptx_operand_at(p, 0), &space, is_const, 1, &form, &addr32);
        return;
    }
    uint32_t address = ptx_lower_address(p, ptx_operand_at(p, 0), space, 128);
    ptx_emit_out(p, false, PTX_OUT_discard, (uint32_t)space, &address, 0, 1);
}

/* Policies are opaque and act on caches, which do not exist here: zero is as good as any. */
void ptx_lower_createpolicy(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    (void)d;
    struct ptx_stmt *s = &p->stmt;
    bool is_range = ptx_take_mod(p, PTX_M_RANGE), is_cvt = !is_range && ptx_take_mod(p, PTX_M_CVT);
    bool is_fractional = !is_range && !is_cvt && ptx_take_mod(p, PTX_M_FRACTIONAL);
    if (ptx_one_type(p) != PTX_B64 || (!is_range && !is_cvt && !is_fractional))
        ptx_lower_unsupported(p, NULL);
    ptx_take_mod(p, PTX_M_GLOBAL);
    if (is_cvt)
        ptx_take_mod(p, PTX_M_L2);
    for (int m = PTX_M_L2_EVICT_NORMAL; m <= PTX_M_L2_EVICT_UNCHANGED; m++)
        ptx_take_mod(p, (enum ptx_mod)m);
    if (s->operand_count < (is_cvt ? 2u : 1u) || s->operand_count > (is_range ? 4u : 2u))
        ptx_lower_fail(p, "wrong number of operands");
    uint32_t zero = ptx_constant(p, 3, 0), result = ptx_result(p, ptx_operand_at(p, 0), 3);
    struct ptx_insn *in = ptx_emit(p, PTX_OP_MOV_64);
    in->o[0] = result;
    in->o[1] = zero;
}

/* Leads back to `target` while the predicate is false, giving way to other warps. */
static void repeat_until(struct ptx_parser *p, uint32_t pred, size_t target)
{
    struct ptx_symbol *label = ptx_parse_take(p, sizeof(*label));
    label->kind = PTX_SYM_LABEL;
    label->defined = true;
    label->index = (uint32_t)target;
    for (unsigned i = 0; i < 2; i++) {
        struct ptx_insn *in = ptx_emit(p, i ? PTX_OP_BRA : PTX_OP_YIELD);
        in->guard = pred;
        in->guard_negated = true;
        in->imm = i ? (uintptr_t)label : 0;
    }
}

/* barrier.cluster.arrive, .wait: a cluster is one block here, so this is a barrier in two halves. */
void ptx_lower_cluster(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    (void)d;
    bool arrive = ptx_take_mod(p, PTX_M_ARRIVE), wait = !arrive && ptx_take_mod(p, PTX_M_WAIT);
    no_types(p);
    if ((!arrive && !wait) || p->stmt.operand_count || p->stmt.guard)
        ptx_lower_unsupported(p, NULL);
    ptx_take_mod(p, PTX_M_ALIGNED);
    if (arrive) {
        if (!ptx_take_mod(p, PTX_M_RELEASE))
            ptx_take_mod(p, PTX_M_RELAXED);
        ptx_emit_out(p, false, PTX_OUT_cluster_arrive, 0, NULL, 0, 0);
        return;
    }
    ptx_take_mod(p, PTX_M_ACQUIRE);
    size_t here = p->module->code_count;
    uint32_t done = ptx_temp(p, 0);
    ptx_emit_out(p, false, PTX_OUT_cluster_test, 0, &done, 1, 1);
    repeat_until(p, done, here);
}
