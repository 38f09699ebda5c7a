#include "residency/context.h"

#include "base/clock.h"
#include "base/lock.h"
#include "base/log.h"
#include "fabric/machine.h"
#include "residency/capture.h"
#include "residency/gpu.h"
#include "space/space.h"

#include <stdlib.h>
#include <time.h>

#define uthash_malloc malloc
#include <uthash.h>

struct context_entry {
    struct hr_context public; /* first: a struct hr_context * is a struct context_entry * */
    struct stream_entry *streams;
    struct orphan *orphans;
    uint64_t legacy_idle; /* as `idle` of a stream, of the legacy stream */
    struct context_entry *next_gone;
    UT_hash_handle hh;
};
struct stream_entry {
    CUstream handle;
    struct context_entry *context;
    uint64_t idle; /* the latest drain whose beginning came before a moment in which this stream was at rest */
    struct stream_entry *next;
    UT_hash_handle hh;
};
/* The last work of a destroyed stream. */
struct orphan {
    CUevent event;
    uint64_t idle; /* as of a stream: from its destruction on it does not change */
    struct orphan *next;
};
/* The last submission of a thread to its per-thread default stream in one context. */
struct thread_fence {
    struct context_entry *context; /* NULL: the context is gone */
    CUevent event;
    uint64_t idle; /* as of a stream */
    bool ended;    /* guarded by fence_lock: its thread is gone, it goes once its work is done */
    struct thread_fence *next_of_thread;
    struct thread_fence *next;
};

static struct hr_mutex fence_lock = HR_MUTEX_INIT(HR_RANK_FENCE, "contexts and streams");
static struct context_entry *contexts; /* guarded by fence_lock */
static struct context_entry *gone; /* guarded by fence_lock: kept, since another thread's memo may still point there */
static struct stream_entry *all_streams;   /* guarded by fence_lock */
static struct thread_fence *thread_fences; /* guarded by fence_lock: of all threads */
static _Atomic(uint64_t) drains_begun, drains_done[HR_MAX_GPUS];
static _Atomic(uint32_t) registry_generation; /* changes whenever an entry goes */
static _Thread_local struct {
    CUcontext handle;
    struct hr_context *context;
    uint32_t generation;
} memo __attribute__((tls_model("initial-exec")));

/* --- links that failed --------------------------------------------------------------------------------------------- */

static _Atomic(bool) link_failed;
static _Atomic(uint64_t) times_told;

void hr_context_told(CUresult r)
{
    if (r != CUDA_ERROR_NVLINK_UNCORRECTABLE)
        return;
    atomic_fetch_add(&times_told, 1);
    hr_fabric_doubt();
}

uint64_t hr_context_times_told(void)
{
    return atomic_load(&times_told);
}

CUresult hr_context_heard(CUresult r)
{
    hr_context_told(r);
    if (r == CUDA_ERROR_NVLINK_UNCORRECTABLE)
        atomic_store(&link_failed, true);
    return r;
}

bool hr_context_link_told(void)
{
    return atomic_load_explicit(&link_failed, memory_order_relaxed);
}

bool hr_context_link_failed(void)
{
    return hr_context_link_told() && atomic_exchange(&link_failed, false);
}

/* --- contexts ----------------------------------------------------------------------------------------------------- */

/* Registers the current context. */
static struct hr_context *context_register(CUcontext handle)
{
    CUdevice device = -1;
    if (hr_drv.cuCtxGetDevice(&device) != CUDA_SUCCESS)
        return NULL;
    int gpu = hr_gpu_of_device(device);
    if (gpu < 0)
        return NULL;
    struct context_entry *entry = NULL;
    bool fresh = false;
    hr_mutex_lock(&fence_lock);
    HASH_FIND_PTR(contexts, &handle, entry);
    if (!entry && (entry = calloc(1, sizeof *entry))) {
        entry->public.handle = handle;
        entry->public.gpu = (unsigned)gpu;
        entry->legacy_idle = atomic_load(&drains_begun);
        HASH_ADD_PTR(contexts, public.handle, entry);
        fresh = true;
    }
    hr_mutex_unlock(&fence_lock);
    if (fresh)
        hr_gpu_context_made((unsigned)gpu);
    return entry ? &entry->public : NULL;
}

