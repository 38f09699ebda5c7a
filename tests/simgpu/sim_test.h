/* What the tests of simgpu share. Every test runs in a process of its own, so each sets its machine and calls cuInit. */
#ifndef SIM_TEST_H
#define SIM_TEST_H

#include <criterion/criterion.h>
#include <cuda.h>

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MIB (UINT64_C(1) << 20)
#define PAGE (2 * MIB)

#define GIVES(code, call)                                                                                              \
    do {                                                                                                               \
        CUresult got_ = (call);                                                                                        \
        cr_assert(got_ == (code), "%s:%d: %s gave %d, not " #code, __FILE__, __LINE__, #call, (int)got_);              \
    } while (0)
#define OK(call) GIVES(CUDA_SUCCESS, call)

/* cuInit on a machine given as in SIMGPU. */
static inline void machine(const char *description)
{
    setenv("SIMGPU", description, 1);
    OK(cuInit(0));
}

/* The same, with a context on device 0. */
static inline CUcontext machine_with_context(const char *description)
{
    CUcontext context;
    machine(description);
    OK(cuCtxCreate_v2(&context, 0, 0));
    return context;
}

static inline CUmemAllocationProp on_device(int device)
{
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
}

static inline CUmemAllocationProp on_host_node(int node)
{
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_HOST_NUMA, .id = node}};
}

static inline CUmemAccessDesc access_of(int device)
{
    return (CUmemAccessDesc){.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                             .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
}

/* `count` chunks, each in a mapping of its own, at a new reservation; accessible to device 0. */
static inline CUdeviceptr mapped_chunks(unsigned count)
{
    CUdeviceptr va;
    CUmemAllocationProp prop = on_device(0);
    CUmemAccessDesc access = access_of(0);
    OK(cuMemAddressReserve(&va, count * PAGE, 0, 0, 0));
    for (unsigned i = 0; i < count; i++) {
        CUmemGenericAllocationHandle handle;
        OK(cuMemCreate(&handle, PAGE, &prop, 0));
        OK(cuMemMap(va + i * PAGE, PAGE, 0, handle, 0));
        OK(cuMemRelease(handle));
    }
    OK(cuMemSetAccess(va, count * PAGE, &access, 1));
    return va;
}

static inline size_t free_vram(void)
{
    size_t free_bytes, total;
    OK(cuMemGetInfo_v2(&free_bytes, &total));
    return free_bytes;
}

/* A gate that host functions wait at: holds a stream until it is opened. */
struct gate {
    pthread_mutex_t lock;
    pthread_cond_t cv;
    int is_open, arrived;
};
#define GATE_INIT                                                                                                      \
    {                                                                                                                  \
        PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0                                                      \
    }

static inline void gate_wait(void *arg)
{
    struct gate *g = arg;
    pthread_mutex_lock(&g->lock);
    g->arrived++;
    pthread_cond_broadcast(&g->cv);
    while (!g->is_open)
        pthread_cond_wait(&g->cv, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

static inline void gate_open(struct gate *g)
{
    pthread_mutex_lock(&g->lock);
    g->is_open = 1;
    pthread_cond_broadcast(&g->cv);
    pthread_mutex_unlock(&g->lock);
}

static inline void gate_await_arrival(struct gate *g)
{
    pthread_mutex_lock(&g->lock);
    while (!g->arrived)
        pthread_cond_wait(&g->cv, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

#endif
