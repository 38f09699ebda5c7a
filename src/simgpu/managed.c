/* Allocating managed memory, and moving it; see managed.h. */
#include "simgpu/managed.h"

#include "simgpu/capture.h"
#include "simgpu/check.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PATTERN_BYTES (UINT64_C(16) << 20)

/* A file full of poison: fresh memory is a private view of it, so that nobody reads zeros by luck and nothing is filled that is
 * never touched. */
static int pattern_file(void)
{
    static int file = -1;
    static const size_t words = 8192;
    if (file >= 0)
        return file;
    uint64_t *piece = malloc(words * sizeof *piece);
    int fd = memfd_create("simgpu-pattern", MFD_CLOEXEC);
    for (size_t i = 0; piece && i < words; i++)
        piece[i] = SG_POISON;
    bool written = piece && fd >= 0;
    for (uint64_t done = 0; written && done < PATTERN_BYTES; done += words * sizeof *piece)
        written = pwrite(fd, piece, words * sizeof *piece, (off_t)done) == (ssize_t)(words * sizeof *piece);
    free(piece);
    if (!written && fd >= 0)
        close(fd);
    return file = written ? fd : -1;
}

static bool map_fresh(uint64_t va, uint64_t bytes)
{
    int fd = pattern_file();
    for (uint64_t done = 0, n; fd >= 0 && done < bytes; done += n) {
        n = bytes - done < PATTERN_BYTES ? bytes - done : PATTERN_BYTES;
        if (mmap((void *)(uintptr_t)(va + done), n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, fd,
                 0) == MAP_FAILED)
            return false;
    }
    return fd >= 0;
}

