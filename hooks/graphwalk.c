#include "graphwalk.h"

#include "hr_hooks.h"
#include "residency/scan.h"

#include <stdlib.h>

/* --- kernels ------------------------------------------------------------------------------------------------------ */

struct words {
    struct hr_graph_list *list;
    CUgraphNode node;
    int user;
};

static void add_word(CUdeviceptr word, void *arg)
{
    const struct words *w = arg;
    hr_graph_add(w->list,
                 &(struct hr_graph_item){.kind = HR_GRAPH_WORD, .user = w->user, .node = w->node, .address = word});
}

/* The GPU that does it, where that can matter. */
static int user_of(CUcontext handle)
{
    struct hr_context *context = hr_space.gpu_count < 2 ? NULL : handle ? hr_context_of(handle) : hr_context_current();
    return context ? (int)context->gpu : -1;
}

void hr_walk_kernel(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *p, struct hr_graph_list *list)
{
    if (!p || (!p->kernelParams && !p->extra))
        return;
    if (!p->func && p->kern)
        hr_params_note_kernel(p->kern);
    CUfunction function = p->func ? p->func : (CUfunction)p->kern;
    const struct hr_params *params = function ? hr_params_of(function) : NULL;
    if (function && !params)
        list->unknown = true;
    if (params && !params->known)
        hr_access_cannot_scan("the parameters of a kernel are not known");
    if (params && hr_scan_needs_everything(params)) {
        list->unknown = true; /* at each launch, whatever there is then */
        return;
    }
    struct words words = {list, node, user_of(p->ctx)};
    hr_scan_kernel(params, p->kernelParams, p->extra, add_word, &words);
}

/* --- copies, fills, words that streams wait for ------------------------------------------------------------------- */

static void add_range(CUgraphNode node, CUdeviceptr address, size_t bytes, struct hr_graph_list *list)
{
    if (bytes > 0 && hr_space_owns(address))
        hr_graph_add(list, &(struct hr_graph_item){
                               .kind = HR_GRAPH_RANGE, .user = -1, .node = node, .address = address, .bytes = bytes});
}

/* One side of a copy: the box's first byte (0: an array, or host memory), and its bytes. What overflows is in no allocation. */
static CUdeviceptr side(CUmemorytype type, CUdeviceptr device, const size_t at[3], size_t pitch, size_t height,
                        const CUDA_MEMCPY3D *p, size_t *bytes_out)
{
    size_t slice, slices, rows;
    *bytes_out = 0;
    if ((type != CU_MEMORYTYPE_DEVICE && type != CU_MEMORYTYPE_UNIFIED) || p->WidthInBytes == 0 || p->Height == 0 ||
        p->Depth == 0)
        return 0;
    pitch = pitch > 0 ? pitch : at[0] + p->WidthInBytes;
    height = height > 0 ? height : at[1] + p->Height;
    *bytes_out = SIZE_MAX;
    slice = pitch * height;
    if (!__builtin_mul_overflow(p->Depth - 1, slice, &slices) && !__builtin_mul_overflow(p->Height - 1, pitch, &rows) &&
        !__builtin_add_overflow(slices, rows, &slices) && !__builtin_add_overflow(slices, p->WidthInBytes, &slices))
        *bytes_out = slices;
    return device + at[2] * slice + at[1] * pitch + at[0];
}

void hr_walk_copy(CUgraphNode node, const CUDA_MEMCPY3D *p, struct hr_graph_list *list)
{
    size_t to_bytes, from_bytes;
    if (!p)
        return;
    CUdeviceptr to = side(p->dstMemoryType, p->dstDevice, (const size_t[3]){p->dstXInBytes, p->dstY, p->dstZ},
                          p->dstPitch, p->dstHeight, p, &to_bytes);
    CUdeviceptr from = side(p->srcMemoryType, p->srcDevice, (const size_t[3]){p->srcXInBytes, p->srcY, p->srcZ},
                            p->srcPitch, p->srcHeight, p, &from_bytes);
    add_range(node, to, to_bytes, list);
    add_range(node, from, from_bytes, list);
    if (!to || !hr_space_owns(to))
        return;
    if (from && hr_space_owns(from))
        hr_graph_add(
            list, &(struct hr_graph_item){
                      .kind = HR_GRAPH_COPY, .user = -1, .node = node, .address = to, .from = from, .bytes = to_bytes});
    else if (p->srcMemoryType != CU_MEMORYTYPE_ARRAY)
        list->reads_host = true;
}

void hr_walk_fill(CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *p, struct hr_graph_list *list)
{
    size_t row, rows, bytes;
    if (!p || p->width == 0 || p->height == 0)
        return;
    if (__builtin_mul_overflow(p->width, (size_t)p->elementSize, &row) ||
        __builtin_mul_overflow(p->height - 1, p->pitch, &rows) || __builtin_add_overflow(rows, row, &bytes))
        bytes = SIZE_MAX;
    add_range(node, p->dst, bytes, list);
}

void hr_walk_batch(CUgraphNode node, const CUDA_BATCH_MEM_OP_NODE_PARAMS *p, struct hr_graph_list *list)
{
    for (unsigned i = 0; p && p->paramArray && i < p->count; i++) {
        const CUstreamBatchMemOpParams *op = &p->paramArray[i];
        switch (op->operation) {
        case CU_STREAM_MEM_OP_WAIT_VALUE_32: add_range(node, op->waitValue.address, 4, list); break;
        case CU_STREAM_MEM_OP_WAIT_VALUE_64: add_range(node, op->waitValue.address, 8, list); break;
        case CU_STREAM_MEM_OP_WRITE_VALUE_32: add_range(node, op->writeValue.address, 4, list); break;
        case CU_STREAM_MEM_OP_WRITE_VALUE_64: add_range(node, op->writeValue.address, 8, list); break;
        case CU_STREAM_MEM_OP_BARRIER:
        case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES: break;
        default: list->unknown = true; break;
        }
    }
}

