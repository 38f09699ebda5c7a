/*
 * Linear and 2D copies.
 *
 * Who waits for what follows the driver API's documented synchronisation behaviour, read harshly: copies between devices'
 * memory do not wait for their end even in the synchronous form; pageable sources are staged when the call is made, and
 * small synchronous ones may return before the device has the bytes (by seed); pinned sources of asynchronous copies are
 * read when the copy runs.
 */
#include "simgpu/check.h"

#include <stdlib.h>
#include <string.h>

#define EARLY_RETURN_BYTES (UINT64_C(64) << 10)

struct operand {
    uint64_t va;
    size_t pitch;
    int device;  /* whose page table; SG_ON_HOST = a plain host pointer */
    bool pinned; /* of those */
    bool sync;   /* SYNC_MEMOPS is set on it */
};

enum side { ANY, HOST, DEVICE };

/* Is [va, va+bytes) VMM memory that `device` may access so? */
static bool mapping_allows(uint64_t va, uint64_t bytes, int device, bool write)
{
    for (uint64_t end = va + bytes; va < end;) {
        struct sg_mapping *m = sg_mapping_at(va);
        if (!m || (m->access[device] & (write ? 2 : 1)) == 0)
            return false;
        va = m->region.va + m->region.bytes;
    }
    return true;
}

/* Finds out what an address is. `device` is the one whose grants count for VMM memory. */
static CUresult classify(uint64_t va, size_t pitch, size_t width, size_t height, enum side side, int device, bool write,
                         struct operand *out)
{
    uint64_t bytes = (height - 1) * (uint64_t)pitch + width;
    *out = (struct operand){.va = va, .pitch = pitch, .device = SG_ON_HOST};
    if (!va)
        return CUDA_ERROR_INVALID_VALUE;
    struct sg_host *h = sg_host_at(va);
    struct sg_alloc *a = sg_alloc_at(va);
    struct sg_mapping *m = sg_mapping_at(va);
    if (h) {
        out->pinned = true;
        return va + bytes <= h->va + h->bytes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
    if (a || m) {
        if (side == HOST && !(m && m->host_access))
            return CUDA_ERROR_INVALID_VALUE;
        if (side == HOST) {
            out->pinned = true; /* host-located VMM memory that the CPU may use */
            return CUDA_SUCCESS;
        }
        out->device = a ? a->context->device : device;
        out->sync = a && a->sync_memops;
        if (!sg_range_is_memory(va, bytes) || (m && !mapping_allows(va, bytes, device, write)))
            return CUDA_ERROR_INVALID_VALUE;
        return CUDA_SUCCESS;
    }
    return side == DEVICE || sg_reservation_at(va) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult stage(struct sg_copy *c)
{
    c->staging = malloc(c->width_bytes * c->height);
    if (!c->staging)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t row = 0; row < c->height; row++)
        memcpy((uint8_t *)c->staging + row * c->width_bytes, (const void *)(uintptr_t)(c->src + row * c->src_pitch),
               c->width_bytes);
    return CUDA_SUCCESS;
}

/* Whether the call returns only when the copy is done. */
static bool must_wait(const struct operand *dst, const struct operand *src, uint64_t bytes, bool async,
                      const struct sg_context *context)
{
    bool to_host = dst->device == SG_ON_HOST, from_host = src->device == SG_ON_HOST;
    if (dst->sync || src->sync || (context->flags & CU_CTX_SYNC_MEMOPS))
        return true;
    if (to_host && from_host)
        return true;
    if (async)
        return to_host && !dst->pinned;
    if (!to_host && !from_host)
        return false;
    if (from_host && !src->pinned && bytes <= EARLY_RETURN_BYTES)
        return sg_random() & 1;
    return true;
}

static CUresult submit(struct sg_stream *s, const struct operand *dst, const struct operand *src, size_t width,
                       size_t height, bool async)
{
    struct sg_op *op = sg_op_new(SG_OP_COPY);
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    op->copy =
        (struct sg_copy){dst->va, src->va, dst->pitch, src->pitch, width, height, dst->device, src->device, NULL};
    bool to_host = dst->device == SG_ON_HOST, from_host = src->device == SG_ON_HOST;
    op->engine = from_host && !to_host ? SG_ENGINE_H2D : to_host && !from_host ? SG_ENGINE_D2H : SG_ENGINE_D2D;
    bool wait = must_wait(dst, src, (uint64_t)width * height, async, s->context);
    if (from_host && !src->pinned && !wait) {
        CUresult r = stage(&op->copy);
        if (r) {
            free(op);
            return r;
        }
        if (sg_check.race)
            sg_race_host_read(&op->copy, "the host, staging the source of a copy,");
    }
    return wait ? sg_submit_and_wait(s, op) : sg_submit_async(s, op);
}

struct ends {
    enum side dst_side, src_side;
    int dst_device, src_device; /* whose grants count; SG_ON_HOST = the stream's */
};

static CUresult copy(struct sg_stream *s, uint64_t dst, size_t dst_pitch, uint64_t src, size_t src_pitch, size_t width,
                     size_t height, struct ends ends, bool async)
{
    struct operand to, from;
    if (!width || !height)
        return CUDA_SUCCESS;
    if (width > UINT64_C(1) << SG_VA_BITS || height > UINT64_C(1) << 32)
        return CUDA_ERROR_INVALID_VALUE;
    int own = s->context->device;
    CUresult r = classify(dst, dst_pitch, width, height, ends.dst_side,
                          ends.dst_device == SG_ON_HOST ? own : ends.dst_device, true, &to);
    if (!r)
        r = classify(src, src_pitch, width, height, ends.src_side,
                     ends.src_device == SG_ON_HOST ? own : ends.src_device, false, &from);
    return r ? r : submit(s, &to, &from, width, height, async);
}

static CUresult linear(const char *function, uint64_t dst, uint64_t src, size_t bytes, enum side dst_side,
                       enum side src_side, CUstream stream, bool per_thread, bool async)
{
    struct sg_stream *s;
    CUresult r = sg_enter_stream(function, stream, per_thread, &s);
    if (r)
        return r;
    struct ends ends = {dst_side, src_side, SG_ON_HOST, SG_ON_HOST};
    return sg_leave(copy(s, dst, bytes, src, bytes, bytes, 1, ends, async));
}

static uint64_t at(const void *p)
{
    return (uint64_t)(uintptr_t)p;
}

CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t n)
{
    return linear("cuMemcpy", dst, src, n, ANY, ANY, NULL, false, false);
}

