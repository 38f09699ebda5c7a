/*
 * One helper process at a time makes the copies of a list of pairs and tells about each on a line. When a copy hangs the helper ends
 * by its own timer, and the next one goes on behind that pair. A machine on which everything hangs would hold the job for minutes,
 * so after a few such pairs the rest is not tried and not used.
 */
#include "fabric/verify.h"

#include "base/child.h"
#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "driver/driver.h"
#include "fabric/measure.h"
#include "fabric/pathcache.h"
#include "fabric/text.h"
#include "fabric/turn.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MOST_HANGS 4
#define MOST_ITEMS 512                 /* of one helper's list */
#define START_NS UINT64_C(60000000000) /* for the driver and its contexts */
#define GRACE_NS UINT64_C(5000000000)  /* beyond the helper's own timer */
#define WAIT_NS UINT64_C(5000000000)   /* where the setting says neither */
#define LINE_BYTES 128
#define KEEP_BAD_S UINT64_C(604800) /* a bad way may have been mended, and a slow moment may have looked like a hang */

struct item { /* a pair, or one GPU twice: its way to the host and back */
    uint32_t from, to;
};

struct run {
    struct hr_discovery *discovery;
    struct item *items;
    uint32_t count;
    uint32_t hangs;
    uint32_t learned; /* items that something was found out about */
    uint64_t wait_ns; /* for one copy */
    bool again;       /* whatever is known */
};

/* What one helper has told so far. */
struct told {
    uint32_t first; /* of the items that it was given */
    uint32_t given;
    bool ready;    /* it has a driver */
    int64_t begun; /* the item under way, -1 = none */
    uint64_t begun_ns;
    uint32_t next; /* behind the last item that is done */
};

static char named_command[PATH_MAX];

void hr_verify_use_command(const char *path)
{
    snprintf(named_command, sizeof named_command, "%s", path);
}

#define DEVICES "CUDA_VISIBLE_DEVICES="
static struct {
    bool kept, set;
    char entry[4096];
} devices;

void hr_verify_keep_devices(void)
{
    const char *now = getenv("CUDA_VISIBLE_DEVICES");

    devices.set = now != NULL;
    int n = snprintf(devices.entry, sizeof devices.entry, DEVICES "%s", now ? now : "");
    devices.kept = n > 0 && (size_t)n < sizeof devices.entry;
}

/* ---- the command ---- */

/* Beside this library in a build folder; else where meson installs it, seen from the library's folder, or absolute. */
static bool find_command(char *path_out)
{
    Dl_info self;
    char real[PATH_MAX];

    if (named_command[0]) {
        snprintf(path_out, PATH_MAX, "%s", named_command);
        return true;
    }
    if (!dladdr((void *)&hr_drv, &self) || !realpath(self.dli_fname, real))
        return false;
    *strrchr(real, '/') = 0;
    const char *tails[] = {"/headroom", "/" HR_BINDIR_FROM_LIBDIR "/headroom"};
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++) {
        int n = snprintf(path_out, PATH_MAX, "%s%s", real, tails[i]);
        if (n > 0 && n < PATH_MAX && access(path_out, X_OK) == 0)
            return true;
    }
    return false;
}

/* Variables that are about the job alone: libraries for it, our settings, a simulated node's files, counters and checks. */
static bool is_the_jobs(const char *entry)
{
    static const char *const jobs[] = {
        "LD_PRELOAD=", "HEADROOM_", "SIMGPU_REPORT=", "SIMGPU_TIMELINE=", "SIMGPU_CHECK", "SIMGPU_FAIL="};

    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        if (strncmp(entry, jobs[i], strlen(jobs[i])) == 0)
            return true;
    }
    return devices.kept && strncmp(entry, DEVICES, strlen(DEVICES)) == 0;
}

/* Pointers into the process's environment, and two strings of ours. */
static char **make_environment(char *driver)
{
    size_t count = 0, kept = 0;

    while (environ && environ[count])
        count++;
    char **list = calloc(count + 3, sizeof *list);
    for (size_t i = 0; list && i < count && environ[i]; i++) {
        if (!is_the_jobs(environ[i]))
            list[kept++] = environ[i];
    }
    if (list && devices.kept && devices.set)
        list[kept++] = devices.entry;
    if (list)
        list[kept] = driver;
    return list;
}

