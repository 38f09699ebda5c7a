// Kernels of the programs in this folder, compiled to PTX without any CUDA toolkit.
#define GLOBAL extern "C" __attribute__((global))
#define DEVICE static inline __attribute__((device))
#define SHARED __attribute__((shared))
#define TX ((u32)__nvvm_read_ptx_sreg_tid_x())
#define BX __nvvm_read_ptx_sreg_ctaid_x()
#define NX __nvvm_read_ptx_sreg_ntid_x()
#define THREAD (BX * NX + TX)
#define THREADS (__nvvm_read_ptx_sreg_nctaid_x() * NX)
#define SYNC() __nvvm_bar_sync(0)
typedef unsigned u32;
typedef unsigned long long u64;

DEVICE u32 hash(u32 x)
{
    x ^= x >> 16;
    x *= 0x7feb352du;
    x ^= x >> 15;
    x *= 0x846ca68bu;
    return x ^ (x >> 16);
}

GLOBAL void fill_hash(u32 *out, u32 n, u32 seed)
{
    for (u32 i = THREAD; i < n; i += THREADS)
        out[i] = hash(i + seed);
}

// --- reduction: a block adds up its share, then one block what the blocks found; 256 threads a block

DEVICE void tree(u64 *part)
{
    SYNC();
    for (u32 k = 128; k; k >>= 1) {
        if (TX < k)
            part[TX] += part[TX + k];
        SYNC();
    }
}

GLOBAL void sum_words(u64 *partial, const u32 *in, u32 n)
{
    SHARED static u64 part[256];
    u64 sum = 0;
    for (u32 i = THREAD; i < n; i += THREADS)
        sum += in[i];
    part[TX] = sum;
    tree(part);
    if (TX == 0)
        partial[BX] = part[0];
}

GLOBAL void sum_partials(u64 *out, const u64 *partial, u32 n)
{
    SHARED static u64 part[256];
    u64 sum = 0;
    for (u32 i = TX; i < n; i += NX)
        sum += partial[i];
    part[TX] = sum;
    tree(part);
    if (TX == 0)
        *out = part[0];
}

// --- radix sort: every thread owns a run of keys, so that each pass is stable

GLOBAL void digit_count(u32 *counts, const u32 *keys, u32 n, u32 shift)
{
    u32 run = n / THREADS, own[16];
#pragma unroll
    for (u32 d = 0; d < 16; d++)
        own[d] = 0;
    for (u32 i = 0; i < run; i++) {
        u32 digit = keys[THREAD * run + i] >> shift & 15;
#pragma unroll
        for (u32 d = 0; d < 16; d++)
            own[d] += digit == d;
    }
#pragma unroll
    for (u32 d = 0; d < 16; d++)
        counts[d * THREADS + THREAD] = own[d];
}

// One block of 256 threads; count is a multiple of 256.
GLOBAL void scan_counts(u32 *counts, u32 count)
{
    SHARED static u32 before[256];
    u32 run = count / 256, sum = 0;
    for (u32 i = 0; i < run; i++)
        sum += counts[TX * run + i];
    before[TX] = sum;
    SYNC();
    if (TX == 0) {
        u32 total = 0;
        for (u32 t = 0; t < 256; t++) {
            u32 own = before[t];
            before[t] = total;
            total += own;
        }
    }
    SYNC();
    u32 at = before[TX];
    for (u32 i = 0; i < run; i++) {
        u32 own = counts[TX * run + i];
        counts[TX * run + i] = at;
        at += own;
    }
}

GLOBAL void digit_scatter(u32 *out, u32 *counts, const u32 *keys, u32 n, u32 shift)
{
    u32 run = n / THREADS;
    for (u32 i = 0; i < run; i++) {
        u32 key = keys[THREAD * run + i];
        u32 *place = &counts[(key >> shift & 15) * THREADS + THREAD];
        u32 at = *place;
        out[at] = key;
        *place = at + 1;
    }
}

// --- sparse matrix times vector, compressed rows

GLOBAL void spmv(float *y, const u32 *row, const u32 *column, const float *value, const float *x, u32 rows)
{
    for (u32 r = THREAD; r < rows; r += THREADS) {
        float sum = 0;
        for (u32 k = row[r]; k < row[r + 1]; k++)
            sum += value[k] * x[column[k]];
        y[r] = sum;
    }
}

// --- FFT: one radix-2 step of the self-sorting (Stockham) kind over many transforms of n points

struct point {
    float re, im;
};

GLOBAL void fft_step(struct point *out, const struct point *in, const struct point *roots, u32 n, u32 done, u32 total,
                     float sign, float scale)
{
    u32 half = n / 2;
    for (u32 t = THREAD; t < total / 2; t += THREADS) {
        u32 base = t / half * n, j = t % half, k = j % done;
        struct point a = in[base + j], b = in[base + j + half], w = roots[k * (half / done)];
        float wi = w.im * sign;
        float re = b.re * w.re - b.im * wi, im = b.re * wi + b.im * w.re;
        u32 to = base + (j - k) * 2 + k;
        out[to].re = (a.re + re) * scale;
        out[to].im = (a.im + im) * scale;
        out[to + done].re = (a.re - re) * scale;
        out[to + done].im = (a.im - im) * scale;
    }
}

