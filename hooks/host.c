#include "hr_hooks.h"
#include "residency/access.h"
#include "shim/shim.h"
#include "stats/stats.h"

/*
 * Host and managed memory pass; their bytes are counted. Kernels can read them and find addresses there that no parameter
 * shows, so from the first one on everything is backed before a launch (HEADROOM_COMMIT).
 */

static CUresult counted(CUresult r, enum hr_stat stat, size_t bytes, const char *what)
{
    if (r == CUDA_SUCCESS) {
        hr_stat_add(hr_thread_self(), stat, bytes);
        hr_access_cannot_scan(what);
    }
    return r;
}

HR_HOOK(cuMemAllocHost_v2)(void **pp, size_t bytesize)
{
    HR_PASS(cuMemAllocHost_v2, pp, bytesize);
    HR_INSIDE();
    return counted(hr_drv.cuMemAllocHost_v2(pp, bytesize), HR_STAT_pinned_host_bytes, bytesize,
                   "the job has pinned memory");
}

HR_HOOK(cuMemAllocHost)(void **pp, unsigned int bytesize)
{
    HR_PASS(cuMemAllocHost, pp, bytesize);
    HR_INSIDE();
    return counted(hr_drv.cuMemAllocHost(pp, bytesize), HR_STAT_pinned_host_bytes, bytesize,
                   "the job has pinned memory");
}

HR_HOOK(cuMemHostAlloc)(void **pp, size_t bytesize, unsigned int Flags)
{
    HR_PASS(cuMemHostAlloc, pp, bytesize, Flags);
    HR_INSIDE();
    return counted(hr_drv.cuMemHostAlloc(pp, bytesize, Flags), HR_STAT_pinned_host_bytes, bytesize,
                   "the job has pinned memory");
}

HR_HOOK(cuMemHostRegister_v2)(void *p, size_t bytesize, unsigned int Flags)
{
    HR_PASS(cuMemHostRegister_v2, p, bytesize, Flags);
    HR_INSIDE();
    return counted(hr_drv.cuMemHostRegister_v2(p, bytesize, Flags), HR_STAT_pinned_host_bytes, bytesize,
                   "the job has registered memory");
}

HR_HOOK(cuMemHostRegister)(void *p, size_t bytesize, unsigned int Flags)
{
    HR_PASS(cuMemHostRegister, p, bytesize, Flags);
    HR_INSIDE();
    return counted(hr_drv.cuMemHostRegister(p, bytesize, Flags), HR_STAT_pinned_host_bytes, bytesize,
                   "the job has registered memory");
}

HR_HOOK(cuMemAllocManaged)(CUdeviceptr *dptr, size_t bytesize, unsigned int flags)
{
    HR_PASS(cuMemAllocManaged, dptr, bytesize, flags);
    HR_INSIDE();
    return counted(hr_drv.cuMemAllocManaged(dptr, bytesize, flags), HR_STAT_managed_bytes, bytesize,
                   "the job has managed memory");
}
