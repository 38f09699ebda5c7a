#include "contract.h"

#include <pthread.h>

/* y = x + 1 in a graph; `x` is device memory of its own. */
struct adder {
    CUstream stream;
    CUdeviceptr x;
    CUgraphExec exec;
    uint32_t a, n;
};

static CUresult adder_capture(struct adder *g, CUdeviceptr y)
{
    CUgraph graph;
    g->a = 1;
    g->n = (uint32_t)(here.chunk_bytes / 4);
    void *params[] = {&y, &g->x, &g->a, &g->n};
    TRY(drv.cuStreamCreate(&g->stream, CU_STREAM_NON_BLOCKING));
    TRY(drv.cuMemAlloc_v2(&g->x, here.chunk_bytes));
    TRY(drv.cuStreamBeginCapture_v2(g->stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    TRY(drv.cuLaunchKernel(gpu_kernel("add"), 16, 1, 1, 256, 1, 1, 0, g->stream, params, NULL));
    TRY(drv.cuStreamEndCapture(g->stream, &graph));
    TRY(drv.cuGraphInstantiateWithFlags(&g->exec, graph, 0));
    return drv.cuGraphDestroy(graph);
}

static CUresult adder_run(struct adder *g, uint32_t first)
{
    TRY(gpu_fill(g->x, here.chunk_bytes, first));
    TRY(drv.cuGraphLaunch(g->exec, g->stream));
    return drv.cuStreamSynchronize(g->stream);
}

static CUresult adder_finish(struct adder *g)
{
    TRY(drv.cuGraphExecDestroy(g->exec));
    TRY(drv.cuMemFree_v2(g->x));
    return drv.cuStreamDestroy_v2(g->stream);
}

static void graph_moves(enum vm_where second)
{
    struct vm vm;
    struct adder g;
    CUmemGenericAllocationHandle handle[2];
    NEED(cuGraphInstantiateWithFlags);
    MUST(vm_reserve(&vm, 1));
    MUST(vm_create(VM_DEVICE, &handle[0]));
    MUST(vm_create(second, &handle[1]));
    MUST(vm_map(&vm, 0, handle[0]));
    MUST(vm_access(&vm, 0, 1));
    MUST(adder_capture(&g, vm.base));
    for (uint32_t round = 0; round < 4; round++) {
        if (round) {
            MUST(vm_unmap(&vm, 0, 1));
            MUST(vm_map(&vm, 0, handle[round % 2]));
            MUST(vm_access(&vm, 0, 1));
        }
        CUresult r = adder_run(&g, round * 10);
        EXPECT(r == CUDA_SUCCESS, "launch %u: %s", round, gpu_error(r));
        long at = gpu_compare(vm.base, here.chunk_bytes, round * 10 + 1);
        EXPECT(at == -1, "launch %u: word %ld is wrong", round, at);
    }
    MUST(adder_finish(&g));
    MUST(vm_finish(&vm));
    GPU_OK("three remaps between launches");
}

void contract_graph_kernel(void)
{
    graph_moves(VM_DEVICE);
}

void contract_graph_host(void)
{
    NEED_HOST();
    graph_moves(VM_HOST);
}

void contract_capture_forbids(void)
{
    CUstream stream;
    CUgraph graph = NULL;
    CUdeviceptr p = 0;
    MUST(drv.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(drv.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CUresult alloc = drv.cuMemAlloc_v2(&p, 4096);
    CUresult end = drv.cuStreamEndCapture(stream, &graph);
    if (p)
        drv.cuMemFree_v2(p);
    if (graph)
        drv.cuGraphDestroy(graph);
    MUST(drv.cuStreamDestroy_v2(stream));
    EXPECT(alloc == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && end == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
           "cuMemAlloc: %s; the capture's end: %s", gpu_error(alloc), gpu_error(end));
    GPU_OK("cuMemAlloc is CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED and breaks it");
}

/* What headroom does inside a job's call; in the relaxed mode it must not be seen. */
struct inside {
    CUevent event;
    CUstream aside;
    const char *where; /* what failed */
    CUresult result;
};

static void inside_calls(struct inside *in)
{
    struct vm vm;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
#define STEP(call)                                                                                                     \
    do {                                                                                                               \
        CUresult step_ = (call);                                                                                       \
        if (step_ != CUDA_SUCCESS) {                                                                                   \
            in->where = #call;                                                                                         \
            in->result = step_;                                                                                        \
            return;                                                                                                    \
        }                                                                                                              \
    } while (0)
    STEP(drv.cuThreadExchangeStreamCaptureMode(&mode));
    STEP(vm_reserve(&vm, 2));
    STEP(vm_back(&vm, 0, 2, VM_DEVICE));
    STEP(drv.cuMemsetD32Async(vm.base, 1, here.chunk_bytes / 4, in->aside));
    STEP(drv.cuMemcpyDtoDAsync_v2(vm_at(&vm, 1), vm.base, here.chunk_bytes, in->aside));
    STEP(drv.cuEventRecord(in->event, in->aside));
    STEP(drv.cuEventSynchronize(in->event));
    STEP(drv.cuStreamQuery(in->aside));
    STEP(drv.cuEventQuery(in->event));
    STEP(vm_finish(&vm));
    STEP(drv.cuThreadExchangeStreamCaptureMode(&mode));
#undef STEP
}

static void *inside_thread(void *data)
{
    struct inside *in = data;
    CUresult r = drv.cuCtxSetCurrent(here.context);
    if (r == CUDA_SUCCESS) {
        inside_calls(in);
    } else {
        in->where = "cuCtxSetCurrent";
        in->result = r;
    }
    return NULL;
}

static void capture_with_inside(bool other_thread)
{
    struct inside in = {0};
    CUstream stream;
    CUgraph graph;
    CUdeviceptr p;
    uint32_t first = 3, n = 1024, word = 0;
    CUgraphExec exec;
    pthread_t thread;
    MUST(drv.cuMemAlloc_v2(&p, 4096));
    MUST(drv.cuEventCreate(&in.event, CU_EVENT_DISABLE_TIMING));
    MUST(drv.cuStreamCreate(&in.aside, CU_STREAM_NON_BLOCKING));
    MUST(drv.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(drv.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    if (!other_thread)
        inside_calls(&in);
    else if (pthread_create(&thread, NULL, inside_thread, &in) == 0)
        pthread_join(thread, NULL);
    void *params[] = {&p, &first, &n};
    CUresult launch = drv.cuLaunchKernel(gpu_kernel("fill"), 1, 1, 1, 256, 1, 1, 0, stream, params, NULL);
    CUresult end = drv.cuStreamEndCapture(stream, &graph);
    EXPECT(in.result == CUDA_SUCCESS, "%s: %s", in.where, gpu_error(in.result));
    EXPECT(launch == CUDA_SUCCESS && end == CUDA_SUCCESS, "afterwards a launch: %s, the capture's end: %s",
           gpu_error(launch), gpu_error(end));
    MUST(drv.cuGraphInstantiateWithFlags(&exec, graph, 0));
    MUST(drv.cuGraphLaunch(exec, stream));
    MUST(drv.cuStreamSynchronize(stream));
    MUST(drv.cuMemcpyDtoH_v2(&word, p + 4, 4));
    EXPECT(word == 4, "the graph wrote %u", word);
    MUST(drv.cuGraphExecDestroy(exec));
    MUST(drv.cuGraphDestroy(graph));
    MUST(drv.cuStreamDestroy_v2(stream));
    MUST(drv.cuStreamDestroy_v2(in.aside));
    MUST(drv.cuEventDestroy_v2(in.event));
    MUST(drv.cuMemFree_v2(p));
    GPU_OK("reserve, create, map, access, copies and waits on another stream, unmap, free");
}

void contract_capture_relaxed(void)
{
    capture_with_inside(false);
}

void contract_capture_other_thread(void)
{
    capture_with_inside(true);
}

void contract_capture_aside(void)
{
    CUstream stream, aside;
    CUgraph graph;
    CUdeviceptr p;
    uint32_t first = 8, n = 1024;
    void *params[] = {&p, &first, &n};
    MUST(drv.cuMemAlloc_v2(&p, 4096));
    MUST(drv.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(drv.cuStreamCreate(&aside, CU_STREAM_NON_BLOCKING));
    MUST(drv.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    CUresult launch = drv.cuLaunchKernel(gpu_kernel("fill"), 1, 1, 1, 256, 1, 1, 0, aside, params, NULL);
    CUresult end = drv.cuStreamEndCapture(stream, &graph);
    EXPECT(launch == CUDA_SUCCESS && end == CUDA_SUCCESS, "the launch: %s, the capture's end: %s", gpu_error(launch),
           gpu_error(end));
    MUST(drv.cuStreamSynchronize(aside));
    long at = gpu_compare(p, 4096, 8);
    EXPECT(at == -1, "word %ld is wrong", at);
    MUST(drv.cuGraphDestroy(graph));
    MUST(drv.cuStreamDestroy_v2(stream));
    MUST(drv.cuStreamDestroy_v2(aside));
    MUST(drv.cuMemFree_v2(p));
    GPU_OK("and did their work");
}
