#include "text.h"

#include "file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Made from examples/data at build time. */
extern const unsigned char builtin_text[];
extern const unsigned long builtin_text_bytes;

int text_load(const char *path, struct text *text_out)
{
    size_t bytes = builtin_text_bytes;
    unsigned char *data = path ? file_read(path, &bytes) : malloc(bytes);
    if (!data) {
        fprintf(stderr, "train_gpt: --data: %s: %s\n", path ? path : "built-in text", strerror(errno));
        return -1;
    }
    if (!path)
        memcpy(data, builtin_text, bytes);
    int number[256] = {0}, vocabulary = 0;
    for (size_t i = 0; i < bytes; i++)
        number[data[i]] = 1;
    for (int c = 0; c < 256; c++)
        if (number[c])
            number[c] = vocabulary++;
    for (size_t i = 0; i < bytes; i++)
        data[i] = (unsigned char)number[data[i]];
    *text_out = (struct text){.symbols = data, .symbol_count = bytes, .vocabulary = vocabulary};
    return 0;
}

void text_finish(struct text *text)
{
    free(text->symbols);
    *text = (struct text){0};
}

void text_batch(const struct text *text, const struct shape *shape, int batches, uint64_t seed, int step,
                int *tokens_out, int *targets_out)
{
    size_t places = text->symbol_count - (size_t)shape->context;
    for (int row = 0; row < batches * shape->batch; row++) {
        uint64_t state = seed ^ (uint64_t)step << 32 ^ (uint64_t)row;
        state = random_next(&state);
        const unsigned char *from = text->symbols + random_next(&state) % places;
        for (int i = 0; i < shape->context; i++) {
            tokens_out[row * shape->context + i] = from[i];
            targets_out[row * shape->context + i] = from[i + 1];
        }
    }
}
