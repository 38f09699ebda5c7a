#include "copy.h"

#include "hr_hooks.h"
#include "residency/access.h"
#include "residency/capture.h"
#include "residency/hidden.h"

#include <stdint.h>
#include <string.h>

/*
 * Three-dimensional copies, also those between two contexts. As with two dimensions: where each operand lies in one piece
 * the job's call goes through as it is; else it is cut into slices, rows and, where an operand changes tier, parts of rows.
 *
 * Both kinds have one layout, in which the plain one must have NULL where the other has its contexts.
 */

_Static_assert(sizeof(CUDA_MEMCPY3D) == sizeof(CUDA_MEMCPY3D_PEER) &&
                   offsetof(CUDA_MEMCPY3D, reserved0) == offsetof(CUDA_MEMCPY3D_PEER, srcContext) &&
                   offsetof(CUDA_MEMCPY3D, reserved1) == offsetof(CUDA_MEMCPY3D_PEER, dstContext) &&
                   offsetof(CUDA_MEMCPY3D, Depth) == offsetof(CUDA_MEMCPY3D_PEER, Depth),
               "both kinds have one layout");

struct call {
    CUDA_MEMCPY3D_PEER asked;
    CUDA_MEMCPY3D_PEER p; /* the same, pitches and heights filled in */
    CUstream stream;
    bool async, per_thread, peer;
    CUresult (*real)(const struct call *c, const CUDA_MEMCPY3D_PEER *p);
};

/* One side of a copy, as bytes in memory. */
struct side {
    CUdeviceptr first; /* the box's first byte; 0: an array */
    size_t pitch, slice;
    struct hr_range range; /* of a window; bytes = 0: not ours */
};

/* Rows and slices lie close together where no pitch or height is given; false = they would overlap. */
static bool settle(CUmemorytype type, size_t x, size_t y, size_t z, const CUDA_MEMCPY3D_PEER *p, size_t *pitch_io,
                   size_t *height_io)
{
    size_t least_pitch, least_height;
    if (type == CU_MEMORYTYPE_ARRAY)
        return true;
    if (__builtin_add_overflow(x, p->WidthInBytes, &least_pitch) || __builtin_add_overflow(y, p->Height, &least_height))
        return false;
    if (*pitch_io == 0)
        *pitch_io = least_pitch;
    if (*height_io == 0 && (p->Depth > 1 || z > 0)) /* nothing tells where the next slice is */
        return false;
    if (*height_io == 0)
        *height_io = least_height;
    return *pitch_io >= least_pitch && (*height_io >= least_height || p->Depth == 1);
}

/* What the box of the copy covers; a range that overflows is in no allocation. */
static struct side side_of(CUmemorytype type, const void *host, CUdeviceptr device, size_t x, size_t y, size_t z,
                           size_t pitch, size_t height, const CUDA_MEMCPY3D_PEER *p)
{
    struct side side = {0, pitch, pitch * height, {0, 0}};
    if (type == CU_MEMORYTYPE_ARRAY)
        return side;
    side.first = (type == CU_MEMORYTYPE_HOST ? (CUdeviceptr)(uintptr_t)host : device) + z * side.slice + y * pitch + x;
    if (type == CU_MEMORYTYPE_HOST || !hr_space_owns(side.first))
        return side;
    size_t slices, rows;
    side.range = (struct hr_range){side.first, SIZE_MAX};
    if (!__builtin_mul_overflow(p->Depth - 1, side.slice, &slices) &&
        !__builtin_mul_overflow(p->Height - 1, pitch, &rows) && !__builtin_add_overflow(slices, rows, &slices) &&
        !__builtin_add_overflow(slices, p->WidthInBytes, &slices))
        side.range.bytes = slices;
    return side;
}

static CUdeviceptr row_of(const struct side *side, size_t slice, size_t row)
{
    return side->first + slice * side->slice + row * side->pitch;
}

/* Addresses in the rows of host memory, or of other window memory, that the copy brings into the window. */
static void note_pointers(const CUDA_MEMCPY3D_PEER *p, const struct side *to, const struct side *from)
{
    if (to->range.bytes && from->range.bytes)
        hr_hidden_propagate(to->range.address, from->range.address);
    if (!to->range.bytes || p->srcMemoryType != CU_MEMORYTYPE_HOST || !p->srcHost)
        return;
    size_t rows;
    bool small =
        !__builtin_mul_overflow(p->Height, p->Depth, &rows) && rows <= HR_HIDDEN_PAYLOAD_BYTES / p->WidthInBytes;
    for (size_t slice = 0; slice < p->Depth; slice++) {
        for (size_t row = 0; row < p->Height; row += small ? 1 : 8) { /* of large copies samples will do */
            const void *payload = (const void *)(uintptr_t)row_of(from, slice, row);
            if (small)
                hr_hidden_scan(row_of(to, slice, row), payload, p->WidthInBytes);
            else
                hr_hidden_notice(row_of(to, slice, row), payload, p->WidthInBytes);
        }
    }
}

