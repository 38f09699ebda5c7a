/*
 * Copies between the VRAM of two GPUs: over every path that the fabric has between them, in chunks that GPUs in between pass on.
 *
 * Each leg is done by the GPU that needs nobody's leave for its side of it: the source pushes into a relay's block, the destination fetches from
 * one, relays push to each other. So only blocks of our own (relay.h) are ever shared, and what the job may reach of the windows stays as the job
 * asked for. Without peer access a direct path lands in a block on the destination.
 *
 * The host never waits: chunks are linked by events, everything starts after what the job's stream held, and that stream goes on behind the last
 * legs. So a stream of the job is at rest only when its transfers are, and whoever moves chunks waits for them as for any copy.
 */
#ifndef HR_RESIDENCY_TRANSFER_H
#define HR_RESIDENCY_TRANSFER_H

#include "driver/driver.h"

struct hr_transfer {
    CUdeviceptr to, from; /* window addresses, resident in the VRAM of: */
    unsigned to_gpu, from_gpu;
    size_t bytes;
    CUstream stream; /* the job's */
    bool per_thread; /* which of the two default streams a NULL stream is */
    bool wait; /* until it is done; the stream is at rest. hr_transfer_settle has to follow after the submission */
    /* Of moves, which have no stream: instead of `to` and `from` where each chunk of the transfer is, and whose window they are of, which
     * reaches them all. */
    const CUdeviceptr *to_chunks, *from_chunks;
    unsigned window_gpu;
};

/* Whether copies of so many bytes are looked at at all; others are the driver's. */
static inline bool hr_transfer_worth(size_t bytes)
{
    return bytes > (size_t)1 << 20;
}

/*
 * Within a submission that covers both ranges. *done_out = false: nothing was begun, because the driver's own copy is as good (small, or the
 * direct path is all there is) or the only way (no fabric, no room for relays). Errors: the driver's, when it was begun and cannot be undone by
 * copying again. Locks: HR_RANK_START + 1 and above; hold none.
 */
CUresult hr_transfer_start(const struct hr_transfer *asked, bool *done_out);

/* Work that may use links is about to be submitted, and is no transfer: a copy that the driver makes by itself, a kernel. No lock. */
void hr_transfer_note_others(void);

/*
 * A call that waits or asks said r: whether that is the error of a failed link that transfers under way may have met. Then the error is
 * ours to make good (hr_transfer_settle), and the call is to be made again. Locks: HR_RANK_FENCE + 2.
 */
bool hr_transfer_covers(CUresult r);

/*
 * After the job waited for work, or found it done, with result r. Transfers that are done are put away. Where a link failed under one, and nothing
 * but transfers was submitted since, what had to go over that link is copied again over what is left of the machine, or through host
 * memory, before this returns. Returns r; NVLINK_UNCORRECTABLE where that was not possible. Locks as above.
 */
CUresult hr_transfer_settle(CUresult r);

/* Whether there is a transfer that was not put away, or a failed link that the job has to hear of. No lock. */
bool hr_transfer_any(void);

/*
 * Copies over links that are no transfers of the job's: moves. What fails under one is told in contexts in which others ask as well, and the other
 * way round. begin before they are submitted; end once they were waited for, with what that said. It returns NVLINK_UNCORRECTABLE also where
 * somebody else was told of a link meanwhile; what may be about other work is kept for whoever that concerns. Locks: HR_RANK_FENCE.
 */
struct hr_beside {
    uint64_t told, begun;
    bool others;
};
void hr_transfer_beside_begin(struct hr_beside *beside_out);
CUresult hr_transfer_beside_end(const struct hr_beside *beside, CUresult r);
/* Puts transfers away that are done, without asking more than that. Locks as above. */
void hr_transfer_reap(void);
/* The context is about to end: waits for the transfers and moves that use it; none begins over it until hr_track_ended. Locks as above. */
void hr_transfer_leave(CUcontext context);
/* Memory that no transfer needs at this moment goes back to the budget of the GPU (HR_MAX_GPUS = of all). How many bytes. Locks: as above. */
size_t hr_transfer_trim(unsigned gpu);

#endif
