/* Executable graphs: what they name is in place when they are launched, and what they copy stays where it is. */
#include "graphs.h"

static uint32_t host_calls;
static void call_host(void *arg)
{
    ++*(uint32_t *)arg;
}

/* --- every kind of node ---------------------------------------------------------------------------------------------- */

struct all_kinds {
    CUdeviceptr filled, copied, computed, flag, child;
    CUgraph graph;
    CUgraphNode fill, copy, compute, batch, in_child;
};

static void add_all_kinds(struct all_kinds *k)
{
    CUgraph child = new_graph();
    CUgraphNode node, last;
    CUevent event;
    CUDA_MEMSET_NODE_PARAMS fill = flat_fill(k->filled, 5, BYTES);
    CUDA_MEMCPY3D copy = flat_copy(k->copied, k->filled, BYTES);
    CUstreamBatchMemOpParams op = {.writeValue = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32, .address = k->flag}};
    op.writeValue.value = 77;
    CUcontext context;
    OK(cuCtxGetCurrent(&context));
    CUDA_BATCH_MEM_OP_NODE_PARAMS batch = {.ctx = context, .count = 1, .paramArray = &op};
    OK(cuEventCreate(&event, 0));
    k->graph = new_graph();
    OK(cuGraphAddMemsetNode(&k->fill, k->graph, NULL, 0, &fill, NULL));
    OK(cuGraphAddMemcpyNode(&k->copy, k->graph, &k->fill, 1, &copy, NULL));
    k->compute = add_affine(k->graph, &k->copy, k->computed, k->copied, 3, 1, BYTES);
    OK(cuGraphAddBatchMemOpNode(&k->batch, k->graph, &k->compute, 1, &batch));
    OK(cuGraphAddHostNode(&node, k->graph, &k->batch, 1, &(CUDA_HOST_NODE_PARAMS){call_host, &host_calls}));
    OK(cuGraphAddEmptyNode(&last, k->graph, &node, 1));
    OK(cuGraphAddEventRecordNode(&node, k->graph, &last, 1, event));
    OK(cuGraphAddEventWaitNode(&last, k->graph, &node, 1, event));
    k->in_child = add_affine(child, NULL, k->child, k->computed, 2, 0, BYTES);
    OK(cuGraphAddChildGraphNode(&node, k->graph, &last, 1, child));
    OK(cuGraphDestroy(child)); /* a copy of it is in there */
}

static void every_kind(void)
{
    struct all_kinds k = {0};
    machine(SMALL, "");
    k.filled = buffer_of(BYTES, 1);
    k.copied = buffer_of(BYTES, 1);
    k.computed = buffer_of(BYTES, 1);
    k.flag = buffer_of(BYTES, 1);
    k.child = buffer_of(BYTES, 1);
    CUdeviceptr all[] = {k.filled, k.copied, k.computed, k.flag, k.child};
    for (int i = 0; i < 5; i++)
        evict(all[i], BYTES);
    add_all_kinds(&k);
    CUgraphExec exec = made(k.graph);
    OK(cuGraphDestroy(k.graph)); /* what was made of it lives on */
    CHECK(is_in_vram(k.filled, BYTES) && is_held(k.filled, BYTES));
    CHECK(is_in_vram(k.copied, BYTES) && is_held(k.copied, BYTES));
    CHECK(is_held(k.flag, 4) && !is_held(k.computed, CHUNK) && !is_held(k.child, CHUNK));
    for (uint32_t round = 1; round <= 3; round++) {
        OK(cuGraphLaunch(exec, NULL));
        OK(cuCtxSynchronize());
        CHECK(host_calls == round);
        CHECK(value_of(k.computed, BYTES) == 16 && value_of(k.child, BYTES) == 32 && value_of(k.copied, BYTES) == 5);
        uint32_t flag;
        OK(cuMemcpyDtoH_v2(&flag, k.flag, 4));
        CHECK(flag == 77);
        OK(cuMemsetD32_v2(k.flag, 0, 1));
        CHECK(is_in_vram(k.computed, BYTES) && is_in_vram(k.child, BYTES), "it was not brought in");
        CHECK(evict(k.filled, BYTES) == 0 && evict(k.copied, BYTES) == 0 && evict(k.flag, 4) == 0, "it moved");
        CHECK(evict(k.computed, BYTES) == 2 && evict(k.child, BYTES) == 2, "it did not move");
    }
    OK(cuGraphExecDestroy(exec));
    nothing_is_held();
    CHECK(evict(k.filled, BYTES) == 2 && evict(k.copied, BYTES) == 2, "it still does not move");
}

