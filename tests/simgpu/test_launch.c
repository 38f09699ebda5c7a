/* Launches with attributes, cooperative ones, the oldest ones, and stream memory operations. */
#include "kernels.h"
#include "sim_test.h"

#include <stdio.h>

/* Every block adds 1 to *count and waits until all have; then block 0 stores the count behind it. */
static const char barrier_ptx[] =
    /* clang-format off */
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry barrier(.param .u64 barrier_count)\n"
    "{\n"
    "    .reg .pred %p<4>;\n"
    "    .reg .b32 %r<8>;\n"
    "    .reg .b64 %rd<2>;\n"
    "    ld.param.u64 %rd1, [barrier_count];\n"
    "    mov.u32 %r1, %tid.x;\n"
    "    mov.u32 %r2, %nctaid.x;\n"
    "    mov.u32 %r3, %ctaid.x;\n"
    "    setp.ne.u32 %p1, %r1, 0;\n"
    "    @%p1 bra JOIN;\n"
    "    membar.gl;\n"
    "    atom.global.add.u32 %r4, [%rd1], 1;\n"
    "WAIT:\n"
    "    ld.volatile.global.u32 %r5, [%rd1];\n"
    "    setp.lt.u32 %p2, %r5, %r2;\n"
    "    @%p2 bra WAIT;\n"
    "    membar.gl;\n"
    "    setp.ne.u32 %p3, %r3, 0;\n"
    "    @%p3 bra JOIN;\n"
    "    st.global.u32 [%rd1+4], %r5;\n"
    "JOIN:\n"
    "    bar.sync 0;\n"
    "    ret;\n"
    "}\n";
/* clang-format on */

static CUfunction function(const char *text, const char *name)
{
    CUmodule module;
    CUfunction f;
    OK(cuModuleLoadData(&module, text));
    OK(cuModuleGetFunction(&f, module, name));
    return f;
}

static volatile unsigned *pinned(void)
{
    void *p;
    OK(cuMemAllocHost_v2(&p, 64));
    memset(p, 0, 64);
    return p;
}

static void store(volatile unsigned *at, unsigned value)
{
    __atomic_store_n(at, value, __ATOMIC_SEQ_CST);
}

static CUresult ex(CUfunction f, CUlaunchAttribute *attributes, unsigned count, CUstream stream, void **params)
{
    CUlaunchConfig config = {.gridDimX = 2,
                             .gridDimY = 1,
                             .gridDimZ = 1,
                             .blockDimX = 32,
                             .blockDimY = 1,
                             .blockDimZ = 1,
                             .hStream = stream,
                             .attrs = attributes,
                             .numAttrs = count};
    return cuLaunchKernelEx(&config, f, params, NULL);
}

Test(launch, attributes_that_are_hints_are_taken)
{
    machine_with_context("h200,vram=64M");
    CUfunction f = function(kernels_ptx, "fill");
    CUdeviceptr p;
    unsigned value = 9, n = 64, got;
    OK(cuMemAlloc_v2(&p, 4096));
    void *params[] = {&p, &value, &n};
    CUlaunchAttribute a[] = {
        {.id = CU_LAUNCH_ATTRIBUTE_IGNORE},
        {.id = CU_LAUNCH_ATTRIBUTE_PRIORITY, .value.priority = -3},
        {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, .value.clusterDim = {1, 1, 1}},
        {.id = CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION, .value.preferredClusterDim = {1, 1, 1}},
        {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE,
         .value.clusterSchedulingPolicyPreference = CU_CLUSTER_SCHEDULING_POLICY_SPREAD},
        {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
         .value.programmaticStreamSerializationAllowed = 1},
        {.id = CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN, .value.memSyncDomain = CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE},
        {.id = CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP, .value.memSyncDomainMap = {0, 3}},
        {.id = CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, .value.sharedMemCarveout = 50},
        {.id = CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING, .value.nvlinkUtilCentricScheduling = 1},
        {.id = CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW,
         .value.accessPolicyWindow = {.base_ptr = NULL,
                                      .num_bytes = 4096,
                                      .hitRatio = 0.5f,
                                      .hitProp = CU_ACCESS_PROPERTY_PERSISTING,
                                      .missProp = CU_ACCESS_PROPERTY_STREAMING}},
    };
    OK(ex(f, a, sizeof a / sizeof a[0], NULL, params));
    OK(cuMemcpyDtoH_v2(&got, p + 252, 4));
    cr_assert_eq(got, 9);
    CUlaunchConfig config = {
        .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 64, .blockDimY = 1, .blockDimZ = 1};
    value = 11;
    OK(cuLaunchKernelEx_ptsz(&config, f, params, NULL)); /* the thread's own stream */
    OK(cuMemcpyDtoH_v2_ptds(&got, p + 252, 4));
    cr_assert_eq(got, 11);
}

