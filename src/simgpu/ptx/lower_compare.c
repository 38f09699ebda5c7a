/* Compares and selections. */
#include "simgpu/ptx/lower.h"

/* The compare operation that the modifiers and the type name. */
static int compare_op(struct ptx_parser *p, enum ptx_type type)
{
    int cmp = -1, first;
    bool is_float = type == PTX_F32 || type == PTX_F64;
    for (int m = PTX_M_EQ; m <= PTX_M_NAN; m++)
        if (cmp < 0 && ptx_take_mod(p, (enum ptx_mod)m))
            cmp = m;
    /* The names for unsigned types: lo ls hi hs. */
    bool lo = cmp < 0 && ptx_take_mod(p, PTX_M_LO), hi = cmp < 0 && !lo && ptx_take_mod(p, PTX_M_HI);
    bool is_alias = lo || hi || cmp == PTX_M_LS || cmp == PTX_M_HS;
    if ((cmp < 0 && !is_alias) || (is_alias && !ptx_type_unsigned(type)))
        ptx_lower_unsupported(p, NULL);
    if (is_alias)
        cmp = lo ? PTX_M_LT : hi ? PTX_M_GT : cmp == PTX_M_LS ? PTX_M_LE : PTX_M_GE;
    int index = cmp <= PTX_M_GE ? cmp - PTX_M_EQ : cmp - PTX_M_EQU + 6;
    if (is_float)
        return (type == PTX_F32 ? PTX_OP_SETP_EQ_F32 : PTX_OP_SETP_EQ_F64) + index;
    if (index >= 6 || !(ptx_type_int(type) || type == PTX_B16 || type == PTX_B32 || type == PTX_B64) ||
        (ptx_type_bits(type) && index > 1))
        ptx_lower_unsupported(p, NULL);
    first = ptx_type_signed(type) ? PTX_OP_SETP_EQ_S16 : PTX_OP_SETP_EQ_U16;
    return first + 6 * ((int)ptx_type_log2(type) - 1) + index;
}

static uint32_t emit(struct ptx_parser *p, int op, uint32_t result, uint32_t a, uint32_t b)
{
    struct ptx_insn *in = ptx_emit(p, op);
    in->o[0] = result;
    in->o[1] = a;
    in->o[2] = b;
    return result;
}

/* setp's and set's common part: compares operands 1 and 2, combines with operand 3 if there is one. */
struct compare {
    enum ptx_type type;
    int op;
    uint32_t a, b, c, combine;
};

static struct compare compare_form(struct ptx_parser *p, enum ptx_type type)
{
    struct compare f = {.type = type, .combine = PTX_BOOL_NONE};
    bool half = ptx_type_half(type), brain = type == PTX_BF16 || type == PTX_BF16X2;
    for (int m = PTX_M_AND; m <= PTX_M_XOR; m++)
        if (!f.combine && ptx_take_mod(p, (enum ptx_mod)m))
            f.combine = (uint32_t)(m - PTX_M_AND) + PTX_BOOL_AND;
    f.op = compare_op(p, half ? PTX_F32 : type);
    bool ftz = (type == PTX_F32 || (half && !brain)) && ptx_take_mod(p, PTX_M_FTZ);
    if ((f.combine != PTX_BOOL_NONE) != (p->stmt.operand_count == 4))
        ptx_lower_fail(p, "wrong number of operands");
    if (half) {
        f.a = ptx_lower_half_source(p, 1, type, ftz);
        f.b = ptx_lower_half_source(p, 2, type, ftz);
    } else {
        f.a = ptx_source(p, ptx_operand_at(p, 1), ptx_type_log2(type), type);
        f.b = ptx_source(p, ptx_operand_at(p, 2), ptx_type_log2(type), type);
        f.a = ftz ? emit(p, PTX_OP_FTZ_F32, ptx_temp(p, 2), f.a, 0) : f.a;
        f.b = ftz ? emit(p, PTX_OP_FTZ_F32, ptx_temp(p, 2), f.b, 0) : f.b;
    }
    f.c = f.combine ? ptx_predicate(p, ptx_operand_at(p, 3)) : 0;
    return f;
}

/* `part` of a pair of halves; `second` gets the opposite before it is combined, 0 = nothing. */
static void compare_emit(struct ptx_parser *p, const struct compare *f, unsigned part, uint32_t result, uint32_t second)
{
    bool half = ptx_type_half(f->type);
    uint32_t a = half ? ptx_lower_half_widen(p, f->type, f->a, part) : f->a;
    uint32_t b = half ? ptx_lower_half_widen(p, f->type, f->b, part) : f->b;
    struct ptx_insn *in = ptx_emit(p, f->op);
    in->o[0] = result;
    in->o[1] = a;
    in->o[2] = b;
    in->o[3] = f->c;
    in->o[4] = second;
    in->aux = f->combine;
    in->flops = PTX_FLOPS(f->type, ptx_type_float(f->type));
}

