/* Captures: nothing of ours breaks one, what streams held before stays known, and a capture that is left holds up nothing for good. */
#include "graphs.h"

#define SMALL "h200,vram=48M,host=512M"
#define BYTES (2 * CHUNK)

static CUstreamCaptureStatus status_of(CUstream s)
{
    CUstreamCaptureStatus status;
    OK(cuStreamIsCapturing(s, &status));
    return status;
}

/* --- what is captured ------------------------------------------------------------------------------------------------ */

static void count_up(void *arg)
{
    ++*(uint32_t *)arg;
}

/* The same calls at once, or captured. */
static void call_everything(CUstream s, const CUdeviceptr p[5], uint32_t *calls)
{
    CUDA_MEMCPY2D rows = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                          .srcDevice = p[0],
                          .srcPitch = 4096,
                          .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                          .dstDevice = p[1],
                          .dstPitch = 4096,
                          .WidthInBytes = 4096,
                          .Height = BYTES / 4096};
    CUDA_MEMCPY3D box = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                         .srcDevice = p[1],
                         .srcPitch = 1024,
                         .srcHeight = 16,
                         .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                         .dstDevice = p[2],
                         .dstPitch = 1024,
                         .dstHeight = 16,
                         .WidthInBytes = 1024,
                         .Height = 16,
                         .Depth = BYTES / 1024 / 16};
    OK(cuMemsetD32Async(p[0], 6, BYTES / 4, s));
    OK(launch_affine(s, p[0], p[0], 3, 1, BYTES));
    OK(cuMemcpy2DAsync_v2(&rows, s));
    OK(cuMemcpy3DAsync_v2(&box, s));
    OK(cuMemcpyDtoDAsync_v2(p[3], p[2], BYTES, s));
    OK(cuMemsetD2D8Async(p[3], 4096, 7, 16, 2, s));
    OK(launch_affine(s, p[4], p[2], 2, 5, BYTES));
    OK(cuMemcpyAsync(p[0], p[4], BYTES, s));
    OK(cuLaunchHostFunc(s, count_up, calls));
    OK(cuStreamWriteValue32_v2(s, p[1], 99, 0));
}

static void compare(CUdeviceptr a, CUdeviceptr b)
{
    char *first = malloc(BYTES), *second = malloc(BYTES);
    OK(cuMemcpyDtoH_v2(first, a, BYTES));
    OK(cuMemcpyDtoH_v2(second, b, BYTES));
    CHECK(memcmp(first, second, BYTES) == 0);
    free(first);
    free(second);
}

