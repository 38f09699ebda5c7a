/* Video instructions: scalars and pairs or quads of small integers, on parts of registers. */
#include "simgpu/ptx/lower.h"

#include <string.h>

static unsigned scalar_part(struct ptx_parser *p, const struct ptx_operand *o)
{
    static const char *const names[] = {"b0", "b1", "b2", "b3", "h0", "h1"};
    if (!o->part)
        return 0;
    for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (o->part_bytes == 2 && !memcmp(o->part, names[i], 2))
            return i + 1;
    ptx_lower_unsupported(p, "part of an operand");
}

/* The digits after the letter, most significant first: b3210, h10. Fewer than `count` only for masks. */
static unsigned digits_of(struct ptx_parser *p, const struct ptx_operand *o, char letter, unsigned count,
                          unsigned limit, uint8_t digits[4])
{
    if (o->part_bytes < 2 || o->part_bytes > count + 1 || o->part[0] != letter)
        ptx_lower_unsupported(p, "part of an operand");
    unsigned given = (unsigned)o->part_bytes - 1;
    for (unsigned i = 0; i < given; i++) {
        char c = o->part[given - i];
        if (c < '0' || c >= (char)('0' + limit))
            ptx_lower_unsupported(p, "part of an operand");
        digits[i] = (uint8_t)(c - '0');
    }
    return given;
}

static uint64_t selected(struct ptx_parser *p, const struct ptx_operand *o, unsigned count, unsigned first)
{
    uint8_t digits[4] = {(uint8_t)first, (uint8_t)(first + 1), (uint8_t)(first + 2), (uint8_t)(first + 3)};
    if (o->part && digits_of(p, o, count == 2 ? 'h' : 'b', count, 2 * count, digits) != count)
        ptx_lower_unsupported(p, "part of an operand");
    uint64_t result = 0;
    for (unsigned i = 0; i < count; i++)
        result |= (uint64_t)digits[i] << 4 * i;
    return result;
}

static uint64_t mask_of(struct ptx_parser *p, const struct ptx_operand *o, unsigned count)
{
    uint8_t digits[4] = {0};
    if (!o->part)
        return (1u << count) - 1;
    unsigned given = digits_of(p, o, count == 2 ? 'h' : 'b', count, count, digits);
    uint64_t mask = 0;
    for (unsigned i = 0; i < given; i++) {
        if (i && digits[i] <= digits[i - 1])
            ptx_lower_unsupported(p, "part of an operand");
        mask |= 1u << digits[i];
    }
    return mask;
}

/* The types, which are .u32 or .s32 each, as flags. vset has no type of a result: it is unsigned. */
static uint64_t sign_flags(struct ptx_parser *p, unsigned count)
{
    static const uint64_t flags[] = {PTX_VIDEO_D_SIGNED, PTX_VIDEO_A_SIGNED, PTX_VIDEO_B_SIGNED};
    const struct ptx_stmt *s = &p->stmt;
    uint64_t result = 0;
    if (s->type_count != count)
        ptx_lower_unsupported(p, NULL);
    for (unsigned i = 0; i < count; i++) {
        if (s->types[i] != PTX_U32 && s->types[i] != PTX_S32)
            ptx_lower_unsupported(p, NULL);
        if (s->types[i] == PTX_S32)
            result |= flags[3 - count + i];
    }
    return result;
}

static uint64_t compare_flags(struct ptx_parser *p)
{
    for (int m = PTX_M_EQ; m <= PTX_M_GE; m++)
        if (ptx_take_mod(p, (enum ptx_mod)m))
            return (uint64_t)(m - PTX_M_EQ) << PTX_VIDEO_CMP_AT;
    ptx_lower_unsupported(p, NULL);
}

/* What all have in common: three sources of 32 bits, of which the last may be missing; parts are in imm by now. */
static void emit(struct ptx_parser *p, int function, uint64_t imm)
{
    unsigned count = p->stmt.operand_count - 1;
    for (unsigned i = 0; i <= count; i++)
        p->stmt.operands[i].negated = false;
    ptx_lower_lane(p, function, count, 2, 2, imm);
}

static void refuse_negated(struct ptx_parser *p)
{
    for (unsigned i = 0; i < p->stmt.operand_count; i++)
        if (p->stmt.operands[i].negated)
            ptx_lower_unsupported(p, "a negated operand");
}

