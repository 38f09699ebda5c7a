/*
 * The conformance tables are complete: no instruction, and no form of one, is accepted that no row lists. Forms are tried by
 * changing listed ones: every modifier that the parser knows is added, every type put in the place of another. What is
 * refused says so in one line that names the instruction.
 */
#include "ptx/conformance/conform.h"

#include "simgpu/ptx/lower.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY_BYTES 160

static const char *const modifiers[] = {
#define MOD(name, text) text,
#include "simgpu/ptx/mods.def"
#undef MOD
};
static const char *const types[] = {"pred",   "b8",   "b16",  "b32",   "b64",    "b128",  "u8",    "u16",
                                    "u32",    "u64",  "s8",   "s16",   "s32",    "s64",   "f16",   "f32",
                                    "f64",    "bf16", "tf32", "f16x2", "bf16x2", "u16x2", "s16x2", "e4m3x2",
                                    "e5m2x2", "u4",   "s4",   "u2",    "s2"};
#define TYPE_COUNT (sizeof(types) / sizeof(types[0]))

static bool is_type(const char *word)
{
    for (unsigned i = 0; i < TYPE_COUNT; i++)
        if (!strcmp(types[i], word))
            return true;
    return false;
}

/* A form's words: the order of modifiers means nothing, that of types does. */
struct words {
    char text[96];
    const char *modifiers[16], *types[8];
    unsigned modifier_count, type_count;
};

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void split(const char *shown, struct words *w)
{
    *w = (struct words){0};
    snprintf(w->text, sizeof(w->text), "%s", shown);
    char *rest = w->text;
    strsep(&rest, ".");
    while (rest) {
        const char *word = strsep(&rest, ".");
        if (is_type(word) && w->type_count < 8)
            w->types[w->type_count++] = word;
        else if (w->modifier_count < 16)
            w->modifiers[w->modifier_count++] = word;
    }
    qsort(w->modifiers, w->modifier_count, sizeof(w->modifiers[0]), by_text);
}

static void key_of(const char *shown, char key[KEY_BYTES])
{
    struct words w;
    split(shown, &w);
    int at = snprintf(key, KEY_BYTES, "%s", w.text);
    for (unsigned i = 0; i < w.modifier_count; i++)
        at += snprintf(key + at, KEY_BYTES - (size_t)at, ".%s", w.modifiers[i]);
    for (unsigned i = 0; i < w.type_count; i++)
        at += snprintf(key + at, KEY_BYTES - (size_t)at, "/%s", w.types[i]);
}

struct listed {
    struct form *forms;
    size_t count;
    char (*keys)[KEY_BYTES];
};

static int by_key(const void *a, const void *b)
{
    return strcmp(a, b);
}

static struct listed list_forms(void)
{
    struct listed all = {0};
    for (const struct conform_table *table = conform_tables; table->title; table++) {
        for (size_t r = 0; r < *table->count; r++) {
            size_t count;
            struct form *forms = conform_expand(&table->rows[r], &count);
            all.forms = realloc(all.forms, (all.count + count) * sizeof(*all.forms));
            cr_assert(all.forms);
            memcpy(all.forms + all.count, forms, count * sizeof(*forms));
            all.count += count;
            free(forms);
        }
    }
    cr_assert(all.count > 0);
    all.keys = malloc(all.count * sizeof(*all.keys));
    cr_assert(all.keys);
    for (size_t i = 0; i < all.count; i++)
        key_of(all.forms[i].shown, all.keys[i]);
    qsort(all.keys, all.count, sizeof(*all.keys), by_key);
    return all;
}

static void drop_forms(struct listed *all)
{
    free(all->forms);
    free(all->keys);
}

static bool is_listed(const struct listed *all, const char *shown)
{
    char key[KEY_BYTES];
    key_of(shown, key);
    return bsearch(key, all->keys, all->count, sizeof(*all->keys), by_key) != NULL;
}

Test(coverage, every_instruction_has_a_row)
{
    struct listed all = list_forms();
    for (size_t i = 0; ptx_lower_instruction(i); i++) {
        bool found = false;
        for (size_t k = 0; k < all.count && !found; k++)
            found = !strcmp(all.forms[k].name, ptx_lower_instruction(i));
        cr_expect(found, "no row for '%s'", ptx_lower_instruction(i));
    }
    drop_forms(&all);
}

/* Registers of one kind: for all operands, or only for results (which 0) or inputs (1) where they have types of their own. */
static void put_kind(char *kinds, char kind, unsigned type_count, unsigned which)
{
    bool of_inputs = false;
    for (char *c = kinds; *c; c++) {
        of_inputs |= *c == ':';
        if (*c != ':' && *c != 'p' && (type_count == 1 || of_inputs == (which > 0)))
            *c = kind;
    }
}

