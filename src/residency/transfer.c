/*
 * A failed link is told once, by a call that waits or asks, and not which copy it hit; the job's stream may have gone on by then. So what was lost
 * is copied again only while nothing but transfers was submitted since: then no work of the job can have seen the gap. Which chunks: those of
 * paths that used a link that is down now, or all of them where nobody can tell.
 */
#include "residency/transfer.h"

#include "base/clock.h"
#include "base/lock.h"
#include "base/log.h"
#include "residency/access.h"
#include "residency/capture.h"
#include "residency/context.h"
#include "residency/lane.h"
#include "residency/trip.h"
#include "shim/gate.h"
#include "space/space.h"
#include "stats/stats.h"

#include <stdlib.h>

#define GIVEN_UP_MOST 3 /* in a row, of one pair: each holds the job until what was begun is done */
#define REPAIRS_MOST 16 /* attempts; each takes at least one link out of the machine */

struct running {
    struct hr_trips trips;
    uint64_t entered; /* submissions begun up to and with this one's */
    const struct hr_thread *issuer;
    bool suspect; /* a link failed while it ran */
    bool beside;  /* other work that may use links was under way when it began */
    bool rests;   /* all of it is done, as far as was asked */
    struct running *next;
};
static struct hr_mutex running_lock = HR_MUTEX_INIT(HR_RANK_FENCE + 2, "transfers");
static struct running *running;       /* guarded by running_lock: newest first */
static _Atomic(uint32_t) running_any; /* how many */

#define PLAN_NS UINT64_C(1000000)    /* between two looks whether what was planned runs by now */
#define ASK_NS UINT64_C(1000000)     /* between two questions whether everything is at rest */
static _Atomic(bool) others;         /* work beside transfers may have used links since everything was at rest */
static _Atomic(uint64_t) asked_ns;   /* when that was asked last */
static _Atomic(uint64_t) begun;      /* transfers, and times at which other work was found to be over */
static _Atomic(uint32_t) beside_any; /* copies of moves under way */

static _Atomic(uint8_t) given_up[HR_MAX_GPUS][HR_MAX_GPUS]; /* in a row */

static bool is_link_error(CUresult r)
{
    return r == CUDA_ERROR_NVLINK_UNCORRECTABLE;
}

/* ---- starting ---- */

void hr_transfer_note_others(void)
{
    if (!atomic_load_explicit(&others, memory_order_relaxed))
        atomic_store(&others, true);
}

/*
 * A link's failure is told without the work that it hit, and once. If that may have been anything but transfers, they must not take the
 * error upon themselves. (In a submission: what this thread is about to begin is not under way yet.)
 */
static bool others_run(void)
{
    if (!atomic_load(&others))
        return false;
    uint64_t now_ns = hr_clock_ns();
    if (now_ns - atomic_load(&asked_ns) < ASK_NS)
        return true;
    atomic_store(&asked_ns, now_ns);
    atomic_store(&others, false);
    if (hr_quiet_now(HR_ALL_GPUS)) {
        atomic_fetch_add(&begun, 1);
        return false;
    }
    atomic_store(&others, true);
    return true;
}

static void count_bytes(const struct hr_trips *trips)
{
    uint64_t direct = 0;
    for (uint32_t i = 0; i < trips->plan.path_count; i++)
        if (trips->routes.path[trips->plan.path[i].route].legs == 1)
            direct += trips->plan.path[i].bytes;
    struct hr_thread *t = hr_thread_self();
    hr_stat_add(t, HR_STAT_transfers, 1);
    hr_stat_add(t, HR_STAT_transfer_direct_bytes, direct);
    hr_stat_add(t, HR_STAT_transfer_relayed_bytes, trips->asked.bytes - direct);
}

static void put_in(struct running *run)
{
    hr_mutex_lock(&running_lock);
    run->next = running;
    running = run;
    atomic_fetch_add(&running_any, 1);
    atomic_fetch_add(&begun, 1);
    hr_mutex_unlock(&running_lock);
}

/* What was told while something of ours was waited for may be about anything that ran. */
static void pass_on(CUresult r)
{
    if (is_link_error(r) && (atomic_load(&running_any) != 0 || atomic_load(&others)))
        hr_context_heard(r);
}

