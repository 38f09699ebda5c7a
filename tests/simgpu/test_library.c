/* Libraries, kernels, images, and the functions that ask about them. */
#include "kernels.h"
#include "scene.h"

static CUlibrary library(void)
{
    CUlibrary lib;
    OK(cuLibraryLoadData(&lib, kernels_ptx, NULL, NULL, 0, NULL, NULL, 0));
    return lib;
}

static CUkernel kernel_of(CUlibrary lib, const char *name)
{
    CUkernel k;
    OK(cuLibraryGetKernel(&k, lib, name));
    return k;
}

static CUresult fill(CUkernel k, CUdeviceptr p, unsigned value, unsigned n, CUstream stream)
{
    void *params[] = {&p, &value, &n};
    return cuLaunchKernel((CUfunction)k, 1, 1, 1, 128, 1, 1, 0, stream, params, NULL);
}

static unsigned word_at(CUdeviceptr p)
{
    unsigned got;
    OK(cuMemcpyDtoH_v2(&got, p, 4));
    return got;
}

Test(library, needs_no_context_and_tells_its_kernels)
{
    machine("h200,vram=64M,gpus=2");
    CUlibrary lib = library(), back;
    unsigned count;
    CUkernel all[8], k = kernel_of(lib, "fill");
    const char *name;
    size_t offset, size;
    int value;
    OK(cuLibraryGetKernelCount(&count, lib));
    cr_assert_eq(count, 6);
    OK(cuLibraryEnumerateKernels(all, 8, lib));
    cr_assert_eq(all[0], k);
    OK(cuKernelGetName(&name, all[5]));
    cr_assert_str_eq(name, "big_shared");
    OK(cuKernelGetLibrary(&back, k));
    cr_assert_eq(back, lib);
    OK(cuKernelGetParamInfo(k, 1, &offset, &size));
    cr_assert(offset == 8 && size == 4);
    OK(cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, all[5], 1));
    cr_assert_eq(value, 40960);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuKernelGetParamInfo(k, 3, &offset, &size));
    GIVES(CUDA_ERROR_NOT_FOUND, cuLibraryGetKernel(&k, lib, "fil"));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuLibraryGetKernel(NULL, lib, "fill"));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuLibraryGetKernel(&k, (CUlibrary)(uintptr_t)0x1230, "fill"));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuKernelGetName(NULL, all[0]));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuKernelGetName(&name, NULL));
    GIVES(CUDA_ERROR_INVALID_DEVICE, cuKernelGetAttribute(&value, CU_FUNC_ATTRIBUTE_NUM_REGS, all[0], 2));
    CUfunction f;
    CUmodule m;
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuKernelGetFunction(&f, all[0])); /* these are a context's */
    GIVES(CUDA_ERROR_INVALID_CONTEXT, cuLibraryGetModule(&m, lib));
    GIVES(CUDA_ERROR_INVALID_CONTEXT, fill(all[0], 0, 0, 0, NULL));
    OK(cuLibraryUnload(lib));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuLibraryUnload(lib));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuKernelGetLibrary(&back, all[0]));
}

Test(library, comes_into_a_context_when_it_is_first_used_there)
{
    machine_with_context("h200,vram=64M,gpus=2");
    CUcontext other;
    CUlibrary lib = library();
    CUkernel k = kernel_of(lib, "fill");
    CUdeviceptr p;
    CUmodule m, again;
    CUfunction f;
    OK(cuMemAlloc_v2(&p, 4 * MIB));
    size_t before = free_vram();
    OK(fill(k, p, 17, 8, NULL));
    cr_assert_lt(free_vram(), before, "the module is charged to the context");
    cr_assert_eq(word_at(p + 28), 17);
    OK(cuLibraryGetModule(&m, lib));
    OK(cuKernelGetFunction(&f, k));
    OK(cuFuncGetModule(&again, f));
    cr_assert_eq(m, again);
    GIVES(CUDA_ERROR_NOT_PERMITTED, cuModuleUnload(m)); /* the library's */
    OK(cuCtxCreate_v2(&other, 0, 1));
    before = free_vram();
    OK(cuLibraryGetModule(&again, lib));
    cr_assert_neq(m, again);
    cr_assert_lt(free_vram(), before);
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL)); /* another context's */
    OK(cuLibraryUnload(lib));
    cr_assert_eq(free_vram(), before);
    GIVES(CUDA_ERROR_INVALID_HANDLE, fill(k, p, 1, 1, NULL));
}

