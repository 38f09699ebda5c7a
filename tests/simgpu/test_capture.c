/* Captures: what becomes of calls on a capturing stream, and what breaks a capture. */
#include "graphs.h"

#define MACHINE "h200,vram=256M"
#define GLOBAL CU_STREAM_CAPTURE_MODE_GLOBAL
#define LOCAL CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
#define RELAXED CU_STREAM_CAPTURE_MODE_RELAXED

static CUstreamCaptureStatus status_of(CUstream s)
{
    CUstreamCaptureStatus status;
    OK(cuStreamIsCapturing(s, &status));
    return status;
}

static CUresult ended(CUstream s)
{
    CUgraph g = (CUgraph)1;
    CUresult r = cuStreamEndCapture(s, &g);
    cr_assert_eq(!g, r != CUDA_SUCCESS);
    cr_assert_eq(status_of(s), CU_STREAM_CAPTURE_STATUS_NONE);
    if (!r)
        OK(cuGraphDestroy(g));
    return r;
}

static void count_up(void *arg)
{
    ++*(uint32_t *)arg;
}

Test(capture, a_stream_of_everything_becomes_a_graph_with_the_same_results)
{
    machine_with_context(MACHINE);
    static uint32_t calls;
    struct kernels k = load_kernels();
    CUdeviceptr a = buffer(), b = buffer(), c = buffer(), d = buffer();
    CUstream s = stream_of(CU_STREAM_NON_BLOCKING);
    CUgraph g;
    size_t count;
    for (int captured = 0; captured < 2; captured++) {
        CUdeviceptr x = captured ? a : c, y = captured ? b : d;
        if (captured)
            OK(cuStreamBeginCapture_v2(s, GLOBAL));
        OK(cuMemsetD32Async(x, 6, WORDS, s));
        OK(launch_step(k.step, s, x, 3, 1));
        OK(cuMemcpyDtoDAsync_v2(y, x, BYTES, s));
        OK(cuMemsetD2D8Async(y, 256, 7, 16, 2, s));
        OK(launch_step(k.step, s, y, 5, 2));
        OK(cuMemcpyAsync(x, y, BYTES, s));
        OK(cuLaunchHostFunc(s, count_up, &calls));
        OK(cuStreamWriteValue32_v2(s, x, 99, 0));
    }
    OK(cuStreamEndCapture(s, &g));
    OK(cuGraphGetNodes(g, NULL, &count));
    cr_assert_eq(count, 8);
    OK(cuGraphGetEdges(g, NULL, NULL, &count));
    cr_assert_eq(count, 7);
    OK(cuStreamSynchronize(s));
    cr_assert_eq(calls, 1);
    cr_assert_eq(word_of(a), 1); /* nothing has been done */
    CUgraphExec exec = made(g);
    OK(cuGraphLaunch(exec, s));
    OK(cuGraphLaunch(exec, s));
    OK(cuStreamSynchronize(s));
    cr_assert_eq(calls, 3);
    static uint8_t first[BYTES], second[BYTES];
    OK(cuMemcpyDtoH_v2(first, a, BYTES));
    OK(cuMemcpyDtoH_v2(second, c, BYTES));
    cr_assert(!memcmp(first, second, BYTES));
    OK(cuMemcpyDtoH_v2(first, b, BYTES));
    OK(cuMemcpyDtoH_v2(second, d, BYTES));
    cr_assert(!memcmp(first, second, BYTES));
}

