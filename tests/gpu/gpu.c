#include "gpu.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/*
 * The parent never touches CUDA. A child runs items in turn and tells through a pipe when one begins and ends, with the rows in
 * between; so what hangs, dies or leaves a broken context costs one item, and setting up costs one start for many. Lines of the
 * pipe: '@INDEX' begin, '.' end, '{...}' a row.
 */

#define ITEM_SECONDS 20  /* unless --item-seconds says otherwise */
#define START_SECONDS 40 /* a child's first item, with the set-up of the driver */
#define NO_GPU 77

extern const unsigned char gpu_ptx[];

struct gpu_driver drv;
struct gpu_here here;

static struct {
    const char *program;
    const struct gpu_item *items;
    size_t count, current;
    bool *chosen;
    FILE *rows;
    bool spoiled; /* the item may have left something behind */
    long item_seconds;
} run = {.item_seconds = ITEM_SECONDS};

static const char *const verdict_names[] = {"ok", "different", "not supported", "seen", "failed"};

uint64_t gpu_clock_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

const char *gpu_error(CUresult result)
{
    const char *name = NULL;
    if (!drv.cuGetErrorName || drv.cuGetErrorName(result, &name) != CUDA_SUCCESS || !name)
        return "an error without a name";
    return name;
}

/* ---- rows ---- */

static void put_text(FILE *f, const char *text)
{
    fputc('"', f);
    for (; *text; text++)
        if (*text == '"' || *text == '\\')
            fprintf(f, "\\%c", *text);
        else
            fputc((unsigned char)*text < ' ' ? ' ' : *text, f);
    fputc('"', f);
}

static void put_head(FILE *f, const struct gpu_item *item, const char *name, const char *verdict)
{
    fprintf(f, "{\"program\": \"%s\", \"name\": \"%s%s%s\", \"says\": ", run.program, item->name, name ? "." : "",
            name ? name : "");
    put_text(f, item->says);
    fprintf(f, ", \"required\": %s, \"verdict\": \"%s\"", item->required ? "true" : "false", verdict);
}

void gpu_row(enum gpu_verdict verdict, const char *name, const char *format, ...)
{
    char text[512];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    put_head(run.rows, &run.items[run.current], name, verdict_names[verdict]);
    fputs(", \"saw\": ", run.rows);
    put_text(run.rows, text);
    fputs("}\n", run.rows);
    if (verdict == GPU_DIFFERENT_ || verdict == GPU_FAILED_ || verdict == GPU_LACKS_)
        run.spoiled = true;
}

void gpu_number(const char *name, double value, const char *unit)
{
    put_head(run.rows, &run.items[run.current], name, "seen");
    fprintf(run.rows, ", \"saw\": \"%.4g %s\", \"value\": %.6g, \"unit\": \"%s\"}\n", value, unit, value, unit);
}

/* ---- a child ---- */

static int say_no_gpu(const char *what, CUresult result)
{
    fprintf(stderr, "%s: %s: %s\n", run.program, what, result == CUDA_SUCCESS ? "nothing" : gpu_error(result));
    return NO_GPU;
}

static int look_up(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        fprintf(stderr, "%s: there is no CUDA driver here: %s\n", run.program, dlerror());
        return NO_GPU;
    }
#define GPU_LOOK(name) drv.name = (__typeof__(drv.name))dlsym(library, #name);
    GPU_FUNCTIONS(GPU_LOOK)
#undef GPU_LOOK
    return 0;
}

