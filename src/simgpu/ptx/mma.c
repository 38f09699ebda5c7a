/* Matrix instructions of a warp: fragments are gathered into plain matrices, multiplied, and handed back. */
#include "simgpu/ptx/mma.h"
#include "simgpu/ptx/half.h"
#include "simgpu/ptx/out.h"

#include <string.h>

#define NAN_F32 0x7fffffffu

static float element_float(uint32_t word, enum ptx_mma_element element, unsigned part)
{
    if (element == PTX_MMA_F16)
        return ptx_half_float((uint16_t)(word >> 16 * part));
    if (element == PTX_MMA_BF16)
        return ptx_bf16_float((uint16_t)(word >> 16 * part));
    /* The low 13 bits of a tf32 are not looked at. */
    return ptx_bits_float(element == PTX_MMA_TF32 ? word & 0xffffe000 : word);
}

static void gather_float(float *to, const struct ptx_fragment *f, enum ptx_mma_element element, const struct ptx_run *r,
                         uint8_t *regs, const struct ptx_insn *in, unsigned first)
{
    for (unsigned reg = 0; reg < f->registers; reg++) {
        const uint32_t *words = (const uint32_t *)(void *)ptx_out_at(r, regs, in, first + reg);
        for (unsigned part = 0; part < f->per_register; part++) {
            float value[PTX_LANES];
            const uint16_t *at = f->at[reg * f->per_register + part];
            for (unsigned i = 0; i < PTX_LANES; i++)
                value[i] = element_float(words[i], element, part);
            for (unsigned i = 0; i < PTX_LANES; i++)
                to[at[i]] = value[i];
        }
    }
}

static void gather_int(int32_t *to, const struct ptx_fragment *f, enum ptx_mma_element element, const struct ptx_run *r,
                       uint8_t *regs, const struct ptx_insn *in, unsigned first)
{
    for (unsigned reg = 0; reg < f->registers; reg++) {
        const uint32_t *words = (const uint32_t *)(void *)ptx_out_at(r, regs, in, first + reg);
        for (unsigned part = 0; part < f->per_register; part++) {
            const uint16_t *at = f->at[reg * f->per_register + part];
            for (unsigned i = 0; i < PTX_LANES; i++)
                to[at[i]] = element == PTX_MMA_S8   ? (int8_t)(words[i] >> 8 * part)
                            : element == PTX_MMA_U8 ? (uint8_t)(words[i] >> 8 * part)
                                                    : (int32_t)words[i];
        }
    }
}

static void gather_double(double *to, const struct ptx_fragment *f, const struct ptx_run *r, uint8_t *regs,
                          const struct ptx_insn *in, unsigned first)
{
    for (unsigned reg = 0; reg < f->registers; reg++) {
        const double *values = (const double *)(void *)ptx_out_at(r, regs, in, first + reg);
        for (unsigned i = 0; i < PTX_LANES; i++)
            to[f->at[reg][i]] = values[i];
    }
}

static void scatter_words(const uint32_t *from, const struct ptx_fragment *f, const struct ptx_run *r, uint8_t *regs,
                          const struct ptx_insn *in, uint32_t lanes)
{
    for (unsigned reg = 0; reg < f->registers; reg++) {
        uint32_t *words = (uint32_t *)(void *)ptx_out_at(r, regs, in, reg);
        PTX_FOR_LANES (lane, lanes)
            words[lane] = from[f->at[reg][lane]];
    }
}

static void scatter_halves(const float *from, const struct ptx_fragment *f, const struct ptx_run *r, uint8_t *regs,
                           const struct ptx_insn *in, uint32_t lanes)
{
    for (unsigned reg = 0; reg < f->registers; reg++) {
        uint32_t *words = (uint32_t *)(void *)ptx_out_at(r, regs, in, reg);
        PTX_FOR_LANES (lane, lanes)
            words[lane] = ptx_float_half(from[f->at[2 * reg][lane]]) |
                          (uint32_t)ptx_float_half(from[f->at[2 * reg + 1][lane]]) << 16;
    }
}

