/* Copies between GPUs over a machine of links: relayed, striped, in the job's stream's order, within the relays' budget, over links that fail. */
#include "transfers.h"

#include <sched.h>

#include "residency/context.h"
#include "residency/quarantine.h"

/* --- ways ------------------------------------------------------------------------------------------------------------ */

/* A job that frees and allocates in turn, and synchronises one of the two GPUs only: freed memory is there again when new memory needs it. */
static void in_turn(void)
{
    enum { BYTES = 64 * MIB, ROUNDS = 24 };
    machine_of("square4,vram=256M,host=1G", 4);
    CUstream s = stream_on(0);
    for (unsigned round = 1; round <= ROUNDS; round++) {
        CUdeviceptr from = allocate_on(0, BYTES), to = allocate_on(3, BYTES);
        OK(cuMemcpyPeerAsync(to, context[3], from, context[0], BYTES, s));
        OK(cuStreamSynchronize(s));
        CHECK(hr_stat_sum(HR_STAT_transfers) == round, "the copy of round %u was left to the driver", round);
        OK(cuMemFree_v2(from));
        OK(cuMemFree_v2(to));
    }
}

Test(transfer, freed_memory_does_not_stand_in_the_way, .timeout = 120)
{
    free(apart(in_turn));
}

/* From one end of a row of 16 GPUs to the other, and back: 14 in between pass it on. */
static void along_a_row(void)
{
    enum { BYTES = 8 * MIB + 4096 };
    machine_of("chain16,vram=128M,host=1G", 16);
    CUdeviceptr first = allocate_on(0, BYTES), last = allocate_on(15, BYTES);
    put(0, first, BYTES, 1);
    put(15, last, BYTES, 2);
    OK(cuCtxSetCurrent(context[0]));
    OK(cuMemcpyPeer(last, context[15], first, context[0], BYTES));
    CHECK(hr_stat_sum(HR_STAT_transfer_relayed_bytes) == BYTES);
    holds(15, last, BYTES, 1);
    put(15, last, BYTES, 3);
    OK(cuCtxSetCurrent(context[15]));
    OK(cuMemcpyPeer(first, context[0], last, context[15], BYTES));
    CHECK(hr_stat_sum(HR_STAT_transfer_relayed_bytes) == 2 * BYTES);
    holds(0, first, BYTES, 3);
    CHECK(hr_stat_sum(HR_STAT_transfer_host_bytes) == 0 && hr_lock_violations() == 0);
}

Test(transfer, data_is_right_over_15_hops, .timeout = 120)
{
    free(apart(along_a_row));
}

static void relayed_over_both(void)
{
    enum { BYTES = 5 * MIB + 4096 };
    machine_of("square4,vram=256M,host=1G", 4);
    CUdeviceptr from = allocate_on(0, BYTES), to = allocate_on(3, BYTES);
    put(0, from, BYTES, 1);
    put(3, to, BYTES, 2);
    uint64_t before[4];
    for (int p = 0; p < 4; p++)
        before[p] = left_by(0, p);
    CUstream s = stream_on(0);
    OK(cuMemcpyPeerAsync(to, context[3], from, context[0], BYTES, s));
    CHECK(hr_transfer_any(), "the driver has made the copy");
    OK(cuStreamSynchronize(s));
    CHECK(!hr_transfer_any());
    holds(3, to, BYTES, 1);
    /* Links 0 and 1 lead to GPU 1, links 2 and 3 to GPU 2: each has about a quarter. */
    uint64_t sum = 0;
    for (int p = 0; p < 4; p++) {
        uint64_t bytes = left_by(0, p) - before[p];
        CHECK(bytes > BYTES / 8, "%llu bytes left by port %d", (unsigned long long)bytes, p);
        sum += bytes;
    }
    CHECK(sum == BYTES, "%llu bytes left", (unsigned long long)sum);
    CHECK(left_by(1, 2) > 0 && left_by(2, 2) > 0, "no GPU passed anything on");
}

Test(transfer, two_gpus_pass_on_what_has_no_direct_link, .timeout = 60)
{
    char *report = apart(relayed_over_both);
    was_safe(report);
    free(report);
}

enum way { PLAIN, PLAIN_ASYNC, UNTYPED, UNTYPED_ASYNC, PEER, PEER_ASYNC, PER_THREAD, PER_THREAD_SYNC, LEGACY, WAYS };

