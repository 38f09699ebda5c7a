/*
 * A program without CUDA that opens libraries which use it: host FLAGS LIBRARY. FLAGS: deepbind, global, local, namespace (dlmopen), or
 * both (a namespace of its own and its own namespace in turns).
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *find(void *library, const char *name)
{
    void *address = library ? dlsym(library, name) : NULL;
    if (!address) {
        fprintf(stderr, "host: %s\n", dlerror());
        exit(3);
    }
    return address;
}

static void run(void *library, unsigned seed)
{
    void (*work)(int, unsigned) = (void (*)(int, unsigned))find(library, "work");
    work(0, seed);
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    void *apart = NULL, *here = NULL;
    if (strcmp(argv[1], "namespace") == 0 || strcmp(argv[1], "both") == 0)
        run(apart = dlmopen(LM_ID_NEWLM, argv[2], RTLD_NOW), 41);
    if (strcmp(argv[1], "namespace") == 0)
        return 0;
    int flags = strcmp(argv[1], "deepbind") == 0 ? RTLD_DEEPBIND
                : strcmp(argv[1], "global") == 0 ? RTLD_GLOBAL
                                                 : RTLD_LOCAL;
    run(here = dlopen(argv[2], RTLD_NOW | flags), 42);
    if (apart) {
        run(apart, 43);
        run(here, 44);
    }
    return 0;
}
