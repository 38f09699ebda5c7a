/* Logic, shifts, bit fields, permutations, selections. */
#include "ptx/conformance/ints.h"

#include <string.h>

static bool is(const struct form *f, const char *name)
{
    return !strcmp(f->name, name);
}

static void ref_logic(const struct form *f, const uint64_t *in, uint64_t *out)
{
    uint64_t a = in[0], b = in[1];
    if (is(f, "and"))
        out[0] = a & b;
    else if (is(f, "or"))
        out[0] = a | b;
    else if (is(f, "xor"))
        out[0] = a ^ b;
    else if (is(f, "not"))
        out[0] = f->types[0] == T_PRED ? !a : ~a;
    else
        out[0] = value_of(a, type_bits(f->types[0]), false) == 0;
}

/* Bit by bit. */
static void ref_shift(const struct form *f, const uint64_t *in, uint64_t *out)
{
    unsigned bits = type_bits(f->types[0]);
    bool left = is(f, "shl"), fill = type_signed(f->types[0]) && in[0] >> (bits - 1) & 1;
    for (unsigned i = 0; i < bits; i++) {
        uint64_t from = left ? i - in[1] : i + in[1];
        bool inside = left ? i >= in[1] : from < bits;
        out[0] |= (uint64_t)(inside ? in[0] >> from & 1 : !left && fill) << i;
    }
}

static void ref_funnel(const struct form *f, const uint64_t *in, uint64_t *out)
{
    unsigned n = (unsigned)(form_has(f, M_wrap) ? in[2] & 31 : in[2] > 32 ? 32 : in[2]);
    unsigned __int128 both = (unsigned __int128)in[1] << 32 | in[0];
    out[0] = (uint64_t)(form_has(f, M_l) ? both << n >> 32 : both >> n);
}

static void ref_count(const struct form *f, const uint64_t *in, uint64_t *out)
{
    unsigned bits = type_bits(f->types[0]);
    uint64_t ones = 0, reversed = 0;
    int top = -1;
    bool negative = type_signed(f->types[0]) && in[0] >> (bits - 1) & 1;
    for (unsigned i = 0; i < bits; i++) {
        bool bit = in[0] >> i & 1;
        ones += bit;
        reversed |= (uint64_t)bit << (bits - 1 - i);
        if (bit != negative)
            top = (int)i;
    }
    if (is(f, "popc"))
        out[0] = ones;
    else if (is(f, "brev"))
        out[0] = reversed;
    else if (is(f, "clz"))
        out[0] = (uint64_t)((int)bits - 1 - top);
    else
        out[0] = top < 0 ? UINT32_MAX : (uint64_t)(form_has(f, M_shiftamt) ? (int)bits - 1 - top : top);
}

static void ref_bfe(const struct form *f, const uint64_t *in, uint64_t *out)
{
    unsigned bits = type_bits(f->types[0]), pos = in[1] & 255, len = in[2] & 255;
    unsigned last = pos + len - 1 < bits - 1 ? pos + len - 1 : bits - 1;
    bool fill = type_signed(f->types[0]) && len && in[0] >> last & 1;
    for (unsigned i = 0; i < bits; i++)
        out[0] |= (uint64_t)(i < len && pos + i < bits ? in[0] >> (pos + i) & 1 : fill) << i;
}

static void ref_bfi(const struct form *f, const uint64_t *in, uint64_t *out)
{
    unsigned bits = type_bits(f->types[0]), pos = in[2] & 255, len = in[3] & 255;
    out[0] = in[1];
    for (unsigned i = 0; i < len && pos + i < bits; i++)
        out[0] = (out[0] & ~((uint64_t)1 << (pos + i))) | (in[0] >> i & 1) << (pos + i);
}

/* A mask of `width` ones from `position` on. */
static void ref_bmsk(const struct form *f, const uint64_t *in, uint64_t *out)
{
    uint64_t position = form_has(f, M_wrap) ? in[0] % 32 : in[0], width = form_has(f, M_wrap) ? in[1] % 32 : in[1];
    for (uint64_t i = 0; i < 32; i++)
        out[0] |= (uint64_t)(i >= position && i - position < width) << i;
}

static void ref_szext(const struct form *f, const uint64_t *in, uint64_t *out)
{
    uint64_t width = form_has(f, M_wrap) ? in[1] % 32 : in[1] > 32 ? 32 : in[1];
    out[0] = width ? (uint64_t)value_of(in[0], (unsigned)width, f->types[0] == T_S32) : 0;
}

