/* Memory and synchronisation: atomics of all types, hints, fences, asynchronous copies, mbarriers, what warps agree on. */
#include "ptx/kernel.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

TestSuite(memory, .init = kernel_start, .fini = kernel_stop);

/* ---- atomics: old value and new one of every operation, type, space and order, against a model ---- */

static uint64_t mask_of(unsigned bits)
{
    return bits == 64 ? UINT64_MAX : (UINT64_C(1) << bits) - 1;
}

static int64_t extended(uint64_t value, unsigned bits)
{
    return (int64_t)(value << (64 - bits)) >> (64 - bits);
}

static double half_value(uint16_t h, bool bf16)
{
    double size = bf16 ? (h & 0x7f80 ? ldexp((h & 0x7f) | 0x80, (h >> 7 & 255) - 134) : ldexp(h & 0x7f, -133))
                       : (h & 0x7c00 ? ldexp((h & 0x3ff) | 0x400, (h >> 10 & 31) - 25) : ldexp(h & 0x3ff, -24));
    return h & 0x8000 ? -size : size;
}

/* The representable number next to x, ties to even, found by trying the candidates around it. */
static uint16_t nearest_half(double x, bool bf16)
{
    uint16_t best = x < 0 || (x == 0 && signbit(x)) ? 0x8000 : 0;
    uint16_t infinite = bf16 ? 0x7f80 : 0x7c00, low = 0, high = infinite;
    double size = fabs(x), most = half_value(infinite - 1, bf16);
    if (size >= most + (most - half_value(infinite - 2, bf16)) / 2)
        return best | infinite;
    while (high - low > 1) {
        uint16_t middle = (uint16_t)((low + high) / 2);
        if (middle < infinite && half_value(middle, bf16) <= size)
            low = middle;
        else
            high = middle;
    }
    double below = size - half_value(low, bf16);
    double above = (low + 1 == infinite ? 2 * most - half_value(infinite - 2, bf16) : half_value(low + 1, bf16)) - size;
    if (above < below || (above == below && (low & 1)))
        low++;
    return best | low;
}

static uint16_t add_halves(uint16_t a, uint16_t b, bool bf16)
{
    return nearest_half(half_value(a, bf16) + half_value(b, bf16), bf16);
}

static uint64_t model(const char *op, const char *type, uint64_t a, uint64_t b, uint64_t c)
{
    unsigned bits = !strcmp(type + 1, "16x2") || strstr(type, "x2")
                        ? 32
                        : (unsigned)strtoul(type + (type[1] == 'f' ? 2 : 1), NULL, 10);
    bool is_signed = type[0] == 's', less;
    if (!strcmp(op, "exch"))
        return b;
    if (!strcmp(op, "cas"))
        return a == b ? c : a;
    if (!strcmp(op, "and"))
        return a & b;
    if (!strcmp(op, "or"))
        return a | b;
    if (!strcmp(op, "xor"))
        return a ^ b;
    if (!strcmp(op, "inc"))
        return a >= b ? 0 : a + 1;
    if (!strcmp(op, "dec"))
        return a == 0 || a > b ? b : a - 1;
    if (strncmp(op, "add", 3) != 0) {
        less = is_signed ? extended(a, bits) < extended(b, bits) : a < b;
        return less == !strcmp(op, "min") ? a : b;
    }
    if (type[0] == 'f' && bits == 64) {
        double x, y;
        memcpy(&x, &a, 8), memcpy(&y, &b, 8);
        x += y;
        memcpy(&a, &x, 8);
        return a;
    }
    if (type[0] == 'f' && !strcmp(type, "f32")) {
        float x, y;
        memcpy(&x, &a, 4), memcpy(&y, &b, 4);
        x += y;
        a = 0;
        memcpy(&a, &x, 4);
        return a;
    }
    bool bf16 = type[0] == 'b' && type[1] == 'f';
    if (bf16 || type[0] == 'f') {
        uint64_t low = add_halves((uint16_t)a, (uint16_t)b, bf16);
        return strstr(type, "x2") ? low | (uint64_t)add_halves((uint16_t)(a >> 16), (uint16_t)(b >> 16), bf16) << 16
                                  : low;
    }
    return (a + b) & mask_of(bits);
}

static uint64_t atom_operand(uint64_t *state, const char *type)
{
    uint64_t r = machine_random(state);
    if (!strcmp(type, "f32")) {
        float x = (float)((int64_t)(r % 20001) - 10000) / 64;
        r = 0;
        memcpy(&r, &x, 4);
    } else if (!strcmp(type, "f64")) {
        double x = (double)(int64_t)r * 0x1p-40;
        memcpy(&r, &x, 8);
    } else if (!strncmp(type, "f16", 3)) {
        r &= 0xfbfffbff; /* no infinities and NaNs */
        r &= ~(r >> 1 & 0x20002000);
    } else if (!strncmp(type, "bf16", 4)) {
        r = (r & 0x803f803f) | 0x3f803f80 | (r >> 20 & 0x01000100);
    } else if (!(r >> 60)) {
        r &= 3;
    }
    return r;
}

