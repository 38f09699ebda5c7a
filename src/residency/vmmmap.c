#include "residency/vmm_internal.h"

#include "base/log.h"
#include "residency/access.h"
#include "residency/gpu.h"
#include "residency/move.h"
#include "residency/peers.h"

#include <stdlib.h>
#include <string.h>

/* Mapping, unmapping, access. */

/* --- backing of mappings ------------------------------------------------------------------------------------------- */

void hr_vmm_reach_locked(struct hr_vmm_reservation *res, const struct hr_vmm_mapping *m, bool usable)
    HR_REQUIRES(hr_vmm_lock)
{
    uint32_t end = hr_vmm_chunk_of(m) + m->chunks - res->first_chunk, reach = res->e->chunk_count;
    if (usable) {
        if (end <= reach)
            return;
        reach = end;
        res->top = end > res->top ? end : res->top;
    } else {
        if (end != reach)
            return;
        while (reach > 0 && !hr_space_is_of(&hr_space.chunks[res->first_chunk + reach - 1], res->e))
            reach--;
    }
    hr_space_extend(res->e, reach);
}

static CUresult make_usable_locked(struct hr_vmm_mapping *m) HR_REQUIRES(hr_vmm_lock)
{
    hr_vmm_reach_locked(m->res, m, true);
    hr_mutex_lock(&hr_move_lock);
    CUresult r = hr_move_adopt_locked(m->res->e, hr_vmm_chunk_of(m), m->chunks, m->handle->phys);
    hr_mutex_unlock(&hr_move_lock);
    if (r == CUDA_SUCCESS)
        memset((void *)m->handle->phys, 0, m->chunks * sizeof(struct hr_phys *));
    m->usable = r == CUDA_SUCCESS;
    if (r != CUDA_SUCCESS)
        hr_vmm_reach_locked(m->res, m, false);
    return r;
}

/* Its bytes go back to the handle. */
static CUresult make_unusable_locked(struct hr_vmm_mapping *m, bool keep_mapped) HR_REQUIRES(hr_vmm_lock)
{
    if (!m->usable)
        return CUDA_SUCCESS;
    hr_mutex_lock(&hr_move_lock);
    CUresult r = hr_move_disown_locked(m->res->e, hr_vmm_chunk_of(m), m->chunks, keep_mapped, m->handle->phys);
    hr_mutex_unlock(&hr_move_lock);
    if (r == CUDA_SUCCESS) {
        m->usable = false;
        hr_vmm_reach_locked(m->res, m, false);
    }
    return r;
}

/* What another GPU may do with a movable mapping is granted for the whole window, as long as it may do so with any of the reservation. */
static CUresult set_peer_locked(struct hr_vmm_mapping *m, unsigned gpu, bool gets) HR_REQUIRES(hr_vmm_lock)
{
    struct hr_vmm_reservation *res = m->res;
    CUresult r = CUDA_SUCCESS;
    if ((m->grants >> gpu & 1) == gets || gpu == res->gpu)
        return CUDA_SUCCESS;
    if (gets && res->granted[gpu] == 0)
        r = hr_peers_pool_grant(res->number, gpu, res->gpu);
    if (r != CUDA_SUCCESS)
        return r;
    res->granted[gpu] += gets ? 1 : UINT32_MAX;
    m->grants ^= 1u << gpu;
    if (!gets && res->granted[gpu] == 0)
        hr_peers_pool_revoke(res->number, gpu);
    return CUDA_SUCCESS;
}

void hr_vmm_drop_grants_locked(struct hr_vmm_mapping *m) HR_REQUIRES(hr_vmm_lock)
{
    for (unsigned g = 0; g < hr_gpu_count() && m->grants; g++)
        if (set_peer_locked(m, g, false) != CUDA_SUCCESS)
            hr_log(HR_LOG_WARN, "GPU %u keeps access to some memory of GPU %u", g, m->res->gpu);
}

