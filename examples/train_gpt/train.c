/*
 * Work is issued in program order; gpu.c finds from the buffers what must wait for what. The main chain of each layer goes
 * to one stream; weight gradients and updates, which nothing waits for until the next step, go to the others.
 */
#include "train.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define BLOCK 256 /* threads of a block that works element by element */
#define TILE 64   /* of a matrix product, see kernels.cu */
#define SIDE_TILE 16
#define ROWS 8 /* warps, so rows, of a block that works row by row */

static const struct gpu_size flat_block = {BLOCK, 1, 1}, row_block = {32, ROWS, 1}, tile_block = {16, 16, 1};

static int up(int n, int unit)
{
    return (n + unit - 1) / unit;
}

static struct gpu_size flat(int count)
{
    return (struct gpu_size){up(count, BLOCK), 1, 1};
}

static struct gpu_size by_rows(int rows)
{
    return (struct gpu_size){up(rows, ROWS), 1, 1};
}

static struct gpu_size by_columns(int columns)
{
    return (struct gpu_size){up(columns, 32), 1, 1};
}

/* ---- Buffers ---- */

static struct gpu_buffer *weight(struct trainer *t, int parameter)
{
    return &t->weights[parameter];
}

/* Where the present pass leaves it. */
static struct gpu_buffer *gradient(struct trainer *t, int parameter)
{
    return t->pass == 0 ? &t->gradients[parameter] : &t->parts[parameter];
}

static struct gpu_buffer *kept(struct trainer *t, int layer, enum layer_tensor which)
{
    int in_slice = layer - t->slice.first, layers = t->slice.end - t->slice.first;
    return &t->layers[(t->pass * layers + in_slice) * LAYER_TENSORS + (int)which];
}

static struct gpu_buffer *shared(struct trainer *t, enum shared_tensor which)
{
    return &t->shared[t->pass * SHARED_TENSORS + (int)which];
}

static struct gpu_buffer *layer_gradient(struct trainer *t, int layer, enum gradient_tensor which)
{
    return &t->layer_gradients[layer % GRADIENT_SETS][which];
}

/* What a layer gets from below, and the gradient that it gets from above. */
static struct gpu_buffer *layer_input(struct trainer *t, int layer)
{
    return layer > t->slice.first ? kept(t, layer - 1, OUTPUT) : shared(t, EMBEDDED);
}

static struct gpu_buffer *gradient_from_above(struct trainer *t, int layer)
{
    return layer + 1 < t->slice.end ? layer_gradient(t, layer + 1, INPUT_GRAD) : shared(t, TOP_GRAD);
}

typedef void visit_fn(struct gpu *gpu, struct gpu_buffer *buffer, size_t bytes);

static void visit_buffers(struct trainer *t, visit_fn *visit)
{
    const struct shape *s = &t->shape;
    for (int i = 0; i < parameter_total(s); i++) {
        size_t bytes = (size_t)parameter_at(s, i).count * sizeof(float);
        if (!slice_holds(s, &t->slice, i))
            continue;
        visit(t->gpu, &t->weights[i], bytes);
        visit(t->gpu, &t->gradients[i], bytes);
        visit(t->gpu, &t->means[i], bytes);
        visit(t->gpu, &t->squares[i], bytes);
        if (slice_sums(&t->slice, i))
            visit(t->gpu, &t->parts[i], bytes);
    }
    for (t->pass = 0; t->pass < t->slice.passes; t->pass++) {
        for (int layer = t->slice.first; layer < t->slice.end; layer++)
            for (int k = 0; k < LAYER_TENSORS; k++)
                visit(t->gpu, kept(t, layer, (enum layer_tensor)k),
                      layer_tensor_count(s, (enum layer_tensor)k) * sizeof(float));
        for (int k = 0; k < SHARED_TENSORS; k++)
            visit(t->gpu, shared(t, (enum shared_tensor)k),
                  shared_tensor_count(s, (enum shared_tensor)k) * sizeof(float));
    }
    t->pass = 0;
    for (int set = 0; set < GRADIENT_SETS; set++)
        for (int k = 0; k < GRADIENT_TENSORS; k++)
            visit(t->gpu, &t->layer_gradients[set][k],
                  gradient_tensor_count(s, (enum gradient_tensor)k) * sizeof(float));
}

