/*
 * With x = sqrt(S/B), the time of a path at its best chunk size is a square in x, so the share that a path can move within T has a
 * closed form, and T is found by halving.
 */
#include "fabric/pipeline.h"

#include "base/number.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GRANULE 4096
#define CUT_COST 0.01 /* part of a direct path's time that cutting it into chunks may take */
#define MAX_CHUNKS (1u << 20)
#define ISSUE_SHARE 0.85 /* part of a transfer's time that issuing it may take: else it is issued too late at times */

struct hr_pipeline_costs hr_pipeline_costs_of(const struct hr_pipeline_costs *costs)
{
    struct hr_pipeline_costs full = costs ? *costs : (struct hr_pipeline_costs){0};

    full.start_ns = full.start_ns > 0 ? full.start_ns : 4000;
    full.gap_ns = full.no_overlap ? full.start_ns : full.gap_ns > 0 ? full.gap_ns : full.start_ns;
    full.slots = full.slots ? full.slots : 3;
    full.most_chunk_bytes = full.most_chunk_bytes ? full.most_chunk_bytes : 16u << 20;
    return full;
}

void hr_plan_finish(struct hr_plan *plan)
{
    free(plan->chunk);
    *plan = (struct hr_plan){0};
}

/* GB/s are bytes a nanosecond, so bytes / gbps is a time. */
static double best_chunk(double gbps, uint32_t legs, double bytes, const struct hr_pipeline_costs *costs)
{
    return legs > 1 ? sqrt(bytes * costs->gap_ns * gbps / (legs - 1)) : bytes;
}

double hr_pipeline_path_ns(double gbps, uint32_t legs, double latency_ns, double bytes,
                           const struct hr_pipeline_costs *given)
{
    struct hr_pipeline_costs costs = hr_pipeline_costs_of(given);
    double chunk = hr_number_min(best_chunk(gbps, legs, bytes, &costs), bytes),
           count = hr_number_max(bytes / hr_number_max(chunk, 1), 1);
    double each = chunk / gbps, starts = costs.no_overlap ? count : 1;

    return latency_ns + bytes / gbps + starts * costs.start_ns + (legs - 1) * (each + costs.start_ns);
}

/* The bytes that a path moves within `ns`, in chunks of `coarse` times the best size. */
static double share_within(const struct hr_plan_path *path, double ns, double coarse,
                           const struct hr_pipeline_costs *costs)
{
    double relays = path->legs - 1, start = costs->start_ns;
    double left = ns - path->busy_ns - path->latency_ns - start;

    if (path->legs == 1)
        return left > 0 ? left * path->gbps : 0;
    /* x^2 + m * sqrt(gap * relays) * x + relays * start = left, where each start shows once more without overlap */
    double m = coarse + (costs->no_overlap ? 1 / coarse : 0), half = m * sqrt(costs->gap_ns * relays) / 2;
    double root = half * half - relays * start + left;
    double x = root > 0 ? sqrt(root) - half : 0;
    return x > 0 ? x * x * path->gbps : 0;
}

static double total_within(const struct hr_plan *plan, double ns, double coarse, const struct hr_pipeline_costs *costs)
{
    double sum = 0;

    for (uint32_t i = 0; i < plan->path_count; i++)
        sum += share_within(&plan->path[i], ns, coarse, costs);
    return sum;
}

/* The share in whole granules, or the nearest number of chunks where all have one size. */
static uint64_t whole_share(double share, const struct hr_pipeline_costs *costs)
{
    if (!costs->even_chunk_bytes)
        return (uint64_t)share / GRANULE * GRANULE;
    return (uint64_t)hr_number_round(share / (double)costs->even_chunk_bytes) * costs->even_chunk_bytes;
}

