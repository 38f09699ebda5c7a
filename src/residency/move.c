#include "residency/move.h"

#include "base/clock.h"
#include "base/log.h"
#include "residency/capture.h"
#include "residency/context.h"
#include "residency/fixed.h"
#include "residency/gpu.h"
#include "residency/graph.h"
#include "residency/hidden.h"
#include "residency/hold.h"
#include "residency/lend.h"
#include "residency/migrate.h"
#include "residency/peers.h"
#include "residency/transfer.h"
#include "shim/gate.h"
#include "stats/stats.h"

#include <stdlib.h>

struct hr_mutex hr_move_lock = HR_MUTEX_INIT(HR_RANK_MOVE, "move");

/*
 * How long the gate may stay closed while the devices drain: about 2 ms. Where the device is never at rest for that long
 * (several threads keep it busy) moves would never happen, so the span doubles with each failure up to 64 ms; after that
 * nothing is tried for a second. Every wait stays bounded: a collective may be waiting for a launch that the gate holds.
 */
#define GATE_SPAN_NS UINT64_C(2000000)
#define GATE_SPAN_MOST_NS UINT64_C(64000000)
#define GATE_REST_NS UINT64_C(1000000000)
static uint64_t gate_span_ns = GATE_SPAN_NS; /* guarded by hr_move_lock */
static uint64_t gate_not_before_ns;          /* guarded by hr_move_lock */

static void gate_failed(void)
{
    gate_span_ns *= 2;
    if (gate_span_ns > GATE_SPAN_MOST_NS) {
        gate_span_ns = GATE_SPAN_NS;
        gate_not_before_ns = hr_clock_ns() + GATE_REST_NS;
    }
}

bool hr_move_rest(uint64_t gpu_mask, uint64_t span_ns)
{
    hr_mutex_lock(&hr_move_lock);
    uint64_t deadline_ns = hr_clock_ns() + span_ns;
    bool quiet = false;
    hr_stat_add(hr_thread_self(), HR_STAT_gate_closes, 1);
    if (hr_gate_close(deadline_ns)) {
        quiet = hr_quiet_wait(gpu_mask, deadline_ns);
        hr_gate_open();
    }
    hr_mutex_unlock(&hr_move_lock);
    return quiet;
}

/* --- mapping ------------------------------------------------------------------------------------------------------ */

/* GPUs that are granted more of the window than they reach: what lies in host memory of what they share. */
static uint64_t sharers_of(const struct hr_chunk *c, const struct hr_phys *phys)
{
    const struct hr_extent *e = atomic_load_explicit(&c->extent, memory_order_acquire);
    return phys->tier == HR_TIER_HOST ? hr_fixed_sharers(e) : 0;
}

/* All grants at once: an unmapping takes them all away. */
static CUresult grant(unsigned gpu, CUdeviceptr address, size_t bytes, uint64_t sharers) HR_REQUIRES(hr_move_lock)
{
    CUmemAccessDesc desc[2 * HR_MAX_GPUS];
    size_t n = hr_peers_access_locked(gpu, desc);
    for (unsigned g = 0; sharers >> g; g++)
        if (sharers >> g & 1)
            desc[n++] = (CUmemAccessDesc){.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = hr_gpu_device(g)},
                                          .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    return hr_drv.cuMemSetAccess(address, bytes, desc, n);
}

static uint8_t state_of(const struct hr_phys *phys, bool mapped)
{
    if (!phys)
        return HR_CHUNK_RESERVED;
    if (phys->tier == HR_TIER_VRAM && mapped)
        return HR_CHUNK_RESIDENT;
    return phys->tier == HR_TIER_PEER ? HR_CHUNK_PEER : HR_CHUNK_HOST;
}

