#include "cli/topo.h"

/* `headroom topo` as text and as JSON. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

static double gbps(int64_t mbps)
{
    return (double)mbps / 1000;
}

static const struct hr_element *gpu_of(const struct hr_cli_topo *topo, uint32_t gpu)
{
    return &topo->topology->elements[topo->topology->gpus[gpu]];
}

static void print_head(const struct hr_cli_topo *topo)
{
    const struct hr_discovery *found = topo->found;
    uint32_t gpus = topo->topology->gpu_count;

    printf("%s: %u GPU%s", topo->title, gpus, gpus == 1 ? "" : "s");
    if (found)
        printf("; links as %s, PCIe as %s tells; driver %s", found->links_from, found->tree_from, found->driver);
    printf("\n\n");
    char *matrix = hr_topology_print_matrix(topo->topology);
    if (matrix)
        fputs(matrix, stdout);
    free(matrix);
}

static void print_gpus(const struct hr_cli_topo *topo)
{
    printf("\nGlobal addresses\n");
    for (uint32_t i = 0; i < topo->topology->gpu_count; i++) {
        const struct hr_element *gpu = gpu_of(topo, i);
        printf("GPU%u\t%s\t", i, gpu->name);
        if (topo->ranges)
            printf("0x%012" PRIx64 " to 0x%012" PRIx64 "\t%.1f GiB", topo->ranges->range[i].base,
                   topo->ranges->range[i].base + topo->ranges->range[i].bytes - 1,
                   (double)gpu->memory_bytes / (1 << 30));
        else
            printf("size not known");
        if (topo->found)
            printf("\t%s", topo->found->gpu[i].name);
        printf("\n");
    }
}

static void print_measured(const struct hr_cli_topo *topo)
{
    const struct hr_discovery *found = topo->found;
    bool any = false;

    for (uint32_t i = 0; found && i < found->gpus * found->gpus; i++)
        any = any || found->pair[i].state != HR_PAIR_UNPROVEN;
    if (!any)
        return;
    printf("\nMeasured: GB/s of a direct copy from row to column, and to and from the host\n");
    for (uint32_t i = 0; i < found->gpus; i++)
        printf("\tGPU%u", i);
    printf("\tto host\tfrom host\n");
    for (uint32_t i = 0; i < found->gpus; i++) {
        printf("GPU%u", i);
        for (uint32_t j = 0; j < found->gpus; j++) {
            const struct hr_pair *pair = &found->pair[i * found->gpus + j];
            if (i == j)
                printf("\t X ");
            else if (pair->state > HR_PAIR_GOOD)
                printf("\tbad");
            else if (pair->gbps > 0)
                printf("\t%.1f", pair->gbps);
            else
                printf("\t-");
        }
        if (found->gpu[i].to_host_gbps > 0)
            printf("\t%.1f\t%.1f\n", found->gpu[i].to_host_gbps, found->gpu[i].from_host_gbps);
        else
            printf("\t-\t-\n");
    }
    for (uint32_t i = 0; i < found->gpus; i++) {
        for (uint32_t j = 0; j < found->gpus; j++) {
            const struct hr_pair *pair = &found->pair[i * found->gpus + j];
            if (pair->state > HR_PAIR_GOOD)
                printf("GPU%u to GPU%u: %s\n", i, j, hr_pair_complaint((enum hr_pair_state)pair->state));
        }
    }
}

static void print_path(const struct hr_path *path)
{
    printf("%.1f ", gbps(path->mbps));
    if (path->legs == 1)
        printf("direct");
    for (uint32_t leg = 1; leg < path->legs; leg++)
        printf("%sGPU%u", leg == 1 ? "over " : ", ", path->gpu[leg]);
}

static void print_route(const struct hr_cli_topo *topo, uint32_t from, uint32_t to)
{
    struct hr_routes routes = {0};
    bool over_links;
    int rc = hr_cli_topo_route(topo, from, to, &routes, &over_links);

    printf("GPU%u to GPU%u\t", from, to);
    if (rc != 0) {
        printf(rc == -ENETUNREACH ? "no way\n" : "not computed\n");
        return;
    }
    /* Copies that beat PCIe go over something else, which drivers of virtual machines do not tell of. */
    double measured = topo->found ? topo->found->pair[from * topo->found->gpus + to].gbps : 0;
    bool faster = !over_links && measured > 1.1 * gbps(routes.mbps);
    printf("%.1f", faster ? measured : gbps(routes.mbps));
    if (!over_links && hr_cli_topo_staged(topo, from, to))
        printf(" at most, through host memory\n");
    else if (faster)
        printf(" direct, as measured: over links that nothing tells of\n");
    else if (routes.path_count == 1 && routes.path[0].legs == 1)
        printf(over_links ? " direct\n" : " over PCIe\n");
    else
        for (uint32_t i = 0; i < routes.path_count; i++) {
            printf(i == 0 ? " = " : " + ");
            print_path(&routes.path[i]);
            printf("%s", i + 1 < routes.path_count ? "" : "\n");
        }
    hr_routes_finish(&routes);
}