void hr_vmm_note_driver(const struct hr_vmm_mapping *m, bool mapped)
{
    for (uint32_t i = 0; m->res && i < m->chunks; i++)
        atomic_store(&hr_space.chunks[hr_vmm_chunk_of(m) + i].mapped, mapped);
}

/* A pinned handle's chunks at this address, from `first` on. */
CUresult hr_vmm_map_pinned_locked(struct hr_vmm_mapping *m, bool mapped_already) HR_REQUIRES(hr_vmm_lock)
{
    CUmemAccessDesc desc[HR_MAX_GPUS];
    size_t count = 0;
    if (m->handle->real && !mapped_already) {
        CUresult r = hr_drv.cuMemMap(m->va, hr_vmm_bytes_of(m->chunks), 0, m->handle->real, 0);
        if (r != CUDA_SUCCESS)
            return r;
    }
    for (uint32_t i = 0; !m->handle->real && !mapped_already && i < m->chunks; i++) {
        CUresult r = hr_drv.cuMemMap(m->va + hr_vmm_bytes_of(i), hr_chunk_bytes(), 0, m->handle->phys[i]->handle, 0);
        if (r != CUDA_SUCCESS) {
            if (i > 0)
                hr_drv.cuMemUnmap(m->va, hr_vmm_bytes_of(i));
            return r;
        }
    }
    for (unsigned g = 0; g < hr_gpu_count(); g++)
        if (m->access[g])
            desc[count++] = (CUmemAccessDesc){.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = hr_gpu_device(g)},
                                              .flags = (CUmemAccess_flags)m->access[g]};
    CUresult r = count > 0 ? hr_drv.cuMemSetAccess(m->va, hr_vmm_bytes_of(m->chunks), desc, count) : CUDA_SUCCESS;
    if (r != CUDA_SUCCESS && !mapped_already)
        hr_drv.cuMemUnmap(m->va, hr_vmm_bytes_of(m->chunks));
    if (r == CUDA_SUCCESS)
        hr_vmm_note_driver(m, true);
    return r;
}

/* Backs all of a handle; how many chunks are still missing goes to *missing_out. Chunks that cannot be mapped are of no use. */
static void back_handle_locked(struct hr_vmm_handle *h, uint32_t *missing_out) HR_REQUIRES(hr_vmm_lock)
{
    *missing_out = 0;
    hr_mutex_lock(&hr_move_lock);
    for (uint32_t i = 0; i < h->chunks; i++) {
        if (!h->phys[i] && hr_tier_vram.take(h->gpu, &h->phys[i]) != CUDA_SUCCESS)
            h->phys[i] = NULL;
        if (!h->phys[i] && hr_tier_host_mappable(h->gpu) && hr_tier_host.take(h->gpu, &h->phys[i]) != CUDA_SUCCESS)
            h->phys[i] = NULL;
        *missing_out += !h->phys[i];
    }
    hr_mutex_unlock(&hr_move_lock);
}

/*
 * From now on the driver maps all of the handle, and nobody moves it. Its one mapping so far keeps what is mapped of it at every
 * moment; what had no backing yet is mapped now. OUT_OF_MEMORY with *missing_out > 0: some room might help.
 */
