/* Green contexts, see green.h; and events that stand for all of a context's work. */
#include "simgpu/green.h"

#include "simgpu/capture.h"
#include "simgpu/check.h"
#include "simgpu/order.h"

#include <stdlib.h>
#include <string.h>

#define MAGIC UINT32_C(0x6d6f6f72)

struct origin {            /* in a resource's padding */
    uint32_t magic, split; /* split 0: whole */
    int32_t device;
};

struct description {
    struct sg_object object;
    int device;
    unsigned sm_count;
};

/* ---- resources ---- */

static void partition_unit(unsigned flags, unsigned *least_out, unsigned *align_out)
{
    int major = sg.config.model->major;
    bool single = flags & CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING;
    *least_out = single ? 2 : major >= 9 ? 8 : major == 8 ? 4 : 2;
    *align_out = single ? 2 : major >= 9 ? 8 : 2;
}

static void fill_resource(CUdevResource *r, int device, unsigned sm_count, uint32_t split)
{
    struct origin o = {MAGIC, split, device};
    memset(r, 0, sizeof *r);
    r->type = CU_DEV_RESOURCE_TYPE_SM;
    memcpy(r->_internal_padding, &o, sizeof o);
    r->sm.smCount = sm_count;
    partition_unit(0, &r->sm.minSmPartitionSize, &r->sm.smCoscheduledAlignment);
}

static CUresult get_resource(CUdevResource *out, CUdevResourceType type, int device, unsigned sm_count)
{
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_DEV_RESOURCE_TYPE_SM)
        return CUDA_ERROR_INVALID_RESOURCE_TYPE;
    fill_resource(out, device, sm_count, 0);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetDevResource(CUdevice device, CUdevResource *resource, CUdevResourceType type)
{
    CUresult r = sg_enter("cuDeviceGetDevResource");
    if (r)
        return r;
    if (device < 0 || device >= sg.device_count)
        return sg_leave(CUDA_ERROR_INVALID_DEVICE);
    return sg_leave(get_resource(resource, type, device, (unsigned)sg.config.model->sm_count));
}

CUresult cuCtxGetDevResource(CUcontext handle, CUdevResource *resource, CUdevResourceType type)
{
    CUresult r = sg_enter("cuCtxGetDevResource");
    if (r)
        return r;
    const struct sg_green *green = sg_green_of((uint64_t)(uintptr_t)handle);
    const struct sg_context *c = SG_FIND(handle, SG_CONTEXT);
    if (!c)
        return sg_leave(CUDA_ERROR_INVALID_CONTEXT);
    return sg_leave(
        get_resource(resource, type, c->device, green ? green->sm_count : (unsigned)sg.config.model->sm_count));
}

CUresult cuGreenCtxGetDevResource(CUgreenCtx handle, CUdevResource *resource, CUdevResourceType type)
{
    CUresult r = sg_enter("cuGreenCtxGetDevResource");
    if (r)
        return r;
    const struct sg_green *green = sg_green_of((uint64_t)(uintptr_t)handle);
    if (!green)
        return sg_leave(CUDA_ERROR_INVALID_CONTEXT);
    return sg_leave(get_resource(resource, type, green->primary->device, green->sm_count));
}

static bool origin_of(const CUdevResource *r, struct origin *o)
{
    memcpy(o, r->_internal_padding, sizeof *o);
    return o->magic == MAGIC;
}

