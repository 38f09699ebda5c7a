/* What the tests of captures and graphs share: kernels whose order shows in their results, and small helpers. */
#ifndef SIM_GRAPHS_H
#define SIM_GRAPHS_H

#include "sim_test.h"

#define WORDS 4096
#define BYTES (WORDS * sizeof(uint32_t))

static const char graphs_ptx[] =
    /* clang-format off */
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".extern .func cudaGraphSetConditional(.param .b64 handle, .param .b32 value);\n"
    "// p[i] = p[i] * factor + term for i < n\n"
    ".visible .entry step(.param .u64 p, .param .u32 factor, .param .u32 term, .param .u32 n)\n"
    "{\n"
    "    .reg .pred %p<2>;\n    .reg .b32 %r<10>;\n    .reg .b64 %rd<4>;\n"
    "    ld.param.u64 %rd1, [p];\n    ld.param.u32 %r1, [factor];\n    ld.param.u32 %r2, [term];\n"
    "    ld.param.u32 %r3, [n];\n"
    "    mov.u32 %r4, %ctaid.x;\n    mov.u32 %r5, %ntid.x;\n    mov.u32 %r6, %tid.x;\n"
    "    mad.lo.s32 %r7, %r4, %r5, %r6;\n    setp.ge.u32 %p1, %r7, %r3;\n    @%p1 bra DONE;\n"
    "    mul.wide.u32 %rd2, %r7, 4;\n    add.s64 %rd3, %rd1, %rd2;\n"
    "    ld.global.u32 %r8, [%rd3];\n    mad.lo.u32 %r9, %r8, %r1, %r2;\n    st.global.u32 [%rd3], %r9;\n"
    "DONE:\n    ret;\n}\n"
    "// *p -= 1, and the condition is what is left\n"
    ".visible .entry countdown(.param .u64 p, .param .u64 handle)\n"
    "{\n"
    "    .reg .b32 %r<3>;\n    .reg .b64 %rd<3>;\n"
    "    ld.param.u64 %rd1, [p];\n    ld.param.u64 %rd2, [handle];\n"
    "    ld.global.u32 %r1, [%rd1];\n    sub.u32 %r2, %r1, 1;\n    st.global.u32 [%rd1], %r2;\n"
    "    {\n    .param .b64 a;\n    .param .b32 b;\n    st.param.b64 [a], %rd2;\n    st.param.b32 [b], %r2;\n"
    "    call.uni cudaGraphSetConditional, (a, b);\n    }\n    ret;\n}\n"
    "// the condition is *p\n"
    ".visible .entry choose(.param .u64 p, .param .u64 handle)\n"
    "{\n"
    "    .reg .b32 %r<2>;\n    .reg .b64 %rd<3>;\n"
    "    ld.param.u64 %rd1, [p];\n    ld.param.u64 %rd2, [handle];\n    ld.global.u32 %r1, [%rd1];\n"
    "    {\n    .param .b64 a;\n    .param .b32 b;\n    st.param.b64 [a], %rd2;\n    st.param.b32 [b], %r1;\n"
    "    call.uni cudaGraphSetConditional, (a, b);\n    }\n    ret;\n}\n"
    "// spins until *flag != 0\n"
    ".visible .entry spin(.param .u64 flag)\n"
    "{\n"
    "    .reg .pred %p<2>;\n    .reg .b32 %r<2>;\n    .reg .b64 %rd<2>;\n    ld.param.u64 %rd1, [flag];\n"
    "LOOP:\n    ld.volatile.global.u32 %r1, [%rd1];\n    setp.eq.u32 %p1, %r1, 0;\n    @%p1 bra LOOP;\n    ret;\n}\n";
/* clang-format on */

struct kernels {
    CUmodule module;
    CUfunction step, countdown, choose, spin;
};

static inline struct kernels load_kernels(void)
{
    struct kernels k;
    OK(cuModuleLoadData(&k.module, graphs_ptx));
    OK(cuModuleGetFunction(&k.step, k.module, "step"));
    OK(cuModuleGetFunction(&k.countdown, k.module, "countdown"));
    OK(cuModuleGetFunction(&k.choose, k.module, "choose"));
    OK(cuModuleGetFunction(&k.spin, k.module, "spin"));
    return k;
}

/* The parameters of a step; `args` must live as long as they are used. */
struct step {
    CUdeviceptr p;
    uint32_t factor, term, n;
    void *pointers[4];
};

