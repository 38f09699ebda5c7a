#include "residency/vmm_internal.h"

#include "residency/alloc.h"
#include "residency/context.h"
#include "residency/gpu.h"
#include "residency/hidden.h"
#include "residency/move.h"
#include "space/ledger.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* No driver's: those are addresses of its objects, or small numbers. */
#define FIRST_HANDLE UINT64_C(0x6872000000000000)
#define PEERS_NUMBER (UINT64_C(1) << 32) /* of the first reservation, among the numbers of pools (peers.h) */

struct hr_mutex hr_vmm_lock = HR_MUTEX_INIT(HR_RANK_CONTEXT + 5, "the job's mappings");
static struct hr_vmm_handle *handles;           /* guarded by hr_vmm_lock */
static struct hr_vmm_reservation *reservations; /* guarded by hr_vmm_lock */
struct hr_vmm_mapping *hr_vmm_outside;          /* guarded by hr_vmm_lock */
uint64_t hr_vmm_next_number;                    /* guarded by hr_vmm_lock: of handles, mappings, reservations */
static _Atomic(bool) any;

bool hr_vmm_any(void)
{
    return atomic_load_explicit(&any, memory_order_relaxed);
}

struct hr_vmm_handle *hr_vmm_handle_locked(CUmemGenericAllocationHandle value) HR_REQUIRES(hr_vmm_lock)
{
    struct hr_vmm_handle *h = NULL;
    HASH_FIND(hh, handles, &value, sizeof value, h);
    return h && h->refs > 0 ? h : NULL;
}

struct hr_vmm_reservation *hr_vmm_reservation_locked(CUdeviceptr address) HR_REQUIRES(hr_vmm_lock)
{
    struct hr_vmm_reservation *res = reservations;
    while (res && address - res->va >= hr_vmm_bytes_of(res->chunks))
        res = res->next;
    return res;
}

struct hr_vmm_mapping *hr_vmm_mapping_locked(CUdeviceptr address) HR_REQUIRES(hr_vmm_lock)
{
    struct hr_vmm_reservation *res = hr_vmm_reservation_locked(address);
    if (res)
        return res->at[(address - res->va) >> hr_space.chunk_shift];
    struct hr_vmm_mapping *m = hr_vmm_outside;
    while (m && address - m->va >= hr_vmm_bytes_of(m->chunks))
        m = m->next_outside;
    return m;
}

bool hr_vmm_is_handle(CUmemGenericAllocationHandle handle)
{
    if (handle < FIRST_HANDLE || !hr_vmm_any())
        return false;
    hr_mutex_lock(&hr_vmm_lock);
    bool ours = hr_vmm_handle_locked(handle) != NULL;
    hr_mutex_unlock(&hr_vmm_lock);
    return ours;
}

/* --- reservations -------------------------------------------------------------------------------------------------- */