static void copy_by(enum way way, int to_gpu, CUdeviceptr to, int from_gpu, CUdeviceptr from, size_t bytes)
{
    CUstream s = stream_on(way % 2 ? to_gpu : from_gpu);
    switch (way) {
    case PLAIN: OK(cuMemcpyDtoD_v2(to, from, bytes)); break;
    case PLAIN_ASYNC: OK(cuMemcpyDtoDAsync_v2(to, from, bytes, s)); break;
    case UNTYPED: OK(cuMemcpy(to, from, bytes)); break;
    case UNTYPED_ASYNC: OK(cuMemcpyAsync(to, from, bytes, s)); break;
    case PEER: OK(cuMemcpyPeer(to, context[to_gpu], from, context[from_gpu], bytes)); break;
    case PEER_ASYNC: OK(cuMemcpyPeerAsync(to, context[to_gpu], from, context[from_gpu], bytes, s)); break;
    case PER_THREAD: OK(cuMemcpyDtoDAsync_v2_ptsz(to, from, bytes, NULL)); break;
    case PER_THREAD_SYNC: OK(cuMemcpyDtoD_v2_ptds(to, from, bytes)); break;
    default: OK(cuMemcpyDtoDAsync_v2(to, from, bytes, CU_STREAM_LEGACY)); break;
    }
    OK(cuCtxSynchronize());
    OK(cuStreamDestroy_v2(s));
}

/* All kinds of calls, every pair, part of both buffers in host memory now and then. */
static void all_pairs(const char *description, int count, bool with_peers)
{
    enum { BYTES = 4 * MIB + 512 };
    struct hr_thread *t = hr_thread_self();
    CUdeviceptr p[MOST];
    uint64_t seed = 100;
    int way = 0;
    machine_of(description, count);
    for (int g = 0; g < count; g++)
        p[g] = allocate_on(g, BYTES);
    if (with_peers)
        enable_all_peers(count);
    for (int a = 0; a < count; a++) {
        for (int b = 0; b < count; b++, way++) {
            if (a == b)
                continue;
            put(a, p[a], BYTES, ++seed);
            if (way % 5 == 0)
                hr_access_evict_range(t, p[b] + 2 * MIB, 2 * MIB);
            copy_by((enum way)(way % WAYS), b, p[b], a, p[a], BYTES);
            holds(b, p[b], BYTES, seed);
        }
    }
    CHECK(hr_lock_violations() == 0);
}

static void square_without(void)
{
    all_pairs("square4,vram=256M,host=1G", 4, false);
}
static void square_with(void)
{
    all_pairs("square4,vram=256M,host=1G", 4, true);
}
static void cubes(void)
{
    all_pairs("dgx1v,vram=256M,host=1G", 8, false);
}
static void switches(void)
{
    all_pairs("hgx-h100,vram=128M,host=1G,gpus=4", 4, false);
}
static void tree(void)
{
    all_pairs("pcie-box,vram=128M,host=1G,gpus=4", 4, true);
}

Test(transfer, every_pair_and_every_call_brings_the_right_bytes, .timeout = 120)
{
    void (*const bodies[])(void) = {square_without, square_with, cubes, switches, tree};
    for (int i = 0; i < 5; i++) {
        char *report = apart(bodies[i]);
        was_safe(report);
        free(report);
    }
}

/* --- order ----------------------------------------------------------------------------------------------------------- */

/* Filled, copied, changed where it came from and changed where it went, all in one stream's order and without a wait of the host. */
static void in_order(void)
{
    enum { BYTES = 4 * MIB, WORDS = BYTES / 4 };
    static uint32_t seen[WORDS];
    setenv("SIMGPU_CHECK", "race", 1);
    machine_of("square4,vram=256M,host=1G", 4);
    CUdeviceptr from = allocate_on(0, BYTES), to = allocate_on(3, BYTES), back = allocate_on(0, BYTES);
    CUstream s = stream_on(0);
    for (uint32_t round = 0; round < 6; round++) {
        OK(cuMemsetD32Async(from, round, WORDS, s));
        OK(cuMemcpyDtoDAsync_v2(to, from, BYTES, s));
        OK(cuMemsetD32Async(from, 77, WORDS, s));
        OK(cuMemcpyDtoDAsync_v2(back, to, BYTES, s));
        OK(cuMemcpyDtoDAsync_v2(to, from, BYTES, s));
        OK(cuStreamSynchronize(s));
        OK(cuMemcpyDtoH_v2(seen, back, BYTES));
        for (size_t i = 0; i < WORDS; i += 61)
            CHECK(seen[i] == round, "round %u: word %zu came back as %u", round, i, seen[i]);
        OK(cuMemcpyDtoH_v2(seen, to, BYTES));
        for (size_t i = 0; i < WORDS; i += 61)
            CHECK(seen[i] == 77, "round %u: word %zu is %u", round, i, seen[i]);
    }
}

