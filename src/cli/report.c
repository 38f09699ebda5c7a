#include "cli/report.h"

/* `headroom report`: options, and the JSON form. */
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/timeline.h"

enum { DEFAULT_SITES = 10 };

static void print_help(void)
{
    printf("headroom report [--json] [--sites N] FILE...\n"
           "headroom report --timeline FILE [-o SVG]\n"
           "\n"
           "Summarises stats logs (HEADROOM_STATS): peak memory per tier, bytes moved, hit rate, stalls, and the\n"
           "allocation sites whose memory moved most, named through the symbols of the files they lie in.\n"
           "\n"
           "  --json      the same as one JSON array, an object per run\n"
           "  --sites N   show N allocation sites (default %d)\n"
           "\n"
           "  --timeline FILE   draw what a simulated GPU wrote to SIMGPU_TIMELINE as SVG\n"
           "  -o SVG            into that file instead of standard output\n",
           DEFAULT_SITES);
}

/* Moves what the record holds into an object; the record is empty afterwards. */
static cJSON *run_to_json(const char *path, struct hr_cli_run_record *record)
{
    cJSON *run = cJSON_CreateObject();

    hr_cli_report_name_sites(cJSON_GetObjectItemCaseSensitive(record->summary, "sites"));
    cJSON_AddStringToObject(run, "file", path);
    cJSON_AddBoolToObject(run, "complete", record->summary != NULL);
    cJSON_AddBoolToObject(run, "cut", record->cut);
    cJSON_AddNumberToObject(run, "events_total", (double)record->event_count);
    cJSON_AddItemToObject(run, "start", record->start);
    cJSON_AddItemToObject(run, "events", record->events);
    if (record->interval != NULL) {
        cJSON_AddItemToObject(run, "last_interval", record->interval);
    }
    if (record->summary != NULL) {
        cJSON_AddItemToObject(run, "summary", record->summary);
    }
    memset(record, 0, sizeof *record);
    return run;
}

/* Reports every run of a file; with `runs` as JSON into it, else as text. */
static int report_file(const char *path, size_t site_limit, cJSON *runs)
{
    struct hr_cli_log log;
    struct hr_cli_run_record record;
    int rc;

    if (!hr_cli_log_open(&log, path)) {
        return HR_CLI_FAILED;
    }
    while ((rc = hr_cli_log_next(&log, &record)) == 1) {
        if (runs != NULL) {
            cJSON_AddItemToArray(runs, run_to_json(path, &record));
        } else {
            hr_cli_report_print(path, &record, site_limit);
        }
        hr_cli_run_record_finish(&record);
    }
    hr_cli_log_close(&log);
    return rc == 0 ? HR_CLI_OK : HR_CLI_FAILED;
}

static int parse_count(const char *text, size_t *count_out)
{
    char *end;

    unsigned long n = strtoul(text, &end, 10);
    if (text[0] < '0' || text[0] > '9' || *end != '\0' || n > 1000000) {
        return hr_cli_fail(HR_CLI_USAGE, "report: --sites takes a number from 0 to 1000000, not '%s'", text);
    }
    *count_out = n;
    return HR_CLI_OK;
}

static int print_json(const cJSON *runs)
{
    char *text = cJSON_Print(runs);

    if (text == NULL) {
        return hr_cli_fail(HR_CLI_FAILED, "out of memory");
    }
    puts(text);
    free(text);
    return HR_CLI_OK;
}

/* `report --timeline FILE [-o SVG]`: argv[0] is the first word after --timeline. */
static int report_timeline(int argc, char **argv)
{
    const char *file = NULL, *svg = NULL;

    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "-o") == 0 && i + 1 < argc && svg == NULL) {
            svg = argv[++i];
        } else if (file == NULL && argv[i][0] != '-') {
            file = argv[i];
        } else {
            return hr_cli_fail(HR_CLI_USAGE,
                               "report: '%s' does not go with --timeline (headroom report --timeline FILE [-o SVG])",
                               argv[i]);
        }
    }
    if (file == NULL) {
        return hr_cli_fail(HR_CLI_USAGE, "report: no file given (headroom report --timeline FILE [-o SVG])");
    }
    return hr_cli_timeline(file, svg);
}

/* One flag, and the word behind it where it takes one: *at_io is left at the last word taken. */
static int parse_flag(int argc, char **argv, int *at_io, size_t *sites_out, bool *json_out)
{
    const char *flag = argv[*at_io];

    if (strcmp(flag, "--json") == 0) {
        *json_out = true;
        return HR_CLI_OK;
    }
    if (strncmp(flag, "--sites=", 8) == 0) {
        return parse_count(flag + 8, sites_out);
    }
    if (strcmp(flag, "--sites") == 0) {
        *at_io += 1;
        return parse_count(*at_io < argc ? argv[*at_io] : "", sites_out);
    }
    return hr_cli_fail(HR_CLI_USAGE, "report: no flag %s (--json, --sites N, --timeline FILE [-o SVG], --help)", flag);
}

static int report_files(int count, char **files, size_t sites, bool json)
{
    cJSON *runs = json ? cJSON_CreateArray() : NULL;
    int status = HR_CLI_OK;

    for (int i = 0; i < count; i++) {
        if (report_file(files[i], sites, runs) != HR_CLI_OK) {
            status = HR_CLI_FAILED;
        }
    }
    if (json && print_json(runs) != HR_CLI_OK) {
        status = HR_CLI_FAILED;
    }
    cJSON_Delete(runs);
    return fflush(stdout) == 0 ? status : HR_CLI_FAILED;
}

/* Flags may stand anywhere before a "--"; the files are gathered at the front of argv. */
int hr_cli_report(int argc, char **argv)
{
    size_t sites = DEFAULT_SITES;
    bool json = false, flags = true;
    int files = 0;

    for (int at = 1; at < argc; at++) {
        if (!flags || argv[at][0] != '-' || argv[at][1] == '\0') {
            argv[files++] = argv[at];
            continue;
        }
        if (strcmp(argv[at], "--") == 0) {
            flags = false;
            continue;
        }
        if (strcmp(argv[at], "--help") == 0 || strcmp(argv[at], "-h") == 0) {
            print_help();
            return fflush(stdout) == 0 ? HR_CLI_OK : HR_CLI_FAILED;
        }
        if (strcmp(argv[at], "--timeline") == 0 && files == 0) {
            if (at > 1) {
                return hr_cli_fail(
                    HR_CLI_USAGE, "report: '%s' does not go with --timeline (headroom report --timeline FILE [-o SVG])",
                    argv[1]);
            }
            return report_timeline(argc - at - 1, argv + at + 1);
        }
        int status = parse_flag(argc, argv, &at, &sites, &json);
        if (status != HR_CLI_OK) {
            return status;
        }
    }
    if (files == 0) {
        return hr_cli_fail(HR_CLI_USAGE, "report: no file given (headroom report [--json] [--sites N] FILE...)");
    }
    return report_files(files, argv, sites, json);
}
