/* Making arrays and mipmapped arrays, and telling of them; see array.h. */
#include "simgpu/array.h"

#include <stdlib.h>
#include <string.h>

#define ROW_ALIGN UINT64_C(64)
#define FLAGS_KNOWN                                                                                                    \
    (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST | CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_TEXTURE_GATHER |           \
     CUDA_ARRAY3D_COLOR_ATTACHMENT)
#define FLAGS_REFUSED                                                                                                  \
    (CUDA_ARRAY3D_DEPTH_TEXTURE | CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING |                                \
     CUDA_ARRAY3D_VIDEO_ENCODE_DECODE)

unsigned sg_format_bytes(CUarray_format format)
{
    switch ((int)format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8: return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF: return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT: return 4;
    default: return 0;
    }
}

/* Of compressed blocks, planes and normalized formats, which are not supported. */
static bool is_other_format(CUarray_format format)
{
    return format >= CU_AD_FORMAT_UNORM_INT_101010_2 && format <= CU_AD_FORMAT_SNORM_INT16X4;
}

static CUresult check_size(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
    bool layered = d->Flags & CUDA_ARRAY3D_LAYERED, cube = d->Flags & CUDA_ARRAY3D_CUBEMAP;
    if (!d->Width || (d->Depth && !d->Height && !layered) || (layered && !d->Depth))
        return CUDA_ERROR_INVALID_VALUE;
    if (cube && (d->Width != d->Height || (layered ? d->Depth % 6 != 0 : d->Depth != 6)))
        return CUDA_ERROR_INVALID_VALUE;
    if ((d->Flags & CUDA_ARRAY3D_TEXTURE_GATHER) && (!d->Height || (d->Depth && !layered) || cube))
        return CUDA_ERROR_INVALID_VALUE;
    bool is_3d = d->Depth && !layered && !cube;
    size_t width = is_3d ? SG_TEXTURE_3D_MOST : SG_TEXTURE_MOST,
           depth = is_3d ? SG_TEXTURE_3D_MOST : SG_TEXTURE_LAYERS_MOST;
    return d->Width > width || d->Height > width || d->Depth > depth ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult check(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
    if (is_other_format(d->Format) || d->Flags & FLAGS_REFUSED)
        return CUDA_ERROR_NOT_SUPPORTED;
    if (!sg_format_bytes(d->Format) || (d->NumChannels != 1 && d->NumChannels != 2 && d->NumChannels != 4) ||
        d->Flags & ~(unsigned)(FLAGS_KNOWN | FLAGS_REFUSED))
        return CUDA_ERROR_INVALID_VALUE;
    return check_size(d);
}

/* Where the rows and layers of so large an array go. */
static uint64_t lay_out(struct sg_array *a)
{
    a->element_bytes = sg_format_bytes(a->desc.Format) * a->desc.NumChannels;
    a->pitch = (a->desc.Width * a->element_bytes + ROW_ALIGN - 1) & ~(ROW_ALIGN - 1);
    a->slice = a->pitch * sg_array_rows(a);
    return a->slice * sg_array_layers(a);
}

static CUresult create(struct sg_context *context, const CUDA_ARRAY3D_DESCRIPTOR *desc, struct sg_array **array_out)
{
    CUresult r = check(desc);
    struct sg_array *a = r ? NULL : calloc(1, sizeof *a);
    if (!a)
        return r ? r : CUDA_ERROR_OUT_OF_MEMORY;
    a->desc = *desc;
    a->context = context;
    r = sg_alloc_create(context, lay_out(a), true, &a->alloc);
    if (r) {
        free(a);
        return r;
    }
    a->va = a->alloc->region.va;
    sg_object_add(&a->object, SG_ARRAY);
    DL_APPEND(context->arrays, a);
    *array_out = a;
    return CUDA_SUCCESS;
}

static CUresult create_array(const char *function, CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *desc)
{
    struct sg_context *context;
    CUresult r = sg_enter_context(function, &context);
    if (r)
        return r;
    struct sg_array *a;
    r = out && desc ? create(context, desc, &a) : CUDA_ERROR_INVALID_VALUE;
    if (!r)
        *out = SG_HANDLE(CUarray, a);
    return sg_leave(r);
}

CUresult cuArrayCreate_v2(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *desc)
{
    CUDA_ARRAY3D_DESCRIPTOR full = {0};
    if (desc)
        full = (CUDA_ARRAY3D_DESCRIPTOR){
            .Width = desc->Width, .Height = desc->Height, .Format = desc->Format, .NumChannels = desc->NumChannels};
    return create_array("cuArrayCreate", out, desc ? &full : NULL);
}

CUresult cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *desc)
{
    return create_array("cuArray3DCreate", out, desc);
}

