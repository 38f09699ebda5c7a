/* Graphs as data, and what launching them does. */
#include "graphs.h"

#include <stdio.h>
#include <unistd.h>

#define MACHINE "h200,vram=256M"

/* ---- structure ---- */

Test(graph, nodes_edges_and_roots_are_told_in_the_order_in_which_they_were_made)
{
    machine_with_context(MACHINE);
    CUgraph g;
    CUgraphNode n[3], got[4], from[4], to[4];
    CUgraphNodeType type;
    size_t count = 0;
    OK(cuGraphCreate(&g, 0));
    OK(cuGraphAddEmptyNode(&n[0], g, NULL, 0));
    OK(cuGraphAddEmptyNode(&n[1], g, n, 1));
    OK(cuGraphAddEmptyNode(&n[2], g, n, 2));
    OK(cuGraphGetNodes(g, NULL, &count));
    cr_assert_eq(count, 3);
    count = 4;
    OK(cuGraphGetNodes(g, got, &count));
    cr_assert_eq(count, 3);
    cr_assert(got[0] == n[0] && got[1] == n[1] && got[2] == n[2] && !got[3]);
    count = 4;
    OK(cuGraphGetRootNodes(g, got, &count));
    cr_assert(count == 1 && got[0] == n[0]);
    count = 4;
    OK(cuGraphGetEdges(g, from, to, &count));
    cr_assert(count == 3 && from[0] == n[0] && to[0] == n[1] && from[2] == n[1] && to[2] == n[2] && !from[3]);
    count = 4;
    OK(cuGraphNodeGetDependencies(n[2], got, &count));
    cr_assert(count == 2 && got[0] == n[0] && got[1] == n[1]);
    count = 1;
    OK(cuGraphNodeGetDependentNodes(n[0], got, &count));
    cr_assert(count == 1 && got[0] == n[1]);
    OK(cuGraphNodeGetType(n[0], &type));
    cr_assert_eq(type, CU_GRAPH_NODE_TYPE_EMPTY);
    OK(cuGraphRemoveDependencies(g, n, n + 1, 1));
    count = 0;
    OK(cuGraphGetEdges(g, NULL, NULL, &count));
    cr_assert_eq(count, 2);
    OK(cuGraphDestroyNode(n[1]));
    OK(cuGraphGetEdges(g, NULL, NULL, &count));
    cr_assert_eq(count, 1);
    OK(cuGraphDestroy(g));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(g));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphNodeGetType(n[0], &type));
}

Test(graph, what_is_wrong_about_nodes_and_edges_is_refused)
{
    machine_with_context(MACHINE);
    CUgraph g, other;
    CUgraphNode a, b, strange, node, twice[2];
    size_t count = 1;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphCreate(NULL, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphCreate(&g, 1));
    OK(cuGraphCreate(&g, 0));
    OK(cuGraphCreate(&other, 0));
    OK(cuGraphAddEmptyNode(&a, g, NULL, 0));
    OK(cuGraphAddEmptyNode(&b, g, &a, 1));
    OK(cuGraphAddEmptyNode(&strange, other, NULL, 0));
    twice[0] = twice[1] = a;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddEmptyNode(NULL, g, NULL, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddEmptyNode(&node, NULL, NULL, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddEmptyNode(&node, g, &strange, 1));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddEmptyNode(&node, g, twice, 2));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddEmptyNode(&node, g, NULL, 1));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddDependencies(g, &a, &b, 1)); /* there already */
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddDependencies(g, &a, &a, 1));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddDependencies(g, &a, &strange, 1));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphRemoveDependencies(g, &b, &a, 1));
    OK(cuGraphAddDependencies(g, NULL, NULL, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphGetNodes(g, NULL, NULL));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphGetEdges(g, &a, NULL, &count));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphDestroyNode((CUgraphNode)0x1234));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphDestroyNode((CUgraphNode)g));
}

