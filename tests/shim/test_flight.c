/* Work in flight: nothing is taken away under it, and nothing waits for it without end. */
#include "core_test.h"

#include "residency/context.h"
#include "residency/quarantine.h"

/* Buffers that together exceed VRAM, kernels of many lengths on several streams, and a mover that never stops. */
static _Atomic(bool) stop;
static CUdeviceptr buffer[12];
static CUcontext context;

static void *move_all(void *moved)
{
    struct hr_thread *t = hr_thread_self();
    OK(cuCtxSetCurrent(context));
    for (unsigned i = 0; !atomic_load(&stop); i++) {
        size_t *sum = moved;
        *sum += hr_access_evict_range(t, buffer[i % 12], 4 * MIB);
        *sum += hr_access_restore_range(t, buffer[(i * 7 + 3) % 12], 4 * MIB);
    }
    return NULL;
}

static void kernels_while_memory_moves(void)
{
    enum { WORDS = 1024, ROUNDS = 120 };
    context = machine("h200,vram=32M,host=512M", "");
    CUstream s[3];
    pthread_t mover;
    size_t moved = 0;
    kernel("slow_affine");
    for (int i = 0; i < 3; i++)
        OK(cuStreamCreate(&s[i], CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 12; i++) {
        OK(cuMemAlloc_v2(&buffer[i], 4 * MIB));
        OK(cuMemsetD32_v2(buffer[i], (unsigned)i, MIB));
    }
    OK(cuCtxSynchronize()); /* the other streams do not wait for the legacy one */
    pthread_create(&mover, NULL, move_all, &moved);
    uint32_t expected[12];
    for (uint32_t i = 0; i < 12; i++)
        expected[i] = i;
    for (int round = 0; round < ROUNDS; round++) {
        int i = round * 5 % 12; /* always on the same stream, so that nothing needs ordering */
        uint32_t rounds = 1 + (uint32_t)(round % 7) * 20;
        OK(slow_affine(buffer[i], 3, 1, WORDS, rounds, s[i % 3]));
        for (uint32_t r = 0; r < rounds; r++)
            expected[i] = expected[i] * 3 + 1;
        if (round % 10 == 9)
            OK(cuCtxSynchronize());
    }
    OK(cuCtxSynchronize());
    atomic_store(&stop, true);
    pthread_join(mover, NULL);
    CHECK(moved > 20, "%zu chunks moved", moved);
    for (uint32_t i = 0; i < 12; i++) {
        uint32_t seen[WORDS];
        OK(cuMemcpyDtoH_v2(seen, buffer[i], sizeof seen));
        for (int k = 0; k < WORDS; k++)
            CHECK(seen[k] == expected[i], "word %d of buffer %u", k, i);
    }
}

/* Shown failing with -Dmutant=skip-fence. */
Test(flight, K39_nothing_is_unmapped_under_a_running_kernel, .timeout = 120)
{
    char *report = apart(kernels_while_memory_moves);
    was_safe(report);
    cr_assert_gt(figure(report, "\"unmaps"), 0);
    free(report);
}

/* A kernel still writes to what was freed; the next allocation of that size is filled at once, on another stream. */
static void free_under_a_kernel(void)
{
    machine("h200,vram=64M,host=512M", "");
    CUstream busy, other;
    kernel("slow_affine");
    OK(cuStreamCreate(&busy, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    uint32_t *seen = malloc(6 * MIB);
    for (int round = 0; round < 20; round++) {
        size_t bytes = round % 2 ? 6 * MIB : 4096;
        CUdeviceptr old, fresh;
        OK(cuMemAlloc_v2(&old, bytes));
        OK(slow_affine(old, 3, 1, 1024, 400, busy));
        OK(cuMemFree_v2(old));
        OK(cuMemAlloc_v2(&fresh, bytes));
        OK(cuMemsetD32Async(fresh, 0xabcd, bytes / 4, other));
        OK(cuStreamSynchronize(other));
        OK(cuStreamSynchronize(busy));
        OK(cuMemcpyDtoH_v2(seen, fresh, bytes));
        for (size_t i = 0; i < bytes / 4; i++)
            CHECK(seen[i] == 0xabcd, "round %d, word %zu", round, i);
        OK(cuMemFree_v2(fresh));
    }
    free(seen);
}

/* Shown failing by releasing at the free what should wait in quarantine. */
Test(flight, freed_memory_is_not_reused_while_a_kernel_writes_to_it, .timeout = 120)
{
    char *report = apart(free_under_a_kernel);
    was_safe(report);
    free(report);
}

/* --- per-thread default streams ------------------------------------------------------------------------------------- */

static unsigned fences, late_fences;
static CUresult (*real_record)(CUevent event, CUstream stream);
static CUresult record_fence(CUevent event, CUstream stream)
{
    fences++;
    late_fences += !atomic_load(&hr_thread_self()->inflight);
    return real_record(event, stream);
}

/* Between the end of a submission and its fence a mover would take a busy device for one at rest. */
static void fenced_within(const char *what, CUresult r)
{
    OK(r);
    CHECK(fences > 0, "%s was not fenced", what);
    CHECK(late_fences == 0, "%s was fenced after its submission", what);
    fences = 0;
}

/* Shown failing with the fence recorded behind the submission, where the fuzzer had lost what a kernel wrote. */
Test(flight, work_of_a_per_thread_default_stream_is_fenced_within_its_submission, .timeout = 120)
{
    machine("h200,vram=64M,host=512M", "");
    CUdeviceptr p, q;
    static uint32_t words[4096];
    CUstream own = CU_STREAM_PER_THREAD;
    kernel("stride_add");
    OK(cuMemAlloc_v2(&p, 4 * MIB));
    OK(cuMemAlloc_v2(&q, 4 * MIB));
    real_record = hr_drv.cuEventRecord_ptsz;
    hr_drv.cuEventRecord_ptsz = record_fence;
    fenced_within("a launch of what is not backed yet", stride_add(p, 512, 2048, 1, own));
    fenced_within("a launch of what is resident", stride_add(p, 512, 2048, 1, own));
    fenced_within("a memset", cuMemsetD32Async(q, 1, MIB, own));
    fenced_within("a memset of the other variant", cuMemsetD8Async_ptsz(q, 1, MIB, NULL));
    fenced_within("a memset of rows", cuMemsetD2D8Async(q, 512, 1, 100, 100, own));
    fenced_within("a copy to the device", cuMemcpyHtoDAsync_v2(p, words, sizeof words, own));
    fenced_within("a copy on the device", cuMemcpyDtoDAsync_v2(q, p, MIB, own));
    fenced_within("a copy that waits, of the other variant", cuMemcpyHtoD_v2_ptds(p, words, sizeof words));
    CUDA_MEMCPY2D rows = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                          .srcDevice = p,
                          .srcPitch = 512,
                          .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                          .dstDevice = q,
                          .dstPitch = 512,
                          .WidthInBytes = 100,
                          .Height = 20};
    fenced_within("a copy of rows", cuMemcpy2DAsync_v2(&rows, own));
    OK(cuStreamSynchronize(own));
    hr_drv.cuEventRecord_ptsz = real_record;
}

static CUresult refuse_fence(CUevent event, CUstream stream)
{
    (void)event, (void)stream;
    return CUDA_ERROR_OUT_OF_MEMORY;
}

Test(flight, work_that_cannot_be_fenced_is_waited_for, .timeout = 120)
{
    machine("h200,vram=64M,host=512M", "");
    CUdeviceptr p;
    kernel("slow_affine");
    OK(cuMemAlloc_v2(&p, 4 * MIB));
    hr_drv.cuEventRecord_ptsz = refuse_fence;
    OK(slow_affine(p, 3, 1, 1024, 400, CU_STREAM_PER_THREAD));
    OK(hr_drv.cuStreamQuery(CU_STREAM_PER_THREAD));
}

/* --- work where headroom might not look ----------------------------------------------------------------------------- */

static void CUDA_CB wait_for_word(void *word)
{
    while (!atomic_load((_Atomic(int) *)word))
        sched_yield();
}

/* A context that never allocated or loaded anything copies. Shown failing without registering it at the copy. */
Test(flight, a_context_that_only_copies_keeps_the_device_busy, .timeout = 120)
{
    CUcontext owner = machine("h200,vram=64M,host=512M", ""), other;
    CUdeviceptr p, q;
    static _Atomic(int) go;
    OK(cuMemAlloc_v2(&p, 4 * MIB));
    OK(cuMemAlloc_v2(&q, 4 * MIB));
    OK(cuMemsetD8_v2(p, 1, 4 * MIB));
    OK(cuMemsetD8_v2(q, 1, 4 * MIB));
    OK(cuCtxSynchronize());
    OK(cuDevicePrimaryCtxRetain(&other, 0));
    OK(cuCtxSetCurrent(other));
    OK(hr_drv.cuLaunchHostFunc(CU_STREAM_LEGACY, wait_for_word, &go));
    OK(cuMemcpyDtoDAsync_v2(q, p, 4 * MIB, CU_STREAM_LEGACY));
    CHECK(!hr_quiet_now(HR_ALL_GPUS), "the device was taken for idle");
    atomic_store(&go, 1);
    OK(cuCtxSynchronize());
    CHECK(hr_quiet_now(HR_ALL_GPUS));
    OK(cuCtxSetCurrent(owner));
}

/* simgpu has no green contexts: their functions are stood in for by a second context and its streams. */
static CUcontext green;
static CUresult green_stream(CUstream *stream, CUgreenCtx handle, unsigned flags, int priority)
{
    (void)handle, (void)priority;
    OK(hr_drv.cuCtxPushCurrent_v2(green));
    CUresult r = hr_drv.cuStreamCreate(stream, flags);
    OK(hr_drv.cuCtxPopCurrent_v2(&(CUcontext){NULL}));
    return r;
}
static CUresult green_context(CUcontext *context_out, CUgreenCtx handle)
{
    (void)handle;
    *context_out = green;
    return CUDA_SUCCESS;
}
static CUresult green_destroy(CUgreenCtx handle)
{
    (void)handle;
    return hr_drv.cuCtxDestroy_v2(green);
}

Test(flight, streams_of_green_contexts_keep_the_device_busy_until_they_end, .timeout = 120)
{
    CUcontext owner = machine("h200,vram=64M,host=512M", "");
    CUstream stream;
    static _Atomic(int) go;
    hr_drv.cuGreenCtxStreamCreate = green_stream;
    hr_drv.cuCtxFromGreenCtx = green_context;
    hr_drv.cuGreenCtxDestroy = green_destroy;
    OK(hr_drv.cuCtxCreate_v2(&green, 0, 0)); /* behind headroom's back */
    OK(hr_drv.cuCtxSetCurrent(owner));
    OK(cuGreenCtxStreamCreate(&stream, NULL, CU_STREAM_NON_BLOCKING, 0));
    OK(hr_drv.cuLaunchHostFunc(stream, wait_for_word, &go));
    CHECK(!hr_quiet_now(HR_ALL_GPUS));
    atomic_store(&go, 1);
    OK(hr_drv.cuStreamSynchronize(stream));
    CHECK(hr_quiet_now(HR_ALL_GPUS));
    OK(cuGreenCtxDestroy(NULL));
    CHECK(hr_quiet_now(HR_ALL_GPUS));
}

/* --- a host function that waits for a thread inside a launch ------------------------------------------------------ */

static pthread_mutex_t launching = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(unsigned) arrived;

static void CUDA_CB wait_for_launcher(void *unused)
{
    (void)unused;
    atomic_fetch_add(&arrived, 1);
    pthread_mutex_lock(&launching);
    pthread_mutex_unlock(&launching);
}

struct launcher {
    CUdeviceptr *p;
    int count;
    CUstream stream;
    pthread_barrier_t *ready;
};
/* Holds the mutex over launches that need other memory moved out first. */
static void *launch_with_mutex(void *arg)
{
    struct launcher *l = arg;
    OK(cuCtxSetCurrent(context));
    pthread_mutex_lock(&launching);
    pthread_barrier_wait(l->ready);
    while (!atomic_load(&arrived)) /* the host function stands in front of the mutex */
        sched_yield();
    for (int i = 0; i < l->count; i++)
        OK(stride_add(l->p[i], 512, 2048, 1, l->stream));
    pthread_mutex_unlock(&launching);
    return NULL;
}

static void host_function_and_launcher(const char *deny, const char *vram, int repetitions)
{
    context = machine(vram, deny);
    CUdeviceptr p[8];
    CUstream s[2];
    kernel("stride_add");
    for (int i = 0; i < 2; i++)
        OK(cuStreamCreate(&s[i], CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 8; i++) {
        OK(cuMemAlloc_v2(&p[i], 4 * MIB));
        OK(cuMemsetD32_v2(p[i], 0, MIB));
    }
    OK(cuCtxSynchronize()); /* the other streams do not wait for the legacy one */
    for (int k = 0; k < repetitions; k++) {
        pthread_t thread;
        pthread_barrier_t ready;
        struct launcher l = {k % 2 ? p : p + 4, 4, s[1], &ready};
        uint64_t start_ns = hr_clock_ns();
        atomic_store(&arrived, 0);
        for (int i = 0; i < 4; i++) /* these become resident, so that the launcher's have to come in */
            OK(stride_add(k % 2 ? p[4 + i] : p[i], 512, 2048, 1, s[0]));
        pthread_barrier_init(&ready, NULL, 2);
        pthread_create(&thread, NULL, launch_with_mutex, &l);
        pthread_barrier_wait(&ready);
        OK(cuLaunchHostFunc(s[0], wait_for_launcher, NULL));
        pthread_join(thread, NULL);
        OK(cuCtxSynchronize());
        uint64_t ns = hr_clock_ns() - start_ns;
        cr_assert_lt(ns, UINT64_C(10000000000), "repetition %d took %llu ms", k, (unsigned long long)ns / 1000000);
    }
    for (int i = 0; i < 8; i++) {
        uint32_t first;
        OK(cuMemcpyDtoH_v2(&first, p[i], 4));
        cr_assert_eq(first, (uint32_t)repetitions, "buffer %d was added to %u times", i, first);
    }
}

/* Shown failing by a drain without a deadline: the first repetition never ended. */
Test(flight, a_host_function_that_waits_for_a_launching_thread_is_not_waited_for, .timeout = 2000)
{
    host_function_and_launcher("", "h200,vram=24M,host=512M", is_long() ? 200 : 12);
}

/* Where host memory cannot be mapped a launch has to get its memory in, however busy others keep the device. */
enum { QUEUED = 40, OCCUPIED_US = 10000 };
static CUdeviceptr busy_buffer;

static void occupy(void *unused)
{
    (void)unused;
    usleep(OCCUPIED_US); /* as a long kernel would */
}

static void *keep_busy(void *launches)
{
    CUstream s;
    CUevent e[QUEUED];
    OK(cuCtxSetCurrent(context));
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < QUEUED; i++)
        OK(cuEventCreate(&e[i], CU_EVENT_DISABLE_TIMING));
    for (uint32_t i = 0; !atomic_load(&stop); i++) {
        if (i >= QUEUED)
            OK(cuEventSynchronize(e[i % QUEUED]));
        OK(slow_affine(busy_buffer, 1, 1, 256, 1, s));
        OK(hr_drv.cuLaunchHostFunc(s, occupy, NULL));
        OK(cuEventRecord(e[i % QUEUED], s));
        ++*(uint32_t *)launches;
    }
    OK(cuStreamSynchronize(s));
    return NULL;
}

Test(flight, a_launch_gets_its_memory_in_beside_a_device_that_is_never_at_rest, .timeout = 120)
{
    enum { BUFFERS = 6 };
    context = machine("h200,vram=16M,host=512M", "host_numa");
    pthread_t other;
    uint32_t launches = 0, seen[256];
    OK(cuMemAlloc_v2(&busy_buffer, CHUNK));
    OK(cuMemsetD32_v2(busy_buffer, 0, CHUNK / 4));
    for (int i = 0; i < BUFFERS; i++) {
        OK(cuMemAlloc_v2(&buffer[i], 2 * CHUNK));
        OK(cuMemsetD32_v2(buffer[i], 5, CHUNK / 2));
    }
    pthread_create(&other, NULL, keep_busy, &launches);
    for (int i = 0; i < BUFFERS; i++) /* more than the VRAM: some have to come in, for others that leave */
        OK(slow_affine(buffer[i], 2, 1, 256, 1, NULL));
    atomic_store(&stop, true);
    pthread_join(other, NULL);
    OK(cuCtxSynchronize());
    for (int i = 0; i < BUFFERS; i++) {
        OK(cuMemcpyDtoH_v2(seen, buffer[i], sizeof seen));
        for (int k = 0; k < 256; k++)
            CHECK(seen[k] == 11, "word %d of buffer %d is %u", k, i, seen[k]);
    }
    OK(cuMemcpyDtoH_v2(seen, busy_buffer, sizeof seen));
    CHECK(seen[255] == launches, "%u, not %u", seen[255], launches);
}

/* What is freed waits for work in flight; who needs it need not wait for rest that never comes of itself. */
Test(flight, freed_memory_comes_back_beside_a_device_that_is_never_at_rest, .timeout = 120)
{
    setenv("HEADROOM_HOST", "32M", 1);
    setenv("HEADROOM_COMMIT", "lazy", 1);
    context = machine("h200,vram=16M,host=512M", "");
    pthread_t other;
    uint32_t launches = 0, seen;
    OK(cuMemAlloc_v2(&busy_buffer, CHUNK));
    OK(cuMemsetD32_v2(busy_buffer, 0, CHUNK / 4));
    pthread_create(&other, NULL, keep_busy, &launches);
    for (uint32_t i = 0; i < 8; i++) { /* twice what there is */
        CUdeviceptr p;
        OK(cuMemAlloc_v2(&p, 6 * CHUNK));
        OK(slow_affine(p + 4 * CHUNK, 0, i, 256, 1, NULL));
        OK(cuMemcpyDtoH_v2(&seen, p + 4 * CHUNK, 4));
        CHECK(seen == i, "%u, not %u", seen, i);
        OK(cuMemFree_v2(p));
    }
    atomic_store(&stop, true);
    pthread_join(other, NULL);
    OK(cuCtxSynchronize());
}

/* What no freed memory makes room for need not wait for it. Shown failing by waiting whenever some is in flight. */
Test(flight, what_cannot_fit_is_refused_at_once, .timeout = 120)
{
    setenv("HEADROOM_HOST", "32M", 1);
    context = machine("h200,vram=16M,host=512M", "");
    static _Atomic(int) go;
    CUdeviceptr p, q;
    size_t free_bytes, total_bytes;
    OK(cuMemAlloc_v2(&p, CHUNK));
    OK(cuMemsetD8_v2(p, 1, CHUNK));
    OK(hr_drv.cuLaunchHostFunc(CU_STREAM_LEGACY, wait_for_word, &go));
    OK(cuMemFree_v2(p));
    CHECK(hr_quarantine_any());
    uint64_t start_ns = hr_clock_ns();
    OK(cuMemGetInfo_v2(&free_bytes, &total_bytes));
    CHECK(cuMemAlloc_v2(&q, total_bytes * 4) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(cuMemAlloc_v2(&q, free_bytes + 2 * CHUNK) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(hr_clock_ns() - start_ns < UINT64_C(2000000000), "it took %.1f s", (double)(hr_clock_ns() - start_ns) * 1e-9);
    atomic_store(&go, 1);
    OK(cuCtxSynchronize());
}

static void give_back_a_chunk(void)
{
    CUdeviceptr p;
    OK(cuMemAlloc_v2(&p, CHUNK));
    OK(cuMemsetD8_v2(p, 1, CHUNK));
    OK(cuMemFree_v2(p));
    OK(cuCtxSynchronize());
    CHECK(!hr_quarantine_any());
}

/* It may have come back after the call found none, so that nothing waits any more. */
Test(flight, what_came_back_meanwhile_is_tried_once)
{
    context = machine("h200,vram=16M,host=512M", "");
    struct hr_room_wait wait = {0};
    give_back_a_chunk();
    CHECK(hr_access_make_room(hr_thread_self(), 0, &wait), "the call may have been before that");
    CHECK(!hr_access_make_room(hr_thread_self(), 0, &wait));
    give_back_a_chunk();
    CHECK(hr_access_make_room(hr_thread_self(), 0, &wait));
    CHECK(!hr_access_make_room(hr_thread_self(), 0, &wait));
}

/* Together they ask for no more than there is; but who finds none may look while another gives back what was freed. Shown failing
 * by counting what is still being released as gone. */
enum { SHARERS = 4 };
static size_t share_bytes;
static void *alloc_and_free(void *rounds)
{
    CUstream s;
    OK(cuCtxSetCurrent(context));
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < *(int *)rounds; i++) {
        CUdeviceptr p;
        OK(cuMemAlloc_v2(&p, share_bytes));
        OK(cuMemsetD8Async(p, (unsigned char)i, CHUNK, s));
        OK(cuMemFree_v2(p));
    }
    return NULL;
}

Test(flight, what_several_threads_free_each_of_them_gets, .timeout = 120)
{
    setenv("HEADROOM_HOST", "128M", 1);
    setenv("HEADROOM_COMMIT", "lazy", 1);
    context = machine("h200,vram=64M,host=512M", "");
    pthread_t other[SHARERS];
    size_t free_bytes, total_bytes;
    int rounds = is_long() ? 5000 : 1000;
    OK(cuMemGetInfo_v2(&free_bytes, &total_bytes));
    share_bytes = free_bytes / SHARERS / CHUNK * CHUNK;
    for (int i = 0; i < SHARERS; i++)
        pthread_create(&other[i], NULL, alloc_and_free, &rounds);
    for (int i = 0; i < SHARERS; i++)
        pthread_join(other[i], NULL);
}
