#include "residency/alloc.h"

#include "base/log.h"
#include "residency/access.h"
#include "residency/shelf.h"
#include "space/ledger.h"
#include "stats/stats.h"
#include "tier/tier.h"

#include <stdio.h>

/* A charge, or an allocation with its charge; `p` is not NULL for the latter. */
static CUresult try(struct hr_thread *t, unsigned gpu, CUcontext owner, size_t bytes, CUdeviceptr *p)
{
    if (p)
        return hr_space_alloc(t, gpu, owner, bytes, p);
    return hr_ledger_charge(t, gpu, bytes) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* The ledger is full: what quarantine holds counts as free once the work before its free is done. */
static CUresult try_after_settling(struct hr_thread *t, unsigned gpu, CUcontext owner, size_t bytes, CUdeviceptr *p)
{
    hr_shelf_give_up(t);
    hr_space_flush_thread(t);
    CUresult r = try(t, gpu, owner, bytes, p);
    for (struct hr_room_wait wait = {.charge_bytes = bytes};
         r == CUDA_ERROR_OUT_OF_MEMORY && hr_access_make_room(t, gpu, &wait);)
        r = try(t, gpu, owner, bytes, p); /* the real cuMemFree would have waited, too */
    if (r == CUDA_ERROR_OUT_OF_MEMORY) {
        char text[160];
        snprintf(text, sizeof text,
                 "an allocation of %zu bytes on GPU %u does not fit: its window is full, or nothing could back it",
                 bytes, gpu);
        hr_stat_add(t, HR_STAT_ooms, 1);
        hr_log(HR_LOG_INFO, "%s", text);
        hr_stats_event("oom", text);
    }
    return r;
}

CUresult hr_alloc_charge(struct hr_thread *t, unsigned gpu, size_t bytes)
{
    CUresult r = try(t, gpu, NULL, bytes, NULL);
    return r == CUDA_ERROR_OUT_OF_MEMORY ? try_after_settling(t, gpu, NULL, bytes, NULL) : r;
}

CUresult hr_alloc_again(struct hr_thread *t, CUdeviceptr address, size_t bytes, void *return_pc)
{
    CUresult r = hr_access_allocated(t, address);
    if (r != CUDA_SUCCESS)
        return r;
    struct hr_site *site = hr_site_sample(t, bytes, return_pc);
    if (site) {
        struct hr_extent *e = hr_space_extent(address);
        if (atomic_load_explicit(&e->kind, memory_order_relaxed) == HR_EXTENT_LARGE)
            e->site = site;
        else
            hr_space_note_site(e, address, hr_site_number(site));
    }
    hr_stat_add(t, HR_STAT_allocations, 1);
    hr_stat_add(t, HR_STAT_allocated_bytes, bytes);
    return CUDA_SUCCESS;
}

CUresult hr_alloc_window(struct hr_thread *t, unsigned gpu, CUcontext owner, size_t bytes, void *return_pc,
                         CUdeviceptr *address_out)
{
    CUdeviceptr address = 0;
    /* Where host memory cannot be mapped a launch needs all of an allocation in VRAM: this one could never be used. */
    size_t vram_bytes = hr_tier_vram_limit(gpu) << hr_space.chunk_shift;
    if (__builtin_expect(bytes > vram_bytes, 0) && !hr_tier_host_mappable(gpu))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = hr_space_alloc(t, gpu, owner, bytes, &address);
    if (__builtin_expect(r == CUDA_ERROR_OUT_OF_MEMORY, 0))
        r = try_after_settling(t, gpu, owner, bytes, &address);
    if (r == CUDA_SUCCESS)
        r = hr_alloc_again(t, address, bytes, return_pc);
    if (r == CUDA_SUCCESS)
        *address_out = address;
    return r;
}

void hr_alloc_retired(struct hr_thread *t, struct hr_extent *e, CUdeviceptr address, size_t bytes)
{
    hr_stat_add(t, HR_STAT_frees, 1);
    hr_stat_add(t, HR_STAT_freed_bytes, bytes);
    if (atomic_load_explicit(&e->kind, memory_order_relaxed) == HR_EXTENT_LARGE)
        hr_site_freed(atomic_exchange(&e->site, NULL), bytes);
    else
        hr_site_freed(hr_site_numbered(hr_space_forget_site(e, address)), bytes);
}
