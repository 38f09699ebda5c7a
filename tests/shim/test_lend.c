/* The peer tier: what does not fit on one GPU lies in the VRAM of another that has no use for it, until it has. */
#include "lending.h"

#include <sched.h>

#include "residency/peers.h"
#include "support/sanitizer.h"

/* --- lending --------------------------------------------------------------------------------------------------------- */

static void idle_gpu_first(void)
{
    machine_with("h200,gpus=2,vram=64M,host=1G", "", 3);
    fill_gpu_0(1.5);
    for (int round = 0; round < 3; round++)
        use_all();
    size_t lent = hr_tier_peer.in_use_chunks(1), limit = hr_tier_vram_limit(1);
    CHECK(lent > 0 && lent == of_all(HR_CHUNK_PEER), "%zu lent, %zu there", lent, of_all(HR_CHUNK_PEER));
    CHECK(lent <= limit - limit / 8, "%zu of %zu are lent", lent, limit);
    CHECK(of_all(HR_CHUNK_PEER) >= 3 * of_all(HR_CHUNK_HOST), "%zu chunks went to host memory", of_all(HR_CHUNK_HOST));
    CHECK(hr_stat_sum(HR_STAT_lent_out_bytes) > 0 && hr_stat_sum(HR_STAT_lent_in_bytes) > 0);
    CHECK(hr_stat_sum(HR_STAT_moves_failed) == 0);
    done();
}

Test(lend, victims_go_to_an_idle_gpu_first, .timeout = 60)
{
    free(safely(idle_gpu_first));
}

/* Copies between the GPUs that GPU 0 makes fail, as over a link that is gone for good. */
static __typeof__(hr_drv.cuMemcpyAsync) real_copy;
static unsigned copies_refused;

static bool is_on_gpu_1(CUdeviceptr p)
{
    unsigned type = 0;
    int gpu = -1;
    return hr_drv.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p) == CUDA_SUCCESS &&
           type == CU_MEMORYTYPE_DEVICE &&
           hr_drv.cuPointerGetAttribute(&gpu, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p) == CUDA_SUCCESS && gpu == 1;
}

static CUresult CUDAAPI copy_without_link(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream s)
{
    CUdevice here = -1;
    if (hr_drv.cuCtxGetDevice(&here) == CUDA_SUCCESS && here == 0 && (is_on_gpu_1(to) || is_on_gpu_1(from))) {
        copies_refused++;
        return CUDA_ERROR_NVLINK_UNCORRECTABLE;
    }
    return real_copy(to, from, bytes, s);
}

static void link_dies(void)
{
    machine_with("h200,gpus=2,vram=64M,host=1G", "", 3);
    fill_gpu_0(1.5);
    use_all();
    use_all();
    size_t lent = of_all(HR_CHUNK_PEER);
    uint64_t came_back = hr_stat_sum(HR_STAT_lent_in_bytes);
    CHECK(lent > 0);
    real_copy = hr_drv.cuMemcpyAsync;
    hr_drv.cuMemcpyAsync = copy_without_link;
    use_all();
    use_all();
    CHECK(copies_refused > 0);
    CHECK(hr_stat_sum(HR_STAT_lent_in_bytes) - came_back >= lent * CHUNK, "%zu chunks were lent, %llu bytes came back",
          lent, (unsigned long long)(hr_stat_sum(HR_STAT_lent_in_bytes) - came_back));
    CHECK(of_all(HR_CHUNK_PEER) == 0, "%zu chunks are on a GPU that no link leads to", of_all(HR_CHUNK_PEER));
    done();
}

Test(lend, what_is_lent_comes_back_when_the_link_is_gone, .timeout = 60)
{
    free(safely(link_dies));
}

