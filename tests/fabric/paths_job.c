/*
 * A job that copies between every two GPUs in all the ways there are, for test_paths.c: paths_job ask|force|streams.
 *
 * It enables peer access where it is offered (force: everywhere, and takes a refusal for an answer; streams: where it is offered, and it
 * makes only large copies on streams), and tells how many copies arrived
 * wrong and how many GPUs are peers: "wrong 0 of 72, peers 8". Status 0 unless a call fails.
 */
#include <cuda.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 16, LARGE = 1280 << 10, SMALL = 64 << 10, ROW = 4096, PITCH = 5120 };

static int gpus, copies, wrong, peers;
static CUcontext context[MOST];
static CUstream stream[MOST];
static CUdeviceptr from[MOST], to[MOST];
static uint32_t *words, *back;

static void check(CUresult r, int line)
{
    const char *name = "?";

    if (r == CUDA_SUCCESS)
        return;
    cuGetErrorName(r, &name);
    fprintf(stderr, "job: line %d: %s\n", line, name);
    exit(3);
}
#define OK(call) check((call), __LINE__)

static void set_up(void)
{
    OK(cuInit(0));
    OK(cuDeviceGetCount(&gpus));
    words = malloc(LARGE);
    back = malloc(LARGE);
    if (!words || !back || gpus > MOST)
        exit(3);
    for (int g = 0; g < gpus; g++) {
        OK(cuDevicePrimaryCtxRetain(&context[g], g));
        OK(cuCtxSetCurrent(context[g]));
        OK(cuStreamCreate(&stream[g], CU_STREAM_NON_BLOCKING));
        OK(cuMemAlloc_v2(&from[g], LARGE));
        OK(cuMemAlloc_v2(&to[g], LARGE));
    }
}

static void enable(int force)
{
    for (int a = 0; a < gpus; a++) {
        for (int b = 0; b < gpus; b++) {
            int can = 0;
            if (a == b)
                continue;
            OK(cuDeviceCanAccessPeer(&can, a, b));
            if (!can && !force)
                continue;
            OK(cuCtxSetCurrent(context[a]));
            CUresult r = cuCtxEnablePeerAccess(context[b], 0);
            if ((r == CUDA_SUCCESS) != (can != 0) || (r != CUDA_SUCCESS && r != CUDA_ERROR_PEER_ACCESS_UNSUPPORTED)) {
                fprintf(stderr, "job: GPU %d can access GPU %d: %d, enabling it gives %d\n", a, b, can, (int)r);
                exit(3);
            }
            peers += r == CUDA_SUCCESS;
        }
    }
}

static uint32_t word(size_t i, uint32_t seed)
{
    return (uint32_t)i * 2654435761u + seed;
}

enum way { PEER_ASYNC, PLAIN_ASYNC, PEER, PLAIN, SMALL_PEER_ASYNC, ROWS, WAYS };

static void copy(enum way way, int a, int b)
{
    CUDA_MEMCPY2D rows = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                          .srcDevice = from[a],
                          .srcPitch = PITCH,
                          .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                          .dstDevice = to[b],
                          .dstPitch = PITCH,
                          .WidthInBytes = ROW,
                          .Height = LARGE / PITCH};

    OK(cuCtxSetCurrent(context[a]));
    switch (way) {
    case PEER_ASYNC: OK(cuMemcpyPeerAsync(to[b], context[b], from[a], context[a], LARGE, stream[a])); break;
    case PLAIN_ASYNC: OK(cuMemcpyDtoDAsync_v2(to[b], from[a], LARGE, stream[a])); break;
    case PEER: OK(cuMemcpyPeer(to[b], context[b], from[a], context[a], LARGE)); break;
    case PLAIN: OK(cuMemcpyDtoD_v2(to[b], from[a], SMALL)); break;
    case SMALL_PEER_ASYNC: OK(cuMemcpyPeerAsync(to[b], context[b], from[a], context[a], SMALL, stream[a])); break;
    default: OK(cuMemcpy2DAsync_v2(&rows, stream[a])); break;
    }
    OK(cuStreamSynchronize(stream[a]));
    OK(cuCtxSynchronize());
}

/* Bytes beyond what the copy names must be as before. */
static int is_copied(enum way way, size_t byte)
{
    if (way == ROWS)
        return byte % PITCH < ROW && byte / PITCH < LARGE / PITCH;
    return byte < (way == PLAIN || way == SMALL_PEER_ASYNC ? (size_t)SMALL : (size_t)LARGE);
}

static void try(enum way way, int a, int b)
{
    uint32_t seed = (uint32_t)(way * 100000 + a * 1000 + b);

    for (size_t i = 0; i < LARGE / 4; i++)
        words[i] = word(i, seed);
    OK(cuCtxSetCurrent(context[b]));
    OK(cuMemsetD32_v2(to[b], 0xabcdef01, LARGE / 4));
    OK(cuCtxSynchronize());
    OK(cuCtxSetCurrent(context[a]));
    OK(cuMemcpyHtoD_v2(from[a], words, LARGE));
    copy(way, a, b);
    OK(cuCtxSetCurrent(context[b]));
    OK(cuMemcpyDtoH_v2(back, to[b], LARGE));
    copies++;
    for (size_t i = 0; i < LARGE / 4; i++) {
        if (back[i] != (is_copied(way, i * 4) ? words[i] : 0xabcdef01)) {
            wrong++;
            return;
        }
    }
}

int main(int argc, char **argv)
{
    set_up();
    const char *how = argc > 1 ? argv[1] : "ask";
    enable(strcmp(how, "force") == 0);
    int ways = strcmp(how, "streams") == 0 ? PLAIN_ASYNC + 1 : WAYS;
    for (int a = 0; a < gpus; a++) {
        for (int b = 0; b < gpus; b++) {
            for (int way = 0; a != b && way < ways; way++)
                try((enum way)way, a, b);
        }
    }
    printf("wrong %d of %d, peers %d\n", wrong, copies, peers);
    return 0;
}
