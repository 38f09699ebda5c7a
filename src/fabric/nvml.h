/*
 * What NVML tells of links and of what lies between GPUs. libnvidia-ml.so.1 is opened when it is first asked for: the one beside the
 * driver, else the loader's. It may be missing (WSL, slim containers) or refuse; then nothing is known from here, which is no error.
 *
 * GPUs are named by bus ids as hr_topology_bus_id writes them: NVML counts GPUs in its own order and does not know what
 * CUDA_VISIBLE_DEVICES hides.
 */
#ifndef HR_FABRIC_NVML_H
#define HR_FABRIC_NVML_H

#include "fabric/topology.h"

#define HR_NVML_LINKS 36

enum hr_nvml_far { HR_NVML_FAR_GPU, HR_NVML_FAR_SWITCH, HR_NVML_FAR_PROCESSOR };

struct hr_nvml_gpu {
    bool told;      /* NVML answered about links, even if there are none */
    uint32_t links; /* that are active */
    struct {
        enum hr_nvml_far far;
        char bus_id[HR_TOPOLOGY_NAME_BYTES];
    } link[HR_NVML_LINKS];
    double pcie_gbps; /* of its slot, each direction; 0 = not known */
};

/* How far up two GPUs meet. */
enum hr_meeting { HR_MEET_UNKNOWN, HR_MEET_PIX, HR_MEET_PXB, HR_MEET_PHB, HR_MEET_NODE, HR_MEET_SYS };

/* false: NVML cannot be used. Each success needs its end. Locks: the loader's. */
bool hr_nvml_begin(void);
void hr_nvml_end(void);

/* Between begin and end. false: NVML does not know the GPU; *gpu_out is zeroed then. */
bool hr_nvml_gpu(const char *bus_id, struct hr_nvml_gpu *gpu_out);
enum hr_meeting hr_nvml_meeting(const char *bus_id, const char *other);
/* The version of the driver's kernel part ("580.65.06"); "" = not known. */
void hr_nvml_driver_version(char *text_out, size_t bytes);

#endif
