/* `headroom doctor` as a whole program: on simulated nodes, drivers of other versions and drivers that misbehave; and its reader of ELF files. */
#include <cjson/cJSON.h>
#include <criterion/criterion.h>
#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/doctor.h"
#include "support/sanitizer.h"
#include "support/spawn.h"

#define ARGV(...) ((const char *const[]){__VA_ARGS__, NULL})
#define ENV(...) ((const char *const[]){__VA_ARGS__, NULL})
#define SMALL "h200,vram=64M"

static const char *command, *probe, *odd, *variants, *shim;
static char folder[64], odd_env[4200];

static void set_up(void)
{
    command = getenv("TEST_HEADROOM");
    probe = getenv("TEST_PROBE");
    odd = getenv("TEST_ODD_DRIVER");
    variants = getenv("TEST_VARIANTS");
    shim = getenv("TEST_SHIM");
    cr_assert(command && probe && odd && variants && shim, "run through meson test");
    for (char **variable = environ; *variable;) {
        char name[128];
        snprintf(name, sizeof name, "%.*s", (int)strcspn(*variable, "="), *variable);
        if (strncmp(name, "HEADROOM_", 9) == 0 || strcmp(name, "LD_PRELOAD") == 0 ||
            strcmp(name, "LD_LIBRARY_PATH") == 0 || strcmp(name, "SIMGPU") == 0)
            unsetenv(name);
        else
            variable++;
    }
    setenv("SIMGPU_LOG", "off", 1);
    snprintf(odd_env, sizeof odd_env, "HEADROOM_DRIVER=%s", odd);
    strcpy(folder, "/tmp/headroom-doctor-XXXXXX");
    cr_assert(mkdtemp(folder) != NULL);
}

static void tear_down(void)
{
    char line[128];
    snprintf(line, sizeof line, "rm -rf %s", folder);
    cr_expect(system(line) == 0);
}

TestSuite(doctor, .init = set_up, .fini = tear_down, .timeout = 120);

/* ---- what it says ---- */

static cJSON *examine(const char *const *argv, const char *const *env)
{
    struct hr_test_result r = hr_test_run(argv, env);
    cJSON *report = cJSON_Parse(r.out);

    cr_assert(report != NULL, "no JSON: %s%s", r.out, r.err);
    cr_expect(r.err[0] == '\0', "stderr: %s", r.err);
    bool bad = cJSON_GetObjectItem(report, "bad")->valuedouble > 0;
    cr_expect(WIFEXITED(r.status) && WEXITSTATUS(r.status) == (bad ? 1 : 0), "status %x: %s", r.status, r.out);
    hr_test_result_finish(&r);
    return report;
}

/* The finding of that level and topic that says this; NULL: none. */
static const cJSON *finding(const cJSON *report, const char *level, const char *topic, const char *says)
{
    const cJSON *one;

    cJSON_ArrayForEach(one, cJSON_GetObjectItem(report, "findings"))
    {
        if (strcmp(cJSON_GetObjectItem(one, "level")->valuestring, level) == 0 &&
            strcmp(cJSON_GetObjectItem(one, "topic")->valuestring, topic) == 0 &&
            strstr(cJSON_GetObjectItem(one, "text")->valuestring, says) != NULL)
            return one;
    }
    return NULL;
}

static void expect_finding(const cJSON *report, const char *level, const char *topic, const char *says)
{
    char *all = cJSON_Print(report);
    cr_expect(finding(report, level, topic, says) != NULL, "no '%s' of %s and %s in %s", says, level, topic, all);
    free(all);
}

static void expect_program(const char *path, const char *level, const char *says)
{
    cJSON *report = examine(ARGV(command, "doctor", "--json", "--sim", SMALL, path), NULL);
    expect_finding(report, level, "program", says);
    cJSON_Delete(report);
}

