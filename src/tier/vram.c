#include "base/log.h"
#include "stats/stats.h"
#include "tier/internal.h"

/*
 * Local VRAM: chunks of the GPU's own memory, up to a limit that leaves room for contexts and modules. What is lent to windows of
 * other GPUs (the peer tier) comes from the same pools and counts against the same limits.
 */

struct hr_pool hr_vram_pool[HR_MAX_GPUS];
static _Atomic(size_t) limit_seen[HR_MAX_GPUS]; /* a copy of limit_chunks that needs no lock */

static CUmemAllocationProp props_of(const struct hr_pool *pool)
{
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = pool->device}};
}

static CUresult take(unsigned gpu, bool lend, struct hr_phys **phys_out)
{
    struct hr_pool *pool = &hr_vram_pool[gpu];
    CUresult r = CUDA_SUCCESS;
    const CUmemAllocationProp prop = props_of(pool);
    hr_mutex_lock(&pool->lock);
    struct hr_phys *phys = hr_pool_pop_locked(pool);
    if (!phys && pool->made_chunks >= pool->limit_chunks)
        r = CUDA_ERROR_OUT_OF_MEMORY;
    else if (!phys)
        r = hr_pool_make_locked(pool, &prop, HR_TIER_VRAM, gpu, &phys);
    if (r == CUDA_SUCCESS && lend)
        pool->lent_chunks++;
    size_t bytes = pool->made_chunks << hr_space.chunk_shift, lent_bytes = pool->lent_chunks << hr_space.chunk_shift;
    hr_mutex_unlock(&pool->lock);
    if (r == CUDA_SUCCESS) {
        phys->tier = lend ? HR_TIER_PEER : HR_TIER_VRAM;
        hr_stats_level(gpu, HR_LEVEL_VRAM, bytes);
        if (lend)
            hr_stats_level(gpu, HR_LEVEL_PEER, lent_bytes);
        *phys_out = phys;
    }
    return r;
}

CUresult hr_tier_take_shareable(unsigned gpu, bool rdma, struct hr_phys **phys_out)
{
    struct hr_pool *pool = &hr_vram_pool[gpu];
    CUmemAllocationProp prop = props_of(pool);
    struct hr_phys *phys = NULL;
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    prop.allocFlags.gpuDirectRDMACapable = rdma;
    hr_mutex_lock(&pool->lock);
    while (pool->made_chunks >= pool->limit_chunks && pool->pooled)
        hr_pool_destroy_locked(pool, hr_pool_pop_locked(pool));
    CUresult r = pool->made_chunks >= pool->limit_chunks ? CUDA_ERROR_OUT_OF_MEMORY
                                                         : hr_pool_make_locked(pool, &prop, HR_TIER_VRAM, gpu, &phys);
    if (r == CUDA_ERROR_OUT_OF_MEMORY && pool->pooled) { /* others have taken what the limit allows */
        hr_pool_destroy_locked(pool, hr_pool_pop_locked(pool));
        r = hr_pool_make_locked(pool, &prop, HR_TIER_VRAM, gpu, &phys);
    }
    size_t bytes = pool->made_chunks << hr_space.chunk_shift;
    hr_mutex_unlock(&pool->lock);
    if (r != CUDA_SUCCESS)
        return r;
    hr_stats_level(gpu, HR_LEVEL_VRAM, bytes);
    *phys_out = phys;
    return CUDA_SUCCESS;
}

static CUresult vram_take(unsigned gpu, struct hr_phys **phys_out)
{
    return take(gpu, false, phys_out);
}

static void vram_give(struct hr_phys *phys)
{
    hr_pool_push(&hr_vram_pool[phys->gpu], phys);
}
static size_t vram_available(unsigned gpu)
{
    return hr_pool_available(&hr_vram_pool[gpu]);
}
static size_t lent(unsigned gpu)
{
    struct hr_pool *pool = &hr_vram_pool[gpu];
    hr_mutex_lock(&pool->lock);
    size_t n = pool->lent_chunks;
    hr_mutex_unlock(&pool->lock);
    return n;
}
static size_t vram_in_use(unsigned gpu)
{
    struct hr_pool *pool = &hr_vram_pool[gpu];
    hr_mutex_lock(&pool->lock);
    size_t n = pool->made_chunks - pool->pooled_chunks - pool->lent_chunks;
    hr_mutex_unlock(&pool->lock);
    return n;
}
static size_t vram_trim(unsigned gpu, size_t chunks)
{
    return hr_pool_trim(&hr_vram_pool[gpu], chunks);
}

const struct hr_tier hr_tier_vram = {
    .name = "vram",
    .take = vram_take,
    .give = vram_give,
    .available_chunks = vram_available,
    .in_use_chunks = vram_in_use,
    .trim = vram_trim,
};

static CUresult peer_take(unsigned gpu, struct hr_phys **phys_out)
{
    return take(gpu, true, phys_out);
}

static void peer_give(struct hr_phys *phys)
{
    struct hr_pool *pool = &hr_vram_pool[phys->gpu];
    hr_mutex_lock(&pool->lock);
    size_t bytes = --pool->lent_chunks << hr_space.chunk_shift;
    hr_mutex_unlock(&pool->lock);
    hr_stats_level(phys->gpu, HR_LEVEL_PEER, bytes);
    phys->tier = HR_TIER_VRAM;
    hr_pool_push(pool, phys);
}

const struct hr_tier hr_tier_peer = {
    .name = "peer",
    .take = peer_take,
    .give = peer_give,
    .available_chunks = vram_available,
    .in_use_chunks = lent,
    .trim = vram_trim,
};

CUresult hr_tier_reach(struct hr_phys *phys, unsigned gpu, CUdevice device)
{
    CUmemAccessDesc grant = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                             .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    if (phys->reached_by >> gpu & 1 || !phys->handle)
        return CUDA_SUCCESS;
    CUresult r = hr_drv.cuMemSetAccess(phys->alias, hr_chunk_bytes(), &grant, 1);
    if (r == CUDA_SUCCESS)
        phys->reached_by |= UINT64_C(1) << gpu;
    return r;
}

void hr_tier_vram_set_limit(unsigned gpu, size_t chunks)
{
    struct hr_pool *pool = &hr_vram_pool[gpu];
    hr_mutex_lock(&pool->lock);
    pool->limit_chunks = chunks;
    atomic_store_explicit(&limit_seen[gpu], chunks, memory_order_relaxed);
    while (pool->made_chunks > chunks && pool->pooled)
        hr_pool_destroy_locked(pool, hr_pool_pop_locked(pool));
    hr_mutex_unlock(&pool->lock);
}

size_t hr_tier_vram_limit(unsigned gpu)
{
    return atomic_load_explicit(&limit_seen[gpu], memory_order_relaxed);
}

size_t hr_tier_vram_free_and_ours(unsigned gpu)
{
    size_t free_bytes = 0, total_bytes = 0;
    hr_mutex_lock(&hr_vram_pool[gpu].lock); /* no chunk is made meanwhile */
    CUresult r = hr_drv.cuMemGetInfo_v2(&free_bytes, &total_bytes);
    size_t ours = hr_vram_pool[gpu].made_chunks << hr_space.chunk_shift;
    hr_mutex_unlock(&hr_vram_pool[gpu].lock);
    return r == CUDA_SUCCESS ? free_bytes + ours : 0;
}
