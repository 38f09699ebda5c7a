/* Stream-ordered memory in captures: allocations and frees become nodes, and what graphs allocate is freed in a stream's order. */
#include "graphs.h"

#define MACHINE "h200,vram=1G"

static CUmemoryPool default_pool(void)
{
    CUmemoryPool pool;
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    return pool;
}

static CUmemoryPool new_pool(CUmemAllocationHandleType shareable_as)
{
    CUmemoryPool pool;
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .handleTypes = shareable_as,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    OK(cuMemPoolCreate(&pool, &props));
    return pool;
}

static CUgraph ended(CUstream s)
{
    CUgraph g;
    OK(cuStreamEndCapture(s, &g));
    return g;
}

static CUstream begun(void)
{
    CUstream s = stream_of(CU_STREAM_NON_BLOCKING);
    OK(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    return s;
}

static unsigned nodes_of(CUgraph g, CUgraphNodeType type)
{
    CUgraphNode nodes[32];
    CUgraphNodeType got;
    size_t count = 32;
    unsigned found = 0;
    OK(cuGraphGetNodes(g, nodes, &count));
    for (size_t i = 0; i < count; i++) {
        OK(cuGraphNodeGetType(nodes[i], &got));
        found += got == type;
    }
    return found;
}

Test(capture_memory, allocations_and_frees_become_nodes)
{
    machine_with_context(MACHINE);
    struct kernels k = load_kernels();
    CUdeviceptr out = buffer(), scratch, second;
    size_t before = free_vram();
    cuuint64_t used;
    CUstream s = begun();
    OK(cuMemAllocAsync(&scratch, BYTES, s));
    OK(cuMemsetD32Async(scratch, 5, WORDS, s));
    OK(launch_step(k.step, s, scratch, 3, 1));
    OK(cuMemAllocFromPoolAsync(&second, BYTES, default_pool(), s));
    OK(cuMemcpyDtoDAsync_v2(second, scratch, BYTES, s));
    OK(cuMemFreeAsync(scratch, s));
    OK(cuMemcpyDtoDAsync_v2(out, second, BYTES, s));
    OK(cuMemFreeAsync(second, s));
    OK(cuMemFreeAsync(0, s)); /* nothing, and no node */
    CUgraph g = ended(s);
    cr_assert_eq(nodes_of(g, CU_GRAPH_NODE_TYPE_MEM_ALLOC), 2);
    cr_assert_eq(nodes_of(g, CU_GRAPH_NODE_TYPE_MEM_FREE), 2);
    size_t count;
    OK(cuGraphGetNodes(g, NULL, &count));
    cr_assert_eq(count, 8);
    CUgraphExec exec = made(g);
    cr_assert_eq(free_vram(), before); /* not before it is launched */
    for (int i = 0; i < 3; i++) {
        OK(cuGraphLaunch(exec, s));
        OK(cuStreamSynchronize(s));
        cr_assert_eq(word_of(out), 16);
        OK(cuMemsetD32_v2(out, 0, WORDS));
    }
    OK(cuMemPoolGetAttribute(default_pool(), CU_MEMPOOL_ATTR_USED_MEM_HIGH, &used));
    cr_assert_eq(used, 0); /* it is the graph's memory, not the pool's */
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(scratch, s));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(second));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(g));
    cr_assert_eq(free_vram(), before);
}

Test(capture_memory, what_a_graph_leaves_is_freed_in_a_streams_order)
{
    machine_with_context(MACHINE);
    static struct gate gate = GATE_INIT;
    struct kernels k = load_kernels();
    CUdeviceptr out = buffer(), p;
    CUstream s = begun();
    OK(cuMemAllocAsync(&p, BYTES, s));
    OK(cuMemsetD32Async(p, 5, WORDS, s));
    CUgraph g = ended(s);
    CUgraphExec exec = made(g);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(p, s)); /* nothing has allocated it */
    for (int i = 0; i < 3; i++) {
        OK(cuLaunchHostFunc(s, gate_wait, &gate));
        OK(cuGraphLaunch(exec, s));
        GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(exec, s)); /* it would be allocated twice */
        OK(launch_step(k.step, s, p, 3, 1));
        OK(cuMemcpyDtoDAsync_v2(out, p, BYTES, s));
        OK(cuMemFreeAsync(p, s));
        GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(p, s));
        gate_open(&gate);
        cr_assert_eq(word_of(out), 16);
        OK(cuMemsetD32_v2(out, 0, WORDS));
    }
    OK(cuGraphLaunch(exec, s));
    OK(cuMemFreeAsync(p, s));
    OK(launch_step(k.step, s, p, 3, 1)); /* after the free */
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(s));
}

Test(capture_memory, another_capture_may_free_it)
{
    machine_with_context(MACHINE);
    CUdeviceptr out = buffer(), p;
    CUstream s = begun();
    OK(cuMemAllocAsync(&p, BYTES, s));
    OK(cuMemsetD32Async(p, 5, WORDS, s));
    CUgraphExec exec = made(ended(s));
    OK(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuMemcpyDtoDAsync_v2(out, p, BYTES, s));
    OK(cuMemFreeAsync(p, s));
    CUgraphExec cleaner = made(ended(s));
    for (int i = 0; i < 2; i++) {
        OK(cuGraphLaunch(exec, s));
        OK(cuGraphLaunch(cleaner, s));
        cr_assert_eq(word_of(out), 5);
        OK(cuMemsetD32_v2(out, 0, WORDS));
    }
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(cleaner, s)); /* nothing is left to free */
}

