#include "reference.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One pass's memory: what the forward pass leaves for the backward pass, named as on the GPU. */
struct pass {
    const struct shape *s;
    double *const *weights, *const *gradients;
    double **kept; /* LAYER_TENSORS for every layer */
    double *embedded, *final_norm, *final_mean, *final_rstd, *probabilities;
};

static double *numbers(size_t count)
{
    double *p = calloc(count ? count : 1, sizeof *p);
    if (!p) {
        fprintf(stderr, "train_gpt: out of host memory\n");
        exit(1);
    }
    return p;
}

static double *kept(const struct pass *p, int layer, enum layer_tensor which)
{
    return p->kept[layer * LAYER_TENSORS + (int)which];
}

static double *layer_input(const struct pass *p, int layer)
{
    return layer ? kept(p, layer - 1, OUTPUT) : p->embedded;
}

/* ---- Pieces, forward ---- */

/* bias may be NULL */
static void linear(double *out, const double *x, const double *weight, const double *bias, int rows, int inputs,
                   int outputs)
{
    for (int r = 0; r < rows; r++)
        for (int o = 0; o < outputs; o++) {
            double sum = bias ? bias[o] : 0;
            for (int i = 0; i < inputs; i++)
                sum += x[(size_t)r * inputs + i] * weight[(size_t)i * outputs + o];
            out[(size_t)r * outputs + o] = sum;
        }
}

static void norm(double *out, double *mean, double *rstd, const double *x, const double *gain, const double *bias,
                 int rows, int width)
{
    for (int r = 0; r < rows; r++) {
        const double *in = x + (size_t)r * width;
        double sum = 0, squares = 0;
        for (int c = 0; c < width; c++)
            sum += in[c];
        mean[r] = sum / width;
        for (int c = 0; c < width; c++)
            squares += (in[c] - mean[r]) * (in[c] - mean[r]);
        rstd[r] = 1 / sqrt(squares / width + 1e-5);
        for (int c = 0; c < width; c++)
            out[(size_t)r * width + c] = (in[c] - mean[r]) * rstd[r] * gain[c] + bias[c];
    }
}

static double gelu_inner(double x)
{
    return tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
}

/* Where q (0), k (1) or v (2) of one token and head starts in a row of qkv. */
static size_t qkv_at(const struct shape *s, int token, int head, int third)
{
    return (size_t)token * 3 * s->width + (size_t)third * s->width + (size_t)head * (s->width / s->heads);
}

static double *score_row(const struct shape *s, double *scores, int batch, int head, int i)
{
    return scores + (((size_t)batch * s->heads + head) * s->context + i) * s->context;
}

static void attend_row(const struct shape *s, const double *qkv, double *row, double *out, int batch, int head, int i)
{
    int head_width = s->width / s->heads, first = batch * s->context;
    double top = -HUGE_VAL, sum = 0;
    for (int j = 0; j <= i; j++) {
        double dot = 0;
        for (int d = 0; d < head_width; d++)
            dot += qkv[qkv_at(s, first + i, head, 0) + d] * qkv[qkv_at(s, first + j, head, 1) + d];
        row[j] = dot / sqrt(head_width);
        top = fmax(top, row[j]);
    }
    for (int j = 0; j <= i; j++)
        sum += row[j] = exp(row[j] - top);
    for (int j = 0; j <= i; j++)
        row[j] /= sum;
    for (int d = 0; d < head_width; d++) {
        double value = 0;
        for (int j = 0; j <= i; j++)
            value += row[j] * qkv[qkv_at(s, first + j, head, 2) + d];
        out[(size_t)(first + i) * s->width + head * head_width + d] = value;
    }
}

static void attention(const struct pass *p, int layer)
{
    const struct shape *s = p->s;
    for (int batch = 0; batch < s->batch; batch++)
        for (int head = 0; head < s->heads; head++)
            for (int i = 0; i < s->context; i++)
                attend_row(s, kept(p, layer, QKV), score_row(s, kept(p, layer, PROBABILITIES), batch, head, i),
                           kept(p, layer, ATTENDED), batch, head, i);
}

