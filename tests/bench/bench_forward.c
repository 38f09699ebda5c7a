/* The part in C of the library that only forwards (forward.py): it finds the driver by HEADROOM_DRIVER. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

extern void *forward_slots[] __attribute__((visibility("hidden")));
extern const char forward_names[] __attribute__((visibility("hidden")));

int cuInit(unsigned flags);
int cuInit(unsigned flags)
{
    const char *path = getenv("HEADROOM_DRIVER");
    void *driver = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    int (*real)(unsigned) = driver ? (int (*)(unsigned))dlsym(driver, "cuInit") : NULL;
    size_t slot = 0;
    for (const char *name = forward_names; real && *name; name += strlen(name) + 1)
        forward_slots[slot++] = dlsym(driver, name);
    return real ? real(flags) : 100;
}
