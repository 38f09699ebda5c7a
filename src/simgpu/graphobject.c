/* User objects, whose destructors run on a thread of their own, and the handles of conditional nodes. */
#include "simgpu/graph.h"

#include <limits.h>
#include <stdlib.h>

/* ---- user objects ---- */

struct sg_user_object {
    struct sg_object object;
    CUhostFn destroy;
    void *data;
    uint64_t refs;  /* all */
    uint64_t owned; /* by callers; the others are graphs' */
    struct sg_user_object *next;
};

static struct {
    struct sg_user_object *first, *last; /* whose destructors are to run */
    pthread_cond_t cv;
    bool started;
} ended = {.cv = PTHREAD_COND_INITIALIZER};

static void *destroyer(void *arg)
{
    (void)arg;
    sg_thread()->in_host_call = true;
    atomic_fetch_sub(&sg.api_threads, 1);
    pthread_mutex_lock(&sg.lock);
    for (;;) {
        struct sg_user_object *o = ended.first;
        if (!o) {
            pthread_cond_wait(&ended.cv, &sg.lock);
            continue;
        }
        ended.first = o->next;
        pthread_mutex_unlock(&sg.lock);
        o->destroy(o->data);
        free(o);
        pthread_mutex_lock(&sg.lock);
    }
    return NULL;
}

static void release(struct sg_user_object *o, uint64_t count)
{
    o->refs -= count;
    if (o->refs)
        return;
    sg_object_remove(&o->object);
    o->next = NULL;
    if (ended.first)
        ended.last->next = o;
    else
        ended.first = o;
    ended.last = o;
    if (!ended.started) {
        ended.started = sg_thread_start(destroyer, NULL, "simgpu-objects");
        sg.object_threads += ended.started;
    }
    pthread_cond_signal(&ended.cv);
}

static CUresult keep(struct sg_user_ref **list, struct sg_user_object *o, unsigned count)
{
    struct sg_user_ref *u;
    LL_FOREACH(*list, u)
    if (u->object == o)
        break;
    if (!u) {
        u = calloc(1, sizeof *u);
        if (!u)
            return CUDA_ERROR_OUT_OF_MEMORY;
        u->object = o;
        LL_APPEND(*list, u);
    }
    u->count += count;
    o->refs += count;
    return CUDA_SUCCESS;
}

CUresult sg_users_copy(const struct sg_graph *from, struct sg_user_ref **out)
{
    const struct sg_user_ref *u;
    CUresult r = CUDA_SUCCESS;
    LL_FOREACH(from->users, u)
    r = r ? r : keep(out, u->object, u->count);
    return r;
}

CUresult sg_users_copy_all(const struct sg_graph *from, struct sg_user_ref **out)
{
    const struct sg_node *n;
    CUresult r = sg_users_copy(from, out);
    DL_FOREACH(from->nodes, n)
    for (unsigned i = 0; i < n->graph_count && !r; i++)
        r = sg_users_copy_all(n->graphs[i], out);
    return r;
}

void sg_users_free(struct sg_user_ref *users)
{
    while (users) {
        struct sg_user_ref *u = users;
        users = u->next;
        release(u->object, u->count);
        free(u);
    }
}

static CUresult enter_object(const char *api, CUuserObject handle, unsigned count, struct sg_user_object **object_out)
{
    CUresult r = sg_enter(api);
    if (r)
        return r;
    *object_out = SG_FIND(handle, SG_USER_OBJECT);
    return !*object_out || !count || count > INT_MAX ? sg_leave(CUDA_ERROR_INVALID_VALUE) : CUDA_SUCCESS;
}

