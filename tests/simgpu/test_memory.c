#include "sim_test.h"

#include <sys/mman.h>

Test(memory, small_allocations_share_blocks_and_are_aligned)
{
    machine_with_context("h200,vram=64M");
    size_t before = free_vram();
    CUdeviceptr p[4096];
    for (int i = 0; i < 4096; i++) {
        OK(cuMemAlloc_v2(&p[i], 512));
        cr_assert_eq(p[i] % 512, 0);
    }
    cr_assert_eq(before - free_vram(), PAGE);
    CUdeviceptr one_more;
    OK(cuMemAlloc_v2(&one_more, 1));
    cr_assert_eq(before - free_vram(), 2 * PAGE);
    for (int i = 0; i < 4096; i++)
        OK(cuMemFree_v2(p[i]));
    OK(cuMemFree_v2(one_more));
    cr_assert_eq(free_vram(), before);
}

Test(memory, large_allocations_take_whole_granules)
{
    machine_with_context("h200,vram=64M");
    size_t before = free_vram();
    CUdeviceptr p;
    OK(cuMemAlloc_v2(&p, 3 * MIB));
    cr_assert_eq(before - free_vram(), 2 * PAGE);
    cr_assert_eq(p % PAGE, 0);
    OK(cuMemFree_v2(p));
    cr_assert_eq(free_vram(), before);
}

Test(memory, running_out_and_coming_back)
{
    machine_with_context("h200,vram=64M");
    CUdeviceptr p, q;
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&p, 64 * MIB));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&p, UINT64_C(1) << 40));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&p, UINT64_MAX));
    OK(cuMemAlloc_v2(&p, free_vram()));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&q, 1));
    OK(cuMemFree_v2(p));
    OK(cuMemAlloc_v2(&q, 1));
}

Test(memory, only_bases_of_live_allocations_can_be_freed)
{
    machine_with_context("h200,vram=64M");
    CUdeviceptr p, big, vmm = mapped_chunks(1);
    OK(cuMemAlloc_v2(&p, 2000));
    OK(cuMemAlloc_v2(&big, 4 * MIB));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(p + 512));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(big + PAGE));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(vmm));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(0x123456789a));
    OK(cuMemFree_v2(0));
    OK(cuMemFree_v2(p));
    OK(cuMemFree_v2(big));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(p));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(big));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAlloc_v2(&p, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAlloc_v2(NULL, 4));
}

Test(memory, address_ranges_are_those_asked_for)
{
    machine_with_context("h200,vram=64M");
    CUdeviceptr p, base, vmm = mapped_chunks(2);
    size_t bytes;
    OK(cuMemAlloc_v2(&p, 1234));
    OK(cuMemGetAddressRange_v2(&base, &bytes, p + 1000));
    cr_assert_eq(base, p);
    cr_assert_eq(bytes, 1234);
    OK(cuMemGetAddressRange_v2(&base, &bytes, vmm + PAGE + 5));
    cr_assert_eq(base, vmm + PAGE);
    cr_assert_eq(bytes, PAGE);
    GIVES(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange_v2(&base, &bytes, p + 1234));
}

Test(memory, a_context_takes_its_share_and_gives_back_what_it_held)
{
    machine("h200,vram=64M");
    CUcontext a, b;
    CUdeviceptr p;
    OK(cuCtxCreate_v2(&a, 0, 0));
    size_t one = free_vram();
    cr_assert_eq(one, 62 * MIB);
    OK(cuMemAlloc_v2(&p, 10 * MIB));
    OK(cuCtxCreate_v2(&b, 0, 0));
    cr_assert_eq(free_vram(), one - 12 * MIB);
    OK(cuCtxDestroy_v2(a));
    cr_assert_eq(free_vram(), one);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(p));
    OK(cuMemFree_v2(0));
}

Test(memory, pinned_memory_is_limited_and_visible_to_devices)
{
    machine_with_context("h200,vram=64M,host=1M");
    void *p, *q;
    CUdeviceptr d, src;
    unsigned flags;
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocHost_v2(&p, 2 * MIB));
    OK(cuMemHostAlloc(&p, 4096 * 3 + 5, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_WRITECOMBINED));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemHostAlloc(&q, 4096, 64));
    OK(cuMemHostGetFlags(&flags, (char *)p + 100));
    cr_assert_eq(flags, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_WRITECOMBINED | CU_MEMHOSTALLOC_DEVICEMAP);
    OK(cuMemHostGetDevicePointer_v2(&d, p, 0));
    OK(cuMemAlloc_v2(&src, 4096));
    OK(cuMemsetD8_v2(src, 0x3c, 4096));
    OK(cuMemcpyDtoD_v2(d + 4096 * 2, src, 4096));
    OK(cuMemsetD8_v2(d + 4096 * 3, 0x3d, 5));
    OK(cuCtxSynchronize());
    cr_assert_eq(((unsigned char *)p)[4096 * 3 - 1], 0x3c);
    cr_assert_eq(((unsigned char *)p)[4096 * 3 + 4], 0x3d);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD8_v2(d + 4096 * 3, 0, 6));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost((char *)p + 4096));
    OK(cuMemFreeHost(p));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(p));
    OK(cuMemAllocHost_v2(&q, MIB));
}

