/*
 * Races: two operations that touch the same bytes, one of which writes, and that nothing orders.
 *
 * Order is kept as vector clocks. Each stream is a line, and so is the host: all its threads together, in the order of their
 * calls, since how threads hand over to each other cannot be seen. An operation's clock holds what is certainly over before it:
 * the earlier work of its stream, what the host knew to be over when it was submitted, the recordings that its stream waited for,
 * and what the legacy stream's rule adds. What is merely over by luck is not in it, so a race shows whichever comes first.
 *
 * An operation's accesses are compared when it ends with those of every operation that ended before and is not in its clock.
 * What a later one overwrites is forgotten of the earlier (whoever races with the earlier one there races with the later one,
 * too), so that long queues without any synchronisation stay cheap.
 *
 * Kernels may hand over to each other, and to the host, through memory. Such orders cannot be seen in full; what might be one is
 * taken for one, so that nothing is told of programs that are right:
 *   - two kernels with strong accesses (atomics, volatile, relaxed ...) to the same bytes, one of which writes, are ordered;
 *   - so is a kernel that reads strongly what a copy, a memset or another kernel writes;
 *   - a kernel that writes pinned host memory tells the host at any moment of its run what it has done;
 *   - a kernel that reads it strongly may hear at any moment what the host knows.
 */
#include "simgpu/check.h"
#include "simgpu/mempool.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define HOST_LINE 0
#define PAST_MOST 8192
#define PRUNE_FIRST 64

struct sg_clock { /* for each line: how many of its operations are over; shorter = zeros */
    unsigned count;
    uint64_t at[];
};

struct sg_race_line {
    unsigned number;
    struct sg_clock *clock;
};

struct sg_race_op {
    struct sg_clock *told; /* what the host knew at submission */
    struct sg_clock *clock;
    unsigned line;
    uint64_t number;
    uint64_t submitted, started; /* moments: race.moment */
    struct sg_recorder *recorder;
    struct sg_trace trace;
    _Atomic(bool) tells_host, hears_host;
    bool uses, is_flag;             /* it uses what it reads: a kernel, or a copy to the job's pageable memory */
    uint64_t pages_to, pages_bytes; /* a copy of whole pages: see doubt.c */
    uint64_t stream;
    char what[128]; /* "kernel name" */
    struct sg_race_op *prev, *next;
};

static struct {
    struct sg_clock *host;
    uint64_t *lines; /* operations of each line so far */
    unsigned line_count, *free_lines, free_count;
    struct sg_race_op *running, *past;
    size_t past_count, prune_at;
    uint64_t moment;
} race = {.prune_at = PRUNE_FIRST};

/* ---- clocks ---- */

static uint64_t clock_at(const struct sg_clock *c, unsigned line)
{
    return c && line < c->count ? c->at[line] : 0;
}

/* Out of host memory: the clock stays behind, and a race may be told that is none; nobody gets that far. */
static struct sg_clock *clock_room(struct sg_clock **c, unsigned count)
{
    unsigned had = *c ? (*c)->count : 0;
    if (had >= count && *c)
        return *c;
    struct sg_clock *more = realloc(*c, sizeof *more + count * sizeof more->at[0]);
    if (!more)
        return NULL;
    memset(more->at + had, 0, (count - had) * sizeof more->at[0]);
    more->count = count;
    return *c = more;
}

static void clock_join(struct sg_clock **to, const struct sg_clock *from)
{
    if (!from || !clock_room(to, from->count))
        return;
    for (unsigned i = 0; i < from->count; i++)
        if ((*to)->at[i] < from->at[i])
            (*to)->at[i] = from->at[i];
}

static struct sg_clock *clock_copy(const struct sg_clock *from)
{
    struct sg_clock *c = NULL;
    clock_join(&c, from);
    return c;
}

static void clock_set(struct sg_clock **c, unsigned line, uint64_t value)
{
    if (clock_room(c, line + 1))
        (*c)->at[line] = value;
}

static bool is_before(const struct sg_race_op *p, const struct sg_clock *c)
{
    return clock_at(c, p->line) >= p->number;
}

/* ---- lines ---- */

