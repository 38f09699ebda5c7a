/* Pointer attributes. VMM memory answers differently from cuMemAlloc memory, as it does on hardware. */
#include "simgpu/mempool.h"

#include <string.h>

struct known { /* whichever of these an address belongs to; all NULL: unknown */
    struct sg_alloc *alloc;
    struct sg_mapping *mapping;
    struct sg_reservation *reservation;
    struct sg_host *host;
};

static struct known look_up(uint64_t va)
{
    return (struct known){sg_alloc_at(va), sg_mapping_at(va), sg_reservation_at(va), sg_host_at(va)};
}

static bool on_device(const struct known *k)
{
    return (k->alloc && k->alloc->device != SG_ON_HOST) || (k->mapping && k->mapping->chunk->device != SG_ON_HOST);
}

static int ordinal(const struct known *k)
{
    if (k->alloc)
        return k->alloc->device == SG_ON_HOST ? CU_DEVICE_CPU : k->alloc->device;
    if (k->mapping)
        return k->mapping->chunk->device == SG_ON_HOST ? CU_DEVICE_CPU : k->mapping->chunk->device;
    return k->host->context ? k->host->context->device : 0;
}

static uint64_t range(const struct known *k, bool size)
{
    if (k->alloc)
        return size ? k->alloc->region.bytes : k->alloc->region.va;
    if (k->host)
        return size ? k->host->bytes : k->host->va;
    return size ? k->reservation->bytes : k->reservation->va; /* the whole reservation, not the chunk */
}

static uint64_t buffer_id(const struct known *k)
{
    return k->alloc ? k->alloc->buffer_id : k->mapping ? k->mapping->buffer_id : k->host->buffer_id;
}

static const struct sg_mempool *pool_of(const struct known *k)
{
    return k->alloc && k->alloc->piece ? k->alloc->piece->segment->pool : NULL;
}

static unsigned access_flags(const struct known *k, const struct sg_context *context)
{
    const struct sg_mempool *pool = pool_of(k);
    if ((k->mapping || pool) && context) {
        uint8_t access = pool ? pool->access[context->device] : k->mapping->access[context->device];
        return access == 3   ? CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE
               : access == 1 ? CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READ
                             : CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE;
    }
    if (k->alloc && k->alloc->context && !k->alloc->managed && context && k->alloc->device != context->device &&
        !sg_peer_enabled(context, k->alloc->context))
        return CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE;
    return CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
}

static bool is_legacy(const struct sg_alloc *a)
{ /* cuMemAlloc memory */
    return a && !a->piece && !a->foreign && !a->managed;
}

static void put(void *data, const void *value, size_t bytes)
{
    memcpy(data, value, bytes);
}

#define PUT(type, value)                                                                                               \
    do {                                                                                                               \
        type v_ = (value);                                                                                             \
        put(data, &v_, sizeof v_);                                                                                     \
    } while (0)

