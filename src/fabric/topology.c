/*
 * The builder and the generators. Ports are small arrays of their element: a machine is built once, and everything that has to be
 * fast works on a compiled graph (fabric/graph.h).
 */
#include "fabric/topology.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    uint32_t latency_ns;
} link_kinds[] = {
    [HR_LINK_NVLINK] = {"nvlink", 700},
    [HR_LINK_XGMI] = {"xgmi", 700},
    [HR_LINK_PCIE] = {"pcie", 500},
    [HR_LINK_SOCKET] = {"socket", 150},
};

uint32_t hr_topology_default_latency_ns(enum hr_link_kind kind)
{
    return link_kinds[kind].latency_ns;
}

struct hr_topology *hr_topology_create(void)
{
    return calloc(1, sizeof(struct hr_topology));
}

void hr_topology_destroy(struct hr_topology *topology)
{
    if (!topology)
        return;
    for (uint32_t i = 0; i < topology->element_count; i++)
        free(topology->elements[i].ports);
    free(topology->elements);
    free(topology->gpus);
    free(topology);
}

int hr_topology_find(const struct hr_topology *topology, const char *name)
{
    for (uint32_t i = 0; i < topology->element_count; i++) {
        if (strcmp(topology->elements[i].name, name) == 0)
            return (int)i;
    }
    return -1;
}

static bool plain_name(const char *name)
{
    size_t length = strlen(name);

    if (length >= HR_TOPOLOGY_NAME_BYTES)
        return false;
    for (size_t i = 0; i < length; i++) {
        if (name[i] <= ' ' || name[i] > '~' || strchr("<>&\"'#=", name[i]))
            return false;
    }
    return true;
}

/* "gpu3": the number is that of the kind, counted up if a source has used such a name itself. */
static void make_name(const struct hr_topology *topology, enum hr_element_kind kind, char *name_out)
{
    static const char *const kinds[] = {"gpu", "switch", "bridge", "root", "socket"};
    uint32_t number = 0;

    for (uint32_t i = 0; i < topology->element_count; i++)
        number += topology->elements[i].kind == kind;
    do
        snprintf(name_out, HR_TOPOLOGY_NAME_BYTES, "%s%u", kinds[kind], number++);
    while (topology->element_count <= 1024 && hr_topology_find(topology, name_out) >= 0);
}

static int grow(struct hr_topology *topology)
{
    if (topology->element_count == topology->room) {
        uint32_t room = topology->room ? topology->room * 2 : 16;
        struct hr_element *elements = realloc(topology->elements, room * sizeof *elements);
        if (!elements)
            return -ENOMEM;
        topology->elements = elements;
        topology->room = room;
    }
    if (topology->gpu_count == topology->gpu_room) {
        uint32_t room = topology->gpu_room ? topology->gpu_room * 2 : 16;
        uint32_t *gpus = realloc(topology->gpus, room * sizeof *gpus);
        if (!gpus)
            return -ENOMEM;
        topology->gpus = gpus;
        topology->gpu_room = room;
    }
    return 0;
}

int hr_topology_add(struct hr_topology *topology, enum hr_element_kind kind, const char *name)
{
    if (name && !plain_name(name))
        return -EINVAL;
    if (topology->element_count >= HR_TOPOLOGY_MAX_ELEMENTS ||
        (kind == HR_ELEMENT_GPU && topology->gpu_count >= HR_TOPOLOGY_MAX_GPUS))
        return -E2BIG;
    if (name && *name && hr_topology_find(topology, name) >= 0)
        return -EEXIST;
    if (grow(topology) != 0)
        return -ENOMEM;
    uint32_t number = topology->element_count;
    struct hr_element *element = &topology->elements[number];
    *element = (struct hr_element){.kind = kind, .gpu = -1, .numa = -1};
    if (name && *name)
        snprintf(element->name, sizeof element->name, "%s", name);
    else
        make_name(topology, kind, element->name);
    if (kind == HR_ELEMENT_GPU) {
        element->gpu = (int32_t)topology->gpu_count;
        topology->gpus[topology->gpu_count++] = number;
    }
    topology->element_count++;
    topology->version++;
    return (int)number;
}

static int grow_ports(struct hr_element *element, uint32_t count)
{
    struct hr_port *ports = realloc(element->ports, (element->port_count + count) * sizeof *ports);

    if (!ports)
        return -ENOMEM;
    element->ports = ports;
    return 0;
}

static bool rate_is_sane(double gbps)
{
    return gbps >= 0.001 && gbps < 1e6; /* false for NaN too */
}

