/*
 * Linear and 2D copies.
 *
 * Who waits for what follows the driver API's documented synchronisation behaviour, read harshly: copies between devices'
 * memory do not wait for their end even in the synchronous form; pageable sources are staged when the call is made, and
 * small synchronous ones may return before the device has the bytes (by seed); pinned sources of asynchronous copies are
 * read when the copy runs.
 */
#include "simgpu/array.h"
#include "simgpu/capture.h"
#include "simgpu/check.h"
#include "simgpu/copyop.h"

#include <stdlib.h>
#include <string.h>

#define EARLY_RETURN_BYTES (UINT64_C(64) << 10)

#define ANY SG_SIDE_ANY
#define HOST SG_SIDE_HOST
#define DEVICE SG_SIDE_DEVICE

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
static CUresult classify(const struct sg_end *end, const struct sg_extent *extent, int device, bool write,
                         struct sg_operand *out)
{
    uint64_t va = end->va, layers, rows, bytes;
    enum sg_side side = end->side;
    if (__builtin_mul_overflow(extent->depth - 1, (uint64_t)end->slice, &layers) ||
        __builtin_mul_overflow(extent->height - 1, (uint64_t)end->pitch, &rows) ||
        __builtin_add_overflow(layers, rows, &bytes) || __builtin_add_overflow(bytes, extent->width_bytes, &bytes) ||
        bytes > UINT64_C(1) << SG_VA_BITS)
        return CUDA_ERROR_INVALID_VALUE;
    *out = (struct sg_operand){.va = va, .pitch = end->pitch, .slice = end->slice, .device = SG_ON_HOST};
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
        if (side == HOST && !(m && m->host_access) && !(a && (a->device == SG_ON_HOST || a->managed)))
            return CUDA_ERROR_INVALID_VALUE;
        if (side == HOST || (side == ANY && a && a->device == SG_ON_HOST && a->piece)) {
            out->pinned = true; /* host-located memory that the CPU may use */
            return sg_range_is_memory(va, bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
        }
        out->device = device;
        out->sync = a && a->sync_memops;
        if (!sg_range_is_memory(va, bytes) || (a && !sg_alloc_view(a, device, write, &out->device)) ||
            (m && !mapping_allows(va, bytes, device, write)))
            return CUDA_ERROR_INVALID_VALUE;
        return CUDA_SUCCESS;
    }
    /* Not the host's either: what lies beside the allocations in their pages. */
    bool never_host = side == DEVICE || sg_region_at(va) || sg_reservation_at(va);
    return never_host ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult stage(struct sg_copy *c)
{
    uint8_t *to = c->staging = malloc(sg_copy_bytes(c));
    if (!to)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t z = 0; z < c->depth; z++)
        for (size_t row = 0; row < c->height; row++, to += c->width_bytes)
            memcpy(to, (const void *)(uintptr_t)(c->src + z * c->src_slice + row * c->src_pitch), c->width_bytes);
    return CUDA_SUCCESS;
}

/* Whether the call returns only when the copy is done. */
static bool must_wait(const struct sg_operand *dst, const struct sg_operand *src, uint64_t bytes, bool async,
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
        return sg_call_random() & 1;
    return true;
}

CUresult sg_copy_op(const struct sg_operand *dst, const struct sg_operand *src, const struct sg_extent *extent,
                    struct sg_op **op_out)
{
    struct sg_op *op = sg_op_new(SG_OP_COPY);
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    op->copy = (struct sg_copy){.dst = dst->va,
                                .src = src->va,
                                .dst_pitch = dst->pitch,
                                .src_pitch = src->pitch,
                                .width_bytes = extent->width_bytes,
                                .height = extent->height,
                                .dst_device = dst->device,
                                .src_device = src->device,
                                .depth = extent->depth,
                                .dst_slice = dst->slice,
                                .src_slice = src->slice};
    bool to_host = dst->device == SG_ON_HOST, from_host = src->device == SG_ON_HOST;
    op->engine = from_host && !to_host ? SG_ENGINE_H2D : to_host && !from_host ? SG_ENGINE_D2H : SG_ENGINE_D2D;
    op->copy.pageable = (from_host && !src->pinned) || (to_host && !dst->pinned);
    *op_out = op;
    return CUDA_SUCCESS;
}

