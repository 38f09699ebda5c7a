/* The command line of train_gpt. */
#ifndef TRAIN_GPT_OPTIONS_H
#define TRAIN_GPT_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#define MAX_STREAMS 16
#define MAX_GPUS 64

enum parallel { PARALLEL_DATA, PARALLEL_PIPELINE };

struct options {
    int layers, width, heads, context, batch; /* the model and its batches */
    int steps, streams, device;
    int gpus;               /* from that device on */
    enum parallel parallel; /* how they share the work */
    int passes;             /* a step's batches, one after the other through a pipeline; 0 = two for each GPU */
    uint64_t seed;
    double rate;      /* AdamW's learning rate */
    const char *data; /* NULL = the text inside the program */
    const char *ptx;  /* NULL = the kernels inside the program */
    bool arena;       /* one allocation for everything, divided by this program */
    bool plan;        /* print the footprint, touch no GPU */
    bool cpu_check;   /* one step on GPU and CPU, compared */
};

enum options_result { OPTIONS_RUN, OPTIONS_HELP, OPTIONS_BAD };

/* Fills *options_out with defaults and what argv says. HELP has printed the help to stdout, BAD one line to stderr. */
enum options_result options_parse(int argc, char **argv, struct options *options_out);

#endif
