#include "sim_test.h"

#include <stdio.h>

Test(context, nothing_works_before_cuInit_but_names_and_look_ups)
{
    CUcontext c;
    CUdeviceptr p;
    int n;
    const char *text;
    void *f;
    GIVES(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGetCount(&n));
    GIVES(CUDA_ERROR_NOT_INITIALIZED, cuCtxCreate_v2(&c, 0, 0));
    GIVES(CUDA_ERROR_NOT_INITIALIZED, cuMemAlloc_v2(&p, 4));
    GIVES(CUDA_ERROR_NOT_INITIALIZED, cuCtxGetCurrent(&c));
    GIVES(CUDA_ERROR_NOT_INITIALIZED, cuGraphCreate(NULL, 0)); /* also what is not supported */
    OK(cuDriverGetVersion(&n));
    cr_assert_eq(n, 13000);
    OK(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text));
    cr_assert_str_eq(text, "CUDA_ERROR_OUT_OF_MEMORY");
    OK(cuGetErrorString(CUDA_ERROR_OUT_OF_MEMORY, &text));
    cr_assert_str_eq(text, "out of memory");
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGetErrorName((CUresult)123456, &text));
    cr_assert_null(text);
    OK(cuGetProcAddress("cuInit", &f, 2000, 0));
    cr_assert_eq(f, (void *)cuInit);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuInit(1));
}

Test(context, without_a_context_calls_say_so)
{
    machine("h200,vram=64M");
    CUdeviceptr p;
    CUcontext c = (CUcontext)(uintptr_t)8;
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuMemAlloc_v2(&p, 4));
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuStreamQuery(NULL));
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxSynchronize());
    OK(cuCtxGetCurrent(&c));
    cr_assert_null(c);
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxPopCurrent_v2(&c));
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxPushCurrent_v2((CUcontext)(uintptr_t)0x10));
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxSetCurrent((CUcontext)(uintptr_t)0x10));
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxDestroy_v2(NULL));
    GIVES(CUDA_ERROR_INVALID_DEVICE, cuCtxCreate_v2(&c, 0, 1));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuCtxCreate_v2(&c, 0x1000, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuCtxCreate_v2(NULL, 0, 0));
}

Test(context, the_stack_of_current_contexts_is_a_stack)
{
    CUcontext a = machine_with_context("h200,vram=64M,gpus=2"), b, got;
    CUdevice device;
    OK(cuCtxCreate_v2(&b, CU_CTX_SCHED_BLOCKING_SYNC, 1));
    OK(cuCtxGetDevice(&device));
    cr_assert_eq(device, 1);
    unsigned flags, version;
    OK(cuCtxGetFlags(&flags));
    cr_assert_eq(flags, CU_CTX_SCHED_BLOCKING_SYNC);
    OK(cuCtxGetApiVersion(b, &version));
    cr_assert_eq(version, 3020);
    unsigned long long id_a, id_b;
    OK(cuCtxGetId(a, &id_a));
    OK(cuCtxGetId(NULL, &id_b));
    cr_assert_neq(id_a, id_b);
    OK(cuCtxPopCurrent_v2(&got));
    cr_assert_eq(got, b);
    OK(cuCtxGetCurrent(&got));
    cr_assert_eq(got, a);
    OK(cuCtxPushCurrent_v2(b));
    OK(cuCtxSetCurrent(NULL)); /* pops */
    OK(cuCtxGetCurrent(&got));
    cr_assert_eq(got, a);
    OK(cuCtxDestroy_v2(a)); /* current here, so it is popped as well */
    OK(cuCtxGetCurrent(&got));
    cr_assert_null(got);
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxDestroy_v2(a));
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxSetCurrent(a));
}

static void *destroys(void *context)
{
    OK(cuCtxDestroy_v2(context));
    return NULL;
}

Test(context, a_context_destroyed_elsewhere_is_noticed)
{
    CUcontext c = machine_with_context("h200,vram=64M");
    pthread_t thread;
    CUdeviceptr p;
    pthread_create(&thread, NULL, destroys, c);
    pthread_join(thread, NULL);
    GIVES(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemAlloc_v2(&p, 4));
    GIVES(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuCtxSynchronize());
}

Test(context, the_primary_context_counts_its_users)
{
    machine("h200,vram=64M");
    CUcontext a, b;
    CUdeviceptr p;
    unsigned flags;
    int active;
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease_v2(0));
    OK(cuDevicePrimaryCtxSetFlags_v2(0, CU_CTX_SCHED_SPIN));
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    cr_assert(flags == CU_CTX_SCHED_SPIN && !active);
    OK(cuDevicePrimaryCtxRetain(&a, 0));
    OK(cuDevicePrimaryCtxRetain(&b, 0));
    cr_assert_eq(a, b);
    OK(cuCtxSetCurrent(a));
    OK(cuMemAlloc_v2(&p, MIB));
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxDestroy_v2(a)); /* not that way */
    OK(cuDevicePrimaryCtxRelease_v2(0));
    OK(cuMemFree_v2(p));
    OK(cuDevicePrimaryCtxRelease_v2(0));
    OK(cuDevicePrimaryCtxGetState(0, &flags, &active));
    cr_assert_not(active);
    GIVES(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemAlloc_v2(&p, MIB));
    OK(cuDevicePrimaryCtxRetain(&b, 0));
    OK(cuMemAlloc_v2(&p, MIB)); /* the same handle lives again */
    OK(cuDevicePrimaryCtxReset_v2(0));
    GIVES(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemFree_v2(p));
    GIVES(CUDA_ERROR_INVALID_DEVICE, cuDevicePrimaryCtxRetain(&a, 2));
}

