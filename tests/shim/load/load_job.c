/*
 * A job as a statically linked runtime makes it: not linked to the driver, everything by dlopen, one dlsym, and cuGetProcAddress. It
 * uses more memory than the GPU has. Exits 7 when all went well, or names on stderr what went wrong and exits 1.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHUNKS 6
#define CHUNK_BYTES ((size_t)32 << 20)

static CUresult (*look_up)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);

static void *get(const char *name, int version, cuuint64_t flags)
{
    void *function = NULL;
    CUdriverProcAddressQueryResult status;
    if (look_up(name, &function, version, flags, &status) != CUDA_SUCCESS || function == NULL) {
        fprintf(stderr, "%s: not found\n", name);
        exit(1);
    }
    return function;
}

static void expect(const char *what, CUresult got, CUresult wanted)
{
    if (got != wanted) {
        fprintf(stderr, "%s: %d, not %d\n", what, (int)got, (int)wanted);
        exit(1);
    }
}

#define GET(variable, name, version, flags) __typeof__(&variable) p_##variable = get(name, version, flags)

static void open_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    look_up = library != NULL ? dlsym(library, "cuGetProcAddress_v2") : NULL;
    if (look_up == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    look_up = get("cuGetProcAddress", 12000, 0); /* used from now on, as CUDA's runtime does */
}

int main(void)
{
    open_driver();
    GET(cuInit, "cuInit", 2000, 0);
    GET(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", 7000, 0);
    GET(cuCtxSetCurrent, "cuCtxSetCurrent", 4000, 0);
    GET(cuMemAlloc_v2, "cuMemAlloc", 3020, 0);
    GET(cuMemFree_v2, "cuMemFree", 3020, 0);
    GET(cuMemcpyHtoDAsync_v2_ptsz, "cuMemcpyHtoDAsync", 7000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
    GET(cuMemcpyDtoH_v2, "cuMemcpyDtoH", 3020, CU_GET_PROC_ADDRESS_LEGACY_STREAM);
    GET(cuStreamSynchronize_ptsz, "cuStreamSynchronize", 7000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);

    CUcontext context;
    expect("cuInit", p_cuInit(0), CUDA_SUCCESS);
    expect("cuDevicePrimaryCtxRetain", p_cuDevicePrimaryCtxRetain(&context, 0), CUDA_SUCCESS);
    expect("cuCtxSetCurrent", p_cuCtxSetCurrent(context), CUDA_SUCCESS);
    expect("cuMemFree of a stranger's pointer", p_cuMemFree_v2(0x1234000), CUDA_ERROR_INVALID_VALUE);

    static CUdeviceptr memory[CHUNKS];
    unsigned char *bytes = malloc(CHUNK_BYTES);
    for (int i = 0; i < CHUNKS && bytes != NULL; i++) {
        expect("cuMemAlloc", p_cuMemAlloc_v2(&memory[i], CHUNK_BYTES), CUDA_SUCCESS);
        memset(bytes, 'a' + i, CHUNK_BYTES);
        expect("copy in", p_cuMemcpyHtoDAsync_v2_ptsz(memory[i], bytes, CHUNK_BYTES, NULL), CUDA_SUCCESS);
        expect("synchronise", p_cuStreamSynchronize_ptsz(NULL), CUDA_SUCCESS);
    }
    for (int i = 0; i < CHUNKS && bytes != NULL; i++) {
        expect("copy out", p_cuMemcpyDtoH_v2(bytes, memory[i], CHUNK_BYTES), CUDA_SUCCESS);
        if (bytes[0] != 'a' + i || memcmp(bytes, bytes + 1, CHUNK_BYTES - 1) != 0)
            expect("the bytes", CUDA_ERROR_UNKNOWN, CUDA_SUCCESS);
        expect("cuMemFree", p_cuMemFree_v2(memory[i]), CUDA_SUCCESS);
    }
    free(bytes);
    return 7;
}
