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
/* clang-format on */

enum ptx_lane_function {
#define X(name) PTX_LANE_##name,
    PTX_LANE_FUNCTIONS(X)
#undef X
        PTX_LANE_COUNT
};

typedef uint64_t ptx_lane_fn(uint64_t a, uint64_t b, uint64_t c, uint64_t imm);
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
enum ptx_round { PTX_ROUND_RN, PTX_ROUND_RZ, PTX_ROUND_RM, PTX_ROUND_RP };

/* imm of cvt: result type | source type << 8 | rounding << 16 | flags. Rounding to integral when CVT_INTEGRAL. */
#define PTX_CVT_SAT (UINT64_C(1) << 24)
#define PTX_CVT_FTZ (UINT64_C(1) << 25)
#define PTX_CVT_INTEGRAL (UINT64_C(1) << 26)

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

/* imm for functions with integer types: log2 of bytes | signed << 8; more is said at the function. */
#define PTX_LANE_SIGNED 0x100u

#endif
