/* f32 and f64: every rounding, and the approximations within the ISA's bounds. */
#include "ptx/conformance/soft.h"

#include "ptx/conformance/conform.h"

#include <math.h>
#include <string.h>

static bool is(const struct form *f, const char *name)
{
    return !strcmp(f->name, name);
}

static enum soft_round round_of(const struct form *f)
{
    return form_has(f, M_rz) ? SOFT_RZ : form_has(f, M_rm) ? SOFT_RM : form_has(f, M_rp) ? SOFT_RP : SOFT_RN;
}

static const struct soft_format *format_of(const struct form *f)
{
    return f->types[0] == T_F64 ? &soft_f64 : &soft_f32;
}

static uint64_t flushed(const struct form *f, uint64_t bits)
{
    return form_has(f, M_ftz) ? soft_flush(format_of(f), bits) : bits;
}

/* What .ftz and .sat make of a rounded result. */
static uint64_t finished(const struct form *f, uint64_t bits)
{
    const struct soft_format *format = format_of(f);
    bits = flushed(f, bits);
    if (!form_has(f, M_sat))
        return bits;
    struct soft value = soft_read(format, bits), one = soft_int(false, 1);
    if (value.kind == SOFT_NAN || value.negative)
        return 0;
    return soft_compare(value, one) > 0 ? soft_write(format, one, SOFT_RN) : bits;
}

static void ref_arith(const struct form *f, const uint64_t *in, uint64_t *out)
{
    const struct soft_format *format = format_of(f);
    enum soft_round round = round_of(f);
    struct soft a = soft_read(format, flushed(f, in[0])), b = soft_read(format, flushed(f, in[1])), result;
    if (is(f, "add"))
        result = soft_add_rounding(a, b, round);
    else if (is(f, "sub"))
        result = soft_add_rounding(a, soft_neg(b), round);
    else if (is(f, "mul"))
        result = soft_mul(a, b);
    else if (is(f, "div"))
        result = soft_div(a, b);
    else
        result = soft_add_rounding(soft_mul(a, b), soft_read(format, flushed(f, in[2])), round);
    out[0] = finished(f, soft_write(format, result, round));
}

static void ref_root(const struct form *f, const uint64_t *in, uint64_t *out)
{
    const struct soft_format *format = format_of(f);
    struct soft a = soft_read(format, flushed(f, in[0]));
    out[0] =
        finished(f, soft_write(format, is(f, "rcp") ? soft_div(soft_int(false, 1), a) : soft_sqrt(a), round_of(f)));
}

static void ref_sign(const struct form *f, const uint64_t *in, uint64_t *out)
{
    uint64_t sign = UINT64_C(1) << (format_of(f)->bits - 1), a = flushed(f, in[0]);
    if (is(f, "copysign"))
        out[0] = (in[1] & ~sign) | (in[0] & sign);
    else
        out[0] = is(f, "neg") ? a ^ sign : a & ~sign;
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
    if (!order) /* zeros of either sign */
        return x.negative == is_min ? a : b;
    return (order < 0) == is_min ? a : b;
}

static void ref_minmax(const struct form *f, const uint64_t *in, uint64_t *out)
{
    const struct soft_format *format = format_of(f);
    uint64_t a = flushed(f, in[0]), b = flushed(f, in[1]), sign = UINT64_C(1) << (format->bits - 1);
    uint64_t mask = form_has(f, M_abs) ? ~sign : UINT64_MAX;
    out[0] = lesser(format, a & mask, b & mask, is(f, "min"), form_has(f, M_NaN));
    if (form_has(f, M_xorsign) && soft_read(format, out[0]).kind != SOFT_NAN)
        out[0] = (out[0] & ~sign) | ((a ^ b) & sign);
}

