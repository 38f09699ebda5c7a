/*
 * The PTX engine: parses PTX text, and runs grids with a warp-wide interpreter.
 *
 * It knows nothing of contexts, streams or CUDA's API: the rest of simgpu hands it module text, a page table and launch
 * arguments. A grid advances in slices, so that a few worker threads can serve many grids at once (several devices,
 * concurrent streams) and a block that spins on another resident block's flag does not starve it.
 */
#ifndef SG_PTX_H
#define SG_PTX_H

#include "simgpu/pagetable.h"
#include "simgpu/ptx/texture.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ptx_module;
struct ptx_function;
struct ptx_grid;
struct ptx_heap;
struct ptx_fifo;

struct ptx_param {
    uint32_t offset_bytes; /* in the packed parameter buffer */
    uint32_t size_bytes;
    uint32_t align_bytes;
};

struct ptx_function_info {
    const char *name; /* owned by the module */
    bool is_entry;
    uint32_t param_count;
    const struct ptx_param *params;
    uint32_t params_bytes;        /* size of the packed buffer */
    uint32_t static_shared_bytes; /* the function and all it can call */
    uint32_t local_bytes;         /* per thread: .local variables, call frames, __local_depot */
    uint32_t register_count;      /* an estimate of what hardware would use, 16..255 */
    uint32_t max_threads;         /* .maxntid product, or 1024 */
    uint32_t required_threads[3]; /* .reqntid, zeros if none */
};

enum ptx_reference { PTX_REFERENCE_NONE, PTX_REFERENCE_TEXTURE, PTX_REFERENCE_SURFACE };

struct ptx_global {
    const char *name;
    uint64_t size_bytes;
    uint32_t align_bytes;
    enum ptx_reference reference; /* .texref, .surfref: 8 bytes for the handle of what is bound to it */
    bool is_const;                /* .const rather than .global */
    const void *init;             /* size_bytes of initial content, or NULL for zeros; relocations excluded */
    uint64_t address;             /* device address: written by the caller, before ptx_module_link */
};

struct ptx_error {
    char text[512]; /* one line: "line 12: unsupported instruction 'foo.bar'" */
    unsigned line;
    bool unsupported; /* well-formed as far as known, but not implemented (else: a syntax error) */
};

/* Parses NUL-terminated-or-not text. 0, or -1 with *error filled. The text is not referenced afterwards. */
int ptx_module_parse(const char *text, size_t text_bytes, struct ptx_module **module_out, struct ptx_error *error);
struct ptx_source {
    const char *text;
    size_t bytes;
    const char *name; /* for messages; NULL or "" = none */
};
/*
 * Links: several texts into one module. Names that are .visible, .weak, .common or .extern, and entries, mean the same in all
 * texts; other names belong to their text. Errors beyond those of one text: a name that is defined twice, a variable or
 * function that is used and nowhere defined. `open` leaves out the latter: such a module is good for nothing but the check.
 */
int ptx_module_parse_all(const struct ptx_source *sources, size_t count, bool open, struct ptx_module **module_out,
                         struct ptx_error *error);
void ptx_module_destroy(struct ptx_module *module); /* NULL is fine; no grid of it may be alive */

unsigned ptx_module_target(const struct ptx_module *module);   /* e.g. 70 for sm_70 */
size_t ptx_module_code_bytes(const struct ptx_module *module); /* what a device would spend on its code, estimated */
size_t ptx_module_function_count(const struct ptx_module *module); /* entries first, in text order */
struct ptx_function *ptx_module_function_at(struct ptx_module *module, size_t index);
struct ptx_function *ptx_module_function(struct ptx_module *module, const char *name); /* NULL = none of that name */
const struct ptx_function_info *ptx_function_info(const struct ptx_function *function);
size_t ptx_module_global_count(const struct ptx_module *module);
struct ptx_global *ptx_module_global_at(struct ptx_module *module, size_t index);
/* After every global has its address: binds names in code, and writes address relocations into the initial images that
 * the caller then copies to the device (init pointers stay valid). 0 or -1 with *error. */
int ptx_module_link(struct ptx_module *module, struct ptx_error *error);

/* Does some function of the module call malloc or free, or vprintf? Then grids of it want a heap, or a fifo. */
bool ptx_module_uses_heap(const struct ptx_module *module);
bool ptx_module_uses_printf(const struct ptx_module *module);

/*
 * Memory that kernels allocate, at [va, va + bytes), which the caller keeps mapped; va is a multiple of 4096. It lives on from
 * grid to grid, and may serve several at once. NULL = out of host memory.
 */
struct ptx_heap *ptx_heap_create(uint64_t va, uint64_t bytes);
void ptx_heap_destroy(struct ptx_heap *heap);  /* NULL is fine; no grid that uses it may be alive */
uint64_t ptx_heap_used(struct ptx_heap *heap); /* bytes, with what rounding wastes. Thread-safe */

/*
 * What kernels print: a queue of formatted records. When more than `bytes` are waiting, the oldest are dropped, as on
 * hardware. Thread-safe. create: NULL = out of host memory.
 */
