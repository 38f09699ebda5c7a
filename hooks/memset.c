#include "copy.h"

#include "hr_hooks.h"
#include "residency/access.h"
#include "residency/capture.h"

/* Memsets: as copies with one operand. Elements never straddle a chunk, since chunks are multiples of every element's size. */

struct fill {
    CUdeviceptr to;
    size_t pitch, width, height; /* in elements but for pitch; height 0 = linear */
    unsigned element_bytes;
    unsigned value;
    CUstream stream;
    bool per_thread;
    CUresult (*linear)(const struct fill *f, CUdeviceptr to, size_t elements);
    CUresult (*whole)(const struct fill *f);
};

static CUresult fill_range(const struct fill *f, CUdeviceptr to, size_t elements)
{
    CUresult r = CUDA_SUCCESS;
    for (size_t done = 0; done < elements && r == CUDA_SUCCESS;) {
        CUdeviceptr use;
        bool translated;
        size_t bytes =
            hr_access_piece(to + done * f->element_bytes, (elements - done) * f->element_bytes, &use, &translated);
        r = f->linear(f, use, bytes / f->element_bytes);
        done += bytes / f->element_bytes;
    }
    return r;
}

static bool one_piece(const struct hr_range *range)
{
    CUdeviceptr use;
    bool translated;
    return hr_access_piece(range->address, range->bytes, &use, &translated) == range->bytes && !translated;
}

static CUresult far_linear(const struct fill *f, CUdeviceptr to, size_t n)
{
    switch (f->element_bytes) {
    case 1: return hr_drv.cuMemsetD8Async(to, (unsigned char)f->value, n, f->stream);
    case 2: return hr_drv.cuMemsetD16Async(to, (unsigned short)f->value, n, f->stream);
    default: return hr_drv.cuMemsetD32Async(to, f->value, n, f->stream);
    }
}

static CUresult fill_rows(const struct fill *f)
{
    CUresult r = CUDA_SUCCESS;
    for (size_t row = 0; row < (f->height > 0 ? f->height : 1) && r == CUDA_SUCCESS; row++)
        r = fill_range(f, f->to + row * f->pitch, f->width);
    return r;
}

/* Memory that the stream's GPU cannot reach is filled by its own. */
static CUresult fill_from_afar(const struct fill *f, struct hr_way *way)
{
    struct fill there = *f;
    CUresult r = hr_way_open(way, hr_way_owner(f->to), &there.stream);
    if (r != CUDA_SUCCESS)
        return r;
    there.linear = far_linear;
    return hr_way_end(way, fill_rows(&there), false);
}

static CUresult fill(const struct fill *f)
{
    HR_INSIDE();
    struct hr_thread *t = hr_thread_self();
    size_t row_bytes;
    if (__builtin_mul_overflow(f->width, (size_t)f->element_bytes, &row_bytes))
        return f->whole(f); /* the driver refuses it */
    if (!t || !hr_space_owns(f->to) || row_bytes == 0 || f->to % f->element_bytes != 0)
        return f->whole(f);
    struct hr_range range = {f->to, row_bytes};
    if (f->height > 1 && (f->pitch < row_bytes || __builtin_mul_overflow(f->height - 1, f->pitch, &range.bytes) ||
                          __builtin_add_overflow(range.bytes, row_bytes, &range.bytes)))
        return f->whole(f);
    if (hr_capture_takes(f->stream, f->per_thread)) {
        struct hr_placing placing;
        return hr_copy_place(t, &range, 1, &placing) ? hr_copy_placed(t, &placing, f->whole(f)) : placing.r;
    }
    struct hr_way way = hr_way_of(f->stream, f->per_thread, &range, 1);
    CUresult r = hr_copy_begin(t, &range, 1);
    if (r != CUDA_SUCCESS)
        return r;
    if (hr_way_is_far(&way, f->to))
        r = fill_from_afar(f, &way);
    else
        r = one_piece(&range) ? f->whole(f) : fill_rows(f);
    return hr_copy_end(t, r, f->stream, f->per_thread, &range, 1);
}