Test(transfer, it_has_its_place_in_the_jobs_stream, .timeout = 60)
{
    char *report = apart(in_order);
    was_safe(report);
    cr_assert_eq(figure(report, "\"race"), 0, "%s", report);
    free(report);
}

static void CUDA_CB hold(void *open)
{
    while (!__atomic_load_n((int *)open, __ATOMIC_ACQUIRE))
        sched_yield();
}

/* One that cannot begin keeps neither the host nor another one waiting, and its memory where it is. */
static void held_up(void)
{
    enum { BYTES = 4 * MIB };
    static int open;
    machine_of("square4,vram=256M,host=1G", 4);
    CUdeviceptr from = allocate_on(0, BYTES), to = allocate_on(3, BYTES), other = allocate_on(3, BYTES);
    put(0, from, BYTES, 5);
    put(3, to, BYTES, 6);
    put(3, other, BYTES, 6);
    CUstream held = stream_on(0), freely = stream_on(0);
    OK(cuLaunchHostFunc(held, hold, &open));
    OK(cuMemcpyDtoDAsync_v2(to, from, BYTES, held));
    OK(cuMemcpyDtoDAsync_v2(other, from, BYTES, freely));
    OK(cuStreamSynchronize(freely));
    GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(held));
    holds(3, other, BYTES, 5);
    CHECK(!hr_quiet_now(1 << 0), "its stream was taken to be at rest");
    __atomic_store_n(&open, 1, __ATOMIC_RELEASE);
    OK(cuStreamSynchronize(held));
    holds(3, to, BYTES, 5);
}

Test(transfer, one_that_has_to_wait_keeps_no_other_one_waiting, .timeout = 60)
{
    char *report = apart(held_up);
    was_safe(report);
    free(report);
}

/* Without a stream: with the contexts at rest over all paths and done on return, else the driver's, which comes after all that runs. */
static void without_a_stream(void)
{
    enum { BYTES = 4 * MIB };
    machine_of("square4,vram=256M,host=1G", 4);
    CUdeviceptr from = allocate_on(0, BYTES), to = allocate_on(3, BYTES);
    put(0, from, BYTES, 5);
    put(3, to, BYTES, 6);
    uint64_t before = left_by(0, 0) + left_by(0, 2), made = hr_stat_sum(HR_STAT_transfers);
    OK(cuMemcpyPeer(to, context[3], from, context[0], BYTES));
    CHECK(hr_stat_sum(HR_STAT_transfers) == made + 1 && left_by(0, 0) + left_by(0, 2) > before);
    CHECK(!hr_transfer_any());
    OK(cuCtxSetCurrent(context[0]));
    OK(cuStreamQuery(NULL));
    holds(3, to, BYTES, 5);
    /* Behind work that still runs, whichever way it goes then. */
    CUstream busy = stream_on(0);
    for (uint32_t i = 1; i < 8; i++) {
        OK(cuCtxSetCurrent(context[0]));
        OK(cuMemsetD32Async(from, i, BYTES / 4, busy));
        OK(cuMemcpyPeer(to, context[3], from, context[0], BYTES));
        OK(cuMemsetD32Async(from, 99, BYTES / 4, busy));
        uint32_t last = 0;
        OK(cuCtxSetCurrent(context[3]));
        OK(cuMemcpyDtoH_v2(&last, to + BYTES - 4, 4));
        CHECK(last == i, "%u instead of %u", last, i);
    }
}

Test(transfer, a_copy_without_a_stream_is_done_on_return_or_the_drivers, .timeout = 60)
{
    char *report = apart(without_a_stream);
    was_safe(report);
    free(report);
}

/* --- what the job sees ----------------------------------------------------------------------------------------------- */

