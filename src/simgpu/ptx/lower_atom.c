/* Atomics: on one element by the core, on vectors and 128 bits by functions of their own. */
#include "simgpu/ptx/lower.h"
#include "simgpu/ptx/out.h"

#include <string.h>

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

static bool is_half(enum ptx_type type)
{
    return type == PTX_F16 || type == PTX_BF16 || type == PTX_F16X2 || type == PTX_BF16X2;
}

static bool atom_type_fits(enum ptx_atom_op op, enum ptx_type type)
{
    switch (op) {
    case PTX_ATOM_ADD:
        return type == PTX_U32 || type == PTX_S32 || type == PTX_U64 || type == PTX_F32 || type == PTX_F64 ||
               is_half(type);
    case PTX_ATOM_MIN:
    case PTX_ATOM_MAX: return type == PTX_U32 || type == PTX_S32 || type == PTX_U64 || type == PTX_S64;
    case PTX_ATOM_INC:
    case PTX_ATOM_DEC: return type == PTX_U32;
    default: /* LLVM writes .b32; a type of the same size means the same bits */
        return (ptx_type_log2(type) >= 2 && type <= PTX_F64 && type != PTX_F16) ||
               (op == PTX_ATOM_CAS && type == PTX_B16);
    }
}

static enum ptx_atom_type atom_type(enum ptx_type type)
{
    switch (type) {
    case PTX_F32: return PTX_ATOM_F32;
    case PTX_F64: return PTX_ATOM_F64;
    case PTX_S32: return PTX_ATOM_S32;
    case PTX_S64: return PTX_ATOM_S64;
    case PTX_F16: return PTX_ATOM_F16;
    case PTX_BF16: return PTX_ATOM_BF16;
    case PTX_F16X2: return PTX_ATOM_F16X2;
    case PTX_BF16X2: return PTX_ATOM_BF16X2;
    case PTX_B16: return PTX_ATOM_U16;
    default: return ptx_type_log2(type) == 3 ? PTX_ATOM_U64 : PTX_ATOM_U32;
    }
}

/* {.v2 .v4 .v8} .add.f32 of global memory; also .min and .max for halves. Each element is atomic for itself. */
static void vector_atom(struct ptx_parser *p, enum ptx_atom_op op, enum ptx_type type, bool is_red, unsigned count)
{
    bool half = is_half(type);
    unsigned log2 = ptx_type_log2(type), first = is_red ? 0 : 1;
    const struct ptx_operand *values = ptx_operand_at(p, first + 1), *results = ptx_operand_at(p, 0);
    bool fits =
        half ? op == PTX_ATOM_ADD || op == PTX_ATOM_MIN || op == PTX_ATOM_MAX : type == PTX_F32 && op == PTX_ATOM_ADD;
    if (!fits || count << log2 > 16 || p->stmt.operand_count != first + 2)
        ptx_lower_unsupported(p, NULL);
    if (values->kind != PTX_OPERAND_VECTOR || values->count != count ||
        (!is_red && (results->kind != PTX_OPERAND_VECTOR || results->count != count)))
        ptx_lower_fail(p, "wrong number of vector elements");
    uint32_t operands[17] = {0};
    operands[count] = ptx_lower_address(p, ptx_operand_at(p, first), PTX_SPACE_GLOBAL, count << log2);
    for (unsigned i = 0; i < count; i++)
        operands[count + 1 + i] = ptx_source(p, &values->elements[i], log2, type);
    for (unsigned i = 0; i < count && !is_red; i++)
        operands[i] = ptx_result(p, &results->elements[i], log2);
    ptx_emit_out(p, false, PTX_OUT_vector_atom, (uint32_t)op | (uint32_t)atom_type(type) << 4 | count << 8 | log2 << 12,
                 operands, count, 2 * count + 1);
}

/* .exch.b128 and .cas.b128 */
static void wide_atom(struct ptx_parser *p, enum ptx_atom_op op, enum ptx_space space)
{
    bool is_cas = op == PTX_ATOM_CAS;
    if (op < PTX_ATOM_EXCH)
        ptx_lower_unsupported(p, NULL);
    if (p->stmt.operand_count != 3u + is_cas)
        ptx_lower_fail(p, "wrong number of operands");
    uint32_t operands[7] = {0};
    operands[2] = ptx_lower_address(p, ptx_operand_at(p, 1), space, 16);
    for (unsigned i = 0; i < 3u + is_cas; i++) {
        const struct ptx_operand *o = ptx_operand_at(p, i);
        if (i == 1)
            continue;
        if (o->kind != PTX_OPERAND_REG || o->log2 != 4)
            ptx_lower_fail(p, "an operand that is not 128 bits wide");
        uint32_t *at = &operands[i ? 2 * i - 1 : 0];
        at[0] = o->reg;
        at[1] = o->reg + 1;
    }
    ptx_emit_out(p, false, PTX_OUT_wide_atom, (uint32_t)is_cas | (uint32_t)space << 4, operands, 2, 5 + 2 * is_cas);
}

/* atom d, [a], b{, c}; red [a], b. */
void ptx_lower_atom(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    bool is_const, addr32, is_red = d->op;
    enum ptx_space space = ptx_take_space(p, &is_const);
    enum ptx_order order = ptx_take_order(p);
    if (is_const || space == PTX_SPACE_LOCAL || space == PTX_SPACE_PARAM || space == PTX_SPACE_FRAME)
        ptx_lower_unsupported(p, NULL);
    ptx_take_cache_hints(p);
    unsigned vector = ptx_take_mod(p, PTX_M_V2) ? 2 : ptx_take_mod(p, PTX_M_V4) ? 4 : ptx_take_mod(p, PTX_M_V8) ? 8 : 0;
    enum ptx_atom_op op = (enum ptx_atom_op)take_atom_op(p);
    enum ptx_type type = ptx_one_type(p);
    if (ptx_take_mod(p, PTX_M_NOFTZ) != is_half(type) || (is_red && op >= PTX_ATOM_EXCH))
        ptx_lower_unsupported(p, NULL);
    if (vector && space == PTX_SPACE_GLOBAL) {
        vector_atom(p, op, type, is_red, vector);
        return;
    }
    if (type == PTX_B128 && !vector) {
        wide_atom(p, op, space);
        return;
    }
    unsigned log2 = ptx_type_log2(type), first = is_red ? 0 : 1;
    if (!atom_type_fits(op, type) || vector)
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
    in->flops = PTX_FLOPS(type, ptx_type_float(type));
    in->aux = PTX_MEM_AUX(space, log2, 0, log2, 0, addr32, order) | PTX_ATOM_AUX(op, atom_type(type));
}
