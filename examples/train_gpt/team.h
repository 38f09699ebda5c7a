/*
 * The GPUs that train one model together, and the part of each.
 *
 * data: every GPU has the whole model and a batch of its own. Gradients are summed by copies between GPUs, each parameter's on
 * one of them and in the order of GPUs, and come back to all. pipeline: every GPU has consecutive layers; the batches of a step go
 * through one behind the other, so that all GPUs work, and their gradients are summed in that order. One GPU is a pipeline of
 * one, through which one batch goes.
 *
 * Sums have a fixed order, so results depend on the number of GPUs and batches, and on nothing else.
 */
#ifndef TRAIN_GPT_TEAM_H
#define TRAIN_GPT_TEAM_H

#include "options.h"
#include "train.h"

struct team {
    enum parallel parallel;
    int size, batches; /* GPUs, and batches of shape.batch rows a step */
    struct shape shape;
    struct gpu *gpus;
    struct trainer *trainers;
};

/* What GPU `index` of the team holds. */
struct slice team_slice(const struct options *o, const struct shape *shape, int index);
/* Batches of shape.batch rows a step. */
int team_batches(const struct options *o);

/* Takes the GPUs; then allocates everything and sets the initial weights. Both exit on errors. */
void team_init(struct team *team, const struct options *o, const struct shape *shape, const char *ptx,
               const char *ptx_name);
void team_allocate(struct team *team, const struct options *o);
void team_finish(struct team *team);

/* Trains on the step's batches (host arrays of batches * batch * context, which must stay until the next call) and returns their mean
 * loss before the update. The update may still be running then. */
float team_step(struct team *team, const int *tokens, const int *targets, const struct adamw *adamw);
void team_synchronise(struct team *team);

/* A parameter's values, malloc'ed, the caller's. With data, ends the program if GPUs disagree. */
float *team_weight(struct team *team, int parameter, size_t *bytes_out);

#endif
