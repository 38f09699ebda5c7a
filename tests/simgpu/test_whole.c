/* Whole programs on simgpu: settings, injected failures, the report, forks and exits. The program is this one, run anew with a
 * scene's name in SIM_SCENE. */
#include "scene.h"
#include "sim_test.h"

#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- scenes ---- */

static int scene_init(void)
{
    return cuInit(0);
}

static int scene_work(void)
{
    CUcontext c;
    CUdeviceptr p;
    uint64_t word = 0;
    if (cuInit(0) || cuCtxCreate_v2(&c, 0, 0) || cuMemAlloc_v2(&p, 3 * MIB) || cuMemsetD8_v2(p, 1, 100) ||
        cuMemcpyHtoD_v2(p, &word, sizeof word) || cuMemcpyDtoH_v2(&word, p, sizeof word) || cuCtxSynchronize())
        return 1;
    return 0;
}

static int scene_fail(void)
{
    CUcontext c;
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
    CUmemGenericAllocationHandle h;
    CUdeviceptr p;
    if (cuInit(0) || cuCtxCreate_v2(&c, 0, 0))
        return 1;
    for (int i = 0; i < 5; i++)
        printf("%d ", cuMemCreate(&h, PAGE, &prop, 0));
    for (int i = 0; i < 5; i++)
        printf("%d ", cuMemAlloc_v2(&p, 512));
    return 0;
}

static int scene_fork(void)
{
    int n, status;
    if (cuInit(0) || scene_work())
        return 1;
    pid_t child = fork();
    if (!child) {
        CUresult a = cuDeviceGetCount(&n), b = cuInit(0), c = cuCtxSynchronize();
        exit(a == CUDA_ERROR_NOT_INITIALIZED && b == CUDA_ERROR_NOT_INITIALIZED && c == CUDA_ERROR_NOT_INITIALIZED ? 0
                                                                                                                   : 3);
    }
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 2;
}

static int scene_fork_first(void)
{
    int status;
    pid_t child = fork(); /* before cuInit: both may use the driver */
    if (!child)
        exit(scene_work());
    waitpid(child, &status, 0);
    return scene_work() || !WIFEXITED(status) || WEXITSTATUS(status);
}

static void blocks_for_ever(void *arg)
{
    (void)arg;
    for (;;)
        pause();
}

static int scene_exit_busy(void)
{
    if (scene_work() || cuLaunchHostFunc(NULL, blocks_for_ever, NULL))
        return 1;
    return 7; /* with the function still there */
}

SCENES({"init", scene_init}, {"work", scene_work}, {"fail", scene_fail}, {"fork", scene_fork},
       {"fork_first", scene_fork_first}, {"exit_busy", scene_exit_busy})

/* ---- tests ---- */

Test(whole, a_bad_setting_gives_one_line_and_fails_cuInit)
{
    static const char *const bad[] = {"SIMGPU=h300",
                                      "SIMGPU=h200,vram=64X",
                                      "SIMGPU=h200,vram=1M",
                                      "SIMGPU=h200,gpus=9",
                                      "SIMGPU=h200,gpus=0",
                                      "SIMGPU=h200,color=3",
                                      "SIMGPU=h200,",
                                      "SIMGPU=h200,seed=x",
                                      "SIMGPU=h200,host=-1",
                                      "SIMGPU_SYNC=yes",
                                      "SIMGPU_DENY=vram",
                                      "SIMGPU_LOG=loud",
                                      "SIMGPU_FAIL=cuMemCreate",
                                      "SIMGPU_FAIL=cuMemCreate:0",
                                      "SIMGPU_FAIL=cuNoSuch:1",
                                      "SIMGPU_FAIL=cuMemCreate:1:NO_SUCH",
                                      "SIMGPU_FAIL=cuMemCreate:every"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        const char *env[] = {"SIMGPU_LOG", bad[i], NULL};
        struct hr_test_result r = play("SIM_SCENE=init", env);
        cr_assert(WIFEXITED(r.status) && WEXITSTATUS(r.status) == CUDA_ERROR_INVALID_VALUE, "%s", bad[i]);
        cr_assert(hr_test_is_one_line(r.err), "%s: %s", bad[i], r.err);
        hr_test_result_finish(&r);
    }
}

