/*
 * Work that a call of the job asks of a GPU which cannot reach the memory that it names. The driver serves such calls on
 * memory of cuMemAlloc by doing them elsewhere; on mapped chunks, which only the granted devices reach, it refuses. So they
 * are done on a stream of ours in a context of the memory's own GPU, in the place that they have in the job's stream.
 */
#ifndef HR_RESIDENCY_LANE_H
#define HR_RESIDENCY_LANE_H

#include "driver/driver.h"

struct hr_lane {
    CUstream stream; /* ours; nothing else is on it */
    struct hr_lane_stream *entry;
    CUstream job_stream;
    bool per_thread; /* which of the two default streams a NULL job_stream is */
    bool pushed;
};

/*
 * Until hr_lane_end a context of the GPU is current, and work on lane->stream comes after what was submitted to the job's
 * stream before. The job's stream waits for it from hr_lane_end on; with `wait`, so does the calling thread. hr_lane_end
 * returns r, or the error that came up. Errors: the driver's. Locks: HR_RANK_FENCE and one above it, for a moment.
 */
CUresult hr_lane_begin(unsigned gpu, CUstream job_stream, bool per_thread, struct hr_lane *lane_out);
CUresult hr_lane_end(struct hr_lane *lane, CUresult r, bool wait);
/* An event behind what a stream of the job holds now; the caller destroys it. Errors: the driver's. Locks: HR_RANK_FENCE. */
CUresult hr_lane_mark(CUstream job_stream, bool per_thread, CUevent *event_out);
/* A context is gone, and its streams with it. */
void hr_lane_forget(CUcontext handle);

#endif