/* vadd vsub vabsdiff vmin vmax vshl vshr vset; d->op is the operation. */
void ptx_lower_video(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    bool is_set = d->op == PTX_VIDEO_SET, is_shift = d->op == PTX_VIDEO_SHL || d->op == PTX_VIDEO_SHR;
    uint64_t imm = (uint64_t)d->op | sign_flags(p, is_set ? 2 : 3), op2 = 0;
    refuse_negated(p);
    if (is_set)
        imm |= compare_flags(p);
    else if (ptx_take_mod(p, PTX_M_SAT))
        imm |= PTX_VIDEO_SAT;
    if (is_shift) {
        bool wrap = ptx_take_mod(p, PTX_M_WRAP), clamp = ptx_take_mod(p, PTX_M_CLAMP);
        if (wrap == clamp || imm & PTX_VIDEO_B_SIGNED)
            ptx_lower_unsupported(p, NULL);
        imm |= wrap ? PTX_VIDEO_WRAP : 0;
    }
    if (ptx_take_mod(p, PTX_M_ADD))
        op2 = 1;
    else if (ptx_take_mod(p, PTX_M_MIN))
        op2 = 2;
    else if (ptx_take_mod(p, PTX_M_MAX))
        op2 = 3;
    uint64_t part = scalar_part(p, ptx_operand_at(p, 0));
    if (op2 && part)
        ptx_lower_unsupported(p, "part of an operand");
    if ((op2 || part) != (p->stmt.operand_count == 4))
        ptx_lower_fail(p, "wrong number of operands");
    if (p->stmt.operand_count == 4 && ptx_operand_at(p, 3)->part)
        ptx_lower_unsupported(p, "part of an operand");
    imm |= part << PTX_VIDEO_D_PART_AT | op2 << PTX_VIDEO_OP2_AT |
           (uint64_t)scalar_part(p, ptx_operand_at(p, 1)) << PTX_VIDEO_A_PART_AT |
           (uint64_t)scalar_part(p, ptx_operand_at(p, 2)) << PTX_VIDEO_B_PART_AT;
    emit(p, PTX_LANE_video, imm);
}

void ptx_lower_vmad(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    (void)d;
    uint64_t imm = PTX_VIDEO_MAD | sign_flags(p, 3), scale = 0;
    bool po = ptx_take_mod(p, PTX_M_PO), sat = ptx_take_mod(p, PTX_M_SAT);
    if (ptx_take_mod(p, PTX_M_SHR7))
        scale = 7;
    else if (ptx_take_mod(p, PTX_M_SHR15))
        scale = 15;
    bool product = ptx_operand_at(p, 1)->negated != ptx_operand_at(p, 2)->negated, c = ptx_operand_at(p, 3)->negated;
    if ((po && (ptx_operand_at(p, 1)->negated || ptx_operand_at(p, 2)->negated || c)) || (product && c))
        ptx_lower_unsupported(p, "a negated operand");
    /* What the ISA says of an unsigned c that is subtracted settles the low 32 bits only. */
    if (c && !(imm & (PTX_VIDEO_A_SIGNED | PTX_VIDEO_B_SIGNED)) && (sat || scale))
        ptx_lower_unsupported(p, "subtracts an unsigned operand, and scales or saturates");
    if (ptx_operand_at(p, 0)->part || ptx_operand_at(p, 3)->part)
        ptx_lower_unsupported(p, "part of an operand");
    imm |= (po ? PTX_VIDEO_PLUS_ONE : 0) | (sat ? PTX_VIDEO_SAT : 0) | (product ? PTX_VIDEO_NEG_PRODUCT : 0) |
           (c ? PTX_VIDEO_NEG_C : 0) | scale << PTX_VIDEO_SCALE_AT |
           (uint64_t)scalar_part(p, ptx_operand_at(p, 1)) << PTX_VIDEO_A_PART_AT |
           (uint64_t)scalar_part(p, ptx_operand_at(p, 2)) << PTX_VIDEO_B_PART_AT;
    emit(p, PTX_LANE_video, imm);
}

/* vadd2 ... vset4; d->op is the operation, d->op_signed the number of elements. */
void ptx_lower_video_simd(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    bool is_set = d->op == PTX_VIDEO_SET;
    unsigned count = (unsigned)d->op_signed;
    uint64_t imm = (uint64_t)d->op | sign_flags(p, is_set ? 2 : 3) | (count == 4 ? PTX_VIDEO_FOUR : 0);
    refuse_negated(p);
    if (is_set)
        imm |= compare_flags(p);
    bool sat = !is_set && ptx_take_mod(p, PTX_M_SAT), adds = ptx_take_mod(p, PTX_M_ADD);
    if ((sat && adds) || ptx_operand_at(p, 3)->part)
        ptx_lower_unsupported(p, NULL);
    imm |= (sat ? PTX_VIDEO_SAT : 0) | (adds ? PTX_VIDEO_ACCUMULATE : 0);
    imm |= selected(p, ptx_operand_at(p, 1), count, 0) << PTX_VIDEO_A_SELECT_AT |
           selected(p, ptx_operand_at(p, 2), count, count) << PTX_VIDEO_B_SELECT_AT |
           mask_of(p, ptx_operand_at(p, 0), count) << PTX_VIDEO_MASK_AT;
    emit(p, PTX_LANE_video_simd, imm);
}
