#include "sim_test.h"

#include <stdio.h>
#include <sys/mman.h>

static void hold(CUstream stream, struct gate *gate)
{
    OK(cuLaunchHostFunc(stream, gate_wait, gate));
    gate_await_arrival(gate);
}

Test(copy, all_directions_move_the_bytes)
{
    machine_with_context("h200,vram=64M");
    size_t n = 5 * MIB + 123;
    uint8_t *src = malloc(n), *dst = malloc(n);
    CUdeviceptr a, b;
    for (size_t i = 0; i < n; i++)
        src[i] = (uint8_t)(i * 31 >> 3);
    OK(cuMemAlloc_v2(&a, n));
    OK(cuMemAlloc_v2(&b, n + 7));
    OK(cuMemcpyHtoD_v2(a, src, n));
    OK(cuMemcpyDtoD_v2(b + 7, a, n));
    OK(cuMemcpyDtoH_v2(dst, b + 7, n));
    cr_assert_eq(memcmp(src, dst, n), 0);
    memset(dst, 0, n);
    OK(cuMemcpy((CUdeviceptr)(uintptr_t)dst, b + 7, n));
    cr_assert_eq(memcmp(src, dst, n), 0);
    memset(dst, 0, n);
    OK(cuMemcpy((CUdeviceptr)(uintptr_t)dst, (CUdeviceptr)(uintptr_t)src, n));
    cr_assert_eq(memcmp(src, dst, n), 0);
    OK(cuMemcpyHtoD_v2(a, src, 0));
    free(src);
    free(dst);
}

Test(copy, bad_operands_are_refused_at_the_call)
{
    machine_with_context("h200,vram=64M");
    uint8_t host[512];
    CUdeviceptr a;
    OK(cuMemAlloc_v2(&a, 1000));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD_v2(a + 900, host, 101)); /* past the end */
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD_v2((CUdeviceptr)(uintptr_t)host, host, 4));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD_v2(0, host, 4));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH_v2(NULL, a, 4));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH_v2((void *)(uintptr_t)a, a, 4));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoD_v2(a, 0x7654321000, 4));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD32_v2(a + 2, 0, 1)); /* not aligned */
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD8_v2(a, 0, 1001));
    OK(cuMemFree_v2(a));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD_v2(a, host, 4));
}

Test(copy, pageable_sources_are_staged_and_pinned_ones_read_when_the_copy_runs)
{
    machine_with_context("h200,vram=64M");
    static struct gate gate = GATE_INIT;
    unsigned pageable = 1, *pinned, got[2];
    CUdeviceptr a;
    CUstream s;
    OK(cuMemAlloc_v2(&a, 64));
    OK(cuMemAllocHost_v2((void **)&pinned, 4));
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    *pinned = 1;
    hold(s, &gate);
    OK(cuMemcpyHtoDAsync_v2(a, &pageable, 4, s));
    OK(cuMemcpyHtoDAsync_v2(a + 4, pinned, 4, s));
    pageable = *pinned = 2;
    gate_open(&gate);
    OK(cuStreamSynchronize(s));
    OK(cuMemcpyDtoH_v2(got, a, 8));
    cr_assert_eq(got[0], 1);
    cr_assert_eq(got[1], 2);
}

Test(copy, asynchronous_copies_to_pinned_memory_do_not_wait)
{
    machine_with_context("h200,vram=64M");
    static struct gate gate = GATE_INIT;
    unsigned *pinned;
    CUdeviceptr a;
    CUstream s;
    OK(cuMemAlloc_v2(&a, 64));
    OK(cuMemsetD32_v2(a, 5, 1));
    OK(cuCtxSynchronize());
    OK(cuMemHostAlloc((void **)&pinned, 4, 0));
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    *pinned = 1;
    hold(s, &gate);
    OK(cuMemcpyDtoHAsync_v2(pinned, a, 4, s));
    cr_assert_eq(*pinned, 1);
    gate_open(&gate);
    OK(cuStreamSynchronize(s));
    cr_assert_eq(*pinned, 5);
}

Test(copy, device_to_device_copies_and_memsets_do_not_wait_for_their_end)
{
    machine_with_context("h200,vram=64M");
    static struct gate gate = GATE_INIT;
    CUdeviceptr a;
    OK(cuMemAlloc_v2(&a, 4096));
    hold(NULL, &gate);
    OK(cuMemsetD8_v2(a, 1, 16));
    OK(cuMemcpyDtoD_v2(a + 64, a, 16));
    GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(NULL));
    gate_open(&gate);
    OK(cuCtxSynchronize());
}

Test(copy, sync_memops_makes_copies_on_that_memory_synchronous)
{
    machine_with_context("h200,vram=64M");
    CUdeviceptr a;
    unsigned on = 1, got = 0;
    OK(cuMemAlloc_v2(&a, 8 * MIB));
    OK(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, a));
    OK(cuPointerGetAttribute(&got, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, a + 5));
    cr_assert_eq(got, 1);
    for (int i = 0; i < 20; i++) {
        OK(cuMemsetD8_v2(a, (unsigned char)i, 8 * MIB));
        OK(cuStreamQuery(NULL));
    }
}

