#include "kernels.h"
#include "scene.h"

#include <sched.h>
#include <sys/wait.h>
#include <time.h>

static CUresult launch(CUfunction f, unsigned blocks, unsigned threads, CUstream stream, void **params)
{
    return cuLaunchKernel(f, blocks, 1, 1, threads, 1, 1, 0, stream, params, NULL);
}

static CUresult fill(CUfunction f, CUdeviceptr p, unsigned value, unsigned n, CUstream stream)
{
    void *params[] = {&p, &value, &n};
    return launch(f, (n + 127) / 128, 128, stream, params);
}

static CUresult spin(CUfunction f, volatile unsigned *flag, CUdeviceptr out, CUdeviceptr extra, CUstream stream)
{
    CUdeviceptr at = (CUdeviceptr)(uintptr_t)flag;
    void *params[] = {&at, &out, &extra};
    return launch(f, 1, 1, stream, params);
}

static volatile unsigned *pinned_flag(void)
{
    void *p;
    OK(cuMemAllocHost_v2(&p, 64));
    memset(p, 0, 64);
    return p;
}

static void raise_flag(volatile unsigned *flag)
{
    __atomic_store_n(flag, 1, __ATOMIC_SEQ_CST);
}

Test(kernel, parameters_arrive_by_pointers_and_by_buffer)
{
    machine_with_context("h200,vram=64M");
    CUdeviceptr p;
    CUfunction f = kernel("fill");
    unsigned got[1000];
    OK(cuMemAlloc_v2(&p, 4000));
    OK(cuMemsetD32_v2(p, 0, 1000));
    OK(fill(f, p, 0x1234, 999, NULL));
    OK(cuMemcpyDtoH_v2(got, p, 4000));
    for (int i = 0; i < 1000; i++)
        cr_assert_eq(got[i], i < 999 ? 0x1234u : 0);
    struct {
        CUdeviceptr p;
        unsigned value, n;
    } packed = {p, 77, 1000};
    size_t bytes = sizeof packed;
    void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes, CU_LAUNCH_PARAM_END};
    OK(cuLaunchKernel(f, 8, 1, 1, 128, 1, 1, 0, NULL, NULL, extra));
    OK(cuMemcpyDtoH_v2(got, p, 4000));
    for (int i = 0; i < 1000; i++)
        cr_assert_eq(got[i], 77);
    bytes = 12;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(f, 8, 1, 1, 128, 1, 1, 0, NULL, NULL, extra)); /* too short */
    GIVES(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(f, 8, 1, 1, 128, 1, 1, 0, NULL, NULL, NULL));
}

Test(kernel, shapes_and_handles_are_checked_at_the_call)
{
    machine_with_context("h200,vram=64M");
    CUfunction f = kernel("stop");
    GIVES(CUDA_ERROR_INVALID_VALUE, launch(f, 0, 1, NULL, NULL));
    GIVES(CUDA_ERROR_INVALID_VALUE, launch(f, 1, 1025, NULL, NULL));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(f, 1, 65536, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(f, 1, 1, 1, 1, 1, 65, 0, NULL, NULL, NULL));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(f, 1, 1, 1, 32, 32, 2, 0, NULL, NULL, NULL));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 49153, NULL, NULL, NULL));
    GIVES(CUDA_ERROR_INVALID_HANDLE, launch((CUfunction)(uintptr_t)0x1230, 1, 1, NULL, NULL));
    GIVES(CUDA_ERROR_INVALID_HANDLE, launch(NULL, 1, 1, NULL, NULL));
    OK(cuCtxSynchronize()); /* none of them ran */
    OK(cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100 * 1024));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 300 * 1024));
    OK(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 100 * 1024, NULL, NULL, NULL));
    GIVES(CUDA_ERROR_LAUNCH_FAILED, cuCtxSynchronize()); /* it traps */
}

