/* What graphs and captures work on: arrays, managed memory, and events that launches record. */
#include "graphs.h"

#define MACHINE "h200,vram=1G,host=256M"
#define WIDTH 40
#define HEIGHT 10
#define DEPTH 3

static CUarray new_array(size_t depth)
{
    CUarray a;
    CUDA_ARRAY3D_DESCRIPTOR d = {
        .Width = WIDTH, .Height = HEIGHT, .Depth = depth, .Format = CU_AD_FORMAT_UNSIGNED_INT32, .NumChannels = 1};
    OK(cuArray3DCreate_v2(&a, &d));
    return a;
}

static CUDA_MEMCPY3D host_to_array(const uint32_t *from, CUarray to)
{
    return (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_HOST,
                           .srcHost = from,
                           .srcPitch = 4 * WIDTH,
                           .srcHeight = HEIGHT,
                           .dstMemoryType = CU_MEMORYTYPE_ARRAY,
                           .dstArray = to,
                           .WidthInBytes = 4 * WIDTH,
                           .Height = HEIGHT,
                           .Depth = DEPTH};
}

/* 4 columns from column 8, 5 rows from row 2, 2 layers from layer 1, packed. */
static CUDA_MEMCPY3D piece_to_host(CUarray from, uint32_t *to)
{
    return (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_ARRAY,
                           .srcArray = from,
                           .srcXInBytes = 32,
                           .srcY = 2,
                           .srcZ = 1,
                           .dstMemoryType = CU_MEMORYTYPE_HOST,
                           .dstHost = to,
                           .dstPitch = 16,
                           .dstHeight = 5,
                           .WidthInBytes = 16,
                           .Height = 5,
                           .Depth = 2};
}

static void fill(uint32_t *in, uint32_t seed)
{
    for (uint32_t i = 0; i < WIDTH * HEIGHT * DEPTH; i++)
        in[i] = i + seed;
}

static void check_piece(const uint32_t *out, uint32_t seed)
{
    for (uint32_t z = 0; z < 2; z++)
        for (uint32_t y = 0; y < 5; y++)
            for (uint32_t x = 0; x < 4; x++)
                cr_assert_eq(out[(z * 5 + y) * 4 + x], ((z + 1) * HEIGHT + y + 2) * WIDTH + x + 8 + seed);
}

static uint32_t in[WIDTH * HEIGHT * DEPTH], out[40];

Test(graph_operands, copy_nodes_take_arrays)
{
    machine_with_context(MACHINE);
    CUarray a = new_array(DEPTH), other = new_array(DEPTH);
    CUgraph g;
    CUgraphNode up, down;
    CUDA_MEMCPY3D to = host_to_array(in, a), from = piece_to_host(a, out), got;
    OK(cuGraphCreate(&g, 0));
    OK(cuGraphAddMemcpyNode(&up, g, NULL, 0, &to, NULL));
    OK(cuGraphAddMemcpyNode(&down, g, &up, 1, &from, NULL));
    OK(cuGraphMemcpyNodeGetParams(down, &got));
    cr_assert(got.srcArray == a && got.srcXInBytes == 32 && got.srcY == 2 && got.srcZ == 1);
    CUgraphExec exec = made(g);
    for (uint32_t seed = 0; seed < 3; seed++) {
        fill(in, seed); /* pageable memory is read when the copy runs */
        OK(cuGraphLaunch(exec, NULL));
        OK(cuCtxSynchronize());
        check_piece(out, seed);
    }
    CUDA_MEMCPY3D beyond = from;
    beyond.srcZ = 2;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphMemcpyNodeSetParams(down, &beyond));
    beyond.srcZ = 1;
    beyond.srcArray = (CUarray)0x123;
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuGraphMemcpyNodeSetParams(down, &beyond));
    /* another array is another place */
    to.dstArray = from.srcArray = other;
    GIVES(CUDA_ERROR_INVALID_VALUE,
          cuGraphExecMemcpyNodeSetParams(exec, up, &to, NULL)); /* of more than one dimension */
    OK(cuGraphMemcpyNodeSetParams(up, &to));
    OK(cuGraphMemcpyNodeSetParams(down, &from));
    OK(cuGraphExecDestroy(exec));
    exec = made(g);
    fill(in, 9);
    OK(cuGraphLaunch(exec, NULL));
    OK(cuCtxSynchronize());
    check_piece(out, 9);
    OK(cuArrayDestroy(other));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(exec, NULL));
    other = new_array(DEPTH); /* as before, and not the same */
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(exec, NULL));
}

