#include "cli/report.h"

/* One run, for a person. Figures that a log does not have are left out, not shown as 0. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/symbols.h"

enum { NUMBER_BYTES = 32, LABEL_WIDTH = 16 };

static void print_label(const char *label)
{
    printf("  %-*s", LABEL_WIDTH, label);
}

static const char *bytes_text(double bytes, char out[NUMBER_BYTES])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    size_t unit = 0;

    if (isnan(bytes)) {
        return "?";
    }
    while (fabs(bytes) >= 1024 && unit + 1 < sizeof units / sizeof units[0]) {
        bytes /= 1024;
        unit++;
    }
    snprintf(out, NUMBER_BYTES, unit == 0 ? "%.0f %s" : "%.1f %s", bytes, units[unit]);
    return out;
}

static const char *time_text(double ns, char out[NUMBER_BYTES])
{
    if (isnan(ns)) {
        return "?";
    }
    if (ns < 1e3) {
        snprintf(out, NUMBER_BYTES, "%.0f ns", ns);
    } else if (ns < 1e6) {
        snprintf(out, NUMBER_BYTES, "%.1f us", ns / 1e3);
    } else if (ns < 1e9) {
        snprintf(out, NUMBER_BYTES, "%.1f ms", ns / 1e6);
    } else {
        snprintf(out, NUMBER_BYTES, "%.2f s", ns / 1e9);
    }
    return out;
}

static const char *count_text(double n, char out[NUMBER_BYTES])
{
    if (isnan(n)) {
        return "?";
    }
    snprintf(out, NUMBER_BYTES, "%.0f", n);
    return out;
}

/* A counter's value; NAN where the log has none of the name, which no comparison below is true for. */
static double counter(const cJSON *counters, const char *name)
{
    return hr_cli_json_number(counters, name, NAN);
}

static void print_heading(const char *path, const struct hr_cli_run_record *record)
{
    const cJSON *start = record->start, *word;

    printf("%s\n", path);
    print_label("job");
    cJSON_ArrayForEach(word, cJSON_GetObjectItemCaseSensitive(start, "command"))
    {
        printf("%s ", cJSON_IsString(word) ? word->valuestring : "?");
    }
    printf("(pid %.0f on %s, headroom %s, driver %.0f)\n", hr_cli_json_number(start, "pid", 0),
           hr_cli_json_text(start, "host", "?"), hr_cli_json_text(start, "version", "?"),
           hr_cli_json_number(start, "driver_version", 0));
    const cJSON *setting = NULL, *settings = cJSON_GetObjectItemCaseSensitive(start, "settings");
    if (cJSON_GetArraySize(settings) > 0) {
        print_label("settings");
        const char *gap = "";
        cJSON_ArrayForEach(setting, settings)
        {
            printf("%s%s=%s", gap, setting->string, cJSON_IsString(setting) ? setting->valuestring : "?");
            gap = " ";
        }
        printf("\n");
    }
}

static void print_end(const struct hr_cli_run_record *record)
{
    char t[NUMBER_BYTES];
    double ns = hr_cli_json_number(record->summary != NULL ? record->summary : record->interval, "t_ns", NAN);

    print_label("ended");
    if (record->summary != NULL) {
        printf("%s, after %s\n", hr_cli_json_text(record->summary, "exit", "?"), time_text(ns, t));
    } else if (record->interval != NULL) {
        printf("without a summary (killed, or still running): figures up to %s after the start\n", time_text(ns, t));
    } else {
        printf("without a summary (killed, or still running) and before the first figures\n");
    }
}

