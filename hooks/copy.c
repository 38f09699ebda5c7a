#include "copy.h"

#include "hr_hooks.h"
#include "residency/access.h"
#include "residency/capture.h"
#include "residency/context.h"
#include "residency/hidden.h"
#include "residency/hold.h"
#include "residency/peers.h"
#include "residency/transfer.h"
#include "stats/stats.h"
#include "tier/tier.h"

/*
 * Linear copies. The ranges are in the arguments, so they are exact: every chunk gets backing (where there is room, nothing is
 * moved), and one copy is split where its operands change tier, since a copy that spans device and host chunks is
 * undocumented. Bytes that lie in unmapped pinned host memory are copied there.
 */

CUresult hr_copy_begin(struct hr_thread *t, const struct hr_range *ranges, unsigned count)
{
    hr_context_current(); /* registers it: what a context does counts, also where it owns nothing */
    hr_tier_host_pin_again();
    for (unsigned attempt = 0; attempt < 1000; attempt++) {
        for (unsigned i = 0; i < count; i++) {
            CUresult r = hr_space_owns(ranges[i].address) ? hr_access_back_range(t, ranges[i].address, ranges[i].bytes)
                                                          : CUDA_SUCCESS;
            if (r != CUDA_SUCCESS)
                return r;
        }
        hr_gate_enter(t);
        bool backed = true;
        for (unsigned i = 0; i < count && backed; i++)
            backed = !hr_space_owns(ranges[i].address) || hr_access_is_backed(ranges[i].address, ranges[i].bytes);
        if (backed) {
            hr_gate_submit(t);
            return CUDA_SUCCESS;
        }
        hr_gate_leave(t);
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Whether a call over the range finds all of it mapped. */
static bool is_mapped(const struct hr_range *range)
{
    if (!hr_space_owns(range->address) || range->bytes == 0)
        return true;
    const struct hr_chunk *c = hr_space_chunk(range->address),
                          *last = hr_space_chunk(range->address + range->bytes - 1);
    while (c && c <= last && atomic_load_explicit(&c->mapped, memory_order_acquire))
        c++;
    return c > last;
}

/* Backs a range, and maps it. */
static CUresult map(struct hr_thread *t, const struct hr_range *range)
{
    struct hr_hold hold;
    if (!hr_space_owns(range->address) || range->bytes == 0)
        return CUDA_SUCCESS;
    CUresult r = hr_access_back_range(t, range->address, range->bytes);
    if (r == CUDA_SUCCESS && !is_mapped(range)) { /* where host memory cannot be mapped, it has to come in */
        r = hr_hold_take(t, range->address, range->bytes, &hold);
        if (r == CUDA_SUCCESS)
            hr_hold_drop(&hold);
    }
    return r;
}

/* Begins a submission, which is not counted as one, in which all of them are mapped. */
static CUresult map_all(struct hr_thread *t, const struct hr_range *ranges, unsigned count)
{
    for (unsigned attempt = 0; attempt < 100; attempt++) {
        CUresult r = CUDA_SUCCESS;
        for (unsigned i = 0; i < count && r == CUDA_SUCCESS; i++)
            r = map(t, &ranges[i]);
        if (r != CUDA_SUCCESS)
            return r;
        hr_gate_enter(t);
        bool mapped = true;
        for (unsigned i = 0; i < count && mapped; i++)
            mapped = is_mapped(&ranges[i]);
        if (mapped)
            return CUDA_SUCCESS;
        hr_gate_leave(t);
    }
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult hr_copy_hold(struct hr_thread *t, const struct hr_range *ranges, unsigned count, struct hr_placing *placing)
{
    *placing = (struct hr_placing){CUDA_SUCCESS, 0, {{0}}};
    for (unsigned i = 0; i < count && i < 2 && placing->r == CUDA_SUCCESS; i++) {
        if (!hr_space_owns(ranges[i].address) || ranges[i].bytes == 0)
            continue;
        placing->r = hr_hold_take(t, ranges[i].address, ranges[i].bytes, &placing->hold[placing->held]);
        placing->held += placing->r == CUDA_SUCCESS;
    }
    if (placing->r != CUDA_SUCCESS)
        hr_copy_let_go(placing);
    return placing->r;
}

void hr_copy_let_go(struct hr_placing *placing)
{
    while (placing->held > 0)
        hr_hold_drop(&placing->hold[--placing->held]);
}

bool hr_copy_place(struct hr_thread *t, const struct hr_range *ranges, unsigned count, struct hr_placing *placing_out)
{
    struct hr_placing placing = {CUDA_SUCCESS, 0, {{0}}};
    hr_context_current(); /* registers it */
    if (hr_space.gpu_count > 1 || !hr_tier_host_mappable(0))
        hr_copy_hold(t, ranges, count, &placing);
    if (placing.r == CUDA_SUCCESS)
        placing.r = map_all(t, ranges, count);
    *placing_out = placing;
    if (placing.r == CUDA_SUCCESS || placing.r == CUDA_ERROR_INVALID_VALUE)
        return true;
    hr_copy_placed(t, placing_out, placing.r);
    return false;
}

CUresult hr_copy_placed(struct hr_thread *t, struct hr_placing *placing, CUresult r)
{
    if (placing->r == CUDA_SUCCESS)
        hr_gate_leave(t);
    hr_copy_let_go(placing);
    return r;
}

CUresult hr_copy_end(struct hr_thread *t, CUresult r, CUstream stream, bool per_thread_default,
                     const struct hr_range *ranges, unsigned count)
{
    hr_submission_end(t, stream, per_thread_default);
    for (unsigned i = 0; i < count && r == CUDA_SUCCESS; i++) {
        struct hr_extent *e = hr_space_extent(ranges[i].address);
        if (e && atomic_load_explicit(&e->sync_memops, memory_order_relaxed))
            return per_thread_default ? hr_drv.cuStreamSynchronize_ptsz(stream) : hr_drv.cuStreamSynchronize(stream);
    }
    return r;
}

/* One call of the job; `real` makes it, or a piece of it, with other operands. */
struct copy {
    CUdeviceptr to, from; /* host pointers of HtoD and DtoH included: unified addressing */
    size_t bytes;
    CUstream stream;
    bool async, per_thread;
    bool names_contexts;                /* a peer copy */
    CUcontext to_context, from_context; /* peer copies */
    CUresult (*real)(const struct copy *c, CUdeviceptr to, CUdeviceptr from, size_t bytes);
};

/* Any operand by its address alone: for pieces that lie in pinned host memory. */
static CUresult by_address(const struct copy *c, CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    if (c->async)
        return c->per_thread ? hr_drv.cuMemcpyAsync_ptsz(to, from, bytes, c->stream)
                             : hr_drv.cuMemcpyAsync(to, from, bytes, c->stream);
    return c->per_thread ? hr_drv.cuMemcpy_ptds(to, from, bytes) : hr_drv.cuMemcpy(to, from, bytes);
}

/* In VRAM: what is about to be moved out is there until the gate closes. */
static bool in_vram(CUdeviceptr address)
{
    uint8_t state = atomic_load_explicit(&hr_space_chunk(address)->state, memory_order_relaxed);
    return state == HR_CHUNK_RESIDENT || state == HR_CHUNK_MOVING_OUT;
}

/*
 * cuMemcpyPeer comes after all work of both contexts and before all that follows there, which events on one stream cannot say. With both at
 * rest, waiting for the copy itself says the same; else it is the driver's.
 */
static bool is_between_all(const struct copy *c)
{
    return c->names_contexts && !c->async;
}
static bool are_at_rest(CUdeviceptr to, CUdeviceptr from)
{
    const struct hr_context *current = hr_context_current();
    return current && hr_quiet_now(UINT64_C(1) << hr_way_owner(to) | UINT64_C(1) << hr_way_owner(from) |
                                   UINT64_C(1) << current->gpu);
}

static bool may_go_over_fabric(const struct copy *c, CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    if (hr_space.gpu_count < 2 || !hr_transfer_worth(bytes) || !hr_space_owns(to) || !hr_space_owns(from) ||
        hr_way_owner(to) == hr_way_owner(from) || !in_vram(to) || !in_vram(from))
        return false;
    /* Contexts that are none are the driver's to refuse. */
    if (c->names_contexts && (!hr_context_of(c->to_context) || !hr_context_of(c->from_context)))
        return false;
    return !is_between_all(c) || are_at_rest(to, from);
}

/* Between the VRAM of two GPUs the fabric may know more ways than the driver's. */
static CUresult over_fabric(const struct copy *c, struct hr_way *way, CUdeviceptr to, CUdeviceptr from, size_t bytes,
                            bool *done_out)
{
    *done_out = false;
    if (!may_go_over_fabric(c, to, from, bytes))
        return CUDA_SUCCESS;
    CUresult r = hr_way_end(way, CUDA_SUCCESS, false); /* the context of the job's call is current again */
    if (r != CUDA_SUCCESS)
        return r;
    struct hr_transfer transfer = {.to = to,
                                   .from = from,
                                   .to_gpu = hr_way_owner(to),
                                   .from_gpu = hr_way_owner(from),
                                   .bytes = bytes,
                                   .stream = c->stream,
                                   .per_thread = c->per_thread,
                                   .wait = is_between_all(c)};
    return hr_transfer_start(&transfer, done_out);
}

/* By the driver, which goes straight where either may reach the other. */
static void count_between(CUdeviceptr to, CUdeviceptr from, size_t bytes, bool moved)
{
    if (hr_space.gpu_count < 2 || moved || !hr_space_owns(to) || !hr_space_owns(from))
        return;
    unsigned there = hr_way_owner(to), here = hr_way_owner(from);
    if (here == there || !in_vram(to) || !in_vram(from))
        return;
    bool direct = hr_peers_reach(here, there) || hr_peers_reach(there, here);
    hr_transfer_note_others();
    hr_stats_sent(here, there, direct ? HR_SENT_DIRECT : HR_SENT_STAGED, bytes);
}

static CUresult copy_piece(const struct copy *c, struct hr_way *way, CUdeviceptr to, CUdeviceptr from, size_t bytes,
                           bool moved)
{
    bool done = false;
    if (!moved) {
        CUresult over = over_fabric(c, way, to, from, bytes, &done);
        if (over != CUDA_SUCCESS || done)
            return over;
    }
    count_between(to, from, bytes, moved);
    /* Peer copies tell the driver the contexts themselves. */
    bool far = (!c->names_contexts || moved) && (hr_way_is_far(way, to) || hr_way_is_far(way, from));
    if (far)
        return hr_way_copy(way, to, from, bytes);
    CUresult r = hr_way_end(way, CUDA_SUCCESS, false); /* the context of the job's call is current again */
    if (r != CUDA_SUCCESS)
        return r;
    return moved ? by_address(c, to, from, bytes) : c->real(c, to, from, bytes);
}

static CUresult copy_pieces(const struct copy *c, struct hr_way *way)
{
    CUresult r = CUDA_SUCCESS;
    for (size_t done = 0; done < c->bytes && r == CUDA_SUCCESS;) {
        CUdeviceptr to = c->to + done, from = c->from + done;
        size_t n = c->bytes - done;
        bool to_moved = false, from_moved = false;
        if (hr_space_owns(to))
            n = hr_access_piece(to, n, &to, &to_moved);
        if (hr_space_owns(from))
            n = hr_access_piece(from, n, &from, &from_moved);
        r = copy_piece(c, way, to, from, n, to_moved || from_moved);
        done += n;
    }
    return r;
}

CUresult hr_copy_span(struct hr_way *way, CUdeviceptr to, CUdeviceptr from, size_t bytes, bool async)
{
    struct copy c = {.to = to,
                     .from = from,
                     .bytes = bytes,
                     .stream = way->stream,
                     .async = async,
                     .per_thread = way->per_thread,
                     .real = by_address};
    return copy_pieces(&c, way);
}

/*
 * Whether `from` may be read by the host, as far as the driver knows it. What it does not know is pageable memory, but where the call takes none it
 * may be anything.
 */
static bool host_readable(CUdeviceptr from, enum hr_source source)
{
    unsigned type = 0;
    CUresult r = hr_drv.cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, from);
    return (r == CUDA_ERROR_INVALID_VALUE && source == HR_SOURCE_ANY) ||
           (r == CUDA_SUCCESS && type == CU_MEMORYTYPE_HOST);
}

void hr_copy_note_pointers(CUdeviceptr to, CUdeviceptr from, size_t bytes, enum hr_source source)
{
    bool to_ours = hr_space_owns(to), from_ours = hr_space_owns(from);
    if (to_ours && from_ours)
        hr_hidden_propagate(to, from);
    else if (to_ours && from && (source == HR_SOURCE_HOST || host_readable(from, source))) {
        if (bytes <= HR_HIDDEN_PAYLOAD_BYTES)
            hr_hidden_scan(to, (const void *)(uintptr_t)from, bytes);
        else
            hr_hidden_notice(to, (const void *)(uintptr_t)from, bytes);
    }
}

static __attribute__((noinline)) CUresult copy_captured(struct hr_thread *t, const struct copy *c,
                                                        const struct hr_range *ranges)
{
    struct hr_placing placing;
    return hr_copy_place(t, ranges, 2, &placing) ? hr_copy_placed(t, &placing, c->real(c, c->to, c->from, c->bytes))
                                                 : placing.r;
}

/* The library's part of a copy that names the window. */
static CUresult copy(const struct copy *c, enum hr_source source)
{
    HR_INSIDE();
    struct hr_thread *t = hr_thread_self();
    bool to_ours = hr_space_owns(c->to), from_ours = hr_space_owns(c->from);
    if (!to_ours && !from_ours && c->names_contexts)
        hr_transfer_note_others();
    if (!t || c->bytes == 0 || (!to_ours && !from_ours)) {
        CUresult r = c->real(c, c->to, c->from, c->bytes);
        if (r == CUDA_SUCCESS && !to_ours && source == HR_SOURCE_HOST && c->bytes <= HR_HIDDEN_PAYLOAD_BYTES && c->from)
            hr_hidden_notice(c->to, (const void *)(uintptr_t)c->from, c->bytes);
        return r;
    }
    struct hr_range ranges[2] = {{c->to, c->bytes}, {c->from, c->bytes}};
    if (hr_capture_takes(c->stream, c->per_thread))
        return copy_captured(t, c, ranges);
    struct hr_way way = hr_way_of(c->stream, c->per_thread, ranges, 2);
    CUresult r = hr_copy_begin(t, ranges, 2);
    if (r != CUDA_SUCCESS)
        return r;
    r = copy_pieces(c, &way);
    if (r == CUDA_SUCCESS) /* not before: host memory is there if the driver could read it */
        hr_copy_note_pointers(c->to, c->from, c->bytes, source);
    r = hr_way_end(&way, r, !c->async && !(to_ours && from_ours));
    r = hr_copy_end(t, r, c->stream, c->per_thread, ranges, 2);
    return c->async ? r : hr_transfer_settle(r); /* what was waited for may have met a link that failed */
}

#define HOST(pointer) ((CUdeviceptr)(uintptr_t)(pointer))
#define POINTER(address) ((void *)(uintptr_t)(address))

/* The real calls, one per function. */
#define REAL(name, call)                                                                                               \
    static CUresult real_##name(const struct copy *c, CUdeviceptr to, CUdeviceptr from, size_t n)                      \
    {                                                                                                                  \
        (void)c;                                                                                                       \
        return hr_drv.call;                                                                                            \
    }
REAL(cuMemcpy, cuMemcpy(to, from, n))
REAL(cuMemcpy_ptds, cuMemcpy_ptds(to, from, n))
REAL(cuMemcpyHtoD_v2, cuMemcpyHtoD_v2(to, POINTER(from), n))
REAL(cuMemcpyHtoD_v2_ptds, cuMemcpyHtoD_v2_ptds(to, POINTER(from), n))
REAL(cuMemcpyDtoH_v2, cuMemcpyDtoH_v2(POINTER(to), from, n))
REAL(cuMemcpyDtoH_v2_ptds, cuMemcpyDtoH_v2_ptds(POINTER(to), from, n))
REAL(cuMemcpyDtoD_v2, cuMemcpyDtoD_v2(to, from, n))
REAL(cuMemcpyDtoD_v2_ptds, cuMemcpyDtoD_v2_ptds(to, from, n))
REAL(cuMemcpyAsync, cuMemcpyAsync(to, from, n, c->stream))
REAL(cuMemcpyAsync_ptsz, cuMemcpyAsync_ptsz(to, from, n, c->stream))
REAL(cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2(to, POINTER(from), n, c->stream))
REAL(cuMemcpyHtoDAsync_v2_ptsz, cuMemcpyHtoDAsync_v2_ptsz(to, POINTER(from), n, c->stream))
REAL(cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2(POINTER(to), from, n, c->stream))
REAL(cuMemcpyDtoHAsync_v2_ptsz, cuMemcpyDtoHAsync_v2_ptsz(POINTER(to), from, n, c->stream))
REAL(cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2(to, from, n, c->stream))
REAL(cuMemcpyDtoDAsync_v2_ptsz, cuMemcpyDtoDAsync_v2_ptsz(to, from, n, c->stream))
REAL(cuMemcpyPeer, cuMemcpyPeer(to, c->to_context, from, c->from_context, n))
REAL(cuMemcpyPeer_ptds, cuMemcpyPeer_ptds(to, c->to_context, from, c->from_context, n))
REAL(cuMemcpyPeerAsync, cuMemcpyPeerAsync(to, c->to_context, from, c->from_context, n, c->stream))
REAL(cuMemcpyPeerAsync_ptsz, cuMemcpyPeerAsync_ptsz(to, c->to_context, from, c->from_context, n, c->stream))

#define SYNC(name, to_, from_, n, pt, source)                                                                          \
    copy(&(struct copy){.to = (to_), .from = (from_), .bytes = (n), .per_thread = (pt), .real = real_##name}, source)
#define ASYNC(name, to_, from_, n, s, pt, source)                                                                      \
    copy(&(struct copy){.to = (to_),                                                                                   \
                        .from = (from_),                                                                               \
                        .bytes = (n),                                                                                  \
                        .stream = (s),                                                                                 \
                        .async = true,                                                                                 \
                        .per_thread = (pt),                                                                            \
                        .real = real_##name},                                                                          \
         source)

#define COPY_ANY(name, pt, source)                                                                                     \
    HR_HOOK(name)(CUdeviceptr dst, CUdeviceptr src, size_t n)                                                          \
    {                                                                                                                  \
        HR_PASS(name, dst, src, n);                                                                                    \
        return SYNC(name, dst, src, n, pt, source);                                                                    \
    }
COPY_ANY(cuMemcpy, false, HR_SOURCE_ANY)
COPY_ANY(cuMemcpy_ptds, true, HR_SOURCE_ANY)
COPY_ANY(cuMemcpyDtoD_v2, false, HR_SOURCE_DEVICE)
COPY_ANY(cuMemcpyDtoD_v2_ptds, true, HR_SOURCE_DEVICE)

#define COPY_HTOD(name, pt)                                                                                            \
    HR_HOOK(name)(CUdeviceptr dst, const void *src, size_t n)                                                          \
    {                                                                                                                  \
        HR_PASS(name, dst, src, n);                                                                                    \
        return SYNC(name, dst, HOST(src), n, pt, HR_SOURCE_HOST);                                                      \
    }
COPY_HTOD(cuMemcpyHtoD_v2, false)
COPY_HTOD(cuMemcpyHtoD_v2_ptds, true)

#define COPY_DTOH(name, pt)                                                                                            \
    HR_HOOK(name)(void *dst, CUdeviceptr src, size_t n)                                                                \
    {                                                                                                                  \
        HR_PASS(name, dst, src, n);                                                                                    \
        return SYNC(name, HOST(dst), src, n, pt, HR_SOURCE_DEVICE);                                                    \
    }
COPY_DTOH(cuMemcpyDtoH_v2, false)
COPY_DTOH(cuMemcpyDtoH_v2_ptds, true)

#define COPY_ANY_ASYNC(name, pt, source)                                                                               \
    HR_HOOK(name)(CUdeviceptr dst, CUdeviceptr src, size_t n, CUstream s)                                              \
    {                                                                                                                  \
        HR_PASS(name, dst, src, n, s);                                                                                 \
        return ASYNC(name, dst, src, n, s, pt, source);                                                                \
    }
COPY_ANY_ASYNC(cuMemcpyAsync, false, HR_SOURCE_ANY)
COPY_ANY_ASYNC(cuMemcpyAsync_ptsz, true, HR_SOURCE_ANY)
COPY_ANY_ASYNC(cuMemcpyDtoDAsync_v2, false, HR_SOURCE_DEVICE)
COPY_ANY_ASYNC(cuMemcpyDtoDAsync_v2_ptsz, true, HR_SOURCE_DEVICE)

#define COPY_HTOD_ASYNC(name, pt)                                                                                      \
    HR_HOOK(name)(CUdeviceptr dst, const void *src, size_t n, CUstream s)                                              \
    {                                                                                                                  \
        HR_PASS(name, dst, src, n, s);                                                                                 \
        return ASYNC(name, dst, HOST(src), n, s, pt, HR_SOURCE_HOST);                                                  \
    }
COPY_HTOD_ASYNC(cuMemcpyHtoDAsync_v2, false)
COPY_HTOD_ASYNC(cuMemcpyHtoDAsync_v2_ptsz, true)

#define COPY_DTOH_ASYNC(name, pt)                                                                                      \
    HR_HOOK(name)(void *dst, CUdeviceptr src, size_t n, CUstream s)                                                    \
    {                                                                                                                  \
        HR_PASS(name, dst, src, n, s);                                                                                 \
        return ASYNC(name, HOST(dst), src, n, s, pt, HR_SOURCE_DEVICE);                                                \
    }
COPY_DTOH_ASYNC(cuMemcpyDtoHAsync_v2, false)
COPY_DTOH_ASYNC(cuMemcpyDtoHAsync_v2_ptsz, true)

/*
 * A peer copy goes by its addresses, whichever contexts it names. Told another context than that of the memory's GPU, the driver would look for grants
 * that cuMemAlloc memory does not need. One that is none is the driver's to refuse.
 */
CUcontext hr_copy_context(CUcontext named, CUdeviceptr address)
{
    if (!hr_space_owns(address))
        return named;
    const struct hr_context *context = hr_context_of(named);
    if (!context || context->gpu == hr_way_owner(address))
        return named;
    const struct hr_context *owner = hr_context_of_gpu(hr_way_owner(address));
    return owner ? owner->handle : named;
}

#define COPY_PEER(name, pt)                                                                                            \
    HR_HOOK(name)(CUdeviceptr dst, CUcontext dc, CUdeviceptr src, CUcontext sc, size_t n)                              \
    {                                                                                                                  \
        HR_PASS(name, dst, dc, src, sc, n);                                                                            \
        return copy(&(struct copy){.to = dst,                                                                          \
                                   .from = src,                                                                        \
                                   .bytes = n,                                                                         \
                                   .per_thread = (pt),                                                                 \
                                   .names_contexts = true,                                                             \
                                   .to_context = hr_copy_context(dc, dst),                                             \
                                   .from_context = hr_copy_context(sc, src),                                           \
                                   .real = real_##name},                                                               \
                    HR_SOURCE_DEVICE);                                                                                 \
    }
COPY_PEER(cuMemcpyPeer, false)
COPY_PEER(cuMemcpyPeer_ptds, true)

#define COPY_PEER_ASYNC(name, pt)                                                                                      \
    HR_HOOK(name)(CUdeviceptr dst, CUcontext dc, CUdeviceptr src, CUcontext sc, size_t n, CUstream s)                  \
    {                                                                                                                  \
        HR_PASS(name, dst, dc, src, sc, n, s);                                                                         \
        return copy(&(struct copy){.to = dst,                                                                          \
                                   .from = src,                                                                        \
                                   .bytes = n,                                                                         \
                                   .stream = s,                                                                        \
                                   .async = true,                                                                      \
                                   .per_thread = (pt),                                                                 \
                                   .names_contexts = true,                                                             \
                                   .to_context = hr_copy_context(dc, dst),                                             \
                                   .from_context = hr_copy_context(sc, src),                                           \
                                   .real = real_##name},                                                               \
                    HR_SOURCE_DEVICE);                                                                                 \
    }
COPY_PEER_ASYNC(cuMemcpyPeerAsync, false)
COPY_PEER_ASYNC(cuMemcpyPeerAsync_ptsz, true)
