/*
 * Memory and events shared by processes. Each process is a program of its own (process/ipc_agent.c) that is told what to do; the scenes are
 * played natively on a large GPU and under headroom on a small one, and what the processes say has to be the same.
 */
#include <criterion/criterion.h>

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "process/ipc_agent.h"

#define MIB ((uint64_t)1 << 20)
#define LAZY CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
#define SMALL "h200,vram=32M"
#define LARGE "h200,vram=1G"
#define NOTES_MOST 4096

struct agent {
    pid_t pid;
    int socket, standard_input; /* the latter is what its forks wait for */
    char report[64], log[64];
};
struct play {
    bool shimmed;
    const char *machine, *fail; /* of the next agent that starts; fail as in SIMGPU_FAIL, NULL = none */
    bool checked;               /* simgpu looks for races */
    size_t count;
    struct {
        uint64_t value;
        int line;
    } note[NOTES_MOST];
};

static void set(const char *name, const char *value)
{
    if (value)
        setenv(name, value, 1);
    else
        unsetenv(name);
}

/* In the child. */
static void become(const struct play *p, const struct agent *a, int socket, int input)
{
    char number[16], driver[4200];
    const char *simgpu = getenv("TEST_SIMGPU"), *job = getenv("TEST_IPC_AGENT");
    int log = open(a->log, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    snprintf(number, sizeof number, "%d", fcntl(socket, F_DUPFD, 100));
    snprintf(driver, sizeof driver, "%s/libcuda.so.1", simgpu);
    dup2(input, STDIN_FILENO);
    dup2(log, STDERR_FILENO);
    for (int fd = 3; fd < 100; fd++)
        close(fd);
    set("SIMGPU", p->machine);
    set("SIMGPU_REPORT", a->report);
    set("SIMGPU_CHECK", p->checked ? "race" : NULL);
    set("SIMGPU_FAIL", p->fail);
    set("SIMGPU_LOG", "warn");
    set("LD_LIBRARY_PATH", simgpu);
    set("HEADROOM_STATS", "off");
    set("HEADROOM_LOG", "warn");
    set("HEADROOM_DRIVER", p->shimmed ? driver : NULL);
    set("LD_PRELOAD", p->shimmed ? getenv("TEST_LIBRARY") : NULL);
    execl(job, job, number, (char *)NULL);
    _exit(127);
}

static struct ipc_answer answer_of(const struct agent *a)
{
    struct ipc_answer answer;
    ssize_t n = recv(a->socket, &answer, sizeof answer, 0);
    cr_assert_eq(n, (ssize_t)sizeof answer, "an agent is gone");
    return answer;
}

static struct agent start(const struct play *p)
{
    static unsigned number;
    int ends[2], input[2];
    struct agent a;
    snprintf(a.report, sizeof a.report, "/tmp/shim-ipc-report-%d-%u", (int)getpid(), number);
    snprintf(a.log, sizeof a.log, "/tmp/shim-ipc-log-%d-%u", (int)getpid(), number++);
    cr_assert(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0 && pipe2(input, O_CLOEXEC) == 0);
    a.pid = fork();
    cr_assert_geq(a.pid, 0);
    if (a.pid == 0)
        become(p, &a, ends[1], input[0]);
    close(ends[1]);
    close(input[0]);
    a.socket = ends[0];
    a.standard_input = input[1];
    cr_assert_eq(answer_of(&a).result, CUDA_SUCCESS);
    return a;
}

static struct ipc_answer tell(const struct agent *a, struct ipc_order order)
{
    cr_assert_eq(send(a->socket, &order, sizeof order, MSG_NOSIGNAL), (ssize_t)sizeof order);
    return answer_of(a);
}
#define TELL(agent, ...) tell((agent), (struct ipc_order){__VA_ARGS__})
/* The same for what has to work. */
static struct ipc_answer must(int line, const struct agent *a, struct ipc_order order)
{
    struct ipc_answer answer = tell(a, order);
    cr_assert_eq(answer.result, CUDA_SUCCESS, "line %d: %d", line, answer.result);
    return answer;
}
#define MUST(agent, ...) must(__LINE__, (agent), (struct ipc_order){__VA_ARGS__})

static char *text_of(const char *path)
{
    char *text = calloc(1, 65536);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    cr_assert(text && (fd < 0 || read(fd, text, 65535) >= 0));
    if (fd >= 0)
        close(fd);
    return text;
}

static void finish(struct agent *a)
{
    close(a->socket);
    close(a->standard_input);
    unlink(a->report);
    unlink(a->log);
}

/* It ends by itself, and simgpu has found nothing. */
static void end(struct agent *a)
{
    int status;
    cr_assert_eq(send(a->socket, &(struct ipc_order){.what = IPC_END}, sizeof(struct ipc_order), MSG_NOSIGNAL),
                 (ssize_t)sizeof(struct ipc_order));
    cr_assert_eq(waitpid(a->pid, &status, 0), a->pid);
    char *report = text_of(a->report), *log = text_of(a->log);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "an agent ended with 0x%x: %s", (unsigned)status, log);
    static const char *const figures[] = {"\"unmapped_in_flight\": ", "\"freed_in_flight\": ", "\"race\": "};
    for (unsigned i = 0; i < 3; i++) {
        const char *at = strstr(report, figures[i]);
        cr_assert(at && strtoul(at + strlen(figures[i]), NULL, 10) == 0, "%s: %s\n%s", figures[i], report, log);
    }
    free(report);
    free(log);
    finish(a);
}

