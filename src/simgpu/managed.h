/*
 * Managed memory: one address for the host and every device. The bytes are the process's own, at that address, and all page
 * tables point there; where a page is said to be (its residency, per 2 MiB) decides which tier's price an access has.
 * Advice and prefetches are kept per 4 KiB, as callers can ask about them.
 */
#ifndef SG_MANAGED_H
#define SG_MANAGED_H

#include "simgpu/sim.h"

#define SG_CPU_PAGE_BYTES UINT64_C(4096)
#define SG_ACCESSED_BY_HOST (UINT32_C(1) << 31) /* beside a bit for each device */

struct sg_managed_place { /* type 0 (invalid): none */
    uint8_t type;         /* CUmemLocationType */
    int16_t id;
};

struct sg_managed_page { /* of 4 KiB */
    struct sg_managed_place preferred, prefetched;
    bool read_mostly;
    uint32_t accessed_by;
};

struct sg_managed { /* counted references: the allocation and prefetches under way */
    unsigned refs;
    bool gone; /* the allocation is */
    uint64_t map_bytes;
    struct sg_managed_page *page;
    int16_t *resident; /* of each 2 MiB: the device, or SG_ON_HOST */
    unsigned attached; /* CUmemAttach_flags */
};

void sg_managed_unref(struct sg_managed *managed); /* NULL is fine */
void sg_managed_destroy(struct sg_alloc *alloc);
/* The allocation around [va, va+bytes); NULL: that is not all managed memory of one allocation. */
struct sg_alloc *sg_managed_at(uint64_t va, uint64_t bytes);
/* Checks a location that managed memory may be at. INVALID_VALUE, INVALID_DEVICE. */
CUresult sg_managed_place_of(const CUmemLocation *location, struct sg_managed_place *place_out);
/* Carries out a prefetch; sg.lock is not held: moves the pages there, and counts the bytes. */
void sg_managed_move(const struct sg_copy *copy, struct sg_moved *moved);

#endif
