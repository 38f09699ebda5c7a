#include "residency/quarantine.h"

#include "base/lock.h"
#include "base/log.h"
#include "residency/context.h"
#include "residency/hidden.h"
#include "residency/move.h"
#include "residency/peers.h"
#include "space/space.h"

#include <stdlib.h>
#include <string.h>

/*
 * A list per thread, each with a lock of its own, so that frees of different threads do not meet. Lists stay with the slot
 * when a thread ends; whoever drains walks all slots.
 */

struct entry {
    CUdeviceptr address;
    uint64_t stamp;
};
struct list {
    struct hr_mutex lock;
    uint32_t first, count, capacity; /* guarded by lock: entries[first..count) wait, in the order of their stamps */
    struct entry *entries;           /* guarded by lock */
    size_t bytes;                    /* guarded by lock: of what waits, and of what was taken out and is not back yet */
};

/* How many there have been. A free counts itself before others can find it, a release once all of it is back. */
static _Atomic(uint64_t) added, released;

static struct list *list_of(struct hr_thread *t)
{
    struct list *list = t->room[HR_ROOM_QUARANTINE];
    if (!list && (list = calloc(1, sizeof *list))) {
        hr_mutex_init(&list->lock, HR_RANK_QUEUE, "quarantine");
        __atomic_store_n(&t->room[HR_ROOM_QUARANTINE], list, __ATOMIC_RELEASE);
    }
    return list;
}

static bool push_locked(struct list *list, struct entry entry)
{
    if (list->count == list->capacity && list->first > list->capacity / 2) {
        memmove(list->entries, list->entries + list->first, (list->count - list->first) * sizeof *list->entries);
        list->count -= list->first;
        list->first = 0;
    }
    if (list->count == list->capacity) {
        uint32_t capacity = list->capacity ? list->capacity * 2 : 64;
        struct entry *grown = realloc(list->entries, capacity * sizeof *grown);
        if (!grown)
            return false;
        list->entries = grown;
        list->capacity = capacity;
    }
    list->entries[list->count++] = entry;
    return true;
}

/* What can be charged again once it is back; of a small one at most its slab. */
static size_t most_bytes_of(CUdeviceptr address)
{
    const struct hr_extent *e = atomic_load(&hr_space_chunk(address)->extent);
    return (size_t)e->chunk_count << hr_space.chunk_shift;
}

void hr_quarantine_add(struct hr_thread *t, CUdeviceptr address)
{
    struct list *list = list_of(t);
    bool kept = false;
    atomic_fetch_add(&added, 1);
    if (list) {
        hr_mutex_lock(&list->lock);
        kept = push_locked(list, (struct entry){address, hr_drain_stamp()});
        if (kept)
            list->bytes += most_bytes_of(address);
        hr_mutex_unlock(&list->lock);
    }
    if (!kept) {
        atomic_fetch_add(&released, 1);
        hr_log(HR_LOG_ERROR, "freed memory at 0x%llx is lost: no memory to remember it", (unsigned long long)address);
    }
}

bool hr_quarantine_any(void)
{
    uint64_t before = atomic_load(&released); /* first: so they are equal only when nothing waits */
    return atomic_load(&added) != before;
}

uint64_t hr_quarantine_released(void)
{
    return atomic_load(&released);
}

size_t hr_quarantine_bytes(void)
{
    size_t bytes = 0;
    for (struct hr_thread *slot = hr_thread_first(); slot; slot = slot->next) {
        struct list *list = __atomic_load_n((struct list **)&slot->room[HR_ROOM_QUARANTINE], __ATOMIC_ACQUIRE);
        if (!list)
            continue;
        hr_mutex_lock(&list->lock);
        bytes += list->bytes;
        hr_mutex_unlock(&list->lock);
    }
    return bytes;
}

