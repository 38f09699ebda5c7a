/* A small test header with the names of Criterion's macros.
 *
 * Criterion 2.4.1 cannot start under ThreadSanitizer, so that configuration compiles the same test sources against this
 * header (tests/support/meson.build chooses). It has what our tests use and no more: Test, TestSuite and
 * ParameterizedTest with their options, cr_assert*, cr_expect*, cr_skip_test, cr_log_*. Every test runs in a forked
 * child, one after the other; whatever is missing here fails to compile and never passes silently.
 */
#ifndef MINI_CRITERION_H
#define MINI_CRITERION_H

#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct criterion_test_params {
    size_t size; /* of one parameter, bytes */
    void *params;
    size_t length;
    void (*cleanup)(struct criterion_test_params *params);
    void *unused;
};

/* The options of a test or a suite, by Criterion's names. */
struct mini_options {
    int sentinel_;
    void (*init)(void);
    void (*fini)(void);
    int signal;    /* the signal that must end the test; 0 = none */
    int exit_code; /* the status that the test must exit with */
    bool disabled;
    const char *description;
    double timeout; /* seconds; 0 = the runner's default */
    void *data;
};

struct mini_test {
    const char *suite;
    const char *name;
    const char *file;
    int line;
    void (*body)(void);
    void (*param_body)(void *param);
    struct criterion_test_params (*params)(void);
    struct mini_options options;
    struct mini_test *next;
};

struct mini_suite {
    const char *name;
    struct mini_options options;
    struct mini_suite *next;
};

/* Called by the constructors that the macros make, before main. The structs are static and stay where they are. */
void mini_add_test(struct mini_test *test);
void mini_add_suite(struct mini_suite *suite);

/* Reports a failed assertion and marks the running test; with `fatal` the test ends here and this does not return.
 * Callable from any thread of the test. */
