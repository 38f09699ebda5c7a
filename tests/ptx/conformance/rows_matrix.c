/* Matrix products against the same steps in soft floats: special values, every fragment. */
#include "ptx/conformance/ints.h"
#include "ptx/conformance/soft.h"
#include "ptx/fragments.h"

#include <string.h>

/* In the order of k, each sum rounded. */

static const struct shape shapes[] = {
    {"m16n8k16", 16, 8, 16}, {"m16n8k8", 16, 8, 8}, {"m16n8k4", 16, 8, 4},
    {"m16n8k32", 16, 8, 32}, {"m8n8k16", 8, 8, 16}, {"m8n8k4", 8, 8, 4},
};

static const struct shape *shape_of(const struct form *f)
{
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        const char *at = strstr(f->text, shapes[i].name);
        if (at && at[strlen(shapes[i].name)] == '.')
            return &shapes[i];
    }
    return NULL;
}

static unsigned element_bytes(enum form_type t)
{
    switch (t) {
    case T_S8:
    case T_U8: return 1;
    case T_F16:
    case T_BF16: return 2;
    case T_F64: return 8;
    default: return 4;
    }
}

static uint64_t matrix[3][32][32];

/* Puts the registers from input `first` on where their elements belong. Returns the next input. */
static unsigned gather(const struct shape *s, enum role role, enum form_type t, unsigned first,
                       const uint64_t in[CONFORM_INPUTS][CONFORM_LANES])
{
    unsigned bytes = element_bytes(t), size = role == A ? s->m * s->k : role == B ? s->k * s->n : s->m * s->n;
    unsigned each = size / 32, per = bytes < 4 ? 4 / bytes : 1;
    uint64_t mask = bytes == 8 ? UINT64_MAX : (UINT64_C(1) << 8 * bytes) - 1;
    for (unsigned lane = 0; lane < 32; lane++)
        for (unsigned i = 0; i < each; i++) {
            struct place p = place_of(s, role, bytes, lane, i);
            matrix[role][p.row][p.col] = in[first + i / per][lane] >> 8 * bytes * (i % per) & mask;
        }
    return first + each / per;
}

static const struct soft_format *format_of(enum form_type t)
{
    return t == T_F16 ? &soft_f16 : t == T_BF16 ? &soft_bf16 : t == T_F64 ? &soft_f64 : &soft_f32;
}

static struct soft number(enum form_type t, uint64_t bits)
{
    return soft_read(format_of(t), t == T_TF32 ? bits & ~UINT64_C(0x1fff) : bits);
}

static uint64_t float_element(const struct form *f, const struct shape *s, unsigned row, unsigned col)
{
    const struct soft_format *format = f->types[1] == T_F64 ? &soft_f64 : &soft_f32;
    struct soft sum = number(f->types[3], matrix[C][row][col]);
    for (unsigned k = 0; k < s->k; k++) {
        struct soft a = number(f->types[1], matrix[A][row][k]), b = number(f->types[2], matrix[B][k][col]);
        sum = soft_read(format, soft_write(format, soft_fma(a, b, sum), SOFT_RN));
    }
    return soft_write(format_of(f->types[0]), sum, SOFT_RN);
}

static uint64_t int_element(const struct form *f, const struct shape *s, unsigned row, unsigned col)
{
    wide sum = value_of(matrix[C][row][col], 32, true);
    for (unsigned k = 0; k < s->k; k++)
        sum += typed(matrix[A][row][k], f->types[1]) * typed(matrix[B][k][col], f->types[2]);
    return (uint64_t)(form_has(f, M_satfinite) ? clamped(sum, 32, true) : sum) & 0xffffffff;
}

static void ref_mma(const struct form *f, const uint64_t in[CONFORM_INPUTS][CONFORM_LANES],
                    uint64_t out[CONFORM_RESULTS][CONFORM_LANES])
{
    const struct shape *s = shape_of(f);
    unsigned next = gather(s, A, f->types[1], 0, in);
    next = gather(s, B, f->types[2], next, in);
    gather(s, C, f->types[3], next, in);
    unsigned bytes = element_bytes(f->types[0]), per = bytes < 4 ? 4 / bytes : 1;
    memset(out, 0, CONFORM_RESULTS * sizeof(out[0]));
    for (unsigned lane = 0; lane < 32; lane++)
        for (unsigned i = 0; i < s->m * s->n / 32; i++) {
            struct place p = place_of(s, C, bytes, lane, i);
            uint64_t value = f->types[0] == T_S32 ? int_element(f, s, p.row, p.col) : float_element(f, s, p.row, p.col);
            out[i / per][lane] |= value << 8 * bytes * (i % per);
        }
}

