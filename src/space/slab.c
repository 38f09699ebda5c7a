#include "space/internal.h"

#include "space/ledger.h"

#include <stdlib.h>
#include <string.h>

/*
 * Small allocations: one chunk is cut into equal slots. Slots are handed out in address order, so that what is allocated
 * together lies together and shares the fewest chunks. Size classes: multiples of 512 bytes up to 4 KiB, then eight per
 * doubling (at most 12.5 % of padding), up to half a chunk.
 *
 * A slot's requested size doubles as its live mark; it is exchanged to 0 by exactly one free.
 */

struct hr_slab {
    unsigned class_index;
    uint32_t slot_count;
    uint32_t free_count;  /* guarded by hr_window_lock: bits set in free_bits */
    bool listed;          /* guarded by hr_window_lock: in the partial list */
    struct hr_slab *next; /* guarded by hr_window_lock: in the pool of unused ones */
    size_t slot_bytes;
    uint64_t *free_bits;           /* guarded by hr_window_lock */
    _Atomic(uint32_t) *size_bytes; /* per slot, 0 = not live */
    _Atomic(uint32_t) *generation; /* per slot, for the buffer id */
    _Atomic(uint16_t) *site;       /* per slot: hr_space_note_site; 0 = none */
};

static struct hr_extent *partial[HR_MAX_GPUS][HR_CLASS_COUNT]; /* guarded by hr_window_lock */
/* Unused slabs are kept, not freed: a look-up of a pointer that was just freed may still read one. */
static struct hr_slab *pool[HR_MAX_GPUS][HR_CLASS_COUNT]; /* guarded by hr_window_lock */

/* Classes 0..7: 512..4096. Then 8 per doubling: 4096 * (8 + k) / 8 << octave, k = 1..8. */
size_t hr_slab_class_bytes(unsigned class_index)
{
    if (class_index < 8)
        return (size_t)512 * (class_index + 1);
    unsigned octave = (class_index - 8) / 8, step = (class_index - 8) % 8 + 1;
    return ((size_t)512 * (8 + step)) << octave;
}

unsigned hr_slab_class(size_t bytes)
{
    if (bytes > hr_chunk_bytes() / 2)
        return HR_CLASS_COUNT;
    if (bytes <= 4096)
        return (unsigned)((bytes + 511) / 512) - 1;
    unsigned octave = 63u - (unsigned)__builtin_clzll((bytes - 1) >> 12);
    size_t unit = (size_t)512 << octave;
    unsigned c = 8 + octave * 8 + (unsigned)((bytes - ((size_t)4096 << octave) + unit - 1) / unit) - 1;
    return c < HR_CLASS_COUNT ? c : HR_CLASS_COUNT;
}

static unsigned cache_limit(size_t slot_bytes)
{
    size_t n = ((size_t)512 << 10) / slot_bytes;
    return n < 1 ? 1 : n > HR_SMALL_CACHE ? HR_SMALL_CACHE : (unsigned)n;
}

static void list_locked(struct hr_extent *e)
{
    struct hr_extent **head = &partial[e->gpu][e->slab->class_index];
    e->prev = NULL;
    e->next = *head;
    if (*head)
        (*head)->prev = e;
    *head = e;
    e->slab->listed = true;
}

static void unlist_locked(struct hr_extent *e)
{
    struct hr_extent **head = &partial[e->gpu][e->slab->class_index];
    if (e->prev)
        e->prev->next = e->next;
    else
        *head = e->next;
    if (e->next)
        e->next->prev = e->prev;
    e->next = e->prev = NULL;
    e->slab->listed = false;
}

