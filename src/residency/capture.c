#include "residency/capture.h"

#include "base/clock.h"
#include "base/lock.h"
#include "base/log.h"
#include "residency/move.h"

#include <stdlib.h>

#define HOLDS_MOVES_NS UINT64_C(2000000000)

_Atomic(uint32_t) hr_captures_open;
_Atomic(bool) hr_captures_ever;

struct capture {
    CUstream stream; /* that it began on */
    CUcontext context;
    const struct hr_thread *thread; /* that began it */
    bool per_thread;                /* the stream is that thread's default one */
    CUstreamCaptureMode mode;
    uint64_t since_ns;
    struct capture *next;
};
/* What a stream held before it captured. */
struct before {
    CUstream stream; /* CU_STREAM_LEGACY: the context's legacy stream, which cannot be asked beside some captures */
    CUcontext context;
    CUevent event; /* behind it; NULL: see idle */
    bool idle;     /* there was nothing, or it is done; else, without an event, nothing is known */
    struct before *next;
};
static struct hr_mutex captures_lock = HR_MUTEX_INIT(HR_RANK_FENCE + 1, "captures");
static struct capture *captures; /* guarded by captures_lock */
static struct before *befores;   /* guarded by captures_lock */

/* --- this thread's mode ------------------------------------------------------------------------------------------- */

struct hr_relaxed hr_relaxed_push(void)
{
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    bool pushed = hr_drv.cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS;
    return (struct hr_relaxed){pushed, mode};
}

void hr_relaxed_pop(const struct hr_relaxed *relaxed)
{
    CUstreamCaptureMode mode = relaxed->before;
    hr_drv.cuThreadExchangeStreamCaptureMode(&mode);
}

static bool is_capture_error(CUresult r)
{
    return r >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && r <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
}