#define FILL(name, type, bytes, pt)                                                                                    \
    static CUresult linear_##name(const struct fill *f, CUdeviceptr to, size_t n)                                      \
    {                                                                                                                  \
        return hr_drv.name(to, (type)f->value, n);                                                                     \
    }                                                                                                                  \
    static CUresult whole_##name(const struct fill *f)                                                                 \
    {                                                                                                                  \
        return hr_drv.name(f->to, (type)f->value, f->width);                                                           \
    }                                                                                                                  \
    HR_HOOK(name)(CUdeviceptr dst, type value, size_t n)                                                               \
    {                                                                                                                  \
        HR_PASS(name, dst, value, n);                                                                                  \
        return fill(&(struct fill){.to = dst,                                                                          \
                                   .width = n,                                                                         \
                                   .element_bytes = (bytes),                                                           \
                                   .value = value,                                                                     \
                                   .per_thread = (pt),                                                                 \
                                   .linear = linear_##name,                                                            \
                                   .whole = whole_##name});                                                            \
    }
FILL(cuMemsetD8_v2, unsigned char, 1, false)
FILL(cuMemsetD8_v2_ptds, unsigned char, 1, true)
FILL(cuMemsetD16_v2, unsigned short, 2, false)
FILL(cuMemsetD16_v2_ptds, unsigned short, 2, true)
FILL(cuMemsetD32_v2, unsigned int, 4, false)
FILL(cuMemsetD32_v2_ptds, unsigned int, 4, true)

#define FILL_ASYNC(name, type, bytes, pt)                                                                              \
    static CUresult linear_##name(const struct fill *f, CUdeviceptr to, size_t n)                                      \
    {                                                                                                                  \
        return hr_drv.name(to, (type)f->value, n, f->stream);                                                          \
    }                                                                                                                  \
    static CUresult whole_##name(const struct fill *f)                                                                 \
    {                                                                                                                  \
        return hr_drv.name(f->to, (type)f->value, f->width, f->stream);                                                \
    }                                                                                                                  \
    HR_HOOK(name)(CUdeviceptr dst, type value, size_t n, CUstream s)                                                   \
    {                                                                                                                  \
        HR_PASS(name, dst, value, n, s);                                                                               \
        return fill(&(struct fill){.to = dst,                                                                          \
                                   .width = n,                                                                         \
                                   .element_bytes = (bytes),                                                           \
                                   .value = value,                                                                     \
                                   .stream = s,                                                                        \
                                   .per_thread = (pt),                                                                 \
                                   .linear = linear_##name,                                                            \
                                   .whole = whole_##name});                                                            \
    }
FILL_ASYNC(cuMemsetD8Async, unsigned char, 1, false)
FILL_ASYNC(cuMemsetD8Async_ptsz, unsigned char, 1, true)
FILL_ASYNC(cuMemsetD16Async, unsigned short, 2, false)
FILL_ASYNC(cuMemsetD16Async_ptsz, unsigned short, 2, true)
FILL_ASYNC(cuMemsetD32Async, unsigned int, 4, false)
FILL_ASYNC(cuMemsetD32Async_ptsz, unsigned int, 4, true)

/* The 2D forms split into rows of the linear form with the same element. */
#define FILL_2D(name, row, type, bytes, pt)                                                                            \
    static CUresult whole_##name(const struct fill *f)                                                                 \
    {                                                                                                                  \
        return hr_drv.name(f->to, f->pitch, (type)f->value, f->width, f->height);                                      \
    }                                                                                                                  \
    HR_HOOK(name)(CUdeviceptr dst, size_t pitch, type value, size_t width, size_t height)                              \
    {                                                                                                                  \
        HR_PASS(name, dst, pitch, value, width, height);                                                               \
        return fill(&(struct fill){.to = dst,                                                                          \
                                   .pitch = pitch,                                                                     \
                                   .width = height > 0 ? width : 0,                                                    \
                                   .height = height,                                                                   \
                                   .element_bytes = (bytes),                                                           \
                                   .value = value,                                                                     \
                                   .per_thread = (pt),                                                                 \
                                   .linear = linear_##row,                                                             \
                                   .whole = whole_##name});                                                            \
    }
FILL_2D(cuMemsetD2D8_v2, cuMemsetD8_v2, unsigned char, 1, false)
FILL_2D(cuMemsetD2D8_v2_ptds, cuMemsetD8_v2_ptds, unsigned char, 1, true)
FILL_2D(cuMemsetD2D16_v2, cuMemsetD16_v2, unsigned short, 2, false)
FILL_2D(cuMemsetD2D16_v2_ptds, cuMemsetD16_v2_ptds, unsigned short, 2, true)
FILL_2D(cuMemsetD2D32_v2, cuMemsetD32_v2, unsigned int, 4, false)
FILL_2D(cuMemsetD2D32_v2_ptds, cuMemsetD32_v2_ptds, unsigned int, 4, true)

#define FILL_2D_ASYNC(name, row, type, bytes, pt)                                                                      \
    static CUresult whole_##name(const struct fill *f)                                                                 \
    {                                                                                                                  \
        return hr_drv.name(f->to, f->pitch, (type)f->value, f->width, f->height, f->stream);                           \
    }                                                                                                                  \
    HR_HOOK(name)(CUdeviceptr dst, size_t pitch, type value, size_t width, size_t height, CUstream s)                  \
    {                                                                                                                  \
        HR_PASS(name, dst, pitch, value, width, height, s);                                                            \
        return fill(&(struct fill){.to = dst,                                                                          \
                                   .pitch = pitch,                                                                     \
                                   .width = height > 0 ? width : 0,                                                    \
                                   .height = height,                                                                   \
                                   .element_bytes = (bytes),                                                           \
                                   .value = value,                                                                     \
                                   .stream = s,                                                                        \
                                   .per_thread = (pt),                                                                 \
                                   .linear = linear_##row,                                                             \
                                   .whole = whole_##name});                                                            \
    }
FILL_2D_ASYNC(cuMemsetD2D8Async, cuMemsetD8Async, unsigned char, 1, false)
FILL_2D_ASYNC(cuMemsetD2D8Async_ptsz, cuMemsetD8Async_ptsz, unsigned char, 1, true)
FILL_2D_ASYNC(cuMemsetD2D16Async, cuMemsetD16Async, unsigned short, 2, false)
FILL_2D_ASYNC(cuMemsetD2D16Async_ptsz, cuMemsetD16Async_ptsz, unsigned short, 2, true)
FILL_2D_ASYNC(cuMemsetD2D32Async, cuMemsetD32Async, unsigned int, 4, false)
FILL_2D_ASYNC(cuMemsetD2D32Async_ptsz, cuMemsetD32Async_ptsz, unsigned int, 4, true)
