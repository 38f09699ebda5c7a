/* `headroom report` as a whole program, on logs made here. */
#include <cjson/cJSON.h>
#include <criterion/criterion.h>
#include <inttypes.h>
#include <link.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/spawn.h"

#define ARGV(...) ((const char *const[]){__VA_ARGS__, NULL})
#define ENV(...) ((const char *const[]){__VA_ARGS__, NULL})

#define START                                                                                                          \
    "{\"type\":\"start\",\"schema\":1,\"version\":\"0.1.0\",\"pid\":4711,\"host\":\"node7\",\"time_unix_ns\":1,"       \
    "\"command\":[\"train_gpt\",\"--steps\",\"3\"],\"driver_version\":13000,\"gpus\":[{\"index\":0,\"name\":\"H200\"," \
    "\"vram_bytes\":134217728,\"cap_bytes\":67108864,\"window_bytes\":402653184}],\"host_budget_bytes\":1073741824,"   \
    "\"settings\":{\"HEADROOM_RATIO\":\"6\"}}\n"
#define COUNTERS(moved_in)                                                                                             \
    "\"counters\":{\"allocations\":12,\"frees\":10,\"allocated_bytes\":268435456,\"freed_bytes\":1048576,"             \
    "\"peak_committed_bytes\":268435456,\"peak_vram_bytes\":66060288,\"peak_host_bytes\":209715200,"                   \
    "\"moved_in_bytes\":" #moved_in ",\"moved_out_bytes\":2147483648,\"moves_in\":7,\"moves_out\":9,"                  \
    "\"launches\":200,\"launches_resident\":150,\"working_set_bytes\":1000,\"working_set_hit_bytes\":925,"             \
    "\"stall_ns\":2000000000,\"stall_copy_ns\":1500000000,\"stall_drain_ns\":400000000,\"stall_map_ns\":1000000,"      \
    "\"gate_closes\":16,\"moves_given_up\":2,\"ooms\":1}"
#define INTERVAL "{\"type\":\"interval\",\"t_ns\":1000000000," COUNTERS(1048576) "}\n"
#define EVENT "{\"type\":\"event\",\"t_ns\":1500000000,\"event\":\"oom\",\"text\":\"refused 1 TiB\"}\n"
#define SUMMARY(sites)                                                                                                 \
    "{\"type\":\"summary\",\"t_ns\":4000000000,\"exit\":\"normal\",\"gpus\":[{\"index\":0,"                            \
    "\"peak_vram_bytes\":66060288}]," COUNTERS(3221225472) ",\"sites\":[" sites "]}\n"

static const char *command;
static char folder[64];

static void set_up(void)
{
    command = getenv("TEST_HEADROOM");
    cr_assert(command != NULL, "run through meson test");
    strcpy(folder, "/tmp/headroom-report-XXXXXX");
    cr_assert(mkdtemp(folder) != NULL);
}

static void tear_down(void)
{
    char log[96];

    snprintf(log, sizeof log, "%s/log", folder);
    unlink(log);
    rmdir(folder);
}

TestSuite(report, .init = set_up, .fini = tear_down, .timeout = 60);

/* Writes the one log file of a test and returns its path. */
static const char *write_log(const char *text, size_t bytes)
{
    static char path[96];

    snprintf(path, sizeof path, "%s/log", folder);
    FILE *f = fopen(path, "we");
    cr_assert(f != NULL);
    cr_assert(fwrite(text, 1, bytes, f) == bytes);
    cr_assert(fclose(f) == 0);
    return path;
}

static struct hr_test_result report(const char *text)
{
    return hr_test_run(ARGV(command, "report", write_log(text, strlen(text))), NULL);
}

static void expect_ok_with(struct hr_test_result *r, const char *const *parts)
{
    cr_expect(r->status == 0, "status %x, stderr: %s", r->status, r->err);
    cr_expect(r->err[0] == '\0', "stderr: %s", r->err);
    for (; *parts != NULL; parts++) {
        cr_expect(strstr(r->out, *parts) != NULL, "'%s' is not in: %s", *parts, r->out);
    }
    hr_test_result_finish(r);
}

