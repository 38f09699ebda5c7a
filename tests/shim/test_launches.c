/* Very many launches at once, of several threads, each on streams of its own; more memory than the card has. */
#include "core_test.h"

enum { THREADS = 4, STREAMS = 4, LAUNCHES_EACH = 100000 / THREADS, BUFFERS = 2, BYTES = 2 * MIB, N = 64 };

static CUcontext context;

struct lane {
    CUstream stream;
    CUdeviceptr buffer[BUFFERS];
    uint32_t sum[BUFFERS];
};

static void *launch_many(void *arg)
{
    uint64_t seed = (uint64_t)(uintptr_t)arg, stride = BYTES / 4 / N;
    struct lane lane[STREAMS];
    uint32_t n = N;
    OK(cuCtxSetCurrent(context));
    CUfunction f = kernel("stride_add");
    for (int s = 0; s < STREAMS; s++) {
        OK(cuStreamCreate(&lane[s].stream, CU_STREAM_NON_BLOCKING));
        for (int b = 0; b < BUFFERS; b++) {
            OK(cuMemAlloc_v2(&lane[s].buffer[b], BYTES));
            OK(cuMemsetD32Async(lane[s].buffer[b], 0, BYTES / 4, lane[s].stream));
            lane[s].sum[b] = 0;
        }
    }
    for (int i = 0; i < LAUNCHES_EACH; i++) {
        uint64_t random = pattern(seed, (uint64_t)i);
        struct lane *l = &lane[random % STREAMS];
        unsigned b = random / STREAMS % BUFFERS;
        uint32_t a = 1 + random % 5;
        OK(launch(f, 1, 64, l->stream, (void *[]){&l->buffer[b], &stride, &n, &a}));
        l->sum[b] += a;
        if (random % 256 == 0)
            OK(cuStreamSynchronize(l->stream));
    }
    for (int s = 0; s < STREAMS; s++) {
        OK(cuStreamSynchronize(lane[s].stream));
        for (int b = 0; b < BUFFERS; b++) {
            static _Thread_local uint32_t seen[BYTES / 4];
            OK(cuMemcpyDtoH_v2(seen, lane[s].buffer[b], BYTES));
            for (size_t i = 0; i < N; i++)
                CHECK(seen[i * stride] == lane[s].sum[b], "stream %d, buffer %d, word %zu: %u, not %u", s, b, i,
                      seen[i * stride], lane[s].sum[b]);
            OK(cuMemFree_v2(lane[s].buffer[b]));
        }
        OK(cuStreamDestroy_v2(lane[s].stream));
    }
    return NULL;
}

static void many_launches(void)
{
    pthread_t thread[THREADS];
    context = machine("h200,vram=48M,host=512M", "");
    kernel("stride_add");
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&thread[i], NULL, launch_many, (void *)(i + 1)) == 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
}

Test(launches, a_hundred_thousand_over_sixteen_streams_and_four_threads, .timeout = 2000)
{
    char *report = apart(many_launches);
    was_safe(report);
    free(report);
}

/* --- the other ways to launch ---------------------------------------------------------------------------------------- */

static void other_launches(void)
{
    CUdeviceptr p[4];
    uint64_t stride = BYTES / 4 / N;
    uint32_t n = N, a = 3, seen[BYTES / 4];
    context = machine("h200,vram=16M,host=512M", "");
    CUfunction f = kernel("stride_add"), of_library;
    CUlibrary library;
    CUkernel handle;
    OK(cuLibraryLoadData(&library, shim_ptx, NULL, NULL, 0, NULL, NULL, 0));
    OK(cuLibraryGetKernel(&handle, library, "stride_add"));
    OK(cuKernelGetFunction(&of_library, handle));
    for (int i = 0; i < 4; i++) {
        OK(cuMemAlloc_v2(&p[i], 2 * BYTES)); /* never touched but by the launches */
        void *params[] = {&p[i], &stride, &n, &a};
        CUlaunchConfig config = {
            .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 64, .blockDimY = 1, .blockDimZ = 1};
        OK(cuMemsetD32_v2(p[i], 0, BYTES / 4));
        OK(cuCtxSynchronize());
        hr_access_evict_range(hr_thread_self(), p[i], BYTES);
        switch (i) {
        case 0: OK(cuLaunchKernelEx(&config, f, params, NULL)); break;
        case 1: OK(cuLaunchCooperativeKernel(f, 1, 1, 1, 64, 1, 1, 0, NULL, params)); break;
        case 2: OK(launch((CUfunction)handle, 1, 64, NULL, params)); break; /* the driver takes one for the other */
        default: OK(launch(of_library, 1, 64, NULL, params)); break;
        }
        OK(cuCtxSynchronize());
        CHECK(atomic_load(&hr_space_chunk(p[i])->state) == HR_CHUNK_RESIDENT, "it was not brought in");
        CHECK(atomic_load(&hr_space_extent(p[i])->not_accessible) == 0, "part of it was not mapped");
        OK(cuMemcpyDtoH_v2(seen, p[i], BYTES));
        for (size_t k = 0; k < N; k++)
            CHECK(seen[k * stride] == a);
    }
    OK(cuLibraryUnload(library));
}

