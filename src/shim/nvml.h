/*
 * The real NVML's functions, for the forwarders that this library exports under their names (nvml_entries.S) and for hooks of them (hooks/nvml.c).
 */
#ifndef HR_SHIM_NVML_H
#define HR_SHIM_NVML_H

#include "driver/driver.h"

enum hr_nvml_function {
#define NVML(name) HR_NVML_##name,
#define NVML_HOOK(name) HR_NVML_##name,
#include "nvml.def"
#undef NVML
#undef NVML_HOOK
    HR_NVML_COUNT
};

/* Filled at the first call of any. What the real one lacks gives NVML's code for that; where there is none, that for a missing library. */
extern void *_Atomic hr_nvml_real[HR_NVML_COUNT] HR_HIDDEN;
void hr_nvml_load(void) HR_HIDDEN;

/* The real function; loads the library if need be. Any thread; no lock of ours. */
void *hr_nvml_address(enum hr_nvml_function fn) HR_HIDDEN;

#endif