static void kill_it(struct agent *a)
{
    int status;
    cr_assert_eq(kill(a->pid, SIGKILL), 0);
    cr_assert_eq(waitpid(a->pid, &status, 0), a->pid);
    finish(a);
}

static void note_at(struct play *p, int line, uint64_t value)
{
    cr_assert_lt(p->count, (size_t)NOTES_MOST);
    p->note[p->count].line = line;
    p->note[p->count++].value = value;
}
#define NOTE(value) note_at(p, __LINE__, (uint64_t)(value))

static void same(void (*scene)(struct play *p))
{
    static struct play native, ours;
    native = (struct play){.machine = LARGE, .checked = true};
    ours = (struct play){.shimmed = true, .machine = SMALL, .checked = true};
    scene(&native);
    scene(&ours);
    cr_assert(native.count == ours.count && native.count > 0);
    for (size_t i = 0; i < native.count; i++)
        cr_assert(native.note[i].line == ours.note[i].line && native.note[i].value == ours.note[i].value,
                  "line %d: %lld natively, %lld under headroom", native.note[i].line, (long long)native.note[i].value,
                  (long long)ours.note[i].value);
}

static const struct play under_headroom = {.shimmed = true, .machine = SMALL};

static bool says(const struct agent *a, const char *what)
{
    char *log = text_of(a->log);
    bool does = strstr(log, what) != NULL;
    if (!does)
        fprintf(stderr, "%s\n", log);
    free(log);
    return does;
}

/* ---- what works natively ---- */