static void print_gpus(const struct hr_cli_run_record *record)
{
    char a[NUMBER_BYTES], b[NUMBER_BYTES], c[NUMBER_BYTES];
    const cJSON *gpu, *end = NULL;

    cJSON_ArrayForEach(gpu, cJSON_GetObjectItemCaseSensitive(record->start, "gpus"))
    {
        double index = hr_cli_json_number(gpu, "index", 0), vram = hr_cli_json_number(gpu, "vram_bytes", NAN);
        double cap = hr_cli_json_number(gpu, "cap_bytes", NAN), peak = NAN;
        cJSON_ArrayForEach(end, cJSON_GetObjectItemCaseSensitive(record->summary, "gpus"))
        {
            if (hr_cli_json_number(end, "index", -1) == index) {
                peak = hr_cli_json_number(end, "peak_vram_bytes", NAN);
            }
        }
        printf("  GPU %-*.0f%s: VRAM %s", LABEL_WIDTH - 4, index, hr_cli_json_text(gpu, "name", "?"),
               bytes_text(vram, a));
        if (cap < vram) {
            printf(", capped at %s", bytes_text(cap, b));
        }
        printf(", window %s", bytes_text(hr_cli_json_number(gpu, "window_bytes", 0), c));
        if (!isnan(peak)) {
            printf(", peak use %s (%.0f %%)", bytes_text(peak, a), vram > 0 ? 100 * peak / vram : 0);
        }
        printf("\n");
    }
}

/* A peak of the process where the log has one, else the sum over its GPUs; NAN where it has neither. */
static double peak(const struct hr_cli_run_record *record, const char *name)
{
    double total = counter(hr_cli_run_record_counters(record), name);
    bool of_process = !isnan(total);
    const cJSON *gpu;

    cJSON_ArrayForEach(gpu, cJSON_GetObjectItemCaseSensitive(record->summary, "gpus"))
    {
        double bytes = hr_cli_json_number(gpu, name, NAN);
        if (!of_process && !isnan(bytes)) {
            total = isnan(total) ? bytes : total + bytes;
        }
    }
    return total;
}

static void print_peaks(const struct hr_cli_run_record *record)
{
    static const struct {
        const char *name, *label;
    } tiers[] = {{"peak_vram_bytes", "VRAM"},
                 {"peak_peer_bytes", "other GPUs"},
                 {"peak_host_bytes", "host"},
                 {"peak_nvm_bytes", "NVM"},
                 {"peak_committed_bytes", "committed"}};
    bool any = false;
    char t[NUMBER_BYTES];

    for (size_t i = 0; i < sizeof tiers / sizeof tiers[0]; i++) {
        double bytes = peak(record, tiers[i].name);
        if (!isnan(bytes)) {
            if (!any) {
                print_label("peak");
            }
            printf("%s%s %s", any ? ", " : "", tiers[i].label, bytes_text(bytes, t));
            any = true;
        }
    }
    if (any) {
        printf("\n");
    }
}

static void print_share(const char *what, double part, double whole)
{
    if (whole > 0 && !isnan(part)) {
        printf(", %.1f %% %s", 100 * part / whole, what);
    }
}

static void print_traffic(const cJSON *counters)
{
    char a[NUMBER_BYTES], b[NUMBER_BYTES], c[NUMBER_BYTES], d[NUMBER_BYTES];
    double launches = counter(counters, "launches");

    print_label("allocations");
    printf("%s (%s), %s freed (%s)\n", count_text(counter(counters, "allocations"), a),
           bytes_text(counter(counters, "allocated_bytes"), b), count_text(counter(counters, "frees"), c),
           bytes_text(counter(counters, "freed_bytes"), d));
    print_label("moved");
    printf("in %s in %s moves, out %s in %s moves", bytes_text(counter(counters, "moved_in_bytes"), a),
           count_text(counter(counters, "moves_in"), b), bytes_text(counter(counters, "moved_out_bytes"), c),
           count_text(counter(counters, "moves_out"), d));
    if (counter(counters, "moves_given_up") > 0) {
        printf(", %s given up at their deadline", count_text(counter(counters, "moves_given_up"), a));
    }
    if (counter(counters, "moves_failed") > 0) {
        printf(", %s undone", count_text(counter(counters, "moves_failed"), a));
    }
    printf("\n");
    if (counter(counters, "lent_out_bytes") > 0) {
        print_label("of that lent");
        printf("out %s, in %s, called in by the lender %s; lent at the end %s\n",
               bytes_text(counter(counters, "lent_out_bytes"), a), bytes_text(counter(counters, "lent_in_bytes"), b),
               bytes_text(counter(counters, "called_in_bytes"), c), bytes_text(counter(counters, "lent_now_bytes"), d));
    }
    print_label("hit rate");
    printf("%s launches", count_text(launches, a));
    print_share("with everything they name in VRAM", counter(counters, "launches_resident"), launches);
    print_share("with part of it elsewhere", counter(counters, "launches_in_place"), launches);
    print_share("of the bytes named were in VRAM", counter(counters, "working_set_hit_bytes"),
                counter(counters, "working_set_bytes"));
    printf("\n");
}

