/* Matrix products for every machine. */
#define MMA_NAME(type) ptx_mma_##type##_base
#include "simgpu/ptx/mma.inc"
