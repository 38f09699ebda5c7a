/*
 * Memory of pools that was freed in the order of a stream, and keeps its backing for the next allocation.
 *
 * A shelf belongs to one pool and one stream. What lies there may be given to that stream at once: its work comes after the free.
 * Others get it once it is over: the stream was found at rest since (what else may have used the memory was ordered before the
 * free, or the job is wrong), or everything was. What is over goes to the pool's own shelf as far as the release threshold
 * allows, else it is released; and whenever a GPU or the window is short of memory, all shelves are emptied into quarantine.
 *
 * Each shelf has a lock of its own, of rank HR_RANK_QUEUE; one that two threads want at once belongs to a stream that both use.
 */
#ifndef HR_RESIDENCY_SHELF_H
#define HR_RESIDENCY_SHELF_H

#include "base/thread.h"
#include "space/space.h"

struct hr_pool;
struct hr_shelf;

/* A stream, as far as the order of its work is concerned. */
struct hr_order {
    CUstream stream;   /* NULL = the legacy stream of `context`; CU_STREAM_PER_THREAD = that of `thread` there */
    CUcontext context; /* whose work it does */
    uint32_t thread;   /* index of the thread + 1; 0 = any */
    uint32_t gpu;
};
/* false: not a stream of a GPU of ours, or nobody knows. */
bool hr_shelf_order(struct hr_thread *t, CUstream stream, bool per_thread_default, struct hr_order *order_out);

/* A shelf for what is over, for a pool to own; NULL = out of memory. */
struct hr_shelf *hr_shelf_create(struct hr_pool *pool);
/*
 * Puts a retired allocation of the pool on the stream's shelf; false = it cannot be kept (the shelf is full, or there is no
 * memory for one). No lock but the shelf's.
 */
bool hr_shelf_put(struct hr_thread *t, struct hr_pool *pool, const struct hr_order *order, struct hr_extent *e,
                  CUdeviceptr address, size_t bytes);
/* Takes something for so many bytes off the shelf of the stream or of what is over, alive; 0 = there is nothing that fits. */
CUdeviceptr hr_shelf_take(struct hr_thread *t, struct hr_pool *pool, const struct hr_order *order, size_t bytes);

/* Whether anything waits for its stream, on any shelf. No lock. */
bool hr_shelf_any(void);
/* Sorts out what is over. The other asks all streams first, without waiting; trim then releases until the pool holds no more
 * than keep_bytes. Take the move lock: hold none. */
void hr_shelf_sweep(struct hr_thread *t);
void hr_shelf_ask(struct hr_thread *t);
void hr_shelf_trim(struct hr_thread *t, struct hr_pool *pool, size_t keep_bytes);
/* Memory is short: what is over is released, the rest goes to quarantine. Takes the move lock: hold none. */
void hr_shelf_give_up(struct hr_thread *t);
/* The same for one pool, with no stream's order kept from now on where it is destroyed. */
void hr_shelf_give_up_pool(struct hr_thread *t, struct hr_pool *pool);

/* The thread has waited for its per-thread default stream; the drain `number` (hr_drain_begin) had begun before that. */
void hr_shelf_rested(struct hr_thread *t, uint64_t number);
/* The stream, all streams of the context, are about to go, or went: another stream may get the handle. No driver call. */
void hr_shelf_stream_gone(struct hr_thread *t, CUstream stream);
void hr_shelf_context_gone(struct hr_thread *t, CUcontext context);

#endif
