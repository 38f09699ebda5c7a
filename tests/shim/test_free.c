/* Frees: in every state of a chunk, twice, inside, of what is not ours. */
#include "core_test.h"

#include "residency/quarantine.h"
#include "space/ledger.h"

static void start(void)
{
    machine("h200,vram=64M,host=512M", "");
}
TestSuite(frees, .init = start, .timeout = 120);

/* Shown failing by returning CUDA_ERROR_INVALID_VALUE instead of asking the driver. */
Test(frees, K31_a_pointer_that_is_not_ours_goes_to_the_driver)
{
    CUdeviceptr native;
    OK(hr_drv.cuMemAlloc_v2(&native, MIB));
    cr_assert_not(hr_space_owns(native));
    OK(cuMemFree_v2(native));
    GIVES(CUDA_ERROR_INVALID_VALUE, hr_drv.cuMemFree_v2(native)); /* it was freed there */
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(native));
    CUresult of_null = hr_drv.cuMemFree_v2(0);
    GIVES(of_null, cuMemFree_v2(0));
}

/* The states that a chunk can be in when its allocation is freed. */
enum state { RESERVED, RESIDENT, HOST, RESTORED, BUSY, MOVING, STATES };
static const char *const state_names[] = {"reserved", "resident", "host", "restored", "busy", "moving"};

static void *move_back_and_forth(void *arg)
{
    CUdeviceptr p = *(CUdeviceptr *)arg;
    for (int i = 0; i < 3; i++) {
        hr_access_evict_range(hr_thread_self(), p, 6 * MIB);
        hr_access_restore_range(hr_thread_self(), p, 6 * MIB);
    }
    return NULL;
}

static void bring_to(enum state state, CUdeviceptr p, size_t bytes, CUstream s)
{
    struct hr_thread *t = hr_thread_self();
    if (state == RESERVED)
        return;
    OK(cuMemsetD8_v2(p, 1, bytes));
    OK(cuCtxSynchronize()); /* the other stream does not wait for the legacy one */
    if (state == HOST || state == RESTORED) {
        hr_access_evict_range(t, p, bytes);
        cr_assert_eq(atomic_load(&hr_space_chunk(p)->state), HR_CHUNK_HOST);
    }
    if (state == RESTORED)
        cr_assert_gt(hr_access_restore_range(t, p, bytes), 0);
    if (state == BUSY)
        OK(slow_affine(p, 3, 1, 128, 3000, s));
}

/* One allocation in one state; freed once, with wrong frees before and after. Nothing is left of it. */
static void free_in_state(enum state state, size_t bytes)
{
    CUdeviceptr p;
    CUstream s;
    pthread_t mover;
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    kernel("slow_affine");
    OK(cuMemAlloc_v2(&p, bytes));
    bring_to(state == MOVING ? RESIDENT : state, p, bytes, s);
    if (state == MOVING)
        pthread_create(&mover, NULL, move_back_and_forth, &p);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(p + 4)); /* inside */
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(p + bytes - 1));
    OK(cuMemFree_v2(p));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(p)); /* twice */
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(p + 4));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD8_v2(p, 0, bytes)); /* and no use of it */
    if (state == MOVING)
        pthread_join(mover, NULL);
    OK(cuCtxSynchronize());
    hr_space_flush_thread(hr_thread_self());
    cr_assert_not(hr_quarantine_any(), "%s", state_names[state]);
    cr_assert_eq(hr_tier_vram.in_use_chunks(0), 0, "%s, %zu bytes: VRAM stays in use", state_names[state], bytes);
    cr_assert_eq(hr_tier_host.in_use_chunks(0), 0, "%s, %zu bytes: host memory stays in use", state_names[state],
                 bytes);
    cr_assert_eq(hr_ledger_charged(0), 0, "%s, %zu bytes: a charge stays", state_names[state], bytes);
    OK(cuStreamDestroy_v2(s));
}

/* Shown failing by leaving out the exchange of the live mark: the second free succeeded. */
Test(frees, K32_large_ones_are_released_exactly_once_in_every_state)
{
    for (int state = 0; state < STATES; state++)
        free_in_state((enum state)state, 6 * MIB);
}

static void same_where_host_cannot_be_mapped(void)
{
    setenv("SIMGPU_DENY", "host_numa", 1);
    start();
}
Test(frees_unmapped, K32_large_ones_are_released_exactly_once_in_every_state, .init = same_where_host_cannot_be_mapped,
     .timeout = 120)
{
    for (int state = 0; state < STATES; state++)
        free_in_state((enum state)state, 6 * MIB);
}

/* Small ones share a chunk, so only what has left the thread's cache gives it back; the marks are per slot. */
Test(frees, K32_small_ones_are_released_exactly_once_in_every_state)
{
    for (int state = 0; state < BUSY; state++) {
        CUdeviceptr p[3];
        for (int i = 0; i < 3; i++)
            OK(cuMemAlloc_v2(&p[i], 3000));
        bring_to((enum state)state, p[1], 3000, NULL);
        GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(p[1] + 512));
        GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(p[1] + 2999));
        for (int i = 0; i < 3; i++) {
            OK(cuMemFree_v2(p[i]));
            GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(p[i]));
        }
        OK(cuCtxSynchronize());
        cr_assert_not(hr_quarantine_any());
    }
    CUdeviceptr a, b;
    OK(cuMemAlloc_v2(&a, 3000));
    OK(cuMemAlloc_v2(&b, 3000));
    cr_assert_neq(a, b, "one slot was handed out twice");
}

