#include "residency/gpu.h"

#include "base/config.h"
#include "base/lock.h"
#include "base/log.h"
#include "policy/policy.h"
#include "residency/fixed.h"
#include "shim/refuse.h"
#include "space/budget.h"
#include "space/ledger.h"
#include "space/space.h"
#include "stats/stats.h"
#include "tier/tier.h"

#include <stdio.h>

struct gpu {
    CUdevice device;
    char name[96];
    size_t vram_bytes;     /* of the card */
    size_t cap_bytes;      /* what the user lets us use, contexts and modules included */
    size_t overhead_bytes; /* contexts and modules, measured; guarded by overhead_lock */
    size_t held_bytes;     /* kept free for a call that needs VRAM of its own; guarded by overhead_lock */
    bool context_seen;     /* guarded by overhead_lock */
};
static struct gpu gpus[HR_MAX_GPUS];
static unsigned gpu_count;
static size_t host_budget_bytes; /* whole chunks; set once */
static struct hr_mutex overhead_lock = HR_MUTEX_INIT(HR_RANK_MOVE + 3, "overhead");

unsigned hr_gpu_count(void)
{
    return gpu_count;
}

int hr_gpu_of_device(CUdevice device)
{
    for (unsigned g = 0; g < gpu_count; g++)
        if (gpus[g].device == device)
            return (int)g;
    return -1;
}

CUdevice hr_gpu_device(unsigned gpu)
{
    return gpus[gpu].device;
}

size_t hr_gpu_total_bytes(unsigned gpu)
{
    return hr_ledger_capacity(gpu);
}

size_t hr_gpu_free_bytes(unsigned gpu)
{
    return hr_ledger_free(gpu);
}

/* A little VRAM stays free for what the driver takes behind our back (lazily loaded code, local memory). */
static size_t spare_bytes(const struct gpu *g)
{
    size_t spare = g->cap_bytes / 64;
    return spare > ((size_t)256 << 20) ? (size_t)256 << 20 : spare;
}

/* Before a context exists nothing can be measured: assume 1/16 of the card, at most 1 GiB. */
static size_t assumed_overhead_bytes(const struct gpu *g)
{
    size_t assumed = g->vram_bytes / 16;
    return assumed > ((size_t)1 << 30) ? (size_t)1 << 30 : assumed;
}

size_t hr_gpu_context_bytes(unsigned gpu)
{
    return assumed_overhead_bytes(&gpus[gpu]);
}

static size_t limit_chunks(const struct gpu *g)
{
    size_t taken = g->overhead_bytes + spare_bytes(g);
    size_t left = g->cap_bytes > taken ? g->cap_bytes - taken : 0;
    size_t chunks = left >> hr_space.chunk_shift;
    return chunks > 0 ? chunks : 1;
}

static CUresult ask_gpu(struct gpu *g, int ordinal, size_t *granularity_out)
{
    int vmm = 0;
    CUresult r = hr_drv.cuDeviceGet(&g->device, ordinal);
    if (r == CUDA_SUCCESS)
        r = hr_drv.cuDeviceTotalMem_v2(&g->vram_bytes, g->device);
    if (r == CUDA_SUCCESS)
        r = hr_drv.cuDeviceGetAttribute(&vmm, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, g->device);
    if (r == CUDA_SUCCESS && !vmm)
        r = CUDA_ERROR_NOT_SUPPORTED;
    if (r != CUDA_SUCCESS)
        return r;
    hr_drv.cuDeviceGetName(g->name, (int)sizeof g->name, g->device);
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = g->device}};
    return hr_drv.cuMemGetAllocationGranularity(granularity_out, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
}

static size_t limit_bytes(const struct gpu *g)
{
    return limit_chunks(g) << hr_space.chunk_shift;
}

/*
 * Two runs of host memory are not promised, so that with everything allocated and touched there is room for an exchange: a
 * chunk comes in only where another has left, and leaves only where host memory is free.
 */
static size_t slack_bytes(const struct gpu *g)
{
    size_t run = hr_policy_run_chunks((size_t)1 << hr_space.chunk_shift, g->vram_bytes >> hr_space.chunk_shift);
    return run << (hr_space.chunk_shift + 1);
}

/* The host memory that all windows together may promise. */
static size_t promised_host_bytes(void)
{
    size_t slack = 0;
    for (unsigned i = 0; i < gpu_count; i++)
        slack += slack_bytes(&gpus[i]);
    return host_budget_bytes > slack ? host_budget_bytes - slack : 0;
}

static size_t all_limits_bytes(void)
{
    size_t sum = 0;
    for (unsigned i = 0; i < gpu_count; i++)
        sum += limit_bytes(&gpus[i]);
    return sum;
}

/* Virtual capacity of one window: the ratio's, but never more than can be backed. */
static size_t window_cap(const struct gpu *g)
{
    size_t backed = limit_bytes(g) + promised_host_bytes();
    double ratio = hr_config()->ratio;
    size_t asked = ratio > 0 ? (size_t)(ratio * (double)g->cap_bytes) : backed;
    return (asked < backed ? asked : backed) >> hr_space.chunk_shift << hr_space.chunk_shift;
}

