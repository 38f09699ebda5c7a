/* What hostile and unusual jobs found: each test is named after its symptom. */
#include "core_test.h"

#include <sys/stat.h>

#include "residency/gpu.h"
#include "support/sanitizer.h"

/* Kernels that CUDA C does not make easily: an address in a variable of the module, and one that is not 8-byte aligned. */
static const char odd_ptx[] = ".version 6.3\n.target sm_70\n.address_size 64\n"
                              ".visible .global .align 8 .u64 holder;\n"
                              ".visible .entry via_variable()\n{\n"
                              "  .reg .b64 %rd<3>;\n  .reg .b32 %r<2>;\n"
                              "  ld.global.u64 %rd1, [holder];\n  cvta.to.global.u64 %rd2, %rd1;\n"
                              "  mov.u32 %r1, 77;\n  st.global.u32 [%rd2], %r1;\n  ret;\n}\n"
                              ".visible .entry packed(.param .align 4 .b8 p[12])\n{\n"
                              "  .reg .b64 %rd<3>;\n  .reg .b32 %r<4>;\n"
                              "  ld.param.u32 %r1, [p+4];\n  ld.param.u32 %r2, [p+8];\n  mov.b64 %rd1, {%r1, %r2};\n"
                              "  cvta.to.global.u64 %rd2, %rd1;\n  mov.u32 %r3, 77;\n"
                              "  st.global.u32 [%rd2], %r3;\n  ret;\n}\n"
                              ".visible .entry store(.param .u64 a)\n{\n"
                              "  .reg .b64 %rd<3>;\n  .reg .b32 %r<2>;\n"
                              "  ld.param.u64 %rd1, [a];\n  cvta.to.global.u64 %rd2, %rd1;\n"
                              "  mov.u32 %r1, 77;\n  st.global.u32 [%rd2], %r1;\n  ret;\n}\n";

static CUmodule odd_module;
static CUfunction odd(const char *name)
{
    CUfunction f;
    if (!odd_module)
        OK(cuModuleLoadData(&odd_module, odd_ptx));
    OK(cuModuleGetFunction(&f, odd_module, name));
    return f;
}

static uint32_t word_at(CUdeviceptr address)
{
    uint32_t word = 0;
    OK(cuMemcpyDtoH_v2(&word, address, sizeof word));
    return word;
}

Test(attacks, a_copy_past_the_end_of_an_allocation_overwrites_the_next_one, .timeout = 60)
{
    static char zeros[8192];
    CUdeviceptr a[8];
    machine("h200,vram=64M", "");
    for (int i = 0; i < 8; i++) {
        OK(cuMemAlloc_v2(&a[i], 1000));
        OK(cuMemsetD8_v2(a[i], 1, 1000));
    }
    for (int i = 0; i < 8; i++) {
        GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD_v2(a[i], zeros, 1001));
        GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD_v2(a[i], zeros, sizeof zeros));
        GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD8_v2(a[i] + 999, 0, 2));
        GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH_v2(zeros, a[i], 1025));
    }
    for (int i = 0; i < 8; i++)
        CHECK(word_at(a[i]) == 0x01010101);
    OK(cuMemFree_v2(a[3]));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD_v2(a[3], zeros, 4));
}

Test(attacks, a_copy_of_size_max_crashes, .timeout = 60)
{
    static char bytes[64];
    CUdeviceptr a;
    machine("h200,vram=64M", "");
    OK(cuMemAlloc_v2(&a, 5 * MIB));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD_v2(a, bytes, SIZE_MAX));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD_v2(a + MIB, bytes, SIZE_MAX - MIB + 5));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD32_v2(a, 0, SIZE_MAX / 4 + 2));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD2D8_v2(a, SIZE_MAX, 1, 4, 3));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD2D8_v2(a, 16, 1, 64, 4));
}

