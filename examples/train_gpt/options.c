#include "options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum kind { INTEGER, SEED, RATE, TEXT, SWITCH, PARALLEL };

struct option {
    const char *name;
    enum kind kind;
    void *value;
    long least, most; /* INTEGER */
    const char *help;
};

#define OPTION_COUNT 18

/* Four times the memory of a GPU of 64 MiB, and little arithmetic: see examples/README.md. */
static const struct options defaults = {.layers = 18,
                                        .width = 256,
                                        .heads = 32,
                                        .context = 64,
                                        .batch = 1,
                                        .steps = 4,
                                        .streams = 1,
                                        .gpus = 1,
                                        .seed = 1,
                                        .rate = 3e-3};

static void options_table(struct options *o, struct option table[OPTION_COUNT])
{
    const struct option rows[OPTION_COUNT] = {
        {"--layers", INTEGER, &o->layers, 1, 4096, "transformer blocks"},
        {"--width", INTEGER, &o->width, 1, 16384, "width of the residual stream; a multiple of --heads"},
        {"--heads", INTEGER, &o->heads, 1, 16384, "attention heads"},
        {"--context", INTEGER, &o->context, 1, 16384, "characters a row of a batch"},
        {"--batch", INTEGER, &o->batch, 1, 16384, "rows a batch"},
        {"--steps", INTEGER, &o->steps, 1, 1000000, "training steps"},
        {"--streams", INTEGER, &o->streams, 1, MAX_STREAMS,
         "streams that share the kernels; results do not depend on it"},
        {"--device", INTEGER, &o->device, 0, 1023, "ordinal of the GPU, or of the first"},
        {"--gpus", INTEGER, &o->gpus, 1, MAX_GPUS, "GPUs that train together"},
        {"--parallel", PARALLEL, &o->parallel, 0, 0,
         "how they do: data (each its own batch) or pipeline (each its own layers)"},
        {"--batches", INTEGER, &o->passes, 0, 1024, "batches a step, through a pipeline; 0 = two for each GPU"},
        {"--seed", SEED, &o->seed, 0, 0, "seed of the initial weights and of the choice of batches"},
        {"--lr", RATE, &o->rate, 0, 0, "learning rate"},
        {"--data", TEXT, &o->data, 0, 0, "text to learn; default: the sonnets inside this program"},
        {"--ptx", TEXT, &o->ptx, 0, 0, "PTX file with the kernels; default: those inside this program"},
        {"--arena", SWITCH, &o->arena, 0, 0, "one allocation for everything, instead of one a buffer"},
        {"--plan", SWITCH, &o->plan, 0, 0, "print how much memory the job needs, and exit without touching a GPU"},
        {"--cpu-check", SWITCH, &o->cpu_check, 0, 0, "compare one step with a plain CPU computation, and exit"},
    };
    memcpy(table, rows, sizeof rows);
}

static void print_default(const struct option *row)
{
    if (row->kind == INTEGER)
        printf(" (%ld to %ld; default %d)\n", row->least, row->most, *(int *)row->value);
    else if (row->kind == RATE)
        printf(" (above 0, at most 1; default %g)\n", *(double *)row->value);
    else if (row->kind == SEED)
        printf(" (0 to 2^64-1; default %llu)\n", (unsigned long long)*(uint64_t *)row->value);
    else if (row->kind == PARALLEL)
        printf(" (default data)\n");
    else
        printf("\n");
}

static void print_help(const struct option *table)
{
    static const char *const operand[] = {" N", " N", " X", " FILE", "", " HOW"};
    printf("usage: train_gpt [FLAG]...\n"
           "Trains a small character-level GPT on one GPU or several, through the CUDA driver API.\n"
           "Prints a line a step with its loss, and finally a hash of the trained weights, to stdout.\n\n");
    for (int i = 0; i < OPTION_COUNT; i++) {
        char flag[32];
        snprintf(flag, sizeof flag, "%s%s", table[i].name, operand[table[i].kind]);
        printf("  %-14s  %s", flag, table[i].help);
        print_default(&table[i]);
    }
    printf("  --help          print this\n");
}

