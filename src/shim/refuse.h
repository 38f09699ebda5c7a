/* What a REFUSE row of hooks.def does. */
#ifndef HR_SHIM_REFUSE_H
#define HR_SHIM_REFUSE_H

#include "shim/shim.h"

/* CUDA_ERROR_NOT_SUPPORTED, with one log line the first time it happens to this function. */
CUresult hr_refuse(enum hr_function fn) HR_HIDDEN;

#endif
