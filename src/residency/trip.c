#include "residency/trip.h"

#include "base/config.h"
#include "base/lock.h"
#include "base/log.h"
#include "fabric/probing.h"
#include "residency/context.h"
#include "residency/gpu.h"
#include "residency/peers.h"
#include "space/space.h"
#include "stats/stats.h"
#include "tier/tier.h"

#include <errno.h>
#include <stdlib.h>

#define MOST_CHUNK_BYTES (UINT64_C(8) << 20)
#define LEAST_CHUNK_BYTES (UINT64_C(256) << 10)
#define CHUNK_SHARE 96 /* a relay's eighth of the VRAM has room for the slots of four paths */
#define SLOT_ALIGN 4096
#define GAP_NS 2000 /* between two chunks on two streams */
#define SETUP_NS 15000
#define CROWD_CHUNK_BYTES (UINT64_C(2) << 20) /* of all transfers that share links */
#define ISSUE_NS 2800                         /* a copy, one or two waits for events and the record of one */

/* ---- contexts ---- */

/* Of GPUs that the job does not use. Their streams and events are ours alone, so they are never registered. */
static struct hr_mutex own_lock = HR_MUTEX_INIT(HR_RANK_MOVE + 1, "own contexts");
static CUcontext own[HR_MAX_GPUS];  /* guarded by own_lock */
static bool own_tried[HR_MAX_GPUS]; /* guarded by own_lock */

static CUcontext own_context(unsigned gpu)
{
    CUcontext ignored;
    hr_mutex_lock(&own_lock);
    if (!own_tried[gpu]) {
        own_tried[gpu] = true;
        if (hr_drv.cuCtxCreate_v2(&own[gpu], 0, hr_gpu_device(gpu)) == CUDA_SUCCESS) {
            hr_gpu_context_made(gpu);
            hr_drv.cuCtxPopCurrent_v2(&ignored);
        } else {
            own[gpu] = NULL;
            hr_log(HR_LOG_INFO, "GPU %u cannot pass data on: a context could not be made there", gpu);
        }
    }
    CUcontext context = own[gpu];
    hr_mutex_unlock(&own_lock);
    return context;
}

CUcontext hr_trip_context(unsigned gpu)
{
    struct hr_context *context = hr_context_of_gpu(gpu);
    if (context)
        return context->handle;
    return hr_config()->peers == HR_PEERS_ALL ? own_context(gpu) : NULL;
}

static uint64_t relay_mask(const struct hr_fabric *fabric)
{
    uint64_t mask = 0;
    if (hr_config()->peers == HR_PEERS_OFF)
        return 0;
    for (uint32_t g = 0; g < hr_fabric_gpus(fabric); g++) {
        int ordinal = hr_fabric_ordinal(fabric, g);
        if (ordinal >= 0 && (unsigned)ordinal < hr_gpu_count() && hr_trip_context((unsigned)ordinal))
            mask |= UINT64_C(1) << g;
    }
    return mask;
}

/* ---- planning ---- */

static bool out_of_reach(const struct hr_transfer *asked)
{
    return !asked->to_chunks && !hr_peers_reach(asked->from_gpu, asked->to_gpu) &&
           !hr_peers_reach(asked->to_gpu, asked->from_gpu);
}

/* A direct path without peer access lands on the destination first, and needs slots there like a relay. */
static bool lands(const struct hr_transfer *asked, const struct hr_path *path)
{
    return path->legs == 1 && out_of_reach(asked);
}

/* Chunks as large as the smallest GPU in between has slots for. */
static uint64_t most_chunk_bytes(void)
{
    uint64_t most = MOST_CHUNK_BYTES;
    for (unsigned g = 0; g < hr_gpu_count(); g++) {
        uint64_t share = ((uint64_t)hr_tier_vram_limit(g) << hr_space.chunk_shift) / CHUNK_SHARE;
        most = share < most ? share : most;
    }
    return most > LEAST_CHUNK_BYTES ? most / SLOT_ALIGN * SLOT_ALIGN : LEAST_CHUNK_BYTES;
}

