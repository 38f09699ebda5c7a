/* A set of routers: its elements, links and counters. Snapshots are in routetable.c, requests in routesend.c. */
#include "simgpu/routerin.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void gates_init(struct sg_router *r)
{
    for (size_t i = 0; i < r->gate_count; i++) {
        r->gates[i].peer_element = r->gates[i].peer_port = -1;
        atomic_init(&r->gates[i].fuse, SG_NO_FUSE);
    }
}

struct sg_router *sg_router_create(uint32_t elements, const uint32_t *ports, const struct sg_router_options *options)
{
    struct sg_router *r = calloc(1, sizeof *r);
    if (!r)
        return NULL;
    for (uint32_t i = 0; i < elements; i++)
        r->gate_count += ports[i];
    r->hub = calloc(elements ? elements : 1, sizeof *r->hub);
    r->gates = calloc(r->gate_count ? r->gate_count : 1, sizeof *r->gates);
    if (!r->hub || !r->gates) {
        free(r->hub);
        free(r->gates);
        free(r);
        return NULL;
    }
    r->count = elements;
    r->most_hops = 2 * elements + 1;
    if (options)
        r->options = *options;
    gates_init(r);
    struct sg_gate *next = r->gates;
    for (uint32_t i = 0; i < elements; i++, next += ports[i - 1]) {
        r->hub[i].gate = next;
        r->hub[i].gates = ports[i];
    }
    pthread_mutex_init(&r->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&r->changed, &attr);
    pthread_condattr_destroy(&attr);
    return r;
}

static void free_retired(struct sg_retired *list)
{
    while (list) {
        struct sg_retired *next = list->next;
        free(list);
        list = next;
    }
}

void sg_router_destroy(struct sg_router *r)
{
    if (!r)
        return;
    for (uint32_t i = 0; i < r->count; i++)
        free(atomic_load(&r->hub[i].table));
    while (r->maps) {
        struct sg_map *next = r->maps->next;
        free(r->maps);
        r->maps = next;
    }
    free_retired(r->fresh);
    free_retired(r->waiting);
    pthread_cond_destroy(&r->changed);
    pthread_mutex_destroy(&r->lock);
    free(r->gates);
    free(r->hub);
    free(r);
}

void sg_router_retire_locked(struct sg_router *r, struct sg_retired *old)
{
    if (old) {
        old->next = r->fresh;
        r->fresh = old;
    }
    unsigned before = atomic_load(&r->phase) ^ 1;
    if (atomic_load(&r->readers[before]))
        return;
    free_retired(r->waiting);
    r->waiting = r->fresh;
    r->fresh = NULL;
    atomic_store(&r->phase, before);
}

static struct sg_gate *gate_at(const struct sg_router *r, int element, int port)
{
    if (element < 0 || (uint32_t)element >= r->count || port < 0 || (uint32_t)port >= r->hub[element].gates)
        return NULL;
    return &r->hub[element].gate[port];
}

int sg_router_connect(struct sg_router *r, int a, int a_port, int b, int b_port, double gbps, uint32_t latency_ns)
{
    struct sg_gate *one = gate_at(r, a, a_port), *two = gate_at(r, b, b_port);
    if (!one || !two || one == two || one->peer_element >= 0 || two->peer_element >= 0 || !(gbps > 0))
        return -EINVAL;
    one->peer_element = b;
    one->peer_port = b_port;
    two->peer_element = a;
    two->peer_port = a_port;
    one->gbps = two->gbps = gbps;
    one->latency_ns = two->latency_ns = latency_ns;
    atomic_store(&one->up, true);
    atomic_store(&two->up, true);
    return 0;
}

int sg_router_port(const struct sg_router *r, int element, int port, struct sg_node_port *out)
{
    const struct sg_gate *g = gate_at(r, element, port);
    if (!g || !out)
        return -EINVAL;
    *out = (struct sg_node_port){.peer_element = g->peer_element,
                                 .peer_port = g->peer_port,
                                 .up = atomic_load(&g->up),
                                 .latency_ns = g->latency_ns,
                                 .gbps = g->gbps};
    return 0;
}

