/*
 * The GPUs of the process: numbers, sizes, caps, and what is left of VRAM after contexts and modules.
 */
#ifndef HR_RESIDENCY_GPU_H
#define HR_RESIDENCY_GPU_H

#include "driver/driver.h"

/* Asks the driver for all GPUs, reserves the windows, sets up ledger and tiers. Errors: the driver's; NOT_SUPPORTED where a GPU
 * has no virtual memory management. */
CUresult hr_gpu_start(void);

unsigned hr_gpu_count(void);
int hr_gpu_of_device(CUdevice device); /* -1 = not ours */
CUdevice hr_gpu_device(unsigned gpu);

/* The virtual capacity: what cuMemGetInfo and cuDeviceTotalMem answer. */
size_t hr_gpu_total_bytes(unsigned gpu);
size_t hr_gpu_free_bytes(unsigned gpu);

/* A context was seen for the first time (it is current): measures what contexts took, and lowers the VRAM limit. */
void hr_gpu_context_made(unsigned gpu);
/*
 * Around module loads and other calls that take VRAM behind the hooks: VRAM that is free or in chunks of ours (which other
 * threads take meanwhile; 0 = the driver cannot tell) before, and after it the difference is charged (bytes may have been freed: then the limit rises again).
 */
size_t hr_gpu_free_beside_ours(unsigned gpu);
/* What one more context may take, at most. */
size_t hr_gpu_context_bytes(unsigned gpu);
/* Keeps so much VRAM out of our use (hold), until it is let go: what is moved out meanwhile goes back to the driver, and no
 * other thread takes it. */
void hr_gpu_hold(unsigned gpu, size_t bytes, bool hold);
void hr_gpu_charge_overhead(unsigned gpu, size_t free_before, size_t free_after);

#endif
