/*
 * The GPU side of train_gpt: every kernel of a small GPT's training step, in plain CUDA C.
 *
 * Two compilers take this file: nvcc, and clang without any CUDA toolkit (no headers, no libdevice). So nothing is
 * included, names that nvcc provides are defined below for clang, and mathematics goes through single PTX instructions.
 *
 * Everything is deterministic: no atomics, and every reduction adds in an order that depends on the shape only, never on
 * which block or warp runs first. Matrices are dense and row-major. "Tokens" are the batch * context rows of a batch.
 * All kernels take any size: blocks that stick out past an edge do nothing there.
 */
#if defined(__CUDA__) && !defined(__NVCC__)
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define THREAD_X ((int)__nvvm_read_ptx_sreg_tid_x())
#define THREAD_Y ((int)__nvvm_read_ptx_sreg_tid_y())
#define BLOCK_X ((int)__nvvm_read_ptx_sreg_ctaid_x())
#define BLOCK_Y ((int)__nvvm_read_ptx_sreg_ctaid_y())
#define BLOCK_Z ((int)__nvvm_read_ptx_sreg_ctaid_z())
#define BLOCK_WIDTH ((int)__nvvm_read_ptx_sreg_ntid_x())
#define BARRIER() __syncthreads()
#define EXCHANGE_XOR(value, mask) __nvvm_shfl_sync_bfly_f32(0xffffffffu, (value), (mask), 0x1f)
#elif defined(__NVCC__)
#define THREAD_X ((int)threadIdx.x)
#define THREAD_Y ((int)threadIdx.y)
#define BLOCK_X ((int)blockIdx.x)
#define BLOCK_Y ((int)blockIdx.y)
#define BLOCK_Z ((int)blockIdx.z)
#define BLOCK_WIDTH ((int)blockDim.x)
#define BARRIER() __syncthreads()
#define EXCHANGE_XOR(value, mask) __shfl_xor_sync(0xffffffffu, (value), (mask))
#endif

#define KERNEL extern "C" __global__ void
#define INLINE static __device__ __inline__ __attribute__((always_inline))
#define WARP 32

