#include "copy.h"

#include "hr_hooks.h"
#include "residency/access.h"
#include "residency/capture.h"
#include "shim/refuse.h"
#include "texel.h"

#include <stdint.h>
#include <stdlib.h>

/*
 * Batches of copies. Where every operand lies in one tier and within the GPU's reach the batch goes to the driver as it is; else each copy is made by
 * itself on the batch's stream, which orders them more strictly than a batch does. A source that has to be read while the call runs is waited for then.
 */

struct batch {
    CUdeviceptr *to, *from;
    size_t *sizes, count;
    CUmemcpyAttributes *attributes;
    size_t *first, attribute_count;
    CUstream stream;
    bool per_thread;
    CUresult (*real)(const struct batch *b);
    size_t *failed_out;
};

/* NULL and the legacy stream are refused by the driver, as are batches that miss something. */
static bool is_sound(const struct batch *b)
{
    if (!b->to || !b->from || !b->sizes || b->count == 0 || !b->attributes || !b->first || b->attribute_count == 0 ||
        b->attribute_count > b->count || b->first[0] != 0 || (!b->stream && !b->per_thread) ||
        b->stream == CU_STREAM_LEGACY)
        return false;
    for (size_t k = 1; k < b->attribute_count; k++)
        if (b->first[k] <= b->first[k - 1] || b->first[k] >= b->count)
            return false;
    for (size_t i = 0; i < b->count; i++)
        if (b->sizes[i] == 0)
            return false;
    return true;
}

static bool names_window(const struct batch *b)
{
    for (size_t i = 0; i < b->count; i++)
        if (hr_space_owns(b->to[i]) || hr_space_owns(b->from[i]))
            return true;
    return false;
}

/* Window operands as ranges; others have no bytes. */
static struct hr_range *ranges_of(const struct batch *b)
{
    struct hr_range *ranges = calloc(2 * b->count, sizeof *ranges);
    for (size_t i = 0; ranges && i < b->count; i++) {
        if (hr_space_owns(b->to[i]))
            ranges[2 * i] = (struct hr_range){b->to[i], b->sizes[i]};
        if (hr_space_owns(b->from[i]))
            ranges[2 * i + 1] = (struct hr_range){b->from[i], b->sizes[i]};
    }
    return ranges;
}

/* The copy that names what no allocation holds; b->count = there is none. */
static size_t first_wrong(const struct batch *b, const struct hr_range *ranges)
{
    for (size_t i = 0; i < 2 * b->count; i++) {
        if (!hr_space_holds(ranges[i].address, ranges[i].bytes))
            return i / 2;
    }
    return b->count;
}

static bool in_one_piece(const struct hr_way *way, const struct hr_range *range)
{
    CUdeviceptr use;
    bool translated;
    return range->bytes == 0 ||
           (!hr_way_is_far(way, range->address) &&
            hr_access_piece(range->address, range->bytes, &use, &translated) == range->bytes && !translated);
}

/* Copies between GPUs are left to those who know all ways. */
static bool goes_as_it_is(const struct hr_way *way, const struct batch *b, const struct hr_range *ranges)
{
    for (size_t i = 0; i < b->count; i++) {
        const struct hr_range *to = &ranges[2 * i], *from = to + 1;
        if (!in_one_piece(way, to) || !in_one_piece(way, from) ||
            (to->bytes && from->bytes && hr_way_owner(to->address) != hr_way_owner(from->address)))
            return false;
    }
    return true;
}

static bool reads_during_call(const CUmemcpyAttributes *attributes, size_t count)
{
    for (size_t k = 0; k < count; k++)
        if (attributes[k].srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL)
            return true;
    return false;
}

static CUresult one_by_one(struct hr_way *way, const struct batch *b)
{
    CUresult r = CUDA_SUCCESS;
    for (size_t i = 0; i < b->count && r == CUDA_SUCCESS; i++) {
        r = hr_copy_span(way, b->to[i], b->from[i], b->sizes[i], true);
        if (r != CUDA_SUCCESS && b->failed_out)
            *b->failed_out = i;
    }
    return hr_way_end(way, r, false);
}

static CUresult wait_for(CUstream stream, bool per_thread)
{
    return per_thread ? hr_drv.cuStreamSynchronize_ptsz(stream) : hr_drv.cuStreamSynchronize(stream);
}

