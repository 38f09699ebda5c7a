#include "residency/gone.h"

#include "base/lock.h"
#include "residency/context.h"
#include "residency/gpu.h"
#include "residency/ipc.h"
#include "residency/lane.h"
#include "residency/lend.h"
#include "residency/params.h"
#include "residency/peers.h"
#include "residency/quarantine.h"
#include "residency/shelf.h"
#include "residency/track.h"
#include "residency/transfer.h"
#include "space/space.h"
#include "stats/stats.h"
#include "tier/tier.h"

struct hr_gone hr_context_ending(CUcontext handle)
{
    if (handle) {
        hr_transfer_leave(handle);
        hr_lend_forget(handle);
    }
    return (struct hr_gone){handle};
}

struct hr_gone hr_primary_ending(CUdevice device)
{
    int gpu = hr_gpu_of_device(device);
    return hr_context_ending(gpu >= 0 ? hr_context_primary((unsigned)gpu) : NULL);
}

static bool free_one(CUdeviceptr address, void *arg)
{
    struct hr_thread *t = arg;
    size_t bytes;
    struct hr_extent *e;
    enum hr_retire retired = hr_space_retire(address, &bytes, &e);
    if (retired == HR_RETIRE_TOUCHED || retired == HR_RETIRE_UNTOUCHED) {
        hr_stat_add(t, HR_STAT_freed_bytes, bytes);
        hr_quarantine_release_one(t, address);
    }
    return true;
}

CUresult hr_context_ended(const struct hr_gone *gone, CUresult r)
{
    if (gone->handle)
        hr_track_ended(gone->handle, r == CUDA_SUCCESS);
    if (r != CUDA_SUCCESS || !gone->handle)
        return r;
    hr_context_forget(gone->handle);
    hr_tier_host_context_gone(gone->handle);
    hr_shelf_context_gone(hr_thread_self(), gone->handle); /* memory of pools remains */
    hr_lane_forget(gone->handle);
    hr_peers_forget(gone->handle);
    hr_ipc_context_gone(gone->handle);
    hr_params_forget(); /* the functions of its modules are gone, too */
    hr_space_each(gone->handle, free_one, hr_thread_self());
    hr_space_context_gone(hr_thread_self(), gone->handle);
    return r;
}

CUresult hr_primary_released(const struct hr_gone *gone, CUdevice device, CUresult r)
{
    unsigned flags = 0;
    int active = 1;
    if (r == CUDA_SUCCESS && gone->handle &&
        hr_drv.cuDevicePrimaryCtxGetState(device, &flags, &active) == CUDA_SUCCESS && !active)
        return hr_context_ended(gone, r);
    if (gone->handle)
        hr_track_ended(gone->handle, false);
    return r;
}
