/* Stream-ordered memory: served from the window, and otherwise as natively. */
#include "pools.h"

#include "residency/peers.h"
#include "space/ledger.h"

TestSuite(pools, .timeout = 120);

/* --- the same answers as natively ---------------------------------------------------------------------------------- */

static CUmemoryPool wild_pool(void)
{
    return (CUmemoryPool)(uintptr_t)0x1234;
}

static void allocations(CUmemoryPool own, CUstream s)
{
    CUstream gone = new_stream();
    CUdeviceptr p = 0, plain;
    OK(cuStreamDestroy_v2(gone));
    NOTE(cuMemAllocAsync(NULL, 4, NULL));
    NOTE(cuMemAllocAsync(&p, 0, NULL));
    NOTE(cuMemAllocAsync(&p, SIZE_MAX, NULL));
    NOTE(cuMemAllocAsync(&p, 4, (CUstream)(uintptr_t)0x1234));
    NOTE(cuMemAllocAsync(&p, 4, gone));
    NOTE(cuMemAllocAsync_ptsz(&p, 4, gone));
    NOTE(cuMemAllocFromPoolAsync(&p, 4, wild_pool(), NULL));
    NOTE(cuMemAllocFromPoolAsync(&p, 4, NULL, NULL));
    NOTE(cuMemAllocFromPoolAsync(&p, 4, own, gone));
    NOTE(cuMemAllocFromPoolAsync(NULL, 4, own, s));
    NOTE(cuMemAllocFromPoolAsync(&p, 0, own, s));
    NOTE(cuMemAllocFromPoolAsync_ptsz(&p, SIZE_MAX, own, s));
    NOTE(cuMemFreeAsync(0x123450000, NULL));
    NOTE(cuMemFreeAsync(0, NULL));
    NOTE(cuMemFreeAsync(0, gone));
    NOTE(p == 0);
    NOTE(cuMemAllocAsync(&p, 4096, NULL));
    NOTE(cuMemFreeAsync(p + 512, NULL));
    NOTE(cuMemFreeAsync(p, gone));
    NOTE(cuMemFreeAsync(p, NULL));
    NOTE(cuMemFreeAsync(p, NULL));
    NOTE(cuMemFree_v2(p));
    NOTE(cuMemAllocAsync(&p, 5 * MIB, s));
    NOTE(cuMemFree_v2(p + 4));
    NOTE(cuStreamSynchronize(s));
    NOTE(cuMemFree_v2(p));
    NOTE(cuMemFree_v2(p));
    NOTE(cuMemFreeAsync(p, s));
    NOTE(cuMemAlloc_v2(&plain, 4096));
    NOTE(cuMemFree_v2(plain));
}

static void properties(CUmemoryPool pool, CUmemoryPool own)
{
    CUmemoryPool none = NULL, exportable;
    int one = 1, policy = 7;
    cuuint64_t big = 1;
    CUmemPoolProps props = props_on(0);
    NOTE(cuMemPoolCreate(NULL, &props));
    NOTE(cuMemPoolCreate(&none, NULL));
    props = props_on(2);
    NOTE(cuMemPoolCreate(&none, &props));
    props = props_on(0);
    props.reserved[53] = 1;
    NOTE(cuMemPoolCreate(&none, &props));
    props = props_on(0);
    props.allocType = CU_MEM_ALLOCATION_TYPE_INVALID;
    NOTE(cuMemPoolCreate(&none, &props));
    props = props_on(0);
    props.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    NOTE(cuMemPoolCreate(&exportable, &props));
    NOTE(cuMemPoolDestroy(pool));
    NOTE(cuMemPoolDestroy(wild_pool()));
    NOTE(cuMemPoolTrimTo(wild_pool(), 0));
    NOTE(cuMemPoolTrimTo(pool, 0));
    NOTE(cuMemPoolSetAttribute(pool, USED_HIGH, &big));
    NOTE(cuMemPoolSetAttribute(pool, RESERVED_HIGH, &big));
    NOTE(cuMemPoolSetAttribute(pool, RESERVED, &big));
    NOTE(cuMemPoolSetAttribute(pool, USED, &big));
    NOTE(cuMemPoolSetAttribute(pool, (CUmemPool_attribute)99, &big));
    NOTE(cuMemPoolSetAttribute(pool, USED_HIGH, NULL));
    NOTE(cuMemPoolGetAttribute(pool, (CUmemPool_attribute)99, &one));
    NOTE(cuMemPoolGetAttribute(pool, USED, NULL));
    NOTE(cuMemPoolGetAttribute(wild_pool(), USED, &big));
    for (int a = CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES;
         a <= CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES; a++) {
        NOTE(cuMemPoolGetAttribute(own, (CUmemPool_attribute)a, &policy));
        NOTE(policy);
        policy = 0;
        NOTE(cuMemPoolSetAttribute(own, (CUmemPool_attribute)a, &policy));
        NOTE(cuMemPoolGetAttribute(own, (CUmemPool_attribute)a, &policy));
        NOTE(policy);
    }
}

