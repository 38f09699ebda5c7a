#include "model.h"

#include <math.h>
#include <stdio.h>

/* "layer N " is put before these. */
static const char *const layer_names[LAYER_PARAMETERS] = {
    [NORM1_GAIN] = "norm 1 gain",
    [NORM1_BIAS] = "norm 1 bias",
    [QKV_WEIGHT] = "qkv weight",
    [QKV_BIAS] = "qkv bias",
    [PROJECTION_WEIGHT] = "projection weight",
    [PROJECTION_BIAS] = "projection bias",
    [NORM2_GAIN] = "norm 2 gain",
    [NORM2_BIAS] = "norm 2 bias",
    [UP_WEIGHT] = "up weight",
    [UP_BIAS] = "up bias",
    [DOWN_WEIGHT] = "down weight",
    [DOWN_BIAS] = "down bias",
};

static struct parameter matrix(int rows, int columns, float deviation)
{
    return (struct parameter){.count = rows * columns, .decays = true, .deviation = deviation};
}

static struct parameter vector(int count, float start)
{
    return (struct parameter){.count = count, .start = start};
}

static struct parameter layer_parameter_at(const struct shape *s, enum layer_parameter which)
{
    /* Each layer adds twice to the residual stream: smaller steps keep its variance near 1 in deep models. */
    float residual = (float)(0.02 / sqrt(2.0 * s->layers));
    int width = s->width;
    switch (which) {
    case NORM1_GAIN:
    case NORM2_GAIN: return vector(width, 1.0f);
    case QKV_WEIGHT: return matrix(width, 3 * width, 0.02f);
    case QKV_BIAS: return vector(3 * width, 0.0f);
    case PROJECTION_WEIGHT: return matrix(width, width, residual);
    case UP_WEIGHT: return matrix(width, 4 * width, 0.02f);
    case UP_BIAS: return vector(4 * width, 0.0f);
    case DOWN_WEIGHT: return matrix(4 * width, width, residual);
    default: return vector(width, 0.0f);
    }
}

struct parameter parameter_at(const struct shape *s, int index)
{
    struct parameter p;
    int final = index - final_parameter(s, FINAL_GAIN);
    const char *name = NULL;
    if (index == TOKEN_TABLE) {
        p = matrix(s->vocabulary, s->width, 0.02f);
        name = "token table";
    } else if (index == POSITION_TABLE) {
        p = matrix(s->context, s->width, 0.02f);
        name = "position table";
    } else if (final == FINAL_GAIN) {
        p = vector(s->width, 1.0f);
        name = "final norm gain";
    } else if (final == FINAL_BIAS) {
        p = vector(s->width, 0.0f);
        name = "final norm bias";
    } else if (final == HEAD_WEIGHT) {
        p = matrix(s->width, s->vocabulary, 0.02f);
        name = "head weight";
    } else {
        int layer = (index - FIRST_LAYER_PARAMETER) / LAYER_PARAMETERS;
        int which = (index - FIRST_LAYER_PARAMETER) % LAYER_PARAMETERS;
        p = layer_parameter_at(s, (enum layer_parameter)which);
        snprintf(p.name, sizeof p.name, "layer %d %s", layer, layer_names[which]);
    }
    if (name)
        snprintf(p.name, sizeof p.name, "%s", name);
    return p;
}