static CUresult submit(struct sg_stream *s, const struct sg_operand *dst, const struct sg_operand *src,
                       const struct sg_extent *extent, enum sg_how how)
{
    struct sg_op *op;
    bool from_host = src->device == SG_ON_HOST;
    CUresult made = sg_copy_op(dst, src, extent, &op);
    if (made)
        return made;
    bool wait = must_wait(dst, src, sg_copy_bytes(&op->copy), how != SG_HOW_SYNC, s->context) ||
                (how == SG_HOW_SOURCE_NOW && !from_host);
    bool early = how == SG_HOW_SOURCE_NOW || (how != SG_HOW_SOURCE_LATE && !src->pinned);
    if (from_host && early && !wait) {
        CUresult r = stage(&op->copy);
        if (r) {
            free(op);
            return r;
        }
        if (sg_check.race)
            sg_race_host_read(&op->copy, "the host, staging the source of a copy,");
        sg_time_units(SG_UNIT_STAGED_MIB, (double)sg_copy_bytes(&op->copy) / SG_MIB);
    }
    op->copy.pageable = wait && op->copy.pageable;
    return wait ? sg_submit_and_wait(s, op) : sg_submit_async(s, op);
}

CUresult sg_copy_check(const struct sg_stream *s, const struct sg_end *dst, const struct sg_end *src,
                       const struct sg_extent *extent, struct sg_operand *dst_out, struct sg_operand *src_out)
{
    uint64_t rows, bytes;
    if (__builtin_mul_overflow(extent->height, (uint64_t)extent->depth, &rows) || rows > UINT64_C(1) << 32 ||
        __builtin_mul_overflow(rows, (uint64_t)extent->width_bytes, &bytes) || bytes > UINT64_C(1) << SG_VA_BITS)
        return CUDA_ERROR_INVALID_VALUE;
    int own = s->context->device;
    int dst_device = dst->grants_of == SG_ON_HOST ? own : dst->grants_of;
    int src_device = src->grants_of == SG_ON_HOST ? own : src->grants_of;
    CUresult r = classify(dst, extent, dst_device, true, dst_out);
    if (r)
        return sg_refused(r, dst_device, dst->va);
    r = classify(src, extent, src_device, false, src_out);
    return r ? sg_refused(r, src_device, src->va) : CUDA_SUCCESS;
}

CUresult sg_copy_submit(struct sg_stream *s, const struct sg_end *dst, const struct sg_end *src,
                        const struct sg_extent *extent, enum sg_how how)
{
    struct sg_operand to = {.device = SG_ON_HOST}, from = to;
    if (!extent->width_bytes || !extent->height || !extent->depth)
        return CUDA_SUCCESS;
    if (s->captured)
        return how == SG_HOW_SYNC ? sg_capture_refuse(s) : sg_capture_copy(s, dst, src, extent);
    CUresult r = sg_copy_check(s, dst, src, extent, &to, &from);
    return r ? r : submit(s, &to, &from, extent, how);
}

CUresult sg_copy_submit_checked(struct sg_stream *s, const struct sg_operand *dst, const struct sg_operand *src,
                                const struct sg_extent *extent, enum sg_how how)
{
    if (s->captured) {
        struct sg_end to = {dst->va, dst->pitch, dst->slice, SG_SIDE_ANY, dst->device};
        struct sg_end from = {src->va, src->pitch, src->slice, SG_SIDE_ANY, src->device};
        return sg_capture_copy(s, &to, &from, extent);
    }
    return submit(s, dst, src, extent, how);
}

