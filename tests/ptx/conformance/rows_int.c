/* Integer arithmetic. */
#include "ptx/conformance/ints.h"

#include <string.h>

static bool is(const struct form *f, const char *name)
{
    return !strcmp(f->name, name);
}

static void ref_add(const struct form *f, const uint64_t *in, uint64_t *out)
{
    wide a = typed(in[0], f->types[0]), b = typed(in[1], f->types[0]);
    wide value = is(f, "sub") ? a - b : a + b;
    out[0] = (uint64_t)(form_has(f, M_sat) ? clamped(value, 32, true) : value);
}

/* The product as a pattern of twice the bits; 128 of them hold it even when it has no sign. */
static unsigned __int128 product(const struct form *f, const uint64_t *in)
{
    return (unsigned __int128)typed(in[0], f->types[0]) * (unsigned __int128)typed(in[1], f->types[0]);
}

static void ref_mul(const struct form *f, const uint64_t *in, uint64_t *out)
{
    unsigned bits = type_bits(f->types[0]);
    unsigned __int128 p = product(f, in), result = form_has(f, M_hi) ? p >> bits : p;
    if (is(f, "mad") && form_has(f, M_sat)) {
        wide high = value_of((uint64_t)(p >> 32), 32, true);
        result = (unsigned __int128)clamped(high + value_of(in[2], 32, true), 32, true);
    } else if (is(f, "mad")) {
        result += in[2];
    }
    out[0] = (uint64_t)result;
}

static void ref_mul24(const struct form *f, const uint64_t *in, uint64_t *out)
{
    bool is_signed = f->types[0] == T_S32, is_mad = is(f, "mad24");
    wide p = value_of(in[0], 24, is_signed) * value_of(in[1], 24, is_signed);
    wide taken =
        form_has(f, M_hi) ? value_of((uint64_t)(p >> 16), 32, is_signed) : value_of((uint64_t)p, 32, is_signed);
    wide result = is_mad ? taken + value_of(in[2], 32, is_signed) : taken;
    out[0] = (uint64_t)(form_has(f, M_sat) ? clamped(result, 32, true) : result);
}

static void ref_div(const struct form *f, const uint64_t *in, uint64_t *out)
{
    wide a = typed(in[0], f->types[0]), b = typed(in[1], f->types[0]);
    if (b == 0)
        out[0] = is(f, "div") ? UINT64_MAX : in[0];
    else
        out[0] = (uint64_t)(is(f, "div") ? a / b : a % b);
}

static void ref_sad(const struct form *f, const uint64_t *in, uint64_t *out)
{
    wide a = typed(in[0], f->types[0]), b = typed(in[1], f->types[0]);
    out[0] = in[2] + (uint64_t)(a < b ? b - a : a - b);
}

static void ref_unary(const struct form *f, const uint64_t *in, uint64_t *out)
{
    wide a = typed(in[0], f->types[0]);
    out[0] = (uint64_t)(is(f, "neg") || a < 0 ? -a : a);
}

static void ref_minmax(const struct form *f, const uint64_t *in, uint64_t *out)
{
    wide a = typed(in[0], f->types[0]), b = typed(in[1], f->types[0]);
    wide result = is(f, "min") ? (a < b ? a : b) : (a > b ? a : b);
    out[0] = (uint64_t)(form_has(f, M_relu) && result < 0 ? 0 : result);
}

/* Two halves on their own. */
static void ref_pairs(const struct form *f, const uint64_t *in, uint64_t *out)
{
    bool is_signed = f->types[0] == T_S16X2;
    for (unsigned shift = 0; shift < 32; shift += 16) {
        wide a = value_of(in[0] >> shift, 16, is_signed), b = value_of(in[1] >> shift, 16, is_signed);
        wide result = is(f, "add") ? a + b : is(f, "min") ? (a < b ? a : b) : (a > b ? a : b);
        if (form_has(f, M_relu) && result < 0)
            result = 0;
        out[0] |= ((uint64_t)result & 0xffff) << shift;
    }
}

