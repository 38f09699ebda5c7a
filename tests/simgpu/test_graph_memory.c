/* Memory that graphs allocate and free, and what of it is seen outside. */
#include "graphs.h"

#define MACHINE "h200,vram=1G"

static CUDA_MEM_ALLOC_NODE_PARAMS alloc_params(size_t bytes)
{
    return (CUDA_MEM_ALLOC_NODE_PARAMS){.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                                      .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}},
                                        .bytesize = bytes};
}

static CUgraphNode add_alloc(CUgraph g, const CUgraphNode *after, size_t bytes, CUdeviceptr *va)
{
    CUgraphNode node;
    CUDA_MEM_ALLOC_NODE_PARAMS p = alloc_params(bytes);
    OK(cuGraphAddMemAllocNode(&node, g, after, after ? 1 : 0, &p));
    *va = p.dptr;
    return node;
}

static CUgraphNode add_fill(CUgraph g, const CUgraphNode *after, CUdeviceptr p, uint32_t value)
{
    CUgraphNode node;
    CUDA_MEMSET_NODE_PARAMS f = {.dst = p, .value = value, .elementSize = 4, .width = WORDS, .height = 1};
    OK(cuGraphAddMemsetNode(&node, g, after, after ? 1 : 0, &f, NULL));
    return node;
}

static CUgraphNode add_free(CUgraph g, const CUgraphNode *after, CUdeviceptr p)
{
    CUgraphNode node;
    OK(cuGraphAddMemFreeNode(&node, g, after, after ? 1 : 0, p));
    return node;
}

static uint64_t attribute(CUgraphMem_attribute a)
{
    cuuint64_t value = 99;
    OK(cuDeviceGetGraphMemAttribute(0, a, &value));
    return value;
}

Test(graph_memory, is_there_between_its_allocation_and_its_free)
{
    machine_with_context(MACHINE);
    struct kernels k = load_kernels();
    CUdeviceptr out = buffer(), scratch;
    CUgraph g;
    CUgraphNode node, copy;
    size_t before = free_vram();
    OK(cuGraphCreate(&g, 0));
    node = add_alloc(g, NULL, BYTES, &scratch);
    node = add_fill(g, &node, scratch, 5);
    node = add_step(g, &node, 1, k.step, scratch, 3, 1);
    CUDA_MEMCPY3D c = device_copy(out, scratch, BYTES);
    OK(cuGraphAddMemcpyNode(&copy, g, &node, 1, &c, NULL));
    node = add_free(g, &copy, scratch);
    CUgraphExec exec = made(g);
    cr_assert_eq(free_vram(), before); /* nothing is taken until it is launched */
    for (int i = 0; i < 3; i++) {
        OK(cuGraphLaunch(exec, NULL));
        cr_assert_eq(word_of(out), 16);
        OK(cuMemsetD32_v2(out, 0, WORDS));
    }
    cr_assert_lt(free_vram(), before);
    uint32_t word;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(scratch)); /* the graph frees it */
    OK(cuCtxSynchronize());
    OK(cuDeviceGraphMemTrim(0));
    cr_assert_eq(free_vram(), before);
    OK(cuGraphLaunch(exec, NULL));
    cr_assert_eq(word_of(out), 16);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(g));
    cr_assert_eq(free_vram(), before);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH_v2(&word, scratch, 4));
}

