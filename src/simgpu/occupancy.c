/*
 * Occupancy. All of these take a CUkernel in a function's place. What they compute from is copied first, so that the job's
 * callback runs with no lock held and may call CUDA itself.
 */
#include "simgpu/launch.h"

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

/* The function's figures, by value. On success no lock is held. */
static CUresult snapshot(const char *api, CUfunction handle, struct sg_function *f_out,
                         struct ptx_function_info *info_out)
{
    struct sg_function *f;
    CUresult r = sg_enter_function(api, handle, &f);
    if (r)
        return r;
    *info_out = *f->info;
    *f_out = *f;
    f_out->info = info_out;
    return sg_leave(CUDA_SUCCESS);
}

static CUresult max_blocks(int *count, CUfunction handle, int block, size_t shared, unsigned flags)
{
    struct sg_function f;
    struct ptx_function_info info;
    CUresult r = snapshot("cuOccupancyMaxActiveBlocksPerMultiprocessor", handle, &f, &info);
    if (r)
        return r;
    if (!count || block <= 0 || (flags & ~(unsigned)CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE))
        return CUDA_ERROR_INVALID_VALUE;
    *count = sg_occupancy(&f, (unsigned)block, shared);
    return CUDA_SUCCESS;
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
    struct sg_function f;
    struct ptx_function_info info;
    CUresult r = snapshot("cuOccupancyMaxPotentialBlockSize", handle, &f, &info);
    if (r)
        return r;
    if (!min_grid || !block_out || limit < 0 || (flags & ~(unsigned)CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE))
        return CUDA_ERROR_INVALID_VALUE;
    int top = (int)info.max_threads, best = 0, best_threads = 0, best_blocks = 0;
    if (limit && limit < top)
        top = limit;
    for (int threads = (top + 31) & ~31; threads > 0; threads -= 32) {
        int block = threads < top ? threads : top;
        int blocks = sg_occupancy(&f, (unsigned)block, shared_of ? shared_of(block) : shared);
        if (blocks * block > best_threads) {
            best_threads = blocks * block;
            best = block;
            best_blocks = blocks;
        }
    }
    if (!best)
        return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
    *block_out = best;
    *min_grid = best_blocks * sg.config.model->sm_count;
    return CUDA_SUCCESS;
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
    struct sg_function f;
    struct ptx_function_info info;
    CUresult r = snapshot("cuOccupancyAvailableDynamicSMemPerBlock", handle, &f, &info);
    if (r)
        return r;
    const struct sg_model *m = sg.config.model;
    /* That many blocks must fit without any dynamic memory to begin with. */
    if (!bytes || blocks <= 0 || block <= 0 || blocks > sg_occupancy(&f, (unsigned)block, 0))
        return CUDA_ERROR_INVALID_VALUE;
    int64_t each = m->shared_per_sm_bytes / blocks / 128 * 128 - (m->major >= 8 ? 1024 : 0);
    int64_t most = m->shared_optin_bytes;
    int64_t left = (each < most ? each : most) - (int64_t)info.static_shared_bytes;
    *bytes = left > 0 ? (size_t)left : 0;
    return CUDA_SUCCESS;
}

/* ---- clusters: none of the models forms any but those of one block ---- */

CUresult cuOccupancyMaxPotentialClusterSize(int *size, CUfunction handle, const CUlaunchConfig *config)
{
    struct sg_function f;
    struct ptx_function_info info;
    CUresult r = snapshot("cuOccupancyMaxPotentialClusterSize", handle, &f, &info);
    if (r)
        return r;
    if (!size || !config || (config->numAttrs && !config->attrs))
        return CUDA_ERROR_INVALID_VALUE;
    *size = 1;
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveClusters(int *count, CUfunction handle, const CUlaunchConfig *config)
{
    struct sg_function f;
    struct ptx_function_info info;
    CUresult r = snapshot("cuOccupancyMaxActiveClusters", handle, &f, &info);
    if (r)
        return r;
    if (!count || !config || (config->numAttrs && !config->attrs))
        return CUDA_ERROR_INVALID_VALUE;
    bool given = false;
    for (unsigned i = 0; i < config->numAttrs; i++) {
        const CUlaunchAttributeValue *v = &config->attrs[i].value;
        if (config->attrs[i].id != CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
            continue;
        if (v->clusterDim.x != 1 || v->clusterDim.y != 1 || v->clusterDim.z != 1)
            return CUDA_ERROR_INVALID_CLUSTER_SIZE;
        given = true;
    }
    uint64_t threads = (uint64_t)config->blockDimX * config->blockDimY * config->blockDimZ;
    if (!threads || threads > 1024)
        return CUDA_ERROR_INVALID_VALUE;
    if (!given) /* the function requires none, so the call must name one */
        return CUDA_ERROR_INVALID_CLUSTER_SIZE;
    *count = sg_occupancy(&f, (unsigned)threads, config->sharedMemBytes) * sg.config.model->sm_count;
    return CUDA_SUCCESS;
}
