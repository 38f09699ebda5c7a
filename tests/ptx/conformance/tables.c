#include "ptx/conformance/conform.h"

extern const struct conform_row rows_bits[], rows_compare[], rows_cvt[], rows_float[], rows_half[], rows_int[],
    rows_matrix[], rows_memory[], rows_other[], rows_video[], rows_warp[];
extern const size_t rows_bits_count, rows_compare_count, rows_cvt_count, rows_float_count, rows_half_count,
    rows_int_count, rows_matrix_count, rows_memory_count, rows_other_count, rows_video_count, rows_warp_count;

#define TABLE(name, title)                                                                                             \
    {                                                                                                                  \
        title, rows_##name, &rows_##name##_count                                                                       \
    }
const struct conform_table conform_tables[] = {
    TABLE(int, "Integer arithmetic"),
    TABLE(bits, "Logic, shifts, bit fields, moves and selections"),
    TABLE(float, "Floating point: f32 and f64"),
    TABLE(half, "Floating point: f16 and bf16"),
    TABLE(compare, "Comparisons"),
    TABLE(cvt, "Conversions"),
    TABLE(video, "Video"),
    TABLE(memory, "Loads, stores and atomics"),
    TABLE(warp, "Warps"),
    TABLE(matrix, "Matrix products"),
    TABLE(other, "Memory, control flow, matrices"),
    {0},
};