/* What was begun is done before this returns, so that it can be begun again in another way. */
static void give_up(struct running *run, CUevent before)
{
    pass_on(hr_trips_wait(&run->trips));
    hr_trips_finish(&run->trips);
    if (before)
        hr_drv.cuEventDestroy_v2(before);
    free(run);
}

static struct running *unlink_locked(struct running **link) HR_REQUIRES(running_lock)
{
    struct running *run = *link;
    *link = run->next;
    atomic_fetch_sub(&running_any, 1);
    return run;
}

static void finish_all(struct running *list)
{
    while (list) {
        struct running *next = list->next;
        if (!list->suspect)
            hr_trips_tell_time(&list->trips);
        hr_trips_finish(&list->trips);
        free(list);
        list = next;
    }
}

/* Puts the oldest ones away up to the first that runs: one question where there is nothing to do. After an error all stay. */
static void reap_oldest(void)
{
    struct running *done = NULL;
    CUresult error = CUDA_SUCCESS;
    hr_mutex_lock(&running_lock);
    while (running) {
        struct running **link = &running;
        while ((*link)->next)
            link = &(*link)->next;
        if ((*link)->suspect || !hr_trips_rest(&(*link)->trips, &error) || error != CUDA_SUCCESS ||
            hr_context_link_told())
            break;
        struct running *run = unlink_locked(link);
        run->next = done;
        done = run;
    }
    for (struct running *run = running; run && is_link_error(error); run = run->next)
        run->suspect = true;
    hr_mutex_unlock(&running_lock);
    finish_all(done);
}

static uint32_t issued_by(const struct hr_thread *t)
{
    uint32_t count = 0;
    hr_mutex_lock(&running_lock);
    for (const struct running *run = running; run; run = run->next)
        count += run->issuer == t;
    hr_mutex_unlock(&running_lock);
    return count;
}

static void note_given_up(const struct hr_transfer *asked, CUresult r)
{
    bool last = atomic_fetch_add(&given_up[asked->from_gpu][asked->to_gpu], 1) + 1 == GIVEN_UP_MOST;
    hr_log(last ? HR_LOG_WARN : HR_LOG_INFO, "a transfer from GPU %u to GPU %u was given up (driver error %d)%s",
           asked->from_gpu, asked->to_gpu, (int)r, last ? ": from now on the driver copies between them" : "");
}

CUresult hr_transfer_start(const struct hr_transfer *asked, bool *done_out)
{
    struct hr_part whole = {0, asked->bytes};
    struct hr_fabric *fabric;
    CUevent before;
    HR_RELAXED();
    *done_out = false;
    if (!hr_transfer_worth(asked->bytes) || hr_fabric_get(&fabric) != 0 ||
        hr_capture_takes(asked->stream, asked->per_thread) || /* events that it would record are nodes of its graph */
        atomic_load(&given_up[asked->from_gpu][asked->to_gpu]) >= GIVEN_UP_MOST)
        return CUDA_SUCCESS;
    hr_fabric_refresh(fabric);
    reap_oldest();
    struct running *run = calloc(1, sizeof *run);
    if (!run || !hr_trips_plan(&run->trips, asked, &whole, 1, issued_by(hr_thread_self()), true)) {
        hr_stat_add(hr_thread_self(), HR_STAT_transfers_left, 1);
        free(run);
        return CUDA_SUCCESS;
    }
    run->beside = others_run(); /* it may ask every stream: not for what is left to the driver */
    if (hr_lane_mark(asked->stream, asked->per_thread, &before) != CUDA_SUCCESS) {
        give_up(run, NULL);
        return CUDA_SUCCESS;
    }
    CUresult r = hr_trips_submit(&run->trips, before);
    if (r == CUDA_SUCCESS && asked->wait) {
        r = hr_trips_wait(&run->trips);
        run->suspect = is_link_error(r);
        run->beside = run->beside || atomic_load(&others); /* begun since, and perhaps what it is about */
        pass_on(r);
        r = run->suspect ? CUDA_SUCCESS : r;
    } else if (r == CUDA_SUCCESS) {
        r = hr_trips_follow(&run->trips, asked->stream, asked->per_thread);
    }
    if (r != CUDA_SUCCESS) {
        note_given_up(asked, r);
        give_up(run, before);
        return CUDA_SUCCESS; /* the driver's own copy will say whatever is wrong */
    }
    hr_drv.cuEventDestroy_v2(before); /* what waits for it goes on doing so */
    if (atomic_load(&given_up[asked->from_gpu][asked->to_gpu]))
        atomic_store(&given_up[asked->from_gpu][asked->to_gpu], 0);
    run->entered = hr_gate_entered();
    run->issuer = hr_thread_self();
    count_bytes(&run->trips);
    put_in(run);
    *done_out = true;
    return CUDA_SUCCESS;
}