Test(capture, forks_and_joins_follow_the_events)
{
    machine_with_context(MACHINE);
    struct kernels k = load_kernels();
    CUdeviceptr p = buffer(), q = buffer();
    CUstream s = stream_of(CU_STREAM_NON_BLOCKING), t = stream_of(CU_STREAM_NON_BLOCKING);
    CUevent fork = plain_event(), join = plain_event();
    CUgraph g;
    CUgraphNode roots[4], from[8], to[8];
    size_t count = 4;
    OK(cuStreamBeginCapture_v2(s, LOCAL));
    OK(launch_step(k.step, s, p, 2, 1));
    OK(cuEventRecord(fork, s));
    cr_assert_eq(status_of(t), CU_STREAM_CAPTURE_STATUS_NONE);
    OK(cuStreamWaitEvent(t, fork, 0));
    cr_assert_eq(status_of(t), CU_STREAM_CAPTURE_STATUS_ACTIVE);
    OK(launch_step(k.step, t, q, 5, 1));
    OK(launch_step(k.step, s, p, 3, 1));
    OK(cuEventRecord(join, t));
    OK(cuStreamWaitEvent(s, join, 0));
    OK(cuMemcpyAsync(p, q, 64, s));
    OK(cuStreamEndCapture(s, &g));
    cr_assert_eq(status_of(t), CU_STREAM_CAPTURE_STATUS_NONE);
    OK(cuGraphGetRootNodes(g, roots, &count));
    cr_assert_eq(count, 1);
    count = 8;
    OK(cuGraphGetEdges(g, from, to, &count));
    cr_assert_eq(count, 4);
    OK(cuGraphLaunch(made(g), t));
    OK(cuStreamSynchronize(t));
    uint32_t words[32];
    OK(cuMemcpyDtoH_v2(words, p, sizeof words));
    cr_assert(words[0] == 6 && words[15] == 6 && words[16] == 10 && words[31] == 10);
    GIVES(CUDA_ERROR_CAPTURED_EVENT, cuStreamWaitEvent(s, fork, 0)); /* it stands for nothing outside */
    GIVES(CUDA_ERROR_CAPTURED_EVENT, cuEventQuery(fork));
    OK(cuEventRecord(fork, s));
    OK(cuEventSynchronize(fork));
}

Test(capture, what_does_not_fit_has_its_own_error)
{
    machine_with_context(MACHINE);
    struct kernels k = load_kernels();
    CUdeviceptr p = buffer();
    CUstream s = stream_of(CU_STREAM_NON_BLOCKING), t = stream_of(CU_STREAM_NON_BLOCKING);
    CUevent e = plain_event(), outside = plain_event();
    CUgraph g;
    GIVES(CUDA_ERROR_ILLEGAL_STATE, cuStreamEndCapture(s, &g));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamBeginCapture_v2(CU_STREAM_LEGACY, RELAXED));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamBeginCapture_v2(s, (CUstreamCaptureMode)3));
    OK(cuEventRecord(outside, t));
    /* a fork that is not joined */
    OK(cuStreamBeginCapture_v2(s, RELAXED));
    GIVES(CUDA_ERROR_ILLEGAL_STATE, cuStreamBeginCapture_v2(s, RELAXED));
    OK(cuEventRecord(e, s));
    OK(cuStreamWaitEvent(t, e, 0));
    OK(launch_step(k.step, t, p, 1, 1));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, cuStreamEndCapture(s, &g));
    cr_assert(!g && status_of(s) == CU_STREAM_CAPTURE_STATUS_NONE && status_of(t) == CU_STREAM_CAPTURE_STATUS_NONE);
    /* ended on another stream than it began on */
    OK(cuStreamBeginCapture_v2(s, RELAXED));
    OK(cuEventRecord(e, s));
    OK(cuStreamWaitEvent(t, e, 0));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, cuStreamEndCapture(t, &g));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, ended(s));
    /* work from outside */
    OK(cuStreamBeginCapture_v2(s, RELAXED));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, cuStreamWaitEvent(s, outside, 0));
    cr_assert_eq(status_of(s), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, launch_step(k.step, s, p, 1, 1));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, ended(s));
    /* two captures that would become one */
    OK(cuStreamBeginCapture_v2(s, RELAXED));
    OK(cuStreamBeginCapture_v2(t, RELAXED));
    OK(cuEventRecord(e, s));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_MERGE, cuStreamWaitEvent(t, e, 0));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, ended(s));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, ended(t));
    /* an event that nobody has recorded, and one that stays outside */
    OK(cuStreamBeginCapture_v2(s, RELAXED));
    OK(cuStreamWaitEvent(s, plain_event(), 0));
    OK(cuStreamWaitEvent(s, outside, CU_EVENT_WAIT_EXTERNAL));
    OK(cuEventRecordWithFlags(outside, s, CU_EVENT_RECORD_EXTERNAL));
    OK(ended(s));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuEventRecordWithFlags(outside, s, CU_EVENT_RECORD_EXTERNAL));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamWaitEvent(s, outside, CU_EVENT_WAIT_EXTERNAL));
    OK(cuEventSynchronize(outside));
}

