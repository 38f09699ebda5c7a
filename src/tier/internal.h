/* Shared by the files of src/tier only. */
#ifndef HR_TIER_INTERNAL_H
#define HR_TIER_INTERNAL_H

#include "base/lock.h"
#include "tier/tier.h"

/* A pool of one tier for one GPU's window. */
struct hr_pool {
    struct hr_mutex lock;
    CUdevice device;
    size_t limit_chunks;    /* guarded by lock */
    size_t made_chunks;     /* guarded by lock: exist, pooled or not */
    size_t pooled_chunks;   /* guarded by lock */
    size_t lent_chunks;     /* guarded by lock: of a VRAM pool, taken for windows of other GPUs */
    struct hr_phys *pooled; /* guarded by lock */
    CUdeviceptr alias_base; /* the reservation for aliases, made at the first take */
    uint32_t alias_count, alias_next;
    uint32_t *alias_free; /* guarded by lock: a stack of free alias slots */
    uint32_t alias_free_count;
};

void hr_pool_init(struct hr_pool *pool, CUdevice device, size_t limit_chunks, size_t alias_slots, const char *name);
/* An alias slot's address; 0 = none left. */
CUdeviceptr hr_pool_alias_take_locked(struct hr_pool *pool);
void hr_pool_alias_give_locked(struct hr_pool *pool, CUdeviceptr alias);
/* Makes a chunk of the driver with these properties, mapped at an alias that the pool's device may use. */
CUresult hr_pool_make_locked(struct hr_pool *pool, const CUmemAllocationProp *prop, uint8_t tier, unsigned gpu,
                             struct hr_phys **phys_out);
void hr_pool_destroy_locked(struct hr_pool *pool, struct hr_phys *phys);
struct hr_phys *hr_pool_pop_locked(struct hr_pool *pool);
void hr_pool_push(struct hr_pool *pool, struct hr_phys *phys);
size_t hr_pool_trim(struct hr_pool *pool, size_t chunks);
size_t hr_pool_available(struct hr_pool *pool);
size_t hr_pool_in_use(struct hr_pool *pool);

extern struct hr_pool hr_host_pool[HR_MAX_GPUS], hr_vram_pool[HR_MAX_GPUS];

#endif