static void peer_access_is_the_jobs(void)
{
    enum { BYTES = 4 * MIB };
    machine_of("square4,vram=256M,host=1G", 4);
    CUdeviceptr p[4];
    for (int g = 0; g < 4; g++)
        p[g] = allocate_on(g, BYTES);
    for (int g = 0; g < 4; g++)
        put(g, p[g], BYTES, (uint64_t)g);
    for (int a = 0; a < 4; a++)
        for (int b = 0; b < 4; b++)
            if (a != b)
                copy_by(PEER_ASYNC, b, p[b], a, p[a], BYTES);
    OK(cuCtxSetCurrent(context[0]));
    GIVES(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, cuCtxDisablePeerAccess(context[1]));
    OK(cuCtxEnablePeerAccess(context[1], 0));
    GIVES(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, cuCtxEnablePeerAccess(context[1], 0));
    OK(cuCtxDisablePeerAccess(context[1]));
    /* What the job did not ask for it has not got. */
    OK(stride_add(p[1], 512, 8, 1, NULL));
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
}

Test(transfer, peer_access_stays_as_the_job_has_it, .timeout = 60)
{
    free(apart(peer_access_is_the_jobs));
}

static void without_relays(void)
{
    enum { BYTES = 4 * MIB };
    setenv("HEADROOM_PEERS", "off", 1);
    machine_of("square4,vram=256M,host=1G", 4);
    CUdeviceptr from = allocate_on(0, BYTES), to = allocate_on(3, BYTES);
    put(0, from, BYTES, 1);
    put(3, to, BYTES, 2);
    CUstream s = stream_on(0);
    OK(cuMemcpyDtoDAsync_v2(to, from, BYTES, s));
    CHECK(!hr_transfer_any(), "another GPU passes it on");
    OK(cuStreamSynchronize(s));
    holds(3, to, BYTES, 1);
}

Test(transfer, no_gpu_passes_on_data_where_that_is_off, .timeout = 60)
{
    free(apart(without_relays));
}

/* GPUs 1 and 2 have no context of the job's. */
static void over_strangers(void)
{
    enum { BYTES = 4 * MIB };
    setenv("HEADROOM_PEERS", "all", 1);
    context[0] = machine("square4,vram=256M,host=1G", "");
    OK(cuCtxCreate_v2(&context[3], 0, 3));
    CUdeviceptr from = allocate_on(0, BYTES), to = allocate_on(3, BYTES);
    put(0, from, BYTES, 1);
    put(3, to, BYTES, 2);
    CUstream s = stream_on(0);
    OK(cuMemcpyDtoDAsync_v2(to, from, BYTES, s));
    CHECK(hr_transfer_any());
    CUcontext current;
    OK(cuCtxGetCurrent(&current));
    CHECK(current == context[0]);
    OK(cuStreamSynchronize(s));
    holds(3, to, BYTES, 1);
}

Test(transfer, gpus_that_the_job_does_not_use_pass_on_data_if_it_may_be, .timeout = 60)
{
    char *report = apart(over_strangers);
    was_safe(report);
    free(report);
}

/* --- memory ---------------------------------------------------------------------------------------------------------- */

static void relay_in_need(void)
{
    enum { BYTES = 8 * MIB };
    machine_of("square4,vram=128M,host=1G", 4);
    CUdeviceptr from = allocate_on(0, BYTES), to = allocate_on(3, BYTES);
    put(0, from, BYTES, 1);
    put(3, to, BYTES, 2);
    CUfunction f = function_on(1, "stride_add"); /* beforehand: its module takes VRAM, too */
    size_t limit = hr_tier_vram_limit(1);
    copy_by(PLAIN_ASYNC, 3, to, 0, from, BYTES);
    size_t lent = limit - hr_tier_vram_limit(1);
    CHECK(lent > 0 && lent <= limit / 8, "%zu of %zu chunks are with relays", lent, limit);
    /* More than its VRAM, a buffer at a time. */
    uint64_t stride = 1;
    uint32_t n = 64, one = 1;
    for (size_t i = 0; i < limit + 1; i++) {
        CUdeviceptr buffer = allocate_on(1, CHUNK);
        OK(launch(f, 1, 64, NULL, (void *[]){&buffer, &stride, &n, &one}));
        OK(cuCtxSynchronize());
    }
    CHECK(hr_tier_vram_limit(1) == limit, "the relays kept %zu chunks that GPU 1 needs", limit - hr_tier_vram_limit(1));
    holds(3, to, BYTES, 1);
    copy_by(PLAIN_ASYNC, 3, to, 0, from, BYTES); /* with less room, or none */
    holds(3, to, BYTES, 1);
}

