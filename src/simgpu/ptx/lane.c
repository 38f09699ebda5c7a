/* Built with -frounding-math: directed rounding modes are switched on around single operations here. */
#include "simgpu/ptx/lane.h"

#include "simgpu/ptx/mathf.h"
#include "simgpu/ptx/parse.h"

#include <fenv.h>
#include <math.h>
#include <string.h>

#define NAN16 0x7fffu
#define NAN32 0x7fffffffu
#define NAN64 UINT64_C(0x7ff8000000000000)

static float f32_of(uint64_t bits)
{
    uint32_t low = (uint32_t)bits;
    float f;
    memcpy(&f, &low, 4);
    return f;
}

static uint64_t bits_f32(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return isnan(f) ? NAN32 : bits;
}

static double f64_of(uint64_t bits)
{
    double f;
    memcpy(&f, &bits, 8);
    return f;
}

static uint64_t bits_f64(double f)
{
    uint64_t bits;
    memcpy(&bits, &f, 8);
    return isnan(f) ? NAN64 : bits;
}

/* Sign-extends the low bits of an operand of 2^log2 bytes when the type is signed. */
static int64_t signed_of(uint64_t a, unsigned log2)
{
    unsigned shift = 64 - (8u << log2);
    return (int64_t)(a << shift) >> shift;
}

static int64_t clamp_s32(int64_t value)
{
    return value > INT32_MAX ? INT32_MAX : value < INT32_MIN ? INT32_MIN : value;
}

static uint64_t lane_add_sat(uint64_t a, uint64_t b, uint64_t c, uint64_t imm)
{
    (void)c, (void)imm;
    return (uint64_t)clamp_s32((int64_t)(int32_t)a + (int32_t)b);
}

static uint64_t lane_sub_sat(uint64_t a, uint64_t b, uint64_t c, uint64_t imm)
{
    (void)c, (void)imm;
    return (uint64_t)clamp_s32((int64_t)(int32_t)a - (int32_t)b);
}

/* imm: 0x200 = the high 32 of 48 product bits, 0x400 = saturated. c is 0 for mul24. */
static uint64_t lane_mul24(uint64_t a, uint64_t b, uint64_t c, uint64_t imm)
{
    int64_t x = (int64_t)(a & 0xffffff), y = (int64_t)(b & 0xffffff);
    if (imm & PTX_LANE_SIGNED) {
        x = (int64_t)((uint64_t)x << 40) >> 40;
        y = (int64_t)((uint64_t)y << 40) >> 40;
    }
    int64_t product = x * y;
    product = imm & 0x200 ? product >> 16 : product;
    if (imm & 0x400)
        return (uint64_t)clamp_s32((int32_t)product + (int64_t)(int32_t)c);
    return (uint64_t)product + c;
}

static uint64_t lane_mad_hi_sat(uint64_t a, uint64_t b, uint64_t c, uint64_t imm)
{
    (void)imm;
    return (uint64_t)clamp_s32((((int64_t)(int32_t)a * (int32_t)b) >> 32) + (int32_t)c);
}

static uint64_t lane_sad(uint64_t a, uint64_t b, uint64_t c, uint64_t imm)
{
    bool less = imm & PTX_LANE_SIGNED ? signed_of(a, imm & 3) < signed_of(b, imm & 3) : a < b;
    return c + (less ? b - a : a - b);
}

static uint64_t extract(uint64_t a, unsigned pos, unsigned len, unsigned msb, bool is_signed)
{
    unsigned last = pos + len - 1 < msb ? pos + len - 1 : msb;
    bool sign = is_signed && len && (a >> last & 1);
    unsigned taken = pos > msb ? 0 : len < msb + 1 - pos ? len : msb + 1 - pos;
    uint64_t field = pos > msb ? 0 : a >> pos;
    if (taken < 64) {
        uint64_t mask = (UINT64_C(1) << taken) - 1;
        field = sign ? field | ~mask : field & mask;
    }
    return field;
}

static uint64_t lane_bfe_u(uint64_t a, uint64_t b, uint64_t c, uint64_t imm)
{
    return extract(a, b & 0xff, c & 0xff, (8u << imm) - 1, false);
}

static uint64_t lane_bfe_s(uint64_t a, uint64_t b, uint64_t c, uint64_t imm)
{
    return extract(a, b & 0xff, c & 0xff, (8u << imm) - 1, true);
}