/* The form with other words in front of its operands; kinds as given, or the row's. */
static void check_variant(const struct listed *all, const struct form *base, const char *shown, const char *kinds)
{
    if (is_listed(all, shown))
        return;
    struct form f = *base;
    struct conform_row row = *base->row;
    char error[600];
    const char *set_up = strchr(base->text, '#'), *own = set_up ? set_up + 2 : base->text;
    own += strcspn(own, " ;");
    snprintf(f.text, sizeof(f.text), "%s%.*s", shown, (int)strcspn(own, ";"), own);
    row.kinds = kinds ? kinds : row.kinds;
    f.row = &row;
    if (conform_accepts(&f, error, sizeof(error))) {
        cr_expect(false, "accepted, but in no row: %s", f.text);
        return;
    }
    cr_expect(!strncmp(error, "line ", 5) && error[5] >= '1' && error[5] <= '9' && !strchr(error, '\n') &&
                  strstr(error, base->name),
              "%s: '%s' does not name line and instruction", f.text, error);
}

static void add_modifiers(const struct listed *all, const struct form *base)
{
    char shown[sizeof(base->shown) + 40];
    for (unsigned i = 0; i < sizeof(modifiers) / sizeof(modifiers[0]); i++) {
        if (strchr(modifiers[i], '#'))
            continue;
        snprintf(shown, sizeof(shown), "%s.%s", base->shown, modifiers[i]);
        check_variant(all, base, shown, NULL);
    }
}

static char kind_of(const char *type)
{
    static const char *const by_size[] = {"b16 u16 s16 f16 bf16 e4m3x2 e5m2x2 b8 u8 s8", "b64 u64 s64 f64"};
    for (unsigned i = 0; i < 2; i++) {
        const char *at = strstr(by_size[i], type);
        if (at && (at == by_size[i] || at[-1] == ' '))
            return i ? 'l' : 'w';
    }
    return 'i';
}

static void change_types(const struct listed *all, const struct form *base)
{
    struct words w;
    split(base->shown, &w);
    char shown[sizeof(base->shown) + 40], kinds[CONFORM_RESULTS + CONFORM_INPUTS + 2];
    for (unsigned which = 0; which < w.type_count; which++) {
        for (unsigned i = 0; i < TYPE_COUNT; i++) {
            int at = snprintf(shown, sizeof(shown), "%s", w.text);
            for (unsigned k = 0; k < w.modifier_count; k++)
                at += snprintf(shown + at, sizeof(shown) - (size_t)at, ".%s", w.modifiers[k]);
            for (unsigned k = 0; k < w.type_count; k++)
                at += snprintf(shown + at, sizeof(shown) - (size_t)at, ".%s", k == which ? types[i] : w.types[k]);
            snprintf(kinds, sizeof(kinds), "%s", base->row->kinds);
            if (kind_of(types[i]) != kind_of(w.types[which]))
                put_kind(kinds, kind_of(types[i]), w.type_count, which);
            check_variant(all, base, shown, kinds);
        }
    }
}

static bool same_words(const struct form *a, const struct form *b, bool of_types)
{
    struct words x, y;
    split(a->shown, &x);
    split(b->shown, &y);
    unsigned count = of_types ? x.type_count : x.modifier_count;
    if (count != (of_types ? y.type_count : y.modifier_count))
        return false;
    for (unsigned i = 0; i < count; i++)
        if (strcmp(of_types ? x.types[i] : x.modifiers[i], of_types ? y.types[i] : y.modifiers[i]) != 0)
            return false;
    return true;
}

/* Of each instruction the first form with types (or modifiers) of its own, up to CONFORM_BASES of them. */
static void for_bases(const struct listed *all, bool of_types,
                      void (*check)(const struct listed *, const struct form *))
{
    for (size_t i = 0; i < all->count;) {
        size_t end = i, bases[CONFORM_BASES];
        unsigned count = 0;
        for (; end < all->count && !strcmp(all->forms[end].name, all->forms[i].name); end++) {
            const struct form *f = &all->forms[end];
            bool is_new = !f->row->tested_in && !f->row->open;
            for (unsigned k = 0; k < count && is_new; k++)
                is_new = !same_words(&all->forms[bases[k]], f, of_types);
            if (is_new && count < CONFORM_BASES)
                bases[count++] = end;
        }
        for (unsigned k = 0; k < count; k++)
            check(all, &all->forms[bases[k]]);
        i = end;
    }
}

Test(coverage, no_modifier_is_taken_that_no_row_has)
{
    struct listed all = list_forms();
    for_bases(&all, true, add_modifiers);
    drop_forms(&all);
}

Test(coverage, no_type_is_taken_that_no_row_has)
{
    struct listed all = list_forms();
    for_bases(&all, false, change_types);
    drop_forms(&all);
}
