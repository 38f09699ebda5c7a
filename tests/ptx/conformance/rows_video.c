/* Video instructions. */
#include "ptx/conformance/ints.h"

#include <string.h>

/* What follows the operand's name and a dot; "" if nothing does. */
static const char *part_of(const struct form *f, char operand)
{
    char name[3] = {'$', operand, '\0'};
    const char *at = strstr(f->text, name) + 2;
    return *at == '.' ? at + 1 : "";
}

static bool is_negated(const struct form *f, char operand)
{
    char name[4] = {'-', '$', operand, '\0'};
    return strstr(f->text, name);
}

/* A scalar operand: all, a byte or a half, with the type's sign. */
static wide operand(const struct form *f, char name, uint64_t value, enum form_type t)
{
    const char *part = part_of(f, name);
    unsigned bits = *part == 'b' ? 8 : *part == 'h' ? 16 : 32;
    return value_of(value >> (*part ? bits * (unsigned)(part[1] - '0') : 0), bits, t == T_S32);
}

static bool compares(const struct form *f, wide a, wide b)
{
    return form_has(f, M_eq)   ? a == b
           : form_has(f, M_ne) ? a != b
           : form_has(f, M_lt) ? a < b
           : form_has(f, M_le) ? a <= b
           : form_has(f, M_gt) ? a > b
                               : a >= b;
}

static wide halved_up(wide sum)
{
    wide rounded = sum >= 0 ? sum + 1 : sum;
    return rounded >= 0 ? rounded / 2 : -((-rounded + 1) / 2); /* down */
}

/* By the instruction's name, without the v and the number of elements. */
static wide operation(const struct form *f, wide a, wide b)
{
    const char *op = f->name + 1;
    if (!strncmp(op, "set", 3))
        return compares(f, a, b);
    if (!strncmp(op, "add", 3))
        return a + b;
    if (!strncmp(op, "sub", 3))
        return a - b;
    if (!strncmp(op, "abs", 3))
        return a < b ? b - a : a - b;
    if (!strncmp(op, "min", 3))
        return a < b ? a : b;
    if (!strncmp(op, "max", 3))
        return a < b ? b : a;
    if (!strncmp(op, "avrg", 4))
        return halved_up(a + b);
    unsigned n = (unsigned)(form_has(f, M_wrap) ? b % 32 : b > 32 ? 32 : b);
    /* NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): n is at most 32 */
    wide scale = (wide)1 << n;
    return !strncmp(op, "shl", 3) ? a * scale : a >= 0 ? a / scale : -((-a + scale - 1) / scale);
}

static void ref_scalar(const struct form *f, const uint64_t *in, uint64_t *out)
{
    bool is_set = !strcmp(f->name, "vset"), is_signed = !is_set && f->types[0] == T_S32;
    enum form_type at = f->types[is_set ? 0 : 1], bt = f->types[is_set ? 1 : 2];
    wide result = operation(f, operand(f, 'a', in[0], at), operand(f, 'b', in[1], bt));
    const char *part = part_of(f, 'D');
    unsigned bits = *part == 'b' ? 8 : *part == 'h' ? 16 : 32;
    if (form_has(f, M_sat))
        result = clamped(result, bits, is_signed);
    if (*part) {
        unsigned shift = bits * (unsigned)(part[1] - '0');
        uint64_t mask = ((UINT64_C(1) << bits) - 1) << shift;
        out[0] = (in[2] & ~mask) | ((uint64_t)result << shift & mask);
        return;
    }
    wide first = value_of((uint64_t)result, 32, is_signed), c = value_of(in[2], 32, is_signed);
    if (form_has(f, M_add))
        first += c;
    else if (form_has(f, M_min))
        first = first < c ? first : c;
    else if (form_has(f, M_max))
        first = first > c ? first : c;
    out[0] = (uint64_t)first;
}

/* (a * b) + c, one of the two negated, plus one; scaled; clamped to the sign that the terms give it. */
static void ref_vmad(const struct form *f, const uint64_t *in, uint64_t *out)
{
    bool minus_product = is_negated(f, 'a') != is_negated(f, 'b'), minus_c = is_negated(f, 'c');
    bool is_signed = f->types[1] == T_S32 || f->types[2] == T_S32 || minus_product || minus_c;
    wide product = operand(f, 'a', in[0], f->types[1]) * operand(f, 'b', in[1], f->types[2]);
    wide c = value_of(in[2], 32, is_signed), sum = (minus_product ? -product : product) + (minus_c ? -c : c);
    sum += form_has(f, M_po);
    wide scale = form_has(f, M_shr7) ? 128 : form_has(f, M_shr15) ? 32768 : 1;
    wide result = sum >= 0 ? sum / scale : -((-sum + scale - 1) / scale);
    out[0] = (uint64_t)(form_has(f, M_sat) ? clamped(result, 32, is_signed) : result);
}

