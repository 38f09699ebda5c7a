/*
 * Times are those of events around a copy. A short and a long copy give rate and start apart; the long one grows until it takes long
 * enough for the events' resolution. The best of a few counts: what disturbs a copy only makes it longer.
 */
#include "fabric/measure.h"

#include "driver/driver.h"

#include <stdlib.h>
#include <string.h>

#define MOST_GPUS 64
#define PROOF_BYTES (UINT64_C(1) << 20)
#define SHORT_BYTES (UINT64_C(64) << 10)
#define LONG_BYTES (UINT64_C(4) << 20)
#define MOST_BYTES (UINT64_C(64) << 20)
#define LONG_ENOUGH_NS 80000.0
#define TIMES 3
#define OK(call) ((call) == CUDA_SUCCESS)

struct gpu {
    char bus_id[HR_TOPOLOGY_NAME_BYTES];
    CUdevice device;
    CUcontext context;
    CUstream stream;
    CUevent begin, end;
};
static struct gpu gpus[MOST_GPUS];
static size_t gpu_count;

static bool make_gpu(const char *bus_id, struct gpu *gpu)
{
    strncpy(gpu->bus_id, bus_id, sizeof gpu->bus_id - 1);
    return OK(hr_drv.cuDeviceGetByPCIBusId(&gpu->device, bus_id)) &&
           OK(hr_drv.cuDevicePrimaryCtxRetain(&gpu->context, gpu->device)) &&
           OK(hr_drv.cuCtxSetCurrent(gpu->context)) &&
           OK(hr_drv.cuStreamCreate(&gpu->stream, CU_STREAM_NON_BLOCKING)) &&
           OK(hr_drv.cuEventCreate(&gpu->begin, CU_EVENT_DEFAULT)) &&
           OK(hr_drv.cuEventCreate(&gpu->end, CU_EVENT_DEFAULT));
}

static struct gpu *find_gpu(const char *bus_id)
{
    for (size_t i = 0; i < gpu_count; i++) {
        if (strcmp(gpus[i].bus_id, bus_id) == 0)
            return &gpus[i];
    }
    if (gpu_count == MOST_GPUS || strlen(bus_id) >= sizeof gpus->bus_id || !make_gpu(bus_id, &gpus[gpu_count]))
        return NULL;
    return &gpus[gpu_count++];
}

bool hr_measure_prepare(const char *from, const char *to)
{
    return find_gpu(from) && find_gpu(to);
}

/* One end of a copy. */
struct end {
    struct gpu *gpu; /* NULL = host memory */
    CUdeviceptr address;
    void *host;
};

static bool take(struct end *end, uint64_t bytes)
{
    if (!end->gpu)
        return OK(hr_drv.cuMemHostAlloc(&end->host, bytes, CU_MEMHOSTALLOC_PORTABLE));
    return OK(hr_drv.cuCtxSetCurrent(end->gpu->context)) && OK(hr_drv.cuMemAlloc_v2(&end->address, bytes));
}

static void give_back(struct end *end)
{
    if (end->host)
        hr_drv.cuMemFreeHost(end->host);
    if (end->address && OK(hr_drv.cuCtxSetCurrent(end->gpu->context)))
        hr_drv.cuMemFree_v2(end->address);
    end->host = NULL;
    end->address = 0;
}

/* As much as there is room for on a GPU that its job may have filled. 0: not even a little. */
static uint64_t take_both(struct end *from, struct end *to, uint64_t most_bytes)
{
    for (uint64_t bytes = most_bytes; bytes >= SHORT_BYTES; bytes /= 2) {
        if (take(from, bytes) && take(to, bytes))
            return bytes;
        give_back(from);
        give_back(to);
    }
    return 0;
}

/* On the stream of the GPU that sends, or of the one that the host sends to. */
static CUresult copy(const struct end *from, const struct end *to, uint64_t bytes, CUstream stream)
{
    if (!from->gpu)
        return hr_drv.cuMemcpyHtoDAsync_v2(to->address, from->host, bytes, stream);
    if (!to->gpu)
        return hr_drv.cuMemcpyDtoHAsync_v2(to->host, from->address, bytes, stream);
    return hr_drv.cuMemcpyPeerAsync(to->address, to->gpu->context, from->address, from->gpu->context, bytes, stream);
}

