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
_Static_assert(HR_MOVE_MAX <= 64, "a bit a move");
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

/* The moves (a bit each) that go the same way as moves[first], which is the first of them. */
static uint64_t companions(const struct hr_move *moves, unsigned count, unsigned first)
{
    const struct hr_phys *from = moves[first].chunk->phys, *to = moves[first].to;
    uint64_t mask = 0;
    for (unsigned i = first; i < count; i++)
        if (is_between_gpus(&moves[i]) && moves[i].chunk->phys->gpu == from->gpu && moves[i].to->gpu == to->gpu)
            mask |= UINT64_C(1) << i;
    return mask;
}

/* Those moves as one transfer. NULL: they are as well off with the driver, or there is no memory. */
static struct flight *prepare(unsigned window_gpu, const struct hr_move *moves, uint64_t members)
{
    struct hr_part parts[HR_MOVE_MAX];
    const struct hr_move *first = &moves[__builtin_ctzll(members)];
    struct flight *flight = calloc(1, sizeof *flight);
    unsigned n = 0;
    if (!flight)
        return NULL;
    for (; members; members &= members - 1, n++) {
        const struct hr_move *move = &moves[__builtin_ctzll(members)];
        flight->from[n] = move->chunk->phys->alias;
        flight->to[n] = move->to->alias;
        parts[n] = (struct hr_part){(uint64_t)n << hr_space.chunk_shift, hr_chunk_bytes()};
    }
    struct hr_transfer asked = {.from_gpu = first->chunk->phys->gpu,
                                .to_gpu = first->to->gpu,
                                .bytes = (size_t)n << hr_space.chunk_shift,
                                .from_chunks = flight->from,
                                .to_chunks = flight->to,
                                .window_gpu = window_gpu};
    if (hr_trips_plan(&flight->trips, &asked, parts, n, 0, true))
        return flight;
    free(flight);
    return NULL;
}

/* Begins what goes better over the fabric's paths: those moves, a bit each, in *under_way_out. The first error. */
static CUresult begin(unsigned window_gpu, const struct hr_move *moves, unsigned count, uint64_t *under_way_out,
                      struct flight **flights_out)
{
    CUresult r = CUDA_SUCCESS;
    uint64_t looked_at = 0;
    for (unsigned i = 0; i < count && r == CUDA_SUCCESS; i++) {
        if (looked_at >> i & 1 || !is_between_gpus(&moves[i]))
            continue;
        uint64_t members = companions(moves, count, i);
        struct flight *flight = prepare(window_gpu, moves, members);
        looked_at |= members;
        if (!flight)
            continue;
        *under_way_out |= members;
        flight->next = *flights_out;
        *flights_out = flight;
        r = hr_trips_submit(&flight->trips, NULL);
    }
    return r;
}

static CUresult finish(struct flight *flights)
{
    CUresult first = CUDA_SUCCESS;
    while (flights) {
        struct flight *next = flights->next;
        CUresult r = hr_trips_wait(&flights->trips);
        if (r != CUDA_SUCCESS)
            first = hr_context_first_error(first, r);
        hr_trips_finish(&flights->trips);
        free(flights);
        flights = next;
    }
    return first;
}

/* ---- all ---- */

CUresult hr_migrate(struct hr_context *context, const struct hr_move *moves, unsigned count)
{
    uint64_t under_way = 0;
    struct flight *flights = NULL;
    CUresult r = mover_stream(context);
    if (r == CUDA_SUCCESS)
        r = begin(context->gpu, moves, count, &under_way, &flights);
    for (unsigned i = 0; i < count && r == CUDA_SUCCESS; i++) {
        const struct hr_phys *from = moves[i].chunk->phys;
        if (under_way >> i & 1)
            continue;
        r = hr_drv.cuMemcpyAsync(moves[i].to->alias, from->alias, hr_chunk_bytes(), context->mover);
        if (r == CUDA_SUCCESS && is_between_gpus(&moves[i]))
            hr_stats_sent(from->gpu, moves[i].to->gpu, HR_SENT_DIRECT, hr_chunk_bytes());
    }
    CUresult done = finish(flights);
    r = done != CUDA_SUCCESS ? hr_context_first_error(r, done) : r;
    done = context->mover ? hr_drv.cuStreamSynchronize(context->mover) : CUDA_SUCCESS;
    return done != CUDA_SUCCESS ? hr_context_first_error(r, done) : r;
}

bool hr_migrate_over_links(const struct hr_move *moves, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        if (moves[i].to->tier == HR_TIER_PEER || moves[i].chunk->phys->tier == HR_TIER_PEER)
            return true;
    return false;
}