static void layer_forward(const struct pass *p, int layer)
{
    const struct shape *s = p->s;
    double *const *w = p->weights + layer_parameter(layer, NORM1_GAIN);
    int rows = shape_tokens(s), width = s->width;
    const double *x = layer_input(p, layer);
    norm(kept(p, layer, NORM1), kept(p, layer, NORM1_MEAN), kept(p, layer, NORM1_RSTD), x, w[NORM1_GAIN], w[NORM1_BIAS],
         rows, width);
    linear(kept(p, layer, QKV), kept(p, layer, NORM1), w[QKV_WEIGHT], w[QKV_BIAS], rows, width, 3 * width);
    attention(p, layer);
    double *middle = kept(p, layer, MIDDLE), *output = kept(p, layer, OUTPUT);
    linear(middle, kept(p, layer, ATTENDED), w[PROJECTION_WEIGHT], w[PROJECTION_BIAS], rows, width, width);
    for (int i = 0; i < rows * width; i++)
        middle[i] += x[i];
    norm(kept(p, layer, NORM2), kept(p, layer, NORM2_MEAN), kept(p, layer, NORM2_RSTD), middle, w[NORM2_GAIN],
         w[NORM2_BIAS], rows, width);
    double *up = kept(p, layer, UP), *activated = kept(p, layer, ACTIVATED);
    linear(up, kept(p, layer, NORM2), w[UP_WEIGHT], w[UP_BIAS], rows, width, 4 * width);
    for (int i = 0; i < rows * 4 * width; i++)
        activated[i] = 0.5 * up[i] * (1 + gelu_inner(up[i]));
    linear(output, activated, w[DOWN_WEIGHT], w[DOWN_BIAS], rows, 4 * width, width);
    for (int i = 0; i < rows * width; i++)
        output[i] += middle[i];
}

/* Leaves the softmax of the logits in p->probabilities. */
static double head_forward(const struct pass *p, const int *targets)
{
    const struct shape *s = p->s;
    int rows = shape_tokens(s), v = s->vocabulary;
    double *const *w = p->weights, loss = 0;
    norm(p->final_norm, p->final_mean, p->final_rstd, kept(p, s->layers - 1, OUTPUT), w[final_parameter(s, FINAL_GAIN)],
         w[final_parameter(s, FINAL_BIAS)], rows, s->width);
    linear(p->probabilities, p->final_norm, w[final_parameter(s, HEAD_WEIGHT)], NULL, rows, s->width, v);
    for (int r = 0; r < rows; r++) {
        double *row = p->probabilities + (size_t)r * v, top = -HUGE_VAL, sum = 0;
        for (int c = 0; c < v; c++)
            top = fmax(top, row[c]);
        loss += top - row[targets[r]];
        for (int c = 0; c < v; c++)
            sum += row[c] = exp(row[c] - top);
        loss += log(sum);
        for (int c = 0; c < v; c++)
            row[c] /= sum;
    }
    return loss / rows;
}

/* ---- Pieces, backward. Gradients of parameters are added to; bias_grad may be NULL. ---- */

static void linear_backward(double *x_grad, double *weight_grad, double *bias_grad, const double *out_grad,
                            const double *x, const double *weight, int rows, int inputs, int outputs)
{
    for (int r = 0; r < rows; r++) {
        const double *g = out_grad + (size_t)r * outputs;
        for (int i = 0; i < inputs; i++) {
            double sum = 0;
            for (int o = 0; o < outputs; o++) {
                sum += g[o] * weight[(size_t)i * outputs + o];
                weight_grad[(size_t)i * outputs + o] += x[(size_t)r * inputs + i] * g[o];
            }
            x_grad[(size_t)r * inputs + i] = sum;
        }
        for (int o = 0; bias_grad && o < outputs; o++)
            bias_grad[o] += g[o];
    }
}

/* Adds to x_grad. */
static void norm_backward(double *x_grad, double *gain_grad, double *bias_grad, const double *out_grad, const double *x,
                          const double *mean, const double *rstd, const double *gain, int rows, int width)
{
    for (int r = 0; r < rows; r++) {
        const double *g = out_grad + (size_t)r * width, *in = x + (size_t)r * width;
        double sum = 0, dot = 0;
        for (int c = 0; c < width; c++) {
            double normalised = (in[c] - mean[r]) * rstd[r];
            gain_grad[c] += g[c] * normalised;
            bias_grad[c] += g[c];
            sum += g[c] * gain[c];
            dot += g[c] * gain[c] * normalised;
        }
        for (int c = 0; c < width; c++)
            x_grad[(size_t)r * width + c] +=
                (g[c] * gain[c] - sum / width - (in[c] - mean[r]) * rstd[r] * dot / width) * rstd[r];
    }
}

