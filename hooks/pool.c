#include "residency/pool.h"
#include "hr_hooks.h"
#include "peer.h"
#include "residency/access.h"
#include "residency/alloc.h"
#include "residency/context.h"
#include "residency/gpu.h"
#include "residency/peers.h"
#include "residency/quarantine.h"
#include "shim/shim.h"

#include <string.h>

/*
 * Stream-ordered memory. Pools exist in the driver, which checks what is asked of them; the memory of those that are served comes
 * from the window (residency/pool.h), so the driver's own pool behind them stays empty, and what it says of amounts is replaced.
 */

/* In a capture allocations and frees become nodes of the graph, which only the driver can make. Whatever else the driver says of the
 * stream is its answer to the call as well. */
static bool is_for_the_driver(CUstream stream, bool per_thread)
{
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult r =
        per_thread ? hr_drv.cuStreamIsCapturing_ptsz(stream, &status) : hr_drv.cuStreamIsCapturing(stream, &status);
    return r != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* --- allocating ---------------------------------------------------------------------------------------------------- */

struct request {
    CUdeviceptr *dptr;
    size_t bytes;
    const CUmemoryPool *pool; /* NULL = the current one of the stream's device */
    CUstream stream;
    bool per_thread;
    void *return_pc;
};

static CUresult ask_driver(const struct request *q)
{
    if (q->pool)
        return q->per_thread ? hr_drv.cuMemAllocFromPoolAsync_ptsz(q->dptr, q->bytes, *q->pool, q->stream)
                             : hr_drv.cuMemAllocFromPoolAsync(q->dptr, q->bytes, *q->pool, q->stream);
    return q->per_thread ? hr_drv.cuMemAllocAsync_ptsz(q->dptr, q->bytes, q->stream)
                         : hr_drv.cuMemAllocAsync(q->dptr, q->bytes, q->stream);
}

/* Room for a call of the driver's that takes VRAM; hr_gpu_hold(..., false) ends it. */
static void make_room(struct hr_thread *t, unsigned gpu, size_t bytes)
{
    struct hr_context *context = hr_context_of_gpu(gpu);
    bool pushed = false;
    hr_gpu_hold(gpu, bytes, true);
    if (context && hr_context_enter(context, &pushed) == CUDA_SUCCESS)
        hr_access_release_vram(t, gpu, bytes);
    hr_context_leave(pushed);
}

/* Without a context on its GPU nothing of the window can be backed: then a served pool's memory is the driver's. */
static bool can_serve(const struct hr_pool *pool, unsigned streams_gpu)
{
    return pool->served && (pool->gpu == streams_gpu || hr_context_of_gpu(pool->gpu));
}

/* From a pool of the driver's. */
static CUresult take_from_driver(struct hr_thread *t, const struct request *q, struct hr_pool *pool)
{
    cuuint64_t reserved;
    CUresult r = ask_driver(q);
    if (r == CUDA_ERROR_OUT_OF_MEMORY && q->bytes < hr_gpu_total_bytes(pool->gpu)) {
        make_room(t, pool->gpu, q->bytes);
        r = ask_driver(q);
        hr_gpu_hold(pool->gpu, q->bytes, false);
    }
    if (hr_drv.cuMemPoolGetAttribute(atomic_load(&pool->handle), CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved) ==
        CUDA_SUCCESS)
        hr_pool_charge(pool, reserved);
    return r;
}

static CUresult allocate(const struct request *q)
{
    HR_INSIDE();
    struct hr_thread *t = hr_thread_self();
    struct hr_order order;
    if (!t || !q->dptr || q->bytes == 0 || is_for_the_driver(q->stream, q->per_thread) ||
        !hr_shelf_order(t, q->stream, q->per_thread, &order))
        return ask_driver(q);
    struct hr_pool *pool = q->pool ? hr_pool_of(*q->pool) : hr_pool_current(order.gpu);
    if (!pool)
        return ask_driver(q);
    if (can_serve(pool, order.gpu))
        return hr_pool_alloc(t, pool, &order, q->bytes, q->return_pc, q->dptr);
    return pool->served ? ask_driver(q) : take_from_driver(t, q, pool);
}

#define ALLOCATE(name, pt)                                                                                             \
    HR_HOOK(name)(CUdeviceptr * dptr, size_t bytesize, CUstream hStream)                                               \
    {                                                                                                                  \
        HR_PASS(name, dptr, bytesize, hStream);                                                                        \
        return allocate(&(struct request){dptr, bytesize, NULL, hStream, pt, __builtin_return_address(0)});            \
    }
ALLOCATE(cuMemAllocAsync, false)
ALLOCATE(cuMemAllocAsync_ptsz, true)

#define ALLOCATE_FROM(name, pt)                                                                                        \
    HR_HOOK(name)(CUdeviceptr * dptr, size_t bytesize, CUmemoryPool pool, CUstream hStream)                            \
    {                                                                                                                  \
        HR_PASS(name, dptr, bytesize, pool, hStream);                                                                  \
        return allocate(&(struct request){dptr, bytesize, &pool, hStream, pt, __builtin_return_address(0)});           \
    }
ALLOCATE_FROM(cuMemAllocFromPoolAsync, false)
ALLOCATE_FROM(cuMemAllocFromPoolAsync_ptsz, true)

/* --- freeing ------------------------------------------------------------------------------------------------------- */

/*
 * Memory of cuMemAlloc may be freed like this, too; what waits for its work is then quarantine. For that of a pool the order of the
 * stream is enough.
 */
static CUresult release(CUdeviceptr dptr, CUstream stream, bool per_thread)
{
    struct hr_thread *t = hr_thread_self();
    struct hr_order order;
    size_t bytes = 0;
    struct hr_extent *e = NULL;
    bool ordered = hr_shelf_order(t, stream, per_thread, &order);
    enum hr_retire retired = hr_space_retire(dptr, &bytes, &e);
    if (retired != HR_RETIRE_TOUCHED && retired != HR_RETIRE_UNTOUCHED)
        return CUDA_ERROR_INVALID_VALUE;
    hr_alloc_retired(t, e, dptr, bytes);
    struct hr_pool *pool = hr_pool_of_owner(e->ctx);
    if (pool)
        hr_pool_free(t, pool, ordered ? &order : NULL, e, dptr, bytes, retired == HR_RETIRE_TOUCHED);
    else if (retired == HR_RETIRE_UNTOUCHED)
        hr_quarantine_release_one(t, dptr);
    else
        hr_quarantine_add(t, dptr);
    return CUDA_SUCCESS;
}

#define FREE(name, pt)                                                                                                 \
    HR_HOOK(name)(CUdeviceptr dptr, CUstream hStream)                                                                  \
    {                                                                                                                  \
        HR_PASS(name, dptr, hStream);                                                                                  \
        HR_INSIDE();                                                                                                   \
        if (!hr_space_owns(dptr) || !hr_thread_self() || is_for_the_driver(hStream, pt))                               \
            return hr_drv.name(dptr, hStream);                                                                         \
        return release(dptr, hStream, pt);                                                                             \
    }
FREE(cuMemFreeAsync, false)
FREE(cuMemFreeAsync_ptsz, true)

/* --- pools --------------------------------------------------------------------------------------------------------- */

static struct hr_pool *served(CUmemoryPool handle)
{
    struct hr_pool *pool = hr_pool_of(handle);
    return pool && pool->served ? pool : NULL;
}

HR_HOOK(cuMemPoolCreate)(CUmemoryPool *pool, const CUmemPoolProps *poolProps)
{
    HR_PASS(cuMemPoolCreate, pool, poolProps);
    HR_INSIDE();
    CUresult r = hr_drv.cuMemPoolCreate(pool, poolProps);
    if (r == CUDA_SUCCESS)
        hr_pool_created(*pool, poolProps);
    return r;
}

HR_HOOK(cuMemPoolDestroy)(CUmemoryPool pool)
{
    HR_PASS(cuMemPoolDestroy, pool);
    HR_INSIDE();
    struct hr_pool *known = hr_pool_of(pool);
    CUresult r = hr_drv.cuMemPoolDestroy(pool);
    if (r == CUDA_SUCCESS && known)
        hr_pool_destroyed(hr_thread_self(), pool);
    return r;
}

HR_HOOK(cuMemPoolTrimTo)(CUmemoryPool pool, size_t minBytesToKeep)
{
    HR_PASS(cuMemPoolTrimTo, pool, minBytesToKeep);
    HR_INSIDE();
    struct hr_pool *known = served(pool);
    struct hr_thread *t = hr_thread_self();
    CUresult r = hr_drv.cuMemPoolTrimTo(pool, minBytesToKeep);
    if (r == CUDA_SUCCESS && known && t) {
        hr_shelf_sweep(t);
        hr_shelf_trim(t, known, minBytesToKeep);
    }
    return r;
}

HR_HOOK(cuMemPoolSetAttribute)(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
    HR_PASS(cuMemPoolSetAttribute, pool, attr, value);
    HR_INSIDE();
    struct hr_pool *p = served(pool);
    CUresult r = hr_drv.cuMemPoolSetAttribute(pool, attr, value);
    if (r != CUDA_SUCCESS || !p)
        return r;
    cuuint64_t amount;
    int on;
    switch ((int)attr) {
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
        memcpy(&on, value, sizeof on);
        atomic_store(&p->opportunistic, on != 0);
        break;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        memcpy(&on, value, sizeof on);
        atomic_store(&p->internal, on != 0);
        break;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        memcpy(&amount, value, sizeof amount);
        atomic_store(&p->threshold_bytes, amount);
        break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: atomic_store(&p->held_high_bytes, hr_pool_reserved_bytes(p)); break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: atomic_store(&p->used_high_bytes, atomic_load(&p->used_bytes)); break;
    default: break;
    }
    return r;
}

HR_HOOK(cuMemPoolGetAttribute)(CUmemoryPool pool, CUmemPool_attribute attr, void *value)
{
    HR_PASS(cuMemPoolGetAttribute, pool, attr, value);
    HR_INSIDE();
    struct hr_pool *p = served(pool);
    CUresult r = hr_drv.cuMemPoolGetAttribute(pool, attr, value);
    if (r != CUDA_SUCCESS || !p)
        return r;
    cuuint64_t amount;
    switch ((int)attr) {
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: amount = hr_pool_reserved_bytes(p); break;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: amount = atomic_load(&p->held_high_bytes); break;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: amount = atomic_load(&p->used_bytes); break;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: amount = atomic_load(&p->used_high_bytes); break;
    default: return r;
    }
    cuuint64_t drivers; /* what it served while its GPU had no context; as a rule nothing */
    memcpy(&drivers, value, sizeof drivers);
    amount += drivers;
    memcpy(value, &amount, sizeof amount);
    return r;
}

/* What the driver found right becomes a grant of the whole window, which is more than was asked for; the pool's own answer stays. */
static CUresult grant(struct hr_pool *pool, const CUmemAccessDesc *desc)
{
    int gpu = hr_gpu_of_device(desc->location.id);
    if (gpu < 0 || (unsigned)gpu == pool->gpu)
        return CUDA_SUCCESS;
    CUresult r = CUDA_SUCCESS;
    if (desc->flags == CU_MEM_ACCESS_FLAGS_PROT_NONE)
        hr_peers_pool_revoke(pool->number, (unsigned)gpu);
    else
        r = hr_peers_pool_grant(pool->number, (unsigned)gpu, pool->gpu);
    if (r == CUDA_SUCCESS)
        atomic_store(&pool->access[gpu], (uint8_t)desc->flags);
    return r;
}

HR_HOOK(cuMemPoolSetAccess)(CUmemoryPool pool, const CUmemAccessDesc *map, size_t count)
{
    HR_PASS(cuMemPoolSetAccess, pool, map, count);
    HR_INSIDE();
    struct hr_pool *p = served(pool);
    for (size_t i = 0; p && map && i < count; i++)
        if (map[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE && map[i].flags != CU_MEM_ACCESS_FLAGS_PROT_NONE &&
            hr_gpu_of_device(map[i].location.id) >= 0 && !hr_peer_usable(map[i].location.id, hr_gpu_device(p->gpu)))
            return CUDA_ERROR_INVALID_DEVICE; /* as where the hardware has no way */
    CUresult r = hr_drv.cuMemPoolSetAccess(pool, map, count);
    for (size_t i = 0; p && map && i < count && r == CUDA_SUCCESS; i++)
        r = grant(p, &map[i]);
    return r;
}

HR_HOOK(cuDeviceSetMemPool)(CUdevice dev, CUmemoryPool pool)
{
    HR_PASS(cuDeviceSetMemPool, dev, pool);
    HR_INSIDE();
    CUresult r = hr_drv.cuDeviceSetMemPool(dev, pool);
    hr_pool_current_changed();
    return r;
}

HR_HOOK(cuMemSetMemPool)(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool)
{
    HR_PASS(cuMemSetMemPool, location, type, pool);
    HR_INSIDE();
    CUresult r = hr_drv.cuMemSetMemPool(location, type, pool);
    hr_pool_current_changed();
    return r;
}

/* Memory of the window is of pools that cannot be exported, or of none. */
HR_HOOK(cuMemPoolExportPointer)(CUmemPoolPtrExportData *shareData_out, CUdeviceptr ptr)
{
    HR_PASS(cuMemPoolExportPointer, shareData_out, ptr);
    return hr_space_owns(ptr) ? CUDA_ERROR_INVALID_VALUE : hr_drv.cuMemPoolExportPointer(shareData_out, ptr);
}
