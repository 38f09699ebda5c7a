/*
 * Which ways the job's own traffic takes: along the tables that were written, or, without them, as hardware does by itself: all
 * links between two cards side by side, over NVLink switches if need be, else PCIe.
 */
#include "simgpu/fabric.h"

#include "simgpu/sim.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define REQUEST_BYTES (UINT64_C(64) << 10) /* what an engine asks for at once */
#define MOST_REQUESTS 64                   /* of a kernel: then they are larger */
#define MOST_PARTS 192                     /* a DGX-2 takes 60 */

#define NVLINK (1u << SG_LINK_NVLINK)
#define PCIE (1u << SG_LINK_PCIE | 1u << SG_LINK_SOCKET)
#define OVER_SWITCHES (1u << SG_ELEMENT_SWITCH)
#define OVER_PCIE (1u << SG_ELEMENT_BRIDGE | 1u << SG_ELEMENT_SOCKET)

struct part { /* of a plan: a share of the bytes goes this way */
    uint16_t element, port;
    bool forwarded;
    double share;
};
struct plan {
    bool made;
    uint64_t epoch;
    uint32_t count, latency_ns;
    struct part part[MOST_PARTS];
};

static pthread_mutex_t plans_lock = PTHREAD_MUTEX_INITIALIZER; /* a leaf; taken under sg.lock or without */
static struct plan plans[SG_MOST_CARDS][SG_MOST_CARDS];

void sg_usage_add(struct sg_usage *u, uint32_t way, uint64_t bytes)
{
    for (uint32_t i = 0; i < u->count; i++) {
        if (u->at[i].way == way) {
            u->at[i].bytes += bytes;
            return;
        }
    }
    if (u->count == u->room) {
        uint32_t room = u->room ? 2 * u->room : 8;
        struct sg_use *more = realloc(u->at, room * sizeof *more);
        if (!more)
            return;
        u->at = more;
        u->room = room;
    }
    u->at[u->count++] = (struct sg_use){way, bytes};
}

void sg_usage_free(struct sg_usage *u)
{
    free(u->at);
    *u = (struct sg_usage){0};
}

/* ---- without tables ---- */

struct spread { /* of all bytes over the shortest ways to one element */
    int distance[SG_MOST_ELEMENTS];
    double flow[SG_MOST_ELEMENTS];
    uint16_t order[SG_MOST_ELEMENTS]; /* by distance, the goal first */
    uint32_t reached;
};

static bool is_usable(const struct sg_topo_link *l, unsigned links)
{
    struct sg_node_port p;
    return links >> l->kind & 1 && !sg_router_port(sg_node_router(), l->a, l->a_port, &p) && p.up;
}

static void measure(const struct sg_topology *t, int from, int to, unsigned links, unsigned kinds, struct spread *s)
{
    for (uint32_t i = 0; i < t->count; i++) {
        s->distance[i] = -1;
        s->flow[i] = 0;
    }
    s->reached = 0;
    s->distance[to] = 0;
    s->order[s->reached++] = (uint16_t)to;
    for (uint32_t head = 0; head < s->reached; head++) {
        uint16_t at = s->order[head];
        if (at != to && (at == from || !(kinds >> t->element[at].kind & 1)))
            continue;
        for (size_t i = 0; i < t->links; i++) {
            const struct sg_topo_link *l = &t->link[i];
            uint16_t next = l->a == at ? l->b : l->a;
            if ((l->a != at && l->b != at) || s->distance[next] >= 0 || !is_usable(l, links))
                continue;
            s->distance[next] = s->distance[at] + 1;
            s->order[s->reached++] = next;
        }
    }
}

/* Divides what an element has over its links that lead nearer, by their speed. */
static void divide(const struct sg_topology *t, struct spread *s, uint16_t at, unsigned links, int from,
                   struct plan *plan)
{
    double sum = 0;
    uint32_t latency = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < t->links; i++) {
            const struct sg_topo_link *l = &t->link[i];
            uint16_t next = l->a == at ? l->b : l->a;
            if ((l->a != at && l->b != at) || s->distance[next] != s->distance[at] - 1 || !is_usable(l, links))
                continue;
            if (!pass) {
                sum += l->gbps;
                latency = l->latency_ns > latency ? l->latency_ns : latency;
            } else if (plan->count < MOST_PARTS) {
                double share = s->flow[at] * l->gbps / sum;
                plan->part[plan->count++] = (struct part){at, l->a == at ? l->a_port : l->b_port, at != from, share};
                s->flow[next] += share;
            }
        }
    }
    if (s->distance[at] > 0 && s->flow[at] > 0)
        plan->latency_ns += latency;
}

