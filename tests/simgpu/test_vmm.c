#include "sim_test.h"

#include <signal.h>
#include <unistd.h>

Test(vmm, sizes_and_addresses_are_multiples_of_the_granularity)
{
    machine("h200,vram=64M");
    CUdeviceptr va;
    CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle h;
    size_t granularity;
    OK(cuMemGetAllocationGranularity(&granularity, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    cr_assert_eq(granularity, PAGE);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve(&va, PAGE + 4096, 0, 0, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve(&va, 0, 0, 0, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve(&va, PAGE, 3 * PAGE, 0, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&h, PAGE - 1, &prop, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&h, PAGE, &prop, 1));
    OK(cuMemAddressReserve(&va, 8 * PAGE, 16 * PAGE, 0, 0));
    cr_assert_eq(va % (16 * PAGE), 0);
    OK(cuMemCreate(&h, 2 * PAGE, &prop, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemMap(va + 4096, PAGE, 0, h, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemMap(va, PAGE / 2, 0, h, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemMap(va, PAGE, PAGE, h, 0));             /* an offset */
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemMap(va, 3 * PAGE, 0, h, 0));            /* more than the handle has */
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemMap(va + 7 * PAGE, 2 * PAGE, 0, h, 0)); /* beyond the reservation */
    OK(cuMemMap(va, 2 * PAGE, 0, h, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemMap(va + PAGE, PAGE, 0, h, 0)); /* in use */
}

Test(vmm, unmap_and_set_access_take_whole_mappings_without_holes)
{
    machine_with_context("h200,vram=64M");
    CUdeviceptr va;
    CUmemAllocationProp prop = on_device(0);
    CUmemAccessDesc access = access_of(0);
    CUmemGenericAllocationHandle h;
    OK(cuMemAddressReserve(&va, 8 * PAGE, 0, 0, 0));
    OK(cuMemCreate(&h, 2 * PAGE, &prop, 0));
    OK(cuMemMap(va, 2 * PAGE, 0, h, 0));
    OK(cuMemMap(va + 2 * PAGE, 2 * PAGE, 0, h, 0));
    OK(cuMemMap(va + 6 * PAGE, 2 * PAGE, 0, h, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemSetAccess(va, PAGE, &access, 1));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemSetAccess(va, 8 * PAGE, &access, 1)); /* a hole */
    OK(cuMemSetAccess(va, 4 * PAGE, &access, 1));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(va, PAGE));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(va + PAGE, PAGE));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(va, 8 * PAGE));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(va, 8 * PAGE)); /* still mapped */
    OK(cuMemUnmap(va, 4 * PAGE));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(va, 4 * PAGE));
    OK(cuMemUnmap(va + 6 * PAGE, 2 * PAGE));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(va, 4 * PAGE));
    OK(cuMemAddressFree(va, 8 * PAGE));
    OK(cuMemRelease(h));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemRelease(h));
}

Test(vmm, memory_lives_as_long_as_a_handle_or_a_mapping)
{
    machine_with_context("h200,vram=64M");
    size_t before = free_vram();
    CUdeviceptr va;
    CUmemAllocationProp prop = on_device(0), got;
    CUmemGenericAllocationHandle h, again;
    OK(cuMemAddressReserve(&va, 4 * PAGE, 0, 0, 0));
    OK(cuMemCreate(&h, PAGE, &prop, 0));
    cr_assert_eq(free_vram(), before - PAGE);
    OK(cuMemMap(va, PAGE, 0, h, 0));
    OK(cuMemRelease(h));
    cr_assert_eq(free_vram(), before - PAGE);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemGetAllocationPropertiesFromHandle(&got, h));
    OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(va + 77)));
    OK(cuMemGetAllocationPropertiesFromHandle(&got, again));
    cr_assert_eq(got.location.id, 0);
    OK(cuMemUnmap(va, PAGE));
    cr_assert_eq(free_vram(), before - PAGE);
    OK(cuMemRelease(again));
    cr_assert_eq(free_vram(), before);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemMap(va, PAGE, 0, again, 0));
}

