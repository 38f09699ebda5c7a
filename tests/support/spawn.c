#include "support/spawn.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void change_environment(const char *const *env)
{
    for (; env != NULL && *env != NULL; env++) {
        const char *equals = strchr(*env, '=');
        char *name = equals != NULL ? strndup(*env, (size_t)(equals - *env)) : strdup(*env);
        if (name == NULL) {
            _exit(125);
        }
        if (equals != NULL) {
            setenv(name, equals + 1, 1);
        } else {
            unsetenv(name);
        }
        free(name);
    }
}

struct hr_test_child hr_test_start(const char *const *argv, const char *const *env)
{
    struct hr_test_child child;

    /* Files in memory, not pipes: the program can write as much as it likes before anyone reads. */
    child.out_fd = memfd_create("out", MFD_CLOEXEC);
    child.err_fd = memfd_create("err", MFD_CLOEXEC);
    cr_assert(child.out_fd >= 0 && child.err_fd >= 0, "no memory files");
    /* Its own children write there, too, at the same time. */
    cr_assert(fcntl(child.out_fd, F_SETFL, O_APPEND) == 0 && fcntl(child.err_fd, F_SETFL, O_APPEND) == 0);
    fflush(NULL);
    child.pid = fork();
    cr_assert(child.pid >= 0, "fork failed");
    if (child.pid == 0) {
        int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
        dup2(null, STDIN_FILENO);
        dup2(child.out_fd, STDOUT_FILENO);
        dup2(child.err_fd, STDERR_FILENO);
        change_environment(env);
        execvp(argv[0], (char *const *)argv);
        _exit(125);
    }
    return child;
}

static char *read_all(int fd)
{
    struct stat st;

    cr_assert(fstat(fd, &st) == 0);
    char *text = malloc((size_t)st.st_size + 1);
    cr_assert(text != NULL);
    ssize_t n = pread(fd, text, (size_t)st.st_size, 0);
    cr_assert(n == (ssize_t)st.st_size);
    text[n] = '\0';
    close(fd);
    return text;
}

struct hr_test_result hr_test_wait(struct hr_test_child *child)
{
    struct hr_test_result result = {.pid = child->pid};

    cr_assert(waitpid(child->pid, &result.status, 0) == child->pid);
    result.out = read_all(child->out_fd);
    result.err = read_all(child->err_fd);
    return result;
}

struct hr_test_result hr_test_run(const char *const *argv, const char *const *env)
{
    struct hr_test_child child = hr_test_start(argv, env);
    return hr_test_wait(&child);
}

void hr_test_result_finish(struct hr_test_result *result)
{
    free(result->out);
    free(result->err);
    memset(result, 0, sizeof *result);
}

int hr_test_is_one_line(const char *text)
{
    const char *newline = strchr(text, '\n');
    return newline != NULL && newline > text && newline[1] == '\0';
}
