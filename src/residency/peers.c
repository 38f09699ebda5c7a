#include "residency/peers.h"

#include "base/log.h"
#include "residency/capture.h"
#include "residency/context.h"
#include "residency/fixed.h"
#include "residency/gpu.h"
#include "residency/lend.h"

#include <stdlib.h>

#define FIRST_SPAN_NS UINT64_C(2000000) /* for which the gate stays closed where memory has to move before a grant */
#define ATTEMPTS_MOST 12                /* twice as long each time, 8 s the last */

/*
 * Peer access is between contexts, a grant between devices: it lasts while any pair of contexts of the two asks for it, or a pool,
 * whose number then stands on both sides.
 */
struct pair {
    CUcontext user, owner;
    unsigned user_gpu, owner_gpu;
    bool of_pool;
    struct pair *next;
};
static struct pair *pairs;                     /* guarded by hr_move_lock */
static _Atomic(uint64_t) granted[HR_MAX_GPUS]; /* by owner: a bit for each other GPU; written under hr_move_lock */
static _Atomic(uint64_t) enabled[HR_MAX_GPUS]; /* of these: those that contexts asked for */
static _Atomic(uint64_t) used_by[HR_MAX_GPUS]; /* bits are only ever added: what was submitted may still run */

static _Atomic(uint64_t)
    atomics[HR_MAX_GPUS]; /* as granted: those whose atomics meet only in VRAM; bits are only added */
static _Atomic(bool) any_atomics;
static _Atomic(bool) any_granted; /* ever */

static CUmemAccessDesc access_of(unsigned gpu, CUmemAccess_flags flags)
{
    return (CUmemAccessDesc){.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = hr_gpu_device(gpu)},
                             .flags = flags};
}

