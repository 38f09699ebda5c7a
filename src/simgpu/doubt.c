/*
 * Doubts: copies of whole pages whose source was written meanwhile.
 *
 * Whoever moves memory while the program goes on may copy first and look afterwards whether anyone wrote, in order to copy
 * again then. Such a copy is a race whose outcome nobody sees. So a race with what a copy of whole 2 MiB pages reads is told only
 * once what it copied is used, by a kernel or by a copy to the job's own host memory, before it was overwritten.
 */
#include "simgpu/check.h"

#include <stdlib.h>
#include <string.h>

#define DOUBTS_MOST 256

struct doubt {
    struct sg_trace what; /* of its writes, the bytes that nobody has overwritten yet */
    enum sg_finding_kind kind;
    char text[800];
    struct doubt *prev, *next;
};
static struct doubt *doubts;
static unsigned count;

static void drop(struct doubt *d)
{
    DL_DELETE(doubts, d);
    count--;
    sg_trace_finish(&d->what);
    free(d);
}

void sg_doubt_add(enum sg_finding_kind kind, uint64_t va, uint64_t bytes, const char *text)
{
    struct doubt *d = calloc(1, sizeof *d);
    struct sg_recorder *recorder = sg_recorder_create();
    if (d && recorder)
        sg_recorder_add(recorder, SG_ACCESS_WRITE, va, bytes);
    if (d && recorder && sg_recorder_finish(recorder, &d->what)) {
        d->kind = kind;
        snprintf(d->text, sizeof d->text, "%s", text);
        DL_APPEND(doubts, d);
        if (++count > DOUBTS_MOST)
            drop(doubts);
        d = NULL;
    }
    free(d);
    sg_recorder_destroy(recorder);
}

void sg_doubt_settle(const struct sg_trace *trace, bool uses, const char *what, struct sg_context *context)
{
    struct doubt *d, *next;
    DL_FOREACH_SAFE(doubts, d, next)
    {
        if (uses && (sg_trace_meets(trace, SG_ACCESS_READ, &d->what, SG_ACCESS_WRITE) ||
                     sg_trace_meets(trace, SG_ACCESS_STRONG_READ, &d->what, SG_ACCESS_WRITE))) {
            sg_finding(d->kind, context, "%s, and %s uses what was copied", d->text, what);
            drop(d);
            continue;
        }
        sg_trace_subtract(&d->what, SG_ACCESS_WRITE, trace, SG_ACCESS_WRITE);
        sg_trace_subtract(&d->what, SG_ACCESS_WRITE, trace, SG_ACCESS_STRONG_WRITE);
        if (sg_trace_compact(&d->what))
            drop(d);
    }
}

void sg_doubt_forget(uint64_t va, uint64_t bytes)
{
    struct doubt *d, *next;
    DL_FOREACH_SAFE(doubts, d, next)
    {
        sg_trace_forget(&d->what, va, bytes);
        if (sg_trace_compact(&d->what))
            drop(d);
    }
}
