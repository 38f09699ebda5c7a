/*
 * Plans, and what they are worth when they are played in virtual time. "Part" is always of the maximum flow between the two GPUs: no
 * way of copying can be faster.
 */
#include "machine.h"

#include "fabric/model.h"

#include <errno.h>
#include <math.h>
#include <string.h>

TestSuite(pipeline, .timeout = 60);

#define MIB (UINT64_C(1) << 20)

static int by_offset(const void *a, const void *b)
{
    const struct hr_part *x = a, *y = b;

    return (x->offset > y->offset) - (x->offset < y->offset);
}

/* Every byte of [0, bytes) arrived, and none twice. */
static void expect_all_delivered(const struct hr_model *model, uint64_t bytes)
{
    uint32_t count;
    const struct hr_part *delivered = hr_model_delivered(model, &count);
    struct hr_part *sorted = calloc(count + 1, sizeof *sorted);
    uint64_t next = 0;

    memcpy(sorted, delivered, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, by_offset);
    for (uint32_t i = 0; i < count; i++) {
        cr_assert_eq(sorted[i].offset, next, "at %llu: %s", (unsigned long long)next,
                     sorted[i].offset > next ? "a hole" : "twice");
        next += sorted[i].bytes;
    }
    cr_assert_eq(next, bytes);
    free(sorted);
}

static struct hr_plan plan_whole(const struct hr_routes *routes, uint64_t bytes)
{
    struct hr_part whole = {0, bytes};
    struct hr_plan plan;

    cr_assert_eq(hr_pipeline_plan(routes, &whole, 1, NULL, &plan), 0);
    return plan;
}

/* Plays a transfer and returns how long it took. */
static double play_ns(const struct hr_graph *graph, const struct hr_routes *routes, uint64_t bytes,
                      double *predicted_out)
{
    struct hr_plan plan = plan_whole(routes, bytes);
    struct hr_model *model = hr_model_create(graph, NULL);

    cr_assert_eq(hr_model_begin(model, &plan, routes), 0);
    cr_assert_eq(hr_model_run(model, INFINITY), 0);
    expect_all_delivered(model, bytes);
    double ns = hr_model_end_ns(model, 0);
    if (predicted_out)
        *predicted_out = plan.predicted_ns;
    hr_model_destroy(model);
    hr_plan_finish(&plan);
    return ns;
}

static void expect_part(const char *name, uint64_t bytes, double part)
{
    struct hr_topology *topology = read_machine(name);
    struct hr_graph *graph = hr_graph_compile(topology, HR_LINKS_FABRIC);

    for (uint32_t a = 0; a < graph->gpus; a++) {
        for (uint32_t b = 0; b < graph->gpus; b++) {
            struct hr_routes routes = {0};
            double predicted;
            if (a == b)
                continue;
            cr_assert_eq(hr_route_for(graph, NULL, a, b, bytes, &routes), 0);
            double ns = play_ns(graph, &routes, bytes, &predicted);
            double got = (double)bytes / ns / ((double)hr_route_bound_mbps(graph, a, b) / 1000);
            cr_expect(got >= part && got <= 1, "%s %u->%u: %.3f of the bound at %llu MiB", name, a, b, got,
                      (unsigned long long)(bytes / MIB));
            cr_expect(fabs(predicted / ns - 1) < 0.05, "%s %u->%u: predicted %.0f, took %.0f", name, a, b, predicted,
                      ns);
            hr_routes_finish(&routes);
        }
    }
    hr_graph_destroy(graph);
    hr_topology_destroy(topology);
}

static const char *const direct_machines[] = {"dgx1v", "mi250x", "a100x4", "mi300x", "square4"};

Test(pipeline, every_pair_reaches_90_percent_of_its_bound_at_256_mib)
{
    for (size_t i = 0; i < 5; i++)
        expect_part(direct_machines[i], 256 * MIB, 0.90);
}

