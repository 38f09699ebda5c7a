/*
 * The parser's state, shared by the files that read directives, read instructions and lower them.
 *
 * One pass: an instruction is read into a struct ptx_stmt and lowered at once. Errors leave by longjmp to
 * ptx_module_parse; everything allocated hangs off the module, which the caller of parse then destroys.
 */
#ifndef SG_PTX_PARSE_H
#define SG_PTX_PARSE_H

#include "simgpu/ptx/code.h"
#include "simgpu/ptx/lex.h"

#include <setjmp.h>

enum ptx_type {
    PTX_NONE,
    PTX_PRED,
    PTX_B8,
    PTX_B16,
    PTX_B32,
    PTX_B64,
    PTX_U8,
    PTX_U16,
    PTX_U32,
    PTX_U64,
    PTX_S8,
    PTX_S16,
    PTX_S32,
    PTX_S64,
    PTX_B128, /* a register of this type is a pair of 64-bit ones */
    PTX_F16,
    PTX_F32,
    PTX_F64,
    PTX_F16X2,
    PTX_BF16,
    PTX_BF16X2,
    PTX_TF32,
    PTX_U16X2,
    PTX_S16X2,
    PTX_E4M3X2,
    PTX_E5M2X2,
    PTX_U4,
    PTX_S4,
    PTX_U2,
    PTX_S2,
    PTX_TYPE_COUNT
};

/* log2 of bytes; 0 for predicates too. */
unsigned ptx_type_log2(enum ptx_type type);
static inline bool ptx_type_signed(enum ptx_type t)
{
    return t >= PTX_S8 && t <= PTX_S64;
}
static inline bool ptx_type_unsigned(enum ptx_type t)
{
    return t >= PTX_U8 && t <= PTX_U64;
}
static inline bool ptx_type_bits(enum ptx_type t)
{
    return t >= PTX_B8 && t <= PTX_B64;
}
static inline bool ptx_type_float(enum ptx_type t)
{
    return t >= PTX_F16 && t <= PTX_TF32;
}
/* What loads, stores and moves know: not halves, nor packed types. */
static inline bool ptx_type_plain(enum ptx_type t)
{
    return t <= PTX_F64 && t != PTX_F16;
}
/* Integer types that arithmetic takes: 16, 32, 64 bits, signed or not. */
static inline bool ptx_type_int(enum ptx_type t)
{
    return (t >= PTX_U16 && t <= PTX_U64) || (t >= PTX_S16 && t <= PTX_S64);
}

enum ptx_mod {
#define MOD(name, text) PTX_M_##name,
#include "simgpu/ptx/mods.def"
#undef MOD
    PTX_MOD_COUNT
};

enum ptx_symbol_kind {
    PTX_SYM_REGISTER,
    PTX_SYM_REGISTERS, /* %r<100>: offset of the first */
    PTX_SYM_GLOBAL,
    PTX_SYM_SHARED,
    PTX_SYM_LOCAL,
    PTX_SYM_PARAM, /* an entry's or function's formal parameter, or a call argument object */
    PTX_SYM_FUNCTION,
    PTX_SYM_LABEL,
    PTX_SYM_TARGETS,   /* .branchtargets */
    PTX_SYM_PROTOTYPE, /* .callprototype, .calltargets */
};

enum ptx_linkage { PTX_LINK_LOCAL, PTX_LINK_EXTERN, PTX_LINK_VISIBLE, PTX_LINK_WEAK, PTX_LINK_COMMON };

struct ptx_symbol {
    enum ptx_symbol_kind kind;
    uint8_t log2;      /* registers: size; 0 = predicate */
    bool is_result;    /* PARAM: a function's return value */
    bool is_formal;    /* PARAM */
    bool defined;      /* LABEL, GLOBAL */
    bool is_reference; /* GLOBAL: .texref, .surfref; it holds a handle */
    uint32_t
        offset; /* registers, PARAM objects: in the frame; LOCAL: in the function's locals; formal: in the layout */
    uint32_t stride; /* PARAM objects */
    uint32_t count;  /* REGISTERS; TARGETS */
    uint32_t index;  /* GLOBAL, SHARED; LABEL: pc; TARGETS: first in module->targets */
    uint64_t bytes;  /* size of variables */
    /* Of variables that are arrays of one dimension; 0 = cannot be indexed. */
    uint32_t element_bytes;
    struct ptx_function *function;
    enum ptx_linkage linkage; /* GLOBAL, FUNCTION: of its definition, once it is defined */
    struct ptx_prototype *prototype;
};