static bool one_piece(const struct hr_range *range)
{
    CUdeviceptr use;
    bool translated;
    return range->bytes == 0 ||
           (hr_access_piece(range->address, range->bytes, &use, &translated) == range->bytes && !translated);
}

/* A part of one row; an operand that is not where the job sees it (`moved`) is pinned host memory. */
static CUresult copy_part(const struct call *c, size_t slice, size_t row, size_t at, size_t n, CUdeviceptr moved_to,
                          CUdeviceptr moved_from)
{
    CUDA_MEMCPY3D_PEER part = c->p;
    part.WidthInBytes = n;
    part.Height = part.Depth = 1;
    part.srcXInBytes += at;
    part.srcY += row;
    part.srcZ += slice;
    part.dstXInBytes += at;
    part.dstY += row;
    part.dstZ += slice;
    if (moved_from) {
        part.srcMemoryType = CU_MEMORYTYPE_HOST;
        part.srcHost = (const void *)(uintptr_t)moved_from;
        part.srcXInBytes = part.srcY = part.srcZ = 0;
        part.srcPitch = n;
        part.srcHeight = 1;
    }
    if (moved_to) {
        part.dstMemoryType = CU_MEMORYTYPE_HOST;
        part.dstHost = (void *)(uintptr_t)moved_to;
        part.dstXInBytes = part.dstY = part.dstZ = 0;
        part.dstPitch = n;
        part.dstHeight = 1;
    }
    return c->real(c, &part);
}

static CUresult copy_row(const struct call *c, const struct side *to, const struct side *from, size_t slice, size_t row)
{
    CUresult r = CUDA_SUCCESS;
    for (size_t at = 0; at < c->p.WidthInBytes && r == CUDA_SUCCESS;) {
        size_t n = c->p.WidthInBytes - at;
        CUdeviceptr use_to = 0, use_from = 0;
        bool to_moved = false, from_moved = false;
        if (to->range.bytes)
            n = hr_access_piece(row_of(to, slice, row) + at, n, &use_to, &to_moved);
        if (from->range.bytes)
            n = hr_access_piece(row_of(from, slice, row) + at, n, &use_from, &from_moved);
        r = copy_part(c, slice, row, at, n, to_moved ? use_to : 0, from_moved ? use_from : 0);
        at += n;
    }
    return r;
}

static bool is_far(const struct hr_way *way, const struct side *side)
{
    return side->range.bytes && hr_way_is_far(way, side->first);
}

static CUresult by_rows(const struct call *c, struct hr_way *way, const struct side *to, const struct side *from)
{
    /* A peer call tells the driver both contexts: nothing is out of its reach. */
    bool far = !c->peer && to->first && from->first && (is_far(way, to) || is_far(way, from));
    CUresult r = CUDA_SUCCESS;
    if (!far && one_piece(&to->range) && one_piece(&from->range))
        return c->real(c, &c->asked);
    for (size_t slice = 0; slice < c->p.Depth && r == CUDA_SUCCESS; slice++)
        for (size_t row = 0; row < c->p.Height && r == CUDA_SUCCESS; row++)
            r = far ? hr_copy_span(way, row_of(to, slice, row), row_of(from, slice, row), c->p.WidthInBytes, c->async)
                    : copy_row(c, to, from, slice, row);
    return hr_way_end(way, r, !c->async && !(to->range.bytes && from->range.bytes));
}

/* In a submission of its own. */
static CUresult submit_3d(struct hr_thread *t, const struct call *c, struct hr_way *way, const struct side *to,
                          const struct side *from)
{
    const struct hr_range ranges[2] = {to->range, from->range};
    CUresult r = hr_copy_begin(t, ranges, 2);
    if (r != CUDA_SUCCESS)
        return r;
    r = by_rows(c, way, to, from);
    if (r == CUDA_SUCCESS) /* not before: host memory is there if the driver could read it */
        note_pointers(&c->p, to, from);
    return hr_copy_end(t, r, c->stream, c->per_thread, ranges, 2);
}