CUresult cuUserObjectCreate(CUuserObject *object_out, void *ptr, CUhostFn destroy, unsigned int initial,
                            unsigned int flags)
{
    CUresult r = sg_enter("cuUserObjectCreate");
    if (r)
        return r;
    if (!object_out || !destroy || !initial || initial > INT_MAX || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    struct sg_user_object *o = calloc(1, sizeof *o);
    if (!o)
        return sg_leave(CUDA_ERROR_OUT_OF_MEMORY);
    o->destroy = destroy;
    o->data = ptr;
    o->refs = o->owned = initial;
    sg_object_add(&o->object, SG_USER_OBJECT);
    *object_out = SG_HANDLE(CUuserObject, o);
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuUserObjectRetain(CUuserObject object, unsigned int count)
{
    struct sg_user_object *o;
    CUresult r = enter_object("cuUserObjectRetain", object, count, &o);
    if (r)
        return r;
    o->refs += count;
    o->owned += count;
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuUserObjectRelease(CUuserObject object, unsigned int count)
{
    struct sg_user_object *o;
    CUresult r = enter_object("cuUserObjectRelease", object, count, &o);
    if (r)
        return r;
    if (count > o->owned)
        return sg_leave(CUDA_ERROR_INVALID_VALUE); /* the rest are graphs' */
    o->owned -= count;
    release(o, count);
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count, unsigned int flags)
{
    struct sg_user_object *o;
    CUresult r = enter_object("cuGraphRetainUserObject", object, count, &o);
    if (r)
        return r;
    struct sg_graph *g = SG_FIND(graph, SG_GRAPH);
    bool move = flags == CU_GRAPH_USER_OBJECT_MOVE;
    if (!g || (flags && !move) || (move && count > o->owned))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    r = keep(&g->users, o, count);
    if (!r && move) {
        o->owned -= count;
        o->refs -= count;
    }
    return sg_leave(r);
}

CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned int count)
{
    struct sg_user_object *o;
    CUresult r = enter_object("cuGraphReleaseUserObject", object, count, &o);
    if (r)
        return r;
    struct sg_graph *g = SG_FIND(graph, SG_GRAPH);
    struct sg_user_ref *u = NULL;
    if (g)
        LL_FOREACH(g->users, u)
    if (u->object == o)
        break;
    if (!g || !u || u->count < count)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    u->count -= count;
    if (!u->count) {
        LL_DELETE(g->users, u);
        free(u);
    }
    release(o, count);
    return sg_leave(CUDA_SUCCESS);
}

/* ---- conditions ---- */

#define CELLS 4096 /* conditions that there may be at once */

/*
 * What kernels set: read and written without a lock. A cell is the condition's tag and its value; a handle is the tag and the
 * cell's number, so that a stale handle meets another tag.
 */
static struct {
    _Atomic(uint64_t) cell[CELLS], context[CELLS];
    uint32_t tags;
    bool taken[CELLS];
} conditions;

static unsigned cell_of(uint64_t handle)
{
    return (unsigned)(handle & (CELLS - 1));
}

struct sg_condition *sg_condition_ref(struct sg_condition *c)
{
    c->refs++;
    return c;
}

void sg_condition_unref(struct sg_condition *c)
{
    if (!c || --c->refs)
        return;
    unsigned i = cell_of(c->handle);
    atomic_store(&conditions.cell[i], 0);
    conditions.taken[i] = false;
    free(c);
}

uint32_t sg_condition_value(const struct sg_condition *c)
{
    return (uint32_t)atomic_load(&conditions.cell[cell_of(c->handle)]);
}

static void put(const struct sg_condition *c, uint32_t value)
{
    atomic_store(&conditions.cell[cell_of(c->handle)], c->handle >> 12 << 32 | value);
}

void sg_condition_reset(const struct sg_condition *c)
{
    if (c->flags & CU_GRAPH_COND_ASSIGN_DEFAULT)
        put(c, c->value);
}

bool sg_condition_set(uint64_t context, uint64_t handle, uint32_t value)
{
    unsigned i = cell_of(handle);
    uint64_t seen = atomic_load(&conditions.cell[i]);
    if (!handle || atomic_load(&conditions.context[i]) != context)
        return false;
    do {
        if (seen >> 32 != handle >> 12)
            return false;
    } while (!atomic_compare_exchange_weak(&conditions.cell[i], &seen, handle >> 12 << 32 | value));
    return true;
}

static CUresult make(struct sg_graph *g, const struct sg_context *context, unsigned value, unsigned flags,
                     struct sg_condition **condition_out)
{
    unsigned i = 0;
    while (i < CELLS && conditions.taken[i])
        i++;
    struct sg_condition **more = realloc(g->conditions, (g->condition_count + 1) * sizeof(struct sg_condition *));
    if (more)
        g->conditions = more;
    struct sg_condition *c = more && i < CELLS ? calloc(1, sizeof *c) : NULL;
    if (!c)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *c = (struct sg_condition){.refs = 1,
                               .handle = (uint64_t)(++conditions.tags & 0xfffffff) << 12 | i,
                               .context = context->object.id,
                               .graph = g->object.id,
                               .value = value,
                               .flags = flags};
    conditions.taken[i] = true;
    atomic_store(&conditions.context[i], context->object.id);
    put(c, 0);
    g->conditions[g->condition_count++] = c;
    *condition_out = c;
    return CUDA_SUCCESS;
}

CUresult cuGraphConditionalHandleCreate(CUgraphConditionalHandle *handle_out, CUgraph graph, CUcontext ctx,
                                        unsigned int value, unsigned int flags)
{
    struct sg_graph *g;
    CUresult r = sg_enter_graph("cuGraphConditionalHandleCreate", graph, &g);
    if (r)
        return r;
    struct sg_context *context;
    struct sg_condition *c;
    if (!handle_out || (flags & ~(unsigned)CU_GRAPH_COND_ASSIGN_DEFAULT))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    r = sg_context_named(ctx, &context);
    if (!r)
        r = make(g, context, value, flags, &c);
    if (!r)
        *handle_out = c->handle;
    return sg_leave(r);
}
