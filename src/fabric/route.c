/*
 * Small transfers take one path; large ones the whole maximum flow. Both are answers in GPUs and legs, since that is what copies
 * are issued for; the loads per edge say what the legs use underneath.
 */
#include "fabric/route.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define LEG_COST 65536
#define SLOW_FACTOR 4

void hr_path_finish(struct hr_path *path)
{
    free(path->gpu);
    free(path->load);
    *path = (struct hr_path){0};
}

void hr_routes_finish(struct hr_routes *routes)
{
    for (uint32_t i = 0; i < routes->path_count; i++)
        hr_path_finish(&routes->path[i]);
    routes->path_count = 0;
    routes->mbps = 0;
}

/* ---- account ---- */

int hr_account_init(struct hr_account *account, const struct hr_graph *graph)
{
    *account = (struct hr_account){.edges = graph->edges};
    account->mbps = calloc(graph->edges + 1, sizeof *account->mbps);
    account->users = calloc(graph->edges + 1, sizeof *account->users);
    if (account->mbps && account->users)
        return 0;
    hr_account_finish(account);
    return -ENOMEM;
}

void hr_account_finish(struct hr_account *account)
{
    free(account->mbps);
    free(account->users);
    *account = (struct hr_account){0};
}

int hr_routes_copy(const struct hr_routes *from, uint32_t share_of, struct hr_routes *routes_out)
{
    struct hr_routes routes = {.source = from->source, .destination = from->destination};
    int64_t widest = 0;

    for (uint32_t i = 0; i < from->path_count; i++)
        widest = from->path[i].mbps > widest ? from->path[i].mbps : widest;
    for (uint32_t i = 0; i < from->path_count; i++) {
        const struct hr_path *path = &from->path[i];
        if (share_of > 0 && path->mbps * share_of < widest)
            continue;
        struct hr_path *copy = &routes.path[routes.path_count++];
        *copy = *path;
        copy->gpu = calloc(path->legs + 1, sizeof *copy->gpu);
        copy->load = calloc(path->load_count + 1, sizeof *copy->load);
        if (!copy->gpu || !copy->load) {
            hr_routes_finish(&routes);
            return -ENOMEM;
        }
        memcpy(copy->gpu, path->gpu, (path->legs + 1) * sizeof *copy->gpu);
        memcpy(copy->load, path->load, path->load_count * sizeof *copy->load);
        routes.mbps += path->mbps;
    }
    *routes_out = routes;
    return 0;
}

/* Whether an earlier load of the same routes is on the same edge: a transfer is one user of an edge, however many paths it has there. */
static bool counted(const struct hr_routes *routes, uint32_t path, uint32_t index)
{
    uint32_t edge = routes->path[path].load[index].edge;

    for (uint32_t i = 0; i <= path; i++) {
        uint32_t end = i == path ? index : routes->path[i].load_count;
        for (uint32_t k = 0; k < end; k++) {
            if (routes->path[i].load[k].edge == edge)
                return true;
        }
    }
    return false;
}

static void book(struct hr_account *account, const struct hr_routes *routes, int sign)
{
    for (uint32_t i = 0; i < routes->path_count; i++) {
        for (uint32_t k = 0; k < routes->path[i].load_count; k++) {
            const struct hr_path_load *load = &routes->path[i].load[k];
            account->mbps[load->edge] += sign * load->mbps;
            if (!counted(routes, i, k))
                account->users[load->edge] += (uint32_t)sign;
        }
    }
}

void hr_account_charge(struct hr_account *account, const struct hr_routes *routes)
{
    book(account, routes, 1);
}

void hr_account_release(struct hr_account *account, const struct hr_routes *routes)
{
    book(account, routes, -1);
}

int64_t hr_account_available_mbps(const struct hr_account *account, const struct hr_graph *graph, uint32_t edge)
{
    int64_t all = graph->edge[edge].mbps;
    int64_t spare = all - account->mbps[edge], even = all / (1 + (int64_t)account->users[edge]);

    return spare > even ? spare : even;
}

/* ---- decomposition ---- */

