/* Processes made in all the ways there are, by one that uses CUDA already or not yet. */
#include "process_job.h"

#include "../../support/sanitizer.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHILDREN 3

static void await(pid_t child)
{
    int status;
    NEED(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* What a child finds that was forked from a process with CUDA: the driver's own answers. */
static void tell_of_driver(void)
{
    CUdeviceptr p;
    CUcontext context;
    size_t left, total;
    int count;
    printf("in the child: cuInit %d, cuMemAlloc %d, cuCtxCreate %d, cuCtxGetCurrent %d, cuMemGetInfo %d, "
           "cuDeviceGetCount %d, "
           "cuCtxSynchronize %d\n",
           (int)cuInit(0), (int)cuMemAlloc_v2(&p, 4096), (int)cuCtxCreate_v2(&context, 0, 0),
           (int)cuCtxGetCurrent(&context), (int)cuMemGetInfo_v2(&left, &total), (int)cuDeviceGetCount(&count),
           (int)cuCtxSynchronize());
    fflush(stdout);
}

/* Forks while kernels are under way; children ask the driver, run something else, or fork again; the parent goes on. */
static int fork_after(const char *self)
{
    struct set set;
    set_make(&set, context_on(0), BUFFERS, 3);
    for (int round = 0; round < 3; round++) {
        set_add(&set);
        fflush(stdout);
        pid_t child = fork();
        NEED(child >= 0);
        if (child == 0 && round == 0) {
            tell_of_driver();
            if (SANITIZED_ADDRESSES)
                _exit(0); /* the leak checker knows of no forks */
            exit(0);      /* with its exit handlers */
        }
        if (child == 0 && round == 1) {
            execl(self, self, "work", "17", (char *)NULL);
            _exit(127);
        }
        if (child == 0) {
            pid_t grandchild = fork();
            if (grandchild == 0) {
                tell_of_driver();
                _exit(0);
            }
            await(grandchild);
            _exit(0);
        }
        await(child);
        set_add(&set);
    }
    set_check(&set);
    set_free(&set);
    puts("the parent is as it was");
    return 0;
}

/* As servers do it: children before the parent has touched CUDA, and then the parent. */
static int fork_before(void)
{
    pid_t child[CHILDREN];
    for (unsigned i = 0; i < CHILDREN; i++) {
        child[i] = fork();
        NEED(child[i] >= 0);
        if (child[i] == 0) {
            work(0, 30);
            exit(0);
        }
    }
    work(0, 30);
    for (int i = 0; i < CHILDREN; i++)
        await(child[i]);
    return 0;
}

static int vfork_exec(const char *self)
{
    struct set set;
    set_make(&set, context_on(0), BUFFERS, 4);
    for (int round = 0; round < 3; round++) {
        set_add(&set);
        pid_t child = vfork(); /* NOLINT(clang-analyzer-security.insecureAPI.vfork): it is what is tested */
        if (child == 0) {
            execl(self, self, "work", "18", (char *)NULL);
            _exit(127);
        }
        NEED(child > 0);
        await(child);
    }
    set_check(&set);
    puts("the parent is as it was");
    return 0;
}

static int spawn_many(const char *self)
{
    struct set set;
    pid_t child[CHILDREN];
    char *argv[] = {(char *)self, (char *)"work", (char *)"19", NULL};
    set_make(&set, context_on(0), BUFFERS, 5);
    set_add(&set);
    for (int i = 0; i < CHILDREN; i++)
        NEED(posix_spawn(&child[i], self, NULL, NULL, argv, environ) == 0);
    set_add(&set);
    for (int i = 0; i < CHILDREN; i++)
        await(child[i]);
    set_check(&set);
    puts("the parent is as it was");
    return 0;
}

/* Away from its parent, its session and every open file, as daemons go; the result is in a file. */
static int daemon_mode(const char *file)
{
    pid_t child = fork();
    NEED(child >= 0);
    if (child > 0)
        return 0;
    NEED(setsid() > 0);
    child = fork();
    NEED(child >= 0);
    if (child > 0)
        _exit(0);
    for (int fd = 0; fd < 256; fd++)
        close(fd);
    NEED(open("/dev/null", O_RDONLY) == 0 && open(file, O_WRONLY | O_CREAT | O_TRUNC, 0600) == 1 && dup(1) == 2);
    work(0, 20);
    return 0;
}

/* A process that has used CUDA and is rid of it becomes another program. */
static int exec_mode(const char *self)
{
    struct set set;
    set_make(&set, context_on(0), BUFFERS, 6);
    set_add(&set);
    execl(self, self, "work", "21", (char *)NULL);
    return 127;
}

int processes_mode(const char *mode, const char *self, const char *file)
{
    if (strcmp(mode, "fork") == 0)
        return fork_after(self);
    if (strcmp(mode, "fork-before") == 0)
        return fork_before();
    if (strcmp(mode, "vfork") == 0)
        return vfork_exec(self);
    if (strcmp(mode, "spawn") == 0)
        return spawn_many(self);
    if (strcmp(mode, "daemon") == 0 && file)
        return daemon_mode(file);
    if (strcmp(mode, "exec") == 0)
        return exec_mode(self);
    fprintf(stderr, "process_job: no mode %s\n", mode);
    return 2;
}
