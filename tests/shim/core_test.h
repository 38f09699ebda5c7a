/*
 * White-box tests of the shim: the test program contains the library's own objects, so the driver API it calls is headroom, and
 * the rooms behind it can be asked directly. simgpu is the driver (HEADROOM_DRIVER). Each test is a process of its own and
 * sets its machine before cuInit.
 */
#ifndef CORE_TEST_H
#define CORE_TEST_H

#include <criterion/criterion.h>

#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/lock.h"
#include "driver/driver.h"
#include "residency/access.h"
#include "residency/move.h"
#include "space/space.h"
#include "stats/stats.h"
#include "tier/tier.h"

#define MIB ((size_t)1 << 20)
#define CHUNK (2 * MIB)

/* The leak checker (where there is one) also runs in processes of a test's own, which hold what Criterion left behind. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libcriterion\n";
}

/* As cr_assert, and usable in a process of the test's own (see apart), where the framework's assertions are not. */
#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            check_failed(__FILE__, __LINE__, #condition, " " __VA_ARGS__);                                             \
    } while (0)
#define GIVES(code, call)                                                                                              \
    do {                                                                                                               \
        CUresult got_ = (call);                                                                                        \
        CHECK(got_ == (code), "%s gave %d, not " #code, #call, (int)got_);                                             \
    } while (0)
#define OK(call) GIVES(CUDA_SUCCESS, call)

#define REPORT_MOST ((size_t)1 << 20) /* of a large machine: each of its links has a line */

static bool is_apart; /* this is such a process */
static inline __attribute__((format(printf, 4, 5))) void check_failed(const char *file, int line, const char *condition,
                                                                      const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (is_apart) {
        fprintf(stderr, "%s:%d: %s: %s\n", file, line, condition, text);
        _exit(9);
    }
    cr_assert_fail("%s:%d: %s: %s", file, line, condition, text);
}

/* A context on GPU 0 of a machine given as in SIMGPU; deny as in SIMGPU_DENY ("" = nothing). */
static inline CUcontext machine(const char *description, const char *deny)
{
    CUcontext context;
    setenv("SIMGPU", description, 1);
    setenv("HEADROOM_STATS", "off", 0);
    if (deny[0])
        setenv("SIMGPU_DENY", deny, 1);
    OK(cuInit(0));
    OK(cuCtxCreate_v2(&context, 0, 0));
    return context;
}

/* The kernels of kernels.cu. */
extern const unsigned char shim_ptx[];
static inline CUfunction kernel(const char *name)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* several threads may be the first */
    static CUmodule module;
    CUfunction f;
    pthread_mutex_lock(&lock);
    if (!module)
        OK(cuModuleLoadData(&module, shim_ptx));
    pthread_mutex_unlock(&lock);
    OK(cuModuleGetFunction(&f, module, name));
    return f;
}
static inline CUresult launch(CUfunction f, unsigned blocks, unsigned threads, CUstream s, void **params)
{
    return cuLaunchKernel(f, blocks, 1, 1, threads, 1, 1, 0, s, params, NULL);
}
/* y[i] += a for one word in every `stride` words, i < n. */
static inline CUresult stride_add(CUdeviceptr y, uint64_t stride, uint32_t n, uint32_t a, CUstream s)
{
    return launch(kernel("stride_add"), 1 + n / 512, 128, s, (void *[]){&y, &stride, &n, &a});
}
/* y[i] = y[i] * a + b, `rounds` times over n words: long. */
static inline CUresult slow_affine(CUdeviceptr y, uint32_t a, uint32_t b, uint32_t n, uint32_t rounds, CUstream s)
{
    return launch(kernel("slow_affine"), 1, 128, s, (void *[]){&y, &a, &b, &n, &rounds});
}

/*
 * Runs body in a process of its own, up to its exit handlers, and returns simgpu's report of it (the caller frees it). A CHECK
 * that fails in body makes this fail, too; cr_assert and its kin must not be used there.
 */
static inline char *apart(void (*body)(void))
{
    static const char name[] = "SIMGPU_REPORT";
    char path[] = "/tmp/shim-report-XXXXXX";
    int fd = mkstemp(path), status;
    volatile int *done = mmap(NULL, sizeof *done, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert(fd >= 0 && done != MAP_FAILED);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        is_apart = true;
        setenv(name, path, 1);
        body();
        *done = 1;
        exit(0);
    }
    cr_assert(child > 0 && waitpid(child, &status, 0) == child);
    char *report = calloc(1, REPORT_MOST);
    CHECK(*done && WIFEXITED(status) && WEXITSTATUS(status) == 0, "the process ended early: status 0x%x", status);
    cr_assert(report && read(fd, report, 1) >= 0);
    close(fd);
    fd = open(path, O_RDONLY | O_CLOEXEC); /* it was replaced, not written in place */
    cr_assert(read(fd, report, REPORT_MOST - 1) > 0, "no report");
    close(fd);
    unlink(path);
    return report;
}
/* A figure of the report, summed over the GPUs; name with its opening quote. */
static inline unsigned long long figure(const char *report, const char *quoted_name)
{
    unsigned long long sum = 0;
    cr_assert(strstr(report, quoted_name), "%s is not in the report:\n%s", quoted_name, report);
    for (const char *at = report; (at = strstr(at, quoted_name)); at++)
        sum += strtoull(at + strlen(quoted_name) + 3, NULL, 10);
    return sum;
}
static inline void was_safe(const char *report)
{
    cr_assert_eq(figure(report, "\"unmapped_in_flight"), 0, "%s", report);
    cr_assert_eq(figure(report, "\"freed_in_flight"), 0, "%s", report);
}

/* Whether the durations of a long run are wanted (tests/run.sh --long). */
static inline bool is_long(void)
{
    const char *text = getenv("HEADROOM_TEST_LONG");
    return text && *text && strcmp(text, "0") != 0;
}

/* A pattern that differs in every word of every buffer. */
static inline uint64_t pattern(uint64_t seed, uint64_t index)
{
    uint64_t x = (seed << 40) ^ index;
    x ^= x >> 31;
    x *= UINT64_C(0x9e3779b97f4a7c15);
    return x ^ (x >> 29);
}
static inline void fill(void *host, size_t bytes, uint64_t seed, uint64_t first_index)
{
    for (size_t i = 0; i < bytes / 8; i++)
        ((uint64_t *)host)[i] = pattern(seed, first_index + i);
}
static inline void check(const void *host, size_t bytes, uint64_t seed, uint64_t first_index)
{
    for (size_t i = 0; i < bytes / 8; i++)
        if (((const uint64_t *)host)[i] != pattern(seed, first_index + i))
            check_failed(__FILE__, __LINE__, "word", "%zu of buffer %llu is wrong", (size_t)first_index + i,
                         (unsigned long long)seed);
}

#endif
