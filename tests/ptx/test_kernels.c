/* Kernels written in CUDA C, compiled by clang: what they compute, against plain C. */
#include "ptx/machine.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct machine m;

static void start(void)
{
    machine_init(&m);
    machine_load_kernels(&m);
}

static void stop(void)
{
    machine_finish(&m);
}

TestSuite(kernels, .init = start, .fini = stop);

static struct outcome run(struct launch launch)
{
    struct outcome outcome = machine_run(&m, &launch);
    cr_assert_eq(outcome.fault.kind, PTX_FAULT_NONE, "%s: fault %d at line %u", launch.name, outcome.fault.kind,
                 outcome.fault.line);
    return outcome;
}

static float *floats(uint64_t address)
{
    return machine_at(&m, address);
}

static void fill(uint64_t address, int n, uint64_t seed)
{
    for (int i = 0; i < n; i++)
        floats(address)[i] = (float)(int64_t)(machine_random(&seed) % 2001 - 1000) / 256;
}

Test(kernels, matmul_is_a_chain_of_fmas_for_any_number_of_workers)
{
    enum { N = 64 };
    struct {
        uint64_t c, a, b;
        int n;
    } p = {machine_alloc(&m, N * N * 4), machine_alloc(&m, N * N * 4), machine_alloc(&m, N * N * 4), N};
    fill(p.a, N * N, 1);
    fill(p.b, N * N, 2);
    for (unsigned workers = 1; workers <= 4; workers++) {
        memset(floats(p.c), 0, N * N * 4);
        struct outcome outcome = run((struct launch){.name = "matmul",
                                                     .grid = {N / 16, N / 16},
                                                     .block = {16, 16},
                                                     .params = &p,
                                                     .workers = workers,
                                                     .seed = workers,
                                                     .slice = 3000});
        for (int y = 0; y < N; y++) {
            for (int x = 0; x < N; x++) {
                float sum = 0;
                for (int k = 0; k < N; k++)
                    sum = fmaf(floats(p.a)[y * N + k], floats(p.b)[k * N + x], sum);
                cr_assert_eq(floats(p.c)[y * N + x], sum, "at %d, %d", y, x);
            }
        }
        cr_expect_eq(outcome.counters.flops, 2u * N * N * N);
        cr_expect_eq(outcome.counters.write_bytes[SG_TIER_VRAM], N * N * 4u);
        cr_expect_eq(outcome.counters.read_bytes[SG_TIER_VRAM], 2u * N * N * (N / 16) * 4);
    }
}

Test(kernels, axpy_leaves_the_tail_alone)
{
    enum { N = 1000 };
    struct {
        uint64_t y, x;
        float a;
        int n;
    } p = {machine_alloc(&m, N * 4 + 64), machine_alloc(&m, N * 4), 2.5f, N};
    fill(p.x, N, 3);
    floats(p.y)[N] = 7;
    run((struct launch){.name = "axpy", .grid = {4}, .block = {256}, .params = &p});
    for (int i = 0; i < N; i++)
        cr_assert_eq(floats(p.y)[i], floats(p.x)[i] * 2.5f);
    cr_assert_eq(floats(p.y)[N], 7);
}

Test(kernels, reduction_with_shuffles)
{
    enum { N = 5000 };
    struct {
        uint64_t out, in;
        int n;
    } p = {machine_alloc(&m, 4), machine_alloc(&m, N * 4), N};
    double sum = 0;
    fill(p.in, N, 4);
    for (int i = 0; i < N; i++)
        sum += floats(p.in)[i];
    uint32_t sizes[] = {32, 64, 96, 250, 1024};
    for (unsigned k = 0; k < 5; k++) {
        uint32_t threads = sizes[k];
        if (threads % 32)
            continue; /* the kernel's full masks need whole warps */
        run((struct launch){.name = "reduce", .block = {threads}, .params = &p});
        cr_assert_float_eq(*floats(p.out), sum, 1e-2, "%u threads: %f, want %f", threads, *floats(p.out), sum);
    }
}