void hr_walk_params(CUgraphNode node, const CUgraphNodeParams *p, struct hr_graph_list *list)
{
    switch (p ? (int)p->type : -1) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
        CUDA_KERNEL_NODE_PARAMS k;
        _Static_assert(sizeof k == sizeof p->kernel, "version 3 has the same members");
        memcpy(&k, &p->kernel, sizeof k);
        hr_walk_kernel(node, &k, list);
        break;
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY: hr_walk_copy(node, &p->memcpy.copyParams, list); break;
    case CU_GRAPH_NODE_TYPE_MEMSET: {
        const CUDA_MEMSET_NODE_PARAMS_v2 *m = &p->memset;
        hr_walk_fill(node,
                     &(CUDA_MEMSET_NODE_PARAMS){.dst = m->dst,
                                                .pitch = m->pitch,
                                                .elementSize = m->elementSize,
                                                .width = m->width,
                                                .height = m->height},
                     list);
        break;
    }
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: {
        CUDA_BATCH_MEM_OP_NODE_PARAMS b = {
            .ctx = p->memOp.ctx, .count = p->memOp.count, .paramArray = p->memOp.paramArray, .flags = p->memOp.flags};
        hr_walk_batch(node, &b, list);
        break;
    }
    default: break;
    }
}

/* --- whole graphs ------------------------------------------------------------------------------------------------- */

static CUresult walk_kernel_node(CUgraphNode node, struct hr_graph_list *list)
{
    CUDA_KERNEL_NODE_PARAMS p = {0};
    CUresult r;
    if (HR_HAS(cuGraphKernelNodeGetParams_v2)) {
        r = hr_drv.cuGraphKernelNodeGetParams_v2(node, &p);
    } else {
        CUDA_KERNEL_NODE_PARAMS_v1 first;
        r = hr_drv.cuGraphKernelNodeGetParams(node, &first);
        if (r == CUDA_SUCCESS)
            memcpy(&p, &first, sizeof first); /* the first members of version 2 */
    }
    if (r == CUDA_SUCCESS)
        hr_walk_kernel(node, &p, list);
    return r;
}

static CUresult walk_alloc_node(CUgraphNode node, struct hr_graph_list *list)
{
    CUDA_MEM_ALLOC_NODE_PARAMS p;
    CUresult r = hr_drv.cuGraphMemAllocNodeGetParams(node, &p);
    list->allocates = true;
    if (r == CUDA_SUCCESS)
        list->alloc_bytes += p.bytesize;
    return r;
}

static void walk_bodies(CUgraphNode node, struct hr_graph_list *list)
{
    const CUgraph *bodies = NULL;
    unsigned count = hr_graph_bodies_of(node, &bodies);
    for (unsigned i = 0; i < count; i++)
        hr_walk_graph(bodies[i], list);
    if (count == 0)
        list->unknown = true;
}

static CUresult walk_node(CUgraphNode node, struct hr_graph_list *list)
{
    CUgraphNodeType type;
    CUgraph child;
    union {
        CUDA_MEMCPY3D copy;
        CUDA_MEMSET_NODE_PARAMS fill;
        CUDA_BATCH_MEM_OP_NODE_PARAMS batch;
    } p;
    CUresult r = hr_drv.cuGraphNodeGetType(node, &type);
    if (r != CUDA_SUCCESS)
        return r;
    switch ((int)type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return walk_kernel_node(node, list);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        if ((r = hr_drv.cuGraphMemcpyNodeGetParams(node, &p.copy)) == CUDA_SUCCESS)
            hr_walk_copy(node, &p.copy, list);
        return r;
    case CU_GRAPH_NODE_TYPE_MEMSET:
        if ((r = hr_drv.cuGraphMemsetNodeGetParams(node, &p.fill)) == CUDA_SUCCESS)
            hr_walk_fill(node, &p.fill, list);
        return r;
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
        if ((r = hr_drv.cuGraphBatchMemOpNodeGetParams(node, &p.batch)) == CUDA_SUCCESS)
            hr_walk_batch(node, &p.batch, list);
        return r;
    case CU_GRAPH_NODE_TYPE_GRAPH:
        if ((r = hr_drv.cuGraphChildGraphNodeGetGraph(node, &child)) == CUDA_SUCCESS)
            hr_walk_graph(child, list);
        return r;
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: return walk_alloc_node(node, list);
    case CU_GRAPH_NODE_TYPE_MEM_FREE: list->allocates = true; return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_CONDITIONAL: walk_bodies(node, list); return CUDA_SUCCESS;
    default: return CUDA_SUCCESS; /* names no memory of the windows */
    }
}

void hr_walk_graph(CUgraph graph, struct hr_graph_list *list)
{
    size_t count = 0;
    CUresult r = hr_drv.cuGraphGetNodes(graph, NULL, &count);
    CUgraphNode *nodes = r == CUDA_SUCCESS && count > 0 ? malloc(count * sizeof *nodes) : NULL;
    if (r == CUDA_SUCCESS && count > 0 && !nodes)
        list->no_memory = true;
    if (nodes)
        r = hr_drv.cuGraphGetNodes(graph, nodes, &count);
    for (size_t i = 0; nodes && r == CUDA_SUCCESS && i < count; i++)
        if (walk_node(nodes[i], list) != CUDA_SUCCESS)
            list->unknown = true;
    if (r != CUDA_SUCCESS)
        list->unknown = true;
    free(nodes);
}
