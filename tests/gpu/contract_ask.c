#include "contract.h"

#include <string.h>

struct answers {
    CUmemorytype type;
    CUcontext context;
    int ordinal;
    unsigned legacy_ipc;
    CUdeviceptr start;
    size_t size;
};

static CUresult ask(CUdeviceptr address, struct answers *a)
{
    memset(a, 0xff, sizeof *a); /* an answer that was not given shows */
    TRY(drv.cuPointerGetAttribute(&a->type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address));
    CUresult r = drv.cuPointerGetAttribute(&a->context, CU_POINTER_ATTRIBUTE_CONTEXT, address);
    if (r != CUDA_SUCCESS)
        a->context = NULL; /* refusing to answer is as good as saying that there is none */
    TRY(drv.cuPointerGetAttribute(&a->ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address));
    TRY(drv.cuPointerGetAttribute(&a->legacy_ipc, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, address));
    a->legacy_ipc &= 0xff; /* some drivers write one byte */
    TRY(drv.cuPointerGetAttribute(&a->start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address));
    return drv.cuPointerGetAttribute(&a->size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, address);
}

static void pointer_mapped(enum vm_where where)
{
    struct vm vm;
    struct answers a;
    CUdeviceptr base = 0;
    size_t size = 0;
    int yes = 1;
    MUST(vm_reserve(&vm, 3));
    MUST(vm_back(&vm, 0, 3, where));
    MUST(ask(vm_at(&vm, 1) + 4096, &a));
    MUST(drv.cuMemGetAddressRange_v2(&base, &size, vm_at(&vm, 1) + 4096));
    CUresult sync = drv.cuPointerSetAttribute(&yes, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, vm_at(&vm, 1));
    CUmemorytype type = where == VM_HOST ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    EXPECT(a.type == type, "memory type %d", (int)a.type);
    EXPECT(!a.context, "it has a context");
    EXPECT(a.legacy_ipc == 0, "legacy IPC is said to work");
    EXPECT(a.start == vm.base && a.size == 3 * here.chunk_bytes,
           "the range is %#llx and %zu bytes; the reservation of 3 chunks begins at %#llx", (unsigned long long)a.start,
           a.size, (unsigned long long)vm.base);
    EXPECT(base == vm_at(&vm, 1) && size == here.chunk_bytes, "cuMemGetAddressRange: %zu bytes, %lld before the chunk",
           size, (long long)(vm_at(&vm, 1) - base));
    EXPECT(sync != CUDA_SUCCESS, "SYNC_MEMOPS was taken");
    MUST(vm_finish(&vm));
    GPU_OK("type %d, device %d, no context, the reservation as range, the chunk as address range, SYNC_MEMOPS: %s",
           (int)a.type, a.ordinal, gpu_error(sync));
}

void contract_pointer_device(void)
{
    pointer_mapped(VM_DEVICE);
}

void contract_pointer_host(void)
{
    NEED_HOST();
    pointer_mapped(VM_HOST);
}

void contract_pointer_plain(void)
{
    CUdeviceptr p, base;
    size_t size, bytes = 3 * here.chunk_bytes + 512;
    struct answers a;
    int yes = 1;
    unsigned long long id = 0, again = 0;
    MUST(drv.cuMemAlloc_v2(&p, bytes));
    MUST(ask(p + here.chunk_bytes, &a));
    MUST(drv.cuMemGetAddressRange_v2(&base, &size, p + here.chunk_bytes));
    MUST(drv.cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, p));
    MUST(drv.cuPointerGetAttribute(&again, CU_POINTER_ATTRIBUTE_BUFFER_ID, p + here.chunk_bytes));
    CUresult sync = drv.cuPointerSetAttribute(&yes, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, p);
    EXPECT(a.type == CU_MEMORYTYPE_DEVICE && a.context == here.context && a.ordinal == here.device,
           "type %d, device %d, %s context", (int)a.type, a.ordinal,
           a.context == here.context ? "the right" : "another");
    EXPECT(a.start == p && a.size == bytes && base == p && size == bytes, "%zu and %zu bytes of %zu", a.size, size,
           bytes);
    EXPECT(id == again && id != 0, "buffer ids %llu and %llu", id, again);
    EXPECT(sync == CUDA_SUCCESS, "SYNC_MEMOPS: %s", gpu_error(sync));
    MUST(drv.cuMemFree_v2(p));
    GPU_OK("device, context, exact range, one buffer id, SYNC_MEMOPS taken, legacy IPC %u", a.legacy_ipc);
}

