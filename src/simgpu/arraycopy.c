/* Linear copies to and from arrays of one dimension, and the ends of others in arrays. */
#include "simgpu/array.h"
#include "simgpu/capture.h"

CUresult sg_end_of_array(CUarray handle, size_t x, size_t y, size_t z, const struct sg_extent *extent,
                         struct sg_end *end_out)
{
    const struct sg_array *a = sg_array_find(handle);
    if (!a)
        return CUDA_ERROR_INVALID_HANDLE;
    uint64_t row_bytes = a->desc.Width * a->element_bytes;
    if (x > row_bytes || extent->width_bytes > row_bytes - x || y > sg_array_rows(a) ||
        extent->height > sg_array_rows(a) - y || z > sg_array_layers(a) || extent->depth > sg_array_layers(a) - z ||
        x % a->element_bytes || extent->width_bytes % a->element_bytes)
        return CUDA_ERROR_INVALID_VALUE;
    *end_out = (struct sg_end){
        a->va + z * a->slice + y * a->pitch + x, a->pitch, a->slice, SG_SIDE_DEVICE, SG_ON_HOST, handle};
    return CUDA_SUCCESS;
}

struct side { /* an array with an offset, or an address */
    CUarray array;
    uint64_t at;
    enum sg_side side;
};

static CUresult end_of(const struct side *s, const struct sg_extent *extent, struct sg_end *end_out)
{
    *end_out = (struct sg_end){s->at, extent->width_bytes, 0, s->side, SG_ON_HOST};
    if (s->side != SG_SIDE_ANY)
        return CUDA_SUCCESS;
    const struct sg_array *a = sg_array_find(s->array);
    if (a && a->desc.Height)
        return CUDA_ERROR_INVALID_VALUE; /* an offset in bytes means nothing there */
    return sg_end_of_array(s->array, s->at, 0, 0, extent, end_out);
}

static CUresult linear(const char *function, struct side dst, struct side src, size_t bytes, CUstream stream,
                       bool per_thread, bool async)
{
    struct sg_stream *s;
    struct sg_end to, from;
    struct sg_extent extent = {bytes, 1, 1};
    CUresult r = sg_enter_work(function, stream, per_thread, &s);
    if (r)
        return r;
    r = end_of(&dst, &extent, &to);
    if (!r)
        r = end_of(&src, &extent, &from);
    return sg_leave(r ? r : sg_copy_submit(s, &to, &from, &extent, async ? SG_HOW_ASYNC : SG_HOW_SYNC));
}

static struct side in_array(CUarray array, size_t offset)
{
    return (struct side){array, offset, SG_SIDE_ANY};
}

static struct side on_host(const void *p)
{
    return (struct side){NULL, (uint64_t)(uintptr_t)p, SG_SIDE_HOST};
}

static struct side on_device(CUdeviceptr p)
{
    return (struct side){NULL, p, SG_SIDE_DEVICE};
}

CUresult cuMemcpyDtoA_v2(CUarray dst, size_t offset, CUdeviceptr src, size_t n)
{
    return linear("cuMemcpyDtoA", in_array(dst, offset), on_device(src), n, NULL, false, false);
}

CUresult cuMemcpyDtoA_v2_ptds(CUarray dst, size_t offset, CUdeviceptr src, size_t n)
{
    return linear("cuMemcpyDtoA", in_array(dst, offset), on_device(src), n, NULL, true, false);
}

CUresult cuMemcpyAtoD_v2(CUdeviceptr dst, CUarray src, size_t offset, size_t n)
{
    return linear("cuMemcpyAtoD", on_device(dst), in_array(src, offset), n, NULL, false, false);
}

CUresult cuMemcpyAtoD_v2_ptds(CUdeviceptr dst, CUarray src, size_t offset, size_t n)
{
    return linear("cuMemcpyAtoD", on_device(dst), in_array(src, offset), n, NULL, true, false);
}

CUresult cuMemcpyHtoA_v2(CUarray dst, size_t offset, const void *src, size_t n)
{
    return linear("cuMemcpyHtoA", in_array(dst, offset), on_host(src), n, NULL, false, false);
}

CUresult cuMemcpyHtoA_v2_ptds(CUarray dst, size_t offset, const void *src, size_t n)
{
    return linear("cuMemcpyHtoA", in_array(dst, offset), on_host(src), n, NULL, true, false);
}

CUresult cuMemcpyHtoAAsync_v2(CUarray dst, size_t offset, const void *src, size_t n, CUstream stream)
{
    return linear("cuMemcpyHtoAAsync", in_array(dst, offset), on_host(src), n, stream, false, true);
}

CUresult cuMemcpyHtoAAsync_v2_ptsz(CUarray dst, size_t offset, const void *src, size_t n, CUstream stream)
{
    return linear("cuMemcpyHtoAAsync", in_array(dst, offset), on_host(src), n, stream, true, true);
}

CUresult cuMemcpyAtoH_v2(void *dst, CUarray src, size_t offset, size_t n)
{
    return linear("cuMemcpyAtoH", on_host(dst), in_array(src, offset), n, NULL, false, false);
}

CUresult cuMemcpyAtoH_v2_ptds(void *dst, CUarray src, size_t offset, size_t n)
{
    return linear("cuMemcpyAtoH", on_host(dst), in_array(src, offset), n, NULL, true, false);
}

CUresult cuMemcpyAtoHAsync_v2(void *dst, CUarray src, size_t offset, size_t n, CUstream stream)
{
    return linear("cuMemcpyAtoHAsync", on_host(dst), in_array(src, offset), n, stream, false, true);
}

CUresult cuMemcpyAtoHAsync_v2_ptsz(void *dst, CUarray src, size_t offset, size_t n, CUstream stream)
{
    return linear("cuMemcpyAtoHAsync", on_host(dst), in_array(src, offset), n, stream, true, true);
}

CUresult cuMemcpyAtoA_v2(CUarray dst, size_t dst_offset, CUarray src, size_t src_offset, size_t n)
{
    return linear("cuMemcpyAtoA", in_array(dst, dst_offset), in_array(src, src_offset), n, NULL, false, false);
}

CUresult cuMemcpyAtoA_v2_ptds(CUarray dst, size_t dst_offset, CUarray src, size_t src_offset, size_t n)
{
    return linear("cuMemcpyAtoA", in_array(dst, dst_offset), in_array(src, src_offset), n, NULL, true, false);
}