static void same_results(CUstreamCaptureMode mode)
{
    static uint32_t calls;
    CUdeviceptr once[5], captured[5];
    machine(SMALL, "");
    CUstream s = new_stream();
    for (int i = 0; i < 5; i++) {
        once[i] = buffer_of(BYTES, 1);
        captured[i] = buffer_of(BYTES, 1);
        evict(captured[i], BYTES);
    }
    CUdeviceptr fresh;
    OK(cuMemAlloc_v2(&fresh, BYTES)); /* never touched but by the capture */
    call_everything(s, once, &calls);
    OK(cuStreamSynchronize(s));
    CUgraph g;
    size_t count;
    OK(cuStreamBeginCapture_v2(s, mode));
    call_everything(s, captured, &calls);
    OK(launch_affine(s, fresh, captured[0], 1, 0, BYTES));
    CHECK(atomic_load(&hr_space_extent(fresh)->not_accessible) == 0, "what is captured was not backed");
    CHECK(status_of(s) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
    OK(cuStreamEndCapture(s, &g));
    CHECK(!hr_capture_any() && calls == 1);
    OK(cuGraphGetNodes(g, NULL, &count));
    CHECK(count == 11, "%zu nodes: a copy was divided", count);
    CUgraphExec exec = made(g);
    OK(cuGraphDestroy(g));
    for (int round = 0; round < 2; round++) {
        evict(captured[4], BYTES);
        OK(cuGraphLaunch(exec, s));
        OK(cuStreamSynchronize(s));
    }
    CHECK(calls == 3);
    for (int i = 0; i < 5; i++)
        compare(once[i], captured[i]);
    compare(fresh, once[0]);
    OK(cuGraphExecDestroy(exec));
    nothing_is_held();
}
static void same_results_global(void)
{
    same_results(GLOBAL_MODE);
}
static void same_results_local(void)
{
    same_results(LOCAL_MODE);
}
static void same_results_relaxed(void)
{
    same_results(RELAXED_MODE);
}

Test(capture, k40_a_stream_of_everything_becomes_a_graph_in_every_mode, .timeout = 60)
{
    void (*const modes[])(void) = {same_results_global, same_results_local, same_results_relaxed};
    for (int i = 0; i < 3; i++) {
        char *report = apart(modes[i]);
        was_safe(report);
        free(report);
    }
}

/* --- beside others' work --------------------------------------------------------------------------------------------- */

enum { OTHERS = 3, BUFFERS = 6, CAPTURES = 15 };
static CUcontext shared_context;
static _Atomic(bool) done;

/* Launches over more memory than there is, and copies: all that may be done beside a global capture. */
static void *work_beside(void *arg)
{
    uint32_t seed = (uint32_t)(uintptr_t)arg, value[BUFFERS], *seen = malloc(BYTES);
    CUdeviceptr p[BUFFERS];
    OK(cuCtxSetCurrent(shared_context));
    CUstream s = new_stream();
    for (uint32_t i = 0; i < BUFFERS; i++) {
        CUstreamCaptureMode mode = RELAXED_MODE;
        OK(cuThreadExchangeStreamCaptureMode(&mode));
        OK(cuMemAlloc_v2(&p[i], BYTES));
        OK(cuThreadExchangeStreamCaptureMode(&mode));
        value[i] = seed + i;
        OK(cuMemsetD32Async(p[i], value[i], BYTES / 4, s));
    }
    for (uint32_t i = 0; !atomic_load(&done) || i < 2 * BUFFERS; i++) {
        uint32_t k = i % BUFFERS;
        OK(launch_affine(s, p[k], p[k], 3, 1, BYTES));
        value[k] = value[k] * 3 + 1;
        if (i % 4 == 3)
            OK(cuStreamSynchronize(s));
    }
    for (uint32_t i = 0; i < BUFFERS; i++) {
        OK(cuMemcpyDtoHAsync_v2(seen, p[i], BYTES, s));
        OK(cuStreamSynchronize(s));
        for (size_t w = 0; w < words_of(BYTES); w += STEP)
            CHECK(seen[w] == value[i], "thread %u, buffer %u: %u, not %u", seed, i, seen[w], value[i]);
    }
    free(seen);
    return NULL;
}

static void captures_beside_work(CUstreamCaptureMode mode)
{
    pthread_t thread[OTHERS];
    shared_context = machine("h200,vram=32M,host=512M", "");
    kernel("affine");
    CUdeviceptr p = buffer_of(BYTES, 1), q = buffer_of(BYTES, 0);
    uint32_t value = 1;
    CUstream s = new_stream(), t = new_stream();
    CUevent fork, join;
    OK(cuEventCreate(&fork, 0));
    OK(cuEventCreate(&join, 0));
    for (uintptr_t i = 0; i < OTHERS; i++)
        CHECK(pthread_create(&thread[i], NULL, work_beside, (void *)(i * 1000 + 1)) == 0);
    for (int i = 0; i < CAPTURES; i++) {
        CUgraph g;
        OK(cuStreamBeginCapture_v2(s, mode));
        OK(launch_affine(s, p, p, 2, 1, BYTES));
        OK(cuEventRecord(fork, s));
        OK(cuStreamWaitEvent(t, fork, 0));
        OK(cuMemcpyAsync(q, p, BYTES, t));
        sched_yield();
        OK(cuEventRecord(join, t));
        OK(cuStreamWaitEvent(s, join, 0));
        OK(cuStreamEndCapture(s, &g));
        CUgraphExec exec = made(g);
        OK(cuGraphDestroy(g));
        OK(cuGraphLaunch(exec, s));
        value = value * 2 + 1;
        OK(cuGraphExecDestroy(exec));
    }
    OK(cuStreamSynchronize(s));
    atomic_store(&done, true);
    for (int i = 0; i < OTHERS; i++)
        pthread_join(thread[i], NULL);
    CHECK(value_of(p, BYTES) == value && value_of(q, BYTES) == value);
    CHECK(hr_stat_sum(HR_STAT_moved_in_bytes) > 0, "nothing moved: this shows nothing");
    nothing_is_held();
}
static void global_beside_work(void)
{
    captures_beside_work(GLOBAL_MODE);
}
static void local_beside_work(void)
{
    captures_beside_work(LOCAL_MODE);
}
static void relaxed_beside_work(void)
{
    captures_beside_work(RELAXED_MODE);
}

Test(capture, k40_moves_of_other_threads_break_none, .timeout = 300)
{
    void (*const modes[])(void) = {global_beside_work, local_beside_work, relaxed_beside_work};
    for (int i = 0; i < 3; i++) {
        char *report = apart(modes[i]);
        was_safe(report);
        free(report);
    }
}

/* --- calls that captures forbid --------------------------------------------------------------------------------------- */

static CUresult ended(CUstream s)
{
    CUgraph g;
    CUresult r = cuStreamEndCapture(s, &g);
    CHECK(status_of(s) == CU_STREAM_CAPTURE_STATUS_NONE && !hr_capture_any());
    if (r == CUDA_SUCCESS)
        OK(cuGraphDestroy(g));
    return r;
}

static void forbidden_calls(void)
{
    machine(SMALL, "");
    CUdeviceptr p = buffer_of(BYTES, 1), q;
    CUstream s = new_stream();
    size_t pitch;
    uint32_t word = 0;
    static const CUstreamCaptureMode modes[] = {GLOBAL_MODE, LOCAL_MODE, RELAXED_MODE};
    for (int m = 0; m < 3; m++)
        for (int call = 0; call < 7; call++) {
            CUresult expected = modes[m] == RELAXED_MODE ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, r;
            CUdeviceptr extra;
            OK(cuMemAlloc_v2(&extra, BYTES));
            OK(cuStreamBeginCapture_v2(s, modes[m]));
            switch (call) {
            case 0: r = cuMemAlloc_v2(&q, BYTES); break;
            case 1: r = cuMemAllocPitch_v2(&q, &pitch, 100, 100, 4); break;
            case 2: r = cuMemFree_v2(extra); break;
            case 3: r = cuMemcpyHtoD_v2(p, &word, 4); break;
            case 4: r = cuMemsetD32_v2(p, 0, 1); break;
            case 5: r = cuMemcpyDtoD_v2(p + 4096, p, 4096); break;
            default:
                expected = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED; /* in any mode */
                r = cuStreamSynchronize(s);
                break;
            }
            CHECK(r == expected, "call %d in mode %d gave %d", call, m, (int)r);
            if (r == CUDA_SUCCESS && call < 2)
                OK(cuMemFree_v2(q));
            r = ended(s);
            CHECK(r == (expected == CUDA_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
            if (call != 2 || expected != CUDA_SUCCESS)
                OK(cuMemFree_v2(extra));
        }
    /* What is wrong with a captured call breaks it as natively. */
    OK(cuStreamBeginCapture_v2(s, GLOBAL_MODE));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyAsync(p, p + BYTES - 4, 8192, s));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, ended(s));
}

Test(capture, k40_forbidden_calls_say_and_do_what_the_driver_does, .timeout = 60)
{
    char *report = apart(forbidden_calls);
    was_safe(report);
    free(report);
}

/* --- what streams held before ------------------------------------------------------------------------------------------ */

static void *try_to_evict(void *arg)
{
    CUdeviceptr p = *(CUdeviceptr *)arg;
    OK(cuCtxSetCurrent(shared_context));
    while (!atomic_load(&done))
        hr_access_evict_range(hr_thread_self(), p, BYTES);
    return NULL;
}

/* Work that runs while its stream captures: in the stream that began, in one that joined, and in one that is destroyed. */
static void busy_streams(void)
{
    enum { ROUNDS = 3 };
    pthread_t mover;
    shared_context = machine(SMALL, "");
    CUdeviceptr p = buffer_of(BYTES, 1), q = buffer_of(BYTES, 0);
    OK(slow_affine(p, 1, 0, 16, 10, NULL));
    OK(cuCtxSynchronize());
    CHECK(pthread_create(&mover, NULL, try_to_evict, &p) == 0);
    uint32_t value = 1;
    for (int round = 0; round < ROUNDS; round++) {
        CUstream s = new_stream(), t = new_stream();
        CUevent event;
        CUgraph g;
        OK(cuEventCreate(&event, 0));
        CUstream busy = round == 1 ? t : s;
        OK(slow_affine(p, 1, 1, BYTES / 16, 6, busy));
        value += 6;
        OK(cuStreamBeginCapture_v2(s, GLOBAL_MODE));
        OK(launch_affine(s, q, q, 1, 1, BYTES));
        if (round == 1) {
            OK(cuEventRecord(event, s));
            OK(cuStreamWaitEvent(t, event, 0));
            OK(launch_affine(t, q, q, 1, 1, BYTES));
            OK(cuEventRecord(event, t));
            OK(cuStreamWaitEvent(s, event, 0));
        }
        if (round == 2) { /* the capture goes with it */
            OK(cuStreamDestroy_v2(s));
            CHECK(!hr_capture_any());
        } else {
            OK(cuStreamEndCapture(s, &g));
            OK(cuGraphDestroy(g));
        }
        CHECK(value_of(p, BYTES) == value, "round %d", round);
    }
    atomic_store(&done, true);
    pthread_join(mover, NULL);
    CHECK(value_of(p, BYTES) == value);
}

Test(capture, k39_work_that_a_capturing_stream_still_holds_is_waited_for, .timeout = 120)
{
    char *report = apart(busy_streams);
    was_safe(report);
    free(report);
}

/* Beside the capture of a blocking stream the legacy stream cannot be asked. */
static void legacy_stream(void)
{
    pthread_t mover;
    CUstream s;
    CUgraph g;
    shared_context = machine(SMALL, "");
    CUdeviceptr p = buffer_of(BYTES, 1), q = buffer_of(BYTES, 0);
    OK(slow_affine(p, 1, 0, 16, 10, NULL));
    OK(cuCtxSynchronize());
    OK(cuStreamCreate(&s, CU_STREAM_DEFAULT));
    CHECK(pthread_create(&mover, NULL, try_to_evict, &p) == 0);
    for (uint32_t round = 1; round <= 3; round++) {
        OK(slow_affine(p, 1, 1, BYTES / 16, 6, NULL));
        OK(cuStreamBeginCapture_v2(s, GLOBAL_MODE));
        OK(launch_affine(s, q, q, 1, 1, BYTES));
        for (int i = 0; i < 100; i++) /* the mover asks all the time */
            sched_yield();
        CHECK(status_of(s) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
        OK(cuStreamEndCapture(s, &g));
        OK(cuGraphDestroy(g));
        CHECK(value_of(p, BYTES) == 1 + 6 * round);
    }
    OK(cuStreamBeginCapture_v2(s, RELAXED_MODE));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, launch_affine(NULL, q, q, 1, 1, BYTES));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(s, &g));
    atomic_store(&done, true);
    pthread_join(mover, NULL);
}