Test(pipeline, every_pair_reaches_95_percent_of_its_bound_at_1_gib)
{
    for (size_t i = 0; i < 5; i++)
        expect_part(direct_machines[i], 1024 * MIB, 0.95);
}

/* What one uncut copy takes over the path that is there without any routing of ours. */
static double plain_copy_ns(const struct hr_graph *graph, uint32_t a, uint32_t b, uint64_t bytes)
{
    struct hr_pipeline_costs costs = hr_pipeline_costs_of(NULL);

    for (uint32_t i = graph->first_leg[a]; i < graph->first_leg[a + 1]; i++) {
        if (graph->leg[i].to == b)
            return costs.start_ns + graph->leg[i].latency_ns + (double)bytes / ((double)graph->leg[i].mbps / 1000);
    }
    return INFINITY;
}

Test(pipeline, costs_nothing_where_direct_is_best)
{
    static const char *const names[] = {"hgx-h100", "dgx1v", "mi250x", "a100x4", "mi300x", "square4"};
    static const uint64_t sizes[] = {4096, 64 << 10, 1 << 20, 16 << 20, 256 << 20};

    for (size_t m = 0; m < 6; m++) {
        struct hr_topology *topology = read_machine(names[m]);
        struct hr_graph *graph = hr_graph_compile(topology, HR_LINKS_FABRIC);
        for (uint32_t pair = 0; pair < graph->gpus * graph->gpus; pair++) {
            uint32_t a = pair / graph->gpus, b = pair % graph->gpus;
            for (size_t s = 0; a != b && s < (m == 0 ? 5 : 3); s++) {
                struct hr_routes routes = {0};
                cr_assert_eq(hr_route_for(graph, NULL, a, b, sizes[s], &routes), 0);
                double ns = play_ns(graph, &routes, sizes[s], NULL), plain = plain_copy_ns(graph, a, b, sizes[s]);
                cr_expect(plain >= 0.98 * ns, "%s %u->%u, %llu bytes: %.0f ns, a plain copy %.0f", names[m], a, b,
                          (unsigned long long)sizes[s], ns, plain);
                hr_routes_finish(&routes);
            }
        }
        hr_graph_destroy(graph);
        hr_topology_destroy(topology);
    }
}

Test(pipeline, plans_hold_every_byte_once_for_all_sizes)
{
    struct hr_topology *topology = read_machine("dgx1v");
    struct hr_graph *graph = hr_graph_compile(topology, HR_LINKS_FABRIC);
    struct hr_routes routes = {0};
    uint64_t state = 81;

    cr_assert_eq(hr_route_large(graph, NULL, 0, 6, &routes), 0);
    for (uint32_t round = 0; round < 400; round++) {
        uint64_t bytes = 1 + (random_next(&state) >> (24 + random_below(&state, 40)));
        bytes = bytes % (UINT64_C(64) << 30) + 1;
        struct hr_plan plan = plan_whole(&routes, bytes);
        uint64_t next = 0, shares = 0;
        for (uint32_t i = 0; i < plan.chunk_count; i++) {
            cr_assert_eq(plan.chunk[i].offset, next);
            cr_assert(plan.chunk[i].bytes > 0 && plan.chunk[i].path < plan.path_count);
            next += plan.chunk[i].bytes;
        }
        for (uint32_t i = 0; i < plan.path_count; i++)
            shares += plan.path[i].bytes;
        cr_assert_eq(next, bytes);
        cr_assert_eq(shares, bytes);
        cr_assert(plan.predicted_ns >= (double)bytes / ((double)routes.mbps / 1000));
        hr_plan_finish(&plan);
    }
    struct hr_part nothing = {0, 0};
    struct hr_plan plan;
    cr_expect_eq(hr_pipeline_plan(&routes, &nothing, 1, NULL, &plan), -EINVAL);
    hr_routes_finish(&routes);
    hr_graph_destroy(graph);
    hr_topology_destroy(topology);
}

