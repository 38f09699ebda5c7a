/*
 * Whether headroom takes part, and the two ends of its life: after the job's cuInit, and at exit.
 *
 * The library is transparent (every call goes straight to the driver) before cuInit has succeeded, when HEADROOM_DISABLE is set,
 * in a forked child, and when start-up failed. Calls that the driver makes to exported names, and calls of our own threads, pass
 * straight through in any state.
 */
#ifndef HR_SHIM_SHIM_H
#define HR_SHIM_SHIM_H

#include <stdatomic.h>
#include <stdbool.h>

#include "driver/driver.h"

enum hr_mode { HR_MODE_WAITING, HR_MODE_ACTIVE, HR_MODE_OFF };

extern _Atomic int hr_mode_now HR_HIDDEN;

/* > 0 while this thread is inside a real driver call made by us, and for good on our own threads. */
extern _Thread_local int hr_depth __attribute__((tls_model("initial-exec"))) HR_HIDDEN;

/* Whether headroom serves this process now. */
static inline bool hr_active(void)
{
    return atomic_load_explicit(&hr_mode_now, memory_order_acquire) == HR_MODE_ACTIVE;
}

/* Whether a call that returns to pc has to go straight to the driver. */
static inline bool hr_passes(const void *pc)
{
    return __builtin_expect(!hr_active() || hr_depth > 0 || hr_driver_holds(pc), 0);
}

/* First line of a hook: HR_PASS(cuMemFree_v2, dptr); returns the driver's own answer where headroom takes no part. */
#define HR_PASS(name, ...)                                                                                             \
    do {                                                                                                               \
        if (hr_passes(__builtin_return_address(0)))                                                                    \
            return hr_drv.name(__VA_ARGS__);                                                                           \
    } while (0)

/* Around code of ours that calls the driver, so that what the driver calls back passes: HR_ENTER(); ... HR_LEAVE(); */
#define HR_ENTER() ((void)++hr_depth)
#define HR_LEAVE() ((void)--hr_depth)
/* The same for the rest of the enclosing block, whichever way it ends: HR_INSIDE(); */
static inline void hr_leave_block(const int *unused)
{
    (void)unused;
    HR_LEAVE();
}
#define HR_INSIDE() __attribute__((cleanup(hr_leave_block), unused)) int hr_inside_ = (HR_ENTER(), 0)

/*
 * Define a hook. Its row HOOK(name, GROUP) stands in hooks.def, its prototype in the generated hr_hooks.h; the exported name is an
 * alias of the hidden body: HR_HOOK(cuMemFree_v2)(CUdeviceptr dptr) { ... }
 */
#define HR_HOOK(name)                                                                                                  \
    extern __typeof__(name) name __attribute__((alias("hk_" #name), visibility("default")));                           \
    CUresult hk_##name

/*
 * The core's ends, implemented by src/residency.
 * hr_core_init: after the first cuInit that succeeded, with hr_depth > 0. Anything but CUDA_SUCCESS makes the library transparent
 * for good; it says why itself. hr_core_exit: at exit, within 100 ms, no driver call: park the workers, close the logs.
 */
CUresult hr_core_init(void) HR_HIDDEN;
void hr_core_exit(void) HR_HIDDEN;
/* In a forked child of a process that it served: gives up what it inherited. Async-signal-safe. */
void hr_core_forked(void) HR_HIDDEN;

/* The address range of all windows, told by the core once it is reserved; REFUSE rows go by it. */
extern _Atomic CUdeviceptr hr_window_base HR_HIDDEN;
extern _Atomic size_t hr_window_bytes HR_HIDDEN;
void hr_shim_set_windows(CUdeviceptr base, size_t bytes);
static inline bool hr_window_holds(CUdeviceptr address)
{
    return address - atomic_load_explicit(&hr_window_base, memory_order_relaxed) <
           atomic_load_explicit(&hr_window_bytes, memory_order_acquire);
}

/* After a cuInit that succeeded: starts the core, once; a forked child of a process that used CUDA stays transparent. */
void hr_shim_start(void);

/* Version of this library, exported; also how another copy of it is told from a driver. */
const char *headroom_version(void);

/* Turn headroom off for good (an internal failure before anything was served). Says why in one line. */
void hr_shim_turn_off(const char *why);

/* Whether this process is a fork of one that had CUDA in use. */
bool hr_shim_is_child(void);

#endif
