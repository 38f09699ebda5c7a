#include "space/space.h"

#include "base/log.h"
#include "base/roots.h"
#include "space/internal.h"
#include "space/ledger.h"

#include <string.h>
#include <sys/mman.h>

struct hr_space hr_space;

struct hr_mutex hr_window_lock[HR_MAX_GPUS] = {
    [0 ... HR_MAX_GPUS - 1] = HR_MUTEX_INIT(HR_RANK_TABLE, "window"),
};

const char *hr_chunk_state_name(enum hr_chunk_state state)
{
    static const char *const names[] = {"RESERVED", "RESIDENT", "PEER", "HOST", "MOVING_IN", "MOVING_OUT"};
    return (unsigned)state < sizeof names / sizeof *names ? names[state] : "?";
}

static void *system_pages(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static void flush_ending_thread(struct hr_thread *t);

/* Lays the windows side by side, each with `times` its capacity of addresses; the number of chunks of all. */
static size_t lay_out(const size_t *cap_bytes, unsigned times)
{
    size_t chunk_bytes = (size_t)1 << hr_space.chunk_shift, chunks = 0;
    for (unsigned g = 0; g < hr_space.gpu_count; g++) {
        hr_space.window[g].first_chunk = (uint32_t)chunks;
        hr_space.window[g].chunk_count = (uint32_t)((cap_bytes[g] * times + chunk_bytes - 1) >> hr_space.chunk_shift);
        chunks += hr_space.window[g].chunk_count;
    }
    return chunks;
}

CUresult hr_space_init(unsigned gpu_count, const size_t *cap_bytes, unsigned chunk_shift)
{
    CUdeviceptr base = 0;
    CUresult r = CUDA_ERROR_OUT_OF_MEMORY;
    size_t chunks = 0;
    hr_space.gpu_count = gpu_count;
    hr_space.chunk_shift = chunk_shift;
    for (unsigned times = HR_SPACE_SPARE; times > 0 && r != CUDA_SUCCESS; times /= 2) {
        chunks = lay_out(cap_bytes, times);
        if (times > 1 && chunks << chunk_shift > HR_SPACE_MOST)
            continue;
        r = hr_drv.cuMemAddressReserve(&base, chunks << chunk_shift, (size_t)1 << chunk_shift, 0, 0);
    }
    if (r != CUDA_SUCCESS) {
        hr_log(HR_LOG_ERROR, "cannot reserve %zu bytes of addresses for the windows (error %d)", chunks << chunk_shift,
               (int)r);
        return r;
    }
    hr_space.base = base;
    hr_space.bytes = chunks << chunk_shift;
    hr_space.chunks = system_pages(chunks * sizeof *hr_space.chunks);
    hr_space.starts = system_pages((chunks << chunk_shift) / HR_SMALL_ALIGN / 8);
    if (!hr_space.chunks || !hr_space.starts)
        return CUDA_ERROR_OUT_OF_MEMORY;
    hr_roots_add(hr_space.chunks, chunks * sizeof *hr_space.chunks);
    hr_thread_set_flusher(HR_ROOM_SPACE, flush_ending_thread);
    return hr_ranges_init();
}

struct hr_space_thread *hr_space_thread(struct hr_thread *t)
{
    struct hr_space_thread *s = t->room[HR_ROOM_SPACE];
    if (__builtin_expect(!s, 0)) {
        s = system_pages(sizeof *s);
        if (s)
            s->next_id = ((uint64_t)(t->index + 1) << 32) + 1;
        __atomic_store_n(&t->room[HR_ROOM_SPACE], s, __ATOMIC_RELEASE);
    }
    return s;
}

struct hr_cache *hr_space_cache(struct hr_thread *t, unsigned gpu)
{
    struct hr_space_thread *s = hr_space_thread(t);
    if (s && !s->cache[gpu])
        s->cache[gpu] = system_pages(sizeof *s->cache[gpu]);
    return s ? s->cache[gpu] : NULL;
}

uint64_t hr_space_next_id(struct hr_thread *t)
{
    struct hr_space_thread *s = hr_space_thread(t);
    return s ? s->next_id++ : 0;
}

static struct hr_extent *take_large(struct hr_thread *t, unsigned gpu, uint32_t chunk_count)
{
    struct hr_cache *cache = hr_space_cache(t, gpu);
    bool cached = cache && chunk_count <= HR_LARGE_CLASSES;
    if (cached && cache->large_count[chunk_count - 1] > 0)
        return cache->large[chunk_count - 1][--cache->large_count[chunk_count - 1]];
    hr_mutex_lock(&hr_window_lock[gpu]);
    struct hr_extent *e = hr_ranges_take_locked(gpu, chunk_count);
    hr_mutex_unlock(&hr_window_lock[gpu]);
    return e;
}

static void begin_life(struct hr_thread *t, struct hr_extent *e, CUcontext ctx, size_t bytes)
{
    hr_extent_change(e);
    HR_EXTENT_SET(e, bytes, bytes);
    HR_EXTENT_SET(e, ctx, ctx);
    HR_EXTENT_SET(e, id, hr_space_next_id(t) << 28);
    HR_EXTENT_SET(e, kind, HR_EXTENT_LARGE);
    hr_extent_changed(e);
    atomic_store_explicit(&e->site, NULL, memory_order_relaxed);
    atomic_store_explicit(&e->last_use, 0, memory_order_relaxed);
    atomic_store_explicit(&e->sync_memops, 0, memory_order_relaxed);
    atomic_store_explicit(&e->stays, 0, memory_order_relaxed);
}

static CUresult large_alloc(struct hr_thread *t, unsigned gpu, CUcontext ctx, size_t bytes, CUdeviceptr *address_out)
{
    size_t chunks = (bytes + hr_chunk_bytes() - 1) >> hr_space.chunk_shift;
    if (bytes > hr_space.bytes || chunks > hr_space.window[gpu].chunk_count)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!hr_ledger_charge(t, gpu, chunks << hr_space.chunk_shift))
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct hr_extent *e = take_large(t, gpu, (uint32_t)chunks);
    if (!e) {
        hr_ledger_uncharge(t, gpu, chunks << hr_space.chunk_shift);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    begin_life(t, e, ctx, bytes);
    atomic_store_explicit(&e->sharers, 0, memory_order_relaxed);
    atomic_store_explicit(&e->shared_with, 0, memory_order_relaxed);
    atomic_store_explicit(&e->live, 1, memory_order_release);
    *address_out = e->base;
    return CUDA_SUCCESS;
}

CUresult hr_space_alloc(struct hr_thread *t, unsigned gpu, CUcontext ctx, size_t bytes, CUdeviceptr *address_out)
{
    if (bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    return hr_slab_class(bytes) < HR_CLASS_COUNT ? hr_slab_alloc(t, gpu, ctx, bytes, address_out)
                                                 : large_alloc(t, gpu, ctx, bytes, address_out);
}

enum hr_retire hr_space_retire(CUdeviceptr address, size_t *bytes_out, struct hr_extent **extent_out)
{
    if (!hr_space_owns(address))
        return HR_RETIRE_NOT_OURS;
    struct hr_extent *e = hr_space_extent(address);
    if (!e)
        return HR_RETIRE_INVALID;
    *extent_out = e;
    if (atomic_load_explicit(&e->kind, memory_order_relaxed) == HR_EXTENT_SLAB)
        return hr_slab_retire(e, address, bytes_out);
    if (atomic_load_explicit(&e->kind, memory_order_relaxed) == HR_EXTENT_VMM)
        return HR_RETIRE_INVALID; /* it is unmapped, not freed */
    uint8_t live = 1;
    if (address != e->base || !atomic_compare_exchange_strong(&e->live, &live, 0))
        return HR_RETIRE_INVALID;
    *bytes_out = e->bytes;
    return atomic_load(&e->touched) ? HR_RETIRE_TOUCHED : HR_RETIRE_UNTOUCHED;
}

/* Of the table of starts. */
static size_t start_bit(CUdeviceptr address)
{
    return (address - hr_space.base) / HR_SMALL_ALIGN;
}

/* What was learned belongs to the allocation that ended. */
static void forget_content(struct hr_extent *e, uint32_t chunk_count)
{
    if (atomic_exchange(&e->has_starts, 0)) {
        size_t words = ((size_t)chunk_count << hr_space.chunk_shift) / HR_SMALL_ALIGN / 64;
        for (size_t i = 0; i < words; i++)
            atomic_store_explicit(&hr_space.starts[start_bit(e->base) / 64 + i], 0, memory_order_relaxed);
    }
    atomic_store(&e->refs, NULL); /* the list itself was taken back by residency/hidden.c, which owns it */
}

void hr_space_revive(struct hr_thread *t, CUdeviceptr address, size_t bytes)
{
    struct hr_extent *e = atomic_load_explicit(&hr_space_chunk(address)->extent, memory_order_acquire);
    if (atomic_load_explicit(&e->kind, memory_order_relaxed) == HR_EXTENT_SLAB) {
        hr_slab_revive(e, address, bytes);
        return;
    }
    forget_content(e, e->chunk_count);
    begin_life(t, e, e->ctx, bytes); /* what shares its host memory still does: that is a property of its backing */
    atomic_store_explicit(&e->live, 1, memory_order_release);
}

unsigned hr_space_small_class(size_t bytes)
{
    return hr_slab_class(bytes);
}

size_t hr_space_small_bytes(unsigned small_class)
{
    return hr_slab_class_bytes(small_class);
}

size_t hr_space_block_bytes(size_t bytes)
{
    unsigned c = hr_slab_class(bytes);
    return c < HR_CLASS_COUNT ? hr_slab_class_bytes(c)
                              : (bytes + hr_chunk_bytes() - 1) >> hr_space.chunk_shift << hr_space.chunk_shift;
}

struct hr_extent *hr_space_release(struct hr_thread *t, CUdeviceptr address)
{
    struct hr_extent *e = atomic_load_explicit(&hr_space_chunk(address)->extent, memory_order_acquire);
    if (atomic_load_explicit(&e->kind, memory_order_relaxed) == HR_EXTENT_SLAB)
        return hr_slab_release(t, e, address);
    forget_content(e, e->chunk_count);
    hr_ledger_uncharge(t, e->gpu, (size_t)e->chunk_count << hr_space.chunk_shift);
    struct hr_cache *cache = hr_space_cache(t, e->gpu);
    if (cache && e->chunk_count <= HR_LARGE_CLASSES && cache->large_count[e->chunk_count - 1] < HR_LARGE_CACHE) {
        cache->large[e->chunk_count - 1][cache->large_count[e->chunk_count - 1]++] = e;
        return NULL;
    }
    hr_mutex_lock(&hr_window_lock[e->gpu]);
    hr_ranges_give_locked(e);
    hr_mutex_unlock(&hr_window_lock[e->gpu]);
    return NULL;
}

void hr_space_release_slab(struct hr_thread *t, struct hr_extent *e)
{
    unsigned gpu = e->gpu;
    forget_content(e, e->chunk_count);
    hr_mutex_lock(&hr_window_lock[gpu]);
    hr_slab_retire_locked(e);
    hr_ranges_give_locked(e);
    hr_mutex_unlock(&hr_window_lock[gpu]);
    hr_ledger_uncharge(t, gpu, hr_chunk_bytes());
}

struct hr_extent *hr_space_reserve(struct hr_thread *t, unsigned gpu, uint32_t chunk_count)
{
    if (chunk_count > hr_space.window[gpu].chunk_count)
        return NULL;
    hr_mutex_lock(&hr_window_lock[gpu]);
    struct hr_extent *e = hr_ranges_take_bare_locked(gpu, chunk_count);
    hr_mutex_unlock(&hr_window_lock[gpu]);
    if (!e)
        return NULL;
    begin_life(t, e, NULL, 0);
    hr_extent_change(e);
    HR_EXTENT_SET(e, kind, HR_EXTENT_VMM);
    HR_EXTENT_SET(e, chunk_count, 0);
    hr_extent_changed(e);
    atomic_store_explicit(&e->sharers, 0, memory_order_relaxed);
    atomic_store_explicit(&e->shared_with, 0, memory_order_relaxed);
    atomic_store_explicit(&e->live, 1, memory_order_release);
    return e;
}

void hr_space_extend(struct hr_extent *e, uint32_t chunk_count)
{
    if (atomic_load_explicit(&e->live, memory_order_relaxed))
        hr_space_note_used(e, e->first_chunk + chunk_count);
    hr_extent_change(e);
    HR_EXTENT_SET(e, chunk_count, chunk_count);
    HR_EXTENT_SET(e, bytes, (size_t)chunk_count << hr_space.chunk_shift);
    hr_extent_changed(e);
}

void hr_space_unreserve(struct hr_extent *e, uint32_t reserved_chunks, uint32_t top_chunks)
{
    atomic_store_explicit(&e->live, 0, memory_order_release);
    forget_content(e, top_chunks);
    hr_space_extend(e, reserved_chunks);
    hr_mutex_lock(&hr_window_lock[e->gpu]);
    hr_ranges_give_bare_locked(e);
    hr_mutex_unlock(&hr_window_lock[e->gpu]);
}

bool hr_space_find(CUdeviceptr address, struct hr_allocation *allocation_out)
{
    struct hr_extent *e = hr_space_extent(address);
    struct hr_view view;
    if (!e || !hr_space_view(e, &view) || address - view.base >= view.bytes)
        return false;
    if (view.kind == HR_EXTENT_SLAB)
        return hr_slab_find(e, &view, address, allocation_out);
    *allocation_out = (struct hr_allocation){view.base, view.bytes, view.id, e->gpu, view.ctx, e};
    return true;
}

bool hr_space_holds(CUdeviceptr address, size_t bytes)
{
    struct hr_allocation a;
    if (bytes == 0 || address - hr_space.base >= hr_space.bytes || bytes > hr_space.bytes - (address - hr_space.base))
        return bytes == 0;
    if (hr_space_find(address, &a) && atomic_load_explicit(&a.extent->kind, memory_order_relaxed) != HR_EXTENT_VMM)
        return bytes <= a.bytes - (address - a.base);
    const struct hr_chunk *c = hr_space_chunk(address), *last = hr_space_chunk(address + bytes - 1);
    for (; c <= last; c++) {
        const struct hr_extent *e = atomic_load_explicit(&c->extent, memory_order_acquire);
        if (e ? atomic_load_explicit(&e->kind, memory_order_relaxed) != HR_EXTENT_VMM
              : !atomic_load_explicit(&c->mapped, memory_order_acquire))
            return false;
    }
    return true;
}

static bool (*drop_backing)(struct hr_extent *e); /* set once, at start */

void hr_space_set_dropper(bool (*drop)(struct hr_extent *e))
{
    drop_backing = drop;
}

static void finish_empty(struct hr_thread *t, struct hr_extent *e)
{
    while (e) {
        struct hr_extent *next = e->next;
        e->next = NULL;
        if (drop_backing && drop_backing(e))
            hr_space_release_slab(t, e);
        else
            hr_slab_keep_empty(e);
        e = next;
    }
}

void hr_space_flush_slots(struct hr_thread *t, unsigned gpu, struct hr_cache *cache)
{
    finish_empty(t, hr_slab_flush_cache(t, gpu, cache));
}

static void flush_ranges(struct hr_cache *cache, unsigned gpu)
{
    hr_mutex_lock(&hr_window_lock[gpu]);
    for (unsigned c = 0; c < HR_LARGE_CLASSES; c++)
        while (cache->large_count[c] > 0)
            hr_ranges_give_locked(cache->large[c][--cache->large_count[c]]);
    hr_mutex_unlock(&hr_window_lock[gpu]);
}

void hr_space_flush_thread(struct hr_thread *t)
{
    struct hr_space_thread *s = t->room[HR_ROOM_SPACE];
    for (unsigned g = 0; s && g < hr_space.gpu_count; g++) {
        if (s->cache[g]) {
            hr_space_flush_slots(t, g, s->cache[g]);
            flush_ranges(s->cache[g], g);
        }
    }
    if (s)
        hr_ledger_flush_thread(t);
}

/* At a thread's end no driver call is made: slabs that are empty now and have backing serve the next small allocations. */
static void flush_ending_thread(struct hr_thread *t)
{
    struct hr_space_thread *s = t->room[HR_ROOM_SPACE];
    for (unsigned g = 0; s && g < hr_space.gpu_count; g++) {
        struct hr_extent *empty = s->cache[g] ? hr_slab_flush_cache(t, g, s->cache[g]) : NULL;
        while (empty) {
            struct hr_extent *next = empty->next;
            hr_slab_keep_empty(empty);
            empty = next;
        }
        if (s->cache[g])
            flush_ranges(s->cache[g], g);
    }
    if (s)
        hr_ledger_flush_thread(t);
}

void hr_space_context_gone(struct hr_thread *t, CUcontext ctx)
{
    hr_space_flush_thread(t);
    for (unsigned g = 0; g < hr_space.gpu_count; g++)
        finish_empty(t, hr_slab_take_empty(g, ctx));
}

/* The first chunk behind what begins (or goes on) at chunk i; 0 = visit does not want more. */
static uint32_t visit_at(uint32_t i, CUcontext ctx, bool (*visit)(CUdeviceptr address, void *arg), void *arg)
{
    struct hr_extent *e = atomic_load_explicit(&hr_space.chunks[i].extent, memory_order_acquire);
    struct hr_view view;
    bool more = true;
    if (!e || !hr_space_view(e, &view) || (view.first_chunk != i && view.kind != HR_EXTENT_VMM))
        return i + 1;
    if (view.kind == HR_EXTENT_VMM) { /* at its first chunk that is no hole */
        more = ctx || visit(hr_space.base + ((CUdeviceptr)i << hr_space.chunk_shift), arg);
        return !more ? 0 : i < view.first_chunk + view.chunk_count ? view.first_chunk + view.chunk_count : i + 1;
    }
    if (!ctx || view.ctx == ctx)
        more = view.kind == HR_EXTENT_SLAB ? hr_slab_each(&view, visit, arg) : visit(view.base, arg);
    return more ? i + view.chunk_count : 0;
}

void hr_space_each(CUcontext ctx, bool (*visit)(CUdeviceptr address, void *arg), void *arg)
{
    for (unsigned g = 0; g < hr_space.gpu_count; g++) {
        uint32_t i = hr_space.window[g].first_chunk, end = i + hr_space_used_chunks(g);
        while (i < end) {
            i = visit_at(i, ctx, visit, arg);
            if (i == 0)
                return;
        }
    }
}

/* --- learned extents ---------------------------------------------------------------------------------------------- */

/*
 * The bits of all windows lie in one sparse table, so that a submission that still names a freed allocation never reads
 * memory that has gone away.
 */

void hr_space_learn_start(struct hr_extent *e, CUdeviceptr address)
{
    if (e->chunk_count < 2 || address == e->base)
        return;
    size_t bit = start_bit(address);
    uint64_t mask = UINT64_C(1) << (bit % 64);
    if (atomic_load_explicit(&hr_space.starts[bit / 64], memory_order_relaxed) & mask)
        return;
    atomic_fetch_or_explicit(&hr_space.starts[bit / 64], mask, memory_order_relaxed);
    atomic_store_explicit(&e->has_starts, 1, memory_order_relaxed);
}

CUdeviceptr hr_space_piece_end(const struct hr_extent *e, const struct hr_view *view, CUdeviceptr address)
{
    CUdeviceptr end = view->base + view->bytes;
    if (!atomic_load_explicit(&e->has_starts, memory_order_relaxed))
        return end;
    size_t bit = start_bit(address) + 1, bits = start_bit(end);
    while (bit < bits) {
        uint64_t word = atomic_load_explicit(&hr_space.starts[bit / 64], memory_order_relaxed) >> (bit % 64);
        if (word) {
            CUdeviceptr next = hr_space.base + (bit + (size_t)__builtin_ctzll(word)) * HR_SMALL_ALIGN;
            return next < end ? next : end;
        }
        bit = (bit / 64 + 1) * 64;
    }
    return end;
}
