/* Conversions. */
#include "simgpu/ptx/lower.h"

struct cvt_form {
    enum ptx_type to, from;
    unsigned to_reg, from_reg; /* log2 of the registers */
    bool sat, ftz, integral, rounded;
    enum ptx_round round;
};

static bool is_cvt_float(enum ptx_type type)
{
    return type == PTX_F16 || type == PTX_BF16 || type == PTX_F32 || type == PTX_F64;
}

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
        {PTX_S32, PTX_F64, PTX_OP_CVT_S32_F64}, {PTX_F32, PTX_F16, PTX_OP_CVT_F32_F16},
        {PTX_F16, PTX_F32, PTX_OP_CVT_F16_F32},
    };
    bool to_int = is_cvt_int(f->to);
    if (f->round != (to_int ? PTX_ROUND_RZ : PTX_ROUND_RN) || (f->integral && !to_int))
        return -1;
    for (unsigned i = 0; i < sizeof(ops) / sizeof(ops[0]); i++)
        if (ops[i].to == f->to && ops[i].from == f->from)
            return ops[i].op;
    return -1;
}

/* Every value of integer type `from` is one of `to`. */
static bool holds_all(enum ptx_type to, enum ptx_type from)
{
    unsigned to_bits = 8u << ptx_type_log2(to), from_bits = 8u << ptx_type_log2(from);
    if (ptx_type_signed(from))
        return ptx_type_signed(to) && to_bits >= from_bits;
    return to_bits > from_bits || (to_bits == from_bits && !ptx_type_signed(to));
}

static void check_cvt(struct ptx_parser *p, const struct cvt_form *f)
{
    bool to_float = ptx_type_float(f->to), from_float = ptx_type_float(f->from);
    if (!(is_cvt_float(f->to) || is_cvt_int(f->to)) || !(is_cvt_float(f->from) || is_cvt_int(f->from)))
        ptx_lower_unsupported(p, NULL);
    bool widens = to_float && from_float &&
                  (f->to == f->from || (f->to != PTX_BF16 && ptx_type_log2(f->to) > ptx_type_log2(f->from)));
    if (f->sat && f->to == PTX_BF16)
        ptx_lower_unsupported(p, NULL);
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
    if (f->sat && !to_float && !from_float && holds_all(f->to, f->from))
        ptx_lower_unsupported(p, "there is nothing to saturate");
}

