#include "probe.h"

#include <dlfcn.h>
#include <errno.h>
#include <linux/membarrier.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ---- calls during a capture ---- */

struct aside {
    CUstream stream;
    CUevent event;
};

static CUresult call_synchronize(const struct aside *a)
{
    (void)a;
    return drv.cuCtxSynchronize();
}
static CUresult call_query(const struct aside *a)
{
    return drv.cuStreamQuery(a->stream);
}
static CUresult call_query_legacy(const struct aside *a)
{
    (void)a;
    return drv.cuStreamQuery(NULL);
}
static CUresult call_wait(const struct aside *a)
{
    return drv.cuStreamSynchronize(a->stream);
}
static CUresult call_event(const struct aside *a)
{
    return drv.cuEventQuery(a->event);
}
static CUresult call_record(const struct aside *a)
{
    return drv.cuEventRecord(a->event, a->stream);
}
static CUresult call_info(const struct aside *a)
{
    size_t f, t;
    (void)a;
    return drv.cuMemGetInfo_v2(&f, &t);
}
static CUresult call_create(const struct aside *a)
{
    CUmemGenericAllocationHandle handle;
    (void)a;
    TRY(vm_create(VM_DEVICE, &handle));
    return drv.cuMemRelease(handle);
}
static CUresult call_map(const struct aside *a)
{
    struct vm vm;
    (void)a;
    TRY(vm_reserve(&vm, 1));
    TRY(vm_back(&vm, 0, 1, VM_DEVICE));
    return vm_finish(&vm);
}

