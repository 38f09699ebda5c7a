/* Two GPUs: grants follow the memory wherever it goes, and what is out of reach is copied all the same. */
#include "gpus.h"

#include "residency/context.h"
#include "residency/peers.h"
#include "residency/quarantine.h"

#define WORDS (4 * MIB / 4)

/* Adds a to every 512th word of y, on a GPU; what the synchronisation behind it says. */
static CUresult add_on(int gpu, CUdeviceptr y, uint32_t a)
{
    CUfunction f = function_on(gpu, "stride_add");
    uint64_t stride = 512;
    uint32_t n = WORDS / 512;
    OK(launch(f, 4, 128, NULL, (void *[]){&y, &stride, &n, &a}));
    return cuCtxSynchronize();
}

static void all_words_are(CUdeviceptr y, uint32_t expected)
{
    static uint32_t seen[WORDS];
    OK(cuMemcpyDtoH_v2(seen, y, sizeof seen));
    for (size_t i = 0; i < WORDS; i += 512)
        CHECK(seen[i] == expected, "word %zu is %u, not %u", i, seen[i], expected);
}

/* The states that a buffer of GPU 1 can be in when GPU 0 comes by. */
static void visit_everywhere(CUdeviceptr y, uint32_t *sum_io)
{
    struct hr_thread *t = hr_thread_self();
    for (int round = 0; round < 3; round++) {
        OK(add_on(0, y, 1));
        CHECK(hr_access_evict_range(t, y, 4 * MIB) > 0);
        OK(add_on(0, y, 1));
        OK(add_on(1, y, 1));
        CHECK(hr_access_evict_range(t, y, 2 * MIB) > 0);
        OK(add_on(0, y, 1));
        hr_access_restore_range(t, y, 4 * MIB);
        *sum_io += 4;
    }
}

static void peers_everywhere(void)
{
    machine_with("a100-pcie,gpus=2,vram=64M,host=512M", "", 3);
    CUdeviceptr before = allocate_on(1, 4 * MIB), after;
    uint32_t sum = 0;
    OK(cuMemsetD32_v2(before, 0, WORDS));
    OK(cuCtxSetCurrent(context[0]));
    OK(cuCtxEnablePeerAccess(context[1], 0));
    GIVES(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, cuCtxEnablePeerAccess(context[1], 0));
    after = allocate_on(1, 4 * MIB);
    OK(cuMemsetD32_v2(after, 0, WORDS));
    OK(cuCtxSynchronize());
    visit_everywhere(before, &sum);
    sum = 0;
    visit_everywhere(after, &sum);
    OK(cuCtxSetCurrent(context[1]));
    all_words_are(before, sum);
    all_words_are(after, sum);
}

/* Shown failing with grants for the owner alone at a move. */
Test(peers, a_granted_gpu_reaches_memory_wherever_it_was_moved, .timeout = 60)
{
    char *report = apart(peers_everywhere);
    was_safe(report);
    free(report);
}

static void atomics_between_peers(void)
{
    machine_with("h200,gpus=2,vram=64M,host=512M", "", 3);
    CUdeviceptr y = allocate_on(1, 4 * MIB);
    struct hr_thread *t = hr_thread_self();
    OK(cuMemsetD32_v2(y, 0, WORDS));
    OK(cuCtxSetCurrent(context[0]));
    OK(cuCtxEnablePeerAccess(context[1], 0));
    OK(add_on(1, y, 1)); /* its own GPU's: free to go */
    CHECK(hr_access_evict_range(t, y, 4 * MIB) == 2);
    OK(add_on(0, y, 1)); /* from here on two GPUs meet there */
    CHECK(atomic_load(&hr_space_chunk(y)->state) == HR_CHUNK_RESIDENT);
    CHECK(hr_access_evict_range(t, y, 4 * MIB) == 0);
    OK(add_on(0, y, 1));
    all_words_are(y, 3);
}

/* simgpu's H200s have atomics on each other's memory, and none on the host's. */
Test(peers, what_two_gpus_use_stays_where_their_atomics_meet, .timeout = 60)
{
    char *report = apart(atomics_between_peers);
    was_safe(report);
    free(report);
}

