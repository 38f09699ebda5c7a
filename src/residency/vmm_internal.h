/* Shared by the files of the job's own mappings (vmm.h) only. */
#ifndef HR_RESIDENCY_VMM_INTERNAL_H
#define HR_RESIDENCY_VMM_INTERNAL_H

#include "base/lock.h"
#include "driver/driver.h"
#include "residency/vmm.h"
#include "space/space.h"
#include "tier/tier.h"

#include <uthash.h>

/*
 * A mapping is known by the chunks of its reservation; what lies outside of our reservations is in a list. Whoever may access a
 * movable mapping at all is what makes it exist for the rest of the library: before that its chunks are holes, and its bytes stay
 * with the handle.
 */

#define ROOM_ATTEMPTS 8 /* at room for what has to be pinned, or given to the driver */

struct hr_vmm_handle {
    CUmemGenericAllocationHandle value;
    CUmemAllocationProp prop;
    unsigned gpu;
    uint32_t chunks, refs;
    bool pinned;
    CUmemGenericAllocationHandle
        real; /* the driver's, since it was exported; 0 = none. Then it is pinned, and has no chunks */
    struct hr_vmm_mapping *mappings; /* by next_of_handle */
    UT_hash_handle hh;
    struct hr_phys *phys[]; /* what backs it where it is not in the chunks of a mapping */
};
struct hr_vmm_reservation {
    struct hr_extent *e;
    CUdeviceptr va;
    uint32_t first_chunk, chunks;
    uint32_t top; /* the most chunks that the extent ever reached over */
    uint32_t count;
    unsigned gpu;
    uint64_t number;
    uint32_t granted[HR_MAX_GPUS]; /* mappings that a GPU may access */
    struct hr_vmm_mapping **at;    /* by chunk */
    struct hr_vmm_reservation *next;
};
struct hr_vmm_mapping {
    CUdeviceptr va;
    uint32_t chunks;
    struct hr_vmm_handle *handle;   /* NULL = the driver's */
    struct hr_vmm_reservation *res; /* NULL = addresses of the driver's */
    uint64_t id;
    bool usable;     /* movable, and some GPU may access it: its chunks are the extent's */
    uint32_t grants; /* GPUs (a bit each) for which it counts among res->granted */
    uint8_t access[HR_MAX_GPUS];
    struct hr_vmm_mapping *next_of_handle, *next_outside;
};

extern struct hr_mutex hr_vmm_lock;
extern struct hr_vmm_mapping *hr_vmm_outside; /* guarded by hr_vmm_lock: mappings at addresses of the driver's */
extern uint64_t hr_vmm_next_number;           /* guarded by hr_vmm_lock: of handles, mappings, reservations */

static inline size_t hr_vmm_bytes_of(uint32_t chunks)
{
    return (size_t)chunks << hr_space.chunk_shift;
}

static inline bool hr_vmm_is_whole_chunks(uint64_t value)
{
    return value > 0 && (value & (hr_chunk_bytes() - 1)) == 0;
}

static inline uint32_t hr_vmm_chunk_of(const struct hr_vmm_mapping *m)
{
    return (uint32_t)((m->va - hr_space.base) >> hr_space.chunk_shift);
}

/* vmm.c. A handle that is held; what lies at an address. NULL = none. */
struct hr_vmm_handle *hr_vmm_handle_locked(CUmemGenericAllocationHandle value) HR_REQUIRES(hr_vmm_lock);
struct hr_vmm_reservation *hr_vmm_reservation_locked(CUdeviceptr address) HR_REQUIRES(hr_vmm_lock);
struct hr_vmm_mapping *hr_vmm_mapping_locked(CUdeviceptr address) HR_REQUIRES(hr_vmm_lock);
/* Ends a handle that nobody holds and that is mapped nowhere. */
void hr_vmm_drop_locked(struct hr_thread *t, struct hr_vmm_handle *h) HR_REQUIRES(hr_vmm_lock);
/* VRAM that is the driver's instead of ours from now on, or no more. */
void hr_vmm_charge_driver(const struct hr_vmm_handle *h, bool charge);

/* vmmmap.c. Maps a pinned handle's memory, with the access that the mapping says; mapped_already: only that. Errors: the driver's, and nothing was
 * mapped. */
CUresult hr_vmm_map_pinned_locked(struct hr_vmm_mapping *m, bool mapped_already) HR_REQUIRES(hr_vmm_lock);
/* Whether the driver has something mapped there that is none of the movers' business, for those who ask the chunk array. */
void hr_vmm_note_driver(const struct hr_vmm_mapping *m, bool mapped);
/* What other GPUs were granted for it is theirs no more. */
void hr_vmm_drop_grants_locked(struct hr_vmm_mapping *m) HR_REQUIRES(hr_vmm_lock);
/* The extent reaches to the last of its chunks, as far as it knows, now that the mapping is usable or is not. */
void hr_vmm_reach_locked(struct hr_vmm_reservation *res, const struct hr_vmm_mapping *m, bool usable)
    HR_REQUIRES(hr_vmm_lock);

#endif
