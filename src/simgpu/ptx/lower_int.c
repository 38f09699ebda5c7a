/* Integer arithmetic, logic, shifts, bit fields. */
#include "simgpu/ptx/lower.h"

/* Index within a family of 16-, 32-, 64-bit operations. */
static int width_index(enum ptx_type type)
{
    return (int)ptx_type_log2(type) - 1;
}

static enum ptx_type int_type(struct ptx_parser *p)
{
    enum ptx_type type = ptx_one_type(p);
    if (!ptx_type_int(type))
        ptx_lower_unsupported(p, NULL);
    return type;
}

static void binary(struct ptx_parser *p, int op, unsigned log2, enum ptx_type type)
{
    uint32_t a = ptx_source(p, ptx_operand_at(p, 1), log2, type);
    uint32_t b = ptx_source(p, ptx_operand_at(p, 2), log2, type);
    uint32_t result = ptx_result(p, ptx_operand_at(p, 0), log2);
    struct ptx_insn *in = ptx_emit(p, op);
    in->o[0] = result;
    in->o[1] = a;
    in->o[2] = b;
}

void ptx_lower_lane(struct ptx_parser *p, int function, unsigned count, unsigned log2, unsigned result_log2,
                    uint64_t imm)
{
    uint32_t from[3] = {0};
    for (unsigned i = 0; i < count; i++)
        from[i] = ptx_source(p, ptx_operand_at(p, i + 1), log2, PTX_NONE);
    uint32_t result = ptx_result(p, ptx_operand_at(p, 0), result_log2);
    struct ptx_insn *in = ptx_emit(p, PTX_OP_LANE);
    in->o[0] = result;
    uint32_t logs = result_log2;
    for (unsigned i = 0; i < count; i++) {
        in->o[i + 1] = from[i];
        logs |= log2 << 4 * (i + 1);
    }
    in->aux = (uint32_t)function | logs << 8;
    in->imm = imm;
}

static uint64_t lane_type(enum ptx_type type)
{
    return ptx_type_log2(type) | (ptx_type_signed(type) ? PTX_LANE_SIGNED : 0);
}

void ptx_lower_int_add(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    if (ptx_take_mod(p, PTX_M_CC)) {
        struct ptx_descriptor carry = {.op = d->op == PTX_OP_ADD_16 ? 4 : 5};
        ptx_lower_carry(p, &carry);
        return;
    }
    if (d->op == PTX_OP_ADD_16 && ptx_one_type(p) >= PTX_U16X2 && ptx_one_type(p) <= PTX_S16X2) {
        binary(p, PTX_OP_ADD_X2, 2, PTX_B32);
        return;
    }
    enum ptx_type type = int_type(p);
    if (ptx_take_mod(p, PTX_M_SAT)) {
        if (type != PTX_S32)
            ptx_lower_unsupported(p, NULL);
        ptx_lower_lane(p, d->op == PTX_OP_ADD_16 ? PTX_LANE_add_sat : PTX_LANE_sub_sat, 2, 2, 2, 0);
        return;
    }
    binary(p, d->op + width_index(type), ptx_type_log2(type), type);
}

/* add.cc addc sub.cc subc mad.cc madc. op: 0 addc, 1 subc, 2 madc; 4, 5, 6 the ones that only set the flag. */
void ptx_lower_carry(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    bool reads = d->op < 4, sets = d->op >= 4 || ptx_take_mod(p, PTX_M_CC);
    bool is_mad = (d->op & 3) == 2;
    bool hi = is_mad && ptx_take_mod(p, PTX_M_HI);
    if (is_mad && !hi && !ptx_take_mod(p, PTX_M_LO))
        ptx_lower_unsupported(p, NULL);
    enum ptx_type type = int_type(p);
    unsigned log2 = ptx_type_log2(type);
    if (log2 < 2)
        ptx_lower_unsupported(p, NULL);
    uint32_t from[3] = {0};
    for (unsigned i = 0; i < (is_mad ? 3u : 2u); i++)
        from[i] = ptx_source(p, ptx_operand_at(p, i + 1), log2, type);
    if (!p->carry)
        p->carry = ptx_frame_predicate(p);
    uint32_t result = ptx_result(p, ptx_operand_at(p, 0), log2);
    struct ptx_insn *in = ptx_emit(p, PTX_OP_CARRY);
    in->o[0] = result;
    in->o[1] = from[0];
    in->o[2] = from[1];
    in->o[3] = from[2];
    in->o[4] = p->carry;
    /* NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): false alarm, 0 << 4 is 0 */
    in->aux = (uint32_t)(d->op & 3) | (uint32_t)reads << 2 | (uint32_t)sets << 3 | (uint32_t)hi << 4 | log2 << 8 |
              (uint32_t)ptx_type_signed(type) << 12;
}

