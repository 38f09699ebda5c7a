/* The client (load_client.c) with the library preloaded, above one driver or another. */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "support/spawn.h"

static char preload[4096], driver[4096], driver_env[4200];

/* The environment of a client above the driver of that name, with up to two more entries. */
static const char *const *environment(const char *name, const char *more, const char *even_more)
{
    static const char *env[10];
    static char driver_at[4200];
    const char *first = getenv("TEST_PRELOAD_FIRST"); /* a sanitizer's runtime has to come first */
    snprintf(preload, sizeof preload, "LD_PRELOAD=%s%s%s", first != NULL ? first : "", first != NULL ? ":" : "",
             getenv("TEST_LIBRARY"));
    snprintf(driver, sizeof driver, "%s/%s/libcuda.so.1", getenv("TEST_DRIVERS"), name);
    snprintf(driver_env, sizeof driver_env, "HEADROOM_DRIVER=%s", driver);
    snprintf(driver_at, sizeof driver_at, "TEST_DRIVER=%s", driver);
    size_t n = 0;
    env[n++] = preload;
    env[n++] = driver_env;
    env[n++] = driver_at;
    env[n++] = "LD_LIBRARY_PATH";
    env[n++] = "HEADROOM_LOG";
    env[n++] = "HEADROOM_STATS=off";
    if (more != NULL)
        env[n++] = more;
    if (even_more != NULL)
        env[n++] = even_more;
    env[n] = NULL;
    return env;
}

static struct hr_test_result run_client(const char *check, const char *const *env)
{
    const char *argv[] = {getenv("TEST_CLIENT"), check, NULL};
    return hr_test_run(argv, env);
}

/* The client's check passes above that driver, and nothing is said. */
static void expect_with(const char *check, const char *name, const char *more, const char *even_more)
{
    struct hr_test_result result = run_client(check, environment(name, more, even_more));
    cr_assert(result.status == 0, "%s above %s: status %x: %s", check, name, (unsigned)result.status, result.err);
    hr_test_result_finish(&result);
}

static void expect(const char *check, const char *name)
{
    expect_with(check, name, NULL, NULL);
}

static void needs_bare_core(void)
{
    if (getenv("TEST_BARE") == NULL)
        cr_skip_test("only without the core, which a driver without memory cannot carry");
}

/* The runtimes of sanitizers forbid RTLD_DEEPBIND, and an instrumented library only loads into instrumented programs. */
static void needs_no_sanitizer(void)
{
    if (getenv("TEST_SANITIZED") != NULL)
        cr_skip_test("not under a sanitizer");
}

Test(load, K1_what_cuGetProcAddress_returns_for_every_hook_is_ours)
{
    expect("lookups", "full");
}

Test(load, K1_holds_where_the_resolver_returns_other_addresses_than_dlsym)
{
    expect("lookups", "other");
}

Test(load, K1_holds_where_functions_share_an_address)
{
    expect_with("lookups", "shared", "TEST_ONE_ADDRESS=1", NULL);
}

Test(load, K2_K46_cuGetProcAddress_answers_for_itself_with_the_arity_of_the_version)
{
    expect("self", "full");
    expect("self", "other");
}

Test(load, K3_an_older_driver_is_never_offered_what_it_lacks)
{
    expect("lookups", "old114");
    expect("lookups", "old118");
    expect("lookups", "old122");
}

Test(load, K3_holds_for_a_driver_without_cuGetProcAddress)
{
    expect("lookups", "ancient");
}

Test(load, K4_functions_newer_than_the_table_are_withheld_where_they_could_name_memory)
{
    expect("later", "new132");
    expect("later", "new135");
    expect("later", "other135");
    expect("lookups", "new135");
}

Test(load, K14_export_tables_pass_through_untouched)
{
    expect("tables", "full");
    expect("tables", "other");
    expect("tables", "ancient");
}

Test(load, K9_a_statically_linked_runtime_is_served)
{
    /* The client is not linked to the driver: everything goes through dlopen, dlsym and cuGetProcAddress. */
    expect("self", "full");
    expect("lookups", "full");
}

Test(load, K10_deep_binding_leads_here)
{
    needs_no_sanitizer();
    expect("deepbind", "full");
}

Test(load, K12_names_that_merely_start_alike_are_left_alone)
{
    expect("alike", "full");
    expect("alike", "other");
}

Test(load, K13_a_driver_that_calls_its_exported_names_reaches_itself)
{
    needs_bare_core();
    expect("self-call", "calls");
}

Test(load, K44_no_driver_call_after_main_and_the_exit_code_stays)
{
    needs_bare_core();
    struct hr_test_result result = run_client("exit", environment("full", "BARE_CORE=say", NULL));
    cr_assert(WIFEXITED(result.status) && WEXITSTATUS(result.status) == 7, "status %x", (unsigned)result.status);
    cr_assert(strstr(result.err, "core exit\n") != NULL, "the core is not told of the exit: %s", result.err);
    cr_assert(strstr(result.err, "late calls: 0\n") != NULL, "%s", result.err);
    hr_test_result_finish(&result);
}