Test(launch, attributes_that_cannot_be_honoured_are_refused)
{
    machine_with_context("h200,vram=64M");
    CUfunction f = function(kernels_ptx, "stop");
    CUlaunchAttribute a = {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, .value.clusterDim = {2, 1, 1}};
    GIVES(CUDA_ERROR_NOT_SUPPORTED, ex(f, &a, 1, NULL, NULL));
    a.value.clusterDim.x = 3; /* does not divide the grid */
    GIVES(CUDA_ERROR_INVALID_CLUSTER_SIZE, ex(f, &a, 1, NULL, NULL));
    static const int unknown[] = {CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY,
                                  CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE, 15, 99};
    for (int i = 0; i < 4; i++) {
        a = (CUlaunchAttribute){.id = (CUlaunchAttributeID)unknown[i]};
        GIVES(CUDA_ERROR_INVALID_VALUE, ex(f, &a, 1, NULL, NULL));
    }
    a = (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP, .value.memSyncDomainMap = {0, 4}};
    GIVES(CUDA_ERROR_INVALID_VALUE, ex(f, &a, 1, NULL, NULL));
    a = (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, .value.sharedMemCarveout = 101};
    GIVES(CUDA_ERROR_INVALID_VALUE, ex(f, &a, 1, NULL, NULL));
    GIVES(CUDA_ERROR_INVALID_VALUE, ex(f, NULL, 1, NULL, NULL));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuLaunchKernelEx(NULL, f, NULL, NULL));
    CUevent timed;
    OK(cuEventCreate(&timed, 0));
    a = (CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT, .value.programmaticEvent = {timed, 0, 0}};
    GIVES(CUDA_ERROR_INVALID_VALUE, ex(f, &a, 1, NULL, NULL)); /* must not be timed */
    a.value.programmaticEvent.event = (CUevent)(uintptr_t)0x1230;
    GIVES(CUDA_ERROR_INVALID_HANDLE, ex(f, &a, 1, NULL, NULL));
    OK(cuCtxSynchronize()); /* nothing was launched */
}

Test(launch, events_of_a_launch_come_behind_its_kernel, .timeout = 60)
{
    machine_with_context("h200,vram=64M");
    volatile unsigned *flag = pinned();
    CUfunction f = function(kernels_ptx, "spin");
    CUstream s;
    CUevent e, whole;
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
    OK(cuEventCreate(&whole, CU_EVENT_DISABLE_TIMING));
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)flag, out = 0, extra = 0;
    void *params[] = {&at, &out, &extra};
    CUlaunchAttribute a[2] = {
        {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT, .value.programmaticEvent = {e, 0, 1}},
        {.id = CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT, .value.launchCompletionEvent = {whole, 0}}};
    OK(ex(f, a, 2, s, params));
    GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(e));
    GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(whole));
    store(flag, 1);
    OK(cuEventSynchronize(e));
    OK(cuEventSynchronize(whole));
}