size_t hr_peers_access_locked(unsigned owner, CUmemAccessDesc *desc_out)
{
    uint64_t others = atomic_load_explicit(&granted[owner], memory_order_relaxed);
    size_t n = 0;
    desc_out[n++] = access_of(owner, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    for (unsigned g = 0; others >> g; g++)
        if (others >> g & 1)
            desc_out[n++] = access_of(g, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
    return n;
}

uint64_t hr_peers_granted(unsigned owner)
{
    return atomic_load_explicit(&granted[owner], memory_order_relaxed);
}

bool hr_peers_any_granted(void)
{
    return atomic_load_explicit(&any_granted, memory_order_relaxed);
}

bool hr_peers_reach(unsigned user, unsigned owner)
{
    return user == owner || (atomic_load_explicit(&granted[owner], memory_order_relaxed) >> user & 1);
}

uint64_t hr_peers_users(unsigned owner)
{
    return atomic_load(&used_by[owner]) | UINT64_C(1) << owner;
}

void hr_peers_note_use(unsigned user, unsigned owner)
{
    uint64_t bit = UINT64_C(1) << user;
    if (user != owner && !(atomic_load_explicit(&used_by[owner], memory_order_relaxed) & bit))
        atomic_fetch_or(&used_by[owner], bit);
}

bool hr_peers_meet_in_vram(unsigned user, unsigned owner)
{
    return atomic_load_explicit(&atomics[owner], memory_order_relaxed) >> user & 1;
}

bool hr_peers_matter(void)
{
    return atomic_load_explicit(&any_atomics, memory_order_relaxed) || hr_fixed_any_barred();
}

static void ask_for_atomics(unsigned user, unsigned owner)
{
    CUdevice devices[2] = {hr_gpu_device(user), hr_gpu_device(owner)};
    int between = 0, host = 1;
    if (hr_drv.cuDeviceGetP2PAttribute(&between, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, devices[0],
                                       devices[1]) != CUDA_SUCCESS)
        between = 0;
    for (int i = 0; i < 2 && host; i++)
        if (hr_drv.cuDeviceGetAttribute(&host, CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED, devices[i]) !=
            CUDA_SUCCESS)
            host = 0;
    if (between && !host) {
        atomic_fetch_or(&atomics[owner], UINT64_C(1) << user);
        atomic_store(&any_atomics, true);
    }
}

/* Sets what `user` may do with everything that is mapped in the window of `owner`. */
static CUresult set_access_locked(unsigned owner, unsigned user, CUmemAccess_flags flags) HR_REQUIRES(hr_move_lock)
{
    HR_RELAXED();
    CUmemAccessDesc desc = access_of(user, flags);
    const struct hr_chunk *chunks = &hr_space.chunks[hr_space.window[owner].first_chunk];
    uint32_t count = hr_space_used_chunks(owner);
    for (uint32_t i = 0; i < count;) {
        uint32_t n = 0;
        while (
            i + n < count && atomic_load_explicit(&chunks[i + n].mapped, memory_order_relaxed) &&
            atomic_load_explicit(&chunks[i + n].extent, memory_order_relaxed)) /* else it is mapped by the job itself */
            n++;
        CUresult r =
            n > 0 ? hr_drv.cuMemSetAccess(hr_chunk_address(&chunks[i]), (size_t)n << hr_space.chunk_shift, &desc, 1)
                  : CUDA_SUCCESS;
        if (r != CUDA_SUCCESS)
            return r;
        i += n > 0 ? n : 1;
    }
    return CUDA_SUCCESS;
}

void hr_peers_open_locked(unsigned owner, uint32_t first_chunk, uint32_t end_chunk)
{
    HR_RELAXED();
    for (unsigned g = 0; g < hr_space.gpu_count; g++) {
        CUmemAccessDesc desc = access_of(g, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        if (hr_peers_reach(g, owner) || hr_fixed_is_barred(g, owner) || !hr_context_of_gpu(g))
            continue;
        hr_peers_note_use(g, owner);
        hr_drv.cuMemSetAccess(hr_chunk_address(&hr_space.chunks[first_chunk]),
                              (size_t)(end_chunk - first_chunk) << hr_space.chunk_shift, &desc, 1);
    }
}

static bool asked_for_locked(unsigned user_gpu, unsigned owner_gpu, bool by_pools_too) HR_REQUIRES(hr_move_lock)
{
    for (const struct pair *p = pairs; p; p = p->next)
        if (p->user_gpu == user_gpu && p->owner_gpu == owner_gpu && (by_pools_too || !p->of_pool))
            return true;
    return false;
}

static CUresult add_locked(struct pair *pair) HR_REQUIRES(hr_move_lock)
{
    uint64_t bit = UINT64_C(1) << pair->user_gpu;
    if (!(atomic_load(&granted[pair->owner_gpu]) & bit)) {
        hr_peers_note_use(pair->user_gpu, pair->owner_gpu);
        CUresult r = set_access_locked(pair->owner_gpu, pair->user_gpu, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        if (r != CUDA_SUCCESS)
            return r;
        atomic_fetch_or(&granted[pair->owner_gpu], bit);
        atomic_store(&any_granted, true);
        ask_for_atomics(pair->user_gpu, pair->owner_gpu);
    }
    if (!pair->of_pool)
        atomic_fetch_or(&enabled[pair->owner_gpu], bit);
    pair->next = pairs;
    pairs = pair;
    return CUDA_SUCCESS;
}

/* Takes the move lock. On an error the pair is freed. */
static CUresult add(struct pair *pair)
{
    CUresult r = CUDA_ERROR_OUT_OF_MEMORY;
    bool reachable = false;
    for (unsigned attempt = 0; attempt < ATTEMPTS_MOST && !reachable; attempt++) {
        hr_mutex_lock(&hr_move_lock);
        reachable = hr_lend_make_reachable_locked(pair->owner_gpu, pair->user_gpu, FIRST_SPAN_NS << attempt);
        if (reachable)
            r = add_locked(pair);
        hr_mutex_unlock(&hr_move_lock);
    }
    if (r != CUDA_SUCCESS) {
        hr_log(HR_LOG_ERROR, "GPU %u could not be granted the memory of GPU %u: driver error %d", pair->user_gpu,
               pair->owner_gpu, (int)r);
        free(pair);
    }
    return r;
}

CUresult hr_peers_enabled(CUcontext owner)
{
    struct hr_context *mine = hr_context_current(), *theirs = hr_context_of(owner);
    if (!mine || !theirs || mine->gpu == theirs->gpu)
        return CUDA_SUCCESS;
    struct pair *pair = calloc(1, sizeof *pair);
    if (!pair)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *pair = (struct pair){mine->handle, owner, mine->gpu, theirs->gpu, false, NULL};
    return add(pair);
}

/* Of a pair that was taken out. */
static void dropped_locked(struct pair *p) HR_REQUIRES(hr_move_lock)
{
    uint64_t bit = UINT64_C(1) << p->user_gpu;
    if (!asked_for_locked(p->user_gpu, p->owner_gpu, false))
        atomic_fetch_and(&enabled[p->owner_gpu], ~bit);
    if (!asked_for_locked(p->user_gpu, p->owner_gpu, true)) {
        atomic_fetch_and(&granted[p->owner_gpu], ~bit);
        if (set_access_locked(p->owner_gpu, p->user_gpu, CU_MEM_ACCESS_FLAGS_PROT_NONE) != CUDA_SUCCESS)
            hr_log(HR_LOG_WARN, "GPU %u keeps access to some memory of GPU %u", p->user_gpu, p->owner_gpu);
    }
    free(p);
}

/* Takes pairs out: those of `user` with `owner`, or with `owner` NULL all that name `user` on either side. */
static void drop_locked(CUcontext user, CUcontext owner) HR_REQUIRES(hr_move_lock)
{
    for (struct pair **link = &pairs; *link;) {
        struct pair *p = *link;
        bool gone = !p->of_pool && (owner ? p->user == user && p->owner == owner : p->user == user || p->owner == user);
        if (!gone) {
            link = &p->next;
            continue;
        }
        *link = p->next;
        dropped_locked(p);
    }
}

void hr_peers_disabled(CUcontext owner)
{
    struct hr_context *mine = hr_context_current();
    if (!mine)
        return;
    hr_mutex_lock(&hr_move_lock);
    drop_locked(mine->handle, owner);
    hr_mutex_unlock(&hr_move_lock);
}

void hr_peers_forget(CUcontext handle)
{
    hr_mutex_lock(&hr_move_lock);
    drop_locked(handle, NULL);
    hr_mutex_unlock(&hr_move_lock);
}

/* --- pools --------------------------------------------------------------------------------------------------------- */

static CUcontext name_of_pool(uint64_t pool)
{
    return (CUcontext)(uintptr_t)pool;
}

static struct pair **find_pool_locked(uint64_t pool, unsigned user) HR_REQUIRES(hr_move_lock)
{
    struct pair **link = &pairs;
    while (*link && !((*link)->of_pool && (*link)->user == name_of_pool(pool) && (*link)->user_gpu == user))
        link = &(*link)->next;
    return link;
}

CUresult hr_peers_pool_grant(uint64_t pool, unsigned user, unsigned owner)
{
    if (user == owner)
        return CUDA_SUCCESS;
    hr_mutex_lock(&hr_move_lock);
    bool known = *find_pool_locked(pool, user) != NULL;
    hr_mutex_unlock(&hr_move_lock);
    struct pair *pair = known ? NULL : calloc(1, sizeof *pair);
    if (!pair)
        return known ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    *pair = (struct pair){name_of_pool(pool), name_of_pool(pool), user, owner, true, NULL};
    return add(pair);
}

void hr_peers_pool_revoke(uint64_t pool, unsigned user)
{
    hr_mutex_lock(&hr_move_lock);
    struct pair **link = find_pool_locked(pool, user), *pair = *link;
    if (pair) {
        *link = pair->next;
        dropped_locked(pair);
    }
    hr_mutex_unlock(&hr_move_lock);
}

bool hr_peers_enabled_by_contexts(unsigned user, unsigned owner)
{
    return user == owner || (atomic_load_explicit(&enabled[owner], memory_order_relaxed) >> user & 1);
}
