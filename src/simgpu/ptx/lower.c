/* The table of instructions and what all lowering functions share. */
#include "simgpu/ptx/lower.h"

#include <stdlib.h>
#include <string.h>

#define ROW(name, lowering, min, max, ...)                                                                             \
    {                                                                                                                  \
        name, ptx_lower_##lowering, min, max, __VA_ARGS__                                                              \
    }
/* vadd, vadd2, vadd4 */
#define VIDEO(name, op)                                                                                                \
    ROW("v" name, video, 3, 4, PTX_VIDEO_##op, .parts = true),                                                         \
        ROW("v" name "2", video_simd, 4, 4, PTX_VIDEO_##op, 2, .parts = true),                                         \
        ROW("v" name "4", video_simd, 4, 4, PTX_VIDEO_##op, 4, .parts = true)
static const struct ptx_descriptor table[] = {
    ROW("add", int_or_float, 3, 3, PTX_OP_ADD_16, .all_types = true),
    ROW("sub", int_or_float, 3, 3, PTX_OP_SUB_16, .all_types = true),
    ROW("addc", carry, 3, 3, 0),
    ROW("subc", carry, 3, 3, 1),
    ROW("madc", carry, 4, 4, 2),
    ROW("mul", mul, 3, 3, 0, .all_types = true),
    ROW("mad", mad, 4, 4, 0),
    ROW("fma", fma, 4, 4, 0, .all_types = true),
    ROW("mul24", mul24, 3, 3, 0),
    ROW("mad24", mul24, 4, 4, 1),
    ROW("div", div, 3, 3, PTX_OP_DIV_U_16, PTX_OP_DIV_S_16),
    ROW("rem", rem, 3, 3, PTX_OP_REM_U_16, PTX_OP_REM_S_16),
    ROW("min", minmax, 3, 3, PTX_OP_MIN_U_16, PTX_OP_MIN_S_16, .all_types = true),
    ROW("max", minmax, 3, 3, PTX_OP_MAX_U_16, PTX_OP_MAX_S_16, .all_types = true),
    ROW("neg", unary, 2, 2, PTX_OP_NEG_16, .all_types = true),
    ROW("abs", unary, 2, 2, PTX_OP_ABS_16, .all_types = true),
    ROW("and", logic, 3, 3, PTX_OP_AND_16, PTX_OP_PAND),
    ROW("or", logic, 3, 3, PTX_OP_OR_16, PTX_OP_POR),
    ROW("xor", logic, 3, 3, PTX_OP_XOR_16, PTX_OP_PXOR),
    ROW("not", logic, 2, 2, PTX_OP_NOT_16, PTX_OP_PNOT),
    ROW("cnot", logic, 2, 2, PTX_OP_CNOT_16),
    ROW("shl", shift, 3, 3, PTX_OP_SHL_16),
    ROW("shr", shift, 3, 3, PTX_OP_SHR_U_16, PTX_OP_SHR_S_16),
    ROW("popc", bits, 2, 2, PTX_OP_POPC_32),
    ROW("clz", bits, 2, 2, PTX_OP_CLZ_32),
    ROW("brev", bits, 2, 2, PTX_OP_LANE, PTX_LANE_brev),
    ROW("bfind", bits, 2, 2, PTX_OP_LANE, PTX_LANE_bfind),
    ROW("bfe", bfe, 4, 4, 0),
    ROW("bfi", bfi, 5, 5, 0),
    ROW("prmt", prmt, 4, 4, 0),
    ROW("shf", shf, 4, 4, 0),
    ROW("sad", sad, 4, 4, 0),
    ROW("lop3", lop3, 5, 6, 0, .pair = true),
    ROW("dp4a", dp4a, 4, 4, 0),
    ROW("dp2a", dp4a, 4, 4, 1),
    ROW("bmsk", bit_range, 3, 3, PTX_LANE_bmsk),
    ROW("szext", bit_range, 3, 3, PTX_LANE_szext),
    ROW("fns", fns, 4, 4, 0),
    ROW("setp", setp, 3, 4, 0, .pair = true, .all_types = true),
    ROW("set", set, 3, 4, 0, .all_types = true),
    ROW("selp", selp, 4, 4, 0),
    ROW("slct", slct, 4, 4, 0),
    ROW("rcp", float_unary, 2, 2, PTX_OP_RCP_F32),
    ROW("sqrt", float_unary, 2, 2, PTX_OP_SQRT_F32),
    ROW("rsqrt", float_unary, 2, 2, PTX_OP_RSQRT_F32),
    ROW("sin", float_unary, 2, 2, PTX_OP_SIN_F32),
    ROW("cos", float_unary, 2, 2, PTX_OP_COS_F32),
    ROW("lg2", float_unary, 2, 2, PTX_OP_LG2_F32),
    ROW("ex2", float_unary, 2, 2, PTX_OP_EX2_F32, .all_types = true),
    ROW("tanh", float_unary, 2, 2, PTX_OP_TANH_F32, .all_types = true),
    ROW("copysign", copysign, 3, 3, 0),
    ROW("testp", testp, 2, 2, 0),
    ROW("cvt", cvt, 2, 4, 0, .all_types = true),
    VIDEO("add", ADD),
    VIDEO("sub", SUB),
    VIDEO("absdiff", ABSDIFF),
    VIDEO("min", MIN),
    VIDEO("max", MAX),
    VIDEO("set", SET),
    ROW("vavrg2", video_simd, 4, 4, PTX_VIDEO_AVRG, 2, .parts = true),
    ROW("vavrg4", video_simd, 4, 4, PTX_VIDEO_AVRG, 4, .parts = true),
    ROW("vshl", video, 3, 4, PTX_VIDEO_SHL, .parts = true),
    ROW("vshr", video, 3, 4, PTX_VIDEO_SHR, .parts = true),
    ROW("vmad", vmad, 4, 4, 0, .parts = true),
    ROW("mov", mov, 2, 2, 0, .all_types = true),
    ROW("ld", ld, 2, 3, 0, .all_types = true),
    ROW("ldu", ld, 2, 3, 1, .all_types = true),
    ROW("st", st, 2, 3, 0, .all_types = true),
    ROW("atom", atom, 3, 5, 0, .all_types = true),
    ROW("red", atom, 2, 3, 1, .all_types = true),
    ROW("cvta", cvta, 2, 2, 0),
    ROW("isspacep", isspacep, 2, 2, 0),
    ROW("prefetch", prefetch, 1, 1, 0),
    ROW("prefetchu", prefetch, 1, 1, 0),
    ROW("applypriority", prefetch, 2, 2, 1),
    ROW("discard", prefetch, 2, 2, 1),
    ROW("createpolicy", createpolicy, 1, 4, 0),
    ROW("membar", fence, 0, 0, 0),
    ROW("fence", fence, 0, 0, 1),
    ROW("bra", bra, 1, 1, 0),
    ROW("brx", brx, 2, 2, 0),
    ROW("call", call, 1, 2, 0),
    ROW("ret", exit, 0, 0, PTX_OP_RET),
    ROW("exit", exit, 0, 0, PTX_OP_EXIT),
    ROW("trap", trap, 0, 0, 0),
    ROW("brkpt", trap, 0, 0, 0),
    ROW("bar", bar, 0, 4, 0),
    ROW("barrier", bar, 0, 4, 0),
    ROW("shfl", shfl, 4, 5, 0, .pair = true),
    ROW("vote", vote, 2, 3, 0),
    ROW("activemask", activemask, 1, 1, 0),
    ROW("match", match, 3, 3, 0, .pair = true),
    ROW("nanosleep", nanosleep, 1, 1, 0),
    ROW("redux", redux, 3, 3, 0),
    ROW("elect", elect, 2, 2, 0, .pair = true),
    ROW("pmevent", hint, 1, 1, 0),
    ROW("setmaxnreg", hint, 1, 1, 0),
    ROW("griddepcontrol", hint, 0, 0, 0),
    ROW("cp", cp, 0, 5, 0),
    ROW("mbarrier", mbarrier, 1, 4, 0),
    ROW("mma", mma, 4, 4, 0, .all_types = true),
    ROW("wmma", wmma, 2, 4, 0, .all_types = true),
    ROW("ldmatrix", ldmatrix, 2, 2, 0),
    ROW("stmatrix", stmatrix, 2, 2, 0),
    ROW("movmatrix", movmatrix, 2, 2, 0),
    ROW("tex", tex, 2, 3, 0, .coordinates = true),
    ROW("tld4", tex, 2, 2, 1, .coordinates = true),
    ROW("txq", texture_query, 2, 3, 0),
    ROW("suld", surface, 2, 2, 0, .coordinates = true),
    ROW("sust", surface, 2, 2, 1, .coordinates = true),
    ROW("suq", texture_query, 2, 2, 1),
};

static const struct {
    const char *name;
    enum ptx_sreg sreg;
} sregs[] = {
    {"%tid.x", PTX_SREG_TID_X},
    {"%tid.y", PTX_SREG_TID_Y},
    {"%tid.z", PTX_SREG_TID_Z},
    {"%tid.w", PTX_SREG_ZERO},
    {"%ntid.x", PTX_SREG_NTID_X},
    {"%ntid.y", PTX_SREG_NTID_Y},
    {"%ntid.z", PTX_SREG_NTID_Z},
    {"%ctaid.x", PTX_SREG_CTAID_X},
    {"%ctaid.y", PTX_SREG_CTAID_Y},
    {"%ctaid.z", PTX_SREG_CTAID_Z},
    {"%ctaid.w", PTX_SREG_ZERO},
    {"%nctaid.x", PTX_SREG_NCTAID_X},
    {"%nctaid.y", PTX_SREG_NCTAID_Y},
    {"%nctaid.z", PTX_SREG_NCTAID_Z},
    {"%laneid", PTX_SREG_LANEID},
    {"%warpid", PTX_SREG_WARPID},
    {"%nwarpid", PTX_SREG_NWARPID},
    {"%smid", PTX_SREG_SMID},
    {"%nsmid", PTX_SREG_NSMID},
    {"%gridid", PTX_SREG_GRIDID},
    {"%lanemask_eq", PTX_SREG_LANEMASK_EQ},
    {"%lanemask_le", PTX_SREG_LANEMASK_LE},
    {"%lanemask_lt", PTX_SREG_LANEMASK_LT},
    {"%lanemask_ge", PTX_SREG_LANEMASK_GE},
    {"%lanemask_gt", PTX_SREG_LANEMASK_GT},
    {"%clock", PTX_SREG_CLOCK},
    {"%clock_hi", PTX_SREG_CLOCK_HI},
    {"%clock64", PTX_SREG_CLOCK64},
    {"%globaltimer", PTX_SREG_GLOBALTIMER},
    {"%globaltimer_lo", PTX_SREG_GLOBALTIMER_LO},
    {"%globaltimer_hi", PTX_SREG_GLOBALTIMER_HI},
    {"%dynamic_smem_size", PTX_SREG_DYNAMIC_SMEM},
    {"%total_smem_size", PTX_SREG_TOTAL_SMEM},
};

const char *ptx_lower_instruction(size_t i)
{
    return i < sizeof(table) / sizeof(table[0]) ? table[i].name : NULL;
}

void ptx_lower_init_names(struct ptx_parser *p)
{
    for (unsigned i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        ptx_parse_add_name(p, &p->insn_names, table[i].name, i);
    for (unsigned i = 0; i < sizeof(sregs) / sizeof(sregs[0]); i++)
        ptx_parse_add_name(p, &p->sreg_names, sregs[i].name, sregs[i].sreg);
}

static int shown(const struct ptx_stmt *s)
{
    size_t bytes = s->text_bytes;
    while (bytes && (s->text[bytes - 1] == ' ' || s->text[bytes - 1] == '\t' || s->text[bytes - 1] == '\n'))
        bytes--;
    return (int)(bytes < 300 ? bytes : 300);
}

void ptx_lower_unsupported(struct ptx_parser *p, const char *why)
{
    const struct ptx_stmt *s = &p->stmt;
    if (why)
        ptx_parse_unsupported(p, s->line, "unsupported instruction '%.*s' (%s)", shown(s), s->text, why);
    ptx_parse_unsupported(p, s->line, "unsupported instruction '%.*s'", shown(s), s->text);
}

void ptx_lower_fail(struct ptx_parser *p, const char *what)
{
    ptx_parse_fail(p, p->stmt.line, "%s in '%.*s'", what, shown(&p->stmt), p->stmt.text);
}

void ptx_lower(struct ptx_parser *p)
{
    struct ptx_stmt *s = &p->stmt;
    const struct ptx_descriptor *d = &table[s->insn];
    if (s->operand_count < d->min_operands || s->operand_count > d->max_operands)
        ptx_lower_fail(p, "wrong number of operands");
    for (unsigned i = 0; i < s->type_count; i++)
        if (!d->all_types && (s->types[i] >= PTX_F16X2 || s->types[i] == PTX_B128))
            ptx_lower_unsupported(p, NULL);
    for (unsigned i = 0; i < s->operand_count; i++)
        if ((s->operands[i].second && (i || !d->pair)) || (s->operands[i].part && !d->parts) ||
            (s->operands[i].coordinates && !d->coordinates))
            ptx_lower_unsupported(p, "operands");
    d->lower(p, d);
    if (s->mods[0] | s->mods[1] | s->mods[2] | s->mods[3])
        ptx_lower_unsupported(p, NULL);
}

bool ptx_take_mod(struct ptx_parser *p, enum ptx_mod mod)
{
    uint64_t bit = UINT64_C(1) << (mod % 64), *word = &p->stmt.mods[mod / 64];
    bool there = *word & bit;
    *word &= ~bit;
    return there;
}

enum ptx_type ptx_one_type(struct ptx_parser *p)
{
    if (p->stmt.type_count != 1)
        ptx_lower_unsupported(p, NULL);
    return p->stmt.types[0];
}

enum ptx_round ptx_take_round(struct ptx_parser *p, bool *given_out)
{
    enum ptx_round round = PTX_ROUND_RN;
    unsigned given = ptx_take_mod(p, PTX_M_RN);
    for (int i = PTX_M_RZ; i <= PTX_M_RP; i++) {
        if (ptx_take_mod(p, (enum ptx_mod)i)) {
            round = (enum ptx_round)(i - PTX_M_RN);
            given++;
        }
    }
    if (given > 1)
        ptx_lower_fail(p, "two rounding modes");
    if (given_out)
        *given_out = given;
    return round;
}

struct ptx_insn *ptx_emit(struct ptx_parser *p, int op)
{
    struct ptx_module *m = p->module;
    if (m->code_count >= UINT32_MAX / 2 ||
        ptx_grow((void **)&m->code, m->code_count, &m->code_capacity, sizeof(*m->code)))
        ptx_parse_out_of_memory(p);
    struct ptx_insn *in = &m->code[m->code_count++];
    *in = (struct ptx_insn){
        .op = (uint16_t)op, .guard = p->stmt.guard, .guard_negated = p->stmt.guard_negated, .line = p->stmt.line};
    return in;
}

uint32_t ptx_temp(struct ptx_parser *p, unsigned log2)
{
    return ptx_frame_register(p, log2);
}

static uint32_t take_constant(struct ptx_parser *p, size_t bytes)
{
    struct ptx_module *m = p->module;
    size_t at = (m->consts_bytes + 63) & ~(size_t)63;
    if (at + bytes > m->consts_capacity) {
        size_t capacity = m->consts_capacity ? m->consts_capacity * 2 : 16384;
        void *bigger;
        if (capacity > (1u << 30) || posix_memalign(&bigger, 64, capacity))
            ptx_parse_out_of_memory(p);
        if (m->consts_bytes)
            memcpy(bigger, m->consts, m->consts_bytes);
        free(m->consts);
        m->consts = bigger;
        m->consts_capacity = capacity;
    }
    memset(m->consts + m->consts_bytes, 0, at + bytes - m->consts_bytes);
    m->consts_bytes = at + bytes;
    return (uint32_t)at;
}

static void spread(uint8_t *at, unsigned log2, uint64_t bits)
{
    if (!log2) {
        uint32_t mask = bits & 1 ? UINT32_MAX : 0;
        memcpy(at, &mask, 4);
        return;
    }
    for (unsigned i = 0; i < PTX_LANES; i++)
        memcpy(at + (i << log2), &bits, (size_t)1 << log2); /* little endian: the low bytes */
}

/* Constants are shared within the module: the key is what identifies one. */
struct constant_key {
    uint64_t bits;
    uint32_t log2, global; /* global + 1 for addresses */
};

static uint32_t keyed_constant(struct ptx_parser *p, struct constant_key key, bool *is_new_out)
{
    uintptr_t found = (uintptr_t)ptx_map_find(&p->constants, (const char *)&key, sizeof(key));
    *is_new_out = !found;
    if (found)
        return (uint32_t)(found - 1) | PTX_CONST;
    uint32_t at = take_constant(p, key.log2 ? (size_t)PTX_LANES << key.log2 : 4);
    struct constant_key *copy = ptx_parse_take(p, sizeof(*copy));
    *copy = key;
    if (ptx_map_add(&p->constants, &p->module->arena, (char *)copy, sizeof(*copy), (void *)((uintptr_t)at + 1)) < 0)
        ptx_parse_out_of_memory(p);
    return at | PTX_CONST;
}

uint32_t ptx_constant(struct ptx_parser *p, unsigned log2, uint64_t bits)
{
    if (log2 == 1)
        bits &= 0xffff;
    else if (log2 == 2)
        bits &= 0xffffffff;
    bool is_new;
    uint32_t at = keyed_constant(p, (struct constant_key){.bits = bits, .log2 = log2}, &is_new);
    if (is_new)
        spread(p->module->consts + (at & ~PTX_CONST), log2, bits);
    return at;
}

/* The address of a .global or .const variable: its value is written by ptx_module_link. */
static uint32_t address_constant(struct ptx_parser *p, uint32_t global, uint64_t addend)
{
    struct ptx_module *m = p->module;
    bool is_new;
    uint32_t at = keyed_constant(p, (struct constant_key){addend, 3, global + 1}, &is_new);
    if (!is_new)
        return at;
    if (ptx_grow((void **)&m->const_relocs, m->const_reloc_count, &m->const_reloc_capacity, sizeof(*m->const_relocs)))
        ptx_parse_out_of_memory(p);
    m->const_relocs[m->const_reloc_count++] = (struct ptx_const_reloc){at & ~PTX_CONST, global, addend};
    return at;
}

void ptx_note_shared(struct ptx_parser *p, uint32_t variable)
{
    for (struct ptx_shared_use *use = p->function->shared_uses; use; use = use->next)
        if (use->variable == variable)
            return;
    struct ptx_shared_use *use = ptx_parse_take(p, sizeof(*use));
    use->variable = variable;
    use->next = p->function->shared_uses;
    p->function->shared_uses = use;
}

static uint64_t float_bits(struct ptx_parser *p, const struct ptx_operand *o, unsigned log2, enum ptx_type type)
{
    uint64_t bits = o->value;
    double number = o->number;
    if (o->bits_bytes == 1u << log2)
        return bits;
    if (type != PTX_F32 && type != PTX_F64)
        ptx_lower_fail(p, "a constant of another type");
    if (o->bits_bytes == 8) {
        memcpy(&number, &bits, 8);
    } else if (o->bits_bytes == 4) {
        float single;
        memcpy(&single, &bits, 4);
        number = single;
    }
    if (type == PTX_F64) {
        memcpy(&bits, &number, 8);
    } else {
        float single = (float)number;
        bits = 0;
        memcpy(&bits, &single, 4);
    }
    return bits;
}

static uint32_t source_symbol(struct ptx_parser *p, const struct ptx_operand *o, unsigned log2)
{
    struct ptx_symbol *symbol = o->symbol;
    if (!symbol)
        ptx_parse_fail(p, p->stmt.line, "unknown name '%.*s'", (int)(o->name_bytes < 200 ? o->name_bytes : 200),
                       o->name);
    if (symbol->kind == PTX_SYM_GLOBAL) {
        if (log2 != 3)
            ptx_lower_fail(p, "an address needs 64 bits");
        return address_constant(p, symbol->index, o->value);
    }
    if (symbol->kind == PTX_SYM_FUNCTION && log2 == 3 && !symbol->function->info.is_entry && !o->value) {
        symbol->function->address_taken = true;
        return ptx_constant(p, log2, ptx_function_address(symbol->function));
    }
    uint32_t at;
    if (symbol->kind == PTX_SYM_SHARED && log2 >= 2) {
        ptx_note_shared(p, symbol->index);
        at = ptx_temp(p, log2);
        struct ptx_insn *in = ptx_emit(p, PTX_OP_SHARED_ADDR);
        in->o[0] = at;
        in->o[1] = symbol->index;
        in->aux = log2;
        in->imm = o->value;
        return at;
    }
    if (symbol->kind == PTX_SYM_LOCAL && log2 >= 2) {
        uint32_t base = ptx_temp(p, log2), add = ptx_constant(p, log2, symbol->offset + o->value);
        struct ptx_insn *in = ptx_emit(p, log2 == 3 ? PTX_OP_CV_u32_u64_u32 : PTX_OP_MOV_32);
        in->o[0] = base;
        in->o[1] = offsetof(struct ptx_frame, local_base);
        at = ptx_temp(p, log2);
        in = ptx_emit(p, log2 == 3 ? PTX_OP_ADD_64 : PTX_OP_ADD_32);
        in->o[0] = at;
        in->o[1] = base;
        in->o[2] = add;
        return at;
    }
    if (symbol->kind == PTX_SYM_PARAM && symbol->is_formal && log2 >= 2)
        return ptx_constant(p, log2, symbol->offset + o->value);
    ptx_lower_unsupported(p, "this name is no value");
}

static uint32_t source_sreg(struct ptx_parser *p, enum ptx_sreg sreg, unsigned log2)
{
    bool wide = sreg == PTX_SREG_CLOCK64 || sreg == PTX_SREG_GLOBALTIMER || sreg == PTX_SREG_GRIDID;
    if (log2 != (wide ? 3 : 2) && !(sreg == PTX_SREG_GRIDID && log2 == 2))
        ptx_lower_unsupported(p, "size of a special register");
    uint32_t at = ptx_temp(p, log2);
    struct ptx_insn *in = ptx_emit(p, PTX_OP_SREG);
    in->o[0] = at;
    in->o[1] = log2;
    in->aux = sreg;
    return at;
}

uint32_t ptx_source(struct ptx_parser *p, const struct ptx_operand *o, unsigned log2, enum ptx_type type)
{
    if (o->second)
        ptx_lower_fail(p, "a pair as source");
    switch (o->kind) {
    case PTX_OPERAND_REG:
        if (o->log2 != log2 || o->negated)
            ptx_lower_fail(p, o->negated ? "a negated operand" : "a register of another size");
        return o->reg;
    case PTX_OPERAND_INT:
        if (ptx_type_float(type))
            ptx_lower_fail(p, "an integer constant for a float");
        if (!log2 && o->value + 1 > 2)
            ptx_lower_fail(p, "a predicate constant that is not 0 or 1");
        return ptx_constant(p, log2, o->value);
    case PTX_OPERAND_FLOAT:
        if (log2 < 2)
            ptx_lower_fail(p, "a constant of another type");
        return ptx_constant(p, log2, float_bits(p, o, log2, type));
    case PTX_OPERAND_SREG: return source_sreg(p, o->sreg, log2);
    case PTX_OPERAND_SYMBOL: return source_symbol(p, o, log2);
    default: ptx_lower_fail(p, "an operand of the wrong kind");
    }
}

uint32_t ptx_result(struct ptx_parser *p, const struct ptx_operand *o, unsigned log2)
{
    if (o->kind == PTX_OPERAND_SINK)
        return ptx_temp(p, log2);
    if (o->kind != PTX_OPERAND_REG || o->negated || o->log2 != log2)
        ptx_lower_fail(p, "a result of another size or kind");
    return o->reg;
}

uint32_t ptx_predicate(struct ptx_parser *p, const struct ptx_operand *o)
{
    struct ptx_operand plain = *o;
    plain.negated = false;
    uint32_t at = ptx_source(p, &plain, 0, PTX_PRED);
    if (!o->negated)
        return at;
    uint32_t not = ptx_temp(p, 0);
    struct ptx_insn *in = ptx_emit(p, PTX_OP_PNOT);
    in->o[0] = not ;
    in->o[1] = at;
    return not ;
}
