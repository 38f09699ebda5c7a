/* `headroom topo` as a whole program, on machine files and on simulated nodes. */
#include <cjson/cJSON.h>
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/sanitizer.h"
#include "support/spawn.h"

#define ARGV(...) ((const char *const[]){__VA_ARGS__, NULL})
#define HANG_WAIT                                                                                                      \
    (SANITIZED_THREADS ? "HEADROOM_VERIFY_WAIT=4s"                                                                     \
                       : "HEADROOM_VERIFY_WAIT=1500ms") /* a machine may have much else to do */
#define ENV(...) ((const char *const[]){__VA_ARGS__, NULL})

static const char *command;
static char folder[64], cache[96], cache_env[128];

static void set_up(void)
{
    command = getenv("TEST_HEADROOM");
    cr_assert(command != NULL, "run through meson test");
    unsetenv("SIMGPU");
    unsetenv("LD_LIBRARY_PATH");
    unsetenv("HEADROOM_DRIVER");
    unsetenv("NCCL_TOPO_FILE");
    setenv("SIMGPU_LOG", "off", 1);
    strcpy(folder, "/tmp/headroom-topo-XXXXXX");
    cr_assert(mkdtemp(folder) != NULL);
    setenv("XDG_CACHE_HOME", folder, 1);
    snprintf(cache, sizeof cache, "%s/deep/paths", folder);
    snprintf(cache_env, sizeof cache_env, "HEADROOM_TOPO_CACHE=%s", cache);
}

static void tear_down(void)
{
    char line[128];

    snprintf(line, sizeof line, "rm -rf %s", folder);
    cr_expect(system(line) == 0);
}

TestSuite(topo, .init = set_up, .fini = tear_down, .timeout = 120);

static const char *machine_file(const char *name)
{
    static char path[512];

    snprintf(path, sizeof path, "%s/%s.xml", MACHINES, name);
    return path;
}

static char *output(const char *const *argv, const char *const *env)
{
    struct hr_test_result r = hr_test_run(argv, env);

    cr_assert(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 0, "status %x, stderr: %s", r.status, r.err);
    cr_expect(r.err[0] == '\0', "stderr: %s", r.err);
    char *out = strdup(r.out);
    hr_test_result_finish(&r);
    return out;
}

static cJSON *json_of(const char *const *argv, const char *const *env, char **err_out)
{
    struct hr_test_result r = hr_test_run(argv, env);

    cr_assert(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 0, "status %x, stderr: %s", r.status, r.err);
    cJSON *json = cJSON_Parse(r.out);
    cr_assert(json != NULL, "%s", r.out);
    if (err_out != NULL) {
        *err_out = strdup(r.err);
    } else {
        cr_expect(r.err[0] == '\0', "stderr: %s", r.err);
    }
    hr_test_result_finish(&r);
    return json;
}

static const cJSON *pair(const cJSON *json, int from, int to)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, cJSON_GetObjectItem(json, "pairs"))
    {
        if (cJSON_GetObjectItem(item, "from")->valueint == from && cJSON_GetObjectItem(item, "to")->valueint == to) {
            return item;
        }
    }
    cr_assert_fail("no pair %d, %d", from, to);
    return NULL;
}

static void expect_text(const cJSON *object, const char *name, const char *want)
{
    const cJSON *item = cJSON_GetObjectItem(object, name);

    cr_assert(cJSON_IsString(item), "no %s", name);
    cr_expect(strcmp(item->valuestring, want) == 0, "%s is %s, not %s", name, item->valuestring, want);
}

static double value(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItem(object, name);

    cr_assert(cJSON_IsNumber(item), "no %s", name);
    return item->valuedouble;
}

static void expect_near(const cJSON *object, const char *name, double want)
{
    double have = value(object, name);

    cr_expect(have > want * 0.98 && have < want * 1.02, "%s is %g, not %g", name, have, want);
}

static size_t count(const char *text, const char *part)
{
    size_t n = 0;

    for (const char *at = text; (at = strstr(at, part)) != NULL; at++) {
        n++;
    }
    return n;
}

