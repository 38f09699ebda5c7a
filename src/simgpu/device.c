/* cuInit and what can be asked of a device. */
#include "simgpu/cards.h"
#include "simgpu/fabric.h"
#include "simgpu/sim.h"
#include "simgpu/smi.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void fork_child(void)
{ /* a forked child cannot use the parent's driver */
    if (sg.init_tried)
        atomic_store(&sg.forked, true);
}

static int count_numa_nodes(void)
{
    int n = 0;
    char path[64];
    do
        snprintf(path, sizeof path, "/sys/devices/system/node/node%d", n + 1);
    while (!access(path, F_OK) && ++n < 1023);
    return n + 1;
}

CUresult sg_config_once(void)
{
    static bool tried;
    static CUresult result;
    if (!tried) {
        tried = true;
        result = sg_config_read(&sg.config);
    }
    return result;
}

static CUresult start(void)
{
    CUresult r = sg_config_once();
    if (r)
        return r;
    sg.device_count = sg_visible_read(getenv("CUDA_VISIBLE_DEVICES"), sg.config.gpus, sg.card);
    if (!sg.device_count)
        return CUDA_ERROR_NO_DEVICE;
    if (!sg_cards_start(sg.config.cards)) {
        sg_log(SG_LOG_ERROR, "SIMGPU_CARDS: %s cannot be used: a new file, or one that simgpu made", sg.config.cards);
        return CUDA_ERROR_INVALID_VALUE;
    }
    sg.random = sg.config.seed * UINT64_C(0x9e3779b97f4a7c15) | 1;
    sg.call_random = sg.config.seed;
    sg.numa_nodes = count_numa_nodes();
    sg.pid = (uint64_t)getpid();
    r = sg_node_start() ? CUDA_ERROR_OUT_OF_MEMORY : sg_address_init();
    if (!r)
        r = sg_pool_init(&sg.host_pool, SG_ON_HOST, sg.config.host_bytes);
    for (int i = 0; i < sg.device_count && !r; i++) {
        struct sg_device *d = &sg.devices[i];
        d->index = i;
        pthread_cond_init(&d->host_cv, NULL);
        r = sg_pool_init(&d->pool, i, sg.config.vram_bytes);
    }
    if (!r)
        sg_smi_publish();
    if (!r)
        atomic_store_explicit(&sg.ready, true, memory_order_release);
    return r;
}

CUresult cuInit(unsigned int flags)
{
    if (atomic_load(&sg.forked))
        return CUDA_ERROR_NOT_INITIALIZED;
    if (sg_thread()->in_host_call)
        return CUDA_ERROR_NOT_PERMITTED;
    if (flags)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&sg.lock);
    if (!sg.init_tried) {
        sg.init_tried = true;
        pthread_atfork(NULL, NULL, fork_child);
        sg.init_result = start();
    }
    CUresult r = sg.init_result;
    pthread_mutex_unlock(&sg.lock);
    return r ? r : sg_fail_check("cuInit");
}

CUresult cuDriverGetVersion(int *version)
{
    if (!version)
        return CUDA_ERROR_INVALID_VALUE;
    *version = sg_driver_version;
    return CUDA_SUCCESS;
}

static CUresult enter_device(const char *function, CUdevice device, const void *out)
{
    CUresult r = sg_enter_unlocked(function);
    if (r)
        return r;
    if (!out)
        return CUDA_ERROR_INVALID_VALUE;
    return device < 0 || device >= sg.device_count ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count)
{
    CUresult r = sg_enter_unlocked("cuDeviceGetCount");
    if (r)
        return r;
    if (!count)
        return CUDA_ERROR_INVALID_VALUE;
    *count = sg.device_count;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
    CUresult r = enter_device("cuDeviceGet", ordinal, device);
    if (!r)
        *device = ordinal;
    return r;
}

CUresult cuDeviceGetName(char *name, int len, CUdevice device)
{
    CUresult r = enter_device("cuDeviceGetName", device, name);
    if (!r && len <= 0)
        r = CUDA_ERROR_INVALID_VALUE;
    if (!r)
        snprintf(name, (size_t)len, "%s", sg.config.model->name);
    return r;
}

void sg_device_uuid(int card, uint8_t *bytes)
{
    uint64_t x = 0x51319600 + (uint64_t)card;
    for (const char *c = sg.config.model->key; *c; c++)
        x = (x ^ (unsigned char)*c) * UINT64_C(0x100000001b3);
    for (int i = 0; i < 16; i++) {
        x = x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        bytes[i] = (uint8_t)(x >> 56);
    }
    bytes[15] = (uint8_t)card; /* distinct within a machine whatever the mixing does */
}

