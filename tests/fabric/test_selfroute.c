/* Routers that work out their own routes agree with the tables that are computed for them. */
#include "machine.h"

#include "fabric/linkstate.h"

#include <errno.h>
#include <string.h>

TestSuite(selfroute, .timeout = 60);

static const struct hr_tables_options options = {HR_PORTS_ROUND_ROBIN, 0};

static void tell_ports(struct hr_self_router *router, const struct hr_element *element)
{
    struct hr_self_port ports[HR_TOPOLOGY_MAX_PORTS];

    for (uint32_t p = 0; p < element->port_count; p++) {
        ports[p] = (struct hr_self_port){element->ports[p].peer, element->ports[p].up,
                                         (uint32_t)(element->ports[p].gbps * 1000 + 0.5)};
    }
    cr_assert_eq(hr_self_set_ports(router, ports, element->port_count), 0);
}

/* Every router fetches from each neighbour that it can ask and that can answer. Returns whether anybody learned anything. */
static bool one_round(struct hr_self_router **routers, const struct hr_topology *topology)
{
    bool learned = false;

    for (uint32_t i = 0; i < topology->element_count; i++) {
        for (uint32_t p = 0; p < topology->elements[i].port_count; p++) {
            const struct hr_port *port = &topology->elements[i].ports[p];
            if (port->up && topology->elements[port->peer].ports[port->peer_port].up)
                learned = hr_self_fetch(routers[i], routers[port->peer]) > 0 || learned;
        }
    }
    return learned;
}

static void expect_agreement(struct hr_self_router **routers, const struct hr_topology *topology)
{
    struct hr_graph *graph = hr_graph_compile(topology, HR_LINKS_FABRIC);
    struct hr_tables *tables;
    uint16_t *hops = calloc(graph->nodes, sizeof *hops);
    uint32_t *queue = calloc(graph->nodes, sizeof *queue);

    cr_assert_eq(hr_tables_compute(graph, &options, &tables), 0);
    for (uint32_t owner = 0; owner < graph->gpus; owner++) {
        hr_graph_hops(graph, owner, hops, queue);
        for (uint32_t node = 0; node < graph->nodes; node++) {
            const struct hr_entry *central = hr_tables_find(tables, node, owner);
            struct hr_entry own;
            uint32_t own_hops;
            int rc = hr_self_find(routers[node], owner, &options, &own, &own_hops);
            cr_assert_eq(rc == 0, hops[node] != UINT16_MAX, "router %u owner %u: %d", node, owner, rc);
            if (rc != 0)
                continue;
            cr_assert_eq(own_hops, hops[node]);
            cr_assert(!central || memcmp(central, &own, sizeof own) == 0, "router %u owner %u decide differently", node,
                      owner);
        }
    }
    free(hops);
    free(queue);
    hr_tables_destroy(tables);
    hr_graph_destroy(graph);
}

static struct hr_self_router **start(const struct hr_topology *topology)
{
    struct hr_self_router **routers = calloc(topology->element_count, sizeof(struct hr_self_router *));

    for (uint32_t i = 0; i < topology->element_count; i++) {
        routers[i] = hr_self_create(i, topology->element_count, topology->elements[i].gpu);
        tell_ports(routers[i], &topology->elements[i]);
    }
    return routers;
}

static void end(struct hr_self_router **routers, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        hr_self_destroy(routers[i]);
    free(routers);
}

Test(selfroute, agrees_with_central_tables_after_as_many_rounds_as_hops)
{
    const uint32_t extents[] = {5, 4, 3};
    struct hr_topology *torus = hr_topology_torus(extents, 3, 1, 25), *chain = hr_topology_chain(16, 1, 25);
    struct hr_self_router **routers = start(torus);
    uint32_t rounds = 0;

    while (one_round(routers, torus))
        rounds++;
    cr_expect_leq(rounds, 5, "2 + 2 + 1 hops, %u rounds", rounds);
    expect_agreement(routers, torus);
    end(routers, torus->element_count);
    routers = start(chain);
    for (rounds = 0; one_round(routers, chain);)
        rounds++;
    cr_expect_leq(rounds, 15);
    expect_agreement(routers, chain);
    end(routers, chain->element_count);
    hr_topology_destroy(torus);
    hr_topology_destroy(chain);
}

/* Links change both ways at once: what cannot be asked in both directions cannot spread either. */
static void flip_link(struct hr_topology *topology, struct hr_self_router **routers, uint32_t element, uint32_t index)
{
    const struct hr_port port = topology->elements[element].ports[index];

    hr_topology_set_up(topology, element, index, !port.up);
    hr_topology_set_up(topology, (uint32_t)port.peer, (uint32_t)port.peer_port, !port.up);
    tell_ports(routers[element], &topology->elements[element]);
    tell_ports(routers[port.peer], &topology->elements[port.peer]);
}

Test(selfroute, survives_links_going_down_and_coming_back)
{
    const uint32_t extents[] = {4, 3, 2};
    struct hr_topology *topology = hr_topology_torus(extents, 3, 1, 25);
    struct hr_self_router **routers = start(topology);
    uint64_t state = 5;

    for (uint32_t round = 0; round < 60; round++) {
        for (uint32_t i = 0; i < 1 + round % 7; i++) {
            uint32_t element = random_below(&state, topology->element_count);
            flip_link(topology, routers, element, random_below(&state, topology->elements[element].port_count));
            if (random_below(&state, 3) == 0)
                one_round(routers, topology); /* some hear of it before others */
        }
        while (one_round(routers, topology))
            continue;
        expect_agreement(routers, topology);
    }
    end(routers, topology->element_count);
    hr_topology_destroy(topology);
}

Test(selfroute, knows_what_was_cut_off_and_finds_it_again)
{
    struct hr_topology *topology = hr_topology_chain(6, 1, 25);
    struct hr_self_router **routers = start(topology);
    struct hr_entry entry;

    while (one_round(routers, topology))
        continue;
    flip_link(topology, routers, 2, 1);
    while (one_round(routers, topology))
        continue;
    for (uint32_t i = 0; i < 6; i++) {
        for (uint32_t owner = 0; owner < 6; owner++)
            cr_expect_eq(hr_self_find(routers[i], owner, &options, &entry, NULL),
                         (i < 3) == (owner < 3) ? 0 : -ENETUNREACH);
    }
    flip_link(topology, routers, 0, 0); /* the other side does not hear of this until it is joined again */
    flip_link(topology, routers, 2, 1);
    while (one_round(routers, topology))
        continue;
    expect_agreement(routers, topology);
    cr_expect_eq(hr_self_find(routers[5], 0, &options, &entry, NULL), -ENETUNREACH);
    cr_expect_eq(hr_self_find(routers[5], 1, &options, &entry, NULL), 0);
    end(routers, topology->element_count);
    hr_topology_destroy(topology);
}

Test(selfroute, switches_take_part)
{
    struct hr_topology *topology = hr_topology_create();

    for (int i = 0; i < 4; i++)
        hr_topology_add(topology, HR_ELEMENT_GPU, NULL);
    for (uint32_t s = 0; s < 2; s++) {
        hr_topology_add(topology, HR_ELEMENT_SWITCH, NULL);
        for (uint32_t i = 0; i < 4; i++)
            hr_topology_join(topology, i, 4 + s, HR_LINK_NVLINK, 2 + s, 25, 300);
    }
    struct hr_self_router **routers = start(topology);
    while (one_round(routers, topology))
        continue;
    expect_agreement(routers, topology);
    end(routers, topology->element_count);
    hr_topology_destroy(topology);
}
