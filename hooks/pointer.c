#include "hr_hooks.h"
#include "residency/context.h"
#include "residency/fixed.h"
#include "residency/gpu.h"
#include "residency/ipc.h"
#include "residency/peers.h"
#include "residency/pool.h"
#include "residency/vmm.h"
#include "shim/shim.h"
#include "space/space.h"

/*
 * Pointer queries about window memory are answered from the records, as the driver answers about cuMemAlloc memory: on the
 * mappings behind it, its own answers would name the window, the chunk, or where the bytes happen to be.
 */

/*
 * Memory of another process that is open here (residency/ipc.h) is answered about in the same way: it has no extent, and its device need
 * not be that of its context. Whether it is such goes to *device_out, else -1.
 */
static bool find(CUdeviceptr ptr, struct hr_allocation *a_out, CUdevice *device_out)
{
    *device_out = -1;
    return hr_space_owns(ptr) ? hr_space_find(ptr, a_out) : hr_ipc_find(ptr, a_out, device_out);
}

/* What the current context's GPU may do with it. */
static unsigned access_flags(const struct hr_allocation *a)
{
    HR_INSIDE();
    const struct hr_context *context = hr_context_current();
    const struct hr_pool *pool = hr_pool_of_owner(a->ctx);
    if (pool && context)
        return atomic_load(&pool->access[context->gpu]);
    return !context || hr_peers_enabled_by_contexts(context->gpu, a->gpu) ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
                                                                          : CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

/* One attribute of one allocation. NOT_SUPPORTED: this attribute is none that cuMemAlloc memory has. */
static CUresult answer(const struct hr_allocation *a, CUdevice device, CUdeviceptr ptr, CUpointer_attribute attribute,
                       void *data)
{
    const struct hr_pool *pool = hr_pool_of_owner(a->ctx);
    bool opened = !a->extent;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext *)data = pool ? NULL : a->ctx; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *(CUmemorytype *)data = CU_MEMORYTYPE_DEVICE; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)data = ptr; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        *(int *)data = !opened && atomic_load_explicit(&a->extent->sync_memops, memory_order_relaxed);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: *(unsigned long long *)data = a->id; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(int *)data = 0; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)data = opened ? device : hr_gpu_device(a->gpu);
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: *(int *)data = !opened && !pool; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE: *(int *)data = 0; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR: *(CUdeviceptr *)data = a->base; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE: *(size_t *)data = a->bytes; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED: *(bool *)data = true; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: *(unsigned long long *)data = 0; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: *(unsigned int *)data = access_flags(a); return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *(CUmemoryPool *)data = pool ? atomic_load(&pool->handle) : NULL;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: *(unsigned long long *)data = a->id; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS: return CUDA_ERROR_NOT_SUPPORTED; /* of memory that stays where it is */
    default: /* HOST_POINTER and what is not known here */ return CUDA_ERROR_INVALID_VALUE;
    }
}

/* --- memory that the job mapped itself: as the driver answers about such ------------------------------------------- */

static unsigned mapped_access(const struct hr_vmm_place *place)
{
    HR_INSIDE();
    const struct hr_context *context = hr_context_current();
    return context ? place->access[context->gpu] : CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

/* Where the memory is the driver's its own answers hold, but for those that would name the window. */
static CUresult answer_mapped(const struct hr_vmm_place *place, CUdeviceptr ptr, CUpointer_attribute attribute,
                              void *data)
{
    bool mapped = place->mapping_bytes > 0;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr *)data = place->reservation; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)data = place->reservation_bytes; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED: *(bool *)data = mapped; return CUDA_SUCCESS;
    default: break;
    }
    if (!mapped)
        return CUDA_ERROR_INVALID_VALUE;
    if (place->real)
        return hr_drv.cuPointerGetAttribute(data, attribute, ptr);
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: *(CUcontext *)data = NULL; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE: *(CUmemorytype *)data = CU_MEMORYTYPE_DEVICE; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: *(CUdeviceptr *)data = ptr; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: *(unsigned long long *)data = place->id; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(int *)data = place->prop.location.id; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR: *(CUdeviceptr *)data = place->mapping; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE: *(size_t *)data = place->mapping_bytes; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        *(unsigned long long *)data = place->prop.requestedHandleTypes;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: *(unsigned *)data = mapped_access(place); return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: *(CUmemoryPool *)data = NULL; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE: /* what moves cannot be registered with a network card */
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE: *(unsigned *)data = 0; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS: return CUDA_ERROR_NOT_SUPPORTED;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

