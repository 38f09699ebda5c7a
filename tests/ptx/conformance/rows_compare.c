/* setp and set. */
#include "ptx/conformance/soft.h"

#include "ptx/conformance/ints.h"

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

/* -1, 0, 1; 2 = not comparable. */
static int order_of(const struct form *f, enum form_type t, uint64_t x, uint64_t y)
{
    const struct soft_format *format = format_of(t);
    if (!format) {
        wide a = typed(x, t), b = typed(y, t);
        return a < b ? -1 : a > b;
    }
    if (form_has(f, M_ftz)) {
        x = soft_flush(format, x);
        y = soft_flush(format, y);
    }
    return soft_compare(soft_read(format, x), soft_read(format, y));
}

static bool holds(const struct form *f, int order)
{
    bool unordered = order == 2;
    if (form_has(f, M_eq) || form_has(f, M_equ))
        return order == 0 || (unordered && form_has(f, M_equ));
    if (form_has(f, M_ne) || form_has(f, M_neu))
        return (order != 0 && !unordered) || (unordered && form_has(f, M_neu));
    if (form_has(f, M_lt) || form_has(f, M_lo) || form_has(f, M_ltu))
        return order == -1 || (unordered && form_has(f, M_ltu));
    if (form_has(f, M_le) || form_has(f, M_ls) || form_has(f, M_leu))
        return order == -1 || order == 0 || (unordered && form_has(f, M_leu));
    if (form_has(f, M_gt) || form_has(f, M_hi) || form_has(f, M_gtu))
        return order == 1 || (unordered && form_has(f, M_gtu));
    if (form_has(f, M_ge) || form_has(f, M_hs) || form_has(f, M_geu))
        return order == 1 || order == 0 || (unordered && form_has(f, M_geu));
    return unordered == form_has(f, M_nan);
}

static bool combined(const struct form *f, bool value, bool c)
{
    return form_has(f, M_and) ? value && c : form_has(f, M_or) ? value || c : form_has(f, M_xor) ? value != c : value;
}

/* p|q: q has the opposite of the comparison; for pairs of halves, p has the low half's and q the high half's. */
static void ref_setp(const struct form *f, const uint64_t *in, uint64_t *out)
{
    enum form_type t = f->types[0];
    if (t == T_F16X2 || t == T_BF16X2) {
        for (unsigned i = 0; i < 2; i++)
            out[i] =
                combined(f, holds(f, order_of(f, t, in[0] >> 16 * i & 0xffff, in[1] >> 16 * i & 0xffff)), in[2] & 1);
        return;
    }
    bool value = holds(f, order_of(f, t, in[0], in[1]));
    out[0] = combined(f, value, in[2] & 1);
    out[1] = combined(f, !value, in[2] & 1);
}

static void ref_set(const struct form *f, const uint64_t *in, uint64_t *out)
{
    enum form_type to = f->types[0], from = f->types[1];
    bool pair = from == T_F16X2 || from == T_BF16X2;
    unsigned bits = pair ? 16 : type_bits(to);
    const struct soft_format *format = format_of(to);
    for (unsigned i = 0; i < (pair ? 2u : 1u); i++) {
        uint64_t a = pair ? in[0] >> 16 * i & 0xffff : in[0], b = pair ? in[1] >> 16 * i & 0xffff : in[1];
        if (combined(f, holds(f, order_of(f, from, a, b)), in[2] & 1))
            out[0] |= (format ? soft_write(format, soft_int(false, 1), SOFT_RN) : UINT64_MAX >> (64 - bits)) << 16 * i;
    }
}

#define UNSIGNED "<.eq|.ne|.lt|.le|.gt|.ge|.lo|.ls|.hi|.hs>"
#define SIGNED "<.eq|.ne|.lt|.le|.gt|.ge>"
#define EQUAL "<.eq|.ne>"
#define FLOAT "<.eq|.ne|.lt|.le|.gt|.ge|.equ|.neu|.ltu|.leu|.gtu|.geu|.num|.nan>"
#define BOOL "<.and|.or|.xor>"
#define SETP(cmp, mods, type, k)                                                                                       \
    {"setp" cmp mods type " $D, $a, $b", "p:" k k, ref_setp},                                                          \
    {                                                                                                                  \
        "setp" cmp BOOL mods type " $D|$E, $a, $b, $c", "pp:" k k "p", ref_setp, .cases = 768                          \
    }
#define SET(cmp, mods, to, type, d, k)                                                                                 \
    {"set" cmp mods to type " $D, $a, $b", d ":" k k, ref_set, .cases = 512},                                          \
    {                                                                                                                  \
        "set" cmp BOOL mods to type " $D, $a, $b, $c", d ":" k k "p", ref_set, .cases = 128                            \
    }

