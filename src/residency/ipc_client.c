#include "residency/ipc_internal.h"

#include "base/clock.h"
#include "base/log.h"
#include "residency/context.h"
#include "residency/gpu.h"

#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

/* Opening: the chunks are asked for of the exporting process, and mapped side by side as they come. */

#define CHUNKS_MOST (UINT32_C(1) << 24)

static void say_gone(const struct hr_ipc_handle *h)
{
    hr_log(HR_LOG_WARN,
           "cuIpcOpenMemHandle: process %u, which shared this memory, or the memory itself is gone (or cannot be "
           "reached from this container)",
           h->pid);
}

static int connect_to(const struct hr_ipc_handle *h)
{
    struct sockaddr_un address;
    socklen_t length = hr_ipc_address(h->pid, h->start_time, &address);
    struct timeval most = {.tv_sec = (time_t)(HR_IPC_DEADLINE_NS / 1000000000)};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0), r = -1;
    uint64_t deadline_ns = hr_clock_ns() + HR_IPC_DEADLINE_NS;
    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &most, sizeof most); /* for the wait while many are in line */
    do {
        r = connect(fd, (const struct sockaddr *)&address, length);
    } while (r != 0 && errno == EINTR && hr_clock_ns() < deadline_ns);
    if (r == 0 && hr_ipc_is_own_user(fd))
        return fd;
    close(fd);
    return -1;
}

/* The device here with this identity; -1: this process does not see it. */
static CUdevice device_of(const CUuuid *identity)
{
    for (unsigned g = 0; g < hr_gpu_count(); g++) {
        CUuuid own;
        CUdevice device = hr_gpu_device(g);
        CUresult r =
            HR_HAS(cuDeviceGetUuid_v2) ? hr_drv.cuDeviceGetUuid_v2(&own, device) : hr_drv.cuDeviceGetUuid(&own, device);
        if (r == CUDA_SUCCESS && memcmp(&own, identity, sizeof own) == 0)
            return device;
    }
    return -1;
}

static bool can_reach(CUdevice user, CUdevice owner)
{
    int can = user == owner;
    return can || (hr_drv.cuDeviceCanAccessPeer(&can, user, owner) == CUDA_SUCCESS && can);
}

/* Whoever opens it may use it, and so may the other GPUs with a context here that reach it: peer access is enabled lazily. */
static CUresult grant(const struct hr_ipc_mapping *m, CUdevice user)
{
    CUmemAccessDesc desc[HR_MAX_GPUS];
    size_t n = 0;
    for (unsigned g = 0; g < hr_gpu_count(); g++) {
        CUdevice device = hr_gpu_device(g);
        if (device == user || (hr_context_of_gpu(g) && can_reach(device, m->device)))
            desc[n++] = (CUmemAccessDesc){.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device},
                                          .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    }
    return hr_drv.cuMemSetAccess(m->base, m->bytes, desc, n);
}

