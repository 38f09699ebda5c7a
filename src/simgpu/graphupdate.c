/* What may change in an executable graph: updates by another graph, and the rules that setters share with them. */
#include "simgpu/graph.h"

#include <stdlib.h>
#include <string.h>

/* ---- one node ---- */

static CUresult refuse(CUgraphExecUpdateResult why, CUgraphExecUpdateResult *result_out)
{
    *result_out = why;
    return CUDA_ERROR_INVALID_VALUE;
}

static int asked_priority(const struct sg_work *w)
{
    const struct sg_node_attributes *a = w->kernel.attributes;
    return a && a->set >> CU_LAUNCH_ATTRIBUTE_PRIORITY & 1 ? a->value[CU_LAUNCH_ATTRIBUTE_PRIORITY].priority : 0;
}

static CUresult kernel_may(const struct sg_exec *e, const struct sg_work *from, const struct sg_work *to,
                           CUgraphExecUpdateResult *result_out)
{
    if (from->context != to->context)
        return refuse(CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE, result_out);
    if (sg_work_is_cooperative(from) != sg_work_is_cooperative(to))
        return refuse(CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED, result_out);
    if (e->flags & CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY && asked_priority(from) != asked_priority(to))
        return refuse(CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED, result_out);
    return CUDA_SUCCESS;
}

/* The context that memory was allocated in; NULL: none, or not the device's. */
static const struct sg_context *owner_of(uint64_t va)
{
    const struct sg_alloc *a = sg_alloc_at(va);
    return a ? a->context : NULL;
}

/* Where VMM memory or a pool's lies, which has no context; -2: it is neither. */
static int home_of(uint64_t va)
{
    const struct sg_mapping *m = sg_mapping_at(va);
    const struct sg_alloc *a = sg_alloc_at(va);
    return m ? m->chunk->device : a && !a->context ? a->device : -2;
}

static bool same_kind(const struct sg_operand *a, const struct sg_operand *b)
{
    return a->device == b->device && a->pinned == b->pinned && owner_of(a->va) == owner_of(b->va) &&
           home_of(a->va) == home_of(b->va);
}

static CUresult copy_may(const struct sg_work *from, const struct sg_work *to, bool update,
                         CUgraphExecUpdateResult *result_out)
{
    const struct sg_work_copy *a = &from->copy, *b = &to->copy;
    bool flat = a->extent.height == 1 && a->extent.depth == 1,
         still_flat = b->extent.height == 1 && b->extent.depth == 1;
    bool same_shape = !memcmp(&a->extent, &b->extent, sizeof a->extent) && a->dst.pitch == b->dst.pitch &&
                      a->src.pitch == b->src.pitch && a->dst.slice == b->dst.slice && a->src.slice == b->src.slice;
    if (!(flat && still_flat) && !(update && same_shape))
        return refuse(CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED, result_out);
    if (a->params.dstMemoryType != b->params.dstMemoryType || a->params.srcMemoryType != b->params.srcMemoryType ||
        !same_kind(&a->dst, &b->dst) || !same_kind(&a->src, &b->src) || from->context != to->context)
        return refuse(CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED, result_out);
    return CUDA_SUCCESS;
}

static CUresult fill_may(const struct sg_work *from, const struct sg_work *to, CUgraphExecUpdateResult *result_out)
{
    const CUDA_MEMSET_NODE_PARAMS *a = &from->fill.params, *b = &to->fill.params;
    bool same_shape = a->height == b->height && (a->height == 1 || (a->width == b->width && a->pitch == b->pitch)) &&
                      a->elementSize == b->elementSize;
    if (!same_shape || from->context != to->context || from->fill.fill.device != to->fill.fill.device ||
        owner_of(a->dst) != owner_of(b->dst) || home_of(a->dst) != home_of(b->dst) ||
        !sg_host_at(a->dst) != !sg_host_at(b->dst))
        return refuse(CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED, result_out);
    return CUDA_SUCCESS;
}

static unsigned wait_flush(const CUstreamBatchMemOpParams *p)
{
    bool wait = p->operation == CU_STREAM_MEM_OP_WAIT_VALUE_32 || p->operation == CU_STREAM_MEM_OP_WAIT_VALUE_64;
    return wait ? p->waitValue.flags & CU_STREAM_WAIT_VALUE_FLUSH : 0;
}

