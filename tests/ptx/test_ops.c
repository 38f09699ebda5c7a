/* Every instruction class against a model of its own, on special values in all combinations and on random ones. */
#include "ptx/machine.h"
#include "ptx/ops.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define THREADS 4096u

static const uint64_t ints[] = {0,
                                1,
                                2,
                                3,
                                5,
                                7,
                                31,
                                32,
                                33,
                                63,
                                64,
                                127,
                                128,
                                255,
                                256,
                                0x7fff,
                                0x8000,
                                0xffff,
                                0x10000,
                                0x7fffffff,
                                0x80000000,
                                0x80000001,
                                0xffffff80,
                                0xfffffffe,
                                0xffffffff,
                                0x100000000,
                                0x7fffffffffffffff,
                                0x8000000000000000,
                                0xffffffff80000000,
                                0xffffffffffff8000,
                                0xfffffffffffffffe,
                                0xffffffffffffffff};
static const uint64_t shifts[] = {0,  1,  7,  8,  15, 16, 17,  23,  30,  31,         32,
                                  33, 47, 62, 63, 64, 65, 128, 255, 256, 0x7fffffff, 0xffffffff};
static const uint64_t f32s[] = {
    0,          0x80000000, 1,          0x80000001, 0x7fffff,   0x800000,   0x80800000, 0x3f800000, 0xbf800000,
    0x3f800001, 0x3f7fffff, 0x3f000000, 0x3fc00000, 0xbfc00000, 0x40200000, 0x40490fdb, 0x3fc90fdb, 0x437f0000,
    0x477fe000, 0x477ff000, 0x4b000001, 0x4effffff, 0x4f000000, 0xcf000000, 0xcf000001, 0x4f7fffff, 0x4f800000,
    0x5f000000, 0x7e800001, 0x7f000000, 0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc12345,
    0x7f800001, 0x33800000, 0x387fc000, 0x42fe0000, 0xc2fc0000, 0xc3150000, 0x4cbebc20, 0x5dbebc20};
static const uint64_t f64s[] = {0,
                                0x8000000000000000,
                                1,
                                0x8000000000000001,
                                0xfffffffffffff,
                                0x10000000000000,
                                0x3ff0000000000000,
                                0xbff0000000000000,
                                0x3ff0000000000001,
                                0x3fe0000000000000,
                                0x3ff8000000000000,
                                0x4004000000000000,
                                0x41dfffffffc00000,
                                0x41e0000000000000,
                                0xc1e0000000000000,
                                0xc1e0000000200000,
                                0x41efffffffe00000,
                                0x41f0000000000000,
                                0x43dfffffffffffff,
                                0x43e0000000000000,
                                0xc3e0000000000000,
                                0x43f0000000000000,
                                0x47efffffe0000000,
                                0x47effffff0000000,
                                0x47f0000000000000,
                                0x36a0000000000000,
                                0x3810000000000000,
                                0x380fffffffffffff,
                                0x7fefffffffffffff,
                                0xffefffffffffffff,
                                0x7ff0000000000000,
                                0xfff0000000000000,
                                0x7ff8000000000000,
                                0xfff8000012345678,
                                0x7ff0000000000001,
                                0x40effc0000000000,
                                0x40effe0000000000,
                                0x3e70000000000000};
static const uint64_t f16s[] = {0,      0x8000, 1,      0x3ff,  0x400,  0x3c00, 0xbc00, 0x3555,
                                0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00, 0xfe01, 0x7c01, 0x5640};

static const struct {
    const uint64_t *values;
    unsigned count;
} lists[] = {
    [INTS] = {ints, sizeof(ints) / 8}, [SHIFTS] = {shifts, sizeof(shifts) / 8}, [F32S] = {f32s, sizeof(f32s) / 8},
    [F64S] = {f64s, sizeof(f64s) / 8}, [F16S] = {f16s, sizeof(f16s) / 8},
};

