/*
 * Placing operations in virtual time.
 *
 * What has been submitted stands in one list, in the order of submission. A scan goes through it from the front and places
 * whatever is really done and cannot be displaced by anything before it that is not: for those it keeps the earliest time at
 * which they could begin, and takes it that they might use their engine for ever from then on. So the result is the same
 * as if everything had been placed strictly in the order of submission, whenever the scans happen.
 *
 * A thread that needs a time which is not certain yet waits (really) for the work in question. It does so as long as there is
 * hope: work that waits for something the host does after the call in question never ends before it. A kernel that has spun for
 * PATIENCE_NS of virtual time, a host function whose thread has computed for GRACE_NS, and GRACE_TICKS in which no host function
 * and no queue moved on, are given up: what comes later is placed without them. Only then can figures of a single-threaded job
 * differ between runs. A tick is at least TICK_NS, and as long as this thread waits for a processor: on a loaded machine the
 * others wait for one too.
 */
#include "simgpu/fabric.h"
#include "simgpu/linkfault.h"
#include "simgpu/timecall.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PATIENCE_NS UINT64_C(20000000)
#define GRACE_NS UINT64_C(20000000)
#define GRACE_TICKS 100
#define TICK_NS 200000 /* how long one real wait lasts at most */
#define MOST_BLOCKERS 24
#define SCAN_EVERY 1024
#define LOOK_SHARE 4 /* waiting threads let work go on for so many times as long as they look at it */
#define MOST_STEP_NS UINT64_C(10000000)

static struct {
    struct sg_vop *first, *last; /* not placed yet, in the order of submission */
    struct sg_vop *spare;
    size_t done_unplaced;
    uint64_t scan, end_ns;
    uint64_t given_up;
} order;

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* ---- what streams and contexts keep ---- */

void sg_vcontext_drop(struct sg_vcontext *c)
{
    if (c && !--c->refs)
        free(c);
}

static void stream_drop(struct sg_vstream *s)
{
    if (s && !--s->refs) {
        sg_vcontext_drop(s->context);
        free(s);
    }
}

void sg_time_context_begin(struct sg_context *context)
{
    context->vtime = calloc(1, sizeof *context->vtime);
    if (context->vtime)
        *context->vtime = (struct sg_vcontext){.refs = 1, .device = context->device};
}

void sg_time_context_end(struct sg_context *context)
{
    sg_vcontext_drop(context->vtime);
    context->vtime = NULL;
}

void sg_time_stream_begin(struct sg_stream *stream)
{
    struct sg_vcontext *c = stream->context->vtime;
    struct sg_vstream *s = c ? calloc(1, sizeof *s) : NULL;
    stream->vtime = s;
    if (!s)
        return;
    *s = (struct sg_vstream){.refs = 1, .context = c, .number = stream->number};
    s->legacy = stream->type == SG_STREAM_LEGACY;
    s->blocking = !s->legacy && !(stream->flags & CU_STREAM_NON_BLOCKING);
    c->refs++;
}

void sg_time_stream_end(struct sg_stream *stream)
{
    stream_drop(stream->vtime);
    stream->vtime = NULL;
}

/* ---- submissions and ends ---- */

static struct sg_kernel_total *total_of(struct sg_function *f)
{
    if (!f->time_total)
        f->time_total = sg_kernel_total(f->info->name);
    return f->time_total;
}

static void describe_kernel(struct sg_vop *v, const struct sg_op *op)
{
    const struct sg_kernel *k = &op->kernel;
    uint64_t blocks = (uint64_t)k->grid[0] * k->grid[1] * k->grid[2], threads = (uint64_t)k->block[0] * k->block[1];
    threads *= k->block[2];
    v->line = SG_LINE_SM;
    v->blocks = blocks > UINT32_MAX ? UINT32_MAX : (uint32_t)blocks;
    v->warps = (uint32_t)((threads + 31) / 32);
    v->lanes = (uint32_t)(threads / v->warps);
    v->per_sm = k->resident_blocks / (unsigned)sg.config.model->sm_count;
    v->per_sm = v->per_sm ? v->per_sm : 1;
    v->total = total_of(k->function);
}

