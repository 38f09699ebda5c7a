/* The job's own virtual memory management: within the budget, movable, and otherwise as natively. */
#include "mapping.h"

#include "residency/gpu.h"
#include "residency/peers.h"
#include "space/ledger.h"

TestSuite(vmm, .timeout = 120);

/* --- the same answers as natively ---------------------------------------------------------------------------------- */

static void handles_and_reservations(void)
{
    CUmemAllocationProp props = props_on(0), got;
    CUmemGenericAllocationHandle h = 0;
    CUdeviceptr va = 0;
    int fd;
    NOTE(cuMemCreate(NULL, CHUNK, &props, 0));
    NOTE(cuMemCreate(&h, CHUNK, NULL, 0));
    NOTE(cuMemCreate(&h, 0, &props, 0));
    NOTE(cuMemCreate(&h, CHUNK + 4096, &props, 0));
    NOTE(cuMemCreate(&h, CHUNK, &props, 1));
    NOTE(cuMemCreate(&h, (size_t)1 << 50, &props, 0));
    props.location.id = 2;
    NOTE(cuMemCreate(&h, CHUNK, &props, 0));
    props = props_on(0);
    props.type = CU_MEM_ALLOCATION_TYPE_INVALID;
    NOTE(cuMemCreate(&h, CHUNK, &props, 0));
    props = props_on(0);
    props.requestedHandleTypes = CU_MEM_HANDLE_TYPE_WIN32;
    NOTE(cuMemCreate(&h, CHUNK, &props, 0));
    NOTE(h);
    NOTE(cuMemRelease(0x1234));
    NOTE(cuMemGetAllocationPropertiesFromHandle(&got, 0x1234));
    h = create(0, 2 * CHUNK);
    NOTE(cuMemGetAllocationPropertiesFromHandle(NULL, h));
    NOTE(cuMemGetAllocationPropertiesFromHandle(&got, h));
    NOTE(got.location.id == 0 && got.location.type == CU_MEM_LOCATION_TYPE_DEVICE && !got.requestedHandleTypes);
    NOTE(cuMemExportToShareableHandle(&fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    NOTE(cuMemRelease(h));
    NOTE(cuMemRelease(h));
    NOTE(cuMemGetAllocationPropertiesFromHandle(&got, h));
    NOTE(cuMemAddressReserve(NULL, CHUNK, 0, 0, 0));
    NOTE(cuMemAddressReserve(&va, 0, 0, 0, 0));
    NOTE(cuMemAddressReserve(&va, CHUNK + 4096, 0, 0, 0));
    NOTE(cuMemAddressReserve(&va, CHUNK, 3 * CHUNK, 0, 0));
    NOTE(cuMemAddressReserve(&va, CHUNK, 0, 0, 1));
    NOTE(va);
    NOTE(cuMemAddressReserve(&va, 4 * CHUNK, 4 * CHUNK, 0, 0));
    NOTE(va % (4 * CHUNK));
    NOTE(cuMemAddressFree(va, 2 * CHUNK));
    NOTE(cuMemAddressFree(va + CHUNK, 3 * CHUNK));
    NOTE(cuMemAddressFree(va, 4 * CHUNK));
    NOTE(cuMemAddressFree(va, 4 * CHUNK));
    NOTE(cuMemAddressReserve(&va, 4 * CHUNK, 0, 0, 0));
    NOTE(cuMemAddressFree(va, 2 * CHUNK));
    NOTE(cuMemAddressFree(va + CHUNK, 3 * CHUNK));
    NOTE(cuMemAddressFree(va, 4 * CHUNK));
    NOTE(cuMemAddressFree(va, 4 * CHUNK));
}

static void queries(CUdeviceptr p, CUdeviceptr va)
{
    static const CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                                     CU_POINTER_ATTRIBUTE_SYNC_MEMOPS,
                                                     CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                                     CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                                     CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
                                                     CU_POINTER_ATTRIBUTE_RANGE_SIZE,
                                                     CU_POINTER_ATTRIBUTE_MAPPED,
                                                     CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
                                                     CU_POINTER_ATTRIBUTE_ACCESS_FLAGS,
                                                     CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
                                                     CU_POINTER_ATTRIBUTE_CONTEXT,
                                                     CU_POINTER_ATTRIBUTE_P2P_TOKENS,
                                                     CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE,
                                                     CU_POINTER_ATTRIBUTE_MAPPING_SIZE};
    for (size_t a = 0; a < sizeof attributes / sizeof *attributes; a++) {
        uint64_t value = 0;
        NOTE(cuPointerGetAttribute(&value, attributes[a], p));
        NOTE(value);
    }
    CUdeviceptr start = va;
    size_t bytes = 0;
    int on = 1;
    NOTE(cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, p));
    NOTE(start - va);
    start = va;
    NOTE(cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, p));
    NOTE(start - va);
    start = va;
    NOTE(cuMemGetAddressRange_v2(&start, &bytes, p));
    NOTE(start - va);
    NOTE(bytes);
    NOTE(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p));
    NOTE(cuMemFree_v2(p));
    NOTE(cuMemFreeAsync(p, NULL));
}