struct hr_context *hr_context_current(void)
{
    CUcontext handle = NULL;
    if (hr_drv.cuCtxGetCurrent(&handle) != CUDA_SUCCESS || !handle)
        return NULL;
    uint32_t generation = atomic_load_explicit(&registry_generation, memory_order_acquire);
    if (memo.handle == handle && memo.generation == generation)
        return memo.context;
    struct context_entry *entry = NULL;
    hr_mutex_lock(&fence_lock);
    HASH_FIND_PTR(contexts, &handle, entry);
    hr_mutex_unlock(&fence_lock);
    struct hr_context *context = entry ? &entry->public : context_register(handle);
    memo.handle = handle;
    memo.context = context;
    memo.generation = generation;
    return context;
}

struct hr_context *hr_context_of_gpu(unsigned gpu)
{
    struct hr_context *current = hr_context_current();
    if (current && current->gpu == gpu)
        return current;
    struct hr_context *found = NULL;
    hr_mutex_lock(&fence_lock);
    for (struct context_entry *c = contexts; c && !found; c = c->hh.next)
        if (c->public.gpu == gpu)
            found = &c->public;
    hr_mutex_unlock(&fence_lock);
    return found;
}

struct hr_context *hr_context_of(CUcontext handle)
{
    struct context_entry *entry = NULL;
    CUcontext ignored;
    hr_mutex_lock(&fence_lock);
    HASH_FIND_PTR(contexts, &handle, entry);
    hr_mutex_unlock(&fence_lock);
    if (entry || !handle || hr_drv.cuCtxPushCurrent_v2(handle) != CUDA_SUCCESS)
        return entry ? &entry->public : NULL;
    struct hr_context *context = context_register(handle);
    hr_drv.cuCtxPopCurrent_v2(&ignored);
    return context;
}

CUresult hr_context_enter(struct hr_context *context, bool *pushed_out)
{
    CUcontext current = NULL;
    *pushed_out = false;
    if (hr_drv.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current == context->handle)
        return CUDA_SUCCESS;
    CUresult r = hr_drv.cuCtxPushCurrent_v2(context->handle);
    *pushed_out = r == CUDA_SUCCESS;
    return r;
}

void hr_context_leave(bool pushed)
{
    CUcontext ignored;
    if (pushed)
        hr_drv.cuCtxPopCurrent_v2(&ignored);
}

static void drop_streams_locked(struct context_entry *context)
{
    while (context->streams) {
        struct stream_entry *s = context->streams;
        context->streams = s->next;
        HASH_DEL(all_streams, s); /* NOLINT(clang-analyzer-core.NullDereference): s is in it, so it is not empty */
        free(s);
    }
    while (context->orphans) { /* their events die with the context */
        struct orphan *o = context->orphans;
        context->orphans = o->next;
        free(o);
    }
    for (struct thread_fence *f = thread_fences; f; f = f->next)
        if (f->context == context)
            f->context = NULL;
}

void hr_context_forget(CUcontext handle)
{
    struct context_entry *entry = NULL;
    hr_mutex_lock(&fence_lock);
    HASH_FIND_PTR(contexts, &handle, entry);
    if (entry) {
        drop_streams_locked(entry);
        HASH_DEL(contexts, entry);
        entry->next_gone = gone;
        gone = entry;
        atomic_fetch_add(&registry_generation, 1);
    }
    hr_mutex_unlock(&fence_lock);
    hr_capture_context_gone(handle);
}

CUcontext hr_context_primary(unsigned gpu)
{
    /* A primary context is the only one whose handle cuDevicePrimaryCtxRetain returns; ask without keeping a reference. */
    CUcontext primary = NULL;
    unsigned flags = 0;
    int active = 0;
    CUdevice device = hr_gpu_device(gpu);
    if (hr_drv.cuDevicePrimaryCtxGetState(device, &flags, &active) != CUDA_SUCCESS || !active ||
        hr_drv.cuDevicePrimaryCtxRetain(&primary, device) != CUDA_SUCCESS)
        return NULL;
    hr_drv.cuDevicePrimaryCtxRelease_v2(device);
    return primary;
}

/* --- streams ------------------------------------------------------------------------------------------------------ */

static void stream_register(struct hr_context *context, CUstream stream)
{
    struct stream_entry *s = context ? calloc(1, sizeof *s) : NULL;
    if (!s) {
        hr_log(HR_LOG_ERROR, "a stream cannot be tracked: out of memory");
        return;
    }
    s->handle = stream;
    s->context = (struct context_entry *)context;
    s->idle = atomic_load(&drains_begun);
    hr_mutex_lock(&fence_lock);
    s->next = s->context->streams;
    s->context->streams = s;
    HASH_ADD_PTR(all_streams, handle, s);
    hr_mutex_unlock(&fence_lock);
}

