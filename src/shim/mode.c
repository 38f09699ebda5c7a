#include "shim/shim.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/config.h"
#include "base/lock.h"
#include "base/log.h"
#include "shim/refuse.h"

_Atomic int hr_mode_now = HR_MODE_WAITING;
_Thread_local int hr_depth;
_Atomic CUdeviceptr hr_window_base;
_Atomic size_t hr_window_bytes;
static _Atomic bool child;

/* One starter; held during hr_core_init, which calls the driver but opens no library. */
static struct hr_mutex start_lock = HR_MUTEX_INIT(HR_RANK_START, "start");

__attribute__((visibility("default"))) const char *headroom_version(void)
{
    return HR_VERSION;
}

bool hr_shim_is_child(void)
{
    return atomic_load_explicit(&child, memory_order_relaxed);
}

void hr_shim_turn_off(const char *why)
{
    if (atomic_exchange(&hr_mode_now, HR_MODE_OFF) != HR_MODE_OFF)
        hr_log(HR_LOG_WARN, "standing aside: %s", why);
}

void hr_shim_set_windows(CUdeviceptr base, size_t bytes)
{
    atomic_store_explicit(&hr_window_base, base, memory_order_relaxed);
    atomic_store_explicit(&hr_window_bytes, bytes, memory_order_release);
}

/*
 * The driver does not survive a fork, so neither do we: in the child every call goes to the driver, which answers as it would
 * without us. No prepare handler: a fork must never wait for us.
 */
static void after_fork_in_child(void)
{
    atomic_store_explicit(&hr_mode_now, HR_MODE_OFF, memory_order_relaxed);
    atomic_store_explicit(&child, true, memory_order_relaxed);
    hr_core_forked();
}

static void at_exit(void)
{
    if (!hr_active())
        return;
    HR_INSIDE();
    hr_core_exit();
}

void hr_shim_start(void)
{
    if (atomic_load_explicit(&hr_mode_now, memory_order_acquire) != HR_MODE_WAITING)
        return;
    hr_mutex_lock(&start_lock);
    if (atomic_load_explicit(&hr_mode_now, memory_order_acquire) == HR_MODE_WAITING) {
        HR_INSIDE();
        if (hr_config()->disable)
            atomic_store(&hr_mode_now, HR_MODE_OFF);
        else if (pthread_atfork(NULL, NULL, after_fork_in_child) != 0 || hr_core_init() != CUDA_SUCCESS ||
                 atexit(at_exit) != 0)
            hr_shim_turn_off("start-up failed");
        else
            atomic_store_explicit(&hr_mode_now, HR_MODE_ACTIVE, memory_order_release);
    }
    hr_mutex_unlock(&start_lock);
}

CUresult hr_refuse(enum hr_function fn)
{
    static atomic_flag said[HR_FN_COUNT];
    if (!atomic_flag_test_and_set_explicit(&said[fn], memory_order_relaxed))
        hr_log(HR_LOG_WARN,
               "%s is not served for memory of headroom's windows in this version: CUDA_ERROR_NOT_SUPPORTED",
               hr_driver_name(fn));
    return CUDA_ERROR_NOT_SUPPORTED;
}