Test(attacks, a_2d_copy_that_leaves_the_window_crashes, .timeout = 60)
{
    CUdeviceptr a, b;
    machine("h200,vram=64M", "");
    OK(cuMemAlloc_v2(&a, 8 * MIB));
    OK(cuMemAlloc_v2(&b, 8 * MIB));
    CUDA_MEMCPY2D whole = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                           .srcDevice = a,
                           .srcPitch = 4096,
                           .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                           .dstDevice = b,
                           .dstPitch = 8192,
                           .WidthInBytes = 4096,
                           .Height = 1000};
    OK(cuMemcpy2D_v2(&whole));
    CUDA_MEMCPY2D bad[] = {whole, whole, whole, whole, whole, whole};
    bad[0].dstY = (size_t)1 << 40;
    bad[1].srcY = SIZE_MAX / 4096;
    bad[2].dstXInBytes = SIZE_MAX; /* one byte before b */
    bad[3].WidthInBytes = 4097;    /* wider than the source's pitch */
    bad[4].Height = SIZE_MAX;
    bad[5].dstPitch = (size_t)1 << 63;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D_v2(&bad[i]));
    whole.srcPitch = 0; /* close together */
    OK(cuMemcpy2D_v2(&whole));
}

Test(attacks, a_launch_whose_buffer_claims_to_be_huge_crashes, .timeout = 60)
{
    CUdeviceptr a;
    machine("h200,vram=64M", "");
    OK(cuMemAlloc_v2(&a, 4 * MIB));
    size_t bytes = (size_t)1 << 40;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &a, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
    cuLaunchKernel(odd("store"), 1, 1, 1, 1, 1, 1, 0, NULL, NULL, extra); /* its answer is the driver's affair */
    bytes = 8;
    OK(cuLaunchKernel(odd("store"), 1, 1, 1, 1, 1, 1, 0, NULL, NULL, extra));
    OK(cuCtxSynchronize());
    CHECK(word_at(a) == 77);
}

Test(attacks, an_address_in_a_module_variable_faults, .timeout = 60)
{
    CUdeviceptr a, holder;
    machine("h200,vram=64M", "");
    OK(cuMemAlloc_v2(&a, 4 * MIB));
    CUfunction f = odd("via_variable");
    OK(cuModuleGetGlobal_v2(&holder, NULL, odd_module, "holder"));
    OK(cuMemcpyHtoD_v2(holder, &a, sizeof a));
    OK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    OK(cuCtxSynchronize());
    CHECK(word_at(a) == 77);
}

Test(attacks, an_address_in_a_packed_structure_faults, .timeout = 60)
{
    struct __attribute__((packed)) {
        uint32_t first;
        CUdeviceptr address;
    } p = {1, 0};
    CUdeviceptr a;
    machine("h200,vram=64M", "");
    OK(cuMemAlloc_v2(&a, 4 * MIB));
    p.address = a;
    OK(cuLaunchKernel(odd("packed"), 1, 1, 1, 1, 1, 1, 0, NULL, (void *[]){&p}, NULL));
    OK(cuCtxSynchronize());
    CHECK(word_at(a) == 77);
}

enum table_kind { LARGE_TABLE, TABLE_BY_2D, TABLE_FROM_DEVICE_BY_2D };

static void run_table(enum table_kind kind)
{
    static CUdeviceptr table[1 << 15];
    CUdeviceptr x[4], device_table, other;
    uint32_t count = 4, n = 16, a = 5;
    machine("h200,vram=64M", "");
    OK(cuMemAlloc_v2(&device_table, sizeof table));
    OK(cuMemAlloc_v2(&other, 4096));
    for (int i = 0; i < 4; i++)
        OK(cuMemAlloc_v2(&x[i], 3 * MIB));
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        table[i] = x[i % 4];
    CUDA_MEMCPY2D copy = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                          .srcHost = table,
                          .srcPitch = 16,
                          .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                          .dstDevice = device_table,
                          .dstPitch = 16,
                          .WidthInBytes = 16,
                          .Height = 2};
    if (kind == LARGE_TABLE) {
        OK(cuMemcpyHtoD_v2(device_table, table, sizeof table));
    } else if (kind == TABLE_FROM_DEVICE_BY_2D) {
        OK(cuMemcpyHtoD_v2(other, table, 32));
        copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
        copy.srcDevice = other;
    }
    if (kind != LARGE_TABLE)
        OK(cuMemcpy2D_v2(&copy));
    OK(launch(kernel("add_table"), 1, 32, NULL, (void *[]){&device_table, &count, &n, &a}));
    OK(cuCtxSynchronize());
}