static bool make_plan(struct hr_trips *trips, const struct hr_part *extents, uint32_t count)
{
    /* What one thread issues runs at the same time, so each transfer has its part of the thread's time. */
    struct hr_pipeline_costs costs = {.slots = HR_TRIP_SLOTS,
                                      .gap_ns = GAP_NS,
                                      .most_chunk_bytes = most_chunk_bytes(),
                                      .issue_ns = ISSUE_NS * (1 + (double)trips->ahead)};
    struct hr_routes *routes = &trips->routes;
    uint64_t landing = 0;
    if (trips->crowd == HR_CROWD_SHARES)
        costs.even_chunk_bytes =
            costs.most_chunk_bytes < CROWD_CHUNK_BYTES ? costs.most_chunk_bytes : CROWD_CHUNK_BYTES;
    for (uint32_t i = 0; i < routes->path_count; i++) {
        if (!lands(&trips->asked, &routes->path[i]))
            continue;
        landing |= UINT64_C(1) << i;
        routes->path[i].legs = 2; /* for the plan, the step on the destination is one */
    }
    int rc = hr_pipeline_plan(routes, extents, count, &costs, &trips->plan);
    for (uint32_t i = 0; i < routes->path_count; i++)
        if (landing >> i & 1)
            routes->path[i].legs = 1;
    return rc == 0;
}

/* Who does each leg, see transfer.h. */
static bool choose_gpus(const struct hr_trips *trips, const struct hr_path *path, struct hr_trip *trip)
{
    const struct hr_transfer *asked = &trips->asked;
    bool landing = lands(asked, path);
    trip->legs = path->legs + landing;
    if (trip->legs > HR_TRIP_LEGS)
        return false;
    trip->gpu[0] = asked->from_gpu;
    if (trip->legs == 1 && asked->to_chunks)
        trip->gpu[0] = asked->window_gpu;
    else if (trip->legs == 1 && !hr_peers_reach(asked->from_gpu, asked->to_gpu))
        trip->gpu[0] = asked->to_gpu;
    for (unsigned k = 1; k < trip->legs; k++)
        trip->gpu[k] = k + 1 == trip->legs ? asked->to_gpu : (unsigned)hr_fabric_ordinal(trips->fabric, path->gpu[k]);
    return true;
}

static size_t largest_chunk(const struct hr_plan *plan, uint32_t path)
{
    size_t most = 0;
    for (uint32_t i = 0; i < plan->chunk_count; i++)
        if (plan->chunk[i].path == path && plan->chunk[i].bytes > most)
            most = plan->chunk[i].bytes;
    return (most + SLOT_ALIGN - 1) / SLOT_ALIGN * SLOT_ALIGN;
}

static void trip_finish(struct hr_trip *trip)
{
    for (unsigned k = 0; k < trip->legs; k++) {
        if (trip->track[k])
            hr_track_give(trip->track[k]);
        if (trip->relay[k])
            hr_relay_give(trip->relay[k]);
    }
}

/*
 * A block could not be shared with those that write and read it, whatever the topology says (no peer access between these, or no connections
 * left): nobody tries these legs again.
 */
static void block_legs(struct hr_trips *trips, const struct hr_path *path, unsigned leg, CUresult r)
{
    for (unsigned k = leg; k < leg + 2 && k < path->legs; k++) {
        hr_log(HR_LOG_INFO, "GPU %d and GPU %d cannot share memory (driver error %d): transfers go other ways",
               hr_fabric_ordinal(trips->fabric, path->gpu[k]), hr_fabric_ordinal(trips->fabric, path->gpu[k + 1]),
               (int)r);
        hr_fabric_link_changed(trips->fabric, path->gpu[k], path->gpu[k + 1], false);
    }
}

/* What is in the way goes to *full_out: the GPU that has no room, or HR_MAX_GPUS for legs that are blocked from now on. */
static bool trip_begin(struct hr_trips *trips, uint32_t number, unsigned *full_out)
{
    struct hr_trip *trip = &trips->trip[number];
    const struct hr_path *path = &trips->routes.path[trips->plan.path[number].route];
    CUresult r = choose_gpus(trips, path, trip) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    trip->slot_bytes = largest_chunk(&trips->plan, number);
    for (unsigned k = 0; k < trip->legs && r == CUDA_SUCCESS; k++) {
        CUcontext context = hr_trip_context(trip->gpu[k]);
        *full_out = trip->gpu[k];
        r = context ? hr_track_take(context, &trip->track[k]) : CUDA_ERROR_INVALID_CONTEXT;
    }
    for (unsigned k = 0; k + 1 < trip->legs && r == CUDA_SUCCESS; k++) {
        /* Its block is on the GPU that does the next leg: a relay sends on, the destination fetches from the relay before it. */
        unsigned at =
            path->legs == 1 ? trips->asked.to_gpu : (unsigned)hr_fabric_ordinal(trips->fabric, path->gpu[k + 1]);
        uint64_t users = UINT64_C(1) << trip->gpu[k] | UINT64_C(1) << trip->gpu[k + 1];
        *full_out = at;
        r = hr_drv.cuCtxSetCurrent(trip->track[k + 1]->context); /* which is on that GPU */
        if (r != CUDA_SUCCESS)
            break;
        r = hr_relay_take(at, HR_TRIP_SLOTS * trip->slot_bytes, users, &trip->relay[k]);
        if (r != CUDA_SUCCESS && r != CUDA_ERROR_OUT_OF_MEMORY && !trips->asked.to_chunks) {
            block_legs(trips, path, k, r);
            *full_out = HR_MAX_GPUS;
        }
    }
    return r == CUDA_SUCCESS;
}

