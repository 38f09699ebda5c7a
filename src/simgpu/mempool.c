/* The API of memory pools and of stream-ordered memory; see mempool.h for how it works. */
#include "simgpu/mempool.h"

#include "simgpu/capture.h"
#include "simgpu/check.h"
#include "simgpu/share.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Default and current pools: of each device, of host memory, and of its NUMA nodes (which have one of the latter). */
static struct slot {
    struct sg_mempool *standard, *current;
} of_device[SG_MAX_DEVICES], of_host, *of_node;

static struct sg_mempool *find_pool(CUmemoryPool handle)
{
    return SG_FIND(handle, SG_MEMPOOL);
}

static struct sg_mempool *pool_new(const CUmemPoolProps *props, int device)
{
    struct sg_mempool *pool = calloc(1, sizeof *pool);
    if (!pool)
        return NULL;
    pool->props = *props;
    pool->device = device;
    pool->max_bytes = props->maxSize;
    pool->follow_events = pool->opportunistic = pool->internal = 1;
    if (device != SG_ON_HOST)
        pool->access[device] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    sg_object_add(&pool->object, SG_MEMPOOL);
    DL_APPEND(sg.mempools, pool);
    return pool;
}

/* Made when it is first asked for. */
static CUresult standard_pool(const CUmemLocation *location, struct sg_mempool ***current_out,
                              struct sg_mempool **standard_out)
{
    struct slot *slot = &of_host;
    int device = SG_ON_HOST;
    switch (location->type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        if (location->id < 0 || location->id >= sg.device_count)
            return CUDA_ERROR_INVALID_DEVICE;
        device = location->id;
        slot = &of_device[device];
        break;
    case CU_MEM_LOCATION_TYPE_HOST: break;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
        if (location->id < 0 || location->id >= sg.numa_nodes)
            return CUDA_ERROR_INVALID_VALUE;
        if (!of_node)
            of_node = calloc((size_t)sg.numa_nodes, sizeof *of_node);
        if (!of_node)
            return CUDA_ERROR_OUT_OF_MEMORY;
        slot = &of_node[location->id];
        break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    if (!slot->standard) {
        CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = *location};
        slot->standard = slot->current = pool_new(&props, device);
        if (!slot->standard)
            return CUDA_ERROR_OUT_OF_MEMORY;
        slot->standard->is_default = true;
    }
    *current_out = &slot->current;
    *standard_out = slot->standard;
    return CUDA_SUCCESS;
}

/* ---- allocating and freeing ---- */

static struct sg_op *span_op(enum sg_op_kind kind, struct sg_span *span)
{
    struct sg_op *op = sg_op_new(kind);
    if (op) {
        op->span = span;
        span->refs++;
    }
    return op;
}

/* The node gets what the pool's properties and its devices' access are now. */
static CUresult alloc_captured(struct sg_stream *s, CUdeviceptr *dptr, size_t bytes, const struct sg_mempool *pool)
{
    CUmemAccessDesc access[SG_MAX_DEVICES];
    CUDA_MEM_ALLOC_NODE_PARAMS p = {.bytesize = bytes, .accessDescs = access};
    p.poolProps.allocType = pool->props.allocType;
    p.poolProps.location = pool->props.location;
    p.poolProps.handleTypes = pool->props.handleTypes;
    for (int d = 0; d < sg.device_count; d++)
        if (d != pool->device && pool->access[d])
            access[p.accessDescCount++] = (CUmemAccessDesc){.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = d},
                                                            .flags = (CUmemAccess_flags)pool->access[d]};
    return sg_capture_alloc(s, &p, dptr);
}

