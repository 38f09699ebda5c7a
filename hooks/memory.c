#include "hr_hooks.h"
#include "residency/alloc.h"
#include "residency/capture.h"
#include "residency/context.h"
#include "residency/pool.h"
#include "residency/quarantine.h"
#include "shim/shim.h"

/* Allocation and free. No driver call on the common path: an allocation takes addresses and a commit charge. */

#define PITCH_ALIGN 512

/* The driver's own words where no context can be used: none is current, or it was reset. */
static CUresult why_no_context(void)
{
    CUdevice device;
    CUresult r = hr_drv.cuCtxGetDevice(&device);
    return r == CUDA_SUCCESS ? CUDA_ERROR_INVALID_CONTEXT : r;
}

static CUresult allocate(CUdeviceptr *address_out, size_t bytes, void *return_pc)
{
    HR_INSIDE();
    struct hr_thread *t = hr_thread_self();
    struct hr_context *context = hr_context_current();
    CUresult r = hr_capture_check();
    if (r != CUDA_SUCCESS)
        return r;
    if (!context)
        return why_no_context();
    if (!t)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!address_out || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    return hr_alloc_window(t, context->gpu, context->handle, bytes, return_pc, address_out);
}

HR_HOOK(cuMemAlloc_v2)(CUdeviceptr *dptr, size_t bytesize)
{
    HR_PASS(cuMemAlloc_v2, dptr, bytesize);
    return allocate(dptr, bytesize, __builtin_return_address(0));
}

static CUresult allocate_pitch(CUdeviceptr *dptr, size_t *pitch_out, size_t width, size_t height, unsigned element,
                               void *return_pc)
{
    if (!dptr || !pitch_out || width == 0 || height == 0 || (element != 4 && element != 8 && element != 16))
        return CUDA_ERROR_INVALID_VALUE;
    size_t pitch = (width + PITCH_ALIGN - 1) / PITCH_ALIGN * PITCH_ALIGN, bytes;
    if (pitch < width || __builtin_mul_overflow(pitch, height, &bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = allocate(dptr, bytes, return_pc);
    if (r == CUDA_SUCCESS)
        *pitch_out = pitch;
    return r;
}

HR_HOOK(cuMemAllocPitch_v2)
(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height, unsigned int ElementSizeBytes)
{
    HR_PASS(cuMemAllocPitch_v2, dptr, pPitch, WidthInBytes, Height, ElementSizeBytes);
    return allocate_pitch(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes, __builtin_return_address(0));
}

HR_HOOK(cuMemFree_v2)(CUdeviceptr dptr)
{
    HR_PASS(cuMemFree_v2, dptr);
    HR_INSIDE();
    CUresult r = CUDA_SUCCESS;
    if (hr_space_owns(dptr))
        r = hr_capture_check();
    if (r == CUDA_SUCCESS && hr_space_owns(dptr) && !hr_context_current())
        r = why_no_context();
    if (r != CUDA_SUCCESS)
        return r;
    size_t bytes = 0;
    struct hr_extent *e = NULL;
    enum hr_retire retired = hr_space_retire(dptr, &bytes, &e);
    if (retired == HR_RETIRE_NOT_OURS)
        return hr_drv.cuMemFree_v2(dptr);
    if (retired == HR_RETIRE_INVALID)
        return CUDA_ERROR_INVALID_VALUE;
    struct hr_thread *t = hr_thread_self();
    hr_alloc_retired(t, e, dptr, bytes);
    struct hr_pool *pool = hr_pool_of_owner(e->ctx);
    if (pool) /* nothing is waited for here: the job says that it is not in use */
        hr_pool_free(t, pool, NULL, e, dptr, bytes, retired == HR_RETIRE_TOUCHED);
    else if (retired == HR_RETIRE_UNTOUCHED)
        hr_quarantine_release_one(t, dptr);
    else
        hr_quarantine_add(t, dptr);
    return CUDA_SUCCESS;
}

/* The 32-bit forms of CUDA 3 cannot hold an address of a 64-bit process; the driver answers as it always did. */
HR_HOOK(cuMemAlloc)(CUdeviceptr_v1 *dptr, unsigned int bytesize)
{
    return hr_drv.cuMemAlloc(dptr, bytesize);
}
HR_HOOK(cuMemAllocPitch)
(CUdeviceptr_v1 *dptr, unsigned int *pPitch, unsigned int WidthInBytes, unsigned int Height,
 unsigned int ElementSizeBytes)
{
    return hr_drv.cuMemAllocPitch(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes);
}
