/* Tests that pass, fail, crash, hang and are skipped, to see that the header in this folder tells them apart. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static int prepared;

static void prepare(void)
{
    prepared = 5;
}

static void clean_up(void)
{
    puts("cleaned up");
}

TestSuite(sample, .init = prepare, .fini = clean_up, .timeout = 1);

Test(sample, passes)
{
    cr_assert_eq(prepared, 5, "is %d", prepared);
    cr_assert_str_eq("a", "a");
    cr_assert_float_eq(1.0, 1.001, 0.01);
}

Test(sample, fails_by_an_expectation)
{
    cr_expect_eq(prepared, 6);
}

Test(sample, fails_at_an_assertion)
{
    cr_assert(prepared == 6, "and goes no further");
    exit(0);
}

static void *assert_in_thread(void *arg)
{
    cr_assert(arg != NULL);
    return NULL;
}

Test(sample, fails_in_a_thread)
{
    pthread_t thread;

    pthread_create(&thread, NULL, assert_in_thread, NULL);
    pthread_join(thread, NULL);
    exit(0);
}

Test(sample, hangs)
{
    for (;;) {
        pause();
    }
}

Test(sample, crashes)
{
    kill(getpid(), SIGKILL);
}

Test(sample, raises_what_it_said, .signal = SIGUSR1)
{
    raise(SIGUSR1);
}

Test(sample, does_not_raise_what_it_said, .signal = SIGUSR1)
{
}

Test(sample, exits_as_it_said, .exit_code = 3)
{
    exit(3);
}

Test(sample, is_skipped)
{
    cr_skip_test("no %s", "gpu");
}

Test(sample, is_disabled, .disabled = true)
{
    cr_assert_fail();
}

ParameterizedTestParameters(sample, fails_for_one_of_three)
{
    static int values[] = {1, 2, 3};
    return cr_make_param_array(int, values, 3);
}

ParameterizedTest(int *value, sample, fails_for_one_of_three)
{
    cr_assert_neq(*value, 2);
}
