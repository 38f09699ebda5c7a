#include "launch.h"

#include "base/lock.h"
#include "hr_hooks.h"
#include "shim/shim.h"

#include <stdlib.h>
#include <string.h>
#include <uthash.h>

/*
 * Older ways to launch. With cuLaunch and its kin the parameters are set one by one beforehand, into a buffer that belongs to the function: a copy of it is
 * kept here. A cooperative launch on several devices is one call for several kernels.
 */

#define PARAMS_MOST 4096
#define DEVICES_MOST 64

struct legacy {
    CUfunction function;
    size_t bytes; /* as cuParamSetSize told */
    UT_hash_handle hh;
    unsigned char buffer[PARAMS_MOST];
};
static struct hr_mutex legacy_lock = HR_MUTEX_INIT(HR_RANK_REGISTRY, "parameters of functions");
static struct legacy
    *all; /* guarded by legacy_lock; an entry stays, and its content is the job's affair as with the driver */

/* NULL: no memory. */
static struct legacy *legacy_of(CUfunction function, bool make)
{
    struct legacy *l = NULL;
    hr_mutex_lock(&legacy_lock);
    HASH_FIND_PTR(all, &function, l);
    if (!l && make && (l = calloc(1, sizeof *l))) {
        l->function = function;
        HASH_ADD_PTR(all, function, l);
    }
    hr_mutex_unlock(&legacy_lock);
    return l;
}

/* The driver has accepted it. */
static CUresult set(CUfunction function, int offset, const void *value, size_t bytes)
{
    struct legacy *l = legacy_of(function, true);
    if (!l)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (offset >= 0 && bytes <= PARAMS_MOST && (size_t)offset <= PARAMS_MOST - bytes)
        memcpy(l->buffer + offset, value, bytes);
    return CUDA_SUCCESS;
}

HR_HOOK(cuParamSetSize)(CUfunction hfunc, unsigned int numbytes)
{
    HR_PASS(cuParamSetSize, hfunc, numbytes);
    HR_INSIDE();
    CUresult r = hr_drv.cuParamSetSize(hfunc, numbytes);
    struct legacy *l = r == CUDA_SUCCESS ? legacy_of(hfunc, true) : NULL;
    if (l)
        l->bytes = numbytes < PARAMS_MOST ? numbytes : PARAMS_MOST;
    return r == CUDA_SUCCESS && !l ? CUDA_ERROR_OUT_OF_MEMORY : r;
}
HR_HOOK(cuParamSeti)(CUfunction hfunc, int offset, unsigned int value)
{
    HR_PASS(cuParamSeti, hfunc, offset, value);
    HR_INSIDE();
    CUresult r = hr_drv.cuParamSeti(hfunc, offset, value);
    return r == CUDA_SUCCESS ? set(hfunc, offset, &value, sizeof value) : r;
}
HR_HOOK(cuParamSetf)(CUfunction hfunc, int offset, float value)
{
    HR_PASS(cuParamSetf, hfunc, offset, value);
    HR_INSIDE();
    CUresult r = hr_drv.cuParamSetf(hfunc, offset, value);
    return r == CUDA_SUCCESS ? set(hfunc, offset, &value, sizeof value) : r;
}
HR_HOOK(cuParamSetv)(CUfunction hfunc, int offset, void *ptr, unsigned int numbytes)
{
    HR_PASS(cuParamSetv, hfunc, offset, ptr, numbytes);
    HR_INSIDE();
    CUresult r = hr_drv.cuParamSetv(hfunc, offset, ptr, numbytes);
    return r == CUDA_SUCCESS ? set(hfunc, offset, ptr, numbytes) : r;
}

struct grid {
    int width, height;
};
static CUresult launch(CUfunction f, CUstream stream, const struct grid *grid,
                       CUresult (*real)(const struct hr_launch *l))
{
    struct legacy *l = legacy_of(f, false);
    void *packed[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, l ? l->buffer : NULL, CU_LAUNCH_PARAM_BUFFER_SIZE,
                      l ? &l->bytes : NULL, CU_LAUNCH_PARAM_END};
    return hr_launch(&(struct hr_launch){
        .function = f, .extra = l ? packed : NULL, .stream = stream, .arguments = grid, .real = real});
}

static CUresult real_launch(const struct hr_launch *l)
{
    return hr_drv.cuLaunch(l->function);
}
HR_HOOK(cuLaunch)(CUfunction f)
{
    HR_PASS(cuLaunch, f);
    return launch(f, NULL, NULL, real_launch);
}
static CUresult real_grid(const struct hr_launch *l)
{
    const struct grid *grid = l->arguments;
    return hr_drv.cuLaunchGrid(l->function, grid->width, grid->height);
}
HR_HOOK(cuLaunchGrid)(CUfunction f, int grid_width, int grid_height)
{
    HR_PASS(cuLaunchGrid, f, grid_width, grid_height);
    return launch(f, NULL, &(struct grid){grid_width, grid_height}, real_grid);
}
static CUresult real_grid_async(const struct hr_launch *l)
{
    const struct grid *grid = l->arguments;
    return hr_drv.cuLaunchGridAsync(l->function, grid->width, grid->height, l->stream);
}
HR_HOOK(cuLaunchGridAsync)(CUfunction f, int grid_width, int grid_height, CUstream hStream)
{
    HR_PASS(cuLaunchGridAsync, f, grid_width, grid_height, hStream);
    return launch(f, hStream, &(struct grid){grid_width, grid_height}, real_grid_async);
}

struct several {
    CUDA_LAUNCH_PARAMS *list;
    unsigned count, flags;
};
static CUresult real_several(const struct hr_launch *l)
{
    const struct several *several = l->arguments;
    return hr_drv.cuLaunchCooperativeKernelMultiDevice(several->list, several->count, several->flags);
}
HR_HOOK(cuLaunchCooperativeKernelMultiDevice)
(CUDA_LAUNCH_PARAMS *launchParamsList, unsigned int numDevices, unsigned int flags)
{
    HR_PASS(cuLaunchCooperativeKernelMultiDevice, launchParamsList, numDevices, flags);
    struct several several = {launchParamsList, numDevices, flags};
    if (!launchParamsList || numDevices == 0 || numDevices > DEVICES_MOST) /* the driver says what is wrong with it */
        return real_several(&(struct hr_launch){.arguments = &several});
    struct hr_launch *kernels = calloc(numDevices, sizeof *kernels);
    if (!kernels)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (unsigned i = 0; i < numDevices; i++)
        kernels[i] = (struct hr_launch){.function = launchParamsList[i].function,
                                        .params = launchParamsList[i].kernelParams,
                                        .stream = launchParamsList[i].hStream,
                                        .arguments = &several,
                                        .real = real_several,
                                        .also = i + 1 < numDevices ? &kernels[i + 1] : NULL};
    CUresult r = hr_launch(kernels);
    free(kernels);
    return r;
}