Test(graph, edge_data_is_kept_and_no_query_loses_it)
{
    machine_with_context(MACHINE);
    struct kernels k = load_kernels();
    CUdeviceptr p = buffer();
    CUgraph g;
    CUgraphNode from[2], to[2], empty, got;
    CUgraphEdgeData data[2],
        early = {.from_port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC, .type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC},
        bad = {.to_port = 1};
    size_t count = 2;
    OK(cuGraphCreate(&g, 0));
    CUgraphNode a = add_step(g, NULL, 0, k.step, p, 2, 1), b = add_step(g, NULL, 0, k.step, p, 3, 1);
    OK(cuGraphAddDependencies_v2(g, &a, &b, &early, 1));
    GIVES(CUDA_ERROR_LOSSY_QUERY, cuGraphGetEdges(g, from, to, &count));
    OK(cuGraphGetEdges_v2(g, from, to, data, &count));
    cr_assert(count == 1 && data[0].from_port == 1 && data[0].type == CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC);
    count = 1;
    GIVES(CUDA_ERROR_LOSSY_QUERY, cuGraphNodeGetDependencies(b, &got, &count));
    OK(cuGraphNodeGetDependencies_v2(b, &got, data, &count));
    cr_assert(got == a && data[0].from_port == 1);
    OK(cuGraphNodeGetDependentNodes_v2(a, &got, data, &count));
    cr_assert(got == b && data[0].from_port == 1);
    OK(cuGraphAddEmptyNode(&empty, g, NULL, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddDependencies_v2(g, &a, &empty, &early, 1)); /* leads to no kernel */
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddDependencies_v2(g, &empty, &a, &early, 1));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddDependencies_v2(g, &empty, &a, &bad, 1));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphRemoveDependencies(g, &a, &b, 1)); /* another edge */
    OK(cuGraphLaunch(made(g), NULL));
    cr_assert_eq(word_of(p), (1 * 2 + 1) * 3 + 1);
    OK(cuGraphRemoveDependencies_v2(g, &a, &b, &early, 1));
}

Test(graph, circles_are_refused_and_name_a_node)
{
    machine_with_context(MACHINE);
    CUgraph g;
    CUgraphNode a, b, bad = NULL;
    CUgraphExec exec;
    char log[200] = "";
    CUDA_GRAPH_INSTANTIATE_PARAMS params = {0};
    OK(cuGraphCreate(&g, 0));
    OK(cuGraphAddEmptyNode(&a, g, NULL, 0));
    OK(cuGraphAddEmptyNode(&b, g, &a, 1));
    OK(cuGraphAddDependencies(g, &b, &a, 1));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiate_v2(&exec, g, &bad, log, sizeof log));
    cr_assert(bad == a || bad == b);
    cr_assert_not_null(strstr(log, "circle"), "%s", log);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiateWithParams(&exec, g, &params));
    cr_assert_eq(params.result_out, CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE);
    cr_assert(params.hErrNode_out == a || params.hErrNode_out == b);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiateWithFlags(&exec, g, 0));
}

/* ---- launches ---- */

Test(graph, all_kinds_of_nodes_do_what_the_same_calls_do)
{
    machine_with_context(MACHINE);
    struct kernels k = load_kernels();
    CUdeviceptr a = buffer(), b = buffer(), plain = buffer(), plain_b = buffer();
    CUgraph g;
    CUgraphNode set, copy;
    CUDA_MEMSET_NODE_PARAMS fill = {.dst = a, .value = 5, .elementSize = 4, .width = WORDS, .height = 1};
    CUDA_MEMCPY3D move = device_copy(b, a, BYTES);
    OK(cuGraphCreate(&g, 0));
    OK(cuGraphAddMemsetNode(&set, g, NULL, 0, &fill, NULL));
    CUgraphNode one = add_step(g, &set, 1, k.step, a, 3, 4);
    OK(cuGraphAddMemcpyNode(&copy, g, &one, 1, &move, NULL));
    add_step(g, &copy, 1, k.step, b, 7, 1);
    CUgraphExec exec = made(g);
    CUstream s = stream_of(CU_STREAM_NON_BLOCKING);
    for (int i = 0; i < 3; i++)
        OK(cuGraphLaunch(exec, s));
    OK(cuMemsetD32Async(plain, 5, WORDS, s));
    OK(launch_step(k.step, s, plain, 3, 4));
    OK(cuMemcpyAsync(plain_b, plain, BYTES, s));
    OK(launch_step(k.step, s, plain_b, 7, 1));
    cr_assert_eq(word_of(a), word_of(plain));
    cr_assert_eq(word_of(b), word_of(plain_b));
    OK(cuGraphExecDestroy(exec));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(exec, s));
    OK(cuGraphDestroy(g));
}

static void append(void *arg)
{
    uint32_t *list = arg;
    uint32_t at = ++list[0];
    list[at] = at + 99;
}

static uint32_t heard[64];
static void hear(void *arg)
{
    heard[++heard[0]] = (uint32_t)(uintptr_t)arg;
}

