#include "fabric/machine.h"
#include "hr_hooks.h"
#include "residency/peers.h"
#include "residency/transfer.h"
#include "shim/shim.h"
#include "space/space.h"

/* Peer access: the driver's own has no effect on window memory, so it is carried out there by grants. */

HR_HOOK(cuCtxEnablePeerAccess)(CUcontext peerContext, unsigned int Flags)
{
    HR_PASS(cuCtxEnablePeerAccess, peerContext, Flags);
    HR_INSIDE();
    CUresult r = hr_drv.cuCtxEnablePeerAccess(peerContext, Flags);
    if (r == CUDA_ERROR_TOO_MANY_PEERS && hr_transfer_trim(HR_MAX_GPUS) > 0) /* the job's come before ours */
        r = hr_drv.cuCtxEnablePeerAccess(peerContext, Flags);
    if (r != CUDA_SUCCESS)
        return r;
    struct hr_fabric *fabric;
    if (hr_fabric_get(&fabric) == 0) /* from now on kernels use links: routers get their tables */
        hr_fabric_refresh(fabric);
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