Test(transfer, relays_live_on_what_their_gpu_can_spare, .timeout = 60)
{
    char *report = apart(relay_in_need);
    was_safe(report);
    free(report);
}

static void relay_context_ends(void)
{
    enum { BYTES = 4 * MIB };
    machine_of("square4,vram=256M,host=1G", 4);
    CUdeviceptr from = allocate_on(0, BYTES), to = allocate_on(3, BYTES);
    put(0, from, BYTES, 1);
    put(3, to, BYTES, 2);
    CUstream s = stream_on(0);
    for (int round = 0; round < 3; round++) {
        OK(cuMemcpyDtoDAsync_v2(to, from, BYTES, s));
        if (round < 2)
            OK(cuCtxDestroy_v2(context[1 + round])); /* while it may still pass data on */
        OK(cuCtxSetCurrent(context[0]));
        OK(cuStreamSynchronize(s));
        holds(3, to, BYTES, 1);
        OK(cuCtxSetCurrent(context[0]));
    }
}

Test(transfer, a_context_that_passes_on_data_may_end, .timeout = 60)
{
    char *report = apart(relay_context_ends);
    was_safe(report);
    free(report);
}

static void contexts_that_are_none(void)
{
    enum { BYTES = 3 * MIB };
    machine_of("square4,vram=256M,host=1G", 4);
    CUcontext none[] = {NULL, (CUcontext)(uintptr_t)0x1230};
    CUdeviceptr from = allocate_on(0, BYTES), to = allocate_on(3, BYTES);
    CUstream s = stream_on(0);
    for (int i = 0; i < 2; i++) {
        GIVES(CUDA_ERROR_INVALID_CONTEXT, cuMemcpyPeerAsync(to, none[i], from, context[0], BYTES, s));
        GIVES(CUDA_ERROR_INVALID_CONTEXT, cuMemcpyPeerAsync(to, context[3], from, none[i], BYTES, s));
        GIVES(CUDA_ERROR_INVALID_CONTEXT, cuMemcpyPeer(to, none[i], from, none[i], BYTES));
    }
    OK(cuMemcpyPeerAsync(to, context[3], from, context[0], BYTES, s));
    OK(cuStreamSynchronize(s));
}

Test(transfer, a_peer_copy_with_contexts_that_are_none_fails_as_the_drivers_does, .timeout = 60)
{
    free(apart(contexts_that_are_none));
}

static unsigned legs_refused;

static CUresult CUDAAPI refuse_leg(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream s)
{
    (void)to, (void)from, (void)bytes, (void)s;
    legs_refused++;
    return CUDA_ERROR_NOT_SUPPORTED;
}

static void no_leg_is_accepted(void)
{
    enum { BYTES = 3 * MIB };
    machine_of("square4,vram=256M,host=1G", 4);
    CUdeviceptr from = allocate_on(0, BYTES), to = allocate_on(3, BYTES);
    CUresult CUDAAPI (*real)(CUdeviceptr, CUdeviceptr, size_t, CUstream) = hr_drv.cuMemcpyDtoDAsync_v2;
    CUstream s = stream_on(0);
    hr_drv.cuMemcpyDtoDAsync_v2 = refuse_leg;
    for (uint64_t i = 0; i < 6; i++) {
        put(0, from, BYTES, i);
        OK(cuCtxSetCurrent(context[0]));
        OK(cuMemcpyPeerAsync(to, context[3], from, context[0], BYTES, s));
        OK(cuStreamSynchronize(s));
        holds(3, to, BYTES, i);
    }
    CHECK(legs_refused == 3, "%u attempts", legs_refused);
    CHECK(hr_stat_sum(HR_STAT_transfers) == 0);
    hr_drv.cuMemcpyDtoDAsync_v2 = real;
    OK(cuMemcpyPeerAsync(from, context[0], to, context[3], BYTES, s)); /* of another pair nothing is known */
    CHECK(hr_transfer_any());
    OK(cuStreamSynchronize(s));
    holds(0, from, BYTES, 5);
}

Test(transfer, what_is_refused_again_and_again_is_left_to_the_driver, .timeout = 60)
{
    free(apart(no_leg_is_accepted));
}
