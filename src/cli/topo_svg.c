#include "cli/topo.h"

/*
 * A machine as a picture: GPUs on a circle, what joins them inside of it, or outside where it belongs to one side (sockets and
 * bridges stand near the GPUs that hang from them). Each direction of a connection is a line of its own, as wide as what it
 * carries, and coloured by its load.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

enum { SIZE = 960, TOP = 40, CENTRE = SIZE / 2, GPU_RADIUS = 380, NODE = 22, TOLERANCE_PERCENT = 5 };
#define APART 3.0 /* pixels between the two directions */

void hr_cli_picture_finish(struct hr_cli_picture *picture)
{
    free(picture->node);
    free(picture->edge);
    picture->node = NULL;
    picture->edge = NULL;
}

struct place {
    double x, y;
    uint32_t near; /* neighbours placed so far */
};

static double circle_x(double radius, uint32_t index, uint32_t count)
{
    return CENTRE + radius * sin(2 * M_PI * index / count);
}

static double circle_y(double radius, uint32_t index, uint32_t count)
{
    return TOP + CENTRE - radius * cos(2 * M_PI * index / count);
}

/* What is no GPU goes to the middle of its neighbours, drawn towards the centre; those of one kind without any differ by number. */
static void place_others(const struct hr_cli_picture *picture, struct place *places, enum hr_element_kind kind,
                         double pull, double ring)
{
    uint32_t count = 0, index = 0;

    for (uint32_t n = 0; n < picture->nodes; n++)
        count += picture->node[n].kind == kind;
    for (uint32_t n = 0; n < picture->nodes; n++) {
        if (picture->node[n].kind != kind)
            continue;
        double x = 0, y = 0;
        uint32_t near = 0;
        for (uint32_t e = 0; e < picture->edges; e++) {
            uint32_t other = picture->edge[e].to;
            if (picture->edge[e].from != n || !places[other].near)
                continue;
            x += places[other].x;
            y += places[other].y;
            near++;
        }
        places[n].x = CENTRE + (near ? (x / near - CENTRE) * pull : 0);
        places[n].y = TOP + CENTRE + (near ? (y / near - TOP - CENTRE) * pull : 0);
        if (hypot(places[n].x - CENTRE, places[n].y - TOP - CENTRE) < ring) { /* the middle of all: a small ring */
            places[n].x = circle_x(ring, index, count);
            places[n].y = circle_y(ring, index, count);
        }
        places[n].near = 1;
        index++;
    }
}

static void place_all(const struct hr_cli_picture *picture, struct place *places)
{
    uint32_t gpus = 0, index = 0;

    for (uint32_t n = 0; n < picture->nodes; n++)
        gpus += picture->node[n].kind == HR_ELEMENT_GPU;
    for (uint32_t n = 0; n < picture->nodes; n++) {
        if (picture->node[n].kind != HR_ELEMENT_GPU)
            continue;
        places[n].x = circle_x(GPU_RADIUS, index, gpus);
        places[n].y = circle_y(GPU_RADIUS, index, gpus);
        places[n].near = 1;
        index++;
    }
    place_others(picture, places, HR_ELEMENT_SWITCH, 0.3, 90);
    place_others(picture, places, HR_ELEMENT_BRIDGE, 0.8, 150);
    place_others(picture, places, HR_ELEMENT_ROOT, 0.7, 130);
    place_others(picture, places, HR_ELEMENT_SOCKET, 0.5, 50);
}

static void put_text(FILE *f, const char *text)
{
    for (; *text; text++) {
        if (*text == '<')
            fputs("&lt;", f);
        else if (*text == '&')
            fputs("&amp;", f);
        else if (*text == '"')
            fputs("&quot;", f);
        else
            fputc((unsigned char)*text < ' ' ? '?' : *text, f);
    }
}

/* From green over yellow to red. */
static unsigned colour_of(double load)
{
    load = load < 0 ? 0 : load > 1 ? 1 : load;
    unsigned red = (unsigned)(load < 0.5 ? 60 + 340 * load : 230),
             green = (unsigned)(load < 0.5 ? 160 : 320 - 320 * load);
    return red << 16 | green << 8 | 50;
}

