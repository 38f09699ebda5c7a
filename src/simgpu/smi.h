/*
 * What simgpu's libnvidia-ml.so.1 asks of its libcuda.so.1: one exported function, found by dlsym, gives a table of others. So
 * both tell the same of the same cards, and a program that only watches needs no cuInit.
 *
 * Each call takes and releases sg.lock. Numbers of cards are CUDA's.
 */
#ifndef SG_SMI_H
#define SG_SMI_H

#include <stdbool.h>
#include <stdint.h>

#define SG_SMI_VERSION 1
#define SG_SMI_CARDS 16

struct sg_smi_pci {
    unsigned domain, bus, slot, function;
};
struct sg_smi_card {
    char name[96];
    uint8_t uuid[16];
    struct sg_smi_pci pci;
    unsigned pci_id; /* device << 16 | vendor */
    int major, minor;
    bool ecc, peer;
    uint64_t total_bytes, used_bytes;
    unsigned links; /* NVLink */
};
struct sg_smi_process {
    unsigned pid;
    uint64_t used_bytes;
};
enum sg_smi_far_end { SG_SMI_CARD, SG_SMI_SWITCH, SG_SMI_PROCESSOR };
struct sg_smi_link {
    bool up;
    enum sg_smi_far_end far_end;
    struct sg_smi_pci pci; /* of the far end, if it is no processor */
};
/* How close two cards are: one PCIe bridge, several, one socket, more. */
enum sg_smi_common { SG_SMI_BRIDGE, SG_SMI_BRIDGES, SG_SMI_SOCKET, SG_SMI_SYSTEM };
struct sg_smi_pair {
    enum sg_smi_common common;
    bool access, atomics, nvlink; /* nvlink: over links of their own or switches */
};

struct sg_smi { /* all but init: after it; false: no such card or link */
    uint32_t version;
    int cuda_version;
    bool (*init)(void); /* false: the settings are bad, which has been told */
    int (*count)(void);
    bool (*card)(int card, struct sg_smi_card *out);
    bool (*link)(int card, unsigned link, struct sg_smi_link *out);
    bool (*pair)(int a, int b, struct sg_smi_pair *out);
    /* The processes of this user that have memory on the card of the same machine: how many, of which up to `room` are told. */
    unsigned (*processes)(int card, struct sg_smi_process *out, unsigned room);
};

__attribute__((visibility("default"))) const struct sg_smi *sg_smi(void);

/* Inside the driver, with sg.lock held: what this process uses is shown to others. Failure means that they do not see it. */
void sg_smi_publish(void);
void sg_smi_used(int card, uint64_t used_bytes);

#endif