Test(graph, host_nodes_run_in_order_and_children_between_their_neighbours)
{
    machine_with_context(MACHINE);
    CUgraph g, child, inner;
    CUgraphNode n[4], in[2];
    CUDA_HOST_NODE_PARAMS p = {.fn = hear};
    OK(cuGraphCreate(&g, 0));
    OK(cuGraphCreate(&child, 0));
    for (uintptr_t i = 0; i < 2; i++) {
        p.userData = (void *)(i + 10);
        OK(cuGraphAddHostNode(&in[i], child, in, i, &p));
    }
    p.userData = (void *)1;
    OK(cuGraphAddHostNode(&n[0], g, NULL, 0, &p));
    OK(cuGraphAddChildGraphNode(&n[1], g, n, 1, child));
    p.userData = (void *)2;
    OK(cuGraphAddHostNode(&n[2], g, n + 1, 1, &p));
    OK(cuGraphDestroy(child)); /* it was copied */
    OK(cuGraphChildGraphNodeGetGraph(n[1], &inner));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(inner));
    OK(cuGraphLaunch(made(g), NULL));
    OK(cuCtxSynchronize());
    cr_assert_eq(heard[0], 4);
    cr_assert(heard[1] == 1 && heard[2] == 10 && heard[3] == 11 && heard[4] == 2);
}

Test(graph, branches_run_at_the_same_time_and_joins_wait_for_all)
{
    machine_with_context(MACHINE);
    static struct gate gates[2] = {GATE_INIT, GATE_INIT};
    struct kernels k = load_kernels();
    CUdeviceptr p = buffer();
    uint32_t *flag;
    OK(cuMemHostAlloc((void **)&flag, 4096, 0));
    *flag = 0;
    CUgraph g;
    CUgraphNode root, branch[2], spin;
    OK(cuGraphCreate(&g, 0));
    OK(cuGraphAddEmptyNode(&root, g, NULL, 0));
    void *pointers[] = {&flag};
    CUDA_KERNEL_NODE_PARAMS spinning = {.func = k.spin,
                                        .gridDimX = 1,
                                        .gridDimY = 1,
                                        .gridDimZ = 1,
                                        .blockDimX = 1,
                                        .blockDimY = 1,
                                        .blockDimZ = 1,
                                        .kernelParams = pointers};
    OK(cuGraphAddKernelNode_v2(&spin, g, &root, 1, &spinning));
    branch[0] = spin;
    CUDA_HOST_NODE_PARAMS wait = {.fn = gate_wait, .userData = &gates[0]};
    OK(cuGraphAddHostNode(&branch[1], g, &root, 1, &wait));
    add_step(g, branch, 2, k.step, p, 2, 0);
    CUstream s = stream_of(CU_STREAM_NON_BLOCKING);
    OK(cuGraphLaunch(made(g), s));
    gate_await_arrival(&gates[0]); /* beside the spinning kernel */
    gate_open(&gates[0]);
    GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(s));
    __atomic_store_n(flag, 1, __ATOMIC_RELEASE);
    OK(cuStreamSynchronize(s));
    cr_assert_eq(word_of(p), 2);
}

Test(graph, launches_of_one_executable_graph_come_after_each_other)
{
    machine_with_context(MACHINE);
    static uint32_t list[40];
    struct kernels k = load_kernels();
    CUdeviceptr p = buffer();
    CUgraph g;
    CUgraphNode host;
    OK(cuGraphCreate(&g, 0));
    CUgraphNode a = add_step(g, NULL, 0, k.step, p, 3, 1);
    CUDA_HOST_NODE_PARAMS h = {.fn = append, .userData = list};
    OK(cuGraphAddHostNode(&host, g, &a, 1, &h));
    add_step(g, &host, 1, k.step, p, 5, 2);
    CUgraphExec exec = made(g);
    CUstream s[2] = {stream_of(CU_STREAM_NON_BLOCKING), stream_of(CU_STREAM_NON_BLOCKING)};
    uint32_t expected = 1;
    for (int i = 0; i < 20; i++) {
        OK(cuGraphLaunch(exec, s[i % 2]));
        expected = (expected * 3 + 1) * 5 + 2;
    }
    OK(cuGraphExecDestroy(exec)); /* in flight: it goes on */
    OK(cuGraphDestroy(g));
    cr_assert_eq(word_of(p), expected);
    cr_assert_eq(list[0], 20);
    for (uint32_t i = 1; i <= 20; i++)
        cr_assert_eq(list[i], i + 99);
}

