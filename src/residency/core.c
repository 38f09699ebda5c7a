#include "base/log.h"
#include "fabric/verify.h"
#include "residency/gpu.h"
#include "residency/ipc.h"
#include "residency/quarantine.h"
#include "shim/gate.h"
#include "shim/shim.h"
#include "space/share.h"
#include "stats/stats.h"

CUresult hr_core_init(void)
{
    hr_verify_keep_devices();
    hr_gate_init();
    hr_space_set_dropper(hr_quarantine_drop);
    CUresult r = hr_gpu_start();
    if (r != CUDA_SUCCESS)
        hr_log(HR_LOG_WARN, "headroom steps aside: the GPUs' address windows cannot be set up (driver error %d)",
               (int)r);
    return r;
}

void hr_core_exit(void)
{
    hr_ipc_leave();
    hr_stats_finish("normal");
    hr_share_leave();
}

void hr_core_forked(void)
{
    hr_ipc_forked();
}
