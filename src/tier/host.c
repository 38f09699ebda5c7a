#include "base/log.h"
#include "space/ledger.h"
#include "stats/stats.h"
#include "tier/internal.h"

#include <stdlib.h>
#include <sys/mman.h>

/*
 * Host memory. Chunks of the driver at a NUMA node (CUDA 12.2+) or at the host as such (13.0+) are mapped at the job's own
 * addresses, so a kernel that touches them works. Whether they can be had is known only by making one: containers without
 * SYS_NICE fail, and 12.2 and 12.3 want a context on every visible device. Where none can be made, pinned host memory
 * holds the bytes and a chunk must come back into VRAM before a kernel may use it.
 *
 * Pinned memory is of the context that is current when it is made, and ends with it, while the bytes may be any other context's. So the memory is
 * our own and only registered with the driver: when that context goes it is registered in another.
 */

struct hr_pool hr_host_pool[HR_MAX_GPUS];

enum host_kind { KIND_UNKNOWN, KIND_NUMA, KIND_HOST, KIND_PINNED };
static _Atomic(int) kind; /* one answer for the process */
static struct hr_mutex kind_lock = HR_MUTEX_INIT(HR_RANK_TIER - 1, "host kind");

static CUmemAllocationProp props_of(enum host_kind k, CUdevice device)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_HOST}};
    int node = -1;
    if (k == KIND_HOST)
        return prop;
    if (hr_drv.cuDeviceGetAttribute(&node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, device) != CUDA_SUCCESS || node < 0)
        node = 0;
    prop.location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_HOST_NUMA, .id = node};
    return prop;
}

static CUresult make_mapped_locked(struct hr_pool *pool, enum host_kind k, unsigned gpu, struct hr_phys **phys_out)
{
    CUmemAllocationProp prop = props_of(k, pool->device);
    return hr_pool_make_locked(pool, &prop, HR_TIER_HOST, gpu, phys_out);
}

static bool try_kind(unsigned gpu, enum host_kind k)
{
    struct hr_pool *pool = &hr_host_pool[gpu];
    struct hr_phys *phys = NULL;
    hr_mutex_lock(&pool->lock);
    CUresult r = make_mapped_locked(pool, k, gpu, &phys);
    hr_mutex_unlock(&pool->lock);
    if (r != CUDA_SUCCESS)
        return false;
    hr_pool_push(pool, phys);
    return true;
}

bool hr_tier_host_mappable(unsigned gpu)
{
    int k = atomic_load_explicit(&kind, memory_order_acquire);
    if (k == KIND_UNKNOWN) {
        hr_mutex_lock(&kind_lock);
        k = atomic_load(&kind);
        if (k == KIND_UNKNOWN) {
            int version = hr_driver_version();
            k = version >= 12020 && try_kind(gpu, KIND_NUMA)   ? KIND_NUMA
                : version >= 13000 && try_kind(gpu, KIND_HOST) ? KIND_HOST
                                                               : KIND_PINNED;
            if (k == KIND_PINNED)
                hr_log(HR_LOG_WARN,
                       "this driver or container has no host chunks that kernels can use: buffers that are "
                       "moved out come back before a kernel may touch them");
            atomic_store_explicit(&kind, k, memory_order_release);
        }
        hr_mutex_unlock(&kind_lock);
    }
    return k != KIND_PINNED;
}

static struct hr_phys *pinned[HR_MAX_GPUS]; /* guarded by their pool's lock */
static _Atomic(size_t) unpinned_chunks;     /* registered in no context */

