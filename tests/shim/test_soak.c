/* The fuzzer on machines of several GPUs. */
#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "support/spawn.h"

static bool is_long(void)
{
    const char *text = getenv("HEADROOM_TEST_LONG");
    return text && *text && strcmp(text, "0") != 0;
}

/* Everything compared is right, and the simulated machine has found nothing undefined. How many operations there were. */
static unsigned long long soak(const char *machine, const char *gpus, const char *threads, const char *vram,
                               const char *check)
{
    const char *path = getenv("FUZZ_MODEL");
    cr_assert_not_null(path, "FUZZ_MODEL is not set");
    struct hr_test_result r =
        hr_test_run((const char *const[]){path, machine, gpus, threads, vram, "commit=lazy", "seed=41",
                                          "operations=100000", is_long() ? "seconds=900" : "seconds=4", NULL},
                    (const char *const[]){"HEADROOM_FUZZ_SECONDS=", check, NULL});
    cr_assert(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 0, "%s: status 0x%x\n%s%s", machine, r.status, r.out,
              r.err);
    const char *told = strstr(r.out, "seed 41: ");
    cr_assert_not_null(told, "%s", r.out);
    unsigned long long operations = strtoull(told + strlen("seed 41: "), NULL, 10);
    printf("%s, %s, %s: %s", machine, gpus, threads, told);
    hr_test_result_finish(&r);
    return operations;
}

/* All operations from one thread, so that what is undefined is the library's doing: looked for by the order of what uses memory. */
Test(soak, k41_random_operations_over_eight_gpus_are_right_and_race_with_nothing, .timeout = 1000)
{
    unsigned long long operations =
        soak("machine=hgx-h100", "gpus=8", "threads=1", "vram=40M", "SIMGPU_CHECK=race,redzone");
    cr_assert(!is_long() || operations >= 100000, "only %llu operations", operations);
}

/* A thread a GPU, and one that moves what they use. */
Test(soak, k41_eight_threads_on_eight_gpus_are_right, .timeout = 1000)
{
    soak("machine=h200", "gpus=8", "threads=8", "vram=40M", "SIMGPU_CHECK=redzone");
    soak("machine=dgx1v", "gpus=8", "threads=8", "vram=40M", "SIMGPU_CHECK=redzone");
}

/* Here kernels of both use what the hardware has no way to. */
Test(soak, k41_gpus_that_cannot_reach_each_other_share_memory_all_the_same, .timeout = 1000)
{
    soak("machine=rtx4090", "gpus=2", "threads=2", "vram=40M", "SIMGPU_CHECK=redzone");
}
