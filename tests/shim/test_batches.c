/* Batches of copies that name window memory. */
#include "core_test.h"

#include "residency/context.h"

#define BUFFERS 6
#define BYTES (4 * MIB)

static unsigned char model[BUFFERS][BYTES];
static CUdeviceptr buffer[BUFFERS];
static CUstream stream;

static void start(const char *deny)
{
    machine("h200,vram=16M,host=256M", deny); /* 24 MiB in it */
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (unsigned k = 0; k < BUFFERS; k++) {
        OK(cuMemAlloc_v2(&buffer[k], BYTES));
        for (size_t i = 0; i < BYTES; i++)
            model[k][i] = (unsigned char)(i * 7 + i / 999 + k * 50);
        OK(cuMemcpyHtoD_v2(buffer[k], model[k], BYTES));
    }
}

static void compare(void)
{
    static unsigned char got[BYTES];
    for (unsigned k = 0; k < BUFFERS; k++) {
        OK(cuMemcpyDtoH_v2(got, buffer[k], BYTES));
        CHECK(memcmp(got, model[k], BYTES) == 0, "buffer %u differs", k);
    }
}

static CUmemcpyAttributes in_order = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};

/* Copies between buffers, from the host and to it, with some buffers out and others half out. */
static void copies(const char *deny)
{
    static unsigned char host[MIB], back[MIB];
    start(deny);
    for (size_t i = 0; i < MIB; i++)
        host[i] = (unsigned char)(i * 13);
    OK(cuStreamSynchronize(stream));
    hr_access_evict_range(hr_thread_self(), buffer[0], BYTES);
    hr_access_evict_range(hr_thread_self(), buffer[2], CHUNK);
    CUdeviceptr to[] = {buffer[3] + 100, buffer[4], buffer[5] + CHUNK - 5000, (CUdeviceptr)(uintptr_t)back};
    CUdeviceptr from[] = {buffer[0] + CHUNK - 7777, buffer[2] + 3, (CUdeviceptr)(uintptr_t)host,
                          buffer[1] + CHUNK - MIB / 2};
    size_t sizes[] = {MIB, CHUNK + 100, MIB, MIB}, first = 0, failed = 7;
    OK(cuMemcpyBatchAsync(to, from, sizes, 4, &in_order, &first, 1, &failed, stream));
    CHECK(failed == SIZE_MAX);
    OK(cuStreamSynchronize(stream));
    memcpy(model[3] + 100, model[0] + CHUNK - 7777, MIB);
    memcpy(model[4], model[2] + 3, CHUNK + 100);
    memcpy(model[5] + CHUNK - 5000, host, MIB);
    CHECK(memcmp(back, model[1] + CHUNK - MIB / 2, MIB) == 0);
    compare();
    /* Everything where it should be: the driver gets the batch as it is. */
    OK(cuMemcpyBatchAsync_v2_ptsz(to, from, sizes, 2, &in_order, &first, 1, CU_STREAM_PER_THREAD));
    OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
    memcpy(model[3] + 100, model[0] + CHUNK - 7777, MIB);
    memcpy(model[4], model[2] + 3, CHUNK + 100);
    compare();
}
Test(batches, copies_whose_operands_lie_anywhere)
{
    copies("");
}
Test(batches, copies_whose_operands_lie_in_unmapped_host_memory)
{
    copies("host_numa");
}

Test(batches, what_is_wrong_is_told_and_nothing_is_copied)
{
    start("");
    CUdeviceptr to[] = {buffer[0], buffer[1] + BYTES - 16}, from[] = {buffer[2], buffer[3]};
    size_t sizes[] = {4096, 4096}, first = 0, failed = 7;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyBatchAsync(to, from, sizes, 2, &in_order, &first, 1, &failed, stream));
    CHECK(failed == 1);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyBatchAsync(to, from, sizes, 1, &in_order, &first, 2, &failed, stream));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyBatchAsync_v2(to, from, NULL, 1, &in_order, &first, 1, stream));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyBatchAsync_v2(to, from, sizes, 1, &in_order, &first, 1, NULL));
    compare();
}

