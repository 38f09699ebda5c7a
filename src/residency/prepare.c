#include "residency/access.h"

#include "base/clock.h"
#include "base/log.h"
#include "residency/capture.h"
#include "residency/context.h"
#include "residency/evict.h"
#include "residency/fixed.h"
#include "residency/gpu.h"
#include "residency/hold.h"
#include "residency/lend.h"
#include "residency/move.h"
#include "residency/peers.h"
#include "residency/quarantine.h"
#include "residency/shelf.h"
#include "residency/transfer.h"
#include "stats/stats.h"
#include "tier/tier.h"

#include <stdlib.h>

/*
 * The slow path of a launch. In order of cost: fresh chunks from free VRAM; what quarantine gives back; then moves, which
 * need the devices at rest: victims out, the named pieces in. What does not fit stays in, or is first backed by, host
 * memory, where kernels reach it in place. So a launch proceeds whatever happens to the moves, except where host memory
 * cannot be mapped: there it waits until its pieces are in VRAM.
 */

/*
 * How long a launch waits, gate open, for the devices to come to rest. A queue of work that the job ran ahead with drains
 * within seconds; a device that waits for this very thread never does. So: five seconds, and after a wait that was in vain
 * only 2 ms for ten times as long, which bounds what such waits can cost a job to a tenth of its time.
 */
#define PATIENCE_NS UINT64_C(5000000000)
#define SHORT_PATIENCE_NS UINT64_C(2000000)
#define OTHERS_PATIENCE_NS UINT64_C(20000000) /* for other GPUs than the one that needs the move */
#define REST_FACTOR 10
#define LAST_WAIT_NS UINT64_C(60000000000) /* of what fails unless memory moves or comes back: then it fails */
/*
 * Such a call cannot go on without, so others may not keep the device busy for ever before it: from URGENT_NS on the gate
 * stays closed for half as long as it has waited. In between it is open: a kernel may be waiting for another launch.
 */
#define URGENT_NS UINT64_C(100000000)
#define URGENT_SPAN_MOST_NS UINT64_C(2000000000)
static _Atomic(uint64_t) impatient_until_ns;

static bool patient_now(void)
{
    return hr_clock_ns() >= atomic_load(&impatient_until_ns);
}

/*
 * first: the GPU that the wait is for; it is what the patience is for. Once it is at rest itself, the others in gpu_mask get
 * little more: it would idle for them, and a kernel of theirs may be waiting for this very launch.
 */
static bool settle(struct hr_thread *t, uint64_t first, uint64_t gpu_mask, bool patient)
{
    hr_shelf_give_up(t); /* what may be used again soon has no right to stay when memory is short */
    uint64_t start_ns = hr_clock_ns();
    bool quiet = hr_quiet_wait(first, start_ns + (patient ? PATIENCE_NS : SHORT_PATIENCE_NS));
    if (quiet && gpu_mask != first)
        quiet = hr_quiet_wait(gpu_mask, hr_clock_ns() + (patient ? OTHERS_PATIENCE_NS : SHORT_PATIENCE_NS));
    uint64_t end_ns = hr_clock_ns();
    hr_stat_add_stall(t, HR_STAT_stall_drain_ns, end_ns - start_ns);
    if (patient && !quiet)
        atomic_store(&impatient_until_ns, end_ns + REST_FACTOR * (end_ns - start_ns));
    hr_quarantine_release(t); /* some GPUs may have come to rest in any case */
    return quiet;
}

/* Only for the GPUs that may touch this one's window. */
static bool settle_window(struct hr_thread *t, unsigned gpu)
{
    return settle(t, UINT64_C(1) << gpu, hr_peers_users(gpu), patient_now());
}

static uint64_t urgent_span_ns(uint64_t waited_ns)
{
    uint64_t span_ns = waited_ns < URGENT_NS ? 0 : waited_ns / 2;
    return span_ns < URGENT_SPAN_MOST_NS ? span_ns : URGENT_SPAN_MOST_NS;
}

static bool freed_memory_can_help(unsigned gpu, size_t charge_bytes)
{
    if (!hr_quarantine_any())
        return false;
    size_t free_bytes = hr_gpu_free_bytes(gpu);
    return charge_bytes <= hr_gpu_total_bytes(gpu) && charge_bytes <= free_bytes + hr_quarantine_bytes();
}