Test(capture, questions_about_captured_work_break_it)
{
    machine_with_context(MACHINE);
    CUstream s = stream_of(CU_STREAM_NON_BLOCKING);
    CUevent e = plain_event();
    CUstreamCaptureMode mode = RELAXED; /* no mode allows these */
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    cr_assert_eq(mode, GLOBAL);
    for (int i = 0; i < 7; i++) {
        OK(cuStreamBeginCapture_v2(s, RELAXED));
        OK(cuEventRecord(e, s));
        switch (i) {
        case 0: GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamSynchronize(s)); break;
        case 1: GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamQuery(s)); break;
        case 2: GIVES(CUDA_ERROR_CAPTURED_EVENT, cuEventQuery(e)); break;
        case 3: GIVES(CUDA_ERROR_CAPTURED_EVENT, cuEventSynchronize(e)); break;
        case 4: GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuCtxSynchronize()); break;
        case 5:
            GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
                  cuStreamAddCallback(s, (CUstreamCallback)(uintptr_t)count_up, NULL, 0));
            break;
        default: {
            float ms;
            GIVES(CUDA_ERROR_CAPTURED_EVENT, cuEventElapsedTime(&ms, e, e));
        }
        }
        cr_assert_eq(status_of(s), CU_STREAM_CAPTURE_STATUS_INVALIDATED, "%d", i);
        GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, ended(s));
    }
    OK(cuCtxSynchronize());
}

Test(capture, the_legacy_stream_is_unusable_beside_a_blocking_one)
{
    machine_with_context(MACHINE);
    struct kernels k = load_kernels();
    CUdeviceptr p = buffer();
    CUstream blocking = stream_of(0), free_one = stream_of(CU_STREAM_NON_BLOCKING);
    CUstreamCaptureStatus status;
    cuuint64_t id;
    OK(cuStreamBeginCapture_v2(blocking, RELAXED));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuStreamIsCapturing(NULL, &status));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuStreamGetCaptureInfo(NULL, &status, &id));
    cr_assert_eq(status_of(blocking), CU_STREAM_CAPTURE_STATUS_ACTIVE); /* asking is allowed */
    GIVES(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, launch_step(k.step, NULL, p, 1, 1));
    cr_assert_eq(status_of(blocking), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
    GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, ended(blocking));
    CUstreamCaptureMode mode = RELAXED;
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    OK(cuStreamBeginCapture_v2(blocking, RELAXED));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuMemcpyDtoD_v2(p, p + 64, 64));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, ended(blocking));
    OK(cuStreamBeginCapture_v2(free_one, RELAXED));
    OK(launch_step(k.step, NULL, p, 1, 1));
    OK(cuMemcpyDtoD_v2(p, p + 64, 64));
    OK(ended(free_one));
}

Test(capture, unsafe_calls_depend_on_both_modes)
{
    machine_with_context(MACHINE);
    CUstream s = stream_of(CU_STREAM_NON_BLOCKING);
    static const CUstreamCaptureMode modes[] = {GLOBAL, LOCAL, RELAXED};
    for (int capture = 0; capture < 3; capture++) {
        for (int thread = 0; thread < 3; thread++) {
            CUstreamCaptureMode mode = modes[thread];
            bool allowed = modes[thread] == RELAXED || modes[capture] == RELAXED;
            CUdeviceptr p = 0;
            OK(cuThreadExchangeStreamCaptureMode(&mode));
            OK(cuStreamBeginCapture_v2(s, modes[capture]));
            CUresult r = cuMemAlloc_v2(&p, 4096);
            cr_assert_eq(r, allowed ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "%d %d", capture, thread);
            cr_assert_eq(status_of(s),
                         allowed ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_INVALIDATED);
            GIVES(allowed ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, ended(s));
            if (!r)
                OK(cuMemFree_v2(p));
        }
    }
}

struct other {
    CUcontext context;
    CUstreamCaptureMode mode;
    CUresult answer;
};

