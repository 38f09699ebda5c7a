/* Kernel launches: every limit is checked here, and what the parameters name is noted for the in-flight report. */
#include "simgpu/launch.h"
#include "simgpu/capture.h"

#include <stdlib.h>
#include <string.h>

static CUresult check_shape(const struct sg_launch *l, const struct sg_function *f)
{
    static const unsigned max_grid[3] = {2147483647, 65535, 65535}, max_block[3] = {1024, 1024, 64};
    uint64_t threads = 1;
    for (int i = 0; i < 3; i++) {
        if (!l->grid[i] || !l->block[i] || l->grid[i] > max_grid[i] || l->block[i] > max_block[i])
            return CUDA_ERROR_INVALID_VALUE;
        threads *= l->block[i];
        if (f->info->required_threads[0] && l->block[i] != f->info->required_threads[i])
            return CUDA_ERROR_INVALID_VALUE;
    }
    if (threads > 1024)
        return CUDA_ERROR_INVALID_VALUE;
    if (threads > f->info->max_threads)
        return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    int dynamic_max = sg_function_dynamic_max(f);
    if (l->shared_bytes > (unsigned)(dynamic_max > 0 ? dynamic_max : 0))
        return CUDA_ERROR_INVALID_VALUE;
    if (!sg_occupancy(f, (unsigned)threads, l->shared_bytes))
        return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    return CUDA_SUCCESS;
}

static CUresult pack_from_extra(void **extra, const struct ptx_function_info *info, uint8_t *packed)
{
    const void *buffer = NULL;
    const size_t *bytes = NULL;
    for (size_t i = 0; extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
        if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER)
            buffer = extra[i + 1];
        else if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE)
            bytes = extra[i + 1];
        else
            return CUDA_ERROR_INVALID_VALUE;
    }
    if (info->params_bytes == 0)
        return CUDA_SUCCESS;
    uint32_t needed = 0; /* a buffer may leave out what pads its end */
    for (uint32_t i = 0; i < info->param_count; i++)
        needed = info->params[i].offset_bytes + info->params[i].size_bytes;
    if (!buffer || !bytes || *bytes < needed)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(packed, buffer, *bytes < info->params_bytes ? *bytes : info->params_bytes);
    return CUDA_SUCCESS;
}

static CUresult pack(const struct sg_launch *l, const struct ptx_function_info *info, uint8_t *packed)
{
    if (l->params && l->extra)
        return CUDA_ERROR_INVALID_VALUE;
    if (l->extra)
        return pack_from_extra(l->extra, info, packed);
    if (info->param_count && !l->params)
        return CUDA_ERROR_INVALID_VALUE;
    for (uint32_t i = 0; i < info->param_count; i++) {
        if (!l->params[i])
            return CUDA_ERROR_INVALID_VALUE;
        memcpy(packed + info->params[i].offset_bytes, l->params[i], info->params[i].size_bytes);
    }
    return CUDA_SUCCESS;
}

/* The 8-byte-aligned words of the parameters that name memory now. */
static CUresult collect_words(struct sg_kernel *k, uint32_t bytes)
{
    size_t count = bytes / 8;
    if (!count)
        return CUDA_SUCCESS;
    k->words = malloc(count * sizeof *k->words);
    if (!k->words)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < count; i++) {
        uint64_t word;
        memcpy(&word, (const uint8_t *)k->params + i * 8, 8);
        if (word >= SG_PAGE_BYTES && !(word >> SG_VA_BITS) &&
            (sg_region_at(word) || sg_host_at(word) || sg_reservation_at(word)))
            k->words[k->word_count++] = word;
    }
    return CUDA_SUCCESS;
}

