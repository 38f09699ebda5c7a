/*
 * Captures: which streams are in one, what their next nodes depend on, and what ends or breaks them.
 *
 * An event that a capturing stream records stands for the nodes that the stream's next one would depend on; a stream that waits
 * for it joins the capture. Whatever is not allowed invalidates the capture; it is over only when it is ended where it began.
 */
#include "simgpu/capture.h"
#include "simgpu/check.h"

#include <stdlib.h>
#include <string.h>

/* What an event stands for that was recorded in a capture. */
struct sg_captured_event {
    uint64_t capture;
    struct sg_edges nodes;
};

static struct {
    struct sg_capture *all;
    uint64_t ids;
} captures;

static struct sg_capture *capture_of(uint64_t id)
{
    struct sg_capture *c;
    DL_FOREACH(captures.all, c)
    if (c->id == id)
        return c;
    return NULL;
}

/* ---- streams in captures ---- */

static CUresult join(struct sg_stream *s, struct sg_capture *c, const struct sg_edges *next)
{
    struct sg_captured *p = calloc(1, sizeof *p);
    if (!p)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = sg_edges_copy(&p->next, next);
    if (r) {
        free(p);
        return r;
    }
    p->capture = c;
    s->captured = p;
    s->capture_next = c->streams;
    c->streams = s;
    return CUDA_SUCCESS;
}

static void part_free(struct sg_captured *p)
{
    if (!p)
        return;
    sg_edges_free(&p->next);
    free(p->handles);
    free(p->edges);
    free(p);
}

static void leave(struct sg_capture *c, struct sg_stream *s)
{
    struct sg_stream **at = &c->streams;
    while (*at != s)
        at = &(*at)->capture_next;
    *at = s->capture_next;
    part_free(s->captured);
    s->captured = NULL;
}

/* The job's graph stays; one that the capture made goes, if it is not handed over. */
static void capture_free(struct sg_capture *c, bool keep_graph)
{
    while (c->streams)
        leave(c, c->streams);
    if (c->graph)
        c->graph->capture = 0;
    if (!keep_graph && !c->into_existing)
        sg_graph_destroy(c->graph);
    sg_edges_free(&c->orphans);
    DL_DELETE(captures.all, c);
    sg.captures--;
    free(c);
}

/* Whatever has no part in it may be gone with its graph: nobody uses the nodes any more. */
static void invalidate(struct sg_capture *c)
{
    c->invalid = true;
}

bool sg_capture_is_implicit(const struct sg_stream *s)
{
    const struct sg_capture *c;
    const struct sg_stream *o;
    if (s->type == SG_STREAM_LEGACY)
        DL_FOREACH(captures.all, c)
    for (o = c->streams; o; o = o->capture_next)
        if (o->context == s->context && !(o->flags & CU_STREAM_NON_BLOCKING))
            return true;
    return false;
}

