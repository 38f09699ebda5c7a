/* Carrying out copies and fills: through the page tables, page by page, with no lock held. */
#include "simgpu/check.h"
#include "simgpu/fabric.h"
#include "simgpu/linkfault.h"
#include "simgpu/managed.h"

#include <string.h>

/* Where pinned memory is mapped once more, the job's address may be protected. */
static uint64_t place_of_pinned(uint64_t va, size_t *bytes_io)
{
    pthread_rwlock_rdlock(&sg.host_lock);
    const struct sg_host *h = sg_host_at(va);
    uint64_t place = h ? sg_host_place(h, va) : va;
    if (place != va && *bytes_io > h->va + h->bytes - va)
        *bytes_io = (size_t)(h->va + h->bytes - va);
    pthread_rwlock_unlock(&sg.host_lock);
    return place;
}

/* The host address of the operand's next bytes, and how many lie there together (at most *bytes_io). */
static uint8_t *resolve(int device, uint64_t va, int write, size_t *bytes_io, enum sg_tier *tier_out)
{
    if (device == SG_ON_HOST) {
        *tier_out = SG_TIER_HOST;
        return (uint8_t *)(uintptr_t)(sg_check.host ? place_of_pinned(va, bytes_io) : va);
    }
    size_t page_rest = (size_t)(SG_PAGE_BYTES - (va & (SG_PAGE_BYTES - 1)));
    if (*bytes_io > page_rest)
        *bytes_io = page_rest;
    return sg_translate(&sg.devices[device].pagetable, va, (unsigned)*bytes_io, write, tier_out);
}

static enum sg_direction direction(enum sg_tier src, int src_device, enum sg_tier dst, int dst_device)
{
    if (src == SG_TIER_HOST)
        return dst == SG_TIER_HOST ? SG_H2H : SG_H2D;
    if (dst == SG_TIER_HOST)
        return SG_D2H;
    return src == SG_TIER_PEER || dst == SG_TIER_PEER || src_device != dst_device ? SG_P2P : SG_D2D;
}

/*
 * Device memory is the program's to race on: what two operations that nobody ordered do to it is undefined on hardware too, and
 * headroom relies on that (a copy that overlapped with a writer is made again). So ThreadSanitizer sees pageable memory of a
 * copy, and neither the device's nor pinned memory, as it does for the accesses of kernels.
 */
#if defined(__SANITIZE_THREAD__)
#define UNSEEN_DEVICE_MEMORY 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define UNSEEN_DEVICE_MEMORY 1
#endif
#endif

#ifdef UNSEEN_DEVICE_MEMORY
/* Volatile, so that the loop does not become a call that is seen. */
static __attribute__((no_sanitize("thread"))) void move_unseen(uint8_t *to, const uint8_t *from, size_t bytes)
{
    if ((uintptr_t)to - (uintptr_t)from >= bytes) {
        for (size_t i = 0; i < bytes;) {
            if (((uintptr_t)(to + i) | (uintptr_t)(from + i)) % 8 == 0 && bytes - i >= 8) {
                *(volatile uint64_t *)(to + i) = *(const volatile uint64_t *)(from + i);
                i += 8;
            } else {
                ((volatile uint8_t *)to)[i] = ((const volatile uint8_t *)from)[i];
                i++;
            }
        }
    } else {
        for (size_t i = bytes; i > 0; i--)
            ((volatile uint8_t *)to)[i - 1] = ((const volatile uint8_t *)from)[i - 1];
    }
}

static bool is_unseen(int device, uint64_t va)
{
    if (device != SG_ON_HOST)
        return true;
    pthread_rwlock_rdlock(&sg.host_lock);
    bool pinned = sg_host_at(va) != NULL;
    pthread_rwlock_unlock(&sg.host_lock);
    return pinned;
}

void sg_move_bytes(uint8_t *to, bool to_device, uint8_t *from, bool from_device, size_t bytes)
{
    uint8_t piece[4096];
    if (to_device && from_device) {
        move_unseen(to, from, bytes);
        return;
    }
    for (size_t at = 0, n; at < bytes; at += n) {
        n = bytes - at < sizeof piece ? bytes - at : sizeof piece;
        if (from_device)
            move_unseen(piece, from + at, n);
        else
            memcpy(piece, from + at, n);
        if (to_device)
            move_unseen(to + at, piece, n);
        else
            memcpy(to + at, piece, n);
    }
}
#else
static bool is_unseen(int device, uint64_t va)
{
    (void)device, (void)va;
    return false;
}

void sg_move_bytes(uint8_t *to, bool to_device, uint8_t *from, bool from_device, size_t bytes)
{
    (void)to_device, (void)from_device;
    memmove(to, from, bytes);
}
#endif

