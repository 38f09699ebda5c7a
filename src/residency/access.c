#include "residency/access.h"

#include <sched.h>
#include <stdlib.h>

#include "base/config.h"
#include "base/log.h"
#include "policy/policy.h"
#include "residency/capture.h"
#include "residency/context.h"
#include "residency/fixed.h"
#include "residency/lend.h"
#include "residency/move.h"
#include "residency/peers.h"
#include "residency/quarantine.h"
#include "residency/shelf.h"
#include "residency/transfer.h"
#include "tier/tier.h"

/*
 * A pointer gives a start, never an extent. In an ordinary allocation the piece that a word names reaches to its end; in
 * one that the job cuts up itself (an arena) it reaches to the next address that was ever named as a start. The tail of a
 * very large allocation, of which nothing is known, counts as one run only.
 */

#define REFS_DEPTH 4
#define STAMPED_CHUNKS_MOST 32

static size_t run_bytes(unsigned gpu)
{
    return (size_t)hr_policy_run_chunks(hr_chunk_bytes(), hr_tier_vram_limit(gpu)) << hr_space.chunk_shift;
}

/* The end of what `word` names inside e. */
static CUdeviceptr piece_end(const struct hr_extent *e, const struct hr_view *view, CUdeviceptr word)
{
    CUdeviceptr end = hr_space_piece_end(e, view, word);
    if (end <= word)
        return word + 1; /* behind the bytes that were asked for, within the last chunk */
    bool unknown_tail = end == view->base + view->bytes && word != view->base;
    bool large = view->bytes > (hr_tier_vram_limit(e->gpu) << hr_space.chunk_shift) / 2;
    if (large && (unknown_tail || word == view->base) && end == view->base + view->bytes &&
        end - word > run_bytes(e->gpu))
        return word + run_bytes(e->gpu);
    return end;
}

static uint32_t chunk_index(CUdeviceptr address)
{
    return (uint32_t)((address - hr_space.base) >> hr_space.chunk_shift);
}

/* The view of the extent if it (still) holds the word. */
static bool view_with(const struct hr_extent *e, CUdeviceptr word, struct hr_view *view_out)
{
    return hr_space_view(e, view_out) && word - view_out->base < (CUdeviceptr)view_out->chunk_count
                                                                     << hr_space.chunk_shift;
}

static void stamp(struct hr_extent *e, uint32_t first, uint32_t end, uint64_t now)
{
    atomic_store_explicit(&e->last_use, now, memory_order_relaxed);
    if (!atomic_load_explicit(&e->has_starts, memory_order_relaxed))
        return;
    if (end - first > STAMPED_CHUNKS_MOST)
        end = first + STAMPED_CHUNKS_MOST;
    for (uint32_t i = first; i < end; i++)
        atomic_store_explicit(&hr_space.chunks[i].last_use, now, memory_order_relaxed);
}

static enum hr_touch touch_extent(struct hr_extent *e, CUdeviceptr word, uint64_t now, int user, unsigned depth);

static enum hr_touch touch_refs(struct hr_extent *e, uint64_t now, int user, unsigned depth)
{
    enum hr_touch worst = HR_TOUCH_HIT;
    const struct hr_refs *refs = atomic_load_explicit(&e->refs, memory_order_acquire);
    for (uint32_t i = 0; refs && i < refs->count && worst != HR_TOUCH_MISSING; i++) {
        struct hr_extent *r = refs->extent[i];
        if (!atomic_load_explicit(&r->live, memory_order_acquire))
            continue;
        if (atomic_load_explicit(&r->last_use, memory_order_relaxed) == now &&
            atomic_load_explicit(&r->not_accessible, memory_order_relaxed) == 0)
            continue; /* seen in this submission */
        enum hr_touch touch = touch_extent(r, r->base, now, user, depth + 1);
        if (touch > worst)
            worst = touch;
    }
    return worst;
}

