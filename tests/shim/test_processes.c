/*
 * Jobs of several processes, threads, contexts and GPUs print the same with headroom on a GPU that is too small as without it on one that
 * is not. The job is tests/shim/process/process_job.c, in Python tree.py there.
 */
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/sanitizer.h"
#include "support/spawn.h"

#define ARGV(...) ((const char *const[]){__VA_ARGS__, NULL})
#define MIB (1u << 20)

static const char *job, *library;
static char preload[4200], library_path[4200], driver[4200], folder[64];

static void set_up(void)
{
    const char *simgpu = getenv("TEST_SIMGPU");
    job = getenv("TEST_PROCESS_JOB");
    library = getenv("TEST_LIBRARY");
    cr_assert(simgpu && job && library, "run through meson test");
    snprintf(preload, sizeof preload, "LD_PRELOAD=%s", library);
    snprintf(library_path, sizeof library_path, "LD_LIBRARY_PATH=%s", simgpu);
    snprintf(driver, sizeof driver, "HEADROOM_DRIVER=%s/libcuda.so.1", simgpu);
    strcpy(folder, "/tmp/headroom-processes-XXXXXX");
    cr_assert(mkdtemp(folder) != NULL);
    unsetenv("LD_PRELOAD");
    unsetenv("CUDA_VISIBLE_DEVICES");
    setenv("HEADROOM_STATS", "off", 1);
    setenv("SIMGPU_LOG", "warn", 1);
    setenv("XDG_CACHE_HOME", folder, 1);
}

static void tear_down(void)
{
    char line[128];
    snprintf(line, sizeof line, "rm -rf %s", folder);
    cr_expect(system(line) == 0);
}

TestSuite(processes, .init = set_up, .fini = tear_down, .timeout = 240);

#define MOST_ENV 16

/* The environment of a run on that machine, with or without headroom, and what else is to be set; in a row that the next call takes. */
static const char *const *environment(bool shimmed, const char *machine, const char *const *more)
{
    static const char *list[MOST_ENV];
    static char simgpu[128];
    int n = 0;
    snprintf(simgpu, sizeof simgpu, "SIMGPU=%s", machine);
    list[n++] = simgpu;
    list[n++] = library_path;
    if (shimmed) {
        list[n++] = preload;
        list[n++] = driver;
    }
    for (; more && *more; more++) {
        cr_assert_lt(n, MOST_ENV - 1);
        list[n++] = *more;
    }
    list[n] = NULL;
    return list;
}

static char *output(const char *const *argv, bool shimmed, const char *machine, const char *const *more)
{
    struct hr_test_result r = hr_test_run(argv, environment(shimmed, machine, more));
    cr_assert(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 0, "%s %s %s headroom: status 0x%x, %s%s", argv[0],
              argv[1], shimmed ? "with" : "without", (unsigned)r.status, r.out, r.err);
    cr_expect(r.err[0] == '\0', "%s %s headroom: %s", argv[1], shimmed ? "with" : "without", r.err);
    char *out = strdup(r.out);
    hr_test_result_finish(&r);
    return out;
}

/* The same words natively on a large GPU and under headroom on a small one, on which it does not run natively. */
static void same(const char *const *argv, const char *small, const char *large, const char *const *more)
{
    char *native = output(argv, false, large, more), *ours = output(argv, true, small, more);
    cr_expect(native[0] != '\0');
    cr_expect_str_eq(ours, native, "with headroom:\n%s\nwithout:\n%s", ours, native);
    free(native);
    free(ours);
}

#define SMALL "h200,vram=32M"
#define LARGE "h200,vram=1G"

Test(processes, the_job_does_not_fit_without_headroom)
{
    struct hr_test_result r = hr_test_run(ARGV(job, "work", "1"), environment(false, SMALL, NULL));
    cr_assert(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 9 && strstr(r.err, "gave 2") != NULL, "0x%x %s",
              (unsigned)r.status, r.err);
    hr_test_result_finish(&r);
}

Test(processes, K22_forked_children_get_the_driver_s_own_answers_and_the_parent_goes_on)
{
    same(ARGV(job, "fork"), SMALL, LARGE, NULL);
}

Test(processes, children_forked_before_cuda_and_their_parent_are_served)
{
    same(ARGV(job, "fork-before"), SMALL, LARGE, NULL);
}

Test(processes, vfork_and_exec_leave_the_parent_alone_and_the_child_is_served)
{
    same(ARGV(job, "vfork"), SMALL, LARGE, NULL);
}