void ptx_lower_int_mul(struct ptx_parser *p, enum ptx_type type)
{
    int w = width_index(type);
    unsigned log2 = ptx_type_log2(type);
    bool is_signed = ptx_type_signed(type);
    if (ptx_take_mod(p, PTX_M_LO)) {
        binary(p, PTX_OP_MULLO_16 + w, log2, type);
    } else if (ptx_take_mod(p, PTX_M_HI)) {
        binary(p, (is_signed ? PTX_OP_MULHI_S_16 : PTX_OP_MULHI_U_16) + w, log2, type);
    } else if (ptx_take_mod(p, PTX_M_WIDE) && log2 < 3) {
        uint32_t a = ptx_source(p, ptx_operand_at(p, 1), log2, type);
        uint32_t b = ptx_source(p, ptx_operand_at(p, 2), log2, type);
        uint32_t result = ptx_result(p, ptx_operand_at(p, 0), log2 + 1);
        struct ptx_insn *in = ptx_emit(p, (is_signed ? PTX_OP_MULWIDE_S_16 : PTX_OP_MULWIDE_U_16) + w);
        in->o[0] = result;
        in->o[1] = a;
        in->o[2] = b;
    } else {
        ptx_lower_unsupported(p, NULL);
    }
}

void ptx_lower_int_mad(struct ptx_parser *p, enum ptx_type type)
{
    if (ptx_take_mod(p, PTX_M_CC)) {
        struct ptx_descriptor carry = {.op = 6};
        ptx_lower_carry(p, &carry);
        return;
    }
    int w = width_index(type);
    unsigned log2 = ptx_type_log2(type);
    bool is_signed = ptx_type_signed(type), wide = false, hi = false;
    if (ptx_take_mod(p, PTX_M_SAT)) {
        if (type != PTX_S32 || !ptx_take_mod(p, PTX_M_HI))
            ptx_lower_unsupported(p, NULL);
        ptx_lower_lane(p, PTX_LANE_mad_hi_sat, 3, 2, 2, 0);
        return;
    }
    if (log2 < 3 && ptx_take_mod(p, PTX_M_WIDE))
        wide = true;
    else if (ptx_take_mod(p, PTX_M_HI))
        hi = true;
    else if (!ptx_take_mod(p, PTX_M_LO))
        ptx_lower_unsupported(p, NULL);
    uint32_t a = ptx_source(p, ptx_operand_at(p, 1), log2, type);
    uint32_t b = ptx_source(p, ptx_operand_at(p, 2), log2, type);
    uint32_t c = ptx_source(p, ptx_operand_at(p, 3), log2 + wide, type);
    uint32_t result = ptx_result(p, ptx_operand_at(p, 0), log2 + wide);
    struct ptx_insn *in;
    if (hi) {
        uint32_t high = ptx_temp(p, log2);
        in = ptx_emit(p, (is_signed ? PTX_OP_MULHI_S_16 : PTX_OP_MULHI_U_16) + w);
        in->o[0] = high;
        in->o[1] = a;
        in->o[2] = b;
        in = ptx_emit(p, PTX_OP_ADD_16 + w);
        in->o[1] = high;
        in->o[2] = c;
    } else {
        in = ptx_emit(p, (!wide ? PTX_OP_MADLO_16 : is_signed ? PTX_OP_MADWIDE_S_16 : PTX_OP_MADWIDE_U_16) + w);
        in->o[1] = a;
        in->o[2] = b;
        in->o[3] = c;
    }
    in->o[0] = result;
}

void ptx_lower_mul24(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    enum ptx_type type = int_type(p);
    bool hi = ptx_take_mod(p, PTX_M_HI);
    if (ptx_type_log2(type) != 2 || (!hi && !ptx_take_mod(p, PTX_M_LO)))
        ptx_lower_unsupported(p, NULL);
    bool sat = ptx_take_mod(p, PTX_M_SAT);
    if (sat && (!hi || !d->op || type != PTX_S32))
        ptx_lower_unsupported(p, NULL);
    ptx_lower_lane(p, PTX_LANE_mul24, d->op ? 3 : 2, 2, 2, lane_type(type) | (hi ? 0x200 : 0) | (sat ? 0x400 : 0));
}

void ptx_lower_int_div(struct ptx_parser *p, const struct ptx_descriptor *d, enum ptx_type type)
{
    binary(p, (ptx_type_signed(type) ? d->op_signed : d->op) + width_index(type), ptx_type_log2(type), type);
}