/* The carry flag shows in a sum of nothing after the instruction; before it, a sum of $d with itself sets it. Without .cc
 * the instruction leaves the flag alone. */
static void ref_carry(const struct form *f, const uint64_t *in, uint64_t *out)
{
    unsigned bits = type_bits(f->types[0]);
    bool is_mad = f->name[0] == 'm', reads = f->name[strlen(f->name) - 1] == 'c', is_sub = f->name[0] == 's';
    unsigned __int128 p = product(f, in);
    wide a = value_of(is_mad ? (uint64_t)(form_has(f, M_hi) ? p >> bits : p) : in[0], bits, false);
    wide b = value_of(in[is_mad ? 2 : 1], bits, false);
    bool before = is_sub ? value_of(in[3], bits, false) != 0 : in[3] >> (bits - 1) & 1;
    wide result = is_sub ? a - b - (reads && before) : a + b + (reads && before);
    bool after = is_sub ? result < 0 : result >> bits & 1;
    out[0] = (uint64_t)result;
    out[1] = is_sub ? 0 - in[3] : in[3] + in[3];
    bool flag = form_has(f, M_cc) ? after : before;
    out[2] = is_sub ? (uint64_t) - (wide)flag : flag;
}

static void ref_dot4(const struct form *f, const uint64_t *in, uint64_t *out)
{
    wide sum = (wide)in[2];
    for (unsigned i = 0; i < 4; i++)
        sum += value_of(in[0] >> 8 * i, 8, f->types[0] == T_S32) * value_of(in[1] >> 8 * i, 8, f->types[1] == T_S32);
    out[0] = (uint64_t)sum;
}

static void ref_dot2(const struct form *f, const uint64_t *in, uint64_t *out)
{
    wide sum = (wide)in[2];
    unsigned first = form_has(f, M_hi) ? 2 : 0;
    for (unsigned i = 0; i < 2; i++)
        sum += value_of(in[0] >> 16 * i, 16, f->types[0] == T_S32) *
               value_of(in[1] >> 8 * (first + i), 8, f->types[1] == T_S32);
    out[0] = (uint64_t)sum;
}

#define WIDTHS(name, operands, w, i, l, ref)                                                                           \
    {name "<.u16|.s16> " operands, w, ref}, {name "<.u32|.s32> " operands, i, ref},                                    \
    {                                                                                                                  \
        name "<.u64|.s64> " operands, l, ref                                                                           \
    }