Test(capture, k40_the_legacy_stream_is_left_alone, .timeout = 120)
{
    char *report = apart(legacy_stream);
    was_safe(report);
    free(report);
}

static void per_thread_stream(void)
{
    CUgraph g;
    machine(SMALL, "");
    CUdeviceptr p = buffer_of(BYTES, 1), q = buffer_of(BYTES, 0);
    CUstream s = CU_STREAM_PER_THREAD;
    OK(launch_affine(s, p, p, 2, 1, BYTES));
    OK(cuStreamBeginCapture_v2(s, GLOBAL_MODE));
    OK(launch_affine(s, p, p, 2, 1, BYTES));
    OK(cuMemcpyAsync_ptsz(q, p, BYTES, NULL));
    hr_quiet_now(HR_ALL_GPUS); /* which does not break it */
    OK(cuStreamEndCapture_ptsz(NULL, &g));
    CHECK(!hr_capture_any());
    CUgraphExec exec = made(g);
    evict(p, BYTES);
    OK(cuGraphLaunch_ptsz(exec, NULL));
    OK(cuStreamSynchronize(s));
    CHECK(value_of(p, BYTES) == 7 && value_of(q, BYTES) == 7);
    OK(cuGraphExecDestroy(exec));
}

Test(capture, a_per_thread_default_stream_is_captured_without_fences, .timeout = 60)
{
    char *report = apart(per_thread_stream);
    was_safe(report);
    free(report);
}