Test(graph, k6_every_kind_of_node_finds_its_memory_and_copies_keep_their_place, .timeout = 60)
{
    char *report = apart(every_kind);
    was_safe(report);
    free(report);
}

/* --- more than the card has ------------------------------------------------------------------------------------------ */

enum { GRAPHS = 12, CHAIN = 3 };
static int replay_rounds = 4;

static void replays(void)
{
    struct {
        CUdeviceptr p[CHAIN];
        uint32_t value[CHAIN];
        CUgraphExec exec;
    } set[GRAPHS];
    machine("h200,vram=48M,host=512M", "");
    for (int i = 0; i < GRAPHS; i++) { /* 144 MiB */
        CUgraph g = new_graph();
        CUgraphNode last;
        for (int j = 0; j < CHAIN; j++) {
            set[i].value[j] = (uint32_t)(i * 10 + j);
            set[i].p[j] = buffer_of(BYTES, set[i].value[j]);
        }
        last = add_affine(g, NULL, set[i].p[0], set[i].p[0], 3, 1, BYTES);
        last = add_affine(g, &last, set[i].p[1], set[i].p[0], 1, 7, BYTES);
        add_affine(g, &last, set[i].p[2], set[i].p[1], 5, (uint32_t)i, BYTES);
        set[i].exec = made(g);
        OK(cuGraphDestroy(g));
    }
    CUstream s = new_stream();
    for (int round = 0; round < replay_rounds; round++)
        for (int i = 0; i < GRAPHS; i++) {
            OK(cuGraphLaunch(set[i].exec, s));
            set[i].value[0] = set[i].value[0] * 3 + 1;
            set[i].value[1] = set[i].value[0] + 7;
            set[i].value[2] = set[i].value[1] * 5 + (uint32_t)i;
        }
    for (int i = 0; i < GRAPHS; i++)
        for (int j = 0; j < CHAIN; j++)
            CHECK(value_of(set[i].p[j], BYTES) == set[i].value[j], "graph %d, buffer %d", i, j);
    CHECK(hr_stat_sum(HR_STAT_moved_in_bytes) > 0, "nothing moved: this shows nothing");
    for (int i = 0; i < GRAPHS; i++)
        OK(cuGraphExecDestroy(set[i].exec));
}

static void replays_watched(void)
{
    setenv("SIMGPU_CHECK", "race,redzone,fatal", 1);
    replay_rounds = 2;
    replays();
}

Test(graph, replays_of_three_times_the_card_are_right, .timeout = 120)
{
    char *report = apart(replays);
    was_safe(report);
    free(report);
    report = apart(replays_watched);
    was_safe(report);
    cr_assert_eq(figure(report, "\"race"), 0, "%s", report);
    free(report);
}

/* Many more words than a working set has places: they lie in few allocations. */
static void many_words(void)
{
    enum { WORDS = 1500, EACH = 4096 };
    machine("h200,vram=64M,host=512M", "");
    size_t bytes = (size_t)WORDS * EACH;
    CUdeviceptr arena = buffer_of(bytes, 1);
    CUgraph g = new_graph();
    for (size_t i = 0; i < WORDS; i++)
        add_affine(g, NULL, arena + i * EACH, arena + i * EACH, 2, 1, EACH);
    CUgraphExec exec = made(g);
    evict(arena, bytes);
    OK(cuGraphLaunch(exec, NULL));
    OK(cuCtxSynchronize());
    CHECK(is_in_vram(arena, bytes), "part of it was left out");
    CHECK(value_of(arena, bytes) == 3);
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(g));
}

Test(graph, a_thousand_addresses_in_one_arena_are_brought_in, .timeout = 60)
{
    char *report = apart(many_words);
    was_safe(report);
    free(report);
}

/* --- changes --------------------------------------------------------------------------------------------------------- */

