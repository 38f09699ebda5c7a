/*
 * Routers and the links between them, by themselves: no CUDA, no memory, thousands of cards. node.h has the structs and says
 * what routers do; here is how to make a set of them, and what a simulation of the links needs beside.
 *
 * Ranges and tables are immutable snapshots. A request reads each by one load; one that was replaced is freed once no request
 * can still see it. Elements with equal ranges share one snapshot, and the routes of a table share the descriptions of their
 * ports, so that 4096 cards with tables for 4096 owners take 8 KiB each.
 *
 * Locks: a set has one for its writers, which no caller may hold; requests take none.
 */
#ifndef SG_ROUTER_H
#define SG_ROUTER_H

#include "simgpu/node.h"

#include <stddef.h>

struct sg_router;

/* Moves bytes of a card's memory; `data` may be NULL. 0, or a negative errno, with which the piece is refused. */
typedef int sg_router_serve_fn(void *context, uint32_t owner, uint64_t offset, uint64_t bytes, bool write, void *data);
typedef void sg_router_log_fn(const char *line);
/* Told of every hop of a request. */
typedef void sg_router_hop_fn(void *context, uint32_t element, uint32_t port, uint64_t bytes);

struct sg_router_options {
    sg_router_serve_fn *serve; /* NULL: what is served is only counted */
    void *serve_context;
    sg_router_log_fn *log; /* NULL: refusals are not told of */
};

/* `ports` has one number per element. NULL: out of memory. */
struct sg_router *sg_router_create(uint32_t elements, const uint32_t *ports, const struct sg_router_options *options);
void sg_router_destroy(struct sg_router *r); /* nothing may be under way; NULL is fine */
/* Plugs a link in; only before the first request. */
int sg_router_connect(struct sg_router *r, int a, int a_port, int b, int b_port, double gbps, uint32_t latency_ns);

int sg_router_port(const struct sg_router *r, int element, int port, struct sg_node_port *out);
int sg_router_write_ranges(struct sg_router *r, int element, const struct sg_node_range *ranges, uint32_t count);
int sg_router_write_table(struct sg_router *r, int element, const struct sg_node_route *routes, uint32_t count);
int sg_router_counters(const struct sg_router *r, int element, int port, struct sg_node_counters *out);
uint64_t sg_router_epoch(const struct sg_router *r);
int sg_router_wait(struct sg_router *r, uint64_t epoch, uint64_t timeout_ns);
int sg_router_link_set(struct sg_router *r, int element, int port, bool up);
/* The link goes down once so many bytes have left by this port, counted from now. */
int sg_router_fail_after(struct sg_router *r, int element, int port, uint64_t bytes);

#define SG_ROUTER_OWN_TURN UINT64_MAX
struct sg_router_request {
    uint32_t element; /* whose engines make it */
    uint64_t address, bytes;
    bool write, no_data; /* no_data: it is not served, only led to where it would be */
    void *data;
    uint64_t turn;         /* whose turn it is on routes that take turns; SG_ROUTER_OWN_TURN: as each router counts */
    sg_router_hop_fn *hop; /* or NULL */
    void *hop_context;
};
/* As sg_node_request. */
int sg_router_send(struct sg_router *r, const struct sg_router_request *request, struct sg_node_trace *trace_out);
/* Counts bytes that leave by this port without having been routed. How many got through: fewer if the link is down or fails. */
uint64_t sg_router_pass(struct sg_router *r, uint32_t element, uint32_t port, uint64_t bytes, bool forwarded);
/* The base of the owner's first range as the element's router has it. False: it has none. */
bool sg_router_base(struct sg_router *r, uint32_t element, uint32_t owner, uint64_t *base_out);
/* Has the element's router a route to the owner? */
bool sg_router_knows(struct sg_router *r, uint32_t element, uint32_t owner);
/* Bytes that the set takes. */
size_t sg_router_memory(struct sg_router *r);

#endif
