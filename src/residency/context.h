/*
 * The job's contexts and streams, and when a device is at rest.
 *
 * Rest is asked for by cuStreamQuery on every known stream, never by recording an event on a stream of the job: an event on
 * the legacy stream is a barrier among all blocking streams, which would make later work of the job wait for earlier work it
 * does not depend on. The per-thread default streams of other threads cannot be queried from here; each thread that uses its
 * own records an event behind every launch (hr_fence_per_thread).
 *
 * Locks: HR_RANK_FENCE guards the registries and is held across non-blocking driver calls (queries, event records) only, so
 * that a stream cannot be destroyed while it is being queried.
 */
#ifndef HR_RESIDENCY_CONTEXT_H
#define HR_RESIDENCY_CONTEXT_H

#include "base/thread.h"
#include "driver/driver.h"

struct hr_context {
    CUcontext handle;
    unsigned gpu;
    CUstream mover; /* ours, NON_BLOCKING; made at first use, under the move lock */
};

/* The calling thread's current context, registered at first sight. NULL: there is none, or it is not usable. */
struct hr_context *hr_context_current(void);
/* Some context of the GPU (the current one if it fits); NULL = none. */
struct hr_context *hr_context_of_gpu(unsigned gpu);
/* The context with this handle, registered at first sight; NULL: it is none, or not usable. */
struct hr_context *hr_context_of(CUcontext handle);
/* The context whose work a stream of the job does: the current one's for the default streams. NULL = unknown. */
struct hr_context *hr_stream_context(CUstream stream);
/* Makes `context` current for a while; *pushed_out says whether hr_context_leave has to pop. */
CUresult hr_context_enter(struct hr_context *context, bool *pushed_out);
void hr_context_leave(bool pushed);

/* A context is about to go, or the primary context of a device is about to be reset: forgets it and its streams. The job's
 * allocations in it are freed by the caller (hr_residency_context_gone). */
void hr_context_forget(CUcontext handle);
/* The primary context of a GPU that is registered, or NULL. */
CUcontext hr_context_primary(unsigned gpu);

/* A new stream of the current context, or of another one: from now on its work counts. Locks: the fence lock. */
void hr_stream_created(CUstream stream);
void hr_stream_created_in(CUstream stream, CUcontext context);
/* Before the real destroy: what is still running on it stays known until it is done. */
struct hr_context *hr_stream_destroying(CUstream stream);
/* After the real call, with what hr_stream_destroying returned (NULL = unknown): a stream that could not be destroyed is
 * tracked again. */
void hr_stream_destroyed(CUstream stream, struct hr_context *context, CUresult r);
/* In between no stream is asked: around calls of the job's after which a stream must not be. Non-blocking driver calls only. Locks:
 * the fence lock, held. */
void hr_streams_leave_alone(void);
void hr_streams_leave_alone_end(void);
/*
 * Behind work for the calling thread's per-thread default stream, within its submission: afterwards other threads can tell
 * whether that work is done. Where no event can be had the work is waited for.
 */
void hr_fence_per_thread(struct hr_thread *t);

/*
 * A driver tells of a failed link once, to whoever waits or asks first. What a call of ours was told goes through here, and returns as it
 * is, so that the job hears of it (hr_transfer_settle) where the copy cannot be made again. No lock.
 */
CUresult hr_context_heard(CUresult r);
/* The same of what a call of the job's was told, and the job hears anyway. No lock. */
void hr_context_told(CUresult r);
/* How often anybody was told so far. No lock. */
uint64_t hr_context_times_told(void);
/* The first error of two; but that of a link before others, since it is told once. */
static inline CUresult hr_context_first_error(CUresult first, CUresult r)
{
    return first == CUDA_SUCCESS || r == CUDA_ERROR_NVLINK_UNCORRECTABLE ? r : first;
}
/* Whether something was heard that nobody has taken; and takes it. No lock. */
bool hr_context_link_told(void);
bool hr_context_link_failed(void);

/* Whether everything submitted so far to the GPUs in `gpu_mask` is done. Never waits. All GPUs are asked, so that drains
 * make progress. */
bool hr_quiet_now(uint64_t gpu_mask);
/* Waits for that until deadline_ns; false = it passed. Counts as a drain of those GPUs. */
#define HR_ALL_GPUS UINT64_MAX
bool hr_quiet_wait(uint64_t gpu_mask, uint64_t deadline_ns);

/*
 * Drains are numbered: a free that happens between two numbers may be carried out once a drain that began after it has
 * ended on every GPU whose work could touch the memory. hr_drain_stamp() at the free; hr_drain_covers(stamp, those) later.
 */
uint64_t hr_drain_stamp(void);
bool hr_drain_covers(uint64_t stamp, uint64_t gpu_mask);
uint64_t hr_drain_begin(void);
/*
 * The latest drain whose beginning came before a moment in which the stream was found at rest: what was ordered before its work of
 * until then is over. 0 = unknown. NULL = the legacy stream of that context; not for per-thread default streams. Locks: the fence
 * lock.
 */
uint64_t hr_stream_idle(CUstream stream, CUcontext context);
/* The job has waited for a stream, or asked and found it at rest; the drain `number` (hr_drain_begin) had begun before that.
 * Whether that ended a drain of some GPU. */
bool hr_stream_rested(struct hr_thread *t, CUstream stream, bool per_thread, uint64_t number);
/* The same after a wait for all that a context had under way: where it is its GPU's only one, that is a drain. */
bool hr_context_rested(CUcontext handle, uint64_t number);

#endif