static void expect_refusal(struct hr_test_result *r, const char *said)
{
    cr_expect(WIFEXITED(r->status) && WEXITSTATUS(r->status) == 1, "status %x", r->status);
    cr_expect(hr_test_is_one_line(r->err) && strstr(r->err, said) != NULL, "stderr: %s", r->err);
    cr_expect(r->out[0] == '\0', "stdout: %s", r->out);
    hr_test_result_finish(r);
}

Test(report, tells_the_figures_of_a_whole_log)
{
    struct hr_test_result r = report(START INTERVAL EVENT SUMMARY(""));
    expect_ok_with(&r, ARGV("train_gpt --steps 3 (pid 4711 on node7, headroom 0.1.0", "HEADROOM_RATIO=6",
                            "normal, after 4.00 s", "H200: VRAM 128.0 MiB, capped at 64.0 MiB, window 384.0 MiB",
                            "VRAM 63.0 MiB, host 200.0 MiB, committed 256.0 MiB",
                            "in 3.0 GiB in 7 moves, out 2.0 GiB in 9 moves, 2 given up",
                            "200 launches, 75.0 % with everything they name in VRAM, 92.5 % of the bytes",
                            "2.00 s, 50.0 % of the run, copying 1.50 s, draining 400.0 ms, mapping 1.0 ms",
                            "gate closed 16 times", "oom at 1.50 s: refused 1 TiB", "1 allocations refused"));
}

Test(report, tells_what_gpus_have_lent_each_other)
{
    struct hr_test_result r = report(START "{\"type\":\"summary\",\"t_ns\":1,\"exit\":\"normal\",\"counters\":{"
                                           "\"peak_vram_bytes\":4194304,\"peak_peer_bytes\":2097152,"
                                           "\"lent_out_bytes\":1073741824,\"lent_in_bytes\":536870912,"
                                           "\"called_in_bytes\":4194304,\"lent_now_bytes\":0}}\n");
    expect_ok_with(&r, ARGV("VRAM 4.0 MiB, other GPUs 2.0 MiB",
                            "out 1.0 GiB, in 512.0 MiB, called in by the lender 4.0 MiB; lent at the end 0 B"));
}

#define TRAFFIC                                                                                                        \
    "\"traffic\":[{\"from\":0,\"to\":1,\"copies\":3,\"direct_bytes\":3145728,\"relayed_bytes\":2097152,"               \
    "\"staged_bytes\":0},{\"from\":1,\"to\":2,\"copies\":3,\"direct_bytes\":1048576,\"relayed_bytes\":2097152,"        \
    "\"staged_bytes\":524288}]"

Test(report, tells_what_went_between_gpus_whether_the_job_has_ended_or_not)
{
    static const char *const lines[] = {"{\"type\":\"summary\",\"exit\":\"normal\"", "{\"type\":\"interval\""};
    char text[4096];

    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        snprintf(text, sizeof text,
                 START "%s,\"t_ns\":1," TRAFFIC ",\"counters\":{\"transfer_relayed_bytes\":2097152,"
                       "\"transfer_again_bytes\":1024,\"route_switches\":2}}\n",
                 lines[i]);
        struct hr_test_result r = report(text);
        expect_ok_with(&r,
                       ARGV("between GPUs    4.0 MiB directly, 2.0 MiB over other GPUs, 512.0 KiB through host memory, "
                            "1.0 KiB again after a link failed, 2 changes of route"));
    }
}

Test(report, nothing_is_said_of_ways_between_gpus_where_nothing_took_one)
{
    struct hr_test_result r = report(START "{\"type\":\"summary\",\"t_ns\":1,\"exit\":\"normal\",\"traffic\":[],"
                                           "\"counters\":{\"transfer_relayed_bytes\":0}}\n");
    cr_expect(strstr(r.out, "between GPUs") == NULL, "%s", r.out);
    expect_ok_with(&r, ARGV("hit rate"));
}

Test(report, a_log_cut_off_by_a_kill_gives_the_last_interval)
{
    struct hr_test_result r = report(START INTERVAL "{\"type\":\"interval\",\"t_ns\":20000");
    expect_ok_with(&r, ARGV("without a summary", "up to 1.00 s after the start", "in 1.0 MiB in 7 moves"));
    r = report(START INTERVAL);
    expect_ok_with(&r, ARGV("without a summary", "up to 1.00 s after the start"));
    r = report(START "{\"ty");
    expect_ok_with(&r, ARGV("without a summary", "before the first figures"));
}

