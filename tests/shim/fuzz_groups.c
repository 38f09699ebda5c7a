/* The other ways to get memory and to submit work: pools, the job's own mapping, batches of copies, graphs. */
#include "fuzz_steps.h"

#include <stdlib.h>

/* --- memory -------------------------------------------------------------------------------------------------------- */

#define GRANULE (2 * MIB)

static size_t whole_granules(size_t bytes)
{
    return (bytes + GRANULE - 1) / GRANULE * GRANULE;
}

/* Several GPUs use each other's memory, which pools and mappings have to be told; where host memory cannot be mapped, mappings are the driver's. */
static enum fuzz_kind any_kind(struct fuzz_worker *w)
{
    uint64_t kind = fuzz.gpus > 1 ? 9 : below(w, 10);
    return kind < 2 ? FUZZ_POOLED : kind < 4 && fuzz.host_mapped ? FUZZ_MAPPED : FUZZ_PLAIN;
}

static bool has_memory(CUresult r)
{
    if (r != CUDA_SUCCESS && r != CUDA_ERROR_OUT_OF_MEMORY)
        fuzz_fail(NULL, "an allocation gave %d", (int)r);
    return r == CUDA_SUCCESS;
}

static bool take_mapped(struct fuzz_worker *w, struct fuzz_buffer *b, size_t bytes)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = (int)w->gpu}};
    CUmemAccessDesc desc = {.location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    size_t size = whole_granules(bytes);
    if (!has_memory(cuMemCreate(&b->handle, size, &prop, 0)))
        return false;
    FUZZ_OK(cuMemAddressReserve(&b->address, size, 0, 0, 0));
    FUZZ_OK(cuMemMap(b->address, size, 0, b->handle, 0));
    FUZZ_OK(cuMemSetAccess(b->address, size, &desc, 1));
    return true;
}

bool fuzz_memory_take(struct fuzz_worker *w, struct fuzz_buffer *b, size_t bytes)
{
    b->kind = any_kind(w);
    if (b->kind == FUZZ_MAPPED)
        return take_mapped(w, b, bytes);
    if (b->kind == FUZZ_PLAIN)
        return has_memory(cuMemAlloc_v2(&b->address, bytes));
    CUstream s = any_stream(w);
    if (!has_memory(cuMemAllocAsync(&b->address, bytes, s)))
        return false;
    after(w, b, s); /* usable behind this point only */
    return true;
}

static void wait_for_last(struct fuzz_buffer *b)
{
    if (b->last_gpu >= 0)
        FUZZ_OK(cuEventSynchronize(b->last[b->last_gpu]));
}

void fuzz_memory_give(struct fuzz_worker *w, struct fuzz_buffer *b)
{
    CUstream s = any_stream(w);
    size_t size = whole_granules(b->bytes);
    switch (b->kind) {
    case FUZZ_PLAIN: FUZZ_OK(cuMemFree_v2(b->address)); break; /* which waits, or seems to */
    case FUZZ_POOLED:
        before(b, s);
        FUZZ_OK(below(w, 4) == 0 ? cuMemFree_v2(b->address) : cuMemFreeAsync(b->address, s));
        break;
    case FUZZ_MAPPED:
        wait_for_last(b); /* unmapping does not */
        FUZZ_OK(cuMemUnmap(b->address, size));
        FUZZ_OK(cuMemRelease(b->handle));
        FUZZ_OK(cuMemAddressFree(b->address, size));
        break;
    }
}

/* --- batches ------------------------------------------------------------------------------------------------------- */

/* A created stream: batches and captures take no other. */
static CUstream created_stream(struct fuzz_worker *w)
{
    return w->stream[w->gpu][0];
}

void fuzz_batch(struct fuzz_worker *w)
{
    struct fuzz_buffer *b[4];
    CUdeviceptr to[2], from[2];
    size_t sizes[2], first = 0;
    CUmemcpyAttributes attributes = {.srcAccessOrder = below(w, 2) ? CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
                                                                   : CU_MEMCPY_SRC_ACCESS_ORDER_ANY};
    CUstream s = created_stream(w);
    take_buffers(w, b, 4);
    for (int i = 0; i < 4; i++)
        before(b[i], s);
    for (int i = 0; i < 2; i++) {
        struct fuzz_buffer *t = b[2 * i], *f = b[2 * i + 1];
        size_t least = t->bytes < f->bytes ? t->bytes : f->bytes, offset;
        any_range(w, least, 1, 2 * MIB, &offset, &sizes[i]);
        to[i] = t->address + offset;
        from[i] = f->address + offset;
        fuzz_note(w->index, "batch", (int)t->index, (int)f->index, offset, sizes[i], 0);
        memcpy(t->model + offset, f->model + offset, sizes[i]);
    }
    FUZZ_OK(cuMemcpyBatchAsync_v2(to, from, sizes, 2, &attributes, &first, 1, s));
    for (int i = 0; i < 4; i++)
        after(w, b[i], s);
    unlock_all(b, 4);
}

