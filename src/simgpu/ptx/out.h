/*
 * Operations outside the interpreter's core: each is a function over the active lanes of a warp. See struct ptx_wide.
 */
#ifndef SG_PTX_OUT_H
#define SG_PTX_OUT_H

#include "simgpu/ptx/run.h"

/* clang-format does not come to rest here. */
/* clang-format off */
#define PTX_OUT_FUNCTIONS(X) \
    X(redux) X(elect) X(cluster_arrive) X(cluster_test) X(vector_atom) X(wide_atom) X(discard) \
    X(cp_async) X(cp_commit) X(cp_wait) X(cp_arrive) X(cp_bulk) \
    X(mbarrier_init) X(mbarrier_inval) X(mbarrier_arrive) X(mbarrier_tx) X(mbarrier_test) X(mbarrier_pending) \
    X(malloc) X(free) X(vprintf) X(assertfail) X(set_condition) \
    X(mma) X(wmma_load) X(wmma_store) X(ldmatrix) X(stmatrix) X(movmatrix) \
    X(tex) X(surface) X(texture_query)
/* clang-format on */

enum ptx_out {
#define X(name) PTX_OUT_##name,
    PTX_OUT_FUNCTIONS(X)
#undef X
        PTX_OUT_COUNT
};

/* False = fault, filled in. */
typedef bool ptx_out_fn(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *in, uint8_t *regs,
                        uint32_t active, uint32_t pc);
extern ptx_out_fn *const ptx_out_functions[PTX_OUT_COUNT];
#define X(name) ptx_out_fn ptx_out_##name;
PTX_OUT_FUNCTIONS(X)
#undef X

/* The lanes' array of the k-th operand. */
static inline uint8_t *ptx_out_at(const struct ptx_run *r, uint8_t *regs, const struct ptx_insn *in, unsigned k)
{
    uint32_t o = r->module->wides[in->imm].operands[k];
    return (o & PTX_CONST ? (uint8_t *)(uintptr_t)r->consts : regs) + (o & ~PTX_CONST);
}
static inline bool ptx_out_has(const struct ptx_run *r, const struct ptx_insn *in, unsigned k)
{
    return r->module->wides[in->imm].operands[k];
}

struct ptx_access {
    enum ptx_space space; /* global, shared, local or generic */
    uint32_t bytes, align;
    bool write;
    uint32_t pc;
    bool strong; /* an atomic */
};
/*
 * The host's address of [address, address + bytes) as a lane sees it, counted as one access; NULL after a fault has been filled
 * in. A global range that crosses a page is refused with *crosses_out (where given) set and no fault: the caller splits.
 */
uint8_t *ptx_run_at(struct ptx_run *r, const struct ptx_warp *w, const struct ptx_access *a, unsigned lane,
                    uint64_t address, bool *crosses_out);
/* Copies between the host's memory and such a range, wherever it crosses pages. */
bool ptx_run_read(struct ptx_run *r, const struct ptx_warp *w, const struct ptx_access *a, unsigned lane,
                  uint64_t address, void *to);
bool ptx_run_write(struct ptx_run *r, const struct ptx_warp *w, const struct ptx_access *a, unsigned lane,
                   uint64_t address, const void *from);

#define PTX_FOR_LANES(i, mask)                                                                                         \
    for (uint32_t ptx_left_ = (mask), i; ptx_left_ && (i = (uint32_t)__builtin_ctz(ptx_left_), true);                  \
         ptx_left_ &= ptx_left_ - 1)

/* Does the engine use the machine's best vector unit? */
bool ptx_run_wide_vectors(void);

#endif
