/*
 * Grids: which block runs next, on which thread, and when it is over.
 *
 * At most max_resident_blocks blocks are alive. New ones start in linear order, but as late as possible: as long as the
 * started ones come to an end, few are alive and their state stays in the cache. When rounds go by without an end (blocks
 * that wait for each other), twice as many may be alive, up to the limit, so that every block that hardware would hold
 * at once gets its turn.
 */
#include "simgpu/ptx/block.h"

#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#define COOPERATIVE_SLICE 1024 /* of a cooperative grid: its blocks wait for each other often */
#define PATIENT_ROUNDS 4       /* without any block's end, before more may be alive */

struct ptx_grid {
    pthread_mutex_t lock; /* guards everything below it that changes; a leaf but for the pool's */
    struct ptx_grid_args args;
    uint8_t *params;
    struct ptx_block_shape shape;
    ptx_interp_fn *interp;
    uint64_t total, finished;
    char apart[64];         /* what all threads write is kept off the cache lines that they only read */
    _Atomic(uint64_t) next; /* also taken without the lock, see run_blocks */
    char apart_too[64];
    atomic_bool others_wait; /* ready_count > 0; read without the lock */
    uint64_t id;
    atomic_bool stop;
    unsigned running; /* threads inside a slice */
    struct ptx_block **ready;
    uint32_t ready_count, ready_capacity;
    struct ptx_block **spare; /* memory of blocks that ended */
    uint32_t spare_count, spare_capacity;
    uint32_t alive, alive_limit;
    uint64_t slices_since_end;
    uint64_t watch, watches; /* the round of spin.c, 0 = none; how many there were */
    uint32_t came_back;      /* alive blocks, in this round */
    uint64_t random;
    struct ptx_counters counters;
    struct ptx_fault fault;
    uint64_t fault_block;
    uint32_t fault_thread;
};

