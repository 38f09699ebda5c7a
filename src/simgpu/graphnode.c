/* Nodes by type: adding them, and what they are told to do. */
#include "simgpu/graph.h"

#include <stdlib.h>
#include <string.h>

/* ---- adding ---- */

struct adding { /* what all calls have in common */
    const char *api;
    CUgraphNode *node;
    CUgraph graph;
    const CUgraphNode *dependencies;
    const CUgraphEdgeData *data;
    size_t count;
};

/* Enters, and finds the graph. */
static CUresult begin(const struct adding *a, struct sg_graph **graph_out)
{
    CUresult r = sg_enter_graph(a->api, a->graph, graph_out);
    if (r)
        return r;
    return a->node ? CUDA_SUCCESS : sg_leave(CUDA_ERROR_INVALID_VALUE);
}

/* Adds and leaves. The graph is found anew: making the work may have released the lock. */
static CUresult finish(const struct adding *a, CUresult r, struct sg_work *work)
{
    struct sg_node *n;
    struct sg_edges links = {0};
    struct sg_graph *g = SG_FIND(a->graph, SG_GRAPH);
    if (!r && !g) {
        sg_work_unref(work);
        r = CUDA_ERROR_INVALID_VALUE;
    }
    if (r)
        return sg_leave(r);
    r = sg_edges_from(g, a->dependencies, a->data, a->count, &links);
    if (r)
        sg_work_unref(work);
    else
        r = sg_node_add(g, work, &links, &n);
    sg_edges_free(&links);
    if (!r)
        *a->node = SG_HANDLE(CUgraphNode, n);
    return sg_leave(r);
}

static CUresult add_kernel(const struct adding *a, const CUDA_KERNEL_NODE_PARAMS *p)
{
    struct sg_graph *g;
    struct sg_work *w = NULL;
    CUresult r = begin(a, &g);
    if (r)
        return r;
    r = p ? sg_work_kernel(p, &w) : CUDA_ERROR_INVALID_VALUE;
    return finish(a, r, w);
}

static CUDA_KERNEL_NODE_PARAMS from_v1(const CUDA_KERNEL_NODE_PARAMS_v1 *p)
{
    return (CUDA_KERNEL_NODE_PARAMS){.func = p->func,
                                     .gridDimX = p->gridDimX,
                                     .gridDimY = p->gridDimY,
                                     .gridDimZ = p->gridDimZ,
                                     .blockDimX = p->blockDimX,
                                     .blockDimY = p->blockDimY,
                                     .blockDimZ = p->blockDimZ,
                                     .sharedMemBytes = p->sharedMemBytes,
                                     .kernelParams = p->kernelParams,
                                     .extra = p->extra};
}

CUresult cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                              const CUDA_KERNEL_NODE_PARAMS_v1 *params)
{
    struct adding a = {"cuGraphAddKernelNode", node, graph, dependencies, NULL, count};
    CUDA_KERNEL_NODE_PARAMS p = {0};
    if (params)
        p = from_v1(params);
    return add_kernel(&a, params ? &p : NULL);
}

CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                 const CUDA_KERNEL_NODE_PARAMS *params)
{
    struct adding a = {"cuGraphAddKernelNode", node, graph, dependencies, NULL, count};
    return add_kernel(&a, params);
}

CUresult cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                              const CUDA_MEMCPY3D *params, CUcontext ctx)
{
    struct adding a = {"cuGraphAddMemcpyNode", node, graph, dependencies, NULL, count};
    struct sg_graph *g;
    struct sg_work *w = NULL;
    CUresult r = begin(&a, &g);
    if (r)
        return r;
    r = params ? sg_work_copy(params, ctx, &w) : CUDA_ERROR_INVALID_VALUE;
    return finish(&a, r, w);
}

CUresult cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                              const CUDA_MEMSET_NODE_PARAMS *params, CUcontext ctx)
{
    struct adding a = {"cuGraphAddMemsetNode", node, graph, dependencies, NULL, count};
    struct sg_graph *g;
    struct sg_work *w = NULL;
    CUresult r = begin(&a, &g);
    if (r)
        return r;
    r = params ? sg_work_fill(params, ctx, &w) : CUDA_ERROR_INVALID_VALUE;
    return finish(&a, r, w);
}

CUresult cuGraphAddHostNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                            const CUDA_HOST_NODE_PARAMS *params)
{
    struct adding a = {"cuGraphAddHostNode", node, graph, dependencies, NULL, count};
    struct sg_graph *g;
    struct sg_work *w = NULL;
    CUresult r = begin(&a, &g);
    if (r)
        return r;
    r = params ? sg_work_host(params, &w) : CUDA_ERROR_INVALID_VALUE;
    return finish(&a, r, w);
}

CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count)
{
    struct adding a = {"cuGraphAddEmptyNode", node, graph, dependencies, NULL, count};
    struct sg_graph *g;
    CUresult r = begin(&a, &g);
    if (r)
        return r;
    struct sg_work *w = sg_work_new(CU_GRAPH_NODE_TYPE_EMPTY);
    return finish(&a, w ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY, w);
}

static CUresult add_event(const struct adding *a, CUgraphNodeType type, CUevent event)
{
    struct sg_graph *g;
    struct sg_work *w = NULL;
    CUresult r = begin(a, &g);
    if (r)
        return r;
    r = sg_work_event(type, event, &w);
    return finish(a, r, w);
}

CUresult cuGraphAddEventRecordNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                   CUevent event)
{
    struct adding a = {"cuGraphAddEventRecordNode", node, graph, dependencies, NULL, count};
    return add_event(&a, CU_GRAPH_NODE_TYPE_EVENT_RECORD, event);
}

CUresult cuGraphAddEventWaitNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                 CUevent event)
{
    struct adding a = {"cuGraphAddEventWaitNode", node, graph, dependencies, NULL, count};
    return add_event(&a, CU_GRAPH_NODE_TYPE_WAIT_EVENT, event);
}

CUresult cuGraphAddBatchMemOpNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                  const CUDA_BATCH_MEM_OP_NODE_PARAMS *p)
{
    struct adding a = {"cuGraphAddBatchMemOpNode", node, graph, dependencies, NULL, count};
    struct sg_graph *g;
    struct sg_work *w = NULL;
    CUresult r = begin(&a, &g);
    if (r)
        return r;
    r = p ? sg_work_batch(p->ctx, p->count, p->paramArray, p->flags, &w) : CUDA_ERROR_INVALID_VALUE;
    return finish(&a, r, w);
}

/* ---- child graphs ---- */

static bool is_within(const struct sg_graph *g, const struct sg_graph *outer)
{
    for (; g; g = g->owner ? g->owner->graph : NULL)
        if (g == outer)
            return true;
    return false;
}

static CUresult add_child(const struct adding *a, CUgraph handle, int ownership)
{
    struct sg_graph *g;
    struct sg_node *n;
    struct sg_edges links;
    CUresult r = begin(a, &g);
    if (r)
        return r;
    struct sg_graph *child = SG_FIND(handle, SG_GRAPH);
    bool move = ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE;
    if (!child || child->capture || (!move && ownership != CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE) ||
        (move && sg_driver_version < 12090))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (move && (child->owner || is_within(g, child)))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (sg_graph_has(child, CU_GRAPH_NODE_TYPE_CONDITIONAL) || (!move && sg_graph_has_memory(child)))
        return sg_leave(CUDA_ERROR_NOT_SUPPORTED);
    r = sg_edges_from(g, a->dependencies, a->data, a->count, &links);
    if (r)
        return sg_leave(r);
    r = sg_node_add_child(g, child, move, &links, &n);
    sg_edges_free(&links);
    if (!r)
        *a->node = SG_HANDLE(CUgraphNode, n);
    return sg_leave(r);
}

CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                  CUgraph child)
{
    struct adding a = {"cuGraphAddChildGraphNode", node, graph, dependencies, NULL, count};
    return add_child(&a, child, CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE);
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *graph)
{
    struct sg_node *n;
    CUresult r = sg_enter_node("cuGraphChildGraphNodeGetGraph", node, CU_GRAPH_NODE_TYPE_GRAPH, &n);
    if (r)
        return r;
    if (!graph)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *graph = n->handles[0];
    return sg_leave(CUDA_SUCCESS);
}

/* ---- memory ---- */

static CUresult add_alloc(const struct adding *a, CUDA_MEM_ALLOC_NODE_PARAMS *p)
{
    struct sg_graph *g;
    struct sg_work *w = NULL;
    CUresult r = begin(a, &g);
    if (r)
        return r;
    struct sg_graph_memory *m = NULL;
    r = p ? sg_graph_admits(g, CU_GRAPH_NODE_TYPE_MEM_ALLOC) : CUDA_ERROR_INVALID_VALUE;
    if (!r)
        r = sg_graph_memory_create(p, g->object.id, &m);
    if (!r)
        r = sg_work_memory(CU_GRAPH_NODE_TYPE_MEM_ALLOC, m, &w);
    if (r)
        return sg_leave(r);
    uint64_t va = m->va;
    r = finish(a, CUDA_SUCCESS, w);
    if (!r)
        p->dptr = va;
    return r;
}

