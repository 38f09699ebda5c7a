#include "residency/shelf.h"

#include "base/lock.h"
#include "residency/context.h"
#include "residency/hidden.h"
#include "residency/peers.h"
#include "residency/pool.h"
#include "residency/quarantine.h"

#include <stdlib.h>
#include <string.h>

/*
 * Small ones lie in short stacks by class, large ones hang in bins by the logarithm of their length, through their extents: so
 * neither allocation nor free takes memory. Shelves are never freed, only used again: all of them are in one list that only grows.
 * A thread remembers the shelves that it used last; `generation` changes whenever one is taken out of use.
 */

#define SLOTS 16
#define BINS 32
#define BUCKETS 256
#define LOOKED_AT_MOST 64 /* in a bin */

struct slots {
    uint32_t count;
    struct {
        CUdeviceptr address;
        uint64_t stamp;
    } slot[SLOTS];
};
struct hr_shelf {
    struct hr_mutex lock;
    struct hr_pool *pool;  /* guarded by lock, and changes under shelves_lock too; NULL = not in use */
    struct hr_order order; /* as pool */
    bool is_over;          /* a pool's own; set once */
    _Atomic(uint32_t) count;
    uint64_t over_before;                 /* guarded by lock: what has a smaller stamp is over */
    struct hr_extent *large[BINS];        /* guarded by lock */
    struct slots small[HR_SMALL_CLASSES]; /* guarded by lock */
    struct hr_shelf *next_of_all;         /* set before it is in the list */
    struct hr_shelf *next;                /* guarded by shelves_lock: in a bucket, or unused */
};

static struct hr_mutex shelves_lock = HR_MUTEX_INIT(HR_RANK_REGISTRY, "shelves");
static struct hr_shelf *buckets[BUCKETS]; /* guarded by shelves_lock */
static struct hr_shelf *unused;           /* guarded by shelves_lock */
static _Atomic(struct hr_shelf *) all;
static _Atomic(uint64_t) waiting; /* allocations on shelves of streams */
static _Atomic(uint32_t) generation;

#define REMEMBERED 4
static _Thread_local struct {
    struct hr_shelf *shelf;
    struct hr_pool *pool;
    struct hr_order order;
    uint32_t generation;
} memo[REMEMBERED] __attribute__((tls_model("initial-exec")));
static _Thread_local unsigned memo_next __attribute__((tls_model("initial-exec")));

/* --- streams and their shelves ------------------------------------------------------------------------------------- */

static bool same_order(const struct hr_order *a, const struct hr_order *b)
{
    return a->stream == b->stream && a->context == b->context && a->thread == b->thread;
}

bool hr_shelf_order(struct hr_thread *t, CUstream stream, bool per_thread_default, struct hr_order *order_out)
{
    bool per_thread = stream == CU_STREAM_PER_THREAD || (per_thread_default && !stream);
    bool legacy = !per_thread && (!stream || stream == CU_STREAM_LEGACY);
    uint32_t now = atomic_load_explicit(&generation, memory_order_acquire);
    for (unsigned i = 0; !per_thread && !legacy && i < REMEMBERED; i++) {
        if (memo[i].shelf && memo[i].generation == now && memo[i].order.stream == stream) {
            *order_out = memo[i].order;
            return true;
        }
    }
    const struct hr_context *context = per_thread || legacy ? hr_context_current() : hr_stream_context(stream);
    if (!context)
        return false;
    *order_out = (struct hr_order){per_thread ? CU_STREAM_PER_THREAD
                                   : legacy   ? NULL
                                              : stream,
                                   context->handle, per_thread ? t->index + 1 : 0, context->gpu};
    return true;
}

static struct hr_shelf *new_shelf(struct hr_pool *pool)
{
    struct hr_shelf *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    hr_mutex_init(&s->lock, HR_RANK_QUEUE, "shelf");
    s->pool = pool;
    struct hr_shelf *head = atomic_load(&all);
    do {
        s->next_of_all = head;
    } while (!atomic_compare_exchange_weak(&all, &head, s));
    return s;
}

struct hr_shelf *hr_shelf_create(struct hr_pool *pool)
{
    struct hr_shelf *s = new_shelf(pool);
    if (s)
        s->is_over = true;
    return s;
}