static enum hr_touch touch_extent(struct hr_extent *e, CUdeviceptr word, uint64_t now, int user, unsigned depth)
{
    if (__builtin_expect(user >= 0 && user != e->gpu, 0)) {
        if (hr_peers_meet_in_vram((unsigned)user, e->gpu))
            atomic_store_explicit(&e->stays, 1, memory_order_relaxed);
        if (hr_fixed_is_barred((unsigned)user, e->gpu) &&
            !(atomic_load_explicit(&e->shared_with, memory_order_acquire) >> user & 1))
            return HR_TOUCH_MISSING;
    }
    if (e->chunk_count > 1)
        hr_space_learn_start(e, word);
    bool split = atomic_load_explicit(&e->has_starts, memory_order_relaxed);
    bool all_here = atomic_load_explicit(&e->not_resident, memory_order_relaxed) == 0;
    enum hr_touch own = HR_TOUCH_HIT;
    if (all_here && !split) {
        atomic_store_explicit(&e->last_use, now, memory_order_relaxed);
    } else {
        struct hr_view view;
        if (!view_with(e, word, &view))
            return HR_TOUCH_HIT; /* freed meanwhile: no kernel of the job may use it */
        uint32_t first = chunk_index(word), end = chunk_index(piece_end(e, &view, word) - 1) + 1;
        stamp(e, first, end, now);
        if (atomic_load_explicit(&e->not_accessible, memory_order_relaxed) > 0)
            return HR_TOUCH_MISSING;
        for (uint32_t i = first; i < end && own == HR_TOUCH_HIT && !all_here; i++)
            if (hr_space_is_of(&hr_space.chunks[i], e) &&
                atomic_load_explicit(&hr_space.chunks[i].state, memory_order_relaxed) != HR_CHUNK_RESIDENT)
                own = HR_TOUCH_ACCESSIBLE;
    }
    if (__builtin_expect(atomic_load_explicit(&e->refs, memory_order_relaxed) != NULL, 0) && depth < REFS_DEPTH) {
        enum hr_touch theirs = touch_refs(e, now, user, depth);
        return theirs > own ? theirs : own;
    }
    return own;
}

enum hr_touch hr_access_touch(CUdeviceptr word, uint64_t now, int user)
{
    struct hr_extent *e = hr_space_extent(word);
    return e ? touch_extent(e, word, now, user, 0) : HR_TOUCH_HIT;
}

/* --- working sets ------------------------------------------------------------------------------------------------- */

static int by_place(const void *a, const void *b)
{
    const struct hr_piece *x = a, *y = b;
    return x->first_chunk < y->first_chunk ? -1 : x->first_chunk > y->first_chunk;
}

/* Makes room in a full set: pieces of one allocation that meet become one. Whether there is room now. */
static bool merge_pieces(struct hr_working_set *set)
{
    unsigned kept = 0;
    qsort(set->piece, set->count, sizeof set->piece[0], by_place);
    for (unsigned i = 1; i < set->count; i++) {
        struct hr_piece *last = &set->piece[kept], *next = &set->piece[i];
        if (next->extent != last->extent || next->first_chunk > last->end_chunk) {
            set->piece[++kept] = *next;
            continue;
        }
        last->end_chunk = next->end_chunk > last->end_chunk ? next->end_chunk : last->end_chunk;
        last->depth = next->depth < last->depth ? next->depth : last->depth;
    }
    set->count = set->count > 0 ? kept + 1 : 0;
    return set->count < HR_WORKING_SET_MOST;
}