CUresult cuMemcpy_ptds(CUdeviceptr dst, CUdeviceptr src, size_t n)
{
    return linear("cuMemcpy", dst, src, n, ANY, ANY, NULL, true, false);
}

CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream stream)
{
    return linear("cuMemcpyAsync", dst, src, n, ANY, ANY, stream, false, true);
}

CUresult cuMemcpyAsync_ptsz(CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream stream)
{
    return linear("cuMemcpyAsync", dst, src, n, ANY, ANY, stream, true, true);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src, size_t n)
{
    return linear("cuMemcpyHtoD", dst, at(src), n, DEVICE, HOST, NULL, false, false);
}

CUresult cuMemcpyHtoD_v2_ptds(CUdeviceptr dst, const void *src, size_t n)
{
    return linear("cuMemcpyHtoD", dst, at(src), n, DEVICE, HOST, NULL, true, false);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t n, CUstream stream)
{
    return linear("cuMemcpyHtoDAsync", dst, at(src), n, DEVICE, HOST, stream, false, true);
}

CUresult cuMemcpyHtoDAsync_v2_ptsz(CUdeviceptr dst, const void *src, size_t n, CUstream stream)
{
    return linear("cuMemcpyHtoDAsync", dst, at(src), n, DEVICE, HOST, stream, true, true);
}

CUresult cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t n)
{
    return linear("cuMemcpyDtoH", at(dst), src, n, HOST, DEVICE, NULL, false, false);
}

CUresult cuMemcpyDtoH_v2_ptds(void *dst, CUdeviceptr src, size_t n)
{
    return linear("cuMemcpyDtoH", at(dst), src, n, HOST, DEVICE, NULL, true, false);
}

CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t n, CUstream stream)
{
    return linear("cuMemcpyDtoHAsync", at(dst), src, n, HOST, DEVICE, stream, false, true);
}

CUresult cuMemcpyDtoHAsync_v2_ptsz(void *dst, CUdeviceptr src, size_t n, CUstream stream)
{
    return linear("cuMemcpyDtoHAsync", at(dst), src, n, HOST, DEVICE, stream, true, true);
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr dst, CUdeviceptr src, size_t n)
{
    return linear("cuMemcpyDtoD", dst, src, n, DEVICE, DEVICE, NULL, false, false);
}

CUresult cuMemcpyDtoD_v2_ptds(CUdeviceptr dst, CUdeviceptr src, size_t n)
{
    return linear("cuMemcpyDtoD", dst, src, n, DEVICE, DEVICE, NULL, true, false);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream stream)
{
    return linear("cuMemcpyDtoDAsync", dst, src, n, DEVICE, DEVICE, stream, false, true);
}

CUresult cuMemcpyDtoDAsync_v2_ptsz(CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream stream)
{
    return linear("cuMemcpyDtoDAsync", dst, src, n, DEVICE, DEVICE, stream, true, true);
}

/* ---- between devices ---- */

struct peer_args {
    CUdeviceptr dst, src;
    CUcontext dst_context, src_context;
    size_t bytes;
};

