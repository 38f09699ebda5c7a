/*
 * Texture and surface objects. A handle is a place in a table that only grows; kernels look there without a lock. What a handle
 * meant stays in the table when it is destroyed, marked as gone, since a kernel may be looking at it.
 */
#include "simgpu/array.h"

#include <stdlib.h>
#include <string.h>

#define ROOM (1u << 20)
#define TAG UINT64_C(0x7e8000000000000) /* handles look like nothing else */

struct entry {
    struct ptx_texture texture;
    _Atomic(bool) live;
    bool has_desc;
    CUDA_RESOURCE_DESC resource;
    CUDA_TEXTURE_DESC desc;
};
static _Atomic(struct entry *) *table;
static _Atomic(uint32_t) used;

static struct entry *entry_of(uint64_t handle)
{
    uint64_t i = handle - TAG;
    struct entry *e = i < atomic_load_explicit(&used, memory_order_acquire)
                          ? atomic_load_explicit(&table[i], memory_order_acquire)
                          : NULL;
    return e && atomic_load_explicit(&e->live, memory_order_acquire) ? e : NULL;
}

const struct ptx_texture *sg_texture_of(uint64_t handle)
{
    const struct entry *e = entry_of(handle);
    return e ? &e->texture : NULL;
}

uint64_t sg_texture_publish(const struct ptx_texture *texture)
{
    uint32_t i = atomic_load(&used);
    struct entry *e = i < ROOM ? calloc(1, sizeof *e) : NULL;
    if (!table)
        table = calloc(ROOM, sizeof *table);
    if (!e || !table) {
        free(e);
        return 0;
    }
    e->texture = *texture;
    atomic_store(&e->live, true);
    atomic_store_explicit(&table[i], e, memory_order_release);
    atomic_store_explicit(&used, i + 1, memory_order_release);
    return TAG + i;
}

void sg_texture_retract(uint64_t handle)
{
    struct entry *e = entry_of(handle);
    if (e)
        atomic_store(&e->live, false);
}

/* ---- what kernels see of a resource ---- */

