/*
 * simgpu as an instrument: each rule is broken by a small program (a scene, run in a process of its own), and the finding is
 * read from its messages and its report. Programs that keep the rules give no finding.
 */
#include "kernels.h"
#include "scene.h"
#include "sim_test.h"

#include <stdio.h>
#include <unistd.h>

/* clang-format off */
static const char strict_ptx[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry put(.param .u64 put_p, .param .u32 put_v)\n{\n"
    "    .reg .b32 %r<2>;\n    .reg .b64 %rd<2>;\n"
    "    ld.param.u64 %rd1, [put_p];\n    ld.param.u32 %r1, [put_v];\n"
    "    st.global.u32 [%rd1], %r1;\n    ret;\n}\n"
    ".visible .entry put8(.param .u64 put8_p, .param .u32 put8_v)\n{\n"
    "    .reg .b32 %r<2>;\n    .reg .b64 %rd<2>;\n"
    "    ld.param.u64 %rd1, [put8_p];\n    ld.param.u32 %r1, [put8_v];\n"
    "    st.global.u8 [%rd1], %r1;\n    ret;\n}\n"
    ".visible .entry copy_word(.param .u64 copy_to, .param .u64 copy_from)\n{\n"
    "    .reg .b32 %r<2>;\n    .reg .b64 %rd<3>;\n"
    "    ld.param.u64 %rd1, [copy_to];\n    ld.param.u64 %rd2, [copy_from];\n"
    "    ld.global.u32 %r1, [%rd2];\n    st.global.u32 [%rd1], %r1;\n    ret;\n}\n"
    ".visible .entry count(.param .u64 count_p)\n{\n"
    "    .reg .b32 %r<2>;\n    .reg .b64 %rd<2>;\n"
    "    ld.param.u64 %rd1, [count_p];\n"
    "    atom.global.add.u32 %r1, [%rd1], 1;\n    ret;\n}\n"
    "// writes the data, then the flag\n"
    ".visible .entry produce(.param .u64 produce_data, .param .u64 produce_flag)\n{\n"
    "    .reg .b32 %r<2>;\n    .reg .b64 %rd<3>;\n"
    "    ld.param.u64 %rd1, [produce_data];\n    ld.param.u64 %rd2, [produce_flag];\n"
    "    mov.u32 %r1, 1;\n    st.global.u32 [%rd1], %r1;\n    membar.gl;\n"
    "    st.volatile.global.u32 [%rd2], %r1;\n    ret;\n}\n"
    "// waits for the flag, then reads the data\n"
    ".visible .entry consume(.param .u64 consume_data, .param .u64 consume_flag)\n{\n"
    "    .reg .pred %p<2>;\n    .reg .b32 %r<3>;\n    .reg .b64 %rd<3>;\n"
    "    ld.param.u64 %rd1, [consume_data];\n    ld.param.u64 %rd2, [consume_flag];\n"
    "LOOP:\n    ld.volatile.global.u32 %r1, [%rd2];\n    setp.eq.u32 %p1, %r1, 0;\n    @%p1 bra LOOP;\n"
    "    membar.gl;\n    ld.global.u32 %r2, [%rd1];\n    add.u32 %r2, %r2, 1;\n    st.global.u32 [%rd1+4], %r2;\n    ret;\n}\n"
    "// all blocks wait for the one with the highest number\n"
    ".visible .entry last_one(.param .u64 last_flag)\n{\n"
    "    .reg .pred %p<3>;\n    .reg .b32 %r<5>;\n    .reg .b64 %rd<2>;\n"
    "    ld.param.u64 %rd1, [last_flag];\n    mov.u32 %r1, %ctaid.x;\n    mov.u32 %r2, %nctaid.x;\n"
    "    sub.u32 %r2, %r2, 1;\n    setp.ne.u32 %p1, %r1, %r2;\n    mov.u32 %r3, 1;\n"
    "    @%p1 bra LOOP;\n    st.volatile.global.u32 [%rd1], %r3;\n    ret;\n"
    "LOOP:\n    ld.volatile.global.u32 %r4, [%rd1];\n    setp.eq.u32 %p2, %r4, 0;\n    @%p2 bra LOOP;\n    ret;\n}\n"
    "// v = v * 2 + bit, many times over: which of several comes last shows in v\n"
    ".visible .entry append(.param .u64 append_p, .param .u32 append_bit)\n{\n"
    "    .reg .b32 %r<4>;\n    .reg .b64 %rd<2>;\n"
    "    ld.param.u64 %rd1, [append_p];\n    ld.param.u32 %r1, [append_bit];\n"
    "    ld.global.u32 %r2, [%rd1];\n    mad.lo.u32 %r3, %r2, 2, %r1;\n    st.global.u32 [%rd1], %r3;\n    ret;\n}\n";
/* clang-format on */

/* In a scene nothing of the framework is to be had. */
#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        CUresult must_ = (call);                                                                                       \
        if (must_) {                                                                                                   \
            fprintf(stderr, "line %d: %s gave %d\n", __LINE__, #call, (int)must_);                                     \
            exit(90);                                                                                                  \
        }                                                                                                              \
    } while (0)

static CUcontext context;
static CUstream stream[2];
static CUmodule module, spinning;
static CUdeviceptr memory; /* 1 MiB */

static CUfunction function(const char *name)
{
    CUfunction f;
    if (cuModuleGetFunction(&f, module, name))
        MUST(cuModuleGetFunction(&f, spinning, name));
    return f;
}

static void set_up(void)
{
    MUST(cuInit(0));
    MUST(cuCtxCreate_v2(&context, 0, 0));
    MUST(cuModuleLoadData(&module, strict_ptx));
    MUST(cuModuleLoadData(&spinning, kernels_ptx));
    for (int i = 0; i < 2; i++)
        MUST(cuStreamCreate(&stream[i], CU_STREAM_NON_BLOCKING));
    MUST(cuMemAlloc_v2(&memory, MIB));
    MUST(cuMemsetD8_v2(memory, 0, MIB));
    MUST(cuCtxSynchronize());
}

static CUresult try(const char *name, unsigned blocks, CUstream s, void **params)
{
    return cuLaunchKernel(function(name), blocks, 1, 1, 1, 1, 1, 0, s, params, NULL);
}

static void put(CUdeviceptr p, CUstream s)
{
    uint32_t v = 5;
    MUST(try("put", 1, s, (void *[]){&p, &v}));
}

static void put8(CUdeviceptr p, CUstream s)
{
    uint32_t v = 5;
    MUST(try("put8", 1, s, (void *[]){&p, &v}));
}

static void count(CUdeviceptr p, CUstream s)
{
    MUST(try("count", 1, s, (void *[]){&p}));
}

static void copy_word(CUdeviceptr to, CUdeviceptr from, CUstream s)
{
    MUST(try("copy_word", 1, s, (void *[]){&to, &from}));
}

/* ---- races ---- */

static int scene_two_kernels(void)
{
    set_up();
    put(memory + 64, stream[0]);
    copy_word(memory, memory + 64, stream[1]);
    MUST(cuCtxSynchronize());
    return 0;
}

/* That one is over by luck when the other begins orders nothing. */
static int scene_by_luck(void)
{
    set_up();
    put(memory, stream[0]);
    void *pinned;
    MUST(cuMemAllocHost_v2(&pinned, 64));
    MUST(cuMemcpyDtoHAsync_v2(pinned, memory + 4096, 8, stream[1]));
    MUST(cuStreamSynchronize(stream[1]));
    put(memory, stream[1]);
    MUST(cuCtxSynchronize());
    return 0;
}

static int scene_copy_and_kernel(void)
{
    void *pinned;
    set_up();
    MUST(cuMemAllocHost_v2(&pinned, 4096));
    put(memory + 128, stream[0]);
    MUST(cuMemcpyDtoHAsync_v2(pinned, memory, 4096, stream[1]));
    MUST(cuCtxSynchronize());
    return 0;
}

static int scene_count_and_copy(void)
{
    void *pinned;
    set_up();
    MUST(cuMemAllocHost_v2(&pinned, 4096));
    count(memory, stream[0]);
    MUST(cuMemcpyDtoHAsync_v2(pinned, memory, 4096, stream[1]));
    MUST(cuCtxSynchronize());
    return 0;
}

static int scene_host_memory(void)
{
    void *pinned;
    set_up();
    MUST(cuMemAllocHost_v2(&pinned, 4096));
    MUST(cuMemcpyDtoHAsync_v2(pinned, memory, 4096, stream[0]));
    MUST(cuMemcpyHtoDAsync_v2(memory + 8192, pinned, 4096, stream[1]));
    MUST(cuCtxSynchronize());
    return 0;
}

/* Full warps, whose accesses take the interpreter's fast ways. */
static int scene_warps(void)
{
    uint32_t v = 1, n = 4096;
    set_up();
    for (int i = 0; i < 2; i++) {
        CUdeviceptr p = memory + (CUdeviceptr)i * (4 * n - 4); /* one word belongs to both */
        MUST(cuLaunchKernel(function("fill"), n / 256, 1, 1, 256, 1, 1, 0, stream[i], (void *[]){&p, &v, &n}, NULL));
    }
    MUST(cuCtxSynchronize());
    return 0;
}

/* A pager's copy, during which the page is written: it is made again before anybody uses it, or it is not. */
static int move_pages(bool again)
{
    CUdeviceptr pages;
    set_up();
    MUST(cuMemAlloc_v2(&pages, 2 * PAGE));
    MUST(cuMemsetD8_v2(pages, 0, 2 * PAGE));
    MUST(cuCtxSynchronize());
    MUST(cuMemcpyDtoDAsync_v2(pages + PAGE, pages, PAGE, stream[0]));
    put(pages + 64, stream[1]);
    MUST(cuCtxSynchronize());
    if (again)
        MUST(cuMemcpyDtoDAsync_v2(pages + PAGE, pages, PAGE, stream[0]));
    copy_word(memory, pages + PAGE + 128, stream[0]);
    MUST(cuCtxSynchronize());
    return 0;
}

static int scene_moved(void)
{
    return move_pages(false);
}

static int scene_moved_again(void)
{
    return move_pages(true);
}

/* Pageable memory is read during the call: here while a copy into it waits behind a gate. */
static int scene_staged(void)
{
    static _Alignas(4096) char buffer[8192];
    static struct gate gate = GATE_INIT;
    set_up();
    MUST(cuMemHostRegister_v2(buffer, 4096, 0));
    MUST(cuLaunchHostFunc(stream[0], gate_wait, &gate));
    MUST(cuMemcpyDtoHAsync_v2(buffer, memory, 4096, stream[0]));
    MUST(cuMemcpyHtoD_v2(memory + 8192, buffer, 4096));
    gate_open(&gate);
    MUST(cuCtxSynchronize());
    return 0;
}

static int scene_fatal(void)
{
    set_up();
    put(memory, stream[0]);
    put(memory, stream[1]);
    return (int)cuCtxSynchronize();
}

static void ordered_by_events(void)
{
    CUevent event;
    MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    for (int i = 0; i < 20; i++) { /* an event that is over or not when it is waited for */
        put(memory, stream[i % 2]);
        MUST(cuEventRecord(event, stream[i % 2]));
        MUST(cuStreamWaitEvent(stream[(i + 1) % 2], event, 0));
        if (i % 3 == 0)
            while (cuEventQuery(event) == CUDA_ERROR_NOT_READY) {
            }
    }
}

static void ordered_by_the_host(void)
{
    CUevent event;
    MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
    put(memory, stream[0]);
    MUST(cuStreamSynchronize(stream[0]));
    put(memory, stream[1]);
    while (cuStreamQuery(stream[1]) == CUDA_ERROR_NOT_READY) {
    }
    put(memory, stream[0]);
    MUST(cuEventRecord(event, stream[0]));
    MUST(cuEventSynchronize(event));
    put(memory, stream[1]);
    MUST(cuCtxSynchronize());
    put(memory, stream[0]);
    uint32_t word;
    MUST(cuStreamSynchronize(stream[0]));
    MUST(cuMemcpyDtoH_v2(&word, memory, 4));
}

static void ordered_by_the_legacy_stream(void)
{
    CUstream blocking[2];
    for (int i = 0; i < 2; i++)
        MUST(cuStreamCreate(&blocking[i], 0));
    for (int i = 0; i < 4; i++) {
        put(memory + 512, blocking[i % 2]);
        put(memory + 512, CU_STREAM_LEGACY);
    }
}

static void neighbours(void)
{
    for (unsigned i = 0; i < 64; i++) /* bytes of the same words */
        put8(memory + 1024 + i, stream[i % 2]);
    MUST(cuMemsetD8Async(memory + 2048 + 3, 1, 5, stream[0]));
    MUST(cuMemsetD8Async(memory + 2048 + 8, 2, 7, stream[1]));
    MUST(cuMemsetD2D8Async(memory + 4096, 64, 1, 32, 8, stream[0]));
    MUST(cuMemsetD2D8Async(memory + 4096 + 32, 64, 2, 32, 8, stream[1]));
}

static void atomics_and_flags(void)
{
    CUdeviceptr data = memory + 65536, flag = memory + 65536 + 256;
    for (int i = 0; i < 6; i++)
        count(memory + 3072, stream[i % 2]);
    MUST(try("consume", 1, stream[0], (void *[]){&data, &flag}));
    MUST(try("produce", 1, stream[1], (void *[]){&data, &flag}));
    copy_word(memory + 70000, data + 4, stream[0]);
}

/* A kernel tells the host through pinned memory that another may begin, and does not end meanwhile. */
static void told_through_host_memory(void)
{
    volatile uint32_t *words;
    CUdeviceptr at, data = memory + 80000;
    MUST(cuMemAllocHost_v2((void **)&words, 64));
    memset((void *)words, 0, 64);
    MUST(cuMemcpyHtoD_v2(memory + 90000, &data, 8));
    MUST(cuCtxSynchronize());
    at = (CUdeviceptr)(uintptr_t)words;
    CUdeviceptr pointer = memory + 90000;
    MUST(try("hidden", 1, stream[0], (void *[]){&pointer, &at}));
    while (__atomic_load_n(&words[1], __ATOMIC_ACQUIRE) == 0) {
    }
    put(data, stream[1]);
    MUST(cuStreamSynchronize(stream[1]));
    __atomic_store_n(&words[0], 1, __ATOMIC_RELEASE);
}

static void used_again_after_a_free(void)
{
    CUdeviceptr p;
    for (int i = 0; i < 8; i++) {
        MUST(cuMemAlloc_v2(&p, 3000));
        put(p, stream[i % 2]);
        MUST(cuStreamSynchronize(stream[i % 2]));
        MUST(cuMemFree_v2(p));
    }
}

static int scene_ordered(void)
{
    static void (*const parts[])(void) = {
        ordered_by_events, ordered_by_the_host,      ordered_by_the_legacy_stream, neighbours,
        atomics_and_flags, told_through_host_memory, used_again_after_a_free};
    set_up();
    for (unsigned i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        parts[i]();
        MUST(cuCtxSynchronize());
    }
    return 0;
}

/* ---- memory that is not there ---- */

static int launch_at(CUdeviceptr p)
{
    uint32_t v = 5;
    MUST(try("put", 1, stream[0], (void *[]){&p, &v}));
    return (int)cuCtxSynchronize();
}

static int scene_after_free(void)
{
    CUdeviceptr p;
    set_up();
    MUST(cuMemAlloc_v2(&p, 4 * MIB));
    MUST(cuMemFree_v2(p));
    return launch_at(p + 64);
}

static int scene_after_unmap(void)
{
    CUmemGenericAllocationHandle h;
    CUmemAllocationProp prop = on_device(0);
    CUdeviceptr p;
    set_up();
    MUST(cuMemAddressReserve(&p, PAGE, 0, 0, 0));
    MUST(cuMemCreate(&h, PAGE, &prop, 0));
    MUST(cuMemMap(p, PAGE, 0, h, 0));
    MUST(cuMemUnmap(p, PAGE));
    return launch_at(p + 64);
}

static int scene_before_map(void)
{
    CUdeviceptr p;
    set_up();
    MUST(cuMemAddressReserve(&p, PAGE, 0, 0, 0));
    return launch_at(p + 64);
}

static int scene_no_grant(void)
{
    CUmemGenericAllocationHandle h;
    CUmemAllocationProp prop = on_device(0);
    CUdeviceptr p;
    set_up();
    MUST(cuMemAddressReserve(&p, PAGE, 0, 0, 0));
    MUST(cuMemCreate(&h, PAGE, &prop, 0));
    MUST(cuMemMap(p, PAGE, 0, h, 0));
    return launch_at(p + 64);
}

/* Calls refuse what they can see. */
static int scene_refused(void)
{
    CUdeviceptr p, q;
    uint32_t word = 0;
    set_up();
    MUST(cuMemAlloc_v2(&p, 4 * MIB));
    MUST(cuMemFree_v2(p));
    MUST(cuMemAddressReserve(&q, PAGE, 0, 0, 0));
    return cuMemcpyHtoD_v2(p, &word, 4) != CUDA_ERROR_INVALID_VALUE ||
           cuMemsetD8_v2(q, 1, 100) != CUDA_ERROR_INVALID_VALUE;
}

/* ---- red zones ---- */

static int scene_behind_small(void)
{
    CUdeviceptr p;
    set_up();
    MUST(cuMemAlloc_v2(&p, 100));
    return launch_at(p + 100);
}

static int scene_before_small(void)
{
    CUdeviceptr p, q;
    set_up();
    MUST(cuMemAlloc_v2(&p, 512));
    MUST(cuMemAlloc_v2(&q, 512));
    return launch_at((q > p ? q : p) - 4);
}

static int scene_behind_large(void)
{
    CUdeviceptr p;
    set_up();
    MUST(cuMemAlloc_v2(&p, 3 * MIB));
    return launch_at(p + 3 * MIB + 8);
}

static int scene_in_bounds(void)
{
    static const size_t sizes[] = {1, 4, 100, 512, 513, 4096, MIB, MIB + 4, 2 * MIB, 3 * MIB, 4 * MIB};
    enum { N = sizeof sizes / sizeof sizes[0] };
    CUdeviceptr p[N];
    uint32_t v = 7;
    set_up();
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < N; i++)
            MUST(cuMemAlloc_v2(&p[i], sizes[i]));
        for (int i = 0; i < N; i++) {
            uint32_t n = (uint32_t)(sizes[i] / 4);
            MUST(cuMemsetD8_v2(p[i], 1, sizes[i]));
            if (n)
                MUST(cuLaunchKernel(function("fill"), 1 + n / 256, 1, 1, 256, 1, 1, 0, stream[0],
                                    (void *[]){&p[i], &v, &n}, NULL));
            put8(p[i] + sizes[i] - 1, stream[0]);
        }
        MUST(cuCtxSynchronize());
        for (int i = 0; i < N; i++)
            MUST(cuMemFree_v2(p[(i * 5 + round) % N]));
    }
    return 0;
}

