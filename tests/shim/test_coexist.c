/*
 * Others that are loaded with us, before or after: allocators, clocks, a profiler, sanitizers, private bindings and namespaces, auditors,
 * debuggers, C++ in a host that knows nothing of it. Jobs do the same as without us, and the others see what they would see.
 */
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/sanitizer.h"
#include "support/spawn.h"

#define ARGV(...) ((const char *const[]){__VA_ARGS__, NULL})
#define SMALL "SIMGPU=h200,vram=32M"
#define LARGE "SIMGPU=h200,vram=1G"
#define MOST_ENV 12

static const char *job, *library, *build;
static char library_path[4200], driver[4200];

static const char *need(const char *name)
{
    const char *value = getenv(name);
    cr_assert(value != NULL, "run through meson test (%s)", name);
    return value;
}

static void set_up(void)
{
    job = need("TEST_PROCESS_JOB");
    library = need("TEST_LIBRARY");
    build = need("TEST_COEXIST");
    snprintf(library_path, sizeof library_path, "LD_LIBRARY_PATH=%s", need("TEST_SIMGPU"));
    snprintf(driver, sizeof driver, "HEADROOM_DRIVER=%s/libcuda.so.1", need("TEST_SIMGPU"));
    unsetenv("LD_PRELOAD");
    setenv("HEADROOM_STATS", "off", 1);
}

TestSuite(coexist, .init = set_up, .timeout = 120);

static bool left_out(const char *why)
{
    fprintf(stderr, "not run: %s\n", why);
    return true;
}
static bool cannot_with_sanitizer(void)
{
    return SANITIZED && left_out("a sanitizer's runtime stands between the program and what is preloaded");
}

/* Of the test's own build; or NULL where it is none. */
static const char *part(const char *name)
{
    static char path[4][4200];
    static int next;
    char *at = path[next++ % 4];
    snprintf(at, sizeof path[0], "%s/%s", build, name);
    return at;
}

/* preload "" = nothing. */
static struct hr_test_result run(const char *const *argv, const char *machine, const char *preload,
                                 const char *const *more)
{
    const char *env[MOST_ENV] = {machine, library_path, driver};
    char list[3 * 4200];
    int n = 3;
    snprintf(list, sizeof list, "LD_PRELOAD=%s", preload);
    if (preload[0])
        env[n++] = list;
    for (; more && *more; more++) {
        cr_assert_lt(n, MOST_ENV - 1);
        env[n++] = *more;
    }
    return hr_test_run(argv, env);
}

static bool ended_with(const struct hr_test_result *r, int status)
{
    return WIFEXITED(r->status) && WEXITSTATUS(r->status) == status;
}

/* With this preloaded on the small GPU it says what it says natively on the large one, and nothing on stderr. */
static void says(const char *const *argv, const char *expected, const char *preload, const char *const *more)
{
    struct hr_test_result ours = run(argv, SMALL, preload, more);
    cr_expect(ended_with(&ours, 0), "%s under %s: 0x%x %s", argv[1], preload, (unsigned)ours.status, ours.err);
    cr_expect_str_eq(ours.out, expected, "%s under %s: %snot\n%s", argv[1], preload, ours.out, expected);
    cr_expect_str_eq(ours.err, "", "%s under %s: %s", argv[1], preload, ours.err);
    hr_test_result_finish(&ours);
}

static void same(const char *const *argv, const char *preload, const char *const *more)
{
    struct hr_test_result native = run(argv, LARGE, "", NULL);
    cr_assert(ended_with(&native, 0) && native.out[0], "natively: 0x%x %s", (unsigned)native.status, native.err);
    says(argv, native.out, preload, more);
    hr_test_result_finish(&native);
}

