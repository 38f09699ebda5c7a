#include "space/ledger.h"

#include "space/budget.h"
#include "space/internal.h"
#include "space/share.h"

/*
 * A thread's credit is an atomic that its owner draws on and that anybody may take back to the pool (by exchange), so a
 * thread that stopped allocating cannot hold bytes hostage.
 */

static struct hr_mutex ledger_lock = HR_MUTEX_INIT(HR_RANK_LEDGER, "ledger");
static size_t first_pool_bytes, first_vram_bytes, first_cap_bytes[HR_MAX_GPUS]; /* set once */
static size_t vram_part_bytes; /* guarded by ledger_lock: of the pool */
static size_t promised_bytes;  /* guarded by ledger_lock: host memory, in the per-user ledger */
static _Atomic(size_t) host_used_bytes;
static size_t pool_bytes;             /* guarded by ledger_lock */
static size_t cap_bytes[HR_MAX_GPUS]; /* guarded by ledger_lock */
static size_t batch_bytes;            /* set once */
static unsigned gpus;                 /* set once */
static size_t drawn_total;            /* guarded by ledger_lock: charges and credits */
static size_t drawn[HR_MAX_GPUS];     /* guarded by ledger_lock */
static size_t peak_bytes;             /* guarded by ledger_lock: highest drawn_total, credits included */

void hr_ledger_init(size_t vram_bytes, size_t host_bytes, unsigned gpu_count, const size_t *window_cap_bytes)
{
    size_t pool = vram_bytes + host_bytes;
    first_vram_bytes = vram_part_bytes = vram_bytes;
    first_pool_bytes = pool_bytes = pool;
    gpus = gpu_count;
    size_t smallest = pool;
    for (unsigned g = 0; g < gpu_count; g++) {
        first_cap_bytes[g] = cap_bytes[g] = window_cap_bytes[g];
        if (cap_bytes[g] < smallest)
            smallest = cap_bytes[g];
    }
    /* Large enough that few charges take the lock, small enough that idle credits do not matter. */
    batch_bytes = smallest / 64 < ((size_t)64 << 20) ? smallest / 64 : (size_t)64 << 20;
}

void hr_ledger_lower(unsigned gpu, size_t cap, size_t vram_bytes)
{
    hr_mutex_lock(&ledger_lock);
    cap_bytes[gpu] = cap < first_cap_bytes[gpu] ? cap : first_cap_bytes[gpu];
    vram_part_bytes = vram_bytes < first_vram_bytes ? vram_bytes : first_vram_bytes;
    pool_bytes = first_pool_bytes - (first_vram_bytes - vram_part_bytes);
    hr_mutex_unlock(&ledger_lock);
}

static void give_back_locked(unsigned gpu, size_t bytes)
{
    drawn[gpu] -= bytes;
    drawn_total -= bytes;
}

static bool fits_locked(unsigned gpu, size_t bytes)
{
    return bytes <= cap_bytes[gpu] && drawn[gpu] <= cap_bytes[gpu] - bytes && bytes <= pool_bytes &&
           drawn_total <= pool_bytes - bytes;
}

/* Calls every thread's credits back. */
static void recall_locked(void)
{
    for (struct hr_thread *t = hr_thread_first(); t; t = t->next) {
        struct hr_space_thread *s =
            __atomic_load_n((struct hr_space_thread **)&t->room[HR_ROOM_SPACE], __ATOMIC_ACQUIRE);
        for (unsigned g = 0; s && g < gpus; g++)
            give_back_locked(g, atomic_exchange(&s->credit_bytes[g], 0));
    }
}

#define PROMISE_STEP_BYTES ((size_t)256 << 20)

/* Makes sure that the host part of `total` drawn bytes is promised; false = other processes have promised it. */
static bool promise_locked(size_t total)
{
    size_t need = total > vram_part_bytes ? total - vram_part_bytes : 0;
    if (need <= promised_bytes)
        return true;
    size_t used = atomic_load(&host_used_bytes), available = hr_budget_available_bytes();
    size_t most = pool_bytes - vram_part_bytes,
           step = need + PROMISE_STEP_BYTES < most ? need + PROMISE_STEP_BYTES : most;
    if (hr_share_promise(step, used, available))
        promised_bytes = step;
    else if (hr_share_promise(need, used, available))
        promised_bytes = need;
    return need <= promised_bytes;
}

