#include "copy.h"

#include "base/log.h"
#include "hr_hooks.h"
#include "residency/access.h"
#include "residency/context.h"
#include "shim/refuse.h"
#include "tier/tier.h"

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

static bool all_mapped(const struct op *op)
{
    for (unsigned i = 0; i < op->count; i++)
        if (!atomic_load_explicit(&hr_space_chunk(op->ranges[i].address)->mapped, memory_order_acquire))
            return false;
    return true;
}

static bool all_allocated(const struct op *op)
{
    struct hr_allocation a;
    for (unsigned i = 0; i < op->count; i++)
        if (!hr_space_find(op->ranges[i].address, &a) || op->ranges[i].address - a.base > a.bytes - op->ranges[i].bytes)
            return false;
    return true;
}

/* Makes the words mapped; *set_io then holds what is pinned meanwhile. */
static CUresult prepare(struct hr_thread *t, const struct op *op, struct hr_working_set *set_io)
{
    set_io->count = 0;
    set_io->everything = false;
    if (hr_tier_host_mappable(0)) {
        CUresult r = CUDA_SUCCESS;
        for (unsigned i = 0; i < op->count && r == CUDA_SUCCESS; i++)
            r = hr_access_back_range(t, op->ranges[i].address, op->ranges[i].bytes);
        return r;
    }
    hr_gate_enter(t); /* lists of hidden pointers may be read only in a submission */
    for (unsigned i = 0; i < op->count; i++)
        hr_working_set_add(set_io, op->ranges[i].address);
    hr_gate_leave(t);
    return hr_access_prepare(t, set_io);
}

/* Begins a submission in which every word is mapped. */
static CUresult begin(struct hr_thread *t, const struct op *op)
{
    struct hr_working_set *set = malloc(sizeof *set);
    CUresult r = !set ? CUDA_ERROR_OUT_OF_MEMORY : all_allocated(op) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    bool ready = false;
    hr_context_current(); /* registers it: what a context does counts, also where it owns nothing */
    for (unsigned attempt = 0; attempt < 100 && r == CUDA_SUCCESS && !ready; attempt++) {
        r = prepare(t, op, set);
        if (r != CUDA_SUCCESS)
            break;
        hr_gate_enter(t);
        ready = all_mapped(op);
        if (ready)
            hr_gate_submit(t);
        else
            hr_gate_leave(t);
        if (set->count > 0) /* from here on the submission keeps it in place */
            hr_access_unpin(set);
    }
    free(set);
    return r == CUDA_SUCCESS && !ready ? CUDA_ERROR_OUT_OF_MEMORY : r;
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
        CUresult r = begin(t, &op);                                                                                    \
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
        else if (r == CUDA_SUCCESS && (r = begin(t, &op)) == CUDA_SUCCESS)                                             \
            r = end(t, &op, hr_drv.name(stream, count, paramArray, flags));                                            \
        free(op.ranges);                                                                                               \
        return r;                                                                                                      \
    }
BATCH(cuStreamBatchMemOp, false)
BATCH(cuStreamBatchMemOp_ptsz, true)
BATCH(cuStreamBatchMemOp_v2, false)
BATCH(cuStreamBatchMemOp_v2_ptsz, true)
