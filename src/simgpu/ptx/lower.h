/*
 * Lowering: from one instruction as read to internal code. The table of instructions (lower.c) names, for each PTX
 * instruction, the function that lowers it; such a function takes the modifiers it honours out of the statement, and
 * whatever is left over makes the instruction unsupported.
 */
#ifndef SG_PTX_LOWER_H
#define SG_PTX_LOWER_H

#include "simgpu/ptx/lane.h"
#include "simgpu/ptx/parse.h"

struct ptx_descriptor {
    const char *name;
    void (*lower)(struct ptx_parser *p, const struct ptx_descriptor *d);
    uint8_t min_operands, max_operands;
    int16_t op; /* what `lower` needs to tell its instructions apart: usually the first operation of the family ... */
    int16_t op_signed; /* ... and its signed counterpart; 0 = the same */
    bool pair;         /* the first operand may be d|p */
    bool coordinates;  /* an address may be [object, coordinates] */
    bool parts;        /* operands may be parts of registers, as a.h1 */
    bool all_types;    /* `lower` knows of .b128, .f16x2, .bf16, .bf16x2, .tf32; else they are refused before it */
};

void ptx_lower_init_names(struct ptx_parser *p);
/* The i-th instruction of the table; NULL beyond its end. */
const char *ptx_lower_instruction(size_t i);

/* "unsupported instruction 'add.foo.s32'", with a reason or NULL. */
_Noreturn void ptx_lower_unsupported(struct ptx_parser *p, const char *why);
_Noreturn void ptx_lower_fail(struct ptx_parser *p, const char *what);

/* The modifier was there; it is taken out. */
bool ptx_take_mod(struct ptx_parser *p, enum ptx_mod mod);
static inline bool ptx_has_mod(const struct ptx_parser *p, enum ptx_mod mod)
{
    return p->stmt.mods[mod / 64] >> (mod % 64) & 1;
}
/* The one type of an instruction; unsupported if there are more or none. */
enum ptx_type ptx_one_type(struct ptx_parser *p);
/* .rn .rz .rm .rp; *given_out may be NULL. */
enum ptx_round ptx_take_round(struct ptx_parser *p, bool *given_out);

/* A new instruction under the statement's guard. Valid until the next emit. */
struct ptx_insn *ptx_emit(struct ptx_parser *p, int op);
uint32_t ptx_temp(struct ptx_parser *p, unsigned log2);
uint32_t ptx_constant(struct ptx_parser *p, unsigned log2, uint64_t bits); /* log2 0 = predicate, bits 0 or 1 */
/* Where to find / put the i-th operand. log2 is the exact register size, 0 = predicate. */
uint32_t ptx_source(struct ptx_parser *p, const struct ptx_operand *operand, unsigned log2, enum ptx_type type);
uint32_t ptx_result(struct ptx_parser *p, const struct ptx_operand *operand, unsigned log2);
/* A predicate source with its negation resolved by code. */
uint32_t ptx_predicate(struct ptx_parser *p, const struct ptx_operand *operand);
void ptx_lower_mem_address(struct ptx_parser *p, const struct ptx_operand *operand, enum ptx_space *space,
                           bool is_const, uint32_t bytes, struct ptx_insn *out, bool *addr32_out);
/* A register or constant of 64 bits that holds the address [operand] within its space, which may not be a parameter's. */
uint32_t ptx_lower_address(struct ptx_parser *p, const struct ptx_operand *operand, enum ptx_space space,
                           uint32_t bytes);
/* .const .global .shared .local .param; none = generic. */
enum ptx_space ptx_take_space(struct ptx_parser *p, bool *is_const_out);
/* .weak .volatile .relaxed.scope .acquire.scope ... */
enum ptx_order ptx_take_order(struct ptx_parser *p);
unsigned ptx_take_scope(struct ptx_parser *p); /* .cta .cluster .gpu .sys: how many were there */
/* Cache hints; with .L2::cache_hint the last operand is a policy, which is checked and taken off the statement. */
void ptx_take_cache_hints(struct ptx_parser *p);
/* An OUT or OUT_SYNC instruction; `operands` is copied. */
struct ptx_insn *ptx_emit_out(struct ptx_parser *p, bool sync, unsigned function, uint32_t params,
                              const uint32_t *operands, unsigned result_count, unsigned count);