static CUresult pin_locked(struct hr_vmm_handle *h, uint32_t *missing_out) HR_REQUIRES(hr_vmm_lock)
{
    struct hr_vmm_mapping *m = h->mappings;
    CUresult r = CUDA_SUCCESS;
    *missing_out = 0;
    if (h->pinned)
        return CUDA_SUCCESS;
    bool was_usable = m && m->usable;
    if (was_usable)
        r = make_unusable_locked(m, true);
    if (r != CUDA_SUCCESS)
        return r;
    back_handle_locked(h, missing_out);
    for (uint32_t i = 0; i < h->chunks; i++)
        if (h->phys[i] && !h->phys[i]->handle)
            r = CUDA_ERROR_NOT_SUPPORTED; /* moved out to where it cannot be mapped */
    if (r == CUDA_SUCCESS && *missing_out > 0)
        r = CUDA_ERROR_OUT_OF_MEMORY;
    for (uint32_t i = 0; was_usable && r == CUDA_SUCCESS && i < m->chunks; i++) {
        struct hr_chunk *c = &hr_space.chunks[hr_vmm_chunk_of(m) + i];
        if (!atomic_load(&c->mapped))
            r = hr_drv.cuMemMap(hr_chunk_address(c), hr_chunk_bytes(), 0, h->phys[i]->handle, 0);
        if (r == CUDA_SUCCESS)
            atomic_store(&c->mapped, 1);
    }
    if (r == CUDA_SUCCESS && m)
        r = hr_vmm_map_pinned_locked(m, was_usable);
    h->pinned = r == CUDA_SUCCESS;
    if (h->pinned && m)
        hr_vmm_drop_grants_locked(m); /* each mapping has its own from now on */
    if (r == CUDA_SUCCESS || !was_usable)
        return r;
    /* as before: what the driver still has mapped there is unmapped and goes back to the extent */
    for (uint32_t i = 0; i < m->chunks; i++) {
        struct hr_chunk *c = &hr_space.chunks[hr_vmm_chunk_of(m) + i];
        if (atomic_exchange(&c->mapped, 0))
            hr_drv.cuMemUnmap(hr_chunk_address(c), hr_chunk_bytes());
    }
    CUresult back = make_usable_locked(m);
    return back == CUDA_SUCCESS ? r : back;
}

/* --- mapping ------------------------------------------------------------------------------------------------------- */

static bool is_free(const struct hr_vmm_reservation *res, CUdeviceptr address, uint32_t chunks) HR_REQUIRES(hr_vmm_lock)
{
    size_t first = (address - res->va) >> hr_space.chunk_shift;
    for (uint32_t i = 0; i < chunks; i++)
        if (res->at[first + i])
            return false;
    return true;
}

static void add_locked(struct hr_vmm_mapping *m) HR_REQUIRES(hr_vmm_lock)
{
    if (m->handle) {
        m->next_of_handle = m->handle->mappings;
        m->handle->mappings = m;
    }
    if (!m->res) {
        m->next_outside = hr_vmm_outside;
        hr_vmm_outside = m;
        return;
    }
    m->res->count++;
    for (uint32_t i = 0; i < m->chunks; i++)
        m->res->at[((m->va - m->res->va) >> hr_space.chunk_shift) + i] = m;
}

static CUresult map_locked(struct hr_vmm_mapping *m, CUmemGenericAllocationHandle handle, uint32_t *missing_out)
    HR_REQUIRES(hr_vmm_lock)
{
    struct hr_vmm_handle *h = m->handle;
    CUresult r = CUDA_SUCCESS;
    *missing_out = 0;
    if (!h) {
        r = hr_drv.cuMemMap(m->va, hr_vmm_bytes_of(m->chunks), 0, handle, 0);
        if (r == CUDA_SUCCESS)
            hr_vmm_note_driver(m, true);
        return r;
    }
    bool movable = m->res && m->res->gpu == h->gpu && !h->mappings && !h->pinned;
    if (!movable)
        r = pin_locked(h, missing_out);
    return r == CUDA_SUCCESS && !movable ? hr_vmm_map_pinned_locked(m, false) : r;
}

