#include "residency/lane.h"

#include "base/lock.h"
#include "residency/capture.h"
#include "residency/context.h"

#include <stdlib.h>

/*
 * Each call has a stream of its own while it is under way: two calls on one would wait for each other though the job's
 * streams do not, which can hang a job whose kernels wait for each other. Streams at rest are used again.
 */
struct hr_lane_stream {
    CUcontext context;
    CUstream stream;
    bool taken; /* guarded by lanes_lock */
    bool gone;  /* guarded by lanes_lock: its context has ended while it was taken */
    struct hr_lane_stream *next;
};
static struct hr_mutex lanes_lock = HR_MUTEX_INIT(HR_RANK_FENCE + 1, "lanes");
static struct hr_lane_stream *lanes; /* guarded by lanes_lock */

/* A stream at rest in the current context, which is `context`. */
static CUresult take_stream(CUcontext context, struct hr_lane_stream **entry_out)
{
    struct hr_lane_stream *found = NULL;
    hr_mutex_lock(&lanes_lock);
    for (struct hr_lane_stream *s = lanes; s && !found; s = s->next)
        if (!s->taken && s->context == context && hr_context_heard(hr_drv.cuStreamQuery(s->stream)) == CUDA_SUCCESS)
            found = s;
    if (found)
        found->taken = true;
    hr_mutex_unlock(&lanes_lock);
    *entry_out = found;
    if (found)
        return CUDA_SUCCESS;
    struct hr_lane_stream *fresh = calloc(1, sizeof *fresh);
    CUresult r = fresh ? hr_drv.cuStreamCreate(&fresh->stream, CU_STREAM_NON_BLOCKING) : CUDA_ERROR_OUT_OF_MEMORY;
    if (r != CUDA_SUCCESS) {
        free(fresh);
        return r;
    }
    fresh->context = context;
    fresh->taken = true;
    hr_mutex_lock(&lanes_lock);
    fresh->next = lanes;
    lanes = fresh;
    hr_mutex_unlock(&lanes_lock);
    *entry_out = fresh;
    return CUDA_SUCCESS;
}

static void unlink_locked(struct hr_lane_stream *entry) HR_REQUIRES(lanes_lock)
{
    struct hr_lane_stream **link = &lanes;
    while (*link != entry)
        link = &(*link)->next;
    *link = entry->next;
}

static void give_stream(struct hr_lane_stream *entry)
{
    hr_mutex_lock(&lanes_lock);
    entry->taken = false;
    if (entry->gone)
        unlink_locked(entry);
    bool gone = entry->gone;
    hr_mutex_unlock(&lanes_lock);
    if (gone)
        free(entry);
}

void hr_lane_forget(CUcontext handle)
{
    struct hr_lane_stream *dead = NULL;
    hr_mutex_lock(&lanes_lock);
    for (struct hr_lane_stream *s = lanes, *next; s; s = next) {
        next = s->next;
        if (s->context != handle)
            continue;
        s->gone = true;
        if (s->taken)
            continue;
        unlink_locked(s);
        s->next = dead;
        dead = s;
    }
    hr_mutex_unlock(&lanes_lock);
    while (dead) {
        struct hr_lane_stream *next = dead->next;
        free(dead);
        dead = next;
    }
}

/* An event behind what is on the stream; the stream's context is current. The caller destroys it. */
static CUresult mark(CUstream stream, bool per_thread, CUevent *event_out)
{
    CUresult r = hr_drv.cuEventCreate(event_out, CU_EVENT_DISABLE_TIMING);
    if (r != CUDA_SUCCESS)
        return r;
    r = per_thread ? hr_drv.cuEventRecord_ptsz(*event_out, stream) : hr_drv.cuEventRecord(*event_out, stream);
    if (r != CUDA_SUCCESS)
        hr_drv.cuEventDestroy_v2(*event_out);
    return r;
}

CUresult hr_lane_mark(CUstream stream, bool per_thread, CUevent *event_out)
{
    HR_RELAXED();
    struct hr_context *context = hr_stream_context(stream);
    bool pushed;
    CUresult r = context ? hr_context_enter(context, &pushed) : CUDA_ERROR_INVALID_CONTEXT;
    if (r != CUDA_SUCCESS)
        return r;
    r = mark(stream, per_thread, event_out);
    hr_context_leave(pushed);
    return r;
}

CUresult hr_lane_begin(unsigned gpu, CUstream job_stream, bool per_thread, struct hr_lane *lane_out)
{
    HR_RELAXED();
    struct hr_context *context = hr_context_of_gpu(gpu);
    struct hr_lane lane = {.job_stream = job_stream, .per_thread = per_thread};
    CUevent before;
    CUresult r = context ? hr_lane_mark(job_stream, per_thread, &before) : CUDA_ERROR_INVALID_CONTEXT;
    if (r != CUDA_SUCCESS)
        return r;
    r = hr_context_enter(context, &lane.pushed);
    if (r != CUDA_SUCCESS)
        goto no_context;
    r = take_stream(context->handle, &lane.entry);
    if (r != CUDA_SUCCESS)
        goto no_stream;
    lane.stream = lane.entry->stream;
    r = hr_drv.cuStreamWaitEvent(lane.stream, before, 0);
    if (r != CUDA_SUCCESS)
        goto no_wait;
    hr_drv.cuEventDestroy_v2(before); /* what waits for it goes on doing so */
    *lane_out = lane;
    return CUDA_SUCCESS;

no_wait:
    give_stream(lane.entry);
no_stream:
    hr_context_leave(lane.pushed);
no_context:
    hr_drv.cuEventDestroy_v2(before);
    return r;
}

CUresult hr_lane_end(struct hr_lane *lane, CUresult r, bool wait)
{
    HR_RELAXED();
    CUevent after;
    CUresult marked = mark(lane->stream, false, &after);
    if (marked != CUDA_SUCCESS || wait) {
        CUresult done = hr_drv.cuStreamSynchronize(lane->stream);
        r = r != CUDA_SUCCESS ? r : done;
    }
    hr_context_leave(lane->pushed);
    if (marked == CUDA_SUCCESS) {
        CUresult waits = lane->per_thread ? hr_drv.cuStreamWaitEvent_ptsz(lane->job_stream, after, 0)
                                          : hr_drv.cuStreamWaitEvent(lane->job_stream, after, 0);
        r = r != CUDA_SUCCESS ? r : waits;
        hr_drv.cuEventDestroy_v2(after);
    }
    give_stream(lane->entry);
    return r;
}
