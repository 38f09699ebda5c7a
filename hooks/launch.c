#include "launch.h"

#include "base/log.h"
#include "copy.h"
#include "fabric/machine.h"
#include "hr_hooks.h"
#include "residency/access.h"
#include "residency/capture.h"
#include "residency/context.h"
#include "residency/peers.h"
#include "residency/scan.h"
#include "residency/transfer.h"
#include "room.h"
#include "stats/stats.h"
#include "tier/tier.h"

#include <stdlib.h>
#include <string.h>

/*
 * Launches. Every 8-byte word of every parameter that falls into a window names a buffer. With everything resident a launch
 * costs the scan, the in-flight word and a few loads per pointer: no lock, no allocation, no driver call but its own.
 */

struct touched {
    uint64_t now;
    int user;
    enum hr_touch worst;
};
static struct touched touched_now(void)
{
    const struct hr_context *context = __builtin_expect(hr_peers_matter(), 0) ? hr_context_current() : NULL;
    return (struct touched){hr_ticks(), context ? (int)context->gpu : -1, HR_TOUCH_HIT};
}
static void touch_word(CUdeviceptr word, void *arg)
{
    struct touched *touched = arg;
    enum hr_touch touch = hr_access_touch(word, touched->now, touched->user);
    if (touch > touched->worst)
        touched->worst = touch;
}
static inline void scan(const struct hr_launch *l, const struct hr_params *params, hr_scan_visit visit, void *arg)
{
    hr_scan_kernel(params, l->params, l->extra, visit, arg);
    for (l = l->also; __builtin_expect(l != NULL, 0); l = l->also)
        hr_scan_kernel(hr_params_of(l->function), l->params, l->extra, visit, arg);
}
static void add_word(CUdeviceptr word, void *arg)
{
    hr_working_set_add(arg, word);
}

static inline void end(struct hr_thread *t, const struct hr_launch *l)
{
    for (const struct hr_launch *other = l->also; __builtin_expect(other != NULL, 0); other = other->also)
        if (hr_is_per_thread(other->stream, other->per_thread))
            hr_fence_per_thread(t);
    hr_submission_end(t, l->stream, l->per_thread);
}

/* Out of line: makes what the launch names accessible; the set stays pinned. */
static __attribute__((noinline)) CUresult prepare(struct hr_thread *t, const struct hr_launch *l,
                                                  const struct hr_params *params, struct hr_working_set *set)
{
    set->count = 0;
    set->everything = false;
    set->user = touched_now().user;
    hr_gate_enter(t); /* lists of hidden pointers may be read only in a submission: see hr_hidden_collect_quiet */
    scan(l, params, add_word, set);
    hr_gate_leave(t);
    return hr_access_prepare(t, set);
}

static void back_word(CUdeviceptr word, void *arg)
{
    struct hr_extent *e = hr_space_extent(word);
    if (e && atomic_load(&e->not_accessible) > 0)
        hr_access_map_extent(arg, e);
}

/* Nothing runs, and nothing may move: what is named is backed where there is room, and the launch of the graph does the rest. */
static __attribute__((noinline)) CUresult launch_captured(struct hr_thread *t, const struct hr_launch *l,
                                                          const struct hr_params *params)
{
    if (t)
        scan(l, params, back_word, t);
    return l->real(l);
}

/* Whether the driver, which gave r, lacked VRAM of its own (for local memory, a heap), and there is more now. */
static bool has_more_room(struct hr_room *room, CUresult r)
{
    if (r == CUDA_ERROR_OUT_OF_MEMORY && !room->context)
        *room = hr_room_begin();
    return hr_room_make(room, r, HR_ROOM_FOR_CODE);
}

/* The rest of a launch that did not find everything in place; entered outside a submission. */
static CUresult launch_with(struct hr_thread *t, const struct hr_launch *l, const struct hr_params *params,
                            struct hr_working_set *set)
{
    struct hr_room room = {0};
    for (unsigned attempt = 0; attempt < 100; attempt++) {
        CUresult r = prepare(t, l, params, set);
        if (r != CUDA_SUCCESS)
            return hr_room_end(&room, r);
        hr_gate_enter(t);
        struct touched touched = touched_now();
        scan(l, params, touch_word, &touched);
        if (touched.worst == HR_TOUCH_MISSING) {
            hr_gate_leave(t);
            hr_access_unpin(set);
            continue;
        }
        hr_gate_submit(t);
        r = l->real(l);
        end(t, l);
        hr_access_unpin(set);
        if (has_more_room(&room, r))
            continue;
        hr_stat_add(t, HR_STAT_launches_in_place, touched.worst == HR_TOUCH_ACCESSIBLE);
        return hr_room_end(&room, r);
    }
    hr_log(HR_LOG_ERROR, "a launch could not get its memory in place: others take it away as fast as it comes");
    return hr_room_end(&room, CUDA_ERROR_OUT_OF_MEMORY);
}