Test(kernel, functions_tell_their_layout_and_needs)
{
    machine_with_context("h200,vram=64M");
    CUmodule module, back;
    CUfunction f, all[8];
    size_t offset, size;
    int value, blocks, grid, block;
    unsigned count;
    const char *name;
    OK(cuModuleLoadData(&module, kernels_ptx));
    OK(cuModuleGetFunctionCount(&count, module));
    cr_assert_eq(count, 6);
    OK(cuModuleEnumerateFunctions(all, count, module));
    OK(cuModuleGetFunction(&f, module, "fill"));
    GIVES(CUDA_ERROR_NOT_FOUND, cuModuleGetFunction(&f, module, "fil"));
    static const size_t offsets[3] = {0, 8, 12}, sizes[3] = {8, 4, 4};
    for (size_t i = 0; i < 3; i++) {
        OK(cuFuncGetParamInfo(f, i, &offset, &size));
        cr_assert(offset == offsets[i] && size == sizes[i]);
    }
    GIVES(CUDA_ERROR_INVALID_VALUE, cuFuncGetParamInfo(f, 3, &offset, &size));
    OK(cuFuncGetModule(&back, f));
    cr_assert_eq(back, module);
    OK(cuFuncGetName(&name, f));
    cr_assert_str_eq(name, "fill");
    OK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_PTX_VERSION, f));
    cr_assert_eq(value, 70);
    OK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, f));
    cr_assert_eq(value, 1024);
    OK(cuModuleGetFunction(&f, module, "big_shared"));
    OK(cuFuncGetAttribute(&value, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, f));
    cr_assert_eq(value, 40960);
    OK(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, f, 32, 0));
    cr_assert_eq(blocks, 228 / 41);
    OK(cuOccupancyMaxPotentialBlockSize(&grid, &block, f, NULL, 0, 0));
    cr_assert(block > 0 && grid > 0);
    OK(cuModuleUnload(module));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuModuleUnload(module));
    GIVES(CUDA_ERROR_INVALID_HANDLE, cuFuncGetModule(&back, f));
}

Test(kernel, module_variables_have_addresses_and_contents)
{
    machine_with_context("h200,vram=64M");
    size_t before = free_vram(), bytes;
    CUmodule module;
    CUdeviceptr table, scratch;
    unsigned got[4];
    OK(cuModuleLoadData(&module, kernels_ptx));
    cr_assert_lt(free_vram(), before);
    OK(cuModuleGetGlobal_v2(&table, &bytes, module, "table"));
    cr_assert_eq(bytes, 16);
    OK(cuMemcpyDtoH_v2(got, table, 16));
    cr_assert(got[0] == 10 && got[3] == 40);
    OK(cuModuleGetGlobal_v2(&scratch, &bytes, module, "scratch"));
    cr_assert_eq(bytes, 100);
    OK(cuMemcpyDtoH_v2(got, scratch, 16));
    cr_assert(got[0] == 0 && got[3] == 0);
    GIVES(CUDA_ERROR_NOT_FOUND, cuModuleGetGlobal_v2(&scratch, &bytes, module, "tabl"));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(table)); /* the module's */
    OK(cuModuleUnload(module));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH_v2(got, table, 16));
    cr_assert_eq(free_vram(), before);
}

Test(kernel, what_is_not_a_module_is_refused_with_a_reason)
{
    machine_with_context("a100-pcie,vram=64M");
    CUmodule m;
    char log[300] = "";
    unsigned bytes = sizeof log;
    CUjit_option options[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
    void *values[] = {log, (void *)(uintptr_t)bytes};
    static const char broken[] =
        ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry f()\n{\n frobnicate;\n ret;\n}\n";
    GIVES(CUDA_ERROR_INVALID_PTX, cuModuleLoadDataEx(&m, broken, 2, options, values));
    cr_assert_not_null(strstr(log, "line 6"), "%s", log);
    cr_assert_not_null(strstr(log, "frobnicate"), "%s", log);
    cr_assert_eq((uintptr_t)values[1], strlen(log));
    GIVES(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, cuModuleLoadData(&m, ".version 12.3\n.target sm_70\n.address_size 64\n"));
    GIVES(CUDA_ERROR_NO_BINARY_FOR_GPU, cuModuleLoadData(&m, ".version 7.8\n.target sm_90\n.address_size 64\n"));
    GIVES(CUDA_ERROR_NO_BINARY_FOR_GPU, cuModuleLoadData(&m, "\x7f"
                                                             "ELF and so on"));
    GIVES(CUDA_ERROR_INVALID_IMAGE, cuModuleLoadData(&m, "hello"));
    GIVES(CUDA_ERROR_FILE_NOT_FOUND, cuModuleLoad(&m, "/nonexistent.ptx"));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuModuleLoadData(&m, NULL));
    OK(cuCtxSynchronize());
}