void ptx_note_shared(struct ptx_parser *p, uint32_t variable);

/* Over a finished function's code, branches resolved. Gives registers their places in the frame. */
void ptx_lower_compact(struct ptx_parser *p, uint32_t begin, uint32_t end);
/* Then: marks loads and stores that can share work. */
void ptx_lower_reuse(struct ptx_parser *p, uint32_t begin, uint32_t end);
/* Called by it at the end: marks what can run in one go. entered[i] tells that instruction i is a branch's target. */
void ptx_lower_fuse(struct ptx_insn *code, uint32_t count, const uint8_t *entered);

static inline struct ptx_operand *ptx_operand_at(struct ptx_parser *p, unsigned i)
{
    return &p->stmt.operands[i];
}

/* Integer halves of instructions that floats have too. */
void ptx_lower_int_add(struct ptx_parser *p, const struct ptx_descriptor *d);
void ptx_lower_int_mul(struct ptx_parser *p, enum ptx_type type);
void ptx_lower_int_mad(struct ptx_parser *p, enum ptx_type type);
void ptx_lower_int_div(struct ptx_parser *p, const struct ptx_descriptor *d, enum ptx_type type);
void ptx_lower_int_minmax(struct ptx_parser *p, const struct ptx_descriptor *d, enum ptx_type type);
/* A lane function over operands 1 .. count, all of one size. */
void ptx_lower_lane(struct ptx_parser *p, int function, unsigned count, unsigned log2, unsigned result_log2,
                    uint64_t imm);
void ptx_lower_int_unary(struct ptx_parser *p, const struct ptx_descriptor *d, enum ptx_type type);

/* Halves: f16, bf16 and their pairs. */
bool ptx_type_half(enum ptx_type type);
void ptx_lower_half_arith(struct ptx_parser *p, int op, unsigned count);
void ptx_lower_half_sign(struct ptx_parser *p, bool is_neg);
void ptx_lower_half_approx(struct ptx_parser *p, int op);
void ptx_lower_float_minmax(struct ptx_parser *p, bool is_min);
/* The i-th operand, its subnormals flushed if so asked; one half of it (0 or 1 of a pair) as f32. */
uint32_t ptx_lower_half_source(struct ptx_parser *p, unsigned i, enum ptx_type type, bool ftz);
uint32_t ptx_lower_half_widen(struct ptx_parser *p, enum ptx_type type, uint32_t at, unsigned part);

/* clang-format does not come to rest here. */
/* clang-format off */
#define PTX_LOWERINGS(X) \
    X(int_or_float) X(mul) X(mad) X(fma) X(div) X(rem) X(minmax) X(unary) X(logic) X(shift) X(bits) X(bfe) X(bfi) \
    X(prmt) X(shf) X(sad) X(lop3) X(dp4a) X(mul24) X(setp) X(set) X(selp) X(slct) X(float_unary) X(copysign) \
    X(testp) X(cvt) X(mov) X(ld) X(st) X(atom) X(cvta) X(isspacep) X(prefetch) X(fence) X(bra) X(brx) X(call) \
    X(exit) X(trap) X(bar) X(shfl) X(vote) X(activemask) X(match) X(nanosleep) X(carry) \
    X(bit_range) X(fns) X(video) X(vmad) X(video_simd) \
    X(redux) X(elect) X(hint) X(cluster) X(createpolicy) X(cp) X(mbarrier) X(mma) X(wmma) X(ldmatrix) X(stmatrix) \
    X(movmatrix) X(tex) X(surface) X(texture_query)
/* clang-format on */
#define X(name) void ptx_lower_##name(struct ptx_parser *p, const struct ptx_descriptor *d);
PTX_LOWERINGS(X)
#undef X

#endif
