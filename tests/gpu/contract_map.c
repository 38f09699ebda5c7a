#include "contract.h"

#include <stdlib.h>
#include <string.h>

/* By whatever error; the last one is for the row. */
#define REFUSED(call, what)                                                                                            \
    do {                                                                                                               \
        refused = (call);                                                                                              \
        EXPECT(refused != CUDA_SUCCESS, what " was taken");                                                            \
    } while (0)
static CUresult refused;
#define SAME(address, bytes, first, what)                                                                              \
    do {                                                                                                               \
        long same_ = gpu_compare(address, bytes, first);                                                               \
        EXPECT(same_ == -1, what ": word %ld is wrong (-2: a copy failed)", same_);                                    \
    } while (0)

void contract_granularity(void)
{
    size_t recommended;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = here.device}};
    MUST(drv.cuMemGetAllocationGranularity(&recommended, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    EXPECT((here.chunk_bytes & (here.chunk_bytes - 1)) == 0 && here.chunk_bytes >= 65536 &&
               here.chunk_bytes <= (size_t)32 << 20,
           "%zu bytes", here.chunk_bytes);
    GPU_OK("minimum %zu, recommended %zu bytes", here.chunk_bytes, recommended);
}

void contract_reserve(void)
{
    size_t total;
    CUdeviceptr base, hinted;
    MUST(drv.cuDeviceTotalMem_v2(&total, here.device));
    total = (2 * total + here.chunk_bytes) / here.chunk_bytes * here.chunk_bytes;
    MUST(drv.cuMemAddressReserve(&base, total, here.chunk_bytes, 0, 0));
    EXPECT(base % here.chunk_bytes == 0, "%#llx is not aligned", (unsigned long long)base);
    MUST(drv.cuMemAddressFree(base, total));
    MUST(drv.cuMemAddressReserve(&hinted, total, here.chunk_bytes, base, 0));
    MUST(drv.cuMemAddressFree(hinted, total));
    GPU_OK("%zu bytes at %#llx; asked for there again: %s", total, (unsigned long long)base,
           hinted == base ? "the same" : "another place");
}

void contract_map_rules(void)
{
    struct vm vm;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = here.device}};
    MUST(vm_reserve(&vm, 3));
    MUST(vm_back(&vm, 0, 1, VM_DEVICE));
    MUST(vm_create(VM_DEVICE, &handle));
    REFUSED(drv.cuMemMap(vm_at(&vm, 0), here.chunk_bytes, 0, handle, 0), "a mapping over another");
    REFUSED(drv.cuMemMap(vm_at(&vm, 1), here.chunk_bytes, here.chunk_bytes / 2, handle, 0), "an offset");
    REFUSED(drv.cuMemMap(vm_at(&vm, 1) + here.chunk_bytes / 2, here.chunk_bytes, 0, handle, 0),
            "an address off the granularity");
    MUST(drv.cuMemRelease(handle));
    REFUSED(drv.cuMemCreate(&handle, here.chunk_bytes / 2, &prop, 0), "half a chunk");
    MUST(gpu_fill(vm_at(&vm, 0), here.chunk_bytes, 5));
    SAME(vm_at(&vm, 0), here.chunk_bytes, 5, "what was mapped first");
    MUST(vm_finish(&vm));
    GPU_OK("all four, the last by %s", gpu_error(refused));
}

void contract_access_rules(void)
{
    struct vm vm;
    unsigned long long flags = 0;
    CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = here.device};
    MUST(vm_reserve(&vm, 3));
    MUST(vm_back(&vm, 0, 1, VM_DEVICE));
    MUST(vm_back(&vm, 2, 1, VM_DEVICE));
    REFUSED(vm_access(&vm, 0, 3), "a hole");
    REFUSED(vm_access(&vm, 1, 1), "what is not mapped");
    MUST(drv.cuMemGetAccess(&flags, &location, vm_at(&vm, 0)));
    EXPECT(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE, "flags %llu", flags);
    MUST(vm_unmap(&vm, 0, 1));
    MUST(vm_back(&vm, 0, 1, VM_DEVICE));
    MUST(vm_access(&vm, 0, 1)); /* a second time */
    MUST(gpu_fill(vm_at(&vm, 0), here.chunk_bytes, 9));
    MUST(vm_finish(&vm));
    GPU_OK("%s for nothing mapped; set twice is fine", gpu_error(refused));
}

