#include "space/budget.h"

#include "base/config.h"
#include "space/share.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Reads a small file of the kernel's; 0 = cannot. No stdio: the host program may have hooked it. */
static size_t read_small(const char *path, char *text, size_t cap)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t n = read(fd, text, cap - 1);
    close(fd);
    text[n > 0 ? n : 0] = 0;
    return n > 0 ? (size_t)n : 0;
}

static size_t mem_available(void)
{
    char text[512]; /* the job's thread may have little stack; the line is among the first */
    if (!read_small("/proc/meminfo", text, sizeof text))
        return (size_t)sysconf(_SC_AVPHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    const char *line = strstr(text, "MemAvailable:");
    return line ? strtoull(line + strlen("MemAvailable:"), NULL, 10) * 1024 : 0;
}

static size_t read_number(const char *dir, const char *file, size_t otherwise)
{
    char path[600], text[64];
    snprintf(path, sizeof path, "%s/%s", dir, file);
    if (!read_small(path, text, sizeof text) || text[0] < '0' || text[0] > '9')
        return otherwise;
    return strtoull(text, NULL, 10);
}

/* Limit minus usage of a folder of the memory controller, version 2 or 1; SIZE_MAX = no limit there. */
static size_t left_in_group(const char *dir)
{
    const char *usage = "memory.current";
    size_t limit = read_number(dir, "memory.max", SIZE_MAX);
    if (limit == SIZE_MAX) {
        limit = read_number(dir, "memory.limit_in_bytes", SIZE_MAX);
        usage = "memory.usage_in_bytes";
    }
    if (limit > SIZE_MAX / 4)
        return SIZE_MAX;
    size_t used = read_number(dir, usage, 0);
    return limit > used ? limit - used : 0;
}

/* The smallest rest on the way from this process's control group to the root. */
static size_t left_in_groups(void)
{
    char text[2048], dir[520];
    size_t least = SIZE_MAX;
    if (!read_small("/proc/self/cgroup", text, sizeof text))
        return least;
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char *path = strstr(line, "::") == line + 1 ? line + 3 : NULL;
        const char *root = "/sys/fs/cgroup";
        char *v1 = strstr(line, ":memory:");
        if (v1) {
            path = v1 + strlen(":memory:");
            root = "/sys/fs/cgroup/memory";
        }
        if (!path || strlen(path) > 400)
            continue;
        for (;;) {
            snprintf(dir, sizeof dir, "%s%s", root, path);
            size_t left = left_in_group(dir);
            if (left < least)
                least = left;
            char *slash = strrchr(path, '/');
            if (!slash || path[0] == 0 || strcmp(path, "/") == 0)
                break;
            *slash = 0;
        }
    }
    size_t at_root = left_in_group("/sys/fs/cgroup");
    return at_root < least ? at_root : least;
}

size_t hr_budget_available_bytes(void)
{
    size_t available = mem_available(), group = left_in_groups();
    return group < available ? group : available;
}

size_t hr_budget_host_bytes(void)
{
    size_t available = hr_budget_available_bytes(), others = hr_share_others();
    available = others < available ? available - others : 0;
    size_t asked = hr_config_size(&hr_config()->host, available, available / 5 * 4);
    return asked < available ? asked : available;
}
