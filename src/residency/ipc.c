#include "residency/ipc_internal.h"

#include "base/clock.h"
#include "base/lock.h"
#include "base/log.h"
#include "residency/access.h"
#include "residency/capture.h"
#include "residency/context.h"
#include "residency/gpu.h"
#include "residency/pool.h"

#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/*
 * Two lists: what this process has exported, and what it has opened of others. Both are short, and only looked at by calls of this group
 * and, where anything is open, by pointer queries.
 */

#define REST_NS UINT64_C(100000000) /* how long a close waits for the GPUs */

struct export
{
    uint64_t key;
    uint64_t id; /* of the allocation: it is another one after it was freed */
    CUdeviceptr base;
    struct hr_hold hold;
    CUipcMemHandle handle;
    struct export *next;
};
struct opened {
    struct hr_ipc_handle handle;
    struct hr_ipc_mapping mapping;
    CUdeviceptr address;
    CUcontext context;
    unsigned gpu; /* of the context */
    uint64_t id, opens;
    uint64_t closed; /* the drain after which it may be unmapped, once it is closed */
    struct opened *next;
};

static struct hr_mutex exports_lock = HR_MUTEX_INIT(HR_RANK_REGISTRY, "exported memory");
static struct export *exports; /* guarded by exports_lock */
static struct hr_mutex opened_lock = HR_MUTEX_INIT(HR_RANK_REGISTRY, "opened memory");
static struct opened *opened;  /* guarded by opened_lock */
static struct opened *closed;  /* guarded by opened_lock: waits for rest */
static uint64_t opened_number; /* guarded by opened_lock */
static _Atomic(size_t) opened_count;

/* FNV-1a. */
static uint32_t check_of(const struct hr_ipc_handle *h)
{
    uint32_t hash = 2166136261u;
    const unsigned char *bytes = (const unsigned char *)h;
    for (size_t i = 0; i < offsetof(struct hr_ipc_handle, check); i++)
        hash = (hash ^ bytes[i]) * 16777619u;
    return hash;
}

/* --- the exporter -------------------------------------------------------------------------------------------------- */

static bool is_live(const struct export *e)
{
    struct hr_allocation a;
    return hr_space_find(e->base, &a) && a.base == e->base && a.id == e->id;
}

/* Also forgets what was freed. */
static struct export *find_export_locked(uint64_t key, CUdeviceptr base) HR_REQUIRES(exports_lock)
{
    struct export *found = NULL;
    for (struct export **link = &exports; *link;) {
        struct export *e = *link;
        if (!is_live(e)) {
            *link = e->next;
            free(e);
            continue;
        }
        if (base ? e->base == base : e->key == key)
            found = e;
        link = &e->next;
    }
    return found;
}

bool hr_ipc_exported(uint64_t key, struct hr_hold *hold_out)
{
    hr_mutex_lock(&exports_lock);
    const struct export *e = find_export_locked(key, 0);
    if (e)
        *hold_out = e->hold;
    hr_mutex_unlock(&exports_lock);
    return e != NULL;
}

static CUresult fill_in(const struct hr_allocation *a, uint64_t key, CUipcMemHandle *handle_out)
{
    struct hr_ipc_handle h = {.magic = HR_IPC_MAGIC,
                              .key = key,
                              .start_time = hr_ipc_start_time(),
                              .bytes = a->bytes,
                              .pid = (uint32_t)getpid(),
                              .offset = (uint32_t)((a->base - hr_space.base) & (hr_chunk_bytes() - 1))};
    CUdevice device = hr_gpu_device(a->gpu);
    CUresult r =
        HR_HAS(cuDeviceGetUuid_v2) ? hr_drv.cuDeviceGetUuid_v2(&h.gpu, device) : hr_drv.cuDeviceGetUuid(&h.gpu, device);
    h.check = check_of(&h);
    if (r == CUDA_SUCCESS)
        memcpy(handle_out, &h, sizeof h);
    return r;
}

