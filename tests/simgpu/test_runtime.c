/* What the driver gives to kernels: the heap of malloc, the queue of printf, assertions. */
#include "scene.h"

static const char text[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".extern .func (.param .b64 r) malloc(.param .b64 n);\n.extern .func free(.param .b64 a);\n"
    ".extern .func (.param .b32 r) vprintf(.param .b64 f, .param .b64 a);\n"
    ".extern .func __assertfail(.param .b64 m, .param .b64 f, .param .b32 l, .param .b64 n, .param .b64 c);\n"
    ".global .b8 format[] = \"thread %d\\n\";\n.global .b8 why[] = \"never\";\n"
    ".visible .entry take(.param .u64 out, .param .u64 bytes)\n{\n.reg .u64 %rd<6>; .reg .u32 %r<2>;\n"
    "ld.param.u64 %rd1, [out]; ld.param.u64 %rd2, [bytes]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd3, %r1, 8;\n"
    "add.u64 %rd1, %rd1, %rd3; { .param .b64 n; .param .b64 r; st.param.b64 [n], %rd2; call.uni (r), malloc, (n);\n"
    "ld.param.b64 %rd4, [r]; } st.global.u64 [%rd1], %rd4; ret;\n}\n"
    ".visible .entry give(.param .u64 out)\n{\n.reg .u64 %rd<6>; .reg .u32 %r<2>;\n"
    "ld.param.u64 %rd1, [out]; mov.u32 %r1, %tid.x; mul.wide.u32 %rd3, %r1, 8; add.u64 %rd1, %rd1, %rd3;\n"
    "ld.global.u64 %rd4, [%rd1]; st.u32 [%rd4], %r1; { .param .b64 a; st.param.b64 [a], %rd4; call.uni free, (a); } "
    "ret;\n}\n"
    ".visible .entry say()\n{\n.reg .u64 %rd<6>; .reg .u32 %r<3>; .local .align 8 .b8 l[8];\n"
    "mov.u32 %r1, %tid.x; st.local.u32 [l], %r1; mov.u64 %rd1, l; cvta.local.u64 %rd1, %rd1; mov.u64 %rd2, format;\n"
    "{ .param .b64 f; .param .b64 a; .param .b32 r; st.param.b64 [f], %rd2; st.param.b64 [a], %rd1;\n"
    "call.uni (r), vprintf, (f, a); ld.param.b32 %r2, [r]; } ret;\n}\n"
    ".visible .entry fail()\n{\n.reg .u64 %rd<6>;\nmov.u64 %rd1, why; { .param .b64 m; .param .b64 f; .param .b32 l;"
    ".param .b64 n; .param .b64 c; st.param.b64 [m], %rd1; st.param.b64 [f], %rd1; st.param.b32 [l], 12;\n"
    "st.param.b64 [n], %rd1; st.param.b64 [c], 1; call.uni __assertfail, (m, f, l, n, c); } ret;\n}\n";

static CUmodule module;

static void start(void)
{
    machine_with_context("h200,vram=64M");
    OK(cuModuleLoadData(&module, text));
}

static CUresult launch(const char *name, unsigned threads, void **params)
{
    CUfunction f;
    OK(cuModuleGetFunction(&f, module, name));
    return cuLaunchKernel(f, 1, 1, 1, threads, 1, 1, 0, NULL, params, NULL);
}

static CUresult take(CUdeviceptr out, size_t bytes, unsigned threads)
{
    void *params[] = {&out, &bytes};
    return launch("take", threads, params);
}

Test(runtime, malloc_takes_from_a_heap_that_the_limit_sizes)
{
    machine_with_context("h200,vram=64M");
    size_t before, after, limit;
    CUdeviceptr out;
    uint64_t got[64];
    OK(cuMemAlloc_v2(&out, sizeof got));
    OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 16 * MIB));
    OK(cuMemGetInfo_v2(&before, &limit));
    OK(cuModuleLoadData(&module, text));
    OK(cuMemGetInfo_v2(&after, &limit));
    cr_assert_geq(before - after, 16 * MIB);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 8 * MIB));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuCtxSetLimit(CU_LIMIT_PRINTF_FIFO_SIZE, 8 * MIB));
    for (int round = 0; round < 2; round++) { /* the second time works only because all was freed */
        OK(take(out, MIB, 64));
        OK(cuMemcpyDtoH_v2(got, out, sizeof got));
        unsigned good = 0;
        for (int i = 0; i < 64; i++)
            good += got[i] != 0;
        cr_assert_eq(good, 16);
        for (int i = 0, n = 0; i < 64; i++)
            if (got[i])
                got[n++] = got[i];
        OK(cuMemcpyHtoD_v2(out, got, 16 * 8));
        void *params[] = {&out};
        OK(launch("give", 16, params)); /* another kernel writes there, then frees */
        OK(cuCtxSynchronize());
    }
    CUmodule second;
    OK(cuModuleLoadData(&second, text)); /* shares the heap */
    OK(cuMemGetInfo_v2(&before, &limit));
    cr_assert_leq(after - before, MIB * 4);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2((CUdeviceptr)got[0]));
}

Test(runtime, a_heap_that_does_not_fit_fails_the_load)
{
    machine_with_context("h200,vram=64M");
    OK(cuCtxSetLimit(CU_LIMIT_MALLOC_HEAP_SIZE, 1024 * MIB));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuModuleLoadData(&module, text));
}

Test(runtime, a_wrong_free_kills_the_context)
{
    start();
    CUdeviceptr out;
    uint64_t wrong;
    OK(cuMemAlloc_v2(&out, 8));
    wrong = out;
    OK(cuMemcpyHtoD_v2(out, &wrong, 8));
    void *params[] = {&out};
    OK(launch("give", 1, params));
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
}

/* Output comes at synchronisation points, in order with the program's own. */
static int speaking(void)
{
    start();
    OK(launch("say", 3, NULL));
    printf("first\n");
    fflush(stdout);
    OK(cuCtxSynchronize());
    printf("second\n");
    CUstream stream;
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    CUfunction f;
    OK(cuModuleGetFunction(&f, module, "say"));
    OK(cuLaunchKernel(f, 1, 1, 1, 2, 1, 1, 0, stream, NULL, NULL));
    OK(cuStreamSynchronize(stream));
    printf("third\n");
    fflush(stdout);
    OK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL));
    return 0; /* nobody waits for this one */
}

static int failing(void)
{
    start();
    OK(launch("fail", 1, NULL));
    GIVES(CUDA_ERROR_ASSERT, cuCtxSynchronize());
    CUfunction f;
    GIVES(CUDA_ERROR_ASSERT, cuModuleGetFunction(&f, module, "say"));
    return 0;
}

SCENES({"speaking", speaking}, {"failing", failing})

Test(runtime, printf_is_written_where_the_host_waits)
{
    struct hr_test_result r = play("SIM_SCENE=speaking", NULL);
    cr_assert_eq(r.status, 0);
    cr_assert_str_eq(r.out, "first\nthread 0\nthread 1\nthread 2\nsecond\nthread 0\nthread 1\nthird\n");
    hr_test_result_finish(&r);
}

Test(runtime, a_failed_assertion_is_told_and_sticks)
{
    struct hr_test_result r = play("SIM_SCENE=failing", NULL);
    cr_assert_eq(r.status, 0, "%s", r.err);
    cr_assert(strstr(r.err, "never:12: never: block: [0,0,0], thread: [0,0,0] Assertion `never` failed."), "%s", r.err);
    hr_test_result_finish(&r);
}
