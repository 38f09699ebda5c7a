/* Every form of every supported instruction against its reference. */
#include "ptx/conformance/conform.h"

#include <criterion/criterion.h>
#include <stdlib.h>

static void check(const struct conform_row *rows, size_t count, const char *title)
{
    struct conform_table table = {title, rows, count};
    struct conform_figures figures = conform_run(&table, getenv("CONFORM_ONLY"));
    cr_assert_eq(figures.failures, 0, "%zu of %zu cases failed: see above", figures.failures, figures.cases);
}

#define TABLE(name, says, title)                                                                                       \
    Test(conformance, says)                                                                                            \
    {                                                                                                                  \
        check(rows_##name, rows_##name##_count, title);                                                                \
    }
TABLE(int, integer_arithmetic, "integers")
