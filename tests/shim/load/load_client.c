/*
 * The program under test of the loading tests: load_client CHECK. It does what a job or a job's runtime does to find and call the
 * driver and compares with what the fake driver says of itself. Exits 0, or names on stderr what is wrong and exits 1.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "load_client.h"

static void *library;
const struct fake_stats *fake;

void fail(const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fputc('\n', stderr);
    exit(1);
}

void *find(const char *name)
{
    void *address = dlsym(library, name);
    if (address == NULL)
        fail("dlsym(%s): %s", name, dlerror());
    return address;
}

bool is_ours(const void *address)
{
    Dl_info info, own;
    return dladdr(address, &info) != 0 && dladdr(dlsym(RTLD_DEFAULT, "headroom_version"), &own) != 0 &&
           info.dli_fbase == own.dli_fbase;
}

/* As CUDA's runtime does it: dlopen, then everything by dlsym from the handle. */
static void open_library(void)
{
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL)
        fail("%s", dlerror());
    if (dlsym(RTLD_DEFAULT, "headroom_version") == NULL)
        fail("headroom is not preloaded");
    const void *table = NULL;
    int (*get_table)(const void **, const void *) = find("cuGetExportTable");
    if (get_table(&table, NULL) != 0 || table == NULL)
        fail("cuGetExportTable does not reach the driver");
    fake = table;
}

static void expect_ours(const char *what, void *handle)
{
    if (handle == NULL)
        fail("%s: %s", what, dlerror());
    void *address = dlsym(handle, "cuMemAlloc_v2");
    if (address == NULL || !is_ours(address))
        fail("%s leads past headroom", what);
}

static void check_deepbind(void)
{
    expect_ours("dlopen with RTLD_DEEPBIND", dlopen("libcuda.so.1", RTLD_NOW | RTLD_DEEPBIND));
    expect_ours("dlopen with RTLD_NOLOAD", dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD));
    expect_ours("dlopen with RTLD_LOCAL", dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL));
    void *plugin = dlopen(getenv("TEST_PLUGIN"), RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    if (plugin == NULL)
        fail("plugin: %s", dlerror());
    void *(*address)(void) = (void *(*)(void))dlsym(plugin, "plugin_driver_function");
    if (!is_ours(address()))
        fail("a library linked to the driver and opened with RTLD_DEEPBIND gets past headroom");
}

/* Newer runtimes ask for many of the driver's private tables while they start, each of which they call into directly. */
static void check_tables(void)
{
    int (*exported)(const void **, const void *) = find("cuGetExportTable"),
                                              (*found)(const void **, const void *) = NULL;
    int (*look_up)(const char *, void **, int, unsigned long long) =
        (int (*)(const char *, void **, int, unsigned long long))find("cuGetProcAddress");
    const void *table = NULL, *same = NULL;
    if (look_up("cuGetExportTable", (void **)&found, 3000, 0) != 0 || found == NULL || is_ours((void *)found))
        fail("cuGetExportTable is not the driver's own");
    for (int i = 0; i < 1000; i++) {
        if (exported(&table, fake) != 0 || found(&same, fake) != 0 || table != fake || same != fake || is_ours(table))
            fail("a table is not the driver's own");
    }
}

static void check_names(void)
{
    char path[4096];
    snprintf(path, sizeof path, "%s", getenv("TEST_DRIVER"));
    expect_ours("libcuda.so", dlopen("libcuda.so", RTLD_NOW));
    expect_ours("the driver's absolute path", dlopen(path, RTLD_NOW));
    if (dlopen("/nonexistent/libcuda.so.1", RTLD_NOW) != NULL)
        fail("a path without a file opens");
    if (dlopen("libcuda.so.1x", RTLD_NOW) != NULL || dlopen("libcudart-none.so", RTLD_NOW) != NULL)
        fail("a name that merely starts alike opens");
    if (dlopen(NULL, RTLD_NOW) == NULL)
        fail("dlopen(NULL) fails");
    if (getenv("TEST_SANITIZED") != NULL)
        return; /* a sanitizer's dlopen is the caller then, and its RUNPATH counts */
    void *plugin = dlopen(getenv("TEST_PLUGIN"), RTLD_NOW | RTLD_LOCAL);
    int (*opens_private)(void) = plugin != NULL ? (int (*)(void))dlsym(plugin, "plugin_opens_private") : NULL;
    if (opens_private == NULL || !opens_private())
        fail("the RUNPATH of the library that calls dlopen is lost");
}

static void check_arguments(void)
{
    long (*launch)(long, long, long, long, long, long, long, long) = find("cuOccupancyMaxPotentialBlockSizeWithFlags");
    if (launch(1, 2, 3, 4, 5, 6, 7, 8) != 0 || strcmp(fake->last(), "cuOccupancyMaxPotentialBlockSizeWithFlags") != 0)
        fail("the forwarder does not reach its function but %s", fake->last());
    for (long i = 0; i < 8; i++) {
        if (fake->arguments()[i] != i + 1)
            fail("argument %ld arrives as %ld", i, fake->arguments()[i]);
    }
}