Test(graph_memory, that_is_not_freed_lives_on_until_somebody_frees_it)
{
    machine_with_context(MACHINE);
    struct kernels k = load_kernels();
    CUdeviceptr p;
    CUgraph g, cleaner;
    CUgraphNode node;
    OK(cuGraphCreate(&g, 0));
    node = add_alloc(g, NULL, BYTES, &p);
    add_fill(g, &node, p, 5);
    CUgraphExec exec = made(g);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(p)); /* not allocated yet */
    OK(cuGraphLaunch(exec, NULL));
    OK(launch_step(k.step, NULL, p, 3, 1));
    cr_assert_eq(word_of(p), 16);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(exec, NULL)); /* it would be allocated twice */
    OK(cuMemFree_v2(p));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(p));
    OK(cuGraphLaunch(exec, NULL));
    cr_assert_eq(word_of(p), 5);
    OK(cuGraphCreate(&cleaner, 0));
    add_free(cleaner, NULL, p);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemFreeNode(&node, cleaner, NULL, 0, p)); /* twice in one graph */
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemFreeNode(&node, g, NULL, 0, p));       /* and in its own, too */
    CUgraphExec cleaning = made(cleaner);
    OK(cuGraphLaunch(cleaning, NULL));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(cleaning, NULL)); /* nothing is left to free */
    OK(cuGraphLaunch(exec, NULL));
    cr_assert_eq(word_of(p), 5);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(g));
    cr_assert_eq(word_of(p), 5); /* it outlives its graph */
    OK(cuGraphLaunch(cleaning, NULL));
    OK(cuCtxSynchronize());
    uint32_t word;
    OK(cuGraphExecDestroy(cleaning));
    OK(cuGraphDestroy(cleaner));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH_v2(&word, p, 4));
}

Test(graph_memory, is_freed_at_the_next_launch_where_the_flag_says_so)
{
    machine_with_context(MACHINE);
    CUdeviceptr p;
    CUgraph g;
    CUgraphNode node;
    CUgraphExec exec;
    OK(cuGraphCreate(&g, 0));
    node = add_alloc(g, NULL, BYTES, &p);
    add_fill(g, &node, p, 5);
    OK(cuGraphInstantiateWithFlags(&exec, g, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH));
    for (int i = 0; i < 4; i++)
        OK(cuGraphLaunch(exec, NULL));
    cr_assert_eq(word_of(p), 5);
    OK(cuMemFree_v2(p));
}

Test(graph_memory, too_early_and_too_late_are_found)
{
    for (int late = 0; late < 2; late++) {
        CUcontext context;
        if (!late)
            machine("h200,vram=1G");
        OK(cuCtxCreate_v2(&context, 0, 0));
        struct kernels k = load_kernels();
        CUdeviceptr p;
        CUgraph g;
        CUgraphNode alloc;
        OK(cuGraphCreate(&g, 0));
        alloc = add_alloc(g, NULL, BYTES, &p);
        if (late) {
            CUgraphNode gone = add_free(g, &alloc, p);
            add_step(g, &gone, 1, k.step, p, 1, 1);
        } else {
            CUgraphNode step = add_step(g, NULL, 0, k.step, p, 1, 1);
            OK(cuGraphAddDependencies(g, &step, &alloc, 1));
        }
        OK(cuGraphLaunch(made(g), NULL));
        GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
        OK(cuCtxDestroy_v2(context));
    }
}

Test(graph_memory, graphs_with_it_have_restrictions)
{
    machine_with_context("h200,vram=1G,gpus=2");
    CUdeviceptr p, plain = buffer();
    CUgraph g, clone, parent;
    CUgraphNode node, child, more;
    CUgraphExec exec, second;
    OK(cuGraphCreate(&g, 0));
    OK(cuGraphCreate(&parent, 0));
    node = add_alloc(g, NULL, BYTES, &p);
    CUgraphNode fill = add_fill(g, &node, p, 1);
    GIVES(CUDA_ERROR_NOT_SUPPORTED, cuGraphDestroyNode(fill));
    GIVES(CUDA_ERROR_NOT_SUPPORTED, cuGraphRemoveDependencies(g, &node, &fill, 1));
    GIVES(CUDA_ERROR_NOT_SUPPORTED, cuGraphClone(&clone, g));
    GIVES(CUDA_ERROR_NOT_SUPPORTED, cuGraphAddChildGraphNode(&child, parent, NULL, 0, g));
    exec = made(g);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiateWithFlags(&second, g, 0));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphInstantiateWithFlags(&second, g, 0));
    OK(cuGraphExecDestroy(second));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemFreeNode(&more, g, NULL, 0, plain));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemFreeNode(&more, g, NULL, 0, p + 512));
    CUDA_MEM_ALLOC_NODE_PARAMS bad = alloc_params(0), got;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemAllocNode(&more, g, NULL, 0, &bad));
    bad = alloc_params(64);
    bad.poolProps.location.id = 9;
    GIVES(CUDA_ERROR_INVALID_DEVICE, cuGraphAddMemAllocNode(&more, g, NULL, 0, &bad));
    bad = alloc_params(64);
    bad.poolProps.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemAllocNode(&more, g, NULL, 0, &bad));
    OK(cuGraphMemAllocNodeGetParams(node, &got));
    cr_assert(got.dptr == p && got.bytesize == BYTES);
    CUgraphNode freed = add_free(g, &fill, p);
    CUdeviceptr told;
    OK(cuGraphMemFreeNodeGetParams(freed, &told));
    cr_assert_eq(told, p);
    /* moved into another graph, it is that one's */
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_GRAPH};
    params.graph = (CUDA_CHILD_GRAPH_NODE_PARAMS){g, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE};
    OK(cuGraphAddNode(&child, parent, NULL, 0, &params));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(g));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiateWithFlags(&exec, g, 0));
    bad = alloc_params(64);
    GIVES(CUDA_ERROR_NOT_SUPPORTED, cuGraphAddMemAllocNode(&more, g, NULL, 0, &bad));
    exec = made(parent);
    OK(cuGraphLaunch(exec, NULL));
    OK(cuGraphLaunch(exec, NULL));
    OK(cuCtxSynchronize());
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(parent));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(g));
}

