/*
 * Replay: SIMGPU=...,replay=N. Everything that a scheduler decides follows from N and from the job's calls.
 *
 * No thread works in the background then: after each submission, at each question whether something is done, and in each wait,
 * the calling thread itself carries out steps (a slice of a kernel, a copy, a host function), and N decides how many and which.
 * So a job of one thread meets the same interleaving each time, and another one with another N. The trace of what began, went on
 * and ended is hashed for the report.
 *
 * A job may also wait without any call, for a word that a kernel writes to pinned memory. When there was no call for a second
 * and work is left, a thread of our own goes on with it; the report then says that the run cannot be repeated for certain.
 */
#include "simgpu/check.h"

#include <errno.h>
#include <inttypes.h>
#include <time.h>

#define PATIENCE_NS UINT64_C(1000000000)
#define CHOICES_MOST 64

/* Under sg.lock. */
static struct {
    uint64_t hash, events, calls, forced;
    uint64_t thread; /* the first that submitted; others make the order theirs */
    bool threads, guard;
} replay = {.hash = UINT64_C(0xcbf29ce484222325)};

void sg_replay_event(enum sg_replay_event event, const struct sg_op *op, uint64_t detail)
{
    const uint64_t words[] = {event, op->kind, op->stream->number, op->seq, detail};
    for (unsigned i = 0; i < sizeof words / sizeof words[0]; i++) {
        replay.hash = (replay.hash ^ words[i]) * UINT64_C(0x100000001b3);
        replay.hash ^= replay.hash >> 29;
    }
    replay.events++;
}

void sg_replay_report(FILE *f)
{
    fprintf(f,
            "  \"replay\": {\"seed\": %" PRIu64 ", \"events\": %" PRIu64 ", \"trace\": \"%016" PRIx64
            "\", \"repeatable\": %s},\n",
            sg.config.seed, replay.events, replay.hash, replay.threads || replay.forced ? "false" : "true");
}

/* ---- steps ---- */

enum what { SLICE, COPY, HOST };
struct choice {
    enum what what;
    struct sg_device *device;
    struct sg_op *op;
};

static unsigned choices(struct choice *out)
{
    unsigned n = 0;
    struct sg_op *op;
    for (int i = 0; i < sg.device_count; i++) {
        struct sg_device *d = &sg.devices[i];
        DL_FOREACH2(d->grids, op, run_next)
        if (n < CHOICES_MOST && !op->kernel.finished && !op->kernel.users)
            out[n++] = (struct choice){SLICE, d, op};
        for (int e = 0; e < SG_ENGINE_COUNT; e++)
            if (n < CHOICES_MOST && d->engine[e] && !d->engine_busy[e])
                out[n++] = (struct choice){COPY, d, d->engine[e]};
        if (n < CHOICES_MOST && d->host_ops && !d->host_turns && !d->host_busy)
            out[n++] = (struct choice){HOST, d, d->host_ops};
    }
    return n;
}

static struct timespec deadline_in(uint64_t ns)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    ns += (uint64_t)t.tv_nsec;
    return (struct timespec){t.tv_sec + (time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
}

/* Lets the device's host thread carry out one function, and waits for its end unless that takes long: it may itself wait for
 * what only this thread can do. */
static void step_host(struct sg_device *d)
{
    struct timespec deadline = deadline_in(PATIENCE_NS);
    d->host_turns = 1;
    sg_host_notify(d);
    sg.waiting++;
    while ((d->host_turns || d->host_busy) && pthread_cond_timedwait(&sg.done_cv, &sg.lock, &deadline) != ETIMEDOUT) {
    }
    sg.waiting--;
    replay.forced += d->host_turns || d->host_busy;
}

/* A wait for a value in memory begins to end at a step, not when somebody happens to look. */
static bool values_went_on(void)
{
    const struct sg_stream *s;
    for (s = sg.busy_streams; s; s = s->busy_next)
        if (s->head->kind == SG_OP_VALUE_WAIT && sg_value_ready(s->head))
            break;
    uint64_t done = atomic_load(&sg.done_count);
    if (s)
        sg_pump();
    return s && atomic_load(&sg.done_count) != done;
}

void sg_replay_look(void)
{
    struct choice all[CHOICES_MOST];
    if (!sg.waiting || choices(all))
        return;
    for (int i = 0; i < sg.device_count; i++) {
        const struct sg_device *d = &sg.devices[i];
        if (d->host_busy || d->grids || d->engine_busy[0] || d->engine_busy[1] || d->engine_busy[2])
            return;
    }
    replay.forced += values_went_on();
}

bool sg_replay_step(void)
{
    static const uint64_t slices[] = {1, 1, 500, 6000};
    struct choice all[CHOICES_MOST];
    replay.calls++;
    if (sg.value_threads && values_went_on())
        return true;
    unsigned n = choices(all);
    if (!n)
        return false;
    uint64_t random = sg_random();
    const struct choice *c = &all[(random >> 8) % n];
    if (c->what == SLICE)
        sg_slice_run(c->op, slices[random & 3]);
    else if (c->what == COPY)
        sg_engine_run(c->device, c->op->engine);
    else
        step_host(c->device);
    return true;
}

/* ---- the calls at which steps are taken ---- */

static void *guard(void *arg)
{
    (void)arg;
    static pthread_cond_t never = PTHREAD_COND_INITIALIZER;
    pthread_mutex_lock(&sg.lock);
    for (uint64_t seen = 0;; seen = replay.calls) {
        struct timespec deadline = deadline_in(PATIENCE_NS);
        while (pthread_cond_timedwait(&never, &sg.lock, &deadline) != ETIMEDOUT) {
        }
        for (uint64_t calls = replay.calls; seen == calls && sg.busy_streams && !sg.blocked_threads; calls = ++seen) {
            if (!sg_replay_step() || replay.calls != calls + 1)
                break;
            replay.forced++;
        }
    }
    return NULL;
}

void sg_replay_some(void)
{
    uint64_t thread = sg_thread()->number;
    if (!replay.guard)
        replay.guard = sg_thread_start(guard, NULL, "simgpu-replay");
    if (!replay.thread)
        replay.thread = thread;
    replay.threads |= thread != replay.thread;
    replay.calls++;
    for (uint64_t n = sg_random() >> 16 & 3; n && sg_replay_step(); n--) {
    }
}

void sg_replay_poll(void)
{
    if (!atomic_load_explicit(&sg.ready, memory_order_acquire) || !sg.config.replay || sg_thread()->in_host_call)
        return;
    pthread_mutex_lock(&sg.lock);
    replay.calls++;
    for (uint64_t n = 1 + (sg_random() >> 16 & 1); n && sg_replay_step(); n--) {
    }
    pthread_mutex_unlock(&sg.lock);
}
