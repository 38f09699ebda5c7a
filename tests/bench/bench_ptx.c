/* Speed of the PTX engine: prints, and asserts nothing about time. */
#include "ptx/machine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

extern const unsigned char kernels_ptx[];
extern const unsigned long kernels_ptx_bytes;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Of all threads: does not grow when the machine is busy with something else. */
static double processor_time(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void bench_matmul(struct machine *m, unsigned workers, int n)
{
    struct {
        uint64_t c, a, b;
        int n;
    } p = {.n = n};
    p.c = machine_alloc(m, (size_t)n * n * 4);
    p.a = machine_alloc(m, (size_t)n * n * 4);
    p.b = machine_alloc(m, (size_t)n * n * 4);
    for (int i = 0; i < n * n; i++) {
        ((float *)machine_at(m, p.a))[i] = (float)(i % 7);
        ((float *)machine_at(m, p.b))[i] = (float)(i % 5);
    }
    struct launch launch = {
        .name = "matmul", .grid = {n / 16, n / 16}, .block = {16, 16}, .params = &p, .workers = workers};
    double best = 1e9, least = 1e9;
    struct outcome outcome;
    for (int i = 0; i < 30; i++) {
        double start = now(), work = processor_time();
        outcome = machine_run(m, &launch);
        double took = now() - start;
        work = processor_time() - work;
        best = took < best ? took : best;
        least = work < least ? work : least;
    }
    double flops = 2.0 * n * n * n;
    printf("matmul %d, %u threads: %.2f GFLOP/s (%.2f per second of a core), %.1f ns of a core per warp instruction\n",
           n, workers, flops / best * 1e-9, flops / least * 1e-9,
           least / (double)outcome.counters.warp_instructions * 1e9);
}

static void bench_axpy(struct machine *m, unsigned workers)
{
    int n = 1 << 20;
    struct {
        uint64_t y, x;
        float a;
        int n;
    } p = {.a = 2, .n = n};
    p.y = machine_alloc(m, (size_t)n * 4);
    p.x = machine_alloc(m, (size_t)n * 4);
    struct launch launch = {.name = "axpy", .grid = {n / 256}, .block = {256}, .params = &p, .workers = workers};
    double best = 1e9, least = 1e9;
    for (int i = 0; i < 30; i++) {
        double start = now(), work = processor_time();
        machine_run(m, &launch);
        double took = now() - start;
        work = processor_time() - work;
        best = took < best ? took : best;
        least = work < least ? work : least;
    }
    printf("axpy, %u threads: %.1f million threads/s (%.1f per second of a core)\n", workers, n / best * 1e-6,
           n / least * 1e-6);
}

static void bench_empty(struct machine *m)
{
    struct launch launch = {.name = "empty", .block = {32}};
    double start = now();
    for (int i = 0; i < 2000; i++)
        machine_run(m, &launch);
    printf("empty grid: %.2f us\n", (now() - start) / 2000 * 1e6);
}

static void bench_load(const char *text, size_t bytes)
{
    unsigned lines = 0;
    for (size_t i = 0; i < bytes; i++)
        lines += text[i] == '\n';
    double best = 1e9;
    for (int i = 0; i < 30; i++) {
        struct ptx_module *module;
        struct ptx_error error;
        double start = now();
        if (ptx_module_parse(text, bytes, &module, &error)) {
            printf("%s\n", error.text);
            return;
        }
        double took = now() - start;
        ptx_module_destroy(module);
        best = took < best ? took : best;
    }
    printf("module of %u lines: parsed in %.2f ms\n", lines, best * 1e3);
}

static void bench_load_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f) {
        perror(path);
        exit(1);
    }
    char *text = malloc(1 << 24);
    size_t bytes = text ? fread(text, 1, 1 << 24, f) : 0;
    bench_load(text, bytes);
    free(text);
    fclose(f);
}

int main(int argc, char **argv)
{
    struct machine m;
    machine_init(&m);
    bench_load((const char *)kernels_ptx, kernels_ptx_bytes);
    for (int i = 1; i < argc; i++)
        bench_load_file(argv[i]);
    machine_load_kernels(&m);
    bench_empty(&m);
    bench_axpy(&m, 1);
    bench_axpy(&m, 2);
    bench_matmul(&m, 1, 256);
    bench_matmul(&m, 2, 256);
    machine_finish(&m);
    return 0;
}
