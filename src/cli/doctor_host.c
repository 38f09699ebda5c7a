#include "cli/doctor.h"

/* What this process and this machine allow, as far as headroom asks for it. */
#include <errno.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/config.h"

#define GIB ((double)(1 << 30))
#define WINDOW_BYTES (UINT64_C(1) << 42) /* of addresses, which a few windows and the driver's own take */

extern char **environ;

static bool read_line(const char *path, char *line, size_t bytes)
{
    FILE *f = fopen(path, "re");
    bool got = f && fgets(line, (int)bytes, f);

    if (f)
        fclose(f);
    if (got)
        line[strcspn(line, "\n")] = '\0';
    return got;
}

/* ---- settings ---- */

static void settings(struct hr_doctor *doctor)
{
    bool fine = true;

    for (char **variable = environ; *variable; variable++) {
        char name[64];
        size_t length = strcspn(*variable, "=");
        if (strncmp(*variable, "HEADROOM_", 9) != 0 || length >= sizeof name)
            continue;
        memcpy(name, *variable, length);
        name[length] = '\0';
        const char *value = *variable + length + ((*variable)[length] == '=');
        const struct hr_setting *setting = hr_config_find(name);
        if (!setting)
            hr_doctor_say(doctor, HR_DOCTOR_WARN, "settings", "`headroom run --help` lists the settings",
                          "%s is no setting: it has no effect", name);
        else if (!hr_config_accepts(setting, value))
            hr_doctor_say(doctor, HR_DOCTOR_WARN, "settings", setting->accepted, "%s=%s is not understood: %s counts",
                          name, value, setting->default_text);
        else if (setting->effect == HR_EFFECT_LATER)
            hr_doctor_say(doctor, HR_DOCTOR_NOTE, "settings", NULL, "%s has no effect in this version", name);
        else
            continue;
        fine = false;
    }
    const char *off = getenv("HEADROOM_DISABLE");
    const char *preload = getenv("LD_PRELOAD");
    if (off && strcmp(off, "0") != 0 && off[0])
        hr_doctor_say(doctor, HR_DOCTOR_NOTE, "settings", "unset HEADROOM_DISABLE", "headroom is switched off here");
    else if (fine)
        hr_doctor_say(doctor, HR_DOCTOR_OK, "settings", NULL, "what is set is understood");
    if (preload && preload[0])
        hr_doctor_say(doctor, HR_DOCTOR_NOTE, "settings", NULL,
                      "LD_PRELOAD holds %s; `headroom run` goes in front of it", preload);
}

/* ---- limits ---- */

static void limits(struct hr_doctor *doctor)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < WINDOW_BYTES)
        hr_doctor_say(doctor, HR_DOCTOR_BAD, "limits",
                      "ulimit -v unlimited (of a batch system: its virtual memory limit)",
                      "a process may have %.0f GiB of addresses, fewer than a window and the driver need",
                      (double)limit.rlim_cur / GIB);
    else
        hr_doctor_say(doctor, HR_DOCTOR_OK, "limits", NULL, "addresses are not limited");
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        hr_doctor_say(
            doctor, HR_DOCTOR_NOTE, "limits", "ulimit -l unlimited, if pinning fails",
            "%.3f GiB may be locked; the driver pins host memory by itself, but some containers count it here",
            (double)limit.rlim_cur / GIB);
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < 1024)
        hr_doctor_say(doctor, HR_DOCTOR_WARN, "limits", "ulimit -n 1024 or more",
                      "a process may open %" PRIu64 " files", (uint64_t)limit.rlim_cur);
}

/* ---- host memory ---- */

/* The lowest limit of the process's control groups, version 2 or 1; UINT64_MAX: none. */
static uint64_t cgroup_limit_bytes(void)
{
    char line[PATH_MAX], path[PATH_MAX + 64];
    uint64_t least = UINT64_MAX;
    FILE *f = fopen("/proc/self/cgroup", "re");

    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = '\0';
        bool second = controllers[1] == '\0';
        if (!second && !strstr(controllers + 1, "memory"))
            continue;
        for (char *end = group + strlen(group);; *end = '\0') { /* the group and those that it is in */
            snprintf(path, sizeof path,
                     second ? "/sys/fs/cgroup%s/memory.max" : "/sys/fs/cgroup/memory%s/memory.limit_in_bytes", group);
            char text[64];
            if (read_line(path, text, sizeof text) && text[0] >= '0' && text[0] <= '9') {
                uint64_t bytes = strtoull(text, NULL, 10);
                least = bytes < least ? bytes : least;
            }
            end = strrchr(group, '/');
            if (!end)
                break;
        }
    }
    if (f)
        fclose(f);
    return least;
}

static uint64_t available_bytes(void)
{
    char line[256];
    unsigned long long kib = 0;
    FILE *f = fopen("/proc/meminfo", "re");

    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %llu kB", &kib) == 1)
            break;
    if (f)
        fclose(f);
    return kib << 10;
}

static void memory(struct hr_doctor *doctor)
{
    uint64_t available = available_bytes(), limit = cgroup_limit_bytes();

    if (limit < UINT64_C(1) << 60)
        hr_doctor_say(
            doctor, HR_DOCTOR_NOTE, "memory", NULL,
            "%.1f GiB are available, and the control group allows %.1f GiB: that bounds what can be moved out",
            (double)available / GIB, (double)limit / GIB);
    else
        hr_doctor_say(doctor, HR_DOCTOR_OK, "memory", NULL, "%.1f GiB are available to move out to",
                      (double)available / GIB);
    char pages[128];
    if (read_line("/sys/kernel/mm/transparent_hugepage/enabled", pages, sizeof pages) && strstr(pages, "[never]"))
        hr_doctor_say(doctor, HR_DOCTOR_NOTE, "memory", "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
                      "huge pages are off: pinned memory costs more where the driver has no host chunks");
}

void hr_doctor_host(struct hr_doctor *doctor)
{
    settings(doctor);
    limits(doctor);
    memory(doctor);
}