void contract_retain(void)
{
    struct vm vm;
    CUdeviceptr p;
    CUmemGenericAllocationHandle handle;
    MUST(vm_reserve(&vm, 1));
    MUST(vm_back(&vm, 0, 1, VM_DEVICE));
    MUST(drv.cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)(vm.base + 64)));
    EXPECT(handle == vm.handle[0], "another handle of the same chunk");
    MUST(drv.cuMemRelease(handle));
    MUST(drv.cuMemAlloc_v2(&p, here.chunk_bytes));
    CUresult r = drv.cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)p);
    EXPECT(r != CUDA_SUCCESS, "memory of cuMemAlloc has a handle");
    MUST(drv.cuMemFree_v2(p));
    MUST(vm_finish(&vm));
    GPU_OK("%s for memory of cuMemAlloc", gpu_error(r));
}

void contract_ipc(void)
{
    struct vm vm;
    CUipcMemHandle ipc;
    MUST(vm_reserve(&vm, 1));
    MUST(vm_back(&vm, 0, 1, VM_DEVICE));
    CUresult r = drv.cuIpcGetMemHandle(&ipc, vm.base);
    EXPECT(r != CUDA_SUCCESS, "it has one");
    MUST(vm_finish(&vm));
    GPU_OK("%s", gpu_error(r));
}

void contract_parameters(void)
{
    static const size_t offsets[] = {0, 8, 24, 32, 40}, sizes[] = {4, 16, 8, 1, 8};
    CUfunction f = gpu_kernel("parameters");
    size_t offset, size;
    NEED(cuFuncGetParamInfo);
    for (size_t i = 0; i < 5; i++) {
        MUST(drv.cuFuncGetParamInfo(f, i, &offset, &size));
        EXPECT(offset == offsets[i] && size == sizes[i], "parameter %zu: offset %zu, size %zu", i, offset, size);
    }
    CUresult r = drv.cuFuncGetParamInfo(f, 5, &offset, &size);
    EXPECT(r == CUDA_ERROR_INVALID_VALUE, "behind the last: %s", gpu_error(r));
    GPU_OK("five parameters; CUDA_ERROR_INVALID_VALUE behind them");
}

typedef CUresult (*resolver_4)(const char *, void **, int, cuuint64_t);
typedef CUresult (*resolver_5)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);

void contract_resolver_itself(void)
{
    void *old = NULL, *new = NULL, *found = NULL;
    CUdriverProcAddressQueryResult status = (CUdriverProcAddressQueryResult)99;
    NEED(cuGetProcAddress_v2);
    MUST(drv.cuGetProcAddress_v2("cuGetProcAddress", &old, 11030, 0, &status));
    MUST(drv.cuGetProcAddress_v2("cuGetProcAddress", &new, 12000, 0, &status));
    EXPECT(old && new &&old != new, "at 11030 and at 12000: %s", old == new ? "the same" : "nothing");
    MUST(((resolver_4)old)("cuMemAlloc", &found, 3020, 0));
    EXPECT(found, "the older one found no cuMemAlloc");
    status = (CUdriverProcAddressQueryResult)99;
    MUST(((resolver_5) new)("cuMemAlloc", &found, 3020, 0, &status));
    EXPECT(found && status == CU_GET_PROC_ADDRESS_SUCCESS, "the newer one's status is %d", (int)status);
    GPU_OK("both answer; %s what dlsym gives",
           old == (void *)drv.cuGetProcAddress && new == (void *)drv.cuGetProcAddress_v2 ? "they are" : "they are not");
}

static void *at_version(const char *name, int version, cuuint64_t flags)
{
    void *found = NULL;
    CUdriverProcAddressQueryResult status;
    if (drv.cuGetProcAddress_v2(name, &found, version, flags, &status) != CUDA_SUCCESS)
        return NULL;
    return found;
}

void contract_resolver_versions(void)
{
    static const struct {
        const char *name;
        int older, newer;
    } rows[] = {
        {"cuMemAlloc", 2000, 3020},   {"cuStreamBeginCapture", 10000, 10010}, {"cuStreamGetCaptureInfo", 10010, 11030},
        {"cuMemAdvise", 8000, 12020}, {"cuMemPrefetchAsync", 8000, 12020},    {"cuCtxGetDevice", 2000, 13000}};
    int tried = 0;
    NEED(cuGetProcAddress_v2);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        if (rows[i].newer > here.driver_version)
            continue;
        void *older = at_version(rows[i].name, rows[i].older, 0), *newer = at_version(rows[i].name, rows[i].newer, 0);
        EXPECT(newer, "%s at %d is not there", rows[i].name, rows[i].newer);
        EXPECT(older && older != newer, "%s at %d is %s", rows[i].name, rows[i].older,
               older ? "that of the newer version" : "not there");
        EXPECT(at_version(rows[i].name, here.driver_version, 0), "%s at the driver's own version is not there",
               rows[i].name);
        tried++;
    }
    GPU_OK("%d names with two forms", tried);
}

