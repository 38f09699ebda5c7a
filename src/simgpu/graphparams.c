/* Nodes' parameters: told, set, and set in executable graphs; attributes of kernel nodes. */
#include "simgpu/graph.h"

#include <stdlib.h>
#include <string.h>

/* ---- setting: in a node, or in what an executable graph made of it ---- */

struct target {
    const char *api;
    bool in_exec;
    CUgraphExec exec;
    CUgraphNode node;
    int type; /* that the node must have; -1: that of the work */
};

static struct sg_node *twin(const struct sg_exec *e, uint64_t node)
{
    for (size_t i = 0; i < e->node_count; i++)
        if (e->nodes[i]->origin == node)
            return e->nodes[i];
    return NULL;
}

/* The node of the shape that stands for a node of the graph that the executable one was made from. */
static CUresult enter_twin(const char *api, CUgraphExec exec, CUgraphNode node, int type, struct sg_exec **exec_out,
                           struct sg_node **twin_out)
{
    CUresult r = sg_enter_exec(api, exec, exec_out);
    if (r)
        return r;
    const struct sg_node *n = SG_FIND(node, SG_NODE);
    *twin_out = n ? twin(*exec_out, n->object.id) : NULL;
    return *twin_out && (type < 0 || (int)(*twin_out)->work->type == type) ? CUDA_SUCCESS
                                                                           : sg_leave(CUDA_ERROR_INVALID_VALUE);
}

static CUresult enter_target(const struct target *t, struct sg_exec **exec_out, struct sg_node **node_out)
{
    return t->in_exec ? enter_twin(t->api, t->exec, t->node, t->type, exec_out, node_out)
                      : sg_enter_node(t->api, t->node, t->type, node_out);
}

/* A kernel keeps its attributes when its parameters are set. */
static CUresult keep_attributes(const struct sg_work *old, struct sg_work **work_io)
{
    struct sg_work *with;
    if (old->type != CU_GRAPH_NODE_TYPE_KERNEL || !old->kernel.attributes || (*work_io)->kernel.attributes)
        return CUDA_SUCCESS;
    CUresult r = sg_work_with_attributes(*work_io, old->kernel.attributes, &with);
    if (!r) {
        sg_work_unref(*work_io);
        *work_io = with;
    }
    return r;
}

/* Checks what may change in an executable graph, and places it there. */
static CUresult fit(const struct sg_exec *e, const struct sg_node *n, struct sg_work **work_io)
{
    CUgraphExecUpdateResult result;
    struct sg_work *placed;
    CUresult r = CUDA_SUCCESS;
    if ((*work_io)->type == CU_GRAPH_NODE_TYPE_MEMCPY || (*work_io)->type == CU_GRAPH_NODE_TYPE_MEMSET) {
        r = sg_work_still_placed(n->work);
        if (!r)
            r = sg_work_place(*work_io, &placed);
        if (!r) {
            sg_work_unref(*work_io);
            *work_io = placed;
        }
    }
    return r ? r : sg_exec_may_change(e, n->work, *work_io, &result);
}

/* Takes the work over; leaves. Both ends are found anew: making the work may have released the lock. */
static CUresult set_work(const struct target *t, CUresult r, struct sg_work *w)
{
    struct sg_exec *e = t->in_exec ? SG_FIND(t->exec, SG_EXEC) : NULL;
    struct sg_node *n = SG_FIND(t->node, SG_NODE);
    if (!r && n && e)
        n = twin(e, n->object.id);
    if (!r && (!n || (t->in_exec && !e) || n->work->type != w->type))
        r = CUDA_ERROR_INVALID_VALUE;
    if (!r)
        r = keep_attributes(n->work, &w);
    if (!r && e)
        r = fit(e, n, &w);
    if (r)
        sg_work_unref(w);
    else
        sg_node_set_work(n, w);
    return sg_leave(r);
}

static CUresult set_kernel(const struct target *t, const CUDA_KERNEL_NODE_PARAMS *p)
{
    struct sg_exec *e;
    struct sg_node *n;
    struct sg_work *w = NULL;
    CUresult r = enter_target(t, &e, &n);
    if (r)
        return r;
    r = p ? sg_work_kernel(p, &w) : CUDA_ERROR_INVALID_VALUE;
    return set_work(t, r, w);
}

