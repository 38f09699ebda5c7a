/* The clocks of host threads. Each is its thread's own: nothing here needs a lock. */
#ifndef SG_TIMECALL_H
#define SG_TIMECALL_H

#include "simgpu/sim.h"

#define SG_COST_CLASSES(X) X(other) X(setup) X(launch) X(copy) X(order) X(wait) X(query) X(memory)

uint64_t sg_thread_clock_ns(void);
void sg_thread_clock_set(uint64_t ns);
void sg_thread_clock_join(uint64_t ns); /* waits until then, if it is not over */
uint64_t sg_latest_clock_ns(void);      /* of all threads */
void sg_call_report(FILE *f);

#endif
