/*
 * How a transfer is cut into chunks and divided among paths. Pure planning: bytes and paths in, a list of chunks out. Errors are
 * negative errno values. Locks: none.
 *
 * A path of h legs moves n chunks of c bytes in about (n + h - 1) * c/B plus what starting chunks costs; with a start costing a,
 * c = sqrt(S * a * B / (h - 1)) balances the chunks' starts against the wait for the first chunk to get through. The shares S
 * are such that all paths end together.
 */
#ifndef HR_FABRIC_PIPELINE_H
#define HR_FABRIC_PIPELINE_H

#include "fabric/route.h"

struct hr_pipeline_costs {
    double start_ns; /* from issuing a chunk's copy until its bytes move; 0 = 4000 */
    double gap_ns;   /* what of that shows between two chunks although the next one's start overlaps; 0 = all */
    bool no_overlap; /* a path's next copy on a leg cannot be started while one moves */
    uint32_t slots;  /* chunks that a relay holds for a path; 0 = 3: with two, starting a copy shows between chunks */
    uint64_t most_chunk_bytes; /* 0 = 16 MiB: what a failing link costs at most; a single direct path is not cut */
    /* 0 = each path's best size; else all chunks have that size, and shares are whole numbers of them but for one. For transfers that
     * share links with many others: what one leaves free between two of its chunks then has room for one of another. */
    uint64_t even_chunk_bytes;
    double issue_ns; /* what it costs the caller, who issues everything, to issue one leg of one chunk; 0 = nothing */
    const double *busy_ns; /* by path: how long what is under way already keeps it busy; NULL = not at all */
};

struct hr_part {
    uint64_t offset;
    uint64_t bytes;
};

struct hr_plan_path {
    uint32_t route; /* index among the routes' paths */
    uint32_t legs;
    double gbps;
    double latency_ns;
    double busy_ns;       /* before it can begin */
    uint64_t bytes;       /* its share */
    uint64_t chunk_bytes; /* of all its chunks but the last and those at the ends of extents */
    uint32_t chunks;
};

struct hr_plan_chunk {
    uint64_t offset;
    uint64_t bytes;
    uint32_t path; /* index into the plan's paths */
};

struct hr_plan {
    uint64_t bytes;
    uint32_t path_count;
    struct hr_plan_path path[HR_ROUTES_MAX_PATHS];
    uint32_t chunk_count;
    struct hr_plan_chunk *chunk; /* in the order in which to start them; every byte in exactly one */
    double predicted_ns;
};

/*
 * Plans the copying of extents (in address order, not overlapping: the whole transfer at first; what was not delivered when a
 * link has failed) over routes. Paths too slow to help get nothing and are left out. costs may be NULL. -EINVAL: no bytes or no
 * paths; -ENOMEM. finish takes a zeroed plan.
 */
int hr_pipeline_plan(const struct hr_routes *routes, const struct hr_part *extents, uint32_t extent_count,
                     const struct hr_pipeline_costs *costs, struct hr_plan *plan_out);
void hr_plan_finish(struct hr_plan *plan);

/* The costs with their defaults in place. */
struct hr_pipeline_costs hr_pipeline_costs_of(const struct hr_pipeline_costs *costs);

/* What one path takes for `bytes`, ns, with chunks as the formula has them. */
double hr_pipeline_path_ns(double gbps, uint32_t legs, double latency_ns, double bytes,
                           const struct hr_pipeline_costs *costs);

#endif