static struct hr_slab *slab_create_locked(unsigned gpu, unsigned class_index)
{
    size_t slot_bytes = hr_slab_class_bytes(class_index);
    uint32_t slots = (uint32_t)(hr_chunk_bytes() / slot_bytes);
    size_t words = (slots + 63) / 64;
    struct hr_slab *slab = pool[gpu][class_index];
    if (slab) {
        pool[gpu][class_index] = slab->next;
    } else {
        slab = calloc(1, sizeof *slab + words * 8 + (size_t)slots * 10);
        if (!slab)
            return NULL;
        slab->free_bits = (uint64_t *)(slab + 1);
        slab->size_bytes = (_Atomic(uint32_t) *)(slab->free_bits + words);
        slab->generation = slab->size_bytes + slots;
        slab->site = (_Atomic(uint16_t) *)(slab->generation + slots);
        slab->class_index = class_index;
        slab->slot_bytes = slot_bytes;
        slab->slot_count = slots;
    }
    slab->free_count = slots;
    for (uint32_t i = 0; i < slots; i++) {
        atomic_store_explicit(&slab->site[i], 0, memory_order_relaxed);
        slab->free_bits[i / 64] |= UINT64_C(1) << (i % 64);
    }
    return slab;
}

/* A fresh slab extent, charged and listed; NULL = out of memory. */
static struct hr_extent *make_slab_locked(struct hr_thread *t, unsigned gpu, CUcontext ctx, unsigned class_index)
{
    if (!hr_ledger_charge(t, gpu, hr_chunk_bytes()))
        return NULL;
    struct hr_extent *e = hr_ranges_take_locked(gpu, 1);
    struct hr_slab *slab = e ? slab_create_locked(gpu, class_index) : NULL;
    if (!slab) {
        if (e)
            hr_ranges_give_locked(e);
        hr_ledger_uncharge(t, gpu, hr_chunk_bytes());
        return NULL;
    }
    hr_extent_change(e);
    HR_EXTENT_SET(e, slab, slab);
    HR_EXTENT_SET(e, ctx, ctx);
    HR_EXTENT_SET(e, bytes, hr_chunk_bytes());
    HR_EXTENT_SET(e, id, hr_space_next_id(t));
    HR_EXTENT_SET(e, kind, HR_EXTENT_SLAB);
    hr_extent_changed(e);
    atomic_store_explicit(&e->live, 1, memory_order_release);
    list_locked(e);
    return e;
}

static CUdeviceptr take_slot_locked(struct hr_extent *e)
{
    struct hr_slab *slab = e->slab;
    for (uint32_t w = 0; w < (slab->slot_count + 63) / 64; w++) {
        if (!slab->free_bits[w])
            continue;
        uint32_t index = w * 64 + (uint32_t)__builtin_ctzll(slab->free_bits[w]);
        slab->free_bits[w] &= slab->free_bits[w] - 1;
        if (--slab->free_count == 0)
            unlist_locked(e);
        return e->base + index * slab->slot_bytes;
    }
    return 0;
}

/* Gives one slot back. Returns e where that was the last one in use: then it is dead and off the list. */
static struct hr_extent *give_slot_locked(struct hr_extent *e, CUdeviceptr address)
{
    struct hr_slab *slab = e->slab;
    uint32_t index = (uint32_t)((address - e->base) / slab->slot_bytes);
    slab->free_bits[index / 64] |= UINT64_C(1) << (index % 64);
    slab->free_count++;
    if (slab->free_count == slab->slot_count) {
        if (slab->listed)
            unlist_locked(e);
        atomic_store_explicit(&e->live, 0, memory_order_release);
        return e;
    }
    if (!slab->listed)
        list_locked(e);
    return NULL;
}

