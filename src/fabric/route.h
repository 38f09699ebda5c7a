/*
 * Paths for transfers between GPUs. A path is a sequence of GPUs; whatever passes the data on between two of them without storing
 * it (switches, bridges) belongs to the leg. Pure; results belong to the caller. Locks: none; an account needs the caller's lock.
 *
 * Errors: -EINVAL (no such GPU, or the same twice), -ENETUNREACH (no way), -ENOMEM.
 */
#ifndef HR_FABRIC_ROUTE_H
#define HR_FABRIC_ROUTE_H

#include "fabric/graph.h"

#define HR_ROUTES_MAX_PATHS 48

/* What a path puts on an edge of the graph. */
struct hr_path_load {
    uint32_t edge;
    uint32_t leg; /* of the path */
    int64_t mbps;
};

struct hr_path {
    uint32_t legs;
    uint16_t *gpu; /* legs + 1 of them, source first */
    int64_t mbps;
    uint32_t latency_ns; /* all legs together */
    uint32_t load_count;
    struct hr_path_load *load;
};

struct hr_routes {
    uint32_t source, destination; /* GPUs */
    uint32_t path_count;          /* best first: fewest legs, then widest */
    struct hr_path path[HR_ROUTES_MAX_PATHS];
    int64_t mbps; /* of all paths together */
};

/* Frees what the path holds and empties it; a zeroed one is fine. */
void hr_path_finish(struct hr_path *path);
/* Frees what the paths hold and empties them; a zeroed struct is fine. */
void hr_routes_finish(struct hr_routes *routes);

/* Those of `from` that carry at least a share_of-th of what its widest path does (0 = all), as routes of their own. -ENOMEM. */
int hr_routes_copy(const struct hr_routes *from, uint32_t share_of, struct hr_routes *routes_out);

/* Load that running transfers put on the edges of one graph. */
struct hr_account {
    uint32_t edges;
    int64_t *mbps;
    uint32_t *users;
};

/* 0 or -ENOMEM. A new graph needs a new account, to which what still runs is charged again. finish takes a zeroed struct. */
int hr_account_init(struct hr_account *account, const struct hr_graph *graph);
void hr_account_finish(struct hr_account *account);
/* Each charge is released once, with the same routes. */
void hr_account_charge(struct hr_account *account, const struct hr_routes *routes);
void hr_account_release(struct hr_account *account, const struct hr_routes *routes);
/*
 * What a newcomer gets of an edge: what is free, but never less than its share if all users divided the edge evenly, since
 * running transfers give way on hardware too.
 */
int64_t hr_account_available_mbps(const struct hr_account *account, const struct hr_graph *graph, uint32_t edge);

/* For small transfers: the path of fewest legs, of these the widest; with an account the one with most room. */
int hr_route_small(const struct hr_graph *graph, const struct hr_account *account, uint32_t source,
                   uint32_t destination, struct hr_routes *routes_out);

struct hr_route_limits {
    const struct hr_account *account; /* NULL = nothing else runs */
    const bool *no_relay;             /* by GPU: may not pass data on; NULL = all may */
    bool keep_slow;                   /* keep paths more than 4 times slower than the best one */
};

/*
 * For large transfers: the maximum flow of least hops (legs first, links second), decomposed into paths. Paths more than 4 times
 * slower than the best are dropped. limits may be NULL.
 */
int hr_route_large(const struct hr_graph *graph, const struct hr_route_limits *limits, uint32_t source,
                   uint32_t destination, struct hr_routes *routes_out);

/* What is small: transfers of up to so many bytes go the small way. */
#define HR_ROUTE_SMALL_BYTES (UINT64_C(1) << 20)

/* hr_route_small or hr_route_large, by size. */
int hr_route_for(const struct hr_graph *graph, const struct hr_route_limits *limits, uint32_t source,
                 uint32_t destination, uint64_t bytes, struct hr_routes *routes_out);

/* The path along these GPUs, legs + 1 of them, with all that its narrowest leg carries. The caller finishes it. -ENETUNREACH: no such leg. */
int hr_route_along(const struct hr_graph *graph, const uint16_t *gpu, uint32_t legs, struct hr_path *path_out);

/* The maximum flow alone: what no set of paths can exceed. 0 = unreachable; negative = error. */
int64_t hr_route_bound_mbps(const struct hr_graph *graph, uint32_t source, uint32_t destination);

struct hr_all_to_all {
    uint32_t gpus;
    struct hr_routes *routes; /* [source * gpus + destination]; empty on the diagonal */
    double pair_mbps;         /* what every ordered pair gets at the same time */
    double bound_mbps;        /* what no routing can exceed (a dual solution) */
};

/*
 * Paths with which every GPU sends the same amount to every other at once, as fast as can be up to `tolerance` (such as 0.02).
 * -E2BIG: above 64 GPUs. -ENETUNREACH: some pair has no way. finish frees.
 */
int hr_route_all_to_all(const struct hr_graph *graph, double tolerance, struct hr_all_to_all *out);
void hr_all_to_all_finish(struct hr_all_to_all *all);

/*
 * Decomposes a flow given per edge into paths, of which those that pass the same GPUs are merged; edge_mbps is consumed. What
 * does not fit HR_ROUTES_MAX_PATHS (the narrowest) is left out. For hr_route_large and hr_route_all_to_all.
 */
int hr_route_decompose(const struct hr_graph *graph, uint32_t source, uint32_t destination, int64_t *edge_mbps,
                       struct hr_routes *routes_out);

/*
 * Maximum flow of least cost over edge capacities (NULL = the graph's own) into edge_mbps_out, which may be NULL. Nodes that may
 * not be passed through are given in `closed` by node (NULL = none). Returns the flow or -ENOMEM.
 */
int64_t hr_flow_solve(const struct hr_graph *graph, const int64_t *capacity, const bool *closed, uint32_t source_node,
                      uint32_t destination_node, int64_t *edge_mbps_out);

#endif
