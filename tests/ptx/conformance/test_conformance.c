/* Every form of every supported instruction against its reference. */
#include "ptx/conformance/conform.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static void check(const char *title)
{
    const struct conform_table *table = conform_tables;
    while (table->title && strcmp(table->title, title) != 0)
        table++;
    cr_assert(table->title, "no table of that title");
    struct conform_figures figures = conform_run(table, getenv("CONFORM_ONLY"));
    cr_assert_eq(figures.failures, 0, "%zu of %zu cases failed: see above", figures.failures, figures.cases);
}

#define TABLE(says, title)                                                                                             \
    Test(conformance, says)                                                                                            \
    {                                                                                                                  \
        check(title);                                                                                                  \
    }
TABLE(integer_arithmetic, "Integer arithmetic")
TABLE(logic_shifts_bit_fields_moves, "Logic, shifts, bit fields, moves and selections")
TABLE(floats_in_every_rounding_and_approximations, "Floating point: f32 and f64")
TABLE(halves_alone_and_in_pairs, "Floating point: f16 and bf16")
TABLE(comparisons, "Comparisons")
TABLE(conversions, "Conversions")
TABLE(matrix_products, "Matrix products")
TABLE(video_instructions, "Video")
TABLE(loads_stores_atomics, "Loads, stores and atomics")
TABLE(warps, "Warps")