/* A driver asks for a context before it looks at the operands. */
Test(frees, without_a_context_freed_memory_is_not_looked_at)
{
    CUcontext ctx;
    CUdeviceptr freed_one, live;
    unsigned char host[64] = {0};
    OK(cuMemAlloc_v2(&freed_one, 3000));
    OK(cuMemAlloc_v2(&live, 3000));
    OK(cuMemFree_v2(freed_one));
    OK(cuCtxGetCurrent(&ctx));
    OK(cuCtxSetCurrent(NULL));
    CUdeviceptr address[] = {freed_one, live, live + 3000};
    for (int i = 0; i < 3; i++) {
        GIVES(CUDA_ERROR_INVALID_CONTEXT, cuMemcpyDtoH_v2(host, address[i], sizeof host));
        GIVES(CUDA_ERROR_INVALID_CONTEXT, cuMemcpyHtoD_v2(address[i], host, sizeof host));
        GIVES(CUDA_ERROR_INVALID_CONTEXT, cuMemcpyDtoD_v2(live, address[i], sizeof host));
        GIVES(CUDA_ERROR_INVALID_CONTEXT, cuMemcpyHtoDAsync_v2(address[i], host, sizeof host, NULL));
        GIVES(CUDA_ERROR_INVALID_CONTEXT, cuMemsetD8_v2(address[i], 1, sizeof host));
        GIVES(CUDA_ERROR_INVALID_CONTEXT, cuMemsetD2D8_v2(address[i], 16, 1, 16, 2));
        CUDA_MEMCPY2D flat = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                              .srcDevice = address[i],
                              .dstMemoryType = CU_MEMORYTYPE_HOST,
                              .dstHost = host,
                              .WidthInBytes = 16,
                              .Height = 1};
        GIVES(CUDA_ERROR_INVALID_CONTEXT, cuMemcpy2D_v2(&flat));
        CUDA_MEMCPY3D deep = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                              .srcDevice = address[i],
                              .dstMemoryType = CU_MEMORYTYPE_HOST,
                              .dstHost = host,
                              .WidthInBytes = 16,
                              .Height = 1,
                              .Depth = 1};
        GIVES(CUDA_ERROR_INVALID_CONTEXT, cuMemcpy3D_v2(&deep));
    }
    OK(cuCtxSetCurrent(ctx));
    OK(cuMemFree_v2(live));
}

static CUdeviceptr contested[400];
static _Atomic(unsigned) freed;
static void *free_all(void *ctx)
{
    OK(cuCtxSetCurrent(ctx));
    for (size_t i = 0; i < sizeof contested / sizeof *contested; i++)
        if (cuMemFree_v2(contested[i]) == CUDA_SUCCESS)
            atomic_fetch_add(&freed, 1);
    return NULL;
}

Test(frees, K32_racing_frees_of_one_pointer_succeed_once)
{
    pthread_t thread[3];
    const unsigned count = sizeof contested / sizeof *contested;
    for (unsigned i = 0; i < count; i++) {
        OK(cuMemAlloc_v2(&contested[i], i % 10 ? 512 : CHUNK));
        if (i % 2)
            OK(cuMemsetD8_v2(contested[i], 1, 512));
    }
    CUcontext ctx;
    OK(cuCtxGetCurrent(&ctx));
    for (int i = 0; i < 3; i++)
        pthread_create(&thread[i], NULL, free_all, ctx);
    for (int i = 0; i < 3; i++)
        pthread_join(thread[i], NULL);
    cr_assert_eq(atomic_load(&freed), count);
    cr_assert_eq(hr_stat_sum(HR_STAT_frees), count);
}

static _Atomic(unsigned) created;
static CUresult (*real_create)(CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long);
static CUresult counted_create(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *prop,
                               unsigned long long flags)
{
    atomic_fetch_add(&created, 1);
    return real_create(handle, bytes, prop, flags);
}

/* A job that allocates and frees in every step gets chunks that are there: the driver is asked in the first steps only. */
static void steps(bool in_order, unsigned count)
{
    CUstream s;
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    for (unsigned step = 0; step < count; step++) {
        CUdeviceptr p[3];
        for (int i = 0; i < 3; i++) {
            size_t bytes = (4 + 2 * (size_t)i) * MIB;
            OK(in_order ? cuMemAllocAsync(&p[i], bytes, s) : cuMemAlloc_v2(&p[i], bytes));
            OK(cuMemsetD8Async(p[i], (unsigned char)step, bytes, s));
        }
        for (int i = 0; i < 3; i++)
            OK(in_order ? cuMemFreeAsync(p[i], s) : cuMemFree_v2(p[i]));
        OK(cuStreamSynchronize(s));
    }
    OK(cuStreamDestroy_v2(s));
}
Test(frees, K43_what_is_freed_in_every_step_stays_at_hand)
{
    machine("h200,vram=128M,host=256M", "");
    for (int in_order = 0; in_order < 2; in_order++) {
        steps(in_order, 4);
        real_create = atomic_load(&hr_drv.cuMemCreate);
        atomic_store(&hr_drv.cuMemCreate, counted_create);
        steps(in_order, 50);
        atomic_store(&hr_drv.cuMemCreate, real_create);
        CHECK(atomic_load(&created) == 0, "%u chunks were made anew, %s", atomic_load(&created),
              in_order ? "in stream order" : "without an order");
    }
}
