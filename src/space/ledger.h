/*
 * The commit ledger: no allocation is granted that nothing can back.
 *
 * One pool of backing bytes per process (usable VRAM of all GPUs + the host budget), and a cap per window. Charges are
 * drawn in batches into per-thread credits, so that a charge usually touches nothing shared; credits are called back before
 * an out-of-memory is returned.
 */
#ifndef HR_SPACE_LEDGER_H
#define HR_SPACE_LEDGER_H

#include "base/thread.h"
#include "space/space.h"

/* Sets the pool (VRAM of all GPUs + host) and the caps. Once, before the first charge. What charges need of host memory beyond
 * the VRAM is promised in the per-user ledger, in large steps (share.h). */
void hr_ledger_init(size_t vram_bytes, size_t host_bytes, unsigned gpu_count, const size_t *window_cap_bytes);
/* What can be granted from now on, where VRAM has become less than at the start (or more again, up to that); what is charged
 * stays. hr_ledger_capacity does not change. Locks: HR_RANK_LEDGER. */
void hr_ledger_lower(unsigned gpu, size_t cap_bytes, size_t vram_bytes);
/* The host tier took (or gave back) so many bytes of host memory. No lock. */
void hr_ledger_host_used(ptrdiff_t bytes);
/* true = charged. false = it does not fit, other threads' credits included. Locks: HR_RANK_LEDGER, only when the thread's
 * credit does not suffice. */
bool hr_ledger_charge(struct hr_thread *t, unsigned gpu, size_t bytes);
void hr_ledger_uncharge(struct hr_thread *t, unsigned gpu, size_t bytes);
/* The thread's credits go back to the pool. */
void hr_ledger_flush_thread(struct hr_thread *t);

/* Bytes charged to a window, and what a window could still take: min(its cap, the pool) - charges. */
size_t hr_ledger_charged(unsigned gpu);
size_t hr_ledger_capacity(unsigned gpu);
size_t hr_ledger_free(unsigned gpu);
size_t hr_ledger_peak(void); /* of all windows together */

#endif