static CUresult peer(const char *function, struct peer_args args, CUstream stream, bool per_thread, bool async)
{
    struct sg_stream *s;
    CUresult r = sg_enter_stream(function, stream, per_thread, &s);
    if (r)
        return r;
    struct sg_context *to = SG_FIND(args.dst_context, SG_CONTEXT), *from = SG_FIND(args.src_context, SG_CONTEXT);
    if (!to || !from || !to->active || !from->active)
        return sg_leave(CUDA_ERROR_INVALID_CONTEXT);
    if (to->sticky || from->sticky)
        return sg_leave(to->sticky ? to->sticky : from->sticky);
    struct ends ends = {DEVICE, DEVICE, to->device, from->device};
    uint64_t stream_id = s->object.id, context = s->context->object.id;
    if (!async) { /* ordered against both contexts' work: what they hold is done first, and this before anything later */
        sg_wait_context(to);
        from = SG_FIND(args.src_context, SG_CONTEXT);
        if (from)
            sg_wait_context(from);
        s = sg_object_find(stream_id, SG_STREAM);
        if (!from || !s)
            return sg_leave(CUDA_ERROR_CONTEXT_IS_DESTROYED);
    }
    r = copy(s, args.dst, args.bytes, args.src, args.bytes, args.bytes, 1, ends, async);
    if (!r && !async) {
        s = sg_object_find(stream_id, SG_STREAM);
        if (s && s->head)
            sg_wait_ticket(s, s->submitted);
        struct sg_context *c = sg_object_find(context, SG_CONTEXT);
        r = c ? c->sticky : CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    return sg_leave(r);
}

CUresult cuMemcpyPeer(CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context, size_t n)
{
    return peer("cuMemcpyPeer", (struct peer_args){dst, src, dst_context, src_context, n}, NULL, false, false);
}

CUresult cuMemcpyPeer_ptds(CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context, size_t n)
{
    return peer("cuMemcpyPeer", (struct peer_args){dst, src, dst_context, src_context, n}, NULL, true, false);
}

CUresult cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context, size_t n,
                           CUstream stream)
{
    return peer("cuMemcpyPeerAsync", (struct peer_args){dst, src, dst_context, src_context, n}, stream, false, true);
}

CUresult cuMemcpyPeerAsync_ptsz(CUdeviceptr dst, CUcontext dst_context, CUdeviceptr src, CUcontext src_context,
                                size_t n, CUstream stream)
{
    return peer("cuMemcpyPeerAsync", (struct peer_args){dst, src, dst_context, src_context, n}, stream, true, true);
}

/* ---- two dimensions ---- */

static CUresult end_2d(CUmemorytype type, const void *host, CUdeviceptr device, size_t x, size_t y, size_t *pitch_io,
                       size_t width, uint64_t *va_out, enum side *side_out)
{
    if (type == CU_MEMORYTYPE_ARRAY)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (type != CU_MEMORYTYPE_HOST && type != CU_MEMORYTYPE_DEVICE && type != CU_MEMORYTYPE_UNIFIED)
        return CUDA_ERROR_INVALID_VALUE;
    size_t pitch = *pitch_io ? *pitch_io : x + width;
    if (pitch < x + width || (type == CU_MEMORYTYPE_DEVICE && pitch > INT32_MAX))
        return CUDA_ERROR_INVALID_VALUE;
    *pitch_io = pitch;
    *side_out = type == CU_MEMORYTYPE_HOST ? HOST : type == CU_MEMORYTYPE_DEVICE ? DEVICE : ANY;
    *va_out = (type == CU_MEMORYTYPE_HOST ? at(host) : device) + y * pitch + x;
    return CUDA_SUCCESS;
}

static CUresult copy_2d(const char *function, const CUDA_MEMCPY2D *p, CUstream stream, bool per_thread, bool async)
{
    struct sg_stream *s;
    CUresult r = sg_enter_stream(function, stream, per_thread, &s);
    if (r)
        return r;
    if (!p || p->WidthInBytes > UINT64_C(1) << SG_VA_BITS)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    uint64_t dst = 0, src = 0;
    size_t dst_pitch = p->dstPitch, src_pitch = p->srcPitch;
    struct ends ends = {ANY, ANY, SG_ON_HOST, SG_ON_HOST};
    r = end_2d(p->dstMemoryType, p->dstHost, p->dstDevice, p->dstXInBytes, p->dstY, &dst_pitch, p->WidthInBytes, &dst,
               &ends.dst_side);
    if (!r)
        r = end_2d(p->srcMemoryType, p->srcHost, p->srcDevice, p->srcXInBytes, p->srcY, &src_pitch, p->WidthInBytes,
                   &src, &ends.src_side);
    if (!r)
        r = copy(s, dst, dst_pitch, src, src_pitch, p->WidthInBytes, p->Height, ends, async);
    return sg_leave(r);
}

CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *p)
{
    return copy_2d("cuMemcpy2D", p, NULL, false, false);
}

CUresult cuMemcpy2D_v2_ptds(const CUDA_MEMCPY2D *p)
{
    return copy_2d("cuMemcpy2D", p, NULL, true, false);
}

CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *p)
{
    return copy_2d("cuMemcpy2DUnaligned", p, NULL, false, false);
}

CUresult cuMemcpy2DUnaligned_v2_ptds(const CUDA_MEMCPY2D *p)
{
    return copy_2d("cuMemcpy2DUnaligned", p, NULL, true, false);
}

CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *p, CUstream stream)
{
    return copy_2d("cuMemcpy2DAsync", p, stream, false, true);
}

CUresult cuMemcpy2DAsync_v2_ptsz(const CUDA_MEMCPY2D *p, CUstream stream)
{
    return copy_2d("cuMemcpy2DAsync", p, stream, true, true);
}
