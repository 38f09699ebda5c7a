#include "cli/cli.h"

/* `headroom run` and `headroom sim`: set the environment, then become the job.
 *
 * exec, not fork: signals, exit status, terminal and pid are the job's own.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/config.h"

static void print_run_help(void)
{
    size_t count;
    const struct hr_setting *settings = hr_config_settings(&count);

    printf("headroom run [FLAGS] [--sim MACHINE] -- CMD...\n"
           "\n"
           "Runs CMD with libheadroom.so preloaded. The flags set the variables named beside them.\n"
           "\n"
           "  --sim MACHINE     on a simulated GPU node instead of a real one, for example h200,vram=64M\n"
           "                    (sets SIMGPU and HEADROOM_DRIVER; `headroom sim --help` says what MACHINE can be)\n");
    for (size_t i = 0; i < count; i++) {
        const struct hr_setting *s = &settings[i];
        printf("  --%-15s %s (%s)\n", s->flag, s->help, s->env);
        printf("  %-17s takes %s; default %s%s\n", "", s->accepted, s->default_text,
               s->effect == HR_EFFECT_LATER ? "; not yet in effect in this version" : "");
    }
}

static void print_sim_help(void)
{
    printf("headroom sim [MACHINE] -- CMD...\n"
           "\n"
           "Runs CMD on a simulated GPU node, without headroom. MACHINE is what SIMGPU holds:\n"
           "\n"
           "  MODEL[,vram=SIZE][,gpus=N][,host=SIZE][,seed=N | ,replay=N]\n"
           "\n"
           "for example h200,vram=64M. MODEL is h200, h100, a100-pcie, a100-sxm, rtx4090 or v100, or a whole "
           "machine such as dgx1v or hgx-h100, or topo=FILE[,model=NAME], an NCCL topology file. A MACHINE that is not "
           "understood is told when CMD calls cuInit, which fails then. Without MACHINE the variable SIMGPU counts, "
           "and without that an h200.\n");
}

/* Puts `entry` in front of a list variable. Returns 0, or a status after a message. */
static int prepend(const char *variable, const char *entry, const char *separator)
{
    const char *old = getenv(variable);
    char *list = NULL;
    int n =
        old != NULL && old[0] != '\0' ? asprintf(&list, "%s%s%s", entry, separator, old) : asprintf(&list, "%s", entry);

    if (n < 0) {
        return hr_cli_fail(HR_CLI_FAILED, "out of memory");
    }
    int rc = setenv(variable, list, 1);
    free(list);
    return rc == 0 ? HR_CLI_OK : hr_cli_fail(HR_CLI_FAILED, "cannot set %s: %s", variable, strerror(errno));
}

static int set(const char *variable, const char *value)
{
    if (setenv(variable, value, 1) != 0) {
        return hr_cli_fail(HR_CLI_FAILED, "cannot set %s: %s", variable, strerror(errno));
    }
    return HR_CLI_OK;
}

static int become(char **command)
{
    fflush(NULL);
    execvp(command[0], command);
    int status = errno == ENOENT || errno == ENOTDIR ? HR_CLI_NOT_FOUND : HR_CLI_NOT_EXECUTABLE;
    return hr_cli_fail(status, "cannot run %s: %s", command[0], strerror(errno));
}

/* The shim's path must survive LD_PRELOAD, whose entries end at spaces and colons. */
static int preload(const struct hr_cli_places *places)
{
    if (places->shim[0] == '\0') {
        return hr_cli_fail(HR_CLI_FAILED, "libheadroom.so is in none of: %s", places->searched);
    }
    if (strpbrk(places->shim, " :\t\n") != NULL) {
        return hr_cli_fail(HR_CLI_FAILED, "LD_PRELOAD cannot name a path with a space or a colon: %s", places->shim);
    }
    return prepend("LD_PRELOAD", places->shim, ":");
}

/* SIMGPU = machine (NULL: as it is) and simgpu's folder in front of the loader's path. */
static int simulate(const struct hr_cli_places *places, const char *machine)
{
    if (places->simgpu_dir[0] == '\0') {
        return hr_cli_fail(HR_CLI_FAILED, "simgpu/libcuda.so.1 is in none of: %s", places->searched);
    }
    if (strchr(places->simgpu_dir, ':') != NULL) {
        return hr_cli_fail(HR_CLI_FAILED, "LD_LIBRARY_PATH cannot name a path with a colon: %s", places->simgpu_dir);
    }
    int status = machine != NULL ? set("SIMGPU", machine) : HR_CLI_OK;
    return status != HR_CLI_OK ? status : prepend("LD_LIBRARY_PATH", places->simgpu_dir, ":");
}

/* What a simulated machine has of host memory is not what this one has: the shim is told, unless the user set a budget. */
static int tell_host_memory(void)
{
    char size[64];
    const char *machine = getenv("SIMGPU");
    const char *host = machine != NULL ? strstr(machine, ",host=") : NULL;

    if (host == NULL || getenv("HEADROOM_HOST") != NULL) {
        return HR_CLI_OK;
    }
    host += strlen(",host=");
    snprintf(size, sizeof size, "%.*s", (int)strcspn(host, ","), host);
    return hr_config_accepts(hr_config_find("HEADROOM_HOST"), size) ? set("HEADROOM_HOST", size) : HR_CLI_OK;
}

