#include "sim_test.h"

#include <stdatomic.h>
#include <time.h>
#include <unistd.h>

/* Holds `stream` until the gate opens; returns once the stream is really held. */
static void hold(CUstream stream, struct gate *gate)
{
    OK(cuLaunchHostFunc(stream, gate_wait, gate));
    gate_await_arrival(gate);
}

Test(stream, work_of_one_stream_runs_in_order_and_others_pass_by)
{
    machine_with_context("h200,vram=64M");
    static struct gate gate = GATE_INIT;
    CUdeviceptr va = mapped_chunks(1);
    CUstream a, b;
    unsigned value = 0;
    OK(cuMemsetD32_v2(va, 0, 16));
    OK(cuCtxSynchronize());
    OK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
    hold(a, &gate);
    OK(cuMemsetD32Async(va, 1, 1, a));
    OK(cuMemsetD32Async(va + 4, 2, 1, b));
    OK(cuStreamSynchronize(b));
    OK(cuMemcpyDtoHAsync_v2(&value, va + 4, 4, b));
    cr_assert_eq(value, 2);
    OK(cuMemcpyDtoHAsync_v2(&value, va, 4, b));
    cr_assert_eq(value, 0, "the held stream's work must not have run");
    GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(a));
    OK(cuStreamQuery(b));
    gate_open(&gate);
    OK(cuStreamSynchronize(a));
    OK(cuMemcpyDtoHAsync_v2(&value, va, 4, b));
    cr_assert_eq(value, 1);
}

Test(stream, legacy_default_stream_waits_for_blocking_streams_and_they_for_it)
{
    machine_with_context("h200,vram=64M");
    static struct gate gate = GATE_INIT, second = GATE_INIT;
    CUstream blocking, other, free_one;
    CUdeviceptr va = mapped_chunks(1);
    OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    OK(cuStreamCreate(&other, CU_STREAM_DEFAULT));
    OK(cuStreamCreate(&free_one, CU_STREAM_NON_BLOCKING));
    hold(blocking, &gate);
    OK(cuMemsetD8_v2(va, 1, 16)); /* the legacy stream */
    OK(cuMemsetD8Async(va + 64, 1, 16, free_one));
    OK(cuStreamSynchronize(free_one));
    GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(NULL));
    GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(CU_STREAM_LEGACY));
    OK(cuMemsetD8Async(va + 128, 1, 16, other)); /* after the legacy stream's memset, so it waits as well */
    GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(other));
    gate_open(&gate);
    OK(cuStreamSynchronize(other));
    OK(cuStreamQuery(NULL));
    hold(NULL, &second);
    OK(cuMemsetD8Async(va, 1, 16, blocking));
    OK(cuMemsetD8Async(va, 1, 16, free_one));
    OK(cuStreamSynchronize(free_one));
    GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(blocking));
    gate_open(&second);
    OK(cuCtxSynchronize());
    OK(cuStreamQuery(blocking));
}

static void *other_threads_default_stream(void *context)
{
    unsigned long long id;
    OK(cuCtxSetCurrent(context));
    OK(cuStreamGetId_ptsz(NULL, &id));
    OK(cuStreamQuery_ptsz(NULL)); /* not the held one */
    return (void *)(uintptr_t)id;
}

Test(stream, per_thread_default_streams_are_the_threads_own)
{
    CUcontext context = machine_with_context("h200,vram=64M");
    static struct gate gate = GATE_INIT;
    unsigned long long legacy, mine, same, through_handle;
    OK(cuStreamGetId(NULL, &legacy));
    OK(cuStreamGetId_ptsz(NULL, &mine));
    OK(cuStreamGetId_ptsz(NULL, &same));
    OK(cuStreamGetId(CU_STREAM_PER_THREAD, &through_handle));
    cr_assert_neq(legacy, mine);
    cr_assert_eq(mine, same);
    cr_assert_eq(mine, through_handle);
    OK(cuStreamGetId_ptsz(CU_STREAM_LEGACY, &through_handle));
    cr_assert_eq(legacy, through_handle);
    OK(cuLaunchHostFunc_ptsz(NULL, gate_wait, &gate));
    gate_await_arrival(&gate);
    GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(CU_STREAM_PER_THREAD));
    pthread_t thread;
    void *theirs;
    cr_assert_eq(pthread_create(&thread, NULL, other_threads_default_stream, context), 0);
    pthread_join(thread, &theirs);
    cr_assert_neq((uintptr_t)theirs, mine);
    CUdeviceptr va = mapped_chunks(1);
    OK(cuMemsetD8_v2(va, 0, 1)); /* the legacy stream waits for a per-thread one */
    GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(NULL));
    gate_open(&gate);
    OK(cuStreamSynchronize(NULL));
}

