#include "copy.h"

#include "hr_hooks.h"
#include "residency/access.h"
#include "room.h"
#include "texel.h"

/*
 * Arrays are the driver's own memory: room is made for them, and they count against VRAM. Copies between one of them and the window are cut where
 * the window changes tier.
 */

static size_t extent_bytes(size_t width, size_t height, size_t depth, CUarray_format format, unsigned channels)
{
    size_t bytes = hr_texel_bytes(format, channels);
    if (__builtin_mul_overflow(bytes, width, &bytes) || __builtin_mul_overflow(bytes, height ? height : 1, &bytes) ||
        __builtin_mul_overflow(bytes, depth ? depth : 1, &bytes))
        return 0;
    return bytes;
}
#define BYTES_2D(d) ((d) ? extent_bytes((d)->Width, (d)->Height, 1, (d)->Format, (d)->NumChannels) : 0)
#define BYTES_3D(d) ((d) ? extent_bytes((d)->Width, (d)->Height, (d)->Depth, (d)->Format, (d)->NumChannels) : 0)

HR_HOOK(cuArrayCreate_v2)(CUarray *pHandle, const CUDA_ARRAY_DESCRIPTOR *pAllocateArray)
{
    HR_PASS(cuArrayCreate_v2, pHandle, pAllocateArray);
    HR_WITH_ROOM(BYTES_2D(pAllocateArray), cuArrayCreate_v2, pHandle, pAllocateArray);
}
HR_HOOK(cuArray3DCreate_v2)(CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR *pAllocateArray)
{
    HR_PASS(cuArray3DCreate_v2, pHandle, pAllocateArray);
    HR_WITH_ROOM(BYTES_3D(pAllocateArray), cuArray3DCreate_v2, pHandle, pAllocateArray);
}
HR_HOOK(cuArrayCreate)(CUarray *pHandle, const CUDA_ARRAY_DESCRIPTOR_v1 *pAllocateArray)
{
    HR_PASS(cuArrayCreate, pHandle, pAllocateArray);
    HR_WITH_ROOM(BYTES_2D(pAllocateArray), cuArrayCreate, pHandle, pAllocateArray);
}
HR_HOOK(cuArray3DCreate)(CUarray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR_v1 *pAllocateArray)
{
    HR_PASS(cuArray3DCreate, pHandle, pAllocateArray);
    HR_WITH_ROOM(BYTES_3D(pAllocateArray), cuArray3DCreate, pHandle, pAllocateArray);
}
HR_HOOK(cuMipmappedArrayCreate)
(CUmipmappedArray *pHandle, const CUDA_ARRAY3D_DESCRIPTOR *pMipmappedArrayDesc, unsigned int numMipmapLevels)
{
    HR_PASS(cuMipmappedArrayCreate, pHandle, pMipmappedArrayDesc, numMipmapLevels);
    HR_WITH_ROOM(2 * BYTES_3D(pMipmappedArrayDesc), cuMipmappedArrayCreate, pHandle, pMipmappedArrayDesc,
                 numMipmapLevels);
}
HR_HOOK(cuArrayDestroy)(CUarray hArray)
{
    HR_PASS(cuArrayDestroy, hArray);
    HR_WITH_ROOM(0, cuArrayDestroy, hArray);
}
HR_HOOK(cuMipmappedArrayDestroy)(CUmipmappedArray hMipmappedArray)
{
    HR_PASS(cuMipmappedArrayDestroy, hMipmappedArray);
    HR_WITH_ROOM(0, cuMipmappedArrayDestroy, hMipmappedArray);
}

/* --- copies --- */

struct piece {
    CUarray array;
    size_t offset;
    CUdeviceptr window;
    size_t bytes;
};

/* to_array and the other way; `host` where the bytes lie in pinned memory. */
static CUresult copy(struct piece whole, bool per_thread, CUresult (*real)(const struct piece *, bool host))
{
    HR_INSIDE();
    struct hr_thread *t = hr_thread_self();
    struct hr_range range = {whole.window, whole.bytes};
    if (!t || whole.bytes == 0 || !hr_space_owns(whole.window))
        return real(&whole, false);
    CUresult r = hr_copy_begin(t, &range, 1);
    if (r != CUDA_SUCCESS)
        return r;
    for (size_t at = 0; at < whole.bytes && r == CUDA_SUCCESS;) {
        struct piece part = whole;
        bool translated;
        part.offset += at;
        part.bytes = hr_access_piece(whole.window + at, whole.bytes - at, &part.window, &translated);
        r = real(&part, translated);
        at += part.bytes;
    }
    return hr_copy_end(t, r, NULL, per_thread, &range, 1);
}

#define TO_ARRAY(name, from_host, pt)                                                                                  \
    static CUresult real_##name(const struct piece *p, bool host)                                                      \
    {                                                                                                                  \
        return host ? hr_drv.from_host(p->array, p->offset, (const void *)(uintptr_t)p->window, p->bytes)              \
                    : hr_drv.name(p->array, p->offset, p->window, p->bytes);                                           \
    }                                                                                                                  \
    HR_HOOK(name)(CUarray dstArray, size_t dstOffset, CUdeviceptr srcDevice, size_t ByteCount)                         \
    {                                                                                                                  \
        HR_PASS(name, dstArray, dstOffset, srcDevice, ByteCount);                                                      \
        return copy((struct piece){dstArray, dstOffset, srcDevice, ByteCount}, pt, real_##name);                       \
    }
TO_ARRAY(cuMemcpyDtoA_v2, cuMemcpyHtoA_v2, false)
TO_ARRAY(cuMemcpyDtoA_v2_ptds, cuMemcpyHtoA_v2_ptds, true)

#define FROM_ARRAY(name, to_host, pt)                                                                                  \
    static CUresult real_##name(const struct piece *p, bool host)                                                      \
    {                                                                                                                  \
        return host ? hr_drv.to_host((void *)(uintptr_t)p->window, p->array, p->offset, p->bytes)                      \
                    : hr_drv.name(p->window, p->array, p->offset, p->bytes);                                           \
    }                                                                                                                  \
    HR_HOOK(name)(CUdeviceptr dstDevice, CUarray srcArray, size_t srcOffset, size_t ByteCount)                         \
    {                                                                                                                  \
        HR_PASS(name, dstDevice, srcArray, srcOffset, ByteCount);                                                      \
        return copy((struct piece){srcArray, srcOffset, dstDevice, ByteCount}, pt, real_##name);                       \
    }
FROM_ARRAY(cuMemcpyAtoD_v2, cuMemcpyAtoH_v2, false)
FROM_ARRAY(cuMemcpyAtoD_v2_ptds, cuMemcpyAtoH_v2_ptds, true)
