#include "gpu.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KERNEL_NAME(name) #name,
static const char *const kernel_names[KERNEL_COUNT] = {KERNELS(KERNEL_NAME)};

/* One line, `train_gpt: cuMemAlloc_v2 (12345678 bytes): CUDA_ERROR_OUT_OF_MEMORY`, and out. */
__attribute__((format(printf, 2, 3))) static void check(CUresult result, const char *what, ...)
{
    if (result == CUDA_SUCCESS)
        return;
    const char *name = NULL;
    if (cuGetErrorName(result, &name) != CUDA_SUCCESS || !name)
        name = "an error without a name";
    va_list list;
    va_start(list, what);
    fprintf(stderr, "train_gpt: ");
    vfprintf(stderr, what, list);
    fprintf(stderr, ": %s\n", name);
    va_end(list);
    exit(1);
}

static void use(const struct gpu *gpu)
{
    static CUcontext current;
    if (current != gpu->context)
        check(cuCtxSetCurrent(gpu->context), "cuCtxSetCurrent");
    current = gpu->context;
}

static void load_kernels(struct gpu *gpu, const char *ptx, const char *ptx_name)
{
    char log[512] = "";
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, (void *)(uintptr_t)(sizeof log - 1)};
    CUresult result = cuModuleLoadDataEx(&gpu->module, ptx, 2, options, values);
    log[strcspn(log, "\n")] = 0;
    check(result, "cuModuleLoadDataEx (%s)%s%s", ptx_name, log[0] ? ": " : "", log);
    for (int k = 0; k < KERNEL_COUNT; k++)
        check(cuModuleGetFunction(&gpu->functions[k], gpu->module, kernel_names[k]), "cuModuleGetFunction (%s in %s)",
              kernel_names[k], ptx_name);
}