Test(doctor, a_good_machine_has_no_bad_finding_and_its_lines_are_counted)
{
    cJSON *report = examine(ARGV(command, "doctor", "--json", "--sim", "dgx1v,vram=64M", probe), NULL);
    const cJSON *one;
    int count[4] = {0};

    expect_finding(report, "ok", "library", shim);
    expect_finding(report, "ok", "settings", "understood");
    expect_finding(report, "ok", "driver", "CUDA 13.0");
    expect_finding(report, "ok", "gpu", "GPU 7 (Tesla V100-SXM2-16GB) has 64 MiB");
    expect_finding(report, "note", "peers", "of 56 pairs of GPUs 32 reach");
    expect_finding(report, "ok", "host", "node 0");
    expect_finding(report, "ok", "exports", "all ");
    expect_finding(report, "ok", "program", "takes preloaded libraries");
    cJSON_ArrayForEach(one, cJSON_GetObjectItem(report, "findings"))
    {
        for (int level = 0; level < 4; level++)
            count[level] += strcmp(cJSON_GetObjectItem(one, "level")->valuestring,
                                   ((const char *[]){"ok", "note", "warn", "bad"})[level]) == 0;
    }
    cr_expect_eq(count[0], cJSON_GetObjectItem(report, "ok")->valueint);
    cr_expect_eq(count[1], cJSON_GetObjectItem(report, "note")->valueint);
    cr_expect_eq(count[2], cJSON_GetObjectItem(report, "warn")->valueint);
    cr_expect_eq(count[3], 0);
    cJSON_Delete(report);
}

Test(doctor, as_lines_each_begins_with_its_level_and_advice_is_below)
{
    struct hr_test_result r = hr_test_run(ARGV(command, "doctor", "--sim", SMALL, "/nonexistent/program"), NULL);
    bool advice = false;

    cr_expect(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 1, "status %x", r.status);
    cr_expect(strstr(r.out, "\nbad   program   /nonexistent/program is no program") != NULL, "%s", r.out);
    for (char *rest = NULL, *line = strtok_r(r.out, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        bool deeper = strncmp(line, "                -> ", 19) == 0;
        cr_expect(deeper || strncmp(line, "ok    ", 6) == 0 || strncmp(line, "note  ", 6) == 0 ||
                      strncmp(line, "warn  ", 6) == 0 || strncmp(line, "bad   ", 6) == 0,
                  "%s", line);
        advice = advice || deeper;
    }
    cr_expect(advice || SANITIZED); /* of a limit at least, where there is one */
    hr_test_result_finish(&r);
}

Test(doctor, what_is_asked_for_wrongly_is_refused_in_one_line)
{
    const char *const *calls[] = {ARGV(command, "doctor", "--nope"),         ARGV(command, "doctor", "--sim"),
                                  ARGV(command, "doctor", "--sim="),         ARGV(command, "doctor", "-"),
                                  ARGV(command, "doctor", "--wait", "0"),    ARGV(command, "doctor", "--wait=1x"),
                                  ARGV(command, "doctor", "--wait", "3601"), ARGV(command, "doctor", "--wait", "-1"),
                                  ARGV(command, "doctor", "--wait"),         ARGV(command, "doctor", "ls", "cat"),
                                  ARGV(command, "doctor", "--jsonx", "cat")};

    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        struct hr_test_result r = hr_test_run(calls[i], NULL);
        cr_expect(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 2, "call %zu: status %x", i, r.status);
        cr_expect(hr_test_is_one_line(r.err) && strncmp(r.err, "headroom: doctor: ", 18) == 0, "call %zu: %s", i,
                  r.err);
        cr_expect(r.out[0] == '\0');
        hr_test_result_finish(&r);
    }
}

