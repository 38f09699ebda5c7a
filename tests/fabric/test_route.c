/* Paths: against another algorithm on random graphs, and on the machines. */
#include "machine.h"

#include "fabric/route.h"

#include <errno.h>
#include <string.h>

TestSuite(route, .timeout = 60);

#define MAX_NODES 24

/* Maximum flow by another algorithm: push-relabel on a matrix of capacities. */
static int64_t other_max_flow(const struct hr_graph *graph, uint32_t source, uint32_t target)
{
    static int64_t room[MAX_NODES][MAX_NODES];
    int64_t excess[MAX_NODES] = {0};
    uint32_t height[MAX_NODES] = {0};
    bool active = true;

    memset(room, 0, sizeof room);
    for (uint32_t e = 0; e < graph->edges; e++)
        room[graph->edge[e].from][graph->edge[e].to] += graph->edge[e].mbps;
    height[source] = graph->nodes;
    for (uint32_t v = 0; v < graph->nodes; v++) {
        excess[v] += room[source][v];
        room[v][source] += room[source][v];
        room[source][v] = 0;
    }
    while (active) {
        active = false;
        for (uint32_t u = 0; u < graph->nodes; u++) {
            if (u == source || u == target || excess[u] <= 0)
                continue;
            active = true;
            uint32_t lowest = UINT32_MAX;
            for (uint32_t v = 0; v < graph->nodes && excess[u] > 0; v++) {
                if (room[u][v] <= 0)
                    continue;
                if (height[u] == height[v] + 1) {
                    int64_t amount = room[u][v] < excess[u] ? room[u][v] : excess[u];
                    room[u][v] -= amount;
                    room[v][u] += amount;
                    excess[u] -= amount;
                    excess[v] += amount;
                }
                if (room[u][v] > 0 && height[v] < lowest)
                    lowest = height[v];
            }
            if (excess[u] > 0)
                height[u] = lowest + 1;
        }
    }
    return excess[target];
}

/* Every path leads from source to target over edges that are there, without passing a GPU twice, within all capacities. */
static void expect_sound(const struct hr_graph *graph, const struct hr_routes *routes, int64_t want_mbps)
{
    int64_t *load = calloc(graph->edges + 1, sizeof *load), sum = 0;

    for (uint32_t i = 0; i < routes->path_count; i++) {
        const struct hr_path *path = &routes->path[i];
        cr_assert_eq(path->gpu[0], routes->source);
        cr_assert_eq(path->gpu[path->legs], routes->destination);
        for (uint32_t a = 0; a <= path->legs; a++) {
            for (uint32_t b = 0; b < a; b++)
                cr_assert_neq(path->gpu[a], path->gpu[b], "a GPU is passed twice");
        }
        int64_t leaving[MAX_NODES * 4] = {0}, entering[MAX_NODES * 4] = {0};
        for (uint32_t k = 0; k < path->load_count; k++) {
            const struct hr_edge *edge = &graph->edge[path->load[k].edge];
            cr_assert(path->load[k].mbps > 0 && path->load[k].leg < path->legs);
            load[path->load[k].edge] += path->load[k].mbps;
            leaving[edge->from] += path->load[k].mbps;
            entering[edge->to] += path->load[k].mbps;
        }
        for (uint32_t n = 0; n < graph->nodes; n++) { /* what enters leaves, but for the ends */
            int64_t net = leaving[n] - entering[n];
            int64_t want = n == graph->gpu_node[routes->source]        ? path->mbps
                           : n == graph->gpu_node[routes->destination] ? -path->mbps
                                                                       : 0;
            cr_assert_eq(net, want, "node %u: %lld instead of %lld", n, (long long)net, (long long)want);
        }
        sum += path->mbps;
    }
    for (uint32_t e = 0; e < graph->edges; e++)
        cr_assert_leq(load[e], graph->edge[e].mbps, "edge %u is overloaded", e);
    cr_assert_eq(sum, routes->mbps);
    cr_assert_eq(sum, want_mbps, "%lld of %lld", (long long)sum, (long long)want_mbps);
    free(load);
}

