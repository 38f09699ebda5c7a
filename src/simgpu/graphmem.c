/*
 * Memory of allocation nodes. Its addresses are there from the node's making to the graph's end; what lies behind them is there,
 * for kernels and copies, only from the allocation's place in a launch to the place where it is freed, so that whoever comes too
 * early or too late is told. Physical memory is taken when it is first launched (or uploaded) and kept for the next launch until
 * cuDeviceGraphMemTrim or the end of the graph.
 *
 * Whether an allocation is free is counted as launches are made; the mapping follows in the device's time.
 */
#include "simgpu/check.h"
#include "simgpu/graph.h"

#include <stdlib.h>

static struct device_memory {
    struct sg_graph_memory *all;
    uint64_t used, used_high, reserved, reserved_high;
} of_device[SG_MAX_DEVICES];

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static uint64_t chunk_bytes(const struct sg_graph_memory *m)
{
    return m->chunk ? (uint64_t)m->chunk->pages << SG_PAGE_SHIFT : 0;
}

static CUresult check_access(const CUDA_MEM_ALLOC_NODE_PARAMS *p)
{
    if (p->accessDescCount > (size_t)sg.device_count || (p->accessDescCount && !p->accessDescs))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < p->accessDescCount; i++) {
        const CUmemAccessDesc *d = &p->accessDescs[i];
        if (d->location.type != CU_MEM_LOCATION_TYPE_DEVICE || d->location.id < 0 ||
            d->location.id >= sg.device_count ||
            (d->flags != CU_MEM_ACCESS_FLAGS_PROT_READ && d->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE))
            return CUDA_ERROR_INVALID_VALUE;
        if (d->location.id != p->poolProps.location.id && !sg_can_reach(d->location.id, p->poolProps.location.id))
            return CUDA_ERROR_INVALID_DEVICE;
    }
    return CUDA_SUCCESS;
}