Test(whole, good_settings_are_silent)
{
    static const char *const good[] = {"SIMGPU=h200",
                                       "SIMGPU=vram=64M",
                                       "SIMGPU=v100,vram=1G,gpus=2,host=1G,seed=7",
                                       "SIMGPU=rtx4090,host=0",
                                       "SIMGPU_SYNC=1",
                                       "SIMGPU_SYNC=0",
                                       "SIMGPU_DENY=host_numa",
                                       "SIMGPU_FAIL=cuMemUnmap:3,cuMemMap:every:9:INVALID_VALUE",
                                       "SIMGPU="};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        const char *env[] = {"SIMGPU_LOG", good[i], NULL};
        struct hr_test_result r = play("SIM_SCENE=work", env);
        cr_assert(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 0, "%s", good[i]);
        cr_assert_str_empty(r.err, "%s: %s", good[i], r.err);
        hr_test_result_finish(&r);
    }
}

Test(whole, calls_fail_on_demand)
{
    const char *env[] = {"SIMGPU=h200,vram=64M",
                         "SIMGPU_FAIL=cuMemCreate:2,cuMemCreate:4:CUDA_ERROR_UNKNOWN,cuMemAlloc:every:2:901", NULL};
    struct hr_test_result r = play("SIM_SCENE=fail", env);
    cr_assert_str_eq(r.out, "0 2 0 999 0 0 901 0 901 0 ");
    hr_test_result_finish(&r);
}

Test(whole, the_report_tells_what_happened)
{
    char setting[64], path[64];
    snprintf(setting, sizeof setting, "SIMGPU_REPORT=/tmp/simgpu-test-%d-%%p.json", (int)getpid());
    const char *env[] = {"SIMGPU=h200,vram=64M,gpus=2,seed=4", setting, NULL};
    struct hr_test_result r = play("SIM_SCENE=work", env);
    snprintf(path, sizeof path, "/tmp/simgpu-test-%d-%d.json", (int)getpid(), (int)r.pid);
    const char *text = slurp(path);
    unlink(path);
    cr_assert_not_null(strstr(text, "\"schema\": 2,"));
    cr_assert_not_null(strstr(text, "\"vram_bytes\": 67108864,"));
    cr_assert_not_null(strstr(text, "\"peak_vram_bytes\": 6291456,"), "%s", text); /* a context and two granules */
    cr_assert_not_null(strstr(text, "\"peak_vram_bytes\": 0,"));
    cr_assert_not_null(strstr(text, "\"copied_bytes\": {\"h2d\": 8, \"d2h\": 8, \"d2d\": 0, \"p2p\": 0, \"h2h\": 0}"),
                       "%s", text);
    cr_assert_not_null(strstr(text, "\"unmapped_in_flight\": 0,"));
    hr_test_result_finish(&r);
}

Test(whole, a_forked_child_has_no_driver_and_writes_no_report)
{
    char setting[64];
    snprintf(setting, sizeof setting, "SIMGPU_REPORT=/tmp/simgpu-fork-%d.json", (int)getpid());
    const char *env[] = {"SIMGPU=h200,vram=64M", setting, NULL};
    struct hr_test_result r = play("SIM_SCENE=fork", env);
    cr_assert(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 0);
    char pid[32];
    snprintf(pid, sizeof pid, "\"pid\": %d,", (int)r.pid);
    cr_assert_not_null(strstr(slurp(setting + 14), pid));
    unlink(setting + 14);
    hr_test_result_finish(&r);
    r = play("SIM_SCENE=fork_first", NULL);
    cr_assert(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 0);
    hr_test_result_finish(&r);
}

Test(whole, exit_does_not_wait_for_work_that_never_ends, .timeout = 20)
{
    struct hr_test_result r = play("SIM_SCENE=exit_busy", NULL);
    cr_assert(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 7);
    hr_test_result_finish(&r);
}