static void ref_testp(const struct form *f, const uint64_t *in, uint64_t *out)
{
    const struct soft_format *format = format_of(f);
    struct soft a = soft_read(format, in[0]);
    bool subnormal = soft_subnormal(format, in[0]);
    if (form_has(f, M_finite))
        out[0] = a.kind == SOFT_FINITE;
    else if (form_has(f, M_infinite))
        out[0] = a.kind == SOFT_INFINITE;
    else if (form_has(f, M_number))
        out[0] = a.kind != SOFT_NAN;
    else if (form_has(f, M_notanumber))
        out[0] = a.kind == SOFT_NAN;
    else if (form_has(f, M_normal))
        out[0] = a.kind == SOFT_FINITE && !subnormal; /* zeros count as normal */
    else
        out[0] = subnormal;
}

/* Approximations: the exact value as a double. */
static double input(const struct form *f, uint64_t bits)
{
    return soft_double(soft_read(format_of(f), flushed(f, bits)));
}

static void put_double(const struct form *f, uint64_t *out, double value)
{
    if (form_has(f, M_ftz) &&
        fabs(value) < (f->types[0] == T_F64 ? 0x1p-1022 : 0x1p-126)) /* rounding up to it is near */
        value = copysign(0, value);
    memcpy(out, &value, 8);
}

static void approx_unary(const struct form *f, const uint64_t *in, uint64_t *out)
{
    long double x = input(f, in[0]), y;
    if (is(f, "rcp"))
        y = 1 / x;
    else if (is(f, "sqrt"))
        y = sqrtl(x);
    else if (is(f, "rsqrt"))
        y = 1 / sqrtl(x);
    else if (is(f, "sin"))
        y = sinl(x);
    else if (is(f, "cos"))
        y = cosl(x);
    else if (is(f, "lg2"))
        y = log2l(x);
    else if (is(f, "ex2"))
        y = exp2l(x);
    else
        y = tanhl(x);
    put_double(f, out, (double)y);
}

/* div.approx: beyond 2^126 the divisor's reciprocal has flushed away. */
static void approx_div(const struct form *f, const uint64_t *in, uint64_t *out)
{
    double x = input(f, in[0]), y = input(f, in[1]), size = fabs(y), value = x / y;
    if (form_has(f, M_approx) && size > 0x1p126 && isfinite(y))
        value = isinf(x) ? NAN : copysign(0, x) * copysign(1, y);
    put_double(f, out, isnan(x) ? NAN : value);
}

/* The upper 32 bits of the operand, and of the result, are all that there is. */
static void approx_f64(const struct form *f, const uint64_t *in, uint64_t *out)
{
    uint64_t a = is(f, "rcp") || form_has(f, M_ftz) ? soft_flush(&soft_f64, in[0]) : in[0];
    struct soft x = soft_read(&soft_f64, a);
    double value =
        soft_double(is(f, "rcp") ? soft_div(soft_int(false, 1), x) : soft_div(soft_int(false, 1), soft_sqrt(x)));
    if (fabs(value) < 0x1p-1022)
        value = copysign(0, value);
    memcpy(out, &value, 8);
}

#define ROUNDS "<.rn|.rz|.rm|.rp>"
#define NEAR(...) .bound = {__VA_ARGS__}

