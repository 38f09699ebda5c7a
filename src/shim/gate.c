#include "shim/gate.h"

#include "base/clock.h"

#include <limits.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

/* ThreadSanitizer cannot see membarrier's ordering. */
#if defined(__SANITIZE_THREAD__)
#define GATE_NO_MEMBARRIER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define GATE_NO_MEMBARRIER 1
#endif
#endif

struct hr_gate hr_gate_state;

void hr_gate_init(void)
{
#ifndef GATE_NO_MEMBARRIER
    if (syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0 &&
        syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) == 0)
        atomic_store(&hr_gate_state.expedited, 1);
#endif
}

static void process_barrier(void)
{
    if (atomic_load_explicit(&hr_gate_state.expedited, memory_order_relaxed))
        syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
}

void hr_gate_wait(struct hr_thread *t)
{
    atomic_store_explicit(&t->inflight, 0, memory_order_release);
    while (atomic_load(&hr_gate_state.closed))
        syscall(SYS_futex, &hr_gate_state.closed, FUTEX_WAIT_PRIVATE, 1, NULL, NULL, 0);
}

void hr_gate_open(void)
{
    atomic_store(&hr_gate_state.closed, 0);
    syscall(SYS_futex, &hr_gate_state.closed, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

bool hr_gate_close(uint64_t deadline_ns)
{
    atomic_store(&hr_gate_state.closed, 1);
    process_barrier();
    struct hr_thread *self = hr_thread_current_slot;
    for (struct hr_thread *t = hr_thread_first(); t; t = t->next) {
        unsigned spins = 0;
        while (t != self && atomic_load_explicit(&t->inflight, memory_order_seq_cst)) {
            if (++spins % 64 != 0)
                continue;
            if (hr_clock_ns() >= deadline_ns) {
                hr_gate_open();
                return false;
            }
            sched_yield();
        }
    }
    return true;
}

uint64_t hr_gate_entered(void)
{
    uint64_t sum = 0;
    for (struct hr_thread *t = hr_thread_first(); t; t = t->next)
        sum += atomic_load_explicit(&t->entered, memory_order_relaxed);
    return sum;
}

bool hr_gate_snapshot(uint64_t *entered_out)
{
    uint64_t sum = 0;
    for (struct hr_thread *t = hr_thread_first(); t; t = t->next) {
        uint64_t done = atomic_load_explicit(&t->completed, memory_order_acquire);
        if (atomic_load_explicit(&t->inflight, memory_order_seq_cst) ||
            atomic_load_explicit(&t->entered, memory_order_relaxed) != done)
            return false;
        sum += done;
    }
    *entered_out = sum;
    return true;
}
