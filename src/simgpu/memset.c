/* Memsets. They do not wait for their end, except on pinned host memory (the documented behaviour). */
#include "simgpu/capture.h"
#include "simgpu/check.h"

#include <string.h>

struct area {
    CUdeviceptr dst;
    size_t pitch, width, height; /* elements, but the pitch in bytes */
    unsigned value, element_bytes;
};

static CUresult check(const struct sg_context *context, const struct area *a, struct sg_fill *fill, bool *host_out)
{
    if (a->width > UINT64_C(1) << 45 || a->height > UINT64_C(1) << 32 || a->dst % a->element_bytes ||
        (a->height > 1 && (a->pitch % a->element_bytes || a->pitch < a->width * a->element_bytes)))
        return CUDA_ERROR_INVALID_VALUE;
    *fill = (struct sg_fill){a->dst,           a->pitch,       a->width * a->element_bytes, a->height, a->value,
                             a->element_bytes, context->device};
    uint64_t bytes = (a->height - 1) * a->pitch + fill->width_bytes;
    *host_out = sg_host_at(a->dst) != NULL;
    struct sg_alloc *alloc = sg_alloc_at(a->dst);
    if (!sg_range_is_memory(a->dst, bytes) || (alloc && !sg_alloc_view(alloc, context->device, true, &fill->device)))
        return CUDA_ERROR_INVALID_VALUE;
    for (uint64_t va = a->dst; sg_mapping_at(va) && va < a->dst + bytes;) {
        struct sg_mapping *m = sg_mapping_at(va);
        if (m->access[context->device] != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
            return CUDA_ERROR_INVALID_VALUE;
        va = m->region.va + m->region.bytes;
    }
    return CUDA_SUCCESS;
}

CUresult sg_fill_check(const struct sg_context *context, const CUDA_MEMSET_NODE_PARAMS *p, struct sg_fill *fill_out)
{
    bool host;
    struct area area = {p->dst, p->height > 1 ? p->pitch : 0, p->width, p->height, p->value, p->elementSize};
    CUresult r = check(context, &area, fill_out, &host);
    return r ? sg_refused(r, context->device, p->dst) : CUDA_SUCCESS;
}

/* What a call on a capturing stream asks for becomes a node. */
static CUresult capture(struct sg_stream *s, const struct area *a)
{
    CUDA_MEMSET_NODE_PARAMS p = {.dst = a->dst,
                                 .pitch = a->height > 1 ? a->pitch : 0,
                                 .value = a->value,
                                 .elementSize = a->element_bytes,
                                 .width = a->width,
                                 .height = a->height};
    struct sg_work *w;
    CUresult r = sg_work_fill(&p, SG_HANDLE(CUcontext, s->context), &w);
    return r ? r : sg_capture_work(s, w);
}

static CUresult fill(const char *function, struct area area, CUstream stream, bool per_thread, bool async)
{
    struct sg_stream *s;
    CUresult r = sg_enter_work(function, stream, per_thread, &s);
    if (r)
        return r;
    if (!area.width || !area.height)
        return sg_leave(CUDA_SUCCESS);
    if (s->captured)
        return sg_leave(async ? capture(s, &area) : sg_capture_refuse(s));
    struct sg_fill f;
    bool host;
    r = check(s->context, &area, &f, &host);
    if (r)
        return sg_leave(sg_refused(r, s->context->device, area.dst));
    struct sg_op *op = sg_op_new(SG_OP_FILL);
    if (!op)
        return sg_leave(CUDA_ERROR_OUT_OF_MEMORY);
    op->fill = f;
    op->engine = SG_ENGINE_D2D;
    struct sg_alloc *alloc = sg_alloc_at(area.dst);
    bool wait = (host && !async) || (alloc && alloc->sync_memops) || (s->context->flags & CU_CTX_SYNC_MEMOPS);
    return sg_leave(wait ? sg_submit_and_wait(s, op) : sg_submit_async(s, op));
}

CUresult cuMemsetD8_v2(CUdeviceptr dst, unsigned char value, size_t n)
{
    return fill("cuMemsetD8", (struct area){dst, 0, n, 1, value, 1}, NULL, false, false);
}

CUresult cuMemsetD2D8_v2(CUdeviceptr dst, size_t pitch, unsigned char value, size_t width, size_t height)
{
    return fill("cuMemsetD2D8", (struct area){dst, pitch, width, height, value, 1}, NULL, false, false);
}

CUresult cuMemsetD8_v2_ptds(CUdeviceptr dst, unsigned char value, size_t n)
{
    return fill("cuMemsetD8", (struct area){dst, 0, n, 1, value, 1}, NULL, true, false);
}

CUresult cuMemsetD2D8_v2_ptds(CUdeviceptr dst, size_t pitch, unsigned char value, size_t width, size_t height)
{
    return fill("cuMemsetD2D8", (struct area){dst, pitch, width, height, value, 1}, NULL, true, false);
}

CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t n, CUstream stream)
{
    return fill("cuMemsetD8Async", (struct area){dst, 0, n, 1, value, 1}, stream, false, true);
}

