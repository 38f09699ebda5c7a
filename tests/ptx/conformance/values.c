#include "ptx/conformance/values.h"

#include "ptx/machine.h"

struct list {
    const uint64_t *values;
    unsigned count;
};
#define LIST(name, ...)                                                                                                \
    static const uint64_t name##_values[] = {__VA_ARGS__};                                                             \
    static const struct list name = {name##_values, sizeof(name##_values) / sizeof(name##_values[0])}

/* Edges first: they are the ones tried in triples. */
LIST(predicates, 0, 1);
LIST(words, 0, 1, 0xffff, 0x8000, 0x7fff, 2, 0xfffe, 0x8001, 0xff, 0x100, 0x80, 0x7ffe, 3, 15, 16, 17, 31, 0x7f, 0xff80,
     0x4000, 0x5555, 0xaaaa, 0x101);
LIST(ints, 0, 1, 0xffffffff, 0x80000000, 0x7fffffff, 2, 0xfffffffe, 0x80000001, 0xffff, 0x10000, 0xff80, 31, 32, 33, 3,
     7, 0x7f, 0x80, 0xff, 0x100, 0x7fff, 0x8000, 0xffff8000, 0xffff7fff, 0x55555555, 0xaaaaaaaa, 0x7ffffffe, 0x00800000,
     0x01000000, 0x7f7f7f7f, 0x80808080, 0x12345678);
LIST(longs, 0, 1, 0xffffffffffffffff, 0x8000000000000000, 0x7fffffffffffffff, 2, 0xfffffffffffffffe, 0x8000000000000001,
     0xffffffff, 0x100000000, 0xffffffff80000000, 0x7fffffff, 3, 63, 64, 0x80000000, 0xff, 0xffff, 0x8000,
     0xffffffffffff8000, 0x5555555555555555, 0xaaaaaaaaaaaaaaaa, 0x0020000000000001, 0x0040000000000001,
     0x7ffffffffffffc00, 0x7ffffffffffffdff, 0x7ffffffffffffe00, 0xfffffffffffffbff, 0xfffffffffffffc00, 0x1000001,
     0x8000008000000001, 0xffffff7fffffffff);
LIST(shifts, 0, 1, 7, 8, 15, 16, 31, 32, 33, 63, 64, 255, 3, 17, 23, 24, 30, 47, 62, 65, 128, 256, 0x101, 0x7fffffff,
     0x80000000, 0xffffffff);
LIST(halves, 0, 0x8000, 0x3c00, 0xbc00, 0x7c00, 0xfc00, 0x7e00, 1, 0x8001, 0x7bff, 0x0400, 0x3c01, 0x3ff, 0x83ff,
     0x8400, 0xfbff, 0xfe01, 0x7c01, 0x3555, 0x3bff, 0x5640, 0x6400, 0x6401, 0x3800, 0x4000, 0x4100, 0xc100, 0x77ff,
     0x7800, 0x1400, 0x0c00, 0x2c00);
LIST(brains, 0, 0x8000, 0x3f80, 0xbf80, 0x7f80, 0xff80, 0x7fc0, 1, 0x8001, 0x7f7f, 0x0080, 0x3f81, 0x7f, 0x807f, 0x8080,
     0xff7f, 0xffc1, 0x7f81, 0x3f7f, 0x4049, 0x4300, 0x4301, 0x4f00, 0x5f00, 0x7f00, 0x3f00, 0x4020, 0xc020, 0x0c00,
     0x3380, 0x4380, 0x2000);
LIST(floats, 0, 0x80000000, 0x3f800000, 0xbf800000, 0x7f800000, 0xff800000, 0x7fc00000, 1, 0x807fffff, 0x7f7fffff,
     0x00800000, 0x3f800001, 0x80000001, 0x7fffff, 0x80800000, 0xff7fffff, 0xffc12345, 0x7f800001, 0x3f7fffff,
     0x3f000000, 0x3fc00000, 0xbfc00000, 0x40200000, 0x40490fdb, 0x437f0000, 0x477fefff, 0x477ff000, 0x4b000001,
     0x4effffff, 0x4f000000, 0xcf000001, 0x4f7fffff, 0x4f800000, 0x5effffff, 0x5f000000, 0x5f7fffff, 0x5f800000,
     0x7e800001, 0x33800000, 0x387fe000);
LIST(doubles, 0, 0x8000000000000000, 0x3ff0000000000000, 0xbff0000000000000, 0x7ff0000000000000, 0xfff0000000000000,
     0x7ff8000000000000, 1, 0x800fffffffffffff, 0x7fefffffffffffff, 0x0010000000000000, 0x3ff0000000000001,
     0x8000000000000001, 0xfffffffffffff, 0xffefffffffffffff, 0xfff8000012345678, 0x7ff0000000000001,
     0x3fefffffffffffff, 0x3fe0000000000000, 0x3ff8000000000000, 0x4004000000000000, 0xc004000000000000,
     0x41dfffffffc00000, 0x41e0000000000000, 0xc1e0000000200000, 0x41efffffffe00000, 0x41f0000000000000,
     0x43dfffffffffffff, 0x43e0000000000000, 0xc3e0000000000001, 0x43efffffffffffff, 0x43f0000000000000,
     0x47efffffe0000000, 0x47effffff0000000, 0x36a0000000000000, 0x380fffffffffffff, 0x40effc0000000000,
     0x40effe0000000000, 0x3e70000000000000, 0x3690000000000001);
LIST(packs, 0, 0x01010101, 0xffffffff, 0x80808080, 0x7f7f7f7f, 0x80007fff, 0x7fff8000, 0x00ff00ff, 0xfeff0001,
     0x017f80ff, 0x8000ffff, 0xff80017f, 0x0000ffff, 0xffff0000, 0x80017ffe, 0x12345678, 0xfedcba98, 0x000000ff,
     0x00000080, 0x7fffffff, 0x80000000);
LIST(eighths, 0, 0x8080, 0x3838, 0x7f7f, 0xffff, 0x7c7d, 0x7e01, 0x0181, 0x7b7c, 0xfbfc, 0x0708, 0x0304);

static const struct list *list_of(char kind)
{
    switch (kind) {
    case 'p': return &predicates;
    case 'w': return &words;
    case 'l':
    case 'm': return &longs;
    case 's': return &shifts;
    case 'h':
    case 'x': return &halves;
    case 'b':
    case 'y': return &brains;
    case 'f': return &floats;
    case 'd': return &doubles;
    case 'q': return &packs;
    case 't': return &eighths;
    default: return &ints;
    }
}

unsigned values_bits(char kind)
{
    switch (kind) {
    case 'p': return 1;
    case 'w':
    case 'h':
    case 'b':
    case 't': return 16;
    case 'l':
    case 'd':
    case 'm': return 64;
    default: return 32;
    }
}

unsigned values_count(char kind)
{
    return list_of(kind)->count;
}

uint64_t values_special(char kind, unsigned index)
{
    const struct list *list = list_of(kind);
    uint64_t value = list->values[index % list->count];
    if (kind == 'x' || kind == 'y') /* two different ones */
        value |= list->values[(index * 5 + 3) % list->count] << 16;
    return value;
}

/* Half of the floats are of everyday size, so that sums do not just return the larger operand. */
uint64_t values_random(char kind, uint64_t *state)
{
    uint64_t r = machine_random(state), s = machine_random(state);
    bool everyday = s >> 63;
    switch (kind) {
    case 'p': return r & 1;
    case 's': return everyday ? r % 70 : r & 0xffffffff;
    case 'h': return everyday ? (r & 0x83ff) | (10 + s % 10) << 10 : r & 0xffff;
    case 'b': return everyday ? (r & 0x807f) | (120 + s % 16) << 7 : r & 0xffff;
    case 'x': return values_random('h', state) | values_random('h', state) << 16;
    case 'y': return values_random('b', state) | values_random('b', state) << 16;
    case 'f': return everyday ? (r & 0x807fffff) | (115 + s % 24) << 23 : r & 0xffffffff;
    case 'd': return everyday ? (r & UINT64_C(0x800fffffffffffff)) | (1010 + s % 54) << 52 : r;
    case 'i': return (r & 0xffffffff) >> (everyday ? s % 32 : 0);
    case 'l': return r >> (everyday ? s % 64 : 0);
    default: return values_bits(kind) == 64 ? r : r & ((UINT64_C(1) << values_bits(kind)) - 1);
    }
}
