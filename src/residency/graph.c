#include "residency/graph.h"

#include "base/clock.h"
#include "base/lock.h"
#include "base/log.h"
#include "residency/context.h"
#include "residency/gpu.h"
#include "residency/hidden.h"
#include "residency/peers.h"
#include "shim/gate.h"

#include <stdlib.h>
#include <string.h>
#include <uthash.h>

/* --- lists -------------------------------------------------------------------------------------------------------- */

void hr_graph_add(struct hr_graph_list *list, const struct hr_graph_item *item)
{
    if (list->count == list->capacity) {
        uint32_t capacity = list->capacity ? list->capacity * 2 : 16;
        struct hr_graph_item *grown = realloc(list->item, capacity * sizeof *grown);
        if (!grown) {
            list->no_memory = true;
            return;
        }
        list->item = grown;
        list->capacity = capacity;
    }
    list->item[list->count++] = *item;
}

/* Copies of other GPUs' contexts may be among them: any of their streams may be the one. */
static void note_users(CUdeviceptr address)
{
    const struct hr_extent *e = hr_space_extent(address);
    for (unsigned g = 0; e && hr_space.gpu_count > 1 && g < hr_space.gpu_count; g++)
        hr_peers_note_use(g, e->gpu);
}

CUresult hr_graph_hold(struct hr_thread *t, struct hr_graph_list *list)
{
    if (list->reads_host)
        hr_access_cannot_scan("a graph copies memory of the host, which may hold addresses when it is launched");
    for (uint32_t i = 0; i < list->count; i++) {
        struct hr_graph_item *item = &list->item[i];
        if (item->kind != HR_GRAPH_RANGE || item->is_held)
            continue;
        note_users(item->address);
        CUresult r = hr_hold_take(t, item->address, item->bytes, &item->hold);
        item->is_held = r == CUDA_SUCCESS;
        if (r != CUDA_SUCCESS && r != CUDA_ERROR_INVALID_VALUE)
            return r;
    }
    return list->no_memory ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

void hr_graph_list_finish(struct hr_graph_list *list)
{
    for (uint32_t i = 0; i < list->count; i++)
        if (list->item[i].is_held)
            hr_hold_drop(&list->item[i].hold);
    free(list->item);
    memset(list, 0, sizeof *list);
}

/* --- records ------------------------------------------------------------------------------------------------------ */

/* Freed with the gate closed. */
struct retired {
    struct retired *next;
};
/* Read in submissions. A slot whose word is 0 says nothing. */
struct slot {
    _Atomic(CUdeviceptr) word, from; /* from 0: a kernel's; else what is copied there */
    _Atomic(int) user;
};
struct names {
    struct retired retired; /* first */
    _Atomic(uint32_t) count;
    uint32_t capacity;
    struct slot slot[];
};
struct node {
    CUgraphNode key; /* NULL: all that an update brought */
    uint32_t first, slots;
    uint32_t hold_count;
    struct hr_hold *holds;
    UT_hash_handle hh;
};
struct hr_exec {
    struct retired retired; /* first */
    CUgraphExec handle;
    _Atomic(struct names *) names;
    struct node *nodes; /* guarded by graphs_lock */
    _Atomic(uint64_t) users;
    _Atomic(bool) unknown, allocates;
    _Atomic(size_t) alloc_bytes;
    UT_hash_handle hh;
};
struct bodies {
    CUgraphNode node;
    const CUgraph *graphs;
    unsigned count;
    UT_hash_handle hh;
};

#define COLLECT_FROM 64 /* retired records */
#define COLLECT_NS UINT64_C(200000)

static struct hr_mutex graphs_lock = HR_MUTEX_INIT(HR_RANK_REGISTRY, "graphs");
static struct hr_exec *execs;           /* guarded by graphs_lock */
static struct bodies *all_bodies;       /* guarded by graphs_lock */
static struct retired *retired;         /* guarded by graphs_lock */
static _Atomic(uint32_t) retired_count; /* of that list */
static _Atomic(uint32_t) bodies_count;
static _Atomic(uint32_t) generation = 1; /* changes when an executable graph goes, or one is known anew */

#define MEMO_SLOTS 8
static _Thread_local struct {
    CUgraphExec handle;
    struct hr_exec *exec;
    uint32_t generation;
} memo[MEMO_SLOTS] __attribute__((tls_model("initial-exec")));

static void retire_locked(struct retired *r) HR_REQUIRES(graphs_lock)
{
    if (!r)
        return;
    r->next = retired;
    retired = r;
    atomic_fetch_add(&retired_count, 1);
}

void hr_graph_collect_quiet(void)
{
    if (atomic_load_explicit(&retired_count, memory_order_relaxed) == 0)
        return;
    hr_mutex_lock(&graphs_lock);
    struct retired *list = retired;
    retired = NULL;
    atomic_store(&retired_count, 0);
    hr_mutex_unlock(&graphs_lock);
    while (list) {
        struct retired *next = list->next;
        free(list);
        list = next;
    }
}

void hr_graph_collect(void)
{
    if (atomic_load_explicit(&retired_count, memory_order_relaxed) < COLLECT_FROM)
        return;
    hr_mutex_lock(&hr_move_lock);
    if (hr_gate_close(hr_clock_ns() + COLLECT_NS)) {
        hr_graph_collect_quiet();
        hr_gate_open();
    }
    hr_mutex_unlock(&hr_move_lock);
}

/* --- changing ----------------------------------------------------------------------------------------------------- */

static struct names *new_names(uint32_t capacity)
{
    struct names *names = calloc(1, sizeof *names + capacity * sizeof names->slot[0]);
    if (names)
        names->capacity = capacity;
    return names;
}

static void set_slot(struct slot *slot, CUdeviceptr word, CUdeviceptr from, int user)
{
    atomic_store_explicit(&slot->user, user, memory_order_relaxed);
    atomic_store_explicit(&slot->from, from, memory_order_relaxed);
    atomic_store_explicit(&slot->word, word, memory_order_release);
}

/* The slots of one node, somewhere at the end; false = no memory. Old ones are given up. */
static bool find_room_locked(struct hr_exec *exec, struct node *node, uint32_t slots) HR_REQUIRES(graphs_lock)
{
    struct names *names = atomic_load(&exec->names);
    uint32_t live = slots;
    for (uint32_t i = 0; i < node->slots; i++)
        set_slot(&names->slot[node->first + i], 0, 0, -1);
    node->slots = 0;
    if (names && names->capacity - atomic_load(&names->count) >= slots)
        goto take;
    for (struct node *n = exec->nodes; n; n = n->hh.next)
        live += n->slots;
    struct names *grown = new_names(live + live / 2);
    if (!grown)
        return false;
    uint32_t at = 0;
    for (struct node *n = exec->nodes; n; n = n->hh.next) { /* without the gaps */
        for (uint32_t i = 0; i < n->slots; i++) {
            const struct slot *old = &names->slot[n->first + i];
            set_slot(&grown->slot[at + i], atomic_load(&old->word), atomic_load(&old->from), atomic_load(&old->user));
        }
        n->first = at;
        at += n->slots;
    }
    atomic_store(&grown->count, at);
    atomic_store_explicit(&exec->names, grown, memory_order_release);
    if (names)
        retire_locked(&names->retired);
    names = grown;
take:
    node->first = atomic_load(&names->count);
    node->slots = slots;
    return true;
}

static bool has_slot(const struct hr_graph_item *item)
{
    return item->kind != HR_GRAPH_RANGE;
}

/* Items [first, end) of the list become the node's. What it held goes to *old_out, *old_count_out. */
static bool set_node_locked(struct hr_exec *exec, CUgraphNode key, struct hr_graph_list *list, uint32_t first,
                            uint32_t end, struct hr_hold **old_out, uint32_t *old_count_out) HR_REQUIRES(graphs_lock)
{
    struct node *node = NULL;
    uint32_t slots = 0, holds = 0, at = 0, held = 0;
    for (uint32_t i = first; i < end; i++) {
        slots += has_slot(&list->item[i]);
        holds += list->item[i].is_held;
    }
    HASH_FIND_PTR(exec->nodes, &key, node);
    *old_out = NULL;
    *old_count_out = 0;
    if (!node && slots + holds == 0)
        return true;
    struct hr_hold *kept = holds > 0 ? malloc(holds * sizeof *kept) : NULL;
    bool is_new = !node;
    if (is_new && (node = calloc(1, sizeof *node))) {
        node->key = key;
        HASH_ADD_PTR(exec->nodes, key, node);
    }
    if (!node || (holds > 0 && !kept) || (slots > node->slots && !find_room_locked(exec, node, slots))) {
        free(kept);
        return false;
    }
    struct names *names = atomic_load(&exec->names);
    for (uint32_t i = first; i < end; i++) {
        struct hr_graph_item *item = &list->item[i];
        if (has_slot(item))
            set_slot(&names->slot[node->first + at++], item->address, item->from, item->user);
        if (item->user >= 0)
            atomic_fetch_or(&exec->users, UINT64_C(1) << item->user);
        if (kept && item->is_held)
            kept[held++] = item->hold;
        item->is_held = false;
    }
    for (; at < node->slots; at++)
        set_slot(&names->slot[node->first + at], 0, 0, -1);
    if (names && atomic_load(&names->count) < node->first + node->slots)
        atomic_store_explicit(&names->count, node->first + node->slots, memory_order_release);
    *old_out = node->holds;
    *old_count_out = node->hold_count;
    node->holds = kept;
    node->hold_count = holds;
    return true;
}

static void drop_holds(struct hr_hold *holds, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        hr_hold_drop(&holds[i]);
    free(holds);
}

static void free_nodes(struct node *nodes)
{
    struct node *node, *next;
    HASH_ITER (hh, nodes, node, next) {
        HASH_DEL(nodes, node); /* NOLINT(clang-analyzer-unix.Malloc): next was read before it is freed */
        drop_holds(node->holds, node->hold_count);
        free(node);
    }
}

static void note_kind(struct hr_exec *exec, const struct hr_graph_list *list, bool anew)
{
    if (anew || list->unknown)
        atomic_store(&exec->unknown, list->unknown);
    if (anew) {
        atomic_store(&exec->allocates, list->allocates);
        atomic_store(&exec->alloc_bytes, list->alloc_bytes);
    }
}

static struct hr_exec *find_locked(CUgraphExec handle) HR_REQUIRES(graphs_lock)
{
    struct hr_exec *exec = NULL;
    HASH_FIND_PTR(execs, &handle, exec);
    return exec;
}

static void put_in_locked(struct hr_exec *exec) HR_REQUIRES(graphs_lock)
{
    HASH_ADD_PTR(execs, handle, exec);
    atomic_fetch_add(&generation, 1); /* somebody may remember that there is none */
}

struct hr_exec *hr_exec_take(CUgraphExec handle)
{
    hr_mutex_lock(&graphs_lock);
    struct hr_exec *exec = find_locked(handle);
    if (exec) {
        HASH_DEL(execs, exec);
        atomic_fetch_add(&generation, 1);
    }
    hr_mutex_unlock(&graphs_lock);
    return exec;
}

void hr_exec_end(struct hr_exec *exec, bool gone)
{
    struct node *nodes = NULL;
    if (!exec)
        return;
    hr_mutex_lock(&graphs_lock);
    if (gone) {
        struct names *names = atomic_load(&exec->names);
        nodes = exec->nodes;
        exec->nodes = NULL;
        if (names)
            retire_locked(&names->retired);
        retire_locked(&exec->retired);
    } else {
        put_in_locked(exec);
    }
    hr_mutex_unlock(&graphs_lock);
    free_nodes(nodes);
    hr_graph_collect();
}

/* Nothing is known of it from now on. */
static void give_up(CUgraphExec handle)
{
    hr_log(HR_LOG_ERROR, "an executable graph cannot be tracked: out of memory");
    hr_exec_end(hr_exec_take(handle), true);
}

/* Items of one node follow each other; those of an update are one node's. */
static bool fill_locked(struct hr_exec *exec, struct hr_graph_list *list, bool by_node) HR_REQUIRES(graphs_lock)
{
    struct hr_hold *none;
    uint32_t none_count;
    struct node whole = {0}; /* room for all of it at once */
    bool ok = list->count == 0 || find_room_locked(exec, &whole, list->count);
    for (uint32_t i = 0; ok && i < list->count;) {
        uint32_t end = by_node ? i + 1 : list->count;
        CUgraphNode key = by_node ? list->item[i].node : NULL;
        while (end < list->count && list->item[end].node == key)
            end++;
        ok = set_node_locked(exec, key, list, i, end, &none, &none_count);
        free(none); /* there is none */
        i = end;
    }
    return ok;
}

void hr_exec_made(CUgraphExec handle, struct hr_graph_list *list)
{
    struct hr_exec *exec = calloc(1, sizeof *exec);
    bool ok = exec != NULL;
    hr_exec_end(hr_exec_take(handle), true); /* left over, where the job's context took it with it */
    if (ok)
        note_kind(exec, list, true);
    hr_mutex_lock(&graphs_lock);
    if (ok) {
        ok = fill_locked(exec, list, true);
        exec->handle = handle;
        put_in_locked(exec);
    }
    hr_mutex_unlock(&graphs_lock);
    if (!ok)
        give_up(handle);
}

void hr_exec_updated(CUgraphExec handle, struct hr_graph_list *list)
{
    struct hr_exec fresh = {0}; /* a launch sees the old names until the new ones are complete */
    bool ok = true;
    hr_mutex_lock(&graphs_lock);
    struct hr_exec *exec = find_locked(handle);
    if (exec) {
        ok = fill_locked(&fresh, list, false);
        struct names *old_names = atomic_exchange(&exec->names, atomic_load(&fresh.names));
        struct node *old_nodes = exec->nodes;
        exec->nodes = fresh.nodes;
        fresh.nodes = old_nodes;
        atomic_fetch_or(&exec->users, atomic_load(&fresh.users));
        if (old_names)
            retire_locked(&old_names->retired);
        note_kind(exec, list, true);
    }
    hr_mutex_unlock(&graphs_lock);
    free_nodes(fresh.nodes);
    if (!ok)
        give_up(handle);
    hr_graph_collect();
}

void hr_exec_node_set(CUgraphExec handle, CUgraphNode node, struct hr_graph_list *list)
{
    struct hr_hold *old = NULL;
    uint32_t old_count = 0;
    bool ok = true;
    hr_mutex_lock(&graphs_lock);
    struct hr_exec *exec = find_locked(handle);
    if (exec) {
        ok = set_node_locked(exec, node, list, 0, list->count, &old, &old_count);
        note_kind(exec, list, false);
    }
    hr_mutex_unlock(&graphs_lock);
    drop_holds(old, old_count);
    if (!ok)
        give_up(handle);
    hr_graph_collect();
}

/* --- reading ------------------------------------------------------------------------------------------------------ */

const struct hr_exec *hr_exec_find(CUgraphExec handle)
{
    uint32_t now = atomic_load_explicit(&generation, memory_order_acquire);
    size_t slot = ((uintptr_t)handle >> 4 ^ (uintptr_t)handle >> 9) % MEMO_SLOTS;
    if (memo[slot].handle == handle && memo[slot].generation == now)
        return memo[slot].exec;
    hr_mutex_lock(&graphs_lock);
    struct hr_exec *exec = find_locked(handle);
    hr_mutex_unlock(&graphs_lock);
    memo[slot].handle = handle;
    memo[slot].exec = exec;
    memo[slot].generation = now;
    return exec;
}

bool hr_exec_is_unknown(const struct hr_exec *exec)
{
    return atomic_load_explicit(&exec->unknown, memory_order_relaxed);
}

bool hr_exec_allocates(const struct hr_exec *exec, size_t *bytes_out)
{
    *bytes_out = atomic_load_explicit(&exec->alloc_bytes, memory_order_relaxed);
    return atomic_load_explicit(&exec->allocates, memory_order_relaxed);
}

uint64_t hr_exec_users(const struct hr_exec *exec)
{
    return atomic_load_explicit(&exec->users, memory_order_relaxed);
}

enum hr_touch hr_exec_touch(const struct hr_exec *exec, uint64_t now, int launcher)
{
    const struct names *names = atomic_load_explicit(&exec->names, memory_order_acquire);
    uint32_t count = names ? atomic_load_explicit(&names->count, memory_order_acquire) : 0;
    bool matters = __builtin_expect(hr_peers_matter(), 0);
    enum hr_touch worst = HR_TOUCH_HIT;
    for (uint32_t i = 0; i < count; i++) {
        const struct slot *slot = &names->slot[i];
        CUdeviceptr word = atomic_load_explicit(&slot->word, memory_order_acquire);
        CUdeviceptr from = atomic_load_explicit(&slot->from, memory_order_relaxed);
        if (word == 0)
            continue;
        if (from != 0) {
            hr_hidden_propagate(word, from);
            continue;
        }
        if (__builtin_expect(launcher >= 0, 0)) {
            const struct hr_extent *e = hr_space_extent(word);
            if (e)
                hr_peers_note_use((unsigned)launcher, e->gpu);
        }
        int user = matters ? atomic_load_explicit(&slot->user, memory_order_relaxed) : -1;
        enum hr_touch touch = hr_access_touch(word, now, user);
        worst = touch > worst ? touch : worst;
    }
    return worst;
}

void hr_exec_add(const struct hr_exec *exec, int user, struct hr_working_set *set)
{
    const struct names *names = atomic_load_explicit(&exec->names, memory_order_acquire);
    uint32_t count = names ? atomic_load_explicit(&names->count, memory_order_acquire) : 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct slot *slot = &names->slot[i];
        CUdeviceptr word = atomic_load_explicit(&slot->word, memory_order_acquire);
        bool wanted = user == HR_EXEC_ALL_USERS || atomic_load_explicit(&slot->user, memory_order_relaxed) == user;
        if (word != 0 && wanted && atomic_load_explicit(&slot->from, memory_order_relaxed) == 0)
            hr_working_set_add(set, word);
    }
}