/* ---- leaks ---- */

static int scene_leaks(void)
{
    CUdeviceptr p;
    CUevent e;
    CUmemGenericAllocationHandle h;
    CUmemAllocationProp prop = on_device(0);
    void *pinned;
    set_up(); /* a context, two modules, two streams, an allocation */
    MUST(cuEventCreate(&e, 0));
    MUST(cuMemAllocHost_v2(&pinned, 5000));
    MUST(cuMemAddressReserve(&p, 2 * PAGE, 0, 0, 0));
    MUST(cuMemCreate(&h, PAGE, &prop, 0));
    MUST(cuMemMap(p, PAGE, 0, h, 0));
    return 0;
}

static int scene_tidy(void)
{
    set_up();
    MUST(cuCtxDestroy_v2(context));
    return 0;
}

/* ---- poison ---- */

static int scene_poison(void)
{
    CUdeviceptr a, b;
    uint64_t words[16];
    set_up();
    MUST(cuMemAlloc_v2(&a, 128));
    MUST(cuMemsetD8_v2(a, 1, 128));
    MUST(cuCtxSynchronize());
    MUST(cuMemFree_v2(a));
    do /* the same place again */
        MUST(cuMemAlloc_v2(&b, 128));
    while (b != a);
    MUST(cuMemcpyDtoH_v2(words, b, sizeof words));
    for (int i = 0; i < 16; i++)
        if (words[i] != UINT64_C(0xfff7deadfff7dead))
            return 1;
    return 0;
}

