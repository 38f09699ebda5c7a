/* A part of a machine, such as the GPUs that a process sees, and bus ids, by which parts are told. */
#include "fabric/topology.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct picking {
    const struct hr_topology *from;
    struct hr_topology *to;
    int32_t *place; /* by element of `from`: the element in `to`, -1 = left out */
};

static int take(struct picking *picking, uint32_t element)
{
    const struct hr_element *old = &picking->from->elements[element];
    int number = hr_topology_add(picking->to, old->kind, old->name);

    if (number < 0)
        return number;
    struct hr_element *taken = &picking->to->elements[number];
    struct hr_element kept = *taken;
    *taken = *old;
    taken->gpu = kept.gpu;
    taken->port_count = 0;
    taken->ports = NULL;
    picking->place[element] = number;
    return 0;
}

static int take_link(struct picking *picking, uint32_t a, const struct hr_port *port)
{
    struct hr_topology *to = picking->to;
    const struct hr_port *back = &picking->from->elements[port->peer].ports[port->peer_port];
    uint32_t x = (uint32_t)picking->place[a], y = (uint32_t)picking->place[port->peer];

    int rc = hr_topology_join(to, x, y, port->kind, 1, port->gbps, port->latency_ns);
    if (rc != 0)
        return rc;
    uint32_t mine = to->elements[x].port_count - 1, theirs = to->elements[y].port_count - 1;
    hr_topology_set_up(to, x, mine, port->up);
    hr_topology_set_up(to, y, theirs, back->up);
    return hr_topology_set_rate(to, y, theirs, back->gbps, back->latency_ns);
}

static int take_links(struct picking *picking, unsigned kinds)
{
    int rc = 0;

    for (uint32_t a = 0; rc == 0 && a < picking->from->element_count; a++) {
        const struct hr_element *element = &picking->from->elements[a];
        for (uint32_t p = 0; rc == 0 && picking->place[a] >= 0 && p < element->port_count; p++) {
            const struct hr_port *port = &element->ports[p];
            if (port->peer > (int32_t)a && picking->place[port->peer] >= 0 && (kinds & HR_LINKS(port->kind)))
                rc = take_link(picking, a, port);
        }
    }
    return rc;
}

int hr_topology_pick(const struct hr_topology *from, const uint32_t *gpu_elements, uint32_t gpus, unsigned kinds,
                     struct hr_topology **topology_out)
{
    struct picking picking = {.from = from, .to = hr_topology_create()};
    int rc = 0;

    picking.place = malloc((from->element_count + 1) * sizeof *picking.place);
    if (!picking.to || !picking.place)
        rc = -ENOMEM;
    for (uint32_t i = 0; rc == 0 && i < from->element_count; i++)
        picking.place[i] = -1;
    for (uint32_t i = 0; rc == 0 && i < gpus; i++) {
        uint32_t element = gpu_elements[i];
        bool fits = element < from->element_count && from->elements[element].kind == HR_ELEMENT_GPU &&
                    picking.place[element] < 0;
        rc = fits ? take(&picking, element) : -EINVAL;
    }
    for (uint32_t i = 0; rc == 0 && i < from->element_count; i++) {
        if (from->elements[i].kind != HR_ELEMENT_GPU)
            rc = take(&picking, i);
    }
    if (rc == 0)
        rc = take_links(&picking, kinds);
    free(picking.place);
    if (rc == 0)
        *topology_out = picking.to;
    else
        hr_topology_destroy(picking.to);
    return rc;
}

/* Hexadecimal digits up to `end`, which is passed; false without any or with too many. */
static bool read_part(const char **at, uint32_t *value_out)
{
    uint32_t value = 0;
    int digits = 0;

    for (;; ++*at, digits++) {
        char c = **at;
        if (c >= '0' && c <= '9')
            value = value * 16 + (uint32_t)(c - '0');
        else if ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'))
            value = value * 16 + (uint32_t)((c | 0x20) - 'a' + 10);
        else
            break;
    }
    *value_out = value;
    return digits > 0 && digits <= 8;
}

bool hr_topology_bus_id(const char *text, char *id_out)
{
    uint32_t part[3] = {0}, function = 0;
    int count = 0;

    for (;; text++) {
        if (count == 3 || !read_part(&text, &part[count++]))
            return false;
        if (*text != ':')
            break;
    }
    if (*text == '.') {
        text++;
        if (!read_part(&text, &function))
            return false;
    }
    if (*text || count < 2)
        return false;
    if (count == 2) {
        part[2] = part[1];
        part[1] = part[0];
        part[0] = 0;
    }
    snprintf(id_out, HR_TOPOLOGY_NAME_BYTES, "%04x:%02x:%02x.%x", part[0], part[1], part[2], function);
    return true;
}