Test(kernels, softmax_rows_sum_to_one)
{
    enum { N = 100, ROWS = 3 };
    struct {
        uint64_t out, in;
        int n;
    } p = {machine_alloc(&m, N * ROWS * 4), machine_alloc(&m, N * ROWS * 4), N};
    fill(p.in, N * ROWS, 5);
    run((struct launch){.name = "softmax", .grid = {ROWS}, .block = {32}, .params = &p});
    for (int row = 0; row < ROWS; row++) {
        double sum = 0, top = -1e9;
        for (int i = 0; i < N; i++)
            top = fmax(top, floats(p.in)[row * N + i]);
        for (int i = 0; i < N; i++)
            sum += exp(floats(p.in)[row * N + i] - top);
        for (int i = 0; i < N; i++)
            cr_assert_float_eq(floats(p.out)[row * N + i], exp(floats(p.in)[row * N + i] - top) / sum, 1e-6);
    }
}

Test(kernels, histogram_counts_every_element_with_several_workers)
{
    enum { N = 20000 };
    struct {
        uint64_t bins, in;
        int n;
    } p = {machine_alloc(&m, 256), machine_alloc(&m, N * 4), N};
    uint32_t *in = machine_at(&m, p.in), *bins = machine_at(&m, p.bins), want[64] = {0};
    uint64_t seed = 6;
    for (int i = 0; i < N; i++)
        want[(in[i] = (uint32_t)machine_random(&seed)) & 63]++;
    run((struct launch){.name = "histogram", .grid = {7}, .block = {128}, .params = &p, .workers = 3});
    for (int i = 0; i < 64; i++)
        cr_assert_eq(bins[i], want[i]);
}

Test(kernels, lanes_leave_a_loop_one_by_one)
{
    enum { N = 500 };
    struct {
        uint64_t out;
        int n;
    } p = {machine_alloc(&m, N * 4), N};
    run((struct launch){.name = "collatz", .grid = {4}, .block = {128}, .params = &p});
    for (uint32_t i = 0; i < N; i++) {
        uint32_t v = i + 1, steps = 0;
        for (; v != 1; steps++)
            v = v & 1 ? 3 * v + 1 : v / 2;
        cr_assert_eq(((uint32_t *)machine_at(&m, p.out))[i], steps);
    }
}

Test(kernels, switch_takes_each_lane_to_its_case)
{
    enum { N = 256 };
    struct {
        uint64_t out, in;
        int n;
    } p = {machine_alloc(&m, N * 4), machine_alloc(&m, N * 4), N};
    int *in = machine_at(&m, p.in), *out = machine_at(&m, p.out);
    for (int i = 0; i < N; i++)
        in[i] = (i * 7 + i / 9) % 10;
    run((struct launch){.name = "choose", .grid = {2}, .block = {128}, .params = &p});
    for (int i = 0; i < N; i++) {
        int want[] = {17 * i, i ^ 0x55, i - 1000, i * i, ~i, i << 3, i % 7, -i, 99, 99};
        cr_assert_eq(out[i], want[in[i]], "%d: case %d", i, in[i]);
    }
}

Test(kernels, recursion_of_different_depth_per_lane)
{
    struct {
        uint64_t out;
    } p = {machine_alloc(&m, 256)};
    run((struct launch){.name = "fibonacci", .block = {64}, .params = &p});
    uint32_t fib[16] = {0, 1};
    for (int i = 2; i < 16; i++)
        fib[i] = fib[i - 1] + fib[i - 2];
    for (int i = 0; i < 64; i++)
        cr_assert_eq(((uint32_t *)machine_at(&m, p.out))[i], fib[i & 15]);
}

struct pair {
    int a;
    double b;
    char c[5];
};

Test(kernels, structs_by_value_through_calls)
{
    struct {
        uint64_t out;
        struct pair in;
    } p = {machine_alloc(&m, 64 * sizeof(struct pair)), {5, 1.25, {1, 2, 3, 4, 5}}};
    run((struct launch){.name = "structs", .block = {40}, .params = &p});
    struct pair *out = machine_at(&m, p.out);
    for (int t = 0; t < 40; t++) {
        cr_assert_eq(out[t].a, 5 + t);
        cr_assert_eq(out[t].b, 1.25 * t);
        for (int i = 0; i < 5; i++)
            cr_assert_eq(out[t].c[i], (char)(5 - i + t));
    }
}

