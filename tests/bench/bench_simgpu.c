/*
 * Speed of simgpu as a job sees it, through the driver's API: prints, and asserts nothing about time. Medians and quartiles
 * rather than bests, so that a busy machine shows as what it is; memcpy is measured between the copies it is compared with.
 */
#include <cuda.h>
#include <dirent.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

extern const unsigned char kernels_ptx[];
extern const unsigned long kernels_ptx_bytes;

/* The header hides it behind the name of a newer one.
 * NOLINTNEXTLINE(readability-redundant-declaration) */
CUresult cuCtxCreate_v2(CUcontext *context, unsigned flags, CUdevice device);

#define CHECK(call)                                                                                                    \
    do {                                                                                                               \
        CUresult got_ = (call);                                                                                        \
        if (got_ != CUDA_SUCCESS) {                                                                                    \
            fprintf(stderr, "bench_simgpu: %s: error %d\n", #call, (int)got_);                                         \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

#define COPY_BYTES ((size_t)64 << 20)
#define MOST 20000

static CUmodule module;
static CUstream stream;
static double times[MOST], work[MOST];

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* Of all threads: does not grow when the machine is busy with something else. */
static double processor_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double part(double *values, int n, double share)
{
    qsort(values, (size_t)n, sizeof *values, by_value);
    return values[(int)(share * (n - 1))];
}

static CUfunction function(const char *name)
{
    CUfunction f;
    CHECK(cuModuleGetFunction(&f, module, name));
    return f;
}

static void launch(CUfunction f, unsigned blocks_x, unsigned blocks_y, unsigned x, unsigned y, void **params)
{
    CHECK(cuLaunchKernel(f, blocks_x, blocks_y, 1, x, y, 1, 0, stream, params, NULL));
}

static CUresult sync_stream(void)
{
    return cuStreamSynchronize(stream);
}

/* An empty kernel from the call that launches it to the return of the call that waits for it. */
static void bench_round_trip(const char *name, CUresult (*wait)(void), unsigned blocks)
{
    CUfunction f = function("empty");
    int n = MOST;
    for (int i = 0; i < n; i++) {
        double start = now_us();
        launch(f, blocks, 1, 32, 1, NULL);
        CHECK(wait());
        times[i] = now_us() - start;
    }
    double median = part(times, n, 0.5);
    printf("%-34s %8.2f us  (quartiles %.2f, %.2f; 99 %%: %.2f)\n", name, median, part(times, n, 0.25),
           part(times, n, 0.75), part(times, n, 0.99));
}

/* The same launched back to back: what one costs when nobody waits for it alone. */
static void bench_stream_of_launches(void)
{
    CUfunction f = function("empty");
    enum { BATCH = 500, BATCHES = 41 };
    for (int b = 0; b < BATCHES; b++) {
        double start = now_us();
        for (int i = 0; i < BATCH; i++)
            launch(f, 1, 1, 32, 1, NULL);
        CHECK(sync_stream());
        times[b] = (now_us() - start) / BATCH;
    }
    printf("%-34s %8.2f us  each (quartiles %.2f, %.2f)\n", "empty kernels back to back", part(times, BATCHES, 0.5),
           part(times, BATCHES, 0.25), part(times, BATCHES, 0.75));
}

static CUdeviceptr device_memory(size_t bytes)
{
    CUdeviceptr p;
    CHECK(cuMemAlloc_v2(&p, bytes));
    CHECK(cuMemsetD8_v2(p, 0, bytes));
    return p;
}

static void bench_matmul(void)
{
    int n = 256, runs = 31;
    CUdeviceptr a = device_memory(262144), b = device_memory(262144), c = device_memory(262144);
    void *params[] = {&c, &a, &b, &n};
    CUfunction f = function("matmul");
    for (int i = 0; i < runs; i++) {
        double start = now_us(), before = processor_us();
        launch(f, 16, 16, 16, 16, params);
        CHECK(sync_stream());
        times[i] = now_us() - start;
        work[i] = processor_us() - before;
    }
    double flops = 2.0 * n * n * n;
    printf("%-34s %8.2f GFLOP/s  (best %.2f; %.2f per second of a core)\n", "fp32 matmul 256, 16x16 shared tiles",
           flops / part(times, runs, 0.5) * 1e-3, flops / part(times, runs, 0) * 1e-3,
           flops / part(work, runs, 0.5) * 1e-3);
    CHECK(cuMemFree_v2(a));
    CHECK(cuMemFree_v2(b));
    CHECK(cuMemFree_v2(c));
}

static void bench_axpy(void)
{
    int n = 1 << 20, runs = 31;
    float factor = 2;
    CUdeviceptr x = device_memory((size_t)n * 4), y = device_memory((size_t)n * 4);
    void *params[] = {&y, &x, &factor, &n};
    CUfunction f = function("axpy");
    for (int i = 0; i < runs; i++) {
        double start = now_us(), before = processor_us();
        launch(f, (unsigned)n / 256, 1, 256, 1, params);
        CHECK(sync_stream());
        times[i] = now_us() - start;
        work[i] = processor_us() - before;
    }
    printf("%-34s %8.1f million/s  (best %.1f; %.1f per second of a core)\n", "simple threads (axpy)",
           n / part(times, runs, 0.5), n / part(times, runs, 0), n / part(work, runs, 0.5));
    CHECK(cuMemFree_v2(x));
    CHECK(cuMemFree_v2(y));
}

/* ---- copies ---- */

struct buffers {
    CUdeviceptr device, device2;
    void *pinned, *plain, *plain2;
};

static void copy_h2d(const struct buffers *b)
{
    CHECK(cuMemcpyHtoDAsync_v2(b->device, b->pinned, COPY_BYTES, stream));
    CHECK(sync_stream());
}

static void copy_d2h(const struct buffers *b)
{
    CHECK(cuMemcpyDtoHAsync_v2(b->pinned, b->device, COPY_BYTES, stream));
    CHECK(sync_stream());
}

static void copy_d2d(const struct buffers *b)
{
    CHECK(cuMemcpyDtoDAsync_v2(b->device2, b->device, COPY_BYTES, stream));
    CHECK(sync_stream());
}

static void copy_h2d_pageable(const struct buffers *b)
{
    CHECK(cuMemcpyHtoD_v2(b->device, b->plain, COPY_BYTES));
}

static void copy_d2h_pageable(const struct buffers *b)
{
    CHECK(cuMemcpyDtoH_v2(b->plain, b->device, COPY_BYTES));
}

static void bench_copy(const char *name, const struct buffers *b, void (*copy)(const struct buffers *))
{
    enum { RUNS = 15 };
    double plain[RUNS];
    copy(b);
    for (int i = 0; i < RUNS; i++) {
        double start = now_us();
        memcpy(b->plain2, b->plain, COPY_BYTES);
        plain[i] = now_us() - start;
        start = now_us();
        copy(b);
        times[i] = now_us() - start;
    }
    double ours = part(times, RUNS, 0.5), theirs = part(plain, RUNS, 0.5);
    printf("%-34s %8.2f GB/s  memcpy %.2f GB/s, ratio %.2f\n", name, (double)COPY_BYTES / ours * 1e-3,
           (double)COPY_BYTES / theirs * 1e-3, theirs / ours);
}

static void bench_copies(void)
{
    struct buffers b = {.device = device_memory(COPY_BYTES),
                        .device2 = device_memory(COPY_BYTES),
                        .plain = malloc(COPY_BYTES),
                        .plain2 = malloc(COPY_BYTES)};
    CHECK(cuMemHostAlloc(&b.pinned, COPY_BYTES, 0));
    if (!b.plain || !b.plain2)
        exit(1);
    memset(b.plain, 1, COPY_BYTES);
    memset(b.plain2, 2, COPY_BYTES);
    memset(b.pinned, 3, COPY_BYTES);
    bench_copy("64 MiB to the device, pinned", &b, copy_h2d);
    bench_copy("64 MiB to the host, pinned", &b, copy_d2h);
    bench_copy("64 MiB on the device", &b, copy_d2d);
    bench_copy("64 MiB to the device, pageable", &b, copy_h2d_pageable);
    bench_copy("64 MiB to the host, pageable", &b, copy_d2h_pageable);
    CHECK(cuMemFree_v2(b.device));
    CHECK(cuMemFree_v2(b.device2));
    CHECK(cuMemFreeHost(b.pinned));
    free(b.plain);
    free(b.plain2);
}

/* ---- whose time it is ---- */

struct shares {
    double kernels, copies, host, caller;
};

/* Processor time so far, by what simgpu calls its threads, in us. */
static struct shares thread_times(void)
{
    struct shares s = {0};
    DIR *tasks = opendir("/proc/self/task");
    for (struct dirent *task; tasks && (task = readdir(tasks));) {
        char path[320], name[64] = "", text[128];
        unsigned long long ns = 0;
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", task->d_name);
        FILE *f = fopen(path, "r");
        if (!f)
            continue;
        if (!fgets(name, sizeof name, f))
            *name = 0;
        fclose(f);
        snprintf(path, sizeof path, "/proc/self/task/%s/schedstat", task->d_name);
        f = fopen(path, "r");
        if (!f)
            continue;
        if (fgets(text, sizeof text, f))
            ns = strtoull(text, NULL, 10); /* the first of three numbers: time on a processor */
        fclose(f);
        double *to = !strncmp(name, "simgpu-worker", 13) ? &s.kernels
                     : !strncmp(name, "simgpu-copy", 11) ? &s.copies
                     : !strncmp(name, "simgpu-host", 11) ? &s.host
                                                         : &s.caller;
        *to += (double)ns * 1e-3;
    }
    if (tasks)
        closedir(tasks);
    return s;
}

struct flag {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool set;
};

static void CUDA_CB raise_flag(void *data)
{
    struct flag *flag = data;
    pthread_mutex_lock(&flag->lock);
    flag->set = true;
    pthread_cond_signal(&flag->changed);
    pthread_mutex_unlock(&flag->lock);
}

/* A thread that waits inside the driver helps with kernels; here it sleeps outside, so that each engine shows its own. */
static void wait_outside(void)
{
    struct flag flag = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false};
    CHECK(cuLaunchHostFunc(stream, raise_flag, &flag));
    pthread_mutex_lock(&flag.lock);
    while (!flag.set)
        pthread_cond_wait(&flag.changed, &flag.lock);
    pthread_mutex_unlock(&flag.lock);
}

static void show_shares(const char *name, struct shares before, double took_us)
{
    struct shares after = thread_times();
    double kernels = after.kernels - before.kernels, copies = after.copies - before.copies;
    double other = after.host - before.host + after.caller - before.caller, all = kernels + copies + other;
    printf("%-34s kernels %5.1f %%, copies %5.1f %%, driver and host functions %5.1f %% of %.0f ms on all cores"
           " in %.0f ms\n",
           name, 100 * kernels / all, 100 * copies / all, 100 * other / all, all * 1e-3, took_us * 1e-3);
}

/* Upload, multiply, download; and many small launches. */
static void bench_shares(void)
{
    int n = 256, rounds = 100;
    size_t bytes = (size_t)4 << 20;
    CUdeviceptr a = device_memory(bytes), b = device_memory(bytes), c = device_memory(bytes);
    void *pinned, *params[] = {&c, &a, &b, &n};
    CHECK(cuMemHostAlloc(&pinned, bytes, 0));
    memset(pinned, 0, bytes);
    CUfunction f = function("matmul");
    wait_outside();
    struct shares before = thread_times();
    double start = now_us();
    for (int i = 0; i < rounds; i++) {
        CHECK(cuMemcpyHtoDAsync_v2(a, pinned, bytes, stream));
        launch(f, 16, 16, 16, 16, params);
        CHECK(cuMemcpyDtoHAsync_v2(pinned, c, bytes, stream));
    }
    wait_outside();
    show_shares("4 MiB up, matmul 256, 4 MiB down", before, now_us() - start);
    before = thread_times();
    start = now_us();
    f = function("empty");
    for (int i = 0; i < 100 * rounds; i++)
        launch(f, 1, 1, 32, 1, NULL);
    wait_outside();
    show_shares("10,000 empty kernels", before, now_us() - start);
    CHECK(cuMemFree_v2(a));
    CHECK(cuMemFree_v2(b));
    CHECK(cuMemFree_v2(c));
    CHECK(cuMemFreeHost(pinned));
}

int main(void)
{
    CUcontext context;
    setenv("SIMGPU", "h200", 0);
    CHECK(cuInit(0));
    CHECK(cuCtxCreate_v2(&context, 0, 0));
    char *text = malloc(kernels_ptx_bytes + 1);
    if (!text)
        return 1;
    memcpy(text, kernels_ptx, kernels_ptx_bytes);
    text[kernels_ptx_bytes] = 0;
    CHECK(cuModuleLoadData(&module, text));
    free(text);
    CHECK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    bench_round_trip("empty kernel, stream synchronised", sync_stream, 1);
    bench_round_trip("empty kernel, context synchronised", cuCtxSynchronize, 1);
    bench_round_trip("128 empty blocks", sync_stream, 128);
    bench_stream_of_launches();
    bench_matmul();
    bench_axpy();
    bench_copies();
    bench_shares();
    return 0;
}