static const char *without_lender_machine, *without_lender_peers;
static unsigned without_lender_gpus;
static void without_lender(void)
{
    if (without_lender_peers)
        setenv("HEADROOM_PEERS", without_lender_peers, 1);
    machine_with(without_lender_machine, "", without_lender_gpus);
    fill_gpu_0(1.5);
    use_all();
    use_all();
    CHECK(of_all(HR_CHUNK_HOST) > 0 && of_all(HR_CHUNK_PEER) == 0, "%zu chunks were lent", of_all(HR_CHUNK_PEER));
    CHECK(hr_stat_sum(HR_STAT_lent_out_bytes) == 0);
    done();
}

/* No peer access; peer access over PCIe, which has no atomics; a machine whose links are PCIe; off; a GPU that the job does not use. */
Test(lend, host_memory_takes_it_where_the_link_is_no_better_or_nobody_lends, .timeout = 60)
{
    static const struct {
        const char *machine, *peers;
        unsigned gpus;
    } cases[] = {{"rtx4090,gpus=2,vram=64M,host=1G", NULL, 3},
                 {"a100-pcie,gpus=2,vram=64M,host=1G", NULL, 3},
                 {"pcie-box,gpus=2,vram=64M,host=1G", NULL, 3},
                 {"h200,gpus=2,vram=64M,host=1G", "off", 3},
                 {"h200,gpus=2,vram=64M,host=1G", NULL, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        without_lender_machine = cases[i].machine;
        without_lender_peers = cases[i].peers;
        without_lender_gpus = cases[i].gpus;
        free(safely(without_lender));
    }
}

static void stranger_lends(void)
{
    setenv("HEADROOM_PEERS", "all", 1);
    machine_with("h200,gpus=2,vram=64M,host=1G", "", 1);
    fill_gpu_0(1.5);
    use_all();
    use_all();
    CHECK(hr_tier_peer.in_use_chunks(1) > 0);
    done();
}

Test(lend, a_gpu_that_the_job_does_not_use_lends_if_all_may, .timeout = 60)
{
    free(safely(stranger_lends));
}

/* GPU 0 of a DGX-1V: two links to 3 and 4, one to 1 and 2, none to 5. */
static void nearest_first(void)
{
    machine_with("dgx1v,vram=64M,host=1G", "", 1 | 1 << 2 | 1 << 4 | 1 << 5);
    fill_gpu_0(1.5);
    use_all();
    CHECK(hr_tier_peer.in_use_chunks(4) > 0, "the fastest lends nothing");
    CHECK(hr_tier_peer.in_use_chunks(2) == 0, "the slower one was asked first");
    done();
    work.added = 0;
    fill_gpu_0(2.6);
    use_all();
    CHECK(hr_tier_peer.in_use_chunks(4) > 0 && hr_tier_peer.in_use_chunks(2) > 0);
    CHECK(hr_tier_peer.in_use_chunks(5) == 0, "no link leads there");
    done();
}

Test(lend, the_fastest_link_is_taken_first_and_none_where_there_is_no_link, .timeout = 60)
{
    free(safely(nearest_first));
}

/* What GPU 1 has allocated it does not lend, used or not. */
static void own_first(void)
{
    machine_with("h200,gpus=2,vram=64M,host=1G", "", 3);
    size_t limit = hr_tier_vram_limit(1);
    CUdeviceptr own = allocate_on(1, limit / 2 * CHUNK);
    fill_gpu_0(2);
    use_all();
    size_t lent = hr_tier_peer.in_use_chunks(1);
    CHECK(lent > 0 && lent <= limit - limit / 2 - limit / 8, "%zu of %zu are lent", lent, limit);
    add(1, own, limit / 2 * CHUNK, 1, NULL); /* it has room for that at once */
    OK(cuCtxSynchronize());
    CHECK(in_state(own, limit / 2 * CHUNK, HR_CHUNK_RESIDENT) == limit / 2);
    CHECK(hr_tier_peer.in_use_chunks(1) == lent);
    CHECK(hr_stat_sum(HR_STAT_called_in_bytes) == 0);
    done();
}

Test(lend, a_gpu_lends_only_what_is_beyond_its_own_allocations, .timeout = 60)
{
    free(safely(own_first));
}

/* --- calling in ------------------------------------------------------------------------------------------------------ */

static const char *lender_machine, *lender_deny;

/* All of GPU 1's VRAM is lent as far as may be; then it needs all. */
static void lender_wakes_up(void)
{
    machine_with(lender_machine, lender_deny, 3);
    size_t limit = hr_tier_vram_limit(1), bytes = limit * CHUNK;
    fill_gpu_0(2);
    use_all();
    use_all();
    CHECK(hr_tier_peer.in_use_chunks(1) > limit / 2);
    CUdeviceptr own = allocate_on(1, bytes);
    for (uint32_t round = 1; round <= 2; round++) {
        add(1, own, bytes, 1, NULL);
        OK(cuCtxSynchronize());
        CHECK(hr_tier_peer.in_use_chunks(1) == 0, "%zu chunks did not come back", hr_tier_peer.in_use_chunks(1));
        CHECK(in_state(own, bytes, HR_CHUNK_RESIDENT) == limit, "%zu of %zu", in_state(own, bytes, HR_CHUNK_RESIDENT),
              limit);
        use_all(); /* of which nothing goes there now */
    }
    CHECK(hr_tier_peer.in_use_chunks(1) == 0);
    CHECK(hr_stat_sum(HR_STAT_called_in_bytes) > limit / 2 * CHUNK);
    OK(cuCtxSetCurrent(context[1]));
    OK(cuMemFree_v2(own));
    OK(cuCtxSynchronize());
    use_all(); /* it lends again */
    CHECK(hr_tier_peer.in_use_chunks(1) > 0);
    done();
}

Test(lend, a_lender_gets_all_of_it_back_at_its_first_launch, .timeout = 120)
{
    static const char *const machines[][2] = {{"h200,gpus=2,vram=64M,host=1G", ""},
                                              {"h200,gpus=2,vram=64M,host=1G", "host_numa"},
                                              {"4xa100,gpus=2,vram=64M,host=1G", ""}};
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++) {
        lender_machine = machines[i][0];
        lender_deny = machines[i][1];
        free(safely(lender_wakes_up));
    }
}

