/* The process has one fabric, so the state is the process's. It is made pair by pair, since few pairs of a machine ever exchange anything. */
#include "fabric/probing.h"

#include "base/lock.h"
#include "stats/stats.h"

#include <errno.h>
#include <stdlib.h>

#define MOST_GPUS 64 /* relay masks have no more bits */

static struct hr_mutex probing_lock = HR_MUTEX_INIT(HR_RANK_REGISTRY - 1, "routes by probing");
static struct hr_probed *pairs[MOST_GPUS][MOST_GPUS]; /* guarded by probing_lock */

static struct hr_probed *pair_locked(uint32_t from, uint32_t to) HR_REQUIRES(probing_lock)
{
    struct hr_probed **pair = &pairs[from][to];

    if (!*pair)
        *pair = calloc(1, sizeof **pair);
    if (*pair && (*pair)->serial == 0) {
        (*pair)->source = from;
        (*pair)->destination = to;
    }
    return *pair;
}

static int choose_locked(struct hr_probed *pair, struct hr_fabric *fabric, const struct hr_fabric_view *view,
                         uint64_t relay_mask, struct hr_routes *routes_out) HR_REQUIRES(probing_lock)
{
    uint32_t allowed = 0;
    int rc = pair->serial < view->serial ? hr_probed_renew(pair, view->graph, view->serial) : 0;

    if (rc != 0)
        return rc == -ENETUNREACH ? -EAGAIN : rc;
    if (pair->serial != view->serial) /* somebody has a newer one */
        return -EAGAIN;
    for (uint32_t i = 0; i < HR_PROBED_ROUTES; i++)
        if (pair->route[i].legs > 0 && hr_fabric_allows(fabric, &pair->route[i], relay_mask))
            allowed |= 1u << i;
    return hr_probed_choose(pair, allowed, routes_out);
}

int hr_probing_route(struct hr_fabric *fabric, const struct hr_fabric_view *view, uint32_t from_gpu, uint32_t to_gpu,
                     uint64_t relay_mask, struct hr_routes *routes_out)
{
    uint64_t switches = 0;
    int rc = -ENOMEM;

    if (from_gpu >= MOST_GPUS || to_gpu >= MOST_GPUS)
        return -EAGAIN;
    hr_mutex_lock(&probing_lock);
    struct hr_probed *pair = pair_locked(from_gpu, to_gpu);
    if (pair) {
        switches = pair->probe.switches;
        rc = choose_locked(pair, fabric, view, relay_mask, routes_out);
        switches = pair->probe.switches - switches;
    }
    hr_mutex_unlock(&probing_lock);
    hr_stat_add(hr_thread_self(), HR_STAT_route_switches, switches);
    return rc;
}

void hr_probing_took(const struct hr_fabric_view *view, const struct hr_routes *routes,
                     const struct hr_probed_sample *sample)
{
    uint64_t switches = 0;

    if (routes->source >= MOST_GPUS || routes->destination >= MOST_GPUS)
        return;
    hr_mutex_lock(&probing_lock);
    struct hr_probed *pair = pairs[routes->source][routes->destination];
    if (pair && pair->serial == view->serial) { /* else it was over other links */
        switches = pair->probe.switches;
        hr_probed_note(pair, &routes->path[0], sample);
        switches = pair->probe.switches - switches;
    }
    hr_mutex_unlock(&probing_lock);
    hr_stat_add(hr_thread_self(), HR_STAT_route_switches, switches);
}