static void ref_fns(const struct form *f, const uint64_t *in, uint64_t *out)
{
    (void)f;
    wide offset = value_of(in[2], 32, true), count = offset < 0 ? -offset : offset;
    out[0] = UINT32_MAX;
    if (in[1] > 31)
        return;
    if (!count) {
        out[0] = in[0] >> in[1] & 1 ? in[1] : UINT32_MAX;
        return;
    }
    for (unsigned i = 0; i < 32; i++) {
        int at = (int)in[1] + (offset < 0 ? -(int)i : (int)i);
        if (at < 0 || at > 31)
            return;
        if (in[0] >> at & 1 && --count == 0) {
            out[0] = (uint64_t)at;
            return;
        }
    }
}

/* The table's entry is the value for a = 0xf0, b = 0xcc, c = 0xaa. */
static uint64_t lookup(unsigned table, const uint64_t *in)
{
    uint64_t result = 0;
    for (unsigned i = 0; i < 32; i++) {
        unsigned row = (unsigned)((in[0] >> i & 1) << 2 | (in[1] >> i & 1) << 1 | (in[2] >> i & 1));
        result |= (uint64_t)(table >> row & 1) << i;
    }
    return result;
}

static void ref_lop3(const struct form *f, const uint64_t *in, uint64_t *out)
{
    unsigned table = 0;
    for (const char *c = strstr(f->text, "0x") + 2; *c && *c != ','; c++)
        table = table * 16 + (unsigned)(*c <= '9' ? *c - '0' : *c - 'a' + 10);
    out[0] = lookup(table, in);
    out[1] = form_has(f, M_or) ? out[0] || in[3] : out[0] && in[3];
}

static void ref_prmt(const struct form *f, const uint64_t *in, uint64_t *out)
{
    /* The ISA's tables: selected bytes 3 2 1 0 for each value of the control's two bits. */
    static const struct {
        enum form_modifier mode;
        const char rows[4][5];
    } tables[] = {
        {M_f4e, {"3210", "4321", "5432", "6543"}}, {M_b4e, {"5670", "6701", "7012", "0123"}},
        {M_rc8, {"0000", "1111", "2222", "3333"}}, {M_ecl, {"3210", "3211", "3222", "3333"}},
        {M_ecr, {"0000", "1110", "2210", "3210"}}, {M_rc16, {"1010", "3232", "1010", "3232"}},
    };
    unsigned selector = in[2] & 0xffff;
    for (unsigned m = 0; m < sizeof(tables) / sizeof(tables[0]); m++) {
        if (!form_has(f, tables[m].mode))
            continue;
        selector = 0;
        for (unsigned i = 0; i < 4; i++)
            selector = selector << 4 | (unsigned)(tables[m].rows[in[2] & 3][i] - '0');
    }
    for (unsigned i = 0; i < 4; i++) {
        unsigned which = selector >> 4 * i & 15, from = which & 7;
        uint64_t byte = (from < 4 ? in[0] >> 8 * from : in[1] >> 8 * (from - 4)) & 255;
        if (which & 8)
            byte = byte & 128 ? 255 : 0;
        out[0] |= byte << 8 * i;
    }
}

static void ref_select(const struct form *f, const uint64_t *in, uint64_t *out)
{
    bool first = in[2] & 1;
    if (is(f, "slct") && f->types[1] == T_S32)
        first = value_of(in[2], 32, true) >= 0;
    else if (is(f, "slct")) /* NaN: the second */
        first = (in[2] & 0x7fffffff) <= 0x7f800000 &&
                (!(in[2] >> 31) || (in[2] & 0x7fffffff) == 0 || (form_has(f, M_ftz) && !(in[2] & 0x7f800000)));
    out[0] = first ? in[0] : in[1];
}

static void ref_move(const struct form *f, const uint64_t *in, uint64_t *out)
{
    (void)f;
    out[0] = in[0];
}

static void ref_pack(const struct form *f, const uint64_t *in, uint64_t *out)
{
    unsigned parts = 1;
    for (const char *c = strchr(f->text, '{'); *c != '}'; c++)
        parts += *c == ',';
    unsigned bits = type_bits(f->types[0]) / parts;
    for (unsigned i = 0; i < parts; i++)
        out[0] |= in[i] << bits * i;
}

static void ref_unpack(const struct form *f, const uint64_t *in, uint64_t *out)
{
    unsigned parts = 1;
    for (const char *c = strchr(f->text, '{'); *c != '}'; c++)
        parts += *c == ',';
    unsigned bits = type_bits(f->types[0]) / parts;
    for (unsigned i = 0; i < parts; i++)
        /* NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): at least one bit, and below the width */
        out[i] = in[0] >> bits * i & UINT64_MAX >> (64 - bits);
}

#define BITS(name, operands, w, i, l, ref)                                                                             \
    {name ".b16 " operands, w, ref}, {name ".b32 " operands, i, ref},                                                  \
    {                                                                                                                  \
        name ".b64 " operands, l, ref                                                                                  \
    }