bool hr_access_make_room(struct hr_thread *t, unsigned gpu, struct hr_room_wait *wait)
{
    uint64_t now_ns = hr_clock_ns();
    bool first = wait->since_ns == 0;
    if (first)
        wait->since_ns = now_ns;
    uint64_t waited_ns = now_ns - wait->since_ns;
    hr_shelf_give_up(t);
    bool can_help = freed_memory_can_help(gpu, wait->charge_bytes);
    uint64_t released = hr_quarantine_released(); /* last: it tells of what came back while the others were asked */
    bool came_back = first || released != wait->released;
    wait->released = released;
    if (waited_ns > LAST_WAIT_NS)
        return false;
    if (!can_help)
        return came_back;
    unsigned others = hr_space.gpu_count - 1, n = wait->tries++;
    if (others > 0 && n % 2 == 1)
        gpu = (gpu + 1 + n / 2 % others) % hr_space.gpu_count;
    uint64_t users = hr_peers_users(gpu);
    settle(t, users, users, patient_now());
    if (waited_ns >= URGENT_NS && hr_quarantine_any()) {
        hr_move_rest(users, urgent_span_ns(waited_ns));
        hr_quarantine_release(t);
    }
    return true;
}

/* --- moves in ----------------------------------------------------------------------------------------------------- */

/* Backs RESERVED chunks of the named pieces with free VRAM. */
static CUresult fresh_vram_locked(struct hr_working_set *set, unsigned gpu) HR_REQUIRES(hr_move_lock)
{
    for (unsigned p = 0; p < set->count; p++) {
        struct hr_piece *piece = &set->piece[p];
        bool wanted = piece->extent->gpu == gpu && !hr_fixed_sharers(piece->extent);
        for (uint32_t i = piece->first_chunk; wanted && i < piece->end_chunk;) {
            uint32_t n = 0;
            while (i + n < piece->end_chunk && hr_space_lacks_backing(&hr_space.chunks[i + n], piece->extent))
                n++;
            CUresult error;
            if (n > 0 && hr_back_fresh_locked(piece->extent, i, n, &hr_tier_vram, &error) < n) {
                if (error != CUDA_SUCCESS && error != CUDA_ERROR_OUT_OF_MEMORY)
                    return error;
                return CUDA_SUCCESS;
            }
            i += n > 0 ? n : 1;
        }
    }
    return CUDA_SUCCESS;
}

/* Chunks of the named pieces that are not in local VRAM and could be; duplicates count twice. */
static size_t count_missing(const struct hr_working_set *set, unsigned gpu)
{
    size_t missing = 0;
    for (unsigned p = 0; p < set->count; p++) {
        const struct hr_piece *piece = &set->piece[p];
        bool counts = piece->extent->gpu == gpu && !hr_fixed_is(piece->extent);
        for (uint32_t i = piece->first_chunk; counts && i < piece->end_chunk; i++)
            missing += hr_space_is_of(&hr_space.chunks[i], piece->extent) &&
                       atomic_load_explicit(&hr_space.chunks[i].state, memory_order_relaxed) != HR_CHUNK_RESIDENT &&
                       !hr_hold_is(&hr_space.chunks[i]);
    }
    return missing;
}

/* Brings chunks of the named pieces from other tiers into free VRAM. */
static void bring_in_locked(struct hr_working_set *set, unsigned gpu, uint64_t span_ns) HR_REQUIRES(hr_move_lock)
{
    struct hr_move moves[HR_MOVE_MAX];
    unsigned n = 0;
    bool room = true;
    for (unsigned p = 0; p < set->count && room; p++) {
        bool wanted = set->piece[p].extent->gpu == gpu && !hr_fixed_is(set->piece[p].extent);
        for (uint32_t i = set->piece[p].first_chunk; wanted && i < set->piece[p].end_chunk; i++) {
            struct hr_chunk *c = &hr_space.chunks[i];
            bool listed = false; /* pieces may overlap */
            for (unsigned k = 0; k < n && !listed; k++)
                listed = moves[k].chunk == c;
            uint8_t state = atomic_load(&c->state);
            if (listed || (state != HR_CHUNK_HOST && state != HR_CHUNK_PEER) ||
                !hr_space_is_of(c, set->piece[p].extent) || hr_hold_is(c))
                continue;
            moves[n].chunk = c;
            if (hr_tier_vram.take(gpu, &moves[n].to) != CUDA_SUCCESS) {
                room = false;
                break;
            }
            if (++n == HR_MOVE_MAX) {
                if (hr_move_batch_locked(gpu, moves, n, span_ns) != HR_MOVED)
                    return;
                n = 0;
            }
        }
    }
    hr_move_batch_locked(gpu, moves, n, span_ns);
}

