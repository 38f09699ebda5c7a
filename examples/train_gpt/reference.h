/* The same training step in plain C and double precision: what the GPU's numbers are compared with. Slow and simple. */
#ifndef TRAIN_GPT_REFERENCE_H
#define TRAIN_GPT_REFERENCE_H

#include "model.h"

/*
 * The loss of one batch; weights[i] has parameter i's values. Where gradients is not NULL, gradients[i] (of the same size)
 * receives the loss's derivative by each of them.
 */
double reference_loss(const struct shape *s, double *const *weights, const int *tokens, const int *targets,
                      double *const *gradients);

/* One AdamW update of `count` values in place. */
void reference_adamw(const struct adamw *a, bool decays, int count, double *weight, double *mean, double *square,
                     const double *gradient);

#endif
