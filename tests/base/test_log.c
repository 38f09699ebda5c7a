#include "base/log.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Each Criterion test is a process of its own, so each may choose HEADROOM_LOG before the first line. */

static char path[] = "/tmp/headroom-log-test-XXXXXX";

static void log_to_file(const char *level)
{
    char value[64];
    int fd = mkstemp(path);
    cr_assert(fd >= 0);
    close(fd);
    snprintf(value, sizeof value, "%s:%s", level, path);
    setenv("HEADROOM_LOG", value, 1);
}

static char *logged(void)
{
    static char text[1 << 20];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    cr_assert(fd >= 0);
    ssize_t n = read(fd, text, sizeof text - 1);
    cr_assert(n >= 0);
    text[n] = '\0';
    close(fd);
    unlink(path);
    return text;
}

static unsigned lines_in(const char *text)
{
    unsigned lines = 0;
    for (; *text != '\0'; text++)
        lines += *text == '\n';
    return lines;
}

Test(log, writes_lines_up_to_its_level)
{
    log_to_file("info");
    errno = EXDEV;
    hr_log(HR_LOG_ERROR, "one %d", 1);
    hr_log(HR_LOG_INFO, "two %s", "2");
    hr_log(HR_LOG_DEBUG, "three");
    cr_assert_eq(errno, EXDEV, "errno is the job's");
    cr_assert_str_eq(logged(), "headroom: one 1\nheadroom: two 2\n");
}

Test(log, cuts_long_lines)
{
    static char text[5000];
    log_to_file("warn");
    memset(text, 'x', sizeof text - 1);
    hr_log(HR_LOG_WARN, "%s", text);
    char *got = logged();
    cr_assert_eq(strlen(got), HR_LOG_LINE_BYTES - 1);
    cr_assert_eq(lines_in(got), 1);
}

Test(log, ends_at_the_cap_and_says_so)
{
    log_to_file("warn");
    for (int i = 0; i < HR_LOG_MAX_LINES + 100; i++)
        hr_log(HR_LOG_WARN, "line");
    char *got = logged();
    cr_assert_eq(lines_in(got), HR_LOG_MAX_LINES + 1);
    cr_assert_not_null(strstr(got, "left out"));
}

Test(log, says_a_thing_once_per_place)
{
    log_to_file("warn");
    for (int i = 0; i < 5; i++)
        hr_log_once(HR_LOG_WARN, "once");
    cr_assert_str_eq(logged(), "headroom: once\n");
}

Test(log, leaves_no_descriptor_open)
{
    log_to_file("warn");
    int before = open("/dev/null", O_RDONLY | O_CLOEXEC);
    close(before);
    hr_log(HR_LOG_WARN, "line");
    int after = open("/dev/null", O_RDONLY | O_CLOEXEC);
    close(after);
    cr_assert_eq(before, after);
    unlink(path);
}

Test(log, falls_back_to_stderr_where_the_file_cannot_be_written)
{
    setenv("HEADROOM_LOG", "warn:/nonexistent/file", 1);
    int pipe_ends[2];
    char text[4096];
    cr_assert(pipe(pipe_ends) == 0 && dup2(pipe_ends[1], STDERR_FILENO) >= 0);
    hr_log(HR_LOG_WARN, "line");
    hr_log(HR_LOG_WARN, "line");
    ssize_t n = read(pipe_ends[0], text, sizeof text - 1);
    cr_assert_gt(n, 0);
    text[n] = '\0';
    cr_assert(lines_in(text) == 3 && strstr(text, "/nonexistent/file") != NULL, "%s", text);
}
