/*
 * Open stream captures: what may not be done beside one, and what takes its place.
 *
 * A stream that captures can be neither asked nor waited for, nor can an event be recorded on it that is not part of its graph. So what it held
 * before is noted when it begins to capture, or joins a capture, and asked for instead. Calls that may wait, and those that map
 * memory, break captures of every thread whose mode is not relaxed: HR_RELAXED() around ours.
 *
 * While a capture is open nothing is moved that need not be. What cannot be done without is moved all the same, and after two seconds,
 * or once it is broken, a capture holds up nothing any more: it may have been left for good.
 *
 * Locks: HR_RANK_FENCE + 1; non-blocking driver calls are made under it.
 */
#ifndef HR_RESIDENCY_CAPTURE_H
#define HR_RESIDENCY_CAPTURE_H

#include "base/thread.h"
#include "residency/context.h"

extern _Atomic(uint32_t) hr_captures_open HR_HIDDEN;
extern _Atomic(bool) hr_captures_ever HR_HIDDEN;

/* Whether a capture is open. No lock. */
static inline bool hr_capture_any(void)
{
    return __builtin_expect(atomic_load_explicit(&hr_captures_open, memory_order_relaxed) != 0, 0);
}

/* For the rest of the enclosing block this thread's calls break no capture: HR_RELAXED(); No lock. */
struct hr_relaxed {
    bool pushed;
    CUstreamCaptureMode before;
};
struct hr_relaxed hr_relaxed_push(void);
void hr_relaxed_pop(const struct hr_relaxed *relaxed);
static inline struct hr_relaxed hr_relaxed_enter(void)
{
    return __builtin_expect(atomic_load_explicit(&hr_captures_ever, memory_order_relaxed), 0)
               ? hr_relaxed_push()
               : (struct hr_relaxed){false, CU_STREAM_CAPTURE_MODE_GLOBAL};
}
static inline void hr_relaxed_leave(const struct hr_relaxed *relaxed)
{
    if (__builtin_expect(relaxed->pushed, 0))
        hr_relaxed_pop(relaxed);
}
#define HR_RELAXED()                                                                                                   \
    __attribute__((cleanup(hr_relaxed_leave), unused)) struct hr_relaxed hr_relaxed_ = hr_relaxed_enter()

/*
 * Whether work for the stream would be captured, or refused because of a capture: the driver's call is to be made as it is. No lock.
 */
bool hr_capture_takes(CUstream stream, bool per_thread);
/*
 * Before a call that the driver forbids beside captures and that we would serve without asking it: its error where one forbids the call to this
 * thread, which breaks the capture as the call would have; else SUCCESS.
 */
CUresult hr_capture_check(void);

/*
 * Around the driver's call that begins a capture, and after the one that ends it. A per-thread default stream is the calling thread's.
 * From the one to the other no stream is asked; hr_capture_begun returns r.
 */
void hr_capture_beginning(CUstream stream, bool per_thread);
CUresult hr_capture_begun(CUstream stream, bool per_thread, CUstreamCaptureMode mode, CUresult r);
void hr_capture_ended(CUstream stream, bool per_thread);
/* The same around a stream's wait for an event, which may be of a capture that the stream then joins; where the first said that one is
 * open. */
bool hr_capture_joining(CUstream stream, bool per_thread);
CUresult hr_capture_joined(CUresult r);

/* cuStreamQuery of a stream of the job's in the current context, or the same about what it held before it captured: NOT_READY
 * where that is not known. */
CUresult hr_capture_query(CUstream stream, CUcontext context);
/*
 * The stream is about to be destroyed. true: it captures, and is not to be asked; *event_out is then the end of what it held before
 * (NULL = nothing runs), the caller's from now on.
 */
bool hr_capture_destroying(CUstream stream, CUevent *event_out);
void hr_capture_thread_ended(const struct hr_thread *t);
void hr_capture_context_gone(CUcontext context);

/* Whether moves that can wait should: see above. */
bool hr_capture_holds_moves(void);

#endif