static void one_capture(const char *name, CUresult (*call)(const struct aside *), const struct aside *a, bool relaxed)
{
    CUstream stream;
    CUgraph graph = NULL;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    MUST(drv.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(drv.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    if (relaxed)
        MUST(drv.cuThreadExchangeStreamCaptureMode(&mode));
    CUresult r = call(a);
    if (relaxed)
        MUST(drv.cuThreadExchangeStreamCaptureMode(&mode));
    CUresult end = drv.cuStreamEndCapture(stream, &graph);
    if (graph)
        MUST(drv.cuGraphDestroy(graph));
    MUST(drv.cuStreamDestroy_v2(stream));
    SAW(name, "%s; the capture: %s", gpu_error(r), end == CUDA_SUCCESS ? "intact" : gpu_error(end));
}

void probe_capture_calls(void)
{
    static const struct {
        const char *name;
        CUresult (*call)(const struct aside *);
    } calls[] = {{"context-synchronize", call_synchronize},
                 {"query", call_query},
                 {"query-legacy", call_query_legacy},
                 {"stream-synchronize", call_wait},
                 {"event-query", call_event},
                 {"event-record", call_record},
                 {"memory-info", call_info},
                 {"create", call_create},
                 {"map-unmap", call_map}};
    struct aside a;
    MUST(drv.cuStreamCreate(&a.stream, CU_STREAM_NON_BLOCKING));
    MUST(drv.cuEventCreate(&a.event, CU_EVENT_DISABLE_TIMING));
    MUST(drv.cuEventRecord(a.event, a.stream));
    MUST(drv.cuStreamSynchronize(a.stream));
    for (size_t i = 0; i < 2 * sizeof calls / sizeof calls[0]; i++) {
        char name[64];
        snprintf(name, sizeof name, "%s%s", calls[i / 2].name, i % 2 ? "-relaxed" : "");
        one_capture(name, calls[i / 2].call, &a, i % 2 != 0);
    }
    MUST(drv.cuEventDestroy_v2(a.event));
    MUST(drv.cuStreamDestroy_v2(a.stream));
}

static void *unmap_thread(void *data)
{
    CUresult *result = data;
    *result = drv.cuCtxSetCurrent(here.context);
    if (*result == CUDA_SUCCESS)
        *result = call_map(NULL);
    return NULL;
}

void probe_capture_unmap(void)
{
    CUstream stream;
    CUgraph graph = NULL;
    pthread_t thread;
    CUresult r = CUDA_ERROR_UNKNOWN;
    MUST(drv.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    MUST(drv.cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    if (pthread_create(&thread, NULL, unmap_thread, &r) == 0)
        pthread_join(thread, NULL);
    CUresult end = drv.cuStreamEndCapture(stream, &graph);
    if (graph)
        MUST(drv.cuGraphDestroy(graph));
    MUST(drv.cuStreamDestroy_v2(stream));
    SAW(NULL, "%s; the capture: %s", gpu_error(r), end == CUDA_SUCCESS ? "intact" : gpu_error(end));
}

/* ---- waits ---- */

void probe_free_waits(void)
{
    int returned = 0;
    for (int i = 0; i < 3; i++) {
        struct gpu_spin spin;
        CUdeviceptr p;
        MUST(drv.cuMemAlloc_v2(&p, 4 * here.chunk_bytes));
        MUST(gpu_spin_begin(&spin, UINT64_C(500000000)));
        MUST(drv.cuMemFree_v2(p));
        returned += gpu_spin_runs(&spin);
        MUST(gpu_spin_end(&spin));
        if (!returned && i == 0)
            break;
    }
    SAW(NULL, returned ? "it returned while the kernel ran, %d times" : "it waited for the kernel", returned);
}

/* ---- what is there ---- */

void probe_addresses(void)
{
    for (int shift = 47; shift >= 30; shift--) {
        CUdeviceptr base;
        if (drv.cuMemAddressReserve(&base, (size_t)1 << shift, here.chunk_bytes, 0, 0) != CUDA_SUCCESS)
            continue;
        MUST(drv.cuMemAddressFree(base, (size_t)1 << shift));
        gpu_number(NULL, (double)((size_t)1 << (shift - 30)), "GiB");
        return;
    }
    SAW(NULL, "less than 1 GiB");
}

void probe_pointers(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    int asked = 0, differ = 0;
    const char *example = "";
    NEED(cuGetProcAddress_v2);
    /* Look-ups by the names that need no version: those that have one form only. */
    static const char *const names[] = {
        "cuInit",           "cuDeviceGet",       "cuLaunchKernel",        "cuMemCreate",
        "cuMemMap",         "cuMemUnmap",        "cuMemSetAccess",        "cuStreamQuery",
        "cuStreamCreate",   "cuEventRecord",     "cuPointerGetAttribute", "cuGraphLaunch",
        "cuModuleLoadData", "cuFuncGetAttribute"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        void *found = NULL, *linked = library ? dlsym(library, names[i]) : NULL;
        CUdriverProcAddressQueryResult status;
        if (drv.cuGetProcAddress_v2(names[i], &found, here.driver_version, 0, &status) != CUDA_SUCCESS || !found ||
            !linked)
            continue;
        asked++;
        if (found != linked) {
            differ++;
            example = names[i];
        }
    }
    SAW(NULL, "%d of %d%s%s", differ, asked, differ ? ", such as " : "", example);
}

void probe_membarrier(void)
{
    long commands = syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0);
    ASSUMED(commands > 0 && (commands & MEMBARRIER_CMD_PRIVATE_EXPEDITED), NULL, "%s, commands %#lx",
            commands < 0 ? strerror(errno) : "there", commands < 0 ? 0 : commands);
}

void probe_attributes(void)
{
    static const struct {
        const char *name;
        CUdevice_attribute attribute;
    } rows[] = {{"vmm", CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED},
                {"host-numa-id", CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID},
                {"host-native-atomics", CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED},
                {"pageable-access", CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS},
                {"concurrent-managed", CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS},
                {"copy-engines", CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT},
                {"rdma-with-vmm", CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED},
                {"l2-bytes", CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE}};
    char device[128] = "";
    size_t total, left;
    MUST(drv.cuMemGetInfo_v2(&left, &total));
    gpu_number("memory", (double)total / (1 << 20), "MiB");
    gpu_number("gone", (double)(total - left) / (1 << 20),
               "MiB"); /* for this context, this module, and whoever else is there */
    MUST(drv.cuDeviceGetName(device, sizeof device, here.device));
    SAW("name", "%s", device);
    SAW("driver", "%d.%d", here.driver_version / 1000, here.driver_version % 1000 / 10);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int value = 0;
        CUresult r = drv.cuDeviceGetAttribute(&value, rows[i].attribute, here.device);
        SAW(rows[i].name, "%d%s%s", value, r == CUDA_SUCCESS ? "" : ", ", r == CUDA_SUCCESS ? "" : gpu_error(r));
    }
}
