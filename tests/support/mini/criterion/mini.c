#include "criterion.h"

/* The runner: forks a child for each test, waits for it with a deadline, and says what became of it.
 *
 * The parent never makes a thread, so that ThreadSanitizer accepts the fork. A child reports a failed assertion through
 * its exit status (STATUS_FAILED), a skipped test through STATUS_SKIPPED; any other end is judged against the test's
 * .signal and .exit_code.
 */
#include <errno.h>
#include <fnmatch.h>
#include <getopt.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Tests state their timeouts for a plain build; ThreadSanitizer makes everything several times slower. */
#if defined(__SANITIZE_THREAD__)
#define SLOWDOWN 10
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SLOWDOWN 10
#endif
#endif
#ifndef SLOWDOWN
#define SLOWDOWN 1
#endif

enum { STATUS_FAILED = 97, STATUS_SKIPPED = 98 };
enum outcome { PASSED, FAILED, CRASHED, SKIPPED };

static struct mini_test *tests, **tests_tail = &tests;
static struct mini_suite *suites;
static atomic_bool failed;
static jmp_buf abort_point;
static pid_t test_tid; /* the child's main thread, which alone may jump to abort_point */

void mini_add_test(struct mini_test *test)
{
    *tests_tail = test;
    tests_tail = &test->next;
}

void mini_add_suite(struct mini_suite *suite)
{
    suite->next = suites;
    suites = suite;
}

int mini_str_compare(const char *a, const char *b)
{
    if (a == NULL || b == NULL) {
        return (a != NULL) - (b != NULL);
    }
    return strcmp(a, b);
}

/* One write, so that lines of several threads do not mix. */
static void emit(const char *text, size_t length)
{
    while (length > 0) {
        ssize_t n = write(STDERR_FILENO, text, length);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n <= 0) {
            return;
        }
        text += n;
        length -= (size_t)n;
    }
}

static void emit_line(const char *head, const char *format, va_list args)
{
    char line[2048];
    int used = snprintf(line, sizeof line, "%s", head);
    if (used < 0 || (size_t)used >= sizeof line - 2) {
        used = (int)sizeof line - 2;
    }
    int more = vsnprintf(line + used, sizeof line - (size_t)used - 1, format, args);
    size_t length = strlen(line);
    if (more < 0) {
        line[used] = '\0';
        length = (size_t)used;
    }
    line[length++] = '\n';
    emit(line, length);
}

static _Noreturn void end_test(int status)
{
    if (gettid() == test_tid) {
        longjmp(abort_point, status);
    }
    fflush(NULL);
    _exit(status);
}

void mini_fail(bool fatal, const char *file, int line, const char *what, const char *format, ...)
{
    char head[1024];
    va_list args;

    atomic_store(&failed, true);
    snprintf(head, sizeof head, "[----] %s:%d: assertion failed: %s%s", file, line, what, format[0] ? ": " : "");
    va_start(args, format);
    emit_line(head, format, args);
    va_end(args);
    if (fatal) {
        end_test(STATUS_FAILED);
    }
}

void mini_skip(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    emit_line("[SKIP] ", format, args);
    va_end(args);
    end_test(STATUS_SKIPPED);
}

void mini_log(const char *level, const char *format, ...)
{
    char head[32];
    va_list args;

    snprintf(head, sizeof head, "[%s] ", level);
    va_start(args, format);
    emit_line(head, format, args);
    va_end(args);
}

static const struct mini_options *suite_options(const char *name)
{
    static const struct mini_options none;
    for (struct mini_suite *s = suites; s != NULL; s = s->next) {
        if (strcmp(s->name, name) == 0) {
            return &s->options;
        }
    }
    return &none;
}

/* Runs the test's body after `before`, or only `before` where test is NULL. Returns 0, or what an assertion ended it with. */
static int run_guarded(void (*before)(void), const struct mini_test *test, void *param)
{
    int status = setjmp(abort_point);

    if (status != 0) {
        return status;
    }
    if (before != NULL) {
        before();
    }
    if (test != NULL && test->param_body != NULL) {
        test->param_body(param);
    } else if (test != NULL) {
        test->body();
    }
    return 0;
}

static _Noreturn void run_child(const struct mini_test *test, void *param)
{
    const struct mini_options *suite = suite_options(test->suite);

    test_tid = gettid();
    if (test->options.signal != 0) {
        signal(test->options.signal, SIG_DFL); /* a sanitizer's handler would turn it into an exit */
    }
    int status = run_guarded(test->options.init != NULL ? test->options.init : suite->init, test, param);
    (void)run_guarded(test->options.fini != NULL ? test->options.fini : suite->fini, NULL, NULL);
    if (status == 0 && atomic_load(&failed)) {
        status = STATUS_FAILED;
    }
    exit(status);
}

/* Waits for the child, at most `seconds`; a child that is late is killed and `late_out` set. */
static int wait_child(pid_t child, double seconds, bool *late_out)
{
    sigset_t chld;
    struct timespec now, end;
    int status;

    sigemptyset(&chld);
    sigaddset(&chld, SIGCHLD);
    clock_gettime(CLOCK_MONOTONIC, &end);
    end.tv_sec += (time_t)seconds;
    end.tv_nsec += (long)((seconds - (double)(time_t)seconds) * 1e9);
    *late_out = false;
    for (;;) {
        pid_t got = waitpid(child, &status, *late_out ? 0 : WNOHANG);
        if (got == child) {
            return status;
        }
        if (got < 0 && errno != EINTR) {
            perror("waitpid");
            exit(3);
        }
        clock_gettime(CLOCK_MONOTONIC, &now);
        long long left = (end.tv_sec - now.tv_sec) * 1000000000LL + (end.tv_nsec - now.tv_nsec);
        if (left <= 0) {
            kill(child, SIGKILL);
            *late_out = true;
            continue;
        }
        struct timespec pause = {left / 1000000000LL, left % 1000000000LL};
        sigtimedwait(&chld, NULL, &pause);
    }
}