Test(pipeline, paths_end_together_and_chunks_follow_the_formula)
{
    struct hr_topology *topology = read_machine("dgx1v");
    struct hr_graph *graph = hr_graph_compile(topology, HR_LINKS_FABRIC);
    struct hr_pipeline_costs costs = hr_pipeline_costs_of(NULL);
    struct hr_routes routes = {0};

    cr_assert_eq(hr_route_large(graph, NULL, 2, 7, &routes), 0);
    struct hr_plan plan = plan_whole(&routes, 1024 * MIB);
    cr_assert_geq(plan.path_count, 5);
    for (uint32_t i = 0; i < plan.path_count; i++) {
        const struct hr_plan_path *path = &plan.path[i];
        double ns = hr_pipeline_path_ns(path->gbps, path->legs, path->latency_ns, (double)path->bytes, &costs);
        cr_expect_float_eq(ns / plan.predicted_ns, 1, 0.01, "path %u ends at %.0f of %.0f", i, ns, plan.predicted_ns);
        if (path->legs > 1) {
            double best = sqrt((double)path->bytes * costs.start_ns * path->gbps / (path->legs - 1));
            cr_expect_float_eq((double)path->chunk_bytes / best, 1, 0.1);
        }
    }
    hr_plan_finish(&plan);
    hr_routes_finish(&routes);
    hr_graph_destroy(graph);
    hr_topology_destroy(topology);
}

/* All chunks have the size asked for, but what is left at the end of a path's share. */
Test(pipeline, chunks_are_even_where_that_is_asked_for)
{
    struct hr_topology *topology = read_machine("dgx1v");
    struct hr_graph *graph = hr_graph_compile(topology, HR_LINKS_FABRIC);
    struct hr_pipeline_costs costs = {.even_chunk_bytes = 2 * MIB, .issue_ns = 1e6};
    struct hr_routes routes = {0};

    cr_assert_eq(hr_route_large(graph, NULL, 2, 7, &routes), 0);
    for (uint64_t bytes = 1; bytes < 512 * MIB; bytes = bytes * 3 + 4096) {
        struct hr_part whole = {0, bytes};
        struct hr_plan plan;
        uint64_t sum = 0;
        uint32_t uneven = 0;
        cr_assert_eq(hr_pipeline_plan(&routes, &whole, 1, &costs, &plan), 0);
        for (uint32_t i = 0; i < plan.chunk_count; i++) {
            sum += plan.chunk[i].bytes;
            uneven += plan.chunk[i].bytes != 2 * MIB;
        }
        cr_expect_eq(sum, bytes);
        cr_expect(uneven <= 1, "%u of %u chunks of %llu bytes", uneven, plan.chunk_count, (unsigned long long)bytes);
        hr_plan_finish(&plan);
    }
    hr_routes_finish(&routes);
    hr_graph_destroy(graph);
    hr_topology_destroy(topology);
}

Test(pipeline, a_chain_of_15_hops_delivers)
{
    struct hr_topology *topology = hr_topology_chain(16, 2, 25);
    struct hr_graph *graph = hr_graph_compile(topology, HR_LINKS_FABRIC);
    struct hr_routes routes = {0};

    cr_assert_eq(hr_route_large(graph, NULL, 0, 15, &routes), 0);
    double ns = play_ns(graph, &routes, 1024 * MIB, NULL);
    cr_expect_geq(1024.0 * MIB / ns, 0.9 * 50 * 0.95, "%.1f of 50 GB/s", 1024.0 * MIB / ns);
    hr_routes_finish(&routes);
    hr_graph_destroy(graph);
    hr_topology_destroy(topology);
}