static void mappings(void)
{
    CUmemGenericAllocationHandle h = create(0, 2 * CHUNK), one = create(0, CHUNK), same = 0;
    CUdeviceptr va = reserve(8 * CHUNK), plain;
    CUmemLocation at = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
    unsigned long long flags = 77;
    queries(va, va);
    NOTE(cuMemMap(va, CHUNK, CHUNK, h, 0));
    NOTE(cuMemMap(va, 2 * CHUNK, 0, h, 1));
    NOTE(cuMemMap(va, 4 * CHUNK, 0, h, 0));
    NOTE(cuMemMap(va + 4096, 2 * CHUNK, 0, h, 0));
    NOTE(cuMemMap(va + 7 * CHUNK, 2 * CHUNK, 0, h, 0));
    NOTE(cuMemMap(va, 2 * CHUNK, 0, 0x1234, 0));
    NOTE(cuMemMap(va, 2 * CHUNK, 0, h, 0));
    NOTE(cuMemMap(va + CHUNK, CHUNK, 0, one, 0));
    NOTE(cuMemMap(va + 2 * CHUNK, CHUNK, 0, one, 0));
    NOTE(cuMemAddressFree(va, 8 * CHUNK));
    queries(va + CHUNK + 8, va);
    NOTE(cuMemGetAccess(&flags, &at, va));
    NOTE(flags);
    NOTE(cuMemcpyDtoH_v2(&flags, va, 4) == CUDA_SUCCESS); /* not yet accessible */
    NOTE(give(0, va, CHUNK, RW));
    NOTE(give(0, va, 4 * CHUNK, RW));
    NOTE(give(2, va, 2 * CHUNK, RW));
    NOTE(give(0, va, 2 * CHUNK, (CUmemAccess_flags)9));
    NOTE(cuMemSetAccess(va, 2 * CHUNK, NULL, 1));
    NOTE(give(0, va, 3 * CHUNK, RW));
    NOTE(cuMemGetAccess(&flags, &at, va + 3 * CHUNK - 1));
    NOTE(flags);
    NOTE(cuMemGetAccess(&flags, &at, va + 3 * CHUNK));
    NOTE(cuMemGetAccess(NULL, &at, va));
    at.id = 1;
    NOTE(cuMemGetAccess(&flags, &at, va));
    NOTE(flags);
    at.id = 2;
    NOTE(cuMemGetAccess(&flags, &at, va));
    queries(va + CHUNK + 8, va);
    NOTE(cuMemsetD32_v2(va, 5, 3 * CHUNK / 4)); /* over two mappings */
    NOTE(word_at(va + 3 * CHUNK - 4));
    NOTE(cuMemsetD32_v2(va + 3 * CHUNK - 4, 5, 2)); /* and into a hole */
    NOTE(cuMemRetainAllocationHandle(&same, (void *)(uintptr_t)(va + 100)));
    NOTE(same == h);
    NOTE(cuMemRetainAllocationHandle(&same, (void *)(uintptr_t)(va + 3 * CHUNK)));
    NOTE(cuMemRetainAllocationHandle(NULL, (void *)(uintptr_t)va));
    OK(cuMemAlloc_v2(&plain, CHUNK));
    NOTE(cuMemRetainAllocationHandle(&same, (void *)(uintptr_t)plain));
    NOTE(cuMemUnmap(plain, CHUNK));
    NOTE(cuMemAddressFree(plain, CHUNK));
    NOTE(cuMemRelease(h));
    NOTE(cuMemRelease(h));
    NOTE(cuMemRelease(h));
    NOTE(word_at(va));
    NOTE(cuMemUnmap(va, CHUNK));
    NOTE(cuMemUnmap(va, 4 * CHUNK));
    NOTE(cuMemUnmap(va + CHUNK, 2 * CHUNK));
    NOTE(give(0, va, 2 * CHUNK, CU_MEM_ACCESS_FLAGS_PROT_NONE));
    NOTE(cuMemsetD8_v2(va, 5, 8) == CUDA_SUCCESS);
    NOTE(give(0, va, 2 * CHUNK, RW));
    NOTE(word_at(va + 4)); /* still there */
    NOTE(cuMemUnmap(va, 3 * CHUNK));
    NOTE(cuMemUnmap(va, 3 * CHUNK));
    NOTE(cuMemRelease(one));
    NOTE(cuMemAddressFree(va, 8 * CHUNK));
}

