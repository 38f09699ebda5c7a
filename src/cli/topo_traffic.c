#include "cli/topo.h"

/* `headroom topo --report` of a stats log: what went between GPUs, and by which ports where the machine counts that. */
#include <stdio.h>
#include <stdlib.h>

#include "cli/cli.h"
#include "cli/statslog.h"

static double mb(const cJSON *item, const char *name)
{
    return hr_cli_json_number(item, name, 0) / 1e6;
}

static void print_traffic(const char *path, const cJSON *line, bool ended)
{
    const cJSON *traffic = cJSON_GetObjectItemCaseSensitive(line, "traffic"), *item;
    const cJSON *ports = cJSON_GetObjectItemCaseSensitive(line, "ports");

    if (cJSON_GetArraySize(traffic) == 0) {
        printf("%s: %.3f s%s: nothing went between GPUs\n", path, hr_cli_json_number(line, "t_ns", 0) / 1e9,
               ended ? "" : " so far");
        return;
    }
    printf("%s: %.3f s%s\n\n", path, hr_cli_json_number(line, "t_ns", 0) / 1e9, ended ? "" : " so far");
    printf("from\tto\tcopies\tdirect MB\trelayed MB\tthrough host MB\n");
    cJSON_ArrayForEach(item, traffic)
    {
        printf("GPU%.0f\tGPU%.0f\t%.0f\t%.3f\t%.3f\t%.3f\n", hr_cli_json_number(item, "from", -1),
               hr_cli_json_number(item, "to", -1), hr_cli_json_number(item, "copies", 0), mb(item, "direct_bytes"),
               mb(item, "relayed_bytes"), mb(item, "staged_bytes"));
    }
    if (!cJSON_IsArray(ports))
        return;
    printf("\nfrom\tport\tto\tMB\tforwarded MB\n");
    cJSON_ArrayForEach(item, ports)
    {
        printf("%s\t%.0f\t%s\t%.3f\t%.3f\n", hr_cli_json_text(item, "from", "?"), hr_cli_json_number(item, "port", -1),
               hr_cli_json_text(item, "to", "?"), mb(item, "bytes"), mb(item, "forwarded_bytes"));
    }
}

static int print_json(const cJSON *line)
{
    static const char *const names[] = {"t_ns", "traffic", "ports"};
    cJSON *json = cJSON_CreateObject();

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        const cJSON *item = cJSON_GetObjectItemCaseSensitive(line, names[i]);
        if (item != NULL)
            cJSON_AddItemToObject(json, names[i], cJSON_Duplicate(item, true));
    }
    char *text = cJSON_Print(json);
    cJSON_Delete(json);
    if (text == NULL)
        return hr_cli_fail(HR_CLI_FAILED, "out of memory");
    puts(text);
    free(text);
    return HR_CLI_OK;
}

/* Of the last run in the file. */
int hr_cli_topo_traffic(const char *path, bool json)
{
    struct hr_cli_run_record record, last = {0};
    struct hr_cli_log log;
    int rc, status = HR_CLI_OK;

    if (!hr_cli_log_open(&log, path))
        return HR_CLI_FAILED;
    while ((rc = hr_cli_log_next(&log, &record)) == 1) {
        hr_cli_run_record_finish(&last);
        last = record;
    }
    hr_cli_log_close(&log);
    const cJSON *line = last.summary != NULL ? last.summary : last.interval;
    if (rc != 0)
        status = HR_CLI_FAILED;
    else if (line == NULL)
        status =
            hr_cli_fail(HR_CLI_FAILED, "%s has no figures yet (a running job writes them every few seconds)", path);
    else if (!cJSON_IsArray(cJSON_GetObjectItemCaseSensitive(line, "traffic")))
        status = hr_cli_fail(HR_CLI_FAILED, "%s is of a job with one GPU", path);
    else if (json)
        status = print_json(line);
    else
        print_traffic(path, line, last.summary != NULL);
    hr_cli_run_record_finish(&last);
    return status;
}
