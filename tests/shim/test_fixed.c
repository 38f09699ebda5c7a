/* What must not move: memory that is registered for others, and memory that two GPUs use which cannot reach each other. */
#include "gpus.h"

#include <sched.h>

#include "residency/context.h"
#include "residency/fixed.h"
#include "residency/lend.h"

#define WORDS (4 * MIB / 4)

/* Adds a to every 512th word of y, on a GPU; what the synchronisation behind it says. */
static CUresult add_on(int gpu, CUdeviceptr y, size_t words, uint32_t a)
{
    CUfunction f = function_on(gpu, "stride_add");
    uint64_t stride = 512;
    uint32_t n = (uint32_t)(words / 512);
    CUresult r = launch(f, 4, 128, NULL, (void *[]){&y, &stride, &n, &a});
    return r == CUDA_SUCCESS ? cuCtxSynchronize() : r;
}

static void all_words_are(int gpu, CUdeviceptr y, uint32_t expected)
{
    static uint32_t seen[WORDS];
    OK(cuCtxSetCurrent(context[gpu]));
    OK(cuMemcpyDtoH_v2(seen, y, sizeof seen));
    for (size_t i = 0; i < WORDS; i += 512)
        CHECK(seen[i] == expected, "word %zu is %u, not %u", i, seen[i], expected);
}

static void safely(void (*body)(void))
{
    char *report = apart(body);
    was_safe(report);
    cr_assert_eq(figure(report, "\"missing_grant"), 0, "%s", report);
    free(report);
}

/* --- registered ------------------------------------------------------------------------------------------------------ */

static void registered(CUdeviceptr p, unsigned on)
{
    OK(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p));
}

/* As a communication library does it before a network card is told the physical addresses. */
static void registered_stays(void)
{
    enum { BYTES = 8 * MIB };
    machine_with("h200,gpus=2,vram=64M,host=512M", "", 3);
    struct hr_thread *t = hr_thread_self();
    struct hr_phys *where[4];
    CUdeviceptr p = allocate_on(0, BYTES);
    OK(cuMemsetD32_v2(p, 0, BYTES / 4));
    OK(cuCtxSynchronize());
    CHECK(hr_access_evict_range(t, p, BYTES) == 4);
    registered(p + 4096, 1);
    CHECK(in_state(p, BYTES, HR_CHUNK_RESIDENT) == 4, "it was not brought in");
    for (int i = 0; i < 4; i++)
        where[i] = hr_space_chunk(p + i * CHUNK)->phys;
    /* More than VRAM passes through, by kernels and by pressure. */
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < 24; i++) {
            CUdeviceptr other = allocate_on(0, BYTES);
            OK(add_on(0, other, BYTES / 4, 1));
            OK(add_on(0, p, WORDS, 1));
            OK(cuMemFree_v2(other));
        }
    hr_access_evict_range(t, p, BYTES);
    hr_access_release_vram(t, 0, 64 * MIB);
    for (int i = 0; i < 4; i++)
        CHECK(hr_space_chunk(p + i * CHUNK)->phys == where[i], "chunk %d has moved", i);
    all_words_are(0, p, 48);
    registered(p, 0);
    CHECK(hr_access_evict_range(t, p, BYTES) == 4, "it still stays when it is registered no more");
    all_words_are(0, p, 48);
}

static void registered_without_host(void)
{
    enum { BYTES = 8 * MIB };
    machine_with("h200,gpus=2,vram=64M,host=512M", "host_numa", 3);
    CUdeviceptr p = allocate_on(0, BYTES);
    registered(p, 1); /* never touched before */
    CHECK(in_state(p, BYTES, HR_CHUNK_RESIDENT) == 4);
    OK(cuMemsetD32_v2(p, 5, BYTES / 4));
    CHECK(hr_access_evict_range(hr_thread_self(), p, BYTES) == 0);
    all_words_are(0, p, 5);
    OK(cuMemFree_v2(p));
    CUdeviceptr again = allocate_on(0, BYTES); /* registration ends with the memory */
    OK(cuMemsetD32_v2(again, 5, BYTES / 4));
    OK(cuCtxSynchronize());
    CHECK(hr_access_evict_range(hr_thread_self(), again, BYTES) == 4);
}

/* What a GPU lends it must get back, so registered memory does not stay there. */
static void registered_beyond_vram(void)
{
    machine_with("h200,gpus=2,vram=64M,host=512M", "", 3);
    size_t bytes = (hr_tier_vram_limit(0) + 8) * CHUNK;
    CUdeviceptr p = allocate_on(0, bytes);
    OK(cuMemsetD32_v2(p, 3, bytes / 4));
    OK(cuCtxSynchronize());
    hr_access_evict_range(hr_thread_self(), p, bytes);
    registered(p, 1);
    CHECK(in_state(p, bytes, HR_CHUNK_PEER) == 0 && hr_tier_peer.in_use_chunks(1) == 0);
    CHECK(in_state(p, bytes, HR_CHUNK_RESIDENT) > hr_tier_vram_limit(0) / 2);
    size_t resident = in_state(p, bytes, HR_CHUNK_RESIDENT);
    OK(add_on(0, p, bytes / 4, 1));
    CHECK(in_state(p, bytes, HR_CHUNK_RESIDENT) == resident, "a launch has moved it");
    all_words_are(0, p, 4);
}

Test(fixed, k35_registered_memory_stays_where_it_is, .timeout = 120)
{
    safely(registered_stays);
    safely(registered_without_host);
    safely(registered_beyond_vram);
}

