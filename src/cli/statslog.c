#include "cli/statslog.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"

bool hr_cli_log_open(struct hr_cli_log *log_out, const char *path)
{
    memset(log_out, 0, sizeof *log_out);
    log_out->path = path;
    log_out->file = fopen(path, "re");
    if (log_out->file == NULL) {
        (void)hr_cli_fail(0, "cannot read %s: %s", path, strerror(errno));
        return false;
    }
    return true;
}

void hr_cli_log_close(struct hr_cli_log *log)
{
    if (log->file != NULL) {
        fclose(log->file);
    }
    free(log->line);
    cJSON_Delete(log->next_start);
    memset(log, 0, sizeof *log);
}

void hr_cli_run_record_finish(struct hr_cli_run_record *record)
{
    cJSON_Delete(record->start);
    cJSON_Delete(record->interval);
    cJSON_Delete(record->summary);
    cJSON_Delete(record->events);
    memset(record, 0, sizeof *record);
}

double hr_cli_json_number(const cJSON *object, const char *name, double fallback)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsNumber(item) ? item->valuedouble : fallback;
}

const char *hr_cli_json_text(const cJSON *object, const char *name, const char *fallback)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    return cJSON_IsString(item) ? item->valuestring : fallback;
}

const cJSON *hr_cli_run_record_counters(const struct hr_cli_run_record *record)
{
    const cJSON *from = record->summary != NULL ? record->summary : record->interval;
    return cJSON_GetObjectItemCaseSensitive(from, "counters");
}

static bool at_end(FILE *file)
{
    int c = getc(file);
    if (c == EOF) {
        return true;
    }
    ungetc(c, file);
    return false;
}

/* 1 = a line with its object, 0 = end of file (cut_out set if it breaks off in a line), -1 = error, said. */
static int read_line(struct hr_cli_log *log, cJSON **json_out, bool *cut_out)
{
    errno = 0;
    ssize_t length = getline(&log->line, &log->line_bytes, log->file);
    if (length < 0) {
        if (ferror(log->file) || errno == ENOMEM) {
            (void)hr_cli_fail(0, "cannot read %s: %s", log->path, strerror(errno));
            return -1;
        }
        return 0;
    }
    log->line_number++;
    /* The length counts: cJSON_Parse would stop at a NUL byte and take the part before it for the line. */
    const char *end = NULL;
    cJSON *json = memchr(log->line, '\0', (size_t)length) ? NULL : cJSON_ParseWithOpts(log->line, &end, false);
    if (json != NULL && end[strspn(end, " \t\r\n")] == '\0' && cJSON_IsObject(json)) {
        *json_out = json;
        return 1;
    }
    cJSON_Delete(json);
    if (log->line_number > 1 && at_end(log->file)) {
        *cut_out = true;
        return 0;
    }
    (void)hr_cli_fail(0, "%s is %s: line %zu is not a JSON object", log->path,
                      log->line_number > 1 ? "a damaged stats log" : "not a headroom stats log", log->line_number);
    return -1;
}

static int check_start(const struct hr_cli_log *log, const cJSON *start)
{
    double schema = hr_cli_json_number(start, "schema", 0);
    if (schema < 1) {
        (void)hr_cli_fail(0, "%s is not a headroom stats log: line %zu has no schema number", log->path,
                          log->line_number);
        return -1;
    }
    if (schema > HR_CLI_LOG_SCHEMA) {
        (void)hr_cli_fail(0, "%s has schema %g; this command reads up to %d", log->path, schema, HR_CLI_LOG_SCHEMA);
        return -1;
    }
    return 0;
}

static void replace(cJSON **slot, cJSON *json)
{
    cJSON_Delete(*slot);
    *slot = json;
}

static void keep(struct hr_cli_run_record *record, cJSON *json, const char *type)
{
    if (strcmp(type, "interval") == 0) {
        replace(&record->interval, json);
    } else if (strcmp(type, "summary") == 0) {
        replace(&record->summary, json);
    } else if (strcmp(type, "event") == 0 && record->event_count++ < HR_CLI_LOG_MAX_EVENTS) {
        cJSON_AddItemToArray(record->events, json);
    } else {
        cJSON_Delete(json); /* an event too many, or a kind that a later version of the same schema added */
    }
}

static int first_start(struct hr_cli_log *log)
{
    bool cut = false;

    if (log->next_start != NULL) {
        return 1;
    }
    if (log->line_number > 0) {
        return 0;
    }
    int rc = read_line(log, &log->next_start, &cut);
    if (rc == 0) {
        (void)hr_cli_fail(0, "%s is empty", log->path);
        return -1;
    }
    if (rc == 1 && strcmp(hr_cli_json_text(log->next_start, "type", ""), "start") != 0) {
        (void)hr_cli_fail(0, "%s is not a headroom stats log: line 1 is no start line", log->path);
        return -1;
    }
    return rc == 1 && check_start(log, log->next_start) != 0 ? -1 : rc;
}

int hr_cli_log_next(struct hr_cli_log *log, struct hr_cli_run_record *record_out)
{
    cJSON *json = NULL;

    memset(record_out, 0, sizeof *record_out);
    int rc = first_start(log);
    if (rc != 1) {
        return rc;
    }
    record_out->start = log->next_start;
    record_out->events = cJSON_CreateArray();
    log->next_start = NULL;
    while ((rc = read_line(log, &json, &record_out->cut)) == 1) {
        const char *type = hr_cli_json_text(json, "type", "");
        if (strcmp(type, "start") == 0) {
            log->next_start = json;
            if (check_start(log, json) == 0) {
                return 1;
            }
            rc = -1;
            break;
        }
        keep(record_out, json, type);
    }
    if (rc < 0) {
        hr_cli_run_record_finish(record_out);
        return -1;
    }
    return 1;
}
