/*
 * In place of the core, for tests of loading alone: headroom becomes active, with windows at a fixed range behind which there is
 * nothing. BARE_CORE=fail makes start-up fail; BARE_CORE=say tells of both ends.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "shim/shim.h"

static bool asked(const char *what)
{
    const char *value = getenv("BARE_CORE");
    return value != NULL && strcmp(value, what) == 0;
}

static void say(const char *line)
{
    if (asked("say") && write(STDERR_FILENO, line, strlen(line)) < 0)
        _exit(99);
}

CUresult hr_core_init(void)
{
    if (asked("fail"))
        return CUDA_ERROR_UNKNOWN;
    say("core init\n");
    hr_shim_set_windows(0x600000000000, (size_t)1 << 40);
    return CUDA_SUCCESS;
}

void hr_core_forked(void)
{
}

void hr_core_exit(void)
{
    say("core exit\n");
}