Test(report, a_log_cut_anywhere_is_reported_or_refused_in_one_line)
{
    static const char whole[] = START INTERVAL EVENT SUMMARY("");
    size_t start_bytes = strlen(START) - 1;

    for (size_t cut = 0; cut < sizeof whole; cut += 37) {
        struct hr_test_result r = hr_test_run(ARGV(command, "report", write_log(whole, cut)), NULL);
        if (cut < start_bytes) {
            expect_refusal(&r, cut == 0 ? "is empty" : "not a headroom stats log");
        } else {
            expect_ok_with(&r, ARGV("train_gpt --steps 3"));
        }
    }
}

Test(report, several_runs_in_a_file_and_several_files_are_told_one_by_one)
{
    const char *path = write_log(START INTERVAL START SUMMARY(""), strlen(START INTERVAL START SUMMARY("")));
    struct hr_test_result r = hr_test_run(ARGV(command, "report", path, path), NULL);
    size_t runs = 0;

    for (const char *at = r.out; (at = strstr(at, "(pid 4711")) != NULL; at++) {
        runs++;
    }
    cr_expect_eq(runs, 4u);
    expect_ok_with(&r, ARGV("without a summary", "normal, after"));
}

Test(report, what_is_no_log_is_refused_in_one_line)
{
    static const char binary[] = "\x7f"
                                 "ELF\0\0\0garbage\n\0\xff\xfe\n";
    struct hr_test_result r = report("hello\nworld\n");
    expect_refusal(&r, "line 1 is not a JSON object");
    r = hr_test_run(ARGV(command, "report", write_log(binary, sizeof binary)), NULL);
    expect_refusal(&r, "line 1 is not a JSON object");
    r = report("{}\n{}\n");
    expect_refusal(&r, "line 1 is no start line");
    r = report("[1, 2]\n");
    expect_refusal(&r, "line 1 is not a JSON object");
    r = report("{\"type\":\"start\"}\n");
    expect_refusal(&r, "no schema number");
    r = report("{\"type\":\"start\",\"schema\":99}\n");
    expect_refusal(&r, "schema 99");
    r = report(START "garbage\n" INTERVAL);
    expect_refusal(&r, "line 2 is not a JSON object");
    r = report("");
    expect_refusal(&r, "is empty");
    r = hr_test_run(ARGV(command, "report", "/nonexistent/log"), NULL);
    expect_refusal(&r, "/nonexistent/log: No such file");
    r = hr_test_run(ARGV(command, "report", folder), NULL);
    expect_refusal(&r, "Is a directory");
}

Test(report, members_of_the_wrong_type_do_no_harm)
{
    struct hr_test_result r = report(
        "{\"type\":\"start\",\"schema\":1,\"command\":7,\"gpus\":{\"a\":[]},\"settings\":[1],\"host\":null}\n"
        "{\"type\":\"summary\",\"t_ns\":\"x\",\"exit\":3,\"counters\":{\"launches\":[]},\"gpus\":7,"
        "\"sites\":[7,{\"frames\":3},{\"frames\":[1,{\"object\":7,\"offset\":1},{\"object\":\"/x\",\"offset\":-5}]}]}\n"
        "{\"type\":7}\n{\"no\":\"type\"}\n");
    expect_ok_with(&r, ARGV("headroom ?"));
}

Test(report, bad_flags_are_refused_in_one_line)
{
    const char *const *calls[] = {ARGV(command, "report"), ARGV(command, "report", "--jsno", "x"),
                                  ARGV(command, "report", "--sites", "-3", "x"), ARGV(command, "report", "--sites"),
                                  ARGV(command, "report", "--sites=many", "x")};
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        struct hr_test_result r = hr_test_run(calls[i], NULL);
        cr_expect(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 2, "status %x", r.status);
        cr_expect(hr_test_is_one_line(r.err), "stderr: %s", r.err);
        hr_test_result_finish(&r);
    }
}

