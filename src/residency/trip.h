/*
 * One transfer under way: its routes and plan, and for each of the plan's paths what its legs run on. For transfer.c.
 * Locks of all functions: HR_RANK_MOVE + 1 and above; HR_RANK_START + 1 where links are blocked, which moves do not do.
 */
#ifndef HR_RESIDENCY_TRIP_H
#define HR_RESIDENCY_TRIP_H

#include "fabric/machine.h"
#include "fabric/pipeline.h"
#include "residency/relay.h"
#include "residency/track.h"
#include "residency/transfer.h"

#define HR_TRIP_LEGS 18 /* 16 GPUs in a row, and the last step from a block on the destination */
#define HR_TRIP_SLOTS 3 /* chunks that a relay holds for a path */

struct hr_trip {
    unsigned legs;
    unsigned gpu[HR_TRIP_LEGS]; /* that does the leg */
    struct hr_track *track[HR_TRIP_LEGS];
    struct hr_relay *relay[HR_TRIP_LEGS]; /* that the leg writes; the last one has none */
    size_t slot_bytes;
    uint32_t chunks;                                  /* begun so far */
    const struct hr_plan_chunk *recent[HR_TRIP_LEGS]; /* the latest of them: chunk n at n % HR_TRIP_LEGS */
};

struct hr_trips {
    struct hr_transfer asked;
    uint32_t ahead; /* transfers under way that the same thread issued */
    struct hr_fabric *fabric;
    const struct hr_fabric_view *view;
    enum hr_crowd crowd; /* when it was planned */
    struct hr_routes routes;
    struct hr_plan plan;
    struct hr_trip *trip; /* one a path of the plan */
    bool charged;
    bool timed;     /* HEADROOM_ROUTES=probe: over one path, chosen by how long earlier ones took */
    double took_ns; /* so long, once that is known */
};

/*
 * Plans the extents (offsets within the transfer; of moves, one a chunk) and gets everything that the plan needs. only_if_worth: false where the driver's own copy is as
 * good. false also where there is no way, or no memory for it; then nothing is kept. finish takes what plan filled; nothing may run on
 * it any more.
 */
bool hr_trips_plan(struct hr_trips *trips, const struct hr_transfer *asked, const struct hr_part *extents,
                   uint32_t count, uint32_t ahead, bool only_if_worth);
void hr_trips_finish(struct hr_trips *trips);

/* Submits all of it behind `before` (NULL = nothing to wait for), and records the ends. After an error some of it may run. */
CUresult hr_trips_submit(struct hr_trips *trips, CUevent before);
/* Makes a stream of the job go on behind the ends. Its context is current. */
CUresult hr_trips_follow(const struct hr_trips *trips, CUstream stream, bool per_thread);
/* Waits for all of it. The first error that was told, if any. */
CUresult hr_trips_wait(const struct hr_trips *trips);
/* Whether all of it is done; never waits. An error that was told goes to *error_out. */
bool hr_trips_rest(struct hr_trips *trips, CUresult *error_out);
/* All of it is done, and went well: where it is timed, what it took helps to choose the path of later ones. Never waits. */
void hr_trips_tell_time(const struct hr_trips *trips);
/* Whether it runs in that context. */
bool hr_trips_use(const struct hr_trips *trips, CUcontext context);

/* A context that may work on the GPU for others, or NULL: the job's, or one of our own where HEADROOM_PEERS=all. */
CUcontext hr_trip_context(unsigned gpu);

#endif