/* ---- putting away ---- */

/*
 * Takes out what is done: whole transfers into a list to free, suspect ones into *suspects_out, oldest first. Which of those that run met
 * the failed link that a query tells of cannot be known.
 */
static struct running *take_done_locked(struct running **suspects_out) HR_REQUIRES(running_lock)
{
    struct running *done = NULL;
    CUresult error = CUDA_SUCCESS;
    for (struct running *run = running; run; run = run->next)
        run->rests = hr_trips_rest(&run->trips, &error);
    if (is_link_error(error) || (running && hr_context_link_failed()))
        for (struct running *run = running; run; run = run->next)
            run->suspect = true;
    for (struct running **link = &running; *link;) {
        if (!(*link)->rests) {
            link = &(*link)->next;
            continue;
        }
        struct running *run = unlink_locked(link);
        struct running **list = run->suspect ? suspects_out : &done;
        run->next = *list; /* newest first became oldest first */
        *list = run;
    }
    return done;
}

bool hr_transfer_any(void)
{
    return atomic_load_explicit(&running_any, memory_order_relaxed) != 0 || hr_context_link_told() ||
           atomic_load_explicit(&beside_any, memory_order_relaxed) != 0;
}

void hr_transfer_beside_begin(struct hr_beside *beside_out)
{
    atomic_fetch_add(&beside_any, 1);
    beside_out->others = others_run() || atomic_load(&running_any) != 0;
    beside_out->begun = atomic_load(&begun);
    beside_out->told = hr_context_times_told();
}

CUresult hr_transfer_beside_end(const struct hr_beside *beside, CUresult r)
{
    bool told_elsewhere = hr_context_times_told() != beside->told;
    atomic_fetch_sub(&beside_any, 1);
    if (!told_elsewhere && !is_link_error(r))
        return r;
    hr_fabric_doubt();
    bool alone = !beside->others && atomic_load(&begun) == beside->begun && !atomic_load(&others);
    if (is_link_error(r) && !alone)
        hr_context_heard(r);
    else if (told_elsewhere && alone)
        hr_context_link_failed(); /* it was about the move, and nobody else needs to hear of it */
    return r == CUDA_SUCCESS ? CUDA_ERROR_NVLINK_UNCORRECTABLE : r;
}

void hr_transfer_reap(void)
{
    if (!hr_transfer_any())
        return;
    HR_RELAXED();
    struct running *suspects = NULL;
    hr_mutex_lock(&running_lock);
    struct running *done = take_done_locked(&suspects);
    while (suspects) { /* they wait for a moment in which they can be repaired */
        struct running *next = suspects->next;
        suspects->next = running;
        running = suspects;
        atomic_fetch_add(&running_any, 1);
        suspects = next;
    }
    hr_mutex_unlock(&running_lock);
    finish_all(done);
}

size_t hr_transfer_trim(unsigned gpu)
{
    HR_RELAXED();
    hr_transfer_reap();
    return hr_relay_trim(gpu);
}

static void wait_for_users(CUcontext context)
{
    for (;;) { /* one at a time: waiting needs the lock to be open */
        struct running *found = NULL;
        hr_mutex_lock(&running_lock);
        for (struct running **link = &running; *link && !found; link = found ? link : &(*link)->next)
            if (hr_trips_use(&(*link)->trips, context))
                found = unlink_locked(link);
        hr_mutex_unlock(&running_lock);
        if (!found)
            break;
        found->next = NULL;
        hr_context_heard(hr_trips_wait(&found->trips));
        finish_all(found);
    }
}

