/* Asks the sources one after the other. What they say is put together in merge.c. */
#include "fabric/discover.h"

#include "base/config.h"
#include "base/log.h"
#include "driver/driver.h"
#include "fabric/sources.h"
#include "fabric/text.h"
#include "fabric/verify.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void hr_discovery_destroy(struct hr_discovery *discovery)
{
    if (!discovery)
        return;
    hr_topology_destroy(discovery->topology);
    free(discovery->gpu);
    free(discovery->pair);
    free(discovery);
}

const char *hr_pair_complaint(enum hr_pair_state state)
{
    switch (state) {
    case HR_PAIR_CORRUPTS: return "copies arrive wrong";
    case HR_PAIR_HANGS: return "copies do not end";
    case HR_PAIR_FAILS: return "copies fail";
    default: return "";
    }
}

static int refuse_driver(struct hr_text_error *why, const char *function, CUresult result)
{
    hr_text_refuse(why, 0, "%s gave %d", function, (int)result);
    return -EIO;
}

/* The driver's attributes, since its text leaves out what stands before a domain of more than four digits. */
void hr_discover_bus_id(int device, char *id_out)
{
    int domain = 0, bus = 0, slot = 0;

    hr_drv.cuDeviceGetAttribute(&domain, CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, device);
    hr_drv.cuDeviceGetAttribute(&bus, CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, device);
    hr_drv.cuDeviceGetAttribute(&slot, CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, device);
    snprintf(id_out, HR_TOPOLOGY_NAME_BYTES, "%04x:%02x:%02x.0", (unsigned)domain, (unsigned)bus, (unsigned)slot);
}

static int ask_gpu(struct hr_discovered_gpu *gpu, int ordinal, struct hr_text_error *why)
{
    CUdevice device;
    CUuuid uuid;
    int major = 0, minor = 0;
    CUresult r = hr_drv.cuDeviceGet(&device, ordinal);

    if (r != CUDA_SUCCESS)
        return refuse_driver(why, "cuDeviceGet", r);
    hr_discover_bus_id(device, gpu->bus_id);
    hr_drv.cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    hr_drv.cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
    gpu->generation = (uint32_t)(major * 10 + minor);
    if (hr_drv.cuDeviceGetName(gpu->name, (int)sizeof gpu->name, device) != CUDA_SUCCESS)
        gpu->name[0] = 0;
    memset(&uuid, 0, sizeof uuid);
    if (hr_drv.cuDeviceGetUuid_v2(&uuid, device) != CUDA_SUCCESS)
        hr_drv.cuDeviceGetUuid(&uuid, device);
    int n = snprintf(gpu->id, sizeof gpu->id, "%s/", gpu->bus_id);
    for (int i = 0; i < 8; i++)
        n += snprintf(gpu->id + n, sizeof gpu->id - (size_t)n, "%02x", (unsigned char)uuid.bytes[i]);
    return 0;
}

static int ask_p2p(CUdevice_P2PAttribute attribute, CUdevice from, CUdevice to, int unknown)
{
    int value = unknown;

    return hr_drv.cuDeviceGetP2PAttribute(&value, attribute, from, to) == CUDA_SUCCESS ? value : unknown;
}

static void ask_pair(struct hr_pair *pair, int from, int to)
{
    CUdevice a, b;
    int can = 0;

    *pair = (struct hr_pair){.rank = -1};
    if (from == to || hr_drv.cuDeviceGet(&a, from) != CUDA_SUCCESS || hr_drv.cuDeviceGet(&b, to) != CUDA_SUCCESS)
        return;
    if (hr_drv.cuDeviceCanAccessPeer(&can, a, b) != CUDA_SUCCESS)
        can = 0;
    pair->access = can && ask_p2p(CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, a, b, 1) != 0;
    pair->atomics = pair->access && ask_p2p(CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, a, b, 0) != 0;
    pair->rank = ask_p2p(CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK, a, b, -1);
}

