#include "base/log.h"
#include "hr_hooks.h"
#include "residency/access.h"
#include "residency/context.h"
#include "residency/quarantine.h"
#include "shim/shim.h"
#include "stats/stats.h"
#include "tier/tier.h"

#include <stdio.h>

/* Allocation and free. No driver call on the common path: an allocation takes addresses and a commit charge. */

#define PITCH_ALIGN 512

/* The ledger is full: what quarantine holds counts as free once the work before its free is done. */
static CUresult alloc_after_settling(struct hr_thread *t, unsigned gpu, CUcontext ctx, size_t bytes, CUdeviceptr *p)
{
    hr_space_flush_thread(t);
    CUresult r = hr_space_alloc(t, gpu, ctx, bytes, p);
    for (struct hr_room_wait wait = {.charge_bytes = bytes};
         r == CUDA_ERROR_OUT_OF_MEMORY && hr_access_make_room(t, gpu, &wait);)
        r = hr_space_alloc(t, gpu, ctx, bytes, p); /* the real cuMemFree would have waited, too */
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

/* The driver's own words where no context can be used: none is current, or it was reset. */
static CUresult why_no_context(void)
{
    CUdevice device;
    CUresult r = hr_drv.cuCtxGetDevice(&device);
    return r == CUDA_SUCCESS ? CUDA_ERROR_INVALID_CONTEXT : r;
}

static CUresult allocate(CUdeviceptr *address_out, size_t bytes, void *return_pc)
{
    HR_INSIDE();
    struct hr_thread *t = hr_thread_self();
    struct hr_context *context = hr_context_current();
    CUdeviceptr address = 0;
    if (!context)
        return why_no_context();
    if (!t)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!address_out || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    /* Where host memory cannot be mapped a launch needs all of an allocation in VRAM: this one could never be used. */
    size_t vram_bytes = hr_tier_vram_limit(context->gpu) << hr_space.chunk_shift;
    if (__builtin_expect(bytes > vram_bytes, 0) && !hr_tier_host_mappable(context->gpu))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = hr_space_alloc(t, context->gpu, context->handle, bytes, &address);
    if (__builtin_expect(r == CUDA_ERROR_OUT_OF_MEMORY, 0))
        r = alloc_after_settling(t, context->gpu, context->handle, bytes, &address);
    if (r == CUDA_SUCCESS)
        r = hr_access_allocated(t, address);
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
    *address_out = address;
    return CUDA_SUCCESS;
}

HR_HOOK(cuMemAlloc_v2)(CUdeviceptr *dptr, size_t bytesize)
{
    HR_PASS(cuMemAlloc_v2, dptr, bytesize);
    return allocate(dptr, bytesize, __builtin_return_address(0));
}

static CUresult allocate_pitch(CUdeviceptr *dptr, size_t *pitch_out, size_t width, size_t height, unsigned element,
                               void *return_pc)
{
    if (!dptr || !pitch_out || width == 0 || height == 0 || (element != 4 && element != 8 && element != 16))
        return CUDA_ERROR_INVALID_VALUE;
    size_t pitch = (width + PITCH_ALIGN - 1) / PITCH_ALIGN * PITCH_ALIGN, bytes;
    if (pitch < width || __builtin_mul_overflow(pitch, height, &bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = allocate(dptr, bytes, return_pc);
    if (r == CUDA_SUCCESS)
        *pitch_out = pitch;
    return r;
}

HR_HOOK(cuMemAllocPitch_v2)
(CUdeviceptr *dptr, size_t *pPitch, size_t WidthInBytes, size_t Height, unsigned int ElementSizeBytes)
{
    HR_PASS(cuMemAllocPitch_v2, dptr, pPitch, WidthInBytes, Height, ElementSizeBytes);
    return allocate_pitch(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes, __builtin_return_address(0));
}

HR_HOOK(cuMemFree_v2)(CUdeviceptr dptr)
{
    HR_PASS(cuMemFree_v2, dptr);
    HR_INSIDE();
    size_t bytes = 0;
    struct hr_extent *e = NULL;
    enum hr_retire retired = hr_space_retire(dptr, &bytes, &e);
    if (retired == HR_RETIRE_NOT_OURS)
        return hr_drv.cuMemFree_v2(dptr);
    if (retired == HR_RETIRE_INVALID)
        return CUDA_ERROR_INVALID_VALUE;
    struct hr_thread *t = hr_thread_self();
    hr_stat_add(t, HR_STAT_frees, 1);
    hr_stat_add(t, HR_STAT_freed_bytes, bytes);
    if (atomic_load_explicit(&e->kind, memory_order_relaxed) == HR_EXTENT_LARGE)
        hr_site_freed(atomic_exchange(&e->site, NULL), bytes);
    else
        hr_site_freed(hr_site_numbered(hr_space_forget_site(e, dptr)), bytes);
    if (retired == HR_RETIRE_UNTOUCHED)
        hr_quarantine_release_one(t, dptr);
    else
        hr_quarantine_add(t, dptr);
    return CUDA_SUCCESS;
}

/* The 32-bit forms of CUDA 3 cannot hold an address of a 64-bit process; the driver answers as it always did. */
HR_HOOK(cuMemAlloc)(CUdeviceptr_v1 *dptr, unsigned int bytesize)
{
    return hr_drv.cuMemAlloc(dptr, bytesize);
}
HR_HOOK(cuMemAllocPitch)
(CUdeviceptr_v1 *dptr, unsigned int *pPitch, unsigned int WidthInBytes, unsigned int Height,
 unsigned int ElementSizeBytes)
{
    return hr_drv.cuMemAllocPitch(dptr, pPitch, WidthInBytes, Height, ElementSizeBytes);
}
