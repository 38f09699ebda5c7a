/* Copies between GPUs in tests: what is put where, and over which links it went. */
#ifndef HR_TESTS_SHIM_TRANSFERS_H
#define HR_TESTS_SHIM_TRANSFERS_H

#include "gpus.h"

#include "residency/transfer.h"
#include "simgpu/node.h"

#define MOST 8

/* A context on each GPU of a machine. */
static inline void machine_of(const char *description, int count)
{
    machine_with(description, "", (1u << count) - 1);
}

/* What left a card by a port so far. */
static inline uint64_t left_by(int element, int port)
{
    int (*counters)(int, int, struct sg_node_counters *) =
        (int (*)(int, int, struct sg_node_counters *))driver_symbol("sg_node_counters");
    struct sg_node_counters c;
    CHECK(counters(element, port, &c) == 0);
    return c.bytes;
}

static inline void put(int gpu, CUdeviceptr p, size_t bytes, uint64_t seed)
{
    uint64_t *host = malloc(bytes);
    fill(host, bytes, seed, 0);
    OK(cuCtxSetCurrent(context[gpu]));
    OK(cuMemcpyHtoD_v2(p, host, bytes));
    OK(cuCtxSynchronize());
    free(host);
}

static inline void holds(int gpu, CUdeviceptr p, size_t bytes, uint64_t seed)
{
    uint64_t *host = malloc(bytes);
    OK(cuCtxSetCurrent(context[gpu]));
    OK(cuMemcpyDtoH_v2(host, p, bytes));
    check(host, bytes, seed, 0);
    free(host);
}

static inline CUstream stream_on(int gpu)
{
    CUstream s;
    OK(cuCtxSetCurrent(context[gpu]));
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    return s;
}

#endif
