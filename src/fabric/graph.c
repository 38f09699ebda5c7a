#include "fabric/graph.h"
#include "fabric/route.h"

#include "base/number.h"

#include <stdlib.h>
#include <string.h>

void hr_graph_destroy(struct hr_graph *graph)
{
    if (!graph)
        return;
    free(graph->first_edge);
    free(graph->edge);
    free(graph->link_port);
    free(graph->link_mbps);
    free(graph->gpu_node);
    free(graph->node_gpu);
    free(graph->first_leg);
    free(graph->leg);
    free(graph);
}

static bool counts(const struct hr_port *port, unsigned kinds)
{
    return port->up && (kinds & HR_LINKS(port->kind));
}

static struct hr_graph *allocate(const struct hr_topology *topology, unsigned kinds)
{
    struct hr_graph *graph = calloc(1, sizeof *graph);
    size_t links = 0;

    if (!graph)
        return NULL;
    for (uint32_t i = 0; i < topology->element_count; i++) {
        for (uint32_t p = 0; p < topology->elements[i].port_count; p++)
            links += counts(&topology->elements[i].ports[p], kinds);
    }
    graph->nodes = topology->element_count;
    graph->gpus = topology->gpu_count;
    graph->version = topology->version;
    graph->first_edge = calloc(graph->nodes + 1, sizeof *graph->first_edge);
    graph->edge = calloc(links + 1, sizeof *graph->edge);
    graph->link_port = calloc(links + 1, sizeof *graph->link_port);
    graph->link_mbps = calloc(links + 1, sizeof *graph->link_mbps);
    graph->gpu_node = calloc(graph->gpus + 1, sizeof *graph->gpu_node);
    graph->node_gpu = calloc(graph->nodes + 1, sizeof *graph->node_gpu);
    graph->first_leg = calloc(graph->gpus + 1, sizeof *graph->first_leg);
    if (!graph->first_edge || !graph->edge || !graph->link_port || !graph->link_mbps || !graph->gpu_node ||
        !graph->node_gpu || !graph->first_leg) {
        hr_graph_destroy(graph);
        return NULL;
    }
    return graph;
}

/* The edges of one node, in the order in which its ports first name a neighbour. */
static void bond(struct hr_graph *graph, const struct hr_element *element, uint32_t node, unsigned kinds)
{
    graph->first_edge[node] = graph->edges;
    for (uint32_t p = 0; p < element->port_count; p++) {
        const struct hr_port *first = &element->ports[p];
        bool known = !counts(first, kinds);
        for (uint32_t e = graph->first_edge[node]; !known && e < graph->edges; e++)
            known = graph->edge[e].to == (uint32_t)first->peer;
        if (known)
            continue;
        struct hr_edge *edge = &graph->edge[graph->edges++];
        *edge = (struct hr_edge){.from = node, .to = (uint32_t)first->peer, .first_link = graph->links};
        for (uint32_t q = p; q < element->port_count; q++) {
            const struct hr_port *port = &element->ports[q];
            if (!counts(port, kinds) || port->peer != first->peer)
                continue;
            long long mbps = hr_number_round(port->gbps * 1000);
            graph->link_port[graph->links] = (uint8_t)q;
            graph->link_mbps[graph->links++] = (uint32_t)(mbps > 0 ? mbps : 1);
            edge->links++;
            edge->mbps += mbps > 0 ? mbps : 1;
            if (port->latency_ns > edge->latency_ns)
                edge->latency_ns = port->latency_ns;
        }
    }
}

/* GPUs that `gpu` reaches through nodes that are none, with the latency of the way of fewest links. Returns their number. */
static uint32_t reach(const struct hr_graph *graph, uint32_t gpu, uint32_t *seen, uint32_t *queue, uint32_t *latency,
                      struct hr_leg *found)
{
    uint32_t head = 0, tail = 0, count = 0;

    queue[tail++] = graph->gpu_node[gpu];
    seen[queue[0]] = gpu + 1;
    latency[queue[0]] = 0;
    while (head < tail) {
        uint32_t node = queue[head++];
        for (uint32_t e = graph->first_edge[node]; e < graph->first_edge[node + 1]; e++) {
            uint32_t to = graph->edge[e].to;
            if (seen[to] == gpu + 1)
                continue;
            seen[to] = gpu + 1;
            latency[to] = latency[node] + graph->edge[e].latency_ns;
            if (graph->node_gpu[to] >= 0)
                found[count++] = (struct hr_leg){(uint32_t)graph->node_gpu[to], latency[to], 0};
            else
                queue[tail++] = to;
        }
    }
    return count;
}

/*
 * Rate of a leg that passes one switch at most: such ways share no edge, so what they carry adds up. -1: some switch leads to
 * another, and only a flow tells.
 */
