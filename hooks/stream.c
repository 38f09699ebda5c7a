#include "hr_hooks.h"
#include "residency/context.h"
#include "residency/lend.h"
#include "residency/quarantine.h"
#include "residency/shelf.h"
#include "residency/transfer.h"
#include "shim/shim.h"

/* Streams are registered so that the mover can ask whether they are done. */

HR_HOOK(cuStreamCreate)(CUstream *phStream, unsigned int Flags)
{
    HR_PASS(cuStreamCreate, phStream, Flags);
    HR_INSIDE();
    CUresult r = hr_drv.cuStreamCreate(phStream, Flags);
    if (r == CUDA_SUCCESS)
        hr_stream_created(*phStream);
    return r;
}

HR_HOOK(cuStreamCreateWithPriority)(CUstream *phStream, unsigned int flags, int priority)
{
    HR_PASS(cuStreamCreateWithPriority, phStream, flags, priority);
    HR_INSIDE();
    CUresult r = hr_drv.cuStreamCreateWithPriority(phStream, flags, priority);
    if (r == CUDA_SUCCESS)
        hr_stream_created(*phStream);
    return r;
}

/* Such a stream belongs to the context that stands for the green one, whatever is current. */
HR_HOOK(cuGreenCtxStreamCreate)(CUstream *phStream, CUgreenCtx greenCtx, unsigned int flags, int priority)
{
    HR_PASS(cuGreenCtxStreamCreate, phStream, greenCtx, flags, priority);
    HR_INSIDE();
    CUcontext context = NULL;
    CUresult r = hr_drv.cuGreenCtxStreamCreate(phStream, greenCtx, flags, priority);
    if (r == CUDA_SUCCESS && hr_drv.cuCtxFromGreenCtx(&context, greenCtx) == CUDA_SUCCESS)
        hr_stream_created_in(*phStream, context);
    return r;
}

/* Nothing is kept for its order: another stream may get the handle. */
static void forget(CUstream stream)
{
    struct hr_thread *t = hr_thread_self();
    if (t)
        hr_shelf_stream_gone(t, stream);
}

HR_HOOK(cuStreamDestroy_v2)(CUstream hStream)
{
    HR_PASS(cuStreamDestroy_v2, hStream);
    HR_INSIDE();
    struct hr_context *context = hr_stream_destroying(hStream);
    forget(hStream);
    CUresult r = hr_drv.cuStreamDestroy_v2(hStream);
    hr_stream_destroyed(hStream, context, r);
    return r;
}

HR_HOOK(cuStreamDestroy)(CUstream hStream)
{
    HR_PASS(cuStreamDestroy, hStream);
    HR_INSIDE();
    struct hr_context *context = hr_stream_destroying(hStream);
    forget(hStream);
    CUresult r = hr_drv.cuStreamDestroy(hStream);
    hr_stream_destroyed(hStream, context, r);
    return r;
}

/*
 * Where the job waits for a stream, or finds it at rest, memory that it freed before may become free for good: a drain need not
 * be waited for then.
 */
static CUresult rested(CUresult r, CUstream stream, bool per_thread, uint64_t drain)
{
    struct hr_thread *t = hr_thread_self();
    r = hr_transfer_settle(r);
    bool news = r == CUDA_SUCCESS && t && hr_stream_rested(t, stream, per_thread, drain);
    if (r == CUDA_SUCCESS && t && hr_shelf_any()) {
        if (stream == CU_STREAM_PER_THREAD || (per_thread && !stream))
            hr_shelf_rested(t, drain);
        hr_shelf_sweep(t);
    }
    if (news)
        hr_quarantine_release(t);
    if (hr_lend_wanted())
        hr_lend_settle();
    return r;
}

#define REST(name, pt)                                                                                                 \
    HR_HOOK(name)(CUstream hStream)                                                                                    \
    {                                                                                                                  \
        HR_PASS(name, hStream);                                                                                        \
        if (!hr_quarantine_any() && !hr_shelf_any() && !hr_transfer_any() && !hr_lend_wanted())                        \
            return hr_drv.name(hStream);                                                                               \
        HR_INSIDE();                                                                                                   \
        uint64_t drain = hr_drain_begin();                                                                             \
        CUresult r = hr_drv.name(hStream);                                                                             \
        if (hr_transfer_covers(r))                                                                                     \
            r = hr_drv.name(hStream);                                                                                  \
        return rested(r, hStream, pt, drain);                                                                          \
    }
REST(cuStreamSynchronize, false)
REST(cuStreamSynchronize_ptsz, true)
REST(cuStreamQuery, false)
REST(cuStreamQuery_ptsz, true)

/* Waiting for an event of the job's, or asking about it, can be what tells of a link that failed under a transfer. */
static CUresult settled(CUresult r, bool waited)
{
    struct hr_thread *t = hr_thread_self();
    r = hr_transfer_settle(r);
    if (r == CUDA_SUCCESS && waited && t)
        hr_shelf_ask(t);
    return r;
}

#define SETTLE(name, waits)                                                                                            \
    HR_HOOK(name)(CUevent hEvent)                                                                                      \
    {                                                                                                                  \
        HR_PASS(name, hEvent);                                                                                         \
        if (!hr_transfer_any() && !((waits) && hr_shelf_any()))                                                        \
            return hr_drv.name(hEvent);                                                                                \
        HR_INSIDE();                                                                                                   \
        CUresult r = hr_drv.name(hEvent);                                                                              \
        if (hr_transfer_covers(r))                                                                                     \
            r = hr_drv.name(hEvent);                                                                                   \
        return settled(r, waits);                                                                                      \
    }
SETTLE(cuEventSynchronize, true)
SETTLE(cuEventQuery, false)
