/* Parameter layouts of kernels, from the driver or the image, cached per function. */
#ifndef HR_RESIDENCY_PARAMS_H
#define HR_RESIDENCY_PARAMS_H

#include "driver/driver.h"

struct hr_params {
    bool known;
    uint32_t count;
    struct hr_params *next_retired; /* params.c */
    struct {
        uint32_t offset_bytes, size_bytes;
    } param[];
};
/*
 * The layout of a function (or of a CUkernel passed as one). NULL where memory is out or the driver
 * failed to tell, which is asked again at the next call; known = false where this
 * driver cannot tell (before 12.4) and the image did not either (residency/layout.h). Valid until the process ends. Locks: HR_RANK_REGISTRY at the first look-up of a
 * function on a thread.
 */
const struct hr_params *hr_params_of(CUfunction function);
/* The handle is a CUkernel, which the job may pass where a CUfunction is expected. */
void hr_params_note_kernel(CUkernel kernel);
/* Forgets all layouts: handles may be used again. */
void hr_params_forget(void);

#endif
