/* Launches with attributes, and cooperative ones. Hints are checked and then have no effect: no result depends on them. */
#include "simgpu/launch.h"

static CUresult cooperative(CUfunction f, const unsigned grid[3], const unsigned block[3], unsigned shared,
                            CUstream stream, void **params, bool per_thread)
{
    struct sg_launch l = {.function = f,
                          .grid = {grid[0], grid[1], grid[2]},
                          .block = {block[0], block[1], block[2]},
                          .shared_bytes = shared,
                          .stream = stream,
                          .params = params,
                          .cooperative = true};
    return sg_launch("cuLaunchCooperativeKernel", &l, per_thread);
}

CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
                                   unsigned int by, unsigned int bz, unsigned int shared, CUstream stream,
                                   void **params)
{
    return cooperative(f, (unsigned[]){gx, gy, gz}, (unsigned[]){bx, by, bz}, shared, stream, params, false);
}

CUresult cuLaunchCooperativeKernel_ptsz(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz,
                                        unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared,
                                        CUstream stream, void **params)
{
    return cooperative(f, (unsigned[]){gx, gy, gz}, (unsigned[]){bx, by, bz}, shared, stream, params, true);
}

/* ---- attributes ---- */

CUresult sg_policy_window_check(const CUaccessPolicyWindow *w)
{
    uint64_t most = sg_policy_window_max_bytes();
    if (w->num_bytes > most || !(w->hitRatio >= 0.0f && w->hitRatio <= 1.0f) ||
        (unsigned)w->hitProp > CU_ACCESS_PROPERTY_PERSISTING ||
        (w->missProp != CU_ACCESS_PROPERTY_NORMAL && w->missProp != CU_ACCESS_PROPERTY_STREAMING))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

/* None of the models forms clusters: one block each is what a launch without the attribute has. */
static CUresult check_cluster(const struct sg_launch *l, unsigned x, unsigned y, unsigned z)
{
    if (!x || !y || !z || l->grid[0] % x || l->grid[1] % y || l->grid[2] % z)
        return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    if (x == 1 && y == 1 && z == 1)
        return CUDA_SUCCESS;
    sg_log(SG_LOG_WARN, "cuLaunchKernelEx: clusters of %ux%ux%u blocks are not supported", x, y, z);
    return CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult domain_map_check(const CUlaunchMemSyncDomainMap *map)
{
    unsigned count = sg_sync_domain_count();
    return map->default_ < count && map->remote < count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult check(bool ok)
{
    return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult sg_launch_attribute(const CUlaunchAttribute *a, struct sg_launch *l)
{
    const CUlaunchAttributeValue *v = &a->value;
    switch ((int)a->id) {
    case CU_LAUNCH_ATTRIBUTE_IGNORE: return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW: return sg_policy_window_check(&v->accessPolicyWindow);
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE: l->cooperative = v->cooperative != 0; return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
        return check_cluster(l, v->clusterDim.x, v->clusterDim.y, v->clusterDim.z);
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
        return check_cluster(l, v->preferredClusterDim.x, v->preferredClusterDim.y, v->preferredClusterDim.z);
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
        return check((unsigned)v->clusterSchedulingPolicyPreference <= CU_CLUSTER_SCHEDULING_POLICY_LOAD_BALANCING);
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION: /* full order allows no less */
        l->programmatic = v->programmaticStreamSerializationAllowed != 0;
        return CUDA_SUCCESS;
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT: /* the end of the kernel is a moment when all blocks have triggered it */
        l->after[0] = v->programmaticEvent.event;
        return check(l->after[0] && !v->programmaticEvent.flags);
    case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
        l->after[1] = v->launchCompletionEvent.event;
        return check(l->after[1] && !v->launchCompletionEvent.flags);
    case CU_LAUNCH_ATTRIBUTE_PRIORITY: return CUDA_SUCCESS; /* clamped to the range, as for streams; a hint */
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP: return domain_map_check(&v->memSyncDomainMap);
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
        return check((unsigned)v->memSyncDomain <= CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE);
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
        return check(v->sharedMemCarveout <= 100 || v->sharedMemCarveout == UINT32_MAX);
    case CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING: return check(v->nvlinkUtilCentricScheduling <= 1);
    default: return CUDA_ERROR_INVALID_VALUE; /* for streams or graph nodes only, or unknown */
    }
}

static CUresult launch_ex(const CUlaunchConfig *c, CUfunction f, void **params, void **extra, bool per_thread)
{
    if (!c || (c->numAttrs && !c->attrs) || !atomic_load(&sg.ready)) {
        CUresult r = sg_enter_unlocked("cuLaunchKernelEx");
        return r ? r : CUDA_ERROR_INVALID_VALUE;
    }
    struct sg_launch l = {.function = f,
                          .grid = {c->gridDimX, c->gridDimY, c->gridDimZ},
                          .block = {c->blockDimX, c->blockDimY, c->blockDimZ},
                          .shared_bytes = c->sharedMemBytes,
                          .stream = c->hStream,
                          .params = params,
                          .extra = extra,
                          .attributes = c->attrs,
                          .attribute_count = c->numAttrs};
    for (unsigned i = 0; i < c->numAttrs; i++) {
        CUresult bad = sg_launch_attribute(&c->attrs[i], &l);
        if (bad) {
            CUresult r = sg_enter_unlocked("cuLaunchKernelEx");
            return r ? r : bad;
        }
    }
    return sg_launch("cuLaunchKernelEx", &l, per_thread);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **params, void **extra)
{
    return launch_ex(config, f, params, extra, false);
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction f, void **params, void **extra)
{
    return launch_ex(config, f, params, extra, true);
}
