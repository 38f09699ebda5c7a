/*
 * Physical memory: frames of 2 MiB out of one sparse memfd per GPU (and one for host memory), mapped once.
 *
 * A frame is filled with a poison pattern when it is first touched after it was handed out, not before: allocating 100 GB
 * costs nothing, and yet nobody ever reads zeros or old data by luck. Until then its page-table entries are marked slow.
 * Shareable chunks have a memfd of their own, since a file descriptor is what gets exported.
 */
#include "simgpu/sim.h"
#include "simgpu/smi.h"

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
    if (bytes > sg.config.vram_bytes - d->used_bytes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    d->used_bytes += bytes;
    sg_smi_used(device, d->used_bytes);
    if (d->used_bytes > d->peak_bytes)
        d->peak_bytes = d->used_bytes;
    return CUDA_SUCCESS;
}

void sg_vram_give(int device, uint64_t bytes)
{
    sg.devices[device].used_bytes -= bytes;
    sg_smi_used(device, sg.devices[device].used_bytes);
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
    snprintf(name, sizeof name, "simgpu-chunk:%d", chunk->device);
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

void sg_chunk_destroy(struct sg_chunk *chunk)
{
    uint64_t bytes = (uint64_t)chunk->pages << SG_PAGE_SHIFT;
    if (chunk->frame)
        for (size_t i = 0; i < chunk->pages; i++)
            chunk->pool->recycled[chunk->pool->recycled_count++] = chunk->frame[i];
    if (chunk->own) {
        DL_DELETE(sg.shareable, chunk);
        munmap(chunk->own, bytes);
    }
    if (chunk->fd >= 0)
        close(chunk->fd);
    if (chunk->object.id)
        sg_object_remove(&chunk->object);
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
