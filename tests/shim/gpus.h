/* Scenes with several GPUs: a context on each, with functions and memory there. For tests that include it once. */
#ifndef TESTS_SHIM_GPUS_H
#define TESTS_SHIM_GPUS_H

#include "core_test.h"

#include <dlfcn.h>

#define MOST_GPUS 16

static CUcontext context[MOST_GPUS];
static CUmodule module[MOST_GPUS]; /* shim_ptx, where it was needed */

/* Contexts on GPU 0 and on these GPUs (a bit each) of a machine. */
static inline void machine_with(const char *description, const char *deny, unsigned gpus)
{
    context[0] = machine(description, deny);
    for (int g = 1; g < MOST_GPUS; g++)
        if (gpus >> g & 1)
            OK(cuCtxCreate_v2(&context[g], 0, g));
}

/* As jobs do it: every one of the first `count` GPUs has access to all others that it can reach. */
static inline void enable_all_peers(int count)
{
    for (int a = 0; a < count; a++) {
        OK(cuCtxSetCurrent(context[a]));
        for (int b = 0; b < count; b++) {
            int can = 0;
            OK(cuDeviceCanAccessPeer(&can, a, b));
            if (a != b && can)
                OK(cuCtxEnablePeerAccess(context[b], 0));
        }
    }
}

static inline CUfunction function_on(int gpu, const char *name)
{
    CUfunction f;
    OK(cuCtxSetCurrent(context[gpu]));
    if (!module[gpu])
        OK(cuModuleLoadData(&module[gpu], shim_ptx));
    OK(cuModuleGetFunction(&f, module[gpu], name));
    return f;
}

static inline CUdeviceptr allocate_on(int gpu, size_t bytes)
{
    CUdeviceptr p;
    OK(cuCtxSetCurrent(context[gpu]));
    OK(cuMemAlloc_v2(&p, bytes));
    return p;
}

/* How many chunks of the range are in that state. */
static inline size_t in_state(CUdeviceptr p, size_t bytes, enum hr_chunk_state state)
{
    size_t n = 0;
    for (CUdeviceptr at = p; at < p + bytes; at += CHUNK)
        n += atomic_load(&hr_space_chunk(at)->state) == state;
    return n;
}

/* What the simulated driver exports beside CUDA. */
static inline void *driver_symbol(const char *name)
{
    void *handle = dlopen(hr_driver_path(), RTLD_LAZY | RTLD_NOLOAD);
    void *symbol = handle ? dlsym(handle, name) : NULL;
    CHECK(symbol != NULL, "%s is not there", name);
    return symbol;
}

/* The calling thread's virtual clock. */
static inline uint64_t virtual_ns(void)
{
    static uint64_t (*_Atomic now)(void); /* threads may ask */
    if (!atomic_load(&now))
        atomic_store(&now, (uint64_t(*)(void))driver_symbol("sg_virtual_now_ns"));
    return atomic_load(&now)();
}

#endif
