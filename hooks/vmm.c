#include "residency/vmm.h"
#include "hr_hooks.h"
#include "residency/access.h"
#include "residency/capture.h"
#include "residency/context.h"
#include "residency/gpu.h"
#include "room.h"
#include "shim/refuse.h"
#include "shim/shim.h"

#include <stdlib.h>
#include <string.h>

/*
 * The job's own virtual memory management. What concerns our reservations and handles is answered by residency/vmm.h; everything else
 * goes to the driver, and what it takes of VRAM is measured.
 */

/* Whether nothing here can be ours. */
static bool is_none_of_ours(CUdeviceptr address)
{
    return !hr_vmm_any() && !hr_space_owns(address);
}

HR_HOOK(cuMemAddressReserve)
(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr, unsigned long long flags)
{
    HR_PASS(cuMemAddressReserve, ptr, size, alignment, addr, flags);
    HR_INSIDE();
    struct hr_thread *t = hr_thread_self();
    const struct hr_context *context = hr_context_current();
    bool plain = ptr && size > 0 && addr == 0 && flags == 0 && (alignment & (alignment - 1)) == 0;
    if (t && plain && (context || hr_gpu_count() == 1) &&
        hr_vmm_reserve(t, context ? context->gpu : 0, size, alignment, ptr))
        return CUDA_SUCCESS;
    return hr_drv.cuMemAddressReserve(ptr, size, alignment, addr, flags);
}

HR_HOOK(cuMemAddressFree)(CUdeviceptr ptr, size_t size)
{
    HR_PASS(cuMemAddressFree, ptr, size);
    HR_INSIDE();
    return hr_space_owns(ptr) ? hr_vmm_unreserve(ptr, size) : hr_drv.cuMemAddressFree(ptr, size);
}

