/* Memory of one device as others see it. */
#include "kernels.h"
#include "scene.h"

#include <sys/wait.h>

static CUresult fill(CUdeviceptr p, unsigned value, unsigned n)
{
    CUmodule module;
    CUfunction f;
    void *params[] = {&p, &value, &n};
    OK(cuModuleLoadData(&module, kernels_ptx));
    OK(cuModuleGetFunction(&f, module, "fill"));
    OK(cuLaunchKernel(f, 1, 1, 1, 128, 1, 1, 0, NULL, params, NULL));
    return cuCtxSynchronize();
}

static unsigned access_flags(CUdeviceptr p)
{
    unsigned flags = 99;
    OK(cuPointerGetAttribute(&flags, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, p));
    return flags;
}

Test(peer, access_is_between_two_contexts_in_one_direction)
{
    CUcontext a = machine_with_context("h200,vram=64M,gpus=2"), b, other;
    CUdeviceptr in_a, later, in_other, in_b;
    unsigned got;
    OK(cuMemAlloc_v2(&in_a, 4096));
    OK(cuCtxCreate_v2(&other, 0, 0)); /* a second context of the same device */
    OK(cuMemAlloc_v2(&in_other, 4 * MIB));
    OK(cuCtxCreate_v2(&b, 0, 1));
    OK(cuMemAlloc_v2(&in_b, 4096));
    cr_assert_eq(access_flags(in_a), CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE);
    cr_assert_eq(access_flags(in_b), CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE);
    OK(cuCtxEnablePeerAccess(a, 0));
    GIVES(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, cuCtxEnablePeerAccess(a, 0));
    cr_assert_eq(access_flags(in_a), CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE);
    cr_assert_eq(access_flags(in_other), CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE);
    OK(fill(in_a, 41, 16));
    OK(cuMemcpyDtoH_v2(&got, in_a + 60, 4));
    cr_assert_eq(got, 41);
    OK(cuCtxSetCurrent(a));
    OK(cuMemAlloc_v2(&later, 4 * MIB)); /* also what comes afterwards */
    cr_assert_eq(access_flags(in_b), CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE);
    OK(cuCtxSetCurrent(b));
    OK(fill(later, 42, 16));
    OK(cuCtxEnablePeerAccess(other, 0));
    OK(fill(in_other, 43, 16));
    OK(cuCtxDisablePeerAccess(other));
    GIVES(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, cuCtxDisablePeerAccess(other));
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxDisablePeerAccess((CUcontext)(uintptr_t)0x1230));
    OK(fill(in_a, 44, 16)); /* the other grant stands */
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, fill(in_other, 45, 16));
}

Test(peer, K50_a_device_has_eight_connections_where_there_are_no_switches)
{
    char path[] = "/tmp/simgpu-ten-XXXXXX", machine[96];
    int fd = mkstemp(path);
    CUcontext c[10];
    dprintf(fd, "<system version=\"1\"><cpu numaid=\"0\" affinity=\"ffff\" arch=\"x86_64\" vendor=\"GenuineIntel\" "
                "familyid=\"6\" modelid=\"85\">");
    for (int i = 0; i < 10; i++)
        dprintf(fd,
                "<pci busid=\"0000:%02x:00.0\" class=\"0x030000\" link_speed=\"16.0 GT/s PCIe\" link_width=\"16\">"
                "<gpu dev=\"%d\" sm=\"80\" rank=\"%d\" gdr=\"0\"/></pci>",
                i + 16, i, i);
    dprintf(fd, "</cpu></system>");
    close(fd);
    snprintf(machine, sizeof machine, "topo=%s,model=a100-pcie,vram=16M", path);
    c[0] = machine_with_context(machine);
    unlink(path);
    for (int i = 1; i < 10; i++)
        OK(cuCtxCreate_v2(&c[i], 0, i));
    OK(cuCtxSetCurrent(c[0]));
    for (int i = 1; i < 9; i++)
        OK(cuCtxEnablePeerAccess(c[i], 0));
    GIVES(CUDA_ERROR_TOO_MANY_PEERS, cuCtxEnablePeerAccess(c[9], 0));
    OK(cuCtxDisablePeerAccess(c[4]));
    OK(cuCtxEnablePeerAccess(c[9], 0));
    OK(cuCtxSetCurrent(c[4])); /* others have their own */
    OK(cuCtxEnablePeerAccess(c[0], 0));
}

Test(peer, without_access_a_kernel_faults)
{
    machine_with_context("h200,vram=64M,gpus=2");
    CUcontext b;
    CUdeviceptr p;
    OK(cuMemAlloc_v2(&p, 4096));
    OK(cuCtxCreate_v2(&b, 0, 1));
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, fill(p, 1, 1));
}