/* An event to record behind a kernel: untimed, and of the stream's context. */
static CUresult find_event(CUevent handle, const struct sg_context *context, struct sg_event **event_out)
{
    struct sg_event *e = SG_FIND(handle, SG_EVENT);
    if (!e || e->context != context)
        return CUDA_ERROR_INVALID_HANDLE;
    *event_out = e;
    return e->flags & CU_EVENT_DISABLE_TIMING ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* All blocks that the device holds at once. */
static uint64_t resident_most(const struct sg_launch *l, const struct sg_function *f)
{
    return (uint64_t)sg_occupancy(f, l->block[0] * l->block[1] * l->block[2], l->shared_bytes) *
           (unsigned)sg.config.model->sm_count;
}

CUresult sg_launch_pack(const struct sg_launch *l, const struct sg_function *f, uint8_t **packed_out)
{
    CUresult r = check_shape(l, f);
    if (r)
        return r;
    if (l->cooperative && (uint64_t)l->grid[0] * l->grid[1] * l->grid[2] > resident_most(l, f))
        return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    uint8_t *packed = calloc(1, f->info->params_bytes + 8);
    if (!packed)
        return CUDA_ERROR_OUT_OF_MEMORY;
    r = pack(l, f->info, packed);
    if (r)
        free(packed);
    else
        *packed_out = packed;
    return r;
}

/* Takes `packed` over, but on an error. */
static CUresult make_op(const struct sg_launch *l, struct sg_function *f, uint8_t *packed, struct sg_op **op_out)
{
    struct sg_op *op = sg_op_new(SG_OP_KERNEL);
    if (!op)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct sg_kernel *k = &op->kernel;
    memcpy(k->grid, l->grid, sizeof k->grid);
    memcpy(k->block, l->block, sizeof k->block);
    k->function = f;
    k->shared_bytes = l->shared_bytes;
    k->resident_blocks = (unsigned)resident_most(l, f);
    k->cooperative = l->cooperative;
    k->params = packed;
    CUresult r = collect_words(k, (f->info->params_bytes + 7) & ~7u);
    if (r)
        free(op);
    else
        *op_out = op;
    return r;
}

CUresult sg_launch_op(const struct sg_launch *l, struct sg_function *f, const uint8_t *packed, struct sg_op **op_out)
{
    uint8_t *copy = calloc(1, f->info->params_bytes + 8);
    if (!copy)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(copy, packed, f->info->params_bytes);
    CUresult r = make_op(l, f, copy, op_out);
    if (r)
        free(copy);
    return r;
}

CUresult sg_launch(const char *api, const struct sg_launch *l, bool per_thread)
{
    struct sg_stream *s;
    CUresult r = sg_enter_work(api, l->stream, per_thread, &s);
    if (r)
        return r;
    uint64_t stream = s->object.id;
    sg_print_flush(); /* what kernels launched before have printed; may release the lock */
    s = sg_object_find(stream, SG_STREAM);
    if (!s)
        return sg_leave(CUDA_ERROR_CONTEXT_IS_DESTROYED);
    struct sg_function *f;
    struct sg_event *e;
    r = sg_function_in(l->function, s->context, &f);
    s = r ? NULL : sg_object_find(stream, SG_STREAM);
    if (!r && !s)
        r = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    for (int i = 0; i < 2 && !r; i++)
        r = l->after[i] ? find_event(l->after[i], s->context, &e) : CUDA_SUCCESS;
    if (!r && s->captured) {
        r = sg_capture_launch(s, l, f);
        if (!r && !l->keeps_legacy_state)
            sg_legacy_free(f);
        return sg_leave(r);
    }
    struct sg_op *op = NULL;
    uint8_t *packed = NULL;
    if (!r && f->module->texrefs)
        r = sg_texrefs_prepare(f->module, s);
    if (!r)
        r = sg_launch_pack(l, f, &packed);
    if (!r)
        r = make_op(l, f, packed, &op);
    if (r) {
        free(packed);
        return sg_leave(r);
    }
    if (!l->keeps_legacy_state)
        sg_legacy_free(f);
    f->in_flight++;
    r = sg_submit_async(s, op);
    for (int i = 0; i < 2 && !r; i++) {
        s = sg_object_find(stream, SG_STREAM); /* SIMGPU_SYNC releases the lock */
        if (l->after[i] && s && !find_event(l->after[i], s->context, &e))
            r = sg_event_record(e, s);
    }
    return sg_leave(r);
}

static CUresult launch(CUfunction f, const unsigned grid[3], const unsigned block[3], unsigned shared, CUstream stream,
                       void **params, void **extra, bool per_thread)
{
    struct sg_launch l = {.function = f,
                          .grid = {grid[0], grid[1], grid[2]},
                          .block = {block[0], block[1], block[2]},
                          .shared_bytes = shared,
                          .stream = stream,
                          .params = params,
                          .extra = extra};
    return sg_launch("cuLaunchKernel", &l, per_thread);
}

CUresult cuLaunchKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
                        unsigned int by, unsigned int bz, unsigned int shared, CUstream stream, void **params,
                        void **extra)
{
    return launch(f, (unsigned[]){gx, gy, gz}, (unsigned[]){bx, by, bz}, shared, stream, params, extra, false);
}

CUresult cuLaunchKernel_ptsz(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
                             unsigned int by, unsigned int bz, unsigned int shared, CUstream stream, void **params,
                             void **extra)
{
    return launch(f, (unsigned[]){gx, gy, gz}, (unsigned[]){bx, by, bz}, shared, stream, params, extra, true);
}
