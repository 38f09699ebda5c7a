/*
 * The machine of this process: its visible GPUs, in CUDA's order, and what lies between them.
 *
 * Sources, in the order in which they are trusted: the driver (which GPUs there are, which reach which), NVML (links, how far up two
 * GPUs meet), an NCCL topology file (HEADROOM_TOPO, else NCCL_TOPO_FILE: the PCIe tree where it agrees with NVML, links where
 * NVML tells none). Then what copies have shown, now or earlier (fabric/verify.h), and last the lines of FILE.extras beside a topology
 * file. A source that is missing or wrong costs one line at most.
 *
 * Calls the driver, never with a context. cuInit must have succeeded. Not for jobs of one GPU: they have nothing to ask.
 */
#ifndef HR_FABRIC_DISCOVER_H
#define HR_FABRIC_DISCOVER_H

#include "fabric/topology.h"

enum hr_pair_state {
    HR_PAIR_UNPROVEN, /* no copy was tried: as the driver says */
    HR_PAIR_GOOD,     /* a patterned copy arrived right */
    HR_PAIR_CORRUPTS, /* it arrived wrong */
    HR_PAIR_HANGS,    /* it did not end in time */
    HR_PAIR_FAILS,    /* the driver refused it */
};

/* What is known of copies from one GPU to another. */
struct hr_pair {
    bool access;       /* the first can reach the second's memory, as the driver says */
    bool atomics;      /* natively, over the link */
    bool named;        /* a state that is bad was logged */
    bool kept;         /* the state is what an earlier process found */
    uint8_t state;     /* enum hr_pair_state */
    int32_t rank;      /* the driver's: 0 is the best; -1 = it tells none */
    double gbps;       /* measured, both GPUs otherwise idle; 0 = not measured */
    uint32_t links;    /* direct ones that carried it: links that go down later take their share with them */
    uint32_t start_ns; /* measured: what a copy takes besides its bytes */
    uint64_t found_s;  /* when the state was found, seconds since 1970 */
};

struct hr_discovered_gpu {
    char bus_id[HR_TOPOLOGY_NAME_BYTES]; /* what the GPU is to NVML; two parts of one card (MIG) have the same */
    char id[64];                         /* bus id and UUID: what measurements are kept under */
    char name[96];
    uint32_t generation;
    double to_host_gbps, from_host_gbps; /* measured; 0 = not */
    uint32_t switch_links;               /* to switches, when copies over them were measured */
};

struct hr_discovery {
    struct hr_topology *topology; /* GPU number = CUDA ordinal; elements are named by bus ids */
    uint32_t gpus;
    struct hr_discovered_gpu *gpu;
    struct hr_pair *pair;               /* [from * gpus + to] */
    const char *links_from, *tree_from; /* "NVML", "topology file", "driver" */
    char driver[64];                    /* version, in one word */
};

enum hr_discover_copies {
    HR_COPIES_KEPT,    /* use what earlier processes have measured */
    HR_COPIES_MISSING, /* and measure what is missing */
    HR_COPIES_ALL,     /* measure everything again */
};

/*
 * Discovers everything. -ENODEV: no GPU; -EIO: the driver refuses a question; -E2BIG: more links than a topology holds; -ENOMEM. why
 * (may be NULL) says it in words. The result is the caller's; destroy takes NULL.
 */
int hr_discover_machine(enum hr_discover_copies copies, struct hr_discovery **out, struct hr_text_error *why);
void hr_discovery_destroy(struct hr_discovery *discovery);

/*
 * The topology alone; the caller's. The first call that succeeds tries copies (HR_COPIES_MISSING) unless HEADROOM_VERIFY=off; later
 * ones ask anew how links are, and go by what copies have shown then. Directions of links over which copies go wrong are down. That
 * cannot say everything: where a bad pair shares its ways with others (a switch, PCIe), and for whoever issues direct copies at all,
 * hr_pair_usable has to be asked, of what hr_discovery_of_process keeps. Errors as above.
 */
int hr_discover(struct hr_topology **out, struct hr_text_error *why);
/* The bus id that the GPU, a CUdevice, has in that topology; id_out holds HR_TOPOLOGY_NAME_BYTES. */
void hr_discover_bus_id(int device, char *id_out);
/* What the first hr_discover found, for good; NULL before. */
const struct hr_discovery *hr_discovery_of_process(void);

/* Whether a direct copy may be issued: one of the two reaches the other's memory, and none went wrong. */
static inline bool hr_pair_usable(const struct hr_discovery *discovery, uint32_t from, uint32_t to)
{
    const struct hr_pair *there = &discovery->pair[from * discovery->gpus + to];

    return (there->access || discovery->pair[to * discovery->gpus + from].access) && there->state <= HR_PAIR_GOOD;
}

/* "copies arrive wrong" and so on; "" for good ones and unproven ones. */
const char *hr_pair_complaint(enum hr_pair_state state);

/*
 * Puts what was measured into the topology: rates of links, links of bad pairs down. Pure. Called by hr_discover_machine.
 */
void hr_calibrate(struct hr_discovery *discovery);

/*
 * Reads a machine file as HEADROOM_TOPO names one: NCCL's XML, or a matrix as `nvidia-smi topo -m` prints it, and FILE.extras beside
 * it if there is one. -errno of opening, or the readers' errors with why filled.
 */
int hr_discover_file(const char *path, struct hr_topology **out, struct hr_text_error *why);

#endif
