/* simgpu's NVML tells of the same cards what its CUDA tells, also to a process that uses no CUDA. */
#include "scene.h"
#include "simgpu/node.h"
#include "simgpu/nvml/nvml.h"

#include <dlfcn.h>
#include <sys/wait.h>

static void *library;

static void *nvml_call(const char *name)
{
    if (!library)
        library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    cr_assert_not_null(library, "%s", dlerror());
    void *f = dlsym(library, name);
    cr_assert_not_null(f, "%s", name);
    return f;
}

#define NVML(name, ...) ((__typeof__(&name))nvml_call(#name))(__VA_ARGS__)
#define FINE(name, ...) cr_assert_eq(NVML(name, __VA_ARGS__), NVML_SUCCESS, #name)

static nvmlDevice_t card(unsigned index)
{
    nvmlDevice_t d = NULL;
    FINE(nvmlDeviceGetHandleByIndex_v2, index, &d);
    return d;
}

Test(nvml, tells_the_same_cards_as_cuda)
{
    unsigned count, value;
    int version, cuda_version, major, minor;
    char text[96], name[96], id[16];
    CUuuid uuid;
    nvmlPciInfo_t pci;
    nvmlPciInfo_v2_t old;
    nvmlDevice_t d;
    setenv("SIMGPU", "dgx1v,vram=64M,gpus=6", 1);
    cr_assert_eq(NVML(nvmlDeviceGetCount_v2, &count), NVML_ERROR_UNINITIALIZED);
    cr_assert_eq(NVML(nvmlShutdown), NVML_ERROR_UNINITIALIZED);
    cr_assert_eq(NVML(nvmlInit_v2), NVML_SUCCESS);
    cr_assert_eq(NVML(nvmlInit), NVML_SUCCESS); /* counted */
    cr_assert_eq(NVML(nvmlShutdown), NVML_SUCCESS);
    OK(cuInit(0));
    FINE(nvmlDeviceGetCount_v2, &count);
    cr_assert_eq(count, 6);
    FINE(nvmlSystemGetCudaDriverVersion, &version);
    OK(cuDriverGetVersion(&cuda_version));
    cr_assert_eq(version, cuda_version);
    FINE(nvmlSystemGetDriverVersion, text, sizeof text);
    cr_assert_eq(NVML(nvmlSystemGetDriverVersion, text, 3), NVML_ERROR_INSUFFICIENT_SIZE);
    for (unsigned i = 0; i < count; i++) {
        d = card(i);
        FINE(nvmlDeviceGetIndex, d, &value);
        cr_assert_eq(value, i);
        FINE(nvmlDeviceGetName, d, text, sizeof text);
        OK(cuDeviceGetName(name, sizeof name, (int)i));
        cr_assert_str_eq(text, name);
        OK(cuDeviceGetPCIBusId(id, sizeof id, (int)i));
        FINE(nvmlDeviceGetPciInfo_v3, d, &pci);
        cr_assert_str_eq(pci.busIdLegacy, id);
        cr_assert_eq(strcmp(pci.busId + 4, id), 0);
        FINE(nvmlDeviceGetPciInfo_v2, d, &old);
        cr_assert_str_eq(old.busId, id);
        nvmlDevice_t same = NULL;
        FINE(nvmlDeviceGetHandleByPciBusId_v2, id, &same);
        cr_assert_eq(same, d);
        FINE(nvmlDeviceGetHandleByPciBusId_v2, pci.busId, &same);
        cr_assert_eq(same, d);
        FINE(nvmlDeviceGetUUID, d, text, sizeof text);
        OK(cuDeviceGetUuid(&uuid, (int)i));
        snprintf(name, sizeof name, "GPU-%02x%02x%02x%02x-", uuid.bytes[0] & 0xff, uuid.bytes[1] & 0xff,
                 uuid.bytes[2] & 0xff, uuid.bytes[3] & 0xff);
        cr_assert_eq(strncmp(text, name, strlen(name)), 0);
        FINE(nvmlDeviceGetHandleByUUID, text, &same);
        cr_assert_eq(same, d);
    }
    FINE(nvmlDeviceGetCudaComputeCapability, card(0), &major, &minor);
    cr_assert(major == 7 && minor == 0);
    cr_assert_eq(NVML(nvmlDeviceGetHandleByIndex_v2, 6, &d), NVML_ERROR_INVALID_ARGUMENT);
    cr_assert_eq(NVML(nvmlDeviceGetHandleByPciBusId_v2, "0000:77:00.0", &d), NVML_ERROR_NOT_FOUND);
    cr_assert_eq(NVML(nvmlDeviceGetHandleByPciBusId_v2, "x", &d), NVML_ERROR_INVALID_ARGUMENT);
    cr_assert_eq(NVML(nvmlDeviceGetHandleByUUID, "GPU-0", &d), NVML_ERROR_NOT_FOUND);
    cr_assert_eq(NVML(nvmlDeviceGetIndex, (nvmlDevice_t)(uintptr_t)8, &value), NVML_ERROR_INVALID_ARGUMENT);
    cr_assert_eq(NVML(nvmlDeviceGetTemperature, card(0), 0, &value), NVML_ERROR_NOT_SUPPORTED);
    cr_assert_eq(NVML(nvmlDeviceGetUtilizationRates, card(0), &value), NVML_ERROR_NOT_SUPPORTED);
    cr_assert_str_eq(NVML(nvmlErrorString, NVML_ERROR_NOT_SUPPORTED), "Not Supported");
}

