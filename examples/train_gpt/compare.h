/* --cpu-check: one training step on the GPU and in plain C, compared. */
#ifndef TRAIN_GPT_COMPARE_H
#define TRAIN_GPT_COMPARE_H

#include "team.h"

#define COMPARE_TOLERANCE 1e-3

/*
 * Runs one step of a fresh team of one GPU and prints what it found to stdout. 0 when everything agrees, else 1.
 *
 * The loss and each parameter's gradient must agree to COMPARE_TOLERANCE of the largest value in it. The updated weights are
 * compared with an update computed from the GPU's own gradients: AdamW's first step depends on little more than the sign
 * of a gradient, so rounding noise around zero would otherwise count as a difference in full.
 */
int compare_step(struct team *team, const int *tokens, const int *targets, const struct adamw *adamw, uint64_t seed);

#endif
