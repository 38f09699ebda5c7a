/* NVML's part about links and what lies between cards, and what is not simulated. */
#include "simgpu/nvml/nvml.h"

#include <stddef.h>

/* As NVML does: a number that no card has is an argument error, a card without that link does not support it. */
static nvmlReturn_t look(nvmlDevice_t device, unsigned link, const void *out, struct sg_smi_link *link_out)
{
    const struct sg_smi *smi;
    int card;
    nvmlReturn_t r = sg_nvml_card(device, &smi, &card);
    if (r)
        return r;
    if (!out || link >= NVML_NVLINK_MAX_LINKS)
        return NVML_ERROR_INVALID_ARGUMENT;
    return smi->link(card, link, link_out) ? NVML_SUCCESS : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetNvLinkState(nvmlDevice_t device, unsigned link, int *is_active)
{
    struct sg_smi_link l;
    nvmlReturn_t r = look(device, link, is_active, &l);
    if (!r)
        *is_active = l.up;
    return r;
}

nvmlReturn_t nvmlDeviceGetNvLinkVersion(nvmlDevice_t device, unsigned link, unsigned *version)
{
    struct sg_smi_link l;
    struct sg_smi_card c;
    const struct sg_smi *smi;
    int card;
    nvmlReturn_t r = look(device, link, version, &l);
    if (!r)
        r = sg_nvml_card(device, &smi, &card);
    if (!r && smi->card(card, &c)) /* NVML's numbers: 2.0 is 2, 3.0 is 5, 4.0 is 7 */
        *version = c.major < 8 ? 2 : c.major == 8 ? 5 : 7;
    return r;
}

nvmlReturn_t nvmlDeviceGetNvLinkCapability(nvmlDevice_t device, unsigned link, int capability, unsigned *result)
{
    struct sg_smi_link l;
    nvmlReturn_t r = look(device, link, result, &l);
    if (!r && (capability < NVML_NVLINK_CAP_P2P_SUPPORTED || capability > NVML_NVLINK_CAP_VALID))
        r = NVML_ERROR_INVALID_ARGUMENT;
    if (r)
        return r;
    bool peers = l.far_end != SG_SMI_PROCESSOR;
    switch (capability) {
    case NVML_NVLINK_CAP_P2P_SUPPORTED:
    case NVML_NVLINK_CAP_P2P_ATOMICS: *result = peers; break;
    case NVML_NVLINK_CAP_SYSMEM_ACCESS:
    case NVML_NVLINK_CAP_SYSMEM_ATOMICS: *result = !peers; break;
    case NVML_NVLINK_CAP_VALID: *result = 1; break;
    default: *result = 0;
    }
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo_v2(nvmlDevice_t device, unsigned link, nvmlPciInfo_t *pci)
{
    struct sg_smi_link l;
    nvmlReturn_t r = look(device, link, pci, &l);
    if (!r)
        sg_nvml_pci(&l.pci, 0, pci);
    return r;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemotePciInfo(nvmlDevice_t device, unsigned link, nvmlPciInfo_v2_t *pci)
{
    struct sg_smi_link l;
    nvmlReturn_t r = look(device, link, pci, &l);
    if (!r)
        sg_nvml_pci_v2(&l.pci, 0, pci);
    return r;
}

nvmlReturn_t nvmlDeviceGetNvLinkRemoteDeviceType(nvmlDevice_t device, unsigned link, int *type)
{
    struct sg_smi_link l;
    nvmlReturn_t r = look(device, link, type, &l);
    if (!r)
        *type = l.far_end == SG_SMI_CARD     ? NVML_NVLINK_DEVICE_TYPE_GPU
                : l.far_end == SG_SMI_SWITCH ? NVML_NVLINK_DEVICE_TYPE_SWITCH
                                             : NVML_NVLINK_DEVICE_TYPE_IBMNPU;
    return r;
}

/* ---- two cards ---- */

static const int levels[] = {[SG_SMI_BRIDGE] = NVML_TOPOLOGY_SINGLE,
                             [SG_SMI_BRIDGES] = NVML_TOPOLOGY_MULTIPLE,
                             [SG_SMI_SOCKET] = NVML_TOPOLOGY_HOSTBRIDGE,
                             [SG_SMI_SYSTEM] = NVML_TOPOLOGY_SYSTEM};

/* Of one card with itself *same_out is true, and the pair is not filled in. */
static nvmlReturn_t look_at_two(nvmlDevice_t one, nvmlDevice_t two, const void *out, struct sg_smi_pair *pair_out,
                                bool *same_out)
{
    const struct sg_smi *smi;
    int a, b;
    nvmlReturn_t r = sg_nvml_card(one, &smi, &a);
    if (!r)
        r = sg_nvml_card(two, &smi, &b);
    if (r || !out)
        return r ? r : NVML_ERROR_INVALID_ARGUMENT;
    *same_out = a == b;
    return *same_out || smi->pair(a, b, pair_out) ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t one, nvmlDevice_t two, int *level)
{
    struct sg_smi_pair p;
    bool same;
    nvmlReturn_t r = look_at_two(one, two, level, &p, &same);
    if (!r)
        *level = same ? NVML_TOPOLOGY_INTERNAL : levels[p.common];
    return r;
}

nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, int level, unsigned *count, nvmlDevice_t *devices)
{
    const struct sg_smi *smi;
    int card;
    nvmlReturn_t r = sg_nvml_card(device, &smi, &card);
    if (r)
        return r;
    if (!count || (*count && !devices) || level < NVML_TOPOLOGY_INTERNAL || level > NVML_TOPOLOGY_SYSTEM)
        return NVML_ERROR_INVALID_ARGUMENT;
    unsigned room = *count, n = 0;
    for (int i = 0; i < smi->count(); i++) {
        struct sg_smi_pair p;
        if (i == card || !smi->pair(card, i, &p) || levels[p.common] != level)
            continue;
        if (n < room)
            devices[n] = sg_nvml_handle(i);
        n++;
    }
    *count = n; /* asked with 0 for how many there are, too */
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t one, nvmlDevice_t two, int index, int *status)
{
    struct sg_smi_pair p;
    bool same;
    nvmlReturn_t r = look_at_two(one, two, status, &p, &same);
    if (!r && (same || index < NVML_P2P_CAPS_INDEX_READ || index > NVML_P2P_CAPS_INDEX_PCI))
        r = NVML_ERROR_INVALID_ARGUMENT;
    if (r)
        return r;
    int none =
        p.common == SG_SMI_SYSTEM ? NVML_P2P_STATUS_IOH_TOPOLOGY_NOT_SUPPORTED : NVML_P2P_STATUS_GPU_NOT_SUPPORTED;
    switch (index) {
    case NVML_P2P_CAPS_INDEX_READ:
    case NVML_P2P_CAPS_INDEX_WRITE: *status = p.access ? NVML_P2P_STATUS_OK : none; break;
    case NVML_P2P_CAPS_INDEX_NVLINK: *status = p.nvlink ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_NOT_SUPPORTED; break;
    case NVML_P2P_CAPS_INDEX_ATOMICS: *status = p.atomics ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_NOT_SUPPORTED; break;
    default: *status = p.access && !p.nvlink ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_NOT_SUPPORTED;
    }
    return NVML_SUCCESS;
}

/* ---- what is not simulated ---- */

static nvmlReturn_t not_simulated(nvmlDevice_t device)
{
    const struct sg_smi *smi;
    int card;
    nvmlReturn_t r = sg_nvml_card(device, &smi, &card);
    return r ? r : NVML_ERROR_NOT_SUPPORTED;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, void *rates)
{
    (void)rates;
    return not_simulated(device);
}

nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned *degrees)
{
    (void)sensor, (void)degrees;
    return not_simulated(device);
}

nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned *milliwatts)
{
    (void)milliwatts;
    return not_simulated(device);
}

nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned *milliwatts)
{
    (void)milliwatts;
    return not_simulated(device);
}

nvmlReturn_t nvmlDeviceGetFanSpeed(nvmlDevice_t device, unsigned *percent)
{
    (void)percent;
    return not_simulated(device);
}

nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, int *mode)
{
    (void)mode;
    return not_simulated(device);
}

nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, int *state)
{
    (void)state;
    return not_simulated(device);
}

nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, int type, unsigned *mhz)
{
    (void)type, (void)mhz;
    return not_simulated(device);
}

nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned length)
{
    (void)serial, (void)length;
    return not_simulated(device);
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned *current, unsigned *pending)
{
    (void)current, (void)pending;
    return not_simulated(device);
}