/* Shares with which all paths end together; those that would get less than a granule get nothing. When they end. */
static double divide(struct hr_plan *plan, double coarse, const struct hr_pipeline_costs *costs)
{
    double low = 0, high = 1e3;
    uint64_t given = 0;
    uint32_t most = 0;

    while (total_within(plan, high, coarse, costs) < (double)plan->bytes)
        high *= 2;
    for (int i = 0; i < 100 && high - low > 0.5; i++) {
        double middle = (low + high) / 2;
        if (total_within(plan, middle, coarse, costs) < (double)plan->bytes)
            low = middle;
        else
            high = middle;
    }
    for (uint32_t i = 0; i < plan->path_count; i++) {
        uint64_t share = whole_share(share_within(&plan->path[i], high, coarse, costs), costs);
        if (share > plan->bytes - given)
            share = plan->bytes - given;
        plan->path[i].bytes = share;
        given += share;
        if (share > plan->path[most].bytes)
            most = i;
    }
    plan->path[most].bytes += plan->bytes - given;
    return high;
}

static void leave_out_idle(struct hr_plan *plan)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < plan->path_count; i++) {
        if (plan->path[i].bytes > 0)
            plan->path[kept++] = plan->path[i];
    }
    plan->path_count = kept;
}

static void choose_chunks(struct hr_plan *plan, double coarse, const struct hr_pipeline_costs *costs)
{
    for (uint32_t i = 0; i < plan->path_count; i++) {
        struct hr_plan_path *path = &plan->path[i];
        double chunk = coarse * best_chunk(path->gbps, path->legs, (double)path->bytes, costs);
        double count = ceil((double)path->bytes / hr_number_max(chunk, GRANULE));
        double at_least = ceil((double)path->bytes / (double)costs->most_chunk_bytes);
        if (path->legs ==
            1) { /* cut for the sake of failures and of the balance between paths, as if there was a relay */
            double relayed = coarse * best_chunk(path->gbps, 2, (double)path->bytes, costs);
            at_least = hr_number_max(at_least, ceil((double)path->bytes / hr_number_max(relayed, GRANULE)));
            if (costs->no_overlap)
                at_least =
                    hr_number_min(at_least, floor((double)path->bytes / path->gbps * CUT_COST / costs->start_ns));
            if (plan->path_count == 1)
                at_least = 1;
        }
        count = hr_number_min(hr_number_max(hr_number_max(count, at_least), 1), MAX_CHUNKS);
        uint64_t bytes = (uint64_t)ceil((double)path->bytes / count);
        path->chunk_bytes = (bytes + GRANULE - 1) / GRANULE * GRANULE;
        if (costs->even_chunk_bytes)
            path->chunk_bytes = costs->even_chunk_bytes;
    }
}

static double issue_ns(const struct hr_plan *plan, const struct hr_pipeline_costs *costs)
{
    double sum = 0;

    for (uint32_t i = 0; i < plan->path_count; i++)
        sum += ceil((double)plan->path[i].bytes / (double)plan->path[i].chunk_bytes) * plan->path[i].legs;
    return sum * costs->issue_ns;
}

/* Coarser chunks than the paths alone would like, where else there were too many of them to issue in time. */
static void divide_and_choose(struct hr_plan *plan, const struct hr_pipeline_costs *costs)
{
    double coarse = 1;

    for (int round = 0; round < 4; round++) {
        double ns = divide(plan, coarse, costs);
        leave_out_idle(plan);
        choose_chunks(plan, coarse, costs);
        double over = issue_ns(plan, costs) / (ns * ISSUE_SHARE);
        if (over <= 1.05 || costs->even_chunk_bytes)
            break;
        coarse *= over;
    }
}

struct cutter {
    struct hr_plan *plan;
    uint32_t room;
    uint64_t left[HR_ROUTES_MAX_PATHS];  /* of the path's share */
    double busy_ns[HR_ROUTES_MAX_PATHS]; /* until when its first leg is taken */
};

/* The path that can begin a chunk first; path_count = all shares are used up. */
static uint32_t next_path(const struct cutter *cutter)
{
    uint32_t best = cutter->plan->path_count;

    for (uint32_t i = 0; i < cutter->plan->path_count; i++) {
        if (cutter->left[i] > 0 && (best == cutter->plan->path_count || cutter->busy_ns[i] < cutter->busy_ns[best]))
            best = i;
    }
    return best;
}

