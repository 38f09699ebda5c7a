/* Functions: attributes, parameter layout, occupancy. */
#include "simgpu/sim.h"

#include <string.h>

static CUresult enter_function(const char *api, CUfunction handle, struct sg_function **function_out)
{
    struct sg_context *context;
    CUresult r = sg_enter_context(api, &context);
    if (r)
        return r;
    *function_out = SG_FIND(handle, SG_FUNCTION);
    return *function_out ? CUDA_SUCCESS : sg_leave(CUDA_ERROR_INVALID_HANDLE);
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction handle)
{
    struct sg_function *f;
    CUresult r = enter_function("cuFuncGetAttribute", handle, &f);
    if (r)
        return r;
    if (!value)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    const struct ptx_function_info *i = f->info;
    int target = (int)ptx_module_target(f->module->ptx);
    switch ((int)attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = (int)i->max_threads; break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *value = (int)i->static_shared_bytes; break;
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES: *value = 0; break;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: *value = (int)i->local_bytes; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = (int)i->register_count; break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION: *value = target; break;
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = sg.config.model->major * 10 + sg.config.model->minor; break;
    case CU_FUNC_ATTRIBUTE_CACHE_MODE_CA: *value = 0; break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = f->dynamic_shared_max; break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: *value = f->carveout; break;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE: *value = 0; break;
    default: return sg_leave(CUDA_ERROR_INVALID_VALUE);
    }
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value)
{
    struct sg_function *f;
    CUresult r = enter_function("cuFuncSetAttribute", handle, &f);
    if (r)
        return r;
    if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
        if (value < 0 || value > sg.config.model->shared_optin_bytes - (int)f->info->static_shared_bytes)
            return sg_leave(CUDA_ERROR_INVALID_VALUE);
        f->dynamic_shared_max = value;
        return sg_leave(CUDA_SUCCESS);
    }
    if (attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT) {
        if (value < -1 || value > 100)
            return sg_leave(CUDA_ERROR_INVALID_VALUE);
        f->carveout = value;
        return sg_leave(CUDA_SUCCESS);
    }
    return sg_leave(CUDA_ERROR_INVALID_VALUE);
}

CUresult cuFuncSetCacheConfig(CUfunction handle, CUfunc_cache config)
{
    struct sg_function *f;
    CUresult r = enter_function("cuFuncSetCacheConfig", handle, &f);
    if (r)
        return r;
    /* A preference, and there are no caches here to follow it. */
    return sg_leave((unsigned)config > CU_FUNC_CACHE_PREFER_EQUAL ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS);
}