struct label {
    int64_t cost;
    int64_t width;
    uint32_t edge; /* that led here */
    bool queued;
};

/* Labels every node with the cheapest way over edges that carry flow, the widest of these; ring is scratch. */
static void label_ways(const struct hr_graph *graph, uint32_t source, const int64_t *flow, struct label *label,
                       uint32_t *ring)
{
    uint32_t head = 0, waiting = 1;

    for (uint32_t n = 0; n < graph->nodes; n++)
        label[n] = (struct label){.cost = INT64_MAX};
    label[source] = (struct label){.cost = 0, .width = INT64_MAX, .queued = true};
    ring[0] = source;
    while (waiting > 0) {
        uint32_t node = ring[head];
        head = (head + 1) % graph->nodes;
        waiting--;
        label[node].queued = false;
        for (uint32_t e = graph->first_edge[node]; e < graph->first_edge[node + 1]; e++) {
            if (flow[e] <= 0)
                continue;
            struct label *to = &label[graph->edge[e].to];
            int64_t cost = label[node].cost + 1 + (graph->node_gpu[graph->edge[e].to] >= 0 ? LEG_COST : 0);
            int64_t width = flow[e] < label[node].width ? flow[e] : label[node].width;
            if (cost > to->cost || (cost == to->cost && width <= to->width) || graph->edge[e].to == source)
                continue;
            bool waits = to->queued;
            *to = (struct label){cost, width, e, true};
            if (!waits)
                ring[(head + waiting++) % graph->nodes] = graph->edge[e].to;
        }
    }
}

static int by_legs_then_width(const void *a, const void *b)
{
    const struct hr_path *x = a, *y = b;

    if (x->legs != y->legs)
        return x->legs < y->legs ? -1 : 1;
    return x->mbps > y->mbps ? -1 : x->mbps < y->mbps;
}

static int by_width(const void *a, const void *b)
{
    const struct hr_path *x = a, *y = b;

    return x->mbps > y->mbps ? -1 : x->mbps < y->mbps;
}

static bool same_gpus(const struct hr_path *a, const struct hr_path *b)
{
    return a->legs == b->legs && memcmp(a->gpu, b->gpu, (a->legs + 1) * sizeof *a->gpu) == 0;
}

/* Adds b's rate and loads to a; edges that both use are added up. */
static int merge(struct hr_path *a, const struct hr_path *b)
{
    struct hr_path_load *load = realloc(a->load, (a->load_count + b->load_count + 1) * sizeof *load);

    if (!load)
        return -ENOMEM;
    a->load = load;
    for (uint32_t i = 0; i < b->load_count; i++) {
        uint32_t k = 0;
        while (k < a->load_count && (load[k].edge != b->load[i].edge || load[k].leg != b->load[i].leg))
            k++;
        if (k < a->load_count)
            load[k].mbps += b->load[i].mbps;
        else
            load[a->load_count++] = b->load[i];
    }
    a->mbps += b->mbps;
    if (b->latency_ns > a->latency_ns)
        a->latency_ns = b->latency_ns;
    return 0;
}

/* The way that the labels tell, taken out of the flow. */
static int take_path(const struct hr_graph *graph, uint32_t source, uint32_t destination, const struct label *label,
                     int64_t *flow, struct hr_path *path_out)
{
    struct hr_path path = {.mbps = label[destination].width};

    for (uint32_t n = destination; n != source; n = graph->edge[label[n].edge].from) {
        path.load_count++;
        path.legs += graph->node_gpu[n] >= 0;
    }
    path.gpu = calloc(path.legs + 1, sizeof *path.gpu);
    path.load = calloc(path.load_count + 1, sizeof *path.load);
    if (!path.gpu || !path.load) {
        hr_path_finish(&path);
        return -ENOMEM;
    }
    uint32_t leg = path.legs, at = path.load_count;
    path.gpu[0] = (uint16_t)graph->node_gpu[source];
    for (uint32_t n = destination; n != source; n = graph->edge[label[n].edge].from) {
        uint32_t e = label[n].edge;
        if (graph->node_gpu[n] >= 0) { /* `leg` is the one that ends here */
            path.gpu[leg] = (uint16_t)graph->node_gpu[n];
            leg--;
        }
        path.load[--at] = (struct hr_path_load){e, leg, path.mbps};
        path.latency_ns += graph->edge[e].latency_ns;
        flow[e] -= path.mbps;
    }
    *path_out = path;
    return 0;
}

