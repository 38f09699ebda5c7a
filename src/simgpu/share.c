/* Memory that is another process's, or comes from outside: views of its file at addresses of this process; see share.h. */
#include "simgpu/share.h"

#include "simgpu/check.h"
#include "simgpu/mempool.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

bool sg_file_is_ours(int fd, const char *prefix, int *device_out)
{
    char link[64], name[128] = "", start[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    int length = snprintf(start, sizeof start, "/memfd:%s:", prefix);
    if (readlink(link, name, sizeof name - 1) < 0 || strncmp(name, start, (size_t)length) != 0)
        return false;
    long card = strtol(name + length, NULL, 10);
    *device_out = card == SG_ON_HOST ? SG_ON_HOST : sg_device_of((int)card);
    return card == SG_ON_HOST || *device_out >= 0;
}

int sg_file_of_process(int pid, int fd, uint64_t inode)
{
    char path[64];
    struct stat st;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
    int own = open(path, O_RDWR | O_CLOEXEC);
    if (own < 0 || (!fstat(own, &st) && st.st_ino == inode))
        return own;
    close(own);
    return -1;
}

/* Only the bytes named are in bounds, whatever else lies in their pages. */
static void set_bounds(const struct sg_alloc *a, bool live)
{
    const struct sg_foreign *f = a->foreign;
    struct sg_alloc shape = {.region = a->region};
    for (size_t i = 0; i < f->chunk->pages; i++)
        sg_redzone_page(f->page + ((uint64_t)i << SG_PAGE_SHIFT), !live);
    if (!live)
        return;
    uint64_t end = a->region.va + a->region.bytes;
    for (uint64_t page = f->page, start = a->region.va; start < end; page += SG_PAGE_BYTES, start = page) {
        shape.region.va = start;
        shape.region.bytes = (end < page + SG_PAGE_BYTES ? end : page + SG_PAGE_BYTES) - start;
        sg_redzone_set(&shape, true);
    }
}

static void show(const struct sg_alloc *a, bool visible)
{
    uint64_t rights = visible ? SG_PTE_READ | SG_PTE_WRITE : 0;
    for (int d = 0; d < sg.device_count; d++) {
        bool sees = !visible || d == a->device ||
                    (a->context && (d == a->context->device || a->context->viewers[d] || a->device == SG_ON_HOST));
        if (sees)
            sg_pagetable_set(d, a->foreign->page, visible ? a->foreign->chunk : NULL, a->foreign->chunk->pages, rights);
    }
}

CUresult sg_foreign_create(const struct sg_foreign_place *place, struct sg_context *context,
                           struct sg_alloc **alloc_out)
{
    size_t pages = (size_t)((place->offset + place->bytes + SG_PAGE_BYTES - 1) >> SG_PAGE_SHIFT);
    struct sg_alloc *a = calloc(1, sizeof *a);
    struct sg_foreign *f = calloc(1, sizeof *f);
    CUresult r = a && f ? sg_chunk_create_view(place->device, place->fd, place->page, place->first, pages, &f->chunk)
                        : CUDA_ERROR_OUT_OF_MEMORY;
    if (!r) {
        f->page = sg_va_reserve((uint64_t)pages << SG_PAGE_SHIFT, SG_PAGE_BYTES, 0);
        r = f->page ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
        if (r)
            sg_chunk_destroy(f->chunk);
    }
    if (r) {
        free(a);
        free(f);
        return r;
    }
    f->kind = place->kind;
    f->opens = 1;
    *a = (struct sg_alloc){.region = {SG_REGION_ALLOC, f->page + place->offset, place->bytes},
                           .context = context,
                           .device = place->device,
                           .foreign = f,
                           .buffer_id = sg.next_buffer_id++};
    sg_regions_set(&a->region, f->page, (uint64_t)pages << SG_PAGE_SHIFT);
    show(a, true);
    set_bounds(a, true);
    if (context)
        DL_APPEND(context->allocs, a);
    *alloc_out = a;
    return CUDA_SUCCESS;
}

static void end_addresses(struct sg_alloc *a)
{
    struct sg_foreign *f = a->foreign;
    sg_regions_set(NULL, f->page, (uint64_t)f->chunk->pages << SG_PAGE_SHIFT);
    set_bounds(a, false);
    if (a->context)
        DL_DELETE(a->context->allocs, a);
}

void sg_foreign_destroy(struct sg_alloc *a)
{
    struct sg_foreign *f = a->foreign;
    sg_note_freed(a->region.va, a->region.bytes);
    end_addresses(a);
    show(a, false);
    sg_va_release(f->page, (uint64_t)f->chunk->pages << SG_PAGE_SHIFT);
    sg_chunk_destroy(f->chunk);
    if (f->kind == SG_FOREIGN_IPC)
        sg_ipc_close(f);
    free(f);
    free(a);
}

bool sg_may_free(const struct sg_alloc *a)
{
    return a->foreign->kind != SG_FOREIGN_IPC;
}

bool sg_is_pool_import(const struct sg_alloc *a)
{
    return a->foreign && a->foreign->kind == SG_FOREIGN_POOL;
}

struct sg_span *sg_foreign_span(struct sg_alloc *a)
{
    struct sg_span *span = calloc(1, sizeof *span);
    if (span)
        *span = (struct sg_span){.refs = 1,
                                 .foreign = a->foreign->chunk,
                                 .va = a->region.va,
                                 .bytes = a->region.bytes,
                                 .asked_bytes = a->region.bytes,
                                 .begun = true};
    return span;
}

void sg_foreign_forget(struct sg_alloc *a)
{
    end_addresses(a);
    free(a->foreign);
    free(a);
}

/* ---- pools ---- */

#define POOL_MAGIC UINT64_C(0x676d69732d6c6f70)

struct pointer_data { /* of a CUmemPoolPtrExportData */
    uint64_t magic, inode, offset, bytes;
    uint64_t spare[4];
};
_Static_assert(sizeof(struct pointer_data) == sizeof(CUmemPoolPtrExportData), "as large as cuda.h says");

/* So much room that runs of frames are found in spite of others between them. */
static size_t room_of(const struct sg_mempool *pool)
{
    uint64_t bytes = pool->max_bytes ? pool->max_bytes : sg.config.vram_bytes;
    return (size_t)((bytes + SG_PAGE_BYTES - 1) >> SG_PAGE_SHIFT) * 2;
}

CUresult sg_mempool_make_shareable(struct sg_mempool *pool)
{
    char name[64];
    struct stat st;
    pool->runs = calloc(1, sizeof *pool->runs);
    if (!pool->runs)
        return CUDA_ERROR_OUT_OF_MEMORY;
    snprintf(name, sizeof name, "simgpu-pool:%d", pool->device == SG_ON_HOST ? SG_ON_HOST : sg.card[pool->device]);
    CUresult r = sg_runs_init(pool->runs, pool->device, room_of(pool), name);
    if (!r && fstat(pool->runs->pool.fd, &st))
        r = CUDA_ERROR_OPERATING_SYSTEM;
    if (!r)
        pool->inode = st.st_ino;
    return r;
}

CUresult cuMemPoolExportToShareableHandle(void *handle_out, CUmemoryPool handle, CUmemAllocationHandleType type,
                                          unsigned long long flags)
{
    CUresult r = sg_enter("cuMemPoolExportToShareableHandle");
    if (r)
        return r;
    struct sg_mempool *pool = SG_FIND(handle, SG_MEMPOOL);
    if (!handle_out || !pool || flags || pool->imported || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
        !(pool->props.handleTypes & type))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    int fd = dup(pool->runs->pool.fd);
    if (fd < 0)
        return sg_leave(CUDA_ERROR_OPERATING_SYSTEM);
    *(int *)handle_out = fd;
    return sg_leave(CUDA_SUCCESS);
}

static CUresult import_pool(int fd, struct sg_mempool **pool_out)
{
    struct stat st;
    int device, own;
    if (fstat(fd, &st) || !sg_file_is_ours(fd, "simgpu-pool", &device) || device == SG_ON_HOST)
        return CUDA_ERROR_INVALID_VALUE;
    struct sg_mempool *pool = calloc(1, sizeof *pool);
    struct sg_runs *runs = calloc(1, sizeof *runs);
    own = pool && runs ? dup(fd) : -1;
    if (own < 0) {
        CUresult r = pool && runs ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_ERROR_OUT_OF_MEMORY;
        free(pool);
        free(runs);
        return r;
    }
    *runs = (struct sg_runs){.pool = {.device = device, .fd = own, .frames = (size_t)st.st_size >> SG_PAGE_SHIFT}};
    *pool = (struct sg_mempool){.props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                          .handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
                                          .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device}},
                                .device = device,
                                .imported = true,
                                .runs = runs,
                                .inode = st.st_ino};
    pool->access[device] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    sg_object_add(&pool->object, SG_MEMPOOL);
    DL_APPEND(sg.mempools, pool);
    *pool_out = pool;
    return CUDA_SUCCESS;
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool_out, void *os_handle, CUmemAllocationHandleType type,
                                            unsigned long long flags)
{
    CUresult r = sg_enter("cuMemPoolImportFromShareableHandle");
    if (r)
        return r;
    struct sg_mempool *pool;
    if (!pool_out || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    r = import_pool((int)(intptr_t)os_handle, &pool);
    if (!r)
        *pool_out = SG_HANDLE(CUmemoryPool, pool);
    return sg_leave(r);
}

CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *data_out, CUdeviceptr ptr)
{
    CUresult r = sg_enter("cuMemPoolExportPointer");
    if (r)
        return r;
    const struct sg_alloc *a = sg_alloc_at(ptr);
    const struct sg_segment *s = a && a->piece ? a->piece->segment : NULL;
    if (!data_out || !s || !s->chunk->runs || a->region.va != ptr)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    struct pointer_data data = {.magic = POOL_MAGIC,
                                .inode = s->pool->inode,
                                .offset = ((uint64_t)s->chunk->frame[0] << SG_PAGE_SHIFT) + (ptr - s->region.va),
                                .bytes = a->region.bytes};
    memcpy(data_out, &data, sizeof data);
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuMemPoolImportPointer(CUdeviceptr *ptr_out, CUmemoryPool handle, CUmemPoolPtrExportData *share)
{
    CUresult r = sg_enter("cuMemPoolImportPointer");
    if (r)
        return r;
    struct sg_mempool *pool = SG_FIND(handle, SG_MEMPOOL);
    struct pointer_data data;
    struct sg_alloc *a;
    if (!ptr_out || !share || !pool || !pool->imported)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    memcpy(&data, share, sizeof data);
    uint64_t room = (uint64_t)pool->runs->pool.frames << SG_PAGE_SHIFT;
    if (data.magic != POOL_MAGIC || data.inode != pool->inode || !data.bytes || data.offset >= room ||
        data.bytes > room - data.offset)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    struct sg_foreign_place place = {.kind = SG_FOREIGN_POOL,
                                     .device = pool->device,
                                     .fd = pool->runs->pool.fd,
                                     .first = data.offset >> SG_PAGE_SHIFT,
                                     .offset = data.offset & (SG_PAGE_BYTES - 1),
                                     .bytes = data.bytes};
    r = sg_foreign_create(&place, NULL, &a);
    if (!r)
        *ptr_out = a->region.va;
    return sg_leave(r);
}
