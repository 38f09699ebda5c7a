/* What one GPU does of a training step: forward pass, backward pass, AdamW, for its slice of the model. */
#ifndef TRAIN_GPT_TRAIN_H
#define TRAIN_GPT_TRAIN_H

#include "gpu.h"
#include "model.h"

struct trainer {
    struct gpu *gpu;
    struct shape shape;
    struct slice slice;
    struct gpu_buffer *weights, *gradients, *means, *squares; /* one each for every parameter that the slice holds */
    struct gpu_buffer *parts;                                 /* of gradients that are summed here */
    struct gpu_buffer *layers; /* for every pass, and in it for every layer, LAYER_TENSORS */
    struct gpu_buffer *shared; /* for every pass SHARED_TENSORS */
    int pass;                  /* that the calls below are about */
    struct gpu_buffer layer_gradients[GRADIENT_SETS][GRADIENT_TENSORS];
};

/* Allocates everything (the only place where the job runs out of memory), then sets the initial weights. Exits on errors. */
void trainer_init(struct trainer *t, struct gpu *gpu, const struct shape *shape, const struct slice *slice, bool arena,
                  uint64_t seed);
void trainer_finish(struct trainer *t);

/*
 * A step goes through the model block by block: the tables (-1), the layers (0 and up), and the head (shape.layers), which
 * consists of the final norm, the logits and the loss.
 */
#define TABLES_BLOCK (-1)
/* The slice's first and last block. */
int trainer_first_block(const struct trainer *t);
int trainer_last_block(const struct trainer *t);
/* A block's parameters are the *count_out from *first_out on. */
void block_parameters(const struct shape *s, int block, int *first_out, int *count_out);

/*
 * Each issues work and does not wait for it. Begin chooses the pass that the others are about; its host arrays (batch * context
 * each) must stay until the pass is done. Forward goes through the slice's tables and layers; backward is called for each block from
 * the last to the first, and what a pass after the first computes goes to `parts`.
 */
void trainer_begin(struct trainer *t, int pass, const int *tokens, const int *targets);
void trainer_forward(struct trainer *t);
void trainer_backward(struct trainer *t, int block);
/* Adds `parts` to the gradients of one block, or of one parameter. */
void trainer_sum_block(struct trainer *t, int block);
void trainer_sum(struct trainer *t, int parameter);
void trainer_update(struct trainer *t, int block, const struct adamw *adamw);

/* What goes over to the GPUs that hold the layers below and above, in the present pass. */
struct gpu_buffer *trainer_input(struct trainer *t);       /* of the first layer */
struct gpu_buffer *trainer_output(struct trainer *t);      /* of the last layer */
struct gpu_buffer *trainer_output_grad(struct trainer *t); /* from above */
struct gpu_buffer *trainer_input_grad(struct trainer *t);  /* for below */

/* The loss of a pass, of the slice that has the head. Waits for it. */
float trainer_loss(struct trainer *t, int pass);

#endif
