/*
 * Capture: streams whose operations become nodes of a graph in place of being carried out.
 *
 * All of this needs sg.lock unless it says otherwise.
 */
#ifndef SG_CAPTURE_H
#define SG_CAPTURE_H

#include "simgpu/graph.h"

struct sg_capture {
    uint64_t id;
    CUstreamCaptureMode mode;
    uint64_t thread;
    bool into_existing, invalid;
    struct sg_graph *graph;
    struct sg_stream *origin;
    struct sg_stream *streams; /* all that are in it */
    struct sg_edges orphans;   /* what streams that are gone had captured last */
    struct sg_capture *prev, *next;
};

/* A stream's part in a capture. */
struct sg_captured {
    struct sg_capture *capture;
    struct sg_edges next; /* what its next node will depend on */
    CUgraphNode *handles; /* of those, for the job */
    CUgraphEdgeData *edges;
};

/*
 * sg_enter_stream, for calls that put work into a stream or ask about it: IMPLICIT on the legacy stream beside a capture of a
 * blocking one, INVALIDATED in a capture that is.
 */
CUresult sg_enter_work(const char *function, CUstream handle, bool per_thread, struct sg_stream **stream_out);
bool sg_capture_is_implicit(const struct sg_stream *stream); /* the former */
/* A call that cannot be captured, on a capturing stream: invalidates. Returns UNSUPPORTED. */
CUresult sg_capture_refuse(struct sg_stream *stream);
CUresult sg_capture_work(struct sg_stream *stream, struct sg_work *work); /* takes it over */
CUresult sg_capture_launch(struct sg_stream *stream, const struct sg_launch *launch, struct sg_function *function);
CUresult sg_capture_copy(struct sg_stream *stream, const struct sg_end *dst, const struct sg_end *src,
                         const struct sg_extent *extent);
CUresult sg_capture_record(struct sg_stream *stream, struct sg_event *event, unsigned flags);
CUresult sg_capture_wait(struct sg_stream *stream, struct sg_event *event, unsigned flags);
CUresult sg_capture_graph(struct sg_stream *stream, struct sg_graph *graph);
/* Stream-ordered allocation and its free, on a capturing stream. Errors as of cuGraphAddMemAllocNode and
 * cuGraphAddMemFreeNode, which invalidate the capture. */
CUresult sg_capture_alloc(struct sg_stream *stream, const CUDA_MEM_ALLOC_NODE_PARAMS *params, CUdeviceptr *va_out);
CUresult sg_capture_free(struct sg_stream *stream, CUdeviceptr va);
void sg_capture_stream_gone(struct sg_stream *stream);
void sg_capture_event_free(struct sg_event *event);
void sg_capture_event_recorded(struct sg_event *event); /* outside of captures: it is an event like any other */
/* A question about an event, or a wait of the host for it: CAPTURED_EVENT, and what it belongs to is invalidated. */
CUresult sg_capture_event_asked(const struct sg_event *event);
/* A wait of all streams of a context for it: the same for what has ended; UNSUPPORTED in an open capture. */
CUresult sg_capture_event_waited(const struct sg_event *event);
/* The context (0: or what belongs to this green one) is waited for as a whole: UNSUPPORTED where a capture is open, which is
 * invalidated. */
CUresult sg_capture_context_asked(const struct sg_context *context, uint64_t green);
/* Is the function one that the calling thread must not call now? Then UNSUPPORTED, and the captures are invalidated. */
CUresult sg_capture_check(const char *function);

#endif
