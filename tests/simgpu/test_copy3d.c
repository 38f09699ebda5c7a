/* Copies of layers, and batches of copies. */
#include "sim_test.h"

#include <stdio.h>

enum { W = 12, H = 5, D = 4 }; /* of the whole host block */

static unsigned char block[D][H][W];

static void number_block(void)
{
    for (int z = 0; z < D; z++)
        for (int y = 0; y < H; y++)
            for (int x = 0; x < W; x++)
                block[z][y][x] = (unsigned char)(z * 64 + y * 12 + x);
}

/* 5 x 3 x 2 bytes from (3,1,1) of the block to (2,2,1) of a device volume with rows of 32 bytes and layers of 6 rows. */
static CUDA_MEMCPY3D down(CUdeviceptr volume)
{
    return (CUDA_MEMCPY3D){.srcXInBytes = 3,
                           .srcY = 1,
                           .srcZ = 1,
                           .srcMemoryType = CU_MEMORYTYPE_HOST,
                           .srcHost = block,
                           .srcPitch = W,
                           .srcHeight = H,
                           .dstXInBytes = 2,
                           .dstY = 2,
                           .dstZ = 1,
                           .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                           .dstDevice = volume,
                           .dstPitch = 32,
                           .dstHeight = 6,
                           .WidthInBytes = 5,
                           .Height = 3,
                           .Depth = 2};
}

static void check_volume(const unsigned char *got)
{
    for (int z = 0; z < 4; z++)
        for (int y = 0; y < 6; y++)
            for (int x = 0; x < 32; x++) {
                int inside = z >= 1 && z < 3 && y >= 2 && y < 5 && x >= 2 && x < 7;
                int expected = inside ? block[z][y - 1][x + 1] : 0xee;
                cr_assert_eq(got[(z * 6 + y) * 32 + x], expected, "(%d,%d,%d)", x, y, z);
            }
}

Test(copy3d, a_piece_of_a_volume_goes_down_across_and_up)
{
    machine_with_context("h200,vram=64M");
    number_block();
    CUdeviceptr volume, other;
    static unsigned char got[4 * 6 * 32];
    OK(cuMemAlloc_v2(&volume, sizeof got));
    OK(cuMemAlloc_v2(&other, sizeof got));
    OK(cuMemsetD8_v2(volume, 0xee, sizeof got));
    OK(cuMemsetD8_v2(other, 0xee, sizeof got));
    CUDA_MEMCPY3D p = down(volume);
    OK(cuMemcpy3D_v2(&p));
    OK(cuMemcpyDtoH_v2(got, volume, sizeof got));
    check_volume(got);
    CUDA_MEMCPY3D across = {.srcMemoryType = CU_MEMORYTYPE_UNIFIED,
                            .srcDevice = volume,
                            .srcPitch = 32,
                            .srcHeight = 6,
                            .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                            .dstDevice = other,
                            .dstPitch = 32,
                            .dstHeight = 6,
                            .WidthInBytes = 32,
                            .Height = 6,
                            .Depth = 4};
    OK(cuMemcpy3DAsync_v2(&across, NULL));
    CUDA_MEMCPY3D up = across;
    up.srcDevice = other;
    up.dstMemoryType = CU_MEMORYTYPE_HOST;
    up.dstDevice = 0;
    up.dstHost = got;
    memset(got, 0, sizeof got);
    OK(cuMemcpy3D_v2_ptds(&up));
    OK(cuMemcpy3DAsync_v2_ptsz(&up, CU_STREAM_LEGACY));
    OK(cuCtxSynchronize());
    check_volume(got);
}

Test(copy3d, a_pageable_source_is_taken_when_the_call_is_made)
{
    machine_with_context("h200,vram=64M");
    static struct gate gate = GATE_INIT;
    number_block();
    CUdeviceptr volume;
    CUstream s;
    static unsigned char got[4 * 6 * 32], kept[sizeof block];
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc_v2(&volume, sizeof got));
    OK(cuMemsetD8_v2(volume, 0xee, sizeof got));
    OK(cuCtxSynchronize());
    OK(cuLaunchHostFunc(s, gate_wait, &gate));
    CUDA_MEMCPY3D p = down(volume);
    OK(cuMemcpy3DAsync_v2(&p, s));
    memcpy(kept, block, sizeof block);
    memset(block, 0x55, sizeof block);
    gate_open(&gate);
    OK(cuStreamSynchronize(s));
    memcpy(block, kept, sizeof block);
    OK(cuMemcpyDtoH_v2(got, volume, sizeof got));
    check_volume(got);
}