Test(graph, a_launch_comes_between_its_streams_other_work)
{
    machine_with_context(MACHINE);
    struct kernels k = load_kernels();
    CUdeviceptr p = buffer();
    CUgraph g;
    OK(cuGraphCreate(&g, 0));
    add_step(g, NULL, 0, k.step, p, 3, 1);
    CUgraphExec exec = made(g);
    CUstream s[3] = {NULL, stream_of(0), stream_of(CU_STREAM_NON_BLOCKING)};
    for (int i = 0; i < 3; i++) {
        OK(cuMemsetD32Async(p, 7, WORDS, s[i]));
        OK(cuGraphLaunch(exec, s[i]));
        OK(launch_step(k.step, s[i], p, 5, 2));
        cr_assert_eq(word_of(p), (7 * 3 + 1) * 5 + 2);
    }
    OK(cuMemsetD32Async(p, 7, WORDS, NULL)); /* the legacy stream's rule holds for graphs */
    OK(cuGraphLaunch(exec, s[1]));
    OK(launch_step(k.step, NULL, p, 5, 2));
    cr_assert_eq(word_of(p), (7 * 3 + 1) * 5 + 2);
}

Test(graph, events_are_recorded_and_waited_for_inside)
{
    machine_with_context(MACHINE);
    static struct gate gate = GATE_INIT;
    struct kernels k = load_kernels();
    CUdeviceptr p = buffer();
    CUgraph g;
    CUgraphNode wait, record;
    CUevent before = plain_event(), after = plain_event(), got;
    CUstream s = stream_of(CU_STREAM_NON_BLOCKING), t = stream_of(CU_STREAM_NON_BLOCKING);
    OK(cuGraphCreate(&g, 0));
    OK(cuGraphAddEventWaitNode(&wait, g, NULL, 0, before));
    CUgraphNode step = add_step(g, &wait, 1, k.step, p, 3, 1);
    OK(cuGraphAddEventRecordNode(&record, g, &step, 1, after));
    OK(cuGraphEventWaitNodeGetEvent(wait, &got));
    cr_assert_eq(got, before);
    OK(cuGraphEventRecordNodeGetEvent(record, &got));
    cr_assert_eq(got, after);
    CUgraphExec exec = made(g);
    OK(cuLaunchHostFunc(t, gate_wait, &gate));
    OK(cuEventRecord(before, t));
    OK(cuGraphLaunch(exec, s));
    GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(after));
    gate_open(&gate);
    OK(cuEventSynchronize(after));
    cr_assert_eq(word_of(p), 4);
    OK(cuEventDestroy_v2(after));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuGraphLaunch(exec, s));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddEventRecordNode(&record, g, NULL, 0, after));
}

Test(graph, sync_mode_waits_for_launches_but_for_none_that_waits_itself)
{
    setenv("SIMGPU_SYNC", "1", 1);
    machine_with_context(MACHINE);
    struct kernels k = load_kernels();
    CUdeviceptr p = buffer();
    CUgraph g, h;
    CUgraphNode node;
    uint32_t *flag;
    OK(cuMemHostAlloc((void **)&flag, 4096, 0));
    memset(flag, 0, 4096);
    OK(cuGraphCreate(&g, 0));
    add_step(g, NULL, 0, k.step, p, 2, 3);
    CUstream s = stream_of(CU_STREAM_NON_BLOCKING);
    OK(cuGraphLaunch(made(g), s));
    OK(cuStreamQuery(s));
    CUstreamBatchMemOpParams op = {.waitValue = {.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32,
                                                 .address = (CUdeviceptr)(uintptr_t)flag,
                                                 .value = 1}};
    CUDA_BATCH_MEM_OP_NODE_PARAMS params = {NULL, 1, &op, 0};
    OK(cuGraphCreate(&h, 0));
    OK(cuGraphAddBatchMemOpNode(&node, h, NULL, 0, &params));
    OK(cuGraphLaunch(made(h), s));
    __atomic_store_n(flag, 1, __ATOMIC_RELEASE);
    OK(cuStreamSynchronize(s));
    cr_assert_eq(word_of(p), 5);
}

