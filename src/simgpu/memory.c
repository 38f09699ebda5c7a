/* cuMemAlloc and its kin. Small allocations of a context share 2 MiB blocks in slots of 512 bytes. */
#include "simgpu/cards.h"
#include "simgpu/check.h"
#include "simgpu/graph.h"
#include "simgpu/managed.h"
#include "simgpu/mempool.h"
#include "simgpu/share.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define SMALL_MAX_BYTES (SG_PAGE_BYTES / 2)

static void show(struct sg_context *context, uint64_t va, const struct sg_chunk *chunk)
{
    int owner = context->device;
    for (int d = 0; d < sg.device_count; d++)
        if (d == owner || context->viewers[d])
            sg_pagetable_set(d, va, chunk, chunk->pages, SG_PTE_READ | SG_PTE_WRITE);
}

static void hide(uint64_t va, size_t pages)
{
    for (int d = 0; d < sg.device_count; d++)
        sg_pagetable_set(d, va, NULL, pages, 0);
}

/* Addresses for memory of the job; with red zones, nothing lies directly before or behind them. */
static uint64_t take_addresses(uint64_t bytes)
{
    uint64_t zone = sg_redzone_page_bytes(), va = sg_va_reserve(bytes + 2 * zone, SG_PAGE_BYTES, 0);
    return va ? va + zone : 0;
}

static void give_addresses(uint64_t va, uint64_t bytes)
{
    uint64_t zone = sg_redzone_page_bytes();
    sg_va_release(va - zone, bytes + 2 * zone);
}

static unsigned slots_of(const struct sg_alloc *a)
{
    return (unsigned)((a->region.bytes + sg_redzone_slot_bytes() + SG_SMALL_SLOT_BYTES - 1) / SG_SMALL_SLOT_BYTES);
}