Test(vmm, vram_has_an_end)
{
    machine_with_context("h200,vram=64M");
    CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle h, all[64];
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemCreate(&h, 64 * MIB, &prop, 0)); /* the context has its share */
    unsigned n = 0;
    CUresult r;
    while ((r = cuMemCreate(&all[n], PAGE, &prop, 0)) == CUDA_SUCCESS)
        n++;
    cr_assert_eq(r, CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert_eq(n, 31);
    OK(cuMemRelease(all[5]));
    OK(cuMemCreate(&h, PAGE, &prop, 0));
}

Test(vmm, two_mappings_of_one_chunk_show_the_same_bytes)
{
    machine_with_context("h200,vram=64M");
    CUdeviceptr va;
    CUmemAllocationProp prop = on_device(0);
    CUmemAccessDesc access = access_of(0);
    CUmemGenericAllocationHandle h;
    unsigned value = 0;
    OK(cuMemAddressReserve(&va, 2 * PAGE, 0, 0, 0));
    OK(cuMemCreate(&h, PAGE, &prop, 0));
    OK(cuMemMap(va, PAGE, 0, h, 0));
    OK(cuMemMap(va + PAGE, PAGE, 0, h, 0));
    OK(cuMemSetAccess(va, 2 * PAGE, &access, 1));
    OK(cuMemsetD32_v2(va + 4096, 0xabcd1234, 1));
    OK(cuMemcpyDtoH_v2(&value, va + PAGE + 4096, 4));
    cr_assert_eq(value, 0xabcd1234);
    OK(cuMemUnmap(va, PAGE));
    OK(cuMemcpyDtoH_v2(&value, va + PAGE + 4096, 4));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH_v2(&value, va + 4096, 4));
}

Test(vmm, without_access_nothing_can_be_copied_and_access_can_be_asked)
{
    machine_with_context("h200,vram=64M");
    CUdeviceptr va;
    CUmemAllocationProp prop = on_device(0);
    CUmemAccessDesc access = access_of(0);
    CUmemLocation location = access.location;
    CUmemGenericAllocationHandle h;
    unsigned long long flags = 9;
    unsigned value;
    OK(cuMemAddressReserve(&va, PAGE, 0, 0, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemGetAccess(&flags, &location, va));
    OK(cuMemCreate(&h, PAGE, &prop, 0));
    OK(cuMemMap(va, PAGE, 0, h, 0));
    OK(cuMemGetAccess(&flags, &location, va));
    cr_assert_eq(flags, 0);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH_v2(&value, va, 4));
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
    OK(cuMemSetAccess(va, PAGE, &access, 1));
    OK(cuMemcpyDtoH_v2(&value, va, 4));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD_v2(va, &value, 4));
    access.location.id = 3;
    GIVES(CUDA_ERROR_INVALID_DEVICE, cuMemSetAccess(va, PAGE, &access, 1));
    access.location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_HOST_NUMA, .id = 0};
    GIVES(CUDA_ERROR_NOT_SUPPORTED, cuMemSetAccess(va, PAGE, &access, 1)); /* the CPU cannot see VRAM */
}

Test(vmm, fresh_memory_reads_as_poison_also_after_reuse)
{
    machine_with_context("h200,vram=64M");
    for (int round = 0; round < 2; round++) {
        CUdeviceptr va = mapped_chunks(2);
        uint64_t words[2];
        OK(cuMemcpyDtoH_v2(words, va + PAGE - 8, 16));
        cr_assert_eq(words[0], 0xfff7deadfff7deadu);
        cr_assert_eq(words[1], 0xfff7deadfff7deadu);
        OK(cuMemsetD8_v2(va, 0, 2 * PAGE));
        OK(cuCtxSynchronize());
        OK(cuMemUnmap(va, 2 * PAGE));
    }
}

