/* Memory and events of several processes: legacy handles, pools, chunks, external memory. */
#include "sim_test.h"
#include "strict.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/wait.h>

/* What the other process does: it ends with a line number where it is wrong. */
#define THEIRS(call)                                                                                                   \
    do {                                                                                                               \
        if (!(call)) {                                                                                                 \
            fprintf(stderr, "the other process, line %d: %s\n", __LINE__, #call);                                      \
            _exit(99);                                                                                                 \
        }                                                                                                              \
    } while (0)
#define THEIR_OK(call) THEIRS((call) == CUDA_SUCCESS)

struct other {
    pid_t pid;
    int socket;
};

/* Starts it before this process calls cuInit: a driver does not survive a fork. */
static struct other start(void (*body)(int socket), const char *description)
{
    int ends[2];
    struct other o;
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    setenv("SIMGPU", description, 1);
    o.pid = fork();
    cr_assert_geq(o.pid, 0);
    if (!o.pid) {
        close(ends[0]);
        body(ends[1]);
        _exit(0);
    }
    close(ends[1]);
    o.socket = ends[0];
    return o;
}

static void join(struct other o)
{
    int status;
    cr_assert_eq(waitpid(o.pid, &status, 0), o.pid);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the other process ended with 0x%x", (unsigned)status);
    close(o.socket);
}

static void give(int socket, const void *data, size_t bytes)
{
    if (send(socket, data, bytes, MSG_NOSIGNAL) != (ssize_t)bytes)
        fprintf(stderr, "the other side is gone\n");
}

static void get(int socket, void *data, size_t bytes)
{
    if (recv(socket, data, bytes, MSG_WAITALL) != (ssize_t)bytes)
        fprintf(stderr, "the other side is gone\n");
}

static void tell(int socket)
{
    give(socket, "x", 1);
}

static void hear(int socket)
{
    char c;
    get(socket, &c, 1);
}

static void give_fd(int socket, int fd)
{
    char room[CMSG_SPACE(sizeof fd)] = {0}, byte = 0;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    cr_assert_not_null(c);
    *c = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
    cr_assert_eq(sendmsg(socket, &message, 0), 1);
}

static int get_fd(int socket)
{
    int fd = -1;
    char room[CMSG_SPACE(sizeof fd)] = {0}, byte;
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    THEIRS(recvmsg(socket, &message, 0) == 1);
    const struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    THEIRS(c != NULL);
    memcpy(&fd, CMSG_DATA(c), sizeof fd);
    return fd;
}

static void set_up_there(void)
{
    CUcontext there;
    THEIR_OK(cuInit(0));
    THEIR_OK(cuCtxCreate_v2(&there, 0, 0));
}

/* ---- legacy handles of memory ---- */

#define NUMBERS 3

static void open_three(int socket)
{
    CUipcMemHandle handle;
    size_t bytes[NUMBERS];
    set_up_there();
    get(socket, bytes, sizeof bytes);
    for (int i = 0; i < NUMBERS; i++) {
        CUdeviceptr p, again, base;
        size_t size, before, after, total;
        unsigned value, last, is_device;
        get(socket, &handle, sizeof handle);
        THEIR_OK(cuMemGetInfo_v2(&before, &total));
        THEIR_OK(cuIpcOpenMemHandle_v2(&p, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
        THEIR_OK(cuMemGetInfo_v2(&after, &total));
        THEIRS(before == after); /* it is the owner's */
        THEIR_OK(cuMemGetAddressRange_v2(&base, &size, p));
        THEIRS(base == p && size == bytes[i]);
        THEIR_OK(cuPointerGetAttribute(&is_device, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p));
        THEIRS(is_device == CU_MEMORYTYPE_DEVICE);
        THEIR_OK(cuMemcpyDtoH_v2(&value, p, 4));
        THEIR_OK(cuMemcpyDtoH_v2(&last, p + size - 4, 4));
        THEIRS(value == 100u + (unsigned)i && last == value);
        value += 1000;
        THEIR_OK(cuMemcpyHtoD_v2(p + size - 4, &value, 4));
        THEIR_OK(cuCtxSynchronize());
        THEIRS(cuMemsetD8_v2(p + size, 0, 1) == CUDA_ERROR_INVALID_VALUE);
        THEIR_OK(cuIpcOpenMemHandle_v2(&again, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
        THEIRS(again == p);
        THEIRS(cuMemFree_v2(p) == CUDA_ERROR_INVALID_VALUE);
        THEIR_OK(cuIpcCloseMemHandle(p));
        THEIR_OK(cuMemsetD8_v2(p, 0, 1)); /* opened twice */
        THEIR_OK(cuCtxSynchronize());
        THEIR_OK(cuIpcCloseMemHandle(p));
        THEIRS(cuIpcCloseMemHandle(p) == CUDA_ERROR_INVALID_VALUE);
        THEIRS(cuMemsetD8_v2(p, 0, 1) == CUDA_ERROR_INVALID_VALUE);
        tell(socket);
    }
}

Test(ipc, memory_opened_in_another_process_is_the_same)
{
    struct other o = start(open_three, "h200,vram=64M");
    machine_with_context("h200,vram=64M");
    static const size_t bytes[NUMBERS] = {4000, 3 * MIB, 7 * MIB};
    CUdeviceptr filler[20], before;
    give(o.socket, bytes, sizeof bytes);
    OK(cuMemAlloc_v2(&before, 4000)); /* so that the first does not begin its page */
    for (int i = 0; i < 20; i++)
        OK(cuMemAlloc_v2(&filler[i], PAGE));
    for (int i = 0; i < 20; i += 2)
        OK(cuMemFree_v2(filler[i])); /* frames that lie apart */
    for (unsigned i = 0; i < NUMBERS; i++) {
        CUdeviceptr p;
        CUipcMemHandle handle, again;
        unsigned value;
        OK(cuMemAlloc_v2(&p, bytes[i]));
        OK(cuMemsetD32_v2(p, 100 + i, bytes[i] / 4));
        OK(cuCtxSynchronize());
        OK(cuIpcGetMemHandle(&handle, p));
        OK(cuIpcGetMemHandle(&again, p));
        cr_assert_eq(memcmp(&handle, &again, sizeof handle), 0);
        give(o.socket, &handle, sizeof handle);
        hear(o.socket);
        OK(cuMemcpyDtoH_v2(&value, p + bytes[i] - 4, 4));
        cr_assert_eq(value, 1100 + i);
        OK(cuMemFree_v2(p));
    }
    join(o);
}

static void open_what_is_gone(int socket)
{
    CUipcMemHandle handle;
    CUdeviceptr p;
    set_up_there();
    get(socket, &handle, sizeof handle);
    THEIRS(cuIpcOpenMemHandle_v2(&p, handle, 0) == CUDA_ERROR_INVALID_VALUE);
    THEIRS(cuIpcOpenMemHandle_v2(NULL, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) == CUDA_ERROR_INVALID_VALUE);
    THEIRS(cuIpcOpenMemHandle_v2(&p, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) == CUDA_ERROR_MAP_FAILED);
    memset(&handle, 0x5a, sizeof handle);
    THEIRS(cuIpcOpenMemHandle_v2(&p, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) == CUDA_ERROR_INVALID_HANDLE);
}

Test(ipc, wrong_calls_are_refused)
{
    struct other o = start(open_what_is_gone, "h200,vram=64M");
    machine_with_context("h200,vram=64M,host=64M");
    CUdeviceptr p, q, vmm = mapped_chunks(1), ordered;
    CUipcMemHandle handle, first;
    void *pinned;
    OK(cuMemAlloc_v2(&p, 4096));
    OK(cuMemAllocHost_v2(&pinned, 4096));
    OK(cuMemAllocAsync(&ordered, 4096, NULL));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle(&handle, vmm));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle(&handle, ordered));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle(&handle, (CUdeviceptr)(uintptr_t)pinned));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle(&handle, p + 512));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle(NULL, p));
    OK(cuIpcGetMemHandle(&first, p));
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuIpcOpenMemHandle_v2(&q, first, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuIpcCloseMemHandle(p));
    OK(cuMemFree_v2(p));
    OK(cuMemAlloc_v2(&p, 4096)); /* at the same address, but not the same memory */
    OK(cuIpcGetMemHandle(&handle, p));
    cr_assert_neq(memcmp(&handle, &first, sizeof handle), 0);
    give(o.socket, &first, sizeof first);
    join(o);
}