void hr_cli_topo_print(const struct hr_cli_topo *topo)
{
    uint32_t gpus = topo->topology->gpu_count;

    print_head(topo);
    print_gpus(topo);
    print_measured(topo);
    if (gpus < 2)
        return;
    printf("\nRoutes of large copies, GB/s\n");
    if (gpus > HR_CLI_TOPO_MOST_ROUTES) {
        printf("(told of up to %d GPUs)\n", HR_CLI_TOPO_MOST_ROUTES);
        return;
    }
    for (uint32_t i = 0; i < gpus; i++) {
        for (uint32_t j = 0; j < gpus; j++) {
            if (i != j)
                print_route(topo, i, j);
        }
    }
}

/* ---- JSON ---- */

static const char *const element_kinds[] = {"gpu", "switch", "bridge", "root", "socket"};
static const char *const link_kinds[] = {"nvlink", "xgmi", "pcie", "socket"};
static const char *const pair_states[] = {"unproven", "good", "corrupts", "hangs", "fails"};

static cJSON *element_json(const struct hr_element *element)
{
    cJSON *json = cJSON_CreateObject(), *ports = cJSON_AddArrayToObject(json, "ports");

    cJSON_AddStringToObject(json, "name", element->name);
    cJSON_AddStringToObject(json, "kind", element_kinds[element->kind]);
    if (element->numa >= 0)
        cJSON_AddNumberToObject(json, "numa", element->numa);
    for (uint32_t p = 0; p < element->port_count; p++) {
        const struct hr_port *port = &element->ports[p];
        cJSON *item = cJSON_CreateObject();
        cJSON_AddNumberToObject(item, "peer", port->peer);
        cJSON_AddNumberToObject(item, "peer_port", port->peer_port);
        cJSON_AddStringToObject(item, "kind", link_kinds[port->kind]);
        cJSON_AddBoolToObject(item, "up", port->up);
        cJSON_AddNumberToObject(item, "gbps", port->gbps);
        cJSON_AddNumberToObject(item, "latency_ns", port->latency_ns);
        cJSON_AddItemToArray(ports, item);
    }
    return json;
}

static cJSON *gpu_json(const struct hr_cli_topo *topo, uint32_t gpu)
{
    const struct hr_element *element = gpu_of(topo, gpu);
    cJSON *json = cJSON_CreateObject();

    cJSON_AddNumberToObject(json, "element", topo->topology->gpus[gpu]);
    cJSON_AddStringToObject(json, "bus_id", element->name);
    cJSON_AddNumberToObject(json, "memory_bytes", (double)element->memory_bytes);
    if (topo->ranges)
        cJSON_AddNumberToObject(json, "base", (double)topo->ranges->range[gpu].base);
    if (topo->found) {
        cJSON_AddStringToObject(json, "name", topo->found->gpu[gpu].name);
        cJSON_AddNumberToObject(json, "to_host_gbps", topo->found->gpu[gpu].to_host_gbps);
        cJSON_AddNumberToObject(json, "from_host_gbps", topo->found->gpu[gpu].from_host_gbps);
    }
    return json;
}