/* Lane t works on its own element; returns old values in the first half of `out` and leaves new ones in the second. */
static void check_atom(const char *op, const char *type, unsigned bytes, unsigned variant)
{
    static const char *const spaces[] = {".global", ".shared::cta", ""};
    static const char *const orders[] = {"", ".relaxed.gpu", ".acquire.cta", ".release.sys", ".acq_rel.cluster"};
    const char *space = spaces[variant % 3], *order = orders[variant % 5],
               *reg = bytes == 8   ? "rd"
                      : bytes == 4 ? "r"
                                   : "rs";
    bool shared = variant % 3, red = variant >= 15;
    unsigned first = bytes == 8 ? 8 : 10, bits = bytes * 8;
    char text[4096], result[32] = "", value[64];
    if (!red)
        snprintf(result, sizeof(result), "%%%s%u, ", reg, first);
    snprintf(value, sizeof(value), strcmp(op, "cas") ? "%%%s%u" : "%%%s%u, %%%s%u", reg, first + 1, reg, first + 2);
    snprintf(
        text, sizeof(text),
        "%s%s mul.wide.u32 %%rd2, %%r0, %u; add.u64 %%rd3, %%rd0, %%rd2;"
        "ld.global.b%u %%%s%u, [%%rd3+8192]; ld.global.b%u %%%s%u, [%%rd3+16384]; ld.global.b%u %%%s%u, [%%rd3+24576];"
        "%s st%s.b%u [%%rd4], %%%s%u; bar.sync 0; %s%s%s.%s.%s %s[%%rd4], %s;"
        "bar.sync 0; st.global.b%u [%%rd3], %%%s%u; ld%s.b%u %%%s%u, [%%rd4]; st.global.b%u [%%rd3+32768], %%%s%u;"
        "ret;\n}\n",
        shared ? ".shared .align 8 .b8 s[2048];\n" : "", HEAD, bytes, bits, reg, first, bits, reg, first + 1, bits, reg,
        first + 2,
        variant % 3 == 0   ? "add.u64 %rd4, %rd3, 40960;"
        : variant % 3 == 1 ? "mov.u64 %rd4, s; add.u64 %rd4, %rd4, %rd2;"
                           : "mov.u64 %rd4, s; cvta.shared.u64 %rd4, %rd4; add.u64 %rd4, %rd4, %rd2;",
        space, bits, reg, first, red ? "red" : "atom", order, space, op, type, result, value, bits, reg, first, space,
        bits, reg, first, bits, reg, first);
    kernel_load(text);
    uint8_t *base = (uint8_t *)kernel_words();
    uint64_t state = variant + 1;
    memset(base, 0, OUT_BYTES);
    for (unsigned t = 0; t < 128; t++) {
        uint64_t a = atom_operand(&state, type), b = atom_operand(&state, type), c = atom_operand(&state, type);
        if (!strcmp(op, "cas") && (t & 1))
            b = a;
        memcpy(base + 8192 + (size_t)t * bytes, &a, bytes);
        memcpy(base + 16384 + (size_t)t * bytes, &b, bytes);
        memcpy(base + 24576 + (size_t)t * bytes, &c, bytes);
    }
    struct outcome outcome = kernel_launch((struct launch){.block = {128}});
    cr_assert_eq(outcome.fault.kind, PTX_FAULT_NONE, "%s", text);
    for (unsigned t = 0; t < 128; t++) {
        uint64_t a = 0, b = 0, c = 0, old = 0, new = 0;
        memcpy(&a, base + 8192 + (size_t)t * bytes, bytes);
        memcpy(&b, base + 16384 + (size_t)t * bytes, bytes);
        memcpy(&c, base + 24576 + (size_t)t * bytes, bytes);
        memcpy(&old, base + (size_t)t * bytes, bytes);
        memcpy(&new, base + 32768 + (size_t)t * bytes, bytes);
        uint64_t want = model(op, type, a, b, c);
        cr_assert_eq(old, a, "%s.%s variant %u: old %#lx, want %#lx", op, type, variant, old, a);
        cr_assert_eq(new, want, "%s.%s variant %u: %#lx op %#lx is %#lx, want %#lx", op, type, variant, a, b, new,
                     want);
    }
}

Test(memory, atomics_of_every_operation_and_type)
{
    static const struct {
        const char *op, *type;
        unsigned bytes;
    } cases[] = {
        {"add", "u32", 4},         {"add", "s32", 4},          {"add", "u64", 8},       {"add", "f32", 4},
        {"add", "f64", 8},         {"min", "u32", 4},          {"min", "s32", 4},       {"min", "u64", 8},
        {"min", "s64", 8},         {"max", "u32", 4},          {"max", "s32", 4},       {"max", "u64", 8},
        {"max", "s64", 8},         {"inc", "u32", 4},          {"dec", "u32", 4},       {"and", "b32", 4},
        {"and", "b64", 8},         {"or", "b32", 4},           {"or", "b64", 8},        {"xor", "b32", 4},
        {"xor", "b64", 8},         {"exch", "b32", 4},         {"exch", "b64", 8},      {"cas", "b32", 4},
        {"cas", "b64", 8},         {"cas", "b16", 2},          {"add.noftz", "f16", 2}, {"add.noftz", "bf16", 2},
        {"add.noftz", "f16x2", 4}, {"add.noftz", "bf16x2", 4},
    };
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        bool has_red = strcmp(cases[i].op, "exch") != 0 && strcmp(cases[i].op, "cas") != 0;
        for (unsigned variant = 0; variant < (has_red ? 30u : 15u); variant += 1 + (i & 1))
            check_atom(cases[i].op, cases[i].type, cases[i].bytes, variant);
    }
}