/* Bookkeeping of a chunk whose backing or mapping changed; the only writer of these fields. */
static void set_chunk(struct hr_extent *e, struct hr_chunk *c, struct hr_phys *phys, bool mapped)
    HR_REQUIRES(hr_move_lock)
{
    bool was_resident = atomic_load(&c->state) == HR_CHUNK_RESIDENT || atomic_load(&c->state) == HR_CHUNK_MOVING_OUT;
    bool was_mapped = atomic_load(&c->mapped);
    bool resident = state_of(phys, mapped) == HR_CHUNK_RESIDENT;
    if (c->phys != phys)
        hr_lend_note_locked(c, c->phys, phys);
    c->phys = phys;
    atomic_store(&c->mapped, mapped);
    atomic_store(&c->state, state_of(phys, mapped));
    if (was_resident != resident)
        atomic_fetch_add(&e->not_resident, resident ? UINT32_MAX : 1);
    if (was_mapped != mapped)
        atomic_fetch_add(&e->not_accessible, mapped ? UINT32_MAX : 1);
}

static struct hr_extent *extent_of(struct hr_chunk *c)
{
    return atomic_load_explicit(&c->extent, memory_order_acquire);
}

/* Maps phys at c and counts it in; access is granted by the caller for the whole run. */
static CUresult map_one(struct hr_chunk *c, struct hr_phys *phys)
{
    return phys->handle ? hr_drv.cuMemMap(hr_chunk_address(c), hr_chunk_bytes(), 0, phys->handle, 0) : CUDA_SUCCESS;
}

/* --- copying ------------------------------------------------------------------------------------------------------ */

/* No link is involved: a failed one that is told of here is about something else. */
static CUresult wait_for_host_copy(CUstream stream)
{
    CUresult r = hr_context_heard(hr_drv.cuStreamSynchronize(stream));
    return r == CUDA_ERROR_NVLINK_UNCORRECTABLE ? hr_drv.cuStreamSynchronize(stream) : r;
}

/* Through the host, by the GPU that lends. The context of `context` is current. */
static CUresult fetch_from_lender(struct hr_context *context, const struct hr_move *move, void *bytes)
{
    const struct hr_phys *from = move->chunk->phys;
    CUcontext lender = hr_lend_context(from->gpu), ignored;
    CUstream stream;
    CUresult r = lender ? hr_drv.cuCtxPushCurrent_v2(lender) : CUDA_ERROR_INVALID_CONTEXT;
    if (r != CUDA_SUCCESS)
        return r;
    r = hr_drv.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    if (r == CUDA_SUCCESS) {
        r = hr_drv.cuMemcpyDtoHAsync_v2(bytes, from->alias, hr_chunk_bytes(), stream);
        CUresult done = wait_for_host_copy(stream);
        r = r != CUDA_SUCCESS ? r : done;
        hr_drv.cuStreamDestroy_v2(stream);
    }
    hr_drv.cuCtxPopCurrent_v2(&ignored);
    if (r == CUDA_SUCCESS)
        r = hr_drv.cuMemcpyAsync(move->to->alias, (CUdeviceptr)(uintptr_t)bytes, hr_chunk_bytes(), context->mover);
    CUresult done = wait_for_host_copy(context->mover);
    return r != CUDA_SUCCESS ? r : done;
}

/*
 * After copies over links failed with `failure`: what is lent must come back even if the link to it is gone for good. Nothing more is lent over it
 * by the way.
 */
static CUresult copy_without_links(struct hr_context *context, const struct hr_move *moves, unsigned count,
                                   CUresult failure) HR_REQUIRES(hr_move_lock)
{
    CUresult r = CUDA_SUCCESS;
    for (unsigned i = 0; i < count; i++)
        if (moves[i].to->tier == HR_TIER_PEER)
            return failure;
    void *bytes = malloc(hr_chunk_bytes());
    if (!bytes)
        return failure;
    for (unsigned i = 0; i < count && r == CUDA_SUCCESS; i++) {
        if (moves[i].chunk->phys->tier == HR_TIER_PEER) {
            r = fetch_from_lender(context, &moves[i], bytes);
        } else {
            r = hr_migrate(context, &moves[i], 1);
        }
    }
    free(bytes);
    return r;
}

