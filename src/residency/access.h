/*
 * Making a working set accessible before a submission, and what else the hooks need of residency.
 *
 * A launch names allocations by pointers in its parameters. Before it runs, every chunk of every allocation that it names is
 * mapped, and the pieces that it names are in local VRAM as far as they fit ("partly in VRAM" is an answer: the rest is read
 * in place from host memory).
 */
#ifndef HR_RESIDENCY_ACCESS_H
#define HR_RESIDENCY_ACCESS_H

#include "base/thread.h"
#include "driver/driver.h"
#include "space/space.h"

/* What a submission that names an address finds. Ordered: the worst of several is their maximum. */
enum hr_touch {
    HR_TOUCH_HIT,        /* not ours, or all of the piece in local VRAM */
    HR_TOUCH_ACCESSIBLE, /* mapped, but part of it elsewhere */
    HR_TOUCH_MISSING,    /* part of the allocation is not mapped */
};
/* Looks one word up and notes the use. No lock. now = hr_ticks(); user = the GPU that will do the work, where that matters
 * (hr_peers_matter), else -1. */
enum hr_touch hr_access_touch(CUdeviceptr word, uint64_t now, int user);

#define HR_WORKING_SET_MOST 512
struct hr_piece {
    struct hr_extent *extent;
    uint32_t first_chunk, end_chunk; /* the chunks that should be in VRAM */
    uint8_t depth;                   /* 0 = the launch names it; else through so many buffers that hold addresses */
};
struct hr_working_set {
    unsigned count;
    bool everything; /* every live allocation has to be mapped */
    int user;        /* as for hr_access_touch */
    uint64_t now;
    struct hr_piece piece[HR_WORKING_SET_MOST];
};
/* Adds what the word names (and what a pointer-bearing buffer names in turn). */
void hr_working_set_add(struct hr_working_set *set, CUdeviceptr word);

/*
 * Makes the set accessible; its pieces stay pinned (no mover takes them) until hr_access_unpin. The caller looks again, in its
 * submission: what only an old address names may have been freed meanwhile, and another allocation may have begun there. May
 * wait for the devices, with a deadline. Errors: OUT_OF_MEMORY where no tier can back it; the driver's own when mapping fails. On error nothing is
 * pinned. Locks: takes the move lock; hold none.
 */
CUresult hr_access_prepare(struct hr_thread *t, struct hr_working_set *set);
void hr_access_unpin(struct hr_working_set *set);

/*
 * Backs every chunk of [address, address+bytes), wherever there is room; moves nothing, but waits for what was freed to be
 * over where that helps. INVALID_VALUE: the range is not within one live allocation. OUT_OF_MEMORY: no tier can back it.
 * Locks: takes the move lock; hold none, and no submission.
 */
CUresult hr_access_back_range(struct hr_thread *t, CUdeviceptr address, size_t bytes);
/* The same for all chunks of an extent; what lost its mapping in a failed move is mapped again. */
CUresult hr_access_map_extent(struct hr_thread *t, struct hr_extent *e);
/* Whether every chunk of the range has backing; no lock. */
bool hr_access_is_backed(CUdeviceptr address, size_t bytes);

/*
 * The longest piece at the start of [address, address+bytes) that lies in one tier: returns its length, and the address to
 * use for it in copies (another than `address` where the bytes are in pinned host memory that is not mapped). In a submission.
 */
size_t hr_access_piece(CUdeviceptr address, size_t bytes, CUdeviceptr *use_out, bool *translated_out);

/* --- commit policy (HEADROOM_COMMIT) ------------------------------------------------------------------------------ */

/* The job got memory that cannot be scanned for pointers: from now on (unless lazy) everything is backed before a launch. */
void hr_access_cannot_scan(const char *why);
/* Whether addresses that nothing shows still matter: only with HEADROOM_COMMIT=auto, until hr_access_cannot_scan. */
bool hr_access_can_scan(void);
/* After an allocation: backs it now (eager), or makes the next launch back it. */
CUresult hr_access_allocated(struct hr_thread *t, CUdeviceptr address);
/* The same after the job has made memory usable that it mapped itself, and may have done so without it. */
CUresult hr_access_mapped(struct hr_thread *t, CUdeviceptr address, size_t bytes);
/* Whether the next launch has to back something first, whatever it names: then it calls hr_access_back_pending, whose errors
 * are those of hr_access_prepare. Takes the move lock: hold none. */
bool hr_access_pending(void);
CUresult hr_access_back_pending(struct hr_thread *t);
/* Backs every live allocation, for a launch of which nothing is known. Errors and locks as above. */
CUresult hr_access_back_all(struct hr_thread *t);

/* --- pressure ------------------------------------------------------------------------------------------------------ */

/* All but charge_bytes is zero at first. */
struct hr_room_wait {
    size_t charge_bytes; /* what an allocation asks the ledger for; 0: it has been charged */
    uint64_t since_ns;
    uint64_t released; /* what had come back before the last try; nobody knows of the first one */
    unsigned tries;
};
/*
 * After a call found no memory on a GPU, before it fails: waits until something of what was freed comes back, first there and then on
 * the others (host memory is shared), ever more firmly. Whether to try again: not where nothing that waits for work in flight can
 * help and nothing came back since before the last try, nor once a minute has passed. One wait may serve several calls, which then
 * share that minute. Locks: hold none, and no submission.
 */
bool hr_access_make_room(struct hr_thread *t, unsigned gpu, struct hr_room_wait *wait);
/* Moves up to `bytes` of a GPU's VRAM out and returns the chunks to the driver: for calls that need VRAM of their own. */
size_t hr_access_release_vram(struct hr_thread *t, unsigned gpu, size_t bytes);

/* Moves what of the range is not in VRAM there, as far as it has room; how many chunks are still missing. span_ns as for
 * hr_move_batch_locked. Locks: takes the move lock; hold none, and no submission. */
size_t hr_access_bring_in(struct hr_thread *t, CUdeviceptr address, size_t bytes, uint64_t span_ns);

/* For tests and for hints: moves the resident chunks of a range out, or the others in. How many chunks moved. */
size_t hr_access_evict_range(struct hr_thread *t, CUdeviceptr address, size_t bytes);
size_t hr_access_restore_range(struct hr_thread *t, CUdeviceptr address, size_t bytes);

#endif