const struct conform_row rows_compare[] = {
    SETP(EQUAL, "", ".b16", "w"),
    SETP(EQUAL, "", ".b32", "i"),
    SETP(EQUAL, "", ".b64", "l"),
    SETP(UNSIGNED, "", ".u16", "w"),
    SETP(UNSIGNED, "", ".u32", "i"),
    SETP(UNSIGNED, "", ".u64", "l"),
    SETP(SIGNED, "", ".s16", "w"),
    SETP(SIGNED, "", ".s32", "i"),
    SETP(SIGNED, "", ".s64", "l"),
    SETP(FLOAT, "<|.ftz>", ".f32", "f"),
    SETP(FLOAT, "", ".f64", "d"),
    SETP(FLOAT, "<|.ftz>", ".f16", "h"),
    SETP(FLOAT, "", ".bf16", "b"),
    {"setp" FLOAT "<|.ftz>.f16x2 $D|$E, $a, $b", "pp:xx", ref_setp},
    {"setp" FLOAT BOOL "<|.ftz>.f16x2 $D|$E, $a, $b, $c", "pp:xxp", ref_setp, .cases = 512},
    {"setp" FLOAT ".bf16x2 $D|$E, $a, $b", "pp:yy", ref_setp},
    {"setp" FLOAT BOOL ".bf16x2 $D|$E, $a, $b, $c", "pp:yyp", ref_setp, .cases = 512},
    SET(EQUAL, "", "<.u32|.s32|.f32>", ".b16", "i", "w"),
    SET(EQUAL, "", "<.u32|.s32|.f32>", ".b32", "i", "i"),
    SET(EQUAL, "", "<.u32|.s32|.f32>", ".b64", "i", "l"),
    SET(UNSIGNED, "", "<.u32|.s32|.f32>", ".u16", "i", "w"),
    SET(UNSIGNED, "", "<.u32|.s32|.f32>", ".u32", "i", "i"),
    SET(UNSIGNED, "", "<.u32|.s32|.f32>", ".u64", "i", "l"),
    SET(SIGNED, "", "<.u32|.s32|.f32>", ".s16", "i", "w"),
    SET(SIGNED, "", "<.u32|.s32|.f32>", ".s32", "i", "i"),
    SET(SIGNED, "", "<.u32|.s32|.f32>", ".s64", "i", "l"),
    SET(FLOAT, "<|.ftz>", "<.u32|.s32|.f32>", ".f32", "i", "f"),
    SET(FLOAT, "", "<.u32|.s32|.f32>", ".f64", "i", "d"),
    SET(EQUAL, "", "<.f16|.bf16>", ".b16", "w", "w"),
    SET(EQUAL, "", "<.f16|.bf16>", ".b32", "w", "i"),
    SET(EQUAL, "", "<.f16|.bf16>", ".b64", "w", "l"),
    SET(UNSIGNED, "", "<.f16|.bf16>", ".u16", "w", "w"),
    SET(SIGNED, "", "<.f16|.bf16>", ".s16", "w", "w"),
    SET(UNSIGNED, "", "<.f16|.bf16>", ".u32", "w", "i"),
    SET(SIGNED, "", "<.f16|.bf16>", ".s32", "w", "i"),
    SET(UNSIGNED, "", "<.f16|.bf16>", ".u64", "w", "l"),
    SET(SIGNED, "", "<.f16|.bf16>", ".s64", "w", "l"),
    SET(FLOAT, "<|.ftz>", "<.f16|.bf16>", ".f16", "w", "h"),
    SET(FLOAT, "<|.ftz>", "<.f16|.bf16>", ".f32", "w", "f"),
    SET(FLOAT, "", "<.f16|.bf16>", ".f64", "w", "d"),
    SET(FLOAT, "<|.ftz>", "<.u16|.s16>", ".f16", "w", "h"),
    SET(FLOAT, "<|.ftz>", "<.u32|.s32>", ".f16", "i", "h"),
    SET(FLOAT, "", "<.u16|.s16>", ".bf16", "w", "b"),
    SET(FLOAT, "", "<.u32|.s32>", ".bf16", "i", "b"),
    SET(FLOAT, "<|.ftz>", "<.f16x2|.u32|.s32>", ".f16x2", "i", "x"),
    SET(FLOAT, "", "<.bf16x2|.u32|.s32>", ".bf16x2", "i", "y"),
};
const size_t rows_compare_count = sizeof(rows_compare) / sizeof(rows_compare[0]);
