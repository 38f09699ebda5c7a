/* Control flow, barriers, what lanes tell each other, atomics, faults: kernels written in PTX. */
#include "ptx/machine.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct machine m;
static uint64_t out;

static void start(void)
{
    machine_init(&m);
    out = machine_alloc(&m, 1 << 16);
}

static void stop(void)
{
    machine_finish(&m);
}

TestSuite(flow, .init = start, .fini = stop);

#define HEAD                                                                                                           \
    ".visible .entry k(.param .u64 out)\n{\n.reg .pred %p<8>; .reg .b16 %rs<8>; .reg .b32 %r<32>; .reg .f32 %f<8>;"    \
    " .reg .b64 %rd<16>; .reg .f64 %fd<4>;\n"                                                                          \
    "ld.param.u64 %rd0, [out]; mov.u32 %r0, %tid.x; mul.wide.u32 %rd1, %r0, 4; add.u64 %rd1, %rd0, %rd1;\n"
#define TAIL "\nst.global.u32 [%rd1], %r1;\nret;\n}\n"

static struct outcome run_with(const char *body, struct launch launch)
{
    machine_load_body(&m, body);
    memset(machine_at(&m, out), 0, 1 << 16);
    launch.name = "k";
    launch.params = &out;
    return machine_run(&m, &launch);
}

static const uint32_t *words(void)
{
    return machine_at(&m, out);
}

static const uint32_t *run(const char *body, uint32_t threads)
{
    struct outcome outcome = run_with(body, (struct launch){.block = {threads}});
    cr_assert_eq(outcome.fault.kind, PTX_FAULT_NONE, "fault %d at line %u", outcome.fault.kind, outcome.fault.line);
    return words();
}

Test(flow, guards_act_on_single_lanes)
{
    const uint32_t *r = run(HEAD "and.b32 %r2, %r0, 3; setp.eq.u32 %p1, %r2, 1; mov.u32 %r1, 5; @%p1 mov.u32 %r1, 6;"
                                 "@!%p1 add.u32 %r1, %r1, %r0;" TAIL,
                            40);
    for (uint32_t i = 0; i < 40; i++)
        cr_assert_eq(r[i], (i & 3) == 1 ? 6 : 5 + i);
}

Test(flow, diverged_lanes_meet_again_below)
{
    /* Lanes count how many run together behind the branch: all of the warp. */
    const uint32_t *r = run(HEAD "and.b32 %r2, %r0, 1; setp.eq.u32 %p1, %r2, 0; @%p1 bra EVEN; mov.u32 %r3, 1;"
                                 "bra.uni JOIN; EVEN: mov.u32 %r3, 2; JOIN: activemask.b32 %r1;" TAIL,
                            64);
    for (uint32_t i = 0; i < 64; i++)
        cr_assert_eq(r[i], UINT32_MAX);
}

Test(flow, nested_loops_of_different_length)
{
    const uint32_t *r = run(HEAD "mov.u32 %r1, 0; mov.u32 %r2, 0;\nOUTER: mov.u32 %r3, 0;\n"
                                 "INNER: add.u32 %r1, %r1, 1; add.u32 %r3, %r3, 1; setp.le.u32 %p1, %r3, %r0;"
                                 "@%p1 bra INNER; add.u32 %r2, %r2, 1; and.b32 %r4, %r0, 7;"
                                 "setp.le.u32 %p2, %r2, %r4; @%p2 bra OUTER;" TAIL,
                            50);
    for (uint32_t i = 0; i < 50; i++)
        cr_assert_eq(r[i], (i + 1) * ((i & 7) + 1));
}

Test(flow, registers_keep_what_they_carry_around_a_loop)
{
    /* The loop's test comes last in the text; %r6 is read before it is written in each round. */
    const uint32_t *r =
        run(HEAD "mov.u32 %r1, 0; mov.u32 %r5, 0; mov.u32 %r6, 7; bra.uni H;\n"
                 "B: add.u32 %r1, %r1, %r6; mul.lo.u32 %r7, %r5, 3; add.u32 %r8, %r7, %r0; mov.u32 %r6, %r8;"
                 "add.u32 %r5, %r5, 1;\nH: setp.lt.u32 %p1, %r5, 4; @%p1 bra B;" TAIL,
            40);
    for (uint32_t i = 0; i < 40; i++)
        cr_assert_eq(r[i], 7 + 9 + 3 * i);
    /* %r9 is written in even rounds only, read in all: behind registers that live within a block. */
    r = run(HEAD "mov.u32 %r1, 0; mov.u32 %r5, 0;\n"
                 "L: mul.lo.u32 %r20, %r5, 5; add.u32 %r21, %r20, 1; add.u32 %r1, %r1, %r21; and.b32 %r2, %r5, 1;"
                 "setp.ne.u32 %p2, %r2, 0; @%p2 bra S; mad.lo.u32 %r9, %r5, 100, %r0;\n"
                 "S: mul.lo.u32 %r10, %r5, 7; add.u32 %r11, %r10, %r0; add.u32 %r1, %r1, %r11; add.u32 %r1, %r1, %r9;"
                 "add.u32 %r5, %r5, 1; setp.lt.u32 %p1, %r5, 6; @%p1 bra L;" TAIL,
            40);
    for (uint32_t i = 0; i < 40; i++) {
        uint32_t want = 0, kept = 0;
        for (uint32_t k = 0; k < 6; k++) {
            kept = k & 1 ? kept : k * 100 + i;
            want += k * 5 + 1 + k * 7 + i + kept;
        }
        cr_assert_eq(r[i], want);
    }
}