static void add_extent(struct hr_working_set *set, struct hr_extent *e, CUdeviceptr word, unsigned depth)
{
    struct hr_view view;
    if (!view_with(e, word, &view))
        return; /* freed meanwhile: no kernel of the job may use it */
    uint32_t first = chunk_index(word), end = chunk_index(piece_end(e, &view, word) - 1) + 1;
    if (!hr_tier_host_mappable(e->gpu)) { /* nothing of it may be missing */
        first = view.first_chunk;
        end = view.first_chunk + view.chunk_count;
    }
    bool known = false, whole = false;
    for (unsigned i = 0; i < set->count; i++) {
        struct hr_piece *piece = &set->piece[i];
        if (piece->extent != e)
            continue;
        known |= piece->depth <= depth; /* what it names was followed at least as far as it would be now */
        whole |= piece->first_chunk == first && piece->end_chunk == end;
        if (piece->depth > depth)
            piece->depth = (uint8_t)depth;
    }
    if (!whole && set->count == HR_WORKING_SET_MOST && !merge_pieces(set)) {
        set->everything = true;
        return;
    }
    if (!whole)
        set->piece[set->count++] = (struct hr_piece){e, first, end, (uint8_t)depth};
    const struct hr_refs *refs = atomic_load_explicit(&e->refs, memory_order_acquire);
    for (uint32_t i = 0; refs && !known && depth < REFS_DEPTH && i < refs->count; i++)
        if (atomic_load_explicit(&refs->extent[i]->live, memory_order_acquire))
            add_extent(set, refs->extent[i], refs->extent[i]->base, depth + 1);
}

void hr_working_set_add(struct hr_working_set *set, CUdeviceptr word)
{
    struct hr_extent *e = hr_space_extent(word);
    if (e)
        add_extent(set, e, word, 0);
}

/* --- ranges of copies --------------------------------------------------------------------------------------------- */

bool hr_access_is_backed(CUdeviceptr address, size_t bytes)
{
    if (bytes == 0)
        return true;
    for (uint32_t i = chunk_index(address); i <= chunk_index(address + bytes - 1); i++) {
        struct hr_chunk *c = &hr_space.chunks[i];
        if (atomic_load_explicit(&c->mapped, memory_order_acquire))
            continue;
        /* Not mapped: fine only where it is so by design, in pinned host memory. */
        if (atomic_load_explicit(&c->state, memory_order_acquire) == HR_CHUNK_RESERVED || hr_tier_host_mappable(0))
            return false;
    }
    return true;
}

/* Backs RESERVED chunks among [first, end), VRAM first, then host; maps again what lost its mapping. */
static CUresult back_chunks_locked(struct hr_extent *e, uint32_t first, uint32_t end) HR_REQUIRES(hr_move_lock)
{
    CUresult error = CUDA_SUCCESS;
    for (uint32_t i = first; i < end;) {
        struct hr_chunk *c = &hr_space.chunks[i];
        if (c->phys) {
            if (c->phys->handle && !atomic_load(&c->mapped) && (error = hr_map_again_locked(c)) != CUDA_SUCCESS)
                return error;
            i++;
            continue;
        }
        if (!hr_space_is_of(c, e)) { /* a hole */
            i++;
            continue;
        }
        uint32_t n = 1;
        while (i + n < end && hr_space_lacks_backing(&hr_space.chunks[i + n], e))
            n++;
        bool vram = !hr_fixed_sharers(e);
        uint32_t done = vram ? hr_back_fresh_locked(e, i, n, &hr_tier_vram, &error) : 0;
        if (vram && done < n && hr_lend_call_in_locked(e->gpu, n - done, 0) > 0)
            done += hr_back_fresh_locked(e, i + done, n - done, &hr_tier_vram, &error);
        if (done < n)
            done += hr_back_fresh_locked(e, i + done, n - done, &hr_tier_host, &error);
        if (done < n)
            return error != CUDA_SUCCESS   ? error
                   : atomic_load(&e->live) ? CUDA_ERROR_OUT_OF_MEMORY
                                           : CUDA_ERROR_INVALID_VALUE; /* freed meanwhile */
        i += n;
    }
    return CUDA_SUCCESS;
}

