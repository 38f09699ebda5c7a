/*
 * Memory pools: stream-ordered memory.
 *
 * A pool reserves memory in segments, each a chunk at addresses of its own. Segments are cut into pieces, which are allocated
 * or free: small ones (up to 1 MiB) in slots of 512 bytes of segments of one page; others in whole pages. A piece is given out
 * and taken back when the call is made; that kernels may use it begins and ends when the stream gets to the allocation and to
 * the free, which are operations of the engine. A free piece remembers where in which stream it was freed until the host has
 * learned that this is over.
 *
 * All of this needs sg.lock.
 */
#ifndef SG_MEMPOOL_H
#define SG_MEMPOOL_H

#include "simgpu/order.h"
#include "simgpu/sim.h"

struct sg_mempool {
    struct sg_object object; /* id 0: destroyed, and goes when all of its memory is free */
    CUmemPoolProps props;
    int device; /* or SG_ON_HOST */
    bool is_default, imported;
    int follow_events, opportunistic, internal; /* reuse policies */
    uint64_t threshold_bytes, max_bytes;        /* max: 0 = none */
    uint64_t reserved_bytes, reserved_high_bytes, used_bytes, used_high_bytes;
    uint8_t access[SG_MAX_DEVICES]; /* CUmemAccess_flags */
    struct sg_segment *segments;
    unsigned allocs;      /* live */
    struct sg_runs *runs; /* NULL: its memory cannot be shared */
    uint64_t inode;       /* of its memfd */
    struct sg_mempool *prev, *next;
};

struct sg_segment {
    struct sg_region region;
    struct sg_mempool *pool;
    struct sg_chunk *chunk;
    uint64_t reserved_bytes; /* of addresses */
    bool small;
    unsigned allocs;
    struct sg_piece *pieces; /* by address */
    struct sg_ranges index;  /* its allocated pieces */
    struct sg_segment *prev, *next;
};

struct sg_piece {
    uint64_t va, bytes; /* what it takes up */
    struct sg_segment *segment;
    struct sg_alloc *alloc; /* NULL: free */
    struct sg_span *span;   /* of the allocation */
    struct sg_mark *mark;   /* of a free one: the free; NULL: known to be over */
    struct sg_place place;
    struct sg_piece *prev, *next;
};

/* What an allocation and its free have in common; counted references. */
struct sg_span {
    unsigned refs;
    struct sg_segment *segment; /* NULL: memory of another process, see share.h */
    struct sg_chunk *foreign;   /* with its addresses, which go at the free */
    uint64_t va, bytes, asked_bytes;
    bool begun, freed;
    struct sg_stream *stream; /* of the allocation, until that has begun */
};
void sg_span_unref(struct sg_span *span);

struct sg_alloc *sg_segment_alloc_at(const struct sg_segment *segment, uint64_t va);
/* Takes a piece for so many bytes, ordered behind what the stream holds. May submit a wait to the stream, and may release
 * sg.lock meanwhile. OUT_OF_MEMORY. */
CUresult sg_piece_take(struct sg_mempool *pool, struct sg_stream *stream, uint64_t bytes, struct sg_piece **piece_out);
/* The piece is free from the mark (NULL: from now) on. */
void sg_piece_give(struct sg_piece *piece, struct sg_mark *mark, const struct sg_place *place);
/* The stream has got to an allocation, to a free. */
void sg_span_begin(struct sg_span *span);
void sg_span_end(struct sg_span *span);
/* Makes all of the pool's memory that is in use visible to the device as pool->access says. */
void sg_mempool_show(struct sg_mempool *pool, int device);
/* Gives back what is free and known to be so, until the pool reserves no more than that. */
void sg_mempool_trim(struct sg_mempool *pool, uint64_t keep_bytes);
/* The host has synchronised: pools give back what they hold beyond their thresholds, and destroyed ones go. */
void sg_mempools_settle(void);
void sg_mempool_drop(struct sg_mempool *pool); /* a destroyed one, once it is empty */

/* cuMemFree of memory of a pool; of a stream's own order if it has not begun. */
CUresult sg_mempool_free_now(struct sg_alloc *alloc);

#endif
