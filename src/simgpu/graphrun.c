/*
 * Launches of executable graphs: programs become operations on their lanes.
 *
 * All that a launch submits is made first, so that one that fails has done nothing. The stream of the launch holds its beginning
 * and its end; between them it waits for the marks of the program's last steps. A conditional node's operation stays at the head
 * of its lane while its bodies run on lanes of their own; it looks at the condition once what comes before it is over.
 */
#include "simgpu/check.h"
#include "simgpu/graph.h"
#include "simgpu/order.h"
#include "simgpu/timecall.h"

#include <stdlib.h>
#include <string.h>

/* ---- plans ---- */

struct planned {
    struct sg_stream *stream;
    struct sg_op *op;
    struct sg_event *event; /* that it records; NULL: none */
};

struct plan {
    struct planned *at;
    size_t count, room, work;
    struct sg_run *run;
    struct sg_stream *stream; /* of the launch; of a body: its first lane's */
    struct sg_mark *begin;    /* not owned: what the first steps wait for */
    struct sg_mark **marks;   /* of the steps; owned */
};

static CUresult put(struct plan *p, struct sg_stream *s, struct sg_op *op)
{
    if (op && p->count == p->room) {
        size_t room = p->room ? p->room * 2 : 32;
        struct planned *more = realloc(p->at, room * sizeof *more);
        if (!more) {
            sg_op_free(op);
            op = NULL;
        } else {
            p->at = more;
            p->room = room;
        }
    }
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    op->in_graph = true;
    p->at[p->count++] = (struct planned){s, op, NULL};
    return CUDA_SUCCESS;
}

static CUresult put_mark(struct plan *p, struct sg_stream *s, enum sg_op_kind kind, struct sg_mark *mark)
{
    struct sg_op *op = mark ? sg_op_new(kind) : NULL;
    if (op)
        op->mark = sg_mark_ref(mark);
    return put(p, s, op);
}

/* Just before it is submitted: events are recorded only by launches that succeed, and who comes after whom counts for
 * stream-ordered memory, too. */
static void settle(const struct planned *p)
{
    if (p->event)
        sg_event_recorded(p->event, p->op->mark);
    if (p->op->kind == SG_OP_RECORD)
        sg_order_recorded(p->op->mark, p->stream);
    else if (p->op->kind == SG_OP_WAIT)
        sg_order_waits(p->stream, p->op->mark);
}

static struct sg_op *graph_op(enum sg_graph_action action, struct sg_run *run, struct sg_graph_memory *memory)
{
    struct sg_op *op = sg_op_new(SG_OP_GRAPH);
    if (!op)
        return NULL;
    op->graph = (struct sg_graph_op){.action = action, .run = run};
    if (run)
        run->refs++;
    if (memory) {
        op->graph.memory = sg_graph_memory_ref(memory);
        memory->in_flight++;
    }
    return op;
}

static void plan_drop(struct plan *p)
{
    for (size_t i = 0; i < p->count; i++)
        sg_op_free(p->at[i].op);
    p->count = 0;
}

static void plan_finish(struct plan *p, size_t steps)
{
    for (size_t i = 0; p->marks && i < steps; i++)
        sg_mark_unref(p->marks[i]);
    free(p->marks);
    free(p->at);
}

/* ---- lanes ---- */

static CUresult lane_stream(struct sg_lane *lane, const struct sg_run *run, struct sg_stream **stream_out)
{
    struct sg_stream *s = lane->stream ? sg_object_find(lane->stream, SG_STREAM) : NULL;
    struct sg_context *c = sg_object_find(lane->context ? lane->context : run->context, SG_CONTEXT);
    if (!c || !c->active || c->finalizing)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (!s) {
        s = sg_stream_create(c, SG_STREAM_GRAPH, CU_STREAM_NON_BLOCKING, 0);
        if (!s)
            return CUDA_ERROR_OUT_OF_MEMORY;
        lane->stream = s->object.id;
    }
    s->priority = run->exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY ? lane->priority : run->priority;
    *stream_out = s;
    return s->context->sticky;
}

