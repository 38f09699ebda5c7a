#include "residency/pool.h"

#include "base/lock.h"
#include "base/log.h"
#include "driver/driver.h"
#include "residency/access.h"
#include "residency/alloc.h"
#include "residency/context.h"
#include "residency/gpu.h"
#include "residency/peers.h"
#include "residency/quarantine.h"

#include <string.h>

#define POOLS_MOST 4096

static struct hr_pool records[POOLS_MOST];
static uint32_t record_count;                          /* guarded by pools_lock */
static struct hr_pool *by_handle;                      /* guarded by pools_lock */
static _Atomic(uint32_t) generation;                   /* changes whenever a handle ends */
static _Atomic(struct hr_pool *) current[HR_MAX_GPUS]; /* NULL = the driver has to be asked */
static struct hr_mutex pools_lock = HR_MUTEX_INIT(HR_RANK_REGISTRY, "pools");

static struct hr_mutex start_lock = HR_MUTEX_INIT(HR_RANK_START, "pools' start");
static _Atomic(bool) started;

static _Thread_local struct {
    CUmemoryPool handle;
    struct hr_pool *pool;
    uint32_t generation;
} memo __attribute__((tls_model("initial-exec")));

/* --- records ------------------------------------------------------------------------------------------------------- */

CUcontext hr_pool_owner(const struct hr_pool *pool)
{
    return (CUcontext)(uintptr_t)pool;
}

struct hr_pool *hr_pool_of_owner(CUcontext owner)
{
    uintptr_t offset = (uintptr_t)owner - (uintptr_t)records;
    return offset < sizeof records ? &records[offset / sizeof *records] : NULL;
}

/* One that never was used, or that nothing remains of; NULL = there are too many. */
static struct hr_pool *free_record_locked(void)
{
    for (uint32_t i = 0; i < record_count; i++)
        if (!atomic_load(&records[i].handle) && atomic_load(&records[i].live) == 0 &&
            atomic_load(&records[i].held_bytes) == 0)
            return &records[i];
    if (record_count == POOLS_MOST)
        return NULL;
    records[record_count].number = record_count + 1;
    return &records[record_count++];
}

/* Device memory that no other process is given: the rest is none of ours. Of other pools of a GPU it is known what they reserve. */
static bool is_served(const CUmemPoolProps *props)
{
    return props->allocType == CU_MEM_ALLOCATION_TYPE_PINNED && props->handleTypes == CU_MEM_HANDLE_TYPE_NONE &&
           props->location.type == CU_MEM_LOCATION_TYPE_DEVICE && props->usage == 0;
}

void hr_pool_created(CUmemoryPool handle, const CUmemPoolProps *props)
{
    int gpu = props->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? hr_gpu_of_device(props->location.id) : -1;
    if (gpu < 0)
        return;
    hr_mutex_lock(&pools_lock);
    struct hr_pool *pool = free_record_locked();
    if (pool) {
        pool->gpu = (unsigned)gpu;
        pool->served = is_served(props);
        pool->max_bytes = props->maxSize;
        atomic_store(&pool->opportunistic, 1);
        atomic_store(&pool->internal, 1);
        for (unsigned g = 0; g < HR_MAX_GPUS; g++)
            atomic_store(&pool->access[g], g == (unsigned)gpu ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : 0);
        atomic_store(&pool->threshold_bytes, 0);
        atomic_store(&pool->used_bytes, 0);
        atomic_store(&pool->used_high_bytes, 0);
        atomic_store(&pool->held_bytes, 0);
        atomic_store(&pool->held_high_bytes, 0);
        if (pool->served && !pool->over)
            pool->over = hr_shelf_create(pool);
        atomic_store(&pool->handle, handle);
        HASH_ADD(hh, by_handle, handle, sizeof pool->handle, pool);
    }
    hr_mutex_unlock(&pools_lock);
    if (!pool)
        hr_log(HR_LOG_WARN, "more than %d memory pools: the memory of this one is the driver's", POOLS_MOST);
}