void sg_time_submit(struct sg_op *op)
{
    static const uint8_t lines[SG_ENGINE_COUNT] = {SG_LINE_H2D, SG_LINE_D2H, SG_LINE_D2D};
    struct sg_vstream *s = op->stream->vtime;
    struct sg_vop *v = order.spare;
    if (v)
        order.spare = v->next;
    else
        v = malloc(sizeof *v);
    op->vop = s ? v : NULL;
    if (!v || !s) { /* out of host memory: this operation takes no time */
        free(v);
        return;
    }
    *v = (struct sg_vop){.seq = op->seq, .op = op, .stream = s, .kind = (uint8_t)op->kind};
    s->refs++;
    v->device = v->source = (uint8_t)s->context->device;
    v->submit_ns = sg_thread_clock_ns();
    s->submit_ns = later(s->submit_ns, v->submit_ns);
    s->context->submit_ns = later(s->context->submit_ns, v->submit_ns);
    if (op->kind == SG_OP_KERNEL) {
        describe_kernel(v, op);
    } else if (op->kind == SG_OP_COPY || op->kind == SG_OP_FILL) {
        v->line = lines[op->engine];
        v->any_line = op->kind == SG_OP_COPY && op->engine == SG_ENGINE_D2D;
        v->pageable = op->kind == SG_OP_COPY && op->copy.pageable;
        if (v->any_line && op->copy.src_device != SG_ON_HOST)
            v->source = (uint8_t)op->copy.src_device;
    } else if (op->kind == SG_OP_RECORD || op->kind == SG_OP_WAIT) {
        v->mark = sg_mark_ref(op->mark);
        if (op->kind == SG_OP_RECORD)
            v->mark->submit_ns = v->submit_ns;
    }
    if (order.last)
        order.last->next = v;
    else
        order.first = v;
    order.last = v;
}

static void take_counters(struct sg_vop *v, const struct ptx_counters *n)
{
    v->ran = true;
    v->instructions = n->thread_instructions;
    v->accesses = n->accesses;
    v->flops = n->flops;
    v->double_flops = n->double_flops;
    v->tensor_flops = n->tensor_flops;
    v->tensor_work = n->tensor_work;
    memcpy(v->read, n->read_bytes, sizeof v->read);
    memcpy(v->written, n->write_bytes, sizeof v->written);
}

/* Which cards' memory a kernel has used is known by what its parameters name; each has an equal part of the bytes. */
static void peers_of_kernel(struct sg_op *op, const struct ptx_counters *n)
{
    uint64_t in = n->read_bytes[SG_TIER_PEER], out = n->write_bytes[SG_TIER_PEER];
    const struct sg_kernel *k = &op->kernel;
    int device = op->stream->context->device, count = 0;
    unsigned named = 0, reachable = 0;
    if (!in && !out)
        return;
    for (size_t i = 0; i < k->word_count; i++) {
        int owner = sg_page_owner(&sg.devices[device].pagetable, k->words[i]);
        named |= owner >= 0 && owner != device ? 1u << owner : 0;
    }
    for (int i = 0; i < sg.device_count; i++)
        reachable |= i != device && sg_can_reach(device, i) ? 1u << i : 0;
    named = named ? named : reachable;
    count = __builtin_popcount(named);
    for (int i = 0; i < sg.device_count; i++)
        if (named >> i & 1 &&
            sg_node_kernel(device, i, in / (unsigned)count, out / (unsigned)count, op->seq, &op->vop->usage))
            sg_linkfault_kernel(op, i);
}

void sg_time_kernel_ran(struct sg_op *op, const struct ptx_counters *counters)
{
    if (op->vop)
        take_counters(op->vop, counters);
    if (op->vop && sg.config.topology)
        peers_of_kernel(op, counters);
}