Test(library, a_kernel_runs_in_its_streams_context)
{
    CUcontext a = machine_with_context("h200,vram=64M,gpus=2"), b;
    CUstream s;
    CUdeviceptr p, table;
    size_t bytes;
    CUlibrary lib = library();
    OK(cuMemAlloc_v2(&p, 4096));
    OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    OK(cuCtxCreate_v2(&b, 0, 1));
    OK(fill(kernel_of(lib, "fill"), p, 23, 4, s)); /* device 1 is current and could not reach p */
    OK(cuStreamSynchronize(s));
    OK(cuLibraryGetGlobal(&table, &bytes, lib, "table"));
    cr_assert(bytes == 16 && word_at(table + 8) == 30);
    OK(cuCtxSetCurrent(a));
    cr_assert_eq(word_at(p + 12), 23);
    GIVES(CUDA_ERROR_NOT_FOUND, cuLibraryGetGlobal(&table, NULL, lib, "tabl"));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuLibraryGetGlobal(NULL, NULL, lib, "table"));
    GIVES(CUDA_ERROR_NOT_FOUND, cuLibraryGetManaged(&table, NULL, lib, "table"));
    void *function;
    GIVES(CUDA_ERROR_NOT_FOUND, cuLibraryGetUnifiedFunction(&function, lib, "fill"));
}

Test(library, attributes_of_a_kernel_are_per_device_and_yield_to_the_functions_own)
{
    machine_with_context("h200,vram=64M,gpus=2");
    CUlibrary lib = library();
    CUkernel k = kernel_of(lib, "fill");
    CUfunction f;
    int value;
    CUfunction_attribute most = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    OK(cuKernelGetFunction(&f, k));
    OK(cuKernelSetAttribute(most, 100000, k, 0));
    OK(cuFuncGetAttribute(&value, most, f));
    cr_assert_eq(value, 100000);
    OK(cuKernelGetAttribute(&value, most, k, 1));
    cr_assert_eq(value, 48 * 1024);
    OK(cuFuncSetAttribute(f, most, 60000));
    OK(cuKernelSetAttribute(most, 70000, k, 0)); /* later, and yet the function's own counts */
    OK(cuFuncGetAttribute(&value, most, f));
    cr_assert_eq(value, 60000);
    OK(cuKernelGetAttribute(&value, most, k, 0));
    cr_assert_eq(value, 70000);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuKernelSetAttribute(most, 300 * 1024, k, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_NUM_REGS, 32, k, 0));
    GIVES(CUDA_ERROR_INVALID_DEVICE, cuKernelSetAttribute(most, 1, k, 7));
    OK(cuKernelSetCacheConfig(k, CU_FUNC_CACHE_PREFER_L1, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuKernelSetCacheConfig(k, (CUfunc_cache)9, 0));
}

Test(library, options_and_files_are_checked)
{
    machine("h200,vram=64M");
    CUlibrary lib;
    CUlibraryOption preserved = CU_LIBRARY_BINARY_IS_PRESERVED,
                    table = CU_LIBRARY_HOST_UNIVERSAL_FUNCTION_AND_DATA_TABLE, unknown = (CUlibraryOption)17;
    void *value = NULL;
    OK(cuLibraryLoadData(&lib, kernels_ptx, NULL, NULL, 0, &preserved, &value, 1));
    GIVES(CUDA_ERROR_NOT_SUPPORTED, cuLibraryLoadData(&lib, kernels_ptx, NULL, NULL, 0, &table, &value, 1));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuLibraryLoadData(&lib, kernels_ptx, NULL, NULL, 0, &unknown, &value, 1));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuLibraryLoadData(&lib, kernels_ptx, NULL, NULL, 0, NULL, NULL, 1));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuLibraryLoadData(NULL, kernels_ptx, NULL, NULL, 0, NULL, NULL, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuLibraryLoadData(&lib, NULL, NULL, NULL, 0, NULL, NULL, 0));
    GIVES(CUDA_ERROR_INVALID_IMAGE, cuLibraryLoadData(&lib, "hello", NULL, NULL, 0, NULL, NULL, 0));
    char path[64];
    snprintf(path, sizeof path, "/tmp/simgpu-library-%d.ptx", (int)getpid());
    FILE *f = fopen(path, "w");
    cr_assert_not_null(f);
    fputs(kernels_ptx, f);
    fclose(f);
    OK(cuLibraryLoadFromFile(&lib, path, NULL, NULL, 0, NULL, NULL, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuLibraryLoadFromFile(&lib, path, NULL, NULL, 0, &preserved, &value, 1));
    kernel_of(lib, "fill");
    unlink(path);
    GIVES(CUDA_ERROR_FILE_NOT_FOUND, cuLibraryLoadFromFile(&lib, path, NULL, NULL, 0, NULL, NULL, 0));
    char log[200] = "";
    CUjit_option options[2] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[2] = {log, (void *)sizeof log};
    GIVES(CUDA_ERROR_INVALID_PTX,
          cuLibraryLoadData(&lib, ".version 7.0\n.target sm_70\n.address_size 64\n.entry f() { nonsense; }", options,
                            values, 2, NULL, NULL, 0));
    cr_assert_not_null(strstr(log, "nonsense"), "%s", log);
}

