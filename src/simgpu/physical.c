/*
 * Physical memory: frames of 2 MiB out of one sparse memfd per GPU (and one for host memory), mapped once.
 *
 * A frame is filled with a poison pattern when it is first touched after it was handed out, not before: allocating 100 GB
 * costs nothing, and yet nobody ever reads zeros or old data by luck. Until then its page-table entries are marked slow.
 * Shareable chunks have a memfd of their own, since a file descriptor is what gets exported.
 */
#include "simgpu/cards.h"
#include "simgpu/sim.h"
#include "simgpu/smi.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static void poison(uint8_t *at)
{
    uint64_t *word = (uint64_t *)(void *)at;
    for (size_t i = 0; i < SG_PAGE_BYTES / sizeof *word; i++)
        word[i] = SG_POISON;
}

static void *map_aligned(uint64_t bytes, int fd)
{
    uint8_t *p = mmap(NULL, bytes + SG_PAGE_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    uint8_t *at = (uint8_t *)(((uintptr_t)p + SG_PAGE_BYTES - 1) & ~(uintptr_t)(SG_PAGE_BYTES - 1));
    if (at > p)
        munmap(p, (size_t)(at - p));
    munmap(at + bytes, (size_t)(p + SG_PAGE_BYTES - at));
    if (mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, 0) == MAP_FAILED) {
        munmap(at, bytes);
        return NULL;
    }
    return at;
}