static bool line_take(unsigned *number_out)
{
    if (race.free_count) {
        *number_out = race.free_lines[--race.free_count];
        return true;
    }
    unsigned n = race.line_count ? race.line_count : HOST_LINE + 1;
    uint64_t *lines = realloc(race.lines, (n + 1) * sizeof *lines);
    if (lines)
        race.lines = lines;
    unsigned *spare = lines ? realloc(race.free_lines, (n + 1) * sizeof *spare) : NULL;
    if (!spare)
        return false;
    race.free_lines = spare;
    if (!race.line_count)
        lines[HOST_LINE] = 0;
    lines[n] = 0;
    race.line_count = n + 1;
    *number_out = n;
    return true;
}

static struct sg_race_line *line_of(struct sg_stream *s)
{
    if (s->race)
        return s->race;
    struct sg_race_line *l = calloc(1, sizeof *l);
    if (!l || !line_take(&l->number)) {
        free(l);
        return NULL;
    }
    /* A line that was another stream's goes on where that ended: its operations count as over. */
    clock_set(&l->clock, l->number, race.lines[l->number]);
    return s->race = l;
}

void sg_race_stream_gone(struct sg_stream *s)
{
    if (!s->race)
        return;
    if (s->context) /* whoever waits for the context's work waits for this, too */
        clock_join(&s->context->gone[!(s->flags & CU_STREAM_NON_BLOCKING)], s->race->clock);
    race.free_lines[race.free_count++] = s->race->number;
    free(s->race->clock);
    free(s->race);
    s->race = NULL;
}

void sg_race_context_gone(struct sg_context *c)
{
    for (int blocking = 0; blocking < 2; blocking++) {
        free(c->gone[blocking]);
        c->gone[blocking] = NULL;
    }
}

/* ---- what the host learns ---- */

static void prune(void);

static void learned(void)
{
    if (sg_check.host)
        sg_guard_release();
}

static bool stamp_is_before(const struct sg_race_stamp *s, const void *clock)
{
    return s->number && clock_at(clock, s->line) >= s->number;
}

bool sg_race_is_known(const struct sg_race_stamp *s)
{
    return stamp_is_before(s, race.host);
}

bool sg_race_may_be_known(const struct sg_race_stamp *s, bool over)
{
    const struct sg_race_op *o;
    if (sg_race_is_known(s))
        return true;
    DL_FOREACH(race.running, o)
    {
        bool tells = atomic_load_explicit(&o->tells_host, memory_order_relaxed);
        if ((tells && over) || ((o->is_flag || tells) && stamp_is_before(s, o->clock)))
            return true;
    }
    return false;
}

void sg_race_join_stream(const struct sg_stream *s)
{
    if (s->race)
        clock_join(&race.host, s->race->clock);
    learned();
}

void sg_race_join_context(const struct sg_context *c)
{
    const struct sg_stream *s;
    DL_FOREACH(c->streams, s)
    sg_race_join_stream(s);
    clock_join(&race.host, c->gone[0]);
    clock_join(&race.host, c->gone[1]);
    learned();
    if (!sg.busy_streams)
        prune();
}

void sg_race_join_device(int device)
{
    const struct sg_context *c;
    DL_FOREACH(sg.contexts, c)
    if (c->device == device)
        sg_race_join_context(c);
}

void sg_race_join_mark(const struct sg_mark *mark)
{
    clock_join(&race.host, mark->clock);
    learned();
}

/* ---- an operation's life ---- */

static void op_free(struct sg_race_op *o)
{
    sg_recorder_destroy(o->recorder);
    sg_trace_finish(&o->trace);
    free(o->told);
    free(o->clock);
    free(o);
}

void sg_race_submit(struct sg_op *op)
{
    struct sg_race_op *o = calloc(1, sizeof *o);
    if (!o)
        return;
    o->told = clock_copy(race.host);
    o->submitted = ++race.moment;
    op->race = o;
    if (sg_check.host)
        sg_guard_submit(op);
}

void sg_race_submit_inside(struct sg_op *op, const struct sg_op *parent)
{
    sg_race_submit(op);
    if (!op->race || !parent->race)
        return;
    free(op->race->told);
    op->race->told = clock_copy(parent->race->told);
}

