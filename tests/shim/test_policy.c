/* Policy is pure: it is tested without a machine. */
#include <criterion/criterion.h>

#include <stdlib.h>

#include "policy/policy.h"

#define RUNS(...)                                                                                                      \
    struct hr_policy_run runs[] = {__VA_ARGS__};                                                                       \
    const size_t count = sizeof runs / sizeof *runs

Test(policy, takes_the_least_recently_used_first)
{
    RUNS({10, 4, 30}, {20, 4, 10}, {30, 4, 20}, {40, 4, 40});
    cr_assert_eq(hr_policy_pick_victims(runs, count, 8), 2);
    cr_assert(runs[0].first_chunk == 20 && runs[1].first_chunk == 30);
}

Test(policy, takes_no_more_runs_than_needed)
{
    RUNS({10, 4, 3}, {20, 1, 1}, {30, 4, 2});
    cr_assert_eq(hr_policy_pick_victims(runs, count, 1), 1);
    cr_assert_eq(runs[0].first_chunk, 20);
    cr_assert_eq(hr_policy_pick_victims(runs, count, 2), 2);
    cr_assert_eq(hr_policy_pick_victims(runs, count, 5), 2);
    cr_assert_eq(hr_policy_pick_victims(runs, count, 6), 3);
    cr_assert_eq(hr_policy_pick_victims(runs, count, 0), 0);
}

Test(policy, breaks_ties_by_address)
{
    RUNS({50, 1, 7}, {10, 1, 7}, {30, 1, 7}, {20, 1, 7});
    cr_assert_eq(hr_policy_pick_victims(runs, count, 3), 3);
    cr_assert(runs[0].first_chunk == 10 && runs[1].first_chunk == 20 && runs[2].first_chunk == 30);
}

Test(policy, offers_everything_where_that_does_not_suffice)
{
    RUNS({10, 2, 2}, {20, 2, 1});
    cr_assert_eq(hr_policy_pick_victims(runs, count, 100), 2);
    cr_assert_eq(runs[0].first_chunk, 20);
    cr_assert_eq(hr_policy_pick_victims(runs, 0, 5), 0);
}

static int by_use(const void *a, const void *b)
{
    const struct hr_policy_run *x = a, *y = b;
    if (x->last_use != y->last_use)
        return x->last_use < y->last_use ? -1 : 1;
    return x->first_chunk < y->first_chunk ? -1 : x->first_chunk > y->first_chunk;
}

/* Against a plain sort. */
Test(policy, agrees_with_a_full_sort_on_random_runs)
{
    uint64_t x = 99;
    for (int round = 0; round < 3000; round++) {
        struct hr_policy_run runs[64], sorted[64];
        size_t count = 1 + (size_t)(x >> 40) % 64, total = 0, need, taken = 0, k = 0;
        for (size_t i = 0; i < count; i++) {
            x = x * UINT64_C(6364136223846793005) + 1442695040888963407u;
            runs[i] = (struct hr_policy_run){(uint32_t)i * 100, 1 + (uint32_t)(x >> 60), (x >> 33) % 20};
            total += runs[i].chunk_count;
            sorted[i] = runs[i];
        }
        need = (size_t)(x >> 20) % (total + 3);
        qsort(sorted, count, sizeof *sorted, by_use);
        while (k < count && taken < need)
            taken += sorted[k++].chunk_count;
        cr_assert_eq(hr_policy_pick_victims(runs, count, need), k, "round %d", round);
        for (size_t i = 0; i < k; i++)
            cr_assert_eq(runs[i].first_chunk, sorted[i].first_chunk, "round %d, victim %zu", round, i);
    }
}

Test(policy, runs_are_8_mib_but_a_small_part_of_a_small_card)
{
    cr_assert_eq(hr_policy_run_chunks((size_t)2 << 20, 70000), 4);
    cr_assert_eq(hr_policy_run_chunks((size_t)2 << 20, 128), 2);
    cr_assert_eq(hr_policy_run_chunks((size_t)2 << 20, 20), 1);
    cr_assert_eq(hr_policy_run_chunks((size_t)32 << 20, 70000), 1);
}
