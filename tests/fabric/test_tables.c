/* Tables: ports lie on shortest ways, weights follow widths, policies choose as they say; also while links go down and come back. */
#include "machine.h"

#include "fabric/tables.h"

#include <string.h>

TestSuite(tables, .timeout = 60);

static const struct hr_tables_options round_robin = {HR_PORTS_ROUND_ROBIN, 0};

/* Widest of the shortest ways from every node to the one of hops 0, by relaxing until nothing changes. */
static void widths(const struct hr_graph *graph, const uint16_t *hops, int64_t *width_out)
{
    bool changed = true;

    for (uint32_t n = 0; n < graph->nodes; n++)
        width_out[n] = hops[n] == 0 ? INT64_MAX : 0;
    while (changed) {
        changed = false;
        for (uint32_t e = 0; e < graph->edges; e++) {
            const struct hr_edge *edge = &graph->edge[e];
            if (hops[edge->to] == UINT16_MAX || hops[edge->from] != hops[edge->to] + 1)
                continue;
            int64_t width = edge->mbps < width_out[edge->to] ? edge->mbps : width_out[edge->to];
            if (width > width_out[edge->from]) {
                width_out[edge->from] = width;
                changed = true;
            }
        }
    }
}

/* Above 16 different widths they are rounded, so weights cannot be told from outside. */
static bool widths_are_exact(const struct hr_graph *graph)
{
    int64_t seen[16];
    uint32_t count = 0;

    for (uint32_t e = 0; e < graph->edges; e++) {
        uint32_t i = 0;
        while (i < count && seen[i] != graph->edge[e].mbps)
            i++;
        if (i == 16)
            return false;
        seen[i] = graph->edge[e].mbps;
        count += i == count;
    }
    return true;
}

/* Exactly the ports of shortest ways, each as heavy as its way is wide: to a tenth of a GB/s, which weights are made in. */
static void expect_entry(const struct hr_topology *topology, const struct hr_graph *graph, uint32_t node,
                         const struct hr_entry *entry, const uint16_t *hops, const int64_t *width)
{
    double rate[HR_ENTRY_PORTS] = {0}, sum = 0;
    uint32_t count = 0;

    for (uint32_t p = 0; p < topology->elements[node].port_count; p++) {
        const struct hr_port *port = &topology->elements[node].ports[p];
        bool wanted = port->up && hops[port->peer] != UINT16_MAX && hops[port->peer] + 1 == hops[node];
        uint32_t i = 0;
        while (i < entry->port_count && entry->port[i] != p)
            i++;
        cr_assert_eq(wanted, i < entry->port_count, "node %u port %u", node, p);
        if (!wanted)
            continue;
        const struct hr_edge *edge = &graph->edge[hr_graph_edge(graph, node, (uint32_t)port->peer)];
        int64_t way = edge->mbps < width[port->peer] ? edge->mbps : width[port->peer];
        rate[i] = port->gbps * (double)way / (double)edge->mbps;
        sum += rate[i];
        count++;
    }
    cr_assert_eq(count, entry->port_count);
    for (uint32_t i = 0; i < count && widths_are_exact(graph); i++)
        cr_assert_float_eq(entry->weight[i] * sum / entry->weight_sum, rate[i], 0.11 + 0.005 * rate[i],
                           "node %u port %u: weight %u of %u for %.2f of %.2f", node, entry->port[i], entry->weight[i],
                           entry->weight_sum, rate[i], sum);
}

static void expect_tables(const struct hr_topology *topology, const struct hr_graph *graph,
                          const struct hr_tables *tables)
{
    uint16_t *hops = calloc(graph->nodes, sizeof *hops);
    uint32_t *queue = calloc(graph->nodes, sizeof *queue);
    int64_t *width = calloc(graph->nodes, sizeof *width);

    for (uint32_t owner = 0; owner < graph->gpus; owner++) {
        hr_graph_hops(graph, owner, hops, queue);
        widths(graph, hops, width);
        for (uint32_t node = 0; node < graph->nodes; node++) {
            const struct hr_entry *entry = hr_tables_find(tables, node, owner);
            cr_assert_eq(entry != NULL, hops[node] != UINT16_MAX && tables->router[node].entry != NULL,
                         "node %u owner %u", node, owner);
            if (entry && hops[node] == 0)
                cr_assert_eq(entry->port_count, 0);
            else if (entry)
                expect_entry(topology, graph, node, entry, hops, width);
        }
    }
    free(hops);
    free(queue);
    free(width);
}