static void limits(CUmemoryPool own, CUstream s)
{
    CUmemoryPool limited = new_pool(8 * MIB);
    CUdeviceptr p = 0, q = 0;
    NOTE(amount(own, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD));
    set_amount(own, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 5 * MIB);
    NOTE(amount(own, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD));
    NOTE(cuMemAllocFromPoolAsync(&p, 9 * MIB, limited, s));
    NOTE(cuMemAllocFromPoolAsync(&p, 8 * MIB, limited, s));
    NOTE(cuMemAllocFromPoolAsync(&q, 2 * MIB, limited, s));
    NOTE(cuMemFreeAsync(p, s));
    NOTE(cuMemAllocFromPoolAsync(&q, 8 * MIB, limited, s));
    NOTE(amount(limited, USED));
    NOTE(cuMemFreeAsync(q, s));
}

static void access_to(CUmemoryPool own)
{
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_MAX;
    NOTE(cuMemPoolSetAccess(own, NULL, 1));
    NOTE(cuMemPoolSetAccess(own, &access, 0));
    NOTE(cuMemPoolSetAccess(own, &access, 1));
    NOTE(cuMemPoolGetAccess(&flags, own, &access.location));
    NOTE(flags);
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    NOTE(cuMemPoolSetAccess(own, &access, 1));
    NOTE(cuMemPoolGetAccess(&flags, own, &access.location));
    NOTE(flags);
    access.location.id = 0;
    NOTE(cuMemPoolSetAccess(own, &access, 1));
    access.location.id = 2;
    NOTE(cuMemPoolSetAccess(own, &access, 1));
}

static void who_is_current(CUmemoryPool pool, CUmemoryPool own, CUstream s)
{
    CUmemoryPool none = NULL;
    CUdeviceptr p = 0, q = 0;
    NOTE(cuDeviceGetDefaultMemPool(&none, 2));
    NOTE(cuDeviceSetMemPool(1, own));
    NOTE(cuDeviceSetMemPool(0, own));
    NOTE(cuDeviceGetMemPool(&none, 0));
    NOTE(none == own);
    NOTE(cuMemAllocAsync(&p, 3000, s));
    NOTE(amount(own, USED));
    NOTE(amount(pool, USED));
    CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    NOTE(cuMemSetMemPool(&here, CU_MEM_ALLOCATION_TYPE_PINNED, pool));
    NOTE(cuMemAllocAsync(&q, 3000, s));
    NOTE(amount(pool, USED));
    NOTE(cuMemGetMemPool(&none, &here, CU_MEM_ALLOCATION_TYPE_PINNED));
    NOTE(none == pool);
    CUmemPoolPtrExportData exported;
    NOTE(cuMemPoolExportPointer(&exported, p));
    NOTE(cuMemPoolDestroy(own));
    NOTE(cuMemPoolDestroy(own));
    NOTE(cuMemAllocFromPoolAsync(&q, 4, own, s));
    NOTE(cuMemsetD32Async(p, 77, 750, s));
    NOTE(cuStreamSynchronize(s));
    NOTE(word_at(p + 2996));
    NOTE(cuMemFreeAsync(p, s));
    CUcontext current;
    OK(cuCtxPopCurrent_v2(&current));
    NOTE(cuMemAllocAsync(&q, 4, NULL));
    NOTE(cuMemFreeAsync(q, NULL));
    NOTE(cuMemPoolTrimTo(pool, 0));
    OK(cuCtxPushCurrent_v2(current));
}