static int add_chunk(struct cutter *cutter, uint32_t path, uint64_t offset, uint64_t bytes)
{
    struct hr_plan *plan = cutter->plan;

    if (plan->chunk_count == cutter->room) {
        uint32_t room = cutter->room ? cutter->room * 2 : 64;
        struct hr_plan_chunk *chunk = realloc(plan->chunk, room * sizeof *chunk);
        if (!chunk)
            return -ENOMEM;
        plan->chunk = chunk;
        cutter->room = room;
    }
    plan->chunk[plan->chunk_count++] = (struct hr_plan_chunk){offset, bytes, path};
    plan->path[path].chunks++;
    cutter->left[path] -= bytes;
    cutter->busy_ns[path] += (double)bytes / plan->path[path].gbps;
    return 0;
}

/* Chunks in address order go to whichever path is free first, so that the target fills from the front. */
static int cut(struct hr_plan *plan, const struct hr_part *extents, uint32_t extent_count)
{
    struct cutter cutter = {.plan = plan};

    for (uint32_t i = 0; i < plan->path_count; i++)
        cutter.left[i] = plan->path[i].bytes;
    for (uint32_t i = 0; i < plan->path_count; i++)
        cutter.busy_ns[i] = plan->path[i].busy_ns;
    for (uint32_t i = 0; i < extent_count; i++) {
        uint64_t offset = extents[i].offset, left = extents[i].bytes;
        while (left > 0) {
            uint32_t path = next_path(&cutter);
            uint64_t chunk = plan->path[path].chunk_bytes, bytes = chunk;
            if (cutter.left[path] <= chunk + chunk / 4) /* no crumb at the end */
                bytes = cutter.left[path];
            bytes = bytes < left ? bytes : left;
            int rc = add_chunk(&cutter, path, offset, bytes);
            if (rc != 0)
                return rc;
            offset += bytes;
            left -= bytes;
        }
    }
    return 0;
}

static void predict(struct hr_plan *plan, const struct hr_pipeline_costs *costs)
{
    for (uint32_t i = 0; i < plan->path_count; i++) {
        const struct hr_plan_path *path = &plan->path[i];
        double chunk = (double)(path->chunk_bytes < path->bytes ? path->chunk_bytes : path->bytes);
        double starts = costs->no_overlap ? path->chunks : 1;
        double ns = path->busy_ns + path->latency_ns + (double)path->bytes / path->gbps + starts * costs->start_ns +
                    (path->legs - 1) * (chunk / path->gbps + costs->start_ns);
        plan->predicted_ns = hr_number_max(plan->predicted_ns, ns);
    }
    plan->predicted_ns = hr_number_max(plan->predicted_ns, issue_ns(plan, costs));
}

int hr_pipeline_plan(const struct hr_routes *routes, const struct hr_part *extents, uint32_t extent_count,
                     const struct hr_pipeline_costs *given, struct hr_plan *plan_out)
{
    struct hr_pipeline_costs costs = hr_pipeline_costs_of(given);
    struct hr_plan plan = {.path_count = routes->path_count};

    for (uint32_t i = 0; i < extent_count; i++)
        plan.bytes += extents[i].bytes;
    if (plan.bytes == 0 || routes->path_count == 0)
        return -EINVAL;
    for (uint32_t i = 0; i < routes->path_count; i++) {
        const struct hr_path *path = &routes->path[i];
        plan.path[i] = (struct hr_plan_path){.route = i,
                                             .legs = path->legs,
                                             .gbps = (double)path->mbps / 1000,
                                             .latency_ns = path->latency_ns,
                                             .busy_ns = costs.busy_ns ? costs.busy_ns[i] : 0};
    }
    divide_and_choose(&plan, &costs);
    int rc = cut(&plan, extents, extent_count);
    if (rc != 0) {
        hr_plan_finish(&plan);
        return rc;
    }
    predict(&plan, &costs);
    *plan_out = plan;
    return 0;
}