static void *call_unsafely(void *arg)
{
    struct other *o = arg;
    CUdeviceptr va;
    cuCtxSetCurrent(o->context);
    cuThreadExchangeStreamCaptureMode(&o->mode);
    o->answer = cuMemAlloc_v2(&va, 4096);
    return NULL;
}

static CUresult from_another_thread(CUcontext context, CUstreamCaptureMode mode)
{
    pthread_t t;
    struct other o = {context, mode, CUDA_SUCCESS};
    cr_assert_eq(pthread_create(&t, NULL, call_unsafely, &o), 0);
    pthread_join(t, NULL);
    return o.answer;
}

Test(capture, a_global_one_is_broken_by_any_thread_that_is_not_relaxed)
{
    CUcontext context = machine_with_context(MACHINE);
    CUstream s = stream_of(CU_STREAM_NON_BLOCKING);
    OK(cuStreamBeginCapture_v2(s, GLOBAL));
    OK(from_another_thread(context, RELAXED));
    OK(from_another_thread(context, LOCAL));
    OK(ended(s));
    OK(cuStreamBeginCapture_v2(s, GLOBAL));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, from_another_thread(context, GLOBAL));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, ended(s));
    OK(cuStreamBeginCapture_v2(s, LOCAL));
    OK(from_another_thread(context, GLOBAL));
    OK(ended(s));
}

Test(capture, memory_calls_are_unsafe)
{
    machine_with_context(MACHINE);
    CUdeviceptr p = buffer(), va = mapped_chunks(1), out;
    CUmemAccessDesc access = access_of(0);
    CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle handle;
    CUstream s = stream_of(CU_STREAM_NON_BLOCKING);
    uint32_t word = 0;
    void *host;
    for (int i = 0; i < 9; i++) {
        CUresult r;
        OK(cuStreamBeginCapture_v2(s, GLOBAL));
        switch (i) {
        case 0: r = cuMemFree_v2(p); break;
        case 1: r = cuMemMap(va, PAGE, 0, 1, 0); break;
        case 2: r = cuMemUnmap(va, PAGE); break;
        case 3: r = cuMemSetAccess(va, PAGE, &access, 1); break;
        case 4: r = cuMemCreate(&handle, PAGE, &prop, 0); break;
        case 5: r = cuMemHostAlloc(&host, 4096, 0); break;
        case 6: r = cuMemHostRegister_v2(&word, sizeof word, 0); break;
        case 7: r = cuMemcpyHtoD_v2(p, &word, sizeof word); break;
        default: r = cuMemAllocPitch_v2(&out, &(size_t){0}, 16, 16, 4); break;
        }
        cr_assert_eq(r, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "call %d gave %d", i, (int)r);
        GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, ended(s));
    }
    OK(cuMemsetD32_v2(p, 1, WORDS)); /* nothing happened to it */
    OK(cuMemsetD32_v2(va, 1, WORDS));
}

static CUstream shared;
static void *end_it(void *arg)
{
    CUgraph g;
    cuCtxSetCurrent(arg);
    return (void *)(intptr_t)cuStreamEndCapture(shared, &g);
}

Test(capture, ends_in_the_thread_that_began_it_unless_relaxed)
{
    CUcontext context = machine_with_context(MACHINE);
    pthread_t t;
    void *answer;
    shared = stream_of(CU_STREAM_NON_BLOCKING);
    for (int i = 0; i < 3; i++) {
        static const CUstreamCaptureMode modes[] = {GLOBAL, LOCAL, RELAXED};
        OK(cuStreamBeginCapture_v2(shared, modes[i]));
        cr_assert_eq(pthread_create(&t, NULL, end_it, context), 0);
        pthread_join(t, &answer);
        cr_assert_eq((CUresult)(intptr_t)answer, i < 2 ? CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD : CUDA_SUCCESS);
        if (i < 2)
            OK(ended(shared));
    }
}

