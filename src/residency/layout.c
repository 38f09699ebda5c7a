#include "residency/layout.h"

#include "base/lock.h"
#include "residency/image.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <uthash.h>

#define FILE_MOST ((off_t)1 << 30)

struct kernel {
    struct hr_params *params;
    UT_hash_handle hh;
    char name[];
};
struct code {
    void *handle;
    struct kernel *kernels;
    UT_hash_handle hh;
};
struct function {
    CUfunction handle;
    void *code;
    struct hr_params *params; /* its own */
    UT_hash_handle hh;
};
static struct hr_mutex layouts_lock = HR_MUTEX_INIT(HR_RANK_REGISTRY, "layouts");
static struct code *codes;         /* guarded by layouts_lock */
static struct function *functions; /* guarded by layouts_lock */

bool hr_layout_matters(void)
{
    return !HR_HAS(cuFuncGetParamInfo);
}

static struct hr_params *copy_of(const struct hr_params *params)
{
    size_t bytes = sizeof *params + params->count * sizeof params->param[0];
    struct hr_params *copy = malloc(bytes);
    if (copy)
        memcpy(copy, params, bytes);
    return copy;
}

static void drop_kernels(struct kernel *kernels)
{
    struct kernel *k, *next;
    HASH_ITER (hh, kernels, k, next) {
        HASH_DEL(kernels, k); /* NOLINT(clang-analyzer-unix.Malloc): next was read before k is freed */
        free(k->params);
        free(k);
    }
}

/* Adds to a list of kernels that nobody else sees yet. */
static void add_kernel(const struct hr_image_kernel *found, void *arg)
{
    struct kernel **kernels = arg, *k;
    HASH_FIND(hh, *kernels, found->name, found->name_bytes, k);
    if (k)
        return;
    struct hr_params *params = malloc(sizeof *params + found->count * sizeof params->param[0]);
    k = malloc(sizeof *k + found->name_bytes + 1);
    if (!params || !k) {
        free(params);
        free(k);
        return;
    }
    *params = (struct hr_params){.known = true, .count = found->count};
    for (uint32_t i = 0; i < found->count; i++) {
        params->param[i].offset_bytes = found->param[i].offset_bytes;
        params->param[i].size_bytes = found->param[i].size_bytes;
    }
    *k = (struct kernel){.params = params};
    memcpy(k->name, found->name, found->name_bytes);
    k->name[found->name_bytes] = 0;
    HASH_ADD(hh, *kernels, name, found->name_bytes, k);
}

static struct code *code_of_locked(void *handle) HR_REQUIRES(layouts_lock)
{
    struct code *code = NULL;
    HASH_FIND_PTR(codes, &handle, code);
    return code;
}

/* Takes the kernels over. */
static void put_code(void *handle, struct kernel *kernels)
{
    struct code *fresh = calloc(1, sizeof *fresh);
    hr_mutex_lock(&layouts_lock);
    struct code *code = code_of_locked(handle);
    if (!code && fresh) {
        code = fresh;
        code->handle = handle;
        HASH_ADD_PTR(codes, handle, code);
        fresh = NULL;
    }
    struct kernel *old = code ? code->kernels : kernels;
    if (code)
        code->kernels = kernels;
    hr_mutex_unlock(&layouts_lock);
    drop_kernels(old);
    free(fresh);
}

static void loaded(void *code, const void *image, size_t bytes)
{
    struct kernel *kernels = NULL;
    hr_image_each(image, bytes, add_kernel, &kernels);
    put_code(code, kernels);
}

void hr_layout_loaded(void *code, const void *image)
{
    if (hr_layout_matters())
        loaded(code, image, SIZE_MAX);
}