static int start_helper(const struct run *run, const char *command, struct told *told, int *fd_out, int *pid_out)
{
    char wait[24], driver[PATH_MAX + 32];
    char *words = calloc(told->given, 2 * HR_TOPOLOGY_NAME_BYTES + 2), *at = words;
    char **argv = calloc(told->given + 6, sizeof *argv), **envp;
    int rc = -ENOMEM, argc = 0;

    snprintf(driver, sizeof driver, "HEADROOM_DRIVER=%s", hr_driver_path());
    envp = make_environment(driver);
    if (words && argv && envp) {
        snprintf(wait, sizeof wait, "%llu", (unsigned long long)run->wait_ns);
        argv[argc++] = (char *)"headroom";
        argv[argc++] = (char *)"topo";
        argv[argc++] = (char *)"--probe";
        argv[argc++] = wait;
        for (uint32_t i = 0; i < told->given; i++) {
            const struct item *item = &run->items[told->first + i];
            argv[argc++] = at;
            at +=
                1 + sprintf(at, "%s,%s", run->discovery->gpu[item->from].bus_id, run->discovery->gpu[item->to].bus_id);
        }
        rc = hr_child_start(command, argv, envp, fd_out, pid_out);
    }
    free(words);
    free((void *)argv);
    free((void *)envp);
    return rc;
}

/* ---- what it says ---- */

static struct hr_pair *pair_of(struct run *run, const struct item *item)
{
    return &run->discovery->pair[item->from * run->discovery->gpus + item->to];
}

static void learn(struct run *run, const struct item *item, enum hr_pair_state state, uint64_t first, uint64_t second)
{
    run->learned++;
    if (item->from == item->to) {
        run->discovery->gpu[item->from].to_host_gbps = (double)first / 1000;
        run->discovery->gpu[item->from].from_host_gbps = (double)second / 1000;
        return;
    }
    struct hr_pair *pair = pair_of(run, item);
    pair->state = (uint8_t)state;
    pair->gbps = state == HR_PAIR_GOOD ? (double)first / 1000 : 0;
    pair->start_ns = state == HR_PAIR_GOOD ? (uint32_t)second : 0;
    pair->found_s = (uint64_t)time(NULL);
    pair->kept = false;
}

/* "ready", "begin ITEM CLOCK_NS", "end ITEM good|corrupts|fails|skipped NUMBER NUMBER"; anything else is passed over. */
static void take_line(struct run *run, struct told *told, char *line)
{
    static const char *const states[] = {"skipped", "good", "corrupts", "hangs", "fails"};
    char *rest, *word[5] = {NULL};
    uint64_t item, first, second;
    int count = 0;

    for (char *at = strtok_r(line, " ", &rest); at && count < 5; at = strtok_r(NULL, " ", &rest))
        word[count++] = at;
    if (count == 1 && strcmp(word[0], "ready") == 0)
        told->ready = true;
    if (count < 2 || !hr_text_unsigned(word[1], 0, told->given - 1, &item))
        return;
    if (strcmp(word[0], "begin") == 0 && count == 3 && hr_text_unsigned(word[2], 0, INT64_MAX, &first)) {
        told->begun = (int64_t)item;
        told->begun_ns = first; /* by the helper's clock: this process may read it late */
    } else if (strcmp(word[0], "end") == 0 && count == 5 && hr_text_unsigned(word[3], 0, 1000000000, &first) &&
               hr_text_unsigned(word[4], 0, 1000000000, &second)) {
        for (int state = HR_PAIR_GOOD; state <= HR_PAIR_FAILS; state++) {
            if (strcmp(word[2], states[state]) == 0)
                learn(run, &run->items[told->first + item], (enum hr_pair_state)state, first, second);
        }
        told->begun = -1;
        told->next = (uint32_t)item + 1;
    }
}

/*
 * Reads until the helper has said all or is gone, or says nothing for longer than it may. Its end alone would not do: a process that the job
 * forked just then may have the pipe as well.
 */