/* --- used by GPUs that cannot reach each other ------------------------------------------------------------------------ */

static void strangers_share(void)
{
    machine_with("rtx4090,gpus=2,vram=64M,host=512M", "", 3);
    struct hr_thread *t = hr_thread_self();
    CUdeviceptr y[2] = {allocate_on(0, 4 * MIB), allocate_on(1, 4 * MIB)};
    OK(cuCtxSetCurrent(context[0]));
    GIVES(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, cuCtxEnablePeerAccess(context[1], 0)); /* which stays true */
    for (int k = 0; k < 2; k++) {
        OK(cuCtxSetCurrent(context[k]));
        OK(cuMemsetD32_v2(y[k], 0, WORDS));
        OK(cuCtxSynchronize());
    }
    uint32_t sum = 0;
    for (uint32_t round = 1; round <= 4; round++, sum += 3) {
        for (int k = 0; k < 2; k++) {
            OK(add_on(k, y[k], WORDS, 1));
            OK(add_on(1 - k, y[k], WORDS, 2));
            CHECK(in_state(y[k], 4 * MIB, HR_CHUNK_HOST) == 2);
            hr_access_restore_range(t, y[k], 4 * MIB);
            CHECK(in_state(y[k], 4 * MIB, HR_CHUNK_HOST) == 2, "it went where the other one cannot reach it");
        }
    }
    for (int k = 0; k < 2; k++)
        all_words_are(k, y[k], sum);
    CUdeviceptr fresh = allocate_on(1, 4 * MIB); /* never backed when the other GPU comes by */
    OK(add_on(0, fresh, WORDS, 5));
    OK(cuMemFree_v2(fresh));
    CHECK(hr_lock_violations() == 0);
}

/* Shown failing without: CUDA_ERROR_ILLEGAL_ADDRESS, as the hardware has it. */
Test(fixed, kernels_of_a_gpu_without_a_way_there_use_it_in_host_memory, .timeout = 60)
{
    safely(strangers_share);
}

/* Addresses that only device memory holds. */
static void strangers_by_table(void)
{
    machine_with("rtx4090,gpus=2,vram=64M,host=512M", "", 3);
    CUdeviceptr y = allocate_on(1, 4 * MIB), table = allocate_on(0, 4096);
    OK(cuCtxSetCurrent(context[1]));
    OK(cuMemsetD32_v2(y, 7, WORDS));
    OK(cuCtxSynchronize());
    CUfunction f = function_on(0, "add_table");
    uint32_t count = 1, n = WORDS, a = 2;
    OK(cuMemcpyHtoD_v2(table, &y, sizeof y));
    OK(launch(f, 4, 128, NULL, (void *[]){&table, &count, &n, &a}));
    OK(cuCtxSynchronize());
    all_words_are(1, y, 9);
}

Test(fixed, they_find_it_by_addresses_in_memory_too, .timeout = 60)
{
    safely(strangers_by_table);
}

static void CUDA_CB hold(void *open)
{
    while (!__atomic_load_n((int *)open, __ATOMIC_ACQUIRE))
        sched_yield();
}

static void *open_soon(void *open)
{
    struct timespec span = {0, 300000000};
    nanosleep(&span, NULL); /* the other thread may or may not be waiting by then */
    __atomic_store_n((int *)open, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* The owner is busy with it: the launch waits for that, and both writes count. */
static void busy_owner(void)
{
    static int open;
    machine_with("rtx4090,gpus=2,vram=64M,host=512M", "", 3);
    CUdeviceptr y = allocate_on(1, 4 * MIB);
    CUstream s;
    pthread_t thread;
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuMemsetD32_v2(y, 0, WORDS));
    OK(cuCtxSynchronize());
    OK(cuLaunchHostFunc(s, hold, &open));
    OK(cuMemsetD32Async(y, 6, WORDS, s));
    CHECK(pthread_create(&thread, NULL, open_soon, &open) == 0);
    OK(add_on(0, y, WORDS, 1));
    pthread_join(thread, NULL);
    all_words_are(1, y, 7);
}

Test(fixed, a_launch_waits_for_the_owners_work, .timeout = 60)
{
    safely(busy_owner);
}

/* The driver says that they are peers, copies have shown that data goes wrong between them. */
static void bad_pair(void)
{
    machine_with("h200,gpus=2,vram=64M,host=512M", "", 3);
    hr_fixed_bar(0, 1);
    CUdeviceptr y = allocate_on(1, 4 * MIB);
    OK(cuMemsetD32_v2(y, 0, WORDS));
    OK(cuCtxSynchronize());
    OK(add_on(1, y, WORDS, 1));
    OK(add_on(0, y, WORDS, 2));
    OK(add_on(1, y, WORDS, 4));
    CHECK(in_state(y, 4 * MIB, HR_CHUNK_HOST) == 2);
    all_words_are(0, y, 7);
}

Test(fixed, what_lies_behind_a_way_that_corrupts_is_used_in_host_memory, .timeout = 60)
{
    safely(bad_pair);
}

static void strangers_unmapped(void)
{
    machine_with("rtx4090,gpus=2,vram=64M,host=512M", "host_numa", 3);
    CUdeviceptr y = allocate_on(1, 4 * MIB);
    OK(cuMemsetD32_v2(y, 0, WORDS));
    OK(cuCtxSynchronize());
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, add_on(0, y, WORDS, 1));
}

Test(fixed, where_kernels_cannot_use_host_memory_the_hardware_says_so, .timeout = 60)
{
    free(apart(strangers_unmapped));
}
