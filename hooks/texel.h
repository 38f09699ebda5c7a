#ifndef HR_HOOKS_TEXEL_H
#define HR_HOOKS_TEXEL_H

#include <cuda.h>
#include <stddef.h>

/* Bytes of one element of an array or texture; 0 = the format packs them otherwise. */
static inline size_t hr_texel_bytes(CUarray_format format, unsigned channels)
{
    switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF: return (size_t)2 * channels;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT: return (size_t)4 * channels;
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8: return channels;
    default: return 0;
    }
}

#endif