Test(peer, access_ends_with_either_context)
{
    CUcontext a = machine_with_context("h200,vram=64M,gpus=2"), b, c;
    CUdeviceptr p, q;
    OK(cuMemAlloc_v2(&p, 4 * MIB));
    OK(cuCtxCreate_v2(&b, 0, 1));
    OK(cuCtxEnablePeerAccess(a, 0));
    OK(cuCtxCreate_v2(&c, 0, 1));
    OK(cuCtxEnablePeerAccess(a, 0));
    OK(cuCtxDestroy_v2(c));
    OK(fill(p, 1, 16)); /* b's own access is untouched */
    OK(cuCtxDestroy_v2(a));
    OK(cuCtxCreate_v2(&a, 0, 0));
    OK(cuMemAlloc_v2(&q, 4 * MIB));
    OK(cuCtxSetCurrent(b));
    GIVES(CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, cuCtxDisablePeerAccess(a));
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, fill(q, 1, 16));
}

Test(peer, links_tell_what_they_carry)
{
    machine("a100-pcie,gpus=2");
    int value;
    OK(cuDeviceGetP2PAttribute(&value, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 1));
    cr_assert_eq(value, 1);
    OK(cuDeviceGetP2PAttribute(&value, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, 1, 0));
    cr_assert_eq(value, 0); /* over PCIe */
    OK(cuDeviceGetP2PAttribute(&value, CU_DEVICE_P2P_ATTRIBUTE_CUDA_ARRAY_ACCESS_SUPPORTED, 0, 1));
    cr_assert_eq(value, 0);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuDeviceGetP2PAttribute(NULL, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 1));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuDeviceGetP2PAttribute(&value, (CUdevice_P2PAttribute)77, 0, 1));
    GIVES(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetP2PAttribute(&value, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 0));
    GIVES(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetP2PAttribute(&value, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 2));
    GIVES(CUDA_ERROR_INVALID_DEVICE, cuDeviceCanAccessPeer(&value, 0, 2));
    GIVES(CUDA_ERROR_INVALID_DEVICE, cuDeviceCanAccessPeer(&value, -1, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuDeviceCanAccessPeer(NULL, 0, 1));
}

Test(peer, links_tell_their_atomic_operations)
{
    machine("h200,gpus=2");
    CUatomicOperation operations[3] = {CU_ATOMIC_OPERATION_INTEGER_ADD, CU_ATOMIC_OPERATION_FLOAT_MAX,
                                       CU_ATOMIC_OPERATION_CAS};
    unsigned can[3] = {9, 9, 9};
    OK(cuDeviceGetP2PAtomicCapabilities(can, operations, 3, 0, 1));
    cr_assert(can[0] & CU_ATOMIC_CAPABILITY_REDUCTION);
    cr_assert_eq(can[1], 0);
    cr_assert(can[2] & CU_ATOMIC_CAPABILITY_SCALAR_64);
    OK(cuDeviceGetHostAtomicCapabilities(can, operations, 3, 1));
    cr_assert_eq(can[0] | can[1] | can[2], 0);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuDeviceGetP2PAtomicCapabilities(can, operations, 0, 0, 1));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuDeviceGetP2PAtomicCapabilities(NULL, operations, 1, 0, 1));
    operations[1] = CU_ATOMIC_OPERATION_MAX;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuDeviceGetP2PAtomicCapabilities(can, operations, 3, 0, 1));
    GIVES(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetP2PAtomicCapabilities(can, operations, 1, 1, 1));
    GIVES(CUDA_ERROR_INVALID_DEVICE, cuDeviceGetHostAtomicCapabilities(can, operations, 1, 2));
}

static int scene_bytes(void)
{
    CUcontext a = machine_with_context("h200,vram=64M,gpus=2"), b;
    CUdeviceptr p, q;
    OK(cuMemAlloc_v2(&p, 4096));
    OK(cuCtxCreate_v2(&b, 0, 1));
    OK(cuMemAlloc_v2(&q, 4096));
    OK(cuCtxEnablePeerAccess(a, 0));
    OK(fill(p, 7, 100));
    OK(cuMemcpyPeer(q, b, p, a, 1000));
    return cuCtxSynchronize();
}

SCENES({"bytes", scene_bytes})

Test(peer, bytes_over_the_link_are_counted, .timeout = 60)
{
    char setting[96];
    snprintf(setting, sizeof setting, "SIMGPU_REPORT=/tmp/simgpu-peer-%d.json", (int)getpid());
    const char *env[] = {setting, NULL};
    struct hr_test_result r = play("SIM_SCENE=bytes", env);
    cr_assert(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 0, "%s", r.err);
    const char *report = slurp(setting + 14);
    unlink(setting + 14);
    cr_assert_not_null(strstr(report, "\"kernel_write_bytes\": {\"vram\": 0, \"peer\": 400, \"host\": 0}"), "%s",
                       report);
    cr_assert_eq(reported(report, "p2p"), 1000, "%s", report);
    hr_test_result_finish(&r);
}
