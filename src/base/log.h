/*
 * One line per event worth telling, written as "headroom: ..." to stderr or to the file that HEADROOM_LOG names; never to stdout.
 *
 * No allocation, no stdio, no descriptor kept open (a job may close or reuse every descriptor it finds). Lines are cut at
 * HR_LOG_LINE_BYTES; after HR_LOG_MAX_LINES lines of error, warn and info together a last one says so and the rest is dropped.
 */
#ifndef HR_BASE_LOG_H
#define HR_BASE_LOG_H

#include <stdatomic.h>
#include <stdbool.h>

#define HR_LOG_LINE_BYTES 1024
#define HR_LOG_MAX_LINES 2000

enum hr_log_level { HR_LOG_OFF, HR_LOG_ERROR, HR_LOG_WARN, HR_LOG_INFO, HR_LOG_DEBUG };

/* Whether a line of this level would be written: for callers whose arguments cost something. Reads the settings on first use. */
bool hr_log_enabled(enum hr_log_level level);

/* Write one line; the newline and the prefix are added. errno is kept. Async-signal-safe but for the formatting. Locks: none. */
void hr_log(enum hr_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Write one line to stderr whatever HEADROOM_LOG says: for a setting that is wrong, and before the settings are known. */
void hr_log_stderr(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* As hr_log, the first time this line of code is reached in the process. */
#define hr_log_once(level, ...)                                                                                        \
    do {                                                                                                               \
        static atomic_flag hr_said_ = ATOMIC_FLAG_INIT;                                                                \
        if (!atomic_flag_test_and_set_explicit(&hr_said_, memory_order_relaxed))                                       \
            hr_log(level, __VA_ARGS__);                                                                                \
    } while (0)

#endif