static uint64_t next_random(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

struct ptx_grid *ptx_grid_create(const struct ptx_grid_args *args)
{
    static _Atomic(uint64_t) last_id;
    const struct ptx_function *f = args->function;
    size_t params_bytes = (f->formal_bytes + 15) & ~15u;
    struct ptx_grid *g = calloc(1, sizeof(*g) + params_bytes);
    if (!g)
        return NULL;
    pthread_mutex_init(&g->lock, NULL);
    g->args = *args;
    g->params = (uint8_t *)(g + 1);
    if (f->formal_bytes)
        memcpy(g->params, args->params, f->formal_bytes);
    g->args.params = g->params;
    if (!g->args.max_resident_blocks)
        g->args.max_resident_blocks = 1;
    if (!g->args.sm_count)
        g->args.sm_count = 1;
    g->total = (uint64_t)args->grid[0] * args->grid[1] * args->grid[2];
    g->shape.threads = args->block[0] * args->block[1] * args->block[2];
    memcpy(g->shape.ntid, args->block, sizeof(g->shape.ntid));
    g->shape.shared_bytes = args->dynamic_shared_bytes ? f->dynamic_shared_offset + args->dynamic_shared_bytes
                                                       : f->info.static_shared_bytes;
    g->shape.stack_bytes = f->stack_bytes;
    g->shape.local_bytes = f->info.local_bytes;
    g->interp = ptx_interp_best();
    g->alive_limit = args->cooperative ? UINT32_MAX : 1;
    g->random = args->seed;
    g->id = atomic_fetch_add(&last_id, 1) + 1;
    return g;
}

void ptx_grid_destroy(struct ptx_grid *g)
{
    if (!g)
        return;
    for (uint32_t i = 0; i < g->ready_count; i++)
        ptx_block_destroy(g->ready[i]);
    for (uint32_t i = 0; i < g->spare_count; i++)
        ptx_block_destroy(g->spare[i]);
    free(g->ready);
    free(g->spare);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

static bool push(struct ptx_block ***list, uint32_t *count, uint32_t *capacity, struct ptx_block *b)
{
    if (*count == *capacity) {
        uint32_t more = *capacity ? *capacity * 2 : 8;
        struct ptx_block **bigger = realloc(*list, more * sizeof(*bigger));
        if (!bigger)
            return false;
        *list = bigger;
        *capacity = more;
    }
    (*list)[(*count)++] = b;
    return true;
}

static void start_block(const struct ptx_grid *g, struct ptx_block *b, uint64_t linear)
{
    uint32_t ctaid[3] = {(uint32_t)(linear % g->args.grid[0]), (uint32_t)(linear / g->args.grid[0] % g->args.grid[1]),
                         (uint32_t)(linear / g->args.grid[0] / g->args.grid[1])};
    ptx_block_start(b, linear, ctaid, g->args.function->entry_pc, g->shape.shared_bytes);
}

/* The next block that nobody has started, if there is one. Needs no lock. */
static bool take_next(struct ptx_grid *g, uint64_t *linear_out)
{
    uint64_t next = atomic_load_explicit(&g->next, memory_order_relaxed);
    do {
        if (next >= g->total)
            return false;
    } while (
        !atomic_compare_exchange_weak_explicit(&g->next, &next, next + 1, memory_order_relaxed, memory_order_relaxed));
    *linear_out = next;
    return true;
}

static void spare_block_locked(struct ptx_grid *g, struct ptx_block *b)
{
    if (!push(&g->spare, &g->spare_count, &g->spare_capacity, b))
        ptx_block_destroy(b);
}

static struct ptx_block *start_locked(struct ptx_grid *g)
{
    struct ptx_block *b = g->spare_count ? g->spare[--g->spare_count] : ptx_block_create(&g->shape);
    uint64_t linear;
    if (!b)
        return NULL;
    if (!take_next(g, &linear)) { /* another thread was faster */
        spare_block_locked(g, b);
        return NULL;
    }
    g->alive++;
    start_block(g, b, linear);
    return b;
}

/* A block for this thread, or NULL. */
static struct ptx_block *choose_locked(struct ptx_grid *g)
{
    bool may_start =
        g->next < g->total && g->alive < g->args.max_resident_blocks && (!g->ready_count || g->alive < g->alive_limit);
    uint32_t choices = g->ready_count + may_start;
    if (!choices)
        return NULL;
    uint32_t pick = choices == 1 ? 0 : (uint32_t)(next_random(&g->random) % choices);
    if (may_start && g->args.cooperative)
        pick = g->ready_count;
    if (pick == g->ready_count) {
        struct ptx_block *b = start_locked(g);
        if (b || !g->ready_count)
            return b;
        pick = 0;
    }
    struct ptx_block *b = g->ready[pick];
    g->ready[pick] = g->ready[--g->ready_count];
    atomic_store_explicit(&g->others_wait, g->ready_count > 0, memory_order_relaxed);
    return b;
}

static void add_counters(struct ptx_counters *to, const struct ptx_counters *from)
{
    to->warp_instructions += from->warp_instructions;
    to->thread_instructions += from->thread_instructions;
    to->flops += from->flops;
    to->double_flops += from->double_flops;
    to->tensor_flops += from->tensor_flops;
    to->tensor_work += from->tensor_work;
    to->accesses += from->accesses;
    for (unsigned t = 0; t < SG_TIER_COUNT; t++) {
        to->read_bytes[t] += from->read_bytes[t];
        to->write_bytes[t] += from->write_bytes[t];
    }
}

static void note_fault_locked(struct ptx_grid *g, const struct ptx_run *r)
{
    uint64_t block = r->block->linear;
    bool first = g->fault.kind == PTX_FAULT_NONE || block < g->fault_block ||
                 (block == g->fault_block && r->fault_thread < g->fault_thread);
    if (first) {
        g->fault = r->fault;
        g->fault_block = block;
        g->fault_thread = r->fault_thread;
    }
    atomic_store_explicit(&g->stop, true, memory_order_relaxed);
}

static void init_run(struct ptx_run *r, const struct ptx_grid *g)
{
    const struct ptx_function *f = g->args.function;
    memset(r, 0, sizeof(*r));
    r->module = f->module;
    r->function = f;
    r->code = f->module->code;
    r->consts = f->module->consts;
    r->pagetable = g->args.pagetable;
    r->params = g->params;
    r->shared_offset = f->shared_offset;
    r->shared_bytes = g->shape.shared_bytes;
    r->local_bytes = g->shape.local_bytes;
    r->stack_bytes = g->shape.stack_bytes;
    r->dynamic_shared_bytes = g->args.dynamic_shared_bytes;
    memcpy(r->ntid, g->args.block, sizeof(r->ntid));
    memcpy(r->nctaid, g->args.grid, sizeof(r->nctaid));
    r->sm_count = g->args.sm_count;
    r->grid_id = g->id;
    r->clock_ns = g->args.clock_ns;
    r->heap = g->args.heap;
    r->set_condition = g->args.set_condition;
    r->context = g->args.context;
    r->fifo = g->args.fifo;
    r->texture = g->args.texture;
}

static void finish_slice_locked(struct ptx_grid *g, struct ptx_run *r, uint64_t ended, enum ptx_slice how)
{
    struct ptx_block *b = r->block;
    if (ended) {
        g->watch = 0;
        g->finished += ended;
        g->slices_since_end = 0;
    }
    g->slices_since_end++;
    if (how == PTX_SLICE_FAULT)
        note_fault_locked(g, r);
    if (how == PTX_SLICE_SPENT && g->watch)
        g->came_back += ptx_block_came_back(b, &g->shape, g->watch);
    if (how == PTX_SLICE_SPENT && push(&g->ready, &g->ready_count, &g->ready_capacity, b)) {
        atomic_store_explicit(&g->others_wait, true, memory_order_relaxed);
        if (g->slices_since_end >= (uint64_t)PATIENT_ROUNDS * g->alive &&
            g->alive_limit < g->args.max_resident_blocks) {
            g->alive_limit = g->alive_limit > UINT32_MAX / 2 ? UINT32_MAX : g->alive_limit * 2;
            g->slices_since_end = 0;
        }
        return;
    }
    if (how == PTX_SLICE_SPENT) { /* no memory for the list: the grid cannot go on */
        r->fault = (struct ptx_fault){.kind = PTX_FAULT_ABORTED, .space = "generic"};
        note_fault_locked(g, r);
    }
    g->alive--;
    if (how == PTX_SLICE_DONE) {
        g->watch = 0;
        g->finished++;
        g->slices_since_end = 0;
    }
    spare_block_locked(g, b);
}

static bool is_done_locked(const struct ptx_grid *g)
{
    bool stopped = atomic_load_explicit(&g->stop, memory_order_relaxed);
    return (g->finished == g->total || stopped) && !g->running;
}

/* Host threads may come with other rounding or flushing; kernels need the default. Returns what was set. */
static uint32_t enter_float_mode(void)
{
#if defined(__x86_64__)
    uint32_t before = _mm_getcsr();
    if ((before & 0xffc0) != 0x1f80)
        _mm_setcsr(0x1f80);
    return before;
#elif defined(__aarch64__)
    uint64_t before;
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    if (before)
        __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0));
    return (uint32_t)before;
#else
    return 0;
#endif
}

