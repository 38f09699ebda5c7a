/*
 * What the parser makes of PTX and the interpreter runs: instructions, functions, modules.
 *
 * Registers are structures of arrays: a register is 32 consecutive lane values of 2, 4 or 8 bytes in the warp's frame; a
 * predicate is one 32-bit mask. An operand is the byte offset of that array in the frame, or, with PTX_CONST set, in the
 * module's constants (immediates and symbol addresses, already spread over 32 lanes).
 */
#ifndef SG_PTX_CODE_H
#define SG_PTX_CODE_H

#include "simgpu/ptx/arena.h"
#include "simgpu/ptx/ptx.h"

#define PTX_LANES 32
#define PTX_CONST 0x80000000u
/* While a function is being parsed its registers have numbers instead of places: PTX_VIRTUAL | log2 of bytes | number. */
#define PTX_VIRTUAL 0x40000000u
#define PTX_VIRTUAL_LOG2 28
#define PTX_VIRTUAL_INDEX 0x0fffffffu
#define PTX_NO_PC UINT32_MAX
#define PTX_MAX_THREADS 1024
#define PTX_BARRIERS 16

/* Generic address windows: above every device address (47 bits), 4 GiB each. */
#define PTX_SHARED_WINDOW (UINT64_C(1) << 56)
#define PTX_LOCAL_WINDOW (UINT64_C(2) << 56)
#define PTX_PARAM_WINDOW (UINT64_C(3) << 56) /* an entry's parameters, read only */
#define PTX_CODE_WINDOW (UINT64_C(4) << 56)  /* what a function's address is, see ptx_function_address */
#define PTX_WINDOW_MASK (~UINT64_C(0xffffffff))

enum ptx_op {
#define OP1(name, td, ta, expr) PTX_OP_##name,
#define OP2(name, td, ta, tb, expr) PTX_OP_##name,
#define OP3(name, td, ta, tb, tc, expr) PTX_OP_##name,
#define CMP(name, t, expr) PTX_OP_##name,
#define OPX(name) PTX_OP_##name,
#include "simgpu/ptx/ops.def"
#undef OP1
#undef OP2
#undef OP3
#undef CMP
#undef OPX
    PTX_OP_COUNT,
    PTX_OP_LAST_VECTOR = PTX_OP_SETP_EQ_U16 - 1, /* up to here: OP1, OP2, OP3 */
    PTX_OP_LAST_COMPARE = PTX_OP_SETP_NAN_F64,   /* up to here: CMP */
};

/* Floating-point operations of an instruction: those of doubles from bit 4 on. */
#define PTX_FLOPS(type, count) ((uint8_t)((type) == PTX_F64 ? (count) << 4 : (count)))

#define PTX_MOST_STRETCH 1024

struct ptx_insn {
    uint16_t op;
    uint8_t guard_negated;
    uint8_t flops;  /* per lane: PTX_FLOPS */
    uint32_t guard; /* predicate operand; 0 = none (offset 0 is the frame header) */
    uint32_t o[6];  /* operands: results first */
    uint32_t aux;   /* per operation, see below */
    uint32_t line;
    uint64_t imm;
    /* What fuse.c found out: */
    uint16_t stretch; /* so many instructions from here on run in one go when all lanes are active; 0 = just this one */
    uint8_t chain;    /* from here on there are so many triples of load, load, fused multiply-add of one sum */
    bool once;        /* the result is read once, further down in the same basic block */
    uint32_t stretch_flops; /* of a lane, over the stretch: those of doubles from bit 16 on */
};

/* Frame header: what a call saves, per lane. */
struct ptx_frame {
    uint32_t return_pc[PTX_LANES];
    uint32_t return_fp[PTX_LANES];
    uint32_t local_base[PTX_LANES]; /* of this function's .local variables in the thread's local memory */
    uint32_t function[PTX_LANES];   /* its number */
    uint32_t depth[PTX_LANES];      /* bytes of the callers' frames */
};

/* aux of LD and ST: data in o[0..3], address register in o[4] (0 = none), offset in imm.
 * For FRAME: object in o[5], stride in the high half of imm. For SHARED: variable index + 1 in o[5]. */
enum ptx_space {
    PTX_SPACE_GLOBAL,
    PTX_SPACE_SHARED,
    PTX_SPACE_LOCAL,
    PTX_SPACE_GENERIC,
    PTX_SPACE_PARAM, /* an entry's parameters */
    PTX_SPACE_FRAME, /* a function's parameters and call arguments: in the frame, bytes of a lane together */
};
enum ptx_order { PTX_ORDER_WEAK, PTX_ORDER_RELAXED, PTX_ORDER_ACQ_REL, PTX_ORDER_SC };

/* The frequent forms of LD and ST name in aux a slot to use or to fill, see reuse.c; 0 = none. */
#define PTX_REUSE_USE_SHIFT 24
#define PTX_REUSE_FILL_SHIFT 28
#define PTX_REUSE_SLOTS 9
#define PTX_REUSE_PER_SIZE 3 /* for each of 4, 8, 16 bytes */

