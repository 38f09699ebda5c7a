/*
 * Equal sizes are the common case and a shift; else an index of equal buckets leads to a binary search among the few ranges of
 * one bucket. The index has two buckets per owner at the limit, so that a search is a step or two unless sizes are very unequal.
 */
#include "fabric/ranges.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define LIMIT (UINT64_C(1) << HR_RANGES_BITS)

void hr_ranges_destroy(struct hr_ranges *ranges)
{
    if (!ranges)
        return;
    free(ranges->index);
    free(ranges->order);
    free(ranges->range);
    free(ranges->bases);
    free(ranges);
}

static struct hr_ranges *allocate(uint32_t owners)
{
    struct hr_ranges *ranges = calloc(1, sizeof *ranges);

    if (!ranges)
        return NULL;
    ranges->owners = owners;
    ranges->index = calloc(HR_RANGES_BUCKETS + 1, sizeof *ranges->index);
    ranges->order = calloc(owners, sizeof *ranges->order);
    ranges->range = calloc(owners, sizeof *ranges->range);
    ranges->bases = calloc(owners, sizeof *ranges->bases);
    if (!ranges->index || !ranges->order || !ranges->range || !ranges->bases) {
        hr_ranges_destroy(ranges);
        return NULL;
    }
    return ranges;
}

static int by_base(const void *a, const void *b, void *context)
{
    const struct hr_range *range = context;
    const struct hr_range *x = &range[*(const uint16_t *)a], *y = &range[*(const uint16_t *)b];

    if (x->base != y->base)
        return x->base < y->base ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes; /* an owner of nothing before the one that begins there */
}

/* 0 unless owner i begins at first + (i << shift) for all i and fits there. */
static uint32_t common_shift(const struct hr_range *range, uint32_t owners)
{
    uint64_t step = owners > 1 ? range[1].base - range[0].base : LIMIT;

    if (step < 2 || step > LIMIT || (step & (step - 1)) != 0)
        return 0;
    for (uint32_t i = 0; i < owners; i++) {
        if (range[i].base != range[0].base + i * step || range[i].bytes > step)
            return 0;
    }
    return (uint32_t)__builtin_ctzll(step);
}

static void make_index(struct hr_ranges *ranges)
{
    uint64_t span = ranges->end - ranges->first;
    uint32_t place = 0;

    while (span >> ranges->index_shift >= HR_RANGES_BUCKETS)
        ranges->index_shift++;
    for (uint32_t bucket = 0; bucket <= HR_RANGES_BUCKETS; bucket++) {
        uint64_t begin = ranges->first + ((uint64_t)bucket << ranges->index_shift);
        while (place + 1 < ranges->owners && ranges->bases[place + 1] <= begin)
            place++;
        ranges->index[bucket] = (uint16_t)place;
    }
}

int hr_ranges_from(const struct hr_range *given, uint32_t owners, struct hr_ranges **ranges_out)
{
    if (owners < 1 || owners > HR_RANGES_MAX_OWNERS)
        return -EINVAL;
    for (uint32_t i = 0; i < owners; i++) {
        if (given[i].base >= LIMIT || given[i].bytes > LIMIT - given[i].base)
            return -E2BIG;
    }
    struct hr_ranges *ranges = allocate(owners);
    if (!ranges)
        return -ENOMEM;
    memcpy(ranges->range, given, owners * sizeof *given);
    for (uint32_t i = 0; i < owners; i++)
        ranges->order[i] = (uint16_t)i;
    qsort_r(ranges->order, owners, sizeof *ranges->order, by_base, ranges->range);
    for (uint32_t i = 0; i < owners; i++) {
        const struct hr_range *one = &given[ranges->order[i]];
        ranges->bases[i] = one->base;
        if (i > 0 && one->base < ranges->end) {
            hr_ranges_destroy(ranges);
            return -EINVAL;
        }
        ranges->end = one->base + one->bytes;
    }
    ranges->first = ranges->bases[0];
    ranges->shift = common_shift(given, owners);
    make_index(ranges);
    *ranges_out = ranges;
    return 0;
}

static uint64_t power_at_least(uint64_t bytes)
{
    uint64_t power = 2;

    while (power < bytes)
        power *= 2;
    return power;
}

int hr_ranges_layout(const uint64_t *sizes_bytes, uint32_t owners, uint64_t align_bytes, struct hr_ranges **ranges_out)
{
    bool equal = true;
    uint64_t at = 0;

    if (owners < 1 || owners > HR_RANGES_MAX_OWNERS || align_bytes == 0 || (align_bytes & (align_bytes - 1)) != 0)
        return -EINVAL;
    for (uint32_t i = 0; i < owners; i++) {
        equal = equal && sizes_bytes[i] == sizes_bytes[0];
        if (sizes_bytes[i] > LIMIT || align_bytes > LIMIT)
            return -E2BIG;
    }
    struct hr_range *range = calloc(owners, sizeof *range);
    if (!range)
        return -ENOMEM;
    uint64_t spread = power_at_least(sizes_bytes[0] > align_bytes ? sizes_bytes[0] : align_bytes);
    bool spread_fits = equal && spread <= LIMIT / owners; /* else equal sizes lie tight, and are searched */
    for (uint32_t i = 0; i < owners; i++) {
        range[i] = (struct hr_range){at, sizes_bytes[i]};
        if (at >= LIMIT || sizes_bytes[i] > LIMIT - at) {
            free(range);
            return -E2BIG;
        }
        at += spread_fits ? spread : (sizes_bytes[i] + align_bytes - 1) & ~(align_bytes - 1);
    }
    int rc = hr_ranges_from(range, owners, ranges_out);
    free(range);
    return rc;
}

struct hr_range_piece hr_ranges_piece(const struct hr_ranges *ranges, uint64_t address, uint64_t bytes)
{
    struct hr_range_piece piece = {address, bytes, hr_ranges_owner(ranges, address)};
    uint64_t limit = UINT64_MAX;

    if (piece.owner >= 0) {
        limit = ranges->range[piece.owner].base + ranges->range[piece.owner].bytes;
    } else if (address < ranges->end) { /* up to the next range that holds anything */
        uint32_t low = 0, high = ranges->owners;
        while (low < high) {
            uint32_t middle = (low + high) / 2;
            if (ranges->bases[middle] <= address)
                low = middle + 1;
            else
                high = middle;
        }
        while (low < ranges->owners && ranges->range[ranges->order[low]].bytes == 0)
            low++;
        if (low < ranges->owners)
            limit = ranges->bases[low];
    }
    if (bytes > limit - address)
        piece.bytes = limit - address;
    return piece;
}