void hr_transfer_leave(CUcontext context)
{
    HR_RELAXED();
    bool pushed = false;
    hr_track_close(context);
    do { /* what others plan, or move, at this moment either begins or comes to nothing */
        wait_for_users(context);
    } while (!hr_track_are_back(context, hr_clock_ns() + PLAN_NS));
    CUcontext current = NULL;
    if (hr_drv.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current != context)
        pushed = hr_drv.cuCtxPushCurrent_v2(context) == CUDA_SUCCESS;
    if (pushed || current == context)
        hr_track_leave(context);
    hr_context_leave(pushed);
}

/* ---- repairing ---- */

/* Whether the bonded links from one GPU to the next are fewer than they were. */
static bool has_lost_links(const struct hr_graph *then, const struct hr_graph *now, const struct hr_path *path)
{
    for (uint32_t i = 0; i < path->load_count; i++) {
        const struct hr_edge *edge = &then->edge[path->load[i].edge];
        int32_t same = then->nodes == now->nodes ? hr_graph_edge(now, edge->from, edge->to) : -1;
        if (same < 0 || now->edge[same].links < edge->links)
            return true;
    }
    return false;
}

/* What went over links that are down, in address order; everything if nothing is known to be down. NULL: no memory. */
static struct hr_part *lost_parts(const struct hr_trips *trips, const struct hr_graph *now, uint32_t *count_out)
{
    bool lost[HR_ROUTES_MAX_PATHS], any = false;
    for (uint32_t i = 0; i < trips->plan.path_count; i++) {
        lost[i] = has_lost_links(trips->view->graph, now, &trips->routes.path[trips->plan.path[i].route]);
        any = any || lost[i];
    }
    struct hr_part *parts = calloc(trips->plan.chunk_count + 1, sizeof *parts);
    uint32_t count = 0;
    for (uint32_t i = 0; parts && i < trips->plan.chunk_count; i++) {
        const struct hr_plan_chunk *chunk = &trips->plan.chunk[i];
        if (any && !lost[chunk->path])
            continue;
        if (count > 0 && parts[count - 1].offset + parts[count - 1].bytes == chunk->offset)
            parts[count - 1].bytes += chunk->bytes;
        else
            parts[count++] = (struct hr_part){chunk->offset, chunk->bytes};
    }
    *count_out = count;
    return parts;
}

/* The driver's own copies, through host memory if it must, waited for. */
static CUresult by_driver(const struct hr_transfer *asked, const struct hr_part *parts, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        hr_stat_add(hr_thread_self(), HR_STAT_transfer_host_bytes, parts[i].bytes);
    CUcontext to = hr_trip_context(asked->to_gpu), from = hr_trip_context(asked->from_gpu), ignored;
    struct hr_track *track = NULL;
    CUresult r = to && from ? hr_drv.cuCtxPushCurrent_v2(from) : CUDA_ERROR_INVALID_CONTEXT;
    if (r != CUDA_SUCCESS)
        return r;
    r = hr_track_take(from, &track);
    for (uint32_t i = 0; i < count && r == CUDA_SUCCESS; i++)
        r = hr_drv.cuMemcpyPeerAsync(asked->to + parts[i].offset, to, asked->from + parts[i].offset, from,
                                     parts[i].bytes, track->stream[0]);
    if (track) {
        CUresult done = hr_track_wait(track);
        r = r == CUDA_SUCCESS ? done : r;
        hr_track_give(track);
    }
    hr_drv.cuCtxPopCurrent_v2(&ignored);
    return r;
}

static bool is_resident(CUdeviceptr address, size_t bytes)
{
    for (CUdeviceptr at = address; at < address + bytes; at = (at | (hr_chunk_bytes() - 1)) + 1)
        if (atomic_load(&hr_space_chunk(at)->state) != HR_CHUNK_RESIDENT)
            return false;
    return hr_space_extent(address) != NULL;
}

/* Whether there is any. */
static bool suspect_all(void)
{
    hr_mutex_lock(&running_lock);
    bool any = running != NULL;
    for (struct running *run = running; run; run = run->next)
        run->suspect = true;
    hr_mutex_unlock(&running_lock);
    return any;
}

