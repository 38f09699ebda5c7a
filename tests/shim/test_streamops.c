/*
 * Stream memory operations on window memory. What the library has to see to is that the words are there when the driver is
 * called, so the driver's functions are replaced by ones that look.
 */
#include "core_test.h"

#include "residency/context.h"

static unsigned calls, mapped;

static void look(CUdeviceptr address)
{
    calls++;
    mapped += atomic_load(&hr_space_chunk(address)->mapped) == 1 && atomic_load(&hr_thread_self()->inflight) == 1;
}
static CUresult look_32(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags)
{
    (void)stream, (void)value, (void)flags;
    look(address);
    return CUDA_SUCCESS;
}
static CUresult look_64(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags)
{
    (void)stream, (void)value, (void)flags;
    look(address);
    return CUDA_SUCCESS;
}
static CUresult look_batch(CUstream stream, unsigned count, CUstreamBatchMemOpParams *params, unsigned flags)
{
    (void)stream, (void)flags;
    for (unsigned i = 0; i < count; i++)
        if (params[i].operation != CU_STREAM_MEM_OP_BARRIER)
            look(params[i].waitValue.address); /* where the other kinds have theirs */
    return CUDA_SUCCESS;
}

static void all_forms(const char *deny)
{
    CUdeviceptr p;
    machine("h200,vram=32M,host=512M", deny);
    OK(cuMemAlloc_v2(&p, 6 * MIB));
    atomic_store(&hr_drv.cuStreamWaitValue32_v2, look_32);
    atomic_store(&hr_drv.cuStreamWriteValue32, look_32);
    atomic_store(&hr_drv.cuStreamWriteValue64_v2_ptsz, look_64);
    atomic_store(&hr_drv.cuStreamBatchMemOp_v2, look_batch);
    OK(cuStreamWaitValue32_v2(NULL, p, 1, CU_STREAM_WAIT_VALUE_GEQ)); /* never touched before */
    OK(cuMemsetD8_v2(p, 0, 6 * MIB));
    OK(cuCtxSynchronize());
    CHECK(hr_access_evict_range(hr_thread_self(), p, 6 * MIB) == 3);
    OK(cuStreamWriteValue32(NULL, p + 4, 1, 0));
    OK(cuStreamWriteValue64_v2_ptsz(NULL, p + 2 * MIB + 8, 1, 0));
    CUstreamBatchMemOpParams batch[3] = {
        {.writeValue = {.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64, .address = p + 16}},
        {.memoryBarrier = {.operation = CU_STREAM_MEM_OP_BARRIER}},
        {.waitValue = {.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32, .address = p + 5 * MIB}},
    };
    OK(cuStreamBatchMemOp_v2(NULL, 3, batch, 0));
    CHECK(calls == 5 && mapped == 5, "%u of %u words were mapped", mapped, calls);
    CHECK(atomic_load(&hr_thread_self()->inflight) == 0);
    for (int i = 0; i < 3; i++)
        CHECK(atomic_load(&hr_space_chunk(p + (size_t)i * CHUNK)->pins) == 0);
    batch[1].operation = (CUstreamBatchMemOpType)77;
    GIVES(CUDA_ERROR_NOT_SUPPORTED, cuStreamBatchMemOp_v2(NULL, 3, batch, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamWriteValue32(NULL, p + 8 * MIB, 1, 0)); /* in no allocation */
    CHECK(calls == 5);
}

static void with_mapped_host(void)
{
    all_forms("");
}
static void without(void)
{
    all_forms("host_numa");
}

Test(streamops, words_are_mapped_when_the_driver_is_called, .timeout = 60)
{
    free(apart(with_mapped_host));
    free(apart(without));
}

/* --- with simgpu's own --------------------------------------------------------------------------------------------- */

static void wait_and_write(const char *deny)
{
    enum { AT = 2 * MIB + 64 };
    CUdeviceptr p;
    CUstream waiter, writer;
    uint32_t seen[2];
    machine("h200,vram=32M,host=512M", deny);
    OK(cuMemAlloc_v2(&p, 4 * MIB));
    OK(cuMemsetD8_v2(p, 0, 4 * MIB));
    OK(cuCtxSynchronize());
    CHECK(hr_access_evict_range(hr_thread_self(), p, 4 * MIB) == 2);
    OK(cuStreamCreate(&waiter, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&writer, CU_STREAM_NON_BLOCKING));
    OK(cuStreamWaitValue32_v2(waiter, p + AT, 5, CU_STREAM_WAIT_VALUE_GEQ));
    OK(cuMemsetD32Async(p + AT + 4, 77, 1, waiter));
    CHECK(!hr_quiet_now(HR_ALL_GPUS), "a pending operation does not hold its word in place");
    GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(waiter));
    OK(cuStreamWriteValue32_v2(writer, p + AT, 6, 0));
    OK(cuStreamSynchronize(waiter));
    OK(cuStreamSynchronize(writer));
    OK(cuMemcpyDtoH_v2(seen, p + AT, sizeof seen));
    CHECK(seen[0] == 6 && seen[1] == 77, "%u %u", seen[0], seen[1]);
}

static void wait_with_mapped_host(void)
{
    wait_and_write("");
}
static void wait_without(void)
{
    wait_and_write("host_numa");
}

Test(streamops, a_wait_is_ended_by_a_write_wherever_the_word_lies, .timeout = 60)
{
    void (*const bodies[])(void) = {wait_with_mapped_host, wait_without};
    for (int i = 0; i < 2; i++) {
        char *report = apart(bodies[i]);
        was_safe(report);
        free(report);
    }
}