static CUresult over_window(struct hr_thread *t, const struct batch *b, const struct hr_range *ranges)
{
    unsigned count = (unsigned)(2 * b->count);
    struct hr_way way = hr_way_of(b->stream, b->per_thread, ranges, count);
    size_t wrong = first_wrong(b, ranges);
    if (wrong < b->count && !hr_capture_takes(b->stream, b->per_thread)) {
        if (b->failed_out)
            *b->failed_out = wrong;
        return CUDA_ERROR_INVALID_VALUE;
    }
    struct hr_placing placing;
    if (hr_capture_takes(b->stream, b->per_thread))
        return hr_copy_place(t, ranges, count, &placing) ? hr_copy_placed(t, &placing, b->real(b)) : placing.r;
    CUresult r = hr_copy_begin(t, ranges, count);
    if (r != CUDA_SUCCESS)
        return r;
    bool split = !goes_as_it_is(&way, b, ranges);
    r = split ? one_by_one(&way, b) : b->real(b);
    for (size_t i = 0; r == CUDA_SUCCESS && i < b->count;
         i++) /* not before: host memory is there if the driver could read it */
        hr_copy_note_pointers(b->to[i], b->from[i], b->sizes[i], HR_SOURCE_ANY);
    r = hr_copy_end(t, r, b->stream, b->per_thread, ranges, count);
    if (split && r == CUDA_SUCCESS && reads_during_call(b->attributes, b->attribute_count))
        r = wait_for(b->stream, b->per_thread);
    return r;
}

static CUresult copy_batch(const struct batch *b)
{
    HR_INSIDE();
    struct hr_thread *t = hr_thread_self();
    if (!t || !is_sound(b) || !names_window(b))
        return b->real(b);
    if (b->count > UINT32_MAX / 2)
        return CUDA_ERROR_INVALID_VALUE;
    if (b->failed_out)
        *b->failed_out = SIZE_MAX;
    struct hr_range *ranges = ranges_of(b);
    CUresult r = ranges ? over_window(t, b, ranges) : CUDA_ERROR_OUT_OF_MEMORY;
    free(ranges);
    return r;
}

