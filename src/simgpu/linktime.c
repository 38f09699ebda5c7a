/*
 * Links in virtual time. Each way is a line of its own, which one operation has at a time, for as long as its bytes take there: a
 * copy holds the slowest of its ways from its start to its end, the others for less, and what shares a way with it goes before
 * or after. Kernels' traffic is counted, and bounds how fast the kernel can be, but holds no way: kernels and copies do not
 * slow each other down here.
 */
#include "simgpu/fabric.h"

#include "simgpu/sim.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MANY_STEPS 4096
#define MOST_NOTES 100000

static struct line {
    struct sg_profile profile;
    uint16_t element, port;
    double gbps;
    uint64_t floor_ns; /* nothing is placed before */
    uint64_t copies, copied_bytes, copy_ns, kernel_bytes, kernel_ns;
} * lines;
static uint32_t line_count;

struct note { /* for the timeline */
    uint32_t way;
    uint64_t start_ns, end_ns, bytes;
};
static struct {
    struct note *at;
    size_t count, room;
} notes;

bool sg_links_start(void)
{
    const struct sg_topology *t = sg.config.topology;
    for (uint32_t i = 0; i < t->count; i++)
        line_count += t->element[i].ports;
    lines = calloc(line_count ? line_count : 1, sizeof *lines);
    if (!lines)
        return false;
    uint32_t way = 0;
    for (uint32_t i = 0; i < t->count; i++) {
        for (uint32_t p = 0; p < t->element[i].ports; p++, way++) {
            struct sg_node_port port = {0};
            sg_router_port(sg_node_router(), (int)i, (int)p, &port);
            lines[way].profile.capacity = 1;
            lines[way].element = (uint16_t)i;
            lines[way].port = (uint16_t)p;
            lines[way].gbps = port.gbps;
        }
    }
    return true;
}

static uint64_t use_ns(const struct sg_use *use)
{
    return (uint64_t)((double)use->bytes / lines[use->way].gbps + 0.5);
}

uint64_t sg_links_ns(const struct sg_usage *u)
{
    uint64_t most = 0;
    for (uint32_t i = 0; i < u->count; i++) {
        uint64_t ns = use_ns(&u->at[i]);
        most = ns > most ? ns : most;
    }
    return most;
}

static uint64_t fixed_duration(const void *of, uint64_t start_ns, uint32_t units)
{
    (void)start_ns, (void)units;
    return *(const uint64_t *)of;
}

/* From when on, not before start_ns, each of the ways is free for as long as it is needed. */
static uint64_t all_free(const struct sg_usage *u, uint64_t start_ns)
{
    for (uint32_t i = 0; i < u->count; i++) {
        const struct line *l = &lines[u->at[i].way];
        uint64_t ns = use_ns(&u->at[i]), from = start_ns > l->floor_ns ? start_ns : l->floor_ns;
        struct sg_slot slot = sg_profile_find(&l->profile, from, 1, 1, fixed_duration, &ns);
        start_ns = slot.start_ns;
    }
    return start_ns;
}

struct sg_slot sg_links_find(const struct sg_vop *v, enum sg_line line, int device, uint64_t ready_ns)
{
    for (;;) {
        struct sg_slot slot = sg_timed_find(v, line, device, ready_ns);
        if (v->kind == SG_OP_KERNEL)
            return slot;
        ready_ns = all_free(&v->usage, slot.start_ns);
        if (ready_ns == slot.start_ns && all_free(&v->usage, ready_ns) == ready_ns)
            return slot;
    }
}

static void put_note(uint32_t way, uint64_t start_ns, uint64_t end_ns, uint64_t bytes)
{
    if (!sg.config.timeline[0] || notes.count == MOST_NOTES)
        return;
    if (notes.count == notes.room) {
        size_t room = notes.room ? 2 * notes.room : 1024;
        struct note *more = realloc(notes.at, room * sizeof *more);
        if (!more)
            return;
        notes.at = more;
        notes.room = room;
    }
    notes.at[notes.count++] = (struct note){way, start_ns, end_ns, bytes};
}

static void trim(struct line *l)
{
    struct sg_profile *p = &l->profile;
    if (p->count <= MANY_STEPS)
        return;
    size_t keep = p->count / 2;
    l->floor_ns = p->step[keep].at_ns;
    memmove(p->step, p->step + keep, (p->count - keep) * sizeof p->step[0]);
    p->count -= keep;
}

void sg_links_add(const struct sg_vop *v, uint64_t start_ns)
{
    for (uint32_t i = 0; i < v->usage.count; i++) {
        const struct sg_use *use = &v->usage.at[i];
        struct line *l = &lines[use->way];
        uint64_t ns = use_ns(use);
        if (v->kind == SG_OP_KERNEL) {
            l->kernel_bytes += use->bytes;
            l->kernel_ns += ns;
            continue;
        }
        l->copies++;
        l->copied_bytes += use->bytes;
        l->copy_ns += ns;
        sg_profile_add(&l->profile, &(struct sg_slot){start_ns, start_ns + ns, 1});
        trim(l);
        put_note(use->way, start_ns, start_ns + ns, use->bytes);
    }
}

/* ---- the report and the timeline ---- */

void sg_links_report(FILE *f)
{
    const char *separator = "\n";
    fprintf(f, "  \"links\": [");
    for (uint32_t i = 0; i < line_count; i++) {
        const struct line *l = &lines[i];
        struct sg_node_port p;
        struct sg_node_counters c;
        if (sg_router_port(sg_node_router(), l->element, l->port, &p) || p.peer_element < 0 ||
            sg_router_counters(sg_node_router(), l->element, l->port, &c))
            continue;
        fprintf(f, "%s    {\"element\": %d, \"port\": %d, \"to\": %d, \"up\": %s, \"gbps\": %.3f, ", separator,
                l->element, l->port, p.peer_element, p.up ? "true" : "false", l->gbps);
        fprintf(f, "\"copies\": %" PRIu64 ", \"copied_bytes\": %" PRIu64 ", \"copy_ns\": %" PRIu64 ", ", l->copies,
                l->copied_bytes, l->copy_ns);
        fprintf(f, "\"kernel_bytes\": %" PRIu64 ", \"kernel_ns\": %" PRIu64 ", ", l->kernel_bytes, l->kernel_ns);
        fprintf(f, "\"requests\": %" PRIu64 ", \"request_bytes\": %" PRIu64 ", \"forwarded_bytes\": %" PRIu64 "}",
                c.requests, c.bytes, c.forwarded_bytes);
        separator = ",\n";
    }
    fprintf(f, "],\n");
}

void sg_links_timeline(FILE *f)
{
    fprintf(f, "  \"links\": [");
    for (size_t i = 0; i < notes.count; i++) {
        const struct note *n = &notes.at[i];
        fprintf(f,
                "%s    {\"element\": %d, \"port\": %d, \"start_ns\": %" PRIu64 ", \"end_ns\": %" PRIu64
                ", \"bytes\": %" PRIu64 "}",
                i ? ",\n" : "\n", lines[n->way].element, lines[n->way].port, n->start_ns, n->end_ns, n->bytes);
    }
    fprintf(f, "],\n");
}
