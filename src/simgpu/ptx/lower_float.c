/* Floating point, compares, selections, conversions. */
#include "simgpu/ptx/lower.h"

/* Each f32 operation has its f64 counterpart at this distance. */
#define F64_OF(op) ((op) + PTX_OP_ADD_F64 - PTX_OP_ADD_F32)

static bool is_real(enum ptx_type type)
{
    return type == PTX_F32 || type == PTX_F64;
}

static uint32_t unary_op(struct ptx_parser *p, int op, uint32_t result, uint32_t a)
{
    struct ptx_insn *in = ptx_emit(p, op);
    in->o[0] = result;
    in->o[1] = a;
    return result;
}

static uint32_t flushed(struct ptx_parser *p, uint32_t at, bool ftz)
{
    return ftz ? unary_op(p, PTX_OP_FTZ_F32, ptx_temp(p, 2), at) : at;
}

struct float_form {
    enum ptx_type type;
    unsigned log2;
    bool ftz, sat, round_given;
    enum ptx_round round;
};

static struct float_form float_form(struct ptx_parser *p)
{
    struct float_form f = {.type = ptx_one_type(p)};
    if (!is_real(f.type))
        ptx_lower_unsupported(p, NULL);
    f.log2 = ptx_type_log2(f.type);
    f.round = ptx_take_round(p, &f.round_given);
    if (f.type == PTX_F32) {
        f.ftz = ptx_take_mod(p, PTX_M_FTZ);
        f.sat = ptx_take_mod(p, PTX_M_SAT);
    }
    return f;
}

/* Operation `op` (of f32) on operands 1 .. count, with what the form asks for around it. */
static void arith(struct ptx_parser *p, const struct float_form *f, int op, int arith_kind, unsigned count,
                  unsigned flops)
{
    uint32_t from[3] = {0};
    for (unsigned i = 0; i < count; i++)
        from[i] = flushed(p, ptx_source(p, ptx_operand_at(p, i + 1), f->log2, f->type), f->ftz);
    uint32_t result = ptx_result(p, ptx_operand_at(p, 0), f->log2);
    struct ptx_insn *in;
    if (f->round == PTX_ROUND_RN) {
        in = ptx_emit(p, f->type == PTX_F64 ? F64_OF(op) : op);
    } else {
        in = ptx_emit(p, PTX_OP_LANE);
        uint32_t logs = f->log2;
        for (unsigned i = 0; i < count; i++)
            logs |= f->log2 << 4 * (i + 1);
        in->aux = (uint32_t)(f->type == PTX_F64 ? PTX_LANE_arith_f64 : PTX_LANE_arith_f32) | logs << 8;
        in->imm = (uint64_t)arith_kind | (uint64_t)f->round << 8;
    }
    in->flops = (uint8_t)flops;
    in->o[0] = result;
    for (unsigned i = 0; i < count; i++)
        in->o[i + 1] = from[i];
    if (f->ftz)
        unary_op(p, PTX_OP_FTZ_F32, result, result);
    if (f->sat)
        unary_op(p, PTX_OP_SAT_F32, result, result);
}

void ptx_lower_int_or_float(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    bool is_add = d->op == PTX_OP_ADD_16;
    if (p->stmt.type_count != 1 || !is_real(p->stmt.types[0])) {
        ptx_lower_int_add(p, d);
        return;
    }
    struct float_form f = float_form(p);
    arith(p, &f, is_add ? PTX_OP_ADD_F32 : PTX_OP_SUB_F32, is_add ? PTX_ARITH_ADD : PTX_ARITH_SUB, 2, 1);
}

void ptx_lower_mul(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    (void)d;
    enum ptx_type type = ptx_one_type(p);
    if (ptx_type_int(type)) {
        ptx_lower_int_mul(p, type);
        return;
    }
    struct float_form f = float_form(p);
    arith(p, &f, PTX_OP_MUL_F32, PTX_ARITH_MUL, 2, 1);
}

void ptx_lower_fma(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    (void)d;
    struct float_form f = float_form(p);
    if (!f.round_given)
        ptx_lower_unsupported(p, "no rounding mode");
    arith(p, &f, PTX_OP_FMA_F32, PTX_ARITH_FMA, 3, 2);
}