static bool plan_make(int from, int to, unsigned links, unsigned kinds, struct plan *plan)
{
    const struct sg_topology *t = sg.config.topology;
    struct spread s;
    measure(t, from, to, links, kinds, &s);
    plan->count = plan->latency_ns = 0;
    if (s.distance[from] < 0)
        return false;
    s.flow[from] = 1;
    int last = -1;
    for (uint32_t i = s.reached; i-- > 0;) {
        uint16_t at = s.order[i];
        uint32_t before = plan->latency_ns;
        if (s.flow[at] > 0 && at != to)
            divide(t, &s, at, links, from, plan);
        if (s.distance[at] == last) /* one step of several side by side */
            plan->latency_ns = before;
        else if (plan->latency_ns != before)
            last = s.distance[at];
    }
    return true;
}

/* False: no link is left. */
static bool plan_get(int from, int to, struct plan *plan_out)
{
    struct plan *p = &plans[from][to];
    uint64_t epoch = sg_router_epoch(sg_node_router());
    pthread_mutex_lock(&plans_lock);
    if (!p->made || p->epoch != epoch) {
        if (!plan_make(from, to, NVLINK, OVER_SWITCHES, p) && sg_node_between(from, to) != SG_NEAR_NVLINK)
            plan_make(from, to, PCIE, OVER_PCIE, p);
        p->made = true;
        p->epoch = epoch;
    }
    memcpy(plan_out, p, offsetof(struct plan, part) + p->count * sizeof p->part[0]);
    pthread_mutex_unlock(&plans_lock);
    return plan_out->count > 0;
}

static void note(struct sg_usage *usage, uint32_t way, uint64_t bytes, uint32_t latency_ns)
{
    sg_usage_add(usage, way, bytes);
    usage->latency_ns = latency_ns > usage->latency_ns ? latency_ns : usage->latency_ns;
}

static int follow(const struct plan *plan, uint64_t bytes, struct sg_usage *usage, uint64_t *done_out)
{
    uint64_t done = bytes;
    for (uint32_t i = 0; i < plan->count; i++) {
        const struct part *p = &plan->part[i];
        uint64_t mine = (uint64_t)((double)bytes * p->share + 0.5);
        uint64_t through = sg_router_pass(sg_node_router(), p->element, p->port, mine, p->forwarded);
        note(usage, sg_node_way(p->element, p->port), through, plan->latency_ns);
        uint64_t all = through < mine ? (uint64_t)((double)through / p->share) : bytes;
        done = all < done ? all : done;
    }
    *done_out = done;
    return done < bytes ? -ENETDOWN : 0;
}

static int carry_directly(int from, int to, uint64_t bytes, struct sg_usage *usage, uint64_t *done_out)
{
    struct plan plan;
    *done_out = 0;
    return plan_get(from, to, &plan) ? follow(&plan, bytes, usage, done_out) : -ENETDOWN;
}

static int nearest_socket(const struct sg_topology *t, int card)
{
    struct spread s;
    measure(t, -1, card, PCIE, OVER_PCIE, &s);
    for (uint32_t i = 0; i < s.reached; i++)
        if (t->element[s.order[i]].kind == SG_ELEMENT_SOCKET)
            return s.order[i];
    return -1;
}

/* Into the memory of the nearest socket, and out again. */
static int carry_staged(int from, int to, uint64_t bytes, struct sg_usage *usage, uint64_t *done_out)
{
    struct plan plan;
    int socket = nearest_socket(sg.config.topology, from);
    *done_out = 0;
    if (socket < 0 || !plan_make(from, socket, PCIE, OVER_PCIE, &plan))
        return -ENETDOWN;
    int bad = follow(&plan, bytes, usage, done_out);
    if (bad || !plan_make(socket, to, PCIE, OVER_PCIE, &plan))
        return -ENETDOWN;
    return follow(&plan, bytes, usage, done_out);
}

/* ---- along tables ---- */

struct path {
    struct sg_usage *usage;
    bool backwards; /* what is read flows the other way */
};

