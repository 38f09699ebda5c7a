/* The calls about graphs as such: making and destroying them, their nodes and edges, copies. */
#include "simgpu/graph.h"

#include <stdlib.h>
#include <string.h>

CUresult sg_enter_graph(const char *api, CUgraph handle, struct sg_graph **graph_out)
{
    CUresult r = sg_enter(api);
    if (r)
        return r;
    *graph_out = SG_FIND(handle, SG_GRAPH);
    return *graph_out ? CUDA_SUCCESS : sg_leave(CUDA_ERROR_INVALID_VALUE);
}

CUresult sg_enter_node(const char *api, CUgraphNode handle, int type, struct sg_node **node_out)
{
    CUresult r = sg_enter(api);
    if (r)
        return r;
    struct sg_node *n = *node_out = SG_FIND(handle, SG_NODE);
    return n && (type < 0 || (int)n->work->type == type) ? CUDA_SUCCESS : sg_leave(CUDA_ERROR_INVALID_VALUE);
}

CUresult cuGraphCreate(CUgraph *graph, unsigned int flags)
{
    CUresult r = sg_enter("cuGraphCreate");
    if (r)
        return r;
    struct sg_graph *g;
    if (!graph || flags)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    r = sg_graph_create(true, &g);
    if (!r)
        *graph = SG_HANDLE(CUgraph, g);
    return sg_leave(r);
}

CUresult cuGraphDestroy(CUgraph graph)
{
    struct sg_graph *g;
    CUresult r = sg_enter_graph("cuGraphDestroy", graph, &g);
    if (r)
        return r;
    if (g->owner || sg_graph_is_captured(g))
        return sg_leave(CUDA_ERROR_INVALID_VALUE); /* a node, or a capture, has it */
    sg_graph_destroy(g);
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuGraphClone(CUgraph *clone, CUgraph original)
{
    struct sg_graph *g, *copy;
    CUresult r = sg_enter_graph("cuGraphClone", original, &g);
    if (r)
        return r;
    if (!clone)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (sg_graph_has_memory(g) || sg_graph_has(g, CU_GRAPH_NODE_TYPE_CONDITIONAL))
        return sg_leave(CUDA_ERROR_NOT_SUPPORTED);
    r = sg_graph_copy(g, true, &copy);
    if (!r)
        *clone = SG_HANDLE(CUgraph, copy);
    return sg_leave(r);
}

CUresult cuGraphNodeFindInClone(CUgraphNode *node, CUgraphNode original, CUgraph clone)
{
    struct sg_graph *g;
    CUresult r = sg_enter_graph("cuGraphNodeFindInClone", clone, &g);
    if (r)
        return r;
    const struct sg_node *o = SG_FIND(original, SG_NODE);
    struct sg_node *n = NULL;
    if (o && node && g->origin == o->graph->object.id)
        DL_FOREACH(g->nodes, n)
    if (n->origin == o->object.id)
        break;
    if (!n)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *node = SG_HANDLE(CUgraphNode, n);
    return sg_leave(CUDA_SUCCESS);
}

/* Memory and conditional nodes are there for good, and so is what stands beside memory nodes. */
CUresult cuGraphDestroyNode(CUgraphNode node)
{
    struct sg_node *n;
    CUresult r = sg_enter_node("cuGraphDestroyNode", node, -1, &n);
    if (r)
        return r;
    bool captured = n->graph->capture != 0;
    for (unsigned i = 0; i < n->graph_count; i++)
        captured |= sg_graph_is_captured(n->graphs[i]);
    if (captured)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (sg_graph_has_memory(n->graph))
        return sg_leave(CUDA_ERROR_NOT_SUPPORTED);
    if (n->work->type == CU_GRAPH_NODE_TYPE_CONDITIONAL)
        n->work->conditional.condition->used = false;
    sg_node_destroy(n);
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type)
{
    struct sg_node *n;
    CUresult r = sg_enter_node("cuGraphNodeGetType", node, -1, &n);
    if (r)
        return r;
    if (!type)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *type = n->work->type;
    return sg_leave(CUDA_SUCCESS);
}

/* ---- lists ---- */

static CUresult list_nodes(const struct sg_graph *g, CUgraphNode *nodes, size_t *count, bool roots)
{
    size_t found = 0;
    const struct sg_node *n;
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    DL_FOREACH(g->nodes, n)
    {
        if (roots && n->dependencies.count)
            continue;
        if (nodes && found < *count)
            nodes[found] = SG_HANDLE(CUgraphNode, n);
        found++;
    }
    for (size_t i = found; nodes && i < *count; i++)
        nodes[i] = NULL;
    *count = !nodes || found < *count ? found : *count;
    return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    struct sg_graph *g;
    CUresult r = sg_enter_graph("cuGraphGetNodes", graph, &g);
    return r ? r : sg_leave(list_nodes(g, nodes, count, false));
}

CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    struct sg_graph *g;
    CUresult r = sg_enter_graph("cuGraphGetRootNodes", graph, &g);
    return r ? r : sg_leave(list_nodes(g, nodes, count, true));
}

static CUresult get_edges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *data, size_t *count)
{
    struct sg_graph *g;
    size_t found = 0;
    CUresult r = sg_enter_graph("cuGraphGetEdges", graph, &g);
    if (r)
        return r;
    if (!count || !from != !to || (data && !from))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    const struct sg_node *n;
    DL_FOREACH(g->nodes, n)
    for (size_t i = 0; i < n->dependencies.count; i++, found++) {
        const struct sg_link *l = &n->dependencies.at[i];
        if (!from || found >= *count)
            continue;
        if (!data && !sg_edge_is_default(&l->data))
            return sg_leave(CUDA_ERROR_LOSSY_QUERY);
        from[found] = SG_HANDLE(CUgraphNode, l->node);
        to[found] = SG_HANDLE(CUgraphNode, n);
        if (data)
            data[found] = l->data;
    }
    for (size_t i = found; from && i < *count; i++)
        from[i] = to[i] = NULL;
    *count = !from || found < *count ? found : *count;
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count)
{
    return get_edges(graph, from, to, NULL, count);
}

CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *data, size_t *count)
{
    return get_edges(graph, from, to, data, count);
}

static CUresult get_links(const char *api, CUgraphNode node, bool dependents, CUgraphNode *nodes, CUgraphEdgeData *data,
                          size_t *count)
{
    struct sg_node *n;
    CUresult r = sg_enter_node(api, node, -1, &n);
    if (r)
        return r;
    if (!count || (data && !nodes))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    const struct sg_edges *l = dependents ? &n->dependents : &n->dependencies;
    for (size_t i = 0; nodes && i < *count; i++) {
        if (i < l->count && !data && !sg_edge_is_default(&l->at[i].data))
            return sg_leave(CUDA_ERROR_LOSSY_QUERY);
        nodes[i] = i < l->count ? SG_HANDLE(CUgraphNode, l->at[i].node) : NULL;
        if (data && i < l->count)
            data[i] = l->at[i].data;
    }
    *count = !nodes || l->count < *count ? l->count : *count;
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *nodes, size_t *count)
{
    return get_links("cuGraphNodeGetDependencies", node, false, nodes, NULL, count);
}

CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *data, size_t *count)
{
    return get_links("cuGraphNodeGetDependencies", node, false, nodes, data, count);
}

CUresult cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode *nodes, size_t *count)
{
    return get_links("cuGraphNodeGetDependentNodes", node, true, nodes, NULL, count);
}

CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *data, size_t *count)
{
    return get_links("cuGraphNodeGetDependentNodes", node, true, nodes, data, count);
}

/* ---- edges ---- */

struct edges {
    const CUgraphNode *from, *to;
    const CUgraphEdgeData *data;
    size_t count;
};

static CUresult find_edge(const struct sg_graph *g, const struct edges *e, size_t i, struct sg_node **from_out,
                          struct sg_node **to_out, CUgraphEdgeData *data_out)
{
    static const CUgraphEdgeData none;
    struct sg_node *from = *from_out = SG_FIND(e->from[i], SG_NODE), *to = *to_out = SG_FIND(e->to[i], SG_NODE);
    *data_out = e->data ? e->data[i] : none;
    if (!from || !to || from == to || from->graph != g || to->graph != g)
        return CUDA_ERROR_INVALID_VALUE;
    if (data_out->type == CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC && to->work->type != CU_GRAPH_NODE_TYPE_KERNEL)
        return CUDA_ERROR_INVALID_VALUE;
    return sg_edge_check(from, data_out);
}

static bool is_linked(const struct sg_node *from, const struct sg_node *to, const CUgraphEdgeData *data, size_t *at_out)
{
    for (size_t i = 0; i < to->dependencies.count; i++) {
        *at_out = i;
        if (to->dependencies.at[i].node == from && !memcmp(&to->dependencies.at[i].data, data, sizeof *data))
            return true;
    }
    return false;
}

static void cut(struct sg_node *from, struct sg_node *to, const CUgraphEdgeData *data)
{
    size_t i;
    if (!is_linked(from, to, data, &i))
        return;
    struct sg_edges *l = &to->dependencies;
    memmove(&l->at[i], &l->at[i + 1], (--l->count - i) * sizeof l->at[0]);
    l = &from->dependents;
    for (i = 0; l->at[i].node != to || memcmp(&l->at[i].data, data, sizeof *data) != 0; i++) {
    }
    memmove(&l->at[i], &l->at[i + 1], (--l->count - i) * sizeof l->at[0]);
}

/* All or nothing. */
static CUresult change_edges(const char *api, CUgraph graph, const struct edges *e, bool add)
{
    struct sg_graph *g;
    struct sg_node *from, *to;
    CUgraphEdgeData data;
    size_t done = 0, at;
    CUresult r = sg_enter_graph(api, graph, &g);
    if (r)
        return r;
    if (e->count && (!e->from || !e->to))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (!add && e->count && sg_graph_has_memory(g))
        return sg_leave(CUDA_ERROR_NOT_SUPPORTED);
    for (; done < e->count && !r; done += !r) {
        r = find_edge(g, e, done, &from, &to, &data);
        if (!r && is_linked(from, to, &data, &at) == add)
            r = CUDA_ERROR_INVALID_VALUE;
        if (!r && add)
            r = sg_link_add(from, to, &data);
        else if (!r)
            cut(from, to, &data);
    }
    while (r && done-- > 0) {
        find_edge(g, e, done, &from, &to, &data);
        if (add)
            cut(from, to, &data);
        else
            (void)!sg_link_add(from, to, &data);
    }
    return sg_leave(r);
}

CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
    return change_edges("cuGraphAddDependencies", graph, &(struct edges){from, to, NULL, count}, true);
}

CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                   const CUgraphEdgeData *data, size_t count)
{
    return change_edges("cuGraphAddDependencies", graph, &(struct edges){from, to, data, count}, true);
}

CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
    return change_edges("cuGraphRemoveDependencies", graph, &(struct edges){from, to, NULL, count}, false);
}

CUresult cuGraphRemoveDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to,
                                      const CUgraphEdgeData *data, size_t count)
{
    return change_edges("cuGraphRemoveDependencies", graph, &(struct edges){from, to, data, count}, false);
}