Test(route, large_transfers_get_the_maximum_flow_of_random_graphs)
{
    uint64_t state = 11;
    uint32_t reached = 0, most = 0;

    for (uint32_t round = 0; round < 600; round++) {
        struct hr_topology *topology = random_topology(&state, 3 + random_below(&state, MAX_NODES - 3));
        struct hr_graph *graph = hr_graph_compile(topology, HR_LINKS_FABRIC);
        struct hr_route_limits limits = {.keep_slow = true};
        uint32_t a = random_below(&state, graph->gpus), b = random_below(&state, graph->gpus);
        if (a != b) {
            struct hr_routes routes = {0};
            int64_t want = other_max_flow(graph, graph->gpu_node[a], graph->gpu_node[b]);
            cr_assert_eq(hr_route_bound_mbps(graph, a, b), want);
            int rc = hr_route_large(graph, &limits, a, b, &routes);
            cr_assert_eq(rc, want > 0 ? 0 : -ENETUNREACH);
            if (rc == 0)
                expect_sound(graph, &routes, want);
            reached += rc == 0;
            most = routes.path_count > most ? routes.path_count : most;
            hr_routes_finish(&routes);
        }
        hr_graph_destroy(graph);
        hr_topology_destroy(topology);
    }
    cr_expect(reached > 200 && most > 3, "%u pairs reached, at most %u paths: the graphs show too little", reached,
              most);
}

/*
 * A flow is cheapest exactly if no circle of edges, forward where there is room and backward where there is flow, costs less than
 * nothing. Costs are legs first, links second.
 */
static bool is_cheapest(const struct hr_graph *graph, const int64_t *flow)
{
    int64_t cost[MAX_NODES] = {0};
    bool changed = true;

    for (uint32_t round = 0; changed && round <= graph->nodes; round++) {
        changed = false;
        for (uint32_t e = 0; e < graph->edges; e++) {
            const struct hr_edge *edge = &graph->edge[e];
            int64_t price = 1 + (graph->node_gpu[edge->to] >= 0 ? 10000 : 0);
            if (flow[e] < edge->mbps && cost[edge->from] + price < cost[edge->to]) {
                cost[edge->to] = cost[edge->from] + price;
                changed = true;
            }
            if (flow[e] > 0 && cost[edge->to] - price < cost[edge->from]) {
                cost[edge->from] = cost[edge->to] - price;
                changed = true;
            }
        }
    }
    return !changed;
}

Test(route, the_maximum_flow_is_the_one_of_fewest_hops)
{
    uint64_t state = 13;

    for (uint32_t round = 0; round < 300; round++) {
        struct hr_topology *topology = random_topology(&state, 6 + random_below(&state, MAX_NODES - 6));
        struct hr_graph *graph = hr_graph_compile(topology, HR_LINKS_FABRIC);
        int64_t *flow = calloc(graph->edges + 1, sizeof *flow);
        hr_flow_solve(graph, NULL, NULL, graph->gpu_node[0], graph->gpu_node[1], flow);
        cr_assert(is_cheapest(graph, flow), "round %u", round);
        free(flow);
        hr_graph_destroy(graph);
        hr_topology_destroy(topology);
    }
}

/* Legs and width of the best single path by trying all simple paths. */
static void try_all(const struct hr_graph *graph, uint32_t gpu, uint32_t target, bool *passed, uint32_t legs,
                    int64_t width, uint32_t *legs_out, int64_t *width_out)
{
    if (legs > *legs_out)
        return;
    if (gpu == target) {
        if (legs < *legs_out || width > *width_out)
            *width_out = width;
        *legs_out = legs;
        return;
    }
    passed[gpu] = true;
    for (uint32_t i = graph->first_leg[gpu]; i < graph->first_leg[gpu + 1]; i++) {
        const struct hr_leg *leg = &graph->leg[i];
        if (!passed[leg->to])
            try_all(graph, leg->to, target, passed, legs + 1, leg->mbps < width ? leg->mbps : width, legs_out,
                    width_out);
    }
    passed[gpu] = false;
}

Test(route, small_transfers_get_the_widest_of_the_shortest_paths)
{
    uint64_t state = 12;
    uint32_t reached = 0;

    for (uint32_t round = 0; round < 400; round++) {
        struct hr_topology *topology = random_topology(&state, 3 + random_below(&state, 7));
        struct hr_graph *graph = hr_graph_compile(topology, HR_LINKS_FABRIC);
        uint32_t a = random_below(&state, graph->gpus), b = random_below(&state, graph->gpus);
        if (a != b) {
            struct hr_routes routes = {0};
            bool passed[MAX_NODES] = {false};
            uint32_t legs = UINT32_MAX;
            int64_t width = 0;
            try_all(graph, a, b, passed, 0, INT64_MAX, &legs, &width);
            int rc = hr_route_small(graph, NULL, a, b, &routes);
            cr_assert_eq(rc, legs == UINT32_MAX ? -ENETUNREACH : 0);
            if (rc == 0) {
                cr_assert_eq(routes.path_count, 1);
                cr_assert_eq(routes.path[0].legs, legs);
                cr_assert_eq(routes.path[0].mbps, width);
                reached++;
            }
            hr_routes_finish(&routes);
        }
        hr_graph_destroy(graph);
        hr_topology_destroy(topology);
    }
    cr_expect_gt(reached, 100);
}