static void measure(struct gpu *gpu, struct gpu_buffer *buffer, size_t bytes)
{
    (void)buffer;
    gpu_arena_reserve(gpu, bytes);
}

static void release(struct gpu *gpu, struct gpu_buffer *buffer, size_t bytes)
{
    (void)bytes;
    gpu_buffer_finish(gpu, buffer);
}

static void *need(void *p)
{
    if (!p) {
        fprintf(stderr, "train_gpt: out of host memory\n");
        exit(1);
    }
    return p;
}

static void set_initial_weights(struct trainer *t, uint64_t seed)
{
    for (int i = 0; i < parameter_total(&t->shape); i++) {
        if (!slice_holds(&t->shape, &t->slice, i))
            continue;
        float *values = need(malloc((size_t)parameter_at(&t->shape, i).count * sizeof(float)));
        parameter_initialise(&t->shape, i, seed, values);
        gpu_upload(t->gpu, weight(t, i), values);
        gpu_clear(t->gpu, &t->means[i]);
        gpu_clear(t->gpu, &t->squares[i]);
        gpu_synchronise(t->gpu); /* the upload may read `values` late */
        free(values);
    }
}

void trainer_init(struct trainer *t, struct gpu *gpu, const struct shape *shape, const struct slice *slice, bool arena,
                  uint64_t seed)
{
    size_t parameters = (size_t)parameter_total(shape);
    *t = (struct trainer){.gpu = gpu, .shape = *shape, .slice = *slice};
    t->weights = need(calloc(parameters, sizeof *t->weights));
    t->gradients = need(calloc(parameters, sizeof *t->gradients));
    t->means = need(calloc(parameters, sizeof *t->means));
    t->squares = need(calloc(parameters, sizeof *t->squares));
    t->parts = need(calloc(parameters, sizeof *t->parts));
    t->layers =
        need(calloc((size_t)slice->passes * (size_t)(slice->end - slice->first) * LAYER_TENSORS, sizeof *t->layers));
    t->shared = need(calloc((size_t)slice->passes * SHARED_TENSORS, sizeof *t->shared));
    if (arena) {
        visit_buffers(t, measure);
        gpu_arena_init(gpu);
    }
    visit_buffers(t, gpu_buffer_init);
    set_initial_weights(t, seed);
}

void trainer_finish(struct trainer *t)
{
    gpu_synchronise(t->gpu);
    visit_buffers(t, release);
    free(t->weights);
    free(t->gradients);
    free(t->means);
    free(t->squares);
    free(t->parts);
    free(t->layers);
    free(t->shared);
}

/* ---- Pieces that layers share ---- */

/* Parameters come in pairs: a weight, then its bias. out = x weight + bias. */
static void linear(struct trainer *t, struct gpu_buffer *out, struct gpu_buffer *x, int parameter, int inputs,
                   int outputs)
{
    int rows = shape_tokens(&t->shape);
    struct gpu_size grid = {up(outputs, TILE), up(rows, TILE), 1};
    LAUNCH(t->gpu, matmul_forward, MAIN, grid, tile_block, WRITE(out), READ(x), READ(weight(t, parameter)),
           READ(weight(t, parameter + 1)), INT(rows), INT(outputs), INT(inputs));
}

static void linear_backward(struct trainer *t, struct gpu_buffer *x_grad, struct gpu_buffer *out_grad,
                            struct gpu_buffer *x, int parameter, int inputs, int outputs)
{
    int rows = shape_tokens(&t->shape);
    struct gpu_size input_grid = {up(inputs, TILE), up(rows, TILE), 1};
    struct gpu_size weight_grid = {up(outputs, TILE), up(inputs, TILE), 1};
    LAUNCH(t->gpu, matmul_backward_input, MAIN, input_grid, tile_block, WRITE(x_grad), READ(out_grad),
           READ(weight(t, parameter)), INT(rows), INT(inputs), INT(outputs));
    LAUNCH(t->gpu, matmul_backward_weight, SIDE, weight_grid, tile_block, WRITE(gradient(t, parameter)), READ(x),
           READ(out_grad), INT(inputs), INT(outputs), INT(rows));
    LAUNCH(t->gpu, column_sum, SIDE, by_columns(outputs), row_block, WRITE(gradient(t, parameter + 1)), READ(out_grad),
           INT(rows), INT(outputs));
}