Test(flow, addresses_that_change_between_accesses)
{
    /* One base register, used, moved on by some lanes, used again. */
    const uint32_t *r =
        run(".shared .u32 s[256];\n" HEAD
            "mov.u64 %rd2, s; mul.wide.u32 %rd3, %r0, 4; add.u64 %rd2, %rd2, %rd3; st.shared.u32 [%rd2], %r0;"
            "st.shared.u32 [%rd2+256], 9; ld.shared.u32 %r2, [%rd2]; and.b32 %r3, %r0, 1;"
            "setp.eq.u32 %p1, %r3, 0; @%p1 add.u64 %rd2, %rd2, 256; ld.shared.u32 %r1, [%rd2];" TAIL,
            64);
    for (uint32_t i = 0; i < 64; i++)
        cr_assert_eq(r[i], i & 1 ? i : 9);
}

Test(flow, a_starved_lane_gets_its_turn_soon)
{
    /* Lane 31 must set what the others, at lower addresses, spin on. Few warp instructions are enough for that. */
    struct outcome outcome =
        run_with(HEAD "setp.eq.u32 %p1, %r0, 31; add.u64 %rd2, %rd0, 4096; mov.u32 %r1, 1; @%p1 bra SET;\n"
                      "L: ld.volatile.global.u32 %r2, [%rd2]; setp.eq.u32 %p2, %r2, 0; @%p2 bra L; bra J;\n"
                      "SET: st.volatile.global.u32 [%rd2], 1;\nJ:" TAIL,
                 (struct launch){.block = {32}});
    cr_assert_eq(outcome.fault.kind, PTX_FAULT_NONE);
    cr_assert_lt(outcome.counters.warp_instructions, 20000u);
}

Test(flow, indexed_branch)
{
    const uint32_t *r = run(HEAD "rem.u32 %r2, %r0, 3;\nT: .branchtargets A, B, C;\nbrx.idx %r2, T;"
                                 "A: mov.u32 %r1, 10; bra D; B: mov.u32 %r1, 11; bra D; C: mov.u32 %r1, 12; D:" TAIL,
                            32);
    for (uint32_t i = 0; i < 32; i++)
        cr_assert_eq(r[i], 10 + i % 3);
}

Test(flow, barrier_counts_exited_threads_as_arrived)
{
    const uint32_t *r = run(".shared .u32 s[128];\n" HEAD "setp.ge.u32 %p1, %r0, 100; @%p1 exit;"
                            "mov.u32 %r2, s; mad.lo.u32 %r3, %r0, 4, %r2; st.shared.u32 [%r3], %r0; bar.sync 0;"
                            "sub.u32 %r4, 99, %r0; mad.lo.u32 %r3, %r4, 4, %r2; ld.shared.u32 %r1, [%r3];" TAIL,
                            128);
    for (uint32_t i = 0; i < 128; i++)
        cr_assert_eq(r[i], i < 100 ? 99 - i : 0);
}

Test(flow, barrier_in_diverged_code_waits_for_all_lanes)
{
    const uint32_t *r = run(".shared .u32 s[64];\n" HEAD "mov.u32 %r2, s; mad.lo.u32 %r3, %r0, 4, %r2;"
                            "and.b32 %r4, %r0, 1; setp.eq.u32 %p1, %r4, 0; @%p1 bra E;"
                            "st.shared.u32 [%r3], 7; bar.sync 0; bra J; E: st.shared.u32 [%r3], 9; bar.sync 0; J:"
                            "xor.b32 %r5, %r0, 1; mad.lo.u32 %r3, %r5, 4, %r2; ld.shared.u32 %r1, [%r3];" TAIL,
                            64);
    for (uint32_t i = 0; i < 64; i++)
        cr_assert_eq(r[i], i & 1 ? 9 : 7);
}

