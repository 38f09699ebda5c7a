#include "cli/doctor.h"

/* `headroom doctor`: its command line, and where what it finds goes. */
#include <cjson/cJSON.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WAIT_S 60

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
    printf(
        "headroom doctor [--json] [--wait SECONDS] [--sim MACHINE] [PROGRAM]\n"
        "\n"
        "Says what this machine and its driver can do for headroom, and what to change: the settings in the "
        "environment,\n"
        "limits, host memory, the driver's version, each GPU, access between them, chunks in host memory, functions "
        "of the\n"
        "driver that headroom does not know, and, of PROGRAM, whether libraries can be preloaded into it. Lines "
        "begin with\n"
        "ok, note (headroom works, perhaps with less), warn (it costs much, or breaks some jobs) or bad (it does not "
        "work that way).\n"
        "\n"
        "  --json          as one JSON object\n"
        "  --wait SECONDS  how long the driver may take to answer, 1 to 3600 (default 60)\n"
        "  --sim MACHINE   of a simulated GPU node, for example h200,vram=64M\n"
        "\n"
        "The exit status is 1 where something is bad, else 0.\n");
}

struct options {
    const char *machine, *program;
    unsigned wait_s;
    bool json;
};

/*
 * Whether argv[*at] is that flag, "--x VALUE" or "--x=VALUE"; *at moves to its last word. *value_out is "" where there is no value, and
 * untouched where it is another flag.
 */
static bool is_flag(const char *flag, int argc, char **argv, int *at, const char **value_out)
{
    const char *word = argv[*at];
    size_t length = strlen(flag);

    if (strncmp(word, flag, length) != 0 || (word[length] != '=' && word[length] != '\0'))
        return false;
    if (word[length] == '=')
        *value_out = word + length + 1;
    else
        *value_out = *at + 1 < argc ? argv[++*at] : "";
    return true;
}

static int parse_wait(const char *text, unsigned *wait_s_out)
{
    char *end;
    unsigned long seconds = strtoul(text, &end, 10);

    if (text[0] < '0' || text[0] > '9' || *end || seconds < 1 || seconds > 3600)
        return hr_cli_fail(HR_CLI_USAGE, "doctor: --wait takes seconds, 1 to 3600, not '%s'", text);
    *wait_s_out = (unsigned)seconds;
    return HR_CLI_OK;
}

/* Status of the command line: OK, or a status after a message. */
static int parse(int argc, char **argv, struct options *options)
{
    for (int i = 1; i < argc; i++) {
        const char *value = "";
        if (strcmp(argv[i], "--json") == 0) {
            options->json = true;
        } else if (is_flag("--sim", argc, argv, &i, &value)) {
            if (value[0] == '\0')
                return hr_cli_fail(HR_CLI_USAGE, "doctor: --sim needs a machine such as h200,vram=64M");
            options->machine = value;
        } else if (is_flag("--wait", argc, argv, &i, &value)) {
            if (parse_wait(value, &options->wait_s) != HR_CLI_OK)
                return HR_CLI_USAGE;
        } else if (strcmp(argv[i], "--") == 0 && i + 2 == argc && !options->program) {
            options->program = argv[++i];
        } else if (argv[i][0] == '-') {
            return hr_cli_fail(HR_CLI_USAGE, "doctor: no flag %s (`headroom doctor --help` lists them)", argv[i]);
        } else if (options->program) {
            return hr_cli_fail(HR_CLI_USAGE, "doctor: one program at a time, not %s and %s", options->program, argv[i]);
        } else {
            options->program = argv[i];
        }
    }
    return HR_CLI_OK;
}

static void examine(struct hr_doctor *doctor, const struct hr_cli_places *places, const struct options *options)
{
    if (places->shim[0])
        hr_doctor_say(doctor, HR_DOCTOR_OK, "library", NULL, "%s", places->shim);
    else
        hr_doctor_say(doctor, HR_DOCTOR_BAD, "library", "build it, or install it with the command",
                      "libheadroom.so is in none of: %s", places->searched);
    hr_doctor_host(doctor);
    hr_doctor_driver(doctor, places->shim, options->wait_s);
    if (options->program)
        hr_doctor_program(doctor, options->program);
}

static int print_json(const struct hr_doctor *doctor, cJSON *report)
{
    cJSON_AddStringToObject(report, "version", HR_VERSION);
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
    struct options options = {.wait_s = WAIT_S};

    if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        print_help();
        return fflush(stdout) == 0 ? HR_CLI_OK : HR_CLI_FAILED;
    }
    int status = parse(argc, argv, &options);
    if (status != HR_CLI_OK)
        return status;
    hr_cli_find_places(&places);
    if (options.machine && (status = hr_cli_simulate(&places, options.machine)) != HR_CLI_OK)
        return status;
    cJSON *report = options.json ? cJSON_CreateObject() : NULL;
    if (options.json && (!report || !(doctor.findings = cJSON_CreateArray())))
        return hr_cli_fail(HR_CLI_FAILED, "out of memory");
    examine(&doctor, &places, &options);
    status = options.json ? print_json(&doctor, report) : HR_CLI_OK;
    cJSON_Delete(report);
    if (fflush(stdout) != 0)
        return hr_cli_fail(HR_CLI_FAILED, "cannot write: %s", strerror(errno));
    return status == HR_CLI_OK && doctor.count[HR_DOCTOR_BAD] ? HR_CLI_FAILED : status;
}