#ifndef MATH_GIVEN
INLINE float exp2_approx(float x)
{
    float y;
    __asm__("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

INLINE float log2_approx(float x)
{
    float y;
    __asm__("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

INLINE float rsqrt_approx(float x)
{
    float y;
    __asm__("rsqrt.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

INLINE float square_root(float x)
{
    float y;
    __asm__("sqrt.rn.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#endif

INLINE float exp_of(float x)
{
    return exp2_approx(x * 1.4426950408889634f);
}

INLINE float log_of(float x)
{
    return log2_approx(x) * 0.6931471805599453f;
}

/* exp overflows to infinity for large x, and the quotient then is 0: right at both ends. */
INLINE float tanh_of(float x)
{
    return 1.0f - 2.0f / (1.0f + exp_of(2.0f * x));
}

INLINE float max_of(float a, float b)
{
    return a > b ? a : b;
}

/* Butterflies: all 32 lanes end with the same value, added in the same order. */
INLINE float warp_sum(float x)
{
    for (int mask = WARP / 2; mask > 0; mask /= 2)
        x += EXCHANGE_XOR(x, mask);
    return x;
}

INLINE float warp_max(float x)
{
    for (int mask = WARP / 2; mask > 0; mask /= 2)
        x = max_of(x, EXCHANGE_XOR(x, mask));
    return x;
}

/* ---- Embedding ---- */

/* out[token][c] = token_table[tokens[token]][c] + position_table[token % context][c]; one thread an element. */
KERNEL embed_forward(float *out, const int *tokens, const float *token_table, const float *position_table,
                     int token_count, int context, int width)
{
    int i = BLOCK_X * BLOCK_WIDTH + THREAD_X;
    if (i >= token_count * width)
        return;
    int token = i / width, c = i % width;
    out[i] = token_table[tokens[token] * width + c] + position_table[(token % context) * width + c];
}

/* One thread an element of the token table's gradient: it walks all tokens in order, so no two threads ever add. */
KERNEL embed_backward_tokens(float *table_grad, const float *out_grad, const int *tokens, int token_count,
                             int vocabulary, int width)
{
    int i = BLOCK_X * BLOCK_WIDTH + THREAD_X;
    if (i >= vocabulary * width)
        return;
    int symbol = i / width, c = i % width;
    float sum = 0.0f;
    for (int token = 0; token < token_count; token++)
        if (tokens[token] == symbol)
            sum += out_grad[token * width + c];
    table_grad[i] = sum;
}

KERNEL embed_backward_positions(float *table_grad, const float *out_grad, int batch, int context, int width)
{
    int i = BLOCK_X * BLOCK_WIDTH + THREAD_X;
    if (i >= context * width)
        return;
    float sum = 0.0f;
    for (int b = 0; b < batch; b++)
        sum += out_grad[b * context * width + i];
    table_grad[i] = sum;
}

/* ---- Layer norm: one warp a row, blockDim = (32, rows a block) ---- */

KERNEL layernorm_forward(float *out, float *mean_out, float *rstd_out, const float *x, const float *gain,
                         const float *bias, int rows, int width)
{
    int row = BLOCK_X * 8 + THREAD_Y, lane = THREAD_X;
    if (row >= rows)
        return;
    const float *in = x + (long)row * width;
    float sum = 0.0f;
    for (int c = lane; c < width; c += WARP)
        sum += in[c];
    float mean = warp_sum(sum) / (float)width;
    float squares = 0.0f;
    for (int c = lane; c < width; c += WARP)
        squares += (in[c] - mean) * (in[c] - mean);
    float rstd = rsqrt_approx(warp_sum(squares) / (float)width + 1e-5f);
    for (int c = lane; c < width; c += WARP)
        out[(long)row * width + c] = (in[c] - mean) * rstd * gain[c] + bias[c];
    if (lane == 0) {
        mean_out[row] = mean;
        rstd_out[row] = rstd;
    }
}

/* x_grad = residual_grad (if not NULL) + the gradient through the norm: the two paths that leave x meet here. */
KERNEL layernorm_backward(float *x_grad, const float *residual_grad, const float *out_grad, const float *x,
                          const float *mean, const float *rstd, const float *gain, int rows, int width)
{
    int row = BLOCK_X * 8 + THREAD_Y, lane = THREAD_X;
    if (row >= rows)
        return;
    long base = (long)row * width;
    float m = mean[row], r = rstd[row], sum = 0.0f, dot = 0.0f;
    for (int c = lane; c < width; c += WARP) {
        float g = out_grad[base + c] * gain[c];
        sum += g;
        dot += g * ((x[base + c] - m) * r);
    }
    sum = warp_sum(sum) / (float)width;
    dot = warp_sum(dot) / (float)width;
    for (int c = lane; c < width; c += WARP) {
        float g = out_grad[base + c] * gain[c];
        float normalised = (x[base + c] - m) * r;
        x_grad[base + c] = (residual_grad ? residual_grad[base + c] : 0.0f) + (g - sum - normalised * dot) * r;
    }
}

/* blockDim = (32, 8): 32 columns a block; 8 rows at a time, then one thread a column adds the eight partial sums. */
KERNEL layernorm_backward_weights(float *gain_grad, float *bias_grad, const float *out_grad, const float *x,
                                  const float *mean, const float *rstd, int rows, int width)
{
    __shared__ float gain_part[8][WARP], bias_part[8][WARP];
    int c = BLOCK_X * WARP + THREAD_X;
    float gain_sum = 0.0f, bias_sum = 0.0f;
    if (c < width)
        for (int row = THREAD_Y; row < rows; row += 8) {
            float g = out_grad[(long)row * width + c];
            gain_sum += g * ((x[(long)row * width + c] - mean[row]) * rstd[row]);
            bias_sum += g;
        }
    gain_part[THREAD_Y][THREAD_X] = gain_sum;
    bias_part[THREAD_Y][THREAD_X] = bias_sum;
    BARRIER();
    if (THREAD_Y != 0 || c >= width)
        return;
    for (int y = 1; y < 8; y++) {
        gain_sum += gain_part[y][THREAD_X];
        bias_sum += bias_part[y][THREAD_X];
    }
    gain_grad[c] = gain_sum;
    bias_grad[c] = bias_sum;
}

/* out[c] = sum of a column: the gradient of a bias. blockDim = (32, 8), as above. */
KERNEL column_sum(float *out, const float *in, int rows, int width)
{
    __shared__ float part[8][WARP];
    int c = BLOCK_X * WARP + THREAD_X;
    float sum = 0.0f;
    if (c < width)
        for (int row = THREAD_Y; row < rows; row += 8)
            sum += in[(long)row * width + c];
    part[THREAD_Y][THREAD_X] = sum;
    BARRIER();
    if (THREAD_Y != 0 || c >= width)
        return;
    for (int y = 1; y < 8; y++)
        sum += part[y][THREAD_X];
    out[c] = sum;
}

/*
 * ---- Matrix products ----
 * blockDim = (16, 16); a block makes a TILE x TILE piece of the result, a thread 4 x 4 of it, from slices of DEPTH terms in
 * shared memory. Slices are stored depth-major so that a thread reads its four rows (columns) as one 16-byte word.
 */
#define TILE 64
#define DEPTH 16
#define TILE_PITCH (TILE + 4) /* keeps 16-byte alignment, spreads the banks */

/* Slice of a matrix whose element (line, depth) is at m[line * pitch + depth]: depth is contiguous. */
INLINE void load_lines(float (*slice)[TILE_PITCH], const float *m, int pitch, int line0, int lines, int depth0,
                       int depths)
{
    int t = THREAD_Y * 16 + THREAD_X, d = t % DEPTH;
    for (int r = 0; r < 4; r++) {
        int line = t / DEPTH + 16 * r;
        bool inside = line0 + line < lines && depth0 + d < depths;
        slice[d][line] = inside ? m[(long)(line0 + line) * pitch + depth0 + d] : 0.0f;
    }
}

/* Slice of a matrix whose element (line, depth) is at m[depth * pitch + line]: lines are contiguous. */
INLINE void load_columns(float (*slice)[TILE_PITCH], const float *m, int pitch, int line0, int lines, int depth0,
                         int depths)
{
    int t = THREAD_Y * 16 + THREAD_X, line = t % TILE;
    for (int r = 0; r < 4; r++) {
        int d = t / TILE + 4 * r;
        bool inside = line0 + line < lines && depth0 + d < depths;
        slice[d][line] = inside ? m[(long)(depth0 + d) * pitch + line0 + line] : 0.0f;
    }
}

struct quad {
    float v[4];
} __attribute__((aligned(16)));

/* sum[r][c] += products over one slice. */
INLINE void multiply_slice(float (*sum)[4], const float (*a)[TILE_PITCH], const float (*b)[TILE_PITCH])
{
#pragma unroll
    for (int d = 0; d < DEPTH; d++) {
        struct quad rows = *(const struct quad *)&a[d][THREAD_Y * 4];
        struct quad columns = *(const struct quad *)&b[d][THREAD_X * 4];
#pragma unroll
        for (int r = 0; r < 4; r++)
#pragma unroll
            for (int c = 0; c < 4; c++)
                sum[r][c] += rows.v[r] * columns.v[c];
    }
}

INLINE void store_tile(float *out, float (*sum)[4], const float *bias, int row0, int column0, int rows, int columns)
{
#pragma unroll
    for (int r = 0; r < 4; r++)
#pragma unroll
        for (int c = 0; c < 4; c++)
            if (row0 + r < rows && column0 + c < columns)
                out[(long)(row0 + r) * columns + column0 + c] = sum[r][c] + (bias ? bias[column0 + c] : 0.0f);
}

/*
 * out[rows][columns] = A B (+ bias) with `depth` terms. a_turned: A is stored [depth][rows]; b_turned: B is stored
 * [columns][depth]. The flags are constants wherever this is used, so the branches vanish.
 */
INLINE void matmul(float *out, const float *a, const float *b, const float *bias, int rows, int columns, int depth,
                   bool a_turned, bool b_turned)
{
    __shared__ __attribute__((aligned(16))) float a_slice[DEPTH][TILE_PITCH];
    __shared__ __attribute__((aligned(16))) float b_slice[DEPTH][TILE_PITCH];
    float sum[4][4] = {};
    int row0 = BLOCK_Y * TILE, column0 = BLOCK_X * TILE;
    bool needed = row0 + THREAD_Y * 4 < rows; /* whole warps past the last row only help loading */
    for (int depth0 = 0; depth0 < depth; depth0 += DEPTH) {
        if (a_turned)
            load_columns(a_slice, a, rows, row0, rows, depth0, depth);
        else
            load_lines(a_slice, a, depth, row0, rows, depth0, depth);
        if (b_turned)
            load_lines(b_slice, b, depth, column0, columns, depth0, depth);
        else
            load_columns(b_slice, b, columns, column0, columns, depth0, depth);
        BARRIER();
        if (needed)
            multiply_slice(sum, a_slice, b_slice);
        BARRIER();
    }
    store_tile(out, sum, bias, row0 + THREAD_Y * 4, column0 + THREAD_X * 4, rows, columns);
}

/* out = x weight + bias (bias may be NULL): a linear layer. */
KERNEL matmul_forward(float *out, const float *x, const float *weight, const float *bias, int rows, int columns,
                      int depth)
{
    matmul(out, x, weight, bias, rows, columns, depth, false, false);
}

/* x_grad = out_grad weight^T; weight is [columns][depth] here. */
KERNEL matmul_backward_input(float *x_grad, const float *out_grad, const float *weight, int rows, int columns,
                             int depth)
{
    matmul(x_grad, out_grad, weight, 0, rows, columns, depth, false, true);
}

/* weight_grad = x^T out_grad; depth is the number of tokens. */
KERNEL matmul_backward_weight(float *weight_grad, const float *x, const float *out_grad, int rows, int columns,
                              int depth)
{
    matmul(weight_grad, x, out_grad, 0, rows, columns, depth, true, false);
}

/*
 * ---- Attention ----
 * blockDim = (16, 16), BLOCK_Z = batch row * heads + head. Score-like matrices are [batch][head][context][context], of
 * which only the lower triangle (key <= query) is ever computed. Operands with a row pitch are [batch * context][pitch],
 * and their pointer names the first column of head 0, so q, k and v are interior pointers of one buffer.
 */
#define SIDE 16

INLINE const float *head_rows(const float *m, int pitch, int heads, int head_width, int context)
{
    return m + (long)(BLOCK_Z / heads) * context * pitch + (BLOCK_Z % heads) * head_width;
}

/* out[i][j] = scale * sum over the head's width of a[i][d] b[j][d], for j <= i. */
KERNEL attention_dot(float *out, const float *a, int a_pitch, const float *b, int b_pitch, float scale, int heads,
                     int head_width, int context)
{
    __shared__ float a_tile[SIDE][SIDE + 1], b_tile[SIDE][SIDE + 1];
    if (BLOCK_X > BLOCK_Y)
        return;
    a = head_rows(a, a_pitch, heads, head_width, context);
    b = head_rows(b, b_pitch, heads, head_width, context);
    int i = BLOCK_Y * SIDE + THREAD_Y, j0 = BLOCK_X * SIDE, j = j0 + THREAD_X;
    float sum = 0.0f;
    for (int d0 = 0; d0 < head_width; d0 += SIDE) {
        int d = d0 + THREAD_X;
        a_tile[THREAD_Y][THREAD_X] = i < context && d < head_width ? a[(long)i * a_pitch + d] : 0.0f;
        b_tile[THREAD_Y][THREAD_X] =
            j0 + THREAD_Y < context && d < head_width ? b[(long)(j0 + THREAD_Y) * b_pitch + d] : 0.0f;
        BARRIER();
        int terms = head_width - d0 < SIDE ? head_width - d0 : SIDE;
        for (int k = 0; k < terms; k++)
            sum += a_tile[THREAD_Y][k] * b_tile[THREAD_X][k];
        BARRIER();
    }
    if (i < context && j <= i)
        out[((long)BLOCK_Z * context + i) * context + j] = sum * scale;
}

/* out[i][d] = sum over j <= i of s[i][j] v[j][d]. */
KERNEL attention_apply(float *out, int out_pitch, const float *s, const float *v, int v_pitch, int heads,
                       int head_width, int context)
{
    __shared__ float s_tile[SIDE][SIDE + 1], v_tile[SIDE][SIDE + 1];
    v = head_rows(v, v_pitch, heads, head_width, context);
    out = (float *)head_rows(out, out_pitch, heads, head_width, context);
    s += (long)BLOCK_Z * context * context;
    int i = BLOCK_Y * SIDE + THREAD_Y, d = BLOCK_X * SIDE + THREAD_X;
    float sum = 0.0f;
    for (int j0 = 0; j0 <= BLOCK_Y * SIDE; j0 += SIDE) {
        int j = j0 + THREAD_X;
        s_tile[THREAD_Y][THREAD_X] = i < context && j <= i ? s[(long)i * context + j] : 0.0f;
        v_tile[THREAD_Y][THREAD_X] =
            j0 + THREAD_Y < context && d < head_width ? v[(long)(j0 + THREAD_Y) * v_pitch + d] : 0.0f;
        BARRIER();
        for (int k = 0; k < SIDE; k++)
            sum += s_tile[THREAD_Y][k] * v_tile[k][THREAD_X];
        BARRIER();
    }
    if (i < context && d < head_width)
        out[(long)i * out_pitch + d] = sum;
}

/* out[j][d] = sum over i >= j of s[i][j] a[i][d]: the same through the transpose. */
KERNEL attention_apply_turned(float *out, int out_pitch, const float *s, const float *a, int a_pitch, int heads,
                              int head_width, int context)
{
    __shared__ float s_tile[SIDE][SIDE + 1], a_tile[SIDE][SIDE + 1];
    a = head_rows(a, a_pitch, heads, head_width, context);
    out = (float *)head_rows(out, out_pitch, heads, head_width, context);
    s += (long)BLOCK_Z * context * context;
    int j0 = BLOCK_Y * SIDE, j = j0 + THREAD_Y, d = BLOCK_X * SIDE + THREAD_X;
    float sum = 0.0f;
    for (int i0 = j0; i0 < context; i0 += SIDE) {
        int i = i0 + THREAD_Y, column = j0 + THREAD_X;
        s_tile[THREAD_Y][THREAD_X] = i < context && column <= i ? s[(long)i * context + column] : 0.0f;
        a_tile[THREAD_Y][THREAD_X] = i < context && d < head_width ? a[(long)i * a_pitch + d] : 0.0f;
        BARRIER();
        for (int k = 0; k < SIDE; k++)
            sum += s_tile[k][THREAD_Y] * a_tile[k][THREAD_X];
        BARRIER();
    }
    if (j < context && d < head_width)
        out[(long)j * out_pitch + d] = sum;
}

/* One warp a row, blockDim = (32, 8). The upper triangle of the probabilities is written as 0. */
KERNEL softmax_causal(float *probabilities, const float *scores, int rows, int context)
{
    int row = BLOCK_X * 8 + THREAD_Y, lane = THREAD_X;
    if (row >= rows)
        return;
    int length = row % context + 1;
    const float *in = scores + (long)row * context;
    float *out = probabilities + (long)row * context;
    float top = -1e30f, sum = 0.0f;
    for (int j = lane; j < length; j += WARP)
        top = max_of(top, in[j]);
    top = warp_max(top);
    for (int j = lane; j < length; j += WARP)
        sum += exp_of(in[j] - top);
    float scale = 1.0f / warp_sum(sum);
    for (int j = lane; j < context; j += WARP)
        out[j] = j < length ? exp_of(in[j] - top) * scale : 0.0f;
}

/* score_grad = scale * p * (p_grad - sum(p * p_grad)) on the lower triangle. */
KERNEL softmax_backward(float *score_grad, const float *probabilities, const float *probability_grad, float scale,
                        int rows, int context)
{
    int row = BLOCK_X * 8 + THREAD_Y, lane = THREAD_X;
    if (row >= rows)
        return;
    int length = row % context + 1;
    long base = (long)row * context;
    float dot = 0.0f;
    for (int j = lane; j < length; j += WARP)
        dot += probabilities[base + j] * probability_grad[base + j];
    dot = warp_sum(dot);
    for (int j = lane; j < length; j += WARP)
        score_grad[base + j] = scale * probabilities[base + j] * (probability_grad[base + j] - dot);
}

/* ---- Element by element: one thread an element ---- */

KERNEL add(float *out, const float *a, const float *b, int count)
{
    int i = BLOCK_X * BLOCK_WIDTH + THREAD_X;
    if (i < count)
        out[i] = a[i] + b[i];
}

#define GELU_SLOPE 0.7978845608028654f /* sqrt(2 / pi) */
#define GELU_CUBE 0.044715f

KERNEL gelu_forward(float *out, const float *x, int count)
{
    int i = BLOCK_X * BLOCK_WIDTH + THREAD_X;
    if (i >= count)
        return;
    float v = x[i];
    out[i] = 0.5f * v * (1.0f + tanh_of(GELU_SLOPE * (v + GELU_CUBE * v * v * v)));
}

KERNEL gelu_backward(float *x_grad, const float *out_grad, const float *x, int count)
{
    int i = BLOCK_X * BLOCK_WIDTH + THREAD_X;
    if (i >= count)
        return;
    float v = x[i], t = tanh_of(GELU_SLOPE * (v + GELU_CUBE * v * v * v));
    float slope = GELU_SLOPE * (1.0f + 3.0f * GELU_CUBE * v * v);
    x_grad[i] = out_grad[i] * (0.5f * (1.0f + t) + 0.5f * v * (1.0f - t * t) * slope);
}

/* ---- Loss ---- */

/* One warp a token, blockDim = (32, 8): its cross-entropy, and the gradient of the mean loss by its logits. */
KERNEL cross_entropy(float *losses, float *logit_grad, const float *logits, const int *targets, int rows,
                     int vocabulary, int mean_over)
{
    int row = BLOCK_X * 8 + THREAD_Y, lane = THREAD_X;
    if (row >= rows)
        return;
    const float *in = logits + (long)row * vocabulary;
    float top = -1e30f, sum = 0.0f;
    for (int v = lane; v < vocabulary; v += WARP)
        top = max_of(top, in[v]);
    top = warp_max(top);
    for (int v = lane; v < vocabulary; v += WARP)
        sum += exp_of(in[v] - top);
    sum = warp_sum(sum);
    int target = targets[row];
    float share = 1.0f / sum;
    for (int v = lane; v < vocabulary; v += WARP)
        logit_grad[(long)row * vocabulary + v] =
            (exp_of(in[v] - top) * share - (v == target ? 1.0f : 0.0f)) / (float)mean_over;
    if (lane == 0)
        losses[row] = log_of(sum) + top - in[target];
}

/* One warp: the mean of the losses. */
KERNEL loss_mean(float *out, const float *losses, int rows)
{
    float sum = 0.0f;
    for (int row = THREAD_X; row < rows; row += WARP)
        sum += losses[row];
    sum = warp_sum(sum);
    if (THREAD_X == 0)
        *out = sum / (float)rows;
}

/* ---- AdamW ---- */

/* Updates weight and both moments in place. m_scale and v_scale are 1 / (1 - beta^step): the bias corrections. */
KERNEL adamw(float *weight, float *m, float *v, const float *grad, int count, float rate, float beta1, float beta2,
             float epsilon, float decay, float m_scale, float v_scale)
{
    int i = BLOCK_X * BLOCK_WIDTH + THREAD_X;
    if (i >= count)
        return;
    float g = grad[i];
    float mean = beta1 * m[i] + (1.0f - beta1) * g;
    float square = beta2 * v[i] + (1.0f - beta2) * g * g;
    m[i] = mean;
    v[i] = square;
    float w = weight[i];
    weight[i] = w - rate * (mean * m_scale / (square_root(square * v_scale) + epsilon) + decay * w);
}