static uint64_t lane_bfi(uint64_t a, uint64_t b, uint64_t c, uint64_t imm)
{
    unsigned pos = c & 0xff, len = c >> 32 & 0xff, msb = (8u << imm) - 1;
    if (pos > msb || !len)
        return b;
    if (len > msb + 1 - pos)
        len = msb + 1 - pos;
    uint64_t mask = (len == 64 ? UINT64_MAX : (UINT64_C(1) << len) - 1) << pos;
    return (b & ~mask) | (a << pos & mask);
}

static uint64_t lane_prmt(uint64_t a, uint64_t b, uint64_t c, uint64_t imm)
{
    uint64_t bytes = (a & 0xffffffff) | b << 32, result = 0;
    unsigned n = c & 3;
    for (unsigned i = 0; i < 4; i++) {
        unsigned from;
        bool spread = false;
        switch ((enum ptx_prmt)imm) {
        case PTX_PRMT_F4E: from = n + i; break;
        case PTX_PRMT_B4E: from = (n - i) & 7; break;
        case PTX_PRMT_RC8: from = n; break;
        case PTX_PRMT_ECL: from = i > n ? i : n; break;
        case PTX_PRMT_ECR: from = i < n ? i : n; break;
        case PTX_PRMT_RC16: from = (n & 1) * 2 + (i & 1); break;
        default: from = c >> 4 * i & 7; spread = c >> (4 * i + 3) & 1;
        }
        uint64_t byte = bytes >> 8 * from & 0xff;
        if (spread)
            byte = byte & 0x80 ? 0xff : 0;
        result |= byte << 8 * i;
    }
    return result;
}

static uint64_t lane_brev(uint64_t a, uint64_t b, uint64_t c, uint64_t imm)
{
    (void)b, (void)c;
    unsigned bits = 8u << (imm & 3);
    uint64_t result = 0;
    for (unsigned i = 0; i < bits; i++)
        result |= (a >> i & 1) << (bits - 1 - i);
    return result;
}

/* imm: 0x200 = as a shift amount. */
static uint64_t lane_bfind(uint64_t a, uint64_t b, uint64_t c, uint64_t imm)
{
    (void)b, (void)c;
    unsigned log2 = imm & 3;
    if (imm & PTX_LANE_SIGNED) {
        int64_t value = signed_of(a, log2);
        a = (uint64_t)(value < 0 ? ~value : value);
    }
    if (!a)
        return UINT32_MAX;
    unsigned position = 63 - (unsigned)__builtin_clzll(a);
    return imm & 0x200 ? (8u << log2) - 1 - position : position;
}

/* The clamped forms; imm 1 = right. */
static uint64_t lane_shf(uint64_t a, uint64_t b, uint64_t c, uint64_t imm)
{
    uint64_t both = b << 32 | (a & 0xffffffff);
    unsigned n = (uint32_t)c > 32 ? 32 : (unsigned)c;
    return imm ? both >> n : (both << n) >> 32;
}

static uint64_t lane_lop3(uint64_t a, uint64_t b, uint64_t c, uint64_t imm)
{
    uint64_t result = 0;
    for (unsigned i = 0; i < 8; i++)
        if (imm >> i & 1)
            result |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
    return result;
}

/* imm: bit 0 = a signed, bit 1 = b signed. */
static uint64_t lane_dp4a(uint64_t a, uint64_t b, uint64_t c, uint64_t imm)
{
    uint64_t sum = c;
    for (unsigned i = 0; i < 4; i++) {
        int64_t x = imm & 1 ? (int8_t)(a >> 8 * i) : (uint8_t)(a >> 8 * i);
        int64_t y = imm & 2 ? (int8_t)(b >> 8 * i) : (uint8_t)(b >> 8 * i);
        sum += (uint64_t)(x * y);
    }
    return sum;
}

/* imm: as for dp4a; bit 2 = the upper bytes of b. */
static uint64_t lane_dp2a(uint64_t a, uint64_t b, uint64_t c, uint64_t imm)
{
    uint64_t sum = c;
    for (unsigned i = 0; i < 2; i++) {
        unsigned at = (imm & 4 ? 16 : 0) + 8 * i;
        int64_t x = imm & 1 ? (int16_t)(a >> 16 * i) : (uint16_t)(a >> 16 * i);
        int64_t y = imm & 2 ? (int8_t)(b >> at) : (uint8_t)(b >> at);
        sum += (uint64_t)(x * y);
    }
    return sum;
}