static void *reserve_array(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

CUresult sg_pool_init(struct sg_pool *pool, int device, uint64_t bytes)
{
    memset(pool, 0, sizeof *pool);
    pool->device = device;
    pool->frames = bytes >> SG_PAGE_SHIFT;
    pthread_mutex_init(&pool->fill_lock, NULL);
    pool->fd = memfd_create("simgpu", MFD_CLOEXEC);
    if (pool->fd < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    bytes = pool->frames << SG_PAGE_SHIFT;
    if (bytes == 0)
        return CUDA_SUCCESS;
    if (ftruncate(pool->fd, (off_t)bytes))
        return CUDA_ERROR_OPERATING_SYSTEM;
    pool->alias = map_aligned(bytes, pool->fd);
    pool->recycled = reserve_array(pool->frames * sizeof *pool->recycled);
    pool->filled = reserve_array(pool->frames * sizeof *pool->filled);
    if (!pool->alias || !pool->recycled || !pool->filled)
        return CUDA_ERROR_OUT_OF_MEMORY;
    return CUDA_SUCCESS;
}

static struct sg_pool *pool_of(uint64_t address, size_t *frame_out)
{
    for (int i = -1; i < sg.device_count; i++) {
        struct sg_pool *pool = i < 0 ? &sg.host_pool : &sg.devices[i].pool;
        uint64_t base = (uint64_t)(uintptr_t)pool->alias;
        if (base && address >= base && address - base < (uint64_t)pool->frames << SG_PAGE_SHIFT) {
            *frame_out = (address - base) >> SG_PAGE_SHIFT;
            return pool;
        }
    }
    return NULL;
}

void sg_pool_fill(uint64_t host_address)
{
    size_t frame = 0;
    struct sg_pool *pool = pool_of(host_address, &frame);
    if (!pool || atomic_load_explicit(&pool->filled[frame], memory_order_acquire))
        return;
    pthread_mutex_lock(&pool->fill_lock);
    if (!atomic_load_explicit(&pool->filled[frame], memory_order_relaxed)) {
        poison(pool->alias + (frame << SG_PAGE_SHIFT));
        atomic_store_explicit(&pool->filled[frame], 1, memory_order_release);
    }
    pthread_mutex_unlock(&pool->fill_lock);
}

static uint32_t take_frame(struct sg_pool *pool)
{
    uint32_t frame = pool->recycled_count ? pool->recycled[--pool->recycled_count] : (uint32_t)pool->fresh++;
    atomic_store_explicit(&pool->filled[frame], 0, memory_order_relaxed);
    return frame;
}

CUresult sg_vram_take(int device, uint64_t bytes)
{
    struct sg_device *d = &sg.devices[device];
    if (bytes > sg.config.vram_bytes - d->used_bytes || !sg_cards_take(sg.card[device], bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    d->used_bytes += bytes;
    sg_smi_used(sg.card[device], d->used_bytes);
    if (d->used_bytes > d->peak_bytes)
        d->peak_bytes = d->used_bytes;
    return CUDA_SUCCESS;
}

void sg_vram_give(int device, uint64_t bytes)
{
    sg.devices[device].used_bytes -= bytes;
    sg_cards_give(sg.card[device], bytes);
    sg_smi_used(sg.card[device], sg.devices[device].used_bytes);
}

static CUresult charge(int device, uint64_t bytes)
{
    if (device != SG_ON_HOST)
        return sg_vram_take(device, bytes);
    if (bytes > sg.config.host_bytes || sg.host_used_bytes > sg.config.host_bytes - bytes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    sg.host_used_bytes += bytes;
    if (sg.host_used_bytes > sg.host_peak_bytes)
        sg.host_peak_bytes = sg.host_used_bytes;
    return CUDA_SUCCESS;
}

static void discharge(int device, uint64_t bytes)
{
    if (device == SG_ON_HOST)
        sg.host_used_bytes -= bytes;
    else
        sg_vram_give(device, bytes);
}

static CUresult make_shareable(struct sg_chunk *chunk)
{
    char name[64]; /* tells an importer in another process what it gets */
    struct stat st;
    snprintf(name, sizeof name, "simgpu-chunk:%d", chunk->device == SG_ON_HOST ? SG_ON_HOST : sg.card[chunk->device]);
    chunk->fd = memfd_create(name, MFD_CLOEXEC);
    if (chunk->fd < 0)
        return CUDA_ERROR_OPERATING_SYSTEM;
    uint64_t bytes = (uint64_t)chunk->pages << SG_PAGE_SHIFT;
    if (ftruncate(chunk->fd, (off_t)bytes) || fstat(chunk->fd, &st))
        return CUDA_ERROR_OPERATING_SYSTEM;
    chunk->inode = st.st_ino;
    chunk->own = map_aligned(bytes, chunk->fd);
    if (!chunk->own)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < chunk->pages; i++)
        poison(chunk->own + (i << SG_PAGE_SHIFT));
    DL_APPEND(sg.shareable, chunk);
    return CUDA_SUCCESS;
}

CUresult sg_chunk_create(int device, size_t pages, bool shareable, struct sg_chunk **chunk_out)
{
    uint64_t bytes = (uint64_t)pages << SG_PAGE_SHIFT;
    struct sg_pool *pool = device == SG_ON_HOST ? &sg.host_pool : &sg.devices[device].pool;
    if (pages == 0 || pages > pool->frames)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = charge(device, bytes);
    if (r)
        return r;
    struct sg_chunk *chunk = calloc(1, sizeof *chunk);
    if (!chunk)
        goto no_memory;
    chunk->device = device;
    chunk->pages = pages;
    chunk->pool = pool;
    chunk->fd = -1;
    if (shareable) {
        r = make_shareable(chunk);
        if (r) {
            sg_chunk_destroy(chunk);
            return r;
        }
    } else {
        chunk->frame = malloc(pages * sizeof *chunk->frame);
        if (!chunk->frame)
            goto no_memory;
        for (size_t i = 0; i < pages; i++)
            chunk->frame[i] = take_frame(pool);
    }
    *chunk_out = chunk;
    return CUDA_SUCCESS;
no_memory:
    free(chunk);
    discharge(device, bytes);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult sg_chunk_create_view(int device, int fd, const uint32_t *page, uint64_t first, size_t pages,
                              struct sg_chunk **chunk_out)
{
    uint64_t bytes = (uint64_t)pages << SG_PAGE_SHIFT;
    struct sg_chunk *chunk = calloc(1, sizeof *chunk);
    if (!chunk)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *chunk = (struct sg_chunk){.device = device, .pages = pages, .fd = -1, .is_view = true};
    chunk->own = map_aligned(bytes, fd);
    bool mapped = chunk->own != NULL;
    for (size_t i = 0; i < pages && mapped; i++) {
        off_t at = (off_t)((page ? page[i] : first + i) << SG_PAGE_SHIFT);
        mapped = mmap(chunk->own + (i << SG_PAGE_SHIFT), SG_PAGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
                      fd, at) != MAP_FAILED;
    }
    if (!mapped) {
        sg_chunk_destroy(chunk);
        return CUDA_ERROR_MAP_FAILED;
    }
    *chunk_out = chunk;
    return CUDA_SUCCESS;
}

/* ---- runs of frames ---- */

CUresult sg_runs_init(struct sg_runs *runs, int device, size_t frames, const char *name)
{
    memset(runs, 0, sizeof *runs);
    runs->pool = (struct sg_pool){.device = device, .frames = frames, .fd = memfd_create(name, MFD_CLOEXEC)};
    uint64_t bytes = (uint64_t)frames << SG_PAGE_SHIFT;
    if (runs->pool.fd < 0 || ftruncate(runs->pool.fd, (off_t)bytes)) {
        sg_runs_finish(runs);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    runs->pool.alias = map_aligned(bytes, runs->pool.fd);
    runs->pool.filled = reserve_array(frames * sizeof *runs->pool.filled);
    runs->taken = reserve_array(frames);
    if (!runs->pool.alias || !runs->pool.filled || !runs->taken) {
        sg_runs_finish(runs);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memset((void *)runs->pool.filled, 1, frames);
    return CUDA_SUCCESS;
}

void sg_runs_finish(struct sg_runs *runs)
{
    if (runs->pool.alias)
        munmap(runs->pool.alias, (uint64_t)runs->pool.frames << SG_PAGE_SHIFT);
    if (runs->pool.filled)
        munmap((void *)runs->pool.filled, runs->pool.frames * sizeof *runs->pool.filled);
    if (runs->taken)
        munmap(runs->taken, runs->pool.frames);
    if (runs->pool.fd >= 0)
        close(runs->pool.fd);
    memset(runs, 0, sizeof *runs);
    runs->pool.fd = -1;
}

/* The first of so many adjacent free frames; `frames` = none. */
static size_t find_run(const struct sg_runs *runs, size_t pages)
{
    size_t free_frames = 0;
    for (size_t i = 0; i < runs->pool.frames; i++) {
        free_frames = runs->taken[i] ? 0 : free_frames + 1;
        if (free_frames == pages)
            return i + 1 - pages;
    }
    return runs->pool.frames;
}

CUresult sg_chunk_create_run(struct sg_runs *runs, size_t pages, struct sg_chunk **chunk_out)
{
    struct sg_pool *pool = &runs->pool;
    uint64_t bytes = (uint64_t)pages << SG_PAGE_SHIFT;
    size_t first = find_run(runs, pages);
    if (first == pool->frames)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = charge(pool->device, bytes);
    if (r)
        return r;
    struct sg_chunk *chunk = calloc(1, sizeof *chunk);
    uint32_t *frame = chunk ? malloc(pages * sizeof *frame) : NULL;
    if (!frame) {
        free(chunk);
        discharge(pool->device, bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *chunk =
        (struct sg_chunk){.device = pool->device, .pages = pages, .pool = pool, .frame = frame, .fd = -1, .runs = runs};
    for (size_t i = 0; i < pages; i++) {
        frame[i] = (uint32_t)(first + i);
        runs->taken[first + i] = 1;
        poison(pool->alias + ((uint64_t)frame[i] << SG_PAGE_SHIFT));
    }
    *chunk_out = chunk;
    return CUDA_SUCCESS;
}

static void give_run(struct sg_chunk *chunk)
{
    uint64_t start = (uint64_t)chunk->frame[0] << SG_PAGE_SHIFT, bytes = (uint64_t)chunk->pages << SG_PAGE_SHIFT;
    memset(chunk->runs->taken + chunk->frame[0], 0, chunk->pages);
    if (fallocate(chunk->pool->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)start, (off_t)bytes))
        sg_log(SG_LOG_INFO, "memory of a shareable pool stays with the system until the pool goes");
}

void sg_chunk_forget(struct sg_chunk *chunk, size_t page, size_t pages)
{
    for (size_t i = page; i < page + pages; i++) {
        if (chunk->runs)
            poison(chunk->pool->alias + ((uint64_t)chunk->frame[i] << SG_PAGE_SHIFT));
        else
            atomic_store_explicit(&chunk->pool->filled[chunk->frame[i]], 0, memory_order_release);
    }
}

bool sg_chunk_show_host(struct sg_chunk *chunk, uint64_t va, size_t pages, int protection)
{
    bool shown = true;
    for (size_t i = 0; i < pages; i++) {
        void *at = (void *)(uintptr_t)(va + ((uint64_t)i << SG_PAGE_SHIFT));
        int flags = MAP_FIXED | (protection == PROT_NONE ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE : MAP_SHARED);
        int fd = protection == PROT_NONE ? -1 : chunk->own ? chunk->fd : chunk->pool->fd;
        uint64_t offset = protection == PROT_NONE ? 0 : (uint64_t)(chunk->own ? i : chunk->frame[i]) << SG_PAGE_SHIFT;
        if (protection != PROT_NONE && !chunk->own)
            sg_pool_fill(sg_chunk_entry(chunk, i) & SG_PTE_HOST_MASK);
        shown &= mmap(at, SG_PAGE_BYTES, protection, flags, fd, (off_t)offset) != MAP_FAILED;
    }
    return shown;
}

void sg_chunk_destroy(struct sg_chunk *chunk)
{
    uint64_t bytes = (uint64_t)chunk->pages << SG_PAGE_SHIFT;
    if (chunk->runs)
        give_run(chunk);
    else if (chunk->frame)
        for (size_t i = 0; i < chunk->pages; i++)
            chunk->pool->recycled[chunk->pool->recycled_count++] = chunk->frame[i];
    if (chunk->own) {
        if (!chunk->is_view)
            DL_DELETE(sg.shareable, chunk);
        munmap(chunk->own, bytes);
    }
    if (chunk->fd >= 0)
        close(chunk->fd);
    if (chunk->object.id)
        sg_object_remove(&chunk->object);
    if (!chunk->is_view)
        discharge(chunk->device, bytes);
    free(chunk->frame);
    free(chunk);
}

uint64_t sg_chunk_entry(const struct sg_chunk *chunk, size_t page)
{
    if (chunk->own)
        return (uint64_t)(uintptr_t)chunk->own + ((uint64_t)page << SG_PAGE_SHIFT);
    uint32_t frame = chunk->frame[page];
    uint64_t entry = (uint64_t)(uintptr_t)chunk->pool->alias + ((uint64_t)frame << SG_PAGE_SHIFT);
    if (!atomic_load_explicit(&chunk->pool->filled[frame], memory_order_acquire))
        entry |= SG_PTE_SLOW;
    return entry;
}
