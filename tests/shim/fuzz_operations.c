#include "fuzz_steps.h"

#include <stdlib.h>
#include <time.h>

void fuzz_go_to(struct fuzz_worker *w, unsigned gpu)
{
    FUZZ_OK(cuCtxSetCurrent(fuzz.context[gpu]));
    if (w)
        w->gpu = gpu;
}

void fuzz_worker_start(struct fuzz_worker *w, unsigned index)
{
    w->index = index;
    w->random = (fuzz.seed + 1) * UINT64_C(0x9e3779b97f4a7c15) + index * UINT64_C(0xd1342543de82ef95) + 1;
    for (unsigned g = 0; g < fuzz.gpus; g++) {
        fuzz_go_to(w, g);
        FUZZ_OK(cuStreamCreate(&w->stream[g][0], CU_STREAM_NON_BLOCKING));
        FUZZ_OK(cuStreamCreate(&w->stream[g][1], CU_STREAM_DEFAULT));
        w->stream[g][2] = CU_STREAM_PER_THREAD;
        w->stream[g][3] = CU_STREAM_LEGACY;
        for (int i = 0; i < FUZZ_STAGING; i++)
            FUZZ_OK(cuEventCreate(&w->staging[i].done[g], CU_EVENT_DISABLE_TIMING));
    }
    for (int i = 0; i < FUZZ_STAGING; i++) {
        FUZZ_OK(cuMemAllocHost_v2((void **)&w->staging[i].host, FUZZ_STAGING_BYTES));
        w->staging[i].used = -1;
    }
    fuzz_go_to(w, index % fuzz.gpus);
}

/* --- buffers ------------------------------------------------------------------------------------------------------ */

static void fill(struct fuzz_worker *w, struct fuzz_buffer *b, size_t offset, size_t bytes, unsigned element)
{
    uint32_t v = (uint32_t)fuzz_random(&w->random);
    bool sync = below(w, 4) == 0;
    CUstream s = sync ? CU_STREAM_LEGACY : any_stream(w);
    CUdeviceptr to = b->address + offset;
    before(b, s);
    fuzz_note(w->index, sync ? "memset" : "memset async", (int)b->index, -1, offset, bytes, v);
    if (element == 1)
        FUZZ_OK(sync ? cuMemsetD8_v2(to, (uint8_t)v, bytes) : cuMemsetD8Async(to, (uint8_t)v, bytes, s));
    else if (element == 2)
        FUZZ_OK(sync ? cuMemsetD16_v2(to, (uint16_t)v, bytes / 2) : cuMemsetD16Async(to, (uint16_t)v, bytes / 2, s));
    else
        FUZZ_OK(sync ? cuMemsetD32_v2(to, v, bytes / 4) : cuMemsetD32Async(to, v, bytes / 4, s));
    after(w, b, s);
    set_model(b, offset, bytes, element, v);
}

bool fuzz_allocate(struct fuzz_worker *w, struct fuzz_buffer *b, size_t bytes)
{
    b->last_gpu = -1;
    if (!fuzz_memory_take(w, b, bytes)) {
        atomic_fetch_add(&fuzz.ooms, 1);
        b->address = 0;
        return false;
    }
    b->bytes = bytes;
    atomic_store(&b->told_bytes, bytes);
    atomic_store(&b->told_address, b->address);
    b->model = malloc(bytes);
    if (!b->model)
        fuzz_fail(b, "the host has no memory for the model");
    fuzz_note(w->index, "alloc", (int)b->index, -1, 0, bytes, b->address);
    fill(w, b, 0, bytes, 4);
    return true;
}

static size_t any_size(struct fuzz_worker *w)
{
    uint64_t kind = below(w, 10);
    size_t most = kind < 4 ? 64 * KIB : kind < 8 ? 2 * MIB : 7 * MIB;
    most = most < fuzz.most_bytes ? most : fuzz.most_bytes;
    if (fuzz.gpus > 1 && w->gpu % 2 && below(w, 12) > 0)
        most /= 8; /* these have room to lend, until they take it back */
    return 512 + below(w, most / 4) * 4;
}

