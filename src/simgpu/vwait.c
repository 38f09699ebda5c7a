/*
 * Waiting for times.
 *
 * A thread that needs a time which is not certain yet waits (really) for the work in question. It does so as long as there is
 * hope: work that waits for something the host does after the call in question never ends before it. A kernel that has spun for
 * PATIENCE_NS of virtual time, a host function whose thread has computed for GRACE_NS, and GRACE_TICKS in which no host function
 * and no queue moved on, are given up: what comes later is placed without them. Only then can figures of a single-threaded job
 * differ between runs. A tick is at least TICK_NS, and as long as this thread waits for a processor: on a loaded machine the
 * others wait for one too.
 */
#include "simgpu/sim.h"
#include "simgpu/timecall.h"

#include <time.h>

#define PATIENCE_NS UINT64_C(20000000)
#define GRACE_NS UINT64_C(20000000)
#define GRACE_TICKS 100
#define TICK_NS 200000 /* how long one real wait lasts at most */
#define LOOK_SHARE 4   /* waiting threads let work go on for so many times as long as they look at it */
#define MOST_STEP_NS UINT64_C(10000000)

static bool concerns(const struct sg_goal *g, const struct sg_vop *v)
{
    if (v->seq > g->seq)
        return false;
    if (g->mark)
        return v->mark == g->mark && v->kind == SG_OP_RECORD;
    if (g->stream)
        return v->stream == g->stream;
    return g->context ? v->stream->context == g->context : v->stream->context->device == g->device;
}

/* Whether some of it has no place yet; then it does not end before *lower_out. */
static bool is_pending(const struct sg_goal *g, uint64_t *lower_out)
{
    bool pending = false;
    *lower_out = 0;
    for (const struct sg_vop *v = sg_order.first; v && v->seq <= g->seq; v = v->next) {
        if (concerns(g, v)) {
            pending = true;
            *lower_out = v->lower_ns > *lower_out ? v->lower_ns : *lower_out;
        }
    }
    return pending;
}

static uint64_t end_of(const struct sg_goal *g)
{
    if (g->mark)
        return g->mark->time_ns;
    if (g->stream)
        return g->stream->end_ns;
    if (g->context)
        return g->context->end_ns;
    uint64_t end = 0;
    const struct sg_context *c;
    DL_FOREACH(sg.contexts, c)
    if (c->device == g->device && c->vtime)
        end = c->vtime->end_ns > end ? c->vtime->end_ns : end;
    return end;
}

/* Who knows of a submission is not earlier than it: other threads' clocks may be ahead. */
static void hear_of(const struct sg_goal *g)
{
    uint64_t ns = g->mark      ? g->mark->submit_ns
                  : g->stream  ? g->stream->submit_ns
                  : g->context ? g->context->submit_ns
                               : 0;
    if (ns > sg_thread_clock_ns())
        sg_thread_clock_set(ns);
}

struct patience {
    size_t unfinished;
    unsigned ticks; /* since that number changed */
    uint64_t tick_ns;
    uint64_t cpu_ns; /* of the thread of host functions, when it was first looked at since then */
};

static bool is_patient(struct patience *p, size_t unfinished)
{
    uint64_t now_ns = sg_now_ns();
    if (p->unfinished != unfinished)
        *p = (struct patience){unfinished, 0, now_ns};
    if (now_ns - p->tick_ns >= TICK_NS) {
        p->ticks++;
        p->tick_ns = now_ns;
    }
    return p->ticks < GRACE_TICKS;
}

/* A function that waits for something the host does later does so asleep or in circles; one that merely does not get the
 * processor is neither. */
static bool host_goes_on(const struct sg_device *d, struct patience *p)
{
    uint64_t cpu_ns;
    bool sleeps;
    if (!sg_host_look(d, &cpu_ns, &sleeps))
        return true;
    if (!p->cpu_ns)
        p->cpu_ns = cpu_ns;
    return cpu_ns - p->cpu_ns < GRACE_NS && !sleeps;
}

static bool goes_on(const struct sg_vop *v, struct patience *p)
{
    const struct sg_op *op = v->op;
    if (op->state == SG_OP_QUEUED)
        return v->kind == SG_OP_VALUE_WAIT && op->stream->head == op && sg_value_ready(op);
    return v->kind != SG_OP_HOST || host_goes_on(&sg.devices[op->stream->context->device], p);
}

/* Is it worth waiting for what was submitted up to then? */
static bool is_hopeful(uint64_t seq, struct patience *p)
{
    size_t unfinished = 0;
    for (const struct sg_vop *v = sg_order.first; v && v->seq <= seq; v = v->next) {
        if (v->done || v->given_up || v->stream->hopeless == sg_order.scan)
            continue;
        if (v->op->hung ||
            (v->kind == SG_OP_KERNEL && v->op->state != SG_OP_QUEUED && sg_price_least(v) >= PATIENCE_NS)) {
            v->stream->hopeless = sg_order.scan;
            continue;
        }
        if (goes_on(v, p)) {
            if (v->kind != SG_OP_HOST)
                p->unfinished = 0;
            return true;
        }
        unfinished++;
    }
    return unfinished && is_patient(p, unfinished);
}

