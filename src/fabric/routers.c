#include "fabric/routers.h"

#include "fabric/ranges.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define CALLS_VERSION 1
#define RANGE_ALIGN (UINT64_C(2) << 20)
#define ROUTE_PORTS 16 /* of one struct route; further ones follow in the next */

/* The calls' own structures. */
enum { KIND_CARD, KIND_SWITCH, KIND_BRIDGE, KIND_SOCKET };

struct element {
    uint32_t kind;
    int32_t device;
    uint32_t ports;
    uint64_t memory_bytes;
    char bus_id[16];
};
struct port {
    int32_t peer_element, peer_port;
    uint32_t up;
    uint32_t latency_ns;
    double gbps;
};
struct range {
    uint64_t base, bytes;
    uint32_t owner;
};
struct route {
    uint32_t owner;
    uint8_t policy, port_count, address_shift;
    uint8_t more; /* goes on with the ports of the one before */
    uint8_t port[ROUTE_PORTS];
    uint16_t weight[ROUTE_PORTS];
};

struct counters {
    uint64_t requests, bytes, forwarded_bytes, served_bytes, refused;
};

struct calls {
    uint32_t (*version)(void);
    int (*elements)(void);
    int (*element)(int element, struct element *out);
    int (*port)(int element, int port, struct port *out);
    int (*write_ranges)(int element, const struct range *ranges, uint32_t count);
    int (*write_table)(int element, const struct route *routes, uint32_t count);
    int (*counters)(int element, int port, struct counters *out);
    uint64_t (*epoch)(void);
};

/* What a router was given. */
struct written {
    struct route *route; /* by owner; room for two each */
    uint32_t count;
};
struct hr_routers {
    struct calls calls;
    uint32_t routers, owners; /* of `written` */
    struct written *written;
};

int hr_routers_open(hr_routers_symbol *symbol, void *arg, struct hr_routers **routers_out)
{
    static const char *const names[] = {"sg_node_version",  "sg_node_elements",     "sg_node_element",
                                        "sg_node_port",     "sg_node_write_ranges", "sg_node_write_table",
                                        "sg_node_counters", "sg_node_epoch"};
    struct hr_routers *routers = calloc(1, sizeof *routers);
    void *found[sizeof names / sizeof *names];

    if (!routers)
        return -ENOMEM;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        found[i] = symbol(names[i], arg);
        if (!found[i]) {
            free(routers);
            return -ENOSYS;
        }
    }
    _Static_assert(sizeof routers->calls == sizeof found, "a slot a name");
    memcpy(&routers->calls, found, sizeof found); /* as dlsym's users have to */
    int rc = routers->calls.version() != CALLS_VERSION ? -ENOSYS : routers->calls.elements() <= 0 ? -ENODEV : 0;
    if (rc != 0) {
        free(routers);
        return rc;
    }
    *routers_out = routers;
    return 0;
}

static void forget_written(struct hr_routers *routers)
{
    for (uint32_t i = 0; routers->written && i < routers->routers; i++)
        free(routers->written[i].route);
    free(routers->written);
    routers->written = NULL;
}

void hr_routers_close(struct hr_routers *routers)
{
    if (routers)
        forget_written(routers);
    free(routers);
}

uint64_t hr_routers_epoch(const struct hr_routers *routers)
{
    return routers->calls.epoch();
}

int hr_routers_counters(const struct hr_routers *routers, uint32_t element, uint32_t port, uint64_t *bytes_out,
                        uint64_t *forwarded_bytes_out)
{
    struct counters counters;

    if (routers->calls.counters((int)element, (int)port, &counters) != 0)
        return -EIO;
    *bytes_out = counters.bytes;
    *forwarded_bytes_out = counters.forwarded_bytes;
    return 0;
}

static enum hr_element_kind element_kind(uint32_t kind)
{
    switch (kind) {
    case KIND_CARD: return HR_ELEMENT_GPU;
    case KIND_SWITCH: return HR_ELEMENT_SWITCH;
    case KIND_BRIDGE: return HR_ELEMENT_BRIDGE;
    default: return HR_ELEMENT_SOCKET;
    }
}

/* The calls do not tell what a link is; what it joins does. */
static enum hr_link_kind link_kind(const struct hr_topology *topology, uint32_t a, uint32_t b)
{
    bool host_a = topology->elements[a].kind >= HR_ELEMENT_BRIDGE,
         host_b = topology->elements[b].kind >= HR_ELEMENT_BRIDGE;
    bool sockets = topology->elements[a].kind == HR_ELEMENT_SOCKET && topology->elements[b].kind == HR_ELEMENT_SOCKET;

    return sockets ? HR_LINK_SOCKET : host_a || host_b ? HR_LINK_PCIE : HR_LINK_NVLINK;
}

