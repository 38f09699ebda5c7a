#include "cli/doctor.h"

/* `headroom doctor`: what this machine and its driver can do for headroom, and what to change. */
#include <cjson/cJSON.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEADLINE_S 60

const char *const hr_doctor_level_names[HR_DOCTOR_LEVELS] = {"ok", "note", "warn", "bad"};

struct hr_doctor {
    cJSON *findings; /* NULL: lines */
    unsigned count[HR_DOCTOR_LEVELS];
};

void hr_doctor_say(struct hr_doctor *doctor, enum hr_doctor_level level, const char *topic, const char *advice,
                   const char *format, ...)
{
    char text[8192];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    doctor->count[level]++;
    if (!doctor->findings) {
        printf("%-4s  %-9s %s\n", hr_doctor_level_names[level], topic, text);
        if (advice)
            printf("                -> %s\n", advice);
        return;
    }
    cJSON *finding = cJSON_CreateObject();
    cJSON_AddStringToObject(finding, "level", hr_doctor_level_names[level]);
    cJSON_AddStringToObject(finding, "topic", topic);
    cJSON_AddStringToObject(finding, "text", text);
    if (advice)
        cJSON_AddStringToObject(finding, "advice", advice);
    cJSON_AddItemToArray(doctor->findings, finding);
}

static void print_help(void)
{
    printf("headroom doctor [--json] [--sim MACHINE] [PROGRAM]\n"
           "\n"
           "Says what this machine and its driver can do for headroom, and what to change: the settings in the "
           "environment,\n"
           "limits, host memory, the driver's version, each GPU, access between them, chunks in host memory, functions "
           "of the\n"
           "driver that headroom does not know, and, of PROGRAM, whether libraries can be preloaded into it. Lines "
           "begin with\n"
           "ok, note (headroom works, with less), warn (it costs much, or breaks some jobs) or bad (it does not work "
           "that way).\n"
           "\n"
           "  --json         as one JSON object\n"
           "  --sim MACHINE  of a simulated GPU node, for example h200,vram=64M\n"
           "\n"
           "The exit status is 1 where something is bad, else 0.\n");
}

/* Status of the command line: OK, or a status after a message. */
static int parse(int argc, char **argv, bool *json_out, const char **machine_out, const char **program_out)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) {
            *json_out = true;
        } else if (strcmp(argv[i], "--sim") == 0 || strncmp(argv[i], "--sim=", 6) == 0) {
            *machine_out = argv[i][5] == '=' ? argv[i] + 6 : i + 1 < argc ? argv[++i] : "";
            if ((*machine_out)[0] == '\0')
                return hr_cli_fail(HR_CLI_USAGE, "doctor: --sim needs a machine such as h200,vram=64M");
        } else if (argv[i][0] == '-' && argv[i][1] != '\0') {
            return hr_cli_fail(HR_CLI_USAGE, "doctor: no flag %s (`headroom doctor --help` lists them)", argv[i]);
        } else if (*program_out) {
            return hr_cli_fail(HR_CLI_USAGE, "doctor: one program at a time, not %s and %s", *program_out, argv[i]);
        } else {
            *program_out = argv[i];
        }
    }
    return HR_CLI_OK;
}

static void examine(struct hr_doctor *doctor, const struct hr_cli_places *places, const char *program)
{
    if (places->shim[0])
        hr_doctor_say(doctor, HR_DOCTOR_OK, "library", NULL, "%s", places->shim);
    else
        hr_doctor_say(doctor, HR_DOCTOR_BAD, "library", "build it, or install it with the command",
                      "libheadroom.so is in none of: %s", places->searched);
    hr_doctor_host(doctor);
    hr_doctor_driver(doctor, places->shim, DEADLINE_S);
    if (program)
        hr_doctor_program(doctor, program);
}

static int print_json(const struct hr_doctor *doctor, cJSON *report)
{
    cJSON_AddItemToObject(report, "findings", doctor->findings);
    for (int level = 0; level < HR_DOCTOR_LEVELS; level++)
        cJSON_AddNumberToObject(report, hr_doctor_level_names[level], doctor->count[level]);
    char *text = cJSON_Print(report);
    if (!text)
        return hr_cli_fail(HR_CLI_FAILED, "out of memory");
    puts(text);
    cJSON_free(text);
    return HR_CLI_OK;
}

int hr_cli_doctor(int argc, char **argv)
{
    struct hr_doctor doctor = {0};
    struct hr_cli_places places;
    const char *machine = NULL, *program = NULL;
    bool json = false;

    if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        print_help();
        return fflush(stdout) == 0 ? HR_CLI_OK : HR_CLI_FAILED;
    }
    int status = parse(argc, argv, &json, &machine, &program);
    if (status != HR_CLI_OK)
        return status;
    hr_cli_find_places(&places);
    if (machine && (status = hr_cli_simulate(&places, machine)) != HR_CLI_OK)
        return status;
    cJSON *report = json ? cJSON_CreateObject() : NULL;
    if (json && !(doctor.findings = cJSON_CreateArray()))
        return hr_cli_fail(HR_CLI_FAILED, "out of memory");
    examine(&doctor, &places, program);
    status = json ? print_json(&doctor, report) : HR_CLI_OK;
    cJSON_Delete(report);
    if (fflush(stdout) != 0 || status != HR_CLI_OK)
        return HR_CLI_FAILED;
    return doctor.count[HR_DOCTOR_BAD] ? HR_CLI_FAILED : HR_CLI_OK;
}
