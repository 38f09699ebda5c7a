/* Conversions. */
#include "ptx/conformance/soft.h"

#include "ptx/conformance/ints.h"

static const struct soft_format *format_of(enum form_type t)
{
    switch (t) {
    case T_F16:
    case T_F16X2: return &soft_f16;
    case T_BF16:
    case T_BF16X2: return &soft_bf16;
    case T_TF32: return &soft_tf32;
    case T_F32: return &soft_f32;
    case T_F64: return &soft_f64;
    case T_E4M3X2: return &soft_e4m3;
    case T_E5M2X2: return &soft_e5m2;
    default: return NULL;
    }
}

static enum soft_round round_of(const struct form *f)
{
    if (form_has(f, M_rna))
        return SOFT_RNA;
    if (form_has(f, M_rz) || form_has(f, M_rzi))
        return SOFT_RZ;
    if (form_has(f, M_rm) || form_has(f, M_rmi))
        return SOFT_RM;
    return form_has(f, M_rp) || form_has(f, M_rpi) ? SOFT_RP : SOFT_RN;
}

static bool rounds_to_integral(const struct form *f)
{
    return form_has(f, M_rni) || form_has(f, M_rzi) || form_has(f, M_rmi) || form_has(f, M_rpi);
}

/* From an exact value to a float, with all that a conversion may ask for. */
static uint64_t written(const struct form *f, struct soft value, enum form_type to)
{
    const struct soft_format *format = format_of(to);
    enum soft_round round = round_of(f);
    if (rounds_to_integral(f)) {
        value = soft_integral(value, round);
        round = SOFT_RN;
    }
    if (form_has(f, M_relu) && value.kind != SOFT_NAN && value.negative)
        value = soft_int(false, 0);
    uint64_t bits =
        form_has(f, M_satfinite) ? soft_write_finite(format, value, round) : soft_write(format, value, round);
    if (form_has(f, M_sat)) {
        struct soft result = soft_read(format, bits), one = soft_int(false, 1);
        if (result.kind == SOFT_NAN || result.negative)
            bits = 0;
        else if (soft_compare(result, one) > 0)
            bits = soft_write(format, one, SOFT_RN);
    }
    return form_has(f, M_ftz) && to == T_F32 ? soft_flush(format, bits) : bits;
}

static struct soft source(const struct form *f, uint64_t bits, enum form_type from)
{
    const struct soft_format *format = format_of(from);
    if (!format) {
        wide value = typed(bits, from);
        return soft_int(value < 0, (uint64_t)(value < 0 ? -value : value));
    }
    return soft_read(format, form_has(f, M_ftz) && from == T_F32 ? soft_flush(format, bits) : bits);
}

static void ref_cvt(const struct form *f, const uint64_t *in, uint64_t *out)
{
    enum form_type to = f->types[0], from = f->types[1];
    unsigned bits = type_bits(to);
    bool is_signed = type_signed(to);
    if (format_of(to)) {
        out[0] = written(f, source(f, in[0], from), to);
    } else if (format_of(from)) {
        out[0] = (uint64_t)soft_to_int(source(f, in[0], from), round_of(f), least(bits, is_signed),
                                       greatest(bits, is_signed));
    } else {
        wide value = typed(in[0], from);
        out[0] = form_has(f, M_sat) ? (uint64_t)clamped(value, bits, is_signed)
                                    : (uint64_t)value_of((uint64_t)value, bits, is_signed);
    }
}

/* Two f32 to a pair, the first one in the upper half. */
static void ref_pair(const struct form *f, const uint64_t *in, uint64_t *out)
{
    enum form_type to = f->types[0];
    unsigned bits = format_of(to)->bits;
    out[0] = written(f, source(f, in[0], T_F32), to) << bits | written(f, source(f, in[1], T_F32), to);
}

/* A pair to a pair. */
static void ref_repack(const struct form *f, const uint64_t *in, uint64_t *out)
{
    enum form_type to = f->types[0], from = f->types[1];
    unsigned bits = format_of(to)->bits, from_bits = format_of(from)->bits;
    uint64_t mask = (UINT64_C(1) << from_bits) - 1;
    for (unsigned i = 0; i < 2; i++)
        out[0] |= written(f, source(f, in[0] >> from_bits * i & mask, from), to) << bits * i;
}