/* A copy to memory that is new on the lender goes to its VRAM, as it would if it had lent nothing. */
static void lender_copies(void)
{
    machine_with("h200,gpus=2,vram=64M,host=1G", "", 3);
    size_t limit = hr_tier_vram_limit(1), bytes = limit * CHUNK;
    fill_gpu_0(2);
    use_all();
    CHECK(hr_tier_peer.in_use_chunks(1) > limit / 2);
    CUdeviceptr own = allocate_on(1, bytes);
    put(1, own, bytes, 77);
    CHECK(in_state(own, bytes, HR_CHUNK_RESIDENT) == limit);
    holds(1, own, bytes, 77, 0);
    done();
}

Test(lend, a_copy_to_new_memory_of_the_lender_finds_room_in_its_vram, .timeout = 60)
{
    free(safely(lender_copies));
}

static void CUDA_CB hold(void *open)
{
    while (!__atomic_load_n((int *)open, __ATOMIC_ACQUIRE))
        sched_yield();
}

static CUstream stream_on(int gpu)
{
    CUstream s;
    OK(cuCtxSetCurrent(context[gpu]));
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    return s;
}

/* The lender is never at rest; what it lent comes back all the same. */
static void busy_lender(void)
{
    static int open;
    machine_with("h200,gpus=2,vram=64M,host=1G", "", 3);
    size_t limit = hr_tier_vram_limit(1), bytes = limit / 2 * CHUNK;
    fill_gpu_0(2);
    use_all();
    CUdeviceptr own = allocate_on(1, bytes);
    CUstream held = stream_on(1), other = stream_on(1);
    function_on(1, "stride_add"); /* loading it may need memory as well */
    OK(cuLaunchHostFunc(held, hold, &open));
    uint64_t start_ns = hr_clock_ns();
    add(1, own, bytes, 1, other);
    CHECK(in_state(own, bytes, HR_CHUNK_RESIDENT) == limit / 2, "%zu of %zu", in_state(own, bytes, HR_CHUNK_RESIDENT),
          limit / 2);
    CHECK(hr_clock_ns() - start_ns < UINT64_C(60000000000)); /* did not wait for what nobody ends */
    __atomic_store_n(&open, 1, __ATOMIC_RELEASE);
    OK(cuCtxSynchronize());
    done();
}

