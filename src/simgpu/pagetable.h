/*
 * The per-device page table of simgpu: device virtual address -> host alias mapping, access rights, backing tier.
 *
 * A flat table of one 8-byte entry per 2 MiB page over the 47-bit address space (a sparse, MAP_NORESERVE mapping), so that a
 * kernel's access is one load and a few shifts. Writers (map, unmap, set-access, first touch) store whole entries with
 * release and readers (kernels, copy engines) load them with acquire, so that whoever finds an entry finds its page filled; an
 * access that races with an unmap sees either state, as on hardware.
 */
#ifndef SG_PAGETABLE_H
#define SG_PAGETABLE_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#define SG_PAGE_SHIFT 21
#define SG_PAGE_BYTES (UINT64_C(1) << SG_PAGE_SHIFT)
#define SG_VA_BITS 47

/* Entry: host address of the page's first byte (4 KiB aligned) | flags. 0 = nothing mapped. */
#define SG_PTE_READ UINT64_C(1)
#define SG_PTE_WRITE UINT64_C(2)
#define SG_PTE_TIER_SHIFT 2
#define SG_PTE_TIER_MASK (UINT64_C(3) << SG_PTE_TIER_SHIFT)
#define SG_PTE_SLOW UINT64_C(16) /* only parts of the page are mapped (pinned host ranges): ask translate_slow */
#define SG_PTE_OWNER_SHIFT 5     /* which device's memory it is, plus 1; 0: the host's */
#define SG_PTE_OWNER_MASK (UINT64_C(31) << SG_PTE_OWNER_SHIFT)
#define SG_PTE_HOST_MASK (~UINT64_C(0xfff))

/* What backs a byte that a kernel or a copy touches, seen from the device that touches it. */
enum sg_tier { SG_TIER_VRAM, SG_TIER_PEER, SG_TIER_HOST, SG_TIER_COUNT };

struct sg_pagetable {
    _Atomic(uint64_t) *pte; /* 1 << (SG_VA_BITS - SG_PAGE_SHIFT) entries */
    /* For SG_PTE_SLOW pages. Returns the host address, or NULL where [va, va+bytes) is not accessible. Thread-safe. */
    void *(*translate_slow)(const struct sg_pagetable *pt, uint64_t va, unsigned bytes, int how,
                            enum sg_tier *tier_out);
    void *owner; /* for translate_slow */
    /* Each grid gets a copy of its device's struct with a touch_id of its own: touched[page] then tells which grid was the last
     * to translate an address there. NULL in the device's own, which copies use. */
    _Atomic(uint32_t) *touched;
    uint32_t touch_id;
};

/* The device that the page's memory belongs to; -1: the host's, or nothing mapped. */
static inline int sg_page_owner(const struct sg_pagetable *pt, uint64_t va)
{
    uint64_t e = va >> SG_VA_BITS ? 0 : atomic_load_explicit(&pt->pte[va >> SG_PAGE_SHIFT], memory_order_relaxed);
    return (int)((e & SG_PTE_OWNER_MASK) >> SG_PTE_OWNER_SHIFT) - 1;
}

static inline void sg_touch(const struct sg_pagetable *pt, uint64_t va)
{
    if (!pt->touched)
        return;
    _Atomic(uint32_t) *at = &pt->touched[va >> SG_PAGE_SHIFT];
    if (atomic_load_explicit(at, memory_order_relaxed) != pt->touch_id)
        atomic_store_explicit(at, pt->touch_id, memory_order_relaxed);
}

/* How an access is made: a read (0) or a write, and of either kind a strong one (atomic, volatile, relaxed, ...). */
#define SG_HOW_WRITE 1
#define SG_HOW_STRONG 2

/*
 * Host address of [va, va+bytes), which must not cross a 2 MiB page; NULL = illegal access (unmapped, or no right).
 * Device accesses are naturally aligned and at most 16 bytes, so they never cross; callers that walk ranges split.
 */
static inline void *sg_translate(const struct sg_pagetable *pt, uint64_t va, unsigned bytes, int how,
                                 enum sg_tier *tier_out)
{
    if (va >> SG_VA_BITS)
        return NULL;
    uint64_t e = atomic_load_explicit(&pt->pte[va >> SG_PAGE_SHIFT], memory_order_acquire);
    if (e & SG_PTE_SLOW) {
        void *host = pt->translate_slow(pt, va, bytes, how, tier_out);
        if (host)
            sg_touch(pt, va);
        return host;
    }
    if (!(e & (how & SG_HOW_WRITE ? SG_PTE_WRITE : SG_PTE_READ)))
        return NULL;
    sg_touch(pt, va);
    *tier_out = (enum sg_tier)((e & SG_PTE_TIER_MASK) >> SG_PTE_TIER_SHIFT);
    return (void *)(uintptr_t)((e & SG_PTE_HOST_MASK) + (va & (SG_PAGE_BYTES - 1)));
}

#endif
