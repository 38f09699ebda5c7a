/* Stream-ordered memory and its pools. */
#include "kernels.h"
#include "sim_test.h"
#include "strict.h"

#define PARAMS(...) ((void *[]){__VA_ARGS__})

static CUstream other_stream(void)
{
    CUstream s;
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    return s;
}

static CUmemoryPool default_pool(void)
{
    CUmemoryPool pool;
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    return pool;
}

static cuuint64_t amount(CUmemoryPool pool, CUmemPool_attribute attribute)
{
    cuuint64_t value = 1;
    OK(cuMemPoolGetAttribute(pool, attribute, &value));
    return value;
}

static void set(CUmemoryPool pool, CUmemPool_attribute attribute, int value)
{
    OK(cuMemPoolSetAttribute(pool, attribute, &value));
}

static void set_amount(CUmemoryPool pool, CUmemPool_attribute attribute, cuuint64_t value)
{
    OK(cuMemPoolSetAttribute(pool, attribute, &value));
}

static CUmemPoolProps props_of(CUmemLocationType type, int id)
{
    return (CUmemPoolProps){.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = type, .id = id}};
}

static CUmemoryPool new_pool(size_t max_bytes)
{
    CUmemoryPool pool;
    CUmemPoolProps props = props_of(CU_MEM_LOCATION_TYPE_DEVICE, 0);
    props.maxSize = max_bytes;
    OK(cuMemPoolCreate(&pool, &props));
    return pool;
}

#define RESERVED CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT
#define USED CU_MEMPOOL_ATTR_USED_MEM_CURRENT

Test(pool, memory_is_used_in_the_streams_order)
{
    machine_with_context("h200,vram=64M");
    CUmodule kernels;
    CUfunction fill;
    CUstream s = other_stream();
    OK(cuModuleLoadData(&kernels, kernels_ptx));
    OK(cuModuleGetFunction(&fill, kernels, "fill"));
    static const size_t sizes[] = {4, 4000, MIB, MIB + 4, 5 * MIB};
    for (int i = 0; i < 5; i++) {
        CUdeviceptr p;
        unsigned value = 0x1234567u + (unsigned)i, n = (unsigned)sizes[i] / 4, last = 0;
        OK(cuMemAllocAsync(&p, sizes[i], s));
        OK(cuLaunchKernel(fill, (n + 127) / 128, 1, 1, 128, 1, 1, 0, s, PARAMS(&p, &value, &n), NULL));
        OK(cuMemcpyDtoHAsync_v2(&last, p + (n - 1) * 4, 4, s));
        OK(cuMemFreeAsync(p, s));
        OK(cuStreamSynchronize(s));
        cr_assert_eq(last, value);
    }
    cr_assert_eq(amount(default_pool(), USED), 0);
    cr_assert_eq(amount(default_pool(), RESERVED), 0); /* nothing is kept by default */
}

Test(pool, small_allocations_share_pages_and_are_aligned)
{
    machine_with_context("h200,vram=64M");
    CUdeviceptr p[64];
    size_t before = free_vram();
    for (int i = 0; i < 64; i++) {
        OK(cuMemAllocAsync(&p[i], 100, NULL));
        cr_assert_eq(p[i] % 512, 0);
        for (int k = 0; k < i; k++)
            cr_assert_neq(p[i], p[k]);
    }
    cr_assert_eq(before - free_vram(), PAGE);
    cr_assert_eq(amount(default_pool(), USED), 64 * 512);
    for (int i = 0; i < 64; i++)
        OK(cuMemFreeAsync(p[i], NULL));
    cr_assert_eq(before - free_vram(), PAGE);
    OK(cuCtxSynchronize());
    cr_assert_eq(before, free_vram());
}

Test(pool, a_stream_reuses_what_it_freed_without_waiting)
{
    machine_with_context("h200,vram=64M");
    struct gate gate = GATE_INIT;
    CUstream s = other_stream();
    CUdeviceptr p, q, r;
    OK(cuLaunchHostFunc(s, gate_wait, &gate));
    OK(cuMemAllocAsync(&p, 4 * MIB, s));
    OK(cuMemFreeAsync(p, s));
    OK(cuMemAllocAsync(&q, 2 * MIB, s));
    OK(cuMemAllocAsync(&r, 2 * MIB, s));
    cr_assert_eq(q, p);
    cr_assert_eq(r, p + 2 * MIB);
    cr_assert_eq(amount(default_pool(), RESERVED), 4 * MIB);
    gate_open(&gate);
    OK(cuMemFreeAsync(r, s));
    OK(cuMemFreeAsync(q, s));
    OK(cuMemAllocAsync(&p, 4 * MIB, s)); /* its halves grew together again */
    cr_assert_eq(p, q);
    OK(cuMemFreeAsync(p, s));
    OK(cuStreamSynchronize(s));
}