Test(graph_operands, captured_copies_of_arrays_tell_them)
{
    machine_with_context(MACHINE);
    CUarray a = new_array(DEPTH);
    CUstream s = stream_of(CU_STREAM_NON_BLOCKING);
    CUgraph g;
    CUgraphNode nodes[2];
    size_t count = 2;
    CUDA_MEMCPY3D to = host_to_array(in, a), from = piece_to_host(a, out), got;
    OK(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
    OK(cuMemcpy3DAsync_v2(&to, s));
    OK(cuMemcpy3DAsync_v2(&from, s));
    OK(cuStreamEndCapture(s, &g));
    OK(cuGraphGetNodes(g, nodes, &count));
    cr_assert_eq(count, 2);
    OK(cuGraphMemcpyNodeGetParams(nodes[0], &got));
    cr_assert(got.srcMemoryType == CU_MEMORYTYPE_HOST && got.srcHost == in && got.srcPitch == 4 * WIDTH);
    cr_assert(got.dstMemoryType == CU_MEMORYTYPE_ARRAY && got.dstArray == a && !got.dstXInBytes && !got.dstZ);
    OK(cuGraphMemcpyNodeGetParams(nodes[1], &got));
    cr_assert(got.srcMemoryType == CU_MEMORYTYPE_ARRAY && got.srcArray == a && !got.srcDevice);
    cr_assert(got.srcXInBytes == 32 && got.srcY == 2 && got.srcZ == 1);
    OK(cuGraphMemcpyNodeSetParams(nodes[1], &got)); /* what is told can be given back */
    fill(in, 4);
    OK(cuGraphLaunch(made(g), s));
    OK(cuStreamSynchronize(s));
    check_piece(out, 4);
}

Test(graph_operands, arrays_are_made_and_copied_at_once_outside_of_captures_only)
{
    machine_with_context(MACHINE);
    CUarray a = NULL, line;
    CUDA_ARRAY_DESCRIPTOR d = {.Width = WIDTH, .Format = CU_AD_FORMAT_UNSIGNED_INT32, .NumChannels = 1};
    CUgraph g;
    OK(cuArrayCreate_v2(&line, &d));
    for (int i = 0; i < 3; i++) {
        CUstream s = stream_of(CU_STREAM_NON_BLOCKING);
        OK(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
        OK(cuMemcpyHtoAAsync_v2(line, 0, in, 16, s));
        GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, i == 0   ? cuArrayCreate_v2(&a, &d)
                                                     : i == 1 ? cuArrayDestroy(line)
                                                              : cuMemcpyHtoA_v2(line, 0, in, 16));
        GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuMemcpyHtoAAsync_v2(line, 0, in, 16, s));
        GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(s, &g));
    }
    cr_assert(!a);
    OK(cuArrayDestroy(line));
}

Test(graph_operands, nodes_use_managed_memory)
{
    machine_with_context(MACHINE);
    struct kernels k = load_kernels();
    CUdeviceptr p, q = buffer();
    CUgraph g;
    CUgraphNode fill_node, copy;
    OK(cuMemAllocManaged(&p, BYTES, CU_MEM_ATTACH_GLOBAL));
    volatile uint32_t *cpu = (volatile uint32_t *)(uintptr_t)p;
    CUDA_MEMSET_NODE_PARAMS f = {.dst = p, .value = 5, .elementSize = 4, .width = WORDS, .height = 1};
    OK(cuGraphCreate(&g, 0));
    OK(cuGraphAddMemsetNode(&fill_node, g, NULL, 0, &f, NULL));
    CUgraphNode step = add_step(g, &fill_node, 1, k.step, p, 3, 1);
    CUDA_MEMCPY3D c = device_copy(q, p, BYTES);
    OK(cuGraphAddMemcpyNode(&copy, g, &step, 1, &c, NULL));
    CUgraphExec exec = made(g);
    for (int i = 0; i < 2; i++) {
        OK(cuGraphLaunch(exec, NULL));
        cr_assert_eq(word_of(q), 16);
        cr_assert_eq(cpu[WORDS - 1], 16);
        cpu[0] = 1;
        OK(cuMemsetD32_v2(q, 0, WORDS));
    }
    OK(cuMemFree_v2(p));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(exec, NULL));
}

