#include "residency/fixed.h"

#include "base/clock.h"
#include "base/log.h"
#include "residency/access.h"
#include "residency/capture.h"
#include "residency/context.h"
#include "residency/gpu.h"
#include "residency/hold.h"
#include "residency/peers.h"
#include "residency/quarantine.h"

#define LAST_WAIT_NS UINT64_C(60000000000)
#define OPEN_WAIT_NS UINT64_C(20000000) /* for rest, with the gate open, before each attempt */
#define URGENT_NS UINT64_C(100000000)   /* after which the gate stays closed for longer */
#define URGENT_SPAN_MOST_NS UINT64_C(2000000000)
#define REGISTER_WAIT_NS UINT64_C(2000000000)

static _Atomic(uint64_t) barred[HR_MAX_GPUS]; /* by owner; bits are only added */
static _Atomic(bool) any_barred;

void hr_fixed_start(void)
{
    unsigned gpus = hr_gpu_count();
    for (unsigned owner = 0; owner < gpus; owner++)
        for (unsigned user = 0; user < gpus; user++) {
            int can = 1;
            if (user != owner &&
                hr_drv.cuDeviceCanAccessPeer(&can, hr_gpu_device(user), hr_gpu_device(owner)) == CUDA_SUCCESS && !can) {
                atomic_fetch_or(&barred[owner], UINT64_C(1) << user);
                atomic_store(&any_barred, true);
            }
        }
}

void hr_fixed_bar(unsigned gpu_a, unsigned gpu_b)
{
    atomic_fetch_or(&barred[gpu_a], UINT64_C(1) << gpu_b);
    atomic_fetch_or(&barred[gpu_b], UINT64_C(1) << gpu_a);
    atomic_store(&any_barred, true);
}

bool hr_fixed_is_barred(unsigned user, unsigned owner)
{
    return atomic_load_explicit(&barred[owner], memory_order_relaxed) >> user & 1;
}

bool hr_fixed_any_barred(void)
{
    return atomic_load_explicit(&any_barred, memory_order_relaxed);
}

uint64_t hr_fixed_sharers(const struct hr_extent *e)
{
    return atomic_load_explicit(&e->sharers, memory_order_relaxed);
}

bool hr_fixed_is(const struct hr_extent *e)
{
    return (atomic_load_explicit(&e->sync_memops, memory_order_relaxed) || hr_fixed_sharers(e)) &&
           hr_tier_host_mappable(e->gpu);
}

static uint64_t span_ns(uint64_t waited_ns)
{
    uint64_t span = waited_ns < URGENT_NS ? 0 : waited_ns / 2;
    return span < URGENT_SPAN_MOST_NS ? span : URGENT_SPAN_MOST_NS;
}

/* Sends chunks of e that are in one of these states (a bit each) to host memory. Whether none is left. */
static bool send_to_host_locked(struct hr_extent *e, const struct hr_view *view, unsigned states, uint64_t span)
    HR_REQUIRES(hr_move_lock)
{
    HR_RELAXED();
    struct hr_move moves[HR_MOVE_MAX];
    bool all = true;
    unsigned n = 0;
    for (uint32_t i = 0; i < view->chunk_count; i++) {
        struct hr_chunk *c = &hr_space.chunks[view->first_chunk + i];
        if (!(states >> atomic_load(&c->state) & 1) || !hr_space_is_of(c, e))
            continue;
        moves[n].chunk = c;
        if (atomic_load(&c->pins) > 0 || hr_hold_is(c) || hr_tier_host.take(e->gpu, &moves[n].to) != CUDA_SUCCESS) {
            all = false; /* a launch is on its way with it, or there is no room */
            continue;
        }
        if (++n == HR_MOVE_MAX) {
            all = hr_move_batch_locked(e->gpu, moves, n, span) == HR_MOVED && all;
            n = 0;
        }
    }
    return hr_move_batch_locked(e->gpu, moves, n, span) == HR_MOVED && all;
}

/* Grants `user` what is mapped of e, all of which is in host memory. */
static CUresult grant_locked(const struct hr_extent *e, const struct hr_view *view, unsigned user)
    HR_REQUIRES(hr_move_lock)
{
    CUmemAccessDesc desc = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = hr_gpu_device(user)},
                            .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUresult r = CUDA_SUCCESS;
    HR_RELAXED();
    for (uint32_t i = 0; i < view->chunk_count && r == CUDA_SUCCESS; i++) {
        struct hr_chunk *c = &hr_space.chunks[view->first_chunk + i];
        if (atomic_load(&c->mapped) && hr_space_is_of(c, e))
            r = hr_drv.cuMemSetAccess(hr_chunk_address(c), hr_chunk_bytes(), &desc, 1);
    }
    return r;
}

