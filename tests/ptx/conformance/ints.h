/* Integers as mathematics has them, for references. */
#ifndef TEST_PTX_INTS_H
#define TEST_PTX_INTS_H

#include "ptx/conformance/conform.h"

typedef __int128 wide;

static inline unsigned type_bits(enum form_type t)
{
    switch (t) {
    case T_U2:
    case T_S2: return 2;
    case T_U4:
    case T_S4: return 4;
    case T_B8:
    case T_U8:
    case T_S8: return 8;
    case T_B16:
    case T_U16:
    case T_S16:
    case T_F16:
    case T_BF16: return 16;
    case T_B64:
    case T_U64:
    case T_S64:
    case T_F64: return 64;
    default: return 32;
    }
}

static inline bool type_signed(enum form_type t)
{
    return (t >= T_S8 && t <= T_S64) || t == T_S16X2 || t == T_S4 || t == T_S2;
}

/* The value of the low bits. */
static inline wide value_of(uint64_t pattern, unsigned bits, bool is_signed)
{
    wide value = 0;
    for (unsigned i = 0; i < bits; i++)
        if (pattern >> i & 1)
            value += is_signed && i == bits - 1 ? -((wide)1 << i) : (wide)1 << i;
    return value;
}

static inline wide typed(uint64_t pattern, enum form_type t)
{
    return value_of(pattern, type_bits(t), type_signed(t));
}

static inline wide least(unsigned bits, bool is_signed)
{
    /* NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): bits is at least 8 */
    return is_signed ? -((wide)1 << (bits - 1)) : 0;
}

static inline wide greatest(unsigned bits, bool is_signed)
{
    return ((wide)1 << (bits - is_signed)) - 1;
}

static inline wide clamped(wide value, unsigned bits, bool is_signed)
{
    return value < least(bits, is_signed)      ? least(bits, is_signed)
           : value > greatest(bits, is_signed) ? greatest(bits, is_signed)
                                               : value;
}

#endif
