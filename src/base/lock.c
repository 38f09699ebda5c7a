/*
 * The rank check. Each thread keeps what it holds, with the code that took it; a wrong order is told with where the held lock was
 * taken and with the whole stack of the thread now.
 */
#include "base/lock.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdint.h>

#include "base/callsite.h"
#include "base/log.h"

static _Atomic unsigned violations;

unsigned hr_lock_violations(void)
{
    return atomic_load_explicit(&violations, memory_order_relaxed);
}

#ifdef HR_LOCK_CHECK

#define HELD_MAX 12

struct held {
    const void *lock;
    const void *pc;
    const char *name;
    int rank;
};

static _Thread_local struct held held[HELD_MAX];
static _Thread_local unsigned held_count;
static void report(const struct held *before, enum hr_rank rank, const char *name, const void *pc)
{
    char where[256];
    atomic_fetch_add_explicit(&violations, 1, memory_order_relaxed);
    hr_callsite_describe(before->pc, where, sizeof where);
    hr_log(HR_LOG_ERROR, "lock order: %s (rank %d) wanted while %s (rank %d) is held, taken at %s", name, (int)rank,
           before->name, before->rank, where);
    struct hr_callsite here;
    hr_callsite_capture((void *)(uintptr_t)pc, &here);
    for (uint32_t i = 0; i < here.depth; i++) {
        hr_callsite_describe(here.pc[i], where, sizeof where);
        hr_log(HR_LOG_ERROR, "lock order:   wanted at %s", where);
    }
}

void hr_lock_note_acquire(const void *lock, enum hr_rank rank, const char *name, const void *pc)
{
    unsigned highest = 0;
    for (unsigned i = 1; i < held_count; i++)
        highest = held[i].rank > held[highest].rank ? i : highest;
    if (held_count > 0 && held[highest].rank >= (int)rank && rank != HR_RANK_LOG)
        report(&held[highest], rank, name, pc);
    if (held_count < HELD_MAX)
        held[held_count++] = (struct held){lock, pc, name, (int)rank};
}

void hr_lock_note_release(const void *lock)
{
    for (unsigned i = held_count; i-- > 0;) {
        if (held[i].lock == lock) {
            held[i] = held[--held_count];
            return;
        }
    }
}

#endif

void hr_mutex_init(struct hr_mutex *m, enum hr_rank rank, const char *name)
{
    pthread_mutex_init(&m->os, NULL);
    m->rank = rank;
    m->name = name;
}

void hr_mutex_finish(struct hr_mutex *m)
{
    pthread_mutex_destroy(&m->os);
}

void hr_rwlock_init(struct hr_rwlock *l, enum hr_rank rank, const char *name)
{
    pthread_rwlock_init(&l->os, NULL);
    l->rank = rank;
    l->name = name;
}

void hr_rwlock_finish(struct hr_rwlock *l)
{
    pthread_rwlock_destroy(&l->os);
}

void hr_cond_init(struct hr_cond *c)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&c->os, &attr);
    pthread_condattr_destroy(&attr);
}

void hr_cond_finish(struct hr_cond *c)
{
    pthread_cond_destroy(&c->os);
}

bool hr_cond_wait_until(struct hr_cond *c, struct hr_mutex *m, unsigned long long deadline_ns)
{
    struct timespec until = {(time_t)(deadline_ns / 1000000000u), (long)(deadline_ns % 1000000000u)};
    return pthread_cond_timedwait(&c->os, &m->os, &until) != ETIMEDOUT;
}