Test(memory, registration_is_exact)
{
    machine_with_context("h200,vram=64M");
    char *p = mmap(NULL, 8 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CUdeviceptr d;
    GIVES(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(p));
    OK(cuMemHostRegister_v2(p + 100, 5 * MIB, 0));
    GIVES(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister_v2(p + MIB, MIB, 0));
    OK(cuMemHostRegister_v2(p + 6 * MIB, MIB, 0));
    OK(cuMemHostGetDevicePointer_v2(&d, p + 200, 0));
    cr_assert_eq(d, (CUdeviceptr)(uintptr_t)p + 200);
    OK(cuMemsetD8_v2((CUdeviceptr)(uintptr_t)p + 100, 9, 5 * MIB));
    OK(cuCtxSynchronize());
    cr_assert_eq(p[99], 0);
    cr_assert_eq(p[100], 9);
    cr_assert_eq(p[100 + 5 * MIB - 1], 9);
    cr_assert_eq(p[100 + 5 * MIB], 0);
    GIVES(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(p));
    OK(cuMemHostUnregister(p + 100));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemHostGetDevicePointer_v2(&d, p + 200, 0));
    OK(cuMemHostGetDevicePointer_v2(&d, p + 6 * MIB, 0));
    OK(cuMemHostUnregister(p + 6 * MIB));
    munmap(p, 8 * MIB);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemHostRegister_v2(p, MIB, 0)); /* nothing is mapped there */
}

Test(memory, pointers_tell_what_they_are)
{
    CUcontext context = machine_with_context("h200,vram=64M"), got;
    CUdeviceptr p, start, vmm = mapped_chunks(2);
    size_t bytes;
    unsigned type, flag;
    int ordinal;
    unsigned long long id, other;
    OK(cuMemAlloc_v2(&p, 3000));
    OK(cuPointerGetAttribute(&got, CU_POINTER_ATTRIBUTE_CONTEXT, p + 9));
    cr_assert_eq(got, context);
    OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p));
    cr_assert_eq(type, CU_MEMORYTYPE_DEVICE);
    OK(cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, p + 9));
    OK(cuPointerGetAttribute(&bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, p + 9));
    cr_assert(start == p && bytes == 3000);
    OK(cuPointerGetAttribute(&flag, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, p));
    cr_assert_eq(flag, 1);
    OK(cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, p));
    OK(cuPointerGetAttribute(&other, CU_POINTER_ATTRIBUTE_BUFFER_ID, vmm));
    cr_assert_neq(id, other);
    OK(cuPointerGetAttribute(&got, CU_POINTER_ATTRIBUTE_CONTEXT, vmm));
    cr_assert_null(got);
    OK(cuPointerGetAttribute(&flag, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, vmm));
    cr_assert_eq(flag, 0);
    OK(cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, vmm + PAGE + 1));
    OK(cuPointerGetAttribute(&bytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE, vmm + PAGE + 1));
    cr_assert(start == vmm && bytes == 2 * PAGE);
    OK(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, vmm));
    cr_assert_eq(ordinal, 0);
    GIVES(CUDA_ERROR_NOT_SUPPORTED, cuPointerSetAttribute(&flag, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, vmm));
    OK(cuMemUnmap(vmm, PAGE));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, vmm));
    bool is_mapped = true;
    OK(cuPointerGetAttribute(&is_mapped, CU_POINTER_ATTRIBUTE_MAPPED, vmm));
    cr_assert_not(is_mapped);
    CUmemGenericAllocationHandle h;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemRetainAllocationHandle(&h, (void *)(uintptr_t)p));
}

Test(memory, unknown_pointers_read_as_nothing_in_the_plural_form_only)
{
    machine_with_context("h200,vram=64M");
    int stack = 0, ordinal = 7;
    unsigned type = 7;
    CUpointer_attribute which[2] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    void *data[2] = {&type, &ordinal};
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)&stack;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuPointerGetAttribute(&type, which[0], at));
    OK(cuPointerGetAttributes(2, which, data, at));
    cr_assert_eq(type, 0);
    cr_assert_eq(ordinal, CU_DEVICE_INVALID);
    void *pinned;
    OK(cuMemAllocHost_v2(&pinned, 100));
    OK(cuPointerGetAttributes(2, which, data, (CUdeviceptr)(uintptr_t)pinned));
    cr_assert_eq(type, CU_MEMORYTYPE_HOST);
    cr_assert_eq(ordinal, 0);
}