static int read_ports(const struct hr_routers *routers, struct hr_topology *topology, uint32_t number, uint32_t count)
{
    struct hr_element *element = &topology->elements[number];

    element->ports = calloc(count ? count : 1, sizeof *element->ports);
    if (!element->ports)
        return -ENOMEM;
    element->port_count = count;
    for (uint32_t i = 0; i < count; i++) {
        struct port port;
        struct hr_port *to = &element->ports[i];
        if (routers->calls.port((int)number, (int)i, &port) != 0 ||
            port.peer_element >= (int32_t)topology->element_count)
            return -EIO;
        *to = (struct hr_port){.peer = port.peer_element, .peer_port = port.peer_port, .latency_ns = port.latency_ns};
        if (port.peer_element < 0) /* nothing is plugged in */
            continue;
        to->kind = (uint8_t)link_kind(topology, number, (uint32_t)port.peer_element);
        to->up = port.up != 0;
        to->gbps = port.gbps;
    }
    return 0;
}

static int read_elements(const struct hr_routers *routers, struct hr_topology *topology, uint32_t *ports,
                         uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct element element;
        if (routers->calls.element((int)i, &element) != 0)
            return -EIO;
        element.bus_id[sizeof element.bus_id - 1] = 0;
        bool named = element.kind == KIND_CARD && element.bus_id[0];
        int number = hr_topology_add(topology, element_kind(element.kind), named ? element.bus_id : NULL);
        if (number != (int)i)
            return number < 0 ? number : -EIO;
        topology->elements[i].memory_bytes = element.memory_bytes;
        ports[i] = element.ports;
    }
    return 0;
}

int hr_routers_read(const struct hr_routers *routers, struct hr_topology **topology_out)
{
    int count = routers->calls.elements(), rc = -EIO;
    struct hr_topology *topology = hr_topology_create();
    uint32_t *ports = count > 0 ? calloc((size_t)count, sizeof *ports) : NULL;

    if (!topology || !ports) {
        rc = count > 0 ? -ENOMEM : -EIO;
        goto failed;
    }
    rc = read_elements(routers, topology, ports, (uint32_t)count);
    for (int i = 0; i < count && rc == 0; i++)
        rc = ports[i] <= HR_TOPOLOGY_MAX_PORTS ? read_ports(routers, topology, (uint32_t)i, ports[i]) : -EIO;
    if (rc != 0)
        goto failed;
    topology->version++;
    free(ports);
    *topology_out = topology;
    return 0;

failed:
    free(ports);
    hr_topology_destroy(topology);
    return rc;
}

/* An entry in the calls' form; how many structs. */
static uint32_t translate(const struct hr_entry *entry, uint32_t owner, struct route *out)
{
    uint32_t count = 0;

    for (uint32_t at = 0; entry && at < entry->port_count; at += ROUTE_PORTS) {
        struct route *route = &out[count++];
        uint32_t n = entry->port_count - at < ROUTE_PORTS ? entry->port_count - at : ROUTE_PORTS;
        *route = (struct route){.owner = owner,
                                .policy = entry->policy,
                                .port_count = (uint8_t)n,
                                .address_shift = entry->address_shift,
                                .more = at > 0};
        memcpy(route->port, &entry->port[at], n * sizeof entry->port[0]);
        memcpy(route->weight, &entry->weight[at], n * sizeof entry->weight[0]);
    }
    return count;
}

/* ---- swapping tables while requests run ---- */

struct swap {
    const struct hr_routers *routers;
    const struct hr_tables *tables;
    uint16_t *hops; /* [owner * routers + router], by the new links */
    uint16_t most;
    struct route *scratch;
};

/* New answers for owners at most `hops` away, the former ones for those farther. */
static uint32_t mix(const struct swap *swap, uint32_t router, uint16_t hops)
{
    const struct written *before = &swap->routers->written[router];
    uint32_t count = 0, at = 0;

    for (uint32_t owner = 0; owner < swap->tables->owners; owner++) {
        bool is_new = swap->hops[(size_t)owner * swap->tables->routers + router] <= hops;
        if (is_new)
            count += translate(hr_tables_find(swap->tables, router, owner), owner, &swap->scratch[count]);
        for (; at < before->count && before->route[at].owner == owner; at++)
            if (!is_new)
                swap->scratch[count++] = before->route[at];
    }
    return count;
}

static int write_step(const struct swap *swap, uint16_t hops)
{
    for (uint32_t i = 0; i < swap->tables->routers; i++) {
        struct written *before = &swap->routers->written[i];
        uint32_t count = mix(swap, i, hops);
        size_t bytes = count * sizeof *swap->scratch;
        if (count == before->count && memcmp(before->route, swap->scratch, bytes) == 0)
            continue;
        int rc = swap->routers->calls.write_table((int)i, swap->scratch, count);
        if (rc != 0)
            return rc == -ENOMEM ? rc : -EIO;
        memcpy(before->route, swap->scratch, bytes);
        before->count = count;
    }
    return 0;
}