Test(doctor, a_machine_that_does_not_exist_is_named_by_simgpu_and_is_bad)
{
    struct hr_test_result r = hr_test_run(ARGV(command, "doctor", "--sim", "nope"), ENV("SIMGPU_LOG"));

    cr_expect(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 1, "status %x", r.status);
    cr_expect(hr_test_is_one_line(r.err) && strstr(r.err, "nope") != NULL, "%s", r.err);
    cr_expect(strstr(r.out, "cuInit gives CUDA_ERROR_INVALID_VALUE") != NULL, "%s", r.out);
    hr_test_result_finish(&r);
}

/* ---- drivers ---- */

/* Whether the library says under that driver that it stands aside. */
static bool stands_aside(const char *driver)
{
    const char *job = getenv("TEST_JOB");
    char path[4300];
    cr_assert(job != NULL);
    snprintf(path, sizeof path, "LD_LIBRARY_PATH=%s", driver);
    struct hr_test_result r = hr_test_run(ARGV(command, "run", "--driver", driver, "--stats", "off", "--", job, "few"),
                                          ENV(path, "SIMGPU=h200,vram=64M"));
    bool aside = strstr(r.err, "steps aside") != NULL;
    cr_expect(r.status == 0, "%s: status %x: %s", driver, r.status, r.err);
    hr_test_result_finish(&r);
    return aside;
}

Test(doctor, says_of_old_drivers_what_the_library_does_with_them)
{
    static const struct {
        const char *name, *version, *level;
    } drivers[] = {{"114", "CUDA 11.4", "note"},
                   {"118", "CUDA 11.8", "note"},
                   {"122", "CUDA 12.2", "note"},
                   {"124", "CUDA 12.4", "ok"}};

    for (size_t i = 0; i < sizeof drivers / sizeof *drivers; i++) {
        char driver[4200], setting[4300];
        snprintf(driver, sizeof driver, "%s/%s", variants, drivers[i].name);
        snprintf(setting, sizeof setting, "HEADROOM_DRIVER=%s", driver);
        cJSON *report = examine(ARGV(command, "doctor", "--json"), ENV(setting, "SIMGPU=h200,vram=64M"));
        expect_finding(report, drivers[i].level, "driver", drivers[i].version);
        cr_expect(!stands_aside(driver), "%s", drivers[i].name); /* else it would have to be bad */
        expect_finding(report, i < 2 ? "warn" : "ok", "host", "");
        expect_finding(report, "ok", "exports", "");
        cJSON_Delete(report);
    }
}

Test(doctor, host_memory_that_kernels_cannot_use_is_warned_of)
{
    cJSON *report = examine(ARGV(command, "doctor", "--json", "--sim", SMALL), ENV("SIMGPU_DENY=host_numa"));
    expect_finding(report, "warn", "host", "no chunks in host memory");
    cJSON_Delete(report);
}

Test(doctor, a_driver_that_hangs_is_given_up)
{
    cJSON *report = examine(ARGV(command, "doctor", "--json", "--wait", "1"), ENV(odd_env, "TEST_ODD=hang"));
    expect_finding(report, "ok", "driver", "CUDA 12.8");
    expect_finding(report, "bad", "driver", "it has not answered for 1 s; it was about to start the driver (cuInit)");
    cJSON_Delete(report);
}

Test(doctor, a_driver_that_dies_or_leaves_is_told_and_the_rest_follows)
{
    cJSON *report = examine(ARGV(command, "doctor", "--json", probe), ENV(odd_env, "TEST_ODD=crash"));
    expect_finding(report, "bad", "driver", "it crashed (signal 9); it was about to start the driver (cuInit)");
    expect_finding(report, "ok", "program", "takes preloaded libraries");
    cJSON_Delete(report);
    report = examine(ARGV(command, "doctor", "--json", probe), ENV(odd_env, "TEST_ODD=leave"));
    expect_finding(report, "bad", "driver", "it ended the process");
    expect_finding(report, "ok", "program", "takes preloaded libraries");
    cJSON_Delete(report);
}

