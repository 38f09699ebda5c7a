#include "cli/doctor.h"

/* Whether preloading reaches a program. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
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

    if (strlen(name) >= PATH_MAX)
        return false;
    if (strchr(name, '/')) {
        strcpy(path_out, name);
        return is_program(path_out);
    }
    for (const char *at = folders ? folders : "/bin:/usr/bin"; *at;) {
        size_t length = strcspn(at, ":");
        int n = snprintf(path_out, PATH_MAX, "%.*s%s%s", (int)length, at, length ? "/" : "", name);
        if (n > 0 && n < PATH_MAX && is_program(path_out))
            return true;
        at += length + (at[length] == ':');
    }
    return false;
}

/* Behind `env`: [-S] [NAME=VALUE]... PROGRAM; where the program's name begins. */
static char *behind_env(char *at)
{
    at += strspn(at, " \t");
    while (at[0] == '-' || (at[0] && strcspn(at, "=") < strcspn(at, " \t"))) {
        at += strcspn(at, " \t");
        at += strspn(at, " \t");
    }
    return at;
}

/* The interpreter that the first line of a script names. */
static bool interpreter_of(const char *path, char interpreter_out[PATH_MAX])
{
    char line[PATH_MAX + 64] = "";
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t n = fd >= 0 ? read(fd, line, sizeof line - 1) : -1;

    if (fd >= 0)
        close(fd);
    if (n < 3 || line[0] != '#' || line[1] != '!')
        return false;
    line[strcspn(line, "\n")] = '\0';
    char *at = line + 2 + strspn(line + 2, " \t");
    char *rest = at + strcspn(at, " \t");
    bool env = rest - at >= 4 && strncmp(rest - 4, "/env", 4) == 0;
    if (env) {
        at = behind_env(rest);
        rest = at + strcspn(at, " \t");
    }
    *rest = '\0';
    if (at[0] == '\0' || strlen(at) >= PATH_MAX)
        return false;
    if (!env || !find(at, interpreter_out))
        memcpy(interpreter_out, at, strlen(at) + 1);
    return true;
}

/*
 * As the kernel decides whether a program starts with privileges of its own: then the loader drops what is preloaded by path. Root
 * gains nothing from a program of root's, nor anybody where the file system or the process says no. True when it was told.
 */
static bool gains_privileges(struct hr_doctor *doctor, const char *path)
{
    struct stat st;
    struct statvfs fs;

    if (stat(path, &st) != 0 || (statvfs(path, &fs) == 0 && (fs.f_flag & ST_NOSUID)) ||
        prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) == 1)
        return false;
    bool setuid = (st.st_mode & S_ISUID) && st.st_uid != getuid();
    bool setgid = (st.st_mode & (S_ISGID | S_IXGRP)) == (S_ISGID | S_IXGRP) && st.st_gid != getgid();
    if (setuid || setgid)
        hr_doctor_say(doctor, HR_DOCTOR_BAD, "program", "start a copy without the setuid and setgid bits",
                      "%s changes its user or group: the loader ignores libraries preloaded by path", path);
    else if (getuid() != 0 && getxattr(path, "security.capability", NULL, 0) > 0)
        hr_doctor_say(doctor, HR_DOCTOR_BAD, "program", "take the capabilities from the file (setcap -r)",
                      "%s has file capabilities: the loader ignores libraries preloaded by path", path);
    else
        return false;
    return true;
}

static void say_dynamic(struct hr_doctor *doctor, const char *path, const struct hr_elf_program *program,
                        bool privileged)
{
    const char *slash = strrchr(program->loader, '/');

    if (strncmp(slash ? slash + 1 : program->loader, "ld-musl", 7) == 0)
        hr_doctor_say(doctor, HR_DOCTOR_BAD, "program", "a program, or a container's image, with glibc",
                      "%s is made for the C library musl, libheadroom.so for glibc", path);
    else if (access(program->loader, X_OK) != 0)
        hr_doctor_say(doctor, HR_DOCTOR_BAD, "program", NULL, "%s asks for the loader %s, which is not there", path,
                      program->loader);
    else if (program->needs_asan)
        hr_doctor_say(doctor, HR_DOCTOR_WARN, "program", "ASAN_OPTIONS=verify_asan_link_order=0",
                      "%s is built with AddressSanitizer, which refuses to start behind a preloaded library", path);
    else if (!privileged)
        hr_doctor_say(doctor, HR_DOCTOR_OK, "program", NULL, "%s takes preloaded libraries", path);
}

void hr_doctor_program(struct hr_doctor *doctor, const char *name)
{
    char path[PATH_MAX], next[PATH_MAX];
    struct hr_elf_program program;

    if (!find(name, path)) {
        hr_doctor_say(doctor, HR_DOCTOR_BAD, "program", NULL, "%s is no program that can be run", name);
        return;
    }
    for (int depth = 0; depth < MOST_SCRIPTS && interpreter_of(path, next); depth++) {
        if (!is_program(next)) {
            hr_doctor_say(doctor, HR_DOCTOR_BAD, "program", NULL, "%s is a script for %s, which is not there", path,
                          next);
            return;
        }
        hr_doctor_say(doctor, HR_DOCTOR_OK, "program", NULL, "%s is a script for %s", path, next);
        memcpy(path, next, sizeof path);
    }
    bool privileged = gains_privileges(doctor, path);
    hr_elf_program(path, &program);
    if (program.kind == HR_ELF_DYNAMIC)
        say_dynamic(doctor, path, &program, privileged);
    else if (program.kind == HR_ELF_STATIC)
        hr_doctor_say(doctor, HR_DOCTOR_BAD, "program", "link it dynamically; the CUDA runtime inside may stay static",
                      "%s is linked statically: nothing can be preloaded", path);
    else if (program.kind == HR_ELF_FOREIGN)
        hr_doctor_say(doctor, HR_DOCTOR_BAD, "program", NULL, "%s is for another kind of machine than this one", path);
    else if (access(path, R_OK) != 0)
        hr_doctor_say(doctor, HR_DOCTOR_NOTE, "program", NULL, "%s cannot be read, so this cannot tell", path);
    else
        hr_doctor_say(doctor, HR_DOCTOR_BAD, "program", NULL, "%s is neither an ELF program nor a script", path);
}
