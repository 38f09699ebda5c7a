/*
 * Stretches and chains: what the interpreter runs in one go gives the same bits, the same counts and the same faults as the
 * instructions one by one. Random sums of products over loaded values, with base registers of every shape, are compared with
 * a sum in C; the same kernel with 31 threads, which never fill a warp, takes the other way through the interpreter.
 */
#include "ptx/machine.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define WORDS 1024 /* of data that the loads read */
#define TRIPLES 20
#define LANES 32

static struct machine m;
static uint64_t seed;

static void start(void)
{
    machine_init(&m);
    seed = 7;
}

static void stop(void)
{
    machine_finish(&m);
}

TestSuite(fuse, .init = start, .fini = stop);

struct sum {
    bool shared, same_register; /* the sum stays in one register, or each step has one of its own */
    unsigned shared_too;        /* the sum after this triple is read again at the end */
    int32_t offset[TRIPLES][2];
    bool swapped[TRIPLES];
    uint32_t base[2][LANES]; /* byte offsets in the data */
    unsigned first_line;
};

struct params {
    uint64_t out, data, base;
};

static uint32_t below(uint32_t n)
{
    return (uint32_t)(machine_random(&seed) % n);
}

/* Lanes of a half warp on a line, on one element, or anywhere. */
static void pick_bases(uint32_t *base)
{
    for (unsigned half = 0; half < 2; half++) {
        uint32_t first = (200 + below(400)) * 4, shape = below(5);
        for (unsigned i = 0; i < LANES / 2; i++)
            base[half * (LANES / 2) + i] = shape < 2 ? first + i * 4 : shape < 4 ? first : (200 + below(400)) * 4;
    }
}

static struct sum pick_sum(void)
{
    struct sum s = {
        .shared = below(2), .same_register = below(2), .shared_too = below(3) ? TRIPLES : below(TRIPLES - 1)};
    pick_bases(s.base[0]);
    pick_bases(s.base[1]);
    for (unsigned t = 0; t < TRIPLES; t++) {
        s.offset[t][0] = (int32_t)below(300) * 4 - 800;
        s.offset[t][1] = (int32_t)below(300) * 4 - 800;
        s.swapped[t] = below(2);
    }
    return s;
}

static void load_sum(struct sum *s)
{
    char text[16384];
    const char *space = s->shared ? "shared" : "global";
    int n = snprintf(text, sizeof text,
                     ".visible .entry k(.param .u64 out, .param .u64 data, .param .u64 base)\n{\n"
                     ".reg .pred %%p<4>; .reg .b32 %%r<8>; .reg .b64 %%rd<16>; .reg .f32 %%a<64>, %%b<64>, %%s<64>;\n"
                     ".shared .align 4 .b8 copy[%u];\n"
                     "ld.param.u64 %%rd0, [out]; ld.param.u64 %%rd1, [data]; ld.param.u64 %%rd2, [base];\n"
                     "mov.u32 %%r0, %%tid.x; mov.u32 %%r1, %%ntid.x; mul.wide.u32 %%rd3, %%r0, 8;\n"
                     "add.u64 %%rd0, %%rd0, %%rd3; add.u64 %%rd2, %%rd2, %%rd3;\n"
                     "ld.global.u32 %%r2, [%%rd2]; ld.global.u32 %%r3, [%%rd2+4];\n"
                     "cvt.u64.u32 %%rd4, %%r2; cvt.u64.u32 %%rd5, %%r3; mov.u64 %%rd6, copy; mov.u32 %%r4, %%r0;\n"
                     "COPY: mul.wide.u32 %%rd7, %%r4, 4; add.u64 %%rd8, %%rd1, %%rd7; add.u64 %%rd9, %%rd6, %%rd7;\n"
                     "ld.global.f32 %%a0, [%%rd8]; st.shared.f32 [%%rd9], %%a0; add.u32 %%r4, %%r4, %%r1;\n"
                     "setp.lt.u32 %%p1, %%r4, %u; @%%p1 bra COPY; bar.sync 0;\n"
                     "add.u64 %%rd4, %%rd4, %s; add.u64 %%rd5, %%rd5, %s; mov.f32 %%s0, 0f3f800000;\n",
                     WORDS * 4, WORDS, s->shared ? "%rd6" : "%rd1", s->shared ? "%rd6" : "%rd1");
    s->first_line = 4; /* the header has three */
    for (int i = 0; i < n; i++)
        s->first_line += text[i] == '\n';
    for (unsigned t = 0; t < TRIPLES; t++) {
        unsigned from = s->same_register ? 0 : t, to = s->same_register ? 0 : t + 1;
        n += snprintf(text + n, sizeof text - (size_t)n,
                      "ld.%s.f32 %%a%u, [%%rd4+%d];\nld.%s.f32 %%b%u, [%%rd5+%d];\n"
                      "fma.rn.f32 %%s%u, %%%s%u, %%%s%u, %%s%u;\n",
                      space, t + 1, s->offset[t][0], space, t + 1, s->offset[t][1], to, s->swapped[t] ? "b" : "a",
                      t + 1, s->swapped[t] ? "a" : "b", t + 1, from);
    }
    snprintf(text + n, sizeof text - (size_t)n,
             "st.global.f32 [%%rd0], %%s%u;\nst.global.f32 [%%rd0+4], %%s%u;\nret;\n}\n",
             s->same_register ? 0 : TRIPLES, s->same_register || s->shared_too == TRIPLES ? 0 : s->shared_too + 1);
    machine_load_body(&m, text);
}