static void before_and_after(const char *other, const char *const *more)
{
    static const struct {
        const char *mode, *says;
    } jobs[] = {{"work", "worked with 1\n"}, {"threads", "all threads are done\n"}};
    char first[3 * 4200], last[3 * 4200];
    snprintf(first, sizeof first, "%s:%s", other, library);
    snprintf(last, sizeof last, "%s:%s", library, other);
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        says(ARGV(job, jobs[i].mode), jobs[i].says, first, more);
        says(ARGV(job, jobs[i].mode), jobs[i].says, last, more);
    }
    same(ARGV(job, "fork"), first, more);
}

/* ---- other preloads ---- */

static void beside_allocator(const char *soname)
{
    if (cannot_with_sanitizer())
        return;
    struct hr_test_result r = run(ARGV(need("TEST_PROBE"), "exit", "0"), SMALL, soname, NULL);
    bool there = r.err[0] == '\0'; /* else the loader says that it cannot be preloaded */
    hr_test_result_finish(&r);
    if (there)
        before_and_after(soname, NULL);
    else
        left_out("it is not installed (tests/setup.sh installs it)");
}

Test(coexist, jemalloc_before_and_after)
{
    beside_allocator("libjemalloc.so.2");
}

Test(coexist, tcmalloc_before_and_after)
{
    beside_allocator("libtcmalloc_minimal.so.4");
}

Test(coexist, a_clock_that_is_wrong_and_slow_before_and_after)
{
    if (!cannot_with_sanitizer())
        before_and_after(part("libshift_clock.so"), NULL);
}

/* The numbers of a line of a tool, each of which is the first of its part; how many there are. */
static int read_numbers(const char *line, unsigned long *numbers_out, int most)
{
    int n = 0;
    for (const char *at = line; at && n < most; at = strchr(at, ',')) {
        char *end;
        at += strspn(at, ", ");
        numbers_out[n] = strtoul(at, &end, 10);
        if (end == at)
            break;
        n++;
    }
    return n;
}

/* The job's look-ups go through the profiler, and so do its allocations where the profiler comes first or the job asks it. */
static void profiled(const char *preload)
{
    struct hr_test_result r = run(ARGV(need("TEST_JOB")), "SIMGPU=h200,vram=64M", preload, ARGV("TEST_PROFILE_FD=2"));
    unsigned long counted[3] = {0}; /* look-ups, allocations, how often libcuda was opened */
    cr_expect(ended_with(&r, 7), "%s: 0x%x %s", preload, (unsigned)r.status, r.err);
    cr_expect(read_numbers(r.err, counted, 3) == 3 && counted[0] > 0 && counted[1] > 0 && counted[2] > 0, "%s: %s",
              preload, r.err);
    cr_expect(hr_test_is_one_line(r.err), "%s", r.err);
    hr_test_result_finish(&r);
}

Test(coexist, k15_a_profiler_that_takes_look_ups_before_and_after)
{
    char list[3 * 4200];
    const char *profiler = part("libprofiler.so");
    if (cannot_with_sanitizer())
        return;
    before_and_after(profiler, NULL);
    snprintf(list, sizeof list, "%s:%s", profiler, library);
    profiled(list);
    snprintf(list, sizeof list, "%s:%s", library, profiler);
    profiled(list);
}

Test(coexist, all_of_them_at_once)
{
    char list[4 * 4200];
    if (cannot_with_sanitizer())
        return;
    snprintf(list, sizeof list, "%s:%s:%s", part("libprofiler.so"), library, part("libshift_clock.so"));
    same(ARGV(job, "spawn"), list, NULL);
    snprintf(list, sizeof list, "%s:%s:%s", part("libshift_clock.so"), library, part("libprofiler.so"));
    same(ARGV(job, "spawn"), list, NULL);
}

/* ---- sanitizers in the job alone ---- */

