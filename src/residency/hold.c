#include "residency/hold.h"

#include "base/log.h"
#include "residency/access.h"
#include "residency/capture.h"
#include "residency/context.h"
#include "residency/peers.h"

#define ATTEMPTS 10
#define FIRST_SPAN_NS UINT64_C(2000000) /* for which the gate stays closed; doubled with each attempt */

static _Atomic(size_t) vram_chunks[HR_MAX_GPUS];

size_t hr_hold_vram_chunks(unsigned gpu)
{
    return atomic_load_explicit(&vram_chunks[gpu], memory_order_relaxed);
}

static bool is_in_vram(const struct hr_chunk *c)
{
    return atomic_load(&c->state) == HR_CHUNK_RESIDENT;
}

void hr_hold_forget_locked(struct hr_chunk *c)
{
    if (hr_hold_is(c) && atomic_exchange(&c->held, 0) & HR_HELD_IN_VRAM)
        atomic_fetch_sub(&vram_chunks[atomic_load(&c->extent)->gpu], 1);
}

void hr_hold_add_locked(struct hr_chunk *c)
{
    uint32_t held = atomic_load(&c->held);
    if (held == 0 && is_in_vram(c)) {
        held = HR_HELD_IN_VRAM;
        atomic_fetch_add(&vram_chunks[atomic_load(&c->extent)->gpu], 1);
    }
    atomic_store(&c->held, held + 1);
}

static void remove_locked(struct hr_chunk *c) HR_REQUIRES(hr_move_lock)
{
    uint32_t held = atomic_load(&c->held);
    if ((held & ~HR_HELD_IN_VRAM) > 1)
        atomic_store(&c->held, held - 1);
    else
        hr_hold_forget_locked(c);
}

enum want { WANT_VRAM, WANT_HOST, WANT_EITHER };

/* All of it in one place that it need not leave; what others hold stays where it is in any case. */
static bool is_placed_locked(const struct hr_hold *hold, enum want want) HR_REQUIRES(hr_move_lock)
{
    uint8_t first = atomic_load(&hr_space.chunks[hold->first_chunk].state);
    bool placed = first == HR_CHUNK_RESIDENT || first == HR_CHUNK_HOST, held = false;
    for (uint32_t i = hold->first_chunk; i < hold->end_chunk && placed; i++) {
        placed = atomic_load(&hr_space.chunks[i].state) == first && atomic_load(&hr_space.chunks[i].mapped) == 1;
        held = held || hr_hold_is(&hr_space.chunks[i]);
    }
    return placed && (held || want == WANT_EITHER || (want == WANT_VRAM) == (first == HR_CHUNK_RESIDENT));
}

/* Moves what can be moved of it to host memory. */
static void send_to_host_locked(unsigned gpu, const struct hr_hold *hold, uint64_t span_ns) HR_REQUIRES(hr_move_lock)
{
    HR_RELAXED();
    struct hr_move moves[HR_MOVE_MAX];
    unsigned n = 0;
    if (atomic_load(&hold->extent->sync_memops) || atomic_load(&hold->extent->stays))
        return; /* others rely on where it is */
    for (uint32_t i = hold->first_chunk; i < hold->end_chunk; i++) {
        struct hr_chunk *c = &hr_space.chunks[i];
        uint8_t state = atomic_load(&c->state);
        if ((state != HR_CHUNK_RESIDENT && state != HR_CHUNK_PEER) || atomic_load(&c->pins) > 0 || hr_hold_is(c))
            continue;
        moves[n].chunk = c;
        if (hr_tier_host.take(gpu, &moves[n].to) != CUDA_SUCCESS)
            break;
        if (++n == HR_MOVE_MAX) {
            hr_move_batch_locked(gpu, moves, n, span_ns);
            n = 0;
        }
    }
    hr_move_batch_locked(gpu, moves, n, span_ns);
}

/* Where host memory cannot be mapped there is no other place. */
static bool may_fill_vram(const struct hr_hold *hold)
{
    unsigned gpu = hold->extent->gpu;
    return !hr_tier_host_mappable(gpu) || atomic_load(&hold->extent->stays) ||
           hr_hold_vram_chunks(gpu) + (hold->end_chunk - hold->first_chunk) <= hr_tier_vram_limit(gpu) / 2;
}