int hr_cli_simulate(const struct hr_cli_places *places, const char *machine)
{
    char driver[PATH_MAX + 16];

    int status = simulate(places, machine);
    if (status != HR_CLI_OK) {
        return status;
    }
    /* By path: shim and simgpu share a SONAME. */
    snprintf(driver, sizeof driver, "%s/libcuda.so.1", places->simgpu_dir);
    status = set("HEADROOM_DRIVER", driver);
    return status != HR_CLI_OK ? status : tell_host_memory();
}

/* The flag at argv[*at], "--x VALUE" or "--x=VALUE"; *at moves past it. Sets the variable, or
 * keeps a machine. */
static int take_flag(int argc, char **argv, int *at, const char **machine_out, bool *driver_named_out)
{
    char name[64];
    const char *flag = argv[*at] + 2;
    size_t length = strcspn(flag, "=");
    const char *value = flag[length] == '=' ? flag + length + 1 : NULL;

    snprintf(name, sizeof name, "%.*s", (int)(length < sizeof name ? length : sizeof name - 1), flag);
    const struct hr_setting *setting = hr_config_find(name);
    bool sim = strcmp(name, "sim") == 0;
    if (!sim && (setting == NULL || strcmp(setting->flag, name) != 0)) {
        return hr_cli_fail(HR_CLI_USAGE, "run: no flag --%s (`headroom run --help` lists them)", name);
    }
    if (value == NULL) {
        if (*at + 1 >= argc || strcmp(argv[*at + 1], "--") == 0) {
            return hr_cli_fail(HR_CLI_USAGE, "run: --%s needs a value: %s", name,
                               sim ? "a machine such as h200,vram=64M" : setting->accepted);
        }
        value = argv[++*at];
    }
    ++*at;
    if (sim) {
        if (value[0] == '\0') {
            return hr_cli_fail(HR_CLI_USAGE, "run: --sim needs a machine such as h200,vram=64M");
        }
        *machine_out = value;
        return HR_CLI_OK;
    }
    if (!hr_config_accepts(setting, value)) {
        return hr_cli_fail(HR_CLI_USAGE, "run: --%s takes %s, not '%s'", name, setting->accepted, value);
    }
    if (strcmp(name, "driver") == 0) {
        *driver_named_out = true;
    }
    return set(setting->env, value);
}

int hr_cli_run(int argc, char **argv)
{
    struct hr_cli_places places;
    const char *machine = NULL;
    bool driver_named = false;
    int status, at = 1;

    while (at < argc && argv[at][0] == '-') {
        if (strcmp(argv[at], "--") == 0) {
            at++;
            break;
        }
        if (strcmp(argv[at], "--help") == 0 || strcmp(argv[at], "-h") == 0) {
            print_run_help();
            return fflush(stdout) == 0 ? HR_CLI_OK : HR_CLI_FAILED;
        }
        if (argv[at][1] != '-') {
            return hr_cli_fail(HR_CLI_USAGE, "run: no flag %s (`headroom run --help` lists them)", argv[at]);
        }
        if ((status = take_flag(argc, argv, &at, &machine, &driver_named)) != HR_CLI_OK) {
            return status;
        }
    }
    if (machine != NULL && driver_named) {
        return hr_cli_fail(HR_CLI_USAGE, "run: --sim brings its own driver, so --driver cannot be given with it");
    }
    if (at >= argc) {
        return hr_cli_fail(HR_CLI_USAGE, "run: no command to run (headroom run [FLAGS] -- CMD...)");
    }
    hr_cli_find_places(&places);
    status = machine != NULL ? hr_cli_simulate(&places, machine) : HR_CLI_OK;
    if (status == HR_CLI_OK) {
        status = preload(&places);
    }
    if (status == HR_CLI_OK && machine == NULL && hr_cli_driver_present(places.shim) == 0) {
        (void)hr_cli_fail(
            0, "no CUDA driver (libcuda.so.1) on this machine, so the command gets none; --sim MACHINE gives "
               "it a simulated GPU");
    }
    return status != HR_CLI_OK ? status : become(argv + at);
}

int hr_cli_sim(int argc, char **argv)
{
    struct hr_cli_places places;
    const char *machine = NULL;
    int at = 1;

    if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        print_sim_help();
        return fflush(stdout) == 0 ? HR_CLI_OK : HR_CLI_FAILED;
    }
    if (at < argc && argv[at][0] != '-') {
        machine = argv[at++];
    }
    if (at < argc && strcmp(argv[at], "--") != 0) {
        return hr_cli_fail(HR_CLI_USAGE, "sim: '%s' where -- was expected (headroom sim [MACHINE] -- CMD...)",
                           argv[at]);
    }
    if (at + 1 >= argc) {
        return hr_cli_fail(HR_CLI_USAGE, "sim: no command to run (headroom sim [MACHINE] -- CMD...)");
    }
    hr_cli_find_places(&places);
    int status = simulate(&places, machine);
    return status != HR_CLI_OK ? status : become(argv + at + 1);
}
