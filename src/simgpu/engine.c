/*
 * Streams as in-order queues, and what may start when.
 *
 * Only the head of a stream is ever started. sg_pump visits the streams that hold work and starts heads whose conditions
 * hold; every completion and submission pumps. Ready heads of different streams start in an order that the seed decides.
 * A thread that waits lends a hand with kernels, so that a short one is done without any thread switch.
 */
#include "simgpu/capture.h"
#include "simgpu/check.h"
#include "simgpu/managed.h"
#include "simgpu/mempool.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPINS 1500

struct sg_mark *sg_mark_ref(struct sg_mark *mark)
{
    mark->refs++;
    return mark;
}

void sg_mark_unref(struct sg_mark *mark)
{
    if (mark && !--mark->refs) {
        free(mark->clock);
        free(mark->known);
        sg_shared_event_unref(mark->shared);
        free(mark);
    }
}

void sg_mark_done(struct sg_mark *mark)
{
    mark->done = true;
    if (mark->shared)
        sg_shared_event_done(mark);
}

struct sg_op *sg_op_new(enum sg_op_kind kind)
{
    struct sg_op *op = calloc(1, sizeof *op);
    if (op)
        op->kind = kind;
    return op;
}

void sg_op_free(struct sg_op *op)
{
    if (op->race)
        sg_race_drop(op);
    switch (op->kind) {
    case SG_OP_COPY:
        free(op->copy.staging);
        sg_managed_unref(op->copy.prefetch);
        break;
    case SG_OP_RECORD:
    case SG_OP_WAIT: sg_mark_unref(op->mark); break;
    case SG_OP_ALLOC:
    case SG_OP_FREE: sg_span_unref(op->span); break;
    case SG_OP_KERNEL:
        op->kernel.function->in_flight--;
        free(op->kernel.params);
        free(op->kernel.words);
        break;
    case SG_OP_GRAPH: sg_graph_op_free(op); break;
    default: break;
    }
    free(op);
}

static void stream_reap(struct sg_stream *s)
{
    if (!s->dead || s->head || s->waiters)
        return;
    if (s->context)
        DL_DELETE(s->context->streams, s);
    if (s->race)
        sg_race_stream_gone(s);
    sg_time_stream_end(s);
    free(s->known);
    free(s);
}

void sg_stream_hold(struct sg_stream *s)
{
    s->waiters++;
}

bool sg_stream_let_go(struct sg_stream *s)
{
    bool lives = !s->dead && s->context;
    s->waiters--;
    stream_reap(s);
    return lives;
}

void sg_stream_retire(struct sg_stream *s)
{
    if (s->captured)
        sg_capture_stream_gone(s);
    if (!s->dead)
        sg_object_remove(&s->object);
    s->dead = true;
    if (s->context && !s->head && (s->waiters || !s->context->active)) {
        DL_DELETE(s->context->streams, s); /* the context goes; whoever still waits frees the stream */
        s->context = NULL;
    }
    stream_reap(s);
}

void sg_complete(struct sg_op *op)
{
    struct sg_stream *s = op->stream;
    if (sg_check.race)
        sg_race_end(op, !s->context->sticky);
    if (sg.config.replay)
        sg_replay_event(SG_REPLAY_END, op, 0);
    s->head = op->next;
    if (!s->head) {
        s->tail = NULL;
        DL_DELETE2(sg.busy_streams, s, busy_prev, busy_next);
    }
    sg_time_done(op);
    s->waiters++; /* the operation may hold the last reference to an executable graph, whose lane this stream is */
    sg_op_free(op);
    s->waiters--;
    atomic_fetch_add_explicit(&s->completed, 1, memory_order_release);
    stream_reap(s);
    atomic_fetch_add_explicit(&sg.done_count, 1, memory_order_release);
    if (sg.waiting)
        pthread_cond_broadcast(&sg.done_cv);
}

/* ---- starting ---- */

