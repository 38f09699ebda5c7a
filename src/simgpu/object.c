/* Handles, sorted ranges, per-thread state, and what every entry point does first and last. */
#include "simgpu/capture.h"
#include "simgpu/green.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

struct sg sg = {
    .lock = PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP, /* guard.c asks whether a thread has it */
    .host_lock = PTHREAD_RWLOCK_INITIALIZER,
    .work_cv = PTHREAD_COND_INITIALIZER,
    .copy_cv = PTHREAD_COND_INITIALIZER,
    .done_cv = PTHREAD_COND_INITIALIZER,
    .print_cv = PTHREAD_COND_INITIALIZER,
    .next_id = UINT64_C(0x51a0000000), /* far from small integers and from anything mapped */
    .next_number = 1,
    .next_buffer_id = 1,
};

void sg_object_add(struct sg_object *object, enum sg_kind kind)
{
    object->id = sg.next_id += 16;
    object->kind = kind;
    HASH_ADD(hh, sg.objects, id, sizeof object->id, object);
}

void sg_object_remove(struct sg_object *object)
{
    HASH_DELETE(hh, sg.objects, object);
}

void *sg_object_find(uint64_t id, enum sg_kind kind)
{
    struct sg_object *found;
    HASH_FIND(hh, sg.objects, &id, sizeof id, found);
    if (found && found->kind == SG_GREEN && kind == SG_CONTEXT)
        return ((struct sg_green *)(void *)found)->primary;
    return found && found->kind == kind ? found : NULL;
}

/* Index of the first range that ends after va. */
static size_t lower(const struct sg_ranges *r, uint64_t va)
{
    size_t low = 0, high = r->count;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (r->at[mid].va + r->at[mid].bytes > va)
            high = mid;
        else
            low = mid + 1;
    }
    return low;
}

bool sg_ranges_add(struct sg_ranges *r, uint64_t va, uint64_t bytes, void *owner)
{
    if (r->count == r->room) {
        size_t room = r->room ? r->room * 2 : 64;
        struct sg_range *more = realloc(r->at, room * sizeof *more);
        if (!more)
            return false;
        r->at = more;
        r->room = room;
    }
    size_t i = lower(r, va);
    memmove(&r->at[i + 1], &r->at[i], (r->count - i) * sizeof r->at[0]);
    r->at[i] = (struct sg_range){va, bytes, owner};
    r->count++;
    return true;
}

void sg_ranges_remove(struct sg_ranges *r, uint64_t va)
{
    size_t i = lower(r, va);
    if (i == r->count || r->at[i].va != va)
        return;
    memmove(&r->at[i], &r->at[i + 1], (r->count - i - 1) * sizeof r->at[0]);
    r->count--;
}

void *sg_ranges_find(const struct sg_ranges *r, uint64_t va)
{
    size_t i = lower(r, va);
    return i < r->count && r->at[i].va <= va ? r->at[i].owner : NULL;
}

bool sg_ranges_overlap(const struct sg_ranges *r, uint64_t va, uint64_t bytes)
{
    size_t i = lower(r, va);
    return i < r->count && r->at[i].va < va + bytes;
}

uint64_t sg_now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

uint64_t sg_random(void)
{ /* xorshift64*; under sg.lock, so that a seed names one order of decisions */
    uint64_t x = sg.random;
    x ^= x >> 12;
    x ^= x << 25;
    x ^= x >> 27;
    sg.random = x;
    return x * UINT64_C(0x2545f4914f6cdd1d);
}

uint64_t sg_call_random(void)
{
    uint64_t z = sg.call_random += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static pthread_key_t thread_key;
static pthread_once_t thread_once = PTHREAD_ONCE_INIT;

static void thread_exit(void *arg)
{
    struct sg_thread *t = arg;
    atomic_fetch_sub(&sg.api_threads, 1);
    if (!atomic_load(&sg.forked)) {
        pthread_mutex_lock(&sg.lock);
        sg_threads_default_streams_retire(t->number);
        pthread_mutex_unlock(&sg.lock);
    }
    free(t);
}

static void thread_key_make(void)
{
    pthread_key_create(&thread_key, thread_exit);
}

struct sg_thread *sg_thread(void)
{
    static _Atomic(uint64_t) numbers = 0;
    static struct sg_thread fallback; /* out of host memory: a state that has no context */
    pthread_once(&thread_once, thread_key_make);
    struct sg_thread *t = pthread_getspecific(thread_key);
    if (!t) {
        t = calloc(1, sizeof *t);
        if (!t)
            return &fallback;
        t->number = atomic_fetch_add(&numbers, 1) + 1;
        atomic_fetch_add(&sg.api_threads, 1);
        t->capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
        pthread_setspecific(thread_key, t);
    }
    return t;
}

CUresult sg_enter_unlocked(const char *function)
{
    if (atomic_load(&sg.forked) || !atomic_load_explicit(&sg.ready, memory_order_acquire))
        return CUDA_ERROR_NOT_INITIALIZED;
    if (sg_thread()->in_host_call)
        return CUDA_ERROR_NOT_PERMITTED; /* a host function must not call CUDA */
    sg_time_call(function);
    if (sg.config.fail_count)
        return sg_fail_check(function);
    return CUDA_SUCCESS;
}

CUresult sg_enter(const char *function)
{
    CUresult r = sg_enter_unlocked(function);
    if (r)
        return r;
    pthread_mutex_lock(&sg.lock);
    r = sg.captures ? sg_capture_check(function) : CUDA_SUCCESS;
    return r ? sg_leave(r) : CUDA_SUCCESS;
}

CUresult sg_enter_context(const char *function, struct sg_context **context_out)
{
    CUresult r = sg_enter(function);
    if (r)
        return r;
    bool dead;
    struct sg_context *context = sg_current(&dead);
    if (dead)
        return sg_leave(CUDA_ERROR_CONTEXT_IS_DESTROYED);
    if (!context)
        return sg_leave(CUDA_ERROR_INVALID_CONTEXT);
    if (context->sticky)
        return sg_leave(context->sticky);
    *context_out = context;
    return CUDA_SUCCESS;
}

CUresult sg_unsupported_inside(const char *what)
{
    sg_log(SG_LOG_WARN, "%s is not supported", what);
    return CUDA_ERROR_NOT_SUPPORTED;
}

CUresult sg_unsupported(const char *function)
{
    CUresult r = sg_enter_unlocked(function);
    if (r)
        return r;
    sg_log(SG_LOG_WARN, "%s is not supported", function);
    return CUDA_ERROR_NOT_SUPPORTED;
}