/* imm 1 = position and width modulo 32. */
static uint64_t lane_bmsk(uint64_t a, uint64_t b, uint64_t c, uint64_t imm)
{
    (void)c;
    uint64_t position = imm & 1 ? a & 31 : a & 0xffffffff, width = imm & 1 ? b & 31 : b & 0xffffffff;
    if (position > 31)
        return 0;
    uint64_t ones = width > 31 ? UINT32_MAX : (UINT64_C(1) << width) - 1;
    return ones << position & UINT32_MAX;
}

/* imm 1 = width modulo 32. */
static uint64_t lane_szext(uint64_t a, uint64_t b, uint64_t c, uint64_t imm)
{
    (void)c;
    uint64_t width = imm & 1 ? b & 31 : b & 0xffffffff;
    if (width > 31)
        return a;
    uint64_t low = a & ((UINT64_C(1) << width) - 1);
    bool fill = imm & PTX_LANE_SIGNED && width && low >> (width - 1) & 1;
    return fill ? low | (UINT32_MAX << width & UINT32_MAX) : low;
}

/* The |c|-th set bit of a from position b on, upwards or downwards; a base beyond 31 finds nothing. */
static uint64_t lane_fns(uint64_t a, uint64_t b, uint64_t c, uint64_t imm)
{
    (void)imm;
    int64_t offset = (int32_t)c, base = (int64_t)(b & 0xffffffff);
    if (base > 31)
        return UINT32_MAX;
    if (!offset)
        return a >> base & 1 ? (uint64_t)base : UINT32_MAX;
    int64_t left = offset > 0 ? offset : -offset;
    for (int64_t at = base; at >= 0 && at<32; at += offset> 0 ? 1 : -1)
        if (a >> at & 1 && !--left)
            return (uint64_t)at;
    return UINT32_MAX;
}

static void set_round(unsigned round)
{
    static const int modes[] = {FE_TONEAREST, FE_TOWARDZERO, FE_DOWNWARD, FE_UPWARD};
    fesetround(modes[round]);
}

static uint64_t lane_arith_f32(uint64_t a, uint64_t b, uint64_t c, uint64_t imm)
{
    volatile float x = f32_of(a), y = f32_of(b), z = f32_of(c), result;
    set_round(imm >> 8 & 3);
    switch ((enum ptx_arith)(imm & 0xff)) {
    case PTX_ARITH_ADD: result = x + y; break;
    case PTX_ARITH_SUB: result = x - y; break;
    case PTX_ARITH_MUL: result = x * y; break;
    case PTX_ARITH_FMA: result = fmaf(x, y, z); break;
    case PTX_ARITH_DIV: result = x / y; break;
    case PTX_ARITH_SQRT: result = sqrtf(x); break;
    default: result = 1.0f / x;
    }
    set_round(PTX_ROUND_RN);
    return bits_f32(result);
}

static uint64_t lane_arith_f64(uint64_t a, uint64_t b, uint64_t c, uint64_t imm)
{
    volatile double x = f64_of(a), y = f64_of(b), z = f64_of(c), result;
    set_round(imm >> 8 & 3);
    switch ((enum ptx_arith)(imm & 0xff)) {
    case PTX_ARITH_ADD: result = x + y; break;
    case PTX_ARITH_SUB: result = x - y; break;
    case PTX_ARITH_MUL: result = x * y; break;
    case PTX_ARITH_FMA: result = fma(x, y, z); break;
    case PTX_ARITH_DIV: result = x / y; break;
    case PTX_ARITH_SQRT: result = sqrt(x); break;
    default: result = 1.0 / x;
    }
    set_round(PTX_ROUND_RN);
    return bits_f64(result);
}

static double half_value(uint64_t bits)
{
    unsigned exponent = bits >> 10 & 31, mantissa = bits & 0x3ff;
    double value = exponent == 31 ? (mantissa ? NAN : INFINITY)
                   : exponent     ? ldexp(1024 + mantissa, (int)exponent - 25)
                                  : ldexp(mantissa, -24);
    return bits & 0x8000 ? -value : value;
}