/* ---- steps ---- */

/* The latest recording of an event as it will be when the plan has got here. A reference, as of sg_event_latest. */
static struct sg_mark *planned_mark(const struct plan *p, struct sg_event *e, CUresult *result_out)
{
    for (size_t i = p->count; i-- > 0;) {
        if (p->at[i].event != e)
            continue;
        *result_out = CUDA_SUCCESS;
        return sg_mark_ref(p->at[i].op->mark);
    }
    return sg_event_latest(e, result_out);
}

static CUresult put_event(struct plan *p, struct sg_stream *s, const struct sg_work *w)
{
    struct sg_event *e = sg_object_find(w->event, SG_EVENT);
    if (!e)
        return CUDA_ERROR_INVALID_HANDLE;
    if (w->type == CU_GRAPH_NODE_TYPE_WAIT_EVENT) {
        CUresult r;
        struct sg_mark *mark = planned_mark(p, e, &r);
        if (mark) /* else it was never recorded: nothing to wait for */
            r = put_mark(p, s, SG_OP_WAIT, mark);
        sg_mark_unref(mark);
        return r;
    }
    struct sg_mark *mark = sg_mark_new(e->context);
    CUresult r = put_mark(p, s, SG_OP_RECORD, mark);
    if (!r)
        p->at[p->count - 1].event = e;
    sg_mark_unref(mark);
    return r;
}

static CUresult put_condition(struct plan *p, struct sg_stream *s, const struct sg_graph_step *step)
{
    struct sg_mark *go = sg_mark_new(s->context);
    CUresult r = put_mark(p, s, SG_OP_RECORD, go);
    struct sg_op *op = r ? NULL : graph_op(SG_GRAPH_CONDITION, p->run, NULL);
    if (op) {
        op->graph.step = step;
        op->graph.mark = sg_mark_ref(go);
    }
    sg_mark_unref(go);
    p->work++;
    return r ? r : put(p, s, op);
}

static CUresult put_work(struct plan *p, struct sg_stream *s, const struct sg_graph_step *step)
{
    const struct sg_node *n = step->node;
    const struct sg_work *w = !n ? NULL : p->run->works ? p->run->works[n->index] : n->disabled ? NULL : n->work;
    if (!w)
        return CUDA_SUCCESS;
    if (step->kind == SG_STEP_CONDITION)
        return put_condition(p, s, step);
    if (w->type == CU_GRAPH_NODE_TYPE_WAIT_EVENT || w->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD)
        return put_event(p, s, w);
    if (sg_work_is_memory(w))
        return put(p, s,
                   graph_op(w->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ? SG_GRAPH_ALLOC : SG_GRAPH_FREE, NULL, w->memory));
    CUresult r = CUDA_SUCCESS;
    for (unsigned i = 0; i < sg_work_parts(w) && !r; i++) {
        struct sg_op *op;
        r = sg_work_op(w, i, &op);
        if (!r && op) {
            p->work++;
            r = put(p, s, op);
        }
    }
    return r;
}

static CUresult put_step(struct plan *p, const struct sg_program *program, size_t i, struct sg_stream **streams)
{
    const struct sg_graph_step *step = &program->steps[i];
    struct sg_stream *s = streams[step->lane];
    CUresult r = step->dependency_count ? CUDA_SUCCESS : put_mark(p, s, SG_OP_WAIT, p->begin);
    for (size_t k = 0; k < step->dependency_count && !r; k++) {
        size_t d = step->dependencies[k];
        if (program->steps[d].lane != step->lane)
            r = put_mark(p, s, SG_OP_WAIT, p->marks[d]);
    }
    if (!r)
        r = put_work(p, s, step);
    if (r || !(step->is_marked || step->is_leaf))
        return r;
    p->marks[i] = sg_mark_new(s->context);
    return put_mark(p, s, SG_OP_RECORD, p->marks[i]);
}