Test(kernel, kernels_of_several_streams_run_at_the_same_time, .timeout = 60)
{
    machine_with_context("h200,vram=64M");
    volatile unsigned *flag = pinned_flag();
    CUfunction spinner = kernel("spin"), filler = kernel("fill");
    CUstream a, b;
    OK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
    OK(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
    OK(spin(spinner, flag, 0, 0, a));
    OK(fill(filler, (CUdeviceptr)(uintptr_t)flag, 1, 1, b)); /* the second lets the first go */
    OK(cuStreamSynchronize(a));
    OK(cuStreamSynchronize(b));
}

Test(kernel, devices_run_at_the_same_time, .timeout = 60)
{
    CUcontext c[2] = {machine_with_context("h200,vram=64M,gpus=2"), NULL};
    volatile unsigned *flag = pinned_flag();
    OK(cuCtxCreate_v2(&c[1], 0, 1));
    CUdeviceptr other = (CUdeviceptr)(uintptr_t)(flag + 1);
    for (int i = 0; i < 2; i++) { /* 0 waits for 1, which waits for the host */
        OK(cuCtxSetCurrent(c[i]));
        OK(spin(kernel("spin"), i ? flag : flag + 1, i ? other : 0, 0, NULL));
    }
    raise_flag(flag);
    for (int i = 0; i < 2; i++) {
        OK(cuCtxSetCurrent(c[i]));
        OK(cuCtxSynchronize());
    }
}

Test(kernel, memory_of_another_device_needs_access)
{
    CUcontext c0 = machine_with_context("h200,vram=64M,gpus=2"), c1;
    CUdeviceptr p0, v0 = mapped_chunks(1);
    unsigned got = 0;
    OK(cuMemAlloc_v2(&p0, 4 * MIB));
    OK(cuCtxCreate_v2(&c1, 0, 1));
    CUfunction f = kernel("fill");
    OK(cuCtxEnablePeerAccess(c0, 0));
    OK(fill(f, p0, 6, 16, NULL));
    OK(cuCtxSynchronize());
    OK(cuMemcpyDtoH_v2(&got, p0 + 60, 4));
    cr_assert_eq(got, 6);
    OK(fill(f, v0, 6, 16, NULL)); /* that does nothing for VMM memory */
    GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
    OK(cuCtxSetCurrent(c0));
    OK(cuCtxSynchronize()); /* the other context lives */
    OK(cuMemcpyDtoH_v2(&got, p0 + 60, 4));
}

Test(kernel, a_module_may_be_unloaded_under_its_kernels, .timeout = 60)
{
    machine_with_context("h200,vram=64M");
    CUmodule module;
    CUfunction f;
    CUdeviceptr p;
    unsigned got;
    OK(cuMemAlloc_v2(&p, 4 * MIB));
    OK(cuModuleLoadData(&module, kernels_ptx));
    OK(cuModuleGetFunction(&f, module, "fill"));
    for (unsigned i = 0; i < 20; i++)
        OK(fill(f, p, i, MIB, NULL));
    OK(cuModuleUnload(module));
    OK(cuMemcpyDtoH_v2(&got, p + 4 * MIB - 4, 4));
    cr_assert_eq(got, 19);
}

Test(kernel, a_cooperative_grid_must_fit)
{
    machine_with_context("v100,vram=64M");
    CUfunction f = kernel("stop");
    GIVES(CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE,
          cuLaunchCooperativeKernel(f, 80 * 32 + 1, 1, 1, 32, 1, 1, 0, NULL, NULL));
    OK(cuCtxSynchronize());
}

/* ---- scenes: what is said on stderr and counted in the report ---- */

static void *raise_later(void *flag)
{
    struct timespec pause = {0, 60000000};
    nanosleep(&pause, NULL);
    raise_flag(flag);
    return NULL;
}

static int scene_unmap_named(void)
{
    machine_with_context("h200,vram=64M");
    volatile unsigned *flag = pinned_flag();
    CUdeviceptr va = mapped_chunks(3);
    OK(spin(kernel("spin"), flag, 0, va + PAGE + 128, NULL));
    OK(cuMemUnmap(va, PAGE));            /* not named */
    OK(cuMemUnmap(va + PAGE, 2 * PAGE)); /* one of these is */
    raise_flag(flag);
    return cuCtxSynchronize();
}

static int scene_unmap_queued(void)
{
    machine_with_context("h200,vram=64M");
    volatile unsigned *flag = pinned_flag();
    CUfunction f = kernel("spin");
    CUdeviceptr va = mapped_chunks(2);
    OK(spin(f, flag, 0, 0, NULL));
    OK(spin(f, flag, 0, va + 8, NULL)); /* waits its turn */
    OK(cuMemcpyDtoDAsync_v2(va + PAGE, va + PAGE + 4096, 64, NULL));
    OK(cuMemUnmap(va, PAGE));
    OK(cuMemUnmap(va + PAGE, PAGE));
    raise_flag(flag);
    return cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS ? 0 : 1; /* the copy has lost its memory */
}

static int scene_unmap_hidden(void)
{
    machine_with_context("h200,vram=64M");
    volatile unsigned *flag = pinned_flag();
    CUdeviceptr va = mapped_chunks(3), inner = va + PAGE, at = (CUdeviceptr)(uintptr_t)flag;
    OK(cuMemcpyHtoD_v2(va, &inner, 8));
    OK(cuMemsetD32_v2(inner, 0, 1));
    OK(cuCtxSynchronize());
    void *params[] = {&va, &at};
    OK(launch(kernel("hidden"), 1, 1, NULL, params));
    while (__atomic_load_n(flag + 1, __ATOMIC_ACQUIRE) != 7) /* until the kernel has been there */
        sched_yield();
    OK(cuMemUnmap(inner, 2 * PAGE)); /* one is touched, one is not */
    raise_flag(flag);
    return cuCtxSynchronize();
}

static int scene_unmap_after(void)
{
    machine_with_context("h200,vram=64M");
    CUdeviceptr va = mapped_chunks(2);
    OK(fill(kernel("fill"), va, 3, MIB, NULL));
    OK(cuMemsetD8_v2(va, 1, 2 * PAGE));
    OK(cuCtxSynchronize());
    OK(cuMemUnmap(va, 2 * PAGE));
    return 0;
}

static int scene_free(void)
{
    machine_with_context("h200,vram=64M");
    CUfunction f = kernel("spin");
    for (int i = 0; i < 12; i++) {
        volatile unsigned *flag = pinned_flag();
        CUdeviceptr p;
        pthread_t thread;
        OK(cuMemAlloc_v2(&p, 4 * MIB));
        OK(spin(f, flag, 0, p + 100, NULL));
        pthread_create(&thread, NULL, raise_later, (void *)(uintptr_t)flag);
        OK(cuMemFree_v2(p));
        pthread_join(thread, NULL);
        OK(cuCtxSynchronize());
    }
    return 0;
}

static int fault_at(CUdeviceptr bad)
{
    CUdeviceptr p;
    OK(fill(kernel("fill"), bad, 3, 1, NULL));
    if (cuCtxSynchronize() != CUDA_ERROR_ILLEGAL_ADDRESS)
        return 1;
    return cuMemAlloc_v2(&p, 4) == CUDA_ERROR_ILLEGAL_ADDRESS ? 0 : 2;
}

static int scene_past_end(void)
{
    CUdeviceptr p;
    machine_with_context("h200,vram=64M");
    OK(cuMemAlloc_v2(&p, 4 * MIB));
    return fault_at(p + 4 * MIB + 8);
}

static int scene_unmapped(void)
{
    machine_with_context("h200,vram=64M");
    CUdeviceptr va = mapped_chunks(2);
    OK(cuMemUnmap(va + PAGE, PAGE));
    return fault_at(va + PAGE + 64);
}

static int scene_host_pointer(void)
{
    static unsigned here;
    machine_with_context("h200,vram=64M");
    return fault_at((CUdeviceptr)(uintptr_t)&here);
}

static int scene_freed(void)
{
    CUdeviceptr p;
    machine_with_context("h200,vram=64M");
    OK(cuMemAlloc_v2(&p, 4 * MIB));
    OK(cuMemFree_v2(p));
    return fault_at(p + 64);
}

static int scene_forever(void)
{
    machine_with_context("h200,vram=64M");
    OK(launch(kernel("forever"), 1000, 128, NULL, NULL));
    return 5; /* exits under the kernel */
}

static int scene_tiers(void)
{
    machine_with_context("h200,vram=64M,gpus=2");
    CUmemAllocationProp prop = on_host_node(0);
    CUmemAccessDesc access = access_of(0);
    CUmemGenericAllocationHandle h;
    CUdeviceptr va, p;
    OK(cuMemAddressReserve(&va, PAGE, 0, 0, 0));
    OK(cuMemCreate(&h, PAGE, &prop, 0));
    OK(cuMemMap(va, PAGE, 0, h, 0));
    OK(cuMemSetAccess(va, PAGE, &access, 1));
    OK(cuMemAlloc_v2(&p, PAGE));
    CUfunction f = kernel("fill");
    OK(fill(f, va, 3, 1000, NULL));
    OK(fill(f, p, 3, 500, NULL));
    return cuCtxSynchronize();
}

SCENES({"unmap_named", scene_unmap_named}, {"unmap_queued", scene_unmap_queued}, {"unmap_hidden", scene_unmap_hidden},
       {"unmap_after", scene_unmap_after}, {"free", scene_free}, {"past_end", scene_past_end},
       {"unmapped", scene_unmapped}, {"host_pointer", scene_host_pointer}, {"freed", scene_freed},
       {"forever", scene_forever}, {"tiers", scene_tiers})

/* Plays a scene with a report; returns the report, and stderr in *err_out (to be freed). */
static const char *play_reported(const char *scene, char **err_out)
{
    char report[96], name[64];
    snprintf(report, sizeof report, "SIMGPU_REPORT=/tmp/simgpu-kernel-%d.json", (int)getpid());
    snprintf(name, sizeof name, "SIM_SCENE=%s", scene);
    const char *env[] = {report, "SIMGPU_LOG", NULL};
    struct hr_test_result r = play(name, env);
    cr_assert(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 0, "%s: %x %s", scene, (unsigned)r.status, r.err);
    const char *text = slurp(report + 14);
    unlink(report + 14);
    *err_out = strdup(r.err);
    hr_test_result_finish(&r);
    return text;
}

Test(kernel, unmapping_what_a_running_kernel_was_given_is_counted, .timeout = 60)
{
    char *err;
    cr_assert_eq(reported(play_reported("unmap_named", &err), "unmapped_in_flight"), 1);
    cr_assert(hr_test_is_one_line(err), "%s", err);
    cr_assert_not_null(strstr(err, "used by kernel spin, which is running on device 0"), "%s", err);
    free(err);
}

Test(kernel, unmapping_what_queued_work_was_given_is_counted, .timeout = 60)
{
    char *err;
    cr_assert_eq(reported(play_reported("unmap_queued", &err), "unmapped_in_flight"), 2);
    cr_assert_not_null(strstr(err, "queued"), "%s", err);
    free(err);
}

Test(kernel, unmapping_what_a_running_kernel_found_by_itself_is_counted, .timeout = 60)
{
    char *err;
    cr_assert_eq(reported(play_reported("unmap_hidden", &err), "unmapped_in_flight"), 1);
    cr_assert_not_null(strstr(err, "touched by kernel hidden"), "%s", err);
    free(err);
}

Test(kernel, unmapping_after_the_work_is_done_is_not_counted, .timeout = 60)
{
    char *err;
    cr_assert_eq(reported(play_reported("unmap_after", &err), "unmapped_in_flight"), 0);
    cr_assert_str_empty(err);
    free(err);
}

Test(kernel, frees_wait_or_are_counted_by_seed, .timeout = 60)
{
    char *err;
    long long n = reported(play_reported("free", &err), "freed_in_flight");
    cr_assert(n > 0 && n < 12, "%lld", n);
    free(err);
}

Test(kernel, faults_say_where_and_what_lies_near, .timeout = 120)
{
    static const char *const wanted[][2] = {
        {"past_end", "8 bytes past the end of the allocation"},
        {"unmapped", "in an unmapped VMM range: 2097216 bytes into the reservation"},
        {"host_pointer", "nowhere near any memory"},
        {"freed", "64 bytes into freed memory"}};
    for (int i = 0; i < 4; i++) {
        char *err;
        const char *report = play_reported(wanted[i][0], &err);
        cr_assert_eq(reported(report, "kernels"), 1);
        cr_assert_not_null(strstr(err, "illegal address in kernel fill, block (0,0,0), thread (0,0,0)"), "%s", err);
        cr_assert_not_null(strstr(err, "write of 4 bytes"), "%s", err);
        cr_assert_not_null(strstr(err, wanted[i][1]), "%s: %s", wanted[i][0], err);
        cr_assert(hr_test_is_one_line(err), "%s", err);
        free(err);
    }
}

Test(kernel, exit_does_not_wait_for_a_kernel_that_never_ends, .timeout = 60)
{
    struct hr_test_result r = play("SIM_SCENE=forever", NULL);
    cr_assert(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 5);
    hr_test_result_finish(&r);
}

Test(kernel, bytes_are_counted_by_where_they_lie, .timeout = 60)
{
    char *err;
    const char *report = play_reported("tiers", &err);
    cr_assert_not_null(strstr(report, "\"kernel_write_bytes\": {\"vram\": 2000, \"peer\": 0, \"host\": 4000}"), "%s",
                       report);
    cr_assert_eq(reported(report, "kernels"), 2);
    free(err);
}
