#include "residency/vmm_internal.h"

#include "base/clock.h"
#include "base/log.h"
#include "residency/access.h"
#include "residency/context.h"
#include "residency/gpu.h"
#include "residency/move.h"
#include "residency/peers.h"
#include "shim/gate.h"
#include "space/ledger.h"

#include <string.h>

/*
 * What is exported has to be one allocation of the driver's, of which another process sees the same bytes: so the handle gets one,
 * its bytes are copied, and the mappings change over to it, in a moment in which nothing runs that may touch them.
 */

#define QUIET_ATTEMPTS 12 /* twice as long each time, 8 s the last */
#define QUIET_SPAN_NS UINT64_C(2000000)

/* Where chunk i of the handle is now. */
static struct hr_phys *backing_of(const struct hr_vmm_handle *h, uint32_t i)
{
    const struct hr_vmm_mapping *m = h->mappings;
    return m && m->usable && i < m->chunks ? hr_space.chunks[hr_vmm_chunk_of(m) + i].phys : h->phys[i];
}

static CUresult copy_bytes(const struct hr_vmm_handle *h, CUdeviceptr to)
{
    CUstream stream;
    CUresult r = hr_drv.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    if (r != CUDA_SUCCESS)
        return r;
    for (uint32_t i = 0; i < h->chunks && r == CUDA_SUCCESS; i++) {
        const struct hr_phys *phys = backing_of(h, i);
        if (phys)
            r = hr_drv.cuMemcpyAsync(to + hr_vmm_bytes_of(i), phys->alias, hr_chunk_bytes(), stream);
    }
    CUresult done = hr_drv.cuStreamSynchronize(stream);
    hr_drv.cuStreamDestroy_v2(stream);
    return r != CUDA_SUCCESS ? r : done;
}

/* All mappings of the handle from its chunks to `real`; an error: they are as before, or what could not be put back is said. */
static CUresult change_over_locked(struct hr_vmm_handle *h, CUmemGenericAllocationHandle real) HR_REQUIRES(hr_vmm_lock)
    HR_REQUIRES(hr_move_lock)
{
    struct hr_vmm_mapping *first = h->mappings, *m, *failed = NULL;
    CUresult r = CUDA_SUCCESS;
    bool was_usable = first && first->usable, was_pinned = h->pinned;
    if (was_usable)
        r = hr_move_disown_locked(first->res->e, hr_vmm_chunk_of(first), first->chunks, false, h->phys);
    for (m = h->mappings; m && r == CUDA_SUCCESS; m = m->next_of_handle) {
        if (was_pinned)
            r = hr_drv.cuMemUnmap(m->va, hr_vmm_bytes_of(m->chunks));
        if (r != CUDA_SUCCESS)
            break;
        h->real = real;
        r = hr_vmm_map_pinned_locked(m, false);
        failed = r != CUDA_SUCCESS ? m : NULL;
    }
    if (r == CUDA_SUCCESS) {
        h->real = real;
        return r;
    }
    for (struct hr_vmm_mapping *done = h->mappings; done && done != m; done = done->next_of_handle)
        hr_drv.cuMemUnmap(done->va, hr_vmm_bytes_of(done->chunks));
    h->real = 0;
    struct hr_vmm_mapping *end = failed ? failed->next_of_handle : m;
    for (struct hr_vmm_mapping *back = h->mappings; was_pinned && back != end; back = back->next_of_handle)
        if (hr_vmm_map_pinned_locked(back, false) != CUDA_SUCCESS)
            hr_log(HR_LOG_ERROR, "memory at 0x%llx could not be mapped back", (unsigned long long)back->va);
    if (was_usable) {
        hr_vmm_note_driver(first, false);
        if (hr_move_adopt_locked(first->res->e, hr_vmm_chunk_of(first), first->chunks, h->phys) == CUDA_SUCCESS)
            memset((void *)h->phys, 0, first->chunks * sizeof(struct hr_phys *));
        else
            first->usable = false; /* its bytes are with the handle; cuMemSetAccess brings them back */
    }
    return r;
}

/* One attempt, for a moment without work. `window` shows `real` at an address of its own. */
static CUresult export_once_locked(struct hr_vmm_handle *h, CUmemGenericAllocationHandle real, CUdeviceptr window,
                                   uint64_t span_ns, bool *quiet_out) HR_REQUIRES(hr_vmm_lock)
{
    hr_mutex_lock(&hr_move_lock);
    uint64_t deadline_ns = hr_clock_ns() + span_ns;
    CUresult r = CUDA_SUCCESS;
    *quiet_out = false;
    if (hr_gate_close(deadline_ns)) {
        *quiet_out = hr_quiet_wait(hr_peers_users(h->gpu), deadline_ns);
        if (*quiet_out) {
            r = copy_bytes(h, window);
            if (r == CUDA_SUCCESS)
                r = change_over_locked(h, real);
        }
        hr_gate_open();
    }
    for (uint32_t i = 0; h->real && i < h->chunks; i++) {
        if (h->phys[i])
            hr_tier_of(h->phys[i])->give(h->phys[i]);
        h->phys[i] = NULL;
    }
    hr_mutex_unlock(&hr_move_lock);
    return r;
}

