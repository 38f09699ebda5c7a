/* Paths between GPUs that lie, hang, or are not there, under a whole job (paths_job.c): found at the first use, named once, not used. */
#include <criterion/criterion.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/sanitizer.h"
#include "support/spawn.h"

#define HANG_WAIT                                                                                                      \
    (SANITIZED_THREADS ? "HEADROOM_VERIFY_WAIT=4s"                                                                     \
                       : "HEADROOM_VERIFY_WAIT=1500ms") /* a machine may have much else to do */
#define ENV(...) ((const char *const[]){__VA_ARGS__, NULL})

static char *command, *job;

static void set_up(void)
{
    command = getenv("TEST_HEADROOM");
    job = getenv("TEST_JOB");
    cr_assert(command && job, "run through meson test");
    setenv("HEADROOM_STATS", "off", 1);
    setenv("SIMGPU_LOG", "off", 1);
}

TestSuite(paths, .init = set_up, .timeout = 240);

/* What the job has told of itself. */
struct told {
    int wrong, copies, peers;
    char err[4096];
};

static int number_behind(const char *text, const char *words)
{
    const char *at = strstr(text, words);

    cr_assert(at && at[strlen(words)] >= '0' && at[strlen(words)] <= '9', "no number behind '%s': %s", words, text);
    return (int)strtol(at + strlen(words), NULL, 10);
}

static struct told run(const char *verb, const char *machine, const char *how, const char *const *env)
{
    const char *const alone[] = {command, "sim", machine, "--", job, how, NULL};
    const char *const under[] = {command, "run", "--sim", machine, "--", job, how, NULL};
    struct hr_test_result r = hr_test_run(strcmp(verb, "sim") == 0 ? alone : under, env);
    struct told told = {0};

    cr_assert(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 0, "status %x: %s", (unsigned)r.status, r.err);
    told.wrong = number_behind(r.out, "wrong ");
    told.copies = number_behind(r.out, " of ");
    told.peers = number_behind(r.out, ", peers ");
    snprintf(told.err, sizeof told.err, "%s", r.err);
    hr_test_result_finish(&r);
    return told;
}

static int count(const char *text, const char *part)
{
    int n = 0;

    for (const char *at = text; (at = strstr(at, part)); at++)
        n++;
    return n;
}

/* Under a checker that makes everything slow, what others show as well is left to long runs. */
static bool is_short(void)
{
    return SANITIZED_THREADS && !getenv("HEADROOM_TEST_LONG");
}

Test(paths, a_job_gets_wrong_data_where_a_path_lies_and_nobody_looks)
{
    struct told alone = run("sim", "square4,vram=64M", "ask", ENV("SIMGPU_LINK=corrupt:0-1"));
    struct told off = run("run", "square4,vram=64M", "ask", ENV("SIMGPU_LINK=corrupt:0-1", "HEADROOM_VERIFY=off"));

    cr_expect_eq(alone.peers, 8);
    cr_expect_gt(alone.wrong, 0);
    cr_expect_gt(off.wrong, 0);
}

Test(paths, K47_one_that_corrupts_is_found_at_the_first_use_named_once_and_not_used)
{
    static const char *const how[] = {"ask", "force"};

    for (int i = 0; i < (is_short() ? 1 : 2); i++) {
        struct told told = run("run", "square4,vram=64M", how[i], ENV("SIMGPU_LINK=corrupt:0-1"));
        cr_expect_eq(told.wrong, 0, "%d of %d copies", told.wrong, told.copies);
        cr_expect_eq(told.peers, 6, "%d", told.peers);
        cr_expect(hr_test_is_one_line(told.err) && strstr(told.err, "GPU 0 and GPU 1") &&
                      strstr(told.err, "copies arrive wrong"),
                  "%s", told.err);
    }
}

Test(paths, K42_K48_one_that_hangs_costs_its_deadline_and_not_the_job)
{
    struct told told = run("run", "square4,vram=64M", "ask", ENV("SIMGPU_LINK=hang:2-3", HANG_WAIT));

    cr_expect_eq(told.wrong, 0);
    cr_expect_eq(told.peers, 6);
    cr_expect(hr_test_is_one_line(told.err) && strstr(told.err, "GPU 2 and GPU 3") &&
                  strstr(told.err, "copies do not end"),
              "%s", told.err);
}

Test(paths, where_there_is_no_way_round_copies_go_through_host_memory)
{
    struct told bad = run("run", "h100,gpus=2,vram=64M", "ask", ENV("SIMGPU_LINK=corrupt:0-1"));

    cr_expect_eq(bad.wrong, 0);
    cr_expect_eq(bad.peers, 0);
    cr_expect_eq(count(bad.err, "\n"), 1, "%s", bad.err);
    if (is_short())
        return;
    struct told both =
        run("run", "square4,vram=64M", "ask", ENV("SIMGPU_LINK=corrupt:0-1,corrupt:0-2,hang:2-3", HANG_WAIT));
    cr_expect_eq(both.wrong, 0);
    cr_expect_eq(both.peers, 2);
    cr_expect_eq(count(both.err, "\n"), 3, "%s", both.err);
}

Test(paths, K49_on_cards_that_are_no_peers_the_jobs_own_error_stays_true_and_nothing_is_said)
{
    struct told alone = run("sim", "rtx4090,gpus=2,vram=64M", "force", NULL);
    struct told under = run("run", "rtx4090,gpus=2,vram=64M", "force", NULL);

    cr_expect(alone.peers == 0 && under.peers == 0);
    cr_expect(alone.wrong == 0 && under.wrong == 0);
    cr_expect_str_empty(under.err);
}

