/* Executable graphs: setters, updates, switches, conditional nodes, and what the checks and the clock see of them. */
#include "graphs.h"
#include "scene.h"
#include "support/sanitizer.h"

#include <dlfcn.h>

#define MACHINE "h200,vram=256M"

/* ---- setters ---- */

Test(graph_exec, setters_change_later_launches_only)
{
    machine_with_context(MACHINE);
    static struct gate gate = GATE_INIT;
    struct kernels k = load_kernels();
    CUdeviceptr p = buffer(), q = buffer();
    CUgraph g;
    CUgraphNode fill, copy;
    CUDA_MEMSET_NODE_PARAMS f = {.dst = p, .value = 4, .elementSize = 4, .width = WORDS, .height = 1};
    CUDA_MEMCPY3D c = device_copy(q, p, BYTES);
    CUstream s = stream_of(CU_STREAM_NON_BLOCKING);
    OK(cuGraphCreate(&g, 0));
    OK(cuGraphAddMemsetNode(&fill, g, NULL, 0, &f, NULL));
    CUgraphNode step = add_step(g, &fill, 1, k.step, p, 2, 1);
    OK(cuGraphAddMemcpyNode(&copy, g, &step, 1, &c, NULL));
    CUgraphExec exec = made(g);
    OK(cuLaunchHostFunc(s, gate_wait, &gate));
    OK(cuGraphLaunch(exec, s));
    struct step args = {p, 5, 3, WORDS, {0}};
    CUDA_KERNEL_NODE_PARAMS params = step_params(k.step, &args);
    OK(cuGraphExecKernelNodeSetParams_v2(exec, step, &params));
    f.value = 6;
    OK(cuGraphExecMemsetNodeSetParams(exec, fill, &f, NULL));
    gate_open(&gate);
    cr_assert_eq(word_of(q), 9); /* as it was when it was launched */
    OK(cuGraphLaunch(exec, s));
    cr_assert_eq(word_of(q), 33);
    CUDA_KERNEL_NODE_PARAMS got;
    OK(cuGraphKernelNodeGetParams_v2(step, &got));
    cr_assert_eq(*(uint32_t *)got.kernelParams[1], 2); /* the graph's own node stays */
    CUdeviceptr r = buffer();
    c = device_copy(r, p, BYTES / 2);
    OK(cuGraphExecMemcpyNodeSetParams(exec, copy, &c, NULL));
    OK(cuGraphLaunch(exec, s));
    uint32_t words[WORDS];
    OK(cuStreamSynchronize(s));
    OK(cuMemcpyDtoH_v2(words, r, BYTES));
    cr_assert(words[0] == 33 && words[WORDS / 2 - 1] == 33 && words[WORDS / 2] == 1);
}

static uint32_t calls[2];
static void call(void *arg)
{
    calls[(uintptr_t)arg]++;
}

Test(graph_exec, setters_refuse_what_an_executable_graph_cannot_change)
{
    CUcontext context = machine_with_context("h200,vram=256M,gpus=2"), second;
    struct kernels k = load_kernels();
    CUdeviceptr p = buffer(), q = buffer(), far;
    uint32_t *pinned, word = 0;
    OK(cuMemHostAlloc((void **)&pinned, BYTES, 0));
    OK(cuCtxCreate_v2(&second, 0, 1));
    OK(cuMemAlloc_v2(&far, BYTES));
    CUfunction foreign;
    CUmodule module;
    OK(cuModuleLoadData(&module, graphs_ptx));
    OK(cuModuleGetFunction(&foreign, module, "step"));
    OK(cuCtxSetCurrent(context));
    CUgraph g, h;
    CUgraphNode copy, fill, host, strange, flat;
    CUDA_MEMCPY3D c = device_copy(q, p, 256), d;
    CUDA_MEMSET_NODE_PARAMS f = {.dst = p, .pitch = 512, .value = 4, .elementSize = 1, .width = 8, .height = 4}, e;
    CUDA_HOST_NODE_PARAMS call_0 = {call, NULL}, call_1 = {call, (void *)1};
    OK(cuGraphCreate(&g, 0));
    OK(cuGraphCreate(&h, 0));
    CUgraphNode step = add_step(g, NULL, 0, k.step, p, 2, 1);
    OK(cuGraphAddMemcpyNode(&copy, g, NULL, 0, &c, NULL));
    OK(cuGraphAddMemsetNode(&fill, g, NULL, 0, &f, NULL));
    OK(cuGraphAddHostNode(&host, g, NULL, 0, &call_0));
    OK(cuGraphAddEmptyNode(&strange, h, NULL, 0));
    e = (CUDA_MEMSET_NODE_PARAMS){.dst = p, .value = 1, .elementSize = 4, .width = 16, .height = 1};
    OK(cuGraphAddMemsetNode(&flat, g, NULL, 0, &e, NULL));
    CUgraphExec exec = made(g);
    /* a copy: of one dimension, of the same places, of something */
    d = c;
    d.Height = 2;
    d.srcPitch = d.dstPitch = 512;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphExecMemcpyNodeSetParams(exec, copy, &d, NULL));
    d = device_copy(far, p, 256);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphExecMemcpyNodeSetParams(exec, copy, &d, NULL));
    d = device_copy((CUdeviceptr)(uintptr_t)pinned, p, 256);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphExecMemcpyNodeSetParams(exec, copy, &d, NULL));
    d = device_copy(q, p, 0);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphExecMemcpyNodeSetParams(exec, copy, &d, NULL));
    d = device_copy(q, p, 256);
    d.srcMemoryType = CU_MEMORYTYPE_HOST;
    d.srcHost = &word;
    d.WidthInBytes = sizeof word;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphExecMemcpyNodeSetParams(exec, copy, &d, NULL));
    /* a memset: address and value of one with rows, also the width of a flat one */
    e = f;
    e.dst = q;
    e.value = 9;
    OK(cuGraphExecMemsetNodeSetParams(exec, fill, &e, NULL));
    e.width = 4;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphExecMemsetNodeSetParams(exec, fill, &e, NULL));
    e = (CUDA_MEMSET_NODE_PARAMS){.dst = q, .value = 1, .elementSize = 4, .width = 32, .height = 1};
    OK(cuGraphExecMemsetNodeSetParams(exec, flat, &e, NULL));
    e.dst = far;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphExecMemsetNodeSetParams(exec, flat, &e, NULL));
    /* a kernel: of the same context */
    struct step args = {p, 5, 3, WORDS, {0}};
    CUDA_KERNEL_NODE_PARAMS params = step_params(foreign, &args);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphExecKernelNodeSetParams_v2(exec, step, &params));
    /* nodes of other graphs, of other types */
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphExecHostNodeSetParams(exec, strange, &call_1));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphExecHostNodeSetParams(exec, step, &call_1));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphExecHostNodeSetParams(NULL, host, &call_1));
    OK(cuGraphExecHostNodeSetParams(exec, host, &call_1));
    OK(cuGraphLaunch(exec, NULL));
    OK(cuCtxSynchronize());
    cr_assert(calls[0] == 0 && calls[1] == 1);
}

