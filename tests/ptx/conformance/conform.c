#include "ptx/conformance/conform.h"

#include "ptx/conformance/soft.h"
#include "ptx/conformance/values.h"
#include "ptx/machine.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK 112u /* three warps and a half: results are merged into registers, too, not only written over them */
#define FORMS_AT_ONCE 64u
#define SHOWN_FAILURES 3u

static struct machine machine;
static uint64_t base, expected[CONFORM_RESULTS][CONFORM_CASES];

static uint64_t *inputs_at(unsigned k)
{
    return machine_at(&machine, base + (uint64_t)k * CONFORM_STRIDE);
}

static uint64_t *results_at(unsigned k)
{
    return inputs_at(CONFORM_INPUTS + k);
}

/* Special values in all combinations (of three and more: the first ones of each list), then random ones. */
static unsigned fill(const struct form *f, const char *kinds, unsigned inputs)
{
    uint64_t state = 20240229, combinations = 1;
    unsigned limits[CONFORM_INPUTS], cases = f->row->cases;
    for (unsigned k = 0; k < inputs; k++) {
        unsigned count = values_count(kinds[k]);
        limits[k] = inputs > 2 && count > VALUES_CORE ? VALUES_CORE : count;
        combinations = combinations > CONFORM_CASES ? combinations : combinations * limits[k];
    }
    if (!cases)
        cases = inputs == 1 ? 1024 : (unsigned)combinations + 512;
    cases = (cases < CONFORM_CASES ? cases : CONFORM_CASES) / CONFORM_LANES * CONFORM_LANES;
    for (unsigned t = 0; t < cases; t++) {
        uint64_t index = t;
        for (unsigned k = 0; k < inputs; k++) {
            bool special = combinations <= CONFORM_CASES ? t < combinations : t & 1;
            inputs_at(k)[t] = !special ? values_random(kinds[k], &state)
                              : combinations <= CONFORM_CASES
                                  ? values_special(kinds[k], (unsigned)(index % limits[k]))
                                  : values_special(kinds[k], (unsigned)machine_random(&state));
            /* NOLINTNEXTLINE(clang-analyzer-core.DivideZero): every kind has special values */
            index /= limits[k];
        }
    }
    return cases;
}

static void expect_lanes(const struct form *f, unsigned inputs, unsigned cases)
{
    for (unsigned t = 0; t < cases; t++) {
        uint64_t in[CONFORM_INPUTS], out[CONFORM_RESULTS] = {0};
        for (unsigned k = 0; k < inputs; k++)
            in[k] = inputs_at(k)[t];
        f->row->reference(f, in, out);
        for (unsigned k = 0; k < CONFORM_RESULTS; k++)
            expected[k][t] = out[k];
    }
}

static void expect_warps(const struct form *f, unsigned inputs, unsigned cases)
{
    static uint64_t in[CONFORM_INPUTS][CONFORM_LANES], out[CONFORM_RESULTS][CONFORM_LANES];
    for (unsigned t = 0; t < cases; t += CONFORM_LANES) {
        for (unsigned k = 0; k < inputs; k++)
            memcpy(in[k], inputs_at(k) + t, sizeof(in[k]));
        f->row->warp_reference(f, (const uint64_t(*)[CONFORM_LANES])in, out);
        for (unsigned k = 0; k < CONFORM_RESULTS; k++)
            memcpy(&expected[k][t], out[k], sizeof(out[k]));
    }
}

static const struct soft_format *format_of(char kind)
{
    switch (kind) {
    case 'h':
    case 'x': return &soft_f16;
    case 'b':
    case 'y': return &soft_bf16;
    case 'f': return &soft_f32;
    case 'd': return &soft_f64;
    default: return NULL;
    }
}

/* How far `bits` is from `exact` in units of the last place; infinity when they are not comparable. */
static double ulps_off(const struct soft_format *format, uint64_t bits, double exact, double *distance_out)
{
    struct soft got = soft_read(format, bits);
    double value = soft_double(got);
    *distance_out = INFINITY;
    if (isnan(exact) || got.kind == SOFT_NAN)
        return isnan(exact) && got.kind == SOFT_NAN ? *distance_out = 0 : INFINITY;
    uint64_t exact_bits;
    memcpy(&exact_bits, &exact, 8);
    uint64_t nearest = soft_write(format, soft_read(&soft_f64, exact_bits), SOFT_RN);
    if (bits == nearest)
        return *distance_out = 0;
    if (isinf(exact) || got.kind == SOFT_INFINITE)
        return INFINITY;
    int exponent = exact == 0 ? -1100 : ilogb(exact), lowest = 2 - (1 << (format->exponent - 1));
    double ulp = ldexp(1, (exponent < lowest ? lowest : exponent) - (int)format->mantissa);
    *distance_out = fabs(value - exact);
    return *distance_out / ulp;
}