Test(lend, calling_in_does_not_need_the_lender_at_rest, .timeout = 120)
{
    free(safely(busy_lender));
}

/* The borrower is not at rest: the lender's launches go on without, and it gets its memory at the borrower's next synchronisation. */
static void busy_borrower(void)
{
    static int open;
    machine_with("h200,gpus=2,vram=64M,host=1G", "", 3);
    CUdeviceptr own[16] = {0};
    size_t count = hr_tier_vram_limit(1) * CHUNK / BUFFER;
    CHECK(count > 0 && count <= 16);
    fill_gpu_0(2);
    use_all();
    size_t lent = hr_tier_peer.in_use_chunks(1);
    CUstream held = stream_on(0);
    OK(cuLaunchHostFunc(held, hold, &open));
    for (size_t i = 0; i < count; i++)
        add(1, own[i] = allocate_on(1, BUFFER), BUFFER, 1, NULL);
    OK(cuCtxSynchronize());
    CHECK(hr_tier_peer.in_use_chunks(1) == lent && hr_lend_wanted(), "%zu of %zu", hr_tier_peer.in_use_chunks(1), lent);
    CHECK(in_state(own[count - 1], BUFFER, HR_CHUNK_RESIDENT) == 2, "its own are not its latest");
    __atomic_store_n(&open, 1, __ATOMIC_RELEASE);
    OK(cuCtxSetCurrent(context[0]));
    OK(cuStreamSynchronize(held));
    CHECK(!hr_lend_wanted() && hr_tier_peer.in_use_chunks(1) < lent, "it was not called in at the moment of rest");
    size_t resident = 0;
    for (size_t i = 0; i < 2 * count; i++) {
        add(1, own[i % count], BUFFER, 1, NULL);
        OK(cuCtxSynchronize());
    }
    for (size_t i = 0; i < count; i++)
        resident += in_state(own[i], BUFFER, HR_CHUNK_RESIDENT);
    CHECK(resident == 2 * count, "%zu of %zu are there", resident, 2 * count);
    done();
}

Test(lend, a_busy_borrower_holds_nobody_up_and_gives_back_when_it_rests, .timeout = 120)
{
    free(safely(busy_borrower));
}

static void for_code(void)
{
    machine_with("h200,gpus=2,vram=64M,host=1G", "", 3);
    fill_gpu_0(2);
    use_all();
    size_t lent = hr_tier_peer.in_use_chunks(1);
    OK(cuCtxSetCurrent(context[1]));
    CHECK(hr_access_release_vram(hr_thread_self(), 1, hr_tier_vram_limit(1) * CHUNK) >= lent);
    CHECK(hr_tier_peer.in_use_chunks(1) == 0);
    done();
}

Test(lend, a_call_that_needs_vram_of_its_own_gets_what_was_lent, .timeout = 60)
{
    free(safely(for_code));
}

/* --- access ---------------------------------------------------------------------------------------------------------- */

/* More is named than VRAM has room for: a part is used where it is. */
static void in_place(void)
{
    machine_with("h200,gpus=2,vram=64M,host=1G", "", 3);
    size_t bytes = hr_tier_vram_limit(0) * CHUNK + 6 * CHUNK;
    CUdeviceptr all = allocate_on(0, bytes);
    put(0, all, bytes, 5);
    CHECK(hr_access_evict_range(hr_thread_self(), all, bytes) > 0);
    CHECK(in_state(all, bytes, HR_CHUNK_PEER) > 0);
    add(0, all, bytes, 3, NULL);
    OK(cuCtxSynchronize());
    CHECK(in_state(all, bytes, HR_CHUNK_PEER) + in_state(all, bytes, HR_CHUNK_HOST) >= 6);
    holds(0, all, bytes, 5, 3);
}