/* Whether it is sooner done than by the driver's copy over the direct path, if that is within reach. */
static bool is_sooner(const struct hr_trips *trips, uint64_t bytes)
{
    for (uint32_t i = 0; i < trips->routes.path_count; i++) {
        const struct hr_path *path = &trips->routes.path[i];
        double direct_ns = (double)bytes * 1000 / (double)path->mbps;
        if (path->legs == 1 && !lands(&trips->asked, path))
            return trips->plan.predicted_ns + SETUP_NS < direct_ns;
    }
    return true;
}

/* With HEADROOM_ROUTES=probe what only repairs, and moves, go by the links: they are no samples of what the job's copies reach. */
static int choose_routes(struct hr_trips *trips, uint64_t bytes, uint64_t mask, bool only_if_worth)
{
    uint32_t from = (uint32_t)hr_fabric_gpu(trips->fabric, (int)trips->asked.from_gpu);
    uint32_t to = (uint32_t)hr_fabric_gpu(trips->fabric, (int)trips->asked.to_gpu);
    int rc = -EAGAIN;
    if (only_if_worth && !trips->asked.to_chunks && hr_config()->routes == HR_ROUTES_PROBE)
        rc = hr_probing_route(trips->fabric, trips->view, from, to, mask, &trips->routes);
    trips->timed = rc == 0;
    if (rc != -EAGAIN)
        return rc;
    struct hr_fabric_asked asked = {
        .from_gpu = from, .to_gpu = to, .bytes = bytes, .relay_mask = mask, .crowd = trips->crowd};
    return hr_fabric_route(trips->fabric, trips->view, &asked, &trips->routes);
}

/* One attempt: 1 = all is there, 0 = not so (why: in *full_out), -1 = not at all. */
static int try_plan(struct hr_trips *trips, const struct hr_part *extents, uint32_t count, uint64_t mask,
                    bool only_if_worth, unsigned *full_out)
{
    const struct hr_transfer *asked = &trips->asked;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < count; i++)
        bytes += extents[i].bytes;
    if (choose_routes(trips, bytes, mask, only_if_worth) != 0)
        return -1;
    /* What a timed path is worth will be seen; in a crowd all go by one plan. */
    only_if_worth = only_if_worth && !trips->timed && trips->crowd == HR_CROWD_NONE;
    if (only_if_worth && trips->routes.path_count == 1 && trips->routes.path[0].legs == 1 &&
        !lands(asked, &trips->routes.path[0]))
        return -1;
    if (!make_plan(trips, extents, count) || (only_if_worth && !is_sooner(trips, bytes)))
        return -1;
    trips->trip = calloc(trips->plan.path_count, sizeof *trips->trip);
    if (!trips->trip)
        return -1;
    for (uint32_t i = 0; i < trips->plan.path_count; i++)
        if (!trip_begin(trips, i, full_out))
            return 0;
    return 1;
}

static void unplan(struct hr_trips *trips)
{
    for (uint32_t i = 0; trips->trip && i < trips->plan.path_count; i++)
        trip_finish(&trips->trip[i]);
    free(trips->trip);
    trips->trip = NULL;
    hr_plan_finish(&trips->plan);
    hr_routes_finish(&trips->routes);
}

/* Some context of ours is current inside, the job's again afterwards. */
static bool push(CUcontext context)
{
    return context && hr_drv.cuCtxPushCurrent_v2(context) == CUDA_SUCCESS;
}

/* One that cannot end meanwhile. */
static CUcontext kept_context(const struct hr_trips *trips)
{
    return trips->trip[0].track[0]->context;
}