static void describe(struct sg_race_op *o, const struct sg_op *op)
{
    o->stream = op->stream->number;
    if (op->kind == SG_OP_KERNEL) {
        o->uses = true;
        snprintf(o->what, sizeof o->what, "kernel %s", op->kernel.function->info->name);
    } else if (op->kind == SG_OP_COPY) {
        uint64_t bytes = sg_copy_bytes(&op->copy);
        bool pages = !op->copy.prefetch && !((op->copy.dst | op->copy.src | bytes) & (SG_PAGE_BYTES - 1)) &&
                     op->copy.height == 1 && op->copy.depth == 1;
        o->is_flag = bytes <= SG_FLAG_BYTES;
        o->uses = op->copy.dst_device == SG_ON_HOST && !sg_host_at(op->copy.dst);
        o->pages_to = pages ? op->copy.dst : 0;
        o->pages_bytes = pages ? bytes : 0;
        snprintf(o->what, sizeof o->what, "a copy of %" PRIu64 " bytes %s", bytes,
                 op->copy.dst_device == SG_ON_HOST   ? "to host memory"
                 : op->copy.src_device == SG_ON_HOST ? "from host memory"
                                                     : "between device memory");
    } else if (op->kind == SG_OP_VALUE_WAIT || op->kind == SG_OP_VALUE_WRITE) {
        o->uses = o->is_flag = true;
        snprintf(o->what, sizeof o->what, "%s",
                 op->kind == SG_OP_VALUE_WAIT ? "a wait for a value" : "a write of a value");
    } else if (op->kind == SG_OP_ALLOC || op->kind == SG_OP_FREE) {
        snprintf(o->what, sizeof o->what, "%s of %" PRIu64 " bytes in stream order",
                 op->kind == SG_OP_ALLOC ? "the allocation" : "the free", op->span->asked_bytes);
    } else {
        uint64_t bytes = (uint64_t)op->fill.width_bytes * op->fill.height;
        o->is_flag = bytes <= SG_FLAG_BYTES;
        snprintf(o->what, sizeof o->what, "a memset of %" PRIu64 " bytes", bytes);
    }
}

/* The legacy stream comes after what blocking streams hold, and they after what it holds. */
static void join_legacy(struct sg_race_line *l, const struct sg_stream *s)
{
    const struct sg_context *c = s->context;
    const struct sg_stream *other;
    if (s->type != SG_STREAM_LEGACY) {
        if (!(s->flags & CU_STREAM_NON_BLOCKING) && c->legacy && c->legacy->race)
            clock_join(&l->clock, c->legacy->race->clock);
        return;
    }
    DL_FOREACH(c->streams, other)
    if (other != s && !(other->flags & CU_STREAM_NON_BLOCKING) && other->race)
        clock_join(&l->clock, other->race->clock);
    clock_join(&l->clock, c->gone[1]);
}

void sg_race_start(struct sg_op *op)
{
    struct sg_race_op *o = op->race;
    struct sg_race_line *l = line_of(op->stream);
    if (!o || !l || o->started)
        return;
    clock_join(&l->clock, o->told);
    join_legacy(l, op->stream);
    o->started = ++race.moment;
    switch (op->kind) {
    case SG_OP_RECORD: op->mark->clock = clock_copy(l->clock); return;
    case SG_OP_WAIT: clock_join(&l->clock, op->mark->clock); return;
    case SG_OP_GRAPH:
        if (op->graph.mark)
            clock_join(&l->clock, op->graph.mark->clock);
        return;
    case SG_OP_HOST:
        clock_join(&race.host, l->clock);
        learned();
        return;
    default: break;
    }
    o->line = l->number;
    o->number = ++race.lines[l->number];
    clock_set(&l->clock, l->number, o->number);
    o->clock = clock_copy(l->clock);
    o->recorder = sg_recorder_create();
    describe(o, op);
    DL_APPEND(race.running, o);
    if (sg_check.host)
        sg_guard_start(op, &(struct sg_race_stamp){o->line, o->number});
}