Test(lend, what_does_not_come_in_is_used_over_the_link, .timeout = 60)
{
    free(safely(in_place));
}

/* Of the GPUs of a DGX-1V 1 is linked to 0 and not to 4, 3 to 0 and not to 4 either. */
static void granted_later(void)
{
    machine_with("dgx1v,vram=64M,host=1G", "", 1 | 1 << 1 | 1 << 4);
    fill_gpu_0(1.5);
    use_all();
    CHECK(hr_tier_peer.in_use_chunks(4) > 0);
    OK(cuCtxSetCurrent(context[1]));
    OK(cuCtxEnablePeerAccess(context[0], 0));
    CHECK(hr_tier_peer.in_use_chunks(4) == 0, "some of it is where GPU 1 cannot reach it");
    for (unsigned i = 0; i < work.count; i++)
        add(1, work.at[i], BUFFER, 1, NULL);
    OK(cuCtxSynchronize());
    work.added++;
    use_all();
    CHECK(hr_tier_peer.in_use_chunks(4) == 0 && hr_tier_peer.in_use_chunks(1) > 0);
    for (unsigned i = 0; i < work.count; i++)
        add(1, work.at[i], BUFFER, 1, NULL); /* of which some is in its own VRAM now */
    OK(cuCtxSynchronize());
    work.added++;
    done();
}

Test(lend, whoever_is_granted_a_window_reaches_all_of_it_wherever_it_lies, .timeout = 60)
{
    free(safely(granted_later));
}

/* Copies of all kinds from, to and between memory of which parts are lent. */
static void copies(void)
{
    enum { BYTES = 6 * MIB };
    static const char *const machines[] = {"h200,gpus=2,vram=64M,host=1G", "4xa100,gpus=2,vram=64M,host=1G"};
    machine_with(machines[work.count], "", 3);
    work.count = 0;
    struct hr_thread *t = hr_thread_self();
    CUdeviceptr a = allocate_on(0, BYTES), b = allocate_on(0, BYTES), far = allocate_on(1, BYTES);
    CUstream s = stream_on(0);
    for (uint64_t round = 0; round < 12; round++) {
        hr_access_restore_range(t, a, BYTES);
        hr_access_restore_range(t, b, BYTES);
        put(0, a, BYTES, round);
        put(0, b, BYTES, 99);
        put(1, far, BYTES, 98);
        hr_access_evict_range(t, a + (round & 1 ? 2 * MIB : 0), 2 * MIB);
        hr_access_evict_range(t, b + (round & 2 ? 2 * MIB : 0), 4 * MIB);
        CHECK(in_state(a, BYTES, HR_CHUNK_PEER) == 1 && in_state(b, BYTES, HR_CHUNK_PEER) == 2);
        OK(cuCtxSetCurrent(context[0]));
        OK(cuMemcpyDtoDAsync_v2(b + 8, a + 8, BYTES - 8, s));
        OK(cuMemcpyDtoDAsync_v2(far, b, BYTES, s));
        OK(cuMemsetD32Async(b, 7, BYTES / 4, s));
        OK(cuStreamSynchronize(s));
        OK(cuMemcpyDtoD_v2(b + 8, far + 8, BYTES - 8));
        OK(cuMemcpyDtoD_v2(b, a, 8));
        holds(0, b, BYTES, round, 0);
    }
}

Test(lend, copies_split_where_memory_is_lent, .timeout = 60)
{
    for (work.count = 0; work.count < 2; work.count++)
        free(safely(copies));
}

/* --- ends ------------------------------------------------------------------------------------------------------------ */