void ptx_lower_setp(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    (void)d;
    struct ptx_operand first = *ptx_operand_at(p, 0);
    enum ptx_type type = ptx_one_type(p);
    uint32_t result = ptx_result(p, &first, 0);
    struct compare f = compare_form(p, type);
    if (type != PTX_F16X2 && type != PTX_BF16X2) {
        compare_emit(p, &f, 0, result, first.second);
        return;
    }
    /* p|q of the two halves: the condition may be one of the results. */
    uint32_t low = ptx_temp(p, 0);
    compare_emit(p, &f, 0, low, 0);
    if (first.second)
        compare_emit(p, &f, 1, first.second, 0);
    emit(p, PTX_OP_PMOV, result, low, 0);
}

static void select_op(struct ptx_parser *p, unsigned log2, uint32_t result, uint32_t a, uint32_t b, uint32_t pred)
{
    struct ptx_insn *in = ptx_emit(p, PTX_OP_SELP_16 + (int)log2 - 1);
    in->o[0] = result;
    in->o[1] = a;
    in->o[2] = b;
    in->o[3] = pred;
}

/* What `true` is in a result of that type; 0 = set has no such result from that source. */
static uint64_t true_value(enum ptx_type to, enum ptx_type from)
{
    bool from_half = from == PTX_F16 || from == PTX_BF16, from_pair = from == PTX_F16X2 || from == PTX_BF16X2;
    switch (to) {
    case PTX_F32: return from_half || from_pair ? 0 : 0x3f800000;
    case PTX_F16: return from == PTX_BF16 || from_pair ? 0 : 0x3c00;
    case PTX_BF16: return from == PTX_BF16 || from_pair ? 0 : 0x3f80;
    case PTX_F16X2: return from == PTX_F16X2 ? 0x3c00 : 0;
    case PTX_BF16X2: return from == PTX_BF16X2 ? 0x3f80 : 0;
    case PTX_U16:
    case PTX_S16: return from_half ? 0xffff : 0;
    case PTX_U32:
    case PTX_S32: return from_pair ? 0xffff : UINT32_MAX;
    default: return 0;
    }
}

void ptx_lower_set(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    (void)d;
    struct ptx_stmt *s = &p->stmt;
    uint64_t yes_bits = s->type_count == 2 ? true_value(s->types[0], s->types[1]) : 0;
    if (!yes_bits)
        ptx_lower_unsupported(p, NULL);
    bool pair = s->types[1] == PTX_F16X2 || s->types[1] == PTX_BF16X2;
    unsigned log2 = ptx_type_log2(s->types[0]), part_log2 = pair ? 1 : log2;
    uint32_t pred = ptx_temp(p, 0), yes = ptx_constant(p, part_log2, yes_bits), no = ptx_constant(p, part_log2, 0);
    uint32_t result = ptx_result(p, ptx_operand_at(p, 0), log2), parts[2] = {result};
    struct compare f = compare_form(p, s->types[1]);
    for (unsigned i = 0; i < 1u + pair; i++) {
        parts[i] = pair ? ptx_temp(p, 1) : result;
        compare_emit(p, &f, i, pred, 0);
        select_op(p, part_log2, parts[i], yes, no, pred);
    }
    if (pair)
        emit(p, PTX_OP_PACK_32, result, parts[0], parts[1]);
}

void ptx_lower_selp(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    (void)d;
    enum ptx_type type = ptx_one_type(p);
    unsigned log2 = ptx_type_log2(type);
    if (!log2 || type == PTX_F16)
        ptx_lower_unsupported(p, NULL);
    uint32_t a = ptx_source(p, ptx_operand_at(p, 1), log2, type);
    uint32_t b = ptx_source(p, ptx_operand_at(p, 2), log2, type);
    uint32_t pred = ptx_predicate(p, ptx_operand_at(p, 3));
    select_op(p, log2, ptx_result(p, ptx_operand_at(p, 0), log2), a, b, pred);
}

void ptx_lower_slct(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    (void)d;
    struct ptx_stmt *s = &p->stmt;
    if (s->type_count != 2 || (s->types[1] != PTX_S32 && s->types[1] != PTX_F32) || !ptx_type_log2(s->types[0]) ||
        s->types[0] == PTX_F16)
        ptx_lower_unsupported(p, NULL);
    enum ptx_type type = s->types[0];
    unsigned log2 = ptx_type_log2(type);
    bool ftz = s->types[1] == PTX_F32 && ptx_take_mod(p, PTX_M_FTZ);
    uint32_t a = ptx_source(p, ptx_operand_at(p, 1), log2, type);
    uint32_t b = ptx_source(p, ptx_operand_at(p, 2), log2, type);
    uint32_t c = ptx_source(p, ptx_operand_at(p, 3), 2, s->types[1]);
    c = ftz ? emit(p, PTX_OP_FTZ_F32, ptx_temp(p, 2), c, 0) : c;
    uint32_t pred = ptx_temp(p, 0), zero = ptx_constant(p, 2, 0);
    struct ptx_insn *in = ptx_emit(p, s->types[1] == PTX_S32 ? PTX_OP_SETP_GE_S32 : PTX_OP_SETP_GE_F32);
    in->o[0] = pred;
    in->o[1] = c;
    in->o[2] = zero;
    select_op(p, log2, ptx_result(p, ptx_operand_at(p, 0), log2), a, b, pred);
}
