/*
 * The node's routers as whoever programs them sees them: exported by simgpu's libcuda.so.1 and found there by dlsym.
 *
 * A node is a set of elements with ports: cards, NVLink switches, PCIe bridges, sockets. Cards come first, so that a card's
 * element is also its number as an owner of memory. Every element has a router. It knows address ranges and a table, both
 * written from outside, and does for each request that arrives, or that its own engines make, the same: it looks up the owner
 * of the address, cuts the request where a range ends, and serves it, sends it on through a port or refuses it. simgpu
 * computes no routes of its own: without ranges and tables copies take the direct link, or PCIe, as hardware does.
 *
 * Addresses are global physical ones: 48-bit numbers of their own, a card's range begins at its first byte of memory.
 *
 * All functions return 0 or a negative errno unless they say otherwise: -ENODEV before cuInit and on a machine that has no
 * topology, -EINVAL for elements, ports and values that do not exist, -ENOMEM. All may be called from any thread; none waits,
 * but for sg_node_wait, and none takes a lock of the driver's, but for sg_node_locate.
 */
#ifndef SG_NODE_H
#define SG_NODE_H

#include <stdbool.h>
#include <stdint.h>

#define SG_NODE_VERSION 1
#define SG_NODE_ADDRESS_BITS 48
#define SG_NODE_ROUTE_PORTS 16 /* of one struct; a route may have two, since cards with 18 links to switches exist */

enum sg_element_kind { SG_ELEMENT_CARD, SG_ELEMENT_SWITCH, SG_ELEMENT_BRIDGE, SG_ELEMENT_SOCKET };

struct sg_node_element {
    uint32_t kind;
    int32_t device; /* the CUDA ordinal; -1: no card, or one that the process does not see */
    uint32_t ports;
    uint64_t memory_bytes;
    char bus_id[16]; /* as cuDeviceGetPCIBusId tells it; "" = none */
};

struct sg_node_port {
    int32_t peer_element, peer_port; /* -1: nothing there */
    uint32_t up;
    uint32_t latency_ns;
    double gbps; /* 10^9 bytes a second that the link reaches, each direction */
};

struct sg_node_range {
    uint64_t base, bytes;
    uint32_t owner; /* a card */
};

enum sg_node_policy {
    SG_PORT_ANY,         /* the first of the route's ports whose link is up */
    SG_PORT_ROUND_ROBIN, /* requests take turns, by weight */
    SG_PORT_ALL,         /* every request is spread over all of them, by weight, in multiples of 32 bytes */
    SG_PORT_BY_ADDRESS   /* port (address >> address_shift) modulo the number of ports; cut where that changes */
};

struct sg_node_route { /* to one owner; ports whose link is down are passed over, by address: the next one that is up */
    uint32_t owner;
    uint8_t policy, port_count, address_shift;
    uint8_t more; /* 1: the ports are further ones of the route before, which has the same owner, policy and shift */
    uint8_t port[SG_NODE_ROUTE_PORTS];
    uint16_t weight[SG_NODE_ROUTE_PORTS]; /* all 0: equal */
};

/* Of a port: what left by it. Of port -1, the element itself: what its own engines asked for. */
struct sg_node_counters {
    uint64_t requests, bytes;
    uint64_t forwarded_bytes; /* of `bytes`: for others, having arrived by another port. Port -1: of all ports */
    uint64_t served_bytes;    /* from the element's memory, having arrived by this port. Port -1: for its own engines */
    uint64_t refused;         /* requests: the link went down, or (port -1) there was no way on from here */
};

struct sg_node_trace {
    uint32_t pieces;    /* that the request was cut into */
    uint32_t hops;      /* the most that a piece took */
    uint64_t hop_total; /* of all pieces */
    uint64_t served_bytes;
    int32_t first_owner; /* the elements that served the first and the last byte; -1: refused */
    int32_t last_owner;
    int32_t refused_at; /* the element that refused the first piece that was; -1: none */
    uint32_t reserved;
    uint64_t latency_ns; /* of the longest path */
    uint64_t time_ns;    /* of the slowest piece, on links without other traffic */
};

uint32_t sg_node_version(void); /* SG_NODE_VERSION of the library; callable at any time */
int sg_node_elements(void);     /* how many, cards first; 0: the machine has no topology */
int sg_node_element(int element, struct sg_node_element *out);
int sg_node_port(int element, int port, struct sg_node_port *out);

/* These replace what the element has, in one step. What is under way uses the old or the new one at each hop. A count of 0
 * takes everything away. Ranges: in any order; -EINVAL if two overlap, one is empty or passes 2^48. Routes: -EINVAL for an
 * owner twice (but for `more`), or the element itself. */
int sg_node_write_ranges(int element, const struct sg_node_range *ranges, uint32_t count);
int sg_node_write_table(int element, const struct sg_node_route *routes, uint32_t count);

int sg_node_counters(int element, int port, struct sg_node_counters *out);

uint64_t sg_node_epoch(void); /* rises with every link that goes down or comes back */
/* Waits until the epoch is another than this one; -ETIMEDOUT. */
int sg_node_wait(uint64_t epoch, uint64_t timeout_ns);
/* Both ends. No change is a success and does not raise the epoch. -EINVAL where nothing is plugged in. */
int sg_node_link_set(int element, int port, bool up);

/*
 * Reads or writes memory at a global address, from the card's controller. `data` may be NULL: then nothing is moved, and all
 * else happens. trace_out may be NULL. What pieces of the request were served stays so when another is refused:
 *   -EFAULT        an address in no range of a router, or beyond the owner's memory
 *   -EHOSTUNREACH  a router has no route to the owner
 *   -ENETDOWN      all links of a route are down
 *   -ELOOP         more hops than twice the number of elements: tables that lead in circles
 * The first of them is returned; each is also one line on stderr (of each kind the first 20).
 */
int sg_node_request(int card, uint64_t global, uint64_t bytes, bool write, void *data, struct sg_node_trace *trace_out);

/* Where a device address lies now: which card's memory, and how far from its first byte. For tests and for pictures: the answer
 * may be old when it arrives. Takes the driver's lock. -EFAULT: no card's memory, or memory that was made to be exported. */
int sg_node_locate(uint64_t va, int *card_out, uint64_t *offset_out);

#endif