static void leave_float_mode(uint32_t before)
{
#if defined(__x86_64__)
    if ((before & 0xffc0) != 0x1f80)
        _mm_setcsr(before);
#elif defined(__aarch64__)
    if (before)
        __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)before));
#else
    (void)before;
#endif
}

/*
 * Runs r->block, then in its place the next ones, as long as each comes to its end within the budget and no other waits for a
 * turn: many small blocks then cost no lock each. Counts those that ended but the last.
 */
static enum ptx_slice run_blocks(struct ptx_grid *g, struct ptx_run *r, uint64_t budget, uint64_t *ended_out)
{
    const uint64_t most = g->args.cooperative ? COOPERATIVE_SLICE : PTX_SLICE;
    for (uint64_t linear;;) {
        uint64_t used = r->counters.warp_instructions + *ended_out;
        uint64_t slice = budget - used < most ? budget - used : most;
        enum ptx_slice how = ptx_block_run(r, g->interp, slice, &g->stop);
        if (how != PTX_SLICE_DONE || r->counters.warp_instructions + *ended_out + 1 >= budget ||
            atomic_load_explicit(&g->stop, memory_order_relaxed) ||
            atomic_load_explicit(&g->others_wait, memory_order_relaxed) || !take_next(g, &linear))
            return how;
        start_block(g, r->block, linear);
        ++*ended_out;
    }
}