static void put_edge(FILE *f, const struct hr_cli_picture *picture, const struct place *places,
                     const struct hr_cli_picture_edge *edge, double most_gbps)
{
    const struct place *a = &places[edge->from], *b = &places[edge->to];
    double dx = b->x - a->x, dy = b->y - a->y, length = hypot(dx, dy);
    double width = 1 + 8 * edge->gbps / most_gbps;
    double side = (width / 2 + APART / 2) / (length > 1 ? length : 1);

    fprintf(f, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#%06x\" stroke-width=\"%.1f\"%s>",
            a->x - dy * side, a->y + dx * side, b->x - dy * side, b->y + dx * side,
            edge->up ? colour_of(edge->load) : 0xbbbbbb, width, edge->up ? "" : " stroke-dasharray=\"4 4\"");
    fputs("<title>", f);
    put_text(f, picture->node[edge->from].label);
    fputs(" to ", f);
    put_text(f, picture->node[edge->to].label);
    fprintf(f, ": %u link%s, %.1f GB/s, ", edge->links, edge->links == 1 ? "" : "s", edge->gbps);
    if (edge->up)
        fprintf(f, "load %.0f %%", edge->load * 100);
    else
        fputs("down", f);
    fputs("</title></line>\n", f);
}

static void put_node(FILE *f, const struct hr_cli_picture_node *node, const struct place *place)
{
    static const char *const colours[] = {"#76b041", "#5e81ac", "#a3a3a3", "#c0c0c0", "#d8b365"};
    double half = node->kind == HR_ELEMENT_GPU ? NODE : NODE * 0.7;

    fprintf(f, "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" rx=\"4\" fill=\"%s\" stroke=\"#333333\"/>\n",
            place->x - half, place->y - half * 0.6, half * 2, half * 1.2, colours[node->kind]);
    fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\" font-size=\"%d\">", place->x, place->y + 4,
            node->kind == HR_ELEMENT_GPU ? 12 : 9);
    put_text(f, node->label);
    fputs("</text>\n", f);
}

static void put_picture(FILE *f, const struct hr_cli_picture *picture, const struct place *places)
{
    double most_gbps = 0.001;

    fprintf(f, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\">\n",
            SIZE, SIZE + TOP);
    fprintf(f, "<rect width=\"%d\" height=\"%d\" fill=\"#ffffff\"/>\n<text x=\"16\" y=\"26\" font-size=\"16\">", SIZE,
            SIZE + TOP);
    put_text(f, picture->title);
    fputs("</text>\n", f);
    for (uint32_t e = 0; e < picture->edges; e++)
        most_gbps = picture->edge[e].gbps > most_gbps ? picture->edge[e].gbps : most_gbps;
    for (uint32_t e = 0; e < picture->edges; e++)
        put_edge(f, picture, places, &picture->edge[e], most_gbps);
    for (uint32_t n = 0; n < picture->nodes; n++)
        put_node(f, &picture->node[n], &places[n]);
    fputs("</svg>\n", f);
}

int hr_cli_picture_write(const struct hr_cli_picture *picture, const char *path)
{
    struct place *places = calloc(picture->nodes + 1, sizeof *places);
    bool standard = strcmp(path, "-") == 0;
    int status = HR_CLI_OK;

    if (!places)
        return hr_cli_fail(HR_CLI_FAILED, "out of memory");
    place_all(picture, places);
    FILE *f = standard ? stdout : fopen(path, "we");
    if (f)
        put_picture(f, picture, places);
    free(places);
    if (!f)
        return hr_cli_fail(HR_CLI_FAILED, "cannot write %s: %s", path, strerror(errno));
    bool bad = ferror(f) != 0;
    if ((standard ? fflush(f) : fclose(f)) != 0 || bad)
        status = hr_cli_fail(HR_CLI_FAILED, "cannot write %s: %s", standard ? "the picture" : path, strerror(errno));
    return status;
}

/* ---- the machine's own picture ---- */