Test(paths, links_that_fail_in_the_job_are_gone_round_whoever_tells_of_them)
{
    static const char *const deny[] = {"SIMGPU_DENY=", "SIMGPU_DENY=routers"}; /* the other one: NVML */

    for (int i = 0; i < 2; i++) {
        struct told told =
            run("run", "square4,vram=64M", "streams", ENV("SIMGPU_LINK=fail:0.0@1000000,fail:0.1@900000", deny[i]));
        cr_expect_eq(told.wrong, 0);
        cr_expect_str_empty(told.err);
    }
}

Test(paths, a_link_that_fails_under_the_trial_is_no_path_that_lies)
{
    if (is_short())
        return;
    struct told told = run("run", "square4,vram=64M", "ask", ENV("SIMGPU_LINK=fail:0.0@1000000,fail:0.1@20000000"));

    cr_expect_eq(told.wrong, 0);
    cr_expect_eq(told.peers, 8);
    cr_expect_str_empty(told.err);
}

/* What `headroom topo --report` says of the log of a job, in JSON. */
static char *report_of(const char *log)
{
    const char *const argv[] = {command, "topo", "--report", log, "--json", NULL};
    struct hr_test_result r = hr_test_run(argv, NULL);

    cr_assert(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 0, "status %x: %s", (unsigned)r.status, r.err);
    char *out = strdup(r.out);
    hr_test_result_finish(&r);
    return out;
}

/* A figure of the row that begins with these two numbers. */
static double figure(const char *json, const char *row, const char *name)
{
    const char *at = strstr(json, row), *end = at ? strchr(at, '}') : NULL, *member = at ? strstr(at, name) : NULL;

    cr_assert(member && end && member < end, "%s of %s is not in %s", name, row, json);
    return strtod(strchr(member, ':') + 1, NULL);
}

/* What stderr was told of the bad way stands in the log, once. */
static void expect_event(const char *log)
{
    char line[4096];
    int count = 0;
    FILE *f = fopen(log, "re");

    cr_assert(f);
    while (fgets(line, sizeof line, f))
        count += strstr(line, "\"event\":\"path\"") && strstr(line, "GPU 0 and GPU 1") &&
                 strstr(line, "copies arrive wrong");
    fclose(f);
    cr_expect_eq(count, 1, "%d events", count);
}

static void tell_ways(const char *deny, bool by_ports)
{
    char folder[] = "/tmp/headroom-traffic-XXXXXX", log[64], stats[96];

    cr_assert_not_null(mkdtemp(folder));
    snprintf(log, sizeof log, "%s/log", folder);
    snprintf(stats, sizeof stats, "HEADROOM_STATS=%s", log);
    struct told told = run("run", "square4,vram=64M", "ask", ENV("SIMGPU_LINK=corrupt:0-1", stats, deny));
    char *json = report_of(log);
    const char *bad = "\"from\":\t0,\n\t\t\t\"to\":\t1,", *good = "\"from\":\t0,\n\t\t\t\"to\":\t2,";
    cr_expect_eq(told.wrong, 0);
    expect_event(log);
    cr_expect_eq(figure(json, bad, "direct_bytes"), 0, "%s", json);
    cr_expect_eq(figure(json, bad, "relayed_bytes"), 0, "%s", json);
    cr_expect_gt(figure(json, bad, "staged_bytes"), 0, "%s", json);
    cr_expect_gt(figure(json, good, "direct_bytes"), 0, "%s", json);
    cr_expect_geq(figure(json, good, "relayed_bytes"), 2 * (1280 << 10), "two large copies to GPU 1 went this way: %s",
                  json);
    cr_expect_eq(strstr(json, "\"ports\"") != NULL, by_ports, "%s", json);
    for (int port = 0; port < 4 && by_ports; port++) {
        char row[64];
        snprintf(row, sizeof row, "\"from\":\t\"GPU0\",\n\t\t\t\"port\":\t%d,", port);
        cr_expect_eq(strstr(json, row) != NULL, port >= 2, "port %d: %s", port, json); /* 0 and 1 lead to GPU 1 */
    }
    free(json);
    unlink(log);
    rmdir(folder);
}

Test(paths, the_log_tells_which_ways_the_data_took_and_by_which_ports)
{
    tell_ways("SIMGPU_DENY=", true);
    if (!is_short())
        tell_ways("SIMGPU_DENY=routers", false); /* links are NVML's, as on hardware */
}

Test(paths, what_was_found_is_kept_for_the_next_job)
{
    char folder[] = "/tmp/headroom-paths-XXXXXX", cache[64];

    if (is_short())
        return;
    cr_assert_not_null(mkdtemp(folder));
    snprintf(cache, sizeof cache, "HEADROOM_TOPO_CACHE=%s/paths", folder);
    struct told first = run("run", "square4,vram=64M", "ask", ENV("SIMGPU_LINK=corrupt:0-2", cache));
    /* The node no longer corrupts. Whoever asks the file, and not the node, goes on without the pair. */
    struct told second = run("run", "square4,vram=64M", "ask", ENV("SIMGPU_LINK=", cache));
    cr_expect(first.wrong == 0 && first.peers == 6);
    cr_expect(second.wrong == 0 && second.peers == 6, "peers %d", second.peers);
    cr_expect(hr_test_is_one_line(second.err) && strstr(second.err, "GPU 0 and GPU 2"), "%s", second.err);
    snprintf(cache, sizeof cache, "%s/paths", folder);
    unlink(cache);
    rmdir(folder);
}
