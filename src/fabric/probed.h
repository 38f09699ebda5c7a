/*
 * The ways from one GPU to another as alternatives, of which each transfer takes one, and what transfers have shown of them: for machines whose links
 * are not what they claim. Links say only which ways there are; how fast one is, its transfers tell.
 *
 * Pure: no clock, no allocation per transfer but the copy of the way that it takes. Errors are negative errno values. Locks: the caller's.
 */
#ifndef HR_FABRIC_PROBED_H
#define HR_FABRIC_PROBED_H

#include "fabric/probe.h"
#include "fabric/route.h"

#define HR_PROBED_ROUTES 8

struct hr_probed {
    uint32_t source, destination;           /* GPUs */
    uint64_t serial;                        /* of the state of the links that the routes are of; 0 = none yet */
    struct hr_path route[HR_PROBED_ROUTES]; /* legs = 0: none */
    struct hr_probe probe;                  /* its port i is route i; up where there is one */
};

/* What a transfer over one route took. */
struct hr_probed_sample {
    uint64_t bytes;
    uint64_t chunk_bytes; /* in pieces of which it went */
    uint32_t legs;        /* copies that each piece needed */
    double elapsed_ns;    /* from when the first could begin until the last was over */
};

/*
 * The routes between two GPUs by the links of the graph, which is state number `serial` (from 1) of them: the direct one, those of the maximum flow, and
 * those over one other GPU, the widest first, until there are HR_PROBED_ROUTES. What was known of a route stays while its links promise the same.
 * -ENETUNREACH: there is none. -ENOMEM: nothing changed. A zeroed struct with source and destination set is fine; so it is for finish.
 */
int hr_probed_renew(struct hr_probed *probed, const struct hr_graph *graph, uint64_t serial);
void hr_probed_finish(struct hr_probed *probed);

/*
 * The route of the next transfer, which may take those whose bit is set. -EAGAIN: these are fewer than two that are there, so that there is nothing to
 * choose; -ENOMEM. The caller finishes routes_out.
 */
int hr_probed_choose(struct hr_probed *probed, uint32_t allowed, struct hr_routes *routes_out);

/* What a transfer over that path took. A path that is none of the routes any more is passed over. */
void hr_probed_note(struct hr_probed *probed, const struct hr_path *path, const struct hr_probed_sample *sample);

#endif
