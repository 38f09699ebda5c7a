/* Reading the stats log: JSON lines as written by src/stats, one or more runs one after the other in a file.
 *
 * A run begins at a `start` line. What a killed process leaves is legal: no `summary`, and a last line that breaks off.
 */
#ifndef HR_CLI_STATSLOG_H
#define HR_CLI_STATSLOG_H

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#define HR_CLI_LOG_SCHEMA 1      /* the newest schema that this command reads */
#define HR_CLI_LOG_MAX_EVENTS 20 /* kept of a run; the rest is counted */

struct hr_cli_log {
    const char *path;
    FILE *file;
    char *line;
    size_t line_bytes;
    size_t line_number;
    cJSON *next_start; /* the start line of the run after the last one read */
};

struct hr_cli_run_record {
    cJSON *start;
    cJSON *interval; /* the last one, or NULL */
    cJSON *summary;  /* NULL when the run did not end in order */
    cJSON *events;   /* array of the first HR_CLI_LOG_MAX_EVENTS events */
    size_t event_count;
    bool cut; /* the file's last line breaks off */
};

/* Opens the file. Returns false after one line on stderr. */
bool hr_cli_log_open(struct hr_cli_log *log_out, const char *path);
void hr_cli_log_close(struct hr_cli_log *log);

/* The next run: 1 = read (give it to hr_cli_run_record_finish), 0 = no more, -1 = bad file, after one line on stderr. */
int hr_cli_log_next(struct hr_cli_log *log, struct hr_cli_run_record *record_out);
void hr_cli_run_record_finish(struct hr_cli_run_record *record);

/* The counters of the summary, else of the last interval, else NULL. */
const cJSON *hr_cli_run_record_counters(const struct hr_cli_run_record *record);

/* Number or text of a member; the fallback where it is absent or of another type. `object` may be NULL. */
double hr_cli_json_number(const cJSON *object, const char *name, double fallback);
const char *hr_cli_json_text(const cJSON *object, const char *name, const char *fallback);

#endif
