/* Conditional nodes. */
#include "graphs.h"

#include <dlfcn.h>

#define MACHINE "h200,vram=256M"

Test(graph_loops, while_goes_round_until_a_kernel_ends_it)
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

Test(graph_loops, a_wait_of_the_whole_context_does_not_hold_up_a_loop_that_runs)
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

Test(graph_loops, if_else_and_switch_take_the_body_that_a_kernel_chose)
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

Test(graph_loops, conditions_nest_and_are_captured_into)
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

static void never_called(void *arg)
{
    (void)arg;
}

Test(graph_loops, conditions_have_their_rules)
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
    CUDA_HOST_NODE_PARAMS h = {never_called, NULL};
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

Test(graph_loops, a_loop_that_fails_ends_with_its_context)
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

Test(graph_loops, rounds_of_a_loop_take_the_same_virtual_time)
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
