/*
 * Twice clone with the memory shared and the caller held until exec, as vfork does, which neither copies page tables nor runs fork
 * handlers. The first child exists so that the second is nobody's in this process: it ends at once, silently, and the helper is
 * left to init. What runs in them makes system calls only, by number: the C library's wrappers, clone's own among them, may keep
 * books in memory that is the job's, and a sanitizer's certainly do.
 */
#include "base/child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define STACK_BYTES (UINT64_C(64) << 10) /* of each of the two */
#define MOST_CLOSED 4096                 /* descriptors, on kernels without close_range */
#define SIGNALS 64
#define ENDING_MS 5000
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif
#ifndef SYS_close_range
#define SYS_close_range 436
#endif

#if defined(__has_attribute)
#if __has_attribute(disable_sanitizer_instrumentation)
#define PLAIN __attribute__((disable_sanitizer_instrumentation))
#endif
#endif
#ifndef PLAIN
#define PLAIN __attribute__((no_sanitize("address", "thread", "undefined")))
#endif

struct start {
    const char *path;
    char *const *argv, *const *envp;
    int null_fd, pipe_fd;
    char *stack;
    volatile int error; /* of whatever failed in the children; they share this memory */
    volatile int pid;   /* the helper's */
};

/* Runs body(arg) on a stack of its own, in a new process that ends when it returns. The process, or a negative errno. */
static PLAIN long split_off(int (*body)(void *), char *stack_top, unsigned long flags, void *arg)
{
#if defined(__x86_64__)
    register long thread_id_1 __asm__("r10") = 0;
    register long thread_id_2 __asm__("r8") = 0;
    long result = SYS_clone;

    __asm__ volatile("syscall\n\t"
                     "test %%rax, %%rax\n\t"
                     "jnz 1f\n\t"
                     "mov %[arg], %%rdi\n\t"
                     "call *%[body]\n\t"
                     "mov %%eax, %%edi\n\t"
                     "mov %[exit], %%eax\n\t"
                     "syscall\n\t"
                     "hlt\n"
                     "1:"
                     : "+a"(result)
                     : "D"(flags), "S"(stack_top), "d"(0L), "r"(thread_id_1),
                       "r"(thread_id_2), [body] "b"(body), [arg] "r"(arg), [exit] "i"(SYS_exit)
                     : "rcx", "r11", "memory", "cc");
    return result;
#elif defined(__aarch64__)
    register long result __asm__("x0") = (long)flags;
    register char *stack __asm__("x1") = stack_top;
    register long parent_id __asm__("x2") = 0;
    register long storage __asm__("x3") = 0;
    register long child_id __asm__("x4") = 0;
    register long number __asm__("x8") = SYS_clone;

    __asm__ volatile("svc #0\n\t"
                     "cbnz x0, 1f\n\t"
                     "mov x0, %[arg]\n\t"
                     "blr %[body]\n\t"
                     "mov x8, %[exit]\n\t"
                     "svc #0\n\t"
                     "brk #0\n"
                     "1:"
                     : "+r"(result)
                     : "r"(stack), "r"(parent_id), "r"(storage), "r"(child_id),
                       "r"(number), [body] "r"(body), [arg] "r"(arg), [exit] "i"(SYS_exit)
                     : "x30", "memory", "cc");
    return result;
#else
    int pid = clone(body, stack_top, (int)flags, arg);
    return pid < 0 ? -errno : pid;
#endif
}

static PLAIN int become_helper(void *arg)
{
    struct start *start = arg;
    uint64_t none = 0, plain[4] = {0}; /* the kernel's struct sigaction: SIG_DFL */

    for (int signal = 1; signal <= SIGNALS; signal++)
        syscall(SYS_rt_sigaction, signal, plain, NULL, sizeof none);
    syscall(SYS_rt_sigprocmask, SIG_SETMASK, &none, NULL, sizeof none);
    if (syscall(SYS_dup3, start->null_fd, STDIN_FILENO, 0) < 0 ||
        syscall(SYS_dup3, start->pipe_fd, STDOUT_FILENO, 0) < 0 ||
        syscall(SYS_dup3, start->null_fd, STDERR_FILENO, 0) < 0) {
        start->error = errno;
        return 1;
    }
    if (syscall(SYS_close_range, 3, ~0U, 0) < 0) {
        for (int fd = 3; fd < MOST_CLOSED; fd++)
            syscall(SYS_close, fd);
    }
    syscall(SYS_execve, start->path, start->argv, start->envp);
    start->error = errno;
    return 1;
}

static PLAIN int leave_behind(void *arg)
{
    struct start *start = arg;

    long pid = split_off(become_helper, start->stack + STACK_BYTES, CLONE_VM | CLONE_VFORK | SIGCHLD, start);

    if (pid < 0)
        start->error = (int)-pid;
    else
        start->pid = (int)pid;
    return 0;
}

/* A descriptor above those of standard input, output and error, which the job may have closed. */
static int raise_fd(int fd)
{
    if (fd < 0 || fd > STDERR_FILENO)
        return fd;
    int raised = fcntl(fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    close(fd);
    return raised;
}

static int start_helper(struct start *start)
{
    sigset_t all, kept;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &kept); /* no handler of the job may run in the children */
    long pid = split_off(leave_behind, start->stack + 2 * STACK_BYTES, CLONE_VM | CLONE_VFORK, start);
    int error = pid < 0 ? (int)-pid : 0;
    while (pid > 0 && waitpid((pid_t)pid, NULL, __WCLONE) < 0 && errno == EINTR)
        continue;
    pthread_sigmask(SIG_SETMASK, &kept, NULL);
    return error ? error : start->error;
}

int hr_child_start(const char *path, char *const argv[], char *const envp[], int *fd_out, int *pid_out)
{
    struct start start = {.path = path, .argv = argv, .envp = envp, .null_fd = -1, .pipe_fd = -1};
    int ends[2] = {-1, -1}, error = 0;

    if (pipe2(ends, O_CLOEXEC) != 0)
        return -errno;
    start.null_fd = raise_fd(open("/dev/null", O_RDWR | O_CLOEXEC));
    start.pipe_fd = raise_fd(ends[1]);
    start.stack = mmap(NULL, 2 * STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
    if (start.null_fd < 0 || start.pipe_fd < 0 || start.stack == MAP_FAILED)
        error = errno;
    if (error == 0)
        error = start_helper(&start);
    if (start.stack != MAP_FAILED)
        munmap(start.stack, 2 * STACK_BYTES);
    if (start.null_fd >= 0)
        close(start.null_fd);
    if (start.pipe_fd >= 0)
        close(start.pipe_fd);
    if (error != 0) {
        hr_child_forget(start.pid);
        close(ends[0]);
        return -error;
    }
    *fd_out = ends[0];
    *pid_out = start.pid;
    return 0;
}

/* 1 = its end was taken, 0 = it runs, -1 = it is no child of this process, or no more. */
static int look(int pid)
{
    siginfo_t about = {0};

    if (waitid(P_PID, (id_t)pid, &about, WEXITED | WNOHANG) != 0)
        return -1;
    return about.si_pid == pid;
}

/* Its output ends before it does: a driver may take a while to let go of it. */
void hr_child_forget(int pid)
{
    if (pid <= 0 || look(pid) != 0)
        return;
    struct pollfd ends = {.fd = (int)syscall(SYS_pidfd_open, pid, 0), .events = POLLIN};
    if (ends.fd < 0)
        return;
    while (poll(&ends, 1, ENDING_MS) < 0 && errno == EINTR)
        continue;
    close(ends.fd);
    look(pid);
}
