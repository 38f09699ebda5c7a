#include "copy.h"

#include "hr_hooks.h"
#include "residency/access.h"
#include "residency/capture.h"
#include "residency/hidden.h"

#include <stdint.h>

/*
 * Two-dimensional copies. Where each operand lies in one piece the job's call goes through as it is; else every row is
 * copied by itself, cut where an operand changes tier.
 */

typedef CUresult (*real_2d)(const CUDA_MEMCPY2D *p, CUstream s);

/* The window range that one side of the copy covers; bytes = 0: not ours. What overflows is in no allocation. */
static struct hr_range range_of(CUmemorytype type, CUdeviceptr device, size_t x, size_t y, size_t pitch,
                                const CUDA_MEMCPY2D *p)
{
    struct hr_range range = {device + y * pitch + x, 0};
    if ((type != CU_MEMORYTYPE_DEVICE && type != CU_MEMORYTYPE_UNIFIED) || !hr_space_owns(range.address))
        return (struct hr_range){0, 0};
    if (__builtin_mul_overflow(p->Height - 1, pitch, &range.bytes) ||
        __builtin_add_overflow(range.bytes, p->WidthInBytes, &range.bytes))
        range.bytes = SIZE_MAX;
    return range;
}

/* Rows lie close together where no pitch is given; false = rows would overlap, which the driver refuses. */
static bool settle_pitch(CUmemorytype type, size_t x, size_t width, size_t *pitch_io)
{
    size_t least;
    if (type == CU_MEMORYTYPE_ARRAY)
        return true;
    if (__builtin_add_overflow(x, width, &least))
        return false;
    if (*pitch_io == 0)
        *pitch_io = least;
    return *pitch_io >= least;
}

/* Addresses in the rows of host memory, or of other window memory, that the copy brings into the window. */
static void note_pointers(const CUDA_MEMCPY2D *p, const struct hr_range *to, const struct hr_range *from)
{
    if (to->bytes && from->bytes)
        hr_hidden_propagate(to->address, from->address);
    if (!to->bytes || p->srcMemoryType != CU_MEMORYTYPE_HOST || !p->srcHost)
        return;
    const char *first = (const char *)p->srcHost + p->srcY * p->srcPitch + p->srcXInBytes;
    bool small = p->Height <= HR_HIDDEN_PAYLOAD_BYTES / p->WidthInBytes;
    for (size_t row = 0; row < p->Height; row += small ? 1 : 8) { /* of large copies samples will do */
        CUdeviceptr address = to->address + row * p->dstPitch;
        if (small)
            hr_hidden_scan(address, first + row * p->srcPitch, p->WidthInBytes);
        else
            hr_hidden_notice(address, first + row * p->srcPitch, p->WidthInBytes);
    }
}

static bool one_piece(const struct hr_range *range)
{
    CUdeviceptr use;
    bool translated;
    return range->bytes == 0 ||
           (hr_access_piece(range->address, range->bytes, &use, &translated) == range->bytes && !translated);
}

/* Row `row`, bytes [at, at+n) of it. */
static CUresult copy_part(const CUDA_MEMCPY2D *p, size_t row, size_t at, size_t n, CUdeviceptr to, CUdeviceptr from,
                          real_2d real, CUstream s)
{
    CUDA_MEMCPY2D part = *p;
    part.Height = 1;
    part.WidthInBytes = n;
    part.srcXInBytes += at;
    part.dstXInBytes += at;
    part.srcY += row;
    part.dstY += row;
    if (from) {
        part.srcMemoryType = CU_MEMORYTYPE_UNIFIED;
        part.srcDevice = from;
        part.srcXInBytes = part.srcY = 0;
        part.srcPitch = 0;
    }
    if (to) {
        part.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
        part.dstDevice = to;
        part.dstXInBytes = part.dstY = 0;
        part.dstPitch = 0;
    }
    return real(&part, s);
}

static CUresult by_rows(const CUDA_MEMCPY2D *p, const struct hr_range *to, const struct hr_range *from, real_2d real,
                        CUstream s)
{
    CUresult r = CUDA_SUCCESS;
    for (size_t row = 0; row < p->Height && r == CUDA_SUCCESS; row++) {
        for (size_t at = 0; at < p->WidthInBytes && r == CUDA_SUCCESS;) {
            size_t n = p->WidthInBytes - at;
            CUdeviceptr use_to = 0, use_from = 0;
            bool translated;
            if (to->bytes)
                n = hr_access_piece(to->address + row * p->dstPitch + at, n, &use_to, &translated);
            if (from->bytes)
                n = hr_access_piece(from->address + row * p->srcPitch + at, n, &use_from, &translated);
            r = copy_part(p, row, at, n, use_to, use_from, real, s);
            at += n;
        }
    }
    return r;
}

/* Where an operand is out of reach: row by row, by address. */
static CUresult from_afar(struct hr_way *way, const CUDA_MEMCPY2D *p, bool async)
{
    CUdeviceptr to = p->dstMemoryType == CU_MEMORYTYPE_HOST ? (CUdeviceptr)(uintptr_t)p->dstHost : p->dstDevice;
    CUdeviceptr from = p->srcMemoryType == CU_MEMORYTYPE_HOST ? (CUdeviceptr)(uintptr_t)p->srcHost : p->srcDevice;
    CUresult r = CUDA_SUCCESS;
    to += p->dstY * p->dstPitch + p->dstXInBytes;
    from += p->srcY * p->srcPitch + p->srcXInBytes;
    for (size_t row = 0; row < p->Height && r == CUDA_SUCCESS; row++)
        r = hr_copy_span(way, to + row * p->dstPitch, from + row * p->srcPitch, p->WidthInBytes, async);
    return hr_way_end(way, r,
                      !async && (p->dstMemoryType == CU_MEMORYTYPE_HOST || p->srcMemoryType == CU_MEMORYTYPE_HOST));
}

