/*
 * Statistics: counters per thread (summed when read), peaks, allocation sites, and the JSON-lines log.
 * The log's format is described in docs/stats-log.md.
 */
#ifndef HR_STATS_STATS_H
#define HR_STATS_STATS_H

#include "base/thread.h"
#include "driver/driver.h"

enum hr_stat {
#define STAT(name, help) HR_STAT_##name,
#include "stats/stats.def"
#undef STAT
    HR_STAT_COUNT
};
_Static_assert(HR_STAT_COUNT <= HR_THREAD_STATS, "base/thread.h has room for the table");

/* Adds to the calling thread's counter: no lock, no shared cache line. t may be NULL (then nothing is counted). */
static inline void hr_stat_add(struct hr_thread *t, enum hr_stat stat, uint64_t n)
{
    if (t)
        atomic_store_explicit(&t->stat[stat], atomic_load_explicit(&t->stat[stat], memory_order_relaxed) + n,
                              memory_order_relaxed);
}
/* Adds time to a part of stall_ns: only what a launch waited for, not what moves in other calls take. */
static inline void hr_stat_add_stall(struct hr_thread *t, enum hr_stat part, uint64_t ns)
{
    if (t && t->stalling)
        hr_stat_add(t, part, ns);
}
uint64_t hr_stat_sum(enum hr_stat stat); /* over all threads, ended ones included */
const char *hr_stat_name(enum hr_stat stat);

/* What the start line says of each GPU. */
struct hr_stats_gpu {
    char name[96];
    size_t vram_bytes, cap_bytes, window_bytes;
};
/* Levels whose peak the summary tells; the caller passes the level after each change. PEER: what the GPU lends. Any thread. */
enum hr_stats_level { HR_LEVEL_VRAM, HR_LEVEL_PEER, HR_LEVEL_HOST, HR_LEVEL_COUNT };
void hr_stats_level(unsigned gpu, enum hr_stats_level level, size_t bytes);
size_t hr_stats_peak(unsigned gpu, enum hr_stats_level level);

/* How copies went from one GPU to another. */
enum hr_stats_way {
    HR_SENT_DIRECT,  /* straight */
    HR_SENT_RELAYED, /* straight from this one to that one, on a way that has other GPUs in between */
    HR_SENT_STAGED,  /* through host memory */
    HR_SENT_COUNT
};
/* Data went from one GPU's VRAM to another's. Any thread; no lock. */
void hr_stats_sent(unsigned from, unsigned to, enum hr_stats_way way, uint64_t bytes);

/*
 * Who tells the traffic of the machine's ports, where it counts that: writes objects into an array, and calls no driver of CUDA. Called with
 * each interval and summary line, under HR_RANK_STATS.
 */
struct hr_json;
void hr_stats_set_ports(void (*put)(struct hr_json *json));

/* Opens the log that HEADROOM_STATS names (nothing where it is off) and writes its start line. Once, after start-up. */
void hr_stats_start(const struct hr_stats_gpu *gpus, unsigned gpu_count, size_t host_budget_bytes);
/* Writes an interval line if the last one is more than a few seconds old. Called from slow paths. */
void hr_stats_tick(void);
/* Writes an event line: `event` is a short word, `text` one sentence. */
void hr_stats_event(const char *event, const char *text);
/* Writes the summary and closes the log. No call of CUDA. */
void hr_stats_finish(const char *exit_kind);

/* --- allocation sites ------------------------------------------------------------------------------------------- */

struct hr_site;
/*
 * Called at every allocation: takes a call stack for a sample of them (by bytes, so that large ones are nearly always
 * seen). Returns the site, to be kept with the allocation, or NULL when this one was not sampled.
 */
struct hr_site *hr_site_sample(struct hr_thread *t, size_t bytes, void *return_pc);
void hr_site_freed(struct hr_site *site, size_t bytes);
void hr_site_moved_out(struct hr_site *site, size_t bytes);
/* A site as a number, where a pointer would take too much room; 0 = NULL. */
uint16_t hr_site_number(const struct hr_site *site);
struct hr_site *hr_site_numbered(uint16_t number);

#endif
