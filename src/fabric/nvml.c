/*
 * Names, numbers and the one struct are NVML's, as every NVML has them; its header is not everywhere where this is built. Functions
 * that an old NVML lacks are done without.
 */
#include "fabric/nvml.h"

#include "base/loader.h"
#include "base/log.h"
#include "driver/nvml.h"
#include "fabric/rates.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SUCCESS 0
#define INVALID_ARGUMENT 2
#define NOT_SUPPORTED 3
#define TYPE_GPU 0
#define TYPE_PROCESSOR 1
#define TYPE_SWITCH 2
#define TYPE_UNKNOWN 255

struct nvml_pci {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
};

struct device; /* NVML's */

static struct {
    int (*init)(void);
    int (*shutdown)(void);
    int (*handle)(const char *bus_id, struct device **device);
    int (*link_state)(struct device *device, unsigned link, unsigned *active);
    int (*link_remote)(struct device *device, unsigned link, struct nvml_pci *pci);
    int (*link_type)(struct device *device, unsigned link, unsigned *type);
    int (*ancestor)(struct device *device, struct device *other, unsigned *level);
    int (*pcie_generation)(struct device *device, unsigned *generation);
    int (*pcie_width)(struct device *device, unsigned *width);
    int (*version)(char *text, unsigned bytes);
} nvml;
static bool usable;

static const struct {
    void *field;
    const char *name;
    bool needed;
} functions[] = {
    {&nvml.init, "nvmlInit_v2", true},
    {&nvml.shutdown, "nvmlShutdown", true},
    {&nvml.handle, "nvmlDeviceGetHandleByPciBusId_v2", true},
    {&nvml.link_state, "nvmlDeviceGetNvLinkState", false},
    {&nvml.link_remote, "nvmlDeviceGetNvLinkRemotePciInfo_v2", false},
    {&nvml.link_type, "nvmlDeviceGetNvLinkRemoteDeviceType", false},
    {&nvml.ancestor, "nvmlDeviceGetTopologyCommonAncestor", false},
    {&nvml.pcie_generation, "nvmlDeviceGetMaxPcieLinkGeneration", false},
    {&nvml.pcie_width, "nvmlDeviceGetMaxPcieLinkWidth", false},
    {&nvml.version, "nvmlSystemGetDriverVersion", false},
};

static void find(void)
{
    void *library = hr_nvml_library();

    if (!library) {
        hr_log(HR_LOG_INFO, "there is no NVML: links between GPUs are what the driver says");
        dlerror();
        return;
    }
    usable = true;
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *address = hr_loader_find(library, functions[i].name);
        memcpy(functions[i].field, &address, sizeof address);
        usable = usable && (address || !functions[i].needed);
    }
    dlerror(); /* what an old NVML lacks is nothing that the job's next dlerror should tell */
}

bool hr_nvml_begin(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, find);
    if (!usable)
        return false;
    int code = nvml.init();
    if (code != SUCCESS)
        hr_log(HR_LOG_INFO, "NVML does not start (code %d): links between GPUs are what the driver says", code);
    return code == SUCCESS;
}

void hr_nvml_end(void)
{
    nvml.shutdown();
}

static struct device *find_device(const char *bus_id)
{
    struct device *device = NULL;

    return nvml.handle(bus_id, &device) == SUCCESS ? device : NULL;
}

static enum hr_nvml_far far_end(struct device *device, unsigned link, const char *bus_id)
{
    struct device *other = NULL;
    unsigned type = TYPE_UNKNOWN;

    if (nvml.link_type && nvml.link_type(device, link, &type) == SUCCESS && type != TYPE_UNKNOWN)
        return type == TYPE_GPU ? HR_NVML_FAR_GPU : type == TYPE_PROCESSOR ? HR_NVML_FAR_PROCESSOR : HR_NVML_FAR_SWITCH;
    return nvml.handle(bus_id, &other) == SUCCESS ? HR_NVML_FAR_GPU : HR_NVML_FAR_SWITCH;
}

static void read_links(struct device *device, struct hr_nvml_gpu *gpu)
{
    struct nvml_pci pci;

    if (!nvml.link_state || !nvml.link_remote)
        return;
    for (unsigned link = 0; link < HR_NVML_LINKS; link++) {
        unsigned active = 0;
        int code = nvml.link_state(device, link, &active);
        if (code == INVALID_ARGUMENT) /* no GPU that this NVML knows has so many */
            return;
        gpu->told = gpu->told || code == SUCCESS || code == NOT_SUPPORTED;
        memset(&pci, 0, sizeof pci);
        if (code != SUCCESS || active != 1 || nvml.link_remote(device, link, &pci) != SUCCESS)
            continue;
        char *id = gpu->link[gpu->links].bus_id;
        pci.bus_id[sizeof pci.bus_id - 1] = 0;
        /* Links into a switch fabric that the driver manages by itself have no address at their far end. */
        if (pci.domain == UINT32_MAX || !hr_topology_bus_id(pci.bus_id, id))
            snprintf(id, HR_TOPOLOGY_NAME_BYTES, "nvswitch");
        gpu->link[gpu->links].far = far_end(device, link, pci.bus_id);
        gpu->links++;
    }
}

bool hr_nvml_gpu(const char *bus_id, struct hr_nvml_gpu *gpu_out)
{
    static const double speeds[] = {0, 2.5, 5, 8, 16, 32, 64};
    unsigned generation = 0, width = 0;

    memset(gpu_out, 0, sizeof *gpu_out);
    struct device *device = find_device(bus_id);
    if (!device)
        return false;
    read_links(device, gpu_out);
    if (nvml.pcie_generation && nvml.pcie_width && nvml.pcie_generation(device, &generation) == SUCCESS &&
        nvml.pcie_width(device, &width) == SUCCESS && generation < sizeof speeds / sizeof *speeds && width <= 64)
        gpu_out->pcie_gbps = hr_rates_pcie_gbps(speeds[generation], width);
    return true;
}

enum hr_meeting hr_nvml_meeting(const char *bus_id, const char *other)
{
    struct device *one = find_device(bus_id), *two = find_device(other);
    unsigned level;

    if (!one || !two || !nvml.ancestor || nvml.ancestor(one, two, &level) != SUCCESS)
        return HR_MEET_UNKNOWN;
    if (level <= 10) /* on one board, or below one PCIe switch */
        return HR_MEET_PIX;
    return level <= 20 ? HR_MEET_PXB : level <= 30 ? HR_MEET_PHB : level <= 40 ? HR_MEET_NODE : HR_MEET_SYS;
}

void hr_nvml_driver_version(char *text_out, size_t bytes)
{
    if (!nvml.version || nvml.version(text_out, (unsigned)bytes) != SUCCESS)
        text_out[0] = 0;
}
