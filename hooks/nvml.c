#include "shim/nvml.h"

#include "residency/gpu.h"
#include "shim/shim.h"
#include "space/ledger.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/*
 * What NVML tells of memory agrees with what the driver API tells: the capacity of the windows, and of this process what the job has allocated. Names,
 * numbers and structures are NVML's; its header is not everywhere where this is built. Errors are the real one's.
 */

#define SUCCESS 0
#define UUID_CHARS 96

struct device; /* NVML's */
struct memory {
    unsigned long long total, free, used;
};
struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};
struct process_v1 {
    unsigned pid;
    unsigned long long used;
};
struct process {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
};

static int hex(char c)
{
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* "GPU-8-4-4-4-12", or "MIG-" and the same; false: another form. */
static bool parse_uuid(const char *text, unsigned char bytes_out[16])
{
    const char *at = strchr(text, '-');
    unsigned count = 0;
    for (at = at ? at + 1 : ""; *at && count < 32; at++) {
        int digit = hex(*at);
        if (*at == '-')
            continue;
        if (digit < 0)
            return false;
        bytes_out[count / 2] = (unsigned char)(count % 2 ? bytes_out[count / 2] << 4 | digit : digit);
        count++;
    }
    return count == 32 && *at == '\0';
}

static bool uuid_of(unsigned gpu, CUuuid *uuid_out)
{
    if (HR_HAS(cuDeviceGetUuid_v2)) /* of the instance, where a GPU is cut into several */
        return hr_drv.cuDeviceGetUuid_v2(uuid_out, hr_gpu_device(gpu)) == CUDA_SUCCESS;
    return hr_drv.cuDeviceGetUuid(uuid_out, hr_gpu_device(gpu)) == CUDA_SUCCESS;
}

/* NVML counts devices in its own order and does not know what CUDA_VISIBLE_DEVICES hides. -1: none of ours, or headroom takes no part. */
static int gpu_of(struct device *device)
{
    int (*ask)(struct device *, char *, unsigned) = hr_nvml_address(HR_NVML_nvmlDeviceGetUUID);
    char text[UUID_CHARS];
    unsigned char wanted[16];
    CUuuid uuid;
    if (!hr_active() || hr_depth > 0 || ask(device, text, sizeof text) != SUCCESS || !parse_uuid(text, wanted))
        return -1;
    HR_INSIDE();
    for (unsigned g = 0; g < hr_gpu_count(); g++)
        if (uuid_of(g, &uuid) && memcmp(uuid.bytes, wanted, sizeof wanted) == 0)
            return (int)g;
    return -1;
}

#define EXPORTED __attribute__((visibility("default")))
int nvmlDeviceGetMemoryInfo(struct device *device, struct memory *memory) EXPORTED;
int nvmlDeviceGetMemoryInfo_v2(struct device *device, struct memory_v2 *memory) EXPORTED;

int nvmlDeviceGetMemoryInfo(struct device *device, struct memory *memory)
{
    int (*real)(struct device *, struct memory *) = hr_nvml_address(HR_NVML_nvmlDeviceGetMemoryInfo);
    int code = real(device, memory), gpu = code == SUCCESS ? gpu_of(device) : -1;
    if (gpu >= 0) {
        memory->total = hr_gpu_total_bytes((unsigned)gpu);
        memory->free = hr_gpu_free_bytes((unsigned)gpu);
        memory->used = memory->total - memory->free;
    }
    return code;
}

/* The total has what is reserved in it, which the driver API does not count. */
int nvmlDeviceGetMemoryInfo_v2(struct device *device, struct memory_v2 *memory)
{
    int (*real)(struct device *, struct memory_v2 *) = hr_nvml_address(HR_NVML_nvmlDeviceGetMemoryInfo_v2);
    int code = real(device, memory), gpu = code == SUCCESS ? gpu_of(device) : -1;
    if (gpu >= 0) {
        size_t total = hr_gpu_total_bytes((unsigned)gpu);
        memory->free = hr_gpu_free_bytes((unsigned)gpu);
        memory->used = total - memory->free;
        memory->total = total + memory->reserved;
    }
    return code;
}

/* Lists of processes: *count entries were written. */
#define PROCESSES(name, type)                                                                                          \
    int name(struct device *device, unsigned *count, type *infos) EXPORTED;                                            \
    int name(struct device *device, unsigned *count, type *infos)                                                      \
    {                                                                                                                  \
        int (*real)(struct device *, unsigned *, type *) = hr_nvml_address(HR_NVML_##name);                            \
        int code = real(device, count, infos), gpu = code == SUCCESS && infos ? gpu_of(device) : -1;                   \
        for (unsigned i = 0; gpu >= 0 && i < *count; i++)                                                              \
            if (infos[i].pid == (unsigned)getpid())                                                                    \
                infos[i].used = hr_ledger_charged((unsigned)gpu);                                                      \
        return code;                                                                                                   \
    }
PROCESSES(nvmlDeviceGetComputeRunningProcesses, struct process_v1)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v2, struct process)
PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, struct process)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses, struct process_v1)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v2, struct process)
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, struct process)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses, struct process_v1)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v2, struct process)
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, struct process)
