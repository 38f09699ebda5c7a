/* `headroom run` and `headroom sim` as whole programs. Paths come from the environment that meson sets. */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/config.h"
#include "support/spawn.h"

#define ARGV(...) ((const char *const[]){__VA_ARGS__, NULL})
#define ENV(...) ((const char *const[]){__VA_ARGS__, NULL})

static const char *command, *probe, *shim, *simgpu;

static void set_up(void)
{
    command = getenv("TEST_HEADROOM");
    probe = getenv("TEST_PROBE");
    shim = getenv("TEST_SHIM");
    simgpu = getenv("TEST_SIMGPU");
    cr_assert(command && probe && shim && simgpu, "run through meson test");
    unsetenv("SIMGPU");
    unsetenv("LD_LIBRARY_PATH");
    unsetenv("HEADROOM_DRIVER");
}

TestSuite(run, .init = set_up, .timeout = 60);
TestSuite(sim, .init = set_up, .timeout = 60);

static void expect_refusal(const char *const *argv, int status, const char *said)
{
    struct hr_test_result r = hr_test_run(argv, NULL);
    cr_expect(WIFEXITED(r.status) && WEXITSTATUS(r.status) == status, "status %x, stderr: %s", r.status, r.err);
    cr_expect(hr_test_is_one_line(r.err), "stderr: %s", r.err);
    cr_expect(strncmp(r.err, "headroom: ", 10) == 0, "stderr: %s", r.err);
    cr_expect(strstr(r.err, said) != NULL, "'%s' is not in: %s", said, r.err);
    cr_expect(r.out[0] == '\0', "stdout: %s", r.out);
    hr_test_result_finish(&r);
}

static void expect_output(const char *const *argv, const char *const *env, const char *out)
{
    struct hr_test_result r = hr_test_run(argv, env);
    cr_expect(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 0, "status %x, stderr: %s", r.status, r.err);
    cr_expect(strcmp(r.out, out) == 0, "stdout: %s, not %s", r.out, out);
    hr_test_result_finish(&r);
}

Test(run, help_names_every_setting_with_what_it_takes)
{
    struct hr_test_result r = hr_test_run(ARGV(command, "run", "--help"), NULL);
    size_t count;
    const struct hr_setting *settings = hr_config_settings(&count);

    cr_assert(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 0);
    cr_assert(count > 10);
    for (size_t i = 0; i < count; i++) {
        char flag[64];
        snprintf(flag, sizeof flag, "--%s ", settings[i].flag);
        cr_expect(strstr(r.out, flag) != NULL, "no %s", flag);
        cr_expect(strstr(r.out, settings[i].env) != NULL, "no %s", settings[i].env);
        cr_expect(strstr(r.out, settings[i].accepted) != NULL, "no '%s'", settings[i].accepted);
    }
    hr_test_result_finish(&r);
}

Test(run, every_subcommand_has_help_and_the_version_is_told)
{
    expect_output(ARGV(command, "--version"), NULL, "headroom " HR_VERSION "\n");
    const char *const *calls[] = {ARGV(command, "--help"), ARGV(command, "sim", "--help"),
                                  ARGV(command, "report", "--help"), ARGV(command, "run", "-h")};
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        struct hr_test_result r = hr_test_run(calls[i], NULL);
        cr_expect(r.status == 0 && strncmp(r.out, "headroom", 8) == 0 && r.err[0] == '\0');
        hr_test_result_finish(&r);
    }
}

