/* Events. Each recording is a mark of its own, so that a wait keeps the recording it saw when the event is recorded anew. */
#include "simgpu/capture.h"
#include "simgpu/check.h"
#include "simgpu/mempool.h"
#include "simgpu/order.h"

#include <stdlib.h>

CUresult cuEventCreate(CUevent *event, unsigned int flags)
{
    struct sg_context *context;
    CUresult r = sg_enter_context("cuEventCreate", &context);
    if (r)
        return r;
    unsigned known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    if (!event || (flags & ~known))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if ((flags & CU_EVENT_INTERPROCESS) && !(flags & CU_EVENT_DISABLE_TIMING))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    struct sg_event *e = calloc(1, sizeof *e);
    if (!e)
        return sg_leave(CUDA_ERROR_OUT_OF_MEMORY);
    r = flags & CU_EVENT_INTERPROCESS ? sg_shared_event_create(&e->shared) : CUDA_SUCCESS;
    if (r) {
        free(e);
        return sg_leave(r);
    }
    e->context = context;
    e->flags = flags;
    sg_object_add(&e->object, SG_EVENT);
    DL_APPEND(context->events, e);
    *event = SG_HANDLE(CUevent, e);
    return sg_leave(CUDA_SUCCESS);
}

void sg_event_free(struct sg_event *e)
{
    sg_object_remove(&e->object);
    sg_capture_event_free(e);
    sg_mark_unref(e->mark); /* work that waits for it keeps its mark */
    sg_shared_event_unref(e->shared);
    free(e);
}

