#include "stats/site.h"

#include <string.h>

/*
 * A fixed open-addressing table; a slot is claimed by a compare-and-swap of its hash, so there is no lock. When it is full,
 * further sites are not recorded. Taking a stack costs microseconds, so allocations are sampled by bytes: a thread takes one
 * each time that it has allocated another `interval` bytes, and the interval grows while stacks are taken too often.
 */

#define SITE_SLOTS 1024
#define FIRST_INTERVAL_BYTES ((uint64_t)1 << 20)
#define STACKS_PER_DOUBLING 64

static struct hr_site table[SITE_SLOTS];
static _Thread_local struct {
    uint64_t until_next, interval, taken;
} sampler __attribute__((tls_model("initial-exec")));

static struct hr_site *find_or_claim(uint64_t hash, const struct hr_callsite *where)
{
    for (size_t i = 0; i < SITE_SLOTS; i++) {
        struct hr_site *site = &table[(hash + i) % SITE_SLOTS];
        uint64_t have = atomic_load_explicit(&site->hash, memory_order_acquire);
        if (have == hash)
            return site;
        if (have != 0)
            continue;
        if (atomic_compare_exchange_strong(&site->hash, &have, 1)) { /* 1 = being filled; hashes of 1 are mapped away */
            site->where = *where;
            atomic_store_explicit(&site->hash, hash, memory_order_release);
            return site;
        }
        i--; /* somebody claimed this slot just now: look at it again */
    }
    return NULL;
}

struct hr_site *hr_site_sample(struct hr_thread *t, size_t bytes, void *return_pc)
{
    (void)t;
    if (sampler.interval == 0)
        sampler.interval = FIRST_INTERVAL_BYTES;
    if (bytes < sampler.until_next) {
        sampler.until_next -= bytes;
        return NULL;
    }
    sampler.until_next = sampler.interval;
    if (++sampler.taken % STACKS_PER_DOUBLING == 0 && sampler.interval < UINT64_C(1) << 40)
        sampler.interval *= 2;
    struct hr_callsite where;
    hr_callsite_capture(return_pc, &where);
    uint64_t hash = hr_callsite_hash(&where);
    struct hr_site *site = find_or_claim(hash > 1 ? hash : 2, &where);
    if (!site)
        return NULL;
    atomic_fetch_add(&site->allocations, 1);
    atomic_fetch_add(&site->bytes, bytes);
    uint64_t live = atomic_fetch_add(&site->live_bytes, bytes) + bytes, peak = atomic_load(&site->peak_live_bytes);
    while (live > peak && !atomic_compare_exchange_weak(&site->peak_live_bytes, &peak, live)) {
    }
    return site;
}

void hr_site_freed(struct hr_site *site, size_t bytes)
{
    if (site)
        atomic_fetch_sub(&site->live_bytes, bytes);
}

void hr_site_moved_out(struct hr_site *site, size_t bytes)
{
    if (site)
        atomic_fetch_add(&site->moved_out_bytes, bytes);
}

uint16_t hr_site_number(const struct hr_site *site)
{
    return site ? (uint16_t)(site - table + 1) : 0;
}

struct hr_site *hr_site_numbered(uint16_t number)
{
    return number ? &table[number - 1] : NULL;
}

size_t hr_site_top(struct hr_site **sites_out, size_t most)
{
    size_t count = 0;
    for (size_t i = 0; i < SITE_SLOTS; i++) {
        struct hr_site *site = &table[i];
        if (atomic_load_explicit(&site->hash, memory_order_acquire) <= 1)
            continue;
        size_t at = count < most ? count++ : most;
        while (at > 0 && atomic_load(&sites_out[at - 1]->bytes) < atomic_load(&site->bytes)) {
            if (at < most)
                sites_out[at] = sites_out[at - 1];
            at--;
        }
        if (at < most && (at < count))
            sites_out[at] = site;
    }
    return count;
}