Test(pipeline, transfers_that_share_edges_share_them)
{
    struct hr_topology *topology = read_machine("dgx1v");
    struct hr_graph *graph = hr_graph_compile(topology, HR_LINKS_FABRIC);
    struct hr_account account;
    struct hr_route_limits limits = {.account = &account};
    struct hr_routes routes[2] = {0};
    struct hr_model *model = hr_model_create(graph, NULL);
    struct hr_plan plan[2];

    cr_assert_eq(hr_account_init(&account, graph), 0);
    for (uint32_t i = 0; i < 2; i++) { /* both into GPU 3, which has 150 GB/s of links */
        cr_assert_eq(hr_route_large(graph, &limits, i, 3, &routes[i]), 0);
        hr_account_charge(&account, &routes[i]);
        plan[i] = plan_whole(&routes[i], 256 * MIB);
        cr_assert_eq(hr_model_begin(model, &plan[i], &routes[i]), (int)i);
    }
    cr_assert_eq(hr_model_run(model, INFINITY), 0);
    double end = fmax(hr_model_end_ns(model, 0), hr_model_end_ns(model, 1));
    cr_expect_geq(512.0 * MIB / end, 0.85 * 150, "%.1f of 150 GB/s together", 512.0 * MIB / end);
    cr_expect_leq(512.0 * MIB / end, 150);
    for (uint32_t i = 0; i < 2; i++) {
        hr_plan_finish(&plan[i]);
        hr_routes_finish(&routes[i]);
    }
    hr_account_finish(&account);
    hr_model_destroy(model);
    hr_graph_destroy(graph);
    hr_topology_destroy(topology);
}

/* Every GPU sends the same amount to every other at once, over the paths that were computed for that. */
static double all_to_all_part(const char *name, uint64_t bytes_each)
{
    struct hr_topology *topology = read_machine(name);
    struct hr_graph *graph = hr_graph_compile(topology, HR_LINKS_FABRIC);
    struct hr_model *model = hr_model_create(graph, NULL);
    struct hr_all_to_all all;
    uint32_t arrived;
    uint64_t sum = 0, pairs = 0;

    cr_assert_eq(hr_route_all_to_all(graph, 0.02, &all), 0);
    for (uint32_t pair = 0; pair < all.gpus * all.gpus; pair++) {
        if (all.routes[pair].path_count == 0)
            continue;
        struct hr_plan plan = plan_whole(&all.routes[pair], bytes_each);
        cr_assert_geq(hr_model_begin(model, &plan, &all.routes[pair]), 0);
        hr_plan_finish(&plan);
        pairs++;
    }
    cr_assert_eq(hr_model_run(model, INFINITY), 0);
    const struct hr_part *delivered = hr_model_delivered(model, &arrived);
    for (uint32_t i = 0; i < arrived; i++)
        sum += delivered[i].bytes;
    cr_expect_eq(sum, bytes_each * pairs);
    double part = (double)bytes_each / hr_model_now_ns(model) / (all.bound_mbps / 1000);
    hr_all_to_all_finish(&all);
    hr_model_destroy(model);
    hr_graph_destroy(graph);
    hr_topology_destroy(topology);
    return part;
}

Test(pipeline, all_to_all_reaches_90_percent_of_its_bound)
{
    static const char *const names[] = {"dgx1v", "a100x4", "square4", "mi250x", "mi300x"};

    for (size_t i = 0; i < (getenv("HEADROOM_TEST_LONG") ? 5 : 3); i++) {
        double part = all_to_all_part(names[i], 256 * MIB);
        cr_expect(part >= 0.90 && part <= 1, "%s: %.3f", names[i], part);
    }
}

/* All links between the edge's two GPUs fail, both ways. */
static void take_down(struct hr_topology *topology, uint32_t a, uint32_t b)
{
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t from = i ? b : a, to = i ? a : b;
        for (uint32_t p = 0; p < topology->elements[from].port_count; p++) {
            if (topology->elements[from].ports[p].peer == (int32_t)to)
                hr_topology_set_up(topology, from, p, false);
        }
    }
}

struct failure {
    double at_ns;       /* of virtual time */
    double end_ns;      /* of everything */
    uint64_t left;      /* bytes that had to be planned again */
    uint64_t missing;   /* bytes that had not arrived, those under way included */
    int64_t bound_mbps; /* of what is left of the machine */
};