struct product {
    const struct ptx_fragment *a, *b, *c, *d;
    enum ptx_mma_element ea, eb, ec, ed;
    enum ptx_mma_shape shape;
    unsigned products; /* four for m8n8k4 of halves */
    bool saturates;
};

static void read_product(uint32_t params, struct product *out)
{
    bool wmma = params >> 16 & 1, col_a = params >> 17 & 1, col_b = params >> 18 & 1;
    out->shape = (enum ptx_mma_shape)(params & 15);
    out->ea = (enum ptx_mma_element)(params >> 4 & 7);
    out->eb = (enum ptx_mma_element)(params >> 7 & 7);
    out->ec = (enum ptx_mma_element)(params >> 10 & 7);
    out->ed = (enum ptx_mma_element)(params >> 13 & 7);
    out->saturates = params >> 19 & 1;
    out->a = ptx_mma_fragment(out->shape, PTX_MMA_A, out->ea, wmma, col_a);
    out->b = ptx_mma_fragment(out->shape, PTX_MMA_B, out->eb, wmma, col_b);
    out->c = ptx_mma_fragment(out->shape, PTX_MMA_C, out->ec, wmma, false);
    out->d = ptx_mma_fragment(out->shape, PTX_MMA_C, out->ed, wmma, false);
    out->products = !wmma && out->shape == PTX_MMA_M8N8K4 && out->ea != PTX_MMA_F64 ? 4 : 1;
}

static void float_product(const struct product *p, const struct ptx_run *r, uint8_t *regs, const struct ptx_insn *in,
                          uint32_t lanes)
{
    _Alignas(64) float a[PTX_MMA_MOST_SIZE], b[PTX_MMA_MOST_SIZE], c[PTX_MMA_MOST_SIZE];
    const struct ptx_mma_size *s = &ptx_mma_sizes[p->shape];
    unsigned first = p->d->registers, sizes[3] = {s->m * s->k, s->k * s->n, s->m * s->n};
    gather_float(a, p->a, p->ea, r, regs, in, first);
    gather_float(b, p->b, p->eb, r, regs, in, first + p->a->registers);
    gather_float(c, p->c, p->ec, r, regs, in, first + p->a->registers + p->b->registers);
    for (unsigned q = 0; q < p->products; q++) {
        float *cq = c + q * sizes[2];
        const float *aq = a + q * sizes[0], *bq = b + q * sizes[1];
#ifdef PTX_HAVE_AVX2
        if (ptx_run_wide_vectors())
            ptx_mma_f32_avx2(cq, aq, bq, s);
        else
#endif
            ptx_mma_f32_base(cq, aq, bq, s);
    }
    for (unsigned i = 0; i < p->products * sizes[2]; i++)
        c[i] = c[i] == c[i] ? c[i] : ptx_bits_float(NAN_F32);
    if (p->ed == PTX_MMA_F16) {
        scatter_halves(c, p->d, r, regs, in, lanes);
    } else {
        uint32_t words[PTX_MMA_MOST_SIZE];
        memcpy(words, c, sizeof(words));
        scatter_words(words, p->d, r, regs, in, lanes);
    }
}

