/* Handles of the job's that become the driver's: exported, bound to multicast objects, mapped into sparse arrays. */
#include "mapping.h"

#include "residency/vmm.h"
#include "space/ledger.h"

TestSuite(vmm_export, .timeout = 120);

/* --- handles that can be exported, handles of the driver's ---------------------------------------------------------- */

static CUmemGenericAllocationHandle create_exportable(size_t bytes)
{
    CUmemAllocationProp props = props_on(0);
    CUmemGenericAllocationHandle h;
    props.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    OK(cuMemCreate(&h, bytes, &props, 0));
    return h;
}

static CUmemGenericAllocationHandle import_what_is_exported(CUmemGenericAllocationHandle h)
{
    CUmemGenericAllocationHandle imported;
    int fd = -1;
    OK(cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    close(fd);
    return imported;
}

Test(vmm_export, a_handle_that_is_exported_is_the_drivers_from_then_on, .init = start)
{
    CUdeviceptr va = reserve(64 * CHUNK), mine, alias = va + 40 * CHUNK;
    CUmemGenericAllocationHandle h = create_exportable(8 * CHUNK), imported;
    size_t limit = hr_tier_vram_limit(0);
    cr_assert(hr_vmm_is_handle(h));
    OK(cuMemMap(va, 8 * CHUNK, 0, h, 0));
    OK(give(0, va, 8 * CHUNK, RW));
    for (unsigned i = 0; i < 8; i++)
        OK(cuMemsetD32_v2(va + i * CHUNK, i, CHUNK / 4));
    OK(cuMemAlloc_v2(&mine, limit * CHUNK)); /* all of the VRAM, so it is elsewhere now */
    OK(cuMemsetD8_v2(mine, 5, limit * CHUNK));
    OK(stride_add(mine, 512, (uint32_t)(limit * CHUNK / 2048), 1, NULL));
    imported = import_what_is_exported(h);
    cr_assert_eq(hr_tier_vram_limit(0), limit - 8);
    OK(cuMemMap(va + 16 * CHUNK, 8 * CHUNK, 0, imported, 0));
    OK(give(0, va + 16 * CHUNK, 8 * CHUNK, RW));
    for (unsigned i = 0; i < 8; i++)
        cr_assert_eq(word_at(va + (16 + i) * CHUNK), i);
    OK(cuMemsetD32_v2(va, 7, CHUNK)); /* over two chunks */
    OK(stride_add(va, 512, 10, 4, NULL));
    cr_assert_eq(word_at(va + 16 * CHUNK + 2048), 11);
    OK(cuMemMap(alias, 4 * CHUNK, 0, h, 0));
    OK(give(0, alias, 4 * CHUNK, RW));
    cr_assert_eq(word_at(alias + 2048), 11);
    cr_assert_eq(word_at(mine + limit * CHUNK - 4), 0x05050505);
    OK(cuMemUnmap(va, 8 * CHUNK));
    OK(cuMemUnmap(va + 16 * CHUNK, 8 * CHUNK));
    OK(cuMemUnmap(alias, 4 * CHUNK));
    OK(cuMemRelease(imported));
    OK(cuMemRelease(h));
    cr_assert_eq(hr_tier_vram_limit(0), limit);
    OK(cuMemFree_v2(mine));
    OK(cuCtxSynchronize());
    OK(cuMemAddressFree(va, 64 * CHUNK));
    hr_space_flush_thread(hr_thread_self());
    cr_assert_eq(hr_ledger_charged(0), 0);
    cr_assert_eq(hr_tier_vram.in_use_chunks(0) + hr_tier_host.in_use_chunks(0), 0);
}

Test(vmm_export, a_handle_can_be_exported_in_every_state, .init = start)
{
    for (int state = 0; state < 4; state++) { /* never mapped; mapped; mapped twice; unmapped again, with bytes */
        CUdeviceptr va = reserve(32 * CHUNK);
        CUmemGenericAllocationHandle h = create_exportable(2 * CHUNK), imported;
        if (state > 0)
            OK(cuMemMap(va, 2 * CHUNK, 0, h, 0));
        if (state == 2)
            OK(cuMemMap(va + 4 * CHUNK, 2 * CHUNK, 0, h, 0));
        if (state > 1) {
            OK(give(0, va, 2 * CHUNK, RW));
            OK(cuMemsetD32_v2(va, 99, CHUNK / 2));
            OK(cuCtxSynchronize());
        }
        if (state == 3)
            OK(cuMemUnmap(va, 2 * CHUNK));
        imported = import_what_is_exported(h);
        OK(cuMemMap(va + 8 * CHUNK, 2 * CHUNK, 0, imported, 0));
        OK(give(0, va + 8 * CHUNK, 2 * CHUNK, RW));
        if (state > 1)
            cr_assert_eq(word_at(va + 10 * CHUNK - 4), 99);
        if (state == 1 || state == 2) {
            OK(give(0, va, 2 * CHUNK, RW));
            OK(cuMemsetD32_v2(va, 5, 4));
            cr_assert_eq(word_at(va + 8 * CHUNK), 5);
            OK(cuMemUnmap(va, 2 * CHUNK));
        }
        if (state == 2)
            OK(cuMemUnmap(va + 4 * CHUNK, 2 * CHUNK));
        OK(cuMemUnmap(va + 8 * CHUNK, 2 * CHUNK));
        OK(cuMemRelease(h));
        OK(cuMemRelease(imported));
        OK(cuMemAddressFree(va, 32 * CHUNK));
    }
    hr_space_flush_thread(hr_thread_self());
    cr_assert_eq(hr_ledger_charged(0), 0);
    cr_assert_eq(hr_tier_vram.in_use_chunks(0) + hr_tier_host.in_use_chunks(0), 0);
}

/* Shown failing by taking every location for a device's. */
Test(vmm_export, K34_host_memory_is_not_taken_for_device_memory, .init = start)
{
    CUmemAllocationProp props = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_HOST_NUMA, .id = 0}};
    CUmemGenericAllocationHandle h;
    CUdeviceptr va = reserve(4 * CHUNK);
    size_t charged = hr_ledger_charged(0), limit = hr_tier_vram_limit(0);
    OK(cuMemCreate(&h, 4 * CHUNK, &props, 0));
    cr_assert_not(hr_vmm_is_handle(h));
    cr_assert_eq(hr_ledger_charged(0), charged);
    cr_assert_eq(hr_tier_vram_limit(0), limit);
    CUmemAccessDesc desc[2] = {{.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}, .flags = RW},
                               {.location = props.location, .flags = RW}};
    OK(cuMemMap(va, 4 * CHUNK, 0, h, 0));
    OK(cuMemSetAccess(va, 4 * CHUNK, desc, 2));
    *(volatile uint32_t *)(uintptr_t)va = 40;
    OK(stride_add(va, 512, 10, 2, NULL));
    OK(cuCtxSynchronize());
    cr_assert_eq(*(volatile uint32_t *)(uintptr_t)va, 42);
    OK(cuMemUnmap(va, 4 * CHUNK));
    OK(cuMemRelease(h));
    OK(cuMemAddressFree(va, 4 * CHUNK));
}

