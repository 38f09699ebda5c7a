/* A job that shares memory with others, one step at a time: ipc_agent SOCKET. See ipc_agent.h. */
#include "ipc_agent.h"

#include <dirent.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

extern const unsigned char shim_ptx[];

#define BALLAST_MOST 64
#define THREADS_MOST 16

static CUdeviceptr slots[IPC_SLOTS], ballast[BALLAST_MOST];
static unsigned slot_count;
static uint64_t ballast_count, ballast_bytes;
static CUcontext context;
static CUstream stream;
static CUfunction stride_add;
static CUevent own_event, other_event;
static CUgraphExec graph;

static CUresult begin(void)
{
    CUmodule module;
    CUresult r = cuCtxCreate_v2(&context, 0, 0);
    if (r == CUDA_SUCCESS)
        r = cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    if (r == CUDA_SUCCESS)
        r = cuModuleLoadData(&module, shim_ptx);
    if (r == CUDA_SUCCESS)
        r = cuModuleGetFunction(&stride_add, module, "stride_add");
    return r;
}

static CUresult add(CUdeviceptr at, uint64_t stride, uint32_t words, uint32_t what)
{
    void *parameters[] = {&at, &stride, &words, &what};
    return cuLaunchKernel(stride_add, 1 + words / 512, 1, 1, 128, 1, 1, 0, stream, parameters, NULL);
}

/* Of one word in every `stride`. */
static CUresult sum(CUdeviceptr at, size_t bytes, size_t stride, uint64_t *sum_out)
{
    uint32_t *words = malloc(bytes);
    if (!words)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = cuMemcpyDtoHAsync_v2(words, at, bytes, stream);
    if (r == CUDA_SUCCESS)
        r = cuStreamSynchronize(stream);
    *sum_out = 0;
    for (size_t i = 0; r == CUDA_SUCCESS && i < bytes / 4; i += stride)
        *sum_out += words[i] * (uint64_t)(i % 1021 + 1);
    free(words);
    return r;
}

/* Addresses differ from run to run; what they mean does not. */
static CUresult attributes(CUdeviceptr at, uint64_t *mixture_out)
{
    CUdeviceptr base = 0, start = 0;
    size_t bytes = 0, range = 0;
    CUcontext owner = NULL;
    unsigned type = 0, legacy = 0, managed = 0;
    int ordinal = -1;
    CUresult r = cuMemGetAddressRange_v2(&base, &bytes, at), first = r;
    if ((r = cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, at)) != CUDA_SUCCESS ||
        (r = cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at)) != CUDA_SUCCESS ||
        (r = cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at)) != CUDA_SUCCESS ||
        (r = cuPointerGetAttribute(&legacy, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, at)) != CUDA_SUCCESS ||
        (r = cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, at)) != CUDA_SUCCESS ||
        (r = cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at)) != CUDA_SUCCESS ||
        (r = cuPointerGetAttribute(&range, CU_POINTER_ATTRIBUTE_RANGE_SIZE, at)) != CUDA_SUCCESS)
        return r;
    *mixture_out = bytes ^ range << 1 ^ (uint64_t)(at - base) << 40 ^ (uint64_t)(at - start) << 41 ^
                   (uint64_t)(owner == context) << 60 ^ (uint64_t)type << 56 ^ (uint64_t)(legacy & 1) << 55 ^
                   (uint64_t)(managed & 1) << 54 ^ (uint64_t)(unsigned)ordinal << 48;
    return first;
}