static int ask_driver(struct hr_discovery *found, struct hr_text_error *why)
{
    int count = 0, rc = 0;
    CUresult r = hr_drv.cuDeviceGetCount(&count);

    if (r != CUDA_SUCCESS && r != CUDA_ERROR_NO_DEVICE)
        return refuse_driver(why, "cuDeviceGetCount", r);
    if (count < 1 || count > HR_TOPOLOGY_MAX_PORTS) {
        hr_text_refuse(why, 0, "%s", count < 1 ? "no GPU" : "more GPUs than 256");
        return -ENODEV;
    }
    found->gpus = (uint32_t)count;
    found->gpu = calloc(found->gpus, sizeof *found->gpu);
    found->pair = calloc((size_t)found->gpus * found->gpus, sizeof *found->pair);
    if (!found->gpu || !found->pair)
        return -ENOMEM;
    for (int i = 0; rc == 0 && i < count; i++)
        rc = ask_gpu(&found->gpu[i], i, why);
    for (int i = 0; rc == 0 && i < count * count; i++)
        ask_pair(&found->pair[i], i / count, i % count);
    snprintf(found->driver, sizeof found->driver, "%d", hr_driver_version());
    return rc;
}

/* What NVML says of the GPUs that the driver has told. */
static int ask_nvml(struct hr_sources *sources)
{
    struct hr_discovery *found = sources->found;
    uint32_t gpus = found->gpus;
    char version[40];

    sources->meeting = calloc((size_t)gpus * gpus, 1);
    if (!sources->meeting)
        return -ENOMEM;
    if (!hr_nvml_begin())
        return 0;
    sources->nvml = calloc(gpus, sizeof *sources->nvml);
    for (uint32_t i = 0; sources->nvml && i < gpus; i++) {
        hr_nvml_gpu(found->gpu[i].bus_id, &sources->nvml[i]);
        for (uint32_t j = 0; j < gpus; j++) {
            bool one_card = strcmp(found->gpu[i].bus_id, found->gpu[j].bus_id) == 0;
            sources->meeting[i * gpus + j] =
                one_card ? (uint8_t)HR_MEET_PIX : (uint8_t)hr_nvml_meeting(found->gpu[i].bus_id, found->gpu[j].bus_id);
        }
    }
    hr_nvml_driver_version(version, sizeof version);
    version[strcspn(version, " \t\n")] = 0;
    if (version[0])
        snprintf(found->driver, sizeof found->driver, "%d-%s", hr_driver_version(), version);
    hr_nvml_end();
    return sources->nvml ? 0 : -ENOMEM;
}

/* The file's element of a GPU, or -1: bus ids may be written with more digits there. */
static int find_in_file(const struct hr_topology *file, const char *bus_id)
{
    char id[HR_TOPOLOGY_NAME_BYTES];

    for (uint32_t i = 0; i < file->gpu_count; i++) {
        if (hr_topology_bus_id(file->elements[file->gpus[i]].name, id) && strcmp(id, bus_id) == 0)
            return (int)file->gpus[i];
    }
    return -1;
}

static int match_file(struct hr_sources *sources, const char *variable)
{
    uint32_t gpus = sources->found->gpus;

    sources->in_file = calloc(gpus, sizeof *sources->in_file);
    for (uint32_t i = 0; sources->in_file && i < gpus; i++) {
        const char *bus_id = sources->found->gpu[i].bus_id;
        int element = find_in_file(sources->file, bus_id);
        bool twice = false;
        for (uint32_t j = 0; j < i; j++)
            twice = twice || sources->in_file[j] == (uint32_t)element;
        if (element < 0 || twice) {
            hr_log_once(HR_LOG_WARN, "%s=%s: GPU %u (%s) %s; going without the file", variable, sources->file_path, i,
                        bus_id, twice ? "is a part of a card, which it cannot tell" : "is not in it");
            hr_topology_destroy(sources->file);
            sources->file = NULL;
            return 0;
        }
        sources->in_file[i] = (uint32_t)element;
    }
    return sources->in_file ? 0 : -ENOMEM;
}

static int ask_file(struct hr_sources *sources)
{
    const char *variable = "HEADROOM_TOPO", *path = hr_config()->topo;
    struct hr_text_error error;

    if (!path[0]) {
        variable = "NCCL_TOPO_FILE";
        path = getenv(variable);
    }
    if (!path || !path[0])
        return 0;
    int rc = hr_discover_file(path, &sources->file, &error);
    if (rc != 0) {
        sources->file = NULL;
        if (rc == -ENOMEM)
            return rc;
        if (error.line)
            hr_log_once(HR_LOG_WARN, "%s=%s: line %u: %s; going without it", variable, path, error.line, error.text);
        else
            hr_log_once(HR_LOG_WARN, "%s=%s: %s; going without it", variable, path, error.text);
        return 0;
    }
    sources->file_path = path;
    return match_file(sources, variable);
}

