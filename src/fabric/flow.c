/*
 * Maximum flow of least cost by successive shortest paths: each round takes the cheapest way with room left, found by a
 * label-correcting search, since the way back through an edge costs less than nothing. Node-sized machines need a handful of
 * rounds; a torus of thousands as many as a card has links.
 *
 * A leg costs more than any number of links, because a GPU in between has to store what it passes on.
 */
#include "fabric/route.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LEG_COST 65536

struct arc {
    uint32_t to;
    uint32_t edge;
    bool backward;
};

struct solver {
    const struct hr_graph *graph;
    const bool *closed;
    int64_t *left;       /* by edge: what fits forward */
    int64_t *used;       /* by edge: what can be taken back */
    uint32_t *first_arc; /* by node; both directions of every edge, [nodes + 1] */
    struct arc *arc;
    int64_t *cost;   /* by node */
    uint32_t *via;   /* by node: arc that led there */
    uint32_t *from;  /* by node: node before */
    uint32_t *queue; /* ring of nodes */
    bool *queued;
};

static void solver_finish(struct solver *solver)
{
    free(solver->left);
    free(solver->used);
    free(solver->first_arc);
    free(solver->arc);
    free(solver->cost);
    free(solver->via);
    free(solver->from);
    free(solver->queue);
    free(solver->queued);
}

static bool solver_init(struct solver *solver, const struct hr_graph *graph, const int64_t *capacity)
{
    size_t nodes = graph->nodes + 1, edges = graph->edges + 1;

    solver->graph = graph;
    solver->left = calloc(edges, sizeof *solver->left);
    solver->used = calloc(edges, sizeof *solver->used);
    solver->first_arc = calloc(nodes + 1, sizeof *solver->first_arc);
    solver->arc = calloc(edges * 2, sizeof *solver->arc);
    solver->cost = calloc(nodes, sizeof *solver->cost);
    solver->via = calloc(nodes, sizeof *solver->via);
    solver->from = calloc(nodes, sizeof *solver->from);
    solver->queue = calloc(nodes, sizeof *solver->queue);
    solver->queued = calloc(nodes, sizeof *solver->queued);
    if (!solver->left || !solver->used || !solver->first_arc || !solver->arc || !solver->cost || !solver->via ||
        !solver->from || !solver->queue || !solver->queued)
        return false;
    for (uint32_t e = 0; e < graph->edges; e++) {
        solver->left[e] = capacity ? capacity[e] : graph->edge[e].mbps;
        solver->first_arc[graph->edge[e].from + 1]++;
        solver->first_arc[graph->edge[e].to + 1]++;
    }
    for (uint32_t n = 0; n < graph->nodes; n++)
        solver->first_arc[n + 1] += solver->first_arc[n];
    for (uint32_t e = graph->edges;
         e-- > 0;) { /* filled from the end: first_arc moves down to where each node begins */
        solver->arc[--solver->first_arc[graph->edge[e].from + 1]] = (struct arc){graph->edge[e].to, e, false};
        solver->arc[--solver->first_arc[graph->edge[e].to + 1]] = (struct arc){graph->edge[e].from, e, true};
    }
    return true;
}

static int64_t arc_cost(const struct solver *solver, const struct arc *arc)
{
    const struct hr_edge *edge = &solver->graph->edge[arc->edge];
    int64_t cost = 1 + (solver->graph->node_gpu[edge->to] >= 0 ? LEG_COST : 0);

    return arc->backward ? -cost : cost;
}

/* After solver_init, arcs of node n lie from first_arc[n + 1] up to where those of n + 1 begin. */
static uint32_t arcs_begin(const struct solver *solver, uint32_t node)
{
    return solver->first_arc[node + 1];
}

static uint32_t arcs_end(const struct solver *solver, uint32_t node)
{
    return node + 1 < solver->graph->nodes ? solver->first_arc[node + 2] : solver->graph->edges * 2;
}

static bool search(struct solver *solver, uint32_t source, uint32_t destination)
{
    uint32_t nodes = solver->graph->nodes, head = 0, waiting = 1;

    for (uint32_t n = 0; n < nodes; n++)
        solver->cost[n] = INT64_MAX;
    solver->cost[source] = 0;
    solver->queue[0] = source;
    solver->queued[source] = true;
    while (waiting > 0) {
        uint32_t node = solver->queue[head];
        head = head + 1 == nodes ? 0 : head + 1;
        waiting--;
        solver->queued[node] = false;
        if (node != source && (node == destination || (solver->closed && solver->closed[node])))
            continue;
        for (uint32_t a = arcs_begin(solver, node); a < arcs_end(solver, node); a++) {
            const struct arc *arc = &solver->arc[a];
            int64_t room = arc->backward ? solver->used[arc->edge] : solver->left[arc->edge];
            int64_t cost = solver->cost[node] + arc_cost(solver, arc);
            if (room <= 0 || cost >= solver->cost[arc->to] || arc->to == source)
                continue;
            solver->cost[arc->to] = cost;
            solver->via[arc->to] = a;
            solver->from[arc->to] = node;
            if (!solver->queued[arc->to]) {
                solver->queued[arc->to] = true;
                uint32_t tail = head + waiting++;
                solver->queue[tail < nodes ? tail : tail - nodes] = arc->to;
            }
        }
    }
    return solver->cost[destination] != INT64_MAX;
}

static int64_t push(struct solver *solver, uint32_t source, uint32_t destination)
{
    int64_t amount = INT64_MAX;

    for (uint32_t n = destination; n != source; n = solver->from[n]) {
        const struct arc *arc = &solver->arc[solver->via[n]];
        int64_t room = arc->backward ? solver->used[arc->edge] : solver->left[arc->edge];
        if (room < amount)
            amount = room;
    }
    for (uint32_t n = destination; n != source; n = solver->from[n]) {
        const struct arc *arc = &solver->arc[solver->via[n]];
        solver->left[arc->edge] += arc->backward ? amount : -amount;
        solver->used[arc->edge] += arc->backward ? -amount : amount;
    }
    return amount;
}

int64_t hr_flow_solve(const struct hr_graph *graph, const int64_t *capacity, const bool *closed, uint32_t source_node,
                      uint32_t destination_node, int64_t *edge_mbps_out)
{
    struct solver solver = {.closed = closed};
    int64_t flow = 0;

    if (!solver_init(&solver, graph, capacity)) {
        solver_finish(&solver);
        return -ENOMEM;
    }
    while (search(&solver, source_node, destination_node))
        flow += push(&solver, source_node, destination_node);
    if (edge_mbps_out)
        memcpy(edge_mbps_out, solver.used, graph->edges * sizeof *edge_mbps_out);
    solver_finish(&solver);
    return flow;
}