Test(pool, another_stream_that_comes_after_the_free_reuses)
{
    machine_with_context("h200,vram=64M");
    struct gate gate = GATE_INIT;
    CUstream a = other_stream(), b = other_stream(), c = other_stream();
    CUevent event, relay;
    CUdeviceptr p, q, r;
    CUmemoryPool pool = default_pool();
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&relay, CU_EVENT_DISABLE_TIMING));
    OK(cuLaunchHostFunc(a, gate_wait, &gate));
    OK(cuMemAllocAsync(&p, 4 * MIB, a));
    OK(cuEventRecord(event, a)); /* before the free: tells nothing of it */
    OK(cuMemFreeAsync(p, a));
    OK(cuStreamWaitEvent(b, event, 0));
    OK(cuMemAllocAsync(&q, 4 * MIB, b));
    cr_assert_neq(p, q);
    OK(cuEventRecord(event, a));
    OK(cuStreamWaitEvent(c, event, 0));
    OK(cuEventRecord(relay, c)); /* through a third stream */
    OK(cuStreamWaitEvent(b, relay, 0));
    set(pool, CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, 0);
    OK(cuMemAllocAsync(&r, 4 * MIB, b));
    cr_assert_neq(p, r);
    OK(cuMemFreeAsync(r, c));
    set(pool, CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, 1);
    OK(cuMemAllocAsync(&r, 4 * MIB, b));
    cr_assert_eq(p, r);
    gate_open(&gate);
    OK(cuMemFreeAsync(q, b));
    OK(cuMemFreeAsync(r, b));
    OK(cuCtxSynchronize());
    cr_assert_eq(amount(pool, RESERVED), 0);
}

Test(pool, the_legacy_streams_rule_is_an_order_too)
{
    machine_with_context("h200,vram=64M");
    struct gate gate = GATE_INIT;
    CUstream a, b, c, apart = other_stream();
    CUdeviceptr p, q;
    OK(cuStreamCreate(&a, CU_STREAM_DEFAULT));
    OK(cuStreamCreate(&b, CU_STREAM_DEFAULT));
    OK(cuStreamCreate(&c, CU_STREAM_DEFAULT));
    OK(cuLaunchHostFunc(a, gate_wait, &gate));
    OK(cuMemAllocAsync(&p, 4 * MIB, a));
    OK(cuMemFreeAsync(p, a));
    OK(cuMemAllocAsync(&q, 4 * MIB, b)); /* two blocking streams: no order */
    cr_assert_neq(q, p);
    OK(cuMemFreeAsync(q, b));
    OK(cuMemAllocAsync(&q, 4 * MIB, apart));
    cr_assert_neq(q, p);
    OK(cuMemFreeAsync(q, apart));
    OK(cuMemAllocAsync(&q, 4 * MIB, CU_STREAM_LEGACY));
    cr_assert_eq(q, p);
    OK(cuMemFreeAsync(q, CU_STREAM_LEGACY));
    OK(cuMemAllocAsync(&p, 4 * MIB, c)); /* and back from the legacy stream */
    cr_assert_eq(q, p);
    gate_open(&gate);
    OK(cuCtxSynchronize());
}