Test(load, K45_per_thread_stream_look_ups_get_the_per_thread_functions)
{
    /* Each look-up's answer is called and has to arrive at the function that the driver would have given. */
    expect("lookups", "full");
    expect("lookups", "other");
}

Test(load, K30_a_failed_start_leaves_the_job_alone)
{
    needs_bare_core();
    struct hr_test_result result = run_client("passes", environment("full", "BARE_CORE=fail", NULL));
    cr_assert(result.status == 0, "%s", result.err);
    cr_assert(hr_test_is_one_line(result.err), "not one line: %s", result.err);
    hr_test_result_finish(&result);
}

Test(load, disabled_it_forwards_everything)
{
    expect_with("passes", "full", "HEADROOM_DISABLE=1", NULL);
    expect_with("passes", "calls", "HEADROOM_DISABLE=1", NULL);
}

Test(load, refused_rows_return_not_supported_for_window_memory_only)
{
    needs_bare_core();
    struct hr_test_result result = run_client("refused", environment("full", NULL, NULL));
    cr_assert(result.status == 0, "%s", result.err);
    int lines = 0;
    for (const char *p = result.err; (p = strchr(p, '\n')) != NULL; p++)
        lines++;
    cr_assert(lines == 2 && strstr(result.err, "cuMemsetD8Async") != NULL, "not one line a function: %s", result.err);
    hr_test_result_finish(&result);
}

Test(load, a_forked_child_is_transparent)
{
    needs_bare_core();
    expect("fork", "full");
}

Test(load, forwarders_keep_every_argument)
{
    expect("arguments", "full");
    expect("first-call", "full");
}

Test(load, first_calls_on_many_threads_at_once_are_served)
{
    for (int i = 0; i < 10; i++)
        expect("threads", "full");
}

Test(load, every_way_to_name_the_driver_leads_here)
{
    expect("names", "full");
}

Test(load, the_driver_is_found_in_the_library_path_and_a_wrong_setting_is_named_once)
{
    char folder[4200];
    snprintf(folder, sizeof folder, "LD_LIBRARY_PATH=/nonexistent:%s/full", getenv("TEST_DRIVERS"));
    const char *const *env = environment("full", folder, "HEADROOM_DRIVER=/nonexistent");
    struct hr_test_result result = run_client("arguments", env);
    cr_assert(result.status == 0, "%s", result.err);
    cr_assert(hr_test_is_one_line(result.err) && strstr(result.err, "/nonexistent") != NULL, "%s", result.err);
    hr_test_result_finish(&result);
}

Test(load, a_copy_of_this_library_is_not_taken_for_the_driver)
{
    char copy[4200], path[4300], command[9000];
    snprintf(copy, sizeof copy, "%s/copy", getenv("TEST_DRIVERS"));
    snprintf(command, sizeof command, "mkdir -p %s && cp %s %s/libcuda.so.1", copy, getenv("TEST_LIBRARY"), copy);
    cr_assert(system(command) == 0);
    snprintf(path, sizeof path, "LD_LIBRARY_PATH=%s:%s/full", copy, getenv("TEST_DRIVERS"));
    expect_with("arguments", "full", path, "HEADROOM_DRIVER");
}

Test(load, programs_without_CUDA_stay_silent_and_unharmed)
{
    needs_no_sanitizer();
    static const char *const commands[][4] = {
        {"bash", "-c", "echo $((6 * 7)) | cat", NULL},
        {"python3", "-c", "import ssl, ctypes, threading; print(42)", NULL},
    };
    for (size_t i = 0; i < 2; i++) {
        struct hr_test_result result = hr_test_run(commands[i], environment("full", NULL, NULL));
        cr_assert(result.status == 0 && strcmp(result.out, "42\n") == 0, "%s: %s", commands[i][0], result.err);
        cr_assert_str_empty(result.err);
        hr_test_result_finish(&result);
    }
}

Test(load, without_a_driver_dlopen_fails_as_without_us)
{
    if (dlopen("libcuda.so.1", RTLD_LAZY) != NULL)
        cr_skip_test("this machine has a driver");
    struct hr_test_result result = run_client("lookups", environment("full", "HEADROOM_DRIVER", NULL));
    cr_assert(WIFEXITED(result.status) && WEXITSTATUS(result.status) == 1);
    cr_assert(strncmp(result.err, "libcuda.so.1", 12) == 0 && hr_test_is_one_line(result.err), "%s", result.err);
    cr_assert(strstr(result.err, "cannot open shared object file") != NULL, "%s", result.err);
    hr_test_result_finish(&result);
}

Test(load, without_a_driver_linked_calls_say_that_there_is_no_device)
{
    if (dlopen("libcuda.so.1", RTLD_LAZY) != NULL)
        cr_skip_test("this machine has a driver");
    struct hr_test_result result = run_client("no-driver", environment("full", "HEADROOM_DRIVER", NULL));
    cr_assert(result.status == 0, "%s", result.err);
    hr_test_result_finish(&result);
}