bool hr_quarantine_drop(struct hr_extent *e)
{
    hr_mutex_lock(&hr_move_lock);
    CUresult r = hr_drop_backing_locked(e);
    hr_mutex_unlock(&hr_move_lock);
    if (r == CUDA_SUCCESS)
        hr_hidden_forget(e);
    else
        hr_log(HR_LOG_WARN, "freed memory could not be unmapped yet: driver error %d", (int)r);
    return r == CUDA_SUCCESS;
}

/* true = released; false = its backing could not be taken away: keep it. */
static bool release_one(struct hr_thread *t, CUdeviceptr address)
{
    struct hr_extent *e = atomic_load(&hr_space_chunk(address)->extent);
    bool large = atomic_load(&e->kind) == HR_EXTENT_LARGE;
    if (large && atomic_load(&e->touched) && !hr_quarantine_drop(e))
        return false;
    struct hr_extent *empty_slab = hr_space_release(t, address);
    for (int attempt = 0; empty_slab && attempt < 3; attempt++) {
        if (hr_quarantine_drop(empty_slab)) {
            hr_space_release_slab(t, empty_slab);
            break;
        }
    }
    return true;
}

void hr_quarantine_release_one(struct hr_thread *t, CUdeviceptr address)
{
    if (!release_one(t, address))
        hr_quarantine_add(t, address);
}

/* The GPUs whose work could touch what was freed there. */
static uint64_t users_of(CUdeviceptr address)
{
    const struct hr_extent *e = atomic_load(&hr_space_chunk(address)->extent);
    return hr_peers_users(e->gpu);
}

/*
 * Moves covered entries of one list out; how many. Stamps grow along the list, so with one GPU the first that is not covered
 * ends the search; with more, what waits for a busy GPU must not hold up the others' memory.
 */
static uint32_t take_covered(struct list *list, struct entry *out, uint32_t most)
{
    uint32_t taken = 0;
    hr_mutex_lock(&list->lock);
    uint32_t kept = list->first, at = list->first;
    for (; at < list->count && taken < most; at++) {
        struct entry *entry = &list->entries[at];
        if (hr_drain_covers(entry->stamp, users_of(entry->address)))
            out[taken++] = *entry;
        else if (hr_space.gpu_count == 1)
            break;
        else
            list->entries[kept++] = *entry;
    }
    if (kept > list->first) { /* what was kept moves up to the rest */
        uint32_t count = kept - list->first;
        memmove(list->entries + at - count, list->entries + list->first, count * sizeof *list->entries);
        list->first = at - count;
    } else {
        list->first = at;
    }
    if (list->first == list->count)
        list->first = list->count = 0;
    hr_mutex_unlock(&list->lock);
    return taken;
}

/* Gives back what was taken out of a list; how many. The rest waits anew. */
static size_t release_batch(struct hr_thread *t, struct list *list, const struct entry *batch, uint32_t n)
{
    size_t back = 0, bytes = 0;
    for (uint32_t i = 0; i < n; i++) {
        bytes += most_bytes_of(batch[i].address);
        if (release_one(t, batch[i].address))
            back++;
        else
            hr_quarantine_add(t, batch[i].address);
    }
    atomic_fetch_add(&released, n); /* before the bytes: who misses those finds that something came back */
    hr_mutex_lock(&list->lock);
    list->bytes -= bytes;
    hr_mutex_unlock(&list->lock);
    return back;
}

size_t hr_quarantine_release(struct hr_thread *t)
{
    struct entry batch[64];
    size_t total = 0;
    if (!hr_quarantine_any())
        return 0;
    for (struct hr_thread *slot = hr_thread_first(); slot; slot = slot->next) {
        struct list *list = __atomic_load_n((struct list **)&slot->room[HR_ROOM_QUARANTINE], __ATOMIC_ACQUIRE);
        uint32_t n = 0;
        while (list && (n = take_covered(list, batch, 64)) > 0) {
            size_t back = release_batch(t, list, batch, n);
            total += back;
            if (back < n)
                break;
        }
    }
    return total;
}
