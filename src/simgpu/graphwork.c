/* What nodes do: work made of parameters, and operations made of work. */
#include "simgpu/array.h"
#include "simgpu/check.h"
#include "simgpu/graph.h"
#include "simgpu/share.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct sg_work *sg_work_new(CUgraphNodeType type)
{
    struct sg_work *w = calloc(1, sizeof *w);
    if (w) {
        w->refs = 1;
        w->type = type;
    }
    return w;
}

struct sg_work *sg_work_ref(struct sg_work *w)
{
    w->refs++;
    return w;
}

bool sg_work_is_memory(const struct sg_work *w)
{
    return w->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || w->type == CU_GRAPH_NODE_TYPE_MEM_FREE;
}

void sg_work_unref(struct sg_work *w)
{
    if (!w || --w->refs)
        return;
    switch ((int)w->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        free(w->kernel.packed);
        free(w->kernel.pointers);
        free(w->kernel.attributes);
        break;
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: free(w->batch.parts); break;
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
    case CU_GRAPH_NODE_TYPE_MEM_FREE: sg_graph_memory_unref(w->memory); break;
    case CU_GRAPH_NODE_TYPE_CONDITIONAL: sg_condition_unref(w->conditional.condition); break;
    default: break;
    }
    free(w);
}

CUresult sg_context_named(CUcontext handle, struct sg_context **context_out)
{
    bool dead;
    struct sg_context *c = handle ? SG_FIND(handle, SG_CONTEXT) : sg_current(&dead);
    if (!handle && dead)
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (!c || !c->active)
        return CUDA_ERROR_INVALID_CONTEXT;
    *context_out = c;
    return c->sticky;
}

/* ---- kernels ---- */

static void *extra_list[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, NULL, CU_LAUNCH_PARAM_BUFFER_SIZE, NULL,
                             CU_LAUNCH_PARAM_END};

/* Where each parameter lies, as the job is told it. */
static CUresult keep_pointers(struct sg_work_kernel *k, const struct ptx_function_info *info, bool in_buffer)
{
    if (in_buffer) {
        memcpy(k->extra, extra_list, sizeof k->extra);
        k->extra[1] = k->packed;
        k->extra[3] = &k->packed_bytes;
        return CUDA_SUCCESS;
    }
    if (!info->param_count)
        return CUDA_SUCCESS;
    k->pointers = calloc(info->param_count, sizeof *k->pointers);
    if (!k->pointers)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (uint32_t i = 0; i < info->param_count; i++)
        k->pointers[i] = k->packed + info->params[i].offset_bytes;
    return CUDA_SUCCESS;
}

/* What is bound to references would have to be written between this launch and others of the graph. */
static CUresult check_references(const struct sg_function *f)
{
    return f->module->texrefs ? sg_unsupported_inside("a graph's kernel with texture or surface references")
                              : CUDA_SUCCESS;
}

CUresult sg_work_launch(const struct sg_launch *l, struct sg_function *f, struct sg_work **work_out)
{
    CUresult r = check_references(f);
    if (r)
        return r;
    struct sg_work *w = sg_work_new(CU_GRAPH_NODE_TYPE_KERNEL);
    if (!w)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct sg_work_kernel *k = &w->kernel;
    bool is_entry = SG_FIND(l->function, SG_ENTRY) != NULL;
    w->context = f->module->context->object.id;
    k->function = is_entry ? NULL : l->function;
    k->kernel = is_entry ? (CUkernel)l->function : NULL;
    k->launched = f->object.id;
    memcpy(k->grid, l->grid, sizeof k->grid);
    memcpy(k->block, l->block, sizeof k->block);
    k->shared_bytes = l->shared_bytes;
    k->packed_bytes = f->info->params_bytes;
    r = sg_launch_pack(l, f, &k->packed);
    if (!r)
        r = keep_pointers(k, f->info, l->extra != NULL);
    *work_out = w;
    for (unsigned i = 0; i < l->attribute_count && !r; i++) {
        const CUlaunchAttribute *a = &l->attributes[i];
        struct sg_work *with;
        if (a->id == CU_LAUNCH_ATTRIBUTE_IGNORE || a->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION ||
            a->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT || a->id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT)
            continue; /* they are edges now */
        r = sg_work_with_attribute(*work_out, a->id, &a->value, &with);
        if (!r) {
            sg_work_unref(*work_out);
            *work_out = with;
        }
    }
    if (!r && l->cooperative && !sg_work_is_cooperative(*work_out)) {
        struct sg_work *with;
        r = sg_work_with_attribute(*work_out, CU_LAUNCH_ATTRIBUTE_COOPERATIVE,
                                   &(CUlaunchAttributeValue){.cooperative = 1}, &with);
        if (!r) {
            sg_work_unref(*work_out);
            *work_out = with;
        }
    }
    if (r)
        sg_work_unref(*work_out);
    return r;
}

