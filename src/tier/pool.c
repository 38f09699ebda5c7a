#include "tier/internal.h"

#include "base/log.h"
#include "space/ledger.h"

#include <stdlib.h>

/*
 * Physical chunks stay made once they were made: creating one costs tens to hundreds of microseconds (pinned host memory
 * 0.7 ms), so what a move frees is kept for the next one. trim() gives pooled chunks back to the driver.
 */

void hr_pool_init(struct hr_pool *pool, CUdevice device, size_t limit_chunks, size_t alias_slots, const char *name)
{
    hr_mutex_init(&pool->lock, HR_RANK_TIER, name);
    pool->device = device;
    pool->limit_chunks = limit_chunks;
    pool->alias_count = (uint32_t)alias_slots;
}

static CUresult reserve_aliases_locked(struct hr_pool *pool)
{
    if (pool->alias_base)
        return CUDA_SUCCESS;
    pool->alias_free = malloc(pool->alias_count * sizeof *pool->alias_free);
    if (!pool->alias_free)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = hr_drv.cuMemAddressReserve(&pool->alias_base, (size_t)pool->alias_count << hr_space.chunk_shift,
                                            hr_chunk_bytes(), 0, 0);
    if (r != CUDA_SUCCESS) {
        pool->alias_base = 0;
        free(pool->alias_free);
        pool->alias_free = NULL;
    }
    return r;
}

CUdeviceptr hr_pool_alias_take_locked(struct hr_pool *pool)
{
    uint32_t slot;
    if (pool->alias_free_count > 0)
        slot = pool->alias_free[--pool->alias_free_count];
    else if (pool->alias_next < pool->alias_count)
        slot = pool->alias_next++;
    else
        return 0;
    return pool->alias_base + ((CUdeviceptr)slot << hr_space.chunk_shift);
}

void hr_pool_alias_give_locked(struct hr_pool *pool, CUdeviceptr alias)
{
    pool->alias_free[pool->alias_free_count++] = (uint32_t)((alias - pool->alias_base) >> hr_space.chunk_shift);
}

CUresult hr_pool_make_locked(struct hr_pool *pool, const CUmemAllocationProp *prop, uint8_t tier, unsigned gpu,
                             struct hr_phys **phys_out)
{
    CUresult r = reserve_aliases_locked(pool);
    if (r != CUDA_SUCCESS)
        return r;
    struct hr_phys *phys = calloc(1, sizeof *phys);
    if (!phys)
        return CUDA_ERROR_OUT_OF_MEMORY;
    phys->tier = tier;
    phys->gpu = (uint8_t)gpu;
    phys->reached_by = UINT64_C(1) << gpu;
    phys->alias = hr_pool_alias_take_locked(pool);
    if (!phys->alias) {
        r = CUDA_ERROR_OUT_OF_MEMORY;
        goto no_alias;
    }
    phys->shareable = prop->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE;
    r = hr_drv.cuMemCreate(&phys->handle, hr_chunk_bytes(), prop, 0);
    if (r != CUDA_SUCCESS)
        goto no_handle;
    r = hr_drv.cuMemMap(phys->alias, hr_chunk_bytes(), 0, phys->handle, 0);
    if (r != CUDA_SUCCESS)
        goto no_map;
    CUmemAccessDesc grant = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = pool->device},
                             .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    r = hr_drv.cuMemSetAccess(phys->alias, hr_chunk_bytes(), &grant, 1);
    if (r != CUDA_SUCCESS)
        goto no_access;
    pool->made_chunks++;
    if (tier == HR_TIER_HOST)
        hr_ledger_host_used((ptrdiff_t)hr_chunk_bytes());
    *phys_out = phys;
    return CUDA_SUCCESS;

no_access:
    hr_drv.cuMemUnmap(phys->alias, hr_chunk_bytes());
no_map:
    hr_drv.cuMemRelease(phys->handle);
no_handle:
    hr_pool_alias_give_locked(pool, phys->alias);
no_alias:
    free(phys);
    return r;
}

void hr_pool_destroy_locked(struct hr_pool *pool, struct hr_phys *phys)
{
    CUresult r = hr_drv.cuMemUnmap(phys->alias, hr_chunk_bytes());
    if (r == CUDA_SUCCESS)
        hr_pool_alias_give_locked(pool, phys->alias);
    else
        hr_log(HR_LOG_WARN, "an alias stays mapped: cuMemUnmap failed with error %d", (int)r);
    hr_drv.cuMemRelease(phys->handle);
    pool->made_chunks--;
    if (phys->tier == HR_TIER_HOST)
        hr_ledger_host_used(-(ptrdiff_t)hr_chunk_bytes());
    free(phys);
}

struct hr_phys *hr_pool_pop_locked(struct hr_pool *pool)
{
    struct hr_phys *phys = pool->pooled;
    if (phys) {
        pool->pooled = phys->next;
        pool->pooled_chunks--;
        phys->next = NULL;
    }
    return phys;
}

void hr_pool_push(struct hr_pool *pool, struct hr_phys *phys)
{
    hr_mutex_lock(&pool->lock);
    /* the limit was lowered meanwhile; or another process may still use it */
    if ((phys->handle && pool->made_chunks > pool->limit_chunks) || phys->shareable) {
        hr_pool_destroy_locked(pool, phys);
    } else {
        phys->next = pool->pooled;
        pool->pooled = phys;
        pool->pooled_chunks++;
    }
    hr_mutex_unlock(&pool->lock);
}

size_t hr_pool_trim(struct hr_pool *pool, size_t chunks)
{
    size_t freed = 0;
    hr_mutex_lock(&pool->lock);
    while (freed < chunks && pool->pooled && pool->pooled->handle) {
        hr_pool_destroy_locked(pool, hr_pool_pop_locked(pool));
        freed++;
    }
    hr_mutex_unlock(&pool->lock);
    return freed;
}

size_t hr_pool_available(struct hr_pool *pool)
{
    hr_mutex_lock(&pool->lock);
    size_t unmade = pool->limit_chunks > pool->made_chunks ? pool->limit_chunks - pool->made_chunks : 0;
    size_t n = pool->pooled_chunks + unmade;
    hr_mutex_unlock(&pool->lock);
    return n;
}

size_t hr_pool_in_use(struct hr_pool *pool)
{
    hr_mutex_lock(&pool->lock);
    size_t n = pool->made_chunks - pool->pooled_chunks;
    hr_mutex_unlock(&pool->lock);
    return n;
}
