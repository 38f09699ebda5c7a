/* Functions: attributes, parameter layout. */
#include "simgpu/launch.h"

static CUresult enter_function(const char *api, CUfunction handle, struct sg_function **function_out)
{
    struct sg_context *context;
    CUresult r = sg_enter_context(api, &context);
    if (r)
        return r;
    *function_out = SG_FIND(handle, SG_FUNCTION);
    return *function_out ? CUDA_SUCCESS : sg_leave(CUDA_ERROR_INVALID_HANDLE);
}

int sg_function_dynamic_max(const struct sg_function *f)
{
    return f->entry && !f->dynamic_set ? sg_entry_dynamic_max(f->entry, f->module->context->device)
                                       : f->dynamic_shared_max;
}

int sg_function_carveout(const struct sg_function *f)
{
    return f->entry && !f->carveout_set ? sg_entry_carveout(f->entry, f->module->context->device) : f->carveout;
}

CUresult sg_attribute_get(const struct sg_attributes *from, CUfunction_attribute attribute, int *value)
{
    const struct ptx_function_info *i = from->info;
    switch ((int)attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = (int)i->max_threads; break;
    case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *value = (int)i->static_shared_bytes; break;
    case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES: *value = 0; break;
    case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES: *value = (int)i->local_bytes; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = (int)i->register_count; break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION: *value = (int)from->target; break;
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = sg.config.model->major * 10 + sg.config.model->minor; break;
    case CU_FUNC_ATTRIBUTE_CACHE_MODE_CA: *value = 0; break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = from->dynamic_shared_max; break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: *value = from->carveout; break;
    case CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
    case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
    case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
    case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE: *value = 0; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUresult sg_attribute_set(const struct ptx_function_info *info, CUfunction_attribute attribute, int value,
                          int *dynamic_shared_max, int *carveout)
{
    if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
        if (value < 0 || value > sg.config.model->shared_optin_bytes - (int)info->static_shared_bytes)
            return CUDA_ERROR_INVALID_VALUE;
        *dynamic_shared_max = value;
        return CUDA_SUCCESS;
    }
    if (attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT) {
        if (value < -1 || value > 100)
            return CUDA_ERROR_INVALID_VALUE;
        *carveout = value;
        return CUDA_SUCCESS;
    }
    return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction handle)
{
    struct sg_function *f;
    CUresult r = enter_function("cuFuncGetAttribute", handle, &f);
    if (r)
        return r;
    if (!value)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    struct sg_attributes from = {f->info, ptx_module_target(f->module->ptx), sg_function_dynamic_max(f),
                                 sg_function_carveout(f)};
    return sg_leave(sg_attribute_get(&from, attribute, value));
}

CUresult cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value)
{
    struct sg_function *f;
    CUresult r = enter_function("cuFuncSetAttribute", handle, &f);
    if (r)
        return r;
    r = sg_attribute_set(f->info, attribute, value, &f->dynamic_shared_max, &f->carveout);
    if (!r)
        *(attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES ? &f->dynamic_set : &f->carveout_set) = true;
    return sg_leave(r);
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

CUresult cuFuncSetSharedMemConfig(CUfunction handle, CUsharedconfig config)
{
    struct sg_function *f;
    CUresult r = enter_function("cuFuncSetSharedMemConfig", handle, &f);
    if (r)
        return r;
    /* Banks of a fixed size, as on every card since 2014: it does nothing. */
    return sg_leave((unsigned)config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE ? CUDA_ERROR_INVALID_VALUE
                                                                                 : CUDA_SUCCESS);
}
