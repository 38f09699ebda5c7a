/*
 * What one leg of a transfer runs on: two streams of ours in the context that does the copying, so that one chunk's start overlaps
 * with the bytes of the one before, and events that link it with the legs before and behind. Tracks at rest are used again; each
 * belongs to one transfer at a time, since two that shared a stream would wait for each other though the job's streams do not.
 */
#ifndef HR_RESIDENCY_TRACK_H
#define HR_RESIDENCY_TRACK_H

#include "driver/driver.h"

#include <stdbool.h>
#include <stdint.h>

#define HR_TRACK_STREAMS 2
#define HR_TRACK_EVENTS 4 /* of consecutive chunks; more than a relay has slots */

struct hr_track {
    CUcontext context;
    CUstream stream[HR_TRACK_STREAMS];
    CUevent event[HR_TRACK_EVENTS]; /* chunk i: event[i % HR_TRACK_EVENTS], on stream[i % HR_TRACK_STREAMS] */
    CUevent end[HR_TRACK_STREAMS];  /* behind everything on each stream, once recorded */
    CUevent timed[2];               /* HEADROOM_ROUTES=probe: when the whole trip began and ended; else NULL */
    struct hr_track *next;          /* track.c's */
};

/* A track of the context, which is made current. Errors: the driver's; OUT_OF_MEMORY; INVALID_CONTEXT: it is about to end. Locks: HR_RANK_FENCE + 1. */
CUresult hr_track_take(CUcontext context, struct hr_track **track_out);
/* Its streams are at rest, or what is on them concerns nobody any more. Lock as above. */
void hr_track_give(struct hr_track *track);
/* Whether everything on it is done; never waits. An error that a stream told goes to *error_out, else it stays as it is. */
bool hr_track_rests(const struct hr_track *track, CUresult *error_out);
/* Waits for it. Returns SUCCESS, or the first error that was told. */
CUresult hr_track_wait(const struct hr_track *track);
/*
 * The end of a context: close, and nobody gets a track of it any more; until all are back (hr_track_are_back, which waits until deadline_ns for one to
 * come back) it has to live. leave, while it is current, destroys them. ended, once the driver has said whether it is gone; after close only. Lock
 * as above.
 */
void hr_track_close(CUcontext context);
bool hr_track_are_back(CUcontext context, uint64_t deadline_ns);
void hr_track_leave(CUcontext context);
void hr_track_ended(CUcontext context, bool gone);

#endif