CUresult sg_work_kernel(const CUDA_KERNEL_NODE_PARAMS *p, struct sg_work **work_out)
{
    struct sg_context *c = NULL;
    CUfunction handle = p->func ? p->func : (CUfunction)p->kern;
    struct sg_function *f = SG_FIND(handle, SG_FUNCTION);
    CUresult r = CUDA_SUCCESS;
    if (f)
        c = f->module->context; /* it says itself where it runs */
    else
        r = sg_context_named(p->ctx, &c);
    if (!r && c->sticky)
        r = c->sticky;
    if (!r && !f)
        r = sg_function_in(handle, c, &f);
    if (r)
        return r == CUDA_ERROR_INVALID_HANDLE ? CUDA_ERROR_INVALID_VALUE : r;
    struct sg_launch l = {.function = handle,
                          .grid = {p->gridDimX, p->gridDimY, p->gridDimZ},
                          .block = {p->blockDimX, p->blockDimY, p->blockDimZ},
                          .shared_bytes = p->sharedMemBytes,
                          .params = p->kernelParams,
                          .extra = p->extra};
    return sg_work_launch(&l, f, work_out);
}

bool sg_work_is_cooperative(const struct sg_work *w)
{
    const struct sg_node_attributes *a = w->kernel.attributes;
    return a && a->set >> CU_LAUNCH_ATTRIBUTE_COOPERATIVE & 1 && a->value[CU_LAUNCH_ATTRIBUTE_COOPERATIVE].cooperative;
}

/* The launch that a node's kernel is. Fails when the function is gone. */
static CUresult as_launch(const struct sg_work *w, struct sg_launch *l, struct sg_function **function_out)
{
    const struct sg_work_kernel *k = &w->kernel;
    struct sg_function *f = sg_object_find(k->launched, SG_FUNCTION);
    if (!f)
        return CUDA_ERROR_INVALID_HANDLE; /* its module is unloaded */
    *l = (struct sg_launch){.function = (CUfunction)(uintptr_t)k->launched,
                            .grid = {k->grid[0], k->grid[1], k->grid[2]},
                            .block = {k->block[0], k->block[1], k->block[2]},
                            .shared_bytes = k->shared_bytes,
                            .cooperative = sg_work_is_cooperative(w)};
    *function_out = f;
    return CUDA_SUCCESS;
}

CUresult sg_work_with_attributes(const struct sg_work *w, const struct sg_node_attributes *attributes,
                                 struct sg_work **work_out)
{
    struct sg_work *n = sg_work_new(w->type);
    if (!n)
        return CUDA_ERROR_OUT_OF_MEMORY;
    const struct sg_work_kernel *from = &w->kernel;
    struct sg_function *f;
    struct sg_launch l;
    n->context = w->context;
    n->kernel = *from;
    n->kernel.packed = malloc(from->packed_bytes + 8);
    n->kernel.pointers = NULL;
    n->kernel.attributes = attributes ? malloc(sizeof *attributes) : NULL;
    CUresult r =
        n->kernel.packed && (!attributes || n->kernel.attributes) ? as_launch(w, &l, &f) : CUDA_ERROR_OUT_OF_MEMORY;
    if (!r) {
        memcpy(n->kernel.packed, from->packed, from->packed_bytes);
        if (attributes)
            *n->kernel.attributes = *attributes;
        r = keep_pointers(&n->kernel, f->info, from->extra[0] != NULL);
    }
    if (r)
        sg_work_unref(n);
    else
        *work_out = n;
    return r;
}

CUresult sg_work_with_attribute(const struct sg_work *w, CUlaunchAttributeID id, const CUlaunchAttributeValue *value,
                                struct sg_work **work_out)
{
    struct sg_node_attributes all = {0};
    struct sg_launch l;
    struct sg_function *f;
    if (w->kernel.attributes)
        all = *w->kernel.attributes;
    if ((unsigned)id >= SG_NODE_ATTRIBUTES || id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION ||
        id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT || id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT)
        return CUDA_ERROR_INVALID_VALUE; /* of launches only */
    if (id == CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE) {
        if (value->deviceUpdatableKernelNode.deviceUpdatable)
            return sg_unsupported_inside("a kernel node that the device may update");
        return sg_work_with_attributes(w, w->kernel.attributes, work_out);
    }
    CUresult r = as_launch(w, &l, &f);
    CUlaunchAttribute a = {.id = id, .value = *value};
    if (!r)
        r = sg_launch_attribute(&a, &l);
    if (!r && l.cooperative && w->kernel.extra[0])
        r = CUDA_ERROR_INVALID_VALUE;
    if (r)
        return r;
    all.set |= 1u << id;
    all.value[id] = *value;
    return sg_work_with_attributes(w, &all, work_out);
}