/* The legacy stream runs after everything submitted before it to blocking streams, and before everything after it. */
static bool legacy_rule_allows(const struct sg_op *op)
{
    const struct sg_stream *s = op->stream;
    const struct sg_context *c = s->context;
    if (s->type != SG_STREAM_LEGACY) {
        const struct sg_op *head = c->legacy->head;
        return (s->flags & CU_STREAM_NON_BLOCKING) || !head || head->seq > op->seq;
    }
    const struct sg_stream *other;
    DL_FOREACH(c->streams, other)
    if (other != s && !(other->flags & CU_STREAM_NON_BLOCKING) && other->head && other->head->seq < op->seq)
        return false;
    return true;
}

/* A cooperative grid starts only with room for all of its blocks. */
static bool all_blocks_fit(const struct sg_op *op)
{
    const struct sg_kernel *k = &op->kernel;
    double room = 1.0 - sg.devices[op->stream->context->device].share;
    return (uint64_t)k->grid[0] * k->grid[1] * k->grid[2] <= (uint64_t)(room * k->resident_blocks + 1e-6);
}

static void start_kernel(struct sg_op *op)
{
    struct sg_device *d = &sg.devices[op->stream->context->device];
    struct sg_kernel *k = &op->kernel;
    double room = 1.0 - d->share;
    unsigned fit = (unsigned)(room * k->resident_blocks + 1e-6);
    uint64_t blocks = (uint64_t)k->grid[0] * k->grid[1] * k->grid[2];
    unsigned want = blocks < k->resident_blocks ? (unsigned)blocks : k->resident_blocks;
    if (want > fit)
        want = fit ? fit : 1;
    k->share = (double)want / k->resident_blocks;
    k->resident_blocks = want;
    d->share += k->share;
    op->state = SG_OP_RUNNING;
    DL_APPEND2(d->grids, op, run_prev, run_next);
    sg_workers_notify();
}

static void start_copy(struct sg_op *op)
{
    if (op->inline_run) {
        op->state = SG_OP_READY;
        atomic_fetch_add_explicit(&sg.done_count, 1, memory_order_release);
        if (sg.waiting)
            pthread_cond_broadcast(&sg.done_cv);
        return;
    }
    struct sg_device *d = &sg.devices[op->stream->context->device];
    op->state = SG_OP_RUNNING;
    DL_APPEND2(d->engine[op->engine], op, run_prev, run_next);
    sg_copiers_notify();
}

static void start_host(struct sg_op *op)
{
    struct sg_device *d = &sg.devices[op->stream->context->device];
    op->state = SG_OP_RUNNING;
    DL_APPEND2(d->host_ops, op, run_prev, run_next);
    sg_host_notify(d);
}

/* What becomes of an operation of a context that has failed. */
static void drop(struct sg_op *op)
{
    if (op->kind == SG_OP_RECORD)
        sg_mark_done(op->mark);
    if (op->kind == SG_OP_ALLOC)
        sg_span_begin(op->span);
    if (op->kind == SG_OP_FREE)
        sg_span_end(op->span);
    if (op->kind == SG_OP_HOST && op->host.callback) {
        op->host.status = op->stream->context->sticky; /* callbacks hear of errors, host functions do not run */
        start_host(op);
        return;
    }
    sg_complete(op);
}

/* As far as the operation itself decides that. */
static bool may_start(const struct sg_op *op)
{
    return op->kind == SG_OP_WAIT     ? op->mark->done || (op->mark->remote && sg_shared_event_is_done(op->mark))
           : op->kind == SG_OP_KERNEL ? sg.devices[op->stream->context->device].share <= 0.999 &&
                                            (!op->kernel.cooperative || all_blocks_fit(op))
                                      : op->kind != SG_OP_VALUE_WAIT || sg_value_ready(op);
}