Test(graph, batches_of_memory_operations_write_and_wait)
{
    machine_with_context(MACHINE);
    CUdeviceptr p = buffer();
    CUgraph g;
    CUgraphNode node;
    uint32_t *flag;
    OK(cuMemHostAlloc((void **)&flag, 4096, 0));
    memset(flag, 0, 4096);
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)flag;
    CUstreamBatchMemOpParams ops[2] = {0};
    ops[0].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    ops[0].waitValue.address = at;
    ops[0].waitValue.value = 3;
    ops[0].waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
    ops[1].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    ops[1].writeValue.address = p;
    ops[1].writeValue.value = 77;
    CUDA_BATCH_MEM_OP_NODE_PARAMS params = {NULL, 2, ops, 0}, got;
    OK(cuGraphCreate(&g, 0));
    OK(cuGraphAddBatchMemOpNode(&node, g, NULL, 0, &params));
    ops[1].writeValue.value = 78; /* copied above */
    OK(cuGraphBatchMemOpNodeGetParams(node, &got));
    cr_assert(got.count == 2 && got.paramArray[1].writeValue.value == 77);
    CUgraphExec exec = made(g);
    CUstream s = stream_of(CU_STREAM_NON_BLOCKING);
    OK(cuGraphLaunch(exec, s));
    GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(s));
    __atomic_store_n(flag, 4, __ATOMIC_RELEASE);
    OK(cuStreamSynchronize(s));
    uint32_t word;
    OK(cuMemcpyDtoH_v2(&word, p, 4));
    cr_assert_eq(word, 77);
    params.ctx = NULL;
    OK(cuGraphExecBatchMemOpNodeSetParams(exec, node, &params));
    OK(cuGraphLaunch(exec, s));
    OK(cuStreamSynchronize(s));
    OK(cuMemcpyDtoH_v2(&word, p, 4));
    cr_assert_eq(word, 78);
    params.count = 1;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphExecBatchMemOpNodeSetParams(exec, node, &params));
    params.count = 0;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddBatchMemOpNode(&node, g, NULL, 0, &params));
}

Test(graph, wrong_parameters_are_refused_where_nodes_are_made)
{
    machine_with_context(MACHINE);
    struct kernels k = load_kernels();
    CUdeviceptr p = buffer();
    CUgraph g;
    CUgraphNode node;
    OK(cuGraphCreate(&g, 0));
    struct step s = {p, 1, 1, WORDS, {0}};
    CUDA_KERNEL_NODE_PARAMS kernel = step_params(k.step, &s), bad = kernel;
    bad.blockDimX = 2048;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddKernelNode_v2(&node, g, NULL, 0, &bad));
    bad = kernel;
    bad.func = NULL;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddKernelNode_v2(&node, g, NULL, 0, &bad));
    bad = kernel;
    bad.kernelParams = NULL;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddKernelNode_v2(&node, g, NULL, 0, &bad));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddKernelNode_v2(&node, g, NULL, 0, NULL));
    CUDA_MEMSET_NODE_PARAMS fill = {.dst = p, .value = 1, .elementSize = 3, .width = 4, .height = 1};
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemsetNode(&node, g, NULL, 0, &fill, NULL));
    fill.elementSize = 4;
    fill.width = 0;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemsetNode(&node, g, NULL, 0, &fill, NULL));
    fill.width = 1;
    fill.dst = 64;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemsetNode(&node, g, NULL, 0, &fill, NULL));
    fill.dst = p;
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuGraphAddMemsetNode(&node, g, NULL, 0, &fill, (CUcontext)0x99));
    CUDA_MEMCPY3D copy = device_copy(p, 64, BYTES);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemcpyNode(&node, g, NULL, 0, &copy, NULL));
    copy = device_copy(p, p, 0);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemcpyNode(&node, g, NULL, 0, &copy, NULL));
    copy = device_copy(p, p, 4);
    copy.srcMemoryType = CU_MEMORYTYPE_ARRAY;
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuGraphAddMemcpyNode(&node, g, NULL, 0, &copy, NULL));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddHostNode(&node, g, NULL, 0, &(CUDA_HOST_NODE_PARAMS){NULL, NULL}));
    size_t count;
    OK(cuGraphGetNodes(g, NULL, &count));
    cr_assert_eq(count, 0);
}