struct ptx_fifo *ptx_fifo_create(size_t bytes);
void ptx_fifo_destroy(struct ptx_fifo *fifo); /* as for heaps */
/* Takes all that is waiting: text that the caller frees, without a NUL; NULL = nothing. */
char *ptx_fifo_take(struct ptx_fifo *fifo, size_t *bytes_out);

enum ptx_fault_kind {
    PTX_FAULT_NONE,
    PTX_FAULT_ILLEGAL_ADDRESS,
    PTX_FAULT_MISALIGNED,
    PTX_FAULT_TRAP,
    PTX_FAULT_ASSERT,
    PTX_FAULT_ILLEGAL_INSTRUCTION, /* e.g. call through a bad pointer, division mode never meant to run */
    PTX_FAULT_STACK,               /* call depth or local memory exhausted */
    PTX_FAULT_ABORTED,             /* ptx_grid_abort */
    PTX_FAULT_DEADLOCK,            /* every thread of a block waits at a barrier that cannot complete */
};

struct ptx_fault {
    enum ptx_fault_kind kind;
    uint64_t address; /* ILLEGAL_ADDRESS, MISALIGNED */
    uint32_t bytes;
    bool write;
    const char *space; /* "global", "shared", "local", "const" or "generic" */
    uint32_t block[3], thread[3];
    unsigned line; /* in the PTX text */
};

struct ptx_counters {
    uint64_t warp_instructions;
    uint64_t thread_instructions;
    uint64_t flops;        /* floating-point operations, fma = 2 */
    uint64_t double_flops; /* of these, on doubles */
    uint64_t tensor_flops; /* of these, of matrix instructions, without those on doubles */
    uint64_t tensor_work;  /* fp16 operations that would take as long as all matrix instructions but those on doubles */
    uint64_t accesses;     /* to global memory, per thread */
    uint64_t read_bytes[SG_TIER_COUNT], write_bytes[SG_TIER_COUNT]; /* global accesses, atomics count in both */
};

struct ptx_grid_args {
    const struct ptx_function *function;
    uint32_t grid[3], block[3];
    uint32_t dynamic_shared_bytes;
    const void *params; /* packed, params_bytes; copied by create */
    const struct sg_pagetable *pagetable;
    uint32_t max_resident_blocks; /* blocks in flight at once, >= 1; the rest start as these finish, in linear order */
    bool cooperative;  /* all blocks (no more than may be resident) are alive from the start, and take short turns */
    uint32_t sm_count; /* for %nsmid; block b runs on SM b % sm_count */
    uint64_t seed;     /* which resident block advances next */
    struct ptx_heap *heap;             /* of malloc and free; NULL = malloc finds no memory */
    struct ptx_fifo *fifo;             /* of vprintf; NULL = its output is lost */
    ptx_texture_fn *texture;           /* what handles mean; NULL = nothing */
    const _Atomic(uint64_t) *clock_ns; /* %globaltimer; NULL = the monotonic clock */
    /* cudaGraphSetConditional: false = there is no such handle, or it is of another context. Called from any thread that runs the
     * grid. NULL = there are none. */
    bool (*set_condition)(uint64_t context, uint64_t handle, uint32_t value);
    uint64_t context; /* for it */
};

/* The caller has checked limits (threads per block, shared memory). NULL only when out of host memory. */
struct ptx_grid *ptx_grid_create(const struct ptx_grid_args *args);
void ptx_grid_destroy(struct ptx_grid *grid); /* no thread may be in ptx_grid_run */

enum ptx_progress {
    PTX_RUNNING, /* something advanced; call again */
    PTX_IDLE, /* every block that is not being run by another thread just now is waiting for that thread's: nothing for
                    this caller to do at present */
    PTX_DONE, /* all blocks finished, or the grid faulted and every thread has left it */
};
/*
 * Runs resident blocks of the grid for about `warp_instructions`. Thread-safe: several workers may serve one grid; each
 * holds one block at a time. Returns PTX_DONE to every caller once finished.
 */
enum ptx_progress ptx_grid_run(struct ptx_grid *grid, uint64_t warp_instructions);
/* Looks from now on whether the resident blocks go in circles; again: anew. Costs time at each turn of a block. */
void ptx_grid_watch(struct ptx_grid *grid);
struct ptx_spin {
    uint32_t block[3];          /* one of them */
    unsigned line;              /* where it is, in the PTX text */
    uint64_t resident, waiting; /* blocks: those that run, those that have not begun for want of room */
};
/* True: since ptx_grid_watch each resident block has come back to a state in which it was, none has ended, and none may begin. */
bool ptx_grid_circles(struct ptx_grid *grid, struct ptx_spin *spin_out);
void ptx_grid_abort(struct ptx_grid *grid); /* from any thread: the grid ends with PTX_FAULT_ABORTED */
/* After PTX_DONE. The first fault in (block, thread) order among those seen; kind NONE = success. */
const struct ptx_fault *ptx_grid_fault(const struct ptx_grid *grid);
const struct ptx_counters *ptx_grid_counters(const struct ptx_grid *grid);
void ptx_grid_counters_now(struct ptx_grid *grid, struct ptx_counters *counters_out); /* so far; from any thread */

/* Grids created from now on run on the architecture's baseline instruction set instead of the best one of this machine.
 * The results are the same bits, which is what tests use this for. Thread-safe. */
void ptx_use_baseline(bool baseline);

#endif
