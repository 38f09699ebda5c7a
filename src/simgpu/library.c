/*
 * Libraries and kernels: code that belongs to no context. A context gets its own module of a library when it first needs
 * one (or at once with CUDA_MODULE_LOADING=EAGER), and is charged for it then. The module is found among the context's
 * modules by its library, so that it may go with either.
 */
#include "simgpu/launch.h"
#include "simgpu/module.h"

#include <stdlib.h>
#include <string.h>

struct sg_entry { /* behind a CUkernel */
    struct sg_object object;
    struct sg_library *library;
    const struct ptx_function_info *info; /* of the library's prototype */
    int dynamic_shared_max[SG_MAX_DEVICES], carveout[SG_MAX_DEVICES];
    struct sg_entry *next;
};

struct sg_library {
    struct sg_object object;
    struct sg_image *image;       /* parsed anew for each context */
    struct ptx_module *prototype; /* tells names and layouts; never run */
    struct sg_entry *entries;
    unsigned users; /* threads that parse the image with sg.lock released */
    bool unloaded;
    struct sg_library *prev, *next;
};

static struct sg_library *libraries; /* guarded by sg.lock */

int sg_entry_dynamic_max(const struct sg_entry *entry, int device)
{
    return entry->dynamic_shared_max[device];
}

int sg_entry_carveout(const struct sg_entry *entry, int device)
{
    return entry->carveout[device];
}

/* ---- life ---- */

static void library_free(struct sg_library *lib)
{
    struct sg_entry *e, *next;
    LL_FOREACH_SAFE(lib->entries, e, next)
    free(e);
    ptx_module_destroy(lib->prototype);
    sg_image_destroy(lib->image);
    free(lib);
}

static CUresult add_entries(struct sg_library *lib)
{
    for (size_t i = 0; i < ptx_module_function_count(lib->prototype); i++) {
        const struct ptx_function_info *info = ptx_function_info(ptx_module_function_at(lib->prototype, i));
        if (!info->is_entry)
            continue;
        struct sg_entry *e = calloc(1, sizeof *e);
        if (!e)
            return CUDA_ERROR_OUT_OF_MEMORY;
        e->library = lib;
        e->info = info;
        for (int d = 0; d < SG_MAX_DEVICES; d++) {
            e->dynamic_shared_max[d] = sg_static_shared_max() - (int)info->static_shared_bytes;
            e->carveout[d] = -1;
        }
        LL_APPEND(lib->entries, e);
    }
    return CUDA_SUCCESS;
}

static struct sg_module *module_in(const struct sg_library *lib, const struct sg_context *context)
{
    struct sg_module *m;
    DL_FOREACH(context->modules, m)
    if (m->library == lib)
        return m;
    return NULL;
}

/* Ties a context's new module to its library: each function to its kernel. */
static void tie(struct sg_module *m, struct sg_library *lib)
{
    struct sg_entry *e = lib->entries;
    struct sg_function *f;
    m->library = lib;
    LL_FOREACH(m->functions, f)
    { /* the same text: the same order */
        f->entry = e;
        e = e->next;
    }
}

static void leave_library(struct sg_library *lib)
{
    if (!--lib->users && lib->unloaded)
        library_free(lib);
}

/*
 * The context's module of a library, loaded now if it is not yet. sg.lock is released while the image is parsed; on success
 * both context and library still live.
 */
static CUresult load_into(struct sg_library *lib, struct sg_context *context, struct sg_module **module_out)
{
    struct sg_module *m = module_in(lib, context);
    if (m) {
        *module_out = m;
        return CUDA_SUCCESS;
    }
    uint64_t context_id = context->object.id;
    struct ptx_module *ptx = NULL;
    struct ptx_error error = {.text = ""};
    lib->users++;
    pthread_mutex_unlock(&sg.lock);
    CUresult r = sg_image_parse(lib->image, &ptx, &error);
    pthread_mutex_lock(&sg.lock);
    context = sg_object_find(context_id, SG_CONTEXT);
    if (!r && lib->unloaded)
        r = CUDA_ERROR_INVALID_HANDLE;
    if (!r && (!context || !context->active || context->finalizing))
        r = CUDA_ERROR_CONTEXT_IS_DESTROYED;
    m = r ? NULL : module_in(lib, context); /* another thread may have been faster */
    if (r || m)
        ptx_module_destroy(ptx);
    else
        r = sg_module_build(context, ptx, &m, &error);
    if (!r && !m->library)
        tie(m, lib);
    leave_library(lib);
    if (r && *error.text)
        sg_log(SG_LOG_ERROR, "loading a library: %s", error.text);
    *module_out = m;
    return r;
}