struct opening {
    pthread_barrier_t *barrier;
    CUipcMemHandle handle;
    CUdeviceptr at;
    CUresult result;
};
static void *open_one(void *argument)
{
    struct opening *o = argument;
    o->result = cuCtxSetCurrent(context);
    pthread_barrier_wait(o->barrier);
    if (o->result == CUDA_SUCCESS)
        o->result = cuIpcOpenMemHandle(&o->at, o->handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    return NULL;
}

/* How many got the same address. */
static CUresult open_at_once(const struct ipc_order *o, CUdeviceptr *at_out, uint64_t *same_out)
{
    struct opening openings[THREADS_MOST];
    pthread_t threads[THREADS_MOST];
    pthread_barrier_t barrier;
    unsigned n = o->a < THREADS_MOST ? (unsigned)o->a : THREADS_MOST;
    pthread_barrier_init(&barrier, NULL, n);
    for (unsigned i = 0; i < n; i++) {
        openings[i] = (struct opening){.barrier = &barrier, .handle = o->handle};
        if (pthread_create(&threads[i], NULL, open_one, &openings[i]) != 0)
            abort();
    }
    *same_out = 0;
    for (unsigned i = 0; i < n; i++) {
        pthread_join(threads[i], NULL);
        *same_out += openings[i].result == CUDA_SUCCESS && openings[i].at == openings[0].at;
    }
    pthread_barrier_destroy(&barrier);
    *at_out = openings[0].at;
    return openings[0].result;
}

static CUresult work(uint64_t rounds, uint64_t *sum_out)
{
    uint64_t stride = 512;
    CUresult r = CUDA_SUCCESS;
    *sum_out = 0;
    for (uint64_t round = 0; round < rounds; round++)
        for (uint64_t i = 0; i < ballast_count && r == CUDA_SUCCESS; i++)
            r = add(ballast[i], stride, (uint32_t)(ballast_bytes / 4 / stride), (uint32_t)(round + 1));
    for (uint64_t i = 0; i < ballast_count && r == CUDA_SUCCESS; i++) {
        uint64_t one = 0;
        r = sum(ballast[i], ballast_bytes, stride, &one);
        *sum_out += one;
    }
    return r;
}

static CUresult get_ballast(uint64_t count, uint64_t bytes)
{
    CUresult r = CUDA_SUCCESS;
    ballast_bytes = bytes;
    for (ballast_count = 0; ballast_count < count && ballast_count < BALLAST_MOST; ballast_count++) {
        r = cuMemAlloc_v2(&ballast[ballast_count], bytes);
        if (r == CUDA_SUCCESS)
            r = cuMemsetD32Async(ballast[ballast_count], (unsigned)ballast_count, bytes / 4, stream);
        if (r != CUDA_SUCCESS)
            return r;
    }
    return cuStreamSynchronize(stream);
}

static uint64_t files(void)
{
    uint64_t count = 0;
    DIR *folder = opendir("/proc/self/fd");
    while (folder && readdir(folder))
        count++;
    if (folder)
        closedir(folder);
    return count;
}

static uint64_t fork_one(int socket)
{
    pid_t child = fork();
    if (child != 0)
        return (uint64_t)child;
    char c;
    close(socket);
    while (read(STDIN_FILENO, &c, 1) > 0)
        continue;
    _exit(0);
}

static unsigned take_slot(CUdeviceptr at, CUresult r)
{
    if (r != CUDA_SUCCESS || slot_count == IPC_SLOTS)
        return 0;
    slots[slot_count] = at;
    return slot_count++;
}

static CUresult allocate(const struct ipc_order *o, struct ipc_answer *a)
{
    CUdeviceptr at = 0;
    CUresult r = cuMemAlloc_v2(&at, o->a);
    if (r == CUDA_SUCCESS)
        r = cuMemsetD32Async(at, (unsigned)o->b, o->a / 4, stream);
    if (r == CUDA_SUCCESS)
        r = cuStreamSynchronize(stream);
    a->slot = take_slot(at, r);
    return r;
}

static CUresult make_graph(CUdeviceptr at, uint64_t words, uint64_t value)
{
    CUgraph g;
    CUgraphNode node;
    CUDA_MEMSET_NODE_PARAMS what = {
        .dst = at, .value = (unsigned)value, .elementSize = 4, .width = (size_t)words, .height = 1};
    CUresult r = cuGraphCreate(&g, 0);
    if (r == CUDA_SUCCESS)
        r = cuGraphAddMemsetNode(&node, g, NULL, 0, &what, context);
    return r == CUDA_SUCCESS ? cuGraphInstantiateWithFlags(&graph, g, 0) : r;
}

static CUresult sync_memops(CUdeviceptr at)
{
    unsigned on = 1;
    return cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at);
}

static CUresult reset(void)
{
    slot_count = 0;
    ballast_count = 0;
    CUresult r = cuCtxDestroy_v2(context);
    return r == CUDA_SUCCESS ? begin() : r;
}

static CUresult obey(const struct ipc_order *o, struct ipc_answer *a, int socket)
{
    CUdeviceptr at = o->slot < IPC_SLOTS ? slots[o->slot] : 0;
    CUresult r;
    switch (o->what) {
    case IPC_ALLOC: return allocate(o, a);
    case IPC_FREE: return cuMemFree_v2(at);
    case IPC_EXPORT: return cuIpcGetMemHandle(&a->handle, at + o->a);
    case IPC_OPEN:
        r = cuIpcOpenMemHandle(&at, o->handle, (unsigned)o->a);
        a->value = at;
        a->slot = take_slot(at, r);
        return r;
    case IPC_CLOSE: return cuIpcCloseMemHandle(at);
    case IPC_OPEN_AT_ONCE:
        r = open_at_once(o, &at, &a->value);
        a->slot = take_slot(at, r);
        return r;
    case IPC_ADD: return add(at, o->a, (uint32_t)o->b, (uint32_t)o->c);
    case IPC_SUM: return sum(at, o->a, 1, &a->value);
    case IPC_ATTRIBUTES: return attributes(at, &a->value);
    case IPC_BALLAST: return get_ballast(o->a, o->b);
    case IPC_WORK: return work(o->a, &a->value);
    case IPC_EVENT:
        r = cuEventCreate(&own_event, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS);
        return r == CUDA_SUCCESS ? cuIpcGetEventHandle(&a->event, own_event) : r;
    case IPC_EVENT_OPEN: return cuIpcOpenEventHandle(&other_event, o->event);
    case IPC_RECORD: return cuEventRecord(own_event, stream);
    case IPC_WAIT: return cuStreamWaitEvent(stream, other_event, 0);
    case IPC_GRAPH: return make_graph(at, o->a, o->b);
    case IPC_GRAPH_LAUNCH: return cuGraphLaunch(graph, stream);
    case IPC_SYNC_MEMOPS: return sync_memops(at);
    case IPC_DMA_BUF: return cuMemGetHandleForAddressRange(&a->value, at, o->a, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    case IPC_RESET: return reset();
    case IPC_FORK: a->value = fork_one(socket); return CUDA_SUCCESS;
    case IPC_FILES: a->value = files(); return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

int main(int argc, char **argv)
{
    int socket = argc == 2 ? (int)strtol(argv[1], NULL, 10) : -1;
    struct ipc_order order;
    struct ipc_answer answer = {.result = CUDA_ERROR_NOT_INITIALIZED};
    if (cuInit(0) == CUDA_SUCCESS)
        answer.result = (int32_t)begin();
    while (send(socket, &answer, sizeof answer, MSG_NOSIGNAL) == (ssize_t)sizeof answer &&
           recv(socket, &order, sizeof order, 0) == (ssize_t)sizeof order && order.what != IPC_END) {
        memset(&answer, 0, sizeof answer);
        answer.result = (int32_t)obey(&order, &answer, socket);
    }
    return 0;
}