Test(graph_memory, amounts_are_told_and_watermarks_reset)
{
    machine_with_context(MACHINE);
    CUdeviceptr p, q;
    CUgraph g;
    CUgraphNode node;
    cuuint64_t zero = 0, one = 1;
    OK(cuGraphCreate(&g, 0));
    node = add_alloc(g, NULL, 3 * MIB, &p);
    add_alloc(g, &node, 1 * MIB, &q);
    CUgraphExec exec = made(g);
    cr_assert_eq(attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 0);
    OK(cuGraphUpload(exec, NULL));
    cr_assert_eq(attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), 6 * MIB);
    OK(cuGraphLaunch(exec, NULL));
    cr_assert_eq(attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 4 * MIB);
    OK(cuCtxSynchronize());
    OK(cuMemFree_v2(p));
    cr_assert_eq(attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 1 * MIB);
    cr_assert_eq(attribute(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH), 4 * MIB);
    OK(cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &zero));
    cr_assert_eq(attribute(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH), 1 * MIB);
    OK(cuDeviceGraphMemTrim(0));
    cr_assert_eq(attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), 2 * MIB);
    cr_assert_eq(attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH), 6 * MIB);
    OK(cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH, &zero));
    cr_assert_eq(attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH), 2 * MIB);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &one));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuDeviceSetGraphMemAttribute(0, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &zero));
    GIVES(CUDA_ERROR_INVALID_DEVICE, cuDeviceGraphMemTrim(7));
    GIVES(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetGraphMemAttribute(7, CU_GRAPH_MEM_ATTR_USED_MEM_HIGH, &zero));
}

Test(graph_memory, that_does_not_fit_fails_the_launch_and_nothing_else)
{
    machine_with_context("h200,vram=64M");
    CUdeviceptr p, out = buffer();
    CUgraph g;
    CUgraphNode node;
    OK(cuGraphCreate(&g, 0));
    CUgraphNode first = add_fill(g, NULL, out, 9);
    node = add_alloc(g, &first, 512 * MIB, &p);
    add_fill(g, &node, p, 1);
    CUgraphExec exec = made(g);
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuGraphLaunch(exec, NULL));
    cr_assert_eq(word_of(out), 1);
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuGraphUpload(exec, NULL));
}

Test(graph_memory, goes_with_its_context)
{
    CUcontext context = machine_with_context(MACHINE), other;
    CUdeviceptr p;
    CUgraph g;
    CUgraphNode node;
    OK(cuGraphCreate(&g, 0));
    node = add_alloc(g, NULL, BYTES, &p);
    add_fill(g, &node, p, 5);
    CUgraphExec exec = made(g);
    OK(cuGraphLaunch(exec, NULL));
    OK(cuCtxDestroy_v2(context));
    OK(cuCtxCreate_v2(&other, 0, 0));
    cr_assert_neq(cuGraphLaunch(exec, NULL), CUDA_SUCCESS);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(g));
    cr_assert_eq(attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT), 0);
    cr_assert_eq(attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), 0);
}