static CUresult start_space(unsigned chunk_shift, size_t host_bytes)
{
    size_t caps[HR_MAX_GPUS] = {0};
    hr_space.chunk_shift = chunk_shift;
    host_budget_bytes = host_bytes;
    for (unsigned i = 0; i < gpu_count; i++)
        caps[i] = window_cap(&gpus[i]);
    CUresult r = hr_space_init(gpu_count, caps, chunk_shift);
    if (r != CUDA_SUCCESS)
        return r;
    hr_shim_set_windows(hr_space.base, hr_space.bytes);
    hr_ledger_init(all_limits_bytes(), promised_host_bytes(), gpu_count, caps);
    struct hr_stats_gpu told[HR_MAX_GPUS];
    for (unsigned i = 0; i < gpu_count; i++) {
        struct gpu *g = &gpus[i];
        hr_tier_init(i, g->device, limit_chunks(g), g->vram_bytes >> chunk_shift, host_bytes >> chunk_shift);
        snprintf(told[i].name, sizeof told[i].name, "%s", g->name);
        told[i].vram_bytes = g->vram_bytes;
        told[i].cap_bytes = g->cap_bytes;
        told[i].window_bytes = caps[i];
    }
    hr_stats_start(told, gpu_count, host_bytes);
    return CUDA_SUCCESS;
}

CUresult hr_gpu_start(void)
{
    int count = 0;
    CUresult r = hr_drv.cuDeviceGetCount(&count);
    if (r != CUDA_SUCCESS)
        return r;
    if (count < 1 || count > HR_MAX_GPUS)
        return count < 1 ? CUDA_ERROR_NO_DEVICE : CUDA_ERROR_NOT_SUPPORTED;
    size_t granularity = 0;
    for (int i = 0; i < count; i++) {
        size_t own = 0;
        r = ask_gpu(&gpus[i], i, &own);
        if (r != CUDA_SUCCESS)
            return r;
        if (own > granularity)
            granularity = own;
        gpus[i].cap_bytes = hr_config_size(&hr_config()->vram, gpus[i].vram_bytes, gpus[i].vram_bytes);
        if (gpus[i].cap_bytes > gpus[i].vram_bytes)
            gpus[i].cap_bytes = gpus[i].vram_bytes;
        gpus[i].overhead_bytes = assumed_overhead_bytes(&gpus[i]);
    }
    gpu_count = (unsigned)count;
    hr_fixed_start();
    if (granularity == 0 || (granularity & (granularity - 1)))
        return CUDA_ERROR_NOT_SUPPORTED;
    return start_space((unsigned)__builtin_ctzll(granularity), hr_budget_host_bytes() / granularity * granularity);
}

size_t hr_gpu_free_beside_ours(unsigned gpu)
{
    return hr_tier_vram_free_and_ours(gpu);
}

/* Contexts and modules that take more than was assumed make the capacity smaller: nothing may be promised that they hold. */
static void set_limit_locked(unsigned gpu)
{
    size_t chunks = limit_chunks(&gpus[gpu]), held = gpus[gpu].held_bytes >> hr_space.chunk_shift;
    hr_tier_vram_set_limit(gpu, chunks > held ? chunks - held : 1);
    hr_ledger_lower(gpu, window_cap(&gpus[gpu]), all_limits_bytes());
}

/*
 * The first context of a GPU: what is gone from the card is its own charge and other processes' memory. Where that is
 * implausibly much for a context, others are on the card: the assumption stays, and what they take limits us as pressure.
 */
void hr_gpu_context_made(unsigned gpu)
{
    struct gpu *g = &gpus[gpu];
    size_t free_bytes = hr_gpu_free_beside_ours(gpu); /* the new context is current */
    hr_mutex_lock(&overhead_lock);
    if (!g->context_seen && free_bytes > 0) {
        size_t gone = g->vram_bytes - free_bytes;
        if (gone <= 2 * assumed_overhead_bytes(g))
            g->overhead_bytes = gone;
        g->context_seen = true;
        set_limit_locked(gpu);
        hr_log(HR_LOG_DEBUG, "gpu %u: contexts take %zu bytes of %zu", gpu, g->overhead_bytes, g->vram_bytes);
    }
    hr_mutex_unlock(&overhead_lock);
}

void hr_gpu_hold(unsigned gpu, size_t bytes, bool hold)
{
    hr_mutex_lock(&overhead_lock);
    gpus[gpu].held_bytes += hold ? bytes : -bytes;
    set_limit_locked(gpu);
    hr_mutex_unlock(&overhead_lock);
}

void hr_gpu_charge_overhead(unsigned gpu, size_t free_before, size_t free_after)
{
    struct gpu *g = &gpus[gpu];
    if (free_before == free_after || free_before == 0 || free_after == 0)
        return;
    hr_mutex_lock(&overhead_lock);
    if (free_before > free_after)
        g->overhead_bytes += free_before - free_after;
    else if (g->overhead_bytes > free_after - free_before)
        g->overhead_bytes -= free_after - free_before;
    set_limit_locked(gpu);
    hr_mutex_unlock(&overhead_lock);
}