static void *zeroed(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

/* The entry of a page in every device's table. */
static void set_entries(uint64_t va, int resident, bool present)
{
    for (int d = 0; d < sg.device_count; d++) {
        enum sg_tier tier = resident == SG_ON_HOST ? SG_TIER_HOST : resident == d ? SG_TIER_VRAM : SG_TIER_PEER;
        uint64_t entry = !present ? 0
                                  : va | SG_PTE_READ | SG_PTE_WRITE | ((uint64_t)tier << SG_PTE_TIER_SHIFT) |
                                        ((uint64_t)(resident + 1) << SG_PTE_OWNER_SHIFT) |
                                        (sg_check.accesses ? SG_PTE_SLOW : 0);
        atomic_store_explicit(&sg.devices[d].pagetable.pte[va >> SG_PAGE_SHIFT], entry, memory_order_release);
    }
}

static void free_records(struct sg_managed *m)
{
    if (m->page)
        munmap(m->page, m->map_bytes / SG_CPU_PAGE_BYTES * sizeof *m->page);
    free(m->resident);
    free(m);
}

void sg_managed_unref(struct sg_managed *m)
{
    if (m && !--m->refs)
        free_records(m);
}

static struct sg_managed *records_new(uint64_t bytes)
{
    struct sg_managed *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    m->refs = 1;
    m->map_bytes = (bytes + SG_PAGE_BYTES - 1) & ~(SG_PAGE_BYTES - 1);
    m->page = zeroed(m->map_bytes / SG_CPU_PAGE_BYTES * sizeof *m->page);
    m->resident = malloc((m->map_bytes >> SG_PAGE_SHIFT) * sizeof *m->resident);
    if (!m->page || !m->resident) {
        free_records(m);
        return NULL;
    }
    for (size_t i = 0; i < m->map_bytes >> SG_PAGE_SHIFT; i++)
        m->resident[i] = SG_ON_HOST;
    return m;
}

static bool charge(uint64_t bytes)
{
    if (bytes > sg.config.host_bytes || sg.host_used_bytes > sg.config.host_bytes - bytes)
        return false;
    sg.host_used_bytes += bytes;
    if (sg.host_used_bytes > sg.host_peak_bytes)
        sg.host_peak_bytes = sg.host_used_bytes;
    return true;
}

static CUresult create(struct sg_context *context, uint64_t bytes, unsigned flags, CUdeviceptr *va_out)
{
    if (bytes > UINT64_C(1) << 46)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct sg_alloc *a = calloc(1, sizeof *a);
    struct sg_managed *m = a ? records_new(bytes) : NULL;
    uint64_t zone = sg_redzone_page_bytes(), room = m ? m->map_bytes + 2 * zone : 0;
    bool charged = m && charge(m->map_bytes);
    uint64_t va = charged ? sg_va_reserve(room, SG_PAGE_BYTES, 0) : 0;
    if (!va || !map_fresh(va + zone, m->map_bytes)) {
        if (va)
            sg_va_release(va, room);
        if (charged)
            sg.host_used_bytes -= m->map_bytes;
        if (m)
            free_records(m);
        free(a);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    va += zone;
    m->attached = flags;
    *a = (struct sg_alloc){.region = {SG_REGION_ALLOC, va, bytes},
                           .context = context,
                           .device = context->device,
                           .managed = m,
                           .buffer_id = sg.next_buffer_id++};
    sg_regions_set(&a->region, va, m->map_bytes);
    for (uint64_t page = va; page < va + m->map_bytes; page += SG_PAGE_BYTES)
        set_entries(page, SG_ON_HOST, true);
    DL_APPEND(context->allocs, a);
    *va_out = va;
    return CUDA_SUCCESS;
}

void sg_managed_destroy(struct sg_alloc *a)
{
    struct sg_managed *m = a->managed;
    uint64_t zone = sg_redzone_page_bytes(), va = a->region.va;
    sg_note_freed(va, a->region.bytes);
    for (uint64_t page = va; page < va + m->map_bytes; page += SG_PAGE_BYTES)
        set_entries(page, SG_ON_HOST, false);
    sg_regions_set(NULL, va, m->map_bytes);
    sg_va_release(va - zone, m->map_bytes + 2 * zone);
    sg.host_used_bytes -= m->map_bytes;
    DL_DELETE(a->context->allocs, a);
    m->gone = true;
    sg_managed_unref(m);
    free(a);
}

struct sg_alloc *sg_managed_at(uint64_t va, uint64_t bytes)
{
    struct sg_alloc *a = sg_alloc_at(va);
    return a && a->managed && bytes && bytes <= a->region.va + a->region.bytes - va ? a : NULL;
}

CUresult cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags)
{
    struct sg_context *context;
    CUresult r = sg_enter_context("cuMemAllocManaged", &context);
    if (r)
        return r;
    if (!dptr || !bytesize || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    return sg_leave(create(context, bytesize, flags, dptr));
}

static CUresult attach(CUstream handle, CUdeviceptr dptr, size_t length, unsigned flags, bool per_thread)
{
    struct sg_stream *s;
    CUresult r = sg_enter_work("cuStreamAttachMemAsync", handle, per_thread, &s);
    if (r)
        return r;
    struct sg_alloc *a = sg_managed_at(dptr, length ? length : 1);
    if (!a || a->region.va != dptr || (length && length != a->region.bytes) ||
        (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST && flags != CU_MEM_ATTACH_SINGLE) ||
        (flags == CU_MEM_ATTACH_SINGLE && s->type == SG_STREAM_LEGACY))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (s->captured)
        return sg_leave(sg_capture_refuse(s));
    /* All devices here have concurrent access, where an association limits nobody: it is only kept. */
    a->managed->attached = flags;
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuStreamAttachMemAsync(CUstream stream, CUdeviceptr dptr, size_t length, unsigned int flags)
{
    return attach(stream, dptr, length, flags, false);
}

CUresult cuStreamAttachMemAsync_ptsz(CUstream stream, CUdeviceptr dptr, size_t length, unsigned int flags)
{
    return attach(stream, dptr, length, flags, true);
}

/* ---- prefetches ---- */

void sg_managed_move(const struct sg_copy *c, struct sg_moved *moved)
{
    struct sg_managed *m = c->prefetch;
    uint64_t first = c->dst & ~(SG_PAGE_BYTES - 1), end = c->dst + c->width_bytes;
    pthread_mutex_lock(&sg.lock);
    for (uint64_t page = first; page < end && !m->gone; page += SG_PAGE_BYTES) {
        size_t i = (page - c->prefetch_base) >> SG_PAGE_SHIFT;
        int from = m->resident[i];
        m->resident[i] = (int16_t)c->prefetch_to;
        uint64_t start = page > c->dst ? page : c->dst;
        uint64_t stop = page + SG_PAGE_BYTES < end ? page + SG_PAGE_BYTES : end;
        if (from == c->prefetch_to)
            continue;
        set_entries(page, c->prefetch_to, true);
        moved->bytes[from == SG_ON_HOST ? SG_H2D : c->prefetch_to == SG_ON_HOST ? SG_D2H : SG_P2P] += stop - start;
    }
    pthread_mutex_unlock(&sg.lock);
}

CUresult sg_managed_place_of(const CUmemLocation *l, struct sg_managed_place *place_out)
{
    *place_out = (struct sg_managed_place){(uint8_t)l->type, (int16_t)l->id};
    switch (l->type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        return l->id < 0 || l->id >= sg.device_count ? CUDA_ERROR_INVALID_DEVICE : CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_HOST: place_out->id = 0; return CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
        return l->id < 0 || l->id >= sg.numa_nodes ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
        *place_out = (struct sg_managed_place){CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
        return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

/* The range in whole CPU pages, as the calls round it, but within the allocation. */
static void round_out(const struct sg_alloc *a, uint64_t *va, uint64_t *bytes)
{
    uint64_t end = (*va + *bytes + SG_CPU_PAGE_BYTES - 1) & ~(SG_CPU_PAGE_BYTES - 1);
    *va &= ~(SG_CPU_PAGE_BYTES - 1);
    if (end > a->region.va + a->region.bytes)
        end = a->region.va + a->region.bytes;
    *bytes = end - *va;
}

static CUresult submit_prefetch(struct sg_stream *s, uint64_t va, uint64_t bytes, struct sg_managed_place to)
{
    struct sg_alloc *a = sg_managed_at(va, bytes);
    struct sg_op *op = sg_op_new(SG_OP_COPY);
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    round_out(a, &va, &bytes);
    for (size_t i = (va - a->region.va) / SG_CPU_PAGE_BYTES; i * SG_CPU_PAGE_BYTES < va + bytes - a->region.va; i++)
        a->managed->page[i].prefetched = to;
    int device = s->context->device;
    a->managed->refs++;
    op->copy = (struct sg_copy){.dst = va,
                                .src = va,
                                .dst_pitch = bytes,
                                .src_pitch = bytes,
                                .width_bytes = bytes,
                                .height = 1,
                                .depth = 1,
                                .dst_device = device,
                                .src_device = device,
                                .prefetch = a->managed,
                                .prefetch_base = a->region.va,
                                .prefetch_to = to.type == CU_MEM_LOCATION_TYPE_DEVICE ? to.id : SG_ON_HOST};
    op->engine = op->copy.prefetch_to == SG_ON_HOST ? SG_ENGINE_D2H : SG_ENGINE_H2D;
    return sg_submit_async(s, op);
}

static CUresult prefetch(CUdeviceptr va, size_t bytes, const CUmemLocation *location, unsigned flags, CUstream handle,
                         bool per_thread)
{
    struct sg_stream *s;
    struct sg_managed_place to;
    CUresult r = sg_enter_work("cuMemPrefetchAsync", handle, per_thread, &s);
    if (r)
        return r;
    r = flags || !sg_managed_at(va, bytes) ? CUDA_ERROR_INVALID_VALUE : sg_managed_place_of(location, &to);
    if (!r && s->captured)
        r = sg_capture_refuse(s);
    return sg_leave(r ? r : submit_prefetch(s, va, bytes, to));
}

/* The older form names a device, or the CPU. */
static CUmemLocation location_of(CUdevice device)
{
    return (CUmemLocation){.type = device == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE,
                           .id = device == CU_DEVICE_CPU ? 0 : device};
}

CUresult cuMemPrefetchAsync(CUdeviceptr va, size_t count, CUdevice device, CUstream stream)
{
    CUmemLocation to = location_of(device);
    return prefetch(va, count, &to, 0, stream, false);
}

CUresult cuMemPrefetchAsync_ptsz(CUdeviceptr va, size_t count, CUdevice device, CUstream stream)
{
    CUmemLocation to = location_of(device);
    return prefetch(va, count, &to, 0, stream, true);
}

CUresult cuMemPrefetchAsync_v2(CUdeviceptr va, size_t count, CUmemLocation location, unsigned int flags,
                               CUstream stream)
{
    return prefetch(va, count, &location, flags, stream, false);
}

CUresult cuMemPrefetchAsync_v2_ptsz(CUdeviceptr va, size_t count, CUmemLocation location, unsigned int flags,
                                    CUstream stream)
{
    return prefetch(va, count, &location, flags, stream, true);
}

/* ---- batches: all is checked before anything is submitted ---- */

struct batch {
    const CUdeviceptr *va;
    const size_t *bytes;
    size_t count;
    const CUmemLocation *to; /* NULL: no prefetches */
    const size_t *first;
    size_t to_count;
    bool discard;
};

/* The place of operation i; *k goes along. */
static const CUmemLocation *place_at(const struct batch *b, size_t i, size_t *k)
{
    if (*k + 1 < b->to_count && b->first[*k + 1] == i)
        ++*k;
    return &b->to[*k];
}

static CUresult check_batch(const struct batch *b, bool prefetches)
{
    struct sg_managed_place place;
    if (!b->va || !b->bytes || !b->count)
        return CUDA_ERROR_INVALID_VALUE;
    if (prefetches && (!b->to || !b->first || !b->to_count || b->to_count > b->count || b->first[0]))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t k = 1; prefetches && k < b->to_count; k++)
        if (b->first[k] <= b->first[k - 1] || b->first[k] >= b->count)
            return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0, k = 0; i < b->count; i++) {
        if (!sg_managed_at(b->va[i], b->bytes[i]))
            return CUDA_ERROR_INVALID_VALUE;
        CUresult r = prefetches ? sg_managed_place_of(place_at(b, i, &k), &place) : CUDA_SUCCESS;
        if (r)
            return r;
    }
    return CUDA_SUCCESS;
}

/* What is discarded is undefined until it is written: poison. Only whole CPU pages can be. */
static CUresult submit_discard(struct sg_stream *s, uint64_t va, uint64_t bytes)
{
    uint64_t first = (va + SG_CPU_PAGE_BYTES - 1) & ~(SG_CPU_PAGE_BYTES - 1);
    uint64_t end = (va + bytes) & ~(SG_CPU_PAGE_BYTES - 1);
    if (first >= end)
        return CUDA_SUCCESS;
    struct sg_op *op = sg_op_new(SG_OP_FILL);
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    op->fill = (struct sg_fill){first, end - first, end - first, 1, (uint32_t)SG_POISON, 4, s->context->device};
    op->engine = SG_ENGINE_D2D;
    return sg_submit_async(s, op);
}

static CUresult run_batch(const char *function, const struct batch *b, bool prefetches, unsigned long long flags,
                          CUstream handle, bool per_thread)
{
    struct sg_stream *s;
    CUresult r = sg_enter_work(function, handle, per_thread, &s);
    if (r)
        return r;
    r = flags || s->type == SG_STREAM_LEGACY ? CUDA_ERROR_INVALID_VALUE : check_batch(b, prefetches);
    if (!r && s->captured)
        r = sg_capture_refuse(s);
    uint64_t id = s->object.id;
    for (size_t i = 0, k = 0; i < b->count && !r; i++) {
        struct sg_managed_place to;
        r = prefetches ? sg_managed_place_of(place_at(b, i, &k), &to) : CUDA_SUCCESS;
        if (!r && b->discard)
            r = submit_discard(s, b->va[i], b->bytes[i]);
        s = sg_object_find(id, SG_STREAM); /* with SIMGPU_SYNC a submission waits, and the lock is released */
        if (!r && (!s || !sg_managed_at(b->va[i], b->bytes[i])))
            r = CUDA_ERROR_CONTEXT_IS_DESTROYED;
        if (!r && prefetches)
            r = submit_prefetch(s, b->va[i], b->bytes[i], to);
        s = sg_object_find(id, SG_STREAM);
        if (!r && !s)
            r = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    return sg_leave(r);
}

CUresult cuMemPrefetchBatchAsync(CUdeviceptr *va, size_t *bytes, size_t count, CUmemLocation *to, size_t *first,
                                 size_t to_count, unsigned long long flags, CUstream stream)
{
    struct batch b = {va, bytes, count, to, first, to_count, false};
    return run_batch("cuMemPrefetchBatchAsync", &b, true, flags, stream, false);
}

CUresult cuMemPrefetchBatchAsync_ptsz(CUdeviceptr *va, size_t *bytes, size_t count, CUmemLocation *to, size_t *first,
                                      size_t to_count, unsigned long long flags, CUstream stream)
{
    struct batch b = {va, bytes, count, to, first, to_count, false};
    return run_batch("cuMemPrefetchBatchAsync", &b, true, flags, stream, true);
}

CUresult cuMemDiscardBatchAsync(CUdeviceptr *va, size_t *bytes, size_t count, unsigned long long flags, CUstream stream)
{
    struct batch b = {va, bytes, count, NULL, NULL, 0, true};
    return run_batch("cuMemDiscardBatchAsync", &b, false, flags, stream, false);
}

CUresult cuMemDiscardBatchAsync_ptsz(CUdeviceptr *va, size_t *bytes, size_t count, unsigned long long flags,
                                     CUstream stream)
{
    struct batch b = {va, bytes, count, NULL, NULL, 0, true};
    return run_batch("cuMemDiscardBatchAsync", &b, false, flags, stream, true);
}

CUresult cuMemDiscardAndPrefetchBatchAsync(CUdeviceptr *va, size_t *bytes, size_t count, CUmemLocation *to,
                                           size_t *first, size_t to_count, unsigned long long flags, CUstream stream)
{
    struct batch b = {va, bytes, count, to, first, to_count, true};
    return run_batch("cuMemDiscardAndPrefetchBatchAsync", &b, true, flags, stream, false);
}

CUresult cuMemDiscardAndPrefetchBatchAsync_ptsz(CUdeviceptr *va, size_t *bytes, size_t count, CUmemLocation *to,
                                                size_t *first, size_t to_count, unsigned long long flags,
                                                CUstream stream)
{
    struct batch b = {va, bytes, count, to, first, to_count, true};
    return run_batch("cuMemDiscardAndPrefetchBatchAsync", &b, true, flags, stream, true);
}