static inline CUDA_KERNEL_NODE_PARAMS step_params(CUfunction f, struct step *s)
{
    s->pointers[0] = &s->p;
    s->pointers[1] = &s->factor;
    s->pointers[2] = &s->term;
    s->pointers[3] = &s->n;
    return (CUDA_KERNEL_NODE_PARAMS){.func = f,
                                     .gridDimX = (s->n + 127) / 128,
                                     .gridDimY = 1,
                                     .gridDimZ = 1,
                                     .blockDimX = 128,
                                     .blockDimY = 1,
                                     .blockDimZ = 1,
                                     .kernelParams = s->pointers};
}

static inline CUgraphNode add_step(CUgraph g, const CUgraphNode *deps, size_t count, CUfunction f, CUdeviceptr p,
                                   uint32_t factor, uint32_t term)
{
    CUgraphNode node;
    struct step s = {p, factor, term, WORDS, {0}};
    CUDA_KERNEL_NODE_PARAMS params = step_params(f, &s);
    OK(cuGraphAddKernelNode_v2(&node, g, deps, count, &params));
    memset(&s, 0xee, sizeof s); /* they were copied */
    return node;
}

static inline CUresult launch_step(CUfunction f, CUstream stream, CUdeviceptr p, uint32_t factor, uint32_t term)
{
    struct step s = {p, factor, term, WORDS, {0}};
    CUDA_KERNEL_NODE_PARAMS k = step_params(f, &s);
    return cuLaunchKernel(f, k.gridDimX, 1, 1, 128, 1, 1, 0, stream, s.pointers, NULL);
}

static inline CUDA_MEMCPY3D device_copy(CUdeviceptr dst, CUdeviceptr src, size_t bytes)
{
    return (CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                           .srcDevice = src,
                           .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                           .dstDevice = dst,
                           .WidthInBytes = bytes,
                           .Height = 1,
                           .Depth = 1};
}

static inline CUdeviceptr buffer(void)
{
    CUdeviceptr p;
    OK(cuMemAlloc_v2(&p, BYTES));
    OK(cuMemsetD32_v2(p, 1, WORDS));
    OK(cuCtxSynchronize());
    return p;
}

/* All words are the same; which? */
static inline uint32_t word_of(CUdeviceptr p)
{
    static uint32_t words[WORDS];
    OK(cuCtxSynchronize());
    OK(cuMemcpyDtoH_v2(words, p, BYTES));
    for (size_t i = 1; i < WORDS; i++)
        cr_assert_eq(words[i], words[0], "word %zu is %u, the first %u", i, words[i], words[0]);
    return words[0];
}

static inline CUgraphExec made(CUgraph g)
{
    CUgraphExec exec;
    OK(cuGraphInstantiateWithFlags(&exec, g, 0));
    return exec;
}

static inline CUstream stream_of(unsigned flags)
{
    CUstream s;
    OK(cuStreamCreate(&s, flags));
    return s;
}

static inline CUevent plain_event(void)
{
    CUevent e;
    OK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
    return e;
}

static inline CUgraph two_steps(CUfunction f, CUdeviceptr p, uint32_t first, uint32_t second, CUgraphNode *nodes)
{
    CUgraph g;
    OK(cuGraphCreate(&g, 0));
    nodes[0] = add_step(g, NULL, 0, f, p, first, 0);
    nodes[1] = add_step(g, nodes, 1, f, p, second, 1);
    return g;
}

/* A conditional node with `size` bodies; and a kernel of one thread that sets its handle. */
static inline CUgraphNode add_conditional(CUgraph g, const CUgraphNode *after, CUgraphConditionalHandle handle,
                                          CUgraphConditionalNodeType type, unsigned size, CUgraph *bodies)
{
    CUgraphNode node;
    CUcontext context;
    OK(cuCtxGetCurrent(&context));
    CUgraphNodeParams p = {.type = CU_GRAPH_NODE_TYPE_CONDITIONAL};
    p.conditional = (CUDA_CONDITIONAL_NODE_PARAMS){handle, type, size, NULL, context};
    OK(cuGraphAddNode(&node, g, after, after ? 1 : 0, &p));
    memcpy(bodies, p.conditional.phGraph_out, size * sizeof *bodies);
    return node;
}

static inline CUgraphNode add_setter(CUgraph g, const CUgraphNode *after, CUfunction f, CUdeviceptr p,
                                     CUgraphConditionalHandle handle)
{
    CUgraphNode node;
    void *pointers[] = {&p, &handle};
    CUDA_KERNEL_NODE_PARAMS params = {.func = f,
                                      .gridDimX = 1,
                                      .gridDimY = 1,
                                      .gridDimZ = 1,
                                      .blockDimX = 1,
                                      .blockDimY = 1,
                                      .blockDimZ = 1,
                                      .kernelParams = pointers};
    OK(cuGraphAddKernelNode_v2(&node, g, after, after ? 1 : 0, &params));
    return node;
}

#endif