/* Memory and generations are the driver's to tell, whoever told the rest. */
static void fill_gpus(struct hr_discovery *found)
{
    for (uint32_t i = 0; i < found->gpus; i++) {
        struct hr_element *element = &found->topology->elements[found->topology->gpus[i]];
        CUdevice device;
        size_t bytes = 0;
        if (hr_drv.cuDeviceGet(&device, (int)i) == CUDA_SUCCESS &&
            hr_drv.cuDeviceTotalMem_v2(&bytes, device) == CUDA_SUCCESS)
            element->memory_bytes = bytes;
        if (!(element->generation & 0x80000000u))
            element->generation = found->gpu[i].generation;
    }
}

/* What copies have shown of the same GPUs. */
static void take_over(const struct hr_discovery *before, struct hr_discovery *found)
{
    if (before->gpus != found->gpus)
        return;
    for (uint32_t i = 0; i < found->gpus; i++) {
        if (strcmp(before->gpu[i].id, found->gpu[i].id) != 0)
            return;
    }
    for (uint32_t i = 0; i < found->gpus; i++) {
        found->gpu[i].to_host_gbps = before->gpu[i].to_host_gbps;
        found->gpu[i].from_host_gbps = before->gpu[i].from_host_gbps;
        found->gpu[i].switch_links = before->gpu[i].switch_links;
    }
    for (uint32_t i = 0; i < found->gpus * found->gpus; i++) {
        const struct hr_pair now = found->pair[i];
        found->pair[i] = before->pair[i];
        found->pair[i].access = now.access;
        found->pair[i].atomics = now.atomics;
        found->pair[i].rank = now.rank;
    }
}

static int discover(enum hr_discover_copies copies, const struct hr_discovery *before, struct hr_discovery **out,
                    struct hr_text_error *why)
{
    struct hr_sources sources = {.found = calloc(1, sizeof *sources.found)};
    struct hr_text_error unused;

    why = why ? why : &unused;
    memset(why, 0, sizeof *why);
    int rc = sources.found ? ask_driver(sources.found, why) : -ENOMEM;
    if (rc == 0)
        rc = ask_nvml(&sources);
    if (rc == 0)
        rc = ask_file(&sources);
    if (rc == 0)
        rc = hr_sources_merge(&sources);
    if (rc == 0) {
        fill_gpus(sources.found);
        if (before)
            take_over(before, sources.found);
        else
            hr_verify(sources.found, copies);
        hr_calibrate(sources.found);
        if (sources.file)
            hr_source_apply_extras(sources.file_path, sources.found->topology);
        *out = sources.found;
    } else {
        hr_discovery_destroy(sources.found);
    }
    hr_topology_destroy(sources.file);
    free(sources.in_file);
    free(sources.nvml);
    free(sources.meeting);
    if (rc != 0 && !why->text[0])
        hr_text_refuse(why, 0, "%s", strerror(-rc));
    return rc;
}

int hr_discover_machine(enum hr_discover_copies copies, struct hr_discovery **out, struct hr_text_error *why)
{
    return discover(copies, NULL, out, why);
}

static _Atomic(struct hr_discovery *) of_process;

const struct hr_discovery *hr_discovery_of_process(void)
{
    return atomic_load(&of_process);
}

/* All of it once more, for a caller that will change it. */
static int copy_topology(const struct hr_topology *topology, struct hr_topology **out)
{
    return hr_topology_pick(topology, topology->gpus, topology->gpu_count, HR_LINKS_ALL, out);
}

int hr_discover(struct hr_topology **out, struct hr_text_error *why)
{
    struct hr_discovery *found, *before = atomic_load(&of_process);
    enum hr_discover_copies copies = hr_config()->verify == HR_VERIFY_OFF ? HR_COPIES_KEPT : HR_COPIES_MISSING;

    int rc = discover(copies, before, &found, why);
    if (rc != 0)
        return rc;
    rc = copy_topology(found->topology, out);
    if (rc != 0 || before || !atomic_compare_exchange_strong(&of_process, &before, found))
        hr_discovery_destroy(found); /* what was found first stays; so does another thread's, which says the same */
    return rc;
}
