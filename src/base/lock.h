/*
 * Locks with a rank. A thread may only take a lock of a higher rank than every lock it holds, so no two threads can wait for
 * each other. The catalogue below is the order; builds with HR_LOCK_CHECK (debug and sanitizer builds) keep the held ranks per
 * thread and report a wrong order with the stack of both acquisitions. clang's thread-safety analysis reads the annotations.
 *
 * No lock is held across the job's own launch or copy, and none of rank HR_RANK_TABLE or above across a driver call.
 */
#ifndef HR_BASE_LOCK_H
#define HR_BASE_LOCK_H

#include <pthread.h>
#include <stdbool.h>
#include <time.h>

#if defined(__clang__)
#define HR_TSA(x) __attribute__((x))
#else
#define HR_TSA(x)
#endif
#define HR_CAPABILITY(name) HR_TSA(capability(name))
#define HR_GUARDED_BY(lock) HR_TSA(guarded_by(lock))
#define HR_PT_GUARDED_BY(lock) HR_TSA(pt_guarded_by(lock))
#define HR_REQUIRES(...) HR_TSA(requires_capability(__VA_ARGS__))
#define HR_REQUIRES_SHARED(...) HR_TSA(requires_shared_capability(__VA_ARGS__))
#define HR_ACQUIRES(...) HR_TSA(acquire_capability(__VA_ARGS__))
#define HR_ACQUIRES_SHARED(...) HR_TSA(acquire_shared_capability(__VA_ARGS__))
#define HR_TRY_ACQUIRES(...) HR_TSA(try_acquire_capability(__VA_ARGS__))
#define HR_RELEASES(...) HR_TSA(release_capability(__VA_ARGS__))
#define HR_RELEASES_SHARED(...) HR_TSA(release_shared_capability(__VA_ARGS__))
#define HR_EXCLUDES(...) HR_TSA(locks_excluded(__VA_ARGS__))
#define HR_NO_TSA HR_TSA(no_thread_safety_analysis)

/* The catalogue, outermost first. What each protects is said where it is declared. */
enum hr_rank {
    HR_RANK_START = 10,    /* start-up after cuInit; driver calls allowed */
    HR_RANK_CAPTURE = 20,  /* open stream captures against moves; driver calls allowed */
    HR_RANK_CONTEXT = 30,  /* context create, destroy and reset against workers; driver calls allowed */
    HR_RANK_MOVE = 40,     /* one mover at a time per device; driver calls allowed */
    HR_RANK_TIER = 50,     /* a tier's pool of ready chunks; driver calls allowed */
    HR_RANK_FENCE = 55,    /* contexts and streams that are queried; non-blocking driver calls only */
    HR_RANK_STATS = 58,    /* statistics log writer; reads peaks under their own locks */
    HR_RANK_TABLE = 60,    /* records and chunk arrays; no driver call from here on */
    HR_RANK_REGISTRY = 70, /* handle registries: streams, functions, contexts, events */
    HR_RANK_QUEUE = 80,    /* work lists of the workers, quarantine lists */
    HR_RANK_LEDGER = 90,   /* the commit ledger */
    HR_RANK_LOG = 110,     /* innermost */
};

struct HR_CAPABILITY("mutex") hr_mutex {
    pthread_mutex_t os;
    enum hr_rank rank;
    const char *name;
};
#define HR_MUTEX_INIT(rank_, name_)                                                                                    \
    {                                                                                                                  \
        PTHREAD_MUTEX_INITIALIZER, (rank_), (name_)                                                                    \
    }

struct HR_CAPABILITY("rwlock") hr_rwlock {
    pthread_rwlock_t os;
    enum hr_rank rank;
    const char *name;
};
#define HR_RWLOCK_INIT(rank_, name_)                                                                                   \
    {                                                                                                                  \
        PTHREAD_RWLOCK_INITIALIZER, (rank_), (name_)                                                                   \
    }

/* A condition on CLOCK_MONOTONIC. */
struct hr_cond {
    pthread_cond_t os;
};