/* Puts a path among the others; the narrowest gives way where there is no room. Owns `path` from here on. */
static int keep_path(struct hr_routes *routes, struct hr_path path)
{
    for (uint32_t i = 0; i < routes->path_count; i++) {
        if (same_gpus(&routes->path[i], &path)) {
            int rc = merge(&routes->path[i], &path);
            hr_path_finish(&path);
            return rc;
        }
    }
    if (routes->path_count == HR_ROUTES_MAX_PATHS) {
        qsort(routes->path, routes->path_count, sizeof path, by_width);
        struct hr_path *last = &routes->path[HR_ROUTES_MAX_PATHS - 1];
        if (last->mbps >= path.mbps) {
            hr_path_finish(&path);
            return 0;
        }
        hr_path_finish(last);
        *last = path;
        return 0;
    }
    routes->path[routes->path_count++] = path;
    return 0;
}

static void sort_paths(struct hr_routes *routes)
{
    qsort(routes->path, routes->path_count, sizeof *routes->path, by_legs_then_width);
    routes->mbps = 0;
    for (uint32_t i = 0; i < routes->path_count; i++)
        routes->mbps += routes->path[i].mbps;
}

int hr_route_decompose(const struct hr_graph *graph, uint32_t source, uint32_t destination, int64_t *edge_mbps,
                       struct hr_routes *routes_out)
{
    struct hr_routes routes = {.source = source, .destination = destination};
    struct label *label = calloc(graph->nodes, sizeof *label);
    uint32_t *ring = calloc(graph->nodes, sizeof *ring);
    uint32_t from = graph->gpu_node[source], to = graph->gpu_node[destination];
    int rc = label && ring ? 0 : -ENOMEM;

    while (rc == 0) {
        struct hr_path path;
        label_ways(graph, from, edge_mbps, label, ring);
        if (label[to].cost == INT64_MAX)
            break;
        rc = take_path(graph, from, to, label, edge_mbps, &path);
        if (rc == 0)
            rc = keep_path(&routes, path);
    }
    free(label);
    free(ring);
    if (rc != 0) {
        hr_routes_finish(&routes);
        return rc;
    }
    sort_paths(&routes);
    *routes_out = routes;
    return 0;
}

/* ---- large transfers ---- */

static bool pair_is_sane(const struct hr_graph *graph, uint32_t source, uint32_t destination)
{
    return source < graph->gpus && destination < graph->gpus && source != destination;
}

static void drop_slow(struct hr_routes *routes)
{
    int64_t best = 0;
    uint32_t kept = 0;

    for (uint32_t i = 0; i < routes->path_count; i++)
        best = routes->path[i].mbps > best ? routes->path[i].mbps : best;
    for (uint32_t i = 0; i < routes->path_count; i++) {
        if (routes->path[i].mbps * SLOW_FACTOR < best)
            hr_path_finish(&routes->path[i]);
        else
            routes->path[kept++] = routes->path[i];
    }
    routes->path_count = kept;
    sort_paths(routes);
}

static void fill_limits(const struct hr_graph *graph, const struct hr_route_limits *limits, int64_t *capacity,
                        bool *closed)
{
    for (uint32_t e = 0; e < graph->edges; e++) {
        capacity[e] = limits->account ? hr_account_available_mbps(limits->account, graph, e) : graph->edge[e].mbps;
    }
    for (uint32_t gpu = 0; limits->no_relay && gpu < graph->gpus; gpu++)
        closed[graph->gpu_node[gpu]] = limits->no_relay[gpu];
}