Test(run, what_is_asked_for_wrongly_is_refused_in_one_line)
{
    expect_refusal(ARGV(command), 2, "subcommand");
    expect_refusal(ARGV(command, "rnu"), 2, "'rnu'");
    expect_refusal(ARGV(command, "run"), 2, "no command");
    expect_refusal(ARGV(command, "run", "--"), 2, "no command");
    expect_refusal(ARGV(command, "run", "--ratio"), 2, "--ratio needs a value");
    expect_refusal(ARGV(command, "run", "--ratio", "--", probe), 2, "--ratio needs a value");
    expect_refusal(ARGV(command, "run", "--ratoi", "4", "--", probe), 2, "--ratoi");
    expect_refusal(ARGV(command, "run", "--HEADROOM_RATIO", "4", "--", probe), 2, "HEADROOM_RATIO");
    expect_refusal(ARGV(command, "run", "-r", "4", "--", probe), 2, "-r");
    expect_refusal(ARGV(command, "run", "--sim", "", "--", probe), 2, "--sim");
    expect_refusal(ARGV(command, "run", "--sim", "h200", "--driver", "/x", "--", probe), 2, "--driver");
    expect_refusal(ARGV(command, "sim"), 2, "no command");
    expect_refusal(ARGV(command, "sim", "h200", "--"), 2, "no command");
    expect_refusal(ARGV(command, "sim", "h200", probe), 2, "--");
}

Test(run, a_bad_value_of_any_setting_is_refused_with_what_is_accepted)
{
    size_t count, checked = 0;
    const struct hr_setting *settings = hr_config_settings(&count);

    for (size_t i = 0; i < count; i++) {
        char flag[64], joined[96];
        if (settings[i].type == HR_TYPE_TEXT) {
            continue; /* any text is a path */
        }
        snprintf(flag, sizeof flag, "--%s", settings[i].flag);
        snprintf(joined, sizeof joined, "--%s=!nonsense!", settings[i].flag);
        expect_refusal(ARGV(command, "run", flag, "!nonsense!", "--", probe), 2, settings[i].accepted);
        expect_refusal(ARGV(command, "run", joined, probe), 2, "!nonsense!");
        checked++;
    }
    cr_assert(checked >= 8);
}

Test(run, flags_become_the_variables_of_the_job)
{
    expect_output(ARGV(command, "run", "--ratio", "6", "--sim", "h200", "--", probe, "env", "HEADROOM_RATIO"), NULL,
                  "6\n");
    expect_output(ARGV(command, "run", "--vram=64M", "--sim=h200", probe, "env", "HEADROOM_VRAM"), NULL, "64M\n");
    expect_output(ARGV(command, "run", "--sim", "h200", "--commit", "lazy", probe, "env", "HEADROOM_COMMIT"),
                  ENV("HEADROOM_COMMIT=eager"), "lazy\n");
}

Test(run, sim_gives_the_job_a_simulated_node_below_the_shim)
{
    char want[4200];

    expect_output(ARGV(command, "run", "--sim", "h200,vram=64M", "--", probe, "env", "SIMGPU"), NULL,
                  "h200,vram=64M\n");
    snprintf(want, sizeof want, "%s/libcuda.so.1\n", simgpu);
    expect_output(ARGV(command, "run", "--sim", "h200", "--", probe, "env", "HEADROOM_DRIVER"),
                  ENV("HEADROOM_DRIVER=/x"), want);
    snprintf(want, sizeof want, "%s\n", shim);
    expect_output(ARGV(command, "run", "--sim", "h200", "--", probe, "env", "LD_PRELOAD"), NULL, want);
    snprintf(want, sizeof want, "%s:/some/where\n", simgpu);
    expect_output(ARGV(command, "run", "--sim", "h200", "--", probe, "env", "LD_LIBRARY_PATH"),
                  ENV("LD_LIBRARY_PATH=/some/where"), want);
}

Test(run, what_was_preloaded_before_stays_preloaded)
{
    char want[8400], env[4200];

    /* A library that is there, so that the loader does not complain into stderr. */
    snprintf(env, sizeof env, "LD_PRELOAD=%s", shim);
    snprintf(want, sizeof want, "%s:%s\n", shim, shim);
    expect_output(ARGV(command, "run", "--sim", "h200", "--", probe, "env", "LD_PRELOAD"), ENV(env), want);
}