Test(copy3d, what_does_not_fit_is_refused_at_the_call)
{
    machine_with_context("h200,vram=64M");
    CUdeviceptr volume;
    OK(cuMemAlloc_v2(&volume, 4 * 6 * 32));
    CUDA_MEMCPY3D good = down(volume), p;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpy3D_v2(NULL));
#define REFUSED(code, change)                                                                                          \
    do {                                                                                                               \
        p = good;                                                                                                      \
        change;                                                                                                        \
        GIVES(code, cuMemcpy3D_v2(&p));                                                                                \
        GIVES(code, cuMemcpy3DAsync_v2(&p, NULL));                                                                     \
    } while (0)
    REFUSED(CUDA_ERROR_INVALID_VALUE, p.srcLOD = 1);
    REFUSED(CUDA_ERROR_INVALID_VALUE, p.dstLOD = 1);
    REFUSED(CUDA_ERROR_INVALID_VALUE, p.reserved0 = &p);
    REFUSED(CUDA_ERROR_INVALID_VALUE, p.reserved1 = &p);
    REFUSED(CUDA_ERROR_INVALID_VALUE, p.srcPitch = 7);
    REFUSED(CUDA_ERROR_INVALID_VALUE, p.dstPitch = 6);
    REFUSED(CUDA_ERROR_INVALID_VALUE, p.dstPitch = (size_t)INT32_MAX + 1);
    REFUSED(CUDA_ERROR_INVALID_VALUE, p.srcHeight = 3);
    REFUSED(CUDA_ERROR_INVALID_VALUE, p.dstHeight = 4);
    REFUSED(CUDA_ERROR_INVALID_VALUE, p.srcHeight = 0); /* only for a single layer */
    REFUSED(CUDA_ERROR_INVALID_VALUE, p.dstZ = 3);      /* past the end of the allocation */
    REFUSED(CUDA_ERROR_INVALID_VALUE, p.dstY = SIZE_MAX);
    REFUSED(CUDA_ERROR_INVALID_VALUE, p.dstZ = SIZE_MAX / 2);
    REFUSED(CUDA_ERROR_INVALID_VALUE, p.Depth = SIZE_MAX);
    REFUSED(CUDA_ERROR_INVALID_VALUE, p.dstMemoryType = (CUmemorytype)7);
    REFUSED(CUDA_ERROR_INVALID_VALUE, p.dstMemoryType = CU_MEMORYTYPE_HOST; p.dstHost = (void *)(uintptr_t)volume);
    REFUSED(CUDA_ERROR_INVALID_HANDLE, p.srcMemoryType = CU_MEMORYTYPE_ARRAY); /* and none is named */
    p = good;
    p.Depth = 1;
    p.srcZ = p.dstZ = 0;
    p.srcHeight = p.dstHeight = 0;
    OK(cuMemcpy3D_v2(&p));
    p = good;
    p.Depth = 0;
    OK(cuMemcpy3D_v2(&p));
}

Test(copy3d, layers_go_from_device_to_device)
{
    CUcontext c[2] = {machine_with_context("rtx4090,vram=64M,gpus=2"), NULL};
    CUdeviceptr a, b;
    static unsigned char got[4 * 6 * 32];
    number_block();
    OK(cuMemAlloc_v2(&a, sizeof got));
    OK(cuMemsetD8_v2(a, 0xee, sizeof got));
    CUDA_MEMCPY3D p = down(a);
    OK(cuMemcpy3D_v2(&p));
    OK(cuCtxCreate_v2(&c[1], 0, 1));
    OK(cuMemAlloc_v2(&b, sizeof got));
    CUDA_MEMCPY3D_PEER q = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                            .srcDevice = a,
                            .srcContext = c[0],
                            .srcPitch = 32,
                            .srcHeight = 6,
                            .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                            .dstDevice = b,
                            .dstContext = c[1],
                            .dstPitch = 32,
                            .dstHeight = 6,
                            .WidthInBytes = 32,
                            .Height = 6,
                            .Depth = 4};
    OK(cuMemcpy3DPeer(&q));
    OK(cuMemcpyDtoH_v2(got, b, sizeof got));
    check_volume(got);
    OK(cuMemsetD8_v2(b, 0, sizeof got));
    OK(cuMemcpy3DPeerAsync(&q, NULL));
    OK(cuMemcpyDtoH_v2(got, b, sizeof got));
    check_volume(got);
    CUDA_MEMCPY3D_PEER r = q;
    r.dstMemoryType = CU_MEMORYTYPE_HOST;
    r.dstHost = got;
    r.dstContext = NULL; /* host memory belongs to none */
    memset(got, 0, sizeof got);
    OK(cuMemcpy3DPeer_ptds(&r));
    OK(cuMemcpy3DPeerAsync_ptsz(&r, NULL));
    OK(cuCtxSynchronize());
    check_volume(got);
    q.srcContext = NULL;
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuMemcpy3DPeer(&q));
    q.srcContext = (CUcontext)(uintptr_t)0x1230;
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuMemcpy3DPeerAsync(&q, NULL));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpy3DPeer(NULL));
}

