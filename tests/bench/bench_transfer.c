/*
 * How near copies between two GPUs come to what the links between them could carry, in simgpu's virtual time: a table of every pair of a machine.
 * "bound" is the maximum flow over the links; "alone" what one direct copy of the driver's reaches, or one through the host.
 *
 * HEADROOM_DRIVER=build/simgpu/libcuda.so.1 build/tests/bench/bench_transfer MACHINE [MiB]
 */
#include "fabric/machine.h"
#include "residency/transfer.h"
#include "shim/shim.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#define CHECK(call)                                                                                                    \
    do {                                                                                                               \
        CUresult got_ = (call);                                                                                        \
        if (got_ != CUDA_SUCCESS) {                                                                                    \
            fprintf(stderr, "bench_transfer: %s: error %d\n", #call, (int)got_);                                       \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

#define MOST 16
static CUcontext context[MOST];
static CUdeviceptr memory[MOST];
static uint64_t (*now_ns)(void);

static double gbps(int from, int to, size_t bytes, bool by_driver)
{
    CUstream s;
    CHECK(cuCtxSetCurrent(context[from]));
    CHECK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    uint64_t ns = 0;
    for (int round = 0; round < 2; round++) { /* the first makes streams and relays */
        uint64_t start_ns = now_ns();
        hr_depth += by_driver; /* such calls pass */
        CHECK(cuMemcpyPeerAsync(memory[to], context[to], memory[from], context[from], bytes, s));
        hr_depth -= by_driver;
        CHECK(cuStreamSynchronize(s));
        ns = now_ns() - start_ns;
    }
    CHECK(cuStreamDestroy_v2(s));
    return (double)bytes / (double)ns;
}

int main(int argc, char **argv)
{
    size_t bytes = (argc > 2 ? strtoull(argv[2], NULL, 10) : 256) << 20;
    int count = 0;
    char machine[256];
    struct hr_fabric *fabric;
    if (argc < 2) {
        fprintf(stderr, "usage: bench_transfer MACHINE [MiB]\n");
        return 2;
    }
    snprintf(machine, sizeof machine, "%s,vram=%zuM,host=4G", argv[1], (bytes >> 20) * 2 + 512);
    setenv("SIMGPU", machine, 1);
    setenv("HEADROOM_STATS", "off", 0);
    CHECK(cuInit(0));
    CHECK(cuDeviceGetCount(&count));
    for (int g = 0; g < count && g < MOST; g++) {
        CHECK(cuCtxCreate_v2(&context[g], 0, g));
        CHECK(cuMemAlloc_v2(&memory[g], bytes));
        CHECK(cuMemsetD8_v2(memory[g], (unsigned char)g, bytes));
        CHECK(cuCtxSynchronize());
    }
    void *handle = dlopen(hr_driver_path(), RTLD_LAZY | RTLD_NOLOAD);
    *(void **)&now_ns = handle ? dlsym(handle, "sg_virtual_now_ns") : NULL;
    if (!now_ns || hr_fabric_get(&fabric) != 0) {
        fprintf(stderr, "bench_transfer: needs simgpu and a machine with links\n");
        return 1;
    }
    const struct hr_fabric_view *view = hr_fabric_take(fabric);
    double worst = 2, sum = 0;
    int pairs = 0;
    printf("| %s, %zu MiB | bound GB/s | alone GB/s | here GB/s | part of the bound |\n|---|---|---|---|---|\n",
           argv[1], bytes >> 20);
    for (int a = 0; a < count; a++) {
        for (int b = 0; b < count; b++) {
            if (a == b)
                continue;
            double bound = (double)hr_route_bound_mbps(view->graph, (uint32_t)hr_fabric_gpu(fabric, a),
                                                       (uint32_t)hr_fabric_gpu(fabric, b)) /
                           1000;
            double alone = gbps(a, b, bytes, true), here = gbps(a, b, bytes, false), part = here / bound;
            printf("| %d to %d | %.1f | %.1f | %.1f | %.3f |\n", a, b, bound, alone, here, part);
            worst = part < worst ? part : worst;
            sum += part;
            pairs++;
        }
    }
    printf("| worst, mean | | | | %.3f, %.3f |\n", worst, sum / pairs);
    hr_fabric_drop(fabric, view);
    return 0;
}