static uint64_t half_bits(double value, unsigned round)
{
    uint64_t sign = signbit(value) ? 0x8000 : 0;
    double size = fabs(value);
    if (isnan(value))
        return NAN16;
    if (isinf(value))
        return sign | 0x7c00;
    int exponent = size < 0x1p-14 ? -14 : ilogb(size);
    double units = ldexp(size, 10 - exponent); /* exact; 1024 .. 2047 when normal */
    double whole = trunc(units), rest = units - whole;
    bool up = round == PTX_ROUND_RN
                  ? rest > 0.5 || (rest == 0.5 && fmod(whole, 2) != 0)
                  : rest != 0 && ((round == PTX_ROUND_RM && sign) || (round == PTX_ROUND_RP && !sign));
    whole += up;
    if (exponent > 15 || ldexp(whole, exponent - 10) >= 65536) {
        bool to_max = round == PTX_ROUND_RZ || (round == PTX_ROUND_RM && !sign) || (round == PTX_ROUND_RP && sign);
        return sign | (to_max ? 0x7bff : 0x7c00);
    }
    /* A carry out of the mantissa moves into the exponent by itself. */
    return sign | (uint64_t)((exponent + 14) * 1024 + (int)whole);
}

struct cvt_value {
    bool is_float;
    double real;
    __int128 integer;
};

static struct cvt_value cvt_read(uint64_t a, enum ptx_type type, bool ftz)
{
    struct cvt_value v = {.is_float = ptx_type_float(type)};
    if (type == PTX_F16)
        v.real = half_value(a);
    else if (type == PTX_F32)
        v.real = f32_of(ftz && !(a & 0x7f800000) ? a & 0x80000000 : a);
    else if (type == PTX_F64)
        v.real = f64_of(a);
    else if (ptx_type_signed(type))
        v.integer = signed_of(a, ptx_type_log2(type));
    else
        v.integer = a & (UINT64_MAX >> (64 - (8u << ptx_type_log2(type))));
    return v;
}

static double to_integral(double x, unsigned round)
{
    switch ((enum ptx_round)round) {
    case PTX_ROUND_RZ: return trunc(x);
    case PTX_ROUND_RM: return floor(x);
    case PTX_ROUND_RP: return ceil(x);
    default: return nearbyint(x);
    }
}

static uint64_t cvt_to_int(const struct cvt_value *v, enum ptx_type type, unsigned round, bool sat)
{
    unsigned bits = 8u << ptx_type_log2(type);
    bool is_signed = ptx_type_signed(type);
    __int128 max = ((__int128)1 << (bits - is_signed)) - 1, min = is_signed ? -max - 1 : 0, value = v->integer;
    if (v->is_float) {
        double whole = to_integral(v->real, round);
        sat = true;
        value = isnan(whole) ? 0 : whole >= 0x1p64 ? max : whole <= -0x1p64 ? min : (__int128)whole;
    }
    if (sat)
        value = value > max ? max : value < min ? min : value;
    uint64_t low = (uint64_t)value;
    return is_signed ? (uint64_t)signed_of(low, ptx_type_log2(type)) : low & (UINT64_MAX >> (64 - bits));
}

static float rounded_f32(const struct cvt_value *v, unsigned round)
{
    volatile double real = v->real;
    volatile float result;
    set_round(round);
    if (v->is_float)
        result = (float)real;
    else if (v->integer < 0)
        result = (float)(int64_t)v->integer;
    else
        result = (float)(uint64_t)v->integer;
    set_round(PTX_ROUND_RN);
    return result;
}

static double rounded_f64(const struct cvt_value *v, unsigned round)
{
    volatile double result;
    if (v->is_float)
        return v->real;
    set_round(round);
    if (v->integer < 0)
        result = (double)(int64_t)v->integer;
    else
        result = (double)(uint64_t)v->integer;
    set_round(PTX_ROUND_RN);
    return result;
}

static uint64_t lane_cvt(uint64_t a, uint64_t b, uint64_t c, uint64_t imm)
{
    (void)b, (void)c;
    enum ptx_type to = (enum ptx_type)(imm & 0xff), from = (enum ptx_type)(imm >> 8 & 0xff);
    unsigned round = imm >> 16 & 3;
    bool sat = imm & PTX_CVT_SAT, ftz = imm & PTX_CVT_FTZ;
    struct cvt_value v = cvt_read(a, from, ftz);
    if (!ptx_type_float(to))
        return cvt_to_int(&v, to, round, sat);
    if (imm & PTX_CVT_INTEGRAL) {
        v.real = copysign(to_integral(v.real, round), v.real);
        round = PTX_ROUND_RN;
    }
    if (!v.is_float && to == PTX_F16) {
        v.real = (double)v.integer;
        v.is_float = true;
    }
    if (to == PTX_F16) {
        double real = sat ? (v.real > 0 ? fmin(v.real, 1.0) : 0.0) : v.real;
        return half_bits(real, round);
    }
    if (to == PTX_F32) {
        float result = rounded_f32(&v, round);
        if (sat)
            result = result > 0 ? fminf(result, 1.0f) : 0.0f;
        if (ftz && fpclassify(result) == FP_SUBNORMAL)
            result = copysignf(0.0f, result);
        return bits_f32(result);
    }
    double result = rounded_f64(&v, round);
    if (sat)
        result = result > 0 ? fmin(result, 1.0) : 0.0;
    return bits_f64(result);
}