/* One attempt with the devices at rest (or not: then the batches give up by themselves). */
static CUresult exchange_locked(struct hr_working_set *set, unsigned gpu, uint64_t span_ns) HR_REQUIRES(hr_move_lock)
{
    HR_RELAXED();
    CUresult r = fresh_vram_locked(set, gpu);
    if (r != CUDA_SUCCESS)
        return r;
    size_t missing = count_missing(set, gpu), room = hr_tier_vram.available_chunks(gpu);
    if (missing > room)
        room += hr_lend_call_in_locked(gpu, missing - room, span_ns);
    if (missing > room)
        hr_evict_locked(gpu, missing - room, span_ns);
    r = fresh_vram_locked(set, gpu);
    if (r == CUDA_SUCCESS)
        bring_in_locked(set, gpu, span_ns);
    return r;
}

/* Whether moving could help at all: there is free VRAM, or some that is lent, something that could leave, or something in quarantine. */
static bool can_improve(unsigned gpu)
{
    if (hr_tier_vram.available_chunks(gpu) > 0 || hr_tier_peer.in_use_chunks(gpu) > 0 || hr_quarantine_any() ||
        hr_shelf_any())
        return true;
    uint32_t first = hr_space.window[gpu].first_chunk, end = first + hr_space_used_chunks(gpu);
    size_t left = hr_tier_vram.in_use_chunks(gpu);
    for (uint32_t i = first; i < end && left > 0; i++) {
        if (hr_evict_may_leave(&hr_space.chunks[i]))
            return true;
        left -= atomic_load_explicit(&hr_space.chunks[i].state, memory_order_relaxed) == HR_CHUNK_RESIDENT;
    }
    return false;
}

/* --- the launch's side -------------------------------------------------------------------------------------------- */

static void add_pins(struct hr_working_set *set, int delta)
{
    for (unsigned p = 0; p < set->count; p++)
        for (uint32_t i = set->piece[p].first_chunk; i < set->piece[p].end_chunk; i++)
            atomic_fetch_add(&hr_space.chunks[i].pins, (uint16_t)delta);
}

void hr_access_unpin(struct hr_working_set *set)
{
    add_pins(set, -1);
    set->count = 0;
}

/* Every chunk of every named allocation gets mapped, wherever there is room. */
static CUresult back_named(struct hr_thread *t, const struct hr_working_set *set, unsigned gpu)
{
    CUresult r = CUDA_SUCCESS;
    for (unsigned p = 0; p < set->count && r == CUDA_SUCCESS; p++) {
        struct hr_extent *e = set->piece[p].extent;
        if (e->gpu == gpu && atomic_load(&e->live) && atomic_load(&e->not_accessible) > 0)
            r = hr_access_map_extent(t, e);
        if (r != CUDA_SUCCESS && !atomic_load(&e->live))
            r = CUDA_SUCCESS; /* named by a stale address only, and freed meanwhile */
    }
    return r;
}

/* Makes some context of the GPU current. */
static CUresult enter_gpu(unsigned gpu, bool *pushed_out)
{
    struct hr_context *context = hr_context_of_gpu(gpu);
    if (context)
        return hr_context_enter(context, pushed_out);
    hr_log_once(HR_LOG_WARN, "a launch names memory of GPU %u that is not backed yet, and there is no context to do so",
                gpu);
    return CUDA_ERROR_INVALID_CONTEXT;
}

static size_t wanted_chunks(const struct hr_working_set *set, unsigned gpu)
{
    size_t n = 0;
    for (unsigned p = 0; p < set->count; p++)
        for (uint32_t i = set->piece[p].first_chunk; set->piece[p].extent->gpu == gpu && i < set->piece[p].end_chunk;
             i++)
            n += hr_space_is_of(&hr_space.chunks[i], set->piece[p].extent);
    return n;
}

/*
 * Where host memory cannot be mapped, a launch needs all that it names in VRAM at once. Two launches that each hold half of
 * what there is would wait for each other, so a set is pinned only during an attempt, one attempt at a time, and stays
 * pinned only when that brought all of it in.
 */
static struct hr_mutex turn_lock = HR_MUTEX_INIT(HR_RANK_CONTEXT - 1, "turn");