const struct conform_row rows_int[] = {
    WIDTHS("add", "$D, $a, $b", "w:ww", "i:ii", "l:ll", ref_add),
    {"add.sat.s32 $D, $a, $b", "i:ii", ref_add},
    {"add<.u16x2|.s16x2> $D, $a, $b", "i:qq", ref_pairs},
    {"add.cc.u32 $E, $d, $d; # add.cc<.u32|.s32> $D, $a, $b; addc.u32 $F, 0, 0", "iii:iiii", ref_carry},
    {"add.cc.u64 $E, $d, $d; # add.cc<.u64|.s64> $D, $a, $b; addc.u64 $F, 0, 0", "lll:llll", ref_carry},
    {"add.cc.u32 $E, $d, $d; # addc<|.cc><.u32|.s32> $D, $a, $b; addc.u32 $F, 0, 0", "iii:iiii", ref_carry},
    {"add.cc.u64 $E, $d, $d; # addc<|.cc><.u64|.s64> $D, $a, $b; addc.u64 $F, 0, 0", "lll:llll", ref_carry},
    WIDTHS("sub", "$D, $a, $b", "w:ww", "i:ii", "l:ll", ref_add),
    {"sub.sat.s32 $D, $a, $b", "i:ii", ref_add},
    {"sub.cc.u32 $E, 0, $d; # sub.cc<.u32|.s32> $D, $a, $b; subc.u32 $F, 0, 0", "iii:iiii", ref_carry},
    {"sub.cc.u64 $E, 0, $d; # sub.cc<.u64|.s64> $D, $a, $b; subc.u64 $F, 0, 0", "lll:llll", ref_carry},
    {"sub.cc.u32 $E, 0, $d; # subc<|.cc><.u32|.s32> $D, $a, $b; subc.u32 $F, 0, 0", "iii:iiii", ref_carry},
    {"sub.cc.u64 $E, 0, $d; # subc<|.cc><.u64|.s64> $D, $a, $b; subc.u64 $F, 0, 0", "lll:llll", ref_carry},
    WIDTHS("mul<.lo|.hi>", "$D, $a, $b", "w:ww", "i:ii", "l:ll", ref_mul),
    {"mul.wide<.u16|.s16> $D, $a, $b", "i:ww", ref_mul},
    {"mul.wide<.u32|.s32> $D, $a, $b", "l:ii", ref_mul},
    WIDTHS("mad<.lo|.hi>", "$D, $a, $b, $c", "w:www", "i:iii", "l:lll", ref_mul),
    {"mad.hi.sat.s32 $D, $a, $b, $c", "i:iii", ref_mul},
    {"mad.wide<.u16|.s16> $D, $a, $b, $c", "i:wwi", ref_mul},
    {"mad.wide<.u32|.s32> $D, $a, $b, $c", "l:iil", ref_mul},
    {"add.cc.u32 $E, $d, $d; # mad<.lo|.hi>.cc<.u32|.s32> $D, $a, $b, $c; addc.u32 $F, 0, 0", "iii:iiii", ref_carry},
    {"add.cc.u64 $E, $d, $d; # mad<.lo|.hi>.cc<.u64|.s64> $D, $a, $b, $c; addc.u64 $F, 0, 0", "lll:llll", ref_carry},
    {"add.cc.u32 $E, $d, $d; # madc<.lo|.hi><|.cc><.u32|.s32> $D, $a, $b, $c; addc.u32 $F, 0, 0", "iii:iiii",
     ref_carry},
    {"add.cc.u64 $E, $d, $d; # madc<.lo|.hi><|.cc><.u64|.s64> $D, $a, $b, $c; addc.u64 $F, 0, 0", "lll:llll",
     ref_carry},
    {"mul24<.lo|.hi><.u32|.s32> $D, $a, $b", "i:ii", ref_mul24},
    {"mad24<.lo|.hi><.u32|.s32> $D, $a, $b, $c", "i:iii", ref_mul24},
    {"mad24.hi.sat.s32 $D, $a, $b, $c", "i:iii", ref_mul24},
    WIDTHS("sad", "$D, $a, $b, $c", "w:www", "i:iii", "l:lll", ref_sad),
    WIDTHS("div", "$D, $a, $b", "w:ww", "i:ii", "l:ll", ref_div),
    WIDTHS("rem", "$D, $a, $b", "w:ww", "i:ii", "l:ll", ref_div),
    {"abs.s16 $D, $a", "w:w", ref_unary},
    {"abs.s32 $D, $a", "i:i", ref_unary},
    {"abs.s64 $D, $a", "l:l", ref_unary},
    {"neg.s16 $D, $a", "w:w", ref_unary},
    {"neg.s32 $D, $a", "i:i", ref_unary},
    {"neg.s64 $D, $a", "l:l", ref_unary},
    WIDTHS("min", "$D, $a, $b", "w:ww", "i:ii", "l:ll", ref_minmax),
    {"min.relu.s32 $D, $a, $b", "i:ii", ref_minmax},
    {"min<.u16x2|.s16x2|.relu.s16x2> $D, $a, $b", "i:qq", ref_pairs},
    WIDTHS("max", "$D, $a, $b", "w:ww", "i:ii", "l:ll", ref_minmax),
    {"max.relu.s32 $D, $a, $b", "i:ii", ref_minmax},
    {"max<.u16x2|.s16x2|.relu.s16x2> $D, $a, $b", "i:qq", ref_pairs},
    {"dp4a<.u32|.s32><.u32|.s32> $D, $a, $b, $c", "i:qqi", ref_dot4},
    {"dp2a<.lo|.hi><.u32|.s32><.u32|.s32> $D, $a, $b, $c", "i:qqi", ref_dot2},
};
const size_t rows_int_count = sizeof(rows_int) / sizeof(rows_int[0]);