static void calls_of_all_kinds(void)
{
    machine("h200,vram=64M,gpus=2,host=512M", "");
    handles_and_reservations();
    mappings();
}

Test(vmm, answers_are_those_of_the_driver)
{
    char *report = same_natively(calls_of_all_kinds);
    was_safe(report);
    free(report);
}

/* --- a job that grows and shrinks a segment ------------------------------------------------------------------------ */

/* As an allocator of a framework does it: one large reservation, handles of one size mapped from its start on. */
#define PIECE (10 * MIB)
struct segment {
    CUdeviceptr va;
    size_t reserved;
    unsigned count;
};

static void grow(struct segment *s, unsigned to)
{
    unsigned from = s->count;
    for (; s->count < to; s->count++) {
        CUmemGenericAllocationHandle h = create(0, PIECE);
        OK(cuMemMap(s->va + s->count * PIECE, PIECE, 0, h, 0));
        OK(cuMemRelease(h)); /* the mapping keeps it */
    }
    if (to > from)
        OK(give(0, s->va + from * PIECE, (to - from) * PIECE, RW));
}

static void shrink(struct segment *s, unsigned to)
{
    OK(cuCtxSynchronize());
    if (s->count > to)
        OK(cuMemUnmap(s->va + to * PIECE, (s->count - to) * PIECE));
    s->count = to;
}

static void note_sum(CUdeviceptr p, size_t bytes)
{
    uint32_t *host = malloc(bytes);
    uint64_t sum = 0;
    OK(cuMemcpyDtoH_v2(host, p, bytes));
    for (size_t k = 0; k < bytes / 4; k++)
        sum = sum * 31 + host[k];
    NOTE(sum);
    free(host);
}

