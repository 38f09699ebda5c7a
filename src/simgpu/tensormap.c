/*
 * Tensor maps: 128 opaque bytes that hold the address and all arguments. What is checked is what cuda.h says of each. Kernels
 * here have no instructions that use them.
 */
#include "simgpu/sim.h"

#include <string.h>

#define MAGIC UINT64_C(0x676d69732d70616d)
#define MOST_RANK 5

struct map { /* the bytes of a CUtensorMap */
    uint64_t magic, address;
    uint64_t dim[MOST_RANK];
    uint64_t stride[MOST_RANK - 1];
    uint16_t box[MOST_RANK]; /* as much as 256 */
    uint8_t step[MOST_RANK];
    uint8_t type, rank, interleave, swizzle, promotion, fill, im2col;
};
_Static_assert(sizeof(struct map) <= sizeof(CUtensorMap), "fits");

/* What the three encoders have in common. */
struct tensor {
    CUtensorMap *out;
    CUtensorMapDataType type;
    uint32_t rank;
    uint64_t address;
    const cuuint64_t *dims, *strides;
    const cuuint32_t *steps;
    CUtensorMapInterleave interleave;
    CUtensorMapSwizzle swizzle;
    CUtensorMapL2promotion promotion;
    CUtensorMapFloatOOBfill fill;
};

static unsigned bits_of(CUtensorMapDataType type)
{
    static const uint8_t bits[] = {8, 16, 32, 32, 64, 64, 16, 32, 64, 16, 32, 32, 32, 4, 4, 6};
    return (unsigned)type < sizeof bits ? bits[type] : 0;
}

static bool is_packed(CUtensorMapDataType type)
{
    return type >= CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN8B;
}

static bool is_wide_packed(CUtensorMapDataType type)
{
    return type == CU_TENSOR_MAP_DATA_TYPE_16U4_ALIGN16B || type == CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B;
}

static bool is_float(CUtensorMapDataType type)
{
    return type >= CU_TENSOR_MAP_DATA_TYPE_FLOAT16 && type <= CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ;
}

static bool modes_are_sound(const struct tensor *t)
{
    bool six = t->type == CU_TENSOR_MAP_DATA_TYPE_16U6_ALIGN16B;
    if ((unsigned)t->interleave > CU_TENSOR_MAP_INTERLEAVE_32B ||
        (unsigned)t->swizzle > CU_TENSOR_MAP_SWIZZLE_128B_ATOM_64B ||
        (unsigned)t->promotion > CU_TENSOR_MAP_L2_PROMOTION_L2_256B ||
        (unsigned)t->fill > CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA)
        return false;
    if ((t->interleave == CU_TENSOR_MAP_INTERLEAVE_32B && t->swizzle != CU_TENSOR_MAP_SWIZZLE_32B) ||
        (six && t->interleave != CU_TENSOR_MAP_INTERLEAVE_NONE) || (t->fill && !is_float(t->type)))
        return false;
    if (is_wide_packed(t->type) && t->swizzle != CU_TENSOR_MAP_SWIZZLE_NONE &&
        t->swizzle != CU_TENSOR_MAP_SWIZZLE_128B && t->swizzle != CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B)
        return six && t->swizzle == CU_TENSOR_MAP_SWIZZLE_128B_ATOM_64B;
    return true;
}

/* The address must be memory when the map is made, as the harsher reading has it. */
static bool address_is_sound(const struct tensor *t, uint64_t address)
{
    uint64_t align = t->interleave == CU_TENSOR_MAP_INTERLEAVE_32B || is_wide_packed(t->type) ? 32 : 16;
    return !(address % align) && sg_range_is_memory(address, 1);
}

static bool shape_is_sound(const struct tensor *t)
{
    uint64_t align = t->interleave == CU_TENSOR_MAP_INTERLEAVE_32B || is_wide_packed(t->type) ? 32 : 16;
    for (uint32_t i = 0; i < t->rank; i++)
        if (!t->dims[i] || t->dims[i] > UINT64_C(1) << 32 || !t->steps[i] || t->steps[i] > 8)
            return false;
    for (uint32_t i = 0; i + 1 < t->rank; i++)
        if (!t->strides[i] || t->strides[i] % align || t->strides[i] >= UINT64_C(1) << 40)
            return false;
    return !is_packed(t->type) || t->dims[0] % (is_wide_packed(t->type) ? 128 : 2) == 0;
}

static CUresult check(const struct tensor *t, uint32_t least_rank)
{
    if (!t->out || (uintptr_t)t->out % 64 || !bits_of(t->type) || !t->dims || !t->steps ||
        (t->rank > 1 && !t->strides) || t->rank < least_rank || t->rank > MOST_RANK ||
        (t->interleave != CU_TENSOR_MAP_INTERLEAVE_NONE && t->rank < 3))
        return CUDA_ERROR_INVALID_VALUE;
    if (sg.config.model->major < 9)
        return CUDA_ERROR_NOT_SUPPORTED;
    return modes_are_sound(t) && shape_is_sound(t) && address_is_sound(t, t->address) ? CUDA_SUCCESS
                                                                                      : CUDA_ERROR_INVALID_VALUE;
}

/* Of an inner dimension of so many elements in shared memory. */
static bool inner_is_sound(const struct tensor *t, uint32_t elements)
{
    static const uint16_t spans[] = {UINT16_MAX, 32, 64, 128, 128, 128, 128};
    uint64_t bits = (uint64_t)elements * bits_of(t->type);
    if (is_wide_packed(t->type) && elements != 128)
        return false;
    return t->interleave != CU_TENSOR_MAP_INTERLEAVE_NONE ||
           (bits % 128 == 0 && (t->swizzle == CU_TENSOR_MAP_SWIZZLE_NONE || bits / 8 <= spans[t->swizzle]));
}

