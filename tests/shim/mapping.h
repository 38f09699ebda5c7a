/* The job's own virtual memory management in tests. */
#ifndef HR_TESTS_SHIM_MAPPING_H
#define HR_TESTS_SHIM_MAPPING_H

#include "gpus.h"
#include "native.h"

static inline CUmemAllocationProp props_on(int device)
{
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}};
}

static inline CUmemGenericAllocationHandle create(int device, size_t bytes)
{
    CUmemAllocationProp props = props_on(device);
    CUmemGenericAllocationHandle h = 0;
    OK(cuMemCreate(&h, bytes, &props, 0));
    return h;
}

static inline CUdeviceptr reserve(size_t bytes)
{
    CUdeviceptr va;
    OK(cuMemAddressReserve(&va, bytes, 0, 0, 0));
    return va;
}

static inline CUresult give(int device, CUdeviceptr va, size_t bytes, CUmemAccess_flags flags)
{
    CUmemAccessDesc desc = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}, .flags = flags};
    return cuMemSetAccess(va, bytes, &desc, 1);
}
#define RW CU_MEM_ACCESS_FLAGS_PROT_READWRITE

static inline uint32_t word_at(CUdeviceptr p)
{
    uint32_t value = 0;
    OK(cuMemcpyDtoH_v2(&value, p, sizeof value));
    return value;
}

static inline void start(void)
{
    machine("h200,vram=64M,host=512M", "");
}

#endif