Test(copy3d, rows_of_an_allocation_begin_where_the_pitch_says)
{
    machine_with_context("h200,vram=64M");
    CUdeviceptr p;
    size_t pitch;
    OK(cuMemAllocPitch_v2(&p, &pitch, 700, 9, 4));
    cr_assert(pitch >= 700 && pitch % 512 == 0 && p % 512 == 0);
    OK(cuMemsetD2D32_v2(p, pitch, 0x01020304, 175, 9));
    OK(cuMemsetD2D16_v2(p + 2, pitch, 0xabcd, 1, 9));
    static unsigned char got[9][700];
    CUDA_MEMCPY2D up = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                        .srcDevice = p,
                        .srcPitch = pitch,
                        .dstMemoryType = CU_MEMORYTYPE_HOST,
                        .dstHost = got,
                        .WidthInBytes = 700,
                        .Height = 9};
    OK(cuMemcpy2DUnaligned_v2(&up));
    for (int y = 0; y < 9; y++)
        for (int x = 0; x < 700; x++)
            cr_assert_eq(got[y][x], x == 2 ? 0xcd : x == 3 ? 0xab : 4 - x % 4);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAllocPitch_v2(&p, &pitch, 700, 9, 2));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAllocPitch_v2(&p, NULL, 700, 9, 4));
}

/* ---- batches ---- */

static CUmemcpyAttributes in_order(CUmemcpySrcAccessOrder order)
{
    return (CUmemcpyAttributes){.srcAccessOrder = order};
}

Test(copy3d, a_batch_copies_all_its_parts)
{
    machine_with_context("h200,vram=64M");
    CUstream s;
    CUdeviceptr d;
    static unsigned in[64], out[64];
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc_v2(&d, 64 * 4096));
    CUdeviceptr dsts[64], srcs[64];
    size_t sizes[64], first[3] = {0, 10, 40}, failed = 5;
    CUmemcpyAttributes attributes[3] = {in_order(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM),
                                        in_order(CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL),
                                        in_order(CU_MEMCPY_SRC_ACCESS_ORDER_ANY)};
    attributes[1].flags = CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE;
    for (unsigned i = 0; i < 64; i++) {
        in[i] = i * 7 + 1;
        dsts[i] = d + i * 4096;
        srcs[i] = (CUdeviceptr)(uintptr_t)&in[i];
        sizes[i] = 4;
    }
    OK(cuMemcpyBatchAsync(dsts, srcs, sizes, 64, attributes, first, 3, &failed, s));
    OK(cuStreamSynchronize(s));
    cr_assert_eq(failed, SIZE_MAX);
    for (unsigned i = 0; i < 64; i++) {
        srcs[i] = dsts[i];
        dsts[i] = (CUdeviceptr)(uintptr_t)&out[63 - i];
    }
    OK(cuMemcpyBatchAsync_v2(dsts, srcs, sizes, 64, attributes, first, 1, s));
    OK(cuStreamSynchronize(s));
    for (unsigned i = 0; i < 64; i++)
        cr_assert_eq(out[63 - i], i * 7 + 1);
}

Test(copy3d, a_batch_reads_its_sources_when_it_was_told_to)
{
    machine_with_context("h200,vram=64M");
    static struct gate gate = GATE_INIT;
    CUstream s;
    CUdeviceptr d;
    unsigned in[2] = {1, 1}, got[2];
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc_v2(&d, 8));
    CUdeviceptr dsts[2] = {d, d + 4}, srcs[2] = {(CUdeviceptr)(uintptr_t)&in[0], (CUdeviceptr)(uintptr_t)&in[1]};
    size_t sizes[2] = {4, 4}, first[2] = {0, 1};
    CUmemcpyAttributes attributes[2] = {in_order(CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL),
                                        in_order(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM)};
    OK(cuLaunchHostFunc(s, gate_wait, &gate));
    OK(cuMemcpyBatchAsync_v2_ptsz(dsts, srcs, sizes, 2, attributes, first, 2, s));
    in[0] = in[1] = 2;
    gate_open(&gate);
    OK(cuStreamSynchronize(s));
    OK(cuMemcpyDtoH_v2(got, d, 8));
    cr_assert(got[0] == 1 && got[1] == 2, "%u %u", got[0], got[1]);
}

