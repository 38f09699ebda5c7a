/*
 * NCCL's topology files (NCCL_TOPO_DUMP_FILE writes them): <system> of <cpu> of nested <pci>, where those with a <gpu> are cards;
 * a <gpu> has <nvlink> (AMD's: <xgmi>) to other cards, to switches, or to its processor. What has no card below it is left out.
 */
#include "simgpu/topology.h"

#include "simgpu/sim.h"

#include <expat.h>

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define MOST_NODES 1024
#define MOST_DEPTH 32
#define CLASS_CARD 0x03
#define CLASS_SWITCH 0x068000

enum kind { OTHER, CPU, PCI };
struct node { /* a <cpu> or <pci> */
    enum kind kind;
    int parent; /* node; -1 */
    bool is_card, is_used;
    int dev, element;
    char bus_id[16], cell[24]; /* cell: what the card's compute capability or architecture is called */
    double lane_gts;
    int lanes;
    enum sg_link_type socket_link;
};
struct tie { /* an <nvlink> */
    int node;
    char target[16];
    int count;
    unsigned long class_;
};

struct reading {
    XML_Parser parser;
    struct node node[MOST_NODES];
    struct tie tie[MOST_NODES];
    int nodes, ties, cards;
    int stack[MOST_DEPTH]; /* node, or -1: an element that is none */
    int depth;
    char *why;
    size_t why_bytes;
    bool failed;
};