Test(stream, handles_that_are_stale_or_invented_are_noticed)
{
    machine_with_context("h200,vram=64M");
    CUstream s;
    unsigned flags;
    int priority;
    OK(cuStreamCreateWithPriority(&s, CU_STREAM_NON_BLOCKING, -100));
    OK(cuStreamGetFlags(s, &flags));
    OK(cuStreamGetPriority(s, &priority));
    cr_assert_eq(flags, CU_STREAM_NON_BLOCKING);
    cr_assert_eq(priority, -5);
    OK(cuStreamDestroy_v2(s));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuStreamQuery(s));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuStreamDestroy_v2(s));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuStreamSynchronize((CUstream)(uintptr_t)0xdead0));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuStreamDestroy_v2(NULL));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamCreate(&s, 8));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamCreate(NULL, 0));
}

Test(stream, a_destroyed_stream_finishes_its_work)
{
    machine_with_context("h200,vram=64M");
    static struct gate gate = GATE_INIT;
    CUdeviceptr va = mapped_chunks(1);
    CUstream s;
    unsigned value = 0;
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    hold(s, &gate);
    OK(cuMemsetD32Async(va, 7, 1, s));
    OK(cuStreamDestroy_v2(s));
    gate_open(&gate);
    OK(cuCtxSynchronize());
    OK(cuMemcpyDtoH_v2(&value, va, 4));
    cr_assert_eq(value, 7);
}

static CUresult inner[3];
static void calls_cuda(void *arg)
{
    (void)arg;
    int count;
    CUdeviceptr p;
    inner[0] = cuMemAlloc_v2(&p, 512);
    inner[1] = cuDeviceGetCount(&count);
    inner[2] = cuCtxSynchronize();
}

Test(stream, host_functions_must_not_call_cuda)
{
    machine_with_context("h200,vram=64M");
    OK(cuLaunchHostFunc(NULL, calls_cuda, NULL));
    OK(cuCtxSynchronize());
    for (int i = 0; i < 3; i++)
        cr_assert_eq(inner[i], CUDA_ERROR_NOT_PERMITTED);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuLaunchHostFunc(NULL, NULL, NULL));
}

static atomic_int order, seen[3];
static void note(void *arg)
{
    atomic_store(&seen[(intptr_t)arg], atomic_fetch_add(&order, 1) + 1);
}
static CUstream called_with;
static CUresult called_status = CUDA_ERROR_UNKNOWN;
static void callback(CUstream stream, CUresult status, void *arg)
{
    called_with = stream;
    called_status = status;
    note(arg);
}

Test(stream, host_functions_and_callbacks_run_in_stream_order)
{
    machine_with_context("h200,vram=64M");
    CUstream s;
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuLaunchHostFunc(s, note, (void *)0));
    OK(cuStreamAddCallback(s, callback, (void *)1, 0));
    OK(cuLaunchHostFunc(s, note, (void *)2));
    OK(cuStreamSynchronize(s));
    for (int i = 0; i < 3; i++)
        cr_assert_eq(atomic_load(&seen[i]), i + 1);
    cr_assert_eq(called_with, s);
    cr_assert_eq(called_status, CUDA_SUCCESS);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamAddCallback(s, callback, NULL, 1));
}

Test(stream, a_wait_keeps_the_recording_that_it_saw)
{
    machine_with_context("h200,vram=64M");
    static struct gate first = GATE_INIT, second = GATE_INIT;
    CUstream a, b;
    CUevent e;
    OK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&e, CU_EVENT_DEFAULT));
    OK(cuEventQuery(e)); /* never recorded */
    OK(cuStreamWaitEvent(b, e, 0));
    OK(cuStreamQuery(b));
    hold(a, &first);
    OK(cuEventRecord(e, a));
    GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(e));
    OK(cuStreamWaitEvent(b, e, 0));
    OK(cuLaunchHostFunc(a, gate_wait, &second));
    OK(cuEventRecord(e, a)); /* again: behind the second gate */
    GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(b));
    gate_open(&first);
    OK(cuStreamSynchronize(b)); /* the first recording was enough */
    GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(e));
    OK(cuEventDestroy_v2(e));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuEventQuery(e));
    gate_open(&second);
    OK(cuCtxSynchronize());
}

