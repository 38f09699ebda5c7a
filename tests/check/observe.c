/*
 * Preloaded before the library into a program with a CUDA runtime: writes what the runtime asks the driver's resolver, and gets, to the file that
 * OBSERVED names. A line each: name, version, flags, result.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int (*ask_v2)(const char *, void **, int, uint64_t, int *);
static int (*ask_v1)(const char *, void **, int, uint64_t);
static int observed_v1(const char *name, void **pointer, int version, uint64_t flags);
static int observed_v2(const char *name, void **pointer, int version, uint64_t flags, int *status);

static void note(const char *name, void **pointer, int version, uint64_t flags, int result)
{
    const char *path = getenv("OBSERVED");
    FILE *f = path ? fopen(path, "a") : NULL;
    if (f) {
        fprintf(f, "%s\t%d\t%llu\t%d\n", name, version, (unsigned long long)flags, result);
        fclose(f);
    }
    /* Some runtimes go on with the resolver that the resolver gives them. */
    if (result != 0 || strcmp(name, "cuGetProcAddress") != 0 || !pointer || !*pointer)
        return;
    if (version >= 12000) {
        memcpy(&ask_v2, pointer, sizeof *pointer);
        *pointer = (void *)observed_v2;
    } else {
        memcpy(&ask_v1, pointer, sizeof *pointer);
        *pointer = (void *)observed_v1;
    }
}

static int observed_v1(const char *name, void **pointer, int version, uint64_t flags)
{
    int result = ask_v1(name, pointer, version, flags);
    note(name, pointer, version, flags, result);
    return result;
}

static int observed_v2(const char *name, void **pointer, int version, uint64_t flags, int *status)
{
    int result = ask_v2(name, pointer, version, flags, status);
    note(name, pointer, version, flags, result);
    return result;
}

void *dlsym(void *handle, const char *name)
{
    static void *(*real)(void *, const char *);
    if (!real)
        *(void **)&real = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
    void *found = real(handle, name);
    if (found && strcmp(name, "cuGetProcAddress_v2") == 0 && handle != RTLD_NEXT) {
        memcpy(&ask_v2, &found, sizeof found);
        return (void *)observed_v2;
    }
    if (found && strcmp(name, "cuGetProcAddress") == 0 && handle != RTLD_NEXT) {
        memcpy(&ask_v1, &found, sizeof found);
        return (void *)observed_v1;
    }
    return found;
}
