/* Executable graphs under headroom: what they leave behind, memory that is short, threads, GPUs, and a driver that fails. */
#include "graphs.h"

/* --- lives ----------------------------------------------------------------------------------------------------------- */

static void thousand(void)
{
    machine(SMALL, "");
    CUdeviceptr a = buffer_of(BYTES, 1), b = buffer_of(BYTES, 0);
    uint32_t value = 1;
    for (int i = 0; i < 1000; i++) {
        CUgraphNode nodes[2];
        CUgraph g = copy_and_add(b, a, 2, nodes);
        add_affine(g, &nodes[1], a, b, 1, 0, BYTES);
        CUgraphExec exec = made(g);
        if (i % 100 == 0) {
            OK(cuGraphLaunch(exec, NULL));
            value = value * 2 + 1;
        }
        OK(cuGraphDestroy(g));
        OK(cuGraphExecDestroy(exec)); /* some are in flight */
    }
    CHECK(value_of(a, BYTES) == value && value_of(b, BYTES) == value);
    nothing_is_held();
    CHECK(evict(a, BYTES) == 2 && evict(b, BYTES) == 2);
}

Test(graph_life, a_thousand_leave_nothing_behind, .timeout = 120)
{
    char *report = apart(thousand);
    was_safe(report);
    free(report);
}

static void freed(void)
{
    machine(SMALL, "");
    CUdeviceptr a = buffer_of(BYTES, 1), b = buffer_of(BYTES, 2), c = buffer_of(BYTES, 3);
    CUgraphNode nodes[2];
    CUgraph g = copy_and_add(b, a, 2, nodes), h = new_graph();
    add_affine(h, NULL, c, b, 1, 1, BYTES);
    CUgraphExec copies = made(g), kernels = made(h);
    OK(cuMemFree_v2(a));
    OK(cuCtxSynchronize());
    hr_quarantine_release(hr_thread_self());
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(copies, NULL)); /* as without us */
    CUgraphExec none;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphInstantiateWithFlags(&none, g, 0));
    OK(cuGraphLaunch(kernels, NULL));
    CHECK(value_of(c, BYTES) == 3);
    CUdeviceptr again = buffer_of(BYTES, 8); /* perhaps where the freed one was; nobody holds it */
    CHECK(!is_held(again, BYTES));
    OK(cuGraphExecDestroy(copies));
    OK(cuGraphExecDestroy(kernels));
    CHECK(value_of(again, BYTES) == 8);
    nothing_is_held();
}

Test(graph_life, freed_memory_is_held_by_nobody, .timeout = 60)
{
    char *report = apart(freed);
    was_safe(report);
    free(report);
}

/* --- memory of the driver's ------------------------------------------------------------------------------------------- */

static void nodes_that_allocate(void)
{
    enum { BUFFERS = 24 };
    machine(SMALL, "");
    CUdeviceptr p[BUFFERS], out = buffer_of(BYTES, 0);
    for (int i = 0; i < BUFFERS; i++) /* the card is full */
        p[i] = buffer_of(BYTES, (uint32_t)i);
    CUgraph g = new_graph();
    CUgraphNode alloc, fill, add, node;
    CUDA_MEM_ALLOC_NODE_PARAMS m = {.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                                  .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}},
                                    .bytesize = 8 * MIB};
    OK(cuGraphAddMemAllocNode(&alloc, g, NULL, 0, &m));
    CUDA_MEMSET_NODE_PARAMS f = flat_fill(m.dptr, 6, 8 * MIB);
    OK(cuGraphAddMemsetNode(&fill, g, &alloc, 1, &f, NULL));
    add = add_affine(g, &fill, out, m.dptr, 2, 1, BYTES);
    OK(cuGraphAddMemFreeNode(&node, g, &add, 1, m.dptr));
    CUgraphExec exec = made(g);
    size_t limit = hr_tier_vram_limit(0);
    for (int i = 0; i < 3; i++) {
        OK(cuGraphLaunch(exec, NULL));
        CHECK(value_of(out, BYTES) == 13);
        OK(cuMemsetD32_v2(out, 0, BYTES / 4));
    }
    CHECK(hr_tier_vram_limit(0) + 4 <= limit, "what the driver took still counts as ours");
    for (int i = 0; i < BUFFERS; i++)
        CHECK(value_of(p[i], BYTES) == (uint32_t)i);
    OK(cuCtxSynchronize());
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(g));
    OK(cuDeviceGraphMemTrim(0));
    CHECK(hr_tier_vram_limit(0) == limit, "%zu chunks, before %zu", hr_tier_vram_limit(0), limit);
}

Test(graph_life, nodes_that_allocate_get_room_on_a_full_card, .timeout = 60)
{
    char *report = apart(nodes_that_allocate);
    was_safe(report);
    free(report);
}