Test(launch, a_cooperative_grids_blocks_wait_for_each_other, .timeout = 60)
{
    machine_with_context("v100,vram=64M");
    CUfunction f = function(barrier_ptx, "barrier");
    CUdeviceptr count;
    unsigned got[2];
    int can = 0;
    OK(cuDeviceGetAttribute(&can, CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 0));
    cr_assert_eq(can, 1);
    OK(cuMemAlloc_v2(&count, 8));
    OK(cuMemsetD32_v2(count, 0, 2));
    void *params[] = {&count};
    OK(cuLaunchCooperativeKernel(f, 80, 1, 1, 64, 1, 1, 0, NULL, params));
    OK(cuMemcpyDtoH_v2(got, count, 8));
    cr_assert(got[0] == 80 && got[1] == 80);
    GIVES(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
          cuLaunchCooperativeKernel_ptsz(f, 80 * 32 + 1, 1, 1, 64, 1, 1, 0, NULL, params));
    OK(cuMemsetD32_v2(count, 0, 2));
    CUlaunchAttribute a = {.id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE, .value.cooperative = 1};
    OK(ex(f, &a, 1, NULL, params));
    OK(cuMemcpyDtoH_v2(got, count, 8));
    cr_assert(got[0] == 2 && got[1] == 2);
}

Test(launch, a_cooperative_grid_waits_until_all_of_it_fits, .timeout = 60)
{
    machine_with_context("v100,vram=64M");
    volatile unsigned *flag = pinned();
    CUfunction f = function(barrier_ptx, "barrier"), spin = function(kernels_ptx, "spin");
    CUstream a, b;
    CUdeviceptr count, at = (CUdeviceptr)(uintptr_t)flag, none = 0;
    unsigned got[2] = {9, 9};
    void *params[] = {&count}, *spin_params[] = {&at, &none, &none};
    OK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc_v2(&count, 8));
    OK(cuMemsetD32_v2(count, 0, 2));
    OK(cuCtxSynchronize());
    OK(cuLaunchKernel(spin, 1, 1, 1, 32, 1, 1, 0, a, spin_params, NULL)); /* holds a little of the device */
    OK(cuLaunchCooperativeKernel(f, 160, 1, 1, 1024, 1, 1, 48 * 1024, b,
                                 params));                              /* needs all of it, two blocks per SM */
    OK(cuLaunchCooperativeKernel(f, 40, 1, 1, 64, 1, 1, 0, a, params)); /* in the spinner's stream */
    GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(b));
    store(flag, 1);
    OK(cuStreamSynchronize(a));
    OK(cuStreamSynchronize(b));
    OK(cuMemcpyDtoH_v2(got, count, 8));
    cr_assert_eq(got[0], 200);
}

Test(launch, the_oldest_functions_launch_what_was_set_before)
{
    machine_with_context("h200,vram=64M");
    CUfunction f = function(kernels_ptx, "fill");
    CUdeviceptr p;
    CUstream s;
    unsigned got[64];
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc_v2(&p, 256));
    OK(cuMemsetD32_v2(p, 0, 64));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuLaunch(f)); /* nothing is set yet */
    OK(cuFuncSetBlockShape(f, 16, 1, 1));
    OK(cuFuncSetSharedSize(f, 128));
    OK(cuParamSetv(f, 0, &p, 8));
    OK(cuParamSeti(f, 8, 77));
    OK(cuParamSeti(f, 12, 64));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuLaunch(f)); /* the parameters' size is missing */
    OK(cuParamSetSize(f, 16));
    OK(cuLaunch(f));
    OK(cuMemcpyDtoH_v2(got, p, 256));
    cr_assert(got[15] == 77 && got[16] == 0);
    OK(cuLaunchGrid(f, 2, 1));
    OK(cuCtxSynchronize());
    OK(cuParamSetf(f, 8, 1.0f));
    OK(cuLaunchGridAsync(f, 1, 1, s));
    OK(cuStreamSynchronize(s));
    OK(cuMemcpyDtoH_v2(got, p, 256));
    cr_assert(got[15] == 0x3f800000 && got[16] == 77 && got[31] == 77 && got[32] == 0);
    unsigned value = 5, n = 64;
    void *params[] = {&p, &value, &n};
    OK(cuLaunchKernel(f, 1, 1, 1, 64, 1, 1, 0, NULL, params, NULL));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuLaunch(f)); /* that forgot it */
    GIVES(CUDA_ERROR_INVALID_VALUE, cuFuncSetBlockShape(f, 1025, 1, 1));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuParamSeti(f, 4094, 1));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuParamSetSize(f, 4097));
    OK(cuCtxSynchronize());
}