static CUresult set_kernel_v1(const struct target *t, const CUDA_KERNEL_NODE_PARAMS_v1 *p)
{
    CUDA_KERNEL_NODE_PARAMS k = {0};
    if (p)
        memcpy(&k, p, sizeof *p); /* the first members of version 2 */
    return set_kernel(t, p ? &k : NULL);
}

CUresult cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *params)
{
    struct target t = {"cuGraphKernelNodeSetParams", false, NULL, node, CU_GRAPH_NODE_TYPE_KERNEL};
    return set_kernel_v1(&t, params);
}

CUresult cuGraphKernelNodeSetParams_v2(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *params)
{
    struct target t = {"cuGraphKernelNodeSetParams", false, NULL, node, CU_GRAPH_NODE_TYPE_KERNEL};
    return set_kernel(&t, params);
}

CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *params)
{
    struct target t = {"cuGraphExecKernelNodeSetParams", true, exec, node, CU_GRAPH_NODE_TYPE_KERNEL};
    return set_kernel_v1(&t, params);
}

CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *params)
{
    struct target t = {"cuGraphExecKernelNodeSetParams", true, exec, node, CU_GRAPH_NODE_TYPE_KERNEL};
    return set_kernel(&t, params);
}

static CUresult set_copy(const struct target *t, const CUDA_MEMCPY3D *p, CUcontext ctx)
{
    struct sg_exec *e;
    struct sg_node *n;
    struct sg_work *w = NULL;
    CUresult r = enter_target(t, &e, &n);
    if (r)
        return r;
    if (!t->in_exec)
        ctx = (CUcontext)(uintptr_t)n->work->context;
    r = p ? sg_work_copy(p, ctx, &w) : CUDA_ERROR_INVALID_VALUE;
    return set_work(t, r, w);
}

CUresult cuGraphMemcpyNodeSetParams(CUgraphNode node, const CUDA_MEMCPY3D *params)
{
    struct target t = {"cuGraphMemcpyNodeSetParams", false, NULL, node, CU_GRAPH_NODE_TYPE_MEMCPY};
    return set_copy(&t, params, NULL);
}

CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D *params, CUcontext ctx)
{
    struct target t = {"cuGraphExecMemcpyNodeSetParams", true, exec, node, CU_GRAPH_NODE_TYPE_MEMCPY};
    return set_copy(&t, params, ctx);
}

static CUresult set_fill(const struct target *t, const CUDA_MEMSET_NODE_PARAMS *p, CUcontext ctx)
{
    struct sg_exec *e;
    struct sg_node *n;
    struct sg_work *w = NULL;
    CUresult r = enter_target(t, &e, &n);
    if (r)
        return r;
    if (!t->in_exec)
        ctx = (CUcontext)(uintptr_t)n->work->context;
    r = p ? sg_work_fill(p, ctx, &w) : CUDA_ERROR_INVALID_VALUE;
    return set_work(t, r, w);
}

CUresult cuGraphMemsetNodeSetParams(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *params)
{
    struct target t = {"cuGraphMemsetNodeSetParams", false, NULL, node, CU_GRAPH_NODE_TYPE_MEMSET};
    return set_fill(&t, params, NULL);
}

CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *params,
                                        CUcontext ctx)
{
    struct target t = {"cuGraphExecMemsetNodeSetParams", true, exec, node, CU_GRAPH_NODE_TYPE_MEMSET};
    return set_fill(&t, params, ctx);
}

static CUresult set_host(const struct target *t, const CUDA_HOST_NODE_PARAMS *p)
{
    struct sg_exec *e;
    struct sg_node *n;
    struct sg_work *w = NULL;
    CUresult r = enter_target(t, &e, &n);
    if (r)
        return r;
    r = p ? sg_work_host(p, &w) : CUDA_ERROR_INVALID_VALUE;
    return set_work(t, r, w);
}

CUresult cuGraphHostNodeSetParams(CUgraphNode node, const CUDA_HOST_NODE_PARAMS *params)
{
    struct target t = {"cuGraphHostNodeSetParams", false, NULL, node, CU_GRAPH_NODE_TYPE_HOST};
    return set_host(&t, params);
}

