#include "kernels.h"
#include "sim_test.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>

static void *asked(const char *name, int version, unsigned flags)
{
    void *f = NULL;
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    OK(cuGetProcAddress_v2(name, &f, version, flags, &status));
    cr_assert_eq(status, CU_GET_PROC_ADDRESS_SUCCESS, "%s at %d", name, version);
    return f;
}

static void *exported(const char *name)
{
    void *f = dlsym(RTLD_DEFAULT, name);
    cr_assert_not_null(f, "%s", name);
    return f;
}

Test(symbols, versions_choose_the_abi)
{
    cr_assert_eq(asked("cuMemAlloc", 2000, 0), exported("cuMemAlloc"));
    cr_assert_eq(asked("cuMemAlloc", 3019, 0), exported("cuMemAlloc"));
    cr_assert_eq(asked("cuMemAlloc", 3020, 0), exported("cuMemAlloc_v2"));
    cr_assert_eq(asked("cuMemAlloc", 13000, 0), exported("cuMemAlloc_v2"));
    cr_assert_eq(asked("cuCtxCreate", 11030, 0), exported("cuCtxCreate_v2"));
    cr_assert_eq(asked("cuCtxCreate", 11040, 0), exported("cuCtxCreate_v3"));
    cr_assert_eq(asked("cuCtxCreate", 13000, 0), exported("cuCtxCreate_v4"));
    cr_assert_eq(asked("cuCtxSynchronize", 12000, 0), exported("cuCtxSynchronize"));
    cr_assert_eq(asked("cuCtxSynchronize", 13000, 0), exported("cuCtxSynchronize_v2"));
    cr_assert_eq(asked("cuStreamGetCaptureInfo", 11030, 0), exported("cuStreamGetCaptureInfo_v2"));
    cr_assert_eq(asked("cuGetProcAddress", 11030, 0), exported("cuGetProcAddress"));
    cr_assert_eq(asked("cuGetProcAddress", 12000, 0), exported("cuGetProcAddress_v2"));
}

Test(symbols, flags_choose_the_stream_rule)
{
    unsigned per_thread = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    cr_assert_eq(asked("cuLaunchKernel", 7000, 0), exported("cuLaunchKernel"));
    cr_assert_eq(asked("cuLaunchKernel", 7000, CU_GET_PROC_ADDRESS_LEGACY_STREAM), exported("cuLaunchKernel"));
    cr_assert_eq(asked("cuLaunchKernel", 7000, per_thread), exported("cuLaunchKernel_ptsz"));
    cr_assert_eq(asked("cuMemcpyHtoD", 13000, per_thread), exported("cuMemcpyHtoD_v2_ptds"));
    cr_assert_eq(asked("cuMemFree", 13000, per_thread), exported("cuMemFree_v2")); /* has no such form */
    void *f;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGetProcAddress_v2("cuInit", &f, 13000, 3, NULL));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGetProcAddress_v2("cuInit", &f, 13000, 8, NULL));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGetProcAddress_v2("cuInit", NULL, 13000, 0, NULL));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuGetProcAddress_v2(NULL, &f, 13000, 0, NULL));
}

