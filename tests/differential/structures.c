#include "calls.h"

#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *type, *field;
    size_t offset, bytes, type_bytes;
} known[] = {
#define F(T, f)                                                                                                        \
    {                                                                                                                  \
#T, #f, offsetof(T, f), sizeof(((T *)0)->f), sizeof(T)                                                         \
    }
#define COPY_2D(T)                                                                                                     \
    F(T, srcXInBytes), F(T, srcY), F(T, srcMemoryType), F(T, srcHost), F(T, srcDevice), F(T, srcArray),                \
        F(T, srcPitch), F(T, dstXInBytes), F(T, dstY), F(T, dstMemoryType), F(T, dstHost), F(T, dstDevice),            \
        F(T, dstArray), F(T, dstPitch), F(T, WidthInBytes), F(T, Height)
    COPY_2D(CUDA_MEMCPY2D),
    COPY_2D(CUDA_MEMCPY3D),
    F(CUDA_MEMCPY3D, srcZ),
    F(CUDA_MEMCPY3D, dstZ),
    F(CUDA_MEMCPY3D, srcHeight),
    F(CUDA_MEMCPY3D, dstHeight),
    F(CUDA_MEMCPY3D, Depth),
    COPY_2D(CUDA_MEMCPY3D_PEER),
    F(CUDA_MEMCPY3D_PEER, srcHeight),
    F(CUDA_MEMCPY3D_PEER, dstHeight),
    F(CUDA_MEMCPY3D_PEER, Depth),
    F(CUDA_MEMCPY3D_PEER, srcContext),
    F(CUDA_MEMCPY3D_PEER, dstContext),
    F(CUDA_ARRAY_DESCRIPTOR, Width),
    F(CUDA_ARRAY_DESCRIPTOR, Height),
    F(CUDA_ARRAY_DESCRIPTOR, Format),
    F(CUDA_ARRAY_DESCRIPTOR, NumChannels),
    F(CUDA_ARRAY3D_DESCRIPTOR, Width),
    F(CUDA_ARRAY3D_DESCRIPTOR, Height),
    F(CUDA_ARRAY3D_DESCRIPTOR, Depth),
    F(CUDA_ARRAY3D_DESCRIPTOR, Format),
    F(CUDA_ARRAY3D_DESCRIPTOR, NumChannels),
    F(CUDA_ARRAY3D_DESCRIPTOR, Flags),
    F(CUmemAllocationProp, type),
    F(CUmemAllocationProp, requestedHandleTypes),
    F(CUmemAllocationProp, location),
    F(CUmemAccessDesc, location),
    F(CUmemAccessDesc, flags),
    F(CUmemPoolProps, allocType),
    F(CUmemPoolProps, handleTypes),
    F(CUmemPoolProps, location),
    F(CUmemPoolProps, maxSize),
    F(CUmemLocation, type),
    F(CUmemLocation, id),
    F(CUmemcpyAttributes, srcAccessOrder),
    F(CUmemcpyAttributes, flags),
    F(CUDA_RESOURCE_DESC, resType),
    F(CUDA_RESOURCE_DESC, res.linear.devPtr),
    F(CUDA_RESOURCE_DESC, res.linear.format),
    F(CUDA_RESOURCE_DESC, res.linear.numChannels),
    F(CUDA_RESOURCE_DESC, res.linear.sizeInBytes),
    F(CUDA_RESOURCE_DESC, res.array.hArray),
    F(CUDA_RESOURCE_DESC, res.pitch2D.devPtr),
    F(CUDA_RESOURCE_DESC, res.pitch2D.format),
    F(CUDA_RESOURCE_DESC, res.pitch2D.numChannels),
    F(CUDA_RESOURCE_DESC, res.pitch2D.width),
    F(CUDA_RESOURCE_DESC, res.pitch2D.height),
    F(CUDA_RESOURCE_DESC, res.pitch2D.pitchInBytes),
    F(CUDA_TEXTURE_DESC, flags),
    F(CUDA_TEXTURE_DESC, filterMode),
    F(CUDA_MEMSET_NODE_PARAMS, dst),
    F(CUDA_MEMSET_NODE_PARAMS, pitch),
    F(CUDA_MEMSET_NODE_PARAMS, value),
    F(CUDA_MEMSET_NODE_PARAMS, elementSize),
    F(CUDA_MEMSET_NODE_PARAMS, width),
    F(CUDA_MEMSET_NODE_PARAMS, height),
    F(CUDA_MEM_ALLOC_NODE_PARAMS, poolProps),
    F(CUDA_MEM_ALLOC_NODE_PARAMS, bytesize),
    F(CUDA_MEM_ALLOC_NODE_PARAMS, dptr),
    F(CUDA_KERNEL_NODE_PARAMS, func),
    F(CUDA_KERNEL_NODE_PARAMS, gridDimX),
    F(CUDA_KERNEL_NODE_PARAMS, gridDimY),
    F(CUDA_KERNEL_NODE_PARAMS, gridDimZ),
    F(CUDA_KERNEL_NODE_PARAMS, blockDimX),
    F(CUDA_KERNEL_NODE_PARAMS, blockDimY),
    F(CUDA_KERNEL_NODE_PARAMS, blockDimZ),
    F(CUDA_KERNEL_NODE_PARAMS, kernelParams),
    F(CUlaunchConfig, gridDimX),
    F(CUlaunchConfig, gridDimY),
    F(CUlaunchConfig, gridDimZ),
    F(CUlaunchConfig, blockDimX),
    F(CUlaunchConfig, blockDimY),
    F(CUlaunchConfig, blockDimZ),
    F(CUlaunchConfig, hStream),
    F(CUDA_BATCH_MEM_OP_NODE_PARAMS, ctx),
    F(CUDA_BATCH_MEM_OP_NODE_PARAMS, count),
    F(CUDA_BATCH_MEM_OP_NODE_PARAMS, paramArray),
    F(CUstreamBatchMemOpParams, operation),
    F(CUstreamBatchMemOpParams, writeValue.address),
    F(CUstreamBatchMemOpParams, writeValue.value),
#undef F
};

static struct structure structures[128];
static int count;

static _Noreturn void unknown(const char *what, const char *name)
{
    fprintf(stderr, "no %s %s\n", what, name);
    exit(3);
}

static int type_of(const char *name)
{
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(known[i].type, name) == 0)
            return (int)i;
    }
    unknown("type", name);
}

static size_t field_of(const char *type, const char *field)
{
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(known[i].type, type) == 0 && strcmp(known[i].field, field) == 0)
            return i;
    }
    unknown("field", field);
}

void define_structure(char *line)
{
    const char *name = strtok(line, " "), *type = strtok(NULL, " ");
    struct structure *s = structure(name);
    s = s != NULL ? s : &structures[count++];
    memset(s, 0, sizeof *s);
    snprintf(s->name, sizeof s->name, "%s", name);
    s->type = type_of(type);
    for (char *field; (field = strtok(NULL, " ")) != NULL;) {
        char *value = strchr(field, '=');
        if (value == NULL || s->count == FIELDS)
            unknown("value", field);
        *value++ = 0;
        size_t at = field_of(type, field);
        s->field[s->count].offset = known[at].offset;
        s->field[s->count].bytes = known[at].bytes;
        snprintf(s->field[s->count++].argument, TEXT, "%s", value);
    }
}

struct structure *structure(const char *name)
{
    for (int i = 0; i < count; i++) {
        if (strcmp(structures[i].name, name) == 0)
            return &structures[i];
    }
    return NULL;
}

size_t structure_bytes(const struct structure *s)
{
    return known[s->type].type_bytes;
}