Test(flow, counted_barrier_joins_two_warps_of_four)
{
    const uint32_t *r = run(".shared .u32 s[128];\n" HEAD "mov.u32 %r2, s; mad.lo.u32 %r3, %r0, 4, %r2;"
                            "shr.u32 %r4, %r0, 6; add.u32 %r4, %r4, 1; st.shared.u32 [%r3], %r0; bar.sync %r4, 64;"
                            "xor.b32 %r5, %r0, 32; mad.lo.u32 %r3, %r5, 4, %r2; ld.shared.u32 %r1, [%r3];" TAIL,
                            128);
    for (uint32_t i = 0; i < 128; i++)
        cr_assert_eq(r[i], i ^ 32);
}

Test(flow, barrier_arrival_does_not_wait)
{
    const uint32_t *r =
        run(".shared .u32 s;\n" HEAD "mov.u32 %r1, 1; setp.lt.u32 %p1, %r0, 32; @%p1 bra W;"
            "bar.sync 1, 64; ld.shared.u32 %r1, [s]; bra J; W: st.shared.u32 [s], 42; bar.arrive 1, 64; J:" TAIL,
            64);
    for (uint32_t i = 0; i < 64; i++)
        cr_assert_eq(r[i], i < 32 ? 1 : 42);
}

Test(flow, barrier_reductions)
{
    const uint32_t *r =
        run(HEAD "setp.lt.u32 %p1, %r0, 5; bar.red.popc.u32 %r2, 0, %p1; bar.red.and.pred %p2, 0, %p1;"
                 "bar.red.or.pred %p3, 0, %p1; bar.red.and.pred %p4, 0, !%p5; selp.u32 %r3, 100, 0, %p2;"
                 "selp.u32 %r4, 1000, 0, %p3; add.u32 %r1, %r2, %r3; add.u32 %r1, %r1, %r4;" TAIL,
            70);
    for (uint32_t i = 0; i < 70; i++)
        cr_assert_eq(r[i], 1005);
}

Test(flow, shuffles_of_all_modes)
{
    static const char *const cases[4] = {
        "shfl.sync.up.b32 %r1|%p1, %r0, 3, 0, -1;", "shfl.sync.down.b32 %r1|%p1, %r0, 5, 31, -1;",
        "shfl.sync.bfly.b32 %r1|%p1, %r0, 6, 31, -1;", "shfl.sync.idx.b32 %r1|%p1, %r0, 9, 0x181f, -1;"};
    for (int k = 0; k < 4; k++) {
        char text[2048];
        snprintf(text, sizeof(text), "%s%s @%%p1 add.u32 %%r1, %%r1, 100;%s", HEAD, cases[k], TAIL);
        const uint32_t *r = run(text, 32);
        for (int i = 0; i < 32; i++) {
            int from = k == 0 ? i - 3 : k == 1 ? i + 5 : k == 2 ? i ^ 6 : (i & 24) | (9 & 7);
            bool good = from >= 0 && from < 32;
            cr_assert_eq(r[i], (uint32_t)(good ? from + 100 : i), "%s lane %d: %u", cases[k], i, r[i]);
        }
    }
}

Test(flow, sync_instructions_wait_for_diverged_members)
{
    /* Odd lanes take a detour before the shuffle that all take part in. */
    const uint32_t *r = run(HEAD "and.b32 %r2, %r0, 1; setp.eq.u32 %p1, %r2, 0; mov.u32 %r3, %r0; mov.u32 %r4, -1;"
                                 "@%p1 bra S; add.u32 %r3, %r3, 50; S: shfl.sync.bfly.b32 %r1, %r3, 1, 31, %r4;" TAIL,
                            32);
    for (uint32_t i = 0; i < 32; i++)
        cr_assert_eq(r[i], i & 1 ? i - 1 : i + 1 + 50);
    /* Members that exited are not waited for. */
    r = run(HEAD "setp.ge.u32 %p1, %r0, 16; @%p1 exit; vote.sync.ballot.b32 %r1, 1, -1;" TAIL, 32);
    for (uint32_t i = 0; i < 16; i++)
        cr_assert_eq(r[i], 0xffff);
    /* bar.warp.sync joins lanes at different places. */
    r = run(
        ".shared .u32 s[32];\n" HEAD "mov.u32 %r2, s; mad.lo.u32 %r3, %r0, 4, %r2; setp.lt.u32 %p1, %r0, 16;"
        "@%p1 bra L; st.shared.u32 [%r3], 5; bar.warp.sync -1; bra J; L: st.shared.u32 [%r3], 6; bar.warp.sync -1; J:"
        "xor.b32 %r5, %r0, 16; mad.lo.u32 %r3, %r5, 4, %r2; ld.shared.u32 %r1, [%r3];" TAIL,
        32);
    for (uint32_t i = 0; i < 32; i++)
        cr_assert_eq(r[i], i < 16 ? 5 : 6);
}

