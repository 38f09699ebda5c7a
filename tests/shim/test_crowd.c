/* Every GPU sends to every other one at once: what all together reach in virtual time, as a part of what no routing can exceed. */
#include "gpus.h"

#include <pthread.h>

#include "fabric/machine.h"
#include "support/sanitizer.h"

enum { GPUS = 8, PASSES = 4 };

static size_t bytes; /* of a copy */
static CUdeviceptr memory[GPUS];
static CUevent ready[GPUS];
static uint64_t begin_ns[GPUS], end_ns[GPUS];
static pthread_barrier_t all;

/* All threads go on at the same virtual time: each waits for what the others were given last. */
static void meet(int from, CUstream idle)
{
    OK(cuEventRecord(ready[from], idle));
    pthread_barrier_wait(&all);
    for (int g = 0; g < GPUS; g++)
        OK(cuEventSynchronize(ready[g]));
    pthread_barrier_wait(&all);
}

static CUdeviceptr place(int to, int from)
{
    return memory[to] + (size_t)((from - to + GPUS) % GPUS) * bytes;
}

/* Between two turns the threads meet without waiting for copies, since they share fewer processors than a node with eight GPUs has. */
static void *send_to_all(void *arg)
{
    int from = (int)(intptr_t)arg;
    CUstream stream[GPUS] = {0};
    OK(cuCtxSetCurrent(context[from]));
    OK(cuEventCreate(&ready[from], CU_EVENT_DISABLE_TIMING));
    for (int turn = 1; turn < GPUS; turn++)
        OK(cuStreamCreate(&stream[turn], CU_STREAM_NON_BLOCKING));
    for (int round = 0; round < 3; round++) { /* the first ones make streams and relays */
        meet(from, stream[1]);
        begin_ns[from] = virtual_ns();
        for (int i = 0; i < PASSES * (GPUS - 1); i++) {
            int turn = 1 + i % (GPUS - 1), to = (from + turn) % GPUS;
            OK(cuMemcpyPeerAsync(place(to, from), context[to], memory[from], context[from],
                                 round < 2 ? bytes / 4 : bytes, stream[turn]));
            pthread_barrier_wait(&all);
        }
        for (int turn = 1; turn < GPUS; turn++)
            OK(cuStreamSynchronize(stream[turn]));
        end_ns[from] = virtual_ns();
    }
    for (int turn = 1; turn < GPUS; turn++)
        OK(cuStreamDestroy_v2(stream[turn]));
    return NULL;
}

static void has_arrived(int to, int from)
{
    static uint8_t got[64 * MIB];
    OK(cuCtxSetCurrent(context[to]));
    OK(cuMemcpyDtoH_v2(got, place(to, from), bytes));
    for (size_t i = 0; i < bytes; i += 256)
        CHECK(got[i] == from + 1, "GPU %d has %d from GPU %d", to, got[i], from);
}

static double bound_gbps(void)
{
    struct hr_fabric *fabric;
    struct hr_all_to_all plan = {0};
    CHECK(hr_fabric_get(&fabric) == 0);
    const struct hr_fabric_view *view = hr_fabric_take(fabric);
    CHECK(hr_route_all_to_all(view->graph, 0.02, &plan) == 0);
    double gbps = plan.bound_mbps / 1000;
    hr_all_to_all_finish(&plan);
    hr_fabric_drop(fabric, view);
    return gbps;
}

static void on_dgx1v(void)
{
    pthread_t thread[GPUS];
    uint64_t first_ns = UINT64_MAX, last_ns = 0;
    bytes = (SANITIZED ? 8 : 64) * MIB;
    context[0] = machine("dgx1v,vram=2560M,host=4G", "");
    for (int g = 0; g < GPUS; g++) {
        if (g > 0)
            OK(cuCtxCreate_v2(&context[g], 0, g));
        OK(cuCtxSetCurrent(context[g]));
        OK(cuMemAlloc_v2(&memory[g], GPUS * bytes));
        OK(cuMemsetD8_v2(memory[g], (unsigned char)(g + 1), GPUS * bytes)); /* and backs it all */
        OK(cuCtxSynchronize());
    }
    enable_all_peers(GPUS);
    pthread_barrier_init(&all, NULL, GPUS);
    for (int g = 0; g < GPUS; g++)
        CHECK(pthread_create(&thread[g], NULL, send_to_all, (void *)(intptr_t)g) == 0);
    for (int g = 0; g < GPUS; g++)
        pthread_join(thread[g], NULL);
    for (int g = 0; g < GPUS; g++) {
        first_ns = begin_ns[g] < first_ns ? begin_ns[g] : first_ns;
        last_ns = end_ns[g] > last_ns ? end_ns[g] : last_ns;
        for (int from = 0; from < GPUS; from++)
            if (from != g)
                has_arrived(g, from);
    }
    double here = PASSES * (double)bytes / (double)(last_ns - first_ns), bound = bound_gbps();
    CHECK(SANITIZED || here >= 0.90 * bound, "%.2f of %.2f GB/s a pair", here, bound);
    CHECK(here <= bound * 1.001, "%.2f GB/s a pair are more than %.2f", here, bound);
    CHECK(hr_lock_violations() == 0);
}

/* The issue order of a loaded machine makes no difference: see the turns. With a sanitizer, smaller copies, of which starting takes a part. */
Test(crowd, nine_tenths_of_what_the_links_carry, .timeout = 300)
{
    char *report = apart(on_dgx1v);
    was_safe(report);
    free(report);
}
