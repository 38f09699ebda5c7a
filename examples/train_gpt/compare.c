#include "compare.h"

#include "reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct worst {
    double difference; /* relative to the largest value of its parameter */
    char name[sizeof((struct parameter *)0)->name];
};

static void *need(void *p)
{
    if (!p) {
        fprintf(stderr, "train_gpt: out of host memory\n");
        exit(1);
    }
    return p;
}

static void widen(double *out, const float *in, int count)
{
    for (int i = 0; i < count; i++)
        out[i] = in[i];
}

/* A NaN on either side counts as an infinite difference. */
static void compare_values(struct worst *worst, const char *name, const float *got, const double *expected, int count)
{
    double largest = 0, difference = 0;
    for (int i = 0; i < count; i++) {
        double d = fabs(got[i] - expected[i]);
        difference = d <= difference ? difference : isnan(d) ? HUGE_VAL : d;
        largest = fmax(largest, fabs(expected[i]));
    }
    double relative = difference == 0 ? 0 : difference / largest;
    if (relative > worst->difference) {
        worst->difference = relative;
        snprintf(worst->name, sizeof worst->name, "%s", name);
    }
}

/* weight: its initial values on entry. */
static void compare_parameter(struct trainer *t, int index, const struct adamw *adamw, double *weight,
                              const double *gradient, struct worst *gradients, struct worst *weights)
{
    struct parameter p = parameter_at(&t->shape, index);
    size_t count = (size_t)p.count;
    float *got = need(malloc(count * sizeof *got));
    double *used = need(malloc(count * sizeof *used));
    double *mean = need(calloc(count, sizeof *mean)), *square = need(calloc(count, sizeof *square));
    gpu_download(t->gpu, &t->gradients[index], got);
    compare_values(gradients, p.name, got, gradient, p.count);
    widen(used, got, p.count);
    reference_adamw(adamw, p.decays, p.count, weight, mean, square, used);
    gpu_download(t->gpu, &t->weights[index], got);
    compare_values(weights, p.name, got, weight, p.count);
    free(got);
    free(used);
    free(mean);
    free(square);
}

static int report(const char *what, const struct worst *worst)
{
    printf("%s: largest difference %.3g in %s\n", what, worst->difference, worst->name[0] ? worst->name : "none");
    return worst->difference <= COMPARE_TOLERANCE ? 0 : 1;
}

int compare_step(struct team *team, const int *tokens, const int *targets, const struct adamw *adamw, uint64_t seed)
{
    struct trainer *t = &team->trainers[0];
    int total = parameter_total(&t->shape);
    double **weights = need(calloc((size_t)total, sizeof *weights));
    double **gradients = need(calloc((size_t)total, sizeof *gradients));
    for (int i = 0; i < total; i++) {
        struct parameter p = parameter_at(&t->shape, i);
        float *start = need(malloc((size_t)p.count * sizeof *start));
        parameter_initialise(&t->shape, i, seed, start);
        weights[i] = need(malloc((size_t)p.count * sizeof **weights));
        gradients[i] = need(malloc((size_t)p.count * sizeof **gradients));
        widen(weights[i], start, p.count);
        free(start);
    }
    double expected = reference_loss(&t->shape, weights, tokens, targets, gradients);
    float loss = team_step(team, tokens, targets, adamw);
    struct worst loss_worst = {0}, gradients_worst = {0}, weights_worst = {0};
    compare_values(&loss_worst, "the loss", &loss, &expected, 1);
    for (int i = 0; i < total; i++)
        compare_parameter(t, i, adamw, weights[i], gradients[i], &gradients_worst, &weights_worst);
    printf("loss: GPU %.8f, CPU %.8f\n", (double)loss, expected);
    int bad = report("loss", &loss_worst) | report("gradients", &gradients_worst) | report("weights", &weights_worst);
    printf("cpu-check: %s %g\n", bad ? "FAILED, not within" : "passed, all within", COMPARE_TOLERANCE);
    for (int i = 0; i < total; i++) {
        free(weights[i]);
        free(gradients[i]);
    }
    free(weights);
    free(gradients);
    return bad;
}
