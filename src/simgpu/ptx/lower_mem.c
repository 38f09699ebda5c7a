/* Moves, loads, stores, atomics, address conversions. */
#include "simgpu/ptx/lower.h"

#include <string.h>

static void mov_op(struct ptx_parser *p, int op, uint32_t result, uint32_t a, uint32_t b)
{
    struct ptx_insn *in = ptx_emit(p, op);
    in->o[0] = result;
    in->o[1] = a;
    in->o[2] = b;
}

/* mov.b64 %rd, {%r1, %r2}: low element first. */
static void pack(struct ptx_parser *p, const struct ptx_operand *to, const struct ptx_operand *from, unsigned log2)
{
    unsigned part = from->count == 4 ? log2 - 2 : log2 - 1;
    if ((from->count != 2 && from->count != 4) || log2 < 2 || part < 1)
        ptx_lower_unsupported(p, "vector");
    uint32_t parts[4] = {0};
    for (unsigned i = 0; i < from->count; i++)
        parts[i] = ptx_source(p, &from->elements[i], part, PTX_NONE);
    uint32_t result = ptx_result(p, to, log2);
    int half = log2 == 3 ? PTX_OP_PACK_64 : PTX_OP_PACK_32;
    if (from->count == 4) {
        uint32_t low = ptx_temp(p, 2), high = ptx_temp(p, 2);
        mov_op(p, PTX_OP_PACK_32, low, parts[0], parts[1]);
        mov_op(p, PTX_OP_PACK_32, high, parts[2], parts[3]);
        parts[0] = low;
        parts[1] = high;
    }
    mov_op(p, half, result, parts[0], parts[1]);
}

static void unpack(struct ptx_parser *p, const struct ptx_operand *to, const struct ptx_operand *from, unsigned log2)
{
    unsigned part = to->count == 4 ? log2 - 2 : log2 - 1;
    if ((to->count != 2 && to->count != 4) || log2 < 2 || part < 1)
        ptx_lower_unsupported(p, "vector");
    uint32_t a = ptx_source(p, from, log2, PTX_NONE);
    uint32_t parts[4] = {0};
    for (unsigned i = 0; i < to->count; i++)
        parts[i] = ptx_result(p, &to->elements[i], part);
    if (to->count == 2) {
        /* The source may be read after the first result is written: they differ in size, so they are not the same. */
        mov_op(p, log2 == 3 ? PTX_OP_LOW_64 : PTX_OP_LOW_32, parts[0], a, 0);
        mov_op(p, log2 == 3 ? PTX_OP_HIGH_64 : PTX_OP_HIGH_32, parts[1], a, 0);
        return;
    }
    uint32_t low = ptx_temp(p, 2), high = ptx_temp(p, 2);
    mov_op(p, PTX_OP_LOW_64, low, a, 0);
    mov_op(p, PTX_OP_HIGH_64, high, a, 0);
    mov_op(p, PTX_OP_LOW_32, parts[0], low, 0);
    mov_op(p, PTX_OP_HIGH_32, parts[1], low, 0);
    mov_op(p, PTX_OP_LOW_32, parts[2], high, 0);
    mov_op(p, PTX_OP_HIGH_32, parts[3], high, 0);
}

void ptx_lower_mov(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    (void)d;
    enum ptx_type type = ptx_one_type(p);
    unsigned log2 = ptx_type_log2(type);
    const struct ptx_operand *to = ptx_operand_at(p, 0), *from = ptx_operand_at(p, 1);
    if (type == PTX_PRED) {
        uint32_t a = ptx_source(p, from, 0, type);
        mov_op(p, PTX_OP_PMOV, ptx_result(p, to, 0), a, 0);
        return;
    }
    if (!log2 || type == PTX_F16)
        ptx_lower_unsupported(p, NULL);
    if (from->kind == PTX_OPERAND_VECTOR) {
        pack(p, to, from, log2);
    } else if (to->kind == PTX_OPERAND_VECTOR) {
        unpack(p, to, from, log2);
    } else {
        uint32_t a = ptx_source(p, from, log2, type);
        mov_op(p, PTX_OP_MOV_16 + (int)log2 - 1, ptx_result(p, to, log2), a, 0);
    }
}

