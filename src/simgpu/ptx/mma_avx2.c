/* Matrix products with AVX2. */
#define MMA_NAME(type) ptx_mma_##type##_avx2
#include "simgpu/ptx/mma.inc"
