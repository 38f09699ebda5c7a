#include "base/loader.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>

#if defined(__aarch64__)
#define FIRST_VERSION "GLIBC_2.17"
#else
#define FIRST_VERSION "GLIBC_2.2.5"
#endif

typedef void *(*find_function)(void *handle, const char *name);

/* With its version: others that take the name have none. */
static void *c_library_dlsym(void)
{
    static const char *const versions[] = {"GLIBC_2.34", FIRST_VERSION};

    for (size_t i = 0; i < sizeof versions / sizeof *versions; i++) {
        void *found = dlvsym(RTLD_NEXT, "dlsym", versions[i]);
        if (found != NULL)
            return found;
    }
    return NULL;
}

void *hr_loader_find(void *handle, const char *name)
{
    static _Atomic(void *) found;
    void *find = atomic_load_explicit(&found, memory_order_relaxed);

    if (find == NULL) {
        find = c_library_dlsym();
        if (find == NULL)
            find = (void *)dlsym;
        dlerror(); /* a version that this C library does not know is nothing that the job should hear of */
        atomic_store_explicit(&found, find, memory_order_relaxed);
    }
    void *address = ((find_function)find)(handle, name);
    __asm__ volatile("" : "+r"(address)); /* no jump in place of the call: the C library looks at who calls */
    return address;
}

void *hr_loader_real_dlopen(void)
{
    static _Atomic(void *) found;
    void *real = atomic_load_explicit(&found, memory_order_relaxed);
    if (real == NULL) {
        real = hr_loader_find(RTLD_NEXT, "dlopen");
        atomic_store_explicit(&found, real, memory_order_relaxed);
    }
    return real;
}

void *hr_loader_open(const char *path, int mode)
{
    void *(*real)(const char *, int) = (void *(*)(const char *, int))hr_loader_real_dlopen();
    return real != NULL ? real(path, mode) : NULL;
}