/* In a submission, so that everything stays where it is. */
static CUresult copy_again(const struct hr_trips *old)
{
    struct hr_transfer asked = old->asked;
    struct hr_trips trips;
    uint32_t count = 0;
    CUresult r = CUDA_ERROR_NVLINK_UNCORRECTABLE;
    hr_fabric_recheck(old->fabric);
    const struct hr_fabric_view *now = hr_fabric_take(old->fabric);
    struct hr_part *parts = lost_parts(old, now->graph, &count);
    hr_fabric_drop(old->fabric, now);
    for (uint32_t i = 0; parts && i < count; i++)
        hr_stat_add(hr_thread_self(), HR_STAT_transfer_again_bytes, parts[i].bytes);
    for (int attempt = 0; parts && count > 0 && attempt < REPAIRS_MOST && is_link_error(r); attempt++) {
        if (!hr_trips_plan(&trips, &asked, parts, count, 0, false))
            break;
        r = hr_trips_submit(&trips, NULL);
        CUresult done = hr_trips_wait(&trips);
        r = r == CUDA_SUCCESS ? done : r;
        if (is_link_error(r))
            suspect_all(); /* those that run still */
        hr_trips_finish(&trips);
        hr_fabric_recheck(old->fabric);
    }
    if (parts && count > 0 && r != CUDA_SUCCESS)
        r = by_driver(&asked, parts, count);
    free(parts);
    return count == 0 ? CUDA_SUCCESS : r;
}

/* Whether nothing else can have met the link or was submitted since the oldest of them, and each can be made again without harm to another. */
static bool may_repair(const struct running *suspects, uint64_t entered)
{
    uint64_t last = suspects->entered;
    for (const struct running *run = suspects; run; run = run->next) {
        const struct hr_transfer *a = &run->trips.asked;
        if (run->beside || run->entered - last > 1 || !is_resident(a->to, a->bytes) || !is_resident(a->from, a->bytes))
            return false;
        last = run->entered;
        for (const struct running *later = run->next; later; later = later->next) {
            const struct hr_transfer *b = &later->trips.asked;
            bool apart = (b->to + b->bytes <= a->from || a->from + a->bytes <= b->to) &&
                         (b->to + b->bytes <= a->to || a->to + a->bytes <= b->to) &&
                         (b->from + b->bytes <= a->to || a->to + a->bytes <= b->from);
            if (!apart)
                return false;
        }
    }
    return last == entered;
}

static CUresult repair(struct running *suspects)
{
    struct hr_thread *t = hr_thread_self();
    CUresult r = CUDA_SUCCESS;
    if (!t)
        return CUDA_ERROR_NVLINK_UNCORRECTABLE;
    hr_gate_enter(t);
    if (!may_repair(suspects, hr_gate_entered())) {
        hr_gate_leave(t);
        hr_log(
            HR_LOG_ERROR,
            "a link failed under a copy between GPUs, and other work may have met it, or used what was copied since");
        return CUDA_ERROR_NVLINK_UNCORRECTABLE;
    }
    hr_gate_submit(t);
    for (struct running *run = suspects; run && r == CUDA_SUCCESS; run = run->next) {
        r = copy_again(&run->trips);
        hr_log(r == CUDA_SUCCESS ? HR_LOG_INFO : HR_LOG_ERROR,
               "a link failed under a copy from GPU %u to GPU %u: what it had was copied again (driver error %d)",
               run->trips.asked.from_gpu, run->trips.asked.to_gpu, (int)r);
    }
    hr_gate_leave(t);
    return r;
}

bool hr_transfer_covers(CUresult r)
{
    hr_context_told(r);
    return is_link_error(r) && hr_transfer_any() && suspect_all();
}

CUresult hr_transfer_settle(CUresult r)
{
    struct running *suspects = NULL;
    if (!hr_transfer_any() || r != CUDA_SUCCESS)
        return r;
    HR_RELAXED();
    hr_mutex_lock(&running_lock);
    struct running *done = take_done_locked(&suspects);
    bool nobodys = !running && !suspects && !done && hr_context_link_failed();
    hr_mutex_unlock(&running_lock);
    finish_all(done);
    if (nobodys) {
        hr_log(HR_LOG_ERROR, "a link between GPUs failed under a copy or a kernel, which cannot be made again");
        return CUDA_ERROR_NVLINK_UNCORRECTABLE;
    }
    if (!suspects)
        return r;
    CUresult repaired = repair(suspects);
    finish_all(suspects);
    return repaired;
}
