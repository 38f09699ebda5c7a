/* A graph as a drawing in the DOT language. */
#include "simgpu/graph.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define FLAGS_KNOWN ((1u << 16) - 1)

static const char *const type_names[] = {
    [CU_GRAPH_NODE_TYPE_KERNEL] = "KERNEL",
    [CU_GRAPH_NODE_TYPE_MEMCPY] = "MEMCPY",
    [CU_GRAPH_NODE_TYPE_MEMSET] = "MEMSET",
    [CU_GRAPH_NODE_TYPE_HOST] = "HOST",
    [CU_GRAPH_NODE_TYPE_GRAPH] = "GRAPH",
    [CU_GRAPH_NODE_TYPE_EMPTY] = "EMPTY",
    [CU_GRAPH_NODE_TYPE_WAIT_EVENT] = "EVENT WAIT",
    [CU_GRAPH_NODE_TYPE_EVENT_RECORD] = "EVENT RECORD",
    [CU_GRAPH_NODE_TYPE_MEM_ALLOC] = "MEM ALLOC",
    [CU_GRAPH_NODE_TYPE_MEM_FREE] = "MEM FREE",
    [CU_GRAPH_NODE_TYPE_BATCH_MEM_OP] = "BATCH MEM OP",
    [CU_GRAPH_NODE_TYPE_CONDITIONAL] = "CONDITIONAL",
};

static void print_kernel(FILE *f, const struct sg_work *w, unsigned flags)
{
    const struct sg_work_kernel *k = &w->kernel;
    const struct sg_function *fn = sg_object_find(k->launched, SG_FUNCTION);
    fprintf(f, "\\n%s", fn ? fn->info->name : "(its module is unloaded)");
    if (flags & CU_GRAPH_DEBUG_DOT_FLAGS_KERNEL_NODE_PARAMS)
        fprintf(f, "\\ngrid (%u,%u,%u) block (%u,%u,%u) shared %u bytes, %zu bytes of parameters", k->grid[0],
                k->grid[1], k->grid[2], k->block[0], k->block[1], k->block[2], k->shared_bytes, k->packed_bytes);
    if (flags & CU_GRAPH_DEBUG_DOT_FLAGS_KERNEL_NODE_ATTRIBUTES)
        fprintf(f, "\\ncooperative %d", sg_work_is_cooperative(w));
    if (flags & CU_GRAPH_DEBUG_DOT_FLAGS_HANDLES)
        fprintf(f, "\\nfunction 0x%" PRIx64, k->launched);
}

static void print_copy(FILE *f, const struct sg_work_copy *c, unsigned flags)
{
    static const char *const places[] = {"?", "host", "device", "array", "unified"};
    unsigned from = c->params.srcMemoryType, to = c->params.dstMemoryType;
    fprintf(f, "\\n%s to %s", places[from < 5 ? from : 0], places[to < 5 ? to : 0]);
    if (flags & CU_GRAPH_DEBUG_DOT_FLAGS_MEMCPY_NODE_PARAMS)
        fprintf(f, "\\n0x%" PRIx64 " to 0x%" PRIx64 ", %zu x %zu x %zu bytes", c->src_end.va, c->dst_end.va,
                c->extent.width_bytes, c->extent.height, c->extent.depth);
}