Test(pool, a_free_that_is_over_can_be_reused_where_that_is_allowed)
{
    machine_with_context("h200,vram=64M");
    CUstream a = other_stream(), b = other_stream();
    CUmemoryPool pool = default_pool();
    CUdeviceptr p, q, r, kept;
    set_amount(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, UINT64_MAX);
    OK(cuMemAllocAsync(&kept, 4 * MIB, b));
    OK(cuMemAllocAsync(&p, 4 * MIB, a));
    OK(cuMemFreeAsync(p, a));
    while (cuStreamQuery(b) == CUDA_ERROR_NOT_READY) /* moves this thread's clock, and learns nothing of stream a */
        ;
    set(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, 0);
    OK(cuMemAllocAsync(&q, 4 * MIB, b));
    cr_assert_neq(p, q);
    set(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, 1);
    OK(cuMemAllocAsync(&r, 4 * MIB, b));
    cr_assert_eq(p, r);
    OK(cuMemFreeAsync(r, b));
    OK(cuStreamSynchronize(b)); /* what the host has waited for is anybody's, whatever the policies */
    set(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, 0);
    OK(cuMemAllocAsync(&r, 4 * MIB, a));
    cr_assert_eq(p, r);
}

Test(pool, a_stream_is_made_to_wait_only_when_memory_runs_out)
{
    machine_with_context("h200,vram=16M");
    struct gate gate = GATE_INIT;
    CUstream a = other_stream(), b = other_stream();
    CUmemoryPool pool = new_pool(4 * MIB);
    CUdeviceptr p, q;
    OK(cuLaunchHostFunc(a, gate_wait, &gate));
    OK(cuMemAllocFromPoolAsync(&p, 4 * MIB, pool, a));
    OK(cuMemFreeAsync(p, a));
    set(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 0);
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocFromPoolAsync(&q, 4 * MIB, pool, b));
    set(pool, CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 1);
    OK(cuMemAllocFromPoolAsync(&q, 4 * MIB, pool, b));
    cr_assert_eq(p, q);
    GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(b)); /* b waits for a now */
    gate_open(&gate);
    OK(cuStreamSynchronize(b));
    OK(cuMemFreeAsync(q, b));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocFromPoolAsync(&q, 5 * MIB, pool, b));
    OK(cuMemPoolDestroy(pool));
    OK(cuStreamSynchronize(b));
}

Test(pool, what_lies_beyond_the_threshold_goes_back_at_synchronisation)
{
    machine_with_context("h200,vram=64M");
    CUstream s = other_stream();
    CUmemoryPool pool = default_pool();
    CUdeviceptr p[4];
    CUevent event;
    size_t before = free_vram();
    set_amount(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 8 * MIB);
    cr_assert_eq(amount(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), 8 * MIB);
    for (int i = 0; i < 4; i++)
        OK(cuMemAllocAsync(&p[i], 4 * MIB, s));
    for (int i = 0; i < 4; i++)
        OK(cuMemFreeAsync(p[i], s));
    cr_assert_eq(before - free_vram(), 16 * MIB);
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(cuEventRecord(event, s));
    OK(cuEventSynchronize(event));
    cr_assert_eq(before - free_vram(), 8 * MIB);
    cr_assert_eq(amount(pool, RESERVED), 8 * MIB);
    cr_assert_eq(amount(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), 16 * MIB);
    cr_assert_eq(amount(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH), 16 * MIB);
    set_amount(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 0);
    set_amount(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0);
    cr_assert_eq(amount(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH), 8 * MIB);
    cr_assert_eq(amount(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH), 0);
    OK(cuMemPoolTrimTo(pool, 3 * MIB)); /* at least that much is kept */
    cr_assert_eq(amount(pool, RESERVED), 4 * MIB);
    OK(cuMemAllocAsync(&p[0], 4 * MIB, s));
    OK(cuMemPoolTrimTo(pool, 0));
    cr_assert_eq(amount(pool, RESERVED), 4 * MIB); /* in use */
    OK(cuMemFreeAsync(p[0], s));
    OK(cuStreamSynchronize(s));
    OK(cuMemPoolTrimTo(pool, 0));
    cr_assert_eq(free_vram(), before);
}

Test(pool, a_pool_of_one_kind_gives_way_to_another_when_memory_runs_out)
{
    machine_with_context("h200,vram=16M");
    CUstream s = other_stream();
    CUmemoryPool pool = default_pool();
    CUdeviceptr p, q;
    set_amount(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, UINT64_MAX);
    size_t all = free_vram() & ~(PAGE - 1);
    OK(cuMemAllocAsync(&p, all, s));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocAsync(&q, 1, s));
    OK(cuMemFreeAsync(p, s));
    OK(cuStreamSynchronize(s));
    OK(cuMemAllocFromPoolAsync(&q, all, new_pool(0), s));
    cr_assert_eq(amount(pool, RESERVED), 0);
}