void contract_access_span(void)
{
    struct vm vm;
    CUmemLocation location;
    bool host = vm_host_location(&location) == CUDA_SUCCESS;
    CUmemGenericAllocationHandle handle;
    MUST(vm_reserve(&vm, 4));
    for (size_t i = 0; i < 4; i++) {
        MUST(vm_create(host && i % 2 ? VM_HOST : VM_DEVICE, &handle));
        MUST(vm_map(&vm, i, handle));
    }
    CUresult r = vm_access(&vm, 0, 4);
    EXPECT(r == CUDA_SUCCESS, "cuMemSetAccess over four mappings: %s", gpu_error(r));
    MUST(gpu_fill(vm.base, 4 * here.chunk_bytes, 100)); /* one kernel over all of them */
    for (size_t i = 0; i < 4; i++)
        SAME(vm_at(&vm, i), here.chunk_bytes, 100 + (uint32_t)(i * here.chunk_bytes / 4), "a chunk of a run");
    MUST(vm_finish(&vm));
    GPU_OK("four mappings%s, written by one kernel", host ? ", two of them in host memory" : "");
}

void contract_unmap_rules(void)
{
    struct vm vm;
    MUST(vm_reserve(&vm, 4));
    MUST(vm_back(&vm, 0, 2, VM_DEVICE));
    MUST(vm_back(&vm, 3, 1, VM_DEVICE));
    REFUSED(drv.cuMemUnmap(vm.base, here.chunk_bytes / 2), "half a mapping");
    REFUSED(drv.cuMemUnmap(vm.base, 4 * here.chunk_bytes), "a hole");
    MUST(gpu_fill(vm.base, 2 * here.chunk_bytes, 3)); /* nothing was unmapped by what was refused */
    SAME(vm.base, 2 * here.chunk_bytes, 3, "after refusals");
    MUST(vm_unmap(&vm, 0, 2));
    MUST(vm_back(&vm, 0, 3, VM_DEVICE));
    MUST(vm_finish(&vm));
    GPU_OK("two mappings by one call; %s for a hole", gpu_error(refused));
}

void contract_remap(void)
{
    struct vm vm;
    CUmemGenericAllocationHandle first, second;
    MUST(vm_reserve(&vm, 1));
    MUST(vm_create(VM_DEVICE, &first));
    MUST(vm_create(VM_DEVICE, &second));
    for (uint32_t round = 0; round < 8; round++) {
        MUST(vm_map(&vm, 0, round % 2 ? second : first));
        MUST(vm_access(&vm, 0, 1));
        if (round >= 2)
            SAME(vm.base, here.chunk_bytes, (round - 2) * 1000, "what a chunk kept");
        MUST(gpu_fill(vm.base, here.chunk_bytes, round * 1000));
        SAME(vm.base, here.chunk_bytes, round * 1000, "what a kernel wrote after a remap");
        MUST(vm_unmap(&vm, 0, 1));
    }
    MUST(vm_finish(&vm));
    GPU_OK("eight times");
}

void contract_release(void)
{
    CUdeviceptr base;
    CUmemGenericAllocationHandle handle, again;
    CUmemAccessDesc grant = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = here.device},
                             .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    MUST(drv.cuMemAddressReserve(&base, here.chunk_bytes, 0, 0, 0));
    MUST(vm_create(VM_DEVICE, &handle));
    MUST(drv.cuMemMap(base, here.chunk_bytes, 0, handle, 0));
    MUST(drv.cuMemSetAccess(base, here.chunk_bytes, &grant, 1));
    MUST(drv.cuMemRelease(handle));
    MUST(gpu_fill(base, here.chunk_bytes, 77));
    SAME(base, here.chunk_bytes, 77, "after cuMemRelease");
    MUST(drv.cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)base));
    MUST(drv.cuMemRelease(again));
    MUST(drv.cuMemUnmap(base, here.chunk_bytes));
    MUST(drv.cuMemAddressFree(base, here.chunk_bytes));
    GPU_OK("written and read after cuMemRelease");
}