Test(route, a_leg_carries_what_flows_between_two_gpus_without_a_third)
{
    uint64_t state = 14;
    uint32_t legs = 0;

    for (uint32_t round = 0; round < 200; round++) {
        struct hr_topology *topology = random_topology(&state, 4 + random_below(&state, MAX_NODES - 4));
        struct hr_graph *graph = hr_graph_compile(topology, HR_LINKS_FABRIC);
        bool closed[MAX_NODES];
        for (uint32_t n = 0; n < graph->nodes; n++)
            closed[n] = graph->node_gpu[n] >= 0;
        for (uint32_t a = 0; a < graph->gpus; a++) {
            for (uint32_t i = graph->first_leg[a]; i < graph->first_leg[a + 1]; i++) {
                int64_t want =
                    hr_flow_solve(graph, NULL, closed, graph->gpu_node[a], graph->gpu_node[graph->leg[i].to], NULL);
                cr_assert_eq(graph->leg[i].mbps, want);
                legs++;
            }
        }
        hr_graph_destroy(graph);
        hr_topology_destroy(topology);
    }
    cr_expect_gt(legs, 1000);
}

/* Mean over all pairs of one path's part of the maximum flow; the paths of every pair are checked on the way. */
static double single_path_part(const char *name, uint32_t *pairs_out)
{
    struct hr_topology *topology = read_machine(name);
    struct hr_graph *graph = hr_graph_compile(topology, HR_LINKS_FABRIC);
    double sum = 0;

    *pairs_out = 0;
    for (uint32_t a = 0; a < graph->gpus; a++) {
        for (uint32_t b = 0; b < graph->gpus; b++) {
            struct hr_routes large = {0}, small = {0};
            if (a == b)
                continue;
            int64_t bound = hr_route_bound_mbps(graph, a, b);
            cr_assert_eq(hr_route_large(graph, NULL, a, b, &large), 0);
            cr_assert_eq(hr_route_small(graph, NULL, a, b, &small), 0);
            expect_sound(graph, &large, bound); /* no path of these machines is so slow that it is dropped */
            sum += (double)small.mbps / (double)bound;
            ++*pairs_out;
            hr_routes_finish(&large);
            hr_routes_finish(&small);
        }
    }
    hr_graph_destroy(graph);
    hr_topology_destroy(topology);
    return sum / *pairs_out;
}

Test(route, machines_reach_their_bound_where_one_path_does_not)
{
    uint32_t pairs;

    cr_expect_float_eq(single_path_part("dgx1v", &pairs), 0.24, 0.005, "a figure known from analysis");
    cr_expect_eq(pairs, 56);
    cr_expect_float_eq(single_path_part("mi250x", &pairs), 0.31, 0.005, "a figure known from analysis");
    cr_expect_float_eq(single_path_part("a100x4", &pairs), 1 / 3.0, 1e-6);
    cr_expect_float_eq(single_path_part("mi300x", &pairs), 1 / 7.0, 1e-6);
    cr_expect_float_eq(single_path_part("square4", &pairs), 0.5, 1e-6);
    cr_expect_float_eq(single_path_part("hgx-h100", &pairs), 1, 1e-6, "behind switches, direct is all there is");
}

Test(route, behind_switches_large_transfers_stay_direct)
{
    struct hr_topology *topology = read_machine("hgx-h100");
    struct hr_graph *graph = hr_graph_compile(topology, HR_LINKS_FABRIC);

    for (uint32_t b = 1; b < 8; b++) {
        struct hr_routes routes = {0};
        cr_assert_eq(hr_route_large(graph, NULL, 0, b, &routes), 0);
        cr_expect_eq(routes.path_count, 1);
        cr_expect_eq(routes.path[0].legs, 1);
        cr_expect_eq(routes.mbps, 450000);
        hr_routes_finish(&routes);
    }
    hr_graph_destroy(graph);
    hr_topology_destroy(topology);
}

