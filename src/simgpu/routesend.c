/*
 * Requests on their way: from router to router, each of which looks the address up anew.
 *
 * A request is a piece, and may become more: at a range's end, where it is spread over ports, where an address bit chooses the
 * port, and where a link fails. Pieces that wait for their turn lie on a stack of the calling thread, so that depth costs no
 * recursion.
 */
#include "simgpu/routerin.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_ROOM 32
#define MOST_TOLD 20

struct piece {
    uint64_t address, bytes, offset; /* offset: in the request */
    uint32_t element, hops;
    int32_t in_port;  /* by which it arrived; -1: the element's own */
    int32_t out_port; /* chosen already; -1: not */
    uint64_t latency_ns;
    double gbps; /* of the slowest link so far; 0: none yet */
};

struct journey {
    struct sg_router *r;
    const struct sg_router_request *request;
    struct sg_node_trace trace;
    int error;
    struct piece first[FIRST_ROOM], *at;
    size_t count, room;
};

static int push(struct journey *j, const struct piece *p)
{
    if (j->count == j->room) {
        struct piece *more = malloc(2 * j->room * sizeof *more);
        if (!more)
            return -ENOMEM;
        memcpy(more, j->at, j->count * sizeof *more);
        if (j->at != j->first)
            free(j->at);
        j->at = more;
        j->room *= 2;
    }
    j->at[j->count++] = *p;
    return 0;
}

/* The piece keeps its first bytes; the rest is another one, which begins at the same router. */
static int cut(struct journey *j, struct piece *p, uint64_t bytes)
{
    struct piece rest = *p;
    rest.address += bytes;
    rest.offset += bytes;
    rest.bytes -= bytes;
    rest.out_port = -1;
    p->bytes = bytes;
    return push(j, &rest);
}

/* ---- ends ---- */

static void tell(const struct journey *j, const struct piece *p, int error, uint32_t owner)
{
    struct sg_router *r = j->r;
    char why[64], line[256];
    int kind = error == -EFAULT ? 0 : error == -EHOSTUNREACH ? 1 : error == -ENETDOWN ? 2 : 3;
    if (!r->options.log || atomic_fetch_add(&r->told[kind], 1) >= MOST_TOLD)
        return;
    switch (kind) {
    case 0: snprintf(why, sizeof why, "the address is nobody's memory"); break;
    case 1: snprintf(why, sizeof why, "no route to owner %" PRIu32, owner); break;
    case 2: snprintf(why, sizeof why, "all links of the route to owner %" PRIu32 " are down", owner); break;
    default:
        snprintf(why, sizeof why, "%" PRIu32 " hops: the routes to owner %" PRIu32 " lead in circles", p->hops, owner);
    }
    snprintf(line, sizeof line,
             "router of element %" PRIu32 " refuses a %s of %" PRIu64 " bytes at global address 0x%" PRIx64
             " from element %" PRIu32 ": %s",
             p->element, j->request->write ? "write" : "read", p->bytes, p->address, j->request->element, why);
    r->options.log(line);
}

static void note_end(struct journey *j, const struct piece *p, int32_t owner)
{
    struct sg_node_trace *t = &j->trace;
    t->pieces++;
    if (p->hops > t->hops)
        t->hops = p->hops;
    t->hop_total += p->hops;
    if (p->latency_ns > t->latency_ns)
        t->latency_ns = p->latency_ns;
    if (!p->offset)
        t->first_owner = owner;
    if (p->offset + p->bytes == j->request->bytes)
        t->last_owner = owner;
}

static void refuse(struct journey *j, const struct piece *p, int error, uint32_t owner)
{
    atomic_fetch_add_explicit(&j->r->hub[p->element].own.refused, 1, memory_order_relaxed);
    if (!j->error) {
        j->error = error;
        j->trace.refused_at = (int32_t)p->element;
    }
    tell(j, p, error, owner);
    note_end(j, p, -1);
}