/* Frees (work may still use it: the free must not take effect before that is done) and allocates again. */
static void replace(struct fuzz_worker *w)
{
    struct fuzz_buffer *b[1];
    b[0] = any_buffer(w);
    lock_all(b, 1);
    size_t bytes = below(w, 3) == 0 && b[0]->address ? b[0]->bytes : any_size(w);
    if (b[0]->address) {
        if (below(w, 3) == 0)
            fuzz_verify(w, b[0], 0, b[0]->bytes);
        fuzz_note(w->index, "free", (int)b[0]->index, -1, 0, b[0]->bytes, b[0]->address);
        atomic_store(&b[0]->told_address, 0);
        fuzz_memory_give(w, b[0]);
        b[0]->address = 0;
        free(b[0]->model);
        b[0]->model = NULL;
    }
    while (!fuzz_allocate(w, b[0], bytes))
        bytes = 512 + bytes / 8 * 4;
    unlock_all(b, 1);
}

/* --- copies and comparisons --------------------------------------------------------------------------------------- */

static unsigned take_staging(struct fuzz_worker *w)
{
    unsigned i = (unsigned)below(w, FUZZ_STAGING);
    if (w->staging[i].used >= 0)
        FUZZ_OK(cuEventSynchronize(w->staging[i].done[w->staging[i].used]));
    return i;
}

static void give_staging(struct fuzz_worker *w, unsigned i, CUstream s)
{
    FUZZ_OK(cuEventRecord(w->staging[i].done[w->gpu], s));
    w->staging[i].used = (int)w->gpu;
}

static void random_bytes(struct fuzz_worker *w, uint8_t *to, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += 8) {
        uint64_t v = fuzz_random(&w->random);
        memcpy(to + i, &v, bytes - i < 8 ? bytes - i : 8);
    }
}

static void upload(struct fuzz_worker *w, struct fuzz_buffer *b)
{
    size_t offset, bytes;
    any_range(w, b->bytes, 1, FUZZ_STAGING_BYTES, &offset, &bytes);
    uint8_t *to =
        b->model + offset; /* the model's own bytes are the pageable source: the driver has read them on return */
    uint64_t kind = below(w, 4);
    CUstream s = kind == 0 ? CU_STREAM_LEGACY : any_stream(w);
    before(b, s);
    random_bytes(w, to, bytes);
    fuzz_note(w->index, kind < 2 ? "upload" : "upload pinned", (int)b->index, -1, offset, bytes, kind);
    if (kind == 0) {
        FUZZ_OK(cuMemcpyHtoD_v2(b->address + offset, to, bytes));
    } else if (kind == 1) {
        FUZZ_OK(cuMemcpyHtoDAsync_v2(b->address + offset, to, bytes, s));
        FUZZ_OK(cuStreamSynchronize(s));
    } else {
        unsigned i = take_staging(w);
        memcpy(w->staging[i].host, to, bytes);
        FUZZ_OK(cuMemcpyHtoDAsync_v2(b->address + offset, w->staging[i].host, bytes, s));
        give_staging(w, i, s);
    }
    after(w, b, s);
}

static void copy_between(struct fuzz_worker *w)
{
    struct fuzz_buffer *b[2];
    take_buffers(w, b, 2);
    bool turn = below(w, 2), any = below(w, 2);
    struct fuzz_buffer *to = b[turn], *from = b[!turn];
    size_t least = to->bytes < from->bytes ? to->bytes : from->bytes, offset, bytes;
    any_range(w, least, 1, 4 * MIB, &offset, &bytes);
    size_t from_offset = below(w, from->bytes - bytes + 1);
    CUstream s = any_stream(w);
    before(to, s);
    before(from, s);
    fuzz_note(w->index, "copy", (int)to->index, (int)from->index, offset, bytes, from_offset);
    FUZZ_OK(any ? cuMemcpyAsync(to->address + offset, from->address + from_offset, bytes, s)
                : cuMemcpyDtoDAsync_v2(to->address + offset, from->address + from_offset, bytes, s));
    after(w, to, s);
    after(w, from, s);
    memcpy(to->model + offset, from->model + from_offset, bytes);
    unlock_all(b, 2);
}

