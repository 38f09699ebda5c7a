/*
 * The model-based fuzzer of the shim. Workers submit random operations on random buffers to several streams each; a host model
 * applies the same operation to a byte-exact copy at the moment of submission; another thread moves what they use out of VRAM and
 * back. Operations on one buffer are ordered by the stream or by events, so its model is exact whatever the machine does.
 */
#ifndef FUZZ_H
#define FUZZ_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "driver/driver.h"

#define FUZZ_SHARED 6
#define FUZZ_OWN 10
#define FUZZ_WORKERS_MOST 8
#define FUZZ_BUFFERS (FUZZ_SHARED + FUZZ_OWN * FUZZ_WORKERS_MOST) /* there are no more GPUs than workers */
#define FUZZ_STREAMS 4
#define FUZZ_GPUS_MOST 8
#define FUZZ_STAGING 4
#define FUZZ_STAGING_BYTES ((size_t)256 << 10)

/* In which way the job got a buffer. */
enum fuzz_kind { FUZZ_PLAIN, FUZZ_POOLED, FUZZ_MAPPED };

struct fuzz_buffer {
    pthread_mutex_t lock; /* held from the first to the last step of an operation's submission */
    unsigned index;
    _Atomic(CUdeviceptr) told_address; /* what the mover reads, without the lock; 0 = nothing is there */
    _Atomic(size_t) told_bytes;
    CUdeviceptr address;
    size_t bytes;
    enum fuzz_kind kind;
    CUmemGenericAllocationHandle handle; /* of what the job maps itself */
    uint8_t *model;
    CUevent last[FUZZ_GPUS_MOST]; /* behind the last operation, if that was of this GPU */
    int last_gpu;                 /* -1 = there was none */
};

struct fuzz_worker {
    unsigned index;
    unsigned gpu; /* whose context is current */
    uint64_t random;
    CUstream stream[FUZZ_GPUS_MOST][FUZZ_STREAMS];
    struct {
        uint8_t *host; /* pinned: an asynchronous copy reads it late */
        CUevent done[FUZZ_GPUS_MOST];
        int used; /* by this GPU; -1 = not */
    } staging[FUZZ_STAGING];
};

struct fuzz {
    uint64_t seed;
    unsigned workers, gpus;
    unsigned sets;     /* of buffers, one a worker or, if there are fewer workers, one a GPU */
    size_t most_bytes; /* of a buffer */
    bool host_mapped;  /* whether kernels can reach host memory */
    CUcontext context[FUZZ_GPUS_MOST];
    struct {
        CUfunction affine, mix, add_table, slow_affine;
    } code[FUZZ_GPUS_MOST];
    struct fuzz_buffer buffer[FUZZ_BUFFERS];
    _Atomic(unsigned) provoked; /* 1 + the buffer that the mover should take next; 0 = any */
    _Atomic(bool) stop;
    _Atomic(uint64_t) operations, evictions, restores, verified_bytes, ooms;
};
extern struct fuzz fuzz;

/* xorshift; `state` must not be 0. */
uint64_t fuzz_random(uint64_t *state);
/* Says what is wrong, with the seed and the last operations (on `buffer`, if not NULL), and ends the process with status 1. */
_Noreturn void fuzz_fail(const struct fuzz_buffer *buffer, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
#define FUZZ_OK(call)                                                                                                  \
    do {                                                                                                               \
        CUresult got_ = (call);                                                                                        \
        if (got_ != CUDA_SUCCESS)                                                                                      \
            fuzz_fail(NULL, "%s:%d: %s gave %d", __FILE__, __LINE__, #call, (int)got_);                                \
    } while (0)

/* Remembers an operation for fuzz_fail. `a`, `b` are buffers or -1. */
void fuzz_note(unsigned worker, const char *what, int a, int b, size_t offset, size_t bytes, uint64_t detail);

/* One random operation; the worker's own thread, with the context current. */
void fuzz_operate(struct fuzz_worker *w);
/* Allocates and initialises a buffer; its lock is held or not needed yet. false = out of memory (a size too large). */
bool fuzz_allocate(struct fuzz_worker *w, struct fuzz_buffer *b, size_t bytes);
/* Its memory: taken in any of the ways (false = out of memory), and given back as that way wants it. fuzz_groups.c. */
bool fuzz_memory_take(struct fuzz_worker *w, struct fuzz_buffer *b, size_t bytes);
void fuzz_memory_give(struct fuzz_worker *w, struct fuzz_buffer *b);
/* Operations: copies in one batch; work that is captured and replayed. */
void fuzz_batch(struct fuzz_worker *w);
void fuzz_replay(struct fuzz_worker *w);
/* Compares all of a buffer with its model. */
void fuzz_verify(struct fuzz_worker *w, struct fuzz_buffer *b, size_t offset, size_t bytes);
void fuzz_worker_start(struct fuzz_worker *w, unsigned index);
/* Makes the GPU's context current, for a worker or for any thread (NULL). */
void fuzz_go_to(struct fuzz_worker *w, unsigned gpu);

#endif