void contract_alias(void)
{
    struct vm vm;
    CUmemAccessDesc grant = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = here.device},
                             .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    MUST(vm_reserve(&vm, 2));
    MUST(vm_back(&vm, 0, 1, VM_DEVICE));
    MUST(drv.cuMemMap(vm_at(&vm, 1), here.chunk_bytes, 0, vm.handle[0], 0));
    MUST(drv.cuMemSetAccess(vm_at(&vm, 1), here.chunk_bytes, &grant, 1));
    MUST(gpu_fill(vm_at(&vm, 0), here.chunk_bytes, 11));
    SAME(vm_at(&vm, 1), here.chunk_bytes, 11, "through the alias");
    MUST(gpu_fill(vm_at(&vm, 1), here.chunk_bytes, 12));
    SAME(vm_at(&vm, 0), here.chunk_bytes, 12, "written through the alias");
    MUST(vm_unmap(&vm, 0, 1)); /* the alias stays */
    SAME(vm_at(&vm, 1), here.chunk_bytes, 12, "with the other mapping gone");
    MUST(drv.cuMemUnmap(vm_at(&vm, 1), here.chunk_bytes));
    MUST(vm_finish(&vm));
    GPU_OK("both ways, and after one of them was unmapped");
}

void contract_too_much(void)
{
    size_t total;
    struct vm vm;
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = here.device}};
    MUST(drv.cuDeviceTotalMem_v2(&total, here.device));
    total = 2 * total / here.chunk_bytes * here.chunk_bytes;
    CUresult r = drv.cuMemCreate(&handle, total, &prop, 0);
    EXPECT(r == CUDA_ERROR_OUT_OF_MEMORY, "cuMemCreate of %zu bytes: %s", total, gpu_error(r));
    MUST(vm_reserve(&vm, 1));
    MUST(vm_back(&vm, 0, 1, VM_DEVICE));
    MUST(vm_finish(&vm));
    GPU_OK("%zu bytes", total);
}

void contract_survives(void)
{
    struct vm vm;
    CUcontext other;
    MUST(drv.cuCtxCreate_v2(&other, 0, here.device));
    MUST(vm_reserve(&vm, 1));
    MUST(vm_back(&vm, 0, 1, VM_DEVICE));
    MUST(drv.cuMemsetD32_v2(vm.base, 42, here.chunk_bytes / 4));
    MUST(drv.cuCtxDestroy_v2(other));
    MUST(drv.cuCtxSetCurrent(here.context));
    uint32_t word = 0;
    MUST(drv.cuMemcpyDtoH_v2(&word, vm.base + here.chunk_bytes - 4, 4));
    EXPECT(word == 42, "the last word is %u", word);
    MUST(vm_finish(&vm));
    GPU_OK("read in another context");
}

void contract_host_chunk(void)
{
    struct vm vm;
    CUmemLocation location;
    NEED_HOST();
    MUST(vm_host_location(&location));
    MUST(vm_reserve(&vm, 2));
    MUST(vm_back(&vm, 0, 1, VM_HOST));
    MUST(vm_back(&vm, 1, 1, VM_DEVICE));
    MUST(gpu_fill(vm_at(&vm, 0), here.chunk_bytes, 21));
    SAME(vm_at(&vm, 0), here.chunk_bytes, 21, "what a kernel wrote to host memory");
    MUST(drv.cuMemcpyDtoD_v2(vm_at(&vm, 1), vm_at(&vm, 0), here.chunk_bytes));
    SAME(vm_at(&vm, 1), here.chunk_bytes, 21, "copied to the device");
    MUST(gpu_fill(vm_at(&vm, 1), here.chunk_bytes, 22));
    MUST(drv.cuMemcpyDtoD_v2(vm_at(&vm, 0), vm_at(&vm, 1), here.chunk_bytes));
    SAME(vm_at(&vm, 0), here.chunk_bytes, 22, "copied from the device");
    MUST(vm_finish(&vm));
    GPU_OK("location type %d, id %d", (int)location.type, location.id);
}