/* A source that has to be read while the call runs may be changed after it. */
Test(batches, sources_that_are_read_while_the_call_runs_may_change_afterwards)
{
    static unsigned char *pinned;
    start("");
    OK(cuMemHostAlloc((void **)&pinned, CHUNK, 0));
    memset(pinned, 9, CHUNK);
    hr_access_evict_range(hr_thread_self(), buffer[1] + CHUNK, CHUNK); /* so that it is cut */
    CUmemcpyAttributes during = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL};
    CUdeviceptr to = buffer[1] + CHUNK / 2, from = (CUdeviceptr)(uintptr_t)pinned;
    size_t bytes = CHUNK, first = 0;
    OK(slow_affine(buffer[0], 1, 0, 64, 20000, stream)); /* the stream is busy */
    OK(cuMemcpyBatchAsync_v2(&to, &from, &bytes, 1, &during, &first, 1, stream));
    memset(pinned, 1, CHUNK);
    OK(cuStreamSynchronize(stream));
    memset(model[1] + CHUNK / 2, 9, CHUNK);
    compare();
    OK(cuMemFreeHost(pinned));
}

static CUmemcpy3DOperand pointer(CUdeviceptr p, size_t row, size_t layer)
{
    return (CUmemcpy3DOperand){.type = CU_MEMCPY_OPERAND_TYPE_POINTER,
                               .op.ptr = {.ptr = p, .rowLength = row, .layerHeight = layer}};
}

static void boxes(const char *deny)
{
    CUarray a;
    start(deny);
    CUDA_ARRAY3D_DESCRIPTOR d = {256, 64, 0, CU_AD_FORMAT_UNSIGNED_INT8, 4, 0};
    OK(cuArray3DCreate_v2(&a, &d));
    hr_access_evict_range(hr_thread_self(), buffer[0], CHUNK);
    hr_access_evict_range(hr_thread_self(), buffer[1] + CHUNK, CHUNK);
    size_t start_at = CHUNK - 100 * 1024; /* boxes lie over two chunks, of which one is out */
    CUDA_MEMCPY3D_BATCH_OP ops[] = {
        {.src = pointer(buffer[0] + start_at, 2048, 32),
         .dst = pointer(buffer[1] + start_at, 1024, 0),
         .extent = {1000, 25, 4},
         .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM},
        {.src = pointer(buffer[0] + CHUNK - 8192, 512, 0), /* in elements of the array: 2 KiB each row */
         .dst = {.type = CU_MEMCPY_OPERAND_TYPE_ARRAY, .op.array = {a, {16, 8, 0}}},
         .extent = {100, 10, 1},
         .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM},
    };
    size_t failed = 7;
    OK(cuMemcpy3DBatchAsync(2, ops, &failed, 0, stream));
    CHECK(failed == SIZE_MAX);
    CUDA_MEMCPY3D_BATCH_OP back = {.src = {.type = CU_MEMCPY_OPERAND_TYPE_ARRAY, .op.array = {a, {16, 8, 0}}},
                                   .dst = pointer(buffer[2] + CHUNK - 2000, 0, 0),
                                   .extent = {100, 10, 1},
                                   .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL};
    OK(cuMemcpy3DBatchAsync_v2(1, &back, 0, stream));
    OK(cuStreamSynchronize(stream));
    for (size_t z = 0; z < 4; z++)
        for (size_t y = 0; y < 25; y++)
            memcpy(model[1] + start_at + (z * 25 + y) * 1024, model[0] + start_at + (z * 32 + y) * 2048, 1000);
    for (size_t y = 0; y < 10; y++)
        memcpy(model[2] + CHUNK - 2000 + y * 400, model[0] + CHUNK - 8192 + y * 2048, 400);
    compare();
    ops[1].extent.width = 0;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpy3DBatchAsync(2, ops, &failed, 0, stream));
    CHECK(failed == 1);
    OK(cuArrayDestroy(a));
}
Test(batches, boxes_between_memory_and_arrays)
{
    boxes("");
}
Test(batches, boxes_in_unmapped_host_memory)
{
    boxes("host_numa");
}
