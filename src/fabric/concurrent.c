/*
 * All pairs at once: the maximum concurrent flow with equal demands, by the method of multiplicative lengths (Garg and Könemann,
 * SIAM J. Comput. 37, 2007; Fleischer's phases). Every edge has a length that grows with what it carries; each phase sends one unit
 * for every pair along what is shortest just then. The lengths are a dual solution, so every phase also gives a bound that no
 * routing can exceed: the work stops when the two are close enough.
 */
#include "fabric/route.h"

#include "base/number.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_GPUS 64
#define MAX_PHASES 4000
#define DUST 0.02 /* paths below this part of their pair are left out */

struct concurrent {
    const struct hr_graph *graph;
    double step;
    double *length;  /* by edge */
    double *carried; /* by edge: units, all pairs */
    float *flow;     /* [pair][edge]: units */
    double *far;     /* by node */
    uint32_t *via;   /* by node: edge */
    bool *done;      /* by node */
};

static void concurrent_finish(struct concurrent *all)
{
    free(all->length);
    free(all->carried);
    free(all->flow);
    free(all->far);
    free(all->via);
    free(all->done);
}

static bool concurrent_init(struct concurrent *all)
{
    const struct hr_graph *graph = all->graph;

    all->length = calloc(graph->edges + 1, sizeof *all->length);
    all->carried = calloc(graph->edges + 1, sizeof *all->carried);
    all->flow = calloc((size_t)graph->gpus * graph->gpus * graph->edges + 1, sizeof *all->flow);
    all->far = calloc(graph->nodes, sizeof *all->far);
    all->via = calloc(graph->nodes, sizeof *all->via);
    all->done = calloc(graph->nodes, sizeof *all->done);
    if (!all->length || !all->carried || !all->flow || !all->far || !all->via || !all->done)
        return false;
    for (uint32_t e = 0; e < graph->edges; e++)
        all->length[e] = 1.0 / (double)graph->edge[e].mbps;
    return true;
}

/* Dijkstra without a heap: the graphs are small. */
static void shortest(struct concurrent *all, uint32_t source)
{
    const struct hr_graph *graph = all->graph;

    for (uint32_t n = 0; n < graph->nodes; n++) {
        all->far[n] = INFINITY;
        all->done[n] = false;
    }
    all->far[source] = 0;
    for (;;) {
        uint32_t best = graph->nodes;
        for (uint32_t n = 0; n < graph->nodes; n++) {
            if (!all->done[n] && all->far[n] < INFINITY && (best == graph->nodes || all->far[n] < all->far[best]))
                best = n;
        }
        if (best == graph->nodes)
            return;
        all->done[best] = true;
        for (uint32_t e = graph->first_edge[best]; e < graph->first_edge[best + 1]; e++) {
            double far = all->far[best] + all->length[e];
            if (far < all->far[graph->edge[e].to]) {
                all->far[graph->edge[e].to] = far;
                all->via[graph->edge[e].to] = e;
            }
        }
    }
}

/*
 * One unit for one pair along the current shortest way. A unit is small against every edge after the first phases' scaling
 * (unit), so it is never split.
 */
static void send(struct concurrent *all, uint32_t pair, uint32_t source, uint32_t destination, double unit)
{
    const struct hr_graph *graph = all->graph;

    for (uint32_t n = destination; n != source; n = graph->edge[all->via[n]].from) {
        uint32_t e = all->via[n];
        all->flow[(size_t)pair * graph->edges + e] += 1;
        all->carried[e] += 1;
        all->length[e] *= 1 + all->step * unit / (double)graph->edge[e].mbps;
    }
}

static double heaviest(const struct concurrent *all)
{
    double most = 0;

    for (uint32_t e = 0; e < all->graph->edges; e++) {
        double load = all->carried[e] / (double)all->graph->edge[e].mbps;
        most = load > most ? load : most;
    }
    return most;
}

/* Sum of capacities times lengths over the pairs' distances: the dual bound; 0 if some pair has no way. */
static double dual_bound(struct concurrent *all)
{
    const struct hr_graph *graph = all->graph;
    double volume = 0, distance = 0;

    for (uint32_t e = 0; e < graph->edges; e++)
        volume += all->length[e] * (double)graph->edge[e].mbps;
    for (uint32_t s = 0; s < graph->gpus; s++) {
        shortest(all, graph->gpu_node[s]);
        for (uint32_t d = 0; d < graph->gpus; d++)
            distance += all->far[graph->gpu_node[d]];
    }
    return isinf(distance) ? 0 : volume / distance;
}

static void rescale_lengths(struct concurrent *all)
{
    double most = 0;

    for (uint32_t e = 0; e < all->graph->edges; e++)
        most = all->length[e] > most ? all->length[e] : most;
    for (uint32_t e = 0; most > 1e100 && e < all->graph->edges; e++)
        all->length[e] /= most;
}

