#include "team.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *need(void *p)
{
    if (!p) {
        fprintf(stderr, "train_gpt: out of host memory\n");
        exit(1);
    }
    return p;
}

int team_batches(const struct options *o)
{
    if (o->parallel == PARALLEL_DATA || o->gpus == 1)
        return o->gpus;
    return o->passes ? o->passes : 2 * o->gpus;
}

struct slice team_slice(const struct options *o, const struct shape *shape, int index)
{
    struct slice slice = slice_whole(shape);
    slice.total_passes = team_batches(o);
    if (o->gpus == 1)
        return slice;
    if (o->parallel == PARALLEL_DATA) {
        slice.adders = o->gpus;
        slice.adder = index;
        return slice;
    }
    slice.first = (int)((long)shape->layers * index / o->gpus);
    slice.end = (int)((long)shape->layers * (index + 1) / o->gpus);
    slice.passes = slice.total_passes;
    slice.adders = slice.passes > 1;
    return slice;
}

void team_init(struct team *team, const struct options *o, const struct shape *shape, const char *ptx,
               const char *ptx_name)
{
    *team = (struct team){.parallel = o->parallel, .size = o->gpus, .batches = team_batches(o), .shape = *shape};
    team->gpus = need(calloc((size_t)team->size, sizeof *team->gpus));
    team->trainers = need(calloc((size_t)team->size, sizeof *team->trainers));
    for (int i = 0; i < team->size; i++)
        gpu_init(&team->gpus[i], o->device + i, ptx, ptx_name, o->streams);
    if (team->size > 1)
        gpu_connect(team->gpus, team->size);
}

void team_allocate(struct team *team, const struct options *o)
{
    for (int i = 0; i < team->size; i++) {
        struct slice slice = team_slice(o, &team->shape, i);
        trainer_init(&team->trainers[i], &team->gpus[i], &team->shape, &slice, o->arena, o->seed);
    }
}

void team_synchronise(struct team *team)
{
    for (int i = 0; i < team->size; i++)
        gpu_synchronise(&team->gpus[i]);
}

void team_finish(struct team *team)
{
    team_synchronise(team); /* a GPU's buffers may be read by others */
    for (int i = 0; i < team->size; i++)
        trainer_finish(&team->trainers[i]);
    for (int i = 0; i < team->size; i++)
        gpu_finish(&team->gpus[i]);
    free(team->gpus);
    free(team->trainers);
}

/* ---- data ---- */

static void exchange(struct team *team, int block)
{
    int first, count;
    block_parameters(&team->shape, block, &first, &count);
    for (int i = first; i < first + count; i++) {
        struct trainer *adder = &team->trainers[i % team->size];
        for (int k = 0; k < team->size; k++) {
            struct trainer *t = &team->trainers[k];
            if (t == adder)
                continue;
            gpu_copy(adder->gpu, &adder->parts[i], t->gpu, &t->gradients[i]);
            trainer_sum(adder, i);
        }
        for (int k = 0; k < team->size; k++) {
            struct trainer *t = &team->trainers[k];
            if (t != adder)
                gpu_copy(t->gpu, &t->gradients[i], adder->gpu, &adder->gradients[i]);
        }
    }
}

static void data_step(struct team *team, const int *tokens, const int *targets, const struct adamw *adamw)
{
    size_t stride = (size_t)shape_tokens(&team->shape);
    for (int k = 0; k < team->size; k++) {
        trainer_begin(&team->trainers[k], 0, tokens + (size_t)k * stride, targets + (size_t)k * stride);
        trainer_forward(&team->trainers[k]);
    }
    for (int block = team->shape.layers; block >= TABLES_BLOCK; block--) {
        for (int k = 0; k < team->size; k++)
            trainer_backward(&team->trainers[k], block);
        exchange(team, block);
        for (int k = 0; k < team->size; k++)
            trainer_update(&team->trainers[k], block, adamw);
    }
}

/* ---- pipeline ---- */

static void pipeline_forward(struct team *team, int pass, const int *tokens, const int *targets)
{
    for (int k = 0; k < team->size; k++) {
        struct trainer *t = &team->trainers[k], *below = t - 1;
        trainer_begin(t, pass, tokens, targets);
        if (k > 0)
            gpu_copy(t->gpu, trainer_input(t), below->gpu, trainer_output(below));
        trainer_forward(t);
    }
}

static void pipeline_backward(struct team *team, int pass, const struct adamw *adamw)
{
    for (int k = team->size - 1; k >= 0; k--) {
        struct trainer *t = &team->trainers[k], *above = t + 1;
        t->pass = pass;
        if (k + 1 < team->size)
            gpu_copy(t->gpu, trainer_output_grad(t), above->gpu, trainer_input_grad(above));
        for (int block = trainer_last_block(t); block >= trainer_first_block(t); block--) {
            trainer_backward(t, block);
            if (pass > 0)
                trainer_sum_block(t, block);
            if (pass + 1 == team->batches)
                trainer_update(t, block, adamw);
        }
    }
}

static void pipeline_step(struct team *team, const int *tokens, const int *targets, const struct adamw *adamw)
{
    size_t stride = (size_t)shape_tokens(&team->shape);
    for (int pass = 0; pass < team->batches; pass++)
        pipeline_forward(team, pass, tokens + (size_t)pass * stride, targets + (size_t)pass * stride);
    for (int pass = 0; pass < team->batches; pass++)
        pipeline_backward(team, pass, adamw);
}

/* ---- both ---- */

float team_step(struct team *team, const int *tokens, const int *targets, const struct adamw *adamw)
{
    bool data = team->parallel == PARALLEL_DATA && team->size > 1;
    double sum = 0;
    if (data)
        data_step(team, tokens, targets, adamw);
    else
        pipeline_step(team, tokens, targets, adamw);
    for (int i = 0; i < team->batches; i++)
        sum += data ? trainer_loss(&team->trainers[i], 0) : trainer_loss(&team->trainers[team->size - 1], i);
    return (float)(sum / team->batches);
}

float *team_weight(struct team *team, int parameter, size_t *bytes_out)
{
    float *values = NULL;
    for (int k = 0; k < team->size; k++) {
        struct trainer *t = &team->trainers[k];
        struct gpu_buffer *weight = &t->weights[parameter];
        if (!slice_holds(&t->shape, &t->slice, parameter))
            continue;
        float *here = need(malloc(weight->bytes));
        gpu_download(t->gpu, weight, here);
        if (values && memcmp(values, here, weight->bytes) != 0) {
            fprintf(stderr, "train_gpt: GPUs 0 and %d hold different values of %s\n", k,
                    parameter_at(&t->shape, parameter).name);
            exit(1);
        }
        free(values);
        values = here;
        *bytes_out = weight->bytes;
    }
    return values;
}
