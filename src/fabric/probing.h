/*
 * HEADROOM_ROUTES=probe: for each two GPUs of the process's fabric, in each direction, what transfers have shown of the routes between them
 * (probed.h). Any thread. Locks: HR_RANK_REGISTRY - 1 and above, for a moment; the first transfer between two GPUs, and each that is the
 * first after a change of links, finds the routes under it.
 */
#ifndef HR_FABRIC_PROBING_H
#define HR_FABRIC_PROBING_H

#include "fabric/machine.h"
#include "fabric/probed.h"

/*
 * The one path of a transfer, over GPUs of relay_mask (as hr_fabric_route has it), chosen by what earlier transfers took. -EAGAIN: there is nothing
 * to choose (one path at most, or the links have just changed), hr_fabric_route knows as well; -ENOMEM. The caller finishes routes_out. Each
 * switch to another path is counted (HR_STAT_route_switches).
 */
int hr_probing_route(struct hr_fabric *fabric, const struct hr_fabric_view *view, uint32_t from_gpu, uint32_t to_gpu,
                     uint64_t relay_mask, struct hr_routes *routes_out);

/* What a transfer with that one path took. */
void hr_probing_took(const struct hr_fabric_view *view, const struct hr_routes *routes,
                     const struct hr_probed_sample *sample);

#endif