CUresult cuDevSmResourceSplitByCount(CUdevResource *result, unsigned int *groups, const CUdevResource *input,
                                     CUdevResource *remaining, unsigned int flags, unsigned int min_count)
{
    static uint32_t splits;
    struct origin o;
    unsigned least, align,
        known = CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING | CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE;
    CUresult r = sg_enter("cuDevSmResourceSplitByCount");
    if (r)
        return r;
    if (!groups || !input || flags & ~known || (result && !*groups))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (input->type != CU_DEV_RESOURCE_TYPE_SM)
        return sg_leave(CUDA_ERROR_INVALID_RESOURCE_TYPE);
    if (!origin_of(input, &o) || o.split || min_count > input->sm.smCount ||
        (flags & CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE && sg.config.model->major < 9))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    partition_unit(flags, &least, &align);
    unsigned unit = ((min_count > least ? min_count : least) + align - 1) / align * align;
    unsigned total = input->sm.smCount, made = total / unit;
    if (result && made > *groups)
        made = *groups;
    *groups = made;
    uint32_t split = ++splits;
    for (unsigned i = 0; i < made && result; i++)
        fill_resource(&result[i], o.device, unit, split);
    if (remaining)
        fill_resource(remaining, o.device, total - made * unit, split);
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *out, CUdevResource *resources, unsigned int count)
{
    CUresult r = sg_enter("cuDevResourceGenerateDesc");
    if (r)
        return r;
    struct origin first, o;
    unsigned sm_count = 0;
    if (!out || !resources || !count)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    for (unsigned i = 0; i < count && !r; i++) {
        if (resources[i].type != CU_DEV_RESOURCE_TYPE_SM)
            r = CUDA_ERROR_INVALID_RESOURCE_TYPE;
        else if (!origin_of(&resources[i], &o) || !resources[i].sm.smCount)
            r = CUDA_ERROR_INVALID_VALUE;
        else if (i && (o.device != first.device || o.split != first.split || !o.split))
            r = CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
        first = i ? first : o;
        sm_count += resources[i].sm.smCount;
    }
    struct description *d = r ? NULL : calloc(1, sizeof *d);
    if (!d)
        return sg_leave(r ? r : CUDA_ERROR_OUT_OF_MEMORY);
    d->device = first.device;
    d->sm_count = sm_count;
    sg_object_add(&d->object, SG_DESCRIPTION); /* there is no call that would end it */
    *out = SG_HANDLE(CUdevResourceDesc, d);
    return sg_leave(CUDA_SUCCESS);
}

/* ---- green contexts ---- */

struct sg_green *sg_green_of(uint64_t context)
{
    return sg_object_find(context, SG_GREEN);
}

struct sg_green *sg_green_current(void)
{
    const struct sg_thread *t = sg_thread();
    return t->depth ? sg_green_of(t->stack[t->depth - 1]) : NULL;
}