/* Without a pool: from the current one of the stream's device. Leaves. */
static CUresult alloc_async(struct sg_stream *s, CUdeviceptr *dptr, size_t bytes, struct sg_mempool *pool)
{
    if (!dptr || !bytes)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    struct sg_mempool **current = &pool, *standard;
    CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = s->context->device};
    CUresult r = pool ? CUDA_SUCCESS : standard_pool(&here, &current, &standard);
    if (r)
        return sg_leave(r);
    pool = *current;
    if (pool->imported)
        return sg_leave(CUDA_ERROR_INVALID_VALUE); /* these give nothing new */
    if (s->captured)
        return sg_leave(alloc_captured(s, dptr, bytes, pool));
    if (bytes > UINT64_C(1) << (SG_VA_BITS - 1))
        return sg_leave(CUDA_ERROR_OUT_OF_MEMORY);
    struct sg_piece *p;
    r = sg_piece_take(pool, s, bytes, &p);
    struct sg_op *op = r ? NULL : span_op(SG_OP_ALLOC, p->span);
    if (!r && !op) {
        free(p->alloc);
        sg_piece_give(p, NULL, NULL);
        r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (r)
        return sg_leave(r);
    *dptr = p->va;
    return sg_leave(sg_submit_async(s, op));
}

static CUresult alloc_from_current(CUdeviceptr *dptr, size_t bytes, CUstream stream, bool per_thread)
{
    struct sg_stream *s;
    CUresult r = sg_enter_work("cuMemAllocAsync", stream, per_thread, &s);
    return r ? r : alloc_async(s, dptr, bytes, NULL);
}

CUresult cuMemAllocAsync(CUdeviceptr *dptr, size_t bytesize, CUstream stream)
{
    return alloc_from_current(dptr, bytesize, stream, false);
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUstream stream)
{
    return alloc_from_current(dptr, bytesize, stream, true);
}

static CUresult alloc_from_pool(CUdeviceptr *dptr, size_t bytes, CUmemoryPool handle, CUstream stream, bool per_thread)
{
    struct sg_stream *s;
    CUresult r = sg_enter_work("cuMemAllocFromPoolAsync", stream, per_thread, &s);
    if (r)
        return r;
    struct sg_mempool *pool = find_pool(handle);
    return pool ? alloc_async(s, dptr, bytes, pool) : sg_leave(CUDA_ERROR_INVALID_VALUE);
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream stream)
{
    return alloc_from_pool(dptr, bytesize, pool, stream, false);
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *dptr, size_t bytesize, CUmemoryPool pool, CUstream stream)
{
    return alloc_from_pool(dptr, bytesize, pool, stream, true);
}

