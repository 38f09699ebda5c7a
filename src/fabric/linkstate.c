/*
 * Statements are immutable and shared: a router that takes one over counts a reference instead of copying it. The sharing stands
 * for copies in different routers; the count is atomic because routers may belong to different threads.
 */
#include "fabric/linkstate.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

struct statement {
    atomic_uint holders;
    int32_t owner;
    uint64_t serial;
    uint32_t count;
    struct hr_self_port port[];
};

struct hr_self_router {
    uint32_t number, capacity;
    int32_t owner;
    uint64_t serial;
    struct statement **known; /* by router */
    bool stale;               /* something was learned since the ways were computed */
    uint16_t *hops;           /* by router, from here; UINT16_MAX = none */
    uint32_t *width;   /* Mb/s by router, while one owner is looked for: its widest shortest way there, 0 = none */
    int32_t *owner_at; /* by owner: router, -1 = not known */
    uint32_t *queue;   /* routers in the order in which they were reached */
    uint32_t reached;
};

static void release(struct statement *statement)
{
    if (statement && atomic_fetch_sub(&statement->holders, 1) == 1)
        free(statement);
}

void hr_self_destroy(struct hr_self_router *router)
{
    if (!router)
        return;
    for (uint32_t i = 0; router->known && i < router->capacity; i++)
        release(router->known[i]);
    free(router->known);
    free(router->hops);
    free(router->width);
    free(router->owner_at);
    free(router->queue);
    free(router);
}

struct hr_self_router *hr_self_create(uint32_t number, uint32_t capacity, int32_t owner)
{
    struct hr_self_router *router = calloc(1, sizeof *router);

    if (!router)
        return NULL;
    *router = (struct hr_self_router){.number = number, .capacity = capacity, .owner = owner, .stale = true};
    router->known = calloc(capacity, sizeof(struct statement *));
    router->hops = calloc(capacity, sizeof *router->hops);
    router->width = calloc(capacity, sizeof *router->width);
    router->owner_at = calloc(capacity, sizeof *router->owner_at);
    router->queue = calloc(capacity, sizeof *router->queue);
    if (number >= capacity || !router->known || !router->hops || !router->width || !router->owner_at ||
        !router->queue) {
        hr_self_destroy(router);
        return NULL;
    }
    return router;
}

int hr_self_set_ports(struct hr_self_router *router, const struct hr_self_port *ports, uint32_t count)
{
    if (count > HR_TOPOLOGY_MAX_PORTS)
        return -EINVAL;
    for (uint32_t i = 0; i < count; i++) {
        if (ports[i].peer < -1 || ports[i].peer >= (int32_t)router->capacity)
            return -EINVAL;
    }
    struct statement *statement = malloc(sizeof *statement + count * sizeof *ports);
    if (!statement)
        return -ENOMEM;
    atomic_init(&statement->holders, 1);
    statement->owner = router->owner;
    statement->serial = ++router->serial;
    statement->count = count;
    if (count > 0)
        memcpy(statement->port, ports, count * sizeof *ports);
    release(router->known[router->number]);
    router->known[router->number] = statement;
    router->stale = true;
    return 0;
}

int hr_self_fetch(struct hr_self_router *router, const struct hr_self_router *neighbour)
{
    uint32_t count = neighbour->capacity < router->capacity ? neighbour->capacity : router->capacity;
    int taken = 0;

    for (uint32_t i = 0; i < count; i++) {
        struct statement *theirs = neighbour->known[i], *mine = router->known[i];
        if (i == router->number || !theirs || theirs == mine || (mine && mine->serial >= theirs->serial))
            continue;
        atomic_fetch_add(&theirs->holders, 1);
        release(mine);
        router->known[i] = theirs;
        taken++;
    }
    router->stale = router->stale || taken > 0;
    return taken;
}

/* Breadth first from here over what the statements say is up. */
static void reach(struct hr_self_router *router)
{
    memset(router->hops, 0xff, router->capacity * sizeof *router->hops);
    memset(router->owner_at, 0xff, router->capacity * sizeof *router->owner_at);
    router->reached = 0;
    router->hops[router->number] = 0;
    router->queue[router->reached++] = router->number;
    for (uint32_t head = 0; head < router->reached; head++) {
        uint32_t at = router->queue[head];
        const struct statement *statement = router->known[at];
        if (!statement)
            continue;
        if (statement->owner >= 0 && statement->owner < (int32_t)router->capacity)
            router->owner_at[statement->owner] = (int32_t)at;
        for (uint32_t i = 0; i < statement->count; i++) {
            const struct hr_self_port *port = &statement->port[i];
            if (port->peer < 0 || !port->up || router->hops[port->peer] != UINT16_MAX)
                continue;
            router->hops[port->peer] = (uint16_t)(router->hops[at] + 1);
            router->queue[router->reached++] = (uint32_t)port->peer;
        }
    }
    router->stale = false;
}

/* All ports of a statement that lead to one peer. */
static uint64_t bonded_mbps(const struct statement *statement, int32_t peer)
{
    uint64_t mbps = 0;

    for (uint32_t i = 0; i < statement->count; i++)
        mbps += statement->port[i].peer == peer && statement->port[i].up ? statement->port[i].mbps : 0;
    return mbps;
}

/* What a way from `at` over its port can carry, given the widths of the routers a hop further; 0 = not a shortest way. */
static uint64_t way_mbps(const struct hr_self_router *router, uint32_t at, const struct hr_self_port *port,
                         uint64_t *bonded_out)
{
    if (port->peer < 0 || !port->up || router->hops[port->peer] != router->hops[at] + 1 || !router->width[port->peer])
        return 0;
    *bonded_out = bonded_mbps(router->known[at], port->peer);
    return *bonded_out < router->width[port->peer] ? *bonded_out : router->width[port->peer];
}

/* Widths from the target back to here: the queue holds routers by hops, so those a hop further are done before. */
static void widths_to(struct hr_self_router *router, uint32_t target)
{
    memset(router->width, 0, router->capacity * sizeof *router->width);
    router->width[target] = UINT32_MAX;
    for (uint32_t i = router->reached; i-- > 0;) {
        uint32_t at = router->queue[i];
        const struct statement *statement = router->known[at];
        if (!statement || router->hops[at] >= router->hops[target])
            continue;
        for (uint32_t p = 0; p < statement->count; p++) {
            uint64_t bonded, mbps = way_mbps(router, at, &statement->port[p], &bonded);
            if (mbps > router->width[at])
                router->width[at] = (uint32_t)mbps;
        }
    }
}

int hr_self_find(struct hr_self_router *router, uint32_t owner, const struct hr_tables_options *options,
                 struct hr_entry *entry_out, uint32_t *hops_out)
{
    const struct statement *own = router->known[router->number];
    struct hr_port_rate rates[HR_TOPOLOGY_MAX_PORTS];
    uint32_t count = 0;

    if (router->stale)
        reach(router);
    if (owner >= router->capacity || router->owner_at[owner] < 0)
        return -ENETUNREACH;
    uint32_t target = (uint32_t)router->owner_at[owner];
    if (target != router->number) {
        widths_to(router, target);
        for (uint32_t i = 0; i < own->count; i++) {
            uint64_t bonded, mbps = way_mbps(router, router->number, &own->port[i], &bonded);
            if (mbps)
                rates[count++] = (struct hr_port_rate){
                    (uint8_t)i, (int64_t)((double)mbps / (double)bonded * own->port[i].mbps + 0.5)};
        }
    }
    hr_entry_make(options, rates, count, entry_out);
    if (hops_out)
        *hops_out = router->hops[target];
    return 0;
}
