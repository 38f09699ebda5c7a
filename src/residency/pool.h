/*
 * Memory pools. A pool of device memory that cannot be exported is served: it exists in the driver, which checks what is said about
 * it, but its memory comes from the window. Other pools (exportable ones, of host memory, imported) are the driver's; what those of
 * a GPU reserve is charged as overhead.
 *
 * Records are never freed, only used again, so that whoever comes by one through a stale address reads a record.
 */
#ifndef HR_RESIDENCY_POOL_H
#define HR_RESIDENCY_POOL_H

#include "base/thread.h"
#include "residency/shelf.h"
#include "space/space.h"

#include <uthash.h>

struct hr_pool {
    _Atomic(CUmemoryPool) handle; /* NULL = destroyed */
    uint64_t number;              /* of the record */
    unsigned gpu;
    bool served;
    size_t max_bytes; /* 0 = no limit of its own */
    struct hr_shelf *over;
    _Atomic(uint8_t) opportunistic,
        internal;                         /* REUSE_ALLOW_...; whose order is followed does not depend on the third */
    _Atomic(uint8_t) access[HR_MAX_GPUS]; /* CUmemAccess_flags of each GPU */
    _Atomic(uint64_t) threshold_bytes;
    _Atomic(uint64_t) live; /* allocations */
    _Atomic(uint64_t) used_bytes, used_high_bytes;
    _Atomic(uint64_t) held_bytes,
        held_high_bytes; /* used, or on a shelf; of another than a served pool: what is charged */
    UT_hash_handle hh;
};

/* The record of a pool; NULL = none that concerns us. The current pool of a GPU. Locks: HR_RANK_REGISTRY at the first time a
 * thread asks for this one, HR_RANK_START at the very first. */
struct hr_pool *hr_pool_of(CUmemoryPool handle);
struct hr_pool *hr_pool_current(unsigned gpu);
/* Which pool is a device's current one may have changed. */
void hr_pool_current_changed(void);

/* In whose name allocations of the pool are made (hr_alloc_window); and back: NULL = the owner is a context. */
CUcontext hr_pool_owner(const struct hr_pool *pool);
struct hr_pool *hr_pool_of_owner(CUcontext owner);

/* After the driver's calls that succeeded. */
void hr_pool_created(CUmemoryPool handle, const CUmemPoolProps *props);
void hr_pool_destroyed(struct hr_thread *t, CUmemoryPool handle);

/*
 * An allocation in the order of a stream, of a served pool. Errors: those of hr_alloc_window; OUT_OF_MEMORY: beyond the pool's own
 * limit. Locks: hold none, and no submission; in the common case takes the shelf's only.
 */
CUresult hr_pool_alloc(struct hr_thread *t, struct hr_pool *pool, const struct hr_order *order, size_t bytes,
                       void *return_pc, CUdeviceptr *address_out);
/* A retired allocation of a served pool; order = NULL: whatever was submitted before has to be done (cuMemFree). */
void hr_pool_free(struct hr_thread *t, struct hr_pool *pool, const struct hr_order *order, struct hr_extent *e,
                  CUdeviceptr address, size_t bytes, bool touched);
/* What it reserves: whole chunks. */
size_t hr_pool_reserved_bytes(const struct hr_pool *pool);
/* Something of a pool, its block so large, is the window's again. */
void hr_pool_let_go(struct hr_pool *pool, size_t block_bytes);
/* What a pool of the driver's reserves has become so much: the difference counts as overhead. */
void hr_pool_charge(struct hr_pool *pool, size_t reserved_bytes);

#endif