/* Phases until the best rate found is within tolerance of the best bound. Returns the number of phases; 0 = unreachable. */
static uint32_t run_phases(struct concurrent *all, double tolerance, double *bound_out)
{
    const struct hr_graph *graph = all->graph;
    double bound = dual_bound(all);
    uint32_t phase = 0;

    if (bound <= 0)
        return 0;
    double unit = bound;
    while (phase < MAX_PHASES) {
        for (uint32_t s = 0; s < graph->gpus; s++) {
            for (uint32_t d = 0; d < graph->gpus; d++) {
                if (d == s)
                    continue;
                shortest(all, graph->gpu_node[s]);
                send(all, s * graph->gpus + d, graph->gpu_node[s], graph->gpu_node[d], unit);
            }
        }
        phase++;
        double now = dual_bound(all);
        bound = now < bound ? now : bound;
        if (phase / heaviest(all) >= (1 - tolerance) * bound)
            break;
        rescale_lengths(all);
    }
    *bound_out = bound;
    return phase;
}

/* Drops dust and gives the rest of the pair its rate. */
static void clean_pair(struct hr_routes *routes, double pair_mbps)
{
    uint32_t kept = 0;
    double sum = 0;

    for (uint32_t i = 0; i < routes->path_count; i++) {
        if ((double)routes->path[i].mbps < DUST * pair_mbps && routes->path_count > 1) {
            free(routes->path[i].gpu);
            free(routes->path[i].load);
            continue;
        }
        sum += (double)routes->path[i].mbps;
        routes->path[kept++] = routes->path[i];
    }
    routes->path_count = kept;
    routes->mbps = 0;
    for (uint32_t i = 0; i < kept; i++) {
        struct hr_path *path = &routes->path[i];
        double scale = pair_mbps / sum;
        path->mbps = (int64_t)((double)path->mbps * scale);
        for (uint32_t k = 0; k < path->load_count; k++)
            path->load[k].mbps = (int64_t)((double)path->load[k].mbps * scale);
        routes->mbps += path->mbps;
    }
}

static int make_routes(struct concurrent *all, uint32_t phases, struct hr_all_to_all *out)
{
    const struct hr_graph *graph = all->graph;
    double pair_mbps = phases / heaviest(all);
    int64_t *flow = calloc(graph->edges + 1, sizeof *flow);

    if (!flow)
        return -ENOMEM;
    int rc = 0;
    for (uint32_t pair = 0; rc == 0 && pair < graph->gpus * graph->gpus; pair++) {
        uint32_t s = pair / graph->gpus, d = pair % graph->gpus;
        if (s == d)
            continue;
        for (uint32_t e = 0; e < graph->edges; e++)
            flow[e] = hr_number_round((double)all->flow[(size_t)pair * graph->edges + e] / phases * pair_mbps);
        rc = hr_route_decompose(graph, s, d, flow, &out->routes[pair]);
        if (rc == 0)
            clean_pair(&out->routes[pair], pair_mbps);
    }
    free(flow);
    /* Left-out paths load the others more: what every pair gets is what the fullest edge allows. */
    double most = 0;
    double *load = calloc(graph->edges + 1, sizeof *load);
    if (!load)
        return -ENOMEM;
    for (uint32_t pair = 0; pair < graph->gpus * graph->gpus; pair++) {
        const struct hr_routes *routes = &out->routes[pair];
        for (uint32_t i = 0; i < routes->path_count; i++) {
            for (uint32_t k = 0; k < routes->path[i].load_count; k++)
                load[routes->path[i].load[k].edge] += (double)routes->path[i].load[k].mbps;
        }
    }
    for (uint32_t e = 0; e < graph->edges; e++)
        most = load[e] / (double)graph->edge[e].mbps > most ? load[e] / (double)graph->edge[e].mbps : most;
    free(load);
    out->pair_mbps = most > 1 ? pair_mbps / most : pair_mbps;
    return rc;
}

void hr_all_to_all_finish(struct hr_all_to_all *all)
{
    for (uint32_t i = 0; all->routes && i < all->gpus * all->gpus; i++)
        hr_routes_finish(&all->routes[i]);
    free(all->routes);
    *all = (struct hr_all_to_all){0};
}

int hr_route_all_to_all(const struct hr_graph *graph, double tolerance, struct hr_all_to_all *out)
{
    struct concurrent all = {.graph = graph, .step = tolerance / 2};
    struct hr_all_to_all result = {.gpus = graph->gpus};
    int rc = -ENOMEM;

    if (graph->gpus < 2)
        return -EINVAL;
    if (graph->gpus > MAX_GPUS)
        return -E2BIG;
    result.routes = calloc((size_t)graph->gpus * graph->gpus, sizeof *result.routes);
    if (result.routes && concurrent_init(&all)) {
        uint32_t phases = run_phases(&all, tolerance, &result.bound_mbps);
        rc = phases ? make_routes(&all, phases, &result) : -ENETUNREACH;
    }
    concurrent_finish(&all);
    if (rc != 0) {
        hr_all_to_all_finish(&result);
        return rc;
    }
    *out = result;
    return 0;
}
