/* The text that the model learns: characters as small numbers, and batches of them. */
#ifndef TRAIN_GPT_TEXT_H
#define TRAIN_GPT_TEXT_H

#include "model.h"

struct text {
    unsigned char *symbols; /* symbol_count numbers below vocabulary */
    size_t symbol_count;
    int vocabulary; /* distinct bytes, numbered in byte order */
};

/* Reads the file, or takes the built-in text where path is NULL. 0, or -1 after one line on stderr. */
int text_load(const char *path, struct text *text_out);
void text_finish(struct text *text);

/*
 * Fills both arrays (batches * batch * context each) for one step: every row is a stretch of the text that seed, step and row choose,
 * and the targets are the same stretch one character later. The text must hold more than `context` symbols.
 */
void text_batch(const struct text *text, const struct shape *shape, int batches, uint64_t seed, int step,
                int *tokens_out, int *targets_out);

#endif