static struct hr_shelf **bucket_of(const struct hr_pool *pool, const struct hr_order *order)
{
    uint64_t x = (uint64_t)(uintptr_t)order->stream * 31 + (uint64_t)(uintptr_t)order->context * 7 +
                 (uint64_t)(uintptr_t)pool / sizeof *pool + order->thread;
    x ^= x >> 29;
    x *= UINT64_C(0x9e3779b97f4a7c15);
    return &buckets[(x >> 32) % BUCKETS];
}

static struct hr_shelf *find_or_make(struct hr_pool *pool, const struct hr_order *order, bool make)
{
    struct hr_shelf **bucket = bucket_of(pool, order), *s;
    hr_mutex_lock(&shelves_lock);
    for (s = *bucket; s; s = s->next)
        if (s->pool == pool && same_order(&s->order, order))
            break;
    if (!s && make) {
        s = unused;
        if (s)
            unused = s->next;
        else
            s = new_shelf(NULL);
        if (s) {
            hr_mutex_lock(&s->lock);
            s->pool = pool;
            s->order = *order;
            s->over_before = 0;
            hr_mutex_unlock(&s->lock);
            s->next = *bucket;
            *bucket = s;
        }
    }
    hr_mutex_unlock(&shelves_lock);
    return s;
}

static void thread_ended(struct hr_thread *t);

static struct hr_shelf *shelf_of(struct hr_thread *t, struct hr_pool *pool, const struct hr_order *order, bool make)
{
    uint32_t now = atomic_load_explicit(&generation, memory_order_acquire);
    for (unsigned i = 0; i < REMEMBERED; i++)
        if (memo[i].shelf && memo[i].generation == now && memo[i].pool == pool && same_order(&memo[i].order, order))
            return memo[i].shelf;
    struct hr_shelf *s = find_or_make(pool, order, make);
    if (!s)
        return NULL;
    if (order->thread && !t->room[HR_ROOM_SHELVES]) {
        t->room[HR_ROOM_SHELVES] = s; /* any: it says that there are some */
        hr_thread_set_flusher(HR_ROOM_SHELVES, thread_ended);
    }
    unsigned at = memo_next++ % REMEMBERED;
    memo[at].shelf = s;
    memo[at].pool = pool;
    memo[at].order = *order;
    memo[at].generation = now;
    return s;
}

/* --- putting and taking -------------------------------------------------------------------------------------------- */

static unsigned bin_of(uint32_t chunk_count)
{
    return 31u - (unsigned)__builtin_clz(chunk_count);
}

static bool is_large(const struct hr_extent *e)
{
    return atomic_load_explicit(&e->kind, memory_order_relaxed) == HR_EXTENT_LARGE;
}

static struct hr_extent *extent_at(CUdeviceptr address)
{
    return atomic_load_explicit(&hr_space_chunk(address)->extent, memory_order_acquire);
}

static size_t block_bytes(const struct hr_extent *e, unsigned small_class)
{
    return is_large(e) ? (size_t)e->chunk_count << hr_space.chunk_shift : hr_space_small_bytes(small_class);
}

static bool put_locked(struct hr_shelf *s, struct hr_extent *e, CUdeviceptr address, unsigned small_class,
                       uint64_t stamp)
{
    if (is_large(e)) {
        struct hr_extent **bin = &s->large[bin_of(e->chunk_count)];
        e->shelved_stamp = stamp;
        e->next = *bin;
        *bin = e;
    } else {
        struct slots *slots = &s->small[small_class];
        if (slots->count == SLOTS)
            return false;
        slots->slot[slots->count].address = address;
        slots->slot[slots->count++].stamp = stamp;
    }
    atomic_fetch_add_explicit(&s->count, 1, memory_order_relaxed);
    if (!s->is_over)
        atomic_fetch_add_explicit(&waiting, 1, memory_order_relaxed);
    return true;
}

static void taken_locked(struct hr_shelf *s)
{
    atomic_fetch_sub_explicit(&s->count, 1, memory_order_relaxed);
    if (!s->is_over)
        atomic_fetch_sub_explicit(&waiting, 1, memory_order_relaxed);
}

