#include "shim/shim.h"

#include "hr_hooks.h"

HR_HOOK(cuInit)(unsigned int flags)
{
    if (hr_depth > 0 || hr_driver_holds(__builtin_return_address(0)))
        return hr_drv.cuInit(flags);
    HR_ENTER();
    CUresult r = hr_drv.cuInit(flags);
    HR_LEAVE();
    if (r == CUDA_SUCCESS)
        hr_shim_start();
    return r;
}
