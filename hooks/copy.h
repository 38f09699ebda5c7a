/* What the copy and memset hooks share: operands, and a submission over ranges of the window. */
#ifndef HR_HOOKS_COPY_H
#define HR_HOOKS_COPY_H

#include "residency/context.h"
#include "residency/hold.h"
#include "residency/lane.h"
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

/*
 * For calls that look at addresses themselves, or wait with them: begins a submission in which every byte of the ranges (those outside the window
 * are left alone) is mapped where the job sees it. The caller makes the real call and hr_submission_end. Errors, with no submission begun:
 * INVALID_VALUE: a range is not within one live allocation; OUT_OF_MEMORY; the driver's.
 */
CUresult hr_mapped_begin(struct hr_thread *t, const struct hr_range *ranges, unsigned count) HR_HIDDEN;

/*
 * For calls that make nodes of a graph, captured or not: their operands are mapped, and stay so until the real call has returned. They are
 * neither translated nor divided, since where memory lies now says nothing of a launch, which sees to it itself (residency/graph.h).
 * They are held where the node may be another GPU's, whose grants are kept with the mapping, and where what moves out is not mapped: else
 * each might leave while the other comes in. Errors as of hr_copy_begin, in placing->r; after INVALID_VALUE the real call is to be made all
 * the same, since it breaks a capture, and says what is wrong. hr_copy_placed, after it: returns what it gave.
 */
struct hr_placing {
    CUresult r;
    unsigned held;
    struct hr_hold hold[2];
};
/* count <= 2 where anything is held. Whether the real call is to be made. */
bool hr_copy_place(struct hr_thread *t, const struct hr_range *ranges, unsigned count,
                   struct hr_placing *placing_out) HR_HIDDEN;
CUresult hr_copy_placed(struct hr_thread *t, struct hr_placing *placing, CUresult r) HR_HIDDEN;

/*
 * Which GPU does the work of a call, and what it cannot reach of the window memory that is named: chunks of another GPU that
 * the job did not ask to be granted. On memory of cuMemAlloc such calls work, so what is out of reach is copied by the
 * driver between the two contexts, or done where the memory is (residency/lane.h).
 */
struct hr_way {
    int gpu; /* -1: everything is within reach */
    CUstream stream;
    bool per_thread;
    int lane_gpu; /* -1 = no lane is open */
    struct hr_lane lane;
};
/* Before hr_copy_begin: what is about to be touched is noted for the movers. */
struct hr_way hr_way_of(CUstream stream, bool per_thread, const struct hr_range *ranges, unsigned count) HR_HIDDEN;
bool hr_way_is_far(const struct hr_way *way, CUdeviceptr address) HR_HIDDEN;
/* The GPU of a window's address. */
unsigned hr_way_owner(CUdeviceptr address) HR_HIDDEN;
/* One piece of a copy that names something far; other operands may be anything that a copy may name. */
CUresult hr_way_copy(struct hr_way *way, CUdeviceptr to, CUdeviceptr from, size_t bytes) HR_HIDDEN;
/* A stream that does the call's work on that GPU; its context is current until hr_way_end. */
CUresult hr_way_open(struct hr_way *way, unsigned gpu, CUstream *stream_out) HR_HIDDEN;
/* Still in the submission, after everything else of the call; returns r or the error that came up. */
CUresult hr_way_end(struct hr_way *way, CUresult r, bool wait) HR_HIDDEN;
/* Copies bytes between any operands, in as many calls as it takes. In a submission over both. */
CUresult hr_copy_span(struct hr_way *way, CUdeviceptr to, CUdeviceptr from, size_t bytes, bool async) HR_HIDDEN;

/* What a call takes as a copy's source: host memory, anything that may be pageable host memory, or anything but that. */
enum hr_source { HR_SOURCE_HOST, HR_SOURCE_ANY, HR_SOURCE_DEVICE };
/* What a copy to `to` brings along: addresses among the bytes, if the host can read them. After the copy has been made, still in its submission. */
void hr_copy_note_pointers(CUdeviceptr to, CUdeviceptr from, size_t bytes, enum hr_source source) HR_HIDDEN;
/* The context to tell the driver for an operand of a peer copy that names `named`. */
CUcontext hr_copy_context(CUcontext named, CUdeviceptr address) HR_HIDDEN;
/*
 * For a call of the driver that names memory of a GPU out of reach and cannot be taken apart: that memory is held where all GPUs may reach it while
 * the call is made, as a submission like any (hr_copy_begin). Errors, with nothing held: those of hr_hold_take. Locks: hold none, and no submission.
 */
CUresult hr_copy_hold(struct hr_thread *t, const struct hr_range *ranges, unsigned count,
                      struct hr_placing *placing_out) HR_HIDDEN;
void hr_copy_let_go(struct hr_placing *placing) HR_HIDDEN;
/* The job's asynchronous copy of three dimensions, from within another call. Locks: hold none, and no submission. */
CUresult hr_copy_3d(const CUDA_MEMCPY3D *asked, CUstream stream, bool per_thread) HR_HIDDEN;

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
