#include "copy.h"

#include "base/log.h"
#include "hr_hooks.h"
#include "residency/capture.h"
#include "shim/refuse.h"

#include <stdlib.h>

/*
 * Stream memory operations: waits for, and writes of, single words in stream order. The words have to be mapped when the
 * call is made, and stay where they are until it is done: a stream with a pending operation is not at rest, and nothing
 * that its GPU may touch is moved before it is. Where the words lie does not matter to the driver, so nothing is moved in;
 * but where host memory cannot be mapped, an address that is out would not be there for the operation.
 */

#define OPS_MOST 256 /* the driver takes fewer */

struct op {
    CUstream stream;
    bool per_thread;
    unsigned count, most;
    struct hr_range *ranges;
};

static CUresult add_op(struct op *op, CUdeviceptr address, size_t bytes)
{
    if (!hr_space_owns(address))
        return CUDA_SUCCESS;
    if (op->count == op->most)
        return CUDA_ERROR_INVALID_VALUE;
    op->ranges[op->count++] = (struct hr_range){address, bytes};
    return CUDA_SUCCESS;
}

static CUresult end(struct hr_thread *t, const struct op *op, CUresult r)
{
    hr_submission_end(t, op->stream, op->per_thread);
    return r;
}

/* One word. */
#define VALUE(name, type, pt)                                                                                          \
    HR_HOOK(name)(CUstream stream, CUdeviceptr addr, type value, unsigned int flags)                                   \
    {                                                                                                                  \
        HR_PASS(name, stream, addr, value, flags);                                                                     \
        HR_INSIDE();                                                                                                   \
        struct hr_thread *t = hr_thread_self();                                                                        \
        struct hr_range range;                                                                                         \
        struct op op = {stream, (pt), 0, 1, &range};                                                                   \
        if (!t || !hr_space_owns(addr))                                                                                \
            return hr_drv.name(stream, addr, value, flags);                                                            \
        add_op(&op, addr, sizeof value);                                                                               \
        CUresult r = hr_mapped_begin(t, op.ranges, op.count);                                                          \
        if (r == CUDA_ERROR_INVALID_VALUE && hr_capture_takes(stream, (pt))) /* which breaks the capture */            \
            return hr_drv.name(stream, addr, value, flags);                                                            \
        return r == CUDA_SUCCESS ? end(t, &op, hr_drv.name(stream, addr, value, flags)) : r;                           \
    }
VALUE(cuStreamWaitValue32, cuuint32_t, false)
VALUE(cuStreamWaitValue32_ptsz, cuuint32_t, true)
VALUE(cuStreamWaitValue32_v2, cuuint32_t, false)
VALUE(cuStreamWaitValue32_v2_ptsz, cuuint32_t, true)
VALUE(cuStreamWriteValue32, cuuint32_t, false)
VALUE(cuStreamWriteValue32_ptsz, cuuint32_t, true)
VALUE(cuStreamWriteValue32_v2, cuuint32_t, false)
VALUE(cuStreamWriteValue32_v2_ptsz, cuuint32_t, true)
VALUE(cuStreamWaitValue64, cuuint64_t, false)
VALUE(cuStreamWaitValue64_ptsz, cuuint64_t, true)
VALUE(cuStreamWaitValue64_v2, cuuint64_t, false)
VALUE(cuStreamWaitValue64_v2_ptsz, cuuint64_t, true)
VALUE(cuStreamWriteValue64, cuuint64_t, false)
VALUE(cuStreamWriteValue64_ptsz, cuuint64_t, true)
VALUE(cuStreamWriteValue64_v2, cuuint64_t, false)
VALUE(cuStreamWriteValue64_v2_ptsz, cuuint64_t, true)

/* The words of a batch. NOT_SUPPORTED: one of its operations is not known here, and might name anything. */
static CUresult list_batch(struct op *op, const CUstreamBatchMemOpParams *params, unsigned count)
{
    CUresult r = CUDA_SUCCESS;
    for (unsigned i = 0; i < count && r == CUDA_SUCCESS; i++) {
        switch (params[i].operation) {
        case CU_STREAM_MEM_OP_WAIT_VALUE_32: r = add_op(op, params[i].waitValue.address, 4); break;
        case CU_STREAM_MEM_OP_WAIT_VALUE_64: r = add_op(op, params[i].waitValue.address, 8); break;
        case CU_STREAM_MEM_OP_WRITE_VALUE_32: r = add_op(op, params[i].writeValue.address, 4); break;
        case CU_STREAM_MEM_OP_WRITE_VALUE_64: r = add_op(op, params[i].writeValue.address, 8); break;
        case CU_STREAM_MEM_OP_BARRIER:
        case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES: break;
        default: return CUDA_ERROR_NOT_SUPPORTED;
        }
    }
    return r;
}

/* Lists a batch; the caller frees op->ranges, whatever comes of it. */
static CUresult take_batch(struct op *op, const CUstreamBatchMemOpParams *params, unsigned count)
{
    op->most = OPS_MOST;
    op->ranges = malloc(OPS_MOST * sizeof *op->ranges); /* the job's thread may have hardly more stack */
    if (!op->ranges)
        return CUDA_ERROR_OUT_OF_MEMORY;
    return params ? list_batch(op, params, count) : CUDA_SUCCESS;
}

#define BATCH(name, pt)                                                                                                \
    HR_HOOK(name)(CUstream stream, unsigned int count, CUstreamBatchMemOpParams *paramArray, unsigned int flags)       \
    {                                                                                                                  \
        HR_PASS(name, stream, count, paramArray, flags);                                                               \
        HR_INSIDE();                                                                                                   \
        struct hr_thread *t = hr_thread_self();                                                                        \
        struct op op = {.stream = stream, .per_thread = (pt)};                                                         \
        CUresult r = take_batch(&op, paramArray, count);                                                               \
        if (r == CUDA_ERROR_NOT_SUPPORTED)                                                                             \
            r = hr_refuse(HR_FN_##name);                                                                               \
        else if (r == CUDA_SUCCESS && (!t || op.count == 0))                                                           \
            r = hr_drv.name(stream, count, paramArray, flags);                                                         \
        else if (r == CUDA_SUCCESS && (r = hr_mapped_begin(t, op.ranges, op.count)) == CUDA_SUCCESS)                   \
            r = end(t, &op, hr_drv.name(stream, count, paramArray, flags));                                            \
        else if (r == CUDA_ERROR_INVALID_VALUE && hr_capture_takes(stream, (pt)))                                      \
            r = hr_drv.name(stream, count, paramArray, flags);                                                         \
        free(op.ranges);                                                                                               \
        return r;                                                                                                      \
    }
BATCH(cuStreamBatchMemOp, false)
BATCH(cuStreamBatchMemOp_ptsz, true)
BATCH(cuStreamBatchMemOp_v2, false)
BATCH(cuStreamBatchMemOp_v2_ptsz, true)
