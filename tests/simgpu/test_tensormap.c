/* Encoding tensor maps: what cuda.h asks of each argument. */
#include "sim_test.h"

struct args {
    CUtensorMapDataType type;
    unsigned rank;
    uint64_t offset; /* into the memory */
    cuuint64_t dims[5], strides[4];
    cuuint32_t box[5], steps[5];
    CUtensorMapInterleave interleave;
    CUtensorMapSwizzle swizzle;
    CUtensorMapL2promotion promotion;
    CUtensorMapFloatOOBfill fill;
};

static const struct args sound = {
    CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 3, 0, {64, 32, 8}, {128, 4096}, {32, 8, 4}, {1, 1, 1}, 0, 0, 0, 0};
static CUtensorMap map __attribute__((aligned(64)));
static CUdeviceptr memory;

static CUresult tiled(const struct args *a)
{
    return cuTensorMapEncodeTiled(&map, a->type, a->rank, (void *)(uintptr_t)(memory + a->offset), a->dims, a->strides,
                                  a->box, a->steps, a->interleave, a->swizzle, a->promotion, a->fill);
}

static void refuses(const struct args *a, const char *what)
{
    CUresult r = tiled(a);
    cr_assert_eq(r, CUDA_ERROR_INVALID_VALUE, "%s: %d", what, (int)r);
}

Test(tensormap, tiled_maps_are_checked)
{
    machine_with_context("h200,vram=64M");
    OK(cuMemAlloc_v2(&memory, MIB));
    OK(tiled(&sound));
#define WRONG(change)                                                                                                  \
    do {                                                                                                               \
        struct args a = sound;                                                                                         \
        change;                                                                                                        \
        refuses(&a, #change);                                                                                          \
    } while (0)
    WRONG(a.type = (CUtensorMapDataType)16);
    WRONG(a.rank = 0);
    WRONG(a.rank = 6);
    WRONG(a.offset = 8);
    WRONG(a.offset = UINT64_C(1) << 40);
    WRONG(a.dims[1] = 0);
    WRONG(a.dims[0] = (UINT64_C(1) << 32) + 1);
    WRONG(a.strides[0] = 24);
    WRONG(a.strides[1] = UINT64_C(1) << 40);
    WRONG(a.box[2] = 0);
    WRONG(a.box[0] = 257);
    WRONG(a.box[0] = 4); /* 8 bytes */
    WRONG(a.steps[1] = 0);
    WRONG(a.steps[1] = 9);
    WRONG(a.interleave = (CUtensorMapInterleave)3);
    WRONG(a.interleave = CU_TENSOR_MAP_INTERLEAVE_32B); /* without its swizzle */
    WRONG((a.interleave = CU_TENSOR_MAP_INTERLEAVE_16B, a.rank = 2));
    WRONG(a.swizzle = CU_TENSOR_MAP_SWIZZLE_32B); /* the box is 64 bytes wide */
    WRONG(a.swizzle = (CUtensorMapSwizzle)7);
    WRONG(a.promotion = (CUtensorMapL2promotion)4);
    WRONG((a.type = CU_TENSOR_MAP_DATA_TYPE_INT32, a.fill = CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA));
    WRONG((a.type = CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B, a.dims[0] = 64));
    struct args good = sound;
    good.swizzle = CU_TENSOR_MAP_SWIZZLE_64B;
    OK(tiled(&good));
    good = sound;
    good.interleave = CU_TENSOR_MAP_INTERLEAVE_32B;
    good.swizzle = CU_TENSOR_MAP_SWIZZLE_32B;
    OK(tiled(&good));
    GIVES(CUDA_ERROR_INVALID_VALUE,
          cuTensorMapEncodeTiled((CUtensorMap *)(void *)((char *)&map + 16), sound.type, 3, (void *)(uintptr_t)memory,
                                 sound.dims, sound.strides, sound.box, sound.steps, 0, 0, 0, 0));
}

Test(tensormap, the_address_can_be_replaced)
{
    machine_with_context("h200,vram=64M");
    CUtensorMap first, other __attribute__((aligned(64)));
    OK(cuMemAlloc_v2(&memory, MIB));
    OK(tiled(&sound));
    first = map;
    OK(cuTensorMapReplaceAddress(&map, (void *)(uintptr_t)(memory + 4096)));
    cr_assert_neq(memcmp(&first, &map, sizeof map), 0);
    struct args moved = sound;
    moved.offset = 4096;
    other = map;
    OK(tiled(&moved));
    cr_assert_eq(memcmp(&other, &map, sizeof map), 0);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuTensorMapReplaceAddress(&map, (void *)(uintptr_t)(memory + 8)));
    memset(&other, 0, sizeof other);
    GIVES(CUDA_ERROR_INVALID_VALUE, cuTensorMapReplaceAddress(&other, (void *)(uintptr_t)memory));
}

Test(tensormap, im2col_maps_are_checked)
{
    machine_with_context("h200,vram=64M");
    const struct args *a = &sound;
    int lower = -1, upper = 1, far = 40000;
    OK(cuMemAlloc_v2(&memory, MIB));
    void *at = (void *)(uintptr_t)memory;
    OK(cuTensorMapEncodeIm2col(&map, a->type, 3, at, a->dims, a->strides, &lower, &upper, 32, 64, a->steps, 0, 0, 0,
                               0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuTensorMapEncodeIm2col(&map, a->type, 2, at, a->dims, a->strides, &lower, &upper,
                                                            32, 64, a->steps, 0, 0, 0, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuTensorMapEncodeIm2col(&map, a->type, 3, at, a->dims, a->strides, &lower, &far, 32,
                                                            64, a->steps, 0, 0, 0, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuTensorMapEncodeIm2col(&map, a->type, 3, at, a->dims, a->strides, &lower, &upper,
                                                            257, 64, a->steps, 0, 0, 0, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE, cuTensorMapEncodeIm2col(&map, a->type, 3, at, a->dims, a->strides, &lower, &upper,
                                                            32, 1025, a->steps, 0, 0, 0, 0));
    OK(cuTensorMapEncodeIm2colWide(&map, a->type, 3, at, a->dims, a->strides, -1, 1, 32, 64, a->steps, 0,
                                   CU_TENSOR_MAP_IM2COL_WIDE_MODE_W, CU_TENSOR_MAP_SWIZZLE_64B, 0, 0));
    GIVES(CUDA_ERROR_INVALID_VALUE,
          cuTensorMapEncodeIm2colWide(&map, a->type, 3, at, a->dims, a->strides, -1, 1, 32, 64, a->steps, 0,
                                      CU_TENSOR_MAP_IM2COL_WIDE_MODE_W, CU_TENSOR_MAP_SWIZZLE_32B, 0, 0));
}

Test(tensormap, older_cards_have_none)
{
    machine_with_context("a100-pcie,vram=64M");
    int supported = 1;
    OK(cuMemAlloc_v2(&memory, MIB));
    GIVES(CUDA_ERROR_NOT_SUPPORTED, tiled(&sound));
    OK(cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_TENSOR_MAP_ACCESS_SUPPORTED, 0));
    cr_assert_eq(supported, 0);
}