Test(route, paths_of_a_pcie_machine_lead_through_its_tree)
{
    struct hr_topology *topology = read_machine("pcie8");
    struct hr_graph *graph = hr_graph_compile(topology, HR_LINKS_ALL);
    struct hr_routes routes = {0};

    cr_assert_eq(hr_route_large(graph, NULL, 0, 7, &routes), 0);
    cr_expect_eq(routes.path_count, 1);
    cr_expect_eq(routes.mbps, 10000, "the link between the sockets is the narrowest");
    cr_expect_eq(routes.path[0].load_count, 5);
    hr_routes_finish(&routes);
    hr_graph_destroy(graph);
    hr_topology_destroy(topology);
}

Test(route, slow_paths_are_dropped_and_closed_relays_avoided)
{
    struct hr_topology *topology = hr_topology_create();
    struct hr_routes routes = {0};

    for (int i = 0; i < 4; i++)
        hr_topology_add(topology, HR_ELEMENT_GPU, NULL);
    hr_topology_join(topology, 0, 1, HR_LINK_NVLINK, 4, 25, 700);
    hr_topology_join(topology, 0, 2, HR_LINK_NVLINK, 1, 24, 700);
    hr_topology_join(topology, 2, 1, HR_LINK_NVLINK, 1, 24, 700);
    hr_topology_join(topology, 0, 3, HR_LINK_NVLINK, 2, 25, 700);
    hr_topology_join(topology, 3, 1, HR_LINK_NVLINK, 2, 25, 700);
    struct hr_graph *graph = hr_graph_compile(topology, HR_LINKS_FABRIC);
    cr_assert_eq(hr_route_large(graph, NULL, 0, 1, &routes), 0);
    cr_expect_eq(routes.path_count, 2, "24 is less than a fourth of 100");
    cr_expect_eq(routes.mbps, 150000);
    hr_routes_finish(&routes);
    struct hr_route_limits keep = {.keep_slow = true};
    cr_assert_eq(hr_route_large(graph, &keep, 0, 1, &routes), 0);
    cr_expect_eq(routes.mbps, 174000);
    hr_routes_finish(&routes);
    const bool closed[4] = {false, false, false, true};
    struct hr_route_limits limits = {.no_relay = closed, .keep_slow = true};
    cr_assert_eq(hr_route_large(graph, &limits, 0, 1, &routes), 0);
    cr_expect_eq(routes.mbps, 124000);
    hr_routes_finish(&routes);
    hr_graph_destroy(graph);
    hr_topology_destroy(topology);
}

Test(route, concurrent_transfers_take_what_others_leave)
{
    struct hr_topology *topology = read_machine("dgx1v");
    struct hr_graph *graph = hr_graph_compile(topology, HR_LINKS_FABRIC);
    struct hr_account account;
    struct hr_routes first = {0}, second = {0}, after = {0};
    struct hr_route_limits limits = {.account = &account};

    cr_assert_eq(hr_account_init(&account, graph), 0);
    cr_assert_eq(hr_route_large(graph, &limits, 0, 3, &first), 0);
    hr_account_charge(&account, &first);
    cr_assert_eq(hr_route_large(graph, &limits, 0, 3, &second), 0);
    cr_expect_eq(second.mbps, first.mbps / 2, "of edges that are full, a second one gets half");
    hr_account_charge(&account, &second);
    hr_account_release(&account, &first);
    hr_account_release(&account, &second);
    for (uint32_t e = 0; e < graph->edges; e++) {
        cr_assert_eq(account.mbps[e], 0);
        cr_assert_eq(account.users[e], 0);
        cr_assert_eq(hr_account_available_mbps(&account, graph, e), graph->edge[e].mbps);
    }
    hr_routes_finish(&second);
    /* 0 to 6 has two ways of two legs, over 2 and over 4, equally wide: where one is taken, the other is better. */
    cr_assert_eq(hr_route_small(graph, &account, 0, 6, &second), 0);
    cr_assert_eq(second.path[0].legs, 2);
    hr_account_charge(&account, &second);
    cr_assert_eq(hr_route_small(graph, &account, 0, 6, &after), 0);
    cr_expect_eq(after.path[0].legs, 2);
    cr_expect_neq(after.path[0].gpu[1], second.path[0].gpu[1]);
    hr_routes_finish(&first);
    hr_routes_finish(&second);
    hr_routes_finish(&after);
    hr_account_finish(&account);
    hr_graph_destroy(graph);
    hr_topology_destroy(topology);
}