CUresult cuMemsetD2D8Async(CUdeviceptr dst, size_t pitch, unsigned char value, size_t width, size_t height,
                           CUstream stream)
{
    return fill("cuMemsetD2D8Async", (struct area){dst, pitch, width, height, value, 1}, stream, false, true);
}

CUresult cuMemsetD8Async_ptsz(CUdeviceptr dst, unsigned char value, size_t n, CUstream stream)
{
    return fill("cuMemsetD8Async", (struct area){dst, 0, n, 1, value, 1}, stream, true, true);
}

CUresult cuMemsetD2D8Async_ptsz(CUdeviceptr dst, size_t pitch, unsigned char value, size_t width, size_t height,
                                CUstream stream)
{
    return fill("cuMemsetD2D8Async", (struct area){dst, pitch, width, height, value, 1}, stream, true, true);
}

CUresult cuMemsetD16_v2(CUdeviceptr dst, unsigned short value, size_t n)
{
    return fill("cuMemsetD16", (struct area){dst, 0, n, 1, value, 2}, NULL, false, false);
}

CUresult cuMemsetD2D16_v2(CUdeviceptr dst, size_t pitch, unsigned short value, size_t width, size_t height)
{
    return fill("cuMemsetD2D16", (struct area){dst, pitch, width, height, value, 2}, NULL, false, false);
}

CUresult cuMemsetD16_v2_ptds(CUdeviceptr dst, unsigned short value, size_t n)
{
    return fill("cuMemsetD16", (struct area){dst, 0, n, 1, value, 2}, NULL, true, false);
}

CUresult cuMemsetD2D16_v2_ptds(CUdeviceptr dst, size_t pitch, unsigned short value, size_t width, size_t height)
{
    return fill("cuMemsetD2D16", (struct area){dst, pitch, width, height, value, 2}, NULL, true, false);
}

CUresult cuMemsetD16Async(CUdeviceptr dst, unsigned short value, size_t n, CUstream stream)
{
    return fill("cuMemsetD16Async", (struct area){dst, 0, n, 1, value, 2}, stream, false, true);
}

CUresult cuMemsetD2D16Async(CUdeviceptr dst, size_t pitch, unsigned short value, size_t width, size_t height,
                            CUstream stream)
{
    return fill("cuMemsetD2D16Async", (struct area){dst, pitch, width, height, value, 2}, stream, false, true);
}

CUresult cuMemsetD16Async_ptsz(CUdeviceptr dst, unsigned short value, size_t n, CUstream stream)
{
    return fill("cuMemsetD16Async", (struct area){dst, 0, n, 1, value, 2}, stream, true, true);
}

CUresult cuMemsetD2D16Async_ptsz(CUdeviceptr dst, size_t pitch, unsigned short value, size_t width, size_t height,
                                 CUstream stream)
{
    return fill("cuMemsetD2D16Async", (struct area){dst, pitch, width, height, value, 2}, stream, true, true);
}

CUresult cuMemsetD32_v2(CUdeviceptr dst, unsigned int value, size_t n)
{
    return fill("cuMemsetD32", (struct area){dst, 0, n, 1, value, 4}, NULL, false, false);
}

CUresult cuMemsetD2D32_v2(CUdeviceptr dst, size_t pitch, unsigned int value, size_t width, size_t height)
{
    return fill("cuMemsetD2D32", (struct area){dst, pitch, width, height, value, 4}, NULL, false, false);
}

CUresult cuMemsetD32_v2_ptds(CUdeviceptr dst, unsigned int value, size_t n)
{
    return fill("cuMemsetD32", (struct area){dst, 0, n, 1, value, 4}, NULL, true, false);
}

CUresult cuMemsetD2D32_v2_ptds(CUdeviceptr dst, size_t pitch, unsigned int value, size_t width, size_t height)
{
    return fill("cuMemsetD2D32", (struct area){dst, pitch, width, height, value, 4}, NULL, true, false);
}

CUresult cuMemsetD32Async(CUdeviceptr dst, unsigned int value, size_t n, CUstream stream)
{
    return fill("cuMemsetD32Async", (struct area){dst, 0, n, 1, value, 4}, stream, false, true);
}

CUresult cuMemsetD2D32Async(CUdeviceptr dst, size_t pitch, unsigned int value, size_t width, size_t height,
                            CUstream stream)
{
    return fill("cuMemsetD2D32Async", (struct area){dst, pitch, width, height, value, 4}, stream, false, true);
}

CUresult cuMemsetD32Async_ptsz(CUdeviceptr dst, unsigned int value, size_t n, CUstream stream)
{
    return fill("cuMemsetD32Async", (struct area){dst, 0, n, 1, value, 4}, stream, true, true);
}

CUresult cuMemsetD2D32Async_ptsz(CUdeviceptr dst, size_t pitch, unsigned int value, size_t width, size_t height,
                                 CUstream stream)
{
    return fill("cuMemsetD2D32Async", (struct area){dst, pitch, width, height, value, 4}, stream, true, true);
}