void mini_fail(bool fatal, const char *file, int line, const char *what, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
_Noreturn void mini_skip(const char *format, ...) __attribute__((format(printf, 1, 2)));
void mini_log(const char *level, const char *format, ...) __attribute__((format(printf, 2, 3)));
int mini_str_compare(const char *a, const char *b); /* strcmp that accepts NULL, which sorts first */

#define MINI_STR_(x) #x
#define MINI_STR(x) MINI_STR_(x)

#define MINI_DEFINE_(Suite, Name, BodyField, BodyFn, ParamsFn, ...)                                                    \
    __attribute__((constructor)) static void Suite##_##Name##_mini_add(void)                                           \
    {                                                                                                                  \
        static struct mini_test test = {.suite = #Suite,                                                               \
                                        .name = #Name,                                                                 \
                                        .file = __FILE__,                                                              \
                                        .line = __LINE__,                                                              \
                                        .BodyField = BodyFn,                                                           \
                                        .params = ParamsFn,                                                            \
                                        .options = {__VA_ARGS__}};                                                     \
        mini_add_test(&test);                                                                                          \
    }

#define Test(...) MINI_TEST_(__VA_ARGS__, .sentinel_ = 0)
#define MINI_TEST_(Suite, Name, ...)                                                                                   \
    static void Suite##_##Name##_impl(void);                                                                           \
    MINI_DEFINE_(Suite, Name, body, Suite##_##Name##_impl, NULL, __VA_ARGS__)                                          \
    static void Suite##_##Name##_impl(void)

#define ParameterizedTestParameters(Suite, Name) static struct criterion_test_params Suite##_##Name##_params(void)
#define ParameterizedTest(...) MINI_PARAM_TEST_(__VA_ARGS__, .sentinel_ = 0)
#define MINI_PARAM_TEST_(Param, Suite, Name, ...)                                                                      \
    static void Suite##_##Name##_impl(Param);                                                                          \
    static void Suite##_##Name##_call(void *param)                                                                     \
    {                                                                                                                  \
        Suite##_##Name##_impl(param);                                                                                  \
    }                                                                                                                  \
    MINI_DEFINE_(Suite, Name, param_body, Suite##_##Name##_call, Suite##_##Name##_params, __VA_ARGS__)                 \
    static void Suite##_##Name##_impl(Param)
#define cr_make_param_array(Type, Array, ...) cr_make_param_array_(Type, Array, __VA_ARGS__, NULL)
#define cr_make_param_array_(Type, Array, Length, Cleanup, ...)                                                        \
    ((struct criterion_test_params){sizeof(Type), (void *)(Array), (Length), (Cleanup), NULL})

#define TestSuite(...) MINI_SUITE_(__VA_ARGS__, .sentinel_ = 0)
#define MINI_SUITE_(Name, ...)                                                                                         \
    __attribute__((constructor)) static void Name##_mini_add_suite(void)                                               \
    {                                                                                                                  \
        static struct mini_suite suite = {.name = #Name, .options = {__VA_ARGS__}};                                    \
        mini_add_suite(&suite);                                                                                        \
    }                                                                                                                  \
    struct mini_suite /* takes the semicolon */

/* The message is optional; the leading "" lets an absent one be an empty format. */
#define MINI_CHECK_(Fatal, Ok, What, ...)                                                                              \
    do {                                                                                                               \
        if (!(Ok)) {                                                                                                   \
            mini_fail(Fatal, __FILE__, __LINE__, What, "" __VA_ARGS__);                                                \
        }                                                                                                              \
    } while (0)

#define MINI_OP_(Fatal, A, Op, B, ...) MINI_CHECK_(Fatal, (A)Op(B), #A " " #Op " " #B, __VA_ARGS__)
#define MINI_STR_OP_(Fatal, A, Op, B, ...)                                                                             \
    MINI_CHECK_(Fatal, mini_str_compare((A), (B)) Op 0, "strings: " #A " " #Op " " #B, __VA_ARGS__)
#define MINI_ARR_OP_(Fatal, A, Op, B, Size, ...)                                                                       \
    MINI_CHECK_(Fatal, memcmp((A), (B), (Size)) Op 0, "arrays: " #A " " #Op " " #B, __VA_ARGS__)
#define MINI_NEAR_(Fatal, A, B, Eps, ...)                                                                              \
    MINI_CHECK_(Fatal, fabs((double)(A) - (double)(B)) <= (double)(Eps), #A " near " #B, __VA_ARGS__)
#define MINI_FAR_(Fatal, A, B, Eps, ...)                                                                               \
    MINI_CHECK_(Fatal, !(fabs((double)(A) - (double)(B)) <= (double)(Eps)), #A " not near " #B, __VA_ARGS__)
#define MINI_EMPTY_(Fatal, S, Op, ...) MINI_CHECK_(Fatal, (S)[0] Op '\0', #S "[0] " #Op " 0", __VA_ARGS__)

#define cr_assert(Cond, ...) MINI_CHECK_(true, Cond, #Cond, __VA_ARGS__)
#define cr_expect(Cond, ...) MINI_CHECK_(false, Cond, #Cond, __VA_ARGS__)
#define cr_assert_not(Cond, ...) MINI_CHECK_(true, !(Cond), "!(" #Cond ")", __VA_ARGS__)
#define cr_expect_not(Cond, ...) MINI_CHECK_(false, !(Cond), "!(" #Cond ")", __VA_ARGS__)
#define cr_assert_fail(...) MINI_CHECK_(true, false, "reached", __VA_ARGS__)
#define cr_expect_fail(...) MINI_CHECK_(false, false, "reached", __VA_ARGS__)
#define cr_fatal(...) MINI_CHECK_(true, false, "reached", __VA_ARGS__)
#define cr_fail(...) MINI_CHECK_(false, false, "reached", __VA_ARGS__)

#define cr_assert_eq(A, B, ...) MINI_OP_(true, A, ==, B, __VA_ARGS__)
#define cr_expect_eq(A, B, ...) MINI_OP_(false, A, ==, B, __VA_ARGS__)
#define cr_assert_neq(A, B, ...) MINI_OP_(true, A, !=, B, __VA_ARGS__)
#define cr_expect_neq(A, B, ...) MINI_OP_(false, A, !=, B, __VA_ARGS__)
#define cr_assert_lt(A, B, ...) MINI_OP_(true, A, <, B, __VA_ARGS__)
#define cr_expect_lt(A, B, ...) MINI_OP_(false, A, <, B, __VA_ARGS__)
#define cr_assert_leq(A, B, ...) MINI_OP_(true, A, <=, B, __VA_ARGS__)
#define cr_expect_leq(A, B, ...) MINI_OP_(false, A, <=, B, __VA_ARGS__)
#define cr_assert_gt(A, B, ...) MINI_OP_(true, A, >, B, __VA_ARGS__)
#define cr_expect_gt(A, B, ...) MINI_OP_(false, A, >, B, __VA_ARGS__)
#define cr_assert_geq(A, B, ...) MINI_OP_(true, A, >=, B, __VA_ARGS__)
#define cr_expect_geq(A, B, ...) MINI_OP_(false, A, >=, B, __VA_ARGS__)
#define cr_assert_null(A, ...) MINI_OP_(true, A, ==, NULL, __VA_ARGS__)
#define cr_expect_null(A, ...) MINI_OP_(false, A, ==, NULL, __VA_ARGS__)
#define cr_assert_not_null(A, ...) MINI_OP_(true, A, !=, NULL, __VA_ARGS__)
#define cr_expect_not_null(A, ...) MINI_OP_(false, A, !=, NULL, __VA_ARGS__)
#define cr_assert_str_eq(A, B, ...) MINI_STR_OP_(true, A, ==, B, __VA_ARGS__)
#define cr_expect_str_eq(A, B, ...) MINI_STR_OP_(false, A, ==, B, __VA_ARGS__)
#define cr_assert_str_neq(A, B, ...) MINI_STR_OP_(true, A, !=, B, __VA_ARGS__)
#define cr_expect_str_neq(A, B, ...) MINI_STR_OP_(false, A, !=, B, __VA_ARGS__)
#define cr_assert_str_empty(S, ...) MINI_EMPTY_(true, S, ==, __VA_ARGS__)
#define cr_expect_str_empty(S, ...) MINI_EMPTY_(false, S, ==, __VA_ARGS__)
#define cr_assert_str_not_empty(S, ...) MINI_EMPTY_(true, S, !=, __VA_ARGS__)
#define cr_expect_str_not_empty(S, ...) MINI_EMPTY_(false, S, !=, __VA_ARGS__)
#define cr_assert_arr_eq(A, B, Size, ...) MINI_ARR_OP_(true, A, ==, B, Size, __VA_ARGS__)
#define cr_expect_arr_eq(A, B, Size, ...) MINI_ARR_OP_(false, A, ==, B, Size, __VA_ARGS__)
#define cr_assert_arr_neq(A, B, Size, ...) MINI_ARR_OP_(true, A, !=, B, Size, __VA_ARGS__)
#define cr_expect_arr_neq(A, B, Size, ...) MINI_ARR_OP_(false, A, !=, B, Size, __VA_ARGS__)
#define cr_assert_float_eq(A, B, Eps, ...) MINI_NEAR_(true, A, B, Eps, __VA_ARGS__)
#define cr_expect_float_eq(A, B, Eps, ...) MINI_NEAR_(false, A, B, Eps, __VA_ARGS__)
#define cr_assert_float_neq(A, B, Eps, ...) MINI_FAR_(true, A, B, Eps, __VA_ARGS__)
#define cr_expect_float_neq(A, B, Eps, ...) MINI_FAR_(false, A, B, Eps, __VA_ARGS__)

#define cr_skip_test(...) mini_skip("" __VA_ARGS__)
#define cr_skip(...) mini_skip("" __VA_ARGS__)
#define cr_log_info(...) mini_log("info", __VA_ARGS__)
#define cr_log_warn(...) mini_log("warn", __VA_ARGS__)
#define cr_log_error(...) mini_log("error", __VA_ARGS__)

#endif