static CUresult add_free(const struct adding *a, CUdeviceptr dptr)
{
    struct sg_graph *g;
    CUresult r = begin(a, &g);
    if (r)
        return r;
    struct sg_graph_memory *m = sg_graph_memory_at(dptr);
    struct sg_work *w = NULL;
    r = sg_graph_admits(g, CU_GRAPH_NODE_TYPE_MEM_FREE);
    if (!r)
        r = m ? sg_graph_memory_may_free(m, g) : CUDA_ERROR_INVALID_VALUE;
    if (!r)
        r = sg_work_memory(CU_GRAPH_NODE_TYPE_MEM_FREE, sg_graph_memory_ref(m), &w);
    if (r)
        return sg_leave(r);
    uint64_t id = g->object.id;
    r = finish(a, CUDA_SUCCESS, w);
    m = r ? NULL : sg_graph_memory_at(dptr);
    if (m)
        m->freed_by = id;
    return r;
}

CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
    struct adding a = {"cuGraphAddMemAllocNode", node, graph, dependencies, NULL, count};
    return add_alloc(&a, params);
}

CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                               CUdeviceptr dptr)
{
    struct adding a = {"cuGraphAddMemFreeNode", node, graph, dependencies, NULL, count};
    return add_free(&a, dptr);
}

CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
    struct sg_node *n;
    CUresult r = sg_enter_node("cuGraphMemAllocNodeGetParams", node, CU_GRAPH_NODE_TYPE_MEM_ALLOC, &n);
    if (r)
        return r;
    if (!params)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *params = n->work->memory->params;
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr *dptr)
{
    struct sg_node *n;
    CUresult r = sg_enter_node("cuGraphMemFreeNodeGetParams", node, CU_GRAPH_NODE_TYPE_MEM_FREE, &n);
    if (r)
        return r;
    if (!dptr)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *dptr = n->work->memory->va;
    return sg_leave(CUDA_SUCCESS);
}

/* ---- conditional nodes ---- */

static struct sg_condition *find_condition(const struct sg_graph *graph, uint64_t handle)
{
    for (const struct sg_graph *g = graph; g; g = g->owner ? g->owner->graph : NULL)
        for (unsigned i = 0; i < g->condition_count; i++)
            if (g->conditions[i]->handle == handle)
                return g->conditions[i];
    return NULL;
}

