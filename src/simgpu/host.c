/*
 * Pinned host memory. Under unified addressing it is visible to every device at its own address; pages that a range covers
 * only in part go through the page table's slow path, so that accesses beyond the range are noticed.
 */
#include "simgpu/check.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void set_pages(const struct sg_host *h, bool present)
{
    uint64_t end = h->va + h->bytes;
    bool writable = !(h->flags & CU_MEMHOSTREGISTER_READ_ONLY) || h->map_bytes;
    for (uint64_t page = h->va & ~(SG_PAGE_BYTES - 1); page < end; page += SG_PAGE_BYTES) {
        uint64_t entry = 0;
        if (present && page >= h->va && page + SG_PAGE_BYTES <= end)
            entry = sg_host_place(h, page) | SG_PTE_READ | (writable ? SG_PTE_WRITE : 0) |
                    ((uint64_t)SG_TIER_HOST << SG_PTE_TIER_SHIFT) | (sg_check.accesses ? SG_PTE_SLOW : 0);
        else if (sg_ranges_overlap(&sg.hosts, page, SG_PAGE_BYTES))
            entry = SG_PTE_SLOW;
        for (int d = 0; d < sg.device_count; d++)
            atomic_store_explicit(&sg.devices[d].pagetable.pte[page >> SG_PAGE_SHIFT], entry, memory_order_release);
    }
}

