#include "graphwalk.h"

#include "hr_hooks.h"
#include "residency/access.h"

#include <stdlib.h>

/*
 * Making nodes, and changing them in a graph. The driver looks at the operands of copies, fills and batches when it is told them: they are
 * mapped until it has answered. All else waits until the graph is made executable.
 */

/* Maps the operands of the list. Whether the real call is to be made. */
static bool place(struct hr_thread *t, struct hr_graph_list *list, struct hr_placing *placing_out)
{
    struct hr_range *ranges = NULL;
    unsigned count = 0;
    *placing_out = (struct hr_placing){.r = CUDA_ERROR_INVALID_VALUE}; /* as for what is not ours */
    if (!t || list->count == 0)
        return true;
    if (hr_space.gpu_count > 1) { /* until the list is finished */
        CUresult r = hr_graph_hold(t, list);
        if (r != CUDA_SUCCESS)
            placing_out->r = r;
        return r == CUDA_SUCCESS;
    }
    ranges = list->no_memory ? NULL : malloc(list->count * sizeof *ranges);
    if (!ranges) {
        placing_out->r = CUDA_ERROR_OUT_OF_MEMORY;
        return false;
    }
    for (uint32_t i = 0; i < list->count; i++)
        if (list->item[i].kind == HR_GRAPH_RANGE)
            ranges[count++] = (struct hr_range){list->item[i].address, list->item[i].bytes};
    bool placed = hr_copy_place(t, ranges, count, placing_out);
    free(ranges);
    return placed;
}

/* The hook of a call with operands, which `walk` lists. */
#define WITH_OPERANDS(name, walk, ...)                                                                                 \
    HR_INSIDE();                                                                                                       \
    struct hr_thread *t = hr_thread_self();                                                                            \
    struct hr_graph_list list = {0};                                                                                   \
    struct hr_placing placing;                                                                                         \
    walk;                                                                                                              \
    CUresult r = place(t, &list, &placing) ? hr_copy_placed(t, &placing, hr_drv.name(__VA_ARGS__)) : placing.r;        \
    hr_graph_list_finish(&list)

#define ADD(name, type, walk_of)                                                                                       \
    HR_HOOK(name)                                                                                                      \
    (CUgraphNode * phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies, size_t numDependencies,               \
     const type *params, CUcontext ctx)                                                                                \
    {                                                                                                                  \
        HR_PASS(name, phGraphNode, hGraph, dependencies, numDependencies, params, ctx);                                \
        WITH_OPERANDS(name, walk_of(NULL, params, &list), phGraphNode, hGraph, dependencies, numDependencies, params,  \
                      ctx);                                                                                            \
        return r;                                                                                                      \
    }
ADD(cuGraphAddMemcpyNode, CUDA_MEMCPY3D, hr_walk_copy)
ADD(cuGraphAddMemsetNode, CUDA_MEMSET_NODE_PARAMS, hr_walk_fill)

HR_HOOK(cuGraphAddBatchMemOpNode)
(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies, size_t numDependencies,
 const CUDA_BATCH_MEM_OP_NODE_PARAMS *nodeParams)
{
    HR_PASS(cuGraphAddBatchMemOpNode, phGraphNode, hGraph, dependencies, numDependencies, nodeParams);
    WITH_OPERANDS(cuGraphAddBatchMemOpNode, hr_walk_batch(NULL, nodeParams, &list), phGraphNode, hGraph, dependencies,
                  numDependencies, nodeParams);
    return r;
}

#define SET(name, type, walk_of)                                                                                       \
    HR_HOOK(name)(CUgraphNode hNode, const type *params)                                                               \
    {                                                                                                                  \
        HR_PASS(name, hNode, params);                                                                                  \
        WITH_OPERANDS(name, walk_of(hNode, params, &list), hNode, params);                                             \
        return r;                                                                                                      \
    }
SET(cuGraphMemcpyNodeSetParams, CUDA_MEMCPY3D, hr_walk_copy)
SET(cuGraphMemsetNodeSetParams, CUDA_MEMSET_NODE_PARAMS, hr_walk_fill)
SET(cuGraphBatchMemOpNodeSetParams, CUDA_BATCH_MEM_OP_NODE_PARAMS, hr_walk_batch)

/* Of any type: kernels have no operands that matter now. */
static void walk_operands(const CUgraphNodeParams *p, struct hr_graph_list *list)
{
    if (p && p->type != CU_GRAPH_NODE_TYPE_KERNEL)
        hr_walk_params(NULL, p, list);
}

