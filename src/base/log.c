/*
 * A line is formatted into a buffer on the stack and written with one write(2), so lines of several threads do not mix. The log
 * file is opened for each line: a job may close all descriptors or hand ours to something else, and lines are rare.
 */
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/config.h"

static void write_all(int fd, const char *text, size_t bytes)
{
    while (bytes > 0) {
        ssize_t done = write(fd, text, bytes);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return; /* nowhere left to say so */
        text += done;
        bytes -= (size_t)done;
    }
}

static void write_line(int fd, const char *fmt, va_list args) __attribute__((format(printf, 2, 0)));
static void write_line(int fd, const char *fmt, va_list args)
{
    char line[HR_LOG_LINE_BYTES];
    const char prefix[] = "headroom: ";
    size_t used = sizeof prefix - 1;
    memcpy(line, prefix, used);
    int more = vsnprintf(line + used, sizeof line - used - 1, fmt, args);
    if (more < 0)
        return;
    used += (size_t)more < sizeof line - used - 1 ? (size_t)more : sizeof line - used - 2;
    line[used++] = '\n';
    write_all(fd, line, used);
}

static int open_log_file(const char *pattern)
{
    char path[HR_CONFIG_TEXT_BYTES];
    if (!hr_config_path(pattern, path, sizeof path))
        return -1;
    return open(path, O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK | O_CLOEXEC, 0600);
}

bool hr_log_enabled(enum hr_log_level level)
{
    return level != HR_LOG_OFF && level <= hr_config()->log.level;
}

/* Whether one more line may be written; *last_out on the line that says that no more follow. Debug is asked for: not capped. */
static bool within_cap(enum hr_log_level level, bool *last_out)
{
    static _Atomic unsigned lines;
    *last_out = false;
    if (level >= HR_LOG_DEBUG)
        return true;
    unsigned before = atomic_fetch_add_explicit(&lines, 1, memory_order_relaxed);
    if (before > HR_LOG_MAX_LINES)
        atomic_store_explicit(&lines, HR_LOG_MAX_LINES + 1, memory_order_relaxed);
    *last_out = before == HR_LOG_MAX_LINES;
    return before <= HR_LOG_MAX_LINES;
}

static void say(int fd, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static void say(int fd, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    write_line(fd, fmt, args);
    va_end(args);
}

void hr_log(enum hr_log_level level, const char *fmt, ...)
{
    int kept_errno = errno;
    bool last;
    if (!hr_log_enabled(level) || !within_cap(level, &last))
        return;
    int fd = STDERR_FILENO;
    if (hr_config()->log.path[0] != '\0') {
        fd = open_log_file(hr_config()->log.path);
        if (fd < 0) {
            static atomic_flag said = ATOMIC_FLAG_INIT;
            fd = STDERR_FILENO;
            if (!atomic_flag_test_and_set(&said))
                say(fd, "cannot write the log file %s (%s), logging to stderr", hr_config()->log.path, strerror(errno));
        }
    }
    errno = kept_errno; /* what %m stands for */
    va_list args;
    va_start(args, fmt);
    if (last)
        say(fd, "more than %d messages, the rest is left out", HR_LOG_MAX_LINES);
    else
        write_line(fd, fmt, args);
    va_end(args);
    if (fd != STDERR_FILENO)
        close(fd);
    errno = kept_errno;
}

void hr_log_stderr(const char *fmt, ...)
{
    int kept_errno = errno;
    va_list args;
    va_start(args, fmt);
    write_line(STDERR_FILENO, fmt, args);
    va_end(args);
    errno = kept_errno;
}
