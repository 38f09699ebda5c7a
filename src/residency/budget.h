/* How much host memory may hold moved-out bytes. */
#ifndef HR_RESIDENCY_BUDGET_H
#define HR_RESIDENCY_BUDGET_H

#include <stddef.h>

/*
 * HEADROOM_HOST where set (percent: of what is available), else 80 % of what is available: the kernel's MemAvailable, less
 * where a control group allows less. Never more than is available.
 */
size_t hr_budget_host_bytes(void);

#endif