Test(memory, atomics_on_vectors)
{
    static const char text[] =
        HEAD "mul.wide.u32 %rd2, %r0, 16; add.u64 %rd3, %rd0, %rd2; mov.f32 %f0, 0f3F800000; mov.f32 %f1, 0f40000000;"
             "mov.f32 %f2, 0f40400000; mov.f32 %f3, 0f40800000;"
             "atom.global.v4.f32.add {%f0, %f1, %f2, %f3}, [%rd3+8192], {%f3, %f2, %f1, %f0};";
    /* The type comes last. */
    char fixed[2048];
    snprintf(fixed, sizeof(fixed), "%s", text);
    char *at = strstr(fixed, ".v4.f32.add");
    memcpy(at, ".add.v4.f32", 11);
    strcat(fixed, "st.global.v4.f32 [%rd3], {%f0, %f1, %f2, %f3};"
                  "red.global.add.noftz.v2.f16x2 [%rd3+16384], {%r2, %r3}; ret;\n}\n");
    at = strstr(fixed, "red.global");
    memmove(at + 40, at, strlen(at) + 1);
    memcpy(at, "mov.b32 %r2,0x3c003800;mov.b32 %r3,%r2; ", 40);
    kernel_load(fixed);
    memset(kernel_words(), 0, OUT_BYTES);
    for (unsigned round = 0; round < 2; round++)
        cr_assert_eq(kernel_launch((struct launch){.block = {32}}).fault.kind, PTX_FAULT_NONE);
    const float *sums = (const float *)(const void *)kernel_words() + 2048;
    const float *olds = (const float *)(const void *)kernel_words();
    for (unsigned i = 0; i < 128; i++) {
        cr_assert_eq(sums[i], (float)(2 * (4 - i % 4)));
        cr_assert_eq(olds[i], (float)(4 - i % 4));
    }
    for (unsigned lane = 0; lane < 32; lane++)
        for (unsigned i = 0; i < 2; i++)
            cr_assert_eq(kernel_words()[4096 + 4 * lane + i], 0x40003c00);
    cr_assert_eq(kernel_fault(HEAD "red.global.add.v4.f32 [%rd0+4], {%f0, %f1, %f2, %f3};" TAIL, 1),
                 PTX_FAULT_MISALIGNED);
}

Test(memory, registers_and_atomics_of_128_bits)
{
    const uint32_t *r = kernel_run(
        ".shared .align 16 .b8 s[64];\n" HEAD_WITH(
            ".reg .b128 %q<4>; .reg .b128 %one;\n") "mov.u64 %rd2, 0x1111222233334444; mov.u64 %rd3, "
                                                    "0x5555666677778888; mov.b128 %q0, {%rd2, %rd3};"
                                                    "mov.b128 %q1, {%rd3, %rd2}; st.shared.b128 [s], %q0; "
                                                    "atom.shared.exch.b128 %q2, [s], %q1;"
                                                    "atom.shared.cas.b128 %q3, [s], %q0, %q0; atom.shared.cas.b128 "
                                                    "%q3, [s], %q1, %q2; ld.shared.b128 %one, [s];"
                                                    "st.global.b128 [%rd0], %q2; st.global.b128 [%rd0+16], %q3; "
                                                    "st.global.b128 [%rd0+32], %one; mov.b128 {%rd4, %rd5}, %one;"
                                                    "st.global.v2.b64 [%rd0+48], {%rd4, %rd5}; ret;\n}\n",
        1);
    const uint64_t *w = (const uint64_t *)(const void *)r;
    static const uint64_t a = UINT64_C(0x1111222233334444), b = UINT64_C(0x5555666677778888);
    const uint64_t want[8] = {a, b, b, a, a, b, a, b};
    for (unsigned i = 0; i < 8; i++)
        cr_assert_eq(w[i], want[i], "word %u: %#lx", i, w[i]);
}

/* What other threads of this process, and another process, add at the same time must not get lost. */
Test(memory, atomics_are_atomic_between_threads_and_processes)
{
    static const char text[] =
        HEAD "mov.u32 %r2, 0; mov.b16 %rs1, 0x3c00; mov.f32 %f1, 0f3F800000;\n"
             "L: red.sys.global.add.u32 [%rd0], 1; atom.sys.global.add.f32 %f2, [%rd0+4], %f1;"
             "red.sys.global.add.noftz.f16 [%rd0+8], %rs1; atom.global.cas.b16 %rs2, [%rd0+10], %rs3, %rs4;"
             "red.relaxed.sys.global.add.v2.f32 [%rd0+16], {%f1, %f1};"
             "add.u32 %r2, %r2, 1; setp.lt.u32 %p1, %r2, 16; @%p1 bra L; ret;\n}\n";
    kernel_load(text);
    uint32_t *shared = mmap(NULL, SG_PAGE_BYTES * 2, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert_neq(shared, MAP_FAILED);
    uint64_t pte = (((uint64_t)(uintptr_t)shared + 4095) & ~UINT64_C(4095)) | SG_PTE_READ | SG_PTE_WRITE |
                   (uint64_t)SG_TIER_HOST << SG_PTE_TIER_SHIFT;
    atomic_store(&m.table.pte[(MACHINE_BASE >> SG_PAGE_SHIFT) + 15], pte);
    out = MACHINE_BASE + 15 * SG_PAGE_BYTES;
    pid_t child = fork();
    struct outcome outcome =
        kernel_launch((struct launch){.grid = {4}, .block = {16}, .workers = child ? 2 : 1, .slice = 50});
    if (child == 0)
        _exit(outcome.fault.kind != PTX_FAULT_NONE);
    int status = 0;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFEXITED(status) && !WEXITSTATUS(status) && outcome.fault.kind == PTX_FAULT_NONE);
    float sum, pair[2];
    memcpy(&sum, &shared[1], 4);
    memcpy(pair, &shared[4], 8);
    cr_assert_eq(shared[0], 2048);
    cr_assert_eq(sum, 2048.0f);
    cr_assert_eq(shared[2] & 0xffff, 0x6800); /* 2048: every sum on the way is a half */
    cr_assert_eq(pair[0], 2048.0f);
    cr_assert_eq(pair[1], 2048.0f);
    munmap(shared, SG_PAGE_BYTES * 2);
}

