#include "residency/context.h"
#include "hr_hooks.h"
#include "residency/access.h"
#include "residency/gone.h"
#include "residency/gpu.h"
#include "residency/lend.h"
#include "residency/quarantine.h"
#include "residency/shelf.h"
#include "residency/transfer.h"
#include "room.h"
#include "shim/shim.h"

/* Contexts: the memory that cuMemAlloc gave ends with its context, though its chunks would not. */

static CUresult made(CUresult r)
{
    if (r == CUDA_SUCCESS)
        hr_context_current(); /* registers it: a new context is current */
    return r;
}

/*
 * A context takes VRAM, of which the job's other contexts on the GPU may have left none: then some of it is moved out. Whether the
 * call should be made again; *held_out is to be let go afterwards.
 */
static bool make_room(CUdevice device, CUresult r, size_t *held_out)
{
    int gpu = r == CUDA_ERROR_OUT_OF_MEMORY ? hr_gpu_of_device(device) : -1;
    struct hr_context *context = gpu >= 0 ? hr_context_of_gpu((unsigned)gpu) : NULL;
    bool pushed;
    if (!context || hr_context_enter(context, &pushed) != CUDA_SUCCESS)
        return false;
    *held_out = hr_gpu_context_bytes((unsigned)gpu);
    hr_gpu_hold((unsigned)gpu, *held_out, true);
    hr_access_release_vram(hr_thread_self(), (unsigned)gpu, *held_out);
    hr_context_leave(pushed);
    return true;
}

/* r = real(...) once, and again where room could be made. */
#define CREATE(r, device, real, ...)                                                                                   \
    CUresult r = hr_drv.real(__VA_ARGS__);                                                                             \
    size_t held_bytes = 0;                                                                                             \
    if (make_room(device, r, &held_bytes)) {                                                                           \
        r = hr_drv.real(__VA_ARGS__);                                                                                  \
        hr_gpu_hold((unsigned)hr_gpu_of_device(device), held_bytes, false);                                            \
    }

HR_HOOK(cuCtxCreate)(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
    HR_PASS(cuCtxCreate, pctx, flags, dev);
    HR_INSIDE();
    CREATE(r, dev, cuCtxCreate, pctx, flags, dev);
    return made(r);
}
HR_HOOK(cuCtxCreate_v2)(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
    HR_PASS(cuCtxCreate_v2, pctx, flags, dev);
    HR_INSIDE();
    CREATE(r, dev, cuCtxCreate_v2, pctx, flags, dev);
    return made(r);
}
HR_HOOK(cuCtxCreate_v3)
(CUcontext *pctx, CUexecAffinityParam *paramsArray, int numParams, unsigned int flags, CUdevice dev)
{
    HR_PASS(cuCtxCreate_v3, pctx, paramsArray, numParams, flags, dev);
    HR_INSIDE();
    CREATE(r, dev, cuCtxCreate_v3, pctx, paramsArray, numParams, flags, dev);
    return made(r);
}
HR_HOOK(cuCtxCreate_v4)(CUcontext *pctx, CUctxCreateParams *ctxCreateParams, unsigned int flags, CUdevice dev)
{
    HR_PASS(cuCtxCreate_v4, pctx, ctxCreateParams, flags, dev);
    HR_INSIDE();
    CREATE(r, dev, cuCtxCreate_v4, pctx, ctxCreateParams, flags, dev);
    return made(r);
}
HR_HOOK(cuDevicePrimaryCtxRetain)(CUcontext *pctx, CUdevice dev)
{
    HR_PASS(cuDevicePrimaryCtxRetain, pctx, dev);
    HR_INSIDE();
    CREATE(r, dev, cuDevicePrimaryCtxRetain, pctx, dev);
    return r; /* it is registered when it is first seen current */
}

HR_HOOK(cuCtxDestroy_v2)(CUcontext ctx)
{
    HR_PASS(cuCtxDestroy_v2, ctx);
    HR_INSIDE();
    struct hr_gone gone = hr_context_ending(ctx);
    return hr_context_ended(&gone, hr_drv.cuCtxDestroy_v2(ctx));
}
HR_HOOK(cuCtxDestroy)(CUcontext ctx)
{
    HR_PASS(cuCtxDestroy, ctx);
    HR_INSIDE();
    struct hr_gone gone = hr_context_ending(ctx);
    return hr_context_ended(&gone, hr_drv.cuCtxDestroy(ctx));
}
HR_HOOK(cuCtxDetach)(CUcontext ctx)
{
    HR_PASS(cuCtxDetach, ctx);
    HR_INSIDE();
    return hr_drv.cuCtxDetach(ctx); /* drops a use; the last one is dropped by destroy */
}

