/* A preload as tools that feign a date have it: every clock is off, and runs at a third of the speed. */
#include <dlfcn.h>
#include <stdint.h>
#include <sys/time.h>
#include <time.h>

#define SHIFT_S 1000000

typedef int (*gettime_fn)(clockid_t, struct timespec *);

int clock_gettime(clockid_t clock, struct timespec *out)
{
    static gettime_fn real;
    static _Thread_local int inside; /* dlsym may ask for the time */
    gettime_fn next = __atomic_load_n(&real, __ATOMIC_RELAXED);
    if (!next) {
        if (inside)
            return -1;
        inside = 1;
        next = (gettime_fn)dlvsym(RTLD_NEXT, "clock_gettime", "GLIBC_2.17"); /* a tool may have taken dlsym */
        inside = 0;
        __atomic_store_n(&real, next, __ATOMIC_RELAXED);
    }
    int r = next(clock, out);
    if (r == 0) {
        int64_t ns = (int64_t)out->tv_sec * 1000000000 + out->tv_nsec;
        ns /= 3;
        out->tv_sec = (time_t)(ns / 1000000000 + SHIFT_S);
        out->tv_nsec = (long)(ns % 1000000000);
    }
    return r;
}

time_t time(time_t *out)
{
    struct timespec now = {0};
    clock_gettime(CLOCK_REALTIME, &now);
    if (out)
        *out = now.tv_sec;
    return now.tv_sec;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone)
{
    struct timespec now = {0};
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    out->tv_sec = now.tv_sec;
    out->tv_usec = now.tv_nsec / 1000;
    return 0;
}