/* What all-to-all puts on each edge of the graph, in shares of it; all 0 where it cannot be computed. */
static int all_to_all_load(const struct hr_graph *graph, double *load)
{
    struct hr_all_to_all all = {0};
    int rc = graph->gpus < 2 ? -EINVAL : hr_route_all_to_all(graph, TOLERANCE_PERCENT / 100.0, &all);

    if (rc != 0)
        return rc;
    for (uint32_t i = 0; i < all.gpus * all.gpus; i++) {
        const struct hr_routes *routes = &all.routes[i];
        for (uint32_t p = 0; p < routes->path_count; p++) {
            for (uint32_t l = 0; l < routes->path[p].load_count; l++)
                load[routes->path[p].load[l].edge] += (double)routes->path[p].load[l].mbps;
        }
    }
    for (uint32_t e = 0; e < graph->edges; e++)
        load[e] /= (double)graph->edge[e].mbps;
    hr_all_to_all_finish(&all);
    return 0;
}

static bool covers(const struct hr_graph *graph)
{
    for (uint32_t i = 1; i < graph->gpus; i++) {
        struct hr_routes routes = {0};
        int rc = hr_route_small(graph, NULL, 0, i, &routes);
        hr_routes_finish(&routes);
        if (rc != 0)
            return false;
    }
    return graph->gpus > 1;
}

static void add_edge(const struct hr_topology *topology, uint32_t from, uint32_t to, const struct hr_graph *graph,
                     const double *load, struct hr_cli_picture *picture)
{
    struct hr_cli_picture_edge *edge = &picture->edge[picture->edges++];
    double gbps;

    *edge = (struct hr_cli_picture_edge){.from = from, .to = to};
    edge->links = hr_topology_links(topology, from, to, HR_LINKS_ALL, &gbps);
    edge->gbps = gbps;
    edge->up = edge->links > 0;
    for (uint32_t p = 0; !edge->up && p < topology->elements[from].port_count; p++) {
        edge->links += topology->elements[from].ports[p].peer == (int32_t)to;
        edge->gbps +=
            topology->elements[from].ports[p].peer == (int32_t)to ? topology->elements[from].ports[p].gbps : 0;
    }
    int32_t number = hr_graph_edge(graph, from, to);
    edge->load = number >= 0 ? load[number] : 0;
}

static int count_ports(const struct hr_topology *topology)
{
    int count = 0;

    for (uint32_t i = 0; i < topology->element_count; i++)
        count += (int)topology->elements[i].port_count;
    return count;
}

int hr_cli_topo_picture(const struct hr_cli_topo *topo, struct hr_cli_picture *picture_out)
{
    const struct hr_topology *topology = topo->topology;
    const struct hr_graph *graph = covers(topo->links) ? topo->links : topo->everything;
    double *load = calloc(graph->edges + 1, sizeof *load);

    picture_out->node = calloc(topology->element_count + 1, sizeof *picture_out->node);
    picture_out->edge = calloc((size_t)count_ports(topology) + 1, sizeof *picture_out->edge);
    if (!load || !picture_out->node || !picture_out->edge) {
        free(load);
        return hr_cli_fail(HR_CLI_FAILED, "out of memory");
    }
    bool loaded = all_to_all_load(graph, load) == 0;
    snprintf(picture_out->title, sizeof picture_out->title, "%.100s%s", topo->title,
             loaded ? ": load when every GPU sends to every other" : "");
    for (uint32_t i = 0; i < topology->element_count; i++) {
        const struct hr_element *element = &topology->elements[i];
        struct hr_cli_picture_node *node = &picture_out->node[picture_out->nodes++];
        node->kind = element->kind;
        if (element->kind == HR_ELEMENT_GPU)
            snprintf(node->label, sizeof node->label, "GPU%d", element->gpu);
        else
            snprintf(node->label, sizeof node->label, "%s", element->name);
        for (uint32_t p = 0; p < element->port_count; p++) {
            bool again = false;
            for (uint32_t q = 0; q < p; q++)
                again = again || element->ports[q].peer == element->ports[p].peer;
            if (!again)
                add_edge(topology, i, (uint32_t)element->ports[p].peer, graph, load, picture_out);
        }
    }
    free(load);
    return HR_CLI_OK;
}