/* The legacy stream's work would depend on that of blocking streams, which is being captured. */
static CUresult refuse_legacy(const struct sg_stream *s)
{
    struct sg_capture *c;
    const struct sg_stream *o;
    DL_FOREACH(captures.all, c)
    for (o = c->streams; o; o = o->capture_next)
        if (o->context == s->context && !(o->flags & CU_STREAM_NON_BLOCKING))
            invalidate(c);
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

CUresult sg_enter_work(const char *function, CUstream handle, bool per_thread, struct sg_stream **stream_out)
{
    CUresult r = sg_enter_stream(function, handle, per_thread, stream_out);
    if (r || !sg.captures)
        return r;
    const struct sg_captured *p = (*stream_out)->captured;
    if (sg_capture_is_implicit(*stream_out))
        return sg_leave(refuse_legacy(*stream_out));
    return p && p->capture->invalid ? sg_leave(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED) : CUDA_SUCCESS;
}

CUresult sg_capture_refuse(struct sg_stream *s)
{
    invalidate(s->captured->capture);
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

void sg_capture_stream_gone(struct sg_stream *s)
{
    struct sg_capture *c = s->captured->capture;
    for (size_t i = 0; i < s->captured->next.count; i++)
        if (sg_edges_add(&c->orphans, s->captured->next.at[i].node, NULL))
            invalidate(c);
    leave(c, s);
    if (c->origin == s) /* nobody can end it any more */
        capture_free(c, false);
}

/* ---- what is captured ---- */

static CUresult set_next(struct sg_captured *p, struct sg_node *node)
{
    p->next.count = 0;
    return sg_edges_add(&p->next, node, NULL);
}

/* What a call on the stream has come to: an error invalidates. */
static CUresult captured(struct sg_stream *s, CUresult r)
{
    if (r)
        invalidate(s->captured->capture);
    return r;
}

CUresult sg_capture_work(struct sg_stream *s, struct sg_work *w)
{
    struct sg_captured *p = s->captured;
    struct sg_node *n;
    CUresult r = sg_node_add(p->capture->graph, w, &p->next, &n);
    return captured(s, r ? r : set_next(p, n));
}

/* An edge that lets the kernel begin before the one it depends on has ended. */
static void make_programmatic(struct sg_edges *next, unsigned char port)
{
    for (size_t i = 0; i < next->count; i++)
        if (next->at[i].node->work->type == CU_GRAPH_NODE_TYPE_KERNEL && sg_edge_is_default(&next->at[i].data))
            next->at[i].data = (CUgraphEdgeData){.from_port = port, .type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC};
}

static CUresult record_port(struct sg_stream *s, CUevent handle, unsigned char port)
{
    struct sg_event *e = SG_FIND(handle, SG_EVENT);
    CUresult r = e ? sg_capture_record(s, e, 0) : CUDA_ERROR_INVALID_HANDLE;
    if (!r)
        make_programmatic(&e->captured->nodes, port);
    return r;
}

CUresult sg_capture_launch(struct sg_stream *s, const struct sg_launch *l, struct sg_function *f)
{
    struct sg_work *w, *with;
    CUresult r = sg_work_launch(l, f, &w);
    if (r)
        return captured(s, r);
    if (s->priority && !(w->kernel.attributes && w->kernel.attributes->set >> CU_LAUNCH_ATTRIBUTE_PRIORITY & 1)) {
        CUlaunchAttributeValue priority = {.priority = s->priority};
        r = sg_work_with_attribute(w, CU_LAUNCH_ATTRIBUTE_PRIORITY, &priority, &with);
        sg_work_unref(w);
        if (r)
            return captured(s, r);
        w = with;
    }
    if (l->programmatic)
        make_programmatic(&s->captured->next, CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC);
    r = sg_capture_work(s, w);
    if (!r && l->after[0])
        r = record_port(s, l->after[0], CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC);
    if (!r && l->after[1])
        r = record_port(s, l->after[1], CU_GRAPH_KERNEL_NODE_PORT_LAUNCH_ORDER);
    return captured(s, r);
}

CUresult sg_capture_copy(struct sg_stream *s, const struct sg_end *dst, const struct sg_end *src,
                         const struct sg_extent *extent)
{
    struct sg_work *w;
    CUresult r = sg_work_ends(dst, src, extent, s->context, &w);
    return captured(s, r ? r : sg_capture_work(s, w));
}

CUresult sg_capture_graph(struct sg_stream *s, struct sg_graph *g)
{
    struct sg_captured *p = s->captured;
    struct sg_node *n;
    CUresult r = sg_graph_has_memory(g) || sg_graph_has(g, CU_GRAPH_NODE_TYPE_CONDITIONAL)
                     ? CUDA_ERROR_NOT_SUPPORTED
                     : sg_node_add_child(p->capture->graph, g, false, &p->next, &n);
    return captured(s, r ? r : set_next(p, n));
}

/* ---- events ---- */

void sg_capture_event_free(struct sg_event *e)
{
    if (!e->captured)
        return;
    sg_edges_free(&e->captured->nodes);
    free(e->captured);
    e->captured = NULL;
}

void sg_capture_event_recorded(struct sg_event *e)
{
    sg_capture_event_free(e);
}

CUresult sg_capture_record(struct sg_stream *s, struct sg_event *e, unsigned flags)
{
    struct sg_work *w;
    if (flags & CU_EVENT_RECORD_EXTERNAL) {
        CUresult r = sg_work_event(CU_GRAPH_NODE_TYPE_EVENT_RECORD, SG_HANDLE(CUevent, e), &w);
        return captured(s, r ? r : sg_capture_work(s, w));
    }
    struct sg_captured_event *c = calloc(1, sizeof *c);
    CUresult r = c ? sg_edges_copy(&c->nodes, &s->captured->next) : CUDA_ERROR_OUT_OF_MEMORY;
    if (r) {
        free(c);
        return captured(s, r);
    }
    c->capture = s->captured->capture->id;
    sg_capture_event_free(e);
    e->captured = c;
    return CUDA_SUCCESS;
}

static bool is_in(const struct sg_edges *l, const struct sg_node *node)
{
    for (size_t i = 0; i < l->count; i++)
        if (l->at[i].node == node)
            return true;
    return false;
}

static CUresult merge(struct sg_edges *to, const struct sg_edges *from)
{
    CUresult r = CUDA_SUCCESS;
    for (size_t i = 0; i < from->count && !r; i++)
        if (!is_in(to, from->at[i].node))
            r = sg_edges_add(to, from->at[i].node, &from->at[i].data);
    return r;
}

CUresult sg_capture_wait(struct sg_stream *s, struct sg_event *e, unsigned flags)
{
    struct sg_capture *own = s->captured ? s->captured->capture : NULL;
    struct sg_capture *other = e->captured ? capture_of(e->captured->capture) : NULL;
    struct sg_work *w;
    if (own && flags & CU_EVENT_WAIT_EXTERNAL) {
        CUresult r = e->captured ? CUDA_ERROR_INVALID_VALUE
                                 : sg_work_event(CU_GRAPH_NODE_TYPE_WAIT_EVENT, SG_HANDLE(CUevent, e), &w);
        return captured(s, r ? r : sg_capture_work(s, w));
    }
    if (flags)
        return CUDA_ERROR_INVALID_VALUE; /* for captures only */
    if (!e->captured)                    /* outside: what was recorded there no launch of the graph could wait for */
        return own && sg_event_is_recorded(e) ? captured(s, CUDA_ERROR_STREAM_CAPTURE_ISOLATION) : CUDA_SUCCESS;
    if (!other)
        return own ? captured(s, CUDA_ERROR_STREAM_CAPTURE_ISOLATION) : CUDA_ERROR_CAPTURED_EVENT;
    if (other->invalid)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (own && own != other) {
        invalidate(other);
        return captured(s, CUDA_ERROR_STREAM_CAPTURE_MERGE);
    }
    if (own)
        return captured(s, merge(&s->captured->next, &e->captured->nodes));
    if (s->type == SG_STREAM_LEGACY) {
        invalidate(other);
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return join(s, other, &e->captured->nodes);
}

CUresult sg_capture_event_asked(const struct sg_event *e)
{
    if (!e->captured)
        return CUDA_SUCCESS;
    struct sg_capture *c = capture_of(e->captured->capture);
    if (c)
        invalidate(c);
    return CUDA_ERROR_CAPTURED_EVENT;
}

CUresult sg_capture_event_waited(const struct sg_event *e)
{
    struct sg_capture *c = e->captured ? capture_of(e->captured->capture) : NULL;
    if (c)
        invalidate(c);
    return c ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : e->captured ? CUDA_ERROR_CAPTURED_EVENT : CUDA_SUCCESS;
}

CUresult sg_capture_context_asked(const struct sg_context *context, uint64_t green)
{
    CUresult r = CUDA_SUCCESS;
    struct sg_capture *c;
    const struct sg_stream *s;
    DL_FOREACH(captures.all, c)
    for (s = c->streams; s; s = s->capture_next)
        if (s->context == context && (!green || s->green == green)) {
            invalidate(c);
            r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        }
    return r;
}

/* ---- calls that captures forbid ---- */

/* What may wait for the device, or is not seen by the capture and would be missing when the graph is launched. */
static const char *const unsafe[] = {
    "cuMemAlloc",
    "cuMemAllocPitch",
    "cuMemFree",
    "cuMemAllocHost",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemHostRegister",
    "cuMemHostUnregister",
    "cuMemAllocManaged",
    "cuArrayCreate",
    "cuArray3DCreate",
    "cuArrayDestroy",
    "cuMipmappedArrayCreate",
    "cuMipmappedArrayDestroy",
    "cuIpcOpenMemHandle",
    "cuIpcCloseMemHandle",
    "cuMemMap",
    "cuMemUnmap",
    "cuMemSetAccess",
    "cuMemCreate",
    "cuMemRelease",
    "cuMemcpy",
    "cuMemcpyHtoD",
    "cuMemcpyDtoH",
    "cuMemcpyDtoD",
    "cuMemcpyPeer",
    "cuMemcpyDtoA",
    "cuMemcpyAtoD",
    "cuMemcpyHtoA",
    "cuMemcpyAtoH",
    "cuMemcpyAtoA",
    "cuMemcpy2D",
    "cuMemcpy2DUnaligned",
    "cuMemcpy3D",
    "cuMemcpy3DPeer",
    "cuMemsetD8",
    "cuMemsetD16",
    "cuMemsetD32",
    "cuMemsetD2D8",
    "cuMemsetD2D16",
    "cuMemsetD2D32",
    "cuModuleLoad",
    "cuModuleLoadData",
    "cuModuleLoadDataEx",
    "cuModuleLoadFatBinary",
    "cuModuleUnload",
    "cuLibraryUnload",
    "cuCtxDestroy",
    "cuDevicePrimaryCtxReset",
    "cuCtxSetLimit",
    "cuCtxEnablePeerAccess",
    "cuCtxDisablePeerAccess",
    "cuEventQuery",
};

static bool is_unsafe(const char *function)
{
    for (size_t i = 0; i < sizeof unsafe / sizeof unsafe[0]; i++)
        if (!strcmp(unsafe[i], function))
            return true;
    return false;
}

CUresult sg_capture_check(const char *function)
{
    const struct sg_thread *t = sg_thread();
    struct sg_capture *c;
    CUresult r = CUDA_SUCCESS;
    if (t->capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED || !is_unsafe(function))
        return CUDA_SUCCESS;
    DL_FOREACH(captures.all, c)
    {
        bool own = c->thread == t->number && c->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
        bool global = c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && t->capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
        if (!own && !global)
            continue;
        invalidate(c);
        r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return r;
}

/* ---- beginning and ending ---- */

struct beginning {
    CUstream stream;
    CUstreamCaptureMode mode;
    CUgraph graph; /* into an existing one */
    const CUgraphNode *dependencies;
    const CUgraphEdgeData *data;
    size_t count;
    bool existing;
};

static CUresult start(struct sg_stream *s, const struct beginning *b)
{
    struct sg_edges first = {0};
    struct sg_graph *g = b->existing ? SG_FIND(b->graph, SG_GRAPH) : NULL;
    if (b->existing && (!g || g->capture))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult r = b->existing ? sg_edges_from(g, b->dependencies, b->data, b->count, &first) : sg_graph_create(true, &g);
    if (r)
        return r;
    struct sg_capture *c = calloc(1, sizeof *c);
    r = c ? join(s, c, &first) : CUDA_ERROR_OUT_OF_MEMORY;
    sg_edges_free(&first);
    if (r) {
        free(c);
        if (!b->existing)
            sg_graph_destroy(g);
        return r;
    }
    c->id = ++captures.ids;
    c->mode = b->mode;
    c->thread = sg_thread()->number;
    c->into_existing = b->existing;
    c->graph = g;
    c->origin = s;
    g->capture = c->id;
    DL_APPEND(captures.all, c);
    sg.captures++;
    return CUDA_SUCCESS;
}

static CUresult begin(const struct beginning *b, bool per_thread)
{
    struct sg_stream *s;
    CUresult r = sg_enter_stream("cuStreamBeginCapture", b->stream, per_thread, &s);
    if (r)
        return r;
    if ((unsigned)b->mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (s->type == SG_STREAM_LEGACY)
        return sg_leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    return sg_leave(s->captured ? CUDA_ERROR_ILLEGAL_STATE : start(s, b));
}

CUresult cuStreamBeginCapture(CUstream stream)
{
    return begin(&(struct beginning){.stream = stream, .mode = CU_STREAM_CAPTURE_MODE_GLOBAL}, false);
}

CUresult cuStreamBeginCapture_ptsz(CUstream stream)
{
    return begin(&(struct beginning){.stream = stream, .mode = CU_STREAM_CAPTURE_MODE_GLOBAL}, true);
}

CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode)
{
    return begin(&(struct beginning){.stream = stream, .mode = mode}, false);
}

CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode)
{
    return begin(&(struct beginning){.stream = stream, .mode = mode}, true);
}

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *dependencies,
                                     const CUgraphEdgeData *data, size_t count, CUstreamCaptureMode mode)
{
    return begin(&(struct beginning){stream, mode, graph, dependencies, data, count, true}, false);
}

CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *dependencies,
                                          const CUgraphEdgeData *data, size_t count, CUstreamCaptureMode mode)
{
    return begin(&(struct beginning){stream, mode, graph, dependencies, data, count, true}, true);
}

/* Marks the node and all that it depends on, by what they say of themselves in `index`. */
static CUresult mark_reached(const struct sg_graph *g, const struct sg_edges *from)
{
    struct sg_node *n, **stack = calloc(g->count + 1, sizeof(struct sg_node *));
    size_t depth = 0;
    if (!stack)
        return CUDA_ERROR_OUT_OF_MEMORY;
    DL_FOREACH(g->nodes, n)
    n->index = 0;
    for (size_t i = 0; i < from->count; i++)
        if (!from->at[i].node->index) {
            from->at[i].node->index = 1;
            stack[depth++] = from->at[i].node;
        }
    while (depth) {
        n = stack[--depth];
        for (size_t i = 0; i < n->dependencies.count; i++) {
            struct sg_node *d = n->dependencies.at[i].node;
            if (d->index)
                continue;
            d->index = 1;
            stack[depth++] = d;
        }
    }
    free(stack);
    return CUDA_SUCCESS;
}

static bool all_reached(const struct sg_edges *l)
{
    for (size_t i = 0; i < l->count; i++)
        if (!l->at[i].node->index)
            return false;
    return true;
}

/* Has every stream's last work become part of the origin's? */
static CUresult check_joined(const struct sg_capture *c)
{
    const struct sg_stream *s;
    CUresult r = mark_reached(c->graph, &c->origin->captured->next);
    if (r)
        return r;
    for (s = c->streams; s; s = s->capture_next)
        if (!all_reached(&s->captured->next))
            return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    return all_reached(&c->orphans) ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
}

static CUresult end(CUstream stream, CUgraph *graph, bool per_thread)
{
    struct sg_stream *s;
    CUresult r = sg_enter_stream("cuStreamEndCapture", stream, per_thread, &s);
    if (r)
        return r;
    if (!graph)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    struct sg_capture *c = s->captured ? s->captured->capture : NULL;
    *graph = NULL;
    if (!c)
        return sg_leave(CUDA_ERROR_ILLEGAL_STATE);
    if (c->origin != s) {
        invalidate(c);
        return sg_leave(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    }
    if (c->mode != CU_STREAM_CAPTURE_MODE_RELAXED && c->thread != sg_thread()->number)
        return sg_leave(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD); /* the right one may still end it */
    r = c->invalid ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : check_joined(c);
    if (!r)
        *graph = SG_HANDLE(CUgraph, c->graph);
    capture_free(c, !r);
    return sg_leave(r);
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    return end(stream, graph, false);
}

CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
    return end(stream, graph, true);
}
