/*
 * Sets of bytes of the address space, exact to the byte: what an operation read and wrote.
 *
 * A page of 2 MiB is 512 blocks of 4 KiB; a block is empty, full, or a bitmap. Contiguous accesses, which are most, end up as
 * full blocks. While an operation runs its sets grow in a recorder, from several threads at once and without a lock; when it is
 * over the recorder becomes a trace, which one thread at a time compares and shrinks (sg.lock).
 */
#ifndef SG_BYTESET_H
#define SG_BYTESET_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Strong: atomics, and accesses that are volatile, relaxed, acquire or release. */
enum sg_access_kind { SG_ACCESS_READ, SG_ACCESS_WRITE, SG_ACCESS_STRONG_READ, SG_ACCESS_STRONG_WRITE, SG_ACCESS_KINDS };

struct sg_leaf;
struct sg_traced_page {
    uint64_t page;                         /* address / 2 MiB */
    struct sg_leaf *leaf[SG_ACCESS_KINDS]; /* NULL: nothing */
};
struct sg_trace {
    struct sg_traced_page *at; /* ascending, owned */
    size_t count;
    bool has[SG_ACCESS_KINDS]; /* may be stale: true though nothing is left */
};

struct sg_recorder;
struct sg_recorder *sg_recorder_create(void);
void sg_recorder_destroy(struct sg_recorder *recorder); /* NULL is fine; no other thread may use it */
/* Adds [va, va+bytes). Thread-safe. Out of host memory: it is left out, and is then not checked. */
void sg_recorder_add(struct sg_recorder *recorder, enum sg_access_kind kind, uint64_t va, uint64_t bytes);
/* Moves what was recorded into a trace and empties the recorder. False: out of host memory, nothing is in *trace_out. */
bool sg_recorder_finish(struct sg_recorder *recorder, struct sg_trace *trace_out);
/* First byte that the trace has as `kind` and the recorder as `other`; 0 = none. The recorder may be in use. */
uint64_t sg_recorder_meets(const struct sg_trace *trace, enum sg_access_kind kind, const struct sg_recorder *recorder,
                           enum sg_access_kind other);

void sg_trace_finish(struct sg_trace *trace);
/* First byte that a has as `kind` and b as `other`; 0 = none. */
uint64_t sg_trace_meets(const struct sg_trace *a, enum sg_access_kind kind, const struct sg_trace *b,
                        enum sg_access_kind other);
/* Takes from a's `kind` what b has as `other`. */
void sg_trace_subtract(struct sg_trace *a, enum sg_access_kind kind, const struct sg_trace *b,
                       enum sg_access_kind other);
/* Takes [va, va+bytes) from all kinds. */
void sg_trace_forget(struct sg_trace *trace, uint64_t va, uint64_t bytes);
/* Drops pages that hold nothing any more. True: nothing is left. */
bool sg_trace_compact(struct sg_trace *trace);

#endif