/* --- others that take the driver's handles only --- */

static struct {
    CUmemGenericAllocationHandle handle;
    size_t offset;
    CUdeviceptr address;
} bound;
static CUresult bind_mem(CUmemGenericAllocationHandle object, size_t object_offset, CUmemGenericAllocationHandle handle,
                         size_t offset, size_t bytes, unsigned long long flags)
{
    (void)object, (void)object_offset, (void)bytes, (void)flags;
    bound.handle = handle;
    bound.offset = offset;
    return CUDA_SUCCESS;
}
static CUresult bind_address(CUmemGenericAllocationHandle object, size_t offset, CUdeviceptr address, size_t bytes,
                             unsigned long long flags)
{
    (void)object, (void)offset, (void)bytes, (void)flags;
    bound.address = address;
    return CUDA_SUCCESS;
}
static CUresult map_arrays(CUarrayMapInfo *list, unsigned count, CUstream s)
{
    (void)s;
    bound.handle = list[count - 1].memHandle.memHandle;
    return CUDA_SUCCESS;
}

static void is_the_driver_s_with_the_bytes(CUmemGenericAllocationHandle of, uint32_t value)
{
    CUmemAllocationProp props;
    CUdeviceptr at;
    uint32_t found = 0;
    cr_assert(bound.handle != of);
    OK(hr_drv.cuMemGetAllocationPropertiesFromHandle(&props, bound.handle));
    OK(hr_drv.cuMemAddressReserve(&at, 2 * CHUNK, 0, 0, 0));
    OK(hr_drv.cuMemMap(at, 2 * CHUNK, 0, bound.handle, 0));
    CUmemAccessDesc desc = {.location = props.location, .flags = RW};
    OK(hr_drv.cuMemSetAccess(at, 2 * CHUNK, &desc, 1));
    OK(hr_drv.cuMemcpyDtoH_v2(&found, at + 2 * CHUNK - 4, 4));
    cr_assert_eq(found, value);
}

