/* Halves and bfloat16 as numbers: exact one way, rounded to nearest even the other; NaN becomes 0x7fff. */
#ifndef SG_PTX_HALF_H
#define SG_PTX_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t ptx_float_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

static inline float ptx_bits_float(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static inline float ptx_half_float(uint16_t half)
{
    uint32_t bits = (uint32_t)(half & 0x7fff) << 13;
    uint32_t finite =
        ptx_float_bits(ptx_bits_float(bits) * 0x1p112f); /* moves the exponent; subnormals become normal */
    bits = (half & 0x7c00) == 0x7c00 ? bits | 0x7f800000 : finite;
    return ptx_bits_float(bits | (uint32_t)(half & 0x8000) << 16);
}

static inline uint16_t ptx_float_half(float x)
{
    uint32_t bits = ptx_float_bits(x), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    if (size > 0x7f800000)
        return 0x7fff;
    if (size >= 0x47800000)
        return (uint16_t)(sign | 0x7c00);
    if (size < 0x38800000) /* the addition rounds to a multiple of the smallest half */
        return (uint16_t)(sign | (ptx_float_bits(ptx_bits_float(size) + 0.5f) - 0x3f000000));
    return (uint16_t)(sign | (size - 0x38000000 + 0xfff + (size >> 13 & 1)) >> 13);
}

static inline float ptx_bf16_float(uint16_t bf16)
{
    return ptx_bits_float((uint32_t)bf16 << 16);
}

static inline uint16_t ptx_float_bf16(float x)
{
    uint32_t bits = ptx_float_bits(x);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return 0x7fff;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Rounds to odd, so that rounding the result once more, to fewer bits, gives what rounding `x` would. */
static inline float ptx_double_odd(double x)
{
    float near = (float)x;
    uint32_t bits = ptx_float_bits(near);
    if ((double)near == x || x != x || (bits & 1))
        return near;
    if ((bits & 0x7fffffff) == 0x7f800000) /* out of a float's range */
        return ptx_bits_float(bits - 1);
    double size = x < 0 ? -x : x;
    return ptx_bits_float((double)ptx_bits_float(bits & 0x7fffffff) > size ? bits - 1 : bits + 1);
}

#endif