static void fail(struct reading *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void fail(struct reading *r, const char *format, ...)
{
    va_list args;
    if (r->failed)
        return;
    r->failed = true;
    va_start(args, format);
    vsnprintf(r->why, r->why_bytes, format, args);
    va_end(args);
}

/* ---- the file ---- */

static const char *attribute(const XML_Char **attributes, const char *name)
{
    for (; *attributes; attributes += 2)
        if (!strcmp(attributes[0], name))
            return attributes[1];
    return "";
}

static void copy_bus_id(char *to, size_t bytes, const char *from)
{
    size_t n = 0;
    for (; from[n] && n + 1 < bytes; n++)
        to[n] = from[n] >= 'a' && from[n] <= 'f' ? (char)(from[n] - 'a' + 'A') : from[n];
    to[n] = 0;
}

static enum sg_link_type socket_link(const XML_Char **attributes)
{
    long model = strtol(attribute(attributes, "modelid"), NULL, 10);
    if (!strcmp(attribute(attributes, "arch"), "arm64"))
        return SG_TYPE_arm_cpu;
    if (!strcmp(attribute(attributes, "arch"), "ppc64"))
        return SG_TYPE_p9_cpu;
    if (!strcmp(attribute(attributes, "vendor"), "AuthenticAMD"))
        return SG_TYPE_xgmi_cpu;
    return model >= 143 ? SG_TYPE_upi_spr : model >= 85 ? SG_TYPE_upi : SG_TYPE_qpi; /* Intel's families in order */
}

static int new_node(struct reading *r, enum kind kind, int parent, const XML_Char **attributes)
{
    if (r->nodes == MOST_NODES) {
        fail(r, "it has more than %d elements", MOST_NODES);
        return -1;
    }
    struct node *n = &r->node[r->nodes];
    *n = (struct node){.kind = kind, .parent = parent, .dev = -1, .element = -1, .lane_gts = 8, .lanes = 16};
    if (kind == CPU) {
        n->socket_link = socket_link(attributes);
        return r->nodes++;
    }
    copy_bus_id(n->bus_id, sizeof n->bus_id, attribute(attributes, "busid"));
    double gts = strtod(attribute(attributes, "link_speed"), NULL);
    long lanes = strtol(attribute(attributes, "link_width"), NULL, 10);
    n->lane_gts = gts > 0 && gts < 1000 ? gts : n->lane_gts;
    n->lanes = lanes > 0 && lanes <= 32 ? (int)lanes : n->lanes;
    return r->nodes++;
}

static void card(struct reading *r, int at, const XML_Char **attributes)
{
    if (at < 0 || r->node[at].kind != PCI) {
        fail(r, "line %lu: a gpu outside of a pci", XML_GetCurrentLineNumber(r->parser));
        return;
    }
    const char *dev = attribute(attributes, "dev"), *gcn = attribute(attributes, "gcn");
    struct node *n = &r->node[at];
    n->is_card = true;
    n->dev = *dev ? (int)strtol(dev, NULL, 10) : r->cards;
    r->cards++;
    snprintf(n->cell, sizeof n->cell, "%s", *gcn ? gcn : attribute(attributes, "sm"));
    for (int up = at; up >= 0; up = r->node[up].parent)
        r->node[up].is_used = true;
}

static void tie(struct reading *r, int at, const XML_Char **attributes)
{
    if (at < 0 || !r->node[at].is_card || r->ties == MOST_NODES) {
        fail(r, "line %lu: a link that belongs to no gpu", XML_GetCurrentLineNumber(r->parser));
        return;
    }
    struct tie *t = &r->tie[r->ties++];
    t->node = at;
    copy_bus_id(t->target, sizeof t->target, attribute(attributes, "target"));
    t->class_ = strtoul(attribute(attributes, "tclass"), NULL, 16);
    long count = strtol(attribute(attributes, "count"), NULL, 10);
    t->count = (int)count;
    if (count < 1 || count > 64)
        fail(r, "line %lu: count is not from 1 to 64", XML_GetCurrentLineNumber(r->parser));
}

static void begin(void *user, const XML_Char *name, const XML_Char **attributes)
{
    struct reading *r = user;
    if (r->failed)
        return;
    if (r->depth == MOST_DEPTH) {
        fail(r, "it is nested deeper than %d", MOST_DEPTH);
        return;
    }
    int above = -1;
    for (int i = r->depth - 1; i >= 0 && above < 0; i--)
        above = r->stack[i];
    int made = -1;
    if (!r->depth && strcmp(name, "system") != 0)
        fail(r, "it does not begin with <system>");
    else if (!strcmp(name, "cpu"))
        made = new_node(r, CPU, -1, attributes);
    else if (!strcmp(name, "pci"))
        made = new_node(r, PCI, above, attributes);
    else if (!strcmp(name, "gpu"))
        card(r, above, attributes);
    else if (!strcmp(name, "nvlink") || !strcmp(name, "xgmi"))
        tie(r, above, attributes);
    r->stack[r->depth++] = made;
}

static void end(void *user, const XML_Char *name)
{
    struct reading *r = user;
    (void)name;
    if (!r->failed)
        r->depth--;
}

static void parse(struct reading *r, const char *path)
{
    char text[4096];
    FILE *f = fopen(path, "re");
    if (!f) {
        fail(r, "%s", strerror(errno));
        return;
    }
    r->parser = XML_ParserCreate(NULL);
    if (!r->parser) {
        fail(r, "out of memory");
        fclose(f);
        return;
    }
    XML_SetUserData(r->parser, r);
    XML_SetElementHandler(r->parser, begin, end);
    bool last;
    do {
        size_t bytes = fread(text, 1, sizeof text, f);
        last = bytes < sizeof text;
        if (ferror(f))
            fail(r, "it cannot be read");
        else if (XML_Parse(r->parser, text, (int)bytes, last) == XML_STATUS_ERROR)
            fail(r, "line %lu: %s", XML_GetCurrentLineNumber(r->parser), XML_ErrorString(XML_GetErrorCode(r->parser)));
    } while (!last && !r->failed);
    XML_ParserFree(r->parser);
    fclose(f);
}

/* ---- from the file to a machine ---- */

static const char *model_of(const char *cell)
{
    static const char *const known[][2] = {{"70", "v100"},        {"80", "a100-sxm"},        {"89", "rtx4090"},
                                           {"90", "h100"},        {"gfx90a", "mi250x-die"},  {"90a", "mi250x-die"},
                                           {"910", "mi250x-die"}, {"gfx942", "mi300x-card"}, {"942", "mi300x-card"}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (!strcmp(cell, known[i][0]))
            return known[i][1];
    return NULL;
}

static const struct sg_model *one_model(struct reading *r)
{
    const struct node *first = NULL;
    for (int i = 0; i < r->nodes; i++) {
        const struct node *n = &r->node[i];
        if (!n->is_card)
            continue;
        first = first ? first : n;
        if (strcmp(n->cell, first->cell) != 0) {
            fail(r, "it has cards of different kinds (%s and %s)", first->cell, n->cell);
            return NULL;
        }
    }
    const char *key = first ? model_of(first->cell) : NULL;
    if (!key)
        fail(r, "there is no model of cards of sm %s; add model=NAME", first ? first->cell : "");
    return key ? sg_model_find(key, strlen(key)) : NULL;
}

static enum sg_link_type nvlink_of(const struct sg_model *m)
{
    if (!strncmp(m->key, "mi250x", 6))
        return SG_TYPE_xgmi2;
    if (!strncmp(m->key, "mi300x", 6))
        return SG_TYPE_xgmi3;
    return m->major >= 9 ? SG_TYPE_nvlink4 : m->major == 8 ? SG_TYPE_nvlink3 : SG_TYPE_nvlink2;
}

/* What one lane reaches, in the measure of the whole links of nodes.def. */
static double lane_gbps(double gts)
{
    const struct sg_link_figures *f = gts < 12   ? &sg_link_types[SG_TYPE_pcie3]
                                      : gts < 24 ? &sg_link_types[SG_TYPE_pcie4]
                                                 : &sg_link_types[SG_TYPE_pcie5];
    double full_gts = gts < 12 ? 8 : gts < 24 ? 16 : 32;
    return f->gbps / 16 * gts / full_gts;
}

static void add_cards(struct reading *r, struct sg_topology *t)
{
    for (int i = 0; i < t->cards && !r->failed; i++) { /* as the devices are numbered */
        int chosen = -1;
        for (int n = 0; n < r->nodes; n++)
            if (r->node[n].is_card && r->node[n].element < 0 && (chosen < 0 || r->node[n].dev < r->node[chosen].dev))
                chosen = n;
        struct node *n = &r->node[chosen];
        if (strlen(n->bus_id) != 12 || n->bus_id[4] != ':' || n->bus_id[7] != ':' || n->bus_id[10] != '.')
            fail(r, "the card dev=%d has no busid such as 0000:17:00.0", n->dev);
        n->element = sg_topology_add(t, SG_ELEMENT_CARD, n->bus_id);
    }
}

static int card_at(const struct sg_topology *t, const char *bus_id)
{
    for (int i = 0; i < t->cards; i++)
        if (!strcasecmp(t->element[i].bus_id, bus_id))
            return i;
    return -1;
}

static int switch_at(struct reading *r, struct sg_topology *t, const char *bus_id)
{
    for (uint32_t i = (uint32_t)t->cards; i < t->count; i++)
        if (t->element[i].kind == SG_ELEMENT_SWITCH && !strcasecmp(t->element[i].bus_id, bus_id))
            return (int)i;
    int made = sg_topology_add(t, SG_ELEMENT_SWITCH, bus_id);
    if (made < 0)
        fail(r, "it has more than %d elements", SG_MOST_ELEMENTS);
    return made;
}

static void add_links(struct reading *r, struct sg_topology *t, int a, int b, int count, enum sg_link_type type)
{
    const struct sg_link_figures *f = &sg_link_types[type];
    for (int i = 0; i < count && !r->failed; i++)
        if (!sg_topology_link(t, a, b, SG_LINK_NVLINK, f->gbps, f->latency_ns))
            fail(r, "an element has more than %d links", SG_MOST_PORTS);
}

static int socket_of(const struct reading *r, int node)
{
    while (r->node[node].parent >= 0)
        node = r->node[node].parent;
    return r->node[node].element;
}

/* Links between cards stand in the file twice, at either end. */
static void add_ties(struct reading *r, struct sg_topology *t)
{
    enum sg_link_type type = nvlink_of(t->model);
    for (int i = 0; i < r->ties && !r->failed; i++) {
        const struct tie *at = &r->tie[i];
        int from = r->node[at->node].element, to = card_at(t, at->target);
        if (to >= 0) {
            bool twice = false;
            for (int k = 0; k < i; k++)
                twice |= r->node[r->tie[k].node].element == to && card_at(t, r->tie[k].target) == from;
            if (!twice)
                add_links(r, t, from, to, at->count, type);
        } else if (at->class_ == CLASS_SWITCH) {
            to = switch_at(r, t, at->target);
            add_links(r, t, from, to < 0 ? from : to, at->count, type);
        } else if (at->class_ >> 16 == CLASS_CARD) {
            fail(r, "card %s is linked to %s, which is not there", r->node[at->node].bus_id, at->target);
        } else if (socket_of(r, at->node) >= 0) {
            add_links(r, t, from, socket_of(r, at->node), at->count, type);
        }
    }
}

static void add_tree(struct reading *r, struct sg_topology *t)
{
    for (int i = 0; i < r->nodes && !r->failed; i++) {
        struct node *n = &r->node[i];
        if (n->is_card || (n->kind == PCI && !n->is_used))
            continue;
        n->element = sg_topology_add(t, n->kind == CPU ? SG_ELEMENT_SOCKET : SG_ELEMENT_BRIDGE, n->bus_id);
        if (n->element < 0)
            fail(r, "it has more than %d elements", SG_MOST_ELEMENTS);
    }
}

static void add_tree_links(struct reading *r, struct sg_topology *t)
{
    const struct node *socket = NULL;
    for (int i = 0; i < r->nodes && !r->failed; i++) {
        const struct node *n = &r->node[i];
        if (n->kind == PCI && n->is_used && n->parent >= 0 &&
            !sg_topology_link(t, n->element, r->node[n->parent].element, SG_LINK_PCIE,
                              lane_gbps(n->lane_gts) * n->lanes, sg_link_types[SG_TYPE_pcie4].latency_ns))
            fail(r, "an element has more than %d links", SG_MOST_PORTS);
        if (n->kind != CPU)
            continue;
        for (int k = 0; k < i; k++) { /* every two sockets */
            const struct sg_link_figures *f = &sg_link_types[n->socket_link];
            if (r->node[k].kind == CPU &&
                !sg_topology_link(t, r->node[k].element, n->element, SG_LINK_SOCKET, f->gbps, f->latency_ns))
                fail(r, "an element has more than %d links", SG_MOST_PORTS);
        }
        socket = n;
    }
    if (!socket)
        fail(r, "it has no cpu");
}

static struct sg_topology *make(struct reading *r, const char *path, const struct sg_model *model)
{
    struct sg_topology *t = calloc(1, sizeof *t);
    if (!t) {
        fail(r, "out of memory");
        return NULL;
    }
    const char *name = strrchr(path, '/');
    snprintf(t->key, sizeof t->key, "%s", name ? name + 1 : path);
    t->cards = r->cards;
    t->model = model ? model : one_model(r);
    if (!r->failed)
        add_cards(r, t);
    if (!r->failed)
        add_tree(r, t);
    if (!r->failed)
        add_ties(r, t);
    if (!r->failed)
        add_tree_links(r, t);
    if (r->failed) {
        sg_topology_free(t);
        t = NULL;
    }
    return t;
}

struct sg_topology *sg_topology_read(const char *path, const struct sg_model *model, char *why, size_t why_bytes)
{
    struct sg_topology *t = NULL;
    struct reading *r = calloc(1, sizeof *r);
    if (!r) {
        snprintf(why, why_bytes, "out of memory");
        return NULL;
    }
    r->why = why;
    r->why_bytes = why_bytes;
    parse(r, path);
    if (!r->failed && (r->cards < 1 || r->cards > SG_MOST_CARDS))
        fail(r, "it has %d cards; 1 to %d are possible", r->cards, SG_MOST_CARDS);
    if (!r->failed)
        t = make(r, path, model);
    free(r);
    return t;
}