/* Two processes pass a buffer each to and fro, in the order of events, while either works on three times its VRAM. */
static void ping_pong(struct play *p)
{
    struct agent a[2] = {start(p), start(p)};
    uint32_t own[2], other[2];
    const uint64_t bytes[2] = {7 * MIB, 40000};
    for (int i = 0; i < 2; i++)
        MUST(&a[i], IPC_BALLAST, .a = 12, .b = 8 * MIB);
    for (int i = 0; i < 2; i++)
        own[i] = MUST(&a[i], IPC_ALLOC, .a = bytes[i], .b = 3 + (uint64_t)i).slot;
    for (int i = 0; i < 2; i++) {
        NOTE(MUST(&a[i], IPC_WORK, .a = 1).value);
        other[!i] = MUST(&a[!i], IPC_OPEN, .a = LAZY, .handle = MUST(&a[i], IPC_EXPORT, own[i]).handle).slot;
        MUST(&a[!i], IPC_EVENT_OPEN, .event = MUST(&a[i], IPC_EVENT).event);
    }
    for (unsigned round = 0; round < 4; round++) {
        int i = (int)(round & 1);
        MUST(&a[i], IPC_ADD, own[i], .a = 16, .b = bytes[i] / 64, .c = round + 1);
        MUST(&a[i], IPC_ADD, other[i], .a = 32, .b = bytes[!i] / 128, .c = round + 7);
        MUST(&a[i], IPC_RECORD, 0);
        MUST(&a[!i], IPC_WAIT, 0);
        NOTE(MUST(&a[!i], IPC_SUM, own[!i], .a = bytes[!i]).value);
        NOTE(MUST(&a[!i], IPC_SUM, other[!i], .a = bytes[i]).value);
        if (round % 2 == 0)
            NOTE(MUST(&a[round == 2], IPC_WORK, .a = 1).value);
    }
    for (int i = 0; i < 2; i++)
        MUST(&a[i], IPC_CLOSE, other[i]);
    for (int i = 0; i < 2; i++) {
        NOTE(MUST(&a[i], IPC_SUM, own[i], .a = bytes[i]).value);
        MUST(&a[i], IPC_FREE, own[i]);
        NOTE(MUST(&a[i], IPC_WORK, .a = 1).value);
    }
    end(&a[0]);
    end(&a[1]);
}

Test(ipc, k37_two_processes_share_buffers_at_three_times_their_vram_as_natively, .timeout = 120)
{
    same(ping_pong);
}

static void answers(struct play *p)
{
    struct agent a = start(p), b = start(p);
    uint32_t s = MUST(&a, IPC_ALLOC, .a = 3 * MIB, .b = 1).slot, small = MUST(&a, IPC_ALLOC, .a = 4096, .b = 9).slot;
    NOTE(TELL(&a, IPC_ATTRIBUTES, s).value);
    CUipcMemHandle h = MUST(&a, IPC_EXPORT, s).handle, again = MUST(&a, IPC_EXPORT, s).handle, little;
    NOTE(memcmp(&h, &again, sizeof h));
    little = MUST(&a, IPC_EXPORT, small).handle;
    NOTE(TELL(&a, IPC_OPEN, .a = LAZY, .handle = h).result); /* its own */
    NOTE(TELL(&a, IPC_CLOSE, s).result);
    NOTE(TELL(&b, IPC_OPEN, .a = 0, .handle = h).result);
    struct ipc_answer first = MUST(&b, IPC_OPEN, .a = LAZY, .handle = h), second;
    second = MUST(&b, IPC_OPEN, .a = LAZY, .handle = h);
    NOTE(first.value == second.value);
    NOTE(TELL(&b, IPC_ATTRIBUTES, first.slot).result);
    NOTE(TELL(&b, IPC_ATTRIBUTES, first.slot).value);
    NOTE(TELL(&b, IPC_FREE, first.slot).result);
    NOTE(TELL(&b, IPC_EXPORT, first.slot).result); /* another's */
    NOTE(TELL(&b, IPC_CLOSE, first.slot).result);
    NOTE(TELL(&b, IPC_SUM, first.slot, .a = 3 * MIB).value);
    NOTE(TELL(&b, IPC_CLOSE, first.slot).result);
    NOTE(TELL(&b, IPC_CLOSE, first.slot).result);
    NOTE(TELL(&b, IPC_SUM, first.slot, .a = 3 * MIB).result);
    struct ipc_answer tiny = MUST(&b, IPC_OPEN, .a = LAZY, .handle = little);
    NOTE(TELL(&b, IPC_ATTRIBUTES, tiny.slot).value);
    NOTE(TELL(&b, IPC_SUM, tiny.slot, .a = 4096).value);
    NOTE(TELL(&b, IPC_RESET, 0).result); /* with it open */
    tiny = MUST(&b, IPC_OPEN, .a = LAZY, .handle = little);
    NOTE(TELL(&b, IPC_SUM, tiny.slot, .a = 4096).value);
    MUST(&b, IPC_CLOSE, tiny.slot);
    MUST(&a, IPC_FREE, s);
    NOTE(TELL(&b, IPC_OPEN, .a = LAZY, .handle = h).result);
    NOTE(MUST(&b, IPC_OPEN_AT_ONCE, .a = 8, .handle = little).value);
    end(&b);
    end(&a);
}

