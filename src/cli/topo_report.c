#include "cli/topo.h"

/* `headroom topo --report`: what SIMGPU_REPORT says of links. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/statslog.h"
#include "fabric/sources.h"

#define MOST_BYTES ((size_t)1 << 28)
#define MOST_ELEMENTS 65536

struct link {
    uint32_t element, port, to;
    bool up;
    double gbps, bytes, forwarded_bytes, busy_ns, copies;
};

struct traffic {
    cJSON *root;
    double virtual_ns;
    uint32_t gpus;
    struct link *link;
    uint32_t links;
};

static bool element_number(const cJSON *item, const char *name, uint32_t *out)
{
    double value = hr_cli_json_number(item, name, -1);

    if (!(value >= 0 && value < MOST_ELEMENTS))
        return false;
    *out = (uint32_t)value;
    return true;
}

static bool read_link(const cJSON *item, struct link *link)
{
    const cJSON *up = cJSON_GetObjectItemCaseSensitive(item, "up");

    if (!element_number(item, "element", &link->element) || !element_number(item, "port", &link->port) ||
        !element_number(item, "to", &link->to) || !cJSON_IsBool(up))
        return false;
    link->up = cJSON_IsTrue(up);
    link->gbps = hr_cli_json_number(item, "gbps", 0);
    link->copies = hr_cli_json_number(item, "copies", 0);
    link->bytes = hr_cli_json_number(item, "copied_bytes", 0) + hr_cli_json_number(item, "kernel_bytes", 0);
    link->busy_ns = hr_cli_json_number(item, "copy_ns", 0) + hr_cli_json_number(item, "kernel_ns", 0);
    link->forwarded_bytes = hr_cli_json_number(item, "forwarded_bytes", 0);
    return true;
}

static int read_traffic(const char *path, struct traffic *traffic)
{
    size_t bytes;
    char *text = hr_source_read(path, MOST_BYTES, &bytes);

    if (!text)
        return hr_cli_fail(HR_CLI_FAILED, "cannot read %s: %s", path,
                           errno == EINVAL ? "not a regular file, or too large for a report" : strerror(errno));
    traffic->root = cJSON_ParseWithLength(text, bytes);
    free(text);
    const cJSON *links = cJSON_GetObjectItemCaseSensitive(traffic->root, "links"), *item;
    const cJSON *gpus = cJSON_GetObjectItemCaseSensitive(traffic->root, "gpus");
    if (!cJSON_IsArray(gpus) || hr_cli_json_number(traffic->root, "schema", 0) < 2)
        return hr_cli_fail(HR_CLI_FAILED, "%s is no stats log, and not what SIMGPU_REPORT writes", path);
    if (!cJSON_IsArray(links))
        return hr_cli_fail(HR_CLI_FAILED, "%s is of a machine without links (a model's cards alone)", path);
    traffic->virtual_ns = hr_cli_json_number(traffic->root, "virtual_time_ns", 0);
    traffic->gpus = (uint32_t)cJSON_GetArraySize(gpus);
    traffic->link = calloc((size_t)cJSON_GetArraySize(links) + 1, sizeof *traffic->link);
    if (!traffic->link)
        return hr_cli_fail(HR_CLI_FAILED, "out of memory");
    cJSON_ArrayForEach(item, links)
    {
        if (!read_link(item, &traffic->link[traffic->links++]))
            return hr_cli_fail(HR_CLI_FAILED, "%s: link %u is not one", path, traffic->links - 1);
    }
    return HR_CLI_OK;
}

static void name_element(const struct traffic *traffic, uint32_t element, char *text, size_t bytes)
{
    if (element < traffic->gpus)
        snprintf(text, bytes, "GPU%u", element);
    else
        snprintf(text, bytes, "element%u", element);
}

static double share(const struct traffic *traffic, const struct link *link)
{
    return traffic->virtual_ns > 0 ? link->busy_ns / traffic->virtual_ns : 0;
}

static void print_traffic(const struct traffic *traffic)
{
    uint32_t idle = 0;

    printf("%s: %.3f ms of virtual time\n\n", hr_cli_json_text(traffic->root, "machine", "?"),
           traffic->virtual_ns / 1e6);
    printf("from\tport\tto\tGB/s\tcopies\tMB\tforwarded MB\tbusy\n");
    for (uint32_t i = 0; i < traffic->links; i++) {
        const struct link *link = &traffic->link[i];
        char from[24], to[24];
        if (link->bytes <= 0 && link->up) {
            idle++;
            continue;
        }
        name_element(traffic, link->element, from, sizeof from);
        name_element(traffic, link->to, to, sizeof to);
        printf("%s\t%u\t%s\t%.1f\t%.0f\t%.3f\t%.3f\t%.1f %%%s\n", from, link->port, to, link->gbps, link->copies,
               link->bytes / 1e6, link->forwarded_bytes / 1e6, share(traffic, link) * 100, link->up ? "" : "\tdown");
    }
    printf("%u more were idle\n", idle);
}

static int print_json(const struct traffic *traffic)
{
    cJSON *json = cJSON_CreateArray();

    for (uint32_t i = 0; i < traffic->links; i++) {
        const struct link *link = &traffic->link[i];
        cJSON *item = cJSON_CreateObject();
        cJSON_AddNumberToObject(item, "element", link->element);
        cJSON_AddNumberToObject(item, "port", link->port);
        cJSON_AddNumberToObject(item, "to", link->to);
        cJSON_AddBoolToObject(item, "up", link->up);
        cJSON_AddNumberToObject(item, "gbps", link->gbps);
        cJSON_AddNumberToObject(item, "bytes", link->bytes);
        cJSON_AddNumberToObject(item, "forwarded_bytes", link->forwarded_bytes);
        cJSON_AddNumberToObject(item, "busy_ns", link->busy_ns);
        cJSON_AddNumberToObject(item, "busy_share", share(traffic, link));
        cJSON_AddItemToArray(json, item);
    }
    char *text = cJSON_Print(json);
    cJSON_Delete(json);
    if (!text)
        return hr_cli_fail(HR_CLI_FAILED, "out of memory");
    puts(text);
    free(text);
    return HR_CLI_OK;
}

/* Ports between the same two elements become one line, with the sum of what they carry. */
static void add_link(const struct traffic *traffic, const struct link *link, struct hr_cli_picture *picture)
{
    struct hr_cli_picture_edge *edge = NULL;

    for (uint32_t e = 0; e < picture->edges && !edge; e++) {
        if (picture->edge[e].from == link->element && picture->edge[e].to == link->to)
            edge = &picture->edge[e];
    }
    if (!edge) {
        edge = &picture->edge[picture->edges++];
        *edge = (struct hr_cli_picture_edge){.from = link->element, .to = link->to};
    }
    edge->load = (edge->load * edge->links + share(traffic, link)) / (edge->links + 1);
    edge->links++;
    edge->gbps += link->gbps;
    edge->up = edge->up || link->up;
}