bool hr_shelf_put(struct hr_thread *t, struct hr_pool *pool, const struct hr_order *order, struct hr_extent *e,
                  CUdeviceptr address, size_t bytes)
{
    struct hr_shelf *s = shelf_of(t, pool, order, true);
    if (!s)
        return false;
    hr_mutex_lock(&s->lock);
    bool ok = s->pool == pool && same_order(&s->order, order) &&
              put_locked(s, e, address, hr_space_small_class(bytes), hr_drain_stamp());
    hr_mutex_unlock(&s->lock);
    return ok;
}

/* The shortest of a bin that is long enough; at most an eighth of it may go to waste. */
static struct hr_extent **best_of_bin(struct hr_extent **bin, uint32_t chunk_count)
{
    struct hr_extent **best = NULL;
    unsigned looked = 0;
    for (struct hr_extent **link = bin; *link && looked < LOOKED_AT_MOST; link = &(*link)->next, looked++) {
        uint32_t has = (*link)->chunk_count;
        if (has == chunk_count)
            return link;
        if (has > chunk_count && has - chunk_count <= chunk_count / 8 && (!best || has < (*best)->chunk_count))
            best = link;
    }
    return best;
}

static CUdeviceptr take_locked(struct hr_shelf *s, size_t bytes)
{
    unsigned small_class = hr_space_small_class(bytes);
    if (small_class < HR_SMALL_CLASSES) {
        struct slots *slots = &s->small[small_class];
        if (slots->count == 0)
            return 0;
        taken_locked(s);
        return slots->slot[--slots->count].address;
    }
    uint32_t chunk_count = (uint32_t)((bytes + hr_chunk_bytes() - 1) >> hr_space.chunk_shift);
    unsigned bin = bin_of(chunk_count);
    struct hr_extent **link = best_of_bin(&s->large[bin], chunk_count);
    if (!link && bin + 1 < BINS)
        link = best_of_bin(&s->large[bin + 1], chunk_count);
    if (!link)
        return 0;
    struct hr_extent *e = *link;
    *link = e->next;
    e->next = NULL;
    taken_locked(s);
    return e->base;
}

CUdeviceptr hr_shelf_take(struct hr_thread *t, struct hr_pool *pool, const struct hr_order *order, size_t bytes)
{
    struct hr_shelf *s = order ? shelf_of(t, pool, order, false) : pool->over;
    if (!s || atomic_load_explicit(&s->count, memory_order_relaxed) == 0)
        return 0;
    hr_mutex_lock(&s->lock);
    bool mine = s->pool == pool && (!order || same_order(&s->order, order));
    CUdeviceptr address = mine ? take_locked(s, bytes) : 0;
    hr_mutex_unlock(&s->lock);
    if (!address)
        return 0;
    struct hr_extent *e = extent_at(address);
    if (is_large(e))
        hr_hidden_forget(e);
    hr_space_revive(t, address, bytes);
    return address;
}

bool hr_shelf_any(void)
{
    return atomic_load_explicit(&waiting, memory_order_relaxed) != 0;
}

/* --- clearing out -------------------------------------------------------------------------------------------------- */

/* Something that was taken off a shelf, still dead. */
struct item {
    CUdeviceptr address;
    uint64_t stamp;
    struct hr_pool *pool;
    unsigned small_class; /* HR_SMALL_CLASSES = large */
};
#define BATCH 64

/* What counts as over on one shelf. */
struct rest {
    bool everything; /* take all, whether over or not */
    uint64_t idle, users;
};
static bool is_over(const struct hr_shelf *s, const struct rest *rest, uint64_t stamp)
{
    return s->is_over || stamp < rest->idle || stamp < s->over_before || hr_drain_covers(stamp, rest->users);
}