/* The owner frees what the other still has open: it is told of. */
static void keep_open(int socket)
{
    CUipcMemHandle handle;
    CUdeviceptr p;
    set_up_there();
    get(socket, &handle, sizeof handle);
    THEIR_OK(cuIpcOpenMemHandle_v2(&p, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    CUgraph g;
    CUgraphNode node;
    CUgraphExec exec;
    CUDA_MEMSET_NODE_PARAMS fill = {.dst = p, .value = 5, .elementSize = 4, .width = 16, .height = 1};
    THEIR_OK(cuGraphCreate(&g, 0));
    THEIR_OK(cuGraphAddMemsetNode(&node, g, NULL, 0, &fill, NULL));
    THEIR_OK(cuGraphInstantiateWithFlags(&exec, g, 0));
    THEIR_OK(cuGraphLaunch(exec, NULL));
    THEIR_OK(cuCtxSynchronize());
    tell(socket);
    hear(socket);
    THEIRS(cuMemsetD8_v2(p, 0, 4) == CUDA_ERROR_INVALID_VALUE); /* the owner has freed it */
    THEIRS(cuGraphLaunch(exec, NULL) == CUDA_ERROR_INVALID_VALUE);
    THEIR_OK(cuIpcCloseMemHandle(p));
}

static int frees_while_open(void)
{
    struct other o = start(keep_open, "v100,vram=64M,host=64M");
    CUipcMemHandle handle;
    set_up();
    MUST(cuIpcGetMemHandle(&handle, memory));
    give(o.socket, &handle, sizeof handle);
    hear(o.socket);
    MUST(cuMemFree_v2(memory));
    tell(o.socket);
    int status = 1;
    waitpid(o.pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

SCENES({"frees_while_open", frees_while_open})

Test(ipc, a_free_while_another_process_has_it_open_is_told)
{
    finds("frees_while_open", "off", 0, "use_after_free", 1, WORDS("while another process has it open"));
}

/* ---- events ---- */

static void wait_for_ours(int socket)
{
    CUipcEventHandle handles[2];
    CUipcMemHandle memory_handle;
    CUevent theirs, back;
    CUdeviceptr p;
    CUstream s;
    unsigned value = 0;
    set_up_there();
    get(socket, handles, sizeof handles);
    get(socket, &memory_handle, sizeof memory_handle);
    THEIR_OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    THEIR_OK(cuIpcOpenEventHandle(&theirs, handles[0]));
    THEIR_OK(cuIpcOpenEventHandle(&back, handles[1]));
    THEIR_OK(cuIpcOpenMemHandle_v2(&p, memory_handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
    THEIRS(cuEventQuery(theirs) == CUDA_ERROR_NOT_READY); /* recorded behind a gate */
    THEIR_OK(cuStreamWaitEvent(s, theirs, 0));
    THEIR_OK(cuMemcpyDtoHAsync_v2(&value, p, 4, s)); /* to pageable memory: returns when it is done */
    THEIRS(value == 4711);
    THEIR_OK(cuEventSynchronize(theirs));
    THEIR_OK(cuEventQuery(theirs));
    THEIR_OK(cuMemsetD32Async(p, 815, 1, s));
    THEIR_OK(cuEventRecord(back, s));
    tell(socket);
    hear(socket);
    THEIR_OK(cuIpcCloseMemHandle(p));
    THEIR_OK(cuEventDestroy_v2(theirs));
}

Test(ipc, an_event_orders_streams_of_two_processes)
{
    struct other o = start(wait_for_ours, "h200,vram=64M");
    machine_with_context("h200,vram=64M");
    struct gate gate = GATE_INIT;
    CUevent event, back;
    CUipcEventHandle handles[2];
    CUipcMemHandle memory_handle;
    CUdeviceptr p;
    CUstream s;
    unsigned value = 0;
    unsigned flags = CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING;
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuEventCreate(&event, flags));
    OK(cuEventCreate(&back, flags));
    OK(cuMemAlloc_v2(&p, 4096));
    OK(cuLaunchHostFunc(s, gate_wait, &gate));
    OK(cuMemsetD32Async(p, 4711, 1, s));
    OK(cuEventRecord(event, s));
    OK(cuIpcGetEventHandle(&handles[0], event));
    OK(cuIpcGetEventHandle(&handles[1], back));
    OK(cuIpcGetMemHandle(&memory_handle, p));
    give(o.socket, handles, sizeof handles);
    give(o.socket, &memory_handle, sizeof memory_handle);
    gate_await_arrival(&gate);
    struct timespec moment = {0, 20000000}; /* so that the other is likely to wait; either way it is right */
    nanosleep(&moment, NULL);
    gate_open(&gate);
    hear(o.socket);
    OK(cuEventSynchronize(back)); /* recorded by the other */
    OK(cuEventQuery(back));
    OK(cuStreamWaitEvent(s, back, 0));
    OK(cuMemcpyDtoHAsync_v2(&value, p, 4, s));
    cr_assert_eq(value, 815);
    tell(o.socket);
    join(o);
}

static void open_wrong_events(int socket)
{
    CUipcEventHandle handle;
    CUevent event;
    set_up_there();
    get(socket, &handle, sizeof handle);
    THEIRS(cuIpcOpenEventHandle(NULL, handle) == CUDA_ERROR_INVALID_VALUE);
    THEIRS(cuIpcOpenEventHandle(&event, handle) == CUDA_ERROR_MAP_FAILED); /* destroyed */
    memset(&handle, 1, sizeof handle);
    THEIRS(cuIpcOpenEventHandle(&event, handle) == CUDA_ERROR_INVALID_HANDLE);
}

Test(ipc, events_are_checked)
{
    struct other o = start(open_wrong_events, "h200,vram=64M");
    machine_with_context("h200,vram=64M");
    CUevent plain, shared, again;
    CUipcEventHandle handle;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuEventCreate(&shared, CU_EVENT_INTERPROCESS));
    OK(cuEventCreate(&plain, CU_EVENT_DISABLE_TIMING));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuIpcGetEventHandle(&handle, plain));
    OK(cuEventCreate(&shared, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuIpcGetEventHandle(NULL, shared));
    OK(cuEventQuery(shared));
    OK(cuEventRecord(shared, NULL));
    OK(cuEventSynchronize(shared));
    OK(cuIpcGetEventHandle(&handle, shared));
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuIpcOpenEventHandle(&again, handle));
    OK(cuEventDestroy_v2(shared));
    give(o.socket, &handle, sizeof handle);
    join(o);
}

/* ---- pools ---- */

static void import_pool(int socket)
{
    CUmemoryPool pool;
    CUmemPoolPtrExportData data[2];
    CUdeviceptr p[2], q;
    unsigned value;
    int fd = get_fd(socket);
    set_up_there();
    THEIR_OK(
        cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    close(fd);
    get(socket, data, sizeof data);
    THEIRS(cuMemAllocFromPoolAsync(&q, 4, pool, NULL) == CUDA_ERROR_INVALID_VALUE);
    THEIRS(cuDeviceSetMemPool(0, pool) == CUDA_ERROR_INVALID_VALUE);
    for (unsigned i = 0; i < 2; i++) {
        THEIR_OK(cuMemPoolImportPointer(&p[i], pool, &data[i]));
        THEIR_OK(cuMemcpyDtoH_v2(&value, p[i] + 3996, 4));
        THEIRS(value == 7 + i);
        THEIR_OK(cuMemsetD32_v2(p[i], 70 + i, 1000));
        THEIR_OK(cuCtxSynchronize());
    }
    THEIRS(cuMemsetD8_v2(p[0] + 4000, 0, 1) == CUDA_ERROR_INVALID_VALUE);
    THEIR_OK(cuMemFreeAsync(p[0], NULL));
    THEIRS(cuMemFreeAsync(p[0], NULL) == CUDA_ERROR_INVALID_VALUE);
    THEIR_OK(cuMemFree_v2(p[1]));
    THEIR_OK(cuCtxSynchronize());
    data[0].reserved[0] ^= 1;
    THEIRS(cuMemPoolImportPointer(&q, pool, &data[0]) == CUDA_ERROR_INVALID_VALUE);
    THEIR_OK(cuMemPoolDestroy(pool));
    tell(socket);
}

Test(ipc, pools_and_their_pointers_are_shared)
{
    struct other o = start(import_pool, "h200,vram=64M");
    machine_with_context("h200,vram=64M");
    CUmemoryPool pool, same;
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                            .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
    CUdeviceptr p[2], plain;
    CUmemPoolPtrExportData data[2];
    unsigned value;
    int fd;
    size_t before = free_vram();
    OK(cuMemPoolCreate(&pool, &props));
    OK(cuMemAllocFromPoolAsync(&plain, 100, pool, NULL));
    OK(cuMemAllocFromPoolAsync(&p[0], 4000, pool, NULL));
    OK(cuMemAllocFromPoolAsync(&p[1], 5 * MIB, pool, NULL));
    for (unsigned i = 0; i < 2; i++) {
        OK(cuMemsetD32_v2(p[i], 7 + i, 1000));
        OK(cuMemPoolExportPointer(&data[i], p[i]));
    }
    OK(cuCtxSynchronize());
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolExportPointer(&data[0], p[1] + 4));
    GIVES(CUDA_ERROR_INVALID_VALUE,
          cuMemPoolExportToShareableHandle(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 1));
    OK(cuDeviceGetDefaultMemPool(&same, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE,
          cuMemPoolExportToShareableHandle(&fd, same, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    OK(cuMemPoolExportToShareableHandle(&fd, pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    give_fd(o.socket, fd);
    close(fd);
    give(o.socket, data, sizeof data);
    hear(o.socket);
    for (unsigned i = 0; i < 2; i++) {
        OK(cuMemcpyDtoH_v2(&value, p[i] + 3996, 4));
        cr_assert_eq(value, 70 + i);
        OK(cuMemFreeAsync(p[i], NULL));
    }
    OK(cuMemFreeAsync(plain, NULL));
    OK(cuMemPoolDestroy(pool));
    OK(cuCtxSynchronize());
    cr_assert_eq(before, free_vram());
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolImportFromShareableHandle(&pool, (void *)(intptr_t)o.socket,
                                                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    join(o);
}

/* ---- chunks, and the same as external memory ---- */

static void import_chunk(int socket)
{
    CUmemGenericAllocationHandle handle;
    CUmemAccessDesc access = access_of(0);
    CUexternalMemory external;
    CUdeviceptr va, p, tail;
    unsigned value;
    int fd = get_fd(socket);
    set_up_there();
    THEIR_OK(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR));
    THEIR_OK(cuMemAddressReserve(&va, 2 * PAGE, 0, 0, 0));
    THEIR_OK(cuMemMap(va, 2 * PAGE, 0, handle, 0));
    THEIR_OK(cuMemSetAccess(va, 2 * PAGE, &access, 1));
    THEIR_OK(cuMemcpyDtoH_v2(&value, va + 2 * PAGE - 4, 4));
    THEIRS(value == 21);
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC desc = {.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, .size = 2 * PAGE};
    desc.handle.fd = fd;
    THEIR_OK(cuImportExternalMemory(&external, &desc));
    CUDA_EXTERNAL_MEMORY_BUFFER_DESC all = {.size = 2 * PAGE}, part = {.offset = PAGE + 512, .size = 1024};
    THEIR_OK(cuExternalMemoryGetMappedBuffer(&p, external, &all));
    THEIR_OK(cuExternalMemoryGetMappedBuffer(&tail, external, &part));
    THEIR_OK(cuMemcpyDtoH_v2(&value, p + 2 * PAGE - 4, 4));
    THEIRS(value == 21);
    THEIR_OK(cuMemsetD32_v2(tail, 22, 256));
    THEIRS(cuMemsetD8_v2(tail + 1024, 0, 1) == CUDA_ERROR_INVALID_VALUE);
    part.size = PAGE;
    THEIRS(cuExternalMemoryGetMappedBuffer(&tail, external, &part) == CUDA_ERROR_INVALID_VALUE);
    THEIR_OK(cuDestroyExternalMemory(external));
    THEIRS(cuDestroyExternalMemory(external) == CUDA_ERROR_INVALID_HANDLE);
    THEIRS(fcntl(fd, F_GETFD) < 0); /* it was given away */
    THEIR_OK(cuMemcpyDtoH_v2(&value, p + PAGE + 512, 4));
    THEIRS(value == 22);
    THEIR_OK(cuMemFree_v2(p));
    tell(socket);
}

Test(ipc, chunks_are_shared_and_are_external_memory)
{
    struct other o = start(import_chunk, "h200,vram=64M");
    machine_with_context("h200,vram=64M");
    CUmemAllocationProp prop = on_device(0);
    CUmemAccessDesc access = access_of(0);
    CUmemGenericAllocationHandle handle;
    CUexternalMemory external;
    CUdeviceptr va;
    unsigned value;
    int fd;
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    OK(cuMemCreate(&handle, 2 * PAGE, &prop, 0));
    OK(cuMemAddressReserve(&va, 2 * PAGE, 0, 0, 0));
    OK(cuMemMap(va, 2 * PAGE, 0, handle, 0));
    OK(cuMemSetAccess(va, 2 * PAGE, &access, 1));
    OK(cuMemsetD32_v2(va, 21, 2 * PAGE / 4));
    OK(cuCtxSynchronize());
    OK(cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0));
    give_fd(o.socket, fd);
    hear(o.socket);
    OK(cuMemcpyDtoH_v2(&value, va + PAGE + 512 + 1020, 4));
    cr_assert_eq(value, 22);
    OK(cuMemcpyDtoH_v2(&value, va + PAGE + 512 + 1024, 4));
    cr_assert_eq(value, 21);
    CUDA_EXTERNAL_MEMORY_HANDLE_DESC desc = {.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, .size = 2 * PAGE};
    desc.handle.fd = o.socket;
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuImportExternalMemory(&external, &desc));
    desc.handle.fd = fd;
    desc.size = 3 * PAGE;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuImportExternalMemory(&external, &desc));
    desc.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_WIN32;
    GIVES(CUDA_ERROR_NOT_SUPPORTED, cuImportExternalMemory(&external, &desc));
    close(fd);
    join(o);
}
