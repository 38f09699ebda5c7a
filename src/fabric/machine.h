/*
 * The process's one fabric: what its machine looks like, the paths that were computed for it, and what runs on them. Made at the
 * first use of more than one GPU, kept until the process ends.
 *
 * What is computed from the links (graph, tables) is one immutable view; a change of links makes a new one, and whoever holds the
 * old one goes on with it. Errors are negative errno values. All functions may be called from any thread.
 * Locks: HR_RANK_REGISTRY for a moment each, but for hr_fabric_get (the first call asks the driver: hold none above
 * HR_RANK_START) and what says otherwise.
 */
#ifndef HR_FABRIC_MACHINE_H
#define HR_FABRIC_MACHINE_H

#include "fabric/route.h"
#include "fabric/tables.h"

struct hr_fabric; /* opaque */

/*
 * The fabric, made at the first call, which tries the copies that HEADROOM_VERIFY asks for (fabric/verify.h): that takes seconds the first
 * time on a machine. Where the machine's routers tell their links, these are its links, else what discovery found. -ENODEV: fewer than two
 * GPUs, or nothing is known of what joins them; the reason was logged once, and later calls say the same.
 */
int hr_fabric_get(struct hr_fabric **fabric_out);

/* GPUs of the topology, and their CUDA ordinals: -1 where the process does not see one, or it is no GPU of this machine. */
uint32_t hr_fabric_gpus(const struct hr_fabric *fabric);
int hr_fabric_ordinal(const struct hr_fabric *fabric, uint32_t gpu);
int hr_fabric_gpu(const struct hr_fabric *fabric, int ordinal);

/*
 * Whether one GPU (CUDA ordinals) may be given access to the other's memory: false where copies from one to the other were tried
 * and arrived wrong, or not at all, which was logged then. Whoever uses such a pair directly gets wrong data or hangs. The first
 * call tries the copies, like hr_fabric_get; locks as there.
 */
bool hr_fabric_reachable(int ordinal_a, int ordinal_b);

/* One state of the links. */
struct hr_fabric_view {
    struct hr_graph *graph;
    struct hr_tables *tables;
    unsigned kinds;  /* of links that the graph is made of */
    uint32_t users;  /* the fabric's own */
    uint64_t serial; /* from 1, upwards */
};
/* The current view, until hr_fabric_drop. Never NULL. */
const struct hr_fabric_view *hr_fabric_take(struct hr_fabric *fabric);
void hr_fabric_drop(struct hr_fabric *fabric, const struct hr_fabric_view *view);

/*
 * All links that lead from one GPU to the other and to no third one, in that direction, carry traffic, or do not (`up`), or have the given
 * rate: for whoever measures or verifies. A new view follows, and routers get new tables. 0 also where nothing changed; -EINVAL: no
 * such GPUs, or no link between them; -ENOMEM: nothing changed.
 */
int hr_fabric_link_changed(struct hr_fabric *fabric, uint32_t from_gpu, uint32_t to_gpu, bool up);
int hr_fabric_link_measured(struct hr_fabric *fabric, uint32_t from_gpu, uint32_t to_gpu, double gbps,
                            uint32_t latency_ns);

/* Looks whether links went down or came back since, where the machine tells (routers.h). Cheap when nothing did. Whether there is a
 * new view. */
bool hr_fabric_refresh(struct hr_fabric *fabric);
/* The same after a link has failed: whoever tells how links are is asked in any case, NVML included. Takes milliseconds. */
bool hr_fabric_recheck(struct hr_fabric *fabric);
/* As hr_fabric_refresh for whoever has no fabric in hand, before work that may use links; nothing where there is none yet. */
void hr_fabric_watch(void);

/* Somebody was told that a link failed: the next refresh looks at all of them, also where no routers tell of changes. No lock. */
void hr_fabric_doubt(void);

/*
 * Whether as many are charged now (or were of late) as it takes to make detours a loss for all. Then each gets its part of a plan in which every
 * GPU sends to every other one: over direct ways only, or with relays, so that transfers share links.
 */
enum hr_crowd { HR_CROWD_NONE, HR_CROWD_APART, HR_CROWD_SHARES };
/* The first one in a crowd makes the plan, in milliseconds. */
enum hr_crowd hr_fabric_crowd(struct hr_fabric *fabric, const struct hr_fabric_view *view);
/*
 * Paths for `bytes` from one GPU to another that pass on data only over GPUs in relay_mask (bits by GPU number), chosen beside what is charged
 * now; in a crowd, as said there. Errors of hr_route_for; no way at all is -ENETUNREACH. The caller finishes routes_out.
 */
struct hr_fabric_asked {
    uint32_t from_gpu, to_gpu;
    uint64_t bytes, relay_mask;
    enum hr_crowd crowd;
};
int hr_fabric_route(struct hr_fabric *fabric, const struct hr_fabric_view *view, const struct hr_fabric_asked *asked,
                    struct hr_routes *routes_out);
/* Whether a transfer may take that path: only GPUs in relay_mask pass data on, and no two GPUs in a row between which copies go wrong. */
bool hr_fabric_allows(struct hr_fabric *fabric, const struct hr_path *path, uint64_t relay_mask);
/* Whether the direct path is all that there is between two GPUs, whoever may pass data on. No lock. */
bool hr_fabric_direct_only(const struct hr_fabric_view *view, uint32_t from_gpu, uint32_t to_gpu);
/* What runs counts from charge to release, with the same view and routes. */
void hr_fabric_charge(struct hr_fabric *fabric, const struct hr_fabric_view *view, const struct hr_routes *routes);
void hr_fabric_release(struct hr_fabric *fabric, const struct hr_fabric_view *view, const struct hr_routes *routes);

/* What a GPU's own PCIe links carry towards the host, or from it, in MB/s; 0 = not known. Locks: HR_RANK_START + 1. */
int64_t hr_fabric_host_mbps(struct hr_fabric *fabric, uint32_t gpu, bool to_host);

#endif