/* Three times what fits. Tensors of 25 MiB lie across pieces. */
static void a_job_with_segments(void)
{
    setenv("SIMGPU_CHECK", "race,redzone", 1);
    machine(notes->native ? "h200,vram=256M" : "h200,vram=40M,host=512M", "");
    struct segment s = {.reserved = (size_t)1 << 30}, small = {.reserved = 64 * MIB};
    const size_t tensor = 25 * MIB;
    s.va = reserve(s.reserved);
    small.va = reserve(small.reserved);
    grow(&small, 1);
    OK(cuMemsetD32_v2(small.va, 3, PIECE / 4));
    for (int round = 0; round < 3; round++) {
        grow(&s, 12);
        for (unsigned i = 0; i < 4; i++)
            OK(cuMemsetD32_v2(s.va + i * tensor, i + 1, tensor / 4));
        for (unsigned k = 0; k < 3; k++) {
            for (unsigned i = 0; i < 4; i++)
                OK(stride_add(s.va + i * tensor, 512, (uint32_t)(tensor / 2048), k + 1, NULL));
            OK(stride_add(small.va, 512, 100, 1, NULL));
            OK(cuMemcpyDtoD_v2(s.va + 2 * tensor, s.va + tensor / 2, tensor / 2));
        }
        for (unsigned i = 0; i < 4; i++)
            note_sum(s.va + i * tensor, tensor);
        shrink(&s, 5); /* what remains keeps its bytes */
        note_sum(s.va, 2 * tensor);
        OK(stride_add(s.va, 512, 1000, 7, NULL));
    }
    note_sum(small.va, PIECE);
    shrink(&s, 0);
    shrink(&small, 0);
    OK(cuMemAddressFree(s.va, s.reserved));
    OK(cuMemAddressFree(small.va, small.reserved));
    if (!notes->native) {
        hr_space_flush_thread(hr_thread_self());
        CHECK(hr_stat_sum(HR_STAT_moved_out_bytes) > 0 || hr_stat_sum(HR_STAT_fresh_host_bytes) > 0);
        CHECK(hr_ledger_charged(0) == 0, "%zu", hr_ledger_charged(0));
        CHECK(hr_tier_vram.in_use_chunks(0) == 0 && hr_tier_host.in_use_chunks(0) == 0);
    }
}

Test(vmm, K8_an_oversubscribed_job_with_segments_gives_what_it_gives_natively)
{
    char *report = same_natively(a_job_with_segments);
    was_safe(report);
    cr_assert_eq(figure(report, "\"race"), 0, "%s", report);
    free(report);
}

/* --- bytes --------------------------------------------------------------------------------------------------------- */

Test(vmm, a_handle_keeps_its_bytes_wherever_they_are, .init = start)
{
    struct hr_thread *t = hr_thread_self();
    CUmemGenericAllocationHandle h = create(0, 3 * CHUNK);
    CUdeviceptr va = reserve(16 * CHUNK);
    cr_assert_eq(hr_tier_vram.in_use_chunks(0), 0); /* a charge is all that it takes */
    OK(cuMemMap(va, 3 * CHUNK, 0, h, 0));
    OK(give(0, va, 3 * CHUNK, RW));
    OK(cuMemsetD32_v2(va, 1, CHUNK / 4));
    OK(cuMemsetD32_v2(va + 2 * CHUNK, 3, CHUNK / 4));
    cr_assert_eq(hr_tier_vram.in_use_chunks(0), 2);
    OK(cuCtxSynchronize());
    cr_assert_eq(hr_access_evict_range(t, va, CHUNK), 1);
    OK(cuMemUnmap(va, 3 * CHUNK));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD32_v2(va, 1, 4));
    OK(cuMemMap(va + 8 * CHUNK, 3 * CHUNK, 0, h, 0));
    OK(give(0, va + 8 * CHUNK, 3 * CHUNK, RW));
    cr_assert_eq(atomic_load(&hr_space_chunk(va + 8 * CHUNK)->state), HR_CHUNK_HOST);
    cr_assert_eq(word_at(va + 9 * CHUNK - 4), 1);
    cr_assert_eq(word_at(va + 10 * CHUNK), 3);
    OK(cuMemRelease(h));
    OK(cuMemUnmap(va + 8 * CHUNK, 3 * CHUNK));
    OK(cuMemAddressFree(va, 16 * CHUNK));
    hr_space_flush_thread(t);
    cr_assert_eq(hr_ledger_charged(0), 0);
    cr_assert_eq(hr_tier_vram.in_use_chunks(0) + hr_tier_host.in_use_chunks(0), 0);
}

