/* Models of the floating-point instructions. Exact ones come from wider arithmetic or the C library, not from the engine. */
#include "ptx/ops.h"

#include <fenv.h>
#include <math.h>
#include <string.h>

static float f(uint64_t bits)
{
    uint32_t low = (uint32_t)bits;
    float value;
    memcpy(&value, &low, 4);
    return value;
}
static double d(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, 8);
    return value;
}
static uint64_t fb(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return isnan(value) ? 0x7fffffff : bits;
}
static uint64_t db(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, 8);
    return isnan(value) ? UINT64_C(0x7ff8000000000000) : bits;
}
static float ftz(float value)
{
    return fpclassify(value) == FP_SUBNORMAL ? copysignf(0, value) : value;
}
static float sat(float value)
{
    return value > 0 ? fminf(value, 1) : 0;
}

#define MODEL(name, expr)                                                                                              \
    static uint64_t name(uint64_t a, uint64_t b, uint64_t c)                                                           \
    {                                                                                                                  \
        (void)a, (void)b, (void)c;                                                                                     \
        return (expr);                                                                                                 \
    }
/* In a rounding mode of the processor; volatile keeps the operation inside. */
#define ROUNDED(name, mode, type, expr, to, from)                                                                      \
    static uint64_t name(uint64_t a, uint64_t b, uint64_t c)                                                           \
    {                                                                                                                  \
        volatile type x = from(a), y = from(b), z = from(c), r;                                                        \
        (void)x, (void)y, (void)z;                                                                                     \
        fesetround(mode);                                                                                              \
        r = (expr);                                                                                                    \
        fesetround(FE_TONEAREST);                                                                                      \
        return to(r);                                                                                                  \
    }
