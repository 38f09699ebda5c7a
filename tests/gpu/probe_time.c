#include "probe.h"

#include <stdlib.h>

#define SAMPLES 32 /* of each call */
#define ROUNDS 5   /* of each rate */

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

/* In `us[i]` what the call took; the item is over if it failed. */
#define TIMED(us, i, call)                                                                                             \
    do {                                                                                                               \
        uint64_t timed_ = gpu_clock_ns();                                                                              \
        MUST(call);                                                                                                    \
        (us)[i] = (double)(gpu_clock_ns() - timed_) / 1e3;                                                             \
    } while (0)

static void chunk_costs(enum vm_where where, const char *const names[5])
{
    struct vm vm;
    double us[5][SAMPLES];
    CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = here.device};
    if (where == VM_HOST)
        MUST(vm_host_location(&location));
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = location};
    MUST(vm_reserve(&vm, SAMPLES));
    for (size_t i = 0; i < SAMPLES; i++)
        TIMED(us[0], i, drv.cuMemCreate(&vm.handle[i], here.chunk_bytes, &prop, 0));
    for (size_t i = 0; i < SAMPLES; i++)
        TIMED(us[1], i, drv.cuMemMap(vm_at(&vm, i), here.chunk_bytes, 0, vm.handle[i], 0));
    for (size_t i = 0; i < SAMPLES; i++)
        TIMED(us[2], i, vm_access(&vm, i, 1));
    for (size_t i = 0; i < SAMPLES; i++)
        TIMED(us[3], i, drv.cuMemUnmap(vm_at(&vm, i), here.chunk_bytes));
    for (size_t i = 0; i < SAMPLES; i++)
        TIMED(us[4], i, drv.cuMemRelease(vm.handle[i]));
    MUST(drv.cuMemAddressFree(vm.base, SAMPLES * here.chunk_bytes));
    for (int k = 0; k < 5; k++)
        gpu_number(names[k], median(us[k], SAMPLES), "us");
}

void probe_chunk_costs(void)
{
    static const char *const device[] = {"create", "map", "set-access", "unmap", "release"};
    static const char *const host[] = {"host-create", "host-map", "host-set-access", "host-unmap", "host-release"};
    CUmemLocation location;
    chunk_costs(VM_DEVICE, device);
    if (vm_host_location(&location) == CUDA_SUCCESS)
        chunk_costs(VM_HOST, host);
}

/* 16 chunks change places with 16 others; their handles are made before. */
static void swap_costs(enum vm_where second, const char *const names[4])
{
    enum { RUN = 16 };
    struct vm vm;
    CUmemGenericAllocationHandle handle[2][RUN];
    double us[4][ROUNDS];
    MUST(vm_reserve(&vm, RUN));
    for (size_t i = 0; i < 2 * RUN; i++)
        MUST(vm_create(i < RUN ? VM_DEVICE : second, &handle[i / RUN][i % RUN]));
    for (size_t i = 0; i < RUN; i++)
        MUST(vm_map(&vm, i, handle[0][i]));
    MUST(vm_access(&vm, 0, RUN));
    for (size_t round = 0; round < ROUNDS; round++) {
        uint64_t start = gpu_clock_ns();
        TIMED(us[0], round, vm_unmap(&vm, 0, RUN));
        uint64_t map = gpu_clock_ns();
        for (size_t i = 0; i < RUN; i++)
            MUST(vm_map(&vm, i, handle[(round + 1) % 2][i]));
        us[1][round] = (double)(gpu_clock_ns() - map) / 1e3;
        TIMED(us[2], round, vm_access(&vm, 0, RUN));
        us[3][round] = (double)(gpu_clock_ns() - start) / 1e3;
    }
    MUST(vm_finish(&vm));
    for (int k = 0; k < 4; k++)
        gpu_number(names[k], median(us[k], ROUNDS), "us");
}

void probe_swap_costs(void)
{
    static const char *const device[] = {"unmap", "map", "set-access", "whole"};
    static const char *const host[] = {"host-unmap", "host-map", "host-set-access", "host-whole"};
    CUmemLocation location;
    swap_costs(VM_DEVICE, device);
    if (vm_host_location(&location) == CUDA_SUCCESS)
        swap_costs(VM_HOST, host);
}

void probe_pinned_cost(void)
{
    double us[2][8];
    void *host[8];
    for (size_t i = 0; i < 8; i++)
        TIMED(us[0], i, drv.cuMemHostAlloc(&host[i], here.chunk_bytes, CU_MEMHOSTALLOC_PORTABLE));
    for (size_t i = 0; i < 8; i++)
        TIMED(us[1], i, drv.cuMemFreeHost(host[i]));
    gpu_number("allocate", median(us[0], 8), "us");
    gpu_number("free", median(us[1], 8), "us");
}

