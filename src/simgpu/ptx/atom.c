/*
 * Atomic read-modify-write on one element. Real C atomics, because blocks on other host threads, other simulated devices
 * and the host may work on the same memory.
 */
#include "simgpu/ptx/run.h"

#include <string.h>

static float flush(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    if (!(bits & 0x7f800000u))
        bits &= 0x80000000u;
    memcpy(&x, &bits, 4);
    return x;
}

/* On global memory f32 additions flush subnormals, on shared memory they do not: so says the ISA. */
static uint64_t add_f32(uint64_t a, uint64_t b, bool flushes)
{
    uint32_t low = (uint32_t)a, bits;
    float x, y, sum;
    memcpy(&x, &low, 4);
    low = (uint32_t)b;
    memcpy(&y, &low, 4);
    sum = flushes ? flush(flush(x) + flush(y)) : x + y;
    memcpy(&bits, &sum, 4);
    return sum == sum ? bits : 0x7fffffffu;
}

static uint64_t add_f64(uint64_t a, uint64_t b)
{
    double x, y;
    memcpy(&x, &a, 8);
    memcpy(&y, &b, 8);
    x += y;
    memcpy(&a, &x, 8);
    return x == x ? a : UINT64_C(0x7ff8000000000000);
}

static bool less(enum ptx_atom_type type, uint64_t a, uint64_t b)
{
    switch (type) {
    case PTX_ATOM_S32: return (int32_t)a < (int32_t)b;
    case PTX_ATOM_S64: return (int64_t)a < (int64_t)b;
    case PTX_ATOM_U32: return (uint32_t)a < (uint32_t)b;
    default: return a < b;
    }
}

static uint64_t apply(enum ptx_atom_op op, enum ptx_atom_type type, uint64_t a, uint64_t b, uint64_t c, bool is_global)
{
    switch (op) {
    case PTX_ATOM_ADD:
        return type == PTX_ATOM_F32 ? add_f32(a, b, is_global) : type == PTX_ATOM_F64 ? add_f64(a, b) : a + b;
    case PTX_ATOM_MIN: return less(type, b, a) ? b : a;
    case PTX_ATOM_MAX: return less(type, a, b) ? b : a;
    case PTX_ATOM_INC: return (uint32_t)a >= (uint32_t)b ? 0 : a + 1;
    case PTX_ATOM_DEC: return (uint32_t)a == 0 || (uint32_t)a > (uint32_t)b ? b : a - 1;
    case PTX_ATOM_AND: return a & b;
    case PTX_ATOM_OR: return a | b;
    case PTX_ATOM_XOR: return a ^ b;
    case PTX_ATOM_EXCH: return b;
    default: return a == b ? c : a;
    }
}

static uint64_t atom32(uint32_t *p, enum ptx_atom_op op, enum ptx_atom_type type, uint32_t b, uint32_t c,
                       bool is_global)
{
    if (op == PTX_ATOM_ADD && type != PTX_ATOM_F32)
        return __atomic_fetch_add(p, b, __ATOMIC_ACQ_REL);
    if (op == PTX_ATOM_EXCH)
        return __atomic_exchange_n(p, b, __ATOMIC_ACQ_REL);
    uint32_t old = __atomic_load_n(p, __ATOMIC_RELAXED), new;
    do {
        new = (uint32_t)apply(op, type, old, b, c, is_global);
    } while (!__atomic_compare_exchange_n(p, &old, new, true, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
    return old;
}

static uint64_t atom64(uint64_t *p, enum ptx_atom_op op, enum ptx_atom_type type, uint64_t b, uint64_t c,
                       bool is_global)
{
    if (op == PTX_ATOM_ADD && type != PTX_ATOM_F64)
        return __atomic_fetch_add(p, b, __ATOMIC_ACQ_REL);
    if (op == PTX_ATOM_EXCH)
        return __atomic_exchange_n(p, b, __ATOMIC_ACQ_REL);
    uint64_t old = __atomic_load_n(p, __ATOMIC_RELAXED), new;
    do {
        new = apply(op, type, old, b, c, is_global);
    } while (!__atomic_compare_exchange_n(p, &old, new, true, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
    return old;
}

uint64_t ptx_atom(void *p, enum ptx_atom_op op, enum ptx_atom_type type, uint64_t b, uint64_t c, bool is_global)
{
    bool wide = type == PTX_ATOM_U64 || type == PTX_ATOM_S64 || type == PTX_ATOM_F64;
    return wide ? atom64(p, op, type, b, c, is_global) : atom32(p, op, type, (uint32_t)b, (uint32_t)c, is_global);
}
