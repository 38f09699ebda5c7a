/*
 * Virtual time: how long what the job does would take on the model's hardware.
 *
 * Every host thread has a clock. Calls advance it by their price (costs.def); waiting for work moves it to the work's end.
 * Every operation gets a start and an end on the engines of its device: it starts when its submission, what it depends on and
 * the engine allow, and lasts as long as the bytes that it really moved and its arithmetic take at the model's rates
 * (models.def).
 *
 * Real threads carry the work out in an order that differs from run to run; virtual time must not. So an operation is
 * placed once it is really done, and in the order of submission: each takes the first gap on its engine that fits. One that is
 * not done yet holds up only those later ones whose place it could change. See vwait.c for what happens when one never ends.
 *
 * Everything here needs sg.lock, unless it says otherwise.
 */
#ifndef SG_VTIME_H
#define SG_VTIME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct ptx_counters;
struct sg_op;
struct sg_mark;
struct sg_stream;
struct sg_context;
struct sg_copy;

enum sg_line {
    SG_LINE_SM,
    SG_LINE_H2D,
    SG_LINE_D2H,
    SG_LINE_D2D,
    SG_LINE_PEER,
    SG_LINE_COUNT
}; /* engines of a device */
extern const char *const sg_line_names[SG_LINE_COUNT];

/* How a line is used over time: a step function. Capacity 1, or the number of SMs. */
struct sg_step {
    uint64_t at_ns;
    uint32_t used;
};
struct sg_profile {
    struct sg_step *step; /* the last one is 0 for ever */
    size_t count, room;
    uint32_t capacity;
};

struct sg_slot {
    uint64_t start_ns, end_ns;
    uint32_t units;
};
/* The first slot from ready_ns on with at least `least` and at most `want` units. duration_ns says how long it takes from
 * a start with so many units. */
typedef uint64_t sg_duration_fn(const void *of, uint64_t start_ns, uint32_t units);
struct sg_slot sg_profile_find(const struct sg_profile *p, uint64_t ready_ns, uint32_t want, uint32_t least,
                               sg_duration_fn *duration_ns, const void *of);
bool sg_profile_add(struct sg_profile *p, const struct sg_slot *slot); /* false: out of host memory */
uint32_t sg_profile_most(const struct sg_profile *p, uint64_t start_ns, uint64_t end_ns); /* most units used in it */
/* When `bytes` are through from start_ns on, at full_gbps, or rest_gbps while `other` is in use. */
uint64_t sg_profile_transfer(const struct sg_profile *other, uint64_t start_ns, uint64_t bytes, double full_gbps,
                             double rest_gbps);

/* Nanoseconds of a device's time in which ... */
struct sg_busy {
    uint64_t line[SG_LINE_COUNT]; /* the line was used */
    uint64_t any;
    uint64_t compute_and_copy; /* SMs and a copy engine */
    uint64_t both_ways;        /* H2D and D2H */
    uint64_t copy_alone;       /* a copy engine and not the SMs */
};

/* Dependencies of a stream's and a context's work; counted references, since work may be placed after they have ended. */
struct sg_vcontext {
    unsigned refs;
    int device;
    uint64_t submit_ns;                              /* the latest submission */
    uint64_t legacy_end_ns, blocking_end_ns, end_ns; /* of what has been placed */
    uint64_t scan, scan_legacy_ns, scan_blocking_ns; /* of what has not, in the running scan: 0 = nothing */
    bool legacy_given_up, blocking_given_up;
};
struct sg_vstream {
    unsigned refs;
    struct sg_vcontext *context;
    bool legacy, blocking;
    uint64_t number;
    uint64_t submit_ns, end_ns;
    uint64_t scan, scan_ns; /* as above */
    uint64_t hopeless;      /* the scan after which it was found behind a kernel that spins */
    bool given_up;
};

/* What has been learned about how long each kernel takes. */
struct sg_kernel_total {
    char *name;
    uint64_t count, ns, bytes, flops;
    struct sg_kernel_total *next;
};

/* ---- call sites ---- */

/* A call of `function` (its base name) begins on this thread: charges its price. Needs no lock. */
void sg_time_call(const char *function);
/* What a call costs beyond that: names are those of SG_UNIT_COST in costs.def. Needs no lock. */
enum sg_unit_cost {
#define SG_COST(function, class_, ns, source)
#define SG_UNIT_COST(name, class_, ns, source) SG_UNIT_##name,
#define SG_CONSTANT(name, value, source)
#include "simgpu/costs.def"
#undef SG_COST
#undef SG_UNIT_COST
#undef SG_CONSTANT
    SG_UNIT_COUNT
};
void sg_time_units(enum sg_unit_cost cost, double units);

void sg_time_context_begin(struct sg_context *context);
void sg_time_context_end(struct sg_context *context);
void sg_vcontext_drop(struct sg_vcontext *context); /* NULL is fine */
void sg_time_stream_begin(struct sg_stream *stream);
void sg_time_stream_end(struct sg_stream *stream);