void contract_resolver_streams(void)
{
    NEED(cuGetProcAddress_v2);
    static const char *const names[] = {"cuLaunchKernel", "cuMemcpyHtoDAsync", "cuStreamSynchronize"};
    for (int i = 0; i < 3; i++) {
        void *plain = at_version(names[i], 11030, 0);
        void *legacy = at_version(names[i], 11030, CU_GET_PROC_ADDRESS_LEGACY_STREAM);
        void *own = at_version(names[i], 11030, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
        EXPECT(plain && own && plain != own, "%s is the same with both", names[i]);
        EXPECT(plain == legacy, "%s: flags 0 and 1 differ", names[i]);
    }
    GPU_OK("three names");
}

void contract_resolver_absent(void)
{
    void *found = (void *)1;
    CUdriverProcAddressQueryResult status = (CUdriverProcAddressQueryResult)99,
                                   early = (CUdriverProcAddressQueryResult)99;
    NEED(cuGetProcAddress_v2);
    CUresult r = drv.cuGetProcAddress_v2("cuNoSuchFunction", &found, here.driver_version, 0, &status);
    EXPECT(!found || r != CUDA_SUCCESS, "something was found");
    EXPECT(status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND, "status %d", (int)status);
    found = (void *)1;
    CUresult older = drv.cuGetProcAddress_v2("cuMemCreate", &found, 9000, 0, &early);
    EXPECT(older != CUDA_SUCCESS || !found, "cuMemCreate is found at version 9000");
    GPU_OK("%s, status %d; younger than asked: %s, status %d", gpu_error(r), (int)status, gpu_error(older), (int)early);
}

void contract_query(void)
{
    struct gpu_spin spin;
    CUstream other;
    bool running = false;
    CUresult aside = CUDA_SUCCESS, legacy = CUDA_SUCCESS;
    MUST(drv.cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
    for (int try = 0; try < 3 && !running; try++) {
        MUST(gpu_spin_begin(&spin, GPU_SPIN_NS));
        aside = drv.cuStreamQuery(other);
        legacy = drv.cuStreamQuery(NULL);
        running = gpu_spin_runs(&spin);
        MUST(gpu_spin_end(&spin));
    }
    EXPECT(running, "a stream with a kernel that runs is told to be at rest");
    EXPECT(aside == CUDA_SUCCESS, "another stream: %s", gpu_error(aside));
    EXPECT(legacy == CUDA_SUCCESS, "the legacy stream, beside a non-blocking one: %s", gpu_error(legacy));
    MUST(drv.cuStreamDestroy_v2(other));
    GPU_OK("not ready while it runs; other streams are");
}

void contract_words(void)
{
    struct vm vm;
    CUstream stream;
    CUmemLocation location;
    size_t chunks = vm_host_location(&location) == CUDA_SUCCESS ? 2 : 1;
    NEED(cuStreamWriteValue32_v2);
    MUST(drv.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(vm_reserve(&vm, 2));
    MUST(vm_back(&vm, 0, 1, VM_DEVICE));
    if (chunks == 2)
        MUST(vm_back(&vm, 1, 1, VM_HOST));
    for (size_t i = 0; i < chunks; i++) {
        uint32_t word = 0;
        CUresult r = drv.cuStreamWriteValue32_v2(stream, vm_at(&vm, i), 17, 0);
        EXPECT(r == CUDA_SUCCESS, "a write to %s memory: %s", i ? "host" : "device", gpu_error(r));
        r = drv.cuStreamWaitValue32_v2(stream, vm_at(&vm, i), 17, CU_STREAM_WAIT_VALUE_EQ);
        EXPECT(r == CUDA_SUCCESS, "a wait on %s memory: %s", i ? "host" : "device", gpu_error(r));
        MUST(drv.cuStreamSynchronize(stream));
        MUST(drv.cuMemcpyDtoH_v2(&word, vm_at(&vm, i), 4));
        EXPECT(word == 17, "the word in %s memory is %u", i ? "host" : "device", word);
    }
    MUST(vm_finish(&vm));
    MUST(drv.cuStreamDestroy_v2(stream));
    GPU_OK("a write and a wait on %s", chunks == 2 ? "device and host chunks" : "device chunks");
}

void contract_capacity(void)
{
    size_t total, of_info, free_bytes;
    MUST(drv.cuDeviceTotalMem_v2(&total, here.device));
    MUST(drv.cuMemGetInfo_v2(&free_bytes, &of_info));
    EXPECT(total == of_info && free_bytes <= total, "%zu in total, %zu of %zu free", total, free_bytes, of_info);
    GPU_OK("%.1f GiB, %.1f free", (double)total / (1 << 30), (double)free_bytes / (1 << 30));
}

void contract_peers(void)
{
    int count, can;
    MUST(drv.cuDeviceGetCount(&count));
    if (count < 2) {
        gpu_row(GPU_LACKS_, NULL, "there is one GPU");
        return;
    }
    MUST(drv.cuDeviceCanAccessPeer(&can, 0, 1));
    GPU_OK("%d GPUs; the first %s the second", count, can ? "reaches" : "does not reach");
}