void contract_host_swap(void)
{
    struct vm vm;
    CUmemGenericAllocationHandle kind[2];
    NEED_HOST();
    MUST(vm_reserve(&vm, 2));
    MUST(vm_create(VM_DEVICE, &kind[0]));
    MUST(vm_create(VM_HOST, &kind[1]));
    MUST(vm_map(&vm, 0, kind[0]));
    MUST(vm_map(&vm, 1, kind[1])); /* chunk 1 is where the other one can be reached */
    MUST(vm_access(&vm, 0, 2));
    MUST(gpu_fill(vm.base, here.chunk_bytes, 0));
    for (uint32_t round = 1; round < 7; round++) {
        uint32_t n = (uint32_t)(here.chunk_bytes / 4), one = 1;
        void *params[] = {&vm.base, &vm.base, &one, &n};
        MUST(drv.cuMemcpyDtoD_v2(vm_at(&vm, 1), vm_at(&vm, 0), here.chunk_bytes));
        MUST(drv.cuCtxSynchronize()); /* such a copy returns early */
        MUST(vm_unmap(&vm, 0, 2));
        MUST(vm_map(&vm, 0, kind[round % 2]));
        MUST(vm_map(&vm, 1, kind[(round + 1) % 2]));
        MUST(vm_access(&vm, 0, 2));
        MUST(drv.cuLaunchKernel(gpu_kernel("add"), 16, 1, 1, 256, 1, 1, 0, NULL, params, NULL));
        MUST(drv.cuCtxSynchronize());
        SAME(vm.base, here.chunk_bytes, round, "after a move");
    }
    MUST(vm_finish(&vm));
    GPU_OK("three times there and back, a kernel in between");
}

void contract_host_locations(void)
{
    CUmemGenericAllocationHandle handle;
    CUmemLocation bad[] = {{.type = CU_MEM_LOCATION_TYPE_HOST_NUMA, .id = -1},
                           {.type = CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT}};
    if (here.driver_version < 12020) {
        gpu_row(GPU_LACKS_, NULL, "before 12.2");
        return;
    }
    for (int i = 0; i < 2; i++) {
        CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = bad[i]};
        CUresult r = drv.cuMemCreate(&handle, here.chunk_bytes, &prop, 0);
        EXPECT(r != CUDA_SUCCESS, "%s was taken", i ? "the current node" : "node -1");
    }
    GPU_OK("both refused");
}

