#include "cli/cli.h"

/* The `headroom` command: picks the subcommand. */
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static const char usage[] =
    "headroom " HR_VERSION ": more GPU memory than the card has, for unmodified CUDA jobs\n"
    "\n"
    "  headroom run [FLAGS] [--sim MACHINE] -- CMD...  run CMD with headroom preloaded\n"
    "  headroom sim [MACHINE] -- CMD...                run CMD on a simulated GPU node, without headroom\n"
    "  headroom report [--json] [--sites N] FILE...    a readable summary of stats logs\n"
    "  headroom report --timeline FILE [-o SVG]        draws a simulated GPU's timeline\n"
    "  headroom topo [--sim MACHINE | --file FILE]     how the GPUs are connected, and what that carries\n"
    "  headroom doctor [--sim MACHINE] [PROGRAM]       what this machine can do, and what to change\n"
    "  headroom SUBCOMMAND --help                      the flags of a subcommand\n"
    "  headroom --version\n";

static const struct {
    const char *name;
    int (*entry)(int argc, char **argv);
    bool asks_driver; /* itself, in this process */
} subcommands[] = {
    {"run", hr_cli_run, false},  {"sim", hr_cli_sim, false},      {"report", hr_cli_report, false},
    {"topo", hr_cli_topo, true}, {"doctor", hr_cli_doctor, true},
};

int hr_cli_fail(int status, const char *format, ...)
{
    char line[PATH_MAX + 1024];
    va_list args;

    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    fflush(stdout);
    fprintf(stderr, "headroom: %s\n", line);
    return status;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        return hr_cli_fail(HR_CLI_USAGE,
                           "no subcommand (run, sim, report, topo or doctor; `headroom --help` says more)");
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        fputs(usage, stdout);
        return fflush(stdout) == 0 ? HR_CLI_OK : HR_CLI_FAILED;
    }
    if (strcmp(argv[1], "--version") == 0) {
        puts("headroom " HR_VERSION);
        return fflush(stdout) == 0 ? HR_CLI_OK : HR_CLI_FAILED;
    }
    for (size_t i = 0; i < sizeof subcommands / sizeof subcommands[0]; i++) {
        if (strcmp(argv[1], subcommands[i].name) == 0) {
            if (subcommands[i].asks_driver) {
                hr_cli_leave_shim(argv);
            }
            return subcommands[i].entry(argc - 1, argv + 1);
        }
    }
    return hr_cli_fail(HR_CLI_USAGE,
                       "no subcommand '%s' (run, sim, report, topo or doctor; `headroom --help` says more)", argv[1]);
}