static void int_product(const struct product *p, const struct ptx_run *r, uint8_t *regs, const struct ptx_insn *in,
                        uint32_t lanes)
{
    _Alignas(64) int32_t a[PTX_MMA_MOST_SIZE], b[PTX_MMA_MOST_SIZE], c[PTX_MMA_MOST_SIZE], sum[PTX_MMA_MOST_SIZE];
    const struct ptx_mma_size *s = &ptx_mma_sizes[p->shape];
    unsigned first = p->d->registers;
    gather_int(a, p->a, p->ea, r, regs, in, first);
    gather_int(b, p->b, p->eb, r, regs, in, first + p->a->registers);
    gather_int(c, p->c, p->ec, r, regs, in, first + p->a->registers + p->b->registers);
    memset(sum, 0, sizeof(sum)); /* 32 products of bytes are far from overflow */
#ifdef PTX_HAVE_AVX2
    if (ptx_run_wide_vectors())
        ptx_mma_s32_avx2(sum, a, b, s);
    else
#endif
        ptx_mma_s32_base(sum, a, b, s);
    uint32_t words[PTX_MMA_MOST_SIZE];
    for (unsigned i = 0; i < (unsigned)s->m * s->n; i++) {
        /* NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): gather fills as many */
        int64_t total = (int64_t)sum[i] + c[i];
        if (p->saturates)
            total = total > INT32_MAX ? INT32_MAX : total < INT32_MIN ? INT32_MIN : total;
        words[i] = (uint32_t)total;
    }
    scatter_words(words, p->d, r, regs, in, lanes);
}

static void double_product(const struct product *p, const struct ptx_run *r, uint8_t *regs, const struct ptx_insn *in,
                           uint32_t lanes)
{
    double a[PTX_MMA_MOST_SIZE], b[PTX_MMA_MOST_SIZE], c[PTX_MMA_MOST_SIZE];
    const struct ptx_mma_size *s = &ptx_mma_sizes[p->shape];
    unsigned first = p->d->registers;
    gather_double(a, p->a, r, regs, in, first);
    gather_double(b, p->b, r, regs, in, first + p->a->registers);
    gather_double(c, p->c, r, regs, in, first + p->a->registers + p->b->registers);
    for (unsigned i = 0; i < s->m; i++)
        for (unsigned j = 0; j < s->n; j++)
            for (unsigned l = 0; l < s->k; l++)
                /* NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): gather fills as many */
                c[i * s->n + j] = __builtin_fma(a[i * s->k + l], b[l * s->n + j], c[i * s->n + j]);
    for (unsigned reg = 0; reg < p->d->registers; reg++) {
        uint64_t *words = (uint64_t *)(void *)ptx_out_at(r, regs, in, reg);
        PTX_FOR_LANES (lane, lanes) {
            double value = c[p->d->at[reg][lane]];
            if (value == value)
                memcpy(&words[lane], &value, 8);
            else
                words[lane] = UINT64_C(0x7ff8000000000000);
        }
    }
}

/* d, a, b, c of mma and wmma.mma. */
bool ptx_out_mma(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *in, uint8_t *regs, uint32_t active,
                 uint32_t pc)
{
    (void)w, (void)pc;
    struct product p;
    read_product(PTX_OUT_PARAMS(in->aux), &p);
    const struct ptx_mma_size *s = &ptx_mma_sizes[p.shape];
    if (p.ea == PTX_MMA_F64)
        double_product(&p, r, regs, in, active);
    else if (p.ed == PTX_MMA_S32)
        int_product(&p, r, regs, in, active);
    else
        float_product(&p, r, regs, in, active);
    uint64_t operations = UINT64_C(2) * s->m * s->n * s->k * p.products;
    if (p.ed != PTX_MMA_S32)
        r->counters.flops += operations;
    if (p.ea == PTX_MMA_F64) {
        r->counters.double_flops += operations;
        return true;
    }
    if (p.ed != PTX_MMA_S32)
        r->counters.tensor_flops += operations;
    r->counters.tensor_work += p.ea == PTX_MMA_TF32  ? 2 * operations
                               : p.ed == PTX_MMA_S32 ? operations / 2
                                                     : operations;
    return true;
}

/* The lines of a matrix in memory: `count` of them, `length` elements each, `stride` elements apart. */
struct lines {
    unsigned count, length, rows, columns;
    uint64_t stride;
    bool col;
};

