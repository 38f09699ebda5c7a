/*
 * The node inside the driver: its topology and routers, which ways the job's traffic takes, and what the links are busy with in
 * virtual time. On a machine without a topology there is none of this: sg_node_router() is NULL and nothing here is called.
 *
 * A way is one direction of a link: the port by which it leaves. Ways are numbered element by element, port by port.
 *
 * Needs no lock, but for what says sg.lock.
 */
#ifndef SG_FABRIC_H
#define SG_FABRIC_H

#include "simgpu/router.h"
#include "simgpu/topology.h"
#include "simgpu/vtime.h"

uint32_t sg_node_way(uint32_t element, uint32_t port);
void sg_usage_add(struct sg_usage *u, uint32_t way, uint64_t bytes); /* out of host memory: it is not counted */
void sg_usage_free(struct sg_usage *u);

/* cuInit's part, with sg.lock held. -ENOMEM. */
int sg_node_start(void);
struct sg_router *sg_node_router(void);
bool sg_node_can_reach(int from, int to); /* can these two cards have peer access? */
enum sg_nearness sg_node_between(int a, int b);
struct sg_pci {
    unsigned domain, bus, slot, function;
};
struct sg_pci sg_node_pci(int card);

/* May a copy between these addresses go from one device to the other: does one of them see the other's page? Else the driver takes
 * it through host memory. */
bool sg_node_is_direct(int from, int to, uint64_t dst, uint64_t src);
/* Leads bytes from one card's memory to another's at this offset: along the tables of `from`, if it has a route and a range for
 * `to`; else over the links between them, or PCIe, or (not direct) through host memory. Adds what they use. 0, or -ENETDOWN and the like: *done_out bytes got
 * through. */
struct sg_carry {
    int from, to;
    uint64_t offset, bytes, turn;
    bool direct;
};
int sg_node_carry(const struct sg_carry *carry, struct sg_usage *usage, uint64_t *done_out);
/* The same for what a kernel on `card` reads or writes there, wherever in the other's memory it is. A negative errno: not all
 * of it got through. */
int sg_node_kernel(int card, int peer, uint64_t read_bytes, uint64_t written_bytes, uint64_t turn,
                   struct sg_usage *usage);
/* Adds what copies between a card and host memory use of PCIe. */
void sg_node_host(int card, uint64_t in_bytes, uint64_t out_bytes, struct sg_usage *usage);

/* ---- virtual time, with sg.lock held ---- */

bool sg_links_start(void);                      /* false: out of host memory */
uint64_t sg_links_ns(const struct sg_usage *u); /* the longest that a way is busy with it */
/* The first slot on the operation's line from which all its ways are free, too. */
struct sg_slot sg_links_find(const struct sg_vop *v, enum sg_line line, int device, uint64_t ready_ns);
void sg_links_add(const struct sg_vop *v, uint64_t start_ns); /* takes them */
void sg_links_report(FILE *f);
void sg_links_timeline(FILE *f);

#endif
