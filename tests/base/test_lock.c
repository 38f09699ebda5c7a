#include "base/lock.h"

#include <criterion/criterion.h>

#include "base/clock.h"

/* Compiled with HR_LOCK_CHECK whatever the build. The log goes to stderr: what counts here is the number of reports. */

Test(lock, taking_ranks_upwards_is_right)
{
    struct hr_mutex outer = HR_MUTEX_INIT(HR_RANK_MOVE, "outer");
    struct hr_rwlock inner = HR_RWLOCK_INIT(HR_RANK_TABLE, "inner");
    for (int i = 0; i < 3; i++) {
        hr_mutex_lock(&outer);
        hr_rwlock_rdlock(&inner);
        hr_rwlock_rdunlock(&inner);
        hr_rwlock_wrlock(&inner);
        hr_rwlock_wrunlock(&inner);
        hr_mutex_unlock(&outer);
    }
    cr_assert_eq(hr_lock_violations(), 0);
}

Test(lock, taking_a_lower_rank_while_a_higher_is_held_is_reported)
{
    struct hr_mutex outer = HR_MUTEX_INIT(HR_RANK_MOVE, "outer"), inner = HR_MUTEX_INIT(HR_RANK_TABLE, "inner");
    hr_mutex_lock(&inner);
    hr_mutex_lock(&outer);
    cr_assert_eq(hr_lock_violations(), 1);
    hr_mutex_unlock(&inner); /* released in any order */
    hr_mutex_unlock(&outer);
    hr_mutex_lock(&outer);
    hr_mutex_unlock(&outer);
    cr_assert_eq(hr_lock_violations(), 1);
}

Test(lock, two_locks_of_one_rank_at_once_are_reported)
{
    struct hr_mutex a = HR_MUTEX_INIT(HR_RANK_TIER, "a"), b = HR_MUTEX_INIT(HR_RANK_TIER, "b");
    hr_mutex_lock(&a);
    hr_mutex_lock(&b);
    cr_assert_eq(hr_lock_violations(), 1);
    hr_mutex_unlock(&b);
    hr_mutex_unlock(&a);
}

Test(lock, waiting_ends_at_the_deadline)
{
    struct hr_mutex m = HR_MUTEX_INIT(HR_RANK_QUEUE, "m");
    struct hr_cond c;
    hr_cond_init(&c);
    hr_mutex_lock(&m);
    uint64_t deadline_ns = hr_clock_ns() + 20 * 1000000u;
    while (hr_cond_wait_until(&c, &m, deadline_ns)) { /* nobody wakes it: only spurious wake-ups return true */
    }
    cr_assert_geq(hr_clock_ns(), deadline_ns);
    hr_mutex_unlock(&m);
    hr_cond_finish(&c);
}
