/* What the tests of virtual time share. */
#ifndef SIM_VIRTUAL_H
#define SIM_VIRTUAL_H

#include "kernels.h"
#include "sim_test.h"

#include <dlfcn.h>

/* The calling thread's virtual clock. */
static inline uint64_t now_ns(void)
{
    static uint64_t (*now)(void);
    if (!now)
        *(void **)&now = dlsym(RTLD_DEFAULT, "sg_virtual_now_ns");
    cr_assert_not_null(now);
    return now();
}

static inline void launch(CUfunction f, unsigned blocks, unsigned threads, CUstream s, void **params)
{
    OK(cuLaunchKernel(f, blocks, 1, 1, threads, 1, 1, 0, s, params, NULL));
}

static inline void launch_fill(CUfunction f, unsigned blocks, CUdeviceptr p, CUstream s)
{
    unsigned value = 3, n = blocks * 128;
    launch(f, blocks, 128, s, (void *[]){&p, &value, &n});
}

static inline CUstream stream(void)
{
    CUstream s;
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    return s;
}

static inline double seconds_between(CUevent a, CUevent b)
{
    float ms = -1;
    OK(cuEventElapsedTime_v2(&ms, a, b));
    return (double)ms * 1e-3;
}

#endif