Test(graph, parameters_are_told_as_they_were_given)
{
    machine_with_context(MACHINE);
    struct kernels k = load_kernels();
    CUdeviceptr p = buffer();
    CUgraph g;
    CUgraphNode node, copy, fill;
    OK(cuGraphCreate(&g, 0));
    CUgraphNode step = add_step(g, NULL, 0, k.step, p, 3, 9);
    CUDA_KERNEL_NODE_PARAMS got;
    OK(cuGraphKernelNodeGetParams_v2(step, &got));
    cr_assert(got.func == k.step && got.gridDimX == WORDS / 128 && got.blockDimX == 128 && !got.extra);
    cr_assert(*(CUdeviceptr *)got.kernelParams[0] == p && *(uint32_t *)got.kernelParams[2] == 9);
    struct {
        CUdeviceptr p;
        uint32_t factor, term, n;
    } packed = {p, 2, 5, WORDS};
    size_t bytes = 20;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
    got.kernelParams = NULL;
    got.extra = extra;
    OK(cuGraphKernelNodeSetParams_v2(step, &got));
    OK(cuGraphKernelNodeGetParams_v2(step, &got));
    cr_assert(!got.kernelParams && got.extra[0] == CU_LAUNCH_PARAM_BUFFER_POINTER);
    cr_assert_eq(((uint32_t *)got.extra[1])[3], 5);
    OK(cuGraphLaunch(made(g), NULL));
    cr_assert_eq(word_of(p), 7);
    CUDA_MEMCPY3D c = device_copy(p, p + 64, 64), c_got;
    OK(cuGraphAddMemcpyNode(&copy, g, NULL, 0, &c, NULL));
    OK(cuGraphMemcpyNodeGetParams(copy, &c_got));
    cr_assert(c_got.dstDevice == p && c_got.srcDevice == p + 64 && c_got.WidthInBytes == 64 && c_got.Height == 1);
    cr_assert(c_got.srcMemoryType == CU_MEMORYTYPE_DEVICE && c_got.dstMemoryType == CU_MEMORYTYPE_DEVICE);
    c.WidthInBytes = 32;
    OK(cuGraphMemcpyNodeSetParams(copy, &c));
    CUDA_MEMSET_NODE_PARAMS f = {.dst = p, .value = 1, .elementSize = 2, .width = 8, .height = 1}, f_got;
    OK(cuGraphAddMemsetNode(&fill, g, NULL, 0, &f, NULL));
    f.value = 2;
    OK(cuGraphMemsetNodeSetParams(fill, &f));
    OK(cuGraphMemsetNodeGetParams(fill, &f_got));
    cr_assert(f_got.value == 2 && f_got.width == 8);
    CUDA_HOST_NODE_PARAMS h = {hear, &h}, h_got;
    OK(cuGraphAddHostNode(&node, g, NULL, 0, &h));
    h.userData = NULL;
    OK(cuGraphHostNodeSetParams(node, &h));
    OK(cuGraphHostNodeGetParams(node, &h_got));
    cr_assert(h_got.fn == hear && !h_got.userData);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphHostNodeGetParams(step, &h_got));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphHostNodeGetParams(node, NULL));
}

Test(graph, generic_calls_take_every_type_and_want_zeros_elsewhere)
{
    machine_with_context(MACHINE);
    struct kernels k = load_kernels();
    CUdeviceptr p = buffer();
    CUgraph g;
    CUgraphNode a, b, c;
    struct step s = {p, 2, 3, WORDS, {0}};
    CUDA_KERNEL_NODE_PARAMS kernel = step_params(k.step, &s);
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_KERNEL};
    memcpy(&params.kernel, &kernel, sizeof kernel);
    OK(cuGraphCreate(&g, 0));
    OK(cuGraphAddNode(&a, g, NULL, 0, &params));
    params = (CUgraphNodeParams){.type = CU_GRAPH_NODE_TYPE_MEMSET};
    params.memset = (CUDA_MEMSET_NODE_PARAMS_v2){.dst = p, .value = 9, .elementSize = 4, .width = WORDS, .height = 1};
    OK(cuGraphAddNode_v2(&b, g, NULL, NULL, 0, &params));
    OK(cuGraphAddDependencies(g, &b, &a, 1));
    params.memset.value = 11;
    OK(cuGraphNodeSetParams(b, &params));
    OK(cuGraphLaunch(made(g), NULL));
    cr_assert_eq(word_of(p), 25);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphNodeSetParams(a, &params)); /* another type */
    params.reserved1[28] = 1;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddNode(&c, g, NULL, 0, &params));
    params = (CUgraphNodeParams){.type = CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT};
    GIVES(CUDA_ERROR_NOT_SUPPORTED, cuGraphAddNode(&c, g, NULL, 0, &params));
    params = (CUgraphNodeParams){.type = (CUgraphNodeType)99};
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddNode(&c, g, NULL, 0, &params));
    params = (CUgraphNodeParams){.type = CU_GRAPH_NODE_TYPE_EMPTY};
    OK(cuGraphAddNode(&c, g, NULL, 0, &params));
}