static CUresult check(const CUDA_MEM_ALLOC_NODE_PARAMS *p)
{
    const CUmemPoolProps *pool = &p->poolProps;
    if (!p->bytesize || pool->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
        pool->handleTypes != CU_MEM_HANDLE_TYPE_NONE)
        return CUDA_ERROR_INVALID_VALUE;
    if (pool->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (pool->location.id < 0 || pool->location.id >= sg.device_count)
        return CUDA_ERROR_INVALID_DEVICE;
    return check_access(p);
}

/* The context whose memory it is: the current one if that is the device's, else the primary one. */
static struct sg_context *context_for(int device)
{
    bool dead;
    struct sg_context *c = sg_current(&dead);
    if (c && c->device == device && !c->sticky)
        return c;
    c = sg.devices[device].primary;
    return c && c->active && !c->sticky ? c : NULL;
}

CUresult sg_graph_memory_create(const CUDA_MEM_ALLOC_NODE_PARAMS *p, uint64_t graph,
                                struct sg_graph_memory **memory_out)
{
    CUresult r = check(p);
    if (r)
        return r;
    struct sg_context *c = context_for(p->poolProps.location.id);
    struct sg_graph_memory *m = c ? calloc(1, sizeof *m) : NULL;
    CUmemAccessDesc *access = m ? calloc(p->accessDescCount + 1, sizeof *access) : NULL;
    if (!access) {
        free(m);
        return c ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_CONTEXT;
    }
    m->refs = 1;
    m->device = c->device;
    m->params = *p;
    m->params.accessDescs = access;
    for (size_t i = 0; i < p->accessDescCount; i++)
        access[i] = p->accessDescs[i];
    m->bytes = p->bytesize;
    m->graph = graph;
    r = sg_alloc_reserve(c, m->bytes, &m->alloc);
    if (r) {
        free(access);
        free(m);
        return r;
    }
    m->alloc->graph = m;
    m->va = m->params.dptr = m->alloc->region.va;
    DL_APPEND(of_device[m->device].all, m);
    *memory_out = m;
    return CUDA_SUCCESS;
}

struct sg_graph_memory *sg_graph_memory_ref(struct sg_graph_memory *m)
{
    m->refs++;
    return m;
}

static void drop_chunk(struct sg_graph_memory *m)
{
    if (!m->chunk)
        return;
    of_device[m->device].reserved -= chunk_bytes(m);
    sg_chunk_destroy(m->chunk);
    m->chunk = NULL;
}

void sg_graph_memory_note(struct sg_graph_memory *m, bool allocated)
{
    struct device_memory *d = &of_device[m->device];
    if (m->allocated == allocated)
        return;
    m->allocated = allocated;
    d->used = allocated ? d->used + m->bytes : d->used - m->bytes;
    d->used_high = larger(d->used_high, d->used);
}

/* What is still allocated when its graph has gone stays, until it is freed. */
void sg_graph_memory_unref(struct sg_graph_memory *m)
{
    if (!m || --m->refs)
        return;
    if (m->allocated && m->alloc) {
        m->orphan = true;
        m->refs = 1; /* whoever frees it gives this one back */
        return;
    }
    sg_graph_memory_note(m, false);
    if (m->alloc) {
        struct sg_alloc *a = m->alloc;
        sg_alloc_back(a, NULL);
        a->graph = NULL;
        sg_alloc_destroy(a);
    }
    drop_chunk(m);
    DL_DELETE(of_device[m->device].all, m);
    free((void *)(uintptr_t)m->params.accessDescs);
    free(m);
}

struct sg_graph_memory *sg_graph_memory_at(uint64_t va)
{
    struct sg_alloc *a = sg_alloc_at(va);
    return a && a->graph && a->region.va == va ? a->graph : NULL;
}

CUresult sg_graph_memory_back(struct sg_graph_memory *m)
{
    if (!m->alloc)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (m->chunk)
        return CUDA_SUCCESS;
    struct device_memory *d = &of_device[m->device];
    CUresult r = sg_chunk_create(m->device, m->alloc->reserved_bytes >> SG_PAGE_SHIFT, false, &m->chunk);
    if (r)
        return r;
    d->reserved += chunk_bytes(m);
    d->reserved_high = larger(d->reserved_high, d->reserved);
    return CUDA_SUCCESS;
}

void sg_graph_memory_map(struct sg_graph_memory *m)
{
    if (!m->alloc || !m->chunk)
        return; /* its context ended meanwhile */
    sg_alloc_back(m->alloc, m->chunk);
    for (size_t i = 0; i < m->params.accessDescCount; i++) {
        const CUmemAccessDesc *d = &m->params.accessDescs[i];
        uint64_t write = d->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? SG_PTE_WRITE : 0;
        sg_pagetable_set(d->location.id, m->va, m->chunk, m->chunk->pages, SG_PTE_READ | write);
    }
}

CUresult sg_graph_memory_may_free(const struct sg_graph_memory *m, const struct sg_graph *g)
{
    bool elsewhere =
        m->freed_by && sg_object_find(m->freed_by, SG_GRAPH) && (m->freed_by == m->graph || m->graph == g->object.id);
    return m->freed_by == g->object.id || elsewhere ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static void give_back_own(struct sg_graph_memory *m)
{
    if (!m->orphan)
        return;
    m->orphan = false;
    sg_graph_memory_unref(m);
}

void sg_graph_memory_unmap(struct sg_graph_memory *m)
{
    if (m->alloc)
        sg_alloc_back(m->alloc, NULL);
    give_back_own(m);
}

CUresult sg_graph_memory_free(struct sg_graph_memory *m)
{
    sg_graph_memory_note(m, false);
    sg_graph_memory_unmap(m);
    return CUDA_SUCCESS;
}

void sg_graph_memory_gone(struct sg_graph_memory *m)
{
    struct sg_alloc *a = m->alloc;
    m->alloc = NULL;
    a->graph = NULL;
    sg_graph_memory_note(m, false);
    if (a->chunk) { /* which goes with it */
        of_device[m->device].reserved -= chunk_bytes(m);
        m->chunk = NULL;
    }
    drop_chunk(m);
    give_back_own(m);
}

/* ---- the API ---- */

static CUresult enter_device(const char *api, CUdevice device)
{
    CUresult r = sg_enter(api);
    if (r)
        return r;
    return device < 0 || device >= sg.device_count ? sg_leave(CUDA_ERROR_INVALID_DEVICE) : CUDA_SUCCESS;
}

CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    CUresult r = enter_device("cuDeviceGraphMemTrim", device);
    if (r)
        return r;
    struct sg_graph_memory *m;
    DL_FOREACH(of_device[device].all, m)
    if (!m->allocated && !m->in_flight)
        drop_chunk(m);
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void *value)
{
    CUresult r = enter_device("cuDeviceGetGraphMemAttribute", device);
    if (r)
        return r;
    const struct device_memory *d = &of_device[device];
    cuuint64_t *out = value;
    if (!value)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    switch ((int)attr) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT: *out = d->used; break;
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH: *out = d->used_high; break;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT: *out = d->reserved; break;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH: *out = d->reserved_high; break;
    default: return sg_leave(CUDA_ERROR_INVALID_VALUE);
    }
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuDeviceSetGraphMemAttribute(CUdevice device, CUgraphMem_attribute attr, void *value)
{
    CUresult r = enter_device("cuDeviceSetGraphMemAttribute", device);
    if (r)
        return r;
    struct device_memory *d = &of_device[device];
    if (!value || *(const cuuint64_t *)value) /* a high watermark can only be reset */
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    switch ((int)attr) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH: d->used_high = d->used; break;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH: d->reserved_high = d->reserved; break;
    default: return sg_leave(CUDA_ERROR_INVALID_VALUE);
    }
    return sg_leave(CUDA_SUCCESS);
}
