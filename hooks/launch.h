/* Launches of kernels, in whichever way they are made. */
#ifndef HR_HOOKS_LAUNCH_H
#define HR_HOOKS_LAUNCH_H

#include "driver/driver.h"

struct hr_launch {
    CUfunction function;
    void **params; /* as the launching functions take them; both NULL: no parameters */
    void **extra;
    CUstream stream;
    bool per_thread;
    const void *arguments; /* of the real call */
    CUresult (*real)(const struct hr_launch *l);
    const struct hr_launch *also; /* kernels that the same call launches; their own `real` is not called */
};

/*
 * Makes what the kernels name accessible and makes the call. Returns what it returned, or OUT_OF_MEMORY where not all of it can be made accessible.
 * Locks: takes the move lock unless everything is in place; hold none, and no submission.
 */
CUresult hr_launch(const struct hr_launch *l) HR_HIDDEN;

#endif
