/* What the tests of graphs and captures share: buffers of one value, nodes that change it, and what becomes of their chunks. */
#ifndef SHIM_GRAPHS_H
#define SHIM_GRAPHS_H

#include "core_test.h"

#include "residency/capture.h"
#include "residency/hold.h"
#include "residency/quarantine.h"

#define GLOBAL_MODE CU_STREAM_CAPTURE_MODE_GLOBAL
#define LOCAL_MODE CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
#define RELAXED_MODE CU_STREAM_CAPTURE_MODE_RELAXED

/* Kernels work on the first words of a buffer, which all have the same value; one in every STEP is looked at. */
#define STEP 1024u
static inline uint32_t words_of(size_t bytes)
{
    return bytes / 4 < 32768 ? (uint32_t)(bytes / 4) : 32768;
}

static inline CUdeviceptr buffer_of(size_t bytes, uint32_t value)
{
    CUdeviceptr p;
    OK(cuMemAlloc_v2(&p, bytes));
    OK(cuMemsetD32_v2(p, value, bytes / 4));
    OK(cuCtxSynchronize());
    return p;
}

static inline uint32_t value_of(CUdeviceptr p, size_t bytes)
{
    uint32_t *words = malloc(bytes);
    CHECK(words != NULL);
    OK(cuCtxSynchronize());
    OK(cuMemcpyDtoH_v2(words, p, bytes));
    for (size_t i = 0; i < words_of(bytes); i += STEP)
        CHECK(words[i] == words[0], "word %zu is %u, the first %u", i, words[i], words[0]);
    uint32_t value = words[0];
    free(words);
    return value;
}

/* p[i] = p[i] * a + b, over a whole buffer. The parameters have to live as long as they are used. */
struct affine {
    CUdeviceptr y, x;
    uint32_t a, b, n;
    void *list[5];
};
static inline struct affine *affine_of(struct affine *s, CUdeviceptr y, CUdeviceptr x, uint32_t a, uint32_t b,
                                       size_t bytes)
{
    *s = (struct affine){y, x, a, b, words_of(bytes), {0}};
    s->list[0] = &s->y;
    s->list[1] = &s->x;
    s->list[2] = &s->a;
    s->list[3] = &s->b;
    s->list[4] = &s->n;
    return s;
}
static inline CUDA_KERNEL_NODE_PARAMS affine_params(struct affine *s)
{
    return (CUDA_KERNEL_NODE_PARAMS){.func = kernel("affine"),
                                     .gridDimX = 8,
                                     .gridDimY = 1,
                                     .gridDimZ = 1,
                                     .blockDimX = 128,
                                     .blockDimY = 1,
                                     .blockDimZ = 1,
                                     .kernelParams = s->list};
}
static inline CUgraphNode add_affine(CUgraph g, const CUgraphNode *after, CUdeviceptr y, CUdeviceptr x, uint32_t a,
                                     uint32_t b, size_t bytes)
{
    struct affine s;
    CUgraphNode node;
    CUDA_KERNEL_NODE_PARAMS p = affine_params(affine_of(&s, y, x, a, b, bytes));
    OK(cuGraphAddKernelNode_v2(&node, g, after, after ? 1 : 0, &p));
    memset(&s, 0xee, sizeof s); /* they were copied */
    return node;
}
static inline CUresult launch_affine(CUstream s, CUdeviceptr y, CUdeviceptr x, uint32_t a, uint32_t b, size_t bytes)
{
    struct affine p;
    return launch(kernel("affine"), 8, 128, s, affine_of(&p, y, x, a, b, bytes)->list);
}

static inline CUDA_MEMCPY3D flat_copy(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    return (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                           .srcDevice = from,
                           .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                           .dstDevice = to,
                           .WidthInBytes = bytes,
                           .Height = 1,
                           .Depth = 1};
}
static inline CUDA_MEMSET_NODE_PARAMS flat_fill(CUdeviceptr to, uint32_t value, size_t bytes)
{
    return (CUDA_MEMSET_NODE_PARAMS){.dst = to, .value = value, .elementSize = 4, .width = bytes / 4, .height = 1};
}

static inline CUgraph new_graph(void)
{
    CUgraph g;
    OK(cuGraphCreate(&g, 0));
    return g;
}
static inline CUgraphExec made(CUgraph g)
{
    CUgraphExec exec;
    OK(cuGraphInstantiateWithFlags(&exec, g, 0));
    return exec;
}
static inline CUstream new_stream(void)
{
    CUstream s;
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    return s;
}

static inline size_t evict(CUdeviceptr p, size_t bytes)
{
    OK(cuCtxSynchronize());
    return hr_access_evict_range(hr_thread_self(), p, bytes);
}
static inline bool is_in_vram(CUdeviceptr p, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += CHUNK)
        if (atomic_load(&hr_space_chunk(p + at)->state) != HR_CHUNK_RESIDENT)
            return false;
    return true;
}
static inline bool is_held(CUdeviceptr p, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += CHUNK)
        if (!hr_hold_is(hr_space_chunk(p + at)))
            return false;
    return true;
}
/* Nothing of any window is held, and no lock was taken in the wrong order. */
static inline void nothing_is_held(void)
{
    CHECK(hr_lock_violations() == 0);
    for (unsigned g = 0; g < hr_space.gpu_count; g++) {
        CHECK(hr_hold_vram_chunks(g) == 0, "%zu chunks of GPU %u are still held", hr_hold_vram_chunks(g), g);
        for (uint32_t i = 0; i < hr_space.window[g].chunk_count; i++)
            CHECK(!hr_hold_is(&hr_space.chunks[hr_space.window[g].first_chunk + i]), "chunk %u is still held", i);
    }
}

#define SMALL "h200,vram=48M,host=512M"
#define BYTES (2 * CHUNK)

/* to = from, then to = to * a + 1. */
static inline CUgraph copy_and_add(CUdeviceptr to, CUdeviceptr from, uint32_t a, CUgraphNode *nodes_out)
{
    CUgraph g = new_graph();
    CUDA_MEMCPY3D m = flat_copy(to, from, BYTES);
    OK(cuGraphAddMemcpyNode(&nodes_out[0], g, NULL, 0, &m, NULL));
    nodes_out[1] = add_affine(g, &nodes_out[0], to, to, a, 1, BYTES);
    return g;
}

#endif