static void setters(void)
{
    machine(SMALL, "");
    CUdeviceptr a = buffer_of(BYTES, 1), b = buffer_of(BYTES, 2), c = buffer_of(BYTES, 3), d = buffer_of(BYTES, 4);
    CUgraph g = new_graph();
    CUgraphNode fill, copy, add;
    CUDA_MEMSET_NODE_PARAMS f = flat_fill(a, 9, BYTES);
    CUDA_MEMCPY3D m = flat_copy(b, a, BYTES);
    OK(cuGraphAddMemsetNode(&fill, g, NULL, 0, &f, NULL));
    OK(cuGraphAddMemcpyNode(&copy, g, &fill, 1, &m, NULL));
    add = add_affine(g, &copy, b, b, 2, 1, BYTES);
    CUgraphExec exec = made(g);
    OK(cuGraphLaunch(exec, NULL));
    CHECK(value_of(b, BYTES) == 19);
    evict(c, BYTES);
    evict(d, BYTES);
    f = flat_fill(c, 6, BYTES);
    OK(cuGraphExecMemsetNodeSetParams(exec, fill, &f, NULL));
    m = flat_copy(d, c, BYTES);
    OK(cuGraphExecMemcpyNodeSetParams(exec, copy, &m, NULL));
    CHECK(is_held(c, BYTES) && is_in_vram(c, BYTES) && is_held(d, BYTES) && is_in_vram(d, BYTES));
    CHECK(!is_held(a, BYTES) && !is_held(b, BYTES), "what is not copied any more is still held");
    CHECK(evict(a, BYTES) == 2 && evict(b, BYTES) == 2);
    struct affine s;
    CUgraphNodeParams any = {.type = CU_GRAPH_NODE_TYPE_KERNEL};
    CUDA_KERNEL_NODE_PARAMS p = affine_params(affine_of(&s, a, d, 3, 0, BYTES));
    memcpy(&any.kernel, &p, sizeof p);
    OK(cuGraphExecNodeSetParams(exec, add, &any));
    OK(cuGraphLaunch(exec, NULL));
    CHECK(value_of(a, BYTES) == 18 && value_of(d, BYTES) == 6 && is_in_vram(a, BYTES));
    /* More words than before, and again; the driver's refusal changes nothing. */
    for (uint32_t i = 0; i < 100; i++) {
        p = affine_params(affine_of(&s, i % 2 ? a : b, i % 3 ? d : c, i, 1, BYTES));
        OK(cuGraphExecKernelNodeSetParams_v2(exec, add, &p));
    }
    m = flat_copy(a, c, 0);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphExecMemcpyNodeSetParams(exec, copy, &m, NULL));
    CHECK(!is_held(a, BYTES) && is_held(d, BYTES));
    evict(a, BYTES);
    OK(cuGraphLaunch(exec, NULL));
    CHECK(value_of(a, BYTES) == 99 * 6 + 1); /* i = 99: a = c * 99 + 1, c = 6 */
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(g));
    nothing_is_held();
}

Test(graph, setters_change_what_is_brought_in_and_what_is_held, .timeout = 60)
{
    char *report = apart(setters);
    was_safe(report);
    free(report);
}

static void updates(void)
{
    machine(SMALL, "");
    CUdeviceptr a = buffer_of(BYTES, 1), b = buffer_of(BYTES, 2), c = buffer_of(BYTES, 3), d = buffer_of(BYTES, 4);
    CUgraphNode old[2], fresh[2], twin;
    CUgraphExecUpdateResultInfo info;
    CUgraph g = copy_and_add(b, a, 3, old), h = copy_and_add(d, c, 5, fresh), clone;
    CUgraphExec exec = made(g);
    evict(c, BYTES);
    evict(d, BYTES);
    OK(cuGraphExecUpdate_v2(exec, h, &info));
    OK(cuGraphDestroy(h));
    CHECK(is_held(c, BYTES) && is_held(d, BYTES) && !is_held(a, BYTES) && !is_held(b, BYTES));
    OK(cuGraphLaunch(exec, NULL));
    CHECK(value_of(d, BYTES) == 16 && value_of(b, BYTES) == 2);
    /* One that does not fit changes nothing. */
    h = copy_and_add(b, a, 5, fresh);
    add_affine(h, NULL, a, a, 1, 1, BYTES);
    GIVES(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate_v2(exec, h, &info));
    CHECK(is_held(d, BYTES) && !is_held(b, BYTES));
    /* Nodes of the first graph can still be set. */
    struct affine s;
    CUDA_KERNEL_NODE_PARAMS p = affine_params(affine_of(&s, a, d, 2, 0, BYTES));
    OK(cuGraphExecKernelNodeSetParams_v2(exec, old[1], &p));
    evict(a, BYTES);
    OK(cuGraphLaunch(exec, NULL));
    CHECK(value_of(a, BYTES) == 6 && is_in_vram(a, BYTES)); /* d = c = 3 */
    /* A clone goes its own way. */
    OK(cuGraphClone(&clone, g));
    OK(cuGraphNodeFindInClone(&twin, old[0], clone));
    CUDA_MEMCPY3D m = flat_copy(b, c, BYTES);
    OK(cuGraphMemcpyNodeSetParams(twin, &m));
    CUgraphExec of_clone = made(clone);
    OK(cuGraphLaunch(of_clone, NULL));
    CHECK(value_of(b, BYTES) == 10);
    OK(cuGraphExecDestroy(of_clone));
    OK(cuGraphExecDestroy(exec));
    nothing_is_held();
}

