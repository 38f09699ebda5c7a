/*
 * Arrays and mipmapped arrays. The memory is an allocation of the context, rows and layers one after the other; nobody is told
 * its address, but copies, page tables and all that watches accesses treat it as any other.
 *
 * All of this needs sg.lock.
 */
#ifndef SG_ARRAY_H
#define SG_ARRAY_H

#include "simgpu/copyop.h"
#include "simgpu/ptx/texture.h"

#define SG_MOST_LEVELS PTX_TEXTURE_LEVELS

struct sg_array {
    struct sg_object object;
    struct sg_context *context;
    CUDA_ARRAY3D_DESCRIPTOR desc;
    unsigned element_bytes;
    struct sg_alloc *alloc;
    uint64_t va, pitch, slice;    /* bytes from row to row, from layer to layer */
    struct sg_mipmap *mipmap;     /* a level of it; NULL: the job's own */
    struct sg_array *prev, *next; /* of the context; not levels */
};

struct sg_mipmap {
    struct sg_object object;
    struct sg_context *context;
    CUDA_ARRAY3D_DESCRIPTOR desc;
    struct sg_alloc *alloc;
    unsigned levels;
    struct sg_array *level[SG_MOST_LEVELS];
    struct sg_mipmap *prev, *next; /* of the context */
};

struct sg_array *sg_array_find(CUarray handle); /* NULL: none */
static inline unsigned sg_array_rows(const struct sg_array *a)
{
    return a->desc.Height ? (unsigned)a->desc.Height : 1;
}
static inline unsigned sg_array_layers(const struct sg_array *a)
{
    return a->desc.Depth ? (unsigned)a->desc.Depth : 1;
}
/* Bytes of one channel; 0: a format that is not supported. */
unsigned sg_format_bytes(CUarray_format format);
/* The end of a copy that begins at byte x of row y of layer z. INVALID_HANDLE, INVALID_VALUE beyond the array. */
CUresult sg_end_of_array(CUarray handle, size_t x, size_t y, size_t z, const struct sg_extent *extent,
                         struct sg_end *end_out);
void sg_arrays_finish(struct sg_context *context); /* before its memory */

/* ---- textures (texture.c) ---- */
/* Makes a handle for what kernels read through; invalidates one. The table keeps what the handle meant, since a kernel may
 * still look. 0: out of host memory. */
uint64_t sg_texture_publish(const struct ptx_texture *texture);
void sg_texture_retract(uint64_t handle);
/* What kernels read of a resource. INVALID_VALUE, INVALID_HANDLE, NOT_SUPPORTED. */
CUresult sg_texture_fill(const CUDA_RESOURCE_DESC *resource, const CUDA_TEXTURE_DESC *desc, struct ptx_texture *out);
CUresult sg_surface_fill(const CUDA_RESOURCE_DESC *resource, struct ptx_texture *out);

#endif