#define BATCH_V1(name, pt)                                                                                             \
    static CUresult real_##name(const struct batch *b)                                                                 \
    {                                                                                                                  \
        return hr_drv.name(b->to, b->from, b->sizes, b->count, b->attributes, b->first, b->attribute_count,            \
                           b->failed_out, b->stream);                                                                  \
    }                                                                                                                  \
    HR_HOOK(name)                                                                                                      \
    (CUdeviceptr * dsts, CUdeviceptr * srcs, size_t * sizes, size_t count, CUmemcpyAttributes * attrs,                 \
     size_t * attrsIdxs, size_t numAttrs, size_t * failIdx, CUstream hStream)                                          \
    {                                                                                                                  \
        HR_PASS(name, dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, failIdx, hStream);                         \
        return copy_batch(                                                                                             \
            &(struct batch){dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, hStream, pt, real_##name, failIdx}); \
    }
BATCH_V1(cuMemcpyBatchAsync, false)
BATCH_V1(cuMemcpyBatchAsync_ptsz, true)

#define BATCH_V2(name, pt)                                                                                             \
    static CUresult real_##name(const struct batch *b)                                                                 \
    {                                                                                                                  \
        return hr_drv.name(b->to, b->from, b->sizes, b->count, b->attributes, b->first, b->attribute_count,            \
                           b->stream);                                                                                 \
    }                                                                                                                  \
    HR_HOOK(name)                                                                                                      \
    (CUdeviceptr * dsts, CUdeviceptr * srcs, size_t * sizes, size_t count, CUmemcpyAttributes * attrs,                 \
     size_t * attrsIdxs, size_t numAttrs, CUstream hStream)                                                            \
    {                                                                                                                  \
        HR_PASS(name, dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, hStream);                                  \
        return copy_batch(                                                                                             \
            &(struct batch){dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, hStream, pt, real_##name, NULL});    \
    }
BATCH_V2(cuMemcpyBatchAsync_v2, false)
BATCH_V2(cuMemcpyBatchAsync_v2_ptsz, true)

/* --- three dimensions --- */

struct batch_3d {
    CUDA_MEMCPY3D_BATCH_OP *ops;
    size_t count;
    unsigned long long flags;
    CUstream stream;
    bool per_thread;
    CUresult (*real)(const struct batch_3d *b);
    size_t *failed_out;
};

static bool is_pointer(const CUmemcpy3DOperand *o)
{
    return o->type == CU_MEMCPY_OPERAND_TYPE_POINTER;
}
static bool is_ours(const CUmemcpy3DOperand *o)
{
    return is_pointer(o) && hr_space_owns(o->op.ptr.ptr);
}

/* Bytes of an element: where an array takes part widths are in its elements. 0: not known. */
static size_t element_bytes(const CUmemcpy3DOperand *o)
{
    CUDA_ARRAY3D_DESCRIPTOR d;
    if (is_pointer(o))
        return 1;
    if (o->type != CU_MEMCPY_OPERAND_TYPE_ARRAY ||
        hr_drv.cuArray3DGetDescriptor_v2(&d, o->op.array.array) != CUDA_SUCCESS)
        return 0;
    return hr_texel_bytes(d.Format, d.NumChannels);
}

struct side {
    CUmemorytype type;
    CUdeviceptr device;
    CUarray array;
    size_t x, y, z, pitch, height;
};

static bool side_of(const CUmemcpy3DOperand *o, const CUextent3D *extent, size_t unit, struct side *side_out)
{
    if (!is_pointer(o)) {
        *side_out = (struct side){.type = CU_MEMORYTYPE_ARRAY,
                                  .array = o->op.array.array,
                                  .y = o->op.array.offset.y,
                                  .z = o->op.array.offset.z};
        return !__builtin_mul_overflow(o->op.array.offset.x, unit, &side_out->x);
    }
    *side_out = (struct side){.type = CU_MEMORYTYPE_UNIFIED,
                              .device = o->op.ptr.ptr,
                              .height = o->op.ptr.layerHeight ? o->op.ptr.layerHeight : extent->height};
    return !__builtin_mul_overflow(o->op.ptr.rowLength ? o->op.ptr.rowLength : extent->width, unit, &side_out->pitch);
}

/* One of a batch as a copy by itself. INVALID_VALUE: it is not sound; NOT_SUPPORTED: of arrays whose layout is not known here. */
static CUresult as_copy(const CUDA_MEMCPY3D_BATCH_OP *op, CUDA_MEMCPY3D *copy_out)
{
    struct side to, from;
    size_t unit = element_bytes(is_pointer(&op->dst) ? &op->src : &op->dst), row;
    if (unit == 0)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (op->extent.width == 0 || op->extent.height == 0 || op->extent.depth == 0 ||
        __builtin_mul_overflow(op->extent.width, unit, &row) || !side_of(&op->dst, &op->extent, unit, &to) ||
        !side_of(&op->src, &op->extent, unit, &from))
        return CUDA_ERROR_INVALID_VALUE;
    *copy_out = (CUDA_MEMCPY3D){
        .srcXInBytes = from.x,
        .srcY = from.y,
        .srcZ = from.z,
        .srcMemoryType = from.type,
        .srcDevice = from.device,
        .srcArray = from.array,
        .srcPitch = from.pitch,
        .srcHeight = from.height,
        .dstXInBytes = to.x,
        .dstY = to.y,
        .dstZ = to.z,
        .dstMemoryType = to.type,
        .dstDevice = to.device,
        .dstArray = to.array,
        .dstPitch = to.pitch,
        .dstHeight = to.height,
        .WidthInBytes = row,
        .Height = op->extent.height,
        .Depth = op->extent.depth,
    };
    return CUDA_SUCCESS;
}

static CUresult copy_op(const struct batch_3d *b, size_t i)
{
    struct batch_3d single = *b;
    CUDA_MEMCPY3D copy;
    if (!is_ours(&b->ops[i].dst) && !is_ours(&b->ops[i].src)) {
        single.ops = &b->ops[i];
        single.count = 1;
        return b->real(&single);
    }
    CUresult r = as_copy(&b->ops[i], &copy);
    if (r == CUDA_SUCCESS)
        r = hr_copy_3d(&copy, b->stream, b->per_thread);
    if (r == CUDA_SUCCESS && b->ops[i].srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL &&
        !hr_capture_takes(b->stream, b->per_thread))
        r = wait_for(b->stream, b->per_thread);
    return r;
}

static CUresult copy_batch_3d(const struct batch_3d *b, enum hr_function fn)
{
    HR_INSIDE();
    bool ours = false;
    for (size_t i = 0; b->ops && i < b->count && !ours; i++)
        ours = is_ours(&b->ops[i].dst) || is_ours(&b->ops[i].src);
    if (!ours || !hr_thread_self() || b->flags || (!b->stream && !b->per_thread) || b->stream == CU_STREAM_LEGACY)
        return b->real(b);
    CUresult r = CUDA_SUCCESS;
    size_t i = 0;
    while (i < b->count && (r = copy_op(b, i)) == CUDA_SUCCESS)
        i++;
    if (b->failed_out)
        *b->failed_out = r == CUDA_SUCCESS ? SIZE_MAX : i;
    return r == CUDA_ERROR_NOT_SUPPORTED ? hr_refuse(fn) : r;
}

#define BATCH_3D_V1(name, pt)                                                                                          \
    static CUresult real_##name(const struct batch_3d *b)                                                              \
    {                                                                                                                  \
        return hr_drv.name(b->count, b->ops, b->failed_out, b->flags, b->stream);                                      \
    }                                                                                                                  \
    HR_HOOK(name)                                                                                                      \
    (size_t numOps, CUDA_MEMCPY3D_BATCH_OP * opList, size_t * failIdx, unsigned long long flags, CUstream hStream)     \
    {                                                                                                                  \
        HR_PASS(name, numOps, opList, failIdx, flags, hStream);                                                        \
        return copy_batch_3d(&(struct batch_3d){opList, numOps, flags, hStream, pt, real_##name, failIdx},             \
                             HR_FN_##name);                                                                            \
    }
BATCH_3D_V1(cuMemcpy3DBatchAsync, false)
BATCH_3D_V1(cuMemcpy3DBatchAsync_ptsz, true)

#define BATCH_3D_V2(name, pt)                                                                                          \
    static CUresult real_##name(const struct batch_3d *b)                                                              \
    {                                                                                                                  \
        return hr_drv.name(b->count, b->ops, b->flags, b->stream);                                                     \
    }                                                                                                                  \
    HR_HOOK(name)(size_t numOps, CUDA_MEMCPY3D_BATCH_OP * opList, unsigned long long flags, CUstream hStream)          \
    {                                                                                                                  \
        HR_PASS(name, numOps, opList, flags, hStream);                                                                 \
        return copy_batch_3d(&(struct batch_3d){opList, numOps, flags, hStream, pt, real_##name, NULL}, HR_FN_##name); \
    }
BATCH_3D_V2(cuMemcpy3DBatchAsync_v2, false)
BATCH_3D_V2(cuMemcpy3DBatchAsync_v2_ptsz, true)

/* --- decompression --- */

/* Up to three ranges for each: its source, its destination, and where the driver writes how much there was. */
static CUresult decompress(CUmemDecompressParams *params, size_t count, CUstream stream, bool per_thread,
                           CUresult (*real)(CUmemDecompressParams *, size_t, unsigned, size_t *, CUstream),
                           unsigned flags, size_t *error_out)
{
    HR_INSIDE();
    struct hr_thread *t = hr_thread_self();
    if (!t || !params || count == 0 || count > UINT32_MAX / 3)
        return real(params, count, flags, error_out, stream);
    struct hr_range *ranges = calloc(3 * count, sizeof *ranges);
    if (!ranges)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < count; i++) {
        ranges[3 * i] = (struct hr_range){(CUdeviceptr)(uintptr_t)params[i].src, params[i].srcNumBytes};
        ranges[3 * i + 1] = (struct hr_range){(CUdeviceptr)(uintptr_t)params[i].dst, params[i].dstNumBytes};
        ranges[3 * i + 2] =
            (struct hr_range){(CUdeviceptr)(uintptr_t)params[i].dstActBytes, sizeof *params[i].dstActBytes};
    }
    CUresult r = hr_mapped_begin(t, ranges, (unsigned)(3 * count));
    if (r == CUDA_SUCCESS) {
        r = real(params, count, flags, error_out, stream);
        hr_submission_end(t, stream, per_thread);
    }
    free(ranges);
    return r;
}

#define DECOMPRESS(name, pt)                                                                                           \
    static CUresult real_##name(CUmemDecompressParams *params, size_t count, unsigned flags, size_t *error_out,        \
                                CUstream stream)                                                                       \
    {                                                                                                                  \
        return hr_drv.name(params, count, flags, error_out, stream);                                                   \
    }                                                                                                                  \
    HR_HOOK(name)                                                                                                      \
    (CUmemDecompressParams * paramsArray, size_t count, unsigned int flags, size_t *errorIndex, CUstream stream)       \
    {                                                                                                                  \
        HR_PASS(name, paramsArray, count, flags, errorIndex, stream);                                                  \
        return decompress(paramsArray, count, stream, pt, real_##name, flags, errorIndex);                             \
    }
DECOMPRESS(cuMemBatchDecompressAsync, false)
DECOMPRESS(cuMemBatchDecompressAsync_ptsz, true)