Test(ipc, calls_right_and_wrong_answer_as_natively, .timeout = 120)
{
    same(answers);
}

static void many(struct play *p)
{
    struct agent a = start(p), b = start(p);
    uint64_t all = 0;
    MUST(&a, IPC_BALLAST, .a = 4, .b = 8 * MIB);
    for (unsigned i = 0; i < 100; i++) {
        uint64_t bytes = i % 10 ? 4096 * (1 + i % 3) : 300 * 1024; /* few sizes: each has blocks of its own */
        uint32_t s = MUST(&a, IPC_ALLOC, .a = bytes, .b = i).slot;
        uint32_t there = MUST(&b, IPC_OPEN, .a = LAZY, .handle = MUST(&a, IPC_EXPORT, s).handle).slot;
        MUST(&b, IPC_ADD, there, .a = 1, .b = bytes / 4, .c = 1000);
        all += MUST(&b, IPC_SUM, there, .a = bytes).value;
        all += MUST(&a, IPC_SUM, s, .a = bytes).value;
    }
    NOTE(all);
    NOTE(MUST(&a, IPC_WORK, .a = 1).value);
    uint64_t files = MUST(&b, IPC_FILES, 0).value;
    for (uint32_t s = 0; s < 100; s++)
        MUST(&b, IPC_CLOSE, s);
    cr_expect_leq(MUST(&b, IPC_FILES, 0).value, files);
    for (uint32_t s = 0; s < 100; s++)
        MUST(&a, IPC_FREE, s);
    NOTE(MUST(&a, IPC_WORK, .a = 1).value);
    end(&b);
    end(&a);
}

Test(ipc, a_hundred_handles_are_open_at_once_as_natively, .timeout = 120)
{
    same(many);
}

/* What a graph sets stays where it is, before and after it is shared. */
static void graph_operand(struct play *p)
{
    struct agent a = start(p), b = start(p);
    uint32_t s = MUST(&a, IPC_ALLOC, .a = 5 * MIB, .b = 1).slot;
    uint32_t there = MUST(&b, IPC_OPEN, .a = LAZY, .handle = MUST(&a, IPC_EXPORT, s).handle).slot;
    MUST(&a, IPC_GRAPH, s, .a = MIB, .b = 77);
    NOTE(MUST(&b, IPC_SUM, there, .a = 5 * MIB).value);
    MUST(&a, IPC_GRAPH_LAUNCH, 0);
    NOTE(MUST(&a, IPC_SUM, s, .a = 5 * MIB).value);
    NOTE(MUST(&b, IPC_SUM, there, .a = 5 * MIB).value);
    MUST(&a, IPC_BALLAST, .a = 5, .b = 8 * MIB);
    NOTE(MUST(&a, IPC_WORK, .a = 1).value);
    MUST(&a, IPC_GRAPH_LAUNCH, 0);
    NOTE(MUST(&a, IPC_SUM, s, .a = 5 * MIB).value);
    NOTE(TELL(&a, IPC_DMA_BUF, s, .a = 2 * MIB).result);
    MUST(&b, IPC_CLOSE, there);
    end(&b);
    end(&a);
}