/* --- moves ------------------------------------------------------------------------------------------------------------ */

static void nothing_moves(void)
{
    CUgraph g;
    machine(SMALL, "");
    CUdeviceptr p = buffer_of(BYTES, 1);
    CUstream s = new_stream(), other = new_stream();
    evict(p, BYTES);
    OK(cuStreamBeginCapture_v2(s, RELAXED_MODE));
    OK(launch_affine(s, p, p, 2, 1, BYTES));
    OK(launch_affine(other, p, p, 3, 1, BYTES)); /* in host memory, where it is */
    if (hr_capture_holds_moves())
        CHECK(!is_in_vram(p, BYTES), "it was moved beside a capture");
    OK(cuStreamEndCapture(s, &g));
    CHECK(!hr_capture_holds_moves());
    OK(cuGraphDestroy(g));
    OK(cuStreamSynchronize(other));
    OK(launch_affine(other, p, p, 3, 1, BYTES));
    OK(cuStreamSynchronize(other));
    CHECK(is_in_vram(p, BYTES));
    CHECK(value_of(p, BYTES) == 13);
}

Test(capture, k40_nothing_moves_while_one_is_open, .timeout = 60)
{
    char *report = apart(nothing_moves);
    was_safe(report);
    free(report);
}

/* Left open for good, and broken. */
static void left(void)
{
    machine(SMALL, "");
    CUdeviceptr p = buffer_of(BYTES, 1);
    CUstream s = new_stream(), broken = new_stream();
    kernel("affine");
    OK(cuStreamBeginCapture_v2(broken, GLOBAL_MODE));
    OK(launch_affine(broken, p, p, 2, 1, BYTES));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamQuery(broken));
    CHECK(!hr_capture_holds_moves(), "one that is broken holds up moves");
    CHECK(hr_access_evict_range(hr_thread_self(), p, BYTES) == 2 && !is_in_vram(p, BYTES));
    OK(cuStreamBeginCapture_v2(s, GLOBAL_MODE));
    while (hr_capture_holds_moves())
        usleep(10000);
    CHECK(hr_access_restore_range(hr_thread_self(), p, BYTES) == 2, "moves are held up for good");
    CHECK(status_of(s) == CU_STREAM_CAPTURE_STATUS_ACTIVE, "the move broke the capture");
    CUgraph g;
    OK(cuStreamEndCapture(s, &g));
    OK(cuGraphDestroy(g));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(broken, &g));
    CHECK(value_of(p, BYTES) == 1);
}