void ptx_lower_mad(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    enum ptx_type type = ptx_one_type(p);
    if (ptx_type_int(type))
        ptx_lower_int_mad(p, type);
    else
        ptx_lower_fma(p, d);
}

void ptx_lower_div(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    enum ptx_type type = ptx_one_type(p);
    if (ptx_type_int(type)) {
        ptx_lower_int_div(p, d, type);
        return;
    }
    struct float_form f = float_form(p);
    bool approx = ptx_take_mod(p, PTX_M_APPROX), full = ptx_take_mod(p, PTX_M_FULL);
    if (approx + full + f.round_given != 1 || f.sat || ((approx || full) && f.type != PTX_F32))
        ptx_lower_unsupported(p, NULL);
    if (!approx) {
        arith(p, &f, PTX_OP_DIV_F32, PTX_ARITH_DIV, 2, 1);
        return;
    }
    uint32_t a = flushed(p, ptx_source(p, ptx_operand_at(p, 1), 2, f.type), f.ftz);
    uint32_t b = flushed(p, ptx_source(p, ptx_operand_at(p, 2), 2, f.type), f.ftz);
    uint32_t result = ptx_result(p, ptx_operand_at(p, 0), 2);
    struct ptx_insn *in = ptx_emit(p, PTX_OP_LANE);
    in->o[0] = result;
    in->o[1] = a;
    in->o[2] = b;
    in->aux = PTX_LANE_div_approx | (2 | 2 << 4 | 2 << 8) << 8;
    in->flops = 1;
    if (f.ftz)
        unary_op(p, PTX_OP_FTZ_F32, result, result);
}

void ptx_lower_minmax(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    enum ptx_type type = ptx_one_type(p);
    bool is_min = d->op == PTX_OP_MIN_U_16;
    if (!ptx_type_float(type)) {
        ptx_lower_int_minmax(p, d, type);
        return;
    }
    struct float_form f = float_form(p);
    if (f.sat || f.round_given)
        ptx_lower_unsupported(p, NULL);
    arith(p, &f, is_min ? PTX_OP_MIN_F32 : PTX_OP_MAX_F32, 0, 2, 1);
}

void ptx_lower_unary(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    enum ptx_type type = ptx_one_type(p);
    if (ptx_type_int(type)) {
        ptx_lower_int_unary(p, d, type);
        return;
    }
    struct float_form f = float_form(p);
    if (f.sat || f.round_given)
        ptx_lower_unsupported(p, NULL);
    arith(p, &f, d->op == PTX_OP_NEG_16 ? PTX_OP_NEG_F32 : PTX_OP_ABS_F32, 0, 1, 0);
}

/* rcp, sqrt: .approx or rounded, f32 or f64. The rest: .approx only. */
void ptx_lower_float_unary(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    struct float_form f = float_form(p);
    bool approx = ptx_take_mod(p, PTX_M_APPROX);
    bool rounds = d->op == PTX_OP_RCP_F32 || d->op == PTX_OP_SQRT_F32;
    if (f.sat || approx == f.round_given || (f.round_given && !rounds))
        ptx_lower_unsupported(p, NULL);
    if (f.type == PTX_F64 && approx) {
        if (d->op != PTX_OP_RCP_F32 && d->op != PTX_OP_RSQRT_F32)
            ptx_lower_unsupported(p, NULL);
        bool ftz = ptx_take_mod(p, PTX_M_FTZ);
        if (d->op == PTX_OP_RCP_F32 && !ftz)
            ptx_lower_unsupported(p, NULL);
        uint32_t a = ptx_source(p, ptx_operand_at(p, 1), 3, f.type);
        uint32_t result = ptx_result(p, ptx_operand_at(p, 0), 3);
        struct ptx_insn *in = ptx_emit(p, PTX_OP_LANE);
        in->o[0] = result;
        in->o[1] = a;
        in->aux = (d->op == PTX_OP_RCP_F32 ? PTX_LANE_rcp_approx_f64 : PTX_LANE_rsqrt_approx_f64) | (3u | 3u << 4) << 8;
        in->imm = ftz;
        in->flops = 1;
        return;
    }
    if (f.type == PTX_F64 && !rounds)
        ptx_lower_unsupported(p, NULL);
    arith(p, &f, d->op, d->op == PTX_OP_RCP_F32 ? PTX_ARITH_RCP : PTX_ARITH_SQRT, 1, 1);
}

