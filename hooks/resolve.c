/*
 * cuGetProcAddress: the real one is asked first, and only what it has is ever handed out. Programs keep the addresses for good, so
 * the hooks are handed out before cuInit too; each hook decides for itself at each call whether headroom takes part.
 */
#include "shim/resolver.h"

#include "base/config.h"
#include "hr_hooks.h"

/* Ask the real driver by the newest form of cuGetProcAddress that it has. */
static CUresult ask_driver(const char *symbol, void **pfn, int cuda_version, cuuint64_t flags,
                           CUdriverProcAddressQueryResult *status_out)
{
    *status_out = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    if (HR_HAS(cuGetProcAddress_v2))
        return hr_drv.cuGetProcAddress_v2(symbol, pfn, cuda_version, flags, status_out);
    if (!hr_driver_load() || symbol == NULL || pfn == NULL)
        return hr_drv.cuGetProcAddress(symbol, pfn, cuda_version, flags);
    if (!HR_HAS(cuGetProcAddress)) {
        if (cuda_version > hr_driver_version())
            return CUDA_ERROR_INVALID_VALUE; /* as the real one says it */
        *status_out = hr_resolver_find(symbol, cuda_version, flags, pfn);
        return CUDA_SUCCESS;
    }
    CUresult r = hr_drv.cuGetProcAddress(symbol, pfn, cuda_version, flags);
    if (r == CUDA_ERROR_NOT_FOUND) { /* how the form without a status says it */
        *pfn = NULL;
        if (hr_resolver_knows(symbol))
            *status_out = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
        return CUDA_SUCCESS;
    }
    if (r == CUDA_SUCCESS && *pfn != NULL)
        *status_out = CU_GET_PROC_ADDRESS_SUCCESS;
    return r;
}

static CUresult look_up(const char *symbol, void **pfn, int cuda_version, cuuint64_t flags, const void *caller,
                        CUdriverProcAddressQueryResult *status_out)
{
    HR_ENTER();
    CUresult r = ask_driver(symbol, pfn, cuda_version, flags, status_out);
    bool ours = r == CUDA_SUCCESS && symbol != NULL && pfn != NULL && *pfn != NULL && hr_depth == 1 &&
                !hr_driver_holds(caller) && !hr_config()->disable;
    if (ours && hr_resolver_withholds(symbol, cuda_version, flags, *pfn)) {
        *status_out = hr_resolver_knows(symbol) ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                                : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
        *pfn = NULL;
    } else if (ours) {
        *pfn = hr_resolver_map(symbol, cuda_version, flags, *pfn);
    }
    HR_LEAVE();
    return r;
}

HR_HOOK(cuGetProcAddress)(const char *symbol, void **pfn, int cuda_version, cuuint64_t flags)
{
    CUdriverProcAddressQueryResult status;
    CUresult r = look_up(symbol, pfn, cuda_version, flags, __builtin_return_address(0), &status);
    return r == CUDA_SUCCESS && status != CU_GET_PROC_ADDRESS_SUCCESS ? CUDA_ERROR_NOT_FOUND : r;
}

HR_HOOK(cuGetProcAddress_v2)
(const char *symbol, void **pfn, int cuda_version, cuuint64_t flags, CUdriverProcAddressQueryResult *status_out)
{
    CUdriverProcAddressQueryResult status;
    CUresult r = look_up(symbol, pfn, cuda_version, flags, __builtin_return_address(0), &status);
    if (status_out != NULL)
        *status_out = status;
    return r;
}