void hr_ledger_host_used(ptrdiff_t bytes)
{
    atomic_fetch_add(&host_used_bytes, (size_t)bytes);
}

static bool draw(struct hr_space_thread *s, unsigned gpu, size_t bytes)
{
    hr_mutex_lock(&ledger_lock);
    size_t extra = batch_bytes;
    bool ok = fits_locked(gpu, bytes + extra);
    if (!ok) {
        extra = 0;
        ok = fits_locked(gpu, bytes);
    }
    if (!ok) {
        recall_locked();
        ok = fits_locked(gpu, bytes);
    }
    if (ok && !promise_locked(drawn_total + bytes + extra)) {
        extra = 0;
        ok = promise_locked(drawn_total + bytes);
    }
    if (ok) {
        drawn[gpu] += bytes + extra;
        drawn_total += bytes + extra;
        if (drawn_total > peak_bytes)
            peak_bytes = drawn_total;
        atomic_fetch_add_explicit(&s->credit_bytes[gpu], extra, memory_order_relaxed);
    }
    hr_mutex_unlock(&ledger_lock);
    return ok;
}

bool hr_ledger_charge(struct hr_thread *t, unsigned gpu, size_t bytes)
{
    struct hr_space_thread *s = hr_space_thread(t);
    if (!s)
        return false;
    uint64_t credit = atomic_load_explicit(&s->credit_bytes[gpu], memory_order_relaxed);
    while (credit >= bytes)
        if (atomic_compare_exchange_weak(&s->credit_bytes[gpu], &credit, credit - bytes))
            return true;
    return draw(s, gpu, bytes);
}

void hr_ledger_uncharge(struct hr_thread *t, unsigned gpu, size_t bytes)
{
    struct hr_space_thread *s = hr_space_thread(t);
    uint64_t credit = 0;
    if (s)
        credit = atomic_fetch_add(&s->credit_bytes[gpu], bytes) + bytes;
    if (s && credit <= 2 * batch_bytes)
        return;
    hr_mutex_lock(&ledger_lock);
    give_back_locked(gpu, s ? atomic_exchange(&s->credit_bytes[gpu], 0) : bytes);
    hr_mutex_unlock(&ledger_lock);
}

void hr_ledger_flush_thread(struct hr_thread *t)
{
    struct hr_space_thread *s = t->room[HR_ROOM_SPACE];
    hr_mutex_lock(&ledger_lock);
    for (unsigned g = 0; s && g < gpus; g++)
        give_back_locked(g, atomic_exchange(&s->credit_bytes[g], 0));
    hr_mutex_unlock(&ledger_lock);
}

static size_t credits_locked(unsigned gpu)
{
    size_t sum = 0;
    for (struct hr_thread *t = hr_thread_first(); t; t = t->next) {
        struct hr_space_thread *s =
            __atomic_load_n((struct hr_space_thread **)&t->room[HR_ROOM_SPACE], __ATOMIC_ACQUIRE);
        if (s)
            sum += atomic_load_explicit(&s->credit_bytes[gpu], memory_order_relaxed);
    }
    return sum;
}

static size_t minus(size_t a, size_t b)
{
    return a > b ? a - b : 0;
}

size_t hr_ledger_charged(unsigned gpu)
{
    hr_mutex_lock(&ledger_lock);
    size_t charged = minus(drawn[gpu], credits_locked(gpu));
    hr_mutex_unlock(&ledger_lock);
    return charged;
}

size_t hr_ledger_capacity(unsigned gpu)
{
    return first_cap_bytes[gpu] < first_pool_bytes ? first_cap_bytes[gpu] : first_pool_bytes;
}

size_t hr_ledger_free(unsigned gpu)
{
    hr_mutex_lock(&ledger_lock);
    size_t total = drawn_total;
    for (unsigned g = 0; g < gpus; g++)
        total = minus(total, credits_locked(g));
    size_t in_window = minus(cap_bytes[gpu], minus(drawn[gpu], credits_locked(gpu)));
    size_t in_pool = minus(pool_bytes, total);
    hr_mutex_unlock(&ledger_lock);
    return in_window < in_pool ? in_window : in_pool;
}

size_t hr_ledger_peak(void)
{
    hr_mutex_lock(&ledger_lock);
    size_t peak = peak_bytes;
    hr_mutex_unlock(&ledger_lock);
    return peak;
}