Test(attacks, a_large_table_of_addresses_faults, .timeout = 60)
{
    run_table(LARGE_TABLE);
}

Test(attacks, a_table_of_addresses_in_a_2d_copy_faults, .timeout = 60)
{
    run_table(TABLE_BY_2D);
}

Test(attacks, a_table_of_addresses_copied_on_the_device_by_a_2d_copy_faults, .timeout = 60)
{
    run_table(TABLE_FROM_DEVICE_BY_2D);
}

Test(attacks, a_failed_question_for_parameters_makes_every_launch_of_the_kernel_fault, .timeout = 60)
{
    CUdeviceptr a;
    setenv("SIMGPU_FAIL", "cuFuncGetParamInfo:1", 1);
    machine("h200,vram=64M", "");
    for (int i = 0; i < 3; i++) {
        OK(cuMemAlloc_v2(&a, 4 * MIB));
        OK(cuLaunchKernel(odd("store"), 1, 1, 1, 1, 1, 1, 0, NULL, (void *[]){&a}, NULL));
        OK(cuCtxSynchronize());
        CHECK(word_at(a) == 77);
    }
}

static CUcontext job_context;
static void *use_much(void *arg)
{
    CUdeviceptr b[4];
    (void)arg;
    OK(cuCtxSetCurrent(job_context));
    for (int i = 0; i < 4; i++)
        OK(cuMemAlloc_v2(&b[i], 6 * MIB));
    for (int i = 0; i < 8; i++)
        OK(stride_add(b[i % 4], 4096, 256, 1, NULL));
    OK(cuCtxSynchronize());
    return NULL;
}

/* A sanitizer's frames are larger. */
#define SMALL_STACK (SANITIZED ? 131072 : 16384)

Test(attacks, a_launch_on_a_thread_with_a_16_kib_stack_crashes, .timeout = 60)
{
    pthread_attr_t attributes;
    pthread_t thread;
    job_context = machine("h200,vram=24M", "");
    kernel("stride_add"); /* compiled here: what loading takes of the stack is the driver's affair */
    pthread_attr_init(&attributes);
    cr_assert(pthread_attr_setstacksize(&attributes, SMALL_STACK) == 0);
    cr_assert(pthread_create(&thread, &attributes, use_much, NULL) == 0);
    pthread_join(thread, NULL);
}

/* Work on a stream, then its destroy through `end`; meanwhile the buffer is pushed out: no update may be lost. */
static void lose_nothing(void (*end)(CUstream stream))
{
    CUdeviceptr a, b;
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc_v2(&a, 4 * MIB));
    OK(cuMemsetD32_v2(a, 1, MIB));
    OK(cuCtxSynchronize()); /* the stream does not wait for it */
    kernel("slow_affine");
    end(stream);
    for (int i = 0; i < 6; i++) {
        hr_access_evict_range(hr_thread_self(), a, 4 * MIB);
        hr_access_restore_range(hr_thread_self(), a, 4 * MIB);
    }
    OK(cuMemAlloc_v2(&b, 4 * MIB));
    OK(cuMemsetD8_v2(b, 1, MIB));
    uint64_t give_up_ns = hr_clock_ns() + UINT64_C(20000000000);
    while (word_at(a) != 3001 && hr_clock_ns() < give_up_ns)
        sched_yield();
    CHECK(word_at(a) == 3001, "it is %u", word_at(a));
}

