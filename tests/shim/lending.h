/* A job on GPU 0 that needs more than its VRAM: buffers that hold patterns, and what was added to them. For tests that include it once. */
#ifndef TESTS_SHIM_LENDING_H
#define TESTS_SHIM_LENDING_H

#include "gpus.h"

#include "residency/context.h"
#include "residency/gpu.h"
#include "residency/lend.h"
#include "residency/quarantine.h"

#define BUFFERS_MOST 96
static size_t buffer_bytes = 4 * MIB;
#define BUFFER buffer_bytes

/* One call of the driver fails: the job's own call may, too, once, and then nothing of it was done. */
static bool one_may_fail;
#define OK_AFTER_ALL(call)                                                                                             \
    do {                                                                                                               \
        CUresult first_ = (call);                                                                                      \
        if (first_ != CUDA_SUCCESS && one_may_fail) {                                                                  \
            one_may_fail = false;                                                                                      \
            first_ = (call);                                                                                           \
        }                                                                                                              \
        CHECK(first_ == CUDA_SUCCESS, "%s gave %d", #call, (int)first_);                                               \
    } while (0)

/* Adds a to the first word of every chunk, on a GPU; not waited for. */
static inline void add(int gpu, CUdeviceptr y, size_t bytes, uint32_t a, CUstream s)
{
    uint64_t stride = CHUNK / 4;
    uint32_t n = (uint32_t)(bytes / CHUNK);
    CUfunction f = function_on(gpu, "stride_add");
    OK_AFTER_ALL(launch(f, 1, 32, s, (void *[]){&y, &stride, &n, &a}));
}

static inline void put(int gpu, CUdeviceptr p, size_t bytes, uint64_t seed)
{
    uint64_t *host = malloc(bytes);
    fill(host, bytes, seed, 0);
    OK(cuCtxSetCurrent(context[gpu]));
    OK_AFTER_ALL(cuMemcpyHtoD_v2(p, host, bytes));
    OK(cuCtxSynchronize());
    free(host);
}

/* Holds its pattern, but for what was added to the first word of each chunk. */
static inline void holds(int gpu, CUdeviceptr p, size_t bytes, uint64_t seed, uint32_t added)
{
    uint64_t *host = malloc(bytes);
    OK(cuCtxSetCurrent(context[gpu]));
    OK(cuMemcpyDtoH_v2(host, p, bytes));
    for (size_t at = 0; at < bytes; at += CHUNK) {
        uint32_t *word = (uint32_t *)((char *)host + at);
        *word -= added;
    }
    check(host, bytes, seed, 0);
    free(host);
}

static struct {
    CUdeviceptr at[BUFFERS_MOST];
    unsigned count;
    uint32_t added;
} work;

/* `times` what the VRAM of GPU 0 has room for, filled and used once in turn. */
static inline void fill_gpu_0(double times)
{
    size_t limit = hr_tier_vram_limit(0) * CHUNK;
    work.count = (unsigned)(times * (double)limit / (double)BUFFER);
    CHECK(work.count <= BUFFERS_MOST);
    for (unsigned i = 0; i < work.count; i++) {
        work.at[i] = allocate_on(0, BUFFER);
        put(0, work.at[i], BUFFER, i);
    }
}

static inline void use_all(void)
{
    for (unsigned i = 0; i < work.count; i++) {
        add(0, work.at[i], BUFFER, 1, NULL);
        OK(cuCtxSynchronize());
    }
    work.added++;
}

static inline size_t of_all(enum hr_chunk_state state)
{
    size_t n = 0;
    for (unsigned i = 0; i < work.count; i++)
        n += in_state(work.at[i], BUFFER, state);
    return n;
}

static inline void all_hold(void)
{
    for (unsigned i = 0; i < work.count; i++)
        holds(0, work.at[i], BUFFER, i, work.added);
}

/* Everything is right, was given back, and was locked in order. */
static inline void done(void)
{
    all_hold();
    OK(cuCtxSetCurrent(context[0]));
    for (unsigned i = 0; i < work.count; i++)
        OK(cuMemFree_v2(work.at[i]));
    OK(cuCtxSynchronize());
    CHECK(hr_quiet_wait(HR_ALL_GPUS, hr_clock_ns() + UINT64_C(5000000000)));
    hr_quarantine_release(hr_thread_self());
    for (unsigned g = 0; g < hr_space.gpu_count; g++)
        CHECK(hr_tier_peer.in_use_chunks(g) == 0, "GPU %u still lends %zu chunks", g, hr_tier_peer.in_use_chunks(g));
    CHECK(hr_tier_vram.in_use_chunks(0) == 0 && hr_tier_host.in_use_chunks(0) == 0, "memory stays in use");
    CHECK(hr_lock_violations() == 0);
}

static inline char *safely(void (*body)(void))
{
    char *report = apart(body);
    was_safe(report);
    return report;
}

#endif