static struct cvt_form cvt_form(struct ptx_parser *p)
{
    const struct ptx_stmt *s = &p->stmt;
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

static uint32_t emit(struct ptx_parser *p, int op, uint32_t result, uint32_t a, uint32_t b)
{
    struct ptx_insn *in = ptx_emit(p, op);
    in->o[0] = result;
    in->o[1] = a;
    in->o[2] = b;
    return result;
}

/* To a small format, in a register of 2^to_log2 bytes. */
static uint32_t emit_small(struct ptx_parser *p, uint32_t result, unsigned to_log2, uint32_t a, unsigned from_log2,
                           uint64_t imm)
{
    emit(p, PTX_OP_LANE, result, a, 0);
    struct ptx_insn *in = &p->module->code[p->module->code_count - 1];
    in->aux = PTX_LANE_cvt_small | (to_log2 | from_log2 << 4) << 8;
    in->imm = imm;
    return result;
}

/* One f32 to f16 or bf16. */
static uint32_t emit_half(struct ptx_parser *p, uint32_t result, enum ptx_type to, uint32_t a, uint64_t imm)
{
    if (!(imm >> 16))
        return emit(p, to == PTX_F16 ? PTX_OP_CVT_F16_F32 : PTX_OP_CVT_BF16_F32, result, a, 0);
    return emit_small(p, result, 1, a, 2, imm | (uint64_t)to | (uint64_t)PTX_F32 << 8);
}

static void cvt_pack(struct ptx_parser *p)
{
    const struct ptx_stmt *s = &p->stmt;
    unsigned bits = 0;
    if (!ptx_take_mod(p, PTX_M_SAT) || s->type_count < 2 || s->types[1] != PTX_S32)
        ptx_lower_unsupported(p, NULL);
    enum ptx_type type = s->types[0];
    bool is_signed = ptx_type_signed(type) || type == PTX_S4 || type == PTX_S2;
    if (type == PTX_U16 || type == PTX_S16)
        bits = 16;
    else if (type == PTX_U8 || type == PTX_S8)
        bits = 8;
    else if (type == PTX_U4 || type == PTX_S4)
        bits = 4;
    else if (type == PTX_U2 || type == PTX_S2)
        bits = 2;
    bool has_c = s->type_count == 3 && s->types[2] == PTX_B32;
    if (!bits || s->type_count > 3 || has_c != (bits < 16) || (s->type_count == 3) != has_c)
        ptx_lower_unsupported(p, NULL);
    if (s->operand_count != 3u + has_c)
        ptx_lower_fail(p, "wrong number of operands");
    ptx_lower_lane(p, PTX_LANE_cvt_pack, 2 + has_c, 2, 2, bits | (is_signed ? PTX_LANE_SIGNED : 0));
}

/* Types with their own rules; from registers of exactly their size. */
enum small_rule {
    RULE_FINITE = 1,      /* .satfinite is possible */
    RULE_MUST_FINITE = 2, /* and must be there */
    RULE_RELU = 4,
    RULE_RZ = 8,   /* .rz besides .rn */
    RULE_RNA = 16, /* .rna instead */
    RULE_TWO = 32, /* two sources */
};
static const struct {
    uint8_t to, from, rules;
} small_forms[] = {
    {PTX_F16, PTX_F32, RULE_FINITE | RULE_RELU | RULE_RZ},
    {PTX_BF16, PTX_F32, RULE_FINITE | RULE_RELU | RULE_RZ},
    {PTX_F16X2, PTX_F32, RULE_FINITE | RULE_RELU | RULE_RZ | RULE_TWO},
    {PTX_BF16X2, PTX_F32, RULE_FINITE | RULE_RELU | RULE_RZ | RULE_TWO},
    {PTX_TF32, PTX_F32, RULE_FINITE | RULE_RELU | RULE_RZ | RULE_RNA},
    {PTX_E4M3X2, PTX_F32, RULE_MUST_FINITE | RULE_RELU | RULE_TWO},
    {PTX_E5M2X2, PTX_F32, RULE_MUST_FINITE | RULE_RELU | RULE_TWO},
    {PTX_E4M3X2, PTX_F16X2, RULE_MUST_FINITE | RULE_RELU},
    {PTX_E5M2X2, PTX_F16X2, RULE_MUST_FINITE | RULE_RELU},
    {PTX_F16X2, PTX_E4M3X2, RULE_RELU},
    {PTX_F16X2, PTX_E5M2X2, RULE_RELU},
};

/* The modifiers' part of imm. */
static uint64_t small_modifiers(struct ptx_parser *p, unsigned rules)
{
    bool given;
    uint64_t round = ptx_take_round(p, &given);
    bool rna = rules & RULE_RNA && ptx_take_mod(p, PTX_M_RNA), relu = ptx_take_mod(p, PTX_M_RELU);
    bool finite = ptx_take_mod(p, PTX_M_SATFINITE);
    if (given == rna || (round != PTX_ROUND_RN && !(round == PTX_ROUND_RZ && rules & RULE_RZ)))
        ptx_lower_unsupported(p, "rounding modifier");
    if ((finite && !(rules & (RULE_FINITE | RULE_MUST_FINITE))) || (!finite && rules & RULE_MUST_FINITE) ||
        (relu && rna))
        ptx_lower_unsupported(p, NULL);
    return (rna ? PTX_ROUND_RNA : round) << 16 | (relu ? PTX_CVT_RELU : 0) | (finite ? PTX_CVT_FINITE : 0);
}

static void cvt_pair(struct ptx_parser *p, enum ptx_type to, enum ptx_type from, uint64_t imm)
{
    unsigned to_log2 = ptx_type_log2(to), from_log2 = ptx_type_log2(from);
    bool two = from == PTX_F32, bytes = to == PTX_E4M3X2 || to == PTX_E5M2X2;
    uint32_t high = ptx_source(p, ptx_operand_at(p, 1), from_log2, PTX_NONE);
    uint32_t low = two ? ptx_source(p, ptx_operand_at(p, 2), from_log2, PTX_NONE) : high;
    uint32_t result = ptx_result(p, ptx_operand_at(p, 0), to_log2), parts[2] = {ptx_temp(p, 1), ptx_temp(p, 1)};
    enum ptx_type one = to == PTX_F16X2 ? PTX_F16 : to == PTX_BF16X2 ? PTX_BF16 : to;
    if (two && !bytes) {
        emit_half(p, parts[0], one, low, imm);
        emit_half(p, parts[1], one, high, imm);
    } else {
        imm |= (uint64_t)one | (uint64_t)(from == PTX_F16X2 ? PTX_F16 : from) << 8;
        emit_small(p, parts[0], 1, low, from_log2, imm);
        emit_small(p, parts[1], 1, high, from_log2, imm | (two ? 0 : PTX_CVT_HIGH));
    }
    if (!bytes) {
        emit(p, PTX_OP_PACK_32, result, parts[0], parts[1]);
        return;
    }
    uint32_t scale = ptx_constant(p, 1, 256);
    emit(p, PTX_OP_MADLO_16, result, parts[1], scale);
    p->module->code[p->module->code_count - 1].o[3] = parts[0];
}

/* Conversions to packed types, to tf32, and those of f32 with .relu or .satfinite. false: it is none of these. */
static bool cvt_small(struct ptx_parser *p)
{
    const struct ptx_stmt *s = &p->stmt;
    enum ptx_type to = s->types[0], from = s->types[1];
    bool is_half = to == PTX_F16 || to == PTX_BF16;
    if (is_half && !ptx_has_mod(p, PTX_M_RELU) && !ptx_has_mod(p, PTX_M_SATFINITE))
        return false;
    for (unsigned i = 0; i < sizeof(small_forms) / sizeof(small_forms[0]); i++) {
        if (small_forms[i].to != to || small_forms[i].from != from)
            continue;
        unsigned rules = small_forms[i].rules;
        if (s->operand_count != (rules & RULE_TWO ? 3 : 2))
            ptx_lower_fail(p, "wrong number of operands");
        uint64_t imm = small_modifiers(p, rules);
        if (to != PTX_TF32 && !is_half) {
            cvt_pair(p, to, from, imm);
            return true;
        }
        uint32_t a = ptx_source(p, ptx_operand_at(p, 1), 2, PTX_NONE);
        uint32_t result = ptx_result(p, ptx_operand_at(p, 0), ptx_type_log2(to));
        emit_small(p, result, ptx_type_log2(to), a, 2, imm | (uint64_t)to | (uint64_t)from << 8);
        return true;
    }
    return false;
}

void ptx_lower_cvt(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    (void)d;
    if (ptx_take_mod(p, PTX_M_PACK)) {
        cvt_pack(p);
        return;
    }
    if (p->stmt.type_count != 2)
        ptx_lower_unsupported(p, NULL);
    if (cvt_small(p))
        return;
    if (p->stmt.operand_count != 2)
        ptx_lower_fail(p, "wrong number of operands");
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
    if (f.from == PTX_BF16) { /* every value of it is one of f32 */
        bool is_all = f.to == PTX_F32 && !f.sat && !f.ftz;
        a = emit(p, PTX_OP_CVT_F32_BF16, is_all ? result : ptx_temp(p, 2), a, 0);
        if (is_all)
            return;
        f.from = PTX_F32;
        f.from_reg = 2;
    }
    uint64_t imm = (uint64_t)f.to | (uint64_t)f.from << 8 | (uint64_t)f.round << 16 | (f.sat ? PTX_CVT_SAT : 0) |
                   (f.ftz ? PTX_CVT_FTZ : 0) | (f.integral ? PTX_CVT_INTEGRAL : 0);
    if (f.to == PTX_BF16) {
        if (f.from == PTX_F32 && !(imm >> 16))
            emit(p, PTX_OP_CVT_BF16_F32, result, a, 0);
        else
            emit_small(p, result, 1, a, f.from_reg, imm);
        return;
    }
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
    in->imm = imm;
}