static CUresult batch_may(const struct sg_work *from, const struct sg_work *to, CUgraphExecUpdateResult *result_out)
{
    bool same = from->context == to->context && from->batch.count == to->batch.count;
    for (unsigned i = 0; same && i < from->batch.count; i++) {
        const CUstreamBatchMemOpParams *a = &from->batch.parts[i], *b = &to->batch.parts[i];
        same = a->operation == b->operation && wait_flush(a) == wait_flush(b);
        if (same && a->operation == CU_STREAM_MEM_OP_BARRIER)
            same = a->memoryBarrier.flags == b->memoryBarrier.flags;
    }
    return same ? CUDA_SUCCESS : refuse(CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED, result_out);
}

static CUresult may_change(const struct sg_exec *e, const struct sg_work *from, const struct sg_work *to, bool update,
                           CUgraphExecUpdateResult *result_out)
{
    *result_out = CU_GRAPH_EXEC_UPDATE_SUCCESS;
    switch ((int)from->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return kernel_may(e, from, to, result_out);
    case CU_GRAPH_NODE_TYPE_MEMCPY: return copy_may(from, to, update, result_out);
    case CU_GRAPH_NODE_TYPE_MEMSET: return fill_may(from, to, result_out);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        return from->context == to->context ? CUDA_SUCCESS
                                            : refuse(CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED, result_out);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: return batch_may(from, to, result_out);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        return from->memory == to->memory ? CUDA_SUCCESS : refuse(CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED, result_out);
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
        return from->conditional.type == to->conditional.type && from->conditional.size == to->conditional.size &&
                       from->context == to->context
                   ? CUDA_SUCCESS
                   : refuse(CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED, result_out);
    default: return CUDA_SUCCESS;
    }
}

CUresult sg_exec_may_change(const struct sg_exec *e, const struct sg_work *from, const struct sg_work *to,
                            CUgraphExecUpdateResult *result_out)
{
    return may_change(e, from, to, false, result_out);
}

/* ---- whole graphs ---- */

struct change {
    struct sg_node *node; /* of the shape */
    struct sg_work *work; /* what it is to do */
};
struct update {
    struct sg_exec *exec;
    struct change *changes;
    size_t count;
    CUgraphExecUpdateResultInfo *info;
};

static CUresult fail(struct update *u, CUgraphExecUpdateResult result, const struct sg_node *node,
                     const struct sg_node *from)
{
    u->info->result = result;
    u->info->errorNode = node ? SG_HANDLE(CUgraphNode, node) : NULL;
    u->info->errorFromNode = from ? SG_HANDLE(CUgraphNode, from) : NULL;
    return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
}

static size_t exits(const struct sg_graph *g, const struct sg_node **one_out)
{
    size_t count = 0;
    const struct sg_node *n;
    DL_FOREACH(g->nodes, n)
    if (!n->dependents.count) {
        count++;
        *one_out = n;
    }
    return count;
}

/* Nodes are paired in the order in which they were made: their numbers in a shape. */
static CUresult compare_topology(struct update *u, const struct sg_graph *shape, const struct sg_graph *g)
{
    const struct sg_node *a = shape->nodes, *exit = NULL, *other;
    struct sg_node *b;
    size_t at = 0;
    DL_FOREACH(g->nodes, b)
    b->index = at++;
    if (shape->count != g->count)
        return fail(u, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, NULL, NULL);
    if (exits(g, &exit) > exits(shape, &other))
        return fail(u, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, exit, NULL);
    DL_FOREACH(g->nodes, b)
    {
        if (a->dependencies.count != b->dependencies.count)
            return fail(u, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, b, NULL);
        for (size_t i = 0; i < b->dependencies.count; i++) {
            const struct sg_link *x = &a->dependencies.at[i], *y = &b->dependencies.at[i];
            if (x->node->number != y->node->index || memcmp(&x->data, &y->data, sizeof x->data) != 0)
                return fail(u, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, b, y->node);
        }
        a = a->next;
    }
    return CUDA_SUCCESS;
}

static CUresult plan_graph(struct update *u, struct sg_graph *shape, const struct sg_graph *g);

