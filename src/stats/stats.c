#include "stats/stats.h"

#include "base/clock.h"
#include "base/config.h"
#include "base/lock.h"
#include "base/log.h"
#include "space/ledger.h"
#include "space/space.h"
#include "stats/json.h"
#include "stats/site.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/*
 * The log is opened for each line and closed again: a job may close or reuse any descriptor, and a line is rare. Each line
 * is one write with O_APPEND, so a process that is killed leaves whole lines.
 */

#define LINE_BYTES ((size_t)96 << 10)
#define INTERVAL_NS UINT64_C(5000000000)
#define TOP_SITES 32

static struct hr_mutex log_lock = HR_MUTEX_INIT(HR_RANK_STATS, "stats log");
static char line[LINE_BYTES];     /* guarded by log_lock */
static char path[1100];           /* set once, "" = off */
static uint64_t start_ns;         /* set once */
static _Atomic(uint64_t) last_ns; /* of the last interval line */
static bool finished;             /* guarded by log_lock */
static unsigned gpu_count;        /* set once */
static _Atomic(size_t) peaks[HR_MAX_GPUS][HR_LEVEL_COUNT], levels[HR_MAX_GPUS][HR_LEVEL_COUNT];
static _Atomic(uint64_t) sent_bytes[HR_MAX_GPUS][HR_MAX_GPUS][HR_SENT_COUNT];
static _Atomic(uint64_t) sent_copies[HR_MAX_GPUS][HR_MAX_GPUS];
static void (*_Atomic put_ports)(struct hr_json *json);

uint64_t hr_stat_sum(enum hr_stat stat)
{
    uint64_t sum = 0;
    for (struct hr_thread *t = hr_thread_first(); t; t = t->next)
        sum += atomic_load_explicit(&t->stat[stat], memory_order_relaxed);
    return sum;
}

const char *hr_stat_name(enum hr_stat stat)
{
    static const char *const names[] = {
#define STAT(name, help) #name,
#include "stats/stats.def"
#undef STAT
    };
    return names[stat];
}

void hr_stats_level(unsigned gpu, enum hr_stats_level level, size_t bytes)
{
    size_t peak = atomic_load_explicit(&peaks[gpu][level], memory_order_relaxed);
    atomic_store_explicit(&levels[gpu][level], bytes, memory_order_relaxed);
    while (bytes > peak && !atomic_compare_exchange_weak(&peaks[gpu][level], &peak, bytes)) {
    }
}

size_t hr_stats_peak(unsigned gpu, enum hr_stats_level level)
{
    return atomic_load(&peaks[gpu][level]);
}

void hr_stats_sent(unsigned from, unsigned to, enum hr_stats_way way, uint64_t bytes)
{
    if (from >= HR_MAX_GPUS || to >= HR_MAX_GPUS)
        return;
    atomic_fetch_add_explicit(&sent_bytes[from][to][way], bytes, memory_order_relaxed);
    atomic_fetch_add_explicit(&sent_copies[from][to], 1, memory_order_relaxed);
}

void hr_stats_set_ports(void (*put)(struct hr_json *json))
{
    atomic_store(&put_ports, put);
}

static void write_line_locked(struct hr_json *j) HR_REQUIRES(log_lock)
{
    if (j->overflow) {
        hr_log_once(HR_LOG_WARN, "a line of the stats log is too long and was left out");
        return;
    }
    j->text[j->length++] = '\n';
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_NONBLOCK | O_CLOEXEC, 0644);
    if (fd < 0 || write(fd, j->text, j->length) != (ssize_t)j->length)
        hr_log_once(HR_LOG_WARN, "cannot write the stats log %s: %m", path);
    if (fd >= 0)
        close(fd);
}

static void begin_locked(struct hr_json *j, const char *type) HR_REQUIRES(log_lock)
{
    hr_json_start(j, line, sizeof line - 1);
    hr_json_open(j, NULL, '{');
    hr_json_text(j, "type", type);
}

