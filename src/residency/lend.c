#include "residency/lend.h"

#include "base/config.h"
#include "base/lock.h"
#include "base/log.h"
#include "fabric/discover.h"
#include "fabric/machine.h"
#include "policy/policy.h"
#include "residency/capture.h"
#include "residency/context.h"
#include "residency/evict.h"
#include "residency/fixed.h"
#include "residency/gpu.h"
#include "residency/peers.h"
#include "residency/trip.h"
#include "space/ledger.h"

#include <stdlib.h>
#include <string.h>

/*
 * Who lends: every GPU that transfers may use as well (hr_trip_context). Native atomics over the link are asked for, from the window's GPU and from
 * all that were granted the window, because kernels may use atomics on what they find mapped; where there are none, peer memory
 * would be good for storage only, and links without them (PCIe) are no faster than the way to the host.
 */

static _Atomic(bool) asked;                   /* `native` is filled in */
static _Atomic(uint64_t) native[HR_MAX_GPUS]; /* by user: the GPUs whose memory it reaches, atomics included */
static _Atomic(uint32_t) worth[HR_MAX_GPUS]
                              [HR_MAX_GPUS]; /* MB/s between borrower and lender; 0 = the host is as good */
#define FAILURES_MOST 3
static uint8_t failures[HR_MAX_GPUS][HR_MAX_GPUS]; /* guarded by hr_move_lock: of moves, by borrower and lender */
static uint64_t refused[HR_MAX_GPUS];              /* guarded by hr_move_lock: lenders that failed, by borrower */

static struct hr_phys *lent[HR_MAX_GPUS]; /* guarded by hr_move_lock: by lender, a list */
static _Atomic(uint64_t)
    borrowers[HR_MAX_GPUS];                 /* by lender: windows that have had chunks there since it lent nothing */
static _Atomic(size_t) wanted[HR_MAX_GPUS]; /* by lender: chunks that it needs back */
static struct hr_policy_run *runs;          /* guarded by hr_move_lock */
static size_t runs_capacity;                /* guarded by hr_move_lock */

static _Atomic(CUcontext) contexts[HR_MAX_GPUS]; /* of lenders */

/* ---- who may lend to whom ---- */

static void ask_driver(void)
{
    unsigned gpus = hr_gpu_count();
    for (unsigned a = 0; a < gpus; a++) {
        uint64_t reached = UINT64_C(1) << a;
        for (unsigned b = 0; b < gpus; b++) {
            CUdevice user = hr_gpu_device(a), owner = hr_gpu_device(b);
            int access = 0, atomics = 0;
            if (a != b &&
                hr_drv.cuDeviceGetP2PAttribute(&access, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, user, owner) ==
                    CUDA_SUCCESS &&
                hr_drv.cuDeviceGetP2PAttribute(&atomics, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, user,
                                               owner) == CUDA_SUCCESS &&
                access && atomics)
                reached |= UINT64_C(1) << b;
        }
        atomic_store(&native[a], reached);
    }
    atomic_store(&asked, true);
}

/* What one GPU reaches of another without a third in between. */
static int64_t leg_mbps(const struct hr_graph *graph, uint32_t from, uint32_t to)
{
    for (uint32_t i = graph->first_leg[from]; i < graph->first_leg[from + 1]; i++)
        if (graph->leg[i].to == to)
            return graph->leg[i].mbps;
    return 0;
}

/* What copies have shown; 0 = not measured. */
static int64_t measured_mbps(const struct hr_discovery *machine, unsigned from, unsigned to)
{
    bool there = machine && from < machine->gpus && to < machine->gpus;
    return there ? (int64_t)(machine->pair[from * machine->gpus + to].gbps * 1000) : 0;
}

