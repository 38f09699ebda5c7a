/* Prints the list of supported instructions for docs/ptx.md: what the conformance tables have. */
#include "ptx/conformance/conform.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char (*seen)[96];
static size_t seen_count;

/* How many of the row's forms no row before it had; remembers them. */
static size_t new_forms(const struct conform_row *row)
{
    size_t count, fresh = 0;
    if (!row->kinds)
        return 1;
    struct form *forms = conform_expand(row, &count);
    seen = realloc(seen, (seen_count + count) * sizeof(*seen));
    if (!seen)
        abort();
    for (size_t i = 0; i < count; i++) {
        bool known = false;
        for (size_t k = seen_count; k-- > 0 && !known;)
            known = !strcmp(seen[k], forms[i].shown);
        if (!known)
            memcpy(seen[seen_count++], forms[i].shown, sizeof(*seen));
        fresh += !known;
    }
    free(forms);
    return fresh;
}

static void print_power(const char *what, double bound)
{
    printf("%s ≤ 2^%.3g", what, log2(bound));
}

static void print_check(const struct conform_row *row)
{
    const struct conform_bound *b = &row->bound;
    const char * or = "";
    if (row->tested_in) {
        printf("[%s](../%s)", strrchr(row->tested_in, '/') + 1, row->tested_in);
        return;
    }
    if (b->ulps <= 0 && b->relative <= 0 && b->absolute <= 0)
        printf("exact");
    if (b->ulps > 0) {
        printf("≤ %g ulp", b->ulps);
        or = ", or ";
    }
    if (b->relative > 0) {
        printf("%s", or);
        print_power("relative", b->relative);
        or = ", or ";
    }
    if (b->absolute > 0) {
        printf("%s", or);
        print_power("absolute", b->absolute);
    }
}

static bool same_check(const struct conform_row *a, const struct conform_row *b)
{
    return a->tested_in == b->tested_in && a->bound.ulps == b->bound.ulps && a->bound.relative == b->bound.relative &&
           a->bound.absolute == b->bound.absolute;
}

/* One line for rows of one instruction and one kind of check that stand together. */
static void print_table(const struct conform_table *table)
{
    char pattern[1024], name[32] = "";
    const struct conform_row *last = NULL;
    for (size_t r = 0; r < *table->count; r++) {
        const struct conform_row *row = &table->rows[r];
        if (!new_forms(row))
            continue;
        conform_pattern(row, pattern, sizeof(pattern));
        size_t bytes = strcspn(pattern, ".{(");
        if (last && same_check(last, row) && strlen(name) == bytes && !strncmp(name, pattern, bytes)) {
            printf(", `%s`", pattern + bytes);
            continue;
        }
        if (last) {
            printf(" | ");
            print_check(last);
            printf(" |\n");
        }
        snprintf(name, sizeof(name), "%.*s", (int)bytes, pattern);
        printf(pattern[bytes] ? "| `%s` | `%s`" : "| `%s` |%s", name, pattern + bytes);
        last = row;
    }
    if (last) {
        printf(" | ");
        print_check(last);
        printf(" |\n");
    }
}

int main(void)
{
    for (const struct conform_table *table = conform_tables; table->title; table++) {
        printf("\n### %s\n\n| instruction | forms | result |\n|---|---|---|\n", table->title);
        print_table(table);
    }
    free(seen);
    return 0;
}