/* What the traffic's rows have of a figure, over all pairs of GPUs. */
static double traffic_sum(const cJSON *traffic, const char *name)
{
    const cJSON *row;
    double total = 0;

    cJSON_ArrayForEach(row, traffic)
    {
        total += hr_cli_json_number(row, name, 0);
    }
    return total;
}

/* The rows count what is passed on at every step; the counter has each byte once. */
static void print_between_gpus(const struct hr_cli_run_record *record, const cJSON *counters)
{
    const cJSON *traffic =
        cJSON_GetObjectItemCaseSensitive(record->summary != NULL ? record->summary : record->interval, "traffic");
    char a[NUMBER_BYTES], b[NUMBER_BYTES], c[NUMBER_BYTES];
    double direct = traffic_sum(traffic, "direct_bytes"), staged = traffic_sum(traffic, "staged_bytes");
    double relayed = hr_cli_json_number(counters, "transfer_relayed_bytes", traffic_sum(traffic, "relayed_bytes"));

    if (!(direct + relayed + staged > 0)) {
        return;
    }
    print_label("between GPUs");
    printf("%s directly, %s over other GPUs, %s through host memory", bytes_text(direct, a), bytes_text(relayed, b),
           bytes_text(staged, c));
    if (counter(counters, "transfer_again_bytes") > 0) {
        printf(", %s again after a link failed", bytes_text(counter(counters, "transfer_again_bytes"), a));
    }
    if (counter(counters, "route_switches") > 0) {
        printf(", %s changes of route", count_text(counter(counters, "route_switches"), a));
    }
    printf(" (by GPU: headroom topo --report)\n");
}

static void print_stalls(const struct hr_cli_run_record *record, const cJSON *counters)
{
    static const struct {
        const char *name, *label;
    } causes[] = {{"stall_copy_ns", "copying"}, {"stall_drain_ns", "draining"}, {"stall_map_ns", "mapping"}};
    double total = counter(counters, "stall_ns");
    double run_ns = hr_cli_json_number(record->summary != NULL ? record->summary : record->interval, "t_ns", NAN);
    char t[NUMBER_BYTES];

    print_label("stalls");
    printf("%s", time_text(total, t));
    print_share("of the run", total, run_ns);
    for (size_t i = 0; i < sizeof causes / sizeof causes[0]; i++) {
        double ns = counter(counters, causes[i].name);
        if (!isnan(ns)) {
            printf(", %s %s", causes[i].label, time_text(ns, t));
        }
    }
    printf("; gate closed %s times\n", count_text(counter(counters, "gate_closes"), t));
    if (counter(counters, "ooms") > 0) {
        print_label("out of memory");
        printf("%.0f allocations refused\n", counter(counters, "ooms"));
    }
}

static void print_events(const struct hr_cli_run_record *record)
{
    const cJSON *event;
    char t[NUMBER_BYTES];

    cJSON_ArrayForEach(event, record->events)
    {
        print_label("event");
        printf("%s at %s: %s\n", hr_cli_json_text(event, "event", "?"),
               time_text(hr_cli_json_number(event, "t_ns", 0), t), hr_cli_json_text(event, "text", ""));
    }
    if (record->event_count > HR_CLI_LOG_MAX_EVENTS) {
        print_label("");
        printf("and %zu more events\n", record->event_count - HR_CLI_LOG_MAX_EVENTS);
    }
}

/* By bytes moved out, then by peak: what moved most is what one wants to know about. */
static int compare_sites(const void *a, const void *b)
{
    const cJSON *left = *(const cJSON *const *)a, *right = *(const cJSON *const *)b;
    static const char *const keys[] = {"moved_out_bytes", "peak_live_bytes", "bytes"};

    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        double l = hr_cli_json_number(left, keys[i], 0), r = hr_cli_json_number(right, keys[i], 0);
        if (l != r) {
            return l > r ? -1 : 1;
        }
    }
    return 0;
}