static CUresult destroy(CUevent handle)
{
    struct sg_context *context;
    CUresult r = sg_enter_context("cuEventDestroy", &context);
    if (r)
        return r;
    struct sg_event *e = SG_FIND(handle, SG_EVENT);
    if (!e)
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    DL_DELETE(e->context->events, e);
    sg_event_free(e);
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuEventDestroy(CUevent event)
{
    return destroy(event);
}

CUresult cuEventDestroy_v2(CUevent event)
{
    return destroy(event);
}

struct sg_mark *sg_mark_new(struct sg_context *context)
{
    struct sg_mark *mark = calloc(1, sizeof *mark);
    if (mark) {
        mark->refs = 1;
        mark->context = context;
    }
    return mark;
}

void sg_event_recorded(struct sg_event *e, struct sg_mark *mark)
{
    sg_capture_event_recorded(e);
    sg_mark_unref(e->mark);
    e->mark = sg_mark_ref(mark);
    if (e->shared)
        sg_shared_event_recorded(e->shared, mark);
}

CUresult sg_event_record(struct sg_event *e, struct sg_stream *s)
{
    struct sg_op *op = sg_op_new(SG_OP_RECORD);
    struct sg_mark *mark = op ? sg_mark_new(e->context) : NULL;
    if (!mark) {
        free(op);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    op->mark = mark;
    sg_order_recorded(mark, s);
    sg_event_recorded(e, mark);
    return sg_submit_async(s, op);
}

static CUresult record(CUevent handle, CUstream stream, unsigned flags, bool per_thread)
{
    struct sg_stream *s;
    CUresult r = sg_enter_work("cuEventRecord", stream, per_thread, &s);
    if (r)
        return r;
    struct sg_event *e = SG_FIND(handle, SG_EVENT);
    if (!e || e->context != s->context)
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    if (flags & ~(unsigned)CU_EVENT_RECORD_EXTERNAL)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (s->captured)
        return sg_leave(sg_capture_record(s, e, flags));
    return sg_leave(flags ? CUDA_ERROR_INVALID_VALUE : sg_event_record(e, s)); /* the flag is for captures only */
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
    return record(event, stream, 0, false);
}

CUresult cuEventRecord_ptsz(CUevent event, CUstream stream)
{
    return record(event, stream, 0, true);
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags)
{
    return record(event, stream, flags, false);
}

CUresult cuEventRecordWithFlags_ptsz(CUevent event, CUstream stream, unsigned int flags)
{
    return record(event, stream, flags, true);
}

static CUresult wait_event(CUstream stream, CUevent handle, unsigned flags, bool per_thread)
{
    struct sg_stream *s;
    CUresult r = sg_enter_work("cuStreamWaitEvent", stream, per_thread, &s);
    if (r)
        return r;
    struct sg_event *e = SG_FIND(handle, SG_EVENT);
    if (!e)
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    if (flags & ~(unsigned)CU_EVENT_WAIT_EXTERNAL)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (s->captured || e->captured)
        return sg_leave(sg_capture_wait(s, e, flags));
    if (flags)
        return sg_leave(CUDA_ERROR_INVALID_VALUE); /* for captures only */
    struct sg_mark *mark = sg_event_latest(e, &r);
    if (!mark)
        return sg_leave(r); /* never recorded: nothing to wait for */
    struct sg_op *op = sg_op_new(SG_OP_WAIT);
    if (!op) {
        sg_mark_unref(mark);
        return sg_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    op->mark = mark;
    sg_order_waits(s, mark);
    return sg_leave(sg_submit_async(s, op));
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags)
{
    return wait_event(stream, event, flags, false);
}

CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned int flags)
{
    return wait_event(stream, event, flags, true);
}

static CUresult enter_event(const char *function, CUevent handle, struct sg_event **event_out)
{
    CUresult r = sg_enter(function);
    if (r)
        return r;
    struct sg_event *e = SG_FIND(handle, SG_EVENT);
    if (!e)
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    r = e->context->sticky ? e->context->sticky : sg_capture_event_asked(e);
    *event_out = e;
    return r ? sg_leave(r) : CUDA_SUCCESS;
}

CUresult cuEventQuery(CUevent event)
{
    sg_replay_poll();
    struct sg_event *e;
    CUresult r = enter_event("cuEventQuery", event, &e);
    if (r)
        return r;
    struct sg_mark *mark = sg_event_latest(e, &r);
    if (!mark)
        return sg_leave(r);
    uint64_t context = e->context->object.id;
    bool over = mark->remote ? sg_shared_event_is_done(mark)
                             : sg_time_is_over(&(struct sg_goal){.mark = mark, .seq = sg.next_seq}) && mark->done;
    if (over && sg_check.race)
        sg_race_join_mark(mark);
    if (over)
        sg_order_learn_mark(mark);
    sg_mark_unref(mark);
    r = sg_context_tell(context);
    if (r)
        return sg_leave(r);
    return sg_leave(over ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY);
}

CUresult cuEventSynchronize(CUevent event)
{
    struct sg_event *e;
    CUresult r = enter_event("cuEventSynchronize", event, &e);
    if (r)
        return r;
    uint64_t context = e->context->object.id;
    struct sg_mark *mark = sg_event_latest(e, &r);
    if (mark && mark->remote)
        sg_shared_event_wait(mark);
    else if (mark)
        sg_wait_mark(mark);
    sg_mark_unref(mark);
    if (r)
        return sg_leave(r);
    sg_mempools_settle();
    return sg_leave(sg_context_tell(context));
}

static CUresult elapsed(float *milliseconds, CUevent start, CUevent end)
{
    struct sg_event *a;
    CUresult r = enter_event("cuEventElapsedTime", start, &a);
    if (r)
        return r;
    struct sg_event *b = SG_FIND(end, SG_EVENT);
    r = b ? sg_capture_event_asked(b) : CUDA_SUCCESS;
    if (r)
        return sg_leave(r);
    if (!b || a->context != b->context || !a->mark || !b->mark || ((a->flags | b->flags) & CU_EVENT_DISABLE_TIMING))
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    if (!milliseconds)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    struct sg_mark *first = sg_mark_ref(a->mark), *last = sg_mark_ref(b->mark);
    uint64_t first_ns, last_ns;
    bool over = sg_time_of_mark(first, &first_ns) && sg_time_of_mark(last, &last_ns);
    if (over && sg_check.race) {
        sg_race_join_mark(first);
        sg_race_join_mark(last);
    }
    sg_mark_unref(first);
    sg_mark_unref(last);
    if (over)
        *milliseconds = (float)((double)(int64_t)(last_ns - first_ns) * 1e-6);
    return sg_leave(over ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY);
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
    return elapsed(milliseconds, start, end);
}

CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end)
{
    return elapsed(milliseconds, start, end);
}