/* Someone else may have been as quick: then what is already there counts, and the new one is in vain. */
static bool add_export(struct export *fresh, CUipcMemHandle *handle_out)
{
    hr_mutex_lock(&exports_lock);
    const struct export *there = find_export_locked(0, fresh->base);
    if (there)
        *handle_out = there->handle;
    else
        *handle_out = fresh->handle;
    if (!there) {
        fresh->next = exports;
        exports = fresh;
    }
    hr_mutex_unlock(&exports_lock);
    return !there;
}

CUresult hr_ipc_export(struct hr_thread *t, CUdeviceptr address, CUipcMemHandle *handle_out)
{
    struct hr_allocation a;
    if (!hr_space_find(address, &a) || hr_pool_of_owner(a.ctx) || atomic_load(&a.extent->kind) == HR_EXTENT_VMM)
        return CUDA_ERROR_INVALID_VALUE;
    hr_mutex_lock(&exports_lock);
    const struct export *there = find_export_locked(0, a.base);
    if (there)
        *handle_out = there->handle;
    hr_mutex_unlock(&exports_lock);
    if (there)
        return CUDA_SUCCESS;
    struct export *e = calloc(1, sizeof *e);
    if (!e)
        return CUDA_ERROR_OUT_OF_MEMORY;
    e->id = a.id;
    e->base = a.base;
    bool random =
        syscall(SYS_getrandom, &e->key, sizeof e->key, 0) == (long)sizeof e->key; /* a function since glibc 2.25 */
    CUresult r = random ? hr_ipc_serve() : CUDA_ERROR_OPERATING_SYSTEM;
    if (r == CUDA_SUCCESS)
        r = fill_in(&a, e->key, &e->handle);
    if (r == CUDA_SUCCESS)
        r = hr_exported_hold(t, &a, &e->hold);
    if (r != CUDA_SUCCESS)
        goto no_export;
    hr_log_once(HR_LOG_WARN, "memory is shared by cuIpcGetMemHandle: only processes under headroom can open it, and it "
                             "stays in VRAM until it is freed");
    if (add_export(e, handle_out))
        return CUDA_SUCCESS; /* NOLINT(clang-analyzer-unix.Malloc): the list has it */
    hr_hold_drop(&e->hold);

no_export:
    free(e);
    return r;
}

/* --- the importer -------------------------------------------------------------------------------------------------- */

bool hr_ipc_any(void)
{
    return atomic_load_explicit(&opened_count, memory_order_acquire) > 0;
}

bool hr_ipc_is_ours(const CUipcMemHandle *handle)
{
    uint64_t magic;
    memcpy(&magic, handle, sizeof magic);
    return magic == HR_IPC_MAGIC;
}

bool hr_ipc_find(CUdeviceptr address, struct hr_allocation *allocation_out, CUdevice *device_out)
{
    const struct opened *o = NULL;
    hr_mutex_lock(&opened_lock);
    for (o = opened; o && address - o->address >= o->handle.bytes; o = o->next)
        ;
    if (o) {
        *allocation_out = (struct hr_allocation){
            .base = o->address, .bytes = o->handle.bytes, .id = o->id, .gpu = o->gpu, .ctx = o->context};
        *device_out = o->mapping.device;
    }
    hr_mutex_unlock(&opened_lock);
    return o != NULL;
}

/* Opens once more what is open already. false: it is not; then `fresh`, if any, is from now on. */
static bool open_again(const struct hr_ipc_handle *h, CUcontext context, struct opened *fresh, CUdeviceptr *address_out,
                       CUresult *r_out)
{
    struct opened *o;
    hr_mutex_lock(&opened_lock);
    for (o = opened; o && memcmp(&o->handle, h, sizeof *h) != 0; o = o->next)
        ;
    bool again = o != NULL;
    *r_out = o && o->context != context ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
    if (!o && fresh) {
        o = fresh;
        o->id = ++opened_number << 32;
        o->next = opened;
        opened = o;
        atomic_fetch_add(&opened_count, 1);
    }
    if (o && *r_out == CUDA_SUCCESS) {
        o->opens++;
        *address_out = o->address;
    }
    hr_mutex_unlock(&opened_lock);
    return again;
}

