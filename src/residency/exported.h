/*
 * Memory of the windows that something outside of the process reaches: other processes (ipc.h), or a device by way of a dma-buf.
 *
 * It lies in VRAM in chunks that can be exported, and stays where it is from then on until it is freed. A small allocation shares its
 * chunks with others, which stay with it. What lies in other chunks so far is copied into such ones and its mapping changed, in
 * the ordinary way of a move (move.h): in a moment in which nothing runs that may touch it.
 */
#ifndef HR_RESIDENCY_EXPORTED_H
#define HR_RESIDENCY_EXPORTED_H

#include "base/thread.h"
#include "residency/hold.h"
#include "space/space.h"

/*
 * Makes the chunks of a live allocation exportable and holds them; made again it only holds them once more. Waits for the devices, with a
 * deadline. Errors: NOT_SUPPORTED: the GPU has no such memory, or it lies in other chunks
 * and must not move (fixed.h); INVALID_VALUE: it was freed meanwhile; OUT_OF_MEMORY: there is no room
 * for it in VRAM, or the devices did not come to rest; the driver's. Then nothing is held, and all of it can move as before. Says why
 * in one line. Locks: takes the move lock; hold none, and no submission.
 */
CUresult hr_exported_hold(struct hr_thread *t, const struct hr_allocation *a, struct hr_hold *hold_out);

/*
 * File descriptors (the caller's to close, close-on-exec) of chunks [first_chunk, first_chunk + count) of what is held. Errors:
 * INVALID_VALUE: it was freed; the driver's. Then none is open. Locks: takes the move lock.
 */
CUresult hr_exported_open(const struct hr_hold *hold, uint32_t first_chunk, uint32_t count, int *fds_out);

#endif
