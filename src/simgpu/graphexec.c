/* Executable graphs: made from graphs, launched, uploaded, destroyed. */
#include "simgpu/capture.h"
#include "simgpu/check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Which came with which driver. */
static unsigned long long known_flags(void)
{
    unsigned long long flags = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;
    if (sg_driver_version >= 11070)
        flags |= CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
    if (sg_driver_version >= 12000)
        flags |= CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD | CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH;
    return flags;
}

CUresult sg_enter_exec(const char *api, CUgraphExec handle, struct sg_exec **exec_out)
{
    CUresult r = sg_enter(api);
    if (r)
        return r;
    *exec_out = SG_FIND(handle, SG_EXEC);
    return *exec_out ? CUDA_SUCCESS : sg_leave(CUDA_ERROR_INVALID_VALUE);
}

void sg_exec_unref(struct sg_exec *e)
{
    if (!e)
        return;
    if (--e->refs) {
        if (e->refs == 1 && e->old_users) {
            sg_users_free(e->old_users);
            e->old_users = NULL;
        }
        return;
    }
    sg_program_free(&e->program);
    sg_graph_destroy(e->shape);
    free(e->nodes);
    for (unsigned i = 0; i < e->condition_count; i++)
        sg_condition_unref(e->conditions[i]);
    free(e->conditions);
    sg_users_free(e->users);
    sg_users_free(e->old_users);
    sg_mark_unref(e->last);
    free(e);
}

CUresult sg_exec_take_users(struct sg_exec *e, const struct sg_graph *g)
{
    struct sg_user_ref *users = NULL, *last;
    CUresult r = sg_users_copy_all(g, &users);
    if (r) {
        sg_users_free(users);
        return r;
    }
    if (e->refs > 1) { /* launches in flight may use what the old ones keep */
        LL_FOREACH(e->users, last)
        if (!last->next)
            break;
        if (last) {
            last->next = e->old_users;
            e->old_users = e->users;
        }
    } else {
        sg_users_free(e->users);
    }
    e->users = users;
    return CUDA_SUCCESS;
}

/* ---- making ---- */

struct making {
    struct sg_exec *exec;
    struct sg_node *bad; /* of the shape */
    CUgraphInstantiateResult result;
    const char *why;
};

static size_t count_nodes(const struct sg_graph *g)
{
    size_t count = g->count;
    const struct sg_node *n;
    DL_FOREACH(g->nodes, n)
    for (unsigned i = 0; i < n->graph_count; i++)
        count += count_nodes(n->graphs[i]);
    return count;
}

static CUresult keep_condition(struct sg_exec *e, struct sg_condition *c)
{
    struct sg_condition **more = realloc(e->conditions, (e->condition_count + 1) * sizeof(struct sg_condition *));
    if (!more)
        return CUDA_ERROR_OUT_OF_MEMORY;
    e->conditions = more;
    e->conditions[e->condition_count++] = sg_condition_ref(c);
    return CUDA_SUCCESS;
}

/* Numbers the nodes of the shape, and places what copies and sets memory. */
static CUresult take_nodes(struct making *m, struct sg_graph *g)
{
    struct sg_node *n;
    CUresult r = CUDA_SUCCESS;
    DL_FOREACH(g->nodes, n)
    {
        n->index = m->exec->node_count;
        m->exec->nodes[m->exec->node_count++] = n;
        if (n->work->type == CU_GRAPH_NODE_TYPE_MEMCPY || n->work->type == CU_GRAPH_NODE_TYPE_MEMSET) {
            struct sg_work *placed;
            r = sg_work_place(n->work, &placed);
            if (!r)
                sg_node_set_work(n, placed);
        } else if (n->work->type == CU_GRAPH_NODE_TYPE_CONDITIONAL) {
            r = keep_condition(m->exec, n->work->conditional.condition);
        } else if (n->work->type == CU_GRAPH_NODE_TYPE_KERNEL &&
                   !sg_object_find(n->work->kernel.launched, SG_FUNCTION)) {
            r = CUDA_ERROR_INVALID_VALUE; /* its module is unloaded */
        }
        for (unsigned i = 0; i < n->graph_count && !r; i++)
            r = take_nodes(m, n->graphs[i]);
        if (r) {
            m->bad = m->bad ? m->bad : n;
            m->why = "a node's memory, kernel or context is not there";
            return r;
        }
    }
    return r;
}