Test(flow, disjoint_groups_vote_on_their_own)
{
    const uint32_t *r = run(HEAD "setp.lt.u32 %p1, %r0, 8; selp.b32 %r2, 0xff, 0xffffff00, %p1; and.b32 %r3, %r0, 1;"
                                 "setp.eq.u32 %p2, %r3, 0; vote.sync.ballot.b32 %r1, %p2, %r2;" TAIL,
                            32);
    for (uint32_t i = 0; i < 32; i++)
        cr_assert_eq(r[i], i < 8 ? 0x55 : 0x55555500);
}

Test(flow, votes_and_matches)
{
    const uint32_t *r = run(HEAD "setp.lt.u32 %p1, %r0, 32; setp.eq.u32 %p2, %r0, 3; vote.sync.all.pred %p3, %p1, -1;"
                                 "vote.sync.any.pred %p4, %p2, -1; vote.sync.uni.pred %p5, %p2, -1;"
                                 "vote.sync.all.pred %p6, !%p2, -1; selp.u32 %r2, 1, 0, %p3; selp.u32 %r3, 2, 0, %p4;"
                                 "selp.u32 %r4, 4, 0, %p5; selp.u32 %r5, 8, 0, %p6; or.b32 %r1, %r2, %r3;"
                                 "or.b32 %r1, %r1, %r4; or.b32 %r1, %r1, %r5; and.b32 %r6, %r0, 3;"
                                 "match.any.sync.b32 %r7, %r6, -1; xor.b32 %r1, %r1, %r7;"
                                 "match.all.sync.b32 %r8|%p7, %r6, -1; @%p7 mov.u32 %r1, 0;" TAIL,
                            32);
    for (uint32_t i = 0; i < 32; i++)
        cr_assert_eq(r[i], 3 ^ (0x11111111u << (i & 3)));
}

Test(flow, atomics_of_all_kinds)
{
    static const struct {
        const char *op;
        const char *value;
        uint32_t start, want;
    } cases[] = {
        {"add.u32", "%r0", 10, 10 + 63 * 32},
        {"min.s32", "%r0", 5, 0},
        {"max.u32", "%r0", 7, 63},
        {"min.u32", "-1", 9, 9},
        {"max.s32", "-1", 0x80000000, 0xffffffff},
        {"and.b32", "0xf0", 0xff, 0xf0},
        {"or.b32", "%r0", 64, 127},
        {"xor.b32", "1", 8, 8},
        {"inc.u32", "9", 0, 4},
        {"dec.u32", "9", 0, 6},
        {"exch.b32", "77", 1, 77},
    };
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (int space = 0; space < 3; space++) {
            char text[2048];
            const char *suffix = space == 0 ? ".global" : space == 1 ? ".shared" : "";
            snprintf(text, sizeof(text),
                     ".shared .u32 s;\n%s mov.u64 %%rd2, %s; %s setp.eq.u32 %%p1, %%r0, 0; @%%p1 st%s.u32 [%%rd2], %u;"
                     "bar.sync 0; atom%s.%s %%r2, [%%rd2], %s; bar.sync 0; ld%s.u32 %%r1, [%%rd2];%s",
                     HEAD, space ? "s" : "%rd0",
                     space == 2 ? "cvta.shared.u64 %rd2, %rd2;"
                     : space    ? ""
                                : "add.u64 %rd2, %rd2, 4096;",
                     suffix, cases[i].start, suffix, cases[i].op, cases[i].value, suffix, TAIL);
            const uint32_t *r = run(text, 64);
            cr_assert_eq(r[5], cases[i].want, "%s space %d: %#x, want %#x", cases[i].op, space, r[5], cases[i].want);
        }
    }
}

Test(flow, atomics_on_64_bits_and_floats)
{
    const uint32_t *r =
        run(HEAD "add.u64 %rd2, %rd0, 8192; mov.u64 %rd3, 0x100000001; red.global.add.u64 [%rd2], %rd3;"
                 "add.u64 %rd2, %rd0, 8200; mov.f64 %fd1, 0d3FE0000000000000; red.global.add.f64 [%rd2], %fd1;"
                 "add.u64 %rd2, %rd0, 8208; mov.f32 %f1, 0f3F000000; atom.global.add.f32 %f2, [%rd2], %f1;"
                 "add.u64 %rd2, %rd0, 8216; atom.global.cas.b64 %rd4, [%rd2], 0, %rd3;"
                 "add.u64 %rd2, %rd0, 8224; cvt.u64.u32 %rd5, %r0; neg.s64 %rd5, %rd5;"
                 "red.global.min.s64 [%rd2], %rd5; mov.u32 %r1, 0;" TAIL,
            48);
    const uint64_t *wide = (const uint64_t *)(r + 2048);
    double sum;
    float single;
    memcpy(&sum, &wide[1], 8);
    memcpy(&single, &wide[2], 4);
    cr_assert_eq(wide[0], UINT64_C(0x3000000030));
    cr_assert_eq(sum, 24.0);
    cr_assert_eq(single, 24.0f);
    cr_assert_eq(wide[3], UINT64_C(0x100000001));
    cr_assert_eq((int64_t)wide[4], -47);
}

