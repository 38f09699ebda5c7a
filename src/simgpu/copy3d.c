/* Copies of three-dimensional pieces of linear memory and of arrays. */
#include "simgpu/array.h"
#include "simgpu/capture.h"

/* One end as the structures of both 3D copies tell it. */
struct place {
    size_t x, y, z, lod;
    CUmemorytype type;
    const void *host;
    CUdeviceptr device;
    size_t pitch, height;
    CUarray array;
};

static CUresult end_3d(const struct place *p, const struct sg_extent *extent, struct sg_end *end_out)
{
    uint64_t row, rows, layer, offset;
    if (p->lod)
        return CUDA_ERROR_INVALID_VALUE;
    if (p->type == CU_MEMORYTYPE_ARRAY)
        return sg_end_of_array(p->array, p->x, p->y, p->z, extent, end_out);
    size_t pitch = p->pitch ? p->pitch : p->x + extent->width_bytes;
    CUresult r = sg_end_from(p->type, p->host, p->device, pitch, end_out);
    if (r)
        return r;
    if (p->x > SIZE_MAX - extent->width_bytes || pitch < p->x + extent->width_bytes)
        return CUDA_ERROR_INVALID_VALUE;
    if (p->y > SIZE_MAX - extent->height)
        return CUDA_ERROR_INVALID_VALUE;
    if (!p->height && (extent->depth > 1 || p->z)) /* then nothing tells where the next layer is */
        return CUDA_ERROR_INVALID_VALUE;
    size_t height = p->height ? p->height : p->y + extent->height;
    if (height < p->y + extent->height)
        return CUDA_ERROR_INVALID_VALUE;
    if (__builtin_mul_overflow((uint64_t)height, (uint64_t)pitch, &layer) ||
        __builtin_mul_overflow((uint64_t)p->z, (uint64_t)height, &rows) ||
        __builtin_add_overflow(rows, (uint64_t)p->y, &row) || __builtin_mul_overflow(row, (uint64_t)pitch, &offset) ||
        __builtin_add_overflow(offset, p->x, &offset) || __builtin_add_overflow(end_out->va, offset, &end_out->va))
        return CUDA_ERROR_INVALID_VALUE;
    end_out->slice = layer;
    return CUDA_SUCCESS;
}

CUresult sg_copy_ends(const CUDA_MEMCPY3D *p, struct sg_end *dst, struct sg_end *src, struct sg_extent *extent)
{
    if (p->reserved0 || p->reserved1)
        return CUDA_ERROR_INVALID_VALUE;
    *extent = (struct sg_extent){p->WidthInBytes, p->Height, p->Depth};
    struct place to = {p->dstXInBytes, p->dstY,      p->dstZ,     p->dstLOD,    p->dstMemoryType,
                       p->dstHost,     p->dstDevice, p->dstPitch, p->dstHeight, p->dstArray};
    struct place from = {p->srcXInBytes, p->srcY,      p->srcZ,     p->srcLOD,    p->srcMemoryType,
                         p->srcHost,     p->srcDevice, p->srcPitch, p->srcHeight, p->srcArray};
    CUresult r = end_3d(&to, extent, dst);
    return r ? r : end_3d(&from, extent, src);
}

static CUresult copy_3d(const char *function, const CUDA_MEMCPY3D *p, CUstream stream, bool per_thread, bool async)
{
    struct sg_stream *s;
    CUresult r = sg_enter_work(function, stream, per_thread, &s);
    if (r)
        return r;
    struct sg_extent extent;
    struct sg_end dst, src;
    r = p ? sg_copy_ends(p, &dst, &src, &extent) : CUDA_ERROR_INVALID_VALUE;
    if (!r)
        r = sg_copy_submit(s, &dst, &src, &extent, async ? SG_HOW_ASYNC : SG_HOW_SYNC);
    return sg_leave(r);
}

CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *p)
{
    return copy_3d("cuMemcpy3D", p, NULL, false, false);
}

CUresult cuMemcpy3D_v2_ptds(const CUDA_MEMCPY3D *p)
{
    return copy_3d("cuMemcpy3D", p, NULL, true, false);
}

CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *p, CUstream stream)
{
    return copy_3d("cuMemcpy3DAsync", p, stream, false, true);
}

CUresult cuMemcpy3DAsync_v2_ptsz(const CUDA_MEMCPY3D *p, CUstream stream)
{
    return copy_3d("cuMemcpy3DAsync", p, stream, true, true);
}

/* ---- between contexts ---- */

static CUresult copy_3d_peer(const char *function, const CUDA_MEMCPY3D_PEER *p, CUstream stream, bool per_thread,
                             bool async)
{
    struct sg_stream *s;
    CUresult r = sg_enter_work(function, stream, per_thread, &s);
    if (r)
        return r;
    if (!p)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    struct sg_extent extent = {p->WidthInBytes, p->Height, p->Depth};
    struct place to = {p->dstXInBytes, p->dstY,      p->dstZ,     p->dstLOD,    p->dstMemoryType,
                       p->dstHost,     p->dstDevice, p->dstPitch, p->dstHeight, p->dstArray};
    struct place from = {p->srcXInBytes, p->srcY,      p->srcZ,     p->srcLOD,    p->srcMemoryType,
                         p->srcHost,     p->srcDevice, p->srcPitch, p->srcHeight, p->srcArray};
    struct sg_end dst, src;
    r = end_3d(&to, &extent, &dst);
    if (!r)
        r = end_3d(&from, &extent, &src);
    /* Device memory belongs to a context; host memory to none. */
    bool to_host = p->dstMemoryType == CU_MEMORYTYPE_HOST, from_host = p->srcMemoryType == CU_MEMORYTYPE_HOST;
    if (!r && ((!to_host && !p->dstContext) || (!from_host && !p->srcContext)))
        r = CUDA_ERROR_INVALID_CONTEXT;
    if (!r)
        r = sg_copy_between(s, to_host ? NULL : p->dstContext, from_host ? NULL : p->srcContext, &dst, &src, &extent,
                            async);
    return sg_leave(r);
}

CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER *p)
{
    return copy_3d_peer("cuMemcpy3DPeer", p, NULL, false, false);
}

CUresult cuMemcpy3DPeer_ptds(const CUDA_MEMCPY3D_PEER *p)
{
    return copy_3d_peer("cuMemcpy3DPeer", p, NULL, true, false);
}

CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *p, CUstream stream)
{
    return copy_3d_peer("cuMemcpy3DPeerAsync", p, stream, false, true);
}

CUresult cuMemcpy3DPeerAsync_ptsz(const CUDA_MEMCPY3D_PEER *p, CUstream stream)
{
    return copy_3d_peer("cuMemcpy3DPeerAsync", p, stream, true, true);
}
