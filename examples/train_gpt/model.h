/*
 * The model's shape: which parameters and which intermediate results exist, how large each is, and how parameters start.
 * Plain arithmetic, shared by the GPU side, the CPU reference and the footprint.
 */
#ifndef TRAIN_GPT_MODEL_H
#define TRAIN_GPT_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct shape {
    int layers, width, heads, context, batch;
    int vocabulary; /* distinct characters of the text */
};

static inline int shape_tokens(const struct shape *s)
{
    return s->batch * s->context;
}

/* ---- Parameters: token table, position table, twelve a layer, final norm, head ---- */

enum layer_parameter {
    NORM1_GAIN,
    NORM1_BIAS,
    QKV_WEIGHT,
    QKV_BIAS,
    PROJECTION_WEIGHT,
    PROJECTION_BIAS,
    NORM2_GAIN,
    NORM2_BIAS,
    UP_WEIGHT,
    UP_BIAS,
    DOWN_WEIGHT,
    DOWN_BIAS,
    LAYER_PARAMETERS
};

enum { TOKEN_TABLE, POSITION_TABLE, FIRST_LAYER_PARAMETER };
enum final_parameter { FINAL_GAIN, FINAL_BIAS, HEAD_WEIGHT, FINAL_PARAMETERS };

static inline int layer_parameter(int layer, enum layer_parameter which)
{
    return FIRST_LAYER_PARAMETER + layer * LAYER_PARAMETERS + (int)which;
}

static inline int final_parameter(const struct shape *s, enum final_parameter which)
{
    return FIRST_LAYER_PARAMETER + s->layers * LAYER_PARAMETERS + (int)which;
}

static inline int parameter_total(const struct shape *s)
{
    return FIRST_LAYER_PARAMETER + s->layers * LAYER_PARAMETERS + FINAL_PARAMETERS;
}

struct parameter {
    char name[40];   /* "layer 3 qkv weight" */
    int count;       /* elements */
    bool decays;     /* AdamW's weight decay applies: matrices, not gains and biases */
    float start;     /* initial value, plus */
    float deviation; /* this times a random number of variance 1 */
};

struct parameter parameter_at(const struct shape *s, int index);

/* ---- What one GPU holds of the model, and of the work on a batch ---- */

/*
 * Consecutive layers; the first ones come with both tables, the last ones with the final norm and the head. A batch may go
 * through in several passes of shape.batch rows, each with intermediate results of its own, so that GPUs that hold
 * different layers work at the same time.
 *
 * A gradient whose parts come from several passes or GPUs is summed by one GPU, which has a buffer for a part of it.
 */
struct slice {
    int first, end;    /* layers first to end - 1 */
    int passes;        /* at least 1 */
    int adders, adder; /* parameter i is summed here if i % adders == adder; adders 0: nothing is summed */
    int total_passes;  /* of all GPUs over the same batch: what losses and gradients are means over */
};

static inline struct slice slice_whole(const struct shape *s)
{
    return (struct slice){.end = s->layers, .passes = 1, .total_passes = 1};
}

bool slice_holds(const struct shape *s, const struct slice *slice, int parameter);

static inline bool slice_sums(const struct slice *slice, int parameter)
{
    return slice->adders > 0 && parameter % slice->adders == slice->adder;
}

/* values_out[count]: the initial values, the same on every machine for one seed. */
void parameter_initialise(const struct shape *s, int index, uint64_t seed, float *values_out);

/* ---- Intermediate results, in elements of 4 bytes ---- */

/* Kept for every layer, from its forward pass to its backward pass. */
enum layer_tensor {
    NORM1,
    NORM1_MEAN,
    NORM1_RSTD,
    QKV,
    SCORES,
    PROBABILITIES,
    ATTENDED,
    PROJECTED,
    MIDDLE,
    NORM2,
    NORM2_MEAN,
    NORM2_RSTD,
    UP,
    ACTIVATED,
    DOWN,
    OUTPUT,
    LAYER_TENSORS
};

/* One of each. */
enum shared_tensor {
    TOKENS,
    TARGETS,
    EMBEDDED,
    FINAL_NORM,
    FINAL_MEAN,
    FINAL_RSTD,
    LOGITS,
    LOSSES,
    LOSS,
    LOGITS_GRAD,
    FINAL_NORM_GRAD,
    TOP_GRAD,
    SHARED_TENSORS
};

/* Gradients of intermediate results: two sets, which layers use in turn. */
enum gradient_tensor {
    ACTIVATED_GRAD,
    UP_GRAD,
    NORM2_GRAD,
    MIDDLE_GRAD,
    ATTENDED_GRAD,
    PROBABILITIES_GRAD,
    SCORES_GRAD,
    QKV_GRAD,
    NORM1_GRAD,
    INPUT_GRAD,
    GRADIENT_TENSORS
};
#define GRADIENT_SETS 2

size_t layer_tensor_count(const struct shape *s, enum layer_tensor which);
size_t shared_tensor_count(const struct shape *s, enum shared_tensor which);
size_t gradient_tensor_count(const struct shape *s, enum gradient_tensor which);

/* ---- The footprint ---- */

enum memory_class { WEIGHTS, GRADIENTS, OPTIMIZER, ACTIVATIONS, ACTIVATION_GRADIENTS, MEMORY_CLASSES };

struct footprint {
    size_t bytes[MEMORY_CLASSES];
    size_t buffers[MEMORY_CLASSES];
    size_t largest_bytes; /* the largest buffer */
};

const char *memory_class_name(enum memory_class which);
enum memory_class shared_tensor_class(enum shared_tensor which);
struct footprint footprint_of(const struct shape *s, const struct slice *slice);

/* ---- AdamW ---- */

struct adamw {
    float rate, beta1, beta2, epsilon;
    float decay;            /* of parameters that decay */
    float m_scale, v_scale; /* 1 / (1 - beta^step): the bias corrections */
};

struct adamw adamw_at(double rate, int step); /* steps count from 1 */

/* A small generator (splitmix64): the next number of the sequence that *state walks. */
uint64_t random_next(uint64_t *state);

#endif
