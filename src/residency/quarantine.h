/*
 * Freed memory waits here until all work submitted before the free is done: its address is not handed out and its chunks
 * are not reused. (The real cuMemFree may synchronise, and jobs rely on it.)
 */
#ifndef HR_RESIDENCY_QUARANTINE_H
#define HR_RESIDENCY_QUARANTINE_H

#include "base/thread.h"
#include "driver/driver.h"
#include "space/space.h"

/* Takes a retired allocation. Locks: the thread's own list (HR_RANK_QUEUE). */
void hr_quarantine_add(struct hr_thread *t, CUdeviceptr address);
/* Gives back what a finished drain covers, from every thread's list. How many. Takes the move lock: hold none. */
size_t hr_quarantine_release(struct hr_thread *t);
/* Takes the backing of a dead extent away; false = the driver refused, try again later. Takes the move lock: hold none. */
bool hr_quarantine_drop(struct hr_extent *e);
/* Whether anything waits, or is not quite back. */
bool hr_quarantine_any(void);
/* How much of that can at most be charged again, on all GPUs together. Locks: every thread's list (HR_RANK_QUEUE), in turn. */
size_t hr_quarantine_bytes(void);
/* Another number than before: something came back meanwhile. */
uint64_t hr_quarantine_released(void);
/* At once, whatever was submitted: for a context that is gone. */
void hr_quarantine_release_one(struct hr_thread *t, CUdeviceptr address);

#endif