/* ---- copies ---- */

static CUresult find_operands(struct sg_work_copy *c, struct sg_context *context)
{
    if (!c->extent.width_bytes || !c->extent.height || !c->extent.depth)
        return CUDA_ERROR_INVALID_VALUE; /* a node copies something */
    return sg_copy_check(context->legacy, &c->dst_end, &c->src_end, &c->extent, &c->dst, &c->src);
}

CUresult sg_work_copy(const CUDA_MEMCPY3D *p, CUcontext handle, struct sg_work **work_out)
{
    struct sg_context *context;
    CUresult r = sg_context_named(handle, &context);
    if (r)
        return r;
    struct sg_work *w = sg_work_new(CU_GRAPH_NODE_TYPE_MEMCPY);
    if (!w)
        return CUDA_ERROR_OUT_OF_MEMORY;
    w->context = context->object.id;
    w->copy.params = *p;
    r = sg_copy_ends(p, &w->copy.dst_end, &w->copy.src_end, &w->copy.extent);
    if (!r)
        r = find_operands(&w->copy, context);
    if (r)
        sg_work_unref(w);
    else
        *work_out = w;
    return r;
}

struct told { /* an end as CUDA_MEMCPY3D has it */
    size_t x, y, z;
    CUmemorytype type;
    const void *host;
    CUdeviceptr device;
    CUarray array;
    size_t pitch, height;
};

static struct told tell_end(const struct sg_end *e, const struct sg_operand *o, const struct sg_extent *extent)
{
    const struct sg_array *a = e->array ? sg_array_find(e->array) : NULL;
    uint64_t offset = a ? e->va - a->va : 0;
    if (a)
        return (struct told){.type = CU_MEMORYTYPE_ARRAY,
                             .array = e->array,
                             .x = offset % a->pitch,
                             .y = offset % a->slice / a->pitch,
                             .z = offset / a->slice};
    bool is_host = e->side == SG_SIDE_HOST || (e->side == SG_SIDE_ANY && o->device == SG_ON_HOST);
    return (struct told){.type = is_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE,
                         .device = is_host ? 0 : e->va,
                         .host = is_host ? (const void *)(uintptr_t)e->va : NULL,
                         .pitch = extent->height > 1 || extent->depth > 1 ? e->pitch : 0,
                         .height = extent->depth > 1 && e->pitch ? e->slice / e->pitch : 0};
}

static CUDA_MEMCPY3D tell_copy(const struct sg_work_copy *c)
{
    struct told to = tell_end(&c->dst_end, &c->dst, &c->extent), from = tell_end(&c->src_end, &c->src, &c->extent);
    return (CUDA_MEMCPY3D){.WidthInBytes = c->extent.width_bytes,
                           .Height = c->extent.height,
                           .Depth = c->extent.depth,
                           .dstXInBytes = to.x,
                           .dstY = to.y,
                           .dstZ = to.z,
                           .dstMemoryType = to.type,
                           .dstHost = (void *)(uintptr_t)to.host,
                           .dstDevice = to.device,
                           .dstArray = to.array,
                           .dstPitch = to.pitch,
                           .dstHeight = to.height,
                           .srcXInBytes = from.x,
                           .srcY = from.y,
                           .srcZ = from.z,
                           .srcMemoryType = from.type,
                           .srcHost = from.host,
                           .srcDevice = from.device,
                           .srcArray = from.array,
                           .srcPitch = from.pitch,
                           .srcHeight = from.height};
}

CUresult sg_work_ends(const struct sg_end *dst, const struct sg_end *src, const struct sg_extent *extent,
                      struct sg_context *context, struct sg_work **work_out)
{
    struct sg_work *w = sg_work_new(CU_GRAPH_NODE_TYPE_MEMCPY);
    if (!w)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct sg_work_copy *c = &w->copy;
    w->context = context->object.id;
    c->dst_end = *dst;
    c->src_end = *src;
    c->extent = *extent;
    CUresult r = find_operands(c, context);
    if (r) {
        sg_work_unref(w);
        return r;
    }
    c->params = tell_copy(c);
    *work_out = w;
    return CUDA_SUCCESS;
}