Test(capture_memory, what_cannot_be_a_node_breaks_the_capture)
{
    machine_with_context(MACHINE);
    CUdeviceptr plain = buffer(), pooled, p = 77;
    CUstream outside = stream_of(CU_STREAM_NON_BLOCKING);
    CUmemoryPool shared = new_pool(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR), mine = new_pool(CU_MEM_HANDLE_TYPE_NONE);
    CUgraph g;
    OK(cuMemAllocAsync(&pooled, BYTES, outside));
    for (int i = 0; i < 4; i++) {
        CUstream s = begun();
        if (i == 0)
            GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(plain, s));
        else if (i == 1)
            GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(pooled, s));
        else if (i == 2)
            GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAllocFromPoolAsync(&p, BYTES, shared, s)); /* no graph shares it */
        else {
            OK(cuMemAllocAsync(&p, BYTES, s));
            OK(cuMemFreeAsync(p, s));
            GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(p, s));
        }
        GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuMemAllocAsync(&p, BYTES, s));
        GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(s, &g));
    }
    cr_assert(p);
    CUstream s = begun();
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAllocAsync(&p, 0, s)); /* no call at all */
    OK(cuMemAllocFromPoolAsync(&p, BYTES, mine, s));
    OK(cuMemFreeAsync(p, s));
    OK(cuMemPoolDestroy(mine)); /* the graph has taken what it needs of it */
    OK(cuGraphLaunch(made(ended(s)), s));
    OK(cuMemFreeAsync(pooled, outside));
    OK(cuCtxSynchronize());
}

Test(capture_memory, devices_see_it_as_the_pool_said_at_the_capture)
{
    machine_with_context("h200,vram=1G,gpus=2");
    CUmemoryPool pool = new_pool(CU_MEM_HANDLE_TYPE_NONE);
    CUmemAccessDesc access = access_of(1);
    CUdeviceptr p;
    CUcontext other;
    uint32_t value = 0;
    OK(cuMemPoolSetAccess(pool, &access, 1));
    CUstream s = begun();
    OK(cuMemAllocFromPoolAsync(&p, BYTES, pool, s));
    OK(cuMemsetD32Async(p, 1, WORDS, s));
    CUgraph g = ended(s);
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    OK(cuMemPoolSetAccess(pool, &access, 1));
    OK(cuGraphLaunch(made(g), s));
    OK(cuStreamSynchronize(s));
    OK(cuCtxCreate_v2(&other, 0, 1));
    struct kernels k = load_kernels();
    OK(launch_step(k.step, NULL, p, 3, 1));
    OK(cuCtxSynchronize());
    OK(cuMemcpyDtoH_v2(&value, p + 64, 4));
    cr_assert_eq(value, 4);
}

/* The order that launches have is known to pools: memory freed before one can be given out behind another. */
Test(capture_memory, launches_order_what_pools_reuse)
{
    machine_with_context(MACHINE);
    static struct gate gate = GATE_INIT;
    struct kernels k = load_kernels();
    CUmemoryPool pool = default_pool();
    CUstream a = stream_of(CU_STREAM_NON_BLOCKING), b = stream_of(CU_STREAM_NON_BLOCKING),
             c = stream_of(CU_STREAM_NON_BLOCKING);
    CUdeviceptr x = buffer(), p, q, r;
    CUgraph g;
    CUgraphNode record;
    CUevent event = plain_event();
    int off = 0;
    cuuint64_t keep = UINT64_MAX;
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, &off));
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, &off));
    OK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
    OK(cuGraphCreate(&g, 0));
    CUgraphNode step = add_step(g, NULL, 0, k.step, x, 3, 1);
    OK(cuGraphAddEventRecordNode(&record, g, &step, 1, event));
    CUgraphExec exec = made(g);
    OK(cuLaunchHostFunc(a, gate_wait, &gate));
    OK(cuMemAllocAsync(&p, 4 * MIB, a));
    OK(cuMemFreeAsync(p, a));
    OK(cuMemAllocAsync(&q, 4 * MIB, b));
    cr_assert_neq(q, p); /* nothing orders the streams */
    OK(cuGraphLaunch(exec, a));
    OK(cuGraphLaunch(exec, b)); /* after the launch before it */
    OK(cuMemAllocAsync(&r, 4 * MIB, b));
    cr_assert_eq(r, p);
    OK(cuMemFreeAsync(r, b));
    OK(cuGraphLaunch(exec, b));
    OK(cuStreamWaitEvent(c, event, 0)); /* which the graph has recorded */
    OK(cuMemAllocAsync(&r, 4 * MIB, c));
    cr_assert_eq(r, p);
    gate_open(&gate);
    OK(cuMemFreeAsync(q, b));
    OK(cuMemFreeAsync(r, c));
    OK(cuCtxSynchronize());
    cr_assert_eq(word_of(x), ((3 + 1) * 3 + 1) * 3 + 1);
}
