/*
 * Hidden pointers: addresses of the window inside memory that kernels read. Small host-to-device payloads are scanned; a
 * buffer in which addresses were found is pointer-bearing, and what it names belongs to the working set of whoever uses it.
 */
#ifndef HR_RESIDENCY_HIDDEN_H
#define HR_RESIDENCY_HIDDEN_H

#include "space/space.h"

#define HR_HIDDEN_PAYLOAD_BYTES ((size_t)64 << 10) /* larger payloads are data */
#define HR_HIDDEN_REFS_MOST 1024

/*
 * Scans `bytes` of readable host memory that are being copied to `destination` (window memory) for 8-byte words, aligned at
 * the destination, that name live allocations. Locks: HR_RANK_QUEUE when something new was found.
 */
void hr_hidden_scan(CUdeviceptr destination, const void *payload, size_t bytes);
/*
 * Payloads that are not followed: large ones (looked at in samples, since tables of addresses are dense), and what goes to
 * memory outside the windows, such as a module's variables. Where one holds an address of a window, everything has to be
 * backed from now on (hr_access_cannot_scan). Locks: as that.
 */
void hr_hidden_notice(CUdeviceptr destination, const void *payload, size_t bytes);
/* A copy inside device memory: what the source names, the destination names. */
void hr_hidden_propagate(CUdeviceptr destination, CUdeviceptr source);
/* The extent is dead: what it named is forgotten. Locks: HR_RANK_QUEUE where it named something. */
void hr_hidden_forget(struct hr_extent *e);
/* With the gate closed (no submission reads a list): frees the lists that were replaced. */
void hr_hidden_collect_quiet(void);

#endif