static CUresult plan_node(struct update *u, struct sg_node *a, const struct sg_node *b)
{
    CUgraphExecUpdateResult result = CU_GRAPH_EXEC_UPDATE_SUCCESS;
    struct sg_work *w = NULL;
    CUresult r = CUDA_SUCCESS;
    if (a->work->type != b->work->type)
        return fail(u, CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED, b, NULL);
    if (a->graph_count != b->graph_count)
        return fail(u, CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED, b, NULL);
    if (b->work->type == CU_GRAPH_NODE_TYPE_MEMCPY || b->work->type == CU_GRAPH_NODE_TYPE_MEMSET)
        r = sg_work_place(b->work, &w);
    else
        w = sg_work_ref(b->work);
    if (!r)
        r = may_change(u->exec, a->work, w, true, &result);
    if (r) {
        sg_work_unref(w);
        return fail(u, result ? result : CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED, b, NULL);
    }
    u->changes[u->count++] = (struct change){a, w};
    for (unsigned i = 0; i < b->graph_count && !r; i++)
        r = plan_graph(u, a->graphs[i], b->graphs[i]);
    return r;
}

static CUresult plan_graph(struct update *u, struct sg_graph *shape, const struct sg_graph *g)
{
    CUresult r = compare_topology(u, shape, g);
    struct sg_node *a = shape->nodes;
    const struct sg_node *b;
    if (!r)
        DL_FOREACH(g->nodes, b)
        {
            r = plan_node(u, a, b);
            if (r)
                break;
            a = a->next;
        }
    return r;
}

static void apply(const struct update *u)
{
    for (size_t i = 0; i < u->count; i++) {
        struct sg_node *n = u->changes[i].node;
        struct sg_work *w = u->changes[i].work;
        if (n->work->type == CU_GRAPH_NODE_TYPE_CONDITIONAL) {
            struct sg_exec *e = u->exec;
            for (unsigned k = 0; k < e->condition_count; k++) {
                if (e->conditions[k] != n->work->conditional.condition)
                    continue;
                e->conditions[k] = sg_condition_ref(w->conditional.condition);
                sg_condition_unref(n->work->conditional.condition);
                break;
            }
        }
        sg_node_set_work(n, w);
    }
}

CUresult sg_exec_update(struct sg_exec *e, struct sg_graph *shape, const struct sg_graph *g,
                        CUgraphExecUpdateResultInfo *info_out)
{
    struct update u = {.exec = e, .info = info_out};
    *info_out = (CUgraphExecUpdateResultInfo){.result = CU_GRAPH_EXEC_UPDATE_ERROR};
    u.changes = calloc(e->node_count + 1, sizeof *u.changes);
    if (!u.changes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = plan_graph(&u, shape, g);
    if (!r) {
        apply(&u);
        info_out->result = CU_GRAPH_EXEC_UPDATE_SUCCESS;
        sg_time_units(SG_UNIT_GRAPH_NODE_MADE, (double)u.count / 4);
    }
    for (size_t i = 0; r && i < u.count; i++)
        sg_work_unref(u.changes[i].work);
    free(u.changes);
    return r;
}

static CUresult update(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info)
{
    struct sg_exec *e;
    CUresult r = sg_enter_exec("cuGraphExecUpdate", exec, &e);
    if (r)
        return r;
    const struct sg_graph *g = SG_FIND(graph, SG_GRAPH);
    *info = (CUgraphExecUpdateResultInfo){.result = CU_GRAPH_EXEC_UPDATE_ERROR};
    if (!g || g->capture || g->moved)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    r = sg_exec_update(e, e->shape, g, info);
    return sg_leave(r ? r : sg_exec_take_users(e, g));
}

CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *node_out, CUgraphExecUpdateResult *result_out)
{
    CUgraphExecUpdateResultInfo info = {.result = CU_GRAPH_EXEC_UPDATE_ERROR};
    CUresult r = node_out && result_out ? update(exec, graph, &info) : sg_enter_unlocked("cuGraphExecUpdate");
    if (!node_out || !result_out)
        return r ? r : CUDA_ERROR_INVALID_VALUE;
    *node_out = info.errorNode;
    *result_out = info.result;
    return r;
}

CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info)
{
    if (!info) {
        CUresult r = sg_enter_unlocked("cuGraphExecUpdate");
        return r ? r : CUDA_ERROR_INVALID_VALUE;
    }
    return update(exec, graph, info);
}
