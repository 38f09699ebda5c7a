#include "residency/migrate.h"

#include "residency/trip.h"
#include "stats/stats.h"

#include <stdlib.h>

static CUresult mover_stream(struct hr_context *context)
{
    return context->mover ? CUDA_SUCCESS : hr_drv.cuStreamCreate(&context->mover, CU_STREAM_NON_BLOCKING);
}

/* ---- between GPUs ---- */

/* Some of a batch, from one GPU to another. The addresses are by number of the chunk in it. */
struct flight {
    struct hr_trips trips;
    CUdeviceptr from[HR_MOVE_MAX], to[HR_MOVE_MAX];
    struct flight *next;
};

static bool is_between_gpus(const struct hr_move *move)
{
    const struct hr_phys *from = move->chunk->phys;
    return from->tier != HR_TIER_HOST && move->to->tier != HR_TIER_HOST && from->gpu != move->to->gpu;
}

/* All of moves[first..] that go the same way and are not under way yet. NULL: none of them is better off here. */
static struct flight *prepare(unsigned window_gpu, const struct hr_move *moves, unsigned count, unsigned first,
                              const bool *under_way, uint64_t *members_out)
{
    struct hr_part parts[HR_MOVE_MAX];
    const struct hr_phys *from = moves[first].chunk->phys, *to = moves[first].to;
    struct flight *flight = calloc(1, sizeof *flight);
    unsigned n = 0;
    *members_out = 0;
    for (unsigned i = first; flight && i < count; i++) {
        if (under_way[i] || !is_between_gpus(&moves[i]) || moves[i].chunk->phys->gpu != from->gpu ||
            moves[i].to->gpu != to->gpu)
            continue;
        flight->from[n] = moves[i].chunk->phys->alias;
        flight->to[n] = moves[i].to->alias;
        parts[n] = (struct hr_part){(uint64_t)n << hr_space.chunk_shift, hr_chunk_bytes()};
        *members_out |= UINT64_C(1) << i;
        n++;
    }
    if (!flight)
        return NULL;
    struct hr_transfer asked = {.from_gpu = from->gpu,
                                .to_gpu = to->gpu,
                                .bytes = (size_t)n << hr_space.chunk_shift,
                                .from_chunks = flight->from,
                                .to_chunks = flight->to,
                                .window_gpu = window_gpu};
    if (hr_trips_plan(&flight->trips, &asked, parts, n, 0, true))
        return flight;
    free(flight);
    return NULL;
}

/* Begins what goes better over the fabric's paths; under_way says what that is. The first error. */
static CUresult begin(unsigned window_gpu, const struct hr_move *moves, unsigned count, bool *under_way,
                      struct flight **flights_out)
{
    CUresult r = CUDA_SUCCESS;
    for (unsigned i = 0; i < count && r == CUDA_SUCCESS; i++) {
        uint64_t members;
        if (under_way[i] || !is_between_gpus(&moves[i]))
            continue;
        struct flight *flight = prepare(window_gpu, moves, count, i, under_way, &members);
        if (!flight)
            continue;
        flight->next = *flights_out;
        *flights_out = flight;
        r = hr_trips_submit(&flight->trips, NULL);
        for (unsigned k = i; k < count; k++)
            under_way[k] = under_way[k] || members >> k & 1;
    }
    return r;
}

static CUresult finish(struct flight *flights)
{
    CUresult first = CUDA_SUCCESS;
    while (flights) {
        struct flight *next = flights->next;
        CUresult r = hr_trips_wait(&flights->trips);
        first = first == CUDA_SUCCESS ? r : first;
        hr_trips_finish(&flights->trips);
        free(flights);
        flights = next;
    }
    return first;
}

/* ---- all ---- */

CUresult hr_migrate(struct hr_context *context, const struct hr_move *moves, unsigned count)
{
    bool under_way[HR_MOVE_MAX] = {false};
    struct flight *flights = NULL;
    CUresult r = mover_stream(context);
    if (r == CUDA_SUCCESS)
        r = begin(context->gpu, moves, count, under_way, &flights);
    for (unsigned i = 0; i < count && r == CUDA_SUCCESS; i++) {
        const struct hr_phys *from = moves[i].chunk->phys;
        if (under_way[i])
            continue;
        r = hr_drv.cuMemcpyAsync(moves[i].to->alias, from->alias, hr_chunk_bytes(), context->mover);
        if (r == CUDA_SUCCESS && is_between_gpus(&moves[i]))
            hr_stats_sent(from->gpu, moves[i].to->gpu, HR_SENT_DIRECT, hr_chunk_bytes());
    }
    CUresult done = finish(flights);
    r = r == CUDA_SUCCESS ? done : r;
    done = context->mover ? hr_drv.cuStreamSynchronize(context->mover) : r;
    return r == CUDA_SUCCESS ? done : r;
}

bool hr_migrate_over_links(const struct hr_move *moves, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        if (moves[i].to->tier == HR_TIER_PEER || moves[i].chunk->phys->tier == HR_TIER_PEER)
            return true;
    return false;
}