/* What an indirect call hands over: sizes in bytes, of arguments and then results. */
struct ptx_prototype {
    uint32_t argument_count, result_count;
    const uint32_t *bytes;
    struct ptx_function **targets; /* .calltargets; else NULL */
    uint32_t target_count;
};

enum ptx_operand_kind {
    PTX_OPERAND_NONE,
    PTX_OPERAND_REG,
    PTX_OPERAND_INT,
    PTX_OPERAND_FLOAT,
    PTX_OPERAND_SREG,
    PTX_OPERAND_SYMBOL,  /* its address, or a label, function, ... */
    PTX_OPERAND_ADDRESS, /* [base + offset] */
    PTX_OPERAND_VECTOR,  /* {a, b, ...} */
    PTX_OPERAND_SINK,    /* _ */
};

struct ptx_operand {
    enum ptx_operand_kind kind;
    bool negated;       /* !p, or -a (video instructions) */
    uint8_t log2;       /* REG, and the base of ADDRESS: size, 0 = predicate */
    uint8_t count;      /* VECTOR */
    uint8_t bits_bytes; /* FLOAT */
    bool has_base;      /* ADDRESS: reg is a base register */
    uint32_t reg;
    uint32_t second; /* p|q: the second predicate; 0 = none */
    enum ptx_sreg sreg;
    uint64_t value; /* INT (two's complement), FLOAT bits, ADDRESS offset */
    double number;
    struct ptx_symbol *symbol;       /* SYMBOL, ADDRESS */
    struct ptx_operand *elements;    /* VECTOR */
    struct ptx_operand *coordinates; /* ADDRESS of a texture or surface; NULL = none */
    const char *name;                /* for messages, and labels not seen yet */
    size_t name_bytes;
    const char *part; /* of a register, without the dot: a.h1 of a video instruction; NULL = none */
    size_t part_bytes;
};

#define PTX_MAX_OPERANDS 8
#define PTX_MAX_ELEMENTS 8
#define PTX_MAX_TYPES 4

/* One instruction as read. */
struct ptx_stmt {
    const char *text; /* for messages: from the guard to the semicolon */
    size_t text_bytes;
    unsigned line;
    const char *name;
    size_t name_bytes;
    int insn;         /* row in the table of instructions */
    uint64_t mods[4]; /* lowering clears what it has dealt with; what is left over is unsupported */
    enum ptx_type types[PTX_MAX_TYPES];
    unsigned type_count;
    struct ptx_operand operands[PTX_MAX_OPERANDS];
    unsigned operand_count;
    uint32_t guard;
    bool guard_negated;
    /* call */
    struct ptx_operand *call_results, *call_arguments;
    unsigned call_result_count, call_argument_count;
};

#define PTX_MAX_SCOPES 32

struct ptx_target_fixup {
    struct ptx_symbol *label;
    uint32_t target; /* index in module->targets */
    struct ptx_target_fixup *next;
};

struct ptx_parser {
    struct ptx_lexer lexer;
    struct ptx_token token; /* the current one */
    struct ptx_module *module;
    struct ptx_error *error;
    jmp_buf leave;
    struct ptx_map symbols; /* of the text */
    bool linking, open;     /* see ptx_module_parse_all and link.c */
    const char *source_name;
    enum ptx_linkage linkage; /* of the variable or function that is being read */
    struct ptx_map externals; /* what all texts share */
    struct ptx_map scopes[PTX_MAX_SCOPES];
    unsigned depth;        /* open scopes */
    struct ptx_map labels; /* of the function, by name; may be used before they are defined */
    struct ptx_target_fixup *target_fixups;
    struct ptx_function *function;
    uint32_t predicate_offset, predicates_left; /* where the next predicate goes */
    uint32_t carry;                             /* predicate of the carry flag; 0 = not used yet */
    struct ptx_map constants;
    void *scratch; /* of passes over a function */
    size_t scratch_bytes;
    struct ptx_map type_names, mod_names, sreg_names, insn_names; /* values: index + 1 */
    struct ptx_stmt stmt;
};