Test(graph_exec, generic_setters_and_events)
{
    machine_with_context(MACHINE);
    struct kernels k = load_kernels();
    CUdeviceptr p = buffer();
    CUgraph g;
    CUgraphNode wait, record;
    CUevent a = plain_event(), b = plain_event();
    OK(cuGraphCreate(&g, 0));
    OK(cuGraphAddEventWaitNode(&wait, g, NULL, 0, a));
    CUgraphNode step = add_step(g, &wait, 1, k.step, p, 2, 1);
    OK(cuGraphAddEventRecordNode(&record, g, &step, 1, a));
    CUgraphExec exec = made(g);
    OK(cuGraphExecEventRecordNodeSetEvent(exec, record, b));
    OK(cuGraphExecEventWaitNodeSetEvent(exec, wait, b));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphExecEventWaitNodeSetEvent(exec, record, b));
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_KERNEL};
    struct step args = {p, 5, 3, WORDS, {0}};
    CUDA_KERNEL_NODE_PARAMS kp = step_params(k.step, &args);
    memcpy(&params.kernel, &kp, sizeof kp);
    OK(cuGraphExecNodeSetParams(exec, step, &params));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphExecNodeSetParams(exec, wait, &params));
    OK(cuGraphLaunch(exec, NULL));
    OK(cuEventSynchronize(b));
    cr_assert_eq(word_of(p), 8);
    OK(cuGraphEventWaitNodeSetEvent(wait, b));
    OK(cuGraphEventRecordNodeSetEvent(record, b));
}

Test(graph_exec, switched_off_nodes_do_nothing_and_keep_their_place)
{
    machine_with_context(MACHINE);
    struct kernels k = load_kernels();
    CUdeviceptr p = buffer();
    CUgraph g;
    CUgraphNode empty;
    unsigned enabled = 9;
    OK(cuGraphCreate(&g, 0));
    CUgraphNode a = add_step(g, NULL, 0, k.step, p, 2, 0), b = add_step(g, &a, 1, k.step, p, 3, 0);
    add_step(g, &b, 1, k.step, p, 5, 0);
    OK(cuGraphAddEmptyNode(&empty, g, NULL, 0));
    CUgraphExec exec = made(g);
    OK(cuGraphNodeSetEnabled(exec, b, 0));
    OK(cuGraphNodeGetEnabled(exec, b, &enabled));
    cr_assert_eq(enabled, 0);
    OK(cuGraphLaunch(exec, NULL));
    cr_assert_eq(word_of(p), 10);
    OK(cuGraphNodeSetEnabled(exec, b, 7));
    OK(cuGraphNodeGetEnabled(exec, b, &enabled));
    cr_assert_eq(enabled, 1);
    OK(cuGraphLaunch(exec, NULL));
    cr_assert_eq(word_of(p), 300);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphNodeSetEnabled(exec, empty, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphNodeGetEnabled(exec, b, NULL));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphNodeGetEnabled((CUgraphExec)g, b, &enabled));
}

/* ---- updates ---- */

static CUgraph two_steps(CUfunction f, CUdeviceptr p, uint32_t first, uint32_t second, CUgraphNode *nodes)
{
    CUgraph g;
    OK(cuGraphCreate(&g, 0));
    nodes[0] = add_step(g, NULL, 0, f, p, first, 0);
    nodes[1] = add_step(g, nodes, 1, f, p, second, 1);
    return g;
}

Test(graph_exec, an_update_takes_over_all_parameters_or_none)
{
    machine_with_context(MACHINE);
    struct kernels k = load_kernels();
    CUdeviceptr p = buffer(), q = buffer();
    CUgraphNode n[2], m[4], bad;
    CUgraphExecUpdateResultInfo info;
    CUgraphExecUpdateResult result;
    CUgraph g = two_steps(k.step, p, 2, 3, n), same = two_steps(k.step, q, 5, 7, m), other;
    CUgraphExec exec = made(g);
    OK(cuGraphExecUpdate_v2(exec, same, &info));
    cr_assert(info.result == CU_GRAPH_EXEC_UPDATE_SUCCESS && !info.errorNode);
    OK(cuGraphLaunch(exec, NULL));
    cr_assert(word_of(q) == 36 && word_of(p) == 1);
    OK(cuGraphExecUpdate(exec, g, &bad, &result));
    OK(cuGraphLaunch(exec, NULL));
    cr_assert_eq(word_of(p), 7);
    /* another number of nodes */
    OK(cuGraphAddEmptyNode(&m[2], same, NULL, 0));
    GIVES(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate_v2(exec, same, &info));
    cr_assert(info.result == CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED && !info.errorNode);
    /* another shape */
    OK(cuGraphCreate(&other, 0));
    m[0] = add_step(other, NULL, 0, k.step, q, 1, 1);
    m[1] = add_step(other, NULL, 0, k.step, q, 1, 1);
    GIVES(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate_v2(exec, other, &info));
    cr_assert(info.result == CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED && info.errorNode == m[1]);
    OK(cuGraphAddDependencies(other, &m[1], &m[0], 1));
    GIVES(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate_v2(exec, other, &info));
    cr_assert(info.result == CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED && info.errorNode == m[0]);
    /* another type: and what stands before it is not changed either */
    OK(cuGraphCreate(&other, 0));
    m[0] = add_step(other, NULL, 0, k.step, p, 100, 100);
    OK(cuGraphAddEmptyNode(&m[1], other, m, 1));
    GIVES(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate(exec, other, &bad, &result));
    cr_assert(result == CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED && bad == m[1]);
    OK(cuGraphLaunch(exec, NULL));
    cr_assert_eq(word_of(p), 7 * 2 * 3 + 1);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphExecUpdate_v2(exec, NULL, &info));
    cr_assert_eq(info.result, CU_GRAPH_EXEC_UPDATE_ERROR);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphExecUpdate_v2(exec, g, NULL));
}