Test(stream, events_measure_time_unless_told_not_to)
{
    machine_with_context("h200,vram=64M");
    CUevent a, b, quiet;
    float ms = -1;
    OK(cuEventCreate(&a, CU_EVENT_DEFAULT));
    OK(cuEventCreate(&b, CU_EVENT_BLOCKING_SYNC));
    OK(cuEventCreate(&quiet, CU_EVENT_DISABLE_TIMING));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime_v2(&ms, a, b)); /* not recorded */
    OK(cuEventRecord(a, NULL));
    struct timespec pause = {0, 20000000};
    OK(cuEventSynchronize(a));
    nanosleep(&pause, NULL);
    OK(cuEventRecord(b, NULL));
    OK(cuEventRecord(quiet, NULL));
    OK(cuEventSynchronize(b));
    OK(cuEventElapsedTime_v2(&ms, a, b));
    cr_assert(ms >= 0 && ms < 1, "%f: what the host does meanwhile takes no virtual time", (double)ms);
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime_v2(&ms, a, quiet));
    static struct gate gate = GATE_INIT;
    hold(NULL, &gate);
    OK(cuEventRecord(b, NULL));
    GIVES(CUDA_ERROR_NOT_READY, cuEventElapsedTime_v2(&ms, a, b));
    gate_open(&gate);
    OK(cuEventSynchronize(b));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuEventCreate(&a, 64));
}

Test(stream, an_event_belongs_to_its_context_but_may_be_waited_for_anywhere)
{
    CUcontext first = machine_with_context("h200,vram=64M,gpus=2"), second;
    static struct gate gate = GATE_INIT;
    CUstream s0, s1;
    CUevent e;
    OK(cuStreamCreate(&s0, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
    OK(cuCtxCreate_v2(&second, 0, 1));
    OK(cuStreamCreate(&s1, CU_STREAM_NON_BLOCKING));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuEventRecord(e, s1));
    OK(cuCtxSetCurrent(first));
    hold(s0, &gate);
    OK(cuEventRecord(e, s0));
    OK(cuCtxSetCurrent(second));
    OK(cuStreamWaitEvent(s1, e, 0));
    GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(s1));
    gate_open(&gate);
    OK(cuStreamSynchronize(s1));
}

Test(stream, sync_mode_finishes_every_submission)
{
    setenv("SIMGPU_SYNC", "1", 1);
    machine_with_context("h200,vram=64M");
    CUdeviceptr va = mapped_chunks(1);
    CUstream s;
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 50; i++) {
        OK(cuMemsetD8Async(va, 1, PAGE, s));
        OK(cuStreamQuery(s));
    }
}

/* Chains of dependent copies over two streams, tied by events; returns non-NULL when a value is wrong. */
static void *stream_load(void *context)
{
    CUstream s[2];
    CUevent e;
    CUdeviceptr p;
    OK(cuCtxSetCurrent(context));
    OK(cuStreamCreate(&s[0], CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&s[1], CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
    OK(cuMemAlloc_v2(&p, 64 * 1024));
    for (unsigned i = 1; i <= 150; i++) {
        unsigned got = 0;
        OK(cuMemsetD32Async(p, i, 4096, s[0]));
        OK(cuEventRecord(e, s[0]));
        OK(cuStreamWaitEvent(s[1], e, 0));
        OK(cuMemcpyDtoDAsync_v2(p + 32 * 1024, p, 16384, s[1]));
        OK(cuEventRecord(e, s[1]));
        OK(cuStreamWaitEvent(s[0], e, 0));
        OK(cuMemcpyDtoHAsync_v2(&got, p + 32 * 1024 + 4 * (i % 4096), 4, s[1]));
        if (got != i)
            return (void *)1;
    }
    OK(cuStreamDestroy_v2(s[0]));
    OK(cuStreamDestroy_v2(s[1]));
    OK(cuEventDestroy_v2(e));
    OK(cuMemFree_v2(p));
    return NULL;
}

Test(stream, many_threads_and_streams_keep_their_own_order)
{
    CUcontext context = machine_with_context("h200,vram=64M,seed=5");
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, stream_load, context), 0);
    for (int i = 0; i < 4; i++) {
        void *bad;
        pthread_join(threads[i], &bad);
        cr_assert_null(bad);
    }
}
