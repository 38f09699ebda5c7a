#include "residency/exported.h"

#include "base/log.h"
#include "residency/access.h"
#include "residency/capture.h"
#include "residency/context.h"
#include "residency/fixed.h"
#include "residency/gpu.h"
#include "residency/move.h"
#include "residency/peers.h"

#include <fcntl.h>
#include <unistd.h>

#define ATTEMPTS 12 /* without anything gained */
#define FIRST_SPAN_NS UINT64_C(2000000)

/* How far an export has come: the chunks before `next` are exportable and held. */
struct progress {
    struct hr_hold hold;
    unsigned gpu;
    bool rdma;
    uint32_t next;
    bool is_short; /* of VRAM */
};

static bool is_exportable(const struct hr_chunk *c)
{
    return c->phys && c->phys->shareable && atomic_load(&c->state) == HR_CHUNK_RESIDENT && atomic_load(&c->mapped) == 1;
}

/*
 * A network card may have been told where it is, another GPU reach it only in host memory, or a graph keep the placement that it found:
 * then it is not moved for this either.
 */
static bool is_fixed(const struct hr_extent *e, const struct hr_chunk *c)
{
    return atomic_load(&e->sync_memops) || hr_fixed_sharers(e) || hr_hold_is(c);
}

static bool is_alive(const struct hr_hold *hold)
{
    struct hr_view view;
    return hr_space_view(hold->extent, &view) && view.id == hold->id;
}

/* One batch from `next` on, as far as there is VRAM; then holds what is exportable now. */
static CUresult advance_locked(struct progress *p, uint64_t span_ns) HR_REQUIRES(hr_move_lock)
{
    struct hr_move moves[HR_MOVE_MAX];
    unsigned n = 0;
    CUresult r = CUDA_SUCCESS;
    p->is_short = false;
    for (uint32_t i = p->next; i < p->hold.end_chunk && n < HR_MOVE_MAX && r == CUDA_SUCCESS; i++) {
        struct hr_chunk *c = &hr_space.chunks[i];
        if (is_exportable(c))
            continue;
        if (is_fixed(p->hold.extent, c))
            r = CUDA_ERROR_NOT_SUPPORTED;
        if (r != CUDA_SUCCESS || !c->phys || atomic_load(&c->pins) > 0)
            break;
        moves[n].chunk = c;
        r = hr_tier_take_shareable(p->gpu, p->rdma, &moves[n].to);
        n += r == CUDA_SUCCESS;
    }
    p->is_short = r == CUDA_ERROR_OUT_OF_MEMORY;
    hr_move_batch_locked(p->gpu, moves, n, span_ns);
    for (; p->next < p->hold.end_chunk && is_exportable(&hr_space.chunks[p->next]); p->next++)
        hr_hold_add_locked(&hr_space.chunks[p->next]);
    return p->is_short ? CUDA_SUCCESS : r;
}

static CUresult advance(struct progress *p, uint64_t span_ns)
{
    struct hr_context *context = hr_context_of_gpu(p->gpu);
    bool pushed;
    CUresult r = context ? hr_context_enter(context, &pushed) : CUDA_ERROR_INVALID_CONTEXT;
    if (r != CUDA_SUCCESS)
        return r;
    hr_mutex_lock(&hr_move_lock);
    uint32_t before;
    do {
        before = p->next;
        r = is_alive(&p->hold) ? advance_locked(p, span_ns) : CUDA_ERROR_INVALID_VALUE;
    } while (r == CUDA_SUCCESS && p->next > before && p->next < p->hold.end_chunk);
    hr_mutex_unlock(&hr_move_lock);
    hr_context_leave(pushed);
    return r;
}

/* All of it, or an error. */
static CUresult advance_to_end(struct hr_thread *t, const struct hr_allocation *a, struct progress *p)
{
    CUresult r = CUDA_SUCCESS;
    for (unsigned attempt = 0; r == CUDA_SUCCESS && p->next < p->hold.end_chunk; attempt++) {
        uint32_t before = p->next;
        if (attempt == ATTEMPTS)
            return CUDA_ERROR_OUT_OF_MEMORY;
        r = hr_access_back_range(t, a->base, a->bytes);
        if (r == CUDA_SUCCESS)
            r = advance(p, FIRST_SPAN_NS << attempt);
        if (r == CUDA_SUCCESS && p->is_short)
            hr_access_release_vram(t, p->gpu, (size_t)(p->hold.end_chunk - p->next) << hr_space.chunk_shift);
        if (p->next > before)
            attempt = 0;
    }
    return r;
}

static bool device_can(unsigned gpu, CUdevice_attribute what)
{
    int can = 0;
    return hr_drv.cuDeviceGetAttribute(&can, what, hr_gpu_device(gpu)) == CUDA_SUCCESS && can;
}

CUresult hr_exported_hold(struct hr_thread *t, const struct hr_allocation *a, struct hr_hold *hold_out)
{
    HR_RELAXED();
    struct hr_view view;
    unsigned gpu = a->gpu;
    if (!device_can(gpu, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)) {
        hr_log_once(HR_LOG_WARN, "memory of GPU %u cannot be shared: its driver cannot export memory", gpu);
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    if (!hr_space_view(a->extent, &view) || view.ctx != a->ctx)
        return CUDA_ERROR_INVALID_VALUE;
    uint32_t first = (uint32_t)((a->base - hr_space.base) >> hr_space.chunk_shift);
    uint32_t end = (uint32_t)((a->base + a->bytes - 1 - hr_space.base) >> hr_space.chunk_shift) + 1;
    struct progress p = {
        .hold = {.extent = a->extent, .id = view.id, .first_chunk = first, .end_chunk = end},
        .gpu = gpu,
        .rdma = device_can(gpu, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED),
        .next = first,
    };
    CUresult r = advance_to_end(t, a, &p);
    if (r == CUDA_SUCCESS) {
        *hold_out = p.hold;
        return r;
    }
    hr_log(HR_LOG_WARN, "%zu bytes could not be made ready to be shared: %s (driver error %d)", a->bytes,
           p.is_short ? "there is no room for them in VRAM"
           : r == CUDA_ERROR_NOT_SUPPORTED
               ? "a graph, a registration (SYNC_MEMOPS), or another GPU keeps them where they are"
               : "they could not be moved",
           (int)r);
    p.hold.end_chunk = p.next;
    hr_hold_drop(&p.hold);
    return r;
}

CUresult hr_exported_open(const struct hr_hold *hold, uint32_t first_chunk, uint32_t count, int *fds_out)
{
    CUresult r = CUDA_SUCCESS;
    uint32_t n = 0;
    hr_mutex_lock(&hr_move_lock); /* what is freed loses its backing under it */
    if (!is_alive(hold) || count > hold->end_chunk - hold->first_chunk ||
        first_chunk > hold->end_chunk - hold->first_chunk - count)
        r = CUDA_ERROR_INVALID_VALUE;
    for (; n < count && r == CUDA_SUCCESS; n++) {
        const struct hr_chunk *c = &hr_space.chunks[hold->first_chunk + first_chunk + n];
        r = is_exportable(c) ? hr_drv.cuMemExportToShareableHandle(&fds_out[n], c->phys->handle,
                                                                   CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0)
                             : CUDA_ERROR_INVALID_VALUE;
        if (r != CUDA_SUCCESS)
            break;
        fcntl(fds_out[n], F_SETFD, FD_CLOEXEC);
    }
    hr_mutex_unlock(&hr_move_lock);
    while (r != CUDA_SUCCESS && n > 0)
        close(fds_out[--n]);
    return r;
}