static void find_lines(uint32_t params, const uint32_t *stride, unsigned lane, struct lines *out)
{
    const struct ptx_mma_size *s = &ptx_mma_sizes[params & 15];
    enum ptx_mma_role role = (enum ptx_mma_role)(params >> 8 & 3);
    out->rows = role == PTX_MMA_B ? s->k : s->m;
    out->columns = role == PTX_MMA_A ? s->k : s->n;
    out->col = params >> 10 & 1;
    out->count = out->col ? out->columns : out->rows;
    out->length = out->col ? out->rows : out->columns;
    out->stride = stride ? stride[lane] : out->length;
}

static uint8_t *element_of(uint8_t *matrix, const struct lines *l, unsigned line, unsigned i, unsigned bytes)
{
    unsigned row = l->col ? i : line, column = l->col ? line : i;
    return matrix + (size_t)(row * l->columns + column) * bytes;
}

/* All lanes name one address and stride: those of the first are taken. */
static bool move_matrix(struct ptx_run *r, struct ptx_warp *w, uint32_t params, unsigned bytes, uint8_t *matrix,
                        uint64_t address, const uint32_t *stride, unsigned lane, bool write, uint32_t pc)
{
    uint8_t line_bytes[32 * 8];
    struct lines l;
    find_lines(params, stride, lane, &l);
    struct ptx_access access = {(enum ptx_space)(params >> 12), l.length * bytes, bytes, write, pc};
    for (unsigned line = 0; line < l.count; line++, address += l.stride * bytes) {
        for (unsigned i = 0; write && i < l.length; i++)
            memcpy(line_bytes + (size_t)i * bytes, element_of(matrix, &l, line, i, bytes), bytes);
        if (!(write ? ptx_run_write(r, w, &access, lane, address, line_bytes)
                    : ptx_run_read(r, w, &access, lane, address, line_bytes)))
            return false;
        for (unsigned i = 0; !write && i < l.length; i++)
            memcpy(element_of(matrix, &l, line, i, bytes), line_bytes + (size_t)i * bytes, bytes);
    }
    return true;
}

bool ptx_out_wmma_load(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *in, uint8_t *regs, uint32_t active,
                       uint32_t pc)
{
    uint32_t params = PTX_OUT_PARAMS(in->aux);
    const struct ptx_fragment *f =
        ptx_mma_fragment((enum ptx_mma_shape)(params & 15), (enum ptx_mma_role)(params >> 8 & 3),
                         (enum ptx_mma_element)(params >> 4 & 7), true, false);
    uint8_t matrix[PTX_MMA_MOST_SIZE * 8];
    unsigned lane = (unsigned)__builtin_ctz(active), bytes = f->bytes;
    uint64_t address = ((const uint64_t *)(void *)ptx_out_at(r, regs, in, f->registers))[lane];
    const uint32_t *stride = ptx_out_has(r, in, f->registers + 1u)
                                 ? (const uint32_t *)(void *)ptx_out_at(r, regs, in, f->registers + 1u)
                                 : NULL;
    if (!move_matrix(r, w, params, bytes, matrix, address, stride, lane, false, pc))
        return false;
    for (unsigned reg = 0; reg < f->registers; reg++) {
        uint8_t *words = ptx_out_at(r, regs, in, reg);
        size_t word = bytes == 8 ? 8 : 4;
        PTX_FOR_LANES (i, active)
            for (unsigned part = 0; part < f->per_register; part++)
                memcpy(words + i * word + (size_t)part * bytes,
                       matrix + (size_t)f->at[reg * f->per_register + part][i] * bytes, bytes);
    }
    return true;
}

