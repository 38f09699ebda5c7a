/* Shaped as Python: a C program that opens a C++ library. unwind_host check|cuda|uncaught|time LIBRARY. cuda: with CUDA in use. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *find(void *library, const char *name)
{
    void *address = library ? dlsym(library, name) : NULL;
    if (!address) {
        fprintf(stderr, "unwind_host: %s\n", dlerror());
        exit(3);
    }
    return address;
}

static void use_cuda(void)
{
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *context = NULL;
    unsigned long long p;
    int (*init)(unsigned) = (int (*)(unsigned))find(cuda, "cuInit");
    int (*create)(void **, unsigned, int) = (int (*)(void **, unsigned, int))find(cuda, "cuCtxCreate_v2");
    int (*alloc)(unsigned long long *, size_t) = (int (*)(unsigned long long *, size_t))find(cuda, "cuMemAlloc_v2");
    if (init(0) || create(&context, 0, 0) || alloc(&p, 1 << 20)) {
        fprintf(stderr, "unwind_host: CUDA does not start\n");
        exit(3);
    }
}

int main(int argc, char **argv)
{
    double exception_us, cancel_us;
    if (argc != 3)
        return 2;
    if (strcmp(argv[1], "cuda") == 0)
        use_cuda();
    void *library = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
    if (strcmp(argv[1], "uncaught") == 0)
        ((void (*)(void))find(library, "unwind_uncaught"))();
    if (strcmp(argv[1], "time") == 0) {
        ((void (*)(double *, double *))find(library, "unwind_time"))(&exception_us, &cancel_us);
        printf("%f %f\n", exception_us, cancel_us);
        return 0;
    }
    return ((int (*)(void))find(library, "unwind_check"))();
}