/* Runs slices until the budget is used up or nothing is there to run. The lock is held at entry and exit. */
static enum ptx_progress run_locked(struct ptx_grid *g, uint64_t budget)
{
    uint64_t used = 0;
    bool ran = false;
    struct ptx_run r;
    init_run(&r, g);
    while (!atomic_load_explicit(&g->stop, memory_order_relaxed) && used < budget) {
        r.block = choose_locked(g);
        if (!r.block) {
            if (!g->running && !g->ready_count && g->next < g->total) {
                /* No memory even for one block. */
                g->fault = (struct ptx_fault){.kind = PTX_FAULT_ABORTED, .space = "generic"};
                atomic_store_explicit(&g->stop, true, memory_order_relaxed);
            }
            break;
        }
        ran = true;
        g->running++;
        pthread_mutex_unlock(&g->lock);
        memset(&r.counters, 0, sizeof(r.counters));
        uint64_t ended = 0;
        enum ptx_slice how = run_blocks(g, &r, budget - used, &ended);
        used += r.counters.warp_instructions + ended + 1;
        pthread_mutex_lock(&g->lock);
        g->running--;
        add_counters(&g->counters, &r.counters);
        finish_slice_locked(g, &r, ended, how);
    }
    if (is_done_locked(g))
        return PTX_DONE;
    return ran && !atomic_load_explicit(&g->stop, memory_order_relaxed) ? PTX_RUNNING : PTX_IDLE;
}

enum ptx_progress ptx_grid_run(struct ptx_grid *g, uint64_t warp_instructions)
{
    uint32_t mode = enter_float_mode();
    pthread_mutex_lock(&g->lock);
    enum ptx_progress progress = run_locked(g, warp_instructions ? warp_instructions : 1);
    pthread_mutex_unlock(&g->lock);
    leave_float_mode(mode);
    return progress;
}

void ptx_grid_watch(struct ptx_grid *g)
{
    pthread_mutex_lock(&g->lock);
    g->watch = ++g->watches;
    g->came_back = 0;
    pthread_mutex_unlock(&g->lock);
}

bool ptx_grid_circles(struct ptx_grid *g, struct ptx_spin *spin_out)
{
    pthread_mutex_lock(&g->lock);
    uint64_t left = g->total - g->next;
    bool circles =
        g->watch && g->ready_count && g->came_back == g->alive && (!left || g->alive == g->args.max_resident_blocks);
    if (circles) {
        const struct ptx_block *b = g->ready[0];
        for (uint32_t i = 1; i < g->ready_count; i++)
            if (g->ready[i]->linear < b->linear)
                b = g->ready[i];
        memcpy(spin_out->block, b->ctaid, sizeof(spin_out->block));
        spin_out->line = ptx_block_line(b, g->args.function->module->code);
        spin_out->resident = g->alive;
        spin_out->waiting = left;
    } else if (!g->watch) {
        g->watch = ++g->watches; /* a block ended: all begin anew */
        g->came_back = 0;
    }
    pthread_mutex_unlock(&g->lock);
    return circles;
}

void ptx_grid_abort(struct ptx_grid *g)
{
    pthread_mutex_lock(&g->lock);
    if (g->fault.kind == PTX_FAULT_NONE && g->finished < g->total) {
        g->fault = (struct ptx_fault){.kind = PTX_FAULT_ABORTED, .space = "generic"};
        g->fault_block = 0;
        g->fault_thread = 0;
    }
    atomic_store_explicit(&g->stop, true, memory_order_relaxed);
    pthread_mutex_unlock(&g->lock);
}

const struct ptx_fault *ptx_grid_fault(const struct ptx_grid *g)
{
    return &g->fault;
}

const struct ptx_counters *ptx_grid_counters(const struct ptx_grid *g)
{
    return &g->counters;
}

void ptx_grid_counters_now(struct ptx_grid *g, struct ptx_counters *counters_out)
{
    pthread_mutex_lock(&g->lock);
    *counters_out = g->counters;
    pthread_mutex_unlock(&g->lock);
}