void contract_host_rights(void)
{
    struct vm vm;
    CUmemLocation location;
    NEED_HOST();
    MUST(vm_host_location(&location));
    MUST(vm_reserve(&vm, 1));
    MUST(vm_back(&vm, 0, 1, VM_HOST));
    MUST(gpu_fill(vm.base, here.chunk_bytes, 31));
    CUmemAccessDesc grant = {.location = location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUresult r = drv.cuMemSetAccess(vm.base, here.chunk_bytes, &grant, 1);
    EXPECT(r == CUDA_SUCCESS, "cuMemSetAccess for the host: %s", gpu_error(r));
    volatile uint32_t *words = (volatile uint32_t *)(uintptr_t)vm.base;
    EXPECT(words[7] == 31 + 7, "word 7 is %u", words[7]);
    MUST(vm_finish(&vm));
    GPU_OK("read by the CPU at the device's address");
}

void contract_copies(void)
{
    struct vm vm;
    size_t half = here.chunk_bytes / 2, bytes = here.chunk_bytes;
    MUST(vm_reserve(&vm, 4));
    MUST(vm_back(&vm, 0, 4, VM_DEVICE));
    MUST(gpu_fill(vm.base, 2 * bytes, 7));
    MUST(drv.cuMemcpyDtoD_v2(vm_at(&vm, 2) + half, vm.base + half, bytes)); /* across a boundary on both sides */
    SAME(vm_at(&vm, 2) + half, bytes, 7 + (uint32_t)(half / 4), "device to device");
    MUST(drv.cuMemsetD32_v2(vm.base + half, 1, bytes / 4));
    SAME(vm.base, half, 7, "before a fill");
    SAME(vm.base + half + bytes, half, 7 + (uint32_t)((half + bytes) / 4), "behind a fill");
    uint32_t *words = malloc(bytes);
    MUST(words ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
    for (size_t i = 0; i < bytes / 4; i++)
        words[i] = 900 + (uint32_t)i;
    CUresult r = drv.cuMemcpyHtoD_v2(vm.base + half, words, bytes);
    free(words);
    MUST(r);
    SAME(vm.base + half, bytes, 900, "host to device");
    MUST(vm_finish(&vm));
    GPU_OK("to, from and within the device, across a boundary");
}

void contract_peer_copy(void)
{
    struct vm vm;
    MUST(vm_reserve(&vm, 2));
    MUST(vm_back(&vm, 0, 2, VM_DEVICE));
    MUST(gpu_fill(vm_at(&vm, 0), here.chunk_bytes, 61));
    CUresult r =
        drv.cuMemcpyPeerAsync(vm_at(&vm, 1), here.context, vm_at(&vm, 0), here.context, here.chunk_bytes, NULL);
    EXPECT(r == CUDA_SUCCESS, "%s", gpu_error(r));
    MUST(drv.cuCtxSynchronize());
    SAME(vm_at(&vm, 1), here.chunk_bytes, 61, "the copy");
    MUST(vm_finish(&vm));
    GPU_OK("same device");
}

/* Whether a kernel still ran after `calls`, in one of three tries: what the host loses to others must not count. */
#define WHILE_A_KERNEL_RUNS(ran, ...)                                                                                  \
    do {                                                                                                               \
        for (int try = 0; try < 3 && !(ran); try++) {                                                                  \
            struct gpu_spin spin;                                                                                      \
            MUST(gpu_spin_begin(&spin, GPU_SPIN_NS));                                                                  \
            __VA_ARGS__;                                                                                               \
            (ran) = gpu_spin_runs(&spin);                                                                              \
            MUST(gpu_spin_end(&spin));                                                                                 \
        }                                                                                                              \
    } while (0)

void contract_no_wait_map(void)
{
    struct vm vm;
    bool device_ran = false, host_ran = false;
    CUmemLocation location;
    bool host = vm_host_location(&location) == CUDA_SUCCESS;
    MUST(vm_reserve(&vm, 8));
    size_t at = 0;
    WHILE_A_KERNEL_RUNS(device_ran, MUST(vm_back(&vm, at++, 1, VM_DEVICE)));
    EXPECT(device_ran, "a chunk of VRAM had to wait for the kernel");
    if (host)
        WHILE_A_KERNEL_RUNS(host_ran, MUST(vm_back(&vm, at++, 1, VM_HOST)));
    EXPECT(host_ran || !host, "a chunk of host memory had to wait for the kernel");
    MUST(vm_finish(&vm));
    GPU_OK("a kernel went on beside cuMemCreate, cuMemMap and cuMemSetAccess%s", host ? ", in host memory too" : "");
}

void contract_no_wait_unmap(void)
{
    struct vm vm;
    bool ran = false;
    MUST(vm_reserve(&vm, 4));
    MUST(vm_back(&vm, 0, 4, VM_DEVICE));
    size_t at = 0;
    WHILE_A_KERNEL_RUNS(ran, MUST(vm_unmap(&vm, at++, 1)));
    EXPECT(ran, "it waited");
    MUST(vm_finish(&vm));
    GPU_OK("a kernel went on");
}