Test(graph_exec, an_update_names_the_node_whose_parameters_do_not_fit)
{
    CUcontext context = machine_with_context("h200,vram=256M,gpus=2"), second;
    struct kernels k = load_kernels();
    CUdeviceptr p = buffer(), q = buffer(), far;
    CUfunction foreign;
    CUmodule module;
    CUgraph g, h;
    CUgraphNode n[2], a, b;
    CUgraphExecUpdateResultInfo info;
    OK(cuCtxCreate_v2(&second, 0, 1));
    OK(cuMemAlloc_v2(&far, BYTES));
    OK(cuModuleLoadData(&module, graphs_ptx));
    OK(cuModuleGetFunction(&foreign, module, "step"));
    OK(cuCtxSetCurrent(context));
    CUgraphExec exec = made(two_steps(k.step, p, 2, 3, n));
    h = two_steps(foreign, p, 2, 3, n);
    GIVES(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate_v2(exec, h, &info));
    cr_assert(info.result == CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE && info.errorNode == n[0]);
    h = two_steps(k.step, p, 2, 3, n);
    CUkernelNodeAttrValue v = {.cooperative = 1};
    OK(cuGraphKernelNodeSetAttribute(n[1], CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &v));
    GIVES(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate_v2(exec, h, &info));
    cr_assert(info.result == CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED && info.errorNode == n[1]);
    CUDA_MEMCPY3D c = device_copy(q, p, 256);
    OK(cuGraphCreate(&g, 0));
    OK(cuGraphAddMemcpyNode(&a, g, NULL, 0, &c, NULL));
    exec = made(g);
    OK(cuGraphCreate(&h, 0));
    c = device_copy(far, p, 256);
    OK(cuGraphAddMemcpyNode(&b, h, NULL, 0, &c, NULL));
    GIVES(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate_v2(exec, h, &info));
    cr_assert(info.result == CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED && info.errorNode == b);
}

Test(graph_exec, children_are_updated_with_their_parents_and_alone)
{
    machine_with_context(MACHINE);
    struct kernels k = load_kernels();
    CUdeviceptr p = buffer();
    CUgraph g, h, child, other;
    CUgraphNode n[2], node, twin;
    CUgraphExecUpdateResultInfo info;
    child = two_steps(k.step, p, 2, 3, n);
    other = two_steps(k.step, p, 5, 7, n);
    OK(cuGraphCreate(&g, 0));
    OK(cuGraphAddChildGraphNode(&node, g, NULL, 0, child));
    OK(cuGraphCreate(&h, 0));
    OK(cuGraphAddChildGraphNode(&twin, h, NULL, 0, other));
    CUgraphExec exec = made(g);
    OK(cuGraphLaunch(exec, NULL));
    cr_assert_eq(word_of(p), 7);
    OK(cuGraphExecUpdate_v2(exec, h, &info));
    OK(cuMemsetD32_v2(p, 1, WORDS));
    OK(cuGraphLaunch(exec, NULL));
    cr_assert_eq(word_of(p), 36);
    OK(cuGraphExecChildGraphNodeSetParams(exec, node, child));
    OK(cuMemsetD32_v2(p, 1, WORDS));
    OK(cuGraphLaunch(exec, NULL));
    cr_assert_eq(word_of(p), 7);
    OK(cuGraphDestroyNode(n[1]));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphExecChildGraphNodeSetParams(exec, node, other));
}

/* ---- instantiation ---- */

Test(graph_exec, flags_are_checked_and_told)
{
    machine_with_context(MACHINE);
    struct kernels k = load_kernels();
    CUdeviceptr p = buffer();
    CUgraphNode n[2];
    CUgraph g = two_steps(k.step, p, 2, 3, n);
    CUgraphExec exec;
    cuuint64_t flags;
    CUstream s = stream_of(CU_STREAM_NON_BLOCKING);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiateWithFlags(&exec, g, 64));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiateWithFlags(&exec, g, CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiateWithFlags(&exec, g, 5));
    GIVES(CUDA_ERROR_NOT_SUPPORTED, cuGraphInstantiateWithFlags(&exec, g, CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiateWithFlags(NULL, g, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiateWithFlags(&exec, NULL, 0));
    OK(cuGraphInstantiateWithFlags(&exec, g, CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY));
    OK(cuGraphExecGetFlags(exec, &flags));
    cr_assert_eq(flags, CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY);
    CUDA_GRAPH_INSTANTIATE_PARAMS params = {.flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD | 1, .hUploadStream = s};
    OK(cuGraphInstantiateWithParams(&exec, g, &params));
    cr_assert_eq(params.result_out, CUDA_GRAPH_INSTANTIATE_SUCCESS);
    OK(cuGraphExecGetFlags(exec, &flags));
    cr_assert_eq(flags, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
    OK(cuGraphUpload(exec, s));
    OK(cuGraphLaunch(exec, s));
    cr_assert_eq(word_of(p), 7);
    OK(cuModuleUnload(k.module));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuGraphLaunch(exec, s)); /* its kernels are gone */
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiateWithFlags(&exec, g, 0));
}

