#include "calls.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *library;
static int version;

static const struct {
    const char *name;
    int since;
} functions[] = {
#define VERSION(base, version, per_thread, function) {#function, version},
#include "hooks/versions.def"
#undef VERSION
};

void open_driver(void)
{
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(3);
    }
    MUST("cuDriverGetVersion", (uint64_t)(uintptr_t)&version);
    MUST("cuInit", 0);
}

int driver_version(void)
{
    return version;
}

/* By version, not by what dlsym finds: the library in front exports every function, whatever the driver has. */
void *driver_function(const char *name)
{
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        if (strcmp(functions[i].name, name) == 0)
            return version == 0 || functions[i].since <= version ? dlsym(library, name) : NULL;
    }
    fprintf(stderr, "no function %s\n", name);
    exit(3);
}

typedef int any_function(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                         uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);

__attribute__((no_sanitize("undefined"))) int call(const char *name, const uint64_t *a)
{
    any_function *f = (any_function *)driver_function(name);
    return f(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11], a[12], a[13], a[14], a[15]);
}

void must(const char *name, const uint64_t *arguments)
{
    int r = call(name, arguments);
    if (r != 0) {
        fflush(stdout);
        fprintf(stderr, "%s gave %d\n", name, r);
        exit(4);
    }
}