Test(graph, clones_are_independent_and_their_nodes_can_be_found)
{
    machine_with_context(MACHINE);
    struct kernels k = load_kernels();
    CUdeviceptr p = buffer();
    CUgraph g, clone;
    CUgraphNode twin, other;
    OK(cuGraphCreate(&g, 0));
    CUgraphNode a = add_step(g, NULL, 0, k.step, p, 2, 0), b = add_step(g, &a, 1, k.step, p, 1, 3);
    OK(cuGraphClone(&clone, g));
    OK(cuGraphNodeFindInClone(&twin, b, clone));
    OK(cuGraphDestroyNode(b));
    OK(cuGraphNodeFindInClone(&other, a, clone));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphNodeFindInClone(&other, twin, g));
    OK(cuGraphLaunch(made(clone), NULL));
    cr_assert_eq(word_of(p), 5);
    OK(cuGraphLaunch(made(g), NULL));
    cr_assert_eq(word_of(p), 10);
    OK(cuGraphDestroyNode(twin));
    OK(cuGraphLaunch(made(clone), NULL));
    cr_assert_eq(word_of(p), 20);
}

Test(graph, attributes_of_kernels_are_kept_copied_and_checked)
{
    machine_with_context(MACHINE);
    struct kernels k = load_kernels();
    CUdeviceptr p = buffer();
    CUgraph g;
    CUkernelNodeAttrValue v = {.priority = -2}, got;
    OK(cuGraphCreate(&g, 0));
    CUgraphNode a = add_step(g, NULL, 0, k.step, p, 2, 0), b = add_step(g, &a, 1, k.step, p, 1, 3);
    OK(cuGraphKernelNodeGetAttribute(a, CU_LAUNCH_ATTRIBUTE_PRIORITY, &got));
    cr_assert_eq(got.priority, 0);
    OK(cuGraphKernelNodeSetAttribute(a, CU_LAUNCH_ATTRIBUTE_PRIORITY, &v));
    v = (CUkernelNodeAttrValue){.cooperative = 1};
    OK(cuGraphKernelNodeSetAttribute(a, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &v));
    OK(cuGraphKernelNodeCopyAttributes(b, a));
    OK(cuGraphKernelNodeGetAttribute(b, CU_LAUNCH_ATTRIBUTE_PRIORITY, &got));
    cr_assert_eq(got.priority, -2);
    OK(cuGraphKernelNodeGetAttribute(b, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &got));
    cr_assert_eq(got.cooperative, 1);
    v = (CUkernelNodeAttrValue){.clusterDim = {2, 1, 1}};
    GIVES(CUDA_ERROR_NOT_SUPPORTED, cuGraphKernelNodeSetAttribute(a, CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, &v));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphKernelNodeSetAttribute(a, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT, &v));
    v = (CUkernelNodeAttrValue){.deviceUpdatableKernelNode = {1, NULL}};
    GIVES(CUDA_ERROR_NOT_SUPPORTED,
          cuGraphKernelNodeSetAttribute(a, CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE, &v));
    OK(cuGraphLaunch(made(g), NULL));
    cr_assert_eq(word_of(p), 5);
}

/* ---- user objects ---- */

struct destroyed {
    pthread_mutex_t lock;
    pthread_cond_t cv;
    int count;
    CUresult answer;
};
static struct destroyed destroyed = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, CUDA_SUCCESS};

static void destroy_object(void *arg)
{
    struct destroyed *d = arg;
    size_t free_bytes, total;
    CUresult answer = cuMemGetInfo_v2(&free_bytes, &total);
    pthread_mutex_lock(&d->lock);
    d->count++;
    d->answer = answer;
    pthread_cond_broadcast(&d->cv);
    pthread_mutex_unlock(&d->lock);
}

static int destroyed_now(int until)
{
    pthread_mutex_lock(&destroyed.lock);
    while (destroyed.count < until)
        pthread_cond_wait(&destroyed.cv, &destroyed.lock);
    int count = destroyed.count;
    pthread_mutex_unlock(&destroyed.lock);
    return count;
}