static void pop(void)
{
    CUcontext ignored;
    hr_drv.cuCtxPopCurrent_v2(&ignored);
}

bool hr_trips_plan(struct hr_trips *trips, const struct hr_transfer *asked, const struct hr_part *extents,
                   uint32_t count, uint32_t ahead, bool only_if_worth)
{
    struct hr_fabric *fabric;
    int done = 0;
    *trips = (struct hr_trips){.asked = *asked, .ahead = ahead};
    if (hr_fabric_get(&fabric) != 0)
        return false;
    int from = hr_fabric_gpu(fabric, (int)asked->from_gpu), to = hr_fabric_gpu(fabric, (int)asked->to_gpu);
    if (from < 0 || to < 0)
        return false;
    trips->fabric = fabric;
    trips->view = hr_fabric_take(fabric);
    bool as_good = only_if_worth && hr_config()->routes == HR_ROUTES_FLOW && !out_of_reach(asked) &&
                   hr_fabric_direct_only(trips->view, (uint32_t)from, (uint32_t)to);
    if (as_good || !push(hr_trip_context(asked->from_gpu))) {
        hr_fabric_drop(fabric, trips->view);
        return false;
    }
    uint64_t mask = relay_mask(fabric);
    trips->crowd = hr_fabric_crowd(fabric, trips->view);
    for (uint32_t attempt = 0; attempt <= hr_fabric_gpus(fabric) && done == 0; attempt++) {
        unsigned full = asked->from_gpu;
        done = try_plan(trips, extents, count, mask, only_if_worth, &full);
        if (done == 1)
            break;
        unplan(trips);
        if (full == HR_MAX_GPUS)
            continue;
        int relay = hr_fabric_gpu(fabric, (int)full);
        if (relay < 0 || !(mask >> relay & 1) || full == asked->from_gpu || full == asked->to_gpu)
            done = -1;
        else
            mask &= ~(UINT64_C(1) << relay);
    }
    pop();
    if (done != 1) {
        hr_fabric_drop(fabric, trips->view);
        return false;
    }
    hr_fabric_charge(fabric, trips->view, &trips->routes);
    trips->charged = true;
    return true;
}

void hr_trips_finish(struct hr_trips *trips)
{
    if (trips->charged) {
        hr_fabric_release(trips->fabric, trips->view, &trips->routes);
        hr_fabric_drop(trips->fabric, trips->view);
    }
    unplan(trips);
}

/* ---- running ---- */

static CUdeviceptr place(CUdeviceptr whole, const CUdeviceptr *chunks, uint64_t offset)
{
    return chunks ? chunks[offset >> hr_space.chunk_shift] + (offset & (hr_chunk_bytes() - 1)) : whole + offset;
}

/* Leg k of the path's chunk n. */
static CUresult submit_leg(const struct hr_trips *trips, const struct hr_trip *trip, uint32_t n, unsigned k,
                           CUevent before)
{
    const struct hr_plan_chunk *chunk = trip->recent[n % HR_TRIP_LEGS];
    struct hr_track *track = trip->track[k];
    bool last = k + 1 == trip->legs;
    CUstream stream = track->stream[n % HR_TRACK_STREAMS];
    CUdeviceptr slot = (CUdeviceptr)(n % HR_TRIP_SLOTS) * trip->slot_bytes;
    const struct hr_transfer *asked = &trips->asked;
    CUdeviceptr from =
        k == 0 ? place(asked->from, asked->from_chunks, chunk->offset) : trip->relay[k - 1]->address + slot;
    CUdeviceptr to = last ? place(asked->to, asked->to_chunks, chunk->offset) : trip->relay[k]->address + slot;
    CUresult r = hr_drv.cuCtxSetCurrent(track->context);
    if (r == CUDA_SUCCESS && k == 0 && n < HR_TRACK_STREAMS && before)
        r = hr_drv.cuStreamWaitEvent(stream, before, 0);
    if (r == CUDA_SUCCESS && k > 0)
        r = hr_drv.cuStreamWaitEvent(stream, trip->track[k - 1]->event[n % HR_TRACK_EVENTS], 0);
    if (r == CUDA_SUCCESS && !last && n >= HR_TRIP_SLOTS) /* the slot's last chunk has gone on */
        r = hr_drv.cuStreamWaitEvent(stream, trip->track[k + 1]->event[(n - HR_TRIP_SLOTS) % HR_TRACK_EVENTS], 0);
    if (r == CUDA_SUCCESS && k == 0 && n == 0 && trips->timed)
        r = hr_drv.cuEventRecord(track->timed[0], stream);
    if (r == CUDA_SUCCESS)
        r = hr_drv.cuMemcpyDtoDAsync_v2(to, from, chunk->bytes, stream);
    if (r == CUDA_SUCCESS && trip->legs > 1)
        r = hr_drv.cuEventRecord(track->event[n % HR_TRACK_EVENTS], stream);
    return r;
}