Test(pool, memory_of_a_pool_can_be_freed_at_once)
{
    machine_with_context("h200,vram=64M");
    struct gate gate = GATE_INIT;
    CUstream s = other_stream();
    CUdeviceptr p, q;
    OK(cuMemAllocAsync(&p, 4 * MIB, s));
    OK(cuStreamSynchronize(s));
    OK(cuMemFree_v2(p));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(p));
    OK(cuMemAllocAsync(&q, 4 * MIB, other_stream()));
    cr_assert_eq(p, q);
    /* Before its stream got there: then the free comes behind it. */
    OK(cuLaunchHostFunc(s, gate_wait, &gate));
    OK(cuMemAllocAsync(&p, 4 * MIB, s));
    OK(cuMemFree_v2(p));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(p, s));
    gate_open(&gate);
    OK(cuStreamSynchronize(s));
    OK(cuMemFree_v2(q));
    cr_assert_eq(amount(default_pool(), USED), 0);
}

Test(pool, wrong_calls_are_refused)
{
    machine_with_context("h200,vram=64M,gpus=2");
    CUmemoryPool pool = default_pool(), own = new_pool(0), none;
    CUdeviceptr p, plain;
    int one = 1;
    cuuint64_t big = 1;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAllocAsync(NULL, 4, NULL));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAllocAsync(&p, 0, NULL));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocAsync(&p, UINT64_MAX, NULL));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuMemAllocAsync(&p, 4, (CUstream)0x1234));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAllocFromPoolAsync(&p, 4, (CUmemoryPool)0x1234, NULL));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(0x123450000, NULL));
    OK(cuMemFreeAsync(0, NULL));
    OK(cuMemAlloc_v2(&plain, 4096));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(plain, NULL));
    OK(cuMemAllocAsync(&p, 4096, NULL));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(p + 512, NULL));
    OK(cuMemFreeAsync(p, NULL));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(p, NULL));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolDestroy(pool));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &big));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &big));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolSetAttribute(pool, RESERVED, &big));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolSetAttribute(pool, (CUmemPool_attribute)99, &big));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolGetAttribute(pool, (CUmemPool_attribute)99, &one));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolGetAttribute(pool, USED, NULL));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolTrimTo((CUmemoryPool)0x1234, 0));
    GIVES(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetDefaultMemPool(&none, 2));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuDeviceSetMemPool(1, own)); /* not local */
    OK(cuMemPoolDestroy(own));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolDestroy(own));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuDeviceSetMemPool(0, own));
}

Test(pool, properties_are_checked)
{
    machine_with_context("h200,vram=64M");
    CUmemoryPool pool;
    CUmemPoolProps props = props_of(CU_MEM_LOCATION_TYPE_DEVICE, 0), wrong;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolCreate(NULL, &props));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolCreate(&pool, NULL));
    wrong = props_of(CU_MEM_LOCATION_TYPE_DEVICE, 1);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolCreate(&pool, &wrong));
    wrong = props_of(CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolCreate(&pool, &wrong));
    wrong = props_of(CU_MEM_LOCATION_TYPE_HOST_NUMA, 4000);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolCreate(&pool, &wrong));
    wrong = props;
    wrong.reserved[53] = 1;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolCreate(&pool, &wrong));
    wrong = props;
    wrong.allocType = CU_MEM_ALLOCATION_TYPE_INVALID;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolCreate(&pool, &wrong));
    wrong.allocType = CU_MEM_ALLOCATION_TYPE_MANAGED;
    GIVES(CUDA_ERROR_NOT_SUPPORTED, cuMemPoolCreate(&pool, &wrong));
    wrong = props;
    wrong.handleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
    GIVES(CUDA_ERROR_NOT_PERMITTED, cuMemPoolCreate(&pool, &wrong));
    wrong = props_of(CU_MEM_LOCATION_TYPE_HOST, 0);
    wrong.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolCreate(&pool, &wrong));
}