static void ref_pack(const struct form *f, const uint64_t *in, uint64_t *out)
{
    enum form_type t = f->types[0];
    unsigned bits = type_bits(t);
    uint64_t mask = UINT64_MAX >> (64 - bits);
    uint64_t a = (uint64_t)clamped(value_of(in[0], 32, true), bits, type_signed(t)) & mask;
    uint64_t b = (uint64_t)clamped(value_of(in[1], 32, true), bits, type_signed(t)) & mask;
    /* NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): packed types have at most 16 bits */
    out[0] = a << bits | b | (bits < 16 ? in[2] << 2 * bits : 0);
}

#define FRND "<.rn|.rz|.rm|.rp>"
#define IRND "<.rni|.rzi|.rmi|.rpi>"
/* Types that fit a register of each size; narrow ones may live in wider registers. */
#define W "<.u8|.s8|.u16|.s16>"
#define I "<.u8|.s8|.u16|.s16|.u32|.s32>"
#define L "<.u8|.s8|.u16|.s16|.u32|.s32|.u64|.s64>"
#define TO_FLOAT(mods, type, k)                                                                                        \
    {"cvt" FRND mods type W " $D, $a", k ":w", ref_cvt, .cases = 256, .any_nan = true},                                \
        {"cvt" FRND mods type "<.u32|.s32> $D, $a", k ":i", ref_cvt},                                                  \
    {                                                                                                                  \
        "cvt" FRND mods type "<.u64|.s64> $D, $a", k ":l", ref_cvt                                                     \
    }
#define TO_INT(mods, type, k)                                                                                          \
    {"cvt" IRND mods W type " $D, $a", "w:" k, ref_cvt, .cases = 512},                                                 \
        {"cvt" IRND mods "<.u32|.s32>" type " $D, $a", "i:" k, ref_cvt},                                               \
    {                                                                                                                  \
        "cvt" IRND mods "<.u64|.s64>" type " $D, $a", "l:" k, ref_cvt                                                  \
    }
#define PLAIN(text, kinds)                                                                                             \
    {                                                                                                                  \
        "cvt" text " $D, $a", kinds, ref_cvt, .any_nan = true                                                          \
    }

