#include "gpu.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

/* ---- memory of our own mapping ---- */

CUresult vm_reserve(struct vm *vm, size_t chunks)
{
    if (chunks > VM_MOST)
        return CUDA_ERROR_INVALID_VALUE;
    memset(vm, 0, sizeof *vm);
    TRY(drv.cuMemAddressReserve(&vm->base, chunks * here.chunk_bytes, here.chunk_bytes, 0, 0));
    vm->chunks = chunks;
    return CUDA_SUCCESS;
}

static CUresult create_at(CUmemLocation location, CUmemGenericAllocationHandle *handle_out)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = location};
    return drv.cuMemCreate(handle_out, here.chunk_bytes, &prop, 0);
}

CUresult vm_host_location(CUmemLocation *location_out)
{
    CUmemGenericAllocationHandle handle;
    int node = -1;
    if (drv.cuDeviceGetAttribute(&node, CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID, here.device) != CUDA_SUCCESS || node < 0)
        node = 0;
    CUmemLocation tries[] = {{.type = CU_MEM_LOCATION_TYPE_HOST_NUMA, .id = node}, {.type = CU_MEM_LOCATION_TYPE_HOST}};
    for (int i = 0; i < 2; i++)
        if (here.driver_version >= (i ? 13000 : 12020) && create_at(tries[i], &handle) == CUDA_SUCCESS) {
            drv.cuMemRelease(handle);
            *location_out = tries[i];
            return CUDA_SUCCESS;
        }
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult vm_create(enum vm_where where, CUmemGenericAllocationHandle *handle_out)
{
    CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = here.device};
    if (where == VM_HOST)
        TRY(vm_host_location(&location));
    return create_at(location, handle_out);
}

CUresult vm_map(struct vm *vm, size_t chunk, CUmemGenericAllocationHandle handle)
{
    TRY(drv.cuMemMap(vm_at(vm, chunk), here.chunk_bytes, 0, handle, 0));
    vm->handle[chunk] = handle;
    for (size_t i = 0; i < vm->spares; i++) /* back again */
        if (vm->spare[i] == handle) {
            vm->spare[i] = vm->spare[--vm->spares];
            break;
        }
    return CUDA_SUCCESS;
}

CUresult vm_access(const struct vm *vm, size_t first, size_t chunks)
{
    CUmemAccessDesc grant = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = here.device},
                             .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    return drv.cuMemSetAccess(vm_at(vm, first), chunks * here.chunk_bytes, &grant, 1);
}

CUresult vm_unmap(struct vm *vm, size_t first, size_t chunks)
{
    TRY(drv.cuMemUnmap(vm_at(vm, first), chunks * here.chunk_bytes));
    for (size_t i = first; i < first + chunks; i++) {
        if (vm->handle[i] && vm->spares < VM_MOST)
            vm->spare[vm->spares++] = vm->handle[i];
        vm->handle[i] = 0;
    }
    return CUDA_SUCCESS;
}

CUresult vm_back(struct vm *vm, size_t first, size_t chunks, enum vm_where where)
{
    for (size_t i = first; i < first + chunks; i++) {
        CUmemGenericAllocationHandle handle;
        TRY(vm_create(where, &handle));
        CUresult r = vm_map(vm, i, handle);
        if (r != CUDA_SUCCESS) {
            drv.cuMemRelease(handle);
            return r;
        }
    }
    return vm_access(vm, first, chunks);
}

CUresult vm_finish(struct vm *vm)
{
    CUresult first = CUDA_SUCCESS;
    for (size_t i = 0; i < vm->chunks; i++)
        if (vm->handle[i]) {
            CUresult r = vm_unmap(vm, i, 1);
            first = first == CUDA_SUCCESS ? r : first;
        }
    for (size_t i = 0; i < vm->spares; i++)
        drv.cuMemRelease(vm->spare[i]);
    CUresult r = drv.cuMemAddressFree(vm->base, vm->chunks * here.chunk_bytes);
    return first == CUDA_SUCCESS ? r : first;
}

/* ---- work ---- */

CUfunction gpu_kernel(const char *name)
{
    CUfunction f = NULL;
    if (drv.cuModuleGetFunction(&f, here.module, name) != CUDA_SUCCESS)
        return NULL;
    return f;
}

CUresult gpu_fill(CUdeviceptr address, size_t bytes, uint32_t first)
{
    uint32_t n = (uint32_t)(bytes / 4);
    void *params[] = {&address, &first, &n};
    TRY(drv.cuLaunchKernel(gpu_kernel("fill"), 64, 1, 1, 256, 1, 1, 0, NULL, params, NULL));
    return drv.cuCtxSynchronize();
}

long gpu_compare(CUdeviceptr address, size_t bytes, uint32_t first)
{
    uint32_t *words = malloc(bytes);
    long at = -1;
    if (!words || drv.cuMemcpyDtoH_v2(words, address, bytes) != CUDA_SUCCESS) {
        free(words);
        return -2;
    }
    for (size_t i = 0; i < bytes / 4 && at < 0; i++)
        if (words[i] != first + (uint32_t)i)
            at = (long)i;
    free(words);
    return at;
}

CUresult gpu_spin_begin(struct gpu_spin *spin, uint64_t span_ns)
{
    void *host;
    CUdeviceptr flag;
    uint64_t deadline;
    void *params[] = {&flag, &span_ns};
    TRY(drv.cuMemHostAlloc(&host, 64, CU_MEMHOSTALLOC_DEVICEMAP));
    memset(host, 0, 64);
    spin->flag = host;
    TRY(drv.cuMemHostGetDevicePointer_v2(&flag, host, 0));
    TRY(drv.cuStreamCreate(&spin->stream, CU_STREAM_NON_BLOCKING));
    TRY(drv.cuLaunchKernel(gpu_kernel("spin"), 1, 1, 1, 1, 1, 1, 0, spin->stream, params, NULL));
    deadline = gpu_clock_ns() + UINT64_C(2000000000);
    while (!spin->flag[1]) {
        if (gpu_clock_ns() > deadline)
            return CUDA_ERROR_TIMEOUT;
        sched_yield();
    }
    return CUDA_SUCCESS;
}

bool gpu_spin_runs(const struct gpu_spin *spin)
{
    return drv.cuStreamQuery(spin->stream) == CUDA_ERROR_NOT_READY;
}

CUresult gpu_spin_end(struct gpu_spin *spin)
{
    spin->flag[0] = 1;
    TRY(drv.cuStreamSynchronize(spin->stream));
    TRY(drv.cuStreamDestroy_v2(spin->stream));
    return drv.cuMemFreeHost((void *)(uintptr_t)spin->flag);
}
