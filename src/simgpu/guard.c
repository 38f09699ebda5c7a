/*
 * The CPU's own accesses to pinned memory that work in flight still uses.
 *
 * With SIMGPU_CHECK=host, memory of cuMemHostAlloc is mapped twice: the job's address, and an alias through which copies and
 * kernels go. From the submission of a copy on until the host has learned that it is over (the clocks of race.c say so), the
 * job's pages are protected: all access to what the copy writes, writing to what it reads. Whoever touches them meanwhile
 * faults, is told of, and goes on; the copy is no longer guarded then.
 *
 * A page is protected only if all that the allocation has in it is used by the copy: nobody else has business there. Nothing
 * is told of programs that are right, so what may have told the host, as race.c sees it, ends the guard.
 */
#include "simgpu/check.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define PAGE UINT64_C(4096)
#define LOCK_PATIENCE_S 60
#define MOST_GUARDS 1024 /* each may cost the process two mappings, of which it has some 65,000 */
#define MOST_FOREIGN 10000

struct sg_guard {
    uint64_t from, to; /* protected pages */
    bool written;      /* the operation writes there */
    const struct sg_op *op;
    struct sg_race_stamp stamp;
    uint64_t stream, bytes;
    struct sg_context *context; /* compared only */
    struct sg_guard *prev, *next;
};

static struct {
    struct sg_guard *live, *spare; /* a signal handler must not free */
    size_t count;                  /* of the live ones */
    uint64_t foreign_va;           /* the last fault in no guard, and how often it came again */
    unsigned foreign_times;
    struct sigaction before;
    bool handles;
    struct sg_context
        *failing; /* compared only: what a handler cannot do is done by the next call that waits or submits */
} guard;

static int protection(const struct sg_guard *g)
{
    return g->written ? PROT_NONE : PROT_READ;
}

static void set_protection(uint64_t from, uint64_t to, int rights)
{
    if (from < to)
        mprotect((void *)(uintptr_t)from, to - from, rights);
}

static bool keeps_protected(const struct sg_guard *o, const struct sg_guard *g)
{
    return o->from <= g->from && o->to >= g->to && o->written >= g->written;
}

/* Those that stay are put back where the pages are theirs, too; the stricter ones last. */
static void lift(struct sg_guard *g)
{
    const struct sg_guard *o;
    DL_DELETE(guard.live, g);
    guard.count--;
    g->next = guard.spare;
    guard.spare = g;
    DL_FOREACH(guard.live, o)
    if (keeps_protected(o, g))
        return; /* with many copies of the same memory, nearly always */
    set_protection(g->from, g->to, PROT_READ | PROT_WRITE);
    for (int written = 0; written < 2; written++)
        DL_FOREACH(guard.live, o)
    if (o->written == written)
        set_protection(o->from > g->from ? o->from : g->from, o->to < g->to ? o->to : g->to, protection(o));
}

/* ---- the fault ---- */

/* A thread may fault while it holds the lock: where a call reads or writes what its arguments point to. */
static bool take_lock(bool *taken_out)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += LOCK_PATIENCE_S;
    int r = pthread_mutex_timedlock(&sg.lock, &until);
    *taken_out = r == 0;
    return r == 0 || r == EDEADLK;
}

static void fail_context(void)
{
    struct sg_context *c, *next;
    if (!guard.failing)
        return;
    DL_FOREACH_SAFE(sg.contexts, c, next)
    if (c == guard.failing)
        sg_finding_fatal(SG_FINDING_HOST_ACCESS, c);
    guard.failing = NULL;
}

enum access { READS, WRITES, ACCESSES };
static const char *const access_words[] = {"reads", "writes", "accesses"};

static void tell(const struct sg_guard *g, uint64_t va, enum access access)
{
    char where[220];
    sg_describe_memory(va, where, sizeof where);
    sg_finding(SG_FINDING_HOST_ACCESS, NULL,
               "the CPU %s 0x%" PRIx64 ", %s, which a copy or memset of %" PRIu64 " bytes (stream %" PRIu64
               ") %s; the host has not waited for it",
               access_words[access], va, where, g->bytes, g->stream, g->written ? "writes" : "reads");
    guard.failing = g->context;
}

