/* What the copy and memset hooks share: operands, and a submission over ranges of the window. */
#ifndef HR_HOOKS_COPY_H
#define HR_HOOKS_COPY_H

#include "residency/context.h"
#include "shim/gate.h"
#include "shim/shim.h"
#include "space/space.h"

/*
 * Backs the given ranges (those outside the window are left alone) and begins a submission in which all of them are backed:
 * the gate is entered, and hr_gate_submit was called. The caller makes the real calls and hr_copy_end. An error: no
 * submission was begun.
 */
struct hr_range {
    CUdeviceptr address;
    size_t bytes;
};
CUresult hr_copy_begin(struct hr_thread *t, const struct hr_range *ranges, unsigned count) HR_HIDDEN;

/* Ends that submission; completes copies on memory with SYNC_MEMOPS. Returns r, or the error of that wait. */
CUresult hr_copy_end(struct hr_thread *t, CUresult r, CUstream stream, bool per_thread_default,
                     const struct hr_range *ranges, unsigned count) HR_HIDDEN;

/* Whether the stream handle means the calling thread's default stream in this variant of the API. */
static inline bool hr_is_per_thread(CUstream stream, bool per_thread_default)
{
    return stream == CU_STREAM_PER_THREAD || (per_thread_default && stream == NULL);
}

/*
 * Ends a submission. What went to a per-thread default stream is fenced first: no other thread can ask that stream, so a mover
 * that finds no submission under way must find the event.
 */
static inline void hr_submission_end(struct hr_thread *t, CUstream stream, bool per_thread_default)
{
    if (__builtin_expect(hr_is_per_thread(stream, per_thread_default), 0))
        hr_fence_per_thread(t);
    hr_gate_leave(t);
}

#endif