static enum ptx_space take_space(struct ptx_parser *p, bool *is_const_out)
{
    bool is_const = ptx_take_mod(p, PTX_M_CONST);
    enum ptx_space space = is_const ? PTX_SPACE_GLOBAL : PTX_SPACE_GENERIC;
    if (ptx_take_mod(p, PTX_M_GLOBAL))
        space = PTX_SPACE_GLOBAL;
    else if (ptx_take_mod(p, PTX_M_SHARED) || ptx_take_mod(p, PTX_M_SHARED_CTA))
        space = PTX_SPACE_SHARED;
    else if (ptx_take_mod(p, PTX_M_LOCAL))
        space = PTX_SPACE_LOCAL;
    else if (ptx_take_mod(p, PTX_M_PARAM))
        space = p->function->info.is_entry ? PTX_SPACE_PARAM : PTX_SPACE_FRAME;
    *is_const_out = is_const;
    return space;
}

/* .weak .volatile .relaxed.scope .acquire.scope .release.scope */
static enum ptx_order take_order(struct ptx_parser *p)
{
    enum ptx_order order = PTX_ORDER_WEAK;
    unsigned given = ptx_take_mod(p, PTX_M_WEAK);
    if (ptx_take_mod(p, PTX_M_VOLATILE))
        given++, order = PTX_ORDER_RELAXED;
    if (ptx_take_mod(p, PTX_M_RELAXED))
        given++, order = PTX_ORDER_RELAXED;
    if (ptx_take_mod(p, PTX_M_ACQUIRE))
        given++, order = PTX_ORDER_ACQ_REL;
    if (ptx_take_mod(p, PTX_M_RELEASE))
        given++, order = PTX_ORDER_ACQ_REL;
    if (ptx_take_mod(p, PTX_M_ACQ_REL))
        given++, order = PTX_ORDER_ACQ_REL;
    unsigned scopes = 0;
    for (int m = PTX_M_CTA; m <= PTX_M_SYS; m++)
        scopes += ptx_take_mod(p, (enum ptx_mod)m);
    if (given > 1 || scopes > 1)
        ptx_lower_unsupported(p, NULL);
    return order;
}

/* Where a parameter's or call argument's bytes are. */
static void param_address(struct ptx_parser *p, const struct ptx_operand *o, enum ptx_space *space, uint32_t bytes,
                          struct ptx_insn *out)
{
    const struct ptx_symbol *symbol = o->symbol;
    if (*space != PTX_SPACE_PARAM && *space != PTX_SPACE_FRAME)
        ptx_lower_unsupported(p, "a parameter in another space");
    if (o->value > symbol->bytes || symbol->bytes - o->value < bytes || o->value % bytes)
        ptx_lower_fail(p, "a parameter offset out of range or misaligned");
    if (symbol->is_formal && p->function->info.is_entry) {
        *space = PTX_SPACE_PARAM;
        out->imm = symbol->offset + o->value;
        return;
    }
    *space = PTX_SPACE_FRAME;
    if (symbol->is_formal) {
        uint32_t stride = (p->function->formal_bytes + 15) & ~15u;
        out->o[5] = p->function->formal_offset;
        out->imm = (symbol->offset + o->value) | (uint64_t)stride << 32;
    } else {
        out->o[5] = symbol->offset;
        out->imm = o->value | (uint64_t)symbol->stride << 32;
    }
}

/* Fills o[4], o[5] and imm of `out` for [operand]; may change the space (parameters) and emit. */
void ptx_lower_mem_address(struct ptx_parser *p, const struct ptx_operand *o, enum ptx_space *space, bool is_const,
                           uint32_t bytes, struct ptx_insn *out, bool *addr32_out)
{
    (void)is_const;
    if (o->kind != PTX_OPERAND_ADDRESS)
        ptx_lower_fail(p, "no address");
    out->imm = o->value;
    *addr32_out = false;
    if (o->has_base) {
        *addr32_out = o->log2 == 2;
        if (o->log2 < 2 || (o->log2 == 2 && (*space == PTX_SPACE_GLOBAL || *space == PTX_SPACE_GENERIC)))
            ptx_lower_fail(p, "an address of another size");
        out->o[4] = o->reg;
        if (*space == PTX_SPACE_FRAME) {
            if (o->value > UINT32_MAX)
                ptx_lower_unsupported(p, "negative parameter offset");
            out->o[5] = p->function->formal_offset;
            out->imm |= (uint64_t)((p->function->formal_bytes + 15) & ~15u) << 32;
        }
        return;
    }
    if (!o->symbol) {
        if (*space == PTX_SPACE_FRAME || *space == PTX_SPACE_PARAM)
            ptx_lower_unsupported(p, "parameter without name");
        return;
    }
    switch (o->symbol->kind) {
    case PTX_SYM_GLOBAL: {
        if (*space != PTX_SPACE_GLOBAL && *space != PTX_SPACE_GENERIC)
            ptx_lower_fail(p, "a variable of another space");
        struct ptx_operand base = {.kind = PTX_OPERAND_SYMBOL, .symbol = o->symbol};
        out->o[4] = ptx_source(p, &base, 3, PTX_U64);
        return;
    }
    case PTX_SYM_SHARED:
        if (*space != PTX_SPACE_SHARED)
            ptx_lower_fail(p, "a variable of another space");
        ptx_note_shared(p, o->symbol->index);
        out->o[5] = o->symbol->index + 1;
        return;
    case PTX_SYM_LOCAL:
        if (*space != PTX_SPACE_LOCAL)
            ptx_lower_fail(p, "a variable of another space");
        out->o[4] = offsetof(struct ptx_frame, local_base);
        out->imm += o->symbol->offset;
        *addr32_out = true;
        return;
    case PTX_SYM_PARAM: param_address(p, o, space, bytes, out); return;
    default: ptx_lower_fail(p, "no address");
    }
}

