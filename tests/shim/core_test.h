/*
 * White-box tests of the shim: the test program contains the library's own objects, so the driver API it calls is headroom, and
 * the rooms behind it can be asked directly. simgpu is the driver (HEADROOM_DRIVER). Each test is a process of its own and
 * sets its machine before cuInit.
 */
#ifndef CORE_TEST_H
#define CORE_TEST_H

#include <criterion/criterion.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "driver/driver.h"
#include "residency/access.h"
#include "residency/move.h"
#include "space/space.h"
#include "stats/stats.h"
#include "tier/tier.h"

#define MIB ((size_t)1 << 20)
#define CHUNK (2 * MIB)

#define GIVES(code, call)                                                                                              \
    do {                                                                                                               \
        CUresult got_ = (call);                                                                                        \
        cr_assert(got_ == (code), "%s:%d: %s gave %d, not " #code, __FILE__, __LINE__, #call, (int)got_);              \
    } while (0)
#define OK(call) GIVES(CUDA_SUCCESS, call)

/* A context on GPU 0 of a machine given as in SIMGPU; deny as in SIMGPU_DENY ("" = nothing). */
static inline CUcontext machine(const char *description, const char *deny)
{
    CUcontext context;
    setenv("SIMGPU", description, 1);
    if (deny[0])
        setenv("SIMGPU_DENY", deny, 1);
    OK(cuInit(0));
    OK(cuCtxCreate_v2(&context, 0, 0));
    return context;
}

/* A pattern that differs in every word of every buffer. */
static inline uint64_t pattern(uint64_t seed, uint64_t index)
{
    uint64_t x = (seed << 40) ^ index;
    x ^= x >> 31;
    x *= UINT64_C(0x9e3779b97f4a7c15);
    return x ^ (x >> 29);
}
static inline void fill(void *host, size_t bytes, uint64_t seed, uint64_t first_index)
{
    for (size_t i = 0; i < bytes / 8; i++)
        ((uint64_t *)host)[i] = pattern(seed, first_index + i);
}
static inline void check(const void *host, size_t bytes, uint64_t seed, uint64_t first_index)
{
    for (size_t i = 0; i < bytes / 8; i++)
        if (((const uint64_t *)host)[i] != pattern(seed, first_index + i))
            cr_assert_fail("word %zu of buffer %llu is wrong", (size_t)first_index + i, (unsigned long long)seed);
}

#endif
