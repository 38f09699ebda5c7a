/*
 * Who owns a global address. Every card's memory is one range of a 48-bit number space; ranges never overlap and may have
 * different sizes. Pure and immutable once made: any number of readers, no lock.
 */
#ifndef HR_FABRIC_RANGES_H
#define HR_FABRIC_RANGES_H

#include <stddef.h>
#include <stdint.h>

#define HR_RANGES_BITS 48
#define HR_RANGES_MAX_OWNERS 4096
#define HR_RANGES_BUCKETS 8192 /* of the index for unequal sizes */

struct hr_range {
    uint64_t base;
    uint64_t bytes;
};

/* 64 KiB for 4096 owners and 16 KiB of index. */
struct hr_ranges {
    uint32_t owners;
    uint32_t shift; /* equal sizes: owner = (address - first) >> shift; 0 = sizes differ, see index */
    uint64_t first; /* lowest base */
    uint64_t end;   /* behind the highest range */
    uint32_t index_shift;
    uint16_t *index; /* [bucket of (address - first) >> index_shift] -> place in `order` where the search begins */
    uint16_t *order; /* owners by base */
    struct hr_range *range; /* by owner */
    uint64_t *bases;        /* by place in `order` */
};

/*
 * Lays out owners one behind the other, each range aligned to `align_bytes` (a power of two). Equal sizes are spread at the next
 * power of two, so that the look-up is a shift. A size of 0 makes an owner of nothing.
 * -EINVAL: no owners, too many, align no power of two; -E2BIG: they do not fit 48 bits; -ENOMEM. destroy frees; takes NULL.
 */
int hr_ranges_layout(const uint64_t *sizes_bytes, uint32_t owners, uint64_t align_bytes, struct hr_ranges **ranges_out);
/* The same for ranges that are fixed already. -EINVAL also when two overlap. */
int hr_ranges_from(const struct hr_range *ranges, uint32_t owners, struct hr_ranges **ranges_out);
void hr_ranges_destroy(struct hr_ranges *ranges);

/* Owner of the address, or -1: nobody's. */
static inline int hr_ranges_owner(const struct hr_ranges *ranges, uint64_t address)
{
    uint64_t from_first = address - ranges->first;

    if (address < ranges->first || address >= ranges->end)
        return -1;
    if (ranges->shift) {
        uint32_t owner = (uint32_t)(from_first >> ranges->shift);
        return from_first - ((uint64_t)owner << ranges->shift) < ranges->range[owner].bytes ? (int)owner : -1;
    }
    uint64_t bucket = from_first >> ranges->index_shift;
    uint32_t low = ranges->index[bucket], high = ranges->index[bucket + 1];
    while (low < high) { /* the last place whose base is not above the address */
        uint32_t middle = (low + high + 1) / 2;
        if (ranges->bases[middle] <= address)
            low = middle;
        else
            high = middle - 1;
    }
    uint32_t owner = ranges->order[low];
    return address - ranges->range[owner].base < ranges->range[owner].bytes ? (int)owner : -1;
}

struct hr_range_piece {
    uint64_t address;
    uint64_t bytes;
    int owner; /* -1 = nobody's */
};

/*
 * The first piece of a request that lies with one owner (or with nobody). Call again behind it for the rest. bytes must be above
 * 0; a request that reaches over the end of 64 bits is cut there.
 */
struct hr_range_piece hr_ranges_piece(const struct hr_ranges *ranges, uint64_t address, uint64_t bytes);

#endif