static CUresult host_add(struct sg_context *context, uint64_t va, uint64_t bytes, uint64_t map_bytes, unsigned flags)
{
    struct sg_host *h = calloc(1, sizeof *h);
    if (!h)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *h = (struct sg_host){va, bytes, map_bytes, 0, flags, context, sg.next_buffer_id++};
    if (map_bytes && sg_check.host)
        h->alias = sg_guard_map(va, map_bytes);
    pthread_rwlock_wrlock(&sg.host_lock);
    bool ok = sg_ranges_add(&sg.hosts, va, bytes, h);
    pthread_rwlock_unlock(&sg.host_lock);
    if (!ok) {
        if (h->alias)
            sg_guard_unmap(h);
        free(h);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    set_pages(h, true);
    return CUDA_SUCCESS;
}

static uint64_t pages_of(uint64_t va, uint64_t bytes)
{ /* what pinning costs, in bytes */
    return ((va + bytes + 4095) & ~UINT64_C(4095)) - (va & ~UINT64_C(4095));
}

static CUresult charge(uint64_t bytes)
{
    if (bytes > sg.config.host_bytes || sg.host_used_bytes > sg.config.host_bytes - bytes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    sg.host_used_bytes += bytes;
    if (sg.host_used_bytes > sg.host_peak_bytes)
        sg.host_peak_bytes = sg.host_used_bytes;
    return CUDA_SUCCESS;
}

void sg_host_destroy(struct sg_host *h)
{
    pthread_rwlock_wrlock(&sg.host_lock);
    sg_ranges_remove(&sg.hosts, h->va);
    pthread_rwlock_unlock(&sg.host_lock);
    set_pages(h, false);
    sg_note_freed(h->va, h->bytes);
    sg.host_used_bytes -= pages_of(h->va, h->bytes);
    if (h->alias)
        sg_guard_unmap(h);
    if (h->map_bytes)
        munmap((void *)(uintptr_t)h->va, h->map_bytes);
    free(h);
}

static CUresult host_alloc(struct sg_context *context, void **pp, uint64_t bytes, unsigned flags)
{
    if (bytes > UINT64_C(1) << 46)
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint64_t rounded = pages_of(0, bytes);
    CUresult r = charge(rounded);
    if (r)
        return r;
    void *p;
    if (rounded >= SG_PAGE_BYTES) {
        uint64_t va = sg_va_reserve(rounded, SG_PAGE_BYTES, 0);
        p = va && !mprotect((void *)(uintptr_t)va, rounded, PROT_READ | PROT_WRITE) ? (void *)(uintptr_t)va : NULL;
        if (va && !p)
            sg_va_release(va, rounded);
    } else {
        p = mmap(NULL, rounded, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        p = p == MAP_FAILED ? NULL : p;
    }
    r = p ? host_add(context, (uint64_t)(uintptr_t)p, bytes, rounded, flags) : CUDA_ERROR_OUT_OF_MEMORY;
    if (r) {
        if (p)
            munmap(p, rounded);
        sg.host_used_bytes -= rounded;
        return r;
    }
    sg_time_units(SG_UNIT_PINNED_MIB, (double)rounded / SG_MIB);
    *pp = p;
    return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void **pp, size_t bytesize, unsigned int flags)
{
    struct sg_context *context;
    CUresult r = sg_enter_context("cuMemHostAlloc", &context);
    if (r)
        return r;
    unsigned known = CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
    if (!pp || !bytesize || (flags & ~known))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    return sg_leave(host_alloc(context, pp, bytesize, flags | CU_MEMHOSTALLOC_DEVICEMAP));
}

CUresult cuMemAllocHost_v2(void **pp, size_t bytesize)
{
    struct sg_context *context;
    CUresult r = sg_enter_context("cuMemAllocHost", &context);
    if (r)
        return r;
    if (!pp || !bytesize)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    return sg_leave(host_alloc(context, pp, bytesize, CU_MEMHOSTALLOC_DEVICEMAP));
}

/* Both ends of a range: waits or not, as a driver may; counts what work in flight still uses. */
static CUresult host_end(void *p, bool allocated, const char *what, CUresult unknown)
{
    uint64_t va = (uint64_t)(uintptr_t)p;
    struct sg_host *h = sg_host_at(va);
    if (!h || h->va != va || (h->map_bytes != 0) != allocated)
        return unknown;
    if (sg_call_random() & 1) {
        for (int d = 0; d < sg.device_count; d++)
            sg_wait_device(d);
        if (sg_host_at(va) != h)
            return unknown;
    }
    char text[256];
    if (sg_in_flight(h->va, h->bytes, ~0u, text, sizeof text)) {
        sg.devices[h->context ? h->context->device : 0].freed_in_flight++;
        sg_log(SG_LOG_WARN, "freed in flight: %s(0x%" PRIx64 "), %" PRIu64 " bytes, %s", what, h->va, h->bytes, text);
    }
    sg_host_destroy(h);
    return CUDA_SUCCESS;
}

CUresult cuMemFreeHost(void *p)
{
    struct sg_context *context;
    CUresult r = sg_enter_context("cuMemFreeHost", &context);
    if (r)
        return r;
    return sg_leave(host_end(p, true, "cuMemFreeHost", CUDA_ERROR_INVALID_VALUE));
}

static bool is_mapped(uint64_t va, uint64_t bytes)
{
    uint64_t start = va & ~UINT64_C(4095);
    return !msync((void *)(uintptr_t)start, pages_of(va, bytes), MS_ASYNC) || errno != ENOMEM;
}

static CUresult host_register(const char *function, void *p, uint64_t bytes, unsigned flags)
{
    struct sg_context *context;
    CUresult r = sg_enter_context(function, &context);
    if (r)
        return r;
    uint64_t va = (uint64_t)(uintptr_t)p;
    unsigned known = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_READ_ONLY;
    if (flags & CU_MEMHOSTREGISTER_IOMEMORY)
        return sg_leave(CUDA_ERROR_NOT_SUPPORTED);
    if (!p || !bytes || (flags & ~known) || va >> SG_VA_BITS || bytes > (UINT64_C(1) << SG_VA_BITS) - va)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (sg_ranges_overlap(&sg.hosts, va, bytes))
        return sg_leave(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    if (sg_region_at(va) || sg_reservation_at(va) || !is_mapped(va, bytes))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    r = charge(pages_of(va, bytes));
    if (r)
        return sg_leave(r);
    r = host_add(context, va, bytes, 0, flags);
    if (r)
        sg.host_used_bytes -= pages_of(va, bytes);
    else
        sg_time_units(SG_UNIT_PINNED_MIB, (double)pages_of(va, bytes) / SG_MIB);
    return sg_leave(r);
}

CUresult cuMemHostRegister_v2(void *p, size_t bytesize, unsigned int flags)
{
    return host_register("cuMemHostRegister", p, bytesize, flags);
}

CUresult cuMemHostRegister(void *p, size_t bytesize, unsigned int flags)
{
    return host_register("cuMemHostRegister", p, bytesize, flags);
}

CUresult cuMemHostUnregister(void *p)
{
    struct sg_context *context;
    CUresult r = sg_enter_context("cuMemHostUnregister", &context);
    if (r)
        return r;
    if (!p)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    return sg_leave(host_end(p, false, "cuMemHostUnregister", CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED));
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *pdptr, void *p, unsigned int flags)
{
    struct sg_context *context;
    CUresult r = sg_enter_context("cuMemHostGetDevicePointer", &context);
    if (r)
        return r;
    if (!pdptr || flags || !sg_host_at((uint64_t)(uintptr_t)p))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *pdptr = (uint64_t)(uintptr_t)p;
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuMemHostGetFlags(unsigned int *flags, void *p)
{
    struct sg_context *context;
    CUresult r = sg_enter_context("cuMemHostGetFlags", &context);
    if (r)
        return r;
    struct sg_host *h = sg_host_at((uint64_t)(uintptr_t)p);
    if (!flags || !h || !h->map_bytes)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *flags = h->flags;
    return sg_leave(CUDA_SUCCESS);
}
