/*
 * The copies that prove and time a path, made by the process that `headroom topo --probe` is. It may hang in them, and is meant to be
 * ended by a timer then. Contexts stay until the process ends. GPUs are given by bus id. One thread. Locks: none.
 */
#ifndef HR_FABRIC_MEASURE_H
#define HR_FABRIC_MEASURE_H

#include "fabric/discover.h"

#define HR_MEASURE_MOST_WAIT_NS UINT64_C(3600000000000) /* the longest that one copy is given */

struct hr_measured {
    enum hr_pair_state state; /* HR_PAIR_UNPROVEN: no memory to try it with, or no such GPU */
    uint64_t mbps;            /* 0 = not measured */
    uint32_t start_ns;        /* of a path */
    uint64_t back_mbps;       /* of the way to the host: from it */
};

/* Makes contexts on both, so that what follows takes the time of copies alone. false: cannot be tried. */
bool hr_measure_prepare(const char *from, const char *to);

/* A patterned copy from one GPU to the other, read back through the host and compared; if it is right, timed copies. */
void hr_measure_path(const char *from, const char *to, struct hr_measured *measured_out);

/* After what was measured badly: whether this process can measure anything else. An error may have spoilt a context for good. */
bool hr_measure_go_on(const char *from, const char *to);

/* Timed copies to pinned host memory and back. */
void hr_measure_host(const char *gpu, struct hr_measured *measured_out);

#endif
