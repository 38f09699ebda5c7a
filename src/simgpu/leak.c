/* What is still there when the process ends: each kind is counted, the first few are named. */
#include "simgpu/array.h"
#include "simgpu/check.h"
#include "simgpu/graph.h"
#include "simgpu/mempool.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#define NAMED_MOST 10

static uint64_t named;

static void leaked(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void leaked(const char *format, ...)
{
    char line[200];
    va_list args;
    sg_finding_count(SG_FINDING_LEAK);
    if (named++ >= NAMED_MOST)
        return;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    sg_log(SG_LOG_WARN, "leak: %s", line);
}

struct tally {
    unsigned contexts, allocs, streams, events, modules, libraries, pinned, reservations, mappings, chunks, pools,
        arrays;
    uint64_t alloc_bytes, pinned_bytes, reserved_bytes, chunk_bytes;
};

static void look_at_context(const struct sg_context *c, struct tally *t)
{
    const struct sg_alloc *a;
    const struct sg_stream *s;
    const struct sg_event *e;
    const struct sg_module *m;
    if (!c->primary || c->primary_refs) {
        t->contexts++;
        leaked("%s on device %d was not %s", c->primary ? "the primary context" : "a context", c->device,
               c->primary ? "released" : "destroyed");
    }
    DL_FOREACH(c->allocs, a)
    {
        if (a->is_module || (a->graph && !a->graph->allocated))
            continue; /* goes with its module, or its graph, or is an array */
        t->allocs++;
        t->alloc_bytes += a->region.bytes;
        leaked("allocation 0x%" PRIx64 " of %" PRIu64 " bytes on device %d", a->region.va, a->region.bytes, c->device);
    }
    const struct sg_array *array;
    const struct sg_mipmap *mipmap;
    DL_FOREACH(c->arrays, array)
    {
        t->arrays++;
        leaked("an array of %" PRIu64 " bytes on device %d", array->alloc->region.bytes, c->device);
    }
    DL_FOREACH(c->mipmaps, mipmap)
    {
        t->arrays++;
        leaked("a mipmapped array of %" PRIu64 " bytes on device %d", mipmap->alloc->region.bytes, c->device);
    }
    DL_FOREACH(c->modules, m)
    {
        if (m->library)
            continue; /* goes with its library */
        t->modules++;
        leaked("a module with %zu functions on device %d", ptx_module_function_count(m->ptx), c->device);
    }
    DL_FOREACH(c->streams, s)
    if (s->type == SG_STREAM_CREATED && !s->dead) {
        t->streams++;
        leaked("stream %" PRIu64 " on device %d%s", s->number, c->device, s->head ? ", with work in it" : "");
    }
    DL_FOREACH(c->events, e)
    {
        t->events++;
        leaked("an event on device %d", c->device);
    }
}

static void look_at_pools(struct tally *t)
{
    const struct sg_mempool *pool;
    const struct sg_segment *s;
    const struct sg_piece *p;
    DL_FOREACH(sg.mempools, pool)
    {
        DL_FOREACH(pool->segments, s)
        DL_FOREACH(s->pieces, p)
        if (p->alloc) {
            t->allocs++;
            t->alloc_bytes += p->alloc->region.bytes;
            leaked("allocation 0x%" PRIx64 " of %" PRIu64 " bytes in a pool", p->va, p->alloc->region.bytes);
        }
        if (pool->is_default || !pool->object.id)
            continue;
        t->pools++;
        leaked("a memory pool with %" PRIu64 " bytes was not destroyed", pool->reserved_bytes);
    }
}

static void look_at_memory(struct tally *t)
{
    for (size_t i = 0; i < sg.hosts.count; i++) {
        const struct sg_host *h = sg.hosts.at[i].owner;
        t->pinned++;
        t->pinned_bytes += h->bytes;
        leaked("pinned host memory 0x%" PRIx64 " of %" PRIu64 " bytes was not %s", h->va, h->bytes,
               h->map_bytes ? "freed" : "unregistered");
    }
    for (size_t i = 0; i < sg.reservations.count; i++) {
        const struct sg_reservation *r = sg.reservations.at[i].owner;
        const struct sg_mapping *m;
        unsigned mappings = 0;
        DL_FOREACH(r->mappings, m)
        mappings++;
        t->reservations++;
        t->reserved_bytes += r->bytes;
        t->mappings += mappings;
        leaked("reservation 0x%" PRIx64 " of %" PRIu64 " bytes with %u mappings", r->va, r->bytes, mappings);
    }
    for (const struct sg_object *o = sg.objects; o; o = o->hh.next) {
        if (o->kind == SG_LIBRARY) {
            t->libraries++;
            leaked("a library was not unloaded");
        }
        if (o->kind == SG_GRAPH && !((const struct sg_graph *)(const void *)o)->owner)
            leaked("a graph of %zu nodes was not destroyed", ((const struct sg_graph *)(const void *)o)->count);
        if (o->kind == SG_EXEC)
            leaked("an executable graph was not destroyed");
        if (o->kind == SG_USER_OBJECT)
            leaked("a user object was not released");
        const struct sg_chunk *c = (const struct sg_chunk *)(const void *)o;
        if (o->kind != SG_CHUNK || !c->handle_refs)
            continue; /* a released one lives by its mapping, which is named */
        t->chunks++;
        t->chunk_bytes += (uint64_t)c->pages << SG_PAGE_SHIFT;
        leaked("chunk of %" PRIu64 " bytes %s %d: %u handles not released", (uint64_t)c->pages << SG_PAGE_SHIFT,
               c->device == SG_ON_HOST ? "in host memory" : "on device", c->device == SG_ON_HOST ? 0 : c->device,
               c->handle_refs);
    }
}

void sg_leak_report(void)
{
    struct tally t = {0};
    const struct sg_context *c;
    named = 0;
    DL_FOREACH(sg.contexts, c)
    look_at_context(c, &t);
    look_at_memory(&t);
    look_at_pools(&t);
    if (!named)
        return;
    if (named > NAMED_MOST)
        sg_log(SG_LOG_WARN, "leak: and %" PRIu64 " more", named - NAMED_MOST);
    sg_log(SG_LOG_WARN,
           "leak: at exit there are %u allocations (%" PRIu64 " bytes), %u pinned host ranges (%" PRIu64
           " bytes), %u reservations (%" PRIu64 " bytes) with %u mappings, %u chunks (%" PRIu64
           " bytes), %u streams, %u events, %u modules, %u libraries, %u contexts",
           t.allocs, t.alloc_bytes, t.pinned, t.pinned_bytes, t.reservations, t.reserved_bytes, t.mappings, t.chunks,
           t.chunk_bytes, t.streams, t.events, t.modules, t.libraries, t.contexts);
    if (t.pools || t.arrays)
        sg_log(SG_LOG_WARN, "leak: and %u memory pools, %u arrays", t.pools, t.arrays);
}
