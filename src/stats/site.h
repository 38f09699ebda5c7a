/* Allocation sites, for the summary line: see stats.h for what the hooks call. */
#ifndef HR_STATS_SITE_H
#define HR_STATS_SITE_H

#include "base/callsite.h"
#include "stats/stats.h"

struct hr_site {
    struct hr_callsite where;
    _Atomic(uint64_t) hash; /* 0 = unused */
    _Atomic(uint64_t) allocations, bytes, live_bytes, peak_live_bytes, moved_out_bytes;
};
/* The sites with the most bytes, largest first; how many (at most `most`). */
size_t hr_site_top(struct hr_site **sites_out, size_t most);

#endif