Test(topo, a_files_machine_is_shown_without_any_gpu)
{
    static const struct {
        const char *name, *row, *route;
    } rows[] = {
        {"dgx1v", "GPU0\t X \tNV1\tNV1\tNV2\tNV2\tSYS\tSYS\tSYS\t0\n", "GPU0 to GPU1\t150.0 = 25.0 direct + "},
        {"mi250x", "GPU2\tNV1\t", "GPU0 to GPU1\t300.0 = 200.0 direct + "},
        {"a100x4", "GPU1\tNV4\t X \tNV4\tNV4\t", "GPU3 to GPU0\t300.0 = 100.0 direct + "},
        {"hgx-h100", "GPU0\t X \tNV18\tNV18", "GPU0 to GPU7\t450.0 direct\n"},
        {"pcie8", "GPU4\tSYS\tSYS\tSYS\tSYS\t X \tPIX\tPHB\tPHB\t1\n", "GPU4 to GPU5\t31.5 over PCIe\n"},
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char *out = output(ARGV(command, "topo", "--file", machine_file(rows[i].name)), ENV("HEADROOM_DRIVER=/none"));
        cr_expect(strstr(out, rows[i].row) != NULL, "%s: '%s' is not in: %s", rows[i].name, rows[i].row, out);
        cr_expect(strstr(out, rows[i].route) != NULL, "%s: '%s' is not in: %s", rows[i].name, rows[i].route, out);
        free(out);
    }
}

/* From the matrix on; the line before says where the machine comes from. */
static const char *below_title(const char *text)
{
    const char *blank = strstr(text, "\n\n");

    cr_assert(blank != NULL, "%s", text);
    return blank + 2;
}

