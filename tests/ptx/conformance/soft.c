#include "ptx/conformance/soft.h"

#include <string.h>

typedef unsigned __int128 wide;

const struct soft_format soft_f16 = {16, 10, 5, 0, false, 0x7fff};
const struct soft_format soft_bf16 = {16, 7, 8, 0, false, 0x7fff};
const struct soft_format soft_f32 = {32, 23, 8, 0, false, 0x7fffffff};
const struct soft_format soft_f64 = {64, 52, 11, 0, false, UINT64_C(0x7ff8000000000000)};
const struct soft_format soft_tf32 = {32, 10, 8, 13, false, 0x7fffffff};
const struct soft_format soft_e4m3 = {8, 3, 4, 0, true, 0x7f};
const struct soft_format soft_e5m2 = {8, 2, 5, 0, false, 0x7f};

static int bias_of(const struct soft_format *f)
{
    return (1 << (f->exponent - 1)) - 1;
}

static unsigned length(wide m)
{
    uint64_t high = (uint64_t)(m >> 64), low = (uint64_t)m;
    return high ? 128 - (unsigned)__builtin_clzll(high) : low ? 64 - (unsigned)__builtin_clzll(low) : 0;
}

struct soft soft_read(const struct soft_format *f, uint64_t bits)
{
    uint64_t mantissa = bits >> f->pad & ((UINT64_C(1) << f->mantissa) - 1);
    int top = (1 << f->exponent) - 1, exponent = (int)(bits >> (f->pad + f->mantissa)) & top;
    struct soft a = {.kind = SOFT_FINITE, .negative = bits >> (f->bits - 1) & 1};
    if (exponent == top && (!f->no_infinity || mantissa == (UINT64_C(1) << f->mantissa) - 1)) {
        a.kind = mantissa ? SOFT_NAN : SOFT_INFINITE;
        return a;
    }
    a.magnitude = exponent ? mantissa | UINT64_C(1) << f->mantissa : mantissa;
    a.exponent = (exponent ? exponent : 1) - bias_of(f) - (int)f->mantissa;
    return a;
}

struct soft soft_int(bool negative, uint64_t magnitude)
{
    return (struct soft){.negative = negative, .magnitude = magnitude};
}

struct soft soft_neg(struct soft a)
{
    a.negative = !a.negative;
    return a;
}

/* To a top bit of 2^126, so that sums fit; what falls off the end is kept as `inexact`. */
static struct soft scaled(struct soft a)
{
    int by = 127 - (int)length(a.magnitude);
    if (by >= 0) {
        a.magnitude <<= by;
    } else {
        a.inexact |= a.magnitude & 1;
        a.magnitude >>= 1;
    }
    a.exponent -= by;
    return a;
}

static struct soft nan_value(void)
{
    return (struct soft){.kind = SOFT_NAN};
}

struct soft soft_add_rounding(struct soft a, struct soft b, enum soft_round round)
{
    if (a.kind == SOFT_NAN || b.kind == SOFT_NAN)
        return nan_value();
    if (a.kind == SOFT_INFINITE || b.kind == SOFT_INFINITE) {
        if (a.kind == b.kind && a.negative != b.negative)
            return nan_value();
        return a.kind == SOFT_INFINITE ? a : b;
    }
    if (!a.magnitude || !b.magnitude) {
        if (a.magnitude || b.magnitude)
            return a.magnitude ? a : b;
        a.negative = a.negative == b.negative ? a.negative : round == SOFT_RM;
        return a;
    }
    /* One bit below the top for the carry, one at the bottom for what is shifted out. */
    a = scaled(a);
    b = scaled(b);
    if (a.exponent < b.exponent || (a.exponent == b.exponent && a.magnitude < b.magnitude)) {
        struct soft t = a;
        a = b;
        b = t;
    }
    a.magnitude >>= 1; /* 106 bits at most matter: the low ones are zero */
    b.magnitude >>= 1;
    a.exponent++;
    b.exponent++;
    int by = a.exponent - b.exponent;
    bool lost = by > 0 && (by > 127 || (b.magnitude & (((wide)1 << by) - 1)));
    b.magnitude = by > 127 ? 0 : b.magnitude >> by;
    struct soft sum = {.negative = a.negative, .exponent = a.exponent, .inexact = lost || a.inexact || b.inexact};
    if (a.negative == b.negative)
        sum.magnitude = a.magnitude + b.magnitude;
    else
        sum.magnitude = a.magnitude - b.magnitude - lost; /* what was lost makes it a little smaller */
    if (!sum.magnitude && !sum.inexact)
        sum.negative = round == SOFT_RM;
    return sum;
}

