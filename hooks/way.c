#include "copy.h"

#include "residency/context.h"
#include "residency/gpu.h"
#include "residency/peers.h"

unsigned hr_way_owner(CUdeviceptr address)
{
    uint32_t chunk = (uint32_t)((address - hr_space.base) >> hr_space.chunk_shift);
    unsigned g = 0;
    while (g + 1 < hr_space.gpu_count && chunk >= hr_space.window[g + 1].first_chunk)
        g++;
    return g;
}

struct hr_way hr_way_of(CUstream stream, bool per_thread, const struct hr_range *ranges, unsigned count)
{
    struct hr_way way = {.gpu = -1, .stream = stream, .per_thread = per_thread, .lane_gpu = -1};
    struct hr_context *context = hr_space.gpu_count > 1 ? hr_stream_context(stream) : NULL;
    if (!context)
        return way;
    way.gpu = (int)context->gpu;
    for (unsigned i = 0; i < count; i++)
        if (ranges[i].bytes > 0 && hr_space_owns(ranges[i].address))
            hr_peers_note_use(context->gpu, hr_way_owner(ranges[i].address));
    return way;
}

bool hr_way_is_far(const struct hr_way *way, CUdeviceptr address)
{
    return way->gpu >= 0 && hr_space_owns(address) && !hr_peers_reach((unsigned)way->gpu, hr_way_owner(address));
}

/* The GPU whose memory this is; -1 = host memory, or memory that the host reaches as well. */
static int gpu_of(CUdeviceptr address)
{
    unsigned type = 0;
    int managed = 0, ordinal = -1;
    if (hr_space_owns(address))
        return (int)hr_way_owner(address);
    if (hr_drv.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) != CUDA_SUCCESS ||
        type != CU_MEMORYTYPE_DEVICE ||
        hr_drv.cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address) != CUDA_SUCCESS || managed ||
        hr_drv.cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address) != CUDA_SUCCESS)
        return -1;
    return hr_gpu_of_device(ordinal);
}

CUresult hr_way_open(struct hr_way *way, unsigned gpu, CUstream *stream_out)
{
    CUresult r = CUDA_SUCCESS;
    if (way->lane_gpu >= 0 && way->lane_gpu != (int)gpu)
        r = hr_way_end(way, r, false);
    if (r == CUDA_SUCCESS && way->lane_gpu < 0)
        r = hr_lane_begin(gpu, way->stream, way->per_thread, &way->lane);
    if (r != CUDA_SUCCESS)
        return r;
    way->lane_gpu = (int)gpu;
    *stream_out = way->lane.stream;
    return CUDA_SUCCESS;
}

CUresult hr_way_end(struct hr_way *way, CUresult r, bool wait)
{
    if (way->lane_gpu < 0)
        return r;
    way->lane_gpu = -1;
    return hr_lane_end(&way->lane, r, wait);
}

/* Between the memories of two GPUs: told the contexts, the driver finds a way whether or not they are peers. */
static CUresult between(const struct hr_way *way, CUdeviceptr to, unsigned to_gpu, CUdeviceptr from, unsigned from_gpu,
                        size_t bytes)
{
    struct hr_context *there = hr_context_of_gpu(to_gpu), *here = hr_context_of_gpu(from_gpu);
    if (!there || !here)
        return CUDA_ERROR_INVALID_CONTEXT;
    return way->per_thread ? hr_drv.cuMemcpyPeerAsync_ptsz(to, there->handle, from, here->handle, bytes, way->stream)
                           : hr_drv.cuMemcpyPeerAsync(to, there->handle, from, here->handle, bytes, way->stream);
}

CUresult hr_way_copy(struct hr_way *way, CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    int to_gpu = gpu_of(to), from_gpu = gpu_of(from);
    CUstream stream;
    CUresult r = CUDA_SUCCESS;
    if (to_gpu >= 0 && from_gpu >= 0 && to_gpu != from_gpu) {
        if (way->lane_gpu >= 0) /* its context is current */
            r = hr_way_end(way, r, false);
        return r == CUDA_SUCCESS ? between(way, to, (unsigned)to_gpu, from, (unsigned)from_gpu, bytes) : r;
    }
    r = hr_way_open(way, (unsigned)(to_gpu >= 0 ? to_gpu : from_gpu), &stream);
    if (r != CUDA_SUCCESS)
        return r;
    if (to_gpu < 0)
        return hr_drv.cuMemcpyDtoHAsync_v2((void *)(uintptr_t)to, from, bytes, stream);
    if (from_gpu < 0)
        return hr_drv.cuMemcpyHtoDAsync_v2(to, (const void *)(uintptr_t)from, bytes, stream);
    return hr_drv.cuMemcpyDtoDAsync_v2(to, from, bytes, stream);
}
