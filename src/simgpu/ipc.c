/*
 * Legacy handles of memory. The handle is the owner's process id and the descriptor of a file of its own, in which it says
 * where the allocation lies in the device's memory file, and whether it is still there. See share.h.
 */
#include "simgpu/check.h"
#include "simgpu/share.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC UINT64_C(0x676d69732d637069)

struct sg_ipc_record { /* in shared memory */
    uint64_t magic;
    int card, memory_fd; /* of the owner */
    uint64_t memory_inode;
    uint64_t offset, bytes;
    uint64_t pages;
    _Atomic(uint32_t) live, openers;
    uint32_t page[];
};

struct sg_ipc {
    int fd;
    uint64_t inode, map_bytes;
    struct sg_ipc_record *record;
};

struct handle { /* the bytes of a CUipcMemHandle */
    uint64_t magic, inode;
    int32_t pid, fd;
    uint64_t spare[5];
};
_Static_assert(sizeof(struct handle) == sizeof(CUipcMemHandle), "as large as cuda.h says");

static void ipc_free(struct sg_ipc *ipc)
{
    if (ipc->record)
        munmap(ipc->record, ipc->map_bytes);
    if (ipc->fd >= 0)
        close(ipc->fd);
    free(ipc);
}

static void fill_in(struct sg_ipc_record *r, const struct sg_alloc *a, const struct sg_chunk *chunk, ino_t memory_inode)
{
    *r = (struct sg_ipc_record){.magic = MAGIC,
                                .card = sg.card[a->device],
                                .memory_fd = chunk->pool->fd,
                                .memory_inode = memory_inode,
                                .offset = a->block ? a->region.va - a->block->region.va : 0,
                                .bytes = a->region.bytes,
                                .pages = chunk->pages,
                                .live = 1};
    for (size_t i = 0; i < chunk->pages; i++) {
        r->page[i] = chunk->frame[i];
        sg_pool_fill(sg_chunk_entry(chunk, i) & SG_PTE_HOST_MASK); /* nobody fills it for the importer */
    }
}

static CUresult export(struct sg_alloc *a)
{
    const struct sg_chunk *chunk = a->block ? a->block->chunk : a->chunk;
    struct stat st, memory;
    struct sg_ipc *ipc = calloc(1, sizeof *ipc);
    if (!ipc)
        return CUDA_ERROR_OUT_OF_MEMORY;
    ipc->map_bytes = sizeof *ipc->record + chunk->pages * sizeof ipc->record->page[0];
    ipc->fd = memfd_create("simgpu-ipc:0", MFD_CLOEXEC);
    void *record = MAP_FAILED;
    if (ipc->fd >= 0 && !ftruncate(ipc->fd, (off_t)ipc->map_bytes) && !fstat(ipc->fd, &st) &&
        !fstat(chunk->pool->fd, &memory))
        record = mmap(NULL, ipc->map_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, ipc->fd, 0);
    if (record == MAP_FAILED) {
        ipc_free(ipc);
        return CUDA_ERROR_MAP_FAILED;
    }
    ipc->record = record;
    ipc->inode = st.st_ino;
    fill_in(ipc->record, a, chunk, memory.st_ino);
    a->ipc = ipc;
    return CUDA_SUCCESS;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *handle_out, CUdeviceptr dptr)
{
    struct sg_context *context;
    CUresult r = sg_enter_context("cuIpcGetMemHandle", &context);
    if (r)
        return r;
    struct sg_alloc *a = sg_alloc_at(dptr);
    if (!handle_out || !a || a->region.va != dptr || a->is_module || a->piece || a->foreign || a->managed || a->graph ||
        a->device == SG_ON_HOST)
        return sg_leave(CUDA_ERROR_INVALID_VALUE); /* cuMemAlloc memory only */
    r = a->ipc ? CUDA_SUCCESS : export(a);
    if (r)
        return sg_leave(r);
    struct handle h = {.magic = MAGIC, .inode = a->ipc->inode, .pid = getpid(), .fd = a->ipc->fd};
    memcpy(handle_out, &h, sizeof h);
    return sg_leave(CUDA_SUCCESS);
}

void sg_ipc_end(struct sg_alloc *a)
{
    struct sg_ipc_record *r = a->ipc->record;
    atomic_store(&r->live, 0);
    if (atomic_load(&r->openers))
        sg_finding(SG_FINDING_AFTER_FREE, NULL,
                   "0x%" PRIx64 " of %" PRIu64 " bytes is freed while another process has it open", a->region.va,
                   a->region.bytes);
    ipc_free(a->ipc);
    a->ipc = NULL;
}

/* ---- the importer ---- */

static bool is_sound(const struct sg_ipc_record *r, uint64_t file_bytes)
{
    return r->magic == MAGIC && r->card >= 0 && r->card < SG_MAX_DEVICES && r->bytes &&
           r->pages <= (file_bytes - sizeof *r) / sizeof r->page[0] && r->offset < SG_PAGE_BYTES &&
           r->offset + r->bytes <= r->pages << SG_PAGE_SHIFT;
}

