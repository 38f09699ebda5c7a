// Kernels of the checks on a GPU, compiled to PTX without any CUDA toolkit.
#define GLOBAL extern "C" __attribute__((global))
#define THREAD (__nvvm_read_ptx_sreg_ctaid_x() * __nvvm_read_ptx_sreg_ntid_x() + __nvvm_read_ptx_sreg_tid_x())
#define THREADS (__nvvm_read_ptx_sreg_nctaid_x() * __nvvm_read_ptx_sreg_ntid_x())
typedef unsigned u32;
typedef unsigned long long u64;

GLOBAL void fill(u32 *y, u32 first, u32 n)
{
    for (u32 i = THREAD; i < n; i += THREADS)
        y[i] = first + i;
}

GLOBAL void add(u32 *y, const u32 *x, u32 a, u32 n)
{
    for (u32 i = THREAD; i < n; i += THREADS)
        y[i] = x[i] + a;
}

__attribute__((device)) static u64 now(void)
{
    u64 ns;
    __asm__ volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}

// Until flag[0] is set, `ns` at most.
GLOBAL void spin(volatile u32 *flag, u64 ns)
{
    u64 start = now();
    flag[1] = 1;
    __nvvm_membar_sys();
    while (flag[0] == 0)
        if (now() - start > ns)
            return;
    flag[2] = 1;
}

GLOBAL void count(int *word, u32 rounds)
{
    for (u32 r = 0; r < rounds; r++)
        __nvvm_atom_add_gen_i(word, 1);
}

GLOBAL void read_all(const u32 *x, u32 n, u32 *out)
{
    u32 sum = 0;
    for (u32 i = THREAD; i < n; i += THREADS)
        sum += x[i];
    if (sum == 0x12345678u) // never, as far as the compiler knows it may be
        *out = sum;
}

struct pair {
    u32 a;
    u64 b;
};
GLOBAL void parameters(u32 first, struct pair second, const u32 *third, unsigned char fourth, u32 *out)
{
    *out = first + second.a + (u32)second.b + third[0] + fourth;
}

GLOBAL void texel(u64 texture, u32 *out, u32 n)
{
    for (u32 i = THREAD; i < n; i += THREADS) {
        u32 x, y, z, w;
        __asm__ volatile("tex.1d.v4.u32.s32 {%0,%1,%2,%3}, [%4, {%5}];" : "=r"(x), "=r"(y), "=r"(z), "=r"(w)
                         : "l"(texture), "r"(i));
        out[i] = x;
    }
}