Test(pool, a_destroyed_pool_goes_when_its_memory_is_free)
{
    machine_with_context("h200,vram=64M");
    CUstream s = other_stream();
    size_t before = free_vram();
    CUmemoryPool pool = new_pool(0), current;
    CUdeviceptr p, q;
    unsigned value = 0;
    OK(cuDeviceSetMemPool(0, pool));
    OK(cuDeviceGetMemPool(&current, 0));
    cr_assert_eq(current, pool);
    OK(cuMemAllocAsync(&p, 4 * MIB, s));
    cr_assert_eq(amount(pool, RESERVED), 4 * MIB);
    OK(cuMemPoolDestroy(pool));
    OK(cuDeviceGetMemPool(&current, 0));
    cr_assert_eq(current, default_pool());
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAllocFromPoolAsync(&q, 4, pool, s));
    OK(cuMemsetD32Async(p, 77, MIB, s)); /* still there */
    OK(cuMemcpyDtoHAsync_v2(&value, p + 4 * MIB - 4, 4, s));
    OK(cuStreamSynchronize(s));
    cr_assert_eq(value, 77);
    cr_assert_eq(before - free_vram(), 4 * MIB);
    OK(cuMemFreeAsync(p, s));
    OK(cuStreamSynchronize(s));
    cr_assert_eq(before, free_vram());
}

Test(pool, host_memory_is_the_cpus_and_the_devices_where_access_is_given)
{
    machine_with_context("h200,vram=64M,host=64M");
    CUmemoryPool pool;
    CUmemPoolProps props = props_of(CU_MEM_LOCATION_TYPE_HOST_NUMA, 0);
    CUmemAccess_flags flags;
    CUmemAccessDesc access = access_of(0);
    CUdeviceptr p, d;
    unsigned type;
    OK(cuMemPoolCreate(&pool, &props));
    OK(cuMemPoolGetAccess(&flags, pool, &props.location));
    cr_assert_eq(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    OK(cuMemPoolGetAccess(&flags, pool, &access.location));
    cr_assert_eq(flags, CU_MEM_ACCESS_FLAGS_PROT_NONE);
    OK(cuMemAllocFromPoolAsync(&p, 3 * MIB, pool, NULL));
    OK(cuStreamSynchronize(NULL));
    unsigned *cpu = (unsigned *)(uintptr_t)p;
    cpu[5] = 55;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD32_v2(p, 1, 4)); /* no access */
    OK(cuMemAlloc_v2(&d, 4));
    OK(cuMemcpyHtoD_v2(d, cpu + 5, 4));
    OK(cuMemPoolSetAccess(pool, &access, 1));
    OK(cuMemcpyDtoD_v2(p + 24, d, 4));
    OK(cuCtxSynchronize());
    cr_assert_eq(cpu[6], 55);
    OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p));
    cr_assert_eq(type, CU_MEMORYTYPE_HOST);
    OK(cuMemFreeAsync(p, NULL));
    OK(cuMemPoolDestroy(pool));
    OK(cuCtxSynchronize());
}

Test(pool, other_devices_need_access)
{
    machine_with_context("h200,vram=64M,gpus=2");
    CUcontext second;
    CUdeviceptr p, there;
    CUmemoryPool pool = default_pool();
    CUmemAccessDesc access = access_of(1);
    CUmemAccess_flags flags;
    unsigned value = 0;
    OK(cuMemAllocAsync(&p, 4 * MIB, NULL));
    OK(cuMemsetD32_v2(p, 9, MIB));
    OK(cuCtxSynchronize());
    OK(cuCtxCreate_v2(&second, 0, 1));
    OK(cuMemAlloc_v2(&there, 4));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoD_v2(there, p, 4));
    OK(cuMemPoolSetAccess(pool, &access, 1));
    OK(cuMemPoolGetAccess(&flags, pool, &access.location));
    cr_assert_eq(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    OK(cuMemcpyDtoD_v2(there, p, 4));
    OK(cuMemcpyDtoH_v2(&value, there, 4));
    cr_assert_eq(value, 9);
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    OK(cuMemPoolSetAccess(pool, &access, 1));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoD_v2(there, p, 4));
    access.location.id = 0; /* its own cannot be taken away */
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolSetAccess(pool, &access, 1));
    access.location.id = 2;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolSetAccess(pool, &access, 1));
}