Test(flow, vectors_and_sizes_in_every_space)
{
    const uint32_t *r =
        run(".shared .align 16 .b8 s[2048];\n" HEAD
            ".local .align 16 .b8 l[32]; mov.u64 %rd2, s; mul.wide.u32 %rd3, %r0, 16; add.u64 %rd2, %rd2, %rd3;"
            "add.u32 %r2, %r0, 1; add.u32 %r3, %r0, 2; st.shared.v4.u32 [%rd2], {%r0, %r2, %r3, 9};"
            "ld.shared.v2.u64 {%rd4, %rd5}, [%rd2]; mov.b64 {%r4, %r5}, %rd4; mov.b64 {%r6, %r7}, %rd5;"
            "st.local.v2.u32 [l+8], {%r5, %r6}; mov.u64 %rd6, l; cvta.local.u64 %rd6, %rd6; ld.u64 %rd7, [%rd6+8];"
            "mov.b64 {%r8, %r9}, %rd7; st.local.u8 [l+3], %r7; ld.local.s8 %rs1, [l+3]; cvt.u32.u16 %r10, %rs1;"
            "mul.lo.u32 %r1, %r8, 1000; add.u32 %r1, %r1, %r9; mad.lo.u32 %r1, %r10, 1000000, %r1;" TAIL,
            64);
    for (uint32_t i = 0; i < 64; i++)
        cr_assert_eq(r[i], (i + 1) * 1000 + i + 2 + 9000000);
}

Test(flow, an_array_with_an_index_is_the_address_of_that_element)
{
    const uint32_t *r =
        run(".global .v2 .u32 pairs[3] = {10, 11, 20, 21, 30, 31};\n" HEAD
            ".shared .align 16 .b8 tile[64]; .shared .u32 words[4]; .local .u16 halves[4];\n"
            "mov.u64 %rd2, tile[0]; mov.u64 %rd3, tile[12]; sub.u64 %rd2, %rd3, %rd2;"
            "cvt.u32.u64 %r1, %rd2; mov.u64 %rd2, words; mov.u64 %rd3, words[3];"
            "sub.u64 %rd2, %rd3, %rd2; cvt.u32.u64 %r2, %rd2; mad.lo.u32 %r1, %r2, 100, %r1;"
            "mov.u64 %rd2, halves; mov.u64 %rd3, halves[4]; sub.u64 %rd2, %rd3, %rd2;"
            "cvt.u32.u64 %r2, %rd2; mad.lo.u32 %r1, %r2, 10000, %r1;"
            "mov.u64 %rd2, pairs[2]; ld.global.u32 %r2, [%rd2]; mad.lo.u32 %r1, %r2, 1000000, %r1;" TAIL,
            1);
    cr_assert_eq(r[0], 30081212);
}

Test(flow, special_registers)
{
    struct outcome outcome = run_with(
        ".visible .entry k(.param .u64 out)\n{ .reg .b32 %r<32>; .reg .b64 %rd<8>;\n ld.param.u64 %rd0, [out];"
        "mov.u32 %r0, %tid.x; mov.u32 %r1, %tid.y; mov.u32 %r2, %tid.z; mov.u32 %r3, %ntid.x; mov.u32 %r4, %ntid.y;"
        "mad.lo.u32 %r5, %r2, %r4, %r1; mad.lo.u32 %r5, %r5, %r3, %r0; mov.u32 %r6, %ctaid.z; mad.lo.u32 %r7, %r6, "
        "100, %r5;"
        "mul.wide.u32 %rd1, %r7, 4; add.u64 %rd1, %rd0, %rd1; mov.u32 %r8, %laneid; mov.u32 %r9, %warpid;"
        "mad.lo.u32 %r10, %r9, 32, %r8; mov.u32 %r11, %lanemask_lt; popc.b32 %r12, %r11; mad.lo.u32 %r10, %r12, 1000, "
        "%r10;"
        "mov.u32 %r13, %nctaid.z; mad.lo.u32 %r10, %r13, 100000, %r10; st.global.u32 [%rd1], %r10; ret; }\n",
        (struct launch){.grid = {1, 1, 2}, .block = {5, 3, 4}});
    cr_assert_eq(outcome.fault.kind, PTX_FAULT_NONE);
    for (uint32_t z = 0; z < 2; z++)
        for (uint32_t t = 0; t < 60; t++)
            cr_assert_eq(words()[z * 100 + t], 200000 + t % 32 * 1000 + t, "%u %u: %u", z, t, words()[z * 100 + t]);
}

