/* Ports found by measuring; all times are made up from a fixed seed. */
#include "machine.h"

#include "fabric/pipeline.h"
#include "fabric/probe.h"
#include "fabric/probed.h"

#include <errno.h>
#include <math.h>
#include <string.h>

TestSuite(probe, .timeout = 30);

/* One transfer of 1 MiB through a port that carries gbps, with so much noise (a part) on both times. */
static void transfer(struct hr_probe *probe, int port, double gbps, double noise, uint64_t *state)
{
    double jitter = 1 + noise * (2.0 * random_below(state, 1000001) / 1e6 - 1);
    double round_trip_ns = 2000 * jitter;

    hr_probe_note(probe, (uint32_t)port, 1 << 20, round_trip_ns, round_trip_ns + (1 << 20) / gbps * jitter);
}

Test(probe, finds_the_faster_of_two_within_20_transfers)
{
    uint64_t state = 71;

    for (uint32_t round = 0; round < 200; round++) {
        static const double gbps[2] = {25, 31};
        struct hr_probe probe;
        cr_assert_eq(hr_probe_init(&probe, 2, NULL), 0);
        for (uint32_t i = 0; i < 20; i++) {
            int port = hr_probe_choose(&probe, HR_PROBE_ALL);
            transfer(&probe, port, gbps[port], 0.05, &state);
        }
        cr_assert_eq(probe.current, 1, "round %u", round);
        cr_assert_eq(probe.switches, 1);
    }
}

Test(probe, does_not_flap_between_equals_under_noise)
{
    uint64_t state = 72;

    for (uint32_t round = 0; round < 20; round++) {
        struct hr_probe probe;
        cr_assert_eq(hr_probe_init(&probe, 4, NULL), 0);
        for (uint32_t i = 0; i < 5000; i++)
            transfer(&probe, hr_probe_choose(&probe, HR_PROBE_ALL), 25, 0.05, &state);
        cr_assert_eq(probe.switches, 0, "%llu switches", (unsigned long long)probe.switches);
    }
}

Test(probe, stays_for_a_gain_below_the_margin)
{
    static const double gbps[2] = {25, 26.5};
    struct hr_probe probe;
    uint64_t state = 73;

    cr_assert_eq(hr_probe_init(&probe, 2, NULL), 0);
    for (uint32_t i = 0; i < 2000; i++) {
        int port = hr_probe_choose(&probe, HR_PROBE_ALL);
        transfer(&probe, port, gbps[port], 0.02, &state);
    }
    cr_expect_eq(probe.switches, 0);
}

Test(probe, follows_when_a_port_becomes_slow)
{
    double gbps[3] = {50, 40, 25};
    struct hr_probe probe;
    uint64_t state = 74;

    cr_assert_eq(hr_probe_init(&probe, 3, NULL), 0);
    for (uint32_t i = 0; i < 100; i++) {
        int port = hr_probe_choose(&probe, HR_PROBE_ALL);
        transfer(&probe, port, gbps[port], 0.05, &state);
    }
    cr_expect_eq(probe.current, 0);
    gbps[0] = 10;
    for (uint32_t i = 0; i < 100; i++) {
        int port = hr_probe_choose(&probe, HR_PROBE_ALL);
        transfer(&probe, port, gbps[port], 0.05, &state);
    }
    cr_expect_eq(probe.current, 1);
    cr_expect_float_eq(probe.port[0].gbps, 10, 3);
}

Test(probe, most_transfers_go_through_the_best_port)
{
    static const double gbps[2] = {50, 10};
    struct hr_probe probe;
    uint64_t state = 75;
    uint32_t best = 0;

    cr_assert_eq(hr_probe_init(&probe, 2, NULL), 0);
    for (uint32_t i = 0; i < 1000; i++) {
        int port = hr_probe_choose(&probe, HR_PROBE_ALL);
        best += port == 0;
        transfer(&probe, port, gbps[port], 0.05, &state);
    }
    cr_expect(best >= 740 && best < 1000, "%u of 1000", best);
}

