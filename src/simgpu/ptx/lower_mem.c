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

/* The two 64-bit registers of a .b128 one, or of a vector {low, high}. */
static void halves(struct ptx_parser *p, const struct ptx_operand *o, struct ptx_operand out[2])
{
    if (o->kind == PTX_OPERAND_VECTOR && o->count == 2) {
        out[0] = o->elements[0];
        out[1] = o->elements[1];
        return;
    }
    if (o->kind == PTX_OPERAND_SINK) {
        out[0] = out[1] = *o;
        return;
    }
    if (o->kind != PTX_OPERAND_REG || o->log2 != 4)
        ptx_lower_fail(p, "an operand that is not 128 bits wide");
    for (unsigned i = 0; i < 2; i++)
        out[i] = (struct ptx_operand){.kind = PTX_OPERAND_REG, .log2 = 3, .reg = o->reg + i};
}

static void mov_wide(struct ptx_parser *p, const struct ptx_operand *to, const struct ptx_operand *from)
{
    struct ptx_operand source[2], result[2];
    uint32_t a[2], temp = ptx_temp(p, 3);
    halves(p, from, source);
    halves(p, to, result);
    for (unsigned i = 0; i < 2; i++)
        a[i] = ptx_source(p, &source[i], 3, PTX_B64);
    mov_op(p, PTX_OP_MOV_64, temp, a[1], 0); /* the first result may be the second source */
    mov_op(p, PTX_OP_MOV_64, ptx_result(p, &result[0], 3), a[0], 0);
    mov_op(p, PTX_OP_MOV_64, ptx_result(p, &result[1], 3), temp, 0);
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
    if (type == PTX_B128) {
        mov_wide(p, to, from);
        return;
    }
    if (!log2 || !ptx_type_plain(type))
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
    if (ptx_take_mod(p, PTX_M_V8))
        return 3;
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

static enum ptx_type memory_type(struct ptx_parser *p)
{
    enum ptx_type type = ptx_one_type(p);
    if (type == PTX_PRED || !ptx_type_plain(type))
        ptx_lower_unsupported(p, NULL);
    return type;
}

/* A 128-bit element is two of 64 bits; eight of 32 bits are four of 64, packed before a store and unpacked behind a load. */
struct transfer {
    struct ptx_operand plain[4];
    const struct ptx_operand *data; /* as asked for */
    const struct ptx_operand *moved;
    enum ptx_type type;
    unsigned log2, vec_log2;
};

static void take_transfer(struct ptx_parser *p, const struct ptx_operand *o, enum ptx_space space, struct transfer *out)
{
    unsigned vec_log2 = take_vector(p);
    enum ptx_type type = memory_type(p);
    unsigned log2 = ptx_type_log2(type);
    bool is_long = log2 + vec_log2 == 5 && log2 >= 2 && log2 < 4 && space == PTX_SPACE_GLOBAL; /* sm_100 */
    if (!is_long && (log2 + vec_log2 > 4 || vec_log2 == 3))
        ptx_lower_unsupported(p, NULL);
    *out = (struct transfer){.type = type, .log2 = log2, .vec_log2 = vec_log2};
    out->data = out->moved = data_operands(p, o, vec_log2);
    if (log2 == 4) {
        halves(p, o, out->plain);
    } else if (vec_log2 == 3) {
        for (unsigned i = 0; i < 4; i++)
            out->plain[i] = (struct ptx_operand){.kind = PTX_OPERAND_REG, .log2 = 3, .reg = ptx_temp(p, 3)};
    } else {
        return;
    }
    out->moved = out->plain;
    out->log2 = 3;
    out->vec_log2 = log2 == 4 ? 1 : 2;
    out->type = PTX_B64;
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
    enum ptx_space space = ptx_take_space(p, &is_const);
    enum ptx_order order = ptx_take_order(p);
    if (ptx_take_mod(p, PTX_M_NC) && space != PTX_SPACE_GLOBAL)
        ptx_lower_unsupported(p, NULL);
    for (int m = PTX_M_CA; m <= PTX_M_CV; m++)
        ptx_take_mod(p, (enum ptx_mod)m);
    ptx_take_cache_hints(p);
    if (p->stmt.operand_count != 2)
        ptx_lower_fail(p, "wrong number of operands");
    struct transfer t;
    take_transfer(p, ptx_operand_at(p, 0), space, &t);
    unsigned log2 = t.log2, vec_log2 = t.vec_log2;
    enum ptx_type type = t.type;
    const struct ptx_operand *data = t.moved;
    unsigned reg_log2 = register_log2(p, data, 1u << vec_log2, log2);
    struct ptx_insn form = {0};
    ptx_lower_mem_address(p, ptx_operand_at(p, 1), &space, is_const, 1u << (log2 + vec_log2), &form, &addr32);
    for (unsigned i = 0; i < 1u << vec_log2; i++)
        form.o[i] = ptx_result(p, &data[i], reg_log2);
    struct ptx_insn *in = ptx_emit(p, PTX_OP_LD + quick_form(space, &form, log2, reg_log2, vec_log2, addr32, order));
    memcpy(in->o, form.o, sizeof(in->o));
    in->imm = form.imm;
    in->aux = PTX_MEM_AUX(space, log2, ptx_type_signed(type), reg_log2, vec_log2, addr32, order);
    if (t.data == t.moved || t.data->log2 == 4 || vec_log2 != 2)
        return;
    for (unsigned i = 0; i < 8; i++)
        mov_op(p, i & 1 ? PTX_OP_HIGH_64 : PTX_OP_LOW_64, ptx_result(p, &t.data[i], 2), t.plain[i / 2].reg, 0);
}

void ptx_lower_st(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    (void)d;
    bool is_const, addr32;
    enum ptx_space space = ptx_take_space(p, &is_const);
    if (is_const)
        ptx_lower_unsupported(p, NULL);
    if (space == PTX_SPACE_PARAM)
        space = PTX_SPACE_FRAME; /* an entry stores only into call arguments */
    enum ptx_order order = ptx_take_order(p);
    for (int m = PTX_M_CA; m <= PTX_M_WT; m++)
        if (m == PTX_M_CG || m == PTX_M_CS || m >= PTX_M_WB)
            ptx_take_mod(p, (enum ptx_mod)m);
    ptx_take_cache_hints(p);
    if (p->stmt.operand_count != 2)
        ptx_lower_fail(p, "wrong number of operands");
    struct transfer t;
    take_transfer(p, ptx_operand_at(p, 1), space, &t);
    unsigned log2 = t.log2, vec_log2 = t.vec_log2;
    enum ptx_type type = t.type;
    const struct ptx_operand *data = t.moved;
    if (t.data != t.moved && vec_log2 == 2)
        for (unsigned i = 0; i < 4; i++) {
            uint32_t low = ptx_source(p, &t.data[2 * i], 2, PTX_B32),
                     high = ptx_source(p, &t.data[2 * i + 1], 2, PTX_B32);
            mov_op(p, PTX_OP_PACK_64, t.plain[i].reg, low, high);
        }
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

/* cvta.space d, a: to generic; cvta.to.space: from generic. */
void ptx_lower_cvta(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    (void)d;
    bool to = ptx_take_mod(p, PTX_M_TO), is_const;
    enum ptx_space space = ptx_take_space(p, &is_const);
    enum ptx_type type = ptx_one_type(p);
    if (type != PTX_U64 || space == PTX_SPACE_GENERIC || space == PTX_SPACE_FRAME)
        ptx_lower_unsupported(p, NULL);
    uint32_t a = ptx_source(p, ptx_operand_at(p, 1), 3, type);
    uint32_t result = ptx_result(p, ptx_operand_at(p, 0), 3);
    if (space == PTX_SPACE_GLOBAL) {
        mov_op(p, PTX_OP_MOV_64, result, a, 0);
        return;
    }
    uint32_t window = ptx_constant(p, 3,
                                   space == PTX_SPACE_SHARED  ? PTX_SHARED_WINDOW
                                   : space == PTX_SPACE_LOCAL ? PTX_LOCAL_WINDOW
                                                              : PTX_PARAM_WINDOW);
    mov_op(p, to ? PTX_OP_SUB_64 : PTX_OP_ADD_64, result, a, window);
}

void ptx_lower_isspacep(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    (void)d;
    bool is_const;
    enum ptx_space space = ptx_take_space(p, &is_const);
    if ((space > PTX_SPACE_LOCAL && space != PTX_SPACE_PARAM) || p->stmt.type_count)
        ptx_lower_unsupported(p, NULL);
    uint32_t a = ptx_source(p, ptx_operand_at(p, 1), 3, PTX_U64);
    uint32_t result = ptx_result(p, ptx_operand_at(p, 0), 0);
    struct ptx_insn *in = ptx_emit(p, PTX_OP_ISSPACEP);
    in->o[0] = result;
    in->o[1] = a;
    in->aux = is_const ? PTX_ISSPACEP_CONST : space;
}