Test(graph_exec, copies_keep_the_placement_that_they_were_instantiated_with)
{
    machine_with_context(MACHINE);
    CUdeviceptr va = mapped_chunks(2), q = buffer();
    CUmemAllocationProp prop = on_device(0);
    CUmemAccessDesc access = access_of(0);
    CUmemGenericAllocationHandle handle;
    CUgraph g, h;
    CUgraphNode copy, fill;
    CUDA_MEMCPY3D c = device_copy(q, va, BYTES);
    CUDA_MEMSET_NODE_PARAMS f = {.dst = va + PAGE, .value = 4, .elementSize = 4, .width = 16, .height = 1};
    OK(cuGraphCreate(&g, 0));
    OK(cuGraphAddMemcpyNode(&copy, g, NULL, 0, &c, NULL));
    OK(cuGraphCreate(&h, 0));
    OK(cuGraphAddMemsetNode(&fill, h, NULL, 0, &f, NULL));
    CUgraphExec copies = made(g), fills = made(h);
    OK(cuMemsetD32_v2(va, 5, WORDS));
    OK(cuGraphLaunch(copies, NULL));
    OK(cuGraphLaunch(fills, NULL));
    cr_assert_eq(word_of(q), 5);
    OK(cuCtxSynchronize());
    OK(cuMemUnmap(va, PAGE));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(copies, NULL));
    OK(cuMemCreate(&handle, PAGE, &prop, 0));
    OK(cuMemMap(va, PAGE, 0, handle, 0));
    OK(cuMemSetAccess(va, PAGE, &access, 1));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(copies, NULL)); /* memory again, but not the same */
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphExecMemcpyNodeSetParams(copies, copy, &c, NULL));
    OK(cuGraphLaunch(fills, NULL)); /* the other chunk is where it was */
    CUgraphExecUpdateResultInfo info;
    OK(cuGraphExecUpdate_v2(copies, g, &info)); /* placed anew */
    OK(cuMemsetD32_v2(va, 8, WORDS));
    OK(cuGraphLaunch(copies, NULL));
    cr_assert_eq(word_of(q), 8);
}

Test(graph_exec, kernels_follow_a_remap)
{
    machine_with_context(MACHINE);
    struct kernels k = load_kernels();
    CUdeviceptr va = mapped_chunks(1);
    CUmemAllocationProp prop = on_device(0);
    CUmemAccessDesc access = access_of(0);
    CUmemGenericAllocationHandle handle;
    CUgraph g;
    OK(cuGraphCreate(&g, 0));
    add_step(g, NULL, 0, k.step, va, 2, 1);
    CUgraphExec exec = made(g);
    OK(cuMemUnmap(va, PAGE));
    OK(cuMemCreate(&handle, PAGE, &prop, 0));
    OK(cuMemMap(va, PAGE, 0, handle, 0));
    OK(cuMemSetAccess(va, PAGE, &access, 1));
    OK(cuMemsetD32_v2(va, 5, WORDS));
    OK(cuGraphLaunch(exec, NULL));
    cr_assert_eq(word_of(va), 11);
}

/* ---- conditional nodes ---- */

static CUgraphNode add_conditional(CUgraph g, const CUgraphNode *after, CUgraphConditionalHandle handle,
                                   CUgraphConditionalNodeType type, unsigned size, CUgraph *bodies)
{
    CUgraphNode node;
    CUcontext context;
    OK(cuCtxGetCurrent(&context));
    CUgraphNodeParams p = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL};
    p.conditional = (CUDA_CONDITIONAL_NODE_PARAMS){handle, type, size, NULL, context};
    OK(cuGraphAddNode(&node, g, after, after ? 1 : 0, &p));
    memcpy(bodies, p.conditional.phGraph_out, size * sizeof *bodies);
    return node;
}

static CUgraphNode add_setter(CUgraph g, const CUgraphNode *after, CUfunction f, CUdeviceptr p,
                              CUgraphConditionalHandle handle)
{
    CUgraphNode node;
    void *pointers[] = {&p, &handle};
    CUDA_KERNEL_NODE_PARAMS params = {.func = f,
                                      .gridDimX = 1,
                                      .gridDimY = 1,
                                      .gridDimZ = 1,
                                      .blockDimX = 1,
                                      .blockDimY = 1,
                                      .blockDimZ = 1,
                                      .kernelParams = pointers};
    OK(cuGraphAddKernelNode_v2(&node, g, after, after ? 1 : 0, &params));
    return node;
}

Test(graph_exec, while_goes_round_until_a_kernel_ends_it)
{
    machine_with_context(MACHINE);
    struct kernels k = load_kernels();
    CUdeviceptr p = buffer(), counter = buffer();
    CUgraph g, body;
    CUgraphConditionalHandle handle;
    OK(cuGraphCreate(&g, 0));
    OK(cuGraphConditionalHandleCreate(&handle, g, NULL, 1, CU_GRAPH_COND_ASSIGN_DEFAULT));
    CUgraphNode loop = add_conditional(g, NULL, handle, CU_GRAPH_COND_TYPE_WHILE, 1, &body);
    CUgraphNode step = add_step(body, NULL, 0, k.step, p, 1, 3);
    add_setter(body, &step, k.countdown, counter, handle);
    add_step(g, &loop, 1, k.step, p, 2, 0);
    CUgraphExec exec = made(g);
    CUstream s = stream_of(CU_STREAM_NON_BLOCKING);
    for (uint32_t rounds = 1; rounds < 40; rounds += 19) {
        OK(cuMemsetD32Async(p, 1, WORDS, s));
        OK(cuMemsetD32Async(counter, rounds, 1, s));
        OK(cuGraphLaunch(exec, s));
        OK(cuStreamSynchronize(s));
        cr_assert_eq(word_of(p), (1 + 3 * rounds) * 2);
    }
}

