// Kernels of the shim's tests and of the fuzzer, compiled to PTX without any CUDA toolkit.
#define GLOBAL extern "C" __attribute__((global))
#define THREAD (__nvvm_read_ptx_sreg_ctaid_x() * __nvvm_read_ptx_sreg_ntid_x() + __nvvm_read_ptx_sreg_tid_x())
#define THREADS (__nvvm_read_ptx_sreg_nctaid_x() * __nvvm_read_ptx_sreg_ntid_x())
typedef unsigned u32;
typedef unsigned long long u64;

GLOBAL void affine(u32 *y, const u32 *x, u32 a, u32 b, u32 n)
{
    for (u32 i = THREAD; i < n; i += THREADS)
        y[i] = x[i] * a + b;
}

// Pointers inside a structure that is passed by value.
struct mix {
    u32 *out;
    const u32 *in[2];
    u32 n, k;
};
GLOBAL void mix(struct mix m)
{
    for (u32 i = THREAD; i < m.n; i += THREADS)
        m.out[i] = (m.in[0][i] ^ m.in[1][i]) + m.k;
}

// Pointers that only device memory holds.
GLOBAL void add_table(u32 *const *table, u32 count, u32 n, u32 a)
{
    for (u32 t = 0; t < count; t++)
        for (u32 i = THREAD; i < n; i += THREADS)
            table[t][i] += a;
}

// Long: every round reads and writes memory again.
GLOBAL void slow_affine(volatile u32 *y, u32 a, u32 b, u32 n, u32 rounds)
{
    for (u32 r = 0; r < rounds; r++)
        for (u32 i = THREAD; i < n; i += THREADS)
            y[i] = y[i] * a + b;
}

// One word in every `stride` words.
GLOBAL void stride_add(u32 *y, u64 stride, u32 n, u32 a)
{
    for (u32 i = THREAD; i < n; i += THREADS)
        y[i * stride] += a;
}

// Two of these, each with the other's counters, go on in step: `rounds` rounds after `before` earlier ones. One block.
GLOBAL void shake_hands(volatile u32 *mine, volatile u32 *theirs, u32 before, u32 rounds, u32 *data, u32 n)
{
    for (u32 r = before + 1; r <= before + rounds; r++) {
        for (u32 i = THREAD; i < n; i += THREADS)
            data[i * 512] += r;
        __nvvm_membar_sys();
        __nvvm_bar_sync(0);
        if (THREAD == 0) {
            __nvvm_atom_sys_add_gen_i((int *)mine, 1);
            while (*theirs < r) {
            }
            __nvvm_membar_sys();
        }
        __nvvm_bar_sync(0);
    }
}

// Goes round a loop of a graph: one less to do, and the condition is whether anything is left.
extern "C" __attribute__((device)) void cudaGraphSetConditional(u64 handle, u32 value);
GLOBAL void countdown(u32 *left, u64 handle)
{
    *left -= 1;
    cudaGraphSetConditional(handle, *left > 0);
}