static void norm(struct trainer *t, struct gpu_buffer *out, struct gpu_buffer *mean, struct gpu_buffer *rstd,
                 struct gpu_buffer *x, int parameter)
{
    int rows = shape_tokens(&t->shape);
    LAUNCH(t->gpu, layernorm_forward, MAIN, by_rows(rows), row_block, WRITE(out), WRITE(mean), WRITE(rstd), READ(x),
           READ(weight(t, parameter)), READ(weight(t, parameter + 1)), INT(rows), INT(t->shape.width));
}

/* residual_grad may be NULL. */
static void norm_backward(struct trainer *t, struct gpu_buffer *x_grad, struct gpu_buffer *residual_grad,
                          struct gpu_buffer *out_grad, struct gpu_buffer *x, struct gpu_buffer *mean,
                          struct gpu_buffer *rstd, int parameter)
{
    int rows = shape_tokens(&t->shape), width = t->shape.width;
    struct gpu_argument residual = NOTHING;
    if (residual_grad)
        residual = (struct gpu_argument)READ(residual_grad);
    LAUNCH(t->gpu, layernorm_backward, MAIN, by_rows(rows), row_block, WRITE(x_grad), residual, READ(out_grad), READ(x),
           READ(mean), READ(rstd), READ(weight(t, parameter)), INT(rows), INT(width));
    LAUNCH(t->gpu, layernorm_backward_weights, SIDE, by_columns(width), row_block, WRITE(gradient(t, parameter)),
           WRITE(gradient(t, parameter + 1)), READ(out_grad), READ(x), READ(mean), READ(rstd), INT(rows), INT(width));
}

/* ---- Attention. q, k and v are the three thirds of a row of QKV. ---- */

static float score_scale(const struct shape *s)
{
    return (float)(1.0 / sqrt((double)s->width / s->heads));
}

static struct gpu_size score_grid(const struct shape *s)
{
    return (struct gpu_size){up(s->context, SIDE_TILE), up(s->context, SIDE_TILE), s->batch * s->heads};
}

static struct gpu_size head_grid(const struct shape *s)
{
    return (struct gpu_size){up(s->width / s->heads, SIDE_TILE), up(s->context, SIDE_TILE), s->batch * s->heads};
}

static void attention(struct trainer *t, int layer)
{
    const struct shape *s = &t->shape;
    int width = s->width, head_width = width / s->heads, rows = shape_tokens(s) * s->heads;
    struct gpu_buffer *qkv = kept(t, layer, QKV), *scores = kept(t, layer, SCORES);
    struct gpu_buffer *probabilities = kept(t, layer, PROBABILITIES);
    LAUNCH(t->gpu, attention_dot, MAIN, score_grid(s), tile_block, WRITE(scores), READ(qkv), INT(3 * width),
           READ_AT(qkv, (size_t)width), INT(3 * width), FLOAT(score_scale(s)), INT(s->heads), INT(head_width),
           INT(s->context));
    LAUNCH(t->gpu, softmax_causal, MAIN, by_rows(rows), row_block, WRITE(probabilities), READ(scores), INT(rows),
           INT(s->context));
    LAUNCH(t->gpu, attention_apply, MAIN, head_grid(s), tile_block, WRITE(kept(t, layer, ATTENDED)), INT(width),
           READ(probabilities), READ_AT(qkv, (size_t)width * 2), INT(3 * width), INT(s->heads), INT(head_width),
           INT(s->context));
}

