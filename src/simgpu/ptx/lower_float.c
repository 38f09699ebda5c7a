/* Floating point of 32 and 64 bits. */
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
    in->flops = PTX_FLOPS(f->type, flops);
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
    if (p->stmt.type_count == 1 && ptx_type_half(p->stmt.types[0])) {
        ptx_lower_half_arith(p, is_add ? PTX_OP_ADD_F16 : PTX_OP_SUB_F16, 2);
        return;
    }
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
    if (ptx_type_half(type)) {
        ptx_lower_half_arith(p, PTX_OP_MUL_F16, 2);
        return;
    }
    struct float_form f = float_form(p);
    arith(p, &f, PTX_OP_MUL_F32, PTX_ARITH_MUL, 2, 1);
}

void ptx_lower_fma(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    (void)d;
    if (ptx_type_half(ptx_one_type(p))) {
        ptx_lower_half_arith(p, PTX_OP_FMA_F16, 3);
        return;
    }
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
    else if (is_real(type))
        ptx_lower_fma(p, d);
    else
        ptx_lower_unsupported(p, NULL);
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
    if (ptx_type_float(type))
        ptx_lower_float_minmax(p, d->op == PTX_OP_MIN_U_16);
    else
        ptx_lower_int_minmax(p, d, type);
}

void ptx_lower_unary(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    enum ptx_type type = ptx_one_type(p);
    if (ptx_type_int(type)) {
        ptx_lower_int_unary(p, d, type);
        return;
    }
    if (ptx_type_half(type)) {
        ptx_lower_half_sign(p, d->op == PTX_OP_NEG_16);
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
    if (ptx_type_half(ptx_one_type(p))) {
        ptx_lower_half_approx(p, d->op);
        return;
    }
    struct float_form f = float_form(p);
    bool approx = ptx_take_mod(p, PTX_M_APPROX);
    bool rounds = d->op == PTX_OP_RCP_F32 || d->op == PTX_OP_SQRT_F32;
    if (f.sat || approx == f.round_given || (f.round_given && !rounds) || (d->op == PTX_OP_TANH_F32 && f.ftz))
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
        in->flops = PTX_FLOPS(f.type, 1);
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
        if (kind < 0 && ptx_take_mod(p, (enum ptx_mod)m))
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
