// Kernels for the engine's tests and benchmark, compiled to PTX without any CUDA toolkit.
#define GLOBAL extern "C" __attribute__((global))
#define DEVICE __attribute__((device))
#define SHARED __attribute__((shared))
#define TX __nvvm_read_ptx_sreg_tid_x()
#define TY __nvvm_read_ptx_sreg_tid_y()
#define BX __nvvm_read_ptx_sreg_ctaid_x()
#define BY __nvvm_read_ptx_sreg_ctaid_y()
#define NX __nvvm_read_ptx_sreg_ntid_x()
#define GX __nvvm_read_ptx_sreg_nctaid_x()
#define SYNC() __nvvm_bar_sync(0)

GLOBAL void empty() {}

GLOBAL void axpy(float *y, const float *x, float a, int n) {
    int i = BX * NX + TX;
    if (i < n)
        y[i] = a * x[i] + y[i];
}

GLOBAL void matmul(float *c, const float *a, const float *b, int n) {
    SHARED static float as[16][16], bs[16][16];
    int x = BX * 16 + TX, y = BY * 16 + TY;
    float sum = 0;
    for (int t = 0; t < n; t += 16) {
        as[TY][TX] = a[y * n + t + TX];
        bs[TY][TX] = b[(t + TY) * n + x];
        SYNC();
#pragma unroll
        for (int k = 0; k < 16; k++)
            sum += as[TY][k] * bs[k][TX];
        SYNC();
    }
    c[y * n + x] = sum;
}

static DEVICE float warp_sum(float v) {
    for (int k = 16; k; k >>= 1)
        v += __nvvm_shfl_sync_down_f32(0xffffffff, v, k, 31);
    return v;
}

GLOBAL void reduce(float *out, const float *in, int n) {
    SHARED static float part[32];
    float v = 0;
    for (int i = TX; i < n; i += NX)
        v += in[i];
    v = warp_sum(v);
    if ((TX & 31) == 0)
        part[TX >> 5] = v;
    SYNC();
    if (TX < 32) {
        v = TX < (NX + 31) / 32 ? part[TX] : 0;
        v = warp_sum(v);
        if (TX == 0)
            *out = v;
    }
}

static DEVICE float ex2(float x) {
    float y;
    asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

GLOBAL void softmax(float *out, const float *in, int n) {
    SHARED static float part[32];
    const float *row = in + BX * n;
    float m = -3.4e38f, s = 0;
    for (int i = TX; i < n; i += 32)
        m = row[i] > m ? row[i] : m;
    for (int k = 16; k; k >>= 1) {
        float o = __nvvm_shfl_sync_bfly_f32(0xffffffff, m, k, 31);
        m = o > m ? o : m;
    }
    for (int i = TX; i < n; i += 32)
        s += ex2((row[i] - m) * 1.44269504f);
    part[TX] = s;
    SYNC();
    s = 0;
    for (int k = 0; k < 32; k++)
        s += part[k];
    for (int i = TX; i < n; i += 32)
        out[BX * n + i] = ex2((row[i] - m) * 1.44269504f) / s;
}

GLOBAL void histogram(unsigned *bins, const unsigned *in, int n) {
    for (int i = BX * NX + TX; i < n; i += NX * GX)
        __nvvm_atom_add_gen_i((int *)&bins[in[i] & 63], 1);
}

GLOBAL void collatz(unsigned *out, int n) {
    int i = BX * NX + TX;
    if (i >= n)
        return;
    unsigned v = (unsigned)i + 1, steps = 0;
    while (v != 1) {
        v = v & 1 ? 3 * v + 1 : v / 2;
        steps++;
    }
    out[i] = steps;
}

GLOBAL void choose(int *out, const int *in, int n) {
    int i = BX * NX + TX;
    if (i >= n)
        return;
    int v = in[i], r;
    switch (v) {
    case 0: r = 17 * i; break;
    case 1: r = i ^ 0x55; break;
    case 2: r = i - 1000; break;
    case 3: r = i * i; break;
    case 4: r = ~i; break;
    case 5: r = i << 3; break;
    case 6: r = i % 7; break;
    case 7: r = -i; break;
    default: r = 99; break;
    }
    out[i] = r;
}

static DEVICE __attribute__((noinline)) unsigned fib(unsigned n) {
    return n < 2 ? n : fib(n - 1) + fib(n - 2);
}

GLOBAL void fibonacci(unsigned *out) {
    out[TX] = fib(TX & 15);
}

struct pair {
    int a;
    double b;
    char c[5];
};

static DEVICE __attribute__((noinline)) struct pair twist(struct pair p, int k) {
    struct pair q;
    q.a = p.a + k;
    q.b = p.b * k;
    for (int i = 0; i < 5; i++)
        q.c[i] = p.c[4 - i] + k;
    return q;
}

GLOBAL void structs(struct pair *out, struct pair in) {
    out[TX] = twist(in, TX);
}

GLOBAL void local_array(int *out, const int *index, int n) {
    int a[16];
    for (int i = 0; i < 16; i++)
        a[i] = i * 3 + TX;
    for (int i = 0; i < n; i++)
        a[index[i] & 15] += a[index[i + n] & 15];
    int s = 0;
    for (int i = 0; i < 16; i++)
        s = s * 5 + a[i];
    out[BX * NX + TX] = s;
}

typedef float float4_t __attribute__((ext_vector_type(4)));

GLOBAL void copy4(float4_t *out, const float4_t *in) {
    int i = BX * NX + TX;
    out[i] = in[i] * 2.0f;
}

GLOBAL void dynamic_shared(int *out) {
    extern SHARED int space[];
    space[TX] = TX * 3;
    SYNC();
    out[TX] = space[NX - 1 - TX];
}

__attribute__((device)) int counter = 5;
__attribute__((constant)) int table[4] = {10, 20, 30, 40};
__attribute__((device)) int *where = &counter;

GLOBAL void globals(int *out) {
    out[TX] = table[TX & 3] + *where;
    if (TX == 0)
        counter = 77;
}

GLOBAL void spin(volatile int *flag, int *out) {
    // Block 0 waits for block 1.
    if (BX == 0) {
        while (*flag == 0)
            ;
        *out = 123;
    } else {
        *flag = 1;
    }
}

GLOBAL void lock_in_warp(int *lock, int *count) {
    bool done = false;
    while (!done) {
        int old;
        asm volatile("atom.cas.b32 %0, [%1], 0, 1;" : "=r"(old) : "l"(lock) : "memory");
        if (old == 0) {
            *(volatile int *)count = *(volatile int *)count + 1;
            asm volatile("membar.gl; atom.exch.b32 %0, [%1], 0;" : "=r"(old) : "l"(lock) : "memory");
            done = true;
        }
    }
}