static void serve(struct journey *j, const struct piece *p, uint64_t base)
{
    const struct sg_router_request *q = j->request;
    const struct sg_router_options *o = &j->r->options;
    struct sg_hub *h = &j->r->hub[p->element];
    void *data = q->data ? (uint8_t *)q->data + p->offset : NULL;
    int bad = o->serve && !q->no_data
                  ? o->serve(o->serve_context, p->element, p->address - base, p->bytes, q->write, data)
                  : 0;
    if (bad) {
        refuse(j, p, -EFAULT, p->element);
        return;
    }
    struct sg_gate *g = p->in_port < 0 ? &h->own : &h->gate[p->in_port];
    atomic_fetch_add_explicit(&g->served_bytes, p->bytes, memory_order_relaxed);
    uint64_t ns = p->latency_ns + (p->gbps > 0 ? (uint64_t)((double)p->bytes / p->gbps + 0.5) : 0);
    if (ns > j->trace.time_ns)
        j->trace.time_ns = ns;
    j->trace.served_bytes += p->bytes;
    note_end(j, p, (int32_t)p->element);
}

/* ---- ports ---- */

static bool is_up(const struct sg_hub *h, const struct sg_way *way, unsigned i)
{
    return atomic_load_explicit(&h->gate[way->port[i]].up, memory_order_relaxed);
}

/* Spreads a piece over the ports that are up: it keeps its first share, the others wait. */
static int spread(struct journey *j, struct piece *p, const struct sg_way *way)
{
    const struct sg_hub *h = &j->r->hub[p->element];
    uint64_t sum = 0, total = p->bytes, address = p->address, offset = p->offset, begin = 0, so_far = 0;
    uint32_t share[SG_WAY_PORTS];
    for (unsigned i = 0; i < way->port_count; i++) {
        share[i] = is_up(h, way, i) ? way->weight_end[i] - (i ? way->weight_end[i - 1] : 0) : 0;
        sum += share[i];
    }
    if (!sum)
        return -ENETDOWN;
    bool kept = false;
    for (unsigned i = 0; i < way->port_count; i++) {
        if (!share[i])
            continue;
        so_far += share[i];
        uint64_t end =
            so_far == sum ? total : (uint64_t)((double)total * (double)so_far / (double)sum) & ~(SG_SPREAD_BYTES - 1);
        if (end <= begin)
            continue;
        struct piece part = *p;
        part.address = address + begin;
        part.offset = offset + begin;
        part.bytes = end - begin;
        part.out_port = way->port[i];
        begin = end;
        if (kept) {
            int bad = push(j, &part);
            if (bad)
                return bad;
        } else {
            *p = part;
            kept = true;
        }
    }
    return 0;
}

/* Chooses the port of a piece, which may become shorter. */
static int choose(struct journey *j, struct piece *p, struct sg_way *way)
{
    const struct sg_hub *h = &j->r->hub[p->element];
    unsigned first = 0, count = way->port_count;
    if (way->policy == SG_PORT_ALL)
        return spread(j, p, way);
    if (way->policy == SG_PORT_ROUND_ROBIN) {
        uint32_t sum = way->weight_end[count - 1];
        uint64_t turn = j->request->turn == SG_ROUTER_OWN_TURN
                            ? atomic_fetch_add_explicit(&way->turn, 1, memory_order_relaxed)
                            : j->request->turn;
        uint32_t at = (uint32_t)(turn % sum * way->stride % sum);
        while (way->weight_end[first] <= at)
            first++;
    } else if (way->policy == SG_PORT_BY_ADDRESS) {
        uint64_t part = p->address >> way->address_shift, end = (part + 1) << way->address_shift;
        first = (unsigned)(part % count);
        int bad = end - p->address < p->bytes ? cut(j, p, end - p->address) : 0;
        if (bad)
            return bad;
    }
    for (unsigned i = 0; i < count; i++) {
        unsigned at = (first + i) % count;
        if (is_up(h, way, at)) {
            p->out_port = way->port[at];
            return 0;
        }
    }
    return -ENETDOWN;
}

/* How many of the bytes get through before the link fails. */
static uint64_t burn(struct sg_gate *g, uint64_t bytes)
{
    uint64_t left = atomic_load_explicit(&g->fuse, memory_order_relaxed), take;
    do {
        if (left == SG_NO_FUSE)
            return bytes;
        take = left < bytes ? left : bytes;
    } while (!atomic_compare_exchange_weak(&g->fuse, &left, left - take));
    return take;
}