static void give_up(uint64_t seq)
{
    for (struct sg_vop *v = sg_order.first; v && v->seq <= seq; v = v->next) {
        if (!v->done && !v->given_up) {
            v->given_up = true;
            sg_order.given_up++;
        }
    }
}

static void wait_a_tick(void)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += TICK_NS;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    sg.waiting++;
    pthread_cond_timedwait(&sg.done_cv, &sg.lock, &until);
    sg.waiting--;
}

/* Looking at what is pending since looked_ns took its time: with much of it, work goes on for longer before the next look. But in
 * a replay the clock decides nothing. */
static void let_work_go_on(uint64_t looked_ns)
{
    uint64_t now_ns = sg_now_ns(), until_ns = now_ns + LOOK_SHARE * (now_ns - looked_ns);
    do {
        if (!sg_work_once())
            wait_a_tick();
    } while (!sg.config.replay && sg_now_ns() < until_ns);
}

static void hold(const struct sg_goal *g, int by)
{
    if (g->stream)
        g->stream->refs += (unsigned)by;
    if (g->mark)
        g->mark->refs += (unsigned)by;
    if (g->context)
        g->context->refs += (unsigned)by;
}

static void let_go(const struct sg_goal *g)
{
    sg_vstream_drop(g->stream);
    sg_mark_unref(g->mark);
    sg_vcontext_drop(g->context);
}

/* Scans, and waits while it is worth it, until the goal has its time or is known not to be over at until_ns. True: it has. */
static bool find_out(const struct sg_goal *g, uint64_t until_ns)
{
    uint64_t lower;
    struct patience patience = {0};
    hold(g, 1);
    bool pending;
    for (;;) {
        uint64_t looked_ns = sg_now_ns();
        if (sg_order.first)
            sg_time_scan(false);
        pending = is_pending(g, &lower);
        if (!pending || lower > until_ns)
            break;
        if (is_hopeful(g->seq, &patience)) {
            let_work_go_on(looked_ns);
            continue;
        }
        give_up(g->seq);
        sg_time_scan(false);
        pending = is_pending(g, &lower);
        break;
    }
    return !pending;
}

void sg_time_join(const struct sg_goal *g)
{
    find_out(g, UINT64_MAX);
    sg_thread_clock_join(end_of(g));
    let_go(g);
}

/*
 * A thread that asks again and again would in reality do so until the end; here each question moves its clock a little further,
 * so that it need not ask thousands of times, but never beyond the end.
 */
bool sg_time_is_over(const struct sg_goal *g)
{
    struct sg_thread *t = sg_thread();
    hear_of(g);
    uint64_t now_ns = sg_thread_clock_ns(), step_ns = 0;
    if (t->polls > 1)
        step_ns = t->polls > 16 ? MOST_STEP_NS : UINT64_C(200) << t->polls;
    step_ns = step_ns < MOST_STEP_NS ? step_ns : MOST_STEP_NS;
    bool known = find_out(g, now_ns + step_ns);
    uint64_t lower, end_ns = known ? end_of(g) : is_pending(g, &lower) ? lower : 0;
    bool over = known && end_ns <= now_ns + step_ns;
    if (over)
        sg_thread_clock_join(end_ns);
    else if (end_ns > now_ns + step_ns)
        sg_thread_clock_join(now_ns + step_ns);
    t->polls = over ? 0 : t->polls + (end_ns > now_ns + step_ns);
    let_go(g);
    return over;
}

bool sg_time_of_mark(struct sg_mark *mark, uint64_t *time_ns_out)
{
    struct sg_goal g = {.mark = mark, .seq = sg.next_seq};
    hear_of(&g);
    uint64_t now_ns = sg_thread_clock_ns();
    bool known = find_out(&g, now_ns);
    *time_ns_out = mark->time_ns;
    bool over = known && mark->time_ns <= now_ns;
    let_go(&g);
    return over;
}

void sg_time_host_begin(struct sg_op *op)
{
    const struct sg_vop *v = op->vop;
    struct patience patience = {0};
    if (!v)
        return;
    for (;;) { /* what it waited for is over, but may have no place yet */
        uint64_t looked_ns = sg_now_ns();
        sg_time_scan(false);
        if (!v->held)
            break;
        if (!is_hopeful(v->seq - 1, &patience)) {
            give_up(v->seq - 1);
            sg_time_scan(false);
            break;
        }
        let_work_go_on(looked_ns);
    }
    sg_thread_clock_set(v->lower_ns - sg_price_host());
}
