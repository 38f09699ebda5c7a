/* Stream-ordered memory: what was freed serves in the order of streams. */
#include "pools.h"

#include "residency/gpu.h"
#include "residency/quarantine.h"
#include "residency/shelf.h"
#include "space/ledger.h"

TestSuite(pool_order, .timeout = 120);

/* --- order --------------------------------------------------------------------------------------------------------- */

Test(pool_order, a_stream_reuses_what_it_freed_and_others_wait, .init = start)
{
    struct gate gate = GATE;
    CUstream a = new_stream(), b = new_stream();
    CUdeviceptr p, q, r, small, small_too;
    kernel("stride_add");
    OK(cuLaunchHostFunc(a, wait_at, &gate));
    OK(cuMemAllocAsync(&p, 4 * MIB, a));
    cr_assert(hr_space_owns(p));
    OK(stride_add(p, 512, 100, 1, a));
    OK(cuMemAllocAsync(&small, 3000, a));
    OK(stride_add(small, 512, 1, 1, a));
    OK(cuMemFreeAsync(p, a));
    OK(cuMemFreeAsync(small, a));
    OK(cuMemAllocAsync(&q, 4 * MIB, b)); /* the free is not over, and b does not come after it */
    OK(cuMemAllocAsync(&small_too, 3000, b));
    cr_assert(q != p && small_too != small);
    OK(cuMemAllocAsync(&r, 4 * MIB - 4096, a));
    cr_assert_eq(r, p);
    cr_assert_eq(atomic_load(&hr_space_chunk(p)->state), HR_CHUNK_RESIDENT); /* with what backed it */
    OK(cuMemAllocAsync(&r, 2900, a));
    cr_assert_eq(r, small);
    OK(cuMemFreeAsync(p, a));
    open_gate(&gate);
    OK(cuStreamSynchronize(a));
    cr_assert_not(hr_shelf_any()); /* nothing is kept beyond the threshold */
    cr_assert_not(hr_quarantine_any());
    cr_assert_eq(atomic_load(&hr_space_chunk(p)->state), HR_CHUNK_RESERVED);
}

/* Shown failing by leaving the shelf's order out of the key. */
Test(pool_order, the_default_streams_have_orders_of_their_own, .init = start)
{
    struct gate gate = GATE;
    CUdeviceptr p, q;
    CUcontext first, second;
    OK(cuCtxGetCurrent(&first));
    OK(cuLaunchHostFunc(CU_STREAM_LEGACY, wait_at, &gate));
    OK(cuMemAllocAsync(&p, 4 * MIB, CU_STREAM_LEGACY));
    OK(cuMemsetD8Async(p, 1, 4 * MIB, NULL));
    OK(cuMemFreeAsync(p, NULL));
    OK(cuMemAllocAsync_ptsz(&q, 4 * MIB, NULL));
    cr_assert_neq(p, q);
    OK(cuMemAllocAsync(&q, 4 * MIB, CU_STREAM_PER_THREAD));
    cr_assert_neq(p, q);
    OK(cuCtxCreate_v2(&second, 0, 0));
    OK(cuMemAllocAsync(&q, 4 * MIB, NULL)); /* another context's */
    cr_assert_neq(p, q);
    OK(cuCtxSetCurrent(first));
    OK(cuMemAllocAsync_ptsz(&q, 4 * MIB, CU_STREAM_LEGACY));
    cr_assert_eq(p, q);
    open_gate(&gate);
    OK(cuCtxSynchronize());
}

Test(pool_order, what_is_over_is_for_everybody, .init = start)
{
    CUstream a = new_stream(), b = new_stream();
    CUmemoryPool pool = default_pool(0);
    CUdeviceptr p, q;
    struct gate gate = GATE;
    set_amount(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 4 * MIB);
    OK(cuLaunchHostFunc(b, wait_at, &gate)); /* b is busy all along: what is over in a is told by a alone */
    OK(cuMemAllocAsync(&p, 4 * MIB, a));
    OK(cuMemsetD8Async(p, 1, 4 * MIB, a));
    OK(cuMemFreeAsync(p, a));
    OK(cuStreamSynchronize(a));
    cr_assert_eq(amount(pool, RESERVED), 4 * MIB);
    OK(cuMemAllocAsync(&q, 4 * MIB, b));
    cr_assert_eq(p, q);
    OK(cuMemAllocAsync(&p, 6 * MIB, a));
    OK(cuMemsetD8Async(p, 1, 6 * MIB, a));
    OK(cuMemFreeAsync(p, a));
    while (hr_drv.cuStreamQuery(a) == CUDA_ERROR_NOT_READY) /* nobody is told */
        ;
    OK(cuMemAllocAsync(&p, 6 * MIB, new_stream())); /* it asks */
    cr_assert_eq(amount(pool, RESERVED), 10 * MIB);
    open_gate(&gate);
    OK(cuCtxSynchronize());
}

