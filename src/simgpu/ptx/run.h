/*
 * What exists while a grid runs: blocks, warps, barriers, and the context of one slice.
 *
 * A block is owned by one host thread at a time (handed over under the grid's lock), so nothing in it is atomic.
 */
#ifndef SG_PTX_RUN_H
#define SG_PTX_RUN_H

#include "simgpu/ptx/code.h"

struct ptx_warp {
    uint32_t live;    /* lanes that have not exited */
    uint32_t waiting; /* of these: at a barrier */
    uint32_t syncing; /* of these: at a .sync instruction that other lanes have yet to reach */
    uint32_t index;   /* in the block */
    uint32_t turn;    /* fairness among diverged lanes: the lane last favoured */
    bool starved;     /* the last slice ended while lanes were apart */
    uint32_t pc[PTX_LANES];
    uint32_t fp[PTX_LANES]; /* frame of the lane's function: offset in registers */
    uint32_t tid[3][PTX_LANES];
    uint8_t *registers;             /* frames */
    uint32_t stack_bytes;           /* room for them */
    uint8_t *grown;                 /* NULL, or what `registers` points to instead of the block's memory */
    uint8_t *local;                 /* 32 times local_bytes */
    uint32_t bar_result[PTX_LANES]; /* offset in registers; this and the next two only where bar_shared is 0 */
    uint8_t bar_kind[PTX_LANES], bar_id[PTX_LANES];
    uint32_t cluster_odd;    /* lanes that last arrived at the cluster's barrier in an odd phase */
    struct ptx_async *async; /* copies that have not been waited for, see async.c; NULL = none so far */
    uint32_t bar_shared;     /* 1 + the barrier that all waiting lanes wait for without wanting a result; 0 = not so */
};

struct ptx_barrier {
    uint32_t arrived;
    uint32_t count; /* threads asked for; 0 = all of the block */
    uint32_t true_count;
    bool reduces; /* some thread wants the result */
};

struct ptx_block {
    struct ptx_grid *grid;
    uint32_t slot;
    uint64_t linear;
    uint32_t ctaid[3];
    uint32_t warp_count, next_warp;
    uint32_t live_threads, threads;
    uint32_t barriers_used; /* bit per barrier with arrivals */
    struct ptx_barrier barriers[PTX_BARRIERS];
    uint32_t cluster_arrived, cluster_phase;
    uint8_t *shared;
    struct ptx_warp *warps;
    struct ptx_block_spin { /* see spin.c */
        uint64_t round, hash;
        uint32_t looks;
        bool back;
    } spin;
    void *memory; /* one piece, holds warps, shared, registers, local */
    size_t memory_bytes;
};

/* One block's slice on one thread. */
struct ptx_run {
    struct ptx_block *block;
    const struct ptx_insn *code;
    const uint8_t *consts;
    const struct ptx_module *module;
    const struct ptx_function *function;
    const struct sg_pagetable *pagetable;
    const uint8_t *params;
    const uint32_t *shared_offset;
    uint32_t shared_bytes, local_bytes, stack_bytes;
    uint32_t ntid[3], nctaid[3], sm_count;
    uint32_t dynamic_shared_bytes;
    uint64_t grid_id;
    struct ptx_heap *heap;
    struct ptx_fifo *fifo;
    ptx_texture_fn *texture;
    const _Atomic(uint64_t) *clock_ns;
    bool (*set_condition)(uint64_t context, uint64_t handle, uint32_t value);
    uint64_t context;
    struct ptx_counters counters;
    struct ptx_fault fault;
    uint32_t fault_thread; /* linear in the block */
};

/* Warp instructions of one block before another gets its turn; straight code that has begun is run to its end. */
#define PTX_SLICE 16384

enum ptx_stop { PTX_STOP_BUDGET, PTX_STOP_BLOCKED, PTX_STOP_FAULT };

typedef enum ptx_stop ptx_interp_fn(struct ptx_run *r, struct ptx_warp *w, uint64_t budget);
ptx_interp_fn ptx_interp_base, ptx_interp_avx2, ptx_interp_avx512;
ptx_interp_fn *ptx_interp_best(void); /* for this machine */

/* Fills r->fault for a lane of a warp; always returns false. */
bool ptx_run_fault(struct ptx_run *r, const struct ptx_warp *w, unsigned lane, enum ptx_fault_kind kind, uint32_t pc);
/* Lanes in `lanes` of `w` arrive at a barrier; their pcs are already past it. False = fault. */
bool ptx_run_barrier(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *in, const uint8_t *frame,
                     uint32_t fp, uint32_t lanes, uint32_t pc);
/* Where the frame of a function that lanes call goes, at least at `fp`; may move the warp's registers. 0: no host memory. */
uint32_t ptx_run_frame_place(struct ptx_run *r, struct ptx_warp *w, uint32_t lanes, uint32_t fp,
                             const struct ptx_function *callee);
/* Lanes leave for good: barriers may complete by it. */
void ptx_run_exit(struct ptx_run *r, struct ptx_warp *w, uint32_t lanes);
/* Does the address lie in a .const variable of the module? */
bool ptx_module_is_const(const struct ptx_module *module, uint64_t address);
void ptx_run_cluster_check(struct ptx_block *block); /* threads have arrived or left */
void ptx_async_reset(struct ptx_warp *warp);         /* forgets its copies */
void ptx_async_destroy(struct ptx_warp *warp);
uint64_t ptx_run_nanoseconds(const struct ptx_run *r);

/* *p = op(*p, b, c); the old value. Atomic towards other threads when `atomic`. */
uint64_t ptx_atom(void *p, enum ptx_atom_op op, enum ptx_atom_type type, uint64_t b, uint64_t c, bool is_global);

#endif