static CUresult added(CUresult r, const CUgraphNode *node, const CUgraphNodeParams *p)
{
    if (r == CUDA_SUCCESS && p->type == CU_GRAPH_NODE_TYPE_CONDITIONAL)
        hr_graph_bodies_made(*node, p->conditional.phGraph_out, p->conditional.size);
    return r;
}

HR_HOOK(cuGraphAddNode)
(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies, size_t numDependencies,
 CUgraphNodeParams *nodeParams)
{
    HR_PASS(cuGraphAddNode, phGraphNode, hGraph, dependencies, numDependencies, nodeParams);
    WITH_OPERANDS(cuGraphAddNode, walk_operands(nodeParams, &list), phGraphNode, hGraph, dependencies, numDependencies,
                  nodeParams);
    return added(r, phGraphNode, nodeParams);
}
HR_HOOK(cuGraphAddNode_v2)
(CUgraphNode *phGraphNode, CUgraph hGraph, const CUgraphNode *dependencies, const CUgraphEdgeData *dependencyData,
 size_t numDependencies, CUgraphNodeParams *nodeParams)
{
    HR_PASS(cuGraphAddNode_v2, phGraphNode, hGraph, dependencies, dependencyData, numDependencies, nodeParams);
    WITH_OPERANDS(cuGraphAddNode_v2, walk_operands(nodeParams, &list), phGraphNode, hGraph, dependencies,
                  dependencyData, numDependencies, nodeParams);
    return added(r, phGraphNode, nodeParams);
}
HR_HOOK(cuGraphNodeSetParams)(CUgraphNode hNode, CUgraphNodeParams *nodeParams)
{
    HR_PASS(cuGraphNodeSetParams, hNode, nodeParams);
    WITH_OPERANDS(cuGraphNodeSetParams, walk_operands(nodeParams, &list), hNode, nodeParams);
    return r;
}

/* --- the end of graphs, whose conditional nodes have bodies ------------------------------------------------------- */

struct doomed {
    CUgraphNode *node;
    size_t count;
};

static void add_doomed(struct doomed *doomed, CUgraphNode node)
{
    CUgraphNode *grown = realloc(doomed->node, (doomed->count + 1) * sizeof *grown);
    if (!grown)
        return; /* it is forgotten when another node gets its handle */
    doomed->node = grown;
    doomed->node[doomed->count++] = node;
}

static void list_conditionals(CUgraph graph, struct doomed *doomed);

static void list_conditional(CUgraphNode node, struct doomed *doomed)
{
    CUgraphNodeType type;
    const CUgraph *bodies;
    CUgraph child;
    if (hr_drv.cuGraphNodeGetType(node, &type) != CUDA_SUCCESS)
        return;
    if (type == CU_GRAPH_NODE_TYPE_GRAPH && hr_drv.cuGraphChildGraphNodeGetGraph(node, &child) == CUDA_SUCCESS)
        list_conditionals(child, doomed);
    if (type != CU_GRAPH_NODE_TYPE_CONDITIONAL)
        return;
    unsigned count = hr_graph_bodies_of(node, &bodies);
    for (unsigned i = 0; i < count; i++)
        list_conditionals(bodies[i], doomed);
    add_doomed(doomed, node);
}

static void list_conditionals(CUgraph graph, struct doomed *doomed)
{
    size_t count = 0;
    if (hr_drv.cuGraphGetNodes(graph, NULL, &count) != CUDA_SUCCESS || count == 0)
        return;
    CUgraphNode *nodes = malloc(count * sizeof *nodes);
    CUresult r = nodes ? hr_drv.cuGraphGetNodes(graph, nodes, &count) : CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; r == CUDA_SUCCESS && i < count; i++)
        list_conditional(nodes[i], doomed);
    free(nodes);
}

static CUresult destroyed(CUresult r, struct doomed *doomed)
{
    for (size_t i = 0; r == CUDA_SUCCESS && i < doomed->count; i++)
        hr_graph_bodies_gone(doomed->node[i]);
    free(doomed->node);
    return r;
}

HR_HOOK(cuGraphDestroy)(CUgraph hGraph)
{
    HR_PASS(cuGraphDestroy, hGraph);
    HR_INSIDE();
    struct doomed doomed = {NULL, 0};
    if (hr_graph_bodies_any())
        list_conditionals(hGraph, &doomed);
    return destroyed(hr_drv.cuGraphDestroy(hGraph), &doomed);
}
HR_HOOK(cuGraphDestroyNode)(CUgraphNode hNode)
{
    HR_PASS(cuGraphDestroyNode, hNode);
    HR_INSIDE();
    struct doomed doomed = {NULL, 0};
    if (hr_graph_bodies_any())
        list_conditional(hNode, &doomed);
    return destroyed(hr_drv.cuGraphDestroyNode(hNode), &doomed);
}