/* What a plural query stores for an attribute that does not apply. */
static void answer_nothing(CUpointer_attribute attribute, void *data)
{
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_HOST_POINTER: *(void **)data = NULL; break;
    default: break;
    }
}

/* Whether an address is answered about here: of the windows, or opened. */
static bool is_ours(CUdeviceptr ptr)
{
    struct hr_allocation a;
    CUdevice device;
    return hr_space_owns(ptr) || (hr_ipc_any() && hr_ipc_find(ptr, &a, &device));
}

HR_HOOK(cuPointerGetAttribute)(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    HR_PASS(cuPointerGetAttribute, data, attribute, ptr);
    struct hr_allocation a;
    CUdevice device;
    if (!is_ours(ptr))
        return hr_drv.cuPointerGetAttribute(data, attribute, ptr);
    struct hr_vmm_place place;
    if (data && hr_vmm_any() && hr_vmm_find(ptr, &place))
        return answer_mapped(&place, ptr, attribute, data);
    if (!data || !find(ptr, &a, &device))
        return CUDA_ERROR_INVALID_VALUE;
    return answer(&a, device, ptr, attribute, data);
}

HR_HOOK(cuPointerGetAttributes)
(unsigned int numAttributes, CUpointer_attribute *attributes, void **data, CUdeviceptr ptr)
{
    HR_PASS(cuPointerGetAttributes, numAttributes, attributes, data, ptr);
    struct hr_allocation a;
    CUdevice device;
    if (!is_ours(ptr) || numAttributes == 0 || !attributes || !data)
        return hr_drv.cuPointerGetAttributes(numAttributes, attributes, data, ptr);
    struct hr_vmm_place place;
    bool mapped = hr_vmm_any() && hr_vmm_find(ptr, &place);
    /* Of an address of nothing: the driver's way of saying so, and what it says of the attributes, without naming the window. */
    CUresult r = hr_drv.cuPointerGetAttributes(numAttributes, attributes, data, 0);
    if (r != CUDA_SUCCESS || (!mapped && !find(ptr, &a, &device)))
        return r;
    for (unsigned i = 0; i < numAttributes; i++)
        if (data[i] && (mapped ? answer_mapped(&place, ptr, attributes[i], data[i])
                               : answer(&a, device, ptr, attributes[i], data[i])) != CUDA_SUCCESS)
            answer_nothing(attributes[i], data[i]);
    return CUDA_SUCCESS;
}

HR_HOOK(cuPointerSetAttribute)(const void *value, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    HR_PASS(cuPointerSetAttribute, value, attribute, ptr);
    struct hr_allocation a;
    struct hr_thread *t = hr_thread_self();
    if (!hr_space_owns(ptr))
        return hr_drv.cuPointerSetAttribute(value, attribute, ptr);
    struct hr_vmm_place place;
    if (value && hr_vmm_any() && hr_vmm_find(ptr, &place))
        return place.mapping_bytes > 0 ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
    if (!value || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || !hr_space_find(ptr, &a))
        return CUDA_ERROR_INVALID_VALUE;
    if (hr_pool_of_owner(a.ctx))
        return CUDA_ERROR_NOT_SUPPORTED; /* as the driver's own pools */
    HR_INSIDE();
    if (t)
        hr_fixed_register(t, a.extent, *(const int *)value != 0);
    return t ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

HR_HOOK(cuMemGetAddressRange_v2)(CUdeviceptr *pbase, size_t *psize, CUdeviceptr dptr)
{
    HR_PASS(cuMemGetAddressRange_v2, pbase, psize, dptr);
    struct hr_allocation a;
    CUdevice device;
    if (!is_ours(dptr) || !hr_context_current()) /* which needs one */
        return hr_drv.cuMemGetAddressRange_v2(pbase, psize, dptr);
    struct hr_vmm_place place;
    if (hr_vmm_any() && hr_vmm_find(dptr, &place)) {
        a.base = place.mapping;
        a.bytes = place.mapping_bytes;
        if (a.bytes == 0)
            return CUDA_ERROR_NOT_FOUND;
    } else if (!find(dptr, &a, &device)) {
        return CUDA_ERROR_NOT_FOUND;
    }
    if (pbase)
        *pbase = a.base;
    if (psize)
        *psize = a.bytes;
    return CUDA_SUCCESS;
}
