/* Matrix instructions: mma, wmma, ldmatrix, stmatrix, movmatrix. */
#include "simgpu/ptx/lower.h"
#include "simgpu/ptx/mma.h"
#include "simgpu/ptx/out.h"

#include <string.h>

static enum ptx_mma_shape take_shape(struct ptx_parser *p)
{
    for (int i = 0; i < PTX_MMA_SHAPES; i++) /* the modifiers stand in the shapes' order */
        if (ptx_take_mod(p, (enum ptx_mod)(PTX_M_M16N16K16 + i)))
            return (enum ptx_mma_shape)i;
    ptx_lower_unsupported(p, NULL);
}

static enum ptx_mma_element element_of(struct ptx_parser *p, enum ptx_type type)
{
    switch (type) {
    case PTX_F16: return PTX_MMA_F16;
    case PTX_BF16: return PTX_MMA_BF16;
    case PTX_TF32: return PTX_MMA_TF32;
    case PTX_S8: return PTX_MMA_S8;
    case PTX_U8: return PTX_MMA_U8;
    case PTX_F64: return PTX_MMA_F64;
    case PTX_F32: return PTX_MMA_F32;
    case PTX_S32: return PTX_MMA_S32;
    default: ptx_lower_unsupported(p, NULL);
    }
}

/* The registers of a fragment: a vector, or one register alone. Returns how many. */
static unsigned add_fragment(struct ptx_parser *p, const struct ptx_operand *o, const struct ptx_fragment *f,
                             bool is_result, uint32_t *out)
{
    unsigned log2 = f->bytes == 8 ? 3 : 2, count = o->kind == PTX_OPERAND_VECTOR ? o->count : 1;
    const struct ptx_operand *elements = o->kind == PTX_OPERAND_VECTOR ? o->elements : o;
    if (count != f->registers)
        ptx_lower_fail(p, "wrong number of registers of a fragment");
    for (unsigned i = 0; i < count; i++)
        out[i] = is_result ? ptx_result(p, &elements[i], log2) : ptx_source(p, &elements[i], log2, PTX_NONE);
    return count;
}

/* Which shapes there are for which elements. */
static bool mma_exists(enum ptx_mma_shape shape, enum ptx_mma_element a, bool wmma)
{
    static const uint32_t mma[] = {
        [PTX_MMA_F16] = 1u << PTX_MMA_M8N8K4 | 1u << PTX_MMA_M16N8K8 | 1u << PTX_MMA_M16N8K16,
        [PTX_MMA_BF16] = 1u << PTX_MMA_M16N8K8 | 1u << PTX_MMA_M16N8K16,
        [PTX_MMA_TF32] = 1u << PTX_MMA_M16N8K4 | 1u << PTX_MMA_M16N8K8,
        [PTX_MMA_S8] = 1u << PTX_MMA_M8N8K16 | 1u << PTX_MMA_M16N8K16 | 1u << PTX_MMA_M16N8K32,
        [PTX_MMA_U8] = 1u << PTX_MMA_M8N8K16 | 1u << PTX_MMA_M16N8K16 | 1u << PTX_MMA_M16N8K32,
        [PTX_MMA_F64] = 1u << PTX_MMA_M8N8K4 | 1u << PTX_MMA_M16N8K4 | 1u << PTX_MMA_M16N8K8 | 1u << PTX_MMA_M16N8K16,
        [PTX_MMA_F32] = 0,
        [PTX_MMA_S32] = 0,
    };
    const uint32_t large = 1u << PTX_MMA_M16N16K16 | 1u << PTX_MMA_M32N8K16 | 1u << PTX_MMA_M8N32K16;
    if (!wmma)
        return mma[a] >> shape & 1;
    if (a == PTX_MMA_TF32)
        return shape == PTX_MMA_M16N16K8;
    if (a == PTX_MMA_F64)
        return shape == PTX_MMA_M8N8K4;
    return a <= PTX_MMA_U8 && (large >> shape & 1);
}

static bool elements_fit(const enum ptx_mma_element e[4])
{
    enum ptx_mma_element d = e[0], a = e[1], b = e[2], c = e[3];
    switch (a) {
    case PTX_MMA_F16: return b == a && (c == PTX_MMA_F16 || c == PTX_MMA_F32) && (d == PTX_MMA_F16 || d == PTX_MMA_F32);
    case PTX_MMA_BF16:
    case PTX_MMA_TF32: return b == a && c == PTX_MMA_F32 && d == c;
    case PTX_MMA_S8:
    case PTX_MMA_U8: return (b == PTX_MMA_S8 || b == PTX_MMA_U8) && c == PTX_MMA_S32 && d == c;
    case PTX_MMA_F64: return b == a && c == a && d == a;
    default: return false;
    }
}