Test(pool_order, thresholds_trims_and_high_marks, .init = start)
{
    CUstream s = new_stream();
    CUmemoryPool pool = default_pool(0);
    CUdeviceptr p[4];
    CUevent event;
    set_amount(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 8 * MIB);
    for (int i = 0; i < 4; i++) {
        OK(cuMemAllocAsync(&p[i], 4 * MIB, s));
        OK(cuMemsetD8Async(p[i], 1, 4 * MIB, s));
    }
    for (int i = 0; i < 4; i++)
        OK(cuMemFreeAsync(p[i], s));
    cr_assert_eq(amount(pool, RESERVED), 16 * MIB);
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(cuEventRecord(event, s));
    OK(cuEventSynchronize(event));
    cr_assert_eq(amount(pool, RESERVED), 8 * MIB);
    cr_assert_eq(hr_tier_vram.in_use_chunks(0), 4);
    cr_assert_eq(amount(pool, RESERVED_HIGH), 16 * MIB);
    cr_assert_eq(amount(pool, USED_HIGH), 16 * MIB);
    set_amount(pool, RESERVED_HIGH, 0);
    set_amount(pool, USED_HIGH, 0);
    cr_assert_eq(amount(pool, RESERVED_HIGH), 8 * MIB);
    cr_assert_eq(amount(pool, USED_HIGH), 0);
    OK(cuMemPoolTrimTo(pool, 3 * MIB)); /* at least that much is kept */
    cr_assert_eq(amount(pool, RESERVED), 4 * MIB);
    OK(cuMemAllocAsync(&p[0], 4 * MIB, s));
    OK(cuMemPoolTrimTo(pool, 0));
    cr_assert_eq(amount(pool, RESERVED), 4 * MIB); /* in use */
    OK(cuMemFreeAsync(p[0], s));
    OK(cuStreamSynchronize(s));
    OK(cuMemPoolTrimTo(pool, 0));
    cr_assert_eq(amount(pool, RESERVED), 0);
    hr_space_flush_thread(hr_thread_self());
    cr_assert_eq(hr_ledger_charged(0), 0);
}

/* --- loops --------------------------------------------------------------------------------------------------------- */

static void loop(size_t (*size)(int i), int rounds, CUstream s, size_t most_bytes)
{
    size_t largest = 0;
    for (int i = 0; i < rounds; i++) {
        CUdeviceptr p;
        OK(cuMemAllocAsync(&p, size(i), s));
        OK(stride_add(p, 512, 1, 1, s));
        OK(cuMemFreeAsync(p, s));
        size_t charged = hr_ledger_charged(0);
        largest = charged > largest ? charged : largest;
    }
    CHECK(largest <= most_bytes, "%zu bytes", largest);
}
static size_t always_4_mib(int i)
{
    (void)i;
    return 4 * MIB;
}
static size_t small_ones(int i)
{
    return 1 + (size_t)i * 37 % 20000;
}
static size_t different_ones(int i)
{
    return (2 + (size_t)i * 7 % 11) * MIB;
}

Test(pool_order, loops_do_not_grow, .init = start)
{
    CUstream s = new_stream();
    struct gate gate = GATE;
    kernel("stride_add");
    OK(cuLaunchHostFunc(s, wait_at, &gate)); /* nothing is over before the loops end */
    loop(always_4_mib, 200, s, 4 * MIB);
    loop(small_ones, 400, s, 4 * MIB + (size_t)40 * CHUNK); /* a slab of each class */
    open_gate(&gate);
    OK(cuCtxSynchronize());
    loop(different_ones, 300, s, hr_gpu_total_bytes(0));
    OK(cuCtxSynchronize());
    hr_space_flush_thread(hr_thread_self());
    cr_assert_eq(hr_ledger_charged(0), 0);
    cr_assert_eq(hr_tier_vram.in_use_chunks(0), 0);
    cr_assert_eq(hr_tier_host.in_use_chunks(0), 0);
}

/* --- frees of the other kind --------------------------------------------------------------------------------------- */

Test(pool_order, each_kind_of_free_takes_each_kind_of_memory, .init = start)
{
    CUstream s = new_stream();
    struct gate gate = GATE;
    CUmemoryPool own = new_pool(0);
    CUdeviceptr p, q, plain;
    OK(cuMemAllocFromPoolAsync(&p, 4 * MIB, own, s));
    OK(cuMemAlloc_v2(&plain, 4 * MIB));
    OK(cuMemsetD8Async(p, 1, 4 * MIB, s));
    OK(cuMemsetD8Async(plain, 1, 4 * MIB, s));
    OK(cuLaunchHostFunc(s, wait_at, &gate));
    OK(cuMemFree_v2(p));
    OK(cuMemFreeAsync(plain, s));
    cr_assert_eq(amount(own, USED), 0);
    cr_assert_eq(amount(own, RESERVED), 0);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(plain));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(p, s));
    OK(cuMemAllocFromPoolAsync(&q, 4 * MIB, own, s)); /* neither is given out before what was submitted is done */
    cr_assert(q != p && q != plain);
    OK(cuMemFreeAsync(q, s));
    open_gate(&gate);
    OK(cuCtxSynchronize());
    OK(cuMemPoolDestroy(own));
    cr_assert_not(hr_quarantine_any());
    hr_space_flush_thread(hr_thread_self());
    cr_assert_eq(hr_ledger_charged(0), 0);
}

Test(pool_order, K33_a_free_is_charged_to_the_owner_whoever_is_current, .init = start_with_two)
{
    CUdeviceptr p, q;
    OK(cuCtxSetCurrent(context[0]));
    OK(cuMemAllocAsync(&p, 4 * MIB, NULL));
    OK(cuMemAllocAsync(&q, 5 * MIB, NULL));
    OK(cuMemsetD8_v2(p, 1, 4 * MIB));
    OK(cuMemsetD8_v2(q, 1, 5 * MIB));
    OK(cuCtxSynchronize());
    OK(cuCtxSetCurrent(context[1]));
    OK(cuMemFreeAsync(p, NULL));
    OK(cuMemFree_v2(q));
    cr_assert_eq(amount(default_pool(0), USED), 0);
    cr_assert_eq(amount(default_pool(1), USED), 0);
    OK(cuCtxSynchronize());
    OK(cuCtxSetCurrent(context[0]));
    OK(cuCtxSynchronize());
    OK(cuMemPoolTrimTo(default_pool(0), 0));
    hr_space_flush_thread(hr_thread_self());
    cr_assert_eq(hr_ledger_charged(0), 0);
    cr_assert_eq(hr_ledger_charged(1), 0);
}