Test(capture, k40_one_that_is_left_open_holds_up_nothing_for_good, .timeout = 60)
{
    char *report = apart(left);
    was_safe(report);
    free(report);
}

static void *begin_and_end_the_thread(void *arg)
{
    OK(cuCtxSetCurrent(shared_context));
    OK(launch_affine(CU_STREAM_PER_THREAD, *(CUdeviceptr *)arg, *(CUdeviceptr *)arg, 1, 1, BYTES));
    OK(cuStreamBeginCapture_v2(CU_STREAM_PER_THREAD, LOCAL_MODE));
    CHECK(hr_capture_any());
    return NULL;
}

static void threads_that_end(void)
{
    pthread_t thread;
    shared_context = machine(SMALL, "");
    CUdeviceptr p = buffer_of(BYTES, 1);
    CHECK(pthread_create(&thread, NULL, begin_and_end_the_thread, &p) == 0);
    pthread_join(thread, NULL);
    CHECK(!hr_capture_any(), "the capture of a thread that has ended is still open");
    CHECK(value_of(p, BYTES) == 2);
}

Test(capture, one_ends_with_the_thread_whose_stream_it_is_of, .timeout = 60)
{
    char *report = apart(threads_that_end);
    was_safe(report);
    free(report);
}

/* --- graphs in captures ------------------------------------------------------------------------------------------------ */