static void destroy_elsewhere(CUstream stream)
{
    CUcontext other;
    CUdeviceptr a;
    size_t bytes;
    OK(cuMemGetAddressRange_v2(&a, &bytes, hr_space.base));
    OK(slow_affine(a, 1, 1, 4096, 3000, stream));
    OK(cuCtxCreate_v2(&other, 0, 0));
    OK(cuStreamDestroy_v2(stream));
    OK(cuCtxSetCurrent(job_context));
}

Test(attacks, work_of_a_stream_destroyed_from_another_context_is_lost, .timeout = 120)
{
    job_context = machine("h200,vram=64M", "");
    lose_nothing(destroy_elsewhere);
}

static void fail_to_destroy(CUstream stream)
{
    CUdeviceptr a;
    size_t bytes;
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuStreamDestroy_v2(stream));
    OK(cuMemGetAddressRange_v2(&a, &bytes, hr_space.base));
    OK(slow_affine(a, 1, 1, 4096, 3000, stream));
}

Test(attacks, work_of_a_stream_that_could_not_be_destroyed_is_lost, .timeout = 120)
{
    setenv("SIMGPU_FAIL", "cuStreamDestroy:1", 1);
    job_context = machine("h200,vram=64M", "");
    lose_nothing(fail_to_destroy);
}

static _Atomic(bool) stop;
static void *touch_memory(void *arg)
{
    CUdeviceptr p;
    (void)arg;
    OK(cuCtxSetCurrent(job_context));
    while (!atomic_load(&stop)) {
        OK(cuMemAlloc_v2(&p, 4 * MIB));
        OK(cuMemsetD8_v2(p, 1, 4 * MIB));
        OK(cuStreamSynchronize(NULL));
        OK(cuMemFree_v2(p));
    }
    return NULL;
}

Test(attacks, capacity_shrinks_when_modules_load_while_others_allocate, .timeout = 60)
{
    pthread_t thread[2];
    job_context = machine("h200,vram=64M", "");
    kernel("affine");
    size_t before = hr_tier_vram_limit(0);
    for (int i = 0; i < 2; i++)
        cr_assert(pthread_create(&thread[i], NULL, touch_memory, NULL) == 0);
    for (int i = 0; i < 200; i++) {
        CUmodule m;
        OK(cuModuleLoadData(&m, odd_ptx));
        OK(cuModuleUnload(m));
    }
    atomic_store(&stop, true);
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
    CHECK(hr_tier_vram_limit(0) == before, "%zu chunks of %zu", hr_tier_vram_limit(0), before);
}

Test(attacks, an_allocation_in_a_reset_context_says_something_else_than_the_driver, .timeout = 60)
{
    CUcontext primary;
    CUdeviceptr a;
    setenv("SIMGPU", "h200,vram=64M", 1);
    setenv("HEADROOM_STATS", "off", 1);
    OK(cuInit(0));
    OK(cuDevicePrimaryCtxRetain(&primary, 0));
    OK(cuCtxSetCurrent(primary));
    OK(cuMemAlloc_v2(&a, MIB));
    OK(cuDevicePrimaryCtxReset_v2(0));
    GIVES(CUDA_ERROR_CONTEXT_IS_DESTROYED, cuMemAlloc_v2(&a, MIB));
}

Test(attacks, a_stats_log_that_is_a_fifo_without_a_reader_hangs, .timeout = 20)
{
    char folder[] = "/tmp/headroom-fifo-XXXXXX", path[64];
    cr_assert(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/log", folder);
    cr_assert(mkfifo(path, 0600) == 0);
    setenv("HEADROOM_STATS", path, 1);
    machine("h200,vram=64M", ""); /* the log's first line is written here */
    unlink(path);
    rmdir(folder);
}