static void peers_end(void)
{
    machine_with("h200,gpus=2,vram=64M", "", 3);
    CUdeviceptr y = allocate_on(1, 4 * MIB);
    OK(cuMemsetD32_v2(y, 0, WORDS));
    OK(cuCtxSynchronize());
    OK(cuCtxSetCurrent(context[0]));
    OK(cuCtxEnablePeerAccess(context[1], 0));
    OK(add_on(0, y, 1));
    OK(cuCtxDisablePeerAccess(context[1]));
    GIVES(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, cuCtxDisablePeerAccess(context[1]));
    OK(add_on(1, y, 1));
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, add_on(0, y, 1)); /* as it is on memory that headroom does not serve */
}

Test(peers, access_ends_where_the_job_ends_it, .timeout = 60)
{
    free(apart(peers_end));
}

static void peers_of_a_lost_context(void)
{
    machine_with("h200,gpus=2,vram=64M", "", 3);
    CUdeviceptr y = allocate_on(1, 4 * MIB);
    CUcontext more;
    OK(cuMemsetD32_v2(y, 0, WORDS));
    OK(cuCtxSynchronize());
    OK(cuCtxCreate_v2(&more, 0, 0));
    OK(cuCtxEnablePeerAccess(context[1], 0));
    OK(cuCtxSetCurrent(context[0]));
    OK(cuCtxEnablePeerAccess(context[1], 0));
    OK(cuCtxDestroy_v2(more)); /* the other context of the same GPU still has its right */
    OK(add_on(0, y, 1));
    hr_access_evict_range(hr_thread_self(), y, 4 * MIB);
    OK(add_on(0, y, 1));
    OK(cuCtxDestroy_v2(context[1])); /* and its memory with it */
    CHECK(!hr_space_extent(y));
}

Test(peers, rights_are_counted_by_contexts_and_end_with_them, .timeout = 60)
{
    free(apart(peers_of_a_lost_context));
}

static bool expect_failure;
static void failed_grant(void)
{
    machine_with("h200,gpus=2,vram=64M", "", 3);
    CUdeviceptr y = allocate_on(1, 4 * MIB);
    OK(cuMemsetD32_v2(y, 0, WORDS));
    OK(cuCtxSynchronize());
    OK(cuCtxSetCurrent(context[0]));
    if (!expect_failure)
        return;
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuCtxEnablePeerAccess(context[1], 0));
    OK(cuCtxEnablePeerAccess(context[1], 0)); /* nothing of the first attempt was left */
    OK(add_on(0, y, 1));
}

Test(peers, a_grant_that_fails_leaves_nothing_enabled, .timeout = 60)
{
    char text[64], *report = apart(failed_grant);
    snprintf(text, sizeof text, "cuMemSetAccess:%llu", figure(report, "\"set_accesses") + 1);
    free(report);
    setenv("SIMGPU_FAIL", text, 1);
    expect_failure = true;
    free(apart(failed_grant));
}

/* --- copies without peer access ----------------------------------------------------------------------------------- */

enum way { PLAIN, PLAIN_ASYNC, UNTYPED, PEER, PEER_ASYNC, WAYS };

static void copy_by(enum way way, int current, CUdeviceptr to, int to_gpu, CUdeviceptr from, int from_gpu, size_t bytes)
{
    CUstream s;
    OK(cuCtxSetCurrent(context[current]));
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    switch (way) {
    case PLAIN: OK(cuMemcpyDtoD_v2(to, from, bytes)); break;
    case PLAIN_ASYNC: OK(cuMemcpyDtoDAsync_v2(to, from, bytes, s)); break;
    case UNTYPED: OK(cuMemcpy(to, from, bytes)); break;
    case PEER: OK(cuMemcpyPeer(to, context[to_gpu], from, context[from_gpu], bytes)); break;
    default: OK(cuMemcpyPeerAsync(to, context[to_gpu], from, context[from_gpu], bytes, s)); break;
    }
    OK(cuStreamSynchronize(s));
    OK(cuCtxSynchronize());
    OK(cuStreamDestroy_v2(s));
}

