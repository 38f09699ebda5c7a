/* Texture and surface instructions. The object is a register with its handle, or a .texref or .surfref variable that holds one. */
#include "simgpu/ptx/lower.h"
#include "simgpu/ptx/out.h"
#include "simgpu/ptx/texture.h"

static enum ptx_geometry take_geometry(struct ptx_parser *p)
{
    static const struct {
        enum ptx_mod mod;
        enum ptx_geometry geometry;
    } geometries[] = {{PTX_M_GEOM_1D, PTX_GEOMETRY_1D},
                      {PTX_M_GEOM_2D, PTX_GEOMETRY_2D},
                      {PTX_M_GEOM_3D, PTX_GEOMETRY_3D},
                      {PTX_M_GEOM_A1D, PTX_GEOMETRY_A1D},
                      {PTX_M_GEOM_A2D, PTX_GEOMETRY_A2D}};
    for (unsigned i = 0; i < sizeof geometries / sizeof geometries[0]; i++)
        if (ptx_take_mod(p, geometries[i].mod))
            return geometries[i].geometry;
    ptx_lower_unsupported(p, NULL);
}

/* The handle behind [name, ...] or [%rd, ...]. */
static uint32_t handle_of(struct ptx_parser *p, const struct ptx_operand *o)
{
    if (o->kind != PTX_OPERAND_ADDRESS || o->value)
        ptx_lower_fail(p, "no texture or surface");
    if (o->has_base) {
        if (o->log2 != 3)
            ptx_lower_fail(p, "a handle that is not of 64 bits");
        return o->reg;
    }
    if (!o->symbol || o->symbol->kind != PTX_SYM_GLOBAL || !o->symbol->is_reference)
        ptx_lower_unsupported(p, "a texture that is neither an object nor a .texref or .surfref");
    struct ptx_operand base = {.kind = PTX_OPERAND_SYMBOL, .symbol = o->symbol};
    uint32_t address = ptx_source(p, &base, 3, PTX_U64), handle = ptx_temp(p, 3);
    struct ptx_insn *in = ptx_emit(p, PTX_OP_LD);
    in->o[0] = handle;
    in->o[4] = address;
    in->aux = PTX_MEM_AUX(PTX_SPACE_GLOBAL, 3, false, 3, 0, false, PTX_ORDER_WEAK);
    return handle;
}

/* A vector's elements go to operands[0 .. count), or the one that is no vector. */
static unsigned spread(struct ptx_parser *p, const struct ptx_operand *o, const struct ptx_operand **first_out)
{
    if (!o)
        ptx_lower_fail(p, "no coordinates");
    *first_out = o->kind == PTX_OPERAND_VECTOR ? o->elements : o;
    return o->kind == PTX_OPERAND_VECTOR ? o->count : 1;
}

static unsigned take_count(struct ptx_parser *p)
{
    return ptx_take_mod(p, PTX_M_V4) ? 2 : ptx_take_mod(p, PTX_M_V2) ? 1 : 0;
}

static void take_coordinates(struct ptx_parser *p, const struct ptx_operand *object, enum ptx_geometry geometry,
                             enum ptx_type type, uint32_t operands[10])
{
    static const uint8_t least[] = {1, 2, 3, 2, 3};
    const struct ptx_operand *c;
    unsigned count = spread(p, object->coordinates, &c);
    if (count < least[geometry] || count > 4)
        ptx_lower_fail(p, "wrong number of coordinates");
    for (unsigned i = 0; i < least[geometry]; i++) {
        bool is_layer = geometry >= PTX_GEOMETRY_A1D && i == 0;
        operands[5 + i] = ptx_source(p, &c[i], 2, is_layer ? PTX_U32 : type);
    }
}

/* tex{.level}.geom.v4.dtype.ctype {d}, [a, {c}] {, level};  tld4.comp.2d.v4.dtype.f32 {d}, [a, {c}] */
void ptx_lower_tex(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    struct ptx_stmt *s = &p->stmt;
    uint32_t params = 0, operands[10] = {0};
    static const enum ptx_mod channels[] = {PTX_M_R, PTX_M_GREEN, PTX_M_MAT_B, PTX_M_MAT_A};
    if (d->op)
        for (unsigned i = 0; i < 4 && !params; i++)
            params = ptx_take_mod(p, channels[i]) ? (i + 1) << PTX_TEX_GATHER_AT : 0;
    bool level = !d->op && ptx_take_mod(p, PTX_M_LEVEL);
    enum ptx_geometry geometry = take_geometry(p);
    if (s->type_count != 2 || take_count(p) != 2 || (d->op && (!params || geometry != PTX_GEOMETRY_2D)) ||
        (s->types[0] != PTX_U32 && s->types[0] != PTX_S32 && s->types[0] != PTX_F32) ||
        (s->types[1] != PTX_F32 && (s->types[1] != PTX_S32 || d->op || level)))
        ptx_lower_unsupported(p, NULL);
    if (s->operand_count != 2u + level)
        ptx_lower_fail(p, "wrong number of operands");
    const struct ptx_operand *results;
    if (spread(p, ptx_operand_at(p, 0), &results) != 4)
        ptx_lower_fail(p, "wrong number of results");
    params |= (uint32_t)geometry | (s->types[1] == PTX_S32 ? PTX_TEX_INTEGER : 0) |
              (s->types[0] == PTX_F32 ? PTX_TEX_FLOAT : 0) | (level ? PTX_TEX_LEVEL : 0);
    operands[4] = handle_of(p, ptx_operand_at(p, 1));
    take_coordinates(p, ptx_operand_at(p, 1), geometry, s->types[1], operands);
    if (level)
        operands[9] = ptx_source(p, ptx_operand_at(p, 2), 2, PTX_F32);
    for (unsigned i = 0; i < 4; i++)
        operands[i] = results[i].kind == PTX_OPERAND_SINK ? 0 : ptx_result(p, &results[i], 2);
    ptx_emit_out(p, false, PTX_OUT_tex, params, operands, 4, 10);
}