Test(probe, leaves_a_port_that_goes_down_and_measures_it_anew)
{
    static const double gbps[2] = {50, 25};
    struct hr_probe probe;
    uint64_t state = 76;

    cr_assert_eq(hr_probe_init(&probe, 2, NULL), 0);
    for (uint32_t i = 0; i < 50; i++) {
        int port = hr_probe_choose(&probe, HR_PROBE_ALL);
        transfer(&probe, port, gbps[port], 0.05, &state);
    }
    cr_assert_eq(probe.current, 0);
    hr_probe_set_up(&probe, 0, false);
    for (uint32_t i = 0; i < 20; i++)
        cr_assert_eq(hr_probe_choose(&probe, HR_PROBE_ALL), 1);
    hr_probe_set_up(&probe, 0, true);
    cr_expect_eq(hr_probe_choose(&probe, HR_PROBE_ALL), 0, "what came back is measured first");
    cr_expect(isinf(hr_probe_estimate_ns(&probe, 0)));
    for (uint32_t i = 0; i < 30; i++) {
        int port = hr_probe_choose(&probe, HR_PROBE_ALL);
        transfer(&probe, port, gbps[port], 0.05, &state);
    }
    cr_expect_eq(probe.current, 0);
    hr_probe_set_up(&probe, 0, false);
    hr_probe_set_up(&probe, 1, false);
    cr_expect_eq(hr_probe_choose(&probe, HR_PROBE_ALL), -1);
}

Test(probe, chooses_among_what_may_be_used_and_stays_with_what_is_best)
{
    static const double gbps[3] = {50, 40, 25};
    struct hr_probe probe;
    uint64_t state = 77;

    cr_assert_eq(hr_probe_init(&probe, 3, NULL), 0);
    for (uint32_t i = 0; i < 30; i++) {
        int port = hr_probe_choose(&probe, HR_PROBE_ALL);
        transfer(&probe, port, gbps[port], 0.05, &state);
    }
    uint32_t count[3] = {0};
    for (uint32_t i = 0; i < 40; i++) {
        int port = hr_probe_choose(&probe, 6);
        count[port]++;
        transfer(&probe, port, gbps[port], 0.05, &state);
    }
    cr_expect(count[0] == 0 && count[1] >= 30 && count[2] > 0, "%u, %u, %u", count[0], count[1], count[2]);
    cr_expect(probe.current == 0 && probe.switches == 0);
    cr_expect_eq(hr_probe_choose(&probe, 0), -1);
}

Test(probe, a_port_that_never_gets_measured_does_not_hold_the_others_up)
{
    struct hr_probe probe;
    uint64_t state = 78;
    uint32_t silent = 0;

    cr_assert_eq(hr_probe_init(&probe, 2, NULL), 0);
    for (uint32_t i = 0; i < 100; i++) {
        int port = hr_probe_choose(&probe, HR_PROBE_ALL);
        silent += port == 0;
        if (port == 1)
            transfer(&probe, port, 25, 0.05, &state);
    }
    cr_expect(probe.current == 1 && silent < 40, "%u of 100", silent);
}

/* ---- the routes of a pair ---- */

/* What the model says that a transfer takes in pieces of 2 MiB. */
static struct hr_probed_sample sample_of(const struct hr_path *path, double gbps, uint64_t bytes)
{
    double start_ns = hr_pipeline_costs_of(NULL).start_ns, piece = path->legs > 1 ? 2 << 20 : (double)bytes;

    return (struct hr_probed_sample){.bytes = bytes,
                                     .chunk_bytes = (uint64_t)piece,
                                     .legs = path->legs,
                                     .elapsed_ns = path->latency_ns + path->legs * start_ns +
                                                   ((double)bytes + (path->legs - 1) * piece) / gbps};
}

static const struct hr_path *find(const struct hr_probed *probed, uint32_t legs, uint32_t over)
{
    for (uint32_t i = 0; i < HR_PROBED_ROUTES; i++)
        if (probed->route[i].legs == legs && probed->route[i].gpu[1] == over)
            return &probed->route[i];
    return NULL;
}