/* ---- loads and stores ---- */

Test(memory, cache_hints_orders_and_long_vectors_change_no_value)
{
    static const char *const loads[] = {
        "ld.global.L1::evict_last.b32 %r1, [%rd2]",
        "ld.global.L1::no_allocate.L2::128B.b32 %r1, [%rd2]",
        "ld.global.nc.L1::evict_first.L2::evict_last.L2::256B.u32 %r1, [%rd2]",
        "ld.global.L2::cache_hint.u32 %r1, [%rd2], %rd3",
        "ld.global.nc.L2::cache_hint.v4.u32 {%r1, %r2, %r3, %r4}, [%rd2], %rd3",
        "ld.global.u32 %r1, [%rd2].unified",
        "ldu.global.u32 %r1, [%rd2]",
        "ld.volatile.global.u32 %r1, [%rd2]",
        "ld.relaxed.sys.global.L1::evict_unchanged.u32 %r1, [%rd2]",
        "ld.acquire.cluster.global.u32 %r1, [%rd2]",
        "ld.mmio.relaxed.sys.global.u32 %r1, [%rd2]",
        "ld.global.cv.u32 %r1, [%rd2]",
        "ld.global.v8.b32 {%r1, %r2, %r3, %r4, %r5, %r6, %r7, %r8}, [%rd2]",
        "ld.global.v4.b64 {%rd4, %rd5, %rd6, %rd7}, [%rd2]; cvt.u32.u64 %r1, %rd4",
        "ld.b128 %q1, [%rd2]; mov.b128 {%rd4, %rd5}, %q1; cvt.u32.u64 %r1, %rd4",
        "ld.global.v2.f32 {%f1, _}, [%rd2]; mov.b32 %r1, %f1",
    };
    static const char *const stores[] = {
        "st.global.L1::no_allocate.b32 [%rd2], %r9",
        "st.global.wt.L2::cache_hint.b32 [%rd2], %r9, %rd3",
        "st.release.gpu.global.b32 [%rd2], %r9",
        "st.relaxed.cta.b32 [%rd2], %r9",
        "st.mmio.relaxed.sys.global.b32 [%rd2], %r9",
        "st.volatile.b32 [%rd2], %r9",
        "st.global.v8.b32 [%rd2], {%r9, %r9, %r9, %r9, %r9, %r9, %r9, %r9}",
        "cvt.u64.u32 %rd4, %r9; st.global.v4.b64 [%rd2], {%rd4, %rd4, %rd4, %rd4}",
    };
    unsigned load_count = sizeof(loads) / sizeof(loads[0]), store_count = sizeof(stores) / sizeof(stores[0]);
    for (unsigned i = 0; i < load_count + store_count; i++) {
        bool load = i < load_count;
        char text[2048];
        snprintf(text, sizeof(text),
                 "%s mul.wide.u32 %%rd2, %%r0, 32; add.u64 %%rd2, %%rd2, %%rd0; add.u64 %%rd2, %%rd2, 8192;"
                 "createpolicy.fractional.L2::evict_last.b64 %%rd3, 0f3F000000; add.u32 %%r9, %%r0, 1000;"
                 "prefetch.global.L2 [%%rd2]; prefetchu.L1 [%%rd2]; prefetch.global.L2::evict_last [%%rd2];"
                 "applypriority.global.L2::evict_normal [%%rd0], 128;"
                 "%s; %s %s",
                 HEAD_WITH(".reg .b128 %q<2>;"), load ? "st.global.u32 [%rd2], %r9" : stores[i - load_count],
                 load ? loads[i] : "ld.global.u32 %r1, [%rd2]", ";" TAIL);
        const uint32_t *r = kernel_run(text, 64);
        for (unsigned t = 0; t < 64; t++)
            cr_assert_eq(r[t], 1000 + t, "%s", load ? loads[i] : stores[i - load_count]);
    }
    cr_assert_eq(kernel_fault(HEAD "ld.global.v4.b64 {%rd4, %rd5, %rd6, %rd7}, [%rd0+16];" TAIL, 1),
                 PTX_FAULT_MISALIGNED);
}

Test(memory, discarded_memory_loses_its_contents)
{
    const uint32_t *r = kernel_run(HEAD "st.global.u32 [%rd0+1024], 5; st.global.u32 [%rd0+1152], 6;"
                                        "discard.global.L2 [%rd0+1024], 128; ld.global.u32 %r1, [%rd0+1024];" TAIL,
                                   1);
    cr_assert_neq(r[0], 5);
    cr_assert_eq(r[288], 6);
}

Test(memory, fences_of_every_form)
{
    static const char *const fences[] = {
        "membar.cta",         "membar.gl",
        "membar.sys",         "fence.sc.cta",
        "fence.sc.sys",       "fence.acq_rel.gpu",
        "fence.cluster",      "fence.acquire.gpu",
        "fence.release.sys",  "fence.proxy.alias",
        "fence.proxy.async",  "fence.proxy.async.global",
        "membar.proxy.alias", "fence.proxy.async.shared::cta",
        "fence.gpu",          "fence.mbarrier_init.release.cluster",
    };
    for (unsigned i = 0; i < sizeof(fences) / sizeof(fences[0]); i++) {
        char text[1024];
        snprintf(text, sizeof(text), "%s mov.u32 %%r1, 3; %s; %s", HEAD, fences[i], TAIL);
        cr_assert_eq(kernel_run(text, 32)[31], 3);
    }
}

