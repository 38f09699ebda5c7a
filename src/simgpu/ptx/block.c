/* One block: its memory, its barriers, and a slice of it on one thread. */
#include "simgpu/ptx/block.h"
#include "simgpu/ptx/out.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define WARP_QUANTUM 4096 /* warp instructions before the block's next warp gets its turn */
#define SHARED_POISON 0xcd

/*
 * Memory of blocks that ended is kept for the next ones, of any grid: a launch of a small grid then neither asks the system
 * for memory nor touches fresh pages. Locks: `kept` only, a leaf.
 */
#define KEPT_MOST 64
#define KEPT_MOST_BYTES ((size_t)256 << 20)
static struct {
    pthread_mutex_t lock;
    unsigned count;
    size_t bytes;
    struct {
        void *memory;
        size_t bytes;
    } piece[KEPT_MOST];
} kept = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void *memory_take(size_t *bytes)
{
    size_t want = 64 << 10;
    while (want < *bytes)
        want *= 2;
    *bytes = want;
    void *memory = NULL;
    pthread_mutex_lock(&kept.lock);
    for (unsigned i = kept.count; i-- > 0;) {
        if (kept.piece[i].bytes == want) {
            memory = kept.piece[i].memory;
            kept.piece[i] = kept.piece[--kept.count];
            kept.bytes -= want;
            break;
        }
    }
    pthread_mutex_unlock(&kept.lock);
    if (!memory && posix_memalign(&memory, 4096, want))
        return NULL;
    return memory;
}

static void memory_give(void *memory, size_t bytes)
{
    bool keep;
    pthread_mutex_lock(&kept.lock);
    keep = kept.count < KEPT_MOST && kept.bytes + bytes <= KEPT_MOST_BYTES;
    if (keep) {
        kept.piece[kept.count].memory = memory;
        kept.piece[kept.count++].bytes = bytes;
        kept.bytes += bytes;
    }
    pthread_mutex_unlock(&kept.lock);
    if (!keep)
        free(memory);
}

static void number_threads(struct ptx_block *b, const uint32_t ntid[3])
{
    uint32_t x = 0, y = 0, z = 0;
    for (uint32_t t = 0; t < b->warp_count * PTX_LANES; t++) {
        struct ptx_warp *w = &b->warps[t / PTX_LANES];
        w->tid[0][t % PTX_LANES] = x;
        w->tid[1][t % PTX_LANES] = y;
        w->tid[2][t % PTX_LANES] = z;
        if (++x == ntid[0]) {
            x = 0;
            if (++y == ntid[1])
                y = 0, z++;
        }
    }
}

static size_t padded(size_t bytes)
{
    return (bytes + 63) & ~(size_t)63;
}

struct ptx_block *ptx_block_create(const struct ptx_block_shape *shape)
{
    uint32_t warp_count = (shape->threads + PTX_LANES - 1) / PTX_LANES;
    size_t warps_at = padded(sizeof(struct ptx_block)),
           shared_at = warps_at + padded(warp_count * sizeof(struct ptx_warp));
    size_t registers_at = shared_at + padded(shape->shared_bytes);
    size_t per_warp = padded(shape->stack_bytes), local_per_warp = padded((size_t)shape->local_bytes * PTX_LANES);
    size_t local_at = registers_at + warp_count * per_warp;
    size_t bytes = local_at + warp_count * local_per_warp;
    uint8_t *memory = memory_take(&bytes);
    if (!memory)
        return NULL;
    struct ptx_block *b = (struct ptx_block *)memory;
    memset(b, 0, sizeof(*b));
    b->memory_bytes = bytes;
    b->threads = shape->threads;
    b->warp_count = warp_count;
    b->warps = (struct ptx_warp *)(memory + warps_at);
    b->shared = memory + shared_at;
    for (uint32_t i = 0; i < warp_count; i++) {
        struct ptx_warp *w = &b->warps[i];
        memset(w, 0, sizeof(*w));
        w->index = i;
        w->registers = memory + registers_at + i * per_warp;
        w->stack_bytes = (uint32_t)per_warp;
        w->local = memory + local_at + i * local_per_warp;
        memset(w->registers, 0, sizeof(struct ptx_frame));
    }
    number_threads(b, shape->ntid);
    return b;
}

