/*
 * Matrix fragments: which element of a matrix each lane's registers hold.
 *
 * For mma the ISA documents it; wmma fragments are opaque, here a lane holds consecutive elements. The arithmetic: an
 * element of D is C's, to which the exact products of halves, bfloat16 or tf32 are added in the order of k, each sum
 * rounded to nearest in binary32 and, for .f16 results, once more at the end; NaN results are canonical. For f64
 * each step is a fused multiply-add. Integers are exact before they wrap or saturate.
 */
#ifndef SG_PTX_MMA_H
#define SG_PTX_MMA_H

#include <stdbool.h>
#include <stdint.h>

enum ptx_mma_shape {
    PTX_MMA_M16N16K16,
    PTX_MMA_M32N8K16,
    PTX_MMA_M8N32K16,
    PTX_MMA_M16N16K8,
    PTX_MMA_M8N8K4,
    PTX_MMA_M8N8K16,
    PTX_MMA_M16N8K4,
    PTX_MMA_M16N8K8,
    PTX_MMA_M16N8K16,
    PTX_MMA_M16N8K32,
    PTX_MMA_SHAPES
};
enum ptx_mma_element {
    PTX_MMA_F16,
    PTX_MMA_BF16,
    PTX_MMA_TF32,
    PTX_MMA_S8,
    PTX_MMA_U8,
    PTX_MMA_F64,
    PTX_MMA_F32,
    PTX_MMA_S32,
};
enum ptx_mma_role { PTX_MMA_A, PTX_MMA_B, PTX_MMA_C };

#define PTX_MMA_MOST_ELEMENTS 16 /* of a lane */
#define PTX_MMA_MOST_SIZE 512    /* elements of a matrix */

struct ptx_mma_size {
    uint8_t m, n, k;
};
extern const struct ptx_mma_size ptx_mma_sizes[PTX_MMA_SHAPES];

struct ptx_fragment {
    uint8_t registers;                      /* 0 = there is no such fragment */
    uint8_t per_register;                   /* elements */
    uint8_t bytes;                          /* of an element */
    uint16_t at[PTX_MMA_MOST_ELEMENTS][32]; /* index in the matrix, row by row; A is m x k, B k x n, C m x n */
};
/* `wmma`: of the opaque kind. `col`: of a column-major operand, which matters to m8n8k4 of halves only. */
const struct ptx_fragment *ptx_mma_fragment(enum ptx_mma_shape shape, enum ptx_mma_role role,
                                            enum ptx_mma_element element, bool wmma, bool col);

/* Parameters of the operations, packed into PTX_OUT_PARAMS. */
#define PTX_MMA_PARAMS(shape, a, b, c, d, wmma, col_a, col_b, sat)                                                     \
    ((uint32_t)(shape) | (uint32_t)(a) << 4 | (uint32_t)(b) << 7 | (uint32_t)(c) << 10 | (uint32_t)(d) << 13 |         \
     (uint32_t)(wmma) << 16 | (uint32_t)(col_a) << 17 | (uint32_t)(col_b) << 18 | (uint32_t)(sat) << 19)
/* wmma.load and .store: shape, element, role, layout, space. */
#define PTX_WMMA_PARAMS(shape, element, role, col, space)                                                              \
    ((uint32_t)(shape) | (uint32_t)(element) << 4 | (uint32_t)(role) << 8 | (uint32_t)(col) << 10 |                    \
     (uint32_t)(space) << 12)

/* c (m x n) += a (m x k) times b (k x n). */
typedef void ptx_mma_f32_fn(float *c, const float *a, const float *b, const struct ptx_mma_size *size);
typedef void ptx_mma_s32_fn(int32_t *c, const int32_t *a, const int32_t *b, const struct ptx_mma_size *size);
ptx_mma_f32_fn ptx_mma_f32_base, ptx_mma_f32_avx2;
ptx_mma_s32_fn ptx_mma_s32_base, ptx_mma_s32_avx2;

#endif
