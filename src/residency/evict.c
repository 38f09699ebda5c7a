#include "residency/evict.h"

#include "policy/policy.h"
#include "residency/capture.h"
#include "residency/fixed.h"
#include "residency/hold.h"
#include "residency/lend.h"

#include <stdlib.h>

static struct hr_policy_run *runs; /* guarded by hr_move_lock */
static size_t runs_capacity;       /* guarded by hr_move_lock */

bool hr_evict_may_leave(const struct hr_chunk *c)
{
    const struct hr_extent *e = atomic_load_explicit(&c->extent, memory_order_acquire);
    return atomic_load_explicit(&c->state, memory_order_relaxed) == HR_CHUNK_RESIDENT && e && atomic_load(&e->live) &&
           atomic_load_explicit(&c->pins, memory_order_relaxed) == 0 && !hr_hold_is(c) &&
           !atomic_load_explicit(&e->sync_memops, memory_order_relaxed) &&
           /* Where host memory cannot be mapped no kernel uses it there. */
           (!atomic_load_explicit(&e->stays, memory_order_relaxed) || !hr_tier_host_mappable(e->gpu));
}

uint64_t hr_evict_last_use(const struct hr_chunk *c)
{
    const struct hr_extent *e = atomic_load_explicit(&c->extent, memory_order_acquire);
    return atomic_load_explicit(
        atomic_load_explicit(&e->has_starts, memory_order_relaxed) ? &c->last_use : &e->last_use, memory_order_relaxed);
}

static bool add_run(size_t *count, struct hr_policy_run run)
{
    if (*count == runs_capacity) {
        size_t capacity = runs_capacity ? runs_capacity * 2 : 1024;
        struct hr_policy_run *grown = realloc(runs, capacity * sizeof *grown);
        if (!grown)
            return false;
        runs = grown;
        runs_capacity = capacity;
    }
    runs[(*count)++] = run;
    return true;
}

/* Lists what could leave a GPU's VRAM, in runs of adjacent chunks of one allocation. */
static size_t list_runs_locked(unsigned gpu)
{
    uint32_t most = hr_policy_run_chunks(hr_chunk_bytes(), hr_tier_vram_limit(gpu));
    uint32_t first = hr_space.window[gpu].first_chunk, end = first + hr_space_used_chunks(gpu);
    size_t count = 0, left = hr_tier_vram.in_use_chunks(gpu);
    for (uint32_t i = first; i < end && left > 0; i++) {
        struct hr_chunk *c = &hr_space.chunks[i];
        if (atomic_load_explicit(&c->state, memory_order_relaxed) != HR_CHUNK_RESIDENT)
            continue;
        left--;
        if (!hr_evict_may_leave(c))
            continue;
        uint64_t use = hr_evict_last_use(c);
        struct hr_policy_run *last = count > 0 ? &runs[count - 1] : NULL;
        if (last && last->first_chunk + last->chunk_count == i && last->chunk_count < most &&
            atomic_load(&hr_space.chunks[last->first_chunk].extent) == atomic_load(&c->extent)) {
            last->chunk_count++;
            if (use > last->last_use)
                last->last_use = use;
        } else if (!add_run(&count, (struct hr_policy_run){i, 1, use})) {
            break;
        }
    }
    return count;
}

size_t hr_evict_send_locked(unsigned gpu, struct hr_chunk *const *chunks, size_t count, uint64_t span_ns)
{
    HR_RELAXED();
    struct hr_move moves[HR_MOVE_MAX];
    struct hr_lending lending;
    size_t left = 0;
    hr_lend_begin_locked(gpu, &lending);
    for (size_t at = 0; at < count;) {
        uint64_t lenders = 0;
        unsigned n = 0;
        while (n < HR_MOVE_MAX && at < count) {
            moves[n].chunk = chunks[at];
            bool shared = hr_fixed_sharers(atomic_load(&chunks[at]->extent)) != 0;
            if (!shared && hr_lend_take_locked(&lending, &moves[n].to) == CUDA_SUCCESS)
                lenders |= UINT64_C(1) << moves[n].to->gpu;
            else if (hr_tier_host.take(gpu, &moves[n].to) != CUDA_SUCCESS)
                break;
            n++;
            at++;
        }
        if (n == 0)
            break;
        size_t before = hr_tier_vram.in_use_chunks(gpu);
        enum hr_moved moved = hr_move_batch_locked(gpu, moves, n, span_ns);
        size_t after = hr_tier_vram.in_use_chunks(gpu);
        left += before > after ? before - after : 0;
        if (moved == HR_MOVE_FAILED)
            hr_lend_failed_locked(gpu, lenders);
        if (moved != HR_MOVED)
            break;
    }
    return left;
}

size_t hr_evict_locked(unsigned gpu, size_t need, uint64_t span_ns)
{
    size_t listed = list_runs_locked(gpu);
    size_t chosen = hr_policy_pick_victims(runs, listed, need), count = 0, left = 0;
    struct hr_chunk *chunks[HR_MOVE_MAX * 4];
    const size_t most = sizeof chunks / sizeof *chunks;
    for (size_t r = 0; r < chosen && left < need; r++) {
        for (uint32_t k = 0; k < runs[r].chunk_count; k++) {
            chunks[count++] = &hr_space.chunks[runs[r].first_chunk + k];
            if (count < most && (r + 1 < chosen || k + 1 < runs[r].chunk_count))
                continue;
            size_t gone = hr_evict_send_locked(gpu, chunks, count, span_ns);
            left += gone;
            if (gone < count)
                return left;
            count = 0;
        }
    }
    return left;
}
