/* `headroom report --timeline` as a whole program, on timelines made here. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/spawn.h"

#define ARGV(...) ((const char *const[]){__VA_ARGS__, NULL})

#define HEAD(schema, gpus)                                                                                             \
    "{\"timeline_schema\": " #schema ", \"pid\": 7, \"model\": \"h200\", \"gpus\": " #gpus                             \
    ", \"virtual_time_ns\": 3000000, \"dropped\": 0, \"operations\": ["
#define OPERATION(engine, stream, start, end, name)                                                                    \
    "{\"gpu\": 0, \"engine\": \"" engine "\", \"stream\": " #stream ", \"start_ns\": " #start ", \"end_ns\": " #end    \
    ", \"bytes\": 4096, \"name\": \"" name "\"}"

static const char *command;
static char folder[64], log_path[96], svg_path[96];

static void set_up(void)
{
    command = getenv("TEST_HEADROOM");
    cr_assert(command != NULL, "run through meson test");
    strcpy(folder, "/tmp/headroom-line-XXXXXX");
    cr_assert(mkdtemp(folder) != NULL);
    snprintf(log_path, sizeof log_path, "%s/log", folder);
    snprintf(svg_path, sizeof svg_path, "%s/svg", folder);
}

static void tear_down(void)
{
    unlink(log_path);
    unlink(svg_path);
    rmdir(folder);
}

TestSuite(timeline, .init = set_up, .fini = tear_down, .timeout = 60);

static struct hr_test_result draw(const char *text)
{
    FILE *f = fopen(log_path, "we");
    cr_assert(f != NULL && fputs(text, f) >= 0 && fclose(f) == 0);
    return hr_test_run(ARGV(command, "report", "--timeline", log_path), NULL);
}

/* Without strstr, which AddressSanitizer lets look at all of the rest each time. */
static size_t count(const char *text, const char *part)
{
    size_t n = 0, part_bytes = strlen(part);
    for (const char *at = text; *at != '\0'; at++) {
        n += *at == *part && strncmp(at, part, part_bytes) == 0;
    }
    return n;
}

Test(timeline, draws_each_operation_in_its_engines_and_its_streams_row)
{
    struct hr_test_result r = draw(HEAD(1, 1) OPERATION("sms", 3, 0, 1000000, "gemm<&>") "," OPERATION(
        "h2d", 4, 500000, 2000000, "copy") "," OPERATION("sms", 3, 2000000, 3000000, "gemm<&>") "]}");
    cr_assert(r.status == 0, "%s", r.err);
    cr_assert(strncmp(r.out, "<svg ", 5) == 0 && strstr(r.out, "</svg>\n") != NULL);
    cr_expect(count(r.out, "<title>gemm&lt;&amp;&gt;: 1 ms at ") == 4, "%s", r.out);
    cr_expect(count(r.out, "<title>copy: 1.5 ms at 500 us, 4096 bytes, stream 4</title>") == 2, "%s", r.out);
    static const char *const parts[] = {"GPU 0 SMs<",
                                        "GPU 0 copy in<",
                                        "GPU 0 stream 3<",
                                        "GPU 0 stream 4<",
                                        ", 2 times, 2 ms",
                                        "copy out<",
                                        "h200: 3 ms of virtual time, 3 operations"};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        cr_expect(strstr(r.out, parts[i]) != NULL, "'%s' is not in: %s", parts[i], r.out);
    }
    hr_test_result_finish(&r);
}

Test(timeline, writes_to_a_file_and_an_empty_one_is_a_picture_too)
{
    struct hr_test_result r = draw(HEAD(1, 0) "]}");
    cr_assert(r.status == 0 && strstr(r.out, "</svg>") != NULL, "%s", r.err);
    hr_test_result_finish(&r);
    r = hr_test_run(ARGV(command, "report", "--timeline", log_path, "-o", svg_path), NULL);
    cr_assert(r.status == 0 && r.out[0] == '\0', "%s", r.err);
    cr_assert(access(svg_path, R_OK) == 0);
    hr_test_result_finish(&r);
}

