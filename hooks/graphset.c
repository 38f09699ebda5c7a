#include "graphwalk.h"

#include "hr_hooks.h"

#include <string.h>

/*
 * Changes of executable graphs. What the new parameters name is held before the driver looks at it, and what the old ones named is let
 * go after it has agreed.
 */

struct change {
    struct hr_thread *t;
    struct hr_graph_list list;
};

/* Whether the real call may be made. */
static CUresult begin(struct change *c)
{
    return c->t ? hr_graph_hold(c->t, &c->list) : CUDA_SUCCESS;
}
static CUresult set(struct change *c, CUgraphExec exec, CUgraphNode node, CUresult r)
{
    if (r == CUDA_SUCCESS)
        hr_exec_node_set(exec, node, &c->list);
    hr_graph_list_finish(&c->list);
    return r;
}

#define SET(name, walk, ...)                                                                                           \
    HR_INSIDE();                                                                                                       \
    struct change change = {hr_thread_self(), {0}};                                                                    \
    struct hr_graph_list *list = &change.list;                                                                         \
    walk;                                                                                                              \
    CUresult r = begin(&change);                                                                                       \
    return set(&change, hGraphExec, hNode, r == CUDA_SUCCESS ? hr_drv.name(__VA_ARGS__) : r)

HR_HOOK(cuGraphExecKernelNodeSetParams_v2)
(CUgraphExec hGraphExec, CUgraphNode hNode, const CUDA_KERNEL_NODE_PARAMS *nodeParams)
{
    HR_PASS(cuGraphExecKernelNodeSetParams_v2, hGraphExec, hNode, nodeParams);
    SET(cuGraphExecKernelNodeSetParams_v2, hr_walk_kernel(hNode, nodeParams, list), hGraphExec, hNode, nodeParams);
}

/* The first members of version 2. */
static void walk_kernel_v1(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS_v1 *p, struct hr_graph_list *list)
{
    CUDA_KERNEL_NODE_PARAMS whole = {0};
    if (p)
        memcpy(&whole, p, sizeof *p);
    hr_walk_kernel(node, p ? &whole : NULL, list);
}
HR_HOOK(cuGraphExecKernelNodeSetParams)
(CUgraphExec hGraphExec, CUgraphNode hNode, const CUDA_KERNEL_NODE_PARAMS_v1 *nodeParams)
{
    HR_PASS(cuGraphExecKernelNodeSetParams, hGraphExec, hNode, nodeParams);
    SET(cuGraphExecKernelNodeSetParams, walk_kernel_v1(hNode, nodeParams, list), hGraphExec, hNode, nodeParams);
}

HR_HOOK(cuGraphExecMemcpyNodeSetParams)
(CUgraphExec hGraphExec, CUgraphNode hNode, const CUDA_MEMCPY3D *copyParams, CUcontext ctx)
{
    HR_PASS(cuGraphExecMemcpyNodeSetParams, hGraphExec, hNode, copyParams, ctx);
    SET(cuGraphExecMemcpyNodeSetParams, hr_walk_copy(hNode, copyParams, list), hGraphExec, hNode, copyParams, ctx);
}
HR_HOOK(cuGraphExecMemsetNodeSetParams)
(CUgraphExec hGraphExec, CUgraphNode hNode, const CUDA_MEMSET_NODE_PARAMS *memsetParams, CUcontext ctx)
{
    HR_PASS(cuGraphExecMemsetNodeSetParams, hGraphExec, hNode, memsetParams, ctx);
    SET(cuGraphExecMemsetNodeSetParams, hr_walk_fill(hNode, memsetParams, list), hGraphExec, hNode, memsetParams, ctx);
}
HR_HOOK(cuGraphExecBatchMemOpNodeSetParams)
(CUgraphExec hGraphExec, CUgraphNode hNode, const CUDA_BATCH_MEM_OP_NODE_PARAMS *nodeParams)
{
    HR_PASS(cuGraphExecBatchMemOpNodeSetParams, hGraphExec, hNode, nodeParams);
    SET(cuGraphExecBatchMemOpNodeSetParams, hr_walk_batch(hNode, nodeParams, list), hGraphExec, hNode, nodeParams);
}

/* What the child's own nodes named stays known beside it: they may be set one by one again. */
static void walk_child(CUgraphNode node, CUgraph child, struct hr_graph_list *list)
{
    hr_walk_graph(child, list);
    for (uint32_t i = 0; i < list->count; i++)
        list->item[i].node = node;
}
HR_HOOK(cuGraphExecChildGraphNodeSetParams)(CUgraphExec hGraphExec, CUgraphNode hNode, CUgraph childGraph)
{
    HR_PASS(cuGraphExecChildGraphNodeSetParams, hGraphExec, hNode, childGraph);
    SET(cuGraphExecChildGraphNodeSetParams, walk_child(hNode, childGraph, list), hGraphExec, hNode, childGraph);
}

static void walk_any(CUgraphNode node, const CUgraphNodeParams *p, struct hr_graph_list *list)
{
    if (p && p->type == CU_GRAPH_NODE_TYPE_GRAPH)
        walk_child(node, p->graph.graph, list);
    else
        hr_walk_params(node, p, list);
}
HR_HOOK(cuGraphExecNodeSetParams)(CUgraphExec hGraphExec, CUgraphNode hNode, CUgraphNodeParams *nodeParams)
{
    HR_PASS(cuGraphExecNodeSetParams, hGraphExec, hNode, nodeParams);
    SET(cuGraphExecNodeSetParams, walk_any(hNode, nodeParams, list), hGraphExec, hNode, nodeParams);
}

/* --- updates ------------------------------------------------------------------------------------------------------ */

static CUresult updated(struct change *c, CUgraphExec exec, CUresult r)
{
    if (r == CUDA_SUCCESS)
        hr_exec_updated(exec, &c->list);
    hr_graph_list_finish(&c->list);
    return r;
}

HR_HOOK(cuGraphExecUpdate)
(CUgraphExec hGraphExec, CUgraph hGraph, CUgraphNode *hErrorNode_out, CUgraphExecUpdateResult *updateResult_out)
{
    HR_PASS(cuGraphExecUpdate, hGraphExec, hGraph, hErrorNode_out, updateResult_out);
    HR_INSIDE();
    struct change change = {hr_thread_self(), {0}};
    hr_walk_graph(hGraph, &change.list);
    CUresult r = begin(&change);
    return updated(&change, hGraphExec,
                   r == CUDA_SUCCESS ? hr_drv.cuGraphExecUpdate(hGraphExec, hGraph, hErrorNode_out, updateResult_out)
                                     : r);
}
HR_HOOK(cuGraphExecUpdate_v2)(CUgraphExec hGraphExec, CUgraph hGraph, CUgraphExecUpdateResultInfo *resultInfo)
{
    HR_PASS(cuGraphExecUpdate_v2, hGraphExec, hGraph, resultInfo);
    HR_INSIDE();
    struct change change = {hr_thread_self(), {0}};
    hr_walk_graph(hGraph, &change.list);
    CUresult r = begin(&change);
    return updated(&change, hGraphExec,
                   r == CUDA_SUCCESS ? hr_drv.cuGraphExecUpdate_v2(hGraphExec, hGraph, resultInfo) : r);
}
