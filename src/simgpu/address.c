/*
 * Addresses: what the job sees (PROT_NONE reservations), what lies at each 2 MiB page (sg.regions), and the devices' page
 * tables with their slow path.
 */
#include "simgpu/check.h"
#include "simgpu/mempool.h"
#include "simgpu/share.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

static void *reserve_at(uint64_t wanted, uint64_t bytes)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    void *p = mmap((void *)(uintptr_t)wanted, bytes, PROT_NONE, flags, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    if ((uint64_t)(uintptr_t)p != wanted) { /* a kernel that takes the flag for a hint */
        munmap(p, bytes);
        return NULL;
    }
    return p;
}

uint64_t sg_va_reserve(uint64_t bytes, uint64_t align, uint64_t wanted)
{
    if (align < SG_PAGE_BYTES)
        align = SG_PAGE_BYTES;
    if (bytes > UINT64_C(1) << (SG_VA_BITS - 1) || align > UINT64_C(1) << (SG_VA_BITS - 1))
        return 0;
    if (wanted && !(wanted & (align - 1)) && wanted < UINT64_C(1) << SG_VA_BITS && reserve_at(wanted, bytes))
        return wanted;
    uint8_t *p = mmap(NULL, bytes + align, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return 0;
    uint8_t *at = (uint8_t *)(((uintptr_t)p + align - 1) & ~(uintptr_t)(align - 1));
    if (at > p)
        munmap(p, (size_t)(at - p));
    if (p + align > at)
        munmap(at + bytes, (size_t)(p + align - at));
    return (uint64_t)(uintptr_t)at;
}

void sg_va_release(uint64_t va, uint64_t bytes)
{
    munmap((void *)(uintptr_t)va, bytes);
}

struct sg_region *sg_region_at(uint64_t va)
{
    return va >> SG_VA_BITS ? NULL : sg.regions[va >> SG_PAGE_SHIFT];
}

bool sg_regions_set(struct sg_region *region, uint64_t va, uint64_t bytes)
{
    for (uint64_t page = va >> SG_PAGE_SHIFT; page < (va + bytes) >> SG_PAGE_SHIFT; page++)
        sg.regions[page] = region;
    return true;
}

struct sg_alloc *sg_alloc_at(uint64_t va)
{
    struct sg_region *r = sg_region_at(va);
    if (r && r->kind == SG_REGION_BLOCK)
        r = (struct sg_region *)((struct sg_block *)r)->slot[(va - r->va) / SG_SMALL_SLOT_BYTES];
    if (r && r->kind == SG_REGION_SEGMENT)
        r = (struct sg_region *)sg_segment_alloc_at((struct sg_segment *)r, va);
    if (!r || r->kind != SG_REGION_ALLOC || va - r->va >= r->bytes)
        return NULL;
    return (struct sg_alloc *)r;
}

bool sg_alloc_view(const struct sg_alloc *a, int device, bool write, int *device_out)
{
    *device_out = a->piece || a->managed ? device : a->device;
    if (a->foreign && !sg_foreign_lives(a->foreign))
        return false; /* its owner has freed it */
    return !a->piece || a->piece->segment->pool->access[device] & (write ? 2 : 1);
}

struct sg_mapping *sg_mapping_at(uint64_t va)
{
    struct sg_region *r = sg_region_at(va);
    return r && r->kind == SG_REGION_MAPPING ? (struct sg_mapping *)r : NULL;
}

struct sg_reservation *sg_reservation_at(uint64_t va)
{
    return sg_ranges_find(&sg.reservations, va);
}

struct sg_host *sg_host_at(uint64_t va)
{
    return sg_ranges_find(&sg.hosts, va);
}

bool sg_range_is_memory(uint64_t va, uint64_t bytes)
{
    if (va >> SG_VA_BITS || bytes > (UINT64_C(1) << SG_VA_BITS) - va)
        return false;
    struct sg_host *host = sg_host_at(va);
    if (host)
        return va + bytes <= host->va + host->bytes;
    struct sg_alloc *alloc = sg_alloc_at(va);
    if (alloc)
        return va + bytes <= alloc->region.va + alloc->region.bytes;
    while (bytes) {
        struct sg_mapping *m = sg_mapping_at(va);
        if (!m)
            return false;
        uint64_t rest = m->region.va + m->region.bytes - va;
        if (rest >= bytes)
            return true;
        va += rest;
        bytes -= rest;
    }
    return true;
}

void sg_pagetable_set(int device, uint64_t va, const struct sg_chunk *chunk, size_t pages, uint64_t rights)
{
    sg_pagetable_set_part(device, va, chunk, 0, pages, rights);
}

void sg_pagetable_set_part(int device, uint64_t va, const struct sg_chunk *chunk, size_t first, size_t pages,
                           uint64_t rights)
{
    _Atomic(uint64_t) *entry = &sg.devices[device].pagetable.pte[va >> SG_PAGE_SHIFT];
    enum sg_tier tier = !chunk || chunk->device == SG_ON_HOST ? SG_TIER_HOST
                        : chunk->device == device             ? SG_TIER_VRAM
                                                              : SG_TIER_PEER;
    for (size_t i = 0; i < pages; i++) {
        uint64_t value = 0;
        if (chunk && rights)
            value = sg_chunk_entry(chunk, first + i) | rights | ((uint64_t)tier << SG_PTE_TIER_SHIFT) |
                    ((uint64_t)(chunk->device + 1) << SG_PTE_OWNER_SHIFT) | (sg_check.accesses ? SG_PTE_SLOW : 0);
        atomic_store_explicit(&entry[i], value, memory_order_release);
    }
}

/* A page that is filled on its first touch: fill it, then let the next touch take the fast path. */
static void *first_touch(const struct sg_pagetable *pt, uint64_t va, uint64_t entry, int write, enum sg_tier *tier_out)
{
    if (!(entry & (write ? SG_PTE_WRITE : SG_PTE_READ)))
        return NULL;
    uint64_t host = entry & SG_PTE_HOST_MASK;
    sg_pool_fill(host);
    if (!sg_check.accesses)
        atomic_compare_exchange_strong(&pt->pte[va >> SG_PAGE_SHIFT], &entry, entry & ~SG_PTE_SLOW);
    *tier_out = (enum sg_tier)((entry & SG_PTE_TIER_MASK) >> SG_PTE_TIER_SHIFT);
    return (void *)(uintptr_t)(host + (va & (SG_PAGE_BYTES - 1)));
}

static void *translate_slow(const struct sg_pagetable *pt, uint64_t va, unsigned bytes, int write,
                            enum sg_tier *tier_out)
{
    uint64_t entry = atomic_load_explicit(&pt->pte[va >> SG_PAGE_SHIFT], memory_order_acquire);
    if (entry & SG_PTE_HOST_MASK)
        return first_touch(pt, va, entry, write, tier_out);
    if (!(entry & SG_PTE_SLOW))
        return NULL;
    pthread_rwlock_rdlock(&sg.host_lock);
    struct sg_host *host = sg_ranges_find(&sg.hosts, va);
    bool ok = host && va + bytes <= host->va + host->bytes && !(write && (host->flags & CU_MEMHOSTREGISTER_READ_ONLY));
    uint64_t place = ok ? sg_host_place(host, va) : 0;
    pthread_rwlock_unlock(&sg.host_lock);
    *tier_out = SG_TIER_HOST;
    return (void *)(uintptr_t)place;
}

CUresult sg_address_init(void)
{
    size_t bytes = (UINT64_C(1) << (SG_VA_BITS - SG_PAGE_SHIFT)) * sizeof(uint64_t);
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    sg.regions = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (sg.regions == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (int i = 0; i < sg.device_count; i++) {
        struct sg_pagetable *pt = &sg.devices[i].pagetable;
        pt->pte = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, -1, 0);
        if (pt->pte == MAP_FAILED)
            return CUDA_ERROR_OUT_OF_MEMORY;
        sg.devices[i].touched = mmap(NULL, bytes / 2, PROT_READ | PROT_WRITE, flags, -1, 0);
        if (sg.devices[i].touched == MAP_FAILED)
            return CUDA_ERROR_OUT_OF_MEMORY;
        pt->translate_slow = translate_slow;
        pt->owner = &sg.devices[i];
    }
    return CUDA_SUCCESS;
}

/* ---- what a bad address has to do with anything ---- */

#define GONE_MOST 4096
struct gone { /* the latest ranges that went, in a ring */
    struct {
        uint64_t va, bytes;
    } at[GONE_MOST];
    unsigned next;
};
static struct gone freed, unmapped;

static void note(struct gone *g, uint64_t va, uint64_t bytes)
{
    g->at[g->next % GONE_MOST].va = va;
    g->at[g->next++ % GONE_MOST].bytes = bytes;
}

/* Index of the latest of them around va; GONE_MOST = none. */
static unsigned gone_at(const struct gone *g, uint64_t va)
{
    for (unsigned i = 0; i < GONE_MOST; i++) {
        unsigned k = (g->next + GONE_MOST - 1 - i) % GONE_MOST;
        if (g->at[k].bytes && va - g->at[k].va < g->at[k].bytes)
            return k;
    }
    return GONE_MOST;
}

void sg_note_freed(uint64_t va, uint64_t bytes)
{
    note(&freed, va, bytes);
    if (sg_check.race)
        sg_race_forget(va, bytes);
}

void sg_note_freed_later(uint64_t va, uint64_t bytes)
{
    note(&freed, va, bytes);
}

void sg_note_unmapped(uint64_t va, uint64_t bytes)
{
    note(&unmapped, va, bytes);
    if (sg_check.race)
        sg_race_forget(va, bytes);
}

enum sg_finding_kind sg_finding_at(int device, uint64_t va)
{
    if (va >> SG_VA_BITS)
        return SG_FINDING_NO_MEMORY;
    struct sg_mapping *m = sg_mapping_at(va);
    struct sg_alloc *a = sg_alloc_at(va);
    int seen_by;
    if (a && a->piece && !a->piece->span->begun)
        return SG_FINDING_BEFORE_MAP; /* its stream has not got there */
    if (a && a->graph && !a->chunk)
        return a->was_backed ? SG_FINDING_AFTER_FREE : SG_FINDING_BEFORE_MAP;
    if (m || a)
        return (m && !m->access[device]) || (a && (!sg_alloc_view(a, device, false, &seen_by) || seen_by != device))
                   ? SG_FINDING_NO_GRANT
                   : SG_FINDING_NO_MEMORY;
    if (sg_reservation_at(va))
        return gone_at(&unmapped, va) < GONE_MOST ? SG_FINDING_AFTER_UNMAP : SG_FINDING_BEFORE_MAP;
    if (gone_at(&freed, va) < GONE_MOST)
        return SG_FINDING_AFTER_FREE;
    return sg_check.redzone && sg_region_at(va) ? SG_FINDING_RED_ZONE : SG_FINDING_NO_MEMORY;
}

static bool describe_known(uint64_t va, char *text, size_t text_bytes)
{
    struct sg_alloc *alloc = sg_alloc_at(va);
    if (alloc && alloc->piece && !alloc->piece->span->begun) {
        snprintf(text, text_bytes,
                 "%" PRIu64 " bytes into an allocation of %" PRIu64 " bytes to which its stream has not got yet",
                 va - alloc->region.va, alloc->region.bytes);
        return true;
    }
    if (alloc) {
        snprintf(text, text_bytes, "%" PRIu64 " bytes into an allocation of %" PRIu64 " bytes on device %d, no access",
                 va - alloc->region.va, alloc->region.bytes, alloc->device);
        return true;
    }
    struct sg_mapping *m = sg_mapping_at(va);
    if (m) {
        snprintf(text, text_bytes,
                 "in a mapping at 0x%" PRIx64 " of %" PRIu64 " bytes, to which this device has no access", m->region.va,
                 m->region.bytes);
        return true;
    }
    struct sg_reservation *r = sg_reservation_at(va);
    if (r) {
        snprintf(text, text_bytes,
                 "in an unmapped VMM range: %" PRIu64 " bytes into the reservation 0x%" PRIx64 " of %" PRIu64 " bytes",
                 va - r->va, r->va, r->bytes);
        return true;
    }
    unsigned i = gone_at(&freed, va);
    if (i < GONE_MOST)
        snprintf(text, text_bytes, "%" PRIu64 " bytes into freed memory that was 0x%" PRIx64 ", %" PRIu64 " bytes",
                 va - freed.at[i].va, freed.at[i].va, freed.at[i].bytes);
    return i < GONE_MOST;
}

static void nearer(uint64_t va, uint64_t start, uint64_t bytes, const char *what, uint64_t *best, char *text,
                   size_t text_bytes)
{
    bool past = va >= start + bytes;
    uint64_t distance = past ? va - (start + bytes) : start - va;
    if (va >= start && !past)
        return;
    if (distance >= *best)
        return;
    *best = distance;
    snprintf(text, text_bytes, "%" PRIu64 " bytes %s the %s 0x%" PRIx64 " of %" PRIu64 " bytes", distance,
             past ? "past the end of" : "before", what, start, bytes);
}

void sg_describe_address(uint64_t va, char *text, size_t text_bytes)
{
    if (!(va >> SG_VA_BITS) && describe_known(va, text, text_bytes))
        return;
    snprintf(text, text_bytes, "nowhere near any memory");
    uint64_t best = UINT64_C(1) << 32;
    struct sg_context *c;
    struct sg_alloc *a;
    DL_FOREACH(sg.contexts, c)
    DL_FOREACH(c->allocs, a)
    nearer(va, a->region.va, a->region.bytes, "allocation", &best, text, text_bytes);
    for (size_t i = 0; i < sg.hosts.count; i++)
        nearer(va, sg.hosts.at[i].va, sg.hosts.at[i].bytes, "pinned host range", &best, text, text_bytes);
    for (size_t i = 0; i < sg.reservations.count; i++)
        nearer(va, sg.reservations.at[i].va, sg.reservations.at[i].bytes, "reservation", &best, text, text_bytes);
}