static CUresult pin(struct hr_phys *phys)
{
    CUcontext current = NULL;
    CUresult r = hr_drv.cuCtxGetCurrent(&current);
    if (r == CUDA_SUCCESS && !current)
        r = CUDA_ERROR_INVALID_CONTEXT;
    if (r == CUDA_SUCCESS)
        r = hr_drv.cuMemHostRegister_v2((void *)(uintptr_t)phys->alias, hr_chunk_bytes(),
                                        CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
    if (r == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED)
        r = CUDA_SUCCESS;
    if (r == CUDA_SUCCESS)
        phys->pinned_by = current;
    return r;
}

/* context: whose pinning has ended; NULL: pin what is pinned in none. */
static void each_pinned(CUcontext context)
{
    for (unsigned gpu = 0; gpu < hr_space.gpu_count; gpu++) {
        struct hr_pool *pool = &hr_host_pool[gpu];
        hr_mutex_lock(&pool->lock);
        for (struct hr_phys *phys = pinned[gpu]; phys; phys = phys->pinned_next) {
            if (phys->pinned_by != context)
                continue;
            if (context) {
                phys->pinned_by = NULL;
                atomic_fetch_add(&unpinned_chunks, 1);
            } else if (pin(phys) == CUDA_SUCCESS) {
                atomic_fetch_sub(&unpinned_chunks, 1);
            }
        }
        hr_mutex_unlock(&pool->lock);
    }
}

void hr_tier_host_context_gone(CUcontext context)
{
    if (context)
        each_pinned(context);
}

void hr_tier_host_pin_again(void)
{
    if (__builtin_expect(atomic_load_explicit(&unpinned_chunks, memory_order_relaxed) > 0, 0))
        each_pinned(NULL);
}

static CUresult make_pinned_locked(struct hr_pool *pool, unsigned gpu, struct hr_phys **phys_out)
{
    struct hr_phys *phys = calloc(1, sizeof *phys);
    if (!phys)
        return CUDA_ERROR_OUT_OF_MEMORY;
    void *host = mmap(NULL, hr_chunk_bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CUresult r = host == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
    phys->alias = (CUdeviceptr)(uintptr_t)host; /* unified addressing: the same for host and device */
    if (r == CUDA_SUCCESS)
        r = pin(phys);
    if (r != CUDA_SUCCESS) {
        if (host != MAP_FAILED)
            munmap(host, hr_chunk_bytes());
        free(phys);
        return r;
    }
    phys->pinned_next = pinned[gpu];
    pinned[gpu] = phys;
    phys->tier = HR_TIER_HOST;
    phys->gpu = (uint8_t)gpu;
    pool->made_chunks++;
    hr_ledger_host_used((ptrdiff_t)hr_chunk_bytes());
    *phys_out = phys;
    return CUDA_SUCCESS;
}

static CUresult host_take(unsigned gpu, struct hr_phys **phys_out)
{
    bool mappable = hr_tier_host_mappable(gpu);
    struct hr_pool *pool = &hr_host_pool[gpu];
    CUresult r = CUDA_SUCCESS;
    hr_tier_host_pin_again();
    hr_mutex_lock(&pool->lock);
    struct hr_phys *phys = hr_pool_pop_locked(pool);
    if (!phys && pool->made_chunks >= pool->limit_chunks)
        r = CUDA_ERROR_OUT_OF_MEMORY;
    else if (!phys && mappable)
        r = make_mapped_locked(pool, (enum host_kind)atomic_load(&kind), gpu, &phys);
    else if (!phys)
        r = make_pinned_locked(pool, gpu, &phys);
    size_t bytes = pool->made_chunks << hr_space.chunk_shift;
    hr_mutex_unlock(&pool->lock);
    if (r == CUDA_SUCCESS) {
        hr_stats_level(gpu, HR_LEVEL_HOST, bytes);
        *phys_out = phys;
    }
    return r;
}

static void host_give(struct hr_phys *phys)
{
    hr_pool_push(&hr_host_pool[phys->gpu], phys);
}
static size_t host_available(unsigned gpu)
{
    return hr_pool_available(&hr_host_pool[gpu]);
}
static size_t host_in_use(unsigned gpu)
{
    return hr_pool_in_use(&hr_host_pool[gpu]);
}
static size_t host_trim(unsigned gpu, size_t chunks)
{
    return hr_pool_trim(&hr_host_pool[gpu], chunks);
}

const struct hr_tier hr_tier_host = {
    .name = "host",
    .take = host_take,
    .give = host_give,
    .available_chunks = host_available,
    .in_use_chunks = host_in_use,
    .trim = host_trim,
};

void hr_tier_init(unsigned gpu, CUdevice device, size_t vram_limit_chunks, size_t vram_alias_chunks,
                  size_t host_limit_chunks)
{
    hr_pool_init(&hr_vram_pool[gpu], device, vram_limit_chunks, vram_alias_chunks + 64, "vram pool");
    hr_tier_vram_set_limit(gpu, vram_limit_chunks);
    hr_pool_init(&hr_host_pool[gpu], device, host_limit_chunks, host_limit_chunks + 64, "host pool");
}