static unsigned take_vector(struct ptx_parser *p)
{
    if (ptx_take_mod(p, PTX_M_V2))
        return 1;
    return ptx_take_mod(p, PTX_M_V4) ? 2 : 0;
}

/* The data operand(s): 1, 2 or 4, all registers of one size. */
static const struct ptx_operand *data_operands(struct ptx_parser *p, const struct ptx_operand *o, unsigned vec_log2)
{
    if ((o->kind == PTX_OPERAND_VECTOR) != (vec_log2 > 0) || (vec_log2 && o->count != 1u << vec_log2))
        ptx_lower_fail(p, "wrong number of vector elements");
    return vec_log2 ? o->elements : o;
}

static unsigned register_log2(struct ptx_parser *p, const struct ptx_operand *data, unsigned count, unsigned log2)
{
    unsigned reg_log2 = 0;
    for (unsigned i = 0; i < count; i++) {
        if (data[i].kind != PTX_OPERAND_REG)
            continue;
        if (data[i].log2 == 0 || data[i].log2 < log2 || (reg_log2 && reg_log2 != data[i].log2))
            ptx_lower_fail(p, "a register of another size");
        reg_log2 = data[i].log2;
    }
    return reg_log2 ? reg_log2 : log2 ? log2 : 1;
}

static void take_cache_hints(struct ptx_parser *p, bool is_load)
{
    for (int m = PTX_M_CA; m <= PTX_M_WT; m++)
        if (is_load ? m <= PTX_M_CV : m == PTX_M_CG || m == PTX_M_CS || m >= PTX_M_WB)
            ptx_take_mod(p, (enum ptx_mod)m);
}

static enum ptx_type memory_type(struct ptx_parser *p)
{
    enum ptx_type type = ptx_one_type(p);
    if (type == PTX_PRED || type == PTX_F16)
        ptx_lower_unsupported(p, NULL);
    return type;
}

/* The frequent forms have operations of their own, right after the general one. */
static int quick_form(enum ptx_space space, const struct ptx_insn *form, unsigned log2, unsigned reg_log2,
                      unsigned vec_log2, bool addr32, enum ptx_order order)
{
    if (log2 < 2 || log2 != reg_log2 || (log2 == 3 && vec_log2) || addr32 || order != PTX_ORDER_WEAK || !form->o[4] ||
        form->o[5] || (space != PTX_SPACE_GLOBAL && space != PTX_SPACE_SHARED))
        return 0;
    return 1 + (space == PTX_SPACE_SHARED) * 4 + (vec_log2 ? 1 + (int)vec_log2 : log2 == 3);
}

void ptx_lower_ld(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    (void)d;
    bool is_const, addr32;
    enum ptx_space space = take_space(p, &is_const);
    enum ptx_order order = take_order(p);
    if (ptx_take_mod(p, PTX_M_NC) && space != PTX_SPACE_GLOBAL)
        ptx_lower_unsupported(p, NULL);
    take_cache_hints(p, true);
    unsigned vec_log2 = take_vector(p);
    enum ptx_type type = memory_type(p);
    unsigned log2 = ptx_type_log2(type);
    if (log2 + vec_log2 > 4)
        ptx_lower_unsupported(p, NULL);
    const struct ptx_operand *data = data_operands(p, ptx_operand_at(p, 0), vec_log2);
    unsigned reg_log2 = register_log2(p, data, 1u << vec_log2, log2);
    struct ptx_insn form = {0};
    ptx_lower_mem_address(p, ptx_operand_at(p, 1), &space, is_const, 1u << (log2 + vec_log2), &form, &addr32);
    for (unsigned i = 0; i < 1u << vec_log2; i++)
        form.o[i] = ptx_result(p, &data[i], reg_log2);
    struct ptx_insn *in = ptx_emit(p, PTX_OP_LD + quick_form(space, &form, log2, reg_log2, vec_log2, addr32, order));
    memcpy(in->o, form.o, sizeof(in->o));
    in->imm = form.imm;
    in->aux = PTX_MEM_AUX(space, log2, ptx_type_signed(type), reg_log2, vec_log2, addr32, order);
}