static CUresult back_extent_chunks(struct hr_extent *e, uint32_t first, uint32_t end)
{
    HR_RELAXED();
    struct hr_context *context = hr_context_of_gpu(e->gpu);
    bool pushed;
    CUresult r = context ? hr_context_enter(context, &pushed) : CUDA_ERROR_INVALID_CONTEXT;
    if (r != CUDA_SUCCESS)
        return r;
    hr_tier_host_mappable(e->gpu);
    if (hr_tier_vram.available_chunks(e->gpu) < end - first) {
        hr_transfer_trim(e->gpu); /* what passes through has no right to stay when the GPU needs its memory */
        hr_shelf_give_up(hr_thread_self());
        if (hr_quarantine_any()) { /* nor has what was freed */
            hr_quiet_now(hr_peers_users(e->gpu));
            hr_quarantine_release(hr_thread_self());
        }
    }
    hr_mutex_lock(&hr_move_lock);
    r = back_chunks_locked(e, first, end);
    hr_mutex_unlock(&hr_move_lock);
    hr_context_leave(pushed);
    return r;
}

CUresult hr_access_back_range(struct hr_thread *t, CUdeviceptr address, size_t bytes)
{
    /* Its exact bytes: what follows in the chunk may belong to another allocation. A driver asks for a context first. */
    if (!hr_space_holds(address, bytes))
        return hr_context_current() ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_CONTEXT;
    if (bytes == 0 || hr_access_is_backed(address, bytes))
        return CUDA_SUCCESS;
    CUresult r = CUDA_SUCCESS;
    uint32_t end = chunk_index(address + bytes - 1) + 1;
    for (uint32_t i = chunk_index(address); i < end && r == CUDA_SUCCESS;) { /* what the job mapped may be of several */
        struct hr_extent *e = atomic_load_explicit(&hr_space.chunks[i].extent, memory_order_acquire);
        uint32_t first = i++;
        while (i < end && hr_space_is_of(&hr_space.chunks[i], e))
            i++;
        if (e)
            r = back_extent_chunks(e, first, i);
        for (struct hr_room_wait wait = {0};
             e && r == CUDA_ERROR_OUT_OF_MEMORY && hr_access_make_room(t, e->gpu, &wait);)
            r = back_extent_chunks(e, first, i);
    }
    return r;
}

CUresult hr_access_map_extent(struct hr_thread *t, struct hr_extent *e)
{
    (void)t;
    struct hr_view view;
    if (!hr_space_view(e, &view))
        return CUDA_ERROR_INVALID_VALUE; /* freed meanwhile */
    return back_extent_chunks(e, view.first_chunk, view.first_chunk + view.chunk_count);
}

size_t hr_access_piece(CUdeviceptr address, size_t bytes, CUdeviceptr *use_out, bool *translated_out)
{
    struct hr_chunk *c = hr_space_chunk(address);
    size_t in_chunk = hr_chunk_bytes() - ((address - hr_space.base) & (hr_chunk_bytes() - 1));
    *use_out = address;
    *translated_out = false;
    if (!atomic_load_explicit(&c->mapped, memory_order_acquire) && c->phys && !c->phys->handle) {
        *use_out = c->phys->alias + (hr_chunk_bytes() - in_chunk);
        *translated_out = true;
        return in_chunk < bytes ? in_chunk : bytes;
    }
    uint8_t state = atomic_load_explicit(&c->state, memory_order_relaxed);
    const struct hr_phys *phys = c->phys; /* as long as the submission lasts */
    size_t length = in_chunk;
    while (length < bytes) {
        c++;
        if (atomic_load_explicit(&c->state, memory_order_relaxed) != state || !atomic_load(&c->mapped) ||
            (phys && c->phys && (phys->tier != c->phys->tier || phys->gpu != c->phys->gpu)))
            break;
        length += hr_chunk_bytes();
    }
    return length < bytes ? length : bytes;
}

/* --- commit policy ------------------------------------------------------------------------------------------------ */

/*
 * Extents that have to be backed before the next launch: a stack that allocations push to without a lock and a launch takes as
 * a whole. The count covers those that are being backed, so that a launch on another thread waits for them.
 */
static _Atomic(uint8_t) unscannable;
static _Atomic(struct hr_extent *) pending;
static _Atomic(uint32_t) pending_count;