void fuzz_verify(struct fuzz_worker *w, struct fuzz_buffer *b, size_t offset, size_t bytes)
{
    bool sync = below(w, 2);
    CUstream s = sync ? CU_STREAM_LEGACY : any_stream(w);
    before(b, s);
    uint8_t *seen = malloc(bytes);
    if (!seen)
        fuzz_fail(b, "the host has no memory to compare");
    if (sync) {
        FUZZ_OK(cuMemcpyDtoH_v2(seen, b->address + offset, bytes));
    } else {
        FUZZ_OK(cuMemcpyDtoHAsync_v2(seen, b->address + offset, bytes, s));
        FUZZ_OK(cuStreamSynchronize(s));
    }
    after(w, b, s);
    atomic_fetch_add(&fuzz.verified_bytes, bytes);
    if (memcmp(seen, b->model + offset, bytes) != 0) {
        size_t i = 0, wrong = 0;
        while (seen[i] == b->model[offset + i])
            i++;
        for (size_t k = i; k < bytes; k++)
            wrong += seen[k] != b->model[offset + k];
        fuzz_fail(b, "buffer %u at 0x%llx, %zu bytes: byte %zu is 0x%02x and should be 0x%02x; %zu bytes are wrong",
                  b->index, (unsigned long long)b->address, b->bytes, offset + i, seen[i], b->model[offset + i], wrong);
    }
    free(seen);
}

static void verify_some(struct fuzz_worker *w)
{
    struct fuzz_buffer *b[1];
    size_t offset, bytes;
    take_buffers(w, b, 1);
    any_range(w, b[0]->bytes, 1, b[0]->bytes, &offset, &bytes);
    fuzz_verify(w, b[0], offset, bytes);
    unlock_all(b, 1);
}

/* --- kernels ------------------------------------------------------------------------------------------------------ */

static void affine(struct fuzz_worker *w)
{
    struct fuzz_buffer *b[2];
    take_buffers(w, b, 2);
    bool turn = below(w, 2);
    struct fuzz_buffer *to = b[turn], *from = b[!turn];
    size_t least = to->bytes < from->bytes ? to->bytes : from->bytes, offset, bytes;
    any_range(w, least, 4, 128 * KIB / slower(), &offset, &bytes);
    uint32_t a = (uint32_t)fuzz_random(&w->random) | 1, c = (uint32_t)fuzz_random(&w->random),
             n = (uint32_t)(bytes / 4);
    CUdeviceptr y = to->address + offset, x = from->address + offset;
    CUstream s = any_stream(w);
    before(to, s);
    before(from, s);
    fuzz_note(w->index, "affine", (int)to->index, (int)from->index, offset, bytes, a);
    launch(fuzz.code[w->gpu].affine, 1 + n / 1024, 128, s, (void *[]){&y, &x, &a, &c, &n});
    after(w, to, s);
    after(w, from, s);
    for (size_t i = 0; i < bytes; i += 4)
        set_model(to, offset + i, 4, 4, word(from, offset + i) * a + c);
    unlock_all(b, 2);
}

static void mix(struct fuzz_worker *w)
{
    struct {
        CUdeviceptr out, in[2];
        uint32_t n, k;
    } m;
    struct fuzz_buffer *b[3];
    take_buffers(w, b, 3);
    struct fuzz_buffer *to = b[below(w, 3)];
    size_t least = b[0]->bytes, offset, bytes;
    for (int i = 1; i < 3; i++)
        least = b[i]->bytes < least ? b[i]->bytes : least;
    any_range(w, least, 4, 64 * KIB / slower(), &offset, &bytes);
    struct fuzz_buffer *from[2] = {b[0] == to ? b[1] : b[0], b[2] == to ? b[1] : b[2]};
    m.out = to->address + offset;
    m.in[0] = from[0]->address + offset;
    m.in[1] = from[1]->address + offset;
    m.n = (uint32_t)(bytes / 4);
    m.k = (uint32_t)fuzz_random(&w->random);
    CUstream s = any_stream(w);
    for (int i = 0; i < 3; i++)
        before(b[i], s);
    fuzz_note(w->index, "mix", (int)to->index, (int)from[0]->index, offset, bytes, from[1]->index);
    if (below(w, 2)) {
        launch(fuzz.code[w->gpu].mix, 1 + m.n / 1024, 128, s, (void *[]){&m});
    } else {
        size_t size = sizeof m;
        void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &m, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END};
        FUZZ_OK(cuLaunchKernel(fuzz.code[w->gpu].mix, 1 + m.n / 1024, 1, 1, 128, 1, 1, 0, s, NULL, extra));
    }
    for (int i = 0; i < 3; i++)
        after(w, b[i], s);
    for (size_t i = 0; i < bytes; i += 4)
        set_model(to, offset + i, 4, 4, (word(from[0], offset + i) ^ word(from[1], offset + i)) + m.k);
    unlock_all(b, 3);
}