static struct machine machine;

static void start(void)
{
    machine_init(&machine);
}

static void stop(void)
{
    machine_finish(&machine);
}

TestSuite(ops, .init = start, .fini = stop);

/* Registers by size: %p, %rs, %r, %rd; numbered 1 .. 4 for d, a, b, c. */
static const char *const classes[] = {[1] = "%p", [2] = "%rs", [4] = "%r", [8] = "%rd"};

static char *add_operand(char *at, const struct op_row *row, char which)
{
    unsigned index = which == 'd' ? 0 : (unsigned)(which - 'a') + 1;
    return at + sprintf(at, "%s%u", classes[row->sizes[index]], index + 1);
}

/* One kernel per row: thread t reads its operands at t * 8, computes, writes 8 bytes. */
static char *add_kernel(char *at, const struct op_row *row, unsigned number)
{
    at += sprintf(at, ".visible .entry k%u(.param .u64 o, .param .u64 a, .param .u64 b, .param .u64 c)\n{\n", number);
    at += sprintf(at, ".reg .pred %%p<4>; .reg .b16 %%rs<8>; .reg .b32 %%r<12>; .reg .b64 %%rd<20>;\n"
                      "mov.u32 %%r9, %%tid.x; mov.u32 %%r10, %%ctaid.x; mov.u32 %%r11, %%ntid.x;\n"
                      "mad.lo.u32 %%r9, %%r10, %%r11, %%r9; mul.wide.u32 %%rd9, %%r9, 8;\n");
    for (unsigned i = 1; i < 4; i++) {
        if (!row->sizes[i])
            continue;
        at += sprintf(at, "ld.param.u64 %%rd10, [%c]; add.u64 %%rd10, %%rd10, %%rd9; ", "abc"[i - 1]);
        at += sprintf(at, "ld.global.u%u %s%u, [%%rd10];\n", row->sizes[i] * 8, classes[row->sizes[i]], i + 1);
    }
    at += sprintf(at, "and.b32 %%r8, %%r4, 1; setp.ne.u32 %%p2, %%r8, 0;\n");
    for (const char *c = row->text; *c; c++) {
        if (*c != '%')
            *at++ = *c;
        else if (*++c == 'p')
            at += sprintf(at, "%%p2"), c++;
        else if (*c == 'x')
            at += sprintf(at, "%%p3");
        else
            at = add_operand(at, row, *c);
    }
    if (row->sizes[0] == 1)
        at += sprintf(at, "\nselp.u32 %%r1, 1, 0, %%p1;");
    return at + sprintf(at, "\nld.param.u64 %%rd10, [o]; add.u64 %%rd10, %%rd10, %%rd9; st.global.%s1;\nret;\n}\n",
                        row->sizes[0] == 2   ? "u16 [%rd10], %rs"
                        : row->sizes[0] == 8 ? "u64 [%rd10], %rd"
                                             : "u32 [%rd10], %r");
}

static void load_rows(const struct op_row *rows, unsigned count)
{
    char *text = malloc(count * 2048), *at = text;
    cr_assert(text);
    for (unsigned i = 0; i < count; i++)
        at = add_kernel(at, &rows[i], i);
    *at = '\0';
    machine_load_body(&machine, text);
    free(text);
}

static uint64_t random_value(uint64_t *state, enum values kind)
{
    uint64_t r = machine_random(state);
    if (kind == F32S && (r & 1)) { /* of everyday size: exponents around 0 */
        uint64_t s = machine_random(state);
        return (s & 0x807fffff) | (117 + (s >> 32) % 20) << 23;
    }
    if (kind == SHIFTS)
        return r % 70;
    return r;
}

