/* Executable graphs as a whole: what they cost, many of them at random and from threads, and what the checks see. */
#include "graphs.h"
#include "scene.h"
#include "support/sanitizer.h"

#include <dlfcn.h>

#define MACHINE "h200,vram=256M"

/* ---- virtual time ---- */

Test(graph_scenes, a_graph_costs_one_launch_and_its_nodes)
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

Test(graph_scenes, random_graphs_give_what_their_nodes_give_one_by_one)
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

Test(graph_scenes, threads_launch_the_same_and_others)
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

Test(graph_scenes, replays_repeat_graphs_and_loops)
{
    static const char *const played[] = {"ordered", "looping"};
    char first[100], second[100];
    for (unsigned i = 0; i < 2; i++) {
        trace_of(played[i], 5, first, sizeof first);
        trace_of(played[i], 5, second, sizeof second);
        cr_assert_str_eq(first, second);
    }
}

Test(graph_scenes, nodes_that_nothing_orders_race)
{
    cr_assert_gt(findings("unordered", "race", "race", "nothing orders the two"), 0);
    cr_assert_eq(findings("ordered", "race", "race", NULL), 0);
    cr_assert_eq(findings("looping", "race", "race", NULL), 0); /* each round comes after the one before */
}

Test(graph_scenes, graphs_that_are_left_are_leaks)
{
    cr_assert_gt(findings("leaky", "leak", "leak", "executable graph was not destroyed"), 1);
}