/* Beyond 2^126 the fast division's reciprocal is zero, as the ISA says. */
static uint64_t lane_div_approx(uint64_t a, uint64_t b, uint64_t c, uint64_t imm)
{
    (void)c, (void)imm;
    float x = f32_of(a), y = f32_of(b);
    if (fabsf(y) > 0x1p126f && !isinf(y)) {
        if (isinf(x) || isnan(x))
            return NAN32;
        return (a ^ b) & 0x80000000u;
    }
    return bits_f32(x / y);
}

/* The ISA's approximation works on the upper 32 bits and flushes. */
static uint64_t flush_f64(uint64_t bits)
{
    return bits & UINT64_C(0x7ff0000000000000) ? bits : bits & (UINT64_C(1) << 63);
}

static uint64_t lane_rcp_approx_f64(uint64_t a, uint64_t b, uint64_t c, uint64_t imm)
{
    (void)b, (void)c, (void)imm;
    if (isnan(f64_of(a)))
        return NAN64;
    uint64_t result = bits_f64(1.0 / f64_of(flush_f64(a) & ~UINT64_C(0xffffffff)));
    return flush_f64(result) & ~UINT64_C(0xffffffff);
}

static uint64_t lane_rsqrt_approx_f64(uint64_t a, uint64_t b, uint64_t c, uint64_t imm)
{
    (void)b, (void)c;
    return bits_f64(1.0 / sqrt(f64_of(imm ? flush_f64(a) : a)));
}

static uint64_t lane_testp(uint64_t a, uint64_t b, uint64_t c, uint64_t imm)
{
    (void)b, (void)c;
    int kind = imm & PTX_TESTP_F64 ? fpclassify(f64_of(a)) : fpclassify(f32_of(a));
    switch ((enum ptx_testp)(imm & 7)) {
    case PTX_TESTP_FINITE: return kind != FP_NAN && kind != FP_INFINITE;
    case PTX_TESTP_INFINITE: return kind == FP_INFINITE;
    case PTX_TESTP_NUMBER: return kind != FP_NAN;
    case PTX_TESTP_NOTANUMBER: return kind == FP_NAN;
    case PTX_TESTP_NORMAL: return kind == FP_NORMAL || kind == FP_ZERO;
    default: return kind == FP_SUBNORMAL;
    }
}

ptx_lane_fn *const ptx_lane_functions[PTX_LANE_COUNT] = {
#define X(name) [PTX_LANE_##name] = lane_##name,
    PTX_LANE_FUNCTIONS(X)
#undef X
#define X(name) [PTX_LANE_##name] = ptx_lane_##name,
        PTX_LANE_MORE(X)
#undef X
};

/* The first 256 bits of 2/pi, from the binary point. */
static const uint64_t two_over_pi[4] = {TWO_OVER_PI_WORDS};

double ptx_reduce_large(float x, unsigned *quadrant_out)
{
    int exponent;
    double mantissa = frexp(fabs((double)x), &exponent); /* 0.5 .. 1 */
    uint64_t m = (uint64_t)ldexp(mantissa, 24);
    unsigned first = (unsigned)(exponent - 24) - 2; /* bits before it only add multiples of 4 quadrants */
    unsigned __int128 window = 0;
    for (unsigned i = 0; i < 128; i++)
        window = window << 1 | (two_over_pi[(first + i) / 64] >> (63 - (first + i) % 64) & 1);
    unsigned __int128 turns = window * m; /* 2 bits of quadrant, then the fraction */
    unsigned quadrant = (unsigned)(turns >> 126);
    __int128 fraction = (__int128)(turns << 2); /* signed: -half .. half of a quadrant */
    if (fraction < 0)
        quadrant++;
    double rest = ldexp((double)(int64_t)(fraction >> 64), -64) * 0x1.921fb54442d18p+0;
    if (x < 0) {
        quadrant = 0u - quadrant;
        rest = -rest;
    }
    *quadrant_out = quadrant & 3;
    return rest;
}
