/* One block of a grid: creation, start, and a slice of its run. For grid.c. */
#ifndef SG_PTX_BLOCK_H
#define SG_PTX_BLOCK_H

#include "simgpu/ptx/run.h"

#include <pthread.h>

struct ptx_block_shape {
    uint32_t threads, ntid[3];
    uint32_t shared_bytes, stack_bytes, local_bytes;
};

/* Memory for one block, reused for block after block by ptx_block_start. NULL when out of memory. */
struct ptx_block *ptx_block_create(const struct ptx_block_shape *shape);
void ptx_block_destroy(struct ptx_block *b); /* NULL is fine */
void ptx_block_start(struct ptx_block *b, uint64_t linear, const uint32_t ctaid[3], uint32_t entry_pc,
                     uint32_t shared_bytes);

enum ptx_slice { PTX_SLICE_SPENT, PTX_SLICE_DONE, PTX_SLICE_FAULT };
/* Runs r->block for about `budget` warp instructions, or until *stop. */
enum ptx_slice ptx_block_run(struct ptx_run *r, ptx_interp_fn *interp, uint64_t budget, const atomic_bool *stop);

/* Looks at the block between two turns; true = for the first time in this round (numbers grow from 1) its whole state is one
 * that it was in before. */
bool ptx_block_came_back(struct ptx_block *b, const struct ptx_block_shape *shape, uint64_t round);
/* The line of the text at which its first warp that can run is; 0 = all wait. */
unsigned ptx_block_line(const struct ptx_block *b, const struct ptx_insn *code);

#endif