/* Both ways, whichever context is current, with parts of both buffers moved out. */
static void copy_between_windows(void)
{
    enum { BYTES = 6 * MIB };
    struct hr_thread *t = hr_thread_self();
    uint64_t *host = malloc(BYTES), seed = 0;
    CUdeviceptr p[2] = {allocate_on(0, BYTES), allocate_on(1, BYTES)};
    for (int way = 0; way < WAYS; way++) {
        for (int k = 0; k < 2; k++) {
            int from = k, to = 1 - from, current = (k + way) % 2;
            fill(host, BYTES, ++seed, 0);
            OK(cuCtxSetCurrent(context[from]));
            OK(cuMemcpyHtoD_v2(p[from], host, BYTES));
            OK(cuCtxSynchronize());
            hr_access_evict_range(t, p[from], 2 * MIB);
            hr_access_evict_range(t, p[to] + 2 * MIB, 4 * MIB);
            copy_by((enum way)way, current, p[to] + 8, to, p[from] + 8, from, BYTES - 8);
            memset(host, 0, BYTES);
            OK(cuCtxSetCurrent(context[to]));
            OK(cuMemcpyDtoH_v2(host, p[to] + 8, BYTES - 8));
            check(host, BYTES - 8, seed, 1);
        }
    }
    free(host);
}

static void windows_of_peers(void)
{
    machine_with("h200,gpus=2,vram=64M,host=512M", "", 3);
    copy_between_windows();
}
static void windows_of_strangers(void)
{
    machine_with("rtx4090,gpus=2,vram=64M,host=512M", "", 3);
    copy_between_windows();
}
static void windows_unmapped(void)
{
    machine_with("rtx4090,gpus=2,vram=64M,host=512M", "host_numa", 3);
    copy_between_windows();
}

Test(peers, copies_between_two_windows_need_no_peer_access, .timeout = 60)
{
    void (*const bodies[])(void) = {windows_of_peers, windows_of_strangers, windows_unmapped};
    for (int i = 0; i < 3; i++) {
        char *report = apart(bodies[i]);
        was_safe(report);
        free(report);
    }
}

/* --- calls about memory of a GPU that is not the current one ------------------------------------------------------- */

static void from_afar(void)
{
    enum { BYTES = 6 * MIB, PITCH = 4096 };
    uint64_t *host = malloc(BYTES);
    CUdeviceptr far = allocate_on(1, BYTES);
    CUstream s;
    OK(cuCtxSetCurrent(context[0]));
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    for (uint64_t round = 0; round < 4; round++) {
        fill(host, BYTES, round, 0);
        if (round % 2)
            OK(cuMemcpyHtoD_v2(far, host, BYTES));
        else
            OK(cuMemcpyHtoDAsync_v2(far, host, BYTES, s));
        hr_access_evict_range(hr_thread_self(), far, (round + 1) * MIB);
        if (round < 2)
            OK(cuStreamSynchronize(s)); /* what follows is not in its order */
        memset(host, 0, BYTES);
        if (round < 2) {
            OK(cuMemcpyDtoH_v2(host, far, BYTES));
        } else {
            OK(cuMemcpyDtoHAsync_v2(host, far, BYTES, s));
            OK(cuStreamSynchronize(s));
        }
        check(host, BYTES, round, 0);
    }
    /* In the stream's order: filled, then fetched. */
    OK(cuMemsetD32Async(far, 0x01020304, BYTES / 4, s));
    OK(cuMemsetD2D8Async(far + 16, PITCH, 0x77, 8, 100, s));
    CUDA_MEMCPY2D rows = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                          .srcDevice = far,
                          .srcPitch = PITCH,
                          .dstMemoryType = CU_MEMORYTYPE_HOST,
                          .dstHost = host,
                          .dstPitch = 32,
                          .WidthInBytes = 32,
                          .Height = BYTES / PITCH};
    OK(cuMemcpy2DAsync_v2(&rows, s));
    OK(cuStreamSynchronize(s));
    for (size_t row = 0; row < BYTES / PITCH; row++)
        for (size_t i = 0; i < 4; i++)
            CHECK(host[row * 4 + i] == (i == 2 && row < 100 ? 0x7777777777777777 : 0x0102030401020304), "row %zu", row);
    free(host);
}