void sg_race_access(struct sg_race_op *o, uint64_t va, unsigned bytes, unsigned how, bool on_host)
{
    if (!o->recorder)
        return;
    bool write = how & 1, strong = how & 2;
    sg_recorder_add(o->recorder,
                    strong ? (write ? SG_ACCESS_STRONG_WRITE : SG_ACCESS_STRONG_READ)
                           : (write ? SG_ACCESS_WRITE : SG_ACCESS_READ),
                    va, bytes);
    if (on_host && write && !atomic_load_explicit(&o->tells_host, memory_order_relaxed))
        atomic_store_explicit(&o->tells_host, true, memory_order_relaxed);
    if (on_host && strong && !atomic_load_explicit(&o->hears_host, memory_order_relaxed))
        atomic_store_explicit(&o->hears_host, true, memory_order_relaxed);
}

static void add_rows(struct sg_race_op *o, enum sg_access_kind kind, uint64_t at, size_t pitch, size_t width,
                     size_t height)
{
    if (height > 1 && pitch == width) {
        width *= height;
        height = 1;
    }
    for (size_t row = 0; o->recorder && row < height; row++)
        sg_recorder_add(o->recorder, kind, at + row * pitch, width);
}

static void add_layers(struct sg_race_op *o, enum sg_access_kind kind, const struct sg_copy *c)
{
    bool write = kind == SG_ACCESS_WRITE;
    for (size_t z = 0; z < c->depth; z++)
        add_rows(o, kind, write ? c->dst + z * c->dst_slice : c->src + z * c->src_slice,
                 write ? c->dst_pitch : c->src_pitch, c->width_bytes, c->height);
}

static void add_operands(struct sg_race_op *o, const struct sg_op *op)
{
    const struct sg_copy *c = &op->copy;
    if (op->kind == SG_OP_FILL)
        add_rows(o, SG_ACCESS_WRITE, op->fill.dst, op->fill.pitch, op->fill.width_bytes, op->fill.height);
    if ((op->kind == SG_OP_ALLOC || op->kind == SG_OP_FREE) &&
        o->recorder) /* nothing else may be done at the same time */
        sg_recorder_add(o->recorder, SG_ACCESS_WRITE, op->span->va, op->span->asked_bytes);
    if (op->kind == SG_OP_VALUE_WAIT || op->kind == SG_OP_VALUE_WRITE) /* strong, as is what a kernel does to a flag */
        sg_race_access(o, op->value.va, op->value.bytes, op->kind == SG_OP_VALUE_WRITE ? 3 : 2,
                       sg_host_at(op->value.va) != NULL);
    if (op->kind != SG_OP_COPY || c->prefetch) /* a prefetch is coherent with all accesses */
        return;
    add_layers(o, SG_ACCESS_WRITE, c);
    if (!c->staging)
        add_layers(o, SG_ACCESS_READ, c);
}

/* ---- orders through memory ---- */

static uint64_t meets(const struct sg_race_op *n, enum sg_access_kind kind, const struct sg_race_op *p,
                      enum sg_access_kind other)
{
    return p->recorder ? sg_recorder_meets(&n->trace, kind, p->recorder, other)
                       : sg_trace_meets(&n->trace, kind, &p->trace, other);
}

static bool may_hand_over(const struct sg_race_op *n, const struct sg_race_op *p)
{
    bool strong = n->trace.has[SG_ACCESS_STRONG_READ] || n->trace.has[SG_ACCESS_STRONG_WRITE];
    if (strong && (meets(n, SG_ACCESS_STRONG_WRITE, p, SG_ACCESS_STRONG_WRITE) ||
                   meets(n, SG_ACCESS_STRONG_WRITE, p, SG_ACCESS_STRONG_READ) ||
                   meets(n, SG_ACCESS_STRONG_READ, p, SG_ACCESS_STRONG_WRITE) ||
                   meets(n, SG_ACCESS_STRONG_READ, p, SG_ACCESS_WRITE)))
        return true;
    if (meets(n, SG_ACCESS_WRITE, p, SG_ACCESS_STRONG_READ))
        return true;
    return p->tells_host && n->submitted > p->started;
}