CUresult sg_libraries_load(struct sg_context *context)
{
    if (!sg.config.eager)
        return CUDA_SUCCESS;
    uint64_t context_id = context->object.id;
    CUresult r = CUDA_SUCCESS;
    for (bool again = true; again && !r;) { /* loading releases the lock: the list may have changed */
        again = false;
        struct sg_library *lib;
        struct sg_module *m;
        DL_FOREACH(libraries, lib)
        {
            if (module_in(lib, context))
                continue;
            r = load_into(lib, context, &m);
            if (r == CUDA_ERROR_INVALID_HANDLE) /* unloaded meanwhile */
                r = CUDA_SUCCESS;
            again = true;
            break;
        }
        if (!sg_object_find(context_id, SG_CONTEXT))
            return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    }
    return r;
}

static CUresult load_into_all(struct sg_library *lib)
{
    uint64_t id = lib->object.id;
    CUresult r = CUDA_SUCCESS;
    for (bool again = true; again && !r;) {
        again = false;
        struct sg_context *c;
        struct sg_module *m;
        DL_FOREACH(sg.contexts, c)
        {
            if (c->finalizing || c->sticky || module_in(lib, c))
                continue;
            r = load_into(lib, c, &m);
            if (r == CUDA_ERROR_CONTEXT_IS_DESTROYED)
                r = CUDA_SUCCESS;
            again = true;
            break;
        }
        if (!sg_object_find(id, SG_LIBRARY))
            return CUDA_ERROR_INVALID_HANDLE;
    }
    return r;
}

/* ---- loading ---- */

struct request {
    const void *code; /* or: */
    const char *path;
    CUjit_option *options;
    void **values;
    unsigned count;
    CUlibraryOption *library_options;
    void **library_values;
    unsigned library_count;
};