// --- stencil: each inner cell becomes the mean of its four neighbours

GLOBAL void mean_of_four(float *out, const float *in, u32 width, u32 height, u32 pitch)
{
    for (u32 i = THREAD; i < width * height; i += THREADS) {
        u32 x = i % width, y = i / width;
        const float *c = in + y * pitch + x;
        bool inner = x > 0 && y > 0 && x + 1 < width && y + 1 < height;
        out[y * pitch + x] = inner ? 0.25f * ((c[-1] + c[1]) + (c[-(int)pitch] + c[pitch])) : *c;
    }
}

// --- n bodies: the table of inverse cubed distances, then the step that uses it

struct body {
    float x, y, z, mass;
};

GLOBAL void distances(float *table, const struct body *body, u32 n)
{
    for (u32 i = THREAD; i < n * n; i += THREADS) {
        struct body a = body[i / n], b = body[i % n];
        float x = b.x - a.x, y = b.y - a.y, z = b.z - a.z;
        float d2 = x * x + y * y + z * z + 0.01f;
        table[i] = __nvvm_div_rn_f(1.0f, d2 * __nvvm_sqrt_rn_f(d2));
    }
}

GLOBAL void step_bodies(struct body *out, struct body *speed, const struct body *in, const float *table, u32 n, float dt)
{
    for (u32 i = THREAD; i < n; i += THREADS) {
        struct body a = in[i], v = speed[i];
        float x = 0, y = 0, z = 0;
        for (u32 j = 0; j < n; j++) {
            float f = in[j].mass * table[j * n + i];
            x += f * (in[j].x - a.x);
            y += f * (in[j].y - a.y);
            z += f * (in[j].z - a.z);
        }
        v.x += x * dt;
        v.y += y * dt;
        v.z += z * dt;
        a.x += v.x * dt;
        a.y += v.y * dt;
        a.z += v.z * dt;
        speed[i] = v;
        out[i] = a;
    }
}

// --- histograms: 256 bins that a block gathers in shared memory, and many bins in global memory

GLOBAL void histogram_256(u32 *bins, const u32 *data, u32 n)
{
    SHARED static u32 own[256];
    own[TX] = 0;
    SYNC();
    for (u32 i = THREAD; i < n; i += THREADS)
        __nvvm_atom_add_gen_i((int *)&own[data[i] >> 24], 1);
    SYNC();
    __nvvm_atom_add_gen_i((int *)&bins[TX], (int)own[TX]);
}

GLOBAL void histogram_wide(u32 *bins, const u32 *data, u32 n, u32 bin_count)
{
    for (u32 i = THREAD; i < n; i += THREADS)
        __nvvm_atom_add_gen_i((int *)&bins[data[i] % bin_count], 1);
}

// --- producer and consumer: what the one writes the other adds up

GLOBAL void produce(u32 *item, u32 n, u32 seed)
{
    for (u32 i = THREAD; i < n; i += THREADS)
        item[i] = hash(i ^ seed * 0x9e3779b9u);
}

GLOBAL void consume(u64 *total, const u32 *item, u32 n, u32 weight)
{
    u64 sum = 0;
    for (u32 i = THREAD; i < n; i += THREADS)
        sum += item[i];
    __nvvm_atom_add_gen_ll((long long *)total, (long long)(sum * weight));
}

// --- two GPUs: a buffer takes in what a buffer of either GPU holds

GLOBAL void mix_in(u32 *y, const u32 *x, u32 n, u32 round)
{
    for (u32 i = THREAD; i < n; i += THREADS)
        y[i] = hash(y[i] + round) ^ x[n - 1 - i];
}

// --- tables of pointers, two deep, and by value in a structure

struct tables {
    u32 *const *const *root;
    u32 tables, leaves, n;
};

GLOBAL void add_to_leaves(struct tables t, u32 a)
{
    for (u32 k = 0; k < t.tables; k++)
        for (u32 l = 0; l < t.leaves; l++) {
            u32 *leaf = t.root[k][l];
            for (u32 i = THREAD; i < t.n; i += THREADS)
                leaf[i] += a + k * t.leaves + l;
        }
}

// Each leaf takes over what the next one holds; one block, so that a barrier orders the leaves.
GLOBAL void rotate_leaves(u32 *const *const *root, u32 tables, u32 leaves, u32 first, u32 n)
{
    for (u32 i = TX; i < n; i += NX) {
        u32 kept = root[0][0][first + i];
        for (u32 l = 0; l + 1 < tables * leaves; l++)
            root[l / leaves][l % leaves][first + i] = root[(l + 1) / leaves][(l + 1) % leaves][first + i];
        root[tables - 1][leaves - 1][first + i] = kept;
    }
}
