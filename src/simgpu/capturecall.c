/* Questions about captures, what a capturing stream's next node depends on, and stream-ordered memory in captures. */
#include "simgpu/capture.h"

#include <stdlib.h>

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    CUresult r = sg_enter_unlocked("cuThreadExchangeStreamCaptureMode");
    if (r)
        return r;
    if (!mode || (unsigned)*mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    struct sg_thread *t = sg_thread();
    CUstreamCaptureMode old = t->capture_mode;
    t->capture_mode = *mode;
    *mode = old;
    return CUDA_SUCCESS;
}

/* IMPLICIT on the legacy stream beside a capture of a blocking one, which this does not invalidate. */
static CUresult enter_question(const char *api, CUstream handle, bool per_thread, struct sg_stream **stream_out)
{
    CUresult r = sg_enter_stream(api, handle, per_thread, stream_out);
    if (r)
        return r;
    return sg_capture_is_implicit(*stream_out) ? sg_leave(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT) : CUDA_SUCCESS;
}

static CUstreamCaptureStatus status_of(const struct sg_stream *s)
{
    return !s->captured                    ? CU_STREAM_CAPTURE_STATUS_NONE
           : s->captured->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                           : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

static CUresult is_capturing(CUstream handle, CUstreamCaptureStatus *status, bool per_thread)
{
    struct sg_stream *s;
    CUresult r = enter_question("cuStreamIsCapturing", handle, per_thread, &s);
    if (r)
        return r;
    if (!status)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *status = status_of(s);
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
    return is_capturing(stream, status, false);
}

CUresult cuStreamIsCapturing_ptsz(CUstream stream, CUstreamCaptureStatus *status)
{
    return is_capturing(stream, status, true);
}

/* What a call wants to know; NULL = not that. */
struct wanted {
    CUstreamCaptureStatus *status;
    cuuint64_t *id;
    CUgraph *graph;
    const CUgraphNode **dependencies;
    const CUgraphEdgeData **edges;
    size_t *count;
};

/* The arrays are the stream's until its next call. */
static CUresult list(struct sg_captured *p)
{
    CUgraphNode *handles = realloc(p->handles, (p->next.count + 1) * sizeof(CUgraphNode));
    if (handles)
        p->handles = handles;
    CUgraphEdgeData *edges = realloc(p->edges, (p->next.count + 1) * sizeof *edges);
    if (edges)
        p->edges = edges;
    if (!handles || !edges)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < p->next.count; i++) {
        handles[i] = SG_HANDLE(CUgraphNode, p->next.at[i].node);
        edges[i] = p->next.at[i].data;
    }
    return CUDA_SUCCESS;
}

static CUresult tell(struct sg_captured *p, const struct wanted *w)
{
    CUresult r = list(p);
    for (size_t i = 0; i < p->next.count && !r && w->dependencies && !w->edges; i++)
        r = sg_edge_is_default(&p->next.at[i].data) ? CUDA_SUCCESS : CUDA_ERROR_LOSSY_QUERY;
    if (r)
        return r;
    if (w->id)
        *w->id = p->capture->id;
    if (w->graph)
        *w->graph = SG_HANDLE(CUgraph, p->capture->graph);
    if (w->dependencies)
        *w->dependencies = p->handles;
    if (w->edges)
        *w->edges = p->edges;
    if (w->count)
        *w->count = p->next.count;
    return CUDA_SUCCESS;
}

static CUresult info(CUstream handle, const struct wanted *w, bool per_thread)
{
    struct sg_stream *s;
    CUresult r = enter_question("cuStreamGetCaptureInfo", handle, per_thread, &s);
    if (r)
        return r;
    if (!w->status || (w->edges && !w->dependencies))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    CUstreamCaptureStatus status = status_of(s);
    if (status == CU_STREAM_CAPTURE_STATUS_ACTIVE)
        r = tell(s->captured, w);
    if (!r)
        *w->status = status;
    return sg_leave(r);
}

CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id)
{
    return info(stream, &(struct wanted){.status = status, .id = id}, false);
}

CUresult cuStreamGetCaptureInfo_ptsz(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id)
{
    return info(stream, &(struct wanted){.status = status, .id = id}, true);
}

CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                   const CUgraphNode **dependencies, size_t *count)
{
    return info(stream, &(struct wanted){status, id, graph, dependencies, NULL, count}, false);
}