/* Starts the stream's head if it may start. True if something changed. */
static bool try_head(struct sg_stream *s)
{
    struct sg_op *op = s->head;
    if (!op || op->state != SG_OP_QUEUED)
        return false;
    if (s->context->sticky) {
        drop(op);
        return true;
    }
    if (!legacy_rule_allows(op))
        return false;
    if (op->kind == SG_OP_GRAPH)
        return sg_graph_op_step(op);
    bool start = may_start(op); /* asked once: a value in memory may change at any moment */
    if (sg_check.race && start)
        sg_race_start(op);
    if (sg.config.replay && start)
        sg_replay_event(SG_REPLAY_START, op, 0);
    switch (op->kind) {
    case SG_OP_RECORD:
        sg_mark_done(op->mark);
        sg_complete(op);
        return true;
    case SG_OP_WAIT:
        if (!start && op->mark->remote)
            sg_value_poll(); /* nobody in this process will tell */
        if (!start)
            return false;
        sg_complete(op);
        return true;
    case SG_OP_ALLOC:
        sg_span_begin(op->span);
        sg_complete(op);
        return true;
    case SG_OP_FREE:
        sg_span_end(op->span);
        sg_complete(op);
        return true;
    case SG_OP_KERNEL:
        if (!start)
            return false;
        start_kernel(op);
        return true;
    case SG_OP_HOST: start_host(op); return true;
    case SG_OP_VALUE_WAIT:
    case SG_OP_VALUE_WRITE:
        if (start)
            sg_value_run(op);
        else
            sg_value_poll();
        return start;
    default: start_copy(op); return true;
    }
}

static bool pump_pass(bool urgent)
{
    bool changed = false;
    struct sg_stream *s, *next;
    for (s = sg.busy_streams; s; s = next) {
        next = s->busy_next; /* completing a head may take s off the list, but never another stream */
        if ((s->priority < 0) == urgent)
            while (try_head(s)) {
                changed = true;
                if (!sg.busy_streams || (next ? next->busy_prev != s : sg.busy_streams->busy_prev != s))
                    break; /* s has left the list */
            }
    }
    return changed;
}

void sg_pump(void)
{
    if (sg.busy_streams && sg.busy_streams->busy_next && (sg_random() & 1)) {
        struct sg_stream *first = sg.busy_streams;
        DL_DELETE2(sg.busy_streams, first, busy_prev, busy_next);
        DL_APPEND2(sg.busy_streams, first, busy_prev, busy_next);
    }
    bool changed;
    do {
        changed = pump_pass(true);
        changed |= pump_pass(false);
    } while (changed);
}

static void queue(struct sg_stream *s, struct sg_op *op)
{
    if (s->tail)
        s->tail->next = op;
    else
        DL_APPEND2(sg.busy_streams, s, busy_prev, busy_next);
    if (!s->head)
        s->head = op;
    s->tail = op;
}

void sg_submit_inside(struct sg_stream *s, struct sg_op *op, const struct sg_op *parent)
{
    op->stream = s;
    op->seq = ++sg.next_seq;
    op->ticket = ++s->submitted;
    sg_time_submit_inside(op, parent);
    if (sg_check.race)
        sg_race_submit_inside(op, parent);
    queue(s, op);
}

uint64_t sg_submit(struct sg_stream *s, struct sg_op *op)
{
    op->stream = s;
    op->seq = ++sg.next_seq;
    op->ticket = ++s->submitted;
    s->last_seq = op->seq;
    sg_time_submit(op);
    uint64_t ticket = op->ticket;
    if (sg_check.race)
        sg_race_submit(op);
    queue(s, op);
    if (s->head == op && try_head(s)) /* no other stream's head becomes ready by what is only queued */
        sg_pump();
    return ticket;
}

/* ---- waiting ---- */

struct wait {
    struct sg_stream *stream;
    uint64_t ticket;
    const void *context; /* compared only */
    int device;
    uint64_t seq;
    struct sg_mark *mark;
};

static bool is_over(const struct wait *w)
{
    if (w->stream)
        return atomic_load_explicit(&w->stream->completed, memory_order_acquire) >= w->ticket;
    if (w->mark)
        return w->mark->done;
    struct sg_stream *s;
    for (s = sg.busy_streams; s; s = s->busy_next)
        if ((w->context ? s->context == w->context : s->context->device == w->device) && s->head->seq <= w->seq)
            return false;
    return true;
}

static bool run_own_copy(const struct wait *w)
{
    struct sg_op *op = w->stream ? w->stream->head : NULL;
    if (!op || op->ticket != w->ticket || op->state != SG_OP_READY)
        return false;
    op->state = SG_OP_RUNNING;
    if (w->stream->context->sticky)
        sg_complete(op);
    else
        sg_copy_op_run(op);
    sg_pump();
    return true;
}

