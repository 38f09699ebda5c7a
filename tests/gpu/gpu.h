/*
 * What the programs under tests/gpu share: the driver's functions by look-up, so that one may be missing; a table of items, each
 * of which runs in a process of its own making with a deadline; rows of JSON on stdout.
 *
 * An item runs with the device's primary context current. It reports one row or more by GPU_OK and the like. An item that
 * reports a difference or a failure may leave anything behind: the next one gets a new process.
 */
#ifndef GPU_H
#define GPU_H

#include <cuda.h>

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GPU_FUNCTIONS(F)                                                                                               \
    F(cuInit)                                                                                                          \
    F(cuDriverGetVersion)                                                                                              \
    F(cuDeviceGet)                                                                                                     \
    F(cuDeviceGetCount)                                                                                                \
    F(cuDeviceGetName)                                                                                                 \
    F(cuDeviceTotalMem_v2)                                                                                             \
    F(cuDeviceGetAttribute)                                                                                            \
    F(cuDeviceCanAccessPeer)                                                                                           \
    F(cuDevicePrimaryCtxRetain)                                                                                        \
    F(cuDevicePrimaryCtxRelease_v2)                                                                                    \
    F(cuCtxCreate_v2)                                                                                                  \
    F(cuCtxDestroy_v2)                                                                                                 \
    F(cuCtxSetCurrent)                                                                                                 \
    F(cuCtxGetCurrent)                                                                                                 \
    F(cuCtxSynchronize)                                                                                                \
    F(cuGetErrorName)                                                                                                  \
    F(cuMemGetInfo_v2)                                                                                                 \
    F(cuMemAlloc_v2)                                                                                                   \
    F(cuMemFree_v2)                                                                                                    \
    F(cuMemHostAlloc)                                                                                                  \
    F(cuMemFreeHost)                                                                                                   \
    F(cuMemHostGetDevicePointer_v2)                                                                                    \
    F(cuMemcpyHtoD_v2)                                                                                                 \
    F(cuMemcpyDtoH_v2)                                                                                                 \
    F(cuMemcpyDtoD_v2)                                                                                                 \
    F(cuMemcpyHtoDAsync_v2)                                                                                            \
    F(cuMemcpyDtoHAsync_v2)                                                                                            \
    F(cuMemcpyDtoDAsync_v2)                                                                                            \
    F(cuMemcpyPeerAsync)                                                                                               \
    F(cuMemsetD32_v2)                                                                                                  \
    F(cuMemsetD32Async)                                                                                                \
    F(cuMemAddressReserve)                                                                                             \
    F(cuMemAddressFree)                                                                                                \
    F(cuMemCreate)                                                                                                     \
    F(cuMemRelease)                                                                                                    \
    F(cuMemMap)                                                                                                        \
    F(cuMemUnmap)                                                                                                      \
    F(cuMemSetAccess)                                                                                                  \
    F(cuMemGetAccess)                                                                                                  \
    F(cuMemGetAllocationGranularity)                                                                                   \
    F(cuMemRetainAllocationHandle)                                                                                     \
    F(cuMemGetAddressRange_v2)                                                                                         \
    F(cuPointerGetAttribute)                                                                                           \
    F(cuPointerSetAttribute)                                                                                           \
    F(cuIpcGetMemHandle)                                                                                               \
    F(cuMemPrefetchAsync_v2)                                                                                           \
    F(cuMemAdvise_v2)                                                                                                  \
    F(cuMemRangeGetAttribute)                                                                                          \
    F(cuStreamCreate)                                                                                                  \
    F(cuStreamDestroy_v2)                                                                                              \
    F(cuStreamQuery)                                                                                                   \
    F(cuStreamSynchronize)                                                                                             \
    F(cuStreamWaitValue32_v2)                                                                                          \
    F(cuStreamWriteValue32_v2)                                                                                         \
    F(cuStreamBeginCapture_v2)                                                                                         \
    F(cuStreamEndCapture)                                                                                              \
    F(cuStreamIsCapturing)                                                                                             \
    F(cuThreadExchangeStreamCaptureMode)                                                                               \
    F(cuEventCreate)                                                                                                   \
    F(cuEventDestroy_v2)                                                                                               \
    F(cuEventRecord)                                                                                                   \
    F(cuEventQuery)                                                                                                    \
    F(cuEventSynchronize)                                                                                              \
    F(cuEventElapsedTime)                                                                                              \
    F(cuGraphInstantiateWithFlags)                                                                                     \
    F(cuGraphLaunch)                                                                                                   \
    F(cuGraphExecDestroy)                                                                                              \
    F(cuGraphDestroy)                                                                                                  \
    F(cuModuleLoadData)                                                                                                \
    F(cuModuleUnload)                                                                                                  \
    F(cuModuleGetFunction)                                                                                             \
    F(cuFuncGetParamInfo)                                                                                              \
    F(cuLaunchKernel)                                                                                                  \
    F(cuTexObjectCreate)                                                                                               \
    F(cuTexObjectDestroy)                                                                                              \
    F(cuTensorMapEncodeTiled)                                                                                          \
    F(cuGetProcAddress)                                                                                                \
    F(cuGetProcAddress_v2)

#define GPU_MEMBER(name) __typeof__(&name) name;
struct gpu_driver {
    GPU_FUNCTIONS(GPU_MEMBER)
};
#undef GPU_MEMBER
/* What the driver lacks is NULL. */
extern struct gpu_driver drv;