static void encode(const struct tensor *t, const cuuint32_t *box, uint8_t im2col)
{
    struct map m = {.magic = MAGIC,
                    .address = t->address,
                    .type = (uint8_t)t->type,
                    .rank = (uint8_t)t->rank,
                    .interleave = (uint8_t)t->interleave,
                    .swizzle = (uint8_t)t->swizzle,
                    .promotion = (uint8_t)t->promotion,
                    .fill = (uint8_t)t->fill,
                    .im2col = im2col};
    for (uint32_t i = 0; i < t->rank; i++) {
        m.dim[i] = t->dims[i];
        m.step[i] = (uint8_t)t->steps[i];
        m.box[i] = (uint16_t)(box && (!im2col || i < 2) ? box[i] : 0);
        if (i + 1 < t->rank)
            m.stride[i] = t->strides[i];
    }
    memset(t->out, 0, sizeof *t->out);
    memcpy(t->out, &m, sizeof m);
}

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                const cuuint64_t *dims, const cuuint64_t *strides, const cuuint32_t *box,
                                const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill)
{
    struct tensor t = {map,     type,      rank, (uint64_t)(uintptr_t)address, dims, strides, steps, interleave,
                       swizzle, promotion, fill};
    CUresult r = sg_enter("cuTensorMapEncodeTiled");
    if (r)
        return r;
    r = box ? check(&t, 1) : CUDA_ERROR_INVALID_VALUE;
    for (uint32_t i = 0; i < rank && !r; i++)
        if (!box[i] || box[i] > 256)
            r = CUDA_ERROR_INVALID_VALUE;
    if (!r && !inner_is_sound(&t, box[0]))
        r = CUDA_ERROR_INVALID_VALUE;
    if (!r)
        encode(&t, box, 0);
    return sg_leave(r);
}

static CUresult encode_im2col(const char *function, const struct tensor *t, const int *lower, const int *upper,
                              unsigned corners, uint32_t channels, uint32_t pixels, uint8_t kind)
{
    static const uint8_t bits[] = {16, 16, 16, 16, 8, 5}; /* of a corner, by rank */
    CUresult r = sg_enter(function);
    if (r)
        return r;
    r = lower && upper ? check(t, 3) : CUDA_ERROR_INVALID_VALUE;
    if (!r && (!channels || channels > 256 || !pixels || pixels > 1024 || !inner_is_sound(t, channels)))
        r = CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < corners && !r; i++) {
        int most = 1 << (bits[t->rank] - 1);
        if (lower[i] < -most || lower[i] >= most || upper[i] < -most || upper[i] >= most)
            r = CUDA_ERROR_INVALID_VALUE;
    }
    if (!r)
        encode(t, (const cuuint32_t[]){channels, pixels}, kind);
    return sg_leave(r);
}

CUresult cuTensorMapEncodeIm2col(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                 const cuuint64_t *dims, const cuuint64_t *strides, const int *lower, const int *upper,
                                 cuuint32_t channels, cuuint32_t pixels, const cuuint32_t *steps,
                                 CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                 CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill)
{
    struct tensor t = {map,     type,      rank, (uint64_t)(uintptr_t)address, dims, strides, steps, interleave,
                       swizzle, promotion, fill};
    return encode_im2col("cuTensorMapEncodeIm2col", &t, lower, upper, rank > 2 && rank <= MOST_RANK ? rank - 2 : 0,
                         channels, pixels, 1);
}

CUresult cuTensorMapEncodeIm2colWide(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                     const cuuint64_t *dims, const cuuint64_t *strides, int lower, int upper,
                                     cuuint32_t channels, cuuint32_t pixels, const cuuint32_t *steps,
                                     CUtensorMapInterleave interleave, CUtensorMapIm2ColWideMode mode,
                                     CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                     CUtensorMapFloatOOBfill fill)
{
    struct tensor t = {map,     type,      rank, (uint64_t)(uintptr_t)address, dims, strides, steps, interleave,
                       swizzle, promotion, fill};
    if ((unsigned)mode > CU_TENSOR_MAP_IM2COL_WIDE_MODE_W128 ||
        (swizzle != CU_TENSOR_MAP_SWIZZLE_64B && swizzle != CU_TENSOR_MAP_SWIZZLE_128B &&
         swizzle != CU_TENSOR_MAP_SWIZZLE_128B_ATOM_32B && swizzle != CU_TENSOR_MAP_SWIZZLE_128B_ATOM_64B) ||
        interleave != CU_TENSOR_MAP_INTERLEAVE_NONE)
        map = NULL; /* to be refused, if the driver is there */
    t.out = map;
    return encode_im2col("cuTensorMapEncodeIm2colWide", &t, &lower, &upper, 1, channels, pixels, 2);
}

CUresult cuTensorMapReplaceAddress(CUtensorMap *map, void *address)
{
    struct map m;
    CUresult r = sg_enter("cuTensorMapReplaceAddress");
    if (r)
        return r;
    if (!map || (uintptr_t)map % 64)
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    memcpy(&m, map, sizeof m);
    struct tensor t = {.type = (CUtensorMapDataType)m.type, .interleave = (CUtensorMapInterleave)m.interleave};
    if (m.magic != MAGIC || !address_is_sound(&t, (uint64_t)(uintptr_t)address))
        return sg_leave(CUDA_ERROR_INVALID_VALUE);
    m.address = (uint64_t)(uintptr_t)address;
    memcpy(map, &m, sizeof m);
    return sg_leave(CUDA_SUCCESS);
}