Test(vmm, two_mappings_of_a_handle_show_the_same_bytes, .init = start)
{
    CUmemGenericAllocationHandle h = create(0, 3 * CHUNK);
    CUdeviceptr va = reserve(16 * CHUNK), other = va + 8 * CHUNK;
    OK(cuMemMap(va, 3 * CHUNK, 0, h, 0));
    OK(give(0, va, 3 * CHUNK, RW));
    OK(cuMemsetD32_v2(va, 1, CHUNK / 4));
    OK(cuCtxSynchronize());
    cr_assert_eq(hr_access_evict_range(hr_thread_self(), va, CHUNK), 1);
    OK(cuMemMap(other, 2 * CHUNK, 0, h, 0));
    OK(give(0, other, 2 * CHUNK, RW));
    cr_assert_eq(word_at(other), 1);
    OK(cuMemsetD32_v2(other + 16, 9, CHUNK / 4));
    OK(stride_add(other, 512, 10, 4, NULL));
    OK(cuCtxSynchronize());
    cr_assert_eq(word_at(va + 2048), 13);
    cr_assert_eq(hr_access_evict_range(hr_thread_self(), va, 3 * CHUNK), 0); /* nobody moves it now */
    OK(cuMemUnmap(va, 3 * CHUNK));
    OK(cuMemRelease(h));
    cr_assert_eq(word_at(other + 2048), 13);
    OK(cuMemUnmap(other, 2 * CHUNK));
    OK(cuMemAddressFree(va, 16 * CHUNK));
    hr_space_flush_thread(hr_thread_self());
    cr_assert_eq(hr_ledger_charged(0), 0);
    cr_assert_eq(hr_tier_vram.in_use_chunks(0) + hr_tier_host.in_use_chunks(0), 0);
}

/* --- the budget ---------------------------------------------------------------------------------------------------- */

Test(vmm, handles_are_charged_and_memory_that_was_freed_serves_them, .init = start)
{
    size_t all = hr_gpu_free_bytes(0) / CHUNK * CHUNK;
    CUmemAllocationProp props = props_on(0);
    CUmemGenericAllocationHandle h, more;
    CUdeviceptr p;
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemCreate(&h, all + CHUNK, &props, 0));
    OK(cuMemAlloc_v2(&p, all / 2));
    OK(cuMemsetD8_v2(p, 1, 8 * CHUNK));
    OK(cuMemFree_v2(p)); /* it waits for its work */
    OK(cuMemCreate(&h, all, &props, 0));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemCreate(&more, CHUNK, &props, 0));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&p, CHUNK));
    OK(cuMemRelease(h));
    OK(cuMemAlloc_v2(&p, all));
    OK(cuMemFree_v2(p));
}

Test(vmm, reservations_are_plentiful, .init = start)
{
    CUdeviceptr va[4];
    size_t bytes = (size_t)(1.125 * (double)hr_gpu_total_bytes(0)) / CHUNK * CHUNK;
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 4; i++) {
            va[i] = reserve(bytes);
            cr_assert(hr_space_owns(va[i]));
        }
        for (int i = 0; i < 4; i++)
            OK(cuMemAddressFree(va[i], bytes));
    }
    CUdeviceptr huge; /* what the window does not have the driver has */
    OK(cuMemAddressReserve(&huge, hr_space.bytes * 2, 0, 0, 0));
    cr_assert_not(hr_space_owns(huge));
    CUmemGenericAllocationHandle h = create(0, 2 * CHUNK);
    OK(cuMemMap(huge + CHUNK, 2 * CHUNK, 0, h, 0)); /* pinned there */
    OK(give(0, huge + CHUNK, 2 * CHUNK, RW));
    OK(cuMemsetD32_v2(huge + CHUNK, 4, CHUNK / 2));
    cr_assert_eq(word_at(huge + 3 * CHUNK - 4), 4);
    OK(cuMemUnmap(huge + CHUNK, 2 * CHUNK));
    OK(cuMemRelease(h));
    OK(cuMemAddressFree(huge, hr_space.bytes * 2));
    cr_assert_eq(hr_tier_vram.in_use_chunks(0), 0);
}