/* One attempt; *gpu_out: where chunks are missing, if any. */
static CUresult try_to_map(struct hr_vmm_mapping *m, CUmemGenericAllocationHandle handle, size_t bytes,
                           unsigned *gpu_out, uint32_t *missing_out)
{
    CUresult r;
    *missing_out = 0;
    hr_mutex_lock(&hr_vmm_lock);
    const struct hr_vmm_handle *h = m->handle = hr_vmm_handle_locked(handle);
    const struct hr_vmm_reservation *res = m->res = hr_vmm_reservation_locked(m->va);
    *gpu_out = h ? h->gpu : 0;
    m->chunks = (uint32_t)(bytes >> hr_space.chunk_shift);
    m->id = ++hr_vmm_next_number;
    if (!hr_vmm_is_whole_chunks(bytes) || !hr_vmm_is_whole_chunks(m->va) || (h && bytes > hr_vmm_bytes_of(h->chunks)) ||
        (res && bytes > hr_vmm_bytes_of(res->chunks) - (m->va - res->va)) || (!h && !res) ||
        (res && !is_free(res, m->va, m->chunks)))
        r = CUDA_ERROR_INVALID_VALUE;
    else
        r = map_locked(m, handle, missing_out);
    if (r == CUDA_SUCCESS)
        add_locked(m);
    hr_mutex_unlock(&hr_vmm_lock);
    return r;
}

CUresult hr_vmm_map(struct hr_thread *t, CUdeviceptr address, size_t bytes, CUmemGenericAllocationHandle handle)
{
    struct hr_vmm_mapping *m = calloc(1, sizeof *m);
    if (!m)
        return CUDA_ERROR_OUT_OF_MEMORY;
    m->va = address;
    uint32_t missing;
    unsigned gpu;
    CUresult r = try_to_map(m, handle, bytes, &gpu, &missing);
    for (unsigned i = 1; r == CUDA_ERROR_OUT_OF_MEMORY && missing > 0 && i < ROOM_ATTEMPTS; i++) {
        if (hr_access_release_vram(t, gpu, hr_vmm_bytes_of(missing)) == 0)
            break;
        r = try_to_map(m, handle, bytes, &gpu, &missing);
    }
    if (r != CUDA_SUCCESS)
        free(m);
    return r; /* NOLINT(clang-analyzer-unix.Malloc): else its reservation has it, or the list */
}

/* Whether the range is made of whole mappings, without holes. */
static bool is_whole(CUdeviceptr address, size_t bytes) HR_REQUIRES(hr_vmm_lock)
{
    if (!hr_vmm_is_whole_chunks(bytes) || address + bytes < address)
        return false;
    for (CUdeviceptr at = address; at < address + bytes;) {
        const struct hr_vmm_mapping *m = hr_vmm_mapping_locked(at);
        if (!m || m->va != at || hr_vmm_bytes_of(m->chunks) > address + bytes - at)
            return false;
        at += hr_vmm_bytes_of(m->chunks);
    }
    return true;
}

static CUresult unmap_locked(struct hr_vmm_mapping *m) HR_REQUIRES(hr_vmm_lock)
{
    bool by_driver = !m->handle || m->handle->pinned;
    CUresult r = by_driver ? hr_drv.cuMemUnmap(m->va, hr_vmm_bytes_of(m->chunks)) : make_unusable_locked(m, false);
    if (r != CUDA_SUCCESS)
        return r;
    if (by_driver)
        hr_vmm_note_driver(m, false);
    hr_vmm_drop_grants_locked(m);
    return r;
}

static void remove_locked(struct hr_thread *t, struct hr_vmm_mapping *m) HR_REQUIRES(hr_vmm_lock)
{
    struct hr_vmm_handle *h = m->handle;
    struct hr_vmm_mapping **link = h ? &h->mappings : NULL;
    while (link && *link != m)
        link = &(*link)->next_of_handle;
    if (link)
        *link = m->next_of_handle;
    if (m->res) {
        m->res->count--;
        for (uint32_t i = 0; i < m->chunks; i++)
            m->res->at[((m->va - m->res->va) >> hr_space.chunk_shift) + i] = NULL;
    } else {
        for (link = &hr_vmm_outside; *link != m; link = &(*link)->next_outside)
            ;
        *link = m->next_outside;
    }
    free(m);
    if (h)
        hr_vmm_drop_locked(t, h);
}