Test(doctor, errors_of_the_start_are_named_and_exports_that_we_lack_are_listed)
{
    cJSON *report = examine(ARGV(command, "doctor", "--json"), ENV(odd_env, "TEST_ODD=broken"));
    expect_finding(report, "bad", "driver", "cuInit gives CUDA_ERROR_UNKNOWN");
    expect_finding(report, "note", "exports",
                   "1 of the driver's 5 functions are not known here: cuOddFunctionOfThisDriver");
    cJSON_Delete(report);
    report = examine(ARGV(command, "doctor", "--json"), ENV(odd_env, "TEST_ODD=none", "CUDA_VISIBLE_DEVICES=x"));
    expect_finding(report, "bad", "driver", "CUDA_ERROR_NO_DEVICE, with CUDA_VISIBLE_DEVICES=x");
    cJSON_Delete(report);
    report = examine(ARGV(command, "doctor", "--json"), ENV(odd_env, "TEST_ODD=few"));
    expect_finding(report, "bad", "driver", "CUDA 11.2, which headroom is not made for");
    expect_finding(report, "bad", "gpu", "the driver shows no GPU");
    cJSON_Delete(report);
}

Test(doctor, without_a_driver_it_says_so)
{
    struct hr_test_result r = hr_test_run(ARGV(command, "run", "--", probe, "exit", "0"), NULL);
    bool none = strstr(r.err, "no CUDA driver") != NULL;
    cJSON *report = examine(ARGV(command, "doctor", "--json", probe), NULL);

    cr_expect_eq(none, finding(report, "bad", "driver", "there is no libcuda.so.1") != NULL);
    expect_finding(report, "ok", "program", "takes preloaded libraries");
    cJSON_Delete(report);
    hr_test_result_finish(&r);
}

/* LD_PRELOAD set for a whole session must not make the command ask itself. */
Test(doctor, works_where_the_library_is_preloaded_into_it)
{
    char preload[4200];
    snprintf(preload, sizeof preload, "LD_PRELOAD=%s", shim);
    cJSON *report = examine(ARGV(command, "doctor", "--json", "--sim", SMALL), ENV(preload));
    expect_finding(report, "ok", "driver", "CUDA 13.0");
    cr_expect(finding(report, "note", "settings", "LD_PRELOAD") == NULL);
    cJSON_Delete(report);
    struct hr_test_result r = hr_test_run(ARGV(command, "topo", "--sim", SMALL), ENV(preload));
    cr_expect(r.status == 0 && strstr(r.out, "GPU0") != NULL, "%s%s", r.out, r.err);
    hr_test_result_finish(&r);
}

/* ---- this machine ---- */

Test(doctor, settings_that_are_wrong_are_named_once_with_what_is_taken)
{
    cJSON *report = examine(
        ARGV(command, "doctor", "--json", "--sim", SMALL),
        ENV("HEADROOM_RATIO=much", "HEADROOM_RAITO=4", "HEADROOM_LEAD=5ms", "HEADROOM_VRAM=50%", "HEADROOM_DISABLE=1"));
    expect_finding(report, "warn", "settings", "HEADROOM_RATIO=much is not understood: the default, auto, is used");
    expect_finding(report, "warn", "settings", "HEADROOM_RAITO is no setting");
    expect_finding(report, "note", "settings", "HEADROOM_LEAD has no effect in this version");
    expect_finding(report, "note", "settings", "switched off");
    cr_expect(finding(report, "ok", "settings", "") == NULL);
    const cJSON *one = finding(report, "warn", "settings", "HEADROOM_RATIO");
    cr_expect_str_eq(cJSON_GetObjectItem(one, "advice")->valuestring,
                     "HEADROOM_RATIO takes auto, or a number from 1 to 1000");
    cJSON_Delete(report);
}