static void stream_init(struct gpu_stream *stream)
{
    check(cuStreamCreate(&stream->stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    check(cuEventCreate(&stream->event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
}

void gpu_init(struct gpu *gpu, int device, const char *ptx, const char *ptx_name, int stream_count)
{
    *gpu = (struct gpu){.stream_count = stream_count};
    check(cuInit(0), "cuInit");
    check(cuDeviceGet(&gpu->device, device), "cuDeviceGet (device %d)", device);
    check(cuDevicePrimaryCtxRetain(&gpu->context, gpu->device), "cuDevicePrimaryCtxRetain");
    use(gpu);
    load_kernels(gpu, ptx, ptx_name);
    for (int i = 0; i < stream_count; i++)
        stream_init(&gpu->streams[i]);
}

void gpu_connect(struct gpu *gpus, int count)
{
    for (int i = 0; i < count; i++) {
        gpus[i].peers = gpus;
        gpus[i].index = i;
        use(&gpus[i]);
        stream_init(&gpus[i].streams[gpus[i].stream_count]);
        for (int j = 0; j < count; j++) {
            int can = 0;
            if (j == i)
                continue;
            check(cuDeviceCanAccessPeer(&can, gpus[i].device, gpus[j].device), "cuDeviceCanAccessPeer");
            CUresult result = can ? cuCtxEnablePeerAccess(gpus[j].context, 0) : CUDA_SUCCESS;
            if (result != CUDA_ERROR_TOO_MANY_PEERS) /* then copies take another way */
                check(result, "cuCtxEnablePeerAccess");
        }
    }
}

static size_t aligned(size_t bytes)
{
    return (bytes + GPU_ALIGN_BYTES - 1) / GPU_ALIGN_BYTES * GPU_ALIGN_BYTES;
}

void gpu_arena_reserve(struct gpu *gpu, size_t buffer_bytes)
{
    gpu->arena_bytes += aligned(buffer_bytes);
}

void gpu_arena_init(struct gpu *gpu)
{
    use(gpu);
    check(cuMemAlloc_v2(&gpu->arena, gpu->arena_bytes), "cuMemAlloc_v2 (%zu bytes)", gpu->arena_bytes);
}

void gpu_finish(struct gpu *gpu)
{
    use(gpu);
    for (int i = 0; i < gpu->stream_count + (gpu->peers != NULL); i++) {
        check(cuEventDestroy_v2(gpu->streams[i].event), "cuEventDestroy_v2");
        check(cuStreamDestroy_v2(gpu->streams[i].stream), "cuStreamDestroy_v2");
    }
    if (gpu->arena)
        check(cuMemFree_v2(gpu->arena), "cuMemFree_v2");
    check(cuModuleUnload(gpu->module), "cuModuleUnload");
    check(cuDevicePrimaryCtxRelease_v2(gpu->device), "cuDevicePrimaryCtxRelease_v2");
}

void gpu_buffer_init(struct gpu *gpu, struct gpu_buffer *buffer, size_t bytes)
{
    *buffer = (struct gpu_buffer){.bytes = bytes, .writer = -1};
    if (!gpu->arena) {
        use(gpu);
        check(cuMemAlloc_v2(&buffer->address, bytes), "cuMemAlloc_v2 (%zu bytes)", bytes);
        return;
    }
    if (gpu->arena_used_bytes + aligned(bytes) > gpu->arena_bytes) {
        fprintf(stderr, "train_gpt: the arena of %zu bytes is too small\n", gpu->arena_bytes);
        exit(1);
    }
    buffer->address = gpu->arena + gpu->arena_used_bytes;
    gpu->arena_used_bytes += aligned(bytes);
}

void gpu_buffer_finish(struct gpu *gpu, struct gpu_buffer *buffer)
{
    use(gpu);
    if (!gpu->arena)
        check(cuMemFree_v2(buffer->address), "cuMemFree_v2");
    *buffer = (struct gpu_buffer){.writer = -1};
}

/* ---- Streams ---- */

static int least_loaded(const struct gpu *gpu, int except)
{
    int best = -1;
    for (int i = 0; i < gpu->stream_count; i++)
        if (i != except && (best < 0 || gpu->streams[i].kernels < gpu->streams[best].kernels))
            best = i;
    return best;
}

void gpu_next_section(struct gpu *gpu)
{
    gpu->main_stream = least_loaded(gpu, -1);
}

static int choose_stream(const struct gpu *gpu, enum gpu_lane lane)
{
    return lane == MAIN || gpu->stream_count == 1 ? gpu->main_stream : least_loaded(gpu, gpu->main_stream);
}

/*
 * Makes the stream wait for the other's work up to `count`. The event is recorded now, behind whatever else the other stream
 * was given since: that may wait longer than needed, but costs no event per launch. A recorded event can be recorded again
 * at once, since the wait refers to the recording that it found.
 */
static void wait_for(struct gpu *gpu, int stream, int other, uint64_t count)
{
    struct gpu_stream *waiter = &gpu->streams[stream], *awaited = &gpu->streams[other];
    if (stream == other || waiter->waited_for[other] >= count)
        return;
    check(cuEventRecord(awaited->event, awaited->stream), "cuEventRecord");
    check(cuStreamWaitEvent(waiter->stream, awaited->event, 0), "cuStreamWaitEvent");
    waiter->waited_for[other] = awaited->issued;
    for (int i = 0; i <= gpu->stream_count; i++) /* and, through it, for all that it has waited for */
        if (i != stream && waiter->waited_for[i] < awaited->waited_for[i])
            waiter->waited_for[i] = awaited->waited_for[i];
}

/* The same for the stream of another GPU. Both streams' contexts have to be current in turn: an event is recorded by its own. */
static void wait_for_peer(struct gpu *gpu, int stream, const struct gpu *peer, int other)
{
    use(peer);
    check(cuEventRecord(peer->streams[other].event, peer->streams[other].stream), "cuEventRecord");
    use(gpu);
    check(cuStreamWaitEvent(gpu->streams[stream].stream, peer->streams[other].event, 0), "cuStreamWaitEvent");
}

static void order_after(struct gpu *gpu, int stream, const struct gpu_buffer *buffer, bool writes)
{
    if (buffer->writer >= 0)
        wait_for(gpu, stream, buffer->writer, buffer->written);
    if (!writes)
        return;
    for (int other = 0; other < gpu->stream_count; other++)
        if (buffer->read[other])
            wait_for(gpu, stream, other, buffer->read[other]);
    for (int peer = 0; peer < MAX_GPUS; peer++)
        if (buffer->peers_read >> peer & 1)
            wait_for_peer(gpu, stream, &gpu->peers[peer], gpu->peers[peer].stream_count);
}

/* After the work itself was issued and counted. */
static void note_use(const struct gpu *gpu, int stream, struct gpu_buffer *buffer, bool reads, bool writes)
{
    uint64_t now = gpu->streams[stream].issued;
    if (writes) { /* it waited for all readers, so later work need only wait for it */
        memset(buffer->read, 0, sizeof buffer->read);
        buffer->peers_read = 0;
        buffer->writer = stream;
        buffer->written = now;
    } else if (reads) {
        buffer->read[stream] = now;
    }
}

/* ---- Work ---- */

void gpu_upload(struct gpu *gpu, struct gpu_buffer *buffer, const void *host)
{
    int stream = gpu->main_stream;
    use(gpu);
    order_after(gpu, stream, buffer, true);
    check(cuMemcpyHtoDAsync_v2(buffer->address, host, buffer->bytes, gpu->streams[stream].stream),
          "cuMemcpyHtoDAsync_v2 (%zu bytes)", buffer->bytes);
    gpu->streams[stream].issued++;
    note_use(gpu, stream, buffer, false, true);
}

void gpu_clear(struct gpu *gpu, struct gpu_buffer *buffer)
{
    int stream = gpu->main_stream;
    use(gpu);
    order_after(gpu, stream, buffer, true);
    check(cuMemsetD8Async(buffer->address, 0, buffer->bytes, gpu->streams[stream].stream),
          "cuMemsetD8Async (%zu bytes)", buffer->bytes);
    gpu->streams[stream].issued++;
    note_use(gpu, stream, buffer, false, true);
}

void gpu_synchronise(struct gpu *gpu)
{
    use(gpu);
    check(cuCtxSynchronize(), "cuCtxSynchronize");
    for (int i = 0; i <= gpu->stream_count; i++)
        for (int j = 0; j <= gpu->stream_count; j++)
            gpu->streams[i].waited_for[j] = gpu->streams[j].issued;
}

void gpu_download(struct gpu *gpu, struct gpu_buffer *buffer, void *host_out)
{
    int stream = gpu->main_stream;
    use(gpu);
    order_after(gpu, stream, buffer, false);
    check(cuMemcpyDtoHAsync_v2(host_out, buffer->address, buffer->bytes, gpu->streams[stream].stream),
          "cuMemcpyDtoHAsync_v2 (%zu bytes)", buffer->bytes);
    gpu->streams[stream].issued++;
    note_use(gpu, stream, buffer, true, false);
    check(cuStreamSynchronize(gpu->streams[stream].stream), "cuStreamSynchronize");
}

void gpu_copy(struct gpu *gpu, struct gpu_buffer *to, struct gpu *from_gpu, struct gpu_buffer *from)
{
    int stream = gpu->stream_count;
    use(gpu);
    order_after(gpu, stream, to, true);
    if (from->writer >= 0)
        wait_for_peer(gpu, stream, from_gpu, from->writer);
    check(cuMemcpyPeerAsync(to->address, gpu->context, from->address, from_gpu->context, to->bytes,
                            gpu->streams[stream].stream),
          "cuMemcpyPeerAsync (%zu bytes)", to->bytes);
    gpu->streams[stream].issued++;
    note_use(gpu, stream, to, false, true);
    from->peers_read |= UINT64_C(1) << gpu->index;
}

void gpu_launch(struct gpu *gpu, enum gpu_kernel kernel, enum gpu_lane lane, struct gpu_size grid,
                struct gpu_size block, const struct gpu_argument *arguments, int argument_count)
{
    int stream = choose_stream(gpu, lane);
    CUdeviceptr addresses[GPU_MAX_ARGUMENTS];
    void *parameters[GPU_MAX_ARGUMENTS];
    use(gpu);
    for (int i = 0; i < argument_count; i++) {
        const struct gpu_argument *a = &arguments[i];
        if (a->buffer)
            order_after(gpu, stream, a->buffer, a->kind != ARG_READ);
        addresses[i] = a->buffer ? a->buffer->address + a->offset * sizeof(float) : 0;
        parameters[i] = a->kind == ARG_INT     ? (void *)&a->i
                        : a->kind == ARG_FLOAT ? (void *)&a->f
                                               : (void *)&addresses[i];
    }
    check(cuLaunchKernel(gpu->functions[kernel], (unsigned)grid.x, (unsigned)grid.y, (unsigned)grid.z,
                         (unsigned)block.x, (unsigned)block.y, (unsigned)block.z, 0, gpu->streams[stream].stream,
                         parameters, NULL),
          "cuLaunchKernel (%s)", kernel_names[kernel]);
    gpu->streams[stream].issued++;
    gpu->streams[stream].kernels++;
    for (int i = 0; i < argument_count; i++)
        if (arguments[i].buffer)
            note_use(gpu, stream, arguments[i].buffer, arguments[i].kind == ARG_READ, arguments[i].kind != ARG_READ);
}