static CUresult copy_all(struct hr_context *context, const struct hr_move *moves, unsigned count)
    HR_REQUIRES(hr_move_lock)
{
    struct hr_thread *t = hr_thread_self();
    uint64_t start_ns = hr_clock_ns();
    CUresult r;
    if (!hr_migrate_over_links(moves, count)) {
        r = hr_context_heard(hr_migrate(context, moves, count)); /* these copies are not what it is about */
    } else {
        struct hr_beside beside;
        hr_transfer_beside_begin(&beside);
        r = hr_transfer_beside_end(&beside, hr_migrate(context, moves, count));
        if (r != CUDA_SUCCESS && context->mover)
            r = copy_without_links(context, moves, count, r);
    }
    hr_stat_add_stall(t, HR_STAT_stall_copy_ns, hr_clock_ns() - start_ns);
    return r;
}

/* --- swapping ----------------------------------------------------------------------------------------------------- */

/* Puts the old mapping of moves[0..n) back after a failed swap; `mapped_new` of them have the new one. */
static void restore_run(unsigned gpu, struct hr_move *moves, unsigned n, unsigned mapped_new) HR_REQUIRES(hr_move_lock)
{
    for (unsigned i = 0; i < mapped_new; i++)
        if (moves[i].to->handle)
            hr_drv.cuMemUnmap(hr_chunk_address(moves[i].chunk), hr_chunk_bytes());
    for (unsigned i = 0; i < n; i++) {
        struct hr_chunk *c = moves[i].chunk;
        struct hr_phys *old = c->phys;
        bool mapped = false;
        for (int attempt = 0; attempt < 3 && old->handle && !mapped; attempt++) {
            if (map_one(c, old) != CUDA_SUCCESS)
                continue;
            mapped = grant(gpu, hr_chunk_address(c), hr_chunk_bytes(), sharers_of(c, old)) == CUDA_SUCCESS;
            if (!mapped)
                hr_drv.cuMemUnmap(hr_chunk_address(c), hr_chunk_bytes());
        }
        if (old->handle && !mapped)
            hr_log(HR_LOG_ERROR,
                   "a chunk could not be mapped back after a failed move; the next call that names it tries again");
        set_chunk(extent_of(c), c, old, mapped);
    }
}

/* Unmaps the mapped chunks of an address-adjacent run, in as few calls as there are gaps. */
static CUresult unmap_run(struct hr_move *moves, unsigned n)
{
    for (unsigned i = 0; i < n;) {
        unsigned k = i;
        while (k < n && atomic_load(&moves[k].chunk->mapped))
            k++;
        if (k > i) {
            CUresult r = hr_drv.cuMemUnmap(hr_chunk_address(moves[i].chunk), (size_t)(k - i) << hr_space.chunk_shift);
            if (r != CUDA_SUCCESS)
                return r; /* what was unmapped before is put back by the caller */
            for (unsigned j = i; j < k; j++)
                atomic_store(&moves[j].chunk->mapped,
                             2); /* unmapped, but still counted as mapped: restored or swapped next */
        }
        i = k + 1;
    }
    return CUDA_SUCCESS;
}

static CUresult swap_run(unsigned gpu, struct hr_move *moves, unsigned n) HR_REQUIRES(hr_move_lock)
{
    unsigned mapped_new = 0;
    CUresult r = unmap_run(moves, n);
    for (; r == CUDA_SUCCESS && mapped_new < n; mapped_new++) {
        r = map_one(moves[mapped_new].chunk, moves[mapped_new].to);
        if (r != CUDA_SUCCESS)
            break;
    }
    if (r == CUDA_SUCCESS && moves[0].to->handle)
        r = grant(gpu, hr_chunk_address(moves[0].chunk), (size_t)n << hr_space.chunk_shift,
                  sharers_of(moves[0].chunk, moves[0].to));
    if (r != CUDA_SUCCESS) {
        /* Only what was really unmapped has lost its mapping. */
        for (unsigned i = 0; i < n; i++) {
            if (i < mapped_new || atomic_load(&moves[i].chunk->mapped) != 1)
                restore_run(gpu, &moves[i], 1, i < mapped_new ? 1 : 0);
            hr_tier_of(moves[i].to)->give(moves[i].to);
        }
        hr_log(HR_LOG_WARN, "a move was undone: driver error %d", (int)r);
        return r;
    }
    for (unsigned i = 0; i < n; i++) {
        struct hr_chunk *c = moves[i].chunk;
        struct hr_phys *old = c->phys;
        set_chunk(extent_of(c), c, moves[i].to, moves[i].to->handle != 0);
        hr_tier_of(old)->give(old);
    }
    return CUDA_SUCCESS;
}