/* --- graphs -------------------------------------------------------------------------------------------------------- */

struct replay {
    struct fuzz_buffer *to, *from;
    size_t offset, bytes; /* of the kernel */
    size_t copied, filled;
    uint32_t a, c, value;
};

static void capture(struct fuzz_worker *w, const struct replay *p, CUstream s)
{
    CUdeviceptr y = p->to->address + p->offset, x = p->from->address + p->offset;
    uint32_t a = p->a, c = p->c, n = (uint32_t)(p->bytes / 4);
    FUZZ_OK(
        cuStreamBeginCapture_v2(s, below(w, 2) ? CU_STREAM_CAPTURE_MODE_THREAD_LOCAL : CU_STREAM_CAPTURE_MODE_RELAXED));
    launch(fuzz.code[w->gpu].affine, 1 + n / 1024, 128, s, (void *[]){&y, &x, &a, &c, &n});
    if (p->copied)
        FUZZ_OK(cuMemcpyDtoDAsync_v2(p->from->address, p->to->address, p->copied, s));
    if (p->filled)
        FUZZ_OK(cuMemsetD32Async(p->to->address, p->value, p->filled / 4, s));
}

static void apply(const struct replay *p)
{
    for (size_t i = p->offset; i < p->offset + p->bytes; i += 4)
        set_model(p->to, i, 4, 4, word(p->from, i) * p->a + p->c);
    memcpy(p->from->model, p->to->model, p->copied);
    set_model(p->to, 0, p->filled, 4, p->value);
}

/* Nodes that copy and fill want a way to the memory that the hardware has (README.md). */
static bool reaches(const struct fuzz_worker *w, const struct fuzz_buffer *b)
{
    int owner = 0, can = 1;
    FUZZ_OK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, b->address));
    if (owner != (int)w->gpu)
        FUZZ_OK(cuDeviceCanAccessPeer(&can, (CUdevice)w->gpu, owner));
    return can;
}

/* A kernel, and with it perhaps a copy and a fill, replayed some times; the executable graph goes while it runs. */
void fuzz_replay(struct fuzz_worker *w)
{
    struct fuzz_buffer *b[2];
    CUgraph graph;
    CUgraphExec exec;
    CUstream s = created_stream(w);
    take_buffers(w, b, 2);
    bool turn = below(w, 2), plain = below(w, 3) == 0 || !reaches(w, b[0]) || !reaches(w, b[1]);
    struct replay p = {.to = b[turn], .from = b[!turn]};
    size_t least = p.to->bytes < p.from->bytes ? p.to->bytes : p.from->bytes;
    any_range(w, least, 4, 32 * KIB / slower(), &p.offset, &p.bytes);
    p.copied = plain ? 0 : 1 + below(w, least < MIB ? least : MIB);
    p.filled = plain ? 0 : (1 + below(w, least / 4 < 4096 ? least / 4 : 4096)) * 4;
    p.a = (uint32_t)fuzz_random(&w->random) | 1;
    p.c = (uint32_t)fuzz_random(&w->random);
    p.value = (uint32_t)fuzz_random(&w->random);
    for (int i = 0; i < 2; i++)
        before(b[i], s);
    fuzz_note(w->index, "replay", (int)p.to->index, (int)p.from->index, p.offset, p.bytes, p.copied);
    capture(w, &p, s);
    FUZZ_OK(cuStreamEndCapture(s, &graph));
    CUresult r = cuGraphInstantiateWithFlags(&exec, graph, 0);
    FUZZ_OK(cuGraphDestroy(graph));
    if (has_memory(r)) {
        for (uint64_t times = 1 + below(w, 3); times > 0; times--) {
            FUZZ_OK(cuGraphLaunch(exec, s));
            apply(&p);
            if (below(w, 3) == 0)
                atomic_store(&fuzz.provoked, p.to->index + 1);
        }
        FUZZ_OK(cuGraphExecDestroy(exec));
    }
    for (int i = 0; i < 2; i++)
        after(w, b[i], s);
    unlock_all(b, 2);
}