bool ptx_out_wmma_store(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *in, uint8_t *regs,
                        uint32_t active, uint32_t pc)
{
    uint32_t params = PTX_OUT_PARAMS(in->aux);
    const struct ptx_fragment *f = ptx_mma_fragment((enum ptx_mma_shape)(params & 15), PTX_MMA_C,
                                                    (enum ptx_mma_element)(params >> 4 & 7), true, false);
    uint8_t matrix[PTX_MMA_MOST_SIZE * 8];
    unsigned lane = (unsigned)__builtin_ctz(active), bytes = f->bytes;
    for (unsigned reg = 0; reg < f->registers; reg++) {
        const uint8_t *words = ptx_out_at(r, regs, in, 2 + reg);
        size_t word = bytes == 8 ? 8 : 4;
        for (unsigned i = 0; i < PTX_LANES; i++)
            for (unsigned part = 0; part < f->per_register; part++)
                memcpy(matrix + (size_t)f->at[reg * f->per_register + part][i] * bytes,
                       words + i * word + (size_t)part * bytes, bytes);
    }
    uint64_t address = ((const uint64_t *)(void *)ptx_out_at(r, regs, in, 0))[lane];
    const uint32_t *stride = ptx_out_has(r, in, 1) ? (const uint32_t *)(void *)ptx_out_at(r, regs, in, 1) : NULL;
    return move_matrix(r, w, params, bytes, matrix, address, stride, lane, true, pc);
}

/* 8x8 matrices of 16-bit elements: lane l holds elements 2 (l mod 4) and the next of row l / 4; transposed, of column l / 4. */
static void read_rows(const uint32_t *words, bool trans, uint16_t to[8][8])
{
    for (unsigned i = 0; i < PTX_LANES; i++)
        for (unsigned part = 0; part < 2; part++) {
            unsigned row = i / 4, col = i % 4 * 2 + part;
            to[trans ? col : row][trans ? row : col] = (uint16_t)(words[i] >> 16 * part);
        }
}

static void write_rows(const uint16_t from[8][8], bool trans, uint32_t *words, uint32_t lanes)
{
    PTX_FOR_LANES (i, lanes) {
        unsigned row = i / 4, col = i % 4 * 2;
        words[i] = trans ? from[col][row] | (uint32_t)from[col + 1][row] << 16
                         : from[row][col] | (uint32_t)from[row][col + 1] << 16;
    }
}

bool ptx_out_ldmatrix(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *in, uint8_t *regs, uint32_t active,
                      uint32_t pc)
{
    uint32_t params = PTX_OUT_PARAMS(in->aux), count = params & 7;
    const uint64_t *address = (const uint64_t *)(void *)ptx_out_at(r, regs, in, count);
    struct ptx_access access = {(enum ptx_space)(params >> 4), 16, 16, false, pc};
    uint16_t matrix[4][8][8];
    for (unsigned row = 0; row < 8 * count; row++)
        if (!ptx_run_read(r, w, &access, row, address[row], matrix[row / 8][row % 8]))
            return false;
    for (unsigned k = 0; k < count; k++)
        write_rows((const uint16_t(*)[8])matrix[k], params >> 3 & 1, (uint32_t *)(void *)ptx_out_at(r, regs, in, k),
                   active);
    return true;
}

bool ptx_out_stmatrix(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *in, uint8_t *regs, uint32_t active,
                      uint32_t pc)
{
    (void)active;
    uint32_t params = PTX_OUT_PARAMS(in->aux), count = params & 7;
    const uint64_t *address = (const uint64_t *)(void *)ptx_out_at(r, regs, in, 0);
    struct ptx_access access = {(enum ptx_space)(params >> 4), 16, 16, true, pc};
    for (unsigned k = 0; k < count; k++) {
        uint16_t matrix[8][8];
        read_rows((const uint32_t *)(void *)ptx_out_at(r, regs, in, 1 + k), params >> 3 & 1, matrix);
        for (unsigned row = 0; row < 8; row++)
            if (!ptx_run_write(r, w, &access, 8 * k + row, address[8 * k + row], matrix[row]))
                return false;
    }
    return true;
}

bool ptx_out_movmatrix(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *in, uint8_t *regs, uint32_t active,
                       uint32_t pc)
{
    (void)w, (void)pc;
    uint16_t matrix[8][8];
    read_rows((const uint32_t *)(void *)ptx_out_at(r, regs, in, 1), true, matrix);
    write_rows((const uint16_t(*)[8])matrix, false, (uint32_t *)(void *)ptx_out_at(r, regs, in, 0), active);
    return true;
}
