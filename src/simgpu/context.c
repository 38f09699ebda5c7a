/*
 * Contexts: created and primary, the per-thread stack of current ones, limits.
 *
 * A thread's stack holds handles, not pointers: a context that another thread destroyed is found missing at the next call. A
 * primary context keeps its handle for the life of the process and only switches between active and inactive.
 */
#include "simgpu/array.h"
#include "simgpu/capture.h"
#include "simgpu/check.h"
#include "simgpu/mempool.h"

#include <stdlib.h>
#include <string.h>

#define FLAGS_MASK CU_CTX_FLAGS_MASK

struct sg_context *sg_current(bool *dead_out)
{
    struct sg_thread *t = sg_thread();
    *dead_out = false;
    if (!t->depth || !t->stack[t->depth - 1])
        return NULL;
    struct sg_context *c = sg_object_find(t->stack[t->depth - 1], SG_CONTEXT);
    *dead_out = !c || !c->active;
    return *dead_out ? NULL : c;
}

static CUresult activate(struct sg_context *c, unsigned flags)
{
    uint64_t charge = sg.config.vram_bytes / 32;
    if (charge > sg.config.model->context_bytes)
        charge = sg.config.model->context_bytes;
    CUresult r = sg_vram_take(c->device, charge);
    if (r)
        return r;
    c->charge_bytes = charge;
    sg_time_context_begin(c);
    c->legacy = sg_stream_create(c, SG_STREAM_LEGACY, 0, 0);
    if (!c->legacy) {
        sg_time_context_end(c);
        sg_vram_give(c->device, charge);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    c->flags = flags;
    c->api_version = 3020;
    c->number = sg.next_number++;
    c->sticky = CUDA_SUCCESS;
    c->cache_config = CU_FUNC_CACHE_PREFER_NONE;
    memset(c->limits, 0, sizeof c->limits);
    c->limits[CU_LIMIT_STACK_SIZE] = 1024;
    c->limits[CU_LIMIT_PRINTF_FIFO_SIZE] = 1 << 20;
    c->limits[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20;
    c->limits[CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2;
    c->limits[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048;
    c->limits[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 128;
    c->active = true;
    DL_APPEND(sg.contexts, c);
    return CUDA_SUCCESS;
}

CUresult sg_context_create(int device, unsigned flags, bool primary, struct sg_context **context_out)
{
    struct sg_context *c = calloc(1, sizeof *c);
    if (!c)
        return CUDA_ERROR_OUT_OF_MEMORY;
    c->device = device;
    c->primary = primary;
    CUresult r = primary ? CUDA_SUCCESS : activate(c, flags);
    if (r) {
        free(c);
        return r;
    }
    sg_object_add(&c->object, SG_CONTEXT);
    *context_out = c;
    return CUDA_SUCCESS;
}

void sg_context_finish(struct sg_context *c)
{
    c->finalizing = true;
    sg_wait_context(c);
    c->active = false;
    while (c->modules)
        sg_module_destroy(c->modules);
    while (c->events) {
        struct sg_event *e = c->events;
        DL_DELETE(c->events, e);
        sg_event_free(e);
    }
    sg_arrays_finish(c);
    while (c->allocs)
        sg_alloc_destroy(c->allocs);
    sg_runtime_finish(c);
    for (size_t i = sg.hosts.count; i-- > 0;) {
        struct sg_host *h = sg.hosts.at[i].owner;
        if (h->context == c)
            sg_host_destroy(h);
    }
    sg_peers_drop(c);
    while (c->streams)
        sg_stream_retire(c->streams);
    if (sg_check.race)
        sg_race_context_gone(c);
    c->legacy = NULL;
    sg_time_context_end(c);
    sg_vram_give(c->device, c->charge_bytes);
    DL_DELETE(sg.contexts, c);
    c->finalizing = false;
    if (!c->primary) {
        sg_object_remove(&c->object);
        free(c);
    }
}

static CUresult push(uint64_t id)
{
    struct sg_thread *t = sg_thread();
    if (t->depth == sizeof t->stack / sizeof t->stack[0])
        return CUDA_ERROR_OUT_OF_MEMORY;
    t->stack[t->depth++] = id;
    return CUDA_SUCCESS;
}

static CUresult create(CUcontext *pctx, unsigned flags, CUdevice device)
{
    CUresult r = sg_enter("cuCtxCreate");
    if (r)
        return r;
    if (!pctx || (flags & ~(unsigned)FLAGS_MASK))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (device < 0 || device >= sg.device_count)
        return sg_leave(CUDA_ERROR_INVALID_DEVICE);
    struct sg_context *c;
    r = sg_context_create(device, flags, false, &c);
    if (r)
        return sg_leave(r);
    r = push(c->object.id);
    if (!r) {
        r = sg_libraries_load(c);
        if (r && r != CUDA_ERROR_CONTEXT_IS_DESTROYED)
            sg_thread()->depth--;
    }
    if (r && r != CUDA_ERROR_CONTEXT_IS_DESTROYED)
        sg_context_finish(c);
    if (!r)
        *pctx = SG_HANDLE(CUcontext, c);
    return sg_leave(r);
}

CUresult cuCtxCreate(CUcontext *pctx, unsigned int flags, CUdevice device)
{
    return create(pctx, flags, device);
}

CUresult cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice device)
{
    return create(pctx, flags, device);
}

CUresult cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *params, int count, unsigned int flags, CUdevice device)
{
    if (count > 0 && params)
        return sg_unsupported("cuCtxCreate_v3 with an execution affinity");
    return create(pctx, flags, device);
}

CUresult cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *params, unsigned int flags, CUdevice device)
{
    if (params && (params->numExecAffinityParams || params->cigParams))
        return sg_unsupported("cuCtxCreate_v4 with parameters");
    return create(pctx, flags, device);
}

static CUresult destroy(CUcontext handle)
{
    CUresult r = sg_enter("cuCtxDestroy");
    if (r)
        return r;
    struct sg_context *c = SG_FIND(handle, SG_CONTEXT);
    if (!c || c->primary || c->finalizing)
        return sg_leave(CUDA_ERROR_INVALID_CONTEXT);
    struct sg_thread *t = sg_thread();
    if (t->depth && t->stack[t->depth - 1] == c->object.id)
        t->depth--;
    sg_context_finish(c);
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuCtxDestroy(CUcontext ctx)
{
    return destroy(ctx);
}

CUresult cuCtxDestroy_v2(CUcontext ctx)
{
    return destroy(ctx);
}

static CUresult push_current(CUcontext handle)
{
    CUresult r = sg_enter("cuCtxPushCurrent");
    if (r)
        return r;
    struct sg_context *c = SG_FIND(handle, SG_CONTEXT);
    return sg_leave(c ? push((uint64_t)(uintptr_t)handle) : CUDA_ERROR_INVALID_CONTEXT);
}

CUresult cuCtxPushCurrent(CUcontext ctx)
{
    return push_current(ctx);
}

CUresult cuCtxPushCurrent_v2(CUcontext ctx)
{
    return push_current(ctx);
}

static CUresult pop_current(CUcontext *pctx)
{
    CUresult r = sg_enter_unlocked("cuCtxPopCurrent");
    if (r)
        return r;
    struct sg_thread *t = sg_thread();
    if (!t->depth)
        return CUDA_ERROR_INVALID_CONTEXT;
    uint64_t id = t->stack[--t->depth];
    if (pctx)
        *pctx = (CUcontext)(uintptr_t)id;
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext *pctx)
{
    return pop_current(pctx);
}

CUresult cuCtxPopCurrent_v2(CUcontext *pctx)
{
    return pop_current(pctx);
}

CUresult cuCtxSetCurrent(CUcontext handle)
{
    CUresult r = sg_enter("cuCtxSetCurrent");
    if (r)
        return r;
    struct sg_thread *t = sg_thread();
    struct sg_context *c = handle ? SG_FIND(handle, SG_CONTEXT) : NULL;
    if (handle && !c)
        return sg_leave(CUDA_ERROR_INVALID_CONTEXT);
    if (t->depth)
        t->depth--;
    return sg_leave(c ? push((uint64_t)(uintptr_t)handle) : CUDA_SUCCESS);
}

CUresult cuCtxGetCurrent(CUcontext *pctx)
{
    CUresult r = sg_enter_unlocked("cuCtxGetCurrent");
    if (r)
        return r;
    if (!pctx)
        return CUDA_ERROR_INVALID_VALUE;
    struct sg_thread *t = sg_thread();
    *pctx = (CUcontext)(uintptr_t)(t->depth ? t->stack[t->depth - 1] : 0);
    return CUDA_SUCCESS;
}

/* For calls about a context that may have an error: only its life matters. NULL means the current one. */
static CUresult enter_about(const char *function, CUcontext handle, struct sg_context **context_out)
{
    CUresult r = sg_enter(function);
    if (r)
        return r;
    bool dead = false;
    struct sg_context *c = handle ? SG_FIND(handle, SG_CONTEXT) : sg_current(&dead);
    if (handle && c && !c->active)
        dead = true;
    if (dead)
        return sg_leave(CUDA_ERROR_CONTEXT_IS_DESTROYED);
    if (!c)
        return sg_leave(CUDA_ERROR_INVALID_CONTEXT);
    *context_out = c;
    return CUDA_SUCCESS;
}

static CUresult get_device(CUdevice *device, CUcontext handle)
{
    struct sg_context *c;
    CUresult r = enter_about("cuCtxGetDevice", handle, &c);
    if (r)
        return r;
    if (!device)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *device = c->device;
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetDevice(CUdevice *device)
{
    return get_device(device, NULL);
}

CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext ctx)
{
    return get_device(device, ctx);
}

CUresult cuCtxGetFlags(unsigned int *flags)
{
    struct sg_context *c;
    CUresult r = enter_about("cuCtxGetFlags", NULL, &c);
    if (r)
        return r;
    if (!flags)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *flags = c->flags;
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuCtxSetFlags(unsigned int flags)
{
    struct sg_context *c;
    CUresult r = enter_about("cuCtxSetFlags", NULL, &c);
    if (r)
        return r;
    if (flags & ~(unsigned)FLAGS_MASK)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    c->flags = flags;
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetId(CUcontext handle, unsigned long long *id)
{
    struct sg_context *c;
    CUresult r = enter_about("cuCtxGetId", handle, &c);
    if (r)
        return r;
    if (!id)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *id = c->number;
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetApiVersion(CUcontext handle, unsigned int *version)
{
    struct sg_context *c;
    CUresult r = enter_about("cuCtxGetApiVersion", handle, &c);
    if (r)
        return r;
    if (!version)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *version = c->api_version;
    return sg_leave(CUDA_SUCCESS);
}

static CUresult synchronize(CUcontext handle)
{
    struct sg_context *c;
    CUresult r = enter_about("cuCtxSynchronize", handle, &c);
    if (r)
        return r;
    uint64_t id = c->object.id;
    r = c->sticky ? c->sticky : sg_capture_context_asked(c, 0);
    if (r)
        return sg_leave(r);
    if (!c->sticky)
        sg_wait_context(c);
    sg_mempools_settle();
    return sg_leave(sg_context_tell(id));
}

CUresult cuCtxSynchronize(void)
{
    return synchronize(NULL);
}

CUresult cuCtxSynchronize_v2(CUcontext ctx)
{
    return synchronize(ctx);
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
    struct sg_context *c;
    CUresult r = sg_enter_context("cuCtxSetLimit", &c);
    if (r)
        return r;
    if ((int)limit < 0 || limit >= CU_LIMIT_MAX)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (limit >= CU_LIMIT_SHMEM_SIZE || (limit == CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH && sg.config.model->major >= 9))
        return sg_leave(CUDA_ERROR_UNSUPPORTED_LIMIT);
    if (limit == CU_LIMIT_STACK_SIZE && value > 512 << 10)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if ((limit == CU_LIMIT_MALLOC_HEAP_SIZE && c->heap) || (limit == CU_LIMIT_PRINTF_FIFO_SIZE && c->fifo))
        return sg_leave(CUDA_ERROR_INVALID_VALUE); /* a module that uses it is there already */
    if (limit == CU_LIMIT_MAX_L2_FETCH_GRANULARITY && value > 128)
        value = 128;
    c->limits[limit] = limit == CU_LIMIT_STACK_SIZE ? (value + 15) & ~(size_t)15 : value;
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetLimit(size_t *value, CUlimit limit)
{
    struct sg_context *c;
    CUresult r = sg_enter_context("cuCtxGetLimit", &c);
    if (r)
        return r;
    if (!value || (int)limit < 0 || limit >= CU_LIMIT_MAX)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (limit >= CU_LIMIT_SHMEM_SIZE || (limit == CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH && sg.config.model->major >= 9))
        return sg_leave(CUDA_ERROR_UNSUPPORTED_LIMIT);
    *value = c->limits[limit];
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetCacheConfig(CUfunc_cache *config)
{
    struct sg_context *c;
    CUresult r = sg_enter_context("cuCtxGetCacheConfig", &c);
    if (r)
        return r;
    if (!config)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *config = c->cache_config;
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuCtxSetCacheConfig(CUfunc_cache config)
{
    struct sg_context *c;
    CUresult r = sg_enter_context("cuCtxSetCacheConfig", &c);
    if (r)
        return r;
    if ((unsigned)config > CU_FUNC_CACHE_PREFER_EQUAL)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    c->cache_config = config;
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    struct sg_context *c;
    CUresult r = sg_enter_context("cuCtxGetStreamPriorityRange", &c);
    if (r)
        return r;
    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    return sg_leave(CUDA_SUCCESS);
}

/* ---- primary contexts ---- */

static CUresult primary_of(CUdevice device, struct sg_context **context_out)
{
    if (device < 0 || device >= sg.device_count)
        return CUDA_ERROR_INVALID_DEVICE;
    struct sg_device *d = &sg.devices[device];
    if (!d->primary) {
        CUresult r = sg_context_create(device, 0, true, &d->primary);
        if (r)
            return r;
    }
    *context_out = d->primary;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice device)
{
    CUresult r = sg_enter("cuDevicePrimaryCtxRetain");
    if (r)
        return r;
    if (!pctx)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    struct sg_context *c;
    r = primary_of(device, &c);
    if (!r && !c->active) {
        r = activate(c, c->primary_flags);
        sg_time_units(SG_UNIT_CONTEXT, 1);
        if (!r && sg_libraries_load(c)) {
            sg_context_finish(c);
            r = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    if (!r) {
        c->primary_refs++;
        *pctx = SG_HANDLE(CUcontext, c);
    }
    return sg_leave(r);
}

static CUresult primary_release(CUdevice device)
{
    CUresult r = sg_enter("cuDevicePrimaryCtxRelease");
    if (r)
        return r;
    struct sg_context *c;
    r = primary_of(device, &c);
    if (!r && (!c->primary_refs || c->finalizing))
        r = CUDA_ERROR_INVALID_CONTEXT;
    if (!r && !--c->primary_refs)
        sg_context_finish(c);
    return sg_leave(r);
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device)
{
    return primary_release(device);
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    return primary_release(device);
}

static CUresult primary_reset(CUdevice device)
{
    CUresult r = sg_enter("cuDevicePrimaryCtxReset");
    if (r)
        return r;
    struct sg_context *c;
    r = primary_of(device, &c);
    if (!r && c->active && !c->finalizing) {
        c->primary_refs = 0; /* the next retain brings it back */
        sg_context_finish(c);
    }
    return sg_leave(r);
}

CUresult cuDevicePrimaryCtxReset(CUdevice device)
{
    return primary_reset(device);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    return primary_reset(device);
}

static CUresult primary_set_flags(CUdevice device, unsigned flags)
{
    CUresult r = sg_enter("cuDevicePrimaryCtxSetFlags");
    if (r)
        return r;
    struct sg_context *c;
    r = flags & ~(unsigned)FLAGS_MASK ? CUDA_ERROR_INVALID_VALUE : primary_of(device, &c);
    if (!r) {
        c->primary_flags = flags;
        if (c->active)
            c->flags = flags;
    }
    return sg_leave(r);
}

CUresult cuDevicePrimaryCtxSetFlags(CUdevice device, unsigned int flags)
{
    return primary_set_flags(device, flags);
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags)
{
    return primary_set_flags(device, flags);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active)
{
    CUresult r = sg_enter("cuDevicePrimaryCtxGetState");
    if (r)
        return r;
    struct sg_context *c;
    r = !flags || !active ? CUDA_ERROR_INVALID_VALUE : primary_of(device, &c);
    if (!r) {
        *flags = c->primary_flags;
        *active = c->active;
    }
    return sg_leave(r);
}