uint64_t sg_router_pass(struct sg_router *r, uint32_t element, uint32_t port, uint64_t bytes, bool forwarded)
{
    struct sg_gate *g = &r->hub[element].gate[port];
    bool up = atomic_load_explicit(&g->up, memory_order_relaxed);
    uint64_t through = up ? burn(g, bytes) : 0;
    if (!atomic_load_explicit(&g->fuse, memory_order_relaxed))
        sg_router_burnt(r, element, port);
    if (through < bytes)
        atomic_fetch_add_explicit(&g->refused, 1, memory_order_relaxed);
    if (!through)
        return 0;
    atomic_fetch_add_explicit(&g->requests, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&g->bytes, through, memory_order_relaxed);
    if (forwarded)
        atomic_fetch_add_explicit(&g->forwarded_bytes, through, memory_order_relaxed);
    return through;
}

/* Over the link. False: the link fails at the piece's first byte, and a port has to be chosen anew. */
static bool hop(struct journey *j, struct piece *p, int *bad_out)
{
    const struct sg_router_request *q = j->request;
    struct sg_gate *g = &j->r->hub[p->element].gate[p->out_port];
    uint64_t through = sg_router_pass(j->r, p->element, (uint32_t)p->out_port, p->bytes, p->in_port >= 0);
    if (through && through < p->bytes)
        *bad_out = cut(j, p, through);
    if (!through) {
        p->out_port = -1;
        return false;
    }
    if (q->hop)
        q->hop(q->hop_context, p->element, (uint32_t)p->out_port, p->bytes);
    p->latency_ns += g->latency_ns;
    p->gbps = p->gbps > 0 && p->gbps < g->gbps ? p->gbps : g->gbps;
    p->hops++;
    p->element = (uint32_t)g->peer_element;
    p->in_port = g->peer_port;
    p->out_port = -1;
    return true;
}

/* What one router does with a piece. True: the piece is at the next router. */
static bool step(struct journey *j, struct piece *p, int *bad_out)
{
    struct sg_hub *h = &j->r->hub[p->element];
    const struct sg_map *map = atomic_load_explicit(&h->map, memory_order_acquire);
    const struct sg_node_range *range = sg_map_find(map, p->address);
    if (!range) {
        refuse(j, p, -EFAULT, 0);
        return false;
    }
    uint64_t rest = range->base + range->bytes - p->address;
    if (rest < p->bytes && (*bad_out = cut(j, p, rest)))
        return false;
    if (range->owner == p->element) {
        serve(j, p, range->base);
        return false;
    }
    struct sg_table *t = atomic_load_explicit(&h->table, memory_order_acquire);
    uint16_t way = t && range->owner < t->owners ? t->way_of[range->owner] : SG_NO_WAY;
    int bad = way == SG_NO_WAY ? -EHOSTUNREACH : p->hops >= j->r->most_hops ? -ELOOP : 0;
    while (!bad) {
        bad = p->out_port < 0 ? choose(j, p, &t->way[way]) : 0;
        if (!bad && hop(j, p, bad_out))
            return !*bad_out;
    }
    if (bad == -ENOMEM)
        *bad_out = bad;
    else
        refuse(j, p, bad, range->owner);
    return false;
}

static int travel(struct journey *j)
{
    int bad = 0;
    while (j->count && !bad) {
        struct piece p = j->at[--j->count];
        while (step(j, &p, &bad))
            ;
    }
    return bad;
}

int sg_router_send(struct sg_router *r, const struct sg_router_request *q, struct sg_node_trace *trace_out)
{
    if (q->element >= r->count || !q->bytes || q->address >> SG_NODE_ADDRESS_BITS ||
        q->bytes > (UINT64_C(1) << SG_NODE_ADDRESS_BITS) - q->address)
        return -EINVAL;
    struct journey j;
    j.r = r;
    j.request = q;
    j.trace = (struct sg_node_trace){.first_owner = -1, .last_owner = -1, .refused_at = -1};
    j.error = 0;
    j.at = j.first;
    j.count = 1;
    j.room = FIRST_ROOM;
    j.first[0] =
        (struct piece){.address = q->address, .bytes = q->bytes, .element = q->element, .in_port = -1, .out_port = -1};
    struct sg_hub *h = &r->hub[q->element];
    atomic_fetch_add_explicit(&h->own.requests, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&h->own.bytes, q->bytes, memory_order_relaxed);
    unsigned phase = sg_router_enter(r);
    int bad = travel(&j);
    sg_router_leave(r, phase);
    if (j.at != j.first)
        free(j.at);
    if (trace_out)
        *trace_out = j.trace;
    return bad ? bad : j.error;
}
