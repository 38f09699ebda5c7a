/*
 * Virtual memory management. Stricter than hardware: whole mappings only, offset 0, one granularity for everything, and an
 * unmap under unfinished work is counted and reported.
 */
#include "simgpu/check.h"
#include "simgpu/share.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static bool granular(uint64_t value)
{
    return value && !(value & (SG_PAGE_BYTES - 1));
}

CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr,
                             unsigned long long flags)
{
    CUresult r = sg_enter("cuMemAddressReserve");
    if (r)
        return r;
    if (!ptr || !granular(size) || (alignment & (alignment - 1)) || flags)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    struct sg_reservation *res = calloc(1, sizeof *res);
    uint64_t va = res ? sg_va_reserve(size, alignment, addr) : 0;
    if (!va) {
        free(res);
        return sg_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    res->va = va;
    res->bytes = size;
    if (!sg_ranges_add(&sg.reservations, va, size, res)) {
        sg_va_release(va, size);
        free(res);
        return sg_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    *ptr = va;
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuMemAddressFree(CUdeviceptr ptr, size_t size)
{
    CUresult r = sg_enter("cuMemAddressFree");
    if (r)
        return r;
    struct sg_reservation *res = sg_reservation_at(ptr);
    if (!res || res->va != ptr || res->bytes != size || res->mappings)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    sg_ranges_remove(&sg.reservations, ptr);
    sg_va_release(res->va, res->bytes);
    sg_note_freed(res->va, res->bytes);
    free(res);
    return sg_leave(CUDA_SUCCESS);
}

CUresult sg_chunk_check(const CUmemAllocationProp *prop, int *device_out)
{
    if (!prop || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED || prop->win32HandleMetaData)
        return CUDA_ERROR_INVALID_VALUE;
    if (prop->requestedHandleTypes & ~(unsigned)CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return prop->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC ? CUDA_ERROR_NOT_PERMITTED
                                                                      : CUDA_ERROR_NOT_SUPPORTED;
    switch (prop->location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        if (prop->location.id < 0 || prop->location.id >= sg.device_count)
            return CUDA_ERROR_INVALID_DEVICE;
        if (prop->allocFlags.gpuDirectRDMACapable && !sg.config.model->rdma)
            return CUDA_ERROR_NOT_SUPPORTED;
        *device_out = prop->location.id;
        return CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_HOST:
        if (sg_driver_version < 13000)
            return CUDA_ERROR_INVALID_VALUE;
        if (prop->requestedHandleTypes)
            return CUDA_ERROR_NOT_SUPPORTED; /* such memory cannot be exported */
        *device_out = SG_ON_HOST;
        return CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
        if (sg_driver_version < 12020 || prop->location.id < 0 || prop->location.id >= sg.numa_nodes)
            return CUDA_ERROR_INVALID_VALUE;
        *device_out = SG_ON_HOST;
        return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                     unsigned long long flags)
{
    CUresult r = sg_enter("cuMemCreate");
    if (r)
        return r;
    int device = 0;
    r = sg_chunk_check(prop, &device);
    if (r)
        return sg_leave(r);
    if (!handle || !granular(size) || flags)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (device == SG_ON_HOST && sg.config.deny_host_numa)
        return sg_leave(CUDA_ERROR_NOT_PERMITTED); /* as in a container that lacks the right to bind memory */
    struct sg_chunk *chunk;
    r = sg_chunk_create(device, size >> SG_PAGE_SHIFT, prop->requestedHandleTypes != 0, &chunk);
    if (r)
        return sg_leave(r);
    sg_time_units(device == SG_ON_HOST ? SG_UNIT_PINNED_MIB : SG_UNIT_CHUNK_CREATE,
                  (double)(device == SG_ON_HOST ? size / SG_MIB : size >> SG_PAGE_SHIFT));
    chunk->prop = *prop;
    chunk->handle_refs = 1;
    sg_object_add(&chunk->object, SG_CHUNK);
    *handle = chunk->object.id;
    return sg_leave(CUDA_SUCCESS);
}

static void drop_chunk(struct sg_chunk *chunk)
{
    if (!chunk->handle_refs && !chunk->mapping_refs)
        sg_chunk_destroy(chunk);
}

static struct sg_chunk *find_chunk(CUmemGenericAllocationHandle handle)
{
    struct sg_chunk *chunk = sg_object_find(handle, SG_CHUNK);
    return chunk && chunk->handle_refs ? chunk : NULL;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    CUresult r = sg_enter("cuMemRelease");
    if (r)
        return r;
    struct sg_chunk *chunk = find_chunk(handle);
    if (!chunk)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    chunk->handle_refs--;
    drop_chunk(chunk);
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags)
{
    CUresult r = sg_enter("cuMemMap");
    if (r)
        return r;
    struct sg_chunk *chunk = find_chunk(handle);
    struct sg_reservation *res = sg_reservation_at(ptr);
    if (!chunk || !res || !granular(ptr) || !granular(size) || offset || flags ||
        size >> SG_PAGE_SHIFT > chunk->pages || size > res->va + res->bytes - ptr)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    for (uint64_t va = ptr; va < ptr + size; va += SG_PAGE_BYTES)
        if (sg_region_at(va))
            return sg_leave(CUDA_ERROR_INVALID_VALUE); /* the target must be unmapped */
    struct sg_mapping *m = calloc(1, sizeof *m);
    if (!m)
        return sg_leave(CUDA_ERROR_OUT_OF_MEMORY);
    m->region = (struct sg_region){SG_REGION_MAPPING, ptr, size};
    m->reservation = res;
    m->chunk = chunk;
    m->buffer_id = sg.next_buffer_id++;
    chunk->mapping_refs++;
    DL_PREPEND(res->mappings, m);
    sg_regions_set(&m->region, ptr, size);
    if (chunk->device != SG_ON_HOST)
        sg.devices[chunk->device].maps++;
    return sg_leave(CUDA_SUCCESS);
}

/* Is [ptr, ptr+size) made of whole mappings, without holes? */
static bool whole_mappings(uint64_t ptr, uint64_t size)
{
    if (!granular(ptr) || !granular(size) || size > (UINT64_C(1) << SG_VA_BITS) || ptr >> SG_VA_BITS)
        return false;
    uint64_t va = ptr, end = ptr + size;
    while (va < end) {
        struct sg_mapping *m = sg_mapping_at(va);
        if (!m || m->region.va != va)
            return false;
        va += m->region.bytes;
    }
    return va == end;
}

static void set_host_access(struct sg_mapping *m, uint8_t flags)
{
    if (m->host_access == flags)
        return;
    m->host_access = flags;
    if (flags)
        atomic_store(&sg_check.host_maps, true);
    int protection = !flags                                        ? PROT_NONE
                     : flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? PROT_READ | PROT_WRITE
                                                                   : PROT_READ;
    if (!sg_chunk_show_host(m->chunk, m->region.va, m->region.bytes >> SG_PAGE_SHIFT, protection))
        sg_log(SG_LOG_ERROR, "cannot change the host's view of 0x%" PRIx64, m->region.va);
}

static unsigned accessors(const struct sg_mapping *m)
{
    unsigned mask = 0;
    for (int d = 0; d < sg.device_count; d++)
        if (m->access[d])
            mask |= 1u << d;
    return mask;
}

/* Counts the mappings that unfinished work may still use; one line for the call. */
static void report_unmap(uint64_t ptr, uint64_t size)
{
    unsigned hits = 0;
    char text[256], first[256] = "";
    uint64_t first_va = 0;
    for (uint64_t va = ptr; va < ptr + size;) {
        struct sg_mapping *m = sg_mapping_at(va);
        if (sg_in_flight(m->region.va, m->region.bytes, accessors(m), text, sizeof text) ||
            sg_touched_in_flight(m->region.va, m->region.bytes, accessors(m), text, sizeof text)) {
            int owner = m->chunk->device == SG_ON_HOST ? (int)__builtin_ctz(accessors(m)) : m->chunk->device;
            sg.devices[owner].unmapped_in_flight++;
            if (!hits++) {
                memcpy(first, text, sizeof first);
                first_va = m->region.va;
            }
        }
        va += m->region.bytes;
    }
    if (hits)
        sg_log(SG_LOG_WARN,
               "unmapped in flight: cuMemUnmap(0x%" PRIx64 ", %" PRIu64 "): %u mapping(s), the first at 0x%" PRIx64
               ", %s",
               ptr, size, hits, first_va, first);
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t size)
{
    CUresult r = sg_enter("cuMemUnmap");
    if (r)
        return r;
    if (!whole_mappings(ptr, size))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    report_unmap(ptr, size);
    sg_time_units(SG_UNIT_CHUNK_UNMAP, (double)(size >> SG_PAGE_SHIFT));
    for (uint64_t va = ptr; va < ptr + size;) {
        struct sg_mapping *m = sg_mapping_at(va);
        uint64_t bytes = m->region.bytes;
        for (int d = 0; d < sg.device_count; d++)
            if (m->access[d])
                sg_pagetable_set(d, va, NULL, bytes >> SG_PAGE_SHIFT, 0);
        set_host_access(m, 0);
        sg_note_unmapped(va, bytes);
        sg_regions_set(NULL, va, bytes);
        DL_DELETE(m->reservation->mappings, m);
        m->chunk->mapping_refs--;
        if (m->chunk->device != SG_ON_HOST)
            sg.devices[m->chunk->device].unmaps++;
        drop_chunk(m->chunk);
        free(m);
        va += bytes;
    }
    return sg_leave(CUDA_SUCCESS);
}

static bool is_host_location(const CUmemLocation *location)
{
    return location->type == CU_MEM_LOCATION_TYPE_HOST ||
           (location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA && location->id >= 0 && location->id < sg.numa_nodes);
}

static CUresult check_access(uint64_t ptr, uint64_t size, const CUmemAccessDesc *desc)
{
    if (desc->flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && desc->flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
        desc->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
        return CUDA_ERROR_INVALID_VALUE;
    bool host = is_host_location(&desc->location);
    if (!host && desc->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    if (!host && (desc->location.id < 0 || desc->location.id >= sg.device_count))
        return CUDA_ERROR_INVALID_DEVICE;
    for (uint64_t va = ptr; va < ptr + size;) {
        struct sg_mapping *m = sg_mapping_at(va);
        if (host && m->chunk->device != SG_ON_HOST)
            return CUDA_ERROR_NOT_SUPPORTED; /* the CPU cannot reach VRAM */
        if (!host && m->chunk->device != SG_ON_HOST && m->chunk->device != desc->location.id &&
            !sg_can_reach(desc->location.id, m->chunk->device))
            return CUDA_ERROR_INVALID_DEVICE;
        va += m->region.bytes;
    }
    return CUDA_SUCCESS;
}

static void set_access(struct sg_mapping *m, const CUmemAccessDesc *desc)
{
    if (desc->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
        set_host_access(m, (uint8_t)desc->flags);
        return;
    }
    uint64_t rights = desc->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? SG_PTE_READ | SG_PTE_WRITE
                      : desc->flags == CU_MEM_ACCESS_FLAGS_PROT_READ    ? SG_PTE_READ
                                                                        : 0;
    m->access[desc->location.id] = (uint8_t)desc->flags;
    sg_pagetable_set(desc->location.id, m->region.va, m->chunk, m->region.bytes >> SG_PAGE_SHIFT, rights);
}

CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count)
{
    CUresult r = sg_enter("cuMemSetAccess");
    if (r)
        return r;
    if (!desc || !count || !whole_mappings(ptr, size))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; i < count; i++) {
        r = check_access(ptr, size, &desc[i]);
        if (r)
            return sg_leave(r);
    }
    sg_time_units(SG_UNIT_CHUNK_ACCESS, (double)(size >> SG_PAGE_SHIFT) * (double)count);
    for (size_t i = 0; i < count; i++) {
        if (desc[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE)
            sg.devices[desc[i].location.id].set_accesses++;
        for (uint64_t va = ptr; va < ptr + size;) {
            struct sg_mapping *m = sg_mapping_at(va);
            set_access(m, &desc[i]);
            va += m->region.bytes;
        }
    }
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr)
{
    CUresult r = sg_enter("cuMemGetAccess");
    if (r)
        return r;
    if (!flags || !location)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    struct sg_mapping *m = sg_mapping_at(ptr);
    bool host = is_host_location(location);
    if (!host && location->type != CU_MEM_LOCATION_TYPE_DEVICE)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (!host && (location->id < 0 || location->id >= sg.device_count))
        return sg_leave(CUDA_ERROR_INVALID_DEVICE);
    if (!m)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *flags = host ? m->host_access : m->access[location->id];
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                       CUmemAllocationGranularity_flags option)
{
    CUresult r = sg_enter("cuMemGetAllocationGranularity");
    if (r)
        return r;
    int device;
    r = sg_chunk_check(prop, &device);
    if (!r && (!granularity ||
               (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM && option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)))
        r = CUDA_ERROR_INVALID_VALUE;
    if (!r)
        *granularity = SG_PAGE_BYTES;
    return sg_leave(r);
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle handle)
{
    CUresult r = sg_enter("cuMemGetAllocationPropertiesFromHandle");
    if (r)
        return r;
    struct sg_chunk *chunk = find_chunk(handle);
    if (!chunk || !prop)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *prop = chunk->prop;
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr)
{
    CUresult r = sg_enter("cuMemRetainAllocationHandle");
    if (r)
        return r;
    struct sg_mapping *m = sg_mapping_at((uint64_t)(uintptr_t)addr);
    if (!m || !handle) /* cuMemAlloc memory has no such handle */
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    m->chunk->handle_refs++;
    *handle = m->chunk->object.id;
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags)
{
    CUresult r = sg_enter("cuMemExportToShareableHandle");
    if (r)
        return r;
    struct sg_chunk *chunk = find_chunk(handle);
    if (!shareable || !chunk || flags)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return sg_leave(CUDA_ERROR_NOT_SUPPORTED);
    if (!(chunk->prop.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR))
        return sg_leave(CUDA_ERROR_INVALID_VALUE); /* fixed at creation */
    int fd = dup(chunk->fd);
    if (fd < 0)
        return sg_leave(CUDA_ERROR_OPERATING_SYSTEM);
    *(int *)shareable = fd;
    return sg_leave(CUDA_SUCCESS);
}

/* A chunk that another process made: its memfd's name tells where it lives. It is charged here as well: each process keeps
 * an account of its own. */
static CUresult import_foreign(int fd, const struct stat *st, struct sg_chunk **chunk_out)
{
    int device;
    if (!sg_file_is_ours(fd, "simgpu-chunk", &device) || !granular((uint64_t)st->st_size))
        return CUDA_ERROR_INVALID_VALUE;
    struct sg_chunk *chunk;
    CUresult r = sg_chunk_create(device, (size_t)st->st_size >> SG_PAGE_SHIFT, true, &chunk);
    if (r)
        return r;
    int own = dup(fd);
    if (own < 0 ||
        mmap(chunk->own, (size_t)st->st_size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, own, 0) == MAP_FAILED) {
        if (own >= 0)
            close(own);
        sg_chunk_destroy(chunk);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    close(chunk->fd);
    chunk->fd = own;
    chunk->inode = st->st_ino;
    chunk->prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    chunk->prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    chunk->prop.location.type = device == SG_ON_HOST ? CU_MEM_LOCATION_TYPE_HOST_NUMA : CU_MEM_LOCATION_TYPE_DEVICE;
    chunk->prop.location.id = device == SG_ON_HOST ? 0 : device;
    sg_object_add(&chunk->object, SG_CHUNK);
    *chunk_out = chunk;
    return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *os_handle,
                                        CUmemAllocationHandleType type)
{
    CUresult r = sg_enter("cuMemImportFromShareableHandle");
    if (r)
        return r;
    int fd = (int)(intptr_t)os_handle;
    struct stat st;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return sg_leave(CUDA_ERROR_NOT_SUPPORTED);
    if (!handle || fstat(fd, &st))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    struct sg_chunk *chunk, *found = NULL;
    DL_FOREACH(sg.shareable, chunk)
    if (chunk->inode == st.st_ino)
        found = chunk;
    if (!found)
        r = import_foreign(fd, &st, &found);
    if (r)
        return sg_leave(r);
    found->handle_refs++;
    *handle = found->object.id;
    return sg_leave(CUDA_SUCCESS);
}