/* The report has no kinds: what PCIe and sockets are to a picture is where they stand, and that follows from their links. */
static int draw(const struct traffic *traffic, const char *svg)
{
    struct hr_cli_picture picture = {0};
    uint32_t elements = traffic->gpus;

    for (uint32_t i = 0; i < traffic->links; i++) {
        elements = traffic->link[i].element >= elements ? traffic->link[i].element + 1 : elements;
        elements = traffic->link[i].to >= elements ? traffic->link[i].to + 1 : elements;
    }
    picture.node = calloc(elements + 1, sizeof *picture.node);
    picture.edge = calloc(traffic->links + 1, sizeof *picture.edge);
    if (!picture.node || !picture.edge) {
        hr_cli_picture_finish(&picture);
        return hr_cli_fail(HR_CLI_FAILED, "out of memory");
    }
    snprintf(picture.title, sizeof picture.title, "%.60s: load of the links in %.3f ms of virtual time",
             hr_cli_json_text(traffic->root, "machine", "?"), traffic->virtual_ns / 1e6);
    for (picture.nodes = 0; picture.nodes < elements; picture.nodes++) {
        struct hr_cli_picture_node *node = &picture.node[picture.nodes];
        name_element(traffic, picture.nodes, node->label, sizeof node->label);
        node->kind = picture.nodes < traffic->gpus ? HR_ELEMENT_GPU : HR_ELEMENT_BRIDGE;
    }
    for (uint32_t i = 0; i < traffic->links; i++)
        add_link(traffic, &traffic->link[i], &picture);
    int status = hr_cli_picture_write(&picture, svg);
    hr_cli_picture_finish(&picture);
    return status;
}

/* Its first line tells; what is neither is refused later, with more words. */
static bool is_stats_log(const char *path)
{
    FILE *file = fopen(path, "re");
    char *line = NULL;
    size_t room = 0;
    bool is_log = false;

    if (file && getline(&line, &room, file) > 0) {
        cJSON *json = cJSON_Parse(line);
        is_log = strcmp(hr_cli_json_text(json, "type", ""), "start") == 0;
        cJSON_Delete(json);
    }
    free(line);
    if (file)
        fclose(file);
    return is_log;
}

int hr_cli_topo_report(const char *path, bool json, const char *svg)
{
    struct traffic traffic = {0};

    if (is_stats_log(path)) {
        if (svg)
            return hr_cli_fail(HR_CLI_USAGE, "topo: --svg needs the SIMGPU_REPORT of a job, and %s is a stats log",
                               path);
        return hr_cli_topo_traffic(path, json);
    }
    int status = read_traffic(path, &traffic);
    if (status == HR_CLI_OK && svg)
        status = draw(&traffic, svg);
    else if (status == HR_CLI_OK && json)
        status = print_json(&traffic);
    else if (status == HR_CLI_OK)
        print_traffic(&traffic);
    cJSON_Delete(traffic.root);
    free(traffic.link);
    return fflush(stdout) == 0 ? status : HR_CLI_FAILED;
}
