/*
 * What the files of the copy functions share: the ends of a copy as a call names them, and how they become an operation.
 * All of this needs sg.lock.
 */
#ifndef SG_COPYOP_H
#define SG_COPYOP_H

#include "simgpu/sim.h"

/* What the call says an address is. */
enum sg_side { SG_SIDE_ANY, SG_SIDE_HOST, SG_SIDE_DEVICE };

struct sg_extent {
    size_t width_bytes, height, depth;
};

struct sg_end {
    uint64_t va;
    size_t pitch, slice; /* bytes from row to row, from layer to layer */
    enum sg_side side;
    int grants_of; /* the device whose grants count for VMM memory; SG_ON_HOST = the stream's */
    CUarray array; /* that it lies in; NULL: none */
};

struct sg_operand { /* an end whose memory has been found */
    uint64_t va;
    size_t pitch, slice;
    int device;  /* whose page table; SG_ON_HOST = a plain host pointer */
    bool pinned; /* of those */
    bool sync;   /* SYNC_MEMOPS is set on it */
};

enum sg_how {
    SG_HOW_SYNC,
    SG_HOW_ASYNC,
    SG_HOW_SOURCE_NOW,  /* asynchronous, but the source is read before the call returns */
    SG_HOW_SOURCE_LATE, /* asynchronous, and a pageable source too is read when the copy runs */
};

/* An end from what CUDA_MEMCPY2D and 3D say, which is no array: INVALID_VALUE for other types and for pitches beyond the
 * limit. No offsets are applied. */
CUresult sg_end_from(CUmemorytype type, const void *host, CUdeviceptr device, size_t pitch, struct sg_end *end_out);
/* Both ends of what CUDA_MEMCPY3D says. Errors as above. */
CUresult sg_copy_ends(const CUDA_MEMCPY3D *params, struct sg_end *dst_out, struct sg_end *src_out,
                      struct sg_extent *extent_out);
/* The operation that copies between them and reads its source when it runs. OUT_OF_MEMORY. */
CUresult sg_copy_op(const struct sg_operand *dst, const struct sg_operand *src, const struct sg_extent *extent,
                    struct sg_op **op_out);
/* Finds the memory of both ends; INVALID_VALUE where it is not what the call says. The extent has no zero. */
CUresult sg_copy_check(const struct sg_stream *stream, const struct sg_end *dst, const struct sg_end *src,
                       const struct sg_extent *extent, struct sg_operand *dst_out, struct sg_operand *src_out);
/* Checks and submits; waits where the function that is called would. An empty extent is a success. May release sg.lock. */
CUresult sg_copy_submit(struct sg_stream *stream, const struct sg_end *dst, const struct sg_end *src,
                        const struct sg_extent *extent, enum sg_how how);
CUresult sg_copy_submit_checked(struct sg_stream *stream, const struct sg_operand *dst, const struct sg_operand *src,
                                const struct sg_extent *extent, enum sg_how how);
/* A copy between contexts; NULL = that end belongs to none. The synchronous form waits for what both contexts hold, and for
 * the copy. May release sg.lock. */
CUresult sg_copy_between(struct sg_stream *stream, CUcontext dst_context, CUcontext src_context, struct sg_end *dst,
                         struct sg_end *src, const struct sg_extent *extent, bool async);

/* The fill that a memset node's parameters mean, as cuMemsetD2D* checks it. INVALID_VALUE. */
CUresult sg_fill_check(const struct sg_context *context, const CUDA_MEMSET_NODE_PARAMS *params,
                       struct sg_fill *fill_out);
/* A stream memory operation as parts of batches describe them: INVALID_VALUE, NOT_SUPPORTED. The operation is NULL for a
 * barrier. */
CUresult sg_value_check(const struct sg_context *context, const CUstreamBatchMemOpParams *part);
CUresult sg_value_op(const struct sg_context *context, const CUstreamBatchMemOpParams *part, struct sg_op **op_out);

#endif