Test(processes, spawned_processes_are_served_at_once_with_their_parent)
{
    same(ARGV(job, "spawn"), SMALL, LARGE, NULL);
}

Test(processes, a_process_that_becomes_another_program_is_served_again)
{
    same(ARGV(job, "exec"), SMALL, LARGE, NULL);
}

Test(processes, threads_made_before_cuinit_are_served)
{
    same(ARGV(job, "threads"), SMALL, LARGE, NULL);
}

Test(processes, threads_that_all_call_cuinit_first_are_served)
{
    same(ARGV(job, "race"), SMALL, LARGE, NULL);
}

Test(processes, contexts_come_and_go_with_their_memory)
{
    same(ARGV(job, "contexts"), "h200,vram=64M", LARGE, NULL);
}

Test(processes, a_primary_context_goes_with_its_memory)
{
    same(ARGV(job, "primary"), SMALL, LARGE, NULL);
}

/* Orphans come to this process, so that it sees the daemon's end. */
static char *daemon_output(bool shimmed, const char *machine)
{
    char file[96], text[256] = "";
    snprintf(file, sizeof file, "%s/daemon-%d", folder, (int)shimmed);
    cr_assert_eq(prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
    free(output(ARGV(job, "daemon", file), shimmed, machine, NULL));
    int status = 0;
    while (waitpid(-1, &status, 0) > 0 || errno == EINTR)
        continue;
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    cr_assert(fd >= 0 && read(fd, text, sizeof text - 1) >= 0);
    close(fd);
    return strdup(text);
}

/* All at once, while somebody holds the lock of what local processes share and never lets go: nobody's start needs it. */
Test(processes, K18_three_hundred_start_at_once_and_none_waits_for_another)
{
    enum { MANY = SANITIZED ? 30 : 300 };
    static struct hr_test_child child[MANY];
    char runtime[80], path[128];
    snprintf(runtime, sizeof runtime, "XDG_RUNTIME_DIR=%s", folder);
    snprintf(path, sizeof path, "%s/headroom-host", folder);
    const char *const more[] = {runtime, NULL};
    free(output(ARGV(job, "start"), true, SMALL, more)); /* makes the file */
    int fd = open(path, O_RDWR | O_CLOEXEC);
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    cr_assert(fd >= 0 && fcntl(fd, F_OFD_SETLK, &lock) == 0);
    char *one = output(ARGV(job, "start"), true, SMALL, more);
    cr_expect(one[0] != '\0');
    for (int i = 0; i < MANY; i++)
        child[i] = hr_test_start(ARGV(job, "start"), environment(true, SMALL, more));
    for (int i = 0; i < MANY; i++) {
        struct hr_test_result r = hr_test_wait(&child[i]);
        cr_expect(r.status == 0 && !strcmp(r.out, one) && r.err[0] == '\0', "process %d: 0x%x, %s%s", i,
                  (unsigned)r.status, r.out, r.err);
        hr_test_result_finish(&r);
    }
    close(fd);
    free(one);
}

Test(processes, a_daemon_without_its_parent_s_files_is_served)
{
    char *native = daemon_output(false, LARGE), *ours = daemon_output(true, SMALL);
    cr_expect_str_eq(native, "worked with 20\n");
    cr_expect_str_eq(ours, native);
    free(native);
    free(ours);
}

Test(processes, trees_of_python_s_subprocesses_are_served)
{
    const char *tree = getenv("TEST_TREE"), *python = getenv("TEST_PYTHON");
    if (SANITIZED) {
        fprintf(stderr, "not run: a sanitizer's runtime has to be linked into the interpreter\n");
        return;
    }
    cr_assert(tree && python);
    same(ARGV(python, tree), SMALL, LARGE, NULL);
}

/* ---- visible devices ---- */

#define BOX "dgx1v,vram=40M"
#define LARGE_BOX "dgx1v,vram=256M"

static void same_devices(const char *visible, const char *more)
{
    char setting[600];
    snprintf(setting, sizeof setting, "CUDA_VISIBLE_DEVICES=%s", visible);
    const char *const *env = more ? ARGV(setting, more) : ARGV(setting);
    same(ARGV(job, "devices"), BOX, LARGE_BOX, env);
}

Test(processes, visible_devices_are_the_ones_that_are_named_in_their_order)
{
    same_devices("3,0", NULL);
    same_devices("1,-1,2", NULL);
    same_devices("5,NoDevFiles", NULL);
}

Test(processes, no_visible_devices_are_no_devices)
{
    same_devices("", NULL);
    same_devices("-1", NULL);
    same_devices("NoDevFiles", NULL);
    same_devices("2,2", NULL);
    same_devices("GPU-", NULL);
}

/* Ways between GPUs are tried by a process of its own, which has to see the same ones. */
Test(processes, a_list_of_devices_that_is_changed_after_cuinit_counts_for_nobody)
{
    same_devices("3,0", "TEST_LATER=5");
}

/* ---- one card for two processes ---- */

struct beside {
    pid_t pid;
    int says, told;
    char report[96];
};

/* Starts `job beside` with 3 and 4 as its ends of the two pipes, and waits until it has all its memory. */
static struct beside start_beside(bool shimmed, const char *cards, const char *cap)
{
    struct beside b;
    static int number;
    int says[2], told[2];
    char c, machine[] = "h200,vram=64M,host=1G";
    cr_assert(pipe2(says, O_CLOEXEC) == 0 && pipe2(told, O_CLOEXEC) == 0);
    snprintf(b.report, sizeof b.report, "%s/report-%d", folder, number++);
    b.pid = fork();
    cr_assert_geq(b.pid, 0);
    if (b.pid == 0) {
        const char *const *env = environment(shimmed, machine, NULL);
        for (; *env; env++)
            putenv((char *)*env);
        setenv("SIMGPU_REPORT", b.report, 1);
        setenv("SIMGPU_CARDS", cards, 1);
        if (cap)
            setenv("HEADROOM_VRAM", cap, 1);
        int says_end = fcntl(says[1], F_DUPFD, 10), told_end = fcntl(told[0], F_DUPFD, 10);
        if (dup2(says_end, 3) == 3 && dup2(told_end, 4) == 4)
            execl(job, job, "beside", (char *)NULL);
        _exit(126);
    }
    close(says[1]);
    close(told[0]);
    b.says = says[0];
    b.told = told[1];
    cr_assert(read(b.says, &c, 1) == 1, "it has not got its memory");
    return b;
}

/* Lets it go on, waits for its end, and returns the most VRAM that it had at a time. */
static size_t end_beside(struct beside *b)
{
    int status;
    char *text = calloc(1, 1 << 16);
    cr_assert(text && write(b->told, "x", 1) == 1 && waitpid(b->pid, &status, 0) == b->pid);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "0x%x", (unsigned)status);
    int fd = open(b->report, O_RDONLY | O_CLOEXEC);
    cr_assert(fd >= 0 && read(fd, text, (1 << 16) - 1) > 0);
    close(fd);
    const char *peak = strstr(text, "\"peak_vram_bytes\": ");
    cr_assert(peak != NULL);
    size_t bytes = strtoull(peak + strlen("\"peak_vram_bytes\": "), NULL, 10);
    free(text);
    close(b->says);
    close(b->told);
    return bytes;
}

