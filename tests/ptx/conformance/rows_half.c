/* f16 and bf16, alone and in pairs. */
#include "ptx/conformance/soft.h"

#include "ptx/conformance/conform.h"

#include <math.h>
#include <string.h>

static bool is(const struct form *f, const char *name)
{
    return !strcmp(f->name, name);
}

static const struct soft_format *format_of(const struct form *f)
{
    return f->types[0] == T_BF16 || f->types[0] == T_BF16X2 ? &soft_bf16 : &soft_f16;
}

static unsigned parts_of(const struct form *f)
{
    return f->types[0] == T_F16X2 || f->types[0] == T_BF16X2 ? 2 : 1;
}

static uint64_t flushed(const struct form *f, uint64_t bits)
{
    return form_has(f, M_ftz) ? soft_flush(format_of(f), bits) : bits;
}

static uint64_t finished(const struct form *f, uint64_t bits)
{
    const struct soft_format *format = format_of(f);
    bits = flushed(f, bits);
    struct soft value = soft_read(format, bits), one = soft_int(false, 1);
    if (form_has(f, M_relu) && value.kind != SOFT_NAN && value.negative)
        return 0;
    if (!form_has(f, M_sat))
        return bits;
    if (value.kind == SOFT_NAN || value.negative)
        return 0;
    return soft_compare(value, one) > 0 ? soft_write(format, one, SOFT_RN) : bits;
}

static uint64_t arith(const struct form *f, uint64_t x, uint64_t y, uint64_t z)
{
    const struct soft_format *format = format_of(f);
    struct soft a = soft_read(format, flushed(f, x)), b = soft_read(format, flushed(f, y)), result;
    if (is(f, "add"))
        result = soft_add(a, b);
    else if (is(f, "sub"))
        result = soft_add(a, soft_neg(b));
    else if (is(f, "mul"))
        result = soft_mul(a, b);
    else
        result = soft_fma(a, b, soft_read(format, flushed(f, z)));
    return finished(f, soft_write(format, result, SOFT_RN));
}

static void ref_arith(const struct form *f, const uint64_t *in, uint64_t *out)
{
    for (unsigned i = 0; i < 16 * parts_of(f); i += 16)
        out[0] |= arith(f, in[0] >> i & 0xffff, in[1] >> i & 0xffff, in[2] >> i & 0xffff) << i;
}

static void ref_sign(const struct form *f, const uint64_t *in, uint64_t *out)
{
    for (unsigned i = 0; i < 16 * parts_of(f); i += 16) {
        uint64_t a = flushed(f, in[0] >> i & 0xffff);
        out[0] |= (is(f, "neg") ? a ^ 0x8000 : a & 0x7fff) << i;
    }
}

static uint64_t lesser(const struct soft_format *format, uint64_t a, uint64_t b, bool is_min, bool nan)
{
    struct soft x = soft_read(format, a), y = soft_read(format, b);
    if (x.kind == SOFT_NAN || y.kind == SOFT_NAN) {
        if (nan || x.kind == y.kind)
            return format->nan;
        return x.kind == SOFT_NAN ? b : a;
    }
    int order = soft_compare(x, y);
    if (!order)
        return x.negative == is_min ? a : b;
    return (order < 0) == is_min ? a : b;
}

static void ref_minmax(const struct form *f, const uint64_t *in, uint64_t *out)
{
    const struct soft_format *format = format_of(f);
    uint64_t mask = form_has(f, M_abs) ? 0x7fff : 0xffff;
    for (unsigned i = 0; i < 16 * parts_of(f); i += 16) {
        uint64_t a = flushed(f, in[0] >> i & 0xffff), b = flushed(f, in[1] >> i & 0xffff);
        uint64_t result = lesser(format, a & mask, b & mask, is(f, "min"), form_has(f, M_NaN));
        if (form_has(f, M_xorsign) && soft_read(format, result).kind != SOFT_NAN)
            result = (result & 0x7fff) | ((a ^ b) & 0x8000);
        out[0] |= result << i;
    }
}

static void approx(const struct form *f, const uint64_t *in, uint64_t *out)
{
    for (unsigned i = 0; i < parts_of(f); i++) {
        double x = soft_double(soft_read(format_of(f), flushed(f, in[0] >> 16 * i & 0xffff)));
        double y = is(f, "ex2") ? (double)exp2l(x) : (double)tanhl(x);
        if (form_has(f, M_ftz) && fabs(y) < 0x1p-126)
            y = 0;
        memcpy(&out[i], &y, 8);
    }
}

