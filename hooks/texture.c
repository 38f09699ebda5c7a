#include "copy.h"

#include "hr_hooks.h"
#include "residency/access.h"
#include "residency/texture.h"
#include "texel.h"

#include <string.h>

/*
 * Textures and tensor maps over window memory. The driver looks at the address when one is made, so the memory is mapped then. Afterwards a kernel that
 * gets one names the memory: a texture object is a number that is remembered, a tensor map holds the address among its words. What a texture reference
 * is bound to no launch shows.
 */

/* What a pitched texture covers; one that overflows is in no allocation. */
static size_t pitched_bytes(size_t pitch, size_t height, size_t width, CUarray_format format, unsigned channels)
{
    size_t above, bytes;
    if (height == 0 || width == 0)
        return 0;
    return __builtin_mul_overflow(height - 1, pitch, &above) ||
                   __builtin_mul_overflow(width, hr_texel_bytes(format, channels), &bytes) ||
                   __builtin_add_overflow(above, bytes, &bytes)
               ? SIZE_MAX
               : bytes;
}

static struct hr_range range_of(const CUDA_RESOURCE_DESC *d)
{
    if (d && d->resType == CU_RESOURCE_TYPE_LINEAR)
        return (struct hr_range){d->res.linear.devPtr, d->res.linear.sizeInBytes};
    if (d && d->resType == CU_RESOURCE_TYPE_PITCH2D)
        return (struct hr_range){d->res.pitch2D.devPtr,
                                 pitched_bytes(d->res.pitch2D.pitchInBytes, d->res.pitch2D.height, d->res.pitch2D.width,
                                               d->res.pitch2D.format, d->res.pitch2D.numChannels)};
    return (struct hr_range){0, 0};
}

/* Everything mapped that the call names, within a submission; false = *r_out is the call's result. */
static bool begin(struct hr_thread *t, const struct hr_range *range, CUresult *r_out)
{
    *r_out = CUDA_SUCCESS;
    if (!t || !hr_space_owns(range->address))
        return true;
    *r_out = hr_mapped_begin(t, range, 1);
    return *r_out == CUDA_SUCCESS;
}
static void end(struct hr_thread *t, const struct hr_range *range)
{
    if (t && hr_space_owns(range->address))
        hr_gate_leave(t);
}

HR_HOOK(cuTexObjectCreate)
(CUtexObject *pTexObject, const CUDA_RESOURCE_DESC *pResDesc, const CUDA_TEXTURE_DESC *pTexDesc,
 const CUDA_RESOURCE_VIEW_DESC *pResViewDesc)
{
    HR_PASS(cuTexObjectCreate, pTexObject, pResDesc, pTexDesc, pResViewDesc);
    HR_INSIDE();
    struct hr_thread *t = hr_thread_self();
    struct hr_range range = range_of(pResDesc);
    CUresult r;
    if (!begin(t, &range, &r))
        return r;
    r = hr_drv.cuTexObjectCreate(pTexObject, pResDesc, pTexDesc, pResViewDesc);
    end(t, &range);
    if (r == CUDA_SUCCESS && hr_space_owns(range.address)) {
        r = hr_texture_made(*pTexObject, range.address);
        if (r != CUDA_SUCCESS)
            hr_drv.cuTexObjectDestroy(*pTexObject);
    }
    return r;
}
HR_HOOK(cuTexObjectDestroy)(CUtexObject texObject)
{
    HR_PASS(cuTexObjectDestroy, texObject);
    HR_INSIDE();
    hr_texture_gone(texObject); /* before its number can be given to another */
    return hr_drv.cuTexObjectDestroy(texObject);
}

#define BIND(name, real, ...)                                                                                          \
    do {                                                                                                               \
        HR_INSIDE();                                                                                                   \
        struct hr_thread *t = hr_thread_self();                                                                        \
        CUresult r;                                                                                                    \
        if (!begin(t, &range, &r))                                                                                     \
            return r;                                                                                                  \
        r = hr_drv.real(__VA_ARGS__);                                                                                  \
        end(t, &range);                                                                                                \
        if (r == CUDA_SUCCESS && hr_space_owns(range.address))                                                         \
            hr_access_cannot_scan("a texture reference is bound to memory");                                           \
        return r;                                                                                                      \
    } while (0)

HR_HOOK(cuTexRefSetAddress_v2)(size_t *ByteOffset, CUtexref hTexRef, CUdeviceptr dptr, size_t bytes)
{
    HR_PASS(cuTexRefSetAddress_v2, ByteOffset, hTexRef, dptr, bytes);
    struct hr_range range = {dptr, bytes};
    BIND(cuTexRefSetAddress_v2, cuTexRefSetAddress_v2, ByteOffset, hTexRef, dptr, bytes);
}
#define BIND_2D(name)                                                                                                  \
    HR_HOOK(name)(CUtexref hTexRef, const CUDA_ARRAY_DESCRIPTOR *desc, CUdeviceptr dptr, size_t Pitch)                 \
    {                                                                                                                  \
        HR_PASS(name, hTexRef, desc, dptr, Pitch);                                                                     \
        struct hr_range range = {                                                                                      \
            dptr, desc ? pitched_bytes(Pitch, desc->Height, desc->Width, desc->Format, desc->NumChannels) : 0};        \
        BIND(name, name, hTexRef, desc, dptr, Pitch);                                                                  \
    }
BIND_2D(cuTexRefSetAddress2D_v2)
BIND_2D(cuTexRefSetAddress2D_v3)

