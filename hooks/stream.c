#include "hr_hooks.h"
#include "residency/context.h"
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

HR_HOOK(cuStreamDestroy_v2)(CUstream hStream)
{
    HR_PASS(cuStreamDestroy_v2, hStream);
    HR_INSIDE();
    struct hr_context *context = hr_stream_destroying(hStream);
    CUresult r = hr_drv.cuStreamDestroy_v2(hStream);
    hr_stream_destroyed(hStream, context, r);
    return r;
}

HR_HOOK(cuStreamDestroy)(CUstream hStream)
{
    HR_PASS(cuStreamDestroy, hStream);
    HR_INSIDE();
    struct hr_context *context = hr_stream_destroying(hStream);
    CUresult r = hr_drv.cuStreamDestroy(hStream);
    hr_stream_destroyed(hStream, context, r);
    return r;
}