/* ---- rates, by the device's own clock ---- */

struct timer {
    CUstream stream;
    CUevent begin, end;
};

static CUresult timer_init(struct timer *t)
{
    TRY(drv.cuStreamCreate(&t->stream, CU_STREAM_NON_BLOCKING));
    TRY(drv.cuEventCreate(&t->begin, CU_EVENT_DEFAULT));
    return drv.cuEventCreate(&t->end, CU_EVENT_DEFAULT);
}
static CUresult timer_finish(struct timer *t)
{
    TRY(drv.cuEventDestroy_v2(t->begin));
    TRY(drv.cuEventDestroy_v2(t->end));
    return drv.cuStreamDestroy_v2(t->stream);
}
static CUresult timer_ms(struct timer *t, double *ms_out)
{
    float ms = 0;
    TRY(drv.cuEventRecord(t->end, t->stream));
    TRY(drv.cuEventSynchronize(t->end));
    TRY(drv.cuEventElapsedTime(&ms, t->begin, t->end));
    *ms_out = ms;
    return CUDA_SUCCESS;
}

/* What is timed: `bytes` from one place to the other, by a copy or by a kernel. */
struct flow {
    CUdeviceptr to, from;
    void *host;
    size_t bytes;
};

static CUresult flow_in(const struct flow *f, CUstream s)
{
    return drv.cuMemcpyHtoDAsync_v2(f->to, f->host, f->bytes, s);
}
static CUresult flow_out(const struct flow *f, CUstream s)
{
    return drv.cuMemcpyDtoHAsync_v2(f->host, f->from, f->bytes, s);
}
static CUresult flow_within(const struct flow *f, CUstream s)
{
    return drv.cuMemcpyDtoDAsync_v2(f->to, f->from, f->bytes, s);
}
static CUresult flow_read(const struct flow *f, CUstream s)
{
    uint32_t n = (uint32_t)(f->bytes / 4);
    CUdeviceptr from = f->from, to = f->to;
    void *params[] = {&from, &n, &to};
    return drv.cuLaunchKernel(gpu_kernel("read_all"), 1024, 1, 1, 256, 1, 1, 0, s, params, NULL);
}
static CUresult flow_write(const struct flow *f, CUstream s)
{
    uint32_t n = (uint32_t)(f->bytes / 4), first = 1;
    CUdeviceptr to = f->to;
    void *params[] = {&to, &first, &n};
    return drv.cuLaunchKernel(gpu_kernel("fill"), 1024, 1, 1, 256, 1, 1, 0, s, params, NULL);
}

static CUresult rate(const char *name, CUresult (*flow)(const struct flow *, CUstream), const struct flow *f)
{
    struct timer t;
    double gbps[ROUNDS];
    TRY(timer_init(&t));
    TRY(flow(f, t.stream)); /* once beforehand */
    for (int i = 0; i < ROUNDS; i++) {
        double ms;
        TRY(drv.cuEventRecord(t.begin, t.stream));
        TRY(flow(f, t.stream));
        TRY(timer_ms(&t, &ms));
        gbps[i] = ms > 0 ? (double)f->bytes / (ms * 1e6) : 0;
    }
    gpu_number(name, median(gbps, ROUNDS), "GB/s");
    return timer_finish(&t);
}

/* Both directions at once; the rate of each, by the longer of the two. */
static CUresult both_ways(const struct flow *in, const struct flow *out)
{
    struct timer a, b;
    double ms[2];
    TRY(timer_init(&a));
    TRY(timer_init(&b));
    TRY(drv.cuEventRecord(a.begin, a.stream));
    TRY(drv.cuEventRecord(b.begin, b.stream));
    for (int i = 0; i < ROUNDS; i++) {
        TRY(flow_in(in, a.stream));
        TRY(flow_out(out, b.stream));
    }
    TRY(timer_ms(&a, &ms[0]));
    TRY(timer_ms(&b, &ms[1]));
    double longer = ms[0] > ms[1] ? ms[0] : ms[1];
    gpu_number("both-ways-each", longer > 0 ? (double)in->bytes * ROUNDS / (longer * 1e6) : 0, "GB/s");
    TRY(timer_finish(&a));
    return timer_finish(&b);
}

/* `large` bytes of chunks side by side, at most VM_MOST of them. */
static CUresult large_of(struct vm *vm, enum vm_where where, size_t *bytes_out)
{
    size_t chunks = here.large_bytes / here.chunk_bytes;
    chunks = chunks > VM_MOST ? VM_MOST : chunks;
    TRY(vm_reserve(vm, chunks));
    *bytes_out = chunks * here.chunk_bytes;
    return vm_back(vm, 0, chunks, where);
}