/* Queues the free and a recording behind it; the allocation is no more. */
static CUresult free_in_order(struct sg_alloc *a, struct sg_stream *s)
{
    struct sg_piece *p = a->piece;
    struct sg_span *span = p ? p->span : sg_foreign_span(a);
    struct sg_mark *mark = sg_mark_new(s->context);
    struct sg_op *op = span && mark ? span_op(SG_OP_FREE, span) : NULL, *record = op ? sg_op_new(SG_OP_RECORD) : NULL;
    if (!record) {
        free(mark);
        if (op)
            sg_span_unref(span);
        if (!p)
            sg_span_unref(span);
        free(op);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    record->mark = sg_mark_ref(mark);
    sg_note_freed_later(a->region.va, a->region.bytes);
    struct sg_place place = sg_place_of_next(s);
    if (p) {
        sg_piece_give(p, mark, &place);
        free(a);
    } else {
        sg_foreign_forget(a); /* its memory goes with the span */
        sg_span_unref(span);
    }
    sg_submit(s, op);
    sg_order_begin(s);
    sg_order_recorded(mark, s);
    CUresult r = sg_submit_async(s, record);
    sg_mark_unref(mark);
    return r;
}

/* Memory that cuMemFreeAsync may free: a pool's, also of another process's pool. */
static struct sg_alloc *find_ordered(CUdeviceptr dptr)
{
    struct sg_alloc *a = sg_alloc_at(dptr);
    return a && a->region.va == dptr && (a->piece || sg_is_pool_import(a)) ? a : NULL;
}

static CUresult free_async(CUdeviceptr dptr, CUstream stream, bool per_thread)
{
    struct sg_stream *s;
    CUresult r = sg_enter_work("cuMemFreeAsync", stream, per_thread, &s);
    if (r)
        return r;
    if (!dptr)
        return sg_leave(CUDA_SUCCESS);
    if (s->captured)
        return sg_leave(sg_capture_free(s, dptr));
    struct sg_graph_memory *of_graph = sg_graph_memory_at(dptr);
    if (of_graph)
        return sg_leave(sg_graph_memory_free_in(of_graph, s));
    struct sg_alloc *a = find_ordered(dptr);
    struct sg_alloc *other = sg_alloc_at(dptr);
    if (!a && other && other->region.va == dptr && !other->is_module)
        sg_log(SG_LOG_WARN, "cuMemFreeAsync(0x%" PRIx64 "): not memory of a pool", (uint64_t)dptr);
    return sg_leave(a ? free_in_order(a, s) : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuMemFreeAsync(CUdeviceptr dptr, CUstream stream)
{
    return free_async(dptr, stream, false);
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr dptr, CUstream stream)
{
    return free_async(dptr, stream, true);
}

CUresult sg_mempool_free_now(struct sg_alloc *a)
{
    char text[256];
    struct sg_piece *p = a->piece;
    struct sg_mempool *pool = p->segment->pool;
    if (p->span->stream) /* its stream has not got there: it goes behind that */
        return free_in_order(a, p->span->stream);
    if (sg_in_flight(p->va, a->region.bytes, ~0u, text, sizeof text)) {
        sg.devices[pool->device == SG_ON_HOST ? 0 : pool->device].freed_in_flight++;
        sg_log(SG_LOG_WARN, "freed in flight: cuMemFree(0x%" PRIx64 "), %" PRIu64 " bytes of a pool, %s", p->va,
               a->region.bytes, text);
    }
    sg_note_freed(a->region.va, a->region.bytes);
    sg_span_end(p->span);
    free(a);
    sg_piece_give(p, NULL, NULL);
    sg_mempool_drop(pool);
    return CUDA_SUCCESS;
}

/* ---- pools ---- */

static CUresult check_props(const CUmemPoolProps *props, int *device_out)
{
    static const unsigned char zeros[sizeof props->reserved];
    if (!props || memcmp(props->reserved, zeros, sizeof zeros) != 0 || props->win32SecurityAttributes ||
        (props->usage & ~(unsigned)CU_MEM_CREATE_USAGE_HW_DECOMPRESS))
        return CUDA_ERROR_INVALID_VALUE;
    if (props->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED && sg_driver_version >= 13000)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (props->location.type == CU_MEM_LOCATION_TYPE_HOST && props->handleTypes)
        return CUDA_ERROR_INVALID_VALUE;
    if (props->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA && props->handleTypes)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (props->usage)
        return CUDA_ERROR_NOT_SUPPORTED; /* no decompression engine */
    CUmemAllocationProp chunk = {
        .type = props->allocType, .requestedHandleTypes = props->handleTypes, .location = props->location};
    CUresult r = sg_chunk_check(&chunk, device_out);
    if (!r && *device_out == SG_ON_HOST && sg.config.deny_host_numa)
        r = CUDA_ERROR_NOT_PERMITTED;
    return r == CUDA_ERROR_INVALID_DEVICE ? CUDA_ERROR_INVALID_VALUE : r;
}

CUresult cuMemPoolCreate(CUmemoryPool *pool_out, const CUmemPoolProps *props)
{
    CUresult r = sg_enter("cuMemPoolCreate");
    if (r)
        return r;
    int device = 0;
    r = pool_out ? check_props(props, &device) : CUDA_ERROR_INVALID_VALUE;
    if (r)
        return sg_leave(r);
    struct sg_mempool *pool = pool_new(props, device);
    if (!pool)
        return sg_leave(CUDA_ERROR_OUT_OF_MEMORY);
    if (props->handleTypes)
        r = sg_mempool_make_shareable(pool);
    if (r) {
        sg_object_remove(&pool->object);
        pool->object.id = 0;
        sg_mempool_drop(pool);
        return sg_leave(r);
    }
    *pool_out = SG_HANDLE(CUmemoryPool, pool);
    return sg_leave(CUDA_SUCCESS);
}

static void replace_current(const struct sg_mempool *pool)
{
    for (int d = 0; d < sg.device_count; d++)
        if (of_device[d].current == pool)
            of_device[d].current = of_device[d].standard;
    if (of_host.current == pool)
        of_host.current = of_host.standard;
    for (int n = 0; of_node && n < sg.numa_nodes; n++)
        if (of_node[n].current == pool)
            of_node[n].current = of_node[n].standard;
}

CUresult cuMemPoolDestroy(CUmemoryPool handle)
{
    CUresult r = sg_enter("cuMemPoolDestroy");
    if (r)
        return r;
    struct sg_mempool *pool = find_pool(handle);
    if (!pool || pool->is_default)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    replace_current(pool);
    sg_object_remove(&pool->object);
    pool->object.id = 0;
    sg_mempool_drop(pool);
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep_bytes)
{
    CUresult r = sg_enter("cuMemPoolTrimTo");
    if (r)
        return r;
    struct sg_mempool *pool = find_pool(handle);
    if (!pool || pool->imported)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    sg_mempool_trim(pool, keep_bytes);
    return sg_leave(CUDA_SUCCESS);
}

static int *policy_of(struct sg_mempool *pool, CUmemPool_attribute attribute)
{
    switch ((int)attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES: return &pool->follow_events;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC: return &pool->opportunistic;
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: return &pool->internal;
    default: return NULL;
    }
}

static uint64_t *amount_of(struct sg_mempool *pool, CUmemPool_attribute attribute)
{
    switch ((int)attribute) {
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: return &pool->threshold_bytes;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: return &pool->reserved_bytes;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: return &pool->reserved_high_bytes;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: return &pool->used_bytes;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: return &pool->used_high_bytes;
    default: return NULL;
    }
}

/* Sets an amount: the threshold, or a mark back to where things are. */
static CUresult set_amount(struct sg_mempool *pool, CUmemPool_attribute attribute, uint64_t amount)
{
    uint64_t *at = amount_of(pool, attribute);
    if (!at)
        return CUDA_ERROR_INVALID_VALUE;
    if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) {
        *at = amount;
        return CUDA_SUCCESS;
    }
    bool reserved = attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH;
    if (amount || (!reserved && attribute != CU_MEMPOOL_ATTR_USED_MEM_HIGH))
        return CUDA_ERROR_INVALID_VALUE;
    *at = reserved ? pool->reserved_bytes : pool->used_bytes;
    return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
    CUresult r = sg_enter("cuMemPoolSetAttribute");
    if (r)
        return r;
    struct sg_mempool *pool = find_pool(handle);
    if (!pool || !value || pool->imported)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    int *policy = policy_of(pool, attribute), on;
    cuuint64_t amount;
    if (!policy) {
        memcpy(&amount, value, sizeof amount);
        return sg_leave(set_amount(pool, attribute, amount));
    }
    memcpy(&on, value, sizeof on);
    *policy = on != 0;
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuMemPoolGetAttribute(CUmemoryPool handle, CUmemPool_attribute attribute, void *value)
{
    CUresult r = sg_enter("cuMemPoolGetAttribute");
    if (r)
        return r;
    struct sg_mempool *pool = find_pool(handle);
    if (!pool || !value || pool->imported)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    const int *policy = policy_of(pool, attribute);
    const uint64_t *amount = amount_of(pool, attribute);
    if (policy)
        memcpy(value, policy, sizeof *policy);
    else if (amount)
        memcpy(value, amount, sizeof *amount);
    return sg_leave(policy || amount ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

/* ---- access ---- */

static CUresult check_access(const struct sg_mempool *pool, const CUmemAccessDesc *desc)
{
    int device = desc->location.id;
    if ((desc->flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && desc->flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
         desc->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) ||
        desc->location.type != CU_MEM_LOCATION_TYPE_DEVICE || device < 0 || device >= sg.device_count)
        return CUDA_ERROR_INVALID_VALUE;
    if (device == pool->device) /* a device cannot be kept from its own memory */
        return desc->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    return pool->device == SG_ON_HOST || sg_can_reach(device, pool->device) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc *map, size_t count)
{
    CUresult r = sg_enter("cuMemPoolSetAccess");
    if (r)
        return r;
    struct sg_mempool *pool = find_pool(handle);
    if (!pool || !map || !count)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    for (size_t i = 0; i < count; i++) {
        r = check_access(pool, &map[i]);
        if (r)
            return sg_leave(r);
    }
    for (size_t i = 0; i < count; i++) {
        pool->access[map[i].location.id] = (uint8_t)map[i].flags;
        sg_mempool_show(pool, map[i].location.id);
        sg_time_units(SG_UNIT_CHUNK_ACCESS, (double)(pool->reserved_bytes >> SG_PAGE_SHIFT));
    }
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool handle, CUmemLocation *location)
{
    CUresult r = sg_enter("cuMemPoolGetAccess");
    if (r)
        return r;
    struct sg_mempool *pool = find_pool(handle);
    if (!flags || !pool || !location)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    bool host = location->type == CU_MEM_LOCATION_TYPE_HOST || location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
    if (!host && (location->type != CU_MEM_LOCATION_TYPE_DEVICE || location->id < 0 || location->id >= sg.device_count))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *flags = host ? pool->device == SG_ON_HOST ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE
                  : (CUmemAccess_flags)pool->access[location->id];
    return sg_leave(CUDA_SUCCESS);
}

/* ---- which pool a place allocates from ---- */

static CUresult check_type(const CUmemLocation *location, CUmemAllocationType type)
{
    if (!location)
        return CUDA_ERROR_INVALID_VALUE;
    if (type == CU_MEM_ALLOCATION_TYPE_MANAGED)
        return CUDA_ERROR_NOT_SUPPORTED;
    return type == CU_MEM_ALLOCATION_TYPE_PINNED ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult get_pool(const char *function, CUmemoryPool *pool_out, const CUmemLocation *location,
                         CUmemAllocationType type, bool default_one)
{
    struct sg_mempool **current, *standard;
    CUresult r = sg_enter(function);
    if (r)
        return r;
    r = pool_out ? check_type(location, type) : CUDA_ERROR_INVALID_VALUE;
    if (!r)
        r = standard_pool(location, &current, &standard);
    if (!r)
        *pool_out = default_one ? SG_HANDLE(CUmemoryPool, standard) : SG_HANDLE(CUmemoryPool, *current);
    return sg_leave(r);
}

static CUresult set_pool(const char *function, const CUmemLocation *location, CUmemAllocationType type,
                         CUmemoryPool handle)
{
    struct sg_mempool **current, *standard;
    CUresult r = sg_enter(function);
    if (r)
        return r;
    struct sg_mempool *pool = find_pool(handle);
    r = pool ? check_type(location, type) : CUDA_ERROR_INVALID_VALUE;
    if (!r)
        r = standard_pool(location, &current, &standard);
    bool host = !r && location->type == CU_MEM_LOCATION_TYPE_HOST;
    if (!r && (pool->imported || pool->props.location.type != location->type ||
               (!host && pool->props.location.id != location->id)))
        r = CUDA_ERROR_INVALID_VALUE; /* it must be local */
    if (!r)
        *current = pool;
    return sg_leave(r);
}

static CUmemLocation on_device(CUdevice device)
{
    return (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool_out, CUdevice dev)
{
    CUmemLocation location = on_device(dev);
    return get_pool("cuDeviceGetDefaultMemPool", pool_out, &location, CU_MEM_ALLOCATION_TYPE_PINNED, true);
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice dev)
{
    CUmemLocation location = on_device(dev);
    return get_pool("cuDeviceGetMemPool", pool, &location, CU_MEM_ALLOCATION_TYPE_PINNED, false);
}

CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool pool)
{
    CUmemLocation location = on_device(dev);
    return set_pool("cuDeviceSetMemPool", &location, CU_MEM_ALLOCATION_TYPE_PINNED, pool);
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool_out, CUmemLocation *location, CUmemAllocationType type)
{
    return get_pool("cuMemGetDefaultMemPool", pool_out, location, type, true);
}

CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
    return get_pool("cuMemGetMemPool", pool, location, type, false);
}

CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool)
{
    return set_pool("cuMemSetMemPool", location, type, pool);
}
