/* Readers load the pointer while a writer swaps and frees: nobody sees freed memory. */
#include "machine.h"

#include "fabric/snapshot.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>

TestSuite(snapshot, .timeout = 60);

#define ALIVE 0x5afe5afe5afe5afeu

struct thing {
    uint64_t mark;
    uint64_t number;
};

static _Atomic uint64_t freed;

static void destroy(void *old)
{
    struct thing *thing = old;

    thing->mark = 0; /* a reader that still has it sees that */
    atomic_fetch_add(&freed, 1);
    free(thing);
}

static struct thing *make(uint64_t number)
{
    struct thing *thing = malloc(sizeof *thing);

    *thing = (struct thing){ALIVE, number};
    return thing;
}

Test(snapshot, the_old_one_is_freed_once_every_reader_has_rested)
{
    struct hr_snapshot *snapshot = aligned_alloc(64, sizeof *snapshot);

    hr_snapshot_init(snapshot, make(0), destroy);
    int a = hr_snapshot_join(snapshot), b = hr_snapshot_join(snapshot);
    cr_assert(a >= 0 && b >= 0 && a != b);
    struct thing *held = hr_snapshot_get(snapshot);
    cr_assert_eq(hr_snapshot_publish(snapshot, make(1)), 0);
    cr_expect_eq(((struct thing *)hr_snapshot_get(snapshot))->number, 1);
    cr_expect_eq(freed, 0);
    hr_snapshot_rest(snapshot, a);
    cr_expect_eq(hr_snapshot_collect(snapshot), 1);
    cr_expect_eq(held->mark, ALIVE, "b has not rested");
    hr_snapshot_leave(snapshot, b);
    cr_expect_eq(hr_snapshot_collect(snapshot), 0);
    cr_expect_eq(freed, 1);
    hr_snapshot_leave(snapshot, a);
    hr_snapshot_finish(snapshot);
    cr_expect_eq(freed, 2);
    free(snapshot);
}

Test(snapshot, a_reader_that_never_rests_stops_publishing_and_not_the_readers)
{
    struct hr_snapshot *snapshot = aligned_alloc(64, sizeof *snapshot);
    struct thing *refused = make(99);

    hr_snapshot_init(snapshot, make(0), destroy);
    int reader = hr_snapshot_join(snapshot);
    for (uint64_t i = 1; i <= HR_SNAPSHOT_RETIRED; i++)
        cr_assert_eq(hr_snapshot_publish(snapshot, make(i)), 0);
    cr_expect_eq(hr_snapshot_publish(snapshot, refused), -EBUSY);
    cr_expect_eq(((struct thing *)hr_snapshot_get(snapshot))->number, HR_SNAPSHOT_RETIRED);
    hr_snapshot_rest(snapshot, reader);
    cr_expect_eq(hr_snapshot_publish(snapshot, refused), 0);
    hr_snapshot_leave(snapshot, reader);
    hr_snapshot_finish(snapshot);
    free(snapshot);
}

Test(snapshot, there_is_a_limit_to_readers)
{
    struct hr_snapshot *snapshot = aligned_alloc(64, sizeof *snapshot);

    hr_snapshot_init(snapshot, NULL, destroy);
    for (int i = 0; i < HR_SNAPSHOT_READERS; i++)
        cr_assert_eq(hr_snapshot_join(snapshot), i);
    cr_expect_eq(hr_snapshot_join(snapshot), -1);
    hr_snapshot_leave(snapshot, 7);
    cr_expect_eq(hr_snapshot_join(snapshot), 7);
    for (int i = 0; i < HR_SNAPSHOT_READERS; i++)
        hr_snapshot_leave(snapshot, i);
    hr_snapshot_finish(snapshot);
    free(snapshot);
}

static struct hr_snapshot *shared;
static atomic_bool stop;
static atomic_uint bad;

static void *read_on(void *arg)
{
    uint64_t last = 0, state = (uint64_t)(uintptr_t)arg;
    int reader = hr_snapshot_join(shared);

    while (!atomic_load(&stop)) {
        for (uint32_t i = 0; i < 20; i++) {
            const struct thing *thing = hr_snapshot_get(shared);
            if (thing->mark != ALIVE || thing->number < last)
                atomic_fetch_add(&bad, 1);
            last = thing->number;
        }
        hr_snapshot_rest(shared, reader);
        sched_yield();
        if (random_below(&state, 50) == 0) { /* come and go as well */
            hr_snapshot_leave(shared, reader);
            reader = hr_snapshot_join(shared);
        }
    }
    hr_snapshot_leave(shared, reader);
    return NULL;
}

Test(snapshot, readers_see_whole_things_in_order_while_they_are_swapped)
{
    pthread_t threads[3];
    uint64_t published = 0;

    shared = aligned_alloc(64, sizeof *shared);
    hr_snapshot_init(shared, make(0), destroy);
    for (uintptr_t i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, read_on, (void *)(i + 1)); // NOLINT(performance-no-int-to-ptr)
    for (uint64_t i = 1; i <= 500; i++) {
        struct thing *next = make(i);
        while (hr_snapshot_publish(shared, next) != 0)
            sched_yield();
        published++;
    }
    atomic_store(&stop, true);
    for (uint32_t i = 0; i < 3; i++)
        pthread_join(threads[i], NULL);
    hr_snapshot_finish(shared);
    cr_expect_eq(bad, 0);
    cr_expect_eq(freed, published + 1);
    free(shared);
}
