#include "hr_hooks.h"
#include "residency/context.h"
#include "residency/gpu.h"
#include "shim/shim.h"

/* Capacity: every answer is the window's, so that they agree with each other and with what an allocation can get. */

HR_HOOK(cuMemGetInfo_v2)(size_t *free_out, size_t *total)
{
    HR_PASS(cuMemGetInfo_v2, free_out, total);
    HR_INSIDE();
    struct hr_context *context = hr_context_current();
    if (!context || !free_out || !total)
        return hr_drv.cuMemGetInfo_v2(free_out, total);
    *free_out = hr_gpu_free_bytes(context->gpu);
    *total = hr_gpu_total_bytes(context->gpu);
    return CUDA_SUCCESS;
}

HR_HOOK(cuDeviceTotalMem_v2)(size_t *bytes, CUdevice dev)
{
    HR_PASS(cuDeviceTotalMem_v2, bytes, dev);
    HR_INSIDE();
    int gpu = hr_gpu_of_device(dev);
    if (gpu < 0 || !bytes)
        return hr_drv.cuDeviceTotalMem_v2(bytes, dev);
    *bytes = hr_gpu_total_bytes((unsigned)gpu);
    return CUDA_SUCCESS;
}

static unsigned int clamp(size_t bytes)
{
    return bytes > UINT32_MAX ? UINT32_MAX : (unsigned int)bytes;
}

/* The 32-bit forms of CUDA 3, for the sake of agreement. */
HR_HOOK(cuMemGetInfo)(unsigned int *free_out, unsigned int *total)
{
    HR_PASS(cuMemGetInfo, free_out, total);
    HR_INSIDE();
    struct hr_context *context = hr_context_current();
    if (!context || !free_out || !total)
        return hr_drv.cuMemGetInfo(free_out, total);
    *free_out = clamp(hr_gpu_free_bytes(context->gpu));
    *total = clamp(hr_gpu_total_bytes(context->gpu));
    return CUDA_SUCCESS;
}

HR_HOOK(cuDeviceTotalMem)(unsigned int *bytes, CUdevice dev)
{
    HR_PASS(cuDeviceTotalMem, bytes, dev);
    HR_INSIDE();
    int gpu = hr_gpu_of_device(dev);
    if (gpu < 0 || !bytes)
        return hr_drv.cuDeviceTotalMem(bytes, dev);
    *bytes = clamp(hr_gpu_total_bytes((unsigned)gpu));
    return CUDA_SUCCESS;
}