void hr_stream_created(CUstream stream)
{
    stream_register(hr_context_current(), stream);
}

struct hr_context *hr_stream_context(CUstream stream)
{
    struct stream_entry *s = NULL;
    struct hr_context *context = NULL;
    CUcontext handle = NULL;
    if (!stream || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD)
        return hr_context_current();
    hr_mutex_lock(&fence_lock);
    HASH_FIND_PTR(all_streams, &stream, s);
    if (s)
        context = &s->context->public;
    hr_mutex_unlock(&fence_lock);
    if (!context && hr_drv.cuStreamGetCtx(stream, &handle) == CUDA_SUCCESS)
        context = hr_context_of(handle);
    return context;
}

void hr_stream_created_in(CUstream stream, CUcontext context)
{
    bool pushed = hr_drv.cuCtxPushCurrent_v2(context) == CUDA_SUCCESS;
    if (pushed)
        hr_stream_created(stream);
    else
        hr_log(HR_LOG_ERROR, "a stream cannot be tracked: its context cannot be made current");
    hr_context_leave(pushed);
}

void hr_stream_destroyed(CUstream stream, struct hr_context *context, CUresult r)
{
    if (r != CUDA_SUCCESS && context)
        stream_register(context, stream); /* it is still there, and the job may go on using it */
}

/*
 * What a query says of rest. An error that has ended the context (or its handle) means that nothing of it runs any more; of any
 * other error nothing can be concluded.
 */
static bool busy(CUresult r)
{
    switch (hr_context_heard(r)) {
    case CUDA_ERROR_NVLINK_UNCORRECTABLE: return true; /* tells of an earlier copy, and nothing of what runs now */
    case CUDA_SUCCESS:
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_INVALID_CONTEXT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_INVALID_HANDLE:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED: return false;
    default: return true;
    }
}

