/* Managed memory: one address for the host and the devices. */
#include "kernels.h"
#include "sim_test.h"
#include "virtual.h"

static CUmemLocation device(int id)
{
    return (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = id};
}

static const CUmemLocation on_cpu = {.type = CU_MEM_LOCATION_TYPE_HOST};

static CUdeviceptr managed(size_t bytes)
{
    CUdeviceptr p;
    OK(cuMemAllocManaged(&p, bytes, CU_MEM_ATTACH_GLOBAL));
    return p;
}

static CUfunction fill_kernel(void)
{
    CUmodule module;
    CUfunction f;
    OK(cuModuleLoadData(&module, kernels_ptx));
    OK(cuModuleGetFunction(&f, module, "fill"));
    return f;
}

static int asked(CUmem_range_attribute attribute, CUdeviceptr p, size_t bytes)
{
    int value = -77;
    OK(cuMemRangeGetAttribute(&value, sizeof value, attribute, p, bytes));
    return value;
}

Test(managed, host_and_devices_see_the_same_bytes)
{
    machine_with_context("h200,vram=64M,gpus=2,host=64M");
    CUfunction f = fill_kernel();
    CUdeviceptr p = managed(3 * MIB);
    unsigned *cpu = (unsigned *)(uintptr_t)p;
    uint64_t fresh = *(volatile uint64_t *)(cpu + 1000);
    cr_assert_eq(fresh, UINT64_C(0xfff7deadfff7dead)); /* not cleared */
    launch_fill(f, 64, p, NULL);                       /* 3 in the first 8192 words */
    OK(cuCtxSynchronize());
    cr_assert_eq(cpu[0], 3);
    cr_assert_eq(cpu[8191], 3);
    cpu[100] = 1234;
    unsigned value;
    CUdeviceptr d;
    OK(cuMemAlloc_v2(&d, 4));
    OK(cuMemcpyDtoD_v2(d, p + 400, 4));
    OK(cuMemcpyDtoH_v2(&value, d, 4));
    cr_assert_eq(value, 1234);
    OK(cuMemcpyHtoD_v2(d, cpu + 8191, 4)); /* as the host's */
    OK(cuMemcpyDtoH_v2(cpu + 5, d, 4));
    cr_assert_eq(cpu[5], 3);
    CUcontext second;
    OK(cuCtxCreate_v2(&second, 0, 1));
    OK(cuMemsetD32_v2(p, 99, 3 * MIB / 4)); /* by the other device */
    OK(cuCtxSynchronize());
    cr_assert_eq(cpu[3 * MIB / 4 - 1], 99);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD8_v2(p + 3 * MIB, 0, 1));
    OK(cuMemFree_v2(p));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(p));
}

Test(managed, more_than_the_device_has_can_be_allocated_but_not_more_than_the_host)
{
    machine_with_context("h200,vram=16M,host=64M");
    size_t before = free_vram();
    CUdeviceptr p = managed(48 * MIB), q;
    cr_assert_eq(before, free_vram());
    OK(cuMemsetD8_v2(p, 1, 48 * MIB));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocManaged(&q, 32 * MIB, CU_MEM_ATTACH_GLOBAL));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocManaged(&q, UINT64_MAX, CU_MEM_ATTACH_GLOBAL));
    OK(cuMemFree_v2(p));
    q = managed(64 * MIB);
}

Test(managed, pointers_tell)
{
    CUcontext mine = machine_with_context("h200,vram=64M,host=64M"), owner;
    CUdeviceptr p = managed(5000), base;
    void *host;
    size_t bytes;
    unsigned is, type;
    OK(cuPointerGetAttribute(&is, CU_POINTER_ATTRIBUTE_IS_MANAGED, p + 4999));
    cr_assert_eq(is, 1);
    OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p));
    cr_assert_eq(type, CU_MEMORYTYPE_DEVICE);
    OK(cuPointerGetAttribute(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, p));
    cr_assert_eq((CUdeviceptr)(uintptr_t)host, p);
    OK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, p));
    cr_assert_eq(owner, mine);
    OK(cuPointerGetAttribute(&is, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, p));
    cr_assert_eq(is, 0);
    OK(cuMemGetAddressRange_v2(&base, &bytes, p + 77));
    cr_assert(base == p && bytes == 5000);
}

