/* Loads, stores and atomics on eight bytes of a thread's own: what they read, compute and leave. Order and scope between
 * threads are tests/ptx/test_memory.c's. */
#include "ptx/conformance/soft.h"

#include "ptx/conformance/ints.h"

#include <string.h>

static const struct soft_format *format_of(enum form_type t)
{
    switch (t) {
    case T_F16:
    case T_F16X2: return &soft_f16;
    case T_BF16:
    case T_BF16X2: return &soft_bf16;
    case T_F32: return &soft_f32;
    case T_F64: return &soft_f64;
    default: return NULL;
    }
}

/* An element of a vector has the type's bits; the register may be wider. */
static void ref_load(const struct form *f, const uint64_t *in, uint64_t *out)
{
    unsigned bits = type_bits(f->types[0]), parts = 1;
    for (const char *c = strchr(f->text, '{'); c && *c != '}'; c++)
        parts += *c == ',';
    for (unsigned i = 0; i < parts; i++)
        out[i] = (uint64_t)typed(in[0] >> (bits * i) % 64, f->types[0]);
}

static void ref_store(const struct form *f, const uint64_t *in, uint64_t *out)
{
    unsigned bits = type_bits(f->types[0]), parts = 1;
    for (const char *c = strchr(f->text, '{'); c && *c != '}'; c++)
        parts += *c == ',';
    out[0] = in[0];
    for (unsigned i = 0; i < parts; i++) {
        uint64_t mask = (UINT64_MAX >> (64 - bits)) << bits * i;
        out[0] = (out[0] & ~mask) | (in[1 + i] << bits * i & mask);
    }
}

/* One element; halves of a pair each on their own. In global memory, sums of f32 flush subnormals. */
static uint64_t combined(const struct form *f, uint64_t old, uint64_t b, uint64_t c)
{
    enum form_type t = f->types[0];
    const struct soft_format *format = format_of(t);
    uint64_t low = typed(old, t) < typed(b, t) ? old : b, high = typed(old, t) < typed(b, t) ? b : old;
    if (form_has(f, M_add) && t == T_F32)
        return soft_flush(format, soft_write(format,
                                             soft_add(soft_read(format, soft_flush(format, old)),
                                                      soft_read(format, soft_flush(format, b))),
                                             SOFT_RN));
    if (form_has(f, M_add) && format)
        return soft_write(format, soft_add(soft_read(format, old), soft_read(format, b)), SOFT_RN);
    if (form_has(f, M_add))
        return old + b;
    if (form_has(f, M_min) || form_has(f, M_max))
        return form_has(f, M_min) ? low : high;
    if (form_has(f, M_inc))
        return old >= b ? 0 : old + 1;
    if (form_has(f, M_dec))
        return old == 0 || old > b ? b : old - 1;
    if (form_has(f, M_and))
        return old & b;
    if (form_has(f, M_or))
        return old | b;
    if (form_has(f, M_xor))
        return old ^ b;
    return form_has(f, M_exch) || old == b ? (form_has(f, M_cas) ? c : b) : old;
}

/* in: the cell, then the operands. out: what it held (atom only), then the cell. */
static void ref_atom(const struct form *f, const uint64_t *in, uint64_t *out)
{
    enum form_type t = f->types[0];
    bool is_pair = t == T_F16X2 || t == T_BF16X2, is_atom = !strcmp(f->name, "atom");
    unsigned bits = type_bits(t), part = is_pair ? 16 : bits;
    uint64_t mask = UINT64_MAX >> (64 - bits), part_mask = UINT64_MAX >> (64 - part), old = in[0] & mask, value = 0;
    for (unsigned at = 0; at < bits; at += part)
        value |= (combined(f, old >> at & part_mask, in[1] >> at & part_mask, in[2] >> at & part_mask) & part_mask)
                 << at;
    if (is_atom)
        out[0] = old;
    out[is_atom ? 1 : 0] = (in[0] & ~mask) | value;
}