static void ref_simd(const struct form *f, const uint64_t *in, uint64_t *out)
{
    bool is_set = !strncmp(f->name, "vset", 4);
    unsigned count = (unsigned)(f->name[strlen(f->name) - 1] - '0'), bits = 32 / count;
    enum form_type at = f->types[is_set ? 0 : 1], bt = f->types[is_set ? 1 : 2];
    const char *mask = part_of(f, 'D'), *a_part = part_of(f, 'a'), *b_part = part_of(f, 'b');
    uint64_t both = in[1] << 32 | in[0], element = (UINT64_C(1) << bits) - 1;
    out[0] = in[2];
    for (unsigned i = 0; i < count; i++) {
        bool written = !*mask;
        for (const char *c = mask; *mask && (*c == *mask || (*c >= '0' && *c <= '9')); c++)
            written = written || *c == (char)('0' + i);
        if (!written)
            continue;
        unsigned a_from = *a_part ? (unsigned)(a_part[count - i] - '0') : i;
        unsigned b_from = *b_part ? (unsigned)(b_part[count - i] - '0') : count + i;
        wide value = operation(f, value_of(both >> bits * a_from, bits, at == T_S32),
                               value_of(both >> bits * b_from, bits, bt == T_S32));
        if (form_has(f, M_sat))
            value = clamped(value, bits, f->types[0] == T_S32);
        if (form_has(f, M_add))
            out[0] += (uint64_t)value;
        else
            out[0] = (out[0] & ~(element << bits * i)) | ((uint64_t)value & element) << bits * i;
    }
}

#define T "<.u32|.s32>"
#define PARTS "<.b0|.b1|.b2|.b3|.h0|.h1>"
#define CMP "<.eq|.ne|.lt|.le|.gt|.ge>"
#define OP2 "<.add|.min|.max>"
#define SCALAR(name, types, mods, some_types)                                                                          \
    {name types mods " $D, $a, $b", "i:ii", ref_scalar},                                                               \
        {name types mods OP2 " $D, $a, $b, $c", "i:qqi", ref_scalar, .cases = 768},                                    \
        {name some_types mods " $D" PARTS ", $a, $b, $c", "i:qqi", ref_scalar, .cases = 512},                          \
        {name some_types mods " $D, $a" PARTS ", $b", "i:qi", ref_scalar, .cases = 512},                               \
    {                                                                                                                  \
        name some_types mods " $D, $a, $b" PARTS, "i:iq", ref_scalar, .cases = 512                                     \
    }
#define PAIRS(name, types, mods, accumulates, some_types)                                                              \
    {name "2" types mods " $D, $a, $b, $c", "i:qqi", ref_simd, .cases = 768},                                          \
        {name "2" types accumulates " $D, $a, $b, $c", "i:qqi", ref_simd, .cases = 768},                               \
    {                                                                                                                  \
        name "2" some_types " $D<.h0|.h1|.h10>, $a<|.h32|.h03|.h21>, $b<|.h00|.h13>, $c", "i:qqi", ref_simd,           \
            .cases = 256                                                                                               \
    }
#define QUADS(name, types, mods, accumulates, some_types)                                                              \
    {name "4" types mods " $D, $a, $b, $c", "i:qqi", ref_simd, .cases = 768},                                          \
        {name "4" types accumulates " $D, $a, $b, $c", "i:qqi", ref_simd, .cases = 768},                               \
    {                                                                                                                  \
        name "4" some_types " $D<.b0|.b1|.b2|.b3|.b10|.b31|.b320|.b3210>, $a<|.b7654|.b0426>, $b<|.b1133>, $c",        \
            "i:qqi", ref_simd, .cases = 256                                                                            \
    }
#define SIMD(name)                                                                                                     \
    PAIRS(name, T T T, "<|.sat>", ".add", ".s32.u32.s32"), QUADS(name, T T T, "<|.sat>", ".add", ".s32.u32.s32")

const struct conform_row rows_video[] = {
    SCALAR("vadd", T T T, "<|.sat>", T ".s32.u32"),
    SCALAR("vsub", T T T, "<|.sat>", T ".s32.u32"),
    SCALAR("vabsdiff", T T T, "<|.sat>", T ".s32.u32"),
    SCALAR("vmin", T T T, "<|.sat>", T ".s32.u32"),
    SCALAR("vmax", T T T, "<|.sat>", T ".s32.u32"),
    SCALAR("vset", T T, CMP, ".u32.s32"),
    SCALAR("vshl", T T ".u32", "<|.sat><.clamp|.wrap>", T ".s32.u32"),
    SCALAR("vshr", T T ".u32", "<|.sat><.clamp|.wrap>", T ".s32.u32"),
    {"vmad" T T T "<|.po><|.sat><|.shr7|.shr15> $D, $a, $b, $c", "i:iii", ref_vmad, .cases = 1024},
    {"vmad" T T T "<|.sat><|.shr7|.shr15> $D, <-$a, $b|$a, -$b|-$a, -$b>, $c", "i:iii", ref_vmad, .cases = 512},
    {"vmad" T ".s32" T "<|.sat><|.shr7|.shr15> $D, $a, $b, -$c", "i:iii", ref_vmad, .cases = 512},
    {"vmad.s32.u32.u32 $D, $a, $b, -$c", "i:iii", ref_vmad, .cases = 512},
    {"vmad.s32.s32.u32 $D, $a" PARTS ", $b" PARTS ", $c", "i:qqi", ref_vmad, .cases = 256},
    SIMD("vadd"),
    SIMD("vsub"),
    SIMD("vavrg"),
    SIMD("vabsdiff"),
    SIMD("vmin"),
    SIMD("vmax"),
    PAIRS("vset", T T, CMP, CMP ".add", ".u32.s32.lt"),
    QUADS("vset", T T, CMP, CMP ".add", ".u32.s32.lt"),
};
const size_t rows_video_count = sizeof(rows_video) / sizeof(rows_video[0]);