void ptx_lower_st(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    (void)d;
    bool is_const, addr32;
    enum ptx_space space = take_space(p, &is_const);
    if (is_const)
        ptx_lower_unsupported(p, NULL);
    if (space == PTX_SPACE_PARAM)
        space = PTX_SPACE_FRAME; /* an entry stores only into call arguments */
    enum ptx_order order = take_order(p);
    take_cache_hints(p, false);
    unsigned vec_log2 = take_vector(p);
    enum ptx_type type = memory_type(p);
    unsigned log2 = ptx_type_log2(type);
    if (log2 + vec_log2 > 4)
        ptx_lower_unsupported(p, NULL);
    const struct ptx_operand *data = data_operands(p, ptx_operand_at(p, 1), vec_log2);
    unsigned reg_log2 = register_log2(p, data, 1u << vec_log2, log2);
    struct ptx_insn form = {0};
    ptx_lower_mem_address(p, ptx_operand_at(p, 0), &space, is_const, 1u << (log2 + vec_log2), &form, &addr32);
    if (space == PTX_SPACE_PARAM || (space == PTX_SPACE_FRAME && form.o[4]))
        ptx_lower_fail(p, "a store into a parameter");
    for (unsigned i = 0; i < 1u << vec_log2; i++)
        form.o[i] = ptx_source(p, &data[i], reg_log2, type);
    struct ptx_insn *in = ptx_emit(p, PTX_OP_ST + quick_form(space, &form, log2, reg_log2, vec_log2, addr32, order));
    memcpy(in->o, form.o, sizeof(in->o));
    in->imm = form.imm;
    in->aux = PTX_MEM_AUX(space, log2, 0, reg_log2, vec_log2, addr32, order);
}

static int take_atom_op(struct ptx_parser *p)
{
    static const struct {
        enum ptx_mod mod;
        enum ptx_atom_op op;
    } ops[] = {
        {PTX_M_ADD, PTX_ATOM_ADD},   {PTX_M_MIN, PTX_ATOM_MIN}, {PTX_M_MAX, PTX_ATOM_MAX}, {PTX_M_INC, PTX_ATOM_INC},
        {PTX_M_DEC, PTX_ATOM_DEC},   {PTX_M_AND, PTX_ATOM_AND}, {PTX_M_OR, PTX_ATOM_OR},   {PTX_M_XOR, PTX_ATOM_XOR},
        {PTX_M_EXCH, PTX_ATOM_EXCH}, {PTX_M_CAS, PTX_ATOM_CAS},
    };
    for (unsigned i = 0; i < sizeof(ops) / sizeof(ops[0]); i++)
        if (ptx_take_mod(p, ops[i].mod))
            return ops[i].op;
    ptx_lower_unsupported(p, NULL);
}

static bool atom_type_fits(enum ptx_atom_op op, enum ptx_type type)
{
    switch (op) {
    case PTX_ATOM_ADD:
        return type == PTX_U32 || type == PTX_S32 || type == PTX_U64 || type == PTX_F32 || type == PTX_F64;
    case PTX_ATOM_MIN:
    case PTX_ATOM_MAX: return type == PTX_U32 || type == PTX_S32 || type == PTX_U64 || type == PTX_S64;
    case PTX_ATOM_INC:
    case PTX_ATOM_DEC: return type == PTX_U32;
    default: /* LLVM writes .b32; a type of the same size means the same bits */
        return ptx_type_log2(type) >= 2 && type != PTX_PRED;
    }
}

static enum ptx_atom_type atom_type(enum ptx_type type)
{
    switch (type) {
    case PTX_F32: return PTX_ATOM_F32;
    case PTX_F64: return PTX_ATOM_F64;
    case PTX_S32: return PTX_ATOM_S32;
    case PTX_S64: return PTX_ATOM_S64;
    default: return ptx_type_log2(type) == 3 ? PTX_ATOM_U64 : PTX_ATOM_U32;
    }
}