static void put_counters(struct hr_json *j)
{
    hr_json_open(j, "counters", '{');
    for (int s = 0; s < HR_STAT_COUNT; s++)
        hr_json_number(j, hr_stat_name((enum hr_stat)s), hr_stat_sum((enum hr_stat)s));
    hr_json_number(j, "peak_committed_bytes", hr_ledger_peak());
    size_t vram = 0, peer = 0, host = 0, lent_now = 0;
    for (unsigned g = 0; g < gpu_count; g++) {
        vram += hr_stats_peak(g, HR_LEVEL_VRAM);
        peer += hr_stats_peak(g, HR_LEVEL_PEER);
        host += hr_stats_peak(g, HR_LEVEL_HOST);
        lent_now += atomic_load_explicit(&levels[g][HR_LEVEL_PEER], memory_order_relaxed);
    }
    hr_json_number(j, "peak_vram_bytes", vram);
    hr_json_number(j, "peak_peer_bytes", peer);
    hr_json_number(j, "peak_host_bytes", host);
    hr_json_number(j, "lent_now_bytes", lent_now);
    hr_json_close(j, '}');
}

static void put_sent(struct hr_json *j, unsigned from, unsigned to)
{
    static const char *const names[] = {"direct_bytes", "relayed_bytes", "staged_bytes"};
    uint64_t copies = atomic_load_explicit(&sent_copies[from][to], memory_order_relaxed);
    if (copies == 0)
        return;
    hr_json_open(j, NULL, '{');
    hr_json_number(j, "from", from);
    hr_json_number(j, "to", to);
    hr_json_number(j, "copies", copies);
    for (int way = 0; way < HR_SENT_COUNT; way++)
        hr_json_number(j, names[way], atomic_load_explicit(&sent_bytes[from][to][way], memory_order_relaxed));
    hr_json_close(j, '}');
}

/* Between GPUs: nothing where there is one. */
static void put_traffic(struct hr_json *j)
{
    void (*ports)(struct hr_json *) = atomic_load(&put_ports);
    if (gpu_count < 2)
        return;
    hr_json_open(j, "traffic", '[');
    for (unsigned from = 0; from < gpu_count; from++)
        for (unsigned to = 0; to < gpu_count; to++)
            put_sent(j, from, to);
    hr_json_close(j, ']');
    if (!ports)
        return;
    hr_json_open(j, "ports", '[');
    ports(j);
    hr_json_close(j, ']');
}

static void put_command(struct hr_json *j)
{
    char text[4096];
    int fd = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, text, sizeof text - 1) : 0;
    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = 0;
    hr_json_open(j, "command", '[');
    for (ssize_t at = 0; at < n; at += (ssize_t)strlen(text + at) + 1)
        hr_json_text(j, NULL, text + at);
    hr_json_close(j, ']');
}

static void put_settings(struct hr_json *j)
{
    size_t count;
    const struct hr_setting *settings = hr_config_settings(&count);
    hr_json_open(j, "settings", '{');
    for (size_t i = 0; i < count; i++) {
        const char *value = getenv(settings[i].env);
        if (value)
            hr_json_text(j, settings[i].env, value);
    }
    hr_json_close(j, '}');
}