Test(run, the_job_keeps_its_arguments_status_pid_and_signals)
{
    expect_output(ARGV(command, "run", "--sim", "h200", "--", probe, "args", "--", "--ratio", "a b", ""), NULL,
                  "[--][--ratio][a b][]\n");
    struct hr_test_result r = hr_test_run(ARGV(command, "run", "--sim", "h200", "--", probe, "exit", "37"), NULL);
    cr_expect(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 37, "status %x", r.status);
    cr_expect(r.err[0] == '\0', "stderr: %s", r.err);
    hr_test_result_finish(&r);

    r = hr_test_run(ARGV(command, "run", "--sim", "h200", "--", probe, "pid"), NULL);
    cr_expect(strtol(r.out, NULL, 10) == r.pid);
    hr_test_result_finish(&r);

    r = hr_test_run(ARGV(command, "run", "--sim", "h200", "--", probe, "signal", "15"), NULL);
    cr_expect(WIFSIGNALED(r.status) && WTERMSIG(r.status) == SIGTERM, "status %x", r.status);
    hr_test_result_finish(&r);
}

Test(run, a_signal_from_outside_reaches_the_job)
{
    struct hr_test_child child = hr_test_start(ARGV(command, "run", "--sim", "h200", "--", probe, "wait"), NULL);
    char said[8] = "";

    while (pread(child.out_fd, said, sizeof said - 1, 0) < 7) {
        cr_assert(waitpid(child.pid, NULL, WNOHANG) == 0, "the job ended too soon");
        usleep(1000);
    }
    kill(child.pid, SIGINT);
    struct hr_test_result r = hr_test_wait(&child);
    cr_expect(WIFSIGNALED(r.status) && WTERMSIG(r.status) == SIGINT, "status %x", r.status);
    hr_test_result_finish(&r);
}

Test(run, a_job_that_cannot_start_gives_the_shells_status)
{
    expect_refusal(ARGV(command, "run", "--sim", "h200", "--", "/nonexistent/job"), 127, "/nonexistent/job");
    expect_refusal(ARGV(command, "run", "--sim", "h200", "--", "/"), 126, "cannot run /");
    expect_refusal(ARGV(command, "sim", "h200", "--", "/nonexistent/job"), 127, "/nonexistent/job");
}

Test(run, a_machine_without_a_driver_is_told_in_one_line_and_the_job_runs)
{
    struct hr_test_result r =
        hr_test_run(ARGV(command, "run", "--", probe, "exit", "5"), ENV("HEADROOM_DRIVER=/nonexistent/libcuda.so.1"));
    cr_expect(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 5, "status %x", r.status);
    cr_expect(hr_test_is_one_line(r.err) && strstr(r.err, "no CUDA driver") != NULL, "stderr: %s", r.err);
    hr_test_result_finish(&r);
}

Test(run, a_driver_in_the_loaders_path_is_noticed)
{
    char env[4200];

    snprintf(env, sizeof env, "LD_LIBRARY_PATH=%s", simgpu);
    struct hr_test_result r = hr_test_run(ARGV(command, "run", "--", probe, "exit", "5"), ENV(env));
    cr_expect(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 5, "status %x", r.status);
    cr_expect(r.err[0] == '\0', "stderr: %s", r.err);
    hr_test_result_finish(&r);
}

Test(sim, gives_the_job_a_simulated_node_and_no_shim)
{
    char want[4200];

    expect_output(ARGV(command, "sim", "h200,vram=64M", "--", probe, "env", "SIMGPU"), NULL, "h200,vram=64M\n");
    expect_output(ARGV(command, "sim", "--", probe, "env", "SIMGPU"), ENV("SIMGPU=h200,gpus=2"), "h200,gpus=2\n");
    expect_output(ARGV(command, "sim", "--", probe, "env", "SIMGPU"), NULL, "(not set)\n");
    expect_output(ARGV(command, "sim", "--", probe, "env", "LD_PRELOAD"), ENV("LD_PRELOAD"), "(not set)\n");
    expect_output(ARGV(command, "sim", "--", probe, "env", "HEADROOM_DRIVER"), NULL, "(not set)\n");
    snprintf(want, sizeof want, "%s\n", simgpu);
    expect_output(ARGV(command, "sim", "--", probe, "env", "LD_LIBRARY_PATH"), NULL, want);
}