/* 0, or -1 after one line on stderr. */
static int parse_value(const struct option *row, const char *text)
{
    char *end = NULL;
    errno = 0;
    if (row->kind == INTEGER) {
        long n = strtol(text, &end, 10);
        if (end == text || *end || errno || n < row->least || n > row->most) {
            fprintf(stderr, "train_gpt: %s: '%s' is not a whole number from %ld to %ld\n", row->name, text, row->least,
                    row->most);
            return -1;
        }
        *(int *)row->value = (int)n;
    } else if (row->kind == SEED) {
        unsigned long long n = strtoull(text, &end, 10);
        if (end == text || *end || errno || strchr(text, '-')) {
            fprintf(stderr, "train_gpt: %s: '%s' is not a whole number from 0 to 18446744073709551615\n", row->name,
                    text);
            return -1;
        }
        *(uint64_t *)row->value = n;
    } else if (row->kind == RATE) {
        double x = strtod(text, &end);
        if (end == text || *end || !(x > 0 && x <= 1)) {
            fprintf(stderr, "train_gpt: %s: '%s' is not a number above 0 and at most 1\n", row->name, text);
            return -1;
        }
        *(double *)row->value = x;
    } else if (row->kind == PARALLEL) {
        bool data = strcmp(text, "data") == 0;
        if (!data && strcmp(text, "pipeline") != 0) {
            fprintf(stderr, "train_gpt: %s: '%s' is neither data nor pipeline\n", row->name, text);
            return -1;
        }
        *(enum parallel *)row->value = data ? PARALLEL_DATA : PARALLEL_PIPELINE;
    } else {
        *(const char **)row->value = text;
    }
    return 0;
}

static const struct option *find_option(const struct option *table, const char *name, size_t name_bytes)
{
    for (int i = 0; i < OPTION_COUNT; i++)
        if (strlen(table[i].name) == name_bytes && memcmp(table[i].name, name, name_bytes) == 0)
            return &table[i];
    return NULL;
}

/* What one flag cannot see by itself: kernels index with 32 bits, and the third dimension of a grid ends at 65535. */
static int check_together(const struct options *o)
{
    if (o->width % o->heads) {
        fprintf(stderr, "train_gpt: --width %d is not a multiple of --heads %d\n", o->width, o->heads);
        return -1;
    }
    if ((long)o->batch * o->heads > 65535) {
        fprintf(stderr, "train_gpt: --batch %d times --heads %d is above 65535\n", o->batch, o->heads);
        return -1;
    }
    if (o->parallel == PARALLEL_PIPELINE && o->layers < o->gpus) {
        fprintf(stderr, "train_gpt: a pipeline of --gpus %d needs at least as many --layers as that, not %d\n", o->gpus,
                o->layers);
        return -1;
    }
    if (o->cpu_check && o->gpus > 1) {
        fprintf(stderr, "train_gpt: --cpu-check is for one GPU, not for --gpus %d\n", o->gpus);
        return -1;
    }
    double tokens = (double)o->batch * o->context, most = 2147480000.0;
    if (tokens * 4 * o->width > most || tokens * o->heads * o->context > most || 4.0 * o->width * o->width > most ||
        tokens * 256 > most) {
        fprintf(stderr,
                "train_gpt: a buffer would have more than 2^31 elements: lower --width, --batch or --context\n");
        return -1;
    }
    return 0;
}

/* One flag, and its value where it has one: how many words of argv it took, or -1 after one line on stderr. */
static int parse_flag(const struct option *table, char **argv)
{
    const char *equals = strchr(argv[0], '=');
    const struct option *row = find_option(table, argv[0], equals ? (size_t)(equals - argv[0]) : strlen(argv[0]));
    if (!row) {
        fprintf(stderr, "train_gpt: unknown flag '%s'; train_gpt --help lists the flags\n", argv[0]);
        return -1;
    }
    if (row->kind == SWITCH) {
        if (equals) {
            fprintf(stderr, "train_gpt: %s takes no value\n", row->name);
            return -1;
        }
        *(bool *)row->value = true;
        return 1;
    }
    const char *text = equals ? equals + 1 : argv[1];
    if (!text) {
        fprintf(stderr, "train_gpt: %s needs a value\n", row->name);
        return -1;
    }
    return parse_value(row, text) ? -1 : equals ? 1 : 2;
}

enum options_result options_parse(int argc, char **argv, struct options *options_out)
{
    struct option table[OPTION_COUNT];
    *options_out = defaults;
    options_table(options_out, table);
    for (int i = 1; i < argc;) {
        if (strcmp(argv[i], "--help") == 0) {
            *options_out = defaults; /* the help shows these, whatever stood before it */
            print_help(table);
            return OPTIONS_HELP;
        }
        int words = parse_flag(table, argv + i);
        if (words < 0)
            return OPTIONS_BAD;
        i += words;
    }
    return check_together(options_out) ? OPTIONS_BAD : OPTIONS_RUN;
}