static void calls_of_all_kinds(void)
{
    machine("h200,vram=64M,gpus=2,host=512M", "");
    CUmemoryPool own = new_pool(0);
    CUstream s = new_stream();
    allocations(own, s);
    properties(default_pool(0), own);
    limits(own, s);
    access_to(own);
    who_is_current(default_pool(0), own, s);
}

Test(pools, answers_are_those_of_the_driver)
{
    was_safe(same_natively(calls_of_all_kinds));
}

static void pointer_queries(void)
{
    machine("h200,vram=64M,gpus=2,host=512M", "");
    CUmemoryPool own = new_pool(0), of;
    CUdeviceptr p[3];
    CUcontext there;
    OK(cuMemAllocAsync(&p[0], 100, NULL));
    OK(cuMemAllocFromPoolAsync(&p[1], 5 * MIB, own, NULL));
    OK(cuMemAlloc_v2(&p[2], 3000));
    OK(cuCtxSynchronize());
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < 3; i++) {
            static const CUpointer_attribute attributes[] = {
                CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS,
                CU_POINTER_ATTRIBUTE_IS_MANAGED,  CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                CU_POINTER_ATTRIBUTE_RANGE_SIZE,  CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
                CU_POINTER_ATTRIBUTE_ACCESS_FLAGS};
            for (size_t a = 0; a < sizeof attributes / sizeof *attributes; a++) {
                uint64_t value = 0;
                NOTE(cuPointerGetAttribute(&value, attributes[a], p[i] + 50));
                NOTE(value);
            }
            CUcontext of_memory = NULL;
            CUdeviceptr start = 0;
            size_t bytes = 0;
            NOTE(cuPointerGetAttribute(&of_memory, CU_POINTER_ATTRIBUTE_CONTEXT, p[i]));
            NOTE(of_memory == NULL);
            NOTE(cuPointerGetAttribute(&of, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, p[i]));
            NOTE(of == own);
            NOTE(of == default_pool(0));
            NOTE(cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, p[i] + 50));
            NOTE(start == p[i]);
            NOTE(cuMemGetAddressRange_v2(&start, &bytes, p[i] + 50));
            NOTE(start == p[i]);
            NOTE(bytes);
        }
        int on = 1;
        NOTE(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p[0]));
        NOTE(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_BUFFER_ID, p[0]));
        CUmemGenericAllocationHandle handle;
        NOTE(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)p[0]) == CUDA_SUCCESS);
        if (round == 0) { /* then as GPU 1 sees it: the pool of its own is its, the rest is not */
            OK(cuMemPoolSetAccess(own, &access, 1));
            OK(cuCtxCreate_v2(&there, 0, 1));
        } else if (round == 1) {
            OK(cuMemPoolDestroy(own));
        }
    }
}

Test(pools, pointer_queries_are_those_of_the_driver)
{
    free(same_natively(pointer_queries));
}

/* --- jobs ---------------------------------------------------------------------------------------------------------- */

#define BUFFERS 12
#define BYTES (6 * MIB)
#define WORDS ((uint32_t)(BYTES / 2048))