static bool refill(struct hr_thread *t, unsigned gpu, CUcontext ctx, unsigned class_index, struct hr_cache *cache)
{
    unsigned want = cache_limit(hr_slab_class_bytes(class_index)), got = 0;
    CUdeviceptr taken[HR_SMALL_CACHE];
    hr_mutex_lock(&hr_window_lock[gpu]);
    struct hr_extent *e = partial[gpu][class_index];
    while (e && e->ctx != ctx)
        e = e->next;
    if (!e)
        e = make_slab_locked(t, gpu, ctx, class_index);
    while (e && got < want && e->slab->free_count > 0)
        taken[got++] = take_slot_locked(e);
    hr_mutex_unlock(&hr_window_lock[gpu]);
    for (unsigned i = got; i > 0; i--)
        cache->small[class_index][cache->small_count[class_index]++] = taken[i - 1];
    return got > 0;
}

CUresult hr_slab_alloc(struct hr_thread *t, unsigned gpu, CUcontext ctx, size_t bytes, CUdeviceptr *address_out)
{
    unsigned c = hr_slab_class(bytes);
    struct hr_cache *cache = hr_space_cache(t, gpu);
    if (!cache)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (cache->ctx != ctx) {
        hr_space_flush_slots(t, gpu, cache);
        cache->ctx = ctx;
    }
    if (cache->small_count[c] == 0 && !refill(t, gpu, ctx, c, cache))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUdeviceptr address = cache->small[c][--cache->small_count[c]];
    hr_slab_revive(atomic_load_explicit(&hr_space_chunk(address)->extent, memory_order_acquire), address, bytes);
    *address_out = address;
    return CUDA_SUCCESS;
}

void hr_slab_revive(struct hr_extent *e, CUdeviceptr address, size_t bytes)
{
    uint32_t index = (uint32_t)((address - e->base) / e->slab->slot_bytes);
    atomic_fetch_add_explicit(&e->slab->generation[index], 1, memory_order_relaxed);
    atomic_store_explicit(&e->slab->site[index], 0, memory_order_relaxed);
    atomic_store_explicit(&e->slab->size_bytes[index], (uint32_t)bytes, memory_order_release);
}

static _Atomic(uint16_t) *site_of(struct hr_extent *e, CUdeviceptr address)
{
    return &e->slab->site[(address - e->base) / e->slab->slot_bytes];
}

void hr_space_note_site(struct hr_extent *e, CUdeviceptr address, uint16_t site)
{
    atomic_store_explicit(site_of(e, address), site, memory_order_relaxed);
}

uint16_t hr_space_forget_site(struct hr_extent *e, CUdeviceptr address)
{
    _Atomic(uint16_t) *site = site_of(e, address);
    uint16_t had = atomic_load_explicit(site, memory_order_relaxed);
    if (had)
        atomic_store_explicit(site, 0, memory_order_relaxed);
    return had;
}

void hr_space_each_site(struct hr_extent *e, void (*visit)(uint16_t site, size_t bytes))
{
    for (uint32_t i = 0; i < e->slab->slot_count; i++) {
        uint16_t site = atomic_load_explicit(&e->slab->site[i], memory_order_relaxed);
        if (site)
            visit(site, e->slab->slot_bytes);
    }
}

enum hr_retire hr_slab_retire(struct hr_extent *e, CUdeviceptr address, size_t *bytes_out)
{
    struct hr_slab *slab = e->slab;
    size_t offset = address - e->base;
    uint32_t index = (uint32_t)(offset / slab->slot_bytes);
    if (offset % slab->slot_bytes != 0 || index >= slab->slot_count)
        return HR_RETIRE_INVALID;
    uint32_t size = atomic_exchange(&slab->size_bytes[index], 0);
    if (size == 0)
        return HR_RETIRE_INVALID;
    *bytes_out = size;
    return atomic_load(&e->touched) ? HR_RETIRE_TOUCHED : HR_RETIRE_UNTOUCHED;
}

struct hr_extent *hr_slab_release(struct hr_thread *t, struct hr_extent *e, CUdeviceptr address)
{
    struct hr_cache *cache = hr_space_cache(t, e->gpu);
    unsigned c = e->slab->class_index;
    if (cache && cache->ctx == e->ctx && cache->small_count[c] < cache_limit(e->slab->slot_bytes)) {
        cache->small[c][cache->small_count[c]++] = address;
        return NULL;
    }
    hr_mutex_lock(&hr_window_lock[e->gpu]);
    struct hr_extent *empty = give_slot_locked(e, address);
    hr_mutex_unlock(&hr_window_lock[e->gpu]);
    return empty;
}