/* --- where host memory cannot be mapped ------------------------------------------------------------------------------- */

static void unmapped(void)
{
    enum { SETS = 6 };
    machine("h200,vram=48M,host=512M", "host_numa");
    CUdeviceptr a[SETS], b[SETS];
    CUgraphExec exec[SETS];
    for (uint32_t i = 0; i < SETS; i++) {
        a[i] = buffer_of(BYTES, i);
        b[i] = buffer_of(BYTES, 0);
        CUgraph g = new_graph();
        add_affine(g, NULL, b[i], a[i], 2, 1, BYTES);
        exec[i] = made(g);
        OK(cuGraphDestroy(g));
    }
    for (int round = 0; round < 2; round++)
        for (uint32_t i = 0; i < SETS; i++) {
            evict(a[i], BYTES);
            OK(cuGraphLaunch(exec[i], NULL));
        }
    for (uint32_t i = 0; i < SETS; i++)
        CHECK(value_of(b[i], BYTES) == 2 * i + 1);
    CUgraphNode nodes[2]; /* operands that are out come in */
    evict(a[1], BYTES);
    evict(b[1], BYTES);
    CUgraphExec copies = made(copy_and_add(b[1], a[1], 5, nodes));
    CHECK(is_in_vram(a[1], BYTES) && is_in_vram(b[1], BYTES));
    OK(cuGraphLaunch(copies, NULL));
    CHECK(value_of(b[1], BYTES) == 6);
    OK(cuGraphExecDestroy(copies));
}

Test(graph_life, all_of_it_comes_in_where_host_memory_cannot_be_mapped, .timeout = 60)
{
    char *report = apart(unmapped);
    was_safe(report);
    free(report);
}

/* --- more operands than half the card --------------------------------------------------------------------------------- */

static void too_many_operands(void)
{
    enum { SETS = 10 };
    machine("h200,vram=48M,host=512M", "");
    CUdeviceptr a[SETS], b[SETS];
    CUgraphExec exec[SETS];
    for (uint32_t i = 0; i < SETS; i++) {
        CUgraphNode nodes[2];
        a[i] = buffer_of(BYTES, i);
        b[i] = buffer_of(BYTES, 0);
        exec[i] = made(copy_and_add(b[i], a[i], 3, nodes));
        CHECK(is_held(a[i], BYTES) && is_held(b[i], BYTES));
    }
    CHECK(hr_hold_vram_chunks(0) <= hr_tier_vram_limit(0) / 2);
    for (uint32_t i = 0; i < SETS; i++)
        OK(cuGraphLaunch(exec[i], NULL));
    for (uint32_t i = 0; i < SETS; i++) {
        CHECK(value_of(b[i], BYTES) == 3 * i + 1);
        OK(cuGraphExecDestroy(exec[i]));
    }
    nothing_is_held();
}

Test(graph_life, operands_fill_half_the_card_and_then_lie_in_host_memory, .timeout = 60)
{
    char *report = apart(too_many_operands);
    was_safe(report);
    free(report);
}

/* --- addresses that no parameter shows -------------------------------------------------------------------------------- */

static void hidden(void)
{
    setenv("HEADROOM_COMMIT", "lazy", 1);
    machine(SMALL, "");
    CUdeviceptr target = buffer_of(BYTES, 1), table = buffer_of(CHUNK, 0), other = buffer_of(CHUNK, 0);
    uint64_t entry = target;
    OK(cuMemcpyHtoD_v2(table, &entry, 8));
    CUgraph g = new_graph();
    CUgraphNode copy, node;
    uint32_t count = 1, n = BYTES / 4, a = 2;
    CUDA_MEMCPY3D m = flat_copy(other, table, 8);
    OK(cuGraphAddMemcpyNode(&copy, g, NULL, 0, &m, NULL)); /* the address goes where the kernel looks */
    CUDA_KERNEL_NODE_PARAMS p = {.func = kernel("add_table"),
                                 .gridDimX = 4,
                                 .gridDimY = 1,
                                 .gridDimZ = 1,
                                 .blockDimX = 128,
                                 .blockDimY = 1,
                                 .blockDimZ = 1,
                                 .kernelParams = (void *[]){&other, &count, &n, &a}};
    OK(cuGraphAddKernelNode_v2(&node, g, &copy, 1, &p));
    CUgraphExec exec = made(g);
    for (uint32_t i = 1; i <= 3; i++) {
        evict(target, BYTES);
        OK(cuGraphLaunch(exec, NULL));
        CHECK(value_of(target, BYTES) == 1 + 2 * i);
        CHECK(is_in_vram(target, BYTES), "what the table names was not brought in");
    }
    OK(cuGraphExecDestroy(exec));
}

