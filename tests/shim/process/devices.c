/* What a process sees of the machine, and that copies between what it sees arrive. */
#include "process_job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 16

static void tell(int count)
{
    for (int d = 0; d < count; d++) {
        CUdevice device, back;
        CUuuid uuid;
        char bus_id[16], name[96];
        OK(cuDeviceGet(&device, d));
        OK(cuDeviceGetPCIBusId(bus_id, sizeof bus_id, device));
        OK(cuDeviceGetUuid_v2(&uuid, device));
        OK(cuDeviceGetName(name, sizeof name, device));
        OK(cuDeviceGetByPCIBusId(&back, bus_id));
        NEED(back == device);
        printf("GPU %d is %s at %s, UUID %02x%02x, peers", d, name, bus_id, (unsigned char)uuid.bytes[0],
               (unsigned char)uuid.bytes[15]);
        for (int other = 0; other < count; other++) {
            int can = 0, rank = -1;
            if (other == d)
                continue;
            OK(cuDeviceCanAccessPeer(&can, d, other));
            OK(cuDeviceGetP2PAttribute(&rank, CU_DEVICE_P2P_ATTRIBUTE_PERFORMANCE_RANK, d, other));
            printf(" %d:%d/%d", other, can, rank);
        }
        puts("");
    }
}

static void copies(int count)
{
    struct set set[MOST];
    for (int d = 0; d < count; d++)
        set_make(&set[d], context_on(d), BUFFERS, (unsigned)d + 1);
    for (int d = 0; d < count; d++)
        set_add(&set[d]);
    for (int from = 0; from < count; from++)
        for (int to = 0; to < count; to++)
            if (from != to)
                OK(cuMemcpyPeer(set[to].buffer[from % BUFFERS], set[to].context, set[from].buffer[from % BUFFERS],
                                set[from].context, BUFFER_BYTES));
    uint32_t value;
    for (int d = 0; d < count; d++) {
        OK(cuCtxSetCurrent(set[d].context));
        OK(cuCtxSynchronize());
        for (int b = 0; b < BUFFERS; b++) {
            OK(cuMemcpyDtoH_v2(&value, set[d].buffer[b] + BUFFER_BYTES - 4, 4));
            printf(" %u", value);
        }
    }
    puts("");
}

int devices_mode(void)
{
    int count = 0;
    CUresult r = cuInit(0);
    printf("cuInit gives %d\n", (int)r);
    if (r != CUDA_SUCCESS)
        return 0;
    OK(cuDeviceGetCount(&count));
    NEED(count <= MOST);
    const char *later = getenv("TEST_LATER");
    if (later)
        setenv("CUDA_VISIBLE_DEVICES", later, 1);
    tell(count);
    copies(count);
    return 0;
}