/* ---- deadlocks ---- */

static int scene_no_room(void)
{
    set_up();
    CUfunction f = function("last_one");
    MUST(cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 96 << 10));
    MUST(cuLaunchKernel(f, 81, 1, 1, 1, 1, 1, 96 << 10, stream[0], (void *[]){&memory}, NULL)); /* a V100 holds 80 */
    return (int)cuStreamSynchronize(stream[0]);
}

static int scene_behind_itself(void)
{
    CUdeviceptr none = 0;
    set_up();
    MUST(try("spin", 1, stream[0], (void *[]){&memory, &none, &none}));
    put(memory, stream[0]);
    return (int)cuStreamSynchronize(stream[0]);
}

static volatile uint32_t *host_flag;
static void *raise_flag_later(void *arg)
{
    struct timespec span = {0, 300000000}; /* well after a deadlock would have been seen */
    (void)arg;
    nanosleep(&span, NULL);
    __atomic_store_n(host_flag, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* It waits for the host, with work behind it and the main thread waiting: no deadlock. */
static int scene_waits_for_the_host(void)
{
    pthread_t thread;
    CUdeviceptr none = 0;
    set_up();
    MUST(cuMemAllocHost_v2((void **)&host_flag, 64));
    *host_flag = 0;
    CUdeviceptr flag = (CUdeviceptr)(uintptr_t)host_flag;
    MUST(try("spin", 1, stream[0], (void *[]){&flag, &none, &none}));
    put(memory, stream[0]);
    pthread_create(&thread, NULL, raise_flag_later, NULL);
    CUresult r = cuStreamSynchronize(stream[0]);
    pthread_join(thread, NULL);
    return (int)r;
}

/* All fit: the last one's flag frees the others. */
static int scene_room(void)
{
    set_up();
    CUfunction f = function("last_one");
    MUST(cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 96 << 10));
    MUST(cuLaunchKernel(f, 80, 1, 1, 1, 1, 1, 96 << 10, stream[0], (void *[]){&memory}, NULL));
    return (int)cuStreamSynchronize(stream[0]);
}

/* ---- replay ---- */

static void host_bit(void *arg)
{
    ++*(int *)arg;
}

/* Two streams append bits to one word, without any order. */
static int scene_interleave(void)
{
    uint32_t word = 0, bit[2] = {0, 1};
    int calls = 0;
    set_up();
    for (int i = 0; i < 14; i++)
        MUST(try("append", 1, stream[i % 2], (void *[]){&memory, &bit[i % 2]}));
    MUST(cuLaunchHostFunc(stream[0], host_bit, &calls));
    MUST(cuMemsetD32Async(memory + 64, 3, 100, stream[1]));
    while (cuStreamQuery(stream[0]) == CUDA_ERROR_NOT_READY) {
    }
    MUST(cuCtxSynchronize());
    MUST(cuMemcpyDtoH_v2(&word, memory, 4));
    printf("%x %d\n", word, calls);
    return 0;
}

/* The same with one stream that waits for a value, which the other one writes between its kernels. */
static int scene_values(void)
{
    uint32_t word = 0, bit[2] = {0, 1};
    set_up();
    CUdeviceptr turn = memory + 128;
    MUST(cuMemsetD32_v2(turn, 0, 1));
    MUST(cuStreamWaitValue32_v2(stream[1], turn, 1, CU_STREAM_WAIT_VALUE_GEQ));
    for (uint32_t i = 0; i < 28; i++) {
        MUST(try("append", 1, stream[i % 2], (void *[]){&memory, &bit[i % 2]}));
        if (i == 10)
            MUST(cuStreamWriteValue32_v2(stream[0], turn, 1, 0));
        usleep(500); /* who looks meanwhile must not matter */
    }
    MUST(cuCtxSynchronize());
    MUST(cuMemcpyDtoH_v2(&word, memory, 4));
    printf("%x\n", word);
    return 0;
}

SCENES({"two_kernels", scene_two_kernels}, {"by_luck", scene_by_luck}, {"copy_and_kernel", scene_copy_and_kernel},
       {"count_and_copy", scene_count_and_copy}, {"host_memory", scene_host_memory}, {"staged", scene_staged},
       {"warps", scene_warps}, {"moved", scene_moved}, {"moved_again", scene_moved_again}, {"fatal", scene_fatal},
       {"ordered", scene_ordered}, {"after_free", scene_after_free}, {"after_unmap", scene_after_unmap},
       {"before_map", scene_before_map}, {"no_grant", scene_no_grant}, {"refused", scene_refused},
       {"behind_small", scene_behind_small}, {"before_small", scene_before_small}, {"behind_large", scene_behind_large},
       {"in_bounds", scene_in_bounds}, {"leaks", scene_leaks}, {"tidy", scene_tidy}, {"poison", scene_poison},
       {"no_room", scene_no_room}, {"behind_itself", scene_behind_itself},
       {"waits_for_the_host", scene_waits_for_the_host}, {"room", scene_room}, {"interleave", scene_interleave},
       {"values", scene_values})

/* ---- tests ---- */

static char report[16384];

/* Plays a scene with SIMGPU_CHECK; leaves its report in `report`. */
static struct hr_test_result strict(const char *name, const char *check, const char *machine_setting)
{
    char scene_setting[64], check_setting[64], report_setting[64];
    snprintf(scene_setting, sizeof scene_setting, "SIM_SCENE=%s", name);
    snprintf(check_setting, sizeof check_setting, "SIMGPU_CHECK=%s", check);
    snprintf(report_setting, sizeof report_setting, "SIMGPU_REPORT=/tmp/simgpu-strict-%d.json", (int)getpid());
    const char *env[] = {machine_setting, check_setting, report_setting, "SIMGPU_LOG=warn", NULL};
    struct hr_test_result r = play(scene_setting, env);
    FILE *f = fopen(strchr(report_setting, '/'), "r");
    cr_assert_not_null(f, "no report: %s", r.err);
    report[fread(report, 1, sizeof report - 1, f)] = 0;
    fclose(f);
    unlink(strchr(report_setting, '/'));
    return r;
}

#define MACHINE "SIMGPU=v100,vram=64M,host=64M"

/* Ends with this status, with these words in its messages, and with this many findings of a kind. */
static void finds(const char *name, const char *check, int status, const char *kind, int count,
                  const char *const *words)
{
    struct hr_test_result r = strict(name, check, MACHINE);
    cr_assert(WIFEXITED(r.status) && WEXITSTATUS(r.status) == (status & 255), "%s: 0x%x: %s", name, (unsigned)r.status,
              r.err);
    cr_assert_eq(reported(report, kind), count, "%s: %s\n%s", name, r.err, report);
    for (; *words; words++)
        cr_assert_not_null(strstr(r.err, *words), "%s: no '%s' in: %s", name, *words, r.err);
    hr_test_result_finish(&r);
}
#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

static void finds_nothing(const char *name, const char *check)
{
    static const char *const kinds[] = {"race", "host_race", "red_zone", "leak", "deadlock"};
    struct hr_test_result r = strict(name, check, MACHINE);
    cr_assert(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 0, "%s: 0x%x: %s", name, (unsigned)r.status, r.err);
    cr_assert_str_empty(r.err, "%s: %s", name, r.err);
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        cr_assert_eq(reported(report, kinds[i]), 0, "%s: %s", name, kinds[i]);
    hr_test_result_finish(&r);
}

Test(strict, two_operations_that_nothing_orders_are_a_race)
{
    finds("two_kernels", "race", 0, "race", 1,
          WORDS("kernel put (stream ", "kernel copy_word (stream ", " writes ", " reads ",
                "64 bytes into the allocation 0x", "of 1048576 bytes on device 0"));
    finds("by_luck", "race", 0, "race", 1, WORDS("kernel put (stream "));
    finds("copy_and_kernel", "race", 0, "race", 1,
          WORDS("kernel put (stream ", "a copy of 4096 bytes to host memory", "128 bytes into the allocation 0x"));
    finds("count_and_copy", "race", 0, "race", 1, WORDS("kernel count (stream "));
    finds("warps", "race", 0, "race", 1, WORDS("16380 bytes into the allocation 0x"));
    finds("two_kernels", "off", 0, "race", 0, WORDS(""));
}

Test(strict, host_memory_that_a_copy_still_uses_is_a_race)
{
    finds("host_memory", "race", 0, "host_race", 1, WORDS("0 bytes into the pinned host range 0x"));
    finds("staged", "race", 0, "host_race", 1, WORDS("race on host memory: ", "a copy of 4096 bytes "));
}

Test(strict, a_copy_of_pages_that_were_written_meanwhile_counts_when_it_is_used)
{
    finds("moved", "race", 0, "race", 1,
          WORDS("a copy of 2097152 bytes", ", and kernel copy_word uses what was copied\n"));
    finds_nothing("moved_again", "race");
}

Test(strict, a_fatal_race_is_a_sticky_error)
{
    finds("fatal", "race,fatal", CUDA_ERROR_LAUNCH_FAILED, "race", 1, WORDS("the context fails because of this: race"));
}

Test(strict, what_is_ordered_is_no_race)
{
    finds_nothing("ordered", "race");
    finds_nothing("ordered", "race,redzone,deadlock");
}

Test(strict, an_access_to_nothing_names_the_broken_rule)
{
    finds("after_free", "off", CUDA_ERROR_ILLEGAL_ADDRESS, "use_after_free", 1, WORDS(": use after free\n"));
    finds("refused", "off", 0, "use_after_free", 1,
          WORDS("use after free: a copy or memset at 0x", "use before map: a copy or memset at 0x"));
    finds("after_unmap", "off", CUDA_ERROR_ILLEGAL_ADDRESS, "use_after_unmap", 1, WORDS(": use after unmap\n"));
    finds("before_map", "off", CUDA_ERROR_ILLEGAL_ADDRESS, "use_before_map", 1, WORDS(": use before map\n"));
    finds("no_grant", "off", CUDA_ERROR_ILLEGAL_ADDRESS, "missing_grant", 1, WORDS(": missing grant\n"));
}

Test(strict, red_zones_show_accesses_out_of_bounds)
{
    finds("behind_small", "redzone", CUDA_ERROR_ILLEGAL_ADDRESS, "red_zone", 1,
          WORDS("kernel put, block (0,0,0), thread (0,0,0)", "write of 4 bytes",
                "0 bytes past the end of the allocation 0x", "of 100 bytes: out of bounds\n"));
    finds("before_small", "redzone", CUDA_ERROR_ILLEGAL_ADDRESS, "red_zone", 1,
          WORDS("4 bytes before the allocation 0x", "of 512 bytes: out of bounds\n"));
    finds("behind_large", "redzone", CUDA_ERROR_ILLEGAL_ADDRESS, "red_zone", 1,
          WORDS("8 bytes past the end of the allocation 0x", "of 3145728 bytes: out of bounds\n"));
    finds("behind_small", "race", 0, "red_zone", 0, WORDS(""));
    finds_nothing("in_bounds", "redzone");
}

Test(strict, what_is_left_at_exit_is_a_leak)
{
    finds(
        "leaks", "leak", 0, "leak", 10,
        WORDS(
            "leak: at exit there are 1 allocations (1048576 bytes), 1 pinned host ranges (5000 bytes), 1 reservations "
            "(4194304 bytes) with 1 mappings, 1 chunks (2097152 bytes), 2 streams, 1 events, 2 modules, 0 libraries, 1 "
            "contexts\n",
            "of 1048576 bytes on device 0\n", "of 5000 bytes was not freed\n"));
    finds_nothing("tidy", "leak");
}

Test(strict, freed_memory_is_poisoned)
{
    finds_nothing("poison", "off");
    finds_nothing("poison", "redzone,race");
}

Test(strict, a_kernel_that_waits_for_what_cannot_run_is_a_deadlock)
{
    finds("no_room", "deadlock=fail", CUDA_ERROR_LAUNCH_TIMEOUT, "deadlock", 1,
          WORDS("deadlock: kernel last_one in stream ", "PTX line ", "0 bytes into the allocation 0x",
                "1 of its blocks find no room as long as these 80 run"));
    finds("behind_itself", "deadlock=fail", CUDA_ERROR_LAUNCH_TIMEOUT, "deadlock", 1,
          WORDS("kernel spin in stream ", "kernel put of stream "));
}

Test(strict, a_kernel_that_can_be_helped_is_no_deadlock)
{
    finds_nothing("waits_for_the_host", "deadlock=fail");
    finds_nothing("room", "deadlock=fail");
}

Test(strict, a_bad_setting_gives_one_line_and_fails_cuInit)
{
    static const char *const bad[] = {"SIMGPU_CHECK=races", "SIMGPU_CHECK=race,,leak", "SIMGPU_CHECK=race=fail",
                                      "SIMGPU_CHECK_FATAL=yes", "SIMGPU=v100,replay=x"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const char *env[] = {"SIMGPU_LOG", bad[i], NULL};
        struct hr_test_result r = play("SIM_SCENE=tidy", env);
        cr_assert(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 90, "%s", bad[i]);
        cr_assert_not_null(strstr(r.err, "bad value"), "%s: %s", bad[i], r.err);
        hr_test_result_finish(&r);
    }
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define REPLAYS 5
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define REPLAYS 5 /* each is a process that starts slowly */
#endif
#endif
#ifndef REPLAYS
#define REPLAYS 20
#endif

static void replays(const char *scene)
{
    char first[64] = "", first_trace[32] = "", setting[64];
    int others = 0;
    for (int i = 0; i < REPLAYS; i++) {
        struct hr_test_result r = strict(scene, "off", "SIMGPU=v100,vram=64M,host=64M,replay=7");
        const char *trace = strstr(report, "\"trace\": \"");
        cr_assert(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 0 && trace, "%s", r.err);
        cr_assert_not_null(strstr(report, "\"repeatable\": true"), "%s", report);
        if (!i) {
            snprintf(first, sizeof first, "%s", r.out);
            memcpy(first_trace, trace + 10, 16);
        }
        cr_assert_str_eq(r.out, first, "run %d", i);
        cr_assert_eq(memcmp(trace + 10, first_trace, 16), 0, "run %d", i);
        hr_test_result_finish(&r);
    }
    for (int seed = 8; seed < 14; seed++) {
        snprintf(setting, sizeof setting, "SIMGPU=v100,vram=64M,host=64M,replay=%d", seed);
        struct hr_test_result r = strict(scene, "off", setting);
        others += strcmp(r.out, first) != 0;
        hr_test_result_finish(&r);
    }
    cr_assert_gt(others, 0, "seven seeds, one interleaving: %s", first);
}

Test(strict, a_replay_gives_the_same_interleaving_each_time)
{
    replays("interleave");
}

Test(strict, a_replay_gives_the_same_interleaving_with_waits_for_values)
{
    replays("values");
}