/* Its streams end; memory that was allocated under it does not. */
HR_HOOK(cuGreenCtxDestroy)(CUgreenCtx hCtx)
{
    HR_PASS(cuGreenCtxDestroy, hCtx);
    HR_INSIDE();
    CUcontext context = NULL;
    bool known = hr_drv.cuCtxFromGreenCtx(&context, hCtx) == CUDA_SUCCESS;
    CUresult r = hr_drv.cuGreenCtxDestroy(hCtx);
    if (r == CUDA_SUCCESS && known) {
        hr_context_forget(context);
        hr_shelf_context_gone(hr_thread_self(), context);
    }
    return r;
}

HR_HOOK(cuDevicePrimaryCtxReset_v2)(CUdevice dev)
{
    HR_PASS(cuDevicePrimaryCtxReset_v2, dev);
    HR_INSIDE();
    struct hr_gone gone = hr_primary_ending(dev);
    return hr_context_ended(&gone, hr_drv.cuDevicePrimaryCtxReset_v2(dev));
}
HR_HOOK(cuDevicePrimaryCtxReset)(CUdevice dev)
{
    HR_PASS(cuDevicePrimaryCtxReset, dev);
    HR_INSIDE();
    struct hr_gone gone = hr_primary_ending(dev);
    return hr_context_ended(&gone, hr_drv.cuDevicePrimaryCtxReset(dev));
}
HR_HOOK(cuDevicePrimaryCtxRelease_v2)(CUdevice dev)
{
    HR_PASS(cuDevicePrimaryCtxRelease_v2, dev);
    HR_INSIDE();
    struct hr_gone gone = hr_primary_ending(dev);
    return hr_primary_released(&gone, dev, hr_drv.cuDevicePrimaryCtxRelease_v2(dev));
}
HR_HOOK(cuDevicePrimaryCtxRelease)(CUdevice dev)
{
    HR_PASS(cuDevicePrimaryCtxRelease, dev);
    HR_INSIDE();
    struct hr_gone gone = hr_primary_ending(dev);
    return hr_primary_released(&gone, dev, hr_drv.cuDevicePrimaryCtxRelease(dev));
}

/* A synchronisation of the job is a quiet moment for free, where it waits for everything that a GPU runs. */
static CUresult synchronized(CUcontext handle, uint64_t drain, CUresult r)
{
    r = hr_transfer_settle(r);
    struct hr_thread *t = hr_thread_self();
    if (r == CUDA_SUCCESS && t && (hr_quarantine_any() || hr_shelf_any()) && hr_context_rested(handle, drain)) {
        hr_shelf_sweep(t);
        hr_quarantine_release(t);
    } else if (r == CUDA_SUCCESS && t) {
        hr_shelf_ask(t); /* more than one context: what of this one is over can be told from its streams */
    }
    if (hr_lend_wanted())
        hr_lend_settle();
    return r;
}

HR_HOOK(cuCtxSynchronize)(void)
{
    HR_PASS(cuCtxSynchronize);
    HR_INSIDE();
    struct hr_context *context = hr_context_current();
    uint64_t drain = hr_drain_begin();
    CUresult r = hr_drv.cuCtxSynchronize();
    if (hr_transfer_covers(r))
        r = hr_drv.cuCtxSynchronize();
    return synchronized(context ? context->handle : NULL, drain, r);
}
HR_HOOK(cuCtxSynchronize_v2)(CUcontext ctx)
{
    HR_PASS(cuCtxSynchronize_v2, ctx);
    HR_INSIDE();
    uint64_t drain = hr_drain_begin();
    CUresult r = hr_drv.cuCtxSynchronize_v2(ctx);
    if (hr_transfer_covers(r))
        r = hr_drv.cuCtxSynchronize_v2(ctx);
    return synchronized(ctx, drain, r);
}

/* Stacks, a heap and a buffer for printf take VRAM, at once or when a kernel first needs them (then its launch makes the room). */
HR_HOOK(cuCtxSetLimit)(CUlimit limit, size_t value)
{
    HR_PASS(cuCtxSetLimit, limit, value);
    bool is_total = limit == CU_LIMIT_MALLOC_HEAP_SIZE || limit == CU_LIMIT_PRINTF_FIFO_SIZE;
    HR_WITH_ROOM(is_total ? value : 0, cuCtxSetLimit, limit, value);
}