Test(probe, routes_of_a_pair_are_the_direct_one_and_those_over_others)
{
    struct hr_topology *topology = read_machine("dgx1v");
    struct hr_graph *graph = hr_graph_compile(topology, HR_LINKS_FABRIC);
    struct hr_probed probed = {.source = 0, .destination = 2};

    cr_assert_eq(hr_probed_renew(&probed, graph, 1), 0);
    const struct hr_path *direct = find(&probed, 1, 2), *one = find(&probed, 2, 1), *three = find(&probed, 2, 3);
    cr_assert(direct && one && three);
    cr_expect(direct->mbps > 0 && one->mbps == direct->mbps && three->mbps == 2 * direct->mbps);
    cr_expect_eq(three->load_count, 2);
    for (uint32_t i = 0; i < HR_PROBED_ROUTES; i++) {
        const struct hr_path *path = &probed.route[i];
        cr_expect_eq(probed.probe.port[i].up, path->legs > 0);
        if (path->legs > 0)
            cr_expect(path->gpu[0] == 0 && path->gpu[path->legs] == 2);
        for (uint32_t k = 0; k < i; k++)
            cr_expect(path->legs == 0 || path->legs != probed.route[k].legs ||
                      memcmp(path->gpu, probed.route[k].gpu, (path->legs + 1) * sizeof *path->gpu) != 0);
    }
    hr_probed_finish(&probed);
    hr_graph_destroy(graph);
    hr_topology_destroy(topology);
}

Test(probe, sizes_and_legs_do_not_matter_for_the_rate_that_is_noted)
{
    struct hr_topology *topology = read_machine("dgx1v");
    struct hr_graph *graph = hr_graph_compile(topology, HR_LINKS_FABRIC);
    struct hr_probed probed = {.source = 0, .destination = 2};
    uint64_t state = 79;

    cr_assert_eq(hr_probed_renew(&probed, graph, 1), 0);
    const struct hr_path *some[2] = {find(&probed, 1, 2), find(&probed, 2, 3)};
    for (uint32_t i = 0; i < 200; i++) {
        const struct hr_path *path = some[i % 2];
        struct hr_probed_sample sample =
            sample_of(path, path->legs == 1 ? 20 : 40, (4u << 20) + random_below(&state, 128u << 20));
        hr_probed_note(&probed, path, &sample);
    }
    for (uint32_t i = 0; i < 2; i++) {
        const struct hr_probe_port *port = &probed.probe.port[some[i] - probed.route];
        cr_expect_float_eq(port->gbps, i == 0 ? 20 : 40, 0.01, "%f", port->gbps);
        cr_expect_eq(port->samples, 100);
    }
    cr_expect_eq(probed.probe.current, (uint32_t)(some[1] - probed.route));
    hr_probed_finish(&probed);
    hr_graph_destroy(graph);
    hr_topology_destroy(topology);
}

Test(probe, what_is_known_of_a_route_stays_while_its_links_do)
{
    struct hr_topology *topology = read_machine("dgx1v");
    struct hr_graph *graph = hr_graph_compile(topology, HR_LINKS_FABRIC);
    struct hr_probed probed = {.source = 0, .destination = 2};
    struct hr_routes routes;

    cr_assert_eq(hr_probed_renew(&probed, graph, 1), 0);
    hr_graph_destroy(graph);
    for (uint32_t i = 0; i < HR_PROBED_ROUTES; i++) {
        struct hr_probed_sample sample =
            probed.route[i].legs ? sample_of(&probed.route[i], 10 + i, 16 << 20) : (struct hr_probed_sample){0};
        hr_probed_note(&probed, &probed.route[i], &sample);
    }
    uint32_t direct = (uint32_t)(find(&probed, 1, 2) - probed.route);
    uint32_t three = (uint32_t)(find(&probed, 2, 3) - probed.route);
    uint32_t element = topology->gpus[0];
    for (uint32_t up = 0; up < 2; up++) {
        for (uint32_t p = 0; p < topology->elements[element].port_count; p++)
            if (topology->elements[element].ports[p].peer == (int32_t)topology->gpus[2])
                hr_topology_set_up(topology, element, p, up);
        graph = hr_graph_compile(topology, HR_LINKS_FABRIC);
        cr_assert_eq(hr_probed_renew(&probed, graph, 2 + up), 0);
        hr_graph_destroy(graph);
        cr_expect(probed.probe.port[three].samples == 1 && find(&probed, 2, 3) == &probed.route[three]);
        cr_expect_eq(find(&probed, 1, 2) != NULL, up);
    }
    cr_expect_eq(probed.probe.port[direct].samples, 0, "what came back counts as measured");
    cr_assert_eq(hr_probed_choose(&probed, 1u << direct | 1u << three, &routes), 0);
    cr_expect(routes.path_count == 1 && routes.path[0].legs == 1 && routes.mbps == routes.path[0].mbps);
    hr_routes_finish(&routes);
    cr_expect_eq(hr_probed_choose(&probed, 1u << direct, &routes), -EAGAIN);
    hr_probed_finish(&probed);
    hr_topology_destroy(topology);
}