void ptx_lower_rem(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    ptx_lower_int_div(p, d, int_type(p));
}

void ptx_lower_int_unary(struct ptx_parser *p, const struct ptx_descriptor *d, enum ptx_type type)
{
    if (!ptx_type_signed(type))
        ptx_lower_unsupported(p, NULL);
    uint32_t a = ptx_source(p, ptx_operand_at(p, 1), ptx_type_log2(type), type);
    uint32_t result = ptx_result(p, ptx_operand_at(p, 0), ptx_type_log2(type));
    struct ptx_insn *in = ptx_emit(p, d->op + width_index(type));
    in->o[0] = result;
    in->o[1] = a;
}

static enum ptx_type bits_type(struct ptx_parser *p)
{
    enum ptx_type type = ptx_one_type(p);
    if (type != PTX_B16 && type != PTX_B32 && type != PTX_B64)
        ptx_lower_unsupported(p, NULL);
    return type;
}

static void logic_pred(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    if (!d->op_signed)
        ptx_lower_unsupported(p, NULL);
    uint32_t a = ptx_predicate(p, ptx_operand_at(p, 1));
    uint32_t b = p->stmt.operand_count == 3 ? ptx_predicate(p, ptx_operand_at(p, 2)) : 0;
    uint32_t result = ptx_result(p, ptx_operand_at(p, 0), 0);
    struct ptx_insn *in = ptx_emit(p, d->op_signed);
    in->o[0] = result;
    in->o[1] = a;
    in->o[2] = b;
}

void ptx_lower_logic(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    if (ptx_one_type(p) == PTX_PRED) {
        logic_pred(p, d);
        return;
    }
    enum ptx_type type = bits_type(p);
    if (p->stmt.operand_count == 3) {
        binary(p, d->op + width_index(type), ptx_type_log2(type), type);
        return;
    }
    uint32_t a = ptx_source(p, ptx_operand_at(p, 1), ptx_type_log2(type), type);
    uint32_t result = ptx_result(p, ptx_operand_at(p, 0), ptx_type_log2(type));
    struct ptx_insn *in = ptx_emit(p, d->op + width_index(type));
    in->o[0] = result;
    in->o[1] = a;
}

void ptx_lower_shift(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    enum ptx_type type = ptx_one_type(p);
    bool right = d->op_signed;
    if (!(type >= PTX_B16 && type <= PTX_B64) && !(right && ptx_type_int(type)))
        ptx_lower_unsupported(p, NULL);
    unsigned log2 = ptx_type_log2(type);
    uint32_t a = ptx_source(p, ptx_operand_at(p, 1), log2, type);
    uint32_t b = ptx_source(p, ptx_operand_at(p, 2), 2, PTX_U32);
    uint32_t result = ptx_result(p, ptx_operand_at(p, 0), log2);
    struct ptx_insn *in = ptx_emit(p, (right && ptx_type_signed(type) ? d->op_signed : d->op) + width_index(type));
    in->o[0] = result;
    in->o[1] = a;
    in->o[2] = b;
}

/* popc, clz, brev, bfind: a result of 32 bits, except brev's. */
void ptx_lower_bits(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    enum ptx_type type = ptx_one_type(p);
    unsigned log2 = ptx_type_log2(type);
    bool is_bfind = d->op_signed == PTX_LANE_bfind && d->op == PTX_OP_LANE;
    if (log2 < 2 || (is_bfind ? !ptx_type_int(type) : !ptx_type_bits(type)))
        ptx_lower_unsupported(p, NULL);
    if (d->op == PTX_OP_LANE) {
        uint64_t shift = is_bfind && ptx_take_mod(p, PTX_M_SHIFTAMT) ? 0x200 : 0;
        ptx_lower_lane(p, d->op_signed, 1, log2, is_bfind ? 2 : log2, lane_type(type) | shift);
        return;
    }
    uint32_t a = ptx_source(p, ptx_operand_at(p, 1), log2, type);
    uint32_t result = ptx_result(p, ptx_operand_at(p, 0), 2);
    struct ptx_insn *in = ptx_emit(p, d->op + (log2 == 3));
    in->o[0] = result;
    in->o[1] = a;
}