static CUresult get_uuid(const char *function, CUuuid *uuid, CUdevice device)
{
    CUresult r = enter_device(function, device, uuid);
    if (!r)
        sg_device_uuid(sg.card[device], (uint8_t *)uuid->bytes);
    return r;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice device)
{
    return get_uuid("cuDeviceGetUuid", uuid, device);
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device)
{
    return get_uuid("cuDeviceGetUuid", uuid, device);
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    CUresult r = enter_device("cuDeviceTotalMem", device, bytes);
    if (!r)
        *bytes = sg.config.vram_bytes;
    return r;
}

CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice device)
{
    CUresult r = enter_device("cuDeviceComputeCapability", device, major);
    if (!r && !minor)
        r = CUDA_ERROR_INVALID_VALUE;
    if (!r) {
        *major = sg.config.model->major;
        *minor = sg.config.model->minor;
    }
    return r;
}

static void put_pci(char *id, size_t bytes, struct sg_pci at)
{
    snprintf(id, bytes, "%04X:%02X:%02X.%X", at.domain, at.bus, at.slot, at.function);
}

CUresult cuDeviceGetPCIBusId(char *id, int len, CUdevice device)
{
    CUresult r = enter_device("cuDeviceGetPCIBusId", device, id);
    if (!r && len < 13)
        r = CUDA_ERROR_INVALID_VALUE;
    if (!r)
        put_pci(id, (size_t)len, sg_node_pci(sg.card[device]));
    return r;
}