#define FOUR(name, type, expr, to, from)                                                                               \
    ROUNDED(name##_rn, FE_TONEAREST, type, expr, to, from)                                                             \
    ROUNDED(name##_rz, FE_TOWARDZERO, type, expr, to, from)                                                            \
    ROUNDED(name##_rm, FE_DOWNWARD, type, expr, to, from)                                                              \
    ROUNDED(name##_rp, FE_UPWARD, type, expr, to, from)
FOUR(addf, float, x + y, fb, f)
FOUR(subf, float, x - y, fb, f)
FOUR(mulf, float, x *y, fb, f)
FOUR(fmaf_, float, fmaf(x, y, z), fb, f)
FOUR(divf, float, x / y, fb, f)
FOUR(rcpf, float, 1.0f / x, fb, f)
FOUR(sqrtf_, float, sqrtf(x), fb, f)
FOUR(addd, double, x + y, db, d)
FOUR(subd, double, x - y, db, d)
FOUR(muld, double, x *y, db, d)
FOUR(fmad, double, fma(x, y, z), db, d)
FOUR(divd, double, x / y, db, d)
FOUR(rcpd, double, 1.0 / x, db, d)
FOUR(sqrtd, double, sqrt(x), db, d)

MODEL(addf_ftz, fb(ftz(ftz(f(a)) + ftz(f(b)))))
MODEL(mulf_sat, fb(sat(f(a) * f(b))))
MODEL(fmaf_ftz_sat, fb(sat(ftz(fmaf(ftz(f(a)), ftz(f(b)), ftz(f(c)))))))
MODEL(negf, a ^ 0x80000000)
MODEL(absf, a & 0x7fffffff)
MODEL(negd, a ^ (UINT64_C(1) << 63))
MODEL(absd, a & ~(UINT64_C(1) << 63))
static uint64_t minf_(uint64_t a, uint64_t b, uint64_t c)
{
    (void)c;
    if (isnan(f(a)) || isnan(f(b)))
        return isnan(f(a)) ? (isnan(f(b)) ? 0x7fffffff : b) : a;
    if (f(a) == 0 && f(b) == 0)
        return signbit(f(a)) ? a : b;
    return f(a) < f(b) ? a : b;
}
static uint64_t maxf_(uint64_t a, uint64_t b, uint64_t c)
{
    (void)c;
    if (isnan(f(a)) || isnan(f(b)))
        return isnan(f(a)) ? (isnan(f(b)) ? 0x7fffffff : b) : a;
    if (f(a) == 0 && f(b) == 0)
        return signbit(f(a)) ? b : a;
    return f(a) > f(b) ? a : b;
}
static uint64_t mind(uint64_t a, uint64_t b, uint64_t c)
{
    (void)c;
    if (isnan(d(a)) || isnan(d(b)))
        return isnan(d(a)) ? (isnan(d(b)) ? UINT64_C(0x7ff8000000000000) : b) : a;
    if (d(a) == 0 && d(b) == 0)
        return signbit(d(a)) ? a : b;
    return d(a) < d(b) ? a : b;
}
MODEL(copysign_, (a & 0x80000000) | (b & 0x7fffffff))
MODEL(ex2, fb((float)exp2(f(a))))
MODEL(lg2, fb((float)log2(f(a))))
MODEL(sine, fb((float)sin(f(a))))
MODEL(cosine, fb((float)cos(f(a))))
MODEL(tanh_, fb((float)tanh(f(a))))
MODEL(rsqrt, fb((float)(1 / sqrt(f(a)))))
MODEL(ex2_ftz, fb(ftz((float)exp2(ftz(f(a))))))
static uint64_t div_approx(uint64_t a, uint64_t b, uint64_t c)
{
    (void)c;
    if (fabsf(f(b)) > 0x1p126f && !isinf(f(b)) && !isnan(f(b)))
        return isnan(f(a)) || isinf(f(a)) ? 0x7fffffff : (a ^ b) & 0x80000000;
    return fb(f(a) / f(b));
}
MODEL(rsqrtd, db(1 / sqrt(d(a))))

#define COMPARES(suffix, of)                                                                                           \
    MODEL(eq##suffix, of(a) == of(b))                                                                                  \
    MODEL(ne##suffix, of(a) != of(b) && !isunordered(of(a), of(b)))                                                    \
    MODEL(lt##suffix, isless(of(a), of(b)))                                                                            \
    MODEL(le##suffix, islessequal(of(a), of(b)))                                                                       \
    MODEL(gt##suffix, isgreater(of(a), of(b)))                                                                         \
    MODEL(ge##suffix, isgreaterequal(of(a), of(b)))                                                                    \
    MODEL(equ##suffix, isunordered(of(a), of(b)) || of(a) == of(b))                                                    \
    MODEL(neu##suffix, isunordered(of(a), of(b)) || of(a) != of(b))                                                    \
    MODEL(ltu##suffix, isunordered(of(a), of(b)) || of(a) < of(b))                                                     \
    MODEL(leu##suffix, isunordered(of(a), of(b)) || of(a) <= of(b))                                                    \
    MODEL(gtu##suffix, isunordered(of(a), of(b)) || of(a) > of(b))                                                     \
    MODEL(geu##suffix, isunordered(of(a), of(b)) || of(a) >= of(b))                                                    \
    MODEL(num##suffix, !isunordered(of(a), of(b)))                                                                     \
    MODEL(nan##suffix, isunordered(of(a), of(b)))
COMPARES(f_, f)
COMPARES(d_, d)
MODEL(lt_ftz, isless(ftz(f(a)), ftz(f(b))))
MODEL(slctf, f(c) >= 0 ? a : b)
MODEL(finite_, isfinite(f(a)) != 0)
MODEL(infinite_, isinf(f(a)) != 0)
MODEL(notanumber, isnan(f(a)) != 0)
MODEL(normal_, isnormal(f(a)) || f(a) == 0)
MODEL(subnormal_, fpclassify(d(a)) == FP_SUBNORMAL)

#define R2(op, size, kind, model)                                                                                      \
    {                                                                                                                  \
        op " %d, %a, %b;", {size, size, size}, {kind, kind}, model                                                     \
    }
#define R1(op, size, kind, model)                                                                                      \
    {                                                                                                                  \
        op " %d, %a;", {size, size}, {kind}, model                                                                     \
    }
#define ROUNDS2(op, type, size, kind, model)                                                                           \
    R2(op ".rn" type, size, kind, model##_rn), R2(op ".rz" type, size, kind, model##_rz),                              \
        R2(op ".rm" type, size, kind, model##_rm), R2(op ".rp" type, size, kind, model##_rp)
#define ROUNDS1(op, type, size, kind, model)                                                                           \
    R1(op ".rn" type, size, kind, model##_rn), R1(op ".rz" type, size, kind, model##_rz),                              \
        R1(op ".rm" type, size, kind, model##_rm), R1(op ".rp" type, size, kind, model##_rp)
#define R3(op, size, kind, model)                                                                                      \
    {                                                                                                                  \
        op " %d, %a, %b, %c;", {size, size, size, size}, {kind, kind, kind}, model                                     \
    }
#define ROUNDS3(op, type, size, kind, model)                                                                           \
    R3(op ".rn" type, size, kind, model##_rn), R3(op ".rz" type, size, kind, model##_rz),                              \
        R3(op ".rm" type, size, kind, model##_rm), R3(op ".rp" type, size, kind, model##_rp)
#define CMPS(type, size, kind, suffix)                                                                                 \
    CMP1("eq", type, size, kind, eq##suffix), CMP1("ne", type, size, kind, ne##suffix),                                \
        CMP1("lt", type, size, kind, lt##suffix), CMP1("le", type, size, kind, le##suffix),                            \
        CMP1("gt", type, size, kind, gt##suffix), CMP1("ge", type, size, kind, ge##suffix),                            \
        CMP1("equ", type, size, kind, equ##suffix), CMP1("neu", type, size, kind, neu##suffix),                        \
        CMP1("ltu", type, size, kind, ltu##suffix), CMP1("leu", type, size, kind, leu##suffix),                        \
        CMP1("gtu", type, size, kind, gtu##suffix), CMP1("geu", type, size, kind, geu##suffix),                        \
        CMP1("num", type, size, kind, num##suffix), CMP1("nan", type, size, kind, nan##suffix)
#define CMP1(op, type, size, kind, model)                                                                              \
    {                                                                                                                  \
        "setp." op type " %d, %a, %b;", {1, size, size}, {kind, kind}, model                                           \
    }

const struct op_row float_rows[] = {
    ROUNDS2("add", ".f32", 4, F32S, addf),
    ROUNDS2("sub", ".f32", 4, F32S, subf),
    ROUNDS2("mul", ".f32", 4, F32S, mulf),
    ROUNDS2("div", ".f32", 4, F32S, divf),
    ROUNDS3("fma", ".f32", 4, F32S, fmaf_),
    ROUNDS1("rcp", ".f32", 4, F32S, rcpf),
    ROUNDS1("sqrt", ".f32", 4, F32S, sqrtf_),
    ROUNDS2("add", ".f64", 8, F64S, addd),
    ROUNDS2("sub", ".f64", 8, F64S, subd),
    ROUNDS2("mul", ".f64", 8, F64S, muld),
    ROUNDS2("div", ".f64", 8, F64S, divd),
    ROUNDS3("fma", ".f64", 8, F64S, fmad),
    ROUNDS1("rcp", ".f64", 8, F64S, rcpd),
    ROUNDS1("sqrt", ".f64", 8, F64S, sqrtd),
    R2("add.f32", 4, F32S, addf_rn),
    R2("mul.f64", 8, F64S, muld_rn),
    R3("mad.rn.f32", 4, F32S, fmaf__rn),
    R2("add.ftz.f32", 4, F32S, addf_ftz),
    R2("mul.sat.f32", 4, F32S, mulf_sat),
    R3("fma.rn.ftz.sat.f32", 4, F32S, fmaf_ftz_sat),
    R1("neg.f32", 4, F32S, negf),
    R1("abs.f32", 4, F32S, absf),
    R1("neg.f64", 8, F64S, negd),
    R1("abs.f64", 8, F64S, absd),
    R2("min.f32", 4, F32S, minf_),
    R2("max.f32", 4, F32S, maxf_),
    R2("min.f64", 8, F64S, mind),
    R2("copysign.f32", 4, F32S, copysign_),
    R2("div.full.f32", 4, F32S, divf_rn),
    R2("div.approx.f32", 4, F32S, div_approx),
    {"rcp.approx.f32 %d, %a;", {4, 4}, {F32S}, rcpf_rn, 1},
    {"sqrt.approx.f32 %d, %a;", {4, 4}, {F32S}, sqrtf__rn, 1},
    {"rsqrt.approx.f32 %d, %a;", {4, 4}, {F32S}, rsqrt, 1},
    {"ex2.approx.f32 %d, %a;", {4, 4}, {F32S}, ex2, 1},
    {"ex2.approx.ftz.f32 %d, %a;", {4, 4}, {F32S}, ex2_ftz, 1},
    {"lg2.approx.f32 %d, %a;", {4, 4}, {F32S}, lg2, 1},
    {"sin.approx.f32 %d, %a;", {4, 4}, {F32S}, sine, 1},
    {"cos.approx.f32 %d, %a;", {4, 4}, {F32S}, cosine, 1},
    {"tanh.approx.f32 %d, %a;", {4, 4}, {F32S}, tanh_, 1},
    R1("rsqrt.approx.f64", 8, F64S, rsqrtd),
    CMPS(".f32", 4, F32S, f_),
    CMPS(".f64", 8, F64S, d_),
    {"setp.lt.ftz.f32 %d, %a, %b;", {1, 4, 4}, {F32S, F32S}, lt_ftz},
    {"slct.f32.f32 %d, %a, %b, %c;", {4, 4, 4, 4}, {INTS, INTS, F32S}, slctf},
    {"testp.finite.f32 %d, %a;", {1, 4}, {F32S}, finite_},
    {"testp.infinite.f32 %d, %a;", {1, 4}, {F32S}, infinite_},
    {"testp.notanumber.f32 %d, %a;", {1, 4}, {F32S}, notanumber},
    {"testp.normal.f32 %d, %a;", {1, 4}, {F32S}, normal_},
    {"testp.subnormal.f64 %d, %a;", {1, 8}, {F64S}, subnormal_},
};
const unsigned float_row_count = sizeof(float_rows) / sizeof(float_rows[0]);

/* Conversions. */
static double half(uint64_t bits)
{
    int exponent = bits >> 10 & 31, mantissa = bits & 1023;
    double size = exponent == 31 ? (mantissa ? NAN : INFINITY)
                  : exponent     ? (1 + mantissa / 1024.0) * pow(2, exponent - 15)
                                 : mantissa * pow(2, -24);
    return bits & 0x8000 ? -size : size;
}
/* The largest half that is not larger, by bisection; then the nearer of it and the next, ties to the even pattern.
 * Mode 1 = towards zero. */
static uint64_t to_half(double value, int mode)
{
    uint64_t low = 0, high = 0x7c00, sign = signbit(value) ? 0x8000 : 0;
    double size = fabs(value);
    if (isnan(value))
        return 0x7fff;
    if (isinf(value) || (mode == 0 && size >= 65520))
        return sign | 0x7c00;
    while (high - low > 1) {
        uint64_t middle = (low + high) / 2;
        if (half(middle) <= size)
            low = middle;
        else
            high = middle;
    }
    if (mode == 1 || low == 0x7bff)
        return sign | low;
    double below = size - half(low), above = half(low + 1) - size;
    return sign | (below < above || (below == above && !(low & 1)) ? low : low + 1);
}
static uint64_t to_int(double value, double low, double high, uint64_t low_bits, uint64_t high_bits)
{
    if (isnan(value))
        return 0;
    if (value <= low)
        return low_bits;
    if (value >= high)
        return high_bits;
    return value < 0 ? (uint64_t)(int64_t)value : (uint64_t)value;
}
#define TO_S8(x) to_int(x, -128, 127, (uint64_t)-128, 127)
#define TO_U8(x) to_int(x, 0, 255, 0, 255)
#define TO_S16(x) to_int(x, -32768, 32767, (uint64_t)-32768, 32767)
#define TO_S32(x) to_int(x, -0x1p31, 0x1p31 - 1, (uint64_t)INT32_MIN, INT32_MAX)
#define TO_U32(x) to_int(x, 0, 0x1p32 - 1, 0, UINT32_MAX)
#define TO_S64(x) to_int(x, -0x1p63, 0x1p63, (uint64_t)INT64_MIN, INT64_MAX)
#define TO_U64(x) to_int(x, 0, 0x1p64, 0, UINT64_MAX)
MODEL(s32_f32_rz, TO_S32(trunc(f(a))))
MODEL(s32_f32_rn, TO_S32(rint(f(a))))
MODEL(s32_f32_rm, TO_S32(floor(f(a))))
MODEL(s32_f32_rp, TO_S32(ceil(f(a))))
MODEL(u32_f32_rz, TO_U32(trunc(f(a))))
MODEL(u32_f32_rn, TO_U32(rint(f(a))))
MODEL(s64_f32_rz, TO_S64(trunc(f(a))))
MODEL(u64_f32_rz, TO_U64(trunc(f(a))))
MODEL(s32_f64_rz, TO_S32(trunc(d(a))))
MODEL(u32_f64_rz, TO_U32(trunc(d(a))))
MODEL(s64_f64_rn, TO_S64(rint(d(a))))
MODEL(u64_f64_rz, TO_U64(trunc(d(a))))
MODEL(s16_f32_rz, TO_S16(trunc(f(a))))
MODEL(u8_f32_rz, TO_U8(trunc(f(a))))
MODEL(s32_f16_rz, TO_S32(trunc(half(a))))
MODEL(f32_s32, fb((float)(int32_t)a))
MODEL(f32_u32, fb((float)(uint32_t)a))
MODEL(f32_s64, fb((float)(int64_t)a))
MODEL(f32_u64, fb((float)a))
MODEL(f32_s16, fb((float)(int16_t)a))
MODEL(f32_u8, fb((float)(uint8_t)a))
MODEL(f64_s32, db((double)(int32_t)a))
MODEL(f64_u64, db((double)a))
MODEL(f64_s64, db((double)(int64_t)a))
MODEL(f32_f64_rn, fb((float)d(a)))
MODEL(f64_f32, db((double)f(a)))
MODEL(f32_f16, fb((float)half(a)))
MODEL(f64_f16, db(half(a)))
MODEL(f16_f32, to_half(f(a), 0))
MODEL(f16_f32_rz, to_half(f(a), 1))
MODEL(f16_f64, to_half(d(a), 0))
MODEL(f16_s32, to_half((int32_t)a, 0))
MODEL(f32_sat, fb(sat(f(a))))
MODEL(f32_rni, fb(rintf(f(a))))
MODEL(f32_rzi, fb(truncf(f(a))))
MODEL(f32_rmi, fb(floorf(f(a))))
MODEL(f32_rpi, fb(ceilf(f(a))))
MODEL(f64_rni, db(rint(d(a))))
MODEL(f32_ftz, fb(ftz(f(a))))
static uint64_t narrow(double value, int mode)
{
    volatile double x = value;
    volatile float r;
    fesetround(mode);
    r = (float)x;
    fesetround(FE_TONEAREST);
    return fb(r);
}
MODEL(f32_f64_rz, narrow(d(a), FE_TOWARDZERO))
MODEL(f32_f64_rm, narrow(d(a), FE_DOWNWARD))
MODEL(f32_f64_rp, narrow(d(a), FE_UPWARD))
static uint64_t from_int(int64_t value, int mode)
{
    volatile int64_t x = value;
    volatile float r;
    fesetround(mode);
    r = (float)x;
    fesetround(FE_TONEAREST);
    return fb(r);
}
MODEL(f32_s64_rz, from_int((int64_t)a, FE_TOWARDZERO))
MODEL(f32_s64_rp, from_int((int64_t)a, FE_UPWARD))
MODEL(u16_u32, a & 0xffff)
MODEL(s64_s32, (int64_t)(int32_t)a)
MODEL(u64_u32, (uint32_t)a)
MODEL(s32_s8, (uint64_t)(int64_t)(int8_t)a)
MODEL(u32_s8, (uint64_t)(int64_t)(int8_t)a)
MODEL(u16_s8_in_32, (uint16_t)(int8_t)a)
MODEL(s8_s32, (uint64_t)(int64_t)(int8_t)a)
MODEL(u8_s32, (uint8_t)a)
MODEL(u8_s32_sat, (int32_t)a<0 ? 0 : (int32_t)a> 255 ? 255 : a)
MODEL(s16_s64_sat, (int64_t)a<-32768 ? (uint64_t)-32768 : (int64_t)a> 32767 ? 32767 : a)
MODEL(s32_u32_sat, (uint32_t)a > INT32_MAX ? INT32_MAX : a)
MODEL(u64_s32_sat, (int32_t)a < 0 ? 0 : (uint64_t)(int32_t)a)

#define CVT(op, to, from, kind, model)                                                                                 \
    {                                                                                                                  \
        "cvt." op " %d, %a;", {to, from}, {kind}, model                                                                \
    }
const struct op_row cvt_rows[] = {
    CVT("rzi.s32.f32", 4, 4, F32S, s32_f32_rz),  CVT("rni.s32.f32", 4, 4, F32S, s32_f32_rn),
    CVT("rmi.s32.f32", 4, 4, F32S, s32_f32_rm),  CVT("rpi.s32.f32", 4, 4, F32S, s32_f32_rp),
    CVT("rzi.u32.f32", 4, 4, F32S, u32_f32_rz),  CVT("rni.u32.f32", 4, 4, F32S, u32_f32_rn),
    CVT("rzi.s64.f32", 8, 4, F32S, s64_f32_rz),  CVT("rzi.u64.f32", 8, 4, F32S, u64_f32_rz),
    CVT("rzi.s32.f64", 4, 8, F64S, s32_f64_rz),  CVT("rzi.u32.f64", 4, 8, F64S, u32_f64_rz),
    CVT("rni.s64.f64", 8, 8, F64S, s64_f64_rn),  CVT("rzi.u64.f64", 8, 8, F64S, u64_f64_rz),
    CVT("rzi.s16.f32", 2, 4, F32S, s16_f32_rz),  CVT("rzi.u8.f32", 4, 4, F32S, u8_f32_rz),
    CVT("rzi.s32.f16", 4, 2, F16S, s32_f16_rz),  CVT("rn.f32.s32", 4, 4, INTS, f32_s32),
    CVT("rn.f32.u32", 4, 4, INTS, f32_u32),      CVT("rn.f32.s64", 4, 8, INTS, f32_s64),
    CVT("rn.f32.u64", 4, 8, INTS, f32_u64),      CVT("rn.f32.s16", 4, 2, INTS, f32_s16),
    CVT("rn.f32.u8", 4, 2, INTS, f32_u8),        CVT("rn.f64.s32", 8, 4, INTS, f64_s32),
    CVT("rn.f64.u64", 8, 8, INTS, f64_u64),      CVT("rn.f64.s64", 8, 8, INTS, f64_s64),
    CVT("rn.f32.f64", 4, 8, F64S, f32_f64_rn),   CVT("rz.f32.f64", 4, 8, F64S, f32_f64_rz),
    CVT("rm.f32.f64", 4, 8, F64S, f32_f64_rm),   CVT("rp.f32.f64", 4, 8, F64S, f32_f64_rp),
    CVT("rz.f32.s64", 4, 8, INTS, f32_s64_rz),   CVT("rp.f32.s64", 4, 8, INTS, f32_s64_rp),
    CVT("f64.f32", 8, 4, F32S, f64_f32),         CVT("f32.f16", 4, 2, F16S, f32_f16),
    CVT("f64.f16", 8, 2, F16S, f64_f16),         CVT("rn.f16.f32", 2, 4, F32S, f16_f32),
    CVT("rz.f16.f32", 2, 4, F32S, f16_f32_rz),   CVT("rn.f16.f64", 2, 8, F64S, f16_f64),
    CVT("rn.f16.s32", 2, 4, INTS, f16_s32),      CVT("sat.f32.f32", 4, 4, F32S, f32_sat),
    CVT("rni.f32.f32", 4, 4, F32S, f32_rni),     CVT("rzi.f32.f32", 4, 4, F32S, f32_rzi),
    CVT("rmi.f32.f32", 4, 4, F32S, f32_rmi),     CVT("rpi.f32.f32", 4, 4, F32S, f32_rpi),
    CVT("rni.f64.f64", 8, 8, F64S, f64_rni),     CVT("ftz.f32.f32", 4, 4, F32S, f32_ftz),
    CVT("u16.u32", 2, 4, INTS, u16_u32),         CVT("s64.s32", 8, 4, INTS, s64_s32),
    CVT("u64.u32", 8, 4, INTS, u64_u32),         CVT("u32.u64", 4, 8, INTS, u64_u32),
    CVT("s32.s8", 4, 2, INTS, s32_s8),           CVT("s32.s8", 4, 4, INTS, s32_s8),
    CVT("u32.s8", 4, 4, INTS, u32_s8),           CVT("u16.s8", 4, 2, INTS, u16_s8_in_32),
    CVT("s8.s32", 2, 4, INTS, s8_s32),           CVT("s8.s64", 8, 8, INTS, s8_s32),
    CVT("u8.s32", 4, 4, INTS, u8_s32),           CVT("u8.u16", 2, 2, INTS, u8_s32),
    CVT("sat.u8.s32", 4, 4, INTS, u8_s32_sat),   CVT("sat.s16.s64", 2, 8, INTS, s16_s64_sat),
    CVT("sat.s32.u32", 4, 4, INTS, s32_u32_sat), CVT("sat.u64.s32", 8, 4, INTS, u64_s32_sat),
};
const unsigned cvt_row_count = sizeof(cvt_rows) / sizeof(cvt_rows[0]);