Test(capture, what_comes_next_can_be_asked_and_changed)
{
    machine_with_context(MACHINE);
    struct kernels k = load_kernels();
    CUdeviceptr p = buffer();
    CUstream s = stream_of(CU_STREAM_NON_BLOCKING);
    CUstreamCaptureStatus status;
    cuuint64_t id = 0, later;
    CUgraph g, same;
    CUgraphNode mine, other;
    const CUgraphNode *next;
    const CUgraphEdgeData *edges;
    size_t count = 9;
    GIVES(CUDA_ERROR_ILLEGAL_STATE, cuStreamUpdateCaptureDependencies(s, NULL, 0, 0));
    OK(cuStreamGetCaptureInfo_v2(s, &status, &id, NULL, NULL, NULL));
    cr_assert(status == CU_STREAM_CAPTURE_STATUS_NONE && !id);
    OK(cuStreamBeginCapture_v2(s, LOCAL));
    OK(cuStreamGetCaptureInfo_v2(s, &status, &id, &g, &next, &count));
    cr_assert(status == CU_STREAM_CAPTURE_STATUS_ACTIVE && id && g && !count);
    OK(launch_step(k.step, s, p, 2, 0));
    OK(cuStreamGetCaptureInfo_v3(s, &status, &later, &same, &next, &edges, &count));
    cr_assert(later == id && same == g && count == 1 && !edges[0].type);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamGetCaptureInfo_v3(s, &status, &id, &g, NULL, &edges, &count));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamGetCaptureInfo(s, NULL, &id));
    CUgraphNode first = next[0];
    mine = add_step(g, &first, 1, k.step, p, 1, 7);
    OK(cuStreamUpdateCaptureDependencies(s, &mine, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
    OK(launch_step(k.step, s, p, 3, 0));
    OK(cuGraphAddEmptyNode(&other, g, NULL, 0));
    OK(cuStreamUpdateCaptureDependencies_v2(s, &other, NULL, 1, CU_STREAM_ADD_CAPTURE_DEPENDENCIES));
    OK(cuStreamGetCaptureInfo_v2(s, &status, NULL, NULL, &next, &count));
    cr_assert(count == 2 && next[1] == other);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamUpdateCaptureDependencies(s, &other, 1, 2));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(g));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiateWithFlags(&(CUgraphExec){NULL}, g, 0));
    OK(cuStreamEndCapture(s, &same));
    cr_assert_eq(same, g);
    OK(cuGraphLaunch(made(g), s));
    cr_assert_eq(word_of(p), (1 * 2 + 7) * 3);
    OK(cuStreamBeginCapture_v2(s, LOCAL));
    OK(cuStreamGetCaptureInfo(s, &status, &later));
    cr_assert_neq(later, id);
    OK(ended(s));
}

Test(capture, goes_on_in_a_graph_that_is_there)
{
    machine_with_context(MACHINE);
    struct kernels k = load_kernels();
    CUdeviceptr p = buffer();
    CUstream s = stream_of(0);
    CUgraph g, same;
    size_t count;
    OK(cuGraphCreate(&g, 0));
    CUgraphNode first = add_step(g, NULL, 0, k.step, p, 2, 5);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamBeginCaptureToGraph(s, NULL, NULL, NULL, 0, LOCAL));
    OK(cuStreamBeginCaptureToGraph(s, g, &first, NULL, 1, LOCAL));
    OK(launch_step(k.step, s, p, 3, 1));
    OK(cuStreamEndCapture(s, &same));
    cr_assert_eq(same, g);
    OK(cuStreamBeginCaptureToGraph(s, g, NULL, NULL, 0, GLOBAL));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuMemFree_v2(p));
    GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, ended(s));
    OK(cuGraphGetNodes(g, NULL, &count)); /* it is the job's, and stays */
    cr_assert_eq(count, 2);
    OK(cuGraphLaunch(made(g), s));
    cr_assert_eq(word_of(p), 22);
}

