/* The real NVML: finding and opening it. */
#ifndef HR_DRIVER_NVML_H
#define HR_DRIVER_NVML_H

/*
 * The real libnvidia-ml.so.1: the one beside the driver, else the loader's; NULL: there is none. Opened at the first call and kept. Any thread; no lock
 * is held while the loader works.
 */
void *hr_nvml_library(void) __attribute__((visibility("hidden")));

#endif
