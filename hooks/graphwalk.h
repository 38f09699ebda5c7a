/* What graphs and the parameters of their nodes name, as lists (residency/graph.h). For the hooks of graphs. */
#ifndef HR_HOOKS_GRAPHWALK_H
#define HR_HOOKS_GRAPHWALK_H

#include "copy.h"
#include "residency/graph.h"

/* All that the graph's nodes name, and those of the graphs in it; the driver is asked. What it does not tell makes the list `unknown`. */
void hr_walk_graph(CUgraph graph, struct hr_graph_list *list) HR_HIDDEN;

/* What one node would name that had these parameters; NULL names nothing. */
void hr_walk_kernel(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *p, struct hr_graph_list *list) HR_HIDDEN;
void hr_walk_copy(CUgraphNode node, const CUDA_MEMCPY3D *p, struct hr_graph_list *list) HR_HIDDEN;
void hr_walk_fill(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *p, struct hr_graph_list *list) HR_HIDDEN;
void hr_walk_batch(CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS *p, struct hr_graph_list *list) HR_HIDDEN;
void hr_walk_params(CUgraphNode node, const CUgraphNodeParams *p, struct hr_graph_list *list) HR_HIDDEN;

#endif
