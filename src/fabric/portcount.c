/* Names are kept, so that the last line can be written while the process ends, without locks that others might hold. */
#include "fabric/portcount.h"

#include "stats/json.h"
#include "stats/stats.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct port {
    uint32_t element, number;
    char from[HR_TOPOLOGY_NAME_BYTES], to[HR_TOPOLOGY_NAME_BYTES];
} * ports; /* written once, before the statistics are told of put_ports */
static uint32_t port_count;
static const struct hr_routers *counted;

/* Ports that nothing left by are not told. */
static void put_ports(struct hr_json *json)
{
    for (uint32_t i = 0; i < port_count; i++) {
        const struct port *port = &ports[i];
        uint64_t bytes, forwarded_bytes;
        if (hr_routers_counters(counted, port->element, port->number, &bytes, &forwarded_bytes) != 0 || bytes == 0)
            continue;
        hr_json_open(json, NULL, '{');
        hr_json_text(json, "from", port->from);
        hr_json_number(json, "port", port->number);
        hr_json_text(json, "to", port->to);
        hr_json_number(json, "bytes", bytes);
        hr_json_number(json, "forwarded_bytes", forwarded_bytes);
        hr_json_close(json, '}');
    }
}

static void name_element(const struct hr_topology *topology, const int *ordinal, uint32_t number, char *name_out)
{
    const struct hr_element *element = &topology->elements[number];

    if (element->gpu >= 0 && ordinal[element->gpu] >= 0)
        snprintf(name_out, HR_TOPOLOGY_NAME_BYTES, "GPU%d", ordinal[element->gpu]);
    else
        memcpy(name_out, element->name, HR_TOPOLOGY_NAME_BYTES);
}

void hr_portcount_start(const struct hr_routers *routers, const struct hr_topology *topology, const int *ordinal)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < topology->element_count; i++)
        count += topology->elements[i].port_count;
    ports = calloc(count + 1, sizeof *ports);
    for (uint32_t i = 0; ports && i < topology->element_count; i++) {
        for (uint32_t p = 0; p < topology->elements[i].port_count; p++) {
            int32_t peer = topology->elements[i].ports[p].peer;
            if (peer < 0)
                continue;
            struct port *port = &ports[port_count++];
            port->element = i;
            port->number = p;
            name_element(topology, ordinal, i, port->from);
            name_element(topology, ordinal, (uint32_t)peer, port->to);
        }
    }
    counted = routers;
    if (ports)
        hr_stats_set_ports(put_ports);
}
