/*
 * One slot per thread that uses CUDA: what the mover must be able to read of every thread (the in-flight word, the
 * submission counters), the thread's share of the statistics, and a place for each room's per-thread cache.
 *
 * Slots are never freed, only reused after their thread has ended, so that a reader may walk the list without a lock.
 */
#ifndef HR_BASE_THREAD_H
#define HR_BASE_THREAD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HR_THREAD_STATS 48 /* src/stats checks that its table fits */

/* Rooms that keep something per thread. Each registers how it is flushed when the thread ends. */
enum hr_thread_room { HR_ROOM_SPACE, HR_ROOM_QUARANTINE, HR_ROOM_RESIDENCY, HR_ROOM_SHELVES, HR_ROOM_COUNT };

struct hr_thread {
    /* Read by the mover, written by the owner; a cache line of its own. */
    _Alignas(64) _Atomic(uint32_t) inflight; /* 1 from before the gate is read until the real call has returned */
    _Atomic(uint64_t) entered;               /* submissions begun */
    _Atomic(uint64_t) completed;             /* submissions whose real call has returned */

    _Alignas(64) _Atomic(uint32_t) taken; /* 1 while a live thread owns the slot */
    uint32_t index;                       /* position in the list, from 0 */
    uint32_t stalling;                    /* depth; the owner's: waits of its launches for memory, see stats/stats.h */
    struct hr_thread *next;               /* written once, before the slot is published */
    _Atomic(uint64_t) stat[HR_THREAD_STATS];
    void *room[HR_ROOM_COUNT];
};

extern _Thread_local struct hr_thread *hr_thread_current_slot
    __attribute__((tls_model("initial-exec"), visibility("hidden")));

/* The calling thread's slot, made at first use; NULL only when the kernel refuses memory. */
struct hr_thread *hr_thread_register(void);
static inline struct hr_thread *hr_thread_self(void)
{
    struct hr_thread *t = hr_thread_current_slot;
    return __builtin_expect(t != NULL, 1) ? t : hr_thread_register();
}

/* First slot of the list; follow ->next. Slots of ended threads are included (their counters still count). */
struct hr_thread *hr_thread_first(void);

/* Called with the slot when its thread ends, while room[] is still set; the flusher clears its own entry. */
void hr_thread_set_flusher(enum hr_thread_room room, void (*flush)(struct hr_thread *t));

#endif
