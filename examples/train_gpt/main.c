/*
 * train_gpt: trains a small character-level GPT through the CUDA driver API.
 *
 * An ordinary CUDA job: it allocates what it needs at the start, and ends if the driver has not that much memory. See
 * examples/README.md for flags that need four and eight times 64 MiB.
 */
#include "compare.h"
#include "file.h"
#include "options.h"
#include "sha256.h"
#include "team.h"
#include "text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Made from kernels.cu at build time. */
extern const unsigned char builtin_ptx[];

#define MIB (1024.0 * 1024.0)

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void print_one_footprint(FILE *out, const struct shape *s, const struct slice *slice, bool by_class)
{
    struct footprint f = footprint_of(s, slice);
    size_t bytes = 0, buffers = 0;
    for (int c = 0; c < MEMORY_CLASSES; c++) {
        if (by_class)
            fprintf(out, "%-20s %10.2f MiB in %5zu buffers\n", memory_class_name((enum memory_class)c),
                    (double)f.bytes[c] / MIB, f.buffers[c]);
        bytes += f.bytes[c];
        buffers += f.buffers[c];
    }
    fprintf(out,
            by_class ? "%-20s %10.2f MiB in %5zu buffers, the largest %.2f MiB\n"
                     : "%s%.2f MiB in %zu buffers, the largest %.2f MiB\n",
            by_class ? "total" : "", (double)bytes / MIB, buffers, (double)f.largest_bytes / MIB);
}

/* What each GPU needs: of one by classes, of several a line each. */
static void print_footprint(FILE *out, const struct options *o, const struct shape *s)
{
    for (int i = 0; i < o->gpus; i++) {
        struct slice slice = team_slice(o, s, i);
        if (o->gpus > 1)
            fprintf(out, "GPU %d, layers %d to %d: ", i, slice.first, slice.end - 1);
        print_one_footprint(out, s, &slice, o->gpus == 1);
    }
}

/* The PTX text with a 0 behind it. Ends the program if the file cannot be read. */
static char *read_ptx(const char *path)
{
    size_t bytes;
    unsigned char *text = file_read(path, &bytes);
    if (!text) {
        fprintf(stderr, "train_gpt: --ptx: %s: %s\n", path, strerror(errno));
        exit(1);
    }
    return (char *)text;
}

static void progress(int step, int steps, float loss, double began_s)
{
    enum { CELLS = 40 };
    char bar[CELLS + 1];
    if (!isatty(STDERR_FILENO))
        return;
    int full = (int)((long)CELLS * step / steps);
    memset(bar, '.', CELLS);
    memset(bar, '#', (size_t)full);
    bar[CELLS] = 0;
    fprintf(stderr, "\r[%s] %d/%d  loss %.4f  %.1f s%s", bar, step, steps, (double)loss, now_s() - began_s,
            step == steps ? "\n" : "");
}

static void train(struct team *team, const struct options *o, const struct text *text, int *tokens, int *targets)
{
    double began_s = now_s();
    for (int step = 1; step <= o->steps; step++) {
        struct adamw adamw = adamw_at(o->rate, step);
        text_batch(text, &team->shape, team->batches, o->seed, step, tokens, targets);
        float loss = team_step(team, tokens, targets, &adamw);
        printf("step %d loss %a (%f)\n", step, (double)loss, (double)loss);
        fflush(stdout);
        progress(step, o->steps, loss, began_s);
    }
    team_synchronise(team);
    fprintf(stderr, "train_gpt: %d steps in %.2f s; kernels on each stream:", o->steps, now_s() - began_s);
    for (int k = 0; k < team->size; k++)
        for (int i = 0; i < team->gpus[k].stream_count; i++)
            fprintf(stderr, " %llu", (unsigned long long)team->gpus[k].streams[i].kernels);
    fprintf(stderr, "\n");
}

static void print_hash(struct team *team)
{
    struct sha256 sha;
    char hex[65];
    sha256_init(&sha);
    for (int i = 0; i < parameter_total(&team->shape); i++) {
        size_t bytes = 0;
        float *values = team_weight(team, i, &bytes);
        sha256_update(&sha, values, bytes);
        free(values);
    }
    sha256_finish(&sha, hex);
    printf("weights sha256 %s\n", hex);
}

static int run(const struct options *o, const struct shape *shape, const struct text *text)
{
    struct team team;
    size_t tokens = (size_t)shape_tokens(shape) * (size_t)team_batches(o);
    int *batch = malloc(2 * tokens * sizeof *batch), result = 0;
    char *ptx = o->ptx ? read_ptx(o->ptx) : NULL;
    if (!batch) {
        fprintf(stderr, "train_gpt: out of host memory\n");
        return 1;
    }
    team_init(&team, o, shape, ptx ? ptx : (const char *)builtin_ptx, o->ptx ? o->ptx : "built-in PTX");
    free(ptx);
    print_footprint(stderr, o, shape);
    team_allocate(&team, o);
    if (o->cpu_check) {
        struct adamw adamw = adamw_at(o->rate, 1);
        text_batch(text, shape, 1, o->seed, 1, batch, batch + tokens);
        result = compare_step(&team, batch, batch + tokens, &adamw, o->seed);
    } else {
        train(&team, o, text, batch, batch + tokens);
        print_hash(&team);
    }
    team_finish(&team);
    free(batch);
    return result;
}

int main(int argc, char **argv)
{
    struct options o;
    struct text text;
    enum options_result parsed = options_parse(argc, argv, &o);
    if (parsed != OPTIONS_RUN)
        return parsed == OPTIONS_HELP ? 0 : 2;
    if (text_load(o.data, &text))
        return 1;
    if (text.symbol_count <= (size_t)o.context) {
        fprintf(stderr, "train_gpt: the text has %zu characters; --context %d needs more than that\n",
                text.symbol_count, o.context);
        text_finish(&text);
        return 2;
    }
    struct shape shape = {.layers = o.layers,
                          .width = o.width,
                          .heads = o.heads,
                          .context = o.context,
                          .batch = o.batch,
                          .vocabulary = text.vocabulary};
    int result = 0;
    if (o.plan)
        print_footprint(stdout, &o, &shape);
    else
        result = run(&o, &shape, &text);
    text_finish(&text);
    if (fflush(stdout) || ferror(stdout)) {
        fprintf(stderr, "train_gpt: cannot write the results: %s\n", strerror(errno));
        return 1;
    }
    return result;
}