static void attention_backward(struct trainer *t, int layer)
{
    const struct shape *s = &t->shape;
    int width = s->width, pitch = 3 * width, head_width = width / s->heads, rows = shape_tokens(s) * s->heads;
    struct gpu_buffer *qkv = kept(t, layer, QKV), *probabilities = kept(t, layer, PROBABILITIES);
    struct gpu_buffer *attended_grad = layer_gradient(t, layer, ATTENDED_GRAD),
                      *qkv_grad = layer_gradient(t, layer, QKV_GRAD);
    struct gpu_buffer *probabilities_grad = layer_gradient(t, layer, PROBABILITIES_GRAD);
    struct gpu_buffer *scores_grad = layer_gradient(t, layer, SCORES_GRAD);
    LAUNCH(t->gpu, attention_dot, MAIN, score_grid(s), tile_block, WRITE(probabilities_grad), READ(attended_grad),
           INT(width), READ_AT(qkv, (size_t)width * 2), INT(pitch), FLOAT(1.0f), INT(s->heads), INT(head_width),
           INT(s->context));
    LAUNCH(t->gpu, softmax_backward, MAIN, by_rows(rows), row_block, WRITE(scores_grad), READ(probabilities),
           READ(probabilities_grad), FLOAT(score_scale(s)), INT(rows), INT(s->context));
    LAUNCH(t->gpu, attention_apply, MAIN, head_grid(s), tile_block, WRITE(qkv_grad), INT(pitch), READ(scores_grad),
           READ_AT(qkv, (size_t)width), INT(pitch), INT(s->heads), INT(head_width), INT(s->context));
    LAUNCH(t->gpu, attention_apply_turned, MAIN, head_grid(s), tile_block, WRITE_AT(qkv_grad, (size_t)width),
           INT(pitch), READ(scores_grad), READ(qkv), INT(pitch), INT(s->heads), INT(head_width), INT(s->context));
    LAUNCH(t->gpu, attention_apply_turned, MAIN, head_grid(s), tile_block, WRITE_AT(qkv_grad, (size_t)width * 2),
           INT(pitch), READ(probabilities), READ(attended_grad), INT(width), INT(s->heads), INT(head_width),
           INT(s->context));
}

/* ---- A layer ---- */

static void layer_forward(struct trainer *t, int layer)
{
    int width = t->shape.width, count = shape_tokens(&t->shape) * width, base = layer_parameter(layer, NORM1_GAIN);
    struct gpu_buffer *x = layer_input(t, layer), *middle = kept(t, layer, MIDDLE);
    gpu_next_section(t->gpu);
    norm(t, kept(t, layer, NORM1), kept(t, layer, NORM1_MEAN), kept(t, layer, NORM1_RSTD), x, base + NORM1_GAIN);
    linear(t, kept(t, layer, QKV), kept(t, layer, NORM1), base + QKV_WEIGHT, width, 3 * width);
    attention(t, layer);
    linear(t, kept(t, layer, PROJECTED), kept(t, layer, ATTENDED), base + PROJECTION_WEIGHT, width, width);
    LAUNCH(t->gpu, add, MAIN, flat(count), flat_block, WRITE(middle), READ(x), READ(kept(t, layer, PROJECTED)),
           INT(count));
    norm(t, kept(t, layer, NORM2), kept(t, layer, NORM2_MEAN), kept(t, layer, NORM2_RSTD), middle, base + NORM2_GAIN);
    linear(t, kept(t, layer, UP), kept(t, layer, NORM2), base + UP_WEIGHT, width, 4 * width);
    LAUNCH(t->gpu, gelu_forward, MAIN, flat(4 * count), flat_block, WRITE(kept(t, layer, ACTIVATED)),
           READ(kept(t, layer, UP)), INT(4 * count));
    linear(t, kept(t, layer, DOWN), kept(t, layer, ACTIVATED), base + DOWN_WEIGHT, 4 * width, width);
    LAUNCH(t->gpu, add, MAIN, flat(count), flat_block, WRITE(kept(t, layer, OUTPUT)), READ(middle),
           READ(kept(t, layer, DOWN)), INT(count));
}

static void layer_backward(struct trainer *t, int layer)
{
    int width = t->shape.width, count = shape_tokens(&t->shape) * 4 * width, base = layer_parameter(layer, NORM1_GAIN);
    struct gpu_buffer *above = gradient_from_above(t, layer);
    struct gpu_buffer *up_grad = layer_gradient(t, layer, UP_GRAD),
                      *middle_grad = layer_gradient(t, layer, MIDDLE_GRAD);
    gpu_next_section(t->gpu);
    linear_backward(t, layer_gradient(t, layer, ACTIVATED_GRAD), above, kept(t, layer, ACTIVATED), base + DOWN_WEIGHT,
                    4 * width, width);
    LAUNCH(t->gpu, gelu_backward, MAIN, flat(count), flat_block, WRITE(up_grad),
           READ(layer_gradient(t, layer, ACTIVATED_GRAD)), READ(kept(t, layer, UP)), INT(count));
    linear_backward(t, layer_gradient(t, layer, NORM2_GRAD), up_grad, kept(t, layer, NORM2), base + UP_WEIGHT, width,
                    4 * width);
    norm_backward(t, middle_grad, above, layer_gradient(t, layer, NORM2_GRAD), kept(t, layer, MIDDLE),
                  kept(t, layer, NORM2_MEAN), kept(t, layer, NORM2_RSTD), base + NORM2_GAIN);
    linear_backward(t, layer_gradient(t, layer, ATTENDED_GRAD), middle_grad, kept(t, layer, ATTENDED),
                    base + PROJECTION_WEIGHT, width, width);
    attention_backward(t, layer);
    linear_backward(t, layer_gradient(t, layer, NORM1_GRAD), layer_gradient(t, layer, QKV_GRAD), kept(t, layer, NORM1),
                    base + QKV_WEIGHT, width, 3 * width);
    norm_backward(t, layer_gradient(t, layer, INPUT_GRAD), middle_grad, layer_gradient(t, layer, NORM1_GRAD),
                  layer_input(t, layer), kept(t, layer, NORM1_MEAN), kept(t, layer, NORM1_RSTD), base + NORM1_GAIN);
}