Test(graph, user_objects_live_as_long_as_anybody_holds_them)
{
    machine_with_context(MACHINE);
    static struct gate gate = GATE_INIT;
    CUuserObject object;
    CUgraph g, clone;
    CUgraphNode node;
    unsigned flags = CU_USER_OBJECT_NO_DESTRUCTOR_SYNC;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuUserObjectCreate(&object, NULL, destroy_object, 1, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuUserObjectCreate(&object, NULL, destroy_object, 0, flags));
    OK(cuUserObjectCreate(&object, &destroyed, destroy_object, 2, flags));
    OK(cuGraphCreate(&g, 0));
    CUDA_HOST_NODE_PARAMS h = {gate_wait, &gate};
    OK(cuGraphAddHostNode(&node, g, NULL, 0, &h));
    OK(cuGraphRetainUserObject(g, object, 1, CU_GRAPH_USER_OBJECT_MOVE));
    OK(cuUserObjectRetain(object, 3));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuUserObjectRelease(object, 5)); /* one is the graph's */
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphReleaseUserObject(g, object, 2));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphRetainUserObject(g, object, 0, 0));
    OK(cuUserObjectRelease(object, 4));
    OK(cuGraphClone(&clone, g));
    CUgraphExec exec = made(clone);
    OK(cuGraphLaunch(exec, NULL));
    OK(cuGraphDestroy(g));
    OK(cuGraphDestroy(clone));
    OK(cuGraphExecDestroy(exec));
    gate_await_arrival(&gate);
    cr_assert_eq(destroyed_now(0), 0); /* the launch still runs */
    gate_open(&gate);
    cr_assert_eq(destroyed_now(1), 1);
    cr_assert_eq(destroyed.answer, CUDA_ERROR_NOT_PERMITTED);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuUserObjectRetain(object, 1));
}

Test(graph, updates_and_children_carry_user_objects)
{
    machine_with_context(MACHINE);
    CUuserObject first, second;
    CUgraph g, h, child;
    CUgraphNode node;
    CUgraphExecUpdateResultInfo info;
    unsigned flags = CU_USER_OBJECT_NO_DESTRUCTOR_SYNC;
    OK(cuUserObjectCreate(&first, &destroyed, destroy_object, 1, flags));
    OK(cuUserObjectCreate(&second, &destroyed, destroy_object, 1, flags));
    OK(cuGraphCreate(&child, 0));
    OK(cuGraphRetainUserObject(child, first, 1, CU_GRAPH_USER_OBJECT_MOVE));
    OK(cuGraphCreate(&g, 0));
    OK(cuGraphAddChildGraphNode(&node, g, NULL, 0, child));
    OK(cuGraphDestroy(child));
    OK(cuGraphCreate(&child, 0));
    OK(cuGraphCreate(&h, 0));
    OK(cuGraphRetainUserObject(h, second, 1, CU_GRAPH_USER_OBJECT_MOVE));
    OK(cuGraphAddChildGraphNode(&node, h, NULL, 0, child));
    CUgraphExec exec = made(g);
    OK(cuGraphDestroy(g));
    cr_assert_eq(destroyed_now(0), 0); /* the executable graph has the first */
    OK(cuGraphExecUpdate_v2(exec, h, &info));
    cr_assert_eq(destroyed_now(1), 1); /* and now the second */
    OK(cuGraphDestroy(h));
    OK(cuGraphDestroy(child));
    OK(cuGraphLaunch(exec, NULL));
    OK(cuCtxSynchronize());
    cr_assert_eq(destroyed_now(0), 1);
    OK(cuGraphExecDestroy(exec));
    cr_assert_eq(destroyed_now(2), 2);
}

/* ---- drawings ---- */

Test(graph, a_drawing_names_nodes_kernels_and_edges)
{
    machine_with_context(MACHINE);
    struct kernels k = load_kernels();
    CUdeviceptr p = buffer();
    CUgraph g;
    char path[] = "/tmp/simgpu-dot-XXXXXX", text[8192];
    int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    OK(cuGraphCreate(&g, 0));
    CUgraphNode a = add_step(g, NULL, 0, k.step, p, 2, 0);
    add_step(g, &a, 1, k.step, p, 1, 3);
    OK(cuGraphDebugDotPrint(g, path, CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE));
    ssize_t n = read(fd, text, sizeof text - 1);
    text[n > 0 ? n : 0] = '\0';
    close(fd);
    unlink(path);
    cr_assert(strstr(text, "digraph dot") && strstr(text, "step") && strstr(text, "KERNEL"), "%s", text);
    cr_assert_not_null(strstr(text, "\"graph_0_node_0\" -> \"graph_0_node_1\""), "%s", text);
    GIVES(CUDA_ERROR_OPERATING_SYSTEM, cuGraphDebugDotPrint(g, "/nowhere/at/all", 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphDebugDotPrint(g, NULL, 0));
}
