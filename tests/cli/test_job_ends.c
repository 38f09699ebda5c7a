/* Bad input and unusual ends, seen from outside: one clear line or silence, no hang, nothing left behind. */
#include <criterion/criterion.h>
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/config.h"
#include "support/sanitizer.h"
#include "support/spawn.h"

#define ARGV(...) ((const char *const[]){__VA_ARGS__, NULL})
#define ENV(...) ((const char *const[]){__VA_ARGS__, NULL})

static const char *command, *shim, *simgpu, *job;
static char folder[64], stats[96], stats_env[128], preload[4200], library_path[4200], driver[4200];

static void set_up(void)
{
    command = getenv("TEST_HEADROOM");
    shim = getenv("TEST_SHIM");
    simgpu = getenv("TEST_SIMGPU");
    job = getenv("TEST_JOB");
    cr_assert(command && shim && simgpu && job, "run through meson test");
    strcpy(folder, "/tmp/headroom-ends-XXXXXX");
    cr_assert(mkdtemp(folder) != NULL);
    snprintf(stats, sizeof stats, "%s/log", folder);
    snprintf(stats_env, sizeof stats_env, "HEADROOM_STATS=%s", stats);
    snprintf(preload, sizeof preload, "LD_PRELOAD=%s", shim);
    snprintf(library_path, sizeof library_path, "LD_LIBRARY_PATH=%s", simgpu);
    snprintf(driver, sizeof driver, "HEADROOM_DRIVER=%s/libcuda.so.1", simgpu);
}

static void tear_down(void)
{
    unlink(stats);
    rmdir(folder);
}

TestSuite(ends, .init = set_up, .fini = tear_down, .timeout = 240);

static int count_entries(const char *path)
{
    int n = 0;
    DIR *dir = opendir(path);

    for (const struct dirent *e = dir ? readdir(dir) : NULL; e != NULL; e = readdir(dir)) {
        if (strstr(e->d_name, "headroom") != NULL || strstr(e->d_name, "simgpu") != NULL) {
            n++;
        }
    }
    if (dir != NULL) {
        closedir(dir);
    }
    return n;
}

static struct hr_test_result run_with_headroom(const char *mode)
{
    return hr_test_run(ARGV(command, "run", "--sim", "h200,vram=16M", "--stats", stats, "--", job, mode), NULL);
}

static void expect_report(const char *said)
{
    struct hr_test_result r = hr_test_run(ARGV(command, "report", stats), NULL);
    cr_expect(r.status == 0 && strstr(r.out, said) != NULL, "status %x: %s%s", r.status, r.out, r.err);
    hr_test_result_finish(&r);
}

Test(ends, a_job_beyond_the_gpu_ends_in_order_and_leaves_a_summary)
{
    struct hr_test_result r = run_with_headroom("plain");
    cr_expect(r.status == 0 && strcmp(r.out, "verified\n") == 0, "status %x: %s", r.status, r.err);
    hr_test_result_finish(&r);
    expect_report("normal, after");
}

Test(ends, a_job_that_forks_after_cuinit_goes_on)
{
    struct hr_test_result r = run_with_headroom("fork");
    cr_expect(r.status == 0 && strcmp(r.out, "verified\n") == 0, "status %x: %s", r.status, r.err);
    hr_test_result_finish(&r);
    expect_report("normal, after");
}

Test(ends, k44_an_exit_with_a_kernel_in_flight_keeps_the_status)
{
    struct hr_test_result r = run_with_headroom("exit");
    cr_expect(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 7, "status %x: %s", r.status, r.err);
    cr_expect(strcmp(r.out, "verified\n") == 0);
    hr_test_result_finish(&r);
}

Test(ends, k23_a_killed_job_leaves_nothing_behind_but_its_log)
{
    int before = count_entries("/dev/shm");
    struct hr_test_result r = run_with_headroom("kill");
    cr_expect(WIFSIGNALED(r.status) && WTERMSIG(r.status) == SIGKILL, "status %x: %s", r.status, r.err);
    hr_test_result_finish(&r);
    cr_expect(count_entries("/dev/shm") <= before);
    expect_report("without a summary");
}

Test(ends, a_bad_value_of_any_variable_is_named_once_and_the_default_used)
{
    size_t count, checked = 0;
    const struct hr_setting *settings = hr_config_settings(&count);

    for (size_t i = 0; i < count; i++) {
        char bad[96];
        if (settings[i].type == HR_TYPE_TEXT || strcmp(settings[i].flag, "log") == 0) {
            continue;
        }
        snprintf(bad, sizeof bad, "%s=!nonsense!", settings[i].env);
        struct hr_test_result r =
            hr_test_run(ARGV(job, "few"), ENV(preload, library_path, driver, stats_env, "SIMGPU=h200,vram=16M", bad));
        cr_expect(r.status == 0 && strcmp(r.out, "verified\n") == 0, "%s: status %x: %s", bad, r.status, r.err);
        cr_expect(hr_test_is_one_line(r.err) && strstr(r.err, settings[i].env) && strstr(r.err, settings[i].accepted),
                  "%s: stderr: %s", bad, r.err);
        hr_test_result_finish(&r);
        checked++;
    }
    cr_assert(checked >= 8);
}

Test(ends, a_missing_driver_is_an_error_of_the_job_and_no_crash)
{
    struct hr_test_result r = hr_test_run(
        ARGV(job, "plain"), ENV(preload, "HEADROOM_DRIVER=/nonexistent/libcuda.so.1", stats_env, "LD_LIBRARY_PATH"));
    cr_expect(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 3, "status %x: %s", r.status, r.err);
    cr_expect(strstr(r.err, "job: cuInit: ") != NULL, "stderr: %s", r.err);
    hr_test_result_finish(&r);
}

Test(ends, programs_without_cuda_notice_nothing)
{
    if (SANITIZED) {
        cr_skip_test("bash and python3 are not instrumented");
    }
    struct hr_test_result r = hr_test_run(ARGV("bash", "-c", "echo a | cat; (exit 5)"), ENV(preload, stats_env));
    cr_expect(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 5 && strcmp(r.out, "a\n") == 0 && r.err[0] == '\0',
              "status %x: %s%s", r.status, r.out, r.err);
    hr_test_result_finish(&r);
    r = hr_test_run(ARGV("python3", "-c", "import subprocess, ctypes; print(subprocess.run(['true']).returncode)"),
                    ENV(preload, stats_env));
    cr_expect(r.status == 0 && strcmp(r.out, "0\n") == 0 && r.err[0] == '\0', "status %x: %s%s", r.status, r.out,
              r.err);
    hr_test_result_finish(&r);
    cr_expect(access(stats, F_OK) != 0, "a log was written");
}
