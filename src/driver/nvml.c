#include "driver/nvml.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/loader.h"
#include "driver/driver.h"

#define LIBRARY "libnvidia-ml.so.1"

/* Not the forwarders of this library, or of a copy of it, under NVML's name. */
static void *open_real(const char *path)
{
    void *library = hr_loader_open(path, RTLD_NOW | RTLD_LOCAL);
    if (library && hr_loader_find(library, "headroom_version")) {
        dlclose(library);
        return NULL;
    }
    return library;
}

/* The driver's own folder first: what the loader's path holds may belong to another driver. */
static void *find(void)
{
    char path[PATH_MAX], real[PATH_MAX];
    const char *driver = hr_driver_load() ? hr_driver_path() : NULL;
    const char *folders[] = {driver, driver && realpath(driver, real) ? real : driver};

    for (size_t i = 0; driver && i < sizeof folders / sizeof *folders; i++) {
        const char *slash = strrchr(folders[i], '/');
        int n = slash ? snprintf(path, sizeof path, "%.*s/" LIBRARY, (int)(slash - folders[i]), folders[i]) : -1;
        void *library = n > 0 && (size_t)n < sizeof path ? open_real(path) : NULL;
        if (library)
            return library;
    }
    return open_real(LIBRARY);
}

void *hr_nvml_library(void)
{
    static _Atomic(void *) found;
    static _Atomic(bool) looked;
    if (!atomic_load_explicit(&looked, memory_order_acquire)) { /* several threads find the same */
        void *library = find();
        atomic_store_explicit(&found, library, memory_order_relaxed);
        atomic_store_explicit(&looked, true, memory_order_release);
    }
    return atomic_load_explicit(&found, memory_order_relaxed);
}