Test(graph_exec, a_wait_of_the_whole_context_does_not_hold_up_a_loop_that_runs)
{
    CUcontext context = machine_with_context(MACHINE);
    static struct gate gate = GATE_INIT;
    struct kernels k = load_kernels();
    CUdeviceptr p = buffer(), counter = buffer();
    CUgraph g, body;
    CUgraphConditionalHandle handle;
    OK(cuGraphCreate(&g, 0));
    OK(cuGraphConditionalHandleCreate(&handle, g, NULL, 1, CU_GRAPH_COND_ASSIGN_DEFAULT));
    add_conditional(g, NULL, handle, CU_GRAPH_COND_TYPE_WHILE, 1, &body);
    CUgraphNode step = add_step(body, NULL, 0, k.step, p, 1, 3);
    add_setter(body, &step, k.countdown, counter, handle);
    CUgraphExec exec = made(g);
    CUstream s = stream_of(CU_STREAM_NON_BLOCKING), other = stream_of(CU_STREAM_NON_BLOCKING);
    CUevent end = plain_event(), all = plain_event();
    OK(cuMemsetD32_v2(counter, 4, 1));
    OK(cuGraphLaunch(exec, s)); /* makes its hidden streams */
    OK(cuCtxSynchronize());
    OK(cuMemsetD32_v2(counter, 9, 1));
    OK(cuCtxSynchronize());
    OK(cuLaunchHostFunc(s, gate_wait, &gate));
    OK(cuGraphLaunch(exec, s));
    OK(cuEventRecord(end, s));
    OK(cuCtxWaitEvent(context, end));
    OK(cuCtxRecordEvent(context, all));
    GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(other));
    GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(all));
    gate_open(&gate);
    OK(cuEventSynchronize(all));
    cr_assert_eq(word_of(p), 1 + 3 * (4 + 9));
}

Test(graph_exec, if_else_and_switch_take_the_body_that_a_kernel_chose)
{
    machine_with_context(MACHINE);
    struct kernels k = load_kernels();
    CUdeviceptr p = buffer(), q = buffer(), choice = buffer();
    CUgraph g, branch[2], cases[3];
    CUgraphConditionalHandle handle, other;
    OK(cuGraphCreate(&g, 0));
    OK(cuGraphConditionalHandleCreate(&handle, g, NULL, 0, 0));
    OK(cuGraphConditionalHandleCreate(&other, g, NULL, 0, 0));
    CUgraphNode first = add_setter(g, NULL, k.choose, choice, handle);
    CUgraphNode second = add_setter(g, &first, k.choose, choice, other);
    add_conditional(g, &second, handle, CU_GRAPH_COND_TYPE_IF, 2, branch);
    add_conditional(g, &second, other, CU_GRAPH_COND_TYPE_SWITCH, 3, cases);
    add_step(branch[0], NULL, 0, k.step, p, 1, 10);
    add_step(branch[1], NULL, 0, k.step, p, 1, 20);
    for (uint32_t i = 0; i < 3; i++)
        add_step(cases[i], NULL, 0, k.step, q, 1, 100 + i);
    CUgraphExec exec = made(g);
    for (uint32_t chosen = 0; chosen < 5; chosen++) {
        OK(cuMemsetD32_v2(p, 0, WORDS));
        OK(cuMemsetD32_v2(q, 0, WORDS));
        OK(cuMemsetD32_v2(choice, chosen, 1));
        OK(cuGraphLaunch(exec, NULL));
        cr_assert_eq(word_of(p), chosen ? 10 : 20);
        cr_assert_eq(word_of(q), chosen < 3 ? 100 + chosen : 0);
    }
}

Test(graph_exec, conditions_nest_and_are_captured_into)
{
    machine_with_context(MACHINE);
    struct kernels k = load_kernels();
    CUdeviceptr p = buffer(), outer_count = buffer(), inner_count = buffer();
    CUgraph g, body, inner, same;
    CUgraphConditionalHandle outer, nested;
    CUgraphNode reset;
    CUstream s = stream_of(CU_STREAM_NON_BLOCKING);
    OK(cuGraphCreate(&g, 0));
    OK(cuGraphConditionalHandleCreate(&outer, g, NULL, 1, CU_GRAPH_COND_ASSIGN_DEFAULT));
    OK(cuGraphConditionalHandleCreate(&nested, g, NULL, 0, 0));
    add_conditional(g, NULL, outer, CU_GRAPH_COND_TYPE_WHILE, 1, &body);
    CUDA_MEMSET_NODE_PARAMS f = {.dst = inner_count, .value = 3, .elementSize = 4, .width = 1, .height = 1};
    OK(cuGraphAddMemsetNode(&reset, body, NULL, 0, &f, NULL));
    CUgraphNode set = add_setter(body, &reset, k.choose, inner_count, nested);
    CUgraphNode loop = add_conditional(body, &set, nested, CU_GRAPH_COND_TYPE_WHILE, 1, &inner);
    add_setter(body, &loop, k.countdown, outer_count, outer);
    OK(cuStreamBeginCaptureToGraph(s, inner, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(launch_step(k.step, s, p, 1, 1));
    void *pointers[] = {&inner_count, &nested};
    OK(cuLaunchKernel(k.countdown, 1, 1, 1, 1, 1, 1, 0, s, pointers, NULL));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(g)); /* it is being captured into, below */
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiateWithFlags(&(CUgraphExec){NULL}, g, 0));
    OK(cuStreamEndCapture(s, &same));
    OK(cuMemsetD32_v2(outer_count, 4, 1));
    OK(cuGraphLaunch(made(g), s));
    OK(cuStreamSynchronize(s));
    cr_assert_eq(word_of(p), 1 + 4 * 3);
}

Test(graph_exec, conditions_have_their_rules)
{
    CUcontext context = machine_with_context(MACHINE);
    struct kernels k = load_kernels();
    CUdeviceptr p = buffer();
    CUgraph g, body, clone;
    CUgraphNode node, bad;
    CUgraphConditionalHandle handle, unused;
    CUgraphExec exec, second;
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL};
    OK(cuGraphCreate(&g, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphConditionalHandleCreate(&handle, g, NULL, 0, 2));
    OK(cuGraphConditionalHandleCreate(&handle, g, NULL, 0, 0));
    params.conditional = (CUDA_CONDITIONAL_NODE_PARAMS){handle + 1, CU_GRAPH_COND_TYPE_IF, 1, NULL, context};
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddNode(&node, g, NULL, 0, &params));
    params.conditional.handle = handle;
    params.conditional.size = 3;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddNode(&node, g, NULL, 0, &params));
    node = add_conditional(g, NULL, handle, CU_GRAPH_COND_TYPE_IF, 1, &body);
    params.conditional.size = 1;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddNode(&bad, g, NULL, 0, &params)); /* it has its node */
    CUDA_HOST_NODE_PARAMS h = {call, NULL};
    GIVES(CUDA_ERROR_NOT_SUPPORTED, cuGraphAddHostNode(&bad, body, NULL, 0, &h));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(body));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiateWithFlags(&exec, body, 0));
    GIVES(CUDA_ERROR_NOT_SUPPORTED, cuGraphClone(&clone, g));
    add_step(body, NULL, 0, k.step, p, 1, 1);
    exec = made(g);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiateWithFlags(&second, g, 0));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphConditionalHandleCreate(&unused, g, NULL, 0, 0));
    CUDA_GRAPH_INSTANTIATE_PARAMS ip = {0};
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiateWithParams(&exec, g, &ip));
    cr_assert_eq(ip.result_out, CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED);
    OK(cuGraphDestroy(g));
    CUdeviceptr choice = buffer();
    void *pointers[] = {&choice, &handle};
    OK(cuLaunchKernel(k.choose, 1, 1, 1, 1, 1, 1, 0, NULL, pointers, NULL)); /* a handle of no graph */
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
}

