/* The interpreter with AVX-512: half a warp of 32-bit lanes is one register. */
#define INTERP_NAME ptx_interp_avx512
#include "simgpu/ptx/interp.inc"
