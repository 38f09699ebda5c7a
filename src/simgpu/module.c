/* Modules: PTX text in, functions and variables out. */
#include "simgpu/sim.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct jit_logs {
    char *error, *info;
    size_t error_bytes, info_bytes;
    size_t error_index, info_index; /* of the option that takes the size written; SIZE_MAX = none */
    size_t time_index;
};

static void read_options(unsigned count, const CUjit_option *options, void **values, struct jit_logs *logs)
{
    *logs = (struct jit_logs){.error_index = SIZE_MAX, .info_index = SIZE_MAX, .time_index = SIZE_MAX};
    for (unsigned i = 0; values && i < count; i++) {
        switch ((int)options[i]) {
        case CU_JIT_ERROR_LOG_BUFFER: logs->error = values[i]; break;
        case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
            logs->error_bytes = (unsigned)(uintptr_t)values[i];
            logs->error_index = i;
            break;
        case CU_JIT_INFO_LOG_BUFFER: logs->info = values[i]; break;
        case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
            logs->info_bytes = (unsigned)(uintptr_t)values[i];
            logs->info_index = i;
            break;
        case CU_JIT_WALL_TIME: logs->time_index = i; break;
        default: break;
        }
    }
}

static void write_log(char *buffer, size_t bytes, size_t index, void **values, const char *text)
{
    size_t length = 0;
    if (buffer && bytes) {
        length = strlen(text);
        if (length > bytes - 1)
            length = bytes - 1;
        memcpy(buffer, text, length);
        buffer[length] = 0;
    }
    if (values && index != SIZE_MAX)
        values[index] = (void *)(uintptr_t)length;
}

/* The version of PTX that the text asks for, times ten; 0 = it is not PTX. */
static unsigned ptx_version(const char *text)
{
    const char *at = strstr(text, ".version");
    if (!at)
        return 0;
    char *end, *minor;
    unsigned long major = strtoul(at + 8, &end, 10);
    if (*end != '.' || major > 99)
        return 0;
    unsigned long rest = strtoul(end + 1, &minor, 10);
    return minor == end + 1 || rest > 9 ? 0 : (unsigned)(major * 10 + rest);
}