/* Where the other operand is an array, which cannot be copied to row by row. */
static bool is_far_of_array(const struct hr_way *way, const CUDA_MEMCPY2D *p, const struct hr_range *ranges)
{
    return (p->dstMemoryType == CU_MEMORYTYPE_ARRAY && ranges[1].bytes && hr_way_is_far(way, ranges[1].address)) ||
           (p->srcMemoryType == CU_MEMORYTYPE_ARRAY && ranges[0].bytes && hr_way_is_far(way, ranges[0].address));
}

static bool is_far(const struct hr_way *way, const CUDA_MEMCPY2D *p, const struct hr_range *ranges)
{
    return p->dstMemoryType != CU_MEMORYTYPE_ARRAY && p->srcMemoryType != CU_MEMORYTYPE_ARRAY &&
           ((ranges[0].bytes && hr_way_is_far(way, ranges[0].address)) ||
            (ranges[1].bytes && hr_way_is_far(way, ranges[1].address)));
}

struct call_2d {
    const CUDA_MEMCPY2D *asked;
    CUstream stream;
    bool async, per_thread;
};

/* In a submission of its own; `p` is what was asked, pitches filled in. */
static CUresult submit_2d(struct hr_thread *t, const CUDA_MEMCPY2D *p, struct hr_way *way,
                          const struct hr_range *ranges, real_2d real, const struct call_2d *call)
{
    CUresult r = hr_copy_begin(t, ranges, 2);
    if (r != CUDA_SUCCESS)
        return r;
    if (is_far(way, p, ranges))
        r = from_afar(way, p, call->async);
    else
        r = one_piece(&ranges[0]) && one_piece(&ranges[1]) ? real(call->asked, call->stream)
                                                           : by_rows(p, &ranges[0], &ranges[1], real, call->stream);
    if (r == CUDA_SUCCESS) /* not before: host memory is there if the driver could read it */
        note_pointers(p, &ranges[0], &ranges[1]);
    return hr_copy_end(t, r, call->stream, call->per_thread, ranges, 2);
}

static CUresult copy_2d(const CUDA_MEMCPY2D *asked, CUstream s, bool async, bool per_thread, real_2d real)
{
    HR_INSIDE();
    struct hr_thread *t = hr_thread_self();
    if (!asked || !t || asked->Height == 0 || asked->WidthInBytes == 0)
        return real(asked, s);
    CUDA_MEMCPY2D settled = *asked;
    const CUDA_MEMCPY2D *p = &settled;
    if (!settle_pitch(p->dstMemoryType, p->dstXInBytes, p->WidthInBytes, &settled.dstPitch) ||
        !settle_pitch(p->srcMemoryType, p->srcXInBytes, p->WidthInBytes, &settled.srcPitch))
        return hr_space_owns(p->dstDevice) || hr_space_owns(p->srcDevice) ? CUDA_ERROR_INVALID_VALUE : real(asked, s);
    struct hr_range ranges[2] = {
        range_of(p->dstMemoryType, p->dstDevice, p->dstXInBytes, p->dstY, p->dstPitch, p),
        range_of(p->srcMemoryType, p->srcDevice, p->srcXInBytes, p->srcY, p->srcPitch, p),
    };
    if (ranges[0].bytes == 0 && ranges[1].bytes == 0)
        return real(asked, s);
    struct hr_way way = hr_way_of(s, per_thread, ranges, 2);
    struct hr_placing placing;
    if (hr_capture_takes(s, per_thread))
        return hr_copy_place(t, ranges, 2, &placing) ? hr_copy_placed(t, &placing, real(asked, s)) : placing.r;
    bool held = is_far_of_array(&way, p, ranges);
    CUresult r = held ? hr_copy_hold(t, ranges, 2, &placing) : CUDA_SUCCESS;
    if (r == CUDA_SUCCESS)
        r = submit_2d(t, p, &way, ranges, real, &(struct call_2d){asked, s, async, per_thread});
    if (held)
        hr_copy_let_go(&placing);
    return r;
}

#define COPY_2D(name, pt)                                                                                              \
    static CUresult real_##name(const CUDA_MEMCPY2D *p, CUstream s)                                                    \
    {                                                                                                                  \
        (void)s;                                                                                                       \
        return hr_drv.name(p);                                                                                         \
    }                                                                                                                  \
    HR_HOOK(name)(const CUDA_MEMCPY2D *pCopy)                                                                          \
    {                                                                                                                  \
        HR_PASS(name, pCopy);                                                                                          \
        return copy_2d(pCopy, NULL, false, pt, real_##name);                                                           \
    }
COPY_2D(cuMemcpy2D_v2, false)
COPY_2D(cuMemcpy2D_v2_ptds, true)
COPY_2D(cuMemcpy2DUnaligned_v2, false)
COPY_2D(cuMemcpy2DUnaligned_v2_ptds, true)

#define COPY_2D_ASYNC(name, pt)                                                                                        \
    static CUresult real_##name(const CUDA_MEMCPY2D *p, CUstream s)                                                    \
    {                                                                                                                  \
        return hr_drv.name(p, s);                                                                                      \
    }                                                                                                                  \
    HR_HOOK(name)(const CUDA_MEMCPY2D *pCopy, CUstream hStream)                                                        \
    {                                                                                                                  \
        HR_PASS(name, pCopy, hStream);                                                                                 \
        return copy_2d(pCopy, hStream, true, pt, real_##name);                                                         \
    }
COPY_2D_ASYNC(cuMemcpy2DAsync_v2, false)
COPY_2D_ASYNC(cuMemcpy2DAsync_v2_ptsz, true)
