/*
 * What headroom adds to a launch and what allocation costs: a table. The library's own objects are in this program, so each
 * figure and its native counterpart come from the same process, in alternating batches; medians are printed.
 *
 * "null driver": the real driver's entry is replaced by a function that returns at once, so that the difference is the shim's
 * own time to the nanosecond. "simgpu": launches of an empty kernel on the simulated GPU.
 */
#include "base/clock.h"
#include "residency/access.h"
#include "shim/gate.h"
#include "space/space.h"
#include "stats/stats.h"

#include <stdio.h>
#include <stdlib.h>

#define CHECK(call)                                                                                                    \
    do {                                                                                                               \
        CUresult got_ = (call);                                                                                        \
        if (got_ != CUDA_SUCCESS) {                                                                                    \
            fprintf(stderr, "bench_shim: %s: error %d\n", #call, (int)got_);                                           \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

#define BATCHES 51
#define POINTERS 8

static const char empty_kernel[] = ".version 6.0\n.target sm_70\n.address_size 64\n"
                                   ".visible .entry empty(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d,"
                                   " .param .u64 e, .param .u64 f, .param .u64 g, .param .u64 h)\n{\n ret;\n}\n";

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}
static double median(double *values, size_t n)
{
    qsort(values, n, sizeof *values, by_value);
    return values[n / 2];
}

static uint64_t random_state = 1;
static size_t pick(size_t n)
{
    random_state = random_state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (size_t)(random_state >> 33) % n;
}

static CUresult null_launch(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                            unsigned shared, CUstream s, void **params, void **extra)
{
    (void)f, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)s, (void)params,
        (void)extra;
    return CUDA_SUCCESS;
}

typedef CUresult (*launch_fn)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                              CUstream, void **, void **);

static double time_launches(launch_fn launch, CUfunction f, CUstream s, const CUdeviceptr *live, size_t count,
                            int launches)
{
    CUdeviceptr args[64][POINTERS];
    void *params[64][POINTERS];
    for (int k = 0; k < 64; k++)
        for (int i = 0; i < POINTERS; i++) {
            args[k][i] = live[pick(count)];
            params[k][i] = &args[k][i];
        }
    uint64_t start = hr_clock_ns();
    for (int i = 0; i < launches; i++)
        CHECK(launch(f, 1, 1, 1, 32, 1, 1, 0, s, params[i % 64], NULL));
    return (double)(hr_clock_ns() - start) / launches;
}

struct launch_times {
    double native, ours;
};

/* Medians over alternating batches. The gate must have been taken once per launch of ours. */
static struct launch_times compare_launches(launch_fn native, CUfunction f, CUstream s, const CUdeviceptr *live,
                                            size_t count, int launches)
{
    double a[BATCHES], b[BATCHES];
    for (int i = 0; i < BATCHES; i++) {
        a[i] = time_launches(native, f, s, live, count, launches);
        CHECK(cuStreamSynchronize(s));
        uint64_t entered = hr_gate_entered(), resident = hr_stat_sum(HR_STAT_launches_resident);
        b[i] = time_launches(cuLaunchKernel, f, s, live, count, launches);
        if (hr_gate_entered() - entered != (uint64_t)launches ||
            hr_stat_sum(HR_STAT_launches_resident) - resident != (uint64_t)launches) {
            fprintf(stderr, "bench_shim: not every launch took the gate and found its memory resident\n");
            exit(1);
        }
        CHECK(cuStreamSynchronize(s));
    }
    return (struct launch_times){median(a, BATCHES), median(b, BATCHES)};
}

typedef CUresult (*alloc_fn)(CUdeviceptr *, size_t);
typedef CUresult (*free_fn)(CUdeviceptr);

static double time_pairs(alloc_fn alloc, free_fn release, size_t bytes, int pairs)
{
    uint64_t start = hr_clock_ns();
    for (int i = 0; i < pairs; i++) {
        CUdeviceptr p;
        CHECK(alloc(&p, bytes));
        CHECK(release(p));
    }
    return (double)(hr_clock_ns() - start) / pairs;
}

static struct launch_times compare_pairs(size_t bytes)
{
    double a[BATCHES], b[BATCHES];
    for (int i = 0; i < BATCHES; i++) {
        a[i] = time_pairs(hr_drv.cuMemAlloc_v2, hr_drv.cuMemFree_v2, bytes, 50);
        b[i] = time_pairs(cuMemAlloc_v2, cuMemFree_v2, bytes, 2000);
    }
    return (struct launch_times){median(a, BATCHES), median(b, BATCHES)};
}

/* `count` live allocations of 4 KiB, all resident. */
static size_t grow(CUdeviceptr *live, size_t have, size_t count)
{
    for (; have < count; have++) {
        CHECK(cuMemAlloc_v2(&live[have], 4096));
        CHECK(cuMemsetD8_v2(live[have], 1, 4096));
    }
    return have;
}

int main(void)
{
    static const size_t counts[] = {10, 1000, 100000};
    static CUdeviceptr live[100000];
    CUcontext context;
    CUmodule module;
    CUfunction f;
    CUstream s;
    setenv("SIMGPU", "h200", 0);
    CHECK(cuInit(0));
    CHECK(cuCtxCreate_v2(&context, 0, 0));
    CHECK(cuModuleLoadData(&module, empty_kernel));
    CHECK(cuModuleGetFunction(&f, module, "empty"));
    CHECK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    printf("added time per launch, 8 pointer arguments, everything resident (medians of %d batches)\n", BATCHES);
    printf("%10s | %28s | %28s\n", "live", "null driver: native ours added", "simgpu: native ours added");
    size_t have = 0;
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        have = grow(live, have, counts[i]);
        CHECK(cuCtxSynchronize());
        launch_fn real = hr_drv.cuLaunchKernel;
        hr_drv.cuLaunchKernel = null_launch;
        struct launch_times null = compare_launches(null_launch, f, s, live, have, 2000);
        hr_drv.cuLaunchKernel = real;
        struct launch_times sim = compare_launches(real, f, s, live, have, 100);
        printf("%10zu | %6.0f %6.0f %6.0f ns       | %6.0f %6.0f %6.0f ns\n", have, null.native, null.ours,
               null.ours - null.native, sim.native, sim.ours, sim.ours - sim.native);
    }
    printf("\nallocation + free, untouched (medians); live = %zu\n%10s | %12s %12s\n", have, "bytes", "native", "ours");
    static const size_t sizes[] = {512, 65536, (size_t)4 << 20};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct launch_times pairs = compare_pairs(sizes[i]);
        printf("%10zu | %9.0f ns %9.0f ns   (%.2f M pairs/s)\n", sizes[i], pairs.native, pairs.ours, 1e3 / pairs.ours);
    }
    return 0;
}
