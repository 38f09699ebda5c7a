/* Streams and host functions. Captures are in capture.c. */
#include "simgpu/capture.h"
#include "simgpu/check.h"
#include "simgpu/green.h"
#include "simgpu/mempool.h"

#include <stdlib.h>
#include <string.h>

struct sg_stream *sg_stream_create(struct sg_context *context, enum sg_stream_type type, unsigned flags, int priority)
{
    struct sg_stream *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->context = context;
    s->type = type;
    s->flags = flags;
    s->priority = priority;
    s->number = sg.next_number++;
    sg_object_add(&s->object, SG_STREAM);
    DL_APPEND(context->streams, s);
    sg_time_stream_begin(s);
    return s;
}

static struct sg_stream *thread_stream(struct sg_context *context)
{
    uint64_t thread = sg_thread()->number;
    struct sg_stream *s;
    DL_FOREACH(context->streams, s)
    if (s->type == SG_STREAM_THREAD && s->thread == thread && !s->dead)
        return s;
    s = sg_stream_create(context, SG_STREAM_THREAD, 0, 0);
    if (s)
        s->thread = thread;
    return s;
}

void sg_threads_default_streams_retire(uint64_t thread)
{
    struct sg_context *c;
    struct sg_stream *s, *next;
    DL_FOREACH(sg.contexts, c)
    DL_FOREACH_SAFE(c->streams, s, next)
    if (s->type == SG_STREAM_THREAD && s->thread == thread && !s->dead)
        sg_stream_retire(s);
}

CUresult sg_stream_resolve(CUstream handle, bool per_thread, struct sg_context *current, struct sg_stream **stream_out)
{
    struct sg_stream *s;
    if (handle == CU_STREAM_PER_THREAD || (!handle && per_thread)) {
        s = thread_stream(current);
        if (!s)
            return CUDA_ERROR_OUT_OF_MEMORY;
    } else if (handle == CU_STREAM_LEGACY || !handle) {
        s = current->legacy;
    } else {
        s = SG_FIND(handle, SG_STREAM);
        if (!s || s->dead || s->type == SG_STREAM_GRAPH)
            return CUDA_ERROR_INVALID_HANDLE;
    }
    if (s->context->finalizing || (s->green && !sg_green_of(s->green)))
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *stream_out = s;
    return s->context->sticky;
}

CUresult sg_enter_stream(const char *function, CUstream handle, bool per_thread, struct sg_stream **stream_out)
{
    struct sg_context *context;
    CUresult r = sg_enter_context(function, &context);
    if (r)
        return r;
    r = sg_stream_resolve(handle, per_thread, context, stream_out);
    return r ? sg_leave(r) : CUDA_SUCCESS;
}