/* Takes bytes from one card's memory to another's over the node; how many got there. */
static size_t carry(int from, int to, bool direct, const uint8_t *d, size_t bytes, struct sg_moved *moved)
{
    const struct sg_pool *pool = &sg.devices[to].pool;
    if (!sg.config.topology)
        return bytes;
    uint64_t offset = (uint64_t)(d - pool->alias), done = 0; /* exportable memory has no place of its own: anywhere */
    if (d < pool->alias || offset + bytes > (uint64_t)pool->frames << SG_PAGE_SHIFT)
        offset = (uint64_t)(uintptr_t)d % ((uint64_t)pool->frames << SG_PAGE_SHIFT) & ~(SG_PAGE_BYTES - 1);
    struct sg_carry c = {sg.card[from], sg.card[to], offset, bytes, moved->turn, direct};
    moved->link_error = sg_node_carry(&c, &moved->usage, &done);
    moved->turn += (bytes + 65535) >> 16;
    return (size_t)done;
}

static bool copy_row(const struct sg_copy *c, uint64_t dst, uint64_t src, struct sg_moved *moved, uint64_t *bad_out)
{
    for (size_t left = c->width_bytes; left;) {
        size_t bytes = left;
        enum sg_tier from, to;
        uint8_t *s = resolve(c->src_device, src, 0, &bytes, &from);
        uint8_t *d = resolve(c->dst_device, dst, 1, &bytes, &to);
        if (!s || !d) {
            *bad_out = s ? dst : src;
            return false;
        }
        enum sg_direction way = direction(from, c->src_device, to, c->dst_device);
        size_t wanted = bytes;
        bool corrupt = false;
        if (way == SG_P2P && (sg.config.topology || sg_linkfault_any_path())) {
            int src_owner = sg_page_owner(&sg.devices[c->src_device].pagetable, src);
            int dst_owner = sg_page_owner(&sg.devices[c->dst_device].pagetable, dst);
            if (src_owner == dst_owner || src_owner < 0 || dst_owner < 0) {
                way = SG_D2D; /* another card's, within its memory */
            } else {
                bool direct = sg_node_is_direct(src_owner, dst_owner, dst, src);
                corrupt = direct && sg_linkfault_path(sg.card[src_owner], sg.card[dst_owner]) & SG_PATH_CORRUPT;
                bytes = carry(src_owner, dst_owner, direct, d, bytes, moved);
            }
        }
        sg_move_bytes(d, is_unseen(c->dst_device, dst), s, is_unseen(c->src_device, src), bytes);
        if (corrupt)
            sg_linkfault_corrupt(d, bytes);
        moved->bytes[way] += bytes;
        if (bytes < wanted) {
            *bad_out = dst + bytes;
            return false;
        }
        src += bytes;
        dst += bytes;
        left -= bytes;
    }
    return true;
}

bool sg_copy_execute(const struct sg_copy *c, struct sg_moved *moved, uint64_t *bad_out)
{
    if (c->prefetch) {
        sg_managed_move(c, moved);
        return true;
    }
    uint64_t src = c->staging ? (uint64_t)(uintptr_t)c->staging : c->src;
    size_t src_pitch = c->staging ? c->width_bytes : c->src_pitch;
    size_t src_slice = c->staging ? c->width_bytes * c->height : c->src_slice;
    for (size_t z = 0; z < c->depth; z++)
        for (size_t row = 0; row < c->height; row++)
            if (!copy_row(c, c->dst + z * c->dst_slice + row * c->dst_pitch, src + z * src_slice + row * src_pitch,
                          moved, bad_out))
                return false;
    return true;
}

/* Fills a piece of a few KiB once and copies it: every element size divides it. */
static void fill_bytes(uint8_t *at, size_t bytes, uint32_t value, unsigned element_bytes)
{
    uint8_t pattern[4096];
    size_t first = bytes < sizeof pattern ? bytes : sizeof pattern;
    for (size_t i = 0; i < first; i += element_bytes)
        memcpy(pattern + i, &value, element_bytes); /* little-endian: the low bytes come first */
    for (size_t done = 0; done < bytes; done += first) {
        if (first > bytes - done)
            first = bytes - done;
        sg_move_bytes(at + done, true, pattern, true, first);
    }
}

bool sg_fill_execute(const struct sg_fill *f, struct sg_moved *moved, uint64_t *bad_out)
{
    for (size_t row = 0; row < f->height; row++) {
        uint64_t dst = f->dst + row * f->pitch;
        for (size_t left = f->width_bytes; left;) {
            size_t bytes = left;
            enum sg_tier tier;
            uint8_t *d = resolve(f->device, dst, 1, &bytes, &tier);
            if (!d) {
                *bad_out = dst;
                return false;
            }
            size_t wanted = bytes;
            int owner =
                sg.config.topology && tier == SG_TIER_PEER ? sg_page_owner(&sg.devices[f->device].pagetable, dst) : -1;
            if (owner >= 0)
                bytes = carry(f->device, owner, true, d, bytes, moved);
            if (bytes < wanted)
                bytes &= ~(size_t)3;
            fill_bytes(d, bytes, f->value, f->element_bytes);
            if (bytes < wanted) {
                *bad_out = dst + bytes;
                return false;
            }
            moved->bytes[tier == SG_TIER_VRAM ? SG_D2D : tier == SG_TIER_HOST ? SG_D2H : SG_P2P] += bytes;
            dst += bytes;
            left -= bytes;
        }
    }
    return true;
}