static unsigned take_some_locked(struct hr_shelf *s, const struct rest *rest, struct item *items, unsigned most)
{
    unsigned n = 0;
    for (unsigned b = 0; b < BINS && n < most; b++) {
        for (struct hr_extent **link = &s->large[b]; *link && n < most;) {
            struct hr_extent *e = *link;
            if (!rest->everything && !is_over(s, rest, e->shelved_stamp)) {
                link = &e->next;
                continue;
            }
            *link = e->next;
            e->next = NULL;
            items[n++] = (struct item){e->base, e->shelved_stamp, s->pool, HR_SMALL_CLASSES};
            taken_locked(s);
        }
    }
    for (unsigned c = 0; c < HR_SMALL_CLASSES && n < most; c++) {
        struct slots *slots = &s->small[c];
        unsigned kept = 0, i = 0;
        for (; i < slots->count && n < most; i++) {
            if (!rest->everything && !is_over(s, rest, slots->slot[i].stamp)) {
                slots->slot[kept++] = slots->slot[i];
                continue;
            }
            items[n++] = (struct item){slots->slot[i].address, slots->slot[i].stamp, s->pool, c};
            taken_locked(s);
        }
        for (; i < slots->count; i++)
            slots->slot[kept++] = slots->slot[i];
        slots->count = kept;
    }
    return n;
}

/* When the stream of a shelf was last found at rest. */
static struct rest rest_of(struct hr_shelf *s, bool everything)
{
    hr_mutex_lock(&s->lock);
    struct hr_order order = s->order;
    const struct hr_pool *pool = s->pool;
    bool used = pool != NULL;
    hr_mutex_unlock(&s->lock);
    struct rest rest = {.everything = everything, .users = used ? hr_peers_users(pool->gpu) : 0};
    if (used && !s->is_over && !order.thread)
        rest.idle = hr_stream_idle(order.stream, order.context);
    return rest;
}

/* Gives it up for good: at once where it is over. */
static void release(struct hr_thread *t, const struct item *item, bool over)
{
    hr_pool_let_go(item->pool, block_bytes(extent_at(item->address), item->small_class));
    if (over)
        hr_quarantine_release_one(t, item->address);
    else
        hr_quarantine_add(t, item->address);
}

/* What is over stays with its pool as far as that may hold so much, for whichever stream. */
static void sort_out(struct hr_thread *t, const struct item *item)
{
    struct hr_pool *pool = item->pool;
    struct hr_shelf *over = pool->over;
    bool kept = false;
    if (atomic_load(&pool->handle) && over && hr_pool_reserved_bytes(pool) <= atomic_load(&pool->threshold_bytes)) {
        hr_mutex_lock(&over->lock);
        kept = put_locked(over, extent_at(item->address), item->address, item->small_class, item->stamp);
        hr_mutex_unlock(&over->lock);
    }
    if (!kept)
        release(t, item, true);
}

void hr_shelf_sweep(struct hr_thread *t)
{
    struct item items[BATCH];
    for (struct hr_shelf *s = atomic_load(&all); s; s = s->next_of_all) {
        if (s->is_over || atomic_load_explicit(&s->count, memory_order_relaxed) == 0)
            continue;
        struct rest rest = rest_of(s, false);
        unsigned n;
        do {
            hr_mutex_lock(&s->lock);
            n = s->pool ? take_some_locked(s, &rest, items, BATCH) : 0;
            hr_mutex_unlock(&s->lock);
            for (unsigned i = 0; i < n; i++)
                sort_out(t, &items[i]);
        } while (n == BATCH);
    }
}

void hr_shelf_ask(struct hr_thread *t)
{
    if (!hr_shelf_any())
        return;
    hr_drain_begin();
    hr_quiet_now(HR_ALL_GPUS);
    hr_shelf_sweep(t);
}

/* Takes everything off; what is over is released, the rest waits in quarantine. */
static void clear(struct hr_thread *t, struct hr_shelf *s)
{
    struct item items[BATCH];
    struct rest rest = rest_of(s, true);
    unsigned n;
    do {
        hr_mutex_lock(&s->lock);
        uint64_t over_before = s->over_before;
        n = s->pool ? take_some_locked(s, &rest, items, BATCH) : 0;
        hr_mutex_unlock(&s->lock);
        for (unsigned i = 0; i < n; i++)
            release(t, &items[i],
                    s->is_over || items[i].stamp < rest.idle || items[i].stamp < over_before ||
                        hr_drain_covers(items[i].stamp, rest.users));
    } while (n == BATCH);
}

