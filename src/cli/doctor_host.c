#include "cli/doctor.h"

/* What this process and this machine allow. Files of the kernel's that are not there say nothing. */
#include <errno.h>
#include <inttypes.h>
#include <linux/membarrier.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/config.h"
#include "space/budget.h"

#define GIB ((double)(1 << 30))
#define WINDOW_BYTES (UINT64_C(1) << 42) /* of addresses, which a few windows and the driver's own take */
#define FILES 1024
#define LITTLE_HOST_BYTES (UINT64_C(1) << 30)

/* The first line of a file that begins with `start`, without its end. */
static bool find_line(const char *path, const char *start, char *line, size_t bytes)
{
    FILE *f = fopen(path, "re");
    bool found = false;

    while (f && !found && fgets(line, (int)bytes, f))
        found = strncmp(line, start, strlen(start)) == 0;
    if (f)
        fclose(f);
    if (found)
        line[strcspn(line, "\n")] = '\0';
    return found;
}

/* ---- settings ---- */

/*
 * What is said of a variable. True: nothing. What is not taken as it stands is taken out of the environment, so that those who read
 * the settings later do not say so again.
 */
static bool setting_is_fine(struct hr_doctor *doctor, const char *name, const char *value)
{
    const struct hr_setting *setting = hr_config_find(name);

    if (!setting) {
        hr_doctor_say(doctor, HR_DOCTOR_WARN, "settings", "`headroom run --help` lists the settings",
                      "%s is no setting: it has no effect", name);
    } else if (!hr_config_accepts(setting, value)) {
        char advice[640];
        snprintf(advice, sizeof advice, "%s takes %s", name, setting->accepted);
        hr_doctor_say(doctor, HR_DOCTOR_WARN, "settings", advice, "%s=%s is not understood: the default, %s, is used",
                      name, value, setting->default_text);
    } else if (setting->effect == HR_EFFECT_LATER && strcmp(value, setting->default_text) != 0) {
        hr_doctor_say(doctor, HR_DOCTOR_NOTE, "settings", NULL, "%s has no effect in this version", name);
    } else {
        return true;
    }
    unsetenv(name);
    return false;
}

static void settings(struct hr_doctor *doctor)
{
    bool fine = true;

    for (char **variable = environ; *variable;) {
        char name[64];
        size_t length = strcspn(*variable, "=");
        bool ours = strncmp(*variable, "HEADROOM_", 9) == 0 && length < sizeof name && (*variable)[length] == '=';
        snprintf(name, sizeof name, "%.*s", (int)length, *variable);
        if (ours && !setting_is_fine(doctor, name, *variable + length + 1))
            fine = false; /* another variable has come to this place */
        else
            variable++;
    }
    if (hr_config()->disable)
        hr_doctor_say(doctor, HR_DOCTOR_NOTE, "settings", "unset HEADROOM_DISABLE", "headroom is switched off here");
    else if (fine)
        hr_doctor_say(doctor, HR_DOCTOR_OK, "settings", NULL, "what is set is understood");
    const char *preload = getenv("LD_PRELOAD");
    if (preload && preload[0])
        hr_doctor_say(doctor, HR_DOCTOR_NOTE, "settings", NULL,
                      "LD_PRELOAD holds %s; `headroom run` goes in front of it", preload);
}

/* The stats log is written where the job starts, unless a path is set. */
static void stats_log(struct hr_doctor *doctor)
{
    char path[PATH_MAX], folder[PATH_MAX];

    if (!hr_config()->stats[0])
        return;
    if (!hr_config_path(hr_config()->stats, path, sizeof path)) {
        hr_doctor_say(doctor, HR_DOCTOR_WARN, "stats", "a shorter HEADROOM_STATS", "the stats log's path is too long");
        return;
    }
    const char *slash = strrchr(path, '/');
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
    if (access(folder, W_OK | X_OK) == 0)
        return;
    hr_doctor_say(doctor, HR_DOCTOR_WARN, "stats", "HEADROOM_STATS=/a/folder/headroom-%h-%p.jsonl, or off",
                  "no stats log can be written to %s: %s", strcmp(folder, ".") == 0 ? "this folder" : folder,
                  strerror(errno));
}

/* ---- limits ---- */

static void limits(struct hr_doctor *doctor)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < WINDOW_BYTES)
        hr_doctor_say(doctor, HR_DOCTOR_BAD, "limits",
                      "ulimit -v unlimited (of a batch system: its limit of virtual memory)",
                      "a process may have %.0f GiB of addresses, fewer than a window and the driver need",
                      (double)limit.rlim_cur / GIB);
    else
        hr_doctor_say(doctor, HR_DOCTOR_OK, "limits", NULL, "addresses are not limited");
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        hr_doctor_say(
            doctor, HR_DOCTOR_NOTE, "limits", "ulimit -l unlimited, if pinning fails",
            "%.3f GiB may be locked; the driver pins host memory by itself, but some containers count it here",
            (double)limit.rlim_cur / GIB);
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < FILES)
        hr_doctor_say(doctor, HR_DOCTOR_WARN, "limits", "ulimit -n 1024 or more",
                      "a process may open %" PRIu64 " files", (uint64_t)limit.rlim_cur);
    long barriers = syscall(SYS_membarrier, MEMBARRIER_CMD_QUERY, 0, 0);
    if (barriers < 0 || !(barriers & MEMBARRIER_CMD_PRIVATE_EXPEDITED))
        hr_doctor_say(doctor, HR_DOCTOR_NOTE, "limits", "allow the system call membarrier in the sandbox",
                      "there is no membarrier here: each launch costs some nanoseconds more");
}

/* ---- host memory ---- */

static uint64_t machine_available_bytes(void)
{
    char line[256];

    if (!find_line("/proc/meminfo", "MemAvailable:", line, sizeof line))
        return 0;
    return (uint64_t)strtoull(line + strlen("MemAvailable:"), NULL, 10) << 10;
}

static void memory(struct hr_doctor *doctor)
{
    uint64_t machine = machine_available_bytes(), available = hr_budget_available_bytes();
    uint64_t budget = hr_config_size(&hr_config()->host, available, available / 5 * 4);

    budget = budget < available ? budget : available;
    if (machine > 0 && available < machine / 100 * 99)
        hr_doctor_say(doctor, HR_DOCTOR_NOTE, "memory", "a higher memory limit of the container, or of the batch job",
                      "%.1f GiB are available, of which the control group leaves %.1f GiB", (double)machine / GIB,
                      (double)available / GIB);
    hr_doctor_say(doctor, budget < LITTLE_HOST_BYTES ? HR_DOCTOR_WARN : HR_DOCTOR_OK, "memory",
                  budget < LITTLE_HOST_BYTES ? "free host memory, or raise HEADROOM_HOST" : NULL,
                  "of %.1f GiB of host memory a job now gets up to %.1f GiB to move out to", (double)available / GIB,
                  (double)budget / GIB);
    char pages[128];
    if (find_line("/sys/kernel/mm/transparent_hugepage/enabled", "", pages, sizeof pages) && strstr(pages, "[never]"))
        hr_doctor_say(doctor, HR_DOCTOR_NOTE, "memory", "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
                      "huge pages are off: pinning host memory costs more");
}

void hr_doctor_host(struct hr_doctor *doctor)
{
    settings(doctor);
    stats_log(doctor);
    limits(doctor);
    memory(doctor);
}