void ptx_block_destroy(struct ptx_block *b)
{
    if (!b)
        return;
    for (uint32_t i = 0; i < b->warp_count; i++) {
        ptx_async_destroy(&b->warps[i]);
        free(b->warps[i].grown);
    }
    memory_give(b, b->memory_bytes);
}

void ptx_block_start(struct ptx_block *b, uint64_t linear, const uint32_t ctaid[3], uint32_t entry_pc,
                     uint32_t shared_bytes)
{
    b->linear = linear;
    memcpy(b->ctaid, ctaid, sizeof(b->ctaid));
    b->next_warp = 0;
    b->live_threads = b->threads;
    b->barriers_used = 0;
    b->cluster_arrived = b->cluster_phase = 0;
    memset(b->barriers, 0, sizeof(b->barriers));
    memset(b->shared, SHARED_POISON, shared_bytes);
    for (uint32_t i = 0; i < b->warp_count; i++) {
        struct ptx_warp *w = &b->warps[i];
        uint32_t lanes = b->threads - i * PTX_LANES;
        w->live = lanes >= PTX_LANES ? UINT32_MAX : (1u << lanes) - 1;
        w->waiting = w->syncing = w->turn = 0;
        w->starved = false;
        ptx_async_reset(w);
        for (unsigned k = 0; k < PTX_LANES; k++) {
            w->pc[k] = entry_pc;
            w->fp[k] = 0;
        }
    }
}

/* The first place from `at` on that no frame of the other lanes touches. Lanes in the same function at the same place have
 * columns of their own. */
static uint64_t untouched(const struct ptx_run *r, const struct ptx_warp *w, uint32_t others, uint64_t at,
                          const struct ptx_function *callee)
{
    for (uint64_t before = UINT64_MAX; before != at;) {
        before = at;
        for (uint32_t left = others; left; left &= left - 1) {
            unsigned lane = (unsigned)__builtin_ctz(left);
            for (uint32_t fp = w->fp[lane]; fp;) {
                const struct ptx_frame *frame = (const struct ptx_frame *)(w->registers + fp);
                uint32_t number = frame->function[lane];
                uint64_t end = (uint64_t)fp + r->module->by_number[number]->frame_bytes;
                if (fp < at + callee->frame_bytes && at < end && (fp != at || number != callee->number))
                    at = end;
                fp = frame->return_fp[lane];
            }
        }
    }
    return at;
}

uint32_t ptx_run_frame_place(struct ptx_run *r, struct ptx_warp *w, uint32_t lanes, uint32_t fp,
                             const struct ptx_function *callee)
{
    uint64_t at = untouched(r, w, w->live & ~lanes, fp, callee), end = at + callee->frame_bytes;
    if (end > w->stack_bytes) {
        uint64_t bytes = (uint64_t)w->stack_bytes * 2;
        void *memory;
        while (bytes < end)
            bytes *= 2;
        if (bytes > UINT32_MAX || posix_memalign(&memory, 64, bytes))
            return 0;
        memcpy(memory, w->registers, w->stack_bytes);
        memset((uint8_t *)memory + w->stack_bytes, 0, bytes - w->stack_bytes); /* looked at as a whole, see spin.c */
        free(w->grown);
        w->registers = w->grown = memory;
        w->stack_bytes = (uint32_t)bytes;
    }
    return (uint32_t)at;
}

bool ptx_run_fault(struct ptx_run *r, const struct ptx_warp *w, unsigned lane, enum ptx_fault_kind kind, uint32_t pc)
{
    r->fault = (struct ptx_fault){.kind = kind, .line = r->code[pc].line, .space = "generic"};
    memcpy(r->fault.block, r->block->ctaid, sizeof(r->fault.block));
    for (unsigned k = 0; k < 3; k++)
        r->fault.thread[k] = w->tid[k][lane];
    r->fault_thread = w->index * PTX_LANES + lane;
    return false;
}