/* The very first call of the process, through the stub that loads the driver. */
static void check_first_call(void)
{
    int (*set_float)(void *, int, float) = dlsym(RTLD_DEFAULT, "cuParamSetf");
    int (*get_table)(const void **, const void *) = dlsym(RTLD_DEFAULT, "cuGetExportTable");
    const void *table;
    if (set_float == NULL || set_float((void *)17, 4, 2.5f) != 0)
        fail("the first call of the process fails");
    get_table(&table, NULL);
    fake = table;
    if (fake->float_argument() != 2.5f || fake->arguments()[0] != 17 || fake->arguments()[1] != 4)
        fail("the first call of the process loses its arguments");
}

static void *first_call(void *start)
{
    int devices = 0;
    int (*count)(int *) = dlsym(RTLD_DEFAULT, "cuDeviceGetCount");
    pthread_barrier_wait(start);
    return count(&devices) == 0 && devices == 1 ? start : NULL;
}

static void check_threads(void)
{
    enum { THREADS = 16 };
    pthread_t thread[THREADS];
    pthread_barrier_t start;
    pthread_barrier_init(&start, NULL, THREADS);
    for (int i = 0; i < THREADS; i++) {
        if (pthread_create(&thread[i], NULL, first_call, &start) != 0)
            fail("no threads");
    }
    for (int i = 0; i < THREADS; i++) {
        void *result;
        pthread_join(thread[i], &result);
        if (result == NULL)
            fail("a first call on one of several threads fails");
    }
}

static void start_headroom(void)
{
    open_library();
    int (*init)(unsigned) = find("cuInit");
    if (init(0) != 0)
        fail("cuInit fails");
}

/* A function of the table that is refused for window memory, and one that takes its addresses in a structure. */
static int fill(unsigned long address)
{
    int (*function)(unsigned long, unsigned char, unsigned long, void *) = find("cuMemsetD8Async");
    return function(address, 1, 16, NULL);
}

static int batch(void)
{
    int (*function)(void *, unsigned, void *, unsigned) = find("cuStreamBatchMemOp_v2");
    return function(NULL, 0, NULL, 0);
}

static void expect_calls(const char *name, int wanted)
{
    if (fake->calls(name) != wanted)
        fail("%s reached the driver %d times, not %d", name, fake->calls(name), wanted);
}

static void check_refused(void)
{
    start_headroom();
    for (int i = 0; i < 2; i++) {
        if (fill(WINDOW_ADDRESS) != 801 || batch() != 801)
            fail("window memory gets to a function that has no hook");
    }
    expect_calls("cuMemsetD8Async", 0);
    if (fill(0x1000) != 0)
        fail("memory outside of the windows is refused");
    expect_calls("cuMemsetD8Async", 1);
}

static void check_passes(void)
{
    start_headroom();
    if (fill(WINDOW_ADDRESS) != 0 || batch() != 0)
        fail("a call is refused though headroom takes no part");
    expect_calls("cuMemsetD8Async", 1);
}

static void check_self_call(void)
{
    start_headroom();
    int devices;
    int (*count)(int *) = find("cuDeviceGetCount");
    if (count(&devices) != 0)
        fail("the driver does not reach its own functions");
}

static void check_fork(void)
{
    start_headroom();
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        int (*init)(unsigned) = find("cuInit");
        _exit(fill(WINDOW_ADDRESS) == 0 && batch() == 0 && init(0) == 0 && fill(WINDOW_ADDRESS) == 0 ? 0 : 3);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
        fail("the child of a fork is not transparent");
    if (batch() != 801)
        fail("the fork changed the parent");
}

static void check_no_driver(void)
{
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(RTLD_DEFAULT, "cuInit");
    int (*say)(int, const char **) = (int (*)(int, const char **))dlsym(RTLD_DEFAULT, "cuGetErrorString");
    int (*load)(void *, void *) = (int (*)(void *, void *))dlsym(RTLD_DEFAULT, "cuModuleLoadData");
    int (*alloc)(void *, size_t) = (int (*)(void *, size_t))dlsym(RTLD_DEFAULT, "cuMemAlloc_v2");
    const char *text = NULL;
    if (init(0) != 100 || load(NULL, NULL) != 100 || alloc(NULL, 4) != 100)
        fail("a call without a driver does not return CUDA_ERROR_NO_DEVICE");
    if (say(100, &text) != 0 || text == NULL)
        fail("the error has no text");
}

static int check_exit(void)
{
    start_headroom();
    fake->leave_main();
    return 7;
}

static const struct {
    const char *name;
    void (*run)(void);
    bool opens_itself;
} checks[] = {
    {"lookups", check_lookups, false},      {"self", check_self, false},          {"alike", check_alike, false},
    {"deepbind", check_deepbind, false},    {"names", check_names, false},        {"arguments", check_arguments, false},
    {"first-call", check_first_call, true}, {"threads", check_threads, true},     {"refused", check_refused, true},
    {"passes", check_passes, true},         {"self-call", check_self_call, true}, {"fork", check_fork, true},
    {"no-driver", check_no_driver, true},   {"later", check_later, false},        {"tables", check_tables, false},
};

int main(int argc, char **argv)
{
    const char *wanted = argc > 1 ? argv[1] : "";
    if (strcmp(wanted, "exit") == 0)
        return check_exit();
    for (size_t i = 0; i < sizeof checks / sizeof checks[0]; i++) {
        if (strcmp(checks[i].name, wanted) != 0)
            continue;
        if (!checks[i].opens_itself)
            open_library();
        checks[i].run();
        return 0;
    }
    fail("no check of the name %s", wanted);
}
