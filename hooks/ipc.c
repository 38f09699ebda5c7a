#include "residency/ipc.h"
#include "hr_hooks.h"
#include "residency/capture.h"
#include "residency/context.h"
#include "residency/exported.h"
#include "residency/gpu.h"
#include "residency/vmm.h"
#include "room.h"
#include "shim/refuse.h"
#include "shim/shim.h"

/*
 * Memory that other processes or devices reach. Events of other processes name no memory, and pools that can be exported are the
 * driver's own: those calls pass.
 */

/* The driver's answer where no context can be used. */
static CUresult check_context(void)
{
    CUdevice device;
    return hr_drv.cuCtxGetDevice(&device);
}

HR_HOOK(cuIpcGetMemHandle)(CUipcMemHandle *pHandle, CUdeviceptr dptr)
{
    HR_PASS(cuIpcGetMemHandle, pHandle, dptr);
    HR_INSIDE();
    struct hr_thread *t = hr_thread_self();
    if (!hr_space_owns(dptr))
        return hr_drv.cuIpcGetMemHandle(pHandle, dptr);
    CUresult r = check_context();
    if (r != CUDA_SUCCESS)
        return r;
    if (!t)
        return CUDA_ERROR_OUT_OF_MEMORY;
    return pHandle ? hr_ipc_export(t, dptr, pHandle) : CUDA_ERROR_INVALID_VALUE;
}

/*
 * What is opened takes no VRAM but the other process's, though a driver may want a little of its own. So room is made where there is
 * none, but nothing is measured: the other process may be on the same card, and busy.
 */
static CUresult open_with_room(CUdeviceptr *pdptr, const CUipcMemHandle *handle)
{
    size_t bytes = 0;
    struct hr_room room = hr_room_begin();
    CUresult r = hr_ipc_open(handle, pdptr, &bytes);
    while (hr_room_make(&room, r, bytes))
        r = hr_ipc_open(handle, pdptr, &bytes);
    room.free_before = 0;
    return hr_room_end(&room, r);
}

/* After the driver's own look at what it always looks at. */
static CUresult open_ours(CUdeviceptr *pdptr, const CUipcMemHandle *handle, unsigned flags)
{
    CUresult r = check_context();
    if (r == CUDA_SUCCESS)
        r = hr_capture_check();
    if (r != CUDA_SUCCESS)
        return r;
    if (!pdptr || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
        return CUDA_ERROR_INVALID_VALUE;
    return open_with_room(pdptr, handle);
}

HR_HOOK(cuIpcOpenMemHandle)(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags)
{
    HR_PASS(cuIpcOpenMemHandle, pdptr, handle, Flags);
    HR_INSIDE();
    return hr_ipc_is_ours(&handle) ? open_ours(pdptr, &handle, Flags) : hr_drv.cuIpcOpenMemHandle(pdptr, handle, Flags);
}

HR_HOOK(cuIpcOpenMemHandle_v2)(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int Flags)
{
    HR_PASS(cuIpcOpenMemHandle_v2, pdptr, handle, Flags);
    HR_INSIDE();
    return hr_ipc_is_ours(&handle) ? open_ours(pdptr, &handle, Flags)
                                   : hr_drv.cuIpcOpenMemHandle_v2(pdptr, handle, Flags);
}

HR_HOOK(cuIpcCloseMemHandle)(CUdeviceptr dptr)
{
    HR_PASS(cuIpcCloseMemHandle, dptr);
    HR_INSIDE();
    CUresult r = hr_ipc_any() ? check_context() : CUDA_SUCCESS;
    if (r == CUDA_SUCCESS && hr_ipc_any())
        r = hr_capture_check();
    if (r != CUDA_SUCCESS)
        return r;
    if (hr_space_owns(dptr))
        return CUDA_ERROR_INVALID_VALUE; /* one's own memory */
    return hr_ipc_any() && hr_ipc_close(dptr) ? CUDA_SUCCESS : hr_drv.cuIpcCloseMemHandle(dptr);
}

/* Where the driver can make such handles at all, the memory lies in VRAM and stays there from then on. */
HR_HOOK(cuMemGetHandleForAddressRange)
(void *handle, CUdeviceptr dptr, size_t size, CUmemRangeHandleType handleType, unsigned long long flags)
{
    HR_PASS(cuMemGetHandleForAddressRange, handle, dptr, size, handleType, flags);
    HR_INSIDE();
    struct hr_thread *t = hr_thread_self();
    struct hr_allocation a;
    struct hr_vmm_place place;
    struct hr_hold hold;
    int can = 0;
    if (!t || !hr_space_owns(dptr) || !hr_space_find(dptr, &a) || !handle || size == 0 ||
        handleType != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD ||
        hr_drv.cuDeviceGetAttribute(&can, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, hr_gpu_device(a.gpu)) !=
            CUDA_SUCCESS ||
        !can)
        return hr_drv.cuMemGetHandleForAddressRange(handle, dptr, size, handleType, flags);
    if (hr_vmm_any() && hr_vmm_find(dptr, &place))
        return place.real ? hr_drv.cuMemGetHandleForAddressRange(handle, dptr, size, handleType, flags)
                          : hr_refuse(HR_FN_cuMemGetHandleForAddressRange);
    if (size > a.bytes - (dptr - a.base))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = hr_exported_hold(t, &a, &hold);
    if (r != CUDA_SUCCESS)
        return r;
    r = hr_drv.cuMemGetHandleForAddressRange(handle, dptr, size, handleType, flags);
    if (r != CUDA_SUCCESS)
        hr_hold_drop(&hold);
    return r;
}