static int set_up(void)
{
    int status = look_up();
    CUresult r;
    size_t free_bytes = 0, total_bytes;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
    if (status)
        return status;
    if ((r = drv.cuInit(0)) != CUDA_SUCCESS)
        return say_no_gpu("cuInit", r);
    if ((r = drv.cuDeviceGet(&here.device, 0)) != CUDA_SUCCESS)
        return say_no_gpu("cuDeviceGet", r);
    if ((r = drv.cuDevicePrimaryCtxRetain(&here.context, here.device)) != CUDA_SUCCESS ||
        (r = drv.cuCtxSetCurrent(here.context)) != CUDA_SUCCESS)
        return say_no_gpu("a context", r);
    if ((r = drv.cuModuleLoadData(&here.module, gpu_ptx)) != CUDA_SUCCESS)
        return say_no_gpu("cuModuleLoadData", r);
    prop.location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = here.device};
    if ((r = drv.cuDriverGetVersion(&here.driver_version)) != CUDA_SUCCESS ||
        (r = drv.cuMemGetAllocationGranularity(&here.chunk_bytes, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM)) !=
            CUDA_SUCCESS ||
        (r = drv.cuMemGetInfo_v2(&free_bytes, &total_bytes)) != CUDA_SUCCESS)
        return say_no_gpu("what the device says of itself", r);
    here.large_bytes = free_bytes / 8 < (size_t)256 << 20 ? free_bytes / 8 : (size_t)256 << 20;
    here.large_bytes -= here.large_bytes % here.chunk_bytes;
    return here.large_bytes ? 0 : say_no_gpu("free memory", CUDA_SUCCESS);
}

static _Noreturn void child(int rows, size_t first)
{
    int status;
    run.rows = fdopen(rows, "w");
    if (!run.rows)
        _exit(1);
    setvbuf(run.rows, NULL, _IOLBF, 4096);
    status = set_up();
    for (run.current = first; status == 0 && run.current < run.count && !run.spoiled; run.current++) {
        CUresult r;
        if (!run.chosen[run.current])
            continue;
        fprintf(run.rows, "@%zu\n", run.current);
        run.items[run.current].run();
        if (!run.spoiled && (r = drv.cuCtxSynchronize()) != CUDA_SUCCESS)
            gpu_row(GPU_FAILED_, NULL, "afterwards the context has failed: %s", gpu_error(r));
        fputs(".\n", run.rows);
    }
    fflush(NULL);
    _exit(status); /* nothing is torn down: what a check has broken must not hang here */
}

/* ---- the parent ---- */

struct watch {
    pid_t pid;
    int fd;
    size_t current;
    bool begun, within; /* some item; one right now */
};

static int begin_child(struct watch *w, size_t first)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        return -1;
    fflush(NULL);
    w->pid = fork();
    if (w->pid == 0) {
        close(ends[0]);
        child(ends[1], first);
    }
    close(ends[1]);
    w->fd = ends[0];
    w->current = first;
    w->begun = w->within = false;
    if (w->pid < 0)
        close(ends[0]);
    return w->pid < 0 ? -1 : 0;
}

static void parent_row(size_t index, const char *verdict, const char *saw)
{
    put_head(stdout, &run.items[index], NULL, verdict);
    fputs(", \"saw\": ", stdout);
    put_text(stdout, saw);
    fputs("}\n", stdout);
}

/* A line of the child's within the time; 0 at its end, -1 if the time is over. */
static int next_line(struct watch *w, char *line, size_t bytes, uint64_t deadline_ns)
{
    for (size_t n = 0;;) {
        uint64_t now = gpu_clock_ns();
        struct pollfd p = {.fd = w->fd, .events = POLLIN};
        int ready = now >= deadline_ns ? 0 : poll(&p, 1, (int)((deadline_ns - now) / 1000000u) + 1);
        if (ready < 0 && errno == EINTR)
            continue;
        if (ready <= 0)
            return -1;
        if (read(w->fd, line + n, 1) != 1)
            return 0;
        if (line[n] == '\n' || n + 2 == bytes) {
            line[n] = 0;
            return 1;
        }
        n++;
    }
}