Test(graph_exec, a_loop_that_fails_ends_with_its_context)
{
    machine_with_context(MACHINE);
    struct kernels k = load_kernels();
    CUdeviceptr counter = buffer(), gone;
    CUgraph g, body;
    OK(cuMemAlloc_v2(&gone, 4 * MIB)); /* pages of its own */
    CUgraphConditionalHandle handle;
    static struct gate gate = GATE_INIT;
    CUstream s = stream_of(CU_STREAM_NON_BLOCKING);
    OK(cuGraphCreate(&g, 0));
    OK(cuGraphConditionalHandleCreate(&handle, g, NULL, 1, CU_GRAPH_COND_ASSIGN_DEFAULT));
    CUgraphNode first = add_step(g, NULL, 0, k.step, counter, 1, 5);
    CUgraphNode loop = add_conditional(g, &first, handle, CU_GRAPH_COND_TYPE_WHILE, 1, &body);
    CUgraphNode count = add_setter(body, NULL, k.countdown, counter, handle);
    add_step(body, &count, 1, k.step, gone, 1, 3);
    add_step(g, &loop, 1, k.step, counter, 1, 5);
    CUgraphExec exec = made(g);
    OK(cuMemFree_v2(gone));
    OK(cuLaunchHostFunc(s, gate_wait, &gate));
    OK(cuGraphLaunch(exec, s));
    OK(cuGraphExecDestroy(exec)); /* the launch has the last references */
    OK(cuGraphDestroy(g));
    gate_open(&gate);
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(s));
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
}

/* ---- virtual time ---- */

Test(graph_exec, a_graph_costs_one_launch_and_its_nodes)
{
    machine_with_context(MACHINE);
    uint64_t (*now)(void) = (uint64_t(*)(void))dlsym(RTLD_DEFAULT, "sg_virtual_now_ns");
    cr_assert_not_null(now);
    struct kernels k = load_kernels();
    CUdeviceptr p = buffer();
    CUgraph g;
    CUgraphNode last[1];
    OK(cuGraphCreate(&g, 0));
    for (int i = 0; i < 50; i++)
        last[0] = add_step(g, last, i > 0, k.step, p, 1, 1);
    CUgraphExec exec = made(g);
    CUstream s = stream_of(CU_STREAM_NON_BLOCKING);
    OK(cuStreamSynchronize(s));
    uint64_t t0 = now();
    OK(cuGraphLaunch(exec, s));
    uint64_t call_ns = now() - t0;
    OK(cuStreamSynchronize(s));
    uint64_t graph_ns = now() - t0;
    t0 = now();
    for (int i = 0; i < 50; i++)
        OK(launch_step(k.step, s, p, 1, 1));
    uint64_t calls_ns = now() - t0;
    OK(cuStreamSynchronize(s));
    uint64_t stream_ns = now() - t0;
    cr_assert_eq(call_ns, 2550);
    cr_assert_gt(calls_ns, 10 * call_ns);
    cr_assert_lt(graph_ns, stream_ns);
    cr_assert_gt(graph_ns, 50 * 700);
    t0 = now();
    OK(cuGraphLaunch(exec, s));
    OK(cuStreamSynchronize(s));
    cr_assert_eq(now() - t0, graph_ns); /* exact */
    cr_assert_eq(word_of(p), 151);
}

Test(graph_exec, rounds_of_a_loop_take_the_same_virtual_time)
{
    machine_with_context(MACHINE);
    uint64_t (*now)(void) = (uint64_t(*)(void))dlsym(RTLD_DEFAULT, "sg_virtual_now_ns");
    struct kernels k = load_kernels();
    CUdeviceptr p = buffer(), counter = buffer();
    CUgraph g, body;
    CUgraphConditionalHandle handle;
    CUstream s = stream_of(CU_STREAM_NON_BLOCKING);
    uint64_t taken[3];
    OK(cuGraphCreate(&g, 0));
    OK(cuGraphConditionalHandleCreate(&handle, g, NULL, 1, CU_GRAPH_COND_ASSIGN_DEFAULT));
    add_conditional(g, NULL, handle, CU_GRAPH_COND_TYPE_WHILE, 1, &body);
    CUgraphNode step = add_step(body, NULL, 0, k.step, p, 1, 3);
    add_setter(body, &step, k.countdown, counter, handle);
    CUgraphExec exec = made(g);
    for (uint32_t i = 0; i < 3; i++) {
        OK(cuMemsetD32Async(counter, 10 + 10 * i, 1, s));
        OK(cuStreamSynchronize(s));
        uint64_t t0 = now();
        OK(cuGraphLaunch(exec, s));
        OK(cuStreamSynchronize(s));
        taken[i] = now() - t0;
    }
    cr_assert_gt(taken[1] - taken[0], 10 * 2 * 700);
    cr_assert_eq(taken[2] - taken[1], taken[1] - taken[0]);
}

/* ---- many of them ---- */

#define BUFFERS 6
#define RANDOM_NODES 120

static uint32_t next_random(uint32_t *state)
{
    *state = *state * 1664525 + 1013904223;
    return *state >> 8;
}

/* One operation, as a node or as a call: adds to a buffer, or copies one to another. */
struct random_op {
    unsigned to, from;
    bool copy;
    uint32_t factor, term;
};