static const char *cards_file(void)
{
    static char path[96];
    snprintf(path, sizeof path, "%s/cards", folder);
    return path;
}

Test(processes, two_on_one_card_stay_within_their_caps)
{
    struct beside one = start_beside(true, cards_file(), "50%"), two = start_beside(true, cards_file(), "24M");
    size_t first = end_beside(&one), second = end_beside(&two);
    cr_expect(first <= 32 * MIB && first > 16 * MIB, "%zu", first);
    cr_expect(second <= 24 * MIB && second > 8 * MIB, "%zu", second);
}

/* What one has is missing to the other: that is pressure, and no error of the job. */
Test(processes, two_without_caps_on_one_card_both_finish)
{
    struct beside one = start_beside(true, cards_file(), NULL), two = start_beside(true, cards_file(), NULL);
    size_t first = end_beside(&one), second = end_beside(&two);
    cr_expect(first > 32 * MIB && second > 2 * MIB, "%zu and %zu", first, second); /* each what it could get */
}

Test(processes, one_beside_a_process_without_headroom_takes_what_is_left)
{
    struct beside native = start_beside(false, cards_file(), NULL), ours = start_beside(true, cards_file(), NULL);
    size_t second = end_beside(&ours), first = end_beside(&native);
    cr_expect(first >= 48 * MIB && second <= 16 * MIB, "%zu and %zu", first, second);
}

Test(processes, k19_one_that_is_killed_leaves_the_card_to_the_other)
{
    struct beside one = start_beside(true, cards_file(), NULL), two = start_beside(true, cards_file(), "90%");
    kill(one.pid, SIGKILL);
    cr_assert_eq(waitpid(one.pid, NULL, 0), one.pid);
    size_t second = end_beside(&two);
    cr_expect(second > 16 * MIB, "%zu", second); /* it had next to nothing before */
}
