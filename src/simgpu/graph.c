/* Graphs as data: nodes, edges, copies of whole graphs. What calls make of it is in graphcall.c and graphnode.c. */
#include "simgpu/graph.h"

#include <stdlib.h>
#include <string.h>

/* ---- links ---- */

bool sg_edge_is_default(const CUgraphEdgeData *d)
{
    static const CUgraphEdgeData none;
    return !memcmp(d, &none, sizeof none);
}

CUresult sg_edges_add(struct sg_edges *l, struct sg_node *node, const CUgraphEdgeData *data)
{
    if (l->count == l->room) {
        size_t room = l->room ? l->room * 2 : 4;
        struct sg_link *more = realloc(l->at, room * sizeof *more);
        if (!more)
            return CUDA_ERROR_OUT_OF_MEMORY;
        l->at = more;
        l->room = room;
    }
    l->at[l->count] = (struct sg_link){.node = node};
    if (data)
        l->at[l->count].data = *data;
    l->count++;
    return CUDA_SUCCESS;
}

void sg_edges_free(struct sg_edges *l)
{
    free(l->at);
    *l = (struct sg_edges){0};
}

CUresult sg_edges_copy(struct sg_edges *to, const struct sg_edges *from)
{
    CUresult r = CUDA_SUCCESS;
    *to = (struct sg_edges){0};
    for (size_t i = 0; i < from->count && !r; i++)
        r = sg_edges_add(to, from->at[i].node, &from->at[i].data);
    if (r)
        sg_edges_free(to);
    return r;
}

static size_t find(const struct sg_edges *l, const struct sg_node *node, const CUgraphEdgeData *data)
{
    static const CUgraphEdgeData none;
    size_t i = 0;
    while (i < l->count && (l->at[i].node != node || memcmp(&l->at[i].data, data ? data : &none, sizeof none) != 0))
        i++;
    return i;
}

static void take_out(struct sg_edges *l, size_t i)
{
    memmove(&l->at[i], &l->at[i + 1], (l->count - i - 1) * sizeof l->at[0]);
    l->count--;
}

