/* Conversions into and out of the small floating formats, one lane at a time; exact, then rounded once. */
#include "simgpu/ptx/lane.h"

#include "simgpu/ptx/parse.h"

#include <math.h>
#include <string.h>

struct small {
    unsigned mantissa; /* stored bits */
    int bias;
    uint32_t largest, infinity, nan; /* e4m3 has no infinity: what is too large is not a number */
    unsigned sign;                   /* its bit */
    unsigned pad;                    /* bits below the mantissa */
};

static const struct small *small_of(enum ptx_type type)
{
    static const struct small f16 = {10, 15, 0x7bff, 0x7c00, 0x7fff, 15, 0};
    static const struct small bf16 = {7, 127, 0x7f7f, 0x7f80, 0x7fff, 15, 0};
    static const struct small tf32 = {10, 127, 0x3fbff, 0x3fc00, 0x7fffffff, 31, 13};
    static const struct small e4m3 = {3, 7, 0x7e, 0x7f, 0x7f, 7, 0};
    static const struct small e5m2 = {2, 15, 0x7b, 0x7c, 0x7f, 7, 0};
    switch (type) {
    case PTX_BF16: return &bf16;
    case PTX_TF32: return &tf32;
    case PTX_E4M3X2: return &e4m3;
    case PTX_E5M2X2: return &e5m2;
    default: return &f16;
    }
}

static bool rounds_up(double rest, bool is_odd, bool negative, unsigned round)
{
    switch ((enum ptx_round)round) {
    case PTX_ROUND_RZ: return false;
    case PTX_ROUND_RM: return rest != 0 && negative;
    case PTX_ROUND_RP: return rest != 0 && !negative;
    case PTX_ROUND_RNA: return rest >= 0.5;
    default: return rest > 0.5 || (rest == 0.5 && is_odd);
    }
}

static uint64_t small_bits(const struct small *f, double value, unsigned round, bool finite)
{
    bool negative = signbit(value);
    uint64_t sign = (uint64_t)negative << f->sign, top = (uint64_t)(finite ? f->largest : f->infinity) << f->pad;
    double size = fabs(value);
    if (isnan(value))
        return f->nan;
    if (isinf(value))
        return sign | top;
    if (size == 0)
        return sign;
    int exponent = ilogb(size);
    if (exponent < 1 - f->bias)
        exponent = 1 - f->bias;
    if (exponent > 200) /* beyond all of these formats */
        exponent = 200;
    double units = ldexp(size, (int)f->mantissa - exponent), whole = trunc(units); /* exact */
    whole += rounds_up(units - whole, fmod(whole, 2) != 0, negative, round);
    /* A carry out of the mantissa moves into the exponent by itself. */
    double pattern = ldexp(exponent + f->bias - 1, (int)f->mantissa) + whole;
    if (pattern <= f->largest)
        return sign | (uint64_t)pattern << f->pad;
    bool stays = round == PTX_ROUND_RZ || (round == PTX_ROUND_RM && !negative) || (round == PTX_ROUND_RP && negative);
    return sign | (stays ? (uint64_t)f->largest << f->pad : top);
}

/* A pattern of up to 16 bits of a small format. */
static double small_value(const struct small *f, uint64_t bits)
{
    uint32_t size = (uint32_t)(bits & ((UINT64_C(1) << f->sign) - 1)), exponent = size >> f->mantissa;
    double mantissa = size & ((1u << f->mantissa) - 1), value;
    if (size > f->infinity || (size == f->infinity && f->infinity == f->nan))
        return NAN;
    if (size == f->infinity)
        value = INFINITY;
    else if (!exponent)
        value = ldexp(mantissa, 1 - f->bias - (int)f->mantissa);
    else
        value = ldexp(mantissa + (1u << f->mantissa), (int)exponent - f->bias - (int)f->mantissa);
    return bits >> f->sign & 1 ? -value : value;
}

/* As a double: if it takes more bits than that, the last one is set, so that rounding again sees that something is there. */
static double of_int(uint64_t magnitude, bool negative)
{
    double value =
        magnitude >> 53 ? ldexp((double)(magnitude >> 11 | ((magnitude & 0x7ff) != 0)), 11) : (double)magnitude;
    return negative ? -value : value;
}

static double read_value(uint64_t a, enum ptx_type type, bool ftz)
{
    if (type == PTX_F32) {
        uint32_t bits = ftz && !(a & 0x7f800000) ? a & 0x80000000 : (uint32_t)a;
        float value;
        memcpy(&value, &bits, 4);
        return value;
    }
    if (type == PTX_F64) {
        double value;
        memcpy(&value, &a, 8);
        return value;
    }
    if (ptx_type_signed(type)) {
        unsigned shift = 64 - (8u << ptx_type_log2(type));
        int64_t value = (int64_t)(a << shift) >> shift;
        return of_int(value < 0 ? 0 - (uint64_t)value : (uint64_t)value, value < 0);
    }
    if (ptx_type_unsigned(type))
        return of_int(a & (UINT64_MAX >> (64 - (8u << ptx_type_log2(type)))), false);
    return small_value(small_of(type), a);
}

static double integral(double x, unsigned round)
{
    switch ((enum ptx_round)round) {
    case PTX_ROUND_RZ: return trunc(x);
    case PTX_ROUND_RM: return floor(x);
    case PTX_ROUND_RP: return ceil(x);
    default: return nearbyint(x);
    }
}

/* imm as for cvt, and PTX_CVT_RELU, PTX_CVT_FINITE; PTX_CVT_HIGH: the source is the upper half (f16x2) or byte. */
uint64_t ptx_lane_cvt_small(uint64_t a, uint64_t b, uint64_t c, uint64_t imm)
{
    (void)b, (void)c;
    enum ptx_type to = (enum ptx_type)(imm & 0xff), from = (enum ptx_type)(imm >> 8 & 0xff);
    unsigned round = imm >> 16 & 7;
    if (imm & PTX_CVT_HIGH)
        a >>= from == PTX_F16 ? 16 : 8;
    if (from == PTX_F16)
        a &= 0xffff;
    else if (from == PTX_E4M3X2 || from == PTX_E5M2X2)
        a &= 0xff;
    double value = read_value(a, from, imm & PTX_CVT_FTZ);
    if (imm & PTX_CVT_INTEGRAL) {
        value = copysign(integral(value, round), value);
        round = PTX_ROUND_RN;
    }
    if (imm & PTX_CVT_SAT)
        value = value > 0 ? fmin(value, 1) : 0;
    if (imm & PTX_CVT_RELU && value <= 0)
        value = 0;
    return small_bits(small_of(to), value, round, imm & PTX_CVT_FINITE);
}

/* a and b, clamped to a type of `bits` bits, side by side in the low bits (b lowest); c's low bits above them.
 * imm: bits | signed << 8. */
uint64_t ptx_lane_cvt_pack(uint64_t a, uint64_t b, uint64_t c, uint64_t imm)
{
    unsigned bits = imm & 0xff;
    bool is_signed = imm & PTX_LANE_SIGNED;
    int64_t max = (INT64_C(1) << (bits - is_signed)) - 1, min = is_signed ? -max - 1 : 0;
    int64_t x = (int32_t)a, y = (int32_t)b;
    x = x < min ? min : x > max ? max : x;
    y = y < min ? min : y > max ? max : y;
    uint64_t mask = (UINT64_C(1) << bits) - 1;
    return ((uint64_t)y & mask) | ((uint64_t)x & mask) << bits | c << 2 * bits;
}
