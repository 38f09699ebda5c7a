/*
 * A driver that calls itself through its exported names, as a library that is not linked with -Bsymbolic may: what stands in
 * front of it then sees calls that no job made, from inside calls that one did. These bodies replace those of the main library
 * (which are compiled under other names for this variant, see meson.build).
 */
#include "simgpu/sim.h"

CUresult cuMemAllocPitch_v2(CUdeviceptr *dptr, size_t *pitch, size_t width, size_t height, unsigned int element_bytes)
{
    if (!dptr || !pitch || !width || !height || (element_bytes != 4 && element_bytes != 8 && element_bytes != 16))
        return CUDA_ERROR_INVALID_VALUE;
    size_t row = (width + 511) & ~(size_t)511, bytes;
    if (row < width || __builtin_mul_overflow(row, height, &bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = cuMemAlloc_v2(dptr, bytes);
    if (!r)
        *pitch = row;
    return r;
}

CUresult cuMemAllocHost_v2(void **pp, size_t bytesize)
{
    return cuMemHostAlloc(pp, bytesize, CU_MEMHOSTALLOC_DEVICEMAP);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src, size_t n)
{
    CUresult r = cuMemcpyHtoDAsync_v2(dst, src, n, CU_STREAM_LEGACY);
    return r ? r : cuStreamSynchronize(CU_STREAM_LEGACY);
}

CUresult cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t n)
{
    CUresult r = cuMemcpyDtoHAsync_v2(dst, src, n, CU_STREAM_LEGACY);
    return r ? r : cuStreamSynchronize(CU_STREAM_LEGACY);
}