Test(ipc, what_a_graph_sets_is_shared_as_natively, .timeout = 120)
{
    same(graph_operand);
}

/* Registered memory, and what a graph sets: it can be shared first, but not afterwards. */
Test(ipc, what_has_to_stay_elsewhere_is_not_moved_to_be_shared_and_says_so, .timeout = 120)
{
    static const uint32_t ways[] = {IPC_SYNC_MEMOPS, IPC_GRAPH};
    for (unsigned i = 0; i < 2; i++) {
        struct agent a = start(&under_headroom);
        uint32_t s = MUST(&a, IPC_ALLOC, .a = 5 * MIB, .b = 1).slot, t = MUST(&a, IPC_ALLOC, .a = 5 * MIB, .b = 1).slot;
        MUST(&a, ways[i], s, .a = MIB, .b = 3);
        cr_expect_eq(TELL(&a, IPC_EXPORT, s).result, CUDA_ERROR_NOT_SUPPORTED);
        cr_expect(says(&a, "keeps them where they are"));
        MUST(&a, IPC_EXPORT, t);
        MUST(&a, ways[i], t, .a = MIB, .b = 4);
        MUST(&a, IPC_EXPORT, t);
        end(&a);
    }
}

/* ---- ends of processes ---- */

Test(ipc, who_is_killed_harms_nobody_and_leaves_nothing, .timeout = 120)
{
    const struct play *p = &under_headroom;
    struct agent a = start(p), b = start(p);
    uint32_t s = MUST(&a, IPC_ALLOC, .a = 4 * MIB, .b = 5).slot;
    CUipcMemHandle h = MUST(&a, IPC_EXPORT, s).handle;
    cr_expect(says(&a, "only processes under headroom can open it"));
    uint32_t there = MUST(&b, IPC_OPEN, .a = LAZY, .handle = h).slot;
    uint64_t sum = MUST(&b, IPC_SUM, there, .a = 4 * MIB).value;
    kill_it(&b); /* an importer */
    cr_expect_eq(MUST(&a, IPC_SUM, s, .a = 4 * MIB).value, sum);
    b = start(p);
    there = MUST(&b, IPC_OPEN, .a = LAZY, .handle = h).slot;
    kill_it(&a); /* the exporter: what is open stays */
    cr_expect_eq(MUST(&b, IPC_SUM, there, .a = 4 * MIB).value, sum);
    MUST(&b, IPC_CLOSE, there);
    cr_expect_eq(TELL(&b, IPC_OPEN, .a = LAZY, .handle = h).result, CUDA_ERROR_MAP_FAILED);
    cr_expect(says(&b, "is gone"));
    end(&b);
}

/* The exporter frees what is open and uses its VRAM for other things: whoever has it open goes on seeing what was there. */
Test(ipc, freed_memory_that_is_open_elsewhere_is_nobody_else_s, .timeout = 120)
{
    struct agent a = start(&under_headroom), b = start(&under_headroom);
    uint32_t s = MUST(&a, IPC_ALLOC, .a = 6 * MIB, .b = 5).slot, t;
    uint32_t there = MUST(&b, IPC_OPEN, .a = LAZY, .handle = MUST(&a, IPC_EXPORT, s).handle).slot;
    uint64_t sum = MUST(&b, IPC_SUM, there, .a = 6 * MIB).value;
    MUST(&a, IPC_FREE, s);
    MUST(&a, IPC_BALLAST, .a = 5, .b = 6 * MIB);
    t = MUST(&a, IPC_ALLOC, .a = 6 * MIB, .b = 9).slot;
    uint64_t other = MUST(&a, IPC_SUM, t, .a = 6 * MIB).value;
    cr_expect_eq(MUST(&b, IPC_SUM, there, .a = 6 * MIB).value, sum);
    MUST(&b, IPC_ADD, there, .a = 1, .b = 6 * MIB / 4, .c = 1000);
    cr_expect_neq(MUST(&b, IPC_SUM, there, .a = 6 * MIB).value, sum);
    cr_expect_eq(MUST(&a, IPC_SUM, t, .a = 6 * MIB).value, other);
    MUST(&b, IPC_CLOSE, there);
    end(&b);
    end(&a);
}

