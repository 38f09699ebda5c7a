/* Who comes after whom: see order.h. Sets are small: only streams in which memory was freed are in them. */
#include "simgpu/order.h"

#include <stdlib.h>

struct sg_known {
    size_t count, room;
    struct {
        uint64_t stream, ticket;
    } at[];
};

static uint64_t known_ticket(const struct sg_known *k, uint64_t stream)
{
    for (size_t i = 0; k && i < k->count; i++)
        if (k->at[i].stream == stream)
            return k->at[i].ticket;
    return 0;
}

/* Out of host memory the set stays as it is: memory is then reused later than it might be. */
static void note(struct sg_known **k, uint64_t stream, uint64_t ticket)
{
    for (size_t i = 0; *k && i < (*k)->count; i++) {
        if ((*k)->at[i].stream == stream) {
            if ((*k)->at[i].ticket < ticket)
                (*k)->at[i].ticket = ticket;
            return;
        }
    }
    if (!*k || (*k)->count == (*k)->room) {
        size_t count = *k ? (*k)->count : 0, room = count ? count * 2 : 4;
        struct sg_known *more = realloc(*k, sizeof *more + room * sizeof more->at[0]);
        if (!more)
            return;
        more->count = count;
        more->room = room;
        *k = more;
    }
    (*k)->at[(*k)->count].stream = stream;
    (*k)->at[(*k)->count++].ticket = ticket;
}

static void join(struct sg_known **to, const struct sg_known *from)
{
    for (size_t i = 0; from && from != *to && i < from->count; i++)
        note(to, from->at[i].stream, from->at[i].ticket);
}

struct sg_place sg_place_of_next(const struct sg_stream *s)
{
    return (struct sg_place){.stream = s->number,
                             .context = s->context ? s->context->number : 0,
                             .ticket = s->submitted + 1,
                             .seq = sg.next_seq + 1,
                             .legacy = s->type == SG_STREAM_LEGACY,
                             .blocking = s->type != SG_STREAM_LEGACY && !(s->flags & CU_STREAM_NON_BLOCKING)};
}

void sg_order_begin(struct sg_stream *s)
{
    sg.orders = true;
    note(&s->known, s->number, s->submitted);
}

void sg_order_recorded(struct sg_mark *mark, const struct sg_stream *s)
{
    if (!sg.orders)
        return;
    join(&mark->known, s->known);
    /* The legacy stream's rule reaches farther than the stream itself. */
    if (s->type != SG_STREAM_LEGACY && !(s->flags & CU_STREAM_NON_BLOCKING) && s->context->legacy)
        join(&mark->known, s->context->legacy->known);
    const struct sg_stream *other;
    if (s->type == SG_STREAM_LEGACY)
        DL_FOREACH(s->context->streams, other)
    if (!(other->flags & CU_STREAM_NON_BLOCKING))
        join(&mark->known, other->known);
}

void sg_order_waits(struct sg_stream *s, const struct sg_mark *mark)
{
    join(&s->known, mark->known);
}

struct sg_known *sg_order_of_stream(const struct sg_stream *s)
{
    struct sg_known *k = NULL;
    join(&k, s->known);
    return k;
}

static void join_context(struct sg_known **k, const struct sg_context *c)
{
    const struct sg_stream *s;
    DL_FOREACH(c->streams, s)
    join(k, s->known);
}

struct sg_known *sg_order_of_context(const struct sg_context *c)
{
    struct sg_known *k = NULL;
    if (sg.orders)
        join_context(&k, c);
    return k;
}

struct sg_known *sg_order_of_device(int device)
{
    struct sg_known *k = NULL;
    const struct sg_context *c;
    if (sg.orders)
        DL_FOREACH(sg.contexts, c)
    if (c->device == device)
        join_context(&k, c);
    return k;
}

void sg_order_learn(struct sg_known *known, bool over)
{
    if (over)
        join(&sg.host_known, known);
    free(known);
}

void sg_order_learn_mark(const struct sg_mark *mark)
{
    join(&sg.host_known, mark->known);
}

bool sg_order_host_knows(const struct sg_place *p)
{
    return known_ticket(sg.host_known, p->stream) >= p->ticket;
}

bool sg_order_follows(const struct sg_stream *s, const struct sg_place *p)
{
    if (p->stream == s->number || known_ticket(s->known, p->stream) >= p->ticket)
        return true;
    const struct sg_stream *legacy = s->context->legacy;
    bool blocking = s->type != SG_STREAM_LEGACY && !(s->flags & CU_STREAM_NON_BLOCKING);
    if (p->context != s->context->number || (s->type != SG_STREAM_LEGACY && !blocking))
        return false;
    if (s->type == SG_STREAM_LEGACY)
        return p->blocking;
    return p->legacy || (p->blocking && legacy && legacy->last_seq > p->seq);
}