Test(copy, memsets_write_elements_of_each_width)
{
    machine_with_context("h200,vram=64M");
    CUdeviceptr a;
    uint8_t got[32];
    OK(cuMemAlloc_v2(&a, 4096));
    OK(cuMemsetD8_v2(a, 0xee, 32));
    OK(cuMemsetD8_v2(a, 0x11, 3));
    OK(cuMemsetD16_v2(a + 4, 0x2233, 2));
    OK(cuMemsetD32_v2(a + 8, 0x44556677, 2));
    OK(cuMemcpyDtoH_v2(got, a, 32));
    static const uint8_t wanted[20] = {0x11, 0x11, 0x11, 0xee, 0x33, 0x22, 0x33, 0x22, 0x77, 0x66,
                                       0x55, 0x44, 0x77, 0x66, 0x55, 0x44, 0xee, 0xee, 0xee, 0xee};
    cr_assert_eq(memcmp(got, wanted, 20), 0);
    OK(cuMemsetD2D8_v2(a + 1024, 64, 0x99, 8, 4));
    OK(cuMemsetD2D32_v2(a + 1024, 64, 0x01020304, 1, 2));
    OK(cuMemcpyDtoH_v2(got, a + 1024 + 64, 16));
    cr_assert_eq(got[0], 4);
    cr_assert_eq(got[4], 0x99);
    cr_assert_eq(got[8], 0xad, "beyond the row lies the poison of fresh memory");
}

Test(copy, two_dimensions_follow_the_pitches)
{
    machine_with_context("h200,vram=64M");
    CUdeviceptr a;
    size_t pitch;
    uint8_t in[6 * 10], out[4 * 8];
    for (int i = 0; i < 60; i++)
        in[i] = (uint8_t)i;
    memset(out, 0xff, sizeof out);
    OK(cuMemAllocPitch_v2(&a, &pitch, 100, 20, 4));
    cr_assert_eq(pitch % 512, 0);
    CUDA_MEMCPY2D up = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                        .srcHost = in,
                        .srcPitch = 10,
                        .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                        .dstDevice = a,
                        .dstPitch = pitch,
                        .WidthInBytes = 10,
                        .Height = 6};
    OK(cuMemcpy2D_v2(&up));
    CUDA_MEMCPY2D down = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                          .srcDevice = a,
                          .srcPitch = pitch,
                          .srcXInBytes = 3,
                          .srcY = 2,
                          .dstMemoryType = CU_MEMORYTYPE_HOST,
                          .dstHost = out,
                          .dstPitch = 8,
                          .WidthInBytes = 5,
                          .Height = 3};
    OK(cuMemcpy2D_v2(&down));
    for (int y = 0; y < 4; y++)
        for (int x = 0; x < 8; x++)
            cr_assert_eq(out[y * 8 + x], x < 5 && y < 3 ? (y + 2) * 10 + x + 3 : 0xff);
    down.srcPitch = 4;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D_v2(&down));
}

Test(copy, peer_copies_of_plain_memory_need_no_access_but_vmm_memory_needs_grants)
{
    CUcontext c0 = machine_with_context("h200,vram=64M,gpus=2"), c1;
    CUdeviceptr p0, p1, v0 = mapped_chunks(1);
    unsigned value = 0;
    OK(cuMemAlloc_v2(&p0, 4096));
    OK(cuMemsetD32_v2(p0, 123, 8));
    OK(cuCtxSynchronize());
    OK(cuCtxCreate_v2(&c1, 0, 1));
    OK(cuMemAlloc_v2(&p1, 4096));
    OK(cuMemcpyPeer(p1, c1, p0, c0, 32));
    OK(cuMemcpyDtoH_v2(&value, p1 + 28, 4));
    cr_assert_eq(value, 123);
    OK(cuMemcpyDtoD_v2(p1 + 64, p0, 32)); /* by address alone */
    OK(cuMemcpyDtoH_v2(&value, p1 + 64, 4));
    cr_assert_eq(value, 123);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoD_v2(v0, p1, 32)); /* device 1 has no grant */
    CUmemAccessDesc access = access_of(1);
    OK(cuMemSetAccess(v0, PAGE, &access, 1));
    OK(cuMemcpyDtoD_v2(v0, p1, 32));
    OK(cuCtxSynchronize());
    OK(cuCtxSetCurrent(c0));
    OK(cuMemcpyDtoH_v2(&value, v0, 4));
    cr_assert_eq(value, 123);
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuMemcpyPeer(p1, (CUcontext)(uintptr_t)0x1230, p0, c0, 32));
}

Test(copy, a_copy_that_lost_its_memory_kills_the_context)
{
    machine_with_context("h200,vram=64M");
    static struct gate gate = GATE_INIT;
    CUdeviceptr va = mapped_chunks(1);
    CUstream s;
    CUcontext context;
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    hold(s, &gate);
    OK(cuMemsetD8Async(va, 1, 100, s));
    OK(cuMemUnmap(va, PAGE));
    gate_open(&gate);
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(s));
    CUdeviceptr p;
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemAlloc_v2(&p, 512)); /* sticky */
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamQuery(s));
    OK(cuCtxGetCurrent(&context));
    OK(cuCtxDestroy_v2(context));
    OK(cuCtxCreate_v2(&context, 0, 0));
    OK(cuMemAlloc_v2(&p, 512));
}