struct sg_array *sg_array_find(CUarray handle)
{
    return SG_FIND(handle, SG_ARRAY);
}

/* Like cuMemFree, destruction waits for the device or not, by seed. Another thread may be faster. */
static bool settle(uint64_t id, enum sg_kind kind, int device)
{
    if (sg_call_random() & 1)
        sg_wait_device(device);
    return sg_object_find(id, kind) != NULL;
}

static void tell_in_flight(const struct sg_alloc *a, const char *what)
{
    char text[256];
    if (!sg_in_flight(a->region.va, a->region.bytes, ~0u, text, sizeof text) &&
        !(a->chunk && sg_touched_in_flight(a->region.va, a->reserved_bytes, ~0u, text, sizeof text)))
        return;
    sg.devices[a->device].freed_in_flight++;
    sg_log(SG_LOG_WARN, "freed in flight: %s of an array of %llu bytes, %s", what, (unsigned long long)a->region.bytes,
           text);
}

static void destroy(struct sg_array *a)
{
    DL_DELETE(a->context->arrays, a);
    sg_alloc_destroy(a->alloc);
    sg_object_remove(&a->object);
    free(a);
}

CUresult cuArrayDestroy(CUarray handle)
{
    struct sg_context *context;
    CUresult r = sg_enter_context("cuArrayDestroy", &context);
    if (r)
        return r;
    struct sg_array *a = sg_array_find(handle);
    if (!a)
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    if (a->mipmap) /* goes with the whole */
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (!settle(a->object.id, SG_ARRAY, a->context->device))
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    tell_in_flight(a->alloc, "cuArrayDestroy");
    destroy(a);
    return sg_leave(CUDA_SUCCESS);
}

static CUresult enter_array(const char *function, CUarray handle, const void *out, struct sg_array **array_out)
{
    struct sg_context *context;
    CUresult r = sg_enter_context(function, &context);
    if (r)
        return r;
    *array_out = sg_array_find(handle);
    return !*array_out ? sg_leave(CUDA_ERROR_INVALID_HANDLE) : out ? CUDA_SUCCESS : sg_leave(CUDA_ERROR_INVALID_VALUE);
}

CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *desc, CUarray handle)
{
    struct sg_array *a;
    CUresult r = enter_array("cuArrayGetDescriptor", handle, desc, &a);
    if (r)
        return r;
    *desc = (CUDA_ARRAY_DESCRIPTOR){a->desc.Width, a->desc.Height, a->desc.Format, a->desc.NumChannels};
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *desc, CUarray handle)
{
    struct sg_array *a;
    CUresult r = enter_array("cuArray3DGetDescriptor", handle, desc, &a);
    if (r)
        return r;
    *desc = a->desc;
    return sg_leave(CUDA_SUCCESS);
}

/* There are no sparse arrays here, none whose memory comes later, and none of several planes. */
static CUresult of_none(const char *function, CUarray handle, const void *out)
{
    struct sg_array *a;
    CUresult r = enter_array(function, handle, out, &a);
    return r ? r : sg_leave(CUDA_ERROR_INVALID_VALUE);
}

CUresult cuArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *properties, CUarray array)
{
    return of_none("cuArrayGetSparseProperties", array, properties);
}

CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *requirements, CUarray array, CUdevice device)
{
    (void)device;
    return of_none("cuArrayGetMemoryRequirements", array, requirements);
}

CUresult cuArrayGetPlane(CUarray *plane, CUarray array, unsigned int index)
{
    (void)index;
    return of_none("cuArrayGetPlane", array, plane);
}

/* ---- mipmaps ---- */

static size_t halved(size_t size, unsigned level)
{
    return size >> level ? size >> level : size != 0;
}

