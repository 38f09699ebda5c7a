/* Arithmetic on f16 and bf16, alone and in pairs; min and max of all floats that have modifiers. */
#include "simgpu/ptx/lower.h"

static bool is_half(enum ptx_type type)
{
    return type == PTX_F16 || type == PTX_F16X2 || type == PTX_BF16 || type == PTX_BF16X2;
}

bool ptx_type_half(enum ptx_type type)
{
    return is_half(type);
}

static bool is_brain(enum ptx_type type)
{
    return type == PTX_BF16 || type == PTX_BF16X2;
}

/* Place within a family of operations. */
static int half_index(enum ptx_type type)
{
    return (is_brain(type) ? 2 : 0) + (type == PTX_F16X2 || type == PTX_BF16X2);
}

static uint32_t emit(struct ptx_parser *p, int op, uint32_t result, uint32_t a, uint32_t b, uint32_t c)
{
    struct ptx_insn *in = ptx_emit(p, op);
    in->o[0] = result;
    in->o[1] = a;
    in->o[2] = b;
    in->o[3] = c;
    return result;
}

uint32_t ptx_lower_half_source(struct ptx_parser *p, unsigned i, enum ptx_type type, bool ftz)
{
    unsigned log2 = ptx_type_log2(type);
    uint32_t at = ptx_source(p, ptx_operand_at(p, i), log2, type);
    return ftz ? emit(p, PTX_OP_FTZ_F16 + half_index(type), ptx_temp(p, log2), at, 0, 0) : at;
}

/* add sub mul fma. `op` is the family's first operation. */
void ptx_lower_half_arith(struct ptx_parser *p, int op, unsigned count)
{
    enum ptx_type type = ptx_one_type(p);
    unsigned log2 = ptx_type_log2(type);
    bool round_given, is_fma = op == PTX_OP_FMA_F16;
    enum ptx_round round = ptx_take_round(p, &round_given);
    bool ftz = !is_brain(type) && ptx_take_mod(p, PTX_M_FTZ), sat = !is_brain(type) && ptx_take_mod(p, PTX_M_SAT);
    bool relu = is_fma && ptx_take_mod(p, PTX_M_RELU);
    if (round != PTX_ROUND_RN || (is_fma && !round_given) || (sat && relu))
        ptx_lower_unsupported(p, NULL);
    uint32_t from[3] = {0};
    for (unsigned i = 0; i < count; i++)
        from[i] = ptx_lower_half_source(p, i + 1, type, ftz);
    uint32_t result = ptx_result(p, ptx_operand_at(p, 0), log2);
    emit(p, op + half_index(type), result, from[0], from[1], from[2]);
    p->module->code[p->module->code_count - 1].flops = (uint8_t)((is_fma ? 2 : 1) << (log2 - 1));
    if (ftz)
        emit(p, PTX_OP_FTZ_F16 + half_index(type), result, result, 0, 0);
    if (sat)
        emit(p, PTX_OP_SAT_F16 + half_index(type), result, result, 0, 0);
    if (relu)
        emit(p, PTX_OP_RELU_F16 + half_index(type), result, result, 0, 0);
}

static uint64_t sign_bits(enum ptx_type type)
{
    switch (type) {
    case PTX_F16:
    case PTX_BF16: return 0x8000;
    case PTX_F32: return 0x80000000;
    default: return 0x80008000;
    }
}

/* Clears the sign bits, or flips them. */
static uint32_t sign_op(struct ptx_parser *p, bool is_neg, enum ptx_type type, uint32_t result, uint32_t a)
{
    unsigned log2 = ptx_type_log2(type);
    uint64_t all = log2 == 1 ? 0xffff : UINT32_MAX;
    uint32_t mask = ptx_constant(p, log2, is_neg ? sign_bits(type) : all & ~sign_bits(type));
    return emit(p, (is_neg ? PTX_OP_XOR_16 : PTX_OP_AND_16) + (int)log2 - 1, result, a, mask, 0);
}

void ptx_lower_half_sign(struct ptx_parser *p, bool is_neg)
{
    enum ptx_type type = ptx_one_type(p);
    bool ftz = !is_brain(type) && ptx_take_mod(p, PTX_M_FTZ);
    uint32_t a = ptx_lower_half_source(p, 1, type, ftz);
    sign_op(p, is_neg, type, ptx_result(p, ptx_operand_at(p, 0), ptx_type_log2(type)), a);
}

static uint32_t minmax_source(struct ptx_parser *p, unsigned i, enum ptx_type type, bool ftz)
{
    if (is_half(type))
        return ptx_lower_half_source(p, i, type, ftz);
    uint32_t at = ptx_source(p, ptx_operand_at(p, i), ptx_type_log2(type), type);
    return ftz ? emit(p, PTX_OP_FTZ_F32, ptx_temp(p, 2), at, 0, 0) : at;
}