/* A link that went down tells so, and whoever uses it copes with it then. */
static enum hr_pair_state state_of(CUresult failure)
{
    return failure == CUDA_ERROR_NVLINK_UNCORRECTABLE ? HR_PAIR_UNPROVEN : HR_PAIR_FAILS;
}

/* Nanoseconds of one copy at its best; negative: it failed, with *failure_out. */
static double time_copy(const struct end *from, const struct end *to, uint64_t bytes, CUresult *failure_out)
{
    struct gpu *gpu = from->gpu ? from->gpu : to->gpu;
    double best = -1;
    CUresult r = hr_drv.cuCtxSetCurrent(gpu->context);

    for (int i = 0; i < TIMES && r == CUDA_SUCCESS; i++) {
        float ms = 0;
        r = hr_drv.cuEventRecord(gpu->begin, gpu->stream);
        if (r == CUDA_SUCCESS)
            r = copy(from, to, bytes, gpu->stream);
        if (r == CUDA_SUCCESS)
            r = hr_drv.cuEventRecord(gpu->end, gpu->stream);
        if (r == CUDA_SUCCESS)
            r = hr_drv.cuStreamSynchronize(gpu->stream);
        if (r == CUDA_SUCCESS)
            r = hr_drv.cuEventElapsedTime(&ms, gpu->begin, gpu->end);
        if (best < 0 || ms * 1e6 < best)
            best = ms * 1e6;
    }
    if (r == CUDA_SUCCESS)
        return best;
    *failure_out = r;
    return -1;
}

/* CUDA_SUCCESS with *mbps_out still 0: there is too little memory to tell the rate. */
static CUresult time_path(struct end *from, struct end *to, uint64_t *mbps_out, uint32_t *start_ns_out)
{
    uint64_t bytes = LONG_BYTES, got;
    double short_ns, long_ns;
    CUresult failure = CUDA_SUCCESS;

    for (;; bytes *= 2) {
        got = take_both(from, to, bytes);
        if (got == 0)
            return CUDA_SUCCESS;
        short_ns = time_copy(from, to, SHORT_BYTES, &failure);
        long_ns = failure == CUDA_SUCCESS ? time_copy(from, to, got, &failure) : -1;
        give_back(from);
        give_back(to);
        if (failure != CUDA_SUCCESS)
            return failure;
        if (long_ns >= LONG_ENOUGH_NS || got < bytes || bytes == MOST_BYTES)
            break;
    }
    if (got <= SHORT_BYTES || long_ns <= short_ns)
        return CUDA_SUCCESS;
    double bytes_per_ns = (double)(got - SHORT_BYTES) / (long_ns - short_ns);
    double start_ns = short_ns - SHORT_BYTES / bytes_per_ns;
    if (bytes_per_ns < 0.001 || bytes_per_ns > 100000)
        return CUDA_SUCCESS;
    *mbps_out = (uint64_t)(bytes_per_ns * 1000 + 0.5);
    *start_ns_out = start_ns > 0 && start_ns < 1e9 ? (uint32_t)start_ns : 0;
    return CUDA_SUCCESS;
}

static uint32_t word_of(uint64_t index, uint32_t seed)
{
    uint64_t word = (index + 1) * UINT64_C(0x9e3779b97f4a7c15) + seed;

    word ^= word >> 29;
    word *= UINT64_C(0xbf58476d1ce4e5b9);
    return (uint32_t)(word >> 32);
}

static bool holds_pattern(const uint32_t *words, uint64_t bytes, uint32_t seed)
{
    for (uint64_t i = 0; i < bytes / sizeof *words; i++) {
        if (words[i] != word_of(i, seed))
            return false;
    }
    return true;
}

/* Through the host it must be right, or nothing is known; then from one GPU to the other. The target holds another pattern before. */
static enum hr_pair_state prove(struct end *from, struct end *to, uint32_t *words, uint64_t bytes)
{
    static uint32_t seed;