/* --- hidden pointers, systems without such host memory ------------------------------------------------------------- */

static size_t resident_chunks(CUdeviceptr va, size_t bytes)
{
    return in_state(va, bytes, HR_CHUNK_RESIDENT);
}

Test(vmm, what_cannot_be_scanned_for_is_backed_before_a_launch, .init = start)
{
    struct segment s = {.reserved = 64 * MIB};
    CUdeviceptr other;
    void *pinned;
    s.va = reserve(s.reserved);
    OK(cuMemAlloc_v2(&other, 3000));
    grow(&s, 1);
    OK(stride_add(other, 512, 1, 1, NULL));
    cr_assert_eq(resident_chunks(s.va, PIECE), 0); /* nobody has named it */
    OK(cuMemHostAlloc(&pinned, 4096, 0));          /* where kernels may find addresses */
    OK(stride_add(other, 512, 1, 1, NULL));
    cr_assert_eq(resident_chunks(s.va, PIECE), PIECE / CHUNK);
    grow(&s, 2);
    OK(stride_add(other, 512, 1, 1, NULL));
    cr_assert_eq(resident_chunks(s.va, 2 * PIECE), 2 * PIECE / CHUNK);
    OK(cuCtxSynchronize());
    shrink(&s, 0);
    OK(cuMemAddressFree(s.va, s.reserved));
    OK(cuMemFreeHost(pinned));
}

static void start_eager(void)
{
    setenv("HEADROOM_COMMIT", "eager", 1);
    start();
}
Test(vmm, eager_commit_backs_what_becomes_accessible, .init = start_eager)
{
    struct segment s = {.reserved = 64 * MIB};
    s.va = reserve(s.reserved);
    grow(&s, 2);
    cr_assert_eq(resident_chunks(s.va, 2 * PIECE), 2 * PIECE / CHUNK);
    shrink(&s, 0);
    OK(cuMemAddressFree(s.va, s.reserved));
}

static void start_unmapped(void)
{
    machine("h200,vram=64M,host=512M", "host_numa");
}
Test(vmm, where_kernels_cannot_use_host_memory_handles_are_the_drivers, .init = start_unmapped)
{
    struct segment s = {.reserved = 64 * MIB};
    s.va = reserve(s.reserved);
    grow(&s, 3);
    cr_assert_eq(hr_ledger_charged(0), 0);
    OK(cuMemsetD32_v2(s.va, 6, 3 * PIECE / 4));
    OK(stride_add(s.va, 512, 10, 1, NULL));
    cr_assert_eq(word_at(s.va), 7);
    shrink(&s, 0);
    OK(cuMemAddressFree(s.va, s.reserved));
}

/* --- several GPUs -------------------------------------------------------------------------------------------------- */