Test(memory, spaces_of_generic_addresses)
{
    const uint32_t *r = kernel_run(
        ".const .u32 c = 7; .global .u32 g = 8; .shared .u32 s;\n" HEAD
        ".local .u32 l; mov.u64 %rd2, c; cvta.const.u64 %rd2, %rd2; mov.u64 %rd3, g; cvta.global.u64 %rd3, %rd3;"
        "mov.u64 %rd4, s; cvta.shared.u64 %rd4, %rd4; mov.u64 %rd5, l; cvta.local.u64 %rd5, %rd5;"
        "mov.b64 %rd6, out; cvta.param.u64 %rd6, %rd6; st.u32 [%rd4], 9; st.u32 [%rd5], 10;"
        "mov.u32 %r1, 0; mov.u32 %r2, 1;\n"
#define ASK(space, reg) "isspacep." space " %p1, " reg "; @%p1 add.u32 %r1, %r1, %r2; add.u32 %r2, %r2, %r2;"
#define ASK_ALL(reg)                                                                                                   \
    ASK("const", reg) ASK("global", reg) ASK("shared::cta", reg) ASK("local", reg) ASK("param::entry", reg)
        ASK_ALL("%rd2") ASK_ALL("%rd3") ASK_ALL("%rd4") ASK_ALL("%rd5") ASK_ALL(
            "%rd6") "ld.u64 %rd7, [%rd6]; setp.eq.u64 %p1, %rd7, %rd0; selp.u32 %r3, 1, 0, %p1; st.global.u32 "
                    "[%rd0+4], %r3;"
                    "cvta.to.shared.u64 %rd8, %rd4; ld.shared.u32 %r4, [%rd8]; st.global.u32 [%rd0+8], %r4;"
                    "cvta.to.const.u64 %rd8, %rd2; ld.const.u32 %r4, [%rd8]; st.global.u32 [%rd0+12], %r4;" TAIL,
        1);
    cr_assert_eq(r[0], 1u << 0 | 1u << 6 | 1u << 12 | 1u << 18 | 1u << 24);
    cr_assert_eq(r[1], 1);
    cr_assert_eq(r[2], 9);
    cr_assert_eq(r[3], 7);
    cr_assert_eq(kernel_fault(HEAD "mov.b64 %rd6, out; cvta.param.u64 %rd6, %rd6; st.u32 [%rd6], 1;" TAIL, 1),
                 PTX_FAULT_ILLEGAL_ADDRESS);
}

/* ---- asynchronous copies ---- */

#define COPY_HEAD                                                                                                      \
    ".shared .align 16 .b8 s[4096];\n" HEAD                                                                            \
    "mov.u32 %r2, s; mad.lo.u32 %r3, %r0, 16, %r2; mul.wide.u32 %rd2, %r0, 16; add.u64 %rd2, %rd2, %rd0;"              \
    "add.u64 %rd2, %rd2, 8192; add.u32 %r4, %r0, 100; st.global.v4.u32 [%rd2], {%r4, %r4, %r4, %r4};"                  \
    "mov.u32 %r5, 1; st.shared.v4.u32 [%r3], {%r5, %r5, %r5, %r5};\n"
#define SUM_SHARED                                                                                                     \
    "ld.shared.v4.u32 {%r6, %r7, %r8, %r9}, [%r3]; mad.lo.u32 %r1, %r6, 1000, %r7; mad.lo.u32 %r1, %r1, 1000, %r8;"    \
    "xor.b32 %r1, %r1, %r9;" TAIL

static uint32_t sum_of(uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    return ((a * 1000 + b) * 1000 + c) ^ d;
}

Test(memory, async_copies_of_all_sizes)
{
    static const struct {
        const char *text;
        unsigned copied, zeros; /* words */
    } cases[] = {
        {"cp.async.ca.shared.global [%r3], [%rd2], 4", 1, 0},
        {"cp.async.ca.shared::cta.global.L2::128B [%r3], [%rd2], 8", 2, 0},
        {"cp.async.cg.shared.global [%r3], [%rd2], 16", 4, 0},
        {"cp.async.ca.shared.global [%r3], [%rd2], 16, 8", 2, 2},
        {"mov.u32 %r10, 4; cp.async.cg.shared.global.L2::64B [%r3], [%rd2], 16, %r10", 1, 3},
        {"cp.async.ca.shared.global [%r3], [%rd2], 8, 0", 0, 2},
        {"setp.eq.u32 %p1, %r0, %r0; cp.async.ca.shared.global [%r3], [%rd2], 16, %p1", 0, 4},
        {"setp.ne.u32 %p1, %r0, %r0; cp.async.cg.shared.global [%r3], [%rd2], 16, %p1", 4, 0},
        {"mov.u64 %rd3, 0; cp.async.cg.shared.global.L2::cache_hint [%r3], [%rd2], 16, %rd3", 4, 0},
    };
    static const char *const ends[] = {"cp.async.wait_all", "cp.async.commit_group; cp.async.wait_group 0"};
    for (unsigned i = 0; i < 2 * sizeof(cases) / sizeof(cases[0]); i++) {
        char text[2048];
        snprintf(text, sizeof(text), "%s%s; %s; %s", COPY_HEAD, cases[i / 2].text, ends[i % 2], SUM_SHARED);
        const uint32_t *r = kernel_run(text, 64);
        for (unsigned t = 0; t < 64; t++) {
            uint32_t word[4];
            for (unsigned k = 0; k < 4; k++)
                word[k] = k < cases[i / 2].copied ? t + 100 : k < cases[i / 2].copied + cases[i / 2].zeros ? 0 : 1;
            cr_assert_eq(r[t], sum_of(word[0], word[1], word[2], word[3]), "%s", cases[i / 2].text);
        }
    }
}