/* d, a, b, c of mma and wmma.mma. */
static void product(struct ptx_parser *p, bool wmma)
{
    struct ptx_stmt *s = &p->stmt;
    enum ptx_mma_shape shape = take_shape(p);
    bool sync = ptx_take_mod(p, PTX_M_SYNC), col[2];
    ptx_take_mod(p, PTX_M_ALIGNED);
    for (int i = 0; i < 2; i++) {
        bool row = ptx_take_mod(p, (enum ptx_mod)(PTX_M_ROW + 2 * i));
        col[i] = ptx_take_mod(p, (enum ptx_mod)(PTX_M_COL + 2 * i));
        if (row == col[i])
            ptx_lower_unsupported(p, NULL);
    }
    enum ptx_mma_element e[4];
    if (wmma && s->type_count == 2) { /* halves: only the types of d and c are named */
        e[0] = element_of(p, s->types[0]);
        e[1] = e[2] = PTX_MMA_F16;
        e[3] = element_of(p, s->types[1]);
    } else {
        for (unsigned i = 0; i < 4 && s->type_count == 4; i++)
            e[i] = element_of(p, s->types[i]);
        if (s->type_count != 4 || (wmma && e[1] == PTX_MMA_F16))
            ptx_lower_unsupported(p, NULL);
    }
    bool quad = !wmma && shape == PTX_MMA_M8N8K4 && e[1] == PTX_MMA_F16;
    bool sat = (e[1] == PTX_MMA_S8 || e[1] == PTX_MMA_U8) && ptx_take_mod(p, PTX_M_SATFINITE);
    if (e[1] == PTX_MMA_F64)
        ptx_take_mod(p, PTX_M_RN);
    if (!sync || !elements_fit(e) || !mma_exists(shape, e[1], wmma) || (!wmma && !quad && (col[0] || !col[1])) ||
        (quad && e[0] == PTX_MMA_F16 && e[3] == PTX_MMA_F32))
        ptx_lower_unsupported(p, NULL);
    static const enum ptx_mma_role roles[4] = {PTX_MMA_C, PTX_MMA_A, PTX_MMA_B, PTX_MMA_C};
    uint32_t operands[32];
    unsigned count = 0, results = ptx_mma_fragment(shape, PTX_MMA_C, e[0], wmma, false)->registers;
    count = results;
    for (unsigned i = 1; i < 4; i++)
        count +=
            add_fragment(p, ptx_operand_at(p, i), ptx_mma_fragment(shape, roles[i], e[i], wmma, i < 3 && col[i - 1]),
                         false, operands + count);
    add_fragment(p, ptx_operand_at(p, 0), ptx_mma_fragment(shape, PTX_MMA_C, e[0], wmma, false), true, operands);
    ptx_emit_out(p, true, PTX_OUT_mma, PTX_MMA_PARAMS(shape, e[1], e[2], e[3], e[0], wmma, col[0], col[1], sat),
                 operands, results, count);
}

void ptx_lower_mma(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    (void)d;
    product(p, false);
}