/* Another thread may have ended the guard meanwhile; but a fault that comes again and again is of the job's own protection. */
static bool is_stale(uint64_t va)
{
    guard.foreign_times = va == guard.foreign_va ? guard.foreign_times + 1 : 0;
    guard.foreign_va = va;
    return guard.foreign_times < MOST_FOREIGN;
}

/* True: the access may be made again. */
static bool resolve(uint64_t va, enum access access)
{
    struct sg_guard *g, *next;
    const struct sg_host *h = sg_host_at(va & ~(PAGE - 1));
    bool any = false, written = false;
    if (!h || !h->alias)
        return false;
    DL_FOREACH(guard.live, g)
    {
        any |= va >= g->from && va < g->to;
        written |= va >= g->from && va < g->to && g->written;
    }
    if (!any)
        return is_stale(va);
    guard.foreign_times = 0;
    DL_FOREACH_SAFE(guard.live, g, next)
    {
        if (va < g->from || va >= g->to || (access != WRITES && written && !g->written))
            continue; /* reading beside a reader is fine */
        if (!sg_race_may_be_known(&g->stamp, !g->op))
            tell(g, va, access);
        lift(g);
    }
    return true;
}

/* Nobody can be asked in a forked child, and nothing is told of it: its access is let through. */
static bool resolve_in_child(uint64_t va)
{
    const struct sg_guard *g;
    uint64_t page = va & ~(PAGE - 1);
    DL_FOREACH(guard.live, g)
    if (va >= g->from && va < g->to)
        return !mprotect((void *)(uintptr_t)page, PAGE, PROT_READ | PROT_WRITE);
    return false;
}

static void pass_on(int number, siginfo_t *info, void *context)
{
    if (guard.before.sa_flags & SA_SIGINFO)
        guard.before.sa_sigaction(number, info, context);
    else if (guard.before.sa_handler == SIG_DFL || guard.before.sa_handler == SIG_IGN)
        sigaction(number, &guard.before, NULL); /* the access is made again, and ends the process */
    else
        guard.before.sa_handler(number);
}

static enum access access_of(const void *context)
{
#if defined(__x86_64__)
    const ucontext_t *u = context;
    return u->uc_mcontext.gregs[REG_ERR] & 2 ? WRITES : READS;
#else
    (void)context;
    return ACCESSES;
#endif
}

static void on_fault(int number, siginfo_t *info, void *context)
{
    int error = errno;
    bool ours = false, taken;
    uint64_t va = (uint64_t)(uintptr_t)info->si_addr;
    if (info->si_code == SEGV_ACCERR && atomic_load(&sg.forked)) {
        ours = resolve_in_child(va);
    } else if (info->si_code == SEGV_ACCERR && take_lock(&taken)) {
        ours = resolve(va, access_of(context));
        if (taken)
            pthread_mutex_unlock(&sg.lock);
    }
    errno = error;
    if (!ours)
        pass_on(number, info, context);
}

/* ---- memory ---- */

uint64_t sg_guard_map(uint64_t va, uint64_t bytes)
{
    int file = memfd_create("simgpu-pinned", MFD_CLOEXEC);
    if (file < 0)
        return 0;
    void *alias = MAP_FAILED;
    if (!ftruncate(file, (off_t)bytes))
        alias = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (alias != MAP_FAILED &&
        mmap((void *)(uintptr_t)va, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED) {
        munmap(alias, bytes);
        alias = MAP_FAILED;
    }
    close(file);
    if (alias != MAP_FAILED && !guard.handles) {
        struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK};
        guard.handles = !sigaction(SIGSEGV, &action, &guard.before);
    }
    return alias == MAP_FAILED ? 0 : (uint64_t)(uintptr_t)alias;
}

