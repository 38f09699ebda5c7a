/*
 * simgpu as an instrument: what a program does that hardware would leave undefined is found and told, one line each.
 *
 * SIMGPU_CHECK chooses what is looked for beyond what is always told (accesses to memory that is not there). With nothing
 * chosen nothing here runs: accesses of kernels are seen only because every page is then marked as one that the page table's
 * slow path must be asked about.
 *
 * Locks: all functions need sg.lock unless they say otherwise.
 */
#ifndef SG_CHECK_H
#define SG_CHECK_H

#include "simgpu/byteset.h"
#include "simgpu/sim.h"

#include <stdio.h>

enum sg_finding_kind {
    SG_FINDING_RACE,        /* two operations that nothing orders touch the same device memory, and one writes */
    SG_FINDING_HOST_RACE,   /* the same on host memory */
    SG_FINDING_HOST_ACCESS, /* the CPU touches pinned memory that work in flight uses */
    SG_FINDING_AFTER_FREE,  /* these five are always looked for */
    SG_FINDING_AFTER_UNMAP,
    SG_FINDING_BEFORE_MAP,
    SG_FINDING_NO_GRANT,
    SG_FINDING_NO_MEMORY,
    SG_FINDING_RED_ZONE,
    SG_FINDING_LEAK,
    SG_FINDING_DEADLOCK,
    SG_FINDING_COUNT
};

struct sg_check {
    bool race, redzone, leak, deadlock;
    bool host;          /* the CPU's accesses to pinned memory are looked at; with race only */
    bool fatal;         /* a race makes the context's error sticky */
    bool deadlock_fail; /* a deadlock ends the kernel with CUDA_ERROR_LAUNCH_TIMEOUT */
    bool accesses;      /* accesses of kernels are to be seen: race, redzone or deadlock */
    uint64_t found[SG_FINDING_COUNT];
    _Atomic(bool) host_maps; /* the CPU was ever given access to a chunk in host memory; read without a lock */
};
extern struct sg_check sg_check; /* the settings are written by cuInit only and read without a lock */

/* Reads SIMGPU_CHECK and SIMGPU_CHECK_FATAL. On a bad value says so in one line; CUDA_ERROR_INVALID_VALUE. */
CUresult sg_check_read(void);
/* Counts, and logs a warning unless many of the kind were logged already. With SIMGPU_CHECK_FATAL, races and red zones also
 * kill `context` (NULL: none). */
