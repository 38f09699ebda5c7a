#include "base/log.h"
#include "residency/gpu.h"
#include "residency/quarantine.h"
#include "shim/gate.h"
#include "shim/shim.h"
#include "space/share.h"
#include "stats/stats.h"

CUresult hr_core_init(void)
{
    /*
     * Without the parameters of kernels (12.4) and without host chunks that kernels can use (12.2) nothing could tell which
     * buffers a launch needs, and a buffer that is out would fault: then the job is better off without us.
     */
    if (hr_driver_version() < 12020 && !HR_HAS(cuFuncGetParamInfo)) {
        hr_log(HR_LOG_WARN,
               "headroom steps aside: driver %d can neither tell the parameters of kernels nor map host memory; "
               "12.2 or newer is needed",
               hr_driver_version());
        return CUDA_ERROR_NOT_SUPPORTED;
    }
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
    hr_stats_finish("normal");
    hr_share_leave();
}