static CUresult create(const char *function, CUstream *stream, unsigned flags, int priority)
{
    struct sg_context *context;
    CUresult r = sg_enter_context(function, &context);
    if (r)
        return r;
    if (!stream || (flags & ~(unsigned)CU_STREAM_NON_BLOCKING))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    priority = priority > 0 ? 0 : priority < -5 ? -5 : priority; /* clamped, as documented */
    struct sg_stream *s = sg_stream_create(context, SG_STREAM_CREATED, flags, priority);
    if (!s)
        return sg_leave(CUDA_ERROR_OUT_OF_MEMORY);
    struct sg_green *green = sg_green_current();
    if (green)
        sg_green_adopt(green, s);
    *stream = SG_HANDLE(CUstream, s);
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
{
    return create("cuStreamCreate", stream, flags, 0);
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority)
{
    return create("cuStreamCreateWithPriority", stream, flags, priority);
}

static CUresult destroy(CUstream handle)
{
    struct sg_context *context;
    CUresult r = sg_enter_context("cuStreamDestroy", &context);
    if (r)
        return r;
    struct sg_stream *s = SG_FIND(handle, SG_STREAM);
    if (!s || s->dead || s->type != SG_STREAM_CREATED)
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    if (s->green && !sg_green_of(s->green))
        return sg_leave(CUDA_ERROR_CONTEXT_IS_DESTROYED);
    sg_stream_retire(s); /* work that it still holds is carried out */
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuStreamDestroy(CUstream stream)
{
    return destroy(stream);
}

CUresult cuStreamDestroy_v2(CUstream stream)
{
    return destroy(stream);
}

static CUresult synchronize(CUstream handle, bool per_thread)
{
    struct sg_stream *s;
    CUresult r = sg_enter_work("cuStreamSynchronize", handle, per_thread, &s);
    if (r)
        return r;
    if (s->captured)
        return sg_leave(sg_capture_refuse(s));
    uint64_t context = s->context->object.id;
    sg_wait_ticket(s, s->submitted);
    sg_mempools_settle();
    return sg_leave(sg_context_tell(context));
}

CUresult cuStreamSynchronize(CUstream stream)
{
    return synchronize(stream, false);
}

CUresult cuStreamSynchronize_ptsz(CUstream stream)
{
    return synchronize(stream, true);
}

static CUresult query(CUstream handle, bool per_thread)
{
    sg_replay_poll();
    struct sg_stream *s;
    CUresult r = sg_enter_work("cuStreamQuery", handle, per_thread, &s);
    if (r)
        return r;
    if (s->captured)
        return sg_leave(sg_capture_refuse(s));
    uint64_t id = s->object.id, context = s->context->object.id;
    struct sg_known *known = sg_order_of_stream(s);
    bool over = !s->vtime || sg_time_is_over(&(struct sg_goal){.stream = s->vtime, .seq = sg.next_seq});
    s = sg_object_find(id, SG_STREAM); /* another thread may have destroyed both meanwhile */
    r = sg_context_tell(context);
    sg_order_learn(known, !r && over && !(s && s->head));
    if (r)
        return sg_leave(r);
    if (over && s && sg_check.race)
        sg_race_join_stream(s);
    return sg_leave(!over || (s && s->head) ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS);
}

CUresult cuStreamQuery(CUstream stream)
{
    return query(stream, false);
}

CUresult cuStreamQuery_ptsz(CUstream stream)
{
    return query(stream, true);
}

static CUresult get_priority(CUstream handle, int *priority, bool per_thread)
{
    struct sg_stream *s;
    CUresult r = sg_enter_stream("cuStreamGetPriority", handle, per_thread, &s);
    if (r)
        return r;
    if (!priority)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *priority = s->priority;
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuStreamGetPriority(CUstream stream, int *priority)
{
    return get_priority(stream, priority, false);
}

CUresult cuStreamGetPriority_ptsz(CUstream stream, int *priority)
{
    return get_priority(stream, priority, true);
}

static CUresult get_flags(CUstream handle, unsigned *flags, bool per_thread)
{
    struct sg_stream *s;
    CUresult r = sg_enter_stream("cuStreamGetFlags", handle, per_thread, &s);
    if (r)
        return r;
    if (!flags)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *flags = s->flags;
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuStreamGetFlags(CUstream stream, unsigned int *flags)
{
    return get_flags(stream, flags, false);
}

CUresult cuStreamGetFlags_ptsz(CUstream stream, unsigned int *flags)
{
    return get_flags(stream, flags, true);
}

static CUresult get_id(CUstream handle, unsigned long long *id, bool per_thread)
{
    struct sg_stream *s;
    CUresult r = sg_enter_stream("cuStreamGetId", handle, per_thread, &s);
    if (r)
        return r;
    if (!id)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *id = s->number;
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuStreamGetId(CUstream stream, unsigned long long *id)
{
    return get_id(stream, id, false);
}

CUresult cuStreamGetId_ptsz(CUstream stream, unsigned long long *id)
{
    return get_id(stream, id, true);
}

static CUresult get_device(CUstream handle, CUdevice *device, bool per_thread)
{
    struct sg_stream *s;
    CUresult r = sg_enter_stream("cuStreamGetDevice", handle, per_thread, &s);
    if (r)
        return r;
    if (!device)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *device = s->context->device;
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuStreamGetDevice(CUstream stream, CUdevice *device)
{
    return get_device(stream, device, false);
}

CUresult cuStreamGetDevice_ptsz(CUstream stream, CUdevice *device)
{
    return get_device(stream, device, true);
}

static CUresult get_context(CUstream handle, CUcontext *context, bool per_thread)
{
    struct sg_stream *s;
    CUresult r = sg_enter_stream("cuStreamGetCtx", handle, per_thread, &s);
    if (r)
        return r;
    if (!context)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *context = s->green ? (CUcontext)(uintptr_t)s->green : SG_HANDLE(CUcontext, s->context);
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext *context)
{
    return get_context(stream, context, false);
}

CUresult cuStreamGetCtx_ptsz(CUstream stream, CUcontext *context)
{
    return get_context(stream, context, true);
}

/* The primary context, and the green one. */
static CUresult get_context_v2(CUstream handle, CUcontext *context, CUgreenCtx *green, bool per_thread)
{
    struct sg_stream *s;
    CUresult r = sg_enter_stream("cuStreamGetCtx", handle, per_thread, &s);
    if (r)
        return r;
    if (!context)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    bool special = !handle || handle == CU_STREAM_LEGACY;
    const struct sg_green *of = special ? sg_green_current() : sg_green_of(s->green);
    *context = SG_HANDLE(CUcontext, s->context);
    if (green)
        *green = of ? SG_HANDLE(CUgreenCtx, of) : NULL;
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuStreamGetCtx_v2(CUstream stream, CUcontext *context, CUgreenCtx *green)
{
    return get_context_v2(stream, context, green, false);
}

CUresult cuStreamGetCtx_v2_ptsz(CUstream stream, CUcontext *context, CUgreenCtx *green)
{
    return get_context_v2(stream, context, green, true);
}

/* ---- host functions ---- */

static CUresult submit_host(struct sg_stream *s, struct sg_host_call call)
{
    struct sg_op *op = sg_op_new(SG_OP_HOST);
    if (!op)
        return sg_leave(CUDA_ERROR_OUT_OF_MEMORY);
    op->host = call;
    return sg_leave(sg_submit_async(s, op));
}

static CUresult launch_host(CUstream handle, CUhostFn fn, void *data, bool per_thread)
{
    struct sg_stream *s;
    CUresult r = sg_enter_work("cuLaunchHostFunc", handle, per_thread, &s);
    if (r)
        return r;
    if (!fn)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (s->captured) {
        struct sg_work *w;
        r = sg_work_host(&(CUDA_HOST_NODE_PARAMS){fn, data}, &w);
        return sg_leave(r ? r : sg_capture_work(s, w));
    }
    return submit_host(s, (struct sg_host_call){.fn = fn, .data = data});
}

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn fn, void *data)
{
    return launch_host(stream, fn, data, false);
}

CUresult cuLaunchHostFunc_ptsz(CUstream stream, CUhostFn fn, void *data)
{
    return launch_host(stream, fn, data, true);
}

static CUresult add_callback(CUstream handle, CUstreamCallback callback, void *data, unsigned flags, bool per_thread)
{
    struct sg_stream *s;
    CUresult r = sg_enter_work("cuStreamAddCallback", handle, per_thread, &s);
    if (r)
        return r;
    if (!callback || flags)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (s->captured)
        return sg_leave(sg_capture_refuse(s)); /* it hears of errors, which graphs do not tell */
    return submit_host(s, (struct sg_host_call){.callback = callback, .data = data, .handle = handle});
}

CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void *data, unsigned int flags)
{
    return add_callback(stream, callback, data, flags, false);
}

CUresult cuStreamAddCallback_ptsz(CUstream stream, CUstreamCallback callback, void *data, unsigned int flags)
{
    return add_callback(stream, callback, data, flags, true);
}
