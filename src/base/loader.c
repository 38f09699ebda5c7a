#include "base/loader.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stddef.h>

void *hr_loader_real_dlopen(void)
{
    static _Atomic(void *) found;
    void *real = atomic_load_explicit(&found, memory_order_relaxed);
    if (real == NULL) {
        real = dlsym(RTLD_NEXT, "dlopen");
        atomic_store_explicit(&found, real, memory_order_relaxed);
    }
    return real;
}

void *hr_loader_open(const char *path, int mode)
{
    void *(*real)(const char *, int) = (void *(*)(const char *, int))hr_loader_real_dlopen();
    return real != NULL ? real(path, mode) : NULL;
}