/* Sends it to host memory first, unless it is wanted in VRAM. */
static bool hold_if_placed(const struct hr_hold *hold, enum want want, uint64_t span_ns, CUresult *r_out)
{
    struct hr_context *context = hr_context_of_gpu(hold->extent->gpu);
    struct hr_view view;
    bool pushed, placed = false;
    *r_out = context ? hr_context_enter(context, &pushed) : CUDA_ERROR_INVALID_CONTEXT;
    if (*r_out != CUDA_SUCCESS)
        return false;
    hr_mutex_lock(&hr_move_lock);
    if (!hr_space_view(hold->extent, &view) || view.id != hold->id) {
        *r_out = CUDA_ERROR_INVALID_VALUE; /* freed meanwhile */
    } else {
        if (want != WANT_VRAM && !is_placed_locked(hold, want))
            send_to_host_locked(hold->extent->gpu, hold, span_ns);
        placed = is_placed_locked(hold, want);
        for (uint32_t i = hold->first_chunk; placed && i < hold->end_chunk; i++)
            hr_hold_add_locked(&hr_space.chunks[i]);
        if (placed && hr_space.gpu_count > 1)
            hr_peers_open_locked(hold->extent->gpu, hold->first_chunk, hold->end_chunk);
    }
    hr_mutex_unlock(&hr_move_lock);
    hr_context_leave(pushed);
    return placed;
}

CUresult hr_hold_take(struct hr_thread *t, CUdeviceptr address, size_t bytes, struct hr_hold *hold_out)
{
    struct hr_allocation a;
    if (bytes == 0 || !hr_space_find(address, &a) || bytes > a.bytes - (address - a.base))
        return CUDA_ERROR_INVALID_VALUE;
    struct hr_view view;
    struct hr_hold hold = {.extent = a.extent,
                           .first_chunk = (uint32_t)((address - hr_space.base) >> hr_space.chunk_shift),
                           .end_chunk = (uint32_t)((address + bytes - 1 - hr_space.base) >> hr_space.chunk_shift) + 1};
    if (!hr_space_view(a.extent, &view))
        return CUDA_ERROR_INVALID_VALUE;
    hold.id = view.id;
    CUresult r = CUDA_SUCCESS;
    bool held = false, mappable = hr_tier_host_mappable(a.extent->gpu);
    for (unsigned attempt = 0; attempt < 2 * ATTEMPTS && !held && r == CUDA_SUCCESS; attempt++) {
        enum want want = !mappable              ? WANT_VRAM
                         : attempt >= ATTEMPTS  ? WANT_EITHER
                         : may_fill_vram(&hold) ? WANT_VRAM
                                                : WANT_HOST;
        uint64_t span_ns = FIRST_SPAN_NS << attempt % ATTEMPTS;
        r = hr_access_back_range(t, address, bytes);
        if (r == CUDA_SUCCESS)
            held = hold_if_placed(&hold, want, span_ns, &r);
        if (r == CUDA_SUCCESS && !held && want == WANT_VRAM) {
            hr_access_bring_in(t, address, bytes, span_ns);
            held = hold_if_placed(&hold, want, span_ns, &r);
        }
        if (!held && attempt < ATTEMPTS && mappable && hr_quiet_now(hr_peers_users(a.extent->gpu)))
            attempt = ATTEMPTS - 1; /* nothing that may leave is left there */
    }
    if (r == CUDA_SUCCESS && !held) {
        hr_log(HR_LOG_ERROR, "memory that a graph copies could not be placed: there is no room, or no moment of rest");
        r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (r == CUDA_SUCCESS)
        *hold_out = hold;
    return r;
}

void hr_hold_drop(const struct hr_hold *hold)
{
    struct hr_view view;
    hr_mutex_lock(&hr_move_lock);
    if (hr_space_view(hold->extent, &view) && view.id == hold->id)
        for (uint32_t i = hold->first_chunk; i < hold->end_chunk; i++)
            remove_locked(&hr_space.chunks[i]);
    hr_mutex_unlock(&hr_move_lock);
}
