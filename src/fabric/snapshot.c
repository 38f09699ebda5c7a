/*
 * Why this is safe. A publisher replaces the pointer, then raises the epoch to e, then looks at the readers. A reader that shows
 * e or more has read the epoch after the replacement, so whatever it loads from then on is newer. One that joins unseen has made
 * its slot visible after the publisher looked, hence loads the pointer after the replacement (all of it sequentially
 * consistent). What a reader did with the old memory happens before its rest, which happens before the publisher sees it.
 */
#include "fabric/snapshot.h"

#include <errno.h>
#include <stdbool.h>

void hr_snapshot_init(struct hr_snapshot *snapshot, void *first, void (*destroy)(void *old))
{
    atomic_init(&snapshot->current, first);
    atomic_init(&snapshot->epoch, 1);
    snapshot->destroy = destroy;
    for (size_t i = 0; i < HR_SNAPSHOT_RETIRED; i++)
        snapshot->retired[i].old = NULL;
    for (size_t i = 0; i < HR_SNAPSHOT_READERS; i++)
        atomic_init(&snapshot->reader[i].epoch, 0);
}

void hr_snapshot_finish(struct hr_snapshot *snapshot)
{
    void *last = atomic_exchange(&snapshot->current, NULL);

    hr_snapshot_collect(snapshot);
    if (last)
        snapshot->destroy(last);
}

int hr_snapshot_join(struct hr_snapshot *snapshot)
{
    for (int i = 0; i < HR_SNAPSHOT_READERS; i++) {
        uint64_t none = 0;
        if (atomic_load(&snapshot->reader[i].epoch) == 0 &&
            atomic_compare_exchange_strong(&snapshot->reader[i].epoch, &none, atomic_load(&snapshot->epoch)))
            return i;
    }
    return -1;
}

void hr_snapshot_leave(struct hr_snapshot *snapshot, int reader)
{
    atomic_store(&snapshot->reader[reader].epoch, 0);
}

void hr_snapshot_rest(struct hr_snapshot *snapshot, int reader)
{
    atomic_store(&snapshot->reader[reader].epoch, atomic_load(&snapshot->epoch));
}

size_t hr_snapshot_collect(struct hr_snapshot *snapshot)
{
    uint64_t oldest = UINT64_MAX;
    size_t left = 0;

    for (size_t i = 0; i < HR_SNAPSHOT_READERS; i++) {
        uint64_t epoch = atomic_load(&snapshot->reader[i].epoch);
        if (epoch != 0 && epoch < oldest)
            oldest = epoch;
    }
    for (size_t i = 0; i < HR_SNAPSHOT_RETIRED; i++) {
        if (snapshot->retired[i].old && snapshot->retired[i].epoch <= oldest) {
            snapshot->destroy(snapshot->retired[i].old);
            snapshot->retired[i].old = NULL;
        }
        left += snapshot->retired[i].old != NULL;
    }
    return left;
}

int hr_snapshot_publish(struct hr_snapshot *snapshot, void *next)
{
    size_t place = 0;

    if (hr_snapshot_collect(snapshot) == HR_SNAPSHOT_RETIRED)
        return -EBUSY;
    while (snapshot->retired[place].old)
        place++;
    void *old = atomic_exchange(&snapshot->current, next);
    snapshot->retired[place].old = old;
    snapshot->retired[place].epoch = atomic_fetch_add(&snapshot->epoch, 1) + 1;
    hr_snapshot_collect(snapshot);
    return 0;
}