Test(graph, updates_and_clones_name_their_own, .timeout = 60)
{
    char *report = apart(updates);
    was_safe(report);
    free(report);
}

static void children(void)
{
    machine(SMALL, "");
    CUdeviceptr a = buffer_of(BYTES, 1), b = buffer_of(BYTES, 2), c = buffer_of(BYTES, 3), d = buffer_of(BYTES, 4);
    CUgraphNode inner[2], child_node;
    CUgraph child = copy_and_add(b, a, 3, inner), g = new_graph(), in_node;
    OK(cuGraphAddChildGraphNode(&child_node, g, NULL, 0, child));
    CUgraphExec exec = made(g);
    CHECK(is_held(b, BYTES) && is_held(a, BYTES));
    OK(cuGraphLaunch(exec, NULL));
    CHECK(value_of(b, BYTES) == 4);
    CUgraph other = copy_and_add(d, c, 7, inner);
    evict(c, BYTES);
    evict(d, BYTES);
    OK(cuGraphExecChildGraphNodeSetParams(exec, child_node, other));
    CHECK(is_held(c, BYTES) && is_held(d, BYTES));
    OK(cuGraphLaunch(exec, NULL));
    CHECK(value_of(d, BYTES) == 22);
    /* A node inside can be set by its handle there. */
    OK(cuGraphChildGraphNodeGetGraph(child_node, &in_node));
    size_t count = 2;
    OK(cuGraphGetNodes(in_node, inner, &count));
    struct affine s;
    CUDA_KERNEL_NODE_PARAMS p = affine_params(affine_of(&s, a, d, 2, 0, BYTES));
    OK(cuGraphExecKernelNodeSetParams_v2(exec, inner[1], &p));
    OK(cuGraphLaunch(exec, NULL));
    CHECK(value_of(a, BYTES) == 6);
    OK(cuGraphExecDestroy(exec));
    nothing_is_held();
}

Test(graph, children_are_part_of_what_is_launched, .timeout = 60)
{
    char *report = apart(children);
    was_safe(report);
    free(report);
}

/* --- loops ----------------------------------------------------------------------------------------------------------- */

static void loops(void)
{
    CUcontext context = machine(SMALL, "");
    CUdeviceptr left = buffer_of(CHUNK, 5), sum = buffer_of(BYTES, 0), copied = buffer_of(BYTES, 0);
    CUgraph g = new_graph();
    CUgraphConditionalHandle handle;
    CUgraphNode loop, node;
    OK(cuGraphConditionalHandleCreate(&handle, g, context, 1, CU_GRAPH_COND_ASSIGN_DEFAULT));
    CUgraphNodeParams params = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL};
    params.conditional.handle = handle;
    params.conditional.type = CU_GRAPH_COND_TYPE_WHILE;
    params.conditional.size = 1;
    params.conditional.ctx = context;
    OK(cuGraphAddNode_v2(&loop, g, NULL, NULL, 0, &params));
    CUgraph body = params.conditional.phGraph_out[0];
    node = add_affine(body, NULL, sum, sum, 1, 4, BYTES);
    CUDA_MEMCPY3D m = flat_copy(copied, sum, BYTES);
    CUgraphNode copy;
    OK(cuGraphAddMemcpyNode(&copy, body, &node, 1, &m, NULL));
    CUDA_KERNEL_NODE_PARAMS p = {.func = kernel("countdown"),
                                 .gridDimX = 1,
                                 .gridDimY = 1,
                                 .gridDimZ = 1,
                                 .blockDimX = 1,
                                 .blockDimY = 1,
                                 .blockDimZ = 1,
                                 .kernelParams = (void *[]){&left, &handle}};
    OK(cuGraphAddKernelNode_v2(&node, body, &copy, 1, &p));
    CUgraphExec exec = made(g);
    CHECK(is_held(copied, BYTES) && is_held(sum, BYTES) && !is_held(left, CHUNK));
    evict(left, CHUNK);
    OK(cuGraphLaunch(exec, NULL));
    CHECK(value_of(sum, BYTES) == 20 && value_of(copied, BYTES) == 20);
    CHECK(is_in_vram(left, CHUNK));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(g));
    nothing_is_held();
}

Test(graph, bodies_of_conditional_nodes_belong_to_it, .timeout = 60)
{
    char *report = apart(loops);
    was_safe(report);
    free(report);
}