static void on_hop(void *context, uint32_t element, uint32_t port, uint64_t bytes)
{
    const struct path *path = context;
    struct sg_node_port p;
    if (path->backwards && !sg_router_port(sg_node_router(), (int)element, (int)port, &p)) {
        element = (uint32_t)p.peer_element;
        port = (uint32_t)p.peer_port;
    }
    sg_usage_add(path->usage, sg_node_way(element, port), bytes);
}

static int ask(int from, uint64_t address, uint64_t bytes, bool write, uint64_t turn, struct sg_usage *usage)
{
    struct path path = {usage, !write};
    struct sg_node_trace trace;
    struct sg_router_request q = {.element = (uint32_t)from,
                                  .address = address,
                                  .bytes = bytes,
                                  .write = write,
                                  .no_data = true,
                                  .turn = turn,
                                  .hop = on_hop,
                                  .hop_context = &path};
    int bad = sg_router_send(sg_node_router(), &q, &trace);
    uint32_t ns = (uint32_t)trace.latency_ns;
    usage->latency_ns = ns > usage->latency_ns ? ns : usage->latency_ns;
    return bad;
}

static bool has_tables(int from, int to, uint64_t *base_out)
{
    struct sg_router *r = sg_node_router();
    return sg_router_knows(r, (uint32_t)from, (uint32_t)to) &&
           sg_router_base(r, (uint32_t)from, (uint32_t)to, base_out);
}

bool sg_node_is_direct(int from, int to, uint64_t dst, uint64_t src)
{
    return sg_page_owner(&sg.devices[from].pagetable, dst) == to ||
           sg_page_owner(&sg.devices[to].pagetable, src) == from;
}

int sg_node_carry(const struct sg_carry *c, struct sg_usage *usage, uint64_t *done_out)
{
    uint64_t base, turn = c->turn;
    if (!has_tables(c->from, c->to, &base))
        return c->direct ? carry_directly(c->from, c->to, c->bytes, usage, done_out)
                         : carry_staged(c->from, c->to, c->bytes, usage, done_out);
    for (*done_out = 0; *done_out < c->bytes; turn++) {
        uint64_t n = c->bytes - *done_out < REQUEST_BYTES ? c->bytes - *done_out : REQUEST_BYTES;
        int bad = ask(c->from, base + c->offset + *done_out, n, true, turn, usage);
        if (bad)
            return bad;
        *done_out += n;
    }
    return 0;
}

static int kernel_one_way(int card, int peer, uint64_t bytes, bool write, uint64_t turn, struct sg_usage *usage)
{
    uint64_t base, done = 0;
    int bad = 0;
    if (!bytes)
        return 0;
    if (!has_tables(card, peer, &base))
        return carry_directly(write ? card : peer, write ? peer : card, bytes, usage, &done);
    uint64_t each = (bytes + MOST_REQUESTS - 1) / MOST_REQUESTS;
    each = each < REQUEST_BYTES ? REQUEST_BYTES : each;
    uint64_t room = sg.config.vram_bytes > each ? sg.config.vram_bytes - each : 1;
    for (uint64_t n; done < bytes; done += n) {
        n = bytes - done < each ? bytes - done : each;
        int now = ask(card, base + done % room, n, write, turn++, usage);
        bad = bad ? bad : now;
    }
    return bad;
}

int sg_node_kernel(int card, int peer, uint64_t read_bytes, uint64_t written_bytes, uint64_t turn,
                   struct sg_usage *usage)
{
    int in = kernel_one_way(card, peer, read_bytes, false, turn, usage);
    int out = kernel_one_way(card, peer, written_bytes, true, turn, usage);
    return in ? in : out;
}

/* ---- the host's side ---- */

void sg_node_host(int card, uint64_t in_bytes, uint64_t out_bytes, struct sg_usage *usage)
{
    int socket = nearest_socket(sg.config.topology, card);
    for (int out = 0; out < 2 && socket >= 0; out++) {
        uint64_t bytes = out ? out_bytes : in_bytes;
        struct plan plan = {0};
        if (bytes && plan_make(out ? card : socket, out ? socket : card, PCIE, OVER_PCIE, &plan))
            for (uint32_t i = 0; i < plan.count; i++)
                sg_usage_add(usage, sg_node_way(plan.part[i].element, plan.part[i].port),
                             (uint64_t)((double)bytes * plan.part[i].share + 0.5));
    }
}
