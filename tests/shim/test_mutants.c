/* The fuzzer against two libraries that are broken on purpose, and against the real one with the same seeds. */
#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "support/spawn.h"

static struct hr_test_result fuzz(const char *program, const char *seed)
{
    const char *path = getenv(program);
    cr_assert_not_null(path, "%s is not set", program);
    return hr_test_run((const char *const[]){path, "seconds=60", seed, "commit=lazy", NULL},
                       (const char *const[]){"HEADROOM_FUZZ_SECONDS=", NULL});
}

/* Found, by a comparison or an error of the driver: not by a crash of the fuzzer itself, and not by running out of time. */
static void is_found(const char *program)
{
    struct hr_test_result r = fuzz(program, "seed=21");
    cr_expect(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 1, "status 0x%x\n%s%s", r.status, r.out, r.err);
    cr_expect_not_null(strstr(r.err, "found: "), "%s", r.err);
    cr_log_info("%s", r.err);
    hr_test_result_finish(&r);
}

Test(mutants, a_move_that_skips_the_fence_is_found, .timeout = 300)
{
    is_found("FUZZ_SKIP_FENCE");
}

Test(mutants, a_swap_that_trusts_a_stale_copy_is_found, .timeout = 300)
{
    is_found("FUZZ_STALE_COPY_IN");
}

Test(mutants, the_real_library_passes_the_same_run, .timeout = 300)
{
    struct hr_test_result r = fuzz("FUZZ_MODEL", "seed=21");
    cr_expect(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 0, "status 0x%x\n%s%s", r.status, r.out, r.err);
    hr_test_result_finish(&r);
}