/*
 * The legs of a path that can begin at about the same time: the first one of chunk n, the second of the one before, and so on. Each chunk's
 * legs one after another would keep other paths' first chunks waiting for the host.
 */
static CUresult submit_step(const struct hr_trips *trips, const struct hr_trip *trip, uint32_t n, CUevent before)
{
    CUresult r = CUDA_SUCCESS;
    for (unsigned k = 0; k < trip->legs && k <= n && r == CUDA_SUCCESS; k++)
        if (n - k < trip->chunks)
            r = submit_leg(trips, trip, n - k, k, before);
    return r;
}

static unsigned streams_used(const struct hr_trip *trip)
{
    return trip->chunks < HR_TRACK_STREAMS ? trip->chunks : HR_TRACK_STREAMS;
}

static CUresult record_ends(const struct hr_trips *trips)
{
    CUresult r = CUDA_SUCCESS;
    for (uint32_t i = 0; i < trips->plan.path_count && r == CUDA_SUCCESS; i++) {
        const struct hr_trip *trip = &trips->trip[i];
        struct hr_track *track = trip->track[trip->legs - 1];
        r = hr_drv.cuCtxSetCurrent(track->context);
        for (unsigned s = 0; s < streams_used(trip) && r == CUDA_SUCCESS; s++)
            r = hr_drv.cuEventRecord(track->end[s], track->stream[s]);
    }
    return r;
}

/*
 * Drivers tell the time between events of one device only, so a stream of the first leg, which has nothing left to do, waits for the ends of
 * the last one. Nobody waits for that stream but who wants to know the time.
 */
static CUresult record_arrival(const struct hr_trips *trips)
{
    const struct hr_trip *trip = &trips->trip[0];
    const struct hr_track *first = trip->track[0], *last = trip->track[trip->legs - 1];
    CUresult r = hr_drv.cuCtxSetCurrent(first->context);
    for (unsigned s = 0; s < streams_used(trip) && r == CUDA_SUCCESS; s++)
        r = hr_drv.cuStreamWaitEvent(first->stream[0], last->end[s], 0);
    return r == CUDA_SUCCESS ? hr_drv.cuEventRecord(first->timed[1], first->stream[0]) : r;
}

void hr_trips_tell_time(const struct hr_trips *trips)
{
    if (!trips->timed || !(trips->took_ns > 0))
        return;
    struct hr_probed_sample sample = {.bytes = trips->plan.bytes,
                                      .chunk_bytes = trips->plan.path[0].chunk_bytes,
                                      .legs = trips->trip[0].legs,
                                      .elapsed_ns = trips->took_ns};
    hr_probing_took(trips->view, &trips->routes, &sample);
}

static void count_sent(const struct hr_trips *trips)
{
    for (uint32_t i = 0; i < trips->plan.chunk_count; i++) {
        const struct hr_plan_chunk *chunk = &trips->plan.chunk[i];
        const struct hr_path *path = &trips->routes.path[trips->plan.path[chunk->path].route];
        for (uint32_t leg = 0; leg < path->legs; leg++)
            hr_stats_sent((unsigned)hr_fabric_ordinal(trips->fabric, path->gpu[leg]),
                          (unsigned)hr_fabric_ordinal(trips->fabric, path->gpu[leg + 1]),
                          path->legs > 1 ? HR_SENT_RELAYED : HR_SENT_DIRECT, chunk->bytes);
    }
}