static void fill(const struct op_row *row, uint64_t *values[3])
{
    uint64_t state = 12345;
    unsigned combinations = 1;
    for (unsigned k = 0; k < 2; k++)
        combinations *= row->sizes[k + 1] ? lists[row->values[k]].count : 1;
    for (unsigned t = 0; t < THREADS; t++) {
        unsigned index = t;
        for (unsigned k = 0; k < 3; k++) {
            unsigned count = lists[row->values[k]].count;
            if (!row->sizes[k + 1] || count == 0)
                continue;
            bool special = k == 2 ? t & 1 : t < combinations;
            values[k][t] = special ? lists[row->values[k]].values[k == 2 ? t / 2 % count : index % count]
                                   : random_value(&state, row->values[k]);
            index /= count;
        }
    }
}

static double value_of(uint64_t bits)
{
    uint32_t low = (uint32_t)bits;
    float f;
    memcpy(&f, &low, 4);
    return f;
}

static bool agrees(const struct op_row *row, uint64_t got, uint64_t want)
{
    if (got == want)
        return true;
    if (row->ulps == 0)
        return false;
    double x = value_of(got), y = value_of(want);
    return fabs(x - y) <= row->ulps * (fabs(y) * 0x1p-23 + 0x1p-149);
}

static void check_rows(const struct op_row *rows, unsigned count)
{
    load_rows(rows, count);
    struct {
        uint64_t out, in[3];
    } params;
    params.out = machine_alloc(&machine, THREADS * 8);
    uint64_t *out = machine_at(&machine, params.out), *values[3];
    for (unsigned k = 0; k < 3; k++) {
        params.in[k] = machine_alloc(&machine, THREADS * 8);
        values[k] = machine_at(&machine, params.in[k]);
    }
    for (unsigned i = 0; i < count; i++) {
        const struct op_row *row = &rows[i];
        char name[16];
        snprintf(name, sizeof(name), "k%u", i);
        fill(row, values);
        memset(out, 0, THREADS * 8);
        struct launch launch = {.name = name, .grid = {THREADS / 128}, .block = {128}, .params = &params};
        struct outcome outcome = machine_run(&machine, &launch);
        cr_assert_eq(outcome.fault.kind, PTX_FAULT_NONE, "%s: fault %d", row->text, outcome.fault.kind);
        uint64_t *fast = malloc(THREADS * 8);
        memcpy(fast, out, THREADS * 8);
        memset(out, 0, THREADS * 8);
        ptx_use_baseline(true);
        machine_run(&machine, &launch);
        ptx_use_baseline(false);
        cr_assert_arr_eq(fast, out, THREADS * 8, "%s: other bits with another instruction set", row->text);
        free(fast);
        unsigned bytes = row->sizes[0] == 1 ? 4 : row->sizes[0], bad = 0;
        uint64_t mask = bytes == 8 ? UINT64_MAX : (UINT64_C(1) << 8 * bytes) - 1;
        for (unsigned t = 0; t < THREADS && bad < 3; t++) {
            uint64_t in[3];
            for (unsigned k = 0; k < 3; k++)
                in[k] =
                    row->sizes[k + 1] == 8 ? values[k][t] : values[k][t] & ((UINT64_C(1) << 8 * row->sizes[k + 1]) - 1);
            uint64_t want = row->model(in[0], in[1], in[2]) & mask, got = out[t] & mask;
            bad += !agrees(row, got, want);
            cr_expect(agrees(row, got, want), "%s a=%#llx b=%#llx c=%#llx: got %#llx, want %#llx", row->text,
                      (unsigned long long)in[0], (unsigned long long)in[1], (unsigned long long)in[2],
                      (unsigned long long)got, (unsigned long long)want);
        }
    }
}

Test(ops, integers_follow_the_isa)
{
    check_rows(int_rows, int_row_count);
}

Test(ops, floats_follow_the_isa_in_all_rounding_modes)
{
    check_rows(float_rows, float_row_count);
}

Test(ops, conversions_round_and_saturate)
{
    check_rows(cvt_rows, cvt_row_count);
}