void sg_time_moved(struct sg_op *op, struct sg_moved *moved)
{
    struct sg_vop *v = op->vop;
    if (!v) {
        sg_usage_free(&moved->usage);
        return;
    }
    v->usage = moved->usage;
    if (sg.config.topology && op->kind == SG_OP_COPY)
        sg_node_host(v->device, moved->bytes[SG_H2D], moved->bytes[SG_D2H], &v->usage);
    v->ran = true;
    memcpy(v->bytes, moved->bytes, sizeof v->bytes);
    if (op->kind == SG_OP_COPY && moved->bytes[SG_P2P] && op->copy.src_device != SG_ON_HOST)
        v->device = (uint8_t)op->copy.src_device; /* the port that it leaves by */
}

/* ---- placing ---- */

struct blocker { /* from then on, something before may be using these */
    uint64_t from_ns;
    uint32_t units;
    uint8_t device, lines;
};

static struct {
    struct blocker at[MOST_BLOCKERS];
    size_t count;
} blockers;

#define ANY_LINK 0x80u /* of a blocker's lines: any link of the node */

static void add_blocker(struct blocker b)
{
    if (blockers.count < MOST_BLOCKERS) {
        blockers.at[blockers.count++] = b;
        return;
    }
    for (size_t i = 0; i < MOST_BLOCKERS; i++) { /* a wider one in place of two */
        struct blocker *other = &blockers.at[i];
        if (other->device == b.device && other->lines == b.lines) {
            other->from_ns = other->from_ns < b.from_ns ? other->from_ns : b.from_ns;
            other->units += b.units;
            return;
        }
    }
    for (size_t i = 0; i < MOST_BLOCKERS; i++) /* more kinds than there is room for: all hold up everything */
        blockers.at[i] = (struct blocker){0, UINT32_MAX / MOST_BLOCKERS, (uint8_t)(i % SG_MAX_DEVICES), 0xff};
}

static void block(const struct sg_vop *v, uint64_t from_ns)
{
    struct blocker b = {from_ns, 1, v->device, (uint8_t)(1u << v->line)};
    if (v->kind == SG_OP_KERNEL)
        b.units = sg_price_sms(v);
    else if (v->any_line)
        b.lines = 1u << SG_LINE_H2D | 1u << SG_LINE_D2H | 1u << SG_LINE_D2D | 1u << SG_LINE_PEER;
    if (b.lines & (1u << SG_LINE_H2D | 1u << SG_LINE_D2H)) /* they share a link */
        b.lines |= 1u << SG_LINE_H2D | 1u << SG_LINE_D2H;
    if (sg.config.topology && v->kind != SG_OP_KERNEL)
        b.lines |= ANY_LINK;
    add_blocker(b);
    if (v->source != v->device) {
        b.device = v->source;
        add_blocker(b);
    }
}

static bool is_displaced(const struct sg_vop *v, enum sg_line line, int device, const struct sg_slot *slot)
{
    uint64_t units = 0;
    for (size_t i = 0; i < blockers.count; i++) {
        const struct blocker *b = &blockers.at[i];
        if (v->usage.count && v->kind != SG_OP_KERNEL && b->lines & ANY_LINK && b->from_ns < slot->end_ns)
            return true;
        if (b->device == device && b->lines >> line & 1 && b->from_ns < slot->end_ns)
            units += b->units;
    }
    if (!units)
        return false;
    const struct sg_profile *p = &sg_timed(device)->line[line];
    return line != SG_LINE_SM ||
           units + slot->units + sg_profile_most(p, slot->start_ns, slot->end_ns) > (uint64_t)p->capacity;
}

