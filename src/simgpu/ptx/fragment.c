#include "simgpu/ptx/mma.h"

#include <pthread.h>

const struct ptx_mma_size ptx_mma_sizes[PTX_MMA_SHAPES] = {
    [PTX_MMA_M16N16K16] = {16, 16, 16}, [PTX_MMA_M32N8K16] = {32, 8, 16}, [PTX_MMA_M8N32K16] = {8, 32, 16},
    [PTX_MMA_M16N16K8] = {16, 16, 8},   [PTX_MMA_M8N8K4] = {8, 8, 4},     [PTX_MMA_M8N8K16] = {8, 8, 16},
    [PTX_MMA_M16N8K4] = {16, 8, 4},     [PTX_MMA_M16N8K8] = {16, 8, 8},   [PTX_MMA_M16N8K16] = {16, 8, 16},
    [PTX_MMA_M16N8K32] = {16, 8, 32},
};

/* Kinds of fragment that differ in layout: by element size, opaque or not, and m8n8k4 of halves by what varies there. */
enum kind {
    KIND_1,
    KIND_2,
    KIND_4,
    KIND_8,
    KIND_WMMA_1,
    KIND_WMMA_2,
    KIND_WMMA_4,
    KIND_WMMA_8,
    KIND_WMMA_F16,
    KIND_QUAD_ROW,
    KIND_QUAD_COL,
    KIND_QUAD_F32,
    KIND_COUNT
};

static struct ptx_fragment fragments[PTX_MMA_SHAPES][3][KIND_COUNT];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static unsigned matrix_elements(const struct ptx_mma_size *s, enum ptx_mma_role role)
{
    return role == PTX_MMA_A ? s->m * s->k : role == PTX_MMA_B ? s->k * s->n : s->m * s->n;
}

/* mma.m8n8k4 of halves is four products, of the lanes 4 q .. 4 q + 3 and 16 more; their matrices lie one behind the other. */
static unsigned quad_at(enum ptx_mma_role role, enum kind kind, unsigned lane, unsigned i)
{
    unsigned q = lane >> 2 & 3, within = lane & 3, high = lane & 16 ? 4 : 0;
    if (role == PTX_MMA_A) {
        unsigned row = kind == KIND_QUAD_ROW ? within + high : i + high, col = kind == KIND_QUAD_ROW ? i : within;
        return q * 32 + row * 4 + col;
    }
    if (role == PTX_MMA_B) {
        unsigned row = kind == KIND_QUAD_ROW ? within : i, col = kind == KIND_QUAD_ROW ? i + high : within + high;
        return q * 32 + row * 8 + col;
    }
    if (kind == KIND_QUAD_F32)
        return q * 64 + ((lane & 1) + (i & 2) + high) * 8 + (i & 4) + (lane & 2) + (i & 1);
    return q * 64 + (within + high) * 8 + i;
}

static unsigned mma_at(const struct ptx_mma_size *s, enum ptx_mma_role role, unsigned per_register, unsigned lane,
                       unsigned i)
{
    unsigned group = lane >> 2, within = lane & 3, reg = i / per_register, part = i % per_register;
    if (role == PTX_MMA_A)
        return (group + 8 * (reg & 1)) * s->k + within * per_register + part + (reg >> 1) * 4 * per_register;
    if (role == PTX_MMA_B)
        return (within * per_register + part + reg * 4 * per_register) * s->n + group;
    return (group + 8 * (i >> 1)) * s->n + within * 2 + (i & 1);
}

/* Consecutive elements, of a matrix laid out along k; where there is more room than elements they come several times. */
static unsigned wmma_at(const struct ptx_mma_size *s, enum ptx_mma_role role, unsigned count, unsigned lane, unsigned i)
{
    unsigned at = (lane * count + i) % matrix_elements(s, role);
    return role == PTX_MMA_B ? at % s->k * s->n + at / s->k : at;
}

static void build(enum ptx_mma_shape shape, enum ptx_mma_role role, enum kind kind)
{
    struct ptx_fragment *f = &fragments[shape][role][kind];
    const struct ptx_mma_size *s = &ptx_mma_sizes[shape];
    bool quad = kind >= KIND_QUAD_ROW, wmma = kind >= KIND_WMMA_1 && !quad;
    static const uint8_t bytes[KIND_COUNT] = {1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 2, 4};
    f->bytes = bytes[kind];
    f->per_register = f->bytes < 4 ? 4 / f->bytes : 1;
    unsigned count = matrix_elements(s, role) / 32;
    if (kind == KIND_WMMA_F16 && role != PTX_MMA_C)
        count = 16;
    if (quad)
        count = role == PTX_MMA_C ? 8 : 4;
    if (count < f->per_register || count > PTX_MMA_MOST_ELEMENTS)
        return;
    f->registers = (uint8_t)(count / f->per_register);
    for (unsigned i = 0; i < count; i++)
        for (unsigned lane = 0; lane < 32; lane++)
            f->at[i][lane] = (uint16_t)(quad   ? quad_at(role, kind, lane, i)
                                        : wmma ? wmma_at(s, role, count, lane, i)
                                               : mma_at(s, role, f->per_register, lane, i));
}

static void build_all(void)
{
    for (int shape = 0; shape < PTX_MMA_SHAPES; shape++)
        for (int role = PTX_MMA_A; role <= PTX_MMA_C; role++)
            for (int kind = 0; kind < KIND_COUNT; kind++)
                if (kind < KIND_QUAD_ROW || shape == PTX_MMA_M8N8K4)
                    build((enum ptx_mma_shape)shape, (enum ptx_mma_role)role, (enum kind)kind);
}

const struct ptx_fragment *ptx_mma_fragment(enum ptx_mma_shape shape, enum ptx_mma_role role,
                                            enum ptx_mma_element element, bool wmma, bool col)
{
    static const uint8_t kinds[] = {
        [PTX_MMA_F16] = KIND_2, [PTX_MMA_BF16] = KIND_2, [PTX_MMA_TF32] = KIND_4, [PTX_MMA_S8] = KIND_1,
        [PTX_MMA_U8] = KIND_1,  [PTX_MMA_F64] = KIND_8,  [PTX_MMA_F32] = KIND_4,  [PTX_MMA_S32] = KIND_4};
    unsigned kind = kinds[element];
    pthread_once(&once, build_all);
    if (wmma)
        kind = element == PTX_MMA_F16 ? KIND_WMMA_F16 : kind + KIND_WMMA_1;
    else if (shape == PTX_MMA_M8N8K4 && kind != KIND_8)
        kind = element == PTX_MMA_F32 ? KIND_QUAD_F32 : role != PTX_MMA_C && col ? KIND_QUAD_COL : KIND_QUAD_ROW;
    return &fragments[shape][role][kind];
}
