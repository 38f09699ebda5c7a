#include "policy/policy.h"

/*
 * Least recently used first. A quickselect finds the smallest prefix that frees enough, without sorting what stays; the
 * prefix itself is then sorted, so that callers that stop early still took the oldest.
 */

static void swap(struct hr_policy_run *a, struct hr_policy_run *b)
{
    struct hr_policy_run t = *a;
    *a = *b;
    *b = t;
}

static int before(const struct hr_policy_run *a, const struct hr_policy_run *b)
{
    return a->last_use != b->last_use ? a->last_use < b->last_use : a->first_chunk < b->first_chunk;
}

/* Partitions runs[low..high] around its middle element; returns that element's final place. */
static size_t partition(struct hr_policy_run *runs, size_t low, size_t high)
{
    swap(&runs[low + (high - low) / 2], &runs[high]);
    size_t place = low;
    for (size_t i = low; i < high; i++)
        if (before(&runs[i], &runs[high]))
            swap(&runs[i], &runs[place++]);
    swap(&runs[place], &runs[high]);
    return place;
}

static size_t chunks_in(const struct hr_policy_run *runs, size_t from, size_t to)
{
    size_t n = 0;
    for (size_t i = from; i < to; i++)
        n += runs[i].chunk_count;
    return n;
}

static void sort(struct hr_policy_run *runs, size_t count)
{
    while (count > 1) {
        size_t p = partition(runs, 0, count - 1);
        if (p < count - 1 - p) { /* recurse into the smaller side: depth stays logarithmic */
            sort(runs, p);
            runs += p + 1;
            count -= p + 1;
        } else {
            sort(runs + p + 1, count - 1 - p);
            count = p;
        }
    }
}

size_t hr_policy_pick_victims(struct hr_policy_run *runs, size_t run_count, size_t need_chunks)
{
    size_t low = 0, high = run_count, have = 0; /* runs[0..low) are chosen and hold `have` chunks */
    while (low < high && have < need_chunks) {
        size_t p = partition(runs, low, high - 1);
        size_t left = chunks_in(runs, low, p + 1);
        if (have + left >= need_chunks && p + 1 < high) {
            high = p + 1;
        } else if (have + left < need_chunks) {
            have += left;
            low = p + 1;
        } else { /* the pivot is the last candidate: it, or something before it, completes the set */
            if (have + left - runs[p].chunk_count >= need_chunks) {
                high = p;
            } else {
                low = p + 1;
                break;
            }
        }
    }
    sort(runs, low);
    return low;
}

uint32_t hr_policy_run_chunks(size_t chunk_bytes, size_t vram_chunks)
{
    size_t by_bytes = ((size_t)8 << 20) / chunk_bytes, by_share = vram_chunks / 64;
    size_t n = by_bytes < by_share ? by_bytes : by_share;
    return n < 1 ? 1 : (uint32_t)n;
}