Test(context, limits_and_preferences_are_kept)
{
    machine_with_context("v100,vram=64M");
    size_t value;
    int least = 9, greatest = 9;
    CUfunc_cache cache;
    OK(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096));
    OK(cuCtxGetLimit(&value, CU_LIMIT_STACK_SIZE));
    cr_assert_eq(value, 4096);
    OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 32 * MIB));
    OK(cuCtxGetLimit(&value, CU_LIMIT_MALLOC_HEAP_SIZE));
    cr_assert_eq(value, 32 * MIB);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuCtxSetLimit((CUlimit)77, 1));
    GIVES(CUDA_ERROR_UNSUPPORTED_LIMIT, cuCtxGetLimit(&value, CU_LIMIT_CIG_ENABLED));
    OK(cuCtxGetStreamPriorityRange(&least, &greatest));
    cr_assert(least == 0 && greatest == -5);
    OK(cuCtxSetCacheConfig(CU_FUNC_CACHE_PREFER_L1));
    OK(cuCtxGetCacheConfig(&cache));
    cr_assert_eq(cache, CU_FUNC_CACHE_PREFER_L1);
}

Test(context, peer_access_is_switched_per_context)
{
    CUcontext a = machine_with_context("h200,vram=64M,gpus=2"), b;
    int can;
    OK(cuDeviceCanAccessPeer(&can, 0, 1));
    cr_assert_eq(can, 1);
    OK(cuDeviceCanAccessPeer(&can, 0, 0));
    cr_assert_eq(can, 0);
    OK(cuCtxCreate_v2(&b, 0, 1));
    OK(cuCtxSetCurrent(a));
    GIVES(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, cuCtxDisablePeerAccess(b));
    OK(cuCtxEnablePeerAccess(b, 0));
    GIVES(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, cuCtxEnablePeerAccess(b, 0));
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxEnablePeerAccess(a, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuCtxEnablePeerAccess(b, 1));
    OK(cuCtxDisablePeerAccess(b));
}

Test(context, consumer_cards_have_no_peer_access)
{
    CUcontext a = machine_with_context("rtx4090,vram=64M,gpus=2"), b;
    int can = 1;
    OK(cuDeviceCanAccessPeer(&can, 0, 1));
    cr_assert_eq(can, 0);
    OK(cuCtxCreate_v2(&b, 0, 1));
    GIVES(CUDA_ERROR_PEER_ACCESS_UNSUPPORTED, cuCtxEnablePeerAccess(a, 0));
}

Test(context, devices_are_what_the_model_says)
{
    machine("a100-pcie,gpus=3");
    int n, value, minor;
    char name[64], pci[32];
    CUuuid u[3];
    size_t bytes;
    CUdevice d;
    OK(cuDeviceGetCount(&n));
    cr_assert_eq(n, 3);
    OK(cuDeviceGetName(name, sizeof name, 1));
    cr_assert_str_eq(name, "NVIDIA A100-PCIE-40GB");
    OK(cuDeviceGetName(name, 7, 1));
    cr_assert_str_eq(name, "NVIDIA");
    OK(cuDeviceTotalMem_v2(&bytes, 2));
    cr_assert(bytes > UINT64_C(39) << 30 && bytes < UINT64_C(40) << 30);
    OK(cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 0));
    cr_assert_eq(value, 108);
    OK(cuDeviceComputeCapability(&value, &minor, 0));
    cr_assert(value == 8 && minor == 0);
    for (d = 0; d < 3; d++) {
        CUdevice back;
        OK(cuDeviceGetUuid_v2(&u[d], d));
        OK(cuDeviceGetPCIBusId(pci, sizeof pci, d));
        OK(cuDeviceGetByPCIBusId(&back, pci));
        cr_assert_eq(back, d);
    }
    cr_assert(memcmp(&u[0], &u[1], sizeof u[0]) != 0 && memcmp(&u[1], &u[2], sizeof u[0]) != 0);
    GIVES(CUDA_ERROR_INVALID_DEVICE, cuDeviceGet(&d, 3));
    GIVES(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetName(name, 10, -1));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_MAX, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuDeviceGetAttribute(NULL, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0));
    GIVES(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetByPCIBusId(&d, "0000:FF:00.0"));
}

Test(context, without_settings_the_machine_is_one_h200)
{
    unsetenv("SIMGPU");
    OK(cuInit(0));
    int n;
    char name[64];
    OK(cuDeviceGetCount(&n));
    cr_assert_eq(n, 1);
    OK(cuDeviceGetName(name, sizeof name, 0));
    cr_assert_str_eq(name, "NVIDIA H200");
}
