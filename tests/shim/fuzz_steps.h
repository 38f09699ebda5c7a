/* What operations of the fuzzer are made of. */
#ifndef FUZZ_STEPS_H
#define FUZZ_STEPS_H

#include "fuzz.h"

#include <string.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)

static inline uint64_t below(struct fuzz_worker *w, uint64_t n)
{
    return fuzz_random(&w->random) % n;
}

/* The worker's streams: two created ones (one blocking), its per-thread default stream, the legacy stream. */
static inline CUstream any_stream(struct fuzz_worker *w)
{
    return w->stream[w->gpu][below(w, FUZZ_STREAMS)];
}

static inline struct fuzz_buffer *any_buffer(struct fuzz_worker *w)
{
    unsigned set = fuzz.workers < fuzz.gpus ? w->gpu : w->index;
    unsigned i = below(w, 20) < (fuzz.gpus > 1 ? 1 : 6) ? (unsigned)below(w, FUZZ_SHARED)
                                                        : FUZZ_SHARED + set * FUZZ_OWN + (unsigned)below(w, FUZZ_OWN);
    return &fuzz.buffer[i];
}

static inline void lock_all(struct fuzz_buffer **b, unsigned n)
{
    for (unsigned i = 1; i < n; i++) /* in index order, so that no two workers wait for each other */
        for (unsigned k = i; k > 0 && b[k - 1]->index > b[k]->index; k--) {
            struct fuzz_buffer *t = b[k];
            b[k] = b[k - 1];
            b[k - 1] = t;
        }
    for (unsigned i = 0; i < n; i++)
        pthread_mutex_lock(&b[i]->lock);
}

static inline void unlock_all(struct fuzz_buffer **b, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        pthread_mutex_unlock(&b[i]->lock);
}

/* Picks n different buffers that are allocated, locked. */
static inline void take_buffers(struct fuzz_worker *w, struct fuzz_buffer **b, unsigned n)
{
    for (;;) {
        for (unsigned i = 0; i < n; i++) {
            b[i] = any_buffer(w);
            for (unsigned k = 0; k < i; k++)
                if (b[k] == b[i]) {
                    i--;
                    break;
                }
        }
        lock_all(b, n);
        bool all = true;
        for (unsigned i = 0; i < n; i++)
            all &= b[i]->address != 0;
        if (all)
            return;
        unlock_all(b, n);
    }
}

static inline void before(struct fuzz_buffer *b, CUstream s)
{
    if (b->last_gpu >= 0)
        FUZZ_OK(cuStreamWaitEvent(s, b->last[b->last_gpu], 0));
}

static inline void after(const struct fuzz_worker *w, struct fuzz_buffer *b, CUstream s)
{
    FUZZ_OK(cuEventRecord(b->last[w->gpu], s));
    b->last_gpu = (int)w->gpu;
}

/* A random sub-range in units of `unit` bytes, at most `most` bytes. */
static inline void any_range(struct fuzz_worker *w, size_t total, size_t unit, size_t most, size_t *offset_out,
                             size_t *bytes_out)
{
    size_t units = total / unit, n = most / unit < units ? most / unit : units;
    size_t take = 1 + below(w, n);
    if (below(w, 4) == 0)
        take = n;
    *bytes_out = take * unit;
    *offset_out = below(w, units - take + 1) * unit;
}

static inline void set_model(struct fuzz_buffer *b, size_t offset, size_t bytes, unsigned element, uint32_t value)
{
    if (element == 1)
        memset(b->model + offset, (int)value, bytes);
    else
        for (size_t i = 0; i < bytes; i += element)
            memcpy(b->model + offset + i, &value, element);
}

/* On several GPUs it is the number of operations that matters, not their size. */
static inline size_t slower(void)
{
    return fuzz.gpus > 1 ? 8 : 1;
}

static inline void launch(CUfunction f, unsigned blocks, unsigned threads, CUstream s, void **params)
{
    FUZZ_OK(cuLaunchKernel(f, blocks, 1, 1, threads, 1, 1, 0, s, params, NULL));
}

static inline uint32_t word(const struct fuzz_buffer *b, size_t offset)
{
    uint32_t v;
    memcpy(&v, b->model + offset, 4);
    return v;
}

#endif