/* Unmaps what was closed, if whoever may have used it is at rest since. */
static void unmap_closed(void)
{
    struct opened *ready = NULL;
    hr_mutex_lock(&opened_lock);
    for (struct opened **link = &closed; *link;) {
        struct opened *o = *link;
        if (!hr_drain_covers(o->closed, HR_ALL_GPUS)) {
            link = &o->next;
            continue;
        }
        *link = o->next;
        o->next = ready;
        ready = o;
    }
    hr_mutex_unlock(&opened_lock);
    while (ready) {
        struct opened *next = ready->next;
        hr_ipc_unmap(&ready->mapping);
        free(ready);
        ready = next;
    }
}

static CUresult open_new(const struct hr_ipc_handle *h, const struct hr_context *context, CUdeviceptr *address_out)
{
    struct opened *o = calloc(1, sizeof *o);
    if (!o)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = hr_ipc_fetch(h, hr_gpu_device(context->gpu), &o->mapping);
    if (r != CUDA_SUCCESS) {
        free(o);
        return r;
    }
    hr_access_cannot_scan("memory of another process");
    o->handle = *h;
    o->address = o->mapping.base + h->offset;
    o->context = context->handle;
    o->gpu = context->gpu;
    if (open_again(h, context->handle, o, address_out, &r)) { /* by another thread, meanwhile */
        hr_ipc_unmap(&o->mapping);
        free(o);
    }
    return r; /* NOLINT(clang-analyzer-unix.Malloc): else the list has it */
}

CUresult hr_ipc_open(const CUipcMemHandle *handle, CUdeviceptr *address_out, size_t *bytes_out)
{
    HR_RELAXED();
    const struct hr_context *context = hr_context_current();
    struct hr_ipc_handle h;
    CUresult r = CUDA_SUCCESS;
    if (!context)
        return CUDA_ERROR_INVALID_CONTEXT;
    memcpy(&h, handle, sizeof h);
    if (h.check != check_of(&h) || h.bytes == 0 || h.pid == 0 || h.bytes > SIZE_MAX / 2) {
        hr_log(HR_LOG_WARN, "cuIpcOpenMemHandle: the handle is damaged");
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (h.pid == (uint32_t)getpid() && h.start_time == hr_ipc_start_time())
        return CUDA_ERROR_INVALID_CONTEXT; /* one's own memory cannot be opened */
    unmap_closed();
    *bytes_out = h.bytes;
    return open_again(&h, context->handle, NULL, address_out, &r) ? r : open_new(&h, context, address_out);
}

/* Takes it out of the list once it is closed as often as it was opened. */
static struct opened *close_one(CUdeviceptr address, bool *found_out)
{
    struct opened *o, **link = &opened;
    hr_mutex_lock(&opened_lock);
    while (*link && (*link)->address != address)
        link = &(*link)->next;
    o = *link;
    *found_out = o != NULL;
    if (o && --o->opens > 0)
        o = NULL;
    if (o) {
        *link = o->next;
        atomic_fetch_sub(&opened_count, 1);
    }
    hr_mutex_unlock(&opened_lock);
    return o;
}

bool hr_ipc_close(CUdeviceptr address)
{
    HR_RELAXED();
    bool found;
    struct opened *o = close_one(address, &found);
    if (o) {
        hr_mutex_lock(&opened_lock);
        o->closed = hr_drain_stamp();
        o->next = closed;
        closed = o;
        hr_mutex_unlock(&opened_lock);
        hr_quiet_wait(HR_ALL_GPUS, hr_clock_ns() + REST_NS);
    }
    unmap_closed();
    return found;
}

void hr_ipc_context_gone(CUcontext context)
{
    struct opened *gone = NULL;
    hr_mutex_lock(&opened_lock);
    for (int i = 0; i < 2; i++) {
        for (struct opened **link = i ? &closed : &opened; *link;) {
            struct opened *o = *link;
            if (o->context != context) {
                link = &o->next;
                continue;
            }
            *link = o->next;
            if (!i)
                atomic_fetch_sub(&opened_count, 1);
            o->next = gone;
            gone = o;
        }
    }
    hr_mutex_unlock(&opened_lock);
    while (gone) { /* the driver has waited for all work of the context */
        struct opened *next = gone->next;
        hr_ipc_unmap(&gone->mapping);
        free(gone);
        gone = next;
    }
}