/* Errors. "line N: ..." */
_Noreturn void ptx_parse_fail(struct ptx_parser *p, unsigned line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
_Noreturn void ptx_parse_unsupported(struct ptx_parser *p, unsigned line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
_Noreturn void ptx_parse_out_of_memory(struct ptx_parser *p);
void *ptx_parse_take(struct ptx_parser *p, size_t bytes); /* arena memory, never NULL */

/* Tokens. */
void ptx_parse_next(struct ptx_parser *p);
bool ptx_parse_is_punct(const struct ptx_parser *p, char punct);
bool ptx_parse_accept(struct ptx_parser *p, char punct);
void ptx_parse_expect(struct ptx_parser *p, char punct);
bool ptx_parse_is_dotted(const struct ptx_parser *p, const char *text);
uint64_t ptx_parse_unsigned(struct ptx_parser *p, uint64_t max, const char *what);
/* [-] integer, as two's complement. */
uint64_t ptx_parse_integer(struct ptx_parser *p);
enum ptx_type ptx_parse_type(struct ptx_parser *p); /* a .type token */

/* Symbols. */
struct ptx_symbol *ptx_parse_find(struct ptx_parser *p, const char *name, size_t bytes);
struct ptx_symbol *ptx_parse_declare(struct ptx_parser *p, const char *name, size_t bytes, enum ptx_symbol_kind kind);
struct ptx_symbol *ptx_parse_label(struct ptx_parser *p, const char *name, size_t bytes);

/* The frame of the current function. */
uint32_t ptx_frame_take(struct ptx_parser *p, uint64_t bytes);
/* Operands: predicates by place (log2 0), registers by number. */
uint32_t ptx_frame_register(struct ptx_parser *p, unsigned log2);
uint32_t ptx_frame_registers(struct ptx_parser *p, unsigned log2, uint64_t count);
uint32_t ptx_frame_predicate(struct ptx_parser *p);

/* Directives that both module and function level have. */
#define PTX_MAX_DIMENSIONS 8
struct ptx_declarator {
    const char *name;
    size_t name_bytes;
    enum ptx_type type;
    uint32_t align;
    uint64_t count;         /* elements */
    bool is_array, is_open; /* open: [] */
    unsigned dimensions, vector;
    uint64_t dims[PTX_MAX_DIMENSIONS]; /* an open one is 0 */
    uint32_t element_bytes;            /* as in struct ptx_symbol */
    enum ptx_reference reference;
    unsigned line;
};
/* After the space: [.align N] [.v2] .type [.ptr ...] name[dims]; limit on bytes. */
void ptx_parse_declarator(struct ptx_parser *p, struct ptx_declarator *out);
uint64_t ptx_declarator_bytes(struct ptx_parser *p, const struct ptx_declarator *d, uint64_t limit);
void ptx_parse_shared(struct ptx_parser *p, bool is_extern);
void ptx_parse_global(struct ptx_parser *p, bool is_const, bool is_extern);
bool ptx_parse_skip_dwarf(struct ptx_parser *p); /* a line that begins with @@DWARF, if this is one */
void ptx_parse_skip_line(struct ptx_parser *p);  /* .loc, .file: to the end of the line */
/* .callprototype and .calltargets, behind their label; the token is the directive. */
void ptx_parse_prototype(struct ptx_parser *p, const char *name, size_t bytes);
void ptx_parse_call_targets(struct ptx_parser *p, const char *name, size_t bytes);
void ptx_parse_alias(struct ptx_parser *p); /* .alias name, target; */
void ptx_parse_pragma(struct ptx_parser *p);
void ptx_parse_body(struct ptx_parser *p); /* a function's { ... } */

/* Linking. Both look-ups return NULL where the text's own names decide, as always without linking. */
struct ptx_symbol *ptx_link_global(struct ptx_parser *p, const char *name, size_t bytes);
struct ptx_function *ptx_link_function(struct ptx_parser *p, const char *name, size_t bytes, bool is_entry);
/* The symbol of the text is from now on what other texts mean by its name, if its linkage says so. */
void ptx_link_publish(struct ptx_parser *p, const char *name, size_t bytes, struct ptx_symbol *symbol);
/* A variable's definition: false = another one counts. */
bool ptx_link_defines(struct ptx_parser *p, const char *name, size_t bytes, struct ptx_symbol *symbol, uint64_t size);
void ptx_link_finish(struct ptx_parser *p); /* after the last text */
void ptx_parse_text(struct ptx_parser *p);  /* a whole module */

/* Instructions. */
void ptx_parse_init_names(struct ptx_parser *p);
/* Fills in type_names, mod_names, sreg_names and insn_names: shared, not to be added to. Thread-safe. */
void ptx_names_give(struct ptx_parser *p);
/* An entry of one of the name tables: its index, or -1. */
int ptx_parse_name(const struct ptx_map *names, const char *text, size_t bytes);
void ptx_parse_add_name(struct ptx_parser *p, struct ptx_map *names, const char *text, unsigned index);
/* From the name on, which the caller has read; NULL = at a guard. */
void ptx_parse_instruction(struct ptx_parser *p, const struct ptx_token *name);
void ptx_lower(struct ptx_parser *p);

#endif
