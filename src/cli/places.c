#include "cli/cli.h"

/* Finding the shim, simgpu and a driver. */
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_file(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

/* path_out = dir/tail made canonical, if that is a file. */
static bool find_file(const char *dir, const char *tail, char path_out[PATH_MAX])
{
    char joined[PATH_MAX];
    int n = snprintf(joined, sizeof joined, "%s/%s", dir, tail);
    if (n < 0 || (size_t)n >= sizeof joined || !is_file(joined)) {
        return false;
    }
    return realpath(joined, path_out) != NULL;
}

static void look_in(const char *dir, struct hr_cli_places *places)
{
    char path[PATH_MAX];

    size_t used = strlen(places->searched);
    snprintf(places->searched + used, sizeof places->searched - used, "%s%s", used ? ", " : "", dir);
    if (places->shim[0] == '\0' && find_file(dir, "libheadroom.so", path)) {
        memcpy(places->shim, path, sizeof path);
    }
    if (places->simgpu_dir[0] == '\0' && find_file(dir, "simgpu/libcuda.so.1", path)) {
        /* The folder as given, not of the file: libcuda.so.1 may be a link to a versioned name elsewhere. */
        char folder[PATH_MAX];
        int n = snprintf(folder, sizeof folder, "%s/simgpu", dir);
        if (n > 0 && (size_t)n < sizeof folder && realpath(folder, path) != NULL) {
            memcpy(places->simgpu_dir, path, sizeof path);
        }
    }
}

void hr_cli_find_places(struct hr_cli_places *places_out)
{
    char here[PATH_MAX], installed[PATH_MAX];

    memset(places_out, 0, sizeof *places_out);
    ssize_t n = readlink("/proc/self/exe", here, sizeof here - 1);
    if (n > 0) {
        here[n] = '\0';
        char *slash = strrchr(here, '/');
        if (slash != NULL) {
            *slash = '\0';
            look_in(here, places_out);
            int length = snprintf(installed, sizeof installed, "%s/%s", here, HR_LIBDIR_FROM_BINDIR);
            if (length > 0 && (size_t)length < sizeof installed) {
                look_in(installed, places_out);
            }
        }
    }
    look_in(HR_LIBDIR, places_out);
}

/* Whether one of the folders of a colon-separated list holds libcuda.so.1. */
static bool list_has_driver(const char *list)
{
    char path[PATH_MAX];

    while (*list != '\0') {
        size_t length = strcspn(list, ":");
        int n = snprintf(path, sizeof path, "%.*s/libcuda.so.1", (int)length, list);
        if (length > 0 && n > 0 && (size_t)n < sizeof path && is_file(path)) {
            return true;
        }
        list += length + (list[length] == ':');
    }
    return false;
}

int hr_cli_driver_present(const char *shim)
{
    const char *named = getenv("HEADROOM_DRIVER");
    const char *path = getenv("LD_LIBRARY_PATH");
    struct link_map *map = NULL;
    int present = 1;

    /* One that is not there is passed over by the shim too, which says so. */
    if (named != NULL && named[0] != '\0' && strcmp(named, "auto") != 0 && (is_file(named) || list_has_driver(named))) {
        return 1;
    }
    if (path != NULL && list_has_driver(path)) {
        return 1;
    }
    void *handle = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (handle == NULL) {
        return 0;
    }
    if (dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0) {
        char real[PATH_MAX];
        if (realpath(map->l_name, real) != NULL && strcmp(real, shim) == 0) {
            present = -1;
        }
    }
    dlclose(handle);
    return present;
}

/* Takes out of LD_PRELOAD what leads to that file. False: nothing does. */
static bool drop_preload(const char *file)
{
    const char *list = getenv("LD_PRELOAD");
    char *rest = list != NULL ? calloc(1, strlen(list) + 1) : NULL;
    bool dropped = false;

    while (rest != NULL && *list != '\0') {
        char entry[PATH_MAX], real[PATH_MAX];
        size_t length = strcspn(list, ": ");
        snprintf(entry, sizeof entry, "%.*s", (int)length, list);
        if (length > 0 && realpath(entry, real) != NULL && strcmp(real, file) == 0) {
            dropped = true;
        } else if (length > 0) {
            strcat(rest, rest[0] != '\0' ? ":" : "");
            strncat(rest, list, length);
        }
        list += length + (list[length] != '\0');
    }
    if (dropped && (rest[0] != '\0' ? setenv("LD_PRELOAD", rest, 1) : unsetenv("LD_PRELOAD")) != 0) {
        dropped = false;
    }
    free(rest);
    return dropped;
}

void hr_cli_leave_shim(char **argv)
{
    char file[PATH_MAX];
    Dl_info info;
    void *version = dlsym(RTLD_DEFAULT, "headroom_version");

    if (version != NULL && dladdr(version, &info) != 0 && realpath(info.dli_fname, file) != NULL &&
        drop_preload(file)) {
        execv("/proc/self/exe", argv);
    }
}