struct soft soft_add(struct soft a, struct soft b)
{
    return soft_add_rounding(a, b, SOFT_RN);
}

struct soft soft_mul(struct soft a, struct soft b)
{
    bool negative = a.negative != b.negative;
    if (a.kind == SOFT_NAN || b.kind == SOFT_NAN)
        return nan_value();
    if (a.kind == SOFT_INFINITE || b.kind == SOFT_INFINITE) {
        if ((a.kind == SOFT_FINITE && !a.magnitude) || (b.kind == SOFT_FINITE && !b.magnitude))
            return nan_value();
        return (struct soft){.kind = SOFT_INFINITE, .negative = negative};
    }
    return (struct soft){
        .negative = negative, .magnitude = a.magnitude * b.magnitude, .exponent = a.exponent + b.exponent};
}

struct soft soft_fma(struct soft a, struct soft b, struct soft c)
{
    return soft_add(soft_mul(a, b), c);
}

struct soft soft_div(struct soft a, struct soft b)
{
    bool negative = a.negative != b.negative;
    bool zero = a.kind == SOFT_FINITE && !a.magnitude, by_zero = b.kind == SOFT_FINITE && !b.magnitude;
    if (a.kind == SOFT_NAN || b.kind == SOFT_NAN || (zero && by_zero) ||
        (a.kind == SOFT_INFINITE && b.kind == SOFT_INFINITE))
        return nan_value();
    if (a.kind == SOFT_INFINITE || by_zero)
        return (struct soft){.kind = SOFT_INFINITE, .negative = negative};
    if (b.kind == SOFT_INFINITE || zero)
        return (struct soft){.negative = negative};
    a = scaled(a);
    wide quotient = a.magnitude / b.magnitude; /* at least 127 - 53 bits */
    return (struct soft){.negative = negative,
                         .magnitude = quotient,
                         .exponent = a.exponent - b.exponent,
                         .inexact = quotient * b.magnitude != a.magnitude};
}

struct soft soft_sqrt(struct soft a)
{
    if (a.kind == SOFT_NAN || (a.kind == SOFT_FINITE && !a.magnitude))
        return a.kind == SOFT_NAN ? nan_value() : a;
    if (a.negative)
        return nan_value();
    if (a.kind == SOFT_INFINITE)
        return a;
    a = scaled(a);
    if (a.exponent & 1) {
        a.magnitude >>= 1; /* the lowest bit is zero: a float has 53 at most */
        a.exponent++;
    }
    wide root = 0, rest = a.magnitude;
    for (wide bit = (wide)1 << 126; bit; bit >>= 2) {
        if (rest >= root + bit) {
            rest -= root + bit;
            root = (root >> 1) + bit;
        } else {
            root >>= 1;
        }
    }
    return (struct soft){.magnitude = root, .exponent = a.exponent / 2, .inexact = rest != 0};
}

/* The magnitude in units of 2^unit, rounded. */
static wide round_to(struct soft a, int unit, enum soft_round round)
{
    int by = unit - a.exponent;
    wide whole = 0, rest = 0, half = 0;
    if (by <= 0)
        return a.magnitude << -by; /* callers keep this small enough */
    if (by <= 127) {
        whole = a.magnitude >> by;
        rest = a.magnitude & (((wide)1 << by) - 1);
        half = (wide)1 << (by - 1);
    } else {
        rest = a.magnitude ? 1 : 0;
        half = 2;
    }
    bool any = rest || a.inexact, up = false;
    switch (round) {
    case SOFT_RN: up = rest > half || (rest == half && (a.inexact || (whole & 1))); break;
    case SOFT_RNA: up = rest >= half && half; break;
    case SOFT_RZ: break;
    case SOFT_RM: up = any && a.negative; break;
    case SOFT_RP: up = any && !a.negative; break;
    }
    return whole + up;
}