void sg_guard_unmap(const struct sg_host *h)
{
    struct sg_guard *g, *next;
    DL_FOREACH_SAFE(guard.live, g, next)
    if (g->from < h->va + h->map_bytes && h->va < g->to)
        lift(g);
    munmap((void *)(uintptr_t)h->alias, h->map_bytes);
}

/* ---- an operation's life ---- */

static void put(const struct sg_op *op, uint64_t va, uint64_t bytes, bool written)
{
    const struct sg_host *h = sg_host_at(va);
    if (!guard.handles || !h || !h->alias || bytes > h->va + h->bytes - va)
        return;
    if (guard.count >= MOST_GUARDS)
        lift(guard.live);
    uint64_t from = (va + PAGE - 1) & ~(PAGE - 1), to = va + bytes;
    to = to == h->va + h->bytes ? (to + PAGE - 1) & ~(PAGE - 1) : to & ~(PAGE - 1);
    struct sg_guard *g = from < to ? guard.spare : NULL, *o;
    if (g)
        guard.spare = g->next;
    else if (from < to)
        g = malloc(sizeof *g);
    if (!g)
        return;
    *g = (struct sg_guard){.from = from, .to = to, .written = written, .op = op, .bytes = bytes};
    g->stream = op->stream->number;
    g->context = op->stream->context;
    DL_APPEND(guard.live, g);
    guard.count++;
    set_protection(from, to, protection(g));
    if (!written)
        DL_FOREACH(guard.live, o)
    if (o->written)
        set_protection(o->from > from ? o->from : from, o->to < to ? o->to : to, PROT_NONE);
}

void sg_guard_submit(const struct sg_op *op)
{
    fail_context();
    uint64_t set_bytes = op->kind == SG_OP_FILL ? (uint64_t)op->fill.width_bytes * op->fill.height : 0;
    if (set_bytes > SG_FLAG_BYTES && (op->fill.height == 1 || op->fill.pitch == op->fill.width_bytes))
        put(op, op->fill.dst, set_bytes, true);
    if (op->kind != SG_OP_COPY || op->copy.depth != 1)
        return;
    const struct sg_copy *c = &op->copy;
    uint64_t bytes = sg_copy_bytes(c);
    if ((c->height == 1 || c->dst_pitch == c->width_bytes) && bytes > SG_FLAG_BYTES)
        put(op, c->dst, bytes, true);
    if (!c->staging && (c->height == 1 || c->src_pitch == c->width_bytes))
        put(op, c->src, bytes, false);
}

void sg_guard_start(const struct sg_op *op, const struct sg_race_stamp *stamp)
{
    struct sg_guard *g;
    if (op->kind != SG_OP_COPY && op->kind != SG_OP_FILL)
        return;
    DL_FOREACH(guard.live, g)
    if (g->op == op)
        g->stamp = *stamp;
}

void sg_guard_end(const struct sg_op *op, bool done)
{
    struct sg_guard *g, *next;
    if (op->kind != SG_OP_COPY && op->kind != SG_OP_FILL)
        return;
    DL_FOREACH_SAFE(guard.live, g, next)
    {
        if (g->op != op)
            continue;
        g->op = NULL;
        if (!done)
            lift(g);
    }
}

void sg_guard_release(void)
{
    struct sg_guard *g, *next;
    fail_context();
    DL_FOREACH_SAFE(guard.live, g, next)
    if (sg_race_is_known(&g->stamp))
        lift(g);
}

void sg_guard_tell(sg_race_before_fn *is_before, const void *of)
{
    struct sg_guard *g, *next;
    DL_FOREACH_SAFE(guard.live, g, next)
    if (is_before(&g->stamp, of))
        lift(g);
}

void sg_guard_fail(const struct sg_context *context)
{
    struct sg_guard *g, *next;
    DL_FOREACH_SAFE(guard.live, g, next)
    if (g->context == context)
        lift(g);
}