static void ref_movmatrix(const struct form *f, const uint64_t in[CONFORM_INPUTS][CONFORM_LANES],
                          uint64_t out[CONFORM_RESULTS][CONFORM_LANES])
{
    (void)f;
    for (unsigned row = 0; row < 8; row++)
        for (unsigned col = 0; col < 8; col++) { /* element (col, row) of what came in */
            uint64_t element = in[0][4 * col + row / 2] >> 16 * (row % 2) & 0xffff;
            uint64_t *word = &out[0][4 * row + col / 2];
            *word = col % 2 ? *word | element << 16 : element;
        }
}

#define MMA(shape, types, registers, a, b, c, d, each)                                                                 \
    {                                                                                                                  \
        .text = "mma.sync.aligned." shape ".row.col" types " " registers, .kinds = d ":" a b c,                        \
        .warp_reference = ref_mma, .cases = each                                                                       \
    }
#define R4_4_2_4 "{$D, $E, $F, $G}, {$a, $b, $c, $d}, {$e, $f}, {$g, $h, $i, $j}"
#define R2_4_2_2 "{$D, $E}, {$a, $b, $c, $d}, {$e, $f}, {$g, $h}"
#define R2_4_2_4 "{$D, $E}, {$a, $b, $c, $d}, {$e, $f}, {$g, $h, $i, $j}"
#define R4_4_2_2 "{$D, $E, $F, $G}, {$a, $b, $c, $d}, {$e, $f}, {$g, $h}"
#define R4_2_1_4 "{$D, $E, $F, $G}, {$a, $b}, {$c}, {$d, $e, $f, $g}"
#define R2_2_1_2 "{$D, $E}, {$a, $b}, {$c}, {$d, $e}"
#define R2_1_1_2 "{$D, $E}, {$a}, {$b}, {$c, $d}"
#define R4_8_4_4 "{$D, $E, $F, $G}, {$a, $b, $c, $d, $e, $f, $g, $h}, {$i, $j, $k, $l}, {$m, $n, $o, $p}"
const struct conform_row rows_matrix[] = {
    MMA("m16n8k16", ".f32.f16.f16.f32", R4_4_2_4, "xxxx", "xx", "ffff", "ffff", 512),
    MMA("m16n8k16", ".f16.f16.f16.f16", R2_4_2_2, "xxxx", "xx", "xx", "xx", 512),
    MMA("m16n8k16", ".f16.f16.f16.f32", R2_4_2_4, "xxxx", "xx", "ffff", "xx", 256),
    MMA("m16n8k16", ".f32.f16.f16.f16", R4_4_2_2, "xxxx", "xx", "xx", "ffff", 256),
    MMA("m16n8k8", ".f32.f16.f16.f32", R4_2_1_4, "xx", "x", "ffff", "ffff", 256),
    MMA("m16n8k8", ".f16.f16.f16.f16", R2_2_1_2, "xx", "x", "xx", "xx", 256),
    MMA("m16n8k16", ".f32.bf16.bf16.f32", R4_4_2_4, "yyyy", "yy", "ffff", "ffff", 256),
    MMA("m16n8k8", ".f32.bf16.bf16.f32", R4_2_1_4, "yy", "y", "ffff", "ffff", 256),
    MMA("m16n8k4", ".f32.tf32.tf32.f32", R4_2_1_4, "ff", "f", "ffff", "ffff", 512),
    MMA("m16n8k8", ".f32.tf32.tf32.f32", R4_4_2_4, "ffff", "ff", "ffff", "ffff", 256),
    MMA("m8n8k16", "<|.satfinite>.s32<.s8|.u8><.s8|.u8>.s32", R2_1_1_2, "q", "q", "ii", "ii", 1024),
    MMA("m16n8k16", "<|.satfinite>.s32<.s8|.u8><.s8|.u8>.s32", R4_2_1_4, "qq", "q", "iiii", "iiii", 512),
    MMA("m16n8k32", "<|.satfinite>.s32<.s8|.u8><.s8|.u8>.s32", R4_4_2_4, "qqqq", "qq", "iiii", "iiii", 512),
    MMA("m8n8k4", ".f64.f64.f64.f64", R2_1_1_2, "d", "d", "dd", "dd", 512),
    MMA("m16n8k4", ".f64.f64.f64.f64", R4_2_1_4, "dd", "d", "dddd", "dddd", 256),
    MMA("m16n8k8", ".f64.f64.f64.f64", R4_4_2_4, "dddd", "dd", "dddd", "dddd", 256),
    MMA("m16n8k16", ".f64.f64.f64.f64", R4_8_4_4, "dddddddd", "dddd", "dddd", "dddd", 128),
    {.text = "movmatrix.sync.aligned.m8n8.trans.b16 $D, $a", .kinds = "i:i", .warp_reference = ref_movmatrix},
};
const size_t rows_matrix_count = sizeof(rows_matrix) / sizeof(rows_matrix[0]);