#define PTX_MEM_AUX(space, bytes_log2, is_signed, reg_log2, vec_log2, addr32, order)                                   \
    ((uint32_t)(space) | (uint32_t)(bytes_log2) << 4 | (uint32_t)(is_signed) << 8 | (uint32_t)(reg_log2) << 9 |        \
     (uint32_t)(vec_log2) << 12 | (uint32_t)(addr32) << 16 | (uint32_t)(order) << 20)
#define PTX_MEM_SPACE(aux) ((aux)&15)
#define PTX_MEM_LOG2(aux) ((aux) >> 4 & 15)
#define PTX_MEM_SIGNED(aux) ((aux) >> 8 & 1)
#define PTX_MEM_REG_LOG2(aux) ((aux) >> 9 & 7)
#define PTX_MEM_VEC_LOG2(aux) ((aux) >> 12 & 7)
#define PTX_MEM_ADDR32(aux) ((aux) >> 16 & 1)
#define PTX_MEM_ORDER(aux) ((aux) >> 20 & 3)

/* aux of ATOM = PTX_MEM_AUX(space, log2, 0, log2, 0, addr32, order) | PTX_ATOM_AUX; o[0] result or 0, o[1], o[2] values,
 * o[4], o[5], imm as for LD. */
enum ptx_atom_op {
    PTX_ATOM_ADD,
    PTX_ATOM_MIN,
    PTX_ATOM_MAX,
    PTX_ATOM_INC,
    PTX_ATOM_DEC,
    PTX_ATOM_AND,
    PTX_ATOM_OR,
    PTX_ATOM_XOR,
    PTX_ATOM_EXCH,
    PTX_ATOM_CAS,
};
enum ptx_atom_type {
    PTX_ATOM_U32,
    PTX_ATOM_S32,
    PTX_ATOM_U64,
    PTX_ATOM_S64,
    PTX_ATOM_F32,
    PTX_ATOM_F64,
    PTX_ATOM_F16,
    PTX_ATOM_BF16,
    PTX_ATOM_F16X2,
    PTX_ATOM_BF16X2,
    PTX_ATOM_U16,
};
#define PTX_ATOM_AUX(op, type) ((uint32_t)(op) << 24 | (uint32_t)(type) << 28)
#define PTX_ATOM_OP(aux) ((enum ptx_atom_op)((aux) >> 24 & 15))
#define PTX_ATOM_TYPE(aux) ((enum ptx_atom_type)((aux) >> 28))

/* aux of ISSPACEP: a space, or: */
#define PTX_ISSPACEP_CONST 16u

/*
 * OUT and OUT_SYNC, the rarer operations: a function of out.h, its number in the low 8 bits of aux, what else it must know in
 * the others; imm is the index of its operands in the module's `wides`. OUT_SYNC waits for the members in o[4] first.
 */
struct ptx_wide {
    uint32_t *operands; /* results first; 0 = not there */
    uint16_t result_count, count;
};
#define PTX_OUT_PARAMS(aux) ((aux) >> 8)

/* aux of compares: how the result combines with predicate o[3]; o[0] result, o[4] second result (0 = none). */
enum ptx_bool { PTX_BOOL_NONE, PTX_BOOL_AND, PTX_BOOL_OR, PTX_BOOL_XOR };
#define PTX_BOOL_NEGATE 4u /* the predicate o[3] is negated */

/* aux of BAR; o[0] result, o[1] barrier, o[2] thread count (0 = all), o[3] predicate. */
enum ptx_bar { PTX_BAR_SYNC, PTX_BAR_ARRIVE, PTX_BAR_RED_POPC, PTX_BAR_RED_AND, PTX_BAR_RED_OR };
#define PTX_BAR_NEGATE 16u

/* aux of SHFL (mode); o[0] result, o[1] value, o[2] b, o[3] c, o[4] member mask, o[5] predicate result (0 = none). */
enum ptx_shfl { PTX_SHFL_UP, PTX_SHFL_DOWN, PTX_SHFL_BFLY, PTX_SHFL_IDX };
/* aux of VOTE; o[0] result (register for BALLOT, else predicate), o[1] predicate, o[2] member mask. */
enum ptx_vote { PTX_VOTE_ALL, PTX_VOTE_ANY, PTX_VOTE_UNI, PTX_VOTE_BALLOT };
#define PTX_VOTE_NEGATE 16u
/* aux of MATCH: bit 0 = all, bit 1 = 64-bit; o[0] result, o[1] value, o[2] member mask, o[3] predicate result or 0. */