Test(pool, every_place_has_a_pool)
{
    machine_with_context("h200,vram=64M");
    CUmemoryPool pool, again, mine;
    CUmemLocation device = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    CUmemLocation host = {.type = CU_MEM_LOCATION_TYPE_HOST}, node = {.type = CU_MEM_LOCATION_TYPE_HOST_NUMA};
    CUmemPoolProps props = props_of(CU_MEM_LOCATION_TYPE_HOST, 0);
    OK(cuMemGetDefaultMemPool(&pool, &device, CU_MEM_ALLOCATION_TYPE_PINNED));
    cr_assert_eq(pool, default_pool());
    OK(cuMemGetDefaultMemPool(&pool, &host, CU_MEM_ALLOCATION_TYPE_PINNED));
    OK(cuMemGetDefaultMemPool(&again, &node, CU_MEM_ALLOCATION_TYPE_PINNED));
    cr_assert_neq(pool, again);
    OK(cuMemPoolCreate(&mine, &props));
    OK(cuMemSetMemPool(&host, CU_MEM_ALLOCATION_TYPE_PINNED, mine));
    OK(cuMemGetMemPool(&again, &host, CU_MEM_ALLOCATION_TYPE_PINNED));
    cr_assert_eq(again, mine);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemSetMemPool(&device, CU_MEM_ALLOCATION_TYPE_PINNED, mine));
    GIVES(CUDA_ERROR_NOT_SUPPORTED, cuMemGetMemPool(&again, &device, CU_MEM_ALLOCATION_TYPE_MANAGED));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemGetMemPool(&again, &device, CU_MEM_ALLOCATION_TYPE_INVALID));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemGetMemPool(&again, NULL, CU_MEM_ALLOCATION_TYPE_PINNED));
    OK(cuMemPoolDestroy(mine));
    OK(cuMemGetMemPool(&again, &host, CU_MEM_ALLOCATION_TYPE_PINNED));
    cr_assert_eq(again, pool);
}

Test(pool, pointers_tell_of_their_pool)
{
    machine_with_context("h200,vram=64M");
    CUdeviceptr p, base;
    CUmemoryPool pool;
    CUcontext owner;
    size_t bytes;
    unsigned legacy, on = 1;
    int device;
    OK(cuMemAllocAsync(&p, 5000, NULL));
    OK(cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, p + 7));
    cr_assert_eq(pool, default_pool());
    OK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, p));
    cr_assert_null(owner);
    OK(cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, p));
    cr_assert_eq(device, 0);
    OK(cuPointerGetAttribute(&legacy, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, p));
    cr_assert_eq(legacy, 0);
    OK(cuMemGetAddressRange_v2(&base, &bytes, p + 4999));
    cr_assert(base == p && bytes == 5000);
    GIVES(CUDA_ERROR_NOT_SUPPORTED, cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p));
    OK(cuMemFreeAsync(p, NULL)); /* from now on nobody may ask */
    GIVES(CUDA_ERROR_INVALID_VALUE, cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, p));
    GIVES(CUDA_ERROR_NOT_FOUND, cuMemGetAddressRange_v2(&base, &bytes, p));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD8_v2(p, 0, 4));
}

/* ---- what is undefined is found ---- */

static int frees_too_early(void)
{
    CUdeviceptr p;
    set_up();
    MUST(cuMemAllocAsync(&p, 4000, stream[0]));
    MUST(cuStreamSynchronize(stream[0]));
    put(p, stream[1]);
    MUST(cuMemFreeAsync(p, stream[0])); /* nothing orders the kernel before it */
    MUST(cuCtxSynchronize());
    return 0;
}

static int uses_too_early(void)
{
    CUdeviceptr p;
    static struct gate gate = GATE_INIT; /* it may be looked at after this has returned */
    set_up();
    MUST(cuLaunchHostFunc(stream[0], gate_wait, &gate));
    MUST(cuMemAllocAsync(&p, 4 * MIB, stream[0]));
    put(p, stream[1]); /* the allocation has not begun */
    CUresult r = cuStreamSynchronize(stream[1]);
    gate_open(&gate);
    return (int)r;
}

static int uses_small_after_free(void)
{
    CUdeviceptr p, q;
    set_up();
    MUST(cuMemAllocAsync(&p, 4000, stream[0]));
    MUST(cuMemAllocAsync(&q, 4000, stream[0]));
    MUST(cuMemFreeAsync(p, stream[0]));
    put(p, stream[0]);
    return (int)cuStreamSynchronize(stream[0]);
}