Test(coexist, a_job_with_address_sanitizer)
{
    const char *sanitized = getenv("TEST_ASAN_JOB"), *runtime = getenv("TEST_ASAN_RUNTIME");
    char list[2 * 4200];
    if (!sanitized || !runtime) {
        left_out("this compiler has no shared AddressSanitizer, or everything is built with it");
        return;
    }
    same(ARGV(sanitized, "work"), library, ARGV("ASAN_OPTIONS=verify_asan_link_order=0"));
    same(ARGV(sanitized, "threads"), library, ARGV("ASAN_OPTIONS=verify_asan_link_order=0"));
    snprintf(list, sizeof list, "%s:%s", runtime, library);
    same(ARGV(sanitized, "work"), list, ARGV("ASAN_OPTIONS=verify_asan_link_order=1"));
    struct hr_test_result r =
        run(ARGV(sanitized, "work"), SMALL, library, ARGV("ASAN_OPTIONS=verify_asan_link_order=1"));
    cr_expect(!ended_with(&r, 0) && strstr(r.err, "runtime does not come first") != NULL,
              "as `headroom doctor` says: %s", r.err);
    hr_test_result_finish(&r);
}

/* ---- bindings and namespaces of their own ---- */

Test(coexist, libraries_that_bind_deeply_globally_or_locally)
{
    if (cannot_with_sanitizer())
        return;
    same(ARGV(part("coexist_host"), "deepbind", part("libco_plugin.so")), library, NULL);
    same(ARGV(part("coexist_host"), "global", part("libco_plugin.so")), library, NULL);
    same(ARGV(part("coexist_host"), "local", part("libco_plugin.so")), library, NULL);
}

/* They have drivers of their own, which headroom does not see; it serves the rest as ever. */
Test(coexist, namespaces_of_their_own_escape_and_break_nothing)
{
    if (cannot_with_sanitizer())
        return;
    struct hr_test_result r =
        run(ARGV(part("coexist_host"), "namespace", part("libco_plugin.so")), SMALL, library, NULL);
    cr_expect(ended_with(&r, 9) && strstr(r.err, "gave 2") != NULL, "0x%x %s", (unsigned)r.status, r.err);
    hr_test_result_finish(&r);
    r = run(ARGV(part("coexist_host"), "both", part("libco_plugin.so")), "SIMGPU=h200,vram=64M", library, NULL);
    cr_expect(ended_with(&r, 0), "0x%x %s", (unsigned)r.status, r.err);
    cr_expect_str_eq(r.out, "worked with 41\nworked with 42\nworked with 43\nworked with 44\n");
    cr_expect_str_eq(r.err, "");
    hr_test_result_finish(&r);
}

Test(coexist, an_auditor_sees_us_and_changes_nothing)
{
    char audit[4300];
    if (cannot_with_sanitizer())
        return;
    snprintf(audit, sizeof audit, "LD_AUDIT=%s", part("libaudit.so"));
    struct hr_test_result r = run(ARGV(job, "work"), SMALL, library, ARGV(audit, "TEST_AUDIT_FD=2"));
    unsigned long counted[3] = {0}; /* objects, bindings, objects that are ours */
    cr_expect(ended_with(&r, 0), "0x%x %s", (unsigned)r.status, r.err);
    cr_expect_str_eq(r.out, "worked with 1\n");
    cr_expect(read_numbers(r.err, counted, 3) == 3 && counted[1] > 0 && counted[2] == 1, "%s", r.err);
    cr_expect(hr_test_is_one_line(r.err), "%s", r.err);
    hr_test_result_finish(&r);
}

/* ---- programs that nothing is preloaded into ---- */

static void silent(const char *program)
{
    struct hr_test_result r = run(ARGV(program, "args", "x"), SMALL, library, NULL);
    cr_expect(ended_with(&r, 0), "0x%x", (unsigned)r.status);
    cr_expect_str_eq(r.out, "[x]\n");
    cr_expect_str_eq(r.err, "", "%s: %s", program, r.err);
    hr_test_result_finish(&r);
}

Test(coexist, static_programs_are_silent)
{
    silent(need("TEST_STATIC"));
}

