/* Video instructions, one lane at a time: parts of registers as operands, wide intermediate results. */
#include "simgpu/ptx/lane.h"

#include <stdbool.h>

typedef __int128 wide;

static bool flag(uint64_t imm, uint64_t bit)
{
    return imm & bit;
}

static int64_t extend(uint64_t bits, unsigned count, bool is_signed)
{
    uint64_t low = bits << (64 - count);
    return is_signed ? (int64_t)low >> (64 - count) : (int64_t)(low >> (64 - count));
}

/* Parts: 0 = all of it, 1 .. 4 bytes, 5 and 6 halves. */
static int64_t part_of(uint64_t value, unsigned part, bool is_signed)
{
    if (!part)
        return extend(value, 32, is_signed);
    return part <= 4 ? extend(value >> 8 * (part - 1), 8, is_signed) : extend(value >> 16 * (part - 5), 16, is_signed);
}

static wide clamp(wide value, unsigned bits, bool is_signed)
{
    wide max = ((wide)1 << (bits - is_signed)) - 1, min = is_signed ? -max - 1 : 0;
    return value < min ? min : value > max ? max : value;
}

static bool compares(int64_t a, int64_t b, unsigned cmp)
{
    switch (cmp) {
    case 0: return a == b;
    case 1: return a != b;
    case 2: return a < b;
    case 3: return a <= b;
    case 4: return a > b;
    default: return a >= b;
    }
}

static wide operation(int64_t a, int64_t b, uint64_t imm)
{
    switch ((enum ptx_video)(imm & 15)) {
    case PTX_VIDEO_ADD: return (wide)a + b;
    case PTX_VIDEO_SUB: return (wide)a - b;
    case PTX_VIDEO_ABSDIFF: return a < b ? (wide)b - a : (wide)a - b;
    case PTX_VIDEO_MIN: return a < b ? a : b;
    case PTX_VIDEO_MAX: return a > b ? a : b;
    case PTX_VIDEO_AVRG: return (a + b + (a + b >= 0)) >> 1;
    case PTX_VIDEO_SET: return compares(a, b, imm >> PTX_VIDEO_CMP_AT & 7);
    default: break;
    }
    int64_t amount = flag(imm, PTX_VIDEO_WRAP) ? b & 31 : b > 32 ? 32 : b;
    return (imm & 15) == PTX_VIDEO_SHL ? (wide)a * ((wide)1 << amount) : (wide)(a >> amount);
}

/* a * b + c in 128 bits. The result is signed if anything in it is. */
static uint64_t multiply_add(int64_t a, int64_t b, uint64_t c, uint64_t imm)
{
    bool negated = flag(imm, PTX_VIDEO_NEG_PRODUCT), subtracts = flag(imm, PTX_VIDEO_NEG_C);
    bool is_signed = flag(imm, PTX_VIDEO_A_SIGNED | PTX_VIDEO_B_SIGNED) || negated || subtracts;
    wide product = (wide)a * b, addend = extend(c, 32, is_signed);
    wide sum = (negated ? -product : product) + (subtracts ? -addend : addend) + flag(imm, PTX_VIDEO_PLUS_ONE);
    sum >>= imm >> PTX_VIDEO_SCALE_AT & 15;
    return (uint64_t)(flag(imm, PTX_VIDEO_SAT) ? clamp(sum, 32, is_signed) : sum);
}

uint64_t ptx_lane_video(uint64_t a, uint64_t b, uint64_t c, uint64_t imm)
{
    bool is_signed = flag(imm, PTX_VIDEO_D_SIGNED);
    int64_t x = part_of(a, imm >> PTX_VIDEO_A_PART_AT & 7, flag(imm, PTX_VIDEO_A_SIGNED));
    int64_t y = part_of(b, imm >> PTX_VIDEO_B_PART_AT & 7, flag(imm, PTX_VIDEO_B_SIGNED));
    if ((imm & 15) == PTX_VIDEO_MAD)
        return multiply_add(x, y, c, imm);
    unsigned part = imm >> PTX_VIDEO_D_PART_AT & 7, bits = !part ? 32 : part <= 4 ? 8 : 16;
    wide result = operation(x, y, imm);
    if (flag(imm, PTX_VIDEO_SAT))
        result = clamp(result, bits, is_signed);
    if (part) {
        unsigned at = part <= 4 ? 8 * (part - 1) : 16 * (part - 5);
        uint64_t mask = ((UINT64_C(1) << bits) - 1) << at;
        return (c & ~mask) | ((uint64_t)result << at & mask);
    }
    int64_t first = extend((uint64_t)result, 32, is_signed), second = extend(c, 32, is_signed);
    switch (imm >> PTX_VIDEO_OP2_AT & 3) {
    case 1: return (uint64_t)(first + second);
    case 2: return (uint64_t)(first < second ? first : second);
    case 3: return (uint64_t)(first > second ? first : second);
    default: return (uint64_t)first;
    }
}

/* Elements are numbered from the lowest of a on, through b's. */
uint64_t ptx_lane_video_simd(uint64_t a, uint64_t b, uint64_t c, uint64_t imm)
{
    unsigned count = flag(imm, PTX_VIDEO_FOUR) ? 4 : 2, bits = 32 / count;
    uint64_t both = (a & 0xffffffff) | b << 32, element = (UINT64_C(1) << bits) - 1, result = c;
    for (unsigned i = 0; i < count; i++) {
        if (!(imm >> (PTX_VIDEO_MASK_AT + i) & 1))
            continue;
        unsigned from_a = imm >> (PTX_VIDEO_A_SELECT_AT + 4 * i) & 7,
                 from_b = imm >> (PTX_VIDEO_B_SELECT_AT + 4 * i) & 7;
        int64_t x = extend(both >> bits * from_a, bits, flag(imm, PTX_VIDEO_A_SIGNED));
        int64_t y = extend(both >> bits * from_b, bits, flag(imm, PTX_VIDEO_B_SIGNED));
        wide value = operation(x, y, imm);
        if (flag(imm, PTX_VIDEO_SAT))
            value = clamp(value, bits, flag(imm, PTX_VIDEO_D_SIGNED));
        if (flag(imm, PTX_VIDEO_ACCUMULATE))
            result += (uint64_t)value;
        else
            result = (result & ~(element << bits * i)) | ((uint64_t)value & element) << bits * i;
    }
    return result;
}