CUresult cuGraphExecHostNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_HOST_NODE_PARAMS *params)
{
    struct target t = {"cuGraphExecHostNodeSetParams", true, exec, node, CU_GRAPH_NODE_TYPE_HOST};
    return set_host(&t, params);
}

static CUresult set_event(const struct target *t, CUevent event)
{
    struct sg_exec *e;
    struct sg_node *n;
    struct sg_work *w = NULL;
    CUresult r = enter_target(t, &e, &n);
    if (r)
        return r;
    r = sg_work_event((CUgraphNodeType)t->type, event, &w);
    return set_work(t, r, w);
}

CUresult cuGraphEventRecordNodeSetEvent(CUgraphNode node, CUevent event)
{
    struct target t = {"cuGraphEventRecordNodeSetEvent", false, NULL, node, CU_GRAPH_NODE_TYPE_EVENT_RECORD};
    return set_event(&t, event);
}

CUresult cuGraphEventWaitNodeSetEvent(CUgraphNode node, CUevent event)
{
    struct target t = {"cuGraphEventWaitNodeSetEvent", false, NULL, node, CU_GRAPH_NODE_TYPE_WAIT_EVENT};
    return set_event(&t, event);
}

CUresult cuGraphExecEventRecordNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event)
{
    struct target t = {"cuGraphExecEventRecordNodeSetEvent", true, exec, node, CU_GRAPH_NODE_TYPE_EVENT_RECORD};
    return set_event(&t, event);
}

CUresult cuGraphExecEventWaitNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event)
{
    struct target t = {"cuGraphExecEventWaitNodeSetEvent", true, exec, node, CU_GRAPH_NODE_TYPE_WAIT_EVENT};
    return set_event(&t, event);
}

static CUresult set_batch(const struct target *t, const CUDA_BATCH_MEM_OP_NODE_PARAMS *p)
{
    struct sg_exec *e;
    struct sg_node *n;
    struct sg_work *w = NULL;
    CUresult r = enter_target(t, &e, &n);
    if (r)
        return r;
    r = p ? sg_work_batch(p->ctx, p->count, p->paramArray, p->flags, &w) : CUDA_ERROR_INVALID_VALUE;
    return set_work(t, r, w);
}

CUresult cuGraphBatchMemOpNodeSetParams(CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS *params)
{
    struct target t = {"cuGraphBatchMemOpNodeSetParams", false, NULL, node, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP};
    return set_batch(&t, params);
}

CUresult cuGraphExecBatchMemOpNodeSetParams(CUgraphExec exec, CUgraphNode node,
                                            const CUDA_BATCH_MEM_OP_NODE_PARAMS *params)
{
    struct target t = {"cuGraphExecBatchMemOpNodeSetParams", true, exec, node, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP};
    return set_batch(&t, params);
}

static CUresult set_child(const struct target *t, CUgraph child)
{
    struct sg_exec *e;
    struct sg_node *n;
    CUgraphExecUpdateResultInfo info;
    CUresult r = enter_target(t, &e, &n);
    if (r)
        return r;
    const struct sg_graph *g = SG_FIND(child, SG_GRAPH);
    r = g && !g->capture ? sg_exec_update(e, n->graphs[0], g, &info) : CUDA_ERROR_INVALID_VALUE;
    return sg_leave(r == CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE ? CUDA_ERROR_INVALID_VALUE : r);
}

CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraph child)
{
    struct target t = {"cuGraphExecChildGraphNodeSetParams", true, exec, node, CU_GRAPH_NODE_TYPE_GRAPH};
    return set_child(&t, child);
}

/* Of any type. Memory and conditional nodes stay as they are; a child graph changes only in an executable graph. */
static CUresult set_any(const struct target *t, const CUgraphNodeParams *p)
{
    struct sg_exec *e;
    struct sg_node *n;
    struct sg_work *w = NULL;
    if (t->in_exec && p && p->type == CU_GRAPH_NODE_TYPE_GRAPH) {
        struct target child = *t;
        child.type = CU_GRAPH_NODE_TYPE_GRAPH;
        return set_child(&child, p->graph.graph);
    }
    CUresult r = enter_target(t, &e, &n);
    if (r)
        return r;
    if (!p || p->type != n->work->type)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    r = sg_work_from_params(p, &w);
    return set_work(t, r, w);
}

