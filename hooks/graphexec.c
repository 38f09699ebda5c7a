#include "graphwalk.h"

#include "base/log.h"
#include "fabric/machine.h"
#include "hr_hooks.h"
#include "residency/access.h"
#include "residency/capture.h"
#include "residency/gpu.h"
#include "residency/peers.h"
#include "residency/scan.h"
#include "residency/transfer.h"
#include "stats/stats.h"

#include <stdlib.h>

/*
 * Executable graphs: made, launched, uploaded, destroyed. A launch is prepared like a kernel's: with everything resident it costs the look at
 * the words, the in-flight word, and no lock, no allocation, no driver call but its own.
 *
 * Graphs take memory of the driver's own, for themselves and for nodes that allocate. Where there is not enough, some of ours is moved
 * out and the call is made again.
 */

#define ROOM_FOR_GRAPHS ((size_t)16 << 20)
#define ROOM_ATTEMPTS 4

/* --- room for the driver's own memory ----------------------------------------------------------------------------- */

struct room {
    struct hr_context *context;
    size_t held_bytes;
    unsigned attempts;
};

/* Whether the call should be made again after it returned r. Outside of submissions. */
static bool make_room(struct room *room, CUresult r, size_t bytes)
{
    if (r != CUDA_ERROR_OUT_OF_MEMORY || room->attempts++ == ROOM_ATTEMPTS)
        return false;
    room->context = room->context ? room->context : hr_context_current();
    if (!room->context)
        return false;
    bytes = (bytes > ROOM_FOR_GRAPHS ? bytes : ROOM_FOR_GRAPHS) << (room->attempts - 1);
    hr_gpu_hold(room->context->gpu, bytes - room->held_bytes, true);
    room->held_bytes = bytes;
    return hr_access_release_vram(hr_thread_self(), room->context->gpu, bytes) > 0;
}
static void leave_room(const struct room *room)
{
    if (room->held_bytes > 0)
        hr_gpu_hold(room->context->gpu, room->held_bytes, false);
}

/* --- making ------------------------------------------------------------------------------------------------------- */

struct making {
    CUgraphExec *exec;
    CUgraph graph;
    CUgraphNode *error_node;
    char *log;
    size_t log_bytes;
    unsigned long long flags;
    CUDA_GRAPH_INSTANTIATE_PARAMS *params;
    CUresult (*real)(const struct making *m);
};

static CUresult instantiate(const struct making *m)
{
    HR_INSIDE();
    struct hr_thread *t = hr_thread_self();
    struct hr_graph_list list = {0};
    struct room room = {0};
    if (!t || !m->exec || hr_space.bytes == 0)
        return m->real(m);
    hr_walk_graph(m->graph, &list);
    CUresult r = hr_graph_hold(t, &list);
    if (r != CUDA_SUCCESS && m->params)
        m->params->result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
    if (r == CUDA_SUCCESS)
        do
            r = m->real(m);
        while (make_room(&room, r, list.alloc_bytes));
    leave_room(&room);
    if (r == CUDA_SUCCESS)
        hr_exec_made(*m->exec, &list);
    if (list.allocates)
        hr_graph_account_memory();
    hr_graph_list_finish(&list);
    return r;
}