/* Number of wrong orders seen so far in this process; stays 0 in builds without HR_LOCK_CHECK. */
unsigned hr_lock_violations(void);

#ifdef HR_LOCK_CHECK
/* The bookkeeping of HR_LOCK_CHECK builds; pc is the acquiring code. Not for direct use. */
void hr_lock_note_acquire(const void *lock, enum hr_rank rank, const char *name, const void *pc);
void hr_lock_note_release(const void *lock);
#define HR_LOCK_NOTE_ACQUIRE(l) hr_lock_note_acquire((l), (l)->rank, (l)->name, __builtin_return_address(0))
#define HR_LOCK_NOTE_RELEASE(l) hr_lock_note_release(l)
#else
#define HR_LOCK_NOTE_ACQUIRE(l) ((void)0)
#define HR_LOCK_NOTE_RELEASE(l) ((void)0)
#endif

/* For locks inside objects; those in static storage use HR_MUTEX_INIT. name must outlive the lock. */
void hr_mutex_init(struct hr_mutex *m, enum hr_rank rank, const char *name);
void hr_mutex_finish(struct hr_mutex *m);
void hr_rwlock_init(struct hr_rwlock *l, enum hr_rank rank, const char *name);
void hr_rwlock_finish(struct hr_rwlock *l);
void hr_cond_init(struct hr_cond *c);
void hr_cond_finish(struct hr_cond *c);

static inline void hr_mutex_lock(struct hr_mutex *m) HR_ACQUIRES(m) HR_NO_TSA
{
    HR_LOCK_NOTE_ACQUIRE(m);
    pthread_mutex_lock(&m->os);
}

static inline bool hr_mutex_trylock(struct hr_mutex *m) HR_TRY_ACQUIRES(true, m) HR_NO_TSA
{
    if (pthread_mutex_trylock(&m->os) != 0)
        return false;
    HR_LOCK_NOTE_ACQUIRE(m);
    return true;
}

static inline void hr_mutex_unlock(struct hr_mutex *m) HR_RELEASES(m) HR_NO_TSA
{
    HR_LOCK_NOTE_RELEASE(m);
    pthread_mutex_unlock(&m->os);
}

static inline void hr_rwlock_rdlock(struct hr_rwlock *l) HR_ACQUIRES_SHARED(l) HR_NO_TSA
{
    HR_LOCK_NOTE_ACQUIRE(l);
    pthread_rwlock_rdlock(&l->os);
}

static inline void hr_rwlock_wrlock(struct hr_rwlock *l) HR_ACQUIRES(l) HR_NO_TSA
{
    HR_LOCK_NOTE_ACQUIRE(l);
    pthread_rwlock_wrlock(&l->os);
}

static inline void hr_rwlock_rdunlock(struct hr_rwlock *l) HR_RELEASES_SHARED(l) HR_NO_TSA
{
    HR_LOCK_NOTE_RELEASE(l);
    pthread_rwlock_unlock(&l->os);
}

static inline void hr_rwlock_wrunlock(struct hr_rwlock *l) HR_RELEASES(l) HR_NO_TSA
{
    HR_LOCK_NOTE_RELEASE(l);
    pthread_rwlock_unlock(&l->os);
}

/* Wait until woken (spurious wake-ups happen: loop on the condition). */
static inline void hr_cond_wait(struct hr_cond *c, struct hr_mutex *m) HR_REQUIRES(m)
{
    pthread_cond_wait(&c->os, &m->os);
}

/* As hr_cond_wait, until hr_clock_ns() reaches deadline_ns at the latest: false when it passed. */
bool hr_cond_wait_until(struct hr_cond *c, struct hr_mutex *m, unsigned long long deadline_ns) HR_REQUIRES(m);

static inline void hr_cond_signal(struct hr_cond *c)
{
    pthread_cond_signal(&c->os);
}

static inline void hr_cond_broadcast(struct hr_cond *c)
{
    pthread_cond_broadcast(&c->os);
}

#endif