/* wmma.load.{a,b,c} fragment, [address] {, stride}; wmma.store.d [address], fragment {, stride} */
static void transfer(struct ptx_parser *p, bool store)
{
    struct ptx_stmt *s = &p->stmt;
    bool a = !store && ptx_take_mod(p, PTX_M_MAT_A), b = !store && !a && ptx_take_mod(p, PTX_M_MAT_B);
    bool c = !a && !b && ptx_take_mod(p, store ? PTX_M_MAT_D : PTX_M_MAT_C);
    bool row = ptx_take_mod(p, PTX_M_ROW), col = ptx_take_mod(p, PTX_M_COL), is_const;
    enum ptx_mma_shape shape = take_shape(p);
    enum ptx_space space = ptx_take_space(p, &is_const);
    enum ptx_mma_element element = element_of(p, ptx_one_type(p));
    enum ptx_mma_role role = a ? PTX_MMA_A : b ? PTX_MMA_B : PTX_MMA_C;
    bool sync = ptx_take_mod(p, PTX_M_SYNC), fits;
    ptx_take_mod(p, PTX_M_ALIGNED);
    if (c)
        fits = element == PTX_MMA_F64 ? shape == PTX_MMA_M8N8K4
               : element == PTX_MMA_F32
                   ? shape <= PTX_MMA_M16N16K8
                   : (element == PTX_MMA_F16 || element == PTX_MMA_S32) && shape < PTX_MMA_M16N16K8;
    else
        fits = mma_exists(shape, element, true);
    if ((!a && !b && !c) || row == col || !sync || !fits || is_const ||
        (space != PTX_SPACE_GENERIC && space != PTX_SPACE_GLOBAL && space != PTX_SPACE_SHARED))
        ptx_lower_unsupported(p, NULL);
    const struct ptx_fragment *f = ptx_mma_fragment(shape, role, element, true, false);
    unsigned registers = f->registers;
    uint32_t operands[12] = {0}, *where = operands + (store ? 0 : registers);
    where[0] = ptx_lower_address(p, ptx_operand_at(p, store ? 0 : 1), space, f->bytes);
    where[1] = s->operand_count == 3 ? ptx_source(p, ptx_operand_at(p, 2), 2, PTX_U32) : 0;
    add_fragment(p, ptx_operand_at(p, store ? 1 : 0), f, !store, operands + (store ? 2 : 0));
    ptx_emit_out(p, true, store ? PTX_OUT_wmma_store : PTX_OUT_wmma_load,
                 PTX_WMMA_PARAMS(shape, element, role, col, space), operands, store ? 0 : registers, registers + 2);
}

void ptx_lower_wmma(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    (void)d;
    bool load = ptx_take_mod(p, PTX_M_LOAD), store = !load && ptx_take_mod(p, PTX_M_STORE);
    if ((load || store) && p->stmt.operand_count < 4) {
        transfer(p, store);
        return;
    }
    if (load || store || !ptx_take_mod(p, PTX_M_MMA) || p->stmt.operand_count != 4)
        ptx_lower_unsupported(p, NULL);
    product(p, true);
}

/* ldmatrix, stmatrix .sync.aligned.m8n8.{x1,x2,x4}{.trans}{.shared}.b16 */
static void rows(struct ptx_parser *p, bool store)
{
    unsigned count = ptx_take_mod(p, PTX_M_X1) ? 1 : ptx_take_mod(p, PTX_M_X2) ? 2 : ptx_take_mod(p, PTX_M_X4) ? 4 : 0;
    bool trans = ptx_take_mod(p, PTX_M_TRANS), is_const;
    enum ptx_space space = ptx_take_space(p, &is_const);
    if (!count || !ptx_take_mod(p, PTX_M_SYNC) || !ptx_take_mod(p, PTX_M_ALIGNED) || !ptx_take_mod(p, PTX_M_M8N8) ||
        ptx_one_type(p) != PTX_B16 || is_const || (space != PTX_SPACE_SHARED && space != PTX_SPACE_GENERIC))
        ptx_lower_unsupported(p, NULL);
    const struct ptx_fragment f = {.registers = (uint8_t)count, .bytes = 2};
    uint32_t operands[5];
    operands[store ? 0 : count] = ptx_lower_address(p, ptx_operand_at(p, store ? 0 : 1), space, 16);
    add_fragment(p, ptx_operand_at(p, store ? 1 : 0), &f, !store, operands + (store ? 1 : 0));
    ptx_emit_out(p, true, store ? PTX_OUT_stmatrix : PTX_OUT_ldmatrix,
                 count | (uint32_t)trans << 3 | (uint32_t)space << 4, operands, store ? 0 : count, count + 1);
}

void ptx_lower_ldmatrix(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    (void)d;
    rows(p, false);
}

void ptx_lower_stmatrix(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    (void)d;
    rows(p, true);
}

void ptx_lower_movmatrix(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    (void)d;
    if (!ptx_take_mod(p, PTX_M_SYNC) || !ptx_take_mod(p, PTX_M_ALIGNED) || !ptx_take_mod(p, PTX_M_M8N8) ||
        !ptx_take_mod(p, PTX_M_TRANS) || ptx_one_type(p) != PTX_B16)
        ptx_lower_unsupported(p, NULL);
    uint32_t operands[2];
    operands[1] = ptx_source(p, ptx_operand_at(p, 1), 2, PTX_B32);
    operands[0] = ptx_result(p, ptx_operand_at(p, 0), 2);
    ptx_emit_out(p, true, PTX_OUT_movmatrix, 0, operands, 1, 2);
}