static int64_t lesser(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/*
 * MB/s, in the slower direction: what goes out comes in again; 0 = the host is as good; 1 = faster than the host, nobody knows how much. That is
 * where atomics are all that tells of links, and no copy was timed.
 */
static uint32_t rate_over_fabric(struct hr_fabric *fabric, const struct hr_fabric_view *view, unsigned borrower,
                                 unsigned lender)
{
    const struct hr_discovery *machine = hr_discovery_of_process();
    int a = hr_fabric_gpu(fabric, (int)borrower), b = hr_fabric_gpu(fabric, (int)lender);
    if (a < 0 || b < 0)
        return 0;
    int64_t link =
        lesser(leg_mbps(view->graph, (uint32_t)a, (uint32_t)b), leg_mbps(view->graph, (uint32_t)b, (uint32_t)a));
    int64_t host =
        lesser(hr_fabric_host_mbps(fabric, (uint32_t)a, true), hr_fabric_host_mbps(fabric, (uint32_t)a, false));
    bool told = view->kinds == HR_LINKS_FABRIC && (!machine || strcmp(machine->links_from, "driver") != 0);
    if (link > 0 && !told) {
        link = lesser(measured_mbps(machine, borrower, lender), measured_mbps(machine, lender, borrower));
        if (link == 0)
            return 1;
    }
    return hr_policy_lend_pays(link, host) ? (uint32_t)lesser(link, UINT32_MAX) : 0;
}

static uint32_t rate_between(struct hr_fabric *fabric, const struct hr_fabric_view *view, unsigned borrower,
                             unsigned lender)
{
    const struct hr_discovery *machine = hr_discovery_of_process();
    uint64_t bits = UINT64_C(1) << borrower | UINT64_C(1) << lender;
    if ((atomic_load(&native[borrower]) & bits) != bits)
        return 0;
    if (machine && borrower < machine->gpus && lender < machine->gpus &&
        (!hr_pair_usable(machine, borrower, lender) || !hr_pair_usable(machine, lender, borrower)))
        return 0;
    return view ? rate_over_fabric(fabric, view, borrower, lender) : 1;
}

/* What is rated depends on who could lend and on the links, and on nothing else that changes. */
static struct {
    _Atomic(uint64_t) able, serial;
} rated;
static struct hr_mutex rating_lock = HR_MUTEX_INIT(HR_RANK_START + 1, "ratings of lenders"); /* whoever fills `worth` */

static void rate_all(struct hr_fabric *fabric, const struct hr_fabric_view *view, uint64_t able)
    HR_REQUIRES(rating_lock)
{
    for (unsigned a = 0; a < hr_gpu_count(); a++)
        for (unsigned b = 0; b < hr_gpu_count(); b++)
            atomic_store_explicit(&worth[a][b], a != b && able >> b & 1 ? rate_between(fabric, view, a, b) : 0,
                                  memory_order_relaxed);
}

void hr_lend_refresh(void)
{
    HR_RELAXED();
    struct hr_fabric *fabric = NULL;
    unsigned gpus = hr_gpu_count(), able_count = 0;
    uint64_t able = 0;
    if (gpus < 2 || hr_config()->peers == HR_PEERS_OFF)
        return;
    for (unsigned g = 0; g < gpus; g++) {
        CUcontext lender = hr_trip_context(g);
        atomic_store(&contexts[g], lender);
        if (lender) {
            able |= UINT64_C(1) << g;
            able_count++;
        }
    }
    if (!atomic_load(&asked) && able_count > 1)
        ask_driver();
    if (able_count > 1 && hr_fabric_get(&fabric) == 0)
        hr_fabric_refresh(fabric);
    const struct hr_fabric_view *view = fabric ? hr_fabric_take(fabric) : NULL;
    uint64_t serial = view ? view->serial : 0;
    if (atomic_load_explicit(&rated.able, memory_order_acquire) != able || atomic_load(&rated.serial) != serial) {
        hr_mutex_lock(&rating_lock);
        rate_all(fabric, view, able_count > 1 ? able : 0);
        atomic_store(&rated.serial, serial);
        atomic_store_explicit(&rated.able, able, memory_order_release);
        hr_mutex_unlock(&rating_lock);
    }
    if (view)
        hr_fabric_drop(fabric, view);
}

CUcontext hr_lend_context(unsigned lender)
{
    return atomic_load(&contexts[lender]);
}

void hr_lend_forget(CUcontext context)
{
    for (unsigned g = 0; g < HR_MAX_GPUS; g++) {
        CUcontext gone = context;
        atomic_compare_exchange_strong(&contexts[g], &gone, NULL);
    }
}

static size_t room_of(unsigned lender)
{
    struct hr_policy_lender l = {.limit_chunks = hr_tier_vram_limit(lender),
                                 .charged_chunks = hr_ledger_charged(lender) >> hr_space.chunk_shift,
                                 .lent_chunks = hr_tier_peer.in_use_chunks(lender),
                                 .free_chunks = hr_tier_vram.available_chunks(lender)};
    return atomic_load(&wanted[lender]) > 0 ? 0 : hr_policy_lend_room(&l);
}

/* Whether everybody who may touch the window reaches the lender's memory. */
static bool all_reach(unsigned gpu, unsigned lender)
{
    uint64_t users = hr_peers_granted(gpu) | UINT64_C(1) << gpu;
    for (unsigned u = 0; users >> u; u++)
        if (users >> u & 1 && !(atomic_load(&native[u]) >> lender & 1))
            return false;
    return true;
}

void hr_lend_begin_locked(unsigned gpu, struct hr_lending *lending_out)
{
    *lending_out = (struct hr_lending){.gpu = gpu};
    for (unsigned b = 0; b < hr_space.gpu_count; b++) {
        uint32_t rate = atomic_load_explicit(&worth[gpu][b], memory_order_relaxed);
        size_t room = rate > 0 && !(refused[gpu] >> b & 1) && all_reach(gpu, b) ? room_of(b) : 0;
        unsigned at = lending_out->count;
        if (room == 0)
            continue;
        for (;
             at > 0 && atomic_load_explicit(&worth[gpu][lending_out->lender[at - 1].gpu], memory_order_relaxed) < rate;
             at--)
            lending_out->lender[at] = lending_out->lender[at - 1];
        lending_out->lender[at].gpu = b;
        lending_out->lender[at].room_chunks = room;
        lending_out->count++;
    }
}

CUresult hr_lend_take_locked(struct hr_lending *lending, struct hr_phys **phys_out)
{
    for (unsigned i = 0; i < lending->count; i++) {
        unsigned lender = lending->lender[i].gpu;
        struct hr_phys *phys;
        if (lending->lender[i].room_chunks == 0)
            continue;
        CUresult r = hr_tier_peer.take(lender, &phys);
        if (r == CUDA_SUCCESS) {
            r = hr_tier_reach(phys, lending->gpu, hr_gpu_device(lending->gpu));
            if (r == CUDA_SUCCESS) {
                lending->lender[i].room_chunks--;
                *phys_out = phys;
                return CUDA_SUCCESS;
            }
            hr_tier_peer.give(phys);
            hr_lend_failed_locked(lending->gpu, UINT64_C(1) << lender);
        }
        lending->lender[i].room_chunks = 0; /* its memory is gone, or out of reach */
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
}

void hr_lend_failed_locked(unsigned gpu, uint64_t lenders)
{
    for (unsigned b = 0; lenders >> b; b++) {
        if (!(lenders >> b & 1) || refused[gpu] >> b & 1 || ++failures[gpu][b] < FAILURES_MOST)
            continue;
        refused[gpu] |= UINT64_C(1) << b;
        hr_log(HR_LOG_INFO, "GPU %u cannot use memory that GPU %u lends: it goes to others, or to host memory", gpu, b);
    }
}

/* ---- what is lent ---- */

static unsigned owner_of(const struct hr_chunk *c)
{
    return atomic_load_explicit(&c->extent, memory_order_acquire)->gpu;
}

void hr_lend_note_locked(struct hr_chunk *c, struct hr_phys *from, struct hr_phys *to)
{
    if (from && from->tier == HR_TIER_PEER) {
        if (from->prev)
            from->prev->next = from->next;
        else
            lent[from->gpu] = from->next;
        if (from->next)
            from->next->prev = from->prev;
        from->next = from->prev = NULL;
        from->holds = NULL;
        if (!lent[from->gpu]) {
            atomic_store(&borrowers[from->gpu], 0);
            atomic_store(&wanted[from->gpu], 0);
        }
    }
    if (to && to->tier == HR_TIER_PEER) {
        to->holds = c;
        to->prev = NULL;
        to->next = lent[to->gpu];
        if (to->next)
            to->next->prev = to;
        lent[to->gpu] = to;
        atomic_fetch_or(&borrowers[to->gpu], UINT64_C(1) << owner_of(c));
    }
}

uint64_t hr_lend_users(unsigned lender)
{
    uint64_t owners = atomic_load(&borrowers[lender]), users = 0;
    for (unsigned g = 0; owners >> g; g++)
        if (owners >> g & 1)
            users |= hr_peers_users(g);
    return users;
}

/* What two GPUs use stays where their atomics meet, and that is here as well. */
static bool may_go(const struct hr_chunk *c)
{
    const struct hr_extent *e = atomic_load_explicit(&c->extent, memory_order_acquire);
    return atomic_load_explicit(&c->state, memory_order_relaxed) == HR_CHUNK_PEER && atomic_load(&e->live) &&
           atomic_load_explicit(&c->pins, memory_order_relaxed) == 0 &&
           !atomic_load_explicit(&e->stays, memory_order_relaxed);
}

/* Lists what may come back, of the windows of these GPUs (a bit each). */
static size_t list_locked(unsigned lender, uint64_t owners) HR_REQUIRES(hr_move_lock)
{
    size_t count = 0;
    for (const struct hr_phys *p = lent[lender]; p; p = p->next) {
        const struct hr_chunk *c = p->holds;
        if (!may_go(c) || !(owners >> owner_of(c) & 1))
            continue;
        if (count == runs_capacity) {
            size_t capacity = runs_capacity ? runs_capacity * 2 : 256;
            struct hr_policy_run *grown = realloc(runs, capacity * sizeof *grown);
            if (!grown)
                break;
            runs = grown;
            runs_capacity = capacity;
        }
        runs[count++] = (struct hr_policy_run){(uint32_t)(c - hr_space.chunks), 1, hr_evict_last_use(c)};
    }
    return count;
}

static int by_address(const void *a, const void *b)
{
    const struct hr_policy_run *x = a, *y = b;
    return x->first_chunk < y->first_chunk ? -1 : x->first_chunk > y->first_chunk;
}

/* Moves chunks of one window, of runs[0..count), all to one tier. Whether more can be tried. */
static bool send_batch_locked(unsigned owner, const struct hr_policy_run *batch, unsigned count, uint64_t span_ns)
    HR_REQUIRES(hr_move_lock)
{
    HR_RELAXED();
    struct hr_move moves[HR_MOVE_MAX];
    const struct hr_tier *to = hr_tier_vram.available_chunks(owner) >= count ? &hr_tier_vram : &hr_tier_host;
    unsigned n = 0;
    for (unsigned i = 0; i < count; i++)
        if (hr_fixed_is(atomic_load(&hr_space.chunks[batch[i].first_chunk].extent)))
            to = &hr_tier_host;
    for (; n < count; n++) {
        moves[n].chunk = &hr_space.chunks[batch[n].first_chunk];
        if (to->take(owner, &moves[n].to) != CUDA_SUCCESS)
            break;
    }
    return hr_move_batch_locked(owner, moves, n, span_ns) == HR_MOVED && n == count;
}

/* Sends runs[0..count) away. The windows that fail are left out. */
static void send_locked(size_t count, uint64_t span_ns) HR_REQUIRES(hr_move_lock)
{
    uint64_t failed = 0;
    if (count == 0)
        return;
    qsort(runs, count, sizeof *runs, by_address);
    for (size_t at = 0; at < count;) {
        unsigned owner = owner_of(&hr_space.chunks[runs[at].first_chunk]), n = 1;
        while (n < HR_MOVE_MAX && at + n < count && owner_of(&hr_space.chunks[runs[at + n].first_chunk]) == owner)
            n++;
        if (!(failed >> owner & 1) && !send_batch_locked(owner, &runs[at], n, span_ns))
            failed |= UINT64_C(1) << owner;
        at += n;
    }
}

/* A batch that cannot come to rest would close the gate in vain, and make later batches wait. */
static uint64_t resting_borrowers(unsigned lender)
{
    uint64_t owners = atomic_load(&borrowers[lender]), resting = 0;
    for (unsigned g = 0; owners >> g; g++)
        if (owners >> g & 1 && hr_quiet_now(hr_peers_users(g)))
            resting |= UINT64_C(1) << g;
    return resting;
}

size_t hr_lend_call_in_locked(unsigned lender, size_t need, uint64_t span_ns)
{
    size_t before = hr_tier_peer.in_use_chunks(lender);
    if (!lent[lender] || need == 0)
        return 0;
    if (need > before)
        need = before;
    uint64_t owners = span_ns > 0 ? UINT64_MAX : resting_borrowers(lender);
    size_t listed = list_locked(lender, owners); /* which may move the list */
    send_locked(hr_policy_pick_victims(runs, listed, need), span_ns);
    size_t after = hr_tier_peer.in_use_chunks(lender), back = before > after ? before - after : 0;
    atomic_store(&wanted[lender], lent[lender] && back < need ? need - back : 0);
    return back;
}

bool hr_lend_wanted(void)
{
    for (unsigned g = 0; g < hr_space.gpu_count; g++)
        if (atomic_load_explicit(&wanted[g], memory_order_relaxed) > 0)
            return true;
    return false;
}

void hr_lend_settle_locked(unsigned gpu)
{
    for (unsigned b = 0; b < hr_space.gpu_count; b++)
        if (atomic_load(&wanted[b]) > 0 && atomic_load(&borrowers[b]) >> gpu & 1)
            hr_lend_call_in_locked(b, atomic_load(&wanted[b]), 0);
}

void hr_lend_settle(void)
{
    for (unsigned b = 0; b < hr_space.gpu_count; b++) {
        struct hr_context *context =
            atomic_load(&wanted[b]) > 0 && hr_quiet_now(hr_lend_users(b)) ? hr_context_of_gpu(b) : NULL;
        bool pushed;
        if (!context || hr_context_enter(context, &pushed) != CUDA_SUCCESS)
            continue;
        hr_mutex_lock(&hr_move_lock);
        hr_lend_call_in_locked(b, atomic_load(&wanted[b]), 0);
        hr_mutex_unlock(&hr_move_lock);
        hr_context_leave(pushed);
    }
}

bool hr_lend_make_reachable_locked(unsigned owner, unsigned user, uint64_t span_ns)
{
    bool all = true;
    for (unsigned b = 0; b < hr_space.gpu_count; b++) {
        if (!lent[b] || atomic_load(&native[user]) >> b & 1)
            continue;
        send_locked(list_locked(b, UINT64_C(1) << owner), span_ns);
        for (const struct hr_phys *p = lent[b]; p && all; p = p->next)
            all = owner_of(p->holds) != owner;
    }
    return all;
}