static CUresult linear(const char *function, uint64_t dst, uint64_t src, size_t bytes, enum sg_side dst_side,
                       enum sg_side src_side, CUstream stream, bool per_thread, bool async)
{
    struct sg_stream *s;
    CUresult r = sg_enter_work(function, stream, per_thread, &s);
    if (r)
        return r;
    struct sg_end to = {dst, bytes, 0, dst_side, SG_ON_HOST}, from = {src, bytes, 0, src_side, SG_ON_HOST};
    struct sg_extent extent = {bytes, 1, 1};
    return sg_leave(sg_copy_submit(s, &to, &from, &extent, async ? SG_HOW_ASYNC : SG_HOW_SYNC));
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

/* The device of a context that a peer copy names. */
static CUresult peer_device(CUcontext handle, int *device_out)
{
    struct sg_context *c = SG_FIND(handle, SG_CONTEXT);
    if (!c || !c->active)
        return CUDA_ERROR_INVALID_CONTEXT;
    *device_out = c->device;
    return c->sticky;
}

CUresult sg_copy_between(struct sg_stream *s, CUcontext dst_context, CUcontext src_context, struct sg_end *dst,
                         struct sg_end *src, const struct sg_extent *extent, bool async)
{
    if (s->captured && !async)
        return sg_capture_refuse(s);
    CUresult r = dst_context ? peer_device(dst_context, &dst->grants_of) : CUDA_SUCCESS;
    if (!r && src_context)
        r = peer_device(src_context, &src->grants_of);
    if (r || async)
        return r ? r : sg_copy_submit(s, dst, src, extent, SG_HOW_ASYNC);
    /* Ordered against both contexts' work: what they hold is done first, and this before anything later. */
    uint64_t stream_id = s->object.id, context_id = s->context->object.id;
    CUcontext ends[2] = {dst_context, src_context};
    for (int i = 0; i < 2; i++) {
        struct sg_context *c = ends[i] ? SG_FIND(ends[i], SG_CONTEXT) : NULL;
        if (c && c->active)
            sg_wait_context(c);
    }
    s = sg_object_find(stream_id, SG_STREAM);
    if (!s)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    r = sg_copy_submit(s, dst, src, extent, SG_HOW_SYNC);
    s = sg_object_find(stream_id, SG_STREAM);
    if (!r && s)
        sg_wait_ticket(s, s->submitted);
    return r ? r : sg_context_tell(context_id);
}

static CUresult peer(const char *function, struct peer_args args, CUstream stream, bool per_thread, bool async)
{
    struct sg_stream *s;
    CUresult r = sg_enter_work(function, stream, per_thread, &s);
    if (r)
        return r;
    if (!args.dst_context || !args.src_context)
        return sg_leave(CUDA_ERROR_INVALID_CONTEXT);
    struct sg_end dst = {args.dst, args.bytes, 0, DEVICE, SG_ON_HOST},
                  src = {args.src, args.bytes, 0, DEVICE, SG_ON_HOST};
    struct sg_extent extent = {args.bytes, 1, 1};
    return sg_leave(sg_copy_between(s, args.dst_context, args.src_context, &dst, &src, &extent, async));
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

CUresult sg_end_from(CUmemorytype type, const void *host, CUdeviceptr device, size_t pitch, struct sg_end *end_out)
{
    if (type != CU_MEMORYTYPE_HOST && type != CU_MEMORYTYPE_DEVICE && type != CU_MEMORYTYPE_UNIFIED)
        return CUDA_ERROR_INVALID_VALUE;
    if (type == CU_MEMORYTYPE_DEVICE && pitch > INT32_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    *end_out = (struct sg_end){.va = type == CU_MEMORYTYPE_HOST ? at(host) : device,
                               .pitch = pitch,
                               .side = type == CU_MEMORYTYPE_HOST     ? HOST
                                       : type == CU_MEMORYTYPE_DEVICE ? DEVICE
                                                                      : ANY,
                               .grants_of = SG_ON_HOST};
    return CUDA_SUCCESS;
}

struct place_2d {
    CUmemorytype type;
    const void *host;
    CUdeviceptr device;
    CUarray array;
    size_t x, y, pitch;
};

static CUresult end_2d(const struct place_2d *p, const struct sg_extent *extent, struct sg_end *end_out)
{
    if (p->type == CU_MEMORYTYPE_ARRAY)
        return sg_end_of_array(p->array, p->x, p->y, 0, extent, end_out);
    size_t row;
    if (__builtin_add_overflow(p->x, extent->width_bytes, &row))
        return CUDA_ERROR_INVALID_VALUE;
    size_t pitch = p->pitch ? p->pitch : row;
    CUresult r = sg_end_from(p->type, p->host, p->device, pitch, end_out);
    if (!r && pitch < row)
        r = CUDA_ERROR_INVALID_VALUE;
    if (!r)
        end_out->va += p->y * pitch + p->x;
    return r;
}

static CUresult copy_2d(const char *function, const CUDA_MEMCPY2D *p, CUstream stream, bool per_thread, bool async)
{
    struct sg_stream *s;
    CUresult r = sg_enter_work(function, stream, per_thread, &s);
    if (r)
        return r;
    if (!p || p->WidthInBytes > UINT64_C(1) << SG_VA_BITS)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    struct sg_end dst, src;
    struct sg_extent extent = {p->WidthInBytes, p->Height, 1};
    struct place_2d to = {p->dstMemoryType, p->dstHost, p->dstDevice, p->dstArray,
                          p->dstXInBytes,   p->dstY,    p->dstPitch};
    struct place_2d from = {p->srcMemoryType, p->srcHost, p->srcDevice, p->srcArray,
                            p->srcXInBytes,   p->srcY,    p->srcPitch};
    r = end_2d(&to, &extent, &dst);
    if (!r)
        r = end_2d(&from, &extent, &src);
    if (!r)
        r = sg_copy_submit(s, &dst, &src, &extent, async ? SG_HOW_ASYNC : SG_HOW_SYNC);
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
