/* Green contexts as views, and events of whole contexts. */
#include "sim_test.h"

static CUdevResource whole(void)
{
    CUdevResource r;
    OK(cuDeviceGetDevResource(0, &r, CU_DEV_RESOURCE_TYPE_SM));
    return r;
}

static CUgreenCtx green(unsigned min_count)
{
    CUdevResource all = whole(), part;
    CUdevResourceDesc desc;
    CUgreenCtx g;
    unsigned groups = 1;
    OK(cuDevSmResourceSplitByCount(&part, &groups, &all, NULL, 0, min_count));
    OK(cuDevResourceGenerateDesc(&desc, &part, 1));
    OK(cuGreenCtxCreate(&g, desc, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    return g;
}

Test(green, multiprocessors_are_split)
{
    machine("h200,vram=64M");
    CUdevResource all = whole(), part[20], rest;
    unsigned groups = 0;
    cr_assert(all.sm.smCount == 132 && all.sm.minSmPartitionSize == 8 && all.sm.smCoscheduledAlignment == 8);
    OK(cuDevSmResourceSplitByCount(NULL, &groups, &all, NULL, 0, 30));
    cr_assert_eq(groups, 4); /* of 32 */
    groups = 3;
    OK(cuDevSmResourceSplitByCount(part, &groups, &all, &rest, 0, 30));
    cr_assert(groups == 3 && part[2].sm.smCount == 32 && rest.sm.smCount == 36);
    groups = 20;
    OK(cuDevSmResourceSplitByCount(part, &groups, &all, &rest, CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING, 7));
    cr_assert(groups == 16 && part[0].sm.smCount == 8 && rest.sm.smCount == 4);
    groups = 1;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuDevSmResourceSplitByCount(&rest, &groups, &part[0], NULL, 0, 4)); /* not again */
    GIVES(CUDA_ERROR_INVALID_VALUE, cuDevSmResourceSplitByCount(part, &groups, &all, NULL, 0, 133));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuDevSmResourceSplitByCount(part, NULL, &all, NULL, 0, 8));
    GIVES(CUDA_ERROR_INVALID_RESOURCE_TYPE, cuDeviceGetDevResource(0, &all, (CUdevResourceType)0));
    GIVES(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetDevResource(1, &all, CU_DEV_RESOURCE_TYPE_SM));
}

Test(green, descriptions_are_of_one_split)
{
    machine("h200,vram=64M,gpus=2");
    CUdevResource all = whole(), a[2], b[2], other;
    CUdevResourceDesc desc;
    CUgreenCtx g;
    unsigned groups = 2;
    OK(cuDevSmResourceSplitByCount(a, &groups, &all, NULL, 0, 16));
    OK(cuDevSmResourceSplitByCount(b, &groups, &all, NULL, 0, 16));
    OK(cuDevResourceGenerateDesc(&desc, a, 2));
    GIVES(CUDA_ERROR_INVALID_DEVICE, cuGreenCtxCreate(&g, desc, 2, CU_GREEN_CTX_DEFAULT_STREAM));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGreenCtxCreate(&g, desc, 1, CU_GREEN_CTX_DEFAULT_STREAM));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGreenCtxCreate(&g, desc, 0, 0));
    OK(cuGreenCtxCreate(&g, desc, 0, CU_GREEN_CTX_DEFAULT_STREAM));
    OK(cuGreenCtxGetDevResource(g, &other, CU_DEV_RESOURCE_TYPE_SM));
    cr_assert_eq(other.sm.smCount, 32);
    OK(cuGreenCtxDestroy(g));
    a[1] = b[0];
    GIVES(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, cuDevResourceGenerateDesc(&desc, a, 2));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuDevResourceGenerateDesc(&desc, a, 0));
}