/* One attempt. What is backed or mapped from here on is in host memory and granted (move.c), so only what there is has to be looked at. */
static CUresult share_once(struct hr_extent *e, unsigned user, uint64_t span, bool *done_out)
{
    struct hr_context *context = hr_context_of_gpu(e->gpu);
    struct hr_view view;
    bool pushed;
    CUresult r = context ? hr_context_enter(context, &pushed) : CUDA_ERROR_INVALID_CONTEXT;
    if (r != CUDA_SUCCESS)
        return r;
    hr_mutex_lock(&hr_move_lock);
    *done_out = !hr_space_view(e, &view); /* freed meanwhile */
    if (!*done_out) {
        atomic_fetch_or(&e->sharers, (uint16_t)(1u << user));
        if (send_to_host_locked(e, &view, 1u << HR_CHUNK_RESIDENT | 1u << HR_CHUNK_PEER, span)) {
            r = grant_locked(e, &view, user);
            if (r == CUDA_SUCCESS)
                atomic_fetch_or(&e->shared_with, (uint16_t)(1u << user));
            *done_out = r == CUDA_SUCCESS;
        }
    }
    hr_mutex_unlock(&hr_move_lock);
    hr_context_leave(pushed);
    return r;
}

CUresult hr_fixed_share(struct hr_thread *t, struct hr_extent *e, unsigned user)
{
    uint64_t start_ns = hr_clock_ns(), waited_ns = 0;
    if (!hr_tier_host_mappable(e->gpu)) {
        hr_log(HR_LOG_WARN, "a kernel of GPU %u names memory of GPU %u, which it cannot reach", user, e->gpu);
        atomic_fetch_or(&e->shared_with, (uint16_t)(1u << user)); /* said once; not to be tried again */
        return CUDA_SUCCESS;
    }
    hr_peers_note_use(user, e->gpu);
    for (bool done = false; !done;) {
        uint64_t users = hr_peers_users(e->gpu);
        hr_quiet_wait(users, hr_clock_ns() + OPEN_WAIT_NS);
        hr_quarantine_release(t);
        CUresult r = share_once(e, user, span_ns(waited_ns), &done);
        if (r != CUDA_SUCCESS)
            return r;
        waited_ns = hr_clock_ns() - start_ns;
        if (!done && waited_ns > LAST_WAIT_NS) {
            hr_log(HR_LOG_ERROR, "memory of GPU %u that GPU %u uses could not be moved to host memory", e->gpu, user);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    return CUDA_SUCCESS;
}

void hr_fixed_register(struct hr_thread *t, struct hr_extent *e, bool on)
{
    uint64_t start_ns = hr_clock_ns();
    struct hr_view view;
    bool done = !on;
    if (!on)
        atomic_store(&e->sync_memops, 0);
    if (on && (atomic_load(&e->sync_memops) || !hr_space_view(e, &view)))
        return;
    if (on && hr_access_map_extent(t, e) != CUDA_SUCCESS)
        hr_log(HR_LOG_WARN, "registered memory could not be backed yet");
    for (uint64_t waited_ns = 0; !done && waited_ns < REGISTER_WAIT_NS; waited_ns = hr_clock_ns() - start_ns) {
        struct hr_context *context = hr_context_of_gpu(e->gpu);
        bool pushed;
        hr_access_restore_range(t, view.base, (size_t)view.chunk_count << hr_space.chunk_shift);
        if (!context || hr_context_enter(context, &pushed) != CUDA_SUCCESS)
            break;
        hr_mutex_lock(&hr_move_lock);
        /* What another GPU lends it gets back some day. */
        done = send_to_host_locked(e, &view, 1u << HR_CHUNK_PEER, span_ns(waited_ns));
        if (done)
            atomic_store(&e->sync_memops, 1);
        hr_mutex_unlock(&hr_move_lock);
        hr_context_leave(pushed);
    }
    atomic_store(&e->sync_memops, on);
    if (on && atomic_load(&e->not_resident) > 0)
        hr_log(HR_LOG_WARN, "%u chunks of registered memory are not in VRAM: there is no room for them",
               atomic_load(&e->not_resident));
}
