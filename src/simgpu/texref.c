/*
 * Texture and surface references: the older way, by variables of a module (.texref, .surfref) that hold a handle here. What is
 * bound is written into the variable in the order of a stream, before the next kernel of the module that is launched there.
 */
#include "simgpu/array.h"

#include <stdlib.h>
#include <string.h>

struct sg_texref {
    struct sg_object object;
    struct sg_module *module; /* NULL: made by cuTexRefCreate */
    size_t global;
    bool is_surface, bound, changed;
    CUDA_RESOURCE_DESC resource;
    CUDA_TEXTURE_DESC desc;
    CUarray_format format;
    unsigned channels;
    uint64_t handle; /* the latest; 0: none yet */
    struct sg_texref *next;
};

static struct sg_texref *texref_new(bool surface)
{
    struct sg_texref *ref = calloc(1, sizeof *ref);
    if (!ref)
        return NULL;
    ref->is_surface = surface;
    ref->format = CU_AD_FORMAT_FLOAT;
    ref->channels = 1;
    for (int i = 0; i < 3; i++)
        ref->desc.addressMode[i] = CU_TR_ADDRESS_MODE_CLAMP;
    sg_object_add(&ref->object, SG_TEXREF);
    return ref;
}

static void texref_free(struct sg_texref *ref)
{
    if (ref->handle)
        sg_texture_retract(ref->handle);
    sg_object_remove(&ref->object);
    free(ref);
}

void sg_texrefs_finish(struct sg_module *m)
{
    while (m->texrefs) {
        struct sg_texref *ref = m->texrefs;
        m->texrefs = ref->next;
        texref_free(ref);
    }
}

static CUresult publish(struct sg_texref *ref)
{
    struct ptx_texture t;
    CUresult r =
        ref->is_surface ? sg_surface_fill(&ref->resource, &t) : sg_texture_fill(&ref->resource, &ref->desc, &t);
    uint64_t handle = r ? 0 : sg_texture_publish(&t);
    if (!handle)
        return r ? r : CUDA_ERROR_OUT_OF_MEMORY;
    ref->handle = handle; /* the one before stays: kernels that were launched with it may still run */
    return CUDA_SUCCESS;
}

CUresult sg_texrefs_prepare(struct sg_module *m, struct sg_stream *s)
{
    for (struct sg_texref *ref = m->texrefs; ref; ref = ref->next) {
        if (!ref->bound || !ref->changed)
            continue;
        CUresult r = publish(ref);
        struct sg_op *op = r ? NULL : sg_op_new(SG_OP_VALUE_WRITE);
        if (!op)
            return r ? r : CUDA_ERROR_OUT_OF_MEMORY;
        op->value = (struct sg_value){m->globals[ref->global]->region.va, ref->handle, 8, 0, s->context->device};
        ref->changed = false;
        sg_submit(s, op);
    }
    return CUDA_SUCCESS;
}

/* ---- finding them ---- */

