/* SIMGPU_CARDS: processes on the same cards. */
#include "sim_test.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static char file[64], report[64];

static void set_up(void)
{
    strcpy(file, "/tmp/simgpu-cards-XXXXXX");
    int fd = mkstemp(file);
    cr_assert_geq(fd, 0);
    close(fd);
    setenv("SIMGPU", "dgx1v,vram=64M", 1);
    setenv("SIMGPU_CARDS", file, 1);
}

static void tear_down(void)
{
    unlink(file);
}

TestSuite(cards, .init = set_up, .fini = tear_down, .timeout = 60);

/* A process that takes so much of a card once it is told to, and keeps it until it is told to end, or is killed. */
struct holder {
    pid_t pid;
    int says, told;
};

static struct holder start(const char *visible, size_t bytes)
{
    int says[2], told[2];
    char c;
    cr_assert(pipe(says) == 0 && pipe(told) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        CUcontext context;
        CUdeviceptr p;
        close(told[1]);
        setenv("CUDA_VISIBLE_DEVICES", visible, 1);
        bool fine =
            read(told[0], &c, 1) == 1 && !cuInit(0) && !cuCtxCreate_v2(&context, 0, 0) && !cuMemAlloc_v2(&p, bytes);
        if (write(says[1], fine ? "y" : "n", 1) == 1 && read(told[0], &c, 1) == 0)
            _exit(0);
        _exit(1);
    }
    close(says[1]);
    close(told[0]);
    return (struct holder){pid, says[0], told[1]};
}

static void go(struct holder h)
{
    char c;
    cr_assert(write(h.told, "x", 1) == 1 && read(h.says, &c, 1) == 1 && c == 'y', "the holder has nothing");
}

static void end(struct holder h, int how)
{
    int status;
    if (how)
        kill(h.pid, how);
    close(h.told);
    cr_assert(waitpid(h.pid, &status, 0) == h.pid);
    cr_assert(how ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 0, "0x%x", (unsigned)status);
    close(h.says);
}

Test(cards, what_one_process_has_the_others_lack)
{
    CUcontext context, on_five;
    CUdeviceptr p;
    struct holder other = start("3", 40 * MIB);
    go(other);
    setenv("CUDA_VISIBLE_DEVICES", "5,3", 1);
    OK(cuInit(0));
    OK(cuCtxCreate_v2(&context, 0, 1)); /* card 3 */
    size_t before = free_vram();
    cr_assert_leq(before, 64 * MIB - 40 * MIB, "%zu", before);
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&p, 30 * MIB));
    OK(cuMemAlloc_v2(&p, 8 * MIB));
    cr_assert_eq(free_vram(), before - 8 * MIB);
    OK(cuMemFree_v2(p));
    cr_assert_eq(free_vram(), before);
    OK(cuCtxCreate_v2(&on_five, 0, 0));
    cr_assert_gt(free_vram(), 48 * MIB); /* nobody else is there */
    OK(cuMemAlloc_v2(&p, 40 * MIB));
    OK(cuCtxSetCurrent(context));
    end(other, 0);
    cr_assert_gt(free_vram(), before + 40 * MIB - 1);
    OK(cuMemAlloc_v2(&p, 40 * MIB));
}

Test(cards, a_killed_process_has_nothing_any_more)
{
    CUcontext context;
    CUdeviceptr p;
    struct holder killed = start("0", 40 * MIB), later = start("0", 24 * MIB);
    go(killed);
    setenv("CUDA_VISIBLE_DEVICES", "0", 1);
    OK(cuInit(0));
    OK(cuCtxCreate_v2(&context, 0, 0));
    GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc_v2(&p, 40 * MIB));
    end(killed, SIGKILL);
    OK(cuMemAlloc_v2(&p, 40 * MIB));
    OK(cuMemFree_v2(p));
    go(later); /* it takes the same row */
    size_t left = free_vram();
    cr_assert_lt(left, 40 * MIB);
    pid_t child = fork(); /* has no row and keeps none alive */
    if (child == 0) {
        pause();
        _exit(0);
    }
    end(later, SIGKILL);
    cr_assert_gt(free_vram(), left + 24 * MIB - 1);
    kill(child, SIGKILL);
    cr_assert_eq(waitpid(child, NULL, 0), child);
}

Test(cards, a_file_of_another_kind_is_refused_and_left_alone)
{
    char text[16] = "", *path = report;
    strcpy(report, "/tmp/simgpu-other-XXXXXX");
    int fd = mkstemp(path);
    cr_assert(fd >= 0 && write(fd, "important", 9) == 9);
    setenv("SIMGPU_CARDS", path, 1);
    setenv("SIMGPU_LOG", "off", 1);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuInit(0));
    cr_assert(pread(fd, text, sizeof text - 1, 0) == 9 && strcmp(text, "important") == 0);
    close(fd);
    unlink(path);
}
