/*
 * The linker: PTX texts in, one image out that the loading functions take. Each input is read through when it is added, so
 * that its own errors come up there; names that nobody defines, or two inputs define, come up when the link is completed.
 */
#include "simgpu/image.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct sg_linker {
    struct sg_object object;
    struct sg_jit jit;
    struct sg_image *image; /* the inputs so far */
    unsigned target, inputs;
    void *cubin; /* once complete */
    size_t cubin_bytes;
};

static CUresult create(unsigned count, const CUjit_option *options, void **values, CUlinkState *state)
{
    struct sg_context *context;
    CUresult r = sg_enter_context("cuLinkCreate", &context);
    if (r)
        return r;
    struct sg_jit jit;
    r = sg_jit_read(&jit, count, options, values);
    if (!r && (!state || sg_jit_has(&jit, CU_JIT_FALLBACK_STRATEGY))) /* a linker takes exact matches only */
        r = CUDA_ERROR_INVALID_VALUE;
    if (r)
        return sg_leave(r);
    struct sg_linker *l = calloc(1, sizeof *l);
    struct sg_image *image = calloc(1, sizeof *image);
    if (!l || !image) {
        free(l);
        free(image);
        return sg_leave(CUDA_ERROR_OUT_OF_MEMORY);
    }
    l->jit = jit;
    l->image = image;
    l->target = jit.target ? jit.target : (unsigned)(sg.config.model->major * 10 + sg.config.model->minor);
    image->target = l->target;
    sg_jit_log(&l->jit, "");
    sg_object_add(&l->object, SG_LINK);
    *state = SG_HANDLE(CUlinkState, l);
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuLinkCreate(unsigned int count, CUjit_option *options, void **values, CUlinkState *state)
{
    return create(count, options, values, state);
}

CUresult cuLinkCreate_v2(unsigned int count, CUjit_option *options, void **values, CUlinkState *state)
{
    return create(count, options, values, state);
}

/* ---- inputs ---- */

struct input {
    CUjitInputType type;
    const void *data;
    size_t bytes;
    const char *name;
};

/* The input's texts, NULL on an error; needs no lock. */
static CUresult read_input(const struct input *in, struct sg_image **image_out, struct ptx_error *error)
{
    switch ((int)in->type) {
    case CU_JIT_INPUT_PTX: {
        CUresult r = sg_image_from_text(in->data, strnlen(in->data, in->bytes), in->name, image_out);
        if (r)
            return r;
        r = sg_image_check_version((*image_out)->texts[0].text, error);
        if (r) {
            sg_image_destroy(*image_out);
            *image_out = NULL;
        }
        return r;
    }
    case CU_JIT_INPUT_FATBINARY:
    case CU_JIT_INPUT_CUBIN: {
        CUresult r = sg_image_read(in->data, in->bytes, image_out, error);
        if (!r && in->type == CU_JIT_INPUT_CUBIN && !(*image_out)->target) { /* text is no compiled code */
            sg_image_destroy(*image_out);
            *image_out = NULL;
            r = CUDA_ERROR_INVALID_IMAGE;
        }
        if (r == CUDA_ERROR_INVALID_IMAGE && !*error->text)
            snprintf(error->text, sizeof error->text, "the input is not of the kind that the call says");
        return r;
    }
    default:
        snprintf(error->text, sizeof error->text,
                 "only PTX, fat binaries that hold PTX and linked images can be linked");
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

/* Reads it through, for its own errors and its target; needs no lock. */
static CUresult check_input(const struct sg_image *image, unsigned target, struct ptx_error *error)
{
    struct ptx_module *ptx;
    if (ptx_module_parse_all(image->texts, image->count, true, &ptx, error))
        return CUDA_ERROR_INVALID_PTX;
    unsigned wanted = ptx_module_target(ptx);
    ptx_module_destroy(ptx);
    if (wanted <= target)
        return CUDA_SUCCESS;
    snprintf(error->text, sizeof error->text, "target sm_%u is newer than sm_%u, which is linked for", wanted, target);
    return CUDA_ERROR_NO_BINARY_FOR_GPU;
}

/* Options that an input may not have of its own. */
static CUresult check_options(unsigned count, const CUjit_option *options, void **values)
{
    static const CUjit_option refused[] = {CU_JIT_WALL_TIME,
                                           CU_JIT_INFO_LOG_BUFFER,
                                           CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES,
                                           CU_JIT_ERROR_LOG_BUFFER,
                                           CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
                                           CU_JIT_TARGET_FROM_CUCONTEXT,
                                           CU_JIT_TARGET};
    struct sg_jit jit;
    CUresult r = sg_jit_read(&jit, count, options, values);
    for (size_t i = 0; i < sizeof refused / sizeof refused[0] && !r; i++)
        if (sg_jit_has(&jit, refused[i]))
            r = CUDA_ERROR_INVALID_VALUE;
    return r;
}

static CUresult enter_linker(const char *api, CUlinkState state, struct sg_linker **linker_out)
{
    CUresult r = sg_enter(api);
    if (r)
        return r;
    *linker_out = SG_FIND(state, SG_LINK);
    return *linker_out ? CUDA_SUCCESS : sg_leave(CUDA_ERROR_INVALID_HANDLE);
}

/* sg.lock is held at entry and exit, and released while the input is read. */
static CUresult add_input(CUlinkState state, struct sg_linker *l, const struct input *in)
{
    struct ptx_error error = {.text = ""};
    struct sg_image *image = NULL;
    uint64_t start_ns = sg_now_ns();
    unsigned target = l->target;
    char number[32];
    struct input named = *in;
    snprintf(number, sizeof number, "input %u", ++l->inputs);
    if (!named.name)
        named.name = number;
    pthread_mutex_unlock(&sg.lock);
    CUresult r = read_input(&named, &image, &error);
    if (!r)
        r = check_input(image, target, &error);
    pthread_mutex_lock(&sg.lock);
    l = SG_FIND(state, SG_LINK);
    if (l) {
        if (!r)
            r = sg_image_append(l->image, image, image->count == 1 ? named.name : NULL);
        if (r && *error.text)
            sg_log(SG_LOG_ERROR, "cuLinkAddData: %s", error.text);
        sg_jit_log(&l->jit, error.text);
        sg_jit_time(&l->jit, start_ns);
    }
    sg_image_destroy(image);
    return l ? r : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult add_data(CUlinkState state, struct input in, unsigned count, const CUjit_option *options, void **values)
{
    struct sg_linker *l;
    CUresult r = enter_linker("cuLinkAddData", state, &l);
    if (r)
        return r;
    r = check_options(count, options, values);
    if (!in.data || !in.bytes || (unsigned)in.type >= CU_JIT_NUM_INPUT_TYPES || l->cubin)
        r = CUDA_ERROR_INVALID_VALUE;
    return sg_leave(r ? r : add_input(state, l, &in));
}

CUresult cuLinkAddData(CUlinkState state, CUjitInputType type, void *data, size_t size, const char *name,
                       unsigned int count, CUjit_option *options, void **values)
{
    return add_data(state, (struct input){type, data, size, name}, count, options, values);
}

CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void *data, size_t size, const char *name,
                          unsigned int count, CUjit_option *options, void **values)
{
    return add_data(state, (struct input){type, data, size, name}, count, options, values);
}

static CUresult add_file(CUlinkState state, CUjitInputType type, const char *path, unsigned count,
                         const CUjit_option *options, void **values)
{
    struct sg_linker *l;
    CUresult r = enter_linker("cuLinkAddFile", state, &l);
    if (r)
        return r;
    r = check_options(count, options, values);
    if (!path || (unsigned)type >= CU_JIT_NUM_INPUT_TYPES || l->cubin)
        r = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&sg.lock);
    if (r)
        return r;
    size_t bytes = 0;
    char *data = sg_file_read(path, &bytes);
    if (!data)
        return CUDA_ERROR_FILE_NOT_FOUND;
    pthread_mutex_lock(&sg.lock);
    l = SG_FIND(state, SG_LINK);
    r = l ? add_input(state, l, &(struct input){type, data, bytes + 1, path}) : CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_unlock(&sg.lock);
    free(data);
    return r;
}

CUresult cuLinkAddFile(CUlinkState state, CUjitInputType type, const char *path, unsigned int count,
                       CUjit_option *options, void **values)
{
    return add_file(state, type, path, count, options, values);
}

CUresult cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char *path, unsigned int count,
                          CUjit_option *options, void **values)
{
    return add_file(state, type, path, count, options, values);
}

/* ---- the end ---- */

/* Whether the inputs make a module. The lock is kept: the inputs must not change meanwhile. */
static CUresult check_all(const struct sg_linker *l, struct ptx_error *error)
{
    struct ptx_module *ptx;
    if (!l->image->count) {
        snprintf(error->text, sizeof error->text, "nothing to link");
        return CUDA_ERROR_INVALID_IMAGE;
    }
    if (ptx_module_parse_all(l->image->texts, l->image->count, false, &ptx, error))
        return CUDA_ERROR_INVALID_IMAGE;
    ptx_module_destroy(ptx);
    return CUDA_SUCCESS;
}

CUresult cuLinkComplete(CUlinkState state, void **cubin, size_t *bytes)
{
    struct sg_linker *l;
    CUresult r = enter_linker("cuLinkComplete", state, &l);
    if (r)
        return r;
    if (!cubin)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (!l->cubin) {
        struct ptx_error error = {.text = ""};
        uint64_t start_ns = sg_now_ns();
        r = check_all(l, &error);
        if (!r)
            l->cubin = sg_image_pack(l->image, &l->cubin_bytes);
        if (!r && !l->cubin)
            r = CUDA_ERROR_OUT_OF_MEMORY;
        if (r && *error.text)
            sg_log(SG_LOG_ERROR, "cuLinkComplete: %s", error.text);
        sg_jit_log(&l->jit, error.text);
        sg_jit_time(&l->jit, start_ns);
    }
    if (r)
        return sg_leave(r);
    *cubin = l->cubin;
    if (bytes)
        *bytes = l->cubin_bytes;
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuLinkDestroy(CUlinkState state)
{
    struct sg_linker *l;
    CUresult r = enter_linker("cuLinkDestroy", state, &l);
    if (r)
        return r;
    sg_object_remove(&l->object);
    sg_image_destroy(l->image);
    free(l->cubin);
    free(l);
    return sg_leave(CUDA_SUCCESS);
}