/* The steps, and behind them what makes the plan's stream wait for the last of them. */
static CUresult put_program(struct plan *p, const struct sg_program *program)
{
    struct sg_stream **streams = calloc(program->lane_count + 1, sizeof(struct sg_stream *));
    p->marks = calloc(program->count + 1, sizeof(struct sg_mark *));
    CUresult r = streams && p->marks ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < program->lane_count && !r; i++)
        r = lane_stream(&program->lanes[i], p->run, &streams[i]);
    if (!r && !p->stream)
        p->stream = streams[0];
    for (size_t i = 0; i < program->count && !r; i++)
        r = put_step(p, program, i, streams);
    for (size_t i = 0; i < program->count && !r; i++)
        if (program->steps[i].is_leaf)
            r = put_mark(p, p->stream, SG_OP_WAIT, p->marks[i]);
    free(streams);
    return r;
}

/* ---- what must hold before a launch ---- */

static CUresult check_nodes(const struct sg_exec *e)
{
    CUresult r = CUDA_SUCCESS;
    for (size_t i = 0; i < e->node_count && !r; i++)
        if (!e->nodes[i]->disabled)
            r = sg_work_still_placed(e->nodes[i]->work);
    return r;
}

/* In the order of the launch: what is allocated must be free, and what is freed must be allocated. */
static CUresult check_memory(const struct sg_exec *e)
{
    bool auto_free = e->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    CUresult r = CUDA_SUCCESS;
    for (size_t i = 0; i < e->node_count; i++) {
        const struct sg_work *w = e->nodes[i]->work;
        if (sg_work_is_memory(w))
            w->memory->planned = w->memory->allocated;
    }
    for (size_t i = 0; i < e->program.count && !r; i++) {
        const struct sg_work *w = e->program.steps[i].node ? e->program.steps[i].node->work : NULL;
        if (!w || !sg_work_is_memory(w))
            continue;
        bool alloc = w->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC;
        if (alloc ? w->memory->planned && !auto_free : !w->memory->planned)
            return CUDA_ERROR_INVALID_VALUE;
        w->memory->planned = alloc;
        r = alloc ? sg_graph_memory_back(w->memory) : CUDA_SUCCESS;
    }
    return r;
}