/* ---- stream memory operations ---- */

Test(launch, a_stream_waits_for_what_the_host_stores, .timeout = 60)
{
    machine_with_context("h200,vram=64M");
    volatile unsigned *flag = pinned();
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)flag;
    CUstream s;
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuStreamWaitValue32_v2(s, at, 3, CU_STREAM_WAIT_VALUE_EQ));
    OK(cuStreamWriteValue32_v2(s, at + 8, 21, 0));
    store(flag, 2);
    GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(s));
    cr_assert_eq(flag[2], 0);
    store(flag, 3);
    OK(cuStreamSynchronize(s));
    cr_assert_eq(flag[2], 21);
}

Test(launch, comparisons_of_waits_are_as_documented)
{
    machine_with_context("h200,vram=64M");
    CUdeviceptr d;
    CUstream s;
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc_v2(&d, 64));
    OK(cuStreamWriteValue64_v2(s, d, UINT64_C(0x80000000fffffffe), 0));
    OK(cuStreamWaitValue32_v2(s, d, 0xfffffff0, CU_STREAM_WAIT_VALUE_GEQ)); /* cyclic, and of the low half */
    OK(cuStreamWaitValue32_v2(s, d, 2, CU_STREAM_WAIT_VALUE_AND));
    OK(cuStreamWaitValue32_v2(s, d, 0, CU_STREAM_WAIT_VALUE_NOR)); /* bit 0 is clear in both */
    OK(cuStreamWaitValue64_v2(s, d, UINT64_C(0x8000000000000000), CU_STREAM_WAIT_VALUE_GEQ));
    OK(cuStreamWaitValue64_v2_ptsz(s, d, UINT64_C(0x80000000fffffffe), CU_STREAM_WAIT_VALUE_EQ));
    OK(cuStreamSynchronize(s));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamWaitValue32_v2(s, d + 2, 0, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamWaitValue64_v2(s, d + 4, 0, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamWaitValue32_v2(s, d + 64, 0, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamWaitValue32_v2(s, d, 0, 8));
    GIVES(CUDA_ERROR_NOT_SUPPORTED, cuStreamWaitValue32_v2(s, d, 0, CU_STREAM_WAIT_VALUE_FLUSH));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamWriteValue32_v2(s, d, 0, CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER));
}

Test(launch, two_streams_hand_values_to_each_other, .timeout = 60)
{
    machine_with_context("h200,vram=64M");
    CUdeviceptr d;
    CUstream s[2];
    unsigned got[2];
    OK(cuMemAlloc_v2(&d, 64));
    OK(cuMemsetD32_v2(d, 0, 16));
    OK(cuCtxSynchronize());
    for (int i = 0; i < 2; i++)
        OK(cuStreamCreate(&s[i], CU_STREAM_NON_BLOCKING));
    for (unsigned round = 1; round <= 20; round++) {
        for (unsigned i = 0; i < 2; i++) { /* 1 goes first, then 0 answers */
            CUstreamBatchMemOpParams p[3];
            memset(p, 0, sizeof p);
            p[0].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
            p[0].waitValue.address = d + 4 * (CUdeviceptr)(1 - i);
            p[0].waitValue.value = i ? round - 1 : round;
            p[1].memoryBarrier.operation = CU_STREAM_MEM_OP_BARRIER;
            p[2].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
            p[2].writeValue.address = d + 4 * (CUdeviceptr)i;
            p[2].writeValue.value = round;
            OK(cuStreamBatchMemOp_v2(s[i], 3, p, 0));
        }
    }
    OK(cuStreamSynchronize(s[0]));
    OK(cuStreamSynchronize(s[1]));
    OK(cuMemcpyDtoH_v2(got, d, 8));
    cr_assert(got[0] == 20 && got[1] == 20);
    CUstreamBatchMemOpParams bad;
    memset(&bad, 0, sizeof bad);
    bad.operation = (CUstreamBatchMemOpType)77;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamBatchMemOp_v2(s[0], 1, &bad, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamBatchMemOp_v2(s[0], 256, &bad, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamBatchMemOp_v2(s[0], 0, NULL, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamBatchMemOp_v2_ptsz(s[0], 1, &bad, 1));
    bad.operation = CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES;
    GIVES(CUDA_ERROR_NOT_SUPPORTED, cuStreamBatchMemOp_v2(s[0], 1, &bad, 0));
}

Test(launch, memory_that_is_gone_ends_a_wait_for_it, .timeout = 60)
{
    machine_with_context("h200,vram=64M");
    CUdeviceptr va = mapped_chunks(1);
    CUstream s;
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuMemsetD32_v2(va, 0, 1));
    OK(cuCtxSynchronize());
    OK(cuStreamWaitValue32_v2(s, va, 1, CU_STREAM_WAIT_VALUE_EQ));
    OK(cuMemUnmap(va, PAGE));
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuStreamSynchronize(s));
}