/* The last work of a stream that is about to go; its context is made current, since an event belongs to one. */
static void orphan_locked(struct stream_entry *s)
{
    bool pushed;
    if (hr_context_enter(&s->context->public, &pushed) != CUDA_SUCCESS)
        return; /* the context has ended, and its work with it */
    struct orphan *o = NULL;
    CUevent noted;
    bool captures = hr_capture_destroying(s->handle, &noted);
    if ((captures ? noted != NULL : busy(hr_drv.cuStreamQuery(s->handle))) && (o = calloc(1, sizeof *o))) {
        o->event = noted;
        if (captures || (hr_drv.cuEventCreate(&o->event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS &&
                         hr_drv.cuEventRecord(o->event, s->handle) == CUDA_SUCCESS)) {
            o->idle = s->idle;
            o->next = s->context->orphans;
            s->context->orphans = o;
        } else {
            free(o);
            hr_log(HR_LOG_WARN, "a stream was destroyed while busy and could not be fenced");
        }
    }
    hr_context_leave(pushed);
}

static void unlink_stream_locked(struct stream_entry *s)
{
    struct stream_entry **link = &s->context->streams;
    while (*link != s)
        link = &(*link)->next;
    *link = s->next;
    HASH_DEL(all_streams, s);
}

struct hr_context *hr_stream_destroying(CUstream stream)
{
    struct stream_entry *s = NULL;
    struct hr_context *context = NULL;
    HR_RELAXED();
    hr_mutex_lock(&fence_lock);
    HASH_FIND_PTR(all_streams, &stream, s);
    if (s) {
        unlink_stream_locked(s);
        orphan_locked(s);
        context = &s->context->public;
        free(s);
    }
    hr_mutex_unlock(&fence_lock);
    return context;
}

/* The slot of an ended thread gets another owner, whose work must not overwrite these fences. */
static void fences_of_ended_thread(struct hr_thread *t)
{
    hr_mutex_lock(&fence_lock);
    for (struct thread_fence *f = t->room[HR_ROOM_RESIDENCY]; f; f = f->next_of_thread)
        f->ended = true;
    hr_mutex_unlock(&fence_lock);
    t->room[HR_ROOM_RESIDENCY] = NULL;
    hr_capture_thread_ended(t);
}

void hr_fence_per_thread(struct hr_thread *t)
{
    struct hr_context *context = hr_context_current();
    if (!context || hr_capture_takes(CU_STREAM_PER_THREAD, true)) /* then nothing was submitted */
        return;
    HR_RELAXED();
    struct thread_fence *f;
    for (f = t->room[HR_ROOM_RESIDENCY]; f; f = f->next_of_thread)
        if (f->context == (struct context_entry *)context)
            break;
    if (!f) { /* once per thread and context */
        f = calloc(1, sizeof *f);
        if (!f || hr_drv.cuEventCreate(&f->event, CU_EVENT_DISABLE_TIMING) != CUDA_SUCCESS) {
            free(f);
            hr_context_heard(hr_drv.cuStreamSynchronize_ptsz(CU_STREAM_PER_THREAD));
            return;
        }
        f->context = (struct context_entry *)context;
        f->idle = atomic_load(&drains_begun);
        f->next_of_thread = t->room[HR_ROOM_RESIDENCY];
        t->room[HR_ROOM_RESIDENCY] = f;
        hr_thread_set_flusher(HR_ROOM_RESIDENCY, fences_of_ended_thread);
        hr_mutex_lock(&fence_lock);
        f->next = thread_fences;
        thread_fences = f;
        hr_mutex_unlock(&fence_lock);
    }
    if (hr_drv.cuEventRecord_ptsz(f->event, CU_STREAM_PER_THREAD) != CUDA_SUCCESS)
        hr_context_heard(hr_drv.cuStreamSynchronize_ptsz(CU_STREAM_PER_THREAD));
}

/* --- rest --------------------------------------------------------------------------------------------------------- */

static bool orphans_busy_locked(struct context_entry *c)
{
    struct orphan **link = &c->orphans;
    bool any = false;
    while (*link) {
        struct orphan *o = *link;
        if (busy(hr_drv.cuEventQuery(o->event))) {
            any = true;
            link = &o->next;
        } else {
            *link = o->next;
            hr_drv.cuEventDestroy_v2(o->event);
            free(o);
        }
    }
    return any;
}

static bool thread_fences_busy_locked(struct context_entry *c, uint64_t number)
{
    bool any = false;
    for (struct thread_fence **link = &thread_fences; *link;) {
        struct thread_fence *f = *link;
        bool is_busy = f->context == c && busy(hr_drv.cuEventQuery(f->event));
        any = any || is_busy;
        if (f->context == c && !is_busy)
            f->idle = number;
        if (f->ended && !is_busy && (f->context == c || !f->context)) {
            if (f->context)
                hr_drv.cuEventDestroy_v2(f->event);
            *link = f->next;
            free(f);
        } else {
            link = &f->next;
        }
    }
    return any;
}

/* Asks every stream, also after a busy one was found: each that is at rest now counts for the drains that have begun. */
static bool context_busy_locked(struct context_entry *c, uint64_t number)
{
    bool pushed;
    CUresult entered = hr_context_enter(&c->public, &pushed);
    if (entered != CUDA_SUCCESS)
        return busy(entered);
    bool any = busy(hr_capture_query(CU_STREAM_LEGACY, c->public.handle));
    if (!any)
        c->legacy_idle = number;
    for (struct stream_entry *s = c->streams; s; s = s->next) {
        if (busy(hr_capture_query(s->handle, c->public.handle)))
            any = true;
        else
            s->idle = number;
    }
    any = thread_fences_busy_locked(c, number) || any;
    any = orphans_busy_locked(c) || any;
    hr_context_leave(pushed);
    return any;
}

/* Drains of a GPU up to this number are over; whether that is news. */
static bool drain_done(unsigned gpu, uint64_t number)
{
    uint64_t done = atomic_load(&drains_done[gpu]);
    while (done < number)
        if (atomic_compare_exchange_weak(&drains_done[gpu], &done, number))
            return true;
    return false;
}

/*
 * A drain of a GPU is over once each of its streams was at rest at some moment after it began; not all at the same moment:
 * what was submitted before the drain is done then. (A move needs the same moment, see hr_quiet_now.)
 */
static bool note_drains_locked(void)
{
    uint64_t least[HR_MAX_GPUS], begun = atomic_load(&drains_begun);
    for (unsigned g = 0; g < HR_MAX_GPUS; g++)
        least[g] = begun; /* where there is no context nothing runs */
    for (struct context_entry *c = contexts; c; c = c->hh.next) {
        uint64_t *of_gpu = &least[c->public.gpu];
        *of_gpu = c->legacy_idle < *of_gpu ? c->legacy_idle : *of_gpu;
        for (struct stream_entry *s = c->streams; s; s = s->next)
            *of_gpu = s->idle < *of_gpu ? s->idle : *of_gpu;
        for (struct orphan *o = c->orphans; o; o = o->next)
            *of_gpu = o->idle < *of_gpu ? o->idle : *of_gpu;
    }
    for (struct thread_fence *f = thread_fences; f; f = f->next)
        if (f->context && f->idle < least[f->context->public.gpu])
            least[f->context->public.gpu] = f->idle;
    bool news = false;
    for (unsigned g = 0; g < hr_gpu_count(); g++)
        news = drain_done(g, least[g]) || news;
    return news;
}

bool hr_quiet_now(uint64_t gpu_mask)
{
#ifdef HR_MUTANT_SKIP_FENCE
    (void)gpu_mask;
    return true;
#endif
    bool any = false;
    hr_mutex_lock(&fence_lock);
    HR_RELAXED();
    uint64_t number = atomic_load(&drains_begun);
    for (struct context_entry *c = contexts; c; c = c->hh.next)
        any = (context_busy_locked(c, number) && gpu_mask >> c->public.gpu & 1) || any;
    note_drains_locked();
    hr_mutex_unlock(&fence_lock);
    return !any;
}

void hr_streams_leave_alone(void) HR_NO_TSA
{
    hr_mutex_lock(&fence_lock);
}

void hr_streams_leave_alone_end(void) HR_NO_TSA
{
    hr_mutex_unlock(&fence_lock);
}

bool hr_stream_rested(struct hr_thread *t, CUstream stream, bool per_thread, uint64_t number)
{
    struct context_entry *c = (struct context_entry *)hr_context_current();
    struct stream_entry *s = NULL;
    hr_mutex_lock(&fence_lock);
    if (stream == CU_STREAM_PER_THREAD || (per_thread && stream == NULL)) {
        for (struct thread_fence *f = t->room[HR_ROOM_RESIDENCY]; f; f = f->next_of_thread)
            if (c && f->context == c && f->idle < number)
                f->idle = number;
    } else if (stream == NULL || stream == CU_STREAM_LEGACY) {
        if (c && c->legacy_idle < number)
            c->legacy_idle = number;
    } else {
        HASH_FIND_PTR(all_streams, &stream, s);
        if (s && s->idle < number)
            s->idle = number;
    }
    bool news = note_drains_locked();
    hr_mutex_unlock(&fence_lock);
    return news;
}

uint64_t hr_stream_idle(CUstream stream, CUcontext context)
{
    struct context_entry *c = NULL;
    struct stream_entry *s = NULL;
    hr_mutex_lock(&fence_lock);
    if (stream)
        HASH_FIND_PTR(all_streams, &stream, s);
    else
        HASH_FIND_PTR(contexts, &context, c);
    uint64_t idle = s ? s->idle : c ? c->legacy_idle : 0;
    hr_mutex_unlock(&fence_lock);
    return idle;
}

bool hr_context_rested(CUcontext handle, uint64_t number)
{
    struct context_entry *c = NULL;
    bool only = true;
    hr_mutex_lock(&fence_lock);
    HASH_FIND_PTR(contexts, &handle, c);
    for (struct context_entry *other = contexts; c && other; other = other->hh.next)
        only = only && (other == c || other->public.gpu != c->public.gpu);
    unsigned gpu = c ? c->public.gpu : 0;
    hr_mutex_unlock(&fence_lock);
    return c && only && drain_done(gpu, number);
}

bool hr_quiet_wait(uint64_t gpu_mask, uint64_t deadline_ns)
{
    uint64_t number = hr_drain_begin();
    long pause_ns = 2000;
    while (!hr_quiet_now(gpu_mask)) {
        if (hr_clock_ns() >= deadline_ns)
            return false;
        /* The driver offers no wait with a deadline on several streams: poll, ever more slowly up to 100 us. */
        nanosleep(&(struct timespec){0, pause_ns}, NULL);
        pause_ns = pause_ns < 50000 ? pause_ns * 2 : 100000;
    }
    for (unsigned g = 0; g < hr_gpu_count(); g++)
        if (gpu_mask >> g & 1)
            drain_done(g, number);
    return true;
}

uint64_t hr_drain_stamp(void)
{
    return atomic_load(&drains_begun);
}

bool hr_drain_covers(uint64_t stamp, uint64_t gpu_mask)
{
    for (unsigned g = 0; g < hr_gpu_count(); g++)
        if (gpu_mask >> g & 1 && atomic_load(&drains_done[g]) <= stamp)
            return false;
    return true;
}

uint64_t hr_drain_begin(void)
{
    return atomic_fetch_add(&drains_begun, 1) + 1;
}