Test(capture, takes_graphs_batches_and_programmatic_launches)
{
    machine_with_context(MACHINE);
    struct kernels k = load_kernels();
    CUdeviceptr p = buffer(), q = buffer();
    CUstream s = stream_of(CU_STREAM_NON_BLOCKING);
    CUgraph inner, g;
    CUgraphNode from[8], to[8];
    CUgraphEdgeData data[8];
    size_t count = 8, sizes = BYTES, zero = 0;
    OK(cuGraphCreate(&inner, 0));
    add_step(inner, NULL, 0, k.step, p, 2, 1);
    CUgraphExec exec = made(inner);
    OK(cuStreamBeginCapture_v2(s, LOCAL));
    OK(cuGraphLaunch(exec, s));
    struct step step = {p, 3, 1, WORDS, {0}};
    CUDA_KERNEL_NODE_PARAMS kp = step_params(k.step, &step);
    CUlaunchAttribute early = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                               .value = {.programmaticStreamSerializationAllowed = 1}};
    CUlaunchConfig config = {kp.gridDimX, 1, 1, 128, 1, 1, 0, s, &early, 1};
    OK(launch_step(k.step, s, p, 5, 1));
    OK(cuLaunchKernelEx(&config, k.step, step.pointers, NULL));
    CUmemcpyAttributes attributes = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
    OK(cuMemcpyBatchAsync_v2(&q, &p, &sizes, 1, &attributes, &zero, 1, s));
    OK(cuStreamEndCapture(s, &g));
    OK(cuGraphGetEdges_v2(g, from, to, data, &count));
    cr_assert_eq(count, 3);
    cr_assert(data[0].type == 0 && data[1].type == CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC && data[1].from_port == 1);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphLaunch(made(g), s));
    cr_assert_eq(word_of(q), ((1 * 2 + 1) * 5 + 1) * 3 + 1);
}

Test(capture, of_a_stream_that_is_destroyed_is_over)
{
    machine_with_context(MACHINE);
    struct kernels k = load_kernels();
    CUdeviceptr p = buffer(), more;
    CUstream s = stream_of(CU_STREAM_NON_BLOCKING), t = stream_of(CU_STREAM_NON_BLOCKING);
    CUevent e = plain_event();
    OK(cuStreamBeginCapture_v2(s, GLOBAL));
    OK(launch_step(k.step, s, p, 5, 1));
    OK(cuStreamDestroy_v2(s));
    OK(cuMemAlloc_v2(&more, 64)); /* nothing is captured any more */
    s = stream_of(CU_STREAM_NON_BLOCKING);
    OK(cuStreamBeginCapture_v2(s, GLOBAL));
    OK(cuEventRecord(e, s));
    OK(cuStreamWaitEvent(t, e, 0));
    OK(launch_step(k.step, t, p, 5, 1));
    OK(cuStreamDestroy_v2(t)); /* what it captured was never joined */
    GIVES(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, ended(s));
}

struct capturer {
    CUcontext context;
    CUfunction step;
    CUdeviceptr p;
    intptr_t failed;
};

static void *capture_many(void *arg)
{
    struct capturer *c = arg;
    CUstream s;
    CUgraph g;
    CUgraphExec exec;
    intptr_t r = cuCtxSetCurrent(c->context);
    r = r ? r : cuStreamCreate(&s, CU_STREAM_NON_BLOCKING);
    for (int i = 0; i < 25 && !r; i++) {
        r = cuStreamBeginCapture_v2(s, LOCAL);
        for (int n = 0; n < 4 && !r; n++)
            r = launch_step(c->step, s, c->p, 1, 1);
        r = r ? r : cuStreamEndCapture(s, &g);
        r = r ? r : cuGraphInstantiateWithFlags(&exec, g, 0);
        r = r ? r : cuGraphLaunch(exec, s);
        r = r ? r : cuGraphExecDestroy(exec);
        r = r ? r : cuGraphDestroy(g);
    }
    r = r ? r : cuStreamSynchronize(s);
    c->failed = r;
    return NULL;
}

Test(capture, threads_capture_and_launch_side_by_side)
{
    CUcontext context = machine_with_context(MACHINE);
    struct kernels k = load_kernels();
    struct capturer all[4];
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) /* these wait for the context, which no capture bears */
        all[i] = (struct capturer){context, k.step, buffer(), 0};
    for (int i = 0; i < 4; i++) {
        cr_assert_eq(pthread_create(&threads[i], NULL, capture_many, &all[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        cr_assert_eq(all[i].failed, 0);
    }
    for (int i = 0; i < 4; i++)
        cr_assert_eq(word_of(all[i].p), 101);
}