Test(coexist, setuid_and_setgid_programs_are_silent)
{
    char path[] = "/tmp/headroom-setuid-XXXXXX", line[8600];
    struct statvfs fs;
    int fd = mkstemp(path);
    cr_assert_geq(fd, 0);
    close(fd);
    snprintf(line, sizeof line, "cp '%s' %s", need("TEST_PROBE"), path);
    cr_assert(system(line) == 0);
    if (SANITIZED_ADDRESSES) {
        left_out("the leak checker cannot look into such a program");
    } else if (getuid() != 0 || (statvfs(path, &fs) == 0 && (fs.f_flag & ST_NOSUID))) {
        left_out("a program of another user cannot be made here");
    } else {
        cr_assert(chown(path, 65534, getgid()) == 0 && chmod(path, 04755) == 0);
        silent(path);
        cr_assert(chown(path, getuid(), 65534) == 0 && chmod(path, 02755) == 0);
        silent(path);
    }
    unlink(path);
}

/* ---- a debugger ---- */

Test(coexist, a_debugger_that_comes_and_goes)
{
    int says[2], told[2], status;
    char c, pid[16];
    struct hr_test_result r = hr_test_run(ARGV("/bin/sh", "-c", "command -v gdb"), NULL);
    bool there = r.status == 0;
    hr_test_result_finish(&r);
    if (!there || SANITIZED) {
        left_out(there ? "a sanitizer's own memory takes gdb too long" : "there is no gdb");
        return;
    }
    cr_assert(pipe2(says, O_CLOEXEC) == 0 && pipe2(told, O_CLOEXEC) == 0);
    pid_t child = fork();
    if (child == 0) {
        setenv("LD_PRELOAD", library, 1);
        putenv(library_path);
        putenv(driver);
        setenv("SIMGPU", "h200,vram=32M", 1);
        int says_end = fcntl(says[1], F_DUPFD, 10), told_end = fcntl(told[0], F_DUPFD, 10);
        int null = open("/dev/null", O_WRONLY);
        if (dup2(says_end, 3) == 3 && dup2(told_end, 4) == 4 && dup2(null, 1) == 1)
            execl(job, job, "beside", (char *)NULL);
        _exit(126);
    }
    close(says[1]);
    cr_assert(read(says[0], &c, 1) == 1);
    snprintf(pid, sizeof pid, "%d", (int)child);
    r = hr_test_run(ARGV("gdb", "-nx", "-q", "-batch", "-p", pid, "-ex", "thread apply all bt 4", "-ex", "detach"),
                    NULL);
    bool may = strstr(r.err, "not permitted") == NULL;
    if (may)
        cr_expect(r.status == 0 && strstr(r.out, "beside_mode") != NULL, "0x%x\n%s\n%s", (unsigned)r.status, r.out,
                  r.err);
    else
        left_out("no process may be traced here");
    hr_test_result_finish(&r);
    cr_assert(write(told[1], "x", 1) == 1 && waitpid(child, &status, 0) == child);
    cr_expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "0x%x", (unsigned)status);
}

/* ---- C++ in a host of C ---- */

Test(coexist, exceptions_and_cancelled_threads_are_as_without_us)
{
    const char *host = need("TEST_UNWIND_HOST"), *cxx = getenv("TEST_UNWIND");
    if (!cxx || SANITIZED) {
        left_out(cxx ? "sanitizers take exceptions of C++ for their own in programs of C++ only"
                     : "there is no C++ compiler");
        return;
    }
    same(ARGV(host, "check", cxx), library, NULL);
    same(ARGV(host, "cuda", cxx), library, NULL);
    struct hr_test_result native = run(ARGV(host, "uncaught", cxx), SMALL, "", NULL);
    struct hr_test_result ours = run(ARGV(host, "uncaught", cxx), SMALL, library, NULL);
    cr_expect(WIFSIGNALED(native.status) && WTERMSIG(native.status) == SIGABRT && ours.status == native.status,
              "0x%x and 0x%x", (unsigned)native.status, (unsigned)ours.status);
    cr_expect_str_eq(ours.err, native.err);
    hr_test_result_finish(&native);
    hr_test_result_finish(&ours);
}