static CUresult parse(const char *text, struct ptx_module **ptx_out, struct ptx_error *error)
{
    if (!memcmp(text,
                "\x7f"
                "ELF",
                4)) {
        snprintf(error->text, sizeof error->text, "this is a compiled binary; only PTX text can be loaded here");
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    unsigned version = ptx_version(text);
    if (!version) {
        snprintf(error->text, sizeof error->text, "not PTX: there is no .version directive");
        return CUDA_ERROR_INVALID_IMAGE;
    }
    if (version > 90) {
        snprintf(error->text, sizeof error->text, "PTX version %u.%u is newer than 9.0", version / 10, version % 10);
        return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
    }
    if (ptx_module_parse(text, strlen(text), ptx_out, error))
        return CUDA_ERROR_INVALID_PTX;
    const struct sg_model *m = sg.config.model;
    unsigned target = ptx_module_target(*ptx_out);
    if (target > (unsigned)(m->major * 10 + m->minor)) {
        ptx_module_destroy(*ptx_out);
        snprintf(error->text, sizeof error->text, "target sm_%u is newer than this device's sm_%d%d", target, m->major,
                 m->minor);
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    }
    return CUDA_SUCCESS;
}

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
        if (g->size_bytes && !(g->init ? sg_copy_execute(&init, &moved, &bad) : sg_fill_execute(&zero, &bad)))
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

void sg_module_destroy(struct sg_module *m)
{
    for (size_t i = 0; m->globals && i < ptx_module_global_count(m->ptx); i++)
        if (m->globals[i])
            sg_alloc_destroy(m->globals[i]);
    free(m->globals);
    struct sg_function *f, *next;
    LL_FOREACH_SAFE(m->functions, f, next)
    {
        sg_object_remove(&f->object);
        free(f);
    }
    DL_DELETE(m->context->modules, m);
    if (m->object.id)
        sg_object_remove(&m->object);
    sg_vram_give(m->context->device, m->charge_bytes);
    ptx_module_destroy(m->ptx);
    free(m);
}

static CUresult build(struct sg_context *context, struct ptx_module *ptx, struct sg_module **module_out,
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
    CUresult r = sg_vram_take(context->device, code);
    if (!r) {
        m->charge_bytes = code;
        r = place_globals(m, error);
    }
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

static CUresult load(const char *function, CUmodule *module, const char *text, unsigned count, CUjit_option *options,
                     void **values)
{
    struct sg_context *context;
    CUresult r = sg_enter_context(function, &context);
    if (r)
        return r;
    if (!module || !text || (count && (!options || !values)))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    uint64_t id = context->object.id, start_ns = sg_now_ns();
    struct jit_logs logs;
    struct ptx_error error = {.text = ""};
    struct ptx_module *ptx = NULL;
    read_options(count, options, values, &logs);
    pthread_mutex_unlock(&sg.lock); /* parsing takes milliseconds and touches nothing shared */
    r = parse(text, &ptx, &error);
    pthread_mutex_lock(&sg.lock);
    context = sg_object_find(id, SG_CONTEXT);
    if (!r && (!context || !context->active)) {
        ptx_module_destroy(ptx);
        return sg_leave(CUDA_ERROR_CONTEXT_IS_DESTROYED);
    }
    struct sg_module *m = NULL;
    if (!r)
        r = build(context, ptx, &m, &error);
    if (r && *error.text)
        sg_log(SG_LOG_ERROR, "%s: %s", function, error.text);
    write_log(logs.error, logs.error_bytes, logs.error_index, values, error.text);
    write_log(logs.info, logs.info_bytes, logs.info_index, values, "");
    if (values && logs.time_index != SIZE_MAX) {
        float ms = (float)(sg_now_ns() - start_ns) * 1e-6f;
        memcpy(&values[logs.time_index], &ms, sizeof ms);
    }
    if (!r)
        *module = SG_HANDLE(CUmodule, m);
    return sg_leave(r);
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    return load("cuModuleLoadData", module, image, 0, NULL, NULL);
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count, CUjit_option *options,
                            void **values)
{
    return load("cuModuleLoadDataEx", module, image, count, options, values);
}

static char *read_file(const char *path)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return NULL;
    size_t room = 1 << 16, bytes = 0;
    char *text = malloc(room + 8);
    while (text) {
        bytes += fread(text + bytes, 1, room - bytes, f);
        if (bytes < room)
            break;
        char *more = realloc(text, room * 2 + 8);
        if (!more)
            free(text);
        text = more;
        room *= 2;
    }
    bool bad = ferror(f);
    fclose(f);
    if (bad) {
        free(text);
        errno = EIO;
        return NULL;
    }
    if (text)
        memset(text + bytes, 0, 8);
    return text;
}

CUresult cuModuleLoad(CUmodule *module, const char *path)
{
    CUresult r = sg_enter_unlocked("cuModuleLoad");
    if (r)
        return r;
    if (!module || !path)
        return CUDA_ERROR_INVALID_VALUE;
    char *text = read_file(path);
    if (!text)
        return CUDA_ERROR_FILE_NOT_FOUND;
    r = load("cuModuleLoad's image", module, text, 0, NULL, NULL);
    free(text);
    return r;
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
    uint64_t id = m->object.id;
    bool busy = false;
    struct sg_function *f;
    LL_FOREACH(m->functions, f)
    busy |= f->in_flight != 0;
    if (busy) {
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
    *mode = CU_MODULE_EAGER_LOADING;
    return CUDA_SUCCESS;
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *dptr, size_t *bytes, CUmodule handle, const char *name)
{
    struct sg_context *context;
    CUresult r = sg_enter_context("cuModuleGetGlobal", &context);
    if (r)
        return r;
    if (!name)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    struct sg_module *m = SG_FIND(handle, SG_MODULE);
    if (!m)
        return sg_leave(CUDA_ERROR_INVALID_HANDLE);
    for (size_t i = 0; i < ptx_module_global_count(m->ptx); i++) {
        struct ptx_global *g = ptx_module_global_at(m->ptx, i);
        if (strcmp(g->name, name) != 0)
            continue;
        if (dptr)
            *dptr = g->address;
        if (bytes)
            *bytes = g->size_bytes;
        return sg_leave(CUDA_SUCCESS);
    }
    return sg_leave(CUDA_ERROR_NOT_FOUND);
}