/* What every item finds. */
struct gpu_here {
    CUdevice device;
    CUcontext context; /* the primary one */
    CUmodule module;   /* kernels.cu */
    size_t chunk_bytes;
    int driver_version;
    size_t large_bytes; /* for measurements: an eighth of what is free, 256 MiB at most */
};
extern struct gpu_here here;

struct gpu_item {
    const char *name;
    const char *says; /* what must be so, or the question */
    void (*run)(void);
    bool required;
};

enum gpu_verdict { GPU_OK_, GPU_DIFFERENT_, GPU_LACKS_, GPU_SEEN_, GPU_FAILED_ };

/*
 * Runs the items named on the command line, or all (--list prints their names, --seconds N bounds the whole), each with its
 * deadline (20 s, or --item-seconds N). Rows are objects, one a line, with program, name, says, required, verdict (ok, different, not supported, seen,
 * failed, hang, died, skipped), saw, and for a number value and unit. The program's exit status: 0 unless there is no
 * driver or GPU (2).
 */
int gpu_main(int argc, char **argv, const char *program, const struct gpu_item *items, size_t count);

/* Adds a row. `name` is NULL for the item's own row, else what the row is called after it. */
void gpu_row(enum gpu_verdict verdict, const char *name, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* A row with a number. */
void gpu_number(const char *name, double value, const char *unit);
const char *gpu_error(CUresult result);
CUfunction gpu_kernel(const char *name);
uint64_t gpu_clock_ns(void);

#define GPU_OK(...) gpu_row(GPU_OK_, NULL, __VA_ARGS__)
#define EXPECT(condition, ...)                                                                                         \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            gpu_row(GPU_DIFFERENT_, NULL, __VA_ARGS__);                                                                \
            return;                                                                                                    \
        }                                                                                                              \
    } while (0)
/* Something that the item itself needs. */
#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        CUresult must_ = (call);                                                                                       \
        if (must_ != CUDA_SUCCESS) {                                                                                   \
            gpu_row(GPU_FAILED_, NULL, "%s: %s", #call, gpu_error(must_));                                             \
            return;                                                                                                    \
        }                                                                                                              \
    } while (0)
#define NEED(function)                                                                                                 \
    do {                                                                                                               \
        if (!drv.function) {                                                                                           \
            gpu_row(GPU_LACKS_, NULL, "the driver has no " #function);                                                 \
            return;                                                                                                    \
        }                                                                                                              \
    } while (0)
/* For helpers that return what the driver said. */
#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        CUresult try_ = (call);                                                                                        \
        if (try_ != CUDA_SUCCESS)                                                                                      \
            return try_;                                                                                               \
    } while (0)

/* ---- memory of our own mapping ---- */

#define VM_MOST 64
struct vm {
    CUdeviceptr base;
    size_t chunks;
    CUmemGenericAllocationHandle handle[VM_MOST]; /* what is mapped there, 0 = nothing */
    CUmemGenericAllocationHandle spare[VM_MOST];  /* what was, and is still to be released */
    size_t spares;
};
enum vm_where { VM_DEVICE, VM_HOST };

CUresult vm_reserve(struct vm *vm, size_t chunks);
static inline CUdeviceptr vm_at(const struct vm *vm, size_t chunk)
{
    return vm->base + chunk * here.chunk_bytes;
}
/* A location that host chunks can be made at: found by trying. CUDA_ERROR_NOT_SUPPORTED if there is none. */
CUresult vm_host_location(CUmemLocation *location_out);
CUresult vm_create(enum vm_where where, CUmemGenericAllocationHandle *handle_out);
/* Maps without access; `handle` is released with the whole. */
CUresult vm_map(struct vm *vm, size_t chunk, CUmemGenericAllocationHandle handle);
/* This device may read and write. */
CUresult vm_access(const struct vm *vm, size_t first, size_t chunks);
/* One call for all of them. */
CUresult vm_unmap(struct vm *vm, size_t first, size_t chunks);
/* New chunks, mapped and accessible. */
CUresult vm_back(struct vm *vm, size_t first, size_t chunks, enum vm_where where);
/* Unmaps, releases and gives the addresses back. */
CUresult vm_finish(struct vm *vm);
#define NEED_HOST()                                                                                                    \
    do {                                                                                                               \
        CUmemLocation need_;                                                                                           \
        if (vm_host_location(&need_) != CUDA_SUCCESS) {                                                                \
            gpu_row(GPU_LACKS_, NULL, "no host chunks can be made here");                                              \
            return;                                                                                                    \
        }                                                                                                              \
    } while (0)

/* ---- work ---- */

/* Word i becomes first + i, by a kernel that is waited for. */
CUresult gpu_fill(CUdeviceptr address, size_t bytes, uint32_t first);
/* The first word that is not first + i, or -1; read by a copy. -2 if the copy failed. */
long gpu_compare(CUdeviceptr address, size_t bytes, uint32_t first);

/* A kernel on a stream of its own that ends when it is told to, or after a span. */
#define GPU_SPIN_NS UINT64_C(3000000000)
struct gpu_spin {
    CUstream stream;
    _Atomic(uint32_t) *flag; /* pinned: [0] ends it, [1] it has begun, [2] it ended because it was told to */
};
/* When it returns the kernel runs. CUDA_ERROR_TIMEOUT if it did not begin within 2 s. */
CUresult gpu_spin_begin(struct gpu_spin *spin, uint64_t span_ns);
bool gpu_spin_runs(const struct gpu_spin *spin);
CUresult gpu_spin_end(struct gpu_spin *spin);

#endif