void hr_slab_retire_locked(struct hr_extent *e)
{
    e->slab->next = pool[e->gpu][e->slab->class_index];
    pool[e->gpu][e->slab->class_index] = e->slab;
}

bool hr_slab_find(struct hr_extent *e, const struct hr_view *view, CUdeviceptr address,
                  struct hr_allocation *allocation_out)
{
    struct hr_slab *slab = view->slab;
    uint32_t index = (uint32_t)((address - view->base) / slab->slot_bytes);
    if (index >= slab->slot_count)
        return false;
    uint32_t size = atomic_load_explicit(&slab->size_bytes[index], memory_order_acquire);
    CUdeviceptr base = view->base + index * slab->slot_bytes;
    if (size == 0 || address >= base + size)
        return false;
    uint32_t generation = atomic_load_explicit(&slab->generation[index], memory_order_relaxed);
    *allocation_out = (struct hr_allocation){
        base, size, (view->id << 28) ^ ((uint64_t)index << 16) ^ (generation & 0xffff), e->gpu, view->ctx, e};
    return true;
}

void hr_slab_keep_empty(struct hr_extent *e)
{
    hr_mutex_lock(&hr_window_lock[e->gpu]);
    atomic_store_explicit(&e->live, 1, memory_order_release);
    list_locked(e);
    hr_mutex_unlock(&hr_window_lock[e->gpu]);
}

struct hr_extent *hr_slab_flush_cache(struct hr_thread *t, unsigned gpu, struct hr_cache *cache)
{
    struct hr_extent *backed = NULL;
    hr_mutex_lock(&hr_window_lock[gpu]);
    for (unsigned c = 0; c < HR_CLASS_COUNT; c++) {
        while (cache->small_count[c] > 0) {
            CUdeviceptr address = cache->small[c][--cache->small_count[c]];
            struct hr_extent *e = atomic_load_explicit(&hr_space_chunk(address)->extent, memory_order_acquire);
            struct hr_extent *empty = give_slot_locked(e, address);
            if (empty && atomic_load(&empty->touched)) {
                empty->next = backed;
                backed = empty;
            } else if (empty) {
                hr_slab_retire_locked(empty);
                hr_ranges_give_locked(empty);
                hr_ledger_uncharge(t, gpu, hr_chunk_bytes());
            }
        }
    }
    hr_mutex_unlock(&hr_window_lock[gpu]);
    return backed;
}

struct hr_extent *hr_slab_take_empty(unsigned gpu, CUcontext ctx)
{
    struct hr_extent *taken = NULL;
    hr_mutex_lock(&hr_window_lock[gpu]);
    for (unsigned c = 0; c < HR_CLASS_COUNT; c++) {
        for (struct hr_extent *e = partial[gpu][c], *next; e; e = next) {
            next = e->next;
            if (e->ctx != ctx || e->slab->free_count < e->slab->slot_count)
                continue;
            unlist_locked(e);
            atomic_store_explicit(&e->live, 0, memory_order_release);
            e->next = taken;
            taken = e;
        }
    }
    hr_mutex_unlock(&hr_window_lock[gpu]);
    return taken;
}

bool hr_slab_each(const struct hr_view *view, bool (*visit)(CUdeviceptr address, void *arg), void *arg)
{
    for (uint32_t i = 0; i < view->slab->slot_count; i++)
        if (atomic_load_explicit(&view->slab->size_bytes[i], memory_order_acquire) != 0 &&
            !visit(view->base + i * view->slab->slot_bytes, arg))
            return false;
    return true;
}