static void add_routes(const struct hr_cli_topo *topo, uint32_t from, uint32_t to, cJSON *json)
{
    struct hr_routes routes = {0};
    bool over_links;

    if (hr_cli_topo_route(topo, from, to, &routes, &over_links) != 0)
        return;
    cJSON_AddNumberToObject(json, "gbps", gbps(routes.mbps));
    cJSON_AddBoolToObject(json, "over_links", over_links);
    cJSON *paths = cJSON_AddArrayToObject(json, "paths");
    for (uint32_t i = 0; i < routes.path_count; i++) {
        cJSON *path = cJSON_CreateObject(), *gpus = cJSON_AddArrayToObject(path, "gpus");
        for (uint32_t g = 0; g <= routes.path[i].legs; g++)
            cJSON_AddItemToArray(gpus, cJSON_CreateNumber(routes.path[i].gpu[g]));
        cJSON_AddNumberToObject(path, "gbps", gbps(routes.path[i].mbps));
        cJSON_AddItemToArray(paths, path);
    }
    hr_routes_finish(&routes);
}

static cJSON *pair_json(const struct hr_cli_topo *topo, uint32_t from, uint32_t to)
{
    cJSON *json = cJSON_CreateObject();
    char relation[16];

    cJSON_AddNumberToObject(json, "from", from);
    cJSON_AddNumberToObject(json, "to", to);
    hr_topology_relation(topo->topology, from, to, relation);
    cJSON_AddStringToObject(json, "relation", relation);
    if (topo->found) {
        const struct hr_pair *pair = &topo->found->pair[from * topo->found->gpus + to];
        cJSON_AddBoolToObject(json, "access", pair->access);
        cJSON_AddBoolToObject(json, "atomics", pair->atomics);
        cJSON_AddNumberToObject(json, "rank", pair->rank);
        cJSON_AddStringToObject(json, "state", pair_states[pair->state]);
        cJSON_AddNumberToObject(json, "measured_gbps", pair->gbps);
        cJSON_AddNumberToObject(json, "measured_start_ns", pair->start_ns);
    }
    if (topo->topology->gpu_count <= HR_CLI_TOPO_MOST_ROUTES)
        add_routes(topo, from, to, json);
    return json;
}

cJSON *hr_cli_topo_json(const struct hr_cli_topo *topo)
{
    cJSON *json = cJSON_CreateObject();
    uint32_t gpus = topo->topology->gpu_count;

    cJSON_AddStringToObject(json, "machine", topo->title);
    if (topo->found) {
        cJSON_AddStringToObject(json, "driver", topo->found->driver);
        cJSON_AddStringToObject(json, "links_from", topo->found->links_from);
        cJSON_AddStringToObject(json, "tree_from", topo->found->tree_from);
    }
    cJSON *list = cJSON_AddArrayToObject(json, "gpus");
    for (uint32_t i = 0; i < gpus; i++)
        cJSON_AddItemToArray(list, gpu_json(topo, i));
    list = cJSON_AddArrayToObject(json, "elements");
    for (uint32_t i = 0; i < topo->topology->element_count; i++)
        cJSON_AddItemToArray(list, element_json(&topo->topology->elements[i]));
    list = cJSON_AddArrayToObject(json, "pairs");
    for (uint32_t i = 0; i < gpus * gpus && gpus <= HR_TOPOLOGY_MAX_PORTS; i++) {
        if (i / gpus != i % gpus)
            cJSON_AddItemToArray(list, pair_json(topo, i / gpus, i % gpus));
    }
    return json;
}