void sg_finding(enum sg_finding_kind kind, struct sg_context *context, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* The latter alone. */
void sg_finding_fatal(enum sg_finding_kind kind, struct sg_context *context);
/* A call about memory at `va` is refused: a finding, if the address was memory once or is to be. Returns `error`. */
CUresult sg_refused(CUresult error, int device, uint64_t va);
/* Counts only: another line has told it. */
void sg_finding_count(enum sg_finding_kind kind);
/* The report's member: one line of JSON with a comma. */
void sg_check_report(FILE *f);
/* Which rule an access breaks by which sg_translate refused it. */
enum sg_finding_kind sg_finding_at(int device, uint64_t va);
const char *sg_finding_name(enum sg_finding_kind kind); /* "use after free" */
/* "12 bytes into the allocation 0x... of 64 bytes on device 0": where a valid address lies. */
void sg_describe_memory(uint64_t va, char *text, size_t text_bytes);

/* ---- accesses of kernels ---- */

/* Makes the table with which a grid runs see its accesses. */
void sg_access_watch(struct sg_op *op);
/* What is asked for of an allocation is in bounds from now on, or no longer; the rest of its slots and pages is not. */
void sg_redzone_set(const struct sg_alloc *alloc, bool live);
/* A page of addresses: closed = it belongs to small allocations, nothing of it is in bounds yet; open = no longer. */
void sg_redzone_page(uint64_t page, bool open);
/* Extra bytes of a small allocation's slots; extra pages on each side of addresses reserved for allocations. */
static inline uint64_t sg_redzone_slot_bytes(void)
{
    return sg_check.redzone ? SG_SMALL_SLOT_BYTES : 0;
}
static inline uint64_t sg_redzone_page_bytes(void)
{
    return sg_check.redzone ? SG_PAGE_BYTES : 0;
}

/* ---- races (race.c): each is called only while sg_check.race ---- */

struct sg_race_op;
struct sg_race_line; /* a stream's place in the order of things */
void sg_race_submit(struct sg_op *op);
/* The same for what an operation that runs submits: it knows what that one knew. */
void sg_race_submit_inside(struct sg_op *op, const struct sg_op *parent);
void sg_race_start(struct sg_op *op);
void sg_race_end(struct sg_op *op, bool done); /* done: it was carried out to its end */
void sg_race_drop(struct sg_op *op);           /* frees what the operation holds */
void sg_race_stream_gone(struct sg_stream *stream);
void sg_race_context_gone(struct sg_context *context); /* its streams are gone already */
/* The host has learned that all of a stream's (a device's, a context's) work so far is done, or that a recording is. */
void sg_race_join_stream(const struct sg_stream *stream);
void sg_race_join_context(const struct sg_context *context);
void sg_race_join_device(int device);
void sg_race_join_mark(const struct sg_mark *mark);
/* The host reads a copy's source now. */
void sg_race_host_read(const struct sg_copy *copy, const char *what);
/* What lies there is no longer what was used before. */
void sg_race_forget(uint64_t va, uint64_t bytes);
/* Thread-safe, no lock: a kernel's access. */
void sg_race_access(struct sg_race_op *race, uint64_t va, unsigned bytes, unsigned how, bool on_host);

#define SG_FLAG_BYTES 16 /* a copy or memset of so little may be a signal */

/* An operation's place in its stream's line, for those that outlive it. */
struct sg_race_stamp {
    unsigned line;
    uint64_t number; /* 0: it has not begun */
};
bool sg_race_is_known(const struct sg_race_stamp *stamp); /* the host has learned that it is over */
/* Or a kernel or a small copy that runs and comes after it may have told the host in memory. over: it has ended; then any
 * kernel may have heard of that from others. */
bool sg_race_may_be_known(const struct sg_race_stamp *stamp, bool over);
typedef bool sg_race_before_fn(const struct sg_race_stamp *stamp, const void *of);

/* ---- the CPU's accesses to pinned memory (guard.c): called only while sg_check.host ---- */

/* Maps new memory over the reserved [va, va+bytes), and once more; returns the other address, 0 if that cannot be. */
uint64_t sg_guard_map(uint64_t va, uint64_t bytes);
void sg_guard_unmap(const struct sg_host *host); /* the other address; ends guards in it */
void sg_guard_submit(const struct sg_op *op);    /* protects what it uses */
void sg_guard_start(const struct sg_op *op, const struct sg_race_stamp *stamp);
void sg_guard_end(const struct sg_op *op, bool done); /* the guards stay if it is done; the operation may go */
void sg_guard_release(void);                          /* the host has learned something */
void sg_guard_fail(const struct sg_context *context); /* its work has ended with an error, of which every call tells */
void sg_guard_tell(sg_race_before_fn *is_before, const void *of); /* it may have: ends the guards of those before */

/* ---- doubts (doubt.c) ---- */

/* A race of which nobody may ever see the outcome: what a copy wrote to [va, va+bytes). `text` tells it. */
void sg_doubt_add(enum sg_finding_kind kind, uint64_t va, uint64_t bytes, const char *text);
/* An operation has ended: one that uses what it reads makes findings of doubts, and what it wrote is beyond doubt. */
void sg_doubt_settle(const struct sg_trace *trace, bool uses, const char *what, struct sg_context *context);
void sg_doubt_forget(uint64_t va, uint64_t bytes);

/* ---- leaks (leak.c) ---- */
void sg_leak_report(void);

/* ---- deadlocks (deadlock.c): called only while sg_check.deadlock ---- */
void sg_deadlock_look(struct sg_op *op); /* after a slice of this kernel; may kill its context */
/* Thread-safe, no lock: a kernel's access, before it takes place. */
void sg_deadlock_access(uint64_t va, const void *host, unsigned bytes, bool write, bool on_host);

/* ---- replay (replay.c): with sg.config.replay only ---- */

enum sg_replay_event { SG_REPLAY_START = 1, SG_REPLAY_SLICE, SG_REPLAY_END };
/* Adds to the trace. */
void sg_replay_event(enum sg_replay_event event, const struct sg_op *op, uint64_t detail);
/* Carries out one step of what has started; sg.lock is released meanwhile. False: there is nothing to do. */
bool sg_replay_step(void);
void sg_replay_some(void); /* after a submission: as many steps as the seed says; sg.lock is released meanwhile */
/* Before a question whether something is done; does nothing where there is no replay. sg.lock is not held. */
void sg_replay_poll(void);
/* Waits for values that only somebody else can have ended, while the job waits and there is nothing to do; needs sg.lock. */
void sg_replay_look(void);
/* The report's member: one line of JSON with a comma. */
void sg_replay_report(FILE *f);

#endif
