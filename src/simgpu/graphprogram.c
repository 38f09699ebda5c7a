/*
 * Programs: a graph's nodes, and those of its child graphs, as steps in a topological order, each on a lane.
 *
 * A step takes the lane of the first step that it depends on, if nothing was put behind that one, or another lane whose last step
 * it comes after anyway; else a new one.
 */
#include "simgpu/graph.h"

#include <stdlib.h>
#include <string.h>

#define ANCESTORS_MOST 4096 /* steps for which it is worth knowing who comes before whom */

struct builder {
    struct sg_program *program;
    size_t room;
    size_t *step_of; /* by the node's index: what others depend on */
    size_t node_room;
};

/* ---- steps ---- */

static CUresult add_step(struct builder *b, enum sg_graph_step_kind kind, struct sg_node *node,
                         const size_t *dependencies, size_t count)
{
    struct sg_program *p = b->program;
    if (p->count == b->room) {
        size_t room = b->room ? b->room * 2 : 32;
        struct sg_graph_step *more = realloc(p->steps, room * sizeof *more);
        if (!more)
            return CUDA_ERROR_OUT_OF_MEMORY;
        p->steps = more;
        b->room = room;
    }
    struct sg_graph_step *s = &p->steps[p->count++];
    *s = (struct sg_graph_step){.kind = kind, .node = node, .is_leaf = true};
    s->dependencies = malloc((count + 1) * sizeof *s->dependencies);
    if (!s->dependencies)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < count; i++) {
        s->dependencies[i] = dependencies[i];
        p->steps[dependencies[i]].is_leaf = false;
    }
    s->dependency_count = count;
    return CUDA_SUCCESS;
}

/* The nodes in an order in which each comes after what it depends on. INVALID_VALUE: there is a circle. */
static CUresult sort(const struct sg_graph *g, struct sg_node **order, size_t *pending, struct sg_node **bad_out)
{
    size_t begin = 0, end = 0, at = 0;
    struct sg_node *n;
    DL_FOREACH(g->nodes, n)
    {
        n->number = (unsigned)at++; /* of a shape only: the clones' numbers are kept by their graphs */
        pending[n->number] = n->dependencies.count;
        if (!n->dependencies.count)
            order[end++] = n;
    }
    while (begin < end) {
        n = order[begin++];
        for (size_t i = 0; i < n->dependents.count; i++) {
            struct sg_node *d = n->dependents.at[i].node;
            if (!--pending[d->number])
                order[end++] = d;
        }
    }
    if (end == g->count)
        return CUDA_SUCCESS;
    DL_FOREACH(g->nodes, n)
    if (pending[n->number]) {
        *bad_out = n;
        break;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

static CUresult flatten(struct builder *b, const struct sg_graph *g, const size_t *before, struct sg_node **bad_out);

/* A child graph: what its nodes without dependencies wait for, they themselves, and what waits for its last ones. */
static CUresult flatten_child(struct builder *b, struct sg_node *n, const size_t *dependencies, size_t count,
                              struct sg_node **bad_out)
{
    CUresult r = add_step(b, SG_STEP_JOIN, NULL, dependencies, count);
    size_t begin = b->program->count - 1, ends = 0;
    if (!r)
        r = flatten(b, n->graphs[0], &begin, bad_out);
    size_t *last = r ? NULL : malloc((b->program->count - begin) * sizeof *last);
    if (!last)
        return r ? r : CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = begin; i < b->program->count; i++)
        if (b->program->steps[i].is_leaf)
            last[ends++] = i;
    r = add_step(b, SG_STEP_JOIN, NULL, last, ends);
    free(last);
    return r;
}

static CUresult add_bodies(struct sg_graph_step *s, struct sg_node **bad_out)
{
    s->bodies = calloc(s->node->graph_count, sizeof *s->bodies);
    CUresult r = s->bodies ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    for (unsigned i = 0; i < s->node->graph_count && !r; i++)
        r = sg_program_make(s->node->graphs[i], &s->bodies[i], bad_out);
    return r;
}

static CUresult flatten_node(struct builder *b, struct sg_node *n, const size_t *before, struct sg_node **bad_out)
{
    size_t count = n->dependencies.count, *dependencies = malloc((count + 1) * sizeof *dependencies);
    if (!dependencies)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < count; i++)
        dependencies[i] = b->step_of[n->dependencies.at[i].node->index];
    if (!count && before)
        dependencies[count++] = *before;
    CUresult r;
    if (n->work->type == CU_GRAPH_NODE_TYPE_GRAPH) {
        r = flatten_child(b, n, dependencies, count, bad_out);
    } else {
        bool conditional = n->work->type == CU_GRAPH_NODE_TYPE_CONDITIONAL;
        r = add_step(b, conditional ? SG_STEP_CONDITION : SG_STEP_NODE, n, dependencies, count);
        if (!r && conditional)
            r = add_bodies(&b->program->steps[b->program->count - 1], bad_out);
    }
    free(dependencies);
    if (!r)
        b->step_of[n->index] = b->program->count - 1;
    return r;
}

static CUresult flatten(struct builder *b, const struct sg_graph *g, const size_t *before, struct sg_node **bad_out)
{
    struct sg_node **order = calloc(g->count + 1, sizeof(struct sg_node *));
    size_t *pending = calloc(g->count + 1, sizeof *pending);
    CUresult r = order && pending ? sort(g, order, pending, bad_out) : CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < g->count && !r; i++)
        r = flatten_node(b, order[i], before, bad_out);
    free(order);
    free(pending);
    return r;
}