CUresult hr_capture_check(void)
{
    if (!hr_capture_any())
        return CUDA_SUCCESS;
    struct hr_relaxed relaxed = hr_relaxed_push();
    hr_relaxed_leave(&relaxed);
    const struct hr_thread *self = hr_thread_self();
    bool forbidden = false;
    hr_mutex_lock(&captures_lock);
    for (const struct capture *c = captures; c && relaxed.pushed; c = c->next)
        forbidden = forbidden || (c->thread == self && c->mode != CU_STREAM_CAPTURE_MODE_RELAXED) ||
                    (c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && relaxed.before == CU_STREAM_CAPTURE_MODE_GLOBAL);
    hr_mutex_unlock(&captures_lock);
    if (!forbidden || relaxed.before == CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_SUCCESS;
    /* The driver has the last word, and breaks its captures itself. */
    CUdeviceptr probe;
    CUresult r = hr_drv.cuMemAlloc_v2(&probe, 1);
    if (r == CUDA_SUCCESS)
        hr_drv.cuMemFree_v2(probe);
    return is_capture_error(r) ? r : CUDA_SUCCESS;
}

/* --- what streams held before ------------------------------------------------------------------------------------- */

/* Whether it captures, or is barred beside a capture, which never asks the driver anything that breaks one. */
static bool captures_now(CUstream stream, bool per_thread, CUstreamCaptureStatus *status_out)
{
    *status_out = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult r = per_thread ? hr_drv.cuStreamIsCapturing_ptsz(stream, status_out)
                            : hr_drv.cuStreamIsCapturing(stream, status_out);
    return r == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT ||
           (r == CUDA_SUCCESS && *status_out != CU_STREAM_CAPTURE_STATUS_NONE);
}

bool hr_capture_takes(CUstream stream, bool per_thread)
{
    CUstreamCaptureStatus status;
    return hr_capture_any() && captures_now(stream, per_thread, &status);
}

static bool is_per_thread(CUstream stream, bool per_thread)
{
    return stream == CU_STREAM_PER_THREAD || (per_thread && !stream);
}

static struct before **find_locked(CUstream stream, CUcontext context) HR_REQUIRES(captures_lock)
{
    struct before **link = &befores;
    while (*link && ((*link)->stream != stream || (stream == CU_STREAM_LEGACY && (*link)->context != context)))
        link = &(*link)->next;
    return link;
}

static void drop_locked(struct before **link) HR_REQUIRES(captures_lock)
{
    struct before *b = *link;
    *link = b->next;
    if (b->event)
        hr_drv.cuEventDestroy_v2(b->event);
    free(b);
}

/* Takes the event over. Without memory nothing is known of the stream: it counts as busy. */
static void put(CUstream stream, CUcontext context, CUevent event, bool idle)
{
    struct before *b = calloc(1, sizeof *b);
    hr_mutex_lock(&captures_lock);
    struct before **old = find_locked(stream, context);
    if (*old)
        drop_locked(old);
    if (b) {
        *b = (struct before){stream, context, event, idle, befores};
        befores = b;
    } else if (event) {
        hr_drv.cuEventDestroy_v2(event);
    }
    hr_mutex_unlock(&captures_lock);
}

/* What is on the stream now; its context is current. */
static void note_stream(CUstream stream, CUcontext context)
{
    CUevent event = NULL;
    bool idle = hr_context_heard(hr_drv.cuStreamQuery(stream)) == CUDA_SUCCESS;
    if (!idle && hr_drv.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS &&
        hr_drv.cuEventRecord(event, stream) != CUDA_SUCCESS) {
        hr_drv.cuEventDestroy_v2(event);
        event = NULL;
    }
    put(stream, context, event, idle);
}

/* No event there, which would be a barrier among all blocking streams: if it is busy, it is until it can be asked again. */
static void note_legacy(CUcontext context)
{
    CUstreamCaptureStatus status;
    if (!captures_now(CU_STREAM_LEGACY, false, &status))
        put(CU_STREAM_LEGACY, context, NULL, hr_context_heard(hr_drv.cuStreamQuery(CU_STREAM_LEGACY)) == CUDA_SUCCESS);
}

/* Of a per-thread default stream what it held is known anyway (hr_fence_per_thread). */
static void note(CUstream stream, bool per_thread, bool legacy_too)
{
    struct hr_context *context = hr_stream_context(stream);
    bool pushed, is_own = is_per_thread(stream, per_thread);
    if (!context || (!is_own && (!stream || stream == CU_STREAM_LEGACY)) ||
        hr_context_enter(context, &pushed) != CUDA_SUCCESS)
        return;
    HR_RELAXED();
    if (legacy_too)
        note_legacy(context->handle);
    if (!is_own)
        note_stream(stream, context->handle);
    hr_context_leave(pushed);
}

bool hr_capture_joining(CUstream stream, bool per_thread)
{
    if (!hr_capture_any())
        return false;
    if (!hr_capture_takes(stream, per_thread))
        note(stream, per_thread, false);
    hr_streams_leave_alone();
    return true;
}

CUresult hr_capture_joined(CUresult r)
{
    hr_streams_leave_alone_end();
    return r;
}

CUresult hr_capture_query(CUstream stream, CUcontext context)
{
    CUstreamCaptureStatus status;
    CUresult r;
    if (!hr_capture_any())
        return hr_drv.cuStreamQuery(stream);
    hr_mutex_lock(&captures_lock);
    struct before **link = find_locked(stream, context);
    if (!captures_now(stream, false, &status)) {
        r = hr_drv.cuStreamQuery(stream);
    } else if (!*link || (!(*link)->event && !(*link)->idle)) {
        r = CUDA_ERROR_NOT_READY;
    } else {
        r = (*link)->idle ? CUDA_SUCCESS : hr_drv.cuEventQuery((*link)->event);
        (*link)->idle = r == CUDA_SUCCESS;
    }
    hr_mutex_unlock(&captures_lock);
    return r;
}

/* --- captures ----------------------------------------------------------------------------------------------------- */

/* With the last one what is known of streams is of no use. One that begins at this moment has been counted. */
static void count_down_locked(void) HR_REQUIRES(captures_lock)
{
    if (atomic_fetch_sub(&hr_captures_open, 1) == 1)
        while (befores)
            drop_locked(&befores);
}

static void remove_locked(struct capture **link) HR_REQUIRES(captures_lock)
{
    struct capture *c = *link;
    *link = c->next;
    free(c);
    count_down_locked();
}

static struct capture **find_capture_locked(CUstream stream, bool per_thread) HR_REQUIRES(captures_lock)
{
    bool is_own = is_per_thread(stream, per_thread);
    struct capture **link = &captures;
    while (*link && ((*link)->per_thread != is_own ||
                     (is_own ? (*link)->thread != hr_thread_self() : (*link)->stream != stream)))
        link = &(*link)->next;
    return link;
}

void hr_capture_beginning(CUstream stream, bool per_thread)
{
    if (!atomic_exchange(&hr_captures_ever, true)) { /* whoever maps or moves now has not seen it, and is waited for */
        hr_mutex_lock(&hr_move_lock);
        hr_mutex_unlock(&hr_move_lock);
    }
    atomic_fetch_add(&hr_captures_open, 1); /* first: what is noted is kept */
    if (!hr_capture_takes(stream, per_thread)) {
        if (is_per_thread(stream, per_thread)) /* also for the thread's end to be told of */
            hr_fence_per_thread(hr_thread_self());
        note(stream, per_thread, true);
    }
    hr_streams_leave_alone();
}

CUresult hr_capture_begun(CUstream stream, bool per_thread, CUstreamCaptureMode mode, CUresult r)
{
    hr_streams_leave_alone_end();
    struct hr_context *context = hr_stream_context(stream);
    struct capture *c = r == CUDA_SUCCESS ? calloc(1, sizeof *c) : NULL;
    hr_mutex_lock(&captures_lock);
    if (c) {
        *c = (struct capture){.stream = stream,
                              .context = context ? context->handle : NULL,
                              .thread = hr_thread_self(),
                              .per_thread = is_per_thread(stream, per_thread),
                              .mode = mode,
                              .since_ns = hr_clock_ns(),
                              .next = captures};
        captures = c;
    } else if (r == CUDA_SUCCESS) { /* it counts as open for good, which costs time only */
        hr_log(HR_LOG_ERROR, "a capture cannot be tracked: out of memory");
    } else {
        count_down_locked();
    }
    hr_mutex_unlock(&captures_lock);
    return r;
}

void hr_capture_ended(CUstream stream, bool per_thread)
{
    CUstreamCaptureStatus status;
    hr_mutex_lock(&captures_lock);
    struct capture **link = find_capture_locked(stream, per_thread);
    if (*link && !captures_now(stream, per_thread, &status))
        remove_locked(link);
    hr_mutex_unlock(&captures_lock);
}

bool hr_capture_destroying(CUstream stream, CUevent *event_out)
{
    CUstreamCaptureStatus status;
    *event_out = NULL;
    if (!hr_capture_any())
        return false;
    hr_mutex_lock(&captures_lock);
    bool is_capturing = captures_now(stream, false, &status);
    struct before **link = find_locked(stream, NULL);
    if (*link) {
        if (is_capturing) {
            *event_out = (*link)->event;
            (*link)->event = NULL;
        }
        drop_locked(link);
    }
    struct capture **of_stream = find_capture_locked(stream, false);
    if (*of_stream) /* it ends with the stream */
        remove_locked(of_stream);
    hr_mutex_unlock(&captures_lock);
    return is_capturing;
}

void hr_capture_thread_ended(const struct hr_thread *t)
{
    hr_mutex_lock(&captures_lock);
    for (struct capture **link = &captures; *link;) {
        if ((*link)->per_thread && (*link)->thread == t) {
            remove_locked(link);
            continue;
        }
        if ((*link)->thread == t) /* another one gets the slot, whom this does not concern */
            (*link)->thread = NULL;
        link = &(*link)->next;
    }
    hr_mutex_unlock(&captures_lock);
}

void hr_capture_context_gone(CUcontext context)
{
    hr_mutex_lock(&captures_lock);
    for (struct before **link = &befores; *link;) {
        if ((*link)->context == context) {
            (*link)->event = NULL; /* it went with the context */
            drop_locked(link);
        } else {
            link = &(*link)->next;
        }
    }
    for (struct capture **link = &captures; *link;) {
        if ((*link)->context == context)
            remove_locked(link);
        else
            link = &(*link)->next;
    }
    hr_mutex_unlock(&captures_lock);
}

bool hr_capture_holds_moves(void)
{
    bool holds = false;
    if (!hr_capture_any())
        return false;
    hr_mutex_lock(&captures_lock);
    uint64_t now_ns = hr_clock_ns();
    for (struct capture **link = &captures; *link;) {
        const struct capture *c = *link;
        CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
        bool can_ask = !c->per_thread || c->thread == hr_thread_self();
        if (can_ask && !captures_now(c->stream, c->per_thread, &status)) {
            remove_locked(link);
            continue;
        }
        holds = holds || (status != CU_STREAM_CAPTURE_STATUS_INVALIDATED && now_ns - c->since_ns < HOLDS_MOVES_NS);
        link = &(*link)->next;
    }
    hr_mutex_unlock(&captures_lock);
    return holds;
}