static void other_gpus(void)
{
    setenv("SIMGPU_CHECK", "race", 1);
    machine_with("hgx-h100,vram=64M,gpus=2,host=512M", "", 2);
    uint64_t stride = 1;
    uint32_t n = 1000, a = 5;
    CUfunction f = function_on(1, "stride_add");
    OK(cuCtxSetCurrent(context[0]));
    CUdeviceptr va = reserve(16 * CHUNK), far = va + 8 * CHUNK;
    CUmemGenericAllocationHandle h = create(0, 2 * CHUNK), of_1 = create(1, 2 * CHUNK);
    OK(cuMemMap(va, 2 * CHUNK, 0, h, 0));
    OK(give(0, va, 2 * CHUNK, RW));
    OK(cuMemsetD8_v2(va, 0, 2 * CHUNK));
    OK(give(1, va, 2 * CHUNK, RW));
    OK(cuMemMap(far, 2 * CHUNK, 0, of_1, 0)); /* memory of GPU 1 in a reservation that is GPU 0's */
    OK(give(0, far, 2 * CHUNK, RW));
    OK(give(1, far, 2 * CHUNK, RW));
    CHECK(hr_tier_vram.in_use_chunks(1) == 2);
    OK(cuMemsetD8_v2(far, 0, 2 * CHUNK));
    OK(cuCtxSynchronize());
    OK(cuCtxSetCurrent(context[1]));
    CUdeviceptr both[2] = {va, far};
    for (int i = 0; i < 2; i++)
        OK(cuLaunchKernel(f, 8, 1, 1, 128, 1, 1, 0, NULL, (void *[]){&both[i], &stride, &n, &a}, NULL));
    OK(cuCtxSynchronize());
    OK(cuCtxSetCurrent(context[0]));
    CHECK(word_at(va + 999 * 4) == 5 && word_at(far + 999 * 4) == 5);
    CHECK(hr_peers_reach(1, 0));
    OK(cuMemUnmap(va, 2 * CHUNK));
    CHECK(!hr_peers_reach(1, 0)); /* nothing of the reservation is GPU 1's any more */
    OK(cuMemUnmap(far, 2 * CHUNK));
    OK(cuMemRelease(h));
    OK(cuMemRelease(of_1));
    OK(cuMemAddressFree(va, 16 * CHUNK));
    hr_space_flush_thread(hr_thread_self());
    CHECK(hr_ledger_charged(0) == 0 && hr_ledger_charged(1) == 0);
    CHECK(hr_tier_vram.in_use_chunks(0) == 0 && hr_tier_vram.in_use_chunks(1) == 0);
}

Test(vmm, other_gpus_reach_what_they_are_given)
{
    char *report = apart(other_gpus);
    was_safe(report);
    cr_assert_eq(figure(report, "\"race"), 0, "%s", report);
    free(report);
}

/* --- contexts, threads, errors ------------------------------------------------------------------------------------- */

Test(vmm, mappings_survive_their_context, .init = start)
{
    CUcontext first, second;
    OK(cuCtxGetCurrent(&first));
    OK(cuCtxCreate_v2(&second, 0, 0));
    struct segment s = {.reserved = 64 * MIB};
    s.va = reserve(s.reserved);
    grow(&s, 2);
    OK(cuMemsetD32_v2(s.va, 8, PIECE / 2));
    OK(cuCtxDestroy_v2(second));
    OK(cuCtxSetCurrent(first));
    cr_assert_eq(word_at(s.va + 2 * PIECE - 4), 8);
    shrink(&s, 0);
    OK(cuMemAddressFree(s.va, s.reserved));
}

static CUcontext shared_context;
static void *work(void *arg)
{
    uint32_t number = (uint32_t)(uintptr_t)arg;
    struct segment s = {.reserved = 128 * MIB};
    OK(cuCtxSetCurrent(shared_context));
    s.va = reserve(s.reserved);
    for (unsigned round = 0; round < 6; round++) {
        grow(&s, 2 + (round + number) % 3);
        OK(cuMemsetD32_v2(s.va, number * 100 + round, s.count * PIECE / 4));
        OK(stride_add(s.va, 512, (uint32_t)(s.count * PIECE / 2048), 1, NULL));
        CHECK(word_at(s.va + s.count * PIECE - 2048) == number * 100 + round + 1);
        shrink(&s, round % 2);
    }
    shrink(&s, 0);
    OK(cuMemAddressFree(s.va, s.reserved));
    return NULL;
}