/* Attributes of a reservation in which nothing is mapped at this address. */
static CUresult get_unmapped(void *data, CUpointer_attribute attribute, const struct known *k)
{
    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: PUT(CUdeviceptr, range(k, false)); break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: PUT(size_t, range(k, true)); break;
    case CU_POINTER_ATTRIBUTE_MAPPED: PUT(bool, false); break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

static CUresult get_host_pointer(void *data, uint64_t va, const struct known *k)
{
    if (!k->host && !(k->mapping && k->mapping->host_access) &&
        !(k->alloc && (k->alloc->device == SG_ON_HOST || k->alloc->managed)))
        return CUDA_ERROR_INVALID_VALUE;
    PUT(void *, (void *)(uintptr_t)va);
    return CUDA_SUCCESS;
}

static CUresult get(void *data, CUpointer_attribute attribute, uint64_t va, const struct known *k,
                    const struct sg_context *context)
{
    const struct sg_mapping *m = k->mapping;
    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        PUT(uint64_t, k->alloc && k->alloc->context ? k->alloc->context->object.id
                      : k->host && k->host->context ? k->host->context->object.id
                                                    : 0);
        break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        PUT(unsigned, on_device(k) ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST);
        break;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER: PUT(CUdeviceptr, va); break;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER: return get_host_pointer(data, va, k);
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: PUT(unsigned, k->alloc && k->alloc->sync_memops); break;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: PUT(unsigned long long, buffer_id(k)); break;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: PUT(unsigned, k->alloc && k->alloc->managed); break;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: PUT(int, ordinal(k)); break;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: PUT(unsigned, is_legacy(k->alloc)); break;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: PUT(CUdeviceptr, range(k, false)); break;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: PUT(size_t, range(k, true)); break;
    case CU_POINTER_ATTRIBUTE_MAPPED: PUT(bool, true); break;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        PUT(unsigned long long, m            ? (unsigned long long)m->chunk->prop.requestedHandleTypes
                                : pool_of(k) ? (unsigned long long)pool_of(k)->props.handleTypes
                                             : 0);
        break;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        PUT(unsigned,
            (is_legacy(k->alloc) && sg.config.model->rdma) || (m && m->chunk->prop.allocFlags.gpuDirectRDMACapable));
        break;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: PUT(unsigned, access_flags(k, context)); break;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: PUT(uint64_t, pool_of(k) ? pool_of(k)->object.id : 0); break;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE: PUT(size_t, m ? m->region.bytes : range(k, true)); break;
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR: PUT(CUdeviceptr, m ? m->region.va : range(k, false)); break;
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: PUT(unsigned long long, buffer_id(k)); break;
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE: PUT(unsigned, 0); break;
    case CU_POINTER_ATTRIBUTE_P2P_TOKENS: return CUDA_ERROR_NOT_SUPPORTED;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

static CUresult look(void *data, CUpointer_attribute attribute, uint64_t va)
{
    bool dead;
    struct known k = look_up(va);
    if (!k.alloc && !k.mapping && !k.host)
        return k.reservation ? get_unmapped(data, attribute, &k) : CUDA_ERROR_INVALID_VALUE;
    return get(data, attribute, va, &k, sg_current(&dead));
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    CUresult r = sg_enter("cuPointerGetAttribute");
    if (r)
        return r;
    return sg_leave(data ? look(data, attribute, ptr) : CUDA_ERROR_INVALID_VALUE);
}

/* What an attribute of an unknown pointer reads as in the plural form: nulls, and an ordinal that is no device's. */
static void put_default(void *data, CUpointer_attribute attribute)
{
    switch ((int)attribute) {
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: PUT(int, CU_DEVICE_INVALID); break;
    case CU_POINTER_ATTRIBUTE_MAPPED: PUT(bool, false); break;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE: PUT(unsigned, 0); break;
    default: PUT(uint64_t, 0); break;
    }
}

CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes, void **data, CUdeviceptr ptr)
{
    CUresult r = sg_enter("cuPointerGetAttributes");
    if (r)
        return r;
    if (!count || !attributes || !data)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    for (unsigned i = 0; i < count; i++)
        if (!data[i] || attributes[i] < CU_POINTER_ATTRIBUTE_CONTEXT ||
            attributes[i] > CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE ||
            attributes[i] == CU_POINTER_ATTRIBUTE_P2P_TOKENS)
            return sg_leave(CUDA_ERROR_INVALID_VALUE);
    for (unsigned i = 0; i < count; i++)
        if (look(data[i], attributes[i], ptr))
            put_default(data[i], attributes[i]);
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute, CUdeviceptr ptr)
{
    CUresult r = sg_enter("cuPointerSetAttribute");
    if (r)
        return r;
    unsigned on;
    struct sg_alloc *a = sg_alloc_at(ptr);
    if (!value || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS || !a || a->piece)
        return sg_leave(value && (sg_mapping_at(ptr) || (a && attribute == CU_POINTER_ATTRIBUTE_SYNC_MEMOPS))
                            ? CUDA_ERROR_NOT_SUPPORTED
                            : CUDA_ERROR_INVALID_VALUE);
    memcpy(&on, value, sizeof on);
    a->sync_memops = on != 0;
    return sg_leave(CUDA_SUCCESS);
}