static __attribute__((noinline)) CUresult launch_slowly(struct hr_thread *t, const struct hr_launch *l,
                                                        const struct hr_params *params)
{
    struct hr_working_set *set = malloc(sizeof *set); /* 16 KiB: the job's thread may have hardly more stack */
    CUresult r = set ? launch_with(t, l, params, set) : CUDA_ERROR_OUT_OF_MEMORY;
    if (r == CUDA_ERROR_OUT_OF_MEMORY && params && hr_scan_needs_everything(params))
        hr_log(HR_LOG_ERROR,
               "what a kernel of unknown parameters may use does not fit into VRAM together, and this driver "
               "cannot map host memory: driver 12.4 or newer would tell the parameters");
    free(set);
    return r;
}

CUresult hr_launch(const struct hr_launch *l)
{
    HR_INSIDE();
    struct hr_thread *t = hr_thread_self();
    bool has_params = l->params || l->extra;
    const struct hr_params *params = has_params ? hr_params_of(l->function) : NULL;
    if (hr_capture_takes(l->stream, l->per_thread))
        return launch_captured(t, l, params);
    if (hr_space.gpu_count > 1) {
        hr_fabric_watch(); /* kernels use links, too */
        if (hr_peers_any_granted())
            hr_transfer_note_others();
    }
    if (!t || hr_space.bytes == 0)
        return l->real(l);
    if (__builtin_expect(params && !params->known, 0))
        hr_access_cannot_scan("the parameters of a kernel are not known");
    hr_stat_add(t, HR_STAT_launches, 1);
    CUresult r = hr_access_pending() ? hr_access_back_pending(t) : CUDA_SUCCESS;
    if (__builtin_expect(has_params && !params && r == CUDA_SUCCESS, 0))
        r = hr_access_back_all(t); /* the driver failed to tell what the parameters are, this time */
    if (__builtin_expect(r != CUDA_SUCCESS, 0))
        return r;
    hr_gate_enter(t);
    struct touched touched = touched_now();
    scan(l, params, touch_word, &touched);
    if (__builtin_expect(touched.worst == HR_TOUCH_HIT, 1)) {
        hr_gate_submit(t);
        r = l->real(l);
        end(t, l);
        hr_stat_add(t, HR_STAT_launches_resident, 1);
        if (__builtin_expect(r != CUDA_ERROR_OUT_OF_MEMORY, 1))
            return r;
    } else {
        hr_gate_leave(t);
    }
    return launch_slowly(t, l, params);
}

struct kernel_arguments {
    unsigned gx, gy, gz, bx, by, bz, shared;
};

#define KERNEL(name, pt)                                                                                               \
    static CUresult real_##name(const struct hr_launch *l)                                                             \
    {                                                                                                                  \
        const struct kernel_arguments *a = l->arguments;                                                               \
        return hr_drv.name(l->function, a->gx, a->gy, a->gz, a->bx, a->by, a->bz, a->shared, l->stream, l->params,     \
                           l->extra);                                                                                  \
    }                                                                                                                  \
    HR_HOOK(name)                                                                                                      \
    (CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,                \
     unsigned int bz, unsigned int shared, CUstream s, void **kernelParams, void **extra)                              \
    {                                                                                                                  \
        HR_PASS(name, f, gx, gy, gz, bx, by, bz, shared, s, kernelParams, extra);                                      \
        struct kernel_arguments a = {gx, gy, gz, bx, by, bz, shared};                                                  \
        return hr_launch(&(struct hr_launch){f, kernelParams, extra, s, pt, &a, real_##name, NULL});                   \
    }
KERNEL(cuLaunchKernel, false)
KERNEL(cuLaunchKernel_ptsz, true)

#define KERNEL_EX(name, pt)                                                                                            \
    static CUresult real_##name(const struct hr_launch *l)                                                             \
    {                                                                                                                  \
        return hr_drv.name(l->arguments, l->function, l->params, l->extra);                                            \
    }                                                                                                                  \
    HR_HOOK(name)(const CUlaunchConfig *config, CUfunction f, void **kernelParams, void **extra)                       \
    {                                                                                                                  \
        HR_PASS(name, config, f, kernelParams, extra);                                                                 \
        return hr_launch(&(struct hr_launch){f, kernelParams, extra, config ? config->hStream : NULL, pt, config,      \
                                             real_##name, NULL});                                                      \
    }
KERNEL_EX(cuLaunchKernelEx, false)
KERNEL_EX(cuLaunchKernelEx_ptsz, true)

#define KERNEL_COOPERATIVE(name, pt)                                                                                   \
    static CUresult real_##name(const struct hr_launch *l)                                                             \
    {                                                                                                                  \
        const struct kernel_arguments *a = l->arguments;                                                               \
        return hr_drv.name(l->function, a->gx, a->gy, a->gz, a->bx, a->by, a->bz, a->shared, l->stream, l->params);    \
    }                                                                                                                  \
    HR_HOOK(name)                                                                                                      \
    (CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,                \
     unsigned int bz, unsigned int shared, CUstream s, void **kernelParams)                                            \
    {                                                                                                                  \
        HR_PASS(name, f, gx, gy, gz, bx, by, bz, shared, s, kernelParams);                                             \
        struct kernel_arguments a = {gx, gy, gz, bx, by, bz, shared};                                                  \
        return hr_launch(&(struct hr_launch){f, kernelParams, NULL, s, pt, &a, real_##name, NULL});                    \
    }
KERNEL_COOPERATIVE(cuLaunchCooperativeKernel, false)
KERNEL_COOPERATIVE(cuLaunchCooperativeKernel_ptsz, true)