static CUgraphNode random_node(CUgraph g, const struct random_op *op, CUfunction f, const CUdeviceptr *p,
                               const CUgraphNode *deps, size_t count)
{
    CUgraphNode node;
    if (!op->copy)
        return add_step(g, deps, count, f, p[op->to], op->factor, op->term);
    CUDA_MEMCPY3D c = device_copy(p[op->to], p[op->from], BYTES);
    OK(cuGraphAddMemcpyNode(&node, g, deps, count, &c, NULL));
    return node;
}

/* Each node depends on the last writer of what it uses, and on who has read since what it writes. */
static CUgraph random_graph(uint32_t seed, CUfunction f, const CUdeviceptr *p, struct random_op *ops)
{
    CUgraph g;
    CUgraphNode nodes[RANDOM_NODES];
    unsigned writer[BUFFERS] = {0}, readers[BUFFERS][RANDOM_NODES], reader_count[BUFFERS] = {0};
    OK(cuGraphCreate(&g, 0));
    for (unsigned i = 0; i < RANDOM_NODES; i++) {
        struct random_op *op = &ops[i];
        bool needed[RANDOM_NODES] = {false};
        CUgraphNode deps[RANDOM_NODES];
        size_t count = 0;
        op->to = next_random(&seed) % BUFFERS;
        op->from = (op->to + 1 + next_random(&seed) % (BUFFERS - 1)) % BUFFERS;
        op->copy = next_random(&seed) % 3 == 0;
        op->factor = next_random(&seed) | 1;
        op->term = next_random(&seed);
        if (writer[op->to])
            needed[writer[op->to] - 1] = true;
        if (op->copy && writer[op->from])
            needed[writer[op->from] - 1] = true;
        for (unsigned r = 0; r < reader_count[op->to]; r++)
            needed[readers[op->to][r]] = true;
        for (unsigned n = 0; n < i; n++)
            if (needed[n])
                deps[count++] = nodes[n];
        nodes[i] = random_node(g, op, f, p, deps, count);
        writer[op->to] = i + 1;
        reader_count[op->to] = 0;
        if (op->copy)
            readers[op->from][reader_count[op->from]++] = i;
    }
    return g;
}

Test(graph_exec, random_graphs_give_what_their_nodes_give_one_by_one)
{
    machine_with_context(MACHINE);
    struct kernels k = load_kernels();
    static struct random_op ops[RANDOM_NODES];
    CUdeviceptr p[BUFFERS], q[BUFFERS];
    CUstream s = stream_of(CU_STREAM_NON_BLOCKING);
    for (unsigned i = 0; i < BUFFERS; i++) {
        p[i] = buffer();
        q[i] = buffer();
    }
    for (uint32_t seed = 1; seed <= (SANITIZED ? 4 : 12); seed++) {
        CUgraph g = random_graph(seed, k.step, p, ops);
        CUgraphExec exec = made(g);
        OK(cuGraphLaunch(exec, s));
        OK(cuGraphLaunch(exec, s));
        for (int twice = 0; twice < 2; twice++)
            for (unsigned i = 0; i < RANDOM_NODES; i++) {
                if (ops[i].copy)
                    OK(cuMemcpyAsync(q[ops[i].to], q[ops[i].from], BYTES, s));
                else
                    OK(launch_step(k.step, s, q[ops[i].to], ops[i].factor, ops[i].term));
            }
        for (unsigned i = 0; i < BUFFERS; i++)
            cr_assert_eq(word_of(p[i]), word_of(q[i]), "seed %u, buffer %u", seed, i);
        OK(cuGraphExecDestroy(exec));
        OK(cuGraphDestroy(g));
    }
}

struct launcher {
    CUcontext context;
    CUgraphExec exec;
    intptr_t failed;
};

static void *launch_many(void *arg)
{
    struct launcher *l = arg;
    CUstream s;
    intptr_t r = cuCtxSetCurrent(l->context);
    r = r ? r : cuStreamCreate(&s, CU_STREAM_NON_BLOCKING);
    for (int i = 0; i < 50 && !r; i++)
        r = cuGraphLaunch(l->exec, s);
    r = r ? r : cuStreamSynchronize(s);
    l->failed = r;
    return NULL;
}

Test(graph_exec, threads_launch_the_same_and_others)
{
    CUcontext context = machine_with_context(MACHINE);
    struct kernels k = load_kernels();
    CUdeviceptr p = buffer(), q = buffer();
    CUgraphNode n[2];
    CUgraphExec exec = made(two_steps(k.step, p, 1, 1, n)), other = made(two_steps(k.step, q, 1, 1, n));
    struct launcher all[6];
    pthread_t threads[6];
    for (int i = 0; i < 6; i++) {
        all[i] = (struct launcher){context, i % 2 ? exec : other, 0};
        cr_assert_eq(pthread_create(&threads[i], NULL, launch_many, &all[i]), 0);
    }
    for (int i = 0; i < 6; i++) {
        pthread_join(threads[i], NULL);
        cr_assert_eq(all[i].failed, 0);
    }
    cr_assert(word_of(p) == 151 && word_of(q) == 151);
}

/* ---- what the checks see ---- */

static CUfunction scene_kernel;
static CUdeviceptr scene_begin(CUgraph *g)
{
    CUcontext context;
    CUmodule module;
    CUdeviceptr p;
    MUST(cuInit(0));
    MUST(cuCtxCreate_v2(&context, 0, 0));
    MUST(cuModuleLoadData(&module, graphs_ptx));
    MUST(cuModuleGetFunction(&scene_kernel, module, "step"));
    MUST(cuMemAlloc_v2(&p, BYTES));
    MUST(cuMemsetD32_v2(p, 1, WORDS));
    MUST(cuCtxSynchronize());
    MUST(cuGraphCreate(g, 0));
    return p;
}

static CUgraphNode scene_step(CUgraph g, const CUgraphNode *after, CUdeviceptr p)
{
    CUgraphNode node;
    struct step s = {p, 1, 1, WORDS - 32, {0}};
    CUDA_KERNEL_NODE_PARAMS params = step_params(scene_kernel, &s);
    MUST(cuGraphAddKernelNode_v2(&node, g, after, after ? 1 : 0, &params));
    return node;
}