static void hear(struct run *run, struct told *told, int fd)
{
    char line[LINE_BYTES], bytes[1024];
    size_t length = 0;

    while (told->next < told->given) {
        uint64_t patience_ns = told->begun >= 0 ? run->wait_ns + GRACE_NS : START_NS;
        struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
        int ready = poll(&poll_fd, 1, (int)(patience_ns / 1000000));
        if (ready < 0 && errno == EINTR)
            continue;
        ssize_t n = ready > 0 ? read(fd, bytes, sizeof bytes) : 0;
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return;
        for (ssize_t i = 0; i < n; i++) {
            if (bytes[i] == '\n') {
                line[length] = 0;
                take_line(run, told, line);
                length = 0;
            } else if (length + 1 < sizeof line) {
                line[length++] = bytes[i];
            }
        }
    }
}

/* The helper ended within an item: by its timer, or because the driver brought it down. */
static void give_up_item(struct run *run, struct told *told)
{
    const struct item *item = &run->items[told->first + (uint32_t)told->begun];
    bool in_time = hr_clock_ns() - told->begun_ns < run->wait_ns;

    told->next = (uint32_t)told->begun + 1;
    if (item->from == item->to)
        return; /* the way to the host stays as it is */
    learn(run, item, in_time ? HR_PAIR_FAILS : HR_PAIR_HANGS, 0, 0);
    if (in_time)
        return;
    struct item back = {item->to, item->from};
    learn(run, &back, HR_PAIR_HANGS, 0, 0);
    run->hangs++;
}

static bool is_pending(struct run *run, const struct item *item)
{
    return item->from == item->to || pair_of(run, item)->state == HR_PAIR_UNPROVEN;
}

/* Pairs that a hang has settled meanwhile are taken out, so that the helper's list has no holes. */
static uint32_t drop_settled(struct run *run, uint32_t from)
{
    uint32_t kept = from;

    for (uint32_t i = from; i < run->count; i++) {
        if (is_pending(run, &run->items[i]))
            run->items[kept++] = run->items[i];
    }
    run->count = kept;
    return from;
}

static void run_all(struct run *run, const char *command)
{
    uint32_t next = 0;

    while (next < run->count && run->hangs < MOST_HANGS) {
        uint32_t left = run->count - next;
        struct told told = {.first = next, .given = left < MOST_ITEMS ? left : MOST_ITEMS, .begun = -1};
        int fd, pid;
        int rc = start_helper(run, command, &told, &fd, &pid);
        if (rc != 0) {
            hr_log(HR_LOG_INFO, "%s cannot be started (%s): copies between GPUs are not tried", command, strerror(-rc));
            return;
        }
        hear(run, &told, fd);
        close(fd);
        hr_child_forget(pid);
        if (told.begun >= 0)
            give_up_item(run, &told);
        if (told.next == 0) {
            hr_log(HR_LOG_INFO, "%s %s: copies between GPUs are not tried", command,
                   told.ready ? "ended before its first copy" : "finds no driver");
            return;
        }
        next = drop_settled(run, next + told.next);
    }
}

/* ---- the whole ---- */

/*
 * Where one process at a time may have the GPU, or none, a helper's context would keep out the job's own, or another one's. Asked here because
 * such a mode can be set at any time.
 */
static bool is_open(const struct hr_discovery *discovery, uint32_t gpu)
{
    CUdevice device;
    int mode = CU_COMPUTEMODE_DEFAULT;

    bool open = hr_drv.cuDeviceGet(&device, (int)gpu) != CUDA_SUCCESS ||
                hr_drv.cuDeviceGetAttribute(&mode, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, device) != CUDA_SUCCESS ||
                mode == CU_COMPUTEMODE_DEFAULT;
    if (!open)
        hr_log_once(HR_LOG_INFO, "GPU %u (%s) is not open to several processes: copies to and from it are not tried",
                    gpu, discovery->gpu[gpu].bus_id);
    return open;
}

static bool worth_trying(const struct hr_discovery *discovery, uint32_t from, uint32_t to)
{
    return from != to &&
           (discovery->pair[from * discovery->gpus + to].access || discovery->pair[to * discovery->gpus + from].access);
}