/* Buffers that pass from stream to stream, some of which are replaced in every round; three times what fits. */
static void a_job_on_streams(void)
{
    setenv("SIMGPU_CHECK", "race,redzone", 1);
    machine(notes->native ? "h200,vram=256M" : "h200,vram=32M,host=512M", "");
    CUstream s[3] = {new_stream(), new_stream(), NULL};
    CUdeviceptr p[BUFFERS];
    CUevent event;
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    for (int i = 0; i < BUFFERS; i++) {
        OK(cuMemAllocAsync(&p[i], BYTES, s[0]));
        OK(cuMemsetD32Async(p[i], (unsigned)i, BYTES / 4, s[0]));
    }
    for (int round = 0; round < 6; round++) {
        CUstream from = s[round % 3], to = s[(round + 1) % 3];
        OK(cuEventRecord(event, from));
        OK(cuStreamWaitEvent(to, event, 0));
        for (int i = 0; i < BUFFERS; i++) {
            CUdeviceptr next;
            OK(stride_add(p[i], 512, WORDS, 1 + (uint32_t)round, to));
            if ((i + round) % 3)
                continue;
            OK(cuMemAllocAsync(&next, BYTES, to)); /* its content moves to a new one, within the stream */
            OK(cuMemcpyDtoDAsync_v2(next, p[i], BYTES, to));
            OK(cuMemFreeAsync(p[i], to));
            p[i] = next;
        }
        CUdeviceptr scratch;
        for (int i = 0; i < 4; i++) {
            OK(cuMemAllocAsync(&scratch, BYTES / 2, to));
            OK(cuMemcpyDtoDAsync_v2(scratch, p[i], BYTES / 2, to));
            OK(stride_add(scratch, 512, WORDS / 2, 3, to));
            OK(cuMemcpyDtoDAsync_v2(p[i] + BYTES / 2, scratch, BYTES / 2, to));
            OK(cuMemFreeAsync(scratch, to));
        }
    }
    OK(cuCtxSynchronize());
    uint32_t *host = malloc(BYTES);
    for (int i = 0; i < BUFFERS; i++) {
        uint64_t sum = 0;
        OK(cuMemcpyDtoH_v2(host, p[i], BYTES));
        for (size_t k = 0; k < BYTES / 4; k++)
            sum = sum * 31 + host[k];
        NOTE(sum);
        OK(cuMemFreeAsync(p[i], s[0]));
    }
    OK(cuCtxSynchronize());
    NOTE(amount(default_pool(0), USED));
    NOTE(amount(default_pool(0), RESERVED));
    if (!notes->native) {
        hr_space_flush_thread(hr_thread_self());
        CHECK(hr_stat_sum(HR_STAT_moved_out_bytes) > 0 && hr_ledger_charged(0) == 0);
    }
    free(host);
}

Test(pools, K7_an_oversubscribed_job_gives_what_it_gives_natively)
{
    char *report = same_natively(a_job_on_streams);
    was_safe(report);
    cr_assert_eq(figure(report, "\"race"), 0, "%s", report);
    free(report);
}

/* --- pools of the driver's, captures ------------------------------------------------------------------------------- */

