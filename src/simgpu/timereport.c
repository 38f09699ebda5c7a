/* What becomes of virtual time: totals per kernel, busy times for SIMGPU_REPORT, and SIMGPU_TIMELINE's list of operations. */
#include "simgpu/fabric.h"
#include "simgpu/sim.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MOST_OPERATIONS 100000
#define TIMELINE_SCHEMA 1

static struct sg_kernel_total *totals;

struct entry {
    uint64_t start_ns, end_ns, bytes, stream;
    const struct sg_kernel_total *total; /* kernels */
    uint8_t kind, device;
    int8_t line; /* -1: a host function */
};

static struct {
    struct entry *at;
    size_t count, room;
    uint64_t dropped;
} timeline;

struct sg_kernel_total *sg_kernel_total(const char *name)
{
    struct sg_kernel_total *t;
    for (t = totals; t; t = t->next)
        if (!strcmp(t->name, name))
            return t;
    t = calloc(1, sizeof *t);
    if (t && !(t->name = strdup(name))) {
        free(t);
        t = NULL;
    }
    if (t) {
        t->next = totals;
        totals = t;
    }
    return t;
}

void sg_timeline_note(const struct sg_vop *v, int line, int device, uint64_t start_ns, uint64_t end_ns)
{
    if (!sg.config.timeline[0])
        return;
    if (timeline.count == timeline.room && timeline.room < MOST_OPERATIONS) {
        size_t room = timeline.room ? timeline.room * 2 : 1024;
        struct entry *more = realloc(timeline.at, room * sizeof *more);
        if (more) {
            timeline.at = more;
            timeline.room = room;
        }
    }
    if (timeline.count == timeline.room || timeline.count == MOST_OPERATIONS) {
        timeline.dropped++;
        return;
    }
    struct entry *e = &timeline.at[timeline.count++];
    *e = (struct entry){.start_ns = start_ns, .end_ns = end_ns, .stream = v->stream->number, .total = v->total};
    e->kind = v->kind;
    e->device = (uint8_t)device;
    e->line = (int8_t)line;
    for (int i = 0; i < SG_DIRECTION_COUNT; i++)
        e->bytes += v->bytes[i];
    for (int i = 0; i < SG_TIER_COUNT; i++)
        e->bytes += v->read[i] + v->written[i];
}

/* Kernel names are PTX identifiers; one that is not (a job's own text) is written without what JSON cannot hold. */
static void put_name(FILE *f, const char *name)
{
    fputc('"', f);
    for (; *name; name++)
        fputc(*name == '"' || *name == '\\' || (unsigned char)*name < ' ' || (unsigned char)*name > '~' ? '?' : *name,
              f);
    fputc('"', f);
}

void sg_kernel_report(FILE *f)
{
    const char *separator = "\n";
    fprintf(f, "  \"kernel_totals\": [");
    for (const struct sg_kernel_total *t = totals; t; t = t->next) {
        if (!t->count)
            continue;
        fprintf(f, "%s    {\"name\": ", separator);
        put_name(f, t->name);
        fprintf(f, ", \"count\": %" PRIu64 ", \"ns\": %" PRIu64 ", \"bytes\": %" PRIu64 ", \"flops\": %" PRIu64 "}",
                t->count, t->ns, t->bytes, t->flops);
        separator = ",\n";
    }
    fprintf(f, "],\n");
}

void sg_time_report_gpu(FILE *f, int device)
{
    struct sg_busy busy;
    sg_timed_busy(device, &busy);
    fprintf(f, "      \"busy_ns\": {");
    for (int i = 0; i < SG_LINE_COUNT; i++)
        fprintf(f, "%s\"%s\": %" PRIu64, i ? ", " : "", sg_line_names[i], busy.line[i]);
    fprintf(f, "},\n      \"any_busy_ns\": %" PRIu64 ",\n      \"compute_and_copy_ns\": %" PRIu64 ",\n", busy.any,
            busy.compute_and_copy);
    fprintf(f, "      \"copy_alone_ns\": %" PRIu64 ",\n      \"both_ways_ns\": %" PRIu64 ",\n", busy.copy_alone,
            busy.both_ways);
}

static void put_entry(FILE *f, const struct entry *e, bool last)
{
    const char *name = e->kind == SG_OP_COPY ? "copy" : e->kind == SG_OP_FILL ? "memset" : "host function";
    fprintf(f, "    {\"gpu\": %u, \"engine\": \"%s\", \"stream\": %" PRIu64 ", \"start_ns\": %" PRIu64, e->device,
            e->line < 0 ? "host" : sg_line_names[e->line], e->stream, e->start_ns);
    fprintf(f, ", \"end_ns\": %" PRIu64 ", \"bytes\": %" PRIu64 ", \"name\": ", e->end_ns, e->bytes);
    put_name(f, e->total ? e->total->name : e->kind == SG_OP_KERNEL ? "kernel" : name);
    fprintf(f, "}%s\n", last ? "" : ",");
}

void sg_timeline_write(void)
{
    struct sg_report_file file;
    FILE *f = sg_report_open("SIMGPU_TIMELINE", sg.config.timeline, &file);
    if (!f)
        return;
    fprintf(f, "{\n  \"timeline_schema\": %d,\n  \"pid\": %" PRIu64 ",\n  \"model\": \"%s\",\n  \"gpus\": %d,\n",
            TIMELINE_SCHEMA, sg.pid, sg.config.model->key, sg.device_count);
    fprintf(f, "  \"virtual_time_ns\": %" PRIu64 ",\n  \"dropped\": %" PRIu64 ",\n", sg_time_total_ns(),
            timeline.dropped);
    if (sg.config.topology)
        sg_links_timeline(f);
    fprintf(f, "  \"operations\": [\n");
    for (size_t i = 0; i < timeline.count; i++)
        put_entry(f, &timeline.at[i], i + 1 == timeline.count);
    fprintf(f, "  ]\n}\n");
    sg_report_close("SIMGPU_TIMELINE", f, &file);
}