static bool near_enough(const struct form *f, char kind, uint64_t got, const uint64_t *want, double *worst)
{
    const struct conform_bound *bound = &f->row->bound;
    const struct soft_format *format = format_of(kind);
    unsigned parts = kind == 'x' || kind == 'y' ? 2 : 1;
    bool good = true;
    for (unsigned i = 0; i < parts; i++) {
        double exact, distance;
        memcpy(&exact, &want[i], 8);
        double ulps = ulps_off(format, parts == 2 ? got >> 16 * i & 0xffff : got, exact, &distance);
        if (isfinite(ulps) && ulps > *worst)
            *worst = ulps;
        good =
            good && (ulps <= bound->ulps || distance <= bound->relative * fabs(exact) || distance <= bound->absolute);
    }
    return good;
}

static bool same(const struct form *f, char kind, uint64_t got, uint64_t want)
{
    const struct soft_format *format = format_of(kind);
    if (got == want || !format || !f->row->any_nan)
        return got == want;
    if (kind != 'x' && kind != 'y')
        return soft_read(format, got).kind == SOFT_NAN && soft_read(format, want).kind == SOFT_NAN;
    for (unsigned i = 0; i < 2; i++) {
        uint64_t g = got >> 16 * i & 0xffff, w = want >> 16 * i & 0xffff;
        if (g != w && (soft_read(format, g).kind != SOFT_NAN || soft_read(format, w).kind != SOFT_NAN))
            return false;
    }
    return true;
}

static void show_failure(const struct form *f, unsigned inputs, unsigned t, unsigned k, uint64_t got, const char *where)
{
    printf("  %s%s:", f->text, where);
    for (unsigned i = 0; i < inputs; i++)
        printf(" %c=%#llx", 'a' + i, (unsigned long long)inputs_at(i)[t]);
    printf(": result %u is %#llx, not %#llx\n", k, (unsigned long long)got, (unsigned long long)expected[k][t]);
}

static unsigned compare(const struct form *f, unsigned inputs, unsigned cases, const char *where, double *worst)
{
    const struct conform_bound *bound = &f->row->bound;
    bool approximate = bound->ulps > 0 || bound->relative > 0 || bound->absolute > 0;
    const char *kinds = f->row->kinds;
    unsigned failures = 0;
    for (unsigned k = 0; kinds[k] != ':'; k++) {
        unsigned bits = values_bits(kinds[k]) == 1 ? 32 : values_bits(kinds[k]);
        unsigned cell = 0; /* of kind m: which input it is */
        for (const char *m = strchr(kinds, ':'); kinds[k] == 'm' && *m; m++)
            if (*m == 'm')
                cell = (unsigned)(m - strchr(kinds, ':')) - 1;
        for (unsigned t = 0; t < cases; t++) {
            uint64_t got = kinds[k] == 'm' ? inputs_at(cell)[t] : results_at(k)[t] & (UINT64_MAX >> (64 - bits));
            uint64_t want[2] = {expected[k][t], expected[k + 1 < CONFORM_RESULTS ? k + 1 : k][t]};
            if (!approximate)
                want[0] &= UINT64_MAX >> (64 - bits);
            if (approximate ? near_enough(f, kinds[k], got, want, worst) : same(f, kinds[k], got, want[0]))
                continue;
            if (failures++ < SHOWN_FAILURES)
                show_failure(f, inputs, t, k, got, where);
        }
    }
    return failures;
}

