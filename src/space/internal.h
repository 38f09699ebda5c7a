/* Shared by the files of src/space only. */
#ifndef HR_SPACE_INTERNAL_H
#define HR_SPACE_INTERNAL_H

#include "base/lock.h"
#include "space/space.h"

#define HR_CLASS_COUNT HR_SMALL_CLASSES /* up to 1 MiB; see slab.c */
#define HR_SMALL_CACHE 32               /* slots kept per class and thread at most */
#define HR_LARGE_CLASSES 8              /* extents of 1..8 chunks are cached per thread */
#define HR_LARGE_CACHE 8                /* this many of each */

/* A thread's share of one window. */
struct hr_cache {
    CUcontext ctx; /* whose slots the small caches hold; slabs belong to one context */
    uint8_t small_count[HR_CLASS_COUNT];
    uint8_t large_count[HR_LARGE_CLASSES];
    CUdeviceptr small[HR_CLASS_COUNT][HR_SMALL_CACHE];
    struct hr_extent *large[HR_LARGE_CLASSES][HR_LARGE_CACHE];
};

struct hr_space_thread {
    _Atomic(uint64_t) credit_bytes[HR_MAX_GPUS];
    uint64_t next_id;
    struct hr_cache *cache[HR_MAX_GPUS];
};

/* The thread's part of this room, made at first use; NULL = out of memory. */
struct hr_space_thread *hr_space_thread(struct hr_thread *t);
/* The thread's cache of a window, made at first use; NULL = out of memory. */
struct hr_cache *hr_space_cache(struct hr_thread *t, unsigned gpu);
uint64_t hr_space_next_id(struct hr_thread *t);

/* One lock per window: its free address ranges, its slabs. */
extern struct hr_mutex hr_window_lock[HR_MAX_GPUS];

/* Chunks up to this one of e's window are in use from now on. */
static inline void hr_space_note_used(const struct hr_extent *e, uint32_t end_chunk)
{
    _Atomic(uint32_t) *used = &hr_space.window[e->gpu].used_chunks;
    uint32_t count = end_chunk - hr_space.window[e->gpu].first_chunk, seen = atomic_load(used);
    while (seen < count && !atomic_compare_exchange_weak(used, &seen, count))
        ;
}

/* ranges.c: whole-chunk ranges. Extents come back with kind FREE, live 0. */
CUresult hr_ranges_init(void);
struct hr_extent *hr_ranges_take_locked(unsigned gpu, uint32_t chunk_count);
/* The same without a word in the chunk array: nothing there names the extent. */
struct hr_extent *hr_ranges_take_bare_locked(unsigned gpu, uint32_t chunk_count);
void hr_ranges_give_locked(struct hr_extent *e);
void hr_ranges_give_bare_locked(struct hr_extent *e);

/*
 * How an owner changes what hr_space_view copies: in between, stores with SET, which later readers of the version cannot
 * overtake.
 */
static inline void hr_extent_change(struct hr_extent *e)
{
    atomic_store_explicit(&e->version, e->version + 1, memory_order_relaxed);
}
static inline void hr_extent_changed(struct hr_extent *e)
{
    atomic_store_explicit(&e->version, e->version + 1, memory_order_release);
}
#define HR_EXTENT_SET(e, field, value) atomic_store_explicit(&(e)->field, (value), memory_order_release)

/* slab.c */
unsigned hr_slab_class(size_t bytes); /* HR_CLASS_COUNT = too large for a slab */
size_t hr_slab_class_bytes(unsigned class_index);
CUresult hr_slab_alloc(struct hr_thread *t, unsigned gpu, CUcontext ctx, size_t bytes, CUdeviceptr *address_out);
enum hr_retire hr_slab_retire(struct hr_extent *e, CUdeviceptr address, size_t *bytes_out);
struct hr_extent *hr_slab_release(struct hr_thread *t, struct hr_extent *e, CUdeviceptr address);
void hr_slab_revive(struct hr_extent *e, CUdeviceptr address, size_t bytes);
void hr_slab_retire_locked(struct hr_extent *e);
/* What hr_space_find says of an address within a slab. */
bool hr_slab_find(struct hr_extent *e, const struct hr_view *view, CUdeviceptr address,
                  struct hr_allocation *allocation_out);
/* Gives cached slots back. Returns the slabs that are empty now and have backing, dead, linked by `next`: the caller has the
 * backing dropped and releases them, or hands them to hr_slab_keep_empty. */
struct hr_extent *hr_slab_flush_cache(struct hr_thread *t, unsigned gpu, struct hr_cache *cache);
void hr_slab_keep_empty(struct hr_extent *e);
/* The same of slabs of a context that were kept empty. */
struct hr_extent *hr_slab_take_empty(unsigned gpu, CUcontext ctx);
/* space.c: flushes, with what follows for empty slabs. */
void hr_space_flush_slots(struct hr_thread *t, unsigned gpu, struct hr_cache *cache);
/* Calls visit for each live slot of the slab. */
bool hr_slab_each(const struct hr_view *view, bool (*visit)(CUdeviceptr address, void *arg), void *arg);

#endif
