/* Executable graphs: setters, updates, switches, instantiation. */
#include "graphs.h"

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
