/* A step over all buffers is captured once and replayed, as frameworks do; one of its kernels changes between replays. */
#include "client.h"

enum { BUFFERS = 9, REPLAYS = 4 };

int main(int argc, char **argv)
{
    client_start("replays", argc, argv, 1);
    uint32_t n = (uint32_t)(client_bytes() / BUFFERS / 4), zero = 0;
    size_t bytes = n * sizeof(uint32_t);
    uint32_t *expected[BUFFERS], *found = client_host(bytes);
    CUfunction fill = client_kernel(0, "fill_hash"), mix = client_kernel(0, "mix_in");
    CUdeviceptr buffer[BUFFERS];
    CUstream stream;
    CUgraph graph;
    CUgraphExec exec;
    CUgraphNode first;
    size_t one = 1;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (uint32_t b = 0; b < BUFFERS; b++) {
        buffer[b] = client_alloc(bytes);
        expected[b] = client_host(bytes);
        LAUNCH(fill, 64, 256, stream, &buffer[b], &n, &b);
        for (uint32_t i = 0; i < n; i++)
            expected[b][i] = client_hash(i + b);
    }
    OK(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    for (uint32_t b = 0; b < BUFFERS; b++)
        LAUNCH(mix, 64, 256, stream, &buffer[b], &buffer[(b + 1) % BUFFERS], &n, &zero);
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphGetRootNodes(graph, &first, &one));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    for (uint32_t replay = 0; replay < REPLAYS; replay++) {
        CUDA_KERNEL_NODE_PARAMS params;
        OK(cuGraphKernelNodeGetParams_v2(first, &params));
        params.kernelParams = (void *[]){&buffer[0], &buffer[1], &n, &replay};
        params.extra = NULL;
        OK(cuGraphExecKernelNodeSetParams_v2(exec, first, &params));
        OK(cuGraphLaunch(exec, stream));
        for (uint32_t b = 0; b < BUFFERS; b++)
            client_mix_in(expected[b], expected[(b + 1) % BUFFERS], n, b == 0 ? replay : 0);
    }
    OK(cuStreamSynchronize(stream));
    OK(cuGraphExecDestroy(exec));
    OK(cuGraphDestroy(graph));
    OK(cuStreamDestroy_v2(stream));
    for (uint32_t b = 0; b < BUFFERS; b++) {
        OK(cuMemcpyDtoH_v2(found, buffer[b], bytes));
        if (memcmp(found, expected[b], bytes) != 0)
            WRONG("buffer %u is wrong", b);
        client_sum(found, bytes);
        free(expected[b]);
    }
    free(found);
    return client_end();
}