/*
 * Where kernels cannot reach host memory, all that a buffer ever named must fit into VRAM together: there the table gets an
 * allocation of its own, which is freed while the kernel runs.
 */
static void table_of_its_own(struct fuzz_worker *w)
{
    struct fuzz_buffer *b[2];
    take_buffers(w, b, 2);
    size_t least = b[0]->bytes < b[1]->bytes ? b[0]->bytes : b[1]->bytes, offset, bytes;
    any_range(w, least, 4, 32 * KIB / slower(), &offset, &bytes);
    CUdeviceptr entries[2] = {b[0]->address + offset, b[1]->address + offset}, start;
    uint32_t count = 2, n = (uint32_t)(bytes / 4), a = (uint32_t)fuzz_random(&w->random);
    CUstream s = any_stream(w);
    fuzz_note(w->index, "own table", (int)b[0]->index, (int)b[1]->index, offset, bytes, a);
    FUZZ_OK(cuMemAlloc_v2(&start, 3 * MIB / 2));
    for (int i = 0; i < 2; i++)
        before(b[i], s);
    FUZZ_OK(cuMemcpyHtoDAsync_v2(start, entries, sizeof entries, s));
    launch(fuzz.code[w->gpu].add_table, 1 + n / 1024, 128, s, (void *[]){&start, &count, &n, &a});
    FUZZ_OK(cuMemFree_v2(start));
    for (int t = 0; t < 2; t++) {
        after(w, b[t], s);
        for (size_t i = 0; i < bytes; i += 4)
            set_model(b[t], offset + i, 4, 4, word(b[t], offset + i) + a);
    }
    unlock_all(b, 2);
}

/* The addresses reach the kernel through device memory only: one buffer holds the table, after a small copy. */
static void table(struct fuzz_worker *w)
{
    struct fuzz_buffer *b[3];
    if (!fuzz.host_mapped) {
        table_of_its_own(w);
        return;
    }
    take_buffers(w, b, 3);
    unsigned at = (unsigned)below(w, 3);
    struct fuzz_buffer *holder = b[at], *to[2] = {b[(at + 1) % 3], b[(at + 2) % 3]};
    size_t least = to[0]->bytes < to[1]->bytes ? to[0]->bytes : to[1]->bytes, offset, bytes;
    any_range(w, least, 4, 32 * KIB / slower(), &offset, &bytes);
    CUdeviceptr entries[2] = {to[0]->address + offset, to[1]->address + offset};
    size_t place = below(w, (holder->bytes - sizeof entries) / 8 + 1) * 8;
    uint32_t count = 2, n = (uint32_t)(bytes / 4), a = (uint32_t)fuzz_random(&w->random);
    CUdeviceptr start = holder->address + place;
    CUstream s = any_stream(w);
    for (int i = 0; i < 3; i++)
        before(b[i], s);
    fuzz_note(w->index, "table", (int)to[0]->index, (int)to[1]->index, offset, bytes, holder->index);
    FUZZ_OK(cuMemcpyHtoDAsync_v2(start, entries, sizeof entries, s));
    launch(fuzz.code[w->gpu].add_table, 1 + n / 1024, 128, s, (void *[]){&start, &count, &n, &a});
    for (int i = 0; i < 3; i++)
        after(w, b[i], s);
    memcpy(holder->model + place, entries, sizeof entries);
    for (int t = 0; t < 2; t++)
        for (size_t i = 0; i < bytes; i += 4)
            set_model(to[t], offset + i, 4, 4, word(to[t], offset + i) + a);
    unlock_all(b, 3);
}

