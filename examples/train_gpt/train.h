/* One training step on the GPU: forward pass, backward pass, AdamW. */
#ifndef TRAIN_GPT_TRAIN_H
#define TRAIN_GPT_TRAIN_H

#include "gpu.h"
#include "model.h"

struct trainer {
    struct gpu *gpu;
    struct shape shape;
    struct gpu_buffer *weights, *gradients, *means, *squares; /* one each for every parameter */
    struct gpu_buffer *layers;                                /* LAYER_TENSORS for every layer */
    struct gpu_buffer shared[SHARED_TENSORS];
    struct gpu_buffer layer_gradients[GRADIENT_SETS][GRADIENT_TENSORS];
};

/* Allocates everything (the only place where the job runs out of memory), then sets the initial weights. Exits on errors. */
void trainer_init(struct trainer *t, struct gpu *gpu, const struct shape *shape, bool arena, uint64_t seed);
void trainer_finish(struct trainer *t);

/*
 * Trains on one batch (host arrays of batch * context, not referenced after the return) and returns its loss before the
 * update. The update may still be running then.
 */
float trainer_step(struct trainer *t, const int *tokens, const int *targets, const struct adamw *adamw);

#endif