static void write_file(const char *path, const char *text)
{
    FILE *f = fopen(path, "we");

    cr_assert(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

Test(topo, known_machines_are_the_same_written_and_read_again_and_as_what_a_job_is_told)
{
    static const char *const names[] = {"dgx1v", "mi250x", "a100x4", "hgx-h100", "pcie8"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[128], topo[640], machine[640];
        snprintf(path, sizeof path, "%s/written.xml", folder);
        snprintf(topo, sizeof topo, "HEADROOM_TOPO=%s", machine_file(names[i]));
        snprintf(machine, sizeof machine, "topo=%s,vram=64M", machine_file(names[i]));
        char *read = output(ARGV(command, "topo", "--file", machine_file(names[i])), NULL);
        char *xml = output(ARGV(command, "topo", "--file", machine_file(names[i]), "--xml"), NULL);
        write_file(path, xml);
        char *again = output(ARGV(command, "topo", "--file", path), NULL);
        cr_expect(strcmp(below_title(read), below_title(again)) == 0, "%s: %s is not %s", names[i], again, read);
        char *found = output(ARGV(command, "topo", "--sim", machine), ENV(topo));
        cr_expect(strstr(found, "links as NVML, PCIe as topology file tells") != NULL, "%s", found);
        size_t matrix = (size_t)(strstr(below_title(read), "\n\n") - below_title(read));
        cr_expect(strncmp(below_title(read), below_title(found), matrix) == 0, "%s: %s is not %s", names[i], found,
                  read);
        free(read);
        free(xml);
        free(again);
        free(found);
    }
}

Test(topo, a_simulated_node_is_discovered_through_its_driver_and_nvml)
{
    cJSON *json = json_of(ARGV(command, "topo", "--sim", "dgx1v,vram=64M", "--json"), NULL, NULL);

    expect_text(json, "links_from", "NVML");
    expect_text(json, "tree_from", "NVML");
    cr_assert_eq(cJSON_GetArraySize(cJSON_GetObjectItem(json, "gpus")), 8);
    const cJSON *gpu = cJSON_GetArrayItem(cJSON_GetObjectItem(json, "gpus"), 2);
    expect_text(gpu, "bus_id", "0000:0a:00.0");
    cr_expect_eq(value(gpu, "memory_bytes"), 64 << 20);
    cr_expect_eq(value(gpu, "base"), 2 * (64 << 20));
    expect_text(pair(json, 0, 3), "relation", "NV2");
    expect_text(pair(json, 0, 5), "relation", "SYS");
    expect_text(pair(json, 0, 3), "state", "unproven");
    expect_near(pair(json, 0, 3), "gbps", 150);
    expect_near(pair(json, 0, 5), "gbps", 150);
    cr_expect(cJSON_IsTrue(cJSON_GetObjectItem(pair(json, 0, 3), "atomics")));
    cJSON_Delete(json);
}

Test(topo, hidden_gpus_boxes_and_switches_are_what_they_are)
{
    cJSON *json = json_of(ARGV(command, "topo", "--sim", "hgx-h100,gpus=3,vram=64M", "--json"), NULL, NULL);

    cr_expect_eq(cJSON_GetArraySize(cJSON_GetObjectItem(json, "gpus")), 3);
    expect_text(pair(json, 0, 2), "relation", "NV18");
    cJSON_Delete(json);
    json = json_of(ARGV(command, "topo", "--sim", "pcie-box,vram=64M", "--json"), NULL, NULL);
    expect_text(pair(json, 0, 3), "relation", "PIX");
    expect_text(pair(json, 0, 4), "relation", "SYS");
    cr_expect(cJSON_IsFalse(cJSON_GetObjectItem(pair(json, 0, 4), "access")));
    cr_expect(cJSON_IsFalse(cJSON_GetObjectItem(pair(json, 0, 4), "over_links")));
    cJSON_Delete(json);
    json = json_of(ARGV(command, "topo", "--sim", "dgx2,vram=64M", "--json"), NULL, NULL);
    expect_text(pair(json, 0, 15), "relation", "NV6"); /* over two switches */
    cr_expect(cJSON_IsTrue(cJSON_GetObjectItem(pair(json, 0, 15), "over_links")));
    expect_near(pair(json, 0, 15), "gbps", 150);
    cJSON_Delete(json);
    char *out = output(ARGV(command, "topo", "--sim", "h200,gpus=2,vram=64M", "--measure"), NULL);
    cr_expect(strstr(out, "GPU0 to GPU1\t380.0 direct, as measured") != NULL, "%s", out);
    free(out);
    out = output(ARGV(command, "topo", "--sim", "h200,vram=64M"), NULL);
    cr_expect(strstr(out, "1 GPU") != NULL && strstr(out, "Routes") == NULL, "%s", out);
    free(out);
}

Test(topo, a_driver_without_nvml_is_enough)
{
    char driver[600];

    snprintf(driver, sizeof driver, "HEADROOM_DRIVER=%s/114/libcuda.so.1", getenv("TEST_VARIANTS"));
    cJSON *json = json_of(ARGV(command, "topo", "--json"), ENV(driver, "SIMGPU=square4,vram=64M"), NULL);
    expect_text(json, "links_from", "driver");
    expect_text(json, "driver", "11040");
    expect_text(pair(json, 0, 1), "relation", "NV1");
    expect_text(pair(json, 0, 3), "relation", "PHB");
    cJSON_Delete(json);
}

Test(topo, a_topology_file_adds_what_nvml_does_not_tell)
{
    char topo[600], driver[600], *err;

    /* The machine's own file, with its bridges; then one of another machine. */
    snprintf(topo, sizeof topo, "%s/dgx1v.xml", folder);
    char *xml = output(ARGV(command, "topo", "--sim", "dgx1v,vram=64M", "--xml"), NULL);
    FILE *f = fopen(topo, "we");
    cr_assert(f && fputs(xml, f) >= 0 && fclose(f) == 0);
    free(xml);
    snprintf(topo, sizeof topo, "HEADROOM_TOPO=%s/dgx1v.xml", folder);
    cJSON *json = json_of(ARGV(command, "topo", "--sim", "dgx1v,vram=64M,gpus=5", "--json"), ENV(topo), NULL);
    expect_text(json, "tree_from", "topology file");
    expect_text(json, "links_from", "NVML");
    cJSON_Delete(json);
    snprintf(driver, sizeof driver, "HEADROOM_DRIVER=%s/124/libcuda.so.1", getenv("TEST_VARIANTS"));
    snprintf(topo, sizeof topo, "NCCL_TOPO_FILE=%s/dgx1v.xml", folder);
    json = json_of(ARGV(command, "topo", "--json"), ENV(topo, driver, "SIMGPU=dgx1v,vram=64M"), NULL);
    expect_text(json, "links_from", "topology file");
    expect_text(pair(json, 0, 3), "relation", "NV2");
    cJSON_Delete(json);
    snprintf(topo, sizeof topo, "HEADROOM_TOPO=%s", machine_file("a100x4"));
    json = json_of(ARGV(command, "topo", "--sim", "dgx1v,vram=64M", "--json"), ENV(topo), &err);
    expect_text(json, "links_from", "NVML");
    cr_expect(hr_test_is_one_line(err) && strstr(err, "is not in it") != NULL, "%s", err);
    free(err);
    cJSON_Delete(json);
}

Test(topo, a_bad_topology_file_is_named_in_one_line_and_done_without)
{
    static const char *const texts[] = {"<system version=\"1\">\n<cpu>\n</system>", "", "\tGPU0\nGPU0\tPIX\n"};
    char topo[256], path[128], *err;

    snprintf(path, sizeof path, "%s/bad", folder);
    snprintf(topo, sizeof topo, "HEADROOM_TOPO=%s", path);
    for (size_t i = 0; i <= sizeof texts / sizeof texts[0]; i++) {
        if (i < sizeof texts / sizeof texts[0]) {
            FILE *f = fopen(path, "we");
            cr_assert(f && fputs(texts[i], f) >= 0 && fclose(f) == 0);
        } else {
            unlink(path);
        }
        cJSON *json = json_of(ARGV(command, "topo", "--sim", "square4,vram=64M", "--json"), ENV(topo), &err);
        expect_text(json, "links_from", "NVML");
        cr_expect(hr_test_is_one_line(err) && strstr(err, path) != NULL && strstr(err, "going without") != NULL, "%s",
                  err);
        free(err);
        cJSON_Delete(json);
    }
}

Test(topo, a_byte_order_mark_is_no_part_of_a_file)
{
    char command_line[768], path[128];

    for (int matrix = 0; matrix < 2; matrix++) {
        snprintf(path, sizeof path, "%s/marked", folder);
        if (matrix) {
            write_file(path, "\xef\xbb\xbf\tGPU0\tGPU1\nGPU0\t X \tNV2\nGPU1\tNV2\t X \n");
        } else {
            snprintf(command_line, sizeof command_line, "(printf '\\357\\273\\277'; cat %s) > %s",
                     machine_file("square4"), path);
            cr_assert(system(command_line) == 0);
        }
        char *out = output(ARGV(command, "topo", "--file", path), NULL);
        cr_expect(strstr(out, "GPU0\t X \tNV2") != NULL, "%s", out);
        free(out);
    }
}

Test(topo, extras_beside_a_file_have_the_last_word)
{
    char path[640];

    snprintf(path, sizeof path, "cp %s %s/m.xml", machine_file("square4"), folder);
    cr_assert(system(path) == 0);
    snprintf(path, sizeof path, "%s/m.xml.extras", folder);
    FILE *f = fopen(path, "we");
    cr_assert(f &&
              fputs("gpu 0000:02:00.0 memory_bytes=17179869184\nlink 0000:02:00.0 0000:03:00.0 gbps=10\n", f) >= 0 &&
              fclose(f) == 0);
    snprintf(path, sizeof path, "%s/m.xml", folder);
    cJSON *json = json_of(ARGV(command, "topo", "--json", "--file", path), NULL, NULL);
    expect_near(pair(json, 0, 1), "gbps", 70); /* 20 directly and 50 round the other side */
    expect_near(pair(json, 1, 0), "gbps", 100);
    cr_expect_eq(value(cJSON_GetArrayItem(cJSON_GetObjectItem(json, "gpus"), 0), "memory_bytes"), 17179869184.0);
    cJSON_Delete(json);
}

Test(topo, first_addresses_for_some_of_the_gpus_only_are_told_to_be_of_no_use)
{
    char path[640], *err;

    snprintf(path, sizeof path, "cp %s %s/some.xml", machine_file("square4"), folder);
    cr_assert(system(path) == 0);
    snprintf(path, sizeof path, "%s/some.xml.extras", folder);
    write_file(path, "gpu 0000:02:00.0 base=0x100000000000 memory_bytes=17179869184\n");
    snprintf(path, sizeof path, "%s/some.xml", folder);
    cJSON *json = json_of(ARGV(command, "topo", "--json", "--file", path), NULL, &err);
    cr_expect(hr_test_is_one_line(err) && strstr(err, "only 1 of 4 GPUs") != NULL, "%s", err);
    free(err);
    cJSON_Delete(json);
}

Test(topo, extras_with_a_mistake_end_the_command_with_one_line)
{
    static const char *const wrong[] = {"what is this\n", "gpu 0000:02:00.0 memory_bytes=much\n",
                                        "link 0000:02:00.0 0000:ff:00.0 up=0\n"};
    char path[640];

    snprintf(path, sizeof path, "cp %s %s/wrong.xml", machine_file("square4"), folder);
    cr_assert(system(path) == 0);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        snprintf(path, sizeof path, "%s/wrong.xml.extras", folder);
        FILE *f = fopen(path, "we");
        cr_assert(f && fputs(wrong[i], f) >= 0 && fclose(f) == 0);
        snprintf(path, sizeof path, "%s/wrong.xml", folder);
        struct hr_test_result r = hr_test_run(ARGV(command, "topo", "--file", path), NULL);
        cr_expect(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 1, "status %x after %s", (unsigned)r.status,
                  wrong[i]);
        cr_expect(hr_test_is_one_line(r.err) && strstr(r.err, "wrong.xml.extras"), "%s", r.err);
        cr_expect_str_empty(r.out);
        hr_test_result_finish(&r);
    }
}

Test(topo, copies_are_measured_and_what_they_show_is_kept)
{
    cJSON *json =
        json_of(ARGV(command, "topo", "--sim", "square4,vram=64M", "--measure", "--json"), ENV(cache_env), NULL);

    expect_text(pair(json, 0, 1), "state", "good");
    expect_near(pair(json, 0, 1), "measured_gbps", 46);
    expect_near(pair(json, 0, 1), "gbps", 92);
    expect_text(pair(json, 0, 3), "state", "unproven"); /* across sockets without a link: no access */
    expect_near(cJSON_GetArrayItem(cJSON_GetObjectItem(json, "gpus"), 3), "to_host_gbps", 26);
    cJSON_Delete(json);
    json = json_of(ARGV(command, "topo", "--sim", "square4,vram=64M", "--json"), ENV(cache_env), NULL);
    expect_text(pair(json, 0, 1), "state", "good");
    expect_near(pair(json, 0, 1), "gbps", 92);
    cJSON_Delete(json);
    json = json_of(ARGV(command, "topo", "--sim", "square4,vram=64M", "--json"), NULL, NULL);
    expect_text(pair(json, 0, 1), "state", "unproven"); /* of simulated nodes nothing is kept unasked */
    cJSON_Delete(json);
}

static void spoil(size_t at, char with)
{
    FILE *f = fopen(cache, "r+e");
    cr_assert(f && fseek(f, (long)at, SEEK_SET) == 0 && fputc(with, f) == with && fclose(f) == 0);
}

static int good_pairs(const char *const *env)
{
    cJSON *json = json_of(ARGV(command, "topo", "--sim", "square4,vram=64M", "--json"), env, NULL);
    const cJSON *item;
    int good = 0;

    cJSON_ArrayForEach(item, cJSON_GetObjectItem(json, "pairs"))
    {
        good += strcmp(cJSON_GetObjectItem(item, "state")->valuestring, "good") == 0;
    }
    cJSON_Delete(json);
    return good;
}

Test(topo, damage_to_what_was_kept_costs_a_line_and_another_version_all)
{
    char text[4096] = "";

    free(output(ARGV(command, "topo", "--sim", "square4,vram=64M", "--measure"), ENV(cache_env)));
    int all = good_pairs(ENV(cache_env));
    cr_expect_gt(all, 6);
    FILE *f = fopen(cache, "re");
    cr_assert(f && fread(text, 1, sizeof text - 1, f) > 0 && fclose(f) == 0);
    const char *line = strstr(text, " good ");
    cr_assert(line != NULL);
    spoil((size_t)(line - text) + 6, '9'); /* a rate */
    cr_expect_eq(good_pairs(ENV(cache_env)), all - 1);
    cr_assert(truncate(cache, (off_t)strlen(text) - 3) == 0); /* a line that broke off */
    cr_expect_eq(good_pairs(ENV(cache_env)), all - 2);
    char before = text[strlen("headroom paths ")];
    spoil(strlen("headroom paths "), before == '9' ? '8' : '9');
    cr_expect_eq(good_pairs(ENV(cache_env)), 0);
    free(output(ARGV(command, "topo", "--sim", "square4,vram=64M", "--measure"), ENV(cache_env)));
    cr_expect_eq(good_pairs(ENV(cache_env)), all);
    cr_expect_eq(good_pairs(ENV("HEADROOM_TOPO_CACHE=off")), 0);
}

Test(topo, what_is_no_file_is_not_replaced_by_one)
{
    char named[128];
    struct stat about;

    snprintf(named, sizeof named, "HEADROOM_TOPO_CACHE=%s/pipe", folder);
    cr_assert(mkfifo(strchr(named, '=') + 1, 0600) == 0);
    struct hr_test_result r = hr_test_run(ARGV(command, "topo", "--sim", "square4,vram=64M", "--measure"), ENV(named));
    cr_expect(WIFEXITED(r.status) && WEXITSTATUS(r.status) == 0, "status %x", (unsigned)r.status);
    cr_expect(hr_test_is_one_line(r.err) && strstr(r.err, "cannot keep") && strstr(r.err, "not a regular file"), "%s",
              r.err);
    hr_test_result_finish(&r);
    cr_expect(lstat(strchr(named, '=') + 1, &about) == 0 && S_ISFIFO(about.st_mode));
    cr_expect_eq(good_pairs(ENV(named)), 0);
}

Test(topo, a_path_that_corrupts_is_found_named_once_and_not_used)
{
    char *err;
    cJSON *json = json_of(ARGV(command, "topo", "--sim", "square4,vram=64M", "--measure", "--json"),
                          ENV("SIMGPU_LINK=corrupt:0-1"), &err);

    expect_text(pair(json, 0, 1), "state", "corrupts");
    expect_text(pair(json, 1, 0), "state", "corrupts");
    expect_text(pair(json, 0, 2), "state", "good");
    expect_near(pair(json, 0, 1), "gbps", 46); /* round the other side */
    const cJSON *path = cJSON_GetArrayItem(cJSON_GetObjectItem(pair(json, 0, 1), "paths"), 0);
    cr_expect_eq(cJSON_GetArraySize(cJSON_GetObjectItem(path, "gpus")), 4);
    cr_expect(hr_test_is_one_line(err) && strstr(err, "GPU 0 and GPU 1") && strstr(err, "arrive wrong"), "%s", err);
    free(err);
    cJSON_Delete(json);
}

Test(topo, a_path_that_hangs_is_found_in_time_and_the_others_are_still_tried)
{
    char *err;
    cJSON *json = json_of(ARGV(command, "topo", "--sim", "square4,vram=64M", "--measure", "--json"),
                          ENV("SIMGPU_LINK=hang:0-2", HANG_WAIT, cache_env), &err);

    expect_text(pair(json, 0, 2), "state", "hangs");
    expect_text(pair(json, 2, 0), "state", "hangs");
    expect_text(pair(json, 0, 1), "state", "good");
    expect_text(pair(json, 3, 2), "state", "good");
    expect_near(pair(json, 2, 0), "gbps", 46);
    cr_expect(hr_test_is_one_line(err) && strstr(err, "GPU 0 and GPU 2") && strstr(err, "do not end"), "%s", err);
    free(err);
    cJSON_Delete(json);
    char *kept = NULL;
    json = json_of(ARGV(command, "topo", "--sim", "square4,vram=64M", "--json"), ENV(cache_env), &kept);
    expect_text(pair(json, 0, 2), "state", "hangs");
    cr_expect(hr_test_is_one_line(kept), "%s", kept);
    free(kept);
    cJSON_Delete(json);
}

Test(topo, any_time_that_the_setting_takes_is_one_that_trials_take)
{
    static const char *const waits[] = {"HEADROOM_VERIFY_WAIT=7200s", "HEADROOM_VERIFY_WAIT=100000000s"};
    char *err;

    for (size_t i = 0; i < sizeof waits / sizeof waits[0]; i++) {
        cJSON *json = json_of(ARGV(command, "topo", "--sim", "square4,vram=64M", "--measure", "--json"),
                              ENV("SIMGPU_LINK=corrupt:0-1", waits[i]), &err);
        expect_text(pair(json, 0, 1), "state", "corrupts");
        free(err);
        cJSON_Delete(json);
    }
}

/* Its timer is in whole microseconds, and one of none would never ring. */
Test(topo, a_helper_that_is_given_less_than_its_timer_can_count_ends_all_the_same)
{
    char driver[600];

    snprintf(driver, sizeof driver, "HEADROOM_DRIVER=%s/libcuda.so.1", getenv("TEST_SIMGPU"));
    struct hr_test_result r = hr_test_run(ARGV(command, "topo", "--probe", "500", "0000:10:00.0,0000:18:00.0"),
                                          ENV(driver, "SIMGPU=square4,vram=64M", "SIMGPU_LINK=hang:0-1"));
    cr_expect(WIFSIGNALED(r.status) && WTERMSIG(r.status) == SIGALRM, "status %x, %s", (unsigned)r.status, r.out);
    hr_test_result_finish(&r);
}

/* Ten cards below one socket: each reaches nine others over PCIe, and has eight connections. */
Test(topo, K50_trials_take_no_more_connections_than_a_gpu_has)
{
    char path[128], machine[160], text[4096];
    int length = snprintf(text, sizeof text,
                          "<system version=\"1\">\n<cpu numaid=\"0\" affinity=\"ffff\" arch=\"x86_64\" "
                          "vendor=\"GenuineIntel\" familyid=\"6\" modelid=\"85\">\n");

    if (SANITIZED_THREADS && !getenv("HEADROOM_TEST_LONG")) {
        return;
    }
    for (int i = 0; i < 10; i++) {
        length += snprintf(text + length, sizeof text - (size_t)length,
                           "<pci busid=\"0000:%02x:00.0\" class=\"0x030000\" link_speed=\"16.0 GT/s PCIe\" "
                           "link_width=\"16\"><gpu dev=\"%d\" sm=\"80\" rank=\"%d\" gdr=\"0\"/></pci>\n",
                           i + 16, i, i);
    }
    snprintf(text + length, sizeof text - (size_t)length, "</cpu>\n</system>\n");
    snprintf(path, sizeof path, "%s/ten.xml", folder);
    write_file(path, text);
    snprintf(machine, sizeof machine, "topo=%s,model=a100-pcie,vram=32M", path);
    cJSON *json = json_of(ARGV(command, "topo", "--sim", machine, "--measure", "--json"), NULL, NULL);
    for (int i = 0; i < 90; i++) {
        expect_text(cJSON_GetArrayItem(cJSON_GetObjectItem(json, "pairs"), i), "state", "good");
    }
    cJSON_Delete(json);
}

Test(topo, what_is_written_as_xml_is_read_back_as_the_same_machine)
{
    static const char *const names[] = {"dgx1v", "hgx-h100", "pcie-box"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[128], machine[64];
        snprintf(machine, sizeof machine, "%s,vram=64M", names[i]);
        char *xml = output(ARGV(command, "topo", "--sim", machine, "--xml"), NULL);
        snprintf(path, sizeof path, "%s/%s.xml", folder, names[i]);
        FILE *f = fopen(path, "we");
        cr_assert(f && fputs(xml, f) >= 0 && fclose(f) == 0);
        free(xml);
        cJSON *found = json_of(ARGV(command, "topo", "--sim", machine, "--json"), NULL, NULL);
        cJSON *read = json_of(ARGV(command, "topo", "--file", path, "--json"), NULL, NULL);
        for (int pairs = cJSON_GetArraySize(cJSON_GetObjectItem(read, "pairs")), p = 0; p < pairs; p++) {
            const cJSON *one = cJSON_GetArrayItem(cJSON_GetObjectItem(found, "pairs"), p);
            const cJSON *two = cJSON_GetArrayItem(cJSON_GetObjectItem(read, "pairs"), p);
            expect_text(two, "relation", cJSON_GetObjectItem(one, "relation")->valuestring);
        }
        cJSON_Delete(found);
        cJSON_Delete(read);
    }
}

Test(topo, a_picture_has_every_gpu_and_every_direction_of_every_link)
{
    char path[128];
    char *svg = output(ARGV(command, "topo", "--file", machine_file("dgx1v"), "--svg", "-"), NULL);

    cr_expect(strncmp(svg, "<svg ", 5) == 0 && strstr(svg, "</svg>\n") != NULL);
    cr_expect_eq(count(svg, ">GPU"), 8 + count(svg, "<title>GPU"));
    cr_expect_eq(count(svg, "<title>GPU0 to GPU"), 4);
    cr_expect(strstr(svg, "<title>GPU0 to GPU3: 2 links, 50.0 GB/s, load ") != NULL, "%s", svg);
    cr_expect(strstr(svg, "load 0 %") != NULL && count(svg, "load 0 %") < count(svg, "<title>"),
              "links carry, PCIe does not");
    snprintf(path, sizeof path, "%s/p.svg", folder);
    char *out = output(ARGV(command, "topo", "--file", machine_file("dgx1v"), "--svg", path), NULL);
    FILE *f = fopen(path, "re");
    char *written = calloc(1, strlen(svg) + 2);
    cr_expect(f && fread(written, 1, strlen(svg) + 1, f) == strlen(svg) && fclose(f) == 0);
    cr_expect(strcmp(written, svg) == 0 && out[0] == '\0');
    free(written);
    free(out);
    free(svg);
}

#define LINK(element, port, to, bytes, ns)                                                                             \
    "{\"element\": " #element ", \"port\": " #port ", \"to\": " #to                                                    \
    ", \"up\": true, \"gbps\": 23.000, \"copies\": 3, "                                                                \
    "\"copied_bytes\": " #bytes ", \"copy_ns\": " #ns ", \"kernel_bytes\": 0, \"kernel_ns\": 0, \"requests\": 9, "     \
    "\"request_bytes\": 5, \"forwarded_bytes\": 2000000}"
#define REPORT                                                                                                         \
    "{\"schema\": 2, \"virtual_time_ns\": 4000000, \"machine\": \"square4\", \"links\": [" LINK(                       \
        0, 0, 1, 23000000, 1000000) "," LINK(1, 0, 0, 0, 0) "," LINK(0, 1, 5, 1000000,                                 \
                                                                     4000000) "], \"gpus\": [{}, {}]}"

Test(topo, a_finished_jobs_traffic_is_told_port_by_port)
{
    char path[128];

    snprintf(path, sizeof path, "%s/report", folder);
    FILE *f = fopen(path, "we");
    cr_assert(f && fputs(REPORT, f) >= 0 && fclose(f) == 0);
    char *out = output(ARGV(command, "topo", "--report", path), NULL);
    cr_expect(strstr(out, "GPU0\t0\tGPU1\t23.0\t3\t23.000\t2.000\t25.0 %\n") != NULL, "%s", out);
    cr_expect(strstr(out, "GPU0\t1\telement5\t") != NULL && strstr(out, "1 more were idle\n") != NULL, "%s", out);
    free(out);
    cJSON *json = json_of(ARGV(command, "topo", "--report", path, "--json"), NULL, NULL);
    cr_expect_eq(cJSON_GetArraySize(json), 3);
    expect_near(cJSON_GetArrayItem(json, 0), "busy_share", 0.25);
    cJSON_Delete(json);
    out = output(ARGV(command, "topo", "--report", path, "--svg", "-"), NULL);
    cr_expect(strstr(out, "<title>GPU0 to GPU1: 1 link, 23.0 GB/s, load 25 %</title>") != NULL, "%s", out);
    free(out);
}

static void expect_refusal(const char *const *argv, const char *const *env, int status, const char *said)
{
    struct hr_test_result r = hr_test_run(argv, env);

    cr_expect(WIFEXITED(r.status) && WEXITSTATUS(r.status) == status, "status %x, stderr: %s", r.status, r.err);
    cr_expect(hr_test_is_one_line(r.err) && strstr(r.err, said) != NULL, "'%s' is not in: %s", said, r.err);
    cr_expect(r.out[0] == '\0', "stdout: %s", r.out);
    hr_test_result_finish(&r);
}

Test(topo, what_is_asked_for_wrongly_is_refused_in_one_line)
{
    char bad[128];

    snprintf(bad, sizeof bad, "%s/bad", folder);
    FILE *f = fopen(bad, "we");
    cr_assert(f && fputs("<system>\n<cpu>", f) >= 0 && fclose(f) == 0);
    expect_refusal(ARGV(command, "topo", "--flie", "x"), NULL, 2, "--flie");
    expect_refusal(ARGV(command, "topo", "extra"), NULL, 2, "extra");
    expect_refusal(ARGV(command, "topo", "--file"), NULL, 2, "--file needs a value");
    expect_refusal(ARGV(command, "topo", "--file=x", "--sim", "dgx1v"), NULL, 2, "only one of");
    expect_refusal(ARGV(command, "topo", "--json", "--xml"), NULL, 2, "only one of");
    expect_refusal(ARGV(command, "topo", "--file", bad, "--measure"), NULL, 2, "--measure");
    expect_refusal(ARGV(command, "topo", "--file", "/nonexistent"), NULL, 1, "/nonexistent: No such file");
    expect_refusal(ARGV(command, "topo", "--file", bad), NULL, 1, "line 2");
    expect_refusal(ARGV(command, "topo", "--report", bad), NULL, 1, "SIMGPU_REPORT");
    expect_refusal(ARGV(command, "topo", "--report", folder), NULL, 1, "not a regular file");
    expect_refusal(ARGV(command, "topo", "--sim", "square4,vram=x"), NULL, 1, "cuInit");
    expect_refusal(ARGV(command, "topo", "--probe"), NULL, 2, "--probe");
}