Test(graph_life, addresses_in_tables_that_it_copies_are_followed, .timeout = 60)
{
    char *report = apart(hidden);
    was_safe(report);
    free(report);
}

/* --- threads --------------------------------------------------------------------------------------------------------- */

enum { THREADS = 4, LAUNCHES = 60, OWN = 3 };
static CUcontext shared_context;
static CUgraphExec shared_exec;

static void *launch_many(void *arg)
{
    uint32_t seed = (uint32_t)(uintptr_t)arg;
    CUdeviceptr p[OWN];
    CUgraphExec exec[OWN];
    uint32_t value[OWN];
    OK(cuCtxSetCurrent(shared_context));
    CUstream s = new_stream();
    for (uint32_t i = 0; i < OWN; i++) {
        CUgraph g = new_graph();
        value[i] = seed + i;
        OK(cuMemAlloc_v2(&p[i], BYTES));
        OK(cuMemsetD32Async(p[i], value[i], BYTES / 4, s));
        add_affine(g, NULL, p[i], p[i], 3, 1, BYTES);
        exec[i] = made(g);
        OK(cuGraphDestroy(g));
    }
    for (uint32_t i = 0; i < LAUNCHES; i++) {
        uint32_t k = i % OWN;
        OK(cuGraphLaunch(exec[k], s));
        value[k] = value[k] * 3 + 1;
        if (i % 4 == 0)
            OK(cuGraphLaunch(shared_exec, s));
        if (i % 20 == 19) { /* another one with the same work */
            CUgraph g = new_graph();
            add_affine(g, NULL, p[k], p[k], 3, 1, BYTES);
            OK(cuGraphExecDestroy(exec[k]));
            exec[k] = made(g);
            OK(cuGraphDestroy(g));
        }
    }
    OK(cuStreamSynchronize(s));
    uint32_t *seen = malloc(BYTES);
    for (uint32_t i = 0; i < OWN; i++) {
        OK(cuMemcpyDtoHAsync_v2(seen, p[i], BYTES, s));
        OK(cuStreamSynchronize(s));
        for (size_t w = 0; w < words_of(BYTES); w += STEP)
            CHECK(seen[w] == value[i], "thread %u, buffer %u, word %zu: %u, not %u", seed, i, w, seen[w], value[i]);
        OK(cuGraphExecDestroy(exec[i]));
    }
    free(seen);
    OK(cuStreamDestroy_v2(s));
    return NULL;
}