static int uses_large_after_free(void)
{
    CUdeviceptr p, q;
    CUmemoryPool pool;
    cuuint64_t all = UINT64_MAX;
    set_up();
    MUST(cuDeviceGetDefaultMemPool(&pool, 0));
    MUST(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
    MUST(cuMemAllocAsync(&p, 4 * MIB, stream[0]));
    MUST(cuMemAllocAsync(&q, 4 * MIB, stream[0]));
    MUST(cuMemFreeAsync(p, stream[0]));
    put(p + 4, stream[0]);
    return (int)cuStreamSynchronize(stream[0]);
}

static int overruns(void)
{
    CUdeviceptr p;
    set_up();
    MUST(cuMemAllocAsync(&p, 4 * MIB + 6, stream[0]));
    put8(p + 4 * MIB + 5, stream[0]);
    MUST(cuStreamSynchronize(stream[0]));
    put8(p + 4 * MIB + 6, stream[0]);
    return (int)cuStreamSynchronize(stream[0]);
}

/* Every kind of reuse, with kernels that use what is reused: nothing is to be found. */
static int reuses(void)
{
    CUevent event;
    CUdeviceptr p, q;
    set_up();
    MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    for (int i = 0; i < 100; i++) {
        size_t bytes = i % 3 ? 4000 : 3 * MIB;
        MUST(cuMemAllocAsync(&p, bytes, stream[i & 1]));
        put(p, stream[i & 1]);
        MUST(cuMemFreeAsync(p, stream[i & 1]));
        if (i % 5 == 0) {
            MUST(cuEventRecord(event, stream[i & 1]));
            MUST(cuStreamWaitEvent(stream[~i & 1], event, 0));
        }
        MUST(cuMemAllocAsync(&q, bytes, stream[~i & 1]));
        put(q, stream[~i & 1]);
        if (i % 7 == 0)
            MUST(cuStreamSynchronize(stream[~i & 1]));
        MUST(cuEventRecord(event, stream[~i & 1]));
        MUST(cuStreamWaitEvent(stream[i & 1], event, 0));
        MUST(cuMemFreeAsync(q, stream[i & 1]));
    }
    MUST(cuCtxSynchronize());
    MUST(cuMemFree_v2(memory));
    MUST(cuCtxDestroy_v2(context));
    return 0;
}

static int leaks_a_pool(void)
{
    CUmemoryPool pool;
    CUdeviceptr p;
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
    set_up();
    MUST(cuMemPoolCreate(&pool, &props));
    MUST(cuMemAllocFromPoolAsync(&p, 4 * MIB, pool, stream[0]));
    MUST(cuMemFree_v2(memory));
    MUST(cuCtxDestroy_v2(context));
    return 0;
}

SCENES({"frees_too_early", frees_too_early}, {"uses_too_early", uses_too_early},
       {"uses_small_after_free", uses_small_after_free}, {"uses_large_after_free", uses_large_after_free},
       {"overruns", overruns}, {"reuses", reuses}, {"leaks_a_pool", leaks_a_pool})

Test(pool, a_free_that_nothing_orders_is_a_race)
{
    finds("frees_too_early", "race", 0, "race", 1, WORDS("the free of 4000 bytes", "kernel put"));
}

Test(pool, a_use_before_the_allocation_is_an_illegal_access)
{
    finds("uses_too_early", "off", CUDA_ERROR_ILLEGAL_ADDRESS & 255, "use_before_map", 1,
          WORDS("kernel put", "its stream has not got yet"));
}

Test(pool, a_use_after_the_free_is_found)
{
    finds("uses_small_after_free", "redzone", CUDA_ERROR_ILLEGAL_ADDRESS & 255, "use_after_free", 1,
          WORDS("use after free"));
    finds("uses_large_after_free", "off", CUDA_ERROR_ILLEGAL_ADDRESS & 255, "use_after_free", 1,
          WORDS("use after free"));
}

Test(pool, a_use_past_the_end_is_found)
{
    finds("overruns", "redzone", CUDA_ERROR_ILLEGAL_ADDRESS & 255, "no_memory", 0, WORDS("kernel put8"));
}

Test(pool, reuse_is_no_race)
{
    finds_nothing("reuses", "race,redzone,leak");
}

Test(pool, what_was_not_freed_is_told)
{
    finds("leaks_a_pool", "leak", 0, "leak", 2, WORDS("4194304 bytes in a pool", "a memory pool with"));
}