/*
 * A transfer over `routes` loses an edge at `at_ns`; what was not delivered is planned over new routes, which a second graph gives.
 * The model goes on with the old graph's edges, since the new one's are the same but for the failed ones.
 */
static struct failure play_failure(const char *name, uint32_t a, uint32_t b, uint64_t bytes, double at_part,
                                   uint32_t pick)
{
    struct hr_topology *topology = read_machine(name);
    struct hr_graph *graph = hr_graph_compile(topology, HR_LINKS_FABRIC);
    struct hr_routes routes = {0}, again = {0};
    struct failure failure = {0};

    cr_assert_eq(hr_route_large(graph, NULL, a, b, &routes), 0);
    struct hr_plan plan = plan_whole(&routes, bytes), second = {0};
    struct hr_model *model = hr_model_create(graph, NULL);
    cr_assert_eq(hr_model_begin(model, &plan, &routes), 0);
    failure.at_ns = plan.predicted_ns * at_part;
    int ran = hr_model_run(model, failure.at_ns);
    cr_assert(ran == -ETIMEDOUT || (ran == 0 && at_part > 0.8), "%d", ran);
    uint32_t arrived;
    const struct hr_part *delivered = hr_model_delivered(model, &arrived);
    failure.missing = bytes;
    for (uint32_t i = 0; i < arrived; i++)
        failure.missing -= delivered[i].bytes;
    const struct hr_path *path = &routes.path[pick % routes.path_count];
    uint32_t edge = path->load[pick / routes.path_count % path->load_count].edge;
    struct hr_part *extents, *other;
    int count = hr_model_fail(model, edge, &extents);
    cr_assert_geq(count, 0);
    int32_t back = hr_graph_edge(graph, graph->edge[edge].to, graph->edge[edge].from);
    cr_assert_eq(hr_model_fail(model, (uint32_t)back, &other), 0, "the other direction carries none of it");
    take_down(topology, graph->edge[edge].from, graph->edge[edge].to);
    struct hr_graph *rest = hr_graph_compile(topology, HR_LINKS_FABRIC);
    failure.bound_mbps = hr_route_bound_mbps(rest, a, b);
    cr_assert_gt(failure.bound_mbps, 0);
    for (int i = 0; i < count; i++)
        failure.left += extents[i].bytes;
    if (count > 0) {
        cr_assert_eq(hr_route_for(rest, NULL, a, b, failure.left, &again), 0);
        for (uint32_t i = 0; i < again.path_count; i++) { /* the same edges by their numbers in the old graph */
            for (uint32_t k = 0; k < again.path[i].load_count; k++) {
                const struct hr_edge *now = &rest->edge[again.path[i].load[k].edge];
                again.path[i].load[k].edge = (uint32_t)hr_graph_edge(graph, now->from, now->to);
            }
        }
        double busy_ns[HR_ROUTES_MAX_PATHS];
        struct hr_pipeline_costs costs = {.busy_ns = busy_ns};
        cr_assert_eq(hr_model_busy_ns(model, &again, busy_ns), 0);
        cr_assert_eq(hr_pipeline_plan(&again, extents, (uint32_t)count, &costs, &second), 0);
        cr_assert_eq(second.bytes, failure.left);
        cr_assert_eq(hr_model_begin(model, &second, &again), 1);
    }
    cr_assert_eq(hr_model_run(model, INFINITY), 0);
    expect_all_delivered(model, bytes);
    failure.end_ns = hr_model_now_ns(model);
    free(extents);
    free(other);
    hr_model_destroy(model);
    hr_plan_finish(&plan);
    hr_plan_finish(&second);
    hr_routes_finish(&routes);
    hr_routes_finish(&again);
    hr_graph_destroy(graph);
    hr_graph_destroy(rest);
    hr_topology_destroy(topology);
    return failure;
}