Test(doctor, a_stats_log_that_cannot_be_written_and_a_small_budget_are_warned_of)
{
    cJSON *report = examine(ARGV(command, "doctor", "--json", "--sim", SMALL),
                            ENV("HEADROOM_STATS=/nonexistent/folder/log", "HEADROOM_HOST=16M"));
    expect_finding(report, "warn", "stats", "/nonexistent/folder/");
    expect_finding(report, "warn", "memory", "a job now gets up to 0.0 GiB");
    cJSON_Delete(report);
}

Test(doctor, limits_of_the_process_are_told)
{
    char line[4400];
    snprintf(line, sizeof line, "ulimit -n 64; ulimit -v %s; exec '%s' doctor --json",
             SANITIZED ? "unlimited" : "100000000", command);
    cJSON *report = examine(ARGV("/bin/sh", "-c", line), NULL);
    expect_finding(report, "warn", "limits", "may open 64 files");
    if (!SANITIZED) /* which need all addresses */
        expect_finding(report, "bad", "limits", "95 GiB of addresses");
    cJSON_Delete(report);
}

/* As in a container that has neither. */
Test(doctor, works_without_sys)
{
    char line[4400];
    struct hr_test_result r = hr_test_run(ARGV("unshare", "-m", "mount", "-t", "tmpfs", "none", "/sys"), NULL);
    bool can = r.status == 0;
    hr_test_result_finish(&r);
    if (!can) {
        fprintf(stderr, "not run: no mount can be made here\n");
        return;
    }
    snprintf(line, sizeof line, "mount -t tmpfs none /sys && exec '%s' doctor --json --sim %s '%s'", command, SMALL,
             probe);
    cJSON *report = examine(ARGV("unshare", "-m", "/bin/sh", "-c", line), NULL);
    expect_finding(report, "ok", "host", "");
    expect_finding(report, "ok", "program", "takes preloaded libraries");
    cJSON_Delete(report);
}

/* ---- programs ---- */

static char *read_file(const char *path, size_t *bytes_out)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    cr_assert(fd >= 0 && fstat(fd, &st) == 0, "%s", path);
    char *bytes = malloc((size_t)st.st_size);
    cr_assert(bytes != NULL && read(fd, bytes, (size_t)st.st_size) == st.st_size);
    close(fd);
    *bytes_out = (size_t)st.st_size;
    return bytes;
}

static const char *write_program(const char *name, const void *bytes, size_t count, mode_t mode)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0700);
    cr_assert(fd >= 0 && write(fd, bytes, count) == (ssize_t)count && fchmod(fd, mode) == 0);
    close(fd);
    return path;
}

static const char *write_script(const char *name, const char *text)
{
    return write_program(name, text, strlen(text), 0700);
}

Test(doctor, programs_that_nothing_can_be_preloaded_into_are_told)
{
    size_t count;
    char *bytes = read_file(probe, &count);
    Elf64_Ehdr *header = (void *)bytes;

    expect_program(getenv("TEST_STATIC"), "bad", "linked statically");
    expect_program(getenv("TEST_NEEDS_ASAN"), "warn", "built with AddressSanitizer");
    header->e_machine = EM_PPC64;
    expect_program(write_program("foreign", bytes, count, 0700), "bad", "for another kind of machine");
    header->e_machine = EM_X86_64;
    bytes[EI_CLASS] = ELFCLASS32;
    expect_program(write_program("narrow", bytes, count, 0700), "bad", "for another kind of machine");
    free(bytes);
    bytes = read_file(probe, &count);
    char *loader = memmem(bytes, count, "/ld-linux", 9);
    cr_assert(loader != NULL);
    memcpy(loader + 4, "musl-", 5); /* NOLINT(bugprone-not-null-terminated-result) in the middle of a name */
    expect_program(write_program("musl", bytes, count, 0700), "bad", "made for the C library musl");
    memcpy(loader + 4, "other", 5); /* NOLINT(bugprone-not-null-terminated-result) */
    expect_program(write_program("other", bytes, count, 0700), "bad", "which is not there");
    free(bytes);
    expect_program(write_script("text", "just words\n"), "bad", "neither an ELF program nor a script");
    expect_program(write_program("empty", "", 0, 0700), "bad", "neither an ELF program nor a script");
    expect_program("/", "bad", "no program that can be run");
    expect_program("no-such-program-anywhere", "bad", "no program that can be run");
    expect_program(write_program("plain", "x", 1, 0600), "bad", "no program that can be run");
}

