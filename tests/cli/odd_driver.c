/*
 * A driver for the tests of `headroom doctor`: it does what TEST_ODD says when it is started, and exports a function that no driver
 * has. hang, crash, leave, broken (an error), few (a driver of CUDA 11.2 without GPUs).
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

EXPORT int cuInit(unsigned flags);
EXPORT int cuDriverGetVersion(int *version);
EXPORT int cuGetErrorName(int error, const char **name);
EXPORT int cuDeviceGetCount(int *count);
EXPORT int cuOddFunctionOfThisDriver(void);

static int is(const char *what)
{
    const char *odd = getenv("TEST_ODD");
    return odd && strcmp(odd, what) == 0;
}

int cuInit(unsigned flags)
{
    (void)flags;
    if (is("crash"))
        raise(SIGKILL); /* a sanitizer would make an exit of a fault */
    if (is("leave"))
        _exit(0);
    while (is("hang"))
        pause();
    return is("broken") ? 999 : is("few") ? 0 : 100;
}

int cuDriverGetVersion(int *version)
{
    *version = is("few") ? 11020 : 12080;
    return 0;
}

int cuGetErrorName(int error, const char **name)
{
    *name = error == 999 ? "CUDA_ERROR_UNKNOWN" : "CUDA_ERROR_NO_DEVICE";
    return 0;
}

int cuDeviceGetCount(int *count)
{
    *count = 0;
    return 0;
}

int cuOddFunctionOfThisDriver(void)
{
    return 0;
}