static enum outcome judge(const struct mini_test *test, const char *title, int status, bool late, double timeout)
{
    const struct mini_options *suite = suite_options(test->suite);
    int want_signal = test->options.signal ? test->options.signal : suite->signal;
    int want_exit = test->options.exit_code ? test->options.exit_code : suite->exit_code;

    if (late) {
        fprintf(stderr, "[FAIL] %s: timed out after %g s\n", title, timeout);
        return FAILED;
    }
    if (WIFSIGNALED(status)) {
        if (WTERMSIG(status) == want_signal) {
            return PASSED;
        }
        fprintf(stderr, "[FAIL] %s: %s:%d: crashed: %s\n", title, test->file, test->line, strsignal(WTERMSIG(status)));
        return CRASHED;
    }
    int code = WEXITSTATUS(status);
    if (code == STATUS_SKIPPED) {
        return SKIPPED;
    }
    if (code == want_exit && want_signal == 0) {
        return PASSED;
    }
    if (code == STATUS_FAILED) {
        fprintf(stderr, "[FAIL] %s\n", title);
    } else {
        fprintf(stderr, "[FAIL] %s: exited with %d\n", title, code);
    }
    return FAILED;
}

static enum outcome run_one(const struct mini_test *test, void *param, const char *title, double default_timeout)
{
    const struct mini_options *suite = suite_options(test->suite);
    double timeout = test->options.timeout > 0 ? test->options.timeout : suite->timeout;
    sigset_t chld, old;
    bool late;

    if (test->options.disabled || suite->disabled) {
        return SKIPPED;
    }
    if (timeout <= 0) {
        timeout = default_timeout;
    }
    timeout *= SLOWDOWN;
    sigemptyset(&chld);
    sigaddset(&chld, SIGCHLD);
    sigprocmask(SIG_BLOCK, &chld, &old);
    fflush(NULL);
    pid_t child = fork();
    if (child < 0) {
        perror("fork");
        exit(3);
    }
    if (child == 0) {
        sigprocmask(SIG_SETMASK, &old, NULL);
        run_child(test, param);
    }
    int status = wait_child(child, timeout, &late);
    sigprocmask(SIG_SETMASK, &old, NULL);
    return judge(test, title, status, late, timeout);
}

static void run_test(const struct mini_test *test, double timeout, bool verbose, size_t *counts)
{
    struct criterion_test_params params = {.length = 1};
    char title[256];

    if (test->params != NULL) {
        params = test->params();
    }
    for (size_t i = 0; i < params.length; i++) {
        void *param = params.params ? (char *)params.params + i * params.size : NULL;
        if (test->params != NULL) {
            snprintf(title, sizeof title, "%s::%s[%zu]", test->suite, test->name, i);
        } else {
            snprintf(title, sizeof title, "%s::%s", test->suite, test->name);
        }
        if (verbose) {
            fprintf(stderr, "[RUN ] %s\n", title);
        }
        enum outcome outcome = run_one(test, param, title, timeout);
        counts[outcome]++;
        if (verbose && outcome == PASSED) {
            fprintf(stderr, "[PASS] %s\n", title);
        }
    }
    if (params.cleanup != NULL) {
        params.cleanup(&params);
    }
}

static bool chosen(const struct mini_test *test, const char *filter)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", test->suite, test->name);
    return filter == NULL || fnmatch(filter, path, 0) == 0;
}

int main(int argc, char **argv)
{
    enum { OPT_FILTER = 256, OPT_TIMEOUT };
    static const struct option options[] = {
        {"filter", required_argument, NULL, OPT_FILTER},
        {"timeout", required_argument, NULL, OPT_TIMEOUT},
        {"jobs", required_argument, NULL, 'j'},
        {"verbose", optional_argument, NULL, 'v'},
        {"list", no_argument, NULL, 'l'},
        {NULL, 0, NULL, 0},
    };
    const char *filter = NULL;
    double timeout = 600;
    bool verbose = false, list = false;
    size_t counts[4] = {0};
    int c;

    while ((c = getopt_long(argc, argv, "j:vl", options, NULL)) != -1) {
        switch (c) {
        case OPT_FILTER: filter = optarg; break;
        case OPT_TIMEOUT: timeout = strtod(optarg, NULL); break;
        case 'j': break; /* always one at a time */
        case 'v': verbose = true; break;
        case 'l': list = true; break;
        default: return 3;
        }
    }
    for (struct mini_test *t = tests; t != NULL; t = t->next) {
        if (chosen(t, filter)) {
            if (list) {
                printf("%s/%s\n", t->suite, t->name);
            } else {
                run_test(t, timeout, verbose, counts);
            }
        }
    }
    if (!list) {
        fprintf(stderr, "[====] Synthesis: Tested: %zu | Passing: %zu | Failing: %zu | Crashing: %zu | Skipped: %zu\n",
                counts[PASSED] + counts[FAILED] + counts[CRASHED], counts[PASSED], counts[FAILED], counts[CRASHED],
                counts[SKIPPED]);
    }
    return counts[FAILED] + counts[CRASHED] > 0;
}