static CUresult get_of_module(const char *function, void **out, CUmodule handle, const char *name, bool surface)
{
    struct sg_context *context;
    CUresult r = sg_enter_context(function, &context);
    if (r)
        return r;
    struct sg_module *m = SG_FIND(handle, SG_MODULE);
    if (!m)
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    if (!out || !name)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    size_t i = 0, count = ptx_module_global_count(m->ptx);
    enum ptx_reference kind = surface ? PTX_REFERENCE_SURFACE : PTX_REFERENCE_TEXTURE;
    while (i < count && (ptx_module_global_at(m->ptx, i)->reference != kind ||
                         strcmp(ptx_module_global_at(m->ptx, i)->name, name) != 0))
        i++;
    if (i == count)
        return sg_leave(CUDA_ERROR_NOT_FOUND);
    struct sg_texref *ref = m->texrefs;
    while (ref && ref->global != i)
        ref = ref->next;
    if (!ref) {
        ref = texref_new(surface);
        if (!ref)
            return sg_leave(CUDA_ERROR_OUT_OF_MEMORY);
        ref->module = m;
        ref->global = i;
        ref->next = m->texrefs;
        m->texrefs = ref;
    }
    *out = SG_HANDLE(void *, ref);
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuModuleGetTexRef(CUtexref *out, CUmodule module, const char *name)
{
    return get_of_module("cuModuleGetTexRef", (void **)out, module, name, false);
}

CUresult cuModuleGetSurfRef(CUsurfref *out, CUmodule module, const char *name)
{
    return get_of_module("cuModuleGetSurfRef", (void **)out, module, name, true);
}

CUresult cuTexRefCreate(CUtexref *out)
{
    struct sg_context *context;
    CUresult r = sg_enter_context("cuTexRefCreate", &context);
    if (r)
        return r;
    struct sg_texref *ref = out ? texref_new(false) : NULL;
    if (!ref)
        return sg_leave(out ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE);
    *out = SG_HANDLE(CUtexref, ref);
    return sg_leave(CUDA_SUCCESS);
}

/* INVALID_HANDLE: no such reference; INVALID_VALUE: `ok` does not hold. */
static CUresult enter(const char *function, const void *handle, bool surface, bool ok, struct sg_texref **ref_out)
{
    CUresult r = sg_enter(function);
    if (r)
        return r;
    *ref_out = SG_FIND(handle, SG_TEXREF);
    if (!*ref_out || (*ref_out)->is_surface != surface)
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    return ok ? CUDA_SUCCESS : sg_leave(CUDA_ERROR_INVALID_VALUE);
}

CUresult cuTexRefDestroy(CUtexref handle)
{
    struct sg_texref *ref;
    CUresult r = enter("cuTexRefDestroy", handle, false, true, &ref);
    if (r)
        return r;
    if (ref->module) /* the module's own */
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    texref_free(ref);
    return sg_leave(CUDA_SUCCESS);
}

/* ---- binding ---- */

/* Binds if what is described can be read so; leaves. */
static CUresult bind(struct sg_texref *ref, const CUDA_RESOURCE_DESC *resource)
{
    struct ptx_texture t;
    CUresult r = ref->is_surface ? sg_surface_fill(resource, &t) : sg_texture_fill(resource, &ref->desc, &t);
    if (r)
        return sg_leave(r);
    ref->resource = *resource;
    ref->bound = ref->changed = true;
    return sg_leave(CUDA_SUCCESS);
}

static CUresult bind_array(const char *function, void *handle, bool surface, CUarray array, unsigned flags)
{
    struct sg_texref *ref;
    CUresult r = enter(function, handle, surface, surface ? !flags : flags == CU_TRSA_OVERRIDE_FORMAT, &ref);
    if (r)
        return r;
    const struct sg_array *a = sg_array_find(array);
    if (a) {
        ref->format = a->desc.Format;
        ref->channels = a->desc.NumChannels;
    }
    return bind(ref, &(CUDA_RESOURCE_DESC){.resType = CU_RESOURCE_TYPE_ARRAY, .res.array.hArray = array});
}

CUresult cuTexRefSetArray(CUtexref ref, CUarray array, unsigned int flags)
{
    return bind_array("cuTexRefSetArray", ref, false, array, flags);
}

CUresult cuSurfRefSetArray(CUsurfref ref, CUarray array, unsigned int flags)
{
    return bind_array("cuSurfRefSetArray", ref, true, array, flags);
}

CUresult cuTexRefSetMipmappedArray(CUtexref handle, CUmipmappedArray array, unsigned int flags)
{
    struct sg_texref *ref;
    CUresult r = enter("cuTexRefSetMipmappedArray", handle, false, flags == CU_TRSA_OVERRIDE_FORMAT, &ref);
    if (r)
        return r;
    return bind(
        ref, &(CUDA_RESOURCE_DESC){.resType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY, .res.mipmap.hMipmappedArray = array});
}

CUresult cuTexRefSetAddress_v2(size_t *offset, CUtexref handle, CUdeviceptr dptr, size_t bytes)
{
    struct sg_texref *ref;
    CUresult r = enter("cuTexRefSetAddress", handle, false, offset || dptr % 512 == 0, &ref);
    if (r)
        return r;
    size_t beside = dptr % 512;
    CUDA_RESOURCE_DESC d = {.resType = CU_RESOURCE_TYPE_LINEAR,
                            .res.linear = {dptr - beside, ref->format, ref->channels, bytes + beside}};
    r = bind(ref, &d);
    if (!r && offset)
        *offset = beside;
    return r;
}

static CUresult set_address_2d(CUtexref handle, const CUDA_ARRAY_DESCRIPTOR *desc, CUdeviceptr dptr, size_t pitch)
{
    struct sg_texref *ref;
    CUresult r = enter("cuTexRefSetAddress2D", handle, false, desc != NULL, &ref);
    if (r)
        return r;
    CUDA_RESOURCE_DESC d = {.resType = CU_RESOURCE_TYPE_PITCH2D,
                            .res.pitch2D = {dptr, desc->Format, desc->NumChannels, desc->Width, desc->Height, pitch}};
    ref->format = desc->Format;
    ref->channels = desc->NumChannels;
    return bind(ref, &d);
}

CUresult cuTexRefSetAddress2D_v3(CUtexref ref, const CUDA_ARRAY_DESCRIPTOR *desc, CUdeviceptr dptr, size_t pitch)
{
    return set_address_2d(ref, desc, dptr, pitch);
}

CUresult cuTexRefSetAddress2D_v2(CUtexref ref, const CUDA_ARRAY_DESCRIPTOR *desc, CUdeviceptr dptr, size_t pitch)
{
    return set_address_2d(ref, desc, dptr, pitch);
}

static CUresult get_array(const char *function, CUarray *out, void *handle, bool surface)
{
    struct sg_texref *ref;
    CUresult r = enter(function, handle, surface, out != NULL, &ref);
    if (r)
        return r;
    if (!ref->bound || ref->resource.resType != CU_RESOURCE_TYPE_ARRAY)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *out = ref->resource.res.array.hArray;
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuTexRefGetArray(CUarray *out, CUtexref ref)
{
    return get_array("cuTexRefGetArray", out, ref, false);
}

CUresult cuSurfRefGetArray(CUarray *out, CUsurfref ref)
{
    return get_array("cuSurfRefGetArray", out, ref, true);
}

CUresult cuTexRefGetMipmappedArray(CUmipmappedArray *out, CUtexref handle)
{
    struct sg_texref *ref;
    CUresult r = enter("cuTexRefGetMipmappedArray", handle, false, out != NULL, &ref);
    if (r)
        return r;
    if (!ref->bound || ref->resource.resType != CU_RESOURCE_TYPE_MIPMAPPED_ARRAY)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *out = ref->resource.res.mipmap.hMipmappedArray;
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuTexRefGetAddress_v2(CUdeviceptr *out, CUtexref handle)
{
    struct sg_texref *ref;
    CUresult r = enter("cuTexRefGetAddress", handle, false, out != NULL, &ref);
    if (r)
        return r;
    bool linear = ref->resource.resType == CU_RESOURCE_TYPE_LINEAR;
    if (!ref->bound || (!linear && ref->resource.resType != CU_RESOURCE_TYPE_PITCH2D))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *out = linear ? ref->resource.res.linear.devPtr : ref->resource.res.pitch2D.devPtr;
    return sg_leave(CUDA_SUCCESS);
}

/* ---- how it is read ---- */

/* Changes the description by one field, and leaves. */
#define SET(function, ok, change)                                                                                      \
    do {                                                                                                               \
        struct sg_texref *ref;                                                                                         \
        CUresult r = enter(function, handle, false, ok, &ref);                                                         \
        if (r)                                                                                                         \
            return r;                                                                                                  \
        change;                                                                                                        \
        ref->changed = true;                                                                                           \
        return sg_leave(CUDA_SUCCESS);                                                                                 \
    } while (0)
#define GET(function, ok, change)                                                                                      \
    do {                                                                                                               \
        struct sg_texref *ref;                                                                                         \
        CUresult r = enter(function, handle, false, ok, &ref);                                                         \
        if (r)                                                                                                         \
            return r;                                                                                                  \
        change;                                                                                                        \
        return sg_leave(CUDA_SUCCESS);                                                                                 \
    } while (0)

CUresult cuTexRefSetFormat(CUtexref handle, CUarray_format format, int channels)
{
    SET("cuTexRefSetFormat", sg_format_bytes(format) && (channels == 1 || channels == 2 || channels == 4),
        (ref->format = format, ref->channels = (unsigned)channels));
}

CUresult cuTexRefSetAddressMode(CUtexref handle, int dim, CUaddress_mode mode)
{
    SET("cuTexRefSetAddressMode", dim >= 0 && dim < 3 && (unsigned)mode <= CU_TR_ADDRESS_MODE_BORDER,
        ref->desc.addressMode[dim] = mode);
}

CUresult cuTexRefSetFilterMode(CUtexref handle, CUfilter_mode mode)
{
    SET("cuTexRefSetFilterMode", (unsigned)mode <= CU_TR_FILTER_MODE_LINEAR, ref->desc.filterMode = mode);
}

CUresult cuTexRefSetMipmapFilterMode(CUtexref handle, CUfilter_mode mode)
{
    SET("cuTexRefSetMipmapFilterMode", (unsigned)mode <= CU_TR_FILTER_MODE_LINEAR, ref->desc.mipmapFilterMode = mode);
}

CUresult cuTexRefSetMipmapLevelBias(CUtexref handle, float bias)
{
    SET("cuTexRefSetMipmapLevelBias", true, ref->desc.mipmapLevelBias = bias);
}

CUresult cuTexRefSetMipmapLevelClamp(CUtexref handle, float least, float most)
{
    SET("cuTexRefSetMipmapLevelClamp", true,
        (ref->desc.minMipmapLevelClamp = least, ref->desc.maxMipmapLevelClamp = most));
}

CUresult cuTexRefSetMaxAnisotropy(CUtexref handle, unsigned int most)
{
    SET("cuTexRefSetMaxAnisotropy", most <= 16, ref->desc.maxAnisotropy = most);
}

CUresult cuTexRefSetBorderColor(CUtexref handle, float *color)
{
    SET("cuTexRefSetBorderColor", color != NULL, memcpy(ref->desc.borderColor, color, sizeof ref->desc.borderColor));
}

CUresult cuTexRefSetFlags(CUtexref handle, unsigned int flags)
{
    SET("cuTexRefSetFlags", !(flags & ~0x73u), ref->desc.flags = flags);
}

CUresult cuTexRefGetAddressMode(CUaddress_mode *out, CUtexref handle, int dim)
{
    GET("cuTexRefGetAddressMode", out && dim >= 0 && dim < 3, *out = ref->desc.addressMode[dim]);
}

CUresult cuTexRefGetFilterMode(CUfilter_mode *out, CUtexref handle)
{
    GET("cuTexRefGetFilterMode", out != NULL, *out = ref->desc.filterMode);
}

CUresult cuTexRefGetFormat(CUarray_format *format, int *channels, CUtexref handle)
{
    GET("cuTexRefGetFormat", format || channels, {
        if (format)
            *format = ref->format;
        if (channels)
            *channels = (int)ref->channels;
    });
}

CUresult cuTexRefGetMipmapFilterMode(CUfilter_mode *out, CUtexref handle)
{
    GET("cuTexRefGetMipmapFilterMode", out != NULL, *out = ref->desc.mipmapFilterMode);
}

CUresult cuTexRefGetMipmapLevelBias(float *out, CUtexref handle)
{
    GET("cuTexRefGetMipmapLevelBias", out != NULL, *out = ref->desc.mipmapLevelBias);
}

CUresult cuTexRefGetMipmapLevelClamp(float *least, float *most, CUtexref handle)
{
    GET("cuTexRefGetMipmapLevelClamp", least && most,
        (*least = ref->desc.minMipmapLevelClamp, *most = ref->desc.maxMipmapLevelClamp));
}

CUresult cuTexRefGetMaxAnisotropy(int *out, CUtexref handle)
{
    GET("cuTexRefGetMaxAnisotropy", out != NULL, *out = (int)ref->desc.maxAnisotropy);
}

CUresult cuTexRefGetBorderColor(float *out, CUtexref handle)
{
    GET("cuTexRefGetBorderColor", out != NULL, memcpy(out, ref->desc.borderColor, sizeof ref->desc.borderColor));
}

CUresult cuTexRefGetFlags(unsigned int *out, CUtexref handle)
{
    GET("cuTexRefGetFlags", out != NULL, *out = ref->desc.flags);
}

CUresult cuParamSetTexRef(CUfunction function, int unit, CUtexref handle)
{
    struct sg_texref *ref;
    CUresult r = enter("cuParamSetTexRef", handle, false, unit == CU_PARAM_TR_DEFAULT, &ref);
    if (r)
        return r;
    const struct sg_function *f = SG_FIND(function, SG_FUNCTION);
    /* References of the module are the function's in any case; others cannot be. */
    return sg_leave(!f                         ? CUDA_ERROR_INVALID_HANDLE
                    : ref->module == f->module ? CUDA_SUCCESS
                                               : CUDA_ERROR_INVALID_VALUE);
}