/* ---- lanes ---- */

struct lanes {
    size_t *tail;        /* of each lane: its last step */
    uint64_t *ancestors; /* a row of bits per step; NULL: too many steps */
    size_t words;
};

static uint64_t *row(const struct lanes *l, size_t step)
{
    return l->ancestors + step * l->words;
}

static void note_ancestors(const struct lanes *l, const struct sg_graph_step *s, size_t i)
{
    for (size_t k = 0; l->ancestors && k < s->dependency_count; k++) {
        size_t d = s->dependencies[k];
        for (size_t w = 0; w < l->words; w++)
            row(l, i)[w] |= row(l, d)[w];
        row(l, i)[d / 64] |= UINT64_C(1) << d % 64;
    }
}

static bool fits(struct sg_lane *lane, uint64_t context)
{
    return !context || !lane->context || lane->context == context;
}

static size_t find_lane(const struct sg_program *p, const struct lanes *l, size_t i, uint64_t context)
{
    const struct sg_graph_step *s = &p->steps[i];
    for (size_t k = 0; k < s->dependency_count; k++) {
        size_t d = s->dependencies[k], lane = p->steps[d].lane;
        if (l->tail[lane] == d && fits(&p->lanes[lane], context))
            return lane;
    }
    for (size_t lane = 0; l->ancestors && lane < p->lane_count; lane++)
        if (row(l, i)[l->tail[lane] / 64] >> l->tail[lane] % 64 & 1 && fits(&p->lanes[lane], context))
            return lane;
    return p->lane_count;
}

static int priority_of(const struct sg_work *w)
{
    const struct sg_node_attributes *a = w && w->type == CU_GRAPH_NODE_TYPE_KERNEL ? w->kernel.attributes : NULL;
    int priority =
        a && a->set >> CU_LAUNCH_ATTRIBUTE_PRIORITY & 1 ? a->value[CU_LAUNCH_ATTRIBUTE_PRIORITY].priority : 0;
    return priority > 0 ? 0 : priority < -5 ? -5 : priority; /* clamped as streams' */
}

static void take_lane(struct sg_program *p, struct lanes *l, size_t i)
{
    struct sg_graph_step *s = &p->steps[i];
    const struct sg_work *w = s->node ? s->node->work : NULL;
    uint64_t context = w ? w->context : 0;
    note_ancestors(l, s, i);
    s->lane = find_lane(p, l, i, context);
    if (s->lane == p->lane_count)
        p->lanes[p->lane_count++] = (struct sg_lane){0};
    struct sg_lane *lane = &p->lanes[s->lane];
    if (context)
        lane->context = context;
    if (priority_of(w) < lane->priority)
        lane->priority = priority_of(w);
    l->tail[s->lane] = i;
    for (size_t k = 0; k < s->dependency_count; k++)
        if (p->steps[s->dependencies[k]].lane != s->lane)
            p->steps[s->dependencies[k]].is_marked = true;
}

static CUresult take_lanes(struct sg_program *p)
{
    struct lanes l = {.words = (p->count + 63) / 64, .tail = calloc(p->count + 1, sizeof *l.tail)};
    p->lanes = calloc(p->count + 1, sizeof *p->lanes); /* no more than there are steps */
    CUresult r = l.tail && p->lanes ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    if (p->count <= ANCESTORS_MOST)
        l.ancestors = calloc(p->count + 1, l.words * sizeof *l.ancestors + 8);
    for (size_t i = 0; i < p->count && !r; i++)
        take_lane(p, &l, i);
    free(l.tail);
    free(l.ancestors);
    return r;
}

/* ---- programs ---- */

static size_t nodes_below(const struct sg_graph *g)
{
    size_t most = 0;
    const struct sg_node *n;
    DL_FOREACH(g->nodes, n)
    {
        most = n->index + 1 > most ? n->index + 1 : most;
        for (unsigned i = 0; i < n->graph_count; i++) {
            size_t below = nodes_below(n->graphs[i]);
            most = below > most ? below : most;
        }
    }
    return most;
}

void sg_program_free(struct sg_program *p)
{
    for (size_t i = 0; i < p->count; i++) {
        struct sg_graph_step *s = &p->steps[i];
        for (unsigned k = 0; s->bodies && k < s->node->graph_count; k++)
            sg_program_free(&s->bodies[k]);
        free(s->bodies);
        free(s->dependencies);
    }
    for (size_t i = 0; i < p->lane_count; i++) {
        struct sg_stream *s = p->lanes[i].stream ? sg_object_find(p->lanes[i].stream, SG_STREAM) : NULL;
        if (s)
            sg_stream_retire(s);
    }
    free(p->steps);
    free(p->lanes);
    *p = (struct sg_program){0};
}

CUresult sg_program_make(const struct sg_graph *shape, struct sg_program *p, struct sg_node **bad_out)
{
    *p = (struct sg_program){0};
    struct builder b = {.program = p};
    b.step_of = calloc(nodes_below(shape) + 1, sizeof *b.step_of);
    CUresult r = b.step_of ? flatten(&b, shape, NULL, bad_out) : CUDA_ERROR_OUT_OF_MEMORY;
    if (!r)
        r = take_lanes(p);
    free(b.step_of);
    if (r)
        sg_program_free(p);
    return r;
}