Test(managed, advice_is_kept_per_page)
{
    machine_with_context("h200,vram=64M,gpus=2,host=64M");
    CUdeviceptr p = managed(4 * MIB);
    int list[4];
    cr_assert_eq(asked(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, p, 4 * MIB), CU_DEVICE_INVALID);
    OK(cuMemAdvise_v2(p + 100, 4096, CU_MEM_ADVISE_SET_READ_MOSTLY, on_cpu)); /* touches two pages */
    cr_assert_eq(asked(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, p, 8192), 1);
    cr_assert_eq(asked(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, p, 8193), 0);
    OK(cuMemAdvise_v2(p, 4 * MIB, CU_MEM_ADVISE_UNSET_READ_MOSTLY, on_cpu));
    cr_assert_eq(asked(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, p, 4096), 0);
    OK(cuMemAdvise(p, 2 * MIB, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, 1));
    OK(cuMemAdvise(p + 2 * MIB, 2 * MIB, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, CU_DEVICE_CPU));
    cr_assert_eq(asked(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, p, 2 * MIB), 1);
    cr_assert_eq(asked(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE, p, 2 * MIB), CU_MEM_LOCATION_TYPE_DEVICE);
    cr_assert_eq(asked(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID, p, 2 * MIB), 1);
    cr_assert_eq(asked(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, p + 2 * MIB, MIB), CU_DEVICE_CPU);
    cr_assert_eq(asked(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, p, 4 * MIB), CU_DEVICE_INVALID);
    OK(cuMemAdvise_v2(p, MIB, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, device(0)));
    cr_assert_eq(asked(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE, p, MIB), CU_MEM_LOCATION_TYPE_INVALID);
    OK(cuMemAdvise_v2(p, 4 * MIB, CU_MEM_ADVISE_SET_ACCESSED_BY, device(1)));
    OK(cuMemAdvise_v2(p, 4 * MIB, CU_MEM_ADVISE_SET_ACCESSED_BY, device(0)));
    OK(cuMemAdvise_v2(p, MIB, CU_MEM_ADVISE_UNSET_ACCESSED_BY, device(0)));
    OK(cuMemRangeGetAttribute(list, sizeof list, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, p, 4 * MIB));
    cr_assert(list[0] == 1 && list[1] == CU_DEVICE_INVALID && list[3] == CU_DEVICE_INVALID);
    OK(cuMemRangeGetAttribute(list, 4, CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, p + 2 * MIB, MIB));
    cr_assert_eq(list[0], 0);
}

Test(managed, a_prefetch_moves_pages_and_takes_its_time)
{
    machine_with_context("h200,vram=64M,host=64M");
    CUdeviceptr p = managed(32 * MIB);
    CUstream s = stream();
    CUevent a, b;
    OK(cuEventCreate(&a, 0));
    OK(cuEventCreate(&b, 0));
    cr_assert_eq(asked(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, p, 4096), CU_DEVICE_INVALID);
    double seconds[2];
    for (int i = 0; i < 2; i++) {
        OK(cuEventRecord(a, s));
        OK(cuMemPrefetchAsync_v2(p, 32 * MIB, device(0), 0, s));
        OK(cuEventRecord(b, s));
        OK(cuEventSynchronize(b));
        seconds[i] = seconds_between(a, b);
    }
    cr_assert_gt(seconds[0], 20 * seconds[1]); /* the second time they are there */
    cr_assert_gt(32 * MIB / seconds[0], 30e9);
    cr_assert_lt(32 * MIB / seconds[0], 64e9);
    cr_assert_eq(asked(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, p, 32 * MIB), 0);
    /* Kernels then find them in the device's memory. */
    CUfunction f = fill_kernel();
    double kernel[2];
    for (int i = 0; i < 2; i++) {
        OK(cuEventRecord(a, s));
        launch_fill(f, 32 * MIB / 512, p, s);
        OK(cuEventRecord(b, s));
        OK(cuEventSynchronize(b));
        kernel[i] = seconds_between(a, b);
        OK(cuMemPrefetchAsync(p, 32 * MIB, CU_DEVICE_CPU, s));
    }
    cr_assert_gt(kernel[1], 4 * kernel[0]);
    cr_assert_eq(asked(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, p, 32 * MIB), CU_DEVICE_CPU);
    OK(cuStreamSynchronize(s));
    cr_assert_eq(((unsigned *)(uintptr_t)p)[8 * MIB - 1], 3);
}

