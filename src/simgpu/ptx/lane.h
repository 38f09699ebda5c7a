/*
 * Lane functions: the rarer operations, computed for one lane at a time on 64-bit patterns. Pure; the result holds in the
 * low bits, extended to 64 bits according to the result type.
 */
#ifndef SG_PTX_LANE_H
#define SG_PTX_LANE_H

#include <stdint.h>

/* clang-format does not come to rest here. */
/* clang-format off */
#define PTX_LANE_FUNCTIONS(X) \
    X(add_sat) X(sub_sat) X(mul24) X(sad) X(bfe_u) X(bfe_s) X(bfi) X(prmt) X(brev) X(bfind) X(shf) X(lop3) X(dp4a) \
    X(arith_f32) X(arith_f64) X(cvt) X(div_approx) X(rcp_approx_f64) X(rsqrt_approx_f64) X(testp) X(mad_hi_sat) \
    X(dp2a) X(bmsk) X(szext) X(fns)
/* In files of their own. */
#define PTX_LANE_MORE(X) X(cvt_small) X(cvt_pack) X(video) X(video_simd)
/* clang-format on */

enum ptx_lane_function {
#define X(name) PTX_LANE_##name,
    PTX_LANE_FUNCTIONS(X) PTX_LANE_MORE(X)
#undef X
        PTX_LANE_COUNT
};

typedef uint64_t ptx_lane_fn(uint64_t a, uint64_t b, uint64_t c, uint64_t imm);
#define X(name) ptx_lane_fn ptx_lane_##name;
PTX_LANE_MORE(X)
#undef X
extern ptx_lane_fn *const ptx_lane_functions[PTX_LANE_COUNT];

/* imm of arith: operation | rounding << 8 */
enum ptx_arith {
    PTX_ARITH_ADD,
    PTX_ARITH_SUB,
    PTX_ARITH_MUL,
    PTX_ARITH_FMA,
    PTX_ARITH_DIV,
    PTX_ARITH_SQRT,
    PTX_ARITH_RCP
};
/* RNA: ties away from zero, of conversions only */
enum ptx_round { PTX_ROUND_RN, PTX_ROUND_RZ, PTX_ROUND_RM, PTX_ROUND_RP, PTX_ROUND_RNA };

/* imm of cvt: result type | source type << 8 | rounding << 16 | flags. Rounding to integral when CVT_INTEGRAL. */
#define PTX_CVT_SAT (UINT64_C(1) << 24)
#define PTX_CVT_FTZ (UINT64_C(1) << 25)
#define PTX_CVT_INTEGRAL (UINT64_C(1) << 26)
#define PTX_CVT_RELU (UINT64_C(1) << 27)
#define PTX_CVT_FINITE (UINT64_C(1) << 28)
#define PTX_CVT_HIGH (UINT64_C(1) << 29)

/* imm of testp */
enum ptx_testp {
    PTX_TESTP_FINITE,
    PTX_TESTP_INFINITE,
    PTX_TESTP_NUMBER,
    PTX_TESTP_NOTANUMBER,
    PTX_TESTP_NORMAL,
    PTX_TESTP_SUBNORMAL,
    PTX_TESTP_F64 = 8,
};
/* imm of prmt */
enum ptx_prmt { PTX_PRMT_INDEX, PTX_PRMT_F4E, PTX_PRMT_B4E, PTX_PRMT_RC8, PTX_PRMT_ECL, PTX_PRMT_ECR, PTX_PRMT_RC16 };

/* imm of video and video_simd: operation | flags | fields from these bits on */
enum ptx_video {
    PTX_VIDEO_ADD,
    PTX_VIDEO_SUB,
    PTX_VIDEO_ABSDIFF,
    PTX_VIDEO_MIN,
    PTX_VIDEO_MAX,
    PTX_VIDEO_AVRG,
    PTX_VIDEO_SHL,
    PTX_VIDEO_SHR,
    PTX_VIDEO_SET,
    PTX_VIDEO_MAD,
};
#define PTX_VIDEO_D_SIGNED (UINT64_C(1) << 4)
#define PTX_VIDEO_A_SIGNED (UINT64_C(1) << 5)
#define PTX_VIDEO_B_SIGNED (UINT64_C(1) << 6)
#define PTX_VIDEO_SAT (UINT64_C(1) << 7)
#define PTX_VIDEO_WRAP (UINT64_C(1) << 8)
#define PTX_VIDEO_NEG_PRODUCT (UINT64_C(1) << 9)
#define PTX_VIDEO_NEG_C (UINT64_C(1) << 10)
#define PTX_VIDEO_PLUS_ONE (UINT64_C(1) << 11)
#define PTX_VIDEO_ACCUMULATE (UINT64_C(1) << 12)
#define PTX_VIDEO_FOUR (UINT64_C(1) << 13) /* bytes rather than halves */
#define PTX_VIDEO_CMP_AT 16                /* EQ NE LT LE GT GE */
/* scalar: parts are 0 = all, 1 .. 4 = b0 .. b3, 5, 6 = h0, h1; op2 0 = none, add, min, max; scale in bits */
#define PTX_VIDEO_A_PART_AT 20
#define PTX_VIDEO_B_PART_AT 24
#define PTX_VIDEO_D_PART_AT 28
#define PTX_VIDEO_OP2_AT 32
#define PTX_VIDEO_SCALE_AT 36
/* simd: four bits for each element, lowest first; a bit for each that is written */
#define PTX_VIDEO_A_SELECT_AT 20
#define PTX_VIDEO_B_SELECT_AT 36
#define PTX_VIDEO_MASK_AT 52

/* imm for functions with integer types: log2 of bytes | signed << 8; more is said at the function. */
#define PTX_LANE_SIGNED 0x100u

#endif