const struct conform_row rows_cvt[] = {
    {"cvt" W W " $D, $a", "w:w", ref_cvt, .cases = 128},
    {"cvt" W I " $D, $a", "w:i", ref_cvt, .cases = 128},
    {"cvt" W L " $D, $a", "w:l", ref_cvt, .cases = 128},
    {"cvt" I W " $D, $a", "i:w", ref_cvt, .cases = 128},
    {"cvt" I I " $D, $a", "i:i", ref_cvt, .cases = 128},
    {"cvt" I L " $D, $a", "i:l", ref_cvt, .cases = 128},
    {"cvt" L W " $D, $a", "l:w", ref_cvt, .cases = 128},
    {"cvt" L I " $D, $a", "l:i", ref_cvt, .cases = 128},
    {"cvt" L L " $D, $a", "l:l", ref_cvt, .cases = 128},
    {"cvt.sat<.u8.s8|.u8.u16|.u8.s16|.s8.u8|.s8.u16|.s8.s16|.u16.s8|.u16.s16|.s16.u16> $D, $a", "w:w", ref_cvt},
    {"cvt.sat<.u8.u32|.u8.s32|.s8.u32|.s8.s32|.u16.u32|.u16.s32|.s16.u32|.s16.s32> $D, $a", "w:i", ref_cvt},
    {"cvt.sat<.u8.u64|.u8.s64|.s8.u64|.s8.s64|.u16.u64|.u16.s64|.s16.u64|.s16.s64> $D, $a", "w:l", ref_cvt},
    {"cvt.sat<.u32.s8|.u32.s16|.u8.s16> $D, $a", "i:w", ref_cvt},
    {"cvt.sat<.u32.s32|.s32.u32|.u8.s32|.s16.u32> $D, $a", "i:i", ref_cvt},
    {"cvt.sat<.u32.u64|.u32.s64|.s32.u64|.s32.s64> $D, $a", "i:l", ref_cvt},
    {"cvt.sat<.u64.s8|.u64.s16|.s16.u16> $D, $a", "l:w", ref_cvt},
    {"cvt.sat.u64.s32 $D, $a", "l:i", ref_cvt},
    {"cvt.sat<.u64.s64|.s64.u64> $D, $a", "l:l", ref_cvt},
    TO_FLOAT("<|.ftz><|.sat>", ".f32", "f"),
    TO_FLOAT("<|.sat>", ".f64", "d"),
    TO_FLOAT("<|.sat>", ".f16", "h"),
    TO_FLOAT("", ".bf16", "b"),
    TO_INT("<|.ftz><|.sat>", ".f32", "f"),
    TO_INT("<|.sat>", ".f64", "d"),
    TO_INT("<|.sat>", ".f16", "h"),
    TO_INT("<|.sat>", ".bf16", "b"),
    {"cvt.rzi<.u8|.s8|.u16|.s16>.f32 $D, $a", "i:f", ref_cvt},
    {"cvt.rzi<.u8|.s8|.u16|.s16|.u32|.s32>.f64 $D, $a", "l:d", ref_cvt},
    PLAIN("<|.ftz><|.sat>.f32.f32", "f:f"),
    PLAIN(IRND "<|.ftz><|.sat>.f32.f32", "f:f"),
    PLAIN("<|.sat>.f64.f64", "d:d"),
    PLAIN(IRND "<|.sat>.f64.f64", "d:d"),
    PLAIN("<|.sat>.f16.f16", "h:h"),
    PLAIN(IRND "<|.sat>.f16.f16", "h:h"),
    PLAIN(".bf16.bf16", "b:b"),
    PLAIN(IRND ".bf16.bf16", "b:b"),
    PLAIN(FRND "<|.ftz><|.sat>.f32.f64", "f:d"),
    PLAIN("<|.ftz><|.sat>.f64.f32", "d:f"),
    PLAIN("<|.ftz><|.sat>.f32.f16", "f:h"),
    PLAIN("<|.sat>.f64.f16", "d:h"),
    PLAIN("<|.ftz><|.sat>.f32.bf16", "f:b"),
    PLAIN("<|.sat>.f64.bf16", "d:b"),
    PLAIN(FRND "<|.ftz><|.sat>.f16.f32", "h:f"),
    PLAIN(FRND "<|.sat>.f16.f64", "h:d"),
    PLAIN(FRND "<|.sat>.f16.bf16", "h:b"),
    PLAIN(FRND "<|.ftz>.bf16.f32", "b:f"),
    PLAIN(FRND ".bf16.f64", "b:d"),
    PLAIN(FRND ".bf16.f16", "b:h"),
    {"cvt<.rn|.rz><.relu|.satfinite|.relu.satfinite><.f16|.bf16>.f32 $D, $a", "w:f", ref_cvt},
    {"cvt<.rn|.rz><|.relu><|.satfinite><.f16x2|.bf16x2>.f32 $D, $a, $b", "i:ff", ref_pair},
    {"cvt.rna<|.satfinite>.tf32.f32 $D, $a", "i:f", ref_cvt},
    {"cvt<.rn|.rz><|.relu><|.satfinite>.tf32.f32 $D, $a", "i:f", ref_cvt},
    {"cvt.rn.satfinite<|.relu><.e4m3x2|.e5m2x2>.f32 $D, $a, $b", "t:ff", ref_pair},
    {"cvt.rn.satfinite<|.relu><.e4m3x2|.e5m2x2>.f16x2 $D, $a", "t:x", ref_repack},
    {"cvt.rn<|.relu>.f16x2<.e4m3x2|.e5m2x2> $D, $a", "i:t", ref_repack},
    {"cvt.pack.sat<.u16|.s16>.s32 $D, $a, $b", "i:ii", ref_pack},
    {"cvt.pack.sat<.u8|.s8|.u4|.s4|.u2|.s2>.s32.b32 $D, $a, $b, $c", "i:iii", ref_pack},
};
const size_t rows_cvt_count = sizeof(rows_cvt) / sizeof(rows_cvt[0]);
