/*
 * Placing operations in virtual time.
 *
 * What has been submitted stands in one list, in the order of submission. A scan goes through it from the front and places
 * whatever is really done and cannot be displaced by anything before it that is not: for those it keeps the earliest time at
 * which they could begin, and takes it that they might use their engine for ever from then on. So the result is the same
 * as if everything had been placed strictly in the order of submission, whenever the scans happen.
 */
#include "simgpu/fabric.h"
#include "simgpu/linkfault.h"
#include "simgpu/timecall.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MOST_BLOCKERS 24
#define SCAN_EVERY 1024

struct sg_order sg_order;

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

void sg_vstream_drop(struct sg_vstream *s)
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
    sg_vstream_drop(stream->vtime);
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

/* NULL: out of host memory, and this operation takes no time. */
static struct sg_vop *vop_new(struct sg_op *op, uint64_t submit_ns)
{
    static const uint8_t lines[SG_ENGINE_COUNT] = {SG_LINE_H2D, SG_LINE_D2H, SG_LINE_D2D};
    struct sg_vstream *s = op->stream->vtime;
    struct sg_vop *v = sg_order.spare;
    if (v)
        sg_order.spare = v->next;
    else
        v = malloc(sizeof *v);
    op->vop = s ? v : NULL;
    if (!v || !s) {
        free(v);
        return NULL;
    }
    *v = (struct sg_vop){.seq = op->seq, .op = op, .stream = s, .kind = (uint8_t)op->kind, .in_graph = op->in_graph};
    s->refs++;
    v->device = v->source = (uint8_t)s->context->device;
    v->submit_ns = submit_ns;
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
    } else if (op->kind == SG_OP_GRAPH) {
        v->any_line = op->graph.action == SG_GRAPH_CONDITION;
    }
    return v;
}

static void append(struct sg_vop *v)
{
    if (sg_order.last)
        sg_order.last->next = v;
    else
        sg_order.first = v;
    sg_order.last = v;
}

void sg_time_submit(struct sg_op *op)
{
    struct sg_vop *v = vop_new(op, sg_thread_clock_ns());
    if (v)
        append(v);
}

void sg_time_submit_inside(struct sg_op *op, const struct sg_op *parent)
{
    struct sg_vop *p = parent->vop, *v = vop_new(op, p ? p->submit_ns : sg_thread_clock_ns());
    if (!v)
        return;
    struct sg_vop **at = &sg_order.first;
    while (p && *at && *at != p)
        at = &(*at)->next;
    if (!p || !*at) {
        append(v);
        return;
    }
    v->seq = p->seq;
    v->next = p;
    *at = v;
}

void sg_time_graph_mark(struct sg_op *op)
{
    if (op->vop && op->graph.mark)
        op->vop->mark = sg_mark_ref(op->graph.mark);
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
        if (named >> i & 1 && sg_node_kernel(sg.card[device], sg.card[i], in / (unsigned)count, out / (unsigned)count,
                                             op->seq, &op->vop->usage))
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
        sg_node_host(sg.card[v->device], moved->bytes[SG_H2D], moved->bytes[SG_D2H], &v->usage);
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

/* A condition whose bodies are not known yet: they may use anything. */
static void block_all(uint64_t from_ns)
{
    for (int d = 0; d < sg.device_count; d++)
        add_blocker((struct blocker){from_ns, (uint32_t)sg.config.model->sm_count, (uint8_t)d, 0xff});
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
    if (s->scan != sg_order.scan) {
        s->scan = sg_order.scan;
        s->scan_ns = 0;
        s->given_up = false;
    }
    if (c->scan != sg_order.scan) {
        c->scan = sg_order.scan;
        c->scan_legacy_ns = c->scan_blocking_ns = 0;
        c->legacy_given_up = c->blocking_given_up = false;
    }
    depend(&r, s->end_ns, s->scan_ns, s->given_up);
    if (v->kind == SG_OP_WAIT || (v->kind == SG_OP_GRAPH && v->mark))
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
    sg_order.end_ns = later(sg_order.end_ns, end_ns);
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
    else if (v->kind == SG_OP_GRAPH && v->any_line && !v->done && !s->given_up)
        block_all(r->ns);
}

static void release(struct sg_vop *v)
{
    sg_mark_unref(v->mark);
    sg_vstream_drop(v->stream);
    sg_usage_free(&v->usage);
    v->next = sg_order.spare;
    sg_order.spare = v;
}

/* Places what is certain. With front_only it stops at the first that is not done: cheap, for every completion. */
void sg_time_scan(bool front_only)
{
    sg_order.scan++;
    blockers.count = 0;
    struct sg_vop *before = NULL, *next;
    for (struct sg_vop *v = sg_order.first; v; v = next) {
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
            sg_order.first = next;
        if (sg_order.last == v)
            sg_order.last = before;
        sg_order.done_unplaced--;
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
    sg_order.done_unplaced++;
    if (sg_order.first == v)
        sg_time_scan(true);
    else if (sg_order.done_unplaced % SCAN_EVERY == 0)
        sg_time_scan(false);
}

uint64_t sg_time_total_ns(void)
{
    return later(sg_order.end_ns, sg_latest_clock_ns());
}

/* ---- the report ---- */

void sg_time_report(FILE *f)
{
    sg_time_scan(false);
    fprintf(f, "  \"virtual_time_ns\": %llu,\n  \"given_up\": %llu,\n", (unsigned long long)sg_time_total_ns(),
            (unsigned long long)sg_order.given_up);
    sg_call_report(f);
    sg_kernel_report(f);
}