Test(managed, batches_prefetch_and_discard)
{
    machine_with_context("h200,vram=64M,gpus=2,host=64M");
    CUdeviceptr p = managed(4 * MIB), q = managed(MIB), both[2] = {p, q};
    size_t bytes[2] = {4 * MIB, MIB}, first[2] = {0, 1};
    CUmemLocation to[2] = {device(1), on_cpu};
    CUstream s = stream();
    unsigned *cpu = (unsigned *)(uintptr_t)q;
    OK(cuMemPrefetchBatchAsync(both, bytes, 2, to, first, 2, 0, s));
    cr_assert_eq(asked(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, p, 4 * MIB), 1);
    cr_assert_eq(asked(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE, q, MIB), CU_MEM_LOCATION_TYPE_HOST);
    OK(cuStreamSynchronize(s));
    for (size_t i = 0; i < MIB / 4; i++)
        cpu[i] = 5;
    both[0] = q + 100; /* only whole pages are discarded */
    bytes[0] = 8192;
    OK(cuMemDiscardBatchAsync(both, bytes, 1, 0, s));
    OK(cuStreamSynchronize(s));
    cr_assert_eq(cpu[1023], 5);
    cr_assert_eq(cpu[1024], 0xfff7dead);
    cr_assert_eq(cpu[2047], 0xfff7dead);
    cr_assert_eq(cpu[2048], 5);
    both[0] = q;
    bytes[0] = MIB;
    first[0] = 0;
    OK(cuMemDiscardAndPrefetchBatchAsync(both, bytes, 1, to, first, 1, 0, s));
    OK(cuMemsetD32Async(q, 6, 1, s));
    OK(cuStreamSynchronize(s));
    cr_assert(cpu[0] == 6 && cpu[1] == 0xfff7dead);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPrefetchBatchAsync(both, bytes, 2, to, first, 2, 0, CU_STREAM_LEGACY));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPrefetchBatchAsync(both, bytes, 2, to, first, 2, 1, s));
    first[0] = 1;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPrefetchBatchAsync(both, bytes, 2, to, first, 1, 0, s));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemDiscardBatchAsync(both, bytes, 0, 0, s));
}

Test(managed, wrong_calls_are_refused)
{
    machine_with_context("h200,vram=64M,host=64M");
    CUdeviceptr p = managed(MIB), plain, q;
    CUstream s = stream();
    int value;
    OK(cuMemAlloc_v2(&plain, MIB));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAllocManaged(NULL, 4, CU_MEM_ATTACH_GLOBAL));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAllocManaged(&q, 0, CU_MEM_ATTACH_GLOBAL));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAllocManaged(&q, 4, CU_MEM_ATTACH_SINGLE));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPrefetchAsync_v2(plain, MIB, device(0), 0, s));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPrefetchAsync_v2(p, MIB + 1, device(0), 0, s));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPrefetchAsync_v2(p, MIB, device(0), 1, s));
    GIVES(CUDA_ERROR_INVALID_DEVICE, cuMemPrefetchAsync_v2(p, MIB, device(1), 0, s));
    GIVES(CUDA_ERROR_INVALID_DEVICE, cuMemAdvise_v2(p, MIB, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, device(7)));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAdvise_v2(plain, MIB, CU_MEM_ADVISE_SET_READ_MOSTLY, device(0)));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAdvise_v2(p, MIB, (CUmem_advise)50, device(0)));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemRangeGetAttribute(&value, 8, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, p, 4));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemRangeGetAttribute(&value, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, plain, 4));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemRangeGetAttribute(&value, 4, (CUmem_range_attribute)50, p, 4));
    void *data[2] = {&value, &value};
    size_t sizes[2] = {4, 3};
    CUmem_range_attribute attributes[2] = {CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY,
                                           CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION};
    OK(cuMemRangeGetAttributes(data, sizes, attributes, 1, p, MIB));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemRangeGetAttributes(data, sizes, attributes, 2, p, MIB));
    OK(cuStreamAttachMemAsync(s, p, 0, CU_MEM_ATTACH_SINGLE));
    OK(cuStreamAttachMemAsync(NULL, p, MIB, CU_MEM_ATTACH_HOST));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamAttachMemAsync(NULL, p, 0, CU_MEM_ATTACH_SINGLE));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamAttachMemAsync(s, p, 4096, CU_MEM_ATTACH_GLOBAL));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamAttachMemAsync(s, plain, 0, CU_MEM_ATTACH_GLOBAL));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamAttachMemAsync(s, p, 0, 8));
}