static void attend_row_backward(const struct shape *s, double *qkv_grad, const double *qkv, const double *row,
                                const double *out_grad, int batch, int head, int i)
{
    int head_width = s->width / s->heads, first = batch * s->context;
    const double *g = out_grad + (size_t)(first + i) * s->width + head * head_width;
    double dot = 0, *row_grad = numbers((size_t)i + 1);
    for (int j = 0; j <= i; j++) {
        for (int d = 0; d < head_width; d++) {
            row_grad[j] += g[d] * qkv[qkv_at(s, first + j, head, 2) + d];
            qkv_grad[qkv_at(s, first + j, head, 2) + d] += row[j] * g[d];
        }
        dot += row[j] * row_grad[j];
    }
    for (int j = 0; j <= i; j++) {
        double score_grad = row[j] * (row_grad[j] - dot) / sqrt(head_width);
        for (int d = 0; d < head_width; d++) {
            qkv_grad[qkv_at(s, first + i, head, 0) + d] += score_grad * qkv[qkv_at(s, first + j, head, 1) + d];
            qkv_grad[qkv_at(s, first + j, head, 1) + d] += score_grad * qkv[qkv_at(s, first + i, head, 0) + d];
        }
    }
    free(row_grad);
}

static void attention_backward(const struct pass *p, int layer, double *qkv_grad, const double *attended_grad)
{
    const struct shape *s = p->s;
    memset(qkv_grad, 0, layer_tensor_count(s, QKV) * sizeof *qkv_grad);
    for (int batch = 0; batch < s->batch; batch++)
        for (int head = 0; head < s->heads; head++)
            for (int i = 0; i < s->context; i++)
                attend_row_backward(s, qkv_grad, kept(p, layer, QKV),
                                    score_row(s, kept(p, layer, PROBABILITIES), batch, head, i), attended_grad, batch,
                                    head, i);
}

/* grad: by the layer's output on entry, by its input on return. */
static void layer_backward(const struct pass *p, int layer, double *grad)
{
    const struct shape *s = p->s;
    double *const *w = p->weights + layer_parameter(layer, NORM1_GAIN);
    double *const *dw = p->gradients + layer_parameter(layer, NORM1_GAIN);
    int rows = shape_tokens(s), width = s->width;
    size_t count = (size_t)rows * width;
    double *wide = numbers(4 * count), *narrow = numbers(count);
    linear_backward(wide, dw[DOWN_WEIGHT], dw[DOWN_BIAS], grad, kept(p, layer, ACTIVATED), w[DOWN_WEIGHT], rows,
                    4 * width, width);
    for (size_t i = 0; i < 4 * count; i++) {
        double x = kept(p, layer, UP)[i], t = gelu_inner(x);
        wide[i] *= 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
    }
    linear_backward(narrow, dw[UP_WEIGHT], dw[UP_BIAS], wide, kept(p, layer, NORM2), w[UP_WEIGHT], rows, width,
                    4 * width);
    norm_backward(grad, dw[NORM2_GAIN], dw[NORM2_BIAS], narrow, kept(p, layer, MIDDLE), kept(p, layer, NORM2_MEAN),
                  kept(p, layer, NORM2_RSTD), w[NORM2_GAIN], rows, width);
    linear_backward(narrow, dw[PROJECTION_WEIGHT], dw[PROJECTION_BIAS], grad, kept(p, layer, ATTENDED),
                    w[PROJECTION_WEIGHT], rows, width, width);
    attention_backward(p, layer, wide, narrow);
    linear_backward(narrow, dw[QKV_WEIGHT], dw[QKV_BIAS], wide, kept(p, layer, NORM1), w[QKV_WEIGHT], rows, width,
                    3 * width);
    norm_backward(grad, dw[NORM1_GAIN], dw[NORM1_BIAS], narrow, layer_input(p, layer), kept(p, layer, NORM1_MEAN),
                  kept(p, layer, NORM1_RSTD), w[NORM1_GAIN], rows, width);
    free(wide);
    free(narrow);
}

