/* Capacity: what is advertised can be had, what cannot be backed is refused by the allocating call, and small things share. */
#include "core_test.h"

#include "residency/quarantine.h"
#include "space/ledger.h"

static size_t free_bytes(void)
{
    size_t free_now, total, device_total;
    OK(cuMemGetInfo_v2(&free_now, &total));
    OK(cuDeviceTotalMem_v2(&device_total, 0));
    cr_assert_eq(total, device_total);
    cr_assert_leq(free_now, total);
    return free_now;
}

Test(capacity, K24_every_answer_about_capacity_agrees, .timeout = 60)
{
    setenv("HEADROOM_HOST", "128M", 1);
    machine("h200,vram=64M,host=512M", "");
    size_t before = free_bytes();
    CUdeviceptr p;
    unsigned old_free, old_total;
    cr_assert_gt(before, 128 * MIB, "more than the host's share is free");
    OK(cuMemAlloc_v2(&p, 10 * MIB));
    cr_assert_eq(free_bytes(), before - 10 * MIB);
    OK(cuMemGetInfo(&old_free, &old_total));
    cr_assert_eq(old_free, before - 10 * MIB);
    OK(cuMemFree_v2(p));
    cr_assert_eq(free_bytes(), before);
    cr_assert_eq(hr_ledger_free(0), before);
}

/* A module that takes more VRAM than is kept free for such things from the start. */
static void load_large_module(void)
{
    static const char ptx[] =
        ".version 6.3\n.target sm_70\n.address_size 64\n"
        ".visible .global .align 16 .b8 large[12582912];\n.visible .entry nothing()\n{\nret;\n}\n";
    CUmodule module;
    OK(cuModuleLoadData(&module, ptx));
}

/* Allocates in pieces until refused, then touches every piece by a kernel and reads everything back. */
static void advertised(const char *deny, size_t piece, const char *vram_cap)
{
    setenv("HEADROOM_HOST", "96M", 1);
    setenv("HEADROOM_VRAM", vram_cap, 1);
    machine("h200,vram=64M,host=512M", deny);
    kernel("stride_add");
    load_large_module();
    size_t said = free_bytes(), got = 0, n = 0;
    CUdeviceptr p[512];
    CUresult r;
    while ((r = cuMemAlloc_v2(&p[n], piece)) == CUDA_SUCCESS) {
        got += piece;
        n++;
        cr_assert_lt(n, 512);
    }
    cr_assert_eq(r, CUDA_ERROR_OUT_OF_MEMORY);
    cr_assert(got <= said && got + piece + CHUNK > said, "%zu bytes were free, %zu could be allocated", said, got);
    for (size_t i = 0; i < n; i++)
        OK(cuMemsetD32_v2(p[i], (unsigned)i, piece / 4));
    for (size_t i = 0; i < n; i++)
        OK(stride_add(p[i], 1024, (uint32_t)(piece / 4096), 1000, NULL));
    for (size_t i = 0; i < n; i++) {
        uint32_t first[2];
        OK(cuMemcpyDtoH_v2(first, p[i], sizeof first));
        cr_assert(first[0] == i + 1000 && first[1] == i, "piece %zu holds %u, %u", i, first[0], first[1]);
    }
}

/* Shown failing by promising host memory twice, and by leaving the VRAM of modules out of the ledger. */
Test(capacity, K25_K27_what_is_called_free_can_be_allocated_and_used, .timeout = 120)
{
    advertised("", 6 * MIB, "100%");
}
Test(capacity, K25_the_same_where_host_memory_cannot_be_mapped, .timeout = 120)
{
    advertised("host_numa", 4 * MIB, "100%");
}
Test(capacity, K25_the_same_with_a_cap_of_vram, .timeout = 120)
{
    advertised("", 4 * MIB, "32M");
}

/* Shown failing by returning CUDA_ERROR_INVALID_VALUE for a full ledger. */
Test(capacity, K28_out_of_memory_is_exactly_that_and_a_retry_after_a_free_works, .timeout = 60)
{
    setenv("HEADROOM_HOST", "64M", 1);
    machine("h200,vram=64M,host=512M", "");
    CUdeviceptr most, more, small;
    size_t all = free_bytes() / CHUNK * CHUNK;
    OK(cuMemAlloc_v2(&most, all));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&more, CHUNK));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&more, all));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&small, 512));
    OK(cuMemFree_v2(most));
    OK(cuMemAlloc_v2(&more, all));
    OK(cuMemFree_v2(more));
    OK(cuMemAlloc_v2(&small, 512));
}