static uint64_t write_as(const struct soft_format *f, struct soft a, enum soft_round round, bool finite)
{
    uint64_t sign = (uint64_t)a.negative << (f->bits - 1), one = UINT64_C(1) << (f->mantissa + f->pad);
    uint64_t top = ((UINT64_C(1) << f->exponent) - 1) * one;
    uint64_t largest = f->no_infinity ? top + one - ((uint64_t)2 << f->pad) : top - ((uint64_t)1 << f->pad);
    if (a.kind == SOFT_NAN)
        return f->nan;
    if (a.kind == SOFT_INFINITE)
        return sign | (finite ? largest : top);
    if (!a.magnitude && !a.inexact)
        return sign;
    a = scaled(a); /* so that there are bits below the mantissa whenever there were any */
    int lowest = 1 - bias_of(f) - (int)f->mantissa, unit = a.exponent + 126 - (int)f->mantissa;
    if (unit < lowest)
        unit = lowest;
    bool huge = unit - lowest > 1 << f->exponent;
    uint64_t whole = huge ? 0 : (uint64_t)round_to(a, unit, round);
    /* In units of 2^unit, where 1.0 * 2^mantissa is the least normal number of that exponent. */
    uint64_t pattern = huge ? UINT64_MAX : (uint64_t)(unit - lowest) * (UINT64_C(1) << f->mantissa) + whole;
    if (pattern > largest >> f->pad) {
        bool to_largest =
            finite || round == SOFT_RZ || (round == SOFT_RM && !a.negative) || (round == SOFT_RP && a.negative);
        return sign | (to_largest ? largest : f->no_infinity ? f->nan : top);
    }
    return sign | pattern << f->pad;
}

uint64_t soft_write(const struct soft_format *f, struct soft a, enum soft_round round)
{
    return write_as(f, a, round, false);
}

uint64_t soft_write_finite(const struct soft_format *f, struct soft a, enum soft_round round)
{
    return write_as(f, a, round, true);
}

__int128 soft_to_int(struct soft a, enum soft_round round, __int128 min, __int128 max)
{
    if (a.kind == SOFT_NAN)
        return 0;
    if (a.kind == SOFT_INFINITE || (a.magnitude && a.exponent + (int)length(a.magnitude) > 70))
        return a.negative ? min : max;
    __int128 whole = (__int128)round_to(a, 0, round);
    if (a.negative)
        whole = -whole;
    return whole < min ? min : whole > max ? max : whole;
}

struct soft soft_integral(struct soft a, enum soft_round round)
{
    if (a.kind != SOFT_FINITE || a.exponent >= 0)
        return a;
    return (struct soft){.negative = a.negative, .magnitude = round_to(a, 0, round)};
}

bool soft_subnormal(const struct soft_format *f, uint64_t bits)
{
    uint64_t mantissa = bits >> f->pad & ((UINT64_C(1) << f->mantissa) - 1);
    uint64_t exponent = bits >> (f->pad + f->mantissa) & ((UINT64_C(1) << f->exponent) - 1);
    return !exponent && mantissa;
}

uint64_t soft_flush(const struct soft_format *f, uint64_t bits)
{
    return soft_subnormal(f, bits) ? bits & UINT64_C(1) << (f->bits - 1) : bits;
}

int soft_compare(struct soft a, struct soft b)
{
    if (a.kind == SOFT_NAN || b.kind == SOFT_NAN)
        return 2;
    if (a.kind == SOFT_INFINITE || b.kind == SOFT_INFINITE) {
        int x = a.kind == SOFT_INFINITE ? (a.negative ? -1 : 1) : 0,
            y = b.kind == SOFT_INFINITE ? (b.negative ? -1 : 1) : 0;
        return x < y ? -1 : x > y;
    }
    struct soft difference = soft_add(a, soft_neg(b));
    if (!difference.magnitude && !difference.inexact)
        return 0;
    return difference.negative ? -1 : 1;
}

double soft_double(struct soft a)
{
    uint64_t bits = soft_write(&soft_f64, a, SOFT_RN);
    double value;
    memcpy(&value, &bits, 8);
    return value;
}