static void note_memory(const struct sg_exec *e)
{
    for (size_t i = 0; i < e->program.count; i++) {
        const struct sg_work *w = e->program.steps[i].node ? e->program.steps[i].node->work : NULL;
        if (w && sg_work_is_memory(w))
            sg_graph_memory_note(w->memory, w->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    }
}

static CUresult put_auto_free(struct plan *p, const struct sg_exec *e)
{
    CUresult r = CUDA_SUCCESS;
    for (size_t i = 0; i < e->node_count && !r; i++) {
        const struct sg_work *w = e->nodes[i]->work;
        if (w->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && w->memory->allocated)
            r = put(p, p->stream, graph_op(SG_GRAPH_FREE, NULL, w->memory));
    }
    return r;
}

/* ---- launches ---- */

static void run_unref(struct sg_run *run)
{
    if (!run || --run->refs)
        return;
    for (size_t i = 0; run->works && i < run->exec->node_count; i++)
        sg_work_unref(run->works[i]);
    free(run->works);
    sg_exec_unref(run->exec);
    free(run);
}

static struct sg_run *run_new(struct sg_exec *e, const struct sg_stream *s)
{
    struct sg_run *run = calloc(1, sizeof *run);
    if (!run)
        return NULL;
    if (e->condition_count) {
        run->works = calloc(e->node_count + 1, sizeof(struct sg_work *));
        if (!run->works) {
            free(run);
            return NULL;
        }
        for (size_t i = 0; i < e->node_count; i++)
            run->works[i] = e->nodes[i]->disabled ? NULL : sg_work_ref(e->nodes[i]->work);
    }
    run->refs = 1;
    run->exec = e;
    run->submit_ns = sg_thread_clock_ns();
    run->priority = s->priority;
    run->context = s->context->object.id;
    e->refs++;
    return run;
}

static CUresult put_launch(struct plan *p, struct sg_exec *e, struct sg_mark *begin, struct sg_mark *end)
{
    CUresult r = e->last ? put_mark(p, p->stream, SG_OP_WAIT, e->last) : CUDA_SUCCESS;
    p->begin = begin;
    if (!r)
        r = put_auto_free(p, e);
    if (!r)
        r = put(p, p->stream, graph_op(SG_GRAPH_BEGIN, p->run, NULL));
    if (!r)
        r = put_mark(p, p->stream, SG_OP_RECORD, begin);
    if (!r)
        r = put_program(p, &e->program);
    if (!r)
        r = put(p, p->stream, graph_op(SG_GRAPH_END, p->run, NULL));
    return r ? r : put_mark(p, p->stream, SG_OP_RECORD, end);
}

/* With SIMGPU_SYNC, too, nobody waits for a graph that waits for a value: the caller itself may be who writes it. */
static bool may_wait(const struct sg_exec *e)
{
    for (size_t i = 0; i < e->node_count; i++)
        if (e->nodes[i]->work->type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP)
            return true;
    return false;
}

CUresult sg_exec_launch(struct sg_exec *e, struct sg_stream *s)
{
    CUresult r = check_nodes(e);
    if (!r)
        r = check_memory(e);
    if (r)
        return r;
    struct plan p = {.run = run_new(e, s), .stream = s};
    struct sg_mark *begin = sg_mark_new(s->context), *end = sg_mark_new(s->context);
    r = p.run && begin && end ? put_launch(&p, e, begin, end) : CUDA_ERROR_OUT_OF_MEMORY;
    size_t steps = e->program.count;
    if (r) {
        plan_drop(&p);
        sg_mark_unref(end);
    } else {
        sg_time_units(SG_UNIT_GRAPH_NODE, (double)e->node_count);
        note_memory(e);
        sg_mark_unref(e->last);
        e->last = end;
        for (size_t i = 0; i + 1 < p.count; i++) {
            settle(&p.at[i]);
            sg_submit(p.at[i].stream, p.at[i].op);
        }
        settle(&p.at[p.count - 1]);
        if (may_wait(e))
            sg_submit(s, p.at[p.count - 1].op);
        else
            r = sg_submit_async(s, p.at[p.count - 1].op);
    }
    sg_mark_unref(begin);
    run_unref(p.run);
    plan_finish(&p, steps);
    return r;
}

CUresult sg_graph_memory_free_in(struct sg_graph_memory *m, struct sg_stream *s)
{
    if (m->freed_by || !m->allocated)
        return CUDA_ERROR_INVALID_VALUE;
    struct sg_op *op = graph_op(SG_GRAPH_FREE, NULL, m);
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    sg_graph_memory_note(m, false);
    return sg_submit_async(s, op);
}

CUresult sg_exec_upload(struct sg_exec *e, struct sg_stream *s)
{
    CUresult r = CUDA_SUCCESS;
    for (size_t i = 0; i < e->node_count && !r; i++)
        if (e->nodes[i]->work->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
            r = sg_graph_memory_back(e->nodes[i]->work->memory);
    if (r)
        return r;
    struct plan p = {.stream = s};
    struct sg_mark *end = sg_mark_new(s->context);
    r = e->last ? put_mark(&p, s, SG_OP_WAIT, e->last) : CUDA_SUCCESS;
    if (!r)
        r = put_mark(&p, s, SG_OP_RECORD, end);
    if (r) {
        plan_drop(&p);
        sg_mark_unref(end);
    } else {
        sg_mark_unref(e->last);
        e->last = end;
        for (size_t i = 0; i + 1 < p.count; i++) {
            settle(&p.at[i]);
            sg_submit(s, p.at[i].op);
        }
        settle(&p.at[p.count - 1]);
        r = sg_submit_async(s, p.at[p.count - 1].op);
    }
    plan_finish(&p, 0);
    return r;
}

/* ---- conditional nodes ---- */

static bool is_while(const struct sg_op *op)
{
    return op->graph.step->node->work->conditional.type == CU_GRAPH_COND_TYPE_WHILE;
}

/* The body that runs now; NULL: none, any more. */
static const struct sg_program *next_body(const struct sg_op *op)
{
    const struct sg_graph_op *g = &op->graph;
    const struct sg_work *w = g->run->works[g->step->node->index];
    uint32_t value = sg_condition_value(w->conditional.condition);
    unsigned bodies = g->step->node->graph_count;
    if (g->rounds && w->conditional.type != CU_GRAPH_COND_TYPE_WHILE)
        return NULL;
    switch ((int)w->conditional.type) {
    case CU_GRAPH_COND_TYPE_IF: return value ? &g->step->bodies[0] : bodies > 1 ? &g->step->bodies[1] : NULL;
    case CU_GRAPH_COND_TYPE_WHILE: return value ? &g->step->bodies[0] : NULL;
    default: return value < bodies ? &g->step->bodies[value] : NULL;
    }
}

/* Queues a body. False: there is nothing in it that takes time. */
static bool submit_body(struct sg_op *op, const struct sg_program *body, CUresult *result_out)
{
    struct sg_graph_op *g = &op->graph;
    struct plan p = {.run = g->run, .begin = g->mark};
    *result_out = CUDA_SUCCESS;
    if (!body->count)
        return false;
    struct sg_mark *end = sg_mark_new(op->stream->context);
    CUresult r = end ? put_program(&p, body) : CUDA_ERROR_OUT_OF_MEMORY;
    if (!r)
        r = put_mark(&p, p.stream, SG_OP_RECORD, end);
    bool is_work = p.work > 0;
    if (r || !is_work) {
        plan_drop(&p);
        sg_mark_unref(end);
    } else {
        for (size_t i = 0; i < p.count; i++) {
            settle(&p.at[i]);
            sg_submit_inside(p.at[i].stream, p.at[i].op, op);
        }
        sg_mark_unref(g->mark);
        g->mark = end;
        g->rounds++;
    }
    plan_finish(&p, body->count);
    *result_out = r;
    return is_work && !r;
}

static void finish(struct sg_op *op)
{
    if (sg_check.race)
        sg_race_start(op);
    if (sg.config.replay)
        sg_replay_event(SG_REPLAY_START, op, 0);
    sg_time_graph_mark(op);
    sg_complete(op);
}

static bool condition_step(struct sg_op *op)
{
    CUresult r;
    if (!op->graph.mark->done)
        return false;
    const struct sg_program *body = next_body(op);
    if (body && submit_body(op, body, &r))
        return true;
    if (body && !r && is_while(op))
        return false; /* it goes round for ever and does nothing, as long as nobody else ends that */
    if (body && r)
        sg_context_fail(op->stream->context, r, "the body of a conditional node cannot be carried out");
    finish(op);
    return true;
}

bool sg_graph_op_step(struct sg_op *op)
{
    const struct sg_graph_op *g = &op->graph;
    switch (g->action) {
    case SG_GRAPH_CONDITION: return condition_step(op);
    case SG_GRAPH_BEGIN:
        for (unsigned i = 0; i < g->run->exec->condition_count; i++)
            sg_condition_reset(g->run->exec->conditions[i]);
        break;
    case SG_GRAPH_ALLOC: sg_graph_memory_map(g->memory); break;
    case SG_GRAPH_FREE: sg_graph_memory_unmap(g->memory); break;
    default: break;
    }
    finish(op);
    return true;
}

void sg_graph_op_free(struct sg_op *op)
{
    sg_mark_unref(op->graph.mark);
    if (op->graph.memory) {
        op->graph.memory->in_flight--;
        sg_graph_memory_unref(op->graph.memory);
    }
    run_unref(op->graph.run);
}