/* The address stands in the map as one of its words, as far as known: so launches and copies that carry the map show it. */
static void look(const CUtensorMap *map, CUdeviceptr address)
{
    for (size_t at = 0; hr_space_owns(address) && at < sizeof *map; at += 8) {
        CUdeviceptr word;
        memcpy(&word, (const char *)map + at, 8);
        if (word == address)
            return;
    }
    if (hr_space_owns(address))
        hr_access_cannot_scan("this driver's tensor maps do not show their address");
}

/* To the end of the allocation: how much of it the driver looks at is its affair. */
static struct hr_range rest_of(const void *address)
{
    struct hr_range range = {(CUdeviceptr)(uintptr_t)address, 1};
    struct hr_allocation a;
    if (hr_space_find(range.address, &a))
        range.bytes = a.base + a.bytes - range.address;
    return range;
}

#define MAP(name, ...)                                                                                                 \
    do {                                                                                                               \
        HR_INSIDE();                                                                                                   \
        struct hr_thread *t = hr_thread_self();                                                                        \
        struct hr_range range = rest_of(globalAddress);                                                                \
        CUresult r;                                                                                                    \
        if (!begin(t, &range, &r))                                                                                     \
            return r;                                                                                                  \
        r = hr_drv.name(__VA_ARGS__);                                                                                  \
        end(t, &range);                                                                                                \
        if (r == CUDA_SUCCESS)                                                                                         \
            look(tensorMap, range.address);                                                                            \
        return r;                                                                                                      \
    } while (0)

HR_HOOK(cuTensorMapEncodeTiled)
(CUtensorMap *tensorMap, CUtensorMapDataType tensorDataType, cuuint32_t tensorRank, void *globalAddress,
 const cuuint64_t *globalDim, const cuuint64_t *globalStrides, const cuuint32_t *boxDim,
 const cuuint32_t *elementStrides, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
 CUtensorMapL2promotion l2Promotion, CUtensorMapFloatOOBfill oobFill)
{
    HR_PASS(cuTensorMapEncodeTiled, tensorMap, tensorDataType, tensorRank, globalAddress, globalDim, globalStrides,
            boxDim, elementStrides, interleave, swizzle, l2Promotion, oobFill);
    MAP(cuTensorMapEncodeTiled, tensorMap, tensorDataType, tensorRank, globalAddress, globalDim, globalStrides, boxDim,
        elementStrides, interleave, swizzle, l2Promotion, oobFill);
}
HR_HOOK(cuTensorMapEncodeIm2col)
(CUtensorMap *tensorMap, CUtensorMapDataType tensorDataType, cuuint32_t tensorRank, void *globalAddress,
 const cuuint64_t *globalDim, const cuuint64_t *globalStrides, const int *pixelBoxLowerCorner,
 const int *pixelBoxUpperCorner, cuuint32_t channelsPerPixel, cuuint32_t pixelsPerColumn,
 const cuuint32_t *elementStrides, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
 CUtensorMapL2promotion l2Promotion, CUtensorMapFloatOOBfill oobFill)
{
    HR_PASS(cuTensorMapEncodeIm2col, tensorMap, tensorDataType, tensorRank, globalAddress, globalDim, globalStrides,
            pixelBoxLowerCorner, pixelBoxUpperCorner, channelsPerPixel, pixelsPerColumn, elementStrides, interleave,
            swizzle, l2Promotion, oobFill);
    MAP(cuTensorMapEncodeIm2col, tensorMap, tensorDataType, tensorRank, globalAddress, globalDim, globalStrides,
        pixelBoxLowerCorner, pixelBoxUpperCorner, channelsPerPixel, pixelsPerColumn, elementStrides, interleave,
        swizzle, l2Promotion, oobFill);
}
HR_HOOK(cuTensorMapEncodeIm2colWide)
(CUtensorMap *tensorMap, CUtensorMapDataType tensorDataType, cuuint32_t tensorRank, void *globalAddress,
 const cuuint64_t *globalDim, const cuuint64_t *globalStrides, int pixelBoxLowerCornerWidth,
 int pixelBoxUpperCornerWidth, cuuint32_t channelsPerPixel, cuuint32_t pixelsPerColumn,
 const cuuint32_t *elementStrides, CUtensorMapInterleave interleave, CUtensorMapIm2ColWideMode mode,
 CUtensorMapSwizzle swizzle, CUtensorMapL2promotion l2Promotion, CUtensorMapFloatOOBfill oobFill)
{
    HR_PASS(cuTensorMapEncodeIm2colWide, tensorMap, tensorDataType, tensorRank, globalAddress, globalDim, globalStrides,
            pixelBoxLowerCornerWidth, pixelBoxUpperCornerWidth, channelsPerPixel, pixelsPerColumn, elementStrides,
            interleave, mode, swizzle, l2Promotion, oobFill);
    MAP(cuTensorMapEncodeIm2colWide, tensorMap, tensorDataType, tensorRank, globalAddress, globalDim, globalStrides,
        pixelBoxLowerCornerWidth, pixelBoxUpperCornerWidth, channelsPerPixel, pixelsPerColumn, elementStrides,
        interleave, mode, swizzle, l2Promotion, oobFill);
}
HR_HOOK(cuTensorMapReplaceAddress)(CUtensorMap *tensorMap, void *globalAddress)
{
    HR_PASS(cuTensorMapReplaceAddress, tensorMap, globalAddress);
    MAP(cuTensorMapReplaceAddress, tensorMap, globalAddress);
}
