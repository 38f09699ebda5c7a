#include "cli/doctor.h"

/* Whether preloading reaches a program. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#define MOST_SCRIPTS 4

static bool is_program(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0;
}

/* As a shell finds it. */
static bool find(const char *name, char path_out[PATH_MAX])
{
    const char *folders = getenv("PATH");

    if (strchr(name, '/')) {
        snprintf(path_out, PATH_MAX, "%s", name);
        return is_program(path_out);
    }
    for (const char *at = folders ? folders : "/bin:/usr/bin"; *at;) {
        size_t length = strcspn(at, ":");
        snprintf(path_out, PATH_MAX, "%.*s%s%s", (int)length, at, length ? "/" : "", name);
        if (is_program(path_out))
            return true;
        at += length + (at[length] == ':');
    }
    return false;
}

/* The interpreter that the first line of a script names. */
static bool interpreter_of(const char *path, char interpreter_out[PATH_MAX])
{
    char line[PATH_MAX + 64] = "";
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, line, sizeof line - 1) : -1;

    if (fd >= 0)
        close(fd);
    if (n < 3 || line[0] != '#' || line[1] != '!')
        return false;
    line[strcspn(line, "\n")] = '\0';
    char *at = line + 2 + strspn(line + 2, " \t");
    char *rest = at + strcspn(at, " \t");
    bool env = rest - at >= 4 && strncmp(rest - 4, "/env", 4) == 0;
    if (env) { /* env [-S] [NAME=VALUE]... PROGRAM: the program is what counts */
        at = rest + strspn(rest, " \t");
        while (at[0] == '-' || strcspn(at, "=") < strcspn(at, " \t")) {
            at += strcspn(at, " \t");
            at += strspn(at, " \t");
        }
        rest = at + strcspn(at, " \t");
    }
    *rest = '\0';
    if (at[0] == '\0' || strlen(at) >= PATH_MAX)
        return false;
    if (env)
        return find(at, interpreter_out);
    memcpy(interpreter_out, at, strlen(at) + 1);
    return true;
}

static void say_privileges(struct hr_doctor *doctor, const char *path)
{
    struct stat st;
    bool file = stat(path, &st) == 0;

    if (file && (st.st_mode & (S_ISUID | S_ISGID)) && st.st_uid != getuid())
        hr_doctor_say(doctor, HR_DOCTOR_BAD, "program", "start a copy without the setuid or setgid bit",
                      "%s changes its user or group: the loader ignores libraries preloaded by path", path);
    else if (file && getxattr(path, "security.capability", NULL, 0) > 0)
        hr_doctor_say(doctor, HR_DOCTOR_BAD, "program", "take the capabilities from the file (setcap -r)",
                      "%s has file capabilities: the loader ignores libraries preloaded by path", path);
}

void hr_doctor_program(struct hr_doctor *doctor, const char *name)
{
    char path[PATH_MAX], next[PATH_MAX];

    if (!find(name, path)) {
        hr_doctor_say(doctor, HR_DOCTOR_BAD, "program", NULL, "%s is no program that can be run", name);
        return;
    }
    for (int depth = 0; depth < MOST_SCRIPTS && interpreter_of(path, next); depth++) {
        hr_doctor_say(doctor, HR_DOCTOR_OK, "program", NULL, "%s is a script for %s", path, next);
        memcpy(path, next, sizeof path);
    }
    say_privileges(doctor, path);
    switch (hr_elf_kind(path)) {
    case HR_ELF_DYNAMIC:
        hr_doctor_say(doctor, HR_DOCTOR_OK, "program", NULL, "%s takes preloaded libraries", path);
        break;
    case HR_ELF_STATIC:
        hr_doctor_say(doctor, HR_DOCTOR_BAD, "program", "link it dynamically; the CUDA runtime inside may stay static",
                      "%s is linked statically: nothing can be preloaded", path);
        break;
    case HR_ELF_FOREIGN:
        hr_doctor_say(doctor, HR_DOCTOR_BAD, "program", NULL, "%s is for another kind of machine than x86-64", path);
        break;
    case HR_ELF_NONE:
        hr_doctor_say(doctor, HR_DOCTOR_BAD, "program", NULL, "%s is neither an ELF program nor a script", path);
        break;
    }
}