static void print_work(FILE *f, const struct sg_work *w, unsigned flags)
{
    switch ((int)w->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: print_kernel(f, w, flags); break;
    case CU_GRAPH_NODE_TYPE_MEMCPY: print_copy(f, &w->copy, flags); break;
    case CU_GRAPH_NODE_TYPE_MEMSET:
        if (flags & CU_GRAPH_DEBUG_DOT_FLAGS_MEMSET_NODE_PARAMS)
            fprintf(f, "\\n0x%llx, value 0x%x of %u bytes, %zu x %zu", w->fill.params.dst, w->fill.params.value,
                    w->fill.params.elementSize, w->fill.params.width, w->fill.params.height);
        break;
    case CU_GRAPH_NODE_TYPE_HOST:
        if (flags & CU_GRAPH_DEBUG_DOT_FLAGS_HOST_NODE_PARAMS)
            fprintf(f, "\\nfunction %p, data %p", (void *)(uintptr_t)w->host.fn, w->host.userData);
        break;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        if (flags & CU_GRAPH_DEBUG_DOT_FLAGS_EVENT_NODE_PARAMS)
            fprintf(f, "\\nevent 0x%" PRIx64, w->event);
        break;
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        if (flags & CU_GRAPH_DEBUG_DOT_FLAGS_MEM_ALLOC_NODE_PARAMS)
            fprintf(f, "\\n0x%" PRIx64 ", %" PRIu64 " bytes", w->memory->va, w->memory->bytes);
        break;
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        if (flags & CU_GRAPH_DEBUG_DOT_FLAGS_MEM_FREE_NODE_PARAMS)
            fprintf(f, "\\n0x%" PRIx64, w->memory->va);
        break;
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
        if (flags & CU_GRAPH_DEBUG_DOT_FLAGS_BATCH_MEM_OP_NODE_PARAMS)
            fprintf(f, "\\n%u operations", w->batch.count);
        break;
    case CU_GRAPH_NODE_TYPE_CONDITIONAL:
        if (flags & CU_GRAPH_DEBUG_DOT_FLAGS_CONDITIONAL_NODE_PARAMS)
            fprintf(f, "\\nhandle 0x%" PRIx64 ", type %d, %u bodies", w->conditional.condition->handle,
                    (int)w->conditional.type, w->conditional.size);
        break;
    default: break;
    }
}

/* `graph` numbers the graphs, since each numbers its own nodes. */
static void print_graph(FILE *f, const struct sg_graph *g, unsigned flags, unsigned *graph)
{
    unsigned own = (*graph)++, edge = 0;
    const struct sg_node *n;
    fprintf(f, "subgraph cluster_%u {\nlabel=\"graph_%u\";\n", own, own);
    DL_FOREACH(g->nodes, n)
    {
        fprintf(f, "\"graph_%u_node_%u\" [shape=\"%s\" label=\"%u\\n%s", own, n->number,
                n->work->type == CU_GRAPH_NODE_TYPE_KERNEL ? "octagon" : "rectangle", n->number,
                type_names[n->work->type]);
        print_work(f, n->work, flags);
        if (flags & CU_GRAPH_DEBUG_DOT_FLAGS_HANDLES)
            fprintf(f, "\\nnode 0x%" PRIx64, n->object.id);
        fprintf(f, "\"];\n");
    }
    DL_FOREACH(g->nodes, n)
    for (size_t i = 0; i < n->dependencies.count; i++) {
        fprintf(f, "\"graph_%u_node_%u\" -> \"graph_%u_node_%u\"", own, n->dependencies.at[i].node->number, own,
                n->number);
        if (flags & CU_GRAPH_DEBUG_DOT_FLAGS_EXTRA_TOPO_INFO)
            fprintf(f, " [label=\"%u\"]", edge++);
        fprintf(f, ";\n");
    }
    DL_FOREACH(g->nodes, n)
    for (unsigned i = 0; i < n->graph_count; i++)
        print_graph(f, n->graphs[i], flags, graph);
    fprintf(f, "}\n");
}

CUresult cuGraphDebugDotPrint(CUgraph graph, const char *path, unsigned int flags)
{
    struct sg_graph *g;
    CUresult r = sg_enter_graph("cuGraphDebugDotPrint", graph, &g);
    if (r)
        return r;
    if (!path || (flags & ~FLAGS_KNOWN))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (flags & CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE)
        flags = FLAGS_KNOWN;
    char *text = NULL;
    size_t bytes = 0;
    unsigned first = 0;
    FILE *f = open_memstream(&text, &bytes);
    if (f) {
        fprintf(f, "digraph dot {\n");
        print_graph(f, g, flags, &first);
        fprintf(f, "}\n");
        fclose(f);
    }
    sg_leave(CUDA_SUCCESS); /* the file may be slow */
    FILE *out = text ? fopen(path, "we") : NULL;
    bool ok = out && fwrite(text, 1, bytes, out) == bytes;
    if (out)
        ok = !fclose(out) && ok;
    free(text);
    return ok ? CUDA_SUCCESS : f ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_ERROR_OUT_OF_MEMORY;
}