static int64_t add_up_leg(const struct hr_graph *graph, uint32_t from, uint32_t to)
{
    int64_t sum = 0;

    for (uint32_t e = graph->first_edge[from]; e < graph->first_edge[from + 1]; e++) {
        uint32_t between = graph->edge[e].to;
        if (between == to)
            sum += graph->edge[e].mbps;
        if (graph->node_gpu[between] >= 0)
            continue;
        for (uint32_t f = graph->first_edge[between]; f < graph->first_edge[between + 1]; f++) {
            if (graph->node_gpu[graph->edge[f].to] < 0)
                return -1;
            if (graph->edge[f].to == to)
                sum += graph->edge[f].mbps < graph->edge[e].mbps ? graph->edge[f].mbps : graph->edge[e].mbps;
        }
    }
    return sum;
}

static bool measure_leg(const struct hr_graph *graph, uint32_t gpu, bool *closed, struct hr_leg *leg)
{
    uint32_t from = graph->gpu_node[gpu], to = graph->gpu_node[leg->to];

    leg->mbps = add_up_leg(graph, from, to);
    if (leg->mbps < 0)
        leg->mbps = hr_flow_solve(graph, NULL, closed, from, to, NULL);
    return leg->mbps >= 0;
}

static bool make_legs(struct hr_graph *graph)
{
    uint32_t *scratch = calloc((size_t)graph->nodes * 3 + 1, sizeof *scratch);
    bool *closed = calloc(graph->nodes + 1, sizeof *closed);
    struct hr_leg *found = calloc(graph->gpus + 1, sizeof *found);
    size_t count = 0, room = 0;
    bool done = scratch && closed && found;

    for (uint32_t node = 0; done && node < graph->nodes; node++)
        closed[node] = graph->node_gpu[node] >= 0;
    for (uint32_t gpu = 0; done && gpu < graph->gpus; gpu++) {
        uint32_t legs = reach(graph, gpu, scratch, scratch + graph->nodes, scratch + 2 * (size_t)graph->nodes, found);
        if (count + legs > room) {
            room = (count + legs) * 2;
            struct hr_leg *leg = realloc(graph->leg, room * sizeof *leg);
            done = leg != NULL;
            if (!done)
                break;
            graph->leg = leg;
        }
        for (uint32_t i = 0; done && i < legs; i++) {
            done = measure_leg(graph, gpu, closed, &found[i]);
            graph->leg[count++] = found[i];
        }
        graph->first_leg[gpu + 1] = (uint32_t)count;
    }
    free(scratch);
    free(closed);
    free(found);
    return done;
}

struct hr_graph *hr_graph_compile(const struct hr_topology *topology, unsigned kinds)
{
    struct hr_graph *graph = allocate(topology, kinds);

    if (!graph)
        return NULL;
    for (uint32_t node = 0; node < graph->nodes; node++) {
        graph->node_gpu[node] = topology->elements[node].gpu;
        if (topology->elements[node].gpu >= 0)
            graph->gpu_node[topology->elements[node].gpu] = node;
        bond(graph, &topology->elements[node], node, kinds);
    }
    graph->first_edge[graph->nodes] = graph->edges;
    if (!make_legs(graph)) {
        hr_graph_destroy(graph);
        return NULL;
    }
    return graph;
}

int64_t hr_graph_leg_mbps(const struct hr_graph *graph, uint32_t from_gpu, uint32_t to_gpu)
{
    for (uint32_t i = graph->first_leg[from_gpu]; i < graph->first_leg[from_gpu + 1]; i++)
        if (graph->leg[i].to == to_gpu)
            return graph->leg[i].mbps;
    return 0;
}

int32_t hr_graph_edge(const struct hr_graph *graph, uint32_t from, uint32_t to)
{
    for (uint32_t e = graph->first_edge[from]; e < graph->first_edge[from + 1]; e++) {
        if (graph->edge[e].to == to)
            return (int32_t)e;
    }
    return -1;
}

/* Nodes pull: a node's distance is known once one of its out-edges leads to a known one, so no reverse edges are needed. */
void hr_graph_hops(const struct hr_graph *graph, uint32_t gpu, uint16_t *hops_out, uint32_t *queue)
{
    uint32_t waiting = 0;

    for (uint32_t node = 0; node < graph->nodes; node++) {
        hops_out[node] = UINT16_MAX;
        if (node != graph->gpu_node[gpu])
            queue[waiting++] = node;
    }
    hops_out[graph->gpu_node[gpu]] = 0;
    for (uint16_t hops = 1; waiting > 0; hops++) {
        uint32_t kept = 0;
        for (uint32_t i = 0; i < waiting; i++) {
            uint32_t node = queue[i];
            for (uint32_t e = graph->first_edge[node]; e < graph->first_edge[node + 1]; e++) {
                if (hops_out[graph->edge[e].to] == hops - 1) {
                    hops_out[node] = hops;
                    break;
                }
            }
            if (hops_out[node] == UINT16_MAX)
                queue[kept++] = node;
        }
        if (kept == waiting)
            break;
        waiting = kept;
    }
}