/* Threads of warps that take part in a barrier with a count, exited ones included: hardware counts whole warps. */
static uint32_t counted(const struct ptx_block *b, uint32_t id, uint32_t arrived_only)
{
    uint32_t threads = arrived_only;
    for (uint32_t i = 0; i < b->warp_count; i++) {
        const struct ptx_warp *w = &b->warps[i];
        uint32_t here = 0;
        if (w->bar_shared)
            here = w->bar_shared == id + 1 ? w->waiting : 0;
        else
            for (uint32_t left = w->waiting; left; left &= left - 1)
                here += w->bar_id[__builtin_ctz(left)] == id;
        if (here)
            threads += PTX_LANES - (uint32_t)__builtin_popcount(w->live);
    }
    return threads;
}

static void release(struct ptx_run *r, uint32_t id)
{
    struct ptx_block *b = r->block;
    struct ptx_barrier *bar = &b->barriers[id];
    for (uint32_t i = 0; i < b->warp_count; i++) {
        struct ptx_warp *w = &b->warps[i];
        uint32_t lanes = 0;
        if (w->bar_shared) { /* all that wait, wait for this one, and for no result */
            w->waiting = w->bar_shared == id + 1 ? 0 : w->waiting;
            continue;
        }
        for (unsigned lane = 0; lane < PTX_LANES; lane++)
            lanes |= (uint32_t)(w->bar_id[lane] == id) << lane;
        lanes &= w->waiting;
        w->waiting &= ~lanes;
        for (uint32_t left = bar->reduces ? lanes : 0; left; left &= left - 1) {
            unsigned lane = (unsigned)__builtin_ctz(left);
            uint32_t *result = (uint32_t *)(w->registers + w->bar_result[lane]);
            bool yes = w->bar_kind[lane] == PTX_BAR_RED_OR ? bar->true_count > 0 : bar->true_count == bar->arrived;
            if (w->bar_kind[lane] == PTX_BAR_RED_POPC)
                result[lane] = bar->true_count;
            else if (w->bar_kind[lane] >= PTX_BAR_RED_AND)
                *result = yes ? *result | 1u << lane : *result & ~(1u << lane);
        }
    }
    *bar = (struct ptx_barrier){0};
    b->barriers_used &= ~(1u << id);
}

static void check(struct ptx_run *r, uint32_t id)
{
    const struct ptx_barrier *bar = &r->block->barriers[id];
    if (bar->count ? counted(r->block, id, bar->arrived) >= bar->count : bar->arrived >= r->block->live_threads)
        release(r, id);
}

void ptx_run_exit(struct ptx_run *r, struct ptx_warp *w, uint32_t lanes)
{
    w->live &= ~lanes;
    w->syncing = 0; /* what waited for these lanes looks again */
    r->block->live_threads -= (uint32_t)__builtin_popcount(lanes);
    for (uint32_t used = r->block->barriers_used; used; used &= used - 1)
        check(r, (uint32_t)__builtin_ctz(used));
    ptx_run_cluster_check(r->block);
}

/* Notes that lanes wait: mostly all of a warp for one barrier, which one field tells; else each lane has its own. */
static void note_waiting(struct ptx_warp *w, const struct ptx_insn *in, uint32_t id, uint32_t result, uint32_t lanes)
{
    bool together = in->aux == PTX_BAR_SYNC && (!w->waiting || w->bar_shared == id + 1);
    if (!together && w->waiting && w->bar_shared) {
        for (uint32_t left = w->waiting; left; left &= left - 1) {
            w->bar_id[__builtin_ctz(left)] = (uint8_t)(w->bar_shared - 1);
            w->bar_kind[__builtin_ctz(left)] = PTX_BAR_SYNC;
        }
    }
    w->bar_shared = together ? id + 1 : 0;
    w->waiting |= lanes;
    for (uint32_t left = together ? 0 : lanes; left; left &= left - 1) {
        unsigned lane = (unsigned)__builtin_ctz(left);
        w->bar_id[lane] = (uint8_t)id;
        w->bar_kind[lane] = (uint8_t)in->aux;
        w->bar_result[lane] = result;
    }
}