Test(timeline, many_short_operations_make_no_more_bars_than_can_be_seen)
{
    size_t room = 4 << 20, used = 0;
    char *text = malloc(room);
    cr_assert(text != NULL);
    used += (size_t)snprintf(text, room, HEAD(1, 1));
    for (int i = 0; i < 20000; i++) {
        used += (size_t)snprintf(text + used, room - used,
                                 "%s{\"gpu\": 0, \"engine\": \"d2d\", \"stream\": 1, \"start_ns\": %d, "
                                 "\"end_ns\": %d, \"bytes\": 1, \"name\": \"copy\"}",
                                 i != 0 ? "," : "", i * 10, i * 10 + 5);
    }
    snprintf(text + used, room - used, "]}");
    struct hr_test_result r = draw(text);
    cr_assert(r.status == 0, "%s", r.err);
    cr_expect(count(r.out, "<title>") < 14000 && count(r.out, "<title>") > 2000, "%zu bars", count(r.out, "<title>"));
    hr_test_result_finish(&r);
    free(text);
}

/* Shown failing by looking each name up among all: it took half a minute. */
Test(timeline, every_operation_may_have_a_name_of_its_own)
{
    struct rusage used_by_command;
    size_t room = 16 << 20, used = 0;
    char *text = malloc(room);
    cr_assert(text != NULL);
    used += (size_t)snprintf(text, room, HEAD(1, 1));
    for (int i = 0; i < 100000; i++) {
        used += (size_t)snprintf(text + used, room - used,
                                 "%s{\"gpu\": 0, \"engine\": \"sms\", \"stream\": 1, \"start_ns\": %d, "
                                 "\"end_ns\": %d, \"bytes\": 1, \"name\": \"kernel_%06d\"}",
                                 i != 0 ? "," : "", i * 10, i * 10 + (i == 77777 ? 9 : 5), i);
    }
    snprintf(text + used, room - used, "]}");
    struct hr_test_result r = draw(text);
    cr_assert(r.status == 0, "%s", r.err);
    getrusage(RUSAGE_CHILDREN, &used_by_command);
    cr_expect(used_by_command.ru_utime.tv_sec < 15, "it took %ld s", (long)used_by_command.ru_utime.tv_sec);
    cr_expect(count(r.out, ">kernel_077777, 1 times, 9 ns<") == 1 && count(r.out, "other kernels<") == 1);
    hr_test_result_finish(&r);
    free(text);
}

/* XML has no place for most control characters, nor for what is not UTF-8. */
Test(timeline, names_of_any_bytes_make_a_picture)
{
    struct hr_test_result r = draw(HEAD(1, 1) OPERATION(
        "sms", 3, 0, 5, "a\\u0001\xff\xc3(\xed\xa0\x80\\ufffe\xf5\x80\xc3\xa9\xf0\x9f\x98\x80z") "]}");
    cr_assert(r.status == 0, "%s", r.err);
    cr_expect(count(r.out, "<title>a?"
                           "?(????????\xc3\xa9\xf0\x9f\x98\x80z: 5 ns") == 2,
              "%s", r.out);
    hr_test_result_finish(&r);
}

Test(timeline, what_is_no_timeline_is_refused_in_one_line)
{
    static const struct {
        const char *text, *said;
    } bad[] = {
        {"", "not a timeline"},
        {"[1, 2]", "not a timeline"},
        {"{\"schema\": 2}", "not a timeline"},
        {HEAD(1, 1) "]", "not a timeline"},
        {HEAD(2, 1) "]}", "schema 2"},
        {HEAD(1, 1) "{}]}", "operation 1"},
        {HEAD(1, 1) OPERATION("sms", 1, 5, 4, "k") "]}", "operation 1"},
        {HEAD(1, 1) OPERATION("h2d", 1, 5, 6, "k") "," OPERATION("dma", 1, 5, 6, "k") "]}", "operation 2"},
        {HEAD(1, 0) OPERATION("sms", 1, 5, 6, "k") "]}", "operation 1"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        struct hr_test_result r = draw(bad[i].text);
        cr_expect(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 1, "%s: status %x", bad[i].text, r.status);
        cr_expect(hr_test_is_one_line(r.err) && strstr(r.err, bad[i].said) != NULL, "%s: %s", bad[i].text, r.err);
        cr_expect(r.out[0] == '\0', "%s", r.out);
        hr_test_result_finish(&r);
    }
    struct hr_test_result r = hr_test_run(ARGV(command, "report", "--timeline", "/nonexistent"), NULL);
    cr_expect(WEXITSTATUS(r.status) == 1 && hr_test_is_one_line(r.err), "%s", r.err);
    hr_test_result_finish(&r);
    r = hr_test_run(ARGV(command, "report", "--timeline"), NULL);
    cr_expect(WEXITSTATUS(r.status) == 2 && hr_test_is_one_line(r.err), "%s", r.err);
    hr_test_result_finish(&r);
}
