#include "residency/texture.h"

#include "base/lock.h"

#include <stdlib.h>

/*
 * A table with open addressing that launches read without a lock. A key stays in its place for good, with address 0 once its texture is gone; the table
 * is replaced by a larger one when keys fill half of it. Those that were replaced are kept: somebody may be reading, and together they are no larger
 * than the last one.
 */
struct slot {
    _Atomic(uint64_t) key; /* 0 = free; a texture object is never 0 */
    _Atomic(CUdeviceptr) address;
};
struct table {
    struct table *replaced;
    uint32_t mask, used;
    struct slot slot[];
};

static struct hr_mutex lock = HR_MUTEX_INIT(HR_RANK_QUEUE + 1, "textures");
static _Atomic(struct table *) current; /* written under the lock */
_Atomic(uint32_t) hr_texture_count;

static struct slot *place_of(struct table *table, uint64_t key)
{
    uint32_t at = (uint32_t)(key * UINT64_C(0x9e3779b97f4a7c15) >> 32);
    for (;; at++) {
        struct slot *slot = &table->slot[at & table->mask];
        uint64_t found = atomic_load_explicit(&slot->key, memory_order_acquire);
        if (found == key || found == 0)
            return slot;
    }
}

static void put(struct table *table, uint64_t key, CUdeviceptr address)
{
    struct slot *slot = place_of(table, key);
    table->used += atomic_load(&slot->key) == 0;
    atomic_store(&slot->address, address); /* before whoever reads finds the key */
    atomic_store_explicit(&slot->key, key, memory_order_release);
}

/* With room for one more; NULL: no memory. */
static struct table *roomy_locked(void) HR_REQUIRES(lock)
{
    struct table *old = atomic_load(&current);
    if (old && old->used < old->mask / 2)
        return old;
    uint32_t slots = old ? 2 * (old->mask + 1) : 64;
    struct table *fresh = calloc(1, sizeof *fresh + slots * sizeof fresh->slot[0]);
    if (!fresh)
        return NULL;
    fresh->mask = slots - 1;
    fresh->replaced = old;
    for (uint32_t i = 0; old && i <= old->mask; i++) {
        CUdeviceptr address = atomic_load(&old->slot[i].address);
        if (address)
            put(fresh, atomic_load(&old->slot[i].key), address);
    }
    atomic_store_explicit(&current, fresh, memory_order_release);
    return fresh;
}

CUresult hr_texture_made(CUtexObject texture, CUdeviceptr address)
{
    hr_mutex_lock(&lock);
    struct table *table = roomy_locked();
    if (table) {
        put(table, texture, address);
        atomic_fetch_add(&hr_texture_count, 1);
    }
    hr_mutex_unlock(&lock);
    return table ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void hr_texture_gone(CUtexObject texture)
{
    hr_mutex_lock(&lock);
    struct table *table = atomic_load(&current);
    struct slot *slot = table && texture ? place_of(table, texture) : NULL;
    if (slot && atomic_load(&slot->key) == texture && atomic_exchange(&slot->address, 0))
        atomic_fetch_sub(&hr_texture_count, 1);
    hr_mutex_unlock(&lock);
}

CUdeviceptr hr_texture_find(uint64_t word)
{
    struct table *table = atomic_load_explicit(&current, memory_order_acquire);
    if (!table || word == 0)
        return 0;
    struct slot *slot = place_of(table, word);
    return atomic_load_explicit(&slot->key, memory_order_relaxed) == word
               ? atomic_load_explicit(&slot->address, memory_order_relaxed)
               : 0;
}