Test(nvml, k24_memory_is_what_cuda_says)
{
    nvmlMemory_t m;
    nvmlMemory_v2_t v2 = {.version = NVML_MEMORY_V2};
    size_t free_bytes, total_bytes;
    CUdeviceptr p;
    machine_with_context("h200,vram=64M,gpus=2");
    cr_assert_eq(NVML(nvmlInit_v2), NVML_SUCCESS);
    for (int i = 0; i < 3; i++) {
        OK(cuMemGetInfo_v2(&free_bytes, &total_bytes));
        FINE(nvmlDeviceGetMemoryInfo, card(0), &m);
        cr_assert(m.total == total_bytes && m.free == free_bytes && m.used == total_bytes - free_bytes);
        FINE(nvmlDeviceGetMemoryInfo_v2, card(0), &v2);
        cr_assert(v2.total == total_bytes && v2.free == free_bytes && v2.used == m.used);
        OK(cuMemAlloc_v2(&p, 6 * MIB));
    }
    FINE(nvmlDeviceGetMemoryInfo, card(1), &m);
    cr_assert_eq(m.used, 0);
    v2.version = 1;
    cr_assert_eq(NVML(nvmlDeviceGetMemoryInfo_v2, card(0), &v2), NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
}

Test(nvml, links_lead_where_the_matrix_says)
{
    int active, type, level, status;
    unsigned can, count;
    nvmlPciInfo_t pci;
    nvmlDevice_t near[8];
    machine("dgx1v,vram=64M");
    cr_assert_eq(NVML(nvmlInit_v2), NVML_SUCCESS);
    static const char *const far[] = {"0000:07:00.0", "0000:0A:00.0", "0000:0B:00.0",
                                      "0000:0B:00.0", "0000:85:00.0", "0000:85:00.0"};
    for (unsigned link = 0; link < 6; link++) {
        FINE(nvmlDeviceGetNvLinkState, card(0), link, &active);
        cr_assert_eq(active, 1);
        FINE(nvmlDeviceGetNvLinkRemotePciInfo_v2, card(0), link, &pci);
        cr_assert_str_eq(pci.busIdLegacy, far[link]);
        FINE(nvmlDeviceGetNvLinkRemoteDeviceType, card(0), link, &type);
        cr_assert_eq(type, NVML_NVLINK_DEVICE_TYPE_GPU);
        FINE(nvmlDeviceGetNvLinkCapability, card(0), link, NVML_NVLINK_CAP_P2P_SUPPORTED, &can);
        cr_assert_eq(can, 1);
        FINE(nvmlDeviceGetNvLinkCapability, card(0), link, NVML_NVLINK_CAP_SYSMEM_ACCESS, &can);
        cr_assert_eq(can, 0);
    }
    cr_assert_eq(NVML(nvmlDeviceGetNvLinkState, card(0), 6, &active), NVML_ERROR_NOT_SUPPORTED);
    cr_assert_eq(NVML(nvmlDeviceGetNvLinkState, card(0), 18, &active), NVML_ERROR_INVALID_ARGUMENT);
    int (*link_set)(int, int, bool);
    *(void **)&link_set = dlsym(RTLD_DEFAULT, "sg_node_link_set");
    cr_assert_eq(link_set(0, 4, false), 0);
    FINE(nvmlDeviceGetNvLinkState, card(0), 4, &active);
    cr_assert_eq(active, 0);
    static const int levels[] = {0, 10, 30, 30, 50, 50, 50, 50};
    for (unsigned i = 0; i < 8; i++) {
        FINE(nvmlDeviceGetTopologyCommonAncestor, card(0), card(i), &level);
        cr_assert_eq(level, levels[i], "%u: %d", i, level);
    }
    count = 8;
    FINE(nvmlDeviceGetTopologyNearestGpus, card(0), NVML_TOPOLOGY_HOSTBRIDGE, &count, near);
    cr_assert(count == 2 && near[0] == card(2) && near[1] == card(3));
    FINE(nvmlDeviceGetP2PStatus, card(0), card(4), NVML_P2P_CAPS_INDEX_READ, &status);
    cr_assert_eq(status, NVML_P2P_STATUS_OK);
    FINE(nvmlDeviceGetP2PStatus, card(0), card(5), NVML_P2P_CAPS_INDEX_READ, &status);
    cr_assert_eq(status, NVML_P2P_STATUS_IOH_TOPOLOGY_NOT_SUPPORTED);
    FINE(nvmlDeviceGetP2PStatus, card(0), card(5), NVML_P2P_CAPS_INDEX_NVLINK, &status);
    cr_assert_eq(status, NVML_P2P_STATUS_NOT_SUPPORTED);
}

Test(nvml, switches_are_far_ends)
{
    int type;
    unsigned links = 0;
    machine("hgx-h100,vram=64M,gpus=2");
    cr_assert_eq(NVML(nvmlInit_v2), NVML_SUCCESS);
    while (links < NVML_NVLINK_MAX_LINKS &&
           NVML(nvmlDeviceGetNvLinkRemoteDeviceType, card(1), links, &type) == NVML_SUCCESS) {
        cr_assert_eq(type, NVML_NVLINK_DEVICE_TYPE_SWITCH);
        links++;
    }
    cr_assert_eq(links, 18);
}

Test(nvml, one_model_alone_has_no_links)
{
    int active, level;
    machine("h200,vram=64M,gpus=2");
    cr_assert_eq(NVML(nvmlInit_v2), NVML_SUCCESS);
    cr_assert_eq(NVML(nvmlDeviceGetNvLinkState, card(0), 0, &active), NVML_ERROR_NOT_SUPPORTED);
    FINE(nvmlDeviceGetTopologyCommonAncestor, card(0), card(1), &level);
    cr_assert_eq(level, NVML_TOPOLOGY_HOSTBRIDGE);
}

/* ---- from outside ---- */

/* Prints what a process without CUDA sees of card 1: its use, and which processes have how much. */
static int scene_watch(void)
{
    nvmlMemory_t m;
    nvmlProcessInfo_t list[16];
    unsigned count = 0;
    if (NVML(nvmlInit_v2))
        return 1;
    FINE(nvmlDeviceGetMemoryInfo, card(1), &m);
    nvmlReturn_t r = NVML(nvmlDeviceGetComputeRunningProcesses_v3, card(1), &count, NULL);
    cr_assert_eq(r, count ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS);
    count = 16;
    FINE(nvmlDeviceGetComputeRunningProcesses_v3, card(1), &count, list);
    printf("used %llu total %llu\n", m.used, m.total);
    for (unsigned i = 0; i < count; i++)
        printf("pid %u has %llu\n", list[i].pid, list[i].usedGpuMemory);
    return 0;
}

SCENES({"watch", scene_watch})

Test(nvml, a_process_without_cuda_sees_who_has_memory, .timeout = 60)
{
    CUcontext c;
    CUdeviceptr p;
    size_t free_bytes, total_bytes;
    char expected[128], machine_text[64];
    /* A machine of its own, so that other tests' processes do not count. */
    snprintf(machine_text, sizeof machine_text, "SIMGPU=4xa100,vram=%dM", 64 + 2 * (int)(getpid() % 4000));
    machine(machine_text + 7);
    OK(cuCtxCreate_v2(&c, 0, 1));
    OK(cuMemAlloc_v2(&p, 10 * MIB));
    OK(cuMemGetInfo_v2(&free_bytes, &total_bytes));
    const char *env[] = {machine_text, NULL};
    struct hr_test_result r = play("SIM_SCENE=watch", env);
    cr_assert(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 0, "%s", r.err);
    snprintf(expected, sizeof expected, "used %zu total %zu\npid %d has %zu\n", total_bytes - free_bytes, total_bytes,
             (int)getpid(), total_bytes - free_bytes);
    cr_assert_str_eq(r.out, expected);
    hr_test_result_finish(&r);
    OK(cuCtxDestroy_v2(c));
    r = play("SIM_SCENE=watch", env);
    cr_assert_eq(strncmp(r.out, "used 0 ", 7), 0, "%s", r.out);
    cr_assert_null(strstr(r.out, "pid"));
    hr_test_result_finish(&r);
}