bool ptx_run_barrier(struct ptx_run *r, struct ptx_warp *w, const struct ptx_insn *in, const uint8_t *frame,
                     uint32_t fp, uint32_t lanes, uint32_t pc)
{
    unsigned first = (unsigned)__builtin_ctz(lanes);
    const uint8_t *base[2] = {frame, r->consts};
    const uint32_t *ids = (const uint32_t *)(base[in->o[1] >> 31] + (in->o[1] & ~PTX_CONST));
    uint32_t id = ids[first], count = 0;
    if (in->o[2]) {
        count = ((const uint32_t *)(base[in->o[2] >> 31] + (in->o[2] & ~PTX_CONST)))[first];
        if (!count || count % PTX_LANES || count > PTX_MAX_THREADS)
            return ptx_run_fault(r, w, first, PTX_FAULT_ILLEGAL_INSTRUCTION, pc);
    }
    if (id >= PTX_BARRIERS)
        return ptx_run_fault(r, w, first, PTX_FAULT_ILLEGAL_INSTRUCTION, pc);
    struct ptx_barrier *bar = &r->block->barriers[id];
    if (bar->arrived && bar->count != count)
        return ptx_run_fault(r, w, first, PTX_FAULT_ILLEGAL_INSTRUCTION, pc);
    bar->count = count;
    bar->arrived += (uint32_t)__builtin_popcount(lanes);
    r->block->barriers_used |= 1u << id;
    if (in->aux >= PTX_BAR_RED_POPC) {
        uint32_t truth = *(const uint32_t *)(base[in->o[3] >> 31] + (in->o[3] & ~PTX_CONST));
        bar->true_count += (uint32_t)__builtin_popcount(truth & lanes);
        bar->reduces = true;
    }
    if (in->aux != PTX_BAR_ARRIVE)
        note_waiting(w, in, id, in->o[0] + fp, lanes);
    check(r, id);
    return true;
}

uint64_t ptx_run_nanoseconds(const struct ptx_run *r)
{
    if (r->clock_ns)
        return atomic_load_explicit(r->clock_ns, memory_order_relaxed);
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Nothing can run and not all have left. The pc of a waiting lane is past its barrier, or at its .sync instruction. */
static void report_deadlock(struct ptx_run *r)
{
    for (uint32_t i = 0; i < r->block->warp_count; i++) {
        const struct ptx_warp *w = &r->block->warps[i];
        if (!w->live)
            continue;
        unsigned lane = (unsigned)__builtin_ctz(w->live);
        ptx_run_fault(r, w, lane, PTX_FAULT_DEADLOCK, w->pc[lane] - (w->waiting >> lane & 1));
        return;
    }
}

enum ptx_slice ptx_block_run(struct ptx_run *r, ptx_interp_fn *interp, uint64_t budget, const atomic_bool *stop)
{
    struct ptx_block *b = r->block;
    uint32_t idle = 0; /* warps in a row that could not run */
    uint64_t last = r->counters.warp_instructions + budget;
    while (b->live_threads) {
        struct ptx_warp *w = &b->warps[b->next_warp];
        b->next_warp = b->next_warp + 1 == b->warp_count ? 0 : b->next_warp + 1;
        if (!(w->live & ~(w->waiting | w->syncing))) {
            if (++idle < b->warp_count)
                continue;
            report_deadlock(r);
            return PTX_SLICE_FAULT;
        }
        idle = 0;
        if (interp(r, w, WARP_QUANTUM) == PTX_STOP_FAULT)
            return PTX_SLICE_FAULT;
        if (r->counters.warp_instructions >= last || atomic_load_explicit(stop, memory_order_relaxed))
            return b->live_threads ? PTX_SLICE_SPENT : PTX_SLICE_DONE;
    }
    return PTX_SLICE_DONE;
}

static atomic_bool baseline_only;

void ptx_use_baseline(bool baseline)
{
    atomic_store(&baseline_only, baseline);
}

bool ptx_run_wide_vectors(void)
{
#ifdef PTX_HAVE_AVX2
    return !atomic_load(&baseline_only) && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("bmi2");
#else
    return false;
#endif
}

ptx_interp_fn *ptx_interp_best(void)
{
#ifdef PTX_HAVE_AVX512
    if (!atomic_load(&baseline_only) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("bmi2"))
        return ptx_interp_avx512;
#endif
#ifdef PTX_HAVE_AVX2
    if (ptx_run_wide_vectors())
        return ptx_interp_avx2;
#endif
    return ptx_interp_base;
}
