#include "residency/params.h"

#include "base/lock.h"
#include "residency/layout.h"

#include <stdlib.h>
#include <uthash.h>

struct entry {
    CUfunction function;
    struct hr_params *params;
    UT_hash_handle hh;
};
static struct hr_mutex registry_lock = HR_MUTEX_INIT(HR_RANK_REGISTRY, "functions");
static struct entry *registry;    /* guarded by registry_lock */
static struct hr_params *retired; /* guarded by registry_lock: of functions that are gone */
static _Atomic(uint32_t) generation = 1;

/* A thread's own memory of the functions it launches. */
#define MEMO_SLOTS 16
static _Thread_local struct {
    CUfunction function;
    const struct hr_params *params;
    uint32_t generation;
} memo[MEMO_SLOTS] __attribute__((tls_model("initial-exec")));

/* Which of the two calls knows this handle is known from where it came (hr_params_note_kernel); asking the wrong one with it
 * would hand the driver a pointer of another type. */
static CUresult ask(CUfunction function, bool is_kernel, size_t i, size_t *offset, size_t *size)
{
    return is_kernel ? hr_drv.cuKernelGetParamInfo((CUkernel)function, i, offset, size)
                     : hr_drv.cuFuncGetParamInfo(function, i, offset, size);
}

/* INVALID_VALUE is what follows the last parameter; after any other failure nothing is known: NULL. */
static struct hr_params *learn(CUfunction function, bool is_kernel)
{
    size_t offset, size;
    uint32_t count = 0;
    bool known = is_kernel ? HR_HAS(cuKernelGetParamInfo) : HR_HAS(cuFuncGetParamInfo);
    CUresult r = CUDA_ERROR_INVALID_VALUE;
    struct hr_params *params = known ? NULL : hr_layout_copy(function);
    if (params)
        return params;
    while (known && count < 8192 && (r = ask(function, is_kernel, count, &offset, &size)) == CUDA_SUCCESS)
        count++;
    if (r != CUDA_SUCCESS && r != CUDA_ERROR_INVALID_VALUE)
        return NULL;
    params = malloc(sizeof *params + count * sizeof params->param[0]);
    if (!params)
        return NULL;
    params->known = known;
    params->count = count;
    for (uint32_t i = 0; i < count; i++) {
        if (ask(function, is_kernel, i, &offset, &size) != CUDA_SUCCESS) {
            free(params);
            return NULL;
        }
        params->param[i].offset_bytes = (uint32_t)offset;
        params->param[i].size_bytes = (uint32_t)size;
    }
    return params;
}

static const struct hr_params *look_up(CUfunction function)
{
    struct entry *e = NULL;
    hr_mutex_lock(&registry_lock);
    HASH_FIND_PTR(registry, &function, e);
    hr_mutex_unlock(&registry_lock);
    if (e && e->params)
        return e->params;
    struct hr_params *params = learn(function, e != NULL); /* driver calls: without the lock */
    struct entry *fresh = params ? calloc(1, sizeof *fresh) : NULL;
    if (!fresh)
        return params;
    hr_mutex_lock(&registry_lock);
    HASH_FIND_PTR(registry, &function, e);
    if (e && !e->params) { /* a kernel that was noted */
        e->params = params;
        hr_mutex_unlock(&registry_lock);
        free(fresh);
        return params;
    }
    if (!e) {
        fresh->function = function;
        fresh->params = params;
        HASH_ADD_PTR(registry, function, fresh);
    }
    hr_mutex_unlock(&registry_lock);
    if (!e)
        return params;
    free(fresh);
    free(params);
    return e->params;
}

const struct hr_params *hr_params_of(CUfunction function)
{
    uint32_t now = atomic_load_explicit(&generation, memory_order_acquire);
    size_t slot = ((uintptr_t)function >> 4 ^ (uintptr_t)function >> 10) % MEMO_SLOTS;
    if (memo[slot].function == function && memo[slot].generation == now)
        return memo[slot].params;
    const struct hr_params *params = look_up(function);
    if (!params)
        return NULL;
    memo[slot].function = function;
    memo[slot].params = params;
    memo[slot].generation = now;
    return params;
}

void hr_params_note_kernel(CUkernel kernel)
{
    struct entry *e = NULL, *fresh = calloc(1, sizeof *fresh);
    if (!fresh)
        return;
    fresh->function = (CUfunction)kernel;
    hr_mutex_lock(&registry_lock);
    HASH_FIND_PTR(registry, &fresh->function, e);
    if (!e)
        HASH_ADD_PTR(registry, function, fresh);
    hr_mutex_unlock(&registry_lock);
    if (e)
        free(fresh);
}

/* Layouts stay allocated: a launch on another thread may be reading one. Unloading code is rare. */
void hr_params_forget(void)
{
    hr_mutex_lock(&registry_lock);
    struct entry *e, *next;
    HASH_ITER (hh, registry, e, next) {
        if (e->params) {
            e->params->next_retired = retired;
            retired = e->params;
        }
        HASH_DEL(registry, e); /* NOLINT(clang-analyzer-unix.Malloc): next was read before e is freed */
        free(e);
    }
    atomic_fetch_add(&generation, 1);
    hr_mutex_unlock(&registry_lock);
}
