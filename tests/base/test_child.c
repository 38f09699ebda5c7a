/* A helper that the job does not notice. */
#include "base/child.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static char *const clean[] = {(char *)"PATH=/usr/bin:/bin", NULL};

static char *run(const char *script, char *const envp[])
{
    char *const argv[] = {(char *)"sh", (char *)"-c", (char *)script, NULL};
    char *text = calloc(4096, 1);
    size_t count = 0;
    int fd, pid;

    int rc = hr_child_start("/bin/sh", argv, envp, &fd, &pid);
    cr_assert(rc == 0, "%s", strerror(-rc));
    for (ssize_t n; (n = read(fd, text + count, 4095 - count)) > 0;)
        count += (size_t)n;
    close(fd);
    hr_child_forget(pid);
    return text;
}

static _Atomic int children;

static void count_children(int number)
{
    (void)number;
    children++;
}

Test(child, tells_what_it_has_to_say_and_gets_its_own_environment)
{
    char *const envp[] = {(char *)"PATH=/usr/bin:/bin", (char *)"WORD=three", NULL};
    char *said = run("echo one two $WORD; read line || echo no input", envp);

    cr_expect(strcmp(said, "one two three\nno input\n") == 0, "%s", said);
    free(said);
}

Test(child, is_nobody_that_the_job_could_wait_for)
{
    struct sigaction action = {.sa_handler = count_children}, old;

    sigaction(SIGCHLD, &action, &old);
    char *said = run("exit 3", clean);
    cr_expect(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD);
    cr_expect(children == 0, "%d SIGCHLD", children);
    sigaction(SIGCHLD, &old, NULL);
    free(said);
}

/* As the first process of a container does. */
Test(child, is_not_left_to_a_job_that_adopts_orphans)
{
    char *const argv[] = {(char *)"nothing", NULL};
    int fd, pid;

    cr_assert(prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0);
    char *said = run("exec >&-; i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done", clean);
    cr_expect(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD, "the job has a child");
    cr_expect(hr_child_start("/nonexistent/nothing", argv, clean, &fd, &pid) == -ENOENT);
    cr_expect(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD, "the job has a child that never began");
    free(said);
}

Test(child, has_none_of_the_jobs_descriptors_masks_and_handlers)
{
    struct sigaction ignore = {.sa_handler = SIG_IGN}, old;
    sigset_t all, kept, after;
    int open_one = open("/dev/null", O_RDONLY); /* NOLINT(android-cloexec-open): it is to be inherited */

    cr_assert(open_one > 2);
    sigfillset(&all);
    sigaction(SIGALRM, &ignore, &old);
    pthread_sigmask(SIG_BLOCK, &all, &kept);
    /* Input, output, error, and the folder that the shell itself reads. */
    /* Without a process of its own, for which the shell would block signals. */
    char *said = run("set -- /proc/$$/fd/*; echo $#; while read name value; do case $name in SigBlk:|SigIgn:) "
                     "echo $name $value;; esac; done < /proc/$$/status",
                     clean);
    pthread_sigmask(SIG_SETMASK, &kept, &after);
    sigaction(SIGALRM, &old, NULL);
    close(open_one);
    cr_expect(strtol(said, NULL, 10) == 4, "%s", said);
    cr_expect(strstr(said, "SigBlk: 0000000000000000\n") && strstr(said, "SigIgn: 0000000000000000\n"), "%s", said);
    cr_expect(sigismember(&after, SIGTERM) == 1, "the thread's own mask has changed");
    free(said);
}

Test(child, a_program_that_is_not_there_is_an_error)
{
    char *const argv[] = {(char *)"nothing", NULL};
    int fd = -7, pid, before = open("/dev/null", O_RDONLY | O_CLOEXEC);

    close(before);
    cr_expect(hr_child_start("/nonexistent/nothing", argv, clean, &fd, &pid) == -ENOENT);
    int after = open("/dev/null", O_RDONLY | O_CLOEXEC);
    cr_expect(fd == -7 && after == before, "descriptors are left over");
    close(after);
}

Test(child, works_where_the_job_has_closed_its_own_input_and_output)
{
    int kept[3];

    for (int i = 0; i < 3; i++) {
        kept[i] = fcntl(i, F_DUPFD_CLOEXEC, 10);
        close(i);
    }
    char *said = run("echo here; echo there >&2", clean);
    for (int i = 0; i < 3; i++) {
        dup2(kept[i], i);
        close(kept[i]);
    }
    cr_expect(strcmp(said, "here\n") == 0, "%s", said);
    free(said);
}