Test(library, eager_loading_is_at_once_and_everywhere)
{
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);
    machine_with_context("h200,vram=64M,gpus=2");
    CUmoduleLoadingMode mode;
    OK(cuModuleGetLoadingMode(&mode));
    cr_assert_eq(mode, CU_MODULE_EAGER_LOADING);
    size_t before = free_vram();
    CUlibrary lib = library();
    size_t with = free_vram();
    cr_assert_lt(with, before);
    CUmodule m;
    OK(cuLibraryGetModule(&m, lib));
    cr_assert_eq(free_vram(), with);
    CUcontext late;
    OK(cuCtxCreate_v2(&late, 0, 1));
    cr_assert_eq(free_vram(), with, "a new context has it, too");
    OK(cuLibraryUnload(lib));
    cr_assert_eq(free_vram(), before);
}

Test(library, lazy_loading_is_what_happens_else)
{
    unsetenv("CUDA_MODULE_LOADING");
    machine_with_context("h200,vram=64M");
    CUmoduleLoadingMode mode;
    OK(cuModuleGetLoadingMode(&mode));
    cr_assert_eq(mode, CU_MODULE_LAZY_LOADING);
    size_t before = free_vram();
    library();
    cr_assert_eq(free_vram(), before);
}

struct racer {
    CUcontext context;
    CUkernel kernel;
    CUdeviceptr p;
};

static void *first_launch(void *arg)
{
    struct racer *r = arg;
    OK(cuCtxSetCurrent(r->context));
    OK(fill(r->kernel, r->p, 5, 4, NULL));
    return NULL;
}

Test(library, threads_that_use_it_first_at_the_same_time_get_one_module)
{
    struct racer r = {.context = machine_with_context("h200,vram=64M")};
    pthread_t threads[4];
    r.kernel = kernel_of(library(), "fill");
    OK(cuMemAlloc_v2(&r.p, 4096));
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, first_launch, &r);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    OK(cuCtxSynchronize());
    cr_assert_eq(word_at(r.p), 5);
}

/* ---- occupancy ---- */

static size_t CUDA_CB shared_of(int block)
{
    int n;
    OK(cuDeviceGetCount(&n)); /* the job's function may call CUDA */
    return (size_t)block * 64;
}

Test(library, occupancy_takes_kernels_and_functions)
{
    machine_with_context("a100-pcie,vram=64M");
    CUfunction k = (CUfunction)kernel_of(library(), "fill"), big = (CUfunction)kernel_of(library(), "big_shared");
    int blocks, grid, block, size;
    size_t bytes;
    OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, k, 256, 0));
    cr_assert_eq(blocks, 2048 / 256);
    OK(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&blocks, k, 32, 0, CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE));
    cr_assert_eq(blocks, 32);
    OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, big, 64, 0));
    cr_assert_eq(blocks, 164 / 41);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, k, 0, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(&blocks, k, 32, 0, 2));
    OK(cuOccupancyMaxPotentialBlockSize(&grid, &block, k, NULL, 0, 0));
    cr_assert(block == 1024 && grid == 2 * 108);
    OK(cuOccupancyMaxPotentialBlockSizeWithFlags(&grid, &block, k, NULL, 0, 96, 0));
    cr_assert_eq(block, 64, "32 blocks of 64 threads are as many threads as fit with at most 96 a block");
    OK(cuOccupancyMaxPotentialBlockSize(&grid, &block, k, shared_of, 0, 0));
    cr_assert_gt(block, 0);
    OK(cuOccupancyAvailableDynamicSMemPerBlock(&bytes, k, 2, 128));
    cr_assert_eq(bytes, 81 * 1024);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuOccupancyAvailableDynamicSMemPerBlock(&bytes, k, 33, 32));
    CUlaunchAttribute cluster = {.id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, .value.clusterDim = {1, 1, 1}};
    CUlaunchConfig config = {
        .gridDimX = 8, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 512, .blockDimY = 1, .blockDimZ = 1};
    OK(cuOccupancyMaxPotentialClusterSize(&size, k, &config));
    cr_assert_eq(size, 1);
    GIVES(CUDA_ERROR_INVALID_CLUSTER_SIZE, cuOccupancyMaxActiveClusters(&size, k, &config));
    config.attrs = &cluster;
    config.numAttrs = 1;
    OK(cuOccupancyMaxActiveClusters(&size, k, &config));
    cr_assert_eq(size, 4 * 108);
    cluster.value.clusterDim.x = 2;
    GIVES(CUDA_ERROR_INVALID_CLUSTER_SIZE, cuOccupancyMaxActiveClusters(&size, k, &config));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, NULL, 32, 0));
}
