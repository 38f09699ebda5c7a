#include "policy/policy.h"

/*
 * What a GPU has allocated it may use at any moment, so only what lies beyond counts as free to lend; no clock is asked whether it is idle. An
 * eighth of its VRAM stays free besides, for what comes next: the first allocations of a GPU that wakes up, and relays.
 */
#define RESERVE_SHARE 8

size_t hr_policy_lend_room(const struct hr_policy_lender *lender)
{
    size_t kept = lender->limit_chunks / RESERVE_SHARE + 1, own = lender->charged_chunks + kept;
    size_t beyond = lender->limit_chunks > own ? lender->limit_chunks - own : 0;
    size_t room = beyond > lender->lent_chunks ? beyond - lender->lent_chunks : 0;
    size_t spare = lender->free_chunks > kept ? lender->free_chunks - kept : 0;
    return room < spare ? room : spare;
}

/* A quarter faster, so that rates that were measured at different moments do not decide. */
bool hr_policy_lend_pays(int64_t link_mbps, int64_t host_mbps)
{
    return link_mbps > 0 && (host_mbps <= 0 || link_mbps * 4 >= host_mbps * 5);
}