CUresult hr_vmm_unmap(struct hr_thread *t, CUdeviceptr address, size_t bytes)
{
    hr_mutex_lock(&hr_vmm_lock);
    CUresult r = is_whole(address, bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    bool outside_ours = r != CUDA_SUCCESS && !hr_space_owns(address) && !hr_vmm_mapping_locked(address);
    for (CUdeviceptr at = address; r == CUDA_SUCCESS && at < address + bytes;) {
        struct hr_vmm_mapping *m = hr_vmm_mapping_locked(at);
        at += hr_vmm_bytes_of(m->chunks);
        r = unmap_locked(m);
        if (r == CUDA_SUCCESS)
            remove_locked(t, m);
    }
    hr_mutex_unlock(&hr_vmm_lock);
    return outside_ours ? hr_drv.cuMemUnmap(address, bytes) : r;
}

/* --- access -------------------------------------------------------------------------------------------------------- */

/* What the driver would say of the description for device memory of this GPU. */
static CUresult check_access(unsigned owner, const CUmemAccessDesc *desc)
{
    if (desc->flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && desc->flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
        desc->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
        return CUDA_ERROR_INVALID_VALUE;
    if (desc->location.type == CU_MEM_LOCATION_TYPE_HOST || desc->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (desc->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    int user = hr_gpu_of_device(desc->location.id), can = 1;
    if (user < 0)
        return CUDA_ERROR_INVALID_DEVICE;
    if ((unsigned)user != owner &&
        hr_drv.cuDeviceCanAccessPeer(&can, desc->location.id, hr_gpu_device(owner)) != CUDA_SUCCESS)
        can = 0;
    return can ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

static CUresult set_access_locked(struct hr_vmm_mapping *m, const CUmemAccessDesc *desc, size_t count)
    HR_REQUIRES(hr_vmm_lock)
{
    bool movable = m->handle && !m->handle->pinned, usable = false;
    CUresult r = CUDA_SUCCESS;
    if (!movable)
        r = hr_drv.cuMemSetAccess(m->va, hr_vmm_bytes_of(m->chunks), desc, count);
    for (size_t i = 0; i < count && r == CUDA_SUCCESS && m->handle; i++) {
        unsigned gpu = (unsigned)hr_gpu_of_device(desc[i].location.id);
        if (movable)
            r = set_peer_locked(m, gpu, desc[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE);
        if (r == CUDA_SUCCESS)
            m->access[gpu] = (uint8_t)desc[i].flags;
    }
    for (unsigned g = 0; g < hr_gpu_count(); g++)
        usable |= m->access[g] != 0;
    if (movable && usable != m->usable) {
        CUresult s = usable ? make_usable_locked(m) : make_unusable_locked(m, false);
        r = r == CUDA_SUCCESS ? s : r;
    }
    return r;
}

CUresult hr_vmm_set_access(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *desc, size_t count)
{
    hr_mutex_lock(&hr_vmm_lock);
    CUresult r = is_whole(address, bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    bool outside_ours = r != CUDA_SUCCESS && !hr_space_owns(address) && !hr_vmm_mapping_locked(address);
    for (CUdeviceptr at = address; r == CUDA_SUCCESS && at < address + bytes;) {
        const struct hr_vmm_mapping *m = hr_vmm_mapping_locked(at);
        at += hr_vmm_bytes_of(m->chunks);
        for (size_t i = 0; m->handle && i < count && r == CUDA_SUCCESS; i++)
            r = check_access(m->handle->gpu, &desc[i]);
    }
    for (CUdeviceptr at = address; r == CUDA_SUCCESS && at < address + bytes;) {
        struct hr_vmm_mapping *m = hr_vmm_mapping_locked(at);
        at += hr_vmm_bytes_of(m->chunks);
        r = set_access_locked(m, desc, count);
    }
    hr_mutex_unlock(&hr_vmm_lock);
    return outside_ours ? hr_drv.cuMemSetAccess(address, bytes, desc, count) : r;
}
