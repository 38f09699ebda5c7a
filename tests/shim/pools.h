/* Stream-ordered memory in tests: pools and their amounts, and streams that are held up. */
#ifndef HR_TESTS_SHIM_POOLS_H
#define HR_TESTS_SHIM_POOLS_H

#include "gpus.h"
#include "native.h"

static inline CUstream new_stream(void)
{
    CUstream s;
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    return s;
}

static inline CUmemoryPool default_pool(int gpu)
{
    CUmemoryPool pool;
    OK(cuDeviceGetDefaultMemPool(&pool, gpu));
    return pool;
}

static inline uint64_t amount(CUmemoryPool pool, CUmemPool_attribute attribute)
{
    cuuint64_t value = 12345;
    OK(cuMemPoolGetAttribute(pool, attribute, &value));
    return value;
}
#define USED CU_MEMPOOL_ATTR_USED_MEM_CURRENT
#define USED_HIGH CU_MEMPOOL_ATTR_USED_MEM_HIGH
#define RESERVED CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
#define RESERVED_HIGH CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH

static inline void set_amount(CUmemoryPool pool, CUmemPool_attribute attribute, cuuint64_t value)
{
    OK(cuMemPoolSetAttribute(pool, attribute, &value));
}

static inline CUmemPoolProps props_on(int device)
{
    return (CUmemPoolProps){.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
}

static inline CUmemoryPool new_pool(size_t max_bytes)
{
    CUmemoryPool pool;
    CUmemPoolProps props = props_on(0);
    props.maxSize = max_bytes;
    OK(cuMemPoolCreate(&pool, &props));
    return pool;
}

/* Holds a stream up until it is opened. */
struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool open;
};
#define GATE                                                                                                           \
    {                                                                                                                  \
        .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER                                         \
    }
static inline void wait_at(void *arg)
{
    struct gate *gate = arg;
    pthread_mutex_lock(&gate->lock);
    while (!gate->open)
        pthread_cond_wait(&gate->changed, &gate->lock);
    pthread_mutex_unlock(&gate->lock);
}
static inline void open_gate(struct gate *gate)
{
    pthread_mutex_lock(&gate->lock);
    gate->open = true;
    pthread_cond_broadcast(&gate->changed);
    pthread_mutex_unlock(&gate->lock);
}

static inline uint32_t word_at(CUdeviceptr p)
{
    uint32_t value = 0;
    OK(cuMemcpyDtoH_v2(&value, p, sizeof value));
    return value;
}

static inline void start(void)
{
    machine("h200,vram=64M,host=512M", "");
}

static inline void start_with_two(void)
{
    machine_with("hgx-h100,vram=64M,gpus=2,host=512M", "", 2);
}

#endif
