/*
 * Accesses of kernels, seen one by one.
 *
 * When something wants to see them, all entries of the page tables stay marked as slow, and a grid runs with a table whose slow
 * path is the one below: it translates as always, then tells who asked. With nothing to look for, no entry is marked and the
 * interpreter never comes here.
 *
 * Red zones: for pages on which an allocation begins or ends, a table tells how many bytes of each 512-byte slot are anybody's.
 * It is read without a lock; tables are never given back, since a kernel may still look at one whose page was freed.
 */
#include "simgpu/check.h"

#include <sys/mman.h>

typedef _Atomic(uint16_t) bound;
static _Atomic(bound *) *bounds; /* one per page of the address space; NULL = all of it may be touched */

/* ---- red zones ---- */

static void *zeroed(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static bool bounds_init(void)
{
    if (bounds)
        return true;
    bounds = zeroed((UINT64_C(1) << (SG_VA_BITS - SG_PAGE_SHIFT)) * sizeof *bounds);
    return bounds != NULL;
}

static bound *table_at(uint64_t page, bool make)
{
    if (!sg_check.redzone || !bounds_init())
        return NULL;
    _Atomic(bound *) *slot = &bounds[page >> SG_PAGE_SHIFT];
    bound *table = atomic_load_explicit(slot, memory_order_acquire);
    if (!table && make) {
        table = zeroed(SG_BLOCK_SLOTS * sizeof *table);
        atomic_store_explicit(slot, table, memory_order_release);
    }
    return table;
}

void sg_redzone_page(uint64_t page, bool open)
{
    bound *table = table_at(page, !open);
    for (unsigned i = 0; table && i < SG_BLOCK_SLOTS; i++)
        atomic_store_explicit(&table[i], open ? SG_SMALL_SLOT_BYTES : 0, memory_order_release);
}

void sg_redzone_set(const struct sg_alloc *a, bool live)
{
    uint64_t end = a->region.va + a->region.bytes, page = (a->chunk ? end : a->region.va) & ~(SG_PAGE_BYTES - 1);
    if (page == end)
        return; /* whole pages: what lies around them is not mapped */
    if (a->chunk)
        sg_redzone_page(page, !live); /* its own; it may become an inner one of another allocation, or a mapping */
    bound *table = table_at(page, live);
    uint64_t first = page > a->region.va ? page : a->region.va;
    for (uint64_t slot = first; table && (live || !a->chunk) && slot < end; slot += SG_SMALL_SLOT_BYTES) {
        uint64_t valid = !live ? 0 : end - slot < SG_SMALL_SLOT_BYTES ? end - slot : SG_SMALL_SLOT_BYTES;
        atomic_store_explicit(&table[(slot - page) / SG_SMALL_SLOT_BYTES], (uint16_t)valid, memory_order_release);
    }
}

static bool in_bounds(uint64_t va, unsigned bytes)
{
    if (!bounds)
        return true;
    const bound *table = atomic_load_explicit(&bounds[va >> SG_PAGE_SHIFT], memory_order_acquire);
    while (table && bytes) {
        uint64_t offset = va & (SG_SMALL_SLOT_BYTES - 1), rest = SG_SMALL_SLOT_BYTES - offset;
        uint64_t part = bytes < rest ? bytes : rest;
        if (offset + part >
            atomic_load_explicit(&table[(va & (SG_PAGE_BYTES - 1)) / SG_SMALL_SLOT_BYTES], memory_order_acquire))
            return false;
        va += part;
        bytes -= (unsigned)part;
    }
    return true;
}

/* ---- the grid's slow path ---- */

static bool is_pinned(uint64_t va)
{
    pthread_rwlock_rdlock(&sg.host_lock);
    bool pinned = sg_host_at(va) != NULL;
    pthread_rwlock_unlock(&sg.host_lock);
    return pinned;
}

static void *translate(const struct sg_pagetable *pt, uint64_t va, unsigned bytes, int how, enum sg_tier *tier_out)
{
    const struct sg_op *op = pt->owner;
    const struct sg_pagetable *device = &sg.devices[op->kernel.device].pagetable;
    void *host = device->translate_slow(device, va, bytes, how & 1, tier_out);
    if (!host || (sg_check.redzone && !in_bounds(va, bytes)))
        return NULL;
    /* Memory that the CPU sees, too: pinned or managed (at its own address, or mapped twice), or a chunk to which it was given access. */
    bool on_host =
        (uint64_t)(uintptr_t)host == va ||
        (*tier_out == SG_TIER_HOST && (atomic_load(&sg_check.host_maps) || (sg_check.host && is_pinned(va))));
    bool in_heap =
        va - op->kernel.heap_va < op->kernel.heap_bytes; /* what one kernel frees another may get, in order */
    if (op->race && !in_heap)
        sg_race_access(op->race, va, bytes, (unsigned)how, on_host);
    if (sg_check.deadlock)
        sg_deadlock_access(va, host, bytes, how & 1, on_host);
    return host;
}

void sg_access_watch(struct sg_op *op)
{
    op->kernel.device = op->stream->context->device;
    op->kernel.heap_va = op->stream->context->heap_va;
    op->kernel.heap_bytes = op->stream->context->heap_bytes;
    op->kernel.view.translate_slow = translate;
    op->kernel.view.owner = op;
}