/* ---- memsets ---- */

CUresult sg_work_fill(const CUDA_MEMSET_NODE_PARAMS *p, CUcontext handle, struct sg_work **work_out)
{
    struct sg_context *context;
    CUresult r = sg_context_named(handle, &context);
    if (r)
        return r;
    if (!p->width || !p->height || (p->elementSize != 1 && p->elementSize != 2 && p->elementSize != 4))
        return CUDA_ERROR_INVALID_VALUE;
    struct sg_work *w = sg_work_new(CU_GRAPH_NODE_TYPE_MEMSET);
    if (!w)
        return CUDA_ERROR_OUT_OF_MEMORY;
    w->context = context->object.id;
    w->fill.params = *p;
    r = sg_fill_check(context, p, &w->fill.fill);
    if (r)
        sg_work_unref(w);
    else
        *work_out = w;
    return r;
}

/* ---- the rest ---- */

CUresult sg_work_host(const CUDA_HOST_NODE_PARAMS *p, struct sg_work **work_out)
{
    if (!p->fn)
        return CUDA_ERROR_INVALID_VALUE;
    struct sg_work *w = sg_work_new(CU_GRAPH_NODE_TYPE_HOST);
    if (!w)
        return CUDA_ERROR_OUT_OF_MEMORY;
    w->host = *p;
    *work_out = w;
    return CUDA_SUCCESS;
}

CUresult sg_work_event(CUgraphNodeType type, CUevent handle, struct sg_work **work_out)
{
    struct sg_event *e = SG_FIND(handle, SG_EVENT);
    if (!e)
        return CUDA_ERROR_INVALID_VALUE;
    struct sg_work *w = sg_work_new(type);
    if (!w)
        return CUDA_ERROR_OUT_OF_MEMORY;
    w->context = type == CU_GRAPH_NODE_TYPE_EVENT_RECORD ? e->context->object.id : 0;
    w->event = e->object.id;
    *work_out = w;
    return CUDA_SUCCESS;
}

CUresult sg_work_batch(CUcontext handle, unsigned count, const CUstreamBatchMemOpParams *parts, unsigned flags,
                       struct sg_work **work_out)
{
    struct sg_context *context;
    CUresult r = sg_context_named(handle, &context);
    if (!r && (!count || count > 255 || !parts || flags))
        r = CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count && !r; i++)
        r = sg_value_check(context, &parts[i]);
    if (r)
        return r;
    struct sg_work *w = sg_work_new(CU_GRAPH_NODE_TYPE_BATCH_MEM_OP);
    if (!w)
        return CUDA_ERROR_OUT_OF_MEMORY;
    w->context = context->object.id;
    w->batch.count = count;
    w->batch.flags = flags;
    w->batch.parts = malloc(count * sizeof *parts);
    if (!w->batch.parts) {
        sg_work_unref(w);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    memcpy(w->batch.parts, parts, count * sizeof *parts);
    *work_out = w;
    return CUDA_SUCCESS;
}