static int by_address(const void *a, const void *b)
{
    const struct hr_move *x = a, *y = b;
    return x->chunk < y->chunk ? -1 : x->chunk > y->chunk;
}

static enum hr_moved swap_all(unsigned gpu, struct hr_move *moves, unsigned count) HR_REQUIRES(hr_move_lock)
{
    uint64_t start_ns = hr_clock_ns();
    enum hr_moved result = HR_MOVED;
    for (unsigned i = 0; i < count;) {
        unsigned k = i + 1;
        while (k < count && moves[k].chunk == moves[k - 1].chunk + 1 && !moves[k].to->handle == !moves[i].to->handle &&
               sharers_of(moves[k].chunk, moves[k].to) == sharers_of(moves[i].chunk, moves[i].to))
            k++;
        if (swap_run(gpu, &moves[i], k - i) != CUDA_SUCCESS)
            result = HR_MOVE_FAILED;
        i = k;
    }
    hr_stat_add_stall(hr_thread_self(), HR_STAT_stall_map_ns, hr_clock_ns() - start_ns);
    return result;
}

/* --- the protocol ------------------------------------------------------------------------------------------------- */

static void mark_moving(struct hr_move *moves, unsigned count, bool moving)
{
    for (unsigned i = 0; i < count; i++) {
        struct hr_chunk *c = moves[i].chunk;
        uint8_t state = atomic_load(&c->state);
        if (moving)
            atomic_store(&c->state, state == HR_CHUNK_RESIDENT ? HR_CHUNK_MOVING_OUT : HR_CHUNK_MOVING_IN);
        else if (state == HR_CHUNK_MOVING_OUT || state == HR_CHUNK_MOVING_IN)
            atomic_store(&c->state, state_of(c->phys, atomic_load(&c->mapped) != 0));
    }
}

static enum hr_moved abandon(struct hr_move *moves, unsigned count, enum hr_moved why)
{
    mark_moving(moves, count, false);
    for (unsigned i = 0; i < count; i++)
        hr_tier_of(moves[i].to)->give(moves[i].to);
    hr_stat_add(hr_thread_self(), why == HR_MOVE_FAILED ? HR_STAT_moves_failed : HR_STAT_moves_given_up, 1);
    return why;
}

/* Step 1: a copy with the gate open. true = it was made, and nothing had been submitted up to *entered_out that still runs. */
static bool copy_early(struct hr_context *context, struct hr_move *moves, unsigned count, uint64_t *entered_out)
    HR_REQUIRES(hr_move_lock)
{
    if (!hr_gate_snapshot(entered_out) || !hr_quiet_now(hr_peers_users(context->gpu)))
        return false;
    return copy_all(context, moves, count) == CUDA_SUCCESS;
}

/* Step 2, with the gate closed: makes sure that the copies are what the chunks hold. */
static enum hr_moved settle(struct hr_context *context, struct hr_move *moves, unsigned count, bool copied,
                            uint64_t entered, uint64_t deadline_ns) HR_REQUIRES(hr_move_lock)
{
#ifdef HR_MUTANT_STALE_COPY_IN
    if (copied)
        return HR_MOVED;
#endif
    if (copied && hr_gate_entered() == entered)
        return HR_MOVED;
    uint64_t start_ns = hr_clock_ns();
    bool quiet = hr_quiet_wait(hr_peers_users(context->gpu), deadline_ns);
    hr_stat_add_stall(hr_thread_self(), HR_STAT_stall_drain_ns, hr_clock_ns() - start_ns);
    if (!quiet)
        return HR_MOVE_GIVEN_UP;
    if (copied)
        hr_stat_add(hr_thread_self(), HR_STAT_copies_repeated, count);
    return copy_all(context, moves, count) == CUDA_SUCCESS ? HR_MOVED : HR_MOVE_FAILED;
}

static void count_site_moved(uint16_t site, size_t bytes)
{
    hr_site_moved_out(hr_site_numbered(site), bytes);
}