CUresult cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams *params)
{
    struct target t = {"cuGraphNodeSetParams", false, NULL, node, -1};
    return set_any(&t, params);
}

CUresult cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *params)
{
    struct target t = {"cuGraphExecNodeSetParams", true, exec, node, -1};
    return set_any(&t, params);
}

/* ---- enabling ---- */

static CUresult enter_switchable(const char *api, CUgraphExec exec, CUgraphNode node, struct sg_node **twin_out)
{
    struct sg_exec *e;
    CUresult r = enter_twin(api, exec, node, -1, &e, twin_out);
    if (r)
        return r;
    int type = (int)(*twin_out)->work->type;
    bool can =
        type == CU_GRAPH_NODE_TYPE_KERNEL || type == CU_GRAPH_NODE_TYPE_MEMCPY || type == CU_GRAPH_NODE_TYPE_MEMSET;
    return can ? CUDA_SUCCESS : sg_leave(CUDA_ERROR_INVALID_VALUE);
}

CUresult cuGraphNodeSetEnabled(CUgraphExec exec, CUgraphNode node, unsigned int enabled)
{
    struct sg_node *n;
    CUresult r = enter_switchable("cuGraphNodeSetEnabled", exec, node, &n);
    if (r)
        return r;
    n->disabled = !enabled;
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuGraphNodeGetEnabled(CUgraphExec exec, CUgraphNode node, unsigned int *enabled)
{
    struct sg_node *n;
    CUresult r = enter_switchable("cuGraphNodeGetEnabled", exec, node, &n);
    if (r)
        return r;
    if (!enabled)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *enabled = !n->disabled;
    return sg_leave(CUDA_SUCCESS);
}

/* ---- telling ---- */

static CUDA_KERNEL_NODE_PARAMS tell_kernel(const struct sg_work *w)
{
    const struct sg_work_kernel *k = &w->kernel;
    CUDA_KERNEL_NODE_PARAMS p = {.func = k->function,
                                 .gridDimX = k->grid[0],
                                 .gridDimY = k->grid[1],
                                 .gridDimZ = k->grid[2],
                                 .blockDimX = k->block[0],
                                 .blockDimY = k->block[1],
                                 .blockDimZ = k->block[2],
                                 .sharedMemBytes = k->shared_bytes,
                                 .kernelParams = k->pointers,
                                 .kern = k->kernel,
                                 .ctx = (CUcontext)(uintptr_t)w->context};
    if (k->extra[0]) {
        p.kernelParams = NULL;
        p.extra = ((struct sg_work_kernel *)(uintptr_t)k)->extra;
    }
    return p;
}

CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS_v1 *params)
{
    struct sg_node *n;
    CUresult r = sg_enter_node("cuGraphKernelNodeGetParams", node, CU_GRAPH_NODE_TYPE_KERNEL, &n);
    if (r)
        return r;
    if (!params)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    CUDA_KERNEL_NODE_PARAMS p = tell_kernel(n->work);
    if (!p.func) /* this version knows no kernels */
        p.func = (CUfunction)(uintptr_t)n->work->kernel.launched;
    memcpy(params, &p, sizeof *params);
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *params)
{
    struct sg_node *n;
    CUresult r = sg_enter_node("cuGraphKernelNodeGetParams", node, CU_GRAPH_NODE_TYPE_KERNEL, &n);
    if (r)
        return r;
    if (!params)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *params = tell_kernel(n->work);
    return sg_leave(CUDA_SUCCESS);
}

#define TELL(function, type_, what, from)                                                                              \
    CUresult r = sg_enter_node(function, node, type_, &n);                                                             \
    if (r)                                                                                                             \
        return r;                                                                                                      \
    if (!(what))                                                                                                       \
        return sg_leave(CUDA_ERROR_INVALID_VALUE);                                                                     \
    *(what) = (from);                                                                                                  \
    return sg_leave(CUDA_SUCCESS)

