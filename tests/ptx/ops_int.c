/* Models of the integer instructions, written bit by bit or in wider arithmetic rather than as the engine does it. */
#include "ptx/ops.h"

#include <stdbool.h>

#define MODEL(name, expr)                                                                                              \
    static uint64_t name(uint64_t a, uint64_t b, uint64_t c)                                                           \
    {                                                                                                                  \
        (void)a, (void)b, (void)c;                                                                                     \
        return (uint64_t)(expr);                                                                                       \
    }
typedef __int128 wide;

static wide sx(uint64_t v, unsigned bits)
{
    wide value = 0;
    for (unsigned i = 0; i < bits; i++)
        if (v >> i & 1)
            value += i == bits - 1 ? -((wide)1 << i) : (wide)1 << i;
    return value;
}
static wide zx(uint64_t v, unsigned bits)
{
    return bits == 64 ? (wide)v : (wide)(v & (((uint64_t)1 << bits) - 1));
}

#define MODELS(bits)                                                                                                   \
    MODEL(add##bits, zx(a, bits) + zx(b, bits))                                                                        \
    MODEL(sub##bits, zx(a, bits) - zx(b, bits))                                                                        \
    MODEL(mullo##bits, (unsigned __int128)zx(a, bits) * (unsigned __int128)zx(b, bits))                                \
    MODEL(mulhiu##bits, (unsigned __int128)zx(a, bits) * (unsigned __int128)zx(b, bits) >> bits)                       \
    MODEL(mulhis##bits, sx(a, bits) * sx(b, bits) >> bits)                                                             \
    MODEL(madlo##bits,                                                                                                 \
          (unsigned __int128)zx(a, bits) * (unsigned __int128)zx(b, bits) + (unsigned __int128)zx(c, bits))            \
    MODEL(madhis##bits, (sx(a, bits) * sx(b, bits) >> bits) + sx(c, bits))                                             \
    MODEL(divu##bits, zx(b, bits) ? zx(a, bits) / zx(b, bits) : -1)                                                    \
    MODEL(divs##bits, sx(b, bits) ? sx(a, bits) / sx(b, bits) : -1)                                                    \
    MODEL(remu##bits, zx(b, bits) ? zx(a, bits) % zx(b, bits) : zx(a, bits))                                           \
    MODEL(rems##bits, sx(b, bits) ? sx(a, bits) % sx(b, bits) : sx(a, bits))                                           \
    MODEL(minu##bits, zx(a, bits) < zx(b, bits) ? a : b)                                                               \
    MODEL(mins##bits, sx(a, bits) < sx(b, bits) ? a : b)                                                               \
    MODEL(maxu##bits, zx(a, bits) > zx(b, bits) ? a : b)                                                               \
    MODEL(maxs##bits, sx(a, bits) > sx(b, bits) ? a : b)                                                               \
    MODEL(abs##bits, sx(a, bits) < 0 ? -sx(a, bits) : sx(a, bits))                                                     \
    MODEL(neg##bits, -sx(a, bits))                                                                                     \
    MODEL(and##bits, a &b)                                                                                             \
    MODEL(or ##bits, a | b)                                                                                            \
    MODEL(xor##bits, a ^ b)                                                                                            \
    MODEL(not ##bits, ~a)                                                                                              \
    MODEL(cnot##bits, zx(a, bits) == 0)                                                                                \
    MODEL(shl##bits, zx(b, 32) >= bits ? 0 : zx(a, bits) << zx(b, 32))                                                 \
    MODEL(shru##bits, zx(b, 32) >= bits ? 0 : zx(a, bits) >> zx(b, 32))                                                \
    MODEL(shrs##bits, sx(a, bits) >> (zx(b, 32) >= bits ? bits - 1 : zx(b, 32)))                                       \
    MODEL(ltu##bits, zx(a, bits) < zx(b, bits))                                                                        \
    MODEL(lts##bits, sx(a, bits) < sx(b, bits))                                                                        \
    MODEL(les##bits, sx(a, bits) <= sx(b, bits))                                                                       \
    MODEL(gtu##bits, zx(a, bits) > zx(b, bits))                                                                        \
    MODEL(geu##bits, zx(a, bits) >= zx(b, bits))                                                                       \
    MODEL(ges##bits, sx(a, bits) >= sx(b, bits))                                                                       \
    MODEL(gts##bits, sx(a, bits) > sx(b, bits))                                                                        \
    MODEL(leu##bits, zx(a, bits) <= zx(b, bits))                                                                       \
    MODEL(eq##bits, zx(a, bits) == zx(b, bits))                                                                        \
    MODEL(ne##bits, zx(a, bits) != zx(b, bits))                                                                        \
    MODEL(sadu##bits,                                                                                                  \
          zx(c, bits) + (zx(a, bits) < zx(b, bits) ? zx(b, bits) - zx(a, bits) : zx(a, bits) - zx(b, bits)))           \
    MODEL(sads##bits, zx(c, bits) + (sx(a, bits) < sx(b, bits) ? sx(b, bits) - sx(a, bits) : sx(a, bits) - sx(b, bits)))
MODELS(16)
MODELS(32)
MODELS(64)

MODEL(mulwu16, zx(a, 16) * zx(b, 16))
MODEL(mulws16, sx(a, 16) * sx(b, 16))
MODEL(mulwu32, (unsigned __int128)zx(a, 32) * (unsigned __int128)zx(b, 32))
MODEL(mulws32, sx(a, 32) * sx(b, 32))
MODEL(madwu16, zx(a, 16) * zx(b, 16) + zx(c, 32))
MODEL(madws32, sx(a, 32) * sx(b, 32) + (wide)c)
MODEL(madwu32, (unsigned __int128)zx(a, 32) * (unsigned __int128)zx(b, 32) + c)

static uint64_t satadd(uint64_t a, uint64_t b, uint64_t c)
{
    (void)c;
    wide sum = sx(a, 32) + sx(b, 32);
    return (uint64_t)(sum > 2147483647 ? 2147483647 : sum < -2147483647 - 1 ? -2147483647 - 1 : sum);
}
static uint64_t satsub(uint64_t a, uint64_t b, uint64_t c)
{
    (void)c;
    wide sum = sx(a, 32) - sx(b, 32);
    return (uint64_t)(sum > 2147483647 ? 2147483647 : sum < -2147483647 - 1 ? -2147483647 - 1 : sum);
}

static uint64_t popc(uint64_t v, unsigned bits)
{
    uint64_t n = 0;
    for (unsigned i = 0; i < bits; i++)
        n += v >> i & 1;
    return n;
}
static uint64_t clz(uint64_t v, unsigned bits)
{
    unsigned n = 0;
    while (n < bits && !(v >> (bits - 1 - n) & 1))
        n++;
    return n;
}
static uint64_t brev(uint64_t v, unsigned bits)
{
    uint64_t result = 0;
    for (unsigned i = 0; i < bits; i++)
        if (v >> i & 1)
            result |= (uint64_t)1 << (bits - 1 - i);
    return result;
}
MODEL(popc32, popc(a, 32))
MODEL(popc64, popc(a, 64))
MODEL(clz32, clz(a, 32))
MODEL(clz64, clz(a, 64))
MODEL(brev32, brev(a, 32))
MODEL(brev64, brev(a, 64))
MODEL(bfindu32, 31 - (int)clz(a, 32))
MODEL(bfinds32, 31 - (int)clz(sx(a, 32) < 0 ? ~a : a, 32))
MODEL(bfindshift64, zx(a, 64) ? clz(a, 64) : 0xffffffff)

static uint64_t bfe(uint64_t a, uint64_t b, uint64_t c, unsigned bits, bool is_signed)
{
    unsigned pos = b & 255, len = c & 255, last = pos + len - 1;
    bool fill = is_signed && len && a >> (last < bits - 1 ? last : bits - 1) & 1;
    uint64_t result = 0;
    for (unsigned i = 0; i < bits; i++) {
        bool bit = i < len && pos + i < bits ? a >> (pos + i) & 1 : fill;
        result |= (uint64_t)bit << i;
    }
    return result;
}
MODEL(bfeu32, bfe(a, b, c, 32, false))
MODEL(bfes32, bfe(a, b, c, 32, true))
MODEL(bfeu64, bfe(a, b, c, 64, false))
MODEL(bfes64, bfe(a, b, c, 64, true))

/* The test's text fixes the length at 9. */
static uint64_t bfi(uint64_t a, uint64_t b, uint64_t c, unsigned bits)
{
    unsigned pos = c & 255;
    for (unsigned i = 0; i < 9 && pos + i < bits; i++)
        b = (b & ~((uint64_t)1 << (pos + i))) | (a >> i & 1) << (pos + i);
    return b;
}
MODEL(bfi32, bfi(a, b, c, 32))
MODEL(bfi64, bfi(a, b, c, 64))

static uint64_t prmt(uint64_t a, uint64_t b, uint64_t c)
{
    uint8_t bytes[8];
    for (unsigned i = 0; i < 4; i++)
        bytes[i] = (uint8_t)(a >> 8 * i), bytes[i + 4] = (uint8_t)(b >> 8 * i);
    uint64_t result = 0;
    for (unsigned i = 0; i < 4; i++) {
        unsigned sel = c >> 4 * i & 15;
        uint8_t byte = bytes[sel & 7];
        if (sel & 8)
            byte = byte >= 128 ? 255 : 0;
        result |= (uint64_t)byte << 8 * i;
    }
    return result;
}
static uint64_t prmt_table(uint64_t a, uint64_t b, uint64_t c, const char *const rows[4])
{
    const char *row = rows[c & 3]; /* bytes 3 2 1 0 as the ISA's table prints them */
    uint64_t selector = 0;
    for (unsigned i = 0; i < 4; i++)
        selector = selector << 4 | (uint64_t)(row[i] - '0');
    return prmt(a, b, selector);
}
#define PRMT(name, ...)                                                                                                \
    static uint64_t name(uint64_t a, uint64_t b, uint64_t c)                                                           \
    {                                                                                                                  \
        static const char *const rows[4] = {__VA_ARGS__};                                                              \
        return prmt_table(a, b, c, rows);                                                                              \
    }
PRMT(f4e, "3210", "4321", "5432", "6543")
PRMT(b4e, "5670", "6701", "7012", "0123")
PRMT(rc8, "0000", "1111", "2222", "3333")
PRMT(ecl, "3210", "3211", "3222", "3333")
PRMT(ecr, "0000", "1110", "2210", "3210")
PRMT(rc16, "1010", "3232", "1010", "3232")

MODEL(shflw, ((b << 32 | (a & 0xffffffff)) << (c & 31)) >> 32)
MODEL(shfrw, (b << 32 | (a & 0xffffffff)) >> (c & 31))
MODEL(shflc, ((unsigned __int128)(b << 32 | (a & 0xffffffff)) << (zx(c, 32) > 32 ? 32 : zx(c, 32))) >> 32)
MODEL(shfrc, (b << 32 | (a & 0xffffffff)) >> (zx(c, 32) > 32 ? 32 : zx(c, 32)))
MODEL(lop_maj, (a & b) | (a & c) | (b & c))
MODEL(mul24s, sx(a, 24) * sx(b, 24))
MODEL(mul24hiu, zx(a, 24) * zx(b, 24) >> 16)
MODEL(mad24u, zx(a, 24) * zx(b, 24) + zx(c, 32))
static uint64_t dp4a_su(uint64_t a, uint64_t b, uint64_t c)
{
    wide sum = sx(c, 32);
    for (unsigned i = 0; i < 32; i += 8)
        sum += sx(a >> i, 8) * zx(b >> i, 8);
    return (uint64_t)sum;
}
MODEL(sel, c & 1 ? a : b)
MODEL(slct32, sx(c, 32) >= 0 ? a : b)
MODEL(ltand, (sx(a, 32) < sx(b, 32)) && (c & 1))
MODEL(geor_not, (zx(a, 32) >= zx(b, 32)) || !(c & 1))
MODEL(eqxor, (zx(a, 64) == zx(b, 64)) != (c & 1))
MODEL(set_gt, sx(a, 32) > sx(b, 32) ? 0xffffffff : 0)
MODEL(set_gtf, sx(a, 32) > sx(b, 32) ? 0x3f800000 : 0)
MODEL(second, !(zx(a, 32) < zx(b, 32)) && (c & 1))
MODEL(wide_sum, ((unsigned __int128)a + b) >> 64)
MODEL(wide_difference, a < b ? UINT64_MAX : 0)
MODEL(product_high, ((unsigned __int128)(uint32_t)a * (uint32_t)b + (uint32_t)c) >> 32)

#define I INTS
#define ROW1(op, size, model)                                                                                          \
    {                                                                                                                  \
        op " %d, %a;", {size, size}, {I}, model                                                                        \
    }
#define ROW2(op, size, model)                                                                                          \
    {                                                                                                                  \
        op " %d, %a, %b;", {size, size, size}, {I, I}, model                                                           \
    }
#define ROW3(op, size, model)                                                                                          \
    {                                                                                                                  \
        op " %d, %a, %b, %c;", {size, size, size, size}, {I, I, I}, model                                              \
    }
#define SHIFT(op, size, model)                                                                                         \
    {                                                                                                                  \
        op " %d, %a, %b;", {size, size, 4}, {I, SHIFTS}, model                                                         \
    }
#define COMPARE(op, size, model)                                                                                       \
    {                                                                                                                  \
        op " %d, %a, %b;", {1, size, size}, {I, I}, model                                                              \
    }
#define SIZES(bits, size)                                                                                              \
    ROW2("add.s" #bits, size, add##bits), ROW2("add.u" #bits, size, add##bits), ROW2("sub.s" #bits, size, sub##bits),  \
        ROW2("mul.lo.s" #bits, size, mullo##bits), ROW2("mul.hi.u" #bits, size, mulhiu##bits),                         \
        ROW2("mul.hi.s" #bits, size, mulhis##bits), ROW3("mad.lo.s" #bits, size, madlo##bits),                         \
        ROW3("mad.lo.u" #bits, size, madlo##bits), ROW3("mad.hi.s" #bits, size, madhis##bits),                         \
        ROW2("div.u" #bits, size, divu##bits), ROW2("div.s" #bits, size, divs##bits),                                  \
        ROW2("rem.u" #bits, size, remu##bits), ROW2("rem.s" #bits, size, rems##bits),                                  \
        ROW2("min.u" #bits, size, minu##bits), ROW2("min.s" #bits, size, mins##bits),                                  \
        ROW2("max.u" #bits, size, maxu##bits), ROW2("max.s" #bits, size, maxs##bits),                                  \
        ROW1("abs.s" #bits, size, abs##bits), ROW1("neg.s" #bits, size, neg##bits),                                    \
        ROW2("and.b" #bits, size, and##bits), ROW2("or.b" #bits, size, or ##bits),                                     \
        ROW2("xor.b" #bits, size, xor##bits), ROW1("not.b" #bits, size, not ##bits),                                   \
        ROW1("cnot.b" #bits, size, cnot##bits), SHIFT("shl.b" #bits, size, shl##bits),                                 \
        SHIFT("shr.u" #bits, size, shru##bits), SHIFT("shr.b" #bits, size, shru##bits),                                \
        SHIFT("shr.s" #bits, size, shrs##bits), COMPARE("setp.lt.u" #bits, size, ltu##bits),                           \
        COMPARE("setp.lo.u" #bits, size, ltu##bits), COMPARE("setp.lt.s" #bits, size, lts##bits),                      \
        COMPARE("setp.le.s" #bits, size, les##bits), COMPARE("setp.gt.u" #bits, size, gtu##bits),                      \
        COMPARE("setp.hs.u" #bits, size, geu##bits), COMPARE("setp.ge.u" #bits, size, geu##bits),                      \
        COMPARE("setp.ge.s" #bits, size, ges##bits), COMPARE("setp.gt.s" #bits, size, gts##bits),                      \
        COMPARE("setp.ls.u" #bits, size, leu##bits), COMPARE("setp.hi.u" #bits, size, gtu##bits),                      \
        COMPARE("setp.le.u" #bits, size, leu##bits), COMPARE("setp.eq.b" #bits, size, eq##bits),                       \
        COMPARE("setp.ne.s" #bits, size, ne##bits), ROW3("sad.u" #bits, size, sadu##bits),                             \
        ROW3("sad.s" #bits, size, sads##bits),                                                                         \
        {"selp.b" #bits " %d, %a, %b, %pc;", {size, size, size, 4}, {I, I, I}, sel},                                   \
    {                                                                                                                  \
        "slct.b" #bits ".s32 %d, %a, %b, %c;", {size, size, size, 4}, {I, I, I}, slct32                                \
    }

const struct op_row int_rows[] = {
    SIZES(16, 2),
    SIZES(32, 4),
    SIZES(64, 8),
    {"mul.wide.u16 %d, %a, %b;", {4, 2, 2}, {I, I}, mulwu16},
    {"mul.wide.s16 %d, %a, %b;", {4, 2, 2}, {I, I}, mulws16},
    {"mul.wide.u32 %d, %a, %b;", {8, 4, 4}, {I, I}, mulwu32},
    {"mul.wide.s32 %d, %a, %b;", {8, 4, 4}, {I, I}, mulws32},
    {"mad.wide.u16 %d, %a, %b, %c;", {4, 2, 2, 4}, {I, I, I}, madwu16},
    {"mad.wide.s32 %d, %a, %b, %c;", {8, 4, 4, 8}, {I, I, I}, madws32},
    {"mad.wide.u32 %d, %a, %b, %c;", {8, 4, 4, 8}, {I, I, I}, madwu32},
    ROW2("add.sat.s32", 4, satadd),
    ROW2("sub.sat.s32", 4, satsub),
    {"popc.b32 %d, %a;", {4, 4}, {I}, popc32},
    {"popc.b64 %d, %a;", {4, 8}, {I}, popc64},
    {"clz.b32 %d, %a;", {4, 4}, {I}, clz32},
    {"clz.b64 %d, %a;", {4, 8}, {I}, clz64},
    ROW1("brev.b32", 4, brev32),
    ROW1("brev.b64", 8, brev64),
    {"bfind.u32 %d, %a;", {4, 4}, {I}, bfindu32},
    {"bfind.s32 %d, %a;", {4, 4}, {I}, bfinds32},
    {"bfind.shiftamt.u64 %d, %a;", {4, 8}, {I}, bfindshift64},
    {"bfe.u32 %d, %a, %b, %c;", {4, 4, 4, 4}, {I, SHIFTS, SHIFTS}, bfeu32},
    {"bfe.s32 %d, %a, %b, %c;", {4, 4, 4, 4}, {I, SHIFTS, SHIFTS}, bfes32},
    {"bfe.u64 %d, %a, %b, %c;", {8, 8, 4, 4}, {I, SHIFTS, SHIFTS}, bfeu64},
    {"bfe.s64 %d, %a, %b, %c;", {8, 8, 4, 4}, {I, SHIFTS, SHIFTS}, bfes64},
    {"bfi.b32 %d, %a, %b, %c, 9;", {4, 4, 4, 4}, {I, I, SHIFTS}, bfi32},
    {"bfi.b64 %d, %a, %b, %c, 9;", {8, 8, 8, 4}, {I, I, SHIFTS}, bfi64},
    ROW3("prmt.b32", 4, prmt),
    ROW3("prmt.b32.f4e", 4, f4e),
    ROW3("prmt.b32.b4e", 4, b4e),
    ROW3("prmt.b32.rc8", 4, rc8),
    ROW3("prmt.b32.ecl", 4, ecl),
    ROW3("prmt.b32.ecr", 4, ecr),
    ROW3("prmt.b32.rc16", 4, rc16),
    {"shf.l.wrap.b32 %d, %a, %b, %c;", {4, 4, 4, 4}, {I, I, SHIFTS}, shflw},
    {"shf.r.wrap.b32 %d, %a, %b, %c;", {4, 4, 4, 4}, {I, I, SHIFTS}, shfrw},
    {"shf.l.clamp.b32 %d, %a, %b, %c;", {4, 4, 4, 4}, {I, I, SHIFTS}, shflc},
    {"shf.r.clamp.b32 %d, %a, %b, %c;", {4, 4, 4, 4}, {I, I, SHIFTS}, shfrc},
    {"lop3.b32 %d, %a, %b, %c, 0xe8;", {4, 4, 4, 4}, {I, I, I}, lop_maj},
    ROW2("mul24.lo.s32", 4, mul24s),
    ROW2("mul24.hi.u32", 4, mul24hiu),
    ROW3("mad24.lo.u32", 4, mad24u),
    ROW3("dp4a.s32.u32", 4, dp4a_su),
    {"setp.lt.and.s32 %d, %a, %b, %pc;", {1, 4, 4, 4}, {I, I, I}, ltand},
    {"setp.ge.or.u32 %d, %a, %b, !%pc;", {1, 4, 4, 4}, {I, I, I}, geor_not},
    {"setp.eq.xor.u64 %d, %a, %b, %pc;", {1, 8, 8, 4}, {I, I, I}, eqxor},
    {"setp.lt.and.u32 %x|%d, %a, %b, %pc;", {1, 4, 4, 4}, {I, I, I}, second},
    {"set.gt.u32.s32 %d, %a, %b;", {4, 4, 4}, {I, I}, set_gt},
    {"set.gt.f32.s32 %d, %a, %b;", {4, 4, 4}, {I, I}, set_gtf},
    {"add.cc.u64 %d, %a, %b; addc.u64 %d, 0, 0;", {8, 8, 8}, {I, I}, wide_sum},
    {"sub.cc.s64 %d, %a, %b; subc.s64 %d, 0, 0;", {8, 8, 8}, {I, I}, wide_difference},
    {"mad.lo.cc.u32 %d, %a, %b, %c; madc.hi.u32 %d, %a, %b, 0;", {4, 4, 4, 4}, {I, I, I}, product_high},
};
const unsigned int_row_count = sizeof(int_rows) / sizeof(int_rows[0]);