static void threads_at_work(void)
{
    pthread_t thread[4];
    shared_context = machine("h200,vram=48M,host=512M", "");
    kernel("stride_add");
    for (uintptr_t i = 0; i < 4; i++)
        pthread_create(&thread[i], NULL, work, (void *)i);
    for (int i = 0; i < 4; i++)
        pthread_join(thread[i], NULL);
    CHECK(hr_lock_violations() == 0);
    CHECK(hr_ledger_charged(0) == 0);
}

Test(vmm, threads_have_segments_of_their_own)
{
    free(apart(threads_at_work));
}

/* Within a hundred attempts. */
#define SOON(call)                                                                                                     \
    do {                                                                                                               \
        int left_ = 100;                                                                                               \
        while ((call) != CUDA_SUCCESS && --left_ > 0)                                                                  \
            continue;                                                                                                  \
        CHECK(left_ > 0, #call);                                                                                       \
    } while (0)

/* Every n-th call of the driver's fails: what failed can be done again, and nothing is lost. */
static char fail_text[64];
static void a_job_among_errors(void)
{
    setenv("SIMGPU_FAIL", fail_text, 1);
    machine("h200,vram=24M,host=512M", "");
    CUmemAllocationProp props = props_on(0);
    CUmemGenericAllocationHandle h[6];
    props.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    size_t bytes = 3 * CHUNK;
    CUdeviceptr va;
    SOON(cuMemAddressReserve(&va, 64 * CHUNK, 0, 0, 0));
    for (int round = 0; round < 3; round++) {
        for (unsigned i = 0; i < 6; i++) {
            CUdeviceptr at = va + i * bytes;
            OK(cuMemCreate(&h[i], bytes, &props, 0));
            SOON(cuMemMap(at, bytes, 0, h[i], 0));
            SOON(give(0, at, bytes, RW));
            SOON(cuMemsetD32_v2(at, i + 1, bytes / 4));
        }
        OK(cuCtxSynchronize());
        for (unsigned i = 0; i < 6; i++) {
            CUdeviceptr at = va + i * bytes;
            uint32_t value = 0;
            int fd = -1;
            for (int attempt = 0; i % 3 == 1 && attempt < 20 && fd < 0; attempt++)
                if (cuMemExportToShareableHandle(&fd, h[i], CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) ==
                    CUDA_SUCCESS)
                    close(fd);
            SOON(cuMemUnmap(at, bytes)); /* unmapped, then mapped elsewhere, in part twice */
            at = va + (20 + i * 3) * CHUNK;
            SOON(cuMemMap(at, bytes, 0, h[i], 0));
            SOON(give(0, at, bytes, RW));
            bool twice = i % 3 == 2 && cuMemMap(va + (50 + i) * CHUNK, CHUNK, 0, h[i], 0) == CUDA_SUCCESS;
            SOON(cuMemcpyDtoH_v2(&value, at + bytes - 4, 4));
            CHECK(value == i + 1);
            SOON(cuMemUnmap(at, bytes));
            if (twice)
                SOON(cuMemUnmap(va + (50 + i) * CHUNK, CHUNK));
            SOON(cuMemRelease(h[i]));
        }
    }
    OK(cuMemAddressFree(va, 64 * CHUNK));
    hr_space_flush_thread(hr_thread_self());
    CHECK(hr_ledger_charged(0) == 0);
    CHECK(hr_tier_vram.in_use_chunks(0) == 0 && hr_tier_host.in_use_chunks(0) == 0);
    CHECK(hr_lock_violations() == 0);
}

Test(vmm, errors_of_the_driver_lose_nothing)
{
    static const char *const functions[] = {"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap"};
    for (int i = 0; i < 4; i++) {
        snprintf(fail_text, sizeof fail_text, "%s:every:5", functions[i]);
        char *report = apart(a_job_among_errors);
        was_safe(report);
        free(report);
    }
}
