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

/* --- lending --------------------------------------------------------------------------------------------------------- */

static size_t room(size_t limit, size_t charged, size_t lent, size_t left)
{
    return hr_policy_lend_room(&(struct hr_policy_lender){limit, charged, lent, left});
}

Test(policy, a_gpu_lends_what_is_beyond_its_allocations_and_a_reserve)
{
    cr_assert_eq(room(800, 0, 0, 800), 699); /* an eighth and one chunk stay */
    cr_assert_eq(room(800, 0, 699, 101), 0);
    cr_assert_eq(room(800, 300, 0, 800), 399, "what is allocated is not lent, touched or not");
    cr_assert_eq(room(800, 300, 100, 600), 299);
    cr_assert_eq(room(800, 2000, 0, 800), 0, "more than its VRAM is allocated");
    cr_assert_eq(room(800, 0, 0, 150), 49, "others, such as relays, have the rest");
    cr_assert_eq(room(800, 750, 600, 50), 0, "it has lent too much already");
    cr_assert_eq(room(0, 0, 0, 0), 0);
    cr_assert_eq(room(1, 0, 0, 1), 0);
}

Test(policy, a_link_has_to_be_a_quarter_faster_than_the_way_to_the_host)
{
    cr_assert(hr_policy_lend_pays(380000, 50000));
    cr_assert(hr_policy_lend_pays(32500, 26000));
    cr_assert_not(hr_policy_lend_pays(32000, 26000));
    cr_assert_not(hr_policy_lend_pays(26000, 26000));
    cr_assert_not(hr_policy_lend_pays(0, 26000), "there is no link");
    cr_assert(hr_policy_lend_pays(20000, 0), "nothing is known of the host's way");
    cr_assert_not(hr_policy_lend_pays(0, 0));
}