Test(memory, async_copies_are_seen_only_when_waited_for)
{
    /* Two groups; odd lanes wait for the first only, and a third copy is not waited for at all. */
    const uint32_t *r = kernel_run(
        COPY_HEAD "and.b32 %r10, %r0, 1; setp.ne.u32 %p1, %r10, 0;"
                  "cp.async.ca.shared.global [%r3], [%rd2], 4; cp.async.commit_group;"
                  "cp.async.ca.shared.global [%r3+4], [%rd2+4], 4; cp.async.commit_group;"
                  "cp.async.ca.shared.global [%r3+8], [%rd2+8], 4;"
                  "@%p1 bra ODD; cp.async.wait_group 0; bra JOIN;\nODD: cp.async.wait_group 1;\nJOIN: " SUM_SHARED,
        64);
    for (uint32_t t = 0; t < 64; t++)
        cr_assert_eq(r[t], sum_of(t + 100, t & 1 ? 1 : t + 100, 1, 1));
    /* The copy reads its source when it is carried out, not before it was issued. */
    r = kernel_run(COPY_HEAD "cp.async.ca.shared.global [%r3], [%rd2], 4; cp.async.wait_all;"
                             "st.global.u32 [%rd2], 5; cp.async.wait_all;" SUM_SHARED,
                   32);
    cr_assert_eq(r[3], sum_of(103, 1, 1, 1));
}

Test(memory, async_copies_check_what_they_name_at_once)
{
    static const struct {
        const char *text;
        enum ptx_fault_kind kind;
    } cases[] = {
        {"cp.async.ca.shared.global [%r3+4096], [%rd2], 4;", PTX_FAULT_ILLEGAL_ADDRESS},
        {"cp.async.ca.shared.global [%r3+4], [%rd2], 8;", PTX_FAULT_MISALIGNED},
        {"cp.async.ca.shared.global [%r3], [%rd2+4], 8;", PTX_FAULT_MISALIGNED},
        {"mov.u64 %rd2, 64; cp.async.ca.shared.global [%r3], [%rd2], 8;", PTX_FAULT_ILLEGAL_ADDRESS},
        {"mov.u32 %r9, 9; cp.async.ca.shared.global [%r3], [%rd2], 8, %r9;", PTX_FAULT_ILLEGAL_INSTRUCTION},
    };
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[2048];
        snprintf(text, sizeof(text), "%s%s%s", COPY_HEAD, cases[i].text, TAIL);
        cr_assert_eq(kernel_fault(text, 32), cases[i].kind, "%s", cases[i].text);
    }
    /* A source that is not read need not exist. */
    const uint32_t *r = kernel_run(COPY_HEAD "mov.u64 %rd2, 64; cp.async.ca.shared.global [%r3], [%rd2], 8, 0;"
                                             "cp.async.wait_all;" SUM_SHARED,
                                   32);
    cr_assert_eq(r[0], sum_of(0, 0, 1, 1));
}

/* ---- mbarriers ---- */

Test(memory, mbarrier_phases_follow_arrivals)
{
    /* One thread, a barrier of three: what each call returns or tells. */
    const uint32_t *r = kernel_run(
        ".shared .align 8 .b64 b;\n" HEAD
        "mbarrier.init.shared.b64 [b], 3; mbarrier.arrive.shared.b64 %rd2, [b]; mbarrier.pending_count.b64 %r2, %rd2;"
        "st.global.u32 [%rd0+4], %r2; mbarrier.test_wait.shared.b64 %p1, [b], %rd2; selp.u32 %r3, 1, 0, %p1;"
        "mbarrier.test_wait.parity.shared.b64 %p2, [b], 0; selp.u32 %r4, 2, 0, %p2;"
        "mbarrier.test_wait.parity.shared.b64 %p3, [b], 1; selp.u32 %r5, 4, 0, %p3;"
        "mbarrier.arrive.noComplete.release.cta.shared::cta.b64 _, [b], 1; mbarrier.arrive.shared::cta.b64 %rd3, [b], "
        "1;"
        "mbarrier.pending_count.b64 %r6, %rd3; st.global.u32 [%rd0+8], %r6;"
        "mbarrier.test_wait.acquire.cta.shared::cta.b64 %p4, [b], %rd2; selp.u32 %r7, 8, 0, %p4;"
        "mbarrier.try_wait.parity.shared::cta.b64 %p5, [b], 0, 100; selp.u32 %r8, 16, 0, %p5;"
        "mbarrier.try_wait.parity.shared::cta.b64 %p6, [b], 1; selp.u32 %r9, 32, 0, %p6;"
        "mbarrier.arrive_drop.shared.b64 %rd4, [b]; mbarrier.arrive.shared.b64 %rd5, [b], 2;"
        "mbarrier.arrive.shared.b64 %rd6, [b]; mbarrier.pending_count.b64 %r10, %rd6; st.global.u32 [%rd0+12], %r10;"
        "mbarrier.inval.shared.b64 [b]; or.b32 %r1, %r3, %r4; or.b32 %r1, %r1, %r5; or.b32 %r1, %r1, %r7;"
        "or.b32 %r1, %r1, %r8; or.b32 %r1, %r1, %r9;" TAIL,
        1);
    cr_assert_eq(r[0], 4 | 8 | 16, "%u", r[0]);
    cr_assert_eq(r[1], 3);
    cr_assert_eq(r[2], 1);
    cr_assert_eq(r[3], 2); /* one dropped out, for good */
}