CUresult cuGreenCtxCreate(CUgreenCtx *out, CUdevResourceDesc desc, CUdevice device, unsigned int flags)
{
    CUcontext primary;
    CUresult r = sg_enter("cuGreenCtxCreate");
    if (r)
        return r;
    const struct description *d = SG_FIND(desc, SG_DESCRIPTION);
    if (device < 0 || device >= sg.device_count)
        return sg_leave(CUDA_ERROR_INVALID_DEVICE);
    if (!out || !d || d->device != device || flags != CU_GREEN_CTX_DEFAULT_STREAM)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    unsigned sm_count = d->sm_count;
    pthread_mutex_unlock(&sg.lock);
    r = cuDevicePrimaryCtxRetain(&primary, device);
    if (r)
        return r;
    struct sg_green *green = calloc(1, sizeof *green);
    pthread_mutex_lock(&sg.lock);
    struct sg_context *c = SG_FIND(primary, SG_CONTEXT);
    if (!green || !c || !c->active) {
        free(green);
        pthread_mutex_unlock(&sg.lock);
        cuDevicePrimaryCtxRelease_v2(device);
        return green ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_ERROR_OUT_OF_MEMORY;
    }
    green->primary = c;
    green->sm_count = sm_count;
    green->number = sg.next_number++;
    sg_object_add(&green->object, SG_GREEN);
    *out = SG_HANDLE(CUgreenCtx, green);
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuGreenCtxDestroy(CUgreenCtx handle)
{
    CUresult r = sg_enter("cuGreenCtxDestroy");
    if (r)
        return r;
    struct sg_green *green = sg_green_of((uint64_t)(uintptr_t)handle);
    if (!green)
        return sg_leave(CUDA_ERROR_INVALID_CONTEXT);
    int device = green->primary->device;
    sg_object_remove(&green->object); /* its streams are found to be without one from now on */
    for (size_t i = 0; i < green->wait_count; i++)
        sg_mark_unref(green->waits[i]);
    free(green->waits);
    free(green);
    pthread_mutex_unlock(&sg.lock);
    return cuDevicePrimaryCtxRelease_v2(device);
}

CUresult cuCtxFromGreenCtx(CUcontext *context, CUgreenCtx handle)
{
    CUresult r = sg_enter("cuCtxFromGreenCtx");
    if (r)
        return r;
    struct sg_green *green = sg_green_of((uint64_t)(uintptr_t)handle);
    if (!green)
        return sg_leave(CUDA_ERROR_INVALID_CONTEXT);
    if (!context)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *context = SG_HANDLE(CUcontext, green);
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuGreenCtxGetId(CUgreenCtx handle, unsigned long long *id)
{
    CUresult r = sg_enter("cuGreenCtxGetId");
    if (r)
        return r;
    const struct sg_green *green = handle ? sg_green_of((uint64_t)(uintptr_t)handle) : sg_green_current();
    if (!green)
        return sg_leave(CUDA_ERROR_INVALID_CONTEXT);
    if (!id)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *id = green->number;
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuGreenCtxStreamCreate(CUstream *stream, CUgreenCtx handle, unsigned int flags, int priority)
{
    CUresult r = sg_enter("cuGreenCtxStreamCreate");
    if (r)
        return r;
    struct sg_green *green = sg_green_of((uint64_t)(uintptr_t)handle);
    if (!green)
        return sg_leave(CUDA_ERROR_INVALID_CONTEXT);
    if (!stream || flags != CU_STREAM_NON_BLOCKING)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    priority = priority > 0 ? 0 : priority < -5 ? -5 : priority;
    struct sg_stream *s = sg_stream_create(green->primary, SG_STREAM_CREATED, flags, priority);
    if (!s)
        return sg_leave(CUDA_ERROR_OUT_OF_MEMORY);
    sg_green_adopt(green, s);
    *stream = SG_HANDLE(CUstream, s);
    return sg_leave(CUDA_SUCCESS);
}

static CUresult get_green(CUstream handle, CUgreenCtx *out)
{
    struct sg_stream *s;
    CUresult r = sg_enter_stream("cuStreamGetGreenCtx", handle, false, &s);
    if (r)
        return r;
    if (!out)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    bool special = !handle || handle == CU_STREAM_LEGACY;
    const struct sg_green *green = special ? sg_green_current() : sg_green_of(s->green);
    *out = green ? SG_HANDLE(CUgreenCtx, green) : NULL;
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuStreamGetGreenCtx(CUstream stream, CUgreenCtx *green)
{
    return get_green(stream, green);
}

/* ---- events of all of a context's work ---- */

static CUresult submit_wait(struct sg_stream *s, struct sg_mark *mark)
{
    struct sg_op *op = sg_op_new(SG_OP_WAIT);
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    op->mark = sg_mark_ref(mark);
    sg_order_waits(s, mark);
    sg_submit(s, op);
    return CUDA_SUCCESS;
}

void sg_green_adopt(struct sg_green *green, struct sg_stream *s)
{
    s->green = green->object.id;
    for (size_t i = 0; i < green->wait_count; i++)
        if (submit_wait(s, green->waits[i]))
            sg_log(SG_LOG_ERROR, "out of host memory: a stream does not wait as its green context does");
}

/* A graph's lanes are not: the stream of the launch stands for them, and what a running graph has yet to submit must not wait. */
static bool is_of(const struct sg_stream *s, const struct sg_green *green)
{
    return !s->dead && s->type != SG_STREAM_GRAPH && (!green || s->green == green->object.id);
}

/* A recording behind everything: a stream that goes again at once waits for the others and carries it. */
static CUresult record_all(struct sg_context *c, const struct sg_green *green, struct sg_event *e)
{
    struct sg_stream *carrier = sg_stream_create(c, SG_STREAM_CREATED, CU_STREAM_NON_BLOCKING, 0), *s;
    CUresult r = carrier ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    for (s = c->streams; s && !r; s = s->next) {
        if (s == carrier || !is_of(s, green) || !s->head)
            continue;
        struct sg_mark *mark = sg_mark_new(c);
        struct sg_op *op = mark ? sg_op_new(SG_OP_RECORD) : NULL;
        if (!op) {
            free(mark);
            r = CUDA_ERROR_OUT_OF_MEMORY;
            break;
        }
        op->mark = sg_mark_ref(mark);
        sg_order_recorded(mark, s);
        sg_submit(s, op);
        r = submit_wait(carrier, mark);
        sg_mark_unref(mark);
    }
    if (!r)
        r = sg_event_record(e, carrier);
    if (carrier && !carrier->dead)
        sg_stream_retire(carrier);
    return r;
}

static CUresult wait_all(struct sg_context *c, struct sg_green *green, struct sg_event *e)
{
    CUresult r;
    struct sg_mark *mark = sg_event_latest(e, &r);
    if (!mark)
        return r;
    struct sg_stream *s;
    for (s = c->streams; s && !r; s = s->next)
        if (is_of(s, green))
            r = submit_wait(s, mark);
    if (green && !r) { /* for streams to come */
        if (green->wait_count == green->wait_room) {
            size_t room = green->wait_room ? green->wait_room * 2 : 4;
            struct sg_mark **more = realloc(green->waits, room * sizeof *more);
            r = more ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
            green->waits = more ? more : green->waits;
            green->wait_room = more ? room : green->wait_room;
        }
        if (!r)
            green->waits[green->wait_count++] = sg_mark_ref(mark);
    }
    sg_mark_unref(mark);
    return r;
}

static CUresult context_event(const char *function, uint64_t handle, bool green_only, CUevent event, bool record)
{
    CUresult r = sg_enter(function);
    if (r)
        return r;
    struct sg_green *green = sg_green_of(handle);
    struct sg_context *c = green_only && !green ? NULL : sg_object_find(handle, SG_CONTEXT);
    struct sg_event *e = SG_FIND(event, SG_EVENT);
    if (!c || !c->active)
        return sg_leave(CUDA_ERROR_INVALID_CONTEXT);
    if (!e || (record && e->context != c))
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    r = c->sticky ? c->sticky : sg_capture_context_asked(c, green ? green->object.id : 0);
    if (!r && !record)
        r = sg_capture_event_waited(e);
    if (r)
        return sg_leave(r);
    return sg_leave(record ? record_all(c, green, e) : wait_all(c, green, e));
}

CUresult cuGreenCtxRecordEvent(CUgreenCtx ctx, CUevent event)
{
    return context_event("cuGreenCtxRecordEvent", (uint64_t)(uintptr_t)ctx, true, event, true);
}

CUresult cuGreenCtxWaitEvent(CUgreenCtx ctx, CUevent event)
{
    return context_event("cuGreenCtxWaitEvent", (uint64_t)(uintptr_t)ctx, true, event, false);
}

CUresult cuCtxRecordEvent(CUcontext ctx, CUevent event)
{
    return context_event("cuCtxRecordEvent", (uint64_t)(uintptr_t)ctx, false, event, true);
}

CUresult cuCtxWaitEvent(CUcontext ctx, CUevent event)
{
    return context_event("cuCtxWaitEvent", (uint64_t)(uintptr_t)ctx, false, event, false);
}
