/*
 * One pointer that readers load while a writer replaces what it points to, and when the old may be freed.
 *
 * Reading is one load, without a lock or a counter. A reader is a thread that has joined; from time to time, while it holds no
 * pointer, it says so (hr_snapshot_rest). What was replaced is freed once every reader has rested since: a pointer got before
 * the replacement cannot be in use any more. A reader that waits long should leave meanwhile, or nothing is freed.
 *
 * Publishing is serialised by the caller. All the rest is callable from any thread. Locks: none.
 */
#ifndef HR_FABRIC_SNAPSHOT_H
#define HR_FABRIC_SNAPSHOT_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define HR_SNAPSHOT_READERS 256
#define HR_SNAPSHOT_RETIRED 16 /* old ones kept at most before publishing is refused */

struct hr_snapshot_reader {
    _Alignas(64) _Atomic uint64_t epoch; /* when it last rested; 0 = free */
};

struct hr_snapshot {
    _Atomic(void *) current;
    _Atomic uint64_t epoch; /* from 1; rises with every publication */
    void (*destroy)(void *old);
    struct {
        void *old;
        uint64_t epoch;             /* readers that rested at or after it cannot have `old` */
    } retired[HR_SNAPSHOT_RETIRED]; /* the publisher's */
    struct hr_snapshot_reader reader[HR_SNAPSHOT_READERS];
};

/* `first` may be NULL. destroy is called for each replaced pointer but NULL, by whoever publishes or finishes. */
void hr_snapshot_init(struct hr_snapshot *snapshot, void *first, void (*destroy)(void *old));
/* Frees all. No reader may be joined. */
void hr_snapshot_finish(struct hr_snapshot *snapshot);

/* A number for this thread, or -1: all are taken. */
int hr_snapshot_join(struct hr_snapshot *snapshot);
void hr_snapshot_leave(struct hr_snapshot *snapshot, int reader);
/* The reader holds no pointer at this moment. */
void hr_snapshot_rest(struct hr_snapshot *snapshot, int reader);

/* The current one, until the reader's next rest or leave. */
static inline void *hr_snapshot_get(struct hr_snapshot *snapshot)
{
    return atomic_load(&snapshot->current);
}

/*
 * Replaces the current one and frees old ones that nobody can hold. 0, or -EBUSY: HR_SNAPSHOT_RETIRED old ones are still held by
 * readers that have not rested; nothing was changed, `next` stays the caller's.
 */
int hr_snapshot_publish(struct hr_snapshot *snapshot, void *next);
/* Frees old ones that nobody can hold; returns how many are left. Serialised with publishing. */
size_t hr_snapshot_collect(struct hr_snapshot *snapshot);

#endif
