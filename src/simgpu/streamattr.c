/* Attributes of streams, and settings of contexts that are hints here: they are kept and told, and no result depends on them. */
#include "simgpu/sim.h"

static CUresult set(struct sg_stream *s, CUstreamAttrID id, const CUstreamAttrValue *v)
{
    CUresult r;
    switch ((int)id) {
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW:
        r = sg_policy_window_check(&v->accessPolicyWindow);
        if (!r)
            s->hints.window = v->accessPolicyWindow;
        return r;
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
        if (v->syncPolicy < CU_SYNC_POLICY_AUTO || v->syncPolicy > CU_SYNC_POLICY_BLOCKING_SYNC)
            return CUDA_ERROR_INVALID_VALUE;
        s->hints.sync_policy = v->syncPolicy;
        return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
        s->priority = v->priority > 0 ? 0 : v->priority < -5 ? -5 : v->priority;
        return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
        if (v->memSyncDomainMap.default_ >= sg_sync_domain_count() ||
            v->memSyncDomainMap.remote >= sg_sync_domain_count())
            return CUDA_ERROR_INVALID_VALUE;
        s->hints.domain_map = v->memSyncDomainMap;
        s->hints.has_map = true;
        return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
        if ((unsigned)v->memSyncDomain > CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE)
            return CUDA_ERROR_INVALID_VALUE;
        s->hints.domain = v->memSyncDomain;
        return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE; /* of launches only, or unknown */
    }
}

static CUresult get(const struct sg_stream *s, CUstreamAttrID id, CUstreamAttrValue *v)
{
    CUlaunchMemSyncDomainMap usual = {0, sg_sync_domain_count() > 1};
    switch ((int)id) {
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW: v->accessPolicyWindow = s->hints.window; break;
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
        v->syncPolicy = s->hints.sync_policy ? s->hints.sync_policy : CU_SYNC_POLICY_AUTO;
        break;
    case CU_LAUNCH_ATTRIBUTE_PRIORITY: v->priority = s->priority; break;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP:
        v->memSyncDomainMap = s->hints.has_map ? s->hints.domain_map : usual;
        break;
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN: v->memSyncDomain = s->hints.domain; break;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

static CUresult set_attribute(CUstream stream, CUstreamAttrID id, const CUstreamAttrValue *value, bool per_thread)
{
    struct sg_stream *s;
    CUresult r = sg_enter_stream("cuStreamSetAttribute", stream, per_thread, &s);
    return r ? r : sg_leave(value ? set(s, id, value) : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuStreamSetAttribute(CUstream stream, CUstreamAttrID id, const CUstreamAttrValue *value)
{
    return set_attribute(stream, id, value, false);
}

CUresult cuStreamSetAttribute_ptsz(CUstream stream, CUstreamAttrID id, const CUstreamAttrValue *value)
{
    return set_attribute(stream, id, value, true);
}

static CUresult get_attribute(CUstream stream, CUstreamAttrID id, CUstreamAttrValue *value, bool per_thread)
{
    struct sg_stream *s;
    CUresult r = sg_enter_stream("cuStreamGetAttribute", stream, per_thread, &s);
    return r ? r : sg_leave(value ? get(s, id, value) : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuStreamGetAttribute(CUstream stream, CUstreamAttrID id, CUstreamAttrValue *value)
{
    return get_attribute(stream, id, value, false);
}

CUresult cuStreamGetAttribute_ptsz(CUstream stream, CUstreamAttrID id, CUstreamAttrValue *value)
{
    return get_attribute(stream, id, value, true);
}

static CUresult copy_attributes(CUstream dst, CUstream src, bool per_thread)
{
    struct sg_stream *to, *from;
    CUresult r = sg_enter_stream("cuStreamCopyAttributes", dst, per_thread, &to);
    if (r)
        return r;
    r = sg_stream_resolve(src, per_thread, to->context, &from);
    if (!r && from->context != to->context)
        r = CUDA_ERROR_INVALID_VALUE;
    if (!r) {
        to->hints = from->hints;
        to->priority = from->priority;
    }
    return sg_leave(r);
}

CUresult cuStreamCopyAttributes(CUstream dst, CUstream src)
{
    return copy_attributes(dst, src, false);
}

CUresult cuStreamCopyAttributes_ptsz(CUstream dst, CUstream src)
{
    return copy_attributes(dst, src, true);
}

/* ---- contexts ---- */

CUresult cuCtxGetSharedMemConfig(CUsharedconfig *config)
{
    struct sg_context *c;
    CUresult r = sg_enter_context("cuCtxGetSharedMemConfig", &c);
    if (r)
        return r;
    if (!config)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    *config = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE; /* fixed */
    return sg_leave(CUDA_SUCCESS);
}

CUresult cuCtxSetSharedMemConfig(CUsharedconfig config)
{
    struct sg_context *c;
    CUresult r = sg_enter_context("cuCtxSetSharedMemConfig", &c);
    if (r)
        return r;
    return sg_leave((unsigned)config > CU_SHARED_MEM_CONFIG_EIGHT_BYTE_BANK_SIZE ? CUDA_ERROR_INVALID_VALUE
                                                                                 : CUDA_SUCCESS);
}

CUresult cuCtxResetPersistingL2Cache(void)
{
    struct sg_context *c;
    CUresult r = sg_enter_context("cuCtxResetPersistingL2Cache", &c);
    return r ? r : sg_leave(sg.config.model->major >= 8 ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED);
}

CUresult cuCtxGetExecAffinity(CUexecAffinityParam *affinity, CUexecAffinityType type)
{
    struct sg_context *c;
    CUresult r = sg_enter_context("cuCtxGetExecAffinity", &c);
    if (r)
        return r;
    if (!affinity || type != CU_EXEC_AFFINITY_TYPE_SM_COUNT)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    affinity->type = type;
    affinity->param.smCount.val = (unsigned)sg.config.model->sm_count; /* no context has less */
    return sg_leave(CUDA_SUCCESS);
}

/* No other device writes into memory here, so nothing is ever on its way. */
CUresult cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget target, CUflushGPUDirectRDMAWritesScope scope)
{
    struct sg_context *c;
    CUresult r = sg_enter_context("cuFlushGPUDirectRDMAWrites", &c);
    if (r)
        return r;
    if (target != CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX ||
        (scope != CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER && scope != CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    return sg_leave(sg.config.model->rdma ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED);
}
