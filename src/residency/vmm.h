/*
 * The job's own virtual memory management: reservations, handles, mappings (PyTorch's expandable segments, for example).
 *
 * Reservations are taken from the window of the current device's GPU, as far as its addresses go. A handle for plain device memory is
 * a record of ours that no driver knows: it has a commit charge, and chunks only once they are used. Mapped once, into a reservation
 * in its own GPU's window, it is movable: the chunks there belong to an extent like any other. Mapped in any other way (twice,
 * elsewhere, on another GPU) it is pinned: it gets all its chunks, which the driver maps and nobody moves. Other handles
 * (exportable ones of a kind that is not served, of host memory, imported) are the driver's and stay what they are, wherever they
 * are mapped.
 *
 * Locks: one of all of it, of a rank between HR_RANK_CONTEXT and HR_RANK_MOVE, in which the move lock is taken. Hold none.
 */
#ifndef HR_RESIDENCY_VMM_H
#define HR_RESIDENCY_VMM_H

#include "base/thread.h"
#include "space/space.h"

/* Whether the job ever reserved addresses, or has such a handle. No lock. */
bool hr_vmm_any(void);
/* Whether this is a handle of ours. Takes the lock where hr_vmm_any. */
bool hr_vmm_is_handle(CUmemGenericAllocationHandle handle);

/* false: not from the window; the driver may. */
bool hr_vmm_reserve(struct hr_thread *t, unsigned gpu, size_t bytes, size_t alignment, CUdeviceptr *address_out);
/* INVALID_VALUE: not exactly a reservation of ours, or something is mapped there. */
CUresult hr_vmm_unreserve(CUdeviceptr address, size_t bytes);

/* Whether memory with these properties is served: not without a context on its GPU, nor where kernels cannot use host memory. */
bool hr_vmm_serves(const CUmemAllocationProp *prop, size_t bytes);
/* Errors: OUT_OF_MEMORY as hr_alloc_window. */
CUresult hr_vmm_create(struct hr_thread *t, const CUmemAllocationProp *prop, size_t bytes,
                       CUmemGenericAllocationHandle *handle_out);
/* INVALID_VALUE: not a handle of ours that is held. */
CUresult hr_vmm_release(struct hr_thread *t, CUmemGenericAllocationHandle handle);
CUresult hr_vmm_props(CUmemGenericAllocationHandle handle, CUmemAllocationProp *prop_out);
/*
 * A handle for what is mapped at an address: one of ours, and how far into it the address lies; false in *real_out. Else the driver's own
 * answer is right: *real_out. INVALID_VALUE: neither.
 */
CUresult hr_vmm_retain(CUdeviceptr address, CUmemGenericAllocationHandle *handle_out, size_t *offset_out,
                       bool *real_out);

/*
 * A handle of ours becomes one of the driver's, with the same bytes, for whoever takes no others (exports, multicast objects, sparse
 * arrays): waits until no work that may touch it runs. *real_out is good as long as the job holds the handle. Errors: INVALID_VALUE: not a
 * handle of ours; OUT_OF_MEMORY: no VRAM for it, or the GPUs did not come to rest; the driver's. Locks: takes its own and the move
 * lock; hold none.
 */
CUresult hr_vmm_make_real(struct hr_thread *t, CUmemGenericAllocationHandle handle,
                          CUmemGenericAllocationHandle *real_out);
/* Exports the one that it becomes. INVALID_VALUE too where it was made without this type. */
CUresult hr_vmm_export(struct hr_thread *t, void *shareable, CUmemGenericAllocationHandle handle,
                       CUmemAllocationHandleType type, unsigned long long flags);

/*
 * As the driver's functions of these names. Handles and addresses may be ours or not. Errors: INVALID_VALUE and others as natively; the
 * driver's; OUT_OF_MEMORY: a handle that has to be pinned cannot be backed.
 */
CUresult hr_vmm_map(struct hr_thread *t, CUdeviceptr address, size_t bytes, CUmemGenericAllocationHandle handle);
CUresult hr_vmm_unmap(struct hr_thread *t, CUdeviceptr address, size_t bytes);
CUresult hr_vmm_set_access(CUdeviceptr address, size_t bytes, const CUmemAccessDesc *desc, size_t count);
/* *real_out: the driver knows. */
CUresult hr_vmm_get_access(CUdeviceptr address, const CUmemLocation *location, unsigned long long *flags_out,
                           bool *real_out);

/* What is at an address of the window that the job reserved. */
struct hr_vmm_place {
    CUdeviceptr reservation, mapping;
    size_t reservation_bytes, mapping_bytes; /* mapping_bytes 0: nothing is mapped there */
    bool real;                               /* a handle of the driver's */
    uint64_t id;
    CUmemAllocationProp prop;
    uint8_t access[HR_MAX_GPUS]; /* CUmemAccess_flags; of handles of ours */
};
bool hr_vmm_find(CUdeviceptr address, struct hr_vmm_place *place_out);

#endif
