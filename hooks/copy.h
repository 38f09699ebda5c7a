/* What the copy and memset hooks share: operands, and a submission over ranges of the window. */
#ifndef HR_HOOKS_COPY_H
#define HR_HOOKS_COPY_H

#include "shim/gate.h"
#include "shim/shim.h"
#include "space/space.h"

/*
 * Backs the given ranges (those outside the window are left alone) and begins a submission in which all of them are backed:
 * the gate is entered, and hr_gate_submit was called. The caller makes the real calls and hr_gate_leave(t). An error: no
 * submission was begun.
 */
struct hr_range {
    CUdeviceptr address;
    size_t bytes;
};
CUresult hr_copy_begin(struct hr_thread *t, const struct hr_range *ranges, unsigned count) HR_HIDDEN;

/* After a submission: fences a per-thread default stream; completes copies on memory with SYNC_MEMOPS. */
CUresult hr_copy_end(struct hr_thread *t, CUresult r, CUstream stream, bool per_thread_default,
                     const struct hr_range *ranges, unsigned count) HR_HIDDEN;

/* Whether the stream handle means the calling thread's default stream in this variant of the API. */
static inline bool hr_is_per_thread(CUstream stream, bool per_thread_default)
{
    return stream == CU_STREAM_PER_THREAD || (per_thread_default && stream == NULL);
}

#endif
