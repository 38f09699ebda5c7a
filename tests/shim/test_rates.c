/* What copies between two GPUs reach in virtual time, as a part of what the links between the two could carry. */
#include "gpus.h"

#include "fabric/machine.h"
#include "shim/shim.h"
#include "support/sanitizer.h"

static int count;
static struct hr_fabric *fabric;

static void start(const char *name, size_t bytes)
{
    char description[128];
    snprintf(description, sizeof description, "%s,vram=%zuM,host=4G", name, 2 * bytes / MIB + 1024);
    context[0] = machine(description, "");
    OK(cuDeviceGetCount(&count));
    CHECK(count <= MOST_GPUS);
    for (int g = 1; g < count; g++)
        OK(cuCtxCreate_v2(&context[g], 0, g));
    CHECK(hr_fabric_get(&fabric) == 0);
}

static double bound_gbps(int from, int to)
{
    const struct hr_fabric_view *view = hr_fabric_take(fabric);
    int64_t mbps =
        hr_route_bound_mbps(view->graph, (uint32_t)hr_fabric_gpu(fabric, from), (uint32_t)hr_fabric_gpu(fabric, to));
    hr_fabric_drop(fabric, view);
    CHECK(mbps > 0);
    return (double)mbps / 1000;
}

/* The second of two copies: the first one backs the memory and makes the streams. */
static double reached_gbps(int from, int to, CUdeviceptr source, CUdeviceptr target, size_t bytes, bool by_driver)
{
    CUstream s;
    uint64_t ns = 0;
    OK(cuCtxSetCurrent(context[from]));
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    for (int round = 0; round < 2; round++) {
        uint64_t start_ns = virtual_ns();
        hr_depth += by_driver; /* such calls pass */
        OK(cuMemcpyPeerAsync(target, context[to], source, context[from], bytes, s));
        hr_depth -= by_driver;
        OK(cuStreamSynchronize(s));
        ns = virtual_ns() - start_ns;
    }
    OK(cuStreamDestroy_v2(s));
    return (double)bytes / (double)ns;
}

struct pair {
    CUdeviceptr source, target;
};
static struct pair allocate(int from, int to, size_t bytes)
{
    struct pair p;
    OK(cuCtxSetCurrent(context[from]));
    OK(cuMemAlloc_v2(&p.source, bytes));
    OK(cuMemsetD8_v2(p.source, 1, bytes < CHUNK ? bytes : CHUNK));
    OK(cuCtxSetCurrent(context[to]));
    OK(cuMemAlloc_v2(&p.target, bytes));
    return p;
}
static void release(struct pair p)
{
    OK(cuMemFree_v2(p.source));
    OK(cuMemFree_v2(p.target));
    OK(cuCtxSynchronize());
}

static void check_pair(const char *name, int from, int to, size_t bytes, double least)
{
    struct pair p = allocate(from, to, bytes);
    double bound = bound_gbps(from, to), here = reached_gbps(from, to, p.source, p.target, bytes, false);
    CHECK(here >= least * bound, "%s, GPU %d to GPU %d, %zu MiB: %.1f of %.1f GB/s", name, from, to, bytes / MIB, here,
          bound);
    CHECK(here <= bound * 1.001, "%s, GPU %d to GPU %d: %.1f GB/s are more than %.1f", name, from, to, here, bound);
    release(p);
}

static void check_as_driver(const char *name, int from, int to, size_t bytes, double least)
{
    struct pair p = allocate(from, to, bytes);
    double here = reached_gbps(from, to, p.source, p.target, bytes, false),
           alone = reached_gbps(from, to, p.source, p.target, bytes, true);
    CHECK(here >= least * alone, "%s, GPU %d to GPU %d, %zu bytes: %.2f GB/s, the driver %.2f", name, from, to, bytes,
          here, alone);
    release(p);
}

static const char *machine_name;
static int some[4][2]; /* pairs; 0 to 0 ends them */
static void some_pairs(void)
{
    size_t bytes = 256 * MIB;
    start(machine_name, is_long() ? 1024 * MIB : bytes);
    for (int i = 0; i < 4 && some[i][0] + some[i][1] > 0; i++)
        check_pair(machine_name, some[i][0], some[i][1], bytes, 0.90);
    for (size_t small = 4096; small <= MIB; small *= 16)
        check_as_driver(machine_name, some[0][0], some[0][1], small, 0.98);
    check_as_driver(machine_name, some[0][0], some[0][1], MIB, 0.98);
    for (int a = 0; a < count && is_long(); a++) {
        for (int b = 0; b < count; b++) {
            if (a == b)
                continue;
            check_pair(machine_name, a, b, bytes, 0.90);
            check_pair(machine_name, a, b, 1024 * MIB, 0.95);
        }
    }
    CHECK(hr_lock_violations() == 0);
}

/* Those with the longest paths, and those with the most. */
static void on(const char *name, const int pairs[4][2])
{
    machine_name = name;
    memcpy(some, pairs, sizeof some);
    free(apart(some_pairs));
}

Test(rates, nine_tenths_of_what_the_links_carry, .timeout = 3600)
{
    on("square4", (const int[4][2]){{0, 1}, {0, 3}});
    if (SANITIZED && !is_long())
        return; /* virtual time is the same there, and the rest of it the same code */
    on("dgx1v", (const int[4][2]){{0, 4}, {0, 1}});
    on("mi250x", (const int[4][2]){{1, 3}, {0, 5}, {0, 2}});
    on("4xa100", (const int[4][2]){{0, 1}});
    on("mi300x", (const int[4][2]){{0, 1}});
}

static void over_switches(void)
{
    start("hgx-h100", 256 * MIB);
    check_as_driver("hgx-h100", 2, 3, MIB, 0.98);
    check_as_driver("hgx-h100", 7, 1, 4096, 0.98);
    /* Without peer access there is a step more, on the destination; hardware would take it through the host. */
    check_as_driver("hgx-h100", 0, 5, 256 * MIB, 0.97);
    OK(cuCtxSetCurrent(context[0]));
    OK(cuCtxEnablePeerAccess(context[5], 0));
    check_as_driver("hgx-h100", 0, 5, 256 * MIB, 0.98);
    check_as_driver("hgx-h100", 0, 5, 16 * MIB, 0.98);
}
Test(rates, nothing_is_lost_where_the_direct_path_is_all_there_is, .timeout = 120)
{
    free(apart(over_switches));
}

/* A link goes in the middle of a copy; what comes after is planned for the links that are left. */
static void after_a_failure(void)
{
    setenv("SIMGPU_LINK", "fail:0.1@1000000", 1);
    start("dgx1v", 256 * MIB);
    double before = bound_gbps(0, 5);
    struct pair p = allocate(0, 5, 16 * MIB);
    CUstream s;
    OK(cuCtxSetCurrent(context[0]));
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuMemcpyPeerAsync(p.target, context[5], p.source, context[0], 16 * MIB, s));
    OK(cuStreamSynchronize(s));
    release(p);
    CHECK(bound_gbps(0, 5) < before, "no link has failed");
    check_pair("dgx1v less a link", 0, 5, 256 * MIB, 0.90);
}
Test(rates, nine_tenths_of_what_is_left_after_a_failure, .timeout = 120)
{
    free(apart(after_a_failure));
}
