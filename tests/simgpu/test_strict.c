/*
 * simgpu as an instrument: each rule is broken by a small program (a scene, run in a process of its own), and the finding is
 * read from its messages and its report. Programs that keep the rules give no finding.
 */
#include "strict.h"

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

SCENES({"after_free", scene_after_free}, {"after_unmap", scene_after_unmap}, {"before_map", scene_before_map},
       {"no_grant", scene_no_grant}, {"refused", scene_refused}, {"behind_small", scene_behind_small},
       {"before_small", scene_before_small}, {"behind_large", scene_behind_large}, {"in_bounds", scene_in_bounds},
       {"leaks", scene_leaks}, {"tidy", scene_tidy}, {"poison", scene_poison}, {"no_room", scene_no_room},
       {"behind_itself", scene_behind_itself}, {"waits_for_the_host", scene_waits_for_the_host}, {"room", scene_room})

/* ---- tests ---- */

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