/* --- bodies of conditional nodes ---------------------------------------------------------------------------------- */

void hr_graph_bodies_made(CUgraphNode node, const CUgraph *graphs, unsigned count)
{
    struct bodies *b = NULL, *fresh = calloc(1, sizeof *fresh);
    hr_mutex_lock(&graphs_lock);
    HASH_FIND_PTR(all_bodies, &node, b);
    if (!b && fresh) {
        b = fresh;
        fresh = NULL;
        b->node = node;
        HASH_ADD_PTR(all_bodies, node, b);
        atomic_fetch_add(&bodies_count, 1);
    }
    if (b) {
        b->graphs = graphs;
        b->count = count;
    }
    hr_mutex_unlock(&graphs_lock);
    free(fresh);
}

unsigned hr_graph_bodies_of(CUgraphNode node, const CUgraph **bodies_out)
{
    struct bodies *b = NULL;
    unsigned count = 0;
    hr_mutex_lock(&graphs_lock);
    HASH_FIND_PTR(all_bodies, &node, b);
    if (b) {
        *bodies_out = b->graphs;
        count = b->count;
    }
    hr_mutex_unlock(&graphs_lock);
    return count;
}

void hr_graph_bodies_gone(CUgraphNode node)
{
    struct bodies *b = NULL;
    hr_mutex_lock(&graphs_lock);
    HASH_FIND_PTR(all_bodies, &node, b);
    if (b) {
        HASH_DEL(all_bodies, b);
        atomic_fetch_sub(&bodies_count, 1);
    }
    hr_mutex_unlock(&graphs_lock);
    free(b);
}

bool hr_graph_bodies_any(void)
{
    return atomic_load_explicit(&bodies_count, memory_order_relaxed) != 0;
}

/* --- memory of the driver's --------------------------------------------------------------------------------------- */

void hr_graph_account_memory(void)
{
    static _Atomic(uint64_t) known[HR_MAX_GPUS];
    for (unsigned g = 0; g < hr_space.gpu_count; g++) {
        cuuint64_t now = 0;
        if (hr_drv.cuDeviceGetGraphMemAttribute(hr_gpu_device(g), CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &now) !=
            CUDA_SUCCESS)
            continue;
        uint64_t before = atomic_exchange(&known[g], now);
        hr_gpu_charge_overhead(g, now + 1, before + 1); /* as if so much had been free before, and after */
    }
}
