#include "space/internal.h"

#include "base/roots.h"

#include <sys/mman.h>

/*
 * Whole-chunk address ranges of a window: free ranges hang in bins by the logarithm of their length and carry boundary
 * tags (the chunk array's first and last entries of a free range point at its extent), so taking and giving are constant
 * time but for a walk within one bin. Extents are never returned to the system: a submission may still read one that was
 * just freed.
 */

#define BIN_COUNT 40

static struct hr_extent *bins[HR_MAX_GPUS][BIN_COUNT]; /* guarded by hr_window_lock */
static struct hr_extent *spare[HR_MAX_GPUS];           /* guarded by hr_window_lock: unused extent objects */

static unsigned bin_of(uint32_t chunk_count)
{
    return 31u - (unsigned)__builtin_clz(chunk_count);
}

static struct hr_extent *new_extent_locked(unsigned gpu)
{
    if (!spare[gpu]) {
        const size_t block_bytes = (size_t)256 << 10;
        struct hr_extent *block = mmap(NULL, block_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (block == MAP_FAILED)
            return NULL;
        hr_roots_add(block, block_bytes);
        for (size_t i = 0; i < block_bytes / sizeof *block; i++) {
            block[i].gpu = (uint8_t)gpu;
            block[i].next = spare[gpu];
            spare[gpu] = &block[i];
        }
    }
    struct hr_extent *e = spare[gpu];
    spare[gpu] = e->next;
    e->next = e->prev = NULL;
    return e;
}

static void unlink_locked(struct hr_extent *e)
{
    struct hr_extent **head = &bins[e->gpu][bin_of(e->chunk_count)];
    if (e->prev)
        e->prev->next = e->next;
    else
        *head = e->next;
    if (e->next)
        e->next->prev = e->prev;
    e->next = e->prev = NULL;
}

/* A free range tags both its ends; the chunks between keep whatever they point at. */
static void link_locked(struct hr_extent *e)
{
    struct hr_extent **head = &bins[e->gpu][bin_of(e->chunk_count)];
    e->prev = NULL;
    e->next = *head;
    if (*head)
        (*head)->prev = e;
    *head = e;
    struct hr_chunk *first = &hr_space.chunks[e->first_chunk];
    atomic_store_explicit(&first->extent, e, memory_order_release);
    atomic_store_explicit(&first[e->chunk_count - 1].extent, e, memory_order_release);
}

static void set_range(struct hr_extent *e, uint32_t first_chunk, uint32_t chunk_count)
{
    atomic_store_explicit(&e->live, 0, memory_order_release);
    hr_extent_change(e);
    HR_EXTENT_SET(e, first_chunk, first_chunk);
    HR_EXTENT_SET(e, chunk_count, chunk_count);
    HR_EXTENT_SET(e, base, hr_space.base + ((CUdeviceptr)first_chunk << hr_space.chunk_shift));
    HR_EXTENT_SET(e, kind, HR_EXTENT_FREE);
    hr_extent_changed(e);
}

CUresult hr_ranges_init(void)
{
    for (unsigned g = 0; g < hr_space.gpu_count; g++) {
        hr_mutex_lock(&hr_window_lock[g]);
        struct hr_extent *e = new_extent_locked(g);
        if (e) {
            set_range(e, hr_space.window[g].first_chunk, hr_space.window[g].chunk_count);
            link_locked(e);
        }
        hr_mutex_unlock(&hr_window_lock[g]);
        if (!e)
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

static struct hr_extent *best_of_bin(struct hr_extent *head, uint32_t chunk_count)
{
    struct hr_extent *best = NULL;
    unsigned looked = 0;
    for (struct hr_extent *e = head; e && looked < 64; e = e->next, looked++)
        if (e->chunk_count >= chunk_count && (!best || e->chunk_count < best->chunk_count))
            best = e;
    return best;
}

static struct hr_extent *cut_locked(unsigned gpu, uint32_t chunk_count)
{
    struct hr_extent *e = NULL;
    for (unsigned b = bin_of(chunk_count); b < BIN_COUNT && !e; b++)
        e = best_of_bin(bins[gpu][b], chunk_count);
    if (!e)
        return NULL;
    struct hr_extent *rest = NULL;
    if (e->chunk_count > chunk_count && !(rest = new_extent_locked(gpu)))
        return NULL;
    unlink_locked(e);
    if (rest) {
        set_range(rest, e->first_chunk + chunk_count, e->chunk_count - chunk_count);
        link_locked(rest);
    }
    set_range(e, e->first_chunk, chunk_count);
    return e;
}

static void forget_tags(uint32_t first_chunk, uint32_t chunk_count);

struct hr_extent *hr_ranges_take_bare_locked(unsigned gpu, uint32_t chunk_count)
{
    struct hr_extent *e = cut_locked(gpu, chunk_count);
    if (e) { /* its tags as a free range */
        forget_tags(e->first_chunk, 1);
        forget_tags(e->first_chunk + chunk_count - 1, 1);
        atomic_store_explicit(&e->not_resident, 0, memory_order_relaxed);
        atomic_store_explicit(&e->not_accessible, 0, memory_order_relaxed);
        atomic_store_explicit(&e->last_use, 0, memory_order_relaxed);
    }
    return e;
}

struct hr_extent *hr_ranges_take_locked(unsigned gpu, uint32_t chunk_count)
{
    struct hr_extent *e = cut_locked(gpu, chunk_count);
    if (!e)
        return NULL;
    hr_space_note_used(e, e->first_chunk + chunk_count);
    for (uint32_t i = 0; i < chunk_count; i++)
        atomic_store_explicit(&hr_space.chunks[e->first_chunk + i].extent, e, memory_order_release);
    atomic_store_explicit(&e->not_resident, chunk_count, memory_order_relaxed);
    atomic_store_explicit(&e->not_accessible, chunk_count, memory_order_relaxed);
    atomic_store_explicit(&e->last_use, 0, memory_order_relaxed);
    return e;
}

static bool is_free_range(const struct hr_extent *e)
{
    return e && atomic_load_explicit(&e->kind, memory_order_relaxed) == HR_EXTENT_FREE &&
           (e->next || e->prev || bins[e->gpu][bin_of(e->chunk_count)] == e);
}

static void recycle_locked(struct hr_extent *e)
{
    atomic_store_explicit(&e->live, 0, memory_order_release);
    e->next = spare[e->gpu];
    e->prev = NULL;
    spare[e->gpu] = e;
}

static void forget_tags(uint32_t first_chunk, uint32_t chunk_count)
{
    for (uint32_t i = 0; i < chunk_count; i++)
        atomic_store_explicit(&hr_space.chunks[first_chunk + i].extent, NULL, memory_order_release);
}

void hr_ranges_give_locked(struct hr_extent *e)
{
    forget_tags(e->first_chunk, e->chunk_count);
    hr_ranges_give_bare_locked(e);
}

void hr_ranges_give_bare_locked(struct hr_extent *e)
{
    uint32_t window_first = hr_space.window[e->gpu].first_chunk;
    uint32_t window_end = window_first + hr_space.window[e->gpu].chunk_count;
    uint32_t first = e->first_chunk, end = e->first_chunk + e->chunk_count;
    struct hr_extent *before =
        first > window_first ? atomic_load_explicit(&hr_space.chunks[first - 1].extent, memory_order_relaxed) : NULL;
    if (is_free_range(before) && before->first_chunk + before->chunk_count == first) {
        unlink_locked(before);
        forget_tags(first - 1, 1);
        first = before->first_chunk;
        recycle_locked(before);
    }
    struct hr_extent *after =
        end < window_end ? atomic_load_explicit(&hr_space.chunks[end].extent, memory_order_relaxed) : NULL;
    if (is_free_range(after) && after->first_chunk == end) {
        unlink_locked(after);
        forget_tags(end, 1);
        end = after->first_chunk + after->chunk_count;
        recycle_locked(after);
    }
    set_range(e, first, end - first);
    link_locked(e);
}