Test(ipc, children_of_an_exporter_keep_nothing_of_it, .timeout = 120)
{
    const struct play *p = &under_headroom;
    struct agent a = start(p), b = start(p);
    uint32_t s = MUST(&a, IPC_ALLOC, .a = 4 * MIB, .b = 5).slot;
    CUipcMemHandle h = MUST(&a, IPC_EXPORT, s).handle;
    pid_t child = (pid_t)MUST(&a, IPC_FORK, 0).value;
    cr_assert_gt(child, 0);
    uint32_t there = MUST(&b, IPC_OPEN, .a = LAZY, .handle = h).slot; /* the parent goes on handing over */
    MUST(&b, IPC_CLOSE, there);
    int keep = dup(a.standard_input); /* the child lives on */
    kill_it(&a);
    cr_assert_eq(kill(child, 0), 0);
    cr_expect_eq(TELL(&b, IPC_OPEN, .a = LAZY, .handle = h).result, CUDA_ERROR_MAP_FAILED);
    cr_expect_eq(kill(child, 0), 0);
    close(keep);
    end(&b);
}

/* ---- handles that are none ---- */

Test(ipc, every_flipped_byte_of_a_handle_gives_an_error, .timeout = 120)
{
    const struct play *p = &under_headroom;
    struct agent a = start(p), b = start(p);
    uint32_t s = MUST(&a, IPC_ALLOC, .a = 4 * MIB, .b = 5).slot;
    CUipcMemHandle h = MUST(&a, IPC_EXPORT, s).handle;
    for (size_t i = 0; i < sizeof h; i++)
        for (int flip = 1; flip < 256; flip += flip == 1 ? 126 : 128) {
            CUipcMemHandle damaged = h;
            damaged.reserved[i] = (char)(damaged.reserved[i] ^ flip);
            struct ipc_answer r = TELL(&b, IPC_OPEN, .a = LAZY, .handle = damaged);
            cr_assert(r.result == CUDA_ERROR_INVALID_HANDLE || r.result == CUDA_ERROR_MAP_FAILED, "byte %zu: %d", i,
                      r.result);
        }
    MUST(&b, IPC_CLOSE, MUST(&b, IPC_OPEN, .a = LAZY, .handle = h).slot);
    end(&b);
    end(&a);
}

Test(ipc, a_process_without_headroom_is_refused_by_its_driver_and_its_own_handle_is_the_driver_s, .timeout = 120)
{
    const struct play native = {.machine = LARGE};
    struct agent a = start(&under_headroom), b = start(&native), c;
    uint32_t s = MUST(&a, IPC_ALLOC, .a = 4 * MIB, .b = 5).slot;
    cr_expect_eq(TELL(&b, IPC_OPEN, .a = LAZY, .handle = MUST(&a, IPC_EXPORT, s).handle).result,
                 CUDA_ERROR_INVALID_HANDLE);
    c = start(&under_headroom);
    uint32_t own = MUST(&b, IPC_ALLOC, .a = 4 * MIB, .b = 6).slot;
    uint32_t there = MUST(&c, IPC_OPEN, .a = LAZY, .handle = MUST(&b, IPC_EXPORT, own).handle).slot;
    cr_expect_eq(MUST(&c, IPC_SUM, there, .a = 4 * MIB).value, MUST(&b, IPC_SUM, own, .a = 4 * MIB).value);
    MUST(&c, IPC_CLOSE, there);
    end(&c);
    end(&b);
    end(&a);
}

