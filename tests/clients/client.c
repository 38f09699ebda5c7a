#include "client.h"

#include <stdarg.h>

#define DEVICES_MOST 2
#define ALLOCATIONS_MOST 256

extern const unsigned char clients_ptx[];

static struct {
    const char *name;
    int argc;
    char **argv;
    int devices;
    CUcontext context[DEVICES_MOST];
    CUmodule module[DEVICES_MOST];
    struct {
        CUcontext context;
        CUdeviceptr address;
    } allocation[ALLOCATIONS_MOST];
    int allocations;
    uint64_t checksum;
} client;

void client_wrong(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    fprintf(stderr, "%s: ", client.name);
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
    va_end(list);
    exit(1);
}

void client_check(CUresult result, const char *call, const char *file, int line)
{
    const char *name = NULL;
    if (result == CUDA_SUCCESS)
        return;
    if (cuGetErrorName(result, &name) != CUDA_SUCCESS || !name)
        name = "an error without a name";
    fprintf(stderr, "%s: %s:%d: %s: %s\n", client.name, file, line, call, name);
    exit(2);
}

void client_start(const char *name, int argc, char **argv, int devices)
{
    client.name = name;
    client.argc = argc;
    client.argv = argv;
    client.devices = devices;
    client.checksum = UINT64_C(0xcbf29ce484222325);
    OK(cuInit(0));
    for (int d = devices - 1; d >= 0; d--) { /* the first is current in the end */
        CUdevice device;
        OK(cuDeviceGet(&device, d));
        OK(cuDevicePrimaryCtxRetain(&client.context[d], device));
        OK(cuCtxSetCurrent(client.context[d]));
        OK(cuModuleLoadData(&client.module[d], clients_ptx));
    }
}

long client_option(const char *name, long otherwise)
{
    size_t length = strlen(name);
    for (int i = 1; i < client.argc; i++)
        if (!strncmp(client.argv[i], name, length) && client.argv[i][length] == '=')
            return strtol(client.argv[i] + length + 1, NULL, 10);
    return otherwise;
}

size_t client_bytes(void)
{
    long mib = client_option("MiB", 16);
    if (mib < 4 || mib > 1 << 20)
        WRONG("MiB=%ld is not between 4 and 2^20", mib);
    return (size_t)mib << 20;
}

CUcontext client_context(int device)
{
    return client.context[device];
}

CUfunction client_kernel(int device, const char *name)
{
    CUfunction f;
    CUresult r = cuModuleGetFunction(&f, client.module[device], name);
    if (r != CUDA_SUCCESS)
        WRONG("there is no kernel %s: error %d", name, (int)r);
    return f;
}

void client_got(CUresult r, size_t bytes)
{
    if (r == CUDA_ERROR_OUT_OF_MEMORY) {
        fprintf(stderr, "%s: an allocation of %zu bytes: CUDA_ERROR_OUT_OF_MEMORY\n", client.name, bytes);
        exit(3);
    }
    OK(r);
}

CUdeviceptr client_alloc(size_t bytes)
{
    CUdeviceptr address;
    CUcontext context;
    client_got(cuMemAlloc_v2(&address, bytes), bytes);
    OK(cuCtxGetCurrent(&context));
    if (client.allocations == ALLOCATIONS_MOST)
        WRONG("more than %d allocations", ALLOCATIONS_MOST);
    client.allocation[client.allocations].context = context;
    client.allocation[client.allocations++].address = address;
    return address;
}

void client_launch(CUfunction f, unsigned blocks, unsigned threads, CUstream stream, void **params)
{
    OK(cuLaunchKernel(f, blocks, 1, 1, threads, 1, 1, 0, stream, params, NULL));
}

void client_sum(const void *data, size_t bytes)
{
    uint64_t h = client.checksum, word;
    size_t i = 0;
    for (; i + 8 <= bytes; i += 8) {
        memcpy(&word, (const char *)data + i, 8);
        h = (h ^ word) * UINT64_C(0x100000001b3);
        h ^= h >> 29;
    }
    for (; i < bytes; i++)
        h = (h ^ ((const unsigned char *)data)[i]) * UINT64_C(0x100000001b3);
    client.checksum = h;
}

int client_end(void)
{
    for (int i = 0; i < client.allocations; i++) {
        OK(cuCtxSetCurrent(client.allocation[i].context));
        OK(cuMemFree_v2(client.allocation[i].address));
    }
    for (int d = 0; d < client.devices; d++) {
        CUdevice device;
        OK(cuCtxSetCurrent(client.context[d]));
        OK(cuCtxGetDevice(&device));
        OK(cuModuleUnload(client.module[d]));
        OK(cuDevicePrimaryCtxRelease_v2(device));
    }
    printf("%s MiB=%zu checksum=%016llx\n", client.name, client_bytes() >> 20, (unsigned long long)client.checksum);
    return fflush(stdout) == 0 ? 0 : 1;
}

void *client_host(size_t bytes)
{
    void *p = malloc(bytes);
    if (!p)
        WRONG("no host memory: %zu bytes", bytes);
    return p;
}