int hr_route_large(const struct hr_graph *graph, const struct hr_route_limits *limits, uint32_t source,
                   uint32_t destination, struct hr_routes *routes_out)
{
    static const struct hr_route_limits none;
    int rc = -ENOMEM;

    if (!pair_is_sane(graph, source, destination))
        return -EINVAL;
    int64_t *capacity = calloc(graph->edges + 1, sizeof *capacity);
    int64_t *flow = calloc(graph->edges + 1, sizeof *flow);
    bool *closed = calloc(graph->nodes + 1, sizeof *closed);
    if (!capacity || !flow || !closed)
        goto out;
    fill_limits(graph, limits ? limits : &none, capacity, closed);
    int64_t all = hr_flow_solve(graph, capacity, closed, graph->gpu_node[source], graph->gpu_node[destination], flow);
    rc = all < 0 ? (int)all : -ENETUNREACH;
    if (all <= 0)
        goto out;
    rc = hr_route_decompose(graph, source, destination, flow, routes_out);
    if (rc == 0 && !(limits && limits->keep_slow))
        drop_slow(routes_out);
out:
    free(capacity);
    free(flow);
    free(closed);
    return rc;
}

int64_t hr_route_bound_mbps(const struct hr_graph *graph, uint32_t source, uint32_t destination)
{
    if (!pair_is_sane(graph, source, destination))
        return -EINVAL;
    return hr_flow_solve(graph, NULL, NULL, graph->gpu_node[source], graph->gpu_node[destination], NULL);
}

/* ---- small transfers ---- */

static int64_t leg_room(const struct hr_graph *graph, const struct hr_account *account, uint32_t gpu,
                        const struct hr_leg *leg)
{
    int32_t edge = hr_graph_edge(graph, graph->gpu_node[gpu], graph->gpu_node[leg->to]);

    if (account && edge >= 0 && graph->edge[edge].mbps == leg->mbps)
        return hr_account_available_mbps(account, graph, (uint32_t)edge);
    return leg->mbps;
}

struct small {
    uint32_t legs; /* to get here; UINT32_MAX = not reached */
    uint32_t before;
    int64_t width;
};

/* Breadth first over legs, a level at a time; within a level the widest way wins. */
static void search_small(const struct hr_graph *graph, const struct hr_account *account, uint32_t source,
                         uint32_t destination, struct small *at, uint32_t *queue)
{
    uint32_t head = 0, tail = 0;

    for (uint32_t i = 0; i < graph->gpus; i++)
        at[i] = (struct small){.legs = UINT32_MAX};
    at[source] = (struct small){0, source, INT64_MAX};
    queue[tail++] = source;
    while (head < tail) {
        uint32_t gpu = queue[head++];
        if (at[gpu].legs >= at[destination].legs)
            break;
        for (uint32_t i = graph->first_leg[gpu]; i < graph->first_leg[gpu + 1]; i++) {
            const struct hr_leg *leg = &graph->leg[i];
            int64_t width = leg_room(graph, account, gpu, leg);
            width = width < at[gpu].width ? width : at[gpu].width;
            bool new = at[leg->to].legs == UINT32_MAX;
            if (!new && (at[leg->to].legs != at[gpu].legs + 1 || at[leg->to].width >= width))
                continue;
            at[leg->to] = (struct small){at[gpu].legs + 1, gpu, width};
            if (new)
                queue[tail++] = leg->to;
        }
    }
}

/* Adds one leg's edges to the path: the direct edge, or the flow through what lies between. */
static int add_leg(const struct hr_graph *graph, uint32_t leg, int64_t *flow, bool *closed, struct hr_path *path)
{
    for (uint32_t n = 0; n < graph->nodes; n++)
        closed[n] = graph->node_gpu[n] >= 0;
    int64_t all =
        hr_flow_solve(graph, NULL, closed, graph->gpu_node[path->gpu[leg]], graph->gpu_node[path->gpu[leg + 1]], flow);
    if (all < 0)
        return (int)all;
    for (uint32_t e = 0; e < graph->edges; e++) {
        if (flow[e] <= 0)
            continue;
        struct hr_path_load *load = realloc(path->load, (path->load_count + 1) * sizeof *load);
        if (!load)
            return -ENOMEM;
        path->load = load;
        /* What the whole path carries, divided as the leg divides it. */
        int64_t part = (int64_t)((double)flow[e] * (double)path->mbps / (double)all);
        load[path->load_count++] = (struct hr_path_load){e, leg, part > 0 ? part : 1};
    }
    return 0;
}

