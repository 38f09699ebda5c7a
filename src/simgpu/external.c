/*
 * External memory: what was exported by this simulated driver, in this process or another, as a file descriptor. There is no
 * other API here whose memory could be imported, and no semaphores.
 */
#include "simgpu/share.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct external {
    struct sg_object object;
    int fd; /* given to us */
    int device;
    uint64_t bytes;
};

static bool is_zero(const unsigned *words, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (words[i])
            return false;
    return true;
}

static CUresult check(const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *desc, int *device_out)
{
    struct stat st;
    if (!desc || (desc->flags & ~(unsigned)CUDA_EXTERNAL_MEMORY_DEDICATED) || !desc->size ||
        !is_zero(desc->reserved, sizeof desc->reserved / sizeof desc->reserved[0]))
        return CUDA_ERROR_INVALID_VALUE;
    if (desc->type != CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD)
        return desc->type >= CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_WIN32 &&
                       desc->type <= CU_EXTERNAL_MEMORY_HANDLE_TYPE_DMABUF_FD
                   ? CUDA_ERROR_NOT_SUPPORTED
                   : CUDA_ERROR_INVALID_VALUE;
    if (fstat(desc->handle.fd, &st) || !sg_file_is_ours(desc->handle.fd, "simgpu-chunk", device_out))
        return CUDA_ERROR_INVALID_HANDLE;
    return desc->size > (uint64_t)st.st_size ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuImportExternalMemory(CUexternalMemory *out, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *desc)
{
    struct sg_context *context;
    CUresult r = sg_enter_context("cuImportExternalMemory", &context);
    if (r)
        return r;
    int device = 0;
    r = out ? check(desc, &device) : CUDA_ERROR_INVALID_VALUE;
    struct external *e = r ? NULL : calloc(1, sizeof *e);
    if (!e)
        return sg_leave(r ? r : CUDA_ERROR_OUT_OF_MEMORY);
    e->fd = desc->handle.fd;
    e->device = device;
    e->bytes = desc->size;
    sg_object_add(&e->object, SG_EXTERNAL);
    *out = SG_HANDLE(CUexternalMemory, e);
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *ptr, CUexternalMemory handle,
                                         const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *desc)
{
    struct sg_context *context;
    CUresult r = sg_enter_context("cuExternalMemoryGetMappedBuffer", &context);
    if (r)
        return r;
    struct external *e = SG_FIND(handle, SG_EXTERNAL);
    struct sg_alloc *a;
    if (!e)
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    if (!ptr || !desc || desc->flags || !desc->size || desc->offset >= e->bytes ||
        desc->size > e->bytes - desc->offset ||
        !is_zero(desc->reserved, sizeof desc->reserved / sizeof desc->reserved[0]))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    struct sg_foreign_place place = {.kind = SG_FOREIGN_EXTERNAL,
                                     .device = e->device,
                                     .fd = e->fd,
                                     .first = desc->offset >> SG_PAGE_SHIFT,
                                     .offset = desc->offset & (SG_PAGE_BYTES - 1),
                                     .bytes = desc->size};
    r = sg_foreign_create(&place, context, &a);
    if (!r)
        *ptr = a->region.va;
    return sg_leave(r);
}

CUresult cuDestroyExternalMemory(CUexternalMemory handle)
{
    CUresult r = sg_enter("cuDestroyExternalMemory");
    if (r)
        return r;
    struct external *e = SG_FIND(handle, SG_EXTERNAL);
    if (!e)
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    sg_object_remove(&e->object);
    close(e->fd);
    free(e);
    return sg_leave(CUDA_SUCCESS);
}