static void wait_for(const struct wait *w)
{
    unsigned idle = 0;
    sg.blocked_threads++;
    while (!is_over(w)) {
        if (sg.config.replay && (sg_random() >> 9 & 1) && sg_replay_step())
            continue;
        if (run_own_copy(w) || sg_work_once()) {
            idle = 0;
            continue;
        }
        if (idle++ < 2) {
            uint64_t seen = atomic_load(&sg.done_count);
            pthread_mutex_unlock(&sg.lock);
            for (int i = 0; i < SPINS && atomic_load_explicit(&sg.done_count, memory_order_relaxed) == seen; i++)
                sg_relax();
            pthread_mutex_lock(&sg.lock);
            continue;
        }
        sg.waiting++;
        pthread_cond_wait(&sg.done_cv, &sg.lock);
        sg.waiting--;
    }
    sg.blocked_threads--;
    sg_print_flush();
}

void sg_wait_ticket(struct sg_stream *stream, uint64_t ticket)
{
    stream->waiters++;
    uint64_t seq = sg.next_seq;
    struct sg_known *known = ticket == stream->submitted ? sg_order_of_stream(stream) : NULL;
    wait_for(&(struct wait){.stream = stream, .ticket = ticket});
    sg_order_learn(known, true);
    if (sg_check.race)
        sg_race_join_stream(stream);
    if (stream->vtime)
        sg_time_join(&(struct sg_goal){.stream = stream->vtime, .seq = seq});
    stream->waiters--;
    stream_reap(stream);
}

void sg_wait_context(struct sg_context *context)
{
    uint64_t id = context->object.id;
    struct sg_goal goal = {.context = context->vtime, .seq = sg.next_seq};
    if (goal.context)
        goal.context->refs++;
    struct sg_known *known = sg_order_of_context(context);
    wait_for(&(struct wait){.context = context, .seq = goal.seq});
    sg_order_learn(known, true);
    if (goal.context)
        sg_time_join(&goal);
    sg_vcontext_drop(goal.context);
    if (sg_check.race && sg_object_find(id, SG_CONTEXT)) /* another thread may have destroyed it meanwhile */
        sg_race_join_context(context);
}

void sg_wait_device(int device)
{
    struct sg_goal goal = {.device = device, .seq = sg.next_seq};
    struct sg_known *known = sg_order_of_device(device);
    wait_for(&(struct wait){.device = device, .seq = goal.seq});
    sg_order_learn(known, true);
    sg_time_join(&goal);
    if (sg_check.race)
        sg_race_join_device(device);
}

void sg_wait_mark(struct sg_mark *mark)
{
    sg_mark_ref(mark);
    struct sg_goal goal = {.mark = mark, .seq = sg.next_seq};
    wait_for(&(struct wait){.mark = mark});
    sg_order_learn_mark(mark);
    if (sg_check.race)
        sg_race_join_mark(mark);
    sg_time_join(&goal);
    sg_mark_unref(mark);
}

static CUresult wait_and_tell(struct sg_stream *stream, uint64_t context, uint64_t ticket)
{
    sg_wait_ticket(stream, ticket);
    return sg_context_tell(context);
}

CUresult sg_submit_and_wait(struct sg_stream *stream, struct sg_op *op)
{
    op->inline_run = true;
    uint64_t context = stream->context->object.id;
    return wait_and_tell(stream, context, sg_submit(stream, op));
}

CUresult sg_submit_async(struct sg_stream *stream, struct sg_op *op)
{
    uint64_t context = stream->context->object.id;
    uint64_t ticket = sg_submit(stream, op);
    if (sg.config.sync)
        return wait_and_tell(stream, context, ticket);
    if (sg.config.replay)
        sg_replay_some();
    return CUDA_SUCCESS;
}

/* ---- errors ---- */

void sg_context_fail(struct sg_context *c, CUresult error, const char *line)
{
    if (c->sticky)
        return; /* the first one counts */
    c->sticky = error;
    sg_log(SG_LOG_ERROR, "%s", line);
    if (sg_check.host)
        sg_guard_fail(c);
    struct sg_op *op;
    DL_FOREACH2(sg.devices[c->device].grids, op, run_next)
    if (op->stream->context == c && op->kernel.run)
        ptx_grid_abort(op->kernel.run);
    sg_report_write();
}

