/* Running a program and keeping what it says, for tests of whole programs. */
#ifndef HR_TESTS_SPAWN_H
#define HR_TESTS_SPAWN_H

#include <stddef.h>
#include <sys/types.h>

struct hr_test_result {
    int status; /* as from waitpid */
    pid_t pid;  /* that it had */
    char *out;  /* its stdout and stderr, NUL-terminated */
    char *err;
};

/* Starts argv[0] (looked up in PATH) with stdin from /dev/null, and returns when it has ended. `env` holds "NAME=value"
 * entries that replace or, as "NAME", remove variables of this process's environment; NULL-terminated, may be NULL.
 * A failure to start is a failed assertion. The caller finishes the result. */
struct hr_test_result hr_test_run(const char *const *argv, const char *const *env);
void hr_test_result_finish(struct hr_test_result *result);

/* The two halves, for tests that do something to the running program. */
struct hr_test_child {
    pid_t pid;
    int out_fd, err_fd;
};
struct hr_test_child hr_test_start(const char *const *argv, const char *const *env);
struct hr_test_result hr_test_wait(struct hr_test_child *child);

/* Whether text is exactly one line, newline included. */
int hr_test_is_one_line(const char *text);

#endif
