/*
 * How the cards of a machine are connected: elements and links, from nodes.def or from an NCCL topology file. Plain data,
 * made once by the settings and not changed afterwards; needs no lock.
 */
#ifndef SG_TOPOLOGY_H
#define SG_TOPOLOGY_H

#include "simgpu/node.h"

#include <stddef.h>

#define SG_MOST_CARDS 16
#define SG_MOST_ELEMENTS 96
#define SG_MOST_PORTS 255 /* of an element */
#define SG_NO_ELEMENT UINT16_MAX

enum sg_link_kind { SG_LINK_NVLINK, SG_LINK_PCIE, SG_LINK_SOCKET };
enum sg_link_type {
#define SG_LINK_TYPE(name, kind, gbps, latency_ns, source) SG_TYPE_##name,
#include "simgpu/noderows.h"
    SG_LINK_TYPES
};
struct sg_link_figures {
    const char *name;
    enum sg_link_kind kind;
    double gbps;
    uint32_t latency_ns;
};
extern const struct sg_link_figures sg_link_types[SG_LINK_TYPES];

struct sg_topo_element {
    enum sg_element_kind kind;
    char bus_id[16];
    uint32_t ports;
};

struct sg_topo_link {
    uint16_t a, a_port, b, b_port;
    enum sg_link_kind kind;
    double gbps;
    uint32_t latency_ns;
};

struct sg_model;
struct sg_topology {
    char key[64]; /* as the machine was asked for */
    const struct sg_model *model;
    int cards;
    uint32_t count; /* of elements, cards first */
    struct sg_topo_element element[SG_MOST_ELEMENTS];
    struct sg_topo_link *link;
    size_t links, room;
};

/* A machine of nodes.def. NULL: none of that name, or out of memory. */
struct sg_topology *sg_topology_find(const char *key, size_t key_bytes);
const char *sg_topology_names(void); /* "dgx1v, dgx2, ..." */
/* Reads an NCCL topology file. model NULL: the cards' model follows from their compute capability. NULL: cannot be used, and
 * `why` says it in one clause. */
struct sg_topology *sg_topology_read(const char *path, const struct sg_model *model, char *why, size_t why_bytes);
void sg_topology_free(struct sg_topology *t);

/* For whoever makes one. -1 / false: out of room or memory. */
int sg_topology_add(struct sg_topology *t, enum sg_element_kind kind, const char *bus_id);
bool sg_topology_link(struct sg_topology *t, int a, int b, enum sg_link_kind kind, double gbps, uint32_t latency_ns);

/* What lies between two cards, in the order of nearness. */
enum sg_nearness {
    SG_NEAR_NVLINK,  /* links of their own, or over switches */
    SG_NEAR_BRIDGE,  /* one PCIe bridge */
    SG_NEAR_BRIDGES, /* several, below one socket */
    SG_NEAR_SOCKET,  /* the socket's own root */
    SG_NEAR_SOCKETS, /* more than one socket */
    SG_NEAR_NOTHING
};
enum sg_nearness sg_topology_between(const struct sg_topology *t, int a, int b);
/* The same, links between cards and over switches left out. */
enum sg_nearness sg_topology_pcie_between(const struct sg_topology *t, int a, int b);

#endif