/* The devices' own pools are there from the start. */
static void start(void)
{
    if (atomic_load_explicit(&started, memory_order_acquire))
        return;
    hr_mutex_lock(&start_lock);
    for (unsigned g = 0; !atomic_load(&started) && g < hr_gpu_count(); g++) {
        CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = hr_gpu_device(g)}};
        CUmemoryPool pool;
        if (HR_HAS(cuDeviceGetDefaultMemPool) &&
            hr_drv.cuDeviceGetDefaultMemPool(&pool, hr_gpu_device(g)) == CUDA_SUCCESS)
            hr_pool_created(pool, &props);
    }
    atomic_store(&started, true);
    hr_mutex_unlock(&start_lock);
}

struct hr_pool *hr_pool_of(CUmemoryPool handle)
{
    uint32_t now = atomic_load_explicit(&generation, memory_order_acquire);
    if (memo.pool && memo.handle == handle && memo.generation == now)
        return memo.pool;
    struct hr_pool *pool = NULL;
    start();
    hr_mutex_lock(&pools_lock);
    HASH_FIND(hh, by_handle, &handle, sizeof handle, pool);
    hr_mutex_unlock(&pools_lock);
    memo.handle = handle;
    memo.pool = pool;
    memo.generation = now;
    return pool;
}

struct hr_pool *hr_pool_current(unsigned gpu)
{
    struct hr_pool *pool = atomic_load_explicit(&current[gpu], memory_order_acquire);
    CUmemoryPool handle;
    if (pool)
        return pool;
    uint32_t before = atomic_load(&generation);
    if (!HR_HAS(cuDeviceGetMemPool) || hr_drv.cuDeviceGetMemPool(&handle, hr_gpu_device(gpu)) != CUDA_SUCCESS)
        return NULL;
    pool = hr_pool_of(handle);
    if (pool)
        atomic_store_explicit(&current[gpu], pool, memory_order_release);
    if (atomic_load(&generation) != before) /* it changed meanwhile */
        atomic_store(&current[gpu], NULL);
    return pool;
}

void hr_pool_current_changed(void)
{
    atomic_fetch_add(&generation, 1);
    for (unsigned g = 0; g < HR_MAX_GPUS; g++)
        atomic_store(&current[g], NULL);
}

void hr_pool_destroyed(struct hr_thread *t, CUmemoryPool handle)
{
    struct hr_pool *pool = NULL;
    hr_mutex_lock(&pools_lock);
    HASH_FIND(hh, by_handle, &handle, sizeof handle, pool);
    if (pool) {
        HASH_DEL(by_handle, pool);
        atomic_fetch_add(&pool->live, 1); /* the record is nobody else's until all of it is cleared */
        atomic_store(&pool->handle, NULL);
    }
    hr_mutex_unlock(&pools_lock);
    hr_pool_current_changed();
    if (!pool)
        return;
    if (pool->served)
        hr_shelf_give_up_pool(t, pool);
    else
        hr_pool_charge(pool, 0);
    for (unsigned g = 0; g < hr_gpu_count(); g++)
        hr_peers_pool_revoke(pool->number, g);
    atomic_fetch_sub(&pool->live, 1);
}

/* --- amounts ------------------------------------------------------------------------------------------------------- */

static size_t whole_chunks(size_t bytes)
{
    return (bytes + hr_chunk_bytes() - 1) >> hr_space.chunk_shift << hr_space.chunk_shift;
}

/* What an allocation counts for in a pool: small ones are a multiple of 512 bytes, others whole chunks. */
static size_t counted_bytes(size_t bytes)
{
    return bytes <= hr_chunk_bytes() / 2 ? (bytes + HR_SMALL_ALIGN - 1) / HR_SMALL_ALIGN * HR_SMALL_ALIGN
                                         : whole_chunks(bytes);
}

static void raise(_Atomic(uint64_t) *high, uint64_t value)
{
    uint64_t seen = atomic_load_explicit(high, memory_order_relaxed);
    while (seen < value && !atomic_compare_exchange_weak(high, &seen, value))
        ;
}

