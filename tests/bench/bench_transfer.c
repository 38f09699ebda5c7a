/*
 * How near copies between two GPUs come to what the links between them could carry, in simgpu's virtual time: a table of every pair of a machine,
 * and what all pairs at once reach. "bound" is the maximum flow over the links. "alone" is the driver's own copy: over the direct links; where
 * there are none, simgpu's routers forward it over the shortest ways by the tables that they were given, which no card that is sold can do (there
 * it goes through the host at the speed of PCIe).
 *
 * HEADROOM_DRIVER=build/simgpu/libcuda.so.1 build/tests/bench/bench_transfer MACHINE [MiB [MiB of all at once]]
 */
#include "fabric/machine.h"
#include "residency/transfer.h"
#include "shim/shim.h"

#include <dlfcn.h>
#include <pthread.h>
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

/*
 * One thread a GPU, as jobs of several GPUs have: it sends to all others in turn, PASSES times, and waits for all of that. Between two turns the
 * threads meet, without waiting for a copy: threads that share fewer processors than there are GPUs would issue all theirs one after another,
 * which those of a node with that many GPUs do not.
 */
#define PASSES 4
static struct {
    pthread_barrier_t start;
    CUevent ready[MOST];
    int count;
    size_t bytes;
    uint64_t begin_ns[MOST], end_ns[MOST];
} crowd;

/* All threads go on at the same virtual time: each waits for what the others were given last. */
static void meet(int from, CUstream idle)
{
    CHECK(cuEventRecord(crowd.ready[from], idle));
    pthread_barrier_wait(&crowd.start);
    for (int g = 0; g < crowd.count; g++)
        CHECK(cuEventSynchronize(crowd.ready[g]));
    pthread_barrier_wait(&crowd.start);
}

static void *send_to_all(void *arg)
{
    int from = (int)(intptr_t)arg;
    CUstream stream[MOST] = {0};
    CHECK(cuCtxSetCurrent(context[from]));
    CHECK(cuEventCreate(&crowd.ready[from], CU_EVENT_DISABLE_TIMING));
    for (int turn = 1; turn < crowd.count; turn++)
        CHECK(cuStreamCreate(&stream[turn], CU_STREAM_NON_BLOCKING));
    /* The first rounds make streams and relays, and tell that there is a crowd. */
    for (int round = 0; round < 3; round++) {
        meet(from, stream[1]);
        crowd.begin_ns[from] = now_ns();
        for (int i = 0; i < PASSES * (crowd.count - 1); i++) {
            int turn = 1 + i % (crowd.count - 1), to = (from + turn) % crowd.count;
            CHECK(cuMemcpyPeerAsync(memory[to] + (size_t)turn * crowd.bytes, context[to], memory[from], context[from],
                                    crowd.bytes, stream[turn]));
            pthread_barrier_wait(&crowd.start);
        }
        for (int turn = 1; turn < crowd.count; turn++)
            CHECK(cuStreamSynchronize(stream[turn]));
        crowd.end_ns[from] = now_ns();
    }
    for (int turn = 1; turn < crowd.count; turn++)
        CHECK(cuStreamDestroy_v2(stream[turn]));
    return NULL;
}

/* Every GPU sends to every other one at once; GB/s that each pair gets. */
static double all_gbps(int count, size_t bytes)
{
    pthread_t thread[MOST];
    uint64_t begin_ns = UINT64_MAX, end_ns = 0;
    crowd.count = count;
    crowd.bytes = bytes;
    pthread_barrier_init(&crowd.start, NULL, (unsigned)count);
    for (int g = 0; g < count; g++)
        if (pthread_create(&thread[g], NULL, send_to_all, (void *)(intptr_t)g) != 0)
            exit(1);
    for (int g = 0; g < count; g++)
        pthread_join(thread[g], NULL);
    pthread_barrier_destroy(&crowd.start);
    for (int g = 0; g < count; g++) {
        begin_ns = crowd.begin_ns[g] < begin_ns ? crowd.begin_ns[g] : begin_ns;
        end_ns = crowd.end_ns[g] > end_ns ? crowd.end_ns[g] : end_ns;
    }
    return PASSES * (double)bytes / (double)(end_ns - begin_ns);
}

static void print_all(const struct hr_fabric_view *view, int count, size_t bytes)
{
    struct hr_all_to_all all = {0};
    if (hr_route_all_to_all(view->graph, 0.02, &all) != 0)
        return;
    double bound = all.bound_mbps / 1000, here = all_gbps(count, bytes);
    printf("| all pairs at once, %d times %zu MiB each | %.2f | | %.2f | %.3f |\n", PASSES, bytes >> 20, bound, here,
           here / bound);
    hr_all_to_all_finish(&all);
}

int main(int argc, char **argv)
{
    size_t bytes = (argc > 2 ? strtoull(argv[2], NULL, 10) : 256) << 20;
    size_t each = argc > 3 ? strtoull(argv[3], NULL, 10) << 20 : bytes / MOST;
    int count = 0;
    char machine[256];
    struct hr_fabric *fabric;
    if (argc < 2) {
        fprintf(stderr, "usage: bench_transfer MACHINE [MiB [MiB of all at once]]\n");
        return 2;
    }
    snprintf(machine, sizeof machine, "%s,vram=%zuM,host=4G", argv[1],
             (bytes > each * MOST ? bytes : each * MOST) * 2 / (1 << 20) + 512);
    setenv("SIMGPU", machine, 1);
    setenv("HEADROOM_STATS", "off", 0);
    CHECK(cuInit(0));
    CHECK(cuDeviceGetCount(&count));
    count = count < MOST ? count : MOST;
    size_t room = bytes > each * (size_t)count ? bytes : each * (size_t)count;
    for (int g = 0; g < count; g++) {
        CHECK(cuCtxCreate_v2(&context[g], 0, g));
        CHECK(cuMemAlloc_v2(&memory[g], room));
        CHECK(cuMemsetD8_v2(memory[g], (unsigned char)g, room));
        CHECK(cuCtxSynchronize());
    }
    for (int g = 0; g < count; g++)
        for (int to = 0; to < count; to++) {
            int can = 0;
            CHECK(cuCtxSetCurrent(context[g]));
            CHECK(cuDeviceCanAccessPeer(&can, g, to));
            if (g != to && can)
                CHECK(cuCtxEnablePeerAccess(context[to], 0));
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
    print_all(view, count, each);
    hr_fabric_drop(fabric, view);
    return 0;
}
