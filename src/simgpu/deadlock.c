/*
 * Deadlocks: kernels that wait for what cannot come, such as a block that finds no room as long as they wait, or an operation
 * that is queued behind them. As on hardware they go on for ever; here it is proved and told.
 *
 * The proof: every block on the devices has come back to a state in which it was before, nothing that any of them wrote since
 * has changed a byte, nothing was submitted and nothing ended, and no thread is left that could change that: each thread of the
 * process that ever called the driver waits in it. What cannot be known is given the benefit of the doubt: where pinned host
 * memory is touched (the host or another process may answer) nothing is ever told, and a thread that never called the driver
 * delays it (it may be about to).
 */
#include "simgpu/check.h"

#include <dirent.h>
#include <inttypes.h>
#include <string.h>

#define SLICES_BEFORE 300 /* without any change, before it is looked at closely */
#define SLICES_BETWEEN 32
#define STRANGERS_NS UINT64_C(10000000000) /* how long threads that never called the driver are waited for */
#define WRITES_MOST 64
#define WRITE_BYTES_MOST 256
#define POLLED_MOST 16

#if defined(__SANITIZE_THREAD__)
#define SANITIZER_THREADS 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SANITIZER_THREADS 1
#endif
#endif
#ifndef SANITIZER_THREADS
#define SANITIZER_THREADS 0
#endif

/* Under sg.lock, but what follows watch_lock. */
static struct {
    uint64_t seq, done; /* as they were when it was last seen that something happened */
    uint64_t slices, quiet_since_ns;
    uint64_t told_seq; /* of the last operation that was told of */
    _Atomic(bool) close;
    pthread_mutex_t watch_lock;
    struct {
        const void *host;
        unsigned bytes;
        uint8_t before[WRITE_BYTES_MOST];
    } writes[WRITES_MOST];
    unsigned write_count;
    uint64_t polled[POLLED_MOST];
    unsigned polled_count;
    bool changed, touches_host;
} look = {.watch_lock = PTHREAD_MUTEX_INITIALIZER};

/* Device memory is the program's to race on; see copyexec.c. */
static __attribute__((no_sanitize("thread"))) bool differs(const uint8_t *before, const volatile uint8_t *now,
                                                           unsigned bytes)
{
    bool different = false;
    for (unsigned i = 0; i < bytes; i++)
        different |= before[i] != now[i];
    return different;
}

static __attribute__((no_sanitize("thread"))) void keep(uint8_t *to, const volatile uint8_t *from, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        to[i] = from[i];
}

static void note_write(const void *host, unsigned bytes)
{
    for (unsigned i = 0; i < look.write_count; i++) {
        if (look.writes[i].host != host || look.writes[i].bytes != bytes)
            continue;
        look.changed |= differs(look.writes[i].before, host, bytes);
        return;
    }
    if (look.write_count == WRITES_MOST || bytes > WRITE_BYTES_MOST) {
        look.changed = true; /* it writes here and there: that is work */
        return;
    }
    look.writes[look.write_count].host = host;
    look.writes[look.write_count].bytes = bytes;
    keep(look.writes[look.write_count++].before, host, bytes);
}

static void note_read(uint64_t va)
{
    for (unsigned i = 0; i < look.polled_count; i++)
        if (look.polled[i] == va)
            return;
    if (look.polled_count < POLLED_MOST)
        look.polled[look.polled_count++] = va;
}

void sg_deadlock_access(uint64_t va, const void *host, unsigned bytes, bool write, bool on_host)
{
    if (!atomic_load_explicit(&look.close, memory_order_acquire))
        return;
    pthread_mutex_lock(&look.watch_lock);
    look.touches_host |= on_host;
    if (write)
        note_write(host, bytes);
    else
        note_read(va);
    pthread_mutex_unlock(&look.watch_lock);
}

static void look_closely(void)
{
    pthread_mutex_lock(&look.watch_lock);
    look.write_count = look.polled_count = 0;
    look.changed = look.touches_host = false;
    pthread_mutex_unlock(&look.watch_lock);
    atomic_store_explicit(&look.close, true, memory_order_release);
    struct sg_op *op;
    for (int d = 0; d < sg.device_count; d++)
        DL_FOREACH2(sg.devices[d].grids, op, run_next)
    if (op->kernel.run)
        ptx_grid_watch(op->kernel.run);
}

/* Nothing that a kernel wrote meant anything, and nobody outside can see what it waits for. */
static bool memory_is_still(void)
{
    pthread_mutex_lock(&look.watch_lock);
    bool still = !look.changed && !look.touches_host;
    for (unsigned i = 0; still && i < look.write_count; i++)
        still = !differs(look.writes[i].before, look.writes[i].host, look.writes[i].bytes);
    for (unsigned i = 0; still && i < look.polled_count; i++) {
        const struct sg_mapping *m = sg_mapping_at(look.polled[i]);
        still = !m || !m->chunk->own; /* another process may write to what it shares with us */
    }
    pthread_mutex_unlock(&look.watch_lock);
    return still;
}

static unsigned thread_count(void)
{
    unsigned n = 0;
    DIR *d = opendir("/proc/self/task");
    for (struct dirent *e; d && (e = readdir(d));)
        n += e->d_name[0] != '.';
    if (d)
        closedir(d);
    return n;
}