#define INSTANTIATE(name)                                                                                              \
    static CUresult real_##name(const struct making *m)                                                                \
    {                                                                                                                  \
        return hr_drv.name(m->exec, m->graph, m->error_node, m->log, m->log_bytes);                                    \
    }                                                                                                                  \
    HR_HOOK(name)                                                                                                      \
    (CUgraphExec * phGraphExec, CUgraph hGraph, CUgraphNode * phErrorNode, char *logBuffer, size_t bufferSize)         \
    {                                                                                                                  \
        HR_PASS(name, phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize);                                        \
        return instantiate(                                                                                            \
            &(struct making){phGraphExec, hGraph, phErrorNode, logBuffer, bufferSize, 0, NULL, real_##name});          \
    }
INSTANTIATE(cuGraphInstantiate)
INSTANTIATE(cuGraphInstantiate_v2)

static CUresult real_with_flags(const struct making *m)
{
    return hr_drv.cuGraphInstantiateWithFlags(m->exec, m->graph, m->flags);
}
HR_HOOK(cuGraphInstantiateWithFlags)(CUgraphExec *phGraphExec, CUgraph hGraph, unsigned long long flags)
{
    HR_PASS(cuGraphInstantiateWithFlags, phGraphExec, hGraph, flags);
    return instantiate(&(struct making){.exec = phGraphExec, .graph = hGraph, .flags = flags, .real = real_with_flags});
}

#define INSTANTIATE_WITH_PARAMS(name)                                                                                  \
    static CUresult real_##name(const struct making *m)                                                                \
    {                                                                                                                  \
        return hr_drv.name(m->exec, m->graph, m->params);                                                              \
    }                                                                                                                  \
    HR_HOOK(name)(CUgraphExec * phGraphExec, CUgraph hGraph, CUDA_GRAPH_INSTANTIATE_PARAMS * instantiateParams)        \
    {                                                                                                                  \
        HR_PASS(name, phGraphExec, hGraph, instantiateParams);                                                         \
        return instantiate(                                                                                            \
            &(struct making){.exec = phGraphExec, .graph = hGraph, .params = instantiateParams, .real = real_##name}); \
    }
INSTANTIATE_WITH_PARAMS(cuGraphInstantiateWithParams)
INSTANTIATE_WITH_PARAMS(cuGraphInstantiateWithParams_ptsz)

HR_HOOK(cuGraphExecDestroy)(CUgraphExec hGraphExec)
{
    HR_PASS(cuGraphExecDestroy, hGraphExec);
    HR_INSIDE();
    struct hr_exec *exec =
        hr_exec_take(hGraphExec); /* first: its handle may be another's before the driver has returned */
    CUresult r = hr_drv.cuGraphExecDestroy(hGraphExec);
    hr_exec_end(exec, r == CUDA_SUCCESS);
    return r;
}

/* --- launching ---------------------------------------------------------------------------------------------------- */

struct start {
    CUgraphExec exec;
    CUstream stream;
    bool per_thread;
    CUresult (*real)(const struct start *s);
};

static void touch_word(CUdeviceptr word, void *arg)
{
    enum hr_touch *worst = arg, touch = hr_access_touch(word, hr_ticks(), -1);
    *worst = touch > *worst ? touch : *worst;
}
static void add_word(CUdeviceptr word, void *arg)
{
    hr_working_set_add(arg, word);
}

/* Where nothing is known, and what is out is not there for kernels, everything has to be in. */
static bool needs_everything(const struct hr_exec *exec)
{
    return (!exec || hr_exec_is_unknown(exec)) && !hr_tier_host_mappable(0);
}

/* In a submission: whether everything is in place. *exec_out NULL: nothing is known of it. */
static enum hr_touch look(const struct start *s, const struct hr_exec **exec_out)
{
    const struct hr_context *context =
        __builtin_expect(hr_space.gpu_count > 1, 0) ? hr_stream_context(s->stream) : NULL;
    *exec_out = hr_exec_find(s->exec);
    if (needs_everything(*exec_out)) {
        enum hr_touch worst = HR_TOUCH_HIT;
        hr_scan_everything(touch_word, &worst);
        return worst;
    }
    return *exec_out ? hr_exec_touch(*exec_out, hr_ticks(), context ? (int)context->gpu : -1) : HR_TOUCH_MISSING;
}

/* The real call, in the submission, which ends. */
static CUresult run(struct hr_thread *t, const struct start *s, const struct hr_exec *exec, size_t *bytes_out)
{
    bool allocates = exec && hr_exec_allocates(exec, bytes_out);
    hr_gate_submit(t);
    CUresult r = s->real(s);
    hr_submission_end(t, s->stream, s->per_thread);
    if (__builtin_expect(allocates && r == CUDA_SUCCESS, 0))
        hr_graph_account_memory();
    return r;
}

/* Adds what is named to the set, outside of submissions. false: nothing is known. */
static bool list_named(struct hr_thread *t, const struct start *s, int user, struct hr_working_set *set,
                       uint64_t *users_out)
{
    set->count = 0;
    set->everything = false;
    set->user = user == HR_EXEC_ALL_USERS ? -1 : user;
    hr_gate_enter(t);
    const struct hr_exec *exec = hr_exec_find(s->exec);
    if (needs_everything(exec))
        hr_scan_everything(add_word, set);
    else if (exec)
        hr_exec_add(exec, user, set);
    *users_out = exec ? hr_exec_users(exec) : 0;
    bool known = exec && !hr_exec_is_unknown(exec);
    hr_gate_leave(t);
    return known;
}

/* Makes what the graph names accessible; the set stays pinned. */
static CUresult prepare(struct hr_thread *t, const struct start *s, struct hr_working_set *set)
{
    uint64_t users;
    bool known = list_named(t, s, HR_EXEC_ALL_USERS, set, &users);
    CUresult r = known ? CUDA_SUCCESS : hr_access_back_all(t);
    for (unsigned g = 0; users >> g && r == CUDA_SUCCESS && hr_peers_matter(); g++) {
        uint64_t ignored;
        if (!(users >> g & 1))
            continue;
        list_named(t, s, (int)g, set, &ignored); /* what this GPU has no way to goes where it has one */
        r = hr_access_prepare(t, set);
        if (r == CUDA_SUCCESS)
            hr_access_unpin(set);
    }
    if (r != CUDA_SUCCESS)
        return r;
    if (users && hr_peers_matter())
        list_named(t, s, HR_EXEC_ALL_USERS, set, &users);
    return hr_access_prepare(t, set);
}

static CUresult launch_with(struct hr_thread *t, const struct start *s, struct hr_working_set *set, size_t *bytes_out)
{
    for (unsigned attempt = 0; attempt < 100; attempt++) {
        const struct hr_exec *exec;
        CUresult r = prepare(t, s, set);
        if (r != CUDA_SUCCESS)
            return r;
        hr_gate_enter(t);
        enum hr_touch touch = look(s, &exec);
        if (touch != HR_TOUCH_MISSING || (!exec && hr_tier_host_mappable(0))) {
            r = run(t, s, exec, bytes_out);
            hr_access_unpin(set);
            hr_stat_add(t, HR_STAT_launches_in_place, touch == HR_TOUCH_ACCESSIBLE);
            return r;
        }
        hr_gate_leave(t);
        hr_access_unpin(set);
    }
    hr_log(HR_LOG_ERROR, "a graph could not get its memory in place: others take it away as fast as it comes");
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static __attribute__((noinline)) CUresult launch_slowly(struct hr_thread *t, const struct start *s, size_t *bytes_out)
{
    struct hr_working_set *set = malloc(sizeof *set); /* 16 KiB: the job's thread may have hardly more stack */
    CUresult r = set ? launch_with(t, s, set, bytes_out) : CUDA_ERROR_OUT_OF_MEMORY;
    free(set);
    return r;
}

static CUresult launch_once(struct hr_thread *t, const struct start *s, size_t *bytes_out)
{
    const struct hr_exec *exec;
    CUresult r = hr_access_pending() ? hr_access_back_pending(t) : CUDA_SUCCESS;
    if (__builtin_expect(r != CUDA_SUCCESS, 0))
        return r;
    hr_gate_enter(t);
    enum hr_touch touch = look(s, &exec);
    if (__builtin_expect(touch == HR_TOUCH_HIT && exec && !hr_exec_is_unknown(exec), 1)) {
        r = run(t, s, exec, bytes_out);
        hr_stat_add(t, HR_STAT_launches_resident, 1);
        return r;
    }
    hr_gate_leave(t);
    return launch_slowly(t, s, bytes_out);
}

static CUresult launch(const struct start *s)
{
    HR_INSIDE();
    struct hr_thread *t = hr_thread_self();
    struct room room = {0};
    size_t bytes = 0;
    if (!t || hr_space.bytes == 0 || hr_capture_takes(s->stream, s->per_thread)) /* then it becomes a node */
        return s->real(s);
    if (hr_space.gpu_count > 1) {
        hr_fabric_watch();
        if (hr_peers_any_granted())
            hr_transfer_note_others();
    }
    hr_stat_add(t, HR_STAT_launches, 1);
    CUresult r;
    do
        r = launch_once(t, s, &bytes);
    while (__builtin_expect(r == CUDA_ERROR_OUT_OF_MEMORY, 0) && make_room(&room, r, bytes));
    leave_room(&room);
    return r;
}

#define LAUNCH(name, pt)                                                                                               \
    static CUresult real_##name(const struct start *s)                                                                 \
    {                                                                                                                  \
        return hr_drv.name(s->exec, s->stream);                                                                        \
    }                                                                                                                  \
    HR_HOOK(name)(CUgraphExec hGraphExec, CUstream hStream)                                                            \
    {                                                                                                                  \
        HR_PASS(name, hGraphExec, hStream);                                                                            \
        return launch(&(struct start){hGraphExec, hStream, (pt), real_##name});                                        \
    }
LAUNCH(cuGraphLaunch, false)
LAUNCH(cuGraphLaunch_ptsz, true)

/* Puts nothing of the windows to use. */
#define UPLOAD(name)                                                                                                   \
    HR_HOOK(name)(CUgraphExec hGraphExec, CUstream hStream)                                                            \
    {                                                                                                                  \
        HR_PASS(name, hGraphExec, hStream);                                                                            \
        HR_INSIDE();                                                                                                   \
        struct room room = {0};                                                                                        \
        CUresult r;                                                                                                    \
        do                                                                                                             \
            r = hr_drv.name(hGraphExec, hStream);                                                                      \
        while (make_room(&room, r, alloc_bytes_of(hGraphExec)));                                                       \
        leave_room(&room);                                                                                             \
        if (alloc_bytes_of(hGraphExec) > 0)                                                                            \
            hr_graph_account_memory();                                                                                 \
        return r;                                                                                                      \
    }
static size_t alloc_bytes_of(CUgraphExec handle)
{
    struct hr_thread *t = hr_thread_self();
    size_t bytes = 0;
    if (!t)
        return 0;
    hr_gate_enter(t);
    const struct hr_exec *exec = hr_exec_find(handle);
    if (exec)
        hr_exec_allocates(exec, &bytes);
    hr_gate_leave(t);
    return bytes;
}
UPLOAD(cuGraphUpload)
UPLOAD(cuGraphUpload_ptsz)

HR_HOOK(cuDeviceGraphMemTrim)(CUdevice device)
{
    HR_PASS(cuDeviceGraphMemTrim, device);
    HR_INSIDE();
    CUresult r = hr_drv.cuDeviceGraphMemTrim(device);
    if (r == CUDA_SUCCESS && hr_space.bytes > 0)
        hr_graph_account_memory();
    return r;
}