static bool is_frame(const cJSON *frame)
{
    const cJSON *offset = cJSON_GetObjectItemCaseSensitive(frame, "offset");
    return cJSON_IsString(cJSON_GetObjectItemCaseSensitive(frame, "object")) && cJSON_IsNumber(offset) &&
           offset->valuedouble >= 1 && offset->valuedouble < 0x1p63;
}

void hr_cli_report_name_sites(cJSON *sites)
{
    cJSON *site = NULL, *frame = NULL;
    size_t total = 0, filled = 0;

    cJSON_ArrayForEach(site, sites)
    {
        total += (size_t)cJSON_GetArraySize(cJSON_GetObjectItemCaseSensitive(site, "frames"));
    }
    struct hr_cli_frame *frames = calloc(total + 1, sizeof *frames);
    cJSON **owners = (cJSON **)calloc(total + 1, sizeof(cJSON *));
    if (frames == NULL || owners == NULL) {
        free(frames);
        free((void *)owners);
        return;
    }
    cJSON_ArrayForEach(site, sites)
    {
        cJSON_ArrayForEach(frame, cJSON_GetObjectItemCaseSensitive(site, "frames"))
        {
            if (is_frame(frame)) {
                frames[filled].object = hr_cli_json_text(frame, "object", "");
                frames[filled].offset = (uint64_t)hr_cli_json_number(frame, "offset", 0);
                owners[filled++] = frame;
            }
        }
    }
    hr_cli_symbolize(frames, filled);
    for (size_t i = 0; i < filled; i++) {
        if (frames[i].text != NULL) {
            cJSON_AddStringToObject(owners[i], "text", frames[i].text);
        }
        free(frames[i].text);
    }
    free(frames);
    free((void *)owners);
}

static void print_site(const cJSON *site)
{
    char a[NUMBER_BYTES], b[NUMBER_BYTES], c[NUMBER_BYTES];
    const cJSON *frame;

    printf("    %.0f allocations, %s; at most %s live; moved out %s\n", hr_cli_json_number(site, "allocations", 0),
           bytes_text(hr_cli_json_number(site, "bytes", 0), a),
           bytes_text(hr_cli_json_number(site, "peak_live_bytes", 0), b),
           bytes_text(hr_cli_json_number(site, "moved_out_bytes", 0), c));
    cJSON_ArrayForEach(frame, cJSON_GetObjectItemCaseSensitive(site, "frames"))
    {
        const char *text = hr_cli_json_text(frame, "text", "?");
        printf("        %s\n", text);
        if (strncmp(text, "main ", 5) == 0) {
            break; /* below it lies the C library's start-up, alike for every job */
        }
    }
}

static void print_sites(cJSON *sites, size_t limit)
{
    size_t count = (size_t)cJSON_GetArraySize(sites), filled = 0;
    cJSON **sorted = count > 0 ? (cJSON **)calloc(count, sizeof(cJSON *)) : NULL;
    cJSON *site;

    if (sorted == NULL || limit == 0) {
        free((void *)sorted);
        return;
    }
    cJSON_ArrayForEach(site, sites)
    {
        sorted[filled++] = site;
    }
    qsort((void *)sorted, filled, sizeof(cJSON *), compare_sites);
    if (limit > filled) {
        limit = filled;
    }
    hr_cli_report_name_sites(sites);
    printf("  top allocation sites, %zu of %zu, those that moved most first\n", limit, filled);
    for (size_t i = 0; i < limit; i++) {
        print_site(sorted[i]);
    }
    free((void *)sorted);
}

void hr_cli_report_print(const char *path, const struct hr_cli_run_record *record, size_t site_limit)
{
    const cJSON *counters = hr_cli_run_record_counters(record);

    print_heading(path, record);
    print_end(record);
    print_gpus(record);
    print_peaks(record);
    if (counters != NULL) {
        print_traffic(counters);
        print_between_gpus(record, counters);
        print_stalls(record, counters);
    }
    print_events(record);
    print_sites(cJSON_GetObjectItemCaseSensitive(record->summary, "sites"), site_limit);
}
