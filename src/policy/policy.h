/*
 * Policy: pure decisions. Plain structs in, plain structs out; no I/O, no clock, no lock, no allocation, so that the same
 * object file serves the shim and an offline replay.
 */
#ifndef HR_POLICY_POLICY_H
#define HR_POLICY_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A run of adjacent resident chunks that could be moved out together. */
struct hr_policy_run {
    uint32_t first_chunk;
    uint32_t chunk_count;
    uint64_t last_use; /* larger = used later; 0 = never used */
};

/*
 * Chooses victims: reorders runs[0..run_count) so that the first k are to be moved out, in that order, and returns k: the
 * smallest number whose chunks reach need_chunks, or all of them where that does not suffice.
 */
size_t hr_policy_pick_victims(struct hr_policy_run *runs, size_t run_count, size_t need_chunks);

/* How many adjacent chunks make a run: 8 MiB (docs/decisions.md), but not more than 1/64 of the VRAM. */
uint32_t hr_policy_run_chunks(size_t chunk_bytes, size_t vram_chunks);

/* A GPU whose VRAM could back chunks of another GPU's window. */
struct hr_policy_lender {
    size_t limit_chunks;   /* of its VRAM, all that may be used */
    size_t charged_chunks; /* allocated in its own window, wherever they are */
    size_t lent_chunks;    /* already */
    size_t free_chunks;    /* what its VRAM could still serve */
};
/* How many chunks more it should lend. */
size_t hr_policy_lend_room(const struct hr_policy_lender *lender);
/* Whether a link (in its slower direction) beats the way to host memory by enough; host_mbps <= 0 = not known: any link does. */
bool hr_policy_lend_pays(int64_t link_mbps, int64_t host_mbps);

#endif
