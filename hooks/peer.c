#include "peer.h"

#include "fabric/machine.h"
#include "hr_hooks.h"
#include "residency/fixed.h"
#include "residency/gpu.h"
#include "residency/peers.h"
#include "residency/transfer.h"
#include "shim/shim.h"
#include "space/space.h"

/*
 * Peer access: the driver's own has no effect on window memory, so it is carried out there by grants. Where copies between two GPUs arrive
 * wrong or never, whatever the driver says, these are no peers: then nobody uses that way, the driver itself included, which takes copies
 * through host memory.
 */

static bool are_peers(CUdevice a, CUdevice b)
{
    int gpu_a = hr_gpu_of_device(a), gpu_b = hr_gpu_of_device(b);
    bool reachable = hr_fabric_reachable(gpu_a, gpu_b);
    if (!reachable) /* kernels that do not ask are served by host memory */
        hr_fixed_bar((unsigned)gpu_a, (unsigned)gpu_b);
    return reachable;
}

bool hr_peer_usable(CUdevice a, CUdevice b)
{
    return a == b || are_peers(a, b);
}

HR_HOOK(cuDeviceCanAccessPeer)(int *canAccessPeer, CUdevice dev, CUdevice peerDev)
{
    HR_PASS(cuDeviceCanAccessPeer, canAccessPeer, dev, peerDev);
    HR_INSIDE();
    CUresult r = hr_drv.cuDeviceCanAccessPeer(canAccessPeer, dev, peerDev);
    if (r == CUDA_SUCCESS && *canAccessPeer && !are_peers(dev, peerDev))
        *canAccessPeer = 0;
    return r;
}

HR_HOOK(cuDeviceGetP2PAttribute)(int *value, CUdevice_P2PAttribute attrib, CUdevice srcDevice, CUdevice dstDevice)
{
    HR_PASS(cuDeviceGetP2PAttribute, value, attrib, srcDevice, dstDevice);
    HR_INSIDE();
    CUresult r = hr_drv.cuDeviceGetP2PAttribute(value, attrib, srcDevice, dstDevice);
    if (r == CUDA_SUCCESS && attrib != CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK && *value &&
        !are_peers(srcDevice, dstDevice))
        *value = 0;
    return r;
}

/* Whether the current context may not reach the other one, as far as anybody can tell before the driver was asked. */
static bool is_bad_pair(CUcontext peer)
{
    CUdevice here, there;
    CUcontext ignored;
    if (hr_drv.cuCtxGetDevice(&here) != CUDA_SUCCESS || hr_drv.cuCtxPushCurrent_v2(peer) != CUDA_SUCCESS)
        return false;
    CUresult r = hr_drv.cuCtxGetDevice(&there);
    hr_drv.cuCtxPopCurrent_v2(&ignored);
    return r == CUDA_SUCCESS && !are_peers(here, there);
}

HR_HOOK(cuCtxEnablePeerAccess)(CUcontext peerContext, unsigned int Flags)
{
    HR_PASS(cuCtxEnablePeerAccess, peerContext, Flags);
    HR_INSIDE();
    if (is_bad_pair(peerContext))
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
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