static CUresult attempt_unmappable(struct hr_working_set *set, bool move, uint64_t waited_ns, bool *done_out)
{
    CUresult r = CUDA_SUCCESS;
    *done_out = true;
    hr_mutex_lock(&turn_lock);
    add_pins(set, 1);
    for (unsigned g = 0; g < hr_space.gpu_count && r == CUDA_SUCCESS; g++) {
        bool pushed;
        if (wanted_chunks(set, g) == 0)
            continue;
        r = enter_gpu(g, &pushed);
        if (r != CUDA_SUCCESS)
            break;
        hr_mutex_lock(&hr_move_lock);
        r = move ? exchange_locked(set, g, urgent_span_ns(waited_ns)) : fresh_vram_locked(set, g);
        *done_out &= count_missing(set, g) == 0;
        hr_mutex_unlock(&hr_move_lock);
        hr_context_leave(pushed);
    }
    if (r != CUDA_SUCCESS || !*done_out)
        add_pins(set, -1);
    hr_mutex_unlock(&turn_lock);
    return r;
}

/* On success the set is pinned. */
static CUresult prepare_unmappable(struct hr_thread *t, struct hr_working_set *set)
{
    uint64_t start_ns = hr_clock_ns(), waited_ns = 0, gpu_mask = 0;
    for (unsigned g = 0; g < hr_space.gpu_count; g++) {
        gpu_mask |= wanted_chunks(set, g) > 0 ? hr_peers_users(g) : 0;
        if (wanted_chunks(set, g) > hr_tier_vram_limit(g)) {
            hr_log(HR_LOG_ERROR,
                   "a launch names %zu chunks, more than the VRAM's %zu, and host memory cannot be mapped here",
                   wanted_chunks(set, g), hr_tier_vram_limit(g));
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    for (bool move = false;; move = true) {
        bool done;
        for (unsigned g = 0; move && g < hr_space.gpu_count; g++)
            if (wanted_chunks(set, g) > 0)
                hr_transfer_trim(g);
        CUresult r = attempt_unmappable(set, move, waited_ns, &done);
        if (r != CUDA_SUCCESS || done)
            return r;
        if (waited_ns > LAST_WAIT_NS) {
            hr_log(HR_LOG_ERROR, "a launch waited 60 s for the devices to come to rest");
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        settle(t, gpu_mask, gpu_mask, patient_now());
        waited_ns = hr_clock_ns() - start_ns;
    }
}

/*
 * What the GPU has lent comes back before anything of its own has to leave. Only those whose memory it holds need be at rest for that, not the
 * GPU itself; and they get little time, since a kernel of theirs may be waiting for this launch. After a wait in vain they are
 * only asked, for ten times as long; what is still missing then comes at a moment of rest of theirs (hr_lend_settle).
 */
static void take_back(struct hr_thread *t, struct hr_working_set *set, unsigned gpu)
{
    static _Atomic(uint64_t) not_before_ns;
    uint64_t users = hr_lend_users(gpu), start_ns = hr_clock_ns();
    bool wait = start_ns >= atomic_load(&not_before_ns);
    if (!hr_quiet_wait(users, wait ? start_ns + OTHERS_PATIENCE_NS : 0) && wait) {
        uint64_t waited_ns = hr_clock_ns() - start_ns;
        atomic_store(&not_before_ns, start_ns + (1 + REST_FACTOR) * waited_ns);
    }
    hr_stat_add_stall(t, HR_STAT_stall_drain_ns, hr_clock_ns() - start_ns);
    hr_quarantine_release(t);
    hr_mutex_lock(&hr_move_lock);
    size_t missing = count_missing(set, gpu), room = hr_tier_vram.available_chunks(gpu);
    if (missing > room)
        hr_lend_call_in_locked(gpu, missing - room, 0);
    hr_mutex_unlock(&hr_move_lock);
}

static CUresult prepare_mappable(struct hr_thread *t, struct hr_working_set *set, unsigned gpu)
{
    hr_mutex_lock(&hr_move_lock);
    CUresult r = fresh_vram_locked(set, gpu);
    size_t missing = count_missing(set, gpu);
    hr_mutex_unlock(&hr_move_lock);
    if (missing > 0)
        hr_transfer_trim(gpu); /* what passes through here has no right to stay when the GPU needs its memory */
    bool may_move = missing > 0 && !hr_capture_holds_moves(); /* else it need not be waited for */
    if (r == CUDA_SUCCESS && may_move && hr_tier_peer.in_use_chunks(gpu) > 0) {
        take_back(t, set, gpu);
        hr_mutex_lock(&hr_move_lock);
        r = fresh_vram_locked(set, gpu);
        missing = count_missing(set, gpu);
        hr_mutex_unlock(&hr_move_lock);
    }
    if (r == CUDA_SUCCESS && missing > 0 && may_move && can_improve(gpu)) {
        settle_window(t, gpu);
        hr_mutex_lock(&hr_move_lock);
        hr_lend_settle_locked(gpu);
        r = exchange_locked(set, gpu, 0);
        hr_mutex_unlock(&hr_move_lock);
    }
    if (r == CUDA_SUCCESS)
        r = back_named(t, set, gpu);
    for (struct hr_room_wait wait = {0}; r == CUDA_ERROR_OUT_OF_MEMORY && hr_access_make_room(t, gpu, &wait);)
        r = back_named(t, set, gpu);
    return r;
}

static bool all_accessible(const struct hr_working_set *set, unsigned gpu)
{
    bool all = true;
    for (unsigned p = 0; p < set->count && all; p++)
        all = set->piece[p].extent->gpu != gpu || atomic_load(&set->piece[p].extent->not_accessible) == 0;
    return all;
}

static CUresult prepare_gpu(struct hr_thread *t, struct hr_working_set *set, unsigned gpu)
{
    bool pushed;
    if (wanted_chunks(set, gpu) == 0)
        return CUDA_SUCCESS;
    if (!hr_context_of_gpu(gpu) && all_accessible(set, gpu))
        return CUDA_SUCCESS; /* a pool's memory outlives the contexts there: it is used where it lies */
    CUresult r = enter_gpu(gpu, &pushed);
    if (r != CUDA_SUCCESS)
        return r;
    r = prepare_mappable(t, set, gpu);
    hr_context_leave(pushed);
    return r;
}

/* What the launching GPU has no way to goes where it has one. */
static CUresult share_far(struct hr_thread *t, const struct hr_working_set *set)
{
    CUresult r = CUDA_SUCCESS;
    for (unsigned p = 0; set->user >= 0 && p < set->count && r == CUDA_SUCCESS; p++) {
        struct hr_extent *e = set->piece[p].extent;
        unsigned user = (unsigned)set->user;
        if (hr_fixed_is_barred(user, e->gpu) && !(atomic_load(&e->shared_with) >> user & 1))
            r = hr_fixed_share(t, e, user);
    }
    return r;
}

static CUresult prepare(struct hr_thread *t, struct hr_working_set *set)
{
    bool mappable = hr_tier_host_mappable(0); /* one answer for the process */
    CUresult r = share_far(t, set);
    if (r != CUDA_SUCCESS)
        return r;
    hr_lend_refresh();
    if (mappable)
        add_pins(set, 1);
    if (set->everything)
        r = hr_access_back_all(t);
    size_t missing = 0;
    for (unsigned g = 0; g < hr_space.gpu_count; g++)
        missing += count_missing(set, g);
    hr_stat_add(t, HR_STAT_working_set_bytes, (uint64_t)missing << hr_space.chunk_shift);
    for (unsigned g = 0; mappable && g < hr_space.gpu_count && r == CUDA_SUCCESS; g++)
        r = prepare_gpu(t, set, g);
    if (r == CUDA_SUCCESS && !mappable)
        r = prepare_unmappable(t, set);
    if (r != CUDA_SUCCESS && mappable)
        add_pins(set, -1);
    return r;
}

CUresult hr_access_prepare(struct hr_thread *t, struct hr_working_set *set)
{
    HR_RELAXED();
    uint64_t start_ns = hr_clock_ns();
    t->stalling++;
    CUresult r = prepare(t, set);
    t->stalling--;
    hr_stat_add(t, HR_STAT_stall_ns, hr_clock_ns() - start_ns);
    if (r != CUDA_SUCCESS)
        set->count = 0;
    hr_stats_tick();
    return r;
}

/* --- pressure, tests and hints ------------------------------------------------------------------------------------ */

size_t hr_access_release_vram(struct hr_thread *t, unsigned gpu, size_t bytes)
{
    HR_RELAXED();
    uint64_t span_ns = hr_capture_any() ? 1 : 0; /* the call cannot do without: captures do not hold it up */
    size_t chunks = (bytes + hr_chunk_bytes() - 1) >> hr_space.chunk_shift;
    size_t freed = hr_tier_vram.trim(gpu, chunks);
    hr_lend_refresh();
    if (freed < chunks)
        freed += hr_transfer_trim(gpu) >> hr_space.chunk_shift;
    if (freed < chunks)
        settle(t, UINT64_C(1) << gpu, hr_peers_users(gpu) | hr_lend_users(gpu), patient_now());
    /* Other threads may keep the devices busy: each failure lengthens the span for which the gate may stay closed. */
    for (unsigned attempt = 0; attempt < 8 && freed < chunks; attempt++) {
        size_t in_use = hr_tier_vram.in_use_chunks(gpu) + hr_tier_peer.in_use_chunks(gpu);
        hr_mutex_lock(&hr_move_lock);
        size_t back = hr_lend_call_in_locked(gpu, chunks - freed, span_ns);
        if (back < chunks - freed)
            hr_evict_locked(gpu, chunks - freed - back, span_ns);
        hr_mutex_unlock(&hr_move_lock);
        /* What left while the limit was lowered is with the driver already; the rest is pooled. */
        size_t now = hr_tier_vram.in_use_chunks(gpu) + hr_tier_peer.in_use_chunks(gpu);
        size_t left = in_use > now ? in_use - now : 0, pooled = hr_tier_vram.trim(gpu, chunks - freed);
        freed += left > pooled ? left : pooled;
    }
    return freed;
}

/* How many chunks moved; *missing_out: of those that were to be moved in, how many were not. */
static size_t move_range(struct hr_thread *t, CUdeviceptr address, size_t bytes, bool out, uint64_t span_ns,
                         size_t *missing_out)
{
    struct hr_extent *e = hr_space_extent(address);
    struct hr_view view;
    struct hr_context *context = e && hr_space_view(e, &view) ? hr_context_of_gpu(e->gpu) : NULL;
    bool pushed;
    size_t moved = 0;
    *missing_out = 0;
    if (!context || bytes == 0 || hr_context_enter(context, &pushed) != CUDA_SUCCESS)
        return 0;
    HR_RELAXED();
    hr_tier_host_mappable(e->gpu);
    hr_lend_refresh();
    settle_window(t, e->gpu);
    uint32_t first = (uint32_t)((address - hr_space.base) >> hr_space.chunk_shift);
    uint32_t end = (uint32_t)((address + bytes - 1 - hr_space.base) >> hr_space.chunk_shift) + 1;
    if (end > view.first_chunk + view.chunk_count)
        end = view.first_chunk + view.chunk_count;
    struct hr_working_set *set = calloc(1, sizeof *set);
    hr_mutex_lock(&hr_move_lock);
    if (out) {
        struct hr_chunk *chunks[HR_MOVE_MAX];
        size_t n = 0;
        for (uint32_t i = first; i < end; i++) {
            if (hr_evict_may_leave(&hr_space.chunks[i]))
                chunks[n++] = &hr_space.chunks[i];
            if (n == HR_MOVE_MAX || (i + 1 == end && n > 0)) {
                moved += hr_evict_send_locked(e->gpu, chunks, n, 0);
                n = 0;
            }
        }
    } else if (set) {
        set->count = 1;
        set->piece[0] = (struct hr_piece){e, first, end, 0};
        moved = count_missing(set, e->gpu);
        add_pins(set, 1);
        exchange_locked(set, e->gpu, span_ns);
        add_pins(set, -1);
        *missing_out = count_missing(set, e->gpu);
        moved -= *missing_out;
    }
    hr_mutex_unlock(&hr_move_lock);
    free(set);
    hr_context_leave(pushed);
    return moved;
}

size_t hr_access_evict_range(struct hr_thread *t, CUdeviceptr address, size_t bytes)
{
    size_t missing;
    return move_range(t, address, bytes, true, 0, &missing);
}

size_t hr_access_restore_range(struct hr_thread *t, CUdeviceptr address, size_t bytes)
{
    size_t missing;
    return move_range(t, address, bytes, false, 0, &missing);
}

size_t hr_access_bring_in(struct hr_thread *t, CUdeviceptr address, size_t bytes, uint64_t span_ns)
{
    size_t missing;
    move_range(t, address, bytes, false, span_ns, &missing);
    return missing;
}