static void scene_launch(CUgraph g, int times)
{
    CUgraphExec exec;
    CUstream s;
    MUST(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    MUST(cuGraphInstantiateWithFlags(&exec, g, 0));
    for (int i = 0; i < times; i++)
        MUST(cuGraphLaunch(exec, s));
    MUST(cuStreamSynchronize(s));
    MUST(cuGraphExecDestroy(exec));
    MUST(cuGraphDestroy(g));
}

static int unordered(void)
{
    CUgraph g;
    CUdeviceptr p = scene_begin(&g);
    scene_step(g, NULL, p);
    scene_step(g, NULL, p);
    scene_launch(g, 1);
    return 0;
}

static int ordered(void)
{
    CUgraph g;
    CUdeviceptr p = scene_begin(&g);
    CUgraphNode a = scene_step(g, NULL, p), b, join;
    CUDA_MEMCPY3D c = device_copy(p, p + BYTES / 2, 64);
    CUcontext context;
    MUST(cuCtxGetCurrent(&context));
    MUST(cuGraphAddMemcpyNode(&b, g, &a, 1, &c, context));
    MUST(cuGraphAddEmptyNode(&join, g, &b, 1));
    scene_step(g, &join, p);
    scene_launch(g, 5);
    return 0;
}

static int looping(void)
{
    CUgraph g;
    CUdeviceptr p = scene_begin(&g);
    CUcontext context;
    CUgraphNode node;
    CUgraphConditionalHandle handle;
    CUmodule module;
    CUfunction countdown;
    MUST(cuCtxGetCurrent(&context));
    MUST(cuModuleLoadData(&module, graphs_ptx));
    MUST(cuModuleGetFunction(&countdown, module, "countdown"));
    MUST(cuGraphConditionalHandleCreate(&handle, g, NULL, 1, CU_GRAPH_COND_ASSIGN_DEFAULT));
    CUgraphNodeParams c = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL};
    c.conditional = (CUDA_CONDITIONAL_NODE_PARAMS){handle, CU_GRAPH_COND_TYPE_WHILE, 1, NULL, context};
    CUgraphNode first = scene_step(g, NULL, p + 64), loop;
    MUST(cuGraphAddNode(&loop, g, &first, 1, &c));
    CUgraph body = c.conditional.phGraph_out[0];
    void *pointers[] = {&p, &handle};
    CUDA_KERNEL_NODE_PARAMS k = {countdown, 1, 1, 1, 1, 1, 1, 0, pointers, NULL, NULL, NULL};
    CUgraphNode step = scene_step(body, NULL, p + 64);
    MUST(cuGraphAddKernelNode_v2(&node, body, &step, 1, &k));
    scene_step(g, &loop, p + 64);
    uint32_t rounds = 7;
    MUST(cuMemcpyHtoD_v2(p, &rounds, sizeof rounds));
    MUST(cuCtxSynchronize());
    scene_launch(g, 1);
    return 0;
}

static int leaky(void)
{
    CUgraph g;
    CUgraphExec exec;
    scene_begin(&g);
    MUST(cuGraphInstantiateWithFlags(&exec, g, 0));
    return 0;
}

SCENES({"unordered", unordered}, {"ordered", ordered}, {"looping", looping}, {"leaky", leaky})

static long long findings(const char *scene, const char *check, const char *what, const char *text)
{
    char report[] = "/tmp/simgpu-graph-report-XXXXXX", setting[128], name[64], checks[64], sim[64];
    int fd = mkstemp(report);
    cr_assert_geq(fd, 0);
    close(fd);
    snprintf(setting, sizeof setting, "SIMGPU_REPORT=%s", report);
    snprintf(name, sizeof name, "SIM_SCENE=%s", scene);
    snprintf(checks, sizeof checks, "SIMGPU_CHECK=%s", check);
    snprintf(sim, sizeof sim, "SIMGPU=%s", MACHINE);
    const char *const env[] = {sim, "SIMGPU_LOG=warn", checks, setting, NULL};
    struct hr_test_result r = play(name, env);
    cr_assert_eq(r.status, 0, "%s", r.err);
    if (text)
        cr_assert_not_null(strstr(r.err, text), "%s", r.err);
    long long found = reported(slurp(report), what);
    unlink(report);
    hr_test_result_finish(&r);
    return found;
}

/* The trace of a replay with that seed. */
static void trace_of(const char *scene, unsigned seed, char *trace, size_t bytes)
{
    char report[] = "/tmp/simgpu-graph-replay-XXXXXX", setting[128], name[64], sim[64];
    int fd = mkstemp(report);
    cr_assert_geq(fd, 0);
    close(fd);
    snprintf(setting, sizeof setting, "SIMGPU_REPORT=%s", report);
    snprintf(name, sizeof name, "SIM_SCENE=%s", scene);
    snprintf(sim, sizeof sim, "SIMGPU=%s,replay=%u", MACHINE, seed);
    const char *const env[] = {sim, setting, NULL};
    struct hr_test_result r = play(name, env);
    cr_assert_eq(r.status, 0, "%s", r.err);
    hr_test_result_finish(&r);
    const char *at = strstr(slurp(report), "\"replay\"");
    cr_assert_not_null(at);
    cr_assert_not_null(strstr(at, "\"repeatable\": true"));
    snprintf(trace, bytes, "%.80s", at);
    unlink(report);
}

Test(graph_exec, replays_repeat_graphs_and_loops)
{
    static const char *const played[] = {"ordered", "looping"};
    char first[100], second[100];
    for (unsigned i = 0; i < 2; i++) {
        trace_of(played[i], 5, first, sizeof first);
        trace_of(played[i], 5, second, sizeof second);
        cr_assert_str_eq(first, second);
    }
}

Test(graph_exec, nodes_that_nothing_orders_race)
{
    cr_assert_gt(findings("unordered", "race", "race", "nothing orders the two"), 0);
    cr_assert_eq(findings("ordered", "race", "race", NULL), 0);
    cr_assert_eq(findings("looping", "race", "race", NULL), 0); /* each round comes after the one before */
}

Test(graph_exec, graphs_that_are_left_are_leaks)
{
    cr_assert_gt(findings("leaky", "leak", "leak", "executable graph was not destroyed"), 1);
}
