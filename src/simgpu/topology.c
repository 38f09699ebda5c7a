/* The machines of nodes.def as graphs, and what lies between two cards of a graph. */
#include "simgpu/topology.h"

#include "simgpu/sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct sg_link_figures sg_link_types[SG_LINK_TYPES] = {
#define SG_LINK_TYPE(name, kind, gbps, latency_ns, source) {#name, SG_LINK_##kind, gbps, latency_ns},
#include "simgpu/noderows.h"
};

enum shape { MACHINE, CARD_AT, LINKS, MESH, STAR, LEAVES, CHAIN };
struct row {
    enum shape shape;
    const char *text, *model;
    enum sg_link_type type;
    int a, b, c, d, count;
};

/* Ends of links: kind and number. */
#define END(kind, i) ((kind) << 8 | (i))
#define CARD(i) END(SG_ELEMENT_CARD, i)
#define SWITCH(i) END(SG_ELEMENT_SWITCH, i)
#define BRIDGE(i) END(SG_ELEMENT_BRIDGE, i)
#define SOCKET(i) END(SG_ELEMENT_SOCKET, i)

static const struct row rows[] = {
#define SG_MACHINE(key, model_, cards, sockets, source)                                                                \
    {.shape = MACHINE, .text = key, .model = model_, .a = cards, .b = sockets},
#define SG_CARD_AT(card, bus_id, source) {.shape = CARD_AT, .text = bus_id, .a = card},
#define SG_ROW(shape_, type_, a_, b_, c_, d_, count_)                                                                  \
    {.shape = shape_, .type = SG_TYPE_##type_, .a = a_, .b = b_, .c = c_, .d = d_, .count = count_},
#include "simgpu/noderows.h"
};
#define ROWS (sizeof rows / sizeof rows[0])

int sg_topology_add(struct sg_topology *t, enum sg_element_kind kind, const char *bus_id)
{
    if (t->count == SG_MOST_ELEMENTS)
        return -1;
    struct sg_topo_element *e = &t->element[t->count];
    e->kind = kind;
    snprintf(e->bus_id, sizeof e->bus_id, "%s", bus_id ? bus_id : "");
    return (int)t->count++;
}

bool sg_topology_link(struct sg_topology *t, int a, int b, enum sg_link_kind kind, double gbps, uint32_t latency_ns)
{
    struct sg_topo_element *one = &t->element[a], *two = &t->element[b];
    if (a == b || one->ports == SG_MOST_PORTS || two->ports == SG_MOST_PORTS)
        return false;
    if (t->links == t->room) {
        size_t room = t->room ? 2 * t->room : 64;
        struct sg_topo_link *more = realloc(t->link, room * sizeof *more);
        if (!more)
            return false;
        t->link = more;
        t->room = room;
    }
    t->link[t->links++] = (struct sg_topo_link){
        (uint16_t)a, (uint16_t)one->ports++, (uint16_t)b, (uint16_t)two->ports++, kind, gbps, latency_ns};
    return true;
}

void sg_topology_free(struct sg_topology *t)
{
    if (t)
        free(t->link);
    free(t);
}

/* ---- machines of nodes.def ---- */

/* The element of an end; elements between the cards and it are made in order of their first mention. */
static int element_of(const struct sg_topology *t, const int *first, int end)
{
    int kind = end >> 8, i = end & 0xff;
    return kind == SG_ELEMENT_CARD ? (i < t->cards ? i : -1) : first[kind] + i;
}

static bool some_links(struct sg_topology *t, const struct row *row, const int *first, int a, int b)
{
    const struct sg_link_figures *f = &sg_link_types[row->type];
    bool ok = true;
    for (int i = 0; i < row->count && ok; i++)
        ok = sg_topology_link(t, element_of(t, first, a), element_of(t, first, b), f->kind, f->gbps, f->latency_ns);
    return ok;
}

static bool add_row(struct sg_topology *t, const struct row *row, const int *first)
{
    bool ok = true;
    switch (row->shape) {
    case CARD_AT: snprintf(t->element[row->a].bus_id, sizeof t->element[row->a].bus_id, "%s", row->text); break;
    case LINKS: return some_links(t, row, first, row->a, row->b);
    case MESH:
        for (int a = row->a; a <= row->b; a++)
            for (int b = a + 1; b <= row->b && ok; b++)
                ok = some_links(t, row, first, CARD(a), CARD(b));
        break;
    case STAR:
        for (int a = row->a; a <= row->b; a++)
            for (int s = row->c; s <= row->d && ok; s++)
                ok = some_links(t, row, first, CARD(a), SWITCH(s));
        break;
    case LEAVES:
        for (int a = row->a; a <= row->b && ok; a++)
            ok = some_links(t, row, first, CARD(a), row->c);
        break;
    case CHAIN:
        for (int a = row->a; a < row->b && ok; a++)
            ok = some_links(t, row, first, CARD(a), CARD(a + 1));
        break;
    default: break;
    }
    return ok;
}

/* How many elements of a kind the rows name. */
static int count_of(const struct row *from, const struct row *to, int kind)
{
    int most = 0;
    for (const struct row *r = from; r < to; r++) {
        int ends[3] = {-1, -1, -1};
        if (r->shape == LINKS)
            ends[0] = r->a, ends[1] = r->b;
        else if (r->shape == LEAVES)
            ends[0] = r->c;
        else if (r->shape == STAR)
            ends[0] = SWITCH(r->d);
        for (int i = 0; i < 3; i++)
            if (ends[i] >= 0 && ends[i] >> 8 == kind && (ends[i] & 0xff) >= most)
                most = (ends[i] & 0xff) + 1;
    }
    return most;
}

static struct sg_topology *build(const struct row *machine)
{
    const struct row *end = machine + 1;
    while (end < rows + ROWS && end->shape != MACHINE)
        end++;
    struct sg_topology *t = calloc(1, sizeof *t);
    if (!t)
        return NULL;
    snprintf(t->key, sizeof t->key, "%s", machine->text);
    t->model = sg_model_find(machine->model, strlen(machine->model));
    t->cards = machine->a;
    for (int i = 0; i < t->cards; i++) {
        char bus_id[16]; /* where nobody has told: one bus after the other */
        snprintf(bus_id, sizeof bus_id, "0000:%02X:00.0", (0x10u + 8u * (unsigned)i) & 0xff);
        sg_topology_add(t, SG_ELEMENT_CARD, bus_id);
    }
    int first[4] = {0};
    for (int kind = SG_ELEMENT_SWITCH; kind <= SG_ELEMENT_SOCKET; kind++) {
        first[kind] = (int)t->count;
        int n = kind == SG_ELEMENT_SOCKET ? machine->b : count_of(machine + 1, end, kind);
        for (int i = 0; i < n; i++) {
            char bus_id[16]; /* switches are PCI devices as well; where, nobody has told */
            snprintf(bus_id, sizeof bus_id, "0000:%02X:00.0", (0xf0u + (unsigned)i) & 0xff);
            sg_topology_add(t, (enum sg_element_kind)kind, kind == SG_ELEMENT_SWITCH ? bus_id : NULL);
        }
    }
    bool ok = t->model != NULL;
    for (const struct row *r = machine + 1; r < end && ok; r++)
        ok = add_row(t, r, first);
    if (!ok) {
        sg_topology_free(t);
        t = NULL;
    }
    return t;
}

struct sg_topology *sg_topology_find(const char *key, size_t key_bytes)
{
    for (size_t i = 0; i < ROWS; i++)
        if (rows[i].shape == MACHINE && strlen(rows[i].text) == key_bytes && !memcmp(rows[i].text, key, key_bytes))
            return build(&rows[i]);
    return NULL;
}

const char *sg_topology_names(void)
{
    static const char names[] =
#define SG_MACHINE(key, model, cards, sockets, source) key ", "
#include "simgpu/noderows.h"
        ;
    static char text[sizeof names]; /* without what follows the last name */
    memcpy(text, names, sizeof names - 3);
    return text;
}

/* ---- what lies between ---- */

/* Steps from card a to card b over links of these kinds and elements between them of those; -1: no way. previous[] leads back. */
static int steps(const struct sg_topology *t, int a, int b, unsigned links, unsigned kinds, uint16_t *previous)
{
    uint16_t queue[SG_MOST_ELEMENTS];
    int distance[SG_MOST_ELEMENTS];
    size_t head = 0, tail = 0;
    for (uint32_t i = 0; i < t->count; i++)
        distance[i] = -1;
    distance[a] = 0;
    queue[tail++] = (uint16_t)a;
    while (head < tail && distance[b] < 0) {
        uint16_t at = queue[head++];
        if (at != a && !(kinds >> t->element[at].kind & 1))
            continue;
        for (size_t i = 0; i < t->links; i++) {
            const struct sg_topo_link *l = &t->link[i];
            if (!(links >> l->kind & 1) || (l->a != at && l->b != at))
                continue;
            uint16_t next = l->a == at ? l->b : l->a;
            if (distance[next] >= 0)
                continue;
            distance[next] = distance[at] + 1;
            previous[next] = at;
            queue[tail++] = next;
        }
    }
    return distance[b];
}

enum sg_nearness sg_topology_pcie_between(const struct sg_topology *t, int a, int b)
{
    uint16_t previous[SG_MOST_ELEMENTS];
    unsigned kinds = 1u << SG_ELEMENT_BRIDGE | 1u << SG_ELEMENT_SOCKET;
    if (steps(t, a, b, 1u << SG_LINK_PCIE | 1u << SG_LINK_SOCKET, kinds, previous) < 0)
        return SG_NEAR_NOTHING;
    unsigned bridges = 0, sockets = 0;
    for (int at = previous[b]; at != a; at = previous[at]) {
        bridges += t->element[at].kind == SG_ELEMENT_BRIDGE;
        sockets += t->element[at].kind == SG_ELEMENT_SOCKET;
    }
    if (sockets)
        return sockets > 1 ? SG_NEAR_SOCKETS : SG_NEAR_SOCKET;
    return bridges > 1 ? SG_NEAR_BRIDGES : SG_NEAR_BRIDGE;
}

enum sg_nearness sg_topology_between(const struct sg_topology *t, int a, int b)
{
    uint16_t previous[SG_MOST_ELEMENTS];
    if (steps(t, a, b, 1u << SG_LINK_NVLINK, 1u << SG_ELEMENT_SWITCH, previous) > 0)
        return SG_NEAR_NVLINK;
    return sg_topology_pcie_between(t, a, b);
}