int hr_topology_join(struct hr_topology *topology, uint32_t a, uint32_t b, enum hr_link_kind kind, uint32_t count,
                     double gbps, uint32_t latency_ns)
{
    if (a == b || a >= topology->element_count || b >= topology->element_count || !rate_is_sane(gbps))
        return -EINVAL;
    struct hr_element *from = &topology->elements[a], *to = &topology->elements[b];
    if (count > HR_TOPOLOGY_MAX_PORTS || from->port_count + count > HR_TOPOLOGY_MAX_PORTS ||
        to->port_count + count > HR_TOPOLOGY_MAX_PORTS)
        return -E2BIG;
    if (count == 0)
        return 0;
    if (grow_ports(from, count) != 0 || grow_ports(to, count) != 0)
        return -ENOMEM;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t mine = from->port_count++, theirs = to->port_count++;
        from->ports[mine] = (struct hr_port){(int32_t)b, (int32_t)theirs, latency_ns, (uint8_t)kind, true, gbps};
        to->ports[theirs] = (struct hr_port){(int32_t)a, (int32_t)mine, latency_ns, (uint8_t)kind, true, gbps};
    }
    topology->version++;
    return 0;
}

static struct hr_port *port_of(struct hr_topology *topology, uint32_t element, uint32_t port)
{
    if (element >= topology->element_count || port >= topology->elements[element].port_count)
        return NULL;
    return &topology->elements[element].ports[port];
}

int hr_topology_set_up(struct hr_topology *topology, uint32_t element, uint32_t port, bool up)
{
    struct hr_port *one = port_of(topology, element, port);

    if (!one)
        return -EINVAL;
    topology->version += one->up != up;
    one->up = up;
    return 0;
}

int hr_topology_set_rate(struct hr_topology *topology, uint32_t element, uint32_t port, double gbps,
                         uint32_t latency_ns)
{
    struct hr_port *one = port_of(topology, element, port);

    if (!one || !rate_is_sane(gbps))
        return -EINVAL;
    one->gbps = gbps;
    one->latency_ns = latency_ns;
    topology->version++;
    return 0;
}

uint32_t hr_topology_links(const struct hr_topology *topology, uint32_t a, uint32_t b, unsigned kinds, double *gbps_out)
{
    uint32_t links = 0;
    double gbps = 0;

    for (uint32_t i = 0; i < topology->elements[a].port_count; i++) {
        const struct hr_port *port = &topology->elements[a].ports[i];
        if (port->peer == (int32_t)b && port->up && (kinds & HR_LINKS(port->kind))) {
            links++;
            gbps += port->gbps;
        }
    }
    if (gbps_out)
        *gbps_out = gbps;
    return links;
}

/* ---- generators ---- */

static struct hr_topology *gpus_only(uint32_t gpus)
{
    struct hr_topology *topology = hr_topology_create();

    for (uint32_t i = 0; topology && i < gpus; i++) {
        if (hr_topology_add(topology, HR_ELEMENT_GPU, NULL) < 0) {
            hr_topology_destroy(topology);
            return NULL;
        }
    }
    return topology;
}

struct hr_topology *hr_topology_torus(const uint32_t *extents, uint32_t dims, uint32_t links, double gbps)
{
    uint32_t gpus = 1;

    for (uint32_t d = 0; d < dims; d++) {
        if (extents[d] < 1 || extents[d] > 64 || gpus * extents[d] > HR_TOPOLOGY_MAX_GPUS)
            return NULL;
        gpus *= extents[d];
    }
    struct hr_topology *topology = gpus_only(gpus);
    for (uint32_t i = 0; topology && i < gpus; i++) {
        uint32_t stride = 1;
        for (uint32_t d = 0; d < dims; d++) {
            uint32_t at = i / stride % extents[d];
            uint32_t next = i - at * stride + (at + 1) % extents[d] * stride;
            bool wanted = extents[d] > 2 || (extents[d] == 2 && at == 0);
            if (wanted && hr_topology_join(topology, i, next, HR_LINK_NVLINK, links, gbps,
                                           link_kinds[HR_LINK_NVLINK].latency_ns) != 0) {
                hr_topology_destroy(topology);
                return NULL;
            }
            stride *= extents[d];
        }
    }
    return topology;
}

struct hr_topology *hr_topology_chain(uint32_t gpus, uint32_t links, double gbps)
{
    struct hr_topology *topology = gpus >= 1 && gpus <= HR_TOPOLOGY_MAX_GPUS ? gpus_only(gpus) : NULL;

    for (uint32_t i = 0; topology && i + 1 < gpus; i++) {
        if (hr_topology_join(topology, i, i + 1, HR_LINK_NVLINK, links, gbps, link_kinds[HR_LINK_NVLINK].latency_ns) !=
            0) {
            hr_topology_destroy(topology);
            return NULL;
        }
    }
    return topology;
}

struct hr_topology *hr_topology_from_links(const uint8_t *links, uint32_t gpus, enum hr_link_kind kind, double gbps)
{
    for (uint32_t i = 0; i < gpus * gpus; i++) {
        if (links[i] != links[i % gpus * gpus + i / gpus] || (i / gpus == i % gpus && links[i] != 0))
            return NULL;
    }
    struct hr_topology *topology = gpus_only(gpus);
    for (uint32_t i = 0; topology && i < gpus; i++) {
        for (uint32_t j = i + 1; j < gpus; j++) {
            if (hr_topology_join(topology, i, j, kind, links[i * gpus + j], gbps, link_kinds[kind].latency_ns) != 0) {
                hr_topology_destroy(topology);
                return NULL;
            }
        }
    }
    return topology;
}