/* The freed memory waits for a kernel that still runs: the retry waits for it, too, instead of failing. */
Test(capacity, K28_a_retry_works_while_the_freed_memory_is_still_in_use, .timeout = 60)
{
    setenv("HEADROOM_HOST", "64M", 1);
    machine("h200,vram=64M,host=512M", "");
    kernel("slow_affine");
    CUdeviceptr most, more;
    CUstream s;
    size_t all = free_bytes() / CHUNK * CHUNK;
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc_v2(&most, all));
    OK(slow_affine(most, 3, 1, 4096, 300, s));
    OK(cuMemFree_v2(most));
    cr_assert(hr_quarantine_any());
    OK(cuMemAlloc_v2(&more, all));
    GIVES(CUDA_SUCCESS, cuStreamQuery(s));
    OK(cuMemsetD8_v2(more, 1, all));
}

/* The window's length and the ledger both refuse it; the next test shows the ledger alone. */
Test(capacity, K29_a_terabyte_is_refused_at_once, .timeout = 60)
{
    machine("h200,vram=64M", "");
    CUdeviceptr p;
    size_t pitch, before = free_bytes();
    uint64_t start_ns = hr_clock_ns();
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&p, (size_t)1 << 40));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&p, SIZE_MAX));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&p, SIZE_MAX - CHUNK + 1));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocPitch_v2(&p, &pitch, (size_t)1 << 40, (size_t)1 << 40, 4));
    cr_assert_lt(hr_clock_ns() - start_ns, UINT64_C(2000000000));
    cr_assert_eq(free_bytes(), before, "a refusal costs nothing");
}

/* Shown failing by a ledger without caps: the first call succeeded. */
Test(capacity, K29_a_ratio_caps_what_the_host_could_back, .timeout = 60)
{
    setenv("HEADROOM_RATIO", "2", 1);
    machine("h200,vram=64M", "");
    CUdeviceptr p;
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&p, 130 * MIB));
    OK(cuMemAlloc_v2(&p, 120 * MIB));
}

/* Addresses are taken for what can be backed, not for whatever a job might ask for. */
Test(capacity, K38_windows_are_bounded_by_what_can_be_backed, .timeout = 60)
{
    setenv("HEADROOM_HOST", "256M", 1);
    machine("h200,gpus=8,vram=64M,host=1G", "");
    /* Four times, since what is freed leaves gaps. */
    size_t most = 4 * (8 * 64 + 256) * MIB, total = 0;
    for (unsigned gpu = 0; gpu < hr_space.gpu_count; gpu++) {
        size_t bytes = (size_t)hr_space.window[gpu].chunk_count << hr_space.chunk_shift;
        cr_expect_gt(bytes, 64 * MIB, "GPU %u: %zu bytes", gpu, bytes);
        cr_expect_leq(bytes, most, "GPU %u: %zu bytes", gpu, bytes);
        total += bytes;
    }
    cr_expect_leq(total, 8 * most);
}

/* What fills the card here makes room for what the driver takes of it behind a launch or a limit. */
Test(capacity, launches_and_limits_that_lack_vram_of_the_driver_get_some, .timeout = 60)
{
    CUdeviceptr p[12];
    setenv("SIMGPU_FAIL", "cuLaunchKernel:13:2,cuLaunchKernel:14:2,cuCtxSetLimit:1:2", 1);
    machine("h200,vram=64M", "");
    for (int i = 0; i < 12; i++) {
        OK(cuMemAlloc_v2(&p[i], 8 * MIB));
        OK(cuMemsetD32_v2(p[i], 5, 2 * MIB));
        OK(stride_add(p[i], 512, 4096, 1, NULL));
    }
    OK(cuCtxSynchronize());
    uint64_t before = hr_stat_sum(HR_STAT_moved_out_bytes);
    OK(stride_add(p[11], 512, 4096, 1, NULL));
    OK(cuCtxSynchronize());
    uint64_t then = hr_stat_sum(HR_STAT_moved_out_bytes);
    CHECK(then > before, "nothing left for the launch");
    OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 16 * MIB));
}

static size_t window_chunks(void)
{
    machine("h200,vram=64M", "");
    CUdeviceptr p;
    OK(cuMemAlloc_v2(&p, 40 * MIB));
    OK(cuMemsetD8_v2(p, 1, 40 * MIB));
    return hr_space.window[0].chunk_count;
}

static size_t *chunks_found; /* shared by two processes */
static void note_window(void)
{
    *chunks_found = window_chunks();
}

Test(capacity, K38_where_addresses_are_short_the_window_is_smaller, .timeout = 60)
{
    chunks_found = mmap(NULL, sizeof *chunks_found, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert(chunks_found != MAP_FAILED);
    setenv("HEADROOM_HOST", "256M", 1);
    free(apart(note_window));
    setenv("SIMGPU_FAIL", "cuMemAddressReserve:1:2,cuMemAddressReserve:2:2", 1);
    cr_assert_eq(window_chunks() * 4, *chunks_found);
}

/* --- the cap ------------------------------------------------------------------------------------------------------ */

static void use_much(void)
{
    setenv("HEADROOM_VRAM", "32M", 1);
    machine("h200,vram=64M", "");
    CUdeviceptr p[12];
    for (int i = 0; i < 12; i++) {
        OK(cuMemAlloc_v2(&p[i], 8 * MIB));
        OK(cuMemsetD32_v2(p[i], 5, 2 * MIB));
    }
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < 12; i++) {
            OK(stride_add(p[i], 512, 4096, 1, NULL));
            OK(cuCtxSynchronize()); /* so that the next one finds the device at rest, however slow this machine is */
        }
    CHECK(hr_stat_sum(HR_STAT_moved_in_bytes) > 0);
}