Test(report, json_is_the_same_for_programs)
{
    const char *path = write_log(START INTERVAL EVENT SUMMARY(""), strlen(START INTERVAL EVENT SUMMARY("")));
    struct hr_test_result r = hr_test_run(ARGV(command, "report", "--json", path), NULL);
    cJSON *runs = cJSON_Parse(r.out), *run = cJSON_GetArrayItem(runs, 0);

    cr_assert(r.status == 0 && cJSON_GetArraySize(runs) == 1 && run != NULL);
    cr_expect(cJSON_IsTrue(cJSON_GetObjectItem(run, "complete")));
    cr_expect(cJSON_GetArraySize(cJSON_GetObjectItem(run, "events")) == 1);
    const cJSON *counters = cJSON_GetObjectItem(cJSON_GetObjectItem(run, "summary"), "counters");
    cr_expect(cJSON_GetObjectItem(counters, "moved_in_bytes")->valuedouble == 3221225472.0);
    cJSON_Delete(runs);
    struct hr_test_result behind = hr_test_run(ARGV(command, "report", path, "--sites", "3", "--json"), NULL);
    cr_expect(behind.status == 0 && strcmp(behind.out, r.out) == 0, "flags behind the file: %s", behind.err);
    hr_test_result_finish(&behind);
    hr_test_result_finish(&r);
}

Test(report, what_stands_behind_two_dashes_is_a_file)
{
    struct hr_test_result r = hr_test_run(ARGV(command, "report", "--", "--json"), NULL);
    expect_refusal(&r, "cannot read --json");
}

/* The symbol that the tests below look for. */
__attribute__((noinline, used)) static int allocate_the_weights(int n)
{
    static volatile int sink;
    sink = n;
    return sink;
}

static int first_object(struct dl_phdr_info *info, size_t size, void *address_out)
{
    (void)size;
    *(uintptr_t *)address_out = info->dlpi_addr;
    return 1; /* the first one is the program itself */
}

/* A log whose one site has a frame just inside the function above, and one in a file that does not exist. */
static const char *log_with_sites(void)
{
    static char text[8192];
    char self[512];
    uintptr_t base;

    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    cr_assert(n > 0);
    self[n] = '\0';
    dl_iterate_phdr(first_object, &base);
    cr_assert(allocate_the_weights(3) == 3);
    uintptr_t offset = (uintptr_t)allocate_the_weights - base + 2;
    snprintf(text, sizeof text,
             START SUMMARY("{\"frames\":[{\"object\":\"/gone.so\",\"offset\":16}],\"allocations\":1,\"bytes\":7,"
                           "\"peak_live_bytes\":7,\"moved_out_bytes\":5},"
                           "{\"frames\":[{\"object\":\"%s\",\"offset\":%" PRIuPTR "}],"
                           "\"allocations\":4,\"bytes\":4096,\"peak_live_bytes\":2048,\"moved_out_bytes\":1048576}"),
             self, offset);
    return write_log(text, strlen(text));
}

Test(report, allocation_sites_are_named_those_that_moved_most_first)
{
    struct hr_test_result r = hr_test_run(ARGV(command, "report", log_with_sites()), NULL);
    const char *named = strstr(r.out, "allocate_the_weights at test_report.c:"), *gone = strstr(r.out, "gone.so+0x10");

    cr_expect(named != NULL && gone != NULL && named < gone, "stdout: %s", r.out);
    expect_ok_with(&r, ARGV("4 allocations, 4.0 KiB; at most 2.0 KiB live; moved out 1.0 MiB"));
    r = hr_test_run(ARGV(command, "report", "--sites", "1", log_with_sites()), NULL);
    cr_expect(strstr(r.out, "gone.so") == NULL, "stdout: %s", r.out);
    expect_ok_with(&r, ARGV("1 of 2", "allocate_the_weights"));
    r = hr_test_run(ARGV(command, "report", "--json", log_with_sites()), NULL);
    expect_ok_with(&r, ARGV("allocate_the_weights at test_report.c:"));
}

Test(report, sites_are_named_without_addr2line_too)
{
    struct hr_test_result r = hr_test_run(ARGV(command, "report", log_with_sites()), ENV("PATH=/nonexistent"));
    expect_ok_with(&r, ARGV("allocate_the_weights (test_cli_report)", "gone.so+0x10"));
}