static void freed_while_lent(void)
{
    machine_with("h200,gpus=2,vram=64M,host=1G", "", 3);
    fill_gpu_0(2);
    use_all();
    for (unsigned i = 0; i < work.count; i++)
        if (in_state(work.at[i], BUFFER, HR_CHUNK_PEER) == 2)
            OK(cuMemFree_v2(work.at[i]));
    OK(cuCtxSynchronize());
    hr_quiet_wait(HR_ALL_GPUS, hr_clock_ns() + UINT64_C(5000000000));
    hr_quarantine_release(hr_thread_self());
    CHECK(hr_tier_peer.in_use_chunks(1) <= 1, "%zu chunks are still lent", hr_tier_peer.in_use_chunks(1));
}

Test(lend, freed_memory_goes_back_to_the_lender, .timeout = 60)
{
    free(safely(freed_while_lent));
}

static void lender_context_ends(void)
{
    machine_with("h200,gpus=3,vram=64M,host=1G", "", 7);
    fill_gpu_0(2);
    use_all();
    OK(cuCtxDestroy_v2(context[1]));
    use_all();
    use_all();
    OK(cuCtxSetCurrent(context[0]));
    OK(cuCtxDestroy_v2(context[2]));
    OK(cuCtxSetCurrent(context[0]));
    use_all();
    CHECK(of_all(HR_CHUNK_HOST) + of_all(HR_CHUNK_PEER) > 0);
    done();
}

Test(lend, a_lenders_context_may_end, .timeout = 60)
{
    free(safely(lender_context_ends));
}

static void borrower_context_ends(void)
{
    machine_with("h200,gpus=2,vram=64M,host=1G", "", 3);
    fill_gpu_0(2);
    use_all();
    OK(cuCtxSetCurrent(context[0]));
    OK(cuCtxDestroy_v2(context[0]));
    CHECK(hr_tier_peer.in_use_chunks(1) == 0, "%zu chunks are still lent", hr_tier_peer.in_use_chunks(1));
    size_t bytes = hr_tier_vram_limit(1) * CHUNK;
    CUdeviceptr own = allocate_on(1, bytes);
    add(1, own, bytes, 1, NULL);
    OK(cuCtxSynchronize());
    CHECK(in_state(own, bytes, HR_CHUNK_RESIDENT) == bytes / CHUNK);
}

Test(lend, a_borrowers_end_gives_it_all_back, .timeout = 60)
{
    free(safely(borrower_context_ends));
}

/* --- failures -------------------------------------------------------------------------------------------------------- */

static void under_failures(void)
{
    machine_with("h200,gpus=2,vram=64M,host=1G", "", 3);
    fill_gpu_0(1.7);
    use_all();
    use_all();
    size_t bytes = hr_tier_vram_limit(1) * CHUNK;
    CUdeviceptr own = allocate_on(1, bytes);
    add(1, own, bytes, 1, NULL);
    OK(cuCtxSynchronize());
    use_all();
    all_hold();
}

/* Each of these calls fails once, at different places of moves to and from the lender. */
Test(lend, no_step_that_fails_costs_a_byte, .timeout = 120)
{
    static const char *const calls[] = {"cuMemSetAccess", "cuMemMap", "cuMemUnmap", "cuMemcpyAsync"};
    static const char *const reported[] = {"\"set_accesses", "\"maps", "\"unmaps", NULL};
    char *report = safely(under_failures);
    for (int i = 0; i < 4; i++) {
        unsigned long long all = reported[i] ? figure(report, reported[i]) : 150;
        for (unsigned long long n = all / 5 * 2; n < all; n += (SANITIZED ? all / 2 : all / 5) + 1) {
            char text[64];
            snprintf(text, sizeof text, "%s:%llu", calls[i], n);
            setenv("SIMGPU_FAIL", text, 1);
            one_may_fail = true;
            free(apart(under_failures));
        }
    }
    free(report);
}