static void expect_fault(const char *code, uint32_t threads, enum ptx_fault_kind kind, uint32_t thread, unsigned line)
{
    char text[4096];
    snprintf(text, sizeof(text), ".shared .u32 s[4];\n%s\n%s\n%s", HEAD, code, TAIL);
    struct outcome outcome = run_with(text, (struct launch){.block = {threads}, .workers = 2, .grid = {2}});
    cr_assert_eq(outcome.fault.kind, kind, "%s: %d", code, outcome.fault.kind);
    cr_assert_eq(outcome.fault.thread[0], thread, "%s: thread %u", code, outcome.fault.thread[0]);
    cr_assert_eq(outcome.fault.line, line, "%s: line %u", code, outcome.fault.line);
}

Test(flow, faults_name_thread_and_line)
{
    unsigned line = 10; /* three header lines, .shared, four lines of HEAD and an empty one come before */
    expect_fault("setp.eq.u32 %p1, %r0, 37; @%p1 trap;", 64, PTX_FAULT_TRAP, 37, line);
    expect_fault("setp.eq.u32 %p1, %r0, 5; @%p1 brkpt;", 64, PTX_FAULT_TRAP, 5, line);
    expect_fault("setp.gt.u32 %p1, %r0, 40; mov.u64 %rd2, 64; @%p1 ld.global.u32 %r1, [%rd2];", 64,
                 PTX_FAULT_ILLEGAL_ADDRESS, 41, line);
    expect_fault("add.u64 %rd2, %rd1, 2; ld.global.u32 %r1, [%rd2];", 64, PTX_FAULT_MISALIGNED, 0, line);
    expect_fault("mov.u32 %r2, 16; st.shared.u32 [%r2], %r0;", 32, PTX_FAULT_ILLEGAL_ADDRESS, 0, line);
    expect_fault("mov.u64 %rd2, -8; ld.u32 %r1, [%rd2];", 32, PTX_FAULT_ILLEGAL_ADDRESS, 0, line);
    expect_fault("bar.sync 16;", 32, PTX_FAULT_ILLEGAL_INSTRUCTION, 0, line);
    expect_fault("barrier.sync.aligned 0; barrier.sync 16;", 32, PTX_FAULT_ILLEGAL_INSTRUCTION, 0, line);
    expect_fault("setp.eq.u32 %p1, %r0, 0; @%p1 bar.sync 1;\nbar.sync 0;", 32, PTX_FAULT_DEADLOCK, 0, line);
    expect_fault("setp.eq.u32 %p1, %r0, 0; @%p1 vote.sync.ballot.b32 %r1, 1, -1;\nbar.sync 0;", 32, PTX_FAULT_DEADLOCK,
                 0, line);
}

Test(flow, a_fault_stops_the_grid_and_tells_the_access)
{
    struct outcome outcome =
        run_with(HEAD "mov.u64 %rd2, 0x7000000000; st.global.u64 [%rd2+16], %rd2; mov.u32 %r1, 0;" TAIL,
                 (struct launch){.grid = {1000}, .block = {32}, .workers = 2, .seed = 3});
    cr_assert_eq(outcome.fault.kind, PTX_FAULT_ILLEGAL_ADDRESS);
    cr_assert_eq(outcome.fault.address, UINT64_C(0x7000000010));
    cr_assert_eq(outcome.fault.bytes, 8);
    cr_assert(outcome.fault.write);
    cr_assert_str_eq(outcome.fault.space, "global");
}

Test(flow, pages_without_the_right_fault)
{
    machine_protect(&m, 1, SG_PTE_READ);
    const char *code = HEAD "add.u64 %rd2, %rd0, 0x200000; ld.global.u32 %r1, [%rd2]; st.global.u32 [%rd2], %r1;" TAIL;
    struct outcome outcome = run_with(code, (struct launch){.block = {32}});
    cr_assert_eq(outcome.fault.kind, PTX_FAULT_ILLEGAL_ADDRESS);
    cr_assert(outcome.fault.write, "the load is allowed");
    machine_protect(&m, 1, 0);
    outcome = run_with(code, (struct launch){.block = {32}});
    cr_assert_not(outcome.fault.write, "the load faults");
}

/* Lanes that are in different functions, or at different depths of one, at one time: each keeps what it has in registers
 * while it waits for the others. Both functions return 21 x; narrow by way of narrow(x, depth - 1). */