static void expect_all_to_all(const char *name, double part_of_bound)
{
    struct hr_topology *topology = read_machine(name);
    struct hr_graph *graph = hr_graph_compile(topology, HR_LINKS_FABRIC);
    double *load = calloc(graph->edges, sizeof *load);
    struct hr_all_to_all all;

    cr_assert_eq(hr_route_all_to_all(graph, 0.03, &all), 0);
    for (uint32_t pair = 0; pair < all.gpus * all.gpus; pair++) {
        const struct hr_routes *routes = &all.routes[pair];
        cr_assert_eq(routes->path_count > 0, pair / all.gpus != pair % all.gpus);
        for (uint32_t i = 0; i < routes->path_count; i++) {
            for (uint32_t k = 0; k < routes->path[i].load_count; k++) /* scaled to what every pair is said to get */
                load[routes->path[i].load[k].edge] +=
                    (double)routes->path[i].load[k].mbps * all.pair_mbps / (double)routes->mbps;
        }
    }
    for (uint32_t e = 0; e < graph->edges; e++)
        cr_expect(load[e] <= (double)graph->edge[e].mbps * 1.001, "%s: edge %u carries %.0f of %lld", name, e, load[e],
                  (long long)graph->edge[e].mbps);
    cr_expect(all.pair_mbps >= part_of_bound * all.bound_mbps, "%s: %.0f of %.0f", name, all.pair_mbps, all.bound_mbps);
    cr_expect(all.pair_mbps <= all.bound_mbps * 1.000001, "%s: %.0f is more than the bound %.0f", name, all.pair_mbps,
              all.bound_mbps);
    hr_all_to_all_finish(&all);
    free(load);
    hr_graph_destroy(graph);
    hr_topology_destroy(topology);
}

Test(route, all_to_all_comes_near_its_bound)
{
    expect_all_to_all("dgx1v", 0.95);
    expect_all_to_all("mi250x", 0.94);
    expect_all_to_all("a100x4", 0.99);
    expect_all_to_all("square4", 0.95);
    expect_all_to_all("hgx-h100", 0.95);
}

Test(route, all_to_all_of_a_direct_machine_is_one_link_each)
{
    struct hr_topology *topology = read_machine("mi300x");
    struct hr_graph *graph = hr_graph_compile(topology, HR_LINKS_FABRIC);
    struct hr_all_to_all all;

    cr_assert_eq(hr_route_all_to_all(graph, 0.02, &all), 0);
    cr_expect_float_eq(all.bound_mbps, 64000, 64, "more than the links' sum of each GPU cannot flow");
    cr_expect_geq(all.pair_mbps, 62000);
    hr_all_to_all_finish(&all);
    hr_graph_destroy(graph);
    hr_topology_destroy(topology);
}

Test(route, the_chain_and_the_torus_have_the_bounds_that_can_be_counted)
{
    const uint32_t extents[] = {8, 8, 8, 8};
    struct hr_topology *chain = hr_topology_chain(16, 2, 25), *torus = hr_topology_torus(extents, 4, 1, 25);
    struct hr_graph *graph = hr_graph_compile(chain, HR_LINKS_FABRIC);
    struct hr_routes routes = {0};

    cr_assert_eq(hr_route_large(graph, NULL, 0, 15, &routes), 0);
    cr_expect_eq(routes.path_count, 1);
    cr_expect_eq(routes.path[0].legs, 15);
    cr_expect_eq(routes.mbps, 50000);
    hr_routes_finish(&routes);
    hr_graph_destroy(graph);
    graph = hr_graph_compile(torus, HR_LINKS_FABRIC);
    cr_assert_eq(hr_route_large(graph, NULL, 0, 4095, &routes), 0);
    cr_expect_eq(routes.mbps, 8 * 25000, "all eight links of a card");
    cr_expect_eq(routes.path[0].legs, 4, "one step back in each direction");
    cr_expect_eq(hr_route_large(graph, NULL, 0, 0, &routes), -EINVAL);
    hr_routes_finish(&routes);
    hr_graph_destroy(graph);
    hr_topology_destroy(chain);
    hr_topology_destroy(torus);
}
