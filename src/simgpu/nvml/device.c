/*
 * A small NVML on top of simgpu's driver: start, cards, memory and processes.
 *
 * The driver is the libcuda.so.1 in the folder that this library lies in, by path: what else bears that name in the process may be
 * headroom's. So it is opened by dlmopen into the program's own namespace, which is dlopen in all but that nothing stands before it.
 */
#include "simgpu/nvml/nvml.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HANDLES 0x51a0u            /* of cards: never a pointer, and not a small number that passes for one by luck */
#define DRIVER_VERSION "580.65.06" /* of CUDA 13.0 */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned inits; /* under lock, as the next */
static const struct sg_smi *table;

static const struct sg_smi *find_driver(void)
{
    Dl_info self;
    char path[4096];
    if (!dladdr((void *)(uintptr_t)&nvmlInit_v2, &self) || !self.dli_fname)
        return NULL;
    const char *slash = strrchr(self.dli_fname, '/');
    int n =
        snprintf(path, sizeof path, "%.*slibcuda.so.1", slash ? (int)(slash - self.dli_fname + 1) : 0, self.dli_fname);
    if (n < 0 || (size_t)n >= sizeof path)
        return NULL;
    void *driver = dlmopen(LM_ID_BASE, path, RTLD_NOW | RTLD_LOCAL);
    const struct sg_smi *(*get)(void) = NULL;
    if (driver)
        *(void **)&get = dlsym(driver, "sg_smi");
    const struct sg_smi *found = get ? get() : NULL;
    return found && found->version == SG_SMI_VERSION ? found : NULL;
}

nvmlReturn_t nvmlInitWithFlags(unsigned flags)
{
    nvmlReturn_t r = NVML_SUCCESS;
    (void)flags; /* they say what may be missing: nothing is */
    pthread_mutex_lock(&lock);
    if (!table)
        table = find_driver();
    if (!table)
        r = NVML_ERROR_DRIVER_NOT_LOADED;
    else if (!table->init())
        r = NVML_ERROR_UNKNOWN;
    else
        inits++;
    pthread_mutex_unlock(&lock);
    return r;
}

nvmlReturn_t nvmlInit(void)
{
    return nvmlInitWithFlags(0);
}

nvmlReturn_t nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

nvmlReturn_t nvmlShutdown(void)
{
    pthread_mutex_lock(&lock);
    nvmlReturn_t r = inits ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
    inits -= inits != 0;
    pthread_mutex_unlock(&lock);
    return r;
}

nvmlReturn_t sg_nvml_enter(const struct sg_smi **smi_out)
{
    pthread_mutex_lock(&lock);
    bool ready = inits != 0;
    *smi_out = table;
    pthread_mutex_unlock(&lock);
    return ready ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
}

nvmlDevice_t sg_nvml_handle(int card)
{
    return (nvmlDevice_t)(uintptr_t)(HANDLES + 16 * (unsigned)card); /* NOLINT(performance-no-int-to-ptr) */
}

nvmlReturn_t sg_nvml_card(nvmlDevice_t device, const struct sg_smi **smi_out, int *card_out)
{
    nvmlReturn_t r = sg_nvml_enter(smi_out);
    if (r)
        return r;
    for (int i = 0; i < (*smi_out)->count(); i++) {
        if (sg_nvml_handle(i) == device) {
            *card_out = i;
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_INVALID_ARGUMENT;
}

const char *nvmlErrorString(nvmlReturn_t result)
{
    switch (result) {
    case NVML_SUCCESS: return "Success";
    case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "Argument Version Mismatch";
    default: return "Unknown Error";
    }
}

/* ---- the system ---- */

static nvmlReturn_t give_text(char *to, unsigned length, const char *text)
{
    if (!to)
        return NVML_ERROR_INVALID_ARGUMENT;
    if (length <= strlen(text))
        return NVML_ERROR_INSUFFICIENT_SIZE;
    memcpy(to, text, strlen(text) + 1);
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    const struct sg_smi *smi;
    nvmlReturn_t r = sg_nvml_enter(&smi);
    return r ? r : give_text(version, length, DRIVER_VERSION);
}

nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length)
{
    return give_text(version, length, "13." DRIVER_VERSION); /* needs no nvmlInit */
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    const struct sg_smi *smi;
    nvmlReturn_t r = sg_nvml_enter(&smi);
    if (!r && !version)
        r = NVML_ERROR_INVALID_ARGUMENT;
    if (!r)
        *version = smi->cuda_version;
    return r;
}

nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    return nvmlSystemGetCudaDriverVersion(version);
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count)
{
    const struct sg_smi *smi;
    nvmlReturn_t r = sg_nvml_enter(&smi);
    if (!r && !count)
        r = NVML_ERROR_INVALID_ARGUMENT;
    if (!r)
        *count = (unsigned)smi->count();
    return r;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned *count)
{
    return nvmlDeviceGetCount_v2(count);
}