    seed += 0x1234567;
    for (uint64_t i = 0; i < bytes / sizeof *words; i++)
        words[i] = word_of(i, seed);
    if (!OK(hr_drv.cuCtxSetCurrent(to->gpu->context)) || !OK(hr_drv.cuMemsetD8_v2(to->address, 0x5a, bytes)) ||
        !OK(hr_drv.cuCtxSynchronize()) || !OK(hr_drv.cuCtxSetCurrent(from->gpu->context)) ||
        !OK(hr_drv.cuMemcpyHtoD_v2(from->address, words, bytes)))
        return HR_PAIR_UNPROVEN;
    memset(words, 0, bytes);
    if (!OK(hr_drv.cuMemcpyDtoH_v2(words, from->address, bytes)) || !holds_pattern(words, bytes, seed))
        return HR_PAIR_UNPROVEN;
    CUresult r = copy(from, to, bytes, from->gpu->stream);
    if (r == CUDA_SUCCESS)
        r = hr_drv.cuStreamSynchronize(from->gpu->stream);
    if (r != CUDA_SUCCESS)
        return state_of(r);
    memset(words, 0, bytes);
    if (!OK(hr_drv.cuCtxSetCurrent(to->gpu->context)) || !OK(hr_drv.cuMemcpyDtoH_v2(words, to->address, bytes)))
        return HR_PAIR_UNPROVEN;
    return holds_pattern(words, bytes, seed) ? HR_PAIR_GOOD : HR_PAIR_CORRUPTS;
}

static CUresult enable(struct gpu *from, struct gpu *to)
{
    CUresult r = hr_drv.cuCtxSetCurrent(from->context);

    if (r == CUDA_SUCCESS)
        r = hr_drv.cuCtxEnablePeerAccess(to->context, 0);
    return r == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED ? CUDA_SUCCESS : r;
}

static void disable(struct gpu *from, struct gpu *to)
{
    if (OK(hr_drv.cuCtxSetCurrent(from->context)))
        hr_drv.cuCtxDisablePeerAccess(to->context);
}

void hr_measure_path(const char *from, const char *to, struct hr_measured *measured_out)
{
    struct end source = {.gpu = find_gpu(from)}, target = {.gpu = find_gpu(to)};

    *measured_out = (struct hr_measured){0};
    if (!source.gpu || !target.gpu || source.gpu == target.gpu)
        return;
    /* One direction is enough for the copy engine. Few connections may be open at once, so each is closed again. */
    CUresult onward = enable(source.gpu, target.gpu), backward = enable(target.gpu, source.gpu);
    bool there = onward == CUDA_SUCCESS, back = backward == CUDA_SUCCESS;
    uint64_t bytes = there || back ? take_both(&source, &target, PROOF_BYTES) : 0;
    uint32_t *words = bytes ? malloc(bytes) : NULL;
    if (words)
        measured_out->state = prove(&source, &target, words, bytes);
    else if (onward == CUDA_ERROR_PEER_ACCESS_UNSUPPORTED && backward == CUDA_ERROR_PEER_ACCESS_UNSUPPORTED)
        measured_out->state = HR_PAIR_FAILS; /* the enabling decides, not the query */
    give_back(&source);
    give_back(&target);
    free(words);
    CUresult failure = measured_out->state == HR_PAIR_GOOD
                           ? time_path(&source, &target, &measured_out->mbps, &measured_out->start_ns)
                           : CUDA_SUCCESS;
    if (failure != CUDA_SUCCESS)
        measured_out->state = state_of(failure);
    if (there)
        disable(source.gpu, target.gpu);
    if (back)
        disable(target.gpu, source.gpu);
}

static bool works(const struct gpu *gpu)
{
    return gpu && OK(hr_drv.cuCtxSetCurrent(gpu->context)) && OK(hr_drv.cuCtxSynchronize());
}

bool hr_measure_go_on(const char *from, const char *to)
{
    return works(find_gpu(from)) && works(find_gpu(to));
}

void hr_measure_host(const char *gpu, struct hr_measured *measured_out)
{
    struct end device = {.gpu = find_gpu(gpu)}, host = {.gpu = NULL};
    uint32_t start_ns = 0;

    *measured_out = (struct hr_measured){0};
    if (!device.gpu || !OK(hr_drv.cuCtxSetCurrent(device.gpu->context)))
        return;
    if (OK(time_path(&device, &host, &measured_out->mbps, &start_ns)) &&
        OK(time_path(&host, &device, &measured_out->back_mbps, &start_ns)) && measured_out->mbps &&
        measured_out->back_mbps)
        measured_out->state = HR_PAIR_GOOD;
}