static void join_through_memory(struct sg_race_op *n)
{
    struct sg_race_op *p;
    DL_FOREACH(race.running, p)
    if (may_hand_over(n, p))
        clock_join(&n->clock, p->clock);
    DL_FOREACH(race.past, p)
    if (!is_before(p, n->clock) && may_hand_over(n, p))
        clock_join(&n->clock, p->clock);
    if (n->hears_host)
        clock_join(&n->clock, race.host);
}

/* ---- the comparison ---- */

static void tell(const struct sg_race_op *n, bool n_writes, const struct sg_race_op *p, bool p_writes, uint64_t at,
                 struct sg_context *context)
{
    char where[200], text[700];
    enum sg_finding_kind kind = sg_region_at(at) ? SG_FINDING_RACE : SG_FINDING_HOST_RACE;
    const struct sg_race_op *pager = !n_writes && n->pages_to ? n : !p_writes && p->pages_to ? p : NULL;
    sg_describe_memory(at, where, sizeof where);
    snprintf(text, sizeof text,
             "%s (stream %" PRIu64 ") %s and %s (stream %" PRIu64 ") %s 0x%" PRIx64 ", %s; nothing orders the two",
             n->what, n->stream, n_writes ? "writes" : "reads", p->what, p->stream, p_writes ? "writes" : "reads", at,
             where);
    if (pager)
        sg_doubt_add(kind, pager->pages_to, pager->pages_bytes, text);
    else
        sg_finding(kind, context, "%s", text);
}

static void compare(const struct sg_race_op *n, const struct sg_race_op *p, struct sg_context *context)
{
    static const struct {
        enum sg_access_kind n, p;
    } conflicts[] = {
        {SG_ACCESS_WRITE, SG_ACCESS_WRITE},       {SG_ACCESS_WRITE, SG_ACCESS_READ},
        {SG_ACCESS_READ, SG_ACCESS_WRITE},        {SG_ACCESS_WRITE, SG_ACCESS_STRONG_WRITE},
        {SG_ACCESS_READ, SG_ACCESS_STRONG_WRITE}, {SG_ACCESS_STRONG_WRITE, SG_ACCESS_WRITE},
        {SG_ACCESS_STRONG_WRITE, SG_ACCESS_READ},
    };
    for (unsigned i = 0; i < sizeof conflicts / sizeof conflicts[0]; i++) {
        bool n_strong = conflicts[i].n == SG_ACCESS_STRONG_WRITE, p_strong = conflicts[i].p == SG_ACCESS_STRONG_WRITE;
        if ((n_strong && p->is_flag) || (p_strong && n->is_flag))
            continue;
        uint64_t at = meets(n, conflicts[i].n, p, conflicts[i].p);
        if (at) {
            tell(n, conflicts[i].n != SG_ACCESS_READ, p, conflicts[i].p != SG_ACCESS_READ, at, context);
            return; /* one line for a pair */
        }
    }
}

static void forget(struct sg_race_op *p)
{
    DL_DELETE(race.past, p);
    race.past_count--;
    op_free(p);
}

/* What n overwrites, or reads again, is its own from now on. */
static void supersede(const struct sg_race_op *n)
{
    struct sg_race_op *p, *next;
    DL_FOREACH_SAFE(race.past, p, next)
    {
        if (!is_before(p, n->clock))
            continue;
        for (int k = 0; k < SG_ACCESS_KINDS; k++)
            sg_trace_subtract(&p->trace, (enum sg_access_kind)k, &n->trace, SG_ACCESS_WRITE);
        sg_trace_subtract(&p->trace, SG_ACCESS_READ, &n->trace, SG_ACCESS_READ);
        sg_trace_subtract(&p->trace, SG_ACCESS_STRONG_READ, &n->trace, SG_ACCESS_STRONG_READ);
        sg_trace_subtract(&p->trace, SG_ACCESS_STRONG_WRITE, &n->trace, SG_ACCESS_STRONG_WRITE);
        if (sg_trace_compact(&p->trace))
            forget(p);
    }
}