static void nested(void)
{
    machine(SMALL, "");
    CUdeviceptr p = buffer_of(BYTES, 1), q = buffer_of(BYTES, 0);
    CUstream s = new_stream();
    CUgraph inner = new_graph(), whole, bottom = new_graph();
    CUDA_MEMCPY3D m = flat_copy(q, p, BYTES);
    CUgraphNode copy;
    OK(cuGraphAddMemcpyNode(&copy, inner, NULL, 0, &m, NULL));
    add_affine(inner, &copy, p, q, 2, 1, BYTES);
    CUgraphExec exec = made(inner), of_whole, of_bottom;
    OK(cuStreamBeginCapture_v2(s, GLOBAL_MODE));
    OK(cuGraphLaunch(exec, s)); /* becomes a node */
    OK(launch_affine(s, q, p, 1, 1, BYTES));
    OK(cuStreamEndCapture(s, &whole));
    CHECK(value_of(p, BYTES) == 1);
    of_whole = made(whole);
    OK(cuGraphExecDestroy(exec));
    CHECK(is_held(p, BYTES) && is_held(q, BYTES), "what the child copies is not held");
    OK(cuGraphLaunch(of_whole, s));
    OK(cuStreamSynchronize(s));
    CHECK(value_of(p, BYTES) == 3 && value_of(q, BYTES) == 4);
    /* Into a graph that is there. */
    CUgraphNode first = add_affine(bottom, NULL, p, q, 5, 0, BYTES);
    OK(cuStreamBeginCaptureToGraph(s, bottom, &first, NULL, 1, LOCAL_MODE));
    OK(launch_affine(s, q, p, 1, 2, BYTES));
    OK(cuStreamEndCapture(s, &bottom));
    of_bottom = made(bottom);
    evict(p, BYTES);
    OK(cuGraphLaunch(of_bottom, s));
    OK(cuStreamSynchronize(s));
    CHECK(value_of(p, BYTES) == 20 && value_of(q, BYTES) == 22);
    OK(cuGraphExecDestroy(of_bottom));
    OK(cuGraphExecDestroy(of_whole));
    nothing_is_held();
}

Test(capture, graphs_are_captured_and_captured_into, .timeout = 60)
{
    char *report = apart(nested);
    was_safe(report);
    free(report);
}