Test(capacity, the_cap_holds_for_everything_on_the_card, .timeout = 60)
{
    char *report = apart(use_much);
    unsigned long long peak = figure(report, "\"peak_vram_bytes");
    cr_assert(peak <= 32 * MIB && peak >= 24 * MIB, "%llu bytes", peak);
    was_safe(report);
    free(report);
}

/* --- small allocations -------------------------------------------------------------------------------------------- */

#define SMALL_COUNT 1000000
#define SMALL_BYTES 512

static CUdeviceptr *small_ones(void)
{
    CUdeviceptr *p = malloc(SMALL_COUNT * sizeof *p);
    setenv("HEADROOM_HOST", "256M", 1);
    machine("h200,vram=1G,host=2G", "");
    for (size_t i = 0; i < SMALL_COUNT; i++)
        OK(cuMemAlloc_v2(&p[i], SMALL_BYTES));
    cr_assert_eq(hr_tier_vram.in_use_chunks(0), 0, "nothing was touched yet");
    return p;
}

static size_t distinct_chunks(const CUdeviceptr *p, size_t from, size_t to, size_t step)
{
    uint8_t *seen = calloc(1, hr_space.bytes / CHUNK);
    size_t n = 0;
    for (size_t i = from; i < to; i += step) {
        size_t c = (p[i] - hr_space.base) / CHUNK;
        n += !seen[c];
        seen[c] = 1;
    }
    free(seen);
    return n;
}

Test(capacity, a_million_small_allocations_take_the_chunks_that_were_touched, .timeout = 240)
{
    CUdeviceptr *p = small_ones();
    for (size_t i = 0; i < SMALL_COUNT; i += 9973)
        OK(cuMemsetD8_v2(p[i], 7, SMALL_BYTES));
    cr_assert_eq(hr_tier_vram.in_use_chunks(0), distinct_chunks(p, 0, SMALL_COUNT, 9973));
    size_t half = SMALL_COUNT / 2;
    for (size_t i = 0; i < half; i++)
        if (i % 1024 == 0) /* every chunk of the half several times; kernels and copies by turns */
            OK(i % 2048 ? stride_add(p[i], 1, SMALL_BYTES / 4, 1, NULL) : cuMemsetD32_v2(p[i], 3, SMALL_BYTES / 4));
    cr_assert_eq(distinct_chunks(p, 0, half, 1024), distinct_chunks(p, 0, half, 1));
    free(p);
}

Test(capacity, a_touched_half_of_a_million_small_allocations_costs_a_tenth_more_at_most, .timeout = 240)
{
    CUdeviceptr *p = small_ones();
    size_t half = SMALL_COUNT / 2;
    for (size_t i = 0; i < half; i += 512) /* every chunk of the half, kernels and copies by turns */
        OK(i % 1024 ? stride_add(p[i], 1, SMALL_BYTES / 4, 1, NULL) : cuMemsetD32_v2(p[i], 3, SMALL_BYTES / 4));
    size_t used = (hr_tier_vram.in_use_chunks(0) + hr_tier_host.in_use_chunks(0)) * CHUNK;
    cr_assert_eq(used, distinct_chunks(p, 0, half, 1) * CHUNK);
    cr_assert(used <= half * SMALL_BYTES * 11 / 10, "%zu bytes for %zu", used, half * SMALL_BYTES);
    for (size_t i = 0; i < SMALL_COUNT; i++)
        OK(cuMemFree_v2(p[i]));
    OK(cuCtxSynchronize());
    hr_space_flush_thread(hr_thread_self());
    cr_assert_eq(hr_tier_vram.in_use_chunks(0), 0, "%zu chunks stay", hr_tier_vram.in_use_chunks(0));
    cr_assert_eq(hr_ledger_charged(0), 0);
    free(p);
}

/* An allocation that no launch could ever use is refused by the allocation, not by the launch. */
Test(capacity, without_mappable_host_memory_an_allocation_larger_than_vram_is_refused)
{
    CUdeviceptr p;
    machine("h200,vram=64M", "host_numa");
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&p, 96 * MIB));
    OK(cuMemAlloc_v2(&p, 48 * MIB));
}
Test(capacity, with_mappable_host_memory_an_allocation_may_be_larger_than_vram)
{
    CUdeviceptr p;
    machine("h200,vram=64M", "");
    OK(cuMemAlloc_v2(&p, 96 * MIB));
    OK(cuMemsetD8_v2(p, 7, 96 * MIB));
}