/* ---- attributes of streams ---- */

Test(launch, streams_keep_and_copy_their_attributes)
{
    machine_with_context("h200,vram=64M");
    CUstream a, b;
    CUstreamAttrValue v;
    int priority;
    OK(cuStreamCreateWithPriority(&a, CU_STREAM_NON_BLOCKING, -2));
    OK(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
    OK(cuStreamGetAttribute(a, CU_LAUNCH_ATTRIBUTE_PRIORITY, &v));
    cr_assert_eq(v.priority, -2);
    OK(cuStreamGetAttribute(a, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &v));
    cr_assert_eq(v.syncPolicy, CU_SYNC_POLICY_AUTO);
    v.syncPolicy = CU_SYNC_POLICY_YIELD;
    OK(cuStreamSetAttribute(a, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &v));
    v.accessPolicyWindow = (CUaccessPolicyWindow){.num_bytes = 8192,
                                                  .hitRatio = 1.0f,
                                                  .hitProp = CU_ACCESS_PROPERTY_PERSISTING,
                                                  .missProp = CU_ACCESS_PROPERTY_NORMAL};
    OK(cuStreamSetAttribute_ptsz(a, CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW, &v));
    v.accessPolicyWindow.hitRatio = 1.5f;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamSetAttribute(a, CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW, &v));
    OK(cuStreamCopyAttributes(b, a));
    OK(cuStreamGetAttribute_ptsz(b, CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW, &v));
    cr_assert_eq(v.accessPolicyWindow.num_bytes, 8192);
    OK(cuStreamGetAttribute(b, CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY, &v));
    cr_assert_eq(v.syncPolicy, CU_SYNC_POLICY_YIELD);
    OK(cuStreamGetPriority(b, &priority));
    cr_assert_eq(priority, -2);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamGetAttribute(a, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &v));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamSetAttribute(a, CU_LAUNCH_ATTRIBUTE_COOPERATIVE, &v));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamGetAttribute(a, CU_LAUNCH_ATTRIBUTE_PRIORITY, NULL));
}

Test(launch, settings_of_a_context_that_are_hints_are_told)
{
    machine_with_context("a100-sxm,vram=64M");
    CUsharedconfig config = CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE;
    CUexecAffinityParam affinity;
    OK(cuCtxSetSharedMemConfig(CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE));
    OK(cuCtxGetSharedMemConfig(&config));
    cr_assert_eq(config, CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE); /* fixed banks */
    GIVES(CUDA_ERROR_INVALID_VALUE, cuCtxSetSharedMemConfig((CUsharedconfig)5));
    OK(cuFuncSetSharedMemConfig(function(kernels_ptx, "stop"), CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE));
    OK(cuCtxResetPersistingL2Cache());
    OK(cuCtxGetExecAffinity(&affinity, CU_EXEC_AFFINITY_TYPE_SM_COUNT));
    cr_assert_eq(affinity.param.smCount.val, 108);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuCtxGetExecAffinity(&affinity, CU_EXEC_AFFINITY_TYPE_MAX));
    OK(cuFlushGPUDirectRDMAWrites(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                                  CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuFlushGPUDirectRDMAWrites(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                                                               (CUflushGPUDirectRDMAWritesScope)7));
}