/* Where a done operation ends. False: not certain yet. */
static bool place(struct sg_vop *v, uint64_t ready_ns, uint64_t *end_out)
{
    *end_out = ready_ns;
    if (v->kind == SG_OP_RECORD) {
        v->mark->time_ns = ready_ns;
        v->mark->placed = true;
    } else if (v->kind == SG_OP_HOST) {
        *end_out = ready_ns + sg_price_host();
        sg_timeline_note(v, -1, v->device, ready_ns, *end_out);
    } else if (v->kind != SG_OP_WAIT && v->ran) {
        int device;
        enum sg_line line = sg_price_line(v, &device);
        struct sg_slot slot =
            v->usage.count ? sg_links_find(v, line, device, ready_ns) : sg_timed_find(v, line, device, ready_ns);
        if (is_displaced(v, line, device, &slot))
            return false;
        sg_timed_add(v, line, device, &slot);
        sg_links_add(v, slot.start_ns);
        *end_out = slot.end_ns;
        if (v->total) {
            v->total->count++;
            v->total->ns += slot.end_ns - slot.start_ns;
            v->total->flops += v->flops;
            for (int t = 0; t < SG_TIER_COUNT; t++)
                v->total->bytes += v->read[t] + v->written[t];
        }
    }
    return true;
}

struct ready {
    uint64_t ns;
    bool held, given_up; /* something that it depends on is not placed; and will not be waited for */
};

static void depend(struct ready *r, uint64_t end_ns, uint64_t pending_ns, bool given_up)
{
    r->ns = later(r->ns, later(end_ns, pending_ns));
    r->held |= pending_ns != 0;
    r->given_up |= pending_ns && given_up;
}

static struct ready readiness(const struct sg_vop *v)
{
    struct sg_vstream *s = v->stream;
    struct sg_vcontext *c = s->context;
    struct ready r = {v->submit_ns + sg_price_delay(v->kind), false, false};
    if (s->scan != order.scan) {
        s->scan = order.scan;
        s->scan_ns = 0;
        s->given_up = false;
    }
    if (c->scan != order.scan) {
        c->scan = order.scan;
        c->scan_legacy_ns = c->scan_blocking_ns = 0;
        c->legacy_given_up = c->blocking_given_up = false;
    }
    depend(&r, s->end_ns, s->scan_ns, s->given_up);
    if (v->kind == SG_OP_WAIT)
        depend(&r, v->mark->placed ? v->mark->time_ns : 0, v->mark->placed ? 0 : later(v->mark->lower_ns, 1),
               v->mark->given_up);
    if (s->legacy)
        depend(&r, c->blocking_end_ns, c->scan_blocking_ns, c->blocking_given_up);
    else if (s->blocking)
        depend(&r, c->legacy_end_ns, c->scan_legacy_ns, c->legacy_given_up);
    return r;
}

static void note_end(const struct sg_vop *v, uint64_t end_ns)
{
    struct sg_vstream *s = v->stream;
    struct sg_vcontext *c = s->context;
    s->end_ns = later(s->end_ns, end_ns);
    c->end_ns = later(c->end_ns, end_ns);
    if (s->legacy)
        c->legacy_end_ns = later(c->legacy_end_ns, end_ns);
    else if (s->blocking)
        c->blocking_end_ns = later(c->blocking_end_ns, end_ns);
    order.end_ns = later(order.end_ns, end_ns);
}

/* An operation that stays: what later ones must reckon with. */
static void note_pending(struct sg_vop *v, const struct ready *r)
{
    struct sg_vstream *s = v->stream;
    struct sg_vcontext *c = s->context;
    if (v->op && v->kind == SG_OP_KERNEL && v->op->kernel.run) {
        struct ptx_counters now;
        ptx_grid_counters_now(v->op->kernel.run, &now);
        take_counters(v, &now);
    }
    v->given_up |= r->given_up && !v->done;
    v->held = r->held;
    v->lower_ns = later(r->ns + sg_price_least(v), 1);
    s->scan_ns = v->lower_ns;
    s->given_up |= v->given_up;
    if (s->legacy) {
        c->scan_legacy_ns = later(c->scan_legacy_ns, v->lower_ns);
        c->legacy_given_up |= s->given_up;
    } else if (s->blocking) {
        c->scan_blocking_ns = later(c->scan_blocking_ns, v->lower_ns);
        c->blocking_given_up |= s->given_up;
    }
    if (v->kind == SG_OP_RECORD) {
        v->mark->lower_ns = v->lower_ns;
        v->mark->given_up = s->given_up;
    }
    if (v->kind <= SG_OP_FILL && !s->given_up)
        block(v, r->ns);
}