Test(green, it_is_another_handle_of_the_primary_context)
{
    machine("h200,vram=64M");
    CUgreenCtx g = green(16), got;
    CUcontext view, primary, current;
    CUstream own, by_current;
    CUdeviceptr p;
    CUdevResource r;
    unsigned long long id, same;
    unsigned flags;
    int active, device;
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    cr_assert(active); /* it holds the primary context */
    OK(cuCtxFromGreenCtx(&view, g));
    OK(cuCtxSetCurrent(view));
    OK(cuCtxGetCurrent(&current));
    cr_assert_eq(current, view);
    OK(cuCtxGetDevice(&device));
    OK(cuCtxGetDevResource(view, &r, CU_DEV_RESOURCE_TYPE_SM));
    cr_assert_eq(r.sm.smCount, 16);
    OK(cuGreenCtxGetId(g, &id));
    OK(cuGreenCtxGetId(NULL, &same));
    cr_assert_eq(id, same);
    OK(cuMemAlloc_v2(&p, 4096));
    OK(cuGreenCtxStreamCreate(&own, g, CU_STREAM_NON_BLOCKING, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGreenCtxStreamCreate(&own, g, 0, 0));
    OK(cuStreamCreate(&by_current, 0));
    OK(cuStreamGetGreenCtx(by_current, &got));
    cr_assert_eq(got, g);
    OK(cuStreamGetCtx_v2(own, &primary, &got));
    cr_assert(got == g && primary != view);
    OK(cuStreamGetCtx(own, &current));
    cr_assert_eq(current, view);
    OK(cuMemsetD32Async(p, 5, 1024, own));
    OK(cuStreamSynchronize(own));
    OK(cuCtxSetCurrent(primary));
    unsigned value;
    OK(cuMemcpyDtoH_v2(&value, p, 4)); /* the same memory */
    cr_assert_eq(value, 5);
    OK(cuCtxGetDevResource(primary, &r, CU_DEV_RESOURCE_TYPE_SM));
    cr_assert_eq(r.sm.smCount, 132);
    CUstream plain;
    OK(cuStreamCreate(&plain, 0));
    OK(cuStreamGetGreenCtx(plain, &got));
    cr_assert_null(got);
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    OK(cuGreenCtxDestroy(g));
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuGreenCtxDestroy(g));
    GIVES(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuStreamSynchronize(own));
    GIVES(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuStreamDestroy_v2(own));
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxSetCurrent(view));
}

Test(green, events_stand_for_all_of_its_work)
{
    machine("h200,vram=64M");
    struct gate gate = GATE_INIT, other_gate = GATE_INIT;
    CUgreenCtx g = green(16);
    CUcontext view, primary;
    CUstream a, b, outside, later;
    CUevent event, order;
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    OK(cuCtxSetCurrent(primary));
    OK(cuCtxFromGreenCtx(&view, g));
    OK(cuGreenCtxStreamCreate(&a, g, CU_STREAM_NON_BLOCKING, 0));
    OK(cuGreenCtxStreamCreate(&b, g, CU_STREAM_NON_BLOCKING, 0));
    OK(cuStreamCreate(&outside, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&order, CU_EVENT_DISABLE_TIMING));
    OK(cuLaunchHostFunc(b, gate_wait, &gate));
    OK(cuGreenCtxRecordEvent(g, event));
    OK(cuStreamSynchronize(a));
    GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(event)); /* for stream b */
    gate_open(&gate);
    OK(cuEventSynchronize(event));
    /* What waits, and what does not. */
    OK(cuLaunchHostFunc(outside, gate_wait, &other_gate));
    OK(cuEventRecord(order, outside));
    OK(cuGreenCtxWaitEvent(g, order));
    OK(cuGreenCtxStreamCreate(&later, g, CU_STREAM_NON_BLOCKING, 0)); /* future work, too */
    GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(a));
    GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(later));
    OK(cuCtxRecordEvent(primary, event)); /* all of it, this stream as well */
    GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(event));
    gate_open(&other_gate);
    OK(cuEventSynchronize(event));
    OK(cuStreamSynchronize(later));
    OK(cuCtxWaitEvent(view, order));
    OK(cuCtxWaitEvent(primary, order));
    OK(cuCtxSynchronize());
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuGreenCtxRecordEvent((CUgreenCtx)0x123, event));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuGreenCtxRecordEvent(g, (CUevent)0x123));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuCtxWaitEvent(primary, (CUevent)0x123));
}