#define ONE(k) k
#define TWO(k) k k
#define THREE(k) k k k
#define BOTH(name, mods, operands, count, ref, one, pair, t)                                                           \
    {name mods "." t " " operands, one ":" count(one), ref},                                                           \
    {                                                                                                                  \
        name mods "." t "x2 " operands, pair ":" count(pair), ref                                                      \
    }
#define F16(name, mods, operands, count, ref) BOTH(name, mods, operands, count, ref, "h", "x", "f16")
#define BF16(name, mods, operands, count, ref) BOTH(name, mods, operands, count, ref, "b", "y", "bf16")

const struct conform_row rows_half[] = {
    F16("add", "<|.rn><|.ftz><|.sat>", "$D, $a, $b", TWO, ref_arith),
    BF16("add", "<|.rn>", "$D, $a, $b", TWO, ref_arith),
    F16("sub", "<|.rn><|.ftz><|.sat>", "$D, $a, $b", TWO, ref_arith),
    BF16("sub", "<|.rn>", "$D, $a, $b", TWO, ref_arith),
    F16("mul", "<|.rn><|.ftz><|.sat>", "$D, $a, $b", TWO, ref_arith),
    BF16("mul", "<|.rn>", "$D, $a, $b", TWO, ref_arith),
    F16("fma", ".rn<|.ftz><|.sat|.relu>", "$D, $a, $b, $c", THREE, ref_arith),
    BF16("fma", ".rn<|.relu>", "$D, $a, $b, $c", THREE, ref_arith),
    {"neg<|.ftz>.f16 $D, $a", "h:h", ref_sign, .any_nan = true},
    {"neg<|.ftz>.f16x2 $D, $a", "x:x", ref_sign, .any_nan = true},
    {"neg.bf16 $D, $a", "b:b", ref_sign, .any_nan = true},
    {"neg.bf16x2 $D, $a", "y:y", ref_sign, .any_nan = true},
    {"abs<|.ftz>.f16 $D, $a", "h:h", ref_sign, .any_nan = true},
    {"abs<|.ftz>.f16x2 $D, $a", "x:x", ref_sign, .any_nan = true},
    {"abs.bf16 $D, $a", "b:b", ref_sign, .any_nan = true},
    {"abs.bf16x2 $D, $a", "y:y", ref_sign, .any_nan = true},
    F16("min", "<|.ftz><|.NaN><|.xorsign.abs>", "$D, $a, $b", TWO, ref_minmax),
    BF16("min", "<|.NaN><|.xorsign.abs>", "$D, $a, $b", TWO, ref_minmax),
    F16("max", "<|.ftz><|.NaN><|.xorsign.abs>", "$D, $a, $b", TWO, ref_minmax),
    BF16("max", "<|.NaN><|.xorsign.abs>", "$D, $a, $b", TWO, ref_minmax),
    {"ex2.approx.f16 $D, $a", "h:h", approx, .bound = {.relative = 0x1.1p-10, .absolute = 0x1p-25}},
    {"ex2.approx.f16x2 $D, $a", "x:x", approx, .bound = {.relative = 0x1.1p-10, .absolute = 0x1p-25}},
    {"ex2.approx.ftz.bf16 $D, $a", "b:b", approx, .bound = {.relative = 0x1p-7}},
    {"ex2.approx.ftz.bf16x2 $D, $a", "y:y", approx, .bound = {.relative = 0x1p-7}},
    {"tanh.approx.f16 $D, $a", "h:h", approx, .bound = {.ulps = 1, .absolute = 0x1.02p-11}},
    {"tanh.approx.f16x2 $D, $a", "x:x", approx, .bound = {.ulps = 1, .absolute = 0x1.02p-11}},
    {"tanh.approx.bf16 $D, $a", "b:b", approx, .bound = {.ulps = 1, .absolute = 0x1p-8}},
    {"tanh.approx.bf16x2 $D, $a", "y:y", approx, .bound = {.ulps = 1, .absolute = 0x1p-8}},
};
const size_t rows_half_count = sizeof(rows_half) / sizeof(rows_half[0]);