#define TWO_FUNCTIONS(call)                                                                                            \
    ".func (.param .b32 r) narrow(.param .b32 x, .param .b32 depth);\n"                                                \
    ".func (.param .b32 r) wide(.param .b32 x, .param .b32 depth);\n" HEAD                                             \
    "and.b32 %r2, %r0, 3; and.b32 %r3, %r0, 4; setp.eq.u32 %p1, %r3, 0;\n"                                             \
    "{ .param .b32 a; .param .b32 b; .param .b32 c; st.param.b32 [a], %r0; st.param.b32 [b], %r2;" call                \
    " ld.param.b32 %r1, [c]; }" TAIL                                                                                   \
    ".func (.param .b32 r) narrow(.param .b32 x, .param .b32 depth)\n{ .reg .pred %p; .reg .b32 %r<9>;\n"              \
    "ld.param.u32 %r1, [x]; ld.param.u32 %r7, [depth]; mul.lo.u32 %r2, %r1, 2; mul.lo.u32 %r3, %r1, 3;\n"              \
    "mul.lo.u32 %r4, %r1, 4; mul.lo.u32 %r5, %r1, 5; mul.lo.u32 %r6, %r1, 6; setp.eq.u32 %p, %r7, 0; @%p bra S;\n"     \
    "{ .param .b32 a; .param .b32 b; .param .b32 c; sub.u32 %r7, %r7, 1; st.param.b32 [a], %r1;\n"                     \
    "st.param.b32 [b], %r7; call (c), narrow, (a, b); } bra T; S: bar.warp.sync 0xffffffff; T:\n" SUM(                 \
        "u32", "r") "st.param.b32 [r], %r1; ret; }\n"                                                                  \
                    ".func (.param .b32 r) wide(.param .b32 x, .param .b32 depth)\n{ .reg .b32 %r; .reg .b64 %d<9>;\n" \
                    "ld.param.u32 %r, [x]; cvt.u64.u32 %d1, %r; mul.lo.u64 %d2, %d1, 2; mul.lo.u64 %d3, %d1, 3;\n"     \
                    "mul.lo.u64 %d4, %d1, 4; mul.lo.u64 %d5, %d1, 5; mul.lo.u64 %d6, %d1, 6; bar.warp.sync "           \
                    "0xffffffff;\n" SUM("u64", "d") "cvt.u32.u64 %r, %d1; st.param.b32 [r], %r; ret; }\n"
#define SUM(type, d)                                                                                                   \
    "add." type " %" d "1, %" d "1, %" d "2; add." type " %" d "1, %" d "1, %" d "3; add." type " %" d "1, %" d        \
    "1, %" d "4; add." type " %" d "1, %" d "1, %" d "5; add." type " %" d "1, %" d "1, %" d "6;\n"

static void check_functions_at_once(const char *body)
{
    const uint32_t *r = run(body, 64);
    for (uint32_t i = 0; i < 64; i++)
        cr_assert_eq(r[i], 21 * i, "thread %u: %u", i, r[i]);
}

Test(flow, lanes_in_different_functions_keep_their_registers)
{
    check_functions_at_once(TWO_FUNCTIONS("@%p1 call (c), wide, (a, b); @!%p1 call (c), narrow, (a, b);"));
}

Test(flow, lanes_in_functions_called_through_registers_keep_their_registers)
{
    check_functions_at_once(TWO_FUNCTIONS("mov.u64 %rd2, wide; mov.u64 %rd3, narrow; selp.b64 %rd2, %rd2, %rd3, %p1;"
                                          "P: .callprototype (.param .b32 _) _ (.param .b32 _, .param .b32 _);"
                                          "call (c), %rd2, (a, b), P;"));
}

Test(flow, lanes_at_different_depths_of_recursion_keep_their_registers)
{
    check_functions_at_once(TWO_FUNCTIONS("call (c), narrow, (a, b);"));
}

Test(flow, endless_recursion_ends_in_a_stack_fault)
{
    struct outcome outcome =
        run_with(".func f(.param .b32 x);\n.func f(.param .b32 x)\n{ .reg .b32 %r<4>; ld.param.u32 %r1, [x];\n"
                 "{ .param .b32 a; st.param.b32 [a], %r1; call.uni f, (a); } ret; }\n" HEAD
                 "{ .param .b32 a; st.param.b32 [a], %r0; call f, (a); }" TAIL,
                 (struct launch){.block = {40}});
    cr_assert_eq(outcome.fault.kind, PTX_FAULT_STACK);
}