Test(memory, mbarrier_joins_the_threads_of_a_block)
{
    const uint32_t *r = kernel_run(
        ".shared .align 8 .b64 b; .shared .u32 s[128];\n" HEAD
        "setp.eq.u32 %p1, %r0, 0; @%p1 mbarrier.init.shared.b64 [b], 128; bar.sync 0; mov.u32 %r2, s;"
        "mad.lo.u32 %r3, %r0, 4, %r2; mov.u32 %r4, 0; mov.u32 %r1, 0;\n"
        "L: add.u32 %r5, %r0, %r4; st.shared.u32 [%r3], %r5; mov.u64 %rd3, b; cvta.shared.u64 %rd3, %rd3;"
        "mbarrier.arrive.b64 %rd2, [%rd3];\nW: mbarrier.try_wait.b64 %p2, [%rd3], %rd2; @!%p2 bra W;"
        "xor.b32 %r6, %r0, 65; mad.lo.u32 %r7, %r6, 4, %r2; ld.shared.u32 %r8, [%r7]; add.u32 %r1, %r1, %r8;"
        "mbarrier.arrive.shared.b64 %rd2, [b];\nV: mbarrier.test_wait.shared.b64 %p2, [b], %rd2; @!%p2 bra V;"
        "add.u32 %r4, %r4, 1; setp.lt.u32 %p3, %r4, 5; @%p3 bra L;" TAIL,
        128);
    for (uint32_t t = 0; t < 128; t++)
        cr_assert_eq(r[t], 5 * (t ^ 65) + 10);
}

Test(memory, mbarrier_counts_bytes_of_bulk_copies)
{
    const uint32_t *r = kernel_run(
        ".shared .align 8 .b64 b; .shared .align 16 .b8 s[512];\n" HEAD
        "add.u64 %rd2, %rd1, 8192; st.global.u32 [%rd2], %r0; setp.eq.u32 %p1, %r0, 0;"
        "@%p1 mbarrier.init.shared::cta.b64 [b], 1; bar.sync 0; @!%p1 bra WAIT;"
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [b], 256; add.u64 %rd3, %rd0, 8192; mov.u64 %rd4, s;"
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%rd4], [%rd3], 128, [b];"
        "mbarrier.test_wait.parity.shared::cta.b64 %p3, [b], 0; @%p3 trap;"
        "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%rd4+128], [%rd3+128], 128, [b];\n"
        "WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p2, [b], 0; @!%p2 bra WAIT;"
        "mov.u32 %r2, s; mad.lo.u32 %r3, %r0, 4, %r2; ld.shared.u32 %r1, [%r3]; bar.sync 0; @!%p1 bra END;"
        "add.u64 %rd3, %rd0, 16384; cp.async.bulk.global.shared::cta.bulk_group [%rd3], [%rd4], 256;"
        "cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0; mbarrier.expect_tx.relaxed.cta.shared::cta.b64 "
        "[b], 32;"
        "mbarrier.arrive.shared::cta.b64 _, [b]; mbarrier.test_wait.parity.shared::cta.b64 %p3, [b], 1; @%p3 trap;"
        "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [b], 32; mbarrier.test_wait.parity.shared::cta.b64 %p3, [b], "
        "1;"
        "@!%p3 trap;\nEND:" TAIL,
        64);
    for (uint32_t t = 0; t < 64; t++) {
        cr_assert_eq(r[t], t);
        cr_assert_eq(r[4096 + t], t);
    }
}

Test(memory, async_copies_arrive_at_mbarriers)
{
    for (unsigned noinc = 0; noinc < 2; noinc++) {
        char text[2048];
        snprintf(text, sizeof(text),
                 ".shared .align 8 .b64 b;\n%s setp.eq.u32 %%p1, %%r0, 0; @%%p1 mbarrier.init.shared.b64 [b], %u;"
                 "bar.sync 0; cp.async.cg.shared.global [%%r3], [%%rd2], 16; cp.async.mbarrier.arrive%s.shared.b64 [b];"
                 "%s\nW: mbarrier.test_wait.parity.shared.b64 %%p2, [b], 0; @!%%p2 bra W; xor.b32 %%r11, %%r0, 33;"
                 "mad.lo.u32 %%r3, %%r11, 16, %%r2; %s",
                 COPY_HEAD, 64, noinc ? ".noinc" : "", noinc ? "" : "mbarrier.arrive.shared.b64 _, [b];", SUM_SHARED);
        const uint32_t *r = kernel_run(text, 64);
        for (uint32_t t = 0; t < 64; t++) {
            uint32_t word = (t ^ 33) + 100;
            cr_assert_eq(r[t], sum_of(word, word, word, word));
        }
    }
}

Test(memory, misuse_of_mbarriers_is_a_fault)
{
    static const char *const cases[] = {
        "mbarrier.arrive.shared.b64 _, [b];",
        "mbarrier.init.shared.b64 [b], 0;",
        "mbarrier.init.shared.b64 [b], 1048576;",
        "mbarrier.init.shared.b64 [b], 2; mbarrier.arrive.shared.b64 _, [b], 3;",
        "mbarrier.init.shared.b64 [b], 1; mbarrier.arrive.noComplete.shared.b64 _, [b], 1;",
        ("mbarrier.init.shared.b64 [b], 1; mbarrier.inval.shared.b64 [b];"
         "mbarrier.test_wait.parity.shared.b64 %p1, [b], 0;"),
        "mbarrier.init.b64 [%rd0], 1;",
    };
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[1024];
        snprintf(text, sizeof(text), ".shared .align 8 .b64 b;\n%s %s %s", HEAD, cases[i], TAIL);
        cr_assert_eq(kernel_fault(text, 1), PTX_FAULT_ILLEGAL_INSTRUCTION, "%s", cases[i]);
    }
}