void ptx_lower_copysign(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    (void)d;
    struct float_form f = float_form(p);
    if (f.sat || f.round_given || f.ftz)
        ptx_lower_unsupported(p, NULL);
    arith(p, &f, PTX_OP_COPYSIGN_F32, 0, 2, 0);
}

void ptx_lower_testp(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    (void)d;
    enum ptx_type type = ptx_one_type(p);
    int kind = -1;
    for (int m = PTX_M_FINITE; m <= PTX_M_SUBNORMAL; m++)
        if (ptx_take_mod(p, (enum ptx_mod)m))
            kind = m - PTX_M_FINITE;
    if (kind < 0 || !is_real(type))
        ptx_lower_unsupported(p, NULL);
    unsigned log2 = ptx_type_log2(type);
    uint32_t a = ptx_source(p, ptx_operand_at(p, 1), log2, type);
    uint32_t result = ptx_result(p, ptx_operand_at(p, 0), 0);
    uint32_t word = ptx_temp(p, 2), zero = ptx_constant(p, 2, 0);
    struct ptx_insn *in = ptx_emit(p, PTX_OP_LANE);
    in->o[0] = word;
    in->o[1] = a;
    in->aux = PTX_LANE_testp | (2 | log2 << 4) << 8;
    in->imm = (uint64_t)kind | (type == PTX_F64 ? PTX_TESTP_F64 : 0);
    in = ptx_emit(p, PTX_OP_SETP_NE_U32);
    in->o[0] = result;
    in->o[1] = word;
    in->o[2] = zero;
}

