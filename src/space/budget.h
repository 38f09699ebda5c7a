/* How much host memory may hold moved-out bytes. */
#ifndef HR_SPACE_BUDGET_H
#define HR_SPACE_BUDGET_H

#include <stddef.h>

/* What the machine has free now: the kernel's MemAvailable, less where a control group allows less. */
size_t hr_budget_available_bytes(void);
/*
 * HEADROOM_HOST where set (percent: of what is available), else 80 % of what is available and not promised by other processes
 * of the user (share.h). Never more than is available.
 */
size_t hr_budget_host_bytes(void);

#endif