static float canonical(float f)
{
    uint32_t nan = 0x7fffffff;
    if (f == f)
        return f;
    memcpy(&f, &nan, 4);
    return f;
}

/* What a thread writes. */
static void expected(const struct sum *s, const float *data, unsigned lane, float out[2])
{
    float sum = 1;
    out[1] = 1;
    for (unsigned t = 0; t < TRIPLES; t++) {
        float a = data[((int32_t)s->base[0][lane] + s->offset[t][0]) / 4];
        float b = data[((int32_t)s->base[1][lane] + s->offset[t][1]) / 4];
        sum = canonical(fmaf(a, b, sum));
        if (t == s->shared_too)
            out[1] = sum;
    }
    out[0] = sum;
    if (s->same_register)
        out[1] = sum;
}

static struct outcome run(const struct params *p, const struct sum *s, unsigned threads)
{
    uint32_t *base = machine_at(&m, p->base);
    for (unsigned i = 0; i < LANES; i++) {
        base[2 * i] = s->base[0][i];
        base[2 * i + 1] = s->base[1][i];
    }
    memset(machine_at(&m, p->out), 0, LANES * 8);
    struct launch launch = {.name = "k", .block = {threads}, .params = p};
    return machine_run(&m, &launch);
}

static bool same_counts(const struct outcome *a, const struct outcome *b)
{
    return !memcmp(&a->counters, &b->counters, sizeof a->counters);
}

Test(fuse, sums_of_products_have_the_same_bits_and_counts_however_they_run)
{
    struct params p = {machine_alloc(&m, LANES * 8), machine_alloc(&m, WORDS * 4), machine_alloc(&m, LANES * 8)};
    for (unsigned round = 0; round < 150; round++) {
        uint32_t *data = machine_at(&m, p.data);
        for (unsigned i = 0; i < WORDS; i++) {
            float f = (float)below(2000) / 64 - 15;
            memcpy(&data[i], &f, 4);
            if (round % 4 == 0 && !below(100))
                data[i] = below(2) ? 0x7f800000 : 0x7f800001 + below(1000); /* infinity, a signalling NaN */
        }
        struct sum s = pick_sum();
        load_sum(&s);
        ptx_use_baseline(true);
        struct outcome plain = run(&p, &s, LANES);
        ptx_use_baseline(false);
        struct outcome full = run(&p, &s, LANES), part = full;
        cr_assert_eq(full.fault.kind, PTX_FAULT_NONE);
        cr_assert(same_counts(&full, &plain), "round %u: other counts than the baseline's", round);
        uint32_t *out = machine_at(&m, p.out), want[2];
        for (unsigned run_of = 0; run_of < 2; run_of++) {
            for (unsigned i = 0; i < LANES - run_of; i++) {
                expected(&s, (const float *)data, i, (float *)want);
                cr_assert_arr_eq(out + 2 * i, want, 8, "round %u, lane %u: %08x %08x, not %08x %08x", round, i,
                                 out[2 * i], out[2 * i + 1], want[0], want[1]);
            }
            if (!run_of)
                part = run(&p, &s, LANES - 1);
        }
        cr_assert_eq(full.counters.flops * (LANES - 1), part.counters.flops * LANES);
    }
}