/*
 * Near routers first: whoever has the new answer for an owner sends to routers that have it too and are nearer; whoever has the old one
 * comes nearer by the old links until it meets the owner or a router of the former kind. So at no moment do requests go in circles, whatever
 * changed, and each arrives as long as the links that it meets are up.
 */
static int write_in_order(const struct swap *swap)
{
    int rc = 0;

    for (uint32_t hops = 1; hops <= swap->most && rc == 0; hops++)
        rc = write_step(swap, (uint16_t)hops);
    return rc == 0 ? write_step(swap, UINT16_MAX) : rc; /* and those who have no way any more */
}

static int remember(struct hr_routers *routers, const struct hr_tables *tables)
{
    if (routers->written && routers->routers == tables->routers && routers->owners == tables->owners)
        return 0;
    forget_written(routers);
    routers->written = calloc(tables->routers + 1, sizeof *routers->written);
    routers->routers = tables->routers;
    routers->owners = tables->owners;
    for (uint32_t i = 0; routers->written && i < tables->routers; i++) {
        routers->written[i].route = calloc((size_t)tables->owners * 2 + 1, sizeof(struct route));
        if (!routers->written[i].route) {
            forget_written(routers);
            break;
        }
    }
    return routers->written ? 0 : -ENOMEM;
}

static int write_all(struct hr_routers *routers, const struct hr_tables *tables, const struct hr_graph *graph,
                     const struct range *ranges, uint32_t range_count)
{
    struct swap swap = {.routers = routers, .tables = tables};
    uint32_t *queue = calloc(graph->nodes + 1, sizeof *queue);
    int rc = remember(routers, tables);

    swap.scratch = calloc((size_t)tables->owners * 2 + 1, sizeof *swap.scratch);
    swap.hops = calloc((size_t)tables->owners * tables->routers + 1, sizeof *swap.hops);
    if (!queue || !swap.scratch || !swap.hops)
        rc = -ENOMEM;
    for (uint32_t owner = 0; owner < tables->owners && rc == 0; owner++) {
        uint16_t *hops = &swap.hops[(size_t)owner * tables->routers];
        hr_graph_hops(graph, owner, hops, queue);
        for (uint32_t i = 0; i < tables->routers; i++)
            swap.most = hops[i] != UINT16_MAX && hops[i] > swap.most ? hops[i] : swap.most;
    }
    /* Ranges first: a router that has a route knows the addresses behind it. */
    for (uint32_t i = 0; i < tables->routers && rc == 0; i++)
        rc = routers->calls.write_ranges((int)i, ranges, range_count);
    if (rc == 0)
        rc = write_in_order(&swap);
    free(swap.hops);
    free(swap.scratch);
    free(queue);
    return rc == 0 || rc == -ENOMEM ? rc : -EIO;
}

static int lay_out(const struct hr_topology *topology, struct range *ranges, uint32_t *count_out)
{
    uint64_t *sizes = calloc(topology->gpu_count + 1, sizeof *sizes);
    struct hr_ranges *laid = NULL;
    uint32_t count = 0;
    int rc = sizes ? 0 : -ENOMEM;

    for (uint32_t gpu = 0; gpu < topology->gpu_count && rc == 0; gpu++)
        sizes[gpu] = topology->elements[topology->gpus[gpu]].memory_bytes;
    if (rc == 0)
        rc = hr_ranges_layout(sizes, topology->gpu_count, RANGE_ALIGN, &laid);
    for (uint32_t gpu = 0; gpu < topology->gpu_count && rc == 0; gpu++) {
        if (laid->range[gpu].bytes > 0)
            ranges[count++] = (struct range){laid->range[gpu].base, laid->range[gpu].bytes, topology->gpus[gpu]};
    }
    hr_ranges_destroy(laid);
    free(sizes);
    *count_out = count;
    return rc;
}

int hr_routers_publish(struct hr_routers *routers, const struct hr_topology *topology,
                       const struct hr_tables_options *options)
{
    struct hr_tables *tables = NULL;
    struct hr_graph *graph = NULL;
    struct range *ranges = NULL;
    uint32_t count = 0;

    /* Only links of their own: over PCIe the hardware finds its way by itself. */
    graph = hr_graph_compile(topology, HR_LINKS_FABRIC);
    ranges = calloc(topology->gpu_count + 1, sizeof *ranges);
    int rc = graph && ranges ? hr_tables_compute(graph, options, &tables) : -ENOMEM;
    if (rc == 0)
        rc = lay_out(topology, ranges, &count);
    if (rc == 0)
        rc = write_all(routers, tables, graph, ranges, count);
    free(ranges);
    hr_tables_destroy(tables);
    hr_graph_destroy(graph);
    return rc;
}