enum ptx_sreg {
    PTX_SREG_TID_X,
    PTX_SREG_TID_Y,
    PTX_SREG_TID_Z,
    PTX_SREG_NTID_X,
    PTX_SREG_NTID_Y,
    PTX_SREG_NTID_Z,
    PTX_SREG_CTAID_X,
    PTX_SREG_CTAID_Y,
    PTX_SREG_CTAID_Z,
    PTX_SREG_NCTAID_X,
    PTX_SREG_NCTAID_Y,
    PTX_SREG_NCTAID_Z,
    PTX_SREG_ZERO, /* the .w members */
    PTX_SREG_LANEID,
    PTX_SREG_WARPID,
    PTX_SREG_NWARPID,
    PTX_SREG_SMID,
    PTX_SREG_NSMID,
    PTX_SREG_GRIDID,
    PTX_SREG_LANEMASK_EQ,
    PTX_SREG_LANEMASK_LE,
    PTX_SREG_LANEMASK_LT,
    PTX_SREG_LANEMASK_GE,
    PTX_SREG_LANEMASK_GT,
    PTX_SREG_CLOCK,
    PTX_SREG_CLOCK_HI,
    PTX_SREG_CLOCK64,
    PTX_SREG_GLOBALTIMER,
    PTX_SREG_GLOBALTIMER_LO,
    PTX_SREG_GLOBALTIMER_HI,
    PTX_SREG_DYNAMIC_SMEM,
    PTX_SREG_TOTAL_SMEM,
};

/* One value that a call copies between two frames: `bytes` of a lane, found at offset + lane * stride; the callee says where
 * it goes. */
struct ptx_arg {
    uint32_t caller_offset; /* an operand: may be a constant */
    uint32_t caller_stride;
    uint32_t bytes;
};

struct ptx_call {
    struct ptx_function *callee; /* NULL: through a register */
    struct ptx_function *caller;
    struct ptx_function **targets; /* of .calltargets: the only ones allowed; NULL = any of this prototype */
    uint32_t target_count;
    uint32_t line;
    uint32_t argument_count, result_count;
    struct ptx_arg *arguments; /* then the results */
    struct ptx_call *next;     /* of the same caller */
};

struct ptx_formal {
    struct ptx_param at;
    uint32_t frame_offset; /* of its bytes; stride below */
    uint32_t stride;
    uint8_t reg_log2; /* 0 = .param, else a register of that size */
    bool is_open;     /* [] of a variadic function: size_bytes is the most that a call may hand over */
};

struct ptx_shared_use {
    uint32_t variable;
    struct ptx_shared_use *next;
};

struct ptx_function {
    struct ptx_function_info info;
    struct ptx_module *module;
    bool defined;
    uint32_t entry_pc;
    uint32_t frame_bytes;
    uint32_t local_align, own_local_bytes;
    uint32_t formal_bytes, formal_offset;
    uint32_t virtual_count; /* registers named so far */
    struct ptx_formal *formals, *results;
    uint32_t formal_count, result_count;
    struct ptx_call *calls;
    struct ptx_shared_use *shared_uses;
    /* After the whole text: for entries, what a launch needs. */
    uint32_t stack_bytes;    /* of frames, per warp */
    uint32_t *shared_offset; /* per shared variable of the module; entries only */
    uint32_t dynamic_shared_offset;
    uint8_t visit; /* walks over the call graph */
    bool recursive;
    bool address_taken;
    uint32_t number; /* order in the text */
    struct ptx_function *alias_of;
};

struct ptx_shared_variable {
    uint32_t bytes, align;
    bool dynamic;
};

struct ptx_reloc {
    uint32_t global, target; /* indices */
    uint64_t offset, addend;
    uint64_t mask;  /* the bits of the address that are wanted, moved down to bit 0 */
    uint32_t bytes; /* that are written */
};

struct ptx_const_reloc {
    uint32_t constant; /* byte offset in consts */
    uint32_t global;
    uint64_t addend;
};

struct ptx_module {
    struct ptx_arena arena;
    unsigned target;
    unsigned version; /* major * 10 + minor */
    struct ptx_insn *code;
    size_t code_count, code_capacity;
    uint8_t *consts; /* 64-byte aligned */
    size_t consts_bytes, consts_capacity;
    struct ptx_function **functions;
    size_t function_count, function_capacity;
    struct ptx_global *globals;
    size_t global_count, global_capacity;
    struct ptx_shared_variable *shared;
    size_t shared_count, shared_capacity;
    struct ptx_reloc *relocs;
    size_t reloc_count, reloc_capacity;
    struct ptx_const_reloc *const_relocs;
    size_t const_reloc_count, const_reloc_capacity;
    struct ptx_call **calls;
    size_t call_count, call_capacity;
    struct ptx_function **by_number; /* all of them, by their numbers */
    size_t number_count;
    uint64_t code_base; /* of the functions' addresses */
    bool uses_heap, uses_printf;
    struct ptx_wide *wides;
    size_t wide_count, wide_capacity;
    uint32_t *targets; /* of brx.idx */
    size_t target_count, target_capacity;
    bool linked;
};

/* A function's address, as registers and memory hold it: no other module's functions have the same ones. */
static inline uint64_t ptx_function_address(const struct ptx_function *f)
{
    return f->module->code_base + (uint64_t)(f->number + 1) * 16;
}
/* The defined function of this module at an address; NULL = there is none, or it is an entry. */
struct ptx_function *ptx_module_callee(const struct ptx_module *module, uint64_t address);

#endif