/* atom d, [a], b{, c}; red [a], b. */
void ptx_lower_atom(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    bool is_const, addr32, is_red = d->op;
    enum ptx_space space = take_space(p, &is_const);
    enum ptx_order order = take_order(p);
    if (is_const || space == PTX_SPACE_LOCAL || space == PTX_SPACE_PARAM || space == PTX_SPACE_FRAME)
        ptx_lower_unsupported(p, NULL);
    enum ptx_atom_op op = (enum ptx_atom_op)take_atom_op(p);
    enum ptx_type type = ptx_one_type(p);
    unsigned log2 = ptx_type_log2(type), first = is_red ? 0 : 1;
    if (!atom_type_fits(op, type) || (is_red && op >= PTX_ATOM_EXCH))
        ptx_lower_unsupported(p, NULL);
    if (p->stmt.operand_count != first + 2 + (op == PTX_ATOM_CAS))
        ptx_lower_fail(p, "wrong number of operands");
    struct ptx_insn form = {0};
    ptx_lower_mem_address(p, ptx_operand_at(p, first), &space, false, 1u << log2, &form, &addr32);
    form.o[1] = ptx_source(p, ptx_operand_at(p, first + 1), log2, type);
    if (op == PTX_ATOM_CAS)
        form.o[2] = ptx_source(p, ptx_operand_at(p, first + 2), log2, type);
    form.o[0] = is_red ? 0 : ptx_result(p, ptx_operand_at(p, 0), log2);
    struct ptx_insn *in = ptx_emit(p, PTX_OP_ATOM);
    memcpy(in->o, form.o, sizeof(in->o));
    in->imm = form.imm;
    in->flops = ptx_type_float(type);
    in->aux = PTX_MEM_AUX(space, log2, 0, log2, 0, addr32, order) | PTX_ATOM_AUX(op, atom_type(type));
}

/* cvta.space d, a: to generic; cvta.to.space: from generic. */
void ptx_lower_cvta(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    (void)d;
    bool to = ptx_take_mod(p, PTX_M_TO), is_const;
    enum ptx_space space = take_space(p, &is_const);
    enum ptx_type type = ptx_one_type(p);
    if (type != PTX_U64 || space == PTX_SPACE_GENERIC || space == PTX_SPACE_PARAM || space == PTX_SPACE_FRAME)
        ptx_lower_unsupported(p, NULL);
    uint32_t a = ptx_source(p, ptx_operand_at(p, 1), 3, type);
    uint32_t result = ptx_result(p, ptx_operand_at(p, 0), 3);
    if (space == PTX_SPACE_GLOBAL) {
        mov_op(p, PTX_OP_MOV_64, result, a, 0);
        return;
    }
    uint32_t window = ptx_constant(p, 3, space == PTX_SPACE_SHARED ? PTX_SHARED_WINDOW : PTX_LOCAL_WINDOW);
    mov_op(p, to ? PTX_OP_SUB_64 : PTX_OP_ADD_64, result, a, window);
}

void ptx_lower_isspacep(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    (void)d;
    bool is_const;
    enum ptx_space space = take_space(p, &is_const);
    /* .const memory is addressed like .global here: which of the two an address is cannot be told. */
    if (is_const || space > PTX_SPACE_LOCAL || p->stmt.type_count)
        ptx_lower_unsupported(p, NULL);
    uint32_t a = ptx_source(p, ptx_operand_at(p, 1), 3, PTX_U64);
    uint32_t result = ptx_result(p, ptx_operand_at(p, 0), 0);
    struct ptx_insn *in = ptx_emit(p, PTX_OP_ISSPACEP);
    in->o[0] = result;
    in->o[1] = a;
    in->aux = space;
}

/* A hint: checked for form, no code. */
void ptx_lower_prefetch(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    (void)d;
    bool is_const, addr32;
    enum ptx_space space = take_space(p, &is_const);
    if (!ptx_take_mod(p, PTX_M_L1) && !ptx_take_mod(p, PTX_M_L2))
        ptx_lower_unsupported(p, NULL);
    if (p->stmt.type_count || space == PTX_SPACE_SHARED || space == PTX_SPACE_PARAM || space == PTX_SPACE_FRAME)
        ptx_lower_unsupported(p, NULL);
    struct ptx_insn form = {0};
    ptx_lower_mem_address(p, ptx_operand_at(p, 0), &space, is_const, 1, &form, &addr32);
}