void probe_copy_rates(void)
{
    struct flow in = {0}, out = {0}, chunk_in = {0}, chunk_out = {0};
    struct vm device, host;
    CUmemLocation location;
    in.bytes = out.bytes = here.large_bytes;
    MUST(drv.cuMemAlloc_v2(&in.to, in.bytes));
    MUST(drv.cuMemAlloc_v2(&out.from, out.bytes));
    MUST(drv.cuMemHostAlloc(&in.host, in.bytes, CU_MEMHOSTALLOC_PORTABLE));
    MUST(drv.cuMemHostAlloc(&out.host, out.bytes, CU_MEMHOSTALLOC_PORTABLE));
    MUST(rate("to-device", flow_in, &in));
    MUST(rate("to-host", flow_out, &out));
    MUST(both_ways(&in, &out));
    struct flow within = {.to = in.to, .from = out.from, .bytes = in.bytes};
    MUST(rate("within", flow_within, &within));
    MUST(drv.cuMemFreeHost(in.host));
    MUST(drv.cuMemFreeHost(out.host));
    MUST(drv.cuMemFree_v2(in.to));
    MUST(drv.cuMemFree_v2(out.from));
    if (vm_host_location(&location) != CUDA_SUCCESS)
        return;
    MUST(large_of(&device, VM_DEVICE, &chunk_in.bytes)); /* the way in which headroom moves */
    MUST(large_of(&host, VM_HOST, &chunk_out.bytes));
    chunk_in.to = chunk_out.from = device.base;
    chunk_in.from = chunk_out.to = host.base;
    MUST(rate("chunks-to-device", flow_within, &chunk_in));
    MUST(rate("chunks-to-host", flow_within, &chunk_out));
    MUST(vm_finish(&device));
    MUST(vm_finish(&host));
}

void probe_kernel_rates(void)
{
    struct vm vm;
    struct flow f = {0};
    CUmemLocation location;
    CUdeviceptr out;
    int kinds = vm_host_location(&location) == CUDA_SUCCESS ? 2 : 1;
    MUST(drv.cuMemAlloc_v2(&out, 4096));
    for (int k = 0; k < kinds; k++) {
        MUST(large_of(&vm, k ? VM_HOST : VM_DEVICE, &f.bytes));
        f.to = vm.base;
        MUST(rate(k ? "write-host" : "write-device", flow_write, &f));
        f.from = vm.base;
        f.to = out;
        MUST(rate(k ? "read-host" : "read-device", flow_read, &f));
        MUST(vm_finish(&vm));
    }
    MUST(drv.cuMemFree_v2(out));
}

void probe_atomics(void)
{
    enum { BLOCKS = 16, THREADS = 32, TIMES = 8 };
    struct vm vm;
    struct timer t;
    double ms;
    uint32_t word = 0, rounds = TIMES;
    NEED_HOST();
    MUST(vm_reserve(&vm, 1));
    MUST(vm_back(&vm, 0, 1, VM_HOST));
    MUST(drv.cuMemsetD32_v2(vm.base, 0, 1));
    void *params[] = {&vm.base, &rounds};
    MUST(timer_init(&t));
    MUST(drv.cuCtxSynchronize());
    MUST(drv.cuEventRecord(t.begin, t.stream));
    MUST(drv.cuLaunchKernel(gpu_kernel("count"), BLOCKS, 1, 1, THREADS, 1, 1, 0, t.stream, params, NULL));
    MUST(timer_ms(&t, &ms));
    MUST(drv.cuMemcpyDtoH_v2(&word, vm.base, 4));
    ASSUMED(word == BLOCKS * THREADS * TIMES, NULL, "%u of %d", word, BLOCKS * THREADS * TIMES);
    gpu_number("each", ms * 1e6 / (BLOCKS * THREADS * TIMES), "ns");
    MUST(timer_finish(&t));
    MUST(vm_finish(&vm));
}

void probe_launch_cost(void)
{
    double us[SAMPLES];
    CUdeviceptr p;
    uint32_t first = 0, n = 0;
    MUST(drv.cuMemAlloc_v2(&p, 4096));
    void *params[] = {&p, &first, &n};
    CUfunction f = gpu_kernel("fill");
    for (size_t i = 0; i < SAMPLES; i++)
        TIMED(us, i, drv.cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
    MUST(drv.cuCtxSynchronize());
    MUST(drv.cuMemFree_v2(p));
    gpu_number(NULL, median(us, SAMPLES), "us");
}
