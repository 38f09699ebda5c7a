/*
 * The peer tier: chunks of one GPU's window in the VRAM of another one, which lends it for as long as it does not need it.
 *
 * A GPU lends what is left of its VRAM beside everything that is allocated in its own window (policy.h), to a GPU whose kernels reach it
 * over a link that has atomics and beats the way to host memory. Nothing is promised on the strength of it: the ledger counts a
 * window's own VRAM and host memory only, so what is lent can always be called in and moved on to host memory.
 *
 * A lent chunk stays mapped at its address, so a kernel that touches it works, over the link. Before it moves on, the work that may touch
 * the borrowing window has to be at rest, as for every move; the lender's own work need not.
 *
 * Locks: the move lock, where a name ends in _locked; hold none for the others, which take it, or ask the driver.
 */
#ifndef HR_RESIDENCY_LEND_H
#define HR_RESIDENCY_LEND_H

#include "base/thread.h"
#include "residency/move.h"

/* Finds out who may lend to whom now, before the move lock is taken. The first call with two GPUs that could asks the driver and makes the
 * fabric, which may take seconds. */
void hr_lend_refresh(void);
/* A context of a GPU that lends, as of the last refresh, or NULL. No lock. */
CUcontext hr_lend_context(unsigned lender);
/* The context is about to end. No lock. */
void hr_lend_forget(CUcontext context);

/* Those who lend to the window of one GPU, the fastest first, and how many chunks each may still give. */
struct hr_lending {
    unsigned gpu, count;
    struct {
        unsigned gpu;
        size_t room_chunks;
    } lender[HR_MAX_GPUS];
};
void hr_lend_begin_locked(unsigned gpu, struct hr_lending *lending_out) HR_REQUIRES(hr_move_lock);
/* A chunk of the best of them, which copies of the window's GPU reach. OUT_OF_MEMORY: nobody has room. Needs a current context. */
CUresult hr_lend_take_locked(struct hr_lending *lending, struct hr_phys **phys_out) HR_REQUIRES(hr_move_lock);
/* A move to such chunks failed: after three times those who lent them are not asked for this window again. */
void hr_lend_failed_locked(unsigned gpu, uint64_t lenders) HR_REQUIRES(hr_move_lock);

/* The backing of a chunk changes from one physical chunk to another (NULL = none). */
void hr_lend_note_locked(struct hr_chunk *c, struct hr_phys *from, struct hr_phys *to) HR_REQUIRES(hr_move_lock);

/* The GPUs (a bit each) whose work may touch what this one has lent. No lock of the caller's. */
uint64_t hr_lend_users(unsigned lender);
/*
 * Sends up to `need` chunks that the GPU has lent away: home, where their own GPU has room, else to host memory. How many came back. What did not
 * come is asked for again at the next moments of rest (hr_lend_settle). span_ns as for hr_move_batch_locked. Needs a current context.
 */
size_t hr_lend_call_in_locked(unsigned lender, size_t need, uint64_t span_ns) HR_REQUIRES(hr_move_lock);
/* Whether some GPU waits for what it has lent. No lock. */
bool hr_lend_wanted(void);
/* At a moment in which work of the job was found at rest: what is waited for comes back now, if nothing uses it. */
void hr_lend_settle(void);
/* The same for the window of one GPU, which is at rest. */
void hr_lend_settle_locked(unsigned gpu) HR_REQUIRES(hr_move_lock);

/* GPU `user` is about to be granted the window of `owner`: what of it lies where `user` does not reach moves away. false: some is still
 * there, the devices were not at rest. */
bool hr_lend_make_reachable_locked(unsigned owner, unsigned user, uint64_t span_ns) HR_REQUIRES(hr_move_lock);

#endif