static struct hr_tables *compute(const struct hr_topology *topology, struct hr_graph **graph_out)
{
    struct hr_tables *tables = NULL;

    *graph_out = hr_graph_compile(topology, HR_LINKS_FABRIC);
    cr_assert_eq(hr_tables_compute(*graph_out, &round_robin, &tables), 0);
    return tables;
}

Test(tables, hold_exactly_the_ports_of_shortest_ways)
{
    uint64_t state = 31;

    for (uint32_t round = 0; round < 150; round++) {
        struct hr_topology *topology = random_topology(&state, 2 + random_below(&state, round < 140 ? 30 : 150));
        struct hr_graph *graph;
        struct hr_tables *tables = compute(topology, &graph);
        expect_tables(topology, graph, tables);
        hr_tables_destroy(tables);
        hr_graph_destroy(graph);
        hr_topology_destroy(topology);
    }
}

Test(tables, serve_the_machines)
{
    static const char *const machines[] = {"dgx1v", "mi250x", "a100x4", "hgx-h100", "mi300x", "square4"};

    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++) {
        struct hr_topology *topology = read_machine(machines[i]);
        struct hr_graph *graph;
        struct hr_tables *tables = compute(topology, &graph);
        expect_tables(topology, graph, tables);
        hr_tables_destroy(tables);
        hr_graph_destroy(graph);
        hr_topology_destroy(topology);
    }
}

/* A request walks from router to router, a random port of the entry each time; returns the hops, -1 = refused. */
static int walk(const struct hr_topology *topology, const struct hr_tables *tables, uint32_t from, uint32_t owner,
                uint64_t *state)
{
    uint32_t at = from;

    for (int hops = 0; hops <= (int)tables->routers; hops++) {
        const struct hr_entry *entry = hr_tables_find(tables, at, owner);
        if (!entry)
            return -1;
        if (entry->port_count == 0)
            return hops;
        const struct hr_port *port =
            &topology->elements[at].ports[entry->port[hr_entry_pick(entry, 0, random_next(state))]];
        cr_assert(port->up, "a port that is down was taken");
        at = (uint32_t)port->peer;
    }
    cr_assert_fail("the request goes in a circle");
    return -1;
}

Test(tables, requests_take_the_fewest_hops_while_links_go_down_and_come_back)
{
    uint64_t state = 32;
    const uint32_t extents[] = {4, 4, 4};
    struct hr_topology *topology = hr_topology_torus(extents, 3, 2, 25);
    uint16_t hops[64];
    uint32_t queue[64], refused = 0, requests = 0;

    for (uint32_t round = 0; round < 60; round++) {
        struct hr_graph *graph;
        for (uint32_t i = 0; i < 500; i++)
            hr_topology_set_up(topology, random_below(&state, 64), random_below(&state, 12),
                               random_below(&state, 10) < (round % 2 ? 8 : 2));
        struct hr_tables *tables = compute(topology, &graph);
        for (uint32_t i = 0; i < 20; i++) {
            uint32_t owner = random_below(&state, 64);
            hr_graph_hops(graph, owner, hops, queue);
            for (uint32_t from = 0; from < 64; from += 1 + random_below(&state, 8)) {
                int walked = walk(topology, tables, from, owner, &state);
                cr_assert_eq(walked, hops[from] == UINT16_MAX ? -1 : hops[from]);
                refused += walked < 0;
                requests++;
            }
        }
        hr_tables_destroy(tables);
        hr_graph_destroy(graph);
    }
    cr_expect(refused > 0 && refused < requests / 2, "%u of %u refused: too many or too few links were down", refused,
              requests);
    hr_topology_destroy(topology);
}

