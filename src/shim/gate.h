/*
 * The submission gate: how a mover gets a moment in which no thread of the job is inside a submission.
 *
 * A submitting thread publishes its in-flight word, reads the gate, checks its working set, makes the real call and clears
 * the word: no lock and no shared cache line is written. The mover closes the gate, issues a process-wide barrier and waits
 * for the words. Every wait has a deadline, after which the gate opens again and the move is given up for now: a thread
 * that is stuck inside a submission may be waiting for one that the gate keeps out.
 *
 * With membarrier(2) the word is published by a plain store; where a sandbox lacks it (and under ThreadSanitizer, which
 * cannot see the system call), it is published sequentially consistent.
 */
#ifndef HR_SHIM_GATE_H
#define HR_SHIM_GATE_H

#include "base/thread.h"

struct hr_gate {
    _Atomic(uint32_t) closed;    /* a futex word; 1 = closed */
    _Atomic(uint32_t) expedited; /* 1 = membarrier serves, plain stores suffice */
};
extern struct hr_gate hr_gate_state __attribute__((visibility("hidden")));

/* Chooses between membarrier and sequentially consistent publication. Call before the first submission. */
void hr_gate_init(void);
/* Out of line: takes the word back, waits until the gate opens. */
void hr_gate_wait(struct hr_thread *t);

/* Begins a submission. On return the word is published and the gate is open. Not recursive. */
static inline void hr_gate_enter(struct hr_thread *t)
{
    for (;;) {
        if (atomic_load_explicit(&hr_gate_state.expedited, memory_order_relaxed)) {
            atomic_store_explicit(&t->inflight, 1, memory_order_relaxed);
            atomic_signal_fence(memory_order_seq_cst);
        } else {
            atomic_store_explicit(&t->inflight, 1, memory_order_seq_cst);
        }
        if (__builtin_expect(!atomic_load_explicit(&hr_gate_state.closed, memory_order_seq_cst), 1))
            return;
        hr_gate_wait(t);
    }
}

/* Says that the real call follows: from here the submission counts as a possible writer. */
static inline void hr_gate_submit(struct hr_thread *t)
{
    atomic_store_explicit(&t->entered, atomic_load_explicit(&t->entered, memory_order_relaxed) + 1,
                          memory_order_relaxed);
}

/* Ends a submission, or an attempt that did not come to one. */
static inline void hr_gate_leave(struct hr_thread *t)
{
    atomic_store_explicit(&t->completed, atomic_load_explicit(&t->entered, memory_order_relaxed), memory_order_release);
    atomic_store_explicit(&t->inflight, 0, memory_order_release);
}

/*
 * Closes the gate and waits until no other thread is in a submission. false = `deadline_ns` (monotonic) passed; the gate
 * is open again. One closer at a time (the move lock).
 */
bool hr_gate_close(uint64_t deadline_ns);
void hr_gate_open(void);

/* Submissions begun so far by all threads. Exact while the gate is closed. */
uint64_t hr_gate_entered(void);
/*
 * Like hr_gate_entered, for a moment in which the gate is open: false when some thread is inside a submission now, so
 * that nothing can be concluded. A later hr_gate_entered (gate closed) that equals *entered_out proves that no submission
 * began in between.
 */
bool hr_gate_snapshot(uint64_t *entered_out);

#endif
