/* Modules: PTX text in, functions and variables out. */
#include "simgpu/module.h"
#include "simgpu/launch.h"

#include <stdlib.h>
#include <string.h>

/* Allocates and fills the module's variables, then binds their addresses. */
static CUresult place_globals(struct sg_module *m, struct ptx_error *error)
{
    size_t count = ptx_module_global_count(m->ptx);
    m->globals = calloc(count ? count : 1, sizeof(struct sg_alloc *));
    if (!m->globals)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < count; i++) {
        struct ptx_global *g = ptx_module_global_at(m->ptx, i);
        CUresult r = sg_alloc_create(m->context, g->size_bytes ? g->size_bytes : 1, true, &m->globals[i]);
        if (r)
            return r;
        g->address = m->globals[i]->region.va;
    }
    if (ptx_module_link(m->ptx, error))
        return CUDA_ERROR_INVALID_PTX;
    for (size_t i = 0; i < count; i++) {
        struct ptx_global *g = ptx_module_global_at(m->ptx, i);
        struct sg_moved moved = {{0}};
        uint64_t bad;
        struct sg_fill zero = {g->address, g->size_bytes, g->size_bytes, 1, 0, 1, m->context->device};
        struct sg_copy init = {.dst = g->address,
                               .src = (uint64_t)(uintptr_t)g->init,
                               .width_bytes = g->size_bytes,
                               .height = 1,
                               .depth = 1,
                               .dst_device = m->context->device,
                               .src_device = SG_ON_HOST};
        if (g->size_bytes && !(g->init ? sg_copy_execute(&init, &moved, &bad) : sg_fill_execute(&zero, &moved, &bad)))
            return CUDA_ERROR_UNKNOWN;
    }
    return CUDA_SUCCESS;
}

static CUresult add_functions(struct sg_module *m)
{
    for (size_t i = 0; i < ptx_module_function_count(m->ptx); i++) {
        struct ptx_function *p = ptx_module_function_at(m->ptx, i);
        if (!ptx_function_info(p)->is_entry)
            continue;
        struct sg_function *f = calloc(1, sizeof *f);
        if (!f)
            return CUDA_ERROR_OUT_OF_MEMORY;
        f->module = m;
        f->ptx = p;
        f->info = ptx_function_info(p);
        f->carveout = -1;
        f->dynamic_shared_max = sg_static_shared_max() - (int)f->info->static_shared_bytes;
        sg_object_add(&f->object, SG_FUNCTION);
        LL_APPEND(m->functions, f);
    }
    return CUDA_SUCCESS;
}

bool sg_module_is_busy(const struct sg_module *m)
{
    const struct sg_function *f;
    LL_FOREACH(m->functions, f)
    if (f->in_flight)
        return true;
    return false;
}

void sg_module_destroy(struct sg_module *m)
{
    sg_texrefs_finish(m);
    for (size_t i = 0; m->globals && i < ptx_module_global_count(m->ptx); i++)
        if (m->globals[i])
            sg_alloc_destroy(m->globals[i]);
    free(m->globals);
    struct sg_function *f, *next;
    LL_FOREACH_SAFE(m->functions, f, next)
    {
        sg_object_remove(&f->object);
        sg_legacy_free(f);
        free(f);
    }
    DL_DELETE(m->context->modules, m);
    if (m->object.id)
        sg_object_remove(&m->object);
    sg_vram_give(m->context->device, m->charge_bytes);
    ptx_module_destroy(m->ptx);
    free(m);
}