static CUresult block_create(struct sg_context *context, struct sg_block **block_out)
{
    struct sg_block *b = calloc(1, sizeof *b);
    if (!b)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = sg_chunk_create(context->device, 1, false, &b->chunk);
    if (r) {
        free(b);
        return r;
    }
    b->region = (struct sg_region){SG_REGION_BLOCK, take_addresses(SG_PAGE_BYTES), SG_PAGE_BYTES};
    if (!b->region.va) {
        sg_chunk_destroy(b->chunk);
        free(b);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    b->context = context;
    b->free_slots = SG_BLOCK_SLOTS;
    sg_regions_set(&b->region, b->region.va, SG_PAGE_BYTES);
    sg_redzone_page(b->region.va, false);
    show(context, b->region.va, b->chunk);
    DL_PREPEND(context->blocks, b);
    *block_out = b;
    return CUDA_SUCCESS;
}

static void block_destroy(struct sg_block *b)
{
    hide(b->region.va, 1);
    sg_regions_set(NULL, b->region.va, SG_PAGE_BYTES);
    sg_redzone_page(b->region.va, true);
    give_addresses(b->region.va, SG_PAGE_BYTES);
    sg_chunk_destroy(b->chunk);
    DL_DELETE(b->context->blocks, b);
    free(b);
}

/* First slot of a run of `need` free ones; SG_BLOCK_SLOTS = none. */
static unsigned find_slots(struct sg_block *b, unsigned need)
{
    if (b->free_slots < need)
        return SG_BLOCK_SLOTS;
    for (int pass = 0; pass < 2; pass++) {
        unsigned run = 0, end = pass ? b->hint + need : SG_BLOCK_SLOTS;
        for (unsigned i = pass ? 0 : b->hint; i < SG_BLOCK_SLOTS && i < end; i++) {
            run = b->slot[i] ? 0 : run + 1;
            if (run == need)
                return i + 1 - need;
        }
    }
    return SG_BLOCK_SLOTS;
}

static CUresult place_small(struct sg_context *context, struct sg_alloc *a)
{
    unsigned need = slots_of(a), at = SG_BLOCK_SLOTS;
    struct sg_block *b;
    unsigned tried = 0;
    DL_FOREACH(context->blocks, b)
    { /* the newest first; a bounded search keeps this cheap with many blocks */
        at = find_slots(b, need);
        if (at < SG_BLOCK_SLOTS || ++tried == 16)
            break;
    }
    if (at == SG_BLOCK_SLOTS) {
        CUresult r = block_create(context, &b);
        if (r)
            return r;
        at = 0;
    }
    for (unsigned i = 0; i < need; i++)
        b->slot[at + i] = a;
    b->free_slots -= need;
    b->hint = at + need;
    if (!b->free_slots) { /* blocks with room stay in front */
        DL_DELETE(context->blocks, b);
        DL_APPEND(context->blocks, b);
    }
    a->block = b;
    a->region.va = b->region.va + at * SG_SMALL_SLOT_BYTES;
    return CUDA_SUCCESS;
}

static CUresult place_large(struct sg_context *context, struct sg_alloc *a)
{
    size_t pages = (a->region.bytes + SG_PAGE_BYTES - 1) >> SG_PAGE_SHIFT;
    CUresult r = sg_chunk_create(context->device, pages, false, &a->chunk);
    if (r)
        return r;
    a->reserved_bytes = (uint64_t)pages << SG_PAGE_SHIFT;
    a->region.va = take_addresses(a->reserved_bytes);
    if (!a->region.va) {
        sg_chunk_destroy(a->chunk);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    sg_regions_set(&a->region, a->region.va, a->reserved_bytes);
    show(context, a->region.va, a->chunk);
    return CUDA_SUCCESS;
}

CUresult sg_alloc_create(struct sg_context *context, uint64_t bytes, bool is_module, struct sg_alloc **alloc_out)
{
    if (bytes > UINT64_C(1) << (SG_VA_BITS - 1))
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct sg_alloc *a = calloc(1, sizeof *a);
    if (!a)
        return CUDA_ERROR_OUT_OF_MEMORY;
    a->region = (struct sg_region){SG_REGION_ALLOC, 0, bytes};
    a->context = context;
    a->device = context->device;
    a->is_module = is_module;
    CUresult r = bytes <= SMALL_MAX_BYTES ? place_small(context, a) : place_large(context, a);
    if (r) {
        free(a);
        return r;
    }
    a->buffer_id = sg.next_buffer_id++;
    sg_redzone_set(a, true);
    sg_time_units(SG_UNIT_CHUNK_ALLOC, (double)(bytes >> SG_PAGE_SHIFT));
    DL_APPEND(context->allocs, a);
    *alloc_out = a;
    return CUDA_SUCCESS;
}

CUresult sg_alloc_reserve(struct sg_context *context, uint64_t bytes, struct sg_alloc **alloc_out)
{
    if (bytes > UINT64_C(1) << (SG_VA_BITS - 1))
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct sg_alloc *a = calloc(1, sizeof *a);
    if (!a)
        return CUDA_ERROR_OUT_OF_MEMORY;
    a->reserved_bytes = (bytes + SG_PAGE_BYTES - 1) & ~(SG_PAGE_BYTES - 1);
    a->region = (struct sg_region){SG_REGION_ALLOC, take_addresses(a->reserved_bytes), bytes};
    a->context = context;
    a->device = context->device;
    if (!a->region.va) {
        free(a);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    sg_regions_set(&a->region, a->region.va, a->reserved_bytes);
    a->buffer_id = sg.next_buffer_id++;
    DL_APPEND(context->allocs, a);
    *alloc_out = a;
    return CUDA_SUCCESS;
}

void sg_alloc_back(struct sg_alloc *a, struct sg_chunk *chunk)
{
    if (chunk) {
        sg_chunk_forget(chunk, 0, chunk->pages);
        a->chunk = chunk;
        a->was_backed = true;
        show(a->context, a->region.va, chunk);
        sg_redzone_set(a, true);
    } else if (a->chunk) {
        sg_redzone_set(a, false);
        if (sg_check.race)
            sg_race_forget(a->region.va, a->region.bytes);
        hide(a->region.va, a->chunk->pages);
        a->chunk = NULL;
    }
}

/* What small allocations held is no more, though the block around them stays mapped. (A frame that nobody touched yet is
 * filled with poison when that happens.) */
static void poison_slots(const struct sg_alloc *a)
{
    const struct sg_chunk *chunk = a->block->chunk;
    uint64_t bad, bytes = (a->region.bytes + SG_SMALL_SLOT_BYTES - 1) & ~(SG_SMALL_SLOT_BYTES - 1);
    if (!atomic_load_explicit(&chunk->pool->filled[chunk->frame[0]], memory_order_acquire))
        return;
    struct sg_fill poison = {a->region.va, bytes, bytes, 1, (uint32_t)SG_POISON, 4, a->device};
    struct sg_moved moved = {{0}};
    sg_fill_execute(&poison, &moved, &bad);
}

void sg_alloc_destroy(struct sg_alloc *a)
{
    if (a->graph)
        sg_graph_memory_gone(a->graph); /* nothing is behind it any more */
    if (a->foreign) {
        sg_foreign_destroy(a);
        return;
    }
    if (a->managed) {
        sg_managed_destroy(a);
        return;
    }
    if (a->ipc)
        sg_ipc_end(a);
    sg_note_freed(a->region.va, a->region.bytes);
    sg_redzone_set(a, false);
    if (a->block)
        poison_slots(a);
    DL_DELETE(a->context->allocs, a);
    struct sg_block *b = a->block;
    if (b) {
        unsigned at = (unsigned)((a->region.va - b->region.va) / SG_SMALL_SLOT_BYTES);
        unsigned n = slots_of(a);
        for (unsigned i = 0; i < n; i++)
            b->slot[at + i] = NULL;
        if (!b->free_slots) {
            DL_DELETE(b->context->blocks, b);
            DL_PREPEND(b->context->blocks, b);
        }
        b->free_slots += n;
        if (at < b->hint)
            b->hint = at;
        if (b->free_slots == SG_BLOCK_SLOTS)
            block_destroy(b);
    } else {
        if (a->chunk)
            hide(a->region.va, a->chunk->pages);
        sg_regions_set(NULL, a->region.va, a->reserved_bytes);
        give_addresses(a->region.va, a->reserved_bytes);
        if (a->chunk)
            sg_chunk_destroy(a->chunk);
    }
    free(a);
}

void sg_alloc_expose(struct sg_context *owner, int viewer, bool visible)
{
    uint64_t rights = visible ? SG_PTE_READ | SG_PTE_WRITE : 0;
    struct sg_alloc *a;
    struct sg_block *b;
    DL_FOREACH(owner->allocs, a)
    if (a->chunk)
        sg_pagetable_set(viewer, a->region.va, a->chunk, a->chunk->pages, rights);
    DL_FOREACH(owner->blocks, b)
    sg_pagetable_set(viewer, b->region.va, b->chunk, b->chunk->pages, rights);
}

CUresult cuMemAlloc_v2(CUdeviceptr *dptr, size_t bytesize)
{
    struct sg_context *context;
    CUresult r = sg_enter_context("cuMemAlloc", &context);
    if (r)
        return r;
    if (!dptr || !bytesize)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    struct sg_alloc *a;
    r = sg_alloc_create(context, bytesize, false, &a);
    if (!r)
        *dptr = a->region.va;
    return sg_leave(r);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pitch, size_t width, size_t height, unsigned element_bytes)
{
    struct sg_context *context;
    CUresult r = sg_enter_context("cuMemAllocPitch", &context);
    if (r)
        return r;
    if (!dptr || !pitch || !width || !height || (element_bytes != 4 && element_bytes != 8 && element_bytes != 16))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (width > UINT64_C(1) << 40 || height > UINT64_C(1) << 40)
        return sg_leave(CUDA_ERROR_OUT_OF_MEMORY);
    uint64_t row = (width + 511) & ~UINT64_C(511), bytes;
    struct sg_alloc *a;
    r = __builtin_mul_overflow(row, (uint64_t)height, &bytes) ? CUDA_ERROR_OUT_OF_MEMORY
                                                              : sg_alloc_create(context, bytes, false, &a);
    if (!r) {
        *dptr = a->region.va;
        *pitch = row;
    }
    return sg_leave(r);
}

CUresult cuMemFree_v2(CUdeviceptr dptr)
{
    struct sg_context *context;
    CUresult r = sg_enter_context("cuMemFree", &context);
    if (r)
        return r;
    if (!dptr)
        return sg_leave(CUDA_SUCCESS);
    struct sg_alloc *a = sg_alloc_at(dptr);
    if (!a || a->region.va != dptr || a->is_module || (a->foreign && !sg_may_free(a)))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (a->graph && (a->graph->freed_by || !a->graph->allocated))
        return sg_leave(CUDA_ERROR_INVALID_VALUE); /* a graph frees it, or none has allocated it */
    if (a->piece)
        return sg_leave(sg_mempool_free_now(a));
    int device = a->device == SG_ON_HOST ? context->device : a->device;
    if (sg_call_random() & 1) { /* a driver may synchronise here or not, and jobs must bear both */
        sg_wait_device(device);
        if (sg_alloc_at(dptr) != a)
            return sg_leave(CUDA_ERROR_INVALID_VALUE); /* another thread freed it meanwhile */
    }
    char text[256];
    if (sg_in_flight(a->region.va, a->region.bytes, ~0u, text, sizeof text) ||
        (a->chunk && sg_touched_in_flight(a->region.va, a->reserved_bytes, ~0u, text, sizeof text))) {
        sg.devices[device].freed_in_flight++;
        sg_log(SG_LOG_WARN, "freed in flight: cuMemFree(0x%" PRIx64 "), %" PRIu64 " bytes, %s", a->region.va,
               a->region.bytes, text);
    }
    if (a->graph)
        return sg_leave(sg_graph_memory_free(a->graph));
    sg_alloc_destroy(a);
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    struct sg_context *context;
    CUresult r = sg_enter_context("cuMemGetInfo", &context);
    if (r)
        return r;
    if (!free_bytes || !total)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *total = sg.config.vram_bytes;
    uint64_t used = sg.devices[context->device].used_bytes + sg_cards_others(sg.card[context->device]);
    *free_bytes = used < sg.config.vram_bytes ? sg.config.vram_bytes - used : 0;
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr dptr)
{
    struct sg_context *context;
    CUresult r = sg_enter_context("cuMemGetAddressRange", &context);
    if (r)
        return r;
    struct sg_alloc *a = sg_alloc_at(dptr);
    struct sg_mapping *m = sg_mapping_at(dptr);
    struct sg_host *h = sg_host_at(dptr);
    uint64_t start, bytes;
    if (a) {
        start = a->region.va;
        bytes = a->region.bytes;
    } else if (m) { /* the chunk around the address, not the reservation */
        start = m->region.va;
        bytes = m->region.bytes;
    } else if (h) {
        start = h->va;
        bytes = h->bytes;
    } else {
        return sg_leave(CUDA_ERROR_NOT_FOUND);
    }
    if (base)
        *base = start;
    if (size)
        *size = bytes;
    return sg_leave(CUDA_SUCCESS);
}