static CUresult check_library_options(const struct request *q)
{
    if (q->library_count && (!q->library_options || !q->library_values))
        return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < q->library_count; i++) {
        if (q->library_options[i] == CU_LIBRARY_HOST_UNIVERSAL_FUNCTION_AND_DATA_TABLE)
            return CUDA_ERROR_NOT_SUPPORTED;
        if (q->library_options[i] != CU_LIBRARY_BINARY_IS_PRESERVED || q->path)
            return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

/* Needs no lock. */
static CUresult make(const struct request *q, struct sg_library *lib, struct ptx_error *error)
{
    CUresult r;
    if (q->path) {
        size_t bytes;
        char *text = sg_file_read(q->path, &bytes);
        r = text ? sg_image_read(text, bytes, &lib->image, error) : CUDA_ERROR_FILE_NOT_FOUND;
        free(text);
    } else {
        r = sg_image_read(q->code, SG_BYTES_UNKNOWN, &lib->image, error);
    }
    if (!r)
        r = sg_image_parse(lib->image, &lib->prototype, error);
    return r ? r : add_entries(lib);
}

static CUresult publish(struct sg_library *lib)
{
    sg_object_add(&lib->object, SG_LIBRARY);
    struct sg_entry *e;
    LL_FOREACH(lib->entries, e)
    sg_object_add(&e->object, SG_ENTRY);
    DL_APPEND(libraries, lib);
    return sg.config.eager ? load_into_all(lib) : CUDA_SUCCESS;
}

/* Takes it out of the world; what threads still parse stays until they are through. */
static void retire(struct sg_library *lib)
{
    struct sg_entry *e;
    LL_FOREACH(lib->entries, e)
    sg_object_remove(&e->object);
    sg_object_remove(&lib->object);
    DL_DELETE(libraries, lib);
    lib->unloaded = true;
    lib->users++;
    leave_library(lib);
}

static void destroy_modules(struct sg_library *lib)
{
    struct sg_context *c;
    DL_FOREACH(sg.contexts, c)
    {
        struct sg_module *m = module_in(lib, c);
        if (m)
            sg_module_destroy(m);
    }
}

static CUresult load(const char *api, CUlibrary *library, const struct request *q)
{
    CUresult r = sg_enter_unlocked(api);
    if (r)
        return r;
    struct sg_jit jit;
    r = sg_jit_read(&jit, q->count, q->options, q->values);
    if (!r)
        r = check_library_options(q);
    if (!library || (!q->code && !q->path))
        r = CUDA_ERROR_INVALID_VALUE;
    if (r)
        return r;
    uint64_t start_ns = sg_now_ns();
    struct ptx_error error = {.text = ""};
    struct sg_library *lib = calloc(1, sizeof *lib);
    r = lib ? sg_image_check_target(jit.target, &error) : CUDA_ERROR_OUT_OF_MEMORY;
    if (!r)
        r = make(q, lib, &error);
    sg_jit_log(&jit, error.text);
    sg_jit_time(&jit, start_ns);
    if (r) {
        if (*error.text)
            sg_log(SG_LOG_ERROR, "%s: %s", api, error.text);
        if (lib)
            library_free(lib);
        return r;
    }
    pthread_mutex_lock(&sg.lock);
    r = publish(lib);
    if (!r) {
        *library = SG_HANDLE(CUlibrary, lib);
    } else if (r != CUDA_ERROR_INVALID_HANDLE) {
        destroy_modules(lib);
        retire(lib);
    }
    return sg_leave(r);
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *options, void **values,
                           unsigned int count, CUlibraryOption *library_options, void **library_values,
                           unsigned int library_count)
{
    struct request q = {code, NULL, options, values, count, library_options, library_values, library_count};
    return load("cuLibraryLoadData", library, &q);
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *options, void **values,
                               unsigned int count, CUlibraryOption *library_options, void **library_values,
                               unsigned int library_count)
{
    struct request q = {NULL, path, options, values, count, library_options, library_values, library_count};
    return load("cuLibraryLoadFromFile", library, &q);
}

CUresult cuLibraryUnload(CUlibrary handle)
{
    CUresult r = sg_enter("cuLibraryUnload");
    if (r)
        return r;
    struct sg_library *lib = SG_FIND(handle, SG_LIBRARY);
    if (!lib)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    for (bool busy = true; busy;) { /* waiting releases the lock */
        struct sg_context *c;
        busy = false;
        DL_FOREACH(sg.contexts, c)
        {
            struct sg_module *m = module_in(lib, c);
            if (!m || !sg_module_is_busy(m))
                continue;
            sg_wait_context(c);
            busy = true;
            break;
        }
        if (SG_FIND(handle, SG_LIBRARY) != lib) /* another thread unloaded it */
            return sg_leave(CUDA_ERROR_INVALID_VALUE);
    }
    destroy_modules(lib);
    retire(lib);
    return sg_leave(CUDA_SUCCESS);
}

/* ---- what is in a library ---- */

static CUresult enter_library(const char *api, CUlibrary handle, struct sg_library **lib_out)
{
    CUresult r = sg_enter(api);
    if (r)
        return r;
    *lib_out = SG_FIND(handle, SG_LIBRARY);
    return *lib_out ? CUDA_SUCCESS : sg_leave(CUDA_ERROR_INVALID_HANDLE);
}

CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary handle, const char *name)
{
    struct sg_library *lib;
    CUresult r = enter_library("cuLibraryGetKernel", handle, &lib);
    if (r)
        return r;
    if (!kernel || !name)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    struct sg_entry *e;
    LL_FOREACH(lib->entries, e)
    {
        if (!strcmp(e->info->name, name)) {
            *kernel = SG_HANDLE(CUkernel, e);
            return sg_leave(CUDA_SUCCESS);
        }
    }
    return sg_leave(CUDA_ERROR_NOT_FOUND);
}

