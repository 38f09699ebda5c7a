/*
 * Very many small launches from several threads over more streams than threads: all of them run, each once. (With
 * headroom in between: tests/shim.)
 */
#include "sim_test.h"

#define STREAMS 16
#define THREADS 4
#define LAUNCHES 100000
#define SYNC_EVERY 1000

static const char count_ptx[] = ".version 6.0\n.target sm_70\n.address_size 64\n"
                                ".visible .entry count(.param .u64 at)\n{\n.reg .b64 %rd<2>;\n"
                                "ld.param.u64 %rd0, [at]; red.global.add.u32 [%rd0], 1; ret;\n}\n";

static struct {
    CUcontext context;
    CUfunction count;
    CUstream stream[STREAMS];
    CUdeviceptr counters;
} job;

static void *launch_many(void *arg)
{
    intptr_t failed = cuCtxSetCurrent(job.context);
    for (unsigned i = 0; i < LAUNCHES / THREADS && !failed; i++) {
        unsigned stream = (i + (unsigned)(uintptr_t)arg) % STREAMS;
        CUdeviceptr at = job.counters + stream * sizeof(uint32_t);
        void *params[] = {&at};
        failed = cuLaunchKernel(job.count, 1, 1, 1, 1, 1, 1, 0, job.stream[stream], params, NULL);
        if (!failed && i % SYNC_EVERY == 0)
            failed = cuStreamSynchronize(job.stream[stream]);
    }
    return (void *)failed;
}

Test(launches, a_hundred_thousand_from_four_threads_over_sixteen_streams)
{
    CUmodule module;
    pthread_t threads[THREADS];
    uint32_t counts[STREAMS], sum = 0;
    job.context = machine_with_context("h200");
    OK(cuModuleLoadData(&module, count_ptx));
    OK(cuModuleGetFunction(&job.count, module, "count"));
    for (unsigned i = 0; i < STREAMS; i++)
        OK(cuStreamCreate(&job.stream[i], CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc_v2(&job.counters, sizeof counts));
    OK(cuMemsetD8_v2(job.counters, 0, sizeof counts));
    OK(cuCtxSynchronize());
    for (unsigned i = 0; i < THREADS; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, launch_many, (void *)(uintptr_t)(i * 5)), 0);
    for (unsigned i = 0; i < THREADS; i++) {
        void *failed;
        pthread_join(threads[i], &failed);
        cr_assert_null(failed, "thread %u: error %d", i, (int)(intptr_t)failed);
    }
    OK(cuCtxSynchronize());
    OK(cuMemcpyDtoH_v2(counts, job.counters, sizeof counts));
    for (unsigned i = 0; i < STREAMS; i++)
        sum += counts[i];
    cr_assert_eq(sum, LAUNCHES, "%u launches ran", sum);
    OK(cuCtxDestroy_v2(job.context));
}