CUresult cuFuncGetModule(CUmodule *module, CUfunction handle)
{
    struct sg_function *f;
    CUresult r = enter_function("cuFuncGetModule", handle, &f);
    if (r)
        return r;
    if (!module)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *module = SG_HANDLE(CUmodule, f->module);
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuFuncGetName(const char **name, CUfunction handle)
{
    struct sg_function *f;
    CUresult r = enter_function("cuFuncGetName", handle, &f);
    if (r)
        return r;
    if (!name)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *name = f->info->name;
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuFuncGetParamInfo(CUfunction handle, size_t index, size_t *offset, size_t *size)
{
    struct sg_function *f;
    CUresult r = enter_function("cuFuncGetParamInfo", handle, &f);
    if (r)
        return r;
    if (!offset || index >= f->info->param_count)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *offset = f->info->params[index].offset_bytes;
    if (size)
        *size = f->info->params[index].size_bytes;
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction handle)
{
    struct sg_function *f;
    CUresult r = enter_function("cuFuncIsLoaded", handle, &f);
    if (r)
        return r;
    if (!state)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *state = CU_FUNCTION_LOADING_STATE_LOADED;
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuFuncLoad(CUfunction handle)
{
    struct sg_function *f;
    CUresult r = enter_function("cuFuncLoad", handle, &f);
    return r ? r : sg_leave(CUDA_SUCCESS); /* modules are loaded eagerly */
}

/* ---- occupancy ---- */

int sg_occupancy(const struct sg_function *f, unsigned block_threads, uint64_t dynamic_shared_bytes)
{
    const struct sg_model *m = sg.config.model;
    unsigned warps = (block_threads + 31) / 32;
    uint64_t shared = f->info->static_shared_bytes + dynamic_shared_bytes + (m->major >= 8 ? 1024 : 0);
    uint64_t registers = (uint64_t)warps * ((f->info->register_count * 32 + 255) & ~255u);
    uint64_t n = (uint64_t)m->blocks_per_sm;
    if (!warps || block_threads > f->info->max_threads)
        return 0;
    if (n > (unsigned)m->threads_per_sm / (warps * 32))
        n = (unsigned)m->threads_per_sm / (warps * 32);
    if (n > (uint64_t)m->shared_per_sm_bytes / (shared ? shared : 1))
        n = (uint64_t)m->shared_per_sm_bytes / (shared ? shared : 1);
    if (n > 65536 / (registers ? registers : 1))
        n = 65536 / (registers ? registers : 1);
    return (int)n;
}

static CUresult max_blocks(int *count, CUfunction handle, int block, size_t shared, unsigned flags)
{
    struct sg_function *f;
    CUresult r = enter_function("cuOccupancyMaxActiveBlocksPerMultiprocessor", handle, &f);
    if (r)
        return r;
    if (!count || block <= 0 || (flags & ~(unsigned)CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *count = sg_occupancy(f, (unsigned)block, shared);
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *count, CUfunction f, int block, size_t shared)
{
    return max_blocks(count, f, block, shared, 0);
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *count, CUfunction f, int block, size_t shared,
                                                              unsigned int flags)
{
    return max_blocks(count, f, block, shared, flags);
}

static CUresult best_block(int *min_grid, int *block_out, CUfunction handle, CUoccupancyB2DSize shared_of,
                           size_t shared, int limit, unsigned flags)
{
    struct sg_function *f;
    CUresult r = enter_function("cuOccupancyMaxPotentialBlockSize", handle, &f);
    if (r)
        return r;
    if (!min_grid || !block_out || limit < 0 || (flags & ~(unsigned)CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    int top = (int)f->info->max_threads, best = 0, best_threads = 0, best_blocks = 0;
    if (limit && limit < top)
        top = limit;
    for (int threads = (top + 31) & ~31; threads > 0; threads -= 32) {
        int block = threads < top ? threads : top;
        int blocks = sg_occupancy(f, (unsigned)block, shared_of ? shared_of(block) : shared);
        if (blocks * block > best_threads) {
            best_threads = blocks * block;
            best = block;
            best_blocks = blocks;
        }
    }
    *block_out = best;
    *min_grid = best_blocks * sg.config.model->sm_count;
    return sg_leave(best ? CUDA_SUCCESS : CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);
}

CUresult cuOccupancyMaxPotentialBlockSize(int *min_grid, int *block, CUfunction f, CUoccupancyB2DSize shared_of,
                                          size_t shared, int limit)
{
    return best_block(min_grid, block, f, shared_of, shared, limit, 0);
}

CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *min_grid, int *block, CUfunction f,
                                                   CUoccupancyB2DSize shared_of, size_t shared, int limit,
                                                   unsigned int flags)
{
    return best_block(min_grid, block, f, shared_of, shared, limit, flags);
}

CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, CUfunction handle, int blocks, int block)
{
    struct sg_function *f;
    CUresult r = enter_function("cuOccupancyAvailableDynamicSMemPerBlock", handle, &f);
    if (r)
        return r;
    if (!bytes || blocks <= 0 || block <= 0)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    int64_t each = sg.config.model->shared_per_sm_bytes / blocks - (sg.config.model->major >= 8 ? 1024 : 0);
    int64_t most = sg.config.model->shared_optin_bytes;
    int64_t left = (each < most ? each : most) - (int64_t)f->info->static_shared_bytes;
    *bytes = left > 0 ? (size_t)left : 0;
    return sg_leave(CUDA_SUCCESS);
}