CUresult cuLibraryGetKernelCount(unsigned int *count, CUlibrary handle)
{
    struct sg_library *lib;
    CUresult r = enter_library("cuLibraryGetKernelCount", handle, &lib);
    if (r)
        return r;
    if (!count)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    const struct sg_entry *e;
    LL_COUNT(lib->entries, e, *count);
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int count, CUlibrary handle)
{
    struct sg_library *lib;
    CUresult r = enter_library("cuLibraryEnumerateKernels", handle, &lib);
    if (r)
        return r;
    if (!kernels)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    unsigned n = 0;
    struct sg_entry *e;
    LL_FOREACH(lib->entries, e)
    if (n < count)
        kernels[n++] = SG_HANDLE(CUkernel, e);
    return sg_leave(CUDA_SUCCESS);
}

/* For what a library has in the current context: that context's module. On failure sg.lock is not held. */
static CUresult enter_module(const char *api, CUlibrary handle, bool arguments_ok, struct sg_module **module_out)
{
    struct sg_context *context;
    CUresult r = sg_enter_context(api, &context);
    if (r)
        return r;
    struct sg_library *lib = SG_FIND(handle, SG_LIBRARY);
    r = !lib ? CUDA_ERROR_INVALID_HANDLE : !arguments_ok ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    if (!r)
        r = load_into(lib, context, module_out);
    return r ? sg_leave(r) : CUDA_SUCCESS;
}