/* bfe d, a, b, c: b and c are 32 bits, a and d of the type. */
void ptx_lower_bfe(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    (void)d;
    enum ptx_type type = int_type(p);
    unsigned log2 = ptx_type_log2(type);
    if (log2 < 2)
        ptx_lower_unsupported(p, NULL);
    uint32_t a = ptx_source(p, ptx_operand_at(p, 1), log2, type);
    uint32_t b = ptx_source(p, ptx_operand_at(p, 2), 2, PTX_U32);
    uint32_t c = ptx_source(p, ptx_operand_at(p, 3), 2, PTX_U32);
    uint32_t result = ptx_result(p, ptx_operand_at(p, 0), log2);
    struct ptx_insn *in = ptx_emit(p, PTX_OP_LANE);
    in->o[0] = result;
    in->o[1] = a;
    in->o[2] = b;
    in->o[3] = c;
    in->aux = (uint32_t)(ptx_type_signed(type) ? PTX_LANE_bfe_s : PTX_LANE_bfe_u) |
              (log2 | log2 << 4 | 2 << 8 | 2 << 12) << 8;
    in->imm = log2;
}

/* bfi f, a, b, c, d: the position and length are packed into one operand, as lane functions take three. */
void ptx_lower_bfi(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    (void)d;
    enum ptx_type type = bits_type(p);
    unsigned log2 = ptx_type_log2(type);
    if (log2 < 2)
        ptx_lower_unsupported(p, NULL);
    uint32_t a = ptx_source(p, ptx_operand_at(p, 1), log2, type);
    uint32_t b = ptx_source(p, ptx_operand_at(p, 2), log2, type);
    uint32_t position = ptx_source(p, ptx_operand_at(p, 3), 2, PTX_U32);
    uint32_t length = ptx_source(p, ptx_operand_at(p, 4), 2, PTX_U32);
    uint32_t result = ptx_result(p, ptx_operand_at(p, 0), log2);
    uint32_t both = ptx_temp(p, 3);
    struct ptx_insn *in = ptx_emit(p, PTX_OP_PACK_64);
    in->o[0] = both;
    in->o[1] = position;
    in->o[2] = length;
    in = ptx_emit(p, PTX_OP_LANE);
    in->o[0] = result;
    in->o[1] = a;
    in->o[2] = b;
    in->o[3] = both;
    in->aux = (uint32_t)PTX_LANE_bfi | (log2 | log2 << 4 | log2 << 8 | 3 << 12) << 8;
    in->imm = log2;
}

void ptx_lower_prmt(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    (void)d;
    uint64_t mode = PTX_PRMT_INDEX;
    for (int m = PTX_M_F4E; m <= PTX_M_RC16; m++)
        if (mode == PTX_PRMT_INDEX && ptx_take_mod(p, (enum ptx_mod)m))
            mode = (uint64_t)m - PTX_M_F4E + PTX_PRMT_F4E;
    if (ptx_one_type(p) != PTX_B32)
        ptx_lower_unsupported(p, NULL);
    ptx_lower_lane(p, PTX_LANE_prmt, 3, 2, 2, mode);
}

void ptx_lower_shf(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    (void)d;
    bool left = ptx_take_mod(p, PTX_M_L), right = !left && ptx_take_mod(p, PTX_M_R);
    bool wrap = ptx_take_mod(p, PTX_M_WRAP), clamp = !wrap && ptx_take_mod(p, PTX_M_CLAMP);
    if ((!left && !right) || (!wrap && !clamp) || ptx_one_type(p) != PTX_B32)
        ptx_lower_unsupported(p, NULL);
    if (clamp) {
        ptx_lower_lane(p, PTX_LANE_shf, 3, 2, 2, right);
        return;
    }
    uint32_t a = ptx_source(p, ptx_operand_at(p, 1), 2, PTX_B32);
    uint32_t b = ptx_source(p, ptx_operand_at(p, 2), 2, PTX_B32);
    uint32_t c = ptx_source(p, ptx_operand_at(p, 3), 2, PTX_B32);
    uint32_t result = ptx_result(p, ptx_operand_at(p, 0), 2);
    struct ptx_insn *in = ptx_emit(p, right ? PTX_OP_SHF_R_WRAP : PTX_OP_SHF_L_WRAP);
    in->o[0] = result;
    in->o[1] = a;
    in->o[2] = b;
    in->o[3] = c;
}

void ptx_lower_sad(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    (void)d;
    enum ptx_type type = int_type(p);
    ptx_lower_lane(p, PTX_LANE_sad, 3, ptx_type_log2(type), ptx_type_log2(type), lane_type(type));
}

static uint64_t immediate(struct ptx_parser *p, unsigned i, uint64_t max)
{
    const struct ptx_operand *o = ptx_operand_at(p, i);
    if (o->kind != PTX_OPERAND_INT || o->value > max)
        ptx_lower_fail(p, "an immediate operand out of range");
    return o->value;
}