/* ---- Both ends of the model ---- */

static void embed(struct trainer *t)
{
    const struct shape *s = &t->shape;
    int rows = shape_tokens(s);
    LAUNCH(t->gpu, embed_forward, MAIN, flat(rows * s->width), flat_block, WRITE(shared(t, EMBEDDED)),
           READ(shared(t, TOKENS)), READ(weight(t, TOKEN_TABLE)), READ(weight(t, POSITION_TABLE)), INT(rows),
           INT(s->context), INT(s->width));
}

static void embed_backward(struct trainer *t)
{
    const struct shape *s = &t->shape;
    struct gpu_buffer *grad = layer_gradient(t, 0, INPUT_GRAD);
    LAUNCH(t->gpu, embed_backward_tokens, SIDE, flat(s->vocabulary * s->width), flat_block,
           WRITE(gradient(t, TOKEN_TABLE)), READ(grad), READ(shared(t, TOKENS)), INT(shape_tokens(s)),
           INT(s->vocabulary), INT(s->width));
    LAUNCH(t->gpu, embed_backward_positions, SIDE, flat(s->context * s->width), flat_block,
           WRITE(gradient(t, POSITION_TABLE)), READ(grad), INT(s->batch), INT(s->context), INT(s->width));
}

/* Final norm, logits, loss, and back to the gradient of the last layer's output. */
static void head(struct trainer *t)
{
    const struct shape *s = &t->shape;
    int rows = shape_tokens(s), width = s->width, vocabulary = s->vocabulary, last = s->layers - 1;
    int parameter = final_parameter(s, HEAD_WEIGHT), mean_over = rows * t->slice.total_passes;
    struct gpu_buffer *b = shared(t, (enum shared_tensor)0), *x = kept(t, last, OUTPUT);
    struct gpu_size logits_grid = {up(vocabulary, TILE), up(rows, TILE), 1};
    struct gpu_size input_grid = {up(width, TILE), up(rows, TILE), 1},
                    weight_grid = {up(vocabulary, TILE), up(width, TILE), 1};
    gpu_next_section(t->gpu);
    norm(t, &b[FINAL_NORM], &b[FINAL_MEAN], &b[FINAL_RSTD], x, final_parameter(s, FINAL_GAIN));
    LAUNCH(t->gpu, matmul_forward, MAIN, logits_grid, tile_block, WRITE(&b[LOGITS]), READ(&b[FINAL_NORM]),
           READ(weight(t, parameter)), NOTHING, INT(rows), INT(vocabulary), INT(width));
    LAUNCH(t->gpu, cross_entropy, MAIN, by_rows(rows), row_block, WRITE(&b[LOSSES]), WRITE(&b[LOGITS_GRAD]),
           READ(&b[LOGITS]), READ(&b[TARGETS]), INT(rows), INT(vocabulary), INT(mean_over));
    LAUNCH(t->gpu, loss_mean, MAIN, ((struct gpu_size){1, 1, 1}), ((struct gpu_size){32, 1, 1}), WRITE(&b[LOSS]),
           READ(&b[LOSSES]), INT(rows));
    LAUNCH(t->gpu, matmul_backward_input, MAIN, input_grid, tile_block, WRITE(&b[FINAL_NORM_GRAD]),
           READ(&b[LOGITS_GRAD]), READ(weight(t, parameter)), INT(rows), INT(width), INT(vocabulary));
    LAUNCH(t->gpu, matmul_backward_weight, SIDE, weight_grid, tile_block, WRITE(gradient(t, parameter)),
           READ(&b[FINAL_NORM]), READ(&b[LOGITS_GRAD]), INT(width), INT(vocabulary), INT(rows));
    norm_backward(t, &b[TOP_GRAD], NULL, &b[FINAL_NORM_GRAD], x, &b[FINAL_MEAN], &b[FINAL_RSTD],
                  final_parameter(s, FINAL_GAIN));
}