/* Connects to the exporter as an importer does, and says nothing, or nonsense. */
static int connect_to(const struct agent *a)
{
    char path[64], *stat, name[108] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)a->pid);
    stat = text_of(path);
    const char *at = strrchr(stat, ')');
    for (int field = 2; field < 22; field++)
        at = strchr(at + 1, ' ');
    struct sockaddr_un_like {
        sa_family_t family;
        char path[108];
    } address = {.family = AF_UNIX};
    int n = snprintf(name, sizeof name, "headroom-ipc-%u-%d-%llu", (unsigned)geteuid(), (int)a->pid,
                     strtoull(at + 1, NULL, 10));
    memcpy(address.path + 1, name, (size_t)n);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    cr_assert_eq(connect(fd, (const struct sockaddr *)&address, (socklen_t)(sizeof address.family + 1 + (size_t)n)), 0);
    free(stat);
    return fd;
}

Test(ipc, strangers_who_connect_get_nothing_and_hold_nobody_up, .timeout = 120)
{
    const struct play *p = &under_headroom;
    struct agent a = start(p), b = start(p);
    uint32_t s = MUST(&a, IPC_ALLOC, .a = 4 * MIB, .b = 5).slot;
    CUipcMemHandle h = MUST(&a, IPC_EXPORT, s).handle;
    char nonsense[4096], reply[4096];
    memset(nonsense, 0x5a, sizeof nonsense);
    for (size_t bytes = 1; bytes <= sizeof nonsense; bytes *= 4) {
        int fd = connect_to(&a);
        cr_expect_eq(send(fd, nonsense, bytes, MSG_NOSIGNAL), (ssize_t)bytes);
        cr_expect_leq(recv(fd, reply, sizeof reply, 0), 0);
        close(fd);
    }
    int silent = connect_to(&a);
    MUST(&b, IPC_CLOSE, MUST(&b, IPC_OPEN, .a = LAZY, .handle = h).slot);
    close(silent);
    end(&b);
    end(&a);
}

/* ---- errors of the driver ---- */

/* One call fails, in the export or before it. Whether that made the export or the opening fail, which then works at the second try. */
static bool export_with_failure(const char *fail, uint64_t right)
{
    struct play p = under_headroom;
    p.fail = fail;
    struct agent a = start(&p), b;
    p.fail = NULL;
    struct ipc_answer made = TELL(&a, IPC_ALLOC, .a = 6 * MIB, .b = 5), exported = {0}, there;
    bool failed = false;
    if (made.result == CUDA_SUCCESS) {
        exported = TELL(&a, IPC_EXPORT, made.slot);
        failed = exported.result != CUDA_SUCCESS;
        cr_assert_eq(MUST(&a, IPC_SUM, made.slot, .a = 6 * MIB).value, right, "%s", fail);
    }
    if (failed)
        exported = MUST(&a, IPC_EXPORT, made.slot);
    if (failed || strstr(fail, "Export")) { /* handing over is the exporter's, too */
        b = start(&p);
        there = TELL(&b, IPC_OPEN, .a = LAZY, .handle = exported.handle);
        failed |= there.result != CUDA_SUCCESS;
        if (there.result != CUDA_SUCCESS)
            there = MUST(&b, IPC_OPEN, .a = LAZY, .handle = exported.handle);
        cr_assert_eq(MUST(&b, IPC_SUM, there.slot, .a = 6 * MIB).value, right, "%s", fail);
        MUST(&b, IPC_CLOSE, there.slot);
        end(&b);
        MUST(&a, IPC_FREE, made.slot);
        MUST(&a, IPC_BALLAST, .a = 4, .b = 6 * MIB); /* all of VRAM is there again */
        MUST(&a, IPC_WORK, .a = 1);
    }
    end(&a);
    return failed;
}

