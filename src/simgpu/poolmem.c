/*
 * The memory of pools: segments and pieces.
 *
 * A free piece is given to a stream, in this order: if it is known to be free, or was freed in the stream itself; if the stream
 * comes after the free (REUSE_FOLLOW_EVENT_DEPENDENCIES); if the free is over by now (REUSE_ALLOW_OPPORTUNISTIC). Then the pool
 * grows. Only where it cannot, even after all pools of the device gave back what they can, the stream is made to wait for a
 * free (REUSE_ALLOW_INTERNAL_DEPENDENCIES). Neighbours that are free grow together when both are known to be, or when one
 * stream freed both.
 */
#include "simgpu/mempool.h"

#include "simgpu/check.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define SMALL_MAX_BYTES (SG_PAGE_BYTES / 2)

struct sg_alloc *sg_segment_alloc_at(const struct sg_segment *segment, uint64_t va)
{
    const struct sg_piece *piece = sg_ranges_find(&segment->index, va);
    return piece && va - piece->alloc->region.va < piece->alloc->region.bytes ? piece->alloc : NULL;
}

void sg_span_unref(struct sg_span *span)
{
    if (span && !--span->refs)
        free(span);
}

/* ---- what kernels and the CPU see ---- */

static uint64_t rights_of(uint8_t access)
{
    return (access & 1 ? SG_PTE_READ : 0) | (access & 2 ? SG_PTE_WRITE : 0);
}

static void show_pages(const struct sg_segment *segment, int device, uint64_t va, uint64_t bytes, bool visible)
{
    size_t first = (size_t)(va - segment->region.va) >> SG_PAGE_SHIFT;
    sg_pagetable_set_part(device, va, segment->chunk, first, bytes >> SG_PAGE_SHIFT,
                          visible ? rights_of(segment->pool->access[device]) : 0);
}

static void set_bounds(const struct sg_span *span, bool live)
{
    struct sg_alloc shape = {.region = {SG_REGION_ALLOC, span->va, span->asked_bytes},
                             .chunk = span->segment->small ? NULL : span->segment->chunk};
    sg_redzone_set(&shape, live);
}

void sg_span_begin(struct sg_span *span)
{
    span->stream = NULL;
    if (span->begun || span->freed)
        return;
    span->begun = true;
    if (!span->segment)
        return;
    set_bounds(span, true);
    for (int d = 0; d < sg.device_count && !span->segment->small; d++)
        show_pages(span->segment, d, span->va, span->bytes, true);
}

static void poison_small(const struct sg_span *span)
{
    const struct sg_chunk *chunk = span->segment->chunk;
    uint64_t offset = span->va - span->segment->region.va;
    if (!atomic_load_explicit(&chunk->pool->filled[chunk->frame[0]], memory_order_acquire))
        return; /* nobody has touched the page yet */
    uint64_t pattern[64];
    for (size_t i = 0; i < 64; i++)
        pattern[i] = SG_POISON;
    uint8_t *at = chunk->pool->alias + ((uint64_t)chunk->frame[0] << SG_PAGE_SHIFT) + offset;
    for (uint64_t done = 0; done < span->bytes; done += sizeof pattern)
        sg_move_bytes(at + done, true, (uint8_t *)pattern, true, sizeof pattern);
}

static void end_foreign(struct sg_span *span)
{
    uint64_t page = span->va & ~(SG_PAGE_BYTES - 1);
    for (int d = 0; d < sg.device_count; d++)
        sg_pagetable_set(d, page, NULL, span->foreign->pages, 0);
    sg_va_release(page, (uint64_t)span->foreign->pages << SG_PAGE_SHIFT);
    sg_chunk_destroy(span->foreign);
    span->foreign = NULL;
}

void sg_span_end(struct sg_span *span)
{
    if (span->freed)
        return;
    span->freed = true;
    if (span->foreign)
        end_foreign(span);
    if (!span->segment)
        return;
    set_bounds(span, false);
    if (span->segment->small) {
        poison_small(span);
        return;
    }
    for (int d = 0; d < sg.device_count; d++)
        show_pages(span->segment, d, span->va, span->bytes, false);
    sg_chunk_forget(span->segment->chunk, (size_t)(span->va - span->segment->region.va) >> SG_PAGE_SHIFT,
                    span->bytes >> SG_PAGE_SHIFT);
}

void sg_mempool_show(struct sg_mempool *pool, int device)
{
    const struct sg_segment *s;
    const struct sg_piece *p;
    DL_FOREACH(pool->segments, s)
    {
        if (s->small)
            show_pages(s, device, s->region.va, s->region.bytes, true);
        else
            DL_FOREACH(s->pieces, p)
        if (p->alloc && p->span->begun)
            show_pages(s, device, p->va, p->bytes, true);
    }
}