Test(fuse, a_fault_within_a_chain_is_the_one_of_its_instruction)
{
    /* The data end where a page ends, and nothing follows. */
    uint64_t base = machine_alloc(&m, LANES * 8), out = machine_alloc(&m, LANES * 8);
    uint64_t end = (machine_alloc(&m, 4) & ~(SG_PAGE_BYTES - 1)) + SG_PAGE_BYTES;
    struct params p = {out, end - WORDS * 4, base};
    machine_protect(&m, (unsigned)((end - MACHINE_BASE) / SG_PAGE_BYTES), 0);
    for (unsigned round = 0; round < 60; round++) {
        struct sum s = pick_sum();
        bool misaligned = round % 3 == 0;
        unsigned which = below(2), lane = 0, triple = 0;
        if (round % 2) { /* one lane's base is bad: the first load with it finds out */
            lane = below(LANES);
            s.base[which][lane] += misaligned ? 2 : 2 * WORDS * 4;
        } else { /* one offset is, for every lane */
            triple = below(TRIPLES);
            s.offset[triple][which] = misaligned ? 402 : WORDS * 4;
        }
        load_sum(&s);
        unsigned line = s.first_line + triple * 3 + which;
        struct outcome full = run(&p, &s, LANES);
        ptx_use_baseline(true);
        struct outcome plain = run(&p, &s, LANES);
        ptx_use_baseline(false);
        cr_assert_eq(full.fault.kind, misaligned ? PTX_FAULT_MISALIGNED : PTX_FAULT_ILLEGAL_ADDRESS, "round %u", round);
        cr_assert_eq(full.fault.line, line, "round %u: line %u, not %u", round, full.fault.line, line);
        cr_assert_eq(full.fault.thread[0], lane);
        cr_assert_eq(full.fault.address, plain.fault.address);
        cr_assert(same_counts(&full, &plain));
    }
}

TestSuite(grid, .init = start, .fini = stop);

/* Blocks are handed out without a lock as long as none has to wait: each exactly once, whoever asks at the same time. */
Test(grid, each_of_many_small_blocks_runs_once_on_any_number_of_threads)
{
    enum { BLOCKS = 4000 };
    uint64_t out = machine_alloc(&m, BLOCKS * 4);
    machine_load_body(&m, ".visible .entry k(.param .u64 out)\n{\n.reg .b32 %r<4>; .reg .b64 %rd<4>;\n"
                          "ld.param.u64 %rd0, [out]; mov.u32 %r0, %ctaid.x; mul.wide.u32 %rd1, %r0, 4;\n"
                          "add.u64 %rd0, %rd0, %rd1; red.global.add.u32 [%rd0], 1; ret;\n}\n");
    for (unsigned round = 0; round < 12; round++) {
        struct launch launch = {.name = "k",
                                .grid = {BLOCKS},
                                .block = {1},
                                .params = &out,
                                .workers = 1 + round % 4,
                                .slice = round % 3 ? 100000 : 50};
        struct outcome outcome = machine_run(&m, &launch);
        cr_assert_eq(outcome.fault.kind, PTX_FAULT_NONE);
        cr_assert_eq(outcome.counters.write_bytes[SG_TIER_VRAM], BLOCKS * 4);
    }
    const uint32_t *count = machine_at(&m, out);
    for (unsigned i = 0; i < BLOCKS; i++)
        cr_assert_eq(count[i], 12, "block %u ran %u times", i, count[i]);
}