static void release(struct sg_vop *v)
{
    sg_mark_unref(v->mark);
    stream_drop(v->stream);
    sg_usage_free(&v->usage);
    v->next = order.spare;
    order.spare = v;
}

/* Places what is certain. With front_only it stops at the first that is not done: cheap, for every completion. */
static void scan(bool front_only)
{
    order.scan++;
    blockers.count = 0;
    struct sg_vop *before = NULL, *next;
    for (struct sg_vop *v = order.first; v; v = next) {
        next = v->next;
        if (front_only && !v->done)
            return;
        struct ready r = readiness(v);
        uint64_t end_ns;
        if (!v->done || r.held || !place(v, r.ns, &end_ns)) {
            note_pending(v, &r);
            before = v;
            continue;
        }
        note_end(v, end_ns);
        if (before)
            before->next = next;
        else
            order.first = next;
        if (order.last == v)
            order.last = before;
        order.done_unplaced--;
        release(v);
    }
}

void sg_time_done(struct sg_op *op)
{
    struct sg_vop *v = op->vop;
    if (!v) {
        if (op->kind == SG_OP_RECORD)
            op->mark->placed = true;
        return;
    }
    v->op = NULL;
    v->done = true;
    order.done_unplaced++;
    if (order.first == v)
        scan(true);
    else if (order.done_unplaced % SCAN_EVERY == 0)
        scan(false);
}

/* ---- waiting for times ---- */

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
    for (const struct sg_vop *v = order.first; v && v->seq <= g->seq; v = v->next) {
        if (concerns(g, v)) {
            pending = true;
            *lower_out = later(*lower_out, v->lower_ns);
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
        end = later(end, c->vtime->end_ns);
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
    for (const struct sg_vop *v = order.first; v && v->seq <= seq; v = v->next) {
        if (v->done || v->given_up || v->stream->hopeless == order.scan)
            continue;
        if (v->op->hung ||
            (v->kind == SG_OP_KERNEL && v->op->state != SG_OP_QUEUED && sg_price_least(v) >= PATIENCE_NS)) {
            v->stream->hopeless = order.scan;
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
    for (struct sg_vop *v = order.first; v && v->seq <= seq; v = v->next) {
        if (!v->done && !v->given_up) {
            v->given_up = true;
            order.given_up++;
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
    stream_drop(g->stream);
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
        if (order.first)
            scan(false);
        pending = is_pending(g, &lower);
        if (!pending || lower > until_ns)
            break;
        if (is_hopeful(g->seq, &patience)) {
            let_work_go_on(looked_ns);
            continue;
        }
        give_up(g->seq);
        scan(false);
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
        scan(false);
        if (!v->held)
            break;
        if (!is_hopeful(v->seq - 1, &patience)) {
            give_up(v->seq - 1);
            scan(false);
            break;
        }
        let_work_go_on(looked_ns);
    }
    sg_thread_clock_set(v->lower_ns - sg_price_host());
}

uint64_t sg_time_total_ns(void)
{
    return later(order.end_ns, sg_latest_clock_ns());
}

/* ---- the report ---- */

void sg_time_report(FILE *f)
{
    scan(false);
    fprintf(f, "  \"virtual_time_ns\": %llu,\n  \"given_up\": %llu,\n", (unsigned long long)sg_time_total_ns(),
            (unsigned long long)order.given_up);
    sg_call_report(f);
    sg_kernel_report(f);
}