CUresult cuGraphMemcpyNodeGetParams(CUgraphNode node, CUDA_MEMCPY3D *params)
{
    struct sg_node *n;
    TELL("cuGraphMemcpyNodeGetParams", CU_GRAPH_NODE_TYPE_MEMCPY, params, n->work->copy.params);
}

CUresult cuGraphMemsetNodeGetParams(CUgraphNode node, CUDA_MEMSET_NODE_PARAMS *params)
{
    struct sg_node *n;
    TELL("cuGraphMemsetNodeGetParams", CU_GRAPH_NODE_TYPE_MEMSET, params, n->work->fill.params);
}

CUresult cuGraphHostNodeGetParams(CUgraphNode node, CUDA_HOST_NODE_PARAMS *params)
{
    struct sg_node *n;
    TELL("cuGraphHostNodeGetParams", CU_GRAPH_NODE_TYPE_HOST, params, n->work->host);
}

CUresult cuGraphEventRecordNodeGetEvent(CUgraphNode node, CUevent *event)
{
    struct sg_node *n;
    TELL("cuGraphEventRecordNodeGetEvent", CU_GRAPH_NODE_TYPE_EVENT_RECORD, event, (CUevent)(uintptr_t)n->work->event);
}

CUresult cuGraphEventWaitNodeGetEvent(CUgraphNode node, CUevent *event)
{
    struct sg_node *n;
    TELL("cuGraphEventWaitNodeGetEvent", CU_GRAPH_NODE_TYPE_WAIT_EVENT, event, (CUevent)(uintptr_t)n->work->event);
}

CUresult cuGraphBatchMemOpNodeGetParams(CUgraphNode node, CUDA_BATCH_MEM_OP_NODE_PARAMS *params)
{
    struct sg_node *n;
    TELL("cuGraphBatchMemOpNodeGetParams", CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, params,
         ((CUDA_BATCH_MEM_OP_NODE_PARAMS){(CUcontext)(uintptr_t)n->work->context, n->work->batch.count,
                                          n->work->batch.parts, n->work->batch.flags}));
}

/* ---- attributes ---- */

CUresult cuGraphKernelNodeSetAttribute(CUgraphNode node, CUkernelNodeAttrID id, const CUkernelNodeAttrValue *value)
{
    struct sg_node *n;
    struct sg_work *w;
    CUresult r = sg_enter_node("cuGraphKernelNodeSetAttribute", node, CU_GRAPH_NODE_TYPE_KERNEL, &n);
    if (r)
        return r;
    r = value ? sg_work_with_attribute(n->work, id, value, &w) : CUDA_ERROR_INVALID_VALUE;
    if (!r)
        sg_node_set_work(n, w);
    return sg_leave(r);
}

CUresult cuGraphKernelNodeGetAttribute(CUgraphNode node, CUkernelNodeAttrID id, CUkernelNodeAttrValue *value)
{
    struct sg_node *n;
    static const CUkernelNodeAttrValue unset;
    CUresult r = sg_enter_node("cuGraphKernelNodeGetAttribute", node, CU_GRAPH_NODE_TYPE_KERNEL, &n);
    if (r)
        return r;
    const struct sg_node_attributes *a = n->work->kernel.attributes;
    bool known = id == CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW || id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE ||
                 id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION || id == CU_LAUNCH_ATTRIBUTE_PRIORITY ||
                 id == CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE ||
                 id == CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP || id == CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN ||
                 id == CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION ||
                 id == CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE ||
                 id == CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT ||
                 id == CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING;
    if (!value || !known)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *value = a && a->set >> id & 1 ? a->value[id] : unset;
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode dst, CUgraphNode src)
{
    struct sg_node *to;
    struct sg_work *w;
    CUresult r = sg_enter_node("cuGraphKernelNodeCopyAttributes", dst, CU_GRAPH_NODE_TYPE_KERNEL, &to);
    if (r)
        return r;
    const struct sg_node *from = SG_FIND(src, SG_NODE);
    if (!from || from->work->type != CU_GRAPH_NODE_TYPE_KERNEL || from->work->context != to->work->context)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    r = sg_work_with_attributes(to->work, from->work->kernel.attributes, &w);
    if (!r)
        sg_node_set_work(to, w);
    return sg_leave(r);
}