int sg_router_counters(const struct sg_router *r, int element, int port, struct sg_node_counters *out)
{
    if (!out || element < 0 || (uint32_t)element >= r->count)
        return -EINVAL;
    const struct sg_hub *h = &r->hub[element];
    const struct sg_gate *g = port == -1 ? &h->own : gate_at(r, element, port);
    if (!g)
        return -EINVAL;
    *out = (struct sg_node_counters){.requests = atomic_load(&g->requests),
                                     .bytes = atomic_load(&g->bytes),
                                     .forwarded_bytes = atomic_load(&g->forwarded_bytes),
                                     .served_bytes = atomic_load(&g->served_bytes),
                                     .refused = atomic_load(&g->refused)};
    for (uint32_t i = 0; port == -1 && i < h->gates; i++)
        out->forwarded_bytes += atomic_load(&h->gate[i].forwarded_bytes);
    return 0;
}

/* ---- links ---- */

uint64_t sg_router_epoch(const struct sg_router *r)
{
    return atomic_load(&r->epoch);
}

int sg_router_wait(struct sg_router *r, uint64_t epoch, uint64_t timeout_ns)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    uint64_t seconds = timeout_ns / 1000000000, most = UINT64_C(1) << 32; /* a century */
    until.tv_sec += (time_t)(seconds < most ? seconds : most);
    until.tv_nsec += (long)(timeout_ns % 1000000000);
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    int waited = 0;
    pthread_mutex_lock(&r->lock);
    while (atomic_load(&r->epoch) == epoch && !waited)
        waited = pthread_cond_timedwait(&r->changed, &r->lock, &until);
    bool changed = atomic_load(&r->epoch) != epoch;
    pthread_mutex_unlock(&r->lock);
    return changed ? 0 : -ETIMEDOUT;
}

static void end_set(struct sg_gate *g, bool up)
{
    uint64_t burnt = 0;
    if (up) /* a link that comes back does not fail again at once */
        atomic_compare_exchange_strong(&g->fuse, &burnt, SG_NO_FUSE);
    atomic_store(&g->up, up);
}

static void link_set_locked(struct sg_router *r, struct sg_gate *g, bool up)
{
    if (atomic_load(&g->up) == up)
        return;
    end_set(g, up);
    end_set(&r->hub[g->peer_element].gate[g->peer_port], up);
    atomic_fetch_add(&r->epoch, 1);
    pthread_cond_broadcast(&r->changed);
}

int sg_router_link_set(struct sg_router *r, int element, int port, bool up)
{
    struct sg_gate *g = gate_at(r, element, port);
    if (!g || g->peer_element < 0)
        return -EINVAL;
    pthread_mutex_lock(&r->lock);
    link_set_locked(r, g, up);
    pthread_mutex_unlock(&r->lock);
    return 0;
}

void sg_router_burnt(struct sg_router *r, uint32_t element, uint32_t port)
{
    struct sg_gate *g = &r->hub[element].gate[port];
    pthread_mutex_lock(&r->lock);
    if (!atomic_load(&g->fuse))
        link_set_locked(r, g, false);
    pthread_mutex_unlock(&r->lock);
}

int sg_router_fail_after(struct sg_router *r, int element, int port, uint64_t bytes)
{
    struct sg_gate *g = gate_at(r, element, port);
    if (!g || g->peer_element < 0 || bytes == SG_NO_FUSE)
        return -EINVAL;
    if (!bytes)
        return sg_router_link_set(r, element, port, false);
    atomic_store(&g->fuse, bytes);
    return 0;
}

size_t sg_router_memory(struct sg_router *r)
{
    pthread_mutex_lock(&r->lock);
    size_t bytes = sizeof *r + r->count * sizeof *r->hub + r->gate_count * sizeof *r->gates + r->snapshot_bytes;
    pthread_mutex_unlock(&r->lock);
    return bytes;
}
