/* What the router's files share; everybody else includes router.h. */
#ifndef SG_ROUTERIN_H
#define SG_ROUTERIN_H

#include "simgpu/router.h"

#include <pthread.h>
#include <stdatomic.h>

#define SG_NO_WAY UINT16_MAX
#define SG_WAY_PORTS (2 * SG_NODE_ROUTE_PORTS)
#define SG_NO_FUSE UINT64_MAX
#define SG_SPREAD_BYTES UINT64_C(32) /* what is spread over ports is spread in multiples of it */

struct sg_retired { /* a snapshot that is replaced, until nobody can see it */
    struct sg_retired *next;
};

struct sg_map { /* an element's ranges, sorted */
    struct sg_retired retired;
    struct sg_map *next; /* of all that are in use */
    uint64_t hash;
    uint32_t refs, count;
    unsigned shift; /* equal ranges without gaps: which one is address >> shift, counted from the first. 64: search */
    struct sg_node_range at[];
};

struct sg_way { /* how an owner is reached */
    uint8_t policy, port_count, address_shift;
    uint8_t port[SG_WAY_PORTS];
    uint32_t weight_end[SG_WAY_PORTS]; /* sums */
    uint32_t stride;                   /* turns step so far through the sum of all weights, so that ports mix */
    _Atomic(uint32_t) turn;
};

struct sg_table {
    struct sg_retired retired;
    uint32_t owners, ways;
    uint16_t *way_of; /* per owner */
    struct sg_way way[];
};

struct sg_gate { /* a port */
    int32_t peer_element, peer_port;
    uint32_t latency_ns;
    double gbps;
    _Atomic(bool) up;
    _Atomic(uint64_t) fuse; /* bytes until the link fails */
    _Atomic(uint64_t) requests, bytes, forwarded_bytes, served_bytes, refused;
};

struct sg_hub { /* an element */
    _Atomic(struct sg_map *) map;
    _Atomic(struct sg_table *) table;
    uint32_t gates;
    struct sg_gate *gate;
    struct sg_gate own; /* counters only */
};

struct sg_router {
    struct sg_router_options options;
    uint32_t count, most_hops;
    struct sg_hub *hub;
    struct sg_gate *gates; /* of all */
    size_t gate_count;
    pthread_mutex_t lock; /* the links' state, the lists below, and whoever writes */
    pthread_cond_t changed;
    _Atomic(uint64_t) epoch;
    struct sg_map *maps;
    size_t snapshot_bytes;
    /* Readers count themselves in the phase in which they began. A phase ends when the one before has no readers left; what was
     * replaced in the phase before the last is free then. */
    _Atomic(unsigned) phase;
    _Atomic(uint64_t) readers[2];
    struct sg_retired *fresh, *waiting;
    _Atomic(uint32_t) told[4]; /* refusals that were told of, by kind */
};

static inline unsigned sg_router_enter(struct sg_router *r)
{
    for (;;) {
        unsigned phase = atomic_load(&r->phase);
        atomic_fetch_add(&r->readers[phase], 1);
        if (atomic_load(&r->phase) == phase)
            return phase;
        atomic_fetch_sub(&r->readers[phase], 1);
    }
}

static inline void sg_router_leave(struct sg_router *r, unsigned phase)
{
    atomic_fetch_sub(&r->readers[phase], 1);
}

/* The range around an address; NULL: none. */
const struct sg_node_range *sg_map_find(const struct sg_map *map, uint64_t address);
/* The port's fuse has burnt through: its link goes down, unless it has come back since. */
void sg_router_burnt(struct sg_router *r, uint32_t element, uint32_t port);
/* With r->lock held. */
void sg_router_retire_locked(struct sg_router *r, struct sg_retired *old);

#endif