Test(pipeline, a_link_that_dies_at_any_moment_loses_nothing)
{
    uint64_t state = 91;
    uint32_t rounds = getenv("HEADROOM_TEST_LONG") ? 1000 : 200, planned_again = 0;

    for (uint32_t round = 0; round < rounds; round++) {
        const char *name = round % 2 ? "dgx1v" : "mi250x";
        uint32_t a = random_below(&state, 8), b = (a + 1 + random_below(&state, 7)) % 8;
        double at = random_below(&state, 1000) / 1010.0;
        planned_again += play_failure(name, a, b, 16 * MIB, at, random_below(&state, 1000)).left > 0;
    }
    cr_expect_gt(planned_again, rounds / 2);
}

Test(pipeline, after_a_link_died_the_rest_moves_at_90_percent_of_the_new_bound)
{
    uint64_t state = 92;

    for (uint32_t round = 0; round < 60; round++) {
        const char *name = round % 3 == 0 ? "square4" : round % 3 == 1 ? "dgx1v" : "a100x4";
        uint32_t gpus = round % 3 == 1 ? 8 : 4, a = random_below(&state, gpus);
        uint32_t b = (a + 1 + random_below(&state, gpus - 1)) % gpus;
        struct failure failure =
            play_failure(name, a, b, 1024 * MIB, random_below(&state, 500) / 1000.0, random_below(&state, 1000));
        double part = (double)failure.missing / (failure.end_ns - failure.at_ns) / ((double)failure.bound_mbps / 1000);
        cr_expect(part >= 0.90, "%s %u->%u: %.3f of the new bound for %llu MiB", name, a, b, part,
                  (unsigned long long)(failure.missing / MIB));
    }
}

Test(pipeline, later_transfers_reach_90_percent_of_the_new_bound)
{
    uint64_t state = 93;

    for (uint32_t round = 0; round < 60; round++) {
        struct hr_topology *topology = read_machine(direct_machines[round % 5]);
        uint32_t a = random_below(&state, topology->gpu_count), port = random_below(&state, 4);
        uint32_t b = (a + 1 + random_below(&state, topology->gpu_count - 1)) % topology->gpu_count;
        struct hr_routes routes = {0};
        for (uint32_t i = 0; i < 2; i++) { /* two links of the source fail */
            uint32_t ports = topology->elements[topology->gpus[a]].port_count;
            hr_topology_set_up(topology, topology->gpus[a], (port + i) % ports, false);
        }
        struct hr_graph *graph = hr_graph_compile(topology, HR_LINKS_FABRIC);
        cr_assert_eq(hr_route_for(graph, NULL, a, b, 256 * MIB, &routes), 0);
        double part =
            256.0 * MIB / play_ns(graph, &routes, 256 * MIB, NULL) / ((double)hr_route_bound_mbps(graph, a, b) / 1000);
        cr_expect(part >= 0.90, "%s %u->%u: %.3f", direct_machines[round % 5], a, b, part);
        hr_routes_finish(&routes);
        hr_graph_destroy(graph);
        hr_topology_destroy(topology);
    }
}

Test(pipeline, what_cannot_move_is_said_to_be_stuck)
{
    struct hr_topology *topology = hr_topology_chain(3, 1, 25);
    struct hr_graph *graph = hr_graph_compile(topology, HR_LINKS_FABRIC);
    struct hr_routes routes = {0};
    struct hr_part *extents;

    cr_assert_eq(hr_route_large(graph, NULL, 0, 2, &routes), 0);
    struct hr_plan plan = plan_whole(&routes, 16 * MIB);
    struct hr_model *model = hr_model_create(graph, NULL);
    cr_assert_eq(hr_model_fail(model, routes.path[0].load[1].edge, &extents), 0);
    free(extents);
    cr_assert_eq(hr_model_begin(model, &plan, &routes), 0);
    cr_expect_eq(hr_model_run(model, INFINITY), -EPIPE);
    hr_model_destroy(model);
    hr_plan_finish(&plan);
    hr_routes_finish(&routes);
    hr_graph_destroy(graph);
    hr_topology_destroy(topology);
}
