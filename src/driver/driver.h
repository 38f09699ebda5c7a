/*
 * The real CUDA driver: finding it, and calling it.
 *
 * hr_drv has one function pointer per function of cuda.h and every one may be called at any time. Before the driver is loaded it
 * points at a stub that loads the driver and goes on to the real function; what the real driver does not have returns
 * CUDA_ERROR_NOT_SUPPORTED, and everything returns CUDA_ERROR_NO_DEVICE where no driver was found.
 */
#ifndef HR_DRIVER_DRIVER_H
#define HR_DRIVER_DRIVER_H

#include <cuda.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Declared in cudaProfiler.h, exported by the driver. The third is an enum there. */
CUresult cuProfilerInitialize(const char *config_file, const char *output_file, int output_mode);
CUresult cuProfilerStart(void);
CUresult cuProfilerStop(void);

#define HR_HIDDEN __attribute__((visibility("hidden")))

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
/* One row HR_FUNCTION(name) per function of cuda.h, in the header's order; made by hooks/generate.py. */
enum hr_function {
#define HR_FUNCTION(name) HR_FN_##name,
#include "hr_functions.def"
#undef HR_FUNCTION
    HR_FN_COUNT
};

/*
 * Atomic, because the first calls of several threads may bind at the same time; a load is a plain load on x86-64. Never assign.
 */
struct hr_driver {
#define HR_FUNCTION(name) __typeof__(&name) _Atomic name;
#include "hr_functions.def"
#undef HR_FUNCTION
};
#pragma GCC diagnostic pop
extern struct hr_driver hr_drv HR_HIDDEN;

/* What a slot of a function that the real driver lacks points at. */
CUresult hr_driver_absent(void) HR_HIDDEN;

/* Whether the real driver has the function; loads it if need be. HR_HAS(cuMemCreate) */
#define HR_HAS(name) (hr_driver_load() && (void *)hr_drv.name != (void *)hr_driver_absent)

/*
 * Find and open the real driver, once; true when there is one. Safe on any thread and inside constructors: no lock is held while
 * the loader works. Order: HEADROOM_DRIVER, LD_LIBRARY_PATH, the loader's cache, the usual folders; this library itself and other
 * copies of it are skipped.
 */
bool hr_driver_load(void);

/* What cuDriverGetVersion of the real driver says (12040, ...); 0 where there is none. */
int hr_driver_version(void);

/* The path it was opened by; "" before it is loaded, or where there is none. */
const char *hr_driver_path(void);

/* By index, for tables: the name of a function, and the address in its slot (NULL where the driver lacks it or is not loaded). */
const char *hr_driver_name(enum hr_function fn);
void *hr_driver_address(enum hr_function fn);

/* The function with exactly this ABI name, or HR_FN_COUNT. */
enum hr_function hr_driver_find(const char *name);

/* The address range of the real driver's file; both 0 until it is loaded. */
extern _Atomic uintptr_t hr_driver_low HR_HIDDEN, hr_driver_high HR_HIDDEN;

/* Whether the address is code of the real driver's own file: a call from there is the driver calling itself. */
static inline bool hr_driver_holds(const void *pc)
{
    return (uintptr_t)pc - atomic_load_explicit(&hr_driver_low, memory_order_relaxed) <
           atomic_load_explicit(&hr_driver_high, memory_order_relaxed) -
               atomic_load_explicit(&hr_driver_low, memory_order_relaxed);
}

#endif