Test(kernels, local_arrays_are_private_to_a_thread)
{
    enum { N = 20 };
    struct {
        uint64_t out, index;
        int n;
    } p = {machine_alloc(&m, 96 * 4), machine_alloc(&m, N * 8), N};
    int *index = machine_at(&m, p.index), *out = machine_at(&m, p.out);
    for (int i = 0; i < 2 * N; i++)
        index[i] = i * 11 % 37;
    run((struct launch){.name = "local_array", .block = {96}, .params = &p});
    for (int t = 0; t < 96; t++) {
        int a[16], s = 0;
        for (int i = 0; i < 16; i++)
            a[i] = i * 3 + t;
        for (int i = 0; i < N; i++)
            a[index[i] & 15] += a[index[i + N] & 15];
        for (int i = 0; i < 16; i++)
            s = (int)((unsigned)s * 5 + (unsigned)a[i]);
        cr_assert_eq(out[t], s);
    }
}

Test(kernels, vectors_of_four_move_whole)
{
    struct {
        uint64_t out, in;
    } p = {machine_alloc(&m, 64 * 16), machine_alloc(&m, 64 * 16)};
    fill(p.in, 64 * 4, 8);
    run((struct launch){.name = "copy4", .grid = {2}, .block = {32}, .params = &p});
    for (int i = 0; i < 64 * 4; i++)
        cr_assert_eq(floats(p.out)[i], floats(p.in)[i] * 2);
}

Test(kernels, dynamic_shared_memory)
{
    struct {
        uint64_t out;
    } p = {machine_alloc(&m, 1024)};
    run((struct launch){.name = "dynamic_shared", .block = {200}, .params = &p, .dynamic_shared_bytes = 800});
    for (int i = 0; i < 200; i++)
        cr_assert_eq(((int *)machine_at(&m, p.out))[i], (199 - i) * 3);
    struct launch small = {.name = "dynamic_shared", .block = {200}, .params = &p, .dynamic_shared_bytes = 796};
    struct outcome outcome = machine_run(&m, &small);
    cr_assert_eq(outcome.fault.kind, PTX_FAULT_ILLEGAL_ADDRESS);
    cr_assert_str_eq(outcome.fault.space, "shared");
    cr_assert_eq(outcome.fault.address, 796);
    cr_assert_eq(outcome.fault.thread[0], 199);
}

Test(kernels, globals_have_their_initial_values_and_addresses)
{
    struct {
        uint64_t out;
    } p = {machine_alloc(&m, 256)};
    run((struct launch){.name = "globals", .block = {8}, .params = &p});
    for (int i = 0; i < 8; i++)
        cr_assert_eq(((int *)machine_at(&m, p.out))[i], (i % 4 + 1) * 10 + 5);
    cr_assert_eq(*(int *)machine_at(&m, machine_global(&m, "counter")), 77);
}

Test(kernels, a_block_may_wait_for_another_resident_one)
{
    struct {
        uint64_t flag, out;
    } p = {machine_alloc(&m, 4), machine_alloc(&m, 4)};
    for (unsigned seed = 0; seed < 8; seed++) {
        *(int *)machine_at(&m, p.flag) = 0;
        run((struct launch){.name = "spin", .grid = {2}, .params = &p, .seed = seed, .workers = 1 + seed % 2});
        cr_assert_eq(*(int *)machine_at(&m, p.out), 123);
    }
}

Test(kernels, lanes_of_a_warp_may_contend_for_a_lock)
{
    struct {
        uint64_t lock, count;
    } p = {machine_alloc(&m, 4), machine_alloc(&m, 4)};
    run((struct launch){.name = "lock_in_warp", .grid = {3}, .block = {64}, .params = &p, .workers = 2});
    cr_assert_eq(*(int *)machine_at(&m, p.count), 3 * 64);
}