static CUresult make_levels(struct sg_mipmap *m)
{
    bool keeps_depth = m->desc.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
    uint64_t bytes = 0;
    for (unsigned l = 0; l < m->levels; l++) {
        struct sg_array *a = m->level[l] = calloc(1, sizeof *a);
        if (!a)
            return CUDA_ERROR_OUT_OF_MEMORY;
        a->desc = m->desc;
        a->context = m->context;
        a->mipmap = m;
        a->desc.Width = halved(m->desc.Width, l);
        a->desc.Height = halved(m->desc.Height, l);
        a->desc.Depth = keeps_depth ? m->desc.Depth : halved(m->desc.Depth, l);
        a->va = bytes;
        bytes += (lay_out(a) + SG_SMALL_SLOT_BYTES - 1) & ~(SG_SMALL_SLOT_BYTES - 1);
    }
    CUresult r = sg_alloc_create(m->context, bytes, true, &m->alloc);
    for (unsigned l = 0; l < m->levels && !r; l++) {
        m->level[l]->va += m->alloc->region.va;
        m->level[l]->alloc = m->alloc;
        sg_object_add(&m->level[l]->object, SG_ARRAY);
    }
    return r;
}

static void free_mipmap(struct sg_mipmap *m)
{
    for (unsigned l = 0; l < m->levels; l++) {
        if (m->level[l] && m->level[l]->object.id)
            sg_object_remove(&m->level[l]->object);
        free(m->level[l]);
    }
    if (m->alloc)
        sg_alloc_destroy(m->alloc);
    free(m);
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *desc, unsigned int levels)
{
    struct sg_context *context;
    CUresult r = sg_enter_context("cuMipmappedArrayCreate", &context);
    if (r)
        return r;
    r = out && desc && levels ? check(desc) : CUDA_ERROR_INVALID_VALUE;
    struct sg_mipmap *m = r ? NULL : calloc(1, sizeof *m);
    if (!m)
        return sg_leave(r ? r : CUDA_ERROR_OUT_OF_MEMORY);
    size_t largest = desc->Width > desc->Height ? desc->Width : desc->Height;
    if (desc->Depth > largest && !(desc->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)))
        largest = desc->Depth;
    unsigned most = 64 - (unsigned)__builtin_clzll(largest); /* more are clamped, as documented */
    most = most < SG_MOST_LEVELS ? most : SG_MOST_LEVELS;
    m->context = context;
    m->desc = *desc;
    m->levels = levels < most ? levels : most;
    r = make_levels(m);
    if (r) {
        free_mipmap(m);
        return sg_leave(r);
    }
    sg_object_add(&m->object, SG_MIPMAP);
    DL_APPEND(context->mipmaps, m);
    *out = SG_HANDLE(CUmipmappedArray, m);
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuMipmappedArrayGetLevel(CUarray *out, CUmipmappedArray handle, unsigned int level)
{
    struct sg_context *context;
    CUresult r = sg_enter_context("cuMipmappedArrayGetLevel", &context);
    if (r)
        return r;
    struct sg_mipmap *m = SG_FIND(handle, SG_MIPMAP);
    if (!m)
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    if (!out || level >= m->levels)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *out = SG_HANDLE(CUarray, m->level[level]);
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray handle)
{
    struct sg_context *context;
    CUresult r = sg_enter_context("cuMipmappedArrayDestroy", &context);
    if (r)
        return r;
    struct sg_mipmap *m = SG_FIND(handle, SG_MIPMAP);
    if (!m || !settle(m->object.id, SG_MIPMAP, m->context->device))
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    tell_in_flight(m->alloc, "cuMipmappedArrayDestroy");
    DL_DELETE(m->context->mipmaps, m);
    sg_object_remove(&m->object);
    free_mipmap(m);
    return sg_leave(CUDA_SUCCESS);
}

static CUresult of_no_mipmap(const char *function, CUmipmappedArray handle)
{
    struct sg_context *context;
    CUresult r = sg_enter_context(function, &context);
    if (r)
        return r;
    return sg_leave(SG_FIND(handle, SG_MIPMAP) ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE);
}

CUresult cuMipmappedArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *properties, CUmipmappedArray mipmap)
{
    (void)properties;
    return of_no_mipmap("cuMipmappedArrayGetSparseProperties", mipmap);
}

CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *requirements, CUmipmappedArray mipmap,
                                               CUdevice device)
{
    (void)requirements, (void)device;
    return of_no_mipmap("cuMipmappedArrayGetMemoryRequirements", mipmap);
}

void sg_arrays_finish(struct sg_context *context)
{
    struct sg_array *a, *next;
    DL_FOREACH_SAFE(context->arrays, a, next)
    destroy(a);
    struct sg_mipmap *m, *after;
    DL_FOREACH_SAFE(context->mipmaps, m, after)
    {
        DL_DELETE(context->mipmaps, m);
        sg_object_remove(&m->object);
        free_mipmap(m);
    }
}