static CUresult fill_format(CUarray_format format, unsigned channels, struct ptx_texture *t)
{
    static const struct {
        int format;
        enum ptx_texel texel;
    } texels[] = {{CU_AD_FORMAT_UNSIGNED_INT8, PTX_TEXEL_U8},   {CU_AD_FORMAT_UNSIGNED_INT16, PTX_TEXEL_U16},
                  {CU_AD_FORMAT_UNSIGNED_INT32, PTX_TEXEL_U32}, {CU_AD_FORMAT_SIGNED_INT8, PTX_TEXEL_S8},
                  {CU_AD_FORMAT_SIGNED_INT16, PTX_TEXEL_S16},   {CU_AD_FORMAT_SIGNED_INT32, PTX_TEXEL_S32},
                  {CU_AD_FORMAT_HALF, PTX_TEXEL_F16},           {CU_AD_FORMAT_FLOAT, PTX_TEXEL_F32}};
    if (channels != 1 && channels != 2 && channels != 4)
        return CUDA_ERROR_INVALID_VALUE;
    t->channels = (uint8_t)channels;
    for (size_t i = 0; i < sizeof texels / sizeof texels[0]; i++) {
        if (texels[i].format == (int)format) {
            t->texel = texels[i].texel;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_VALUE;
}

static struct ptx_texture_level level_of(const struct sg_array *a)
{
    return (struct ptx_texture_level){a->va,   (uint32_t)a->desc.Width, sg_array_rows(a), sg_array_layers(a), a->pitch,
                                      a->slice};
}

static CUresult fill_array(const struct sg_array *a, struct ptx_texture *t)
{
    if (a->desc.Flags & CUDA_ARRAY3D_CUBEMAP)
        return CUDA_ERROR_NOT_SUPPORTED;
    t->layered = a->desc.Flags & CUDA_ARRAY3D_LAYERED;
    t->dimensions = a->desc.Depth && !t->layered ? 3 : a->desc.Height ? 2 : 1;
    t->level[t->levels++] = level_of(a);
    return fill_format(a->desc.Format, a->desc.NumChannels, t);
}

static CUresult fill_linear(const CUDA_RESOURCE_DESC *r, struct ptx_texture *t)
{
    CUresult result = fill_format(r->res.linear.format, r->res.linear.numChannels, t);
    uint64_t element = (uint64_t)sg_format_bytes(r->res.linear.format) * r->res.linear.numChannels;
    if (result)
        return result;
    uint64_t count = r->res.linear.sizeInBytes / element;
    if (r->res.linear.devPtr % 512 || !count || count > SG_TEXTURE_LINEAR_MOST ||
        !sg_range_is_memory(r->res.linear.devPtr, r->res.linear.sizeInBytes))
        return CUDA_ERROR_INVALID_VALUE;
    t->is_buffer = true;
    t->dimensions = 1;
    t->levels = 1;
    t->level[0] = (struct ptx_texture_level){r->res.linear.devPtr, (uint32_t)count, 1, 1, 0, 0};
    return CUDA_SUCCESS;
}

static CUresult fill_pitched(const CUDA_RESOURCE_DESC *r, struct ptx_texture *t)
{
    size_t width = r->res.pitch2D.width, height = r->res.pitch2D.height, pitch = r->res.pitch2D.pitchInBytes;
    CUresult result = fill_format(r->res.pitch2D.format, r->res.pitch2D.numChannels, t);
    uint64_t element = (uint64_t)sg_format_bytes(r->res.pitch2D.format) * r->res.pitch2D.numChannels;
    if (result)
        return result;
    if (r->res.pitch2D.devPtr % 512 || pitch % 32 || !width || !height || width > SG_TEXTURE_2D_MOST ||
        height > SG_TEXTURE_2D_MOST || pitch < width * element || pitch > INT32_MAX ||
        !sg_range_is_memory(r->res.pitch2D.devPtr, (height - 1) * pitch + width * element))
        return CUDA_ERROR_INVALID_VALUE;
    t->dimensions = 2;
    t->levels = 1;
    t->level[0] = (struct ptx_texture_level){r->res.pitch2D.devPtr, (uint32_t)width, (uint32_t)height, 1, pitch, 0};
    return CUDA_SUCCESS;
}

static CUresult fill_resource(const CUDA_RESOURCE_DESC *r, struct ptx_texture *t)
{
    if (r->flags)
        return CUDA_ERROR_INVALID_VALUE;
    switch (r->resType) {
    case CU_RESOURCE_TYPE_ARRAY: {
        const struct sg_array *a = sg_array_find(r->res.array.hArray);
        return a ? fill_array(a, t) : CUDA_ERROR_INVALID_HANDLE;
    }
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY: {
        const struct sg_mipmap *m = SG_FIND(r->res.mipmap.hMipmappedArray, SG_MIPMAP);
        CUresult result = m ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
        for (unsigned l = 0; m && l < m->levels && !result; l++)
            result = fill_array(m->level[l], t);
        return result;
    }
    case CU_RESOURCE_TYPE_LINEAR: return fill_linear(r, t);
    case CU_RESOURCE_TYPE_PITCH2D: return fill_pitched(r, t);
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult sg_texture_fill(const CUDA_RESOURCE_DESC *resource, const CUDA_TEXTURE_DESC *d, struct ptx_texture *t)
{
    unsigned known = CU_TRSF_READ_AS_INTEGER | CU_TRSF_NORMALIZED_COORDINATES | CU_TRSF_SRGB |
                     CU_TRSF_DISABLE_TRILINEAR_OPTIMIZATION | CU_TRSF_SEAMLESS_CUBEMAP;
    *t = (struct ptx_texture){0};
    CUresult r = fill_resource(resource, t);
    if (r)
        return r;
    for (unsigned i = 0; i < 3; i++)
        if ((unsigned)d->addressMode[i] > CU_TR_ADDRESS_MODE_BORDER)
            return CUDA_ERROR_INVALID_VALUE;
    if ((unsigned)d->filterMode > CU_TR_FILTER_MODE_LINEAR ||
        (unsigned)d->mipmapFilterMode > CU_TR_FILTER_MODE_LINEAR || d->flags & ~known || d->maxAnisotropy > 16)
        return CUDA_ERROR_INVALID_VALUE;
    if (d->flags & (CU_TRSF_SRGB | CU_TRSF_SEAMLESS_CUBEMAP) || d->maxAnisotropy > 1)
        return CUDA_ERROR_NOT_SUPPORTED;
    bool is_float = t->texel >= PTX_TEXEL_F16, is_wide = t->texel == PTX_TEXEL_U32 || t->texel == PTX_TEXEL_S32;
    t->as_integer = !is_float && (is_wide || d->flags & CU_TRSF_READ_AS_INTEGER);
    t->linear = d->filterMode == CU_TR_FILTER_MODE_LINEAR && !t->is_buffer;
    t->mip_linear = d->mipmapFilterMode == CU_TR_FILTER_MODE_LINEAR && t->levels > 1;
    if ((t->linear || t->mip_linear) && t->as_integer)
        return CUDA_ERROR_INVALID_VALUE; /* only what is returned as floating point can be interpolated */
    t->normalized = d->flags & CU_TRSF_NORMALIZED_COORDINATES;
    if ((t->levels > 1 && !t->normalized) || (t->is_buffer && t->normalized))
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < 3; i++)
        t->address[i] = (enum ptx_address_mode)d->addressMode[i];
    memcpy(t->border, d->borderColor, sizeof t->border);
    t->level_bias = d->mipmapLevelBias;
    t->level_min = d->minMipmapLevelClamp;
    t->level_max = d->maxMipmapLevelClamp;
    return CUDA_SUCCESS;
}

CUresult sg_surface_fill(const CUDA_RESOURCE_DESC *resource, struct ptx_texture *t)
{
    *t = (struct ptx_texture){.is_surface = true};
    if (resource->resType != CU_RESOURCE_TYPE_ARRAY)
        return CUDA_ERROR_INVALID_VALUE;
    const struct sg_array *a = sg_array_find(resource->res.array.hArray);
    if (a && !(a->desc.Flags & CUDA_ARRAY3D_SURFACE_LDST))
        return CUDA_ERROR_INVALID_VALUE;
    return fill_resource(resource, t);
}

/* ---- objects ---- */

static CUresult publish(const struct ptx_texture *t, const CUDA_RESOURCE_DESC *resource, const CUDA_TEXTURE_DESC *desc,
                        uint64_t *out)
{
    uint64_t handle = sg_texture_publish(t);
    struct entry *e = handle ? entry_of(handle) : NULL;
    if (!e)
        return CUDA_ERROR_OUT_OF_MEMORY;
    e->resource = *resource;
    e->has_desc = true;
    if (desc)
        e->desc = *desc;
    *out = handle;
    return CUDA_SUCCESS;
}

CUresult cuTexObjectCreate(CUtexObject *out, const CUDA_RESOURCE_DESC *resource, const CUDA_TEXTURE_DESC *desc,
                           const CUDA_RESOURCE_VIEW_DESC *view)
{
    struct sg_context *context;
    struct ptx_texture t;
    CUresult r = sg_enter_context("cuTexObjectCreate", &context);
    if (r)
        return r;
    if (!out || !resource || !desc)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    r = sg_texture_fill(resource, desc, &t);
    if (!r && view)
        r = t.is_buffer || resource->resType == CU_RESOURCE_TYPE_PITCH2D ? CUDA_ERROR_INVALID_VALUE
                                                                         : CUDA_ERROR_NOT_SUPPORTED;
    uint64_t handle;
    if (!r)
        r = publish(&t, resource, desc, &handle);
    if (!r)
        *out = handle;
    return sg_leave(r);
}

CUresult cuSurfObjectCreate(CUsurfObject *out, const CUDA_RESOURCE_DESC *resource)
{
    struct sg_context *context;
    struct ptx_texture t;
    uint64_t handle;
    CUresult r = sg_enter_context("cuSurfObjectCreate", &context);
    if (r)
        return r;
    r = out && resource ? sg_surface_fill(resource, &t) : CUDA_ERROR_INVALID_VALUE;
    if (!r)
        r = publish(&t, resource, NULL, &handle);
    if (!r)
        *out = handle;
    return sg_leave(r);
}

static CUresult enter_object(const char *function, uint64_t handle, bool surface, const void *out,
                             struct entry **entry_out)
{
    CUresult r = sg_enter(function);
    if (r)
        return r;
    struct entry *e = entry_of(handle);
    if (!e || !e->has_desc || e->texture.is_surface != surface || !out)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *entry_out = e;
    return CUDA_SUCCESS;
}

CUresult cuTexObjectDestroy(CUtexObject object)
{
    struct entry *e;
    CUresult r = enter_object("cuTexObjectDestroy", object, false, &e, &e);
    if (r)
        return r;
    sg_texture_retract(object);
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuSurfObjectDestroy(CUsurfObject object)
{
    struct entry *e;
    CUresult r = enter_object("cuSurfObjectDestroy", object, true, &e, &e);
    if (r)
        return r;
    sg_texture_retract(object);
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC *resource, CUtexObject object)
{
    struct entry *e;
    CUresult r = enter_object("cuTexObjectGetResourceDesc", object, false, resource, &e);
    if (r)
        return r;
    *resource = e->resource;
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC *desc, CUtexObject object)
{
    struct entry *e;
    CUresult r = enter_object("cuTexObjectGetTextureDesc", object, false, desc, &e);
    if (r)
        return r;
    *desc = e->desc;
    return sg_leave(CUDA_SUCCESS);
}

/* No object has a view of its own here. */
CUresult cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC *view, CUtexObject object)
{
    struct entry *e;
    CUresult r = enter_object("cuTexObjectGetResourceViewDesc", object, false, view, &e);
    return r ? r : sg_leave(CUDA_ERROR_INVALID_VALUE);
}

CUresult cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC *resource, CUsurfObject object)
{
    struct entry *e;
    CUresult r = enter_object("cuSurfObjectGetResourceDesc", object, true, resource, &e);
    if (r)
        return r;
    *resource = e->resource;
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuDeviceGetTexture1DLinearMaxWidth(size_t *width, CUarray_format format, unsigned channels, CUdevice device)
{
    CUresult r = sg_enter_unlocked("cuDeviceGetTexture1DLinearMaxWidth");
    if (r)
        return r;
    if (!width || !sg_format_bytes(format) || (channels != 1 && channels != 2 && channels != 4))
        return CUDA_ERROR_INVALID_VALUE;
    if (device < 0 || device >= sg.device_count)
        return CUDA_ERROR_INVALID_DEVICE;
    *width = SG_TEXTURE_LINEAR_MOST;
    return CUDA_SUCCESS;
}