/* Until the child ends. The index of the item to go on with; sets *status_out to a status to end with, or 0. */
static size_t watch_child(struct watch *w, uint64_t end_ns, int *status_out)
{
    char line[2048], saw[128];
    uint64_t deadline_ns = gpu_clock_ns() + START_SECONDS * UINT64_C(1000000000);
    int got, status = 0;
    *status_out = 0;
    while ((got = next_line(w, line, sizeof line, deadline_ns < end_ns ? deadline_ns : end_ns)) > 0) {
        if (line[0] == '{') {
            puts(line);
            continue;
        }
        if (line[0] == '@') {
            w->current = strtoul(line + 1, NULL, 10);
            w->begun = w->within = true;
            deadline_ns = gpu_clock_ns() + (uint64_t)run.item_seconds * UINT64_C(1000000000);
        } else if (line[0] == '.') {
            w->within = false;
            w->current++;
        }
    }
    if (got < 0)
        kill(w->pid, SIGKILL);
    close(w->fd);
    while (waitpid(w->pid, &status, 0) < 0 && errno == EINTR) {
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == NO_GPU) {
        *status_out = 2;
        return run.count;
    }
    if (got == 0 && !w->within && WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return w->current;
    if (!w->begun) /* it would be the same with the next one */
        *status_out = 1;
    if (got < 0)
        snprintf(saw, sizeof saw, "it was ended by force");
    else if (WIFSIGNALED(status))
        snprintf(saw, sizeof saw, "signal %d", WTERMSIG(status));
    else
        snprintf(saw, sizeof saw, "exit status %d", WEXITSTATUS(status));
    while (w->current < run.count && !run.chosen[w->current])
        w->current++;
    if (w->current < run.count)
        parent_row(w->current, got < 0 ? "hang" : "died", saw);
    return w->current + 1;
}

static bool choose(int argc, char **argv, long *seconds_out)
{
    bool any = false;
    for (int i = 1; i < argc; i++) {
        size_t k = 0;
        if (strcmp(argv[i], "--seconds") == 0 && i + 1 < argc) {
            *seconds_out = strtol(argv[++i], NULL, 10);
            continue;
        }
        if (strcmp(argv[i], "--item-seconds") == 0 && i + 1 < argc) {
            run.item_seconds = strtol(argv[++i], NULL, 10);
            continue;
        }
        while (k < run.count && strcmp(run.items[k].name, argv[i]) != 0)
            k++;
        if (k == run.count) {
            fprintf(stderr, "%s: there is no item '%s' (--list names them)\n", run.program, argv[i]);
            return false;
        }
        any = run.chosen[k] = true;
    }
    for (size_t k = 0; !any && k < run.count; k++)
        run.chosen[k] = true;
    return true;
}

int gpu_main(int argc, char **argv, const char *program, const struct gpu_item *items, size_t count)
{
    long seconds = 600;
    int status = 0;
    run.program = program;
    run.items = items;
    run.count = count;
    if (argc == 2 && strcmp(argv[1], "--list") == 0) {
        for (size_t i = 0; i < count; i++)
            printf("%s\n", items[i].name);
        return 0;
    }
    setenv("CUDA_MODULE_LOADING", "EAGER", 0); /* else the first use of a kernel in a capture loads it there */
    run.chosen = calloc(count, sizeof *run.chosen);
    if (!run.chosen || !choose(argc, argv, &seconds)) {
        free(run.chosen);
        return 2;
    }
    uint64_t end_ns = gpu_clock_ns() + (uint64_t)seconds * UINT64_C(1000000000);
    for (size_t next = 0; status == 0 && next < count;) {
        struct watch w;
        if (!run.chosen[next]) {
            next++;
        } else if (gpu_clock_ns() >= end_ns) {
            parent_row(next++, "skipped", "no time was left");
        } else if (begin_child(&w, next) != 0) {
            perror(program);
            status = 1;
        } else {
            next = watch_child(&w, end_ns, &status);
        }
        fflush(stdout);
    }
    free(run.chosen);
    return status;
}