/* The path's GPUs and rate are there: what its legs put on edges, and their latencies. */
static int fill_legs(const struct hr_graph *graph, struct hr_path *path)
{
    int64_t *flow = calloc(graph->edges + 1, sizeof *flow);
    bool *closed = calloc(graph->nodes + 1, sizeof *closed);
    int rc = flow && closed ? 0 : -ENOMEM;

    for (uint32_t leg = 0; rc == 0 && leg < path->legs; leg++) {
        for (uint32_t i = graph->first_leg[path->gpu[leg]]; i < graph->first_leg[path->gpu[leg] + 1]; i++) {
            if (graph->leg[i].to == path->gpu[leg + 1])
                path->latency_ns += graph->leg[i].latency_ns;
        }
        rc = add_leg(graph, leg, flow, closed, path);
    }
    free(flow);
    free(closed);
    return rc;
}

static int make_small(const struct hr_graph *graph, const struct small *at, uint32_t source, uint32_t destination,
                      struct hr_path *path)
{
    path->legs = at[destination].legs;
    path->mbps = at[destination].width;
    path->gpu = calloc(path->legs + 1, sizeof *path->gpu);
    if (!path->gpu)
        return -ENOMEM;
    for (uint32_t gpu = destination, leg = path->legs;; gpu = at[gpu].before, leg--) {
        path->gpu[leg] = (uint16_t)gpu;
        if (gpu == source)
            break;
    }
    return fill_legs(graph, path);
}

int hr_route_along(const struct hr_graph *graph, const uint16_t *gpu, uint32_t legs, struct hr_path *path_out)
{
    struct hr_path path = {.legs = legs, .mbps = INT64_MAX};

    for (uint32_t leg = 0; leg < legs; leg++) {
        int64_t mbps = hr_graph_leg_mbps(graph, gpu[leg], gpu[leg + 1]);
        path.mbps = mbps < path.mbps ? mbps : path.mbps;
    }
    if (legs == 0 || path.mbps == 0)
        return -ENETUNREACH;
    path.gpu = calloc(legs + 1, sizeof *path.gpu);
    if (!path.gpu)
        return -ENOMEM;
    memcpy(path.gpu, gpu, (legs + 1) * sizeof *gpu);
    int rc = fill_legs(graph, &path);
    if (rc != 0)
        hr_path_finish(&path);
    else
        *path_out = path;
    return rc;
}

int hr_route_small(const struct hr_graph *graph, const struct hr_account *account, uint32_t source,
                   uint32_t destination, struct hr_routes *routes_out)
{
    struct hr_routes routes = {.source = source, .destination = destination};

    if (!pair_is_sane(graph, source, destination))
        return -EINVAL;
    struct small *at = calloc(graph->gpus, sizeof *at);
    uint32_t *queue = calloc(graph->gpus, sizeof *queue);
    int rc = at && queue ? 0 : -ENOMEM;
    if (rc == 0) {
        search_small(graph, account, source, destination, at, queue);
        rc = at[destination].legs == UINT32_MAX ? -ENETUNREACH : 0;
    }
    if (rc == 0) {
        rc = make_small(graph, at, source, destination, &routes.path[0]);
        if (rc != 0)
            hr_path_finish(&routes.path[0]);
    }
    free(at);
    free(queue);
    if (rc != 0)
        return rc;
    routes.path_count = 1;
    routes.mbps = routes.path[0].mbps;
    *routes_out = routes;
    return 0;
}

int hr_route_for(const struct hr_graph *graph, const struct hr_route_limits *limits, uint32_t source,
                 uint32_t destination, uint64_t bytes, struct hr_routes *routes_out)
{
    if (bytes <= HR_ROUTE_SMALL_BYTES)
        return hr_route_small(graph, limits ? limits->account : NULL, source, destination, routes_out);
    return hr_route_large(graph, limits, source, destination, routes_out);
}