/* Its mapping keeps the memory, so the handle is given back at once. */
static CUresult map_chunk(CUdeviceptr address, size_t chunk_bytes, int fd)
{
    CUmemGenericAllocationHandle chunk;
    CUresult r =
        hr_drv.cuMemImportFromShareableHandle(&chunk, (void *)(uintptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
    if (r != CUDA_SUCCESS)
        return r;
    r = hr_drv.cuMemMap(address, chunk_bytes, 0, chunk, 0);
    hr_drv.cuMemRelease(chunk);
    return r;
}

/* One message's chunks, at m->base + m->bytes and on. */
static CUresult map_some(int socket, uint32_t chunks, uint32_t *done, struct hr_ipc_mapping *m, size_t chunk_bytes,
                         uint64_t deadline_ns)
{
    struct hr_ipc_reply reply;
    int fds[HR_IPC_BATCH];
    unsigned count;
    CUresult r = CUDA_SUCCESS;
    if (!hr_ipc_receive(socket, &reply, sizeof reply, fds, &count, deadline_ns))
        return CUDA_ERROR_MAP_FAILED;
    if (reply.magic != HR_IPC_MAGIC || reply.result != CUDA_SUCCESS || count == 0 || reply.count != count ||
        count > chunks - *done)
        r = CUDA_ERROR_MAP_FAILED;
    for (unsigned i = 0; i < count; i++) {
        if (r == CUDA_SUCCESS)
            r = map_chunk(m->base + m->bytes, chunk_bytes, fds[i]);
        close(fds[i]);
        if (r == CUDA_SUCCESS) {
            m->bytes += chunk_bytes;
            ++*done;
        }
    }
    return r;
}

static CUresult map_all(int socket, uint32_t chunks, size_t chunk_bytes, CUdevice user, struct hr_ipc_mapping *m,
                        uint64_t deadline_ns)
{
    uint32_t done = 0;
    size_t reserved = (size_t)chunks * chunk_bytes;
    CUresult r = hr_drv.cuMemAddressReserve(&m->base, reserved, chunk_bytes, 0, 0);
    if (r != CUDA_SUCCESS)
        return r;
    while (r == CUDA_SUCCESS && done < chunks)
        r = map_some(socket, chunks, &done, m, chunk_bytes, deadline_ns);
    if (r == CUDA_SUCCESS)
        r = grant(m, user);
    if (r == CUDA_SUCCESS)
        return r;
    if (m->bytes > 0 && hr_drv.cuMemUnmap(m->base, m->bytes) != CUDA_SUCCESS)
        return r; /* the addresses stay taken */
    hr_drv.cuMemAddressFree(m->base, reserved);
    return r;
}

static bool is_sound(const struct hr_ipc_reply *reply, const struct hr_ipc_handle *h)
{
    uint64_t chunk = reply->chunk_bytes;
    return reply->magic == HR_IPC_MAGIC && chunk > 0 && (chunk & (chunk - 1)) == 0 && h->offset < chunk &&
           reply->chunks > 0 && reply->chunks < CHUNKS_MOST && chunk < UINT64_C(1) << 40 &&
           reply->chunks == (h->offset + h->bytes + chunk - 1) / chunk;
}

CUresult hr_ipc_fetch(const struct hr_ipc_handle *handle, CUdevice user, struct hr_ipc_mapping *mapping_out)
{
    uint64_t deadline_ns = hr_clock_ns() + HR_IPC_DEADLINE_NS;
    struct hr_ipc_request request = {HR_IPC_MAGIC, handle->key};
    struct hr_ipc_mapping m = {.device = device_of(&handle->gpu)};
    struct hr_ipc_reply reply;
    unsigned none;
    if (m.device < 0 || !can_reach(user, m.device)) {
        hr_log(HR_LOG_WARN, "cuIpcOpenMemHandle: the memory is of a GPU that %s",
               m.device < 0 ? "this process does not see" : "the current one cannot reach");
        return CUDA_ERROR_MAP_FAILED;
    }
    int socket = connect_to(handle);
    if (socket < 0 || !hr_ipc_send(socket, &request, sizeof request, NULL, 0, deadline_ns) ||
        !hr_ipc_receive(socket, &reply, sizeof reply, NULL, &none, deadline_ns) || reply.result != CUDA_SUCCESS) {
        say_gone(handle);
        if (socket >= 0)
            close(socket);
        return CUDA_ERROR_MAP_FAILED;
    }
    CUresult r = is_sound(&reply, handle) ? map_all(socket, reply.chunks, reply.chunk_bytes, user, &m, deadline_ns)
                                          : CUDA_ERROR_INVALID_HANDLE;
    close(socket);
    if (r != CUDA_SUCCESS && r != CUDA_ERROR_OUT_OF_MEMORY)
        hr_log(HR_LOG_WARN, "cuIpcOpenMemHandle: memory of process %u could not be mapped (driver error %d)",
               handle->pid, (int)r);
    if (r == CUDA_SUCCESS)
        *mapping_out = m;
    return r;
}

void hr_ipc_unmap(const struct hr_ipc_mapping *mapping)
{
    CUresult r = hr_drv.cuMemUnmap(mapping->base, mapping->bytes);
    if (r == CUDA_SUCCESS)
        r = hr_drv.cuMemAddressFree(mapping->base, mapping->bytes);
    if (r != CUDA_SUCCESS)
        hr_log(HR_LOG_WARN, "memory of another process stays mapped: driver error %d", (int)r);
}