static void backward(const struct pass *p, const int *tokens, const int *targets)
{
    const struct shape *s = p->s;
    int rows = shape_tokens(s), width = s->width, v = s->vocabulary, last = s->layers - 1;
    double *grad = numbers((size_t)rows * width), *norm_grad = numbers((size_t)rows * width);
    for (int i = 0; i < parameter_total(s); i++)
        memset(p->gradients[i], 0, (size_t)parameter_at(s, i).count * sizeof(double));
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < v; c++) /* from here on the gradient of the logits */
            p->probabilities[(size_t)r * v + c] = (p->probabilities[(size_t)r * v + c] - (c == targets[r])) / rows;
    linear_backward(norm_grad, p->gradients[final_parameter(s, HEAD_WEIGHT)], NULL, p->probabilities, p->final_norm,
                    p->weights[final_parameter(s, HEAD_WEIGHT)], rows, width, v);
    norm_backward(grad, p->gradients[final_parameter(s, FINAL_GAIN)], p->gradients[final_parameter(s, FINAL_BIAS)],
                  norm_grad, kept(p, last, OUTPUT), p->final_mean, p->final_rstd,
                  p->weights[final_parameter(s, FINAL_GAIN)], rows, width);
    for (int layer = last; layer >= 0; layer--)
        layer_backward(p, layer, grad);
    for (int r = 0; r < rows; r++)
        for (int c = 0; c < width; c++) {
            p->gradients[TOKEN_TABLE][(size_t)tokens[r] * width + c] += grad[(size_t)r * width + c];
            p->gradients[POSITION_TABLE][(size_t)(r % s->context) * width + c] += grad[(size_t)r * width + c];
        }
    free(grad);
    free(norm_grad);
}

static void pass_init(struct pass *p)
{
    const struct shape *s = p->s;
    size_t rows = (size_t)shape_tokens(s);
    p->kept = calloc((size_t)s->layers * LAYER_TENSORS, sizeof *p->kept);
    if (!p->kept) {
        fprintf(stderr, "train_gpt: out of host memory\n");
        exit(1);
    }
    for (int i = 0; i < s->layers * LAYER_TENSORS; i++)
        p->kept[i] = numbers(layer_tensor_count(s, (enum layer_tensor)(i % LAYER_TENSORS)));
    p->embedded = numbers(rows * (size_t)s->width);
    p->final_norm = numbers(rows * (size_t)s->width);
    p->final_mean = numbers(rows);
    p->final_rstd = numbers(rows);
    p->probabilities = numbers(rows * (size_t)s->vocabulary);
}

static void pass_finish(struct pass *p)
{
    for (int i = 0; i < p->s->layers * LAYER_TENSORS; i++)
        free(p->kept[i]);
    free(p->kept);
    free(p->embedded);
    free(p->final_norm);
    free(p->final_mean);
    free(p->final_rstd);
    free(p->probabilities);
}

double reference_loss(const struct shape *s, double *const *weights, const int *tokens, const int *targets,
                      double *const *gradients)
{
    struct pass p = {.s = s, .weights = weights, .gradients = gradients};
    pass_init(&p);
    for (int r = 0; r < shape_tokens(s); r++)
        for (int c = 0; c < s->width; c++)
            p.embedded[(size_t)r * s->width + c] = weights[TOKEN_TABLE][(size_t)tokens[r] * s->width + c] +
                                                   weights[POSITION_TABLE][(size_t)(r % s->context) * s->width + c];
    for (int layer = 0; layer < s->layers; layer++)
        layer_forward(&p, layer);
    double loss = head_forward(&p, targets);
    if (gradients)
        backward(&p, tokens, targets);
    pass_finish(&p);
    return loss;
}

void reference_adamw(const struct adamw *a, bool decays, int count, double *weight, double *mean, double *square,
                     const double *gradient)
{
    for (int i = 0; i < count; i++) {
        mean[i] = a->beta1 * mean[i] + (1 - (double)a->beta1) * gradient[i];
        square[i] = a->beta2 * square[i] + (1 - (double)a->beta2) * gradient[i] * gradient[i];
        double step = mean[i] * a->m_scale / (sqrt(square[i] * a->v_scale) + a->epsilon);
        weight[i] -= a->rate * (step + (decays ? a->decay : 0) * weight[i]);
    }
}