CUresult cuLibraryGetModule(CUmodule *module, CUlibrary handle)
{
    struct sg_module *m;
    CUresult r = enter_module("cuLibraryGetModule", handle, module != NULL, &m);
    if (r)
        return r;
    *module = SG_HANDLE(CUmodule, m);
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuLibraryGetGlobal(CUdeviceptr *dptr, size_t *bytes, CUlibrary handle, const char *name)
{
    struct sg_module *m;
    CUresult r = enter_module("cuLibraryGetGlobal", handle, name && (dptr || bytes), &m);
    return r ? r : sg_leave(sg_module_global(m, name, dptr, bytes));
}

/* No device here has managed memory, and none calls functions of the host: PTX that has such things is not loaded. */
static CUresult not_found(const char *api, CUlibrary handle, bool arguments_ok)
{
    struct sg_library *lib;
    CUresult r = enter_library(api, handle, &lib);
    if (r)
        return r;
    return sg_leave(arguments_ok ? CUDA_ERROR_NOT_FOUND : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuLibraryGetManaged(CUdeviceptr *dptr, size_t *bytes, CUlibrary handle, const char *name)
{
    return not_found("cuLibraryGetManaged", handle, name && (dptr || bytes));
}

CUresult cuLibraryGetUnifiedFunction(void **function, CUlibrary handle, const char *symbol)
{
    return not_found("cuLibraryGetUnifiedFunction", handle, function && symbol);
}

/* ---- kernels ---- */

/* The context's function of a kernel; may release sg.lock. */
static CUresult entry_in(struct sg_entry *e, struct sg_context *context, struct sg_function **function_out)
{
    struct sg_module *m;
    CUresult r = load_into(e->library, context, &m);
    if (r)
        return r;
    struct sg_function *f;
    LL_FOREACH(m->functions, f)
    if (f->entry == e)
        break;
    *function_out = f;
    return f ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult sg_function_in(CUfunction handle, struct sg_context *context, struct sg_function **function_out)
{
    struct sg_function *f = SG_FIND(handle, SG_FUNCTION);
    if (f) {
        *function_out = f;
        return f->module->context == context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    }
    struct sg_entry *e = SG_FIND(handle, SG_ENTRY);
    return e ? entry_in(e, context, function_out) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult sg_enter_function(const char *api, CUfunction handle, struct sg_function **function_out)
{
    struct sg_context *context;
    CUresult r = sg_enter_context(api, &context);
    if (r)
        return r;
    struct sg_function *f = SG_FIND(handle, SG_FUNCTION);
    *function_out = f; /* of whichever context: only a launch asks whose it is */
    r = f ? CUDA_SUCCESS : sg_function_in(handle, context, function_out);
    return r ? sg_leave(r) : CUDA_SUCCESS;
}

CUresult cuKernelGetFunction(CUfunction *function, CUkernel handle)
{
    struct sg_context *context;
    CUresult r = sg_enter_context("cuKernelGetFunction", &context);
    if (r)
        return r;
    struct sg_entry *e = SG_FIND(handle, SG_ENTRY);
    struct sg_function *f;
    r = !e ? CUDA_ERROR_INVALID_HANDLE : !function ? CUDA_ERROR_INVALID_VALUE : entry_in(e, context, &f);
    if (!r)
        *function = SG_HANDLE(CUfunction, f);
    return sg_leave(r);
}

static CUresult enter_entry(const char *api, CUkernel handle, struct sg_entry **entry_out)
{
    CUresult r = sg_enter(api);
    if (r)
        return r;
    *entry_out = SG_FIND(handle, SG_ENTRY);
    return *entry_out ? CUDA_SUCCESS : sg_leave(CUDA_ERROR_INVALID_HANDLE);
}

CUresult cuKernelGetLibrary(CUlibrary *library, CUkernel handle)
{
    struct sg_entry *e;
    CUresult r = enter_entry("cuKernelGetLibrary", handle, &e);
    if (r)
        return r;
    if (!library)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *library = SG_HANDLE(CUlibrary, e->library);
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuKernelGetAttribute(int *value, CUfunction_attribute attribute, CUkernel handle, CUdevice device)
{
    struct sg_entry *e;
    CUresult r = enter_entry("cuKernelGetAttribute", handle, &e);
    if (r)
        return r;
    if (!value)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    if (device < 0 || device >= sg.device_count)
        return sg_leave(CUDA_ERROR_INVALID_DEVICE);
    struct sg_attributes from = {e->info, ptx_module_target(e->library->prototype), e->dynamic_shared_max[device],
                                 e->carveout[device]};
    return sg_leave(sg_attribute_get(&from, attribute, value));
}

CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel handle, CUdevice device)
{
    struct sg_entry *e;
    CUresult r = enter_entry("cuKernelSetAttribute", handle, &e);
    if (r)
        return r;
    if (device < 0 || device >= sg.device_count)
        return sg_leave(CUDA_ERROR_INVALID_DEVICE);
    return sg_leave(sg_attribute_set(e->info, attribute, value, &e->dynamic_shared_max[device], &e->carveout[device]));
}

CUresult cuKernelSetCacheConfig(CUkernel handle, CUfunc_cache config, CUdevice device)
{
    struct sg_entry *e;
    CUresult r = enter_entry("cuKernelSetCacheConfig", handle, &e);
    if (r)
        return r;
    if (device < 0 || device >= sg.device_count)
        return sg_leave(CUDA_ERROR_INVALID_DEVICE);
    /* A preference, and there are no caches here to follow it. */
    return sg_leave((unsigned)config > CU_FUNC_CACHE_PREFER_EQUAL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS);
}

CUresult cuKernelGetName(const char **name, CUkernel handle)
{
    if (!name || !handle) {
        CUresult r = sg_enter_unlocked("cuKernelGetName");
        return r ? r : CUDA_ERROR_INVALID_VALUE;
    }
    struct sg_entry *e;
    CUresult r = enter_entry("cuKernelGetName", handle, &e);
    if (r)
        return r;
    *name = e->info->name;
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuKernelGetParamInfo(CUkernel handle, size_t index, size_t *offset, size_t *size)
{
    struct sg_entry *e;
    CUresult r = enter_entry("cuKernelGetParamInfo", handle, &e);
    if (r)
        return r;
    if (!offset || index >= e->info->param_count)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *offset = e->info->params[index].offset_bytes;
    if (size)
        *size = e->info->params[index].size_bytes;
    return sg_leave(CUDA_SUCCESS);
}