static CUresult check_conditional(const struct sg_graph *g, const CUDA_CONDITIONAL_NODE_PARAMS *p,
                                  struct sg_condition **condition_out)
{
    struct sg_condition *c = *condition_out = find_condition(g, p->handle);
    struct sg_context *context;
    CUresult r = sg_context_named(p->ctx, &context);
    if (r)
        return r;
    if (!c || c->used || c->context != context->object.id || (unsigned)p->type > CU_GRAPH_COND_TYPE_SWITCH)
        return CUDA_ERROR_INVALID_VALUE;
    if (sg_driver_version < 12080 && (p->type == CU_GRAPH_COND_TYPE_SWITCH || p->size != 1))
        return CUDA_ERROR_INVALID_VALUE;
    unsigned most = p->type == CU_GRAPH_COND_TYPE_WHILE ? 1 : p->type == CU_GRAPH_COND_TYPE_IF ? 2 : 65536;
    return p->size && p->size <= most ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult add_conditional(const struct adding *a, CUDA_CONDITIONAL_NODE_PARAMS *p)
{
    struct sg_graph *g;
    struct sg_condition *c;
    CUresult r = begin(a, &g);
    if (r)
        return r;
    r = check_conditional(g, p, &c);
    struct sg_work *w = r ? NULL : sg_work_new(CU_GRAPH_NODE_TYPE_CONDITIONAL);
    if (!r && !w)
        r = CUDA_ERROR_OUT_OF_MEMORY;
    if (r)
        return sg_leave(r);
    w->context = c->context;
    w->conditional.condition = sg_condition_ref(c);
    w->conditional.type = p->type;
    w->conditional.size = p->size;
    struct sg_edges links;
    struct sg_node *n;
    r = sg_edges_from(g, a->dependencies, a->data, a->count, &links);
    if (r)
        sg_work_unref(w);
    else
        r = sg_node_add(g, w, &links, &n);
    sg_edges_free(&links);
    if (!r) {
        *a->node = SG_HANDLE(CUgraphNode, n);
        p->phGraph_out = n->handles;
    }
    return sg_leave(r);
}

/* ---- any type ---- */

#define TAIL(member) (offsetof(CUgraphNodeParams, member) + sizeof(((CUgraphNodeParams *)0)->member))

static size_t used_bytes(CUgraphNodeType type)
{
    switch ((int)type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return TAIL(kernel);
    case CU_GRAPH_NODE_TYPE_MEMCPY: return TAIL(memcpy);
    case CU_GRAPH_NODE_TYPE_MEMSET: return TAIL(memset);
    case CU_GRAPH_NODE_TYPE_HOST: return TAIL(host);
    case CU_GRAPH_NODE_TYPE_GRAPH: return TAIL(graph);
    case CU_GRAPH_NODE_TYPE_EMPTY: return offsetof(CUgraphNodeParams, reserved1);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT: return TAIL(eventWait);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD: return TAIL(eventRecord);
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL: return TAIL(extSemSignal);
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT: return TAIL(extSemWait);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: return TAIL(alloc);
    case CU_GRAPH_NODE_TYPE_MEM_FREE: return TAIL(free);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: return TAIL(memOp);
    case CU_GRAPH_NODE_TYPE_CONDITIONAL: return sg_driver_version < 12030 ? 0 : TAIL(conditional);
    default: return 0;
    }
}

/* A known type, and zeros wherever nothing is said. */
static CUresult check_params(const CUgraphNodeParams *p)
{
    size_t used = p ? used_bytes(p->type) : 0;
    const unsigned char *bytes = (const unsigned char *)p;
    if (!used || p->reserved0[0] || p->reserved0[1] || p->reserved0[2])
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = used; i < sizeof *p; i++)
        if (bytes[i])
            return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

static CUDA_MEMSET_NODE_PARAMS memset_v1(const CUDA_MEMSET_NODE_PARAMS_v2 *p)
{
    return (CUDA_MEMSET_NODE_PARAMS){p->dst, p->pitch, p->value, p->elementSize, p->width, p->height};
}

CUresult sg_work_from_params(const CUgraphNodeParams *p, struct sg_work **work_out)
{
    CUresult r = check_params(p);
    if (r)
        return r;
    switch ((int)p->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
        CUDA_KERNEL_NODE_PARAMS k;
        memcpy(&k, &p->kernel, sizeof k); /* version 3 has the same members */
        return sg_work_kernel(&k, work_out);
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        if (p->memcpy.flags || p->memcpy.reserved)
            return CUDA_ERROR_INVALID_VALUE;
        return sg_work_copy(&p->memcpy.copyParams, p->memcpy.copyCtx, work_out);
    case CU_GRAPH_NODE_TYPE_MEMSET: {
        CUDA_MEMSET_NODE_PARAMS m = memset_v1(&p->memset);
        return sg_work_fill(&m, p->memset.ctx, work_out);
    }
    case CU_GRAPH_NODE_TYPE_HOST: return sg_work_host(&(CUDA_HOST_NODE_PARAMS){p->host.fn, p->host.userData}, work_out);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD: return sg_work_event(p->type, p->eventWait.event, work_out);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
        return sg_work_batch(p->memOp.ctx, p->memOp.count, p->memOp.paramArray, p->memOp.flags, work_out);
    case CU_GRAPH_NODE_TYPE_EMPTY:
        *work_out = sg_work_new(CU_GRAPH_NODE_TYPE_EMPTY);
        return *work_out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}

static CUresult add_node(const struct adding *a, CUgraphNodeParams *p)
{
    struct sg_graph *g;
    struct sg_work *w = NULL;
    switch (check_params(p) ? -1 : (int)p->type) {
    case CU_GRAPH_NODE_TYPE_GRAPH: return add_child(a, p->graph.graph, (int)p->graph.ownership);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: {
        CUDA_MEM_ALLOC_NODE_PARAMS m;
        memcpy(&m, &p->alloc, sizeof m); /* version 2 has the same members */
        CUresult r = add_alloc(a, &m);
        if (!r)
            p->alloc.dptr = m.dptr;
        return r;
    }
    case CU_GRAPH_NODE_TYPE_MEM_FREE: return add_free(a, p->free.dptr);
    case CU_GRAPH_NODE_TYPE_CONDITIONAL: return add_conditional(a, &p->conditional);
    default: break;
    }
    CUresult r = begin(a, &g);
    if (r)
        return r;
    r = sg_work_from_params(p, &w);
    if (r == CUDA_ERROR_NOT_SUPPORTED)
        r = sg_unsupported_inside("cuGraphAddNode: a node of this type");
    return finish(a, r, w);
}

CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                        CUgraphNodeParams *params)
{
    struct adding a = {"cuGraphAddNode", node, graph, dependencies, NULL, count};
    return add_node(&a, params);
}

CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                           const CUgraphEdgeData *data, size_t count, CUgraphNodeParams *params)
{
    struct adding a = {"cuGraphAddNode", node, graph, dependencies, data, count};
    return add_node(&a, params);
}
