/*
 * A job with unusual processes, threads, contexts or devices, for test_processes.c: process_job MODE [ARGUMENT]. It prints the same with
 * and without headroom.
 */
#include "process_job.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- threads ---- */

#define THREADS 8

static pthread_barrier_t started;
static CUcontext shared_context;

static void *late_worker(void *arg)
{
    struct set set;
    pthread_barrier_wait(&started); /* made before cuInit, used after it */
    set_make(&set, shared_context, 2, (unsigned)(uintptr_t)arg);
    for (int round = 0; round < 3; round++)
        set_add(&set);
    set_check(&set);
    set_free(&set);
    return NULL;
}

static void *racing_worker(void *arg)
{
    CUcontext context;
    struct set set;
    pthread_barrier_wait(&started); /* all call cuInit at once */
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&context, 0));
    set_make(&set, context, 2, (unsigned)(uintptr_t)arg);
    set_add(&set);
    set_check(&set);
    set_free(&set);
    OK(cuDevicePrimaryCtxRelease_v2(0));
    return NULL;
}

static int threads_mode(void *(*body)(void *), int main_starts)
{
    pthread_t thread[THREADS];
    NEED(pthread_barrier_init(&started, NULL, THREADS + (unsigned)main_starts) == 0);
    for (uintptr_t i = 0; i < THREADS; i++)
        NEED(pthread_create(&thread[i], NULL, body, (void *)(i + 1)) == 0);
    if (main_starts) {
        shared_context = context_on(0);
        pthread_barrier_wait(&started);
    }
    for (int i = 0; i < THREADS; i++)
        NEED(pthread_join(thread[i], NULL) == 0);
    puts("all threads are done");
    return 0;
}

/* ---- contexts ---- */

#define CONTEXTS 6

static size_t free_bytes(void)
{
    size_t left, total;
    OK(cuMemGetInfo_v2(&left, &total));
    return left;
}

/* Contexts of one device, of which every other one goes with all that it has, again and again; the others' memory stays. */
static int contexts_mode(void)
{
    struct set set[CONTEXTS];
    CUcontext first = context_on(0);
    size_t before = 0;
    for (unsigned i = 0; i < CONTEXTS; i++)
        set_make(&set[i], context_on(0), 4, i);
    for (unsigned round = 0; round < 8; round++) {
        for (unsigned i = 0; i < CONTEXTS; i++)
            set_add(&set[i]);
        for (unsigned i = round % 2; i < CONTEXTS; i += 2) {
            OK(cuCtxDestroy_v2(set[i].context)); /* a kernel may be under way in it */
            set_make(&set[i], context_on(0), 4, 100 * round + i);
        }
        for (unsigned i = 0; i < CONTEXTS; i++)
            set_check(&set[i]);
        OK(cuCtxSetCurrent(first));
        if (round == 1)
            before = free_bytes();
        NEED(round < 2 || free_bytes() == before); /* nothing is left of what went */
    }
    for (unsigned i = 0; i < CONTEXTS; i++)
        OK(cuCtxDestroy_v2(set[i].context));
    puts("contexts come and go");
    return 0;
}

/* A primary context that is reset or released with live memory, while another context of the device has some, too. */
static int primary_mode(void)
{
    struct set other, set;
    size_t before = 0;
    OK(cuInit(0));
    set_make(&other, context_on(0), 4, 77);
    for (unsigned round = 0; round < 10; round++) {
        CUcontext primary;
        unsigned flags;
        int active;
        OK(cuDevicePrimaryCtxRetain(&primary, 0));
        set_make(&set, primary, 6, round);
        set_add(&set);
        set_add(&other);
        if (round % 3 != 0)
            set_check(&set);
        OK(round % 2 ? cuDevicePrimaryCtxReset_v2(0) : cuDevicePrimaryCtxRelease_v2(0));
        OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
        printf("round %u: the primary context is %s\n", round, active ? "active" : "not active");
        set_check(&other);
        if (round == 1)
            before = free_bytes();
        NEED(round < 2 || free_bytes() == before);
    }
    return 0;
}

/* ---- another process on the same card ---- */

/* Says on descriptor 3 that all is allocated and used, and goes on when 4 says so: then both have their memory at once. */
static int beside_mode(void)
{
    struct set set;
    char c = 'r';
    set_make(&set, context_on(0), BUFFERS, 5);
    set_add(&set);
    OK(cuCtxSynchronize());
    NEED(write(3, &c, 1) == 1 && read(4, &c, 1) == 1);
    for (int round = 0; round < 6; round++)
        set_add(&set);
    set_check(&set);
    set_free(&set);
    puts("worked beside another");
    return 0;
}

static int start_mode(void)
{
    CUcontext context;
    CUdeviceptr p;
    NEED(cuInit(0) == CUDA_SUCCESS && cuCtxCreate_v2(&context, 0, 0) == CUDA_SUCCESS);
    NEED(cuMemAlloc_v2(&p, 1 << 20) == CUDA_SUCCESS && cuMemsetD8_v2(p, 1, 1 << 20) == CUDA_SUCCESS);
    puts("started");
    return 0;
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    if (strcmp(mode, "work") == 0) {
        work(0, argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 1);
        return 0;
    }
    if (strcmp(mode, "start") == 0)
        return start_mode();
    if (strcmp(mode, "threads") == 0)
        return threads_mode(late_worker, 1);
    if (strcmp(mode, "race") == 0)
        return threads_mode(racing_worker, 0);
    if (strcmp(mode, "contexts") == 0)
        return contexts_mode();
    if (strcmp(mode, "primary") == 0)
        return primary_mode();
    if (strcmp(mode, "beside") == 0)
        return beside_mode();
    if (strcmp(mode, "devices") == 0)
        return devices_mode();
    return processes_mode(mode, argv[0], argc > 2 ? argv[2] : NULL);
}