uint64_t random_next(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* Mean 0, variance 1, near enough to a normal distribution: the sum of four uniform numbers. */
static float random_normal(uint64_t *state)
{
    uint64_t bits = random_next(state);
    double sum = 0;
    for (int i = 0; i < 4; i++)
        sum += (double)(bits >> (16 * i) & 0xffff) / 65536.0 - 0.5;
    return (float)(sum * 1.7320508075688772);
}

void parameter_initialise(const struct shape *s, int index, uint64_t seed, float *values_out)
{
    struct parameter p = parameter_at(s, index);
    uint64_t state = seed;
    state = random_next(&state) + (uint64_t)index * UINT64_C(0x632be59bd9b4e019);
    for (int i = 0; i < p.count; i++)
        values_out[i] = p.start + (p.deviation > 0 ? p.deviation * random_normal(&state) : 0.0f);
}

size_t layer_tensor_count(const struct shape *s, enum layer_tensor which)
{
    size_t tokens = (size_t)shape_tokens(s), width = (size_t)s->width;
    switch (which) {
    case NORM1_MEAN:
    case NORM1_RSTD:
    case NORM2_MEAN:
    case NORM2_RSTD: return tokens;
    case QKV: return tokens * 3 * width;
    case SCORES:
    case PROBABILITIES: return tokens * (size_t)s->heads * (size_t)s->context;
    case UP:
    case ACTIVATED: return tokens * 4 * width;
    default: return tokens * width;
    }
}

size_t shared_tensor_count(const struct shape *s, enum shared_tensor which)
{
    size_t tokens = (size_t)shape_tokens(s);
    switch (which) {
    case TOKENS:
    case TARGETS:
    case FINAL_MEAN:
    case FINAL_RSTD:
    case LOSSES: return tokens;
    case LOSS: return 1;
    case LOGITS:
    case LOGITS_GRAD: return tokens * (size_t)s->vocabulary;
    default: return tokens * (size_t)s->width;
    }
}

size_t gradient_tensor_count(const struct shape *s, enum gradient_tensor which)
{
    switch (which) {
    case ACTIVATED_GRAD:
    case UP_GRAD: return layer_tensor_count(s, UP);
    case PROBABILITIES_GRAD:
    case SCORES_GRAD: return layer_tensor_count(s, SCORES);
    case QKV_GRAD: return layer_tensor_count(s, QKV);
    default: return layer_tensor_count(s, OUTPUT);
    }
}

const char *memory_class_name(enum memory_class which)
{
    static const char *const names[MEMORY_CLASSES] = {
        [WEIGHTS] = "weights",
        [GRADIENTS] = "gradients",
        [OPTIMIZER] = "optimizer state",
        [ACTIVATIONS] = "activations",
        [ACTIVATION_GRADIENTS] = "activation gradients",
    };
    return names[which];
}

enum memory_class shared_tensor_class(enum shared_tensor which)
{
    return which >= LOGITS_GRAD ? ACTIVATION_GRADIENTS : ACTIVATIONS;
}

bool slice_holds(const struct shape *s, const struct slice *slice, int parameter)
{
    if (parameter < FIRST_LAYER_PARAMETER)
        return slice->first == 0;
    if (parameter >= final_parameter(s, FINAL_GAIN))
        return slice->end == s->layers;
    int layer = (parameter - FIRST_LAYER_PARAMETER) / LAYER_PARAMETERS;
    return layer >= slice->first && layer < slice->end;
}

static void footprint_add(struct footprint *f, enum memory_class which, size_t count)
{
    f->bytes[which] += count * sizeof(float);
    f->buffers[which]++;
    if (f->largest_bytes < count * sizeof(float))
        f->largest_bytes = count * sizeof(float);
}

struct footprint footprint_of(const struct shape *s, const struct slice *slice)
{
    struct footprint f = {0};
    for (int i = 0; i < parameter_total(s); i++) {
        size_t count = (size_t)parameter_at(s, i).count;
        if (!slice_holds(s, slice, i))
            continue;
        footprint_add(&f, WEIGHTS, count);
        footprint_add(&f, GRADIENTS, count);
        if (slice_sums(slice, i))
            footprint_add(&f, GRADIENTS, count);
        footprint_add(&f, OPTIMIZER, count);
        footprint_add(&f, OPTIMIZER, count);
    }
    for (int pass = 0; pass < slice->passes; pass++) {
        for (int layer = slice->first; layer < slice->end; layer++)
            for (int t = 0; t < LAYER_TENSORS; t++)
                footprint_add(&f, ACTIVATIONS, layer_tensor_count(s, (enum layer_tensor)t));
        for (int t = 0; t < SHARED_TENSORS; t++)
            footprint_add(&f, shared_tensor_class((enum shared_tensor)t),
                          shared_tensor_count(s, (enum shared_tensor)t));
    }
    for (int set = 0; set < GRADIENT_SETS; set++)
        for (int t = 0; t < GRADIENT_TENSORS; t++)
            footprint_add(&f, ACTIVATION_GRADIENTS, gradient_tensor_count(s, (enum gradient_tensor)t));
    return f;
}

struct adamw adamw_at(double rate, int step)
{
    double power1 = 1, power2 = 1;
    for (int i = 0; i < step && power2 > 1e-12; i++) {
        power1 *= 0.9;
        power2 *= 0.95;
    }
    return (struct adamw){.rate = (float)rate,
                          .beta1 = 0.9f,
                          .beta2 = 0.95f,
                          .epsilon = 1e-8f,
                          .decay = 0.01f,
                          .m_scale = (float)(1 / (1 - power1)),
                          .v_scale = (float)(1 / (1 - power2))};
}