bool hr_vmm_reserve(struct hr_thread *t, unsigned gpu, size_t bytes, size_t alignment, CUdeviceptr *address_out)
{
    uint32_t chunks = (uint32_t)(bytes >> hr_space.chunk_shift);
    if (!hr_vmm_is_whole_chunks(bytes) || alignment > hr_chunk_bytes() || bytes > hr_space.bytes)
        return false;
    struct hr_vmm_reservation *res = calloc(1, sizeof *res);
    size_t table_bytes = chunks * sizeof(struct hr_vmm_mapping *);
    void *at = mmap(NULL, table_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    struct hr_extent *e = res && at != MAP_FAILED ? hr_space_reserve(t, gpu, chunks) : NULL;
    if (!e) {
        if (at != MAP_FAILED)
            munmap(at, table_bytes);
        free(res);
        return false;
    }
    res->e = e;
    res->va = e->base;
    res->first_chunk = e->first_chunk;
    res->chunks = chunks;
    res->gpu = gpu;
    res->at = at;
    hr_mutex_lock(&hr_vmm_lock);
    res->number = PEERS_NUMBER + hr_vmm_next_number++;
    res->next = reservations;
    reservations = res;
    hr_mutex_unlock(&hr_vmm_lock);
    atomic_store(&any, true);
    *address_out = res->va;
    return true;
}

CUresult hr_vmm_unreserve(CUdeviceptr address, size_t bytes)
{
    hr_mutex_lock(&hr_vmm_lock);
    struct hr_vmm_reservation *res = hr_vmm_reservation_locked(address), **link = &reservations;
    bool right = res && res->va == address && hr_vmm_bytes_of(res->chunks) == bytes && res->count == 0;
    if (right) {
        while (*link != res)
            link = &(*link)->next;
        *link = res->next;
        hr_hidden_forget(res->e);
        hr_space_unreserve(res->e, res->chunks, res->top);
        munmap((void *)res->at, res->chunks * sizeof *res->at);
        free(res);
    }
    hr_mutex_unlock(&hr_vmm_lock);
    return right ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* --- handles ------------------------------------------------------------------------------------------------------- */

/* Where kernels cannot use host memory a launch needs all that it names in VRAM: of a segment that may be anything. */
static bool host_serves_kernels(unsigned gpu)
{
    struct hr_context *context = hr_context_of_gpu(gpu);
    bool pushed, serves = false;
    if (context && hr_context_enter(context, &pushed) == CUDA_SUCCESS) {
        serves = hr_tier_host_mappable(gpu);
        hr_context_leave(pushed);
    }
    return serves;
}

bool hr_vmm_serves(const CUmemAllocationProp *prop, size_t bytes)
{
    int gpu = prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? hr_gpu_of_device(prop->location.id) : -1;
    return gpu >= 0 && prop->type == CU_MEM_ALLOCATION_TYPE_PINNED &&
           (prop->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == 0 &&
           prop->allocFlags.compressionType == CU_MEM_ALLOCATION_COMP_NONE && prop->allocFlags.usage == 0 &&
           hr_vmm_is_whole_chunks(bytes) && host_serves_kernels((unsigned)gpu);
}

CUresult hr_vmm_create(struct hr_thread *t, const CUmemAllocationProp *prop, size_t bytes,
                       CUmemGenericAllocationHandle *handle_out)
{
    unsigned gpu = (unsigned)hr_gpu_of_device(prop->location.id);
    if (bytes > hr_gpu_total_bytes(gpu))
        return CUDA_ERROR_OUT_OF_MEMORY;
    uint32_t chunks = (uint32_t)(bytes >> hr_space.chunk_shift);
    struct hr_vmm_handle *h = calloc(1, sizeof *h + chunks * sizeof(struct hr_phys *));
    CUresult r = h ? hr_alloc_charge(t, gpu, bytes) : CUDA_ERROR_OUT_OF_MEMORY;
    if (r != CUDA_SUCCESS) {
        free(h);
        return r;
    }
    h->prop = *prop;
    h->gpu = gpu;
    h->chunks = chunks;
    h->refs = 1;
    atomic_store(&any, true);
    hr_mutex_lock(&hr_vmm_lock);
    h->value = FIRST_HANDLE + hr_vmm_next_number++;
    HASH_ADD(hh, handles, value, sizeof h->value, h);
    hr_mutex_unlock(&hr_vmm_lock);
    *handle_out = h->value;
    return CUDA_SUCCESS;
}

void hr_vmm_charge_driver(const struct hr_vmm_handle *h, bool charge)
{
    size_t base = (size_t)1 << 62, bytes = hr_vmm_bytes_of(h->chunks); /* only the difference counts */
    hr_gpu_charge_overhead(h->gpu, charge ? base + bytes : base, charge ? base : base + bytes);
}

void hr_vmm_drop_locked(struct hr_thread *t, struct hr_vmm_handle *h) HR_REQUIRES(hr_vmm_lock)
{
    if (h->refs > 0 || h->mappings)
        return;
    HASH_DEL(handles, h);
    hr_mutex_lock(&hr_move_lock);
    for (uint32_t i = 0; i < h->chunks; i++)
        if (h->phys[i])
            hr_tier_of(h->phys[i])->give(h->phys[i]);
    hr_mutex_unlock(&hr_move_lock);
    if (h->real) {
        hr_drv.cuMemRelease(h->real);
        hr_vmm_charge_driver(h, false);
    } else {
        hr_ledger_uncharge(t, h->gpu, hr_vmm_bytes_of(h->chunks));
    }
    free(h);
}

CUresult hr_vmm_release(struct hr_thread *t, CUmemGenericAllocationHandle handle)
{
    hr_mutex_lock(&hr_vmm_lock);
    struct hr_vmm_handle *h = hr_vmm_handle_locked(handle);
    if (h) {
        h->refs--;
        hr_vmm_drop_locked(t, h);
    }
    hr_mutex_unlock(&hr_vmm_lock);
    return h ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult hr_vmm_props(CUmemGenericAllocationHandle handle, CUmemAllocationProp *prop_out)
{
    hr_mutex_lock(&hr_vmm_lock);
    struct hr_vmm_handle *h = hr_vmm_handle_locked(handle);
    if (h)
        *prop_out = h->prop;
    hr_mutex_unlock(&hr_vmm_lock);
    return h ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult hr_vmm_retain(CUdeviceptr address, CUmemGenericAllocationHandle *handle_out, size_t *offset_out,
                       bool *real_out)
{
    hr_mutex_lock(&hr_vmm_lock);
    struct hr_vmm_mapping *m = hr_vmm_mapping_locked(address);
    *real_out = m ? !m->handle : !hr_space_owns(address);
    if (m && m->handle) {
        m->handle->refs++;
        *handle_out = m->handle->value;
        *offset_out = address - m->va;
    }
    hr_mutex_unlock(&hr_vmm_lock);
    return m && m->handle ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* --- looking ------------------------------------------------------------------------------------------------------- */

CUresult hr_vmm_get_access(CUdeviceptr address, const CUmemLocation *location, unsigned long long *flags_out,
                           bool *real_out)
{
    int gpu = location->type == CU_MEM_LOCATION_TYPE_DEVICE ? hr_gpu_of_device(location->id) : -1;
    bool host = location->type == CU_MEM_LOCATION_TYPE_HOST || location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
    hr_mutex_lock(&hr_vmm_lock);
    const struct hr_vmm_mapping *m = hr_vmm_mapping_locked(address);
    bool known = m && m->handle && (host || gpu >= 0);
    *real_out = m ? !known : !hr_space_owns(address);
    if (known)
        *flags_out = host ? CU_MEM_ACCESS_FLAGS_PROT_NONE : m->access[gpu]; /* the CPU cannot reach VRAM */
    hr_mutex_unlock(&hr_vmm_lock);
    if (!known && location->type == CU_MEM_LOCATION_TYPE_DEVICE && gpu < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

bool hr_vmm_find(CUdeviceptr address, struct hr_vmm_place *place_out)
{
    hr_mutex_lock(&hr_vmm_lock);
    const struct hr_vmm_reservation *res = hr_vmm_reservation_locked(address);
    const struct hr_vmm_mapping *m = res ? hr_vmm_mapping_locked(address) : NULL;
    if (res)
        *place_out = (struct hr_vmm_place){.reservation = res->va, .reservation_bytes = hr_vmm_bytes_of(res->chunks)};
    if (m) {
        place_out->mapping = m->va;
        place_out->mapping_bytes = hr_vmm_bytes_of(m->chunks);
        place_out->real = !m->handle;
        place_out->id = m->id << 28 | UINT64_C(1) << 63;
        memcpy(place_out->access, m->access, sizeof m->access);
        if (m->handle)
            place_out->prop = m->handle->prop;
    }
    hr_mutex_unlock(&hr_vmm_lock);
    return res != NULL;
}