static void push_pending(struct hr_extent *e)
{
    if (atomic_load(&e->not_accessible) == 0 || atomic_exchange(&e->is_pending, 1))
        return;
    atomic_fetch_add(&pending_count, 1);
    struct hr_extent *head = atomic_load(&pending);
    do {
        e->next_pending = head;
    } while (!atomic_compare_exchange_weak(&pending, &head, e));
}

static bool push_visited(CUdeviceptr address, void *arg)
{
    (void)arg;
    struct hr_extent *e = hr_space_extent(address);
    if (e)
        push_pending(e);
    return true;
}

bool hr_access_can_scan(void)
{
    return hr_config()->commit == HR_COMMIT_AUTO && !atomic_load_explicit(&unscannable, memory_order_relaxed);
}

void hr_access_cannot_scan(const char *why)
{
    if (hr_config()->commit == HR_COMMIT_LAZY || atomic_load_explicit(&unscannable, memory_order_relaxed) ||
        atomic_exchange(&unscannable, 1))
        return;
    hr_log(HR_LOG_INFO,
           "%s: from now on every allocation is backed before a launch (HEADROOM_COMMIT=lazy turns this off)", why);
    hr_space_each(NULL, push_visited, NULL);
}

CUresult hr_access_allocated(struct hr_thread *t, CUdeviceptr address)
{
    if (__builtin_expect(hr_config()->commit == HR_COMMIT_EAGER, 0)) {
        struct hr_allocation a;
        return hr_space_find(address, &a) ? hr_access_back_range(t, a.base, a.bytes) : CUDA_SUCCESS;
    }
    if (atomic_load(&unscannable))
        push_visited(address, NULL);
    return CUDA_SUCCESS;
}

CUresult hr_access_mapped(struct hr_thread *t, CUdeviceptr address, size_t bytes)
{
    if (!hr_space_holds(address, bytes)) /* nobody may access all of it */
        return CUDA_SUCCESS;
    if (__builtin_expect(hr_config()->commit == HR_COMMIT_EAGER, 0))
        return hr_access_back_range(t, address, bytes);
    for (size_t at = 0; atomic_load(&unscannable) && at < bytes; at += hr_chunk_bytes())
        push_visited(address + at, NULL);
    return CUDA_SUCCESS;
}

CUresult hr_access_back_all(struct hr_thread *t)
{
    hr_space_each(NULL, push_visited, NULL);
    return hr_access_back_pending(t);
}

bool hr_access_pending(void)
{
    return atomic_load_explicit(&pending_count, memory_order_relaxed) != 0;
}

/* Backs what is on the stack; the first error is returned, the rest is tried all the same. */
static CUresult back_stack(struct hr_thread *t)
{
    CUresult first = CUDA_SUCCESS;
    struct hr_room_wait wait = {0}; /* one for all of them */
    struct hr_extent *e = atomic_exchange(&pending, NULL);
    while (e) {
        struct hr_extent *next = e->next_pending;
        CUresult r = CUDA_SUCCESS;
        atomic_store(&e->is_pending, 0);
        if (atomic_load(&e->live) && atomic_load(&e->not_accessible) > 0)
            r = hr_access_map_extent(t, e);
        while (r == CUDA_ERROR_OUT_OF_MEMORY && hr_access_make_room(t, e->gpu, &wait))
            r = hr_access_map_extent(t, e);
        if (r == CUDA_ERROR_INVALID_VALUE) /* freed by another thread meanwhile: nothing of it need be backed */
            r = CUDA_SUCCESS;
        if (first == CUDA_SUCCESS)
            first = r;
        atomic_fetch_sub(&pending_count, 1);
        e = next;
    }
    return first;
}

CUresult hr_access_back_pending(struct hr_thread *t)
{
    CUresult r = CUDA_SUCCESS;
    while (r == CUDA_SUCCESS && hr_access_pending()) {
        if (atomic_load(&pending)) {
            r = back_stack(t);
        } else { /* another thread is at it, with the move lock */
            sched_yield();
            hr_mutex_lock(&hr_move_lock);
            hr_mutex_unlock(&hr_move_lock);
        }
    }
    return r;
}
