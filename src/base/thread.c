#include "base/thread.h"

#include "base/roots.h"

#include <pthread.h>
#include <sys/mman.h>

/*
 * The list only grows, at its head, by compare-and-swap. A thread that ends marks its slot free; a new thread takes a
 * free slot before it makes one. Slots come from the kernel directly: a host program's malloc may itself be what called.
 */

_Thread_local struct hr_thread *hr_thread_current_slot __attribute__((tls_model("initial-exec"), visibility("hidden")));

static _Atomic(struct hr_thread *) first_slot;
static _Atomic(uint32_t) slot_count;
static void (*_Atomic flushers[HR_ROOM_COUNT])(struct hr_thread *);
static pthread_key_t exit_key;
static pthread_once_t exit_key_once = PTHREAD_ONCE_INIT;

static void thread_ended(void *arg)
{
    struct hr_thread *t = arg;
    for (int room = 0; room < HR_ROOM_COUNT; room++) {
        void (*flush)(struct hr_thread *) = atomic_load(&flushers[room]);
        if (flush && t->room[room])
            flush(t);
    }
    hr_thread_current_slot = NULL;
    atomic_store_explicit(&t->taken, 0, memory_order_release);
}

static void make_exit_key(void)
{
    pthread_key_create(&exit_key, thread_ended);
}

static struct hr_thread *take_free_slot(void)
{
    for (struct hr_thread *t = atomic_load_explicit(&first_slot, memory_order_acquire); t; t = t->next) {
        uint32_t expected = 0;
        if (atomic_load_explicit(&t->taken, memory_order_relaxed) == 0 &&
            atomic_compare_exchange_strong(&t->taken, &expected, 1))
            return t;
    }
    return NULL;
}

static struct hr_thread *make_slot(void)
{
    struct hr_thread *t = mmap(NULL, sizeof *t, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (t == MAP_FAILED)
        return NULL;
    hr_roots_add(t, sizeof *t);
    atomic_store_explicit(&t->taken, 1, memory_order_relaxed);
    t->index = atomic_fetch_add(&slot_count, 1);
    struct hr_thread *head = atomic_load_explicit(&first_slot, memory_order_relaxed);
    do {
        t->next = head;
    } while (!atomic_compare_exchange_weak_explicit(&first_slot, &head, t, memory_order_release, memory_order_relaxed));
    return t;
}

struct hr_thread *hr_thread_register(void)
{
    pthread_once(&exit_key_once, make_exit_key);
    struct hr_thread *t = take_free_slot();
    if (!t)
        t = make_slot();
    if (!t)
        return NULL;
    hr_thread_current_slot = t;
    pthread_setspecific(exit_key, t);
    return t;
}

struct hr_thread *hr_thread_first(void)
{
    return atomic_load_explicit(&first_slot, memory_order_acquire);
}

void hr_thread_set_flusher(enum hr_thread_room room, void (*flush)(struct hr_thread *t))
{
    atomic_store(&flushers[room], flush);
}
