/* A whole job that finds the driver as a statically linked runtime does (load_job.c), on the simulated node. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "support/spawn.h"

static struct hr_test_result run_job(const char *preload, const char *more)
{
    static char preload_env[4200], path_env[4200];
    const char *argv[] = {getenv("TEST_JOB"), NULL};
    snprintf(preload_env, sizeof preload_env, "LD_PRELOAD=%s", preload);
    snprintf(path_env, sizeof path_env, "LD_LIBRARY_PATH=%s", getenv("TEST_SIMGPU"));
    const char *env[] = {preload_env,
                         path_env,
                         "HEADROOM_DRIVER",
                         "HEADROOM_LOG",
                         "HEADROOM_STATS=off",
                         "SIMGPU_REPORT",
                         "SIMGPU=h200,vram=64M",
                         more,
                         NULL};
    return hr_test_run(argv, env);
}

Test(load_job, K9_and_K31_a_statically_linked_runtime_gets_more_memory_than_the_gpu_has)
{
    struct hr_test_result result = run_job(getenv("TEST_LIBRARY"), NULL);
    cr_assert(WIFEXITED(result.status) && WEXITSTATUS(result.status) == 7, "%x: %s", (unsigned)result.status,
              result.err);
    cr_assert_str_empty(result.err);
    hr_test_result_finish(&result);
}

Test(load_job, without_us_and_disabled_it_runs_out)
{
    for (int disabled = 0; disabled < 2; disabled++) {
        struct hr_test_result result = run_job(disabled ? getenv("TEST_LIBRARY") : "", "HEADROOM_DISABLE=1");
        cr_assert(WIFEXITED(result.status) && WEXITSTATUS(result.status) == 1);
        cr_assert_str_eq(result.err, "cuMemAlloc: 2, not 0\n");
        hr_test_result_finish(&result);
    }
}