Test(launches, k5_extended_and_cooperative_launches_are_prepared_like_any, .timeout = 60)
{
    char *report = apart(other_launches);
    was_safe(report);
    free(report);
}

static CUresult launched_several(CUDA_LAUNCH_PARAMS *list, unsigned count, unsigned flags)
{
    (void)flags;
    for (unsigned i = 0; i < count;
         i++) { /* no simulated device does that: it has to be in place when the driver is asked */
        CUdeviceptr p = *(CUdeviceptr *)list[i].kernelParams[0];
        CHECK(atomic_load(&hr_space_chunk(p)->state) == HR_CHUNK_RESIDENT);
        CHECK(atomic_load(&hr_thread_self()->inflight) == 1);
    }
    return CUDA_SUCCESS;
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
Test(launches, older_ways_to_launch_are_prepared_like_any, .timeout = 60)
{
    CUdeviceptr p, q;
    uint64_t stride = 1;
    uint32_t words[64];
    machine("h200,vram=32M,host=256M", "");
    CUfunction f = kernel("stride_add");
    OK(cuMemAlloc_v2(&p, 4 * MIB));
    OK(cuMemAlloc_v2(&q, 4 * MIB));
    OK(cuMemsetD8_v2(p, 0, 4 * MIB));
    OK(cuMemsetD8_v2(q, 0, 4 * MIB));
    OK(cuFuncSetBlockShape(f, 64, 1, 1));
    OK(cuParamSetv(f, 0, &p, 8));
    OK(cuParamSetv(f, 8, &stride, 8));
    OK(cuParamSeti(f, 16, 64));
    OK(cuParamSeti(f, 20, 3));
    OK(cuParamSetSize(f, 24));
    for (int way = 0; way < 3; way++) {
        OK(cuCtxSynchronize());
        CHECK(hr_access_evict_range(hr_thread_self(), p, 4 * MIB) == 2);
        OK(way == 0 ? cuLaunch(f) : way == 1 ? cuLaunchGrid(f, 1, 1) : cuLaunchGridAsync(f, 1, 1, CU_STREAM_LEGACY));
        CHECK(atomic_load(&hr_space_chunk(p)->state) == HR_CHUNK_RESIDENT, "way %d", way);
    }
    OK(cuMemcpyDtoH_v2(words, p, sizeof words));
    CHECK(words[0] == 9 && words[63] == 9, "%u", words[0]);
    atomic_store(&hr_drv.cuLaunchCooperativeKernelMultiDevice, launched_several);
    uint32_t n = 64, a = 1;
    CUDA_LAUNCH_PARAMS list[2] = {
        {.function = f, .gridDimX = 1, .blockDimX = 64, .kernelParams = (void *[]){&p, &stride, &n, &a}},
        {.function = f, .gridDimX = 1, .blockDimX = 64, .kernelParams = (void *[]){&q, &stride, &n, &a}},
    };
    CHECK(hr_access_evict_range(hr_thread_self(), p, 4 * MIB) == 2);
    CHECK(hr_access_evict_range(hr_thread_self(), q, 4 * MIB) == 2);
    OK(cuLaunchCooperativeKernelMultiDevice(list, 2, 0));
    CHECK(atomic_load(&hr_thread_self()->inflight) == 0);
}
#pragma GCC diagnostic pop
