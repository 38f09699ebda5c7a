/* Measured rates in place of those that names imply. Pure. */
#include "fabric/discover.h"

#include <stdlib.h>

static bool fabric_to(const struct hr_topology *topology, const struct hr_port *port, enum hr_element_kind kind)
{
    return (HR_LINKS(port->kind) & HR_LINKS_FABRIC) && topology->elements[port->peer].kind == kind;
}

static bool leads(const struct hr_topology *topology, const struct hr_port *port, uint32_t to)
{
    return fabric_to(topology, port, HR_ELEMENT_GPU) && topology->elements[port->peer].gpu == (int32_t)to;
}

static uint32_t count_links(const struct hr_topology *topology, uint32_t from, uint32_t to)
{
    const struct hr_element *element = &topology->elements[topology->gpus[from]];
    uint32_t count = 0;

    for (uint32_t p = 0; p < element->port_count; p++)
        count += element->ports[p].up && leads(topology, &element->ports[p], to);
    return count;
}

static void set_direct(struct hr_discovery *discovery, uint32_t from, uint32_t to)
{
    struct hr_topology *topology = discovery->topology;
    const struct hr_element *element = &topology->elements[topology->gpus[from]];
    struct hr_pair *pair = &discovery->pair[from * discovery->gpus + to];

    if (pair->links == 0)
        pair->links = count_links(topology, from, to);
    for (uint32_t p = 0; p < element->port_count; p++) {
        if (!leads(topology, &element->ports[p], to))
            continue;
        if (pair->state > HR_PAIR_GOOD)
            hr_topology_set_up(topology, topology->gpus[from], p, false);
        else if (pair->gbps > 0 && pair->links > 0)
            hr_topology_set_rate(topology, topology->gpus[from], p, pair->gbps / pair->links,
                                 element->ports[p].latency_ns);
    }
}

/* Of ports to switches a GPU's fastest copy tells, since each copy is spread over all of them. */
static void set_switched(struct hr_discovery *discovery, uint32_t gpu)
{
    struct hr_topology *topology = discovery->topology;
    const struct hr_element *element = &topology->elements[topology->gpus[gpu]];
    double out = 0, in = 0;
    uint32_t *ports = &discovery->gpu[gpu].switch_links;
    bool first = *ports == 0;

    for (uint32_t other = 0; other < discovery->gpus; other++) {
        double there = discovery->pair[gpu * discovery->gpus + other].gbps;
        double back = discovery->pair[other * discovery->gpus + gpu].gbps;
        if (count_links(topology, gpu, other) > 0 || other == gpu)
            continue;
        out = there > out ? there : out;
        in = back > in ? back : in;
    }
    for (uint32_t p = 0; first && p < element->port_count; p++)
        *ports += fabric_to(topology, &element->ports[p], HR_ELEMENT_SWITCH);
    for (uint32_t p = 0; p < element->port_count; p++) {
        const struct hr_port port = element->ports[p];
        if (!fabric_to(topology, &port, HR_ELEMENT_SWITCH))
            continue;
        if (out > 0)
            hr_topology_set_rate(topology, topology->gpus[gpu], p, out / *ports, port.latency_ns);
        if (in > 0)
            hr_topology_set_rate(topology, (uint32_t)port.peer, (uint32_t)port.peer_port, in / *ports, port.latency_ns);
    }
}

static void set_slot(struct hr_discovery *discovery, uint32_t gpu)
{
    struct hr_topology *topology = discovery->topology;
    const struct hr_element *element = &topology->elements[topology->gpus[gpu]];

    for (uint32_t p = 0; p < element->port_count; p++) {
        const struct hr_port port = element->ports[p];
        if (port.kind != HR_LINK_PCIE)
            continue;
        if (discovery->gpu[gpu].to_host_gbps > 0)
            hr_topology_set_rate(topology, topology->gpus[gpu], p, discovery->gpu[gpu].to_host_gbps, port.latency_ns);
        if (discovery->gpu[gpu].from_host_gbps > 0)
            hr_topology_set_rate(topology, (uint32_t)port.peer, (uint32_t)port.peer_port,
                                 discovery->gpu[gpu].from_host_gbps, port.latency_ns);
    }
}

void hr_calibrate(struct hr_discovery *discovery)
{
    for (uint32_t from = 0; from < discovery->gpus; from++) {
        for (uint32_t to = 0; to < discovery->gpus; to++) {
            if (from != to)
                set_direct(discovery, from, to);
        }
        set_switched(discovery, from);
        set_slot(discovery, from);
    }
}
