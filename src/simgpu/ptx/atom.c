/*
 * Atomic read-modify-write on one element. Real C atomics, because blocks on other host threads, other simulated devices
 * and the host may work on the same memory.
 */
#include "simgpu/ptx/half.h"
#include "simgpu/ptx/out.h"
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

/* One rounding: the sum of two halves is exact in a double; of two bfloat16 it is rounded to odd first. Subnormals stay. */
static uint16_t half_op(enum ptx_atom_op op, bool is_bf16, uint16_t a, uint16_t b)
{
    float x = is_bf16 ? ptx_bf16_float(a) : ptx_half_float(a), y = is_bf16 ? ptx_bf16_float(b) : ptx_half_float(b);
    if (op == PTX_ATOM_ADD) {
        float sum = ptx_double_odd((double)x + (double)y);
        return is_bf16 ? ptx_float_bf16(sum) : ptx_float_half(sum);
    }
    if (x != x || y != y)
        return x == x ? a : y == y ? b : 0x7fff;
    if (x == y) /* zeros of different sign */
        return op == PTX_ATOM_MIN ? a | b : a & b;
    return (x < y) == (op == PTX_ATOM_MIN) ? a : b;
}

static uint64_t apply_half(enum ptx_atom_op op, enum ptx_atom_type type, uint64_t a, uint64_t b)
{
    bool is_bf16 = type == PTX_ATOM_BF16 || type == PTX_ATOM_BF16X2;
    uint32_t low = half_op(op, is_bf16, (uint16_t)a, (uint16_t)b);
    if (type == PTX_ATOM_F16 || type == PTX_ATOM_BF16)
        return low;
    return low | (uint32_t)half_op(op, is_bf16, (uint16_t)(a >> 16), (uint16_t)(b >> 16)) << 16;
}

static bool is_half(enum ptx_atom_type type)
{
    return type >= PTX_ATOM_F16 && type <= PTX_ATOM_BF16X2;
}

static uint64_t apply(enum ptx_atom_op op, enum ptx_atom_type type, uint64_t a, uint64_t b, uint64_t c, bool is_global)
{
    if (is_half(type))
        return apply_half(op, type, a, b);
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
    if (op == PTX_ATOM_ADD && type != PTX_ATOM_F32 && !is_half(type))
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

static uint64_t atom16(uint16_t *p, enum ptx_atom_op op, enum ptx_atom_type type, uint16_t b, uint16_t c)
{
    uint16_t old = __atomic_load_n(p, __ATOMIC_RELAXED), new;
    do {
        new = (uint16_t)apply(op, type, old, b, c, true);
    } while (!__atomic_compare_exchange_n(p, &old, new, true, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
    return old;
}

uint64_t ptx_atom(void *p, enum ptx_atom_op op, enum ptx_atom_type type, uint64_t b, uint64_t c, bool is_global)
{
    switch (type) {
    case PTX_ATOM_U64:
    case PTX_ATOM_S64:
    case PTX_ATOM_F64: return atom64(p, op, type, b, c, is_global);
    case PTX_ATOM_F16:
    case PTX_ATOM_BF16:
    case PTX_ATOM_U16: return atom16(p, op, type, (uint16_t)b, (uint16_t)c);
    default: return atom32(p, op, type, (uint32_t)b, (uint32_t)c, is_global);
    }
}

static uint64_t element(const uint8_t *at, unsigned log2, unsigned lane)
{
    return log2 == 1 ? ((const uint16_t *)at)[lane] : ((const uint32_t *)at)[lane];
}

bool ptx_out_vector_atom(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *in, uint8_t *regs,
                         uint32_t active, uint32_t pc)
{
    uint32_t params = PTX_OUT_PARAMS(in->aux), count = params >> 8 & 15, log2 = params >> 12 & 3;
    enum ptx_atom_op op = (enum ptx_atom_op)(params & 15);
    enum ptx_atom_type type = (enum ptx_atom_type)(params >> 4 & 15);
    struct ptx_access access = {PTX_SPACE_GLOBAL, count << log2, count << log2, true, pc, true};
    const uint64_t *address = (const uint64_t *)ptx_out_at(r, regs, in, count);
    PTX_FOR_LANES (lane, active) {
        uint64_t old[8];
        uint8_t *at = ptx_run_at(r, w, &access, lane, address[lane], NULL);
        if (!at)
            return false;
        for (unsigned i = 0; i < count; i++) /* all results behind all operands: they may be the same registers */
            old[i] = ptx_atom(at + (i << log2), op, type, element(ptx_out_at(r, regs, in, count + 1 + i), log2, lane),
                              0, true);
        for (unsigned i = 0; i < count && ptx_out_has(r, in, i); i++) {
            if (log2 == 1)
                ((uint16_t *)ptx_out_at(r, regs, in, i))[lane] = (uint16_t)old[i];
            else
                ((uint32_t *)ptx_out_at(r, regs, in, i))[lane] = (uint32_t)old[i];
        }
    }
    return true;
}

/* Compilers make a library call of this on x86-64, to a library that need not be there. */
static unsigned __int128 swap128(unsigned __int128 *p, unsigned __int128 old, unsigned __int128 new)
{
#if defined(__x86_64__)
    uint64_t low = (uint64_t)old, high = (uint64_t)(old >> 64);
    __asm__ volatile("lock cmpxchg16b %0"
                     : "+m"(*p), "+a"(low), "+d"(high)
                     : "b"((uint64_t) new), "c"((uint64_t)(new >> 64))
                     : "cc", "memory");
    return (unsigned __int128)high << 64 | low;
#else
    return __sync_val_compare_and_swap(p, old, new);
#endif
}

static unsigned __int128 atom128(unsigned __int128 *p, bool is_cas, unsigned __int128 b, unsigned __int128 c)
{
    if (is_cas)
        return swap128(p, b, c);
    unsigned __int128 guess = 0, seen;
    while ((seen = swap128(p, guess, b)) != guess)
        guess = seen;
    return guess;
}

bool ptx_out_wide_atom(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *in, uint8_t *regs, uint32_t active,
                       uint32_t pc)
{
    uint32_t params = PTX_OUT_PARAMS(in->aux);
    bool is_cas = params & 1;
    struct ptx_access access = {(enum ptx_space)(params >> 4), 16, 16, true, pc, true};
    const uint64_t *value[7] = {NULL};
    for (unsigned k = 2; k < 5u + 2 * is_cas; k++)
        value[k] = (const uint64_t *)ptx_out_at(r, regs, in, k);
    PTX_FOR_LANES (lane, active) {
        /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): operands 2 to 4 are always there */
        uint8_t *at = ptx_run_at(r, w, &access, lane, value[2][lane], NULL);
        if (!at)
            return false;
        /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): the same */
        unsigned __int128 b = (unsigned __int128)value[4][lane] << 64 | value[3][lane], c = 0;
        if (is_cas)
            c = (unsigned __int128)value[6][lane] << 64 | value[5][lane];
        unsigned __int128 old = atom128((unsigned __int128 *)(void *)at, is_cas, b, c);
        ((uint64_t *)ptx_out_at(r, regs, in, 0))[lane] = (uint64_t)old;
        ((uint64_t *)ptx_out_at(r, regs, in, 1))[lane] = (uint64_t)(old >> 64);
    }
    return true;
}
