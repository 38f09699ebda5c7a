/*
 * A topology compiled for computing with: the links that are up, of chosen kinds, parallel ones bonded into one directed edge.
 * Immutable; a change of the topology means a new graph. Rates are whole megabytes (10^6 bytes) a second, so that flows add up
 * exactly. Locks: none.
 */
#ifndef HR_FABRIC_GRAPH_H
#define HR_FABRIC_GRAPH_H

#include "fabric/topology.h"

struct hr_edge {
    uint32_t from, to; /* nodes = elements of the topology */
    int64_t mbps;
    uint32_t latency_ns; /* of the slowest link */
    uint32_t first_link; /* its ports of `from`: link_port[first_link .. +links) */
    uint32_t links;
};

/* What one GPU reaches without another GPU in between, be it a direct link or through switches, bridges and sockets. */
struct hr_leg {
    uint32_t to; /* GPU */
    uint32_t latency_ns;
    int64_t mbps; /* all ways together */
};

struct hr_graph {
    uint32_t nodes, gpus, edges, links;
    uint64_t version;     /* of the topology it was made from */
    uint32_t *first_edge; /* by node, nodes + 1 entries; edges of a node lie together */
    struct hr_edge *edge;
    uint8_t *link_port;  /* port number at `from` */
    uint32_t *link_mbps; /* rate of that link alone */
    uint32_t *gpu_node;  /* GPU -> node */
    int32_t *node_gpu;   /* node -> GPU or -1 */
    uint32_t *first_leg; /* by GPU, gpus + 1 entries */
    struct hr_leg *leg;
};

/* kinds: mask of HR_LINKS(). NULL without memory. destroy takes NULL. */
struct hr_graph *hr_graph_compile(const struct hr_topology *topology, unsigned kinds);
void hr_graph_destroy(struct hr_graph *graph);

/* Bonded edge between two nodes, or -1. */
int32_t hr_graph_edge(const struct hr_graph *graph, uint32_t from, uint32_t to);

/* What a GPU reaches another one with, without a third in between; 0 = it does not. */
int64_t hr_graph_leg_mbps(const struct hr_graph *graph, uint32_t from_gpu, uint32_t to_gpu);

/*
 * Fewest links from every node to GPU `gpu` into hops_out[nodes]; UINT16_MAX = none. queue is scratch for nodes entries. The plain
 * breadth-first search that everything faster is compared with.
 */
void hr_graph_hops(const struct hr_graph *graph, uint32_t gpu, uint16_t *hops_out, uint32_t *queue);

#endif