Test(doctor, programs_with_privileges_of_their_own_are_told)
{
    struct statvfs fs;
    size_t count;
    char *bytes = read_file(probe, &count);
    const char *path = write_program("privileged", bytes, count, 04755);

    free(bytes);
    expect_program(path, "ok", "takes preloaded libraries"); /* its user is who asks */
    if (getuid() != 0 || (statvfs(path, &fs) == 0 && (fs.f_flag & ST_NOSUID))) {
        fprintf(stderr, "not run: a program of another user cannot be made here\n");
        return;
    }
    cr_assert(chown(path, 65534, getgid()) == 0 && chmod(path, 04755) == 0);
    expect_program(path, "bad", "changes its user or group");
    cr_assert(chown(path, getuid(), 65534) == 0 && chmod(path, 02755) == 0);
    expect_program(path, "bad", "changes its user or group");
}

Test(doctor, scripts_are_followed_to_their_interpreter)
{
    char text[4400];

    snprintf(text, sizeof text, "#! %s args\n", probe);
    expect_program(write_script("one", text), "ok", "probe takes preloaded libraries");
    snprintf(text, sizeof text, "#!%s/one\n", folder);
    expect_program(write_script("two", text), "ok", "probe takes preloaded libraries");
    snprintf(text, sizeof text, "#!/usr/bin/env -S A=b %s x\n", probe);
    expect_program(write_script("three", text), "ok", "probe takes preloaded libraries");
    expect_program(write_script("four", "#!/nonexistent/python3\n"), "bad", "/nonexistent/python3, which is not there");
    expect_program(write_script("five", "#!/usr/bin/env no-such-program-anywhere\n"), "bad", "which is not there");
    snprintf(text, sizeof text, "#!%s/circle\n", folder);
    expect_program(write_script("circle", text), "bad", "neither an ELF program nor a script");
}

/* Whatever a file holds, nothing outside of it is read (AddressSanitizer watches) and an answer comes. */
static void count_name(const char *name, void *arg)
{
    *(size_t *)arg += strlen(name);
}

Test(doctor, its_reader_of_elf_files_survives_any_file)
{
    struct hr_elf_program program;
    size_t count, names = 0;
    char *bytes = read_file(odd, &count);
    unsigned random = 12345;

    cr_assert(hr_elf_symbols(odd, "cu", count_name, &names) && names > 0);
    for (size_t cut = 0; cut < 4096 && cut < count; cut += 37) {
        const char *path = write_program("cut", bytes, cut, 0700);
        hr_elf_program(path, &program);
        hr_elf_symbols(path, "cu", count_name, &names);
    }
    for (int round = 0; round < 400; round++) {
        char *copy = malloc(count);
        memcpy(copy, bytes, count);
        for (int change = 0; change < 8; change++) { /* in the tables: the headers, or the sections' at the end */
            random = random * 1664525 + 1013904223;
            size_t at = change % 2 ? (random >> 8) % 1024 : count - 1 - (random >> 8) % 2048;
            copy[at] = (char)(random >> 4);
        }
        const char *path = write_program("changed", copy, count, 0700);
        hr_elf_program(path, &program);
        hr_elf_symbols(path, "cu", count_name, &names);
        free(copy);
    }
    free(bytes);
    hr_elf_program(folder, &program);
    cr_expect_eq(program.kind, HR_ELF_NONE);
    hr_elf_program("/dev/zero", &program);
    cr_expect_eq(program.kind, HR_ELF_NONE);
}