/* Where chunks have been, before their batch changes that. */
struct origins {
    uint8_t tier[HR_MOVE_MAX];
};
static void note_origins(const struct hr_move *moves, unsigned count, struct origins *from_out)
{
    for (unsigned i = 0; i < count; i++)
        from_out->tier[i] = moves[i].chunk->phys->tier;
}

static void count_moved(const struct hr_move *moves, unsigned count, const struct origins *from, bool out)
{
    struct hr_thread *t = hr_thread_self();
    for (unsigned i = 0; i < count; i++) {
        const struct hr_chunk *c = moves[i].chunk;
        struct hr_extent *e = atomic_load_explicit(&c->extent, memory_order_acquire);
        if (c->phys != moves[i].to) /* this one was undone */
            continue;
        bool left = from->tier[i] == HR_TIER_VRAM, to_peer = moves[i].to->tier == HR_TIER_PEER;
        if (moves[i].to->tier == HR_TIER_VRAM)
            hr_stat_add(t, HR_STAT_moved_in_bytes, hr_chunk_bytes());
        else if (left)
            hr_stat_add(t, HR_STAT_moved_out_bytes, hr_chunk_bytes());
        if (from->tier[i] == HR_TIER_PEER)
            hr_stat_add(t, out ? HR_STAT_called_in_bytes : HR_STAT_lent_in_bytes, hr_chunk_bytes());
        else if (to_peer)
            hr_stat_add(t, HR_STAT_lent_out_bytes, hr_chunk_bytes());
        if (left && atomic_load_explicit(&e->kind, memory_order_relaxed) == HR_EXTENT_SLAB)
            hr_space_each_site(e, count_site_moved);
        else if (left)
            hr_site_moved_out(atomic_load_explicit(&e->site, memory_order_relaxed), hr_chunk_bytes());
    }
    hr_stat_add(t, out ? HR_STAT_moves_out : HR_STAT_moves_in, 1);
}

enum hr_moved hr_move_batch_locked(unsigned gpu, struct hr_move *moves, unsigned count, uint64_t span_ns)
{
    HR_RELAXED();
    struct hr_context *context = hr_context_of_gpu(gpu);
    bool pushed = false, out = count > 0 && moves[0].to->tier != HR_TIER_VRAM;
    if (count == 0)
        return HR_MOVED;
    if (!context || (span_ns == 0 && (hr_clock_ns() < gate_not_before_ns || hr_capture_holds_moves())))
        return abandon(moves, count, HR_MOVE_GIVEN_UP);
    if (hr_context_enter(context, &pushed) != CUDA_SUCCESS)
        return abandon(moves, count, HR_MOVE_FAILED);
    qsort(moves, count, sizeof *moves, by_address);
    mark_moving(moves, count, true);
    struct origins from;
    note_origins(moves, count, &from);

    uint64_t entered = 0;
    bool copied = copy_early(context, moves, count, &entered);
    enum hr_moved result = HR_MOVE_GIVEN_UP;
    uint64_t deadline_ns = hr_clock_ns() + (span_ns > gate_span_ns ? span_ns : gate_span_ns);
    hr_stat_add(hr_thread_self(), HR_STAT_gate_closes, 1);
    if (hr_gate_close(deadline_ns)) {
        result = settle(context, moves, count, copied, entered, deadline_ns);
        if (result == HR_MOVED) {
            hr_hidden_collect_quiet();
            hr_graph_collect_quiet();
            gate_span_ns = GATE_SPAN_NS;
            result = swap_all(gpu, moves, count);
            hr_gate_open();
            mark_moving(moves, count, false);
            count_moved(moves, count, &from, out);
            if (result == HR_MOVE_FAILED)
                hr_stat_add(hr_thread_self(), HR_STAT_moves_failed, 1);
            hr_context_leave(pushed);
            return result;
        }
        hr_gate_open();
    }
    if (result == HR_MOVE_GIVEN_UP)
        gate_failed();
    hr_context_leave(pushed);
    return abandon(moves, count, result);
}

/* --- fresh and dead ----------------------------------------------------------------------------------------------- */