/* The compare operation that the modifiers and the type name. */
static int compare_op(struct ptx_parser *p, enum ptx_type type)
{
    int cmp = -1, first;
    bool is_float = is_real(type);
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

/* setp's and set's common part: compares operands 1 and 2, combines with operand 3 if there is one. */
static void compare(struct ptx_parser *p, enum ptx_type type, uint32_t result, uint32_t second)
{
    uint32_t combine = PTX_BOOL_NONE;
    for (int m = PTX_M_AND; m <= PTX_M_XOR; m++)
        if (!combine && ptx_take_mod(p, (enum ptx_mod)m))
            combine = (uint32_t)(m - PTX_M_AND) + PTX_BOOL_AND;
    int op = compare_op(p, type);
    bool ftz = type == PTX_F32 && ptx_take_mod(p, PTX_M_FTZ);
    unsigned log2 = ptx_type_log2(type);
    if ((combine != PTX_BOOL_NONE) != (p->stmt.operand_count == 4))
        ptx_lower_fail(p, "wrong number of operands");
    uint32_t a = flushed(p, ptx_source(p, ptx_operand_at(p, 1), log2, type), ftz);
    uint32_t b = flushed(p, ptx_source(p, ptx_operand_at(p, 2), log2, type), ftz);
    uint32_t c = combine ? ptx_predicate(p, ptx_operand_at(p, 3)) : 0;
    struct ptx_insn *in = ptx_emit(p, op);
    in->o[0] = result;
    in->o[1] = a;
    in->o[2] = b;
    in->o[3] = c;
    in->o[4] = second;
    in->aux = combine;
    in->flops = is_real(type);
}

void ptx_lower_setp(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    (void)d;
    struct ptx_operand first = *ptx_operand_at(p, 0);
    uint32_t result = ptx_result(p, &first, 0);
    compare(p, ptx_one_type(p), result, first.second);
}

static void select_op(struct ptx_parser *p, unsigned log2, uint32_t result, uint32_t a, uint32_t b, uint32_t pred)
{
    struct ptx_insn *in = ptx_emit(p, PTX_OP_SELP_16 + (int)log2 - 1);
    in->o[0] = result;
    in->o[1] = a;
    in->o[2] = b;
    in->o[3] = pred;
}

void ptx_lower_set(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    (void)d;
    struct ptx_stmt *s = &p->stmt;
    if (s->type_count != 2 || ptx_type_log2(s->types[0]) != 2 || s->types[0] == PTX_B32)
        ptx_lower_unsupported(p, NULL);
    uint32_t pred = ptx_temp(p, 0), yes = ptx_constant(p, 2, s->types[0] == PTX_F32 ? 0x3f800000 : UINT32_MAX);
    uint32_t no = ptx_constant(p, 2, 0), result = ptx_result(p, ptx_operand_at(p, 0), 2);
    compare(p, s->types[1], pred, 0);
    select_op(p, 2, result, yes, no, pred);
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
    uint32_t c = flushed(p, ptx_source(p, ptx_operand_at(p, 3), 2, s->types[1]), ftz);
    uint32_t pred = ptx_temp(p, 0), zero = ptx_constant(p, 2, 0);
    struct ptx_insn *in = ptx_emit(p, s->types[1] == PTX_S32 ? PTX_OP_SETP_GE_S32 : PTX_OP_SETP_GE_F32);
    in->o[0] = pred;
    in->o[1] = c;
    in->o[2] = zero;
    select_op(p, log2, ptx_result(p, ptx_operand_at(p, 0), log2), a, b, pred);
}

/* Conversions. */
struct cvt_form {
    enum ptx_type to, from;
    unsigned to_reg, from_reg; /* log2 of the registers */
    bool sat, ftz, integral, rounded;
    enum ptx_round round;
};

static bool is_cvt_int(enum ptx_type type)
{
    return type >= PTX_U8 && type <= PTX_S64;
}

/* Integer to integer without .sat: the source's low bits, extended. -1: not that simple. */
static int cvt_int_op(const struct cvt_form *f)
{
    unsigned to = ptx_type_log2(f->to), from = ptx_type_log2(f->from);
    unsigned low = to < from ? to : from;
    bool is_signed = ptx_type_signed(to <= from ? f->to : f->from);
    if (to > from && to < f->to_reg && ptx_type_signed(f->to) != is_signed && is_signed)
        return -1;
    if (low == 3)
        return PTX_OP_MOV_64;
    int kind = (int)low * 2 + is_signed;
    return PTX_OP_CV_u16_u16_u8 + (int)((f->from_reg - 1) * 3 + (f->to_reg - 1)) * 7 + kind;
}

/* The frequent conversions that involve floats. -1: not one of them. */
static int cvt_float_op(const struct cvt_form *f)
{
    if (f->sat || f->ftz || f->to_reg != ptx_type_log2(f->to) || f->from_reg != ptx_type_log2(f->from))
        return -1;
    static const struct {
        uint8_t to, from;
        int16_t op;
    } ops[] = {
        {PTX_F32, PTX_S32, PTX_OP_CVT_F32_S32}, {PTX_F32, PTX_U32, PTX_OP_CVT_F32_U32},
        {PTX_F32, PTX_S64, PTX_OP_CVT_F32_S64}, {PTX_F32, PTX_U64, PTX_OP_CVT_F32_U64},
        {PTX_F64, PTX_S32, PTX_OP_CVT_F64_S32}, {PTX_F64, PTX_U32, PTX_OP_CVT_F64_U32},
        {PTX_F64, PTX_S64, PTX_OP_CVT_F64_S64}, {PTX_F64, PTX_U64, PTX_OP_CVT_F64_U64},
        {PTX_F64, PTX_F32, PTX_OP_CVT_F64_F32}, {PTX_F32, PTX_F64, PTX_OP_CVT_F32_F64},
        {PTX_S32, PTX_F32, PTX_OP_CVT_S32_F32}, {PTX_U32, PTX_F32, PTX_OP_CVT_U32_F32},
        {PTX_S32, PTX_F64, PTX_OP_CVT_S32_F64},
    };
    bool to_int = is_cvt_int(f->to);
    if (f->round != (to_int ? PTX_ROUND_RZ : PTX_ROUND_RN) || (f->integral && !to_int))
        return -1;
    for (unsigned i = 0; i < sizeof(ops) / sizeof(ops[0]); i++)
        if (ops[i].to == f->to && ops[i].from == f->from)
            return ops[i].op;
    return -1;
}

static void check_cvt(struct ptx_parser *p, const struct cvt_form *f)
{
    bool to_float = ptx_type_float(f->to), from_float = ptx_type_float(f->from);
    if (!(to_float || is_cvt_int(f->to)) || !(from_float || is_cvt_int(f->from)))
        ptx_lower_unsupported(p, NULL);
    bool widens = to_float && from_float && f->to >= f->from;
    bool needs_integral = from_float && !to_float;
    bool needs_round = to_float && !widens;
    if (needs_integral ? !f->integral : needs_round ? (!f->rounded || f->integral) : f->rounded && !f->integral)
        ptx_lower_unsupported(p, "rounding modifier");
    if (f->integral && !from_float)
        ptx_lower_unsupported(p, "rounding modifier");
    if (f->integral && to_float && f->to != f->from)
        ptx_lower_unsupported(p, "rounding modifier");
    if (f->ftz && f->to != PTX_F32 && f->from != PTX_F32)
        ptx_lower_unsupported(p, NULL);
    if ((f->to == PTX_F16) && f->round != PTX_ROUND_RN && f->round != PTX_ROUND_RZ)
        ptx_lower_unsupported(p, NULL);
}

static struct cvt_form cvt_form(struct ptx_parser *p)
{
    struct ptx_stmt *s = &p->stmt;
    if (s->type_count != 2)
        ptx_lower_unsupported(p, NULL);
    struct cvt_form f = {.to = s->types[0], .from = s->types[1]};
    f.round = ptx_take_round(p, &f.rounded);
    for (int m = PTX_M_RNI; m <= PTX_M_RPI; m++) {
        if (ptx_take_mod(p, (enum ptx_mod)m)) {
            if (f.rounded || f.integral)
                ptx_lower_fail(p, "two rounding modes");
            f.integral = true;
            f.round = (enum ptx_round)(m - PTX_M_RNI);
        }
    }
    f.sat = ptx_take_mod(p, PTX_M_SAT);
    f.ftz = ptx_take_mod(p, PTX_M_FTZ);
    check_cvt(p, &f);
    return f;
}

void ptx_lower_cvt(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    (void)d;
    struct cvt_form f = cvt_form(p);
    const struct ptx_operand *to = ptx_operand_at(p, 0), *from = ptx_operand_at(p, 1);
    unsigned to_log2 = ptx_type_log2(f.to), from_log2 = ptx_type_log2(f.from);
    f.to_reg = to->kind == PTX_OPERAND_REG ? to->log2 : to_log2 ? to_log2 : 1;
    f.from_reg = from->kind == PTX_OPERAND_REG ? from->log2 : from_log2 ? from_log2 : 1;
    if (!f.to_reg || !f.from_reg || f.to_reg < to_log2 || f.from_reg < from_log2 ||
        (ptx_type_float(f.to) && f.to_reg != to_log2) || (ptx_type_float(f.from) && f.from_reg != from_log2))
        ptx_lower_fail(p, "a register of another size");
    uint32_t a = ptx_source(p, from, f.from_reg, f.from);
    uint32_t result = ptx_result(p, to, f.to_reg);
    int op = -1;
    if (is_cvt_int(f.to) && is_cvt_int(f.from) && !f.sat)
        op = cvt_int_op(&f);
    else if (ptx_type_float(f.to) || ptx_type_float(f.from))
        op = cvt_float_op(&f);
    struct ptx_insn *in = ptx_emit(p, op >= 0 ? op : PTX_OP_LANE);
    in->o[0] = result;
    in->o[1] = a;
    if (op >= 0)
        return;
    in->aux = PTX_LANE_cvt | (f.to_reg | f.from_reg << 4) << 8;
    in->imm = (uint64_t)f.to | (uint64_t)f.from << 8 | (uint64_t)f.round << 16 | (f.sat ? PTX_CVT_SAT : 0) |
              (f.ftz ? PTX_CVT_FTZ : 0) | (f.integral ? PTX_CVT_INTEGRAL : 0);
}
