#include "residency/hidden.h"

#include "base/lock.h"
#include "base/log.h"
#include "residency/access.h"
#include "residency/texture.h"
#include "stats/stats.h"

#include <stdlib.h>
#include <string.h>

/*
 * A list of references is immutable once published; adding makes a new list and retires the old one, which is freed in
 * the next quiet moment. References only ever add residency, so a stale one costs time, never correctness.
 */

struct retired {
    struct hr_refs *refs;
    struct retired *next;
};
static struct hr_mutex refs_lock = HR_MUTEX_INIT(HR_RANK_QUEUE, "hidden pointers");
static struct retired *retired_lists; /* guarded by refs_lock */

static bool holds(const struct hr_refs *refs, const struct hr_extent *e)
{
    for (uint32_t i = 0; refs && i < refs->count; i++)
        if (refs->extent[i] == e)
            return true;
    return false;
}

static void retire_locked(struct hr_refs *refs)
{
    struct retired *r = refs ? malloc(sizeof *r) : NULL;
    if (!r)
        return; /* out of memory: the old list leaks, which is safe */
    r->refs = refs;
    r->next = retired_lists;
    retired_lists = r;
}

/* Adds extents to what `holder` names. */
static void add_refs(struct hr_extent *holder, struct hr_extent *const *found, uint32_t count)
{
    hr_mutex_lock(&refs_lock);
    struct hr_refs *old = atomic_load(&holder->refs);
    uint32_t old_count = old ? old->count : 0, live = 0;
    struct hr_refs *fresh = malloc(sizeof *fresh + (old_count + count) * sizeof fresh->extent[0]);
    if (!fresh || old_count + count > HR_HIDDEN_REFS_MOST) {
        hr_mutex_unlock(&refs_lock);
        free(fresh);
        hr_access_cannot_scan("a buffer names too many others");
        return;
    }
    for (uint32_t i = 0; i < old_count; i++)
        if (atomic_load(&old->extent[i]->live))
            fresh->extent[live++] = old->extent[i];
    fresh->count = live;
    for (uint32_t i = 0; i < count; i++) {
        if (!holds(fresh, found[i]))
            fresh->extent[fresh->count++] = found[i];
    }
    atomic_store_explicit(&holder->refs, fresh, memory_order_release);
    retire_locked(old);
    hr_mutex_unlock(&refs_lock);
}

void hr_hidden_scan(CUdeviceptr destination, const void *payload, size_t bytes)
{
    struct hr_extent *holder = hr_space_extent(destination);
    if (!holder || bytes < 8 || bytes > HR_HIDDEN_PAYLOAD_BYTES)
        return;
    struct hr_extent *found[64];
    uint32_t count = 0, seen = 0;
    const struct hr_refs *known = atomic_load_explicit(&holder->refs, memory_order_acquire);
    for (size_t at = (8 - destination % 8) % 8; at + 8 <= bytes; at += 8) {
        uint64_t word;
        memcpy(&word, (const char *)payload + at, 8);
        struct hr_extent *e = hr_space_extent(hr_space_owns(word) ? word : hr_texture_address(word));
        if (!e || e == holder)
            continue;
        seen++;
        bool have = holds(known, e);
        for (uint32_t i = 0; i < count && !have; i++)
            have = found[i] == e;
        if (have)
            continue;
        if (count == sizeof found / sizeof *found) {
            add_refs(holder, found, count);
            known = atomic_load_explicit(&holder->refs, memory_order_acquire);
            count = 0;
        }
        found[count++] = e;
    }
    if (count > 0)
        add_refs(holder, found, count);
    if (seen > 0)
        hr_stat_add(hr_thread_self(), HR_STAT_hidden_pointer_copies, 1);
}

#define SAMPLE_BYTES ((size_t)8 << 10) /* of every HR_HIDDEN_PAYLOAD_BYTES */

static bool names_window(CUdeviceptr destination, const char *payload, size_t bytes)
{
    for (size_t at = (8 - destination % 8) % 8; at + 8 <= bytes; at += 8) {
        uint64_t word;
        memcpy(&word, payload + at, 8);
        if (hr_space_owns(word))
            return true;
    }
    return false;
}

void hr_hidden_notice(CUdeviceptr destination, const void *payload, size_t bytes)
{
    if (!hr_access_can_scan())
        return;
    bool whole = bytes <= HR_HIDDEN_PAYLOAD_BYTES;
    for (size_t at = 0; at < bytes; at += HR_HIDDEN_PAYLOAD_BYTES) {
        size_t left = bytes - at, look = whole || left < SAMPLE_BYTES ? left : SAMPLE_BYTES;
        if (names_window(destination + at, (const char *)payload + at, look)) {
            hr_access_cannot_scan("the job copies addresses to where headroom does not follow them");
            return;
        }
    }
}

void hr_hidden_propagate(CUdeviceptr destination, CUdeviceptr source)
{
    struct hr_extent *from = hr_space_extent(source), *to = hr_space_extent(destination);
    struct hr_refs *refs = from ? atomic_load_explicit(&from->refs, memory_order_acquire) : NULL;
    const struct hr_refs *known = to ? atomic_load_explicit(&to->refs, memory_order_acquire) : NULL;
    uint32_t have = 0;
    while (refs && have < refs->count && holds(known, refs->extent[have]))
        have++;
    if (refs && to && to != from && have < refs->count)
        add_refs(to, refs->extent, refs->count);
}

void hr_hidden_forget(struct hr_extent *e)
{
    if (!atomic_load_explicit(&e->refs, memory_order_relaxed))
        return;
    hr_mutex_lock(&refs_lock);
    retire_locked(atomic_exchange(&e->refs, NULL));
    hr_mutex_unlock(&refs_lock);
}

void hr_hidden_collect_quiet(void)
{
    hr_mutex_lock(&refs_lock);
    struct retired *list = retired_lists;
    retired_lists = NULL;
    hr_mutex_unlock(&refs_lock);
    while (list) {
        struct retired *next = list->next;
        free(list->refs);
        free(list);
        list = next;
    }
}