/* A kernel that goes on reading and writing for a while, and says to the mover that this buffer would be worth a move. */
static void slow(struct fuzz_worker *w)
{
    struct fuzz_buffer *b[1];
    take_buffers(w, b, 1);
    size_t offset, bytes;
    any_range(w, b[0]->bytes, 4, 8 * KIB, &offset, &bytes);
    uint32_t a = (uint32_t)fuzz_random(&w->random) | 1, c = (uint32_t)fuzz_random(&w->random),
             n = (uint32_t)(bytes / 4);
    uint32_t rounds = (uint32_t)(1 + below(w, 400000 / slower()) / n);
    CUdeviceptr y = b[0]->address + offset;
    CUstream s = any_stream(w);
    before(b[0], s);
    fuzz_note(w->index, "slow", (int)b[0]->index, -1, offset, bytes, rounds);
    launch(fuzz.code[w->gpu].slow_affine, 1, 128, s, (void *[]){&y, &a, &c, &n, &rounds});
    atomic_store(&fuzz.provoked, b[0]->index + 1);
    after(w, b[0], s);
    for (size_t i = 0; i < bytes; i += 4) {
        uint32_t v = word(b[0], offset + i);
        for (uint32_t r = 0; r < rounds; r++)
            v = v * a + c;
        set_model(b[0], offset + i, 4, 4, v);
    }
    unlock_all(b, 1);
}

/* A quiet moment, in which the mover may begin; then writes that come between its copy and its swap. */
static void provoke(struct fuzz_worker *w)
{
    struct fuzz_buffer *b[1];
    take_buffers(w, b, 1);
    if (b[0]->last_gpu >= 0)
        FUZZ_OK(cuEventSynchronize(b[0]->last[b[0]->last_gpu]));
    atomic_store(&fuzz.provoked, b[0]->index + 1);
    struct timespec span = {0, (long)below(w, 3000000)}; /* the moment within the move is what is random here */
    if (fuzz.workers >= fuzz.gpus)
        nanosleep(&span, NULL);
    for (int i = 0; i < 4; i++) {
        size_t offset, bytes;
        any_range(w, b[0]->bytes, 4, 64 * KIB, &offset, &bytes);
        fill(w, b[0], offset, bytes, 4);
    }
    unlock_all(b, 1);
}

/* --- the choice --------------------------------------------------------------------------------------------------- */

static void fill_some(struct fuzz_worker *w)
{
    struct fuzz_buffer *b[1];
    size_t offset, bytes;
    unsigned element = 1u << below(w, 3);
    take_buffers(w, b, 1);
    any_range(w, b[0]->bytes, element, b[0]->bytes, &offset, &bytes);
    fill(w, b[0], offset, bytes, element);
    unlock_all(b, 1);
}

static void upload_some(struct fuzz_worker *w)
{
    struct fuzz_buffer *b[1];
    take_buffers(w, b, 1);
    upload(w, b[0]);
    unlock_all(b, 1);
}

void fuzz_operate(struct fuzz_worker *w)
{
    static const struct {
        void (*run)(struct fuzz_worker *w);
        unsigned weight;
    } operations[] = {
        {replace, 12}, {upload_some, 13}, {copy_between, 8}, {fill_some, 8}, {affine, 12},    {mix, 8},
        {table, 6},    {slow, 7},         {verify_some, 12}, {provoke, 6},   {fuzz_batch, 4}, {fuzz_replay, 4},
    };
    if (fuzz.workers < fuzz.gpus) /* one worker, all GPUs in turn */
        fuzz_go_to(w, (unsigned)below(w, fuzz.gpus));
    unsigned at = (unsigned)below(w, 100), i = 0;
    while (at >= operations[i].weight)
        at -= operations[i++].weight;
    operations[i].run(w);
    atomic_fetch_add(&fuzz.operations, 1);
}