/* ---- handles ---- */

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device)
{
    const struct sg_smi *smi;
    nvmlReturn_t r = sg_nvml_enter(&smi);
    if (!r && (!device || index >= (unsigned)smi->count()))
        r = NVML_ERROR_INVALID_ARGUMENT;
    if (!r)
        *device = sg_nvml_handle((int)index);
    return r;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

/* "[domain:]bus:device[.function]", in hexadecimal */
static bool parse_bus_id(const char *id, struct sg_smi_pci *out)
{
    unsigned long part[3] = {0, 0, 0};
    int n = 0, colons = 0;
    char *end;
    for (const char *c = id; *c; c++)
        colons += *c == ':';
    if (colons < 1 || colons > 2)
        return false;
    for (n = 2 - colons; n < 3; n++) {
        part[n] = strtoul(id, &end, 16);
        if (end == id || (n < 2 && *end != ':') || (n == 2 && *end && *end != '.'))
            return false;
        id = end + (*end != 0);
    }
    *out =
        (struct sg_smi_pci){(unsigned)part[0], (unsigned)part[1], (unsigned)part[2], (unsigned)strtoul(id, NULL, 16)};
    return true;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *device)
{
    const struct sg_smi *smi;
    struct sg_smi_pci at;
    nvmlReturn_t r = sg_nvml_enter(&smi);
    if (r)
        return r;
    if (!id || !device || !parse_bus_id(id, &at))
        return NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; i < smi->count(); i++) {
        struct sg_smi_card c;
        if (smi->card(i, &c) && c.pci.domain == at.domain && c.pci.bus == at.bus && c.pci.slot == at.slot &&
            c.pci.function == at.function) {
            *device = sg_nvml_handle(i);
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *id, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByPciBusId_v2(id, device);
}

static void uuid_text(const uint8_t *b, char *text, size_t bytes)
{
    snprintf(text, bytes, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1], b[2],
             b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    const struct sg_smi *smi;
    nvmlReturn_t r = sg_nvml_enter(&smi);
    if (r)
        return r;
    if (!uuid || !device)
        return NVML_ERROR_INVALID_ARGUMENT;
    for (int i = 0; i < smi->count(); i++) {
        struct sg_smi_card c;
        char text[64];
        if (!smi->card(i, &c))
            continue;
        uuid_text(c.uuid, text, sizeof text);
        if (!strcmp(text, uuid)) {
            *device = sg_nvml_handle(i);
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

/* ---- cards ---- */

static nvmlReturn_t look(nvmlDevice_t device, const void *out, struct sg_smi_card *card_out)
{
    const struct sg_smi *smi;
    int card;
    nvmlReturn_t r = sg_nvml_card(device, &smi, &card);
    if (r)
        return r;
    return out && smi->card(card, card_out) ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index)
{
    const struct sg_smi *smi;
    int card;
    nvmlReturn_t r = sg_nvml_card(device, &smi, &card);
    if (!r && !index)
        r = NVML_ERROR_INVALID_ARGUMENT;
    if (!r)
        *index = (unsigned)card;
    return r;
}

nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *number)
{
    return nvmlDeviceGetIndex(device, number);
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned length)
{
    struct sg_smi_card c;
    nvmlReturn_t r = look(device, name, &c);
    return r ? r : give_text(name, length, c.name);
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length)
{
    struct sg_smi_card c;
    char text[64];
    nvmlReturn_t r = look(device, uuid, &c);
    if (r)
        return r;
    uuid_text(c.uuid, text, sizeof text);
    return give_text(uuid, length, text);
}

void sg_nvml_pci(const struct sg_smi_pci *at, unsigned pci_id, nvmlPciInfo_t *out)
{
    memset(out, 0, sizeof *out);
    snprintf(out->busIdLegacy, sizeof out->busIdLegacy, "%04X:%02X:%02X.%X", at->domain & 0xffff, at->bus & 0xff,
             at->slot & 0xff, at->function & 0xf);
    snprintf(out->busId, sizeof out->busId, "%08X:%02X:%02X.%X", at->domain, at->bus, at->slot, at->function);
    out->domain = at->domain;
    out->bus = at->bus;
    out->device = at->slot;
    out->pciDeviceId = pci_id;
    out->pciSubSystemId = pci_id ? 0x10de : 0;
}

void sg_nvml_pci_v2(const struct sg_smi_pci *at, unsigned pci_id, nvmlPciInfo_v2_t *out)
{
    nvmlPciInfo_t full;
    sg_nvml_pci(at, pci_id, &full);
    memset(out, 0, sizeof *out);
    memcpy(out->busId, full.busIdLegacy, sizeof out->busId);
    out->domain = full.domain;
    out->bus = full.bus;
    out->device = full.device;
    out->pciDeviceId = full.pciDeviceId;
    out->pciSubSystemId = full.pciSubSystemId;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci)
{
    struct sg_smi_card c;
    nvmlReturn_t r = look(device, pci, &c);
    if (!r)
        sg_nvml_pci(&c.pci, c.pci_id, pci);
    return r;
}

nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_v2_t *pci)
{
    struct sg_smi_card c;
    nvmlReturn_t r = look(device, pci, &c);
    if (!r)
        sg_nvml_pci_v2(&c.pci, c.pci_id, pci);
    return r;
}

nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_v2_t *pci)
{
    nvmlPciInfo_v2_t full;
    nvmlReturn_t r = pci ? nvmlDeviceGetPciInfo_v2(device, &full) : NVML_ERROR_INVALID_ARGUMENT;
    if (!r) /* the first form of the struct ended with pciDeviceId */
        memcpy(pci, &full, __builtin_offsetof(nvmlPciInfo_v2_t, pciSubSystemId));
    return r;
}

nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    struct sg_smi_card c;
    nvmlReturn_t r = look(device, major && minor ? major : NULL, &c);
    if (!r) {
        *major = c.major;
        *minor = c.minor;
    }
    return r;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    struct sg_smi_card c;
    nvmlReturn_t r = look(device, memory, &c);
    if (!r)
        *memory = (nvmlMemory_t){c.total_bytes, c.total_bytes - c.used_bytes, c.used_bytes};
    return r;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    struct sg_smi_card c;
    nvmlReturn_t r = look(device, memory, &c);
    if (!r && memory->version != NVML_MEMORY_V2)
        r = NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    if (!r)
        *memory = (nvmlMemory_v2_t){NVML_MEMORY_V2, c.total_bytes, 0, c.total_bytes - c.used_bytes, c.used_bytes};
    return r;
}

nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, int *mode)
{
    struct sg_smi_card c;
    nvmlReturn_t r = look(device, mode, &c);
    if (!r)
        *mode = 0; /* default: any number of processes */
    return r;
}

nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, int *current, int *pending)
{
    struct sg_smi_card c;
    nvmlReturn_t r = look(device, current && pending ? current : NULL, &c);
    if (!r && !c.ecc)
        r = NVML_ERROR_NOT_SUPPORTED;
    if (!r)
        *current = *pending = 1;
    return r;
}

/* ---- processes ---- */

#define MOST_PROCESSES 256

/* As NVML does: too little room tells how much is needed. */
static nvmlReturn_t running(nvmlDevice_t device, unsigned *count, const void *infos, struct sg_smi_process *list)
{
    const struct sg_smi *smi;
    int card;
    nvmlReturn_t r = sg_nvml_card(device, &smi, &card);
    if (r)
        return r;
    if (!count || (*count && !infos))
        return NVML_ERROR_INVALID_ARGUMENT;
    unsigned n = smi->processes(card, list, MOST_PROCESSES), room = *count;
    *count = n;
    return n > room || n > MOST_PROCESSES ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v1_t *infos)
{
    struct sg_smi_process list[MOST_PROCESSES];
    nvmlReturn_t r = running(device, count, infos, list);
    for (unsigned i = 0; !r && i < *count; i++)
        infos[i] = (nvmlProcessInfo_v1_t){list[i].pid, list[i].used_bytes};
    return r;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos)
{
    struct sg_smi_process list[MOST_PROCESSES];
    nvmlReturn_t r = running(device, count, infos, list);
    for (unsigned i = 0; !r && i < *count; i++)
        infos[i] = (nvmlProcessInfo_t){list[i].pid, list[i].used_bytes, 0xffffffff, 0xffffffff};
    return r;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos)
{
    return nvmlDeviceGetComputeRunningProcesses_v3(device, count, infos);
}

/* Nothing draws here. */
static nvmlReturn_t none(nvmlDevice_t device, unsigned *count)
{
    const struct sg_smi *smi;
    int card;
    nvmlReturn_t r = sg_nvml_card(device, &smi, &card);
    if (!r && !count)
        r = NVML_ERROR_INVALID_ARGUMENT;
    if (!r)
        *count = 0;
    return r;
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_v1_t *infos)
{
    (void)infos;
    return none(device, count);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos)
{
    (void)infos;
    return none(device, count);
}

nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t device, unsigned *count, nvmlProcessInfo_t *infos)
{
    (void)infos;
    return none(device, count);
}
