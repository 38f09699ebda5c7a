/* What NVML tells of memory agrees with what the driver API tells; everything else of it is the real one's. */
#include "core_test.h"

#include "shim/nvml.h"

#define SUCCESS 0
#define INVALID_ARGUMENT 2
#define INSUFFICIENT_SIZE 7
#define FUNCTION_NOT_FOUND 13
#define VERSION_MISMATCH 25

struct device;
struct memory {
    unsigned long long total, free, used;
};
struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};
#define MEMORY_V2 (sizeof(struct memory_v2) | 2u << 24)
struct process {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};
struct process_v1 {
    unsigned pid;
    unsigned long long used;
};

int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct device **device);
int nvmlDeviceGetMemoryInfo(struct device *device, struct memory *memory);
int nvmlDeviceGetMemoryInfo_v2(struct device *device, struct memory_v2 *memory);
int nvmlDeviceGetComputeRunningProcesses(struct device *device, unsigned *count, struct process_v1 *infos);
int nvmlDeviceGetComputeRunningProcesses_v3(struct device *device, unsigned *count, struct process *infos);
int nvmlComputeInstanceDestroy(struct device *instance);
const char *nvmlErrorString(int code);

/* Other tests may be running, on machines that are described as this one is. */
#define MOST 256

static void agrees(struct device *device, CUcontext context, unsigned long long allocated)
{
    size_t total, left;
    struct memory m;
    struct memory_v2 v2 = {.version = MEMORY_V2};
    static struct process p[MOST];
    static struct process_v1 v1[MOST];
    unsigned count = MOST, own = 0;
    OK(cuCtxSetCurrent(context));
    OK(cuMemGetInfo_v2(&left, &total));
    CHECK(nvmlDeviceGetMemoryInfo(device, &m) == SUCCESS);
    CHECK(m.total == total && m.free == left && m.used == total - left, "%llu of %llu", m.free, m.total);
    CHECK(nvmlDeviceGetMemoryInfo_v2(device, &v2) == SUCCESS);
    CHECK(v2.total == total + v2.reserved && v2.free == left && v2.used == total - left);
    CHECK(nvmlDeviceGetComputeRunningProcesses_v3(device, &count, p) == SUCCESS);
    while (own < count && p[own].pid != (unsigned)getpid())
        own++;
    CHECK(own < count && p[own].used == allocated, "%llu", p[own].used);
    count = MOST;
    CHECK(nvmlDeviceGetComputeRunningProcesses(device, &count, v1) == SUCCESS);
    for (own = 0; own < count && v1[own].pid != (unsigned)getpid();)
        own++;
    CHECK(own < count && v1[own].used == allocated, "%llu", v1[own].used);
}

Test(nvml, K24_memory_is_what_the_driver_api_tells)
{
    CUcontext context[2];
    CUdeviceptr p, q;
    struct device *device[2];
    struct memory before;
    setenv("SIMGPU", "h200,gpus=2,vram=64M,host=512M", 1);
    setenv("HEADROOM_STATS", "off", 1);
    CHECK(nvmlInit_v2() == SUCCESS); /* the first call opens the library */
    for (unsigned g = 0; g < 2; g++)
        CHECK(nvmlDeviceGetHandleByIndex_v2(g, &device[g]) == SUCCESS);
    CHECK(nvmlDeviceGetMemoryInfo(device[0], &before) == SUCCESS && before.total == 64 * MIB); /* not in use yet */
    OK(cuInit(0));
    for (unsigned g = 0; g < 2; g++)
        OK(cuCtxCreate_v2(&context[g], 0, (CUdevice)g));
    OK(cuMemAlloc_v2(&q, 6 * MIB)); /* of GPU 1 */
    OK(cuCtxSetCurrent(context[0]));
    OK(cuMemAlloc_v2(&p, 100 * MIB)); /* more than there is */
    agrees(device[0], context[0], 100 * MIB);
    agrees(device[1], context[1], 6 * MIB);
    OK(cuMemFree_v2(q));
    agrees(device[1], context[1], 0);
    CHECK(nvmlShutdown() == SUCCESS);
}

Test(nvml, K26_errors_are_the_real_ones)
{
    struct device *device;
    struct memory_v2 v2 = {.version = 1};
    static struct process all[MOST];
    unsigned count = 0;
    CUdeviceptr q;
    machine("h200,vram=64M,host=64M", "");
    OK(cuMemAlloc_v2(&q, MIB));
    CHECK(nvmlInit_v2() == SUCCESS);
    CHECK(nvmlDeviceGetHandleByIndex_v2(0, &device) == SUCCESS);
    CHECK(nvmlDeviceGetMemoryInfo(NULL, NULL) == INVALID_ARGUMENT);
    CHECK(nvmlDeviceGetMemoryInfo_v2(device, &v2) == VERSION_MISMATCH);
    CHECK(nvmlDeviceGetComputeRunningProcesses_v3(device, &count, NULL) == INSUFFICIENT_SIZE && count >= 1);
    count = MOST;
    CHECK(nvmlDeviceGetComputeRunningProcesses_v3(device, &count, all) == SUCCESS && count >= 1);
    CHECK(nvmlComputeInstanceDestroy(device) == FUNCTION_NOT_FOUND); /* this NVML has no such function */
    CHECK(strcmp(nvmlErrorString(SUCCESS), "Success") == 0);
    CHECK(nvmlShutdown() == SUCCESS);
}