static CUresult map_record(const struct handle *h, struct sg_ipc_record **record_out)
{
    struct stat st;
    int fd = sg_file_of_process(h->pid, h->fd, h->inode);
    if (fd < 0 || fstat(fd, &st) || (uint64_t)st.st_size < sizeof **record_out) {
        if (fd >= 0)
            close(fd);
        return CUDA_ERROR_MAP_FAILED; /* its owner, or the allocation, is gone */
    }
    void *record = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (record == MAP_FAILED)
        return CUDA_ERROR_MAP_FAILED;
    if (!is_sound(record, (uint64_t)st.st_size)) {
        munmap(record, (size_t)st.st_size);
        return CUDA_ERROR_INVALID_HANDLE;
    }
    *record_out = record;
    return CUDA_SUCCESS;
}

static void unmap_record(struct sg_ipc_record *r)
{
    munmap(r, sizeof *r + r->pages * sizeof r->page[0]);
}

void sg_ipc_close(struct sg_foreign *f)
{
    atomic_fetch_sub(&f->record->openers, 1);
    unmap_record(f->record);
}

bool sg_foreign_lives(const struct sg_foreign *f)
{
    return f->kind != SG_FOREIGN_IPC || !f->record || atomic_load(&f->record->live);
}

/* The opened allocation of that handle; in any context of this process. */
static struct sg_alloc *opened(uint64_t inode)
{
    struct sg_context *c;
    struct sg_alloc *a;
    DL_FOREACH(sg.contexts, c)
    DL_FOREACH(c->allocs, a)
    if (a->foreign && a->foreign->kind == SG_FOREIGN_IPC && a->foreign->inode == inode)
        return a;
    return NULL;
}

static CUresult open_new(const struct handle *h, struct sg_context *context, struct sg_alloc **alloc_out)
{
    struct sg_ipc_record *record;
    CUresult r = map_record(h, &record);
    if (r)
        return r;
    int fd = atomic_load(&record->live) ? sg_file_of_process(h->pid, record->memory_fd, record->memory_inode) : -1;
    if (fd < 0)
        r = CUDA_ERROR_MAP_FAILED;
    int device = sg_device_of(record->card);
    if (!r && (device < 0 || (device != context->device && !sg_can_reach(context->device, device))))
        r = CUDA_ERROR_MAP_FAILED; /* this process does not see its card, or cannot from this one */
    struct sg_foreign_place place = {.kind = SG_FOREIGN_IPC,
                                     .device = device,
                                     .fd = fd,
                                     .page = record->page,
                                     .offset = record->offset,
                                     .bytes = record->bytes};
    if (!r)
        r = sg_foreign_create(&place, context, alloc_out);
    if (fd >= 0)
        close(fd);
    if (r) {
        unmap_record(record);
        return r;
    }
    atomic_fetch_add(&record->openers, 1);
    (*alloc_out)->foreign->record = record;
    (*alloc_out)->foreign->inode = h->inode;
    return CUDA_SUCCESS;
}

static CUresult open_handle(CUdeviceptr *pdptr, const CUipcMemHandle *handle, unsigned flags)
{
    struct sg_context *context;
    CUresult r = sg_enter_context("cuIpcOpenMemHandle", &context);
    if (r)
        return r;
    struct handle h;
    memcpy(&h, handle, sizeof h);
    if (!pdptr || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (h.magic != MAGIC || h.pid <= 0 || h.fd < 0)
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    if (h.pid == getpid())
        return sg_leave(CUDA_ERROR_INVALID_CONTEXT); /* one's own memory cannot be opened */
    struct sg_alloc *a = opened(h.inode);
    if (a && a->context != context)
        return sg_leave(CUDA_ERROR_INVALID_CONTEXT); /* one context of the process at a time */
    if (a)
        a->foreign->opens++;
    else
        r = open_new(&h, context, &a);
    if (!r)
        *pdptr = a->region.va;
    return sg_leave(r);
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int flags)
{
    return open_handle(pdptr, &handle, flags);
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pdptr, CUipcMemHandle handle, unsigned int flags)
{
    return open_handle(pdptr, &handle, flags);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr dptr)
{
    struct sg_context *context;
    CUresult r = sg_enter_context("cuIpcCloseMemHandle", &context);
    if (r)
        return r;
    char text[256];
    struct sg_alloc *a = sg_alloc_at(dptr);
    if (!a || a->region.va != dptr || !a->foreign || a->foreign->kind != SG_FOREIGN_IPC)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (--a->foreign->opens)
        return sg_leave(CUDA_SUCCESS);
    if (sg_in_flight(a->region.va, a->region.bytes, ~0u, text, sizeof text)) {
        sg.devices[context->device].freed_in_flight++;
        sg_log(SG_LOG_WARN, "freed in flight: cuIpcCloseMemHandle(0x%" PRIx64 "), %" PRIu64 " bytes, %s", a->region.va,
               a->region.bytes, text);
    }
    sg_alloc_destroy(a);
    return sg_leave(CUDA_SUCCESS);
}