Test(tables, of_4096_cards_are_frugal_and_right)
{
    const uint32_t extents[] = {8, 8, 8, 8};
    struct hr_topology *topology = hr_topology_torus(extents, 4, 1, 25);
    struct hr_graph *graph;
    struct hr_tables *tables = compute(topology, &graph);
    uint16_t *hops = calloc(4096, sizeof *hops);
    uint32_t *queue = calloc(4096, sizeof *queue);
    uint64_t state = 33;

    cr_expect_leq(tables->memory_bytes, (size_t)24 << 20, "%zu bytes", tables->memory_bytes);
    for (uint32_t i = 0; i < 5; i++) {
        uint32_t owner = random_below(&state, 4096);
        hr_graph_hops(graph, owner, hops, queue);
        for (uint32_t node = 0; node < 4096; node += 1 + random_below(&state, 16))
            cr_assert_eq(walk(topology, tables, node, owner, &state), hops[node]);
    }
    free(hops);
    free(queue);
    hr_tables_destroy(tables);
    hr_graph_destroy(graph);
    hr_topology_destroy(topology);
}

static struct hr_entry entry_of(enum hr_port_policy policy, const int64_t *mbps, uint32_t count)
{
    struct hr_tables_options options = {policy, 12};
    struct hr_port_rate rates[64];
    struct hr_entry entry;

    for (uint32_t i = 0; i < count; i++)
        rates[i] = (struct hr_port_rate){(uint8_t)(count - i), mbps[i]};
    hr_entry_make(&options, rates, count, &entry);
    return entry;
}

Test(tables, policies_choose_as_they_say)
{
    static const int64_t rates[] = {25000, 50000, 25000};
    uint32_t taken[3] = {0};

    struct hr_entry entry = entry_of(HR_PORTS_ANY, rates, 3);
    cr_expect_eq(entry.port[0], 2, "the widest is first");
    for (uint64_t ticket = 0; ticket < 100; ticket++)
        cr_assert_eq(hr_entry_pick(&entry, ticket << 12, ticket), 0);
    entry = entry_of(HR_PORTS_ROUND_ROBIN, rates, 3);
    cr_expect_eq(entry.weight_sum, 4);
    for (uint64_t ticket = 0; ticket < 400; ticket++)
        taken[hr_entry_pick(&entry, 0, ticket)]++;
    cr_expect(taken[0] == 200 && taken[1] == 100 && taken[2] == 100, "%u %u %u", taken[0], taken[1], taken[2]);
    entry = entry_of(HR_PORTS_BY_ADDRESS, rates, 3);
    memset(taken, 0, sizeof taken);
    for (uint64_t part = 0; part < 400; part++) {
        uint32_t index = hr_entry_pick(&entry, part << 12, part * 7);
        cr_assert_eq(hr_entry_pick(&entry, (part << 12) + 4095, part), index, "a part belongs to one port");
        taken[index]++;
    }
    cr_expect(taken[0] == 200 && taken[1] == 100 && taken[2] == 100);
    entry = entry_of(HR_PORTS_ALL, rates, 3);
    for (uint64_t bytes = 1; bytes < 3000000; bytes = bytes * 3 + 1) {
        uint64_t next = 0;
        for (uint32_t i = 0; i < 3; i++) {
            uint64_t offset, part;
            hr_entry_part(&entry, i, bytes, &offset, &part);
            cr_assert_eq(offset, next);
            cr_assert(i == 2 || part % 256 == 0);
            next = offset + part;
            if (bytes > 100000)
                cr_assert_float_eq((double)part / (double)bytes, entry.weight[i] / 4.0, 0.01);
        }
        cr_assert_eq(next, bytes);
    }
}

Test(tables, an_entry_keeps_the_widest_of_too_many_ports)
{
    int64_t rates[40];

    for (int i = 0; i < 40; i++)
        rates[i] = 1000 * (i + 1);
    struct hr_entry entry = entry_of(HR_PORTS_ROUND_ROBIN, rates, 40);
    cr_expect_eq(entry.port_count, HR_ENTRY_PORTS);
    cr_expect_eq(entry.weight[0], 40);
    cr_expect_eq(entry.weight[HR_ENTRY_PORTS - 1], 9);
}