/* What is settled by hardware and its settings changes with a boot at most, but for what was no hang, only slow. */
static bool is_old(const struct hr_pair *pair)
{
    uint64_t now_s = (uint64_t)time(NULL);
    struct timespec up = {0};

    clock_gettime(CLOCK_BOOTTIME, &up);
    return pair->found_s > now_s || now_s - pair->found_s > KEEP_BAD_S ||
           now_s - pair->found_s > (uint64_t)up.tv_sec + 1;
}

static bool is_missing(const struct run *run, uint32_t from, uint32_t to)
{
    const struct hr_discovery *discovery = run->discovery;
    const struct hr_pair *pair = &discovery->pair[from * discovery->gpus + to];

    if (from == to)
        return run->again || discovery->gpu[from].to_host_gbps <= 0;
    return worth_trying(discovery, from, to) &&
           (run->again || pair->state == HR_PAIR_UNPROVEN || (pair->state > HR_PAIR_GOOD && is_old(pair)));
}

/* Those before are dropped. */
static bool list_items(struct run *run)
{
    struct hr_discovery *discovery = run->discovery;

    free(run->items);
    run->count = 0;
    run->items = calloc((size_t)discovery->gpus * discovery->gpus, sizeof *run->items);
    bool open[HR_TOPOLOGY_MAX_PORTS]; /* as many as discovery takes */
    for (uint32_t i = 0; i < discovery->gpus; i++)
        open[i] = is_open(discovery, i);
    for (uint32_t i = 0; run->items && i < discovery->gpus; i++) {
        for (uint32_t j = 0; j < discovery->gpus; j++) {
            if (open[i] && open[j] && is_missing(run, i, j))
                run->items[run->count++] = (struct item){i, j};
        }
    }
    return run->items != NULL;
}

static uint32_t count_hangs(const struct hr_discovery *discovery)
{
    uint32_t hangs = 0;

    for (uint32_t i = 0; i < discovery->gpus; i++) {
        for (uint32_t j = 0; j < i; j++)
            hangs += discovery->pair[i * discovery->gpus + j].state == HR_PAIR_HANGS;
    }
    return hangs;
}

/*
 * Waits while another process tries copies for the same file, as long as that leaves less to try: where it cannot write the file all go on at
 * once. What it found to hang counts as found here, or each process in turn would lose the time of a few more. *turn_out may hold
 * nothing. false: nothing is left to try, or no memory.
 */
static bool wait_for_turn(struct run *run, const char *place, struct hr_turn *turn_out)
{
    uint64_t deadline_ns = hr_clock_ns() + START_NS + MOST_HANGS * (run->wait_ns + GRACE_NS);
    enum hr_turn_answer answer;
    uint32_t before;

    do {
        before = run->count;
        answer = hr_turn_take(place, deadline_ns, turn_out);
        hr_pathcache_read(place, run->discovery);
        if (!list_items(run))
            return false;
        if (answer == HR_TURN_WAITED && !run->again)
            run->hangs = count_hangs(run->discovery);
    } while (answer == HR_TURN_WAITED && run->count > 0 && run->hangs < MOST_HANGS &&
             (run->again || run->count < before));
    return run->count > 0;
}

/* What is known of the pairs to try must not look like what they are about to show. The copy of it is NULL without memory. */
static struct hr_pair *forget(struct run *run)
{
    struct hr_discovery *discovery = run->discovery;
    size_t bytes = (size_t)discovery->gpus * discovery->gpus * sizeof *discovery->pair;
    struct hr_pair *before = malloc(bytes);

    if (before)
        memcpy(before, discovery->pair, bytes);
    for (uint32_t i = 0; before && i < run->count; i++) {
        struct hr_pair *pair = pair_of(run, &run->items[i]);
        *pair = (struct hr_pair){.access = pair->access, .atomics = pair->atomics, .rank = pair->rank};
    }
    return before;
}

/* What nobody came to try is as bad as it was. */
static void remember_bad(struct run *run, const struct hr_pair *before)
{
    for (uint32_t i = 0; i < run->discovery->gpus * run->discovery->gpus; i++) {
        if (run->discovery->pair[i].state == HR_PAIR_UNPROVEN && before[i].state > HR_PAIR_GOOD)
            run->discovery->pair[i] = before[i];
    }
}