size_t hr_pool_reserved_bytes(const struct hr_pool *pool)
{
    return whole_chunks(atomic_load(&pool->held_bytes));
}

void hr_pool_let_go(struct hr_pool *pool, size_t block_bytes)
{
    atomic_fetch_sub(&pool->held_bytes, block_bytes);
}

void hr_pool_charge(struct hr_pool *pool, size_t reserved_bytes)
{
    size_t before = atomic_exchange(&pool->held_bytes, reserved_bytes);
    size_t base = (size_t)1 << 62; /* only the difference counts */
    hr_gpu_charge_overhead(pool->gpu, base + reserved_bytes, base + before);
}

/* --- allocations --------------------------------------------------------------------------------------------------- */

/* Something that was freed before: in the same stream, or so that it is over by now. */
static CUdeviceptr take_freed(struct hr_thread *t, struct hr_pool *pool, const struct hr_order *order, size_t bytes)
{
    CUdeviceptr address = hr_shelf_take(t, pool, order, bytes);
    if (!address)
        address = hr_shelf_take(t, pool, NULL, bytes);
    /* Small ones are not worth asking for: a slab serves many. */
    if (!address && bytes > hr_chunk_bytes() / 2 && hr_shelf_any() && atomic_load(&pool->opportunistic)) {
        hr_shelf_ask(t);
        address = hr_shelf_take(t, pool, NULL, bytes);
    }
    return address;
}

static bool beyond_limit(const struct hr_pool *pool, size_t block)
{
    return pool->max_bytes > 0 && whole_chunks(atomic_load(&pool->held_bytes) + block) > pool->max_bytes;
}

static CUresult grow(struct hr_thread *t, struct hr_pool *pool, size_t bytes, void *return_pc, CUdeviceptr *address_out)
{
    size_t block = hr_space_block_bytes(bytes);
    if (__builtin_expect(beyond_limit(pool, block), 0)) {
        if (atomic_load(&pool->internal))
            hr_shelf_give_up_pool(t, pool); /* what is freed already counts no more, and is waited for where need be */
        if (beyond_limit(pool, block))
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    CUresult r = hr_alloc_window(t, pool->gpu, hr_pool_owner(pool), bytes, return_pc, address_out);
    if (r == CUDA_SUCCESS)
        raise(&pool->held_high_bytes, whole_chunks(atomic_fetch_add(&pool->held_bytes, block) + block));
    return r;
}

CUresult hr_pool_alloc(struct hr_thread *t, struct hr_pool *pool, const struct hr_order *order, size_t bytes,
                       void *return_pc, CUdeviceptr *address_out)
{
    if (bytes > hr_space.bytes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUdeviceptr address = take_freed(t, pool, order, bytes);
    CUresult r = address ? hr_alloc_again(t, address, bytes, return_pc) : grow(t, pool, bytes, return_pc, &address);
    if (r != CUDA_SUCCESS)
        return r;
    atomic_fetch_add(&pool->live, 1);
    size_t counted = counted_bytes(bytes);
    raise(&pool->used_high_bytes, atomic_fetch_add(&pool->used_bytes, counted) + counted);
    *address_out = address;
    return CUDA_SUCCESS;
}

void hr_pool_free(struct hr_thread *t, struct hr_pool *pool, const struct hr_order *order, struct hr_extent *e,
                  CUdeviceptr address, size_t bytes, bool touched)
{
    size_t block = atomic_load_explicit(&e->kind, memory_order_relaxed) == HR_EXTENT_LARGE
                       ? (size_t)e->chunk_count << hr_space.chunk_shift
                       : hr_space_block_bytes(bytes);
    atomic_fetch_sub(&pool->used_bytes, counted_bytes(bytes));
    if (touched && order && atomic_load(&pool->handle) && hr_shelf_put(t, pool, order, e, address, bytes)) {
        atomic_fetch_sub(&pool->live, 1);
        return;
    }
    hr_pool_let_go(pool, block);
    if (touched)
        hr_quarantine_add(t, address);
    else
        hr_quarantine_release_one(t, address);
    atomic_fetch_sub(&pool->live, 1);
}