void hr_layout_loaded_file(void *code, const char *path)
{
    struct stat s;
    int fd = hr_layout_matters() && path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    char *bytes = fd >= 0 && syscall(SYS_fstat, fd, &s) == 0 && s.st_size > 0 && s.st_size < FILE_MOST
                      ? malloc((size_t)s.st_size)
                      : NULL;
    off_t have = 0;
    for (ssize_t n = 1; bytes && have < s.st_size && n > 0; have += n > 0 ? n : 0)
        n = pread(fd, bytes + have, (size_t)(s.st_size - have), have);
    if (bytes && have == s.st_size)
        loaded(code, bytes, (size_t)have);
    free(bytes);
    if (fd >= 0)
        close(fd);
}

void hr_layout_same_code(void *library, void *module)
{
    struct kernel *kernels = NULL, *k, *next;
    if (!hr_layout_matters())
        return;
    hr_mutex_lock(&layouts_lock);
    struct code *code = code_of_locked(library);
    struct kernel *first = code ? code->kernels : NULL;
    HASH_ITER (hh, first, k, next) {
        size_t name_bytes = strlen(k->name);
        struct kernel *copy = malloc(sizeof *copy + name_bytes + 1);
        struct hr_params *params = copy ? copy_of(k->params) : NULL;
        if (!params) {
            free(copy);
            continue;
        }
        *copy = (struct kernel){.params = params};
        memcpy(copy->name, k->name, name_bytes + 1);
        HASH_ADD(hh, kernels, name, name_bytes, copy);
    }
    hr_mutex_unlock(&layouts_lock);
    put_code(module, kernels);
}

static void drop_function_locked(CUfunction handle) HR_REQUIRES(layouts_lock)
{
    struct function *f = NULL;
    HASH_FIND_PTR(functions, &handle, f);
    if (!f)
        return;
    HASH_DEL(functions, f);
    free(f->params);
    free(f);
}

/* Takes params over; NULL: it is not known. What the handle was before went with its context. */
static void put_function_locked(CUfunction handle, void *code, struct hr_params *params) HR_REQUIRES(layouts_lock)
{
    drop_function_locked(handle);
    struct function *f = params ? calloc(1, sizeof *f) : NULL;
    if (!f) {
        free(params);
        return;
    }
    f->handle = handle;
    f->code = code;
    f->params = params;
    HASH_ADD_PTR(functions, handle, f);
}

void hr_layout_named(void *code_handle, const char *name, CUfunction function)
{
    struct kernel *k = NULL;
    if (!hr_layout_matters() || !name)
        return;
    hr_mutex_lock(&layouts_lock);
    struct code *code = code_of_locked(code_handle);
    if (code)
        HASH_FIND(hh, code->kernels, name, strlen(name), k);
    put_function_locked(function, code_handle, k ? copy_of(k->params) : NULL);
    hr_mutex_unlock(&layouts_lock);
}

void hr_layout_same(CUfunction kernel, CUfunction function)
{
    struct function *f = NULL;
    if (!hr_layout_matters())
        return;
    hr_mutex_lock(&layouts_lock);
    HASH_FIND_PTR(functions, &kernel, f);
    if (f && kernel != function)
        put_function_locked(function, f->code, copy_of(f->params));
    hr_mutex_unlock(&layouts_lock);
}

void hr_layout_unloaded(void *handle)
{
    struct function *f, *next;
    if (!hr_layout_matters())
        return;
    hr_mutex_lock(&layouts_lock);
    struct code *code = code_of_locked(handle);
    if (code)
        HASH_DEL(codes, code);
    HASH_ITER (hh, functions, f, next) {
        if (f->code != handle)
            continue;
        HASH_DEL(functions, f); /* NOLINT(clang-analyzer-unix.Malloc): next was read before f is freed */
        free(f->params);
        free(f);
    }
    hr_mutex_unlock(&layouts_lock);
    if (code)
        drop_kernels(code->kernels);
    free(code);
}

struct hr_params *hr_layout_copy(CUfunction function)
{
    struct function *f = NULL;
    hr_mutex_lock(&layouts_lock);
    HASH_FIND_PTR(functions, &function, f);
    struct hr_params *params = f ? copy_of(f->params) : NULL;
    hr_mutex_unlock(&layouts_lock);
    return params;
}