void sg_time_submit(struct sg_op *op); /* its place in the order is known */
/* The same for what an operation that runs submits: right before that one, and at its time. */
void sg_time_submit_inside(struct sg_op *op, const struct sg_op *parent);
void sg_time_graph_mark(struct sg_op *op); /* of a condition that is over: it ends no sooner than its last body */
void sg_time_kernel_ran(struct sg_op *op, const struct ptx_counters *counters); /* before sg_time_done */
struct sg_moved;
void sg_time_moved(struct sg_op *op, struct sg_moved *moved); /* the same for copies and fills; takes moved->usage */
void sg_time_done(struct sg_op *op);                          /* really done, or dropped; `op` ends */
void sg_time_host_begin(
    struct sg_op *op); /* the calling thread, which runs host functions, takes the time it runs at */

/* What a thread waits for or asks about. */
struct sg_goal {
    struct sg_vstream *stream;
    struct sg_mark *mark;
    struct sg_vcontext *context;
    int device; /* if none of the others: all contexts of it */
    uint64_t seq;
};
/* After the goal is really over: moves the thread's clock to its virtual end. May release sg.lock meanwhile. */
void sg_time_join(const struct sg_goal *goal);
/* Is the goal over at the time of the thread's clock? May release sg.lock meanwhile; never waits for long for work that
 * does not come to an end. */
bool sg_time_is_over(const struct sg_goal *goal);
/* For cuEventElapsedTime: the recording's time, if it is over as above. */
bool sg_time_of_mark(struct sg_mark *mark, uint64_t *time_ns_out);

void sg_time_report(FILE *f); /* members of SIMGPU_REPORT's object, each line ending in a comma */
void sg_time_report_gpu(FILE *f, int device);
void sg_timeline_write(void); /* SIMGPU_TIMELINE */

/* Virtual nanoseconds of the calling thread's clock: exported, found by dlsym. Needs no lock. */
__attribute__((visibility("default"))) uint64_t sg_virtual_now_ns(void);

/* ---- inside ---- */

struct sg_use { /* of one direction of a link by an operation, see fabric.h */
    uint32_t way;
    uint64_t bytes;
};
struct sg_usage {
    struct sg_use *at;
    uint32_t count, room;
    uint32_t latency_ns; /* of the longest path */
};

struct sg_vop { /* one operation on its way into virtual time */
    uint64_t seq, submit_ns;
    struct sg_op *op; /* NULL once really done */
    struct sg_vstream *stream;
    struct sg_mark *mark; /* RECORD, WAIT */
    uint8_t kind;         /* enum sg_op_kind */
    bool done, ran;
    bool held;     /* in the last scan something that it depends on had no place yet */
    bool given_up; /* nobody waits for it any more: it is placed when it is done, wherever there is room then */
    bool pageable;
    uint8_t device;
    uint8_t source; /* of a copy that may leave by another device's port: that device */
    uint8_t line;   /* where it will run as far as known */
    bool any_line;  /* a copy whose operands may lie in any tier; a condition, whose bodies may use all */
    bool in_graph;
    uint32_t blocks, warps, lanes, per_sm; /* of a kernel: lanes of a warp, blocks that an SM holds */
    uint64_t bytes[5];                     /* of a copy or fill: per direction */
    uint64_t instructions, accesses, flops, double_flops, tensor_flops, tensor_work, read[3], written[3];
    struct sg_usage usage; /* of links, on machines with a topology */
    struct sg_kernel_total *total;
    uint64_t lower_ns; /* in a scan: it does not end before this */
    struct sg_vop *next;
};

extern struct sg_order {
    struct sg_vop *first, *last; /* not placed yet, in the order of submission */
    struct sg_vop *spare;
    size_t done_unplaced;
    uint64_t scan; /* number of the last one */
    uint64_t end_ns;
    uint64_t given_up;
} sg_order;
/* Places what is certain. With front_only it stops at the first that is not done: cheap, for every completion. */
void sg_time_scan(bool front_only);
void sg_vstream_drop(struct sg_vstream *stream); /* NULL is fine */

struct sg_timed { /* a device's lines */
    struct sg_profile line[SG_LINE_COUNT];
    uint64_t floor_ns; /* nothing is placed before: what was there has been summed up */
    struct sg_busy busy;
};

uint32_t sg_price_sms(const struct sg_vop *v);                       /* the SMs that a kernel can use */
uint64_t sg_price_kernel(const struct sg_vop *v, uint32_t sms);      /* of a kernel with so many SMs */
uint64_t sg_price_copy(const struct sg_vop *v, uint64_t start_ns);   /* of a copy or fill that starts then */
enum sg_line sg_price_line(const struct sg_vop *v, int *device_out); /* where a done one runs */
uint64_t sg_price_least(const struct sg_vop *v);                     /* one that is not done lasts at least that */

uint64_t sg_price_host(void);      /* of a host function */
uint64_t sg_price_delay(int kind); /* from the end of the call to the earliest start */

/* Places a done operation on its line. */
struct sg_slot sg_timed_find(const struct sg_vop *v, enum sg_line line, int device, uint64_t ready_ns);
void sg_timed_add(const struct sg_vop *v, enum sg_line line, int device, const struct sg_slot *slot);
struct sg_timed *sg_timed(int device);
struct sg_kernel_total *sg_kernel_total(const char *name); /* made at need; NULL: out of host memory */
void sg_kernel_report(FILE *f);
void sg_timed_busy(int device, struct sg_busy *busy_out);
void sg_timeline_note(const struct sg_vop *v, int line, int device, uint64_t start_ns, uint64_t end_ns);
uint64_t sg_time_total_ns(void);

#endif