/* Takes and maps one chunk each; how many worked. */
static uint32_t map_fresh(struct hr_extent *e, uint32_t first_chunk, uint32_t count, const struct hr_tier *tier,
                          struct hr_phys **taken, CUresult *error_out)
{
    uint32_t n = 0;
    *error_out = CUDA_SUCCESS;
    for (; n < count; n++) {
        *error_out = tier->take(e->gpu, &taken[n]);
        if (*error_out != CUDA_SUCCESS)
            break;
        *error_out = map_one(&hr_space.chunks[first_chunk + n], taken[n]);
        if (*error_out != CUDA_SUCCESS) {
            tier->give(taken[n]);
            break;
        }
    }
    return n;
}

static uint32_t back_some(struct hr_extent *e, uint32_t first_chunk, uint32_t count, const struct hr_tier *tier,
                          CUresult *error_out) HR_REQUIRES(hr_move_lock)
{
    struct hr_phys *taken[HR_MOVE_MAX];
    struct hr_chunk *c = &hr_space.chunks[first_chunk];
    uint32_t n = map_fresh(e, first_chunk, count, tier, taken, error_out);
    bool mappable = n > 0 && taken[0]->handle != 0;
    CUresult r = mappable
                     ? grant(e->gpu, hr_chunk_address(c), (size_t)n << hr_space.chunk_shift, sharers_of(c, taken[0]))
                     : CUDA_SUCCESS;
    if (r != CUDA_SUCCESS) {
        *error_out = r;
        for (uint32_t i = 0; i < n; i++) {
            hr_drv.cuMemUnmap(hr_chunk_address(c + i), hr_chunk_bytes());
            tier->give(taken[i]);
        }
        return 0;
    }
    for (uint32_t i = 0; i < n; i++)
        set_chunk(e, c + i, taken[i], mappable);
    hr_stat_add(hr_thread_self(), tier == &hr_tier_vram ? HR_STAT_fresh_vram_bytes : HR_STAT_fresh_host_bytes,
                (uint64_t)n << hr_space.chunk_shift);
    return n;
}

uint32_t hr_back_fresh_locked(struct hr_extent *e, uint32_t first_chunk, uint32_t count, const struct hr_tier *tier,
                              CUresult *error_out)
{
    HR_RELAXED();
    uint32_t done = 0;
    *error_out = CUDA_SUCCESS;
    /* Either this sees that the extent died, or the free sees that it was touched. A stale address may have named an extent
     * that has begun a new life since, elsewhere. */
    atomic_store(&e->touched, 1);
    if (!atomic_load(&e->live) || atomic_load(&hr_space.chunks[first_chunk].extent) != e ||
        atomic_load(&hr_space.chunks[first_chunk + count - 1].extent) != e)
        return 0;
    uint64_t start_ns = hr_clock_ns();
    while (done < count && *error_out == CUDA_SUCCESS) {
        uint32_t want = count - done < HR_MOVE_MAX ? count - done : HR_MOVE_MAX;
        uint32_t n = back_some(e, first_chunk + done, want, tier, error_out);
        done += n;
        if (n < want)
            break;
    }
    hr_stat_add_stall(hr_thread_self(), HR_STAT_stall_map_ns, hr_clock_ns() - start_ns);
    return done;
}

CUresult hr_map_again_locked(struct hr_chunk *c)
{
    HR_RELAXED();
    struct hr_extent *e = extent_of(c);
    CUresult r = map_one(c, c->phys);
    if (r != CUDA_SUCCESS)
        return r;
    r = grant(e->gpu, hr_chunk_address(c), hr_chunk_bytes(), sharers_of(c, c->phys));
    if (r != CUDA_SUCCESS) {
        hr_drv.cuMemUnmap(hr_chunk_address(c), hr_chunk_bytes());
        return r;
    }
    set_chunk(e, c, c->phys, true);
    return CUDA_SUCCESS;
}