void hr_shelf_give_up(struct hr_thread *t)
{
    for (struct hr_shelf *s = atomic_load(&all); s; s = s->next_of_all)
        if (atomic_load_explicit(&s->count, memory_order_relaxed) > 0)
            clear(t, s);
}

void hr_shelf_trim(struct hr_thread *t, struct hr_pool *pool, size_t keep_bytes)
{
    struct hr_shelf *s = pool->over;
    struct rest rest = {.everything = true};
    struct item item;
    for (bool more = s != NULL; more && hr_pool_reserved_bytes(pool) > keep_bytes;) {
        hr_mutex_lock(&s->lock);
        more = take_some_locked(s, &rest, &item, 1) == 1;
        hr_mutex_unlock(&s->lock);
        if (!more)
            break;
        size_t block = block_bytes(extent_at(item.address), item.small_class);
        more = atomic_load(&pool->held_bytes) >= keep_bytes + block;
        if (more)
            release(t, &item, true);
        else
            sort_out(t, &item);
    }
}

/* --- what ends ----------------------------------------------------------------------------------------------------- */

/* Takes a shelf out of use; its content has been cleared by then, or goes where `whose` says. */
static void retire_locked(struct hr_shelf *s)
{
    struct hr_shelf **link = bucket_of(s->pool, &s->order);
    while (*link && *link != s)
        link = &(*link)->next;
    if (*link)
        *link = s->next;
    s->pool = NULL;
    s->next = unused;
    unused = s;
    atomic_fetch_add(&generation, 1);
}

enum ending { OF_STREAM, OF_CONTEXT, OF_THREAD, OF_POOL };

static bool ends(const struct hr_shelf *s, enum ending what, const void *which)
{
    switch (what) {
    case OF_STREAM: return s->order.stream == which && !s->order.thread;
    case OF_CONTEXT: return s->order.context == which;
    case OF_THREAD: return s->order.thread == ((const struct hr_thread *)which)->index + 1;
    default: return s->pool == which;
    }
}

/* No driver call is made, also not at the end of a thread: everything goes to quarantine. */
static void end_shelves(struct hr_thread *t, enum ending what, const void *which)
{
    struct item items[BATCH];
    struct rest rest = {.everything = true};
    atomic_fetch_add(&generation, 1); /* a handle may come back as another stream's, shelf or no shelf */
    for (struct hr_shelf *s = atomic_load(&all); s; s = s->next_of_all) {
        unsigned n = BATCH;
        while (n == BATCH) {
            hr_mutex_lock(&shelves_lock);
            hr_mutex_lock(&s->lock);
            bool ending = s->pool && !s->is_over && ends(s, what, which);
            n = ending ? take_some_locked(s, &rest, items, BATCH) : 0;
            if (ending && n < BATCH)
                retire_locked(s);
            hr_mutex_unlock(&s->lock);
            hr_mutex_unlock(&shelves_lock);
            for (unsigned i = 0; i < n; i++)
                release(t, &items[i], false);
        }
    }
}

static void thread_ended(struct hr_thread *t)
{
    end_shelves(t, OF_THREAD, t);
    t->room[HR_ROOM_SHELVES] = NULL;
}

void hr_shelf_stream_gone(struct hr_thread *t, CUstream stream)
{
    end_shelves(t, OF_STREAM, stream);
}

void hr_shelf_context_gone(struct hr_thread *t, CUcontext context)
{
    end_shelves(t, OF_CONTEXT, context);
}

void hr_shelf_give_up_pool(struct hr_thread *t, struct hr_pool *pool)
{
    if (pool->over)
        clear(t, pool->over);
    end_shelves(t, OF_POOL, pool);
}

void hr_shelf_rested(struct hr_thread *t, uint64_t number)
{
    if (!t->room[HR_ROOM_SHELVES])
        return;
    for (struct hr_shelf *s = atomic_load(&all); s; s = s->next_of_all) {
        hr_mutex_lock(&s->lock);
        if (s->pool && s->order.thread == t->index + 1 && s->over_before < number)
            s->over_before = number;
        hr_mutex_unlock(&s->lock);
    }
}