static void afar_with_peers(void)
{
    machine_with("h200,gpus=2,vram=64M,host=512M", "", 3);
    from_afar();
}
static void afar_without(void)
{
    machine_with("rtx4090,gpus=2,vram=64M,host=512M", "", 3);
    from_afar();
}
static void afar_unmapped(void)
{
    machine_with("h200,gpus=2,vram=64M,host=512M", "host_numa", 3);
    from_afar();
}

Test(peers, copies_and_fills_of_another_gpus_memory_work_from_any_context, .timeout = 60)
{
    void (*const bodies[])(void) = {afar_with_peers, afar_without, afar_unmapped};
    for (int i = 0; i < 3; i++) {
        char *report = apart(bodies[i]);
        was_safe(report);
        free(report);
    }
}

/* A move of GPU 1's memory waits for a copy that GPU 0's stream makes to it. */
static void CUDA_CB hold(void *open)
{
    while (!__atomic_load_n((int *)open, __ATOMIC_ACQUIRE))
        sched_yield();
}

static void far_copy_under_way(void)
{
    machine_with("h200,gpus=2,vram=64M,host=512M", "", 3);
    static int open;
    CUdeviceptr far = allocate_on(1, 4 * MIB), near = allocate_on(0, 4 * MIB);
    CUstream s;
    OK(cuCtxSetCurrent(context[0]));
    OK(cuMemsetD32_v2(near, 5, WORDS));
    OK(cuMemsetD32_v2(far, 4, WORDS));
    OK(cuCtxSynchronize());
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuLaunchHostFunc(s, hold, &open));
    OK(cuMemcpyDtoDAsync_v2(far, near, 4 * MIB, s));
    CHECK(!hr_quiet_now(hr_peers_users(1)), "it could be moved under the copy");
    __atomic_store_n(&open, 1, __ATOMIC_RELEASE);
    OK(cuStreamSynchronize(s));
    CHECK(hr_access_evict_range(hr_thread_self(), far, 4 * MIB) == 2);
    OK(cuCtxSetCurrent(context[1]));
    all_words_are(far, 5);
}

Test(peers, a_copy_of_another_gpus_stream_holds_the_memory_in_place, .timeout = 60)
{
    char *report = apart(far_copy_under_way);
    was_safe(report);
    free(report);
}

/* --- freed memory ---------------------------------------------------------------------------------------------------- */

static void free_beside_a_busy_gpu(void)
{
    machine_with("h200,gpus=2,vram=32M,host=96M", "", 3);
    static int open;
    CUstream busy;
    OK(cuCtxSetCurrent(context[0]));
    OK(cuStreamCreate(&busy, CU_STREAM_NON_BLOCKING));
    OK(cuLaunchHostFunc(busy, hold, &open));
    CUdeviceptr kept = allocate_on(0, 4 * MIB);
    OK(cuMemsetD8Async(kept, 1, 4 * MIB, busy));
    OK(cuMemFree_v2(kept)); /* waits in front of all that follows */
    for (int round = 0; round < 24; round++) {
        CUdeviceptr p = allocate_on(1, 16 * MIB);
        OK(cuMemsetD8_v2(p, 1, 16 * MIB));
        if (round % 2)
            OK(cuCtxSynchronize());
        OK(cuMemFree_v2(p));
    }
    CHECK(hr_quarantine_any(), "the memory that the busy GPU uses was given back");
    __atomic_store_n(&open, 1, __ATOMIC_RELEASE);
    OK(cuCtxSetCurrent(context[0]));
    OK(cuCtxSynchronize());
    CHECK(hr_quiet_wait(HR_ALL_GPUS, hr_clock_ns() + UINT64_C(5000000000)));
    hr_quarantine_release(hr_thread_self());
    CHECK(!hr_quarantine_any());
}

/* Shown failing by drains of all GPUs together: OUT_OF_MEMORY in the fifth round. */
Test(peers, memory_freed_on_one_gpu_does_not_wait_for_another, .timeout = 120)
{
    char *report = apart(free_beside_a_busy_gpu);
    was_safe(report);
    free(report);
}
