/*
 * What a machine looks like to the fabric: elements (GPUs, switches, PCIe bridges, host bridges, CPU sockets) whose ports are
 * joined by links. Each port carries what flows *out* of it, so a link is two ports and its directions may differ or fail alone.
 * Parallel links are ports of their own.
 *
 * Built by calls, by readers of text, or by generators; nothing here asks a driver. Errors are negative errno values. A topology
 * belongs to its creator; readers may share it, changes need the caller's own lock. Locks: none.
 */
#ifndef HR_FABRIC_TOPOLOGY_H
#define HR_FABRIC_TOPOLOGY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HR_TOPOLOGY_NAME_BYTES 32
#define HR_TOPOLOGY_MAX_GPUS 4096
#define HR_TOPOLOGY_MAX_ELEMENTS 16384
#define HR_TOPOLOGY_MAX_PORTS 256 /* of one element */

enum hr_element_kind {
    HR_ELEMENT_GPU,
    HR_ELEMENT_SWITCH, /* NVSwitch and the like: passes on, stores nothing */
    HR_ELEMENT_BRIDGE, /* PCIe switch */
    HR_ELEMENT_ROOT,   /* PCIe host bridge, where a source tells them from the socket */
    HR_ELEMENT_SOCKET, /* NUMA node of the host */
};

enum hr_link_kind {
    HR_LINK_NVLINK,
    HR_LINK_XGMI,
    HR_LINK_PCIE,
    HR_LINK_SOCKET, /* between sockets */
};
#define HR_LINKS(kind) (1u << (kind))
#define HR_LINKS_FABRIC (HR_LINKS(HR_LINK_NVLINK) | HR_LINKS(HR_LINK_XGMI))
#define HR_LINKS_HOST (HR_LINKS(HR_LINK_PCIE) | HR_LINKS(HR_LINK_SOCKET))
#define HR_LINKS_ALL (HR_LINKS_FABRIC | HR_LINKS_HOST)

struct hr_port {
    int32_t peer;      /* element at the other end */
    int32_t peer_port; /* its port */
    uint32_t latency_ns;
    uint8_t kind; /* enum hr_link_kind */
    bool up;      /* carries traffic outwards */
    double gbps;  /* 10^9 bytes a second, outwards */
};

struct hr_element {
    enum hr_element_kind kind;
    int32_t gpu; /* number among the GPUs, -1 = none */
    int32_t numa;
    uint32_t port_count;
    struct hr_port *ports;
    uint64_t memory_bytes; /* 0 = not known */
    uint64_t base;         /* first global address, where a source fixed it */
    bool has_base;         /* base was fixed */
    uint32_t generation;   /* a GPU's "sm" (90) or, with bit 31, the number of its "gfx" name; 0 = not known */
    char name[HR_TOPOLOGY_NAME_BYTES];      /* unique; the PCI bus id where there is one */
    char processor[HR_TOPOLOGY_NAME_BYTES]; /* of a socket: "vendor/family/model", else empty */
};

struct hr_topology {
    uint32_t element_count;
    uint32_t gpu_count;
    struct hr_element *elements;
    uint32_t *gpus; /* GPU number -> element */
    uint32_t room;  /* allocated elements */
    uint32_t gpu_room;
    uint64_t version; /* rises with every change */
};

/* One line on what was wrong in a text, where, and what is accepted. Filled by the readers on failure. */
struct hr_text_error {
    uint32_t line; /* 1-based; 0 = the text as a whole */
    char text[256];
};

/* An empty topology; NULL without memory. destroy takes NULL. */
struct hr_topology *hr_topology_create(void);
void hr_topology_destroy(struct hr_topology *topology);

/*
 * Adds an element and returns its number. An empty or NULL name becomes "gpu3", "switch0" and so on.
 * -EEXIST: the name is taken; -EINVAL: name too long or with spaces; -E2BIG: too many elements or GPUs; -ENOMEM.
 */
int hr_topology_add(struct hr_topology *topology, enum hr_element_kind kind, const char *name);

/*
 * Joins a and b by `count` equal links, up both ways, of gbps per link and direction. Every link adds a port to each.
 * Returns 0. -EINVAL: a == b, no such element, gbps not above 0 and below 10^6; -E2BIG: no ports left; -ENOMEM (nothing added).
 */
int hr_topology_join(struct hr_topology *topology, uint32_t a, uint32_t b, enum hr_link_kind kind, uint32_t count,
                     double gbps, uint32_t latency_ns);