CUresult hr_trips_submit(struct hr_trips *trips, CUevent before)
{
    CUresult r = CUDA_SUCCESS;
    if (!push(kept_context(trips)))
        return CUDA_ERROR_INVALID_CONTEXT;
    for (uint32_t i = 0; i < trips->plan.chunk_count && r == CUDA_SUCCESS; i++) {
        struct hr_trip *trip = &trips->trip[trips->plan.chunk[i].path];
        trip->recent[trip->chunks % HR_TRIP_LEGS] = &trips->plan.chunk[i];
        trip->chunks++;
        r = submit_step(trips, trip, trip->chunks - 1, before);
    }
    for (uint32_t behind = 0; behind + 1 < HR_TRIP_LEGS; behind++)
        for (uint32_t i = 0; i < trips->plan.path_count && r == CUDA_SUCCESS; i++)
            r = submit_step(trips, &trips->trip[i], trips->trip[i].chunks + behind, before);
    if (r == CUDA_SUCCESS) {
        r = record_ends(trips);
        if (r == CUDA_SUCCESS && trips->timed)
            r = record_arrival(trips);
        count_sent(trips);
    }
    pop();
    return r;
}

CUresult hr_trips_follow(const struct hr_trips *trips, CUstream stream, bool per_thread)
{
    CUresult r = CUDA_SUCCESS;
    for (uint32_t i = 0; i < trips->plan.path_count && r == CUDA_SUCCESS; i++) {
        const struct hr_trip *trip = &trips->trip[i];
        const struct hr_track *track = trip->track[trip->legs - 1];
        for (unsigned s = 0; s < streams_used(trip) && r == CUDA_SUCCESS; s++)
            r = per_thread ? hr_drv.cuStreamWaitEvent_ptsz(stream, track->end[s], 0)
                           : hr_drv.cuStreamWaitEvent(stream, track->end[s], 0);
    }
    return r;
}

/* Whatever else fails, what is under way is waited for: it writes to memory that somebody else gets next. A stream can be waited for from any context. */
CUresult hr_trips_wait(const struct hr_trips *trips)
{
    CUresult first = CUDA_SUCCESS;
    bool pushed = push(kept_context(trips));
    for (uint32_t i = 0; i < trips->plan.path_count; i++) {
        const struct hr_trip *trip = &trips->trip[i];
        for (unsigned k = 0; k < trip->legs; k++) {
            if (pushed)
                hr_drv.cuCtxSetCurrent(trip->track[k]->context);
            CUresult r = hr_track_wait(trip->track[k]);
            if (r != CUDA_SUCCESS)
                first = hr_context_first_error(first, r);
        }
    }
    if (pushed)
        pop();
    return first;
}

/* Asked before the tracks are given back, and here because it may be told errors. */
static bool has_arrived(struct hr_trips *trips, CUresult *error_out)
{
    const CUevent *timed = trips->trip[0].track[0]->timed;
    float ms = 0;
    CUresult r = hr_drv.cuEventQuery(timed[1]);
    if (r == CUDA_SUCCESS)
        r = hr_drv.cuEventElapsedTime(&ms, timed[0], timed[1]);
    if (r == CUDA_ERROR_NOT_READY)
        return false;
    if (r != CUDA_SUCCESS)
        *error_out = r;
    trips->took_ns = (double)ms * 1e6;
    return true;
}

/*
 * The ends are behind everything; but each context tells its own errors, so one stream of each that took part is asked as well.
 */
bool hr_trips_rest(struct hr_trips *trips, CUresult *error_out)
{
    bool rest = true;
    uint64_t asked = 0;
    for (uint32_t i = 0; i < trips->plan.path_count && rest; i++) {
        const struct hr_trip *trip = &trips->trip[i];
        const struct hr_track *track = trip->track[trip->legs - 1];
        for (unsigned s = 0; s < streams_used(trip) && rest; s++) {
            CUresult r = hr_drv.cuEventQuery(track->end[s]);
            rest = r != CUDA_ERROR_NOT_READY;
            if (rest && r != CUDA_SUCCESS)
                *error_out = r;
        }
    }
    if (rest && trips->timed)
        rest = has_arrived(trips, error_out);
    for (uint32_t i = 0; i < trips->plan.path_count && rest; i++) {
        const struct hr_trip *trip = &trips->trip[i];
        for (unsigned k = 0; k < trip->legs; k++) {
            if (asked >> trip->gpu[k] & 1)
                continue;
            asked |= UINT64_C(1) << trip->gpu[k];
            hr_track_rests(trip->track[k], error_out);
        }
    }
    return rest;
}

bool hr_trips_use(const struct hr_trips *trips, CUcontext context)
{
    for (uint32_t i = 0; i < trips->plan.path_count; i++)
        for (unsigned k = 0; k < trips->trip[i].legs; k++)
            if (trips->trip[i].track[k]->context == context)
                return true;
    return false;
}