const struct conform_row rows_float[] = {
    {"add<|.rn|.rz|.rm|.rp><|.ftz><|.sat>.f32 $D, $a, $b", "f:ff", ref_arith},
    {"add<|.rn|.rz|.rm|.rp>.f64 $D, $a, $b", "d:dd", ref_arith, .any_nan = true},
    {"sub<|.rn|.rz|.rm|.rp><|.ftz><|.sat>.f32 $D, $a, $b", "f:ff", ref_arith},
    {"sub<|.rn|.rz|.rm|.rp>.f64 $D, $a, $b", "d:dd", ref_arith, .any_nan = true},
    {"mul<|.rn|.rz|.rm|.rp><|.ftz><|.sat>.f32 $D, $a, $b", "f:ff", ref_arith},
    {"mul<|.rn|.rz|.rm|.rp>.f64 $D, $a, $b", "d:dd", ref_arith, .any_nan = true},
    {"fma" ROUNDS "<|.ftz><|.sat>.f32 $D, $a, $b, $c", "f:fff", ref_arith},
    {"fma" ROUNDS ".f64 $D, $a, $b, $c", "d:ddd", ref_arith, .any_nan = true},
    {"mad" ROUNDS "<|.ftz><|.sat>.f32 $D, $a, $b, $c", "f:fff", ref_arith, .cases = 1024},
    {"mad" ROUNDS ".f64 $D, $a, $b, $c", "d:ddd", ref_arith, .any_nan = true, .cases = 1024},
    {"div" ROUNDS "<|.ftz>.f32 $D, $a, $b", "f:ff", ref_arith},
    {"div" ROUNDS ".f64 $D, $a, $b", "d:dd", ref_arith, .any_nan = true},
    {"div<.approx|.full><|.ftz>.f32 $D, $a, $b", "f:ff", approx_div, NEAR(.ulps = 2)},
    {"rcp" ROUNDS "<|.ftz>.f32 $D, $a", "f:f", ref_root},
    {"rcp" ROUNDS ".f64 $D, $a", "d:d", ref_root, .any_nan = true},
    {"rcp.approx<|.ftz>.f32 $D, $a", "f:f", approx_unary, NEAR(.ulps = 1)},
    {"rcp.approx.ftz.f64 $D, $a", "d:d", approx_f64, NEAR(.relative = 0x1p-19)},
    {"sqrt" ROUNDS "<|.ftz>.f32 $D, $a", "f:f", ref_root},
    {"sqrt" ROUNDS ".f64 $D, $a", "d:d", ref_root, .any_nan = true},
    {"sqrt.approx<|.ftz>.f32 $D, $a", "f:f", approx_unary, NEAR(.relative = 0x1p-23)},
    {"rsqrt.approx<|.ftz>.f32 $D, $a", "f:f", approx_unary, NEAR(.relative = 0x1p-22)},
    {"rsqrt.approx<|.ftz>.f64 $D, $a", "d:d", approx_f64, NEAR(.relative = 0x1p-20)},
    {"sin.approx<|.ftz>.f32 $D, $a", "f:f", approx_unary, NEAR(.absolute = 0x1p-20)},
    {"cos.approx<|.ftz>.f32 $D, $a", "f:f", approx_unary, NEAR(.absolute = 0x1p-20)},
    {"lg2.approx<|.ftz>.f32 $D, $a", "f:f", approx_unary, NEAR(.relative = 0x1p-22, .absolute = 0x1p-22)},
    {"ex2.approx<|.ftz>.f32 $D, $a", "f:f", approx_unary, NEAR(.ulps = 2)},
    {"tanh.approx.f32 $D, $a", "f:f", approx_unary, NEAR(.relative = 0x1p-11)},
    {"neg<|.ftz>.f32 $D, $a", "f:f", ref_sign, .any_nan = true},
    {"neg.f64 $D, $a", "d:d", ref_sign, .any_nan = true},
    {"abs<|.ftz>.f32 $D, $a", "f:f", ref_sign, .any_nan = true},
    {"abs.f64 $D, $a", "d:d", ref_sign, .any_nan = true},
    {"copysign.f32 $D, $a, $b", "f:ff", ref_sign},
    {"copysign.f64 $D, $a, $b", "d:dd", ref_sign},
    {"min<|.ftz><|.NaN><|.xorsign.abs>.f32 $D, $a, $b", "f:ff", ref_minmax},
    {"min.f64 $D, $a, $b", "d:dd", ref_minmax, .any_nan = true},
    {"max<|.ftz><|.NaN><|.xorsign.abs>.f32 $D, $a, $b", "f:ff", ref_minmax},
    {"max.f64 $D, $a, $b", "d:dd", ref_minmax, .any_nan = true},
    {"testp<.finite|.infinite|.number|.notanumber|.normal|.subnormal>.f32 $D, $a", "p:f", ref_testp},
    {"testp<.finite|.infinite|.number|.notanumber|.normal|.subnormal>.f64 $D, $a", "p:d", ref_testp},
};
const size_t rows_float_count = sizeof(rows_float) / sizeof(rows_float[0]);