Test(pools, exportable_ones_are_the_drivers_and_are_accounted, .init = start)
{
    CUstream s = new_stream();
    CUmemPoolProps props = props_on(0);
    CUmemoryPool pool;
    CUdeviceptr p, mine;
    int fd = -1;
    props.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    OK(cuMemPoolCreate(&pool, &props));
    OK(cuMemPoolExportToShareableHandle(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    close(fd);
    size_t limit = hr_tier_vram_limit(0);
    OK(cuMemAlloc_v2(&mine, limit * CHUNK)); /* all of the VRAM */
    OK(cuMemsetD8_v2(mine, 5, limit * CHUNK));
    OK(cuMemAllocFromPoolAsync(&p, 16 * MIB, pool, s)); /* some of it leaves */
    cr_assert_not(hr_space_owns(p));
    cr_assert_eq(hr_tier_vram_limit(0), limit - 8);
    OK(cuMemsetD8Async(p, 1, 16 * MIB, s));
    cr_assert_eq(amount(pool, USED), 16 * MIB);
    cr_assert_eq(word_at(mine + limit * CHUNK - 4), 0x05050505);
    OK(cuMemFreeAsync(p, s));
    OK(cuStreamSynchronize(s));
    OK(cuMemPoolDestroy(pool));
    cr_assert_eq(hr_tier_vram_limit(0), limit);
}

Test(pools, captured_ones_are_nodes_of_the_graph, .init = start)
{
    CUstream s = new_stream();
    CUdeviceptr p = 0, served;
    CUgraph graph;
    OK(cuMemAllocAsync(&served, 4 * MIB, s));
    OK(hr_drv.cuStreamBeginCapture_v2(s, CU_STREAM_CAPTURE_MODE_RELAXED));
    OK(cuMemAllocAsync(&p, 4 * MIB, s));
    cr_assert(p && !hr_space_owns(p));
    OK(cuMemFreeAsync(p, s));
    OK(hr_drv.cuStreamEndCapture(s, &graph));
    size_t nodes = 0;
    OK(cuGraphGetNodes(graph, NULL, &nodes));
    cr_assert_eq(nodes, 2);
    OK(cuGraphDestroy(graph));
    OK(cuMemFreeAsync(served, s));
    OK(cuCtxSynchronize());
}

/* --- several GPUs -------------------------------------------------------------------------------------------------- */

static void reaching_a_pool(void)
{
    setenv("SIMGPU_CHECK", "race", 1);
    machine_with("hgx-h100,vram=64M,gpus=2,host=512M", "", 2);
    CUmemoryPool own;
    CUmemPoolProps props = props_on(0);
    CUdeviceptr p[4], q;
    uint64_t stride = 1;
    uint32_t n = 1000, a = 5;
    OK(cuMemPoolCreate(&own, &props));
    CUfunction f = function_on(1, "stride_add");
    OK(cuCtxSetCurrent(context[0]));
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    OK(cuMemAllocFromPoolAsync(&p[0], 20 * MIB, own, NULL)); /* mapped before the grant */
    OK(cuMemsetD8Async(p[0], 0, 20 * MIB, NULL));
    OK(cuMemPoolSetAccess(own, &access, 1));
    for (int i = 1; i < 4; i++) {
        OK(cuMemAllocFromPoolAsync(&p[i], 20 * MIB, own, NULL));
        OK(cuMemsetD8Async(p[i], 0, 20 * MIB, NULL));
    }
    OK(cuCtxSynchronize());
    CHECK(hr_stat_sum(HR_STAT_moved_out_bytes) > 0 || hr_stat_sum(HR_STAT_fresh_host_bytes) > 0);
    OK(cuCtxSetCurrent(context[1]));
    for (int i = 0; i < 4; i++)
        OK(cuLaunchKernel(f, 8, 1, 1, 128, 1, 1, 0, NULL, (void *[]){&p[i], &stride, &n, &a}, NULL));
    OK(cuCtxSynchronize());
    /* the pool of another GPU, in the order of a stream of this one */
    OK(cuMemAllocFromPoolAsync(&q, MIB * 4, own, NULL));
    OK(cuLaunchKernel(f, 8, 1, 1, 128, 1, 1, 0, NULL, (void *[]){&q, &stride, &n, &a}, NULL));
    OK(cuMemFreeAsync(q, NULL));
    OK(cuCtxSetCurrent(context[0]));
    for (int i = 0; i < 4; i++)
        CHECK(word_at(p[i] + 999 * 4) == 5);
    OK(cuCtxSynchronize());
    CHECK(hr_peers_reach(1, 0) && !hr_peers_enabled_by_contexts(1, 0));
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    OK(cuMemPoolSetAccess(own, &access, 1));
    CHECK(!hr_peers_reach(1, 0));
}

Test(pools, others_gpus_reach_a_pool_that_they_are_given)
{
    char *report = apart(reaching_a_pool);
    was_safe(report);
    cr_assert_eq(figure(report, "\"race"), 0, "%s", report);
    free(report);
}

/* Nothing of the window can be backed there: its memory is the driver's, until there is a context. */
static void using_a_pool_of_a_gpu_without_a_context(void)
{
    machine("hgx-h100,vram=64M,gpus=2,host=512M", "");
    CUmemoryPool own;
    CUmemPoolProps props = props_on(1);
    CUdeviceptr p, q;
    CUcontext first, other;
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUstream s = new_stream();
    OK(cuMemPoolCreate(&own, &props));
    OK(cuMemPoolSetAccess(own, &access, 1));
    NOTE(cuMemAllocFromPoolAsync(&p, 4 * MIB, own, s));
    NOTE(cuMemsetD32Async(p, 7, MIB, s));
    OK(cuStreamSynchronize(s));
    NOTE(word_at(p + 3996));
    NOTE(amount(own, USED));
    NOTE(amount(own, RESERVED) >= 4 * MIB);
    OK(cuCtxGetCurrent(&first));
    OK(cuCtxCreate_v2(&other, 0, 1));
    OK(cuCtxSetCurrent(first));
    NOTE(cuMemAllocFromPoolAsync(&q, 4 * MIB, own, s));
    NOTE(cuMemcpyDtoDAsync_v2(q, p, 4 * MIB, s));
    OK(cuStreamSynchronize(s));
    NOTE(word_at(q + 3996));
    NOTE(amount(own, USED));
    NOTE(cuMemFreeAsync(p, s));
    NOTE(cuMemFreeAsync(q, s));
    OK(cuStreamSynchronize(s));
    NOTE(amount(own, USED));
    NOTE(cuMemPoolDestroy(own));
}

Test(pools, a_gpu_without_a_context_has_pools_too)
{
    was_safe(same_natively(using_a_pool_of_a_gpu_without_a_context));
}

/* Without a context there nothing of it moves any more: it is used where it lies. */
static void a_pool_outlives_its_gpus_context(void)
{
    enum { OUTLIVING = 6 };
    machine_with("hgx-h100,vram=64M,gpus=2,host=512M", "", 2);
    CUmemoryPool own;
    CUmemPoolProps props = props_on(1);
    CUdeviceptr p[OUTLIVING];
    uint64_t stride = 1;
    uint32_t n = 1000, a = 5;
    CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0},
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    OK(cuMemPoolCreate(&own, &props));
    OK(cuMemPoolSetAccess(own, &access, 1));
    OK(cuCtxSetCurrent(context[1]));
    for (int i = 0; i < OUTLIVING; i++) {
        OK(cuMemAllocFromPoolAsync(&p[i], 20 * MIB, own, NULL));
        OK(cuMemsetD32Async(p[i], (unsigned)i, 5 * MIB, NULL));
    }
    OK(cuCtxSynchronize());
    OK(cuCtxDestroy_v2(context[1]));
    CUfunction f = function_on(0, "stride_add");
    OK(cuCtxSetCurrent(context[0]));
    for (int i = 0; i < OUTLIVING; i++) {
        OK(cuLaunchKernel(f, 8, 1, 1, 128, 1, 1, 0, NULL, (void *[]){&p[i], &stride, &n, &a}, NULL));
        OK(cuCtxSynchronize());
        CHECK(word_at(p[i] + 999 * 4) == (uint32_t)i + 5);
        CHECK(word_at(p[i] + 1000 * 4) == (uint32_t)i);
        OK(cuMemFreeAsync(p[i], NULL));
    }
    OK(cuMemPoolDestroy(own));
}

Test(pools, a_pool_is_used_after_its_gpus_context)
{
    was_safe(apart(a_pool_outlives_its_gpus_context));
}