Test(ipc, an_export_that_fails_loses_nothing, .timeout = 240)
{
    static const char *const calls[] = {"cuMemCreate", "cuMemMap",      "cuMemSetAccess",
                                        "cuMemUnmap",  "cuMemcpyAsync", "cuMemExportToShareableHandle"};
    struct agent a = start(&under_headroom);
    uint64_t right = MUST(&a, IPC_SUM, MUST(&a, IPC_ALLOC, .a = 6 * MIB, .b = 5).slot, .a = 6 * MIB).value;
    unsigned failures = 0;
    end(&a);
    for (unsigned i = 0; i < sizeof calls / sizeof calls[0]; i++)
        for (unsigned n = 1; n <= 7; n++) {
            char fail[96];
            snprintf(fail, sizeof fail, "%s:%u:%s", calls[i], n, n % 2 ? "999" : "2");
            failures += export_with_failure(fail, right);
        }
    cr_expect_gt(failures, 3);
    fprintf(stderr, "%u exports failed\n", failures);
}

/* Of two buffers only one fits into VRAM: what failed to be shared half-way makes room for the other. */
Test(ipc, what_failed_to_be_shared_can_move_out_again, .timeout = 120)
{
    struct play p = under_headroom;
    p.fail = "cuMemCreate:14:999";
    struct agent a = start(&p);
    uint32_t s = MUST(&a, IPC_ALLOC, .a = 20 * MIB, .b = 5).slot, t;
    uint64_t right = MUST(&a, IPC_SUM, s, .a = 20 * MIB).value;
    cr_expect_eq(TELL(&a, IPC_EXPORT, s).result, CUDA_ERROR_UNKNOWN);
    t = MUST(&a, IPC_ALLOC, .a = 20 * MIB, .b = 5).slot;
    MUST(&a, IPC_EXPORT, t);
    cr_expect_eq(TELL(&a, IPC_EXPORT, s).result, CUDA_ERROR_OUT_OF_MEMORY); /* and now there is no room for this one */
    cr_expect(says(&a, "no room for them in VRAM"));
    cr_expect_eq(MUST(&a, IPC_SUM, s, .a = 20 * MIB).value, right);
    cr_expect_eq(MUST(&a, IPC_SUM, t, .a = 20 * MIB).value, right);
    MUST(&a, IPC_FREE, t);
    MUST(&a, IPC_EXPORT, s);
    cr_expect_eq(MUST(&a, IPC_SUM, s, .a = 20 * MIB).value, right);
    end(&a);
}

/* The same for the importer's calls. */
Test(ipc, an_open_that_fails_leaves_nothing_open, .timeout = 240)
{
    static const char *const calls[] = {"cuMemAddressReserve:3",
                                        "cuMemImportFromShareableHandle:1",
                                        "cuMemImportFromShareableHandle:2",
                                        "cuMemMap:1",
                                        "cuMemMap:2",
                                        "cuMemSetAccess:1",
                                        "cuDeviceGetUuid:1"};
    struct agent a = start(&under_headroom);
    uint32_t s = MUST(&a, IPC_ALLOC, .a = 6 * MIB, .b = 5).slot;
    CUipcMemHandle h = MUST(&a, IPC_EXPORT, s).handle;
    uint64_t sum = MUST(&a, IPC_SUM, s, .a = 6 * MIB).value;
    for (unsigned i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        struct play p = under_headroom;
        p.fail = calls[i];
        struct agent b = start(&p);
        struct ipc_answer first = TELL(&b, IPC_OPEN, .a = LAZY, .handle = h);
        uint64_t files = MUST(&b, IPC_FILES, 0).value;
        uint32_t there = MUST(&b, IPC_OPEN, .a = LAZY, .handle = h).slot;
        cr_expect_eq(MUST(&b, IPC_SUM, there, .a = 6 * MIB).value, sum, "%s", calls[i]);
        MUST(&b, IPC_CLOSE, there);
        if (first.result == CUDA_SUCCESS)
            MUST(&b, IPC_CLOSE, there);
        cr_expect_leq(MUST(&b, IPC_FILES, 0).value, files, "%s", calls[i]);
        end(&b);
    }
    end(&a);
}