static void threads_launch(void)
{
    pthread_t thread[THREADS];
    shared_context = machine("h200,vram=32M,host=512M", "");
    CUdeviceptr all = buffer_of(BYTES, 0);
    CUgraph g = new_graph();
    add_affine(g, NULL, all, all, 1, 1, BYTES);
    shared_exec = made(g);
    kernel("affine");
    for (uintptr_t i = 0; i < THREADS; i++)
        CHECK(pthread_create(&thread[i], NULL, launch_many, (void *)(i * 100 + 1)) == 0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    CHECK(value_of(all, BYTES) == THREADS * LAUNCHES / 4);
    OK(cuGraphExecDestroy(shared_exec));
    nothing_is_held();
}

Test(graph_life, threads_launch_the_same_and_their_own, .timeout = 300)
{
    char *report = apart(threads_launch);
    was_safe(report);
    free(report);
}

/* --- several GPUs ------------------------------------------------------------------------------------------------------ */

/* A kernel of one GPU in a graph that a stream of the other launches: its memory does not move meanwhile. */
static void two_gpus(void)
{
    CUcontext first = machine("h200,gpus=2,vram=48M,host=512M", ""), second;
    CUdeviceptr here = buffer_of(BYTES, 3), there;
    CUmodule module;
    CUfunction slow;
    kernel("affine");
    OK(cuCtxCreate_v2(&second, 0, 1));
    there = buffer_of(BYTES, 1);
    OK(cuModuleLoadData(&module, shim_ptx));
    OK(cuModuleGetFunction(&slow, module, "slow_affine"));
    OK(cuCtxSetCurrent(first));
    uint32_t a = 1, b = 1, n = BYTES / 16, rounds = 6;
    CUDA_KERNEL_NODE_PARAMS p = {.func = slow,
                                 .gridDimX = 1,
                                 .gridDimY = 1,
                                 .gridDimZ = 1,
                                 .blockDimX = 128,
                                 .blockDimY = 1,
                                 .blockDimZ = 1,
                                 .kernelParams = (void *[]){&there, &a, &b, &n, &rounds}};
    /* Of kernels only: nothing is held, and what runs keeps it. */
    CUgraph g = new_graph();
    CUgraphNode node, copy;
    OK(cuGraphAddKernelNode_v2(&node, g, NULL, 0, &p));
    CUgraphExec kernels = made(g), exec;
    OK(cuGraphDestroy(g));
    OK(cuCtxSetCurrent(second));
    CHECK(evict(there, BYTES) == 2);
    OK(cuCtxSetCurrent(first));
    OK(cuGraphLaunch(kernels, NULL));
    hr_access_evict_range(hr_thread_self(), there, BYTES);
    OK(cuCtxSynchronize());
    OK(cuCtxSetCurrent(second));
    CHECK(value_of(there, BYTES) == 7);
    OK(cuCtxSetCurrent(first));
    OK(cuGraphExecDestroy(kernels));
    g = new_graph();
    OK(cuGraphAddKernelNode_v2(&node, g, NULL, 0, &p));
    CUDA_MEMCPY3D m = flat_copy(here, there, BYTES); /* nobody was granted anything */
    OK(cuGraphAddMemcpyNode(&copy, g, &node, 1, &m, NULL));
    add_affine(g, &copy, here, here, 2, 0, BYTES);
    exec = made(g);
    OK(cuGraphDestroy(g));
    CHECK(is_held(here, BYTES) && is_held(there, BYTES));
    for (uint32_t round = 1; round <= 2; round++) {
        OK(cuGraphLaunch(exec, NULL));
        hr_access_evict_range(hr_thread_self(), there, BYTES);
        CHECK(value_of(here, BYTES) == (7 + 6 * round) * 2);
    }
    OK(cuGraphExecDestroy(exec));
    nothing_is_held();
}

Test(graph_life, kernels_and_copies_of_two_gpus_in_one, .timeout = 60)
{
    char *report = apart(two_gpus);
    was_safe(report);
    free(report);
}

/* --- the driver fails ------------------------------------------------------------------------------------------------- */

static const char *failing;

static void one_call_fails(void)
{
    static const char setting[] = "SIMGPU_FAIL";
    setenv(setting, failing, 1);
    machine(SMALL, "");
    CUdeviceptr a = buffer_of(BYTES, 1), b = buffer_of(BYTES, 0), c = buffer_of(BYTES, 0);
    evict(a, BYTES);
    evict(c, BYTES);
    uint32_t failures = 0;
    for (int attempt = 0; attempt < 3; attempt++) { /* one of them meets it */
        CUgraphNode nodes[2], add;
        CUgraphExec exec = NULL;
        CUgraph g = NULL;
        CUDA_MEMCPY3D m = flat_copy(b, a, BYTES);
        CUresult r = cuGraphCreate(&g, 0);
        if (r == CUDA_SUCCESS)
            r = cuGraphAddMemcpyNode(&nodes[0], g, NULL, 0, &m, NULL);
        if (r == CUDA_SUCCESS) {
            add = add_affine(g, &nodes[0], c, b, 2, 1, BYTES);
            (void)add;
            r = cuGraphInstantiateWithFlags(&exec, g, 0);
        }
        if (r == CUDA_SUCCESS)
            r = cuGraphLaunch(exec, NULL);
        if (r == CUDA_SUCCESS)
            CHECK(value_of(c, BYTES) == 3, "%s", failing);
        failures += r != CUDA_SUCCESS;
        CHECK(r == CUDA_SUCCESS || r == CUDA_ERROR_OUT_OF_MEMORY || r == CUDA_ERROR_UNKNOWN, "%s: %d", failing, (int)r);
        if (exec && cuGraphExecDestroy(exec) != CUDA_SUCCESS) {
            CHECK(is_held(a, BYTES), "it lives on, and what it copies moves");
            OK(cuGraphLaunch(exec, NULL));
            OK(cuGraphExecDestroy(exec));
        }
        if (g)
            OK(cuGraphDestroy(g));
        nothing_is_held();
        evict(c, BYTES);
        OK(cuMemsetD32_v2(c, 0, BYTES / 4));
    }
    CHECK(failures < 3, "%s: the job's own second try failed, too", failing);
}

Test(graph_life, a_call_of_the_driver_that_fails_leaves_everything_whole, .timeout = 120)
{
    static const char *const calls[] = {
        "cuGraphCreate:1",      "cuGraphAddMemcpyNode:1",       "cuGraphInstantiateWithFlags:1",
        "cuGraphLaunch:1",      "cuGraphExecDestroy:1",         "cuGraphGetNodes:1",
        "cuGraphGetNodes:2",    "cuGraphNodeGetType:2",         "cuGraphKernelNodeGetParams:1",
        "cuFuncGetParamInfo:1", "cuGraphMemcpyNodeGetParams:1", "cuThreadExchangeStreamCaptureMode:1",
    };
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        failing = calls[i];
        char *report = apart(one_call_fails);
        was_safe(report);
        free(report);
    }
}
