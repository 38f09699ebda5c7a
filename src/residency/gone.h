/* What happens to a context's memory when the context ends. */
#ifndef HR_RESIDENCY_GONE_H
#define HR_RESIDENCY_GONE_H

#include "driver/driver.h"

struct hr_gone {
    CUcontext handle; /* NULL = none of ours */
};
/* Before the driver's call. */
struct hr_gone hr_context_ending(CUcontext handle);
struct hr_gone hr_primary_ending(CUdevice device);
/* After it, with its answer r, which is returned: where the context is gone, so are its allocations, at once (the driver
 * has waited for their work). */
CUresult hr_context_ended(const struct hr_gone *gone, CUresult r);
/* The same after a release of a primary context: gone only if that was the last reference. */
CUresult hr_primary_released(const struct hr_gone *gone, CUdevice device, CUresult r);

#endif
