/* Who owns an address: laid out, looked up, split. */
#include "machine.h"

#include "fabric/ranges.h"

TestSuite(ranges, .timeout = 30);

static int search_owner(const struct hr_ranges *ranges, uint64_t address)
{
    for (uint32_t i = 0; i < ranges->owners; i++) {
        if (address >= ranges->range[i].base && address - ranges->range[i].base < ranges->range[i].bytes)
            return (int)i;
    }
    return -1;
}

static void expect_disjoint(const struct hr_ranges *ranges)
{
    for (uint32_t i = 1; i < ranges->owners; i++) {
        const struct hr_range *a = &ranges->range[ranges->order[i - 1]], *b = &ranges->range[ranges->order[i]];
        cr_assert(a->base + a->bytes <= b->base, "owners %u and %u overlap", ranges->order[i - 1], ranges->order[i]);
        cr_assert(b->base + b->bytes <= UINT64_C(1) << HR_RANGES_BITS);
    }
}

Test(ranges, equal_sizes_are_found_by_a_shift)
{
    static uint64_t sizes[4096];
    struct hr_ranges *ranges;

    for (uint32_t i = 0; i < 4096; i++)
        sizes[i] = UINT64_C(64) << 30;
    cr_assert_eq(hr_ranges_layout(sizes, 4096, 2 << 20, &ranges), 0);
    cr_expect_eq(ranges->shift, 36);
    expect_disjoint(ranges);
    cr_expect_eq(ranges->end, UINT64_C(1) << 48, "4096 times 64 GiB fill 48 bits exactly");
    cr_expect_eq(hr_ranges_owner(ranges, (UINT64_C(4095) << 36) + 5), 4095);
    cr_expect_eq(hr_ranges_owner(ranges, UINT64_C(1) << 48), -1);
    hr_ranges_destroy(ranges);
    for (uint32_t i = 0; i < 8; i++)
        sizes[i] = UINT64_C(80) << 30;
    cr_assert_eq(hr_ranges_layout(sizes, 8, 2 << 20, &ranges), 0);
    cr_expect_eq(ranges->shift, 37);
    cr_expect_eq(hr_ranges_owner(ranges, (UINT64_C(80) << 30) - 1), 0);
    cr_expect_eq(hr_ranges_owner(ranges, UINT64_C(80) << 30), -1, "nobody owns the rest of the power of two");
    hr_ranges_destroy(ranges);
}

Test(ranges, unequal_sizes_are_found_like_by_a_linear_search)
{
    uint64_t state = 4;

    for (uint32_t round = 0; round < 40; round++) {
        uint32_t owners = 1 + random_below(&state, round < 35 ? 64 : 4096);
        uint64_t *sizes = calloc(owners, sizeof *sizes);
        struct hr_ranges *ranges;
        for (uint32_t i = 0; i < owners; i++) /* from nothing to tens of gigabytes */
            sizes[i] = random_next(&state) >> (28 + random_below(&state, 36));
        cr_assert_eq(hr_ranges_layout(sizes, owners, 4096, &ranges), 0);
        expect_disjoint(ranges);
        for (uint32_t i = 0; i < 500; i++) {
            const struct hr_range *range = &ranges->range[random_below(&state, owners)];
            uint64_t edge = range->base + (random_below(&state, 2) ? range->bytes : 0);
            uint64_t address = i % 2 ? edge + random_below(&state, 3) - 1 : random_next(&state) % (ranges->end + 4096);
            cr_assert_eq(hr_ranges_owner(ranges, address), search_owner(ranges, address), "address %llx",
                         (unsigned long long)address);
        }
        free(sizes);
        hr_ranges_destroy(ranges);
    }
}

Test(ranges, a_request_is_split_where_owners_change)
{
    const struct hr_range given[] = {{0x1000, 0x1000}, {0x2000, 0x800}, {0x3000, 0}, {0x4000, 0x1000}};
    struct hr_ranges *ranges;

    cr_assert_eq(hr_ranges_from(given, 4, &ranges), 0);
    static const struct hr_range_piece want[] = {{0x800, 0x800, -1},   {0x1000, 0x1000, 0}, {0x2000, 0x800, 1},
                                                 {0x2800, 0x1800, -1}, {0x4000, 0x1000, 3}, {0x5000, 0x800, -1}};
    uint64_t at = 0x800, end = 0x5800;
    for (size_t i = 0; i < sizeof want / sizeof *want; i++) {
        struct hr_range_piece piece = hr_ranges_piece(ranges, at, end - at);
        cr_assert(piece.address == want[i].address && piece.bytes == want[i].bytes && piece.owner == want[i].owner,
                  "piece %zu: %llx + %llx of %d", i, (unsigned long long)piece.address, (unsigned long long)piece.bytes,
                  piece.owner);
        at += piece.bytes;
    }
    cr_expect_eq(at, end);
    cr_expect_eq(hr_ranges_piece(ranges, UINT64_MAX - 3, 100).bytes, 3, "cut at the end of 64 bits");
    hr_ranges_destroy(ranges);
}

Test(ranges, what_does_not_fit_is_refused)
{
    const uint64_t two[] = {UINT64_C(1) << 47, (UINT64_C(1) << 47) + 1};
    const struct hr_range overlapping[] = {{0, 0x2000}, {0x1000, 0x1000}};
    const struct hr_range outside[] = {{(UINT64_C(1) << 48) - 1, 2}};
    struct hr_ranges *ranges;

    cr_expect_neq(hr_ranges_layout(two, 2, 1, &ranges), 0, "more than 48 bits");
    cr_expect_neq(hr_ranges_layout(two, 0, 1, &ranges), 0, "nobody");
    cr_expect_neq(hr_ranges_layout(two, 1, 3, &ranges), 0, "no power of two");
    cr_expect_neq(hr_ranges_from(overlapping, 2, &ranges), 0);
    cr_expect_neq(hr_ranges_from(outside, 1, &ranges), 0);
}
