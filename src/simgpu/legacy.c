/*
 * The launch functions from before cuLaunchKernel: block shape, shared memory and parameters are set on the function first.
 * A launch by any other function forgets what was set, as documented; what is undefined then is an error here.
 */
#include "simgpu/launch.h"

#include <stdlib.h>
#include <string.h>

struct sg_legacy {
    unsigned block[3]; /* zeros: not set */
    unsigned shared_bytes;
    size_t params_bytes; /* as cuParamSetSize tells */
    uint8_t params[4096];
};

void sg_legacy_free(struct sg_function *f)
{
    free(f->legacy);
    f->legacy = NULL;
}

/* The function's state, made if there is none. On failure sg.lock is not held. */
static CUresult enter(const char *api, CUfunction handle, struct sg_legacy **legacy_out)
{
    struct sg_function *f;
    CUresult r = sg_enter_function(api, handle, &f);
    if (r)
        return r;
    if (!f->legacy)
        f->legacy = calloc(1, sizeof *f->legacy);
    if (!f->legacy)
        return sg_leave(CUDA_ERROR_OUT_OF_MEMORY);
    *legacy_out = f->legacy;
    return CUDA_SUCCESS;
}

CUresult cuFuncSetBlockShape(CUfunction f, int x, int y, int z)
{
    struct sg_legacy *state;
    CUresult r = enter("cuFuncSetBlockShape", f, &state);
    if (r)
        return r;
    if (x < 1 || y < 1 || z < 1 || x > 1024 || y > 1024 || z > 64 || (int64_t)x * y * z > 1024)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    state->block[0] = (unsigned)x;
    state->block[1] = (unsigned)y;
    state->block[2] = (unsigned)z;
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuFuncSetSharedSize(CUfunction f, unsigned int bytes)
{
    struct sg_legacy *state;
    CUresult r = enter("cuFuncSetSharedSize", f, &state);
    if (r)
        return r;
    if (bytes > (unsigned)sg.config.model->shared_optin_bytes)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    state->shared_bytes = bytes;
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuParamSetSize(CUfunction f, unsigned int bytes)
{
    struct sg_legacy *state;
    CUresult r = enter("cuParamSetSize", f, &state);
    if (r)
        return r;
    if (bytes > sizeof state->params)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    state->params_bytes = bytes;
    return sg_leave(CUDA_SUCCESS);
}

static CUresult set_param(const char *api, CUfunction f, int offset, const void *value, size_t bytes)
{
    struct sg_legacy *state;
    CUresult r = enter(api, f, &state);
    if (r)
        return r;
    if (offset < 0 || !value || bytes > sizeof state->params || (size_t)offset > sizeof state->params - bytes)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    memcpy(state->params + offset, value, bytes);
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuParamSeti(CUfunction f, int offset, unsigned int value)
{
    return set_param("cuParamSeti", f, offset, &value, sizeof value);
}

CUresult cuParamSetf(CUfunction f, int offset, float value)
{
    return set_param("cuParamSetf", f, offset, &value, sizeof value);
}

CUresult cuParamSetv(CUfunction f, int offset, void *ptr, unsigned int bytes)
{
    return set_param("cuParamSetv", f, offset, ptr, bytes);
}

static CUresult launch(const char *api, CUfunction handle, int width, int height, CUstream stream)
{
    struct sg_legacy *found;
    CUresult r = enter(api, handle, &found);
    if (r)
        return r;
    struct sg_legacy state = *found;
    pthread_mutex_unlock(&sg.lock);
    if (!state.block[0] || width < 1 || height < 1)
        return CUDA_ERROR_INVALID_VALUE;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, state.params, CU_LAUNCH_PARAM_BUFFER_SIZE, &state.params_bytes,
                     CU_LAUNCH_PARAM_END};
    struct sg_launch l = {.function = handle,
                          .grid = {(unsigned)width, (unsigned)height, 1},
                          .block = {state.block[0], state.block[1], state.block[2]},
                          .shared_bytes = state.shared_bytes,
                          .stream = stream,
                          .extra = extra,
                          .keeps_legacy_state = true};
    return sg_launch("the legacy launch", &l, false);
}

CUresult cuLaunch(CUfunction f)
{
    return launch("cuLaunch", f, 1, 1, NULL);
}

CUresult cuLaunchGrid(CUfunction f, int width, int height)
{
    return launch("cuLaunchGrid", f, width, height, NULL);
}

CUresult cuLaunchGridAsync(CUfunction f, int width, int height, CUstream stream)
{
    return launch("cuLaunchGridAsync", f, width, height, stream);
}
