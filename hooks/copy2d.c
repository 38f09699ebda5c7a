#include "copy.h"

#include "hr_hooks.h"
#include "residency/access.h"

/*
 * Two-dimensional copies. Where each operand lies in one piece the job's call goes through as it is; else every row is
 * copied by itself, cut where an operand changes tier.
 */

typedef CUresult (*real_2d)(const CUDA_MEMCPY2D *p, CUstream s);

/* The window range that one side of the copy covers; bytes = 0: not ours. */
static struct hr_range range_of(CUmemorytype type, CUdeviceptr device, size_t x, size_t y, size_t pitch,
                                const CUDA_MEMCPY2D *p)
{
    if ((type != CU_MEMORYTYPE_DEVICE && type != CU_MEMORYTYPE_UNIFIED) || !hr_space_owns(device))
        return (struct hr_range){0, 0};
    return (struct hr_range){device + y * pitch + x, (p->Height - 1) * pitch + p->WidthInBytes};
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

static CUresult copy_2d(const CUDA_MEMCPY2D *p, CUstream s, bool per_thread, real_2d real)
{
    HR_INSIDE();
    struct hr_thread *t = hr_thread_self();
    if (!p || !t || p->Height == 0 || p->WidthInBytes == 0)
        return real(p, s);
    struct hr_range ranges[2] = {
        range_of(p->dstMemoryType, p->dstDevice, p->dstXInBytes, p->dstY, p->dstPitch, p),
        range_of(p->srcMemoryType, p->srcDevice, p->srcXInBytes, p->srcY, p->srcPitch, p),
    };
    if (ranges[0].bytes == 0 && ranges[1].bytes == 0)
        return real(p, s);
    CUresult r = hr_copy_begin(t, ranges, 2);
    if (r != CUDA_SUCCESS)
        return r;
    r = one_piece(&ranges[0]) && one_piece(&ranges[1]) ? real(p, s) : by_rows(p, &ranges[0], &ranges[1], real, s);
    hr_gate_leave(t);
    return hr_copy_end(t, r, s, per_thread, ranges, 2);
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
        return copy_2d(pCopy, NULL, pt, real_##name);                                                                  \
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
        return copy_2d(pCopy, hStream, pt, real_##name);                                                               \
    }
COPY_2D_ASYNC(cuMemcpy2DAsync_v2, false)
COPY_2D_ASYNC(cuMemcpy2DAsync_v2_ptsz, true)