CUresult cuStreamGetCaptureInfo_v2_ptsz(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                        const CUgraphNode **dependencies, size_t *count)
{
    return info(stream, &(struct wanted){status, id, graph, dependencies, NULL, count}, true);
}

CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                   const CUgraphNode **dependencies, const CUgraphEdgeData **edges, size_t *count)
{
    return info(stream, &(struct wanted){status, id, graph, dependencies, edges, count}, false);
}

CUresult cuStreamGetCaptureInfo_v3_ptsz(CUstream stream, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
                                        const CUgraphNode **dependencies, const CUgraphEdgeData **edges, size_t *count)
{
    return info(stream, &(struct wanted){status, id, graph, dependencies, edges, count}, true);
}

static CUresult change(struct sg_captured *p, const struct sg_edges *nodes, bool replace)
{
    struct sg_edges next;
    CUresult r = sg_edges_copy(&next, replace ? nodes : &p->next);
    for (size_t i = 0; i < nodes->count && !replace && !r; i++) {
        size_t k = 0;
        while (k < next.count && next.at[k].node != nodes->at[i].node)
            k++;
        if (k == next.count)
            r = sg_edges_add(&next, nodes->at[i].node, &nodes->at[i].data);
    }
    if (r) {
        sg_edges_free(&next);
        return r;
    }
    sg_edges_free(&p->next);
    p->next = next;
    return CUDA_SUCCESS;
}

static CUresult update(CUstream handle, const CUgraphNode *nodes, const CUgraphEdgeData *edges, size_t count,
                       unsigned flags, bool per_thread)
{
    struct sg_stream *s;
    struct sg_edges links;
    CUresult r = enter_question("cuStreamUpdateCaptureDependencies", handle, per_thread, &s);
    if (r)
        return r;
    if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (!s->captured)
        return sg_leave(CUDA_ERROR_ILLEGAL_STATE);
    if (s->captured->capture->invalid)
        return sg_leave(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    r = sg_edges_from(s->captured->capture->graph, nodes, edges, count, &links);
    if (r)
        return sg_leave(r);
    r = change(s->captured, &links, flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES);
    sg_edges_free(&links);
    return sg_leave(r);
}

CUresult cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode *nodes, size_t count, unsigned int flags)
{
    return update(stream, nodes, NULL, count, flags, false);
}

CUresult cuStreamUpdateCaptureDependencies_ptsz(CUstream stream, CUgraphNode *nodes, size_t count, unsigned int flags)
{
    return update(stream, nodes, NULL, count, flags, true);
}

CUresult cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode *nodes, const CUgraphEdgeData *edges,
                                              size_t count, unsigned int flags)
{
    return update(stream, nodes, edges, count, flags, false);
}

CUresult cuStreamUpdateCaptureDependencies_v2_ptsz(CUstream stream, CUgraphNode *nodes, const CUgraphEdgeData *edges,
                                                   size_t count, unsigned int flags)
{
    return update(stream, nodes, edges, count, flags, true);
}

/* ---- stream-ordered memory ---- */

static CUresult broken(struct sg_stream *s, CUresult r)
{
    s->captured->capture->invalid = true;
    return r;
}

CUresult sg_capture_alloc(struct sg_stream *s, const CUDA_MEM_ALLOC_NODE_PARAMS *p, CUdeviceptr *va_out)
{
    struct sg_graph *g = s->captured->capture->graph;
    struct sg_graph_memory *m;
    struct sg_work *w;
    CUresult r = sg_graph_memory_create(p, g->object.id, &m);
    if (!r)
        r = sg_work_memory(CU_GRAPH_NODE_TYPE_MEM_ALLOC, m, &w);
    if (r)
        return broken(s, r);
    CUdeviceptr va = m->va;
    r = sg_capture_work(s, w);
    if (!r)
        *va_out = va;
    return r;
}

CUresult sg_capture_free(struct sg_stream *s, CUdeviceptr va)
{
    struct sg_graph *g = s->captured->capture->graph;
    struct sg_graph_memory *m = sg_graph_memory_at(va);
    struct sg_work *w;
    CUresult r = m ? sg_graph_memory_may_free(m, g) : CUDA_ERROR_INVALID_VALUE;
    if (!r)
        r = sg_work_memory(CU_GRAPH_NODE_TYPE_MEM_FREE, sg_graph_memory_ref(m), &w);
    if (r)
        return broken(s, r);
    r = sg_capture_work(s, w);
    if (!r)
        m->freed_by = g->object.id;
    return r;
}