CUresult cuDeviceGetByPCIBusId(CUdevice *device, const char *id)
{
    CUresult r = sg_enter_unlocked("cuDeviceGetByPCIBusId");
    if (r)
        return r;
    if (!device || !id)
        return CUDA_ERROR_INVALID_VALUE;
    unsigned long part[4] = {0, 0, 0, 0}; /* domain, bus, slot, function; the domain and the function may be left out */
    int first = 1, n = 0;
    for (const char *at = id; *at; at++)
        if (*at == ':' && strchr(at + 1, ':'))
            first = 0;
    for (const char *at = id; n < 4 - first; n++) {
        char *end;
        part[first + n] = strtoul(at, &end, 16);
        if (end == at || (*end && *end != ':' && *end != '.'))
            return CUDA_ERROR_INVALID_VALUE;
        at = end + (*end != 0);
        if (!*end) {
            n++;
            break;
        }
    }
    if (n < 2)
        return CUDA_ERROR_INVALID_VALUE;
    for (int d = 0; d < sg.device_count; d++) {
        struct sg_pci at = sg_node_pci(sg.card[d]);
        if (part[0] == at.domain && part[1] == at.bus && part[2] == at.slot && part[3] == at.function) {
            *device = d;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetLuid(char *luid, unsigned int *mask, CUdevice device)
{
    CUresult r = enter_device("cuDeviceGetLuid", device, luid);
    (void)mask;
    return r ? r : CUDA_ERROR_NOT_SUPPORTED; /* a notion of Windows */
}

int sg_static_shared_max(void)
{
    return 48 * 1024;
}

uint64_t sg_policy_window_max_bytes(void)
{
    return sg.config.model->major >= 8 ? 134213632 : 0;
}

unsigned sg_sync_domain_count(void)
{
    return sg.config.model->major >= 9 ? 4 : 1;
}

/* What depends on the model; -1 = not one of these. */
static int model_attribute(CUdevice_attribute attribute, CUdevice device)
{
    const struct sg_model *m = sg.config.model;
    switch ((int)attribute) {
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: return m->clock_khz;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: return m->sm_count;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: return m->memory_clock_khz;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: return m->bus_bits;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: return m->l2_bytes;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: return m->threads_per_sm;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR: return m->blocks_per_sm;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: return m->shared_per_sm_bytes;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: return m->shared_optin_bytes;
    case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK: return m->major >= 8 ? 1024 : 0;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: return m->copy_engines;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return m->major;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: return m->minor;
    case CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO: return m->fp64_ratio;
    case CU_DEVICE_ATTRIBUTE_ECC_ENABLED: return m->ecc;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED: return m->rdma;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS: return m->rdma;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING: return m->major >= 9 && m->rdma ? 100 : 0;
    case CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE: return m->major >= 8 ? m->l2_bytes / 4 * 3 : 0;
    case CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE: return (int)sg_policy_window_max_bytes();
    case CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT: return (int)sg_sync_domain_count();
    case CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED: return m->major >= 9;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: return (int)sg_node_pci(sg.card[device]).bus;
    case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID: return (int)sg_node_pci(sg.card[device]).slot;
    case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID: return (int)sg_node_pci(sg.card[device]).domain;
    case CU_DEVICE_ATTRIBUTE_GPU_PCI_DEVICE_ID: return (m->pci_device_id << 16) | 0x10de;
    case CU_DEVICE_ATTRIBUTE_GPU_PCI_SUBSYSTEM_ID: return 0x10de;
    default: return -1;
    }
}

/* What is the same for all models; what is not listed is 0 (absent or unsupported). */
static const struct {
    int attribute, value;
} fixed_attributes[] = {
    {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
    {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
    {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 48 * 1024},
    {CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY, 64 * 1024},
    {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
    {CU_DEVICE_ATTRIBUTE_MAX_PITCH, 2147483647},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
    {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, 65536},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT, 512},
    {CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT, 32},
    {CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT, 512},
    {CU_DEVICE_ATTRIBUTE_GPU_OVERLAP, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, CU_COMPUTEMODE_DEFAULT},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS, 1},
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
    {CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM, 1},
    {CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HOST_NUMA_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HOST_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_NUMA_ID, -1},
    {CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 1},
    {CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, 1},
    {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
    {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1},
    {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR},
    {CU_DEVICE_ATTRIBUTE_HOST_NUMA_MEMORY_POOLS_SUPPORTED, 1},
    {CU_DEVICE_ATTRIBUTE_HOST_MEMORY_POOLS_SUPPORTED, 1},
};

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device)
{
    CUresult r = enter_device("cuDeviceGetAttribute", device, value);
    if (r)
        return r;
    if ((int)attribute < 1 || attribute >= CU_DEVICE_ATTRIBUTE_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    *value = model_attribute(attribute, device);
    if (*value >= 0)
        return CUDA_SUCCESS;
    *value = 0;
    for (size_t i = 0; i < sizeof fixed_attributes / sizeof fixed_attributes[0]; i++)
        if (fixed_attributes[i].attribute == (int)attribute)
            *value = fixed_attributes[i].value;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetProperties(CUdevprop *prop, CUdevice device)
{
    CUresult r = enter_device("cuDeviceGetProperties", device, prop);
    if (!r)
        *prop = (CUdevprop){.maxThreadsPerBlock = 1024,
                            .maxThreadsDim = {1024, 1024, 64},
                            .maxGridSize = {2147483647, 65535, 65535},
                            .sharedMemPerBlock = 48 * 1024,
                            .totalConstantMemory = 64 * 1024,
                            .SIMDWidth = 32,
                            .memPitch = 2147483647,
                            .regsPerBlock = 65536,
                            .clockRate = sg.config.model->clock_khz,
                            .textureAlign = 512};
    return r;
}

CUresult cuDeviceGetExecAffinitySupport(int *value, CUexecAffinityType type, CUdevice device)
{
    CUresult r = enter_device("cuDeviceGetExecAffinitySupport", device, value);
    if (!r && type != CU_EXEC_AFFINITY_TYPE_SM_COUNT)
        r = CUDA_ERROR_INVALID_VALUE;
    if (!r)
        *value = 0;
    return r;
}

/* ---- errors by name: these work without cuInit ---- */

static const struct sg_error_name *find_error(CUresult error)
{
    for (size_t i = 0; i < sg_error_name_count; i++)
        if (sg_error_names[i].value == error)
            return &sg_error_names[i];
    return NULL;
}

CUresult cuGetErrorName(CUresult error, const char **text)
{
    if (!text)
        return CUDA_ERROR_INVALID_VALUE;
    const struct sg_error_name *found = find_error(error);
    *text = found ? found->name : NULL;
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult error, const char **text)
{
    if (!text)
        return CUDA_ERROR_INVALID_VALUE;
    const struct sg_error_name *found = find_error(error);
    *text = found ? found->text : NULL;
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* The vendor's private tables: there are none here. */
CUresult cuGetExportTable(const void **table, const CUuuid *id)
{
    if (!table || !id)
        return CUDA_ERROR_INVALID_VALUE;
    *table = NULL;
    return CUDA_ERROR_NOT_FOUND;
}

/* Nothing listens, as when no profiler is attached. */
CUresult cuProfilerInitialize(const char *config_file, const char *output_file, int output_mode)
{
    (void)config_file, (void)output_file, (void)output_mode;
    CUresult r = sg_enter_unlocked("cuProfilerInitialize");
    return r ? r : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult cuProfilerStart(void)
{
    struct sg_context *context;
    CUresult r = sg_enter_context("cuProfilerStart", &context);
    return r ? r : sg_leave(CUDA_SUCCESS);
}

CUresult cuProfilerStop(void)
{
    struct sg_context *context;
    CUresult r = sg_enter_context("cuProfilerStop", &context);
    return r ? r : sg_leave(CUDA_SUCCESS);
}
