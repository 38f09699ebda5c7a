/* Stream-ordered memory: what ends, many threads, and memory that runs out. */
#include "pools.h"

#include "residency/gpu.h"
#include "residency/pool.h"
#include "residency/quarantine.h"
#include "space/ledger.h"

TestSuite(pool_life, .timeout = 120);

/* --- what ends ----------------------------------------------------------------------------------------------------- */

Test(pool_life, memory_survives_its_context_and_its_pool, .init = start)
{
    CUcontext first, second;
    CUmemoryPool own = new_pool(0);
    CUdeviceptr p[3], plain;
    struct hr_allocation a;
    OK(cuCtxGetCurrent(&first));
    OK(cuCtxCreate_v2(&second, 0, 0));
    CUstream s = new_stream();
    OK(cuMemAllocAsync(&p[0], 3000, s));
    OK(cuMemAllocAsync(&p[1], 5 * MIB, s));
    OK(cuMemAllocFromPoolAsync(&p[2], 5 * MIB, own, s));
    OK(cuMemAlloc_v2(&plain, 5 * MIB));
    for (int i = 0; i < 3; i++)
        OK(cuMemsetD32Async(p[i], 100 + (unsigned)i, 700, s));
    CUdeviceptr shelved;
    OK(cuMemAllocAsync(&shelved, 4 * MIB, s));
    OK(cuMemsetD8Async(shelved, 1, 4 * MIB, s));
    OK(cuMemFreeAsync(shelved, s));
    OK(cuCtxDestroy_v2(second));
    OK(cuCtxSetCurrent(first));
    cr_assert_not(hr_space_find(plain, &a));
    cr_assert_not(hr_shelf_any());
    for (int i = 0; i < 3; i++)
        cr_assert_eq(word_at(p[i] + 2796), 100 + (unsigned)i);
    cr_assert_eq(amount(default_pool(0), USED), 3072 + 6 * MIB);
    OK(cuMemPoolDestroy(own));
    cr_assert_eq(word_at(p[2]), 102);
    for (int i = 0; i < 3; i++)
        OK(cuMemFreeAsync(p[i], NULL));
    OK(cuCtxSynchronize());
    hr_space_flush_thread(hr_thread_self());
    cr_assert_eq(hr_ledger_charged(0), 0);
    cr_assert_eq(hr_tier_vram.in_use_chunks(0), 0);
}

Test(pool_life, a_stream_that_ends_leaves_nothing_to_its_successor, .init = start)
{
    struct gate gate = GATE;
    CUdeviceptr p, q;
    CUstream s = new_stream();
    kernel("stride_add");
    OK(cuLaunchHostFunc(s, wait_at, &gate));
    OK(cuMemAllocAsync(&p, 4 * MIB, s));
    OK(stride_add(p, 512, 10, 1, s));
    OK(cuMemFreeAsync(p, s));
    cr_assert(hr_shelf_any());
    OK(cuStreamDestroy_v2(s));
    cr_assert(!hr_shelf_any() && hr_quarantine_any());
    for (int i = 0; i < 8; i++) { /* whichever handle they get */
        CUstream next = new_stream();
        OK(cuMemAllocAsync(&q, 4 * MIB, next));
        cr_assert_neq(q, p);
        OK(cuMemFreeAsync(q, next));
        OK(cuStreamDestroy_v2(next));
    }
    open_gate(&gate);
    OK(cuCtxSynchronize());
}

/* --- threads ------------------------------------------------------------------------------------------------------- */

static CUcontext shared_context;
static CUstream shared_stream;
static _Atomic(unsigned) wrong_words;

