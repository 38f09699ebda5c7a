/*
 * Floating point in integers, for references: exact values, rounded once to any format in any direction. Slow and plain; it
 * shares nothing with the engine, which computes with the host's floats.
 */
#ifndef TEST_PTX_SOFT_H
#define TEST_PTX_SOFT_H

#include <stdbool.h>
#include <stdint.h>

enum soft_kind { SOFT_FINITE, SOFT_INFINITE, SOFT_NAN };
/* (-1)^negative * magnitude * 2^exponent, and a little more than that if inexact (less than one unit of the magnitude). */
struct soft {
    enum soft_kind kind;
    bool negative, inexact;
    int exponent;
    unsigned __int128 magnitude;
};

enum soft_round { SOFT_RN, SOFT_RZ, SOFT_RM, SOFT_RP, SOFT_RNA };

struct soft_format {
    unsigned bits;     /* of the pattern */
    unsigned mantissa; /* stored bits */
    unsigned exponent; /* stored bits */
    unsigned pad;      /* zero bits below the mantissa (tf32) */
    bool no_infinity;  /* e4m3: the top exponent is an ordinary one, all ones is NaN */
    uint64_t nan;      /* the canonical one */
};
extern const struct soft_format soft_f16, soft_bf16, soft_f32, soft_f64, soft_tf32, soft_e4m3, soft_e5m2;

struct soft soft_read(const struct soft_format *f, uint64_t bits);
struct soft soft_int(bool negative, uint64_t magnitude);
struct soft soft_neg(struct soft a);
struct soft soft_add(struct soft a, struct soft b);
struct soft soft_mul(struct soft a, struct soft b);
struct soft soft_fma(struct soft a, struct soft b, struct soft c);
struct soft soft_div(struct soft a, struct soft b);
struct soft soft_sqrt(struct soft a);
/* Zeros that add up to zero take their sign from the rounding mode; the others from their operands. */
struct soft soft_add_rounding(struct soft a, struct soft b, enum soft_round round);
uint64_t soft_write(const struct soft_format *f, struct soft a, enum soft_round round);
/* Without an infinity: what is too large becomes the largest. */
uint64_t soft_write_finite(const struct soft_format *f, struct soft a, enum soft_round round);
/* To an integer, in the direction given; clamped to min .. max, which hold int64 or uint64 values. NaN gives 0. */
__int128 soft_to_int(struct soft a, enum soft_round round, __int128 min, __int128 max);
/* The integral value, as a float still (with its sign, if zero). */
struct soft soft_integral(struct soft a, enum soft_round round);
bool soft_subnormal(const struct soft_format *f, uint64_t bits);
/* Subnormals become zeros of their sign. */
uint64_t soft_flush(const struct soft_format *f, uint64_t bits);
/* -1, 0, 1; 2 = not comparable. */
int soft_compare(struct soft a, struct soft b);
double soft_double(struct soft a); /* nearest */

#endif