/* min, max of f16, bf16, their pairs, f32 and f64. */
void ptx_lower_float_minmax(struct ptx_parser *p, bool is_min)
{
    enum ptx_type type = ptx_one_type(p);
    unsigned log2 = ptx_type_log2(type);
    if (!is_half(type) && type != PTX_F32 && type != PTX_F64)
        ptx_lower_unsupported(p, NULL);
    bool ftz = !is_brain(type) && type != PTX_F64 && ptx_take_mod(p, PTX_M_FTZ);
    bool nan = type != PTX_F64 && ptx_take_mod(p, PTX_M_NAN_RESULT);
    bool xorsign = type != PTX_F64 && ptx_take_mod(p, PTX_M_XORSIGN);
    if (xorsign && !ptx_take_mod(p, PTX_M_ABS))
        ptx_lower_unsupported(p, NULL);
    uint32_t a = minmax_source(p, 1, type, ftz), b = minmax_source(p, 2, type, ftz), x = a, y = b;
    uint32_t result = ptx_result(p, ptx_operand_at(p, 0), log2), size = xorsign ? ptx_temp(p, log2) : result;
    if (xorsign) {
        x = sign_op(p, false, type, ptx_temp(p, log2), a);
        y = sign_op(p, false, type, ptx_temp(p, log2), b);
    }
    int op;
    if (is_half(type))
        op = (nan      ? (is_min ? PTX_OP_MIN_NAN_F16 : PTX_OP_MAX_NAN_F16)
              : is_min ? PTX_OP_MIN_F16
                       : PTX_OP_MAX_F16) +
             half_index(type);
    else if (type == PTX_F64)
        op = is_min ? PTX_OP_MIN_F64 : PTX_OP_MAX_F64;
    else
        op = nan ? (is_min ? PTX_OP_MIN_NAN_F32 : PTX_OP_MAX_NAN_F32) : is_min ? PTX_OP_MIN_F32 : PTX_OP_MAX_F32;
    emit(p, op, size, x, y, 0);
    p->module->code[p->module->code_count - 1].flops = 1;
    if (xorsign)
        emit(p, is_half(type) ? PTX_OP_XORSIGN_F16 + half_index(type) : PTX_OP_XORSIGN_F32, result, size, a, b);
}

/* One half as f32. `part`: 0 or 1 of a pair. */
uint32_t ptx_lower_half_widen(struct ptx_parser *p, enum ptx_type type, uint32_t at, unsigned part)
{
    if (ptx_type_log2(type) == 2)
        at = emit(p, part ? PTX_OP_HIGH_32 : PTX_OP_LOW_32, ptx_temp(p, 1), at, 0, 0);
    return emit(p, is_brain(type) ? PTX_OP_CVT_F32_BF16 : PTX_OP_CVT_F32_F16, ptx_temp(p, 2), at, 0, 0);
}

/* ex2, tanh: in f32, rounded. bf16's ex2 is there only with .ftz. */
void ptx_lower_half_approx(struct ptx_parser *p, int op)
{
    enum ptx_type type = ptx_one_type(p);
    bool is_ex2 = op == PTX_OP_EX2_F32, ftz = is_ex2 && is_brain(type);
    unsigned parts = ptx_type_log2(type);
    if (!ptx_take_mod(p, PTX_M_APPROX) || (op != PTX_OP_EX2_F32 && op != PTX_OP_TANH_F32) ||
        (ftz && !ptx_take_mod(p, PTX_M_FTZ)))
        ptx_lower_unsupported(p, NULL);
    uint32_t a = ptx_lower_half_source(p, 1, type, false), halves[2] = {0};
    uint32_t result = ptx_result(p, ptx_operand_at(p, 0), parts);
    for (unsigned i = 0; i < parts; i++) {
        uint32_t x = ptx_lower_half_widen(p, type, a, i), y = ptx_temp(p, 2);
        if (ftz) /* bf16 has the exponents of f32: what is subnormal in one is in the other */
            x = emit(p, PTX_OP_FTZ_F32, ptx_temp(p, 2), x, 0, 0);
        emit(p, op, y, x, 0, 0);
        p->module->code[p->module->code_count - 1].flops = 1;
        if (ftz)
            emit(p, PTX_OP_FTZ_F32, y, y, 0, 0);
        halves[i] = parts == 1 ? result : ptx_temp(p, 1);
        emit(p, is_brain(type) ? PTX_OP_CVT_BF16_F32 : PTX_OP_CVT_F16_F32, halves[i], y, 0, 0);
    }
    if (parts == 2)
        emit(p, PTX_OP_PACK_32, result, halves[0], halves[1], 0);
}