Test(flow, endless_recursion_of_a_few_lanes_ends_in_a_stack_fault)
{
    struct outcome outcome =
        run_with(".func f(.param .b32 x);\n.func f(.param .b32 x)\n{ .reg .pred %p; .reg .b32 %r<4>; ld.param.u32 %r1, "
                 "[x];\nrem.u32 %r2, %r1, 40; setp.eq.u32 %p, %r2, 39; @%p ret; add.u32 %r1, %r1, 8;\n"
                 "{ .param .b32 a; st.param.b32 [a], %r1; call.uni f, (a); } ret; }\n" HEAD
                 "{ .param .b32 a; st.param.b32 [a], %r0; call f, (a); }" TAIL,
                 (struct launch){.block = {40}});
    cr_assert_eq(outcome.fault.kind, PTX_FAULT_STACK);
}

Test(flow, asserts_are_told_apart)
{
    struct outcome outcome = run_with(
        ".extern .func __assertfail(.param .b64 a, .param .b32 b);\n" HEAD "setp.ne.u32 %p1, %r0, 3; @%p1 bra J;"
        "{ .param .b64 a; .param .b32 b; st.param.b64 [a], %rd0; st.param.b32 [b], %r0; call __assertfail, (a, b); } J:"
        "mov.u32 %r1, 0;" TAIL,
        (struct launch){.block = {8}});
    cr_assert_eq(outcome.fault.kind, PTX_FAULT_ASSERT);
    cr_assert_eq(outcome.fault.thread[0], 3);
}

Test(flow, abort_ends_a_spinning_grid)
{
    machine_load_body(&m, HEAD "L: ld.volatile.global.u32 %r1, [%rd0]; setp.eq.u32 %p1, %r1, 0; @%p1 bra L;" TAIL);
    struct ptx_grid_args args = {.function = ptx_module_function(m.module, "k"),
                                 .grid = {3, 1, 1},
                                 .block = {32, 1, 1},
                                 .params = &out,
                                 .pagetable = &m.table,
                                 .max_resident_blocks = 2,
                                 .sm_count = 1};
    struct ptx_grid *grid = ptx_grid_create(&args);
    for (int i = 0; i < 5; i++)
        cr_assert_eq(ptx_grid_run(grid, 50000), PTX_RUNNING);
    ptx_grid_abort(grid);
    cr_assert_eq(ptx_grid_run(grid, 50000), PTX_DONE);
    cr_assert_eq(ptx_grid_fault(grid)->kind, PTX_FAULT_ABORTED);
    ptx_grid_destroy(grid);
}

Test(flow, many_blocks_meet_at_a_barrier_of_their_own_making)
{
    /* 40 resident blocks count themselves in and wait until all are there. */
    struct outcome outcome = run_with(
        HEAD "add.u64 %rd2, %rd0, 4096; atom.global.add.u32 %r2, [%rd2], 1; mov.u32 %r4, %nctaid.x;"
             "L: ld.acquire.gpu.global.u32 %r3, [%rd2]; setp.lt.u32 %p1, %r3, %r4; @%p1 bra L; mov.u32 %r1, %r3;" TAIL,
        (struct launch){.grid = {40}, .workers = 2});
    cr_assert_eq(outcome.fault.kind, PTX_FAULT_NONE);
    cr_assert_eq(words()[0], 40);
}

/* No branch in it ends a slice, in which all counts are kept in one word. Shown failing by adding that up at the end only. */
Test(flow, long_straight_code_is_counted_exactly)
{
    static const char *const lines[] = {"fma.rn.f32 %f0, %f1, %f2, %f0;", "@%p1 fma.rn.f32 %f0, %f1, %f2, %f0;",
                                        "fma.rn.f64 %fd0, %fd1, %fd2, %fd0;"};
    enum { COUNT = 70000 };
    for (size_t k = 0; k < sizeof lines / sizeof lines[0]; k++) {
        size_t line_bytes = strlen(lines[k]);
        char *body = malloc(COUNT * line_bytes + 1024), *at = body;
        cr_assert_not_null(body);
        at += sprintf(at, "%s", HEAD "setp.lt.u32 %p1, %r0, 64;");
        for (int i = 0; i < COUNT; i++, at += line_bytes)
            memcpy(at, lines[k], line_bytes);
        strcpy(at, TAIL);
        struct outcome outcome = run_with(body, (struct launch){.block = {32}});
        free(body);
        cr_assert_eq(outcome.fault.kind, PTX_FAULT_NONE);
        cr_assert_eq(outcome.counters.flops, UINT64_C(2) * 32 * COUNT, "%zu: %llu operations", k,
                     (unsigned long long)outcome.counters.flops);
        cr_assert_eq(outcome.counters.double_flops, k == 2 ? outcome.counters.flops : 0, "%zu", k);
        cr_assert_eq(outcome.counters.thread_instructions, UINT64_C(32) * outcome.counters.warp_instructions, "%zu", k);
    }
}