static CUresult export_locked(struct hr_thread *t, struct hr_vmm_handle *h, CUmemGenericAllocationHandle real)
    HR_REQUIRES(hr_vmm_lock)
{
    size_t bytes = hr_vmm_bytes_of(h->chunks);
    CUdeviceptr window = 0;
    CUmemAccessDesc desc = {.location = h->prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    bool quiet = false, was_usable = h->mappings && h->mappings->usable;
    CUresult r = hr_drv.cuMemAddressReserve(&window, bytes, 0, 0, 0);
    if (r != CUDA_SUCCESS)
        return r;
    r = hr_drv.cuMemMap(window, bytes, 0, real, 0);
    bool mapped = r == CUDA_SUCCESS;
    if (mapped)
        r = hr_drv.cuMemSetAccess(window, bytes, &desc, 1);
    for (unsigned i = 0; r == CUDA_SUCCESS && i < QUIET_ATTEMPTS && !quiet; i++)
        r = export_once_locked(h, real, window, QUIET_SPAN_NS << i, &quiet);
    if (mapped)
        hr_drv.cuMemUnmap(window, bytes);
    hr_drv.cuMemAddressFree(window, bytes);
    if (r != CUDA_SUCCESS || !quiet)
        return r != CUDA_SUCCESS ? r : CUDA_ERROR_OUT_OF_MEMORY;
    h->pinned = true;
    if (was_usable) {
        h->mappings->usable = false;
        hr_vmm_drop_grants_locked(h->mappings);
        hr_vmm_reach_locked(h->mappings->res, h->mappings, false);
    }
    hr_ledger_uncharge(t, h->gpu, bytes);
    hr_vmm_charge_driver(h, true);
    return CUDA_SUCCESS;
}

/* Memory of the driver's for it, for which some of ours leaves VRAM. Hold none. */
static CUresult create_real(struct hr_thread *t, unsigned gpu, const CUmemAllocationProp *prop, size_t bytes,
                            CUmemGenericAllocationHandle *real_out)
{
    CUresult r = hr_drv.cuMemCreate(real_out, bytes, prop, 0);
    if (r != CUDA_ERROR_OUT_OF_MEMORY)
        return r;
    hr_gpu_hold(gpu, bytes, true);
    for (unsigned i = 0; r == CUDA_ERROR_OUT_OF_MEMORY && i < ROOM_ATTEMPTS; i++) {
        if (hr_access_release_vram(t, gpu, bytes) == 0)
            break;
        r = hr_drv.cuMemCreate(real_out, bytes, prop, 0);
    }
    hr_gpu_hold(gpu, bytes, false);
    return r;
}

CUresult hr_vmm_make_real(struct hr_thread *t, CUmemGenericAllocationHandle handle,
                          CUmemGenericAllocationHandle *real_out)
{
    CUmemGenericAllocationHandle real = 0;
    hr_mutex_lock(&hr_vmm_lock);
    struct hr_vmm_handle *h = hr_vmm_handle_locked(handle);
    CUmemAllocationProp prop = h ? h->prop : (CUmemAllocationProp){0};
    size_t bytes = h ? hr_vmm_bytes_of(h->chunks) : 0;
    unsigned gpu = h ? h->gpu : 0;
    bool known = h != NULL;
    *real_out = h ? h->real : 0;
    hr_mutex_unlock(&hr_vmm_lock);
    if (!known || *real_out)
        return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    struct hr_context *context = hr_context_of_gpu(gpu);
    bool pushed;
    CUresult r = context ? hr_context_enter(context, &pushed) : CUDA_ERROR_INVALID_CONTEXT;
    if (r != CUDA_SUCCESS)
        return r;
    r = create_real(t, gpu, &prop, bytes, &real);
    if (r == CUDA_SUCCESS) {
        hr_mutex_lock(&hr_vmm_lock);
        h = hr_vmm_handle_locked(handle);
        r = h ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
        if (h && !h->real)
            r = export_locked(t, h, real);
        if (!h || h->real != real)
            hr_drv.cuMemRelease(real);
        *real_out = r == CUDA_SUCCESS ? h->real : 0;
        hr_mutex_unlock(&hr_vmm_lock);
    }
    hr_context_leave(pushed);
    return r;
}

CUresult hr_vmm_export(struct hr_thread *t, void *shareable, CUmemGenericAllocationHandle handle,
                       CUmemAllocationHandleType type, unsigned long long flags)
{
    CUmemAllocationProp prop;
    CUmemGenericAllocationHandle real;
    CUresult r = hr_vmm_props(handle, &prop);
    if (r == CUDA_SUCCESS && !(prop.requestedHandleTypes & type))
        r = CUDA_ERROR_INVALID_VALUE;
    if (r == CUDA_SUCCESS)
        r = hr_vmm_make_real(t, handle, &real);
    return r == CUDA_SUCCESS ? hr_drv.cuMemExportToShareableHandle(shareable, real, type, flags) : r;
}
