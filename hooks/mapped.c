#include "copy.h"

#include "residency/access.h"
#include "residency/context.h"
#include "tier/tier.h"

#include <stdlib.h>

static bool all_mapped(const struct hr_range *ranges, unsigned count)
{
    for (unsigned i = 0; i < count; i++) {
        if (ranges[i].bytes == 0 || !hr_space_owns(ranges[i].address))
            continue;
        const struct hr_chunk *c = hr_space_chunk(ranges[i].address);
        const struct hr_chunk *last = hr_space_chunk(ranges[i].address + ranges[i].bytes - 1);
        for (; c <= last; c++)
            if (!atomic_load_explicit(&c->mapped, memory_order_acquire))
                return false;
    }
    return true;
}

static bool all_allocated(const struct hr_range *ranges, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        if (hr_space_owns(ranges[i].address) && !hr_space_holds(ranges[i].address, ranges[i].bytes))
            return false;
    return true;
}

/* Makes them mapped; *set_io then holds what is pinned meanwhile. */
static CUresult prepare(struct hr_thread *t, const struct hr_range *ranges, unsigned count,
                        struct hr_working_set *set_io)
{
    set_io->count = 0;
    set_io->everything = false;
    set_io->user = -1;
    if (hr_tier_host_mappable(0)) {
        CUresult r = CUDA_SUCCESS;
        for (unsigned i = 0; i < count && r == CUDA_SUCCESS; i++)
            if (ranges[i].bytes > 0 && hr_space_owns(ranges[i].address))
                r = hr_access_back_range(t, ranges[i].address, ranges[i].bytes);
        return r;
    }
    hr_gate_enter(t); /* lists of hidden pointers may be read only in a submission */
    for (unsigned i = 0; i < count; i++)
        if (ranges[i].bytes > 0 && hr_space_owns(ranges[i].address))
            hr_working_set_add(set_io, ranges[i].address);
    hr_gate_leave(t);
    return hr_access_prepare(t, set_io);
}

CUresult hr_mapped_begin(struct hr_thread *t, const struct hr_range *ranges, unsigned count)
{
    struct hr_working_set *set = malloc(sizeof *set); /* the job's thread may have hardly more stack */
    CUresult r = !set                           ? CUDA_ERROR_OUT_OF_MEMORY
                 : all_allocated(ranges, count) ? CUDA_SUCCESS
                                                : CUDA_ERROR_INVALID_VALUE;
    bool ready = false;
    hr_context_current(); /* registers it: what a context does counts, also where it owns nothing */
    for (unsigned attempt = 0; attempt < 100 && r == CUDA_SUCCESS && !ready; attempt++) {
        r = prepare(t, ranges, count, set);
        if (r != CUDA_SUCCESS)
            break;
        hr_gate_enter(t);
        ready = all_mapped(ranges, count);
        if (ready)
            hr_gate_submit(t);
        else
            hr_gate_leave(t);
        if (set->count > 0) /* from here on the submission keeps it in place */
            hr_access_unpin(set);
    }
    free(set);
    return r == CUDA_SUCCESS && !ready ? CUDA_ERROR_OUT_OF_MEMORY : r;
}