/* ---- A step, block by block ---- */

static bool has_tables(const struct trainer *t)
{
    return t->slice.first == 0;
}

static bool has_head(const struct trainer *t)
{
    return t->slice.end == t->shape.layers;
}

int trainer_first_block(const struct trainer *t)
{
    return has_tables(t) ? TABLES_BLOCK : t->slice.first;
}

int trainer_last_block(const struct trainer *t)
{
    return has_head(t) ? t->shape.layers : t->slice.end - 1;
}

void block_parameters(const struct shape *s, int block, int *first_out, int *count_out)
{
    bool tables = block == TABLES_BLOCK, is_head = block == s->layers;
    *first_out = tables ? TOKEN_TABLE : layer_parameter(block, NORM1_GAIN); /* the head's follow the last layer's */
    *count_out = tables ? FIRST_LAYER_PARAMETER : is_head ? (int)FINAL_PARAMETERS : (int)LAYER_PARAMETERS;
}

void trainer_begin(struct trainer *t, int pass, const int *tokens, const int *targets)
{
    t->pass = pass;
    gpu_next_section(t->gpu);
    if (has_tables(t))
        gpu_upload(t->gpu, shared(t, TOKENS), tokens);
    if (has_head(t))
        gpu_upload(t->gpu, shared(t, TARGETS), targets);
}

void trainer_forward(struct trainer *t)
{
    if (has_tables(t))
        embed(t);
    for (int layer = t->slice.first; layer < t->slice.end; layer++)
        layer_forward(t, layer);
}

void trainer_backward(struct trainer *t, int block)
{
    if (block == TABLES_BLOCK)
        embed_backward(t);
    else if (block == t->shape.layers)
        head(t);
    else
        layer_backward(t, block);
}

void trainer_sum(struct trainer *t, int parameter)
{
    int count = parameter_at(&t->shape, parameter).count;
    LAUNCH(t->gpu, add, SIDE, flat(count), flat_block, UPDATE(&t->gradients[parameter]), READ(&t->gradients[parameter]),
           READ(&t->parts[parameter]), INT(count));
}

void trainer_sum_block(struct trainer *t, int block)
{
    int first, count;
    block_parameters(&t->shape, block, &first, &count);
    for (int i = first; i < first + count; i++)
        trainer_sum(t, i);
}

void trainer_update(struct trainer *t, int block, const struct adamw *a)
{
    int first, count;
    block_parameters(&t->shape, block, &first, &count);
    for (int i = first; i < first + count; i++) {
        struct parameter p = parameter_at(&t->shape, i);
        LAUNCH(t->gpu, adamw, SIDE, flat(p.count), flat_block, UPDATE(weight(t, i)), UPDATE(&t->means[i]),
               UPDATE(&t->squares[i]), READ(&t->gradients[i]), INT(p.count), FLOAT(a->rate), FLOAT(a->beta1),
               FLOAT(a->beta2), FLOAT(a->epsilon), FLOAT(p.decays ? a->decay : 0.0f), FLOAT(a->m_scale),
               FLOAT(a->v_scale));
    }
}

struct gpu_buffer *trainer_input(struct trainer *t)
{
    return layer_input(t, t->slice.first);
}

struct gpu_buffer *trainer_output(struct trainer *t)
{
    return kept(t, t->slice.end - 1, OUTPUT);
}

struct gpu_buffer *trainer_output_grad(struct trainer *t)
{
    return gradient_from_above(t, t->slice.end - 1);
}

struct gpu_buffer *trainer_input_grad(struct trainer *t)
{
    return layer_gradient(t, t->slice.first, INPUT_GRAD);
}

float trainer_loss(struct trainer *t, int pass)
{
    float loss;
    gpu_download(t->gpu, &t->shared[pass * SHARED_TENSORS + LOSS], &loss);
    return loss;
}