Test(vmm, host_chunks_count_against_the_host_limit_and_give_the_cpu_access_when_asked)
{
    machine_with_context("h200,vram=64M,host=8M");
    CUdeviceptr va;
    CUmemAllocationProp prop = on_host_node(0);
    CUmemAccessDesc access[2] = {access_of(0),
                                 {.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE}};
    CUmemGenericAllocationHandle h, more;
    OK(cuMemCreate(&h, 2 * PAGE, &prop, 0));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemCreate(&more, 3 * PAGE, &prop, 0));
    OK(cuMemAddressReserve(&va, 2 * PAGE, 0, 0, 0));
    OK(cuMemMap(va, 2 * PAGE, 0, h, 0));
    OK(cuMemSetAccess(va, 2 * PAGE, access, 2));
    OK(cuMemsetD32_v2(va, 0x11223344, 2 * PAGE / 4));
    OK(cuCtxSynchronize());
    cr_assert_eq(*(unsigned *)(uintptr_t)(va + PAGE + 64), 0x11223344u);
    *(unsigned *)(uintptr_t)(va + 128) = 5;
    unsigned value;
    OK(cuMemcpyDtoH_v2(&value, va + 128, 4));
    cr_assert_eq(value, 5);
    OK(cuMemUnmap(va, 2 * PAGE));
    OK(cuMemRelease(h));
    OK(cuMemCreate(&more, 4 * PAGE, &prop, 0));
    prop.location.id = -1;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&h, PAGE, &prop, 0));
    prop.location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT};
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&h, PAGE, &prop, 0));
}

Test(vmm, denied_host_chunks_are_refused_at_creation_only)
{
    setenv("SIMGPU_DENY", "host_numa", 1);
    machine_with_context("h200,vram=64M");
    CUmemAllocationProp prop = on_host_node(0);
    CUmemGenericAllocationHandle h;
    int supported = 0;
    OK(cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0));
    cr_assert_eq(supported, 1);
    GIVES(CUDA_ERROR_NOT_PERMITTED, cuMemCreate(&h, PAGE, &prop, 0));
    prop = on_device(0);
    OK(cuMemCreate(&h, PAGE, &prop, 0));
}

Test(vmm, exported_chunks_are_the_same_memory_where_imported)
{
    machine_with_context("h200,vram=64M");
    CUmemAllocationProp prop = on_device(0);
    CUmemGenericAllocationHandle plain, h, back;
    int fd;
    OK(cuMemCreate(&plain, PAGE, &prop, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE,
          cuMemExportToShareableHandle(&fd, plain, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    OK(cuMemCreate(&h, PAGE, &prop, 0));
    size_t before = free_vram();
    OK(cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemImportFromShareableHandle(&back, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
    cr_assert_eq(free_vram(), before);
    CUdeviceptr va;
    CUmemAccessDesc access = access_of(0);
    unsigned value = 0;
    OK(cuMemAddressReserve(&va, 2 * PAGE, 0, 0, 0));
    OK(cuMemMap(va, PAGE, 0, h, 0));
    OK(cuMemMap(va + PAGE, PAGE, 0, back, 0));
    OK(cuMemSetAccess(va, 2 * PAGE, &access, 1));
    OK(cuMemsetD32_v2(va, 77, 1));
    OK(cuMemcpyDtoH_v2(&value, va + PAGE, 4));
    cr_assert_eq(value, 77);
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
    GIVES(CUDA_ERROR_NOT_PERMITTED, cuMemCreate(&h, PAGE, &prop, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE,
          cuMemImportFromShareableHandle(&back, (void *)(intptr_t)-1, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
}

Test(vmm, chunks_outlive_the_context)
{
    CUcontext context = machine_with_context("h200,vram=64M");
    CUdeviceptr va = mapped_chunks(1);
    OK(cuMemsetD32_v2(va, 99, 1));
    OK(cuCtxDestroy_v2(context));
    OK(cuCtxCreate_v2(&context, 0, 0));
    unsigned value = 0;
    OK(cuMemcpyDtoH_v2(&value, va, 4));
    cr_assert_eq(value, 99);
}

Test(vmm, an_asked_for_address_is_given_when_free)
{
    machine("h200,vram=64M");
    CUdeviceptr va, again;
    OK(cuMemAddressReserve(&va, 4 * PAGE, 0, 0, 0));
    OK(cuMemAddressFree(va, 4 * PAGE));
    OK(cuMemAddressReserve(&again, 4 * PAGE, 0, va, 0));
    cr_assert_eq(again, va);
    OK(cuMemAddressReserve(&again, 4 * PAGE, 0, va, 0));
    cr_assert_neq(again, va);
    cr_assert_lt(again, UINT64_C(1) << 47);
}

Test(vmm, the_host_faults_on_a_device_address, .signal = SIGSEGV)
{
    machine_with_context("h200,vram=64M");
    CUdeviceptr va = mapped_chunks(1);
    signal(SIGSEGV, SIG_DFL); /* a sanitizer's handler would make an exit of it */
    *(volatile int *)(uintptr_t)va = 1;
}