#define REDUCTIONS(X)                                                                                                  \
    X("<|.global>.add", "<.u32|.s32>", "i")                                                                            \
    X("<|.global>.add", ".u64", "l")                                                                                   \
    X("<|.global>.add", ".f32", "f")                                                                                   \
    X(".global.add", ".f64", "d")                                                                                      \
    X(".global.add.noftz", ".f16", "h")                                                                                \
    X(".global.add.noftz", ".bf16", "b")                                                                               \
    X(".global.add.noftz", ".f16x2", "x")                                                                              \
    X(".global.add.noftz", ".bf16x2", "y")                                                                             \
    X("<|.global><.min|.max>", "<.u32|.s32>", "i")                                                                     \
    X("<|.global><.min|.max>", "<.u64|.s64>", "l")                                                                     \
    X("<|.global><.inc|.dec>", ".u32", "i")                                                                            \
    X("<|.global><.and|.or|.xor>", ".b32", "i")                                                                        \
    X("<|.global><.and|.or|.xor>", ".b64", "l")
#define ATOM(ops, type, k) {"atom" ops type " $D, [$a], $b", k "m:m" k, ref_atom, .open = true},
#define RED(ops, type, k) {"red" ops type " [$a], $b", "m:m" k, ref_atom, .open = true},

const struct conform_row rows_memory[] = {
    {"ld<|.global><.b8|.u8|.s8|.b16|.u16|.s16> $D, [$a]", "w:m", ref_load, .cases = 128, .open = true},
    {"ld<|.global><.b8|.u8|.s8|.b16|.u16|.s16|.b32|.u32|.s32|.f32> $D, [$a]", "i:m", ref_load, .cases = 128,
     .open = true},
    {"ld<|.global><.u8|.s8|.u16|.s16|.u32|.s32|.b64|.u64|.s64|.f64> $D, [$a]", "l:m", ref_load, .cases = 128,
     .open = true},
    {"ld<|.global>.v2<.u8|.s8|.u16|.s16> {$D, $E}, [$a]", "ww:m", ref_load, .cases = 128, .open = true},
    {"ld<|.global>.v2<.b32|.u32|.s32|.f32> {$D, $E}, [$a]", "ii:m", ref_load, .cases = 128, .open = true},
    {"ld<|.global>.v4<.u8|.s8|.u16|.s16> {$D, $E, $F, $G}, [$a]", "wwww:m", ref_load, .cases = 128, .open = true},
    {"ld<.volatile|.relaxed.gpu|.acquire.sys>.global<.u32|.s32|.f32> $D, [$a]", "i:m", ref_load, .cases = 128,
     .open = true},
    {"ldu.global<.u32|.s32|.f32> $D, [$a]", "i:m", ref_load, .cases = 128, .open = true},
    {"st<|.global><.b8|.u8|.s8|.b16|.u16|.s16> [$a], $b", "m:mw", ref_store, .cases = 128, .open = true},
    {"st<|.global><.u8|.u16|.b32|.u32|.s32|.f32> [$a], $b", "m:mi", ref_store, .cases = 128, .open = true},
    {"st<|.global><.u8|.u16|.u32|.b64|.u64|.s64|.f64> [$a], $b", "m:ml", ref_store, .cases = 128, .open = true},
    {"st<|.global>.v2<.u8|.u16> [$a], {$b, $c}", "m:mww", ref_store, .cases = 128, .open = true},
    {"st<|.global>.v2<.b32|.u32|.s32|.f32> [$a], {$b, $c}", "m:mii", ref_store, .cases = 128, .open = true},
    {"st<|.global>.v4<.u8|.u16> [$a], {$b, $c, $d, $e}", "m:mwwww", ref_store, .cases = 128, .open = true},
    {"st<.volatile|.relaxed.gpu|.release.sys>.global<.u32|.s32|.f32> [$a], $b", "m:mi", ref_store, .cases = 128,
     .open = true},
    REDUCTIONS(ATOM){"atom<|.global>.exch.b32 $D, [$a], $b", "im:mi", ref_atom, .open = true},
    {"atom<|.global>.exch.b64 $D, [$a], $b", "lm:ml", ref_atom, .open = true},
    {"atom<|.global>.cas.b16 $D, [$a], $b, $c", "wm:mww", ref_atom, .open = true},
    {"atom<|.global>.cas.b32 $D, [$a], $b, $c", "im:mii", ref_atom, .open = true},
    {"atom<|.global>.cas.b64 $D, [$a], $b, $c", "lm:mll", ref_atom, .open = true},
    REDUCTIONS(RED)};
const size_t rows_memory_count = sizeof(rows_memory) / sizeof(rows_memory[0]);
