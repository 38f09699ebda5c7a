/*
 * What preloading the library costs processes, beside a library that only forwards and beside none: start and end of 300 processes that
 * begin at once, without CUDA and with it; and C++ exceptions and cancelled threads. Medians, as tables.
 *
 *   bench_preload LIBHEADROOM FORWARD DRIVER [UNWIND_HOST UNWIND]
 *
 * Times of processes are CPU time, user and system, from the fork to the end: with 300 at once others wait in any wall-clock time.
 */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define AT_ONCE 300
#define ROUNDS 5
#define UNWIND_ROUNDS 9

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *values, size_t n)
{
    qsort(values, n, sizeof *values, by_value);
    return values[n / 2];
}

static void fail(const char *what)
{
    fprintf(stderr, "bench_preload: %s\n", what);
    exit(1);
}

/* What the processes do: nothing, or what a runtime does at its start. */
static int be_process(const char *what)
{
    if (strcmp(what, "idle") == 0)
        return 0;
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *context;
    if (!cuda)
        return 1;
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(cuda, "cuInit");
    int (*create)(void **, unsigned, int) = (int (*)(void **, unsigned, int))dlsym(cuda, "cuCtxCreate_v2");
    int (*destroy)(void *) = (int (*)(void *))dlsym(cuda, "cuCtxDestroy_v2");
    int (*alloc)(unsigned long long *, size_t) = (int (*)(unsigned long long *, size_t))dlsym(cuda, "cuMemAlloc_v2");
    unsigned long long p;
    return init(0) || create(&context, 0, 0) || alloc(&p, 1 << 20) || destroy(context);
}

static void one(const char *self, const char *what, const char *preload, int gate)
{
    char c;
    if (preload)
        setenv("LD_PRELOAD", preload, 1);
    if (read(gate, &c, 1) != 0) /* until all are there */
        _exit(1);
    execl(self, self, what, (char *)NULL);
    _exit(127);
}

/* Median CPU time of 300 processes in microseconds. */
static double batch(const char *self, const char *what, const char *preload)
{
    static double us[AT_ONCE];
    int gate[2], status;
    struct rusage usage;
    if (pipe(gate) != 0)
        fail("no pipe");
    for (int i = 0; i < AT_ONCE; i++) {
        pid_t child = fork();
        if (child < 0)
            fail("no process");
        if (child == 0) {
            close(gate[1]);
            one(self, what, preload, gate[0]);
        }
    }
    close(gate[0]);
    close(gate[1]);
    for (int i = 0; i < AT_ONCE; i++) {
        if (wait4(-1, &status, 0, &usage) < 0 || status != 0)
            fail("a process failed");
        us[i] = 1e6 * (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
                (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
    }
    return median(us, AT_ONCE);
}

static void start_up(const char *self, const char *headroom, const char *forward)
{
    static const char *const modes[] = {"idle", "cuda"};
    const char *const preload[] = {NULL, forward, headroom};
    printf("%d processes at once, CPU time of each in ms (median of %d batches)\n", AT_ONCE, ROUNDS);
    printf("%-22s %10s %10s %10s %22s\n", "", "alone", "forwarding", "headroom", "headroom - forwarding");
    for (int m = 0; m < 2; m++) {
        double ms[3][ROUNDS], middle[3];
        for (int round = 0; round < ROUNDS; round++)
            for (int p = 0; p < 3; p++) /* in turns: the machine may be busier at one time than at another */
                ms[p][round] = m == 1 && p == 0 ? 0 : batch(self, modes[m], preload[p]) / 1e3;
        for (int p = 0; p < 3; p++)
            middle[p] = median(ms[p], ROUNDS);
        printf("%-22s %10.3f %10.3f %10.3f %22.3f\n", m ? "context, allocation" : "no CUDA", middle[0], middle[1],
               middle[2], middle[2] - middle[1]);
    }
}

static void time_unwinding(const char *host, const char *library, const char *preload, double *exception_us_out,
                           double *cancel_us_out)
{
    char line[4 * 4200];
    snprintf(line, sizeof line, "%s%s '%s' time '%s'", preload ? "LD_PRELOAD=" : "", preload ? preload : "", host,
             library);
    FILE *f = popen(line, "r"); /* NOLINT(cert-env33-c): a bench of one's own machine */
    char text[128] = "";
    if (!f || !fgets(text, sizeof text, f) || pclose(f) != 0)
        fail("the host of C++ failed");
    char *rest;
    *exception_us_out = strtod(text, &rest);
    *cancel_us_out = strtod(rest, NULL);
}

static void unwinding(const char *host, const char *library, const char *headroom)
{
    double exception_us[2][UNWIND_ROUNDS], cancel_us[2][UNWIND_ROUNDS];
    for (int round = 0; round < UNWIND_ROUNDS; round++)
        for (int p = 0; p < 2; p++)
            time_unwinding(host, library, p ? headroom : NULL, &exception_us[p][round], &cancel_us[p][round]);
    double e[2], c[2];
    for (int p = 0; p < 2; p++) {
        e[p] = median(exception_us[p], UNWIND_ROUNDS);
        c[p] = median(cancel_us[p], UNWIND_ROUNDS);
    }
    printf("\nC++ in a host of C, microseconds of CPU time each (median of %d runs)\n", UNWIND_ROUNDS);
    printf("%-22s %10s %10s %10s\n", "", "alone", "headroom", "ratio");
    printf("%-22s %10.3f %10.3f %10.3f\n", "exception, ten frames", e[0], e[1], e[1] / e[0]);
    printf("%-22s %10.3f %10.3f %10.3f\n", "cancelled thread", c[0], c[1], c[1] / c[0]);
}

int main(int argc, char **argv)
{
    char self[4096], folder[] = "/tmp/bench-preload-XXXXXX";
    if (argc == 2)
        return be_process(argv[1]);
    if (argc != 4 && argc != 6)
        fail("LIBHEADROOM FORWARD DRIVER [UNWIND_HOST UNWIND]");
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0 || !mkdtemp(folder))
        fail("no place");
    self[n] = 0;
    char *headroom = realpath(argv[1], NULL), *forward = realpath(argv[2], NULL), *driver = realpath(argv[3], NULL);
    char *host = argc == 6 ? realpath(argv[4], NULL) : NULL, *library = argc == 6 ? realpath(argv[5], NULL) : NULL;
    if (!headroom || !forward || !driver || (argc == 6 && (!host || !library)) || chdir(folder) != 0)
        fail("no such file"); /* stats logs, as by default, go into the folder */
    setenv("HEADROOM_DRIVER", driver, 1);
    setenv("SIMGPU", "h200,vram=64M,host=256M", 0);
    start_up(self, headroom, forward);
    if (host)
        unwinding(host, library, headroom);
    fflush(stdout);
    execl("/bin/rm", "rm", "-r", folder, (char *)NULL);
    return 1;
}