Test(copy3d, a_batch_with_a_bad_part_does_nothing)
{
    machine_with_context("h200,vram=64M");
    CUstream s;
    CUdeviceptr d;
    unsigned in = 9, got = 0;
    size_t failed;
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc_v2(&d, 4096));
    OK(cuMemsetD32_v2(d, 5, 1024));
    OK(cuCtxSynchronize());
    CUdeviceptr dsts[3] = {d, d + 8, d + 4096}, srcs[3];
    size_t sizes[3] = {4, 4, 4}, first[3] = {0, 1, 2};
    CUmemcpyAttributes attributes[3];
    for (int i = 0; i < 3; i++) {
        srcs[i] = (CUdeviceptr)(uintptr_t)&in;
        attributes[i] = in_order(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM);
    }
#define BATCH(count, attrs) cuMemcpyBatchAsync(dsts, srcs, sizes, count, attributes, first, attrs, &failed, s)
    GIVES(CUDA_ERROR_INVALID_VALUE, BATCH(3, 1));
    cr_assert_eq(failed, 2);
    OK(cuStreamSynchronize(s));
    OK(cuMemcpyDtoH_v2(&got, d, 4));
    cr_assert_eq(got, 5);
    GIVES(CUDA_ERROR_INVALID_VALUE, BATCH(0, 1));
    cr_assert_eq(failed, SIZE_MAX);
    GIVES(CUDA_ERROR_INVALID_VALUE, BATCH(2, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, BATCH(2, 3));
    attributes[1].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_INVALID;
    GIVES(CUDA_ERROR_INVALID_VALUE, BATCH(2, 2));
    cr_assert_eq(failed, 1);
    OK(BATCH(2, 1));
    first[0] = 1;
    GIVES(CUDA_ERROR_INVALID_VALUE, BATCH(2, 1));
    first[0] = 0;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyBatchAsync_v2(dsts, srcs, sizes, 2, attributes, first, 1, NULL));
    OK(cuMemcpyBatchAsync_ptsz(dsts, srcs, sizes, 2, attributes, first, 1, &failed,
                               NULL)); /* the thread's own stream */
    OK(cuCtxSynchronize());
}

Test(copy3d, a_batch_of_volumes_copies_pointers_and_wants_arrays_that_are_there)
{
    machine_with_context("h200,vram=64M");
    CUstream s;
    CUdeviceptr d;
    static unsigned char got[D][H][W];
    size_t failed = 0;
    number_block();
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc_v2(&d, sizeof block));
    CUDA_MEMCPY3D_BATCH_OP op[2] = {{.src = {.type = CU_MEMCPY_OPERAND_TYPE_POINTER},
                                     .dst = {.type = CU_MEMCPY_OPERAND_TYPE_POINTER},
                                     .extent = {W, H, D},
                                     .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM}};
    op[0].src.op.ptr.ptr = (CUdeviceptr)(uintptr_t)block;
    op[0].dst.op.ptr.ptr = d;
    OK(cuMemcpy3DBatchAsync_v2(1, op, 0, s));
    op[1] = op[0];
    for (int i = 0; i < 2; i++) { /* back in two halves of the rows' length */
        op[i].extent.width = W / 2;
        op[i].src.op.ptr.ptr = d + (CUdeviceptr)i * W / 2;
        op[i].dst.op.ptr.ptr = (CUdeviceptr)(uintptr_t)got + (CUdeviceptr)i * W / 2;
        op[i].src.op.ptr.rowLength = op[i].dst.op.ptr.rowLength = W;
        op[i].src.op.ptr.layerHeight = H;
    }
    OK(cuMemcpy3DBatchAsync(2, op, &failed, 0, s));
    OK(cuStreamSynchronize(s));
    cr_assert_eq(memcmp(got, block, sizeof block), 0);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpy3DBatchAsync_v2(2, op, 1, s));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpy3DBatchAsync_v2(0, op, 0, s));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpy3DBatchAsync_v2(2, op, 0, NULL));
    op[1].src.op.ptr.rowLength = W / 2 - 1;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpy3DBatchAsync_ptsz(2, op, &failed, 0, s));
    cr_assert_eq(failed, 1);
    op[1].src.op.ptr.rowLength = 0;
    op[1].extent.depth = 0;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpy3DBatchAsync_v2_ptsz(2, op, 0, s));
    op[1].extent.depth = D;
    op[1].dst.type = CU_MEMCPY_OPERAND_TYPE_ARRAY;
    op[1].dst.op.array.array = NULL;
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuMemcpy3DBatchAsync_v2(2, op, 0, s));
}