void ptx_lower_lop3(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    (void)d;
    if (ptx_one_type(p) != PTX_B32)
        ptx_lower_unsupported(p, NULL);
    bool either = ptx_take_mod(p, PTX_M_OR), both = ptx_take_mod(p, PTX_M_AND);
    if (either && both)
        ptx_lower_unsupported(p, NULL);
    if ((either || both) != (p->stmt.operand_count == 6))
        ptx_lower_fail(p, "wrong number of operands");
    uint64_t table = immediate(p, 4, 255);
    struct ptx_operand result = *ptx_operand_at(p, 0);
    uint32_t q = either || both ? ptx_predicate(p, ptx_operand_at(p, 5)) : 0;
    if (!either && !both && result.second)
        ptx_lower_unsupported(p, NULL);
    ptx_lower_lane(p, PTX_LANE_lop3, 3, 2, 2, table);
    if (!result.second)
        return;
    uint32_t zero = ptx_constant(p, 2, 0), word = p->module->code[p->module->code_count - 1].o[0];
    struct ptx_insn *in = ptx_emit(p, PTX_OP_SETP_NE_U32);
    in->o[0] = result.second;
    in->o[1] = word;
    in->o[2] = zero;
    in->o[3] = q;
    in->aux = either ? PTX_BOOL_OR : PTX_BOOL_AND;
}

/* dp4a, and dp2a (op 1). */
void ptx_lower_dp4a(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    bool hi = d->op && ptx_take_mod(p, PTX_M_HI);
    if (d->op && !hi && !ptx_take_mod(p, PTX_M_LO))
        ptx_lower_unsupported(p, NULL);
    const struct ptx_stmt *s = &p->stmt;
    if (s->type_count != 2 || ptx_type_log2(s->types[0]) != 2 || ptx_type_log2(s->types[1]) != 2 ||
        !ptx_type_int(s->types[0]) || !ptx_type_int(s->types[1]))
        ptx_lower_unsupported(p, NULL);
    ptx_lower_lane(p, d->op ? PTX_LANE_dp2a : PTX_LANE_dp4a, 3, 2, 2,
                   (uint64_t)ptx_type_signed(s->types[0]) | (uint64_t)ptx_type_signed(s->types[1]) << 1 |
                       (hi ? 4u : 0u));
}

/* min, max of integers: .relu for signed 32 bits, and two halves at once. */
void ptx_lower_int_minmax(struct ptx_parser *p, const struct ptx_descriptor *d, enum ptx_type type)
{
    bool is_min = d->op == PTX_OP_MIN_U_16, relu = ptx_take_mod(p, PTX_M_RELU);
    bool pair = type == PTX_U16X2 || type == PTX_S16X2;
    if ((relu && type != PTX_S32 && type != PTX_S16X2) || (!pair && !ptx_type_int(type)))
        ptx_lower_unsupported(p, NULL);
    int max = pair ? PTX_OP_MAX_S_X2 : PTX_OP_MAX_S_32;
    if (!pair)
        ptx_lower_int_div(p, d, type);
    else if (type == PTX_U16X2)
        binary(p, is_min ? PTX_OP_MIN_U_X2 : PTX_OP_MAX_U_X2, 2, PTX_B32);
    else
        binary(p, is_min ? PTX_OP_MIN_S_X2 : PTX_OP_MAX_S_X2, 2, PTX_B32);
    if (!relu)
        return;
    uint32_t zero = ptx_constant(p, 2, 0), result = p->module->code[p->module->code_count - 1].o[0];
    struct ptx_insn *in = ptx_emit(p, max);
    in->o[0] = result;
    in->o[1] = result;
    in->o[2] = zero;
}

/* bmsk, szext: .clamp or .wrap. */
void ptx_lower_bit_range(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    bool wrap = ptx_take_mod(p, PTX_M_WRAP), clamp = ptx_take_mod(p, PTX_M_CLAMP), is_mask = d->op == PTX_LANE_bmsk;
    enum ptx_type type = ptx_one_type(p);
    if (wrap == clamp || (is_mask ? type != PTX_B32 : type != PTX_U32 && type != PTX_S32))
        ptx_lower_unsupported(p, NULL);
    ptx_lower_lane(p, d->op, 2, 2, 2, wrap | (ptx_type_signed(type) ? PTX_LANE_SIGNED : 0));
}

void ptx_lower_fns(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    (void)d;
    if (ptx_one_type(p) != PTX_B32)
        ptx_lower_unsupported(p, NULL);
    ptx_lower_lane(p, PTX_LANE_fns, 3, 2, 2, 0);
}