void hr_stats_start(const struct hr_stats_gpu *gpus, unsigned count, size_t host_budget_bytes)
{
    char host[256] = "";
    gpu_count = count;
    start_ns = hr_clock_ns();
    atomic_store(&last_ns, start_ns);
    if (!hr_config()->stats[0])
        return;
    if (!hr_config_path(hr_config()->stats, path, sizeof path)) {
        hr_log(HR_LOG_WARN, "the stats log's path is too long: no log is written");
        return;
    }
    gethostname(host, sizeof host - 1);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    hr_mutex_lock(&log_lock);
    struct hr_json j;
    begin_locked(&j, "start");
    hr_json_number(&j, "schema", 1);
    hr_json_text(&j, "version", HR_VERSION);
    hr_json_number(&j, "pid", (uint64_t)getpid());
    hr_json_text(&j, "host", host);
    hr_json_number(&j, "time_unix_ns", (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec);
    put_command(&j);
    hr_json_number(&j, "driver_version", (uint64_t)hr_driver_version());
    hr_json_open(&j, "gpus", '[');
    for (unsigned g = 0; g < count; g++) {
        hr_json_open(&j, NULL, '{');
        hr_json_number(&j, "index", g);
        hr_json_text(&j, "name", gpus[g].name);
        hr_json_number(&j, "vram_bytes", gpus[g].vram_bytes);
        hr_json_number(&j, "cap_bytes", gpus[g].cap_bytes);
        hr_json_number(&j, "window_bytes", gpus[g].window_bytes);
        hr_json_close(&j, '}');
    }
    hr_json_close(&j, ']');
    hr_json_number(&j, "host_budget_bytes", host_budget_bytes);
    put_settings(&j);
    hr_json_close(&j, '}');
    write_line_locked(&j);
    hr_mutex_unlock(&log_lock);
}

void hr_stats_tick(void)
{
    uint64_t now = hr_clock_ns(), last = atomic_load_explicit(&last_ns, memory_order_relaxed);
    if (!path[0] || now - last < INTERVAL_NS || !atomic_compare_exchange_strong(&last_ns, &last, now))
        return;
    hr_mutex_lock(&log_lock);
    if (!finished) {
        struct hr_json j;
        begin_locked(&j, "interval");
        hr_json_number(&j, "t_ns", now - start_ns);
        put_counters(&j);
        put_traffic(&j);
        hr_json_close(&j, '}');
        write_line_locked(&j);
    }
    hr_mutex_unlock(&log_lock);
}

void hr_stats_event(const char *event, const char *text)
{
    if (!path[0])
        return;
    hr_mutex_lock(&log_lock);
    if (!finished) {
        struct hr_json j;
        begin_locked(&j, "event");
        hr_json_number(&j, "t_ns", hr_clock_ns() - start_ns);
        hr_json_text(&j, "event", event);
        hr_json_text(&j, "text", text);
        hr_json_close(&j, '}');
        write_line_locked(&j);
    }
    hr_mutex_unlock(&log_lock);
}

/* "path+0xoffset" from base/callsite is cut into its two parts. */
static void put_frame(struct hr_json *j, const void *pc)
{
    char where[1024];
    hr_callsite_describe(pc, where, sizeof where);
    char *plus = strrchr(where, '+');
    uint64_t offset = (uint64_t)(uintptr_t)pc;
    if (plus) {
        *plus = 0;
        offset = strtoull(plus + 1, NULL, 16);
    }
    hr_json_open(j, NULL, '{');
    hr_json_text(j, "object", plus ? where : "");
    hr_json_number(j, "offset", offset);
    hr_json_close(j, '}');
}

static void put_sites(struct hr_json *j)
{
    struct hr_site *top[TOP_SITES];
    size_t count = hr_site_top(top, TOP_SITES);
    hr_json_open(j, "sites", '[');
    for (size_t i = 0; i < count; i++) {
        hr_json_open(j, NULL, '{');
        hr_json_open(j, "frames", '[');
        for (uint32_t f = 0; f < top[i]->where.depth; f++)
            put_frame(j, top[i]->where.pc[f]);
        hr_json_close(j, ']');
        hr_json_number(j, "allocations", atomic_load(&top[i]->allocations));
        hr_json_number(j, "bytes", atomic_load(&top[i]->bytes));
        hr_json_number(j, "peak_live_bytes", atomic_load(&top[i]->peak_live_bytes));
        hr_json_number(j, "moved_out_bytes", atomic_load(&top[i]->moved_out_bytes));
        hr_json_close(j, '}');
    }
    hr_json_close(j, ']');
}

void hr_stats_finish(const char *exit_kind)
{
    if (!path[0])
        return;
    hr_mutex_lock(&log_lock);
    if (!finished) {
        struct hr_json j;
        finished = true;
        begin_locked(&j, "summary");
        hr_json_number(&j, "t_ns", hr_clock_ns() - start_ns);
        hr_json_text(&j, "exit", exit_kind);
        hr_json_open(&j, "gpus", '[');
        for (unsigned g = 0; g < gpu_count; g++) {
            hr_json_open(&j, NULL, '{');
            hr_json_number(&j, "index", g);
            hr_json_number(&j, "peak_vram_bytes", hr_stats_peak(g, HR_LEVEL_VRAM));
            hr_json_number(&j, "peak_peer_bytes", hr_stats_peak(g, HR_LEVEL_PEER));
            hr_json_number(&j, "peak_host_bytes", hr_stats_peak(g, HR_LEVEL_HOST));
            hr_json_close(&j, '}');
        }
        hr_json_close(&j, ']');
        put_counters(&j);
        put_traffic(&j);
        put_sites(&j);
        hr_json_close(&j, '}');
        write_line_locked(&j);
    }
    hr_mutex_unlock(&log_lock);
}