/* The driver judges properties; sizes have to be multiples of what it says. */
static bool is_right(const CUmemAllocationProp *prop, size_t size)
{
    size_t granularity = 0;
    return hr_drv.cuMemGetAllocationGranularity(&granularity, prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS &&
           granularity > 0 && size % granularity == 0;
}

static CUresult create_real(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                            unsigned long long flags)
{
    HR_WITH_ROOM(size, cuMemCreate, handle, size, prop, flags);
}

HR_HOOK(cuMemCreate)
(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop, unsigned long long flags)
{
    HR_PASS(cuMemCreate, handle, size, prop, flags);
    HR_INSIDE();
    struct hr_thread *t = hr_thread_self();
    if (t && handle && prop && flags == 0 && hr_vmm_serves(prop, size) && is_right(prop, size)) {
        CUresult r = hr_capture_check();
        return r == CUDA_SUCCESS ? hr_vmm_create(t, prop, size, handle) : r;
    }
    return create_real(handle, size, prop, flags);
}

HR_HOOK(cuMemRelease)(CUmemGenericAllocationHandle handle)
{
    HR_PASS(cuMemRelease, handle);
    HR_INSIDE();
    if (hr_vmm_is_handle(handle))
        return hr_vmm_release(hr_thread_self(), handle);
    struct hr_room room = hr_room_begin();
    return hr_room_end(&room, hr_drv.cuMemRelease(handle));
}

HR_HOOK(cuMemMap)
(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    HR_PASS(cuMemMap, ptr, size, offset, handle, flags);
    HR_INSIDE();
    if (!hr_space_owns(ptr) && !hr_vmm_is_handle(handle))
        return hr_drv.cuMemMap(ptr, size, offset, handle, flags);
    CUresult r = hr_capture_check();
    if (r != CUDA_SUCCESS)
        return r;
    HR_RELAXED();
    return offset || flags ? CUDA_ERROR_INVALID_VALUE : hr_vmm_map(hr_thread_self(), ptr, size, handle);
}

HR_HOOK(cuMemUnmap)(CUdeviceptr ptr, size_t size)
{
    HR_PASS(cuMemUnmap, ptr, size);
    HR_INSIDE();
    struct hr_vmm_place place;
    if (is_none_of_ours(ptr))
        return hr_drv.cuMemUnmap(ptr, size);
    CUresult r = hr_capture_check();
    if (r != CUDA_SUCCESS)
        return r;
    HR_RELAXED();
    if (hr_vmm_find(ptr, &place) && !place.real)
        return hr_vmm_unmap(hr_thread_self(), ptr, size);
    struct hr_room room = hr_room_begin(); /* it may have been all that a handle of the driver's lived for */
    return hr_room_end(&room, hr_vmm_unmap(hr_thread_self(), ptr, size));
}

HR_HOOK(cuMemSetAccess)(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count)
{
    HR_PASS(cuMemSetAccess, ptr, size, desc, count);
    HR_INSIDE();
    if (is_none_of_ours(ptr))
        return hr_drv.cuMemSetAccess(ptr, size, desc, count);
    CUresult r = hr_capture_check();
    if (r != CUDA_SUCCESS)
        return r;
    if (!desc || count == 0)
        return CUDA_ERROR_INVALID_VALUE;
    HR_RELAXED();
    r = hr_vmm_set_access(ptr, size, desc, count);
    struct hr_thread *t = hr_thread_self();
    return r == CUDA_SUCCESS && t && hr_space_owns(ptr) ? hr_access_mapped(t, ptr, size) : r;
}

HR_HOOK(cuMemGetAccess)(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr)
{
    HR_PASS(cuMemGetAccess, flags, location, ptr);
    HR_INSIDE();
    bool real = true;
    CUresult r = CUDA_SUCCESS;
    if (flags && location && !is_none_of_ours(ptr))
        r = hr_vmm_get_access(ptr, location, flags, &real);
    return real ? hr_drv.cuMemGetAccess(flags, location, ptr) : r;
}

/* How libraries ask whether memory came from cuMemCreate; what the job got from cuMemAlloc or from a pool did not. */
HR_HOOK(cuMemRetainAllocationHandle)(CUmemGenericAllocationHandle *handle, void *addr)
{
    HR_PASS(cuMemRetainAllocationHandle, handle, addr);
    HR_INSIDE();
    CUdeviceptr address = (CUdeviceptr)(uintptr_t)addr;
    size_t offset;
    bool real = true;
    CUresult r = CUDA_ERROR_INVALID_VALUE;
    if (handle && !is_none_of_ours(address))
        r = hr_vmm_retain(address, handle, &offset, &real);
    return real ? hr_drv.cuMemRetainAllocationHandle(handle, addr) : r;
}

HR_HOOK(cuMemGetAllocationPropertiesFromHandle)(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
    HR_PASS(cuMemGetAllocationPropertiesFromHandle, prop, handle);
    HR_INSIDE();
    if (!hr_vmm_is_handle(handle))
        return hr_drv.cuMemGetAllocationPropertiesFromHandle(prop, handle);
    return prop ? hr_vmm_props(handle, prop) : CUDA_ERROR_INVALID_VALUE;
}

/* Only a handle that its maker let be exported is: then it is the driver's from here on, and nobody moves it. */
HR_HOOK(cuMemExportToShareableHandle)
(void *shareableHandle, CUmemGenericAllocationHandle handle, CUmemAllocationHandleType handleType,
 unsigned long long flags)
{
    HR_PASS(cuMemExportToShareableHandle, shareableHandle, handle, handleType, flags);
    HR_INSIDE();
    if (!hr_vmm_is_handle(handle))
        return hr_drv.cuMemExportToShareableHandle(shareableHandle, handle, handleType, flags);
    if (!shareableHandle || flags)
        return CUDA_ERROR_INVALID_VALUE;
    HR_RELAXED();
    return hr_vmm_export(hr_thread_self(), shareableHandle, handle, handleType, flags);
}

HR_HOOK(cuMemImportFromShareableHandle)
(CUmemGenericAllocationHandle *handle, void *osHandle, CUmemAllocationHandleType shHandleType)
{
    HR_PASS(cuMemImportFromShareableHandle, handle, osHandle, shHandleType);
    HR_WITH_ROOM(0, cuMemImportFromShareableHandle, handle, osHandle, shHandleType);
}

/* --- who takes handles of the driver's only ------------------------------------------------------------------------ */

/* The driver's handle for a handle, which may be ours. */
static CUresult make_real(CUmemGenericAllocationHandle handle, CUmemGenericAllocationHandle *real_out)
{
    *real_out = handle;
    if (!hr_vmm_is_handle(handle))
        return CUDA_SUCCESS;
    HR_RELAXED();
    return hr_vmm_make_real(hr_thread_self(), handle, real_out);
}

HR_HOOK(cuMulticastBindMem)
(CUmemGenericAllocationHandle mcHandle, size_t mcOffset, CUmemGenericAllocationHandle memHandle, size_t memOffset,
 size_t size, unsigned long long flags)
{
    HR_PASS(cuMulticastBindMem, mcHandle, mcOffset, memHandle, memOffset, size, flags);
    HR_INSIDE();
    CUmemGenericAllocationHandle real;
    CUresult r = make_real(memHandle, &real);
    return r == CUDA_SUCCESS ? hr_drv.cuMulticastBindMem(mcHandle, mcOffset, real, memOffset, size, flags) : r;
}

/* What the job mapped itself is bound by its handle; what it got from cuMemAlloc may move, and cannot be. */
HR_HOOK(cuMulticastBindAddr)
(CUmemGenericAllocationHandle mcHandle, size_t mcOffset, CUdeviceptr memptr, size_t size, unsigned long long flags)
{
    HR_PASS(cuMulticastBindAddr, mcHandle, mcOffset, memptr, size, flags);
    HR_INSIDE();
    CUmemGenericAllocationHandle handle, real;
    size_t offset = 0;
    bool is_real = true;
    CUresult r = CUDA_SUCCESS;
    if (!is_none_of_ours(memptr))
        r = hr_vmm_retain(memptr, &handle, &offset, &is_real);
    if (is_real)
        return hr_drv.cuMulticastBindAddr(mcHandle, mcOffset, memptr, size, flags);
    if (r != CUDA_SUCCESS)
        return hr_refuse(HR_FN_cuMulticastBindAddr);
    r = make_real(handle, &real);
    if (r == CUDA_SUCCESS)
        r = hr_drv.cuMulticastBindMem(mcHandle, mcOffset, real, offset, size, flags);
    hr_vmm_release(hr_thread_self(), handle);
    return r;
}

/* A copy of the list in which every handle is the driver's; NULL where there is none of ours, or an error, in *r_out. The caller frees it. */
static CUarrayMapInfo *with_real_handles(const CUarrayMapInfo *list, unsigned count, CUresult *r_out)
{
    bool ours = false;
    *r_out = CUDA_SUCCESS;
    for (unsigned i = 0; list && i < count; i++)
        ours = ours ||
               (list[i].memOperationType == CU_MEM_OPERATION_TYPE_MAP && hr_vmm_is_handle(list[i].memHandle.memHandle));
    if (!ours)
        return NULL;
    CUarrayMapInfo *copy = malloc(count * sizeof *copy);
    if (!copy) {
        *r_out = CUDA_ERROR_OUT_OF_MEMORY;
        return NULL;
    }
    memcpy(copy, list, count * sizeof *copy);
    for (unsigned i = 0; i < count && *r_out == CUDA_SUCCESS; i++)
        if (copy[i].memOperationType == CU_MEM_OPERATION_TYPE_MAP)
            *r_out = make_real(copy[i].memHandle.memHandle, &copy[i].memHandle.memHandle);
    return copy;
}

#define MAP_ARRAYS(name)                                                                                               \
    HR_HOOK(name)(CUarrayMapInfo * mapInfoList, unsigned int count, CUstream hStream)                                  \
    {                                                                                                                  \
        HR_PASS(name, mapInfoList, count, hStream);                                                                    \
        HR_INSIDE();                                                                                                   \
        CUresult r;                                                                                                    \
        CUarrayMapInfo *copy = with_real_handles(mapInfoList, count, &r);                                              \
        if (r == CUDA_SUCCESS)                                                                                         \
            r = hr_drv.name(copy ? copy : mapInfoList, count, hStream);                                                \
        free(copy);                                                                                                    \
        return r;                                                                                                      \
    }
MAP_ARRAYS(cuMemMapArrayAsync)
MAP_ARRAYS(cuMemMapArrayAsync_ptsz)
