#include "hr_hooks.h"
#include "residency/peers.h"
#include "shim/shim.h"

/* Peer access: the driver's own has no effect on window memory, so it is carried out there by grants. */

HR_HOOK(cuCtxEnablePeerAccess)(CUcontext peerContext, unsigned int Flags)
{
    HR_PASS(cuCtxEnablePeerAccess, peerContext, Flags);
    HR_INSIDE();
    CUresult r = hr_drv.cuCtxEnablePeerAccess(peerContext, Flags);
    if (r != CUDA_SUCCESS)
        return r;
    r = hr_peers_enabled(peerContext);
    if (r != CUDA_SUCCESS)
        hr_drv.cuCtxDisablePeerAccess(peerContext);
    return r;
}

HR_HOOK(cuCtxDisablePeerAccess)(CUcontext peerContext)
{
    HR_PASS(cuCtxDisablePeerAccess, peerContext);
    HR_INSIDE();
    CUresult r = hr_drv.cuCtxDisablePeerAccess(peerContext);
    if (r == CUDA_SUCCESS)
        hr_peers_disabled(peerContext);
    return r;
}