Test(symbols, what_is_not_there_is_told_apart_from_what_is_too_new)
{
    void *f = (void *)8;
    CUdriverProcAddressQueryResult status;
    OK(cuGetProcAddress_v2("cuNoSuchThing", &f, 13000, 0, &status));
    cr_assert_eq(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    cr_assert_null(f);
    OK(cuGetProcAddress_v2("cuMemAlloc_v", &f, 13000, 0, &status)); /* exact names only */
    cr_assert_eq(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    OK(cuGetProcAddress_v2("cuMemCreate", &f, 10010, 0, &status));
    cr_assert_eq(status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    cr_assert_null(f);
    GIVES(CUDA_ERROR_NOT_FOUND, cuGetProcAddress_v2("cuMemCreate", &f, 10010, 0, NULL));
    GIVES(CUDA_ERROR_NOT_FOUND, cuGetProcAddress("cuNoSuchThing", &f, 13000, 0));
}

Test(symbols, every_row_of_the_table_names_an_export)
{
    static const struct {
        const char *name, *symbol;
        int since;
    } rows[] = {
#define SG_VERSION(name, since, rule, symbol) {#name, #symbol, since},
#include "simgpu/versions.def"
#undef SG_VERSION
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        exported(rows[i].symbol);
        cr_assert_not_null(asked(rows[i].name, 13000, 0));
        asked(rows[i].name, 13000, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
    }
    cr_assert_eq(sizeof rows / sizeof rows[0], 638); /* 637 names, one of them under two */
}

Test(symbols, what_is_not_supported_says_so)
{
    machine_with_context("h200,vram=64M");
    size_t bytes;
    GIVES(CUDA_ERROR_NOT_SUPPORTED, cuGraphAddExternalSemaphoresWaitNode(NULL, NULL, NULL, 0, NULL));
    GIVES(CUDA_ERROR_NOT_SUPPORTED, cuMulticastGetGranularity(&bytes, NULL, CU_MULTICAST_GRANULARITY_MINIMUM));
    const void *table;
    CUuuid id = {{0}};
    GIVES(CUDA_ERROR_NOT_FOUND, cuGetExportTable(&table, &id));
}

/* ---- as a runtime begins ---- */

/* What a runtime keeps: for each name and version the answers with and without the per-thread rule. */
static size_t look_up_all(__typeof__(&cuGetProcAddress_v2) ask)
{
    static const struct {
        const char *name;
        int since;
    } rows[] = {
#define SG_VERSION(name, since, rule, symbol) {#name, since},
#include "simgpu/versions.def"
#undef SG_VERSION
    };
    size_t found = 0;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        for (unsigned flags = 0; flags <= CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
             flags += CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) {
            void *f = NULL;
            CUdriverProcAddressQueryResult status;
            OK(ask(rows[i].name, &f, rows[i].since, flags, &status));
            cr_assert((f != NULL) == (status == CU_GET_PROC_ADDRESS_SUCCESS), "%s", rows[i].name);
            found += f != NULL;
        }
    }
    return found;
}

#define TAKE(type, name, version)                                                                                      \
    __typeof__(&type) their_##name = NULL;                                                                             \
    OK(ask(#name, (void **)&their_##name, version, 0, &status));                                                       \
    cr_assert_not_null((void *)their_##name)

Test(symbols, a_runtime_starts_up_by_look_ups_alone)
{
    setenv("SIMGPU", "h200,vram=64M", 1);
    CUdriverProcAddressQueryResult status;
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    cr_assert_not_null(driver);
    __typeof__(&cuGetProcAddress_v2) ask;
    *(void **)&ask = dlsym(driver, "cuGetProcAddress_v2"); /* the only name that is taken from the library */
    cr_assert_not_null((void *)ask);
    void *old = NULL, *own = NULL;
    OK(ask("cuGetProcAddress", &old, 11030, 0, NULL));
    OK(ask("cuGetProcAddress", &own, 12000, 0, NULL));
    cr_assert(old && own && old != own);
    *(void **)&ask = own; /* used from now on */
    cr_assert_gt(look_up_all(ask), 1000);
    TAKE(cuInit, cuInit, 2000);
    TAKE(cuDriverGetVersion, cuDriverGetVersion, 2020);
    TAKE(cuDeviceGetCount, cuDeviceGetCount, 2000);
    TAKE(cuGetExportTable, cuGetExportTable, 3000);
    TAKE(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000);
    TAKE(cuCtxSetCurrent, cuCtxSetCurrent, 4000);
    TAKE(cuLibraryLoadData, cuLibraryLoadData, 12000);
    TAKE(cuLibraryGetKernel, cuLibraryGetKernel, 12000);
    TAKE(cuMemAlloc_v2, cuMemAlloc, 12000);
    TAKE(cuMemcpyDtoH_v2, cuMemcpyDtoH, 12000);
    TAKE(cuLaunchKernel, cuLaunchKernel, 12000);
    int version, count;
    CUcontext context;
    CUlibrary library;
    CUkernel kernel;
    CUdeviceptr p;
    const void *table;
    CUuuid id = {{0}};
    OK(their_cuDriverGetVersion(&version));
    OK(their_cuInit(0));
    OK(their_cuDeviceGetCount(&count));
    cr_assert(version == 13000 && count == 1);
    GIVES(CUDA_ERROR_NOT_FOUND, their_cuGetExportTable(&table, &id)); /* none of the vendor's private tables */
    OK(their_cuDevicePrimaryCtxRetain(&context, 0));
    OK(their_cuCtxSetCurrent(context));
    OK(their_cuLibraryLoadData(&library, kernels_ptx, NULL, NULL, 0, NULL, NULL, 0));
    OK(their_cuLibraryGetKernel(&kernel, library, "fill"));
    OK(their_cuMemAlloc(&p, 64));
    unsigned value = 31, n = 16, got = 0;
    void *params[] = {&p, &value, &n};
    OK(their_cuLaunchKernel((CUfunction)kernel, 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL));
    OK(their_cuMemcpyDtoH(&got, p + 60, 4));
    cr_assert_eq(got, 31);
}

/* ---- every export ---- */

static const char *const exports[] = {
#define SG_VERSION(name, since, rule, symbol) #symbol,
#include "simgpu/versions.def"
#undef SG_VERSION
};

typedef CUresult any_fn(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                        uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                        uint64_t, uint64_t);

/* More zeros than any function takes: structures that are handed over by value lie among the last ones. */
__attribute__((no_sanitize("undefined"))) static CUresult call_empty(const char *name)
{
    any_fn *f;
    *(void **)&f = exported(name);
    return f(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
}

/* A capture of the per-thread stream, which is begun without any argument, would change what other calls answer. */
static void end_capture(void)
{
    CUgraph g = NULL;
    if (!cuStreamEndCapture(CU_STREAM_PER_THREAD, &g) && g)
        OK(cuGraphDestroy(g));
}

Test(symbols, every_export_answers_empty_arguments_with_a_code_that_has_a_name)
{
    CUcontext context = machine_with_context("h200,vram=64M,host=64M");
    for (size_t i = 0; i < sizeof exports / sizeof exports[0]; i++) {
        const char *text;
        OK(cuCtxSetCurrent(context));
        CUresult r = call_empty(exports[i]);
        end_capture();
        cr_assert_eq(cuGetErrorName(r, &text), CUDA_SUCCESS, "%s gave %d", exports[i], (int)r);
    }
    OK(cuCtxSetCurrent(context)); /* and nothing is broken by it */
    CUdeviceptr p;
    unsigned value = 0;
    OK(cuMemAlloc_v2(&p, 4));
    OK(cuMemsetD32_v2(p, 7, 1));
    OK(cuMemcpyDtoH_v2(&value, p, 4));
    cr_assert_eq(value, 7);
}

/* The forms for per-thread default streams are the same functions. */
Test(symbols, per_thread_forms_answer_as_the_plain_ones)
{
    CUcontext context = machine_with_context("h200,vram=64M,host=64M");
    for (size_t i = 0; i < sizeof exports / sizeof exports[0]; i++) {
        char plain[128];
        const char *end = strstr(exports[i], "_pts"), *other = strstr(exports[i], "_ptds");
        end = end ? end : other;
        if (!end)
            continue;
        snprintf(plain, sizeof plain, "%.*s", (int)(end - exports[i]), exports[i]);
        OK(cuCtxSetCurrent(context));
        CUresult r = call_empty(exports[i]);
        end_capture();
        OK(cuCtxSetCurrent(context));
        CUresult expected = call_empty(plain);
        bool refused = strstr(plain, "Batch") || strstr(plain, "BeginCapture"); /* on the legacy stream only */
        cr_assert(refused || r == expected, "%s gave %d, %s %d", exports[i], (int)r, plain, (int)expected);
    }
}