static void *work(void *arg)
{
    unsigned number = (unsigned)(uintptr_t)arg, seed = number * 77 + 1;
    CUstream own = NULL, s;
    CUdeviceptr p[8] = {0};
    unsigned holds[8] = {0};
    OK(cuCtxSetCurrent(shared_context));
    OK(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
    CUstream choice[3] = {own, shared_stream, CU_STREAM_PER_THREAD};
    s = choice[number % 3];
    for (unsigned i = 0; i < 150; i++) {
        unsigned k = (seed = seed * 1103515245 + 12345) >> 16 & 7, size = seed >> 20;
        uint32_t value = 0;
        if (p[k]) {
            OK(cuMemcpyDtoHAsync_v2(&value, p[k], 4, s));
            OK(cuStreamSynchronize(s));
            if (value != holds[k])
                atomic_fetch_add(&wrong_words, 1);
            OK(i % 5 ? cuMemFreeAsync(p[k], s) : cuMemFree_v2(p[k]));
            p[k] = 0;
        } else {
            OK(cuMemAllocAsync(&p[k], size % 4 ? 512 + size * 16 % 60000 : (2 + size % 3) * MIB, s));
            holds[k] = number << 16 | i;
            OK(cuMemsetD32Async(p[k], holds[k], 128, s));
        }
    }
    for (int k = 0; k < 8; k++)
        if (p[k])
            OK(cuMemFreeAsync(p[k], s));
    OK(cuStreamSynchronize(s));
    OK(cuStreamDestroy_v2(own));
    return NULL;
}

static void threads_at_work(void)
{
    pthread_t thread[6];
    shared_context = machine("h200,vram=32M,host=512M", "");
    shared_stream = new_stream();
    set_amount(default_pool(0), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 8 * MIB);
    for (uintptr_t round = 0; round < 2; round++) { /* new threads come in the place of those that ended */
        for (uintptr_t i = 0; i < 6; i++)
            pthread_create(&thread[i], NULL, work, (void *)(i + round * 6));
        for (int i = 0; i < 6; i++)
            pthread_join(thread[i], NULL);
    }
    CHECK(atomic_load(&wrong_words) == 0);
    OK(cuCtxSynchronize());
    CHECK(amount(default_pool(0), USED) == 0);
    OK(cuMemPoolTrimTo(default_pool(0), 0));
    CHECK(amount(default_pool(0), RESERVED) == 0, "%zu", (size_t)amount(default_pool(0), RESERVED));
    CHECK(hr_lock_violations() == 0);
}

Test(pool_life, threads_share_pools_and_streams)
{
    char *report = apart(threads_at_work);
    was_safe(report);
    free(report);
}

/* --- memory that runs out ------------------------------------------------------------------------------------------ */

static void start_with_little(void)
{
    setenv("HEADROOM_HOST", "128M", 1);
    start();
}

Test(pool_life, K28_memory_that_was_freed_serves_whoever_needs_it, .init = start_with_little)
{
    CUstream a = new_stream(), b = new_stream();
    CUdeviceptr p, q, plain;
    size_t all = hr_gpu_free_bytes(0);
    kernel("stride_add");
    set_amount(default_pool(0), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, UINT64_MAX);
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocAsync(&p, all + CHUNK, a));
    OK(cuMemAllocAsync(&p, all, a));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocAsync(&q, 2 * CHUNK, b));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&q, 2 * CHUNK));
    OK(stride_add(p, 512, 10, 1, a));
    OK(cuMemFreeAsync(p, a));
    cr_assert_eq(amount(default_pool(0), RESERVED), all / CHUNK * CHUNK);
    OK(cuMemAlloc_v2(&plain, all / 2)); /* whatever the threshold says */
    OK(cuMemAllocAsync(&q, all / 4, b));
    OK(cuMemsetD8Async(q, 1, all / 4, b));
    OK(cuMemFreeAsync(q, b));
    OK(cuMemFree_v2(plain));
    OK(cuMemAllocAsync(&p, all, a));
    OK(cuMemFreeAsync(p, a));
}

Test(pool_life, what_lies_on_shelves_makes_room_in_vram, .init = start)
{
    CUstream a = new_stream();
    CUdeviceptr p, q;
    size_t vram = hr_tier_vram_limit(0) * CHUNK;
    set_amount(default_pool(0), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, UINT64_MAX);
    OK(cuMemAllocAsync(&p, vram - 2 * CHUNK, a));
    OK(cuMemsetD8Async(p, 1, vram - 2 * CHUNK, a));
    OK(cuMemFreeAsync(p, a));
    OK(cuStreamSynchronize(a));
    cr_assert_eq(hr_tier_vram.in_use_chunks(0), vram / CHUNK - 2);
    OK(cuMemAlloc_v2(&q, vram - 4 * CHUNK));
    OK(stride_add(q, 512, 10, 1, NULL));
    OK(cuCtxSynchronize());
    for (size_t at = 0; at < vram - 4 * CHUNK; at += CHUNK)
        cr_assert_eq(atomic_load(&hr_space_chunk(q + at)->state), HR_CHUNK_RESIDENT);
}

/* Every n-th call of the driver's fails: the job gets errors, or not, and nothing else. */
static char fail_text[64];
static void a_job_among_errors(void)
{
    setenv("SIMGPU_FAIL", fail_text, 1);
    machine("h200,vram=24M,host=512M", "");
    CUstream s = new_stream();
    CUdeviceptr p[10];
    size_t held = 0;
    for (int round = 0; round < 4; round++) {
        for (int i = 0; i < 10; i++) {
            p[i] = 0;
            if (cuMemAllocAsync(&p[i], i % 2 ? 4 * MIB : 3000, s) == CUDA_SUCCESS)
                held++;
            if (p[i])
                (void)stride_add(p[i], 512, 5, 1, s);
        }
        for (int i = 0; i < 10; i++)
            if (p[i])
                OK(cuMemFreeAsync(p[i], s));
    }
    CHECK(held > 0);
    OK(cuCtxSynchronize());
    OK(cuCtxSynchronize()); /* what could not be unmapped is tried again */
    CHECK(amount(default_pool(0), USED) == 0);
    CHECK(hr_lock_violations() == 0);
}

Test(pool_life, errors_of_the_driver_lose_nothing)
{
    static const char *const functions[] = {"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap"};
    for (int i = 0; i < 4; i++) {
        snprintf(fail_text, sizeof fail_text, "%s:every:5", functions[i]);
        char *report = apart(a_job_among_errors);
        was_safe(report);
        free(report);
    }
}

/* --- many ---------------------------------------------------------------------------------------------------------- */

Test(pool_life, what_is_kept_of_a_pool_that_is_gone_serves_the_next, .init = start)
{
    CUdeviceptr p;
    uint64_t highest = 0;
    for (int i = 0; i < 200; i++) {
        CUmemoryPool own = new_pool(0);
        uint64_t number = hr_pool_of(own)->number;
        highest = number > highest ? number : highest;
        OK(cuMemAllocFromPoolAsync(&p, 4 * MIB, own, NULL));
        OK(cuMemsetD8Async(p, 1, 4 * MIB, NULL));
        OK(cuMemFreeAsync(p, NULL));
        OK(cuStreamSynchronize(NULL));
        OK(cuMemPoolDestroy(own));
    }
    cr_assert_lt(highest, 20);
}
