/* One row per instruction under test: how it is written, the sizes of its operands, an independent model of it. */
#ifndef TEST_PTX_OPS_H
#define TEST_PTX_OPS_H

#include <stdint.h>

enum values { INTS, SHIFTS, F32S, F64S, F16S, MIXED };

struct op_row {
    const char *text;      /* the instruction with %d %a %b %c for registers, and %pc a predicate: c's lowest bit */
    uint8_t sizes[4];      /* bytes of d, a, b, c; 0 = not there. 1 for d: a predicate, seen as 0 or 1 */
    enum values values[3]; /* what to feed a, b, c with */
    uint64_t (*model)(uint64_t a, uint64_t b, uint64_t c);
    double ulps; /* 0 = exact; else a relative error bound for f32 results, in units of the last place */
};

extern const struct op_row int_rows[], float_rows[], cvt_rows[];
extern const unsigned int_row_count, float_row_count, cvt_row_count;

#endif