/* On the best interpreter with registers apart, on the plain one with results on top of inputs. */
static unsigned run_form(const struct form *f, unsigned number, bool aliased, double *worst, uint64_t *cases_out)
{
    const char *inputs_text = strchr(f->row->kinds, ':') + 1;
    unsigned inputs = (unsigned)strlen(inputs_text), cases = fill(f, inputs_text, inputs);
    if (f->row->warp_reference)
        expect_warps(f, inputs, cases);
    else
        expect_lanes(f, inputs, cases);
    for (unsigned k = 0; f->row->kinds[k] != ':'; k++)
        memset(results_at(k), 0xa5, cases * sizeof(uint64_t));
    char name[16];
    snprintf(name, sizeof(name), "k%u", number);
    unsigned block = f->row->warp_reference ? CONFORM_LANES : BLOCK;
    unsigned whole = cases / block, left = cases % block;
    ptx_use_baseline(aliased);
    struct launch launch = {.name = name, .grid = {whole}, .block = {block}, .params = &base};
    struct outcome outcome = machine_run(&machine, &launch);
    if (left && outcome.fault.kind == PTX_FAULT_NONE) {
        uint64_t rest = base + (uint64_t)whole * block * 8;
        struct launch last = {.name = name, .block = {left}, .params = &rest};
        outcome = machine_run(&machine, &last);
    }
    ptx_use_baseline(false);
    if (outcome.fault.kind != PTX_FAULT_NONE) {
        printf("  %s: fault %d\n", f->text, (int)outcome.fault.kind);
        return 1;
    }
    *cases_out += cases;
    return compare(f, inputs, cases, aliased ? " (plain interpreter, registers shared)" : "", worst);
}

bool conform_accepts(const struct form *f, char *error_out, size_t error_bytes)
{
    struct ptx_module *module = NULL;
    struct ptx_error error;
    char *text = conform_module(f, 1, false);
    int rc = ptx_module_parse(text, strlen(text), &module, &error);
    if (rc)
        snprintf(error_out, error_bytes, "%s", error.text);
    ptx_module_destroy(module);
    free(text);
    return rc == 0;
}

/* One module for up to FORMS_AT_ONCE forms. */
static void run_forms(const struct form *all, unsigned all_count, struct conform_figures *figures)
{
    struct form *forms = malloc(all_count * sizeof(*forms));
    unsigned count = 0;
    if (!forms)
        abort();
    for (unsigned i = 0; i < all_count; i += CONFORM_EVERY) {
        char error[600];
        if (conform_accepts(&all[i], error, sizeof(error))) {
            forms[count++] = all[i];
            continue;
        }
        printf("  %s: %s\n", all[i].text, error); /* the others still run */
        figures->failures++;
    }
    for (unsigned aliased = 0; aliased < 2 && count; aliased++) {
        char *text = conform_module(forms, count, aliased);
        machine_load(&machine, text, strlen(text));
        free(text);
        for (unsigned i = 0; i < count; i++)
            figures->failures += run_form(&forms[i], i, aliased, &figures->worst_ulps, &figures->cases);
    }
    figures->forms += count;
    free(forms);
}

static void print_row(const char *name, const struct conform_figures *f)
{
    if (f->worst_ulps > 0)
        printf("%-22s %6zu %10zu %9zu %10.3f\n", name, f->forms, f->cases, f->failures, f->worst_ulps);
    else
        printf("%-22s %6zu %10zu %9zu %10s\n", name, f->forms, f->cases, f->failures, "exact");
}

static void add_figures(struct conform_figures *sum, const struct conform_figures *f)
{
    sum->forms += f->forms;
    sum->cases += f->cases;
    sum->failures += f->failures;
    sum->worst_ulps = f->worst_ulps > sum->worst_ulps ? f->worst_ulps : sum->worst_ulps;
}

struct conform_figures conform_run(const struct conform_table *table, const char *only)
{
    struct conform_figures total = {0};
    machine_init(&machine);
    base = machine_alloc(&machine, (size_t)(CONFORM_INPUTS + CONFORM_RESULTS) * CONFORM_STRIDE);
    printf("%-22s %6s %10s %9s %10s\n", table->title, "forms", "cases", "failures", "worst ulp");
    struct conform_figures figures = {0};
    for (size_t r = 0; r < *table->count; r++) {
        const struct conform_row *row = &table->rows[r];
        size_t count;
        struct form *forms = conform_expand(row, &count);
        for (size_t i = 0; i < count && !row->tested_in && (!only || !strcmp(forms[i].name, only)); i += FORMS_AT_ONCE)
            run_forms(forms + i, (unsigned)(count - i < FORMS_AT_ONCE ? count - i : FORMS_AT_ONCE), &figures);
        size_t next_count = 0;
        struct form *next = r + 1 < *table->count ? conform_expand(row + 1, &next_count) : NULL;
        if (!next || strcmp(next->name, forms->name) != 0) {
            if (figures.forms)
                print_row(forms->name, &figures);
            add_figures(&total, &figures);
            figures = (struct conform_figures){0};
        }
        free(next);
        free(forms);
    }
    print_row("all", &total);
    machine_finish(&machine);
    return total;
}