/* ---- what warps and clusters agree on ---- */

Test(memory, redux_of_every_kind_over_members)
{
    static const struct {
        const char *op;
        uint32_t (*join)(uint32_t, uint32_t);
    } cases[] = {{"add.u32", NULL}, {"min.u32", NULL}, {"max.s32", NULL}, {"min.s32", NULL},
                 {"max.u32", NULL}, {"and.b32", NULL}, {"or.b32", NULL},  {"xor.b32", NULL}};
    for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[1024];
        snprintf(
            text, sizeof(text),
            "%s setp.lt.u32 %%p1, %%r0, 11; selp.b32 %%r2, 0x7ff, 0xfffff800, %%p1; mul.lo.u32 %%r3, %%r0, 0x9e3779b9;"
            "redux.sync.%s %%r1, %%r3, %%r2;%s",
            HEAD, cases[i].op, TAIL);
        const uint32_t *r = kernel_run(text, 32);
        for (unsigned part = 0; part < 2; part++) {
            unsigned from = part ? 11 : 0, to = part ? 32 : 11;
            uint32_t want = from * 0x9e3779b9u;
            for (unsigned t = from + 1; t < to; t++) {
                uint32_t value = t * 0x9e3779b9u;
                switch (i) {
                case 0: want += value; break;
                case 1: want = value < want ? value : want; break;
                case 2: want = (int32_t)value > (int32_t)want ? value : want; break;
                case 3: want = (int32_t)value < (int32_t)want ? value : want; break;
                case 4: want = value > want ? value : want; break;
                case 5: want &= value; break;
                case 6: want |= value; break;
                default: want ^= value; break;
                }
            }
            for (unsigned t = from; t < to; t++)
                cr_assert_eq(r[t], want, "%s lane %u: %#x, want %#x", cases[i].op, t, r[t], want);
        }
    }
}

Test(memory, elect_picks_one_member)
{
    const uint32_t *r =
        kernel_run(HEAD "setp.lt.u32 %p1, %r0, 5; @%p1 bra LOW; elect.sync %r2|%p2, 0xffffffe0; bra JOIN;\n"
                        "LOW: elect.sync %r2|%p2, 0x1f;\nJOIN: selp.u32 %r3, 100, 0, %p2;"
                        "add.u32 %r1, %r2, %r3;" TAIL,
                   32);
    for (uint32_t t = 0; t < 32; t++)
        cr_assert_eq(r[t], (t < 5 ? 0 : 5) + (t == 0 || t == 5 ? 100 : 0));
}

Test(memory, cluster_barrier_in_two_halves)
{
    /* Work between the halves; threads that have left are not waited for. */
    const uint32_t *r =
        kernel_run(".shared .u32 s[128];\n" HEAD "setp.ge.u32 %p1, %r0, 100; @%p1 exit; mov.u32 %r2, s; mad.lo.u32 "
                   "%r3, %r0, 4, %r2; mov.u32 %r4, 0; mov.u32 %r1, 0;\n"
                   "L: add.u32 %r5, %r0, %r4; st.shared.u32 [%r3], %r5; barrier.cluster.arrive.release.aligned; "
                   "add.u32 %r1, %r1, 1000;"
                   "barrier.cluster.wait.acquire.aligned; sub.u32 %r6, 99, %r0; mad.lo.u32 %r7, %r6, 4, %r2;"
                   "ld.shared.u32 %r8, [%r7]; add.u32 %r1, %r1, %r8; barrier.cluster.arrive; barrier.cluster.wait;"
                   "add.u32 %r4, %r4, 1; setp.lt.u32 %p2, %r4, 3; @%p2 bra L;" TAIL,
                   128);
    for (uint32_t t = 0; t < 100; t++)
        cr_assert_eq(r[t], 3000 + 3 * (99 - t) + 3);
}

Test(memory, old_targets_have_votes_and_shuffles_without_sync)
{
    static const char text[] = ".version 6.0\n.target sm_60\n.address_size 64\n" HEAD
                               "shfl.bfly.b32 %r2, %r0, 1, 31; setp.lt.u32 %p1, %r0, 4; vote.ballot.b32 %r3, %p1;"
                               "vote.any.pred %p2, %p1; selp.u32 %r4, 64, 0, %p2; mad.lo.u32 %r1, %r2, 1000, %r3;"
                               "add.u32 %r1, %r1, %r4;" TAIL;
    machine_load(&m, text, sizeof(text) - 1);
    cr_assert_eq(kernel_launch((struct launch){.block = {32}}).fault.kind, PTX_FAULT_NONE);
    for (uint32_t t = 0; t < 32; t++)
        cr_assert_eq(kernel_words()[t], (t ^ 1) * 1000 + 15 + 64);
}

Test(memory, hints_to_the_hardware_do_nothing)
{
    cr_assert_eq(kernel_run(HEAD "pmevent 3; pmevent.mask 5; griddepcontrol.wait; setmaxnreg.inc.sync.aligned.u32 96;"
                                 "nanosleep.u32 5; griddepcontrol.launch_dependents; mov.u32 %r1, 4;" TAIL,
                            32)[9],
                 4);
}