Test(graph_operands, moving_managed_memory_is_no_node)
{
    machine_with_context(MACHINE);
    CUdeviceptr p;
    CUgraph g;
    OK(cuMemAllocManaged(&p, BYTES, CU_MEM_ATTACH_GLOBAL));
    for (int i = 0; i < 2; i++) {
        CUstream s = stream_of(CU_STREAM_NON_BLOCKING);
        OK(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
        GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
              i ? cuStreamAttachMemAsync(s, p, 0, CU_MEM_ATTACH_SINGLE) : cuMemPrefetchAsync(p, BYTES, 0, s));
        GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(s, &g));
    }
}

Test(graph_operands, events_of_several_processes_are_recorded_by_launches)
{
    machine_with_context(MACHINE);
    static struct gate gate = GATE_INIT;
    CUevent e;
    CUgraph g;
    CUgraphNode record, wait;
    CUstream s = stream_of(CU_STREAM_NON_BLOCKING), t = stream_of(CU_STREAM_NON_BLOCKING);
    OK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
    OK(cuEventRecord(e, s));
    OK(cuEventSynchronize(e));
    OK(cuGraphCreate(&g, 0));
    OK(cuGraphAddEventRecordNode(&record, g, NULL, 0, e));
    OK(cuGraphAddEventWaitNode(&wait, g, &record, 1, e));
    CUgraphExec exec = made(g);
    OK(cuLaunchHostFunc(s, gate_wait, &gate));
    OK(cuGraphLaunch(exec, s));
    GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(e)); /* the launch's, not the one before */
    OK(cuStreamWaitEvent(t, e, 0));
    GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(t));
    gate_open(&gate);
    OK(cuStreamSynchronize(t));
    OK(cuEventSynchronize(e));
    OK(cuCtxSynchronize());
}

Test(graph_operands, a_launch_that_fails_has_recorded_nothing)
{
    machine_with_context(MACHINE);
    struct kernels k = load_kernels(), kept = load_kernels();
    CUdeviceptr p = buffer();
    CUevent e = plain_event();
    CUgraph g;
    CUgraphNode record;
    CUstream s = stream_of(CU_STREAM_NON_BLOCKING);
    OK(cuEventRecord(e, s));
    OK(cuGraphCreate(&g, 0));
    OK(cuGraphAddEventRecordNode(&record, g, NULL, 0, e));
    add_step(g, &record, 1, k.step, p, 3, 1);
    CUgraphExec exec = made(g);
    OK(cuModuleUnload(k.module));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuGraphLaunch(exec, s));
    OK(cuEventSynchronize(e)); /* the recording before it */
    OK(launch_step(kept.step, s, p, 3, 1));
    cr_assert_eq(word_of(p), 4);
}

Test(graph_operands, events_of_whole_contexts_know_captures)
{
    machine("h200,vram=1G");
    CUcontext primary;
    CUevent e = NULL, captured;
    CUgraph g;
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    OK(cuCtxSetCurrent(primary));
    e = plain_event();
    captured = plain_event();
    for (int i = 0; i < 3; i++) {
        CUstream s = stream_of(CU_STREAM_NON_BLOCKING);
        OK(cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_RELAXED));
        OK(cuEventRecord(captured, s));
        GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, i == 0   ? cuCtxRecordEvent(primary, e)
                                                     : i == 1 ? cuCtxWaitEvent(primary, e)
                                                              : cuCtxWaitEvent(primary, captured));
        GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(s, &g));
    }
    GIVES(CUDA_ERROR_CAPTURED_EVENT, cuCtxWaitEvent(primary, captured));
    OK(cuCtxRecordEvent(primary, captured)); /* an event like any other again */
    OK(cuCtxWaitEvent(primary, captured));
    OK(cuCtxSynchronize());
}
