/*
 * Memory shared between processes by cuIpcGetMemHandle and its kin, where both of them are under headroom.
 *
 * The driver's own handles of this kind stand for memory of cuMemAlloc, which window memory is not. So an exported allocation lies in chunks
 * that can be exported one by one (exported.h), its handle only names it, and a thread in the exporting process hands the chunks
 * over, as file descriptors, to whoever opens the handle. That process maps them side by side at an address outside of its windows.
 * A handle of a process without headroom is the driver's, and so is memory opened by one.
 *
 * Locks: one for each of the two sides, of rank HR_RANK_REGISTRY; no driver call is made under them.
 */
#ifndef HR_RESIDENCY_IPC_H
#define HR_RESIDENCY_IPC_H

#include "base/thread.h"
#include "driver/driver.h"
#include "space/space.h"

/*
 * A handle for the live allocation that holds `address`, an address of the windows; the same one each time. Errors: INVALID_VALUE: there is
 * none, or it is of a pool or mapped by the job itself, of which there are no such handles; those of hr_exported_hold;
 * OPERATING_SYSTEM: nobody could be there to hand it over. Locks: takes the move lock; hold none, and no submission.
 */
CUresult hr_ipc_export(struct hr_thread *t, CUdeviceptr address, CUipcMemHandle *handle_out);

/* Whether a handle is one of headroom's, of whichever process; others are the driver's. No lock. */
bool hr_ipc_is_ours(const CUipcMemHandle *handle);
/*
 * Opens such a handle in the current context; opened again there it is the same address, and is closed as often. Waits for the other
 * process, up to ten seconds. Errors: INVALID_CONTEXT: it is this process's own, or open in another context; MAP_FAILED: the process or
 * the allocation is gone, or the current GPU cannot reach its GPU; INVALID_HANDLE: it is damaged; the driver's. Says why in one line,
 * but for OUT_OF_MEMORY, where some room might help. *bytes_out: what is mapped, or was to be. Locks: hold none, and no submission.
 */
CUresult hr_ipc_open(const CUipcMemHandle *handle, CUdeviceptr *address_out, size_t *bytes_out);
/*
 * Closes what was opened at this address. Waits for the GPUs that may use it, and where they do not come to rest it is unmapped later.
 * false: nothing of ours is open there. Locks as above.
 */
bool hr_ipc_close(CUdeviceptr address);

/* Whether anything is open. No lock. */
bool hr_ipc_any(void);
/* What is open at an address, as an allocation without an extent; `gpu` is the one of its context. false: nothing. */
bool hr_ipc_find(CUdeviceptr address, struct hr_allocation *allocation_out, CUdevice *device_out);

/* The context is gone, and what was opened in it. Locks: hold none. */
void hr_ipc_context_gone(CUcontext context);
/* At exit: nothing is handed over any more. Waits up to 50 ms for what is under way. */
void hr_ipc_leave(void);
/* In a forked child: what is there of the thread's descriptors is closed. Async-signal-safe. */
void hr_ipc_forked(void);

#endif