/* Whatever is submitted from now on comes after what the host knows: only what is queued can still race with that. */
static bool may_matter(const struct sg_race_op *p)
{
    if (!is_before(p, race.host))
        return true;
    const struct sg_race_op *o;
    DL_FOREACH(race.running, o)
    if (!is_before(p, o->clock))
        return true;
    for (const struct sg_stream *s = sg.busy_streams; s; s = s->busy_next)
        for (const struct sg_op *op = s->head; op; op = op->next)
            if (op->race && !op->race->started && !is_before(p, op->race->told))
                return true;
    return false;
}

static void prune(void)
{
    struct sg_race_op *p, *next;
    DL_FOREACH_SAFE(race.past, p, next)
    if (!may_matter(p))
        forget(p);
    while (race.past_count > PAST_MOST)
        forget(race.past);
    race.prune_at = race.past_count * 2 > PRUNE_FIRST ? race.past_count * 2 : PRUNE_FIRST;
}

/* Compares a finished trace with the past and adds it there; takes o over. */
static void settle(struct sg_race_op *o, struct sg_context *context, struct sg_clock **line_clock)
{
    struct sg_race_op *p;
    join_through_memory(o);
    clock_join(line_clock, o->clock);
    sg_doubt_settle(&o->trace, o->uses, o->what, context);
    DL_FOREACH(race.past, p)
    if (!is_before(p, o->clock) && !is_before(o, p->clock)) /* the latter: it heard of o through memory */
        compare(o, p, context);
    supersede(o);
    if (o->tells_host) {
        clock_join(&race.host, o->clock);
        learned();
    }
    if (sg_check.host && o->is_flag) /* the host may look for it in memory */
        sg_guard_tell(stamp_is_before, o->clock);
    DL_APPEND(race.past, o);
    if (++race.past_count >= race.prune_at)
        prune();
}

void sg_race_end(struct sg_op *op, bool done)
{
    struct sg_race_op *o = op->race;
    if (op->kind == SG_OP_HOST && op->stream->race) {
        clock_join(&race.host, op->stream->race->clock);
        learned();
    }
    if (sg_check.host)
        sg_guard_end(op, done);
    if (!o || !o->number)
        return;
    DL_DELETE(race.running, o);
    op->race = NULL;
    if (done)
        add_operands(o, op);
    struct sg_recorder *recorder = o->recorder;
    o->recorder = NULL;
    bool ok = done && recorder && sg_recorder_finish(recorder, &o->trace);
    sg_recorder_destroy(recorder);
    if (!ok) {
        op_free(o);
        return;
    }
    settle(o, op->stream->context, &op->stream->race->clock);
}

void sg_race_drop(struct sg_op *op)
{
    if (sg_check.host)
        sg_guard_end(op, false);
    if (op->race)
        op_free(op->race);
    op->race = NULL;
}

void sg_race_host_read(const struct sg_copy *c, const char *what)
{
    struct sg_race_op *o = calloc(1, sizeof *o);
    struct sg_recorder *recorder = sg_recorder_create();
    if (!o || !recorder || (!race.line_count && !line_take(&o->line))) {
        free(o);
        sg_recorder_destroy(recorder);
        return;
    }
    if (o->line) /* taken to make the table; the host has the first line */
        race.free_lines[race.free_count++] = o->line;
    o->line = HOST_LINE;
    o->number = ++race.lines[HOST_LINE];
    clock_set(&race.host, HOST_LINE, o->number);
    o->clock = clock_copy(race.host);
    o->submitted = o->started = ++race.moment;
    snprintf(o->what, sizeof o->what, "%s", what);
    o->recorder = recorder;
    add_layers(o, SG_ACCESS_READ, c);
    o->recorder = NULL;
    bool ok = sg_recorder_finish(recorder, &o->trace);
    sg_recorder_destroy(recorder);
    if (ok)
        settle(o, NULL, &race.host);
    else
        op_free(o);
}

void sg_race_forget(uint64_t va, uint64_t bytes)
{
    sg_doubt_forget(va, bytes);
    struct sg_race_op *p, *next;
    DL_FOREACH_SAFE(race.past, p, next)
    {
        sg_trace_forget(&p->trace, va, bytes);
        if (sg_trace_compact(&p->trace))
            forget(p);
    }
}