/* Marks a port's outward direction up or down; the other direction is its peer's. -EINVAL: no such port. */
int hr_topology_set_up(struct hr_topology *topology, uint32_t element, uint32_t port, bool up);

/* Sets what a port carries outwards, as measured. -EINVAL: no such port, or values that hr_topology_join refuses. */
int hr_topology_set_rate(struct hr_topology *topology, uint32_t element, uint32_t port, double gbps,
                         uint32_t latency_ns);

/* Element of that name, or -1. */
int hr_topology_find(const struct hr_topology *topology, const char *name);

/* Links whose outward direction is up from a to b, of the kinds in the mask; their summed rate goes to gbps_out if not NULL. */
uint32_t hr_topology_links(const struct hr_topology *topology, uint32_t a, uint32_t b, unsigned kinds,
                           double *gbps_out);

/* The kind's own default latency of one crossing, nanoseconds: used where no source says better. */
uint32_t hr_topology_default_latency_ns(enum hr_link_kind kind);

/*
 * A topology with these elements as its GPUs, in this order, and with all that is no GPU of `from`; links of the kinds in the mask
 * between what is kept, with their rates and states. Numbers of ports change, names do not. -EINVAL: one of them is no GPU, or is
 * there twice; -ENOMEM.
 */
int hr_topology_pick(const struct hr_topology *from, const uint32_t *gpu_elements, uint32_t gpus, unsigned kinds,
                     struct hr_topology **topology_out);

/*
 * A PCI bus id ("[domain:]bus:device[.function]", hexadecimal in any case and width) as all of this room write it:
 * "0000:07:00.0". id_out holds HR_TOPOLOGY_NAME_BYTES. false: it is none.
 */
bool hr_topology_bus_id(const char *text, char *id_out);

/* ---- generators; NULL without memory or for sizes out of range ---- */

/* A torus with `dims` extents of 1..64 (extent 2 gets one link, not two), neighbours joined by `links` links each. */
struct hr_topology *hr_topology_torus(const uint32_t *extents, uint32_t dims, uint32_t links, double gbps);
struct hr_topology *hr_topology_chain(uint32_t gpus, uint32_t links, double gbps);
/* `links[i * gpus + j]` links between GPUs i and j; must be symmetric with a zero diagonal. */
struct hr_topology *hr_topology_from_links(const uint8_t *links, uint32_t gpus, enum hr_link_kind kind, double gbps);

/* ---- text ---- */

/*
 * Reads the XML that NCCL writes and takes as NCCL_TOPO_FILE. Needs libexpat.so.1, which is opened at the first call.
 * -EINVAL: not accepted, error_out says why; -ENOSYS: no libexpat (error_out says so); -ENOMEM.
 * Accepted: at most 16 MiB, 4096 GPUs, nesting of at most 64.
 */
int hr_topology_read_xml(const char *text, size_t bytes, struct hr_topology **topology_out,
                         struct hr_text_error *error_out);
/* The same machine as NCCL XML; malloc'ed, ended by 0, the caller's to free. NULL without memory. */
char *hr_topology_write_xml(const struct hr_topology *topology);

/*
 * Reads the matrix that `nvidia-smi topo -m` prints (columns and rows of GPUs; others are passed over; a legend may follow).
 * link_gbps is the rate of one NVLink (0 = 25). Where all GPUs have more bonded links than a GPU has ports (18), they are taken to
 * meet in a switch. Errors as for XML.
 */
int hr_topology_read_matrix(const char *text, size_t bytes, double link_gbps, struct hr_topology **topology_out,
                            struct hr_text_error *error_out);
/* The topology as such a matrix; malloc'ed, the caller's to free. NULL without memory. */
char *hr_topology_print_matrix(const struct hr_topology *topology);

/*
 * The relation of two GPUs in the words of that matrix: "X", "NV4", "PIX", "PXB", "PHB", "NODE", "SYS". Into text_out, which
 * holds at least 16 bytes.
 */
void hr_topology_relation(const struct hr_topology *topology, uint32_t gpu_a, uint32_t gpu_b, char *text_out);

/*
 * Our extras, one line each; '#' begins a comment:
 *   gpu NAME [memory_bytes=N] [base=N]
 *   link NAME NAME [gbps=X] [latency_ns=N] [up=0|1]     (all links from the first to the second, that direction only)
 * Applied to a topology whose elements have those names; all or nothing. -EINVAL with error_out, -ENOMEM.
 */
int hr_topology_read_extras(const char *text, size_t bytes, struct hr_topology *topology,
                            struct hr_text_error *error_out);
char *hr_topology_write_extras(const struct hr_topology *topology);

#endif