/* simgpu has no multicast objects and no sparse arrays: what the driver would be handed is looked at. */
Test(vmm_export, multicast_objects_and_sparse_arrays_get_the_driver_s_handles)
{
    CUmemGenericAllocationHandle h[2];
    machine("h200,vram=64M", "");
    CUdeviceptr va = reserve(4 * CHUNK), plain;
    for (uint32_t i = 0; i < 2; i++) {
        h[i] = create(0, 2 * CHUNK);
        OK(cuMemMap(va + i * 2 * CHUNK, 2 * CHUNK, 0, h[i], 0));
    }
    OK(give(0, va, 4 * CHUNK, RW));
    OK(cuMemsetD32_v2(va, 5, CHUNK / 2));
    OK(cuMemsetD32_v2(va + 2 * CHUNK, 7, CHUNK / 2));
    hr_drv.cuMulticastBindMem = bind_mem;
    hr_drv.cuMulticastBindAddr = bind_address;
    hr_drv.cuMemMapArrayAsync = map_arrays;
    OK(cuMulticastBindMem(1, 0, h[0], 0, 2 * CHUNK, 0));
    is_the_driver_s_with_the_bytes(h[0], 5);
    OK(cuMulticastBindAddr(1, 0, va + CHUNK, CHUNK, 0));
    cr_assert_eq(bound.offset, CHUNK);
    CUarrayMapInfo list[2] = {{.memOperationType = CU_MEM_OPERATION_TYPE_UNMAP},
                              {.memOperationType = CU_MEM_OPERATION_TYPE_MAP, .memHandle.memHandle = h[1]}};
    OK(cuMemMapArrayAsync(list, 2, NULL));
    cr_assert_eq(list[1].memHandle.memHandle, h[1], "the job's own list was written");
    is_the_driver_s_with_the_bytes(h[1], 7);
    cr_assert_eq(word_at(va + CHUNK), 5);
    OK(cuMemAlloc_v2(&plain, CHUNK));
    GIVES(CUDA_ERROR_NOT_SUPPORTED, cuMulticastBindAddr(1, 0, plain, CHUNK, 0));
    cr_assert_eq(bound.address, 0);
    OK(hr_drv.cuMemAlloc_v2(&plain, CHUNK));
    OK(cuMulticastBindAddr(1, 0, plain, CHUNK, 0));
    cr_assert_eq(bound.address, plain);
    OK(cuMulticastBindMem(1, 0, 99, 0, 2 * CHUNK, 0));
    cr_assert_eq(bound.handle, 99);
}