static void keep(const struct run *run, const char *place)
{
    int rc = run->learned > 0 && place ? hr_pathcache_write(place, run->discovery) : 0;

    if (rc != 0)
        hr_log(hr_config()->topo_cache[0] ? HR_LOG_WARN : HR_LOG_INFO, "cannot keep what copies have shown in %s: %s",
               place, rc == -EINVAL ? "it is not a regular file" : strerror(-rc));
}

static void copy_and_see(struct run *run, const char *place)
{
    char command[PATH_MAX];
    struct hr_turn turn = {-1};

    if (!list_items(run) || run->count == 0)
        return;
    if (!find_command(command)) {
        hr_log_once(HR_LOG_INFO, "no headroom command beside the library: copies between GPUs are not tried");
        return;
    }
    if (!place || wait_for_turn(run, place, &turn)) {
        struct hr_pair *before = forget(run);
        if (before) {
            run_all(run, command);
            remember_bad(run, before);
            keep(run, place);
        }
        free(before);
    }
    hr_turn_end(&turn);
}

/* What could not be tried because too much hung is not used: it would hang the job. */
static void close_untried(struct run *run)
{
    uint32_t closed = 0;

    for (uint32_t i = 0; run->hangs >= MOST_HANGS && i < run->count; i++) {
        if (run->items[i].from == run->items[i].to || pair_of(run, &run->items[i])->state != HR_PAIR_UNPROVEN)
            continue;
        pair_of(run, &run->items[i])->state = HR_PAIR_HANGS;
        pair_of(run, &run->items[i])->named = true;
        closed++;
    }
    if (closed)
        hr_log(HR_LOG_WARN, "%u more ways between GPUs were not tried, since %u hang: none of them is used", closed,
               run->hangs);
}

void hr_verify_describe(const struct hr_discovery *discovery, uint32_t from, uint32_t to, bool both, char *text_out)
{
    const struct hr_pair *pair = &discovery->pair[from * discovery->gpus + to];
    time_t found_s = (time_t)pair->found_s;
    struct tm date;
    char when[64] = "";

    if (pair->kept && gmtime_r(&found_s, &date))
        strftime(when, sizeof when, " (found on %Y-%m-%d; `headroom topo --measure` tries again)", &date);
    snprintf(text_out, HR_VERIFY_TEXT_BYTES,
             "GPU %u %s GPU %u (%s, %s): %s, whatever the driver says; another way is used%s", from,
             both ? "and" : "to", to, discovery->gpu[from].bus_id, discovery->gpu[to].bus_id,
             hr_pair_complaint((enum hr_pair_state)pair->state), when);
}

static void name_if_bad(struct hr_discovery *discovery, uint32_t from, uint32_t to)
{
    struct hr_pair *pair = &discovery->pair[from * discovery->gpus + to];
    struct hr_pair *back = &discovery->pair[to * discovery->gpus + from];

    if (pair->state <= HR_PAIR_GOOD || pair->named)
        return;
    bool both = back->state == pair->state && !back->named;
    char text[HR_VERIFY_TEXT_BYTES];
    pair->named = true;
    back->named = back->named || both;
    hr_verify_describe(discovery, from, to, both, text);
    hr_log(HR_LOG_WARN, "%s", text);
}

static void name_bad_pairs(struct hr_discovery *discovery)
{
    for (uint32_t from = 0; from < discovery->gpus; from++) {
        for (uint32_t to = 0; to < discovery->gpus; to++)
            name_if_bad(discovery, from, to);
    }
}

void hr_verify(struct hr_discovery *discovery, enum hr_discover_copies copies)
{
    struct run run = {.discovery = discovery, .wait_ns = hr_config()->verify_wait_ns, .again = copies == HR_COPIES_ALL};
    char place[PATH_MAX];

    if (discovery->gpus < 2)
        return;
    bool kept = hr_pathcache_place(place, sizeof place);
    if (run.wait_ns == 0)
        run.wait_ns = WAIT_NS;
    if (run.wait_ns > HR_MEASURE_MOST_WAIT_NS)
        run.wait_ns = HR_MEASURE_MOST_WAIT_NS;
    if (kept)
        hr_pathcache_read(place, discovery);
    if (copies != HR_COPIES_KEPT)
        copy_and_see(&run, kept ? place : NULL);
    close_untried(&run);
    free(run.items);
    name_bad_pairs(discovery);
}
