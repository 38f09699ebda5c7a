/*
 * A preload as profilers of the driver have it: it takes dlopen and dlsym, and hands out functions of its own that count and go on. At exit
 * it says on descriptor TEST_PROFILE_FD what it has counted.
 */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef void *(*dlsym_fn)(void *, const char *);
typedef void *(*dlopen_fn)(const char *, int);
typedef int (*alloc_fn)(unsigned long long *, size_t);
typedef int (*look_up_fn)(const char *, void **, int, unsigned long long, void *);

static _Atomic(alloc_fn) real_alloc;
static _Atomic(look_up_fn) real_look_up;
static atomic_ulong look_ups, allocations, opened;

static int count_alloc(unsigned long long *p, size_t bytes)
{
    atomic_fetch_add(&allocations, 1);
    return atomic_load(&real_alloc)(p, bytes);
}

static int count_look_up(const char *name, void **function, int version, unsigned long long flags, void *status)
{
    int r = atomic_load(&real_look_up)(name, function, version, flags, status);
    if (r == 0 && function && *function && strcmp(name, "cuMemAlloc") == 0 && *function != (void *)count_alloc) {
        atomic_store(&real_alloc, (alloc_fn)*function);
        *function = (void *)count_alloc;
    }
    if (r == 0 && function && *function && strcmp(name, "cuGetProcAddress") == 0 && version >= 12000) {
        atomic_store(&real_look_up, (look_up_fn)*function); /* runtimes go on with this one */
        *function = (void *)count_look_up;
    }
    return r;
}

static dlsym_fn real_dlsym(void)
{
    static _Atomic(dlsym_fn) found;
    dlsym_fn f = atomic_load(&found);
    if (!f) {
        f = (dlsym_fn)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
        if (!f)
            f = (dlsym_fn)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
        atomic_store(&found, f);
    }
    return f;
}

void *dlsym(void *restrict handle, const char *restrict name)
{
    void *address = real_dlsym()(handle, name);
    atomic_fetch_add(&look_ups, 1);
    /* From handles only: NEXT and DEFAULT depend on who calls. */
    if (address && handle != RTLD_NEXT && handle != RTLD_DEFAULT && strcmp(name, "cuMemAlloc_v2") == 0) {
        atomic_store(&real_alloc, (alloc_fn)address);
        return (void *)count_alloc;
    }
    if (address && handle != RTLD_NEXT && handle != RTLD_DEFAULT && strcmp(name, "cuGetProcAddress_v2") == 0) {
        atomic_store(&real_look_up, (look_up_fn)address);
        return (void *)count_look_up;
    }
    return address;
}

void *dlopen(const char *file, int mode)
{
    static _Atomic(dlopen_fn) found;
    dlopen_fn next = atomic_load(&found);
    if (!next)
        atomic_store(&found, next = (dlopen_fn)real_dlsym()(RTLD_NEXT, "dlopen"));
    if (file && strstr(file, "libcuda"))
        atomic_fetch_add(&opened, 1);
    return next(file, mode);
}

__attribute__((destructor)) static void tell(void)
{
    const char *fd = getenv("TEST_PROFILE_FD");
    if (fd)
        dprintf((int)strtol(fd, NULL, 10), "%lu look-ups, %lu allocations, %lu times libcuda\n", atomic_load(&look_ups),
                atomic_load(&allocations), atomic_load(&opened));
}
