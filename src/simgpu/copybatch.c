/*
 * Batches of copies. All copies of a batch are checked before the first is submitted. Their order within the batch is
 * nobody's to rely on, so the seed decides it.
 */
#include "simgpu/array.h"
#include "simgpu/capture.h"

#include <stdlib.h>

struct part {
    struct sg_end dst, src;
    struct sg_operand to, from;
    struct sg_extent extent;
    enum sg_how how;
};

static CUresult how_from(CUmemcpySrcAccessOrder order, enum sg_how *how_out)
{
    switch ((int)order) {
    case CU_MEMCPY_SRC_ACCESS_ORDER_STREAM: *how_out = SG_HOW_SOURCE_LATE; return CUDA_SUCCESS;
    case CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL: *how_out = SG_HOW_SOURCE_NOW; return CUDA_SUCCESS;
    case CU_MEMCPY_SRC_ACCESS_ORDER_ANY:
        *how_out = sg_call_random() & 1 ? SG_HOW_SOURCE_LATE : SG_HOW_ASYNC;
        return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

static void shuffle(struct part *parts, size_t count)
{
    for (size_t i = count; i > 1; i--) {
        size_t other = (size_t)(sg_call_random() % i);
        struct part kept = parts[i - 1];
        parts[i - 1] = parts[other];
        parts[other] = kept;
    }
}

/* Checks and submits; frees the parts. */
static CUresult submit(struct sg_stream *s, struct part *parts, size_t count, size_t *bad_out)
{
    CUresult r = CUDA_SUCCESS;
    uint64_t stream = s->object.id;
    for (size_t i = 0; i < count && !r; i++) {
        struct part *p = &parts[i];
        r = sg_copy_check(s, &p->dst, &p->src, &p->extent, &p->to, &p->from);
        *bad_out = r ? i : SIZE_MAX;
    }
    if (!r)
        shuffle(parts, count);
    for (size_t i = 0; i < count && !r; i++) {
        r = sg_copy_submit_checked(s, &parts[i].to, &parts[i].from, &parts[i].extent, parts[i].how);
        s = sg_object_find(stream, SG_STREAM); /* a copy that had to be waited for released the lock */
        if (!r && !s)
            r = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    free(parts);
    return r;
}

/* A batch has no place on the legacy stream. */
static CUresult enter(const char *function, CUstream stream, bool per_thread, struct sg_stream **stream_out)
{
    CUresult r = sg_enter_work(function, stream, per_thread, stream_out);
    if (r)
        return r;
    return (*stream_out)->type == SG_STREAM_LEGACY ? sg_leave(CUDA_ERROR_INVALID_VALUE) : CUDA_SUCCESS;
}

struct batch {
    const CUdeviceptr *dsts, *srcs;
    const size_t *sizes;
    size_t count;
    const CUmemcpyAttributes *attributes;
    const size_t *first;
    size_t attribute_count;
};

static CUresult check_batch(const struct batch *b)
{
    if (!b->dsts || !b->srcs || !b->sizes || !b->count || !b->attributes || !b->first || !b->attribute_count ||
        b->attribute_count > b->count || b->first[0])
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t k = 0; k < b->attribute_count; k++)
        if ((k && b->first[k] <= b->first[k - 1]) || b->first[k] >= b->count ||
            (b->attributes[k].flags & ~(unsigned)CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE))
            return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

static CUresult copy_batch(struct batch b, size_t *failed, CUstream stream, bool per_thread)
{
    struct sg_stream *s;
    CUresult r = enter("cuMemcpyBatchAsync", stream, per_thread, &s);
    if (failed)
        *failed = SIZE_MAX;
    if (r)
        return r;
    r = check_batch(&b);
    struct part *parts = r ? NULL : calloc(b.count, sizeof *parts);
    if (!r && !parts)
        r = CUDA_ERROR_OUT_OF_MEMORY;
    size_t bad = SIZE_MAX;
    for (size_t i = 0, k = 0; i < b.count && !r; i++) {
        if (k + 1 < b.attribute_count && b.first[k + 1] == i)
            k++;
        parts[i].dst = (struct sg_end){b.dsts[i], b.sizes[i], 0, SG_SIDE_ANY, SG_ON_HOST};
        parts[i].src = (struct sg_end){b.srcs[i], b.sizes[i], 0, SG_SIDE_ANY, SG_ON_HOST};
        parts[i].extent = (struct sg_extent){b.sizes[i], 1, 1};
        r = how_from(b.attributes[k].srcAccessOrder, &parts[i].how);
        if (!r && !b.sizes[i])
            r = CUDA_ERROR_INVALID_VALUE;
        bad = r ? i : SIZE_MAX;
    }
    if (r)
        free(parts);
    else
        r = submit(s, parts, b.count, &bad);
    if (r && failed)
        *failed = bad;
    return sg_leave(r);
}

CUresult cuMemcpyBatchAsync(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
                            CUmemcpyAttributes *attrs, size_t *first, size_t attr_count, size_t *failed,
                            CUstream stream)
{
    return copy_batch((struct batch){dsts, srcs, sizes, count, attrs, first, attr_count}, failed, stream, false);
}

CUresult cuMemcpyBatchAsync_ptsz(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
                                 CUmemcpyAttributes *attrs, size_t *first, size_t attr_count, size_t *failed,
                                 CUstream stream)
{
    return copy_batch((struct batch){dsts, srcs, sizes, count, attrs, first, attr_count}, failed, stream, true);
}

CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
                               CUmemcpyAttributes *attrs, size_t *first, size_t attr_count, CUstream stream)
{
    return copy_batch((struct batch){dsts, srcs, sizes, count, attrs, first, attr_count}, NULL, stream, false);
}

CUresult cuMemcpyBatchAsync_v2_ptsz(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,
                                    CUmemcpyAttributes *attrs, size_t *first, size_t attr_count, CUstream stream)
{
    return copy_batch((struct batch){dsts, srcs, sizes, count, attrs, first, attr_count}, NULL, stream, true);
}

/* ---- three dimensions ---- */

/* Where an array takes part, widths are in its elements. */
static size_t element_bytes(const CUmemcpy3DOperand *o)
{
    const struct sg_array *a = o->type == CU_MEMCPY_OPERAND_TYPE_ARRAY ? sg_array_find(o->op.array.array) : NULL;
    return a ? a->element_bytes : 1;
}

static CUresult end_of(const CUmemcpy3DOperand *o, const struct sg_extent *extent, size_t unit, struct sg_end *end_out)
{
    if (o->type == CU_MEMCPY_OPERAND_TYPE_ARRAY)
        return o->op.array.offset.x > SIZE_MAX / unit
                   ? CUDA_ERROR_INVALID_VALUE
                   : sg_end_of_array(o->op.array.array, o->op.array.offset.x * unit, o->op.array.offset.y,
                                     o->op.array.offset.z, extent, end_out);
    size_t pitch = extent->width_bytes, slice;
    if (o->type != CU_MEMCPY_OPERAND_TYPE_POINTER ||
        (o->op.ptr.rowLength && __builtin_mul_overflow(o->op.ptr.rowLength, unit, &pitch)))
        return CUDA_ERROR_INVALID_VALUE;
    size_t height = o->op.ptr.layerHeight ? o->op.ptr.layerHeight : extent->height;
    if (pitch < extent->width_bytes || height < extent->height || __builtin_mul_overflow(pitch, height, &slice))
        return CUDA_ERROR_INVALID_VALUE;
    *end_out = (struct sg_end){o->op.ptr.ptr, pitch, slice, SG_SIDE_ANY, SG_ON_HOST};
    return CUDA_SUCCESS;
}

static CUresult part_from(const CUDA_MEMCPY3D_BATCH_OP *op, struct part *part)
{
    const CUextent3D *e = &op->extent;
    if (!e->width || !e->height || !e->depth || (op->flags & ~(unsigned)CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE))
        return CUDA_ERROR_INVALID_VALUE;
    size_t unit = element_bytes(&op->dst), from_unit = element_bytes(&op->src);
    if (unit == 1 || op->dst.type != CU_MEMCPY_OPERAND_TYPE_ARRAY)
        unit = from_unit;
    if ((op->src.type == CU_MEMCPY_OPERAND_TYPE_ARRAY && unit != from_unit) || e->width > SIZE_MAX / unit)
        return CUDA_ERROR_INVALID_VALUE;
    part->extent = (struct sg_extent){e->width * unit, e->height, e->depth};
    CUresult r = end_of(&op->dst, &part->extent, unit, &part->dst);
    if (!r)
        r = end_of(&op->src, &part->extent, unit, &part->src);
    return r ? r : how_from(op->srcAccessOrder, &part->how);
}

static CUresult copy_batch_3d(size_t count, const CUDA_MEMCPY3D_BATCH_OP *list, size_t *failed,
                              unsigned long long flags, CUstream stream, bool per_thread)
{
    struct sg_stream *s;
    CUresult r = enter("cuMemcpy3DBatchAsync", stream, per_thread, &s);
    if (failed)
        *failed = SIZE_MAX;
    if (r)
        return r;
    if (!list || !count || flags)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    struct part *parts = calloc(count, sizeof *parts);
    if (!parts)
        return sg_leave(CUDA_ERROR_OUT_OF_MEMORY);
    size_t bad = SIZE_MAX;
    for (size_t i = 0; i < count && !r; i++) {
        r = part_from(&list[i], &parts[i]);
        bad = r ? i : SIZE_MAX;
    }
    if (r)
        free(parts);
    else
        r = submit(s, parts, count, &bad);
    if (r && failed)
        *failed = bad;
    return sg_leave(r);
}

CUresult cuMemcpy3DBatchAsync(size_t count, CUDA_MEMCPY3D_BATCH_OP *list, size_t *failed, unsigned long long flags,
                              CUstream stream)
{
    return copy_batch_3d(count, list, failed, flags, stream, false);
}

CUresult cuMemcpy3DBatchAsync_ptsz(size_t count, CUDA_MEMCPY3D_BATCH_OP *list, size_t *failed, unsigned long long flags,
                                   CUstream stream)
{
    return copy_batch_3d(count, list, failed, flags, stream, true);
}

CUresult cuMemcpy3DBatchAsync_v2(size_t count, CUDA_MEMCPY3D_BATCH_OP *list, unsigned long long flags, CUstream stream)
{
    return copy_batch_3d(count, list, NULL, flags, stream, false);
}

CUresult cuMemcpy3DBatchAsync_v2_ptsz(size_t count, CUDA_MEMCPY3D_BATCH_OP *list, unsigned long long flags,
                                      CUstream stream)
{
    return copy_batch_3d(count, list, NULL, flags, stream, true);
}