CUresult hr_drop_backing_locked(struct hr_extent *e)
{
    HR_RELAXED();
    CUresult failed = CUDA_SUCCESS;
    for (uint32_t i = 0; i < e->chunk_count;) {
        struct hr_chunk *c = &hr_space.chunks[e->first_chunk + i];
        uint32_t n = 0;
        while (i + n < e->chunk_count && c[n].phys && atomic_load(&c[n].mapped))
            n++;
        if (n > 0) {
            CUresult r = hr_drv.cuMemUnmap(hr_chunk_address(c), (size_t)n << hr_space.chunk_shift);
            if (r != CUDA_SUCCESS) {
                failed = r;
                i += n;
                continue;
            }
        } else if (c->phys) {
            n = 1;
        }
        for (uint32_t k = 0; k < n; k++) {
            struct hr_phys *phys = c[k].phys;
            set_chunk(e, c + k, NULL, false);
            hr_hold_forget_locked(c + k);
            hr_tier_of(phys)->give(phys);
        }
        i += n > 0 ? n : 1;
    }
    if (failed == CUDA_SUCCESS)
        atomic_store(&e->touched, 0); /* only here, under the lock under which it is set */
    return failed;
}

/* --- mappings of the job's own ------------------------------------------------------------------------------------- */

static void become_holes(struct hr_extent *e, struct hr_chunk *c, uint32_t count)
{
    atomic_fetch_sub(&e->not_resident, count);
    atomic_fetch_sub(&e->not_accessible, count);
    for (uint32_t i = 0; i < count; i++)
        atomic_store_explicit(&c[i].extent, NULL, memory_order_release);
}

CUresult hr_move_adopt_locked(struct hr_extent *e, uint32_t first_chunk, uint32_t count, struct hr_phys *const *phys)
{
    struct hr_chunk *c = &hr_space.chunks[first_chunk];
    CUresult r = CUDA_SUCCESS;
    atomic_fetch_add(&e->not_resident, count);
    atomic_fetch_add(&e->not_accessible, count);
    for (uint32_t i = 0; i < count; i++)
        atomic_store_explicit(&c[i].extent, e, memory_order_release);
    uint32_t done = 0;
    for (; done < count; done++) {
        if (!phys[done])
            continue;
        r = map_one(&c[done], phys[done]);
        if (r != CUDA_SUCCESS)
            break;
        bool mapped = phys[done]->handle != 0;
        if (mapped)
            r = grant(e->gpu, hr_chunk_address(&c[done]), hr_chunk_bytes(), sharers_of(&c[done], phys[done]));
        if (r != CUDA_SUCCESS) {
            hr_drv.cuMemUnmap(hr_chunk_address(&c[done]), hr_chunk_bytes());
            break;
        }
        set_chunk(e, &c[done], phys[done], mapped);
    }
    if (r == CUDA_SUCCESS)
        return r;
    for (uint32_t i = 0; i < done; i++) {
        if (atomic_load(&c[i].mapped))
            hr_drv.cuMemUnmap(hr_chunk_address(&c[i]), hr_chunk_bytes());
        set_chunk(e, &c[i], NULL, false);
    }
    become_holes(e, c, count);
    return r;
}

CUresult hr_move_disown_locked(struct hr_extent *e, uint32_t first_chunk, uint32_t count, bool keep_mapped,
                               struct hr_phys **phys_out)
{
    struct hr_chunk *c = &hr_space.chunks[first_chunk];
    for (uint32_t i = 0; i < count && !keep_mapped;) {
        uint32_t n = 0;
        while (i + n < count && atomic_load(&c[i + n].mapped))
            n++;
        CUresult r =
            n > 0 ? hr_drv.cuMemUnmap(hr_chunk_address(&c[i]), (size_t)n << hr_space.chunk_shift) : CUDA_SUCCESS;
        if (r != CUDA_SUCCESS) { /* what was unmapped before is mapped again by whoever names it */
            for (uint32_t k = 0; k < i; k++)
                if (c[k].phys && atomic_load(&c[k].mapped))
                    set_chunk(e, &c[k], c[k].phys, false);
            return r;
        }
        i += n > 0 ? n : 1;
    }
    for (uint32_t i = 0; i < count; i++) {
        bool stays = keep_mapped && atomic_load(&c[i].mapped);
        phys_out[i] = c[i].phys;
        set_chunk(e, &c[i], NULL, false);
        atomic_store(&c[i].mapped, stays);
    }
    become_holes(e, c, count);
    return CUDA_SUCCESS;
}