#define SELECTS(name, last, w, i, l)                                                                                   \
    {name "<.b16|.u16|.s16>" last " $D, $a, $b, $c", "w:ww" w, ref_select},                                            \
        {name "<.b32|.u32|.s32|.f32>" last " $D, $a, $b, $c", "i:ii" i, ref_select},                                   \
    {                                                                                                                  \
        name "<.b64|.u64|.s64|.f64>" last " $D, $a, $b, $c", "l:ll" l, ref_select                                      \
    }

const struct conform_row rows_bits[] = {
    BITS("and", "$D, $a, $b", "w:ww", "i:ii", "l:ll", ref_logic),
    {"and.pred $D, $a, $b", "p:pp", ref_logic},
    BITS("or", "$D, $a, $b", "w:ww", "i:ii", "l:ll", ref_logic),
    {"or.pred $D, $a, $b", "p:pp", ref_logic},
    BITS("xor", "$D, $a, $b", "w:ww", "i:ii", "l:ll", ref_logic),
    {"xor.pred $D, $a, $b", "p:pp", ref_logic},
    BITS("not", "$D, $a", "w:w", "i:i", "l:l", ref_logic),
    {"not.pred $D, $a", "p:p", ref_logic},
    BITS("cnot", "$D, $a", "w:w", "i:i", "l:l", ref_logic),
    BITS("shl", "$D, $a, $b", "w:ws", "i:is", "l:ls", ref_shift),
    {"shr<.b16|.u16|.s16> $D, $a, $b", "w:ws", ref_shift},
    {"shr<.b32|.u32|.s32> $D, $a, $b", "i:is", ref_shift},
    {"shr<.b64|.u64|.s64> $D, $a, $b", "l:ls", ref_shift},
    {"shf<.l|.r><.clamp|.wrap>.b32 $D, $a, $b, $c", "i:iis", ref_funnel},
    {"popc.b32 $D, $a", "i:i", ref_count},
    {"popc.b64 $D, $a", "i:l", ref_count},
    {"clz.b32 $D, $a", "i:i", ref_count},
    {"clz.b64 $D, $a", "i:l", ref_count},
    {"brev.b32 $D, $a", "i:i", ref_count},
    {"brev.b64 $D, $a", "l:l", ref_count},
    {"bfind<|.shiftamt><.u32|.s32> $D, $a", "i:i", ref_count},
    {"bfind<|.shiftamt><.u64|.s64> $D, $a", "i:l", ref_count},
    {"bfe<.u32|.s32> $D, $a, $b, $c", "i:iss", ref_bfe},
    {"bfe<.u64|.s64> $D, $a, $b, $c", "l:lss", ref_bfe},
    {"bfi.b32 $D, $a, $b, $c, $d", "i:iiss", ref_bfi},
    {"bfi.b64 $D, $a, $b, $c, $d", "l:llss", ref_bfi},
    {"bmsk<.clamp|.wrap>.b32 $D, $a, $b", "i:ss", ref_bmsk},
    {"szext<.clamp|.wrap><.u32|.s32> $D, $a, $b", "i:is", ref_szext},
    {"fns.b32 $D, $a, $b, $c", "i:isi", ref_fns},
    {"lop3.b32 $D, $a, $b, $c, <0x0|0x1|0x80|0x3c|0x96|0xe8|0xca|0xf0|0xcc|0xaa|0x5b|0xff>", "i:iii", ref_lop3},
    {"lop3<.or|.and>.b32 $D|$E, $a, $b, $c, <0x80|0x96|0xe8>, $d", "ip:iiip", ref_lop3},
    {"prmt.b32<|.f4e|.b4e|.rc8|.ecl|.ecr|.rc16> $D, $a, $b, $c", "i:qqi", ref_prmt},
    SELECTS("selp", "", "p", "p", "p"),
    SELECTS("slct", ".s32", "i", "i", "i"),
    SELECTS("slct", ".f32", "f", "f", "f"),
    SELECTS("slct.ftz", ".f32", "f", "f", "f"),
    {"mov<.b16|.u16|.s16> $D, $a", "w:w", ref_move},
    {"mov<.b32|.u32|.s32|.f32> $D, $a", "i:i", ref_move},
    {"mov<.b64|.u64|.s64|.f64> $D, $a", "l:l", ref_move},
    {"mov.pred $D, $a", "p:p", ref_move},
    {"mov.b32 $D, {$a, $b}", "i:ww", ref_pack},
    {"mov.b64 $D, {$a, $b}", "l:ii", ref_pack},
    {"mov.b64 $D, {$a, $b, $c, $d}", "l:wwww", ref_pack},
    {"mov.b32 {$D, $E}, $a", "ww:i", ref_unpack},
    {"mov.b64 {$D, $E}, $a", "ii:l", ref_unpack},
    {"mov.b64 {$D, $E, $F, $G}, $a", "wwww:l", ref_unpack},
};
const size_t rows_bits_count = sizeof(rows_bits) / sizeof(rows_bits[0]);