/* ---- memory in flight ---- */

static bool overlaps(uint64_t va, uint64_t bytes, uint64_t at, size_t pitch, size_t width, size_t height)
{
    uint64_t extent = height ? (height - 1) * pitch + width : 0;
    return at < va + bytes && va < at + extent;
}

static bool copy_overlaps(const struct sg_copy *c, bool dst, uint64_t va, uint64_t bytes)
{
    uint64_t at = dst ? c->dst : c->src, pitch = dst ? c->dst_pitch : c->src_pitch;
    uint64_t extent = (c->depth - 1) * (dst ? c->dst_slice : c->src_slice) + (c->height - 1) * pitch + c->width_bytes;
    return at < va + bytes && va < at + extent;
}

static bool op_names(const struct sg_op *op, uint64_t va, uint64_t bytes, unsigned mask)
{
    if (op->kind == SG_OP_KERNEL) {
        if (!(mask >> op->stream->context->device & 1))
            return false;
        for (size_t i = 0; i < op->kernel.word_count; i++)
            if (op->kernel.words[i] - va < bytes)
                return true;
        return false;
    }
    if (op->kind == SG_OP_FILL)
        return (mask >> op->fill.device & 1) &&
               overlaps(va, bytes, op->fill.dst, op->fill.pitch, op->fill.width_bytes, op->fill.height);
    if (op->kind == SG_OP_ALLOC || op->kind == SG_OP_FREE)
        return false; /* they move nothing */
    if (op->kind == SG_OP_VALUE_WAIT || op->kind == SG_OP_VALUE_WRITE)
        return (mask >> op->value.device & 1) && op->value.va - va < bytes;
    if (op->kind != SG_OP_COPY)
        return false;
    const struct sg_copy *c = &op->copy;
    bool dst = c->dst_device == SG_ON_HOST ? mask == ~0u : mask >> c->dst_device & 1;
    bool src = c->staging ? false : c->src_device == SG_ON_HOST ? mask == ~0u : mask >> c->src_device & 1;
    return (dst && copy_overlaps(c, true, va, bytes)) || (src && copy_overlaps(c, false, va, bytes));
}

bool sg_in_flight(uint64_t va, uint64_t bytes, unsigned mask, char *text, size_t text_bytes)
{
    if (!mask)
        return false;
    struct sg_stream *s;
    for (s = sg.busy_streams; s; s = s->busy_next) {
        for (struct sg_op *op = s->head; op; op = op->next) {
            if (!op_names(op, va, bytes, mask))
                continue;
            const char *what = op->kind == SG_OP_KERNEL ? op->kernel.function->info->name
                               : op->kind == SG_OP_COPY ? "a copy"
                               : op->kind == SG_OP_FILL ? "a memset"
                                                        : "a stream memory operation";
            snprintf(text, text_bytes, "used by %s%s, which is %s on device %d",
                     op->kind == SG_OP_KERNEL ? "kernel " : "", what, op->state == SG_OP_RUNNING ? "running" : "queued",
                     s->context->device);
            return true;
        }
    }
    return false;
}

bool sg_touched_in_flight(uint64_t va, uint64_t bytes, unsigned mask, char *text, size_t text_bytes)
{
    struct sg_op *op;
    for (int d = 0; d < sg.device_count; d++) {
        if (!(mask >> d & 1))
            continue;
        DL_FOREACH2(sg.devices[d].grids, op, run_next)
        {
            for (uint64_t page = va >> SG_PAGE_SHIFT; page < (va + bytes) >> SG_PAGE_SHIFT; page++) {
                if (!op->kernel.run ||
                    atomic_load_explicit(&sg.devices[d].touched[page], memory_order_relaxed) != (uint32_t)op->seq)
                    continue;
                snprintf(text, text_bytes, "touched by kernel %s, which is running on device %d",
                         op->kernel.function->info->name, d);
                return true;
            }
        }
    }
    return false;
}
