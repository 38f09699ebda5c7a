/* The parts of train_gpt that need no GPU: the hash, the CPU reference's gradients, the text, the footprint. */
#include "model.h"
#include "options.h"
#include "reference.h"
#include "sha256.h"
#include "text.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void expect_hash(const char *text, size_t repeats, size_t piece, const char *expected)
{
    struct sha256 s;
    char hex[65];
    size_t length = strlen(text), total = length * repeats;
    char *all = malloc(total + 1);
    for (size_t i = 0; i < total; i++)
        all[i] = text[i % length];
    sha256_init(&s);
    for (size_t at = 0; at < total; at += piece)
        sha256_update(&s, all + at, total - at < piece ? total - at : piece);
    sha256_finish(&s, hex);
    cr_expect_str_eq(hex, expected);
    free(all);
}

/* The examples of FIPS 180-2, appendix B, and the empty message. */
Test(sha256, agrees_with_the_standards_examples)
{
    expect_hash("", 1, 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    expect_hash("abc", 1, 3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    expect_hash("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq", 1, 56,
                "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

Test(sha256, does_not_depend_on_how_the_data_arrives)
{
    const char *million = "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0";
    static const size_t pieces[] = {1, 3, 55, 63, 64, 65, 1000, 1000000};
    for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++)
        expect_hash("a", 1000000, pieces[i], million);
}

/* ---- The CPU reference ---- */

static const struct shape small = {.layers = 2, .width = 6, .heads = 2, .context = 5, .batch = 2, .vocabulary = 7};

struct problem {
    double **weights, **gradients;
    int tokens[10], targets[10];
};

/* Weights large enough that attention, GELU and norms are well away from their linear range. */
static struct problem make_problem(void)
{
    struct problem p;
    uint64_t state = 5;
    int total = parameter_total(&small);
    p.weights = calloc((size_t)total, sizeof *p.weights);
    p.gradients = calloc((size_t)total, sizeof *p.gradients);
    for (int i = 0; i < total; i++) {
        size_t count = (size_t)parameter_at(&small, i).count;
        p.weights[i] = calloc(count, sizeof **p.weights);
        p.gradients[i] = calloc(count, sizeof **p.gradients);
        for (size_t k = 0; k < count; k++)
            p.weights[i][k] = (double)(random_next(&state) >> 11) * 0x1p-53 * 2 - 1;
    }
    for (int i = 0; i < 10; i++) {
        p.tokens[i] = (int)(random_next(&state) % 7);
        p.targets[i] = (int)(random_next(&state) % 7);
    }
    return p;
}

static void free_problem(struct problem *p)
{
    for (int i = 0; i < parameter_total(&small); i++) {
        free(p->weights[i]);
        free(p->gradients[i]);
    }
    free(p->weights);
    free(p->gradients);
}

Test(reference, gradients_agree_with_finite_differences)
{
    struct problem p = make_problem();
    double step = 1e-5, largest = 0;
    reference_loss(&small, p.weights, p.tokens, p.targets, p.gradients);
    for (int i = 0; i < parameter_total(&small); i++) {
        struct parameter parameter = parameter_at(&small, i);
        for (int k = 0; k < parameter.count; k++) {
            double *w = &p.weights[i][k], start = *w;
            *w = start + step;
            double above = reference_loss(&small, p.weights, p.tokens, p.targets, NULL);
            *w = start - step;
            double below = reference_loss(&small, p.weights, p.tokens, p.targets, NULL);
            *w = start;
            double slope = (above - below) / (2 * step), gradient = p.gradients[i][k];
            cr_assert(fabs(slope - gradient) <= 1e-7 + 1e-5 * fabs(slope), "%s [%d]: %g by differences, %g computed",
                      parameter.name, k, slope, gradient);
            largest = fmax(largest, fabs(gradient));
        }
    }
    cr_assert(largest > 0.01, "the gradients are too small to mean anything: %g", largest);
    free_problem(&p);
}

Test(reference, loss_of_untrained_weights_is_that_of_guessing)
{
    struct problem p = make_problem();
    for (int i = 0; i < parameter_total(&small); i++) {
        struct parameter parameter = parameter_at(&small, i);
        float *values = malloc((size_t)parameter.count * sizeof *values);
        parameter_initialise(&small, i, 1, values);
        for (int k = 0; k < parameter.count; k++)
            p.weights[i][k] = values[k];
        free(values);
    }
    double loss = reference_loss(&small, p.weights, p.tokens, p.targets, NULL);
    cr_assert(fabs(loss - log(7)) < 0.1, "%g is far from log 7", loss);
    free_problem(&p);
}

/* By hand: the first step of Adam is the rate, whatever the gradient's size; decay comes on top. */
Test(reference, first_adamw_step_is_the_rate)
{
    struct adamw a = adamw_at(0.01, 1);
    double weight[2] = {1, 1}, mean[2] = {0}, square[2] = {0}, gradient[2] = {0.5, -3};
    reference_adamw(&a, true, 2, weight, mean, square, gradient);
    cr_expect(fabs(weight[0] - (1 - 0.01 * (1 + 0.01))) < 1e-6, "%g", weight[0]);
    cr_expect(fabs(weight[1] - (1 - 0.01 * (-1 + 0.01))) < 1e-6, "%g", weight[1]);
    cr_expect(fabs(mean[1] + 0.3) < 1e-6, "%g", mean[1]);
    cr_expect(fabs(square[1] - 0.45) < 1e-6, "%g", square[1]);
}

/* ---- Initial weights, text, footprint ---- */

Test(model, initial_weights_depend_on_the_seed_only)
{
    float a[42], b[42], c[42];
    parameter_initialise(&small, TOKEN_TABLE, 1, a);
    parameter_initialise(&small, TOKEN_TABLE, 1, b);
    parameter_initialise(&small, TOKEN_TABLE, 2, c);
    int same = 0;
    for (int i = 0; i < 42; i++) {
        cr_expect(a[i] == b[i]);
        same += a[i] == c[i];
    }
    cr_expect(same < 5, "%d of 42 equal for another seed", same);
}

Test(text, targets_are_the_text_one_character_later)
{
    struct text text;
    int tokens[10], targets[10], other[10];
    cr_assert_eq(text_load(NULL, &text), 0);
    cr_expect(text.symbol_count > 20000, "%zu characters", text.symbol_count);
    cr_expect(text.vocabulary > 40 && text.vocabulary < 128, "%d", text.vocabulary);
    text_batch(&text, &small, 1, 1, 1, tokens, targets);
    for (int row = 0; row < 2; row++)
        cr_expect_eq(memcmp(tokens + row * 5 + 1, targets + row * 5, 4 * sizeof(int)), 0);
    for (int i = 0; i < 10; i++)
        cr_expect(tokens[i] >= 0 && tokens[i] < text.vocabulary && targets[i] >= 0 && targets[i] < text.vocabulary);
    text_batch(&text, &small, 1, 1, 1, other, targets);
    cr_expect_eq(memcmp(tokens, other, sizeof tokens), 0);
    text_batch(&text, &small, 1, 1, 2, other, targets);
    cr_expect_neq(memcmp(tokens, other, sizeof tokens), 0);
    text_finish(&text);
}

static struct footprint footprint_of_flags(const char *flags, double *total_mib_out)
{
    struct options o;
    char copy[256], *argv[32] = {"train_gpt"}, *save = NULL;
    int argc = 1;
    snprintf(copy, sizeof copy, "%s", flags);
    for (char *word = strtok_r(copy, " ", &save); word; word = strtok_r(NULL, " ", &save))
        argv[argc++] = word;
    cr_assert_eq(options_parse(argc, argv, &o), OPTIONS_RUN);
    struct shape shape = {o.layers, o.width, o.heads, o.context, o.batch, 61};
    struct footprint f = footprint_of(&shape, &(struct slice){.end = shape.layers, .passes = 1});
    *total_mib_out = 0;
    for (int c = 0; c < MEMORY_CLASSES; c++)
        *total_mib_out += (double)f.bytes[c] / 1048576;
    return f;
}

static void expect_footprint(const char *flags, double least_mib, double most_mib)
{
    double total_mib;
    struct footprint f = footprint_of_flags(flags, &total_mib);
    cr_expect(total_mib >= least_mib && total_mib <= most_mib, "%s: %g MiB", flags, total_mib);
    cr_expect(f.bytes[WEIGHTS] + f.bytes[OPTIMIZER] > 32 << 20, "%s: weights and optimizer state", flags);
    cr_expect(f.bytes[ACTIVATIONS] > 32 << 20, "%s: activations", flags);
    cr_expect(f.largest_bytes <= 8 << 20, "%s: largest buffer", flags);
}

/* The flags that examples/README.md recommends for a GPU of 64 MiB. */
Test(model, recommended_flags_need_what_the_readme_says)
{
    expect_footprint("--steps 1", 4 * 64, 5 * 64);
    expect_footprint("--layers 18 --width 256 --heads 32 --context 64 --batch 1", 4 * 64, 5 * 64);
    expect_footprint("--layers 36 --width 256 --heads 32 --context 64 --batch 1", 8 * 64, 9 * 64);
}