/* `asked` is the job's own structure, of either kind. */
static CUresult copy_3d(const void *asked, struct call *c)
{
    HR_INSIDE();
    struct hr_thread *t = hr_thread_self();
    CUDA_MEMCPY3D_PEER *p = &c->p;
    if (!asked)
        return c->real(c, NULL);
    memcpy(&c->asked, asked, sizeof c->asked);
    *p = c->asked;
    if (!t || p->WidthInBytes == 0 || p->Height == 0 || p->Depth == 0)
        return c->real(c, &c->asked);
    if (!settle(p->dstMemoryType, p->dstXInBytes, p->dstY, p->dstZ, p, &p->dstPitch, &p->dstHeight) ||
        !settle(p->srcMemoryType, p->srcXInBytes, p->srcY, p->srcZ, p, &p->srcPitch, &p->srcHeight))
        return hr_space_owns(p->dstDevice) || hr_space_owns(p->srcDevice) ? CUDA_ERROR_INVALID_VALUE
                                                                          : c->real(c, &c->asked);
    struct side to = side_of(p->dstMemoryType, p->dstHost, p->dstDevice, p->dstXInBytes, p->dstY, p->dstZ, p->dstPitch,
                             p->dstHeight, p);
    struct side from = side_of(p->srcMemoryType, p->srcHost, p->srcDevice, p->srcXInBytes, p->srcY, p->srcZ,
                               p->srcPitch, p->srcHeight, p);
    if (to.range.bytes == 0 && from.range.bytes == 0)
        return c->real(c, &c->asked);
    if (c->peer) {
        if (to.range.bytes)
            p->dstContext = c->asked.dstContext = hr_copy_context(p->dstContext, to.range.address);
        if (from.range.bytes)
            p->srcContext = c->asked.srcContext = hr_copy_context(p->srcContext, from.range.address);
    }
    struct hr_range ranges[2] = {to.range, from.range};
    struct hr_placing placing;
    if (hr_capture_takes(c->stream, c->per_thread))
        return hr_copy_place(t, ranges, 2, &placing) ? hr_copy_placed(t, &placing, c->real(c, &c->asked)) : placing.r;
    struct hr_way way = hr_way_of(c->stream, c->per_thread, ranges, 2);
    bool held = (!to.first && is_far(&way, &from)) || (!from.first && is_far(&way, &to));
    CUresult r = held ? hr_copy_hold(t, ranges, 2, &placing) : CUDA_SUCCESS;
    if (r == CUDA_SUCCESS)
        r = submit_3d(t, c, &way, &to, &from);
    if (held)
        hr_copy_let_go(&placing);
    return r;
}

/* The driver gets a structure of the kind that the function takes. */
#define COPY_3D(name, type, is_peer, pt)                                                                               \
    static CUresult real_##name(const struct call *c, const CUDA_MEMCPY3D_PEER *p)                                     \
    {                                                                                                                  \
        type own;                                                                                                      \
        (void)c;                                                                                                       \
        if (p)                                                                                                         \
            memcpy(&own, p, sizeof own);                                                                               \
        return hr_drv.name(p ? &own : NULL);                                                                           \
    }                                                                                                                  \
    HR_HOOK(name)(const type *pCopy)                                                                                   \
    {                                                                                                                  \
        HR_PASS(name, pCopy);                                                                                          \
        return copy_3d(pCopy, &(struct call){.per_thread = (pt), .peer = (is_peer), .real = real_##name});             \
    }
COPY_3D(cuMemcpy3D_v2, CUDA_MEMCPY3D, false, false)
COPY_3D(cuMemcpy3D_v2_ptds, CUDA_MEMCPY3D, false, true)
COPY_3D(cuMemcpy3DPeer, CUDA_MEMCPY3D_PEER, true, false)
COPY_3D(cuMemcpy3DPeer_ptds, CUDA_MEMCPY3D_PEER, true, true)

#define COPY_3D_ASYNC(name, type, is_peer, pt)                                                                         \
    static CUresult real_##name(const struct call *c, const CUDA_MEMCPY3D_PEER *p)                                     \
    {                                                                                                                  \
        type own;                                                                                                      \
        if (p)                                                                                                         \
            memcpy(&own, p, sizeof own);                                                                               \
        return hr_drv.name(p ? &own : NULL, c->stream);                                                                \
    }                                                                                                                  \
    HR_HOOK(name)(const type *pCopy, CUstream hStream)                                                                 \
    {                                                                                                                  \
        HR_PASS(name, pCopy, hStream);                                                                                 \
        return copy_3d(                                                                                                \
            pCopy, &(struct call){                                                                                     \
                       .stream = hStream, .async = true, .per_thread = (pt), .peer = (is_peer), .real = real_##name}); \
    }
COPY_3D_ASYNC(cuMemcpy3DAsync_v2, CUDA_MEMCPY3D, false, false)
COPY_3D_ASYNC(cuMemcpy3DAsync_v2_ptsz, CUDA_MEMCPY3D, false, true)
COPY_3D_ASYNC(cuMemcpy3DPeerAsync, CUDA_MEMCPY3D_PEER, true, false)
COPY_3D_ASYNC(cuMemcpy3DPeerAsync_ptsz, CUDA_MEMCPY3D_PEER, true, true)

CUresult hr_copy_3d(const CUDA_MEMCPY3D *asked, CUstream stream, bool per_thread)
{
    return copy_3d(asked, &(struct call){.stream = stream,
                                         .async = true,
                                         .per_thread = per_thread,
                                         .real = per_thread ? real_cuMemcpy3DAsync_v2_ptsz : real_cuMemcpy3DAsync_v2});
}
