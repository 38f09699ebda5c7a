/* What the files of `headroom topo` share. */
#ifndef HR_CLI_TOPO_H
#define HR_CLI_TOPO_H

#include <cjson/cJSON.h>
#include <stdint.h>

#include "fabric/discover.h"
#include "fabric/graph.h"
#include "fabric/ranges.h"
#include "fabric/route.h"

#define HR_CLI_TOPO_MOST_ROUTES 32 /* GPUs up to which routes of all pairs are told */

struct hr_cli_topo {
    const char *title; /* "this machine", or the file */
    struct hr_topology *topology;
    struct hr_discovery *found;  /* NULL: a file's machine. Owns the topology otherwise */
    struct hr_graph *links;      /* NVLink and the like */
    struct hr_graph *everything; /* with PCIe and sockets */
    struct hr_ranges *ranges;    /* NULL: memory sizes are not known */
};

/* The path of large copies from one GPU to another: over links if they lead there, else over all. A negative errno as of hr_route_large;
 * *over_links_out says which. */
int hr_cli_topo_route(const struct hr_cli_topo *topo, uint32_t from, uint32_t to, struct hr_routes *routes_out,
                      bool *over_links_out);

/* Whether data between the two has to be staged in host memory, as far as is known. */
bool hr_cli_topo_staged(const struct hr_cli_topo *topo, uint32_t from, uint32_t to);

void hr_cli_topo_print(const struct hr_cli_topo *topo);
/* NULL without memory. */
cJSON *hr_cli_topo_json(const struct hr_cli_topo *topo);

/* ---- a picture ---- */

struct hr_cli_picture_node {
    char label[40];
    enum hr_element_kind kind;
};
struct hr_cli_picture_edge {
    uint32_t from, to; /* one direction */
    uint32_t links;
    double gbps;
    double load; /* share of gbps, 0..1 */
    bool up;
};
struct hr_cli_picture {
    char title[160];
    struct hr_cli_picture_node *node;
    uint32_t nodes;
    struct hr_cli_picture_edge *edge;
    uint32_t edges;
};
void hr_cli_picture_finish(struct hr_cli_picture *picture);
/* Writes the picture as SVG ("-" = standard output). A status of cli.h. */
int hr_cli_picture_write(const struct hr_cli_picture *picture, const char *path);
/* The machine, loaded as if every GPU sent to every other at once. A status of cli.h. */
int hr_cli_topo_picture(const struct hr_cli_topo *topo, struct hr_cli_picture *picture_out);

/* `headroom topo --report FILE`: the links' traffic of a simulated job; with svg as a picture there, with json as JSON. Of a stats log:
 * hr_cli_topo_traffic, which has no picture. */
int hr_cli_topo_report(const char *path, bool json, const char *svg);
int hr_cli_topo_traffic(const char *path, bool json);

#endif
