/* Three-dimensional copies: every byte of the box and no other, wherever the pieces of its operands lie. */
#include "core_test.h"

#define BYTES (6 * MIB)

/* A box of `width` bytes by `height` rows by `depth` slices, at (x, y, z) in memory with this pitch and slice height. */
struct place {
    size_t x, y, z, pitch, height;
};

static size_t offset(const struct place *p, size_t row, size_t slice)
{
    return ((p->z + slice) * p->height + p->y + row) * p->pitch + p->x;
}

enum kind { PLAIN, ASYNC, PEER, PEER_ASYNC, KINDS };
enum direction { TO_DEVICE, TO_HOST, ON_DEVICE };

static CUcontext context[2];
static CUdeviceptr memory[2];
static unsigned char *model[2], *host, *seen; /* what memory[] should hold */
static CUstream stream;

static CUresult call(enum kind kind, const CUDA_MEMCPY3D_PEER *p)
{
    CUDA_MEMCPY3D plain;
    memcpy(&plain, p, sizeof plain);
    plain.reserved0 = plain.reserved1 = NULL;
    switch (kind) {
    case PLAIN: return cuMemcpy3D_v2(&plain);
    case ASYNC: return cuMemcpy3DAsync_v2(&plain, stream);
    case PEER: return cuMemcpy3DPeer(p);
    default: return cuMemcpy3DPeerAsync(p, stream);
    }
}

static void copy_box(enum kind kind, enum direction direction, const struct place *to, const struct place *from,
                     size_t width, size_t height, size_t depth)
{
    CUDA_MEMCPY3D_PEER p = {
        .srcXInBytes = from->x,
        .srcY = from->y,
        .srcZ = from->z,
        .srcPitch = from->pitch,
        .srcHeight = from->height,
        .dstXInBytes = to->x,
        .dstY = to->y,
        .dstZ = to->z,
        .dstPitch = to->pitch,
        .dstHeight = to->height,
        .WidthInBytes = width,
        .Height = height,
        .Depth = depth,
        .srcContext = context[0],
        .dstContext = context[1],
        .srcMemoryType = direction == TO_DEVICE ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE,
        .dstMemoryType = direction == TO_HOST ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE,
        .srcHost = host,
        .dstHost = host,
        .srcDevice = memory[0],
        .dstDevice = memory[1],
    };
    unsigned char *out = direction == TO_HOST ? seen : model[1], *in = direction == TO_DEVICE ? host : model[0];
    if (direction == TO_HOST)
        memcpy(seen, host, BYTES);
    OK(call(kind, &p));
    OK(cuStreamSynchronize(stream));
    OK(cuCtxSynchronize());
    for (size_t z = 0; z < depth; z++)
        for (size_t y = 0; y < height; y++)
            memcpy(out + offset(to, y, z), in + offset(from, y, z), width);
    if (direction == TO_HOST)
        CHECK(memcmp(seen, host, BYTES) == 0, "the host's box differs");
}

static void device_is_right(void)
{
    OK(cuCtxSetCurrent(context[1]));
    OK(cuMemcpyDtoH_v2(seen, memory[1], BYTES));
    OK(cuCtxSetCurrent(context[0]));
    CHECK(memcmp(seen, model[1], BYTES) == 0, "the device's boxes differ");
}

/* All kinds and directions, with other parts of the operands out of VRAM each time. */
static void copy_all(bool two)
{
    struct place wide = {100, 2, 1, 4096, 100}, close = {0, 0, 0, 1000, 90}, skewed = {8, 1, 0, 2048, 333};
    struct hr_thread *t = hr_thread_self();
    host = malloc(BYTES);
    seen = malloc(BYTES);
    OK(cuCtxSetCurrent(context[0]));
    OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 2; i++) {
        model[i] = malloc(BYTES);
        fill(model[i], BYTES, (uint64_t)i, 0);
        OK(cuCtxSetCurrent(context[i]));
        OK(cuMemAlloc_v2(&memory[i], BYTES));
        OK(cuMemcpyHtoD_v2(memory[i], model[i], BYTES));
        OK(cuCtxSynchronize());
    }
    OK(cuCtxSetCurrent(context[0]));
    fill(host, BYTES, 7, 0);
    for (int k = 0; k < KINDS * 3; k++) {
        enum kind kind = (enum kind)(k % KINDS);
        if (two && kind < PEER && k / KINDS != ON_DEVICE)
            continue; /* plain copies between the host and the other GPU's memory: tested with linear ones */
        hr_access_evict_range(t, memory[0] + (size_t)(k % 3) * CHUNK, CHUNK);
        hr_access_evict_range(t, memory[1] + (size_t)((k + 1) % 3) * CHUNK, CHUNK);
        copy_box(kind, (enum direction)(k / KINDS), k % 2 ? &wide : &skewed, &close, 999, 80, 8);
        copy_box(kind, (enum direction)(k / KINDS), &close, &wide, 1000, 90, 9);
        if (k % 2)
            device_is_right();
        hr_access_restore_range(t, memory[0], BYTES);
    }
    for (int i = 0; i < 2; i++)
        free(model[i]);
    free(host);
    free(seen);
}

static void one_gpu(void)
{
    context[0] = context[1] = machine("h200,vram=64M,host=512M", "");
    copy_all(false);
}
static void one_gpu_unmapped(void)
{
    context[0] = context[1] = machine("h200,vram=64M,host=512M", "host_numa");
    copy_all(false);
}
static void two_gpus(void)
{
    context[0] = machine("rtx4090,gpus=2,vram=64M,host=512M", "");
    OK(cuCtxCreate_v2(&context[1], 0, 1));
    copy_all(true);
}
static void two_gpus_unmapped(void)
{
    context[0] = machine("h200,gpus=2,vram=64M,host=512M", "host_numa");
    OK(cuCtxCreate_v2(&context[1], 0, 1));
    copy_all(true);
}

Test(copy3d, boxes_arrive_wherever_their_pieces_lie, .timeout = 60)
{
    void (*const bodies[])(void) = {one_gpu, one_gpu_unmapped, two_gpus, two_gpus_unmapped};
    for (int i = 0; i < 4; i++) {
        char *report = apart(bodies[i]);
        was_safe(report);
        free(report);
    }
}

static void refused_boxes(void)
{
    CUDA_MEMCPY3D p = {.srcMemoryType = CU_MEMORYTYPE_HOST,
                       .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                       .WidthInBytes = 64,
                       .Height = 16,
                       .Depth = 16,
                       .srcPitch = 64,
                       .srcHeight = 16,
                       .dstPitch = 1 << 20,
                       .dstHeight = 16};
    CUdeviceptr small;
    host = calloc(1, 64 * 16 * 16);
    machine("h200,vram=64M", "");
    OK(cuMemAlloc_v2(&small, 1 << 20));
    p.srcHost = host;
    p.dstDevice = small;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpy3D_v2(&p)); /* reaches beyond the allocation */
    p.dstPitch = 32;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpy3D_v2(&p)); /* rows that overlap */
    p.dstPitch = SIZE_MAX / 4;
    p.dstHeight = SIZE_MAX / 4;
    GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpy3D_v2(&p)); /* overflows */
    p.dstPitch = 64;
    p.dstHeight = 16;
    OK(cuMemcpy3D_v2(&p));
    p.Depth = 0;
    OK(cuMemcpy3D_v2(&p));
    free(host);
}

Test(copy3d, boxes_that_do_not_fit_are_refused, .timeout = 60)
{
    free(apart(refused_boxes));
}
