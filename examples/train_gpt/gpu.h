/*
 * The GPU as train_gpt uses it: buffers, kernels, and streams that need no thought.
 *
 * A launch or copy names the buffers that it reads and writes, in program order. The work is spread over the streams, and
 * wherever two pieces of work on different streams touch the same buffer and one of them writes, an event makes the later
 * one wait. So any number of streams computes the same results as one. Several GPUs exchange buffers by copies, which have a
 * stream of their own on the GPU that receives them, and wait and are waited for in the same way.
 *
 * Any CUDA error ends the program with one line on stderr and exit status 1. One thread only.
 */
#ifndef TRAIN_GPT_GPU_H
#define TRAIN_GPT_GPU_H

#include "model.h"
#include "options.h"

#include <cuda.h>

/* clang-format off */
#define KERNELS(X)                                \
    X(embed_forward)                              \
    X(embed_backward_tokens)                      \
    X(embed_backward_positions)                   \
    X(layernorm_forward)                          \
    X(layernorm_backward)                         \
    X(layernorm_backward_weights)                 \
    X(column_sum)                                 \
    X(matmul_forward)                             \
    X(matmul_backward_input)                      \
    X(matmul_backward_weight)                     \
    X(attention_dot)                              \
    X(attention_apply)                            \
    X(attention_apply_turned)                     \
    X(softmax_causal)                             \
    X(softmax_backward)                           \
    X(add)                                        \
    X(gelu_forward)                               \
    X(gelu_backward)                              \
    X(cross_entropy)                              \
    X(loss_mean)                                  \
    X(adamw)
/* clang-format on */

#define KERNEL_ENUM(name) KERNEL_##name,
enum gpu_kernel { KERNELS(KERNEL_ENUM) KERNEL_COUNT };

#define GPU_STREAMS (MAX_STREAMS + 1) /* the last one in use is that of copies from other GPUs */

struct gpu_buffer {
    size_t bytes;
    CUdeviceptr address;
    int writer;                 /* stream of the last write, -1 = none since the last full synchronisation */
    uint64_t written;           /* that stream's count of work when it was issued */
    uint64_t read[GPU_STREAMS]; /* per stream: the count at its last read, 0 = none */
    uint64_t peers_read;        /* bit n: the nth GPU copied from it since the last write */
};

struct gpu_stream {
    CUstream stream;
    CUevent event;
    uint64_t issued; /* pieces of work so far */
    uint64_t kernels;
    uint64_t waited_for[GPU_STREAMS]; /* per other stream: everything up to this count is waited for */
};

struct gpu {
    CUdevice device;
    CUcontext context;
    CUmodule module;
    CUfunction functions[KERNEL_COUNT];
    int stream_count; /* without that of copies */
    struct gpu_stream streams[GPU_STREAMS];
    struct gpu *peers; /* all of the job's, this one among them; NULL = it is the only one */
    int index;         /* among them */
    int main_stream;   /* where the main chain of work goes at present */
    CUdeviceptr arena; /* with one allocation for everything */
    size_t arena_used_bytes, arena_bytes;
};

/* Device, context, kernels (ptx ends with a 0; ptx_name is for messages), streams. */
void gpu_init(struct gpu *gpu, int device, const char *ptx, const char *ptx_name, int stream_count);
/* Several GPUs that were initialised: they may copy from each other, directly where the hardware can. */
void gpu_connect(struct gpu *gpus, int count);
/* The arena: one allocation with room for every reserved buffer, which later gpu_buffer_init calls divide. Without it each
 * buffer is an allocation. */
void gpu_arena_reserve(struct gpu *gpu, size_t buffer_bytes);
void gpu_arena_init(struct gpu *gpu);
void gpu_finish(struct gpu *gpu);

#define GPU_ALIGN_BYTES 256 /* of a buffer in the arena, as cuMemAlloc aligns */
void gpu_buffer_init(struct gpu *gpu, struct gpu_buffer *buffer, size_t bytes);
void gpu_buffer_finish(struct gpu *gpu, struct gpu_buffer *buffer);

/* Host copies. `host` must stay as it is until the stream has come that far. */
void gpu_upload(struct gpu *gpu, struct gpu_buffer *buffer, const void *host);
void gpu_clear(struct gpu *gpu, struct gpu_buffer *buffer);
void gpu_synchronise(struct gpu *gpu);
/* Waits for the work that the buffer depends on, and copies it out. */
void gpu_download(struct gpu *gpu, struct gpu_buffer *buffer, void *host_out);

/* A copy of a buffer that another GPU holds; both have the same size. */
void gpu_copy(struct gpu *gpu, struct gpu_buffer *to, struct gpu *from_gpu, struct gpu_buffer *from);

/* What a kernel takes. Buffers come with what the kernel does to them. */
struct gpu_argument {
    enum { ARG_READ, ARG_WRITE, ARG_UPDATE, ARG_NULL, ARG_INT, ARG_FLOAT } kind;
    struct gpu_buffer *buffer;
    size_t offset; /* elements of 4 bytes into the buffer */
    int i;
    float f;
};
#define READ(b)                                                                                                        \
    {                                                                                                                  \
        .kind = ARG_READ, .buffer = (b)                                                                                \
    }
#define READ_AT(b, elements)                                                                                           \
    {                                                                                                                  \
        .kind = ARG_READ, .buffer = (b), .offset = (elements)                                                          \
    }
#define WRITE(b)                                                                                                       \
    {                                                                                                                  \
        .kind = ARG_WRITE, .buffer = (b)                                                                               \
    }
#define WRITE_AT(b, elements)                                                                                          \
    {                                                                                                                  \
        .kind = ARG_WRITE, .buffer = (b), .offset = (elements)                                                         \
    }
#define UPDATE(b)                                                                                                      \
    {                                                                                                                  \
        .kind = ARG_UPDATE, .buffer = (b)                                                                              \
    }
#define NOTHING                                                                                                        \
    {                                                                                                                  \
        .kind = ARG_NULL                                                                                               \
    }
#define INT(x)                                                                                                         \
    {                                                                                                                  \
        .kind = ARG_INT, .i = (x)                                                                                      \
    }
#define FLOAT(x)                                                                                                       \
    {                                                                                                                  \
        .kind = ARG_FLOAT, .f = (x)                                                                                    \
    }

struct gpu_size {
    int x, y, z;
};

/* MAIN: one step of the chain that everything else hangs on. SIDE: work whose result is needed much later. */
enum gpu_lane { MAIN, SIDE };

#define GPU_MAX_ARGUMENTS 16
void gpu_launch(struct gpu *gpu, enum gpu_kernel kernel, enum gpu_lane lane, struct gpu_size grid,
                struct gpu_size block, const struct gpu_argument *arguments, int argument_count);
#define LAUNCH(gpu, name, lane, grid, block, ...)                                                                      \
    gpu_launch(gpu, KERNEL_##name, lane, grid, block, (const struct gpu_argument[]){__VA_ARGS__},                      \
               (int)(sizeof((const struct gpu_argument[]){__VA_ARGS__}) / sizeof(struct gpu_argument)))

/* The main chain goes on, on the stream that has had the fewest kernels so far. */
void gpu_next_section(struct gpu *gpu);

#endif