/* Can nobody on the host do anything any more? */
static bool host_is_stuck(void)
{
    unsigned callers = atomic_load(&sg.api_threads),
             own = sg.workers + sg.copy_threads + sg.config.replay + SANITIZER_THREADS;
    if (sg.blocked_threads < callers)
        return false;
    own += sg.value_threads + sg.object_threads;
    for (int d = 0; d < sg.device_count; d++)
        own += sg.devices[d].host_thread;
    return thread_count() <= callers + own || sg_now_ns() - look.quiet_since_ns > STRANGERS_NS;
}

/* Only kernels run, and each of their blocks goes in circles. The one that is to blame is found by who holds up others. */
static struct sg_op *find_stuck(struct ptx_spin *spin_out)
{
    struct sg_op *found = NULL;
    for (struct sg_stream *s = sg.busy_streams; s; s = s->busy_next) {
        struct sg_op *op = s->head;
        struct ptx_spin spin;
        if (op->kind != SG_OP_KERNEL && op->state != SG_OP_QUEUED)
            return NULL;
        if (op->kind != SG_OP_KERNEL || op->state != SG_OP_RUNNING)
            continue;
        if (!op->kernel.run || !ptx_grid_circles(op->kernel.run, &spin))
            return NULL;
        if (!found || (spin.waiting && !spin_out->waiting)) {
            found = op;
            *spin_out = spin;
        }
    }
    return found;
}

/* What waits for the kernel's end: its own blocks, what is queued behind it, or what waits for room or for an event. */
static bool describe_waiting(const struct sg_op *op, const struct ptx_spin *spin, char *text, size_t text_bytes)
{
    if (spin->waiting) {
        snprintf(text, text_bytes, "%" PRIu64 " of its blocks find no room as long as these %" PRIu64 " run",
                 spin->waiting, spin->resident);
        return true;
    }
    const struct sg_op *behind = op->next;
    for (const struct sg_stream *s = sg.busy_streams; s && !behind; s = s->busy_next)
        if (s->head->state == SG_OP_QUEUED)
            behind = s->head;
    if (!behind)
        return false;
    static const char *const kinds[] = {[SG_OP_KERNEL] = "kernel ",
                                        [SG_OP_COPY] = "a copy",
                                        [SG_OP_FILL] = "a memset",
                                        [SG_OP_RECORD] = "an event's recording",
                                        [SG_OP_WAIT] = "a wait for an event",
                                        [SG_OP_HOST] = "a host function",
                                        [SG_OP_VALUE_WAIT] = "a wait for a value",
                                        [SG_OP_VALUE_WRITE] = "a write of a value",
                                        [SG_OP_ALLOC] = "an allocation",
                                        [SG_OP_FREE] = "a free",
                                        [SG_OP_GRAPH] = "a graph"};
    snprintf(text, text_bytes, "%s%s of stream %" PRIu64 " cannot start before it ends", kinds[behind->kind],
             behind->kind == SG_OP_KERNEL ? behind->kernel.function->info->name : "", behind->stream->number);
    return true;
}

static void tell(struct sg_op *op, const struct ptx_spin *spin)
{
    char waiting[200], where[220] = "", polled[300] = "";
    if (look.told_seq == op->seq || !describe_waiting(op, spin, waiting, sizeof waiting))
        return;
    look.told_seq = op->seq;
    pthread_mutex_lock(&look.watch_lock);
    uint64_t at = look.polled_count ? look.polled[0] : 0;
    pthread_mutex_unlock(&look.watch_lock);
    if (at) {
        sg_describe_memory(at, where, sizeof where);
        snprintf(polled, sizeof polled, ", reading 0x%" PRIx64 " (%s)", at, where);
    }
    sg_finding(SG_FINDING_DEADLOCK, NULL,
               "kernel %s in stream %" PRIu64
               ", block (%u,%u,%u), PTX line %u, goes round in a loop for ever%s: %s, and "
               "every thread that calls the driver waits",
               op->kernel.function->info->name, op->stream->number, spin->block[0], spin->block[1], spin->block[2],
               spin->line, polled, waiting);
    if (sg_check.deadlock_fail)
        sg_context_fail(op->stream->context, CUDA_ERROR_LAUNCH_TIMEOUT,
                        "SIMGPU_CHECK=deadlock=fail: the kernel is ended because of this deadlock");
}

void sg_deadlock_look(struct sg_op *op)
{
    uint64_t done = atomic_load_explicit(&sg.done_count, memory_order_relaxed);
    (void)op;
    if (look.seq != sg.next_seq || look.done != done) {
        look.seq = sg.next_seq;
        look.done = done;
        look.slices = 0;
        look.quiet_since_ns = sg_now_ns();
        atomic_store_explicit(&look.close, false, memory_order_release);
        return;
    }
    if (++look.slices < SLICES_BEFORE || look.slices % SLICES_BETWEEN)
        return;
    if (!atomic_load_explicit(&look.close, memory_order_relaxed)) {
        look_closely();
        return;
    }
    struct ptx_spin spin;
    struct sg_op *stuck = find_stuck(&spin);
    if (!stuck)
        return;
    if (!memory_is_still())
        look_closely();
    else if (host_is_stuck())
        tell(stuck, &spin);
}
