/* What the subcommands of `headroom` share: how they fail, and where the built or installed files lie.
 *
 * A subcommand gets its own argv (argv[0] is its name) and returns the command's exit status; `run` and `sim` do not
 * return when they succeed, because they become the job. Statuses: 0, 1 = could not do it, 2 = asked for wrongly,
 * 126/127 = the job cannot be executed / does not exist, as shells have it.
 */
#ifndef HR_CLI_CLI_H
#define HR_CLI_CLI_H

#include <limits.h>

enum hr_cli_status {
    HR_CLI_OK = 0,
    HR_CLI_FAILED = 1,
    HR_CLI_USAGE = 2,
    HR_CLI_NOT_EXECUTABLE = 126,
    HR_CLI_NOT_FOUND = 127
};

int hr_cli_run(int argc, char **argv);
int hr_cli_sim(int argc, char **argv);
int hr_cli_report(int argc, char **argv);
int hr_cli_topo(int argc, char **argv);
int hr_cli_doctor(int argc, char **argv);

/* Prints one line "headroom: ..." to stderr and returns `status`. */
int hr_cli_fail(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));

struct hr_cli_places {
    char shim[PATH_MAX];       /* libheadroom.so, absolute; "" = not found */
    char simgpu_dir[PATH_MAX]; /* the folder that holds simgpu's libcuda.so.1, absolute; "" = not found */
    char searched[PATH_MAX];   /* the folders looked through, for a message */
};

/* Looks beside this executable (a build folder: libheadroom.so, simgpu/libcuda.so.1), then in LIBDIR/headroom, first
 * relative to the executable (so that a moved or staged installation works), then where meson was told to install. */
void hr_cli_find_places(struct hr_cli_places *places_out);

/* Sets SIMGPU, HEADROOM_DRIVER and the loader's path of this process, so that it, and what it becomes or starts, has that machine below
 * headroom. Returns HR_CLI_OK, or a status after a message. */
int hr_cli_simulate(const struct hr_cli_places *places, const char *machine);

/* Where the library is preloaded into this very process, as where LD_PRELOAD is set for a whole session, it would take the driver's place
 * here, too: this starts the command again without it. Returns where there is nothing to do, or where that cannot be done. */
void hr_cli_leave_shim(char **argv);

/* What a job would find as libcuda.so.1 by HEADROOM_DRIVER, LD_LIBRARY_PATH and the loader's own search.
 * 1 = a driver, 0 = none, -1 = cannot tell, because this process itself runs under the shim at `shim`. */
int hr_cli_driver_present(const char *shim);

#endif