/* Only kernels have ports other than their end; to be used with programmatic edges, which lead to kernels. */
CUresult sg_edge_check(const struct sg_node *from, const CUgraphEdgeData *d)
{
    static const unsigned char zeros[sizeof d->reserved];
    if (d->to_port || memcmp(d->reserved, zeros, sizeof zeros) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (d->type == CU_GRAPH_DEPENDENCY_TYPE_DEFAULT)
        return d->from_port ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    if (d->type != CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC || from->work->type != CU_GRAPH_NODE_TYPE_KERNEL)
        return CUDA_ERROR_INVALID_VALUE;
    return d->from_port == CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC ||
                   d->from_port == CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

CUresult sg_edges_from(const struct sg_graph *graph, const CUgraphNode *nodes, const CUgraphEdgeData *data,
                       size_t count, struct sg_edges *out)
{
    *out = (struct sg_edges){0};
    CUresult r = count && !nodes ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    for (size_t i = 0; i < count && !r; i++) {
        struct sg_node *n = SG_FIND(nodes[i], SG_NODE);
        const CUgraphEdgeData *d = data ? &data[i] : NULL;
        if (!n || n->graph != graph || find(out, n, d) < out->count)
            r = CUDA_ERROR_INVALID_VALUE;
        if (!r && d)
            r = sg_edge_check(n, d);
        if (!r)
            r = sg_edges_add(out, n, d);
    }
    if (r)
        sg_edges_free(out);
    return r;
}

CUresult sg_link_add(struct sg_node *from, struct sg_node *to, const CUgraphEdgeData *data)
{
    if (find(&to->dependencies, from, data) < to->dependencies.count)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = sg_edges_add(&to->dependencies, from, data);
    if (r)
        return r;
    r = sg_edges_add(&from->dependents, to, data);
    if (r)
        to->dependencies.count--;
    return r;
}

/* ---- nodes ---- */

static void unlink_all(struct sg_node *n)
{
    for (size_t i = 0; i < n->dependencies.count; i++) {
        struct sg_edges *l = &n->dependencies.at[i].node->dependents;
        take_out(l, find(l, n, &n->dependencies.at[i].data));
    }
    for (size_t i = 0; i < n->dependents.count; i++) {
        struct sg_edges *l = &n->dependents.at[i].node->dependencies;
        take_out(l, find(l, n, &n->dependents.at[i].data));
    }
}

static void node_free(struct sg_node *n)
{
    if (n->object.id)
        sg_object_remove(&n->object);
    for (unsigned i = 0; i < n->graph_count; i++)
        sg_graph_destroy(n->graphs[i]);
    free(n->graphs);
    free(n->handles);
    sg_edges_free(&n->dependencies);
    sg_edges_free(&n->dependents);
    sg_work_unref(n->work);
    free(n);
}

void sg_node_destroy(struct sg_node *n)
{
    unlink_all(n);
    DL_DELETE(n->graph->nodes, n);
    n->graph->count--;
    node_free(n);
}

void sg_node_set_work(struct sg_node *n, struct sg_work *work)
{
    sg_work_unref(n->work);
    n->work = work;
}

/* The handles of the bodies, or of the child graph. */
static CUresult give_graphs(struct sg_node *n, unsigned count)
{
    n->graphs = calloc(count, sizeof(struct sg_graph *));
    n->handles = calloc(count, sizeof(CUgraph));
    return n->graphs && n->handles ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static void own_graph(struct sg_node *n, struct sg_graph *g)
{
    g->owner = n;
    g->is_body = n->work->type == CU_GRAPH_NODE_TYPE_CONDITIONAL;
    n->handles[n->graph_count] = SG_HANDLE(CUgraph, g);
    n->graphs[n->graph_count++] = g;
}

static CUresult make_bodies(struct sg_node *n)
{
    if (n->work->type != CU_GRAPH_NODE_TYPE_CONDITIONAL)
        return CUDA_SUCCESS;
    CUresult r = give_graphs(n, n->work->conditional.size);
    while (!r && n->graph_count < n->work->conditional.size) {
        struct sg_graph *body;
        r = sg_graph_create(true, &body);
        if (!r)
            own_graph(n, body);
    }
    if (!r)
        n->work->conditional.condition->used = true;
    return r;
}

static CUresult node_new(struct sg_graph *g, struct sg_work *work, bool with_handle, struct sg_node **node_out)
{
    struct sg_node *n = calloc(1, sizeof *n);
    if (!n) {
        sg_work_unref(work);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    n->work = work;
    n->graph = g;
    n->number = g->next_number++;
    if (with_handle)
        sg_object_add(&n->object, SG_NODE);
    DL_APPEND(g->nodes, n);
    g->count++;
    *node_out = n;
    return CUDA_SUCCESS;
}

static CUresult link_all(struct sg_node *n, const struct sg_edges *dependencies)
{
    CUresult r = CUDA_SUCCESS;
    for (size_t i = 0; dependencies && i < dependencies->count && !r; i++) {
        const CUgraphEdgeData *d = &dependencies->at[i].data;
        if (d->type == CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC && n->work->type != CU_GRAPH_NODE_TYPE_KERNEL)
            return CUDA_ERROR_INVALID_VALUE;
        r = sg_link_add(dependencies->at[i].node, n, d);
    }
    return r;
}

CUresult sg_node_add(struct sg_graph *g, struct sg_work *work, const struct sg_edges *dependencies,
                     struct sg_node **node_out)
{
    struct sg_node *n;
    CUresult r = sg_graph_admits(g, work->type);
    if (r) {
        sg_work_unref(work);
        return r;
    }
    r = node_new(g, work, true, &n);
    if (r)
        return r;
    r = link_all(n, dependencies);
    if (!r)
        r = make_bodies(n);
    if (r)
        sg_node_destroy(n);
    else
        *node_out = n;
    return r;
}

CUresult sg_node_add_child(struct sg_graph *g, struct sg_graph *child, bool move, const struct sg_edges *deps,
                           struct sg_node **node_out)
{
    struct sg_node *n;
    struct sg_graph *inner = child;
    struct sg_work *work = sg_work_new(CU_GRAPH_NODE_TYPE_GRAPH);
    if (!work)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = sg_node_add(g, work, deps, &n);
    if (r)
        return r;
    r = give_graphs(n, 1);
    if (!r && !move)
        r = sg_graph_copy(child, true, &inner);
    if (r) {
        sg_node_destroy(n);
        return r;
    }
    own_graph(n, inner);
    inner->moved = move;
    *node_out = n;
    return CUDA_SUCCESS;
}

/* ---- graphs ---- */

CUresult sg_graph_create(bool with_handle, struct sg_graph **graph_out)
{
    struct sg_graph *g = calloc(1, sizeof *g);
    if (!g)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (with_handle)
        sg_object_add(&g->object, SG_GRAPH);
    *graph_out = g;
    return CUDA_SUCCESS;
}

void sg_graph_destroy(struct sg_graph *g)
{
    if (!g)
        return;
    while (g->nodes) {
        struct sg_node *n = g->nodes;
        DL_DELETE(g->nodes, n);
        node_free(n);
    }
    for (unsigned i = 0; i < g->condition_count; i++)
        sg_condition_unref(g->conditions[i]);
    free(g->conditions);
    sg_users_free(g->users);
    if (g->object.id)
        sg_object_remove(&g->object);
    free(g);
}

bool sg_graph_is_captured(const struct sg_graph *g)
{
    const struct sg_node *n;
    DL_FOREACH(g->nodes, n)
    for (unsigned i = 0; i < n->graph_count; i++)
        if (sg_graph_is_captured(n->graphs[i]))
            return true;
    return g->capture != 0;
}

bool sg_graph_has(const struct sg_graph *g, CUgraphNodeType type)
{
    const struct sg_node *n;
    DL_FOREACH(g->nodes, n)
    {
        if (n->work->type == type)
            return true;
        for (unsigned i = 0; i < n->graph_count; i++)
            if (sg_graph_has(n->graphs[i], type))
                return true;
    }
    return false;
}

/* Bodies, at any depth, hold what needs no host; moved and child graphs no new memory nodes. */
CUresult sg_graph_admits(const struct sg_graph *graph, CUgraphNodeType type)
{
    bool memory = type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || type == CU_GRAPH_NODE_TYPE_MEM_FREE;
    if (memory && graph->owner)
        return CUDA_ERROR_NOT_SUPPORTED;
    for (const struct sg_graph *g = graph; g; g = g->owner ? g->owner->graph : NULL) {
        if (type == CU_GRAPH_NODE_TYPE_CONDITIONAL && g->owner && !g->is_body)
            return CUDA_ERROR_NOT_SUPPORTED; /* graphs with such nodes are no child graphs */
        if (g->is_body && type != CU_GRAPH_NODE_TYPE_KERNEL && type != CU_GRAPH_NODE_TYPE_EMPTY &&
            type != CU_GRAPH_NODE_TYPE_GRAPH && type != CU_GRAPH_NODE_TYPE_MEMCPY &&
            type != CU_GRAPH_NODE_TYPE_MEMSET && type != CU_GRAPH_NODE_TYPE_CONDITIONAL)
            return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
}

static CUresult copy_node(const struct sg_node *from, struct sg_graph *to, bool with_handles)
{
    struct sg_node *n;
    CUresult r = node_new(to, sg_work_ref(from->work), with_handles, &n);
    if (r)
        return r;
    n->origin = from->object.id ? from->object.id : from->origin;
    n->number = from->number;
    n->disabled = from->disabled;
    if (from->graph_count)
        r = give_graphs(n, from->graph_count);
    for (unsigned i = 0; i < from->graph_count && !r; i++) {
        struct sg_graph *inner;
        r = sg_graph_copy(from->graphs[i], with_handles, &inner);
        if (!r)
            own_graph(n, inner);
    }
    return r;
}

CUresult sg_graph_copy(const struct sg_graph *from, bool with_handles, struct sg_graph **copy_out)
{
    struct sg_graph *g;
    struct sg_node *n, *m;
    CUresult r = sg_graph_create(with_handles, &g);
    if (r)
        return r;
    struct sg_node **twins = calloc(from->count + 1, sizeof(struct sg_node *));
    if (!twins)
        r = CUDA_ERROR_OUT_OF_MEMORY;
    size_t count = 0;
    DL_FOREACH(from->nodes, n)
    {
        n->index = count;
        r = r ? r : copy_node(n, g, with_handles);
        if (!r)
            twins[count++] = g->nodes->prev;
    }
    m = g->nodes;
    DL_FOREACH(from->nodes, n)
    {
        for (size_t i = 0; i < n->dependencies.count && !r; i++)
            r = sg_link_add(twins[n->dependencies.at[i].node->index], m, &n->dependencies.at[i].data);
        m = m ? m->next : NULL;
    }
    free(twins);
    g->origin = from->object.id ? from->object.id : from->origin;
    g->next_number = from->next_number;
    if (!r && with_handles)
        r = sg_users_copy(from, &g->users);
    if (r)
        sg_graph_destroy(g);
    else
        *copy_out = g;
    return r;
}