/* suld.b.geom{.vec}.type.clamp d, [a, {c}];  sust.b.geom{.vec}.type.clamp [a, {c}], d */
void ptx_lower_surface(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    bool store = d->op;
    uint32_t operands[10] = {0};
    if (!ptx_take_mod(p, PTX_M_MAT_B)) /* formatted accesses: .p */
        ptx_lower_unsupported(p, NULL);
    for (int m = PTX_M_CA; m <= PTX_M_WT; m++)
        ptx_take_mod(p, (enum ptx_mod)m);
    enum ptx_geometry geometry = take_geometry(p);
    unsigned count_log2 = take_count(p);
    enum ptx_type type = ptx_one_type(p);
    unsigned log2 = ptx_type_log2(type);
    enum ptx_surface_clamp clamp = ptx_take_mod(p, PTX_M_CLAMP)  ? PTX_SURFACE_CLAMP
                                   : ptx_take_mod(p, PTX_M_ZERO) ? PTX_SURFACE_ZERO
                                                                 : PTX_SURFACE_TRAP;
    ptx_take_mod(p, PTX_M_TRAP);
    if (type < PTX_B8 || type > PTX_B64 || log2 + count_log2 > 4)
        ptx_lower_unsupported(p, NULL);
    const struct ptx_operand *object = ptx_operand_at(p, store ? 0 : 1), *data;
    if (spread(p, ptx_operand_at(p, store ? 1 : 0), &data) != 1u << count_log2)
        ptx_lower_fail(p, "wrong number of vector elements");
    operands[4] = handle_of(p, object);
    take_coordinates(p, object, geometry, PTX_S32, operands);
    for (unsigned i = 0; i < 1u << count_log2; i++)
        operands[i] = store                              ? ptx_source(p, &data[i], log2 ? log2 : 1, PTX_NONE)
                      : data[i].kind == PTX_OPERAND_SINK ? 0
                                                         : ptx_result(p, &data[i], log2 ? log2 : 1);
    uint32_t params = (uint32_t)geometry | (store ? PTX_SURFACE_STORE : 0) | log2 << PTX_SURFACE_LOG2_AT |
                      count_log2 << PTX_SURFACE_COUNT_AT | (uint32_t)clamp << PTX_SURFACE_CLAMP_AT;
    ptx_emit_out(p, false, PTX_OUT_surface, params, operands, store ? 0 : 4, 10);
}

/* txq.query.b32 d, [a];  suq.query.b32 d, [a];  txq.level.query.b32 d, [a], level */
void ptx_lower_texture_query(struct ptx_parser *p, const struct ptx_descriptor *d)
{
    static const enum ptx_mod queries[PTX_QUERY_COUNT] = {
        [PTX_QUERY_WIDTH] = PTX_M_WIDTH,         [PTX_QUERY_HEIGHT] = PTX_M_HEIGHT,
        [PTX_QUERY_DEPTH] = PTX_M_DEPTH,         [PTX_QUERY_ARRAY_SIZE] = PTX_M_ARRAY_SIZE,
        [PTX_QUERY_LEVELS] = PTX_M_NUM_LEVELS,   [PTX_QUERY_DATA_TYPE] = PTX_M_CHANNEL_DATA_TYPE,
        [PTX_QUERY_ORDER] = PTX_M_CHANNEL_ORDER, [PTX_QUERY_NORMALIZED] = PTX_M_NORMALIZED_COORDS,
        [PTX_QUERY_SAMPLES] = PTX_M_NUM_SAMPLES,
    };
    bool level = ptx_take_mod(p, PTX_M_LEVEL);
    unsigned query = 0;
    while (query < PTX_QUERY_COUNT && !ptx_take_mod(p, queries[query]))
        query++;
    if (query == PTX_QUERY_COUNT || ptx_one_type(p) != PTX_B32 || (level && (d->op || query > PTX_QUERY_DEPTH)))
        ptx_lower_unsupported(p, NULL);
    if (p->stmt.operand_count != 2u + level)
        ptx_lower_fail(p, "wrong number of operands");
    uint32_t operands[3] = {0};
    operands[1] = handle_of(p, ptx_operand_at(p, 1));
    if (level)
        operands[2] = ptx_source(p, ptx_operand_at(p, 2), 2, PTX_U32);
    operands[0] = ptx_result(p, ptx_operand_at(p, 0), 2);
    ptx_emit_out(p, false, PTX_OUT_texture_query, (uint32_t)d->op | query << 1, operands, 1, 3);
}