CUresult sg_module_build(struct sg_context *context, struct ptx_module *ptx, struct sg_module **module_out,
                         struct ptx_error *error)
{
    struct sg_module *m = calloc(1, sizeof *m);
    if (!m) {
        ptx_module_destroy(ptx);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    m->context = context;
    m->ptx = ptx;
    DL_APPEND(context->modules, m);
    uint64_t code = ptx_module_code_bytes(ptx);
    sg_time_units(SG_UNIT_MODULE_KIB, (double)code / 1024);
    CUresult r = sg_vram_take(context->device, code);
    if (!r) {
        m->charge_bytes = code;
        r = place_globals(m, error);
    }
    if (!r)
        r = sg_runtime_prepare(context, ptx);
    if (!r)
        r = add_functions(m);
    if (r) {
        sg_module_destroy(m);
        return r;
    }
    sg_object_add(&m->object, SG_MODULE);
    *module_out = m;
    return CUDA_SUCCESS;
}

struct source {
    const void *data; /* or: */
    const char *path;
};

static CUresult read_source(const struct source *from, struct sg_image **image_out, struct ptx_error *error)
{
    if (!from->path)
        return sg_image_read(from->data, SG_BYTES_UNKNOWN, image_out, error);
    size_t bytes;
    char *text = sg_file_read(from->path, &bytes);
    if (!text)
        return CUDA_ERROR_FILE_NOT_FOUND;
    CUresult r = sg_image_read(text, bytes, image_out, error);
    free(text);
    return r;
}

/* Reads, parses and builds. All but the last takes milliseconds and touches nothing shared: sg.lock is released meanwhile. */
static CUresult load_source(const struct source *from, uint64_t context_id, struct sg_module **module_out,
                            struct ptx_error *error)
{
    struct ptx_module *ptx = NULL;
    struct sg_image *image = NULL;
    pthread_mutex_unlock(&sg.lock);
    CUresult r = read_source(from, &image, error);
    if (!r)
        r = sg_image_parse(image, &ptx, error);
    sg_image_destroy(image);
    pthread_mutex_lock(&sg.lock);
    if (r)
        return r;
    struct sg_context *context = sg_object_find(context_id, SG_CONTEXT);
    if (!context || !context->active) {
        ptx_module_destroy(ptx);
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    return sg_module_build(context, ptx, module_out, error);
}

static CUresult load(const char *function, CUmodule *module, struct source from, unsigned count,
                     const CUjit_option *options, void **values)
{
    struct sg_context *context;
    CUresult r = sg_enter_context(function, &context);
    if (r)
        return r;
    struct sg_jit jit;
    r = sg_jit_read(&jit, count, options, values);
    if (!module || (!from.data && !from.path))
        r = CUDA_ERROR_INVALID_VALUE;
    if (r)
        return sg_leave(r);
    uint64_t start_ns = sg_now_ns();
    struct ptx_error error = {.text = ""};
    struct sg_module *m = NULL;
    r = sg_image_check_target(jit.target, &error);
    if (!r)
        r = load_source(&from, context->object.id, &m, &error);
    if (r && *error.text)
        sg_log(SG_LOG_ERROR, "%s: %s", function, error.text);
    sg_jit_log(&jit, error.text);
    sg_jit_time(&jit, start_ns);
    if (!r)
        *module = SG_HANDLE(CUmodule, m);
    return sg_leave(r);
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    return load("cuModuleLoadData", module, (struct source){.data = image}, 0, NULL, NULL);
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count, CUjit_option *options,
                            void **values)
{
    return load("cuModuleLoadDataEx", module, (struct source){.data = image}, count, options, values);
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
    return load("cuModuleLoadFatBinary", module, (struct source){.data = image}, 0, NULL, NULL);
}

CUresult cuModuleLoad(CUmodule *module, const char *path)
{
    return load("cuModuleLoad", module, (struct source){.path = path}, 0, NULL, NULL);
}

CUresult cuModuleUnload(CUmodule handle)
{
    struct sg_context *context;
    CUresult r = sg_enter_context("cuModuleUnload", &context);
    if (r)
        return r;
    struct sg_module *m = SG_FIND(handle, SG_MODULE);
    if (!m)
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    if (m->library) /* it goes with the library */
        return sg_leave(CUDA_ERROR_NOT_PERMITTED);
    uint64_t id = m->object.id;
    if (sg_module_is_busy(m)) {
        sg_wait_context(m->context);
        m = sg_object_find(id, SG_MODULE);
        if (!m)
            return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    }
    sg_module_destroy(m);
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule handle, const char *name)
{
    struct sg_context *context;
    CUresult r = sg_enter_context("cuModuleGetFunction", &context);
    if (r)
        return r;
    if (!function || !name)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    struct sg_module *m = SG_FIND(handle, SG_MODULE);
    if (!m)
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    struct sg_function *f;
    LL_FOREACH(m->functions, f)
    {
        if (!strcmp(f->info->name, name)) {
            *function = SG_HANDLE(CUfunction, f);
            return sg_leave(CUDA_SUCCESS);
        }
    }
    return sg_leave(CUDA_ERROR_NOT_FOUND);
}

CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule handle)
{
    struct sg_context *context;
    CUresult r = sg_enter_context("cuModuleGetFunctionCount", &context);
    if (r)
        return r;
    struct sg_module *m = SG_FIND(handle, SG_MODULE);
    if (!m || !count)
        return sg_leave(m ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE);
    struct sg_function *f;
    LL_COUNT(m->functions, f, *count);
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned int count, CUmodule handle)
{
    struct sg_context *context;
    CUresult r = sg_enter_context("cuModuleEnumerateFunctions", &context);
    if (r)
        return r;
    struct sg_module *m = SG_FIND(handle, SG_MODULE);
    if (!m || !functions)
        return sg_leave(m ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE);
    unsigned n = 0;
    struct sg_function *f;
    LL_FOREACH(m->functions, f)
    if (n < count)
        functions[n++] = SG_HANDLE(CUfunction, f);
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
    CUresult r = sg_enter_unlocked("cuModuleGetLoadingMode");
    if (r)
        return r;
    if (!mode)
        return CUDA_ERROR_INVALID_VALUE;
    *mode = sg.config.eager ? CU_MODULE_EAGER_LOADING : CU_MODULE_LAZY_LOADING;
    return CUDA_SUCCESS;
}

CUresult sg_module_global(const struct sg_module *m, const char *name, CUdeviceptr *dptr, size_t *bytes)
{
    for (size_t i = 0; i < ptx_module_global_count(m->ptx); i++) {
        const struct ptx_global *g = ptx_module_global_at(m->ptx, i);
        if (strcmp(g->name, name) != 0)
            continue;
        if (dptr)
            *dptr = g->address;
        if (bytes)
            *bytes = g->size_bytes;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_NOT_FOUND;
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *dptr, size_t *bytes, CUmodule handle, const char *name)
{
    struct sg_context *context;
    CUresult r = sg_enter_context("cuModuleGetGlobal", &context);
    if (r)
        return r;
    if (!name || (!dptr && !bytes))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    struct sg_module *m = SG_FIND(handle, SG_MODULE);
    return sg_leave(m ? sg_module_global(m, name, dptr, bytes) : CUDA_ERROR_INVALID_HANDLE);
}