CUresult sg_work_memory(CUgraphNodeType type, struct sg_graph_memory *m, struct sg_work **work_out)
{
    struct sg_work *w = sg_work_new(type);
    if (!w) {
        sg_graph_memory_unref(m);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    w->memory = m;
    w->context = m->alloc ? m->alloc->context->object.id : 0;
    *work_out = w;
    return CUDA_SUCCESS;
}

/* ---- placement ---- */

/* Which memory lies behind a range: another number for other memory, even at the same addresses. */
static uint64_t stamp_of(uint64_t va, uint64_t bytes)
{
    uint64_t stamp = UINT64_C(0xcbf29ce484222325);
    const struct sg_host *h = sg_host_at(va);
    if (h)
        return stamp ^ h->buffer_id;
    const struct sg_alloc *a = sg_alloc_at(va);
    if (a) /* what another process had shared is gone once that has freed it */
        return stamp ^ (a->foreign && !sg_foreign_lives(a->foreign) ? UINT64_MAX : a->buffer_id);
    for (uint64_t end = va + bytes; va < end;) {
        const struct sg_mapping *m = sg_mapping_at(va);
        if (!m)
            return stamp ^ UINT64_MAX;
        stamp = (stamp ^ m->buffer_id) * UINT64_C(0x100000001b3);
        va = m->region.va + m->region.bytes;
    }
    return stamp;
}

static uint64_t operand_stamp(const struct sg_operand *o, const struct sg_extent *e)
{
    uint64_t bytes = (e->depth - 1) * o->slice + (e->height - 1) * o->pitch + e->width_bytes;
    if (o->device == SG_ON_HOST && !o->pinned)
        return 0; /* the host's own: nobody tells when that changes */
    return stamp_of(o->va, bytes);
}

static uint64_t fill_stamp(const struct sg_fill *f)
{
    return stamp_of(f->dst, (f->height - 1) * f->pitch + f->width_bytes);
}

CUresult sg_work_place(const struct sg_work *w, struct sg_work **placed_out)
{
    struct sg_context *c = sg_object_find(w->context, SG_CONTEXT);
    if (!c || !c->active)
        return CUDA_ERROR_INVALID_VALUE; /* the context is gone */
    struct sg_work *p = sg_work_new(w->type);
    if (!p)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r;
    *p = *w;
    p->refs = 1;
    if (w->type == CU_GRAPH_NODE_TYPE_MEMCPY) {
        r = find_operands(&p->copy, c);
        if (!r) {
            p->copy.dst_stamp = operand_stamp(&p->copy.dst, &p->copy.extent);
            p->copy.src_stamp = operand_stamp(&p->copy.src, &p->copy.extent);
        }
    } else {
        r = sg_fill_check(c, &p->fill.params, &p->fill.fill);
        if (!r)
            p->fill.stamp = fill_stamp(&p->fill.fill);
    }
    if (r)
        free(p);
    else
        *placed_out = p;
    return r;
}

CUresult sg_work_still_placed(const struct sg_work *w)
{
    uint64_t va = 0;
    if (w->type == CU_GRAPH_NODE_TYPE_MEMCPY) {
        const struct sg_work_copy *c = &w->copy;
        if (operand_stamp(&c->dst, &c->extent) != c->dst_stamp)
            va = c->dst.va;
        else if (operand_stamp(&c->src, &c->extent) != c->src_stamp)
            va = c->src.va;
    } else if (w->type == CU_GRAPH_NODE_TYPE_MEMSET && fill_stamp(&w->fill.fill) != w->fill.stamp) {
        va = w->fill.fill.dst;
    }
    if (!va)
        return CUDA_SUCCESS;
    sg_log(
        SG_LOG_ERROR,
        "a graph's %s node keeps the placement that it was instantiated with: the memory operand's mapping changed at "
        "0x%" PRIx64,
        w->type == CU_GRAPH_NODE_TYPE_MEMCPY ? "memcpy" : "memset", va);
    return CUDA_ERROR_INVALID_VALUE;
}

/* ---- operations ---- */

unsigned sg_work_parts(const struct sg_work *w)
{
    switch ((int)w->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
    case CU_GRAPH_NODE_TYPE_MEMCPY:
    case CU_GRAPH_NODE_TYPE_MEMSET:
    case CU_GRAPH_NODE_TYPE_HOST: return 1;
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: return w->batch.count;
    default: return 0;
    }
}

static CUresult kernel_op(const struct sg_work *w, struct sg_op **op_out)
{
    struct sg_launch l;
    struct sg_function *f;
    CUresult r = as_launch(w, &l, &f);
    if (!r)
        r = check_references(f);
    if (!r)
        r = sg_launch_op(&l, f, w->kernel.packed, op_out);
    if (!r)
        f->in_flight++;
    return r;
}

CUresult sg_work_op(const struct sg_work *w, unsigned part, struct sg_op **op_out)
{
    const struct sg_context *c = sg_object_find(w->context, SG_CONTEXT);
    struct sg_op *op = NULL;
    CUresult r = CUDA_SUCCESS;
    switch ((int)w->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: r = kernel_op(w, &op); break;
    case CU_GRAPH_NODE_TYPE_MEMCPY: r = sg_copy_op(&w->copy.dst, &w->copy.src, &w->copy.extent, &op); break;
    case CU_GRAPH_NODE_TYPE_MEMSET:
        op = sg_op_new(SG_OP_FILL);
        r = op ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
        if (op) {
            op->fill = w->fill.fill;
            op->engine = SG_ENGINE_D2D;
        }
        break;
    case CU_GRAPH_NODE_TYPE_HOST:
        op = sg_op_new(SG_OP_HOST);
        r = op ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
        if (op)
            op->host = (struct sg_host_call){.fn = w->host.fn, .data = w->host.userData};
        break;
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
        r = c ? sg_value_op(c, &w->batch.parts[part], &op) : CUDA_ERROR_CONTEXT_IS_DESTROYED;
        break;
    default: break;
    }
    *op_out = r ? NULL : op;
    return r;
}