/* ---- segments ---- */

static uint64_t take_addresses(uint64_t bytes)
{
    uint64_t zone = sg_redzone_page_bytes(), va = sg_va_reserve(bytes + 2 * zone, SG_PAGE_BYTES, 0);
    return va ? va + zone : 0;
}

static void give_addresses(uint64_t va, uint64_t bytes)
{
    uint64_t zone = sg_redzone_page_bytes();
    sg_va_release(va - zone, bytes + 2 * zone);
}

static struct sg_piece *piece_new(struct sg_segment *segment, uint64_t va, uint64_t bytes)
{
    struct sg_piece *p = calloc(1, sizeof *p);
    if (p) {
        p->segment = segment;
        p->va = va;
        p->bytes = bytes;
    }
    return p;
}

static CUresult segment_memory(struct sg_mempool *pool, uint64_t bytes, struct sg_segment *s)
{
    size_t pages = bytes >> SG_PAGE_SHIFT;
    if (pool->max_bytes && bytes > pool->max_bytes - pool->reserved_bytes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = pool->runs ? sg_chunk_create_run(pool->runs, pages, &s->chunk)
                            : sg_chunk_create(pool->device, pages, false, &s->chunk);
    if (r)
        return r;
    uint64_t va = take_addresses(bytes);
    s->pieces = va ? piece_new(s, va, bytes) : NULL;
    if (!s->pieces ||
        (pool->device == SG_ON_HOST && !sg_chunk_show_host(s->chunk, va, pages, PROT_READ | PROT_WRITE))) {
        if (va)
            give_addresses(va, bytes);
        free(s->pieces);
        sg_chunk_destroy(s->chunk);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    s->pieces->prev = s->pieces;
    s->region = (struct sg_region){SG_REGION_SEGMENT, va, bytes};
    return CUDA_SUCCESS;
}

static CUresult segment_create(struct sg_mempool *pool, uint64_t bytes, bool small)
{
    struct sg_segment *s = calloc(1, sizeof *s);
    if (!s)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = segment_memory(pool, bytes, s);
    if (r) {
        free(s);
        return r;
    }
    s->pool = pool;
    s->small = small;
    sg_regions_set(&s->region, s->region.va, bytes);
    if (small) {
        sg_redzone_page(s->region.va, false);
        for (int d = 0; d < sg.device_count; d++)
            show_pages(s, d, s->region.va, bytes, true);
    }
    pool->reserved_bytes += bytes;
    if (pool->reserved_bytes > pool->reserved_high_bytes)
        pool->reserved_high_bytes = pool->reserved_bytes;
    sg_time_units(pool->device == SG_ON_HOST ? SG_UNIT_PINNED_MIB : SG_UNIT_CHUNK_ALLOC,
                  (double)(pool->device == SG_ON_HOST ? bytes / SG_MIB : bytes >> SG_PAGE_SHIFT));
    DL_APPEND(pool->segments, s);
    return CUDA_SUCCESS;
}

static void segment_destroy(struct sg_segment *s)
{
    struct sg_mempool *pool = s->pool;
    uint64_t va = s->region.va, bytes = s->region.bytes;
    for (int d = 0; d < sg.device_count; d++)
        show_pages(s, d, va, bytes, false);
    if (s->small)
        sg_redzone_page(va, true);
    if (sg_check.race)
        sg_race_forget(va, bytes);
    sg_regions_set(NULL, va, bytes);
    give_addresses(va, bytes); /* with what the CPU sees there */
    sg_chunk_destroy(s->chunk);
    while (s->pieces) {
        struct sg_piece *p = s->pieces;
        DL_DELETE(s->pieces, p);
        free(p);
    }
    DL_DELETE(pool->segments, s);
    pool->reserved_bytes -= bytes;
    sg_time_units(SG_UNIT_CHUNK_UNMAP, (double)(bytes >> SG_PAGE_SHIFT));
    free(s->index.at);
    free(s);
}

/* ---- pieces ---- */

static bool may_join(const struct sg_piece *a, const struct sg_piece *b)
{
    return !a->alloc && !b->alloc &&
           ((!a->mark && !b->mark) || (a->mark && b->mark && a->place.stream == b->place.stream));
}

/* b comes directly behind a. */
static void join(struct sg_piece *a, struct sg_piece *b)
{
    bool b_is_later = b->mark && b->place.ticket > a->place.ticket;
    a->bytes += b->bytes;
    if (b_is_later) {
        struct sg_mark *mark = a->mark;
        a->mark = b->mark;
        a->place = b->place;
        b->mark = mark;
    }
    sg_mark_unref(b->mark);
    DL_DELETE(a->segment->pieces, b);
    free(b);
}

static void join_all(struct sg_segment *s)
{
    struct sg_piece *kept = s->pieces, *p, *next;
    if (!kept)
        return;
    for (p = kept->next; p; p = next) {
        next = p->next;
        if (may_join(kept, p))
            join(kept, p);
        else
            kept = p;
    }
}

void sg_piece_give(struct sg_piece *p, struct sg_mark *mark, const struct sg_place *place)
{
    struct sg_segment *s = p->segment;
    sg_ranges_remove(&s->index, p->va);
    s->allocs--;
    s->pool->allocs--;
    s->pool->used_bytes -= p->bytes;
    p->alloc = NULL;
    sg_span_unref(p->span);
    p->span = NULL;
    p->mark = mark ? sg_mark_ref(mark) : NULL;
    if (mark)
        p->place = *place;
    if (p->next && may_join(p, p->next))
        join(p, p->next);
    if (p != s->pieces && may_join(p->prev, p))
        join(p->prev, p);
}

enum reuse { REUSE_KNOWN, REUSE_FOLLOWING, REUSE_OVER, REUSE_PENDING };

static bool may_reuse(struct sg_piece *p, const struct sg_stream *stream, enum reuse how)
{
    if (p->mark && sg_order_host_knows(&p->place)) {
        sg_mark_unref(p->mark);
        p->mark = NULL;
    }
    switch (how) {
    case REUSE_KNOWN: return !p->mark || p->place.stream == stream->number;
    case REUSE_FOLLOWING: return p->mark && sg_order_follows(stream, &p->place);
    default: return p->mark != NULL;
    }
}

static struct sg_piece *find_piece(struct sg_mempool *pool, const struct sg_stream *stream, uint64_t bytes, bool small,
                                   enum reuse how)
{
    struct sg_segment *s;
    struct sg_piece *p, *best = NULL;
    DL_FOREACH(pool->segments, s)
    if (s->small == small)
        DL_FOREACH(s->pieces, p)
    if (!p->alloc && p->bytes >= bytes && (!best || p->bytes < best->bytes) && may_reuse(p, stream, how))
        best = p;
    return best;
}

/* A free piece that is over as far as the calling thread's time tells; *lives_out: the stream is still there. Asking may
 * release the lock, so the piece is looked for again. */
static struct sg_piece *find_over(struct sg_mempool *pool, struct sg_stream *stream, uint64_t bytes, bool small,
                                  bool *lives_out)
{
    struct sg_piece *p = find_piece(pool, stream, bytes, small, REUSE_OVER);
    if (!p)
        return NULL;
    struct sg_mark *mark = sg_mark_ref(p->mark);
    uint64_t time_ns;
    sg_stream_hold(stream);
    bool over = sg_time_of_mark(mark, &time_ns) && mark->done;
    *lives_out = sg_stream_let_go(stream);
    p = *lives_out ? find_piece(pool, stream, bytes, small, REUSE_OVER) : NULL;
    over &= p && p->mark == mark;
    sg_mark_unref(mark);
    return over ? p : NULL;
}

/* What depends on a free is made to wait for it: where that is over already, only the order remains. */
static CUresult follow(struct sg_stream *stream, struct sg_mark *mark)
{
    struct sg_op *op = sg_op_new(SG_OP_WAIT);
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    op->mark = sg_mark_ref(mark);
    sg_order_waits(stream, mark);
    sg_submit(stream, op);
    return CUDA_SUCCESS;
}

static CUresult grow(struct sg_mempool *pool, uint64_t bytes, bool small)
{
    uint64_t segment_bytes = (bytes + SG_PAGE_BYTES - 1) & ~(SG_PAGE_BYTES - 1);
    CUresult r = segment_create(pool, segment_bytes, small);
    if (r != CUDA_ERROR_OUT_OF_MEMORY)
        return r;
    struct sg_mempool *other, *next;
    DL_FOREACH_SAFE(sg.mempools, other, next)
    if (other->device == pool->device)
        sg_mempool_trim(other, 0);
    return segment_create(pool, segment_bytes, small);
}

static CUresult find(struct sg_mempool *pool, struct sg_stream *stream, uint64_t bytes, bool small,
                     struct sg_piece **piece_out)
{
    struct sg_piece *p = find_piece(pool, stream, bytes, small, REUSE_KNOWN);
    CUresult r = CUDA_SUCCESS;
    if (!p && pool->follow_events)
        p = find_piece(pool, stream, bytes, small, REUSE_FOLLOWING);
    if (!p && pool->opportunistic) {
        bool lives = true;
        p = find_over(pool, stream, bytes, small, &lives);
        if (!lives)
            return CUDA_ERROR_CONTEXT_IS_DESTROYED;
        r = p ? follow(stream, p->mark) : CUDA_SUCCESS;
    }
    if (!p) {
        r = grow(pool, bytes, small);
        p = r ? NULL : find_piece(pool, stream, bytes, small, REUSE_KNOWN);
    }
    if (!p && r == CUDA_ERROR_OUT_OF_MEMORY && pool->internal) {
        p = find_piece(pool, stream, bytes, small, REUSE_PENDING);
        r = p ? follow(stream, p->mark) : r;
    }
    *piece_out = p;
    return p ? r : r ? r : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Cuts what is not needed off the end. Out of host memory the piece stays whole. */
static void cut(struct sg_piece *p, uint64_t bytes)
{
    struct sg_piece *rest = p->bytes > bytes ? piece_new(p->segment, p->va + bytes, p->bytes - bytes) : NULL;
    if (!rest)
        return;
    rest->mark = p->mark ? sg_mark_ref(p->mark) : NULL;
    rest->place = p->place;
    p->bytes = bytes;
    DL_APPEND_ELEM(p->segment->pieces, p, rest);
}

CUresult sg_piece_take(struct sg_mempool *pool, struct sg_stream *stream, uint64_t bytes, struct sg_piece **piece_out)
{
    bool small = bytes <= SMALL_MAX_BYTES;
    uint64_t unit = small ? SG_SMALL_SLOT_BYTES : SG_PAGE_BYTES;
    uint64_t need = (bytes + (small ? sg_redzone_slot_bytes() : 0) + unit - 1) & ~(unit - 1);
    struct sg_span *span = calloc(1, sizeof *span);
    struct sg_alloc *a = calloc(1, sizeof *a);
    struct sg_piece *p = NULL;
    pool->allocs++; /* it stays while the lock is released */
    CUresult r = span && a ? find(pool, stream, need, small, &p) : CUDA_ERROR_OUT_OF_MEMORY;
    pool->allocs--;
    if (!r && !sg_ranges_add(&p->segment->index, p->va, need, p))
        r = CUDA_ERROR_OUT_OF_MEMORY;
    if (r) {
        free(span);
        free(a);
        return r;
    }
    cut(p, need);
    sg_mark_unref(p->mark);
    p->mark = NULL;
    *span = (struct sg_span){
        .refs = 1, .segment = p->segment, .va = p->va, .bytes = p->bytes, .asked_bytes = bytes, .stream = stream};
    *a = (struct sg_alloc){.region = {SG_REGION_ALLOC, p->va, bytes},
                           .device = pool->device,
                           .piece = p,
                           .buffer_id = sg.next_buffer_id++};
    p->alloc = a;
    p->span = span;
    p->segment->allocs++;
    pool->allocs++;
    pool->used_bytes += p->bytes;
    if (pool->used_bytes > pool->used_high_bytes)
        pool->used_high_bytes = pool->used_bytes;
    *piece_out = p;
    return CUDA_SUCCESS;
}

/* ---- giving back ---- */

static bool is_empty(struct sg_segment *s, bool pending_too)
{
    struct sg_piece *p;
    if (s->allocs)
        return false;
    DL_FOREACH(s->pieces, p)
    {
        if (p->mark && (sg_order_host_knows(&p->place) || (pending_too && p->mark->done))) {
            sg_mark_unref(p->mark);
            p->mark = NULL;
        }
        if (p->mark)
            return false;
    }
    join_all(s);
    return true;
}

void sg_mempool_trim(struct sg_mempool *pool, uint64_t keep_bytes)
{
    struct sg_segment *s, *next;
    DL_FOREACH_SAFE(pool->segments, s, next)
    if (pool->reserved_bytes > keep_bytes && pool->reserved_bytes - s->region.bytes >= keep_bytes && is_empty(s, false))
        segment_destroy(s);
}

/* What is left of a destroyed pool. */
void sg_mempool_drop(struct sg_mempool *pool)
{
    struct sg_segment *s, *next;
    if (pool->object.id)
        return;
    bool remains = pool->allocs != 0;
    /* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): false alarm, the next one is taken before this one is freed */
    DL_FOREACH_SAFE(pool->segments, s, next)
    {
        bool empty = is_empty(s, true);
        remains |= !empty;
        if (empty)
            segment_destroy(s);
    }
    if (remains)
        return;
    DL_DELETE(sg.mempools, pool);
    if (pool->runs)
        sg_runs_finish(pool->runs);
    free(pool->runs);
    free(pool);
}

void sg_mempools_settle(void)
{
    struct sg_mempool *pool, *next;
    struct sg_segment *s, *after;
    DL_FOREACH_SAFE(sg.mempools, pool, next)
    {
        DL_FOREACH_SAFE(pool->segments, s, after)
        if (pool->reserved_bytes > pool->threshold_bytes && is_empty(s, false))
            segment_destroy(s);
        sg_mempool_drop(pool);
    }
}