static CUresult check_graph(const struct sg_graph *g, unsigned long long flags, struct making *m)
{
    bool single = sg_graph_has_memory(g) || sg_graph_has(g, CU_GRAPH_NODE_TYPE_CONDITIONAL);
    if (flags & ~known_flags() || (flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH &&
                                   flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH)) {
        m->why = "flags that are unknown or exclude each other";
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) {
        m->why = "launches from the device are not supported";
        return sg_unsupported_inside("a graph that is launched from the device");
    }
    if (sg_graph_is_captured(g) || (g->owner && (g->is_body || g->moved))) {
        m->why = "the graph is being captured into, or part of another";
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (single && g->exec && sg_object_find(g->exec, SG_EXEC)) {
        m->why = "a graph with memory or conditional nodes has one executable graph at a time";
        return CUDA_ERROR_INVALID_VALUE;
    }
    for (unsigned i = 0; i < g->condition_count; i++) {
        if (g->conditions[i]->used)
            continue;
        m->result = CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED;
        m->why = "a conditional handle has no node";
        return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

static CUresult make(struct sg_graph *g, unsigned long long flags, struct making *m)
{
    m->result = CUDA_GRAPH_INSTANTIATE_ERROR;
    m->why = "out of host memory";
    CUresult r = check_graph(g, flags, m);
    if (r)
        return r;
    struct sg_exec *e = m->exec = calloc(1, sizeof *e);
    if (!e)
        return CUDA_ERROR_OUT_OF_MEMORY;
    e->refs = 1;
    e->graph = g->object.id;
    e->flags = flags & ~(unsigned long long)CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
    e->nodes = calloc(count_nodes(g) + 1, sizeof(struct sg_node *));
    r = e->nodes ? sg_graph_copy(g, false, &e->shape) : CUDA_ERROR_OUT_OF_MEMORY;
    if (!r)
        r = sg_users_copy_all(g, &e->users);
    if (!r)
        r = take_nodes(m, e->shape);
    if (!r) {
        r = sg_program_make(e->shape, &e->program, &m->bad);
        if (m->bad && r) {
            m->result = CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE;
            m->why = "the nodes depend on each other in a circle";
        }
    }
    if (r)
        return r;
    sg_object_add(&e->object, SG_EXEC);
    g->exec = e->object.id;
    sg_time_units(SG_UNIT_GRAPH_NODE_MADE, (double)e->node_count);
    m->result = CUDA_GRAPH_INSTANTIATE_SUCCESS;
    return CUDA_SUCCESS;
}

/* Ends a making that failed; the job's handle of the node that is to blame. */
static CUgraphNode give_up(struct making *m)
{
    CUgraphNode bad = m->bad ? (CUgraphNode)(uintptr_t)m->bad->origin : NULL;
    sg_exec_unref(m->exec);
    return bad;
}

static CUresult instantiate(const char *api, CUgraphExec *out, CUgraph graph, unsigned long long flags,
                            CUgraphNode *bad_out, char *log, size_t log_bytes)
{
    struct sg_graph *g;
    struct making m = {0};
    CUresult r = sg_enter_graph(api, graph, &g);
    if (r)
        return r;
    if (!out || flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (bad_out)
        *bad_out = NULL;
    if (log && log_bytes)
        *log = '\0';
    r = make(g, flags, &m);
    if (!r) {
        *out = SG_HANDLE(CUgraphExec, m.exec);
        return sg_leave(CUDA_SUCCESS);
    }
    CUgraphNode bad = give_up(&m);
    if (bad_out)
        *bad_out = bad;
    if (log && log_bytes)
        snprintf(log, log_bytes, "%s", m.why);
    return sg_leave(r);
}

CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *bad, char *log, size_t log_bytes)
{
    return instantiate("cuGraphInstantiate", exec, graph, 0, bad, log, log_bytes);
}

CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *bad, char *log, size_t log_bytes)
{
    return instantiate("cuGraphInstantiate", exec, graph, 0, bad, log, log_bytes);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    return instantiate("cuGraphInstantiateWithFlags", exec, graph, flags, NULL, NULL, 0);
}

static CUresult upload(struct sg_exec *e, struct sg_stream *s)
{
    return s->captured ? sg_capture_refuse(s) : sg_exec_upload(e, s);
}

static CUresult with_params(CUgraphExec *out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *p, bool per_thread)
{
    struct sg_graph *g;
    struct sg_stream *s = NULL;
    struct making m = {0};
    const char *api = "cuGraphInstantiateWithParams";
    CUresult r = p && p->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD
                     ? sg_enter_work(api, p->hUploadStream, per_thread, &s)
                     : sg_enter(api);
    if (r)
        return r;
    if (!p || !out)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    g = SG_FIND(graph, SG_GRAPH);
    p->hErrNode_out = NULL;
    p->result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
    r = g ? make(g, p->flags, &m) : CUDA_ERROR_INVALID_VALUE;
    if (!r && s)
        r = upload(m.exec, s);
    if (r) {
        if (m.exec && m.exec->object.id)
            sg_object_remove(&m.exec->object);
        p->hErrNode_out = g ? give_up(&m) : NULL;
        p->result_out = g && m.result ? m.result : CUDA_GRAPH_INSTANTIATE_ERROR;
        if (p->result_out == CUDA_GRAPH_INSTANTIATE_ERROR)
            p->hErrNode_out = NULL;
        return sg_leave(r);
    }
    p->result_out = m.result;
    *out = SG_HANDLE(CUgraphExec, m.exec);
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    return with_params(exec, graph, params, false);
}

CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    return with_params(exec, graph, params, true);
}

/* ---- using ---- */

CUresult cuGraphExecGetFlags(CUgraphExec exec, cuuint64_t *flags)
{
    struct sg_exec *e;
    CUresult r = sg_enter_exec("cuGraphExecGetFlags", exec, &e);
    if (r)
        return r;
    if (!flags)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *flags = e->flags;
    return sg_leave(CUDA_SUCCESS);
}

static CUresult launch(CUgraphExec exec, CUstream stream, bool per_thread)
{
    struct sg_stream *s;
    CUresult r = sg_enter_work("cuGraphLaunch", stream, per_thread, &s);
    if (r)
        return r;
    uint64_t id = s->object.id;
    sg_print_flush(); /* as for a kernel's launch; may release the lock */
    s = sg_object_find(id, SG_STREAM);
    struct sg_exec *e = SG_FIND(exec, SG_EXEC);
    if (!s || !e)
        return sg_leave(s ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_CONTEXT_IS_DESTROYED);
    return sg_leave(s->captured ? sg_capture_graph(s, e->shape) : sg_exec_launch(e, s));
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    return launch(exec, stream, false);
}

CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream)
{
    return launch(exec, stream, true);
}

static CUresult upload_call(CUgraphExec exec, CUstream stream, bool per_thread)
{
    struct sg_stream *s;
    CUresult r = sg_enter_work("cuGraphUpload", stream, per_thread, &s);
    if (r)
        return r;
    struct sg_exec *e = SG_FIND(exec, SG_EXEC);
    return sg_leave(e ? upload(e, s) : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuGraphUpload(CUgraphExec exec, CUstream stream)
{
    return upload_call(exec, stream, false);
}

CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream)
{
    return upload_call(exec, stream, true);
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    struct sg_exec *e;
    CUresult r = sg_enter_exec("cuGraphExecDestroy", exec, &e);
    if (r)
        return r;
    sg_object_remove(&e->object);
    sg_exec_unref(e);
    return sg_leave(CUDA_SUCCESS);
}
